//! The worker that works on jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duewheel::core::engine::{Attempt, Grant, Op, Reserved};
use duewheel::core::time::ceil_ms;
use duewheel::{CallError, Demand};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::jobs::BulkJobs;
use super::record::BulkRecord;
use super::run::{BulkRun, RunEnd};
use crate::limits::{BULK_HELD, BULK_RUNS, FIRST_RESTART, LONGEST_RESTART, LOOK_AGAIN, UNREADABLE_LOOK};
use crate::shelf::NextLook;

/// How long a reserve waits; it only limits how often an idle loop repeats.
const WAIT_MS: u64 = 60_000;
/// The lease of a record, until it is held.
const LEASE_MS: u64 = 10_000;
/// The pause after a call that failed.
const PAUSE: Duration = Duration::from_millis(200);

/// Works on jobs until it is stopped or the wheel is closed. Several may run, in several nodes: a job is worked on by one at
/// a time, and goes on elsewhere ten seconds after its node has died.
///
/// # What survives a crash
/// How far each job has come, up to a few hundred messages; those are looked at again, and none is changed twice.
#[derive(Debug)]
pub struct BulkWorker {
    inner: Arc<Bulk>,
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Bulk {
    jobs: BulkJobs,
    restarts: AtomicU64,
}

impl BulkWorker {
    /// Starts a worker on the runtime of the caller.
    pub fn start(jobs: &BulkJobs) -> Self {
        let inner = Arc::new(Bulk { jobs: jobs.clone(), restarts: AtomicU64::new(0) });
        let stop = watch::Sender::new(false);
        let task = tokio::spawn(supervise(inner.clone(), stop.subscribe()));
        BulkWorker { inner, stop, task: Some(task) }
    }

    /// How often a bug has ended a job's run or the worker.
    pub fn restarts(&self) -> u64 {
        self.inner.restarts.load(Ordering::Relaxed)
    }

    /// Lets each job end its present step, until `deadline`. Another node goes on at once.
    ///
    /// # Cancel safety
    /// When the future is dropped, the worker stops by itself.
    pub async fn stop(mut self, deadline: Duration) {
        self.stop.send_replace(true);
        if let Some(mut task) = self.task.take()
            && tokio::time::timeout(deadline, &mut task).await.is_err()
        {
            task.abort();
        }
    }
}

impl Drop for BulkWorker {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

/// Runs the worker until it is stopped; after a bug again, following a pause.
async fn supervise(inner: Arc<Bulk>, mut stop: watch::Receiver<bool>) {
    let mut pause = FIRST_RESTART;
    loop {
        let worker = tokio::spawn(work(inner.clone(), stop.clone()));
        match worker.await {
            Err(error) if error.is_panic() => {
                inner.restarts.fetch_add(1, Ordering::Relaxed);
                tracing::error!(?pause, "a bug has ended the worker of jobs; it begins again");
            }
            Ok(()) | Err(_) => return,
        }
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = pause.saturating_mul(2).min(LONGEST_RESTART);
    }
}

async fn work(inner: Arc<Bulk>, mut stop: watch::Receiver<bool>) {
    let hands = Arc::new(Semaphore::new(BULK_RUNS));
    let mut runs: JoinSet<()> = JoinSet::new();
    loop {
        while let Some(ended) = runs.try_join_next() {
            inner.ended(ended);
        }
        let granted = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            granted = inner.next(&hands) => granted,
        };
        // Without a store there is nothing to do.
        let Some(granted) = granted else { break };
        if let Some((grant, hand)) = granted {
            let (inner, stop) = (inner.clone(), stop.clone());
            runs.spawn(async move {
                inner.run(&grant, stop).await;
                drop(hand);
            });
        }
    }
    while let Some(ended) = runs.join_next().await {
        inner.ended(ended);
    }
}

impl Bulk {
    /// Waits for a record that is due, and a hand for it. `None`: the wheel is closed.
    async fn next(&self, hands: &Arc<Semaphore>) -> Option<Option<(Grant, OwnedSemaphorePermit)>> {
        let hand = hands.clone().acquire_owned().await.ok()?;
        let shelf = &self.jobs.jobs;
        let demand =
            Demand { max: 1, wait_ms: WAIT_MS, lease_ms: Some(LEASE_MS), ..Demand::new(shelf.queue.clone()) };
        match shelf.client.reserve(demand).await {
            Ok(Reserved::Grants(grants)) => Some(grants.into_iter().next().map(|grant| (grant, hand))),
            Ok(_) => Some(None),
            Err(CallError::Closed(_)) => None,
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                Some(None)
            }
        }
    }

    /// Works on the job whose record was granted.
    async fn run(&self, grant: &Grant, stop: watch::Receiver<bool>) {
        let shelf = &self.jobs.jobs;
        // It comes again by itself if this run does not end; no attempt is used up.
        let back = Op::nack(grant.message.id, grant.token, Attempt::NotYet, Some(ceil_ms(BULK_HELD)), "");
        if !matches!(shelf.client.ask(back).await, Ok(Ok(_))) {
            return;
        }
        let Some(id) = grant.message.key.as_ref().map(|key| key.as_str()) else { return };
        let row = (grant.message.id, grant.generation);
        let record = match BulkRecord::read(&grant.message.body) {
            Ok(record) => record,
            Err(error) => {
                tracing::warn!(job = id, error, "a job does not run");
                let later = NextLook::After(UNREADABLE_LOOK);
                drop(shelf.write(row, grant.message.body.clone(), Some(later)).await);
                return;
            }
        };
        let mut run = BulkRun::new(&self.jobs, id, row, record, stop);
        if let RunEnd::Again(why) = run.go().await {
            tracing::info!(job = id, why, "a job waits and tries again");
            run.again_in(LOOK_AGAIN).await;
        }
    }

    fn ended(&self, run: Result<(), tokio::task::JoinError>) {
        if run.is_err_and(|error| error.is_panic()) {
            self.restarts.fetch_add(1, Ordering::Relaxed);
            tracing::error!("a bug has ended a step of a job; it is tried again");
        }
    }
}
