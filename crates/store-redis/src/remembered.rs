//! What a process remembers of the shards of a Redis, over all of its reigns.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duewheel_core::time::EngineMs;

use crate::keys::Keys;
use crate::memory::Memory;
use crate::reign::boot_ms;
use crate::wire::Address;

/// Shards by their hash tags, and masters.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    shards: Mutex<BTreeMap<String, OfShard>>,
    masters: Mutex<BTreeMap<Address, Arc<Memory>>>,
}

#[derive(Debug, Default)]
struct OfShard {
    /// The greatest epoch seen; 0: none.
    epoch: u32,
    /// The last reign of this process, and its clock.
    reign: Option<(String, Arc<ReignClock>)>,
    /// How often two clocks have disagreed about a time without an owner.
    disagreements: Arc<AtomicU64>,
}

impl Remembered {
    pub(crate) fn note_epoch(&self, keys: &Keys, epoch: u32) {
        let mut shards = self.shards();
        let shard = shards.entry(keys.tag().into()).or_default();
        shard.epoch = epoch.max(shard.epoch);
    }

    /// The greatest epoch seen; 0: none.
    pub(crate) fn epoch(&self, keys: &Keys) -> u32 {
        self.shards().get(keys.tag()).map_or(0, |shard| shard.epoch)
    }

    /// A reign begins; gives the clock that it keeps.
    pub(crate) fn begin(&self, keys: &Keys, incarnation: &str) -> Arc<ReignClock> {
        let clock = Arc::new(ReignClock::default());
        self.shards().entry(keys.tag().into()).or_default().reign = Some((incarnation.into(), clock.clone()));
        clock
    }

    /// The clock of a reign, if it was the last one of this process.
    pub(crate) fn clock_of(&self, keys: &Keys, incarnation: &str) -> Option<Arc<ReignClock>> {
        let shards = self.shards();
        let (last, clock) = shards.get(keys.tag())?.reign.as_ref()?;
        (last == incarnation).then(|| clock.clone())
    }

    /// Counts how often two clocks have disagreed about a time without an owner of this shard.
    pub(crate) fn disagreements(&self, keys: &Keys) -> Arc<AtomicU64> {
        self.shards().entry(keys.tag().into()).or_default().disagreements.clone()
    }

    /// The memory of a master, as all shards of this process see it.
    pub(crate) fn memory_of(&self, master: &Address) -> Arc<Memory> {
        let mut masters = self.masters.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(masters.entry(master.clone()).or_default())
    }

    fn shards(&self) -> MutexGuard<'_, BTreeMap<String, OfShard>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Engine time of a reign by the machine's elapsed time, suspend included: no wall clock and no server's clock has a
/// part in it.
#[derive(Debug)]
pub(crate) struct ReignClock {
    /// Elapsed time less engine time, in ms. What is noted has been read a little before, so the least of all is the
    /// nearest.
    ahead: AtomicI64,
}

impl Default for ReignClock {
    fn default() -> Self {
        ReignClock { ahead: AtomicI64::new(i64::MAX) }
    }
}

impl ReignClock {
    /// The engine's clock shows this, or has shown it a moment ago.
    pub(crate) fn note(&self, engine: EngineMs) {
        let now = i64::try_from(boot_ms()).unwrap_or(i64::MAX);
        self.ahead.fetch_min(now.saturating_sub_unsigned(engine.0), SeqCst);
    }

    /// What the engine's clock would show now, or a little less; `None` if it was never noted.
    pub(crate) fn engine(&self) -> Option<EngineMs> {
        let ahead = self.ahead.load(SeqCst);
        let now = i64::try_from(boot_ms()).unwrap_or(i64::MAX);
        (ahead != i64::MAX).then(|| EngineMs(u64::try_from(now.saturating_sub(ahead)).unwrap_or(0)))
    }
}
