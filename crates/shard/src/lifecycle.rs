//! The life of a driver in its owner's hands: it is asked to end, and it says how it ended.

use std::sync::Arc;

use crate::error::CallError;
use crate::inbox::{Door, Inbox};
use crate::shared::{End, EndOnPanic, Shared, Wish};

/// Ends a driver, or waits for its end. Cheap to clone; all clones concern the same driver. Dropping it ends nothing.
#[derive(Clone, Debug)]
pub struct Lifecycle {
    inbox: Arc<Inbox>,
    shared: Arc<Shared>,
}

impl Lifecycle {
    /// Of the driver behind this inbox.
    pub fn new(inbox: Arc<Inbox>, shared: Arc<Shared>) -> Self {
        Lifecycle { inbox, shared }
    }

    /// From now on only what settles messages is taken; reserves that wait end with what there is.
    pub fn drain(&self) {
        self.inbox.close_door(Door::Draining);
        self.shared.wish(Wish::EndWaits, &self.inbox);
    }

    /// Takes nothing any more, and ends once everything that was accepted is durable.
    pub fn close(&self) {
        self.inbox.close_door(Door::Closed(CallError::Draining));
        self.stop();
    }

    /// Ends the driver without closing its inbox before.
    pub fn stop(&self) {
        self.shared.wish(Wish::Stop, &self.inbox);
    }

    /// Whether the driver has ended.
    pub fn has_ended(&self) -> bool {
        self.shared.has_ended()
    }

    /// Waits until the driver has ended, and says how.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn ended(&self) -> End {
        self.shared.ended().await
    }

    /// For a task of the owner: if the task panics while it keeps this, the driver ends. `place` names the task.
    pub fn end_on_panic(&self, place: &'static str) -> EndOnPanic {
        EndOnPanic::new(&self.shared, &self.inbox, place)
    }
}
