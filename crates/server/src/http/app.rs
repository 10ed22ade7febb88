//! The state that all requests of the listener share.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};
use bytes::Bytes;
use duewheel::core::engine::Ask;
use duewheel::core::name::BadName;
use duewheel::core::{Policy, WallMs};
use duewheel::{Client, Duewheel, VirtualClock};
use duewheel_bridge::outbox::{OutboxService, OutboxSettings};
use duewheel_bridge::{BadBridge, BridgeFigures, BridgeService, BridgeSettings};
use duewheel_delivery::{
    BulkJobs, BulkWorker, ScheduleWorker, Schedules, Sealing, TargetAttempt, TargetService, TargetStatus,
    Targets, WorkerCounts,
};

use tokio::sync::RwLock;

use super::answer::AnswerBudget;
use super::feed::{EventFeed, Feed};
use super::reading::{BodyBudget, TIME_LIMIT};
use crate::auth::{Guard, Hosts};
use crate::drain::Drain;
use crate::error::{ErrorCode, Problem};
use crate::traces::Traces;

/// How often the worker of schedules looks whether the server is in drain mode.
const DRAIN_POLL: Duration = Duration::from_secs(1);

/// The state that all requests share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct App(Arc<AppState>);

/// The state that all requests share.
#[derive(Debug)]
pub struct AppState {
    pub(super) wheel: Duewheel,
    pub(super) client: Client,
    pub(super) policy: Policy,
    pub(super) limits: HttpLimits,
    pub(super) guard: Arc<Guard>,
    pub(super) hosts: Hosts,
    pub(super) reading: Arc<BodyBudget>,
    pub(super) rooms: AnswerBudget,
    /// Set when the server is about to drain.
    pub(super) leaving: AtomicBool,
    pub(super) draining: AtomicBool,
    /// Why the server has failed.
    pub(super) failing: OnceLock<String>,
    pub(super) drain: Drain,
    pub(super) counters: HttpCounters,
    /// How long the answers of each route take.
    pub(super) durations: OnceLock<Vec<Arc<RouteDurations>>>,
    /// The clock of `--virtual-clock`.
    pub(super) clock: OnceLock<VirtualClock>,
    /// Figures, every second while a client reads them.
    pub(super) feed: Feed,
    /// Events of messages, while a client reads them.
    pub(super) events: EventFeed,
    /// Held by a request that changes the settings of a queue: a change is made of what was read before.
    pub(super) settings: tokio::sync::Mutex<()>,
    /// The worker of schedules, while it runs.
    pub(super) schedules: Mutex<Option<ScheduleWorker>>,
    pub(super) bulk: OnceLock<BulkJobs>,
    /// The worker of jobs, while it runs.
    pub(super) jobs: Mutex<Option<BulkWorker>>,
    /// The targets of the store.
    pub(super) targets: OnceLock<Targets>,
    /// The service that delivers to the targets, while it runs.
    pub(super) delivery: Mutex<Option<TargetService>>,
    /// The drains of outboxes, while they run.
    outboxes: Mutex<Option<OutboxService>>,
    /// The bridges to other systems, while they run.
    pub(super) bridges: RwLock<Option<BridgeService>>,
    /// The tracer, if tracing is enabled.
    pub(super) traces: OnceLock<Arc<dyn Traces>>,
    /// The start, for `/v1/status`.
    pub(super) start: OnceLock<ServerStart>,
    /// When the last copy was made; `None`: not found yet.
    pub(super) last_backup: tokio::sync::Mutex<Option<WallMs>>,
    /// `openapi.json`, made on the first request.
    pub(super) description: OnceLock<Bytes>,
}

/// Facts of the start, which do not change.
#[derive(Debug)]
pub(crate) struct ServerFacts {
    pub(crate) store: &'static str,
    /// The data folder, if there is one: `/metrics` shows its disk.
    pub(crate) folder: Option<PathBuf>,
    /// Bytes of memory for recent changes.
    pub(crate) memory: u64,
    pub(crate) warnings: Vec<String>,
}

/// The start of a server: its facts, and when it was.
#[derive(Debug)]
pub(super) struct ServerStart {
    pub(super) facts: ServerFacts,
    pub(super) at: WallMs,
    pub(super) since: Instant,
}

/// Limits of the listener, in addition to those of the engine ([`Policy`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Connections at a time.
    pub max_connections: usize,
    /// Bytes of the headers of one request.
    pub max_header_bytes: usize,
    /// Bytes of bodies that are being read, all connections together.
    pub max_reading_bytes: usize,
    /// Bytes of answers that have not been written yet, all connections together.
    pub max_writing_bytes: usize,
    /// The time limit for the headers of a request, including idle time before them, and for a handshake.
    pub header_timeout: Duration,
    /// The time limit for the body of a request, and for a client that does not read its answer.
    pub body_timeout: Duration,
    /// The folder below which backups are made; without one each goes into a folder that is prepared for it.
    pub backup_root: Option<PathBuf>,
}

impl Default for HttpLimits {
    fn default() -> Self {
        HttpLimits {
            max_connections: 10_000,
            max_header_bytes: 16 * 1024,
            max_reading_bytes: 256 * 1024 * 1024,
            max_writing_bytes: 256 * 1024 * 1024,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            backup_root: None,
        }
    }
}

/// Counters of the listener, for `/metrics`.
#[derive(Debug, Default)]
pub(super) struct HttpCounters {
    /// Answers by the first digit of the status.
    pub(super) responses: [AtomicU64; 6],
    pub(super) connections: AtomicU64,
}

impl App {
    /// The state for a wheel, for all clients that reach it. `policy` must be the wheel's, because its limits are
    /// also checked here.
    pub fn new(wheel: Duewheel, policy: Policy, limits: HttpLimits, drain: Drain) -> Self {
        App::guarded(wheel, policy, limits, drain, Arc::default(), Hosts::default())
    }

    /// The state for a wheel, for clients that `guard` authenticates. Without tokens only requests for one of `hosts`
    /// are accepted.
    pub fn guarded(
        wheel: Duewheel,
        policy: Policy,
        limits: HttpLimits,
        drain: Drain,
        guard: Arc<Guard>,
        hosts: Hosts,
    ) -> Self {
        let largest = max_single_bytes(&policy).max(policy.max_batch_bytes);
        let reading = BodyBudget::new(limits.max_reading_bytes, largest, TIME_LIMIT);
        let rooms = AnswerBudget::new(limits.max_writing_bytes);
        App(Arc::new(AppState {
            client: wheel.client().clone(),
            wheel,
            policy,
            limits,
            guard,
            hosts,
            reading,
            rooms,
            leaving: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            failing: OnceLock::new(),
            drain,
            counters: HttpCounters::default(),
            durations: OnceLock::new(),
            clock: OnceLock::new(),
            feed: Feed::default(),
            events: EventFeed::default(),
            settings: tokio::sync::Mutex::new(()),
            schedules: Mutex::new(None),
            bulk: OnceLock::new(),
            jobs: Mutex::new(None),
            targets: OnceLock::new(),
            delivery: Mutex::new(None),
            outboxes: Mutex::new(None),
            bridges: RwLock::new(None),
            traces: OnceLock::new(),
            start: OnceLock::new(),
            last_backup: tokio::sync::Mutex::new(None),
            description: OnceLock::new(),
        }))
    }

    /// Makes spans from now on: before requests are served.
    pub(crate) fn set_traces(&self, traces: Arc<dyn Traces>) {
        let _ = self.0.traces.set(traces); // there is one collector
    }

    /// The tracer, if tracing is enabled.
    pub(super) fn traces(&self) -> Option<&Arc<dyn Traces>> {
        self.0.traces.get()
    }

    /// Sets the facts of the start: before requests are served.
    pub(crate) fn set_start(&self, facts: ServerFacts) {
        let start = ServerStart { facts, at: self.client.now().wall, since: Instant::now() };
        let _ = self.start.set(start); // once
    }

    /// Lets callers move this clock, which must be the wheel's.
    pub fn set_clock(&self, clock: VirtualClock) {
        // There is one wheel, and so one clock.
        let _ = self.0.clock.set(clock);
    }

    /// Starts the worker of schedules. In drain mode it begins nothing new; other nodes do.
    pub fn start_schedules(&self) {
        let Ok(schedules) = Schedules::new(&self.wheel, &self.policy) else { return };
        *self.schedule_worker() = Some(ScheduleWorker::start(&schedules));
        let app = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(DRAIN_POLL).await;
                let Some(app) = app.upgrade().map(App) else { return };
                if app.drain.is_on() {
                    // Drain mode stays on until the server is restarted.
                    app.schedule_worker().as_ref().inspect(|worker| worker.pause());
                    return;
                }
            }
        });
    }

    /// Ends the worker of schedules. What it was about to do is done by others, or at the next start.
    pub(crate) async fn stop_schedules(&self, deadline: Duration) {
        let worker = self.schedule_worker().take();
        if let Some(worker) = worker {
            worker.stop(deadline).await;
        }
    }

    /// The jobs, and their index, which the worker and all requests share.
    pub(super) fn bulk_jobs(&self) -> Result<BulkJobs, BadName> {
        if let Some(jobs) = self.bulk.get() {
            return Ok(jobs.clone());
        }
        let jobs = BulkJobs::new(&self.wheel, &self.policy)?;
        Ok(self.bulk.get_or_init(|| jobs).clone())
    }

    /// Works on jobs from now on.
    pub fn start_jobs(&self) {
        if let Ok(jobs) = self.bulk_jobs() {
            *self.job_worker() = Some(BulkWorker::start(&jobs));
        }
    }

    /// Ends the worker of jobs. Another node, or the next start, goes on.
    pub(crate) async fn stop_jobs(&self, deadline: Duration) {
        let worker = self.job_worker().take();
        if let Some(worker) = worker {
            worker.stop(deadline).await;
        }
    }

    /// How often a bug has ended a step of a job, while the worker runs.
    pub(super) fn job_restarts(&self) -> Option<u64> {
        self.job_worker().as_ref().map(BulkWorker::restarts)
    }

    fn job_worker(&self) -> MutexGuard<'_, Option<BulkWorker>> {
        self.0.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counts of the worker of schedules, while it runs.
    pub(super) fn schedule_counts(&self) -> Option<WorkerCounts> {
        self.schedule_worker().as_ref().map(ScheduleWorker::counts)
    }

    fn schedule_worker(&self) -> MutexGuard<'_, Option<ScheduleWorker>> {
        self.0.schedules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets how secrets of targets are kept: before requests are served.
    pub fn set_sealing(&self, sealing: Sealing) {
        if let Ok(targets) = Targets::new(&self.wheel, &self.policy, sealing) {
            let _ = self.0.targets.set(targets); // the first one counts
        }
    }

    /// Delivers queues to their targets from now on.
    pub fn start_delivery(&self) {
        if let Some(targets) = self.targets() {
            *self.delivery() = Some(match self.traces() {
                Some(traces) => {
                    TargetService::start_traced(&self.wheel, targets, Arc::clone(traces).tracer())
                }
                None => TargetService::start(&self.wheel, targets),
            });
        }
    }

    /// Begins no further delivery, and waits for those under way.
    pub(crate) async fn stop_delivery(&self, deadline: Duration) {
        let service = self.delivery().take();
        if let Some(service) = service {
            service.stop(deadline).await;
        }
    }

    /// Drains these outboxes from now on.
    pub(crate) fn start_outboxes(&self, node: &str, all: &[OutboxSettings]) {
        *self.outboxes() = Some(OutboxService::start(&self.wheel, &self.policy, node, all));
    }

    /// Begins no further batch of an outbox, and waits for those under way.
    pub(crate) async fn stop_outboxes(&self, deadline: Duration) {
        let service = self.outboxes().take();
        if let Some(service) = service {
            service.stop(deadline).await;
        }
    }

    /// Runs bridges from now on.
    ///
    /// # Errors
    /// A bridge is not valid.
    ///
    /// # Cancel safety
    /// When the future is dropped, none may run.
    pub async fn start_bridges(&self, bridges: &[BridgeSettings]) -> Result<(), BadBridge> {
        let service = BridgeService::start(&self.wheel, &self.policy, bridges.to_vec())?;
        *self.0.bridges.write().await = Some(service);
        Ok(())
    }

    /// The figures of this node's bridges, by name.
    pub(super) async fn bridge_figures(&self) -> Vec<(String, BridgeFigures)> {
        let running = self.0.bridges.read().await;
        let all = running.as_ref().into_iter().flat_map(BridgeService::figures);
        all.map(|(name, figures)| (name.to_owned(), figures)).collect()
    }

    /// Ends the bridges; other nodes may run them at once.
    pub(crate) async fn stop_bridges(&self, deadline: Duration) {
        // A test of a bridge that is under way is not waited for.
        let Ok(mut running) = tokio::time::timeout(deadline, self.0.bridges.write()).await else { return };
        if let Some(service) = running.take() {
            drop(running);
            service.stop(deadline).await;
        }
    }

    /// The drains of outboxes, while they run.
    pub(super) fn outboxes(&self) -> MutexGuard<'_, Option<OutboxService>> {
        self.0.outboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The targets of the store. Without a sealing mode, targets with secrets are refused.
    pub(super) fn targets(&self) -> Option<&Targets> {
        if self.0.targets.get().is_none() {
            self.set_sealing(Sealing::Refused);
        }
        self.0.targets.get()
    }

    /// A target was edited by this node.
    pub(super) fn refresh_targets(&self) {
        self.delivery().as_ref().inspect(|service| service.refresh());
    }

    /// The status of a target that this node delivers to.
    pub(super) fn target_status(&self, name: &str) -> Option<TargetStatus> {
        self.delivery().as_ref().and_then(|service| service.status(name))
    }

    /// The newest attempts of this node to a target; `None`: it has made none.
    pub(super) fn target_attempts(&self, name: &str) -> Option<Vec<TargetAttempt>> {
        let attempts = self.delivery().as_ref().map(|service| service.attempts(name));
        attempts.filter(|attempts| !attempts.is_empty())
    }

    pub(super) fn delivery(&self) -> MutexGuard<'_, Option<TargetService>> {
        self.0.delivery.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses new messages in drain mode.
    pub(crate) fn accepts(&self) -> Result<(), Problem> {
        if self.drain.is_on() {
            let why = "the server is in drain mode and accepts no new messages; everything else goes on";
            return Err(Problem::new(ErrorCode::Draining, why));
        }
        Ok(())
    }

    /// Whether new messages are refused: in drain mode, and while the server stops.
    pub(super) fn refuses_new(&self) -> bool {
        self.drain.is_on() || self.draining.load(Ordering::Relaxed)
    }

    /// Submits one operation to the engine. A refusal is an answer.
    pub(crate) async fn ask<A: Ask>(&self, asked: A) -> Result<A::Reply, Problem> {
        self.client.ask(asked).await.map_err(Problem::from)
    }

    /// Submits one operation behind others of the same request, of which some were applied if `is_part`: then the request
    /// cannot fail as one that was not applied.
    pub(crate) async fn ask_behind<A: Ask>(&self, asked: A, is_part: bool) -> Result<A::Reply, Problem> {
        let answer = self.client.ask(asked).await;
        answer.map_err(|error| if is_part { error.of_one_of_several() } else { error }.into())
    }

    /// Submits many operations to the engine, which are decided without others in between; one result for each, in
    /// order.
    pub(crate) async fn ask_many<A: Ask>(
        &self,
        asked: Vec<A>,
    ) -> Result<Vec<Result<A::Reply, Problem>>, Problem> {
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let answers = self.client.ask_many(asked).await?;
        Ok(answers.into_iter().map(|answer| answer.map_err(Problem::from)).collect())
    }

    /// From now on `/readyz` reports that the server is about to stop, so that it gets no new requests; it still serves
    /// them.
    pub fn set_leaving(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// From now on `/healthz` and `/readyz` report that the server drains.
    pub fn set_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// From now on `/healthz` reports that the server has failed, and why.
    pub fn set_failing(&self, why: &str) {
        let _ = self.failing.set(why.to_owned()); // the first reason counts
    }

    /// The largest size of a request with one message, in bytes.
    pub(super) fn max_single_bytes(&self) -> usize {
        max_single_bytes(&self.policy)
    }

    pub(super) fn count_response(&self, status: StatusCode) {
        if let Some(counter) = self.counters.responses.get(usize::from(status.as_u16() / 100)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Deref for App {
    type Target = AppState;
    fn deref(&self) -> &AppState {
        &self.0
    }
}

/// The largest size of a request with one message: each byte of body and headers may be written as `\u0000`.
fn max_single_bytes(policy: &Policy) -> usize {
    policy.max_body.saturating_add(policy.max_headers).saturating_mul(6).saturating_add(16 * 1024)
}

/// Checks a list against the limits of a batch.
pub(super) fn check_batch(len: usize, policy: &Policy) -> Result<(), Problem> {
    if len > policy.max_batch_messages {
        let detail = format!("a batch may have at most {} messages", policy.max_batch_messages);
        return Err(Problem::new(ErrorCode::BodyTooLarge, detail));
    }
    Ok(())
}

/// Upper edges of the columns in ms: Prometheus' usual ones, and two below. A last column has what takes longer.
pub(super) const EDGES_MS: [u64; 13] = [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000];
/// Classes of status, from 1xx to 5xx.
const CLASSES: usize = 5;

/// The durations of a route's answers, by class of status.
#[derive(Debug)]
pub(super) struct RouteDurations {
    pub(super) method: Method,
    pub(super) path: &'static str,
    classes: [ClassDurations; CLASSES],
}

/// The histogram of the durations of a route's answers of one class.
#[derive(Debug, Default)]
struct ClassDurations {
    columns: [AtomicU64; EDGES_MS.len() + 1],
    sum_us: AtomicU64,
}

/// A histogram as it is now.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Durations {
    /// The first digit of the status.
    pub(super) class: usize,
    pub(super) columns: [u64; EDGES_MS.len() + 1],
    pub(super) sum_us: u64,
}

impl RouteDurations {
    pub(super) fn new(method: Method, path: &'static str) -> Self {
        RouteDurations { method, path, classes: Default::default() }
    }

    /// An answer has taken so long, from its request's headers to its own.
    pub(super) fn count(&self, status: StatusCode, took: Duration) {
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES) - 1;
        // An edge belongs to its column.
        let column =
            EDGES_MS.iter().position(|edge| took <= Duration::from_millis(*edge)).unwrap_or(EDGES_MS.len());
        let of = &self.classes[class];
        of.columns[column].fetch_add(1, Relaxed);
        of.sum_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// The classes that there were answers of.
    pub(super) fn all(&self) -> impl Iterator<Item = Durations> {
        self.classes.iter().zip(1..).filter_map(|(of, class)| {
            let columns = std::array::from_fn(|column| of.columns[column].load(Relaxed));
            let any = columns.iter().any(|count| *count > 0);
            any.then(|| Durations { class, columns, sum_us: of.sum_us.load(Relaxed) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_duration_is_counted_by_class() {
        let route = RouteDurations::new(Method::GET, "/x");
        for (status, ms) in [(200, 0), (201, 1), (200, 3), (404, 10_000), (503, 10_001)] {
            route.count(StatusCode::from_u16(status).unwrap(), Duration::from_millis(ms));
        }
        let all: Vec<Durations> = route.all().collect();
        assert_eq!(all.iter().map(|one| one.class).collect::<Vec<_>>(), [2, 4, 5]);
        assert_eq!((all[0].columns[0], all[0].columns[2], all[0].sum_us), (2, 1, 4_000));
        assert_eq!((all[1].columns[12], all[2].columns[13]), (1, 1));
    }
}
