//! Tests of the engine: inputs in, literal effects out; and a model, over random histories.
#![allow(unreachable_pub)] // one binary of several modules
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a panic is a failed test; numbers are small

mod acts;
mod answers;
mod batches;
mod bounds;
mod done;
mod due_times;
mod events;
mod expiry;
mod harness;
mod history;
mod limits;
mod literal;
mod loading;
mod model;
mod neighbours;
mod once;
mod operations;
mod quotas;
mod random;
mod resting;
mod sessions;
mod steps;
mod tenant;
mod withheld;
