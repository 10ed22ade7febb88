//! duewheel's server and command line.
//!
//! The engine and its driver are in the library `duewheel`; this crate contains the front ends: HTTP in [`http`],
//! beanstalkd's protocol in [`beanstalk`], authorization in [`auth`], TLS in [`tls`], the list of all errors in
//! [`error`], configuration in [`config`], and the command line in [`cli`].

// Each public function that can fail lists its errors.
#![warn(clippy::missing_errors_doc)]

use duewheel_api::{rfc3339, span};

mod announce;
pub mod auth;
pub mod beanstalk;
pub mod bug;
mod claim;
pub mod cli;
pub mod config;
pub mod drain;
pub mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod hourly;
pub mod http;
mod json;
mod log;
#[cfg(feature = "otel")]
mod otel;
mod private;
mod reload;
mod repeated;
mod restoring;
mod schema;
mod sealing;
pub mod serve;
pub mod service;
mod signals;
mod store;
mod stored;
mod telemetry;
mod terminal;
pub mod tls;
mod toml_text;
mod traces;
