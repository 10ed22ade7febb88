//! duewheel's server, as a library: the package `duewheel-server` makes the program of it and of the command line.
//!
//! The engine and its driver are in the library `duewheel`; this crate contains the front ends: HTTP in [`http`],
//! beanstalkd's protocol in [`beanstalk`], authorization in [`auth`], TLS in [`tls`], the list of all errors in
//! [`error`], and configuration in [`config`].

// Each public function that can fail lists its errors.
#![warn(clippy::missing_errors_doc)]

use duewheel_api::{hourly, rfc3339, span};

mod announce;
pub mod auth;
pub mod beanstalk;
pub mod bug;
mod claim;
pub mod config;
pub mod drain;
pub mod error;
mod file_value;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod http;
mod json;
pub mod log;
#[cfg(feature = "otel")]
mod otel;
pub mod private;
mod reload;
mod repeated;
pub mod restoring;
mod schema;
mod sealing;
pub mod serve;
pub mod service;
pub mod signals;
pub mod store;
pub mod stored;
mod telemetry;
pub mod tls;
mod toml_text;
mod traces;
