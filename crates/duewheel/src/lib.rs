//! Durable delayed messages, embedded.
mod client;
mod clock;
mod error;
mod inbox;
mod shard;

pub use client::{Client, Demand, Health, Pending};
pub use clock::{Clock, Reading, SystemClock, VirtualClock};
pub use duewheel_core as core;
pub use error::{CallError, Outcome};
pub use inbox::{Answers, Inbox, Submission};
