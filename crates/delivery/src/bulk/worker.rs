//! The worker that works on jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duewheel::core::engine::Grant;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::index::WaitingJobs;
use super::jobs::BulkJobs;
use super::record::BulkRecord;
use super::run::{BulkPlace, BulkRun, RunEnd};
use crate::limits::{BULK_HELD, BULK_RUNS, LOOK_AGAIN, UNREADABLE_LOOK};
use crate::records::{NextLook, RecordStore};
use crate::supervised::Supervised;

/// Works on jobs until it is stopped or the wheel is closed. Several may run, in several nodes: a job is worked on by one at
/// a time, and goes on elsewhere ten seconds after its node has died.
///
/// # What survives a crash
/// How far each job has come, up to a few hundred messages; those are looked at again, and none is changed twice.
#[derive(Debug)]
pub struct BulkWorker {
    restarts: Arc<AtomicU64>,
    worker: Supervised,
}

#[derive(Debug)]
struct Bulk {
    jobs: BulkJobs,
    restarts: Arc<AtomicU64>,
    waiting: Arc<WaitingJobs>,
}

impl BulkWorker {
    /// Starts a worker on the runtime of the caller.
    pub fn start(jobs: &BulkJobs) -> Self {
        let restarts = Arc::new(AtomicU64::new(0));
        let inner =
            Arc::new(Bulk { jobs: jobs.clone(), restarts: restarts.clone(), waiting: Arc::default() });
        let worker = Supervised::start("jobs", restarts.clone(), move |stop| work(inner.clone(), stop));
        BulkWorker { restarts, worker }
    }

    /// How often a bug has ended a job's run or the worker.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Lets each job end its present step, until `deadline`. Another node goes on at once.
    ///
    /// # Cancel safety
    /// When the future is dropped, the worker stops by itself.
    pub async fn stop(self, deadline: Duration) {
        self.worker.stop(deadline).await;
    }
}

async fn work(inner: Arc<Bulk>, mut stop: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(BULK_RUNS));
    let mut runs: JoinSet<()> = JoinSet::new();
    loop {
        while let Some(ended) = runs.try_join_next() {
            inner.ended(ended);
        }
        let granted = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            granted = inner.next(&places) => granted,
        };
        // Without a store there is nothing to do.
        let Some(granted) = granted else { break };
        if let Some((grant, place)) = granted {
            let (inner, stop) = (inner.clone(), stop.clone());
            runs.spawn(async move {
                inner.run(&grant, place, stop).await;
            });
        }
    }
    while let Some(ended) = runs.join_next().await {
        inner.ended(ended);
    }
}

impl Bulk {
    /// Waits for a record that is due, and a place for it. `None`: the wheel is closed.
    async fn next(&self, places: &Arc<Semaphore>) -> Option<Option<(Grant, BulkPlace)>> {
        let taken = Some(places.clone().acquire_owned().await.ok()?);
        let grant = match self.jobs.jobs.due(1).await {
            Ok(grants) => grants.into_iter().next(),
            Err(why) => return RecordStore::recover(why).await.map(|()| None),
        };
        Some(
            grant.map(|grant| {
                (grant, BulkPlace { all: places.clone(), taken, waiting: self.waiting.clone() })
            }),
        )
    }

    /// Works on the job whose record was granted.
    async fn run(&self, grant: &Grant, place: BulkPlace, stop: watch::Receiver<bool>) {
        let records = &self.jobs.jobs;
        let Some((id, row)) = records.hold(grant, BULK_HELD).await else { return };
        if self.waiting.all().iter().any(|waiting| waiting == id) {
            return;
        }
        let at = (row.id, row.generation);
        let record = match BulkRecord::read(&row.body) {
            Ok(record) => record,
            Err(error) => {
                tracing::warn!(job = id, error, "a job does not run");
                let later = NextLook::After(UNREADABLE_LOOK);
                drop(records.write(at, row.body, Some(later), None).await);
                return;
            }
        };
        let mut run = BulkRun::new(&self.jobs, id, at, record, place, stop);
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
