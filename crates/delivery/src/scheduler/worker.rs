//! The worker that looks at schedules when they are due.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duewheel::core::engine::Grant;
use duewheel_shard::activity::Activity;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use super::edits::Schedules;
use crate::limits::{HELD, LOOKS};
use crate::records::{RecordStore, StoredRecord};
use crate::schedule::{LookFacts, PreviousRun, ScheduleCounts, ScheduleRecord};
use crate::supervised::{Supervised, TestBugs};

/// The pause after the schedules could not all be read.
const COMPUTE_AGAIN: Duration = Duration::from_secs(2);
/// Looks at schedules when they are due, until it is stopped or the wheel is closed. Several may run, in several nodes:
/// each occurrence enters once.
///
/// A look is bounded, and sixteen schedules are looked at at a time: one with much to do does not hold up others. A
/// worker that a bug has ended begins again after a pause, and is counted.
///
/// # What survives a crash
/// Everything: what a look is about to do is in its record before.
#[derive(Debug)]
pub struct ScheduleWorker {
    inner: Arc<WorkerInner>,
    worker: Supervised,
}

/// Counts of a worker since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounts {
    /// Occurrences that have entered their queue.
    pub entered: u64,
    /// Occurrences that were missed.
    pub missed: u64,
    /// Occurrences that were skipped.
    pub skipped: u64,
    /// Occurrences that were refused at first.
    pub blocked: u64,
    /// Looks that failed, because of the store or of a record that cannot be read.
    pub failed: u64,
    /// Times that a bug has ended a look or the worker.
    pub restarts: u64,
}

#[derive(Debug)]
struct WorkerInner {
    schedules: Schedules,
    activity: Arc<Activity>,
    active: watch::Sender<bool>,
    counts: Mutex<WorkerCounts>,
    restarts: Arc<AtomicU64>,
    bugs: TestBugs,
}

impl ScheduleWorker {
    /// Starts a worker on the runtime of the caller.
    pub fn start(schedules: &Schedules) -> Self {
        ScheduleWorker::with_bugs(schedules, 0)
    }

    fn with_bugs(schedules: &Schedules, bugs: u64) -> Self {
        let inner = Arc::new(WorkerInner {
            schedules: schedules.clone(),
            activity: schedules.records.client.register(schedules.records.queue.clone()),
            active: watch::Sender::new(true),
            counts: Mutex::default(),
            restarts: Arc::default(),
            bugs: TestBugs::new(bugs),
        });
        let of_work = inner.clone();
        let worker =
            Supervised::start("schedules", inner.restarts.clone(), move |stop| work(of_work.clone(), stop));
        ScheduleWorker { inner, worker }
    }

    /// The counts of the worker.
    pub fn counts(&self) -> WorkerCounts {
        WorkerCounts { restarts: self.inner.restarts.load(Ordering::Relaxed), ..*self.inner.counts() }
    }

    /// Begins no further look until [`ScheduleWorker::resume`]; other nodes go on.
    pub fn pause(&self) {
        self.inner.active.send_replace(false);
    }

    /// Looks again.
    pub fn resume(&self) {
        self.inner.active.send_replace(true);
    }

    /// Begins no further look and waits for those under way, until `deadline`.
    ///
    /// # Cancel safety
    /// When the future is dropped, looks under way go on; no further one begins.
    pub async fn stop(self, deadline: Duration) {
        self.worker.stop(deadline).await;
    }
}

async fn work(inner: Arc<WorkerInner>, mut stop: watch::Receiver<bool>) {
    let slots = Arc::new(Semaphore::new(LOOKS));
    let mut looks: JoinSet<()> = JoinSet::new();
    let mut active = inner.active.subscribe();
    inner.bugs.happen(2);
    {
        let (inner, mut stop) = (inner.clone(), stop.clone());
        looks.spawn(async move {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => {}
                () = inner.compute_all_again() => {}
            }
        });
    }
    loop {
        while let Some(ended) = looks.try_join_next() {
            inner.ended(ended);
        }
        let granted = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            granted = inner.next(&mut active, &slots) => granted,
        };
        // Without a store there is nothing to look at.
        let Some(granted) = granted else { break };
        for (grant, slot) in granted {
            let (inner, run) = (inner.clone(), inner.activity.begin());
            looks.spawn(async move {
                inner.look(&grant).await;
                drop(run);
                drop(slot);
            });
        }
    }
    while let Some(ended) = looks.join_next().await {
        inner.ended(ended);
    }
}

impl WorkerInner {
    /// Waits for records that are due, each with a slot. `None`: the wheel is closed.
    async fn next(
        &self,
        active: &mut watch::Receiver<bool>,
        slots: &Arc<Semaphore>,
    ) -> Option<Vec<(Grant, OwnedSemaphorePermit)>> {
        if self.activity.away(active.wait_for(|active| *active)).await.is_err() {
            return std::future::pending().await;
        }
        let slot = slots.clone().acquire_owned().await.ok()?;
        let mut free = vec![slot];
        while let Ok(slot) = slots.clone().try_acquire_owned() {
            free.push(slot);
        }
        let grants = tokio::select! {
            biased;
            _ = active.wait_for(|active| !*active) => return Some(Vec::new()),
            grants = self.activity.waiting(self.schedules.records.due(free.len())) => grants,
        };
        match grants {
            Ok(grants) => Some(grants.into_iter().zip(free).collect()),
            Err(why) => self.activity.away(RecordStore::recover(why)).await.map(|()| Vec::new()),
        }
    }

    /// Looks at one schedule whose record was granted.
    async fn look(&self, grant: &Grant) {
        self.bugs.happen(1);
        let records = &self.schedules.records;
        let Some((name, row)) = records.hold(grant, HELD).await else { return };
        let record = match ScheduleRecord::read(&row.body) {
            Ok(record) => record,
            Err(error) => {
                tracing::warn!(schedule = name, %error, "a schedule does not run");
                self.counts().failed += 1;
                let later = crate::records::NextLook::After(crate::limits::UNREADABLE_LOOK);
                drop(records.write((row.id, row.generation), row.body, Some(later), None).await);
                return;
            }
        };
        if record.state.held_until > records.now() {
            return;
        }
        let before = record.state.counts.clone();
        // The grant says that it is so late by the clock of the shard.
        let began = grant.lease_until.0.saturating_sub(grant.lease_ms);
        let mut look = self.schedules.look(name, &row, record, began);
        let ended = look.run(None).await;
        self.count(&before, &look.record.state.counts);
        if let Err(error) = ended {
            tracing::debug!(schedule = name, %error, "a look at a schedule did not end");
            self.counts().failed += 1;
        }
    }

    /// Computes the next occurrences of all schedules again; as often as it takes.
    async fn compute_all_again(&self) {
        while !self.compute_again().await {
            tokio::time::sleep(COMPUTE_AGAIN).await;
        }
    }

    /// Lets schedules be looked at whose next occurrence is another one by the zone data of this process, or whose
    /// expression this version refuses. Whether all of them could be read.
    async fn compute_again(&self) -> bool {
        let records = &self.schedules.records;
        let now = records.now();
        let differs = |name: &str, row: StoredRecord| {
            let record = ScheduleRecord::read(&row.body).ok()?;
            let table = match record.timetable() {
                Ok(table) => table,
                Err(error) => return (error.field == "cron" && !record.settings.paused).then_some(row),
            };
            let mut state = record.state.clone();
            let (previous, remembered) = (PreviousRun::Unknown, records.remembered);
            let facts = LookFacts { name, now, previous, is_checked: false, remembered };
            state.compute_again(&table, facts);
            (state != record.state).then_some(row)
        };
        let Ok(found) = records.scan(differs).await else { return false };
        for row in found.into_values() {
            // A refusal says that another has it, who will look.
            drop(records.wake((row.id, row.generation)).await);
        }
        true
    }

    fn counts(&self) -> MutexGuard<'_, WorkerCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, before: &ScheduleCounts, after: &ScheduleCounts) {
        let mut counts = self.counts();
        counts.entered += after.entered.saturating_sub(before.entered);
        counts.missed += after.missed.saturating_sub(before.missed);
        counts.skipped += after.skipped.saturating_sub(before.skipped);
        counts.blocked += after.blocked.saturating_sub(before.blocked);
    }

    fn ended(&self, look: Result<(), tokio::task::JoinError>) {
        if look.is_err_and(|error| error.is_panic()) {
            self.restarts.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use duewheel::{Duewheel, Policy};

    use super::*;
    use crate::{RecurrenceSettings, ScheduleSettings};

    /// The worker has a bug as it begins, and one in its first look.
    #[tokio::test(flavor = "multi_thread")]
    async fn schedule_worker_restarts_after_panic() {
        let wheel = Duewheel::builder().in_memory().open().await.unwrap();
        let schedules = Schedules::new(&wheel, &Policy::default()).unwrap();
        let worker = ScheduleWorker::with_bugs(&schedules, 2);
        let settings = ScheduleSettings {
            queue: "q".into(),
            recurrence: RecurrenceSettings { every: Some("1h".into()), ..Default::default() },
            ..Default::default()
        };
        schedules.put("hourly", settings, None).await.unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while worker.counts().entered == 0 {
            assert!(std::time::Instant::now() < deadline, "{:?}", worker.counts());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(worker.counts().restarts, 2);
        worker.stop(Duration::from_secs(10)).await;
    }
}
