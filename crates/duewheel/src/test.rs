//! Tests of handlers and of code that enqueues, without a server and without waiting.
//!
//! ```
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
//! use duewheel::test::{assert_enqueued, message, run_handler, wheel};
//! use duewheel::{Args, HOUR, HandlerOutcome, HandlerResult, Job, Meta};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Debug, Serialize, Deserialize, Job)]
//! #[job(queue = "remind", key = "order-{order}")]
//! struct Remind {
//!     order: u64,
//! }
//!
//! async fn remind(Args(job): Args<Remind>, meta: Meta) -> HandlerResult {
//!     if meta.attempt() > 1 {
//!         return Ok(());
//!     }
//!     meta.wheel()?.job(&Remind { order: job.order + 1 }).delay(48 * HOUR).enqueue().await?;
//!     Ok(())
//! }
//!
//! // A handler by itself, with a message that no wheel has granted:
//! let second = message(&Remind { order: 42 }).attempt(2);
//! assert_eq!(run_handler(remind, (), second).await, HandlerOutcome::Ack);
//!
//! // With a wheel in memory, whose time stands still:
//! let wheel = wheel().await;
//! let first = message(&Remind { order: 42 }).wheel(&wheel);
//! assert_eq!(run_handler(remind, (), first).await, HandlerOutcome::Ack);
//! assert_enqueued!(wheel, Remind { order: 43 });
//! assert_enqueued!(wheel, Remind { order: 43 }, in 48 * HOUR);
//!
//! // And with its handlers, each at its time:
//! duewheel::Workers::new(&wheel, ()).on::<Remind, _>(remind).start().unwrap();
//! wheel.advance(48 * HOUR).await;
//! assert_enqueued!(wheel, Remind { order: 44 }, in 48 * HOUR);
//! # });
//! ```

use std::fmt::Write as _;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use duewheel_core::Epoch;
use duewheel_core::engine::{Grant, View};
use duewheel_core::id::{LeaseToken, MessageId};
use duewheel_core::message::State;
use duewheel_core::time::{WallMs, ceil_ms};
use duewheel_shard::clock::VirtualClock;
use serde_json::Value;

pub use crate::assert_enqueued;
use crate::job::{Job, JobHandler, drafted};
use crate::message::{HandlerOutcome, Message};
use crate::wheel::{Duewheel, WeakWheel};

/// A wheel in memory whose time stands still: a [`Duewheel`] with its [`VirtualClock`].
#[derive(Clone, Debug)]
pub struct TestWheel {
    wheel: Duewheel,
    clock: VirtualClock,
}

/// Opens an empty wheel at the begin of 2026.
///
/// # Panics
/// A thread cannot be started.
pub async fn wheel() -> TestWheel {
    let clock = VirtualClock::at_2026();
    let opened = Duewheel::builder().in_memory().clock(clock.clone()).seed(1).open().await;
    TestWheel { wheel: opened.unwrap_or_else(|error| panic!("no wheel for a test: {error}")), clock }
}

impl TestWheel {
    /// Lets time pass, and runs the handlers of all that is due on the way, each at its time; see [`Duewheel::advance`].
    ///
    /// # Panics
    /// See [`crate::AdvanceError`].
    ///
    /// # Cancel safety
    /// When the future is dropped, the clock stays where it is by then.
    pub async fn advance(&self, by: Duration) {
        let advanced = self.wheel.advance(&self.clock, by).await;
        advanced.unwrap_or_else(|error| panic!("the clock did not get there: {error}"));
    }

    /// The clock of the wheel.
    pub fn clock(&self) -> &VirtualClock {
        &self.clock
    }
}

impl Deref for TestWheel {
    type Target = Duewheel;

    fn deref(&self) -> &Duewheel {
        &self.wheel
    }
}

/// A message of this job as a handler receives it, in its first attempt and on time, of no wheel.
///
/// # Panics
/// The job does not serialise to JSON, or its queue, key or options are not valid.
pub fn message<J: Job>(job: &J) -> TestMessage<J> {
    let made = drafted(None, job).content.unwrap_or_else(|error| panic!("no message for a test: {error}"));
    let now = WallMs::from_system_time_up(VirtualClock::at_2026().now());
    let lease_ms = made.options.lease_ms.unwrap_or(30_000);
    let priority = made.priority.unwrap_or(1024);
    let grant = Grant {
        message: Arc::new(made.into_content(MessageId(1), now)),
        attempt: 1,
        priority,
        due_at: now,
        token: LeaseToken { epoch: Epoch(1), counter: 1 },
        lease_until: WallMs(now.0.saturating_add(lease_ms)),
        lease_ms,
        lateness_ms: 0,
        generation: 1,
        late: false,
    };
    TestMessage { grant, wheel: WeakWheel::default(), job: PhantomData }
}

/// A message for [`run_handler`], made by [`message()`].
#[derive(Debug)]
pub struct TestMessage<J> {
    grant: Grant,
    wheel: WeakWheel,
    job: PhantomData<fn() -> J>,
}

impl<J> TestMessage<J> {
    /// Makes this the number of deliveries; 1 by default.
    #[must_use]
    pub fn attempt(mut self, n: u32) -> Self {
        self.grant.attempt = n;
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        Arc::make_mut(&mut self.grant.message).headers.push((name.into(), value.into()));
        self
    }

    /// Makes this the time from the due time to the delivery, rounded up to a millisecond; none by default.
    #[must_use]
    pub fn lateness(mut self, by: Duration) -> Self {
        self.grant.lateness_ms = ceil_ms(by);
        self
    }

    /// Makes this the wheel that [`Message::wheel`] returns, as long as there is a handle of it.
    #[must_use]
    pub fn wheel(mut self, wheel: &Duewheel) -> Self {
        self.wheel = wheel.downgrade();
        self
    }

    /// The message, for a handler that takes it whole.
    pub fn build(self) -> Message {
        Message::new(self.grant, self.wheel)
    }
}

/// Runs a handler once, here, as [`crate::Workers`] would, and returns how the attempt ends.
///
/// # Panics
/// The handler does.
///
/// # Cancel safety
/// Dropping the future drops that of the handler.
pub async fn run_handler<J: Job, S, M>(
    handler: impl JobHandler<J, S, M>,
    state: S,
    message: TestMessage<J>,
) -> HandlerOutcome {
    handler.call(message.build(), state).await
}

/// Asserts that a message of this job waits or runs; with `in` and a delay, that it is due in exactly this time by the
/// wheel's clock, which therefore should stand. Returns its [`View`]. [`crate::test`] has an example.
///
/// # Panics
/// There is no such message; the panic lists those of the queue.
#[macro_export]
macro_rules! assert_enqueued {
    ($wheel:expr, $job:expr $(,)?) => {
        match $crate::test::find_enqueued(&$wheel, &$job, None).await {
            Ok(view) => view,
            Err(there) => panic!("{there}"),
        }
    };
    ($wheel:expr, $job:expr, in $delay:expr $(,)?) => {
        match $crate::test::find_enqueued(&$wheel, &$job, Some($delay)).await {
            Ok(view) => view,
            Err(there) => panic!("{there}"),
        }
    };
}

/// The message that [`assert_enqueued!`] asserts, or what is there instead.
#[doc(hidden)]
pub async fn find_enqueued<J: Job>(
    wheel: &Duewheel,
    job: &J,
    due_in: Option<Duration>,
) -> Result<View, String> {
    let wanted = serde_json::to_value(job).map_err(|error| error.to_string())?;
    let mut there = format!("{} has no message {wanted}", J::QUEUE);
    if let Some(due_in) = due_in {
        let _ = write!(there, " that is due in {due_in:?}");
    }
    let queue = wheel.queue(J::QUEUE);
    let mut pages = queue.list(None);
    loop {
        let page = pages.next(1_000).await.map_err(|error| error.to_string())?;
        if page.is_empty() {
            return Err(there);
        }
        for view in page {
            let body = &view.message.body;
            let waits = !matches!(view.state, State::Dead | State::Done);
            let is_due = due_in.is_none_or(|due_in| view.due_in_ms == ceil_ms(due_in));
            if waits && is_due && serde_json::from_slice::<Value>(body).is_ok_and(|body| body == wanted) {
                return Ok(view);
            }
            let due = view.due_in();
            let body = String::from_utf8_lossy(body);
            let _ = write!(there, "\n  there is {body}, {:?}, due in {due:?}", view.state);
        }
    }
}
