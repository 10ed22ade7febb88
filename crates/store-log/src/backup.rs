//! Copies of a data folder in use, and their restoration.
//!
//! A copy holds every record up to one position, which was durable when the copy began or later. Runs and states never
//! change, so they are linked where the file system can do that; of the segments only whole, durable frames are copied.
//! During the copy, no file that the manifest listed at its beginning is removed or reused. The copy's own manifest is
//! written last: an interrupted copy is no data folder.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_core::{Epoch, Lsn};

use crate::destination::{Destination, EmptyFolder, FolderProblem};
use crate::disk::{Disk, FileAccess, HeldLock, RealDisk};
use crate::fault::{Damage, ReadFault, failed};
use crate::folder::{JOURNAL, MANIFEST, RUNS, STATE};
use crate::journal::reign;
use crate::journal::replay::{self, Walk};
use crate::journal::segment::SegmentReader;
use crate::journal::syncing;
use crate::manifest::{Manifest, SegmentEntry};
use crate::names::Interner;
use crate::owner::lock_if_any;
use crate::shards;
use crate::shared::StoreShared;
use crate::verify::{VerifyReport, verify_on};

/// Makes copies of the folder of an open store, from any thread, while the store works.
///
/// A handle may outlive its store; its calls then fail.
#[derive(Clone, Debug)]
pub struct Backup(pub(crate) Arc<StoreShared>);

/// The content of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupReport {
    /// Number of files, the manifest included.
    pub files: u64,
    /// Bytes in them, without the allocated and unused part of segments.
    pub bytes: u64,
    /// Number of files that are linked: they take no space as long as the store has them, too.
    pub linked: u64,
    /// The last record in the copy.
    pub last: Lsn,
}

/// The epochs of a restored folder start this much above all epochs of the original, so that neither ever issues a
/// lease token of the other.
pub(crate) const EPOCHS_AHEAD: u32 = 65_536;
/// Bytes copied at a time.
const PIECE: u64 = 1024 * 1024;

/// Keeps files from being removed as long as it lives.
struct Pin<'a>(&'a StoreShared);

impl<'a> Pin<'a> {
    fn new(shared: &'a StoreShared) -> Self {
        shared.pin();
        Pin(shared)
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.0.unpin();
    }
}

impl Backup {
    /// Copies the folder into `dir`, which is created if it is missing; otherwise it must be empty, owned by the user
    /// of this process, and closed to others. Everything that was answered before the call is in the copy.
    ///
    /// The copy is opened with [`restore`], which ensures that no lease token of the original is issued again.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the store was closed, before or while the copy was made, [`ErrorKind::Corrupt`] if a
    /// segment is damaged, [`ErrorKind::Full`] or [`ErrorKind::Unavailable`] if a disk returns an error, or if `dir`
    /// cannot be used. An incomplete copy stays, without a manifest.
    pub fn copy_to(&self, dir: impl AsRef<Path>) -> Result<BackupReport, StoreError> {
        let dir = dir.as_ref();
        let folder = EmptyFolder::open(&Destination::Made(dir.to_owned()))
            .map_err(|problem| unusable(format_args!("backup to {}", dir.display()), problem))?;
        self.copy_into(folder).map_err(|error| {
            StoreError::new(error.kind(), format_args!("backup to {}: {error}", dir.display()))
        })
    }

    /// Like [`copy_to`](Backup::copy_to), into an open folder.
    ///
    /// # Errors
    /// See [`copy_to`](Backup::copy_to).
    pub fn copy_into(&self, folder: EmptyFolder) -> Result<BackupReport, StoreError> {
        Ok(self.copy(folder)?)
    }

    /// Copies the folders of several shards, whose stores these are in their order, as of one moment: what one shard
    /// has done because of another's answer is in the copy only together with what was answered.
    ///
    /// # Errors
    /// See [`copy_to`](Backup::copy_to).
    pub fn copy_shards(stores: &[Backup], folder: &EmptyFolder) -> Result<BackupReport, StoreError> {
        let shards = u32::try_from(stores.len()).unwrap_or(u32::MAX);
        let pinned = stores.iter().map(|store| Pinned::new(&store.0)).collect::<Result<Vec<_>, _>>()?;
        let mut whole = BackupReport { files: 1, ..BackupReport::default() };
        for (shard, (store, last)) in (0..).zip(pinned.iter().zip(written_by_all(stores))) {
            let inner = folder.inner(&shards::name(shard, shards));
            let inner = inner.map_err(|problem| unusable(format_args!("shard {shard}"), problem))?;
            let BackupReport { files, bytes, linked, last } = store.copy(inner, last)?;
            whole.files += files;
            whole.bytes += bytes;
            whole.linked += linked;
            whole.last = whole.last.max(last);
        }
        shards::establish(folder.disk(), shards)?;
        Ok(whole)
    }

    fn copy(&self, folder: EmptyFolder) -> Result<BackupReport, ReadFault> {
        let pinned = Pinned::new(&self.0)?;
        pinned.copy(folder, self.0.syncer.written())
    }
}

/// The position up to which each of these stores had written at one moment. An answer that a store gave before it is at
/// or below its position, and with it everything that the caller had done before.
fn written_by_all(stores: &[Backup]) -> Vec<Lsn> {
    let look = || stores.iter().map(|store| store.0.syncer.written()).collect::<Vec<_>>();
    let mut seen = look();
    // None has written between two looks with the same result: that is how they were between both. A look takes less
    // time than a write.
    loop {
        let again = look();
        if again == seen {
            return seen;
        }
        seen = again;
    }
}

/// A store whose files are kept, and its manifest as of then.
struct Pinned<'a> {
    shared: &'a StoreShared,
    manifest: Manifest,
    _pin: Pin<'a>,
}

impl<'a> Pinned<'a> {
    fn new(shared: &'a StoreShared) -> Result<Self, StoreError> {
        still_open(shared)?;
        let pin = Pin::new(shared);
        Ok(Pinned { shared, manifest: shared.manifest(), _pin: pin })
    }

    /// Copies everything up to `last`, which was written after the store was pinned: its state has nothing that is
    /// newer.
    fn copy(&self, folder: EmptyFolder, last: Lsn) -> Result<BackupReport, ReadFault> {
        let (shared, mut manifest) = (self.shared, self.manifest.clone());
        still_open(shared)?;
        let target = folder.into_disk().map_err(failed("make the folders of", ""))?;
        syncing::wait_until(last, shared)?;
        let mut copying = Copying { from: &*shared.disk, to: &target, report: BackupReport::default() };
        for run in &manifest.runs {
            still_open(shared)?;
            copying.link(&run.no.run())?;
        }
        for state in &manifest.states {
            copying.link(&state.no.state())?;
        }
        let used = used(&*shared.disk, &manifest.segments, last)?;
        for (i, (entry, first)) in used.iter().enumerate() {
            still_open(shared)?;
            let end = used.get(i + 1).map_or(last.next(), |(_, next)| *next);
            copying.segment(entry, *first, Lsn(end.0 - 1))?;
        }
        manifest.segments = used.into_iter().map(|(entry, _)| entry).collect();
        manifest.proven = last;
        // A pin protects files from its own store only. Once the store is closed or has failed, the next owner of the
        // folder may remove and reuse files that are being copied; a copy is valid only if there was no such owner.
        still_open(shared)?;
        copying.finish(&manifest)?;
        Ok(BackupReport { last, ..copying.report })
    }
}

fn still_open(shared: &StoreShared) -> Result<(), StoreError> {
    shared.check()?;
    if shared.is_stopping() {
        return Err(StoreError::new(ErrorKind::Closed, "the store is closed"));
    }
    Ok(())
}

/// Makes a data folder in `dir` from a copy, which may be of a [`Backup`] or of a closed store. `dir` is created if it
/// is missing and must be empty otherwise.
///
/// Everything is checked before anything is copied. The new folder's epochs start far above those of the original, so
/// that the two never issue the same lease token.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the copy is damaged (run [`verify`](crate::verify()) to find every damaged place),
/// [`ErrorKind::Fenced`] if a server has it open, [`ErrorKind::Full`] or [`ErrorKind::Unavailable`] if a disk returns
/// an error, or if `dir` is not empty.
pub fn restore(src: impl AsRef<Path>, dir: impl AsRef<Path>) -> Result<VerifyReport, StoreError> {
    let (src, dir) = (src.as_ref(), dir.as_ref());
    let named = |error: StoreError| {
        let (from, to) = (src.display(), dir.display());
        StoreError::new(error.kind(), format_args!("restore {from} to {to}: {error}"))
    };
    restore_any(src, dir).map_err(|trouble| named(trouble.into()))
}

/// Restores a single folder, or that of each shard.
fn restore_any(src: &Path, dir: &Path) -> Result<VerifyReport, ReadFault> {
    let from = RealDisk::new(src);
    let Some(count) = shards::count(&from)? else {
        return SoundCopy::check(&from)?.copy_to(empty(dir)?);
    };
    let _lock = lock_if_any(&from)?;
    if !count.is_complete {
        return Err(Damage::new(shards::SHARDS, 0, "it is missing: the copy is not complete").into());
    }
    shards::whole(&from, count.shards)?;
    let names: Vec<String> = (0..count.shards).map(|shard| shards::name(shard, count.shards)).collect();
    let disks: Vec<RealDisk> = names.iter().map(|name| RealDisk::new(&src.join(name))).collect();
    let mut copies = Vec::new();
    for (name, disk) in names.into_iter().zip(&disks) {
        let copy = SoundCopy::check(disk).map_err(|fault| fault.inside(&name))?;
        copies.push((name, copy));
    }
    let to = empty(dir)?;
    let mut report = VerifyReport { files: 1, ..VerifyReport::default() };
    for (name, copy) in copies {
        let inner = to.inner(&name).map_err(|problem| unusable(format_args!("{name}"), problem))?;
        report.add(&name, copy.copy_to(inner).map_err(|fault| fault.inside(&name))?);
    }
    shards::establish(to.disk(), count.shards)?;
    Ok(report)
}

/// The folder of one store, which was checked and stays closed to owners.
pub(crate) struct SoundCopy<'a> {
    disk: &'a dyn Disk,
    manifest: Manifest,
    report: VerifyReport,
    _lock: Option<Box<dyn HeldLock>>,
}

impl<'a> SoundCopy<'a> {
    /// Checks every byte of a folder.
    pub(crate) fn check(disk: &'a dyn Disk) -> Result<Self, ReadFault> {
        let lock = lock_if_any(disk)?;
        let report = verify_on(disk)?;
        if let Some(problem) = report.problems.first() {
            return Err(problem.clone().into());
        }
        let Some(mut manifest) = Manifest::read(disk)? else {
            return Err(Damage::new(MANIFEST, 0, "the manifest is missing").into());
        };
        let kept = reign::keep(disk, &manifest, &Interner::default(), 1)?;
        let epoch = replay::replay(disk, &manifest, &kept.books, 1)?.epoch;
        let ahead = epoch.0.checked_add(EPOCHS_AHEAD).filter(|epoch| *epoch < u32::MAX);
        let ahead = ahead.ok_or_else(|| StoreError::new(ErrorKind::Corrupt, "all epochs are used up"))?;
        manifest.epoch = Epoch(ahead);
        Ok(SoundCopy { disk, manifest, report, _lock: lock })
    }

    /// Copies it.
    pub(crate) fn copy_to(self, folder: EmptyFolder) -> Result<VerifyReport, ReadFault> {
        let to = folder.into_disk().map_err(failed("make the folders of", ""))?;
        let mut copying = Copying { from: self.disk, to: &to, report: BackupReport::default() };
        for name in self.manifest.files() {
            copying.file(&name)?;
        }
        copying.finish(&self.manifest)?;
        Ok(self.report)
    }
}

/// Creates a folder that becomes a data folder, with its subfolders.
pub(crate) fn empty_folder(dir: &Path) -> Result<RealDisk, StoreError> {
    empty(dir)?.into_disk().map_err(failed("make the folders of", ""))
}

/// Creates a folder that becomes a data folder.
pub(crate) fn empty(dir: &Path) -> Result<EmptyFolder, StoreError> {
    EmptyFolder::for_data(dir).map_err(|problem| unusable(format_args!("{}", dir.display()), problem))
}

/// The store's error for a folder that cannot be used.
pub(crate) fn unusable(what: fmt::Arguments<'_>, problem: FolderProblem) -> StoreError {
    let kind = match &problem {
        FolderProblem::Unusable(error) if error.kind() == io::ErrorKind::StorageFull => ErrorKind::Full,
        _ => ErrorKind::Unavailable,
    };
    StoreError::new(kind, format_args!("{what}: {problem}"))
}

/// The segments that hold records up to `last`, and the first record of each.
fn used(
    disk: &dyn Disk,
    segments: &[SegmentEntry],
    last: Lsn,
) -> Result<Vec<(SegmentEntry, Lsn)>, ReadFault> {
    let mut used = Vec::new();
    for entry in segments {
        // A segment that is being started right now may look unused: its records are too late for this copy.
        match SegmentReader::open(disk, entry)?.header()? {
            Some(header) if header.first <= last => used.push((*entry, header.first)),
            Some(_) | None => break,
        }
    }
    Ok(used)
}

struct Copying<'a> {
    from: &'a dyn Disk,
    to: &'a RealDisk,
    report: BackupReport,
}

impl Copying<'_> {
    /// Links a file that never changes, or copies it.
    fn link(&mut self, name: &str) -> Result<(), ReadFault> {
        if self.from.link(name, self.to).is_err() {
            return self.file(name);
        }
        let file = self.to.open(name, FileAccess::Read).map_err(failed("open", name))?;
        self.report.linked += 1;
        self.report.files += 1;
        self.report.bytes += file.size().map_err(failed("measure", name))?;
        Ok(())
    }

    /// Copies a file.
    fn file(&mut self, name: &str) -> Result<(), ReadFault> {
        let file = self.from.open(name, FileAccess::Read).map_err(failed("open", name))?;
        let size = file.size().map_err(failed("measure", name))?;
        self.start_of(name, size, size)
    }

    /// Copies the frames of a segment up to a record, which it holds; each is checked on the way.
    fn segment(&mut self, entry: &SegmentEntry, first: Lsn, last: Lsn) -> Result<(), ReadFault> {
        let mut walk = Walk::new(SegmentReader::open(self.from, entry)?, first);
        while walk.next <= last {
            if let Err(what) = walk.frame()? {
                return Err(walk.segment.problem(walk.at, what).into());
            }
        }
        self.start_of(&entry.no.segment(), walk.at, entry.bytes)
    }

    /// Copies the first bytes of a file to a new file of this size.
    fn start_of(&mut self, name: &str, bytes: u64, size: u64) -> Result<(), ReadFault> {
        let from = self.from.open(name, FileAccess::Read).map_err(failed("open", name))?;
        let to = self.to.create(name).map_err(failed("create", name))?;
        let mut piece = vec![0; usize::try_from(PIECE.min(bytes)).unwrap_or(0)];
        let mut at = 0;
        while at < bytes {
            let length = piece.len().min(usize::try_from(bytes - at).unwrap_or(usize::MAX));
            from.read_at(&mut piece[..length], at).map_err(failed("read", name))?;
            to.write_at(&piece[..length], at).map_err(failed("write", name))?;
            at += length as u64;
        }
        if bytes < size {
            to.write_at(&[0], size - 1).map_err(failed("write", name))?;
        }
        to.sync_data().map_err(failed("sync", name))?;
        self.report.files += 1;
        self.report.bytes += bytes;
        Ok(())
    }

    /// Makes all names durable, then the manifest.
    fn finish(&mut self, manifest: &Manifest) -> Result<(), StoreError> {
        for name in [JOURNAL, RUNS, STATE] {
            self.to.sync_dir(name).map_err(failed("sync the names of", name))?;
        }
        manifest.replace(self.to)?;
        self.report.files += 1;
        self.report.bytes += manifest.encode().len() as u64;
        Ok(())
    }
}
