//! Replacements of other machines, for tests.

mod coordinator;
#[cfg(feature = "testing")]
mod here;
mod stepped;

pub use coordinator::MemoryCoordinator;
#[cfg(feature = "testing")]
pub use here::open;
pub use stepped::{SteppedNode, SteppedStart};

pub use crate::transport::{Duplex, Network, PeerStream};

/// The messages between nodes, for the fuzz target.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod wire {
    pub use crate::transport::fuzzing::{cut, greetings};
    pub use crate::transport::wire::fuzzing::{ReadFrame, limits_of};
}
