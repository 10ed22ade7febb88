//! Targets in a store: their records, which queue goes to which one, and the workers that follow them.

mod edits;
mod record;
mod routes;
mod seal;
mod service;
mod stages;

pub use edits::{TargetView, Targets, TestedTarget};
pub use record::{ShownTarget, TargetError, TargetPause};
pub use routes::TargetChoice;
pub use seal::{BadSealKey, SealKeys, Sealing};
pub use service::TargetService;
pub use stages::TargetState;
