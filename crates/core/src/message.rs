//! A message, in two parts: its content (never changes, shared) and its life.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::id::{LeaseToken, MessageId, SessionId};
use crate::name::{Key, QueueName, named_enum};
use crate::policy::Backoff;
pub use crate::policy::MaxAttempts;
use crate::time::{Due, EngineMs, Now, WallMs};

/// The content of a message. Immutable; shared between engine, store and replies.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct MessageContent {
    /// The message's id.
    pub id: MessageId,
    /// The queue of the message.
    pub queue: QueueName,
    /// The caller's own name for it.
    pub key: Option<Key>,
    /// The payload, opaque.
    pub body: Bytes,
    /// Names and values that are stored with the body.
    pub headers: Headers,
    /// The message's own settings; the others come from its queue's settings at the moment of use.
    pub options: Options,
    /// The `dedupe_id` of its enqueue.
    pub dedupe_id: Option<Box<str>>,
    /// When it was accepted.
    pub enqueued_at: WallMs,
}

/// Headers of a message, in the order given.
pub type Headers = Vec<(Box<str>, Box<str>)>;

/// Whether a header names the try that has brought a message, and not its content: its trace (W3C Trace Context), or its
/// row in an outbox. Such headers travel with the message as all others do; the same content in another try is still the
/// same content.
pub fn is_of_the_try(name: &str) -> bool {
    ["traceparent", "tracestate", ROW_HEADER].iter().any(|of_try| name.eq_ignore_ascii_case(of_try))
}

/// The header with the id of the outbox's row that has brought a message.
pub const ROW_HEADER: &str = "duewheel-row";

/// A message's own settings. `None`: the queue's setting applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// How long a lease lasts, in ms.
    pub lease_ms: Option<u64>,
    /// Number of grants after which the message is dead.
    pub max_attempts: Option<MaxAttempts>,
    /// The effect of a `max_attempts` that is set on the queue.
    pub queue_limit: QueueLimit,
    /// Delay before the next attempt after a nack.
    pub backoff: Option<Backoff>,
    /// The spread of the due time: it lies up to this many ms after the one that was asked for ([`crate::random`]).
    pub spread_ms: Option<u64>,
    /// When it expires.
    pub expiry: Option<Expiry>,
}

/// The effect of a `max_attempts` that is set on the queue of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueLimit {
    /// The limit holds if the message has none of its own.
    #[default]
    Yields,
    /// The limit holds in place of the message's own, and a grant whose session returns the message does not count: for
    /// messages of protocols without attempts.
    Wins,
}

/// When a message expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Expiry {
    /// The message expires this many ms after its due time, and the expiry moves with it. Delays of retries do not move
    /// it.
    In(u64),
    /// At this instant.
    At(WallMs),
}

/// The state of a message. Every change of it is a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// When it may be delivered.
    pub due: Due,
    /// The generation, which each change by the producer raises.
    pub generation: u32,
    /// The number of grants so far; it never falls.
    pub attempt: u32,
    /// Grants that do not count against `max_attempts`: those before the last redrive, and those that ended with "not
    /// yet".
    pub forgiven: u32,
    /// The message's own priority, lower first. `None`: the queue's setting counts.
    pub priority: Option<u32>,
    /// The stage: waiting, leased or dead.
    pub stage: Stage,
    /// Counts of what has happened to the message.
    pub marks: Marks,
    /// How earlier attempts ended, oldest first, bounded.
    pub history: Vec<PastAttempt>,
    /// The detail that a settlement brought last.
    pub detail: Option<Detail>,
}

/// Bytes of a consumer about the attempts of a message, which only consumers read: at most
/// [`crate::Policy::max_detail`]. They are replaced as a whole.
pub type Detail = Arc<[u8]>;

/// Counts of what has happened to a message. Most messages have none: they are settled at their first attempt, when
/// they are due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Marks {
    /// Leases of it that ran out.
    pub timeouts: u32,
    /// Number of nacks.
    pub releases: u32,
    /// Number of burials.
    pub burials: u32,
    /// Number of times that it was fired or redriven.
    pub fires: u32,
    /// Sessions in a row that have lost it: each was closed, or its lease ran out.
    #[cfg_attr(feature = "serde", serde(skip))] // for the owner of the shard alone
    pub losses: u32,
    /// The delay that was asked for last, in ms. `None`: the delay of the enqueue, which the due time contains.
    pub delay_ms: Option<u64>,
    /// The due time that the producer asked for, once a retry has moved it.
    #[cfg_attr(feature = "serde", serde(skip))] // for the owner of the shard alone
    pub asked: Option<Due>,
    /// The number of attempts that the consumer which has returned it last allows it, if it has a limit of its own.
    #[cfg_attr(feature = "serde", serde(skip))] // for the owner of the shard alone
    pub limit: Option<MaxAttempts>,
    /// The message that has taken its key while it was leased. It has no key since then, and is not granted again: it ends
    /// with its lease.
    pub superseded_by: Option<MessageId>,
}

/// The time of a message's death, and its order among the deaths of the same ms; sorts in order of death.
///
/// The order and what people see follow the wall clock. How long ago it was follows engine time, so that no step of the
/// wall clock makes a dead message older.
///
/// ```
/// use duewheel_core::{message::Died, time::WallMs};
/// let first = Died::default().next(WallMs(5));
/// let second = first.next(WallMs(5));
/// assert!(first < second && second < second.next(WallMs(6)));
/// assert_eq!(second.wall(), WallMs(5));
/// assert!(second < second.next(WallMs(3)), "the clock went back");
/// assert_eq!(Died::from_raw(second.raw()), second);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Died {
    /// The ms by the wall clock, and the number of earlier deaths in it.
    raw: u64,
    /// The engine time; `None` where only the order is known, as in an index of deaths.
    engine: Option<EngineMs>,
}

/// Bits for the order within a ms: a million deaths. 44 bits are left for the ms, enough until the year 2527.
const DEATHS_BITS: u32 = 20;

/// Steps of the wall clock up to this size, in ms, do not change the order of deaths.
const STEP_KEPT_MS: u64 = 3_600_000;

impl Died {
    /// The first death of a ms.
    pub fn at(wall: WallMs) -> Self {
        Died { raw: wall.0.min(u64::MAX >> DEATHS_BITS) << DEATHS_BITS, engine: None }
    }

    /// The next death at this ms, after `self`. A wall clock that went back by less than an hour does not change the
    /// order: until it has caught up, deaths get the latest time seen.
    #[must_use]
    pub fn next(self, wall: WallMs) -> Self {
        let first = Died::at(wall);
        let ahead = self.wall().0.saturating_sub(wall.0);
        if self.raw < first.raw || ahead > STEP_KEPT_MS {
            first
        } else {
            Died::from_raw(self.raw.saturating_add(1))
        }
    }

    /// This time of death, with its engine time.
    #[must_use]
    pub fn since(self, engine: EngineMs) -> Self {
        Died { engine: Some(engine), ..self }
    }

    /// The engine time of the death, if it is known.
    pub fn engine(self) -> Option<EngineMs> {
        self.engine
    }

    /// Whether the death is at least `ms` ago. Where its engine time is not known the wall clock is used.
    pub fn is_older(self, ms: u64, now: Now) -> bool {
        match self.engine {
            Some(engine) => engine.0.saturating_add(ms) <= now.engine.0,
            None => self.wall().0.saturating_add(ms) <= now.wall.0,
        }
    }

    /// The engine time at which the death will be `ms` ago, according to the present offset of the clocks.
    pub fn older_at(self, ms: u64, now: Now) -> EngineMs {
        match self.engine {
            Some(engine) => EngineMs(engine.0.saturating_add(ms)),
            None => now.engine_of_wall(WallMs(self.wall().0.saturating_add(ms))),
        }
    }

    /// The time of the death by the wall clock.
    pub fn wall(self) -> WallMs {
        WallMs(self.raw >> DEATHS_BITS)
    }

    /// The number that stores keep and sort by.
    pub fn raw(self) -> u64 {
        self.raw
    }

    /// Rebuilds a value from the number of [`Died::raw`].
    pub fn from_raw(raw: u64) -> Self {
        Died { raw, engine: None }
    }
}

impl fmt::Debug for Died {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}+{}", self.wall(), self.raw & ((1 << DEATHS_BITS) - 1))?;
        self.engine.map_or(Ok(()), |engine| write!(f, "@{engine:?}"))
    }
}

/// The durable part of a message's state. Scheduled and Ready are one stage, because only the time distinguishes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Scheduled or Ready. The token is that of a lease which ran out and whose holder may still ack or nack.
    Waiting {
        /// The token of the lease that ran out last, if no consumer has had the message since.
        token: Option<LeaseToken>,
    },
    /// Leased by a consumer until a deadline.
    Leased(Lease),
    /// Dead, with a reason.
    Dead {
        /// The reason.
        reason: DeadReason,
        /// The time of death.
        at: Died,
        /// The token of the lease whose end was the death; its holder may still ack or nack, once.
        token: Option<LeaseToken>,
    },
}

/// An exclusive right until a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Proof of this lease.
    pub token: LeaseToken,
    /// The deadline of the lease.
    pub until: EngineMs,
    /// The connection it is bound to, or [`SessionId::NONE`].
    pub session: SessionId,
    /// When it was granted.
    pub granted_at: WallMs,
}

impl Lease {
    /// Whether it is bound to this session.
    pub fn is_of(&self, session: SessionId) -> bool {
        self.session == session && session != SessionId::NONE
    }
}

/// Why a message is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum DeadReason {
    /// All its attempts failed.
    MaxAttempts,
    /// A consumer asked for it.
    Buried,
    /// The message had expired when it would have been granted, and its queue's setting is
    /// [`crate::policy::OnExpiry::Dead`].
    Expired,
    /// The message is no dead letter: it has ended, and is kept to be read and replayed ([`QueueName::of_done`]).
    Done(DoneOutcome),
}

named_enum! {
/// How a message ended that its queue keeps as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DoneOutcome {
    /// A consumer acked it.
    Acked => "acked",
    /// The producer cancelled it.
    Cancelled => "cancelled",
    /// Another message took the key.
    Replaced => "replaced",
    /// The message expired, or was dead for longer than its queue keeps dead messages.
    Expired => "expired",
    /// Another message took the key while it was leased, and the lease ended without an ack.
    Superseded => "superseded",
}
}

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PastAttempt {
    /// The number of the attempt.
    pub attempt: u32,
    /// When it was granted.
    pub granted_at: WallMs,
    /// When it ended.
    pub ended_at: WallMs,
    /// The way it ended.
    pub how: Ended,
    /// The note of the consumer, cut to a limit.
    pub note: Box<str>,
}

named_enum! {
/// How an attempt ended without an ack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Ended {
    /// The consumer returned it.
    Nacked => "nacked",
    /// The lease ran out.
    LeaseExpired => "lease_expired",
    /// The connection of the consumer closed.
    Released => "released",
    /// The consumer buried it.
    Buried => "buried",
}
}

/// A message and its life: the unit that a store holds and a load returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The content.
    pub message: Arc<MessageContent>,
    /// The state.
    pub life: Life,
}

impl Row {
    /// The bytes that count against limits: body, key, headers, and the detail.
    pub fn weight(&self) -> usize {
        self.message.weight() + self.life.weight()
    }
}

/// The states that users see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum State {
    /// The due time has not come.
    Scheduled,
    /// The message may be delivered.
    Ready,
    /// A consumer has leased it.
    Leased,
    /// The message is dead.
    Dead,
    /// The message has ended, and its queue keeps it for a while ([`crate::policy::QueueSettings::keep_done_ms`]). It
    /// can be read and replayed; for everything else it is gone.
    Done,
}

impl State {
    /// The states of messages that have not ended, in the order in which they are shown.
    pub const ALL: [State; 4] = [State::Scheduled, State::Ready, State::Leased, State::Dead];

    /// The name of the state in JSON, metrics and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Scheduled => "scheduled",
            State::Ready => "ready",
            State::Leased => "leased",
            State::Dead => "dead",
            State::Done => "done",
        }
    }
}

impl DeadReason {
    /// The reasons of dead letters.
    pub const ALL: [DeadReason; 3] = [DeadReason::MaxAttempts, DeadReason::Buried, DeadReason::Expired];

    /// The reason of this name ([`DeadReason::as_str`]), those of done messages among them.
    pub fn named(name: &str) -> Option<Self> {
        let done = DoneOutcome::ALL.map(DeadReason::Done);
        Self::ALL.into_iter().chain(done).find(|reason| reason.as_str() == name)
    }

    /// The name in stores; of a dead letter, in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            DeadReason::MaxAttempts => "max_attempts",
            DeadReason::Buried => "buried",
            DeadReason::Expired => "expired",
            DeadReason::Done(DoneOutcome::Acked) => "done_acked",
            DeadReason::Done(DoneOutcome::Cancelled) => "done_cancelled",
            DeadReason::Done(DoneOutcome::Replaced) => "done_replaced",
            DeadReason::Done(DoneOutcome::Expired) => "done_expired",
            DeadReason::Done(DoneOutcome::Superseded) => "done_superseded",
        }
    }
}

/// The header of a done message with the result of its ack.
pub const RESULT_HEADER: &str = "#result";

/// Whether a header's name is kept for the engine: no caller may set it.
pub fn is_own_header(name: &str) -> bool {
    name.starts_with('#')
}

impl MessageContent {
    /// A message without a key, body or headers, and with the settings of its queue.
    pub fn new(id: MessageId, queue: QueueName, enqueued_at: WallMs) -> Self {
        MessageContent {
            id,
            queue,
            key: None,
            body: Bytes::new(),
            headers: Vec::new(),
            options: Options::default(),
            dedupe_id: None,
            enqueued_at,
        }
    }

    /// The result that the ack of a done message brought, as JSON.
    pub fn result(&self) -> Option<&str> {
        self.headers.iter().find(|(name, _)| **name == *RESULT_HEADER).map(|(_, result)| &**result)
    }

    /// The headers that the producer has given: all but the result.
    pub fn given_headers(&self) -> impl Iterator<Item = &(Box<str>, Box<str>)> {
        self.headers.iter().filter(|(name, _)| **name != *RESULT_HEADER)
    }

    /// The bytes that count against limits: body, key, headers.
    pub fn weight(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(k, v)| k.len() + v.len()).sum();
        self.body.len() + headers + self.key.as_ref().map_or(0, |k| k.as_str().len())
    }

    /// The size in bytes, nearly, of what the weight leaves out and a producer chooses: a dedupe id, the lengths of
    /// headers.
    pub fn unweighed(&self) -> usize {
        self.dedupe_id.as_ref().map_or(0, |id| id.len()) + 2 * self.headers.len()
    }
}

/// The stage of a life, without its details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Scheduled or Ready.
    Waiting = 0,
    /// Leased by a consumer.
    Leased = 1,
    /// Dead.
    Dead = 2,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 3] = [Kind::Waiting, Kind::Leased, Kind::Dead];
}

impl Stage {
    /// The stage without its details.
    pub fn kind(&self) -> Kind {
        match self {
            Stage::Waiting { .. } => Kind::Waiting,
            Stage::Leased(_) => Kind::Leased,
            Stage::Dead { .. } => Kind::Dead,
        }
    }
}

impl Life {
    /// A message that has just been accepted.
    pub fn new(due: Due, priority: Option<u32>) -> Self {
        Life {
            due,
            generation: 1,
            attempt: 0,
            forgiven: 0,
            priority,
            stage: Stage::Waiting { token: None },
            marks: Marks::default(),
            history: Vec::new(),
            detail: None,
        }
    }

    /// The bytes of it that count against limits: its detail.
    pub fn weight(&self) -> usize {
        self.detail.as_ref().map_or(0, |detail| detail.len())
    }

    /// The size of the past attempts in bytes, nearly.
    pub fn past_bytes(&self) -> usize {
        /// Two times, numbers and lengths.
        const OF_A_PAST: usize = 16;
        self.history.iter().map(|past| OF_A_PAST + past.note.len()).sum()
    }

    /// Whether the message has the key of its content, if it has one: no other message has taken it.
    pub fn holds_key(&self) -> bool {
        self.marks.superseded_by.is_none()
    }

    /// The key that the message with this life and content has.
    pub fn key_of<'a>(&self, content: &'a MessageContent) -> Option<&'a Key> {
        content.key.as_ref().filter(|_| self.holds_key())
    }

    /// The lease, when a consumer has the message.
    pub fn lease(&self) -> Option<&Lease> {
        match &self.stage {
            Stage::Leased(lease) => Some(lease),
            Stage::Waiting { .. } | Stage::Dead { .. } => None,
        }
    }
}

impl fmt::Debug for MessageContent {
    /// Bodies and header values are redacted: they may hold other people's secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageContent")
            .field("id", &self.id)
            .field("queue", &self.queue)
            .field("key", &self.key)
            .field("body", &format_args!("<{} bytes>", self.body.len()))
            .field("headers", &format_args!("<{}>", self.headers.len()))
            .field("options", &self.options)
            .field("enqueued_at", &self.enqueued_at)
            .finish()
    }
}
