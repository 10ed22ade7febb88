//! Replacements of other machines and of the clock of a wheel, for tests.
//!
//! The feature `testing` enables this module; only tests do.

mod stepped;

pub use duewheel_cluster::testing::{MemoryCoordinator, wire};
pub use stepped::Stepped;
