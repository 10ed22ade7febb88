//! The record of a job: one JSON document, whose key is the job's id.

use bytes::Bytes;
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
    pub(super) queue: String,
    pub(super) filter: BulkFilter,
    pub(super) action: BulkAction,
    /// Most messages a second.
    pub(super) rate: Option<u32>,
    /// What becomes of messages with URLs, as it was decided when the job began.
    #[serde(default, skip_serializing_if = "UrlMoves::is_default")]
    pub(super) urls: UrlMoves,
    /// When it began, in ms since 1970.
    pub(super) created: u64,
    pub(super) phase: BulkPhase,
    /// When it ended, in ms since 1970.
    pub(super) ended: Option<u64>,
    pub(super) counts: BulkCounts,
    /// How far the queue was walked through; `None`: it has not begun.
    pub(super) position: Option<String>,
    /// The number of parts that were written.
    pub(super) parts: u32,
    /// The part that is worked on, and how many of its messages are done with.
    pub(super) at: (u32, usize),
}

/// How far a job has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BulkPhase {
    /// It writes down which messages it concerns.
    Collecting,
    /// It changes them.
    Running,
    /// It has ended.
    Done,
    /// It was cancelled before its end.
    Cancelled,
}

/// What became of the messages of a job so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BulkCounts {
    /// Messages that the filter means and the action can change.
    pub matched: u64,
    /// Were changed.
    pub done: u64,
    /// Were left to the consumer that had leased them.
    pub leased: u64,
    /// Were changed or removed by others since the job had begun, and left alone.
    pub changed: u64,
    /// Could not be changed, such as because their key is taken.
    pub refused: u64,
}

impl BulkPhase {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
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
        queue: String,
        filter: BulkFilter,
        action: BulkAction,
        rate: Option<u32>,
        created: u64,
    ) -> Self {
        BulkRecord {
            format: FORMAT,
            queue,
            filter,
            action,
            rate,
            urls: UrlMoves::default(),
            created,
            phase: BulkPhase::Collecting,
            ended: None,
            counts: BulkCounts::default(),
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

    pub(super) fn end(&mut self, phase: BulkPhase, now: u64) {
        (self.phase, self.ended) = (phase, Some(now));
    }
}
