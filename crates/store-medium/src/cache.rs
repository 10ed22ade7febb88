//! Blocks of files that never change, kept in memory: a look-up that reads a run again costs no call.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use lru::LruCache;

use crate::fence::locked;
use crate::medium::FileId;

/// Size of a block.
pub(crate) const BLOCK: u64 = 64 * 1024;
/// Number of blocks of a process: 32 MiB.
const BLOCKS: usize = 512;

/// The blocks that the stores of a process share, by shard, file and number.
pub struct BlockCache(Mutex<LruCache<(u32, FileId, u64), Bytes>>);

impl BlockCache {
    pub(crate) fn get(&self, shard: u32, file: FileId, no: u64) -> Option<Bytes> {
        self.blocks().get(&(shard, file, no)).cloned()
    }

    /// Whether a block is here. That alone does not keep it.
    pub(crate) fn has(&self, shard: u32, file: FileId, no: u64) -> bool {
        self.blocks().contains(&(shard, file, no))
    }

    pub(crate) fn put(&self, shard: u32, file: FileId, no: u64, block: Bytes) {
        self.blocks().put((shard, file, no), block);
    }

    fn blocks(&self) -> MutexGuard<'_, LruCache<(u32, FileId, u64), Bytes>> {
        locked(&self.0)
    }
}

impl Default for BlockCache {
    fn default() -> Self {
        BlockCache(Mutex::new(LruCache::new(NonZeroUsize::new(BLOCKS).unwrap_or(NonZeroUsize::MIN))))
    }
}

impl std::fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockCache").field("blocks", &self.blocks().len()).finish()
    }
}
