//! Private: a disk in memory that tracks what has been synced. It can lose power, fail, report false success, fill up,
//! panic, and stop in the middle of a write.
//!
//! A power loss leaves any *subset* of the unsynced changes: of each write any bytes, of each allocation the length or
//! not, of each change of a name the change or not ([`SimDisk::restart`]). All randomness comes from the seed: the same
//! calls give the same results.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use duewheel_core::store::conformance::Dice;
use duewheel_store_log::disk::{Disk, DiskFile, FileAccess, HeldLock, LockKind};

mod gated;
mod inode;
mod plan;

pub use gated::{GateRule, GatedCalls, GatedDisk};
use inode::{Inode, Keep};
use plan::Kind;
pub use plan::{Denial, Lie, Plan, Rates, Seen, Survivors, Trouble};

/// A simulated disk. Clones share one disk.
#[derive(Clone, Debug)]
pub struct SimDisk(Arc<Mutex<Inner>>, Arc<Gate>);

/// The gate at which syncs of files wait while a test holds them.
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
    /// The names: the visible ones, and those after a power loss.
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    /// Changes of names that were not synced, oldest first.
    unsynced_names: Vec<NameChange>,
    locks: BTreeMap<String, Locks>,
    next: u64,
    /// The number of calls so far that change something.
    calls: u64,
    /// The number of calls so far that only read: opens, reads, lists, lengths.
    looks: u64,
    /// The calls that were made to fail.
    failed: BTreeSet<&'static str>,
    plan: Plan,
    trouble: Option<Trouble>,
    /// One of this number of reads would have to wait for the disk; 0 is none.
    cold: u64,
    lie: Option<Lie>,
    panic: Panic,
    free: u64,
    /// Whether others take all space that becomes free.
    crowded: bool,
    power: Power,
    dice: Dice,
    /// For seeds of folders: what else is drawn stays as it was before there were any.
    secrets: Dice,
    syncs: u64,
    seen: Seen,
    trace: Option<String>,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Panic {
    No,
    Next,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Power {
    On,
    Off,
}

impl SimDisk {
    /// An empty disk.
    pub fn new(seed: u64) -> Self {
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
                failed: BTreeSet::new(),
                plan: Plan::Fine,
                trouble: None,
                cold: 0,
                lie: None,
                panic: Panic::No,
                free: u64::MAX,
                crowded: false,
                power: Power::On,
                dice: Dice::new(seed),
                secrets: Dice::new(!seed),
                syncs: 0,
                seen: Seen::default(),
                trace: None,
            })),
            Arc::default(),
        )
    }

    /// Another disk with the same content.
    pub fn copy(&self) -> SimDisk {
        let mut inner = self.inner().clone();
        inner.locks.clear();
        SimDisk(Arc::new(Mutex::new(inner)), Arc::default())
    }

    /// Sets the faults of calls from now on.
    pub fn plan(&self, plan: Plan) {
        self.inner().plan = plan;
    }

    /// Lets one of this number of reads need the disk, and the others find what they want in memory; 0: all do.
    pub fn cold(&self, one_of: u64) {
        self.inner().cold = one_of;
    }

    /// Makes files of these folders unwritable from now on; over restarts, too.
    pub fn trouble(&self, trouble: Option<Trouble>) {
        self.inner().trouble = trouble;
    }

    /// Makes calls report false success from now on.
    pub fn lie(&self, lie: Option<Lie>) {
        self.inner().lie = lie;
    }

    /// Makes the next call of any kind panic.
    pub fn panic_next(&self) {
        self.inner().panic = Panic::Next;
    }

    /// Withdraws [`SimDisk::panic_next`], if there was no call meanwhile.
    pub fn do_not_panic(&self) {
        self.inner().panic = Panic::No;
    }

    /// The number of calls so far that change something.
    pub fn calls(&self) -> u64 {
        self.inner().calls
    }

    /// The number of calls so far that only read.
    pub fn looks(&self) -> u64 {
        self.inner().looks
    }

    /// The kinds of calls that have been made to fail, by their names.
    pub fn failed(&self) -> BTreeSet<&'static str> {
        self.inner().failed.clone()
    }

    /// Whether the machine has stopped.
    pub fn has_stopped(&self) -> bool {
        self.inner().power == Power::Off
    }

    /// The faults that have really happened so far.
    pub fn seen(&self) -> Seen {
        self.inner().seen
    }

    /// Records every call from now on.
    pub fn start_trace(&self) {
        self.inner().trace = Some(String::new());
    }

    /// The calls recorded since the last call of this.
    pub fn take_trace(&self) -> String {
        self.inner().trace.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// So many bytes may still be allocated or reported free.
    pub fn set_free(&self, free: u64) {
        let mut inner = self.inner();
        (inner.free, inner.crowded) = (free, false);
    }

    /// Makes the disk full: nothing is free, and released space is taken by others at once.
    pub fn fill(&self) {
        let mut inner = self.inner();
        (inner.free, inner.crowded) = (0, true);
    }

    /// Simulates the end and restart of the process or the machine, which loses what does not survive.
    pub fn restart(&self, survivors: Survivors) {
        let mut inner = self.inner();
        let inner = &mut *inner;
        inner.plan = Plan::Fine;
        inner.panic = Panic::No;
        inner.power = Power::On;
        inner.locks.clear();
        let keep = match survivors {
            Survivors::All => return,
            Survivors::None => Keep::Nothing,
            Survivors::Some => Keep::Some,
        };
        for change in std::mem::take(&mut inner.unsynced_names) {
            if keep == Keep::Some && inner.dice.once_in(2) {
                change.apply(&mut inner.durable_names);
            } else {
                inner.seen.lost_names += 1;
            }
        }
        inner.names = inner.durable_names.clone();
        for inode in inner.inodes.values_mut() {
            inner.seen.lost_bytes += inode.lose(keep, &mut inner.dice);
        }
        // Files without a name are gone.
        let named: Vec<u64> = inner.names.values().copied().collect();
        inner.inodes.retain(|id, _| named.contains(id));
    }

    /// From now on a sync of a file does its work and does not return.
    pub fn hold_syncs(&self) {
        lock(&self.1.state).held = true;
    }

    /// Waits until a sync waits.
    pub fn wait_for_sync(&self) {
        let state = lock(&self.1.state);
        drop(
            self.1
                .changed
                .wait_while(state, |state| state.waiting == 0)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// Lets held syncs return.
    pub fn release_syncs(&self) {
        lock(&self.1.state).held = false;
        self.1.changed.notify_all();
    }

    /// The names that begin with this text.
    pub fn names(&self, dir: &str) -> Vec<String> {
        let inner = self.inner();
        inner.names.keys().filter(|name| name.starts_with(dir)).cloned().collect()
    }

    /// The bytes of a file.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn read(&self, name: &str) -> Vec<u8> {
        let inner = self.inner();
        inner.inodes[&inner.names[name]].bytes().to_vec()
    }

    /// Replaces the content of a file durably, without a call of the store.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn overwrite(&self, name: &str, bytes: &[u8]) {
        let mut inner = self.inner();
        let id = inner.names[name];
        inner.inodes.insert(id, Inode::with(bytes));
    }

    /// Removes a file durably, without a call of the store.
    pub fn remove_file(&self, name: &str) {
        let mut inner = self.inner();
        inner.names.remove(name);
        inner.durable_names.remove(name);
    }

    /// The number of sectors and names that are unsynced at the moment.
    pub fn unsynced(&self) -> usize {
        let inner = self.inner();
        inner.inodes.values().map(Inode::unsynced_sectors).sum::<usize>() + inner.unsynced_names.len()
    }

    /// The number of unsynced sectors in the files of a folder.
    pub fn unsynced_sectors(&self, dir: &str) -> usize {
        let inner = self.inner();
        let files = inner.names.iter().filter(|(name, _)| name.starts_with(dir));
        files.map(|(_, inode)| inner.inodes[inode].unsynced_sectors()).sum()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
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

    /// Panics if it was requested, with nothing locked.
    fn may_panic(&self) {
        let panics = {
            let mut inner = self.inner();
            let panics = std::mem::replace(&mut inner.panic, Panic::No) == Panic::Next;
            inner.seen.panics += u64::from(panics);
            panics
        };
        assert!(!panics, "the simulated disk panics, as it was told to");
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

/// The result of a call.
enum Call {
    Works,
    Breaks(io::Error),
}

impl Inner {
    /// Counts a call that changes something.
    fn call(&mut self, what: &'static str, name: &str, kind: Kind) -> Call {
        let mut call = self.outcome(name, kind);
        if let (Call::Works, Some(trouble)) = (&call, self.trouble)
            && trouble.meets(what, name)
            && self.dice.once_in(trouble.one_in)
        {
            self.seen.troubled += 1;
            call = match trouble.denial {
                Denial::Failed => self.fails(name, kind),
                Denial::Full => Call::Breaks(io::ErrorKind::StorageFull.into()),
            };
        }
        if matches!(call, Call::Breaks(_)) {
            self.failed.insert(what);
        }
        call
    }

    fn outcome(&mut self, name: &str, kind: Kind) -> Call {
        if self.power == Power::Off {
            return Call::Breaks(io::Error::other("the machine has stopped"));
        }
        self.calls += 1;
        let plan = self.plan;
        match plan {
            Plan::HaltAt(n) if n <= self.calls => {
                self.power = Power::Off;
                Call::Breaks(io::Error::other("the machine stops"))
            }
            Plan::FailAt(n) if n == self.calls => self.fails(name, kind),
            Plan::FullAt(n) if n == self.calls => Call::Breaks(io::ErrorKind::StorageFull.into()),
            Plan::FailAll(dir) if name.starts_with(dir) => self.fails(name, kind),
            Plan::FailNext(dir) if name.starts_with(dir) => {
                self.plan = Plan::Fine;
                self.fails(name, kind)
            }
            Plan::Sometimes(rates) if self.happens(rates.of(kind)) => self.fails(name, kind),
            Plan::Fine
            | Plan::HaltAt(_)
            | Plan::FailAt(_)
            | Plan::FullAt(_)
            | Plan::BlindAt(_)
            | Plan::FailNext(_)
            | Plan::FailAll(_)
            | Plan::Sometimes(_) => Call::Works,
        }
    }

    /// Counts a call that only reads.
    fn look(&mut self, what: &'static str, name: &str, kind: Kind) -> io::Result<()> {
        if self.power == Power::Off {
            return Err(io::Error::other("the machine has stopped"));
        }
        self.looks += 1;
        let fails = match self.plan {
            Plan::BlindAt(n) => n == self.looks,
            Plan::Sometimes(rates) => self.happens(rates.of(kind)),
            _ => false,
        };
        if fails {
            self.failed.insert(what);
            if let Call::Breaks(error) = self.fails(name, kind) {
                return Err(error);
            }
        }
        Ok(())
    }

    fn happens(&mut self, rate: u64) -> bool {
        rate > 0 && self.dice.once_in(rate)
    }

    fn fails(&mut self, name: &str, kind: Kind) -> Call {
        self.seen.failed += 1;
        self.seen.failed_syncs += u64::from(kind == Kind::Sync);
        self.note(format_args!("{kind:?} of {name} fails"));
        Call::Breaks(io::Error::from_raw_os_error(5))
    }

    fn note(&mut self, what: std::fmt::Arguments<'_>) {
        if let Some(trace) = &mut self.trace {
            let _ = writeln!(trace, "disk: {what}"); // a string takes everything
        }
    }

    /// Extends a file by this number of bytes.
    fn take(&mut self, bytes: u64) -> io::Result<()> {
        if self.free != u64::MAX {
            let left = self.free.checked_sub(bytes);
            self.seen.full += u64::from(left.is_none());
            self.free = left.ok_or(io::ErrorKind::StorageFull)?;
        }
        Ok(())
    }

    /// Releases a file that has no name any more.
    fn give_back(&mut self, inode: u64) {
        if self.free != u64::MAX && !self.crowded {
            self.free += self.inodes[&inode].len() as u64;
        }
    }

    fn checked(&mut self, what: &'static str, name: &str, kind: Kind) -> io::Result<()> {
        match self.call(what, name, kind) {
            Call::Works => Ok(()),
            Call::Breaks(error) => Err(error),
        }
    }

    fn inode(&mut self, inode: u64) -> &mut Inode {
        self.inodes.get_mut(&inode).expect("the inode of an open file stays until the machine stops")
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
        self.may_panic();
        let mut inner = self.inner();
        inner.look("list", dir, Kind::Open)?;
        let names = inner.names.keys().filter(|name| dir_of(name) == dir);
        Ok(names.map(|name| name.rsplit('/').next().unwrap_or(name).to_owned()).collect())
    }

    fn lock(&self, name: &str, hold: LockKind) -> io::Result<Box<dyn HeldLock>> {
        let mut inner = self.inner();
        inner.look("lock", name, Kind::Open)?;
        let locks = inner.locks.entry(name.into()).or_default();
        if locks.exclusive > 0 || (hold == LockKind::Exclusive && locks.shared > 0) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match hold {
            LockKind::Exclusive => locks.exclusive += 1,
            LockKind::Shared => locks.shared += 1,
        }
        Ok(Box::new(SimLock { disk: self.clone(), name: name.into(), hold }))
    }

    fn open(&self, name: &str, access: FileAccess) -> io::Result<Arc<dyn DiskFile>> {
        self.may_panic();
        let mut inner = self.inner();
        let inode = *inner.names.get(name).ok_or_else(not_found)?;
        inner.look("open", name, Kind::Open)?;
        Ok(Arc::new(SimFile { disk: self.clone(), inode, name: name.into(), access }))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.may_panic();
        let inode = {
            let mut inner = self.inner();
            inner.checked("create", name, Kind::Name)?;
            inner.note(format_args!("create {name}"));
            if let Some(replaced) = inner.names.get(name).copied() {
                inner.give_back(replaced);
            }
            let inode = inner.next;
            inner.next += 1;
            inner.inodes.insert(inode, Inode::default());
            inode
        };
        self.change_name(dir_of(name), None, Some((name, inode)));
        Ok(Arc::new(SimFile { disk: self.clone(), inode, name: name.into(), access: FileAccess::Write }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.may_panic();
        assert_eq!(dir_of(from), dir_of(to));
        let inode = {
            let mut inner = self.inner();
            inner.checked("rename", from, Kind::Name)?;
            inner.note(format_args!("rename {from} to {to}"));
            let inode = *inner.names.get(from).ok_or_else(not_found)?;
            if let Some(replaced) = inner.names.get(to).copied() {
                inner.give_back(replaced);
            }
            inode
        };
        self.change_name(dir_of(from), Some(from), Some((to, inode)));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.may_panic();
        let inode = {
            let mut inner = self.inner();
            inner.checked("remove", name, Kind::Name)?;
            inner.note(format_args!("remove {name}"));
            *inner.names.get(name).ok_or_else(not_found)?
        };
        self.change_name(dir_of(name), Some(name), None);
        self.inner().give_back(inode);
        Ok(())
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.may_panic();
        let mut inner = self.inner();
        inner.checked("sync_dir", dir, Kind::Name)?;
        inner.note(format_args!("sync the names of {dir:?}"));
        if inner.lie == Some(Lie::NoDirSync) {
            return Ok(());
        }
        let (synced, rest): (Vec<NameChange>, _) =
            std::mem::take(&mut inner.unsynced_names).into_iter().partition(|c| c.dir == dir);
        inner.unsynced_names = rest;
        for change in synced {
            change.apply(&mut inner.durable_names);
        }
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let mut inner = self.inner();
        inner.look("free_bytes", "", Kind::Open)?;
        Ok(inner.free)
    }

    fn unique(&self) -> u64 {
        self.inner().dice.roll()
    }

    fn secret(&self) -> io::Result<[u64; 2]> {
        let mut inner = self.inner();
        Ok([inner.secrets.roll(), inner.secrets.roll()])
    }
}

#[derive(Debug)]
struct SimLock {
    disk: SimDisk,
    name: String,
    hold: LockKind,
}

impl HeldLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut inner = self.disk.inner();
        if let Some(locks) = inner.locks.get_mut(&self.name) {
            match self.hold {
                LockKind::Exclusive => locks.exclusive = locks.exclusive.saturating_sub(1),
                LockKind::Shared => locks.shared = locks.shared.saturating_sub(1),
            }
        }
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    inode: u64,
    name: String,
    access: FileAccess,
}

impl DiskFile for SimFile {
    fn size(&self) -> io::Result<u64> {
        let mut inner = self.disk.inner();
        inner.look("size", &self.name, Kind::Read)?;
        Ok(inner.inode(self.inode).len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.disk.may_panic();
        let mut inner = self.disk.inner();
        inner.look("read", &self.name, Kind::Read)?;
        let at = usize::try_from(at).expect("small");
        let bytes = inner.inode(self.inode).bytes().get(at..at + buffer.len());
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn read_at_hand(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        {
            let mut inner = self.disk.inner();
            let cold = inner.cold;
            if inner.happens(cold) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        self.read_at(buffer, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        assert_eq!(self.access, FileAccess::Write, "{} was opened for reading", self.name);
        self.disk.may_panic();
        let at = usize::try_from(at).expect("small");
        let mut inner = self.disk.inner();
        match inner.call("write", &self.name, Kind::Write) {
            Call::Works => {
                inner.note(format_args!("write {} bytes at {at} of {}", bytes.len(), self.name));
                let grows = (at + bytes.len()).saturating_sub(inner.inode(self.inode).len());
                inner.take(grows as u64)?;
                let mut written = bytes;
                if let Plan::Sometimes(rates) = inner.plan
                    && inner.happens(rates.short)
                {
                    inner.seen.short += 1;
                    if inner.lie == Some(Lie::ShortWrite) {
                        let part = usize::try_from(inner.dice.below(bytes.len() as u64 + 1)).expect("small");
                        written = &bytes[..part];
                    }
                }
                inner.inode(self.inode).write(written, at);
                Ok(())
            }
            Call::Breaks(error) => {
                let part = usize::try_from(inner.dice.below(bytes.len() as u64 + 1)).expect("small");
                if !error.to_string().contains("has stopped") {
                    inner.inode(self.inode).write(&bytes[..part], at);
                }
                Err(error)
            }
        }
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.disk.may_panic();
        let mut inner = self.disk.inner();
        inner.checked("allocate", &self.name, Kind::Name)?;
        inner.note(format_args!("allocate {bytes} bytes for {}", self.name));
        let grows = bytes.saturating_sub(inner.inode(self.inode).len() as u64);
        inner.take(grows)?;
        inner.inode(self.inode).allocate(usize::try_from(bytes).expect("small"));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.may_panic();
        // Data that is written while a sync runs may or may not be covered by it: here it is not.
        {
            let mut guard = self.disk.inner();
            let inner = &mut *guard;
            if let Err(error) = inner.checked("sync", &self.name, Kind::Sync) {
                if inner.power == Power::Off {
                    return Err(error);
                }
                let inode = inner.inodes.get_mut(&self.inode).expect("as above");
                inode.sync_in_part(&mut inner.dice);
                return if inner.lie == Some(Lie::RetrySync) { Ok(()) } else { Err(error) };
            }
            inner.note(format_args!("sync {}", self.name));
            inner.syncs += 1;
            let skips = match inner.lie {
                Some(Lie::SkipSync(n)) => inner.syncs.is_multiple_of(n),
                Some(Lie::SkipSyncIn(dir)) => self.name.starts_with(dir),
                Some(Lie::NoDirSync | Lie::RetrySync | Lie::ShortWrite) | None => false,
            };
            if skips {
                return Ok(());
            }
            inner.inode(self.inode).sync();
        }
        self.disk.1.pass();
        Ok(())
    }
}
