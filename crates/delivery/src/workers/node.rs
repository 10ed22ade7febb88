//! The workers of one node.

use std::collections::{BTreeMap, HashMap};
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use duewheel::core::MessageId;
use duewheel::core::engine::Grant;
use duewheel::core::time::{EngineMs, ceil_ms};
use duewheel::{CallError, Duewheel};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use super::latest::{LatestOfTargets, TargetAttempt};
use super::runner::{BookReport, RunnerContext, TargetBook, TargetEntry, TargetRunner, TargetStatus};
use super::ticket::{Ticket, Tickets};
use crate::limits::{REPORT_AGAIN, TICKET_CHECK, TICKET_PASSED, TICKET_STRANGE, WORKERS_TICK, WORKERS_WAIT};
use crate::pusher::{PusherError, PusherParts, check_store};
use crate::supervised::{Supervised, TestBugs};
use crate::tracer::PushTracer;

/// The queue of the tickets of targets.
const TICKETS: &str = "#pushers";

/// The parameters of a node's workers.
#[derive(Clone, Debug)]
pub struct PushWorkersStart {
    /// The targets.
    pub book: TargetBook,
    /// Where pauses are reported.
    pub report: Arc<dyn BookReport>,
    /// The random id of the store, part of `webhook-id`: 1 to 64 letters, digits and hyphens.
    pub store: String,
    /// The tracer of deliveries, if tracing is enabled.
    pub tracer: Option<Arc<dyn PushTracer>>,
}

/// Pushes to the targets of a book, until it is stopped or the wheel is closed. Each node of a cluster runs one; each
/// target is pushed to by one node at a time.
///
/// A target without a queue, or that is paused, is left alone. An edit takes effect without a restart, from the next
/// request on. A worker that a bug has ended begins again after a pause, and is counted.
///
/// # What survives a crash
/// The messages, with their attempts. What was under way is delivered again under the same `webhook-id`, by
/// this node or, within the lease of a ticket, by another. Breakers and counts are kept in memory and begin anew; how
/// long a target has done nothing but fail goes on, if the report of the book keeps it.
///
/// ```
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// use std::pin::Pin;
/// use std::sync::Arc;
/// use std::time::Duration;
/// use duewheel::Duewheel;
/// use duewheel::core::name::QueueName;
/// use duewheel_delivery::{
///     BookReport, PushTarget, PushWorkers, PushWorkersStart, TargetBook, TargetEntry, TargetSettings,
/// };
///
/// /// Prints pauses. A server records them, and writes the book anew.
/// #[derive(Debug)]
/// struct Printed;
/// impl BookReport for Printed {
///     fn pause<'a>(
///         &'a self,
///         name: &'a str,
///         _revision: u64,
///         reason: &'a str,
///     ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>> {
///         Box::pin(async move { Ok(println!("{name} is paused: {reason}")) })
///     }
/// }
///
/// let wheel = Duewheel::builder().in_memory().open().await?;
/// let book = TargetBook::new();
/// let (report, store) = (Arc::new(Printed), "main".into());
/// let start = PushWorkersStart { book: book.clone(), report, store, tracer: None };
/// let workers = PushWorkers::start(&wheel, start)?;
/// book.set(vec![TargetEntry {
///     name: "shop".into(),
///     target: Arc::new(PushTarget::new(&TargetSettings::new("https://example.com/close-review"))?),
///     queues: vec![QueueName::new("close-review")?],
///     paused: None,
///     revision: 1,
/// }]);
/// workers.stop(Duration::from_secs(30)).await;
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct PushWorkers {
    inner: Arc<WorkersInner>,
    running: Supervised,
}

#[derive(Debug)]
struct WorkersInner {
    context: RunnerContext,
    start: PushWorkersStart,
    tickets: Tickets,
    status: Mutex<BTreeMap<String, TargetStatus>>,
    /// How long requests under way may take when the workers are stopped.
    leave_within: OnceLock<Duration>,
    bugs: TestBugs,
}

impl PushWorkers {
    /// Starts the workers on the runtime of the caller.
    ///
    /// # Errors
    /// [`PusherError::Store`] or [`PusherError::NoRuntime`].
    pub fn start(wheel: &Duewheel, start: PushWorkersStart) -> Result<Self, PusherError> {
        PushWorkers::with_bugs(wheel, start, 0, 0)
    }

    fn with_bugs(
        wheel: &Duewheel,
        start: PushWorkersStart,
        own: u64,
        runners: u64,
    ) -> Result<Self, PusherError> {
        check_store(&start.store)?;
        tokio::runtime::Handle::try_current().map_err(|_| PusherError::NoRuntime)?;
        let restarts = Arc::<AtomicU64>::default();
        let parts = PusherParts {
            tracer: start.tracer.clone(),
            restarts: restarts.clone(),
            bugs: TestBugs::new(runners),
            ..PusherParts::default()
        };
        let (store, latest) = (start.store.clone(), LatestOfTargets::default());
        let inner = Arc::new(WorkersInner {
            tickets: Tickets::new(wheel.client(), TICKETS).map_err(PusherError::Queue)?,
            context: RunnerContext { wheel: wheel.clone(), store, parts, latest },
            start,
            status: Mutex::default(),
            leave_within: OnceLock::new(),
            bugs: TestBugs::new(own),
        });
        let of_work = inner.clone();
        let running =
            Supervised::start("the delivery workers", restarts, move |stop| work(of_work.clone(), stop));
        Ok(PushWorkers { inner, running })
    }

    /// The state of a target, a moment old. `None`: this node does not push to it.
    pub fn status(&self, name: &str) -> Option<TargetStatus> {
        self.inner.status().get(name).cloned()
    }

    /// The states of all targets that this node pushes to, by name.
    pub fn statuses(&self) -> BTreeMap<String, TargetStatus> {
        self.inner.status().clone()
    }

    /// The newest attempts of this node to a target, the one that has ended last first: at most 50, in memory. They
    /// stay while the target is paused, and are gone when it is removed.
    pub fn attempts(&self, name: &str) -> Vec<TargetAttempt> {
        self.inner.context.latest.of(name)
    }

    /// How often a bug has ended a worker.
    pub fn restarts(&self) -> u64 {
        self.inner.context.parts.restarts.load(Ordering::Relaxed)
    }

    /// Begins no further request, waits for those under way until `deadline`, and lets other nodes have the targets. Do
    /// this before the wheel is shut down. Requests that have not ended are dropped, and their messages released.
    ///
    /// # Cancel safety
    /// When the future is dropped, the workers stop by themselves.
    pub async fn stop(self, deadline: Duration) {
        let _ = self.inner.leave_within.set(deadline);
        // It ends by itself: each of its waits has a limit.
        self.running.stop(Duration::MAX).await;
    }
}

type Free<'a> = Pin<Box<dyn Future<Output = Result<Vec<Grant>, CallError>> + Send + 'a>>;

async fn work(inner: Arc<WorkersInner>, stop: watch::Receiver<bool>) {
    let mut run = JoinSet::new();
    run.spawn(work_until(inner.clone(), stop));
    let ended = run.join_next().await;
    // Also after a bug other nodes may have the targets at once.
    inner.tickets.close().await;
    inner.status().clear();
    if let Some(Err(bug)) = ended.map(|ended| ended.map_err(JoinError::try_into_panic))
        && let Ok(bug) = bug
    {
        resume_unwind(bug);
    }
}

async fn work_until(inner: Arc<WorkersInner>, mut stop: watch::Receiver<bool>) {
    let tickets = &inner.tickets;
    let mut book = inner.start.book.watch();
    let mut round = Round::new(&inner);
    let ended = inner.context.wheel.ended();
    tokio::pin!(ended);
    let mut free: Free<'_> = Box::pin(free_after(tickets, Duration::ZERO));
    loop {
        let entries = book.borrow_and_update().clone();
        round.step(&entries).await;
        inner.bugs.happen(1);
        let granted = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            _ = &mut ended => break,
            granted = &mut free => granted,
            // Its sender lives in `inner`.
            _ = book.changed() => continue,
            () = tokio::time::sleep(WORKERS_TICK) => continue,
        };
        let entries = book.borrow_and_update().clone();
        let pause = granted.is_err();
        round.granted(&entries, granted.unwrap_or_default()).await;
        // After an error not at once.
        let pause = if pause { WORKERS_TICK } else { Duration::ZERO };
        free = Box::pin(free_after(tickets, pause));
    }
    // Tickets that are granted from now on go back.
    drop(free);
    round.leave(inner.leave_within.get().copied().unwrap_or_default()).await;
}

async fn free_after(tickets: &Tickets, pause: Duration) -> Result<Vec<Grant>, CallError> {
    tokio::time::sleep(pause).await;
    tickets.free().await
}

/// The runners of a node, and what is done about them again and again.
struct Round<'a> {
    inner: &'a WorkersInner,
    runners: BTreeMap<String, TargetRunner>,
    /// Tickets of targets that this node does not know, and how often they were seen.
    strange: HashMap<MessageId, u32>,
    checked: Option<EngineMs>,
    /// The list that tickets were laid out for.
    laid_out: Option<Arc<Vec<TargetEntry>>>,
    /// When pauses are reported next.
    report_at: EngineMs,
}

impl<'a> Round<'a> {
    fn new(inner: &'a WorkersInner) -> Self {
        Round {
            inner,
            runners: BTreeMap::new(),
            strange: HashMap::new(),
            checked: None,
            laid_out: None,
            report_at: EngineMs(0),
        }
    }

    async fn step(&mut self, entries: &Arc<Vec<TargetEntry>>) {
        self.edit(entries).await;
        self.renew().await;
        self.report().await;
        self.lay_out(entries).await;
        let now = self.inner.context.wheel.client().now();
        let held =
            self.runners.iter_mut().filter(|(_, runner)| runner.ticket.is_some() || runner.in_flight() > 0);
        let status = held.map(|(name, runner)| (name.clone(), runner.status(now))).collect();
        *self.inner.status() = status;
    }

    /// Follows the book: a target that is edited changes, one that is removed or paused is left alone at once.
    async fn edit(&mut self, entries: &[TargetEntry]) {
        let active: HashMap<&str, &TargetEntry> = actives(entries).map(|e| (e.name.as_str(), e)).collect();
        let mut removed = Vec::new();
        for (name, runner) in &mut self.runners {
            match active.get(name.as_str()) {
                Some(entry) => runner.edit(entry),
                None => {
                    removed.extend(runner.ticket.take());
                    runner.follow_ticket();
                }
            }
        }
        for ticket in removed {
            self.inner.tickets.remove(ticket).await;
        }
        self.runners.retain(|_, runner| {
            // Requests under way end; their pusher stays until then.
            runner.ticket.is_some() || runner.in_flight() > 0
        });
        let known =
            entries.iter().map(|entry| entry.name.as_str()).chain(self.runners.keys().map(String::as_str));
        self.inner.context.latest.keep(&known.collect());
    }

    async fn renew(&mut self) {
        let now = self.inner.context.wheel.client().now().engine;
        let mut wanting: Vec<_> = self
            .runners
            .values_mut()
            .map(|runner| &mut runner.ticket)
            .filter(|ticket| ticket.as_ref().is_some_and(|ticket| ticket.wants_renewal(now)))
            .collect();
        if wanting.is_empty() {
            return;
        }
        self.inner.tickets.renew(&mut wanting).await;
        for runner in self.runners.values() {
            runner.follow_ticket();
        }
    }

    async fn report(&mut self) {
        let now = self.inner.context.wheel.client().now().engine;
        if now < self.report_at {
            return;
        }
        for (name, runner) in &mut self.runners {
            let Some(reason) = runner.unreported() else { continue };
            let pausing = self.inner.start.report.pause(name, runner.entry.revision, &reason);
            match tokio::time::timeout(WORKERS_WAIT, pausing).await {
                Ok(Ok(())) => {
                    runner.is_reported();
                    continue;
                }
                Ok(Err(error)) => tracing::warn!(target = name, %error, "a pause was not recorded"),
                Err(_) => tracing::warn!(target = name, "a pause was not recorded in time"),
            }
            // Others wait with it, so that tickets are renewed in time.
            self.report_at = EngineMs(now.0.saturating_add(ceil_ms(REPORT_AGAIN)));
            return;
        }
    }

    /// Makes sure that each target has a ticket, now and then and after an edit.
    async fn lay_out(&mut self, entries: &Arc<Vec<TargetEntry>>) {
        let now = self.inner.context.wheel.client().now().engine;
        let recent = |at: EngineMs| now.0.saturating_sub(at.0) < ceil_ms(TICKET_CHECK);
        let same = self.laid_out.as_ref().is_some_and(|before| Arc::ptr_eq(before, entries));
        if same && self.checked.is_some_and(recent) {
            return;
        }
        let held = |name: &str| self.runners.get(name).is_some_and(|runner| runner.ticket.is_some());
        let names: Vec<_> = actives(entries).map(|e| e.name.as_str()).filter(|name| !held(name)).collect();
        self.inner.tickets.lay_out(&names).await;
        (self.checked, self.laid_out) = (Some(now), Some(entries.clone()));
    }

    /// Takes tickets.
    async fn granted(&mut self, entries: &[TargetEntry], grants: Vec<Grant>) {
        for grant in grants {
            let Some((name, ticket)) = Ticket::of(&grant) else { continue };
            let known = entries.iter().find(|entry| entry.name == name);
            match known {
                Some(entry) if is_active(entry) => {
                    self.strange.remove(&ticket.id);
                    self.take(entry, ticket).await;
                }
                // The target is paused, or has no queue. A node that knows of a later edit lays out another ticket.
                Some(_) => self.inner.tickets.remove(ticket).await,
                None => self.pass_on(ticket).await,
            }
        }
    }

    async fn take(&mut self, entry: &TargetEntry, ticket: Ticket) {
        if !self.runners.contains_key(&entry.name) {
            let failing = self.inner.start.report.failing(&entry.name, entry.revision);
            // If it cannot be read in time, the count of failures begins anew.
            let failing = tokio::time::timeout(WORKERS_WAIT, failing).await.unwrap_or(None);
            match TargetRunner::new(&self.inner.context, entry, failing) {
                Ok(runner) => drop(self.runners.insert(entry.name.clone(), runner)),
                Err(error) => {
                    tracing::warn!(target = entry.name, %error, "a target is not delivered to");
                    return self.inner.tickets.give_back(ticket, ceil_ms(TICKET_PASSED)).await;
                }
            }
        }
        if let Some(runner) = self.runners.get_mut(&entry.name) {
            runner.edit(entry);
            runner.ticket = Some(ticket);
        }
    }

    /// The target was removed, or this node has not read of it yet: another one may have.
    async fn pass_on(&mut self, ticket: Ticket) {
        let seen = self.strange.entry(ticket.id).or_default();
        *seen += 1;
        if *seen < TICKET_STRANGE {
            return self.inner.tickets.give_back(ticket, ceil_ms(TICKET_PASSED)).await;
        }
        self.strange.remove(&ticket.id);
        self.inner.tickets.remove(ticket).await;
    }

    /// Ends all pushers; each ticket goes back when the requests of its target have ended.
    async fn leave(self, deadline: Duration) {
        let mut leaving = JoinSet::new();
        for runner in self.runners.into_values() {
            let tickets = self.inner.tickets.clone();
            leaving.spawn(async move {
                let (pusher, ticket) = runner.leave();
                pusher.stop(deadline).await;
                if let Some(ticket) = ticket {
                    tickets.give_back(ticket, 0).await;
                }
            });
        }
        while leaving.join_next().await.is_some() {}
    }
}

fn is_active(entry: &TargetEntry) -> bool {
    entry.paused.is_none() && !entry.queues.is_empty()
}

fn actives(entries: &[TargetEntry]) -> impl Iterator<Item = &TargetEntry> {
    entries.iter().filter(|entry| is_active(entry))
}

impl WorkersInner {
    fn status(&self) -> MutexGuard<'_, BTreeMap<String, TargetStatus>> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use duewheel::core::name::QueueName;
    use duewheel::{Duewheel, VirtualClock};

    use super::*;
    use crate::client::PushClient;
    use crate::pusher::{PushJob, Pusher};
    use crate::target::{NetworkSettings, PushTarget, TargetSettings};

    #[derive(Debug)]
    struct NoReport;

    impl BookReport for NoReport {
        fn pause<'a>(
            &'a self,
            _: &'a str,
            _: u64,
            _: &'a str,
        ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>> {
            Box::pin(async { Ok(()) })
        }
    }

    /// A target where nothing listens: attempts fail at once.
    fn nowhere() -> Arc<PushTarget> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let networks = Some(NetworkSettings::One("127.0.0.1/32".into()));
        Arc::new(PushTarget::new(&TargetSettings { networks, ..TargetSettings::new(url) }).unwrap())
    }

    async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !done().await {
            assert!(Instant::now() < deadline, "waited in vain until {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The workers have a bug as they begin, and the pusher of the target has two.
    #[tokio::test(flavor = "multi_thread")]
    async fn workers_begin_again_after_bugs() {
        let wheel = Duewheel::builder().in_memory().open().await.unwrap();
        let queues = vec![QueueName::new("q").unwrap()];
        let entry = TargetEntry { name: "t".into(), target: nowhere(), queues, paused: None, revision: 1 };
        let book = TargetBook::new();
        book.set(vec![entry]);
        let start = PushWorkersStart { book, report: Arc::new(NoReport), store: "s1".into(), tracer: None };
        let workers = PushWorkers::with_bugs(&wheel, start, 1, 2).unwrap();
        wheel.queue("q").body("x").enqueue().await.unwrap();
        let failed = async || workers.status("t").is_some_and(|status| status.counts.forgiven > 0);
        until("a request was sent", failed).await;
        assert_eq!(workers.restarts(), 3);
        workers.stop(Duration::from_secs(10)).await;
    }

    /// A node that cannot renew its ticket, or does not get to, begins no request once another may have it.
    #[tokio::test(flavor = "multi_thread")]
    async fn no_push_begins_after_ticket_expiry() {
        let clock = VirtualClock::at_2026();
        let wheel = Duewheel::builder().in_memory().clock(clock.clone()).open().await.unwrap();
        let job = PushJob::new(PushClient::new(nowhere()), vec![QueueName::new("q").unwrap()]);
        let pusher = Pusher::start_job(&wheel, "s1", job, PusherParts::default()).unwrap();
        let engine = || wheel.client().now().engine;
        let send = async || wheel.queue("q").body("x").enqueue().await.unwrap();
        send().await;
        pusher.open_until(EngineMs(engine().0 + 15_000));
        until("it begins", async || pusher.counts().forgiven == 1).await;
        // It waits for a message when its time is over.
        clock.advance(Duration::from_secs(15));
        send().await;
        until("both wait", async || {
            let counts = wheel.stats().await.unwrap().counts;
            counts.ready == 2 && counts.leased == 0
        })
        .await;
        for _ in 0..200 {
            wheel.stats().await.unwrap();
        }
        assert_eq!((pusher.counts().forgiven, pusher.in_flight()), (1, 0));
        pusher.open_until(EngineMs(engine().0 + 15_000));
        until("it goes on", async || pusher.counts().forgiven == 3).await;
        pusher.stop(Duration::from_secs(10)).await;
    }

    /// Story: the name of a store is a part of `webhook-id`, in which a dot separates.
    #[tokio::test]
    async fn store_name_with_dot_is_refused() {
        let wheel = Duewheel::builder().in_memory().open().await.unwrap();
        let start = PushWorkersStart {
            book: TargetBook::new(),
            report: Arc::new(NoReport),
            store: "a.b".into(),
            tracer: None,
        };
        assert_eq!(PushWorkers::start(&wheel, start).map(drop).unwrap_err(), PusherError::Store);
    }
}
