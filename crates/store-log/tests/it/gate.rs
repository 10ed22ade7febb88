//! A disk on which a test decides what becomes of each new segment of the journal.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use duewheel_sim_disk::SimDisk;
use duewheel_store_log::disk::{Disk, DiskFile, FileAccess, HeldLock, LockKind};

/// What becomes of a segment that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// So many are made; the next one neither succeeds nor fails until the gate is set anew.
    After(u64),
    /// There is no room for it.
    Full,
    /// It is made.
    Open,
}

/// A simulated disk with a [`Gate`].
#[derive(Clone, Debug)]
pub(crate) struct GatedDisk {
    disk: SimDisk,
    gate: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Debug)]
struct State {
    gate: Gate,
    waiting: u64,
}

impl GatedDisk {
    pub(crate) fn new(seed: u64, gate: Gate) -> Self {
        let gate = Arc::new((Mutex::new(State { gate, waiting: 0 }), Condvar::new()));
        GatedDisk { disk: SimDisk::new(seed), gate }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.gate.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides about the segments from the one that waits on.
    pub(crate) fn set(&self, gate: Gate) {
        self.state().gate = gate;
        self.gate.1.notify_all();
    }

    /// Waits until a segment is to be made that waits for a decision.
    pub(crate) fn wait_until_asked(&self) {
        let state = self.gate.1.wait_while(self.state(), |state| state.waiting == 0);
        drop(state.unwrap_or_else(PoisonError::into_inner));
    }

    fn pass(&self) -> io::Result<()> {
        let mut state = self.state();
        state.waiting += 1;
        self.gate.1.notify_all();
        let shut = |state: &mut State| state.gate == Gate::After(0);
        state = self.gate.1.wait_while(state, shut).unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        match &mut state.gate {
            Gate::After(left) => *left -= 1,
            Gate::Full => return Err(io::ErrorKind::StorageFull.into()),
            Gate::Open => {}
        }
        Ok(())
    }
}

impl Disk for GatedDisk {
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
        self.disk.open(name, access)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        if name.starts_with("journal/") {
            self.pass()?;
        }
        self.disk.create(name)
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
}
