//! Private: judges duewheel from the outside.
//!
//! * [`history`]: what the clients of a run saw, as a list of events; a file of JSON lines.
//! * [`checker`]: says what in a history cannot have happened if the promises were kept, and what it proves about the
//!   faults of the run. Pure.
//! * [`model`]: a toy of the system with switchable bugs, which makes histories for testing the checker.
//! * [`rng`]: decisions from a seed.
//! * [`http`], [`process`]: the black-box side: a small HTTP client, and a server process that can be killed.
//!
//! This library depends on no other crate of the workspace, so that judge and judged share no mistake.

pub mod checker;
pub mod history;
pub mod http;
pub mod model;
pub mod process;
pub mod rng;
