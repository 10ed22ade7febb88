//! Bridges: consumers and producers of the library that connect it to the stack that people have.

#![warn(clippy::missing_errors_doc)]

mod bridge;
#[cfg(feature = "conformance")]
pub mod conformance;
mod figures;
mod intake;
pub mod outbox;
mod outlet;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
mod report;
mod seam;
mod settings;

pub use bridge::{BridgePause, BridgeService, BridgeView, PauseError};
pub use figures::BridgeFigures;
pub use report::{BridgePlan, PlannedChange, ProbeStep};
pub use seam::{ArrivalVerdict, BridgeArrival, BridgeConnector, Intent, SeamError, SendFate, Sink, Source};
pub use settings::{BadBridge, BridgeKind, BridgeSettings};
