//! A message, in two parts: what the producer said (never changes, shared) and where it stands in its life.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

pub use crate::attempts::MaxAttempts;
use crate::id::{LeaseToken, MessageId, SessionId};
use crate::name::{Key, QueueName};
use crate::policy::Backoff;
use crate::time::{Due, EngineMs, Now, WallMs};

/// What the producer said. Immutable; shared between engine, store and replies.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Message {
    /// Its number.
    pub id: MessageId,
    /// The queue it is in.
    pub queue: QueueName,
    /// The caller's own name for it.
    pub key: Option<Key>,
    /// The payload, opaque.
    pub body: Bytes,
    /// Names and values that travel with the body.
    pub headers: Headers,
    /// What it says itself about its delivery; the rest comes from its queue's settings at the moment of use.
    pub options: Options,
    /// When it was accepted.
    pub enqueued_at: WallMs,
}

/// Headers of a message, in the order given.
pub type Headers = Vec<(Box<str>, Box<str>)>;

/// What a message says itself about its delivery. `None`: the queue's setting counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Options {
    /// How long a lease lasts, in ms.
    pub lease_ms: Option<u64>,
    /// Dead after this many grants.
    pub max_attempts: Option<MaxAttempts>,
    /// Delay before the next attempt after a nack.
    pub backoff: Option<Backoff>,
}

/// Where a message stands in its life. Every change of it is a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// When it may be delivered.
    pub due: Due,
    /// Raised by each change of the producer's mind.
    pub generation: u32,
    /// Grants so far; never falls.
    pub attempt: u32,
    /// Grants that do not count against `max_attempts`: those before the last redrive, and those that ended with "not yet".
    pub forgiven: u32,
    /// Its own priority, lower first. `None`: the queue's setting counts.
    pub priority: Option<u32>,
    /// Waiting, leased or dead.
    pub stage: Stage,
    /// What has happened to it, counted.
    pub marks: Marks,
    /// How earlier attempts ended, oldest first, bounded.
    pub history: Vec<PastAttempt>,
}

/// What has happened to a message, counted. Most have none of it: they are settled at their first attempt, when they are due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Marks {
    /// Leases of it that ran out.
    pub timeouts: u32,
    /// Nacks.
    pub releases: u32,
    /// Burials.
    pub burials: u32,
    /// Times it was fired or redriven.
    pub fires: u32,
    /// The delay that was asked for last, in ms. `None`: the one it was accepted with, which its due time tells.
    pub delay_ms: Option<u64>,
}

/// When a message died, and in which order of those that died in the same ms; sorts in order of death.
///
/// The order and what people see follow the wall clock. How long ago it was follows engine time, so that no step of the wall clock makes
/// a dead message older.
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
    /// The ms by the wall clock, and how many died in it before.
    raw: u64,
    /// `None` for what died under a version that did not keep it.
    engine: Option<EngineMs>,
}

/// Bits for the order within a ms: a million deaths. 44 bits are left for the ms, enough until the year 2527.
const DEATHS_BITS: u32 = 20;

/// Steps of the wall clock through which the order of deaths is kept.
const STEP_KEPT_MS: u64 = 3_600_000;

impl Died {
    /// The first death of a ms.
    pub fn at(wall: WallMs) -> Self {
        Died { raw: wall.0.min(u64::MAX >> DEATHS_BITS) << DEATHS_BITS, engine: None }
    }

    /// A death at this ms, when the one before it was `self`. A wall clock that went back by less than an hour does not change the
    /// order: what dies meanwhile is said to have died at the latest time seen.
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

    /// The same, with when it was by engine time.
    #[must_use]
    pub fn since(self, engine: EngineMs) -> Self {
        Died { engine: Some(engine), ..self }
    }

    /// When, by engine time, if that is known.
    pub fn engine(self) -> Option<EngineMs> {
        self.engine
    }

    /// Whether it was at least so long ago. Where engine time is not known the wall clock is taken.
    pub fn is_older(self, ms: u64, now: Now) -> bool {
        match self.engine {
            Some(engine) => engine.0.saturating_add(ms) <= now.engine.0,
            None => self.wall().0.saturating_add(ms) <= now.wall.0,
        }
    }

    /// The engine time at which it will have been so long ago, as far as the clocks can tell now.
    pub fn older_at(self, ms: u64, now: Now) -> EngineMs {
        match self.engine {
            Some(engine) => EngineMs(engine.0.saturating_add(ms)),
            None => now.engine_of_wall(WallMs(self.wall().0.saturating_add(ms))),
        }
    }

    /// When, by the wall clock.
    pub fn wall(self) -> WallMs {
        WallMs(self.raw >> DEATHS_BITS)
    }

    /// As stores sort and keep it.
    pub fn raw(self) -> u64 {
        self.raw
    }

    /// From what [`Died::raw`] gave.
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

/// The durable part of a message's state. Scheduled and Ready are one stage: which of the two is a matter of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Scheduled or Ready. The token is that of a lease which ran out and whose holder may still ack or nack.
    Waiting {
        /// Token of the lease that ran out last, if nobody has had the message since.
        token: Option<LeaseToken>,
    },
    /// In a consumer's hands until a deadline.
    Leased(Lease),
    /// Parked with a reason.
    Dead {
        /// Why.
        reason: DeadReason,
        /// Since when.
        at: Died,
    },
}

/// An exclusive right until a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Proof of this lease.
    pub token: LeaseToken,
    /// Its deadline.
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
pub enum DeadReason {
    /// All its attempts failed.
    MaxAttempts,
    /// A consumer asked for it.
    Buried,
}

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PastAttempt {
    /// Its number.
    pub attempt: u32,
    /// When it was granted.
    pub granted_at: WallMs,
    /// When it ended.
    pub ended_at: WallMs,
    /// How.
    pub how: Ended,
    /// What the consumer said, cut to a limit.
    pub note: Box<str>,
}

/// How an attempt ended without an ack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Ended {
    /// The consumer gave it back.
    Nacked,
    /// The lease ran out.
    LeaseExpired,
    /// Its connection closed.
    Released,
    /// The consumer parked it.
    Buried,
}

/// A message and its life: what a store holds and a load returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What the producer said.
    pub message: Arc<Message>,
    /// Where it stands.
    pub life: Life,
}

/// The four states that users see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum State {
    /// Its due time has not come.
    Scheduled,
    /// It may be delivered.
    Ready,
    /// A consumer has it.
    Leased,
    /// It is parked.
    Dead,
}

impl State {
    /// All states, in the order in which they are shown.
    pub const ALL: [State; 4] = [State::Scheduled, State::Ready, State::Leased, State::Dead];

    /// The word for it in JSON, metrics and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Scheduled => "scheduled",
            State::Ready => "ready",
            State::Leased => "leased",
            State::Dead => "dead",
        }
    }
}

impl DeadReason {
    /// The word for it in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            DeadReason::MaxAttempts => "max_attempts",
            DeadReason::Buried => "buried",
        }
    }
}

impl Ended {
    /// The word for it in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Ended::Nacked => "nacked",
            Ended::LeaseExpired => "lease_expired",
            Ended::Released => "released",
            Ended::Buried => "buried",
        }
    }
}

impl Message {
    /// Bytes it counts against limits: body, key, headers.
    pub fn weight(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(k, v)| k.len() + v.len()).sum();
        self.body.len() + headers + self.key.as_ref().map_or(0, |k| k.as_str().len())
    }
}

/// The stage of a life, without its details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Scheduled or Ready.
    Waiting = 0,
    /// In a consumer's hands.
    Leased = 1,
    /// Parked.
    Dead = 2,
}

impl Kind {
    /// All of them.
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
        }
    }

    /// The lease, when a consumer has the message.
    pub fn lease(&self) -> Option<&Lease> {
        match &self.stage {
            Stage::Leased(lease) => Some(lease),
            Stage::Waiting { .. } | Stage::Dead { .. } => None,
        }
    }
}

impl fmt::Debug for Message {
    /// Bodies and header values are redacted: they may hold other people's secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
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
