//! The damaged folder: nothing is written to it, and a place that cannot be read is read as zeros.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use crate::disk::{Disk, DiskFile, FileAccess};
use crate::fault::Damage;

/// Number of bytes that are given up together when the disk cannot read them.
const PAGE: usize = 4096;

/// A disk that refuses to write. Unreadable bytes are read as zeros, which no checksum accepts.
#[derive(Debug)]
pub(super) struct ReadOnlyDisk<'a> {
    disk: &'a dyn Disk,
    unreadable: Arc<Mutex<Vec<(String, u64)>>>,
}

impl<'a> ReadOnlyDisk<'a> {
    pub(super) fn new(disk: &'a dyn Disk) -> Self {
        ReadOnlyDisk { disk, unreadable: Arc::default() }
    }

    /// Pages that the disk could not read.
    pub(super) fn unreadable(&self) -> Vec<Damage> {
        let mut places = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner).clone();
        places.sort_unstable();
        places.dedup();
        places.into_iter().map(|(file, at)| Damage::new(file, at, "the disk cannot read this page")).collect()
    }
}

#[derive(Debug)]
struct ReadOnlyFile {
    file: Arc<dyn DiskFile>,
    name: String,
    unreadable: Arc<Mutex<Vec<(String, u64)>>>,
}

impl Disk for ReadOnlyDisk<'_> {
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        match self.disk.list(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            other => other,
        }
    }

    fn open(&self, name: &str, _: FileAccess) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.open(name, FileAccess::Read)?;
        Ok(Arc::new(ReadOnlyFile { file, name: name.into(), unreadable: self.unreadable.clone() }))
    }
}

impl DiskFile for ReadOnlyFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        if self.file.read_at(buffer, at).is_ok() {
            return Ok(());
        }
        // Page by page as the disk has them, so that a bad one costs no other.
        let mut page_at = at;
        let first = usize::try_from(at % PAGE as u64).map_or(PAGE, |into| PAGE - into).min(buffer.len());
        let (first, others) = buffer.split_at_mut(first);
        for page in std::iter::once(first).chain(others.chunks_mut(PAGE)) {
            if self.file.read_at(page, page_at).is_err() {
                page.fill(0);
                let mut unreadable = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
                unreadable.push((self.name.clone(), page_at));
            }
            page_at += page.len() as u64;
        }
        Ok(())
    }
}
