//! The knowledge of a process about the shards of a Redis, kept while the process lives.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use duewheel_store_medium::locked;

use crate::address::HostPort;
use crate::keys::Keys;
use crate::memory::Memory;

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
