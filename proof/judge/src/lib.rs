//! Private: judges duewheel from the outside.
//!
//! * [`history`]: the observations of the clients of a run, as a list of events; a file of JSON lines.
//! * [`checker`]: finds what in a history cannot have happened if the promises were kept, and what it proves about the
//!   faults of the run. Pure.
//! * [`model`]: a small model of the system with switchable bugs, which makes histories for testing the checker.
//! * [`rng`]: decisions from a seed.
//!
//! This library depends on no other crate of the workspace, so that judge and judged share no mistake.

mod body;
pub mod checker;
pub mod history;
mod limits;
pub mod model;
mod pushes;
pub mod rng;
mod rules;
