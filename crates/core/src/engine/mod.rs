//! The engine.
mod effect;
mod input;
mod reply;
pub use effect::*;
pub use input::*;
pub use reply::*;
