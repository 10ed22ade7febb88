//! The state that the driver's side of the store shares with its workers.
//!
//! Locks, in the order in which they are taken: `work`, `preparing`, `manifest`, `pins`, `journal`, `view`, then the
//! syncer's own. The driver takes only the last three (except for a group larger than a segment), and no thread holds
//! those during a call to the disk.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use duewheel_core::Epoch;
use duewheel_core::mutant::{self, Mutant};
use duewheel_core::store::{ErrorKind, StoreError, Waker};

use crate::budget::{DiskReserve, MemoryShare};
use crate::disk::Disk;
use crate::figures::Counters;
use crate::format::FileNo;
use crate::journal::events::EventReader;
use crate::journal::segment::{Prepared, Sealed};
use crate::journal::syncer::Syncer;
use crate::load::{Fetches, Loader};
use crate::manifest::{Manifest, NotReplaced, SegmentEntry};
use crate::mem::Mem;
use crate::merge::Work;
use crate::options::Options;
use crate::pool::TaskBell;
use crate::readers::Readers;
use crate::run::filter::NameHasher;
use crate::view::{LiveRun, StoreView};

pub(crate) use crate::fault::lock;

pub(crate) struct StoreShared {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) options: Options,
    pub(crate) epoch: Epoch,
    /// The hashes of keys and dedupe ids in this folder.
    pub(crate) hasher: NameHasher,
    pub(crate) waker: Waker,
    pub(crate) syncer: Syncer,
    pub(crate) counters: Counters,
    pub(crate) reserve: DiskReserve,
    /// The store's part of the memory for records.
    pub(crate) memory: Arc<MemoryShare>,
    /// Free bytes of the disk when the preparer checked last.
    pub(crate) free: AtomicU64,
    /// Whether the last flush found no room.
    stuck: AtomicBool,
    /// Why the last flush failed, if the reason was an error and not a full disk.
    flush_failure: Mutex<Option<StoreError>>,
    /// Whether a worker uses the frozen memtables: writes them to a run, or adds to them.
    frozen_held: AtomicBool,
    pub(crate) preparer_bell: TaskBell,
    pub(crate) background_bell: TaskBell,
    pub(crate) loader: Loader,
    /// The threads that read blocks, of this store or of several.
    pub(crate) readers: Arc<Readers>,
    pub(crate) fetches: Fetches,
    pub(crate) events: EventReader,
    /// Everything behind the active memtable.
    view: Mutex<Arc<StoreView>>,
    pub(crate) work: Mutex<Work>,
    /// Memory for the next memtable.
    spare: Mutex<Option<Mem>>,
    pins: Mutex<Pins>,
    /// Held while a segment is made, so that segments are listed in the order of their numbers.
    pub(crate) preparing: Mutex<()>,
    next_file: AtomicU64,
    /// Size of the segments that are prepared from now on.
    segment_bytes: AtomicU64,
    /// Held while the manifest is replaced.
    manifest: Mutex<Manifest>,
    /// Whether the manifest is to be replaced for the durable position alone.
    position_due: AtomicBool,
    journal: Mutex<Journal>,
    journal_changed: Condvar,
    poison: OnceLock<StoreError>,
    stopping: AtomicBool,
    /// Whether segments are prepared; not any more while the store is closed.
    preparing_more: AtomicBool,
}

/// The initial state of a new owner.
pub(crate) struct Start {
    pub(crate) syncer: Syncer,
    pub(crate) manifest: Manifest,
    pub(crate) journal: Journal,
    pub(crate) parts: Vec<LiveRun>,
    pub(crate) work: Work,
}

/// The segments besides the one in use.
#[derive(Debug)]
pub(crate) struct Journal {
    /// Listed and ready for frames. The last one is the ballast: see [`crate::journal::preparer`].
    pub(crate) prepared: VecDeque<Prepared>,
    /// Full and durable, oldest first.
    pub(crate) sealed: Vec<Sealed>,
    /// No longer listed; to be prepared again, or removed.
    pub(crate) spares: Vec<SegmentEntry>,
    pub(crate) space: DiskSpace,
    /// Why `space` is [`DiskSpace::Short`], if the reason is an error and not a full disk.
    pub(crate) failure: Option<StoreError>,
}

/// Files that must stay because they are being copied.
#[derive(Debug, Default)]
struct Pins {
    count: usize,
    segments: Vec<SegmentEntry>,
    files: Vec<String>,
}

/// The state of the disk at the last check of room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskSpace {
    /// There is room, or no check has found otherwise.
    Enough,
    /// No room for the next segment, or not enough for the next flush; or an error when it was made.
    Short,
}

/// The result of a worker's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worked {
    /// The step did something; there may be more to do.
    Done,
    /// There was nothing to do.
    Nothing,
    /// The step failed; try again after [`Options::retry_after`](crate::Options::retry_after).
    Later,
}

impl fmt::Debug for StoreShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreShared")
            .field("disk", &self.disk)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl StoreShared {
    pub(crate) fn new(disk: Arc<dyn Disk>, options: Options, waker: Waker, start: Start) -> Self {
        let Start { syncer, manifest, journal, parts, work } = start;
        let hasher = manifest.hasher();
        let held = manifest.run_bytes() + journal.sealed.iter().map(|s| s.frames).sum::<u64>();
        StoreShared {
            disk,
            readers: Arc::clone(options.pool.readers()),
            memory: options.memory.share(Arc::clone(&waker)),
            segment_bytes: AtomicU64::new(options.segment_bytes_for(held)),
            options,
            epoch: manifest.epoch,
            hasher,
            waker,
            syncer,
            counters: Counters::default(),
            reserve: DiskReserve::new(manifest.state_bytes()),
            free: AtomicU64::new(u64::MAX),
            stuck: AtomicBool::new(false),
            flush_failure: Mutex::default(),
            frozen_held: AtomicBool::new(false),
            preparer_bell: TaskBell::default(),
            background_bell: TaskBell::default(),
            loader: Loader::default(),
            fetches: Fetches::default(),
            events: EventReader::default(),
            view: Mutex::new(Arc::new(StoreView { hasher, frozen: Vec::new(), parts })),
            work: Mutex::new(work),
            spare: Mutex::default(),
            pins: Mutex::default(),
            preparing: Mutex::new(()),
            next_file: AtomicU64::new(manifest.next_file.0),
            manifest: Mutex::new(manifest),
            position_due: AtomicBool::new(false),
            journal: Mutex::new(journal),
            journal_changed: Condvar::new(),
            poison: OnceLock::new(),
            stopping: AtomicBool::new(false),
            preparing_more: AtomicBool::new(true),
        }
    }

    pub(crate) fn journal(&self) -> MutexGuard<'_, Journal> {
        lock(&self.journal)
    }

    /// Changes the journal, and notifies the threads that wait for it.
    pub(crate) fn change_journal<T>(&self, change: impl FnOnce(&mut Journal) -> T) -> T {
        let changed = change(&mut self.journal());
        self.journal_changed.notify_all();
        changed
    }

    /// Waits until another thread changes the journal.
    pub(crate) fn wait_for_journal<'a>(&self, journal: MutexGuard<'a, Journal>) -> MutexGuard<'a, Journal> {
        self.journal_changed.wait(journal).unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the manifest by a changed one. When it is unknown which of the two is valid, the store is poisoned, so
    /// that no file of either is touched again.
    pub(crate) fn change_manifest<T>(
        &self,
        change: impl FnOnce(&mut Manifest) -> T,
    ) -> Result<T, StoreError> {
        self.replace_manifest(change, || self.reserve.give_up(&*self.disk))
    }

    /// Records the durable position in the manifest before long.
    pub(crate) fn ask_for_position(&self) {
        self.position_due.store(true, Ordering::Release);
        self.preparer_bell.ring();
    }

    /// Replaces the manifest if its durable position is due. Another change of the manifest does the same.
    pub(crate) fn keep_position(&self) -> Worked {
        if !self.position_due.load(Ordering::Acquire) {
            return Worked::Nothing;
        }
        // A position is not worth the reserve of a full disk.
        match self.replace_manifest(|_| {}, || false) {
            Ok(()) => Worked::Done,
            Err(_) => Worked::Later,
        }
    }

    fn replace_manifest<T>(
        &self,
        change: impl FnOnce(&mut Manifest) -> T,
        give_up: impl FnOnce() -> bool,
    ) -> Result<T, StoreError> {
        let mut manifest = lock(&self.manifest);
        self.check()?;
        let mut next = manifest.clone();
        let changed = change(&mut next);
        next.next_file = FileNo(self.next_file.load(Ordering::Relaxed));
        let was_due = self.position_due.swap(false, Ordering::AcqRel);
        next.proven =
            if mutant::is(Mutant::ProvenUnsynced) { self.syncer.written() } else { self.syncer.synced() };
        match next.replace_with(&*self.disk, give_up) {
            Ok(()) => {
                *manifest = next;
                Ok(changed)
            }
            Err(NotReplaced::Kept(error)) => {
                self.position_due.fetch_or(was_due, Ordering::AcqRel);
                Err(error)
            }
            Err(NotReplaced::Unsure(error)) => {
                self.poison(error.clone());
                Err(error)
            }
        }
    }

    /// The present manifest.
    pub(crate) fn manifest(&self) -> Manifest {
        lock(&self.manifest).clone()
    }

    /// The present view.
    pub(crate) fn view(&self) -> Arc<StoreView> {
        Arc::clone(&lock(&self.view))
    }

    /// Replaces the view. Only the owner freezes; only the background worker makes other changes.
    pub(crate) fn set_view(&self, change: impl FnOnce(StoreView) -> StoreView) {
        let (new, is_less) = {
            let mut view = lock(&self.view);
            *view = Arc::new(change(StoreView::clone(&view)));
            let is_less = self.memory.set_frozen(view.frozen.iter().map(|mem| mem.memory_of_records()).sum());
            (Arc::clone(&view), is_less)
        };
        if is_less {
            self.memory.tell();
        }
        self.loader.forget_all_but(&new);
    }

    /// Whether the last flush found no room.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Acquire)
    }

    pub(crate) fn set_stuck(&self, stuck: bool) {
        self.stuck.store(stuck, Ordering::Release);
    }

    /// Notes how the last flush ended.
    pub(crate) fn set_flush_failure(&self, error: Option<StoreError>) {
        *lock(&self.flush_failure) = error.filter(|error| error.kind() != ErrorKind::Full);
    }

    /// Why there is no room for new messages, if the reason is an error and not a full disk.
    pub(crate) fn room_error(&self) -> Option<StoreError> {
        let (space, failure) = {
            let journal = self.journal();
            (journal.space, journal.failure.clone())
        };
        if space == DiskSpace::Short {
            return failure;
        }
        if self.free.load(Ordering::Relaxed) < self.reserve.wanted(self.options.max_group_bytes) {
            return None;
        }
        lock(&self.flush_failure).clone()
    }

    /// Keeps other threads from changing the frozen memtables until it is dropped; `None` while another thread has it.
    pub(crate) fn hold_frozen(&self) -> Option<FrozenHold<'_>> {
        FrozenHold::take(&self.frozen_held)
    }

    /// Keeps the memory of an unused memtable, if no other store may need it and it is not too much to begin with.
    pub(crate) fn recycle(&self, mem: Arc<Mem>) {
        if let Some(mem) = Arc::into_inner(mem)
            && self.memory.may_keep(mem.memory_when_empty())
        {
            *lock(&self.spare) = Some(mem);
        }
    }

    /// A memtable of an earlier use, or a new one.
    pub(crate) fn spare_mem(&self) -> Mem {
        lock(&self.spare).take().unwrap_or_else(|| Mem::unused(self.hasher))
    }

    /// Size of the segments that are prepared.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment_bytes.load(Ordering::Relaxed)
    }

    /// Sets the size of the segments that are prepared from now on.
    pub(crate) fn set_segment_bytes(&self, bytes: u64) {
        if self.segment_bytes.swap(bytes, Ordering::Relaxed) != bytes {
            self.preparer_bell.ring();
        }
    }

    /// Keeps all files from being removed or reused from now on.
    pub(crate) fn pin(&self) {
        lock(&self.pins).count += 1;
    }

    /// Releases a pin; the last release removes everything that has waited for it.
    pub(crate) fn unpin(&self) {
        let Pins { segments, files, .. } = {
            let mut pins = lock(&self.pins);
            pins.count -= 1;
            if pins.count > 0 {
                return;
            }
            std::mem::take(&mut *pins)
        };
        if self.is_stopping() {
            return; // the next owner removes them
        }
        self.change_journal(|journal| journal.spares.extend(segments));
        for file in files {
            let _ = self.disk.remove(&file);
        }
        self.preparer_bell.ring();
    }

    /// Removes an unlisted file, once it is not being copied.
    pub(crate) fn remove_later(&self, name: String) {
        let mut pins = lock(&self.pins);
        if pins.count > 0 {
            pins.files.push(name);
            return;
        }
        drop(pins);
        let _ = self.disk.remove(&name); // or it is removed by the next owner
    }

    /// Makes unlisted segments available again, once they are not being copied.
    pub(crate) fn drop_segments(&self, gone: &[SegmentEntry]) {
        let mut pins = lock(&self.pins);
        let spares = if pins.count > 0 {
            pins.segments.extend_from_slice(gone);
            &[][..]
        } else {
            gone
        };
        self.change_journal(|journal| {
            journal.sealed.retain(|s| !gone.contains(&s.entry));
            journal.spares.extend_from_slice(spares);
        });
    }

    /// A number for a new file.
    pub(crate) fn new_file(&self) -> FileNo {
        FileNo(self.next_file.fetch_add(1, Ordering::Relaxed))
    }

    /// The error that ended this store, if one has.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.poison.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Ends the store: from now on every call fails with the first such error.
    pub(crate) fn poison(&self, error: StoreError) {
        let _ = self.poison.set(error);
        self.tell_everybody();
        (self.waker)();
    }

    /// Whether the workers should stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire) || self.poison.get().is_some()
    }

    pub(crate) fn is_preparing(&self) -> bool {
        self.preparing_more.load(Ordering::Acquire)
    }

    pub(crate) fn prepares_no_more(&self) {
        self.preparing_more.store(false, Ordering::Release);
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.tell_everybody();
    }

    fn tell_everybody(&self) {
        drop(self.journal()); // a thread that has seen the old state under the lock is waiting by now
        self.journal_changed.notify_all();
        self.syncer.tell_everybody();
        self.preparer_bell.ring();
        self.background_bell.ring();
        self.loader.bell.ring();
        self.events.bell.ring();
    }

    /// Ends the tasks of the background work; those that are at work are awaited.
    pub(crate) fn end_tasks(&self) {
        for bell in [&self.preparer_bell, &self.background_bell, &self.loader.bell, &self.events.bell] {
            bell.end();
        }
    }
}

/// The right to change the frozen memtables: see [`StoreShared::hold_frozen`].
#[derive(Debug)]
pub(crate) struct FrozenHold<'a>(&'a AtomicBool);

impl<'a> FrozenHold<'a> {
    fn take(held: &'a AtomicBool) -> Option<Self> {
        // Made only by who gets it: one that is dropped gives it back.
        (!held.swap(true, Ordering::AcqRel)).then(|| FrozenHold(held))
    }
}

impl Drop for FrozenHold<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Story: a caller that asked in vain gave back what another one held. The owner then joined memtables that a flush
    /// was writing, and the books counted their records twice.
    #[test]
    fn asking_in_vain_gives_nothing_back() {
        let held = AtomicBool::new(false);
        let first = FrozenHold::take(&held).expect("nobody has it");
        for _ in 0..3 {
            assert!(FrozenHold::take(&held).is_none(), "it is held");
        }
        drop(first);
        assert!(FrozenHold::take(&held).is_some(), "it was given back");
    }
}
