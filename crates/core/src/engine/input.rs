//! The arguments of operations ([`super::Op`]).

use bytes::Bytes;

use crate::id::{LeaseToken, MessageId, SessionId};
use crate::message::{Headers, MaxAttempts, MessageContent, Options};
use crate::name::{Key, QueueName};
use crate::policy::ReadyOrder;
use crate::store::Cursor;
use crate::time::{Now, WallMs};

/// Whether a cancel also frees the `dedupe_id` of its message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DedupeId {
    /// A repeated enqueue with this id gets the answer of the cancelled message.
    #[default]
    Stays,
    /// The answer is forgotten: the next enqueue with this id is a new one.
    Freed,
}

/// The act that keeps a message which it removes, so that [`super::Op::Restore`] can put it back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct KeptFor {
    /// The id of the act ([`QueueName::of_act`]).
    pub act: Box<str>,
    /// How long the message is kept at least, in ms.
    pub keep_ms: u64,
}

/// A kind of interest in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Hold {
    /// The holder puts messages into it.
    Use,
    /// The holder takes messages out of it.
    Watch,
    /// The holder wants it to exist.
    Keep,
}

/// Proof that a caller holds a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Proof {
    /// The token of the lease. The lease may have run out, if no consumer has had the message since.
    Token(LeaseToken),
    /// The session that the lease is bound to. The lease must not have run out.
    Session(SessionId),
}

/// Whether the attempt that a nack ends counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Attempt {
    /// The attempt failed: it counts against `max_attempts`.
    #[default]
    Failed,
    /// "Not yet": the grant is forgiven, and does not count.
    NotYet,
    /// The attempt failed, and counts against a limit of the consumer's own, which replaces that of the queue until a
    /// consumer without one returns the message. The message's own limit wins. A reserve that names the limit also
    /// lets it hold for an attempt that no consumer returns ([`Reserve::max_attempts`]).
    FailedOf(MaxAttempts),
}

impl From<LeaseToken> for Proof {
    fn from(token: LeaseToken) -> Self {
        Proof::Token(token)
    }
}

/// A message to accept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Enqueue {
    /// The queue.
    pub queue: QueueName,
    /// The caller's own name for it.
    pub key: Option<Key>,
    /// The payload.
    pub body: Bytes,
    /// Names and values that are stored with the body.
    pub headers: Headers,
    /// The due time.
    pub when: When,
    /// The words from which the due time was computed, such as a calendar delay: repeated enqueues are compared by them.
    pub due_words: Option<Box<str>>,
    /// How a key that is already taken is handled.
    pub if_exists: IfExists,
    /// A retried enqueue with the same value gets the first answer.
    pub dedupe_id: Option<Box<str>>,
    /// How long that value is remembered, in ms; `None`: the queue's setting, and never longer than that.
    pub dedupe_window_ms: Option<u64>,
    /// Priority, lower first; `None`: the queue's setting.
    pub priority: Option<u32>,
    /// The message's own settings.
    pub options: Options,
    /// The initial state of the message.
    pub begins: InitialState,
    /// The order that a new queue without a configured order gets. It lasts while the queue is in use.
    pub order_if_new: Option<ReadyOrder>,
}

/// The initial state of a new message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum InitialState {
    /// Scheduled, or Ready if it is due.
    #[default]
    Waiting,
    /// Dead: it was dead in the system that it is moved from.
    Dead,
}

impl Enqueue {
    /// A message that is due at once, with default values.
    pub fn new(queue: QueueName, body: impl Into<Bytes>) -> Self {
        Enqueue {
            queue,
            key: None,
            body: body.into(),
            headers: Headers::new(),
            when: When::After(0),
            due_words: None,
            if_exists: IfExists::Reject,
            dedupe_id: None,
            dedupe_window_ms: None,
            priority: None,
            options: Options::default(),
            begins: InitialState::Waiting,
            order_if_new: None,
        }
    }

    /// The content of the message that it makes.
    pub fn into_content(self, id: MessageId, enqueued_at: WallMs) -> MessageContent {
        let Enqueue { queue, key, body, headers, options, dedupe_id, .. } = self;
        MessageContent { id, queue, key, body, headers, options, dedupe_id, enqueued_at }
    }

    /// The bytes that count against limits: body, key, headers.
    pub fn weight(&self) -> usize {
        self.brings() + self.key.as_ref().map_or(0, |k| k.as_str().len())
    }

    /// Bytes of the body and the headers.
    pub(super) fn brings(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(k, v)| k.len() + v.len()).sum();
        self.body.len() + headers
    }
}

/// When a message is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum When {
    /// After this many ms, up to [`crate::policy::Policy::max_delay_ms`]; follows elapsed time.
    After(u64),
    /// After this many seconds, any number of which is accepted; follows elapsed time.
    Seconds(u32),
    /// At an instant; follows the wall clock.
    At {
        /// The instant.
        due_at: WallMs,
        /// How a due time that has passed is handled.
        past: Past,
    },
}

/// The new values of a waiting message; `None` leaves the present one. At least one member must be given.
///
/// Without `when` the due time, the clock that it follows and a Ready state stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Edit {
    /// The due time.
    pub when: Option<When>,
    /// The payload.
    pub body: Option<Bytes>,
    /// All headers: the former ones are removed.
    pub headers: Option<Headers>,
    /// Priority, lower first.
    pub priority: Option<u32>,
    /// Number of grants after which the message is dead.
    pub max_attempts: Option<MaxAttempts>,
    /// Length of a lease, in ms.
    pub lease_ms: Option<u64>,
}

impl Edit {
    /// An edit of the due time alone.
    pub fn due(when: When) -> Self {
        Edit { when: Some(when), ..Edit::default() }
    }

    /// Whether it changes the content of a message, not only its life.
    pub(super) fn rewrites(&self) -> bool {
        self.body.is_some()
            || self.headers.is_some()
            || self.max_attempts.is_some()
            || self.lease_ms.is_some()
    }

    /// Bytes of the new payload and headers.
    pub fn weight(&self) -> usize {
        let headers: usize =
            self.headers.iter().flatten().map(|(name, value)| name.len() + value.len()).sum();
        self.body.as_ref().map_or(0, Bytes::len) + headers
    }
}

/// How a due time that has passed is handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Past {
    /// The operation is refused.
    #[default]
    Refuse,
    /// The message is due now by elapsed time, as if it were fired; its expiry counts from now.
    Fire,
    /// The instant stays as it is: order and expiry follow it, and the message is late. For records, schedules and copies.
    Keep,
}

/// How a key that is already taken is handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum IfExists {
    /// The new message is refused.
    #[default]
    Reject,
    /// The existing message is kept.
    Keep,
    /// The new message replaces the existing one.
    Replace,
    /// The new message replaces the existing one unless that is leased: then it takes the key, and the leased one ends with
    /// its lease, as acked or as superseded.
    Supersede,
}

/// Identifies one message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Target {
    /// By its id. A message of a system queue is not found: callers could guess the ids of the server's records.
    Id(MessageId),
    /// By its key.
    Key(QueueName, Key),
    /// By its id, in whatever queue: for the server's own records. Nothing that a caller names gets here.
    Own(MessageId),
}

/// A demand of a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Reserve {
    /// Identifies this demand while it waits; chosen by the caller, unique among waiting demands.
    pub waiter: WaiterId,
    /// The queues; the best message of all of them is granted first.
    pub queues: Vec<QueueName>,
    /// Largest number of messages of a queue, for those of `queues` that have a number of their own, each from 1.
    pub max_of: Vec<(QueueName, usize)>,
    /// Largest number of messages. With 0 nothing is granted, but the answer comes as soon as a message could be
    /// granted; a front end that asks several shards waits like this at each, and then reserves from the one that
    /// answers.
    pub max: usize,
    /// Largest size of bodies, keys and headers; the first message always fits.
    pub max_bytes: usize,
    /// How long to wait for the first message, in ms.
    pub wait_ms: u64,
    /// Length of the leases; `None`: the setting of message or queue.
    pub lease_ms: Option<u64>,
    /// Number of attempts that the consumer allows a message without a number of its own, from this one on; `None`: it
    /// has no limit of its own. See [`Attempt::FailedOf`].
    pub max_attempts: Option<MaxAttempts>,
    /// The session that the leases are bound to, or [`SessionId::NONE`].
    pub session: SessionId,
    /// The answer is [`super::Reserved::DeadlineSoon`] instead of a wait when a lease of this session has less than
    /// this left.
    pub deadline_margin_ms: Option<u64>,
}

impl Reserve {
    /// A demand for one message of one queue, without waiting.
    pub fn new(queue: QueueName) -> Self {
        Reserve {
            waiter: WaiterId(0),
            queues: vec![queue],
            max_of: Vec::new(),
            max: 1,
            max_bytes: usize::MAX,
            wait_ms: 0,
            lease_ms: None,
            max_attempts: None,
            session: SessionId::NONE,
            deadline_margin_ms: None,
        }
    }
}

/// Identifies a waiting reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WaiterId(pub u64);

/// A position in a listing. Each clock class is a separate sequence, so there are two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ListCursor {
    /// Position among the messages due at an instant.
    pub at: Option<Cursor>,
    /// Position among the messages due after a delay.
    pub after: Option<Cursor>,
}

impl ListCursor {
    /// This position, or the one behind all messages that are due before `from`, if that is later.
    pub(super) fn not_before(self, now: Now, from: WallMs) -> Self {
        let behind = |from: u64| Some((from.checked_sub(1)?, MessageId(u64::MAX)));
        ListCursor {
            at: self.at.max(behind(from.0)),
            after: self.after.max(behind(now.engine_of_wall(from).0)),
        }
    }
}
