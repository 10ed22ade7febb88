//! The table of operations: one row of properties for each.
//!
//! Code that treats operations differently (inbox, driver, router, sessions) reads the table and does not list
//! operations. A new operation needs:
//!
//! 1. a variant of [`Op`], behind all others (its index is its number in the protocol between nodes), and a row in
//!    `Op::entry`, where the match is exhaustive;
//! 2. a file with its effect next to this one, and a line in `Engine::request`;
//! 3. a typed form in `ask.rs`, if a caller waits for its answer;
//! 4. the front ends that offer it and, with [`Routing::All`], the merge of the answers of several shards.

use crate::id::{LeaseToken, MessageId, ShardId};
use crate::name::{Key, QueueName};

use super::input::{DedupeId, Enqueue, Op, Target};

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
    /// The operation forgets the answer to the `dedupe_id` of its message, which is also looked up.
    pub frees: bool,
    /// The operation also shows a message that has ended, if its queue keeps it: the answer that leads to it is looked
    /// up, and then the message.
    pub recalls: bool,
    /// The operation shows or changes the messages of a queue or of all queues: leases that have run out end first, as
    /// many as in a step.
    pub surveys: bool,
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
        frees: false,
        recalls: false,
        surveys: false,
    }
}

impl Operation {
    const fn settles(self) -> Self {
        Operation { settles: true, ..self }
    }

    const fn repeatable(self) -> Self {
        Operation { repeatable: true, ..self }
    }

    const fn grows(self) -> Self {
        Operation { grows: true, ..self }
    }

    const fn revives(self) -> Self {
        Operation { revives: true, ..self }
    }

    const fn frees(self) -> Self {
        Operation { frees: true, ..self }
    }

    const fn recalls(self) -> Self {
        Operation { recalls: true, ..self }
    }

    /// Whether the operation needs a second look-up, by what the first one has found.
    pub const fn looks_twice(&self) -> bool {
        self.revives || self.frees || self.recalls
    }

    const fn surveys(self) -> Self {
        Operation { surveys: true, ..self }
    }

    const fn lease(self, lease: OnLease) -> Self {
        Operation { lease, ..self }
    }
}

impl Op {
    /// The table: the row of each operation, and the message that it names. An operation on a queue names no message,
    /// and reads pages if it needs messages.
    #[inline]
    #[rustfmt::skip] // one row a line
    fn entry(&self) -> (&'static Operation, Named<'_>) {
        use Named::{Id, Nothing};
        use OnLease::{Begins, Ends, EndsOwn, Extends};
        use Routing::{All, Leases, Message, Node, Shard};
        match self {
            Op::Enqueue(e) => (const { &row("enqueue", Message) }, e.as_ref().into()),
            Op::Reserve(_) => (const { &row("reserve", All).grows().lease(Begins) }, Nothing),
            Op::ReserveOne { id, .. } => (const { &row("reserve_one", Message).grows().revives().lease(Begins) }, Id(*id)),
            Op::CancelReserve { .. } => (const { &row("cancel_reserve", Node).settles().repeatable() }, Nothing),
            Op::Undelivered { .. } => (const { &row("undelivered", Leases).settles().repeatable() }, Nothing),
            Op::Ack { id, .. } => (const { &row("ack", Message).settles().lease(Ends) }, Id(*id)),
            Op::Nack { id, .. } => (const { &row("nack", Message).settles().grows().revives().lease(Ends) }, Id(*id)),
            Op::Bury { id, .. } => (const { &row("bury", Message).settles().grows().lease(Ends) }, Id(*id)),
            Op::Delete { id, .. } => (const { &row("delete", Message).settles().lease(EndsOwn) }, Id(*id)),
            Op::Extend { id, .. } => (const { &row("extend", Message).settles().grows().lease(Extends) }, Id(*id)),
            Op::Cancel { target, dedupe_id: DedupeId::Stays } => (const { &row("cancel", Message).settles() }, target.into()),
            Op::Cancel { target, dedupe_id: DedupeId::Freed } => (const { &row("cancel", Message).settles().frees() }, target.into()),
            Op::Postpone { target, .. } => (const { &row("postpone", Message).grows() }, target.into()),
            Op::Fire { target } => (const { &row("fire", Message).grows() }, target.into()),
            Op::FireMany { .. } => (const { &row("fire_many", All).grows().surveys() }, Nothing),
            Op::Redrive { id, .. } => (const { &row("redrive", Message).grows().revives().surveys() }, Id(*id)),
            Op::RedriveMany { .. } => (const { &row("redrive_many", All).grows().surveys() }, Nothing),
            Op::Get { target } => (const { &row("get", Message).repeatable() }, target.into()),
            Op::Outline { id } => (const { &row("outline", Message).repeatable() }, Id(*id)),
            Op::Peek { .. } => (const { &row("peek", All).repeatable().surveys() }, Nothing),
            Op::List { .. } => (const { &row("list", All).repeatable().surveys() }, Nothing),
            Op::Queue { .. } => (const { &row("queue", All).repeatable().surveys() }, Nothing),
            Op::Queues { .. } => (const { &row("queues", All).repeatable().surveys() }, Nothing),
            Op::Histogram { .. } => (const { &row("histogram", All).repeatable() }, Nothing),
            Op::Wheel => (const { &row("wheel", All).repeatable() }, Nothing),
            Op::Stats => (const { &row("stats", All).settles().repeatable().surveys() }, Nothing),
            Op::Configure { .. } => (const { &row("configure", All).grows() }, Nothing),
            Op::Pause { .. } => (const { &row("pause", All).grows() }, Nothing),
            Op::Resume { .. } => (const { &row("resume", All).grows() }, Nothing),
            Op::Purge { .. } => (const { &row("purge", All).surveys() }, Nothing),
            Op::Hold { .. } => (const { &row("hold", Node).settles() }, Nothing),
            Op::LetGo { .. } => (const { &row("let_go", Node).settles() }, Nothing),
            Op::SessionClosed { .. } => (const { &row("session_closed", All).settles().repeatable() }, Nothing),
            Op::SessionDeadline { .. } => (const { &row("session_deadline", All).repeatable() }, Nothing),
            Op::NextDue => (const { &row("next_due", All).repeatable() }, Nothing),
            Op::Quotas => (const { &row("quotas", All).settles().repeatable() }, Nothing),
            Op::Recall { target } => (const { &row("recall", Message).repeatable().recalls() }, target.into()),
            Op::Events { .. } => (const { &row("events", Shard).repeatable() }, Nothing),
            Op::RemoveDead { id, .. } => (const { &row("remove_dead", Message).settles() }, Id(*id)),
        }
    }

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

    /// The queue and the `dedupe_id` of an enqueue that has one.
    pub fn dedupe_id(&self) -> Option<(&QueueName, &str)> {
        let Op::Enqueue(e) = self else { return None };
        Some((&e.queue, e.dedupe_id.as_deref()?))
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
        let brought = match self {
            Op::Enqueue(e) => e.brings(),
            Op::Postpone { edit, .. } => edit.weight(),
            _ => 0,
        };
        brought + size_of::<Op>()
    }
}
