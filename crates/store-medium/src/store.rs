//! The store of a shard: a log store over a medium, and the lease that its owner holds.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::fmt::Debug;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use duewheel_core::pass_on;
use duewheel_core::record::{BootAnchor, ClockPair, Group, Record};
use duewheel_core::store::{
    AtHand, Capacity, ErrorKind, Found, Level, Lookups, Progress, Recovered, Store, StoreArrival, StoreError,
    StoreTerms, Waker,
};
use duewheel_core::time::{ClockSample, WallMs};
use duewheel_core::{Epoch, Lsn, MessageId, ShardId};
use duewheel_store_log::disk::{Disk, DiskFile, FileAccess};
use duewheel_store_log::{Hands, LogStore, OF_AN_EARLIER_BUILD, Options as LogOptions, WorkerPool};

use crate::disk::{BlockCache, JournalSent, MediumDisk};
use crate::fence::{locked, millis};
use crate::medium::{FileId, Medium, MediumFiles};

/// The clocks are noted at least so often while nothing is written, in ms: where two nodes' wall clocks disagree, a delay is
/// late by as much at most when a shard passes from one to the other.
const CLOCK_MS: u64 = 5_000;

/// Copies the files of a folder to an empty one.
pub type FillFolder<'a> = &'a mut dyn FnMut(&dyn Disk) -> Result<(), StoreError>;

/// The file that lists the others.
const MANIFEST: &str = "MANIFEST";

/// State that the shards of a process share on a medium.
#[derive(Clone, Debug, Default)]
pub struct MediumShared {
    /// Blocks of files that never change.
    pub cache: Arc<BlockCache>,
    /// The durable ends of the journals when this process last had each shard.
    pub ends: Arc<JournalEnds>,
}

/// The result of acquiring a shard.
#[derive(Clone, Copy, Debug)]
pub struct Acquired {
    /// The number of the shard.
    pub shard: u32,
    /// The number of shards, of which each gives every n-th id.
    pub shards: u32,
    /// Ids below this one may not be given; 0 if the journal alone decides.
    pub first_id: u64,
    /// Lease tokens continue from here.
    pub tokens: u64,
    /// An operator has given up what owners up to this epoch have lost.
    pub given_up: Epoch,
    /// The time since an owner last wrote its clocks to the journal, by the clock of the medium, which all nodes share.
    /// `None`: the journal was never written.
    pub noted_ago: Option<Duration>,
    /// The clocks of this node when it had that answer, as [`read_clocks`](crate::read_clocks) reads them.
    pub taken: ClockSample,
}

/// The store of one shard, while this process has the shard.
///
/// An error ends it, as every store; so does a lease that cannot be renewed in time, by a clock that goes on while the
/// process is stopped.
///
/// # Dropping
/// A store that is dropped without [`Store::close`] leaves its shard as `kill -9` would; the medium is notified, so
/// that the same process need not wait for the lease to end.
pub struct MediumStore {
    medium: Arc<dyn Medium>,
    store: LogStore,
    sent: Arc<JournalSent>,
    ends: Arc<JournalEnds>,
    shard: u32,
    recovered: Recovered,
    /// Groups that are not known to be durable, with the writes to the journal before them.
    under_way: VecDeque<(u64, Lsn)>,
    next_id: u64,
    appended: Lsn,
    /// As the last progress has shown.
    durable: Lsn,
    /// The level of what was reported last.
    level: Level,
    /// Whether the medium's clock and this node's disagreed about the time without an owner.
    disagreements: u64,
}

impl MediumStore {
    /// Opens the store of a shard that was acquired. `waker` is called when something became durable or a page was
    /// loaded.
    ///
    /// # Errors
    /// As of a [`LogStore`] that is opened; the medium is notified that this owner has ended.
    pub fn open(
        medium: Arc<dyn Medium>,
        shared: &MediumShared,
        log: LogOptions,
        acquired: &Acquired,
        waker: Waker,
    ) -> Result<Self, StoreError> {
        let disk = MediumDisk::new(Arc::clone(&medium), Arc::clone(&shared.cache), acquired.shard);
        Self::open_on(disk, medium, &shared.ends, log, acquired, waker)
    }

    /// Opens a shard without files, as [`MediumStore::open`] does, after `fill` has copied those of another folder to it.
    ///
    /// # Errors
    /// As of [`MediumStore::open`] and of `fill`; [`ErrorKind::Corrupt`] if the shard has files. The medium is notified
    /// that this owner has ended.
    pub fn restore(
        medium: Arc<dyn Medium>,
        shared: &MediumShared,
        log: LogOptions,
        acquired: &Acquired,
        waker: Waker,
        fill: FillFolder<'_>,
    ) -> Result<Self, StoreError> {
        let disk = MediumDisk::new(Arc::clone(&medium), Arc::clone(&shared.cache), acquired.shard);
        fill_empty(&disk, acquired.shard, fill).inspect_err(|error| {
            // The next owner need not wait for the lease to end. If this fails, it runs out.
            let _ = medium.give_back(None);
            medium.ended(error.clone());
        })?;
        Self::open_on(disk, medium, &shared.ends, log, acquired, waker)
    }

    fn open_on(
        disk: MediumDisk,
        medium: Arc<dyn Medium>,
        ends: &Arc<JournalEnds>,
        log: LogOptions,
        acquired: &Acquired,
        waker: Waker,
    ) -> Result<Self, StoreError> {
        check_manifest(&*medium, acquired).inspect_err(|error| medium.ended(error.clone()))?;
        let sent = disk.sent();
        let log = LogOptions {
            id_step: u64::from(acquired.shards.max(1)),
            clock_ms: log.clock_ms.min(CLOCK_MS),
            // A shard whose server does not answer must not delay the work of shards on other servers.
            pool: WorkerPool::default(),
            ..log
        };
        let opened = LogStore::open_on(Arc::new(disk), log, waker);
        let mut store = opened.inspect_err(|error| medium.ended(error.clone()))?;
        store.skip_ids(acquired.first_id);
        let mut recovered = store.recovered();
        recovered.tokens = acquired.tokens;
        let mut disagreements = 0;
        if let (Some(clock), Some(ago)) = (&mut recovered.clock, acquired.noted_ago) {
            let (wall, agree) = wall_before(acquired, ago, clock.wall, millis(medium.lease()));
            clock.wall = wall;
            recovered.as_of = Some(acquired.taken);
            disagreements = u64::from(!agree);
        }
        let level = medium.level();
        let appended = Lsn(recovered.next_lsn.0.saturating_sub(1));
        note_lost(&*medium, ends, acquired, appended).inspect_err(|error| medium.ended(error.clone()))?;
        Ok(MediumStore {
            medium,
            store,
            sent,
            ends: Arc::clone(ends),
            shard: acquired.shard,
            under_way: VecDeque::new(),
            next_id: recovered.next_id,
            recovered,
            appended,
            durable: appended,
            level,
            disagreements,
        })
    }

    /// The store's background work, for simulations with [`WorkMode::ByHand`](duewheel_store_log::WorkMode).
    pub fn hands(&self) -> Hands {
        self.store.hands()
    }

    fn check(&self) -> Result<(), StoreError> {
        self.medium.check().map_err(|error| self.judged(error))
    }

    /// The error of a store that has ended, with what is known of the groups under way: those that were not sent, or that
    /// the medium has refused, are applied never.
    fn judged(&self, error: StoreError) -> StoreError {
        if error.nothing_from().is_some() || self.medium.check().is_ok() {
            return error;
        }
        let Some(writes) = self.sent.nothing_from() else { return error };
        let Some((_, first)) = self.under_way.iter().find(|(before, _)| *before >= writes) else {
            return error;
        };
        let durable = self.store.synced();
        let level = self.sent.level_before(writes).unwrap_or(self.level);
        error.with_nothing_from(*first).with_reached(Progress { written: durable, durable, level })
    }

    /// Calls the store within, unless the ownership has ended.
    fn checked<T>(
        &mut self,
        call: impl FnOnce(&mut LogStore) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.check()?;
        call(&mut self.store)
    }

    /// Ends the ownership: what this process still answers is nothing.
    fn end(&self) {
        self.medium.ended(StoreError::new(ErrorKind::Closed, "the store is closed"));
    }
}

/// Checks that a shard of which the journal has been written has a manifest, which is there before. Without it all
/// files are lost, and the shard would begin anew as if it had never had one.
fn check_manifest(medium: &dyn Medium, acquired: &Acquired) -> Result<(), StoreError> {
    if acquired.noted_ago.is_none() || medium.find(MANIFEST)?.is_some() {
        return Ok(());
    }
    let what = format_args!(
        "shard {} has had an owner, and has no {MANIFEST}: what it held is lost. Give the store its data back",
        acquired.shard
    );
    Err(StoreError::new(ErrorKind::Corrupt, what))
}

/// Logs and counts what was durable when this process had the shard last, and is no longer there.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if some of it was on a majority of machines: nobody opens the shard until an operator has
/// decided.
fn note_lost(
    medium: &dyn Medium,
    ends: &JournalEnds,
    acquired: &Acquired,
    last: Lsn,
) -> Result<(), StoreError> {
    let shard = acquired.shard;
    let Some(lost) = ends.lost(shard, last) else { return Ok(()) };
    if lost.of_quorum > 0 && lost.epoch > acquired.given_up {
        let why = quorum_lost(format_args!("{} changes", lost.of_quorum));
        medium.refuse(&why)?;
        tracing::error!(shard, changes = lost.changes, of_quorum = lost.of_quorum, "{why}");
        return Err(StoreError::new(ErrorKind::Corrupt, format_args!("shard {shard}: {why}")));
    }
    ends.count(shard, last);
    tracing::warn!(
        shard,
        changes = lost.changes,
        "changes that were durable are lost: the server was restored, or another one took its place; the shard goes on \
         without them"
    );
    Ok(())
}

/// Says that changes are lost although they were durable at [`Level::Quorum`].
pub fn quorum_lost(what: impl fmt::Display) -> String {
    format!(
        "{what} were durable at the level quorum and are lost: the server was restored, or one took its place that was not \
         among the synchronous ones. Give the store its data back, or give up what is lost by `duewheel cluster reset`"
    )
}

/// Copies files to the folder of a shard, which must have none.
fn fill_empty(disk: &MediumDisk, shard: u32, fill: FillFolder<'_>) -> Result<(), StoreError> {
    let names = disk.list("").map_err(|error| {
        StoreError::new(
            ErrorKind::Unavailable,
            format_args!("cannot list the files of shard {shard}: {error}"),
        )
    })?;
    match names.first() {
        None => fill(disk),
        Some(name) => {
            let what = format_args!("shard {shard} has files already: there is {name}");
            Err(StoreError::new(ErrorKind::Corrupt, what))
        }
    }
}

/// The time by this node's wall clock at which the clocks were recorded, and whether the clocks agree. The time since then
/// is the smaller of the difference by the medium's clock and the difference by the wall clocks of the two nodes: either
/// may have been stepped, and nothing must be early. It is rounded so that the result is never too long.
fn wall_before(acquired: &Acquired, ago: Duration, noted: WallMs, tolerance: u64) -> (WallMs, bool) {
    // Rounded up, and one ms more for the delay of a reading.
    let wall = WallMs(acquired.taken.wall_ns.div_ceil(1_000_000).saturating_add(1));
    let ago = millis(ago);
    let by_wall = wall.0.saturating_sub(2).saturating_sub(noted.0);
    let agree = ago.abs_diff(by_wall) <= tolerance;
    if !agree {
        tracing::warn!(
            shard = acquired.shard,
            by_medium_ms = ago,
            by_wall_clock_ms = by_wall,
            "the medium's clock and this node's disagree about how long a shard was without an owner; the shorter time counts"
        );
    }
    (WallMs(wall.0.saturating_sub(ago.min(by_wall))), agree)
}

impl Drop for MediumStore {
    fn drop(&mut self) {
        self.end();
    }
}

impl Store for MediumStore {
    fn recovered(&mut self) -> Recovered {
        std::mem::take(&mut self.recovered)
    }

    fn append(&mut self, group: &Group) -> Result<(), StoreError> {
        self.check().map_err(|error| match error.nothing_from() {
            Some(_) => error,
            None => error.with_nothing_from(group.first),
        })?;
        for record in &group.records {
            if let Record::Put { message, .. } = record {
                self.next_id = self.next_id.max(message.id.0 + 1);
            }
        }
        self.medium.note_id(MessageId(self.next_id));
        self.medium.note_clocks();
        let before = self.sent.written();
        self.under_way.push_back((before, group.first));
        self.store.append(group).map_err(|error| self.judged(error))?;
        self.appended = group.last();
        // The group is sent without a request: if this process ends, no other copy exists.
        self.store.sync().map_err(|error| self.judged(error))
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.check()?;
        self.store.sync().map_err(|error| self.judged(error))
    }

    fn progress(&mut self) -> Result<Progress, StoreError> {
        self.check()?;
        let progress = self.store.progress().map_err(|error| self.judged(error))?;
        // Changes that were durable while the lease was certain may be reported.
        self.check()?;
        let has_advanced = progress.durable > self.durable;
        self.durable = progress.durable;
        while self.under_way.front().is_some_and(|(_, first)| *first <= self.durable) {
            self.under_way.pop_front();
        }
        let before = self.under_way.front().map_or(u64::MAX, |(before, _)| *before);
        if let Some(level) = self.sent.level_before(before) {
            self.level = level;
        }
        // Before its first write the owner does not know the level of what it has recovered.
        if has_advanced {
            self.ends.note(self.shard, self.medium.epoch(), self.durable, self.level);
        }
        Ok(Progress { written: progress.durable, level: self.level, ..progress })
    }

    fn room(&mut self) -> Capacity {
        if self.check().is_err() {
            return Capacity::SettleOnly;
        }
        // The store is asked in any case: where room is short, it gives back what removals have made free.
        match self.store.room() {
            Capacity::Enough | Capacity::Busy if self.medium.free_bytes() == 0 => Capacity::SettleOnly,
            room => room,
        }
    }

    fn terms(&self) -> StoreTerms {
        StoreTerms { level: self.medium.level(), ..self.store.terms() }
    }

    fn find_many(&mut self, lookups: &Lookups, found: &mut Found) -> Result<AtHand, StoreError> {
        let at_hand = self.checked(|store| store.find_many(lookups, found));
        // Rows that the next owner has removed since are no damage.
        self.check().and(at_hand)
    }

    fn arrived(&mut self) -> Option<Result<StoreArrival, StoreError>> {
        let arrival = self.store.arrived()?;
        Some(self.check().and(arrival))
    }

    pass_on!(in checked: ask);
    pass_on!(store: room_error);

    /// The next owner on this boot takes the time between the two from the anchor, and one elsewhere from the medium's
    /// clock: the mark that this writes says what that counts from.
    fn idle(&mut self, clock: ClockPair, anchor: Option<BootAnchor>) -> Result<(), StoreError> {
        self.medium.note_clocks();
        self.checked(|store| store.idle(clock, anchor))
    }

    fn close(&mut self, clock: ClockPair) -> Result<Progress, StoreError> {
        self.check()?;
        self.medium.note_clocks();
        let closed = self.store.close(clock);
        let level = self.sent.level_before(u64::MAX).unwrap_or(self.level);
        let given = self.medium.give_back(closed.is_ok().then_some(MessageId(self.next_id)));
        self.end();
        let progress = closed?;
        if progress.durable > self.durable {
            self.ends.note(self.shard, self.medium.epoch(), progress.durable, level);
        }
        // The lease that could not be given back runs out.
        match given {
            Err(error) if error.kind() != ErrorKind::Unavailable => Err(error),
            Ok(()) | Err(_) => Ok(Progress { level, ..progress }),
        }
    }

    fn figures(&self) -> Vec<(&'static str, u64)> {
        let mut figures = self.store.figures();
        figures.push(("lease_left_ms", millis(self.medium.lease_left())));
        figures.push(("unsent_records", self.appended.0.saturating_sub(self.durable.0)));
        figures.push(("clock_disagreements_total", self.disagreements));
        figures.push(("lost_changes_total", self.ends.lost_total(self.shard)));
        figures.extend(self.medium.figures());
        figures
    }
}

impl fmt::Debug for MediumStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MediumStore").field("medium", &self.medium).finish_non_exhaustive()
    }
}

/// The error of a store that this build does not serve, because the marker of its format is not `current`. `of` names
/// the thing with that marker, `earlier` are the markers that builds before 0.1.0 have written.
pub fn refused_format<T: PartialEq + Debug>(
    of: &str,
    stored: T,
    [current, restoring]: [T; 2],
    earlier: &[T],
) -> StoreError {
    let what = if stored == restoring {
        format!("{of}: the restore of a backup to this store has not ended: run `duewheel restore` again")
    } else if earlier.contains(&stored) {
        format!("{of} has format {stored:?}: {OF_AN_EARLIER_BUILD}")
    } else {
        format!("{of} has format {stored:?}; this version knows {current:?}")
    };
    StoreError::new(ErrorKind::Corrupt, what)
}

/// The newest durable change of each shard that this process has owned.
///
/// # Examples
/// ```
/// use duewheel_core::{Epoch, Lsn};
/// use duewheel_core::store::Level;
/// use duewheel_store_medium::JournalEnds;
///
/// let ends = JournalEnds::default();
/// ends.note(3, Epoch(7), Lsn(100), Level::Fsync);
/// assert_eq!(ends.lost(3, Lsn(100)), None);
/// let lost = ends.lost(3, Lsn(90)).expect("ten changes");
/// assert_eq!((lost.changes, lost.of_quorum), (10, 0));
/// ends.count(3, Lsn(90));
/// assert_eq!((ends.lost(3, Lsn(90)), ends.lost_total(3)), (None, 10), "each is counted once");
/// ```
#[derive(Debug, Default)]
pub struct JournalEnds(Mutex<BTreeMap<u32, JournalEnd>>);

#[derive(Clone, Copy, Debug, Default)]
struct JournalEnd {
    durable: Lsn,
    /// The epoch of the owner.
    epoch: Epoch,
    /// The newest change that was durable at [`Level::Quorum`].
    of_quorum: Lsn,
    lost: u64,
}

/// Changes that were durable, and that the medium has no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostChanges {
    /// The number of all lost changes.
    pub changes: u64,
    /// The number of those that were durable at [`Level::Quorum`].
    pub of_quorum: u64,
    /// The epoch of the owner to whom the changes were reported.
    pub epoch: Epoch,
}

impl JournalEnds {
    /// Notes that the changes of a shard are durable up to this one, at this level, for its owner of this epoch.
    pub fn note(&self, shard: u32, epoch: Epoch, durable: Lsn, level: Level) {
        let mut ends = self.ends();
        let end = ends.entry(shard).or_default();
        end.durable = end.durable.max(durable);
        end.epoch = end.epoch.max(epoch);
        if level == Level::Quorum {
            end.of_quorum = end.of_quorum.max(durable);
        }
    }

    /// Durable changes that a shard has lost, if its last change is this one.
    pub fn lost(&self, shard: u32, last: Lsn) -> Option<LostChanges> {
        let end = self.ends().get(&shard).copied()?;
        let beyond = |end: Lsn| end.0.saturating_sub(last.0);
        let (changes, of_quorum) = (beyond(end.durable), beyond(end.of_quorum));
        let lost = LostChanges { changes, of_quorum, epoch: end.epoch };
        (lost.changes > 0).then_some(lost)
    }

    /// Counts what a shard has lost, whose last change is this one. It goes on from there.
    pub fn count(&self, shard: u32, last: Lsn) {
        let Some(lost) = self.lost(shard, last) else { return };
        let mut ends = self.ends();
        let end = ends.entry(shard).or_default();
        end.lost += lost.changes;
        (end.durable, end.of_quorum) = (last, end.of_quorum.min(last));
    }

    /// The number of changes that were found to be lost since this process began.
    pub fn lost_total(&self, shard: u32) -> u64 {
        self.ends().get(&shard).map_or(0, |end| end.lost)
    }

    fn ends(&self) -> MutexGuard<'_, BTreeMap<u32, JournalEnd>> {
        locked(&self.0)
    }
}

// A shard's folder to read, without owning the shard.

/// The files of a shard as a disk that refuses every change: for [`verify_on`](duewheel_store_log::verify_on),
/// [`inspect_on`](duewheel_store_log::inspect_on) and [`salvage_from`](duewheel_store_log::salvage_from).
///
/// While the shard has an owner its files change, and a file may be gone when it is read.
#[derive(Clone, Debug)]
pub struct ReadOnlyFolder(Arc<dyn MediumFiles>);

#[derive(Debug)]
struct ShardFile {
    files: Arc<dyn MediumFiles>,
    id: FileId,
    bytes: u64,
}

impl ReadOnlyFolder {
    /// The folder with these files.
    pub fn new(files: Arc<dyn MediumFiles>) -> Self {
        ReadOnlyFolder(files)
    }
}

fn failed(error: StoreError) -> io::Error {
    io::Error::other(error.to_string())
}

impl Disk for ReadOnlyFolder {
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let folder = if dir.is_empty() { String::new() } else { format!("{dir}/") };
        let names = self.0.list(&folder).map_err(failed)?;
        Ok(names.iter().filter_map(|name| name.strip_prefix(&*folder).map(str::to_owned)).collect())
    }

    fn open(&self, name: &str, _: FileAccess) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.0.find(name).map_err(failed)?.ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(ShardFile { files: Arc::clone(&self.0), id: file.id, bytes: file.bytes }))
    }
}

impl DiskFile for ShardFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        if at.saturating_add(buffer.len() as u64) > self.bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !buffer.is_empty() {
            buffer.copy_from_slice(&self.files.read(self.id, at, buffer.len()).map_err(failed)?);
        }
        Ok(())
    }
}

/// A store that nodes share, to which a backup is restored.
///
/// From [`RestoreTarget::begin_restore`] to [`RestoreTarget::end_restore`] its cluster has a format of its own, which
/// no node knows: a store of which a restore has ended in the middle is served by none. It is restored again from the
/// beginning.
pub trait RestoreTarget {
    /// Makes a cluster with this number of shards, which no node can join yet. What a restore that has not ended has
    /// left is removed.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](duewheel_core::store::ErrorKind::Corrupt) if there is a store already, or a part of one,
    /// [`ErrorKind::Fenced`](duewheel_core::store::ErrorKind::Fenced) while another process restores it,
    /// [`ErrorKind::Unavailable`](duewheel_core::store::ErrorKind::Unavailable) when the server does not answer.
    fn begin_restore(&self, shards: u32) -> Result<(), StoreError>;

    /// Acquires a shard, has its folder filled, and opens its store.
    ///
    /// # Errors
    /// As of [`Coordinator::open`](duewheel_core::store::Coordinator::open) and of `fill`.
    fn restore_shard(
        &self,
        shard: ShardId,
        waker: Waker,
        fill: FillFolder<'_>,
    ) -> Result<MediumStore, StoreError>;

    /// Lets nodes join. The stores of all shards have been filled and closed.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](duewheel_core::store::ErrorKind::Fenced) if another process has begun to restore it since,
    /// [`ErrorKind::Unavailable`](duewheel_core::store::ErrorKind::Unavailable) when the server does not answer: run
    /// the restore again if nodes cannot join.
    fn end_restore(&self) -> Result<(), StoreError>;
}
