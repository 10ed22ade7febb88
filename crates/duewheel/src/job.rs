//! Jobs: messages with a type of their own, and handlers whose arguments are taken out of the message.
//!
//! A [`Job`] is a [`Draft`] with settings, and [`Workers`] registers a handler of [`crate::Queue::handle_with`] for each
//! type: messages of jobs are messages like all others.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use duewheel_core::name::QueueName;
use duewheel_shard::client::Client;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::enqueue::Draft;
use crate::handler::{HandlerBuilder, RunLimits, run_limits};
use crate::message::{HandlerOutcome, IntoOutcome, Message};
use crate::wheel::{Duewheel, HandlerError};

/// A type whose values are the messages of a queue, as JSON. `#[derive(Job)]` implements it (feature `derive`, on by
/// default); by hand a key and settings may depend on the value.
///
/// ```
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// use duewheel::{Args, Duewheel, HOUR, HandlerResult, Job, MINUTE, Meta, SECOND, State, Workers};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Job)]
/// #[job(queue = "close-order", key = "order-{number}", max_attempts = 5, lease = 2 * MINUTE)]
/// struct CloseOrder {
///     number: u64,
/// }
///
/// #[derive(Clone)]
/// struct Shop; // connections, settings: what all handlers share
///
/// async fn close(Args(order): Args<CloseOrder>, State(_shop): State<Shop>, meta: Meta) -> HandlerResult {
///     println!("closing order {}, attempt {}", order.number, meta.attempt());
///     Ok(())
/// }
///
/// let wheel = Duewheel::builder().in_memory().open().await?;
/// Workers::new(&wheel, Shop).on::<CloseOrder, _>(close).start()?;
/// wheel.job(&CloseOrder { number: 42 }).delay(48 * HOUR).enqueue().await?;
/// let cancelled = wheel.queue(CloseOrder::QUEUE).cancel_key("order-42").await?;
/// # println!("{cancelled:?}");
/// # wheel.shutdown(SECOND).await?;
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
///
/// A change of the type must be able to read messages that were enqueued before it, as a change of a table must be able
/// to read its rows: give new fields `#[serde(default)]`.
pub trait Job: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The name of the queue. A queue has messages of one type.
    const QUEUE: &'static str;

    /// The key of the message: unique among the unsettled messages of the queue. None by default.
    fn key(&self) -> Option<String> {
        None
    }

    /// Sets the options of the message, which the caller of [`Duewheel::job`] can override. None by default.
    fn options(&self, draft: Draft) -> Draft {
        draft
    }
}

impl Duewheel {
    /// A message of this job's queue, with its key and options; [`Job`] has an example.
    pub fn job<J: Job>(&self, job: &J) -> Draft {
        drafted(Some(self.client().clone()), job)
    }
}

pub(crate) fn drafted<J: Job>(client: Option<Client>, job: &J) -> Draft {
    let body = serde_json::to_vec(job).map(Bytes::from).map_err(|e| e.to_string());
    let draft = job.options(Draft::new(client, QueueName::new(J::QUEUE), body));
    match job.key() {
        Some(key) => draft.key(&key),
        None => draft,
    }
}

/// An argument of a handler of the jobs `J`, taken out of the message and the state `S` before the handler runs.
///
/// Implement it for arguments of your own:
///
/// ```
/// use duewheel::{FromMessage, HandlerOutcome, Job, Message};
///
/// struct Tenant(String);
///
/// impl<J: Job, S> FromMessage<J, S> for Tenant {
///     fn from_message(message: &Message, _state: &S) -> Result<Self, HandlerOutcome> {
///         let reason = "a message without a tenant".to_owned();
///         message.header("tenant").map(|name| Tenant(name.into())).ok_or(HandlerOutcome::Dead { reason })
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an argument of handlers of the job `{J}` with the state `{S}`",
    note = "there are `Args<{J}>`, `State<{S}>`, `Meta`, and your own types that implement `FromMessage`"
)]
pub trait FromMessage<J, S>: Sized {
    /// Takes the argument out of the message and the state.
    ///
    /// # Errors
    /// The outcome of the attempt, in place of a run of the handler.
    fn from_message(message: &Message, state: &S) -> Result<Self, HandlerOutcome>;
}

/// The job itself. A body that is not JSON of the type makes the message dead: another attempt would fail like this one.
///
/// ```compile_fail
/// # use duewheel::{Args, Duewheel, Job, Workers};
/// # #[derive(serde::Serialize, serde::Deserialize, Job)]
/// # #[job(queue = "a")]
/// # struct A;
/// # #[derive(serde::Serialize, serde::Deserialize, Job)]
/// # #[job(queue = "b")]
/// # struct B;
/// # fn example(wheel: &Duewheel) {
/// async fn handle_a(_: Args<A>) {}
/// let workers = Workers::new(wheel, ()).on::<B, _>(handle_a); // does not compile: B is another job
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Args<T>(pub T);

impl<J: Job, S> FromMessage<J, S> for Args<J> {
    fn from_message(message: &Message, _state: &S) -> Result<Self, HandlerOutcome> {
        message.json().map(Args).map_err(|dead| Err::<(), _>(dead).into_outcome())
    }
}

/// A clone of the state that was given to [`Workers::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateOf<S>(pub S);

impl<J, S: Clone> FromMessage<J, S> for StateOf<S> {
    fn from_message(_message: &Message, state: &S) -> Result<Self, HandlerOutcome> {
        Ok(StateOf(state.clone()))
    }
}

/// The message around the job: id, key, attempt, headers, lease token, and [`Message::wheel`] for further messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta(pub Message);

impl Deref for Meta {
    type Target = Message;

    fn deref(&self) -> &Message {
        &self.0
    }
}

impl<J, S> FromMessage<J, S> for Meta {
    fn from_message(message: &Message, _state: &S) -> Result<Self, HandlerOutcome> {
        Ok(Meta(message.clone()))
    }
}

/// A handler of the jobs `J` with the state `S`: an async function of up to six arguments ([`FromMessage`]) in any
/// order, whose value is of [`IntoOutcome`]. `M` tells functions with other arguments apart; write `_`.
#[diagnostic::on_unimplemented(
    message = "this is not a handler of the job `{J}` with the state `{S}`",
    note = "a handler is an async function of arguments such as `Args<{J}>`, `State<{S}>` and `Meta`, which returns what \
            `IntoOutcome` accepts, such as `HandlerResult`"
)]
pub trait JobHandler<J, S, M>: Send + Sync + 'static {
    /// Takes the arguments out of the message, and runs the handler.
    ///
    /// # Cancel safety
    /// Dropping the future drops that of the function.
    fn call(&self, message: Message, state: S) -> impl Future<Output = HandlerOutcome> + Send;
}

macro_rules! job_handler {
    ($($argument:ident),*) => {
        impl<J, S, F, Fut, $($argument),*> JobHandler<J, S, ($($argument,)*)> for F
        where
            S: Send,
            F: Fn($($argument),*) -> Fut + Send + Sync + 'static,
            Fut: Future<Output: IntoOutcome> + Send,
            $($argument: FromMessage<J, S>,)*
        {
            #[allow(unused_variables, reason = "a handler without arguments takes nothing")]
            fn call(&self, message: Message, state: S) -> impl Future<Output = HandlerOutcome> + Send {
                let run = || -> Result<Fut, HandlerOutcome> {
                    Ok(self($($argument::from_message(&message, &state)?),*))
                };
                let running = run();
                async move {
                    match running {
                        Ok(running) => running.await.into_outcome(),
                        Err(outcome) => outcome,
                    }
                }
            }
        }
    };
}

job_handler!();
job_handler!(A1);
job_handler!(A1, A2);
job_handler!(A1, A2, A3);
job_handler!(A1, A2, A3, A4);
job_handler!(A1, A2, A3, A4, A5);
job_handler!(A1, A2, A3, A4, A5, A6);

/// Registers handlers of jobs, one for each type, with a state that all of them share; [`Job`] has an example. Runs,
/// leases and the end are those of [`crate::HandlerBuilder`]; limits apply to the types that are added after them.
///
/// A state that holds a [`Duewheel`] keeps it open until its shutdown; [`Message::wheel`] of [`Meta`] does not.
#[must_use = "no handler is registered before `start`"]
pub struct Workers<S> {
    wheel: Duewheel,
    state: S,
    limits: RunLimits,
    registering: Vec<(&'static str, Registering)>,
}

/// Registers one handler.
type Registering = Box<dyn FnOnce() -> Result<(), HandlerError> + Send>;

impl<S: Clone + Send + Sync + 'static> Workers<S> {
    /// Begins without handlers. Handlers without a state have `()`.
    pub fn new(wheel: &Duewheel, state: S) -> Self {
        Workers { wheel: wheel.clone(), state, limits: RunLimits::default(), registering: Vec::new() }
    }

    run_limits!();

    /// Adds the handler of a type: `on::<CloseOrder, _>(close)`.
    pub fn on<J: Job, M: 'static>(mut self, handler: impl JobHandler<J, S, M>) -> Self {
        let (state, handler) = (self.state.clone(), Arc::new(handler));
        let builder = HandlerBuilder::new(self.wheel.queue(J::QUEUE), self.limits);
        let register: Registering = Box::new(move || {
            builder.run(move |message| {
                let (state, handler) = (state.clone(), handler.clone());
                async move { handler.call(message, state).await }
            })
        });
        self.registering.push((J::QUEUE, register));
        self
    }

    /// Registers the handlers; jobs that are ready run at once, as tasks of this runtime.
    ///
    /// # Errors
    /// See [`HandlerError`]. If two types have one queue, or the name of one is not valid, none is registered; otherwise
    /// those added before the one that failed are.
    pub fn start(self) -> Result<(), HandlerError> {
        for (n, (queue, _)) in self.registering.iter().enumerate() {
            let name = QueueName::new(queue).map_err(HandlerError::Name)?;
            if self.registering.iter().skip(n + 1).any(|(other, _)| other == queue) {
                return Err(HandlerError::Taken(name));
            }
        }
        self.registering.into_iter().try_for_each(|(_, register)| register())
    }
}

impl<S> fmt::Debug for Workers<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("types", &self.registering.len()).finish_non_exhaustive()
    }
}
