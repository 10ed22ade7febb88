//! duewheel's pure heart: types, records and the engine that takes every decision.
//!
//! Nothing here reads a clock, draws a random number, opens a file or starts a thread. Time comes in as an argument
//! ([`time::Now`]), what is on disk comes in as [`store::Found`] and [`store::Loaded`], and what is to be done goes out
//! as data ([`engine::Effects`]). A [`store::Store`] applies what was decided, and decides nothing.

mod attempts;
pub mod engine;
pub mod id;
pub mod message;
#[doc(hidden)]
pub mod mutant;
pub mod name;
pub mod policy;
pub mod record;
pub mod store;
pub mod tally;
pub mod time;
#[cfg(feature = "serde")]
mod wire;

pub use id::{Epoch, LeaseToken, Lsn, MessageId, ReplyTo, SessionId, ShardId};
pub use message::{Message, State};
pub use name::{Key, QueueName};
pub use policy::Policy;
pub use time::{Due, EngineMs, Now, WallMs};
