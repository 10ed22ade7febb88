//! Bugs on demand, and what tests put in the place of other machines.
//!
//! Without the feature `testing`, which only tests turn on, there is nothing here but a function that does nothing.

#[cfg(feature = "testing")]
mod shards;

#[cfg(feature = "testing")]
pub use duewheel_cluster::testing::{MemoryCoordinator, wire};
pub use duewheel_shard::testing::place;
