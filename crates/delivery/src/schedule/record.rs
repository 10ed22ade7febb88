//! The record of a schedule: one JSON document, whose key is the schedule's name.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::plan::to_time;
use super::settings::{ScheduleSettings, Timetable};
use super::state::{ScheduleEntry, ScheduleState};
use crate::limits::WORKER_ROOM;
use crate::settings::{BadSettings, bad};

/// The format that this version writes.
const FORMAT: u32 = 1;

/// All that is durable of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleRecord {
    /// The version of this format.
    format: u32,
    /// A random text, which nobody outside knows: part of the ids under which occurrences are enqueued.
    uid: String,
    /// When the schedule was created, in ms since 1970.
    pub created: u64,
    /// The settings of the schedule.
    pub settings: ScheduleSettings,
    /// The progress of the schedule.
    pub state: ScheduleState,
}

/// Why a record cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadRecord(String);

impl ScheduleRecord {
    /// A new schedule. `uid` is random.
    pub fn new(uid: String, created: u64, settings: ScheduleSettings, remaining: Option<u64>) -> Self {
        let state = ScheduleState::new(created, remaining);
        ScheduleRecord { format: FORMAT, uid, created, settings, state }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`BadRecord`] if it is none, or one of a later version.
    pub fn read(bytes: &[u8]) -> Result<Self, BadRecord> {
        let unreadable = |e: serde_json::Error| BadRecord(format!("its record cannot be read: {e}"));
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let Format { format } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if format != FORMAT {
            return Err(BadRecord(format!("its record has format {format}; this version reads {FORMAT}")));
        }
        serde_json::from_slice(bytes).map_err(unreadable)
    }

    /// The record as bytes.
    pub fn bytes(&self) -> Bytes {
        // Its types have text keys and finite numbers only, so this cannot fail.
        serde_json::to_vec(self).map(Bytes::from).unwrap_or_default()
    }

    /// Checks that the settings leave room for what a worker adds.
    ///
    /// # Errors
    /// [`BadSettings`] names the body, or the field that is largest.
    pub fn check_size(&self, max_body: usize) -> Result<(), BadSettings> {
        let blank = ScheduleRecord { state: ScheduleState::default(), ..self.clone() };
        let (size, most) = (blank.bytes().len(), max_body.saturating_sub(WORKER_ROOM));
        if size <= most {
            return Ok(());
        }
        let ScheduleSettings { body, recurrence, headers, .. } = &self.settings;
        let headers: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        let listed: usize = recurrence.at.iter().map(String::len).sum();
        let sizes = [("body", body.len() * 4 / 3), ("at", listed), ("headers", headers)];
        let field = sizes.iter().max_by_key(|(_, size)| *size).map_or("body", |(field, _)| field);
        let what = format!(
            "is too large: the schedule takes {size} bytes of {most} (--max-body less {WORKER_ROOM})"
        );
        Err(bad(field, what))
    }

    /// The timetable of its settings.
    ///
    /// # Errors
    /// The settings do not check any more, because zone data has changed for example.
    pub fn timetable(&self) -> Result<Timetable, BadSettings> {
        Timetable::new(&self.settings, to_time(self.created))
    }

    /// The id under which an occurrence is enqueued: the same for the same entry, and not to be guessed.
    pub fn dedupe_id(&self, name: &str, entry: &ScheduleEntry) -> String {
        format!("schedule/{name}/{}/{}.{}", entry.at, self.uid, entry.round)
    }

    /// The id under which a backfill enqueues an instant.
    pub fn backfill_id(&self, name: &str, backfill: &str, at: u64) -> String {
        format!("backfill/{name}/{at}/{}/{backfill}", self.uid)
    }

    /// The id under which a trigger enqueues; `own` is the caller's.
    pub fn trigger_id(&self, name: &str, own: &str) -> String {
        format!("trigger/{name}/{}/{own}", self.uid)
    }

    /// The mark of messages that are taken back. Callers can see it, and it reveals nothing about ids of occurrences.
    pub(crate) fn mark(&self) -> String {
        let mut context = ring::digest::Context::new(&ring::digest::SHA256);
        context.update(b"withdrawn/");
        context.update(self.uid.as_bytes());
        context.finish().as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether both were created together: a schedule that was removed and created again is another.
    pub fn is_same(&self, other: &ScheduleRecord) -> bool {
        self.uid == other.uid
    }
}

/// The key of an occurrence: `NAME@INSTANT`, in UTC with milliseconds.
pub(crate) fn occurrence_key(name: &str, at: u64) -> String {
    format!("{name}@{}", instant_text(at))
}

/// An instant in RFC 3339, in UTC with milliseconds.
pub(crate) fn instant_text(at: u64) -> String {
    match i64::try_from(at).ok().and_then(|at| jiff::Timestamp::from_millisecond(at).ok()) {
        Some(at) => format!("{at:.3}"),
        None => at.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{MAX_ENTERED, MAX_LATE, MAX_PENDING, SHOWN_OCCURRENCES};
    use crate::schedule::state::{AfterTaking, OccurrenceEnd, PastOccurrence, ScheduleBlock, TakeBack};

    /// Story: a record grew beyond the largest body while its worker wrote it, and the schedule stood still.
    #[test]
    fn schedule_record_leaves_room_for_worker() {
        let large = ScheduleEntry {
            at: 99_999_999_999_999,
            due: 99_999_999_999_999,
            round: u32::MAX,
            until: 99_999_999_999_999,
            keyless: true,
            id: Some(1 << 53),
            generation: u32::MAX,
        };
        let taking = TakeBack { entry: large.clone(), then: AfterTaking::EntersAgain, surplus: true };
        let past = PastOccurrence { at: large.at, end: OccurrenceEnd::Entered, id: large.id };
        let mut record = ScheduleRecord::new("u".repeat(32), 0, ScheduleSettings::default(), Some(u64::MAX));
        let empty = record.bytes().len();
        record.state = ScheduleState {
            cursor: large.at,
            backlog: vec![large.at; MAX_LATE],
            candidate: Some(large.at),
            buffered: Some(large.at),
            entering: vec![large.clone(); MAX_ENTERED],
            pending: vec![large.clone(); MAX_PENDING],
            unanswered: vec![large.clone(); MAX_PENDING],
            taking: vec![taking; MAX_PENDING],
            erasing: vec![1 << 53; MAX_PENDING],
            done_ahead: vec![large.at; MAX_PENDING + 1],
            latest: vec![past; SHOWN_OCCURRENCES],
            block: Some(ScheduleBlock { why: "w".repeat(100), ..ScheduleBlock::default() }),
            ..record.state
        };
        let more = record.bytes().len() - empty;
        assert!(more < WORKER_ROOM, "{more}");
        assert_eq!(ScheduleRecord::read(&record.bytes()), Ok(record));
    }
}
