//! The scripts, which only check the fence and write. They are sent completely each time: the server recognises a known
//! script by its hash, and a flush or restart of the server needs no special handling.

use std::sync::OnceLock;

use duewheel_core::store::StoreError;
use redis::{Cmd, Value};

use crate::keys::Keys;
use crate::{fault, value};

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
    let text = value::some(value::text(value::some(replies.into_iter().next(), of)?, of)?, of)?;
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
