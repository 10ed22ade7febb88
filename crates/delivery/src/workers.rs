//! Delivery in a server: one worker for each target in the whole cluster, and the attempts that are kept: those of a
//! message as its detail, those of a target in memory.

pub(crate) mod attempts;
pub(crate) mod latest;
mod node;
mod runner;
mod ticket;

pub use attempts::{DeliveryAttempt, deliveries};
pub use latest::TargetAttempt;
pub use node::{PushWorkers, PushWorkersStart};
pub use runner::{BookReport, FailingTarget, TargetBook, TargetEntry, TargetStage, TargetStatus};
pub use ticket::{Ticket, Tickets};
