//! The outbox in PostgreSQL: an application enqueues, cancels and postpones in a transaction of its own.
//!
//! ```text
//!  duewheel.enqueue(…)                     one drain transaction
//!        │ commit          ┌────────────────────────────────────────────────┐
//!        ▼                 ▼                                                │
//!  duewheel.outbox ──► advisory lock ─► read ─► intent ─► apply ─► delete ─►COMMIT ─► release
//!                      one drainer              durable   durable,                    rows that are gone
//!                                               here      recorded by row             are forgotten here
//! ```
//!
//! A row is read again until its delete is confirmed, and applied once: its id is recorded in the group of its effect
//! ([`duewheel::core::engine::Op::once`]). The *intent* names all rows that may be recorded, so that each is released
//! although the outcome of a commit was unknown, or the process has ended: a new connection first looks which of them are
//! still in the table.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use duewheel::{Duewheel, Policy};
use duewheel_delivery::{Stopped, Supervised};

mod database;
mod drain;
mod error;
mod figures;
mod intent;
mod row;
mod settings;

pub use database::{OutboxStatus, install, install_sql, status};
pub use error::OutboxError;
pub use figures::OutboxFigures;
pub use settings::{DrainStep, OutboxSettings};

use drain::OutboxDrain;
use intent::IntentRecord;

/// The drains of a node: one for each database. Of several nodes with the same database one drains, and the others stand
/// by. Dropping it signals them to stop.
#[derive(Debug)]
pub struct OutboxService {
    drains: Vec<(Supervised, Arc<OutboxFigures>)>,
}

impl OutboxService {
    /// Starts to drain on the runtime of the caller. `policy` is that of the wheel, and `node` the name of this node, which
    /// `duewheel pg status` shows.
    pub fn start(wheel: &Duewheel, policy: &Policy, node: &str, all: &[OutboxSettings]) -> Self {
        let start = |settings: &OutboxSettings| {
            let figures = Arc::new(OutboxFigures::new(&settings.name));
            let (wheel, policy, node) = (wheel.clone(), policy.clone(), node.to_owned());
            let (settings, theirs) = (settings.clone(), Arc::clone(&figures));
            let worker = format!("the drain of the outbox of {}", settings.name);
            let work = move |stop| {
                let figures = Arc::clone(&theirs);
                let intent = IntentRecord::new(&wheel, &policy, settings.source.clone());
                OutboxDrain::new(&wheel, intent, (&node, &settings), figures).run(stop)
            };
            (Supervised::start(worker, Arc::new(AtomicU64::new(0)), work), figures)
        };
        OutboxService { drains: all.iter().map(start).collect() }
    }

    /// The figures of each database.
    pub fn figures(&self) -> impl Iterator<Item = &OutboxFigures> {
        self.drains.iter().map(|(_, figures)| &**figures)
    }

    /// Ends the present batches, and begins no others. Batches that take longer than `deadline` are dropped: their rows
    /// are met again.
    ///
    /// # Cancel safety
    /// When the future is dropped, they end by themselves.
    pub async fn stop(self, deadline: Duration) -> Stopped {
        let mut stopped = Stopped::Complete;
        let stops: Vec<_> =
            self.drains.into_iter().map(|(drain, _)| tokio::spawn(drain.stop(deadline))).collect();
        for one in stops {
            if !matches!(one.await, Ok(Stopped::Complete)) {
                stopped = Stopped::Interrupted;
            }
        }
        stopped
    }
}
