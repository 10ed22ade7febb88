//! The replicas and syncs that a change waits for, and the level that it has reached.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use duewheel_core::store::{ErrorKind, Level, StoreError};
use duewheel_store_medium::millis;
use redis::{Pipeline, Value};

use crate::options::{Options, WaitFor};
use crate::reign;
use crate::value;
use crate::wire::{Begun, RequestFailure};

/// The demands of the options on each change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitRequirements {
    replicas: u32,
    wait_for: WaitFor,
    timeout_ms: u64,
}

/// The servers that have a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplicationState {
    /// The number of replicas that have it, or that follow closely where no replica is awaited.
    replicas: u64,
    /// Whether the master itself has certainly synced it.
    synced: bool,
}

impl WaitRequirements {
    pub(crate) fn of(options: &Options) -> Self {
        let timeout_ms = millis(options.wait_timeout);
        WaitRequirements { replicas: options.wait, wait_for: options.wait_for, timeout_ms }
    }

    /// Adds the wait to a change.
    pub(crate) fn ask(self, ask: &mut Pipeline) {
        match self.wait_for {
            WaitFor::Synced => {
                ask.cmd("WAITAOF").arg(1).arg(self.replicas).arg(self.timeout_ms);
            }
            WaitFor::Received if self.replicas > 0 => {
                ask.cmd("WAIT").arg(self.replicas).arg(self.timeout_ms);
            }
            WaitFor::Received => {}
        }
    }

    /// Reads whether the script has applied, and which servers have the change. Counts a failed wait.
    pub(crate) fn read(
        self,
        values: Vec<Value>,
        failures: &AtomicU64,
    ) -> Result<ReplicationState, RequestFailure> {
        let mut values = values.into_iter();
        let reply = value::some(values.next(), "apply")?;
        // The script refuses before it changes anything.
        let following =
            reign::judge_applied(reply).map_err(|error| RequestFailure { error, begun: Begun::No })?;
        let waited = values.next();
        let (synced, have) = match (self.wait_for, waited) {
            (WaitFor::Received, None) => return Ok(ReplicationState { replicas: following, synced: false }),
            (WaitFor::Received, Some(have)) => (None, value::number(have, "WAIT")?.unwrap_or(0)),
            (WaitFor::Synced, waited) => {
                let mut both = value::list(value::some(waited, "WAITAOF")?, "WAITAOF")?.into_iter();
                let mut next = || value::number(both.next().unwrap_or_default(), "WAITAOF");
                (Some(next()?.unwrap_or(0) > 0), next()?.unwrap_or(0))
            }
        };
        if synced == Some(false) || have < u64::from(self.replicas) {
            failures.fetch_add(1, SeqCst);
            let wanted = self.replicas;
            let what = match synced {
                None => format!("{have} of {wanted} replicas have the change; whether it stays is unknown"),
                Some(synced) => format!(
                    "{have} of {wanted} replicas have synced the change, and the master {}; whether it stays is unknown",
                    if synced { "has" } else { "has not" }
                ),
            };
            return Err(StoreError::new(ErrorKind::Unavailable, what).into());
        }
        // If no replica is required, those that follow closely count as they do without waiting.
        let replicas = if self.replicas == 0 { following } else { have };
        Ok(ReplicationState { replicas, synced: synced == Some(true) })
    }
}

impl ReplicationState {
    /// The level of a change that would have the level `alone` at its master alone. A master without an append-only
    /// file restarts empty, and its replicas then also empty themselves.
    pub(crate) fn level(self, alone: Level) -> Level {
        let alone = if self.synced { Level::Fsync } else { alone };
        if alone == Level::Memory || self.replicas == 0 { alone } else { Level::BestEffortReplicated }
    }

    /// The reach by replicas that follow, when nothing is waited for.
    pub(crate) fn following(replicas: u64) -> Self {
        ReplicationState { replicas, synced: false }
    }
}
