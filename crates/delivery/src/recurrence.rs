//! When something recurs: by a cron expression, at an interval, or at listed instants.

use std::time::{Duration, SystemTime};

use duewheel::core::random::scaled;
use duewheel::core::time::WallMs;
use duewheel_api::{rfc3339, span};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::civil::{CivilCron, DstFold, DstGap, OccurrenceNote, similar_zone, time_zone};
use crate::limits::{MAX_AT, MAX_OCCURRENCE_JITTER, MIN_EVERY};
use crate::settings::{BadSettings, bad, choice};

/// A recurrence as people write it, before it is checked. Exactly one of `cron`, `every` and `at` is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RecurrenceSettings {
    /// A cron expression: minute, hour, day, month, weekday; seconds before and a year behind them are optional. A time
    /// matches day or weekday; both if one of the two begins with `*` or is `?`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// An interval such as `90s` or `1h30m`, counted from `start`, else from the creation. Elapsed time, whatever
    /// clocks show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<String>,
    /// Instants in RFC 3339.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at: Vec<String>,
    /// The time zone of the expression, by its IANA name; `UTC` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Nothing occurs before this instant, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// Nothing occurs after this instant, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<String>,
    /// The most by which occurrences come later than they nominally would, such as `30s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<String>,
    /// `shift` (default) or `skip`: a fixed hour that is missing because clocks are put forward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst_gap: Option<String>,
    /// `first` (default) or `both`: a fixed hour that comes twice because clocks are put back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst_fold: Option<String>,
}

/// When something recurs. It is pure: the present is an argument.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use duewheel_delivery::{OccurrenceNote, Recurrence, RecurrenceSettings};
///
/// // On 28 March 2027 clocks in Berlin go from 02:00 to 03:00.
/// let settings = RecurrenceSettings {
///     cron: Some("30 2 * * *".into()),
///     zone: Some("Europe/Berlin".into()),
///     ..RecurrenceSettings::default()
/// };
/// let noon = SystemTime::UNIX_EPOCH + Duration::from_secs(1_806_145_200); // 2027-03-27T11:00:00Z
/// let recurrence = Recurrence::new(&settings, noon)?;
/// let next = recurrence.next(noon).unwrap();
/// assert_eq!(next.at.duration_since(noon)?, Duration::from_secs(14 * 3_600)); // 03:00, which is 01:00Z
/// assert_eq!((next.note, next.offset), (Some(OccurrenceNote::Shifted), 7_200));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Recurrence {
    rule: RecurrenceRule,
    start: Option<Timestamp>,
    end: Option<Timestamp>,
    jitter: Duration,
}

#[derive(Clone, Debug)]
enum RecurrenceRule {
    Cron(Box<CivilCron>),
    /// `first` and every multiple of the interval after it, in ms.
    Every {
        first: i64,
        interval: i64,
    },
    /// Sorted, each once.
    Listed(Vec<Timestamp>),
}

/// An occurrence of a recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// The nominal instant of the occurrence, without jitter.
    pub at: SystemTime,
    /// Seconds that the zone's clock is ahead of UTC then.
    pub offset: i32,
    /// The effect of a change of clocks on it, if any.
    pub note: Option<OccurrenceNote>,
}

impl Recurrence {
    /// Checks settings. `created` is when the recurrence was created, and stays the same when it is read again.
    ///
    /// # Errors
    /// [`BadSettings`] names the field. A cron expression without an occurrence in ten years is also an error.
    pub fn new(settings: &RecurrenceSettings, created: SystemTime) -> Result<Self, BadSettings> {
        let created = Timestamp::try_from(created).map_err(|e| bad("created", e))?;
        let read = |field: &'static str, text: &Option<String>| {
            text.as_ref().map(|text| instant(text).map_err(|what| bad(field, what))).transpose()
        };
        let (start, end) = (read("start", &settings.start)?, read("end", &settings.end)?);
        if let (Some(start), Some(end)) = (start, end)
            && end < start
        {
            return Err(bad("end", "is before start"));
        }
        let jitter = match &settings.jitter {
            None => Duration::ZERO,
            Some(text) => span::duration(text)
                .filter(|jitter| *jitter <= MAX_OCCURRENCE_JITTER)
                .ok_or_else(|| bad("jitter", "must be a time such as 30s, at most 24h"))?,
        };
        let rule = rule(settings, start, created)?;
        let recurrence = Recurrence { rule, start, end, jitter };
        let after = start.unwrap_or(created);
        // An instant before, because an occurrence at the start itself counts.
        let before = after.checked_sub(Duration::from_nanos(1)).unwrap_or(after);
        if matches!(recurrence.rule, RecurrenceRule::Cron(_)) && recurrence.next_of_rule(before).is_none() {
            return Err(bad("cron", "has no occurrence in ten years"));
        }
        Ok(recurrence)
    }

    /// The first occurrence after an instant; for a cron expression at most ten years after it.
    pub fn next(&self, after: SystemTime) -> Option<Occurrence> {
        self.next_after(Timestamp::try_from(after).ok()?)
    }

    /// The field because of which nothing occurs after an instant; `None`: something does.
    pub fn ended_by(&self, now: SystemTime) -> Option<&'static str> {
        if self.next(now).is_some() {
            return None;
        }
        let now = Timestamp::try_from(now).ok()?;
        Some(match &self.rule {
            RecurrenceRule::Listed(instants) if instants.last().is_none_or(|last| *last <= now) => "at",
            RecurrenceRule::Cron(_) if self.end.is_none() => "cron",
            RecurrenceRule::Cron(_) | RecurrenceRule::Every { .. } | RecurrenceRule::Listed(_) => "end",
        })
    }

    /// The occurrences after an instant, in order.
    pub fn upcoming(&self, after: SystemTime) -> impl Iterator<Item = Occurrence> {
        std::iter::successors(self.next(after), |last| self.next(last.at))
    }

    /// When an occurrence of the recurrence with this name is due: its nominal instant and a jitter that is always the
    /// same for the two.
    pub fn due_at(&self, name: &str, occurrence: &Occurrence) -> SystemTime {
        let jitter = u64::try_from(self.jitter.as_millis()).unwrap_or(u64::MAX);
        let ms = Timestamp::try_from(occurrence.at).map_or(0, Timestamp::as_millisecond);
        let hash = xxh3_64(&[name.as_bytes(), &ms.to_le_bytes()].concat());
        occurrence.at + Duration::from_millis(scaled(hash, jitter))
    }

    /// The longest jitter, in ms.
    pub(crate) fn jitter_ms(&self) -> u64 {
        u64::try_from(self.jitter.as_millis()).unwrap_or(u64::MAX)
    }

    /// How many occurrences of an interval lie behind `after` and not behind `until`, and the last of them, in ms since
    /// 1970, without a look at each. `None`: there is none, or it is no interval.
    pub(crate) fn intervals_between(&self, after: u64, until: u64) -> Option<(u64, u64)> {
        let RecurrenceRule::Every { first, interval } = &self.rule else { return None };
        let until = match self.end {
            Some(end) => until.min(u64::try_from(end.as_millisecond()).unwrap_or(0)),
            None => until,
        };
        let passed = |at: u64| {
            let since = i128::from(at) - i128::from(*first);
            if since < 0 { 0 } else { since / i128::from(*interval) + 1 }
        };
        let count = u64::try_from(passed(until) - passed(after)).ok().filter(|count| *count > 0)?;
        let last = i128::from(*first) + (passed(until) - 1) * i128::from(*interval);
        Some((count, u64::try_from(last).ok()?))
    }

    fn next_after(&self, after: Timestamp) -> Option<Occurrence> {
        let after = match self.start {
            Some(start) if after < start => start.checked_sub(Duration::from_nanos(1)).ok()?,
            _ => after,
        };
        let (at, note) = self.next_of_rule(after)?;
        if self.end.is_some_and(|end| at > end) {
            return None;
        }
        let offset = match &self.rule {
            RecurrenceRule::Cron(cron) => cron.zone().to_offset(at).seconds(),
            RecurrenceRule::Every { .. } | RecurrenceRule::Listed(_) => 0,
        };
        Some(Occurrence { at: at.into(), offset, note })
    }

    fn next_of_rule(&self, after: Timestamp) -> Option<(Timestamp, Option<OccurrenceNote>)> {
        match &self.rule {
            RecurrenceRule::Cron(cron) => {
                // The first whole second behind it: one with a fraction before 1970 is rounded up already.
                let second = after.as_second();
                let from = if after.subsec_nanosecond() < 0 { second } else { second.checked_add(1)? };
                let (at, note) = cron.next(from)?;
                Some((Timestamp::from_second(at).ok()?, note))
            }
            RecurrenceRule::Every { first, interval } => {
                let ms = after.as_nanosecond().div_euclid(1_000_000);
                let passed = (ms - i128::from(*first)).div_euclid(i128::from(*interval)) + 1;
                let at = i128::from(*first) + passed.max(0) * i128::from(*interval);
                Some((Timestamp::from_millisecond(i64::try_from(at).ok()?).ok()?, None))
            }
            RecurrenceRule::Listed(instants) => {
                let next = instants.partition_point(|at| *at <= after);
                instants.get(next).map(|at| (*at, None))
            }
        }
    }
}

fn rule(
    settings: &RecurrenceSettings,
    start: Option<Timestamp>,
    created: Timestamp,
) -> Result<RecurrenceRule, BadSettings> {
    let RecurrenceSettings { cron, every, at, zone, dst_gap, dst_fold, .. } = settings;
    if cron.is_none() {
        for (field, given) in [("zone", zone), ("dst_gap", dst_gap), ("dst_fold", dst_fold)] {
            if given.is_some() {
                return Err(bad(field, "belongs to cron"));
            }
        }
    }
    match (cron, every, &at[..]) {
        (Some(text), None, []) => {
            let zone = time_zone(zone.as_deref().unwrap_or("UTC"))
                .ok_or_else(|| bad("zone", unknown_zone(zone.as_deref().unwrap_or_default())))?;
            let gap =
                choice("dst_gap", dst_gap.as_deref(), [("shift", DstGap::Shift), ("skip", DstGap::Skip)])?;
            let fold = choice(
                "dst_fold",
                dst_fold.as_deref(),
                [("first", DstFold::First), ("both", DstFold::Both)],
            )?;
            let cron = CivilCron::new(text, zone, gap, fold).map_err(|what| bad("cron", what))?;
            Ok(RecurrenceRule::Cron(Box::new(cron)))
        }
        (None, Some(text), []) => {
            let interval = span::duration(text)
                .filter(|interval| *interval >= MIN_EVERY)
                .and_then(|interval| i64::try_from(interval.as_millis()).ok())
                .ok_or_else(|| bad("every", "must be a time such as 90s, at least 1s"))?;
            let first = match start {
                Some(start) => ceil_millisecond(start),
                None => ceil_millisecond(created).saturating_add(interval),
            };
            Ok(RecurrenceRule::Every { first, interval })
        }
        (None, None, []) => Err(bad("cron", "one of cron, every and at must be there")),
        (None, None, texts) => {
            if texts.len() > MAX_AT {
                return Err(bad("at", format!("has more than {MAX_AT} instants")));
            }
            let read =
                |(n, text): (usize, &String)| instant(text).map_err(|what| bad(format!("at[{n}]"), what));
            let mut instants = texts.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
            instants.sort_unstable();
            instants.dedup();
            Ok(RecurrenceRule::Listed(instants))
        }
        _ => Err(bad("cron", "only one of cron, every and at may be there")),
    }
}

fn unknown_zone(name: &str) -> String {
    let meant = similar_zone(name);
    let meant = meant.map_or_else(|| ", such as Europe/Berlin".to_owned(), |zone| format!(": write {zone}"));
    format!("must be the name of an IANA zone{meant}")
}

/// The first whole millisecond that is not before an instant: nothing occurs before it.
fn ceil_millisecond(instant: Timestamp) -> i64 {
    let ms = -(-instant.as_nanosecond()).div_euclid(1_000_000);
    i64::try_from(ms).unwrap_or(i64::MAX)
}

/// An instant of the interface, rounded up to a millisecond.
fn instant(text: &str) -> Result<Timestamp, String> {
    let WallMs(ms) = rfc3339::parse(text).map_err(|what| what.to_string())?;
    let at = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    at.ok_or_else(|| "is too far away".to_owned())
}
