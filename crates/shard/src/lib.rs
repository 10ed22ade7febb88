//! The runtime of one shard of duewheel: it connects the pure engine with callers, clock and store.
//!
//! ```text
//!   Client ──▶ Inbox ──▶ Runner, on a thread of its own ──▶ Driver ──▶ engine, store
//! ```
//!
//! A [`client::Client`] puts operations into an [`inbox::Inbox`]. The [`driver::Driver`] takes them out in batches,
//! lets the engine decide, and holds the answers back until the store says that they are durable. The
//! [`runner::Runner`] runs the driver: it reads the clock and opens the store again after a failure. The
//! [`thread::Shard`] gives the runner a thread, which lends turns to callers while it sleeps; a simulation takes the
//! runner's turns itself.
//!
//! This crate is for duewheel's other crates: front ends take from here the types they need in addition to a client,
//! such as [`client::Reserve`] and [`inbox::Answers`]. Programs that embed duewheel use the crate `duewheel`, which
//! exports only the client, clocks and errors.

pub mod acting;
pub mod activity;
mod backpressure;
pub mod client;
pub mod clock;
pub mod driver;
pub mod error;
pub mod fairness;
pub mod figures;
pub mod inbox;
pub mod listing;
mod marked;
pub mod random;
pub mod runner;
mod seat;
pub mod shared;
pub mod testing;
pub mod thread;
pub mod timekeeper;
