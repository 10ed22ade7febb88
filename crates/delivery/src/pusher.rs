//! A consumer that delivers the messages of queues to a target.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use duewheel::core::engine::{Attempt, Grant, Op, Reserved, Target, View};
use duewheel::core::id::SessionId;
use duewheel::core::message::Detail;
use duewheel::core::name::{BadName, QueueName};
use duewheel::core::time::{EngineMs, WallMs, ceil_ms};
use duewheel::{CallError, Client, Duewheel};
use duewheel_shard::activity::Activity;
use duewheel_shard::client::Reserve;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::answer::PushVerdict;
use crate::breaker::{Breaker, BreakerStage, Charge, Failing, Permit, RequestMark, SharedBreaker};
use crate::client::{PushClient, PushOutcome};
use crate::limits::{
    ASIDE, CLOSE, FORGIVEN_DELAY, LEASE_MARGIN, MAX_STORE_NAME, UNSETTLED_PER_REQUEST, URLS_PER_PUSHER,
};
use crate::message_url::MessageUrl;
use crate::origins::{UrlContext, UrlTargets};
use crate::request::PushRequest;
use crate::supervised::{Stopped, Supervised, TestBugs, while_leased};
use crate::tracer::{KnownSettings, PushTracer};
use crate::workers::attempts::detail_with;
use crate::workers::latest::{LatestAttempts, TargetAttempt};

mod slots;
mod to_url;
#[cfg(test)]
mod to_url_tests;

pub use slots::PushCounts;
use slots::{CyclePart, MessagePlace, PlaceCounts, PushEnd, PushRoute, QueueRotation, RateBucket};

/// Delivers the messages of one or several queues to a target, until it is stopped or the wheel is closed.
///
/// The limits of the target, requests at a time and a second, and its breaker are those of its pusher: start one for each
/// target, and name all queues that are delivered to it.
///
/// A message is leased for the time-out of its request and ten seconds. A success acks it; a failure returns it with the
/// delay of the target's plan, or of the message's own backoff; after the last attempt it is dead, with the class of
/// the error as note. While the breaker is open, or the target is paused, its messages wait without a lease and
/// lose no attempts. A queue may have handlers and pushers at a time: who reserves first gets the message.
///
/// A pusher holds a handle of its wheel, which stays open as long as the pusher runs. One that a bug has ended begins
/// again after a pause.
///
/// # What survives a crash
/// The messages. What was under way is delivered again at the next start, with the same `webhook-id`. The breaker's state
/// and the counts are kept in memory.
///
/// ```
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// use std::sync::Arc;
/// use std::time::Duration;
/// use duewheel::Duewheel;
/// use duewheel_delivery::{PushClient, PushTarget, Pusher, TargetSettings};
///
/// let wheel = Duewheel::builder().in_memory().open().await?;
/// let target = PushTarget::new(&TargetSettings {
///     secrets: vec!["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into()],
///     ..TargetSettings::new("https://example.com/close-review")
/// })?;
/// let pusher = Pusher::start(&wheel, &["close-review"], "main", PushClient::new(Arc::new(target)))?;
/// wheel.queue("close-review").message(&"order-42").delay(48 * duewheel::HOUR).enqueue().await?;
/// pusher.stop(Duration::from_secs(30)).await;
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct Pusher {
    worker: Arc<PushWorker>,
    running: Supervised,
}

/// Why a pusher was not started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PusherError {
    /// The name of a queue is not valid.
    #[error("queue name {0}")]
    Queue(BadName),
    /// No queue is named.
    #[error("at least one queue must be named")]
    NoQueue,
    /// The store's name is not valid.
    #[error("the name of the store must be 1 to {MAX_STORE_NAME} letters, digits and hyphens")]
    Store,
    /// Requests run on a tokio runtime, and the caller is not on one.
    #[error("no tokio runtime here to send requests on")]
    NoRuntime,
}

impl Pusher {
    /// Starts to deliver the messages of `queues`, of which there is at least one. `store` is a name of yours for the
    /// data folder or cluster, part of `webhook-id`: no two stores that deliver to the same receiver may have the same,
    /// and a store that was restored from a backup needs a new one. It is 1 to 64 letters, digits and hyphens.
    ///
    /// # Errors
    /// See [`PusherError`].
    pub fn start(
        wheel: &Duewheel,
        queues: &[&str],
        store: &str,
        client: PushClient,
    ) -> Result<Self, PusherError> {
        check_store(store)?;
        if queues.is_empty() {
            return Err(PusherError::NoQueue);
        }
        let queues = queues.iter().map(|queue| QueueName::new(queue)).collect::<Result<_, _>>();
        let queues = queues.map_err(PusherError::Queue)?;
        let job = PushJob::new(client, queues);
        let parts = PusherParts { name: "a pusher".to_owned(), ..PusherParts::default() };
        let pusher = Pusher::start_job(wheel, store, job, parts)?;
        pusher.open_until(EngineMs(u64::MAX));
        Ok(pusher)
    }

    /// Starts a pusher that begins no request before [`Pusher::open_until`].
    pub(crate) fn start_job(
        wheel: &Duewheel,
        store: &str,
        job: PushJob,
        parts: PusherParts,
    ) -> Result<Self, PusherError> {
        Handle::try_current().map_err(|_| PusherError::NoRuntime)?;
        let now = wheel.client().now().engine;
        let rate = job.client.target().rate;
        let worker = Arc::new(PushWorker {
            session: wheel.client().new_session(),
            store: store.to_owned(),
            has_begun: AtomicBool::new(false),
            bucket: Mutex::new(rate.map(|rate| RateBucket::new(rate, now))),
            job: Mutex::new(Arc::new(job)),
            open_until: AtomicU64::new(0),
            aside_until: AtomicU64::new(0),
            changed: watch::Sender::new(()),
            places: Arc::default(),
            rotation: QueueRotation::default(),
            counts: Mutex::default(),
            settings: KnownSettings::default(),
            wheel: wheel.client().clone(),
            parts,
        });
        let (of_work, wheel) = (worker.clone(), wheel.clone());
        let work = move |stop| of_work.clone().work(wheel.clone(), stop);
        let running = Supervised::start(worker.parts.name.clone(), worker.parts.restarts.clone(), work);
        Ok(Pusher { worker, running })
    }

    /// Begins requests until this instant, and none after it. An instant that has passed stops it; what is under way
    /// goes on.
    pub(crate) fn open_until(&self, until: EngineMs) {
        let before = self.worker.open_until.swap(until.0, Ordering::SeqCst);
        let now = self.worker.now().0;
        if (now < before) != (now < until.0) {
            self.worker.changed.send_replace(());
        }
    }

    /// Delivers something else, or elsewhere, from the next request on. Those under way end as they were begun, and
    /// count in the new limit of requests at a time. The breaker begins anew, because the edit may be the cure; the outcomes
    /// of those under way are for the former one.
    pub(crate) fn change(&self, job: PushJob) {
        let (worker, rate) = (&self.worker, job.client.target().rate);
        let before = std::mem::replace(&mut *worker.lock_job(), Arc::new(job));
        if before.client.target().rate != rate {
            *worker.bucket() = rate.map(|rate| RateBucket::new(rate, worker.now()));
        }
        worker.changed.send_replace(());
    }

    /// Delivers the messages of these queues, from the next request on.
    pub(crate) fn serve(&self, queues: Vec<QueueName>) {
        let mut job = self.worker.lock_job();
        *job = Arc::new(PushJob { queues, ..PushJob::clone(&job) });
        drop(job);
        self.worker.changed.send_replace(());
    }

    /// Requests that have begun and whose message is not settled.
    pub(crate) fn in_flight(&self) -> usize {
        let PlaceCounts { under_way, elsewhere, .. } = &*self.worker.places;
        under_way.load(Ordering::SeqCst) + elsewhere.load(Ordering::SeqCst)
    }

    /// The breaker of its target as it is now.
    pub(crate) fn breaker(&self) -> Breaker {
        self.worker.job().breaker.lock().clone()
    }

    /// The target has failed before: the time of nothing but failures goes on.
    pub(crate) fn has_failed(&self, before: Failing) {
        self.worker.job().breaker.lock().has_failed(before);
    }

    /// Returns the stage of its target's breaker.
    pub fn stage(&self) -> BreakerStage {
        self.breaker().stage().clone()
    }

    /// How attempts have ended since it was started.
    pub fn counts(&self) -> PushCounts {
        *self.worker.counts()
    }

    /// Begins no further request until [`Pusher::resume`]. Those under way end.
    pub fn pause(&self, reason: &str) {
        self.worker.job().breaker.lock().pause(reason);
        self.worker.changed.send_replace(());
    }

    /// Forgets all failures and delivers again; also resets an open breaker.
    pub fn resume(&self) {
        self.worker.job().breaker.lock().resume();
        self.worker.changed.send_replace(());
    }

    /// Begins no further request and waits for those under way, until `deadline`. Do this before the wheel is shut down.
    ///
    /// # Cancel safety
    /// When the future is dropped, requests under way go on; no further one begins.
    pub async fn stop(self, deadline: Duration) -> Stopped {
        let stopped = self.running.stop(deadline).await;
        self.worker.release().await;
        stopped
    }
}

/// Checks a name that becomes part of `webhook-id`.
pub(crate) fn check_store(store: &str) -> Result<(), PusherError> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    if store.is_empty() || store.len() > MAX_STORE_NAME || !store.bytes().all(allowed) {
        return Err(PusherError::Store);
    }
    Ok(())
}

/// The target and the queues of a pusher. An edit of the target replaces it as a whole; clones share its breaker.
#[derive(Clone, Debug)]
pub(crate) struct PushJob {
    client: PushClient,
    /// The targets of messages with URLs of their own; made for the first of them.
    urls: OnceLock<UrlTargets>,
    queues: Vec<QueueName>,
    concurrency: usize,
    lease_ms: u64,
    breaker: SharedBreaker,
}

impl PushJob {
    pub(crate) fn new(client: PushClient, queues: Vec<QueueName>) -> Self {
        let target = client.target();
        let concurrency = usize::try_from(target.concurrency.get()).unwrap_or(usize::MAX);
        let lease_ms = ceil_ms(target.timeout.saturating_add(LEASE_MARGIN));
        let breaker = SharedBreaker::new(Breaker::new(target.timeout));
        PushJob { client, urls: OnceLock::new(), queues, concurrency, lease_ms, breaker }
    }

    /// Messages at a time that were sent to the target or are being sent, and are not settled. A target that gets one
    /// request at a time gets the next one when the message before is settled.
    fn unsettled(&self) -> usize {
        if self.concurrency == 1 { 1 } else { self.concurrency.saturating_mul(UNSETTLED_PER_REQUEST) }
    }
}

/// Dependencies that only the server sets.
#[derive(Clone, Debug, Default)]
pub(crate) struct PusherParts {
    /// The words for it in logs.
    pub(crate) name: String,
    /// The newest attempts to its target.
    pub(crate) latest: Option<LatestAttempts>,
    /// The state shared by all requests to URLs of messages.
    pub(crate) urls: Arc<UrlContext>,
    /// The tracer of its deliveries, if tracing is enabled.
    pub(crate) tracer: Option<Arc<dyn PushTracer>>,
    /// How often a bug has ended a worker.
    pub(crate) restarts: Arc<AtomicU64>,
    pub(crate) bugs: TestBugs,
}

#[derive(Debug)]
struct PushWorker {
    wheel: Client,
    job: Mutex<Arc<PushJob>>,
    /// The session that leases are bound to: a restart of the process releases them at once.
    session: SessionId,
    /// Whether it runs, or has run until a bug has ended it.
    has_begun: AtomicBool,
    store: String,
    /// The instant, in ms of engine time, at which it begins no further request.
    open_until: AtomicU64,
    /// Until when a message with a URL of its own has the place of a request that would tell the breaker something, in ms
    /// of engine time.
    aside_until: AtomicU64,
    bucket: Mutex<Option<RateBucket>>,
    /// Notified when the number of permitted requests changes.
    changed: watch::Sender<()>,
    places: Arc<PlaceCounts>,
    rotation: QueueRotation,
    counts: Mutex<PushCounts>,
    settings: KnownSettings,
    parts: PusherParts,
}

/// Result of one loop iteration.
enum Turn {
    /// Messages, and what they were reserved for.
    Granted(Arc<PushJob>, Vec<Grant>),
    /// No message was taken; the permit may be another one now.
    Nothing,
    /// The wheel gives no messages for now.
    Unavailable,
}

/// How long a reserve waits; it only limits how often an idle loop repeats.
const WAIT_MS: u64 = 60_000;
/// How long a wait for an instant sleeps at most: the clock decides and not the alarm.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);
/// The pause after a call that failed; doubled up to a second.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

impl PushWorker {
    async fn work(self: Arc<Self>, wheel: Duewheel, mut stop: watch::Receiver<bool>) {
        let Some(first) = self.job().queues.first().cloned() else { return };
        if self.has_begun.swap(true, Ordering::SeqCst) {
            // What was under way when a bug has ended it.
            self.release().await;
        }
        let mut activity = self.wheel.register(first);
        let ended = wheel.ended();
        tokio::pin!(ended);
        let mut pushes = JoinSet::new();
        let mut changed = self.changed.subscribe();
        let mut failures = 0u32;
        loop {
            while pushes.try_join_next().is_some() {}
            let turn = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                reason = &mut ended => {
                    tracing::debug!(queues = ?self.job().queues, %reason, "the wheel ended; a pusher stops");
                    // The outcomes of these requests could not be recorded.
                    pushes.abort_all();
                    break;
                }
                turn = self.turn(&mut activity, &mut changed) => turn,
            };
            match turn {
                Turn::Granted(job, granted) => {
                    failures = 0;
                    for grant in granted {
                        let (mark, run) = (self.begin(&job, &grant), activity.begin());
                        let place = MessagePlace::new(self.places.clone());
                        let (worker, job) = (self.clone(), job.clone());
                        pushes.spawn(async move {
                            let _run = run;
                            worker.push(&job, grant, mark, place).await;
                        });
                    }
                }
                Turn::Nothing => {}
                Turn::Unavailable => {
                    let pause = FIRST_PAUSE.saturating_mul(1 << failures.min(6));
                    failures = failures.saturating_add(1);
                    tokio::select! {
                        biased;
                        _ = stop.wait_for(|stop| *stop) => break,
                        () = activity.away(tokio::time::sleep(pause)) => {}
                    }
                }
            }
        }
        while pushes.join_next().await.is_some() {}
    }

    /// Waits for what may be sent, for a free slot, and for messages. Messages granted to a dropped future go back at
    /// once.
    async fn turn(&self, activity: &mut Arc<Activity>, changed: &mut watch::Receiver<()>) -> Turn {
        changed.borrow_and_update();
        self.parts.bugs.happen(1);
        let job = self.job();
        // It waits for messages of all its queues at once: one of them stands for the others.
        if let Some(first) = job.queues.first()
            && !job.queues.contains(activity.queue())
        {
            *activity = self.wheel.register(first.clone());
        }
        let now = self.now();
        let max = match self.gates(&job, now) {
            Ok(max) => max,
            Err(until) => {
                activity.away(self.wait(until, changed)).await;
                return Turn::Nothing;
            }
        };
        let (queues, part) = self.rotation.next(&job.queues);
        let Some(first) = queues.first().cloned() else { return Turn::Unavailable };
        let demand = Reserve {
            max,
            wait_ms: match part {
                CyclePart::All => WAIT_MS.min(self.open_until.load(Ordering::SeqCst).saturating_sub(now.0)),
                CyclePart::Rest => 0,
            },
            lease_ms: Some(job.lease_ms),
            queues,
            session: self.session,
            max_attempts: Some(job.client.target().max_attempts),
            ..Reserve::new(first)
        };
        let reserved = tokio::select! {
            biased;
            _ = changed.changed() => return Turn::Nothing,
            reserved = activity.waiting(self.wheel.reserve(demand)) => reserved,
        };
        self.reserved(job, part, reserved).await
    }

    /// The gates before a reserve, in order: the ticket, the breaker, places of requests and messages, and the rate.
    /// Returns how many messages may be taken; or until when none may be, unless something changes before. `None`: until
    /// something changes.
    fn gates(&self, job: &PushJob, now: EngineMs) -> Result<usize, Option<EngineMs>> {
        if now.0 >= self.open_until.load(Ordering::SeqCst) {
            return Err(None);
        }
        let PlaceCounts { under_way, requests, elsewhere, .. } = &*self.places;
        let (under_way, requests) = (under_way.load(Ordering::SeqCst), requests.load(Ordering::SeqCst));
        let aside = EngineMs(self.aside_until.load(Ordering::SeqCst));
        let most = match job.breaker.lock().permit(now, under_way) {
            Permit::Many => job.concurrency,
            Permit::One if now < aside => return Err(Some(aside)),
            // The probe comes in addition to requests under way, which may include an earlier, slow probe.
            Permit::One => requests.saturating_add(1).min(job.concurrency),
            Permit::Until(instant) => return Err(Some(instant)),
            Permit::AfterOthers | Permit::Paused => return Err(None),
        };
        // All granted messages may be for other origins.
        let elsewhere = URLS_PER_PUSHER.saturating_sub(elsewhere.load(Ordering::SeqCst));
        let unsettled = job.unsettled().saturating_sub(under_way);
        let free = most.saturating_sub(requests).min(unsettled).min(elsewhere);
        if free == 0 {
            return Err(None);
        }
        let Some(bucket) = &mut *self.bucket() else { return Ok(free) };
        match bucket.available(now) {
            0 => Err(Some(bucket.next())),
            room => Ok(free.min(room)),
        }
    }

    /// Handles the answer to a reserve.
    async fn reserved(
        &self,
        job: Arc<PushJob>,
        part: CyclePart,
        reserved: Result<Reserved, CallError>,
    ) -> Turn {
        match reserved {
            Ok(Reserved::Grants(grants)) if self.now().0 >= self.open_until.load(Ordering::SeqCst) => {
                let leases: Vec<_> = grants.iter().map(|grant| (grant.message.id, grant.token)).collect();
                if !leases.is_empty() {
                    drop(self.wheel.ask(Op::undelivered(leases)).await);
                }
                Turn::Nothing
            }
            Ok(Reserved::Grants(grants)) => {
                self.take(grants.len());
                self.rotation.granted(grants.iter().map(|grant| &grant.message.queue));
                Turn::Granted(job, grants)
            }
            Ok(Reserved::HeldBack(_)) if part == CyclePart::Rest => {
                self.rotation.granted([].iter());
                Turn::Nothing
            }
            Ok(
                Reserved::DeadlineSoon
                | Reserved::Overloaded
                | Reserved::TooManyQueues
                | Reserved::HeldBack(_),
            ) => Turn::Unavailable,
            Err(error) => {
                tracing::debug!(queues = ?job.queues, %error, "could not reserve messages for a target");
                Turn::Unavailable
            }
        }
    }

    /// Waits for a change, for a place that is given back, and for this instant.
    async fn wait(&self, until: Option<EngineMs>, changed: &mut watch::Receiver<()>) {
        let left = until.map(|instant| Duration::from_millis(instant.0.saturating_sub(self.now().0)));
        tokio::select! {
            biased;
            _ = changed.changed() => {}
            () = self.places.freed.notified() => {}
            () = tokio::time::sleep(left.unwrap_or_default().min(LONGEST_SLEEP)), if left.is_some() => {}
        }
    }

    /// Tells the breaker that a request to the target begins. `None`: the message goes to its own URL. While the breaker
    /// allows one request, such messages go one after the other; one that hangs lets the next one, which may be the
    /// probe, go after [`ASIDE`].
    fn begin(&self, job: &PushJob, grant: &Grant) -> Option<RequestMark> {
        if MessageUrl::of(&grant.message).is_some() {
            self.aside_until.store(self.now().0.saturating_add(ceil_ms(ASIDE)), Ordering::SeqCst);
            return None;
        }
        let random = self.random(grant, "begin");
        Some(job.breaker.lock().begin(self.now(), grant.message.id, random))
    }

    /// Sends one message and settles it.
    async fn push(&self, job: &PushJob, grant: Grant, mark: Option<RequestMark>, mut place: MessagePlace) {
        let leased_until = EngineMs(self.now().0.saturating_add(grant.lease_ms));
        let route = match mark {
            Some(mark) => Ok(PushRoute::to_target(&job.client, &job.breaker, mark)),
            None => self.route_to_url(job, &grant, leased_until, &mut place).await,
        };
        let attempt = match route {
            Ok(route) => {
                let (at, outcome) = self.send(&route, &grant).await;
                let charge = self.judge(&route, &grant, &outcome);
                drop(route);
                place.is_answered();
                let seen = self.seen(&grant, leased_until).await;
                let end = self.end_of(job, &grant, &outcome, charge, seen.as_deref());
                let attempt = TargetAttempt::of(&grant, at, &outcome);
                // Without a look at the former attempts they stay as they are.
                let is_known = grant.attempt == 1 || seen.is_some();
                let detail = is_known.then(|| detail_with(seen.as_deref(), attempt.attempt.clone()));
                self.settle(&grant, end, &attempt.attempt.class, detail, leased_until).await;
                Some(attempt)
            }
            Err((end, note)) => {
                self.settle(&grant, end, note, None, leased_until).await;
                None
            }
        };
        if mark.is_none() {
            self.aside_until.store(0, Ordering::SeqCst);
        }
        drop(place);
        if let (Some(attempt), Some(latest)) = (attempt, &self.parts.latest) {
            latest.add(attempt);
        }
    }

    /// Sends the request of a message. Returns when it began, and how it ended.
    async fn send(&self, route: &PushRoute, grant: &Grant) -> (WallMs, PushOutcome) {
        let tracer = self.parts.tracer.as_ref();
        let span = self.settings.span(tracer, &self.wheel, grant, &route.uri).await;
        let at = self.wheel.now().wall;
        let mut request = PushRequest::of(grant, &self.store, at.to_system_time());
        request.span = span.as_ref().and_then(|span| span.context());
        let outcome = route.client.deliver_to(&route.uri, &request, || self.take(1)).await;
        tracing::debug!(queue = %grant.message.queue, id = %grant.message.id, class = %outcome.class, "a message was pushed");
        if let Some(span) = span {
            span.end(&outcome);
        }
        (at, route.outcome(outcome))
    }

    /// Tells the breaker how a request has ended.
    fn judge(&self, route: &PushRoute, grant: &Grant, outcome: &PushOutcome) -> Charge {
        let (now, random) = (self.now(), self.random(grant, "end"));
        let many = |breaker: &Breaker| breaker.permit(now, 0) == Permit::Many;
        let mut breaker = route.breaker.lock();
        let before = many(&breaker);
        let charge = breaker.end(now, route.mark, outcome, random);
        if before != many(&breaker) {
            self.changed.send_replace(());
        }
        charge
    }

    /// Decides how a message is settled after this outcome.
    fn end_of(
        &self,
        job: &PushJob,
        grant: &Grant,
        outcome: &PushOutcome,
        charge: Charge,
        seen: Option<&View>,
    ) -> PushEnd {
        let (most, planned) = (job.client.target().max_attempts, || self.planned(job, grant, seen));
        match (outcome.verdict, charge) {
            (PushVerdict::Delivered, _) => PushEnd::Done,
            (PushVerdict::Slowed(delay), Charge::Counted) => PushEnd::Again(Some(delay), most),
            (PushVerdict::Snoozed(delay) | PushVerdict::Slowed(delay), _) => PushEnd::NotYet(Some(delay)),
            // The target is well enough to answer. At the next probe it is another message's turn.
            (PushVerdict::Failed, Charge::Forgiven) if !outcome.class.is_unreachable() => {
                PushEnd::NotYet(planned())
            }
            (PushVerdict::Refused, _) | (PushVerdict::Failed, Charge::Forgiven) => {
                PushEnd::NotYet(Some(FORGIVEN_DELAY))
            }
            (PushVerdict::Dead, _) => PushEnd::Dead,
            (PushVerdict::Failed, Charge::Counted) => PushEnd::Again(planned(), most),
        }
    }

    /// When a message comes again after a failed attempt; `None`: as its own backoff says, which wins. Attempts that
    /// were forgiven use up nothing of the plan.
    fn planned(&self, job: &PushJob, grant: &Grant, seen: Option<&View>) -> Option<Duration> {
        let used_up = seen.map_or(1, |view| view.attempt.saturating_sub(view.forgiven).max(1));
        let retry = &job.client.target().retry;
        grant.message.options.backoff.is_none().then(|| retry.delay(used_up, self.random(grant, "retry")))
    }

    /// The message with its former attempts; `None` at the first one, and if settling it will be refused as well.
    async fn seen(&self, grant: &Grant, leased_until: EngineMs) -> Option<Box<View>> {
        if grant.attempt == 1 {
            return None;
        }
        let get = || self.wheel.ask(Op::get(Target::Id(grant.message.id)));
        while_leased(|| self.now(), leased_until, get).await.ok().flatten()
    }

    /// Settles a message. It tries for as long as the lease lasts: until then nobody else gets the message.
    async fn settle(
        &self,
        grant: &Grant,
        end: PushEnd,
        note: &str,
        detail: Option<Detail>,
        leased_until: EngineMs,
    ) {
        let (queue, id, token) = (&grant.message.queue, grant.message.id, grant.token);
        let settle = || {
            let settlement = match end {
                PushEnd::Done => Op::ack(id, token),
                PushEnd::NotYet(delay) => Op::nack(id, token, Attempt::NotYet, delay.map(ceil_ms), note),
                PushEnd::Again(delay, most) => {
                    Op::nack(id, token, Attempt::FailedOf(most), delay.map(ceil_ms), note)
                }
                PushEnd::Dead => Op::bury(id, token, note),
            };
            self.wheel.ask(settlement.with_detail(detail.clone()))
        };
        match while_leased(|| self.now(), leased_until, settle).await {
            Ok(Ok(settled)) => self.counts().count(end, &settled),
            Ok(Err(_)) => tracing::warn!(%queue, %id, "settled too late: the lease was lost"),
            // The message will be delivered again: the guarantee is at-least-once.
            Err(error) => tracing::warn!(%queue, %id, %error, "could not settle"),
        }
    }

    fn now(&self) -> EngineMs {
        self.wheel.now().engine
    }

    /// A number that differs between messages, their attempts and purposes, and is the same for the same ones.
    fn random(&self, grant: &Grant, purpose: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.store, grant.message.id.to_string(), grant.attempt, purpose).hash(&mut hasher);
        hasher.finish()
    }

    fn lock_job(&self) -> MutexGuard<'_, Arc<PushJob>> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn job(&self) -> Arc<PushJob> {
        self.lock_job().clone()
    }

    fn counts(&self) -> MutexGuard<'_, PushCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the leases of its session.
    async fn release(&self) {
        let closing = self.wheel.ask(Op::session_closed(self.session));
        match tokio::time::timeout(CLOSE, closing).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, "leases of a pusher were not released, and will run out")
            }
            Err(_) => tracing::debug!("leases of a pusher were not released in time, and will run out"),
        }
    }

    /// Counts requests in the target's rate.
    fn take(&self, requests: usize) {
        if let Some(bucket) = &mut *self.bucket() {
            bucket.take(requests);
        }
    }

    fn bucket(&self) -> MutexGuard<'_, Option<RateBucket>> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
