//! Replacements of other machines and of the clock of a wheel, for tests.
//!
//! The feature `testing` enables this module; only tests do.

pub use duewheel_cluster::testing::{MemoryCoordinator, wire};

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;

use duewheel_core::engine::Config;
use duewheel_core::policy::Policy;
use duewheel_shard::clock::Clock;
use duewheel_shard::fairness::QuotaSource;
use duewheel_shard::runner::{AfterTurn, Runner};

use crate::Duewheel;
use crate::backup::Copier;
use crate::opening::{OpenError, VolatileStore};
use crate::wheel::WheelParts;

/// The shard of a wheel in memory. It works while [`Stepped::drive`] waits for an answer, on the thread that waits.
#[derive(Debug)]
pub struct Stepped {
    /// `None` when it has ended.
    runner: Option<Runner>,
}

impl Stepped {
    /// Opens an empty wheel in memory.
    ///
    /// # Errors
    /// The policy has a ring of an impossible size.
    pub fn open(policy: Policy, clock: impl Clock, seed: u64) -> Result<(Duewheel, Stepped), OpenError> {
        let quotas = QuotaSource::default();
        let config = Config { policy: policy.clone(), seed, ..Config::default() };
        let mut runner = Runner::start(VolatileStore::Tables.opener(&policy), config, Arc::new(clock))?
            .with_quotas(quotas.clone());
        while runner.opening()?.is_some() {}
        let (client, life) = (runner.client(), runner.lifecycle());
        let wheel =
            Duewheel::new(WheelParts { client, life, copier: Copier::None, policy, quotas, node: None });
        Ok((wheel, Stepped { runner: Some(runner) }))
    }

    /// Waits for a future, and runs the shard until the future is ready.
    ///
    /// # Cancel safety
    /// Cancel safe as far as the future is: the shard continues with the next call.
    pub async fn drive<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        poll_fn(|cx| {
            // A turn that answers wakes the task, which then polls this again.
            let polled = future.as_mut().poll(cx);
            if polled.is_pending() {
                self.rest();
            }
            polled
        })
        .await
    }

    /// Takes turns until there is nothing to do; to be called after the clock was moved.
    pub fn rest(&mut self) {
        let Some(runner) = &mut self.runner else { return };
        loop {
            match runner.turn() {
                AfterTurn::Again => {}
                AfterTurn::Sleep(nap) if runner.is_woken(nap) => runner.woke(nap),
                AfterTurn::Sleep(_) => return,
                AfterTurn::Ended(end) => {
                    self.runner.take().into_iter().for_each(|runner| runner.end(end.clone()));
                    return;
                }
            }
        }
    }
}
