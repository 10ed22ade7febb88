//! Replacements of other machines, for tests.

mod coordinator;
mod stepped;

pub use coordinator::MemoryCoordinator;
pub use stepped::{SteppedNode, SteppedStart};

pub use crate::transport::{Duplex, Network, PeerStream};

/// The messages between nodes, for the fuzz target.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod wire {
    pub use crate::transport::fuzzing::{ReadFrame, cut, greetings, limits_of};
}
