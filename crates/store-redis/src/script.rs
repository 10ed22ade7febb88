//! The scripts, which only fence and apply. They are sent whole each time: the server knows a script it has seen by its hash, and one that
//! was flushed or restarted away is no special case.

use std::sync::OnceLock;

use redis::Cmd;

use crate::keys::Keys;

/// Applies a group; refused by a server that has no memory left, before anything is changed.
pub(crate) fn apply() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("#!lua\n{}", bare(include_str!("scripts/apply.lua"))))
}

/// The same for a group that puts nothing: settling must go on when memory is short.
pub(crate) fn settle() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("#!lua flags=allow-oom\n{}", bare(include_str!("scripts/apply.lua"))))
}

/// Takes a shard. Needs a few bytes, which are there when others are to be set free.
pub(crate) fn acquire() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("#!lua flags=allow-oom\n{}", bare(include_str!("scripts/acquire.lua"))))
}

/// Renews a lease or gives it back.
pub(crate) fn renew() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("#!lua flags=allow-oom\n{}", bare(include_str!("scripts/renew.lua"))))
}

/// A node joins, says that it is alive, or leaves.
pub(crate) fn node() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("#!lua flags=allow-oom\n{}", bare(include_str!("scripts/node.lua"))))
}

/// Replaces the secret by which nodes know each other.
pub(crate) fn rotate() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("#!lua flags=allow-oom\n{}", bare(include_str!("scripts/rotate.lua"))))
}

/// Without what only people read.
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
