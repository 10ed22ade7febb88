#![doc = include_str!("../README.md")]
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
