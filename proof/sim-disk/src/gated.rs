//! A disk in front of another one, on which a test decides when some of the calls continue, and how they end.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use duewheel_store_log::disk::{Disk, DiskFile, FileAccess, HeldLock, LockKind, RealDisk};

use crate::plan::Denial;

/// The calls that pass the gate; all others continue at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatedCalls {
    /// Creating a file whose name begins with this text.
    Creates(&'static str),
    /// Writing to any file.
    Writes,
}

/// The result of a call at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateRule {
    /// It continues.
    Open,
    /// This number of calls continue; the next one neither succeeds nor fails until the rule changes.
    After(u64),
    /// It fails.
    Denied(Denial),
}

/// A disk with a gate.
#[derive(Clone, Debug)]
pub struct GatedDisk<D> {
    disk: D,
    gate: Arc<DiskGate>,
}

#[derive(Debug)]
struct DiskGate {
    calls: GatedCalls,
    state: Mutex<Passage>,
    changed: Condvar,
}

#[derive(Debug)]
struct Passage {
    rule: GateRule,
    /// Calls that are at the gate.
    waiting: u64,
}

#[derive(Debug)]
struct GatedFile {
    file: Arc<dyn DiskFile>,
    gate: Arc<DiskGate>,
}

impl<D: Disk> GatedDisk<D> {
    /// A disk on which these calls pass a gate.
    pub fn new(disk: D, calls: GatedCalls, rule: GateRule) -> Self {
        let state = Mutex::new(Passage { rule, waiting: 0 });
        GatedDisk { disk, gate: Arc::new(DiskGate { calls, state, changed: Condvar::new() }) }
    }

    /// Sets the rule for waiting and later calls.
    pub fn set(&self, rule: GateRule) {
        self.gate.state().rule = rule;
        self.gate.changed.notify_all();
    }

    /// Blocks until a call waits for another rule.
    pub fn wait_until_asked(&self) {
        let is_free = |state: &mut Passage| state.waiting == 0 || state.rule != GateRule::After(0);
        let state = self.gate.changed.wait_while(self.gate.state(), is_free);
        drop(state.unwrap_or_else(PoisonError::into_inner));
    }

    fn file(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        match self.gate.calls {
            GatedCalls::Creates(_) => file,
            GatedCalls::Writes => Arc::new(GatedFile { file, gate: Arc::clone(&self.gate) }),
        }
    }
}

impl DiskGate {
    fn state(&self) -> MutexGuard<'_, Passage> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self) -> io::Result<()> {
        let mut state = self.state();
        state.waiting += 1;
        self.changed.notify_all();
        let is_shut = |state: &mut Passage| state.rule == GateRule::After(0);
        state = self.changed.wait_while(state, is_shut).unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        match &mut state.rule {
            GateRule::Open => Ok(()),
            GateRule::After(left) => {
                *left -= 1;
                self.changed.notify_all();
                Ok(())
            }
            GateRule::Denied(Denial::Failed) => Err(io::Error::from_raw_os_error(5)),
            GateRule::Denied(Denial::Full) => Err(io::Error::from_raw_os_error(28)),
        }
    }
}

impl<D: Disk> Disk for GatedDisk<D> {
    fn make_dir(&self, dir: &str) -> io::Result<()> {
        self.disk.make_dir(dir)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }

    fn lock(&self, name: &str, kind: LockKind) -> io::Result<Box<dyn HeldLock>> {
        self.disk.lock(name, kind)
    }

    fn open(&self, name: &str, access: FileAccess) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(self.disk.open(name, access)?))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        if let GatedCalls::Creates(prefix) = self.gate.calls
            && name.starts_with(prefix)
        {
            self.gate.pass()?;
        }
        Ok(self.file(self.disk.create(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn link(&self, name: &str, to: &RealDisk) -> io::Result<()> {
        self.disk.link(name, to)
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

impl DiskFile for GatedFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_at(buffer, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.gate.pass()?;
        self.file.write_at(bytes, at)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.file.allocate(bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
