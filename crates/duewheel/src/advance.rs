//! Time in tests: a clock that goes from event to event, and waits for the consumers at each.

use std::sync::Arc;
use std::time::Duration;

use duewheel_core::engine::Op;
use duewheel_core::engine::QueueView;
use duewheel_core::policy::GrantLimits;
use duewheel_core::record::Pause;
use duewheel_shard::activity::Activity;
use duewheel_shard::clock::{Clock, VirtualClock};
use duewheel_shard::error::CallError;
use duewheel_shard::local::LocalShard;

use crate::wheel::Duewheel;

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
