//! Tests of the router over shards in this process.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a panic is a failed test; numbers are small

mod fan;
mod list;
mod model;
mod reserve;
mod rig;
mod sessions;
