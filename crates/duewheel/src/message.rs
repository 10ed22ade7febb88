//! A message as a handler or consumer receives it.

use std::fmt;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use duewheel_core::engine::Grant;
use duewheel_core::id::{LeaseToken, MessageId};
use duewheel_shard::error::CallError;
use serde::de::DeserializeOwned;

use crate::outcome::DeadLetter;
use crate::wheel::{Duewheel, WeakWheel};

/// A message under a lease of this consumer.
#[derive(Clone)]
pub struct Message {
    grant: Grant,
    wheel: WeakWheel,
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        self.grant == other.grant
    }
}

impl Eq for Message {}

impl Message {
    pub(crate) fn new(grant: Grant, wheel: WeakWheel) -> Self {
        Message { grant, wheel }
    }

    /// The wheel that it comes from. A handler that uses this, and captures no handle, does not keep the wheel open:
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// # let wheel = duewheel::Duewheel::builder().in_memory().open().await?;
    /// use duewheel::{HandlerResult, Message};
    ///
    /// wheel.queue("pay").handler(|msg: Message| async move {
    ///     msg.wheel()?.queue("ship").body(msg.body().clone()).enqueue().await?;
    ///     HandlerResult::Ok(())
    /// })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`CallError::Closed`] when the last handle was dropped.
    pub fn wheel(&self) -> Result<Duewheel, CallError> {
        self.wheel.upgrade().ok_or(CallError::Closed("the last handle of the wheel was dropped"))
    }

    /// The id of the message.
    pub fn id(&self) -> MessageId {
        self.grant.message.id
    }

    /// The name of its queue.
    pub fn queue(&self) -> &str {
        self.grant.message.queue.as_str()
    }

    /// The producer's own name for the message.
    pub fn key(&self) -> Option<&str> {
        self.grant.message.key.as_ref().map(|k| k.as_str())
    }

    /// The payload, byte for byte as it was enqueued.
    pub fn body(&self) -> &Bytes {
        &self.grant.message.body
    }

    /// The payload as a value, read from JSON.
    ///
    /// # Errors
    /// The body is not JSON of that type. Returned from a handler with `?`, it makes the message dead: another attempt
    /// would fail like this one.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, DeadLetter> {
        serde_json::from_slice(self.body()).map_err(|error| {
            DeadLetter::new(format!("the body is not a {}: {error}", std::any::type_name::<T>()))
        })
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// All headers, in the order given.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.grant.message.headers.iter().map(|(n, v)| (&**n, &**v))
    }

    /// The number of deliveries so far, including this one.
    pub fn attempt(&self) -> u32 {
        self.grant.attempt
    }

    /// When it was due, to the millisecond.
    pub fn due_at(&self) -> SystemTime {
        self.grant.due_at.to_system_time()
    }

    /// The time from its due time to its delivery.
    pub fn lateness(&self) -> Duration {
        Duration::from_millis(self.grant.lateness_ms)
    }

    /// Whether it had expired when it was delivered.
    pub fn is_late(&self) -> bool {
        self.grant.late
    }

    /// The end of the lease, by the clock at the time of delivery. Until then no other consumer gets the message.
    pub fn lease_until(&self) -> SystemTime {
        self.grant.lease_until.to_system_time()
    }

    /// Proof of the lease. Tokens of a message only grow, and their text form sorts in the same order: pass the token
    /// on to fence your own resource.
    pub fn lease_token(&self) -> LeaseToken {
        self.grant.token
    }

    /// The generation; each change by the producer raises it by one.
    pub fn generation(&self) -> u32 {
        self.grant.generation
    }

    pub(crate) fn lease_length(&self) -> Duration {
        Duration::from_millis(self.grant.lease_ms)
    }
}

impl fmt::Debug for Message {
    /// The body is left out: it may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.grant.fmt(f)
    }
}
