//! A disk that counts what is written to which folder, and one on which runs are opened together or not at all.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use duewheel_sim_disk::SimDisk;
use duewheel_store_log::disk::{Disk, DiskFile, FileAccess, HeldLock, LockKind};

/// A simulated disk that counts. Clones are the same disk.
#[derive(Clone, Debug)]
pub(crate) struct CountingDisk {
    disk: SimDisk,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    state: Mutex<CountState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct CountState {
    /// Bytes written, by folder.
    written: BTreeMap<String, u64>,
    /// Number of runs that must be opened at a time, and that have been so far.
    together: usize,
    /// Space cannot be reserved.
    cannot_allocate: bool,
    opening: usize,
    met: bool,
}

#[derive(Debug)]
struct CountingFile {
    file: Arc<dyn DiskFile>,
    dir: String,
    counts: Arc<Counts>,
}

fn dir_of(name: &str) -> String {
    name.split_once('/').map_or("", |(dir, _)| dir).to_owned()
}

impl CountingDisk {
    pub(crate) fn new(disk: &SimDisk) -> Self {
        CountingDisk { disk: disk.clone(), counts: Arc::default() }
    }

    /// Bytes written to files of a folder so far.
    pub(crate) fn written(&self, dir: &str) -> u64 {
        self.counts.state.lock().expect("no panic").written.get(dir).copied().unwrap_or(0)
    }

    /// From now on the open of a run waits until so many are being opened, up to a deadline.
    pub(crate) fn open_together(&self, runs: usize) {
        *self.counts.state.lock().expect("no panic") = CountState { together: runs, ..CountState::default() };
    }

    /// A file system that cannot reserve space.
    pub(crate) fn without_allocation(self) -> Self {
        self.counts.state.lock().expect("no panic").cannot_allocate = true;
        self
    }

    /// Whether so many runs were opened at a time.
    pub(crate) fn has_met(&self) -> bool {
        self.counts.state.lock().expect("no panic").met
    }

    fn file(&self, name: &str, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(CountingFile { file, dir: dir_of(name), counts: Arc::clone(&self.counts) })
    }

    fn meet(&self) {
        let mut state = self.counts.state.lock().expect("no panic");
        if state.together == 0 {
            return;
        }
        state.opening += 1;
        state.met |= state.opening >= state.together;
        self.counts.changed.notify_all();
        let waits = |state: &mut CountState| !state.met;
        let waited = self.counts.changed.wait_timeout_while(state, Duration::from_secs(60), waits);
        waited.expect("no panic").0.opening -= 1;
    }
}

impl Disk for CountingDisk {
    fn make_dir(&self, dir: &str) -> io::Result<()> {
        self.disk.make_dir(dir)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }

    fn lock(&self, name: &str, hold: LockKind) -> io::Result<Box<dyn HeldLock>> {
        self.disk.lock(name, hold)
    }

    fn open(&self, name: &str, access: FileAccess) -> io::Result<Arc<dyn DiskFile>> {
        if name.starts_with("runs/") {
            self.meet();
        }
        Ok(self.file(name, self.disk.open(name, access)?))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(name, self.disk.create(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }

    fn unique(&self) -> u64 {
        self.disk.unique()
    }

    fn secret(&self) -> io::Result<[u64; 2]> {
        self.disk.secret()
    }
}

impl DiskFile for CountingFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_at(buffer, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut state = self.counts.state.lock().expect("no panic");
        *state.written.entry(self.dir.clone()).or_default() += bytes.len() as u64;
        drop(state);
        self.file.write_at(bytes, at)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        if self.counts.state.lock().expect("no panic").cannot_allocate {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.file.allocate(bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
