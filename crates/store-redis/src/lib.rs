//! The log store on Redis 7, a single server or Redis Cluster, and the coordinator of the nodes that share it.
//!
//! * [`open()`] opens the store of one shard.
//! * [`RedisCoordinator`] lets several nodes share shards.
//! * [`Options`] has the address and the settings.
//!
//! A shard is a folder of the log store whose files are strings. `docs/redis.md` describes every key,
//! `docs/adr/0037-one-store-over-any-medium.md` and `docs/adr/0009-redis-and-cluster.md` the decisions.

// Each public function that can fail lists its errors.
#![warn(clippy::missing_errors_doc)]

mod cluster;
mod coordinator;
mod fault;
mod files;
mod keeping;
mod keys;
mod leases;
mod memory;
mod options;
mod owner;
mod reign;
mod reset;
mod wire;

pub use coordinator::RedisCoordinator;
pub use duewheel_store_medium::BadOption;
pub use keeping::{Finding, Weight};
pub use leases::open;
pub use options::{Create, Options, WaitFor};
pub use reset::Reset;
