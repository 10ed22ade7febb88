//! Handlers: the code that runs a queue's messages.
//!
//! Each queue has a loop that reserves as many messages as further runs are allowed. The loops, the leases and the time
//! limits of all runs are on a runtime of the wheel's own, so that no handler, and no paused clock of tokio, holds them
//! up. A run itself is a task of the caller's runtime, or has a thread of the wheel's own if it blocks.

use std::error::Error;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use duewheel_core::engine::{Op, Reserved, SettleRefusal};
use duewheel_core::id::SessionId;
use duewheel_core::name::QueueName;
use duewheel_shard::activity::Activity;
use duewheel_shard::client::{Client, Reserve};
use duewheel_shard::error::CallError;
use duewheel_shard::random::doubled;
use duewheel_shard::shared::Lifecycle;
use duewheel_shard::testing;
use duewheel_shard::thread::panic_text;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::{JoinError, JoinHandle};

use crate::message::{HandlerOutcome, IntoOutcome, Message};
use crate::queue::{Queue, QueueError};
use crate::wheel::{HandlerError, Registered, WeakWheel};

/// The result of most handlers: `Ok(())` acks the message, an error makes the attempt fail. A [`crate::DeadLetter`]
/// makes the message dead; a [`crate::NotYet`] delivers it again without counting the attempt. See [`IntoOutcome`].
pub type HandlerResult = Result<(), Box<dyn Error + Send + Sync>>;

/// Registers a handler with settings.
///
/// ```
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// use duewheel::HandlerResult;
/// use std::time::Duration;
/// # let wheel = duewheel::Duewheel::builder().in_memory().open().await?;
/// wheel.queue("sms").handle_with()
///     .concurrency(64.try_into()?)
///     .time_limit(Duration::from_secs(300))
///     .run(|msg| async move {
///         println!("to be sent: {} bytes", msg.body().len());
///         HandlerResult::Ok(())
///     })?;
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "no handler is registered before `run`"]
pub struct HandlerBuilder {
    queue: Queue,
    limits: RunLimits,
}

/// The limits of the runs of a handler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunLimits {
    pub(crate) concurrency: NonZeroUsize,
    pub(crate) time_limit: Duration,
}

impl Default for RunLimits {
    fn default() -> Self {
        RunLimits {
            concurrency: const { NonZeroUsize::new(16).unwrap() },
            time_limit: Duration::from_secs(30 * 60),
        }
    }
}

/// The methods of a builder that set its `limits`.
macro_rules! run_limits {
    () => {
        /// How many messages of a queue run at the same time; 16 by default.
        pub fn concurrency(mut self, n: ::std::num::NonZeroUsize) -> Self {
            self.limits.concurrency = n;
            self
        }

        /// How long a run may take; its lease is extended until then. 30 minutes by default. After that the attempt has
        /// failed and the future is dropped. (A blocked thread cannot be ended; it keeps running.)
        pub fn time_limit(mut self, limit: ::std::time::Duration) -> Self {
            self.limits.time_limit = limit;
            self
        }
    };
}
pub(crate) use run_limits;

impl HandlerBuilder {
    pub(crate) fn new(queue: Queue, limits: RunLimits) -> Self {
        HandlerBuilder { queue, limits }
    }

    run_limits!();

    /// Registers the handler. Messages that are ready are run at once.
    ///
    /// # Errors
    /// See [`HandlerError`].
    pub fn run<F, Fut>(self, run: F) -> Result<(), HandlerError>
    where
        F: Fn(Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoOutcome> + Send + 'static,
    {
        let run = Arc::new(run);
        self.register(Arc::new(move |message, kept, host| {
            let run = run.clone();
            host.spawn(async move {
                tokio::select! {
                    biased;
                    // The error's text is made here, where a panic counts as a failed attempt.
                    outcome = async move { run(message).await.into_outcome() } => Some(outcome),
                    _ = kept => None,
                }
            })
        }))
    }

    /// Registers a handler that blocks; see [`Queue::handler_blocking`].
    ///
    /// # Errors
    /// See [`HandlerError`].
    pub fn run_blocking<F, R>(self, run: F) -> Result<(), HandlerError>
    where
        F: Fn(Message) -> R + Send + Sync + 'static,
        R: IntoOutcome,
    {
        let run = Arc::new(run);
        self.register(Arc::new(move |message, _, host| {
            let (run, host) = (run.clone(), host.clone());
            tokio::task::spawn_blocking(move || {
                let _host = host.enter();
                Some(run(message).into_outcome())
            })
        }))
    }

    fn register(self, run: StartRun) -> Result<(), HandlerError> {
        let name = self.queue.name.clone()?;
        let host = Handle::try_current().map_err(|_| HandlerError::NoRuntime)?;
        let wheel = self.queue.wheel.clone();
        let concurrency = self.limits.concurrency.get().min(Semaphore::MAX_PERMITS);
        let concurrency = u32::try_from(concurrency).unwrap_or(u32::MAX);
        let worker = Worker {
            wheel: wheel.downgrade(),
            client: wheel.client().clone(),
            life: wheel.lifecycle().clone(),
            queue: name.clone(),
            session: wheel.session(),
            time_limit: self.limits.time_limit,
            hands: Arc::new(Semaphore::new(usize::try_from(concurrency).unwrap_or(usize::MAX))),
            max_grants: wheel.quota_source().1.max_reserve,
            run,
            host,
            activity: wheel.client().register(name.clone()),
            stop: wheel.stop_signal(),
            abort: wheel.abort_signal(),
        };
        let registered = Registered { queue: name, hands: worker.hands.clone(), concurrency };
        wheel.register(registered, |runtime| drop(runtime.spawn(worker.work())))
    }
}

impl Queue {
    /// Registers the code that runs this queue's messages: `Ok(())` acks, an error retries with backoff, and so does a
    /// panic; [`crate::DeadLetter`] ends the tries, [`crate::NotYet`] does not count. See [`IntoOutcome`] for all that
    /// may be returned, and [`HandlerBuilder`] for concurrency and time limits.
    ///
    /// Each run is a task of this runtime. Code that blocks belongs into [`Queue::handler_blocking`]: here it delays
    /// other tasks of the runtime, though it delays no extension of a lease.
    ///
    /// # Errors
    /// [`HandlerError`]: the name is not one, or the queue has a handler already.
    pub fn handler<F, Fut>(&self, run: F) -> Result<(), HandlerError>
    where
        F: Fn(Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.handle_with().run(run)
    }

    /// Registers code that blocks: each run has a thread of the wheel's own, so it delays nothing else.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// # let wheel = duewheel::Duewheel::builder().in_memory().open().await?;
    /// wheel.queue("thumbnails").handler_blocking(|msg| {
    ///     let image: String = msg.json()?;
    ///     std::process::Command::new("convert").args([&image, "-resize", "100", "small.png"]).status()?;
    ///     duewheel::HandlerResult::Ok(())
    /// })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`HandlerError`]: the name is not one, or the queue has a handler already.
    pub fn handler_blocking<F, R>(&self, run: F) -> Result<(), HandlerError>
    where
        F: Fn(Message) -> R + Send + Sync + 'static,
        R: IntoOutcome,
    {
        self.handle_with().run_blocking(run)
    }

    /// Registers a handler like [`Queue::handler`], with settings.
    pub fn handle_with(&self) -> HandlerBuilder {
        HandlerBuilder::new(self.clone(), RunLimits::default())
    }
}

/// Starts a run on the host's runtime, or on a thread. A run that can be ended does so, with `None`, when the sender is
/// dropped.
type StartRun =
    Arc<dyn Fn(Message, oneshot::Receiver<()>, &Handle) -> JoinHandle<Option<HandlerOutcome>> + Send + Sync>;

struct Worker {
    wheel: WeakWheel,
    client: Client,
    life: Lifecycle,
    queue: QueueName,
    session: SessionId,
    time_limit: Duration,
    hands: Arc<Semaphore>,
    /// The largest number of messages that are granted at once.
    max_grants: usize,
    run: StartRun,
    /// The runtime of the caller.
    host: Handle,
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

impl Worker {
    async fn work(self) {
        let this = Arc::new(self);
        let _end = this.life.end_on_panic("the loop of a queue's handler");
        let mut stop = this.stop.clone();
        let mut host_ended = this.watch_host();
        let mut failures = 0;
        loop {
            testing::place("handler loop");
            let Ok(hand) = this.hands.clone().acquire_owned().await else { return };
            let max = this.hands.available_permits().saturating_add(1).min(this.max_grants);
            let mut hands = vec![hand];
            while hands.len() < max
                && let Ok(hand) = this.hands.clone().try_acquire_owned()
            {
                hands.push(hand);
            }
            let demand = Reserve {
                max: hands.len(),
                wait_ms: WAIT_MS,
                session: this.session,
                ..Reserve::new(this.queue.clone())
            };
            let reserved = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                _ = &mut host_ended => return,
                reserved = this.activity.waiting(this.client.reserve(demand)) => reserved,
            };
            match reserved {
                Ok(Reserved::Grants(grants)) => {
                    failures = 0;
                    for (grant, hand) in grants.into_iter().zip(hands) {
                        let running = this.activity.begin();
                        let (this, message) = (this.clone(), Message::new(grant, this.wheel.clone()));
                        tokio::spawn(async move {
                            let _running = running;
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
                ) => {
                    let pause = tokio::time::sleep(doubled(FIRST_PAUSE, LONGEST_PAUSE, failures));
                    this.activity.away(pause).await;
                }
                Err(_) if this.life.has_ended() => return,
                Err(error) => {
                    tracing::debug!(queue = %this.queue, %error, "could not reserve messages for a handler");
                    let pause = tokio::time::sleep(doubled(FIRST_PAUSE, LONGEST_PAUSE, failures));
                    this.activity.away(pause).await;
                    failures = failures.saturating_add(1);
                }
            }
        }
    }

    /// Resolves when the caller's runtime has ended: nothing can run there any more.
    fn watch_host(&self) -> oneshot::Receiver<()> {
        let (alive, ended) = oneshot::channel();
        let mut stop = self.stop.clone();
        self.host.spawn(async move {
            let _ = stop.wait_for(|stop| *stop).await;
            drop(alive);
        });
        ended
    }

    /// Runs one message and settles it.
    async fn run_one(&self, message: Message) {
        let (id, token) = (message.id(), message.lease_token());
        testing::place("handler run");
        // Without an outcome the lease belongs to this process, and is released at the next start.
        let Some(outcome) = self.outcome(message).await else { return };
        if outcome != HandlerOutcome::Ack {
            tracing::debug!(queue = %self.queue, %id, ?outcome, "an attempt was not successful");
        }
        let goes_on = || !*self.abort.borrow() && !self.life.has_ended();
        let mut settled = repeated(goes_on, || self.client.ask(outcome.op(id, token))).await;
        if let (Ok(Err(SettleRefusal::TooLong(max_ms))), HandlerOutcome::NotYet { reason, .. }) =
            (&settled, &outcome)
        {
            // Otherwise the lease would run out, and nobody would learn why.
            let why = QueueError::DelayTooLong { max_ms: *max_ms };
            let failed = HandlerOutcome::failed(format!("{reason}: {why}"));
            settled = repeated(goes_on, || self.client.ask(failed.op(id, token))).await;
        }
        match settled {
            Ok(Err(_)) => {
                tracing::warn!(queue = %self.queue, %id, "settled too late: the lease was lost");
            }
            Ok(Ok(_)) => {}
            // The message will be delivered again: the guarantee is at least once.
            Err(error) => tracing::warn!(queue = %self.queue, %id, %error, "could not settle"),
        }
    }

    /// The result of one run. `None`: it was dropped by a shutdown.
    async fn outcome(&self, message: Message) -> Option<HandlerOutcome> {
        let (id, token, lease_ms) = (message.id(), message.lease_token(), message.lease_ms());
        let between = (Duration::from_millis(lease_ms) / 3).max(Duration::from_millis(10));
        // Dropping the sender ends the run at its next await.
        let (keep, kept) = oneshot::channel::<()>();
        let mut running = (self.run)(message, kept, &self.host);
        let mut abort = self.abort.clone();
        let time_limit = tokio::time::sleep(self.time_limit);
        tokio::pin!(time_limit);
        let outcome = loop {
            tokio::select! {
                biased;
                outcome = &mut running => break outcome,
                () = async { drop(abort.wait_for(|abort| *abort).await) } => return None,
                () = &mut time_limit => {
                    return Some(HandlerOutcome::failed(format!("took longer than {:?}", self.time_limit)));
                }
                () = tokio::time::sleep(between) => {
                    // A task of its own: a slow store delays neither the end of the run nor its time limit.
                    let (client, life, queue) = (self.client.clone(), self.life.clone(), self.queue.clone());
                    tokio::spawn(async move {
                        let _end = life.end_on_panic("the task that extends a lease");
                        if let Ok(Err(_)) = client.ask(Op::extend(id, token, Some(lease_ms))).await {
                            tracing::debug!(%queue, %id, "the lease could not be extended");
                        }
                    });
                }
            }
        };
        drop(keep);
        match outcome.map_err(JoinError::try_into_panic) {
            Ok(ended) => ended,
            Err(Ok(panic)) => Some(HandlerOutcome::failed(format!("panic: {}", panic_text(&*panic)))),
            Err(Err(_)) => Some(HandlerOutcome::NotYet {
                delay: Duration::ZERO,
                reason: "the runtime of the handler has ended".to_owned(),
            }),
        }
    }
}

/// Repeats a call until it is answered or the wheel ends: finished work must not be done again because the store was away
/// for a moment. A repeated ack is answered as done.
async fn repeated<T, Fut>(goes_on: impl Fn() -> bool, call: impl Fn() -> Fut) -> Result<T, CallError>
where
    Fut: Future<Output = Result<T, CallError>>,
{
    let mut failures = 0;
    loop {
        match call().await {
            Err(error) if error.may_pass() && goes_on() => {
                tokio::time::sleep(doubled(FIRST_PAUSE, LONGEST_PAUSE, failures)).await;
                failures = failures.saturating_add(1);
            }
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    async fn calls(failures: u32, error: CallError, most: u32) -> (Result<u32, CallError>, u32) {
        let calls = Cell::new(0);
        let answer = repeated(
            || calls.get() < most,
            || {
                calls.set(calls.get() + 1);
                let answer = if calls.get() > failures { Ok(7) } else { Err(error.clone()) };
                std::future::ready(answer)
            },
        );
        (answer.await, calls.get())
    }

    #[tokio::test(start_paused = true)]
    async fn settling_is_repeated_until_answered() {
        assert!(matches!(calls(300, CallError::NO_ANSWER, u32::MAX).await, (Ok(7), 301)));
        assert!(matches!(calls(300, CallError::Overloaded, 5).await, (Err(_), 5)), "the wheel ends");
        assert!(matches!(calls(1, CallError::Closed("it is"), u32::MAX).await, (Err(_), 1)));
    }
}
