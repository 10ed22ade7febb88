//! Registered handlers, and their runtime.

use std::sync::Arc;

use duewheel_core::name::{BadName, QueueName};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;

/// Why a handler was not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// The queue's name is not valid.
    #[error("queue name {0}")]
    Name(BadName),
    /// The queue already has a handler.
    #[error("queue {0} has a handler already")]
    Taken(QueueName),
    /// The wheel is shutting down.
    #[error("the wheel is shutting down and registers no handler")]
    ShuttingDown,
    /// Handlers run on a tokio runtime, and the caller is not on one.
    #[error("no tokio runtime here to run handlers on")]
    NoRuntime,
    /// The operating system could not start a thread.
    #[error("no thread could be started: {0}")]
    Thread(String),
}

// Not `#[from]`: the text has the cause, and printers of chains would repeat it.
impl From<BadName> for HandlerError {
    fn from(bad: BadName) -> Self {
        HandlerError::Name(bad)
    }
}

/// The runtime of a wheel's handlers: the loops, the leases, the time limits, and the threads of runs that block. Its
/// threads and its time are nobody else's.
#[derive(Debug)]
pub(crate) struct HandlerRuntime {
    handle: Handle,
    /// Taken by the drop.
    runtime: Option<Runtime>,
}

impl HandlerRuntime {
    pub(crate) fn start() -> std::io::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).max_blocking_threads(MAX_THREADS).thread_name("duewheel-handle");
        let runtime = builder.enable_time().build()?;
        Ok(HandlerRuntime { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for HandlerRuntime {
    fn drop(&mut self) {
        // A wheel may be dropped by a task, which must not wait for others.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The number of runs that may block at the same time, over all queues; threads are started as they are needed.
const MAX_THREADS: usize = 16_384;

/// A registered handler.
#[derive(Clone, Debug)]
pub(crate) struct Registered {
    pub(crate) queue: QueueName,
    pub(crate) hands: Arc<Semaphore>,
    pub(crate) concurrency: usize,
}

impl Registered {
    /// Waits until no message is running.
    pub(crate) async fn rested(&self) {
        let all = u32::try_from(self.concurrency).unwrap_or(u32::MAX);
        drop(self.hands.acquire_many(all).await);
    }
}
