//! Handlers: the code that runs a queue's messages.
//!
//! Each queue has a loop that reserves as many messages as further runs are allowed; each message runs on a thread of
//! its own, so that a handler that blocks or panics delays no other.

use std::error::Error;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use duewheel_core::engine::{Op, Reserved};
use duewheel_core::id::SessionId;
use duewheel_core::name::QueueName;
use duewheel_shard::backoff::doubled;
use duewheel_shard::client::{Client, Demand};
use duewheel_shard::error::CallError;
use duewheel_shard::lifecycle::Lifecycle;
use duewheel_shard::testing;
use duewheel_shard::thread::panic_text;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinHandle;

use crate::failure::HandlerFailure;
use crate::message::Message;
use crate::queue::Queue;
use crate::registered::{Activity, HandlerError, Registered, Running};

/// The result of a handler: `Ok(())` acks the message, an error makes the attempt fail. A [`crate::DeadLetter`] makes
/// the message dead; a [`crate::NotYet`] delivers it again without counting the attempt.
pub type HandlerResult = Result<(), Box<dyn Error + Send + Sync>>;

/// Where a handler runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Each run has a thread of the runtime's blocking pool, so it may block.
    #[default]
    Thread,
    /// Each run is a task: cheaper, but a run that blocks delays others.
    Task,
}

/// Registers a handler with settings.
///
/// ```
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// use std::time::Duration;
/// # let wheel = duewheel::Duewheel::builder().in_memory().open().await?;
/// wheel.queue("sms").handle_with()
///     .concurrency(64.try_into()?)
///     .time_limit(Duration::from_secs(300))
///     .run(|msg| async move {
///         println!("to be sent: {} bytes", msg.body().len());
///         Ok(())
///     })?;
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "no handler is registered before `run`"]
pub struct HandlerBuilder {
    queue: Queue,
    concurrency: NonZeroUsize,
    time_limit: Duration,
    isolation: Isolation,
}

const CONCURRENCY: NonZeroUsize = NonZeroUsize::new(16).unwrap();

impl HandlerBuilder {
    pub(crate) fn new(queue: Queue) -> Self {
        HandlerBuilder {
            queue,
            concurrency: CONCURRENCY,
            time_limit: Duration::from_secs(30 * 60),
            isolation: Isolation::Thread,
        }
    }

    /// How many messages of this queue run at the same time; 16 by default.
    pub fn concurrency(mut self, n: NonZeroUsize) -> Self {
        self.concurrency = n;
        self
    }

    /// How long a run may take; its lease is extended until then. 30 minutes by default. After that the attempt has
    /// failed and the future is dropped. (A blocked thread cannot be ended; it keeps running.)
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Where each run executes; on its own thread by default.
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// Registers the handler. Messages that are ready are run at once.
    ///
    /// # Errors
    /// See [`HandlerError`].
    pub fn run<F, Fut>(self, run: F) -> Result<(), HandlerError>
    where
        F: Fn(Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        let name = self.queue.name.clone()?;
        let runtime = Handle::try_current().map_err(|_| HandlerError::NoRuntime)?;
        let wheel = self.queue.wheel.clone();
        let worker = Worker {
            client: wheel.client().clone(),
            life: wheel.lifecycle().clone(),
            queue: name.clone(),
            session: wheel.session(),
            concurrency: self.concurrency.get(),
            hands: Arc::new(Semaphore::new(self.concurrency.get())),
            time_limit: self.time_limit,
            isolation: self.isolation,
            run: Arc::new(run),
            activity: Arc::new(Activity::default()),
            stop: wheel.stop_signal(),
            abort: wheel.abort_signal(),
        };
        let registered = Registered {
            queue: name,
            activity: worker.activity.clone(),
            hands: worker.hands.clone(),
            concurrency: worker.concurrency,
        };
        wheel.register(registered, || drop(runtime.spawn(worker.work())))
    }
}

impl Queue {
    /// Registers the code that runs this queue's messages: `Ok(())` acks, an error retries with backoff, and so does a
    /// panic; [`crate::DeadLetter`] ends the tries, [`crate::NotYet`] does not count. See [`HandlerBuilder`] for
    /// concurrency and time limits.
    ///
    /// Each run has a thread of its own, so a handler that blocks delays no other. The threads are those of the
    /// runtime's blocking pool, 512 by default: raise `max_blocking_threads` if all your handlers' hands together are
    /// more.
    ///
    /// # Errors
    /// [`HandlerError`]: the name is not one, or the queue has a handler already.
    pub fn handler<F, Fut>(&self, run: F) -> Result<(), HandlerError>
    where
        F: Fn(Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send + 'static,
    {
        self.handle_with().run(run)
    }

    /// Registers a handler like [`Queue::handler`], with settings.
    pub fn handle_with(&self) -> HandlerBuilder {
        HandlerBuilder::new(self.clone())
    }
}

struct Worker<F> {
    client: Client,
    life: Lifecycle,
    queue: QueueName,
    session: SessionId,
    concurrency: usize,
    hands: Arc<Semaphore>,
    time_limit: Duration,
    isolation: Isolation,
    run: Arc<F>,
    activity: Arc<Activity>,
    stop: watch::Receiver<bool>,
    /// Set when the shutdown's deadline has passed: running futures are dropped.
    abort: watch::Receiver<bool>,
}

/// How long a reserve of the loop waits; it only limits how often an idle loop repeats.
const WAIT_MS: u64 = 60_000;
/// The pause after a reserve that failed, doubled up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl<F, Fut> Worker<F>
where
    F: Fn(Message) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult> + Send + 'static,
{
    async fn work(self) {
        let this = Arc::new(self);
        let _end = this.life.end_on_panic("the loop of a queue's handler");
        let mut stop = this.stop.clone();
        let mut failures = 0;
        loop {
            testing::place("handler loop");
            let Ok(hand) = this.hands.clone().acquire_owned().await else { return };
            let free = this.hands.available_permits();
            let mut hands = vec![hand];
            while hands.len() <= free.min(this.concurrency)
                && let Ok(hand) = this.hands.clone().try_acquire_owned()
            {
                hands.push(hand);
            }
            let demand = Demand {
                max: hands.len(),
                wait_ms: WAIT_MS,
                session: this.session,
                ..Demand::new(this.queue.clone())
            };
            let reserved = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                reserved = this.wait_for_grants(demand) => reserved,
            };
            match reserved {
                Ok(Reserved::Grants(grants)) => {
                    failures = 0;
                    for (grant, hand) in grants.into_iter().zip(hands) {
                        this.activity.started.fetch_add(1, Ordering::SeqCst);
                        this.activity.running.fetch_add(1, Ordering::SeqCst);
                        let (this, message) = (this.clone(), Message::new(grant));
                        tokio::spawn(async move {
                            let _running = Running(this.activity.clone());
                            let _end = this.life.end_on_panic("the task around a handler's run");
                            this.run_one(message).await;
                            drop(hand);
                        });
                    }
                }
                Ok(
                    Reserved::DeadlineSoon
                    | Reserved::Overloaded
                    | Reserved::TooManyQueues
                    | Reserved::HeldBack(_),
                ) => tokio::time::sleep(doubled(FIRST_PAUSE, LONGEST_PAUSE, failures)).await,
                Err(_) if this.life.has_ended() => return,
                Err(error) => {
                    tracing::debug!(queue = %this.queue, %error, "could not reserve messages for a handler");
                    tokio::time::sleep(doubled(FIRST_PAUSE, LONGEST_PAUSE, failures)).await;
                    failures = failures.saturating_add(1);
                }
            }
        }
    }

    async fn wait_for_grants(&self, demand: Demand) -> Result<Reserved, CallError> {
        let reserve = self.client.reserve(demand);
        tokio::pin!(reserve);
        let mut waiting = false;
        std::future::poll_fn(|cx| {
            let polled = reserve.as_mut().poll(cx);
            if !std::mem::replace(&mut waiting, true) {
                // The first poll submits the demand.
                self.activity.changed.notify_waiters();
            }
            polled
        })
        .await
    }

    /// Runs one message and settles it.
    async fn run_one(&self, message: Message) {
        let (id, token) = (message.id(), message.lease_token());
        testing::place("handler run");
        let op = match self.outcome(message).await {
            Some(Ok(())) => Op::ack(id, token),
            Some(Err(failure)) => {
                let note = failure.note();
                tracing::debug!(queue = %self.queue, %id, %note, "an attempt failed");
                failure.op(id, token)
            }
            // The outcome is unknown: the lease belongs to this process, and is released at the next start.
            None => return,
        };
        match self.client.ask(op).await {
            Ok(Err(_)) => {
                tracing::warn!(queue = %self.queue, %id, "settled too late: the lease was lost");
            }
            Ok(Ok(_)) => {}
            // The message will be delivered again: the guarantee is at least once.
            Err(error) => tracing::warn!(queue = %self.queue, %id, %error, "could not settle"),
        }
    }

    /// The result of one run. `None`: it was dropped by a shutdown.
    async fn outcome(&self, message: Message) -> Option<Result<(), HandlerFailure>> {
        let (id, token) = (message.id(), message.lease_token());
        let between = (message.lease_length() / 3).max(Duration::from_millis(10));
        // Dropping the sender ends the run at its next await.
        let (keep, kept) = oneshot::channel::<()>();
        let mut running = self.start(message, kept);
        let mut abort = self.abort.clone();
        let time_limit = tokio::time::sleep(self.time_limit);
        tokio::pin!(time_limit);
        let outcome = loop {
            tokio::select! {
                biased;
                outcome = &mut running => break outcome,
                () = async { drop(abort.wait_for(|abort| *abort).await) } => return None,
                () = &mut time_limit => {
                    return Some(Err(HandlerFailure::failed(format!("took longer than {:?}", self.time_limit))));
                }
                () = tokio::time::sleep(between) => {
                    // A task of its own: a slow store delays neither the end of the run nor its time limit.
                    let (client, life, queue) = (self.client.clone(), self.life.clone(), self.queue.clone());
                    tokio::spawn(async move {
                        let _end = life.end_on_panic("the task that extends a lease");
                        if let Ok(Err(_)) = client.ask(Op::extend(id, token, None)).await {
                            tracing::debug!(%queue, %id, "the lease could not be extended");
                        }
                    });
                }
            }
        };
        drop(keep);
        match outcome {
            Ok(ended) => ended,
            Err(join) => {
                let panic = join.try_into_panic().ok()?;
                Some(Err(HandlerFailure::failed(format!("panic: {}", panic_text(&*panic)))))
            }
        }
    }

    /// Starts a run that ends early, with `None`, when the sender of `kept` is dropped.
    fn start(
        &self,
        message: Message,
        kept: oneshot::Receiver<()>,
    ) -> JoinHandle<Option<Result<(), HandlerFailure>>> {
        let run = self.run.clone();
        let bounded = async move {
            tokio::select! {
                biased;
                // The error's text is made here, where a panic counts as a failed attempt.
                result = async move { run(message).await.map_err(|e| HandlerFailure::of(&*e)) } => Some(result),
                _ = kept => None,
            }
        };
        match self.isolation {
            Isolation::Thread => {
                let runtime = Handle::current();
                tokio::task::spawn_blocking(move || runtime.block_on(bounded))
            }
            Isolation::Task => tokio::spawn(bounded),
        }
    }
}
