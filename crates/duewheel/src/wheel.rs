//! The handle that users hold.

use std::any::Any;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use duewheel_core::engine::{Attended, Op, QueueView, Stats};
use duewheel_core::id::SessionId;
use duewheel_core::policy::Policy;
use duewheel_shard::client::Client;
use duewheel_shard::error::CallError;
use duewheel_shard::lifecycle::Lifecycle;
use duewheel_shard::quotas::QuotaSource;
use duewheel_shard::shared::DriverEnd;
use duewheel_store_log::{BackupReport, Destination};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::backup::{BackupError, Copier};
use crate::registered::{HandlerError, HandlerRuntime, Registered};

/// Durable delayed messages. Cheap to clone and thread-safe; all clones use the same wheel.
///
/// Dropping the last clone stops the driver without waiting for handlers; nothing accepted is lost. Prefer
/// [`Duewheel::shutdown`]. A handler that captures a clone, or a [`crate::Queue`], keeps the wheel open until the
/// shutdown; [`crate::Message::wheel`] does not.
#[derive(Clone, Debug)]
pub struct Duewheel {
    inner: Arc<WheelInner>,
}

/// A handle that does not keep its wheel open.
#[derive(Clone, Debug)]
pub(crate) struct WeakWheel(Weak<WheelInner>);

impl WeakWheel {
    /// The handle, as long as another one exists.
    pub(crate) fn upgrade(&self) -> Option<Duewheel> {
        self.0.upgrade().map(|inner| Duewheel { inner })
    }
}

#[derive(Debug)]
struct WheelInner {
    client: Client,
    life: Lifecycle,
    copier: Copier,
    policy: Policy,
    quotas: QuotaSource,
    /// The state of a cluster node, kept with its handle; only `node.rs`, behind the feature `cluster`, knows its type.
    node: Option<Arc<dyn Any + Send + Sync>>,
    session: SessionId,
    handlers: Mutex<Handlers>,
    stop: watch::Sender<bool>,
    abort: watch::Sender<bool>,
}

/// The parts of a wheel whose store is open.
pub(crate) struct WheelParts {
    pub(crate) client: Client,
    pub(crate) life: Lifecycle,
    pub(crate) copier: Copier,
    pub(crate) policy: Policy,
    pub(crate) quotas: QuotaSource,
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
        let WheelParts { client, life, copier, policy, quotas, node } = parts;
        let session = client.new_session();
        Duewheel {
            inner: Arc::new(WheelInner {
                client,
                life,
                copier,
                policy,
                quotas,
                node,
                session,
                handlers: Mutex::default(),
                stop: watch::Sender::new(false),
                abort: watch::Sender::new(false),
            }),
        }
    }

    pub(crate) fn downgrade(&self) -> WeakWheel {
        WeakWheel(Arc::downgrade(&self.inner))
    }

    /// The source of the quotas, and the limits that apply to them.
    pub(crate) fn quota_source(&self) -> (&QuotaSource, &Policy) {
        (&self.inner.quotas, &self.inner.policy)
    }

    /// The interface for servers and other front ends: it submits any operations, many at a time. The crate
    /// `duewheel-shard` exports the types of its arguments and answers, such as [`duewheel_shard::client::Demand`].
    pub fn client(&self) -> &Client {
        &self.inner.client
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

    /// Waits until everything that is due by now has been run by its handler and settled. For tests with a
    /// [`crate::VirtualClock`]; it does not wait for queues without a handler.
    ///
    /// # Errors
    /// No answer arrived.
    pub async fn idle(&self) -> Result<(), CallError> {
        'look: loop {
            let registered = self.handlers().registered.clone();
            let started = |all: &[Registered]| all.iter().map(Registered::started).sum::<usize>();
            let before = started(&registered);
            for handler in &registered {
                let view = self.client().ask(Op::queue(handler.queue.clone())).await?;
                // The handler's loop either waits for messages, or has just received some.
                let waits = view.is_some_and(|v| {
                    v.waiters > 0 && (v.counts.ready == 0 || v.pause != duewheel_core::record::Pause::Running)
                });
                if !waits || !handler.is_resting() {
                    handler.changed().await;
                    continue 'look;
                }
            }
            // A handler may have scheduled a message for another that had been checked already.
            if started(&registered) == before {
                return Ok(());
            }
        }
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
        let end = self.inner.life.end_on_panic("a backup");
        self.inner.copier.copy_to(destination, end).await
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
        let life = &self.inner.life;
        if life.has_ended() {
            return match life.ended().await {
                DriverEnd::Stopped => Ok(()),
                DriverEnd::Fenced(why) | DriverEnd::Failed(why) => Err(ShutdownError::Failed(why)),
            };
        }
        self.inner.stop.send_replace(true);
        life.drain();
        self.inner.client.end_routed_waits();
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
        match self.inner.life.ended().await {
            DriverEnd::Stopped => "the wheel was shut down".to_owned(),
            DriverEnd::Fenced(why) | DriverEnd::Failed(why) => why,
        }
    }

    /// The value of [`WheelParts::node`], if it has this type.
    #[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "only nodes have one"))]
    pub(crate) fn node<T: Any>(&self) -> Option<&T> {
        self.inner.node.as_ref()?.downcast_ref()
    }

    pub(crate) fn lifecycle(&self) -> &Lifecycle {
        &self.inner.life
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
        self.life.stop();
    }
}
