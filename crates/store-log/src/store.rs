//! The store itself: every change goes to the journal and to the active memtable, which is cut off from time to time.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Instant;

use duewheel_core::record::{BootAnchor, ClockPair, Group, Record};
use duewheel_core::store::{
    AtHand, Capacity, ErrorKind, Found, Ledger, Level, Load, Lookups, Progress, Recovered, Store,
    StoreArrival, StoreError, StoreRequest, StoreTerms, Waker,
};
use duewheel_core::{EngineMs, Epoch};

use crate::background::{self, Hands};
use crate::backup::Backup;
use crate::disk::{Disk, HeldLock, LockKind, RealDisk};
use crate::fault::failed;
use crate::format::take_lock;
use crate::journal::events::{JournalPart, JournalRequest};
use crate::journal::reign::{self, Reign};
use crate::journal::segment::Sealed;
use crate::journal::syncer::Syncer;
use crate::journal::workers;
use crate::journal::writer::JournalWriter;
use crate::load::{LoadRequest, LoadResult};
use crate::manifest::Manifest;
use crate::mem::Mem;
use crate::merge::Work;
use crate::options::{Options, SyncMode, WorkMode};
use crate::shared::{DiskSpace, Start, StoreShared};
use crate::view::LiveRun;
use crate::{budget, shards};

mod finding;
mod tasks;

/// The embedded log store: one folder, one owner.
///
/// Every change is a record in the journal, written by [`Store::append`] in one write per group and made durable by a
/// worker. The content of the journal is also in memory; half of it at a time is cut off and written to a sorted run,
/// and runs are merged. So the memory of a store depends on its options, plus a few bytes for each message.
///
/// # Errors
/// A write or sync that fails ends the store: every later call returns the same error, and the outcome of calls in
/// flight is unknown until the folder is opened again. No sync is ever retried.
///
/// # Dropping
/// A store that is dropped without [`Store::close`] leaves the folder as `kill -9` would: nothing more is written, its
/// background work has ended, and the folder may be opened again.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use duewheel_core::record::{ClockPair, Group, Pause, Record};
/// use duewheel_core::store::{Recovered, Store};
/// use duewheel_core::QueueName;
/// use duewheel_store_log::{LogStore, Options};
///
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path().join("data");
/// # let options = Options { segment_bytes: 65_536, ..Options::default() };
/// let mut store = LogStore::open(&folder, options.clone(), Arc::new(|| {}))?;
/// let Recovered { next_lsn, .. } = store.recovered();
/// let name = QueueName::new("close-review")?;
/// let paused = Record::Queue { name, settings: Default::default(), pause: Pause::Paused };
/// store.append(&Group { first: next_lsn, clock: ClockPair::default(), records: vec![paused] })?;
/// store.close(ClockPair::default())?;
///
/// let mut store = LogStore::open(&folder, options, Arc::new(|| {}))?;
/// assert_eq!(store.recovered().queues[0].pause, Pause::Paused);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LogStore {
    shared: Arc<StoreShared>,
    writer: JournalWriter,
    /// The records since the last cut.
    active: Mem,
    /// Requested pages, and the memtables that were cut off since; oldest first.
    asked: VecDeque<Vec<Arc<Mem>>>,
    /// Pages that could not be read, to be requested again.
    unread: VecDeque<Load>,
    /// When the last of them failed.
    unread_at: Option<Instant>,
    recovered: Recovered,
    start: StartFacts,
    next_id: u64,
    messages: u64,
    habit: SyncHabit,
    /// The engine time of the last cut.
    cut_at: EngineMs,
    /// Since when nothing was appended, as far as it is known.
    rests_since: Option<EngineMs>,
    /// The thread that syncs the journal.
    syncer: Option<JoinHandle<()>>,
    /// Whether the worker that reads events was started.
    reads_events: bool,
    /// The lock of the folder; `None` once the store is closed.
    lock: Option<Box<dyn HeldLock>>,
}

/// Facts about the folder from when it was opened.
#[derive(Clone, Copy, Debug)]
struct StartFacts {
    /// The number of records that were read from the journal.
    replayed: u64,
    /// Whether the last owner closed the folder.
    was_closed: bool,
}

/// The last steps of the owner.
///
/// An owner that asks for a sync after each append gets it begun before the table has taken the group in, so that the
/// two run side by side. One that does not is not given syncs that it did not ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncHabit {
    /// The owner requested a sync.
    Synced,
    /// The owner requested a sync, and waited for it.
    Waited,
    /// The owner has appended, and requested no sync yet.
    Appended,
    /// The owner appended several times without a request in between.
    Gathers,
}

/// On a full disk a memtable of this many records is cut off if its run fits.
const TOLD: u64 = 500;
/// Largest size of the active memtable during a flush, as a multiple of its budget. (While the flush has no room:
/// once.)
const SLOW: u64 = 4;
/// Longest time, in ms, until removals are flushed on a full disk.
const TELL_MS: u64 = 1_000;
/// Frozen memtables that wait for room are joined up to this number of records.
const JOINED: u64 = 128 * 1024;

impl LogStore {
    /// Opens the folder, which is created if it is missing. `waker` is called when something became durable or a page
    /// was loaded.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] if another process has the folder, [`ErrorKind::Corrupt`] if it is damaged below the
    /// durable watermark or of an unknown format (with file and offset), [`ErrorKind::Full`] if there is no room for a
    /// segment, [`ErrorKind::Unavailable`] if the disk returns an error. After an error no valid data was changed.
    pub fn open(dir: impl AsRef<Path>, options: Options, waker: Waker) -> Result<Self, StoreError> {
        let (dir, disk) = (dir.as_ref(), RealDisk::new(dir.as_ref()));
        let opened = match shards::count(&disk) {
            Ok(None) => Self::open_on(Arc::new(disk), options, waker),
            Ok(Some(count)) => {
                let what = format!("it has {} shards, which are opened together", count.shards);
                Err(StoreError::new(ErrorKind::Corrupt, what))
            }
            Err(error) => Err(error),
        };
        opened.map_err(|error| shards::named(dir, error))
    }

    /// Continues with ids from this one on, if they are not above it already: for a folder whose newest records may have
    /// been lost. Call it before [`Store::recovered`].
    pub fn skip_ids(&mut self, least: u64) {
        self.next_id = self.next_id.max(least);
        self.recovered.next_id = self.recovered.next_id.max(least);
        if self.active.is_empty() {
            let (last, clock) = (self.writer.last(), self.active.clock());
            self.active =
                self.shared.spare_mem().start(last, (self.next_id, self.shared.options.id_step), clock);
        }
    }

    /// The position up to which everything is synced, also after the store has ended.
    pub fn synced(&self) -> duewheel_core::Lsn {
        self.shared.syncer.synced()
    }

    /// The epoch of this owner.
    pub fn epoch(&self) -> Epoch {
        self.shared.epoch
    }

    /// Opens a folder on a disk of the caller's own.
    ///
    /// # Errors
    /// As [`LogStore::open`].
    pub fn open_on(disk: Arc<dyn Disk>, options: Options, waker: Waker) -> Result<Self, StoreError> {
        let options = options.sound();
        disk.make_dir("").map_err(failed("make", ""))?;
        let lock = take_lock(&*disk, LockKind::Exclusive)?;
        let Reign {
            manifest,
            books,
            parts,
            names,
            mem,
            ledger,
            applied,
            anchor,
            active,
            journal,
            was_closed,
        } = reign::begin(&*disk, &options)?;
        let start = StartFacts { replayed: mem.records(), was_closed };
        let syncer = Syncer::new(Arc::clone(&active.file), Arc::clone(&active.name), applied);
        let work =
            Work { ledger: books, names, states: manifest.states.clone(), merging: None, merge_failures: 0 };
        let recovered = recovered(&ledger, &manifest, anchor);
        let shared = Arc::new(StoreShared::new(
            disk,
            options,
            waker,
            Start { syncer, manifest, journal, parts, work },
        ));
        let writer = JournalWriter::new(Arc::clone(&shared), active, applied.next(), ledger.clock(), anchor);
        let mut store = LogStore {
            shared,
            writer,
            active: mem,
            asked: VecDeque::new(),
            unread: VecDeque::new(),
            unread_at: None,
            next_id: recovered.next_id,
            messages: ledger.messages(),
            recovered,
            start,
            habit: SyncHabit::Gathers,
            cut_at: EngineMs(0),
            rests_since: None,
            syncer: None,
            reads_events: false,
            lock: Some(lock),
        };
        drop(ledger);
        store.note_memory();
        store.cut_if_due();
        if store.shared.options.workers == WorkMode::Threads {
            store.start_workers()?;
        }
        Ok(store)
    }

    /// Returns the handle that runs the background work when [`Options::workers`] is [`WorkMode::ByHand`].
    pub fn hands(&self) -> Hands {
        Hands(Arc::clone(&self.shared))
    }

    /// Returns the handle that makes copies of the folder while the store works.
    pub fn backup_handle(&self) -> Backup {
        Backup(Arc::clone(&self.shared))
    }

    fn check(&self) -> Result<(), StoreError> {
        if self.lock.is_none() {
            return Err(StoreError::new(ErrorKind::Closed, "the store is closed"));
        }
        self.shared.check()
    }

    fn ask_for_sync(&self) {
        if self.shared.options.sync == SyncMode::Fsync {
            self.shared.syncer.ask();
        }
    }

    /// Lets what waits for the next journal segment go on.
    fn go_on(&mut self) -> Result<(), StoreError> {
        let gone_on = self.writer.go_on();
        self.or_poison(gone_on)
    }

    /// Ends the store if the result is an error.
    fn or_poison<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &result {
            self.shared.poison(error.clone());
        }
        result
    }

    /// Whether the active memtable has reached its half of the budget.
    fn is_full(&self) -> bool {
        let options = &self.shared.options;
        !self.active.is_empty()
            && (self.active.bytes() >= options.journal_bytes / 2
                || self.active.records() >= options.journal_records / 2)
    }

    /// Whether the active memtable should be cut here.
    fn is_due(&self) -> bool {
        if self.is_full() || self.shared.memory.is_asked() {
            return true;
        }
        if self.active.is_empty() {
            return false;
        }
        let options = &self.shared.options;
        let journal = self.shared.journal();
        let files: u64 = journal.sealed.iter().map(|s| s.entry.bytes).sum();
        match journal.space {
            // A flush must free enough to be worth it, or a full disk would be kept busy for nothing.
            DiskSpace::Short => {
                let most = self.active.extent().most;
                // Records about older messages may empty runs, so enough of them are worth a flush.
                let tells =
                    self.active.records() >= TOLD && most.saturating_mul(2) <= self.shared.free.load(Relaxed);
                tells || self.has_removed() || files.saturating_sub(most) >= options.segment_bytes
            }
            // Segments that crashes have cut short hold little, and take a file each. Those of the last few stay: a flush
            // takes the events in them away from their readers.
            DiskSpace::Enough => {
                let most = self.shared.segment_bytes().saturating_mul(4).min(options.journal_bytes);
                let is_short = |s: &&Sealed| s.frames.saturating_mul(2) < s.entry.bytes;
                let short = journal.sealed.iter().filter(is_short).map(|s| s.entry.bytes - s.frames);
                short.sum::<u64>() > most || self.should_tell()
            }
        }
    }

    /// Reduces the room if the data that waits to be written has reached its bound.
    fn bounded(&self, room: Capacity) -> Capacity {
        let shared = &self.shared;
        let options = &shared.options;
        let view = shared.view();
        if !view.frozen.is_empty() {
            let times = if shared.is_stuck() { 1 } else { SLOW };
            if self.active.bytes() >= options.journal_bytes.saturating_mul(times)
                || self.active.records() >= options.journal_records.saturating_mul(times)
            {
                return Capacity::RemoveOnly;
            }
        }
        if room != Capacity::SettleOnly {
            return room;
        }
        let again =
            view.frozen.iter().map(|mem| mem.extent().again).sum::<u64>() + self.active.extent().again;
        let written_again = again > options.max_group_bytes
            && shared.reserve.to_flush.load(Relaxed) > shared.free.load(Relaxed);
        if written_again || self.writer.is_at_the_end() { Capacity::RemoveOnly } else { room }
    }

    /// Whether a purge should be flushed though there is room: less is free than the size of the runs that it may have
    /// emptied.
    fn should_tell(&self) -> bool {
        let runs = || self.shared.view().parts.iter().map(|part| part.run.entry().bytes).sum::<u64>();
        self.active.has_purges() && self.has_waited() && self.shared.free.load(Relaxed) < runs()
    }

    fn has_waited(&self) -> bool {
        let now = self.active.clock().map_or(EngineMs(0), |clock| clock.engine);
        now.0.saturating_sub(self.cut_at.0) >= TELL_MS
    }

    /// Whether enough was removed since the last cut, or some of it long enough ago, that it should be flushed on a
    /// full disk.
    fn has_removed(&self) -> bool {
        let removals = self.active.removals();
        self.active.has_purges() || removals >= TOLD || (removals > 0 && self.has_waited())
    }

    /// Freezes the active memtable for the background worker, if it is due and the former one is flushed; or if there
    /// is no room for that one, and this one makes it smaller.
    fn cut_if_due(&mut self) {
        // Frozen records must be in the journal: their flush waits until they are durable there.
        if self.active.is_empty() || self.writer.is_turning() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        if shared.view().frozen.is_empty() {
            if self.is_due() {
                self.cut();
            }
            return;
        }
        if !shared.is_stuck() || !self.has_removed() {
            return;
        }
        let Some(hold) = shared.hold_frozen() else { return };
        if !shared.is_stuck() {
            return; // the flush has found room since then
        }
        shared.set_stuck(false); // it is tried again with what comes now
        self.cut();
        self.join_small();
        drop(hold);
        shared.background_bell.ring();
    }

    fn cut(&mut self) {
        let (last, clock) = (self.active.last(), self.active.clock());
        let next = self.shared.spare_mem().start(last, (self.next_id, self.shared.options.id_step), clock);
        let mut frozen = std::mem::replace(&mut self.active, next);
        frozen.settle();
        let frozen = Arc::new(frozen);
        for since in &mut self.asked {
            since.push(Arc::clone(&frozen));
        }
        self.shared.memory.set_active(0); // or others would count it twice for a moment
        self.shared.set_view(|mut view| {
            view.frozen.push(frozen);
            view
        });
        self.shared.memory.has_cut();
        self.cut_at = clock.map_or(EngineMs(0), |clock| clock.engine);
        self.shared.counters.cuts.fetch_add(1, Relaxed);
        self.note_memory();
        self.shared.background_bell.ring();
    }

    /// Joins the last two frozen memtables while they are small, so that there are never many.
    fn join_small(&self) {
        let view = self.shared.view();
        let [.., older, newer] = &view.frozen[..] else { return };
        if older.records() + newer.records() > JOINED {
            return;
        }
        // Two that cannot be joined stay two.
        if let Ok(both) = older.and(newer) {
            self.shared.set_view(|mut view| {
                view.frozen.truncate(view.frozen.len() - 2);
                view.frozen.push(Arc::new(both));
                view
            });
            self.note_memory();
        }
    }

    fn ask_for_page(&mut self, load: Load) {
        let request = LoadRequest::new(load, self.writer.last(), self.shared.view(), &mut self.active);
        self.asked.push_back(Vec::new());
        self.shared.loader.ask(request);
    }

    /// A result that is there.
    fn take_arrival(&mut self) -> Option<Result<StoreArrival, StoreError>> {
        if let Some(page) = self.shared.events.page() {
            return Some(page.map(StoreArrival::Events));
        }
        if let Some(ticket) = self.shared.fetches.done() {
            return Some(Ok(StoreArrival::Fetched(ticket)));
        }
        if self.asked.is_empty() && self.unread.is_empty() {
            return None;
        }
        if let Err(error) = self.check() {
            self.asked.clear();
            self.unread.clear();
            return Some(Err(error));
        }
        let page = self.shared.loader.page()?;
        let since = self.asked.pop_front().unwrap_or_default();
        Some(match page {
            LoadResult::Loaded(page) => {
                let since = since.iter().map(|mem| &**mem).chain([&self.active]);
                Ok(StoreArrival::Loaded(page.loaded(since)))
            }
            LoadResult::Unread(load, error) => {
                let error = error.of_page(load.ticket);
                self.unread.push_back(load);
                self.unread_at = Some(Instant::now());
                Err(error)
            }
            LoadResult::Ended(error) => Err(error),
        })
    }

    /// Requests pages again that could not be read, after a pause. The requests are new, as of now: a waiting request
    /// would keep the memtables of its time.
    fn ask_again(&mut self) {
        // With work by hand, the caller makes the pauses.
        let by_hand = self.shared.options.workers == WorkMode::ByHand;
        let is_time = |at: Instant| by_hand || at.elapsed() >= self.shared.options.retry_after;
        if self.unread_at.is_none_or(is_time) {
            self.unread_at = None;
            for load in std::mem::take(&mut self.unread) {
                self.ask_for_page(load);
            }
        }
    }

    fn note_memory(&self) {
        let frozen: u64 = self.shared.view().frozen.iter().map(|mem| budget::of_table(mem)).sum();
        self.shared.reserve.to_flush.store(budget::of_table(&self.active) + frozen, Relaxed);
        // An empty one cannot be cut off, whatever it keeps for its next records.
        let active = if self.active.is_empty() { 0 } else { self.active.memory_of_records() };
        self.shared.memory.set_active(active);
    }

    /// Adds a written group to the memtable.
    fn take(&mut self, group: &Group) -> Result<(), StoreError> {
        for (record, bytes) in group.records.iter().zip(self.writer.records()) {
            self.active.push(record, bytes)?;
            match record {
                Record::Put { message, was, .. } => {
                    self.next_id = self.next_id.max(message.id.0.saturating_add(1));
                    self.messages += u64::from(was.is_none());
                }
                Record::Removed { .. } => self.messages = self.messages.saturating_sub(1),
                Record::Purged { purged, .. } => self.messages = self.messages.saturating_sub(*purged),
                _ => {} // the number of messages stays
            }
        }
        self.active.note_clock(group.clock);
        self.writer.shrink();
        Ok(())
    }
}

impl Drop for LogStore {
    fn drop(&mut self) {
        self.end();
    }
}

impl Store for LogStore {
    fn recovered(&mut self) -> Recovered {
        std::mem::take(&mut self.recovered)
    }

    fn append(&mut self, group: &Group) -> Result<(), StoreError> {
        // A store that has ended takes nothing any more.
        self.check().map_err(|error| error.with_nothing_from(group.first))?;
        let appended = self.writer.append(group);
        self.or_poison(appended)?;
        self.rests_since = None;
        self.habit = match self.habit {
            SyncHabit::Synced => {
                self.ask_for_sync();
                SyncHabit::Appended
            }
            SyncHabit::Waited => SyncHabit::Appended,
            SyncHabit::Appended | SyncHabit::Gathers => SyncHabit::Gathers,
        };
        let taken = self.take(group);
        self.or_poison(taken)?;
        self.note_memory();
        self.cut_if_due();
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.check()?;
        self.go_on()?;
        self.habit = SyncHabit::Synced;
        self.ask_for_sync();
        Ok(())
    }

    fn sync_here(&mut self) -> Result<(), StoreError> {
        self.check()?;
        self.habit = SyncHabit::Waited;
        if self.shared.options.sync == SyncMode::Fsync {
            workers::sync_here(&self.shared);
            if self.writer.is_turning() {
                self.go_on()?;
                workers::sync_here(&self.shared);
            }
        }
        self.check()
    }

    fn progress(&mut self) -> Result<Progress, StoreError> {
        self.check()?;
        self.go_on()?;
        if self.shared.memory.is_asked() {
            self.cut_if_due(); // another store needs the memory, and perhaps nothing is appended here
        }
        let written = self.writer.written();
        let durable = match self.shared.options.sync {
            SyncMode::Fsync => self.shared.syncer.synced(),
            SyncMode::Buffered | SyncMode::Memory => written,
        };
        Ok(Progress { written, durable, level: self.terms().level })
    }

    fn room(&mut self) -> Capacity {
        if self.check().is_err() || self.go_on().is_err() {
            // A store that has ended has not too little room: the next call says why it ended.
            return Capacity::Enough;
        }
        self.cut_if_due();
        self.note_memory();
        let shared = &*Arc::clone(&self.shared);
        let room = self.writer.room();
        if self.check().is_err() {
            return Capacity::Enough; // the store has ended since then
        }
        match room {
            Capacity::Enough
                if shared.free.load(Relaxed) < shared.reserve.wanted(shared.options.max_group_bytes) =>
            {
                Capacity::SettleOnly
            }
            Capacity::Enough if self.is_full() && !shared.view().frozen.is_empty() => {
                self.bounded(Capacity::Busy)
            }
            Capacity::Enough if shared.memory.is_short() => self.bounded(Capacity::Busy),
            Capacity::Enough => self.bounded(Capacity::Enough),
            Capacity::Busy => self.bounded(Capacity::Busy),
            Capacity::SettleOnly | Capacity::RemoveOnly => self.bounded(Capacity::SettleOnly),
        }
    }

    fn room_error(&self) -> Option<StoreError> {
        self.shared.room_error()
    }

    fn terms(&self) -> StoreTerms {
        let level = match self.shared.options.sync {
            SyncMode::Fsync => Level::Fsync,
            SyncMode::Buffered => Level::Buffered,
            SyncMode::Memory => Level::Memory,
        };
        let group_bytes = usize::try_from(self.shared.options.max_group_bytes).unwrap_or(usize::MAX);
        StoreTerms { group_bytes, ..StoreTerms::of(level) }
    }

    fn find_many(&mut self, lookups: &Lookups, found: &mut Found) -> Result<AtHand, StoreError> {
        self.find(lookups, found)
    }

    fn ask(&mut self, request: StoreRequest) -> Result<(), StoreError> {
        self.check()?;
        match request {
            StoreRequest::Fetch(ticket, lookups) => self.begin_fetch(ticket, lookups),
            StoreRequest::Load(load) => self.ask_for_page(load),
            StoreRequest::Forget(ticket) => self.unread.retain(|load| load.ticket != ticket),
            StoreRequest::Events(asked) => {
                let durable = self.progress()?.durable;
                let mut parts: Vec<JournalPart> =
                    self.shared.journal().sealed.iter().map(JournalPart::from).collect();
                parts.push(self.writer.active_part(durable));
                let request = JournalRequest::new(asked, parts, durable);
                if let Some(page) = request.page_at_hand() {
                    self.shared.events.done(Ok(page));
                    (self.shared.waker)();
                    return Ok(());
                }
                self.start_event_reader()?;
                self.shared.events.ask(request);
            }
        }
        if self.shared.options.workers == WorkMode::ByHand {
            (self.shared.waker)();
        }
        Ok(())
    }

    fn arrived(&mut self) -> Option<Result<StoreArrival, StoreError>> {
        let mut arrival = self.take_arrival();
        if arrival.is_none() && self.shared.options.workers == WorkMode::ByHand {
            background::serve_request(&self.shared);
            arrival = self.take_arrival();
        }
        if arrival.is_none() {
            // Only here, so that an owner that takes all pages that there are comes to an end.
            self.ask_again();
        }
        arrival
    }

    fn idle(&mut self, clock: ClockPair, anchor: Option<BootAnchor>) -> Result<(), StoreError> {
        self.check()?;
        if let Some(anchor) = anchor {
            let anchored = self.writer.anchor(clock, anchor);
            return self.or_poison(anchored);
        }
        self.active.note_clock(clock);
        self.cut_if_due();
        let idled = self.writer.idle(clock).and_then(|()| self.rest(clock));
        self.or_poison(idled)
    }

    fn close(&mut self, clock: ClockPair) -> Result<Progress, StoreError> {
        self.check()?;
        let closed = self.pack(clock).and_then(|()| self.writer.close(clock));
        let closed = self.or_poison(closed);
        let written = self.writer.written();
        self.end();
        closed.map(|()| Progress { written, durable: written, level: self.terms().level })
    }

    fn figures(&self) -> Vec<(&'static str, u64)> {
        let mut figures = self.shared.counters.figures();
        let journal = self.shared.journal();
        let sealed = |of: fn(&Sealed) -> u64| journal.sealed.iter().map(of).sum::<u64>();
        let segments = journal.sealed.len() + 1 + journal.prepared.len();
        let (in_sealed, spares) = (sealed(|s| s.frames), journal.spares.len());
        drop(journal);
        let view = self.shared.view();
        let of_frozen = |of: fn(&Mem) -> u64| view.frozen.iter().map(|mem| of(mem)).sum::<u64>();
        let of_parts = |of: fn(&LiveRun) -> u64| view.parts.iter().map(of).sum::<u64>();
        figures.extend([
            ("messages", self.messages),
            ("memory_bytes", self.active.memory() + of_frozen(Mem::memory)),
            ("memory_records", self.active.records() + of_frozen(Mem::records)),
            ("journal_bytes", in_sealed + self.writer.active_bytes()),
            ("journal_segments", segments as u64),
            ("journal_spare_segments", spares as u64),
            ("runs", view.parts.len() as u64),
            ("run_bytes", of_parts(|part| part.run.entry().bytes)),
            ("run_messages", of_parts(|part| part.run.rows())),
            ("run_messages_live", of_parts(LiveRun::messages)),
            ("disk_reserve_bytes", self.shared.reserve.wanted(self.shared.options.max_group_bytes)),
            ("epoch", u64::from(self.shared.epoch.0)),
            ("start_records", self.start.replayed),
            ("start_complete", u64::from(self.start.was_closed)),
        ]);
        figures
    }
}

fn recovered(ledger: &Ledger, manifest: &Manifest, anchor: Option<BootAnchor>) -> Recovered {
    Recovered {
        epoch: manifest.epoch,
        // Each restore sets the ids further, so two restores of one copy give different tokens also where their epochs meet.
        tokens: ledger.next_id().0.saturating_sub(1),
        next_lsn: ledger.applied().next(),
        next_id: ledger.next_id().0,
        clock: ledger.clock(),
        as_of: None,
        anchor,
        due: ledger.due().clone(),
        queues: ledger.rows().collect(),
    }
}
