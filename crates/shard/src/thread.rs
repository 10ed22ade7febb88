//! The thread of a shard: it takes the runner's turns, and sleeps between them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use duewheel_core::engine::Config;

use crate::clock::Clock;
use crate::fairness::QuotaSource;
use crate::inbox::Inbox;
use crate::runner::{OpenStore, Runner, StartError, WhenFenced};
use crate::seat::Seat;
pub use crate::seat::panic_text;
use crate::shared::{DriverShared, ThreadCommand};

/// A running shard: its driver's thread, and the state shared with it.
///
/// Dropping it before [`Shard::hand_on`] stops it, because no thread would wait for it.
#[derive(Debug)]
pub struct Shard {
    inbox: Arc<Inbox>,
    shared: Arc<DriverShared>,
    handed_on: bool,
}

impl Drop for Shard {
    fn drop(&mut self) {
        if !self.handed_on {
            self.shared.wish(ThreadCommand::Stop, &self.inbox);
        }
    }
}

impl Shard {
    /// The parts of the shard, for an owner that will stop it.
    pub fn hand_on(mut self) -> (Arc<Inbox>, Arc<DriverShared>) {
        self.handed_on = true;
        (self.inbox.clone(), self.shared.clone())
    }

    /// The parts of a runner whose turns the caller takes, instead of a thread.
    pub fn of(runner: &Runner) -> Shard {
        Shard { inbox: runner.inbox.clone(), shared: runner.shared.clone(), handed_on: false }
    }

    /// Opens the store and starts the driver's thread. Blocks until everything that must be in memory is loaded.
    ///
    /// # Errors
    /// See [`StartError`]; no thread is left behind.
    pub fn start(
        opener: OpenStore,
        config: Config,
        quotas: QuotaSource,
        clock: Arc<dyn Clock>,
        fenced: WhenFenced,
    ) -> Result<Shard, StartError> {
        let mut runner = Runner::start(opener, config, clock)?.when_fenced(fenced).with_quotas(quotas);
        let shard = Shard::of(&runner);
        while let Some(nap) = runner.opening()? {
            shard.inbox.wait_for_wake(nap);
        }
        let seat = Seat::new(runner);
        #[expect(clippy::disallowed_methods, reason = "the thread of a shard is started here")]
        std::thread::Builder::new()
            .name("duewheel-shard".into())
            .spawn(move || run(&seat))
            .map_err(StartError::Thread)?;
        Ok(shard)
    }
}

/// The thread's main function.
fn run(seat: &Seat) {
    let end = match catch_unwind(AssertUnwindSafe(|| seat.drive())) {
        Ok(end) => end,
        Err(panic) => seat.panicked(&*panic),
    };
    seat.end(end);
}
