//! The targets as they are now: what delivery workers read, and how they report.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use duewheel::core::name::QueueName;
use duewheel::core::time::WallMs;
use tokio::sync::watch;

use crate::target::PushTarget;

/// A target and its queues, for a delivery worker. Its secrets are in the clear, in memory only; `Debug` shows none.
#[derive(Clone, Debug)]
pub struct TargetEntry {
    /// The name of the target.
    pub name: String,
    /// Where its requests go.
    pub target: Arc<PushTarget>,
    /// The queues that are delivered to it. Without one it does nothing.
    pub queues: Vec<QueueName>,
    /// Why it is paused, if it is.
    pub paused: Option<String>,
    /// A number that is another one after each edit, of its queues and pauses too.
    pub revision: u64,
}

/// All targets as they are now. Cheap to clone; clones share them.
///
/// # What survives a crash
/// Nothing: the book is filled from the records of targets.
#[derive(Clone, Debug)]
pub struct TargetBook {
    entries: Arc<watch::Sender<Arc<Vec<TargetEntry>>>>,
}

impl Default for TargetBook {
    fn default() -> Self {
        TargetBook { entries: Arc::new(watch::Sender::new(Arc::default())) }
    }
}

impl TargetBook {
    /// A book without targets.
    pub fn new() -> Self {
        TargetBook::default()
    }

    /// Replaces all entries. Workers follow within moments.
    pub fn set(&self, entries: Vec<TargetEntry>) {
        self.entries.send_replace(Arc::new(entries));
    }

    /// All entries, again whenever one of them has changed.
    pub fn watch(&self) -> watch::Receiver<Arc<Vec<TargetEntry>>> {
        self.entries.subscribe()
    }
}

/// A target that has done nothing but fail for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailingTarget {
    /// When that began, by the wall clock.
    pub since: WallMs,
    /// The failures since then, as far as they were counted.
    pub failures: u32,
}

/// The records that workers write and read about their targets: pauses and failures.
pub trait BookReport: Send + Sync + fmt::Debug + 'static {
    /// The target has said that it takes no more messages, or has failed for days: it is to be paused with this reason,
    /// unless it was edited since `revision`. The worker sends nothing more to it, and asks again after an error.
    ///
    /// # Errors
    /// In words, when the pause was not recorded.
    fn pause<'a>(
        &'a self,
        name: &'a str,
        revision: u64,
        reason: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

    /// The recorded failures of a target, read when a worker begins to push to it: five days of failures are counted
    /// over all processes. `None` if nothing is recorded, or the target was edited since `revision`.
    fn failing<'a>(
        &'a self,
        _name: &'a str,
        _revision: u64,
    ) -> Pin<Box<dyn Future<Output = Option<FailingTarget>> + Send + 'a>> {
        Box::pin(std::future::ready(None))
    }
}
