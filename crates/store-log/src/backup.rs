//! Copies of a data folder in use.
//!
//! A copy holds every record up to one position, which was durable when the copy began or later. Runs and states never
//! change, so they are linked where the file system can do that; of the segments only whole, durable frames are copied.
//! During the copy, no file that the manifest listed at its beginning is removed or reused. The copy's own manifest is
//! written last: an interrupted copy is no data folder.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use duewheel_core::Lsn;
use duewheel_core::store::{ErrorKind, StoreError};

use crate::destination::{Destination, EmptyFolder, FolderProblem};
use crate::disk::{Disk, DiskFile, FileAccess, RealDisk};
use crate::fault::{ReadFault, failed};
use crate::folder::{JOURNAL, RUNS, STATE};
use crate::journal::replay::Walk;
use crate::journal::segment::SegmentReader;
use crate::journal::syncing;
use crate::manifest::{Manifest, SegmentEntry};
use crate::shards;
use crate::shared::StoreShared;

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
    /// Number of files that are linked: they take no extra space as long as the store also has them.
    pub linked: u64,
    /// The last record in the copy.
    pub last: Lsn,
}

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
    /// The copy is opened with [`restore`](crate::restore()), which ensures that no lease token of the original is
    /// issued again.
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

    /// Copies the store into an open folder, as [`copy_to`](Backup::copy_to) does.
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
        // In addition to the files of the shards: the file of the shard count, and one per shard that identifies it.
        let mut whole = BackupReport { files: 1 + u64::from(shards), ..BackupReport::default() };
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
        let mut copying = Copying::new(&*shared.disk, &target);
        for run in &manifest.runs {
            still_open(shared)?;
            copying.link(&run.no.run(), &target)?;
        }
        for state in &manifest.states {
            copying.link(&state.no.state(), &target)?;
        }
        let used = used(&*shared.disk, &manifest.segments, last)?;
        for (i, (entry, first)) in used.iter().enumerate() {
            still_open(shared)?;
            let end = used.get(i + 1).map_or(last.next(), |(_, next)| *next);
            copying.segment(entry, *first, Lsn(end.0 - 1))?;
        }
        manifest.segments = used.into_iter().map(|(entry, _)| entry).collect();
        manifest.proven = last;
        manifest.is_closed = true;
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

/// Copies files of one folder to another one.
pub(crate) struct Copying<'a> {
    from: &'a dyn Disk,
    to: &'a dyn Disk,
    report: BackupReport,
}

impl<'a> Copying<'a> {
    pub(crate) fn new(from: &'a dyn Disk, to: &'a dyn Disk) -> Self {
        Copying { from, to, report: BackupReport::default() }
    }

    /// Links a file that never changes to the same name in the folder `to`, which is the destination, or copies it.
    fn link(&mut self, name: &str, to: &RealDisk) -> Result<(), ReadFault> {
        if self.from.link(name, to).is_err() {
            return self.file(name);
        }
        let file = self.to.open(name, FileAccess::Read).map_err(failed("open", name))?;
        self.report.linked += 1;
        self.report.files += 1;
        self.report.bytes += file.size().map_err(failed("measure", name))?;
        Ok(())
    }

    /// Copies a file; zeros at its end take no space.
    pub(crate) fn file(&mut self, name: &str) -> Result<(), ReadFault> {
        let file = self.from.open(name, FileAccess::Read).map_err(failed("open", name))?;
        let size = file.size().map_err(failed("measure", name))?;
        let bytes = without_zeros(&*file, size).map_err(failed("read", name))?;
        self.start_of(name, bytes, size)
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

    /// Copies the first bytes of a file to a new file of this size. A medium that allocates zeros is given the name of
    /// a segment before its bytes, as when a segment is prepared; any other name comes behind the bytes.
    fn start_of(&mut self, name: &str, bytes: u64, size: u64) -> Result<(), ReadFault> {
        let from = self.from.open(name, FileAccess::Read).map_err(failed("open", name))?;
        let temp = format!("{name}.tmp");
        let to = self.to.create(&temp).map_err(failed("create", name))?;
        let takes_name = || self.to.rename(&temp, name).map_err(failed("name", name));
        let grows_behind_name = self.to.allocates_zeros() && name.starts_with(JOURNAL);
        if grows_behind_name {
            to.allocate(size).map_err(failed("allocate", name))?;
            takes_name()?;
        }
        let mut piece = vec![0; usize::try_from(PIECE.min(bytes)).unwrap_or(0)];
        let mut at = 0;
        while at < bytes {
            let length = piece.len().min(usize::try_from(bytes - at).unwrap_or(usize::MAX));
            from.read_at(&mut piece[..length], at).map_err(failed("read", name))?;
            to.write_at(&piece[..length], at).map_err(failed("write", name))?;
            if grows_behind_name {
                to.sync_data().map_err(failed("sync", name))?;
            }
            at += length as u64;
        }
        if !grows_behind_name {
            if bytes < size {
                to.write_at(&[0], size - 1).map_err(failed("write", name))?;
            }
            to.sync_data().map_err(failed("sync", name))?;
            takes_name()?;
        }
        self.report.files += 1;
        self.report.bytes += bytes;
        Ok(())
    }

    /// Makes all names durable, then the manifest.
    pub(crate) fn finish(&mut self, manifest: &Manifest) -> Result<(), StoreError> {
        for name in [JOURNAL, RUNS, STATE] {
            self.to.sync_dir(name).map_err(failed("sync the names of", name))?;
        }
        manifest.replace(self.to)?;
        self.report.files += 1;
        self.report.bytes += manifest.encode().len() as u64;
        Ok(())
    }
}

/// The length of a file without the zeros at its end.
fn without_zeros(file: &dyn DiskFile, size: u64) -> io::Result<u64> {
    let mut piece = vec![0; usize::try_from(PIECE.min(size)).unwrap_or(0)];
    let mut end = size;
    while end > 0 {
        let length = piece.len().min(usize::try_from(end).unwrap_or(usize::MAX));
        let from = end - length as u64;
        file.read_at(&mut piece[..length], from)?;
        if let Some(last) = piece[..length].iter().rposition(|byte| *byte != 0) {
            return Ok(from + last as u64 + 1);
        }
        end = from;
    }
    Ok(0)
}
