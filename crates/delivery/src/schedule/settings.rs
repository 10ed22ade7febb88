//! The settings of a schedule, and what they mean.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use duewheel::Job;
use duewheel::core::name::QueueName;
use duewheel_api::span;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits::{CATCHUP, MAX_CATCHUP, MAX_SCHEDULE_NOTE};
use crate::recurrence::{Recurrence, RecurrenceSettings};
use crate::settings::{BadSettings, bad, choice};

/// A schedule as people write it, before it is checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleSettings {
    /// The queue that occurrences enter.
    pub queue: String,
    /// When it occurs.
    pub recurrence: RecurrenceSettings,
    /// The body of each message.
    #[serde(serialize_with = "to_base64", deserialize_with = "from_base64")]
    pub body: Bytes,
    /// The headers of each message. Names beginning with `duewheel-` are refused.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// `none`, `last` (default) or `all`: which of the occurrences enter that no worker put at their time.
    pub missed: Option<String>,
    /// How late such an occurrence still enters, such as `6h`; `24h` by default.
    pub catchup: Option<String>,
    /// `allow` (default), `skip` or `buffer_one`: what happens while the previous occurrence is not settled.
    pub overlap: Option<String>,
    /// Whether nothing occurs.
    #[serde(default)]
    pub paused: bool,
    /// Words for people, such as why it is paused.
    pub note: Option<String>,
}

impl ScheduleSettings {
    /// Occurrences that are this job, with its queue and its body alone: the schedule makes their keys, and the queue has
    /// their options. [`crate::Schedules`] has an example.
    ///
    /// # Errors
    /// The job cannot be written as JSON.
    pub fn of_job<J: Job>(
        job: &J,
        recurrence: RecurrenceSettings,
    ) -> Result<ScheduleSettings, serde_json::Error> {
        let body = serde_json::to_vec(job)?.into();
        Ok(ScheduleSettings { queue: J::QUEUE.into(), recurrence, body, ..ScheduleSettings::default() })
    }
}

/// Which of the occurrences enter that no worker put at their time. Those of at most 30 seconds ago are on time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissedPolicy {
    /// No missed occurrence enters.
    None,
    /// The last of them.
    #[default]
    Last,
    /// All of them: the last 1,000, spread over time.
    All,
}

/// Treatment of an occurrence while the previous one is not settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverlapPolicy {
    /// The occurrence enters.
    #[default]
    Allow,
    /// The occurrence is skipped and counted.
    Skip,
    /// The first occurrence enters when the previous one is settled; further ones are skipped.
    BufferOne,
}

/// A checked schedule.
///
/// ```
/// use std::time::SystemTime;
/// use duewheel_delivery::{RecurrenceSettings, ScheduleSettings, Timetable};
///
/// let mut settings = ScheduleSettings {
///     queue: "reports".into(),
///     recurrence: RecurrenceSettings { cron: Some("0 9 * * MON".into()), ..Default::default() },
///     body: "weekly".into(),
///     ..Default::default()
/// };
/// assert!(Timetable::new(&settings, SystemTime::now()).is_ok());
/// settings.overlap = Some("never".into());
/// let error = Timetable::new(&settings, SystemTime::now()).unwrap_err();
/// assert_eq!(error.to_string(), "overlap: must be allow, skip or buffer_one");
/// ```
#[derive(Clone, Debug)]
pub struct Timetable {
    /// When it occurs.
    pub recurrence: Recurrence,
    /// The queue that occurrences enter.
    pub queue: QueueName,
    /// The body of each message.
    pub body: Bytes,
    /// The headers of each message, without those that duewheel adds.
    pub headers: Vec<(Box<str>, Box<str>)>,
    /// Which of the missed occurrences enter.
    pub missed: MissedPolicy,
    /// How late a missed occurrence still enters.
    pub catchup: Duration,
    /// Treatment of occurrences while the previous one is not settled.
    pub overlap: OverlapPolicy,
    /// Whether nothing occurs.
    pub paused: bool,
}

impl Timetable {
    /// Checks settings. `created` is when the schedule was created, and stays the same when it is read again.
    ///
    /// # Errors
    /// [`BadSettings`] names the field.
    pub fn new(settings: &ScheduleSettings, created: SystemTime) -> Result<Self, BadSettings> {
        let recurrence = Recurrence::new(&settings.recurrence, created)?;
        let queue = QueueName::new(&settings.queue).map_err(|e| bad("queue", e))?;
        let missed = choice(
            "missed",
            settings.missed.as_deref(),
            [("none", MissedPolicy::None), ("last", MissedPolicy::Last), ("all", MissedPolicy::All)],
        )?;
        let overlap = choice(
            "overlap",
            settings.overlap.as_deref(),
            [
                ("allow", OverlapPolicy::Allow),
                ("skip", OverlapPolicy::Skip),
                ("buffer_one", OverlapPolicy::BufferOne),
            ],
        )?;
        let catchup = match &settings.catchup {
            None => CATCHUP,
            Some(text) => span::duration(text)
                .filter(|catchup| *catchup <= MAX_CATCHUP)
                .ok_or_else(|| bad("catchup", "must be a time such as 6h, at most 366d"))?,
        };
        if settings.note.as_ref().is_some_and(|note| note.len() > MAX_SCHEDULE_NOTE) {
            return Err(bad("note", format!("must have at most {MAX_SCHEDULE_NOTE} bytes")));
        }
        if let Some((name, _)) = settings.headers.iter().find(|(name, _)| is_reserved(name)) {
            return Err(bad(
                format!("headers.{name}"),
                "headers beginning with duewheel- are added by duewheel",
            ));
        }
        let headers = settings.headers.iter().map(|(n, v)| (n.as_str().into(), v.as_str().into())).collect();
        let paused = settings.paused;
        let body = settings.body.clone();
        Ok(Timetable { recurrence, queue, body, headers, missed, catchup, overlap, paused })
    }
}

fn is_reserved(header: &str) -> bool {
    header.get(..9).is_some_and(|start| start.eq_ignore_ascii_case("duewheel-"))
}

fn to_base64<S: Serializer>(body: &Bytes, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&STANDARD.encode(body))
}

fn from_base64<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
    let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
    STANDARD.decode(text.as_bytes()).map(Bytes::from).map_err(serde::de::Error::custom)
}
