//! A disk in the memory of the process: the log store without a folder, for the level `memory`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use super::{Disk, DiskFile, FileAccess, HeldLock, LockKind};
use crate::fault::lock;

/// The unit in which files take memory. What was allocated and not written takes none.
const CHUNK: usize = 64 * 1024;

/// A data folder in the memory of the process, which ends with its last owner. It is never full.
#[derive(Debug, Default)]
pub struct RamDisk {
    names: Mutex<Names>,
    is_locked: Arc<AtomicBool>,
    entropy: RandomState,
    given: AtomicU64,
}

#[derive(Debug, Default)]
struct Names {
    folders: BTreeSet<String>,
    files: BTreeMap<String, Arc<RamFile>>,
}

#[derive(Default)]
struct RamFile(RwLock<FileBytes>);

#[derive(Default)]
struct FileBytes {
    length: u64,
    /// `None` reads as zeros.
    chunks: Vec<Option<Box<[u8]>>>,
}

/// The only lock of the disk; it ends when it is dropped.
#[derive(Debug)]
struct RamLock(Arc<AtomicBool>);

impl HeldLock for RamLock {}

impl Drop for RamLock {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl RamDisk {
    fn names(&self) -> MutexGuard<'_, Names> {
        lock(&self.names)
    }
}

impl Disk for RamDisk {
    fn make_dir(&self, dir: &str) -> io::Result<()> {
        self.names().folders.insert(dir.to_owned());
        Ok(())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let names = self.names();
        if !dir.is_empty() && !names.folders.contains(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let inside = |name: &String| match dir {
            "" => (!name.is_empty() && !name.contains('/')).then(|| name.clone()),
            dir => name.strip_prefix(dir)?.strip_prefix('/').map(str::to_owned),
        };
        Ok(names.files.keys().chain(&names.folders).filter_map(inside).collect())
    }

    fn lock(&self, _: &str, _: LockKind) -> io::Result<Box<dyn HeldLock>> {
        if self.is_locked.swap(true, Ordering::Acquire) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        Ok(Box::new(RamLock(Arc::clone(&self.is_locked))))
    }

    fn open(&self, name: &str, _: FileAccess) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.names().files.get(name).cloned().ok_or(io::ErrorKind::NotFound)?;
        Ok(file)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = Arc::new(RamFile::default());
        self.names().files.insert(name.to_owned(), Arc::clone(&file));
        Ok(file)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut names = self.names();
        let file = names.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        names.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.names().files.remove(name).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync_dir(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX / 2)
    }

    fn unique(&self) -> u64 {
        // As in `RealDisk`.
        let mut hasher = self.entropy.build_hasher();
        hasher.write_u64(self.given.fetch_add(1, Ordering::Relaxed));
        hasher.finish()
    }

    /// Segments that are removed give their memory back.
    fn allocates_zeros(&self) -> bool {
        true
    }
}

/// The chunk of an offset, and the place in it.
fn place(at: u64) -> io::Result<(usize, usize)> {
    let at = usize::try_from(at).map_err(|_| io::ErrorKind::FileTooLarge)?;
    Ok((at / CHUNK, at % CHUNK))
}

impl DiskFile for RamFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.read().unwrap_or_else(PoisonError::into_inner).length)
    }

    fn read_at(&self, mut buffer: &mut [u8], at: u64) -> io::Result<()> {
        let bytes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if at.saturating_add(buffer.len() as u64) > bytes.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (mut number, mut from) = place(at)?;
        while !buffer.is_empty() {
            let (part, rest) = buffer.split_at_mut(buffer.len().min(CHUNK - from));
            match bytes.chunks.get(number).and_then(Option::as_ref) {
                Some(chunk) => part.copy_from_slice(&chunk[from..from + part.len()]),
                None => part.fill(0),
            }
            (buffer, number, from) = (rest, number + 1, 0);
        }
        Ok(())
    }

    fn write_at(&self, mut new: &[u8], at: u64) -> io::Result<()> {
        let (mut number, mut from) = place(at)?;
        let mut bytes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        bytes.length = bytes.length.max(at.saturating_add(new.len() as u64));
        while !new.is_empty() {
            let (part, rest) = new.split_at(new.len().min(CHUNK - from));
            if bytes.chunks.len() <= number {
                bytes.chunks.resize(number + 1, None);
            }
            let chunk = bytes.chunks[number].get_or_insert_with(|| vec![0; CHUNK].into_boxed_slice());
            chunk[from..from + part.len()].copy_from_slice(part);
            (new, number, from) = (rest, number + 1, 0);
        }
        Ok(())
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        let mut bytes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        bytes.length = bytes.length.max(length);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for RamFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RamFile").field("length", &self.size().unwrap_or(0)).finish_non_exhaustive()
    }
}
