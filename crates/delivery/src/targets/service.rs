//! The targets of one node: follows edits, starts the workers, records pauses.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duewheel::Duewheel;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::edits::{ReadyTarget, RowMark, Targets};
use super::stages::StageRecord;
use crate::limits::{CLOSE, TARGETS_LOOK, TARGETS_READ, WORKERS_WAIT};
use crate::supervised::{Supervised, TestBugs};
use crate::tracer::PushTracer;
use crate::workers::{
    BookReport, FailingTarget, PushWorkers, PushWorkersStart, TargetAttempt, TargetBook, TargetEntry,
    TargetStatus,
};

/// Delivers the queues of a store to their targets, in each node of a cluster: follows the records of [`Targets`] and
/// runs [`PushWorkers`] from the first target on that has a queue.
///
/// # What survives a crash
/// Targets and pauses. The service begins with what the records say.
#[derive(Debug)]
pub struct TargetService {
    inner: Arc<ServiceInner>,
    /// The worker that follows the records.
    reader: Option<Supervised>,
    reader_restarts: Arc<AtomicU64>,
}

#[derive(Debug)]
struct ServiceInner {
    wheel: Duewheel,
    targets: Targets,
    tracer: Option<Arc<dyn PushTracer>>,
    book: TargetBook,
    workers: Mutex<Option<PushWorkers>>,
    known: Mutex<Known>,
    edited: Notify,
    /// Bugs of the reader, which tests provoke.
    bugs: TestBugs,
}

/// The contents of the records as last read.
#[derive(Debug, Default)]
struct Known {
    entries: BTreeMap<String, KnownTarget>,
    broken: BTreeMap<String, String>,
    /// Number of targets whose secrets are stored in the clear.
    open: usize,
    revision: u64,
    /// Set when the service ends: no workers are started any more.
    stopped: bool,
}

#[derive(Debug)]
struct KnownTarget {
    row: RowMark,
    entry: TargetEntry,
}

impl TargetService {
    /// Starts it on the runtime of the caller. It ends with [`TargetService::stop`], when it is dropped, or when the
    /// wheel is closed.
    pub fn start(wheel: &Duewheel, targets: &Targets) -> Self {
        TargetService::with_bugs(wheel, targets, None, 0)
    }

    /// Starts it on the runtime of the caller, as [`TargetService::start`] does, with spans of deliveries.
    pub fn start_traced(wheel: &Duewheel, targets: &Targets, tracer: Arc<dyn PushTracer>) -> Self {
        TargetService::with_bugs(wheel, targets, Some(tracer), 0)
    }

    fn with_bugs(
        wheel: &Duewheel,
        targets: &Targets,
        tracer: Option<Arc<dyn PushTracer>>,
        bugs: u64,
    ) -> Self {
        let inner = Arc::new(ServiceInner {
            wheel: wheel.clone(),
            targets: targets.clone(),
            tracer,
            book: TargetBook::new(),
            workers: Mutex::new(None),
            known: Mutex::default(),
            edited: Notify::new(),
            bugs: TestBugs::new(bugs),
        });
        let reader_restarts = Arc::new(AtomicU64::new(0));
        let followed = inner.clone();
        let work = move |stop| follow(followed.clone(), stop);
        let reader = Supervised::start("the reader of targets", reader_restarts.clone(), work);
        TargetService { inner, reader: Some(reader), reader_restarts }
    }

    /// Reads the targets at once: this node has edited one.
    pub fn refresh(&self) {
        self.inner.edited.notify_one();
    }

    /// The state of a target, a moment old. `None`: this node does not push to it.
    pub fn status(&self, name: &str) -> Option<TargetStatus> {
        self.inner.workers().as_ref().and_then(|workers| workers.status(name))
    }

    /// The newest attempts of this node to a target, the one that has ended last first: at most 50, in memory.
    pub fn attempts(&self, name: &str) -> Vec<TargetAttempt> {
        self.inner.workers().as_ref().map(|workers| workers.attempts(name)).unwrap_or_default()
    }

    /// The states of all targets that this node pushes to, by name.
    pub fn statuses(&self) -> BTreeMap<String, TargetStatus> {
        self.inner.workers().as_ref().map(PushWorkers::statuses).unwrap_or_default()
    }

    /// How often a bug has ended a worker, or the reader of the records.
    pub fn restarts(&self) -> u64 {
        let workers = self.inner.workers().as_ref().map_or(0, PushWorkers::restarts);
        workers + self.reader_restarts.load(Ordering::Relaxed)
    }

    /// Begins no further request, and waits for those under way until `deadline`. Do this before the wheel is shut down.
    ///
    /// # Cancel safety
    /// When the future is dropped, the service stops by itself.
    pub async fn stop(mut self, deadline: Duration) {
        self.inner.known().stopped = true;
        let (reader, workers) = (self.reader.take(), self.inner.workers().take());
        let reader_ends = async {
            if let Some(reader) = reader {
                reader.stop(CLOSE).await;
            }
        };
        let workers_end = async {
            if let Some(workers) = workers {
                workers.stop(deadline).await;
            }
        };
        tokio::join!(reader_ends, workers_end);
    }
}

impl Drop for TargetService {
    fn drop(&mut self) {
        self.inner.known().stopped = true;
        drop(self.inner.workers().take());
    }
}

/// Follows the records until it is stopped.
async fn follow(inner: Arc<ServiceInner>, mut stop: watch::Receiver<bool>) {
    let mut seen = None;
    let mut read_at: Option<Instant> = None;
    let mut noted = BTreeMap::new();
    let ended = inner.wheel.ended();
    tokio::pin!(ended);
    let mut is_edited = false;
    loop {
        let stamp = tokio::time::timeout(WORKERS_WAIT, inner.targets.stamp()).await;
        if let Ok(Ok(stamp)) = stamp {
            let is_new = seen != Some(stamp) || read_at.is_none_or(|at| at.elapsed() >= TARGETS_READ);
            if (is_new || is_edited) && inner.read().await {
                (seen, read_at, is_edited) = (Some(stamp), Some(Instant::now()), false);
            }
        }
        inner.note_stages(&mut noted).await;
        inner.bugs.happen(1);
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            _ = &mut ended => return,
            () = inner.edited.notified() => is_edited = true,
            () = tokio::time::sleep(TARGETS_LOOK) => {}
        }
    }
}

impl ServiceInner {
    fn workers(&self) -> MutexGuard<'_, Option<PushWorkers>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record of a target, unless it was edited since this revision.
    fn row_of(&self, name: &str, revision: u64) -> Option<RowMark> {
        let known = self.known();
        known.entries.get(name).filter(|known| known.entry.revision == revision).map(|known| known.row)
    }

    /// Reads all records, and lets the workers have them. Returns whether it did.
    async fn read(self: &Arc<Self>) -> bool {
        let marks: BTreeMap<String, RowMark> =
            self.known().entries.iter().map(|(name, known)| (name.clone(), known.row)).collect();
        let known = |name: &str| marks.get(name).copied();
        let Ok(all) = self.targets.read_all(&known).await else { return false };
        let entries = {
            let mut known = self.known();
            for (name, why) in &all.broken {
                if known.broken.get(name) != Some(why) {
                    tracing::warn!(target = name, why, "nothing is delivered to a target");
                }
            }
            if all.open > known.open {
                let targets = all.open;
                tracing::warn!(targets, "secrets of targets are kept in the clear; --secrets-key seals them");
            }
            (known.broken, known.open) = (all.broken, all.open);
            known.take(all.ready)
        };
        let is_needed = entries.iter().any(|entry| !entry.queues.is_empty());
        self.book.set(entries);
        !is_needed || self.start_workers().await
    }

    /// Starts the workers, unless they run. Returns whether they do.
    async fn start_workers(self: &Arc<Self>) -> bool {
        if self.workers().is_some() {
            return true;
        }
        let store = match self.targets.store_id().await {
            Ok(store) => store,
            Err(error) => {
                tracing::warn!(%error, "nothing is delivered: the id of the store cannot be read");
                return false;
            }
        };
        let report = Arc::new(PauseRecorder(self.clone()));
        let start = PushWorkersStart { book: self.book.clone(), report, store, tracer: self.tracer.clone() };
        let known = self.known();
        if known.stopped {
            return true;
        }
        match PushWorkers::start(&self.wheel, start) {
            Ok(workers) => {
                *self.workers() = Some(workers);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "nothing is delivered");
                false
            }
        }
    }

    /// Records what this node sees of its targets, where that has changed.
    async fn note_stages(&self, noted: &mut BTreeMap<String, StageRecord>) {
        let statuses = self.workers().as_ref().map(PushWorkers::statuses).unwrap_or_default();
        noted.retain(|name, _| statuses.contains_key(name));
        for (name, status) in statuses {
            let row = self.known().entries.get(&name).map(|known| known.row);
            let state = StageRecord::of(&status, row, self.wheel.client().now().wall);
            if noted.get(&name) == Some(&state) {
                continue;
            }
            let writing = tokio::time::timeout(WORKERS_WAIT, self.targets.note_stage(&name, &state));
            if writing.await == Ok(true) {
                noted.insert(name, state);
            }
        }
    }
}

impl Known {
    /// Takes over what the records say. A target that is the same keeps its revision and its connections, whatever its
    /// queues are.
    fn take(&mut self, ready: BTreeMap<String, ReadyTarget>) -> Vec<TargetEntry> {
        let mut before = std::mem::take(&mut self.entries);
        for (name, ReadyTarget { row, target, queues, paused }) in ready {
            let (target, revision) = match (target, before.remove(&name)) {
                (_, Some(known)) if known.row == row => (known.entry.target, known.entry.revision),
                (Some(target), _) => {
                    self.revision += 1;
                    (Arc::new(target), self.revision)
                }
                // The target is left out only if its record is as it is known.
                (None, _) => continue,
            };
            let entry = TargetEntry { name: name.clone(), target, queues, paused, revision };
            self.entries.insert(name, KnownTarget { row, entry });
        }
        self.entries.values().map(|known| known.entry.clone()).collect()
    }
}

/// Writes pauses that targets have asked for.
#[derive(Debug)]
struct PauseRecorder(Arc<ServiceInner>);

impl BookReport for PauseRecorder {
    fn pause<'a>(
        &'a self,
        name: &'a str,
        revision: u64,
        reason: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>> {
        Box::pin(async move {
            // The target was edited since that revision.
            let Some(row) = self.0.row_of(name, revision) else { return Ok(()) };
            self.0.targets.pause_if(name, row, reason).await.map_err(|error| error.to_string())?;
            self.0.edited.notify_one();
            Ok(())
        })
    }

    fn failing<'a>(
        &'a self,
        name: &'a str,
        revision: u64,
    ) -> Pin<Box<dyn Future<Output = Option<FailingTarget>> + Send + 'a>> {
        Box::pin(async move {
            let row = self.0.row_of(name, revision)?;
            self.0.targets.failing(name, row).await
        })
    }
}

#[cfg(test)]
mod tests {
    use duewheel::Policy;
    use duewheel::core::name::QueueName;

    use duewheel::core::time::WallMs;

    use super::*;
    use crate::pusher::PushCounts;
    use crate::target::TargetSettings;
    use crate::targets::Sealing;
    use crate::workers::TargetStage;

    /// A target where nothing listens.
    fn nowhere() -> TargetSettings {
        let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let networks = Some(crate::target::NetworkSettings::One("127.0.0.1/32".into()));
        TargetSettings { networks, ..TargetSettings::new(format!("http://{nowhere}/")) }
    }

    /// Story: the end of a reader was not counted, and who stopped the service waited for the workers first.
    #[tokio::test(flavor = "multi_thread")]
    async fn target_reader_restarts_after_panic() {
        let wheel = Duewheel::builder().in_memory().open().await.unwrap();
        let targets = Targets::new(&wheel, &Policy::default(), Sealing::Open).unwrap();
        let service = TargetService::with_bugs(&wheel, &targets, None, 2);
        targets.put("shop", &TargetSettings::new("https://shop.example/")).await.unwrap();
        targets.choose(&QueueName::new("orders").unwrap(), Some("shop"), &|_| true).await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while service.restarts() < 2 || service.status("shop").is_none() {
            assert!(Instant::now() < deadline, "{} restarts", service.restarts());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        service.stop(Duration::from_secs(10)).await;
    }

    /// Story: five days of failures were counted by one process, so each restart began them anew.
    #[tokio::test(flavor = "multi_thread")]
    async fn failure_period_spans_processes() {
        let wheel = Duewheel::builder().in_memory().open().await.unwrap();
        let targets = Targets::new(&wheel, &Policy::default(), Sealing::Open).unwrap();
        let settings = nowhere();
        let day = 86_400_000;
        let now = wheel.client().now().wall;
        for (name, edited) in [("old", false), ("edited", true)] {
            targets.put(name, &settings).await.unwrap();
            targets.choose(&QueueName::new(name).unwrap(), Some(name), &|_| true).await.unwrap();
            let row = targets.targets.read(name).await.unwrap().unwrap();
            let failing = FailingTarget { since: WallMs(now.0 - 5 * day - day / 24), failures: 10 };
            let status = TargetStatus {
                stage: TargetStage::Open,
                reason: None,
                since: now.to_system_time(),
                counts: PushCounts::default(),
                in_flight: 0,
                failing: Some(failing),
            };
            let mark = Some((row.id, row.generation));
            assert!(targets.note_stage(name, &StageRecord::of(&status, mark, now)).await);
            if edited {
                targets.put(name, &settings).await.unwrap();
            }
            wheel.queue(name).body("x").enqueue().await.unwrap();
        }
        let service = TargetService::start(&wheel, &targets);
        let deadline = Instant::now() + Duration::from_secs(60);
        let paused = async |name: &str| targets.get(name).await.unwrap().paused;
        while paused("old").await.is_none()
            || service.status("edited").is_none_or(|seen| seen.failing.is_none())
        {
            assert!(Instant::now() < deadline, "waited in vain");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let reason = paused("old").await.unwrap().reason;
        assert!(reason.starts_with("all requests failed for 5 days"), "{reason}");
        assert_eq!(paused("edited").await, None, "it is another one now, which has failed once");
        service.stop(Duration::from_secs(10)).await;
    }

    /// Story: each queue that a target got or lost began its five days, and its breaker, anew.
    #[tokio::test(flavor = "multi_thread")]
    async fn queue_changes_keep_target_revision() {
        let wheel = Duewheel::builder().in_memory().open().await.unwrap();
        let targets = Targets::new(&wheel, &Policy::default(), Sealing::Open).unwrap();
        let service = TargetService::start(&wheel, &targets);
        targets.put("shop", &nowhere()).await.unwrap();
        let mut begun = None;
        for queue in ["orders", "refunds"] {
            targets.choose(&QueueName::new(queue).unwrap(), Some("shop"), &|_| true).await.unwrap();
            let id = wheel.queue(queue).body("x").enqueue().await.unwrap().id;
            let deadline = Instant::now() + Duration::from_secs(60);
            while service.attempts("shop").iter().all(|attempt| attempt.id != id) {
                assert!(Instant::now() < deadline, "nothing of {queue} was sent");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let known = service.inner.known().entries["shop"].entry.clone();
            assert_eq!(known.revision, *begun.get_or_insert(known.revision), "with {:?}", known.queues);
        }
        service.stop(Duration::from_secs(10)).await;
    }
}
