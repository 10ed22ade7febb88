//! The client for code without a runtime.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use duewheel_api::error_code::ErrorCode;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::call::{ApiAnswer, ApiCall, ApiStream};
use crate::client::DuewheelClient;
use crate::error::Error;
use crate::transport::Options;
use crate::types::{
    Accepted, CancelledMessage, Each, LeasedMessage, LeasedMessages, MessagePage, MessageRef, MessageView,
    Nack, NewMessage, Postponement, QueueOverview, Reserving, SettledMessage,
};
use crate::worker::{Ack, Cancellation, MessageWorker, signals};

/// The most handlers that run at a time.
const THREADS: usize = 4_096;

/// [`DuewheelClient`] for code that blocks: the same calls, and what they promise, on a runtime of its own with one
/// thread. Clones share it; many threads may use it.
///
/// # Panics
/// Every call within a runtime of tokio panics; use [`DuewheelClient`] there.
///
/// ```no_run
/// use std::time::Duration;
/// use duewheel_client::{BlockingClient, NewMessage, Options};
///
/// # fn order() -> Result<(), duewheel_client::Error> {
/// let options = Options::default().token("dw_secret")?;
/// let wheel = BlockingClient::new("https://wheel.example:7788", options)?;
/// wheel.enqueue("close-review", NewMessage::default().body("order 42").delay(Duration::from_secs(48 * 3600)))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct BlockingClient {
    client: DuewheelClient,
    runtime: Arc<ClientRuntime>,
}

/// A runtime that ends without waiting for its threads, so that tasks of another one may drop it.
#[derive(Debug)]
struct ClientRuntime(Handle, Option<Runtime>);

impl Drop for ClientRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.1.take() {
            runtime.shutdown_background();
        }
    }
}

/// The methods of the client that waits for nothing, each of which waits here.
macro_rules! waiting {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $answer:ty;)*) => {
        impl BlockingClient {
            $(#[doc = concat!("Waits for [`DuewheelClient::", stringify!($name), "`].")]
            #[doc = ""]
            #[doc = "# Errors"]
            #[doc = "The same."]
            pub fn $name(&self, $($arg: $kind),*) -> Result<$answer, Error> {
                self.runtime.0.block_on(self.client.$name($($arg),*))
            })*
        }
    };
}

waiting! {
    send(call: &ApiCall) -> ApiAnswer;
    enqueue(queue: &str, message: NewMessage) -> Accepted;
    enqueue_many(queue: &str, messages: Vec<NewMessage>) -> Each<Accepted>;
    get(message: &MessageRef) -> MessageView;
    cancel(message: &MessageRef) -> CancelledMessage;
    cancel_and_forget(message: &MessageRef) -> CancelledMessage;
    cancel_many(queue: &str, keys: &[&str]) -> Each<CancelledMessage>;
    postpone(message: &MessageRef, change: &Postponement) -> MessageView;
    fire(message: &MessageRef) -> MessageView;
    replay(id: &str, key: Option<&str>) -> Accepted;
    reserve(queues: &[&str], how: &Reserving) -> LeasedMessages;
    ack(message: &LeasedMessage, result: Option<&Value>) -> SettledMessage;
    nack(message: &LeasedMessage, nack: &Nack) -> SettledMessage;
    extend(message: &LeasedMessage, lease: Option<Duration>) -> SettledMessage;
    ack_many(messages: &[LeasedMessage], results: &[Option<Value>]) -> Each<SettledMessage>;
    nack_many(messages: &[LeasedMessage], nack: &Nack) -> Each<SettledMessage>;
    extend_many(messages: &[LeasedMessage], lease: Option<Duration>) -> Each<SettledMessage>;
    list(queue: &str, limit: usize, after: Option<&str>, filter: &[(&str, &str)]) -> MessagePage;
    queue(queue: &str) -> QueueOverview;
    configure(queue: &str, settings: &Value) -> Value;
    redrive(queue: &str, ids: Option<&[&str]>) -> u64;
    advance(by: Duration) -> Value;
}

impl BlockingClient {
    /// A client; nothing is sent yet.
    ///
    /// # Errors
    /// The address is none, or the system gives no thread.
    pub fn new(address: &str, options: Options) -> Result<BlockingClient, Error> {
        let client = DuewheelClient::new(address, options)?;
        let mut builder = Builder::new_multi_thread();
        let builder = builder.worker_threads(1).max_blocking_threads(THREADS).thread_name("duewheel-client");
        let runtime = builder.enable_all().build();
        let runtime = runtime.map_err(|error| Error::new(ErrorCode::Internal, error.to_string()))?;
        Ok(BlockingClient {
            client,
            runtime: Arc::new(ClientRuntime(runtime.handle().clone(), Some(runtime))),
        })
    }

    /// The JSON that any call is answered with, sent again like all others.
    ///
    /// # Errors
    /// The same as for all calls.
    pub fn call<T: DeserializeOwned>(&self, call: ApiCall) -> Result<T, Error> {
        self.runtime.0.block_on(self.client.call(call))
    }

    /// The successful answer to one attempt as its body comes, or else all of the refusal.
    ///
    /// # Errors
    /// There is no answer.
    pub fn open(&self, call: &ApiCall) -> Result<Result<BlockingBody, ApiAnswer>, Error> {
        let stream = self.runtime.0.block_on(self.client.open(call))?;
        if !stream.is_success() {
            return Ok(Err(self.runtime.0.block_on(self.client.collect(stream))));
        }
        Ok(Ok(BlockingBody { stream, left: Bytes::new(), runtime: self.runtime.clone() }))
    }

    /// A worker of these queues, for [`BlockingClient::work`].
    pub fn worker(&self, queues: &[&str]) -> MessageWorker {
        MessageWorker::new(&self.client, queues)
    }

    /// Returns a cancellation for [`BlockingClient::work`] that SIGTERM and SIGINT cancel, as long as a clone of this
    /// client lives. From the call on these do not end the process.
    ///
    /// # Errors
    /// `internal`: the system refuses.
    pub fn terminated(&self) -> Result<Cancellation, Error> {
        let _within = self.runtime.0.enter();
        let signals = signals().map_err(|error| Error::new(ErrorCode::Internal, error.to_string()))?;
        let stop = Cancellation::default();
        let signalled = stop.clone();
        self.runtime.0.spawn(async move {
            signals.await;
            signalled.cancel();
        });
        Ok(stop)
    }

    /// Works as [`MessageWorker::run`] does, for a handler that blocks: each run has a thread.
    ///
    /// # Errors
    /// The same.
    pub fn work<H, A>(&self, worker: &MessageWorker, stop: &Cancellation, handler: H) -> Result<(), Error>
    where
        H: Fn(&LeasedMessage, &Cancellation) -> Result<A, Nack> + Send + Sync + 'static,
        A: Into<Ack> + Send + 'static,
    {
        let handler = Arc::new(handler);
        self.runtime.0.block_on(worker.run(stop, move |message, token| {
            let handler = handler.clone();
            let run = tokio::task::spawn_blocking(move || handler(&message, &token));
            async move { run.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())) }
        }))
    }
}

/// The body of an answer as it comes.
#[derive(Debug)]
pub struct BlockingBody {
    stream: ApiStream,
    left: Bytes,
    runtime: Arc<ClientRuntime>,
}

impl Read for BlockingBody {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.left.is_empty() {
            match self.runtime.0.block_on(self.stream.next()).map_err(io::Error::other)? {
                Some(bytes) => self.left = bytes,
                None => return Ok(0),
            }
        }
        let count = into.len().min(self.left.len());
        self.left.copy_to_slice(&mut into[..count]);
        Ok(count)
    }
}
