//! Ownership of the folder: its lock, and the process that holds it.

use std::io;

use duewheel_core::store::{ErrorKind, StoreError};

use crate::disk::{Disk, FileAccess, HeldLock, LockKind};
use crate::fault::failed;
use crate::folder::LOCK;

/// Takes the folder's lock, or names its owner.
pub(crate) fn take_lock(disk: &dyn Disk, hold: LockKind) -> Result<Box<dyn HeldLock>, StoreError> {
    disk.lock(LOCK, hold).map_err(|error| {
        if error.kind() == io::ErrorKind::ResourceBusy {
            let what = "this process has this data folder open already: share its handle, or close it first";
            return StoreError::new(ErrorKind::Fenced, what);
        }
        if error.kind() != io::ErrorKind::WouldBlock {
            return failed("lock", LOCK)(error);
        }
        let owner = owner(disk).map_or(String::new(), |pid| format!(" (process {pid})"));
        StoreError::new(ErrorKind::Fenced, format_args!("another process{owner} has this data folder open"))
    })
}

/// Keeps owners out of a folder that is only read; a copy has no lock.
pub(crate) fn lock_if_any(disk: &dyn Disk) -> Result<Option<Box<dyn HeldLock>>, StoreError> {
    let names = disk.list("").map_err(failed("list", ""))?;
    match names.iter().any(|name| name == LOCK) {
        true => take_lock(disk, LockKind::Shared).map(Some),
        false => Ok(None),
    }
}

fn owner(disk: &dyn Disk) -> Option<u32> {
    let file = disk.open(LOCK, FileAccess::Read).ok()?;
    let mut text = vec![0; usize::try_from(file.size().ok()?.min(20)).ok()?];
    file.read_at(&mut text, 0).ok()?;
    String::from_utf8(text).ok()?.trim().parse().ok()
}
