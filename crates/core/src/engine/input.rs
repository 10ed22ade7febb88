//! What can be asked of the engine: a closed list.

use bytes::Bytes;

use crate::id::{LeaseToken, MessageId, SessionId};
use crate::message::{Headers, MaxAttempts, Options, State};
use crate::name::{Key, QueueName};
use crate::policy::{QueueSettings, ReadyOrder};
use crate::store::Cursor;
use crate::time::WallMs;

/// An operation. Every one is answered exactly once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Op {
    /// Accepts a message. Answer: [`super::Reply::Enqueue`].
    Enqueue(Box<Enqueue>),
    /// Grants ready messages, or waits for some. Answer: [`super::Reply::Reserve`].
    Reserve(Reserve),
    /// Grants one message by its id, whatever waiting state it is in (Dead and Scheduled included).
    /// Answer: [`super::Reply::ReserveOne`].
    ReserveOne {
        /// Which message.
        id: MessageId,
        /// Whom the lease is bound to.
        session: SessionId,
        /// Length of the lease; `None`: as message and queue say.
        lease_ms: Option<u64>,
    },
    /// Ends a waiting reserve with an empty answer. Answer: [`super::Reply::Done`].
    CancelReserve {
        /// As given in [`Reserve`].
        waiter: WaiterId,
    },
    /// Takes grants back that never reached their consumer; they do not count as attempts.
    /// Answer: [`super::Reply::Done`].
    Undelivered {
        /// The leases.
        leases: Vec<(MessageId, LeaseToken)>,
    },
    /// Done: the message goes. Answer: [`super::Reply::Settle`].
    Ack {
        /// Which message.
        id: MessageId,
        /// That the caller holds its lease.
        proof: Proof,
    },
    /// Not done: again after a delay, or dead. Answer: [`super::Reply::Settle`].
    Nack {
        /// Which message.
        id: MessageId,
        /// That the caller holds its lease.
        proof: Proof,
        /// Whether the attempt counts.
        attempt: Attempt,
        /// `None`: the backoff decides.
        delay_ms: Option<u64>,
        /// A new priority.
        priority: Option<u32>,
        /// Kept in the message's history, cut to a limit.
        note: Box<str>,
    },
    /// Parks a leased message. Answer: [`super::Reply::Settle`].
    Bury {
        /// Which message.
        id: MessageId,
        /// That the caller holds its lease.
        proof: Proof,
        /// A new priority.
        priority: Option<u32>,
        /// Kept in the message's history, cut to a limit.
        note: Box<str>,
    },
    /// Removes a message for good: one that this session leases is acked, one that nobody leases is cancelled. Refused as
    /// a lost lease when somebody else leases it. Answer: [`super::Reply::Settle`].
    Delete {
        /// Which message.
        id: MessageId,
        /// Whose leases count.
        session: SessionId,
    },
    /// Pushes a lease's deadline to `lease_ms` from now. Answer: [`super::Reply::Extend`].
    Extend {
        /// Which message.
        id: MessageId,
        /// That the caller holds its lease.
        proof: Proof,
        /// From now; `None`: as message and queue say.
        lease_ms: Option<u64>,
    },
    /// Takes a message back. Answer: [`super::Reply::Change`].
    Cancel {
        /// Which message.
        target: Target,
    },
    /// Gives a waiting message another due time, or other content or settings. Answer: [`super::Reply::Change`].
    Postpone {
        /// Which message.
        target: Target,
        /// What is to be another; everything else stays.
        edit: Box<Edit>,
        /// Refuse unless the generation is this one.
        if_generation: Option<u32>,
    },
    /// Makes a message due now. Answer: [`super::Reply::Change`].
    Fire {
        /// Which message.
        target: Target,
    },
    /// Makes up to `max` scheduled messages of a queue due now, in due order, and at most `Policy::max_step`. Answer: [`super::Reply::Count`].
    FireMany {
        /// Which queue.
        queue: QueueName,
        /// At most so many.
        max: usize,
    },
    /// Makes a dead message ready again. Answer: [`super::Reply::Change`].
    Redrive {
        /// Which message.
        id: MessageId,
    },
    /// Makes up to `max` dead messages of a queue ready again, in the order in which they died; a message whose key was
    /// taken meanwhile stays. At most `Policy::max_step`. Answer: [`super::Reply::Count`].
    RedriveMany {
        /// Which queue.
        queue: QueueName,
        /// At most so many.
        max: usize,
    },
    /// Looks at a message. Answer: [`super::Reply::View`].
    Get {
        /// Which message.
        target: Target,
    },
    /// Looks at where a message stands, not at its body. Answer: [`super::Reply::Change`].
    Outline {
        /// Which message.
        id: MessageId,
    },
    /// Looks at the message that is first in a state. Answer: [`super::Reply::View`].
    Peek {
        /// Which queue.
        queue: QueueName,
        /// Which state.
        state: State,
    },
    /// Lists messages in due order. Answer: [`super::Reply::Page`].
    List {
        /// Which queue.
        queue: QueueName,
        /// Only those in this state.
        state: Option<State>,
        /// Behind this place.
        after: Option<ListCursor>,
        /// At most so many.
        limit: usize,
    },
    /// Looks at a queue. Answer: [`super::Reply::Queues`] with none or one.
    Queue {
        /// Which queue.
        queue: QueueName,
    },
    /// Looks at all queues, by name. Answer: [`super::Reply::Queues`].
    Queues {
        /// Behind this name.
        after: Option<QueueName>,
        /// At most so many.
        limit: usize,
    },
    /// Counts messages by due time. Answer: [`super::Reply::Histogram`].
    Histogram {
        /// Which queue; `None`: all.
        queue: Option<QueueName>,
        /// First column starts here.
        from: WallMs,
        /// Last column ends before here.
        to: WallMs,
        /// Number of columns.
        columns: usize,
    },
    /// Looks at the ring. Answer: [`super::Reply::Wheel`].
    Wheel,
    /// Figures of the whole engine. Answer: [`super::Reply::Stats`].
    Stats,
    /// Sets a queue's settings, all of them. Answer: [`super::Reply::Queues`] with one.
    Configure {
        /// Which queue.
        queue: QueueName,
        /// What its owner wants.
        settings: QueueSettings,
    },
    /// Gives nothing out any more. Answer: [`super::Reply::Done`]; [`super::Reply::Configure`] if the queue would be one too
    /// many.
    Pause {
        /// Which queue.
        queue: QueueName,
        /// `None`: until resumed.
        for_ms: Option<u64>,
    },
    /// Gives out again. Answer: [`super::Reply::Done`].
    Resume {
        /// Which queue.
        queue: QueueName,
    },
    /// Removes Scheduled, Ready and Dead messages of a queue. Answer: [`super::Reply::Count`].
    Purge {
        /// Which queue.
        queue: QueueName,
    },
    /// Somebody has to do with a queue: it stays, empty as it may be, with its totals, until it is let go as often.
    /// Answer: [`super::Reply::Done`]; [`super::Reply::Configure`] if the queue would be one too many: then it is not
    /// held. A restart lets go of everything.
    Hold {
        /// Which queue.
        queue: QueueName,
        /// What somebody has to do with it.
        how: Hold,
    },
    /// Takes an [`Op::Hold`] back. Answer: [`super::Reply::Done`].
    LetGo {
        /// Which queue.
        queue: QueueName,
        /// As it was held.
        how: Hold,
    },
    /// A connection is gone: its leases are released, its waiting reserves end. Answer: [`super::Reply::Done`].
    SessionClosed {
        /// Which connection.
        session: SessionId,
    },
    /// When the first lease of a connection runs out. Answer: [`super::Reply::Deadline`].
    SessionDeadline {
        /// Which connection.
        session: SessionId,
    },
    /// When the next message is due. Answer: [`super::Reply::NextDue`].
    NextDue,
    /// How much of each quota is used. Answer: [`super::Reply::Quotas`].
    Quotas,
}

/// What somebody has to do with a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Hold {
    /// Puts messages into it.
    Use,
    /// Takes messages out of it.
    Watch,
    /// Wants it to be there.
    Keep,
}

/// What shows that somebody holds a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Proof {
    /// The token of the lease. It may have run out, if nobody has had the message since.
    Token(LeaseToken),
    /// The session that the lease is bound to. It must not have run out.
    Session(SessionId),
}

/// What a nack says of the attempt that it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Attempt {
    /// It failed: it counts against `max_attempts`.
    #[default]
    Failed,
    /// The time has not come yet: the grant is forgiven, and does not count.
    NotYet,
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
    /// Into which queue.
    pub queue: QueueName,
    /// The caller's own name for it.
    pub key: Option<Key>,
    /// The payload.
    pub body: Bytes,
    /// Travel with the body.
    pub headers: Headers,
    /// When it is due.
    pub when: When,
    /// What to do if the key is taken.
    pub if_exists: IfExists,
    /// Makes a retried enqueue return the first answer.
    pub dedupe_id: Option<Box<str>>,
    /// Lower first; `None`: as the queue says.
    pub priority: Option<u32>,
    /// About its delivery.
    pub options: Options,
    /// As what it begins.
    pub begins: Begins,
    /// The order that its queue gets if the queue is new and its owner has not chosen one. It lasts while the queue is
    /// in use.
    pub order_if_new: Option<ReadyOrder>,
}

/// As what a message begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Begins {
    /// Scheduled, or Ready if it is due.
    #[default]
    Waiting,
    /// Dead: it was parked where it comes from.
    Dead,
}

impl Enqueue {
    /// A message due at once, with nothing special.
    pub fn new(queue: QueueName, body: impl Into<Bytes>) -> Self {
        Enqueue {
            queue,
            key: None,
            body: body.into(),
            headers: Headers::new(),
            when: When::After(0),
            if_exists: IfExists::Reject,
            dedupe_id: None,
            priority: None,
            options: Options::default(),
            begins: Begins::Waiting,
            order_if_new: None,
        }
    }

    /// Bytes that the message will count against limits: body, key, headers.
    pub fn weight(&self) -> usize {
        self.brings() + self.key.as_ref().map_or(0, |k| k.as_str().len())
    }

    /// Bytes of the body and the headers.
    pub(super) fn brings(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(k, v)| k.len() + v.len()).sum();
        self.body.len() + headers
    }
}

/// When something shall be due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum When {
    /// After so many ms, up to [`crate::policy::Policy::max_delay_ms`]; follows elapsed time.
    After(u64),
    /// After so many seconds, all of which can be kept; follows elapsed time.
    Seconds(u32),
    /// At an instant; follows the wall clock.
    At {
        /// The instant.
        due_at: WallMs,
        /// What if it has passed.
        past: Past,
    },
}

/// What a change gives a waiting message; `None` leaves what is there. At least one member must be given.
///
/// Without `when` the due time, the clock that it follows and a Ready state stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Edit {
    /// When it is due.
    pub when: Option<When>,
    /// The payload.
    pub body: Option<Bytes>,
    /// All headers: those that it had are gone.
    pub headers: Option<Headers>,
    /// Lower first.
    pub priority: Option<u32>,
    /// Dead after this many grants.
    pub max_attempts: Option<MaxAttempts>,
    /// Length of a lease, in ms.
    pub lease_ms: Option<u64>,
}

impl Edit {
    /// Another due time, and nothing else.
    pub fn due(when: When) -> Self {
        Edit { when: Some(when), ..Edit::default() }
    }

    /// Whether it says something that is kept with the content of a message, not with its life.
    pub(super) fn rewrites(&self) -> bool {
        self.body.is_some()
            || self.headers.is_some()
            || self.max_attempts.is_some()
            || self.lease_ms.is_some()
    }

    /// Bytes of the payload and the headers that it brings.
    pub fn weight(&self) -> usize {
        let headers: usize =
            self.headers.iter().flatten().map(|(name, value)| name.len() + value.len()).sum();
        self.body.as_ref().map_or(0, Bytes::len) + headers
    }
}

/// What to do with a due time that has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Past {
    /// It is an error.
    #[default]
    Refuse,
    /// Due at once.
    Fire,
}

/// What to do if the key is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum IfExists {
    /// Refuse the new message.
    #[default]
    Reject,
    /// Keep the message that has it.
    Keep,
    /// Put the new message in its place.
    Replace,
}

/// Names one message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Target {
    /// By its id.
    Id(MessageId),
    /// By its key.
    Key(QueueName, Key),
}

/// A consumer's demand.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Reserve {
    /// Names this demand while it waits; chosen by the caller, unique among those waiting.
    pub waiter: WaiterId,
    /// From which queues; the best message of all of them goes first.
    pub queues: Vec<QueueName>,
    /// At most so many messages. 0: none, but the answer comes as soon as one could be had; a front end that asks several shards
    /// waits like this at each, and takes where it is told.
    pub max: usize,
    /// At most so many bytes of bodies, keys and headers; the first message always fits.
    pub max_bytes: usize,
    /// How long to wait for the first.
    pub wait_ms: u64,
    /// Length of the leases; `None`: as message and queue say.
    pub lease_ms: Option<u64>,
    /// Whom the leases are bound to, or [`SessionId::NONE`].
    pub session: SessionId,
    /// Answer [`super::Reserved::DeadlineSoon`] instead of waiting when a lease of this session has less than this left.
    pub deadline_margin_ms: Option<u64>,
}

/// Names a waiting reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WaiterId(pub u64);

/// A place in a listing. Each clock class is a sequence of its own, so there are two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ListCursor {
    /// Seen so far of the messages due at an instant.
    pub at: Option<Cursor>,
    /// Seen so far of the messages due after a delay.
    pub after: Option<Cursor>,
}
