//! The knowledge of a process about the shards of a Redis, kept while the process lives.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duewheel_core::time::EngineMs;

use crate::keys::Keys;
use crate::memory::Memory;
use crate::reign::boot_ms;
use crate::wire::HostPort;

/// Shards by their hash tags, and masters.
#[derive(Debug, Default)]
pub(crate) struct RememberedShards {
    shards: Mutex<BTreeMap<String, OfShard>>,
    masters: Mutex<BTreeMap<HostPort, Arc<Memory>>>,
}

#[derive(Debug, Default)]
struct OfShard {
    /// The greatest known epoch; 0: none.
    epoch: u32,
    /// The last incarnation of this process, and its clock.
    reign: Option<(String, Arc<ReignClock>)>,
    /// Number of disagreements of two clocks about a time without an owner.
    disagreements: Arc<AtomicU64>,
}

impl RememberedShards {
    pub(crate) fn note_epoch(&self, keys: &Keys, epoch: u32) {
        let mut shards = self.shards();
        let shard = shards.entry(keys.tag().into()).or_default();
        shard.epoch = epoch.max(shard.epoch);
    }

    /// The greatest known epoch; 0: none.
    pub(crate) fn epoch(&self, keys: &Keys) -> u32 {
        self.shards().get(keys.tag()).map_or(0, |shard| shard.epoch)
    }

    /// Records a new incarnation; returns its clock.
    pub(crate) fn begin(&self, keys: &Keys, incarnation: &str) -> Arc<ReignClock> {
        let clock = Arc::new(ReignClock::default());
        self.shards().entry(keys.tag().into()).or_default().reign = Some((incarnation.into(), clock.clone()));
        clock
    }

    /// The clock of an incarnation, if it was the last one of this process.
    pub(crate) fn clock_of(&self, keys: &Keys, incarnation: &str) -> Option<Arc<ReignClock>> {
        let shards = self.shards();
        let (last, clock) = shards.get(keys.tag())?.reign.as_ref()?;
        (last == incarnation).then(|| clock.clone())
    }

    /// The counter of disagreements of two clocks about a time without an owner of this shard.
    pub(crate) fn disagreements(&self, keys: &Keys) -> Arc<AtomicU64> {
        self.shards().entry(keys.tag().into()).or_default().disagreements.clone()
    }

    /// The memory of a master, shared by all shards of this process.
    pub(crate) fn memory_of(&self, master: &HostPort) -> Arc<Memory> {
        let mut masters = self.masters.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(masters.entry(master.clone()).or_default())
    }

    fn shards(&self) -> MutexGuard<'_, BTreeMap<String, OfShard>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The engine time of an incarnation by the machine's elapsed time, suspend included, independent of any wall clock and
/// of the server's clock.
#[derive(Debug)]
pub(crate) struct ReignClock {
    /// Elapsed time less engine time, in ms. A reading is a little older than its record, so the smallest difference is
    /// the most exact.
    ahead: AtomicI64,
}

impl Default for ReignClock {
    fn default() -> Self {
        ReignClock { ahead: AtomicI64::new(i64::MAX) }
    }
}

impl ReignClock {
    /// Records a present reading of the engine's clock.
    pub(crate) fn note(&self, engine: EngineMs) {
        let now = i64::try_from(boot_ms()).unwrap_or(i64::MAX);
        self.ahead.fetch_min(now.saturating_sub_unsigned(engine.0), SeqCst);
    }

    /// The present engine time, or a little less; `None` if it was never recorded.
    pub(crate) fn engine(&self) -> Option<EngineMs> {
        let ahead = self.ahead.load(SeqCst);
        let now = i64::try_from(boot_ms()).unwrap_or(i64::MAX);
        (ahead != i64::MAX).then(|| EngineMs(u64::try_from(now.saturating_sub(ahead)).unwrap_or(0)))
    }
}
