//! The permitted figures: those of today. They are only ever lowered.

#![cfg_attr(not(test), expect(dead_code, reason = "the limits are for the test"))]

/// Lines of a function, from its signature to its end.
pub(crate) const FUNCTION: usize = 120;
/// Lines of a file.
pub(crate) const FILE: usize = 800;
/// Type names that more than one product file defines.
pub(crate) const NAMES_TWICE: usize = 0;
/// Files of a crate that are in import loops.
pub(crate) const LOOPS: usize = 0;

/// The crates of the product from the lowest floor to the highest; a crate may only depend on those before it.
pub(crate) const FLOORS: [&str; 17] = [
    "wheel",
    "core",
    "api",
    "client",
    "store-log",
    "store-medium",
    "store-redis",
    "store-postgres",
    "shard",
    "cluster",
    "derive",
    "duewheel",
    "delivery",
    "bridge",
    "server",
    "cli",
    "bin",
];
