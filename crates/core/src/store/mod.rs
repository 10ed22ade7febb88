//! The boundary to the system that keeps the records: a store is simple, ordered and fenced.
//!
//! A [`Store`] belongs to one owner, the driver of its shard, and is called from that one thread. It never decides: the
//! engine determines which message is due, which lease is valid and what a key means. To use a store of your own,
//! implement the trait and run `conformance::run` on it (feature `conformance`).

use std::fmt;
use std::sync::Arc;

use crate::answers::AnswerLog;
use crate::event::MessageEvent;
use crate::id::{Epoch, Lsn, MessageId};
use crate::message::Row;
use crate::name::{Key, QueueName};
use crate::pass_on;
use crate::policy::{AGREED_GROUP_BYTES, QueueSettings};
use crate::record::{BootAnchor, ClockPair, DedupeRow, Group, Pause, Totals};
use crate::tally::{DueCounts, Tally};
use crate::time::ClockSample;

pub use coordinator::{
    Candidate, Coordinator, Joined, MAX_SHARDS, Node, Owner, Ownership, PLACEMENT, Secrets,
};
pub use ledger::{ALL_COLUMNS, Ledger, Remembered};
pub use memory::{MemoryDisk, MemoryStore, RECENT_EVENTS_BYTES, RecentEvents};
pub use table::{DEAD_FOUND, Table, place_in, places_of};

#[cfg(feature = "conformance")]
pub mod conformance;
mod coordinator;
mod ledger;
mod memory;
mod pass_on;
mod table;

/// Runs the example of `docs/stores.md` as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/stores.md")]
struct StoresPage;

/// Keeps the records of one shard.
///
/// # Obligations
///
/// Each is checked by the module `conformance` (the feature of that name), under its number.
///
/// 1. **Atomic and ordered.** A group is applied as a whole or not at all; groups keep their order; after a reopen the
///    surviving groups form a prefix of those appended, without a hole.
/// 2. **Durable when it says so.** A group at or below [`Progress::durable`] survives whatever its
///    [level](StoreTerms::level) claims.
/// 3. **Reads see appends.** [`Store::find_many`] reflects every group appended before, durable or not.
/// 4. **Loads are snapshots.** A [`Loaded`] shows the state as of one LSN, in order of (due, id) within its sequence,
///    without a gap between pages. Groups appended after the request may be included, or not.
/// 5. **Fenced.** Each open has an epoch above all earlier ones; an append of an older owner is refused with
///    [`ErrorKind::Fenced`] or can no longer happen.
/// 6. **Fail closed.** Damage below the durable watermark, an unknown format and a second owner refuse to open. After a
///    failed append or sync every later call fails until the store is opened again.
/// 7. **Room is known before.** After [`Capacity::Enough`] the next group of at most [`StoreTerms::group_bytes`] does
///    not fail because the store is full; after [`Capacity::SettleOnly`] that holds for a group that puts no message,
///    after [`Capacity::RemoveOnly`] for one that only removes. Each answer is good for one group. The space of removed
///    messages becomes room by itself.
/// 8. **Events are those of durable records.** An [`EventPage`] has the event of each record between its positions, in
///    order; pages follow each other without a gap, except one that [`EventPage::from`] says.
pub trait Store: Send {
    /// Returns what the owner needs before anything else: called once, right after opening.
    fn recovered(&mut self) -> Recovered;

    /// Appends a group. On return it is visible to [`Store::find_many`]; it may not be written or durable yet.
    ///
    /// # Errors
    /// After any error the outcome of this group is unknown and the store is poisoned (obligation 6).
    fn append(&mut self, group: &Group) -> Result<(), StoreError>;

    /// Asks that everything appended becomes durable, and does not wait for it. [`Progress`] shows when it has; the
    /// store calls the waker given when it was opened. While one sync runs, further requests are joined into the next.
    ///
    /// # Errors
    /// The error that has ended the store.
    fn sync(&mut self) -> Result<(), StoreError>;

    /// Requests a sync like [`Store::sync`], for an owner that has nothing else to do until then: a store may sync on
    /// the owner's thread, which saves two thread switches. The store may also only request the sync; [`Progress`]
    /// shows the result.
    ///
    /// # Errors
    /// See [`Store::sync`].
    fn sync_here(&mut self) -> Result<(), StoreError> {
        self.sync()
    }

    /// How far records are written and durable.
    ///
    /// # Errors
    /// The error of a write or sync that failed since, from then on (obligation 6).
    fn progress(&mut self) -> Result<Progress, StoreError>;

    /// Returns whether there is room for the next group.
    fn room(&mut self) -> Capacity;

    /// The cause of a [`Capacity::SettleOnly`] or [`Capacity::RemoveOnly`] answer of [`Store::room`], if it is not a
    /// lack of space: a disk that fails, for example. Callers then get the answer that the store is unavailable, with
    /// this error, and not that it is full.
    fn room_error(&self) -> Option<StoreError> {
        None
    }

    /// The level that the store is to reach, and its bounds, which stay as they are while it is open.
    fn terms(&self) -> StoreTerms;

    /// Finds messages by id and by key, in one call for a whole batch; of a batch of large messages only the first ones
    /// ([`Lookups::bytes`]). With [`AtHand::No`], which is for [`Lookups::at_hand`] alone, it has found nothing: the
    /// caller may go on with other work, [fetch](StoreRequest::Fetch) what it needs, and make the look-up again.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] may concern this look-up alone: as long as [`Store::progress`] succeeds, nothing is
    /// poisoned, and `found` is as it was. After any other error the store is poisoned (obligation 6).
    fn find_many(&mut self, lookups: &Lookups, found: &mut Found) -> Result<AtHand, StoreError>;

    /// Begins what a request asks for, without waiting.
    ///
    /// # Errors
    /// The error that has ended the store.
    fn ask(&mut self, request: StoreRequest) -> Result<(), StoreError>;

    /// Returns the result of a request, if any has arrived; the waker is called for each. Each request has one, except
    /// [`StoreRequest::Forget`]; they arrive in any order.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] may concern one page alone, which [`StoreError::page`] names then: as long as
    /// [`Store::progress`] succeeds, nothing is poisoned. The store reads a page of messages again by itself after a
    /// pause, as of a later position, unless it is asked to forget it; a page of events is not read again. After any
    /// other error the store is poisoned (obligation 6).
    fn arrived(&mut self) -> Option<Result<StoreArrival, StoreError>>;

    /// Gives the store the clocks while nothing is appended, so that it can record them and its durable position (the
    /// log does so after 100 ms without a group).
    ///
    /// Before anything is appended it is called once with the anchor of the owner's boot, which the next owner gets in
    /// [`Recovered::anchor`]. Engine time and elapsed time advance together, so the store may derive it again for any
    /// clock that it records. If it keeps none, downtime is taken from the wall clock.
    ///
    /// # Errors
    /// See [`Store::append`].
    fn idle(&mut self, clock: ClockPair, anchor: Option<BootAnchor>) -> Result<(), StoreError>;

    /// Makes everything durable and releases the store for another owner; returns the final progress. Later calls fail
    /// with [`ErrorKind::Closed`].
    ///
    /// # Errors
    /// See [`Store::append`]; the store is then released as after a crash.
    fn close(&mut self, clock: ClockPair) -> Result<Progress, StoreError>;

    /// Figures for people: bytes on disk, syncs, and so on. Names are metric names without prefix. Names of counters
    /// end with `_total`, and a word behind a dot is a reason: `fences_total.gap`.
    /// In a family that ends with `_bucket_total` it is the upper edge of a histogram's column: `waits_bucket_total.0.5`.
    fn figures(&self) -> Vec<(&'static str, u64)>;
}

impl<S: Store + ?Sized> Store for Box<S> {
    pass_on!(*: recovered append sync sync_here progress room room_error terms find_many ask arrived);
    pass_on!(*: idle close figures);
}

/// Properties of an open store ([`Store::terms`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreTerms {
    /// The level that [`Progress::durable`] stands for according to the options; [`Progress::level`] is the level that
    /// was reached.
    pub level: Level,
    /// The largest body that it accepts, in bytes. A larger one is refused before it is accepted, whatever the policy
    /// allows.
    pub body_bytes: usize,
    /// The largest number of records of a group. A larger group would delay other requests to the same server too long.
    pub group_records: usize,
    /// The agreed size of a group, in encoded bytes of its records. A larger group may fail because the store is full.
    pub group_bytes: usize,
}

impl StoreTerms {
    /// The usual bounds.
    pub fn of(level: Level) -> Self {
        let (body_bytes, group_records) = (usize::MAX, usize::MAX);
        StoreTerms { level, body_bytes, group_records, group_bytes: AGREED_GROUP_BYTES }
    }
}

/// Work that a store does while its owner goes on ([`Store::ask`]). No two open requests of one kind have the same ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreRequest {
    /// Reads the data of a look-up from a slow medium into memory. Its ticket arrives when that has ended, well or not.
    /// The look-up itself is made later, so that it reflects every group appended in between (obligation 3); the data
    /// may have left memory by then.
    Fetch(u64, Lookups),
    /// Loads a page of messages.
    Load(Load),
    /// A page with this ticket, which could not be read, is no longer wanted. The store may still return it.
    Forget(u64),
    /// Reads the events of the durable records behind a position. A store keeps the events of its newest records for as
    /// long as it can, or none ([`EventPage::nothing_kept`]): [`EventPage::from`] says where the page begins if it does
    /// not have all that was asked for.
    Events(EventRequest),
}

/// The result of a [`StoreRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreArrival {
    /// The ticket of a look-up that was fetched.
    Fetched(u64),
    /// A page of messages.
    Loaded(Loaded),
    /// A page of events.
    Events(EventPage),
}

impl StoreArrival {
    /// The page of messages, if it is one.
    pub fn page(self) -> Option<Loaded> {
        match self {
            StoreArrival::Loaded(page) => Some(page),
            StoreArrival::Fetched(_) | StoreArrival::Events(_) => None,
        }
    }
}

/// State that a store gives its owner when it is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The epoch of this owner.
    pub epoch: Epoch,
    /// Lease tokens of this epoch continue from here. 0 where epochs never repeat; a store whose epoch may repeat,
    /// because its data was restored, gives a number that no other restore gives, so that no token repeats.
    pub tokens: u64,
    /// The position of the next record.
    pub next_lsn: Lsn,
    /// A lower bound of the next message's id. Every id that was ever given is smaller.
    pub next_id: u64,
    /// The clocks as recorded last; `None` for a new store. A store that knows better than the wall clock how long ago
    /// that was may adjust the wall clock to this owner's.
    pub clock: Option<ClockPair>,
    /// The reading of this owner's clocks to which the wall clock was adjusted: since then elapsed time counts.
    pub as_of: Option<ClockSample>,
    /// The anchor of the last owner, if the store keeps anchors.
    pub anchor: Option<BootAnchor>,
    /// Due times of the waiting messages, all queues together.
    pub due: DueCounts,
    /// Queues that have messages, settings, a pause or remembered answers, by name.
    pub queues: Vec<QueueRow>,
}

/// A queue as a store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRow {
    /// The name of the queue.
    pub name: QueueName,
    /// The configured settings.
    pub settings: QueueSettings,
    /// Whether it grants messages.
    pub pause: Pause,
    /// The totals of the queue.
    pub totals: Totals,
    /// The counts of the queue.
    pub tally: Tally,
    /// The log of its remembered answers.
    pub answers: AnswerLog,
}

impl QueueRow {
    /// Whether nothing but remembered answers is left of the queue.
    pub fn is_over(&self) -> bool {
        let is_used = self.tally.count() > 0 || self.settings != QueueSettings::default();
        !is_used && self.pause == Pause::Running
    }
}

/// How far records are written and durable, and the durability level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Handed to the operating system: survives kill -9.
    pub written: Lsn,
    /// Durable at `level`.
    pub durable: Lsn,
    /// The common level of all groups that became durable since the last call ([`Level::and`]); if there is none, that
    /// of the last group. It is [`StoreTerms::level`] where a store always reaches what it promises.
    pub level: Level,
}

/// The kinds of records that a store accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Capacity {
    /// The store accepts anything.
    #[default]
    Enough,
    /// The store's background work is behind: it accepts no new message for the moment, but all other records.
    Busy,
    /// The store accepts records that remove, move or grant messages, but no new message.
    SettleOnly,
    /// The store accepts removals alone: there is no room, and the data that waits to be written has reached its bound.
    RemoveOnly,
}

/// The durability of a change, as replies report it.
///
/// | level | survives the end of the process | a power failure | the loss of the machine |
/// |---|---|---|---|
/// | `memory` | no | no | no |
/// | `buffered` | yes | but for what came last | no |
/// | `fsync` | yes | yes | no |
/// | `best_effort_replicated` | yes | as `buffered` | mostly |
/// | `quorum` | yes | yes | yes |
///
/// So `fsync` and `best_effort_replicated` are not in an order: see [`Level::and`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Level {
    /// In memory only.
    #[default]
    Memory,
    /// Handed to the operating system; synced within 50 ms.
    Buffered,
    /// `fdatasync` has returned.
    Fsync,
    /// Kept on disk by a server that has replicas: its failover may lose what was acknowledged.
    BestEffortReplicated,
    /// On a majority of machines.
    Quorum,
}

impl Level {
    /// The name in JSON and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Memory => "memory",
            Level::Buffered => "buffered",
            Level::Fsync => "fsync",
            Level::Quorum => "quorum",
            Level::BestEffortReplicated => "best_effort_replicated",
        }
    }

    /// The guarantees that both levels have in common: the level of two changes that one answer reports.
    #[must_use]
    pub fn and(self, other: Level) -> Level {
        match (self, other) {
            (Level::Memory, _) | (_, Level::Memory) => Level::Memory,
            (Level::Buffered, _) | (_, Level::Buffered) => Level::Buffered,
            (Level::Quorum, other) => other,
            (this, Level::Quorum) => this,
            (Level::Fsync, Level::Fsync) => Level::Fsync,
            (Level::BestEffortReplicated, Level::BestEffortReplicated) => Level::BestEffortReplicated,
            // `Fsync` covers a power failure, the other the loss of a machine: both survive the end of a process.
            (Level::Fsync, Level::BestEffortReplicated) | (Level::BestEffortReplicated, Level::Fsync) => {
                Level::Buffered
            }
        }
    }
}

/// A look-up of ids, keys and remembered answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookups {
    /// Messages wanted by id.
    pub ids: Vec<MessageId>,
    /// Messages wanted by key.
    pub keys: Vec<(QueueName, Key)>,
    /// Answers wanted by `dedupe_id`.
    pub answers: Vec<(QueueName, Box<str>)>,
    /// Largest weight of the messages to find, in bytes. A store that would find more makes only the first look-ups of
    /// each list, and returns in [`Found::left`] how many it has not made. It makes the first [`FOUND_AHEAD`] of each
    /// list whatever they weigh, so that there is progress.
    pub bytes: usize,
    /// Whether it is made only if all that it needs is in memory. A store without a slow medium makes it in any case.
    pub at_hand: bool,
}

/// Number of look-ups of a list that a store may make together whatever they weigh.
pub const FOUND_AHEAD: usize = 16;

impl Default for Lookups {
    /// No look-ups, without a bound.
    fn default() -> Self {
        Lookups { ids: Vec::new(), keys: Vec::new(), answers: Vec::new(), bytes: usize::MAX, at_hand: false }
    }
}

impl Lookups {
    /// Whether there is nothing to look up.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.keys.is_empty() && self.answers.is_empty()
    }
}

/// Whether a look-up could be made without waiting for a slow medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtHand {
    /// The look-up was made.
    Yes,
    /// The look-up was not made: something must be read first.
    No,
}

/// The result of a look-up. A message that is absent is not in the store.
///
/// For a key: the message that holds it, leased ones that have lost it to a newer one, and the newest of the dead ones
/// that had it, at most [`DEAD_FOUND`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Unsettled messages, in no order; each at most once.
    pub rows: Vec<Row>,
    /// Answers. Expired ones may be among them.
    pub answers: Vec<DedupeRow>,
    /// Look-ups that were not made, so that their result is unknown.
    pub left: Left,
}

/// Number of look-ups at the end of each list that were not made because the messages found have reached the bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// The number of look-ups of [`Lookups::ids`].
    pub ids: usize,
    /// The number of look-ups of [`Lookups::keys`].
    pub keys: usize,
}

impl Found {
    /// No result.
    pub const NOTHING: &'static Found =
        &Found { rows: Vec::new(), answers: Vec::new(), left: Left { ids: 0, keys: 0 } };
}

/// The sequences in which messages can be loaded. Each unsettled message is in exactly one of the first four, and
/// in one of the last two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sequence {
    /// Waiting, due at an instant; in order of (wall ms, id).
    At,
    /// Waiting, due after a delay; in order of (engine ms, id).
    After,
    /// Leased; in order of (deadline in engine ms, id).
    Leased,
    /// Dead; in order of (wall ms of death, id).
    Dead,
    /// Due at an instant, in any stage; in order of (wall ms, id).
    AllAt,
    /// Due after a delay, in any stage; in order of (engine ms, id).
    AllAfter,
}

impl Sequence {
    /// All sequences.
    pub const ALL: [Sequence; 6] = [
        Sequence::At,
        Sequence::After,
        Sequence::Leased,
        Sequence::Dead,
        Sequence::AllAt,
        Sequence::AllAfter,
    ];
}

/// The queues to load from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// All queues.
    All,
    /// A single queue.
    One(QueueName),
    /// All except these, which are sorted. A store does not read what it can skip.
    AllBut(Arc<[QueueName]>),
}

/// A position in a sequence: everything up to and including it has been seen.
pub type Cursor = (u64, MessageId);

/// A page to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Identifies the page; chosen by the caller.
    pub ticket: u64,
    /// The sequence.
    pub sequence: Sequence,
    /// The queues.
    pub which: Which,
    /// The page starts behind this position; `None`: at the start.
    pub after: Option<Cursor>,
    /// The last time of the page, inclusive.
    pub until: u64,
    /// Largest number of rows.
    pub rows: usize,
    /// The page ends after this many bytes of bodies; each page makes progress all the same.
    pub bytes: usize,
}

/// A page that was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The request.
    pub load: Load,
    /// The state as of this position.
    pub as_of: Lsn,
    /// The rows, in the order of the sequence.
    pub rows: Vec<Row>,
    /// Everything up to here is in the page; at or behind its last row. Always given when there is more.
    pub upto: Option<Cursor>,
    /// Whether there are rows behind `upto`.
    pub more: More,
}

/// A request for the events behind a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRequest {
    /// Identifies the page; chosen by the caller.
    pub ticket: u64,
    /// The page starts behind this position; `None`: behind the last durable record, so that it has no events and says
    /// where those to come begin.
    pub after: Option<Lsn>,
    /// Largest number of events.
    pub events: usize,
    /// The page ends after about this many bytes of records that were read for it.
    pub bytes: usize,
}

/// Events in the order of their records, without a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EventPage {
    /// The ticket of the request.
    pub ticket: u64,
    /// The page has all events behind this position. Another one than was asked for: what is between was not kept, or
    /// the position asked for is not one of this store.
    pub from: Lsn,
    /// The page has all events up to this position, which is durable.
    pub upto: Lsn,
    /// Whether there are durable records behind `upto`.
    pub more: More,
    /// The events.
    pub events: Vec<MessageEvent>,
}

impl EventPage {
    /// The page of a store that keeps no events: there is none before `durable`.
    pub fn nothing_kept(ticket: u64, durable: Lsn) -> Self {
        EventPage { ticket, from: durable, upto: durable, more: More::No, events: Vec::new() }
    }

    /// Memory that its events need, in bytes.
    pub fn weight(&self) -> usize {
        self.events.iter().map(MessageEvent::weight).sum()
    }
}

/// Whether a page was the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum More {
    /// The store has more rows up to `until`.
    Yes,
    /// The page was the last.
    No,
}

/// The kind of failure of a store, which says how to react.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ErrorKind {
    /// Another owner has the shard: stop, and do not write again.
    Fenced,
    /// The store is unreachable or failed to write: open it again; the outcome of calls in flight is unknown.
    Unavailable,
    /// The store has no room: free some, then open it again.
    Full,
    /// The data is damaged or of an unknown format: an operator must act.
    Corrupt,
    /// The store was closed.
    Closed,
}

/// An error of a store. Clones share the cause, so that every waiting reply can have one.
#[derive(Clone)]
pub struct StoreError {
    kind: ErrorKind,
    detail: Arc<str>,
    nothing_from: Option<Lsn>,
    /// Boxed: errors travel in results, and few have it.
    reached: Option<Box<Progress>>,
    page: Option<u64>,
}

impl StoreError {
    /// An error with a sentence for people, which names file and offset where there are any.
    pub fn new(kind: ErrorKind, detail: impl fmt::Display) -> Self {
        StoreError { kind, detail: detail.to_string().into(), nothing_from: None, reached: None, page: None }
    }

    /// This error, for the page with this ticket ([`Load::ticket`]).
    #[must_use]
    pub fn of_page(self, ticket: u64) -> Self {
        StoreError { page: Some(ticket), ..self }
    }

    /// The ticket of the page that could not be read; `None`: the error concerns no page, or the store does not say
    /// which.
    pub fn page(&self) -> Option<u64> {
        self.page
    }

    /// This error with the information that the store has refused a whole group, so that no record from this position
    /// on was applied or will be.
    #[must_use]
    pub fn with_nothing_from(self, first: Lsn) -> Self {
        StoreError { nothing_from: Some(first), ..self }
    }

    /// The first position from which on certainly nothing was applied; `None`: the outcome is unknown.
    pub fn nothing_from(&self) -> Option<Lsn> {
        self.nothing_from
    }

    /// This error of a store that knows what was durable when it occurred.
    #[must_use]
    pub fn with_reached(self, reached: Progress) -> Self {
        StoreError { reached: Some(Box::new(reached)), ..self }
    }

    /// The progress at the time of the error; `None`: it is unknown.
    pub fn reached(&self) -> Option<Progress> {
        self.reached.as_deref().copied()
    }

    /// The kind, which says what to do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.detail)
    }
}

impl std::error::Error for StoreError {}

/// Called by a store's own threads when progress was made or a page was loaded.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

#[cfg(test)]
mod tests {
    use super::Level::{self, BestEffortReplicated, Buffered, Fsync, Memory, Quorum};

    /// What is lost at most: at the end of the process, at a power failure, with the machine.
    fn survives(level: Level) -> [bool; 3] {
        match level {
            Memory => [false, false, false],
            Buffered => [true, false, false],
            Fsync => [true, true, false],
            BestEffortReplicated => [true, false, true],
            Quorum => [true, true, true],
        }
    }

    /// Story: levels were ordered, so a synced change and a replicated one together were said to be synced, and a power
    /// failure of the master lost the second.
    #[test]
    fn combined_levels_promise_only_common_guarantees() {
        let all = [Memory, Buffered, Fsync, BestEffortReplicated, Quorum];
        for (a, b) in all.into_iter().flat_map(|a| all.map(|b| (a, b))) {
            let [of_a, of_b, of_both] = [a, b, a.and(b)].map(survives);
            let both = [0, 1, 2].map(|n| of_a[n] && of_b[n]);
            assert_eq!(of_both, both, "{a:?} and {b:?} are {:?}", a.and(b));
        }
    }
}
