//! Schedules in a store: their records, the worker that looks at them, and the users' operations on them.

mod edits;
mod look;
mod message;
mod runs;
mod worker;

pub use edits::{ScheduleListed, ScheduleView, Schedules, SettingsChange};
pub use look::{PastOccurrences, ScheduleError};
pub use runs::Backfilled;
pub use worker::{ScheduleWorker, WorkerCounts};
