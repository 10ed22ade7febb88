//! The names of a shard's keys in Redis, and the scripts that change them. `docs/redis.md` describes them.

use std::sync::OnceLock;

use duewheel_core::ShardId;
use duewheel_core::store::StoreError;
use duewheel_store_medium::FileId;
use redis::{Cmd, Value};

use crate::fault;

/// Host and port of a server.
pub(crate) type HostPort = (String, u16);

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

// The scripts, which only check the fence and write. They are sent completely each time: the server recognises a known
// script by its hash, and a flush or restart of the server needs no special handling.

/// Writes pieces of a file, even when memory is short, because records that settle messages must be written. New
/// messages are refused before.
pub(crate) fn write() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| fenced(include_str!("scripts/write.lua")))
}

/// Names and removes files.
pub(crate) fn files() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| fenced(include_str!("scripts/files.lua")))
}

/// A script of an owner.
fn fenced(script: &str) -> String {
    format!("#!lua flags=allow-oom\n{}{}", bare(include_str!("scripts/fence.lua")), bare(script))
}

/// Acquires a shard. Needs a few bytes, which are available because other data is released.
pub(crate) fn acquire() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("#!lua flags=allow-oom\n{}", bare(include_str!("scripts/acquire.lua"))))
}

/// Renews a lease or gives it back.
pub(crate) fn renew() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("#!lua flags=allow-oom\n{}", bare(include_str!("scripts/renew.lua"))))
}

/// Ends a lease that would run for too long.
pub(crate) fn clamp() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("#!lua flags=allow-oom\n{}", bare(include_str!("scripts/clamp.lua"))))
}

/// Lets a node join, renew its membership, or leave.
pub(crate) fn node() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("#!lua flags=allow-oom\n{}", bare(include_str!("scripts/node.lua"))))
}

/// Replaces the secret by which nodes authenticate each other.
pub(crate) fn rotate() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("#!lua flags=allow-oom\n{}", bare(include_str!("scripts/rotate.lua"))))
}

/// Begins or ends the restore of a backup.
pub(crate) fn restore() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("#!lua flags=allow-oom\n{}", bare(include_str!("scripts/restore.lua"))))
}

/// Removes what an unfinished restore has left of a shard.
pub(crate) fn wipe() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("#!lua flags=allow-oom\n{}", bare(include_str!("scripts/wipe.lua"))))
}

/// The answer of an owner's script, if it was carried out.
pub(crate) fn answered(replies: Vec<Value>) -> Result<String, StoreError> {
    let of = "a script";
    let text = fault::some(fault::text(fault::some(replies.into_iter().next(), of)?, of)?, of)?;
    match text.split(' ').next() {
        Some("OK" | "NONE") => Ok(text),
        _ => Err(fault::of_script(&text)),
    }
}

/// A script without comments.
fn bare(script: &str) -> String {
    let lines = script.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("--"));
    lines.fold(String::new(), |all, line| all + line + "\n")
}

/// A call of a script on a shard's owner and head.
pub(crate) fn call(script: &str, keys: &Keys) -> Cmd {
    let mut cmd = redis::cmd("EVAL");
    cmd.arg(script).arg(2).arg(&keys.owner).arg(&keys.head);
    cmd
}
