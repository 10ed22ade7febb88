//! The store on real servers.

mod clocks;
mod conformance;
mod connect;
mod coordinator;
mod fence;
mod format;
mod levels;
mod limits;
mod lost;
mod model;
mod moving;
mod place;
mod reigns;
mod shard;
