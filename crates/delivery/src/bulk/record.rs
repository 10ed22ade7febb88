//! The record of a job: one JSON document, whose key is the job's id.

use std::sync::Arc;

use bytes::Bytes;
use duewheel::core::act::Act;
use duewheel::core::engine::View;
use duewheel::core::message::{Headers, State};
use serde::{Deserialize, Serialize};

use super::action::{BulkAction, UrlMoves};
use super::filter::BulkFilter;

/// The format that this version writes.
const FORMAT: u32 = 1;

/// All that is durable of a job, besides its parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BulkRecord {
    format: u32,
    pub(super) tenant: BulkTenant,
    pub(super) queue: String,
    pub(super) filter: BulkFilter,
    pub(super) action: BulkAction,
    /// Most messages a second.
    pub(super) rate: Option<u32>,
    /// What becomes of messages with URLs, as it was decided when the job began.
    #[serde(default, skip_serializing_if = "UrlMoves::is_default")]
    pub(super) urls: UrlMoves,
    /// The largest number of messages that may match; with more the job ends before it changes any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expect: Option<u64>,
    /// How long removed messages are kept for the job to be undone, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) keep_ms: Option<u64>,
    /// The act that the job does, until its record has the outcome ([`Act::texts`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) act: Headers,
    /// Whether it was cancelled while it changed messages: the last ones may not be counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_cut: bool,
    /// When it began, in ms since 1970.
    pub(super) created: u64,
    pub(super) phase: BulkPhase,
    /// When it ended, in ms since 1970.
    pub(super) ended: Option<u64>,
    pub(super) counts: BulkCounts,
    /// The walk through the queue that is under way.
    #[serde(default, skip_serializing_if = "BulkWalk::is_first")]
    pub(super) walk: BulkWalk,
    /// How far this walk has come; `None`: it has not begun.
    pub(super) position: Option<String>,
    /// The number of parts that were written.
    pub(super) parts: u32,
    /// The part that is worked on, and how many of its messages are done with.
    pub(super) at: (u32, usize),
}

/// A walk of a job through its queue.
///
/// The list is in due order. A message that others let be due earlier, from ahead of a walk to behind it, is not met by
/// that walk; the second one meets it where it is then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum BulkWalk {
    /// The first walk meets every message that stays where it is.
    #[default]
    First,
    /// The second walk meets the messages that moved during the first one.
    Second,
}

impl BulkWalk {
    fn is_first(&self) -> bool {
        *self == BulkWalk::First
    }
}

/// How far a job has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BulkPhase {
    /// The job has not been worked on: it is the turn of others of its tenant.
    Waiting,
    /// The job writes down which messages it concerns.
    Collecting,
    /// The job changes the messages that it has written down.
    Running,
    /// The job has ended.
    Done,
    /// The job was cancelled before its end.
    Cancelled,
}

/// The number of messages of a job so far, by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BulkCounts {
    /// Messages that the filter means and the action can change.
    pub matched: u64,
    /// The number of messages that were changed.
    pub done: u64,
    /// The number of messages that were left to the consumer that had leased them.
    pub leased: u64,
    /// The number of messages that others had changed or removed since the job began; they are left alone.
    pub changed: u64,
    /// The number of messages that could not be changed, because their key is taken, for example.
    pub refused: u64,
}

impl BulkPhase {
    /// The name of the phase.
    pub fn as_str(self) -> &'static str {
        match self {
            BulkPhase::Waiting => "waiting",
            BulkPhase::Collecting => "collecting",
            BulkPhase::Running => "running",
            BulkPhase::Done => "done",
            BulkPhase::Cancelled => "cancelled",
        }
    }

    /// Whether nothing follows.
    pub fn is_end(self) -> bool {
        matches!(self, BulkPhase::Done | BulkPhase::Cancelled)
    }
}

impl BulkRecord {
    pub(super) fn new(
        tenant: BulkTenant,
        queue: String,
        filter: BulkFilter,
        action: BulkAction,
        rate: Option<u32>,
        created: u64,
    ) -> Self {
        BulkRecord {
            format: FORMAT,
            tenant,
            queue,
            filter,
            action,
            rate,
            urls: UrlMoves::default(),
            expect: None,
            keep_ms: None,
            act: Headers::new(),
            is_cut: false,
            created,
            phase: BulkPhase::Waiting,
            ended: None,
            counts: BulkCounts::default(),
            walk: BulkWalk::First,
            position: None,
            parts: 0,
            at: (0, 0),
        }
    }

    /// Reads a record; the error says in words why it cannot be read.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let unreadable = |error: serde_json::Error| error.to_string();
        let Format { format } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if format != FORMAT {
            return Err(format!("its record has format {format}; this version reads {FORMAT}"));
        }
        serde_json::from_slice(bytes).map_err(unreadable)
    }

    pub(super) fn bytes(&self) -> Bytes {
        // Its types have text keys and finite numbers only, so this cannot fail.
        serde_json::to_vec(self).map(Bytes::from).unwrap_or_default()
    }

    /// Whether a message that the filter means is one of the job: by the clock of who accepted it, it was there before.
    pub(super) fn means(&self, view: &View) -> bool {
        // It has become ready since the first walk began.
        let is_newly_ready = self.walk == BulkWalk::Second
            && self.filter.state == Some(State::Ready)
            && view.due_at.0 > self.created;
        let is_taken = view.lease_until.is_some() || self.action.takes(view.state, &self.filter);
        view.message.enqueued_at.0 <= self.created && is_taken && !is_newly_ready
    }

    pub(super) fn end(&mut self, phase: BulkPhase, now: u64) {
        (self.phase, self.ended) = (phase, Some(now));
    }

    /// Takes the act of a job that has ended, with its outcome. Of one that was cut it says how many were refused, also if
    /// none were, so that its record stays.
    pub(super) fn ended_act(&mut self) -> Option<Arc<Act>> {
        if !self.phase.is_end() || self.act.is_empty() {
            return None;
        }
        let BulkCounts { done, refused, .. } = self.counts;
        let act = Act::of(&std::mem::take(&mut self.act));
        let refused = (refused > 0 || self.is_cut).then_some(refused);
        Some(Arc::new(Act { count: Some(done), refused, ..act }))
    }
}

/// Who has begun a job. A tenant has a number of jobs, and of turns, of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BulkTenant {
    /// All callers without a quota and without a token.
    #[default]
    Common,
    /// The tenant whose quota has this prefix.
    Quota(Box<str>),
    /// The holder of the token with this name.
    Token(Box<str>),
}
