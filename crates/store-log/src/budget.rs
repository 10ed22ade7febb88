//! Room for records: the memory that all log stores of a process share, and the disk space that must stay free.
//!
//! # Memory
//!
//! Half of it is for active memtables, half for frozen ones. When the active ones have reached their half, the store with
//! the largest one is asked to cut it off.
//!
//! A quarter of the budget is reserved: each store has an even part of that quarter, whatever the others have. What stores
//! have beyond their reserves is together at most the rest. A store that finds no room takes no new messages until a flush
//! has made some. When the rest is used up, a store with half of its reserve in its active memtable cuts it off, and fills
//! the other half during the flush: so a store whose flush does not end cannot stop the others.
//!
//! The two sums and `waits` are ordered (`SeqCst`): a store notes that it waits and looks at the sums again, and a store
//! that makes a sum smaller looks for stores that wait afterwards. So one of the two sees the other. The numbers of each
//! store are relaxed: a store changes its own before it changes a sum, and they are read after the sums.

use std::fmt;
use std::io;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, Weak};

use duewheel_core::store::{StoreError, Waker};

use crate::disk::{Disk, FileAccess, allocate_if_possible};
use crate::fault::{failed, lock};
use crate::format::{RESERVE, RESERVE_BYTES};
use crate::mem::Mem;

/// Divisor of a budget that gives its reserve, which all stores share evenly.
const RESERVED: u64 = 4;

/// A bound of the memory for records, for all stores that are opened with it or with a clone of it.
///
/// The budget covers the records that [`Options::journal_bytes`](crate::Options::journal_bytes) bounds in each store,
/// which are not in runs yet, and bounds new messages only. A quarter of it is reserved for all stores in even parts,
/// whatever the others have. A store that is dropped gives its part back.
#[derive(Clone)]
pub struct MemoryBudget(Arc<Bound>);

struct Bound {
    bytes: u64,
    /// Bytes of active memtables, of all stores.
    active: AtomicU64,
    /// Bytes of frozen memtables.
    frozen: AtomicU64,
    stores: Mutex<Vec<Weak<MemoryShare>>>,
    /// Number of `stores`.
    count: AtomicU64,
}

/// The memory that one store uses of a budget.
pub(crate) struct MemoryShare {
    budget: MemoryBudget,
    active: AtomicU64,
    frozen: AtomicU64,
    /// Whether the store should cut off its active memtable.
    asked: AtomicBool,
    /// Whether it waits for room.
    waits: AtomicBool,
    waker: Waker,
}

impl MemoryBudget {
    /// Bytes of a budget that is not chosen.
    pub const DEFAULT_BYTES: u64 = 512 * 1024 * 1024;

    /// A budget of so many bytes.
    pub fn new(bytes: u64) -> Self {
        let [active, frozen, count] = [const { AtomicU64::new(0) }; 3];
        MemoryBudget(Arc::new(Bound { bytes, active, frozen, stores: Mutex::default(), count }))
    }

    /// The size of the budget in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Bytes that the memtables of all stores have.
    pub fn used(&self) -> u64 {
        self.0.active.load(SeqCst).saturating_add(self.0.frozen.load(SeqCst))
    }

    /// Number of stores.
    pub fn stores(&self) -> usize {
        usize::try_from(self.0.count.load(SeqCst)).unwrap_or(usize::MAX)
    }

    /// The part of another store.
    pub(crate) fn share(&self, waker: Waker) -> Arc<MemoryShare> {
        let share = Arc::new(MemoryShare {
            budget: self.clone(),
            active: AtomicU64::new(0),
            frozen: AtomicU64::new(0),
            asked: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            waker,
        });
        self.0.change_stores(|stores| stores.push(Arc::downgrade(&share)));
        share
    }

    /// Bytes that each store may have, whatever the others have. However many stores there are, a store without a record
    /// may take one.
    fn reserve(&self) -> u64 {
        (self.0.bytes / RESERVED / (self.stores() as u64).max(1)).max(1)
    }

    /// Whether what stores have beyond their reserves is as much as they may have.
    fn is_used_up(&self) -> bool {
        let shared = self.0.bytes - self.0.bytes / RESERVED;
        if self.used() < shared {
            return false; // the usual case, without a look at each store
        }
        let reserve = self.reserve();
        let beyond = self.shares().iter().map(|share| share.own().saturating_sub(reserve)).sum::<u64>();
        beyond >= shared
    }

    fn shares(&self) -> Vec<Arc<MemoryShare>> {
        lock(&self.0.stores).iter().filter_map(Weak::upgrade).collect()
    }

    /// Asks stores to cut off their largest memtables, until those that are not asked are within their half. One with less
    /// than an even part of that half is not asked: its flush would free little, and a larger one will be free to cut.
    fn ask(&self) {
        let half = self.0.bytes / 2;
        if self.0.active.load(SeqCst) <= half {
            return;
        }
        let mut shares = self.shares();
        let even = half / (shares.len() as u64).max(1);
        shares.retain(|share| !share.asked.load(Relaxed));
        let mut active: u64 = shares.iter().map(|share| share.active.load(Relaxed)).sum();
        while active > half {
            // A store whose flush is not done yet cannot cut: its memtable waits for that.
            let can_cut = shares
                .iter()
                .filter(|share| share.frozen.load(Relaxed) == 0 && share.active.load(Relaxed) >= even.max(1));
            let Some(largest) = can_cut.max_by_key(|share| share.active.load(Relaxed)).cloned() else {
                return;
            };
            active = active.saturating_sub(largest.active.load(Relaxed));
            shares.retain(|share| !Arc::ptr_eq(share, &largest));
            largest.asked.store(true, Relaxed);
            (largest.waker)();
        }
    }

    /// Wakes the stores that wait for room.
    fn wake(&self) {
        for share in self.shares() {
            if share.waits.load(SeqCst) && share.has_room() && share.waits.swap(false, SeqCst) {
                (share.waker)();
            }
        }
    }
}

impl Bound {
    fn change_stores(&self, change: impl FnOnce(&mut Vec<Weak<MemoryShare>>)) {
        let mut stores = lock(&self.stores);
        change(&mut stores);
        self.count.store(stores.len() as u64, SeqCst);
    }
}

impl MemoryShare {
    /// Notes the size of the active memtable.
    pub(crate) fn set_active(&self, bytes: u64) {
        let before = self.active.swap(bytes, Relaxed);
        change(&self.budget.0.active, before, bytes);
        if bytes > before {
            self.budget.ask();
        }
    }

    /// Notes that the active memtable was cut off.
    pub(crate) fn has_cut(&self) {
        self.asked.store(false, Relaxed);
    }

    /// Notes the size of all frozen memtables. True if it is less than before: then [`MemoryShare::tell`] others, without
    /// holding a lock.
    pub(crate) fn set_frozen(&self, bytes: u64) -> bool {
        let before = self.frozen.swap(bytes, Relaxed);
        change(&self.budget.0.frozen, before, bytes);
        bytes < before
    }

    /// Wakes the stores that wait for room, and asks those that may now cut.
    pub(crate) fn tell(&self) {
        self.budget.wake();
        self.budget.ask();
    }

    /// Whether this store should cut off its active memtable.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Relaxed)
    }

    /// Whether there is no memory for new messages until a flush is done. The store's waker is called when there is. A
    /// store that lives on its reserve is asked to cut: those that have the rest of the memory may never give it back.
    pub(crate) fn is_short(&self) -> bool {
        let half = self.budget.reserve().div_ceil(2);
        if self.own() < half || !self.budget.is_used_up() {
            return false;
        }
        let can_cut = self.frozen.load(Relaxed) == 0 && self.active.load(Relaxed) >= half;
        if can_cut && !self.asked.swap(true, Relaxed) {
            (self.waker)();
        }
        if self.own() < self.budget.reserve() {
            return false;
        }
        self.waits.store(true, SeqCst);
        // Memory may have been freed before this store was seen to wait.
        !self.has_room()
    }

    /// Whether there is memory for new messages: of the reserve, or of what all may have beyond theirs.
    fn has_room(&self) -> bool {
        self.own() < self.budget.reserve() || !self.budget.is_used_up()
    }

    /// Bytes of all its memtables.
    fn own(&self) -> u64 {
        self.active.load(Relaxed).saturating_add(self.frozen.load(Relaxed))
    }

    /// Whether a memtable that keeps so many bytes for its next records may be used again: if no other store may need
    /// them, and they are a small part of what an active memtable may have. With more it would soon be cut again.
    pub(crate) fn may_keep(&self, bytes: u64) -> bool {
        self.is_alone() && bytes <= self.budget.bytes() / 8
    }

    /// Whether no other store shares the budget.
    fn is_alone(&self) -> bool {
        self.budget.stores() == 1
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        let Bound { active, frozen, .. } = &*self.budget.0;
        change(active, self.active.load(Relaxed), 0);
        change(frozen, self.frozen.load(Relaxed), 0);
        self.budget.0.change_stores(|stores| stores.retain(|share| share.strong_count() > 0));
        self.budget.wake();
    }
}

/// Changes one part of a sum.
fn change(sum: &AtomicU64, before: u64, now: u64) {
    if now >= before {
        sum.fetch_add(now - before, SeqCst);
    } else {
        sum.fetch_sub(before - now, SeqCst);
    }
}

impl fmt::Debug for MemoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBudget").field("bytes", &self.0.bytes).field("used", &self.used()).finish()
    }
}

impl fmt::Debug for MemoryShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryShare").field("active", &self.active).finish_non_exhaustive()
    }
}

impl Default for MemoryBudget {
    fn default() -> Self {
        MemoryBudget::new(Self::DEFAULT_BYTES)
    }
}

// The disk space that must stay free, so that the data in memory can be written.
//
// | data | source of its space |
// |---|---|
// | the run of the next flush: rows, bodies that are written again, indexes, and the temporary space for sorting these | counted as free space ([`DiskReserve::wanted`]): new messages are refused before it is used up |
// | the next group, which becomes a part of that run | the same ([`cushion`]) |
// | the next state file and the next manifest | the file `RESERVE`, which is given up for them and made again |
// | acks, cancels, purges | the ballast of the journal ([`crate::journal::preparer`]) |
//
// So a flush that only contains removals needs no free space at all.

/// Bytes of a run besides its messages: its head, its footer, its list of queues. The cushion includes them.
pub(crate) const RUN: u64 = 2048;
/// Largest size of a queue in the state file in bytes, without its histogram.
const QUEUE: u64 = 512;
/// Largest number of bytes that a record adds to the state file: a column of a histogram, or a removed id of a run.
const RECORD: u64 = 12;
/// Largest number of bytes that an id which a purge keeps adds to the state file. It is in the entry of one run.
const KEPT: u64 = 8;
/// The reserve grows in steps of this size.
const STEP: u64 = 64 * 1024;

/// Largest size of the flush of a memtable in bytes, besides the present state file.
pub(crate) fn of_table(mem: &Mem) -> u64 {
    mem.extent().most + of_state(mem)
}

/// Largest number of bytes that the flush of a memtable adds to the state file.
pub(crate) fn of_state(mem: &Mem) -> u64 {
    mem.queues().len() as u64 * QUEUE + mem.records() * RECORD + mem.kept() * KEPT
}

/// Largest number of bytes that the memtables gain before the owner asks for room again, in the form in which a flush
/// writes them.
pub(crate) fn cushion(max_group_bytes: u64) -> u64 {
    2 * max_group_bytes
}

/// Disk space that is reserved, and its purposes.
#[derive(Debug)]
pub(crate) struct DiskReserve {
    /// Largest size of the flushes of all memtables, in bytes.
    pub(crate) to_flush: AtomicU64,
    /// Bytes that the present flush has written.
    pub(crate) flushing: AtomicU64,
    /// Bytes of the files of the state: one with all of it has no more.
    pub(crate) state_bytes: AtomicU64,
    /// Bytes reserved for the next one.
    pub(crate) reserved: AtomicU64,
}

impl DiskReserve {
    /// With a state of so many bytes.
    pub(crate) fn new(state_bytes: u64) -> Self {
        DiskReserve {
            to_flush: AtomicU64::new(0),
            flushing: AtomicU64::new(0),
            state_bytes: AtomicU64::new(state_bytes),
            reserved: AtomicU64::new(0),
        }
    }

    /// Bytes that must be free for all data in memory and for the next group.
    pub(crate) fn wanted(&self, max_group_bytes: u64) -> u64 {
        // The bytes that a running flush has written are not free any more, and need not be.
        let tables = self.to_flush.load(Relaxed).saturating_sub(self.flushing.load(Relaxed));
        tables.saturating_add(self.beside()).saturating_add(cushion(max_group_bytes))
    }

    /// Bytes that a flush may take.
    pub(crate) fn free_for_flush(&self, disk: &dyn Disk) -> io::Result<u64> {
        Ok(disk.free_bytes()?.saturating_sub(self.beside()))
    }

    /// Bytes that the reserve lacks to take the present state file.
    fn beside(&self) -> u64 {
        self.state_bytes.load(Relaxed).saturating_sub(self.reserved.load(Relaxed))
    }

    /// Reserves blocks for the next state file and the next manifest.
    pub(crate) fn keep(&self, disk: &dyn Disk) -> Result<(), StoreError> {
        if disk.allocates_zeros() {
            return Ok(()); // nothing can be set aside there
        }
        let state = self.state_bytes.load(Relaxed);
        // The smallest part of it is for the manifest.
        let wanted = if state > RESERVE_BYTES / 2 {
            RESERVE_BYTES + state.next_multiple_of(STEP)
        } else {
            RESERVE_BYTES
        };
        let there = match disk.open(RESERVE, FileAccess::Read) {
            Ok(file) => file.size().unwrap_or(0),
            Err(_) => 0,
        };
        self.reserved.store(there.saturating_sub(RESERVE_BYTES / 2), Relaxed);
        if there >= wanted {
            return Ok(());
        }
        // Existing blocks are not given up if the larger reserve would not fit.
        if there > 0 && disk.free_bytes().is_ok_and(|free| free.saturating_add(there) < wanted + STEP) {
            return Ok(());
        }
        let _ = disk.remove(RESERVE); // or it is not there
        self.reserved.store(0, Relaxed);
        let file = disk.create(RESERVE).map_err(failed("create", RESERVE))?;
        let zeros = vec![0; 64 * 1024];
        let mut kept = allocate_if_possible(&*file, wanted).map(drop);
        let mut at = 0;
        while kept.is_ok() && at < wanted {
            kept = file.write_at(&zeros, at);
            at += zeros.len() as u64;
        }
        if let Err(error) = kept {
            let _ = disk.remove(RESERVE);
            return Err(failed("allocate", RESERVE)(error));
        }
        self.reserved.store(wanted - RESERVE_BYTES / 2, Relaxed);
        Ok(())
    }

    /// Gives up the reserve for its purpose. Returns false if there is none.
    pub(crate) fn give_up(&self, disk: &dyn Disk) -> bool {
        self.reserved.store(0, Relaxed);
        disk.remove(RESERVE).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    /// Stores with wakers that count.
    fn stores(budget: &MemoryBudget, count: usize) -> Vec<(Arc<MemoryShare>, Arc<AtomicU64>)> {
        (0..count)
            .map(|_| {
                let woken = Arc::new(AtomicU64::new(0));
                let counted = Arc::clone(&woken);
                let waker: Waker = Arc::new(move || {
                    counted.fetch_add(1, Relaxed);
                });
                (budget.share(waker), woken)
            })
            .collect()
    }

    fn asked(stores: &[(Arc<MemoryShare>, Arc<AtomicU64>)]) -> Vec<bool> {
        stores.iter().map(|(share, _)| share.is_asked()).collect()
    }

    #[test]
    fn the_largest_active_memtable_is_cut() {
        let budget = MemoryBudget::new(100 * MIB);
        let stores = stores(&budget, 3);
        stores[0].0.set_active(20 * MIB);
        stores[1].0.set_active(25 * MIB);
        stores[2].0.set_active(5 * MIB);
        assert_eq!(asked(&stores), [false; 3], "within their half");
        stores[2].0.set_active(6 * MIB);
        assert_eq!(asked(&stores), [false, true, false], "the largest, though another one grew");
        assert_eq!(stores[1].1.load(Relaxed), 1, "it is woken: perhaps nothing comes there");
        stores[2].0.set_active(7 * MIB);
        assert_eq!((asked(&stores), stores[1].1.load(Relaxed)), (vec![false, true, false], 1), "once");
        // It cuts. As long as that is not flushed it cannot cut again.
        assert!(!stores[1].0.set_frozen(25 * MIB));
        stores[1].0.set_active(0);
        stores[1].0.has_cut();
        stores[1].0.set_active(24 * MIB);
        assert_eq!(asked(&stores), [true, false, false]);
        stores[1].0.set_active(45 * MIB);
        assert_eq!(asked(&stores), [true, false, false], "the third has little: to cut that would not help");
        assert!(stores[1].0.set_frozen(0));
        stores[1].0.tell();
        assert_eq!(asked(&stores), [true, true, false]);
        assert_eq!(stores[1].1.load(Relaxed), 2);
    }

    /// Story: while the flush of a large store ran, each of the others was asked to cut its few records, again and again.
    #[test]
    fn small_memtables_wait_for_large_flush() {
        let budget = MemoryBudget::new(160 * MIB);
        let stores = stores(&budget, 16);
        assert!(!stores[0].0.set_frozen(70 * MIB));
        stores[0].0.set_active(70 * MIB);
        for (share, _) in &stores[1..] {
            share.set_active(4 * MIB);
        }
        assert_eq!(asked(&stores), [false; 16]);
        stores[5].0.set_active(5 * MIB);
        let only = |no| (0..16).map(|at| at == no).collect::<Vec<_>>();
        assert_eq!(asked(&stores), only(5), "an even part");
    }

    /// Story: the flush of one store did not end, and no other store took a message.
    #[test]
    fn memory_reserve_is_independent() {
        let budget = MemoryBudget::new(160 * MIB);
        let stores = stores(&budget, 4);
        assert!(!stores[0].0.set_frozen(130 * MIB));
        stores[1].0.set_active(9 * MIB);
        assert!(stores[0].0.is_short() && !stores[1].0.is_short() && !stores[2].0.is_short());
        stores[1].0.set_active(10 * MIB);
        assert!(stores[1].0.is_short() && !stores[2].0.is_short());
        // What another store gives back is not enough, but its own flush is.
        assert!(!stores[1].0.set_frozen(10 * MIB));
        stores[1].0.set_active(9 * MIB);
        let before = (stores[0].1.load(Relaxed), stores[1].1.load(Relaxed));
        assert!(stores[1].0.set_frozen(0));
        stores[1].0.tell();
        assert_eq!((stores[0].1.load(Relaxed), stores[1].1.load(Relaxed)), (before.0, before.1 + 1));
    }

    /// Story: a store that had used up its part waited for the flush of another one, which did not end, and nobody asked
    /// it to flush its own. Later it was asked when it had used up all of its reserve, and stopped during its flush.
    #[test]
    fn store_on_reserve_flushes_half() {
        let budget = MemoryBudget::new(160 * MIB);
        let stores = stores(&budget, 4);
        let (share, woken) = &stores[1];
        assert!(!stores[0].0.set_frozen(130 * MIB));
        share.set_active(4 * MIB);
        assert!(!share.is_short() && asked(&stores) == [false; 4]);
        share.set_active(5 * MIB);
        assert!(!share.is_short() && !share.is_short());
        assert_eq!((asked(&stores), woken.load(Relaxed)), (vec![false, true, false, false], 1));
        share.set_active(0);
        assert!(!share.set_frozen(5 * MIB));
        share.has_cut();
        share.set_active(4 * MIB);
        assert!(!share.is_short(), "it goes on during its flush");
        share.set_active(5 * MIB);
        assert!(share.is_short(), "until its flush is done");
        assert_eq!(asked(&stores), [false; 4], "what is being flushed comes first");
        assert!(share.set_frozen(0));
        share.tell();
        assert_eq!(woken.load(Relaxed), 2);
        assert!(!share.is_short() && asked(&stores) == [false, true, false, false]);
    }

    #[test]
    fn smallest_budget_takes_single_messages() {
        for bytes in [0, 1, 3] {
            let budget = MemoryBudget::new(bytes);
            let stores = stores(&budget, 5);
            for (share, _) in &stores {
                assert!(!share.is_short(), "{bytes}");
                share.set_active(100);
                assert!(share.is_asked(), "{bytes}");
            }
        }
    }

    /// Story: stores together had up to twice the budget, since each could take an even part of all of it.
    #[test]
    fn all_stores_stay_within_budget() {
        for count in [1, 2, 3, 16] {
            let budget = MemoryBudget::new(192 * MIB);
            let stores = stores(&budget, count);
            // No flush ends. First one store takes all that it gets, then each of the others.
            for (share, _) in &stores {
                let mut taken = 0;
                while !share.is_short() {
                    taken += MIB;
                    share.set_active(taken);
                    if share.is_asked() {
                        share.set_frozen(taken);
                        share.set_active(0);
                        share.has_cut();
                        taken = 0;
                    }
                }
                assert!(share.own() >= budget.reserve(), "{count}: {share:?}");
            }
            assert_eq!(budget.used(), 192 * MIB, "{count}: {budget:?}");
        }
    }

    #[test]
    fn lone_store_reuses_small_table() {
        let budget = MemoryBudget::new(80 * MIB);
        let mut stores = stores(&budget, 2);
        assert!(!stores[0].0.may_keep(0), "another store may need it");
        stores.truncate(1);
        assert!(stores[0].0.may_keep(10 * MIB) && !stores[0].0.may_keep(10 * MIB + 1));
    }

    #[test]
    fn any_flush_wakes_short_store() {
        let budget = MemoryBudget::new(100 * MIB);
        let stores = stores(&budget, 2);
        assert!(!stores[0].0.set_frozen(80 * MIB));
        stores[1].0.set_active(20 * MIB);
        assert!(stores[1].0.is_short());
        let before = stores[1].1.load(Relaxed);
        assert!(stores[0].0.set_frozen(0));
        stores[0].0.tell();
        assert_eq!(stores[1].1.load(Relaxed), before + 1);
        assert!(!stores[1].0.is_short());
    }

    #[test]
    fn dropped_store_returns_its_share() {
        let budget = MemoryBudget::new(100 * MIB);
        let mut stores = stores(&budget, 3);
        for (share, _) in &stores {
            share.set_active(30 * MIB);
            assert!(!share.set_frozen(10 * MIB));
        }
        assert_eq!((budget.used(), budget.stores()), (120 * MIB, 3));
        assert!(stores[0].0.is_short() && !stores[0].0.is_alone());
        let before = stores[0].1.load(Relaxed);
        stores.truncate(1);
        assert_eq!((budget.used(), budget.stores()), (40 * MIB, 1));
        assert!(stores[0].0.is_alone() && !stores[0].0.is_short());
        assert!(stores[0].1.load(Relaxed) > before, "it waited for that");
    }
}

#[cfg(test)]
mod reserve_tests {
    use duewheel_core::hash_key::HashKey;
    use duewheel_core::record::{Record, Writer};
    use duewheel_core::{MessageId, QueueName};

    use super::*;
    use crate::run::filter::NameHasher;

    /// Story: a purge was one record of 12 bytes, but added each id that it kept to the state file.
    #[test]
    fn reserve_covers_ids_kept_by_purge() {
        let mut mem = Mem::unused(NameHasher::new(HashKey::seeded(1)));
        let mut of_kept = |ids: u64| {
            let keep: Vec<_> = (0..ids).map(|n| MessageId(n << 40)).collect();
            let queue = QueueName::new("orders").unwrap();
            let purged = Record::Purged { queue, keep: keep.into(), before: MessageId(1 << 52), purged: 1 };
            let mut writer = Writer::default();
            writer.record(&purged);
            mem.push(&purged, &writer.bytes).unwrap();
            of_state(&mem)
        };
        let none = of_kept(0);
        let many = of_kept(1_000);
        // As the state writes them: differences of 2^40 take six bytes.
        assert!(many >= none + 6 * 1_000, "{many} bytes, without them {none}");
        // The later purge of a queue replaces an earlier one.
        assert_eq!(of_kept(1), many - 999 * KEPT + RECORD);
    }
}
