//! Workers that begin again after a bug, until they are stopped; calls that are repeated for as long as a lease lasts.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duewheel::CallError;
use duewheel::core::time::EngineMs;
use duewheel_shard::random::doubled;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::limits::{FIRST_RESTART, FIRST_SETTLE, LONGEST_RESTART, LONGEST_SETTLE};

/// A worker on the runtime of the caller. Dropping this value signals the worker to stop.
#[derive(Debug)]
pub struct Supervised {
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
}

/// Whether all that a worker had begun had ended when it was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// All of it had ended: all requests of a pusher.
    Complete,
    /// Some was dropped. Messages of dropped requests are released, and will be delivered again, but for those whose
    /// last attempt it was: these are dead.
    Interrupted,
}

impl Supervised {
    /// Starts `work`, which ends when its watched value becomes true. After a panic it is started again, following a
    /// pause that doubles, and `restarts` counts that.
    pub fn start<F>(
        worker: impl fmt::Display + Send + 'static,
        restarts: Arc<AtomicU64>,
        work: impl Fn(watch::Receiver<bool>) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = watch::Sender::new(false);
        let mut stopped = stop.subscribe();
        let task = tokio::spawn(async move {
            for bugs in 0.. {
                // Dropped with this task.
                let mut run = JoinSet::new();
                run.spawn(work(stopped.clone()));
                let pause = doubled(FIRST_RESTART, LONGEST_RESTART, bugs);
                match run.join_next().await {
                    Some(Err(error)) if error.is_panic() => {
                        restarts.fetch_add(1, Ordering::Relaxed);
                        tracing::error!(%worker, ?pause, "a bug has ended a worker; it begins again");
                    }
                    Some(_) | None => return,
                }
                tokio::select! {
                    _ = stopped.wait_for(|stop| *stop) => return,
                    () = tokio::time::sleep(pause) => {}
                }
            }
        });
        Supervised { stop, task: Some(task) }
    }

    /// Tells it to stop, and waits for its end until `deadline`; then it is dropped.
    ///
    /// # Cancel safety
    /// When the future is dropped, it ends by itself.
    pub async fn stop(mut self, deadline: Duration) -> Stopped {
        self.stop.send_replace(true);
        let Some(mut task) = self.task.take() else { return Stopped::Complete };
        if tokio::time::timeout(deadline, &mut task).await.is_ok() {
            return Stopped::Complete;
        }
        task.abort();
        drop(task.await);
        Stopped::Interrupted
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

/// TestBugs that are to happen, for tests. Cheap to clone; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestBugs(Arc<AtomicU64>);

impl TestBugs {
    pub(crate) fn new(number: u64) -> Self {
        TestBugs(Arc::new(AtomicU64::new(number)))
    }

    /// A bug, if there are so many left.
    pub(crate) fn happen(&self, at_least: u64) {
        let one_less = |left: u64| (left >= at_least).then(|| left.saturating_sub(1));
        if self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
            panic!("a bug, for a test");
        }
    }
}

/// Repeats a call until it is answered, cannot succeed any more, or `until` has passed by `now`. It is made at least
/// once. A call whose outcome is unknown is repeated as well: settling twice is refused and changes nothing.
///
/// # Cancel safety
/// When the future is dropped, it is unknown whether the last call was applied.
pub(crate) async fn while_leased<T, F>(
    now: impl Fn() -> EngineMs,
    until: EngineMs,
    mut call: impl FnMut() -> F,
) -> Result<T, CallError>
where
    F: Future<Output = Result<T, CallError>>,
{
    let mut failures = 0;
    loop {
        match call().await {
            Err(error) if error.may_pass() && now() < until => {
                tokio::time::sleep(doubled(FIRST_SETTLE, LONGEST_SETTLE, failures)).await;
                failures = failures.saturating_add(1);
            }
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    const LEASE: Duration = Duration::from_secs(40);

    /// Calls fail until `well`, by tokio's clock, which moves by itself. Returns the answer and the number of calls.
    async fn run(well: Duration, error: CallError) -> (Result<u32, CallError>, u32) {
        let begun = Instant::now();
        let now = || EngineMs(u64::try_from(begun.elapsed().as_millis()).unwrap());
        let until = EngineMs(u64::try_from(LEASE.as_millis()).unwrap());
        let calls = Cell::new(0);
        let answer = while_leased(now, until, || {
            calls.set(calls.get() + 1);
            let answer = if begun.elapsed() >= well { Ok(7) } else { Err(error.clone()) };
            async move { answer }
        });
        (answer.await, calls.get())
    }

    /// Story: settling gave up after five tries in a third of a second, and a message that was delivered came again.
    #[tokio::test(start_paused = true)]
    async fn overloaded_store_is_retried_until_settled() {
        let (answer, calls) = run(LEASE - Duration::from_secs(2), CallError::Overloaded).await;
        assert_eq!(answer.unwrap(), 7);
        assert!((30..60).contains(&calls), "about once a second: {calls}");
        assert_eq!(run(LEASE / 2, CallError::NO_ANSWER).await.0.unwrap(), 7, "the driver has moved");
    }

    #[tokio::test(start_paused = true)]
    async fn retries_end_with_lease_or_closure() {
        let begun = Instant::now();
        assert!(run(2 * LEASE, CallError::Overloaded).await.0.is_err());
        assert!(begun.elapsed() < LEASE + Duration::from_secs(2));
        let (answer, calls) = run(LEASE, CallError::Closed("it is")).await;
        assert!(answer.is_err() && calls == 1);
    }
}
