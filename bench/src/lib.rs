//! Shared pieces of the benchmarks.

pub mod instant;
pub mod machine;
pub mod message;
pub mod process;
pub mod server;
pub mod submit;
