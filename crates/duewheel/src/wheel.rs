//! The handle that users hold: queues, figures, quotas, backups, the end, and time in tests.

use std::any::Any;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use duewheel_core::engine::{Attended, BadQuota, Op, QueueView, Quota, QuotaUse, Stats};
use duewheel_core::id::SessionId;
use duewheel_core::name::{BadName, QueueName};
use duewheel_core::policy::{GrantLimits, Policy};
use duewheel_core::record::Pause;
use duewheel_shard::activity::Activity;
use duewheel_shard::client::{Client, LocalShard};
use duewheel_shard::clock::{Clock, VirtualClock};
use duewheel_shard::error::CallError;
use duewheel_shard::fairness::QuotaSource;
use duewheel_shard::shared::{DriverEnd, Lifecycle};
use duewheel_store_log::{BackupReport, Destination};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{Semaphore, watch};

use crate::backup::{BackupError, Copier};

/// Durable delayed messages. Cheap to clone and thread-safe; all clones use the same wheel.
///
/// Dropping the last clone stops the driver without waiting for handlers; nothing accepted is lost. The store is closed
/// shortly after the drop, and until then the data folder cannot be opened again. Prefer [`Duewheel::shutdown`], after
/// which it can. A handler that captures a clone, or a [`crate::Queue`], keeps the wheel open until the shutdown;
/// [`crate::Message::wheel`] does not.
#[derive(Clone, Debug)]
pub struct Duewheel {
    inner: Arc<WheelInner>,
}

/// A handle that does not keep its wheel open.
#[derive(Clone, Debug, Default)]
pub(crate) struct WeakWheel(Weak<WheelInner>);

impl WeakWheel {
    /// The handle, as long as another one exists.
    pub(crate) fn upgrade(&self) -> Option<Duewheel> {
        self.0.upgrade().map(|inner| Duewheel { inner })
    }
}

#[derive(Debug)]
struct WheelInner {
    parts: WheelParts,
    session: SessionId,
    handlers: Mutex<Handlers>,
    stop: watch::Sender<bool>,
    abort: watch::Sender<bool>,
    /// Held while a clock is moved.
    advancing: tokio::sync::Mutex<()>,
}

/// The parts of a wheel whose store is open.
#[derive(Debug)]
pub(crate) struct WheelParts {
    pub(crate) client: Client,
    pub(crate) life: Lifecycle,
    pub(crate) copier: Copier,
    pub(crate) policy: Policy,
    pub(crate) quotas: QuotaSource,
    /// The state of a cluster node, kept with its handle; only `cluster.rs`, behind the feature `cluster`, knows its type.
    pub(crate) node: Option<Arc<dyn Any + Send + Sync>>,
}

#[derive(Debug, Default)]
struct Handlers {
    registered: Vec<Registered>,
    /// Started with the first handler.
    runtime: Option<HandlerRuntime>,
    stopping: bool,
}

/// Why a shutdown was not complete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// Handlers were still running at the deadline. Their messages are delivered again after the next open.
    #[error("handlers were still running when the time was over; their messages will be delivered again")]
    HandlersRunning,
    /// The driver had already ended, or its store could not be closed. Accepted messages are safe.
    #[error("the driver ended: {0}")]
    Failed(String),
}

impl Duewheel {
    pub(crate) fn new(parts: WheelParts) -> Self {
        let session = parts.client.new_session();
        Duewheel {
            inner: Arc::new(WheelInner {
                parts,
                session,
                handlers: Mutex::default(),
                stop: watch::Sender::new(false),
                abort: watch::Sender::new(false),
                advancing: tokio::sync::Mutex::default(),
            }),
        }
    }

    pub(crate) fn downgrade(&self) -> WeakWheel {
        WeakWheel(Arc::downgrade(&self.inner))
    }

    /// The source of the quotas, and the limits that apply to them.
    pub(crate) fn quota_source(&self) -> (&QuotaSource, &Policy) {
        (&self.inner.parts.quotas, &self.inner.parts.policy)
    }

    /// The interface for servers and other front ends: it submits any operations, many at a time. The crate
    /// `duewheel-shard` exports the types of its arguments and answers, such as [`duewheel_shard::client::Reserve`].
    #[doc(hidden)]
    pub fn client(&self) -> &Client {
        &self.inner.parts.client
    }

    /// All queues that have messages, consumers or settings, by name.
    ///
    /// # Errors
    /// No answer arrived.
    pub async fn queues(&self) -> Result<Vec<QueueView>, CallError> {
        let mut all: Vec<QueueView> = Vec::new();
        loop {
            let after = all.last().map(|q| q.name.clone());
            let page = self.client().ask(Op::queues(after, usize::MAX)).await?;
            if page.is_empty() {
                return Ok(all);
            }
            all.extend(page);
        }
    }

    /// Queues whose ready messages no consumer has asked for since the queue was created or the process started: a
    /// handler is missing, or its name is misspelt. The messages are kept.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// # let wheel = duewheel::Duewheel::builder().in_memory().open().await?;
    /// wheel.queue("close-ordre").body("42").enqueue().await?;
    /// assert_eq!(wheel.unattended().await?[0].name.as_str(), "close-ordre");
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// No answer arrived.
    pub async fn unattended(&self) -> Result<Vec<QueueView>, CallError> {
        let mut queues = self.queues().await?;
        queues.retain(|q| q.counts.ready > 0 && q.attended == Attended::No);
        Ok(queues)
    }

    /// Counts and figures of the whole engine.
    ///
    /// # Errors
    /// No answer arrived.
    pub async fn stats(&self) -> Result<Stats, CallError> {
        self.client().ask(Op::stats()).await
    }

    /// When the next message is due; `None` when none is scheduled.
    ///
    /// # Errors
    /// No answer arrived.
    pub async fn next_due(&self) -> Result<Option<SystemTime>, CallError> {
        let due = self.client().ask(Op::next_due()).await?;
        Ok(due.map(|due| due.to_system_time()))
    }

    /// Copies the data folder into `dir` while it stays in use. `dir` is created if it does not exist; otherwise it
    /// must be empty, owned by this user, closed to others (mode 0700) and not a symbolic link. It must not be inside
    /// the data folder. A relative path is relative to the working directory of this process.
    ///
    /// The copy has everything that was answered before the call, and nothing that was settled before it; of changes
    /// during the call it has those up to one moment. Files that never change are linked where the file system can do
    /// that, and take no space of their own as long as the original has them. [`restore`](crate::restore()) makes a
    /// data folder from the copy; do not change the copy until then.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let dir = dir.path();
    /// # use duewheel::{Duewheel, HOUR, SECOND};
    /// let wheel = Duewheel::open(dir.join("data")).await?;
    /// wheel.queue("close-review").body("order 42").delay(48 * HOUR).enqueue().await?;
    /// wheel.backup(dir.join("monday")).await?;
    /// wheel.shutdown(SECOND).await?;
    ///
    /// let restored = duewheel::restore(dir.join("monday"), dir.join("other"))?;
    /// assert_eq!(restored.messages, 1);
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// See [`BackupError`]. A copy that failed midway has no manifest: it cannot be restored by mistake. Remove it.
    ///
    /// # Cancel safety
    /// When the future is dropped, copying continues in the background until it is done or the wheel is closed.
    pub async fn backup(&self, dir: impl Into<PathBuf>) -> Result<BackupReport, BackupError> {
        self.backup_into(Destination::Made(dir.into())).await
    }

    /// Copies the data folder like [`Duewheel::backup`], for callers that restrict the destination: the [`Destination`]
    /// determines which folders may be created for it.
    ///
    /// # Errors
    /// See [`Duewheel::backup`].
    ///
    /// # Cancel safety
    /// See [`Duewheel::backup`].
    pub async fn backup_into(&self, destination: Destination) -> Result<BackupReport, BackupError> {
        let end = self.inner.parts.life.end_on_panic("a backup");
        self.inner.parts.copier.copy_to(destination, end).await
    }

    /// Accepts no new messages and ends waiting reserves. What consumers hold can be settled until
    /// [`Duewheel::shutdown`] closes the wheel. Calling it again is harmless.
    pub fn drain(&self) {
        self.inner.stop.send_replace(true);
        self.inner.parts.life.drain();
        self.inner.parts.client.end_routed_waits();
    }

    /// Accepts no new messages, lets running handlers finish until `deadline`, and closes. Calling it again is
    /// harmless.
    ///
    /// # Errors
    /// See [`ShutdownError`]; accepted messages are safe in every case.
    ///
    /// # Cancel safety
    /// When the future is dropped, the shutdown stops where it is; another call continues it.
    pub async fn shutdown(&self, deadline: Duration) -> Result<(), ShutdownError> {
        let life = &self.inner.parts.life;
        if life.has_ended() {
            return match life.ended().await {
                DriverEnd::Stopped => Ok(()),
                DriverEnd::Fenced(why) | DriverEnd::Failed(why) => Err(ShutdownError::Failed(why)),
            };
        }
        self.drain();
        let (registered, runtime) = {
            let mut handlers = self.handlers();
            handlers.stopping = true;
            (handlers.registered.clone(), handlers.runtime.as_ref().map(HandlerRuntime::handle))
        };
        let rested = match runtime {
            None => true,
            // On this runtime, where time passes even if the caller's time is paused.
            Some(runtime) => {
                let resting = async move {
                    for handler in &registered {
                        handler.rested().await;
                    }
                };
                let resting = runtime.spawn(async move { tokio::time::timeout(deadline, resting).await });
                matches!(resting.await, Ok(Ok(())))
            }
        };
        self.inner.abort.send_replace(true);
        life.close();
        match life.ended().await {
            DriverEnd::Fenced(why) | DriverEnd::Failed(why) => Err(ShutdownError::Failed(why)),
            DriverEnd::Stopped if !rested => Err(ShutdownError::HandlersRunning),
            DriverEnd::Stopped => Ok(()),
        }
    }

    /// Waits until the driver has ended, and returns the reason: the wheel was shut down, its store is permanently
    /// unavailable, or there is a bug in duewheel. A server then exits; in a host process every further call returns
    /// [`CallError::Closed`].
    pub async fn ended(&self) -> String {
        match self.inner.parts.life.ended().await {
            DriverEnd::Stopped => "the wheel was shut down".to_owned(),
            DriverEnd::Fenced(why) | DriverEnd::Failed(why) => why,
        }
    }

    /// The value of [`WheelParts::node`], if it has this type.
    #[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "only nodes have one"))]
    pub(crate) fn node<T: Any>(&self) -> Option<&T> {
        self.inner.parts.node.as_ref()?.downcast_ref()
    }

    pub(crate) fn lifecycle(&self) -> &Lifecycle {
        &self.inner.parts.life
    }

    pub(crate) fn advancing(&self) -> &tokio::sync::Mutex<()> {
        &self.inner.advancing
    }

    pub(crate) fn session(&self) -> SessionId {
        self.inner.session
    }

    pub(crate) fn stop_signal(&self) -> watch::Receiver<bool> {
        self.inner.stop.subscribe()
    }

    pub(crate) fn abort_signal(&self) -> watch::Receiver<bool> {
        self.inner.abort.subscribe()
    }

    pub(crate) fn register(
        &self,
        handler: Registered,
        start: impl FnOnce(&Handle),
    ) -> Result<(), HandlerError> {
        let mut handlers = self.handlers();
        if handlers.stopping {
            return Err(HandlerError::ShuttingDown);
        }
        if handlers.registered.iter().any(|h| h.queue == handler.queue) {
            return Err(HandlerError::Taken(handler.queue));
        }
        let runtime = match &mut handlers.runtime {
            Some(runtime) => runtime.handle(),
            none => {
                let started = HandlerRuntime::start().map_err(|e| HandlerError::Thread(e.to_string()))?;
                none.insert(started).handle()
            }
        };
        handlers.registered.push(handler);
        start(&runtime);
        Ok(())
    }

    fn handlers(&self) -> MutexGuard<'_, Handlers> {
        self.inner.handlers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WheelInner {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        self.abort.send_replace(true);
        self.parts.life.stop();
    }
}

/// Why a handler was not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// The queue's name is not valid.
    #[error("queue name {0}")]
    Name(BadName),
    /// The queue already has a handler.
    #[error("queue {0} has a handler already")]
    Taken(QueueName),
    /// The wheel is shutting down.
    #[error("the wheel is shutting down and registers no handler")]
    ShuttingDown,
    /// Handlers run on a tokio runtime, and the caller is not on one.
    #[error("no tokio runtime here to run handlers on")]
    NoRuntime,
    /// The operating system could not start a thread.
    #[error("no thread could be started: {0}")]
    Thread(String),
}

// Not `#[from]`: the text has the cause, and printers of chains would repeat it.
impl From<BadName> for HandlerError {
    fn from(bad: BadName) -> Self {
        HandlerError::Name(bad)
    }
}

/// The runtime of a wheel's handlers: the loops, the leases, the time limits, and the threads of runs that block. Its
/// threads and its time are nobody else's.
#[derive(Debug)]
pub(crate) struct HandlerRuntime {
    handle: Handle,
    /// Taken by the drop.
    runtime: Option<Runtime>,
}

impl HandlerRuntime {
    pub(crate) fn start() -> std::io::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).max_blocking_threads(MAX_THREADS).thread_name("duewheel-handle");
        let runtime = builder.enable_time().build()?;
        Ok(HandlerRuntime { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for HandlerRuntime {
    fn drop(&mut self) {
        // A wheel may be dropped by a task, which must not wait for others.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The number of runs that may block at the same time, over all queues; threads are started as they are needed.
const MAX_THREADS: usize = 16_384;

/// A registered handler.
#[derive(Clone, Debug)]
pub(crate) struct Registered {
    pub(crate) queue: QueueName,
    pub(crate) hands: Arc<Semaphore>,
    pub(crate) concurrency: u32,
}

impl Registered {
    /// Waits until no message is running.
    pub(crate) async fn rested(&self) {
        drop(self.hands.acquire_many(self.concurrency).await);
    }
}

impl Duewheel {
    /// Sets the quotas of tenants, replacing all quotas set before. They take effect within a second, also for existing
    /// messages: a tenant that already exceeds a new limit keeps what it has, but gets no more. Quotas are not stored:
    /// set them again after a start. In a cluster each node applies its quotas to the shards that it owns, so all nodes
    /// should set the same.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// use duewheel::{Duewheel, Quota};
    ///
    /// let wheel = Duewheel::builder().in_memory().open().await?;
    /// wheel.set_quotas(vec![Quota { prefix: "acme.".into(), messages: Some(1_000_000), ..Quota::default() }])?;
    /// # wheel.shutdown(std::time::Duration::from_secs(1)).await?;
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The quotas are not valid; the former ones stay.
    pub fn set_quotas(&self, quotas: Vec<Quota>) -> Result<(), BadQuota> {
        let (source, policy) = self.quota_source();
        source.set(quotas, policy)
    }

    /// The use of each quota, by prefix.
    ///
    /// # Errors
    /// No answer arrived.
    pub async fn quotas(&self) -> Result<Vec<QuotaUse>, CallError> {
        self.client().ask(Op::quotas()).await
    }
}

/// The number of events of one [`Duewheel::advance`].
const MAX_EVENTS: usize = 100_000;
/// The pause before another look at what has not come to rest; without a change it is not noticed earlier.
const LOOK: Duration = Duration::from_millis(1);
/// Looks at a driver without a pause.
const SPINS: usize = 64;

/// Why a clock was not moved all the way.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdvanceError {
    /// There were 100,000 events on the way. The clock stands at the last of them.
    #[error("there were {MAX_EVENTS} events on the way, and {left:?} are left; advance by less at a time")]
    TooManyEvents {
        /// The time that is left.
        left: Duration,
    },
    /// The wheel gave no answer. The clock stands where it was then.
    #[error(transparent)]
    Call(CallError),
}

impl Duewheel {
    /// Waits until nothing is left to do before time passes: what is due by now has been run by its handler and settled,
    /// webhooks under way have ended, and schedules have entered their occurrences. What a pause, a rate or another limit
    /// of its queue or target holds back stays ready. For tests with a [`VirtualClock`]; it does not wait for queues
    /// without a handler or pusher, nor for consumers whose reserves are refused.
    ///
    /// # Errors
    /// No answer arrived.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn idle(&self) -> Result<(), CallError> {
        // Twice: a run that ended during the first look may have made work for a consumer that had been looked at.
        let mut before = None;
        loop {
            let consumers = self.client().consumers();
            let started = consumers.iter().map(|consumer| consumer.started()).sum::<usize>();
            let rests = self.rests(&consumers).await?;
            if rests && before == Some(started) {
                return Ok(());
            }
            before = rests.then_some(started);
        }
    }

    /// Lets time pass on the wheel's clock, from event to event: to the next instant at which a message or an occurrence
    /// is due, a backoff, a lease or a pause ends, or a rate allows a grant that a consumer waits for. At each it waits
    /// as [`Duewheel::idle`] does, so a running handler holds time still, and a chain of hourly messages runs 48 times
    /// in 48 hours. ([`VirtualClock::advance`] goes there in one leap.) Calls at the same time add up.
    ///
    /// A handler must not call it, nor wait for a later time of this clock.
    ///
    /// # Errors
    /// [`AdvanceError`]: after 100,000 events, or without an answer of the wheel.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    ///
    /// # Cancel safety
    /// When the future is dropped, the clock stays where it is by then.
    pub async fn advance(&self, clock: &VirtualClock, by: Duration) -> Result<(), AdvanceError> {
        let _alone = self.advancing().lock().await;
        let elapsed = || Duration::from_nanos(clock.read().elapsed_ns);
        let goal = elapsed().saturating_add(by);
        for event in 0.. {
            self.idle().await.map_err(AdvanceError::Call)?;
            let left = goal.saturating_sub(elapsed());
            if left.is_zero() {
                break;
            }
            if event > MAX_EVENTS {
                return Err(AdvanceError::TooManyEvents { left });
            }
            let next = self.client().local_shards().iter().filter_map(LocalShard::next_event_in).min();
            clock.advance(next.map_or(left, |next| next.max(Duration::from_millis(1)).min(left)));
        }
        Ok(())
    }

    /// Whether consumers and shards are at rest now. A consumer that is not gets a moment.
    async fn rests(&self, consumers: &[Arc<Activity>]) -> Result<bool, CallError> {
        for consumer in consumers {
            let rests = consumer.is_resting() && (consumer.is_away() || self.waits(consumer).await?);
            if !rests || !consumer.is_resting() {
                let _ = tokio::time::timeout(LOOK, consumer.changed()).await;
                return Ok(false);
            }
        }
        for _ in 0..SPINS {
            if self.client().local_shards().iter().all(LocalShard::has_caught_up) {
                return Ok(true);
            }
            tokio::task::yield_now().await;
        }
        if self.lifecycle().has_ended() {
            return Err(CallError::Closed("the wheel has ended"));
        }
        tokio::time::sleep(LOOK).await;
        Ok(false)
    }

    /// Whether the demand of a consumer that waits is at the engine: it has got nothing yet.
    async fn waits(&self, consumer: &Activity) -> Result<bool, CallError> {
        let view = self.client().ask(Op::queue(consumer.queue().clone())).await?;
        // One shard grants what it can before it sleeps; over several, demands follow their messages.
        let has_all = |view: &QueueView| {
            !self.client().is_routed()
                || view.counts.ready == 0
                || view.pause != Pause::Running
                || view.settings.limits != GrantLimits::default()
        };
        Ok(view.is_some_and(|view| view.waiters > 0 && has_all(&view)))
    }
}
