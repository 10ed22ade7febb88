//! Figures of a drain.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Figures of a database's outbox. Counters begin at the start of this process.
#[derive(Debug, Default)]
pub struct OutboxFigures {
    database: String,
    pub(super) applied: AtomicU64,
    pub(super) replayed: AtomicU64,
    pub(super) rejected: AtomicU64,
    pub(super) errors: AtomicU64,
    pub(super) waiting: AtomicU64,
    pub(super) oldest_ms: AtomicU64,
    pub(super) up: AtomicU64,
    last_error: Mutex<Option<String>>,
}

impl OutboxFigures {
    pub(super) fn new(database: &str) -> Self {
        OutboxFigures { database: database.to_owned(), ..OutboxFigures::default() }
    }

    /// The name of the database.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Rows whose calls are done, by this node.
    pub fn applied(&self) -> u64 {
        self.applied.load(Relaxed)
    }

    /// Whether the database answers.
    pub fn is_up(&self) -> bool {
        self.up.load(Relaxed) == 1
    }

    /// Rows that wait, up to 100,001, and the age of the oldest; at the node that drains.
    pub fn waiting(&self) -> (u64, Duration) {
        (self.waiting.load(Relaxed), Duration::from_millis(self.oldest_ms.load(Relaxed)))
    }

    /// Rows that went into `duewheel.rejected`, by this node.
    pub fn rejected(&self) -> u64 {
        self.rejected.load(Relaxed)
    }

    /// The error that the drain has met and not overcome since.
    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_error(&self, error: Option<String>) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// The name, the kind and the help of each figure in Prometheus' format, with its value now.
    pub fn all(&self) -> [(&'static str, &'static str, &'static str, f64); 7] {
        let count = |counter: &AtomicU64| counter.load(Relaxed) as f64;
        [
            ("applied_total", "counter", "Rows whose calls are done, by this node.", count(&self.applied)),
            (
                "replayed_total",
                "counter",
                "Those of them that were applied before, and whose delete had not been confirmed.",
                count(&self.replayed),
            ),
            ("rejected_total", "counter", "Rows that went into duewheel.rejected.", count(&self.rejected)),
            ("errors_total", "counter", "Drains that have failed and were tried again.", count(&self.errors)),
            (
                "waiting",
                "gauge",
                "Rows that wait, up to 100001; at the node that drains.",
                count(&self.waiting),
            ),
            (
                "oldest_seconds",
                "gauge",
                "Age of the oldest of them since its call.",
                count(&self.oldest_ms) / 1_000.0,
            ),
            ("up", "gauge", "1 while the database answers.", count(&self.up)),
        ]
    }
}
