//! What a driver shares with its clients.
use duewheel_core::store::Level;
use duewheel_core::time::Now;

use crate::client::Health;

/// What a driver shares with its clients.
#[derive(Debug)]
pub struct Shared {
    level: Level,
}

impl Shared {
    pub(crate) fn level(&self) -> Level {
        self.level
    }
    pub(crate) fn now(&self) -> Now {
        Now::default()
    }
    pub(crate) fn health(&self) -> Health {
        Health { tick_age_ms: 0, trouble: None }
    }
    pub(crate) fn figures(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}
