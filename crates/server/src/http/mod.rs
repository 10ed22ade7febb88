//! The HTTP interface, version 1. `docs/http.md` describes it for users, `openapi.json` for machines.
//!
//! Requests are parsed at the border into the engine's operations, which are valid by construction; answers are written
//! into one buffer. All paths are in one table, `routes`.

mod answer;
mod app;
mod audit;
mod bridge;
mod budget;
mod bulk;
mod call;
mod enqueue;
mod events;
mod feed;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod history;
mod home;
mod line;
mod listener;
mod listing;
mod message;
mod metrics;
mod openapi;
mod queue;
mod queue_config;
mod queue_view;
mod reach;
mod reading;
mod request_id;
mod reserve;
mod routes;
mod schedule;
mod schedule_view;
mod server;
mod settle;
mod stall;
mod starting;
mod stats;
mod status;
mod strict;
mod target;
#[cfg(test)]
mod tests;
mod traced;
mod unknown;

pub(crate) use answer::Answer;
use answer::{answer, held, reply, typed, write_large};
pub(crate) use app::ServerFacts;
use app::check_batch;
pub use app::{App, AppState, HttpLimits};
pub(crate) use audit::{act_on_queue, of_server as act_of_server, report_act};
pub use listener::HttpListener;
#[cfg(test)]
pub(crate) use request_id::span as request_span;
pub(crate) use starting::{Audience, StartWords, Starting};
