//! State of a master as this process knows it: its memory, how much of that is free, and how safely it keeps changes.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use duewheel_core::store::Level;
use duewheel_store_medium::{boot_ms, locked, millis};

use crate::keys::{HostPort, Keys};

/// The memory reserved for groups in flight when memory runs short, in bytes; a small server reserves a tenth of its
/// memory.
const MARGIN: u64 = 64 * 1024 * 1024;
/// A written byte takes about as many: it is in the journal first, then in a run, and for a while in both.
const WEIGHS: u64 = 3;
/// The shortest time between two requests to a master for its settings.
pub(crate) const KEEPING: Duration = Duration::from_secs(1);

/// The memory that a master reports, and the bytes that all shards of this process have added since. Several shards on
/// a master are counted together: each alone would stay within the margin that all together exceed.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    used: AtomicU64,
    max: AtomicU64,
    /// Bytes written since the start of the process.
    sent: AtomicU64,
    /// The written bytes whose groups were answered.
    landed: AtomicU64,
    /// The value of `landed` when `used` was requested: these bytes are included in `used`.
    counted: AtomicU64,
    full: AtomicBool,
    /// The last known level of a change that only the master has.
    alone: Mutex<Level>,
    /// The time of the last request, by [`boot_ms`].
    asked: AtomicU64,
}

impl Memory {
    /// The value to read before the server is asked, for [`Memory::note`].
    pub(crate) fn landed(&self) -> u64 {
        self.landed.load(SeqCst)
    }

    /// Records the reply of `INFO`; it includes everything that had landed before.
    pub(crate) fn note(&self, used: u64, max: u64, landed: u64) {
        self.counted.fetch_max(landed, SeqCst);
        self.used.store(used, SeqCst);
        self.max.store(max, SeqCst);
    }

    /// Records the level of a change that only the master has.
    pub(crate) fn note_alone(&self, level: Level) {
        *locked(&self.alone) = level;
    }

    /// The level of a change that only the master has.
    pub(crate) fn alone(&self) -> Level {
        *locked(&self.alone)
    }

    /// Whether this caller should ask: one shard asks for all.
    pub(crate) fn is_keeping_due(&self) -> bool {
        let (now, asked) = (boot_ms(), self.asked.load(SeqCst));
        now >= asked + millis(KEEPING) && self.asked.compare_exchange(asked, now, SeqCst, SeqCst).is_ok()
    }

    pub(crate) fn goes(&self, bytes: u64) {
        self.sent.fetch_add(bytes, SeqCst);
    }

    pub(crate) fn comes(&self, bytes: u64) {
        self.landed.fetch_add(bytes, SeqCst);
    }

    /// Bytes that new messages may still take; 0: none are taken.
    pub(crate) fn free(&self) -> u64 {
        let max = self.max.load(SeqCst);
        if max == 0 {
            return u64::MAX / 4;
        }
        let margin = MARGIN.min(max / 10);
        // A full server counts as full until a certain amount is free, or each message would change the state.
        let margin = if self.full.load(SeqCst) { margin + margin / 4 } else { margin };
        let put = self.sent.load(SeqCst).saturating_sub(self.counted.load(SeqCst));
        let used = self.used.load(SeqCst).saturating_add(put.saturating_mul(WEIGHS));
        let free = max.saturating_sub(used.saturating_add(margin));
        self.full.store(free == 0, SeqCst);
        free
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(SeqCst)
    }

    pub(crate) fn max(&self) -> u64 {
        self.max.load(SeqCst)
    }
}

// The knowledge of a process about the shards of a Redis, kept while the process lives.

/// Shards by their hash tags, and masters.
#[derive(Debug, Default)]
pub(crate) struct RememberedShards {
    /// The greatest known epoch of each.
    shards: Mutex<BTreeMap<String, u32>>,
    masters: Mutex<BTreeMap<HostPort, Arc<Memory>>>,
}

impl RememberedShards {
    pub(crate) fn note_epoch(&self, keys: &Keys, epoch: u32) {
        let mut shards = self.shards();
        let known = shards.entry(keys.tag().into()).or_default();
        *known = epoch.max(*known);
    }

    /// The greatest known epoch; 0: none.
    pub(crate) fn epoch(&self, keys: &Keys) -> u32 {
        self.shards().get(keys.tag()).copied().unwrap_or(0)
    }

    /// The memory of a master, shared by all shards of this process.
    pub(crate) fn memory_of(&self, master: &HostPort) -> Arc<Memory> {
        let mut masters = locked(&self.masters);
        Arc::clone(masters.entry(master.clone()).or_default())
    }

    fn shards(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        locked(&self.shards)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn pending_bytes_count_until_reported() {
        let memory = Memory::default();
        memory.note(0, 1_000 * MIB, 0);
        assert!(memory.free() > 0);
        // Sixteen shards, each of which would find enough memory if it were alone.
        (0..16).for_each(|_| memory.goes(20 * MIB));
        assert_eq!(memory.free(), 0);
        // The report was requested before anything had landed, so it may not include these bytes.
        memory.note(100 * MIB, 1_000 * MIB, memory.landed());
        assert_eq!(memory.free(), 0);
        (0..16).for_each(|_| memory.comes(20 * MIB));
        assert_eq!(memory.free(), 0, "not asked again yet");
        memory.note(400 * MIB, 1_000 * MIB, memory.landed());
        assert!(memory.free() > 0);
    }

    #[test]
    fn without_a_limit_there_is_room() {
        let memory = Memory::default();
        memory.goes(u64::MAX / 8);
        assert!(memory.free() > 0);
    }
}
