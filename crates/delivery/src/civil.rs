//! Occurrences of a cron expression in a time zone.
//!
//! A time zone is a row of segments of constant offset. Within a segment civil time and elapsed time run alike, so an
//! expression, which knows civil time only, is asked for its next match there. Special cases occur only where segments
//! meet: civil time that is missing (a gap), and civil time that comes twice (a fold).
//!
//! ```text
//!   elapsed   ──────────────┬───────────────        ──────────────┬───────────────
//!   civil     …01:58 01:59 │ 03:00 03:01…          …01:58 01:59 │ 01:00 01:01…
//!                       a gap of an hour                      a fold of an hour
//! ```
//!
//! Instants here are whole seconds since 1970; civil times are the same number, read off a clock in UTC.

use std::cell::Cell;
use std::cmp::Ordering;
use std::fmt;

use croner::errors::CronError;
use croner::{CivilDateTime, Cron, CronDateTime, Resolution, Weekday};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};

use crate::limits::{HORIZON, MAX_EXPRESSION, SEARCH_STEPS};

/// Treatment of a fixed hour that is missing because clocks are put forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DstGap {
    /// The occurrence comes once, when the gap ends.
    #[default]
    Shift,
    /// The occurrence is left out.
    Skip,
}

/// How often a fixed hour occurs that comes twice because clocks are put back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DstFold {
    /// The first time alone.
    #[default]
    First,
    /// The occurrence comes at both times.
    Both,
}

/// The effect of a change of clocks on an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OccurrenceNote {
    /// The civil time was missing that day; the occurrence comes when the gap ends.
    Shifted,
    /// The civil time comes for the second time.
    Repeated,
}

/// A cron expression in a zone.
#[derive(Clone)]
pub(crate) struct CivilCron {
    cron: Cron,
    zone: TimeZone,
    /// Whether the hour is given: only such expressions follow the clock on the wall over a change of it.
    fixed: bool,
    gap: DstGap,
    fold: DstFold,
}

/// The state of a search.
struct Search {
    /// How far it goes.
    until: DateTime,
    /// The last match that was looked for.
    known: Option<CivilMatch>,
    /// Moments that it may still look at.
    left: Cell<u32>,
}

/// A match of the expression, and from where on it is the next one.
#[derive(Clone, Copy)]
struct CivilMatch {
    from: i64,
    at: Option<i64>,
}

/// Before the year -9999 or after 9999.
struct BeyondCalendar;

impl CivilCron {
    pub(crate) fn new(text: &str, zone: TimeZone, gap: DstGap, fold: DstFold) -> Result<Self, String> {
        if text.len() > MAX_EXPRESSION {
            return Err(format!("is longer than {MAX_EXPRESSION} bytes"));
        }
        let cron: Cron = text.parse().map_err(|e: CronError| e.to_string())?;
        Ok(CivilCron { cron, zone, fixed: has_fixed_hours(text), gap, fold })
    }

    pub(crate) fn zone(&self) -> &TimeZone {
        &self.zone
    }

    /// The first occurrence at this second or later, at most ten years away.
    pub(crate) fn next(&self, from: i64) -> Option<(i64, Option<OccurrenceNote>)> {
        let limit = from.saturating_add(i64::try_from(HORIZON.as_secs()).unwrap_or(i64::MAX));
        self.next_until(from, limit).unwrap_or(None)
    }

    fn next_until(
        &self,
        mut from: i64,
        limit: i64,
    ) -> Result<Option<(i64, Option<OccurrenceNote>)>, BeyondCalendar> {
        let mut search = Search {
            until: civil(limit.saturating_add(MAX_OFFSET))?,
            known: None,
            left: Cell::new(SEARCH_STEPS),
        };
        while from <= limit {
            let end = self.change_after(from)?;
            if let Some(found) = self.next_in_segment(from, end, &mut search)? {
                return Ok(Some(found).filter(|(at, _)| *at <= limit));
            }
            match end {
                Some(end) => from = end,
                None => break,
            }
        }
        Ok(None)
    }

    /// The first occurrence from `from` to the end of its segment.
    fn next_in_segment(
        &self,
        from: i64,
        end: Option<i64>,
        search: &mut Search,
    ) -> Result<Option<(i64, Option<OccurrenceNote>)>, BeyondCalendar> {
        let offset = self.offset(from)?;
        // The start of the segment, and what the clock would have shown there without the change.
        let start = self.change_until(from)?;
        let uninterrupted = match start {
            Some(start) => start + self.offset(start - 1)?,
            None => i64::MIN,
        };
        let in_gap = start == Some(from) && uninterrupted < from + offset;
        if in_gap
            && self.fixed
            && self.gap == DstGap::Shift
            && self.matched(uninterrupted, search)?.is_some_and(|at| at < from + offset)
        {
            return Ok(Some((from, Some(OccurrenceNote::Shifted))));
        }
        let skips = self.fixed && self.fold == DstFold::First;
        let civil = if skips { (from + offset).max(uninterrupted) } else { from + offset };
        let at = self.matched(civil, search)?.filter(|at| end.is_none_or(|end| *at < end + offset));
        Ok(at.map(|at| (at - offset, (at < uninterrupted).then_some(OccurrenceNote::Repeated))))
    }

    /// The first match at this civil time or later, if the search goes that far.
    fn matched(&self, from: i64, search: &mut Search) -> Result<Option<i64>, BeyondCalendar> {
        if let Some(known) = search.known
            && known.from <= from
            && known.at.is_none_or(|at| from <= at)
        {
            return Ok(known.at);
        }
        let time = BoundedTime { time: civil(from)?, until: search.until, left: &search.left };
        // An error says that there is none.
        let found = self.cron.find_next_occurrence(&time, true).ok();
        let at = found.and_then(|found| Offset::UTC.to_timestamp(found.time).ok()).map(Timestamp::as_second);
        search.known = Some(CivilMatch { from, at });
        Ok(at)
    }

    /// Seconds that the zone's clock is ahead of UTC.
    fn offset(&self, at: i64) -> Result<i64, BeyondCalendar> {
        Ok(i64::from(self.zone.to_offset(instant(at)?).seconds()))
    }

    /// When the offset changes last, at this second or before.
    fn change_until(&self, at: i64) -> Result<Option<i64>, BeyondCalendar> {
        let after = instant(at.saturating_add(1))?;
        Ok(self.zone.preceding(after).next().map(|change| change.timestamp().as_second()))
    }

    /// When the offset changes next, after this second.
    fn change_after(&self, at: i64) -> Result<Option<i64>, BeyondCalendar> {
        Ok(self.zone.following(instant(at)?).next().map(|change| change.timestamp().as_second()))
    }
}

/// A civil time with a bound, at which croner ends its search; by itself it goes on to the year 5000. It still does so
/// for days that no month has, such as the first Sunday if it is the 29th; such an expression is refused at once. An
/// expression with an empty list of seconds has it look at each minute of these years; so there is a bound of moments.
#[derive(Clone)]
struct BoundedTime<'a> {
    time: DateTime,
    until: DateTime,
    /// Moments that the search may still look at.
    left: &'a Cell<u32>,
}

impl BoundedTime<'_> {
    /// Looks at one more moment, if the search may.
    fn step(&self) -> Option<()> {
        count_step();
        self.left.set(self.left.get().checked_sub(1)?);
        Some(())
    }
}

impl CronDateTime for BoundedTime<'_> {
    fn to_civil(&self) -> CivilDateTime {
        self.time.to_civil()
    }

    fn civil_weekday(&self) -> Weekday {
        self.time.civil_weekday()
    }

    fn resolve_civil(&self, civil: CivilDateTime) -> Result<Resolution<Self>, CronError> {
        self.step().ok_or(CronError::TimeSearchLimitExceeded)?;
        let bounded = |time| BoundedTime { time, ..*self };
        match self.time.resolve_civil(civil)? {
            Resolution::Single(time) | Resolution::Ambiguous(time, _) if time > self.until => {
                Err(CronError::TimeSearchLimitExceeded)
            }
            Resolution::Single(time) => Ok(Resolution::Single(bounded(time))),
            Resolution::Ambiguous(earlier, later) => {
                Ok(Resolution::Ambiguous(bounded(earlier), bounded(later)))
            }
            Resolution::Gap => Ok(Resolution::Gap),
        }
    }

    fn checked_add_seconds(&self, seconds: i64) -> Option<Self> {
        self.step()?;
        let time = CronDateTime::checked_add_seconds(&self.time, seconds)?;
        Some(BoundedTime { time, ..*self })
    }

    fn cmp_instant(&self, other: &Self) -> Ordering {
        self.time.cmp(&other.time)
    }
}

#[cfg(feature = "fuzzing")]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts a moment that a search looks at.
fn count_step() {
    #[cfg(feature = "fuzzing")]
    STEPS.set(STEPS.get() + 1);
}

/// Moments that searches of this thread have looked at since the last call.
#[cfg(feature = "fuzzing")]
pub fn cron_steps() -> u64 {
    STEPS.take()
}

fn civil(second: i64) -> Result<DateTime, BeyondCalendar> {
    Ok(Offset::UTC.to_datetime(instant(second)?))
}

fn instant(second: i64) -> Result<Timestamp, BeyondCalendar> {
    Timestamp::from_second(second).map_err(|_| BeyondCalendar)
}

impl fmt::Debug for CivilCron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CivilCron")
            .field("cron", &self.cron.as_str())
            .field("zone", &self.zone)
            .finish_non_exhaustive()
    }
}

/// More seconds than the clock of any zone is ahead of UTC.
const MAX_OFFSET: i64 = 2 * 86_400;

/// Whether the hour is given. A `*` in its field means that the expression follows elapsed time.
fn has_fixed_hours(text: &str) -> bool {
    if text.contains('@') {
        return !text.to_uppercase().contains("@HOURLY");
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    let hour = if fields.len() == 5 { 1 } else { 2 };
    fields.get(hour).is_some_and(|field| !field.contains('*'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(expression: &str, from: &str) -> Option<String> {
        let cron = CivilCron::new(expression, TimeZone::UTC, DstGap::Shift, DstFold::First).unwrap();
        let from: Timestamp = from.parse().unwrap();
        cron.next(from.as_second()).map(|(at, _)| Timestamp::from_second(at).unwrap().to_string())
    }

    #[test]
    fn the_search_ends_after_ten_years() {
        assert_eq!(next("0 0 29 2 *", "2096-03-01T00:00:00Z").as_deref(), Some("2104-02-29T00:00:00Z"));
        assert_eq!(next("0 0 0 1 1 * 2037", "2027-01-01T00:00:00Z").as_deref(), Some("2037-01-01T00:00:00Z"));
        for expression in ["0 0 0 1 2 * 2037", "0 0 31 2 *", "* * * 31 2,4,6,9,11 *", "0 0 29 2 +7#1"] {
            assert_eq!(next(expression, "2027-01-01T00:00:00Z"), None, "{expression}");
        }
    }

    /// Story: an empty list of seconds took five million steps to refuse, fifteen seconds of a debug build.
    #[test]
    fn an_expression_that_nothing_matches_is_given_up_after_a_bounded_search() {
        for expression in [", * * * * *", ", * * * *", "0 , * * * *"] {
            let cron = CivilCron::new(expression, TimeZone::UTC, DstGap::Shift, DstFold::First);
            let Ok(cron) = cron else { continue };
            let until = civil(1_800_000_000 + 3_000 * 86_400).ok().unwrap();
            let mut search = Search { until, known: None, left: Cell::new(SEARCH_STEPS) };
            assert_eq!(cron.matched(1_800_000_000, &mut search).ok().unwrap(), None, "{expression}");
            assert_eq!(search.left.get(), 0, "{expression}");
        }
    }

    /// Searched to the year 5000, "every second of 31 February" took a thousand times as long to refuse.
    #[test]
    fn croner_asks_for_nothing_beyond_the_bound() {
        let until: DateTime = "2037-01-01T00:00:00".parse().unwrap();
        let left = Cell::new(2);
        let from = BoundedTime { time: "2027-01-01T00:00:00".parse().unwrap(), until, left: &left };
        assert!(matches!(from.resolve_civil(until.to_civil()), Ok(Resolution::Single(_))));
        let beyond: DateTime = "2037-01-01T00:00:01".parse().unwrap();
        assert!(matches!(from.resolve_civil(beyond.to_civil()), Err(CronError::TimeSearchLimitExceeded)));
        assert_eq!(left.get(), 0);
        assert!(matches!(from.resolve_civil(until.to_civil()), Err(CronError::TimeSearchLimitExceeded)));
    }
}
