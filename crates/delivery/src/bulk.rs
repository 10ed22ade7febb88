//! Changes to many messages of a queue at once: jobs that survive a restart.
//!
//! A job first collects: it walks through its queue once and writes down which messages it concerns, in parts of a
//! few thousand. Then it changes those and no others: it does not meet messages again that it has moved, and leaves
//! those alone that were accepted after it began. Its record notes the progress after each step; when a node dies,
//! another one goes on from there.

mod action;
mod filter;
mod index;
mod jobs;
mod moves;
mod part;
mod record;
mod run;
mod worker;

pub use action::{BadBulk, BulkAction, BulkMove, UrlMoves};
pub use filter::{BulkFilter, DeadByReason, DeadReasons, dead_reasons, filtered_page};
pub use jobs::{BulkCount, BulkError, BulkJobs, BulkRequest, BulkView};
pub use moves::{DeadMove, MoveFailure, MovedDead, move_dead};
pub use record::{BulkCounts, BulkPhase, BulkTenant};
pub use worker::BulkWorker;
