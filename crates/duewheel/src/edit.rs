//! Changing a scheduled message.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use duewheel_core::engine::{Applied, ChangeRefusal, Edit, Op, Outline, Past, RefusedPart, Target, When};
use duewheel_core::id::MessageId;
use duewheel_core::message::MaxAttempts;
use duewheel_core::time::{WallMs, ceil_ms};
use duewheel_shard::client::Client;
use serde::Serialize;

use crate::queue::{Queue, QueueError};

/// A change to a scheduled message; created by [`crate::Queue::change_key`] or [`crate::Queue::change_id`], sent by
/// [`Change::apply`]. Everything that is not set stays as it is, including the due time.
#[derive(Debug)]
#[must_use = "nothing is changed before `apply`"]
pub struct Change {
    client: Client,
    target: Result<Target, QueueError>,
    edit: Box<Edit>,
    if_generation: Option<u32>,
    wrong: Option<QueueError>,
}

impl Queue {
    /// Changes the message with this key: its due time, content or settings, as set on the [`Change`].
    pub fn change_key(&self, key: &str) -> Change {
        Change::new(self.wheel.client().clone(), self.target(key))
    }

    /// Changes the message with this id.
    pub fn change_id(&self, id: MessageId) -> Change {
        Change::new(self.wheel.client().clone(), Ok(Target::Id(id)))
    }
}

impl Change {
    pub(crate) fn new(client: Client, target: Result<Target, QueueError>) -> Self {
        Change { client, target, edit: Box::default(), if_generation: None, wrong: None }
    }

    /// Makes it due after this delay from now, rounded up to a millisecond.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.edit.when = Some(When::After(ceil_ms(delay)));
        self
    }

    /// Makes it due at this wall-clock time, rounded up to a millisecond. A time in the past is an error.
    pub fn at(mut self, instant: SystemTime) -> Self {
        self.edit.when = Some(When::At { due_at: WallMs::from_system_time_up(instant), past: Past::Refuse });
        self
    }

    /// Replaces the payload.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.edit.body = Some(body.into());
        self
    }

    /// Replaces the payload by this value as JSON.
    pub fn message<T: Serialize + ?Sized>(mut self, value: &T) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => self.edit.body = Some(body.into()),
            Err(error) => self.wrong = Some(QueueError::Json(error.to_string())),
        }
        self
    }

    /// Adds a header. The headers set on this change replace all headers of the message; call it once for each.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.edit.headers.get_or_insert_default().push((name.into(), value.into()));
        self
    }

    /// Removes all headers, except those that a later [`Change::header`] adds.
    pub fn no_headers(mut self) -> Self {
        self.edit.headers = Some(Vec::new());
        self
    }

    /// Changes the priority; lower values are delivered first.
    pub fn priority(mut self, priority: u32) -> Self {
        self.edit.priority = Some(priority);
        self
    }

    /// The message becomes dead after this many deliveries; at least 1.
    pub fn max_attempts(mut self, n: u32) -> Self {
        match MaxAttempts::new(n) {
            Some(max) => self.edit.max_attempts = Some(max),
            None => {
                self.wrong = Some(QueueError::Refused(ChangeRefusal::OutOfRange(RefusedPart::MaxAttempts)))
            }
        }
        self
    }

    /// The lease duration, from the next delivery on.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.edit.lease_ms = Some(ceil_ms(lease));
        self
    }

    /// Refuses the change unless the message has this generation.
    pub fn if_generation(mut self, generation: u32) -> Self {
        self.if_generation = Some(generation);
        self
    }

    /// Changes the message, and returns its state after the change: same id, `generation` one higher.
    ///
    /// # Errors
    /// See [`QueueError`]; a message that is leased or dead cannot be changed, and a change without any field is
    /// refused.
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the change; whether it was made is then unknown.
    pub async fn apply(self) -> Result<Applied<Outline>, QueueError> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        let change = Op::postpone(self.target?, self.edit, self.if_generation);
        let Applied { what, level } = self.client.ask(change).await?.map_err(QueueError::Refused)?;
        Ok(Applied { what: *what, level })
    }
}
