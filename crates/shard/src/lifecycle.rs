//! The owner's control over a driver: ending it, and waiting for its end.

use std::sync::Arc;

use crate::error::CallError;
use crate::inbox::{Admission, Inbox};
use crate::shared::{DriverEnd, DriverShared, EndOnPanic, ThreadCommand};

/// Ends a driver, or waits for its end. Cheap to clone; all clones control the same driver. Dropping it ends nothing.
#[derive(Clone, Debug)]
pub struct Lifecycle {
    inbox: Arc<Inbox>,
    shared: Arc<DriverShared>,
}

impl Lifecycle {
    /// Controls the driver with this inbox.
    pub fn new(inbox: Arc<Inbox>, shared: Arc<DriverShared>) -> Self {
        Lifecycle { inbox, shared }
    }

    /// Accepts only operations that settle messages from now on; waiting reserves end with the messages that they have.
    pub fn drain(&self) {
        self.inbox.close_door(Admission::Draining);
        self.shared.wish(ThreadCommand::EndWaits, &self.inbox);
    }

    /// Stops accepting operations, and ends once everything accepted is durable.
    pub fn close(&self) {
        self.inbox.close_door(Admission::Closed(CallError::Draining));
        self.stop();
    }

    /// Ends the driver without closing its inbox first.
    pub fn stop(&self) {
        self.shared.wish(ThreadCommand::Stop, &self.inbox);
    }

    /// Whether the driver has ended.
    pub fn has_ended(&self) -> bool {
        self.shared.has_ended()
    }

    /// Waits until the driver has ended, and returns the reason.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn ended(&self) -> DriverEnd {
        self.shared.ended().await
    }

    /// A guard for a task of the owner: if the task panics while it holds the guard, the driver ends. `place` names the
    /// task.
    pub fn end_on_panic(&self, place: &'static str) -> EndOnPanic {
        EndOnPanic::new(&self.shared, &self.inbox, place)
    }
}
