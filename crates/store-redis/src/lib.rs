//! The store on Redis 7, for a single server and for Redis Cluster.
//!
//! * [`RedisStore`] keeps the records of one shard.
//! * [`RedisCoordinator`] lets several nodes share shards.
//! * [`Options`] has the address and the settings.
//!
//! `docs/redis.md` describes every key, `docs/adr/0009-redis-and-cluster.md` the decisions.

// Each public function that can fail lists its errors.
#![warn(clippy::missing_errors_doc)]

mod books;
mod coordinator;
mod fault;
mod find;
mod fold;
mod keeping;
mod keys;
mod lex;
mod load;
mod mark;
mod memory;
mod open;
mod options;
mod plan;
mod questions;
mod reign;
mod remembered;
mod reset;
mod rotation;
mod script;
mod shared;
mod span;
mod store;
mod tasks;
mod text;
mod value;
mod waits;
mod wire;

pub use coordinator::RedisCoordinator;
pub use keeping::{Finding, Weight};
pub use options::{BadOption, Create, Options, WaitFor};
pub use reset::Reset;
pub use rotation::Rotation;
pub use store::RedisStore;
