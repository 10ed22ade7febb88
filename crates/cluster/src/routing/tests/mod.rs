//! Tests of the router over shards in this process.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a panic is a failed test; numbers are small
#![allow(clippy::disallowed_methods)] // they poll with a deadline by the clock of the machine

mod chaos;
mod fan;
mod list;
mod model;
mod reserve;
mod rig;
mod routing;
mod sessions;

/// How many seeds a test takes: what `DUEWHEEL_ROUTER_SEEDS` says, or `default`.
fn seeds(default: u64) -> u64 {
    let Ok(text) = std::env::var("DUEWHEEL_ROUTER_SEEDS") else { return default };
    text.parse().unwrap_or_else(|_| panic!("DUEWHEEL_ROUTER_SEEDS is not a number: {text}"))
}
