//! The store itself: everything pending in memory, every change in the journal.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, JoinHandle};

use duewheel_core::record::{ClockPair, Group};
use duewheel_core::store::{
    ErrorKind, Found, Level, Load, Loaded, Lookups, Progress, Recovered, Room, Store, StoreError, Table,
    Waker,
};

use crate::checkpoint;
use crate::disk::{Access, Disk, Held, Hold, RealDisk};
use crate::fault::failed;
use crate::folder::LOCK;
use crate::journal::reign::{self, Reign};
use crate::journal::segment::Sealed;
use crate::journal::syncer::Syncer;
use crate::journal::writer::JournalWriter;
use crate::journal::{preparer, syncer};
use crate::options::{Options, SyncMode, Workers};
use crate::shared::{Shared, Worked};

/// The embedded log store: one folder, one owner.
///
/// Everything that is pending is answered from memory. Every change is a record in the journal, written by
/// [`Store::append`] in one write per group and made durable by a worker; checkpoints keep the journal short.
///
/// # Errors
/// A write or sync that fails ends the store: every later call gives the same error, and what was under way is unknown
/// until the folder is opened again. No sync is ever tried twice.
///
/// # Dropping
/// A store that is dropped without [`Store::close`] leaves the folder as `kill -9` would: nothing more is written, its
/// threads have ended, and the folder may be opened again.
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
    shared: Arc<Shared>,
    writer: JournalWriter,
    table: Table,
    pages: VecDeque<Loaded>,
    habit: Habit,
    workers: Vec<JoinHandle<()>>,
    /// `None` once the store is closed.
    lock: Option<Box<dyn Held>>,
}

/// What the owner did after its last append.
///
/// An owner that asks for a sync after each append gets it begun before the table has taken the group in, so that the two
/// run side by side. One that does not is not given syncs that it did not ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Habit {
    /// It asked for a sync.
    Synced,
    /// It has appended, and not asked yet.
    Appended,
    /// It appended again without asking in between.
    Gathers,
}

/// Runs the background work of a store step by step, for simulations that open it with [`Workers::ByHand`].
///
/// A hand may outlive its store; it then does nothing.
#[derive(Clone, Debug)]
pub struct Hands(Arc<Shared>);

impl LogStore {
    /// Opens the folder, which is made if it is not there. `waker` is called when something became durable or a page was
    /// loaded.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] if another process has the folder, [`ErrorKind::Corrupt`] if it is damaged below the durable
    /// watermark or of an unknown format (with file and offset), [`ErrorKind::Full`] if there is no room for a segment,
    /// [`ErrorKind::Unavailable`] if the disk says no. After an error nothing that counts has been changed.
    pub fn open(dir: impl AsRef<Path>, options: Options, waker: Waker) -> Result<Self, StoreError> {
        let disk = RealDisk::new(dir.as_ref());
        Self::open_on(Arc::new(disk), options, waker).map_err(|error| {
            StoreError::new(error.kind(), format_args!("{}: {error}", dir.as_ref().display()))
        })
    }

    /// Opens a folder on a disk of the caller's own.
    ///
    /// # Errors
    /// As [`LogStore::open`].
    pub fn open_on(disk: Arc<dyn Disk>, options: Options, waker: Waker) -> Result<Self, StoreError> {
        let options = options.sound();
        disk.make_dir("").map_err(failed("make", ""))?;
        let lock = take_lock(&*disk, Hold::Exclusive)?;
        let Reign { manifest, table, active, journal } = reign::begin(&*disk, &options)?;
        let syncer = Syncer::new(Arc::clone(&active.file), Arc::clone(&active.name), table.applied());
        let shared = Arc::new(Shared::new(disk, options, waker, syncer, manifest, journal));
        shared.live_bytes.store(table.bytes(), Relaxed);
        let writer = JournalWriter::new(Arc::clone(&shared), active, table.applied().next(), table.clock());
        let mut store = LogStore {
            shared,
            writer,
            table,
            pages: VecDeque::new(),
            habit: Habit::Gathers,
            workers: Vec::new(),
            lock: Some(lock),
        };
        if store.shared.options.workers == Workers::Threads {
            store.start_workers()?;
        }
        Ok(store)
    }

    /// Everything it holds; for tests and views.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// What runs the background work when [`Options::workers`] says [`Workers::ByHand`].
    pub fn hands(&self) -> Hands {
        Hands(Arc::clone(&self.shared))
    }

    fn start_workers(&mut self) -> Result<(), StoreError> {
        type Work = fn(&Shared);
        let works: [(&str, Work); 3] = [
            ("duewheel-sync", syncer::run),
            ("duewheel-prep", preparer::run),
            ("duewheel-merge", checkpoint::run),
        ];
        for (name, work) in works {
            let shared = Arc::clone(&self.shared);
            let worker = thread::Builder::new()
                .name(name.into())
                .spawn(move || {
                    let _guard = PoisonOnPanic(&shared, name);
                    work(&shared);
                })
                .map_err(failed("start", name))?;
            self.workers.push(worker);
        }
        Ok(())
    }

    fn check(&self) -> Result<(), StoreError> {
        if self.lock.is_none() {
            return Err(StoreError::new(ErrorKind::Closed, "the store is closed"));
        }
        self.shared.check()
    }

    fn ask(&self) {
        if self.shared.options.sync == SyncMode::Fsync {
            self.shared.syncer.ask();
        }
    }

    /// Lets an error end the store.
    fn or_poison<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &result {
            self.shared.poison(error.clone());
        }
        result
    }

    /// Sends the workers home and gives the folder up.
    fn end(&mut self) {
        self.shared.stop();
        for worker in self.workers.drain(..) {
            let _ = worker.join(); // a panic has poisoned the store
        }
        self.lock = None;
    }
}

impl Drop for LogStore {
    fn drop(&mut self) {
        self.end();
    }
}

impl Store for LogStore {
    fn recovered(&mut self) -> Recovered {
        self.table.recovered(self.shared.epoch)
    }

    fn append(&mut self, group: &Group) -> Result<(), StoreError> {
        self.check()?;
        let appended = self.writer.append(group);
        self.or_poison(appended)?;
        self.habit = match self.habit {
            Habit::Synced => {
                self.ask();
                Habit::Appended
            }
            Habit::Appended | Habit::Gathers => Habit::Gathers,
        };
        self.table.apply(group);
        self.shared.live_bytes.store(self.table.bytes(), Relaxed);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.check()?;
        self.habit = Habit::Synced;
        self.ask();
        Ok(())
    }

    fn progress(&mut self) -> Result<Progress, StoreError> {
        self.check()?;
        let written = self.writer.written();
        let durable = match self.shared.options.sync {
            SyncMode::Fsync => self.shared.syncer.synced(),
            SyncMode::Buffered => written,
        };
        Ok(Progress { written, durable })
    }

    fn room(&mut self) -> Room {
        if self.lock.is_none() { Room::SettleOnly } else { self.writer.room() }
    }

    fn find_many(&mut self, lookups: &Lookups, found: &mut Found) -> Result<(), StoreError> {
        self.check()?;
        self.table.find_many(lookups, found);
        Ok(())
    }

    fn load(&mut self, load: Load) -> Result<(), StoreError> {
        self.check()?;
        let page = self.table.load(load);
        self.pages.push_back(page);
        (self.shared.waker)();
        Ok(())
    }

    fn loaded(&mut self) -> Option<Result<Loaded, StoreError>> {
        self.pages.pop_front().map(Ok)
    }

    fn idle(&mut self, clock: ClockPair) -> Result<(), StoreError> {
        self.check()?;
        self.table.note_clock(clock);
        let idled = self.writer.idle(clock);
        self.or_poison(idled)
    }

    fn close(&mut self, clock: ClockPair) -> Result<(), StoreError> {
        self.check()?;
        let closed = self.writer.close(clock);
        let closed = self.or_poison(closed);
        self.end();
        closed
    }

    fn level(&self) -> Level {
        match self.shared.options.sync {
            SyncMode::Fsync => Level::Fsync,
            SyncMode::Buffered => Level::Buffered,
        }
    }

    fn figures(&self) -> Vec<(&'static str, u64)> {
        let mut figures = self.shared.counters.figures();
        let journal = self.shared.journal();
        let sealed = |of: fn(&Sealed) -> u64| journal.sealed.iter().map(of).sum::<u64>();
        let segments = journal.sealed.len() + 1 + journal.prepared.len();
        figures.extend([
            ("messages", self.table.len() as u64),
            ("message_bytes", self.table.bytes()),
            ("journal_bytes", sealed(|s| s.frames) + self.writer.active_bytes()),
            ("journal_records", sealed(Sealed::records)),
            ("journal_segments", segments as u64),
            ("journal_spare_segments", journal.spares.len() as u64),
            ("run_bytes", journal.run.map_or(0, |run| run.bytes)),
            ("run_messages", journal.run_rows),
            ("epoch", u64::from(self.shared.epoch.0)),
        ]);
        figures
    }
}

impl Hands {
    /// Syncs the journal once, if something was asked for.
    pub fn sync(&self) -> Worked {
        syncer::step(&self.0)
    }

    /// Prepares one journal segment, if one is missing.
    pub fn prepare(&self) -> Worked {
        preparer::step(&self.0)
    }

    /// Makes one checkpoint, if one is due.
    pub fn checkpoint(&self) -> Worked {
        checkpoint::step(&self.0)
    }
}

/// A worker that panics must not leave its owner waiting.
struct PoisonOnPanic<'a>(&'a Shared, &'a str);

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let error = StoreError::new(ErrorKind::Unavailable, format_args!("{} has panicked", self.1));
            // It may be the waker that panics: a second time here would take the process down.
            let _ = catch_unwind(AssertUnwindSafe(|| self.0.poison(error)));
        }
    }
}

/// Takes the folder's lock, or says who has it.
pub(crate) fn take_lock(disk: &dyn Disk, hold: Hold) -> Result<Box<dyn Held>, StoreError> {
    disk.lock(LOCK, hold).map_err(|error| {
        if error.kind() != io::ErrorKind::WouldBlock {
            return failed("lock", LOCK)(error);
        }
        let owner = owner(disk).map_or(String::new(), |pid| format!(" (process {pid})"));
        StoreError::new(ErrorKind::Fenced, format_args!("another process{owner} has this data folder open"))
    })
}

fn owner(disk: &dyn Disk) -> Option<u32> {
    let file = disk.open(LOCK, Access::Read).ok()?;
    let mut text = vec![0; usize::try_from(file.size().ok()?.min(20)).ok()?];
    file.read_at(&mut text, 0).ok()?;
    String::from_utf8(text).ok()?.trim().parse().ok()
}
