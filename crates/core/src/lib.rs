//! duewheel's pure core: types, records and the engine that takes every decision.
//!
//! This crate reads no clock, draws no random number, opens no file and starts no thread. Time is an argument
//! ([`time::Now`]), data from the disk arrives as [`store::Found`] and [`store::Loaded`], and the engine returns its
//! decisions as data ([`engine::Effects`]). A [`store::Store`] applies decisions, and takes none.

// Each public function that can fail lists its errors.
#![warn(clippy::missing_errors_doc)]

pub mod act;
pub mod answers;
pub mod engine;
pub mod event;
pub mod growing;
pub mod hash_key;
pub mod history;
pub mod id;
pub mod message;
#[doc(hidden)]
pub mod mutant;
pub mod name;
pub mod percent;
pub mod policy;
pub mod random;
pub mod record;
pub mod store;
pub mod tally;
pub mod time;
#[cfg(feature = "serde")]
mod wire;

pub use id::{Epoch, IdSet, LeaseToken, Lsn, MessageId, ReplyTo, SessionId, ShardId};
pub use message::{MessageContent, State};
pub use name::{Key, QueueName};
pub use policy::Policy;
pub use time::{Due, EngineMs, Now, WallMs};
