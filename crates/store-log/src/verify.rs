//! Checks every valid byte of a data folder, shows what it holds, and restores a checked copy. The folder is only read.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use duewheel_core::id::ShardId;
use duewheel_core::message::Row;
use duewheel_core::record::ClockPair;
use duewheel_core::store::{ErrorKind, Load, More, QueueRow, Sequence, StoreError, Which};
use duewheel_core::{Epoch, Lsn, MessageId, QueueName, WallMs};

use crate::backup::{Copying, empty, unusable};
use crate::disk::{Disk, HeldLock, RealDisk};
use crate::fault::{Damage, ReadFault, failed, lock, note};
use crate::find::Finder;
use crate::format::{JOURNAL, MANIFEST, RUNS, STATE, lock_if_any};
use crate::journal::reign::{self, Kept};
use crate::journal::replay::{self, Replayed, Walk};
use crate::journal::segment::{Header, SegmentReader};
use crate::load::{self, LoadRequest, Loader};
use crate::manifest::Manifest;
use crate::mem::Mem;
use crate::readers::{ReadPriority, Readers};
use crate::run::opened::Interner;
use crate::run::{self};
use crate::view::StoreView;
use crate::{shards, state};

/// Number of messages that are looked up at a time.
const TOGETHER: usize = 1_000;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Number of files that the manifest lists, including the manifest.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Number of records in the journal.
    pub records: u64,
    /// Number of messages, those included that have ended and are kept, and the server's own; only if there is no
    /// problem.
    pub messages: u64,
    /// Number of pending messages: those of these that have not ended, in queues of users.
    pub pending: u64,
    /// Number of groups at the end of the journal that may not be on the disk after a crash. The next owner writes them
    /// again.
    pub unproven_groups: u64,
    /// Damage. Empty: the folder opens, and nothing that was durable is missing.
    pub problems: Vec<Damage>,
}

/// Checks a data folder.
///
/// No process may have the folder open, because a server's files change during the check. Several processes may verify
/// at the same time. A folder without a `LOCK` (a copy) is checked without a lock.
///
/// # Errors
/// [`Fenced`](duewheel_core::store::ErrorKind::Fenced) if a server has the folder open,
/// [`Unavailable`](duewheel_core::store::ErrorKind::Unavailable) if it cannot be read at all. Damage is not an error:
/// [`VerifyReport::problems`] lists it. A folder of another format is one, of the kind
/// [`Corrupt`](duewheel_core::store::ErrorKind::Corrupt), because nothing is known of its bytes, and so is a folder to
/// which a restore has not ended.
pub fn verify(dir: impl AsRef<Path>) -> Result<VerifyReport, StoreError> {
    let disk = RealDisk::new(dir.as_ref());
    shards::finished(&disk)?;
    let count = match shards::count(&disk) {
        Ok(None) => return verify_on(&disk),
        Ok(Some(count)) => count,
        Err(error) if error.kind() == ErrorKind::Corrupt && !shards::is_of_other_format(&disk)? => {
            let problems = vec![Damage::new(shards::SHARDS, 0, error.to_string())];
            return Ok(VerifyReport { problems, ..VerifyReport::default() });
        }
        Err(error) => return Err(error),
    };
    let _lock = lock_if_any(&disk)?;
    let mut report = VerifyReport { files: count.files(), ..VerifyReport::default() };
    if !count.is_complete {
        report.problems.push(Damage::new(shards::SHARDS, 0, "it is missing: the folder is not complete"));
    }
    let strangers = shards::strangers(&disk, &count).into_iter();
    report.problems.extend(strangers.map(|stranger| Damage::new(stranger.file, 0, stranger.what)));
    for (name, disk) in shards::disks(dir.as_ref(), count.shards) {
        match verify_on(&*disk) {
            Ok(of_shard) => report.add(&name, of_shard),
            Err(error) => return Err(ReadFault::from(error).inside(&name).into()),
        }
    }
    Ok(report)
}

impl VerifyReport {
    /// Adds what was found in a folder of this name.
    pub(crate) fn add(&mut self, folder: &str, other: VerifyReport) {
        let VerifyReport { files, bytes, records, messages, pending, unproven_groups, problems } = other;
        self.files += files;
        self.bytes = self.bytes.saturating_add(bytes);
        self.records += records;
        self.messages += messages;
        self.pending += pending;
        self.unproven_groups += unproven_groups;
        self.problems.extend(problems.into_iter().map(|problem| problem.inside(folder)));
    }
}

/// Checks a data folder on a disk of the caller's own.
///
/// # Errors
/// See [`verify`].
pub fn verify_on(disk: &dyn Disk) -> Result<VerifyReport, StoreError> {
    let _lock = lock_if_any(disk)?;
    Ok(check(disk)?.0)
}

/// The findings, and the manifest of a copy, if there is a manifest.
fn check(disk: &dyn Disk) -> Result<(VerifyReport, Option<Manifest>), StoreError> {
    Manifest::known_format(disk)?;
    let mut report = VerifyReport::default();
    let Some(read) = note(Manifest::read(disk), &mut report.problems)? else { return Ok((report, None)) };
    let Some(mut manifest) = read else {
        report.problems.extend(missing_manifest(disk));
        return Ok((report, None));
    };
    report.files = 1 + manifest.files().count() as u64;
    // A nonsensical manifest may list sizes that no files have.
    let sizes = manifest.segments.iter().map(|segment| segment.bytes);
    let sizes = sizes.chain(manifest.runs.iter().map(|run| run.bytes)).chain([manifest.state_bytes()]);
    report.bytes = sizes.fold(manifest.encode().len() as u64, u64::saturating_add);
    for entry in &manifest.runs {
        note(run::verify(disk, entry, manifest.hasher()).map(drop), &mut report.problems)?;
    }
    for (i, entry) in manifest.states.iter().enumerate() {
        let before = i.checked_sub(1).map(|before| &manifest.states[before]);
        note(state::verify_file(disk, entry, before), &mut report.problems)?;
    }
    check_segments(disk, &manifest, &mut report)?;
    // The steps of an owner's start have the last word: records that cannot be read, gaps between files, counts.
    let names = Interner::default();
    let whole = reign::keep(disk, &manifest, &names, 1)
        .and_then(|kept| Ok((replay::replay(disk, &manifest, &kept.books, 1)?, kept)));
    let mut last = Vec::new();
    if let Some((replayed, kept)) = note(whole, &mut last)? {
        note_counts(&replayed, &mut report);
        manifest.epoch = replayed.epoch;
        // Segments that were prepared for later have nothing to copy.
        manifest.segments.retain(|segment| !replayed.unused.contains(segment));
        last.extend(reign::next_epoch(replayed.epoch).err());
        if report.problems.is_empty() && last.is_empty() {
            note(count(replayed, kept), &mut last)?;
        }
    }
    last.retain(|last| !report.problems.iter().any(|p| p.file == last.file && p.offset == last.offset));
    report.problems.extend(last);
    Ok((report, Some(manifest)))
}

fn missing_manifest(disk: &dyn Disk) -> Option<Damage> {
    let data = [(JOURNAL, ".log"), (RUNS, ".run"), (STATE, ".state")].into_iter().any(|(dir, ending)| {
        disk.list(dir).is_ok_and(|names| names.iter().any(|name| name.ends_with(ending)))
    });
    let what = if data { "the manifest is missing" } else { "this is not a data folder of duewheel" };
    Some(Damage::new(MANIFEST, 0, what))
}

fn note_counts(replayed: &Replayed, report: &mut VerifyReport) {
    report.messages = replayed.ledger.messages();
    let of_users = replayed.ledger.rows().filter(|row| !row.name.is_system());
    report.pending = of_users.map(|row| row.tally.count()).sum();
    report.unproven_groups = replayed.unproven.len() as u64;
    let unproven: u64 = replayed.unproven.iter().map(|group| u64::from(group.head.records)).sum();
    report.records = replayed.used.iter().map(|s| s.records()).sum::<u64>() + unproven;
}

/// Checks that the messages of each queue are as many as the books count.
fn count(replayed: Replayed, kept: Kept) -> Result<(), ReadFault> {
    let mut left: BTreeMap<QueueName, i128> = BTreeMap::new();
    for row in replayed.ledger.rows() {
        left.insert(row.name, i128::from(row.tally.count()));
    }
    let mut mem = replayed.mem;
    mem.settle();
    let view = StoreView { hasher: mem.hasher(), frozen: vec![Arc::new(mem)], parts: kept.parts };
    found(&view)?;
    for sequence in [Sequence::AllAt, Sequence::AllAfter] {
        load::for_each(&view, sequence, |queue| *left.entry(queue.clone()).or_default() -= 1)?;
    }
    match left.into_iter().find(|(_, left)| *left != 0) {
        None => Ok(()),
        Some((queue, left)) => {
            let what = format!(
                "the state counts {left} messages of queue {queue} more than the runs and the journal have"
            );
            Err(Damage::new(MANIFEST, 0, what).into())
        }
    }
}

/// Checks that the messages which the journal changes exist.
fn found(view: &StoreView) -> Result<(), ReadFault> {
    let ids: Vec<MessageId> = view.frozen.iter().flat_map(|mem| mem.ids()).map(MessageId).collect();
    let readers = Arc::new(Readers::default());
    let finder = Finder::new(view, &readers, ReadPriority::Background);
    ids.chunks(TOGETHER).try_for_each(|some| finder.rows(some, HashMap::new()).map(drop))
}

/// Checks every segment by itself, also behind a damaged one, so that the report names every damaged segment.
fn check_segments(disk: &dyn Disk, manifest: &Manifest, report: &mut VerifyReport) -> Result<(), StoreError> {
    let mut headers: Vec<Option<Header>> = Vec::new();
    for entry in &manifest.segments {
        let header = SegmentReader::open(disk, entry).and_then(|segment| segment.header());
        headers.push(note(header, &mut report.problems)?.flatten());
    }
    for (i, entry) in manifest.segments.iter().enumerate() {
        let Some(end) = headers[i + 1..].iter().find_map(|h| h.map(|h| h.first)) else { break };
        let Some(header) = headers[i] else { continue };
        let checked = SegmentReader::open(disk, entry);
        let checked = checked.and_then(|segment| check_frames(segment, &header, end, &mut report.problems));
        note(checked, &mut report.problems)?;
    }
    Ok(())
}

/// Checks every frame of a segment that is followed by another; behind damage it continues with the next whole frame.
fn check_frames(
    segment: SegmentReader,
    header: &Header,
    end: Lsn,
    problems: &mut Vec<Damage>,
) -> Result<(), ReadFault> {
    let entry = segment.entry;
    let mut walk = Walk::new(segment, header.first);
    while walk.next < end {
        match walk.frame()? {
            Ok(frame) => match replay::records(&entry, &frame, |_, _, _| Ok(())) {
                Err(ReadFault::Damaged(problem)) => problems.push(problem),
                other => other?,
            },
            Err(what) => {
                problems.push(walk.segment.problem(walk.at, what));
                let Some(frame) = walk.segment.find_further(walk.at, walk.next)? else { break };
                (walk.at, walk.next) = (frame.at, frame.head.first);
            }
        }
    }
    Ok(())
}

// Shows what a shard holds, and writes nothing.

/// Rows and bytes of bodies that are read at a time.
const PAGE: (usize, usize) = (1_000, 4 << 20);

/// The content of a shard when it was read.
pub struct Inspected {
    /// The epoch of its last owner.
    pub epoch: Epoch,
    /// The last record of the store.
    pub last: Lsn,
    /// The clocks as recorded last.
    pub clock: Option<ClockPair>,
    /// The queues of the store, by name.
    pub queues: Vec<QueueRow>,
    view: Arc<StoreView>,
    active: Mutex<Mem>,
}

/// Reads a shard on a disk of the caller's own: its manifest, its books and its journal; runs as they are needed.
///
/// Nothing is locked. While a server has the shard its files change, and one may be gone when it is read: then repeat the
/// call.
///
/// # Errors
/// [`ErrorKind::Corrupt`] for damage and for a folder that holds no shard, [`ErrorKind::Unavailable`] if it cannot be read.
///
/// # Examples
/// ```
/// use duewheel_store_log::disk::RealDisk;
/// use duewheel_store_log::{LogStore, Options, inspect_on};
/// use std::sync::Arc;
///
/// let dir = tempfile::tempdir()?;
/// drop(LogStore::open(dir.path(), Options::default(), Arc::new(|| {}))?);
/// let inspected = inspect_on(&RealDisk::new(dir.path()))?;
/// assert!(inspected.queues.is_empty() && inspected.rows(None, 10)?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn inspect_on(disk: &dyn Disk) -> Result<Inspected, StoreError> {
    let nothing = || StoreError::new(ErrorKind::Corrupt, format_args!("there is no {MANIFEST}"));
    let manifest = Manifest::read(disk)?.ok_or_else(nothing)?;
    let names = Interner::default();
    let kept = reign::keep(disk, &manifest, &names, 1)?;
    let replayed = replay::replay(disk, &manifest, &kept.books, 1)?;
    let mut mem = replayed.mem;
    mem.settle();
    let (hasher, next_id) = (manifest.hasher(), replayed.ledger.next_id().0);
    let active = Mem::new(hasher, replayed.applied, (next_id, 1), replayed.ledger.clock());
    Ok(Inspected {
        epoch: replayed.epoch,
        last: replayed.applied,
        clock: replayed.ledger.clock(),
        queues: replayed.ledger.rows().collect(),
        view: Arc::new(StoreView { hasher, frozen: vec![Arc::new(mem)], parts: kept.parts }),
        active: Mutex::new(active),
    })
}

impl Inspected {
    /// Messages of one queue, or of all: first those that are due at an instant, by that, then those after a delay. In any
    /// stage, dead ones among them.
    ///
    /// # Errors
    /// See [`inspect_on`].
    pub fn rows(&self, queue: Option<&QueueName>, most: usize) -> Result<Vec<Row>, StoreError> {
        let (loader, readers) = (Loader::default(), Arc::new(Readers::default()));
        let mut rows = Vec::new();
        for sequence in [Sequence::AllAt, Sequence::AllAfter] {
            let which = queue.map_or(Which::All, |queue| Which::One(queue.clone()));
            let mut load = Load {
                ticket: 0,
                sequence,
                which,
                after: None,
                until: u64::MAX,
                rows: PAGE.0,
                bytes: PAGE.1,
            };
            while rows.len() < most {
                load.rows = PAGE.0.min(most - rows.len());
                let request =
                    LoadRequest::new(load.clone(), self.last, Arc::clone(&self.view), &mut self.active());
                let page = loader.load(&readers, request, || Arc::clone(&self.view))?;
                let page = page.loaded(std::iter::empty());
                rows.extend(page.rows);
                match page.more {
                    More::Yes => load.after = page.upto,
                    More::No => break,
                }
            }
        }
        Ok(rows)
    }

    fn active(&self) -> MutexGuard<'_, Mem> {
        lock(&self.active)
    }
}

impl fmt::Debug for Inspected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inspected")
            .field("epoch", &self.epoch)
            .field("last", &self.last)
            .field("queues", &self.queues.len())
            .finish_non_exhaustive()
    }
}

// Restores a copy of a data folder: to a new folder, or to any other disk, shard by shard.
//
// Every byte of all shards is checked before anything is copied. The manifest of a shard comes last, behind the files
// that it lists.

/// The epochs of a restored folder start this much above all epochs of the copy, so that neither it nor the original ever
/// issues a lease token of the other.
const EPOCHS_AHEAD: u32 = 65_536;

/// The epoch of a folder that is made now of one with this epoch. A later one is above it, also of the same copy.
pub(crate) fn epoch_ahead(epoch: Epoch) -> Result<Epoch, StoreError> {
    let epoch = epoch.max(Epoch::by_time(WallMs::from_system_time_up(SystemTime::now())));
    let ahead = epoch.0.checked_add(EPOCHS_AHEAD).filter(|epoch| *epoch < u32::MAX).map(Epoch);
    ahead.ok_or_else(|| StoreError::new(ErrorKind::Corrupt, "all epochs are used up"))
}

/// Makes a data folder in `dir` from a copy, which may be of a [`Backup`](crate::Backup) or of a closed store. `dir` is
/// created if it is missing and must be empty otherwise.
///
/// Everything is checked before anything is copied. The new folder's epochs start far above those of the original, and
/// above those of earlier restores, so that no two of them issue the same lease token. A folder to which a restore has
/// not ended is refused; remove it.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the copy is damaged (run [`verify`](crate::verify()) to find every damaged place),
/// [`ErrorKind::Fenced`] if a server has it open, [`ErrorKind::Full`] or [`ErrorKind::Unavailable`] if a disk returns
/// an error, or if `dir` is not empty.
pub fn restore(src: impl AsRef<Path>, dir: impl AsRef<Path>) -> Result<VerifyReport, StoreError> {
    restore_then(src, dir, |_| Ok(())).map(|(report, ())| report)
}

/// Restores like [`restore`], with a last step that gets the folders of the shards and may open each by
/// [`LogStore::open_on`](crate::LogStore::open_on). The folder is valid only if that step has succeeded.
///
/// # Errors
/// See [`restore`], and those of the last step.
pub fn restore_then<T>(
    src: impl AsRef<Path>,
    dir: impl AsRef<Path>,
    last: impl FnOnce(&[PathBuf]) -> Result<T, StoreError>,
) -> Result<(VerifyReport, T), StoreError> {
    let (src, dir) = (src.as_ref(), dir.as_ref());
    CheckedBackup::check(src).and_then(|copies| write(&copies, dir, last)).map_err(|fault| {
        let (from, to, error) = (src.display(), dir.display(), StoreError::from(fault));
        StoreError::new(error.kind(), format_args!("restore {from} to {to}: {error}"))
    })
}

/// Makes a data folder in `dir` from the folders of all shards of a store, wherever they lie, as [`restore`] makes one
/// of a copy. The folders must not change during the call: they show one moment, or no shard has an owner. The last
/// step checks that.
///
/// # Errors
/// See [`restore`], and those of the last step.
pub fn copy_shards(
    disks: &[Arc<dyn Disk>],
    dir: impl AsRef<Path>,
    last: impl FnOnce() -> Result<(), StoreError>,
) -> Result<VerifyReport, StoreError> {
    let dir = dir.as_ref();
    let copied = CheckedBackup::of(disks).and_then(|copies| write(&copies, dir, |_| last()));
    copied.map(|(report, ())| report).map_err(|fault| {
        let error = StoreError::from(fault);
        StoreError::new(error.kind(), format_args!("copy to {}: {error}", dir.display()))
    })
}

fn write<T>(
    backup: &CheckedBackup,
    dir: &Path,
    last: impl FnOnce(&[PathBuf]) -> Result<T, StoreError>,
) -> Result<(VerifyReport, T), ReadFault> {
    let to = empty(dir)?;
    shards::begin(to.disk())?;
    if let [copy] = &*backup.copies {
        copy.copy_to(to.disk())?;
    } else {
        for copy in &backup.copies {
            let inner = to.inner(&copy.name);
            let inner = inner.map_err(|problem| unusable(format_args!("{}", copy.name), problem))?;
            copy.copy_to(inner.disk())?;
        }
        shards::establish(to.disk(), backup.shards())?;
    }
    let folders: Vec<PathBuf> = backup.copies.iter().map(|copy| dir.join(&copy.name)).collect();
    let done = last(&folders)?;
    shards::finish(to.disk())?;
    Ok((backup.report(), done))
}

/// A copy of all shards of a store, of which every byte was checked. No process can open it as long as this lives.
#[derive(Debug)]
pub struct CheckedBackup {
    /// The copies of the shards, in order.
    copies: Vec<SoundCopy>,
    /// Files that say which shards these are.
    files: u64,
    /// The lock of the folder around several shards.
    _lock: Option<Box<dyn HeldLock>>,
}

impl CheckedBackup {
    /// Checks the copy in a folder, as [`restore`] does.
    ///
    /// # Errors
    /// See [`restore`].
    pub fn open(src: impl AsRef<Path>) -> Result<Self, StoreError> {
        let src = src.as_ref();
        Self::check(src).map_err(|fault| {
            let error = StoreError::from(fault);
            StoreError::new(error.kind(), format_args!("{}: {error}", src.display()))
        })
    }

    fn check(src: &Path) -> Result<Self, ReadFault> {
        let from = RealDisk::new(src);
        let Some(count) = shards::count(&from)? else {
            shards::alone(&from)?;
            let copies = vec![SoundCopy::check(Arc::new(from), String::new())?];
            return Ok(CheckedBackup { copies, files: 0, _lock: None });
        };
        let lock = lock_if_any(&from)?;
        if !count.is_complete {
            return Err(Damage::new(shards::SHARDS, 0, "it is missing: the copy is not complete").into());
        }
        shards::whole(&from, count.shards)?;
        shards::agreed(&from, &count)?;
        let disks = shards::disks(src, count.shards).into_iter();
        let copies = disks.map(|(name, disk)| SoundCopy::check(disk, name)).collect::<Result<_, _>>()?;
        Ok(CheckedBackup { copies, files: count.files(), _lock: lock })
    }

    fn of(disks: &[Arc<dyn Disk>]) -> Result<Self, ReadFault> {
        let shards = u32::try_from(disks.len()).unwrap_or(u32::MAX);
        let (is_one, files) = (shards == 1, u64::from(shards) + 1);
        let copies = (0..).zip(disks).map(|(shard, disk)| {
            let name = if is_one { String::new() } else { shards::name(shard, shards) };
            SoundCopy::check(Arc::clone(disk), name)
        });
        let copies = copies.collect::<Result<_, _>>()?;
        Ok(CheckedBackup { copies, files: if is_one { 0 } else { files }, _lock: None })
    }

    /// The number of shards.
    pub fn shards(&self) -> u32 {
        u32::try_from(self.copies.len()).unwrap_or(u32::MAX)
    }

    /// The findings of the check, over all shards.
    pub fn report(&self) -> VerifyReport {
        let mut report = VerifyReport { files: self.files, ..VerifyReport::default() };
        for copy in &self.copies {
            report.add(&copy.name, copy.report.clone());
        }
        report
    }

    /// Copies a shard to an empty disk. After an error the disk has files, and no manifest.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] if the disk has no room for the shard, [`ErrorKind::Fenced`] if it has another owner by now,
    /// [`ErrorKind::Unavailable`] if a disk returns an error, [`ErrorKind::Corrupt`] for a number that no shard has.
    pub fn copy_shard(&self, shard: ShardId, to: &dyn Disk) -> Result<(), StoreError> {
        match self.copies.get(usize::try_from(shard.0).unwrap_or(usize::MAX)) {
            Some(copy) => Ok(copy.copy_to(to)?),
            None => Err(StoreError::new(ErrorKind::Corrupt, format_args!("the copy has no shard {shard}"))),
        }
    }
}

/// The folder of one shard, which was checked and stays closed to owners.
#[derive(Debug)]
pub(crate) struct SoundCopy {
    /// The name of the folder in the one around it; empty if there is none.
    name: String,
    disk: Arc<dyn Disk>,
    manifest: Manifest,
    pub(crate) report: VerifyReport,
    _lock: Option<Box<dyn HeldLock>>,
}

impl SoundCopy {
    /// Checks every byte of a folder.
    pub(crate) fn check(disk: Arc<dyn Disk>, name: String) -> Result<Self, ReadFault> {
        let lock = lock_if_any(&*disk).map_err(|error| inside(&name, error))?;
        let (manifest, report) = checked(&*disk).map_err(|fault| inside(&name, fault))?;
        Ok(SoundCopy { name, disk, manifest, report, _lock: lock })
    }

    /// Copies it to an empty disk.
    pub(crate) fn copy_to(&self, to: &dyn Disk) -> Result<(), ReadFault> {
        self.copy(to).map_err(|fault| inside(&self.name, fault))
    }

    fn copy(&self, to: &dyn Disk) -> Result<(), ReadFault> {
        to.make_dirs(&[JOURNAL, RUNS, STATE]).map_err(failed("make the folders of", ""))?;
        let blobs = self.manifest.run_bytes().saturating_add(self.manifest.state_bytes());
        if to.free_bytes().map_err(failed("measure", ""))? < blobs {
            let what = format_args!("there is no room for {blobs} bytes");
            return Err(StoreError::new(ErrorKind::Full, what).into());
        }
        let mut copying = Copying::new(&*self.disk, to);
        for name in self.manifest.files() {
            copying.file(&name)?;
        }
        Ok(copying.finish(&self.manifest)?)
    }
}

/// The manifest that a copy gets, and what the check of every byte has found.
fn checked(disk: &dyn Disk) -> Result<(Manifest, VerifyReport), ReadFault> {
    let (report, manifest) = check(disk)?;
    if let Some(problem) = report.problems.first() {
        return Err(problem.clone().into());
    }
    let Some(mut manifest) = manifest else {
        return Err(Damage::new(MANIFEST, 0, "the manifest is missing").into());
    };
    manifest.epoch = epoch_ahead(manifest.epoch)?;
    Ok((manifest, report))
}

/// A fault, seen from the folder around the one of this name, if there is one.
fn inside(name: &str, fault: impl Into<ReadFault>) -> ReadFault {
    let fault = fault.into();
    if name.is_empty() { fault } else { fault.inside(name) }
}
