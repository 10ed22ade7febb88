//! The boundary to whatever keeps the records: a store is dumb, ordered and fenced.
//!
//! A [`Store`] belongs to one owner, the driver of its shard, and is called from that one thread. It never decides:
//! which message is due, whose lease counts, what a key means is the engine's business. Bring your own by
//! implementing the trait and running [`conformance::run`] on it.

use std::fmt;
use std::sync::Arc;

use crate::id::{Epoch, Lsn, MessageId};
use crate::message::Row;
use crate::name::{Key, QueueName};
use crate::policy::{AGREED_GROUP_BYTES, QueueSettings};
use crate::record::{BootAnchor, ClockPair, DedupeRow, Group, Pause, Totals};
use crate::tally::{DueCounts, Tally};

pub mod conformance;
mod coordinator;
mod ledger;
mod memory;
mod table;

/// The example of `docs/stores.md` is one of ours.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/stores.md")]
struct OwnStore;

pub use coordinator::{Candidate, Coordinator, Joined, MAX_SHARDS, Node, Owner, PLACEMENT, Secrets};
pub use ledger::{ALL_COLUMNS, Ledger, Remembered};
pub use memory::{MemoryDisk, MemoryStore};
pub use table::{DEAD_FOUND, Table, place_in, places_of};

/// Keeps the records of one shard.
///
/// # Obligations
///
/// Each is checked by [`conformance`], under its number.
///
/// 1. **Atomic and ordered.** A group is applied as a whole or not at all; groups keep their order; after a reopen the
///    groups that are there form a prefix of those appended, without a hole.
/// 2. **Durable when it says so.** A group at or below [`Progress::durable`] survives whatever [`Store::level`] claims.
/// 3. **Reads see appends.** [`Store::find_many`] reflects every group appended before, durable or not.
/// 4. **Loads are snapshots.** A [`Loaded`] shows the state as of one LSN, in order of (due, id) within its sequence,
///    without a gap between pages. What is appended after the request may show in it, or not.
/// 5. **Fenced.** Each open has an epoch above all earlier ones; an older owner's append is refused with
///    [`ErrorKind::Fenced`] or can no longer happen.
/// 6. **Fail closed.** Damage below the durable watermark, an unknown format and a second owner refuse to open. After a
///    failed append or sync every later call fails until the store is opened again.
/// 7. **Room is known before.** After [`Room::Enough`] the next group of at most [`Store::max_group_bytes`] does not fail for
///    want of room; after [`Room::SettleOnly`] that holds for a group that puts no message, after [`Room::RemoveOnly`] for
///    one that only removes. Each answer is good for one group. What the removals give back becomes room by itself.
pub trait Store: Send {
    /// Takes what the owner needs before anything else: called once, right after opening.
    fn recovered(&mut self) -> Recovered;

    /// Appends a group. On return it is visible to [`Store::find_many`]; it may not be written or durable yet.
    ///
    /// # Errors
    /// After any error the outcome of this group is unknown and the store is poisoned (obligation 6).
    fn append(&mut self, group: &Group) -> Result<(), StoreError>;

    /// Asks that everything appended becomes durable, and does not wait for it. [`Progress`] tells when it has; the
    /// waker given when the store was opened is called. While one sync runs, further asks are joined into the next.
    fn sync(&mut self) -> Result<(), StoreError>;

    /// As [`Store::sync`], by an owner that has nothing else to do meanwhile: a store that can may do it on the spot, which spares
    /// two changes of thread. It may as well only be asked for; [`Progress`] tells.
    ///
    /// # Errors
    /// As [`Store::sync`].
    fn sync_here(&mut self) -> Result<(), StoreError> {
        self.sync()
    }

    /// How far records are written and durable.
    ///
    /// # Errors
    /// The error of a write or sync that failed since, for ever after (obligation 6).
    fn progress(&mut self) -> Result<Progress, StoreError>;

    /// Whether there is room for the next group.
    fn room(&mut self) -> Room;

    /// The largest body that it keeps, in bytes. A larger one is refused before it is accepted, whatever the policy allows.
    fn max_body_bytes(&self) -> usize {
        usize::MAX
    }

    /// Most records of a group. A larger one takes longer than others of the same server should wait.
    fn max_group_records(&self) -> usize {
        usize::MAX
    }

    /// The agreed size of a group: so many encoded bytes of records. A larger one may fail for want of room.
    fn max_group_bytes(&self) -> usize {
        AGREED_GROUP_BYTES
    }

    /// Finds messages by id and by key, in one call for a whole batch; of a batch of large messages only the first ones
    /// ([`Lookups::bytes`]).
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] may concern this look-up alone: as long as [`Store::progress`] succeeds, nothing is poisoned, and
    /// `found` is as it was. After any other error the store is poisoned (obligation 6).
    fn find_many(&mut self, lookups: &Lookups, found: &mut Found) -> Result<(), StoreError>;

    /// Starts to load a page; [`Store::loaded`] gives it once it is there.
    fn load(&mut self, load: Load) -> Result<(), StoreError>;

    /// A page that has been loaded, if any; the waker is called for each.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] may concern this page alone, which [`StoreError::page`] names then: as long as [`Store::progress`] succeeds,
    /// nothing is poisoned, and the store reads the page again by itself after a pause, as of a later position, unless it is told to
    /// [`forget`](Store::forget) it. After any other error the store is poisoned (obligation 6).
    fn loaded(&mut self) -> Option<Result<Loaded, StoreError>>;

    /// A page that could not be read is not wanted any more. The store may still give it.
    fn forget(&mut self, ticket: u64) {
        let _ = ticket;
    }

    /// Tells the store the clocks while nothing is appended, so that it can note them and its durable position when it
    /// likes (the log does after 100 ms of rest).
    fn idle(&mut self, clock: ClockPair) -> Result<(), StoreError>;

    /// Takes the anchor of the owner's boot, which the next owner gets in [`Recovered::anchor`]; told once, before anything is appended.
    /// Engine time and elapsed time run on together, so the store may tell it again with any clock that it notes. By
    /// default it is not kept, and downtime is taken from the wall clock.
    ///
    /// # Errors
    /// As [`Store::append`].
    fn anchor(&mut self, clock: ClockPair, anchor: BootAnchor) -> Result<(), StoreError> {
        let _ = (clock, anchor);
        Ok(())
    }

    /// Makes everything durable and gives the place up; tells how far everything has come. Later calls fail with [`ErrorKind::Closed`].
    fn close(&mut self, clock: ClockPair) -> Result<Progress, StoreError>;

    /// What [`Progress::durable`] means here when all is as the options hope; [`Progress::level`] says what was reached.
    fn level(&self) -> Level;

    /// Figures for people: bytes on disk, syncs, and so on. Names are metric names without prefix. What only grows ends with `_total`,
    /// and a word behind a dot is a reason: `fences_total.gap`.
    fn figures(&self) -> Vec<(&'static str, u64)>;
}

impl<S: Store + ?Sized> Store for Box<S> {
    fn recovered(&mut self) -> Recovered {
        (**self).recovered()
    }
    fn append(&mut self, group: &Group) -> Result<(), StoreError> {
        (**self).append(group)
    }
    fn sync(&mut self) -> Result<(), StoreError> {
        (**self).sync()
    }
    fn sync_here(&mut self) -> Result<(), StoreError> {
        (**self).sync_here()
    }
    fn progress(&mut self) -> Result<Progress, StoreError> {
        (**self).progress()
    }
    fn room(&mut self) -> Room {
        (**self).room()
    }
    fn max_body_bytes(&self) -> usize {
        (**self).max_body_bytes()
    }
    fn max_group_records(&self) -> usize {
        (**self).max_group_records()
    }
    fn max_group_bytes(&self) -> usize {
        (**self).max_group_bytes()
    }
    fn find_many(&mut self, lookups: &Lookups, found: &mut Found) -> Result<(), StoreError> {
        (**self).find_many(lookups, found)
    }
    fn load(&mut self, load: Load) -> Result<(), StoreError> {
        (**self).load(load)
    }
    fn loaded(&mut self) -> Option<Result<Loaded, StoreError>> {
        (**self).loaded()
    }
    fn forget(&mut self, ticket: u64) {
        (**self).forget(ticket)
    }
    fn idle(&mut self, clock: ClockPair) -> Result<(), StoreError> {
        (**self).idle(clock)
    }
    fn anchor(&mut self, clock: ClockPair, anchor: BootAnchor) -> Result<(), StoreError> {
        (**self).anchor(clock, anchor)
    }
    fn close(&mut self, clock: ClockPair) -> Result<Progress, StoreError> {
        (**self).close(clock)
    }
    fn level(&self) -> Level {
        (**self).level()
    }
    fn figures(&self) -> Vec<(&'static str, u64)> {
        (**self).figures()
    }
}

/// What a store hands to its owner when it is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// This reign.
    pub epoch: Epoch,
    /// Lease tokens of this reign count on from here. 0 where an epoch never comes again; a store whose epoch may, because what is
    /// kept was set back, gives a number that grows with time, so that no token comes again.
    pub tokens: u64,
    /// The next record gets this position.
    pub next_lsn: Lsn,
    /// The next message gets this id, or a greater one. None that was ever given is as great.
    pub next_id: u64,
    /// The clocks as noted last; `None` for a new store. A store that knows how long ago that was, better than a wall clock would say, may give the
    /// wall clock as it would have been then by this owner's.
    pub clock: Option<ClockPair>,
    /// The anchor that an owner has told last, if the store keeps them.
    pub anchor: Option<BootAnchor>,
    /// When the messages that wait are due, all queues together.
    pub due: DueCounts,
    /// Queues that have messages, settings or a pause, by name.
    pub queues: Vec<QueueRow>,
}

/// A queue as a store remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRow {
    /// Its name.
    pub name: QueueName,
    /// What its owner has set.
    pub settings: QueueSettings,
    /// Whether it gives messages out.
    pub pause: Pause,
    /// What it has seen.
    pub totals: Totals,
    /// What it holds.
    pub tally: Tally,
}

/// How far records have come, and how safe they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Handed to the operating system: survives kill -9.
    pub written: Lsn,
    /// Safe as `level` says.
    pub durable: Lsn,
    /// What all groups have reached that became durable since this was told last ([`Level::and`]); the level of the last
    /// group if none has. It is [`Store::level`] where a store always reaches what it promises.
    pub level: Level,
}

/// Whether a store can take more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Room {
    /// Anything.
    #[default]
    Enough,
    /// The store's background work is behind: no new message for the moment. Everything else goes on.
    Busy,
    /// What removes, moves or grants messages, but no new one.
    SettleOnly,
    /// What removes messages, and nothing else: there is no room, and what waits to be written has reached its bound.
    RemoveOnly,
}

/// What "durable" means, as replies say it.
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
    /// On a server that keeps it on disk and that replicas follow: its failover may lose what was acknowledged.
    BestEffortReplicated,
    /// On a majority of machines.
    Quorum,
}

impl Level {
    /// The word for it in JSON and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Memory => "memory",
            Level::Buffered => "buffered",
            Level::Fsync => "fsync",
            Level::Quorum => "quorum",
            Level::BestEffortReplicated => "best_effort_replicated",
        }
    }

    /// What both levels guarantee: the level of two changes that are spoken of together.
    #[must_use]
    pub fn and(self, other: Level) -> Level {
        match (self, other) {
            (Level::Memory, _) | (_, Level::Memory) => Level::Memory,
            (Level::Buffered, _) | (_, Level::Buffered) => Level::Buffered,
            (Level::Quorum, other) => other,
            (this, Level::Quorum) => this,
            (Level::Fsync, Level::Fsync) => Level::Fsync,
            (Level::BestEffortReplicated, Level::BestEffortReplicated) => Level::BestEffortReplicated,
            // One survives a power failure and the other the loss of a machine: both survive the end of a process.
            (Level::Fsync, Level::BestEffortReplicated) | (Level::BestEffortReplicated, Level::Fsync) => {
                Level::Buffered
            }
        }
    }
}

/// What to find: ids, keys and remembered answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookups {
    /// Messages wanted by id.
    pub ids: Vec<MessageId>,
    /// Messages wanted by key.
    pub keys: Vec<(QueueName, Key)>,
    /// Answers wanted by `dedupe_id`.
    pub answers: Vec<(QueueName, Box<str>)>,
    /// Weight of the messages to find, in bytes. A store that would find more makes only the first look-ups of each list,
    /// and says in [`Found::left`] how many it has not made. It makes the first [`FOUND_AHEAD`] of each list whatever
    /// they weigh, so that there is progress.
    pub bytes: usize,
}

/// Look-ups of a list that a store may make together whatever they weigh.
pub const FOUND_AHEAD: usize = 16;

impl Default for Lookups {
    /// Nothing, without a bound.
    fn default() -> Self {
        Lookups { ids: Vec::new(), keys: Vec::new(), answers: Vec::new(), bytes: usize::MAX }
    }
}

impl Lookups {
    /// Nothing to look up.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.keys.is_empty() && self.answers.is_empty()
    }
}

/// What was found. What is absent is not in the store.
///
/// For a key: the message that holds it, and the newest of the dead ones that had it, at most [`DEAD_FOUND`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Unsettled messages, in no order; none may be named twice.
    pub rows: Vec<Row>,
    /// Answers. One that is over may be among them.
    pub answers: Vec<DedupeRow>,
    /// Look-ups that were not made: what they would find is not known.
    pub left: Left,
}

/// How many look-ups at the end of each list were not made because the messages found weigh as much as was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Of [`Lookups::ids`].
    pub ids: usize,
    /// Of [`Lookups::keys`].
    pub keys: usize,
}

impl Found {
    /// Nothing found.
    pub const NOTHING: &'static Found =
        &Found { rows: Vec::new(), answers: Vec::new(), left: Left { ids: 0, keys: 0 } };
}

/// The sequences in which messages can be loaded. Each unsettled message is in exactly one of the first four, and in one of
/// the last two.
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
    /// All of them.
    pub const ALL: [Sequence; 6] = [
        Sequence::At,
        Sequence::After,
        Sequence::Leased,
        Sequence::Dead,
        Sequence::AllAt,
        Sequence::AllAfter,
    ];
}

/// Which queues to load from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// All of them.
    All,
    /// One.
    One(QueueName),
    /// All but these, which are sorted. A store does not read what it can skip.
    AllBut(Arc<[QueueName]>),
}

/// A place in a sequence: everything up to and with it has been seen.
pub type Cursor = (u64, MessageId);

/// A page to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Chosen by the caller, to know the page by.
    pub ticket: u64,
    /// Which sequence.
    pub sequence: Sequence,
    /// Which queues.
    pub which: Which,
    /// Behind this place; `None` from the start.
    pub after: Option<Cursor>,
    /// Up to and with this time.
    pub until: u64,
    /// At most so many rows.
    pub rows: usize,
    /// Stop after so many bytes of bodies; there is progress with each page all the same.
    pub bytes: usize,
}

/// A page that was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// What was asked.
    pub load: Load,
    /// The state as of this position.
    pub as_of: Lsn,
    /// In order.
    pub rows: Vec<Row>,
    /// Everything up to here is in the page; at or behind its last row. Always given when there is more.
    pub upto: Option<Cursor>,
    /// Whether there is more behind `upto`.
    pub more: More,
}

/// Whether a page was the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    /// There is more up to `until`.
    Yes,
    /// That was all.
    No,
}

/// What went wrong in a store, and what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Another owner has the shard: stop, and do not write again.
    Fenced,
    /// The store cannot be reached or failed to write: open it again; what was under way is unknown.
    Unavailable,
    /// No room: free some, then open again.
    Full,
    /// The data is damaged or of an unknown format: a person must look.
    Corrupt,
    /// The store was closed.
    Closed,
}

/// A store's error. Clones share the cause, so that every waiting reply can have one.
#[derive(Clone)]
pub struct StoreError {
    kind: ErrorKind,
    detail: Arc<str>,
    nothing_from: Option<Lsn>,
    page: Option<u64>,
}

impl StoreError {
    /// An error with a sentence for people, which names file and offset where there are any.
    pub fn new(kind: ErrorKind, detail: impl fmt::Display) -> Self {
        StoreError { kind, detail: detail.to_string().into(), nothing_from: None, page: None }
    }

    /// The same of the page with this ticket ([`Load::ticket`]).
    #[must_use]
    pub fn of_page(self, ticket: u64) -> Self {
        StoreError { page: Some(ticket), ..self }
    }

    /// The ticket of the page that could not be read; `None`: the error is about no page, or the store does not say about which.
    pub fn page(&self) -> Option<u64> {
        self.page
    }

    /// The same of a store that knows that no record from this position on was applied, and that none ever will be: a
    /// refusal of a whole group, behind which every later one is refused, too.
    #[must_use]
    pub fn with_nothing_from(self, first: Lsn) -> Self {
        StoreError { nothing_from: Some(first), ..self }
    }

    /// The first position from which on certainly nothing was applied; `None`: what was under way is unknown.
    pub fn nothing_from(&self) -> Option<Lsn> {
        self.nothing_from
    }

    /// What to do about it.
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
    fn two_levels_together_promise_what_both_do_and_no_more() {
        let all = [Memory, Buffered, Fsync, BestEffortReplicated, Quorum];
        for (a, b) in all.into_iter().flat_map(|a| all.map(|b| (a, b))) {
            let [of_a, of_b, of_both] = [a, b, a.and(b)].map(survives);
            let both = [0, 1, 2].map(|n| of_a[n] && of_b[n]);
            assert_eq!(of_both, both, "{a:?} and {b:?} are {:?}", a.and(b));
        }
    }
}
