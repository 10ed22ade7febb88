//! Delivery in a server: one worker for each target in the whole cluster, and the attempts that it keeps.

pub(crate) mod attempts;
mod node;
mod seat;
mod ticket;

pub use attempts::{DeliveryAttempt, deliveries};
pub use node::{PushWorkers, PushWorkersStart};
pub use seat::{TargetStage, TargetStatus};
