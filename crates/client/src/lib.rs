//! Client of [duewheel](https://github.com/duewheel/duewheel), a server of durable delayed messages, over HTTP:
//! [`DuewheelClient`] for tokio, [`BlockingClient`] without a runtime, workers ([`MessageWorker`]), and the check of
//! webhooks ([`Webhooks`]). Programs that embed the wheel use the crate `duewheel`.
//!
//! ```no_run
//! use std::time::Duration;
//! use duewheel_client::{BlockingClient, Nack, NewMessage, Options};
//!
//! # fn is_paid(_: &[u8]) -> bool { true }
//! # fn main() -> Result<(), duewheel_client::Error> {
//! let wheel = BlockingClient::new("http://localhost:7788", Options::default())?;
//! let close = NewMessage::default().body("order 42").delay(Duration::from_secs(48 * 3600)).key("order-42");
//! wheel.enqueue("close-review", close)?;
//!
//! let worker = wheel.worker(&["close-review"]).concurrency(10);
//! wheel.work(&worker, &wheel.terminated()?, |message, _| match is_paid(&message.bytes()) {
//!     true => Ok(()),
//!     false => Err(Nack::not_yet(Duration::from_secs(600))),
//! })?;
//! # Ok(())
//! # }
//! ```

#![warn(clippy::missing_errors_doc)]

mod batch;
mod blocking;
mod call;
mod client;
mod error;
mod outgoing;
mod random;
mod retry;
mod transport;
mod types;
mod webhook;
mod worker;

pub use blocking::{BlockingBody, BlockingClient};
pub use call::{ApiAnswer, ApiCall, ApiStream, segment};
pub use client::DuewheelClient;
pub use duewheel_api::error_code::ErrorCode;
pub use error::{Code, Error};
pub use http::Method;
pub use transport::Options;
pub use types::{
    Accepted, CancelledMessage, Each, EndedAttempt, LeasedMessage, LeasedMessages, MessagePage, MessageRef,
    MessageView, Nack, NewMessage, PastDue, Postponement, QueueOverview, Reserving, SettledMessage, TakenKey,
    Timestamp,
};
pub use webhook::{Webhook, Webhooks};
pub use worker::{Ack, Cancellation, MessageWorker, WorkerEvent, terminated};
