//! Workers: a handler runs for each message.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use duewheel_api::error_code::ErrorCode;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};

use crate::client::DuewheelClient;
use crate::error::Error;
use crate::retry::backoff;
use crate::types::{LeasedMessage, Nack, Reserving, bad_request};

/// How long one reserve waits for messages.
const WAIT: Duration = Duration::from_secs(20);
/// The time that handlers have to give their messages back after the end of a drain.
const LAST: Duration = Duration::from_secs(2);

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
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
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

type OnError = dyn Fn(&Error, Option<&LeasedMessage>) + Send + Sync;

/// Leases messages of its queues and runs a handler for each. It waits in one reserve over all queues, asks for no more
/// than it can work on, and extends each lease at half its time while the handler runs.
///
/// A handler that returns `Ok` acks the message, with `()` or a result in JSON; a [`Nack`], which every error becomes by
/// `?`, nacks it. A panic is a failed attempt. The handler's [`Cancellation`] says that the lease is lost, so that another
/// consumer may have the message, or that a drain has waited long enough.
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
    on_error: Arc<OnError>,
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
            on_error: Arc::new(|_, _| {}),
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

    /// Calls this at errors outside of handlers, such as lost leases.
    #[must_use]
    pub fn on_error(
        self,
        act: impl Fn(&Error, Option<&LeasedMessage>) + Send + Sync + 'static,
    ) -> MessageWorker {
        MessageWorker { on_error: Arc::new(act), ..self }
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
        let mut failed = 0;
        loop {
            while running.try_join_next().is_some() {}
            while running.len() >= self.concurrency {
                tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    _ = running.join_next() => {}
                }
            }
            let how = Reserving::default().max(self.concurrency - running.len()).wait(WAIT);
            let how = self.lease.map_or(how.clone(), |lease| how.lease(lease));
            let granted = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                granted = self.client.reserve(&queues, &how) => granted,
            };
            match granted {
                Ok(granted) => {
                    failed = 0;
                    for message in granted.messages {
                        let token = Cancellation::default();
                        let work = handler(message.clone(), token.clone());
                        running.spawn(self.clone().hold(message, token, cut.clone(), work));
                    }
                }
                Err(error) if error.is_passing() || error.status.is_some_and(|status| status >= 500) => {
                    (self.on_error)(&error, None);
                    tokio::select! {
                        () = stop.cancelled() => return Ok(()),
                        () = sleep(backoff(failed)) => failed += 1,
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Extends the lease of a message until its handler has ended, and settles it.
    async fn hold<F, A>(self, message: LeasedMessage, token: Cancellation, cut: Cancellation, work: F)
    where
        F: Future<Output = Result<A, Nack>> + Send + 'static,
        A: Into<Ack> + Send + 'static,
    {
        let lease = self.lease.unwrap_or(Duration::from_millis(message.lease_ms));
        let (mut pause, mut is_lost) = (lease / 2, false);
        // A set of one, which is aborted with this.
        let mut handler = JoinSet::new();
        handler.spawn(work);
        let ended = loop {
            let extended = async {
                sleep(pause).await;
                self.client.extend(&message, Some(lease)).await
            };
            tokio::select! {
                biased;
                ended = handler.join_next() => break ended,
                () = cut.cancelled(), if !token.is_cancelled() => token.cancel(),
                extended = extended, if !is_lost => match extended {
                    Ok(_) => pause = lease / 2,
                    Err(error) => {
                        (self.on_error)(&error, Some(&message));
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
        if is_lost {
            return;
        }
        let settled = match ended.unwrap_or_else(|| Ok(Err(Nack::default()))) {
            Ok(Ok(ack)) => self.client.ack(&message, ack.into().0.as_ref()).await,
            // The drain is to blame, not the message.
            Ok(Err(nack)) if cut.is_cancelled() && nack.dead.is_none() => {
                let back = Nack::not_yet(Duration::ZERO).reason("the worker stops");
                self.client.nack(&message, &back).await
            }
            Ok(Err(nack)) => self.client.nack(&message, &nack).await,
            Err(panicked) => self.client.nack(&message, &of_panic(panicked)).await,
        };
        if let Err(error) = settled {
            (self.on_error)(&error, Some(&message));
        }
    }
}

fn of_panic(panicked: JoinError) -> Nack {
    let payload = panicked.try_into_panic().ok();
    let words = payload.as_deref().and_then(|payload| {
        payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied())
    });
    Nack::default().reason(format!("panic: {}", words.unwrap_or("without words")))
}
