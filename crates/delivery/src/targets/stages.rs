//! What the node that pushes to a target sees of it, for people who ask another node.

use std::collections::BTreeMap;
use std::time::SystemTime;

use bytes::Bytes;
use duewheel::CallError;
use duewheel::core::time::WallMs;
use serde::{Deserialize, Serialize};

use super::shelves::{TargetView, Targets};
use crate::shelf::{NotWritten, ShelfRow};
use crate::workers::{TargetStage, TargetStatus};

/// What a target does, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetState {
    /// What it does.
    pub stage: TargetStage,
    /// Why it is paused, or the class of the last failure of an open one.
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
            // What it asked for, or five days of failures; it is being recorded.
            (None, Some(seen)) if !view.queues.is_empty() => seen,
            (None, _) => TargetState { stage: TargetStage::Active, reason: None, since: None },
        }
    }

    pub(super) fn seen(status: &TargetStatus) -> Self {
        TargetState { stage: status.stage, reason: status.reason.clone(), since: Some(status.since) }
    }
}

/// A state in its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StageRecord {
    open: bool,
    reason: Option<String>,
    since_ms: u64,
}

impl StageRecord {
    /// The record of a state. A pause is in the record of the target.
    fn of(state: &TargetState) -> Self {
        let since = state.since.map_or(0, |since| WallMs::from_system_time_up(since).0);
        let open = state.stage == TargetStage::Open;
        StageRecord { open, reason: if open { state.reason.clone() } else { None }, since_ms: since }
    }

    fn read(row: &ShelfRow) -> Option<TargetState> {
        let record: StageRecord = serde_json::from_slice(&row.body).ok()?;
        let stage = if record.open { TargetStage::Open } else { TargetStage::Active };
        Some(TargetState {
            stage,
            reason: record.reason,
            since: Some(WallMs(record.since_ms).to_system_time()),
        })
    }
}

impl Targets {
    /// What the node that pushes to this target has seen of it.
    ///
    /// # Errors
    /// No answer came.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn seen(&self, name: &str) -> Result<Option<TargetState>, CallError> {
        Ok(self.stages.read(name).await?.and_then(|row| StageRecord::read(&row)))
    }

    /// What nodes have seen of their targets, by name.
    ///
    /// # Errors
    /// No answer came.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn all_seen(&self) -> Result<BTreeMap<String, TargetState>, CallError> {
        self.stages.scan(|_, row| StageRecord::read(&row)).await
    }

    /// Records what this node sees. Returns whether it is recorded.
    pub(super) async fn note_stage(&self, name: &str, state: &TargetState) -> bool {
        let record = StageRecord::of(state);
        let Ok(body) = serde_json::to_vec(&record).map(Bytes::from) else { return true };
        let Ok(row) = self.stages.read(name).await else { return false };
        let written = match row {
            None => self.stages.create(name, body).await,
            Some(row) if row.body == body => Ok(true),
            Some(row) => self.stages.write((row.id, row.generation), body, None).await.map(|_| true),
        };
        match written {
            Ok(written) => written,
            Err(NotWritten::Lost | NotWritten::Unknown(_)) => false,
            // A full disk, for example: people may ask the node itself.
            Err(NotWritten::Refused(_) | NotWritten::NewRefused(_)) => false,
        }
    }

    /// Nothing is known any more of a target that is removed.
    pub(super) async fn forget_stage(&self, name: &str) {
        if let Ok(Some(row)) = self.stages.read(name).await {
            // What stays is shown for no target.
            drop(self.stages.remove(row.id).await);
        }
    }
}
