//! What tests put in the place of other machines.

mod coordinator;
#[cfg(feature = "testing")]
mod here;

pub use coordinator::MemoryCoordinator;
#[cfg(feature = "testing")]
pub use here::open;

/// What nodes say to each other, for the fuzz target.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod wire {
    pub use crate::transport::fuzzing::{cut, greetings};
    pub use crate::transport::wire::fuzzing::{Read, limits_of};
}
