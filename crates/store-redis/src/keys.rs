//! The names of a shard's keys in Redis. `docs/redis.md` describes them.

use duewheel_core::ShardId;
use duewheel_store_medium::FileId;

/// The names of a shard's keys: all have the same hash tag, so all are in one slot.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    tag: String,
    /// The owner of the shard, and the end of its lease.
    pub(crate) owner: String,
    /// The head of the shard: its format, its cluster, the number of the last write to the journal and its time, the
    /// mark of ids.
    pub(crate) head: String,
    /// Name of a file → its number and its length.
    pub(crate) files: String,
    /// Number of a file → how many blocks it has.
    pub(crate) blocks: String,
    /// The prefix of the keys of blocks.
    pub(crate) block: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str, shard: ShardId) -> Self {
        let tag = format!("{{{prefix}:{shard}}}:");
        let key = |name: &str| format!("{tag}{name}");
        Keys {
            owner: key("owner"),
            head: key("head"),
            files: key("files"),
            blocks: key("blocks"),
            block: key("block:"),
            tag,
        }
    }

    /// The common prefix of all keys.
    pub(crate) fn tag(&self) -> &str {
        &self.tag
    }

    /// The key of a block of a file.
    pub(crate) fn block(&self, file: FileId, block: u64) -> String {
        format!("{}{}:{block}", self.block, file.0)
    }
}

/// The type that a key must have.
pub(crate) fn type_of(key: &str) -> &'static str {
    if key.contains("}:block:") { "string" } else { "hash" }
}
