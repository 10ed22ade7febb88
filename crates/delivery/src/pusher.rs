//! A consumer that delivers the messages of queues to a target.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use duewheel::core::engine::{Attempt, Grant, Op, Reserved, Settled, Target, WaiterId};
use duewheel::core::id::SessionId;
use duewheel::core::name::{BadName, QueueName};
use duewheel::core::time::{EngineMs, WallMs, ceil_ms};
use duewheel::{CallError, Client, Duewheel};
use duewheel_shard::activity::Activity;
use duewheel_shard::client::Reserve;
use hyper::Uri;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::answer::PushVerdict;
use crate::breaker::{Breaker, BreakerStage, Charge, Failing, Permit, RequestMark};
use crate::client::{PushClass, PushClient, PushOutcome};
use crate::limits::{
    ASIDE, CLOSE, FORGIVEN_DELAY, LEASE_MARGIN, MAX_STORE_NAME, UNSETTLED_PER_REQUEST, URLS_PER_PUSHER,
};
use crate::message_url::MessageUrl;
use crate::origins::{UrlContext, UrlTargets};
use crate::request::PushRequest;
use crate::supervised::while_leased;
use crate::tracer::{PushTracer, TraceModes};
use crate::workers::attempts::{AttemptLog, AttemptNote};
use crate::workers::latest::{LatestAttempts, TargetAttempt};

mod slots;
mod to_url;
#[cfg(test)]
mod to_url_tests;

use slots::{
    CyclePart, PlaceCounts, PlaceOwner, PushCounters, PushEnd, QueueRotation, RateBucket, RequestSlot,
    UnderWay,
};

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
/// A pusher holds a handle of its wheel, which stays open as long as the pusher runs.
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
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
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

/// Whether all requests had ended when a pusher was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// All requests had ended.
    Complete,
    /// Some requests were dropped; their messages are released, and will be delivered again, but for those whose last
    /// attempt it was: these are dead.
    Interrupted,
}

/// How attempts of a pusher have ended since it was started. Each is counted once its message is settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushCounts {
    /// The message was acked.
    pub delivered: u64,
    /// The attempt failed and counts.
    pub failed: u64,
    /// The attempt ended otherwise and does not count.
    pub forgiven: u64,
    /// The message is dead.
    pub dead: u64,
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
        let pusher = Pusher::start_job(wheel, store, job, PusherParts::default())?;
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
        let runtime = Handle::try_current().map_err(|_| PusherError::NoRuntime)?;
        let target = job.client.target();
        let now = wheel.client().now().engine;
        let worker = Arc::new(PushWorker {
            session: wheel.client().new_session(),
            store: store.to_owned(),
            breaker: Mutex::new(Breaker::new(target.timeout)),
            bucket: Mutex::new(target.rate.map(|rate| RateBucket::new(rate, now))),
            job: Mutex::new(Arc::new(job)),
            open_until: AtomicU64::new(0),
            aside_until: AtomicU64::new(0),
            changed: watch::Sender::new(()),
            places: PlaceCounts::default(),
            rotation: QueueRotation::default(),
            counters: PushCounters::default(),
            modes: TraceModes::default(),
            wheel: wheel.client().clone(),
            parts,
        });
        let stop = watch::Sender::new(false);
        let task = runtime.spawn(worker.clone().work(wheel.clone(), stop.subscribe()));
        Ok(Pusher { worker, stop, task: Some(task) })
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
    /// count in the new limit of requests at a time. The breaker begins anew: the edit may be the cure.
    pub(crate) fn change(&self, job: PushJob) {
        let worker = &self.worker;
        let (timeout, rate) = (job.client.target().timeout, job.client.target().rate);
        let before = std::mem::replace(&mut *worker.lock_job(), Arc::new(job));
        if before.client.target().rate != rate {
            *worker.bucket() = rate.map(|rate| RateBucket::new(rate, worker.now()));
        }
        worker.breaker().renew(timeout);
        worker.changed.send_replace(());
    }

    /// Requests that have begun and whose message is not settled.
    pub(crate) fn in_flight(&self) -> usize {
        let of = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        of(&self.worker.places.under_way) + of(&self.worker.places.elsewhere)
    }

    /// How the last failed attempt ended since the last success.
    pub(crate) fn last_failure(&self) -> Option<PushClass> {
        self.worker.breaker().last_failure()
    }

    /// Since when its target has answered requests with a `Retry-After`, if it does.
    pub(crate) fn slowed_since(&self) -> Option<EngineMs> {
        self.worker.breaker().slowed_since()
    }

    /// Since when everything has failed, if it does.
    pub(crate) fn failing(&self) -> Option<Failing> {
        self.worker.breaker().failing()
    }

    /// The target has failed before: the time of nothing but failures goes on.
    pub(crate) fn has_failed(&self, before: Failing) {
        self.worker.breaker().has_failed(before);
    }

    /// Whether its loop has ended, by a bug or because the wheel is closed.
    pub(crate) fn has_ended(&self) -> bool {
        self.task.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Returns the stage of its target's breaker.
    pub fn stage(&self) -> BreakerStage {
        self.worker.breaker().stage().clone()
    }

    /// How attempts have ended since it was started.
    pub fn counts(&self) -> PushCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let PushCounters { delivered, failed, forgiven, dead } = &self.worker.counters;
        PushCounts { delivered: of(delivered), failed: of(failed), forgiven: of(forgiven), dead: of(dead) }
    }

    /// Begins no further request until [`Pusher::resume`]. Those under way end.
    pub fn pause(&self, reason: &str) {
        self.worker.breaker().pause(reason);
        self.worker.changed.send_replace(());
    }

    /// Forgets all failures and delivers again; also resets an open breaker.
    pub fn resume(&self) {
        self.worker.breaker().resume();
        self.worker.changed.send_replace(());
    }

    /// Begins no further request and waits for those under way, until `deadline`. Do this before the wheel is shut down.
    ///
    /// # Cancel safety
    /// When the future is dropped, requests under way go on; no further one begins.
    pub async fn stop(mut self, deadline: Duration) -> Stopped {
        self.stop.send_replace(true);
        let Some(mut task) = self.task.take() else { return Stopped::Complete };
        let stopped = match tokio::time::timeout(deadline, &mut task).await {
            Ok(_) => Stopped::Complete,
            Err(_) => {
                task.abort();
                drop(task.await);
                Stopped::Interrupted
            }
        };
        let closing = self.worker.wheel.ask(Op::session_closed(self.worker.session));
        match tokio::time::timeout(CLOSE, closing).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, "leases of a pusher were not released, and will run out")
            }
            Err(_) => tracing::debug!("leases of a pusher were not released in time, and will run out"),
        }
        stopped
    }
}

impl Drop for Pusher {
    fn drop(&mut self) {
        self.stop.send_replace(true);
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

/// The target and the queues of a pusher. An edit of the target replaces it as a whole.
#[derive(Debug)]
pub(crate) struct PushJob {
    client: PushClient,
    /// The targets of messages with URLs of their own; made for the first of them.
    urls: OnceLock<UrlTargets>,
    queues: Vec<QueueName>,
    concurrency: usize,
    lease_ms: u64,
}

impl PushJob {
    pub(crate) fn new(client: PushClient, queues: Vec<QueueName>) -> Self {
        let target = client.target();
        let concurrency = usize::try_from(target.concurrency.get()).unwrap_or(usize::MAX);
        let lease_ms = ceil_ms(target.timeout.saturating_add(LEASE_MARGIN));
        PushJob { client, urls: OnceLock::new(), queues, concurrency, lease_ms }
    }
}

impl PushJob {
    /// Messages at a time that were sent to the target or are being sent, and are not settled. A target that gets one
    /// request at a time gets the next one when the message before is settled.
    fn unsettled(&self) -> usize {
        if self.concurrency == 1 { 1 } else { self.concurrency.saturating_mul(UNSETTLED_PER_REQUEST) }
    }
}

/// Dependencies that only the server sets.
#[derive(Clone, Debug, Default)]
pub(crate) struct PusherParts {
    /// Where failed attempts are kept.
    pub(crate) attempts: Option<AttemptLog>,
    /// The newest attempts to its target.
    pub(crate) latest: Option<LatestAttempts>,
    /// The state shared by all requests to URLs of messages.
    pub(crate) urls: Arc<UrlContext>,
    /// The tracer of its deliveries, if tracing is enabled.
    pub(crate) tracer: Option<Arc<dyn PushTracer>>,
    /// For tests: bugs that are to happen.
    pub(crate) bugs: Arc<AtomicU64>,
}

#[derive(Debug)]
struct PushWorker {
    wheel: Client,
    job: Mutex<Arc<PushJob>>,
    /// The session that leases are bound to: a restart of the process releases them at once.
    session: SessionId,
    store: String,
    /// The instant, in ms of engine time, at which it begins no further request.
    open_until: AtomicU64,
    /// Until when a message with a URL of its own has the place of a request that would tell the breaker something, in ms
    /// of engine time.
    aside_until: AtomicU64,
    breaker: Mutex<Breaker>,
    bucket: Mutex<Option<RateBucket>>,
    /// Notified when the number of permitted requests changes.
    changed: watch::Sender<()>,
    places: PlaceCounts,
    rotation: QueueRotation,
    counters: PushCounters,
    modes: TraceModes,
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

impl PlaceOwner for PushWorker {
    fn places(&self) -> &PlaceCounts {
        &self.places
    }

    fn place_is_free(&self) {
        // The loop may wait for it.
        if self.breaker().permit(self.now(), 0) != Permit::Many {
            self.changed.send_replace(());
        }
    }
}

impl PushWorker {
    async fn work(self: Arc<Self>, wheel: Duewheel, mut stop: watch::Receiver<bool>) {
        let Some(first) = self.job().queues.first().cloned() else { return };
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
                        let (mark, run) = (self.begin(&grant), activity.begin());
                        let (mut under_way, slot) =
                            (UnderWay::new(self.clone()), RequestSlot::new(self.clone()));
                        let (worker, job) = (self.clone(), job.clone());
                        pushes.spawn(async move {
                            let _run = run;
                            worker.push(&job, grant, mark, slot, &mut under_way).await;
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
        self.happen();
        let job = self.job();
        // It waits for messages of all its queues at once: one of them stands for the others.
        if let Some(first) = job.queues.first()
            && !job.queues.contains(activity.queue())
        {
            *activity = self.wheel.register(first.clone());
        }
        let (now, open_until) = (self.now(), self.open_until.load(Ordering::SeqCst));
        if now.0 >= open_until {
            drop(activity.away(changed.changed()).await);
            return Turn::Nothing;
        }
        let (under_way, requests) =
            (self.places.under_way.load(Ordering::SeqCst), self.places.requests.load(Ordering::SeqCst));
        let permit = self.breaker().permit(now, under_way);
        let aside = EngineMs(self.aside_until.load(Ordering::SeqCst));
        let most = match permit {
            Permit::Many => job.concurrency,
            Permit::One if now < aside => return activity.away(self.wait_until(aside, changed)).await,
            // The probe comes in addition to requests under way, which may include an earlier, slow probe.
            Permit::One => requests.saturating_add(1).min(job.concurrency),
            Permit::Until(instant) => return activity.away(self.wait_until(instant, changed)).await,
            Permit::AfterOthers | Permit::Paused => {
                drop(activity.away(changed.changed()).await);
                return Turn::Nothing;
            }
        };
        // All granted messages may be for other origins.
        let elsewhere = URLS_PER_PUSHER.saturating_sub(self.places.elsewhere.load(Ordering::SeqCst));
        let unsettled = job.unsettled().saturating_sub(under_way);
        let free = most.saturating_sub(requests).min(unsettled).min(elsewhere);
        if free == 0 {
            let freed = async {
                tokio::select! {
                    _ = changed.changed() => {}
                    () = self.places.slot_free.notified() => {}
                }
            };
            activity.away(freed).await;
            return Turn::Nothing;
        }
        let (room, next) = match &mut *self.bucket() {
            None => (usize::MAX, now),
            Some(bucket) => (bucket.available(now), bucket.next()),
        };
        if room == 0 {
            return activity.away(self.wait_until(next, changed)).await;
        }
        let (queues, part) = self.rotation.next(&job.queues);
        let demand = Reserve {
            max: free.min(room),
            wait_ms: match part {
                CyclePart::All => WAIT_MS.min(open_until - now.0),
                CyclePart::Rest => 0,
            },
            lease_ms: Some(job.lease_ms),
            queues,
            session: self.session,
            max_attempts: Some(job.client.target().max_attempts),
            waiter: WaiterId(0), // the client replaces it
            max_of: Vec::new(),
            max_bytes: usize::MAX,
            deadline_margin_ms: None,
        };
        let reserved = tokio::select! {
            biased;
            _ = changed.changed() => return Turn::Nothing,
            reserved = activity.waiting(self.wheel.reserve(demand)) => reserved,
        };
        self.reserved(job, part, reserved).await
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

    async fn wait_until(&self, instant: EngineMs, changed: &mut watch::Receiver<()>) -> Turn {
        let left = Duration::from_millis(instant.0.saturating_sub(self.now().0));
        tokio::select! {
            biased;
            _ = changed.changed() => {}
            () = tokio::time::sleep(left.min(LONGEST_SLEEP)) => {}
        }
        Turn::Nothing
    }

    /// Tells the breaker that a request to the target begins. `None`: the message goes to its own URL. While the breaker
    /// allows one request, such messages go one after the other; one that hangs lets the next one, which may be the
    /// probe, go after [`ASIDE`].
    fn begin(&self, grant: &Grant) -> Option<RequestMark> {
        if MessageUrl::of(&grant.message).is_some() {
            self.aside_until.store(self.now().0.saturating_add(ceil_ms(ASIDE)), Ordering::SeqCst);
            return None;
        }
        Some(self.breaker().begin(self.now(), grant.message.id, self.random(grant, "begin")))
    }

    /// Sends one message and settles it.
    async fn push(
        &self,
        job: &Arc<PushJob>,
        grant: Grant,
        mark: Option<RequestMark>,
        slot: RequestSlot,
        under_way: &mut UnderWay,
    ) {
        let leased_until = EngineMs(self.now().0.saturating_add(grant.lease_ms));
        let Some(mark) = mark else {
            self.push_to_url(job, grant, (slot, under_way), leased_until).await;
            return self.aside_until.store(0, Ordering::SeqCst);
        };
        let (at, outcome) = self.send(&job.client, &job.client.target().uri, &grant).await;
        let charge = self.judge(job, &grant, mark, &outcome);
        drop(slot);
        self.conclude(job, &grant, at, &outcome, charge, leased_until).await;
    }

    /// Sends the request of a message. Returns when it began, and how it ended.
    async fn send(&self, client: &PushClient, uri: &Uri, grant: &Grant) -> (WallMs, PushOutcome) {
        let span = self.modes.span(self.parts.tracer.as_ref(), &self.wheel, grant, uri).await;
        let at = self.wheel.now().wall;
        let mut request = PushRequest::of(grant, &self.store, at.to_system_time());
        request.span = span.as_ref().and_then(|span| span.context());
        let outcome = client.deliver_to(uri, &request, || self.take(1)).await;
        if let Some(span) = span {
            span.end(&outcome);
        }
        (at, outcome)
    }

    /// Settles a message whose request began at `at`, and keeps the attempt.
    async fn conclude(
        &self,
        job: &PushJob,
        grant: &Grant,
        at: WallMs,
        outcome: &PushOutcome,
        charge: Charge,
        leased_until: EngineMs,
    ) {
        tracing::debug!(queue = %grant.message.queue, id = %grant.message.id, class = %outcome.class, "a message was pushed");
        let end = self.end_of(job, grant, outcome, charge, leased_until).await;
        let settled = self.settle(grant, end, &outcome.class.to_string(), leased_until).await;
        if let Some(latest) = &self.parts.latest {
            latest.add(TargetAttempt::of(grant, at, outcome));
        }
        if let Some(log) = &self.parts.attempts {
            let gone =
                matches!(settled, Some(Settled::Acked | Settled::Already { .. } | Settled::Superseded));
            log.note(AttemptNote::of(grant, at, outcome, gone));
        }
    }

    /// Tells the breaker how a request has ended.
    fn judge(&self, job: &Arc<PushJob>, grant: &Grant, mark: RequestMark, outcome: &PushOutcome) -> Charge {
        let (now, random) = (self.now(), self.random(grant, "end"));
        let (charge, differs) = {
            // Locked until the breaker is updated, so that an edit comes before the comparison or after the update.
            let present = self.lock_job();
            let mut breaker = self.breaker();
            if !Arc::ptr_eq(job, &present) {
                // The outcome says nothing about the target as it is now.
                return mark.charge_apart(outcome);
            }
            let many = |breaker: &Breaker| breaker.permit(now, 0) == Permit::Many;
            let before = many(&breaker);
            let charge = breaker.end(now, mark, outcome, random);
            (charge, before != many(&breaker))
        };
        if differs {
            self.changed.send_replace(());
        }
        charge
    }

    /// Decides how a message is settled after this outcome.
    async fn end_of(
        &self,
        job: &PushJob,
        grant: &Grant,
        outcome: &PushOutcome,
        charge: Charge,
        leased_until: EngineMs,
    ) -> PushEnd {
        let target = job.client.target();
        let options = &grant.message.options;
        // The message's own backoff wins. Attempts that were forgiven use up nothing of the plan.
        let planned = async || match options.backoff {
            Some(_) => None,
            None => {
                let used_up = self.used_up(grant, leased_until).await;
                Some(target.retry.delay(used_up, self.random(grant, "retry")))
            }
        };
        match (outcome.verdict, charge) {
            (PushVerdict::Delivered, _) => PushEnd::Done,
            (PushVerdict::Snoozed(delay) | PushVerdict::Slowed(delay), _) => PushEnd::NotYet(Some(delay)),
            // The target is well enough to answer. At the next probe it is another message's turn.
            (PushVerdict::Failed, Charge::Forgiven) if !outcome.class.is_unreachable() => {
                PushEnd::NotYet(planned().await)
            }
            (PushVerdict::Refused, _) | (PushVerdict::Failed, Charge::Forgiven) => {
                PushEnd::NotYet(Some(FORGIVEN_DELAY))
            }
            (PushVerdict::Dead, _) => PushEnd::Dead,
            (PushVerdict::Failed, Charge::Counted) => PushEnd::Again(planned().await, target.max_attempts),
        }
    }

    /// How many attempts of the message are used up, this one included.
    async fn used_up(&self, grant: &Grant, leased_until: EngineMs) -> u32 {
        let get = || self.wheel.ask(Op::get(Target::Id(grant.message.id)));
        match while_leased(|| self.now(), leased_until, get).await {
            Ok(Some(view)) => view.attempt.saturating_sub(view.forgiven).max(1),
            // Settling it will be refused as well, or count it again.
            Ok(None) | Err(_) => 1,
        }
    }

    /// Settles a message. It tries for as long as the lease lasts: until then nobody else gets the message.
    async fn settle(
        &self,
        grant: &Grant,
        end: PushEnd,
        note: &str,
        leased_until: EngineMs,
    ) -> Option<Settled> {
        let (queue, id, token) = (&grant.message.queue, grant.message.id, grant.token);
        let settle = || {
            self.wheel.ask(match end {
                PushEnd::Done => Op::ack(id, token),
                PushEnd::NotYet(delay) => Op::nack(id, token, Attempt::NotYet, delay.map(ceil_ms), note),
                PushEnd::Again(delay, most) => {
                    Op::nack(id, token, Attempt::FailedOf(most), delay.map(ceil_ms), note)
                }
                PushEnd::Dead => Op::bury(id, token, note),
            })
        };
        match while_leased(|| self.now(), leased_until, settle).await {
            Ok(Ok(settled)) => {
                self.counters.of(end, &settled).fetch_add(1, Ordering::Relaxed);
                Some(settled.what)
            }
            Ok(Err(_)) => {
                tracing::warn!(%queue, %id, "settled too late: the lease was lost");
                None
            }
            // The message will be delivered again: the guarantee is at-least-once.
            Err(error) => {
                tracing::warn!(%queue, %id, %error, "could not settle");
                None
            }
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

    /// A bug, if a test has asked for one.
    fn happen(&self) {
        let bugs = &self.parts.bugs;
        if bugs.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            panic!("a bug, for a test");
        }
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
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
