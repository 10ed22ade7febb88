//! The scripts, which only check the fence and apply. They are sent completely each time: the server recognises a known
//! script by its hash, and a flush or restart of the server needs no special handling.

use std::sync::OnceLock;

use redis::Cmd;

use crate::keys::Keys;

/// Applies a group; refused by a server that has no memory left, before anything is changed.
pub(crate) fn apply() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("#!lua\n{}", bare(include_str!("scripts/apply.lua"))))
}

/// Applies a group that puts nothing, also when memory is short: settling must continue.
pub(crate) fn settle() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("#!lua flags=allow-oom\n{}", bare(include_str!("scripts/apply.lua"))))
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
