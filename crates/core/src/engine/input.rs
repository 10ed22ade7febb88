//! The operations of the engine, a closed list, and their arguments.

use bytes::Bytes;

use crate::id::{LeaseToken, Lsn, MessageId, SessionId, ShardId};
use crate::message::{Headers, MaxAttempts, Options, State};
use crate::name::{Key, QueueName};
use crate::policy::{QueueSettings, ReadyOrder};
use crate::store::Cursor;
use crate::time::{Now, WallMs};

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
        /// The message.
        id: MessageId,
        /// The session that the lease is bound to.
        session: SessionId,
        /// Length of the lease; `None`: the setting of message or queue.
        lease_ms: Option<u64>,
    },
    /// Ends a waiting reserve with an empty answer. Answer: [`super::Reply::Done`].
    CancelReserve {
        /// The number given in [`Reserve`].
        waiter: WaiterId,
    },
    /// Returns grants that never reached their consumer; they do not count as attempts. Answer: [`super::Reply::Done`].
    Undelivered {
        /// The leases.
        leases: Vec<(MessageId, LeaseToken)>,
    },
    /// Settles a message as done. Answer: [`super::Reply::Settle`].
    Ack {
        /// The message.
        id: MessageId,
        /// Proof that the caller holds the lease.
        proof: Proof,
    },
    /// Settles a message as not done: it comes again after a delay, or dies. Answer: [`super::Reply::Settle`].
    Nack {
        /// The message.
        id: MessageId,
        /// Proof that the caller holds the lease.
        proof: Proof,
        /// Whether the attempt counts.
        attempt: Attempt,
        /// Delay until the next attempt; `None`: the backoff decides.
        delay_ms: Option<u64>,
        /// A new priority.
        priority: Option<u32>,
        /// Kept in the message's history, cut to a limit.
        note: Box<str>,
    },
    /// Buries a leased message. Answer: [`super::Reply::Settle`].
    Bury {
        /// The message.
        id: MessageId,
        /// Proof that the caller holds the lease.
        proof: Proof,
        /// A new priority.
        priority: Option<u32>,
        /// Kept in the message's history, cut to a limit.
        note: Box<str>,
    },
    /// Removes a message: acks it if this session leases it, cancels it if it is not leased. Refused as a lost lease
    /// when another consumer leases it. Answer: [`super::Reply::Settle`].
    Delete {
        /// The message.
        id: MessageId,
        /// The session whose leases count.
        session: SessionId,
    },
    /// Moves a lease's deadline to `lease_ms` from now. Answer: [`super::Reply::Extend`].
    Extend {
        /// The message.
        id: MessageId,
        /// Proof that the caller holds the lease.
        proof: Proof,
        /// Length from now; `None`: the setting of message or queue.
        lease_ms: Option<u64>,
    },
    /// Cancels a message. Answer: [`super::Reply::Change`].
    Cancel {
        /// The message.
        target: Target,
        /// The fate of the message's `dedupe_id`.
        dedupe_id: DedupeId,
    },
    /// Gives a waiting message another due time, or other content or settings. Answer: [`super::Reply::Change`].
    Postpone {
        /// The message.
        target: Target,
        /// The new values; everything else stays.
        edit: Box<Edit>,
        /// The required generation; with another one the change is refused.
        if_generation: Option<u32>,
    },
    /// Makes a message due now. Answer: [`super::Reply::Change`].
    Fire {
        /// The message.
        target: Target,
    },
    /// Makes up to `max` scheduled messages of a queue due now, in due order, and at most `Policy::max_step`. Answer:
    /// [`super::Reply::Count`].
    FireMany {
        /// The queue.
        queue: QueueName,
        /// Largest number of messages.
        max: usize,
    },
    /// Makes a dead message ready again, or schedules it. Answer: [`super::Reply::Change`].
    Redrive {
        /// The message.
        id: MessageId,
        /// The delay from now, in ms; `None`: it is ready at once, and due when it was due.
        delay_ms: Option<u64>,
    },
    /// Makes up to `max` dead messages of a queue ready again, in the order in which they died; a message whose key has
    /// been taken since then stays. At most `Policy::max_step`. Answer: [`super::Reply::Count`].
    RedriveMany {
        /// The queue.
        queue: QueueName,
        /// Largest number of messages.
        max: usize,
    },
    /// Returns a message. Answer: [`super::Reply::View`].
    Get {
        /// The message.
        target: Target,
    },
    /// Returns the state of a message without its body. Answer: [`super::Reply::Change`].
    Outline {
        /// The message.
        id: MessageId,
    },
    /// Returns the first message in a state. Answer: [`super::Reply::View`].
    Peek {
        /// The queue.
        queue: QueueName,
        /// The state.
        state: State,
    },
    /// Lists messages in due order. Answer: [`super::Reply::Page`].
    List {
        /// The queue.
        queue: QueueName,
        /// Only messages in this state.
        state: Option<State>,
        /// Start behind this position.
        after: Option<ListCursor>,
        /// Largest number of messages.
        limit: usize,
        /// Messages that are due before this instant may be left out. They are not, where another order than that of due
        /// times is listed.
        from: Option<WallMs>,
    },
    /// Describes a queue. Answer: [`super::Reply::Queues`] with none or one.
    Queue {
        /// The queue.
        queue: QueueName,
    },
    /// Describes all queues, by name. Answer: [`super::Reply::Queues`].
    Queues {
        /// Start behind this name.
        after: Option<QueueName>,
        /// Largest number of queues.
        limit: usize,
    },
    /// Counts messages by due time. Answer: [`super::Reply::Histogram`].
    Histogram {
        /// The queue; `None`: all.
        queue: Option<QueueName>,
        /// Start of the first column.
        from: WallMs,
        /// End of the last column, exclusive.
        to: WallMs,
        /// Number of columns.
        columns: usize,
    },
    /// Describes the ring. Answer: [`super::Reply::Wheel`].
    Wheel,
    /// Returns figures of the whole engine. Answer: [`super::Reply::Stats`].
    Stats,
    /// Replaces all settings of a queue. Answer: [`super::Reply::Configured`] with the queue;
    /// [`super::Reply::Configure`] if refused.
    Configure {
        /// The queue.
        queue: QueueName,
        /// The new settings.
        settings: QueueSettings,
    },
    /// Pauses a queue: it grants nothing. Answer: [`super::Reply::Configured`] without a queue;
    /// [`super::Reply::Configure`] if the queue would be one too many.
    Pause {
        /// The queue.
        queue: QueueName,
        /// Length of the pause; `None`: until resumed.
        for_ms: Option<u64>,
    },
    /// Ends a pause. Answer: [`super::Reply::Configured`] without a queue.
    Resume {
        /// The queue.
        queue: QueueName,
    },
    /// Removes Scheduled, Ready and Dead messages of a queue. Answer: [`super::Reply::Count`].
    Purge {
        /// The queue.
        queue: QueueName,
    },
    /// Holds a queue: it stays with its totals, even when it is empty, until every hold is released. Answer:
    /// [`super::Reply::Done`]; [`super::Reply::Configure`] if the queue would be one too many: then it is not held. A
    /// restart releases all holds.
    Hold {
        /// The queue.
        queue: QueueName,
        /// The kind of hold.
        how: Hold,
    },
    /// Releases an [`Op::Hold`]. Answer: [`super::Reply::Done`].
    LetGo {
        /// The queue.
        queue: QueueName,
        /// The kind of hold.
        how: Hold,
    },
    /// Reports a closed connection: its leases are released, its waiting reserves end. Answer: [`super::Reply::Done`].
    SessionClosed {
        /// The connection.
        session: SessionId,
    },
    /// Returns when the first lease of a connection runs out. Answer: [`super::Reply::Deadline`].
    SessionDeadline {
        /// The connection.
        session: SessionId,
    },
    /// Returns when the next message is due. Answer: [`super::Reply::NextDue`].
    NextDue,
    /// Returns how much of each quota is used. Answer: [`super::Reply::Quotas`].
    Quotas,
    /// Returns a message as [`Op::Get`] does, or else a message that has ended and is kept as done: by its id, or the
    /// newest that had the key. Answer: [`super::Reply::View`].
    Recall {
        /// The message.
        target: Target,
    },
    /// Returns events of one shard, those of durable records, in order. Answer: [`super::Reply::Events`].
    Events {
        /// The shard.
        shard: ShardId,
        /// The position behind which they begin; `None`: the last durable record, so that the answer says where those
        /// to come begin.
        after: Option<Lsn>,
        /// Largest number of events of records.
        limit: usize,
        /// If given, the answer also has events of messages that have become due, behind this number
        /// ([`super::ShardEvents::fired`]); they are kept for some seconds after a caller has asked for them.
        fired_after: Option<u64>,
    },
    /// Removes a message if it is still the dead one that the caller has seen. Answer: [`super::Reply::Change`].
    RemoveDead {
        /// The message.
        id: MessageId,
        /// When it has died: a message with another time has been redriven since, and is refused as not dead.
        died: WallMs,
    },
}

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
