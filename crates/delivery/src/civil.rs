//! Occurrences of a cron expression in a time zone.
//!
//! A time zone is a row of segments of constant offset. Within a segment civil time and elapsed time run alike, so an
//! expression, which knows civil time only, is asked for its next match there. What is special happens where segments
//! meet: civil time that is missing (a gap), and civil time that comes twice (a fold).
//!
//! ```text
//!   elapsed   ──────────────┬───────────────        ──────────────┬───────────────
//!   civil     …01:58 01:59 │ 03:00 03:01…          …01:58 01:59 │ 01:00 01:01…
//!                       a gap of an hour                      a fold of an hour
//! ```
//!
//! Instants here are whole seconds since 1970; civil times are the same number, read off a clock in UTC.

use std::fmt;

use croner::Cron;
use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};

use crate::limits::{HORIZON, MAX_EXPRESSION};

/// What happens to a fixed hour that is missing because clocks are put forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DstGap {
    /// It occurs once, when the gap ends.
    #[default]
    Shift,
    /// It does not occur.
    Skip,
}

/// How often a fixed hour occurs that comes twice because clocks are put back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DstFold {
    /// The first time alone.
    #[default]
    First,
    /// Both times.
    Both,
}

/// What is special about an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OccurrenceNote {
    /// Its civil time was missing that day; it comes when the gap ends.
    Shifted,
    /// Its civil time comes for the second time.
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
        let cron: Cron = text.parse().map_err(|e: croner::errors::CronError| e.to_string())?;
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
        let mut known = None;
        while from <= limit {
            let end = self.change_after(from)?;
            if let Some(found) = self.next_in_segment(from, end, &mut known)? {
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
        known: &mut Option<CivilMatch>,
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
            && self.matched(uninterrupted, known)?.is_some_and(|at| at < from + offset)
        {
            return Ok(Some((from, Some(OccurrenceNote::Shifted))));
        }
        let skips = self.fixed && self.fold == DstFold::First;
        let civil = if skips { (from + offset).max(uninterrupted) } else { from + offset };
        let at = self.matched(civil, known)?.filter(|at| end.is_none_or(|end| *at < end + offset));
        Ok(at.map(|at| (at - offset, (at < uninterrupted).then_some(OccurrenceNote::Repeated))))
    }

    /// The first match at this civil time or later.
    fn matched(&self, civil: i64, known: &mut Option<CivilMatch>) -> Result<Option<i64>, BeyondCalendar> {
        if let Some(known) = known
            && known.from <= civil
            && known.at.is_none_or(|at| civil <= at)
        {
            return Ok(known.at);
        }
        let time = Offset::UTC.to_datetime(instant(civil)?);
        // An error says that there is none before the end of the calendar.
        let found = self.cron.find_next_occurrence(&time, true).ok();
        let at = found.and_then(|time| Offset::UTC.to_timestamp(time).ok()).map(Timestamp::as_second);
        *known = Some(CivilMatch { from: civil, at });
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

/// Whether the hour is given. A `*` in its field means that the expression follows elapsed time.
fn has_fixed_hours(text: &str) -> bool {
    if text.contains('@') {
        return !text.to_uppercase().contains("@HOURLY");
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    let hour = if fields.len() == 5 { 1 } else { 2 };
    fields.get(hour).is_some_and(|field| !field.contains('*'))
}
