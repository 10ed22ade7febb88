//! The seam to the file system: everything the store does to a disk goes through here.
//!
//! The real thing is in [`real`]; a simulated disk that loses unsynced bytes, fails the n-th call or is full takes its
//! place in tests. Names are relative to the data folder, with `/` between folder and file.

use std::fmt;
use std::io;
use std::sync::Arc;

mod real;

pub use real::RealDisk;

/// A data folder.
///
/// What the store relies on, and a simulation may play with:
/// * bytes written survive a power loss only after [`DiskFile::sync_data`] has returned `Ok`; before, any subset may;
/// * a created, renamed or removed name survives only after [`Disk::sync_dir`] of its folder; before, any subset may;
/// * a rename replaces its target atomically;
/// * writing within [`DiskFile::allocate`]d bytes does not fail for want of room.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Makes a folder that only its owner can enter, durably; it may exist already. `""` is the data folder itself.
    fn make_dir(&self, dir: &str) -> io::Result<()>;

    /// The names in a folder.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;

    /// Takes a lock that ends with its value or with the process; [`io::ErrorKind::WouldBlock`] if another one has it.
    fn lock(&self, name: &str, hold: Hold) -> io::Result<Box<dyn Held>>;

    /// Opens a file that exists.
    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn DiskFile>>;

    /// Makes a file; what was there under this name is gone.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Gives a file another name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Gives a file, which nobody will write to any more, the same name in another folder, if that is possible.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] by default; the file is copied then.
    fn link(&self, name: &str, to: &RealDisk) -> io::Result<()> {
        let _ = (name, to);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes the names in a folder durable.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;

    /// Bytes that may still be written.
    fn free_bytes(&self) -> io::Result<u64>;

    /// A number that was not given before and that nobody can guess.
    fn unique(&self) -> u64;
}

/// An open file.
pub trait DiskFile: fmt::Debug + Send + Sync {
    /// Its length.
    fn size(&self) -> io::Result<u64>;

    /// Fills `buffer` from there; fails if the file ends before.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()>;

    /// Writes all of it there.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Reserves room up to that length.
    fn allocate(&self, bytes: u64) -> io::Result<()>;

    /// Makes everything written durable, the file's length included.
    fn sync_data(&self) -> io::Result<()>;
}

/// A lock that is held.
pub trait Held: fmt::Debug + Send + Sync {}

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// By one owner.
    Exclusive,
    /// By readers, who change nothing.
    Shared,
}

/// What is done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading only.
    Read,
    /// Reading and writing.
    Write,
}
