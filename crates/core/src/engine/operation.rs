//! The table of operations: one row for each gives its arguments, its answer, its routing and its properties.
//!
//! Code that treats operations differently (inbox, driver, router, sessions) reads the table and does not list
//! operations. A new operation needs:
//!
//! 1. a row behind all others: its index is its number in the protocol between nodes;
//! 2. a file with its effect next to this one, and a line in `Engine::request`;
//! 3. a line in `answers!`, if its answer has a type of its own;
//! 4. the front ends that offer it and, with [`Routing::All`], the merge of the answers of several shards.
//!
//! Batches carry [`Op`] and [`Reply`]. A caller that waits for the answer to one operation uses an [`Ask`] and receives
//! its [`Ask::Reply`], so that it needs no arm for the answers to other operations.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::act::Act;
use crate::history::{HistoryStep, QueueHistory};
use crate::id::{LeaseToken, Lsn, MessageId, SessionId, ShardId};
use crate::message::{Detail, State};
use crate::name::{Key, QueueName};
use crate::policy::QueueSettings;
use crate::time::WallMs;

use super::input::{
    Attempt, DedupeId, Edit, Enqueue, Hold, KeptFor, ListCursor, Proof, Reserve, Target, WaiterId,
};
use super::quota::QuotaUse;
use super::reply::{
    Applied, ChangeRefusal, EnqueueRefusal, Enqueued, Grant, Histogram, Outline, Page, QueueView, Reply,
    Reserved, SettingsRefusal, SettleRefusal, Settled, ShardEvents, Stats, View, WheelView,
};
use super::row::SourceRow;

/// The documentation of an argument: its own, or that of all arguments with its name.
macro_rules! argument {
    ($name:ident $doc:literal) => {
        $doc
    };
    (attempt) => {
        "Whether the attempt counts."
    };
    (dedupe_id) => {
        "The fate of the message's `dedupe_id`."
    };
    (how) => {
        "The kind of hold."
    };
    (id) => {
        "The message."
    };
    (keep) => {
        "The act that keeps the message; `None`: its queue decides whether it is kept as done."
    };
    (lease_ms) => {
        "Length of the lease from now; `None`: the setting of message or queue."
    };
    (limit) => {
        "Largest number in the answer."
    };
    (max) => {
        "Largest number of messages."
    };
    (note) => {
        "Kept in the message's history, cut to a limit."
    };
    (priority) => {
        "A new priority."
    };
    (proof) => {
        "Proof that the caller holds the lease."
    };
    (queue) => {
        "The queue."
    };
    (session) => {
        "The session of a connection, to which leases are bound."
    };
    (target) => {
        "The message."
    };
}

/// The rows of the table:
///
/// ```text
/// /// documentation
/// [fn typed form] "name for logs" Variant { argument: Type, .. } -> answer,
///     routing [of the message that it names], properties ..;
/// ```
macro_rules! ops {
    ($(
        $(#[$doc:meta])*
        $(fn $make:ident)? $name:literal $Op:ident
        $(($inner:ident: $boxed:ty))?
        $({ $($(#[$form:meta])* $field:ident $(($text:literal))?: $type:ty),* })?
        -> $answer:ty, $routing:ident $(of $names:expr)? $(, $flag:ident $(= $lease:ident)?)*;
    )*) => {
        /// An operation. Every one is answered exactly once.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub enum Op {$(
            $(#[$doc])*
            #[doc = concat!("\n\nAnswer: `", stringify!($answer), "`.")]
            $Op $(($boxed))? $({ $(
                #[doc = argument!($field $($text)?)] $(#[$form])* $field: $type
            ),* })?,
        )*
            /// An operation whose effect is recorded as part of an act, and answered as without it ([`Op::of_act`]).
            #[cfg_attr(feature = "serde", serde(skip))] // between nodes the act is a field of the operation
            Audited(Arc<Act>, Box<Op>),
            /// The operation of a row of an outbox. It is applied once, with the outcome recorded in its group: if the row is
            /// recorded, the answer is [`Reply::Recorded`], and otherwise that to the operation itself. A refusal that may
            /// pass (a limit, a quota, no room) is not recorded ([`Op::once`]), and of an [`Op::RemoveDead`] no refusal is: a
            /// repeated one learns whether its row or another caller has removed the message.
            #[cfg_attr(feature = "serde", serde(skip))] // between nodes the row is a field of the operation
            Once(SourceRow, Box<Op>),
            /// A settlement that brings a detail, which replaces that of the message in the same record
            /// ([`Typed::with_detail`]). A full store keeps the former one.
            #[cfg_attr(feature = "serde", serde(skip))] // between nodes the detail is a field of the operation
            Detailed(Detail, Box<Op>),
        }

        impl Op {
            /// The row of each operation, and the message that it names. An operation on a queue names no message, and
            /// reads pages if it needs messages.
            #[inline]
            #[allow(unused_variables)] // most arguments are not part of a name
            fn entry(&self) -> (&'static Operation, Named<'_>) {
                match self {$(
                    Op::$Op { $(0: $inner,)? $($($field,)*)? .. } => (
                        const {
                            &Operation { $($flag: ops!(@flag $($lease)?),)* ..row($name, Routing::$routing) }
                        },
                        ops!(@named $($names)?),
                    ),
                )*
                    Op::Audited(_, op) | Op::Once(_, op) | Op::Detailed(_, op) => op.entry(),
                }
            }

            $(ops! { @make [$($make)?] $Op [$($($field: $type),*)?] $answer })*
        }
    };
    (@flag) => { true };
    (@flag $lease:ident) => { OnLease::$lease };
    (@named) => { Named::Nothing };
    (@named $names:expr) => { Named::from($names) };
    (@make [] $($row:tt)*) => {};
    (@make [$make:ident] $Op:ident [$($field:ident: $type:ty),*] $answer:ty) => {
        #[doc = concat!("[`Op::", stringify!($Op), "`]")]
        pub fn $make($($field: $type),*) -> Typed<$answer> {
            Typed::new(Op::$Op { $($field),* })
        }
    };
}

ops! {
    /// Accepts a message.
    "enqueue" Enqueue(enqueue: Box<Enqueue>) -> Result<Enqueued, EnqueueRefusal>, Message of &**enqueue, audited;

    /// Grants ready messages, or waits for some.
    "reserve" Reserve(reserve: Reserve) -> Reserved, All, grows, lease = Begins;

    /// Grants one message by its id, whatever waiting state it is in (Dead and Scheduled included).
    fn reserve_one "reserve_one" ReserveOne { id: MessageId, session: SessionId, lease_ms: Option<u64> }
        -> Result<Box<Grant>, ChangeRefusal>, Message of id, grows, revives, lease = Begins;

    /// Ends a waiting reserve with an empty answer.
    "cancel_reserve" CancelReserve { waiter ("The number given in [`Reserve`]."): WaiterId }
        -> (), Node, settles, repeatable;

    /// Returns grants that never reached their consumer; they do not count as attempts.
    fn undelivered "undelivered" Undelivered { leases ("The leases."): Vec<(MessageId, LeaseToken)> }
        -> (), Leases, settles, repeatable;

    /// Settles a message as done. Between nodes the result is a field of the operation.
    "ack" Ack {
            id: MessageId, proof: Proof,
            #[cfg_attr(feature = "serde", serde(skip))]
            result ("What a consumer has to say of the message: JSON, which is kept with a done message."): Option<Box<str>>
        } -> SettleAnswer, Message of id, settles, lease = Ends;

    /// Settles a message as not done: it comes again after a delay, or dies.
    "nack" Nack {
            id: MessageId, proof: Proof, attempt: Attempt,
            delay_ms ("Delay until the next attempt; `None`: the backoff decides."): Option<u64>,
            priority: Option<u32>, note: Box<str>
        } -> SettleAnswer, Message of id, settles, grows, revives, lease = Ends;

    /// Buries a leased message.
    "bury" Bury { id: MessageId, proof: Proof, priority: Option<u32>, note: Box<str> }
        -> SettleAnswer, Message of id, settles, grows, lease = Ends;

    /// Removes a message: acks it if this session leases it, cancels it if it is not leased. Refused as a lost lease
    /// when another consumer leases it.
    "delete" Delete { id: MessageId, session: SessionId }
        -> SettleAnswer, Message of id, settles, lease = EndsOwn;

    /// Moves a lease's deadline.
    "extend" Extend {
            id: MessageId, proof: Proof,
            lease_ms ("Its length from now; `None`: the message's or its queue's, but no earlier deadline."): Option<u64>
        }
        -> ExtendAnswer, Message of id, settles, grows, lease = Extends;

    /// Cancels a message. One that is to be kept for an act, and cannot be, stays.
    fn cancel_with "cancel" Cancel { target: Target, dedupe_id: DedupeId, keep: Option<KeptFor> }
        -> ChangeAnswer, Message of target, settles, audited;

    /// Gives a waiting message another due time, or other content or settings.
    fn postpone "postpone" Postpone {
            target: Target,
            edit ("The new values; everything else stays."): Box<Edit>,
            if_generation ("The required generation; with another one the change is refused."): Option<u32>
        } -> ChangeAnswer, Message of target, grows, audited;

    /// Makes a message due now.
    fn fire "fire" Fire { target: Target } -> ChangeAnswer, Message of target, grows;

    /// Makes up to `max` scheduled messages of a queue due now, in due order, and at most `Policy::max_step`.
    fn fire_many "fire_many" FireMany { queue: QueueName, max: usize }
        -> Applied<u64>, All, grows, surveys, audited;

    /// Makes a dead message ready again, or schedules it.
    fn redrive_of "redrive" Redrive {
            id: MessageId,
            delay_ms ("The delay from now, in ms; `None`: it is ready at once, and due when it was due."): Option<u64>,
            #[cfg_attr(feature = "serde", serde(skip))]
            died ("When it has died; with another time it is refused as not dead. `None`: at any time. Between nodes a field \
                of the operation."): Option<WallMs>
        } -> ChangeAnswer, Message of id, grows, revives, surveys, audited;

    /// Makes up to `max` dead messages of a queue ready again, in the order in which they died; a message whose key has
    /// been taken since then stays. At most `Policy::max_step`.
    fn redrive_many "redrive_many" RedriveMany { queue: QueueName, max: usize }
        -> Applied<u64>, All, grows, surveys, audited;

    /// Returns a message.
    fn get "get" Get { target: Target } -> Option<Box<View>>, Message of target, repeatable;

    /// Returns the state of a message without its body.
    fn outline "outline" Outline { id: MessageId } -> ChangeAnswer, Message of id, repeatable;

    /// Returns the first message in a state.
    fn peek "peek" Peek { queue: QueueName, state ("The state."): State }
        -> Option<Box<View>>, All, repeatable, surveys;

    /// Lists messages in due order. Messages that are due before `from` may be left out; they are not, where another order
    /// than that of due times is listed.
    fn list "list" List {
            queue: QueueName,
            state ("Only messages in this state."): Option<State>,
            after ("Start behind this position."): Option<ListCursor>,
            limit: usize,
            from ("The instant before which messages may be left out."): Option<WallMs>
        } -> Page, All, repeatable, surveys;

    /// Describes a queue, if there is anything of it.
    fn queue "queue" Queue { queue: QueueName } -> Option<QueueView>, All, repeatable, surveys;

    /// Describes all queues, by name.
    fn queues "queues" Queues { after ("Start behind this name."): Option<QueueName>, limit: usize }
        -> Vec<QueueView>, All, repeatable, surveys;

    /// Counts messages by due time.
    fn histogram "histogram" Histogram {
            queue ("The queue; `None`: all."): Option<QueueName>,
            from ("Start of the first column."): WallMs,
            to ("End of the last column, exclusive."): WallMs,
            columns ("Number of columns."): usize
        } -> Histogram, All, repeatable;

    /// Describes the ring.
    fn wheel "wheel" Wheel -> WheelView, All, repeatable;

    /// Returns figures of the whole engine.
    fn stats "stats" Stats -> Stats, All, settles, repeatable, surveys;

    /// Replaces all settings of a queue. The answer is the queue as it is now.
    fn configure "configure" Configure { queue: QueueName, settings ("The new settings."): QueueSettings }
        -> Result<Applied<Box<QueueView>>, SettingsRefusal>, All, grows, audited;

    /// Pauses a queue: it grants nothing. Refused if the queue would be one too many.
    fn pause "pause" Pause {
            queue: QueueName, for_ms ("Length of the pause; `None`: until resumed."): Option<u64>
        } -> Result<Applied<()>, SettingsRefusal>, All, grows, audited;

    /// Ends a pause.
    fn resume "resume" Resume { queue: QueueName } -> Applied<()>, All, grows, audited;

    /// Removes Scheduled, Ready and Dead messages of a queue, unless they are more than `at_most`. The answer is their
    /// number; above `at_most` nothing was removed, except by other shards before.
    fn purge "purge" Purge {
            queue: QueueName, at_most ("Largest number of messages; `None`: no limit."): Option<u64>
        } -> Applied<u64>, All, surveys, audited;

    /// Holds a queue: it stays with its totals, even when it is empty, until every hold is released. Refused if the queue
    /// would be one too many: then it is not held. A restart releases all holds.
    fn hold "hold" Hold { queue: QueueName, how: Hold } -> Result<(), SettingsRefusal>, Node, settles;

    /// Releases an [`Op::Hold`].
    "let_go" LetGo { queue: QueueName, how: Hold } -> (), Node, settles;

    /// Reports a closed connection: its leases are released, its waiting reserves end.
    fn session_closed "session_closed" SessionClosed { session: SessionId }
        -> (), All, settles, repeatable;

    /// Returns in how many ms the first lease of a connection runs out.
    fn session_deadline "session_deadline" SessionDeadline { session: SessionId }
        -> Option<u64>, All, repeatable;

    /// Returns when the next message is due.
    fn next_due "next_due" NextDue -> Option<WallMs>, All, repeatable;

    /// Returns how much of each quota is used.
    fn quotas "quotas" Quotas -> Vec<QuotaUse>, All, settles, repeatable;

    /// Returns a message as [`Op::Get`] does, or else a message that has ended and is kept as done: by its id, or the
    /// newest that had the key.
    fn recall "recall" Recall { target: Target } -> Option<Box<View>>, Message of target, repeatable, recalls;

    /// Returns events of one shard, those of durable records, in order. With `fired_after` the answer also has events of
    /// messages that have become due, which are kept for some seconds after a caller has asked for them.
    fn events "events" Events {
            shard ("The shard."): ShardId,
            after ("The position behind which they begin; `None`: the last durable record, so that the answer says \
                where those to come begin."): Option<Lsn>,
            limit ("Largest number of events of records."): usize,
            fired_after ("The number behind which events of messages that have become due begin \
                ([`super::ShardEvents::fired`])."): Option<u64>
        } -> Box<ShardEvents>, Shard, repeatable;

    /// Removes a message if it is still the dead one that the caller has seen, as [`Op::Cancel`] does.
    fn remove_dead "remove_dead" RemoveDead {
            id: MessageId,
            died ("When it has died: a message with another time has been redriven since, and is refused as not \
                dead."): WallMs,
            keep: Option<KeptFor>
        } -> ChangeAnswer, Message of id, settles;

    /// Puts a message that an act has removed and kept back into its queue as it was, under a new id; the kept one is gone.
    /// Refused if its key is taken, and as not dead if it was put back within a week. The answer is the new message.
    fn restore "restore" Restore {
            id ("The kept message, as a list of the done messages of [`QueueName::of_act`] has it."): MessageId
        } -> ChangeAnswer, Message of id, grows, revives;

    /// Returns what happened to the messages of a queue in each step of time.
    fn history "history" History {
            queue ("The queue; `None`: all together."): Option<QueueName>,
            from ("An instant in the first step."): WallMs,
            until ("The instant behind the last step."): WallMs,
            step ("The length of the steps."): HistoryStep
        } -> QueueHistory, All, repeatable;

    /// Forgets the history of a queue.
    fn erase_history "erase_history" EraseHistory { queue: QueueName } -> Applied<()>, All, grows;

    /// Ends the records of rows of an outbox whose delete is confirmed ([`Op::Once`]), of at most `Policy::max_step` rows. The
    /// answer is the number of those that were recorded and not confirmed yet.
    fn confirm "confirm" Confirm {
            source ("The system queue of the outbox."): QueueName, rows ("The ids of the rows."): Vec<Box<str>>
        } -> Applied<u64>, All, grows, repeatable;
}

/// The properties of an operation that are known before it is decided: a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The name, for logs.
    pub name: &'static str,
    /// The shards that it concerns in a cluster.
    pub routing: Routing,
    /// The effect of the operation on the lease of the message that it names.
    pub lease: OnLease,
    /// The operation only releases something or reports a state: a full inbox and an owner that shuts down accept it.
    pub settles: bool,
    /// A second execution changes nothing: the operation is sent again when its outcome is unknown.
    pub repeatable: bool,
    /// The operation writes records that need room until a flush, and releases none: it is refused while the store
    /// accepts only removals. An enqueue has its own refusal.
    pub grows: bool,
    /// The operation may bring a dead message back: the message's key must be free, and is also looked up.
    pub revives: bool,
    /// The operation also shows a message that has ended, if its queue keeps it: the answer that leads to it is looked
    /// up, and then the message.
    pub recalls: bool,
    /// The operation shows or changes the messages of a queue or of all queues: leases that have run out end first, as
    /// many as in a step.
    pub surveys: bool,
    /// The act that the operation is part of, if any, is recorded in the group of its effect.
    pub audited: bool,
}

/// The shards that an operation concerns in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// The shard of the message that it names ([`Op::names`]); any shard for a new message without key and `dedupe_id`.
    Message,
    /// The shards of the leases that it lists ([`Op::leases`]).
    Leases,
    /// All shards, or as many of them as are needed; their answers are merged.
    All,
    /// No shard: the node that receives the operation decides it, because it concerns the node's connections.
    Node,
    /// The shard that it names ([`Op::shard`]).
    Shard,
}

/// The effect of an operation on the lease of the message that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLease {
    /// No effect.
    Nothing,
    /// A lease begins.
    Begins,
    /// The deadline moves; the caller proves that it holds the lease.
    Extends,
    /// The lease ends; the caller proves that it holds the lease.
    Ends,
    /// The lease ends if it is the caller's own; a message without a lease is also removed.
    EndsOwn,
}

/// The message that an operation names, if it names one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named<'a> {
    /// A message by its id.
    Id(MessageId),
    /// A message by its key.
    Key(&'a QueueName, &'a Key),
    /// No message.
    Nothing,
}

impl From<&MessageId> for Named<'_> {
    fn from(id: &MessageId) -> Self {
        Named::Id(*id)
    }
}

impl<'a> From<&'a Target> for Named<'a> {
    fn from(target: &'a Target) -> Self {
        match target {
            Target::Id(id) | Target::Own(id) => Named::Id(*id),
            Target::Key(queue, key) => Named::Key(queue, key),
        }
    }
}

impl<'a> From<&'a Enqueue> for Named<'a> {
    fn from(enqueue: &'a Enqueue) -> Self {
        enqueue.key.as_ref().map_or(Named::Nothing, |key| Named::Key(&enqueue.queue, key))
    }
}

/// A row without any other property.
const fn row(name: &'static str, routing: Routing) -> Operation {
    Operation {
        name,
        routing,
        lease: OnLease::Nothing,
        settles: false,
        repeatable: false,
        grows: false,
        revives: false,
        recalls: false,
        surveys: false,
        audited: false,
    }
}

impl Op {
    /// The row of this operation.
    #[inline]
    pub fn operation(&self) -> &'static Operation {
        self.entry().0
    }

    /// The message that the operation names: it must be looked up before the decision, and it determines the shard.
    #[inline]
    pub fn names(&self) -> Named<'_> {
        self.entry().1
    }

    /// Whether the operation needs a second look-up, by what the first one has found. A cancel that frees the
    /// `dedupe_id` of its message forgets the answer to it, which is looked up.
    pub fn looks_twice(&self) -> bool {
        let Operation { revives, recalls, .. } = self.operation();
        *revives || *recalls || matches!(self.inner(), Op::Cancel { dedupe_id: DedupeId::Freed, .. })
    }

    /// The detail that a settlement brings.
    pub fn detail(&self) -> Option<&Detail> {
        if let Op::Detailed(detail, _) = self { Some(detail) } else { None }
    }

    /// The queue and the `dedupe_id` of an enqueue that has one.
    pub fn dedupe_id(&self) -> Option<(&QueueName, &str)> {
        let Op::Enqueue(e) = self.inner() else { return None };
        Some((&e.queue, e.dedupe_id.as_deref()?))
    }

    /// The source and the id of the row that the operation is of.
    pub fn row(&self) -> Option<(&QueueName, &str)> {
        match self {
            Op::Once(row, _) => Some((&row.source, &row.id)),
            Op::Audited(_, op) => op.row(),
            _ => None,
        }
    }

    /// Whether the operation changes or brings one message of a caller, which an act counts.
    pub fn is_of_one(&self) -> bool {
        match self.inner() {
            Op::Redrive { .. } => true,
            Op::Enqueue(e) => !e.queue.is_system(),
            _ => false,
        }
    }

    /// The leases that an [`Op::Undelivered`] lists; empty for every other operation.
    pub fn leases(&self) -> &[(MessageId, LeaseToken)] {
        let Op::Undelivered { leases } = self else { return &[] };
        leases
    }

    /// The shard that an [`Op::Events`] names; `None` for every other operation.
    pub fn shard(&self) -> Option<ShardId> {
        let Op::Events { shard, .. } = self else { return None };
        Some(*shard)
    }

    /// Whether a second execution changes nothing. This includes a reserve that takes no message.
    pub fn is_repeatable(&self) -> bool {
        self.operation().repeatable || matches!(self, Op::Reserve(reserve) if reserve.max == 0)
    }

    /// The bytes that count against limits while it waits: body and headers of an enqueue or a change, and the size of
    /// the value itself.
    pub fn weight(&self) -> usize {
        let brought = match self.inner() {
            Op::Enqueue(e) => e.brings(),
            Op::Postpone { edit, .. } => edit.weight(),
            Op::Ack { result, .. } => result.as_ref().map_or(0, |result| result.len()),
            _ => 0,
        };
        brought + self.detail().map_or(0, |detail| detail.len()) + size_of::<Op>()
    }

    /// The operation as part of an act, if the table says that it is recorded.
    #[must_use]
    pub fn of_act(self, act: &Arc<Act>) -> Op {
        match self {
            Op::Audited(..) => self,
            _ if self.operation().audited => Op::Audited(Arc::clone(act), Box::new(self)),
            _ => self,
        }
    }

    /// The operation as that of a row, if it can be one: an enqueue, a cancel or a postpone of an outbox, or the removal of a
    /// dead message that moves into another queue.
    #[must_use]
    pub fn once(self, row: SourceRow) -> Op {
        match self {
            Op::Enqueue(_) | Op::Cancel { .. } | Op::Postpone { .. } | Op::RemoveDead { .. } => {
                Op::Once(row, Box::new(self))
            }
            Op::Audited(act, op) => Op::Audited(act, Box::new(op.once(row))),
            _ => self,
        }
    }

    /// The operation without the act and the row that it is of, and without its detail.
    #[inline]
    pub fn inner(&self) -> &Op {
        match self {
            Op::Audited(_, op) | Op::Once(_, op) | Op::Detailed(_, op) => op.inner(),
            _ => self,
        }
    }

    /// The act and the operation, apart.
    pub fn apart(self) -> (Option<Arc<Act>>, Op) {
        if let Op::Audited(act, op) = self { (Some(act), *op) } else { (None, self) }
    }

    /// [`Op::Ack`]
    pub fn ack(id: MessageId, proof: impl Into<Proof>) -> Typed<SettleAnswer> {
        Op::ack_with(id, proof, None)
    }

    /// [`Op::Ack`], with a result.
    pub fn ack_with(id: MessageId, proof: impl Into<Proof>, result: Option<Box<str>>) -> Typed<SettleAnswer> {
        Typed::new(Op::Ack { id, proof: proof.into(), result })
    }

    /// [`Op::Nack`], with the priority that the message has.
    pub fn nack(
        id: MessageId,
        proof: impl Into<Proof>,
        attempt: Attempt,
        delay_ms: Option<u64>,
        note: &str,
    ) -> Typed<SettleAnswer> {
        let (proof, note) = (proof.into(), note.into());
        Typed::new(Op::Nack { id, proof, attempt, delay_ms, priority: None, note })
    }

    /// [`Op::Bury`], with the priority that the message has.
    pub fn bury(id: MessageId, proof: impl Into<Proof>, note: &str) -> Typed<SettleAnswer> {
        Typed::new(Op::Bury { id, proof: proof.into(), priority: None, note: note.into() })
    }

    /// [`Op::Extend`]
    pub fn extend(id: MessageId, proof: impl Into<Proof>, lease_ms: Option<u64>) -> Typed<ExtendAnswer> {
        Typed::new(Op::Extend { id, proof: proof.into(), lease_ms })
    }

    /// [`Op::Cancel`]; the `dedupe_id` of the message stays.
    pub fn cancel(target: Target) -> Typed<ChangeAnswer> {
        Op::cancel_with(target, DedupeId::Stays, None)
    }

    /// Records an act that has no operation of its own: it is part of a look at no message.
    pub fn note_act(act: Act) -> Typed<ChangeAnswer> {
        Typed::new(Op::Audited(Arc::new(act), Box::new(Op::Outline { id: MessageId(0) })))
    }

    /// [`Op::Redrive`] without a delay.
    pub fn redrive(id: MessageId) -> Typed<ChangeAnswer> {
        Op::redrive_of(id, None, None)
    }
}

/// The answer to a settlement.
type SettleAnswer = Result<Applied<Settled>, SettleRefusal>;
/// The answer to an extension: the new deadline.
type ExtendAnswer = Result<Applied<WallMs>, SettleRefusal>;
/// The answer to a change: the present state of the message (for a removal: the former one).
type ChangeAnswer = Result<Applied<Box<Outline>>, ChangeRefusal>;

/// An operation whose answer has a type.
pub trait Ask {
    /// The type of its answer.
    type Reply: FromReply;

    /// The operation.
    fn into_op(self) -> Op;

    /// The typed answer; `None` if `reply` answers another operation.
    fn reply(reply: Reply) -> Option<Self::Reply> {
        FromReply::from_reply(reply)
    }
}

impl Ask for Enqueue {
    type Reply = Result<Enqueued, EnqueueRefusal>;

    fn into_op(self) -> Op {
        Op::Enqueue(Box::new(self))
    }
}

impl Ask for Reserve {
    type Reply = Reserved;

    fn into_op(self) -> Op {
        Op::Reserve(self)
    }
}

/// An operation whose answer is an `R`; the functions of [`Op`] create it.
#[derive(Debug)]
pub struct Typed<R> {
    op: Op,
    answer: PhantomData<fn() -> R>,
}

impl<R> Typed<R> {
    fn new(op: Op) -> Self {
        Typed { op, answer: PhantomData }
    }

    /// The operation.
    pub fn op(&self) -> &Op {
        &self.op
    }

    /// The operation as part of an act: see [`Op::of_act`].
    #[must_use]
    pub fn of_act(self, act: Option<&Arc<Act>>) -> Self {
        match act {
            Some(act) => Typed::new(self.op.of_act(act)),
            None => self,
        }
    }

    /// The operation as that of a row of an outbox: see [`Op::once`].
    #[must_use]
    pub fn once(self, row: SourceRow) -> Op {
        self.op.once(row)
    }
}

impl Typed<SettleAnswer> {
    /// The settlement with a detail, if there is one: see [`Op::Detailed`].
    #[must_use]
    pub fn with_detail(self, detail: Option<Detail>) -> Self {
        match detail {
            Some(detail) => Typed::new(Op::Detailed(detail, Box::new(self.op))),
            None => self,
        }
    }
}

impl<R> Clone for Typed<R> {
    fn clone(&self) -> Self {
        Typed::new(self.op.clone())
    }
}

impl<R: FromReply> Ask for Typed<R> {
    type Reply = R;

    fn into_op(self) -> Op {
        self.op
    }
}

/// An answer's type, converted from the [`Reply`] that batches carry.
pub trait FromReply: Sized {
    /// The answer; `None` if `reply` has another type.
    fn from_reply(reply: Reply) -> Option<Self>;
}

/// The types of answers, and the replies that contain them.
macro_rules! answers {
    ($($type:ty: $($reply:pat => $answer:expr),+;)*) => {$(
        impl FromReply for $type {
            fn from_reply(reply: Reply) -> Option<Self> {
                match reply {
                    $($reply => Some($answer),)+
                    _ => None,
                }
            }
        }
    )*};
}

answers! {
    (): Reply::Done => ();
    Applied<()>: Reply::Configured(Applied { what: None, level }) => Applied { what: (), level };
    Applied<u64>: Reply::Count(count) => count;
    Box<ShardEvents>: Reply::Events(events) => events;
    ChangeAnswer: Reply::Change(outline) => outline;
    ExtendAnswer: Reply::Extend(until) => until;
    Histogram: Reply::Histogram(histogram) => histogram;
    Option<Box<View>>: Reply::View(view) => view;
    Option<QueueView>: Reply::Queues(mut views) => views.pop();
    Option<WallMs>: Reply::NextDue(due) => due;
    Option<u64>: Reply::Deadline(left_ms) => left_ms;
    Page: Reply::Page(page) => page;
    QueueHistory: Reply::History(history) => *history;
    Reserved: Reply::Reserve(reserved) => reserved;
    Result<(), SettingsRefusal>: Reply::Done => Ok(()), Reply::Configure(refusal) => Err(refusal);
    Result<Applied<()>, SettingsRefusal>:
        Reply::Configured(Applied { what: None, level }) => Ok(Applied { what: (), level }),
        Reply::Configure(refusal) => Err(refusal);
    Result<Applied<Box<QueueView>>, SettingsRefusal>:
        Reply::Configured(Applied { what: Some(what), level }) => Ok(Applied { what, level }),
        Reply::Configure(refusal) => Err(refusal);
    Result<Box<Grant>, ChangeRefusal>: Reply::ReserveOne(granted) => granted;
    Result<Enqueued, EnqueueRefusal>: Reply::Enqueue(enqueued) => enqueued;
    SettleAnswer: Reply::Settle(settled) => settled;
    Stats: Reply::Stats(stats) => *stats;
    Vec<QueueView>: Reply::Queues(views) => views;
    Vec<QuotaUse>: Reply::Quotas(uses) => uses;
    WheelView: Reply::Wheel(wheel) => *wheel;
}
