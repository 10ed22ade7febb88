//! The HTTP interface, version 1. `docs/http.md` describes it for users, `openapi.json` for machines.
//!
//! Requests are parsed at the border into the engine's operations, which are valid by construction; answers are written
//! into one buffer. All paths are in one table, `routes`.

mod answer;
mod answer_budget;
mod app;
mod backup;
mod budget;
mod bulk;
mod call;
mod cancel;
mod clock;
mod cluster;
#[cfg(test)]
mod contract;
mod dashboard;
mod durations;
mod enqueue;
mod enqueued;
mod errors;
mod events;
mod feed;
mod figures;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod histogram;
mod home;
mod identity;
mod limits;
mod line;
mod listener;
mod listing;
mod message;
mod metrics;
mod ndjson;
mod openapi;
mod plain;
mod queue;
mod queue_config;
mod queue_view;
mod quota;
mod reach;
mod reading;
mod redrive_to;
mod request_id;
mod reserve;
mod routes;
mod schedule;
mod schedule_view;
mod settle;
mod settle_many;
mod stall;
mod starting;
mod stats;
mod strict;
mod target;
mod target_url;
mod target_view;
mod traced;
mod view;
#[cfg(test)]
mod walk;
mod wheel;

pub(crate) use answer::Answer;
use answer::{held, reply, typed, write_large};
use app::check_batch;
pub use app::{App, AppState, HttpLimits};
pub use listener::HttpListener;
#[cfg(test)]
pub(crate) use request_id::span as request_span;
pub(crate) use starting::{Audience, StartWords, Starting};
