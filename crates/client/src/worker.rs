//! Workers: a handler runs for each message.

use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use duewheel_api::error_code::ErrorCode;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::client::DuewheelClient;
use crate::error::Error;
use crate::retry::backoff;
use crate::types::{LeasedMessage, Nack, Reserving, SettledMessage, bad_request};

/// How long one reserve waits for messages.
const WAIT: Duration = Duration::from_secs(20);
/// The time after which a worker that ends with the last message asks again while ready ones are held back.
const HELD_BACK: Duration = Duration::from_millis(250);
/// The time that handlers have to give their messages back after the end of a drain.
const LAST: Duration = Duration::from_secs(2);
/// The largest number of messages that a server grants at once.
const MAX_GRANTS: usize = 10_000;
/// The reason of messages that are given back at the end.
const STOPS: &str = "the worker stops";

/// The refusals of a result: above its own limit, and above that of a request.
const TOO_LONG: [ErrorCode; 2] = [ErrorCode::BadRequest, ErrorCode::BodyTooLarge];

/// Says that work is of no use any more. Clones are cancelled together.
#[derive(Clone, Debug)]
pub struct Cancellation(Arc<watch::Sender<bool>>);

impl Default for Cancellation {
    fn default() -> Self {
        Cancellation(Arc::new(watch::Sender::new(false)))
    }
}

impl Cancellation {
    /// Cancels it, for good.
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it is cancelled. Cancel safe.
    pub async fn cancelled(&self) {
        // The sender lives as long as this.
        let _ = self.0.subscribe().wait_for(|is_cancelled| *is_cancelled).await;
    }
}

/// Waits until the process gets SIGTERM or SIGINT. From the call on these do not end it.
///
/// # Errors
/// The system refuses.
pub async fn terminated() -> io::Result<()> {
    signals()?.await;
    Ok(())
}

/// The next SIGTERM or SIGINT from the call on, within a runtime.
pub(crate) fn signals() -> io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// The end of a handler whose message is done: `()`, or a result in JSON that is kept with the done message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ack(Option<Value>);

impl From<()> for Ack {
    fn from((): ()) -> Ack {
        Ack(None)
    }
}

impl From<Value> for Ack {
    fn from(result: Value) -> Ack {
        Ack(Some(result))
    }
}

/// A moment of a worker.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum WorkerEvent<'a> {
    /// A message was settled: acked, or nacked so.
    Settled(&'a LeasedMessage, Option<&'a Nack>, &'a SettledMessage),
    /// A settle has failed for good, or an extend.
    Failed(&'a LeasedMessage, &'a Error),
    /// The server gave no messages, and is asked again.
    Waits(&'a Error),
    /// A message was leased. [`WorkerEvent::Ended`] follows.
    Leased(&'a LeasedMessage),
    /// The worker does no more for a message: it was settled, could not be, or its lease is lost.
    Ended(&'a LeasedMessage),
}

type Observer = dyn Fn(WorkerEvent<'_>) + Send + Sync;

/// Leases messages of its queues and runs a handler for each. It waits in one reserve over all queues, asks for no more
/// than it can work on, and extends each lease at half its time while the handler runs.
///
/// A handler that returns `Ok` acks the message, with `()` or a result in JSON, without one that is refused; a
/// [`Nack`], which every error becomes by `?`, nacks it. A panic is a failed attempt. The handler's [`Cancellation`]
/// says that the lease is lost, so that another consumer may have the message, or that a drain has waited long enough.
/// A handler that stops because of it returns an error: `Ok` is also acked then, and counts if nobody has got the
/// message since.
///
/// ```no_run
/// use std::time::Duration;
/// use duewheel_client::{Cancellation, DuewheelClient, MessageWorker, Nack, Options, terminated};
///
/// # async fn is_paid(_: &[u8]) -> bool { true }
/// # async fn work() -> Result<(), Box<dyn std::error::Error>> {
/// let wheel = DuewheelClient::new("http://localhost:7788", Options::default())?;
/// let worker = MessageWorker::new(&wheel, &["close-review"]).concurrency(10);
/// let stop = Cancellation::default();
/// let signal = stop.clone();
/// tokio::spawn(async move { terminated().await.map(|()| signal.cancel()) });
/// worker.run(&stop, async |message, _| {
///     if !is_paid(&message.bytes()).await {
///         return Err(Nack::not_yet(Duration::from_secs(600)));
///     }
///     Ok(())
/// }).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MessageWorker {
    client: DuewheelClient,
    queues: Vec<String>,
    concurrency: usize,
    lease: Option<Duration>,
    drain: Option<Duration>,
    limit: Option<u64>,
    until_empty: bool,
    observer: Arc<Observer>,
}

impl fmt::Debug for MessageWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageWorker").field("queues", &self.queues).finish_non_exhaustive()
    }
}

impl MessageWorker {
    /// A worker of these queues, for one message at a time.
    pub fn new(client: &DuewheelClient, queues: &[&str]) -> MessageWorker {
        MessageWorker {
            client: client.clone(),
            queues: queues.iter().map(|queue| (*queue).to_owned()).collect(),
            concurrency: 1,
            lease: None,
            drain: None,
            limit: None,
            until_empty: false,
            observer: Arc::new(|_| {}),
        }
    }

    /// For so many messages at a time.
    #[must_use]
    pub fn concurrency(self, concurrency: usize) -> MessageWorker {
        MessageWorker { concurrency, ..self }
    }

    /// With leases of this length, in place of what message and queue say.
    #[must_use]
    pub fn lease(self, lease: Duration) -> MessageWorker {
        MessageWorker { lease: Some(lease), ..self }
    }

    /// Waits for handlers no longer than this once it is to stop.
    #[must_use]
    pub fn drain(self, drain: Duration) -> MessageWorker {
        MessageWorker { drain: Some(drain), ..self }
    }

    /// Ends after so many messages.
    #[must_use]
    pub fn limit(self, messages: u64) -> MessageWorker {
        MessageWorker { limit: Some(messages), ..self }
    }

    /// Ends when no message is ready and no handler runs, instead of waiting for the next.
    #[must_use]
    pub fn until_empty(self) -> MessageWorker {
        MessageWorker { until_empty: true, ..self }
    }

    /// Calls this with what happens outside of handlers, such as lost leases.
    #[must_use]
    pub fn observe(self, observer: impl Fn(WorkerEvent<'_>) + Send + Sync + 'static) -> MessageWorker {
        MessageWorker { observer: Arc::new(observer), ..self }
    }

    /// Works until `stop` is cancelled; then it leases nothing more, and returns when the handlers that run have ended.
    /// If it is dropped, handlers are aborted, and their messages come again when their leases are over.
    ///
    /// # Errors
    /// Further work is impossible, such as `unauthorized`.
    pub async fn run<H, F, A>(&self, stop: &Cancellation, handler: H) -> Result<(), Error>
    where
        H: Fn(LeasedMessage, Cancellation) -> F,
        F: Future<Output = Result<A, Nack>> + Send + 'static,
        A: Into<Ack> + Send + 'static,
    {
        if self.queues.is_empty() || self.concurrency == 0 {
            return Err(bad_request("worker: needs a queue and a place for a message"));
        }
        let (mut running, cut) = (JoinSet::new(), Cancellation::default());
        let ended = self.lease_all(stop, &cut, &mut running, handler).await;
        let Some(drain) = self.drain else {
            running.join_all().await;
            return ended;
        };
        let all = async |running: &mut JoinSet<()>| while running.join_next().await.is_some() {};
        if timeout(drain, all(&mut running)).await.is_err() {
            cut.cancel();
            let _ = timeout(LAST, all(&mut running)).await;
        }
        ended
    }

    async fn lease_all<H, F, A>(
        &self,
        stop: &Cancellation,
        cut: &Cancellation,
        running: &mut JoinSet<()>,
        handler: H,
    ) -> Result<(), Error>
    where
        H: Fn(LeasedMessage, Cancellation) -> F,
        F: Future<Output = Result<A, Nack>> + Send + 'static,
        A: Into<Ack> + Send + 'static,
    {
        let queues: Vec<&str> = self.queues.iter().map(String::as_str).collect();
        let (mut failed, mut left) = (0, self.limit.unwrap_or(u64::MAX));
        while left > 0 && !stop.is_cancelled() {
            while running.try_join_next().is_some() {}
            while running.len() >= self.concurrency {
                tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    _ = running.join_next() => {}
                }
            }
            let max = (self.concurrency - running.len()).min(MAX_GRANTS);
            let how = Reserving::default().max(usize::try_from(left).unwrap_or(max).min(max));
            let how = if self.until_empty { how } else { how.wait(WAIT) };
            let how = self.lease.map_or(how.clone(), |lease| how.lease(lease));
            let granted = tokio::select! {
                biased;
                // What is granted at the moment of the stop is given back.
                granted = self.client.reserve(&queues, &how) => granted,
                () = stop.cancelled() => return Ok(()),
            };
            let pause = match granted {
                Ok(granted) if granted.messages.is_empty() && self.until_empty => match granted.held_back {
                    Some(_) => HELD_BACK,
                    // The handlers that run may make messages.
                    None => tokio::select! {
                        () = stop.cancelled() => return Ok(()),
                        ended = running.join_next() => match ended {
                            Some(_) => continue,
                            None => return Ok(()),
                        },
                    },
                },
                Ok(granted) => {
                    failed = 0;
                    left = left.saturating_sub(u64::try_from(granted.messages.len()).unwrap_or(u64::MAX));
                    for message in granted.messages {
                        (self.observer)(WorkerEvent::Leased(&message));
                        if stop.is_cancelled() {
                            running.spawn(self.clone().give_back(message));
                            continue;
                        }
                        let token = Cancellation::default();
                        let begin = || handler(message.clone(), token.clone());
                        let work = catch_unwind(AssertUnwindSafe(begin));
                        running.spawn(self.clone().hold(message, token, cut.clone(), work));
                    }
                    continue;
                }
                Err(error) if error.is_passing() || error.status.is_some_and(|status| status >= 500) => {
                    (self.observer)(WorkerEvent::Waits(&error));
                    failed += 1;
                    backoff(failed)
                }
                Err(error) => return Err(error),
            };
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = sleep(pause) => {}
            }
        }
        Ok(())
    }

    /// Nacks a message that came after the stop.
    async fn give_back(self, message: LeasedMessage) {
        self.settle(&message, &Err(Nack::not_yet(Duration::ZERO).reason(STOPS))).await;
        (self.observer)(WorkerEvent::Ended(&message));
    }

    /// Extends the lease of a message until its handler has ended, and settles it. `work` may have panicked already.
    async fn hold<F, A>(
        self,
        message: LeasedMessage,
        token: Cancellation,
        cut: Cancellation,
        work: thread::Result<F>,
    ) where
        F: Future<Output = Result<A, Nack>> + Send + 'static,
        A: Into<Ack> + Send + 'static,
    {
        if let Some(outcome) = self.outcome(&message, &token, &cut, work).await {
            self.settle(&message, &outcome).await;
        }
        (self.observer)(WorkerEvent::Ended(&message));
    }

    /// The end of the handler of a message, whose lease is extended until then. `None`: the lease is lost, and the message
    /// is not done.
    async fn outcome<F, A>(
        &self,
        message: &LeasedMessage,
        token: &Cancellation,
        cut: &Cancellation,
        work: thread::Result<F>,
    ) -> Option<Result<Ack, Nack>>
    where
        F: Future<Output = Result<A, Nack>> + Send + 'static,
        A: Into<Ack> + Send + 'static,
    {
        let lease = self.lease.unwrap_or(Duration::from_millis(message.lease_ms));
        let (mut pause, mut is_lost) = (lease / 2, false);
        // Without an answer the lease ends all the same, and another consumer may have the message.
        let mut until = Instant::now() + Duration::from_millis(message.lease_ms);
        // A set of one, which is aborted with this.
        let mut handler = JoinSet::new();
        handler.spawn(async move {
            match work {
                Ok(work) => work.await,
                Err(panicked) => resume_unwind(panicked),
            }
        });
        let ended = loop {
            let extended = async {
                sleep(pause).await;
                self.client.extend(message, Some(lease)).await
            };
            tokio::select! {
                biased;
                ended = handler.join_next() => break ended,
                () = cut.cancelled(), if !token.is_cancelled() => token.cancel(),
                () = sleep_until(until), if !token.is_cancelled() => token.cancel(),
                extended = extended, if !is_lost => match extended {
                    Ok(_) => {
                        pause = lease / 2;
                        until = Instant::now() + lease;
                    }
                    Err(error) => {
                        (self.observer)(WorkerEvent::Failed(message, &error));
                        let over = [ErrorCode::LeaseLost, ErrorCode::MessageNotFound, ErrorCode::NotFound];
                        is_lost = over.iter().any(|code| error.code == *code);
                        pause = lease / 6;
                        if is_lost {
                            token.cancel();
                        }
                    }
                },
            }
        };
        let outcome = match ended.unwrap_or_else(|| Ok(Err(Nack::default()))) {
            Ok(Ok(ack)) => Ok(ack.into()),
            // The drain is to blame, not the message.
            Ok(Err(Nack { delay_ms: None, dead: None, attempt: None, .. })) if cut.is_cancelled() => {
                Err(Nack::not_yet(Duration::ZERO).reason(STOPS))
            }
            Ok(Err(nack)) => Err(nack),
            Err(panicked) => Err(of_panic(panicked)),
        };
        // The ack of a lost lease is taken as long as nobody has been granted the message since.
        (outcome.is_ok() || !is_lost).then_some(outcome)
    }

    async fn settle(&self, message: &LeasedMessage, outcome: &Result<Ack, Nack>) {
        let settled = match outcome {
            // The work is done, whatever its result may be.
            Ok(Ack(result)) => match self.client.ack(message, result.as_ref()).await {
                Err(refused) if result.is_some() && TOO_LONG.iter().any(|code| refused.code == *code) => {
                    (self.observer)(WorkerEvent::Failed(message, &refused));
                    self.client.ack(message, None).await
                }
                settled => settled,
            },
            Err(nack) => self.client.nack(message, nack).await,
        };
        (self.observer)(match &settled {
            Ok(settled) => WorkerEvent::Settled(message, outcome.as_ref().err(), settled),
            Err(error) => WorkerEvent::Failed(message, error),
        });
    }
}

fn of_panic(panicked: JoinError) -> Nack {
    let payload = panicked.try_into_panic().ok();
    let words = payload.as_deref().and_then(|payload| {
        payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied())
    });
    Nack::default().reason(format!("panic: {}", words.unwrap_or("without words")))
}
