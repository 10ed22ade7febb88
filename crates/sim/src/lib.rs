//! Private: runs duewheel under faults, and writes histories for the judge ([`duewheel_judge`]).
//!
//! * [`http`], [`process`]: the black-box side: a small HTTP client, and a server process that can be killed.

pub mod http;
pub mod process;
