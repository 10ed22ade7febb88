//! A disk in memory.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use crate::disk::{Disk, DiskFile, FileAccess, HeldLock, LockKind};

type Files = Arc<Mutex<BTreeMap<String, Arc<Mutex<Vec<u8>>>>>>;

#[derive(Debug, Default)]
pub(crate) struct MemDisk {
    files: Files,
    read: Arc<Read>,
}

#[derive(Debug)]
struct MemFile(Arc<Mutex<Vec<u8>>>, Arc<Read>);

/// What was read.
#[derive(Debug, Default)]
struct Read {
    calls: AtomicU64,
    bytes: AtomicU64,
}

impl MemDisk {
    pub(crate) fn names(&self) -> Vec<String> {
        self.files.lock().unwrap().keys().cloned().collect()
    }

    /// Reads so far, and bytes in them.
    pub(crate) fn reads(&self) -> u64 {
        self.read.calls.load(Relaxed)
    }

    pub(crate) fn read_bytes(&self) -> u64 {
        self.read.bytes.load(Relaxed)
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        self.files.lock().unwrap()[name].lock().unwrap().clone()
    }

    /// Changes a file directly.
    pub(crate) fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.files.lock().unwrap()[name].lock().unwrap());
    }
}

impl Disk for MemDisk {
    fn make_dir(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, _: &str) -> io::Result<Vec<String>> {
        Ok(self.names())
    }

    fn lock(&self, _: &str, _: LockKind) -> io::Result<Box<dyn HeldLock>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn open(&self, name: &str, _: FileAccess) -> io::Result<Arc<dyn DiskFile>> {
        let files = self.files.lock().unwrap();
        let file = files.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(MemFile(file.clone(), self.read.clone())))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = Arc::default();
        self.files.lock().unwrap().insert(name.into(), Arc::clone(&file));
        Ok(Arc::new(MemFile(file, self.read.clone())))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.files.lock().unwrap();
        let file = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.into(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files.lock().unwrap().remove(name).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync_dir(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn unique(&self) -> u64 {
        4
    }
}

impl DiskFile for MemFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.1.calls.fetch_add(1, Relaxed);
        self.1.bytes.fetch_add(buffer.len() as u64, Relaxed);
        let bytes = self.0.lock().unwrap();
        let at = usize::try_from(at).unwrap();
        let from = bytes.get(at..at.saturating_add(buffer.len())).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(from);
        Ok(())
    }

    fn write_at(&self, new: &[u8], at: u64) -> io::Result<()> {
        let mut bytes = self.0.lock().unwrap();
        let at = usize::try_from(at).unwrap();
        let end = at + new.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[at..end].copy_from_slice(new);
        Ok(())
    }

    fn allocate(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}
