//! Private: runs duewheel under faults, and records histories for the judge ([`duewheel_judge`]).
//!
//! * [`simulation`]: the real engine, driver and log store under a simulated clock, disk and scheduler, from one seed.
//! * [`blackbox`]: real systems as processes, judged by the observations of clients.
//! * [`pushing`]: a receiver of what the system pushes, and clients that work meanwhile.
//! * [`permission`]: what a machine must permit for a test.
//! * [`http`], [`process`]: the tools of these runs: a small HTTP client, and a server process that can be stopped and
//!   killed.

pub mod blackbox;
pub mod http;
pub mod permission;
pub mod process;
pub mod pushing;
pub mod simulation;
