//! The boundary to the file system: the store accesses a disk only through these traits.
//!
//! `real` and `ram` implement them; tests use a simulated disk that loses unsynced bytes, fails the n-th call or is full.
//! Names are relative to the data folder, with `/` between folder and file.

use std::fmt;
use std::io;
use std::sync::Arc;

use duewheel_core::Epoch;

#[cfg(feature = "conformance")]
pub mod conformance;
mod ram;
mod real;

pub use ram::RamDisk;
pub use real::RealDisk;

/// The length of the header of a journal segment, in bytes. It is the only part of a file that is written again: the
/// next owner does so, because it may have been in the page cache only.
pub const SEGMENT_HEADER: usize = 4096;

/// A data folder. Each fallible method returns the [`io::Error`] of the file system.
///
/// The store relies on these properties, and a simulation may use everything that they permit:
/// * bytes written survive a power loss only after [`DiskFile::sync_data`] has returned `Ok`; before, any subset may;
/// * a created, renamed or removed name survives only after [`Disk::sync_dir`] of its folder; before, any subset may;
/// * a rename replaces its target atomically;
/// * a file that is open for reading stays readable when it is removed, until it is closed;
/// * writing within [`DiskFile::allocate`]d bytes does not fail because the disk is full.
///
/// The suite in `conformance` checks them as far as a program can.
///
/// By default every call that changes something is refused: a disk that is only read has [`Disk::list`] and
/// [`Disk::open`], and its files [`DiskFile::size`] and [`DiskFile::read_at`].
#[allow(clippy::missing_errors_doc, reason = "the trait lists the errors of all its methods")]
pub trait Disk: fmt::Debug + Send + Sync {
    /// Creates a folder that only its owner can enter, durably; it may exist already. `""` is the data folder itself.
    fn make_dir(&self, dir: &str) -> io::Result<()> {
        let _ = dir;
        only_read()
    }

    /// Creates several folders in the data folder like [`Disk::make_dir`], if need be with one sync for all of them.
    fn make_dirs(&self, dirs: &[&str]) -> io::Result<()> {
        dirs.iter().try_for_each(|dir| self.make_dir(dir))
    }

    /// Lists the names in a folder.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;

    /// Takes a lock that ends with its value or with the process; [`io::ErrorKind::WouldBlock`] if another owner has
    /// it, [`io::ErrorKind::ResourceBusy`] if that is certainly this process.
    fn lock(&self, name: &str, hold: LockKind) -> io::Result<Box<dyn HeldLock>> {
        let _ = (name, hold);
        only_read()
    }

    /// Opens an existing file.
    fn open(&self, name: &str, access: FileAccess) -> io::Result<Arc<dyn DiskFile>>;

    /// Creates a file; a file of the same name is replaced.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let _ = name;
        only_read()
    }

    /// Renames a file.
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let _ = (from, to);
        only_read()
    }

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()> {
        let _ = name;
        only_read()
    }

    /// Links a file, which is never written to again, under the same name in another folder, if that is possible.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] by default; the caller then copies the file.
    fn link(&self, name: &str, to: &RealDisk) -> io::Result<()> {
        let _ = (name, to);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes the names in a folder durable.
    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let _ = dir;
        only_read()
    }

    /// Bytes that can still be written; none by default.
    fn free_bytes(&self) -> io::Result<u64> {
        Ok(0)
    }

    /// A number that was not given before and that cannot be guessed; 0 by default, for a disk on which nothing is
    /// made.
    fn unique(&self) -> u64 {
        0
    }

    /// Numbers that cannot be guessed, for the secret seed of a new folder.
    ///
    /// # Errors
    /// None can be drawn. The folder is then not made.
    fn secret(&self) -> io::Result<[u64; 2]> {
        Ok([self.unique(), self.unique()])
    }

    /// Whether a new file reads as zeros up to its allocated length, at no cost and durably with its name. Then journal
    /// segments are made without being written, and removed instead of being used again.
    fn allocates_zeros(&self) -> bool {
        false
    }

    /// The epoch that the coordinator has given this owner; it takes a later one if the folder has had that already.
    fn least_epoch(&self) -> Epoch {
        Epoch(1)
    }
}

/// The cause, inside of an [`io::Error`], of a call that a disk refused because another owner has the folder by now.
#[derive(Debug)]
pub struct FencedOut(
    /// Why that is known.
    pub String,
);

impl fmt::Display for FencedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for FencedOut {}

/// An open file. Each method returns the [`io::Error`] of the file system.
#[allow(clippy::missing_errors_doc, reason = "the trait lists the errors of all its methods")]
pub trait DiskFile: fmt::Debug + Send + Sync {
    /// The length of the file in bytes.
    fn size(&self) -> io::Result<u64>;

    /// Fills `buffer` from the offset `at`; fails if the file ends before.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()>;

    /// Reads like [`DiskFile::read_at`], if that needs no wait for the medium; else it fails with
    /// [`io::ErrorKind::WouldBlock`]. By default it reads: for files that are always in memory.
    fn read_at_hand(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.read_at(buffer, at)
    }

    /// Writes all bytes at the offset `at`.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let _ = (bytes, at);
        only_read()
    }

    /// Reserves disk space up to this length; what was not written there reads as zeros.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] where a file system cannot: then writing zeros takes the space.
    fn allocate(&self, bytes: u64) -> io::Result<()> {
        let _ = bytes;
        only_read()
    }

    /// Makes everything written durable, the file's length included.
    fn sync_data(&self) -> io::Result<()> {
        only_read()
    }
}

/// Reserves disk space for a file, if its file system can; whether it could.
pub(crate) fn allocate_if_possible(file: &dyn DiskFile, bytes: u64) -> io::Result<bool> {
    match file.allocate(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(false),
        Err(error) => Err(error),
    }
}

/// The refusal of a change of a disk that is only read.
fn only_read<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the folder is only read"))
}

/// A lock that is held.
pub trait HeldLock: fmt::Debug + Send + Sync {}

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// For one owner.
    Exclusive,
    /// For readers, who change nothing.
    Shared,
}

/// The kind of access to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// For reading only.
    Read,
    /// For reading and writing.
    Write,
}
