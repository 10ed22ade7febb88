//! The table of operations: what is known of each before it is decided, one row for each.
//!
//! Whoever treats operations differently (the inbox, the driver, the router, the sessions) reads the table, and lists none of
//! them. To add an operation:
//!
//! 1. its variant in [`Op`], behind all others (the place is its number between nodes), and its row in `Op::entry`, where
//!    the match is exhaustive;
//! 2. what it does, in a file of its own beside this one, and its line in `Engine::request`;
//! 3. its typed form in `ask.rs`, for those who wait for its answer;
//! 4. the front ends that offer it; and, with [`Routing::All`], how the answers of several shards become one.

use crate::id::{LeaseToken, MessageId};
use crate::name::{Key, QueueName};

use super::input::{Enqueue, Op, Target};

/// What is known of an operation before it is decided: its row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its name, for logs.
    pub name: &'static str,
    /// Which shards it concerns, where there are several.
    pub routing: Routing,
    /// What it does to the lease of the message that it names.
    pub lease: OnLease,
    /// It only frees what is held, or tells how things are: a full inbox and an owner that shuts down take it all the same.
    pub settles: bool,
    /// It changes nothing, or nothing more when it comes twice: it is sent again when its outcome is unknown.
    pub repeatable: bool,
    /// It writes records that take room until a flush has written them, and gives none back: it is refused while the store
    /// takes removals alone. An enqueue has a refusal of its own.
    pub grows: bool,
    /// It may bring a dead message back: then the message's key must be free, and is looked up, too.
    pub revives: bool,
}

/// Which shards an operation concerns, where there are several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// That of the message that it names ([`Op::names`]); a new message without a key or a `dedupe_id` goes to any.
    Message,
    /// Those of the leases that it lists.
    Leases,
    /// All, or as many of them as are needed; their answers become one.
    All,
    /// None: it is about the connections of the node that is asked.
    Node,
}

/// What an operation does to the lease of the message that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLease {
    /// Nothing.
    Nothing,
    /// Begins one.
    Begins,
    /// Makes it longer; the caller proves to hold it.
    Extends,
    /// Ends it; the caller proves to hold it.
    Ends,
    /// Ends it if it is the caller's own; a message that nobody leases goes, too.
    EndsOwn,
}

/// Which message an operation names, if it names one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named<'a> {
    /// One by its id.
    Id(MessageId),
    /// One by its key.
    Key(&'a QueueName, &'a Key),
    /// None.
    Nothing,
}

impl<'a> From<&'a Target> for Named<'a> {
    fn from(target: &'a Target) -> Self {
        match target {
            Target::Id(id) => Named::Id(*id),
            Target::Key(queue, key) => Named::Key(queue, key),
        }
    }
}

impl<'a> From<&'a Enqueue> for Named<'a> {
    fn from(enqueue: &'a Enqueue) -> Self {
        enqueue.key.as_ref().map_or(Named::Nothing, |key| Named::Key(&enqueue.queue, key))
    }
}

/// A row of which only this is true.
const fn row(name: &'static str, routing: Routing) -> Operation {
    Operation {
        name,
        routing,
        lease: OnLease::Nothing,
        settles: false,
        repeatable: false,
        grows: false,
        revives: false,
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

    const fn lease(self, lease: OnLease) -> Self {
        Operation { lease, ..self }
    }
}

impl Op {
    /// The table: the row of each operation, and the message that it names. Leases are in memory; operations about queues
    /// name no message, and read pages where they need messages.
    #[inline]
    #[rustfmt::skip] // one row a line
    fn entry(&self) -> (&'static Operation, Named<'_>) {
        use Named::{Id, Nothing};
        use OnLease::{Begins, Ends, EndsOwn, Extends};
        use Routing::{All, Leases, Message, Node};
        match self {
            Op::Enqueue(e) => (const { &row("enqueue", Message) }, e.as_ref().into()),
            Op::Reserve(_) => (const { &row("reserve", All).grows().lease(Begins) }, Nothing),
            Op::ReserveOne { id, .. } => (const { &row("reserve_one", Message).grows().revives().lease(Begins) }, Id(*id)),
            Op::CancelReserve { .. } => (const { &row("cancel_reserve", Node).settles().repeatable() }, Nothing),
            Op::Undelivered { .. } => (const { &row("undelivered", Leases).settles().repeatable() }, Nothing),
            Op::Ack { id, .. } => (const { &row("ack", Message).settles().lease(Ends) }, Id(*id)),
            Op::Nack { id, .. } => (const { &row("nack", Message).settles().grows().lease(Ends) }, Id(*id)),
            Op::Bury { id, .. } => (const { &row("bury", Message).settles().grows().lease(Ends) }, Id(*id)),
            Op::Delete { id, .. } => (const { &row("delete", Message).settles().lease(EndsOwn) }, Id(*id)),
            Op::Extend { id, .. } => (const { &row("extend", Message).settles().grows().lease(Extends) }, Id(*id)),
            Op::Cancel { target } => (const { &row("cancel", Message).settles() }, target.into()),
            Op::Postpone { target, .. } => (const { &row("postpone", Message).grows() }, target.into()),
            Op::Fire { target } => (const { &row("fire", Message).grows() }, target.into()),
            Op::FireMany { .. } => (const { &row("fire_many", All).grows() }, Nothing),
            Op::Redrive { id } => (const { &row("redrive", Message).grows().revives() }, Id(*id)),
            Op::RedriveMany { .. } => (const { &row("redrive_many", All).grows() }, Nothing),
            Op::Get { target } => (const { &row("get", Message).repeatable() }, target.into()),
            Op::Outline { id } => (const { &row("outline", Message).repeatable() }, Id(*id)),
            Op::Peek { .. } => (const { &row("peek", All).repeatable() }, Nothing),
            Op::List { .. } => (const { &row("list", All).repeatable() }, Nothing),
            Op::Queue { .. } => (const { &row("queue", All).repeatable() }, Nothing),
            Op::Queues { .. } => (const { &row("queues", All).repeatable() }, Nothing),
            Op::Histogram { .. } => (const { &row("histogram", All).repeatable() }, Nothing),
            Op::Wheel => (const { &row("wheel", All).repeatable() }, Nothing),
            Op::Stats => (const { &row("stats", All).settles().repeatable() }, Nothing),
            Op::Configure { .. } => (const { &row("configure", All).grows() }, Nothing),
            Op::Pause { .. } => (const { &row("pause", All).grows() }, Nothing),
            Op::Resume { .. } => (const { &row("resume", All).grows() }, Nothing),
            Op::Purge { .. } => (const { &row("purge", All) }, Nothing),
            Op::Hold { .. } => (const { &row("hold", Node).settles() }, Nothing),
            Op::LetGo { .. } => (const { &row("let_go", Node).settles() }, Nothing),
            Op::SessionClosed { .. } => (const { &row("session_closed", All).settles().repeatable() }, Nothing),
            Op::SessionDeadline { .. } => (const { &row("session_deadline", All).repeatable() }, Nothing),
            Op::NextDue => (const { &row("next_due", All).repeatable() }, Nothing),
            Op::Quotas => (const { &row("quotas", All).settles().repeatable() }, Nothing),
        }
    }

    /// What is known of its kind.
    #[inline]
    pub fn operation(&self) -> &'static Operation {
        self.entry().0
    }

    /// The message that it names: what must be looked up before it is decided, and what its shard follows from.
    #[inline]
    pub fn names(&self) -> Named<'_> {
        self.entry().1
    }

    /// The queue and the `dedupe_id` of an enqueue that has one.
    pub fn dedupe_id(&self) -> Option<(&QueueName, &str)> {
        let Op::Enqueue(e) = self else { return None };
        Some((&e.queue, e.dedupe_id.as_deref()?))
    }

    /// The leases that it lists, if it is about leases and not about a message.
    pub fn leases(&self) -> &[(MessageId, LeaseToken)] {
        let Op::Undelivered { leases } = self else { return &[] };
        leases
    }

    /// Whether it changes nothing, or nothing more when it comes twice. Of reserves those that take nothing.
    pub fn is_repeatable(&self) -> bool {
        self.operation().repeatable || matches!(self, Op::Reserve(reserve) if reserve.max == 0)
    }

    /// Bytes that it counts while it waits to be decided: those of the body and the headers that it brings, and its own.
    pub fn weight(&self) -> usize {
        let brought = match self {
            Op::Enqueue(e) => e.brings(),
            Op::Postpone { edit, .. } => edit.weight(),
            _ => 0,
        };
        brought + size_of::<Op>()
    }
}
