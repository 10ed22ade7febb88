//! The schedules of a file. Each schedule is set before any message is sent, and enqueues its own occurrences from then
//! on. The import leaves out messages of occurrences that the schedule enqueues here itself, and sends those that were
//! due before it was set.

use std::collections::HashMap;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::export::settings_of;
use super::export_file::{ExportedMessage, ExportedSchedule, ExportedState};
use super::remote::{ApiError, Remote, segment};

/// The result of importing a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScheduleSet {
    /// The schedule is set.
    New,
    /// The schedule was here already, with the same settings.
    Same,
    /// The schedule was here already, with other settings, which stay.
    Other,
}

/// The schedules that put their occurrences here.
#[derive(Debug, Default)]
pub(super) struct ImportedSchedules {
    /// By their names in the file: since when they do.
    since: HashMap<String, Timestamp>,
}

impl ImportedSchedules {
    /// Sets a schedule, unless there is one of its name.
    pub(super) fn set(
        &mut self,
        remote: &Remote,
        prefix: &str,
        schedule: &ExportedSchedule,
    ) -> Result<ScheduleSet, ApiError> {
        let path = format!("/v1/schedules/{}", segment(&format!("{prefix}{}", schedule.name)));
        let queue = format!("{prefix}{}", schedule.queue);
        let (set, answer) = match remote.get(&path) {
            Ok(here) => {
                let is_same =
                    here["queue"] == queue.as_str() && same(&settings_of(&here), &schedule.settings);
                (if is_same { ScheduleSet::Same } else { ScheduleSet::Other }, here)
            }
            Err(ApiError::Refused(refusal)) if refusal.code == "not_found" => {
                let mut settings = schedule.settings.clone();
                settings.insert("queue".to_owned(), queue.into());
                settings.insert("past".to_owned(), "keep".into());
                if let Some(remaining) = settings.get("remaining").and_then(Value::as_u64) {
                    // Occurrences that the source has put ahead are put again from here, and counted then.
                    let now = Timestamp::now();
                    let is_ahead = |at: &&String| at.parse::<Timestamp>().is_ok_and(|at| at > now);
                    let ahead = u64::try_from(schedule.ahead.iter().filter(is_ahead).count()).unwrap_or(0);
                    settings.insert("remaining".to_owned(), remaining.saturating_add(ahead).into());
                }
                (ScheduleSet::New, remote.put(&path, &Value::Object(settings))?)
            }
            Err(trouble) => return Err(trouble),
        };
        let created = answer["created_at"].as_str().and_then(|at| at.parse().ok());
        if let (ScheduleSet::New | ScheduleSet::Same, Some(since)) = (set, created) {
            self.since.insert(schedule.name.clone(), since);
        }
        Ok(set)
    }

    /// Whether a schedule here puts the message of this occurrence itself.
    pub(super) fn puts(&self, message: &ExportedMessage) -> bool {
        let header = |name| message.headers.get(name).map(String::as_str);
        let (Some(name), Some(occurrence)) = (header("duewheel-schedule"), header("duewheel-occurrence"))
        else {
            return false;
        };
        let Some(since) = self.since.get(name) else { return false };
        // That of a trigger or a backfill has another key.
        let has_own_key = message.key.as_ref().is_none_or(|key| *key == format!("{name}@{occurrence}"));
        message.state == ExportedState::Scheduled
            && has_own_key
            && occurrence.parse::<Timestamp>().is_ok_and(|at| at > *since)
    }
}

/// Whether two schedules have the same settings. How many occurrences remain changes by itself.
fn same(one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    let settings = |all: &Map<String, Value>| {
        let mut all = all.clone();
        all.remove("remaining");
        all
    };
    settings(one) == settings(other)
}
