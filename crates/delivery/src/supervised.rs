//! Workers that begin again after a bug, until they are stopped.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duewheel_shard::random::doubled;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::limits::{FIRST_RESTART, LONGEST_RESTART};

/// A worker on the runtime of the caller. Dropping this value signals the worker to stop.
#[derive(Debug)]
pub(crate) struct Supervised {
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
}

impl Supervised {
    /// Starts `work`, which ends when its watched value becomes true. After a panic it is started again, following a
    /// pause that doubles, and `restarts` counts that.
    pub(crate) fn start<F>(
        worker: &'static str,
        restarts: Arc<AtomicU64>,
        work: impl Fn(watch::Receiver<bool>) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = watch::Sender::new(false);
        let mut stopped = stop.subscribe();
        let task = tokio::spawn(async move {
            let mut bugs = 0;
            loop {
                let pause = doubled(FIRST_RESTART, LONGEST_RESTART, bugs);
                match tokio::spawn(work(stopped.clone())).await {
                    Err(error) if error.is_panic() => {
                        restarts.fetch_add(1, Ordering::Relaxed);
                        tracing::error!(worker, ?pause, "a bug has ended a worker; it begins again");
                    }
                    Ok(()) | Err(_) => return,
                }
                tokio::select! {
                    _ = stopped.wait_for(|stop| *stop) => return,
                    () = tokio::time::sleep(pause) => {}
                }
                bugs = bugs.saturating_add(1);
            }
        });
        Supervised { stop, task: Some(task) }
    }

    /// Tells it to stop, and waits for its end until `deadline`.
    ///
    /// # Cancel safety
    /// When the future is dropped, it ends by itself.
    pub(crate) async fn stop(mut self, deadline: Duration) {
        self.stop.send_replace(true);
        if let Some(task) = self.task.take() {
            drop(tokio::time::timeout(deadline, task).await);
        }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}
