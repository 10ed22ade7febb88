//! Deliberate bugs, and replacements of other machines, for tests.
//!
//! Without the feature `testing`, which only tests enable, this contains only a function that does nothing.

#[cfg(feature = "testing")]
mod stepped;

#[cfg(feature = "testing")]
pub use duewheel_cluster::testing::{MemoryCoordinator, wire};
pub use duewheel_shard::testing::place;
#[cfg(feature = "testing")]
pub use stepped::Stepped;
