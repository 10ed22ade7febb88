//! A disk in memory that knows what has been synced: it can lose power, fail, fill up and stop in the middle of a write.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use duewheel_core::store::conformance::Dice;
use duewheel_store_log::disk::{Access, Disk, DiskFile, Held, Hold};

const SECTOR: usize = 512;

/// Clones are the same disk.
#[derive(Clone, Debug)]
pub(crate) struct SimDisk(Arc<Mutex<Inner>>, Arc<Gate>);

/// Where syncs of files wait while a test holds them.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct GateState {
    held: bool,
    waiting: usize,
}

#[derive(Clone, Debug)]
struct Inner {
    inodes: BTreeMap<u64, Inode>,
    /// Names as everybody sees them, and as they are after a power loss.
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    /// Changes of names that were not synced, oldest first.
    unsynced_names: Vec<NameChange>,
    locks: BTreeMap<String, Locks>,
    next: u64,
    /// Calls so far that change something.
    calls: u64,
    /// Calls so far that only look: opens, reads, lists, lengths.
    looks: u64,
    plan: Plan,
    /// The calls that were made to fail.
    failed: BTreeSet<&'static str>,
    free: u64,
    /// Somebody else takes whatever becomes free.
    crowded: bool,
    power: Power,
    dice: Dice,
}

#[derive(Clone, Debug, Default)]
struct Inode {
    cached: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors that differ.
    dirty: BTreeSet<usize>,
}

#[derive(Clone, Debug)]
struct NameChange {
    dir: String,
    gone: Option<String>,
    new: Option<(String, u64)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Locks {
    exclusive: usize,
    shared: usize,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Nothing.
    Fine,
    /// This call and all behind it: the machine stops in the middle of it.
    HaltAt(u64),
    /// This call only. A write that fails has written a part.
    FailAt(u64),
    /// The same, for want of room.
    FullAt(u64),
    /// This one of the calls that only look.
    BlindAt(u64),
    /// The next write or sync of a file in this folder.
    FailNext(&'static str),
    /// Every write or sync of a file in this folder, until another plan is made. (The next one alone may be a background
    /// worker's, which harms nothing and is tried again.)
    FailAll(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Power {
    On,
    Off,
}

/// Which unsynced bytes and names survive a power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Survivors {
    /// None.
    None,
    /// All, as after kill -9.
    All,
    /// Some, sector by sector.
    Some,
}

impl SimDisk {
    pub(crate) fn new(seed: u64) -> Self {
        SimDisk(
            Arc::new(Mutex::new(Inner {
                inodes: BTreeMap::new(),
                names: BTreeMap::new(),
                durable_names: BTreeMap::new(),
                unsynced_names: Vec::new(),
                locks: BTreeMap::new(),
                next: 1,
                calls: 0,
                looks: 0,
                plan: Plan::Fine,
                failed: BTreeSet::new(),
                free: u64::MAX,
                crowded: false,
                power: Power::On,
                dice: Dice::new(seed),
            })),
            Arc::default(),
        )
    }

    /// Another disk with the same content.
    pub(crate) fn copy(&self) -> SimDisk {
        let mut inner = self.inner().clone();
        inner.locks.clear();
        SimDisk(Arc::new(Mutex::new(inner)), Arc::default())
    }

    pub(crate) fn plan(&self, plan: Plan) {
        self.inner().plan = plan;
    }

    pub(crate) fn calls(&self) -> u64 {
        self.inner().calls
    }

    pub(crate) fn looks(&self) -> u64 {
        self.inner().looks
    }

    /// Which kinds of calls have been made to fail, by their names.
    pub(crate) fn failed(&self) -> BTreeSet<&'static str> {
        self.inner().failed.clone()
    }

    /// So many bytes may still be allocated or reported free.
    pub(crate) fn set_free(&self, free: u64) {
        let mut inner = self.inner();
        (inner.free, inner.crowded) = (free, false);
    }

    /// Nothing is free, and what is given back is taken by others at once.
    pub(crate) fn fill(&self) {
        let mut inner = self.inner();
        (inner.free, inner.crowded) = (0, true);
    }

    /// The machine stops, loses what was not synced, and is started again.
    pub(crate) fn restart(&self, survivors: Survivors) {
        let mut inner = self.inner();
        let inner = &mut *inner;
        let dice = &mut inner.dice;
        let mut survives = || match survivors {
            Survivors::None => false,
            Survivors::All => true,
            Survivors::Some => dice.once_in(2),
        };
        for change in std::mem::take(&mut inner.unsynced_names) {
            if survives() {
                change.apply(&mut inner.durable_names);
            }
        }
        inner.names = inner.durable_names.clone();
        for inode in inner.inodes.values_mut() {
            if inode.cached.len() != inode.durable.len() && survives() {
                inode.durable.resize(inode.cached.len(), 0);
            }
            for sector in std::mem::take(&mut inode.dirty) {
                if survives() {
                    inode.write_back(sector);
                }
            }
            inode.cached = inode.durable.clone();
        }
        inner.plan = Plan::Fine;
        inner.power = Power::On;
        inner.locks.clear();
    }

    /// From now on a sync of a file does its work and does not return.
    pub(crate) fn hold_syncs(&self) {
        lock(&self.1.state).held = true;
    }

    /// Waits until a sync waits.
    pub(crate) fn wait_for_sync(&self) {
        let state = lock(&self.1.state);
        drop(
            self.1
                .changed
                .wait_while(state, |state| state.waiting == 0)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    pub(crate) fn release_syncs(&self) {
        lock(&self.1.state).held = false;
        self.1.changed.notify_all();
    }

    pub(crate) fn names(&self, dir: &str) -> Vec<String> {
        let inner = self.inner();
        inner.names.keys().filter(|name| name.starts_with(dir)).cloned().collect()
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        let inner = self.inner();
        inner.inodes[&inner.names[name]].cached.clone()
    }

    /// Puts bytes into a file, durably, behind everybody's back.
    pub(crate) fn overwrite(&self, name: &str, bytes: &[u8]) {
        let mut inner = self.inner();
        let id = inner.names[name];
        let inode = Inode { cached: bytes.to_vec(), durable: bytes.to_vec(), dirty: BTreeSet::new() };
        inner.inodes.insert(id, inode);
    }

    pub(crate) fn remove_file(&self, name: &str) {
        let mut inner = self.inner();
        inner.names.remove(name);
        inner.durable_names.remove(name);
    }

    /// Sectors and names that are not synced at the moment.
    pub(crate) fn unsynced(&self) -> usize {
        let inner = self.inner();
        inner.inodes.values().map(|inode| inode.dirty.len()).sum::<usize>() + inner.unsynced_names.len()
    }

    /// Sectors that are not synced in the files of a folder.
    pub(crate) fn unsynced_sectors(&self, dir: &str) -> usize {
        let inner = self.inner();
        let files = inner.names.iter().filter(|(name, _)| name.starts_with(dir));
        files.map(|(_, inode)| inner.inodes[inode].dirty.len()).sum()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no test panics with the disk in its hands")
    }

    fn change_name(&self, dir: &str, gone: Option<&str>, new: Option<(&str, u64)>) {
        let mut inner = self.inner();
        let change = NameChange {
            dir: dir.into(),
            gone: gone.map(Into::into),
            new: new.map(|(name, inode)| (name.into(), inode)),
        };
        change.apply(&mut inner.names);
        inner.unsynced_names.push(change);
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        if let Some(gone) = &self.gone {
            names.remove(gone);
        }
        if let Some((name, inode)) = &self.new {
            names.insert(name.clone(), *inode);
        }
    }
}

impl Inode {
    fn write_back(&mut self, sector: usize) {
        let range = sector * SECTOR..((sector + 1) * SECTOR).min(self.cached.len());
        if self.durable.len() < range.end {
            self.durable.resize(range.end, 0);
        }
        self.durable[range.clone()].copy_from_slice(&self.cached[range]);
    }
}

impl Gate {
    fn pass(&self) {
        let mut state = lock(&self.state);
        state.waiting += 1;
        self.changed.notify_all();
        let mut state =
            self.changed.wait_while(state, |state| state.held).unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a call comes out.
enum Call {
    Works,
    Breaks(io::Error),
}

impl Inner {
    /// Counts a call that changes something.
    fn call(&mut self, what: &'static str, name: &str) -> Call {
        if self.power == Power::Off {
            return Call::Breaks(io::Error::other("the machine has stopped"));
        }
        self.calls += 1;
        let call = self.outcome(name);
        if matches!(call, Call::Breaks(_)) {
            self.failed.insert(what);
        }
        call
    }

    fn outcome(&mut self, name: &str) -> Call {
        match self.plan {
            Plan::HaltAt(n) if n <= self.calls => {
                self.power = Power::Off;
                Call::Breaks(io::Error::other("the machine stops"))
            }
            Plan::FailAt(n) if n == self.calls => Call::Breaks(io::Error::from_raw_os_error(5)),
            Plan::FullAt(n) if n == self.calls => Call::Breaks(io::ErrorKind::StorageFull.into()),
            Plan::FailAll(dir) if name.starts_with(dir) => Call::Breaks(io::Error::from_raw_os_error(5)),
            Plan::FailNext(dir) if name.starts_with(dir) => {
                self.plan = Plan::Fine;
                Call::Breaks(io::Error::from_raw_os_error(5))
            }
            Plan::Fine
            | Plan::HaltAt(_)
            | Plan::FailAt(_)
            | Plan::FullAt(_)
            | Plan::BlindAt(_)
            | Plan::FailNext(_)
            | Plan::FailAll(_) => Call::Works,
        }
    }

    /// Counts a call that only looks.
    fn look(&mut self, what: &'static str) -> io::Result<()> {
        if self.power == Power::Off {
            return Err(io::Error::other("the machine has stopped"));
        }
        self.looks += 1;
        if self.plan == Plan::BlindAt(self.looks) {
            self.failed.insert(what);
            return Err(io::Error::from_raw_os_error(5));
        }
        Ok(())
    }

    /// A file becomes longer by so much.
    fn take(&mut self, bytes: u64) -> io::Result<()> {
        if self.free != u64::MAX {
            self.free = self.free.checked_sub(bytes).ok_or(io::ErrorKind::StorageFull)?;
        }
        Ok(())
    }

    /// A file has no name any more.
    fn give_back(&mut self, inode: u64) {
        if self.free != u64::MAX && !self.crowded {
            self.free += self.inodes[&inode].cached.len() as u64;
        }
    }

    fn checked(&mut self, what: &'static str, name: &str) -> io::Result<()> {
        match self.call(what, name) {
            Call::Works => Ok(()),
            Call::Breaks(error) => Err(error),
        }
    }
}

fn dir_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(dir, _)| dir)
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Disk for SimDisk {
    fn make_dir(&self, _dir: &str) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let mut inner = self.inner();
        inner.look("list")?;
        let names = inner.names.keys().filter(|name| dir_of(name) == dir);
        Ok(names.map(|name| name.rsplit('/').next().unwrap_or(name).to_owned()).collect())
    }

    fn lock(&self, name: &str, hold: Hold) -> io::Result<Box<dyn Held>> {
        let mut inner = self.inner();
        inner.look("lock")?;
        let locks = inner.locks.entry(name.into()).or_default();
        if locks.exclusive > 0 || (hold == Hold::Exclusive && locks.shared > 0) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match hold {
            Hold::Exclusive => locks.exclusive += 1,
            Hold::Shared => locks.shared += 1,
        }
        Ok(Box::new(SimLock { disk: self.clone(), name: name.into(), hold }))
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        self.inner().look("open")?;
        let inode = *self.inner().names.get(name).ok_or_else(not_found)?;
        Ok(Arc::new(SimFile { disk: self.clone(), inode, name: name.into(), access }))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let inode = {
            let mut inner = self.inner();
            inner.checked("create", name)?;
            if let Some(replaced) = inner.names.get(name).copied() {
                inner.give_back(replaced);
            }
            let inode = inner.next;
            inner.next += 1;
            inner.inodes.insert(inode, Inode::default());
            inode
        };
        self.change_name(dir_of(name), None, Some((name, inode)));
        Ok(Arc::new(SimFile { disk: self.clone(), inode, name: name.into(), access: Access::Write }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        assert_eq!(dir_of(from), dir_of(to));
        self.inner().checked("rename", from)?;
        let inode = *self.inner().names.get(from).ok_or_else(not_found)?;
        let replaced = self.inner().names.get(to).copied();
        if let Some(replaced) = replaced {
            self.inner().give_back(replaced);
        }
        self.change_name(dir_of(from), Some(from), Some((to, inode)));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner().checked("remove", name)?;
        let inode = *self.inner().names.get(name).ok_or_else(not_found)?;
        self.change_name(dir_of(name), Some(name), None);
        self.inner().give_back(inode);
        Ok(())
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let mut inner = self.inner();
        inner.checked("sync_dir", dir)?;
        let (synced, rest) =
            std::mem::take(&mut inner.unsynced_names).into_iter().partition(|c| c.dir == dir);
        inner.unsynced_names = rest;
        let synced: Vec<NameChange> = synced;
        for change in synced {
            change.apply(&mut inner.durable_names);
        }
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.inner().look("free_bytes")?;
        Ok(self.inner().free)
    }

    fn unique(&self) -> u64 {
        self.inner().dice.roll()
    }
}

#[derive(Debug)]
struct SimLock {
    disk: SimDisk,
    name: String,
    hold: Hold,
}

impl Held for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut inner = self.disk.inner();
        if let Some(locks) = inner.locks.get_mut(&self.name) {
            match self.hold {
                Hold::Exclusive => locks.exclusive = locks.exclusive.saturating_sub(1),
                Hold::Shared => locks.shared = locks.shared.saturating_sub(1),
            }
        }
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    inode: u64,
    name: String,
    access: Access,
}

impl SimFile {
    fn put(&self, inner: &mut Inner, bytes: &[u8], at: usize) {
        let inode = inner.inodes.get_mut(&self.inode).expect("inodes stay");
        let end = at + bytes.len();
        if inode.cached.len() < end {
            inode.cached.resize(end, 0);
        }
        inode.cached[at..end].copy_from_slice(bytes);
        if !bytes.is_empty() {
            inode.dirty.extend(at / SECTOR..=(end - 1) / SECTOR);
        }
    }
}

impl DiskFile for SimFile {
    fn size(&self) -> io::Result<u64> {
        self.disk.inner().look("size")?;
        Ok(self.disk.inner().inodes[&self.inode].cached.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let mut inner = self.disk.inner();
        inner.look("read")?;
        let at = usize::try_from(at).expect("small");
        let bytes = inner.inodes[&self.inode].cached.get(at..at + buffer.len());
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        assert_eq!(self.access, Access::Write, "{} was opened for reading", self.name);
        let at = usize::try_from(at).expect("small");
        let mut inner = self.disk.inner();
        match inner.call("write", &self.name) {
            Call::Works => {
                let grows = (at + bytes.len()).saturating_sub(inner.inodes[&self.inode].cached.len());
                inner.take(grows as u64)?;
                self.put(&mut inner, bytes, at);
                Ok(())
            }
            Call::Breaks(error) => {
                let part = usize::try_from(inner.dice.below(bytes.len() as u64 + 1)).expect("small");
                if !error.to_string().contains("has stopped") {
                    self.put(&mut inner, &bytes[..part], at);
                }
                Err(error)
            }
        }
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        let mut inner = self.disk.inner();
        inner.checked("allocate", &self.name)?;
        let grows = bytes.saturating_sub(inner.inodes[&self.inode].cached.len() as u64);
        inner.take(grows)?;
        let inode = inner.inodes.get_mut(&self.inode).expect("inodes stay");
        inode.cached.resize(usize::try_from(bytes).expect("small"), 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        // What is written while a sync runs may or may not be covered by it: here it is not.
        {
            let mut inner = self.disk.inner();
            inner.checked("sync", &self.name)?;
            let inode = inner.inodes.get_mut(&self.inode).expect("inodes stay");
            inode.durable.resize(inode.cached.len(), 0);
            for sector in std::mem::take(&mut inode.dirty) {
                inode.write_back(sector);
            }
        }
        self.disk.1.pass();
        Ok(())
    }
}
