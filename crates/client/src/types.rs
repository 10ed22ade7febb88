//! What is sent, and what is answered, under the names that HTTP has for them.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use duewheel_api::error_code::ErrorCode;
use duewheel_api::rfc3339;
use duewheel_core::WallMs;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::call::{no_json, segment};
use crate::error::Error;

/// The result of each element of a batch, in its order.
pub type Each<T> = Vec<Result<T, Error>>;

/// An instant, as RFC 3339 in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub SystemTime);

impl Serialize for Timestamp {
    /// Rounded up to the millisecond, so that nothing is early.
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let since = self.0.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        s.serialize_str(&rfc3339::string(WallMs(millis(since))))
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let WallMs(ms) = rfc3339::parse(&String::deserialize(d)?).map_err(D::Error::custom)?;
        let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms));
        at.map(Timestamp).ok_or_else(|| D::Error::custom("the instant is too far away"))
    }
}

/// Rounded up, so that nothing is early.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn backoff_fields((min, max): (Duration, Duration)) -> Value {
    json!({"min_ms": millis(min), "max_ms": millis(max)})
}

fn raw(value: &impl Serialize) -> Result<Box<RawValue>, Error> {
    serde_json::value::to_raw_value(value).map_err(no_json)
}

/// A request as a struct of optional fields, each with the method that sets it.
macro_rules! request {
    ($(#[$outer:meta])* $name:ident {
        $($(#[$doc:meta])* $set:ident($arg:ty): $field:ident $kind:ty = $how:expr;)*
    }) => {
        $(#[$outer])*
        #[derive(Clone, Debug, Default, Serialize)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$doc])* #[serde(skip_serializing_if = "Option::is_none")] pub $field: Option<$kind>,)*
        }

        impl $name {
            $($(#[$doc])* #[must_use] pub fn $set(self, $set: $arg) -> Self {
                $name { $field: Some($how($set)), ..self }
            })*
        }
    };
}

/// The value of a word in a request.
macro_rules! words {
    ($(#[$outer:meta])* $name:ident { $($(#[$doc:meta])* $word:ident,)* }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum $name { $($(#[$doc])* $word,)* }
    };
}

words! {
    /// The treatment of a key that another message has.
    TakenKey {
        /// The call is refused; the default.
        Reject,
        /// The other message stays, and is the answer.
        Keep,
        /// This message replaces it; refused while it is leased.
        Replace,
        /// This message replaces it, or takes its key while it is leased.
        Supersede,
    }
}

words! {
    /// The treatment of a due time that has passed.
    PastDue {
        /// The call is refused; the default.
        Refuse,
        /// The message is due now.
        Fire,
        /// The instant stays, and order, lateness and expiry follow it.
        Keep,
    }
}

request! {
    /// A message to enqueue. Fields that are not set are left to the settings of its queue; without a delay and an
    /// instant it is due at once.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duewheel_client::{NewMessage, TakenKey};
    ///
    /// let message = NewMessage::default()
    ///     .body("order 42")
    ///     .delay(Duration::from_secs(48 * 3600))
    ///     .key("order-42")
    ///     .if_exists(TakenKey::Replace);
    /// ```
    NewMessage {
        /// The content, as text.
        body(impl Into<String>): body String = Into::into;
        /// The content, as bytes.
        bytes(&[u8]): body_base64 String = |bytes| STANDARD.encode(bytes);
        /// The content, as JSON that is written already.
        raw_json(Box<RawValue>): json Box<RawValue> = Into::into;
        /// Due after this time, by elapsed time.
        delay(Duration): delay_ms u64 = millis;
        /// Due at this instant, by the wall clock.
        due_at(SystemTime): due_at Timestamp = Timestamp;
        /// The treatment of a due time that has passed.
        past(PastDue): past PastDue = Into::into;
        /// Your own name for the message, unique among the unsettled ones of its queue.
        key(impl Into<String>): key String = Into::into;
        /// The treatment of a taken key.
        if_exists(TakenKey): if_exists TakenKey = Into::into;
        /// A repeated enqueue with this id gets the first answer. Without one the client makes one for the call.
        dedupe_id(impl Into<String>): dedupe_id String = Into::into;
        /// How long the id is remembered. It needs an id.
        dedupe_window(Duration): dedupe_window_ms u64 = millis;
        /// Lower first; 1024 by default.
        priority(u32): priority u32 = Into::into;
        /// How long a consumer has the message.
        lease(Duration): lease_ms u64 = millis;
        /// The message is dead after so many attempts.
        max_attempts(u32): max_attempts u32 = Into::into;
        /// The delay after a failed attempt: from the first one, doubled each time, up to the second one.
        backoff((Duration, Duration)): backoff Value = backoff_fields;
        /// Headers.
        headers(BTreeMap<String, String>): headers BTreeMap<String, String> = Into::into;
        /// A URL of its own to deliver the message to.
        target_url(impl Into<String>): target_url String = Into::into;
        /// Due at an instant of its own within this time after the due time.
        spread(Duration): spread_ms u64 = millis;
        /// Expires so long after the due time.
        expires_in(Duration): expires_in_ms u64 = millis;
    }
}

impl NewMessage {
    /// The content, as JSON.
    ///
    /// # Errors
    /// The value is no JSON, such as a map whose keys are no texts.
    pub fn json(self, json: &impl Serialize) -> Result<NewMessage, Error> {
        Ok(self.raw_json(raw(json)?))
    }
}

request! {
    /// A change of a scheduled or ready message. Fields that are not set stay.
    Postponement {
        /// Due after this time.
        delay(Duration): delay_ms u64 = millis;
        /// Due at this instant.
        due_at(SystemTime): due_at Timestamp = Timestamp;
        /// The treatment of a due time that has passed.
        past(PastDue): past PastDue = Into::into;
        /// Another content, as text.
        body(impl Into<String>): body String = Into::into;
        /// Another content, as bytes.
        bytes(&[u8]): body_base64 String = |bytes| STANDARD.encode(bytes);
        /// All headers.
        headers(BTreeMap<String, String>): headers BTreeMap<String, String> = Into::into;
        /// Another priority.
        priority(u32): priority u32 = Into::into;
        /// Another number of attempts.
        max_attempts(u32): max_attempts u32 = Into::into;
        /// Another length of the lease.
        lease(Duration): lease_ms u64 = millis;
        /// Refused unless the message has this generation.
        if_generation(u64): if_generation u64 = Into::into;
    }
}

request! {
    /// How messages are leased. Without anything set it is one message that is there already.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duewheel_client::Reserving;
    ///
    /// let ten = Reserving::default().max(10).wait(Duration::from_secs(20));
    /// ```
    Reserving {
        /// Largest number of messages; 1 by default.
        max(usize): max usize = Into::into;
        /// How long to wait for the first message.
        wait(Duration): wait_ms u64 = millis;
        /// How long the leases are; as message and queue say by default.
        lease(Duration): lease_ms u64 = millis;
    }
}

request! {
    /// What becomes of a message that is not done: it comes again after the backoff of message and queue, unless
    /// something else is set.
    ///
    /// ```
    /// use duewheel_client::Nack;
    ///
    /// let failed = Nack::default().reason("the bank does not answer");
    /// let hopeless = Nack::dead_because("there is no such order");
    /// # assert!(failed.dead.is_none() && hopeless.dead == Some(true));
    /// ```
    Nack {
        /// The time until the next attempt.
        delay(Duration): delay_ms u64 = millis;
        /// Why; kept in the history of the message.
        reason(impl Into<String>): reason String = Into::into;
        /// Whether the message is dead at once.
        dead(bool): dead bool = Into::into;
        /// Whether this attempt counts.
        attempt(bool): attempt bool = Into::into;
    }
}

impl Nack {
    /// Not yet: the message comes again after this time, and the attempt does not count.
    pub fn not_yet(delay: Duration) -> Nack {
        Nack::default().delay(delay).attempt(false)
    }

    /// No attempt can help: the message is dead, because of `reason`.
    pub fn dead_because(reason: impl Into<String>) -> Nack {
        Nack::default().dead(true).reason(reason)
    }
}

/// A failed attempt, whose reason is the error.
impl<E: std::error::Error> From<E> for Nack {
    fn from(error: E) -> Nack {
        Nack::default().reason(error.to_string())
    }
}

/// Names one message.
///
/// ```
/// use duewheel_client::MessageRef;
///
/// let by_id = MessageRef::id("17");
/// let by_key = MessageRef::key("close-review", "order-42");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRef(pub(crate) String);

impl MessageRef {
    /// The message with this id.
    pub fn id(id: &str) -> MessageRef {
        MessageRef(format!("/v1/messages/{}", segment(id)))
    }

    /// The message of this queue that has this key.
    pub fn key(queue: &str, key: &str) -> MessageRef {
        MessageRef(format!("/v1/queues/{}/keys/{}", segment(queue), segment(key)))
    }
}

/// An answer as a struct whose missing members have their defaults.
macro_rules! answer {
    ($(#[$outer:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$outer])*
        #[derive(Clone, Debug, Default, Deserialize, Serialize)]
        #[serde(default)]
        #[non_exhaustive]
        pub struct $name { $($(#[$doc])* pub $field: $kind,)* }
    };
}

answer! {
    /// A message that was accepted, or that was there already.
    Accepted {
        /// The id of the message.
        id: String,
        /// The queue.
        queue: String,
        /// The key.
        key: Option<String>,
        /// When it is due.
        due_at: Option<Timestamp>,
        /// How often the key was used.
        generation: u64,
        /// False: [`TakenKey::Keep`] kept another message, whose `state` this is.
        created: bool,
        /// Whether this is the answer to an earlier enqueue with the same id.
        replayed: bool,
        /// The state of the message that was kept.
        state: Option<String>,
        /// The message that this one has replaced.
        replaced: Option<String>,
        /// The leased message whose key this one has taken.
        superseded: Option<String>,
        /// The durability that the change has reached: `memory`, `written`, `fsync`.
        durability: Option<String>,
    }
}

answer! {
    /// The present state of a message.
    MessageView {
        /// The id.
        id: String,
        /// The queue.
        queue: String,
        /// The key.
        key: Option<String>,
        /// `scheduled`, `ready`, `leased`, `dead` or `done`.
        state: Option<String>,
        /// How a done message ended.
        outcome: Option<String>,
        /// The result of its ack.
        result: Option<Value>,
        /// The content, if it is UTF-8; see [`MessageView::bytes`].
        body: Option<String>,
        /// The content in Base64, if it is not.
        body_base64: Option<String>,
        /// The headers.
        headers: BTreeMap<String, String>,
        /// When it is due.
        due_at: Option<Timestamp>,
        /// The time until then.
        due_in_ms: Option<i64>,
        /// When it was enqueued.
        enqueued_at: Option<Timestamp>,
        /// When it expires.
        expires_at: Option<Timestamp>,
        /// When it ended.
        ended_at: Option<Timestamp>,
        /// Attempts so far.
        attempt: u32,
        /// Attempts that do not count.
        forgiven: u32,
        /// The number of attempts after which it is dead.
        max_attempts: Option<u32>,
        /// Lower first.
        priority: u32,
        /// How often the key was used.
        generation: u64,
        /// The length of the lease.
        lease_ms: u64,
        /// When the lease ends.
        lease_until: Option<Timestamp>,
        /// Why it is dead.
        dead_reason: Option<String>,
        /// The message that has taken its key.
        superseded_by: Option<String>,
        /// A URL of its own.
        target_url: Option<String>,
        /// The attempts that have ended.
        history: Vec<EndedAttempt>,
    }
}

answer! {
    /// An attempt that has ended.
    EndedAttempt {
        /// The number of the attempt.
        attempt: u32,
        /// When it began.
        granted_at: Option<Timestamp>,
        /// When it ended.
        ended_at: Option<Timestamp>,
        /// How it ended.
        how: String,
        /// The reason that its consumer gave.
        note: Option<String>,
    }
}

impl MessageView {
    /// The content, as bytes.
    pub fn bytes(&self) -> Vec<u8> {
        match (&self.body, &self.body_base64) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(encoded)) => STANDARD.decode(encoded).unwrap_or_default(),
            (None, None) => Vec::new(),
        }
    }

    /// The content, read from JSON.
    ///
    /// # Errors
    /// The body is another JSON, or none.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.bytes())
    }
}

answer! {
    /// A message under a lease: the right to work on it until `lease_until`, which `lease_token` proves.
    LeasedMessage {
        /// Proves the lease.
        lease_token: String,
        /// How long after its due time it was granted.
        lateness_ms: u64,
        /// Whether it had expired.
        late: bool,
        /// The message.
        #[serde(flatten)]
        message: MessageView,
    }
}

impl std::ops::Deref for LeasedMessage {
    type Target = MessageView;

    fn deref(&self) -> &MessageView {
        &self.message
    }
}

answer! {
    /// Leased messages.
    LeasedMessages {
        /// The messages, the best ones first.
        messages: Vec<LeasedMessage>,
        /// Why there are none although some are ready: `leases` or `rate`.
        held_back: Option<String>,
    }
}

answer! {
    /// The answer to an ack, a nack or an extend.
    SettledMessage {
        /// `acked` or `already`; `again`, `dead` or `superseded`; `extended`.
        result: String,
        /// When it comes again.
        due_at: Option<Timestamp>,
        /// Why it is dead.
        dead_reason: Option<String>,
        /// When the lease ends now.
        lease_until: Option<Timestamp>,
        /// The durability that the change has reached.
        durability: Option<String>,
    }
}

answer! {
    /// The answer to a cancel.
    CancelledMessage {
        /// `cancelled`.
        result: String,
        /// The id of the message, if it was named by its key.
        id: Option<String>,
        /// The key.
        key: Option<String>,
    }
}

answer! {
    /// A part of the messages of a queue.
    MessagePage {
        /// The messages.
        messages: Vec<MessageView>,
        /// Where the next part begins; `None` on the last one.
        next: Option<String>,
    }
}

answer! {
    /// Counts and settings of a queue.
    QueueOverview {
        /// The queue.
        queue: String,
        /// Messages by state.
        counts: BTreeMap<String, Value>,
        /// Whether nothing is granted.
        paused: bool,
        /// The settings.
        config: Value,
    }
}

/// A refusal of the client's own.
pub(crate) fn bad_request(detail: &str) -> Error {
    Error::new(ErrorCode::BadRequest, detail)
}
