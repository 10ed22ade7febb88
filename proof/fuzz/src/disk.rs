//! A disk in memory that is copied without cost, and that detects a reader that allocates before it checks the size.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duewheel_store_log::disk::{Disk, DiskFile, FileAccess, HeldLock, LockKind};

/// The space of the disk, per file.
const ROOM: u64 = 16 * 1024 * 1024;

type File = Arc<Mutex<Arc<Vec<u8>>>>;

/// Clones share one disk; [`MemDisk::copy`] makes another one.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemDisk(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    files: BTreeMap<String, File>,
    drawn: u64,
}

#[derive(Debug)]
struct MemFile(File);

#[derive(Debug)]
struct MemLock;

impl HeldLock for MemLock {}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemDisk {
    /// Another disk with the same content. Bytes are shared until they are written to.
    pub(crate) fn copy(&self) -> MemDisk {
        let inner = lock(&self.0);
        let files = inner.files.iter().map(|(name, file)| {
            let content = Arc::clone(&lock(file));
            (name.clone(), Arc::new(Mutex::new(content)))
        });
        MemDisk(Arc::new(Mutex::new(Inner { files: files.collect(), drawn: inner.drawn })))
    }

    /// The names of all files.
    pub(crate) fn names(&self) -> Vec<String> {
        lock(&self.0).files.keys().cloned().collect()
    }

    /// The content of a file; empty if there is none.
    pub(crate) fn read(&self, name: &str) -> Arc<Vec<u8>> {
        lock(&self.0).files.get(name).map(|file| Arc::clone(&lock(file))).unwrap_or_default()
    }

    /// Replaces the content of a file directly.
    pub(crate) fn overwrite(&self, name: &str, bytes: Vec<u8>) {
        lock(&self.0).files.insert(name.to_owned(), Arc::new(Mutex::new(Arc::new(bytes))));
    }
}

impl Disk for MemDisk {
    fn make_dir(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let split = |name: &String| match name.rsplit_once('/') {
            Some((of, name)) => (of.to_owned(), name.to_owned()),
            None => (String::new(), name.clone()),
        };
        let inner = lock(&self.0);
        Ok(inner.files.keys().map(split).filter(|(of, _)| of == dir).map(|(_, name)| name).collect())
    }

    fn lock(&self, _: &str, _: LockKind) -> io::Result<Box<dyn HeldLock>> {
        Ok(Box::new(MemLock))
    }

    fn open(&self, name: &str, _: FileAccess) -> io::Result<Arc<dyn DiskFile>> {
        match lock(&self.0).files.get(name) {
            Some(file) => Ok(Arc::new(MemFile(Arc::clone(file)))),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = File::default();
        lock(&self.0).files.insert(name.to_owned(), Arc::clone(&file));
        Ok(Arc::new(MemFile(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = lock(&self.0);
        let file = inner.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        inner.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        lock(&self.0).files.remove(name).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync_dir(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn unique(&self) -> u64 {
        let mut inner = lock(&self.0);
        inner.drawn += 1;
        inner.drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn secret(&self) -> io::Result<[u64; 2]> {
        Ok([1, 2])
    }
}

impl DiskFile for MemFile {
    fn size(&self) -> io::Result<u64> {
        Ok(lock(&self.0).len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let content = lock(&self.0);
        assert!(
            buffer.len() <= content.len(),
            "{} bytes were set aside for a part of a file of {}: a length was believed before it was checked",
            buffer.len(),
            content.len()
        );
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let from = content.get(at..at.saturating_add(buffer.len())).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(from);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.allocate(at.saturating_add(bytes.len() as u64))?;
        let mut content = lock(&self.0);
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        Arc::make_mut(&mut content)[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        if bytes > ROOM {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut content = lock(&self.0);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if content.len() < bytes {
            Arc::make_mut(&mut content).resize(bytes, 0);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}
