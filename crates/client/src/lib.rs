//! Client of [duewheel](https://github.com/duewheel/duewheel), a server of durable delayed messages, over HTTP:
//! [`DuewheelClient`] for tokio, [`BlockingClient`] without a runtime, workers ([`MessageWorker`]), and the check of
//! webhooks ([`Webhooks`]). Programs that embed the wheel use the crate `duewheel`.

mod batch;
mod blocking;
mod call;
mod client;
mod error;
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
pub use worker::{Ack, Cancellation, MessageWorker, terminated};
