//! Restores a copy of a data folder: to a new folder, or to any other disk, shard by shard.
//!
//! Every byte of all shards is checked before anything is copied. The manifest of a shard comes last, behind the files
//! that it lists.

use std::path::Path;
use std::sync::Arc;

use duewheel_core::Epoch;
use duewheel_core::id::ShardId;
use duewheel_core::store::{ErrorKind, StoreError};

use crate::backup::{Copying, empty, unusable};
use crate::disk::{Disk, HeldLock, RealDisk};
use crate::fault::{Damage, ReadFault, failed};
use crate::folder::lock_if_any;
use crate::folder::{JOURNAL, MANIFEST, RUNS, STATE};
use crate::journal::{reign, replay};
use crate::manifest::Manifest;
use crate::names::Interner;
use crate::shards;
use crate::verify::{VerifyReport, verify_on};

/// The epochs of a restored folder start this much above all epochs of the original, so that neither ever issues a
/// lease token of the other.
pub(crate) const EPOCHS_AHEAD: u32 = 65_536;

/// Makes a data folder in `dir` from a copy, which may be of a [`Backup`](crate::Backup) or of a closed store. `dir` is
/// created if it is missing and must be empty otherwise.
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
    restore_folder(src, dir).map_err(|trouble| named(trouble.into()))
}

fn restore_folder(src: &Path, dir: &Path) -> Result<VerifyReport, ReadFault> {
    write(&CheckedBackup::check(src)?, dir)
}

/// Makes a data folder in `dir` from the folders of all shards of a store, wherever they lie, as [`restore`] makes one
/// of a copy. The folders must not change during the call: they show one moment, or no shard has an owner.
///
/// # Errors
/// See [`restore`].
pub fn copy_shards(disks: &[Arc<dyn Disk>], dir: impl AsRef<Path>) -> Result<VerifyReport, StoreError> {
    let dir = dir.as_ref();
    let copied = CheckedBackup::of(disks).and_then(|copies| write(&copies, dir));
    copied.map_err(|fault| {
        let error = StoreError::from(fault);
        StoreError::new(error.kind(), format_args!("copy to {}: {error}", dir.display()))
    })
}

fn write(backup: &CheckedBackup, dir: &Path) -> Result<VerifyReport, ReadFault> {
    let to = empty(dir)?;
    if let [copy] = &*backup.copies {
        copy.copy_to(to.disk())?;
        return Ok(backup.report());
    }
    for copy in &backup.copies {
        let inner = to.inner(&copy.name);
        let inner = inner.map_err(|problem| unusable(format_args!("{}", copy.name), problem))?;
        copy.copy_to(inner.disk())?;
    }
    shards::establish(to.disk(), backup.shards())?;
    Ok(backup.report())
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
    let report = verify_on(disk)?;
    if let Some(problem) = report.problems.first() {
        return Err(problem.clone().into());
    }
    let Some(mut manifest) = Manifest::read(disk)? else {
        return Err(Damage::new(MANIFEST, 0, "the manifest is missing").into());
    };
    let kept = reign::keep(disk, &manifest, &Interner::default(), 1)?;
    let replayed = replay::replay(disk, &manifest, &kept.books, 1)?;
    let ahead = replayed.epoch.0.checked_add(EPOCHS_AHEAD).filter(|epoch| *epoch < u32::MAX);
    let ahead = ahead.ok_or_else(|| StoreError::new(ErrorKind::Corrupt, "all epochs are used up"))?;
    manifest.epoch = Epoch(ahead);
    // Segments that were prepared for later have nothing to copy.
    manifest.segments.retain(|segment| !replayed.unused.contains(segment));
    Ok((manifest, report))
}

/// A fault, seen from the folder around the one of this name, if there is one.
fn inside(name: &str, fault: impl Into<ReadFault>) -> ReadFault {
    let fault = fault.into();
    if name.is_empty() { fault } else { fault.inside(name) }
}
