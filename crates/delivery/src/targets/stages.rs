//! The state of a target at the node that pushes to it, for users who ask another node.

use std::collections::BTreeMap;
use std::time::SystemTime;

use bytes::Bytes;
use duewheel::CallError;
use duewheel::core::time::{WallMs, ceil_ms};
use serde::{Deserialize, Serialize};

use super::edits::{RowMark, TargetView, Targets};
use crate::limits::{FAILING_NOTED, PAUSE_LEAST};
use crate::records::{NotWritten, StoredRecord};
use crate::workers::{FailingTarget, TargetStage, TargetStatus};

/// The stage of a target, the reason for it, and its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetState {
    /// Whether messages are delivered to it.
    pub stage: TargetStage,
    /// Why it is paused, or the class of the last failure of an open or slowed one.
    pub reason: Option<String>,
    /// Since when, if that is known.
    pub since: Option<SystemTime>,
}

impl TargetState {
    /// A target as its record says. `seen`: what the node that pushes to it sees, if one does.
    pub fn of(view: &TargetView, seen: Option<TargetState>) -> Self {
        match (&view.paused, seen) {
            (Some(pause), _) => TargetState {
                stage: TargetStage::Paused,
                reason: Some(pause.reason.clone()),
                since: Some(WallMs(pause.at_ms).to_system_time()),
            },
            // The node may have paused the target, at its request or after failures, before the record says so.
            (None, Some(seen)) if !view.queues.is_empty() => seen,
            (None, _) => TargetState { stage: TargetStage::Active, reason: None, since: None },
        }
    }
}

/// The unit of the beginning of a time of failures.
const MINUTE: u64 = 60_000;

/// The stage of a target, as recorded by the node that pushes to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StageRecord {
    open: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    slowed: bool,
    reason: Option<String>,
    since_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failing: Option<FailingRecord>,
}

/// A time of nothing but failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FailingRecord {
    since_ms: u64,
    failures: u32,
    /// The version of the target that has failed: the id and generation of its record.
    of: (u64, u32),
}

impl StageRecord {
    /// The record of what a node sees. A pause is in the record of the target. `row`: the record of the target, which an
    /// edit, a pause and a resume change; then failures begin anew.
    pub(super) fn of(status: &TargetStatus, row: Option<RowMark>, now: WallMs) -> Self {
        let lasts = |failing: &FailingTarget| now.0.saturating_sub(failing.since.0) >= ceil_ms(FAILING_NOTED);
        let failing = status.failing.filter(lasts);
        let open = status.stage == TargetStage::Open;
        // A target that asks for time now and then costs no writes either.
        let slowed = status.stage == TargetStage::Slowed && failing.is_some();
        let failing = failing.zip(row).map(|(failing, (id, generation))| FailingRecord {
            // By whole minutes, because the two clocks need not run alike.
            since_ms: failing.since.0 / MINUTE * MINUTE,
            // More are not needed for a pause, and would be written again and again.
            failures: failing.failures.min(PAUSE_LEAST),
            of: (id.0, generation),
        });
        let since_ms = WallMs::from_system_time_up(status.since).0;
        let reason = status.reason.clone().filter(|_| open || slowed);
        StageRecord { open, slowed, reason, since_ms, failing }
    }

    fn read(row: &StoredRecord) -> Option<TargetState> {
        let record: StageRecord = serde_json::from_slice(&row.body).ok()?;
        let stage = if record.open {
            TargetStage::Open
        } else if record.slowed {
            TargetStage::Slowed
        } else {
            TargetStage::Active
        };
        Some(TargetState {
            stage,
            reason: record.reason,
            since: Some(WallMs(record.since_ms).to_system_time()),
        })
    }
}

impl Targets {
    /// Returns the state of a target that the node pushing to it has recorded.
    ///
    /// # Errors
    /// No answer came.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn seen(&self, name: &str) -> Result<Option<TargetState>, CallError> {
        Ok(self.stages.read(name).await?.and_then(|row| StageRecord::read(&row)))
    }

    /// Returns the recorded states of all targets, by name.
    ///
    /// # Errors
    /// No answer came.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn all_seen(&self) -> Result<BTreeMap<String, TargetState>, CallError> {
        self.stages.scan(|_, row| StageRecord::read(&row)).await
    }

    /// Since when this version of a target has done nothing but fail, as far as it is recorded.
    pub(super) async fn failing(&self, name: &str, row: RowMark) -> Option<FailingTarget> {
        let read = self.stages.read(name).await.ok()??;
        let record: StageRecord = serde_json::from_slice(&read.body).ok()?;
        let FailingRecord { since_ms, failures, of } = record.failing?;
        (of == (row.0.0, row.1)).then_some(FailingTarget { since: WallMs(since_ms), failures })
    }

    /// Records what this node sees. Returns whether it is recorded.
    pub(super) async fn note_stage(&self, name: &str, record: &StageRecord) -> bool {
        let Ok(body) = serde_json::to_vec(record).map(Bytes::from) else { return true };
        let Ok(row) = self.stages.read(name).await else { return false };
        let written = match row {
            None => self.stages.create(name, body).await,
            Some(row) if row.body == body => Ok(true),
            Some(row) => self.stages.write((row.id, row.generation), body, None, None).await.map(|_| true),
        };
        match written {
            Ok(written) => written,
            Err(NotWritten::Lost | NotWritten::Unknown(_)) => false,
            // A full disk, for example: people may ask the node itself.
            Err(NotWritten::Refused(_) | NotWritten::NewRefused(_)) => false,
        }
    }

    /// Forgets the stage of a target that was changed or removed.
    pub(super) async fn forget_stage(&self, name: &str) {
        if let Ok(Some(row)) = self.stages.read(name).await {
            // If this fails, the former stage stays until a node overwrites it.
            drop(self.stages.remove(row.id).await);
        }
    }
}

#[cfg(test)]
mod tests {
    use duewheel::core::MessageId;

    use super::*;
    use crate::pusher::PushCounts;

    #[test]
    fn failure_period_is_noted_coarsely() {
        let staged = |stage: TargetStage, since_ms: u64, failures: u32| {
            let failing = Some(FailingTarget { since: WallMs(since_ms), failures });
            let status = TargetStatus {
                stage,
                reason: None,
                since: SystemTime::UNIX_EPOCH,
                counts: PushCounts::default(),
                in_flight: 0,
                failing,
            };
            StageRecord::of(&status, Some((MessageId(1), 1)), WallMs(100 * MINUTE))
        };
        let noted = |since_ms, failures| staged(TargetStage::Active, since_ms, failures);
        let slowed = |since_ms| staged(TargetStage::Slowed, since_ms, 3).slowed;
        assert_eq!((slowed(91 * MINUTE), slowed(90 * MINUTE)), (false, true));
        let young = noted(91 * MINUTE, 50);
        assert_eq!(young.failing, None);
        let old = noted(90 * MINUTE, 3);
        assert_eq!(old.failing, Some(FailingRecord { since_ms: 90 * MINUTE, failures: 3, of: (1, 1) }));
        assert_eq!(noted(80 * MINUTE, 10), noted(80 * MINUTE + 59_999, 5_000));
        let read: StageRecord =
            serde_json::from_slice(br#"{"open":true,"reason":"x","since_ms":7}"#).unwrap();
        assert_eq!(read.failing, None, "a record of an earlier build");
    }
}
