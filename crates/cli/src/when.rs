//! Times as users write them, and as the command line shows them: `in 2 days`, `1.5h`, `PT48H`, `tomorrow 9:00`,
//! `2027-01-01`.
//!
//! HTTP takes instants by RFC 3339 alone; the command line turns its words into them. Civil times are those of the system's time zone (`TZ`), and
//! the answer says which zone that is. A civil time that does not exist or comes twice, because the clocks change, is
//! refused: no message is delivered at a time that the user has not stated.

use std::str::FromStr;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use duewheel_core::WallMs;
use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::fmt::temporal::{DateTimeParser, Pieces};
use jiff::tz::{AmbiguousOffset, Disambiguation, OffsetConflict, TimeZone};
use jiff::{Timestamp, Zoned};
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::failure::CommandFailure;
use super::invocation;
use duewheel_api::rfc3339;
pub(super) use duewheel_api::span::written as span;
use duewheel_api::span::{BadSpan, TimeSpan, is_number, parsed, written};

/// When a message is to be due.
#[derive(Debug, PartialEq)]
pub enum GivenTime {
    /// After so many milliseconds.
    After(u64),
    /// At an instant, RFC 3339.
    At(String),
}

/// A time, and what people should know about how it was read.
#[derive(Debug, PartialEq)]
pub struct ReadTime {
    /// The time.
    pub time: GivenTime,
    /// How it was read, where that is not obvious.
    pub note: Option<String>,
}

impl ReadTime {
    fn plain(time: GivenTime) -> Self {
        ReadTime { time, note: None }
    }
}

const INSTANTS: &str = "must be an instant such as 2027-01-01T09:00:00Z, \"2027-01-01 9:00\", 2027-01-01, \"tomorrow \
                        9:00\", \"monday 18:30\", now, 1798794000 (seconds since 1970) or \"in 2 days\"";

/// Reads a length of time. Months and years count from `now` on the calendar.
///
/// # Errors
/// The text is no length of time; a phrase that fits after it.
pub fn delay(text: &str, now: &Zoned) -> Result<ReadTime, String> {
    let said = text.trim();
    let said = strip_word(said, "in").unwrap_or(said);
    if let Ok(span) = parsed(said)
        && !span.is_negative()
        && (span.get_years() != 0 || span.get_months() != 0)
    {
        let then = now.checked_add(span).map_err(|_| "is too long".to_owned())?;
        return Ok(ReadTime { note: Some(zone_note(&then)), time: instant(then.timestamp()) });
    }
    let TimeSpan(ms) =
        written(said).map_err(|what| match what == BadSpan::Form && at(said, now).is_ok() {
            true => "is an instant, not a length of time: use --at".to_owned(),
            false => what.to_string(),
        })?;
    // Nothing is read in another way than it may be meant.
    let note = (is_number(said) && ms > 0).then(|| format!("{said} is taken as {said} seconds"));
    Ok(ReadTime { time: GivenTime::After(ms), note })
}

/// Reads an instant; civil times are those of `now`'s zone.
///
/// # Errors
/// The text is no instant; a phrase that fits after it.
pub fn at(text: &str, now: &Zoned) -> Result<ReadTime, String> {
    let said = text.trim();
    if rfc3339::parse(said).is_ok() {
        // The server reads it, and rounds what is finer than a millisecond.
        return Ok(ReadTime::plain(GivenTime::At(said.to_owned())));
    }
    if said.contains('[') {
        return Ok(ReadTime::plain(instant(annotated(said, now)?.timestamp())));
    }
    if said.eq_ignore_ascii_case("now") {
        // The server's now, which is not the past when the request arrives.
        return Ok(ReadTime::plain(GivenTime::After(0)));
    }
    if let Some(since_1970) = since_1970(said) {
        let then = since_1970.map_err(|_| "is too far away".to_owned())?;
        let note = Some(zone_note(&then.to_zoned(now.time_zone().clone())));
        return Ok(ReadTime { note, time: instant(then) });
    }
    if let Some(instant) = without_seconds(said) {
        return Ok(ReadTime::plain(GivenTime::At(instant)));
    }
    if strip_word(said, "in").is_some() {
        return delay(said, now);
    }
    let zoned = civil(said, now)?;
    Ok(ReadTime { note: Some(zone_note(&zoned)), time: instant(zoned.timestamp()) })
}

/// Reads seconds since 1970, as `@N` or of 9 to 11 digits (from 1973 to 5138), or milliseconds of 13 digits, which as
/// seconds would be no year that there is. Eight digits are a date, and twelve are refused.
fn since_1970(said: &str) -> Option<Result<Timestamp, jiff::Error>> {
    let digits = said.strip_prefix('@').unwrap_or(said);
    let number: i64 = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())??;
    match digits.len() {
        13 if digits == said => Some(Timestamp::from_millisecond(number)),
        9..=11 => Some(Timestamp::from_second(number)),
        _ if digits != said => Some(Timestamp::from_second(number)),
        _ => None,
    }
}

/// Reads an instant whose seconds are left out, which RFC 3339 does not allow.
fn without_seconds(said: &str) -> Option<String> {
    let (minutes, offset) = said.split_at_checked("2027-01-01T09:00".len())?;
    rfc3339::parse(&format!("{minutes}:00{offset}")).ok().map(rfc3339::string)
}

/// Reads a time with its zone in brackets: RFC 9557, and civil times as they are read without brackets.
fn annotated(said: &str, now: &Zoned) -> Result<Zoned, String> {
    /// An offset that the zone does not have at that time is an error, as is a civil time that is not one instant.
    const STRICT: DateTimeParser =
        DateTimeParser::new().offset_conflict(OffsetConflict::Reject).disambiguation(Disambiguation::Reject);
    let Ok(pieces) = Pieces::parse(said) else {
        let (front, name) = said.split_once('[').ok_or(INSTANTS)?;
        let name = name.strip_suffix(']').ok_or(INSTANTS)?;
        let zone = STRICT.parse_time_zone(name.strip_prefix('!').unwrap_or(name)).map_err(|_| INSTANTS)?;
        return civil(front.trim_end(), &now.with_time_zone(zone));
    };
    // Brackets may hold something else, such as a calendar.
    let zone = match pieces.time_zone_annotation() {
        Some(named) => named.to_time_zone().map_err(|_| "names a time zone that is not known".to_owned())?,
        None => return Err("must have a time zone in its brackets, such as [Europe/Paris]".to_owned()),
    };
    let there = now.with_time_zone(zone);
    if pieces.offset().is_some() {
        return STRICT
            .parse_zoned(said)
            .map_err(|_| format!("has an offset that {} does not have at that time", zone_name(&there)));
    }
    in_zone(DateTime::from_parts(pieces.date(), pieces.time().unwrap_or(Time::midnight())), &there)
}

/// Reads a civil time of `now`'s zone.
fn civil(said: &str, now: &Zoned) -> Result<Zoned, String> {
    let (date, time) = match relative_day(said, now)? {
        Some(both) => both,
        None => {
            let (day, time) = match said.split_once([' ', 'T', 't']) {
                Some((day, time)) => (day, clock_time(time.trim()).ok_or(INSTANTS)?),
                None => (said, Time::midnight()),
            };
            (day.parse::<Date>().map_err(|_| bad_instant(said))?, time)
        }
    };
    in_zone(DateTime::from_parts(date, time), now)
}

/// An instant of an option, and what people should know about how it was read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GivenInstant {
    /// By RFC 3339.
    pub(super) instant: String,
    pub(super) note: Option<String>,
}

impl GivenInstant {
    /// Reads an instant as [`at`] does; `in 2 days` counts from `now`.
    pub(super) fn read(text: &str, now: &Zoned) -> Result<Self, String> {
        let ReadTime { time, note } = at(text, now)?;
        let instant = match time {
            GivenTime::At(instant) => instant,
            GivenTime::After(ms) => {
                let ms =
                    i64::try_from(ms).ok().and_then(|ms| now.timestamp().as_millisecond().checked_add(ms));
                let then = ms.and_then(|ms| Timestamp::from_millisecond(ms).ok());
                then.map(|then| format!("{then:.3}")).ok_or("is too far away")?
            }
        };
        Ok(GivenInstant { instant, note })
    }
}

impl Serialize for GivenInstant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.instant.serialize(serializer)
    }
}

/// A length of time that a request has as a number of milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct Millis(pub(super) u64);

impl FromStr for Millis {
    type Err = BadSpan;

    fn from_str(text: &str) -> Result<Self, BadSpan> {
        span(text).map(|TimeSpan(ms)| Millis(ms))
    }
}

impl FromStr for GivenInstant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        GivenInstant::read(text, &Zoned::now())
    }
}

/// The instant of an option, by RFC 3339. Says how it was read where people should know.
pub(super) fn instant_of(option: &str, text: &str, now: &Zoned) -> Result<String, CommandFailure> {
    let read = GivenInstant::read(text, now);
    let read = read.map_err(|what| CommandFailure::Usage(format!("{option} {text:?}: {what}")))?;
    say(option, text, read.note.as_deref());
    Ok(read.instant)
}

/// The time that was read from an option; says how it was read where people should know.
///
/// # Errors
/// The text is no time.
pub fn time_of(
    option: &str,
    text: &str,
    read: Result<ReadTime, String>,
) -> Result<GivenTime, CommandFailure> {
    let read = read.map_err(|what| CommandFailure::Usage(format!("{option} {text:?}: {what}")))?;
    say(option, text, read.note.as_deref());
    Ok(read.time)
}

/// Prints how an ambiguous time was interpreted.
pub(super) fn say(option: &str, text: &str, note: Option<&str>) {
    if let Some(note) = note {
        invocation::note(format!("{option} {text:?}: {note}"));
    }
}

/// The note on how a length of time, which may be negative, was interpreted.
fn note_of(text: &str) -> Option<String> {
    delay(text.strip_prefix('-').unwrap_or(text), &Zoned::default()).ok()?.note
}

/// Says how the times of all options of a command were read, for those that are read with the command line. What
/// `serve` has read is in its `--print-config`, and its standard error is its log.
pub(super) fn say_all(command: &Command, matches: &ArgMatches) {
    if matches.subcommand_name() == Some("serve") {
        return;
    }
    if let Some((name, inner)) = matches.subcommand()
        && let Some(command) = command.find_subcommand(name)
    {
        return say_all(command, inner);
    }
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        if !matches!(matches.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable)) {
            continue;
        }
        let texts = matches.get_raw(id).into_iter().flatten().filter_map(|raw| raw.to_str());
        let instants = matches.try_get_many::<GivenInstant>(id).ok().flatten();
        let names = arg.get_value_names().unwrap_or_default();
        let notes: Vec<Option<String>> = match instants {
            Some(instants) => instants.map(|one| one.note.clone()).collect(),
            // A value that is kept as text is read by its command, which also prints the note.
            None if matches.try_get_many::<String>(id).is_ok() => continue,
            None if names.iter().any(|name| name.starts_with("TIME")) => {
                texts.clone().map(|text| text.split("..").find_map(note_of)).collect()
            }
            None => continue,
        };
        for (text, note) in texts.zip(notes) {
            say(&invocation::name_of(arg), text, note.as_deref());
        }
    }
}

fn bad_instant(said: &str) -> String {
    if clock_time(said).is_some() {
        return format!("must say which day: \"today {said}\" or \"tomorrow {said}\"");
    }
    INSTANTS.to_owned()
}

/// `today 9:00`, `tomorrow 9pm`, `monday 18:30`: the next such day behind today.
fn relative_day(said: &str, now: &Zoned) -> Result<Option<(Date, Time)>, String> {
    let (word, rest) = said.split_once(' ').unwrap_or((said, ""));
    let today = now.date();
    let bad = |_| INSTANTS.to_owned();
    let date = match word.to_ascii_lowercase().as_str() {
        "today" => today,
        "tomorrow" => today.tomorrow().map_err(bad)?,
        name => match weekday(name) {
            Some(weekday) => today.nth_weekday(1, weekday).map_err(bad)?,
            None => return Ok(None),
        },
    };
    if rest.trim().is_empty() {
        return Err(format!("must say at what time, such as \"{word} 9:00\""));
    }
    Ok(Some((date, clock_time(rest.trim()).ok_or(INSTANTS)?)))
}

fn weekday(name: &str) -> Option<Weekday> {
    Some(match name {
        "monday" | "mon" => Weekday::Monday,
        "tuesday" | "tue" => Weekday::Tuesday,
        "wednesday" | "wed" => Weekday::Wednesday,
        "thursday" | "thu" => Weekday::Thursday,
        "friday" | "fri" => Weekday::Friday,
        "saturday" | "sat" => Weekday::Saturday,
        "sunday" | "sun" => Weekday::Sunday,
        _ => return None,
    })
}

/// `9:00`, `18:30:15`, `9am`, `9:30 pm`.
fn clock_time(text: &str) -> Option<Time> {
    let lower = text.to_ascii_lowercase();
    let (digits, half) = match (lower.strip_suffix("am"), lower.strip_suffix("pm")) {
        (Some(digits), _) => (digits.trim_end(), Some(0)),
        (_, Some(digits)) => (digits.trim_end(), Some(12)),
        (None, None) => (lower.as_str(), None),
    };
    let mut parts = digits.split(':').map(|part| {
        let right = (1..=2).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        if right { part.parse::<i8>().ok() } else { None }
    });
    let hour = parts.next()??;
    let minute = parts.next().unwrap_or(if half.is_some() { Some(0) } else { None })?;
    let second = parts.next().unwrap_or(Some(0))?;
    if parts.next().is_some() {
        return None;
    }
    let hour = match half {
        Some(half) if (1..=12).contains(&hour) => hour % 12 + half,
        Some(_) => return None,
        None => hour,
    };
    Time::new(hour, minute, second, 0).ok()
}

/// The rest of a text that begins with the word `in`.
pub(super) fn strip_in(text: &str) -> Option<&str> {
    strip_word(text.trim(), "in")
}

/// The text after this word, if the text begins with it.
fn strip_word<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let (first, rest) = text.split_once(' ')?;
    first.eq_ignore_ascii_case(word).then(|| rest.trim())
}

/// A civil time in the zone of `now`, where it comes exactly once.
fn in_zone(time: DateTime, now: &Zoned) -> Result<Zoned, String> {
    let ambiguous = now.time_zone().to_ambiguous_zoned(time);
    let (how, offsets) = match ambiguous.offset() {
        AmbiguousOffset::Unambiguous { .. } => {
            return ambiguous.unambiguous().map_err(|_| INSTANTS.to_owned());
        }
        AmbiguousOffset::Gap { before, after } => ("does not exist", [before, after]),
        AmbiguousOffset::Fold { before, after } => ("comes twice", [before, after]),
    };
    let form = "%Y-%m-%dT%H:%M:%S";
    let with = |offset| {
        Some(time.to_zoned(TimeZone::fixed(offset)).ok()?.strftime(&format!("{form}%:z")).to_string())
    };
    let [first, second] = offsets.map(|offset| with(offset).unwrap_or_default());
    let (zone, time) = (zone_name(now), time.strftime(form));
    Err(format!(
        "{time} {how} in {zone}, because the clocks change: give it with an offset, as {first} or {second}"
    ))
}

/// Rounds an instant as the server reads it. What is finer than a millisecond is rounded up, so that nothing is due
/// before it was said.
fn instant(time: Timestamp) -> GivenTime {
    let whole = time.as_millisecond();
    let finer = Timestamp::from_millisecond(whole).is_ok_and(|floor| floor < time);
    // An instant before 1970 has passed, as 1970 has.
    let ms = u64::try_from(whole + i64::from(finer)).unwrap_or(0);
    GivenTime::At(rfc3339::string(WallMs(ms)))
}

/// The name of a time's zone.
pub(super) fn zone_name(time: &Zoned) -> String {
    match time.time_zone().iana_name() {
        Some(name) => name.to_owned(),
        None => time.strftime("%Z").to_string(),
    }
}

fn zone_note(time: &Zoned) -> String {
    format!("taken as {} of {}", time.strftime("%Y-%m-%d %H:%M:%S %:z"), zone_name(time))
}

/// An instant of an answer by the calendar of this machine's zone: `2027-01-03 01:00:00 CET`.
pub(super) fn calendar(instant: &str) -> Option<String> {
    let local = instant.parse::<Timestamp>().ok()?.to_zoned(Zoned::now().time_zone().clone());
    Some(local.strftime("%Y-%m-%d %H:%M:%S %Z").to_string())
}

/// The `due_at` of an answer, for people.
pub fn due(answer: &Value) -> String {
    instant_told(answer, "due_at")
}

/// An instant of an answer, for people; `-` when it is missing.
pub(super) fn instant_told(answer: &Value, name: &str) -> String {
    answer[name].as_str().map_or("-".to_owned(), |instant| told(instant, &Zoned::now()))
}

/// An instant relative to now: `in 2 days (Mon 09:00 CET)`. A text that is no instant comes back as it is.
pub(super) fn told(instant: &str, now: &Zoned) -> String {
    let Ok(then) = instant.parse::<Timestamp>() else { return instant.to_owned() };
    let away = then.as_millisecond() - now.timestamp().as_millisecond();
    let local = then.to_zoned(now.time_zone().clone());
    let days = (local.date() - now.date()).get_days();
    let format = match () {
        () if away.unsigned_abs() < 3_600_000 => "%a %H:%M:%S %Z",
        () if (-6..=6).contains(&days) => "%a %H:%M %Z",
        () if (-300..=300).contains(&days) => "%a %-d %b %H:%M %Z",
        () => "%Y-%m-%d %H:%M %Z",
    };
    format!("{} ({})", distance(away), local.strftime(format))
}

/// `in 2 days`, `in 3 h 20 min`, `now`, `5 min ago`.
fn distance(away_ms: i64) -> String {
    const UNITS: [(&str, u64); 4] = [("day", 86_400), ("h", 3_600), ("min", 60), ("s", 1)];
    let seconds = (away_ms.unsigned_abs() + 500) / 1_000;
    if seconds == 0 {
        return "now".to_owned();
    }
    let first = UNITS.iter().position(|(_, unit)| seconds >= *unit).unwrap_or(3);
    // Two units are enough: the second of them is rounded.
    let second = UNITS[(first + 1).min(3)].1;
    let rounded = (seconds + second / 2) / second * second;
    let (mut left, mut words) = (rounded, Vec::new());
    for (name, unit) in UNITS {
        let count = left / unit;
        left %= unit;
        if count > 0 {
            let plural = if name == "day" && count > 1 { "s" } else { "" };
            words.push(format!("{count} {name}{plural}"));
        }
    }
    let words = words.join(" ");
    if away_ms < 0 { format!("{words} ago") } else { format!("in {words}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Zoned {
        // A Sunday.
        "2026-11-22T19:30:00[Europe/Berlin]".parse().unwrap()
    }

    fn after(text: &str) -> u64 {
        match delay(text, &now()) {
            Ok(ReadTime { time: GivenTime::After(ms), .. }) => ms,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn instant_of(text: &str) -> String {
        match at(text, &now()) {
            Ok(ReadTime { time: GivenTime::At(instant), .. }) => instant,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn human_durations_are_parsed() {
        for (text, ms) in [
            ("48h", 172_800_000),
            ("1h30m", 5_400_000),
            ("90", 90_000),
            ("in 90", 90_000),
            ("1.5h", 5_400_000),
            ("PT48H", 172_800_000),
            ("2 days", 172_800_000),
            ("in 2 days", 172_800_000),
            ("In 1 hour, 30 minutes", 5_400_000),
            ("1 week", 604_800_000),
            ("250ms", 250),
            ("1 us", 1), // never earlier than said
            ("0s", 0),
        ] {
            assert_eq!(after(text), ms, "{text}");
        }
        for bad in [
            "",
            "soon",
            "in soon",
            "-1h",
            "1 hour ago",
            "1.5d",
            "2 fortnights",
            "1e3",
            "in",
            "99999999999999999999",
        ] {
            assert!(delay(bad, &now()).is_err(), "{bad}");
        }
        for negative in ["-5s", "-5", "-2 days", "-PT1H"] {
            assert_eq!(delay(negative, &now()), Err("must not be negative".to_owned()), "{negative}");
        }
        assert_eq!(delay("90", &now()).unwrap().note.unwrap(), "90 is taken as 90 seconds");
        assert!(delay("tomorrow 9:00", &now()).unwrap_err().contains("--at"));
        assert_eq!(written("1 month"), Err(BadSpan::Calendar));
        assert_eq!(written("2 min"), Ok(TimeSpan(120_000)));
    }

    #[test]
    fn months_go_by_the_calendar() {
        let read = delay("1 month", &now()).unwrap();
        assert_eq!(read.time, GivenTime::At("2026-12-22T18:30:00.000Z".into()));
        assert_eq!(read.note.unwrap(), "taken as 2026-12-22 19:30:00 +01:00 of Europe/Berlin");
    }

    #[test]
    fn instants_use_readers_time_zone() {
        for (text, instant) in [
            ("2027-01-01T09:00:00Z", "2027-01-01T09:00:00Z"),
            ("2027-01-01T09:00:00+05:30", "2027-01-01T09:00:00+05:30"),
            // The server's RFC 3339 has all its digits.
            ("2027-01-01T09:00Z", "2027-01-01T09:00:00.000Z"),
            ("2027-01-01T09:00+01:00", "2027-01-01T08:00:00.000Z"),
            ("1798794000", "2027-01-01T09:00:00.000Z"),
            ("@1798794000", "2027-01-01T09:00:00.000Z"),
            ("1798794000123", "2027-01-01T09:00:00.123Z"),
            ("@0", "1970-01-01T00:00:00.000Z"),
            ("20270101", "2026-12-31T23:00:00.000Z"),
            ("1960-01-01T00:00Z", "1970-01-01T00:00:00.000Z"),
            ("2027-07-01T09:00[America/New_York]", "2027-07-01T13:00:00.000Z"),
            ("2027-03-28 9:30[America/New_York]", "2027-03-28T13:30:00.000Z"),
            ("2027-03-28[America/New_York]", "2027-03-28T04:00:00.000Z"),
            ("2027-01-01T09:00:00Z[America/New_York]", "2027-01-01T09:00:00.000Z"),
            ("2027-10-31T02:30:00+01:00[Europe/Paris]", "2027-10-31T01:30:00.000Z"),
            ("2027-10-31T02:30:00+02:00[Europe/Paris]", "2027-10-31T00:30:00.000Z"),
            ("tomorrow 9:00[Asia/Tokyo]", "2026-11-24T00:00:00.000Z"),
            ("2027-01-01", "2026-12-31T23:00:00.000Z"),
            ("2027-01-01 9:00", "2027-01-01T08:00:00.000Z"),
            ("2027-01-01T09:00", "2027-01-01T08:00:00.000Z"),
            ("2027-07-01 18:30:15", "2027-07-01T16:30:15.000Z"),
            ("today 23:00", "2026-11-22T22:00:00.000Z"),
            ("tomorrow 9:00", "2026-11-23T08:00:00.000Z"),
            ("Tomorrow 9am", "2026-11-23T08:00:00.000Z"),
            ("tomorrow 12am", "2026-11-22T23:00:00.000Z"),
            ("monday 6:30 pm", "2026-11-23T17:30:00.000Z"),
            ("sun 9:00", "2026-11-29T08:00:00.000Z"),
        ] {
            assert_eq!(instant_of(text), instant, "{text}");
        }
        assert!(rfc3339::parse("2027-01-01T09:00:00+05:30").is_ok(), "what goes out as it is");
        assert_eq!(at("in 2 days", &now()).unwrap().time, GivenTime::After(172_800_000));
        assert_eq!(at("Now", &now()).unwrap(), ReadTime::plain(GivenTime::After(0)));
        assert_eq!(GivenInstant::read("now", &now()).unwrap().instant, "2026-11-22T18:30:00.000Z");
        let note = at("1798794000", &now()).unwrap().note.unwrap();
        assert_eq!(note, "taken as 2027-01-01 10:00:00 +01:00 of Europe/Berlin");
        let note = at("tomorrow 9:00", &now()).unwrap().note.unwrap();
        assert_eq!(note, "taken as 2026-11-23 09:00:00 +01:00 of Europe/Berlin");
        assert_eq!(at("2027-01-01T09:00:00Z", &now()).unwrap().note, None);
    }

    /// Story: a zone in brackets was ignored beside an offset, and without one jiff chose among the instants that a
    /// civil time may be: half past two of the night in which the clocks change was some instant, and nothing said so.
    #[test]
    fn nothing_is_guessed() {
        for (text, why) in [
            ("tomorrow", "at what time"),
            ("9:00", "which day"),
            ("2027-02-30", "must be an instant"),
            ("tomorrow 25:00", "must be an instant"),
            ("tomorrow 13pm", "must be an instant"),
            ("tomorrow 9", "must be an instant"),
            ("someday 9:00", "must be an instant"),
            ("20270101T090000Z", "must be an instant"),
            ("202701010900", "must be an instant"),
            ("12345", "must be an instant"),
            ("@", "must be an instant"),
            ("@1798794000123", "is too far away"),
            ("99999999999999", "must be an instant"),
            ("2027-01-01T09:00:00+0100", "must be an instant"),
            ("", "must be an instant"),
            ("2027-03-28 02:30", "does not exist in Europe/Berlin"),
            ("2027-10-31 02:30", "comes twice in Europe/Berlin"),
            ("2027-03-28T02:30[Europe/Paris]", "does not exist in Europe/Paris"),
            ("2027-03-28 2:30[Europe/Paris]", "does not exist in Europe/Paris"),
            ("2027-10-31T02:30[Europe/Paris]", "comes twice in Europe/Paris"),
            ("2027-10-31 2:30[!Europe/Paris]", "comes twice in Europe/Paris"),
            ("2027-01-01T09:00:00+05:00[!Europe/Paris]", "an offset that Europe/Paris does not have"),
            ("2027-01-01T09:00:00+05:00[Europe/Paris]", "an offset that Europe/Paris does not have"),
            ("2027-03-28T02:30:00+01:00[Europe/Paris]", "an offset that Europe/Paris does not have"),
            ("2027-01-01T09:00[Europe/Nowhere]", "a time zone that is not known"),
            ("2027-01-01T09:00Z[u-ca=gregory]", "must have a time zone"),
            ("9:00[Europe/Paris]", "which day"),
            ("in 2 days[Europe/Paris]", "must be an instant"),
            ("2027-01-01 9:00[Europe/Paris", "must be an instant"),
        ] {
            let told = at(text, &now()).unwrap_err();
            assert!(told.contains(why), "{text}: {told}");
        }
    }

    /// Story: the advice named the offset of Berlin for every zone, and who took it sent hours too early.
    #[test]
    fn ambiguous_time_names_its_two_offsets() {
        for (text, first, second) in [
            ("2027-03-14 02:30[America/New_York]", "2027-03-14T02:30:00-05:00", "2027-03-14T02:30:00-04:00"),
            ("2027-11-07 01:30[America/New_York]", "2027-11-07T01:30:00-04:00", "2027-11-07T01:30:00-05:00"),
            (
                "2027-10-03 02:10[Australia/Lord_Howe]",
                "2027-10-03T02:10:00+10:30",
                "2027-10-03T02:10:00+11:00",
            ),
            ("2027-10-31 02:30", "2027-10-31T02:30:00+02:00", "2027-10-31T02:30:00+01:00"),
        ] {
            let told = at(text, &now()).unwrap_err();
            assert!(told.ends_with(&format!(": give it with an offset, as {first} or {second}")), "{told}");
            assert!([first, second].iter().all(|instant| at(instant, &now()).is_ok()), "{told}");
        }
    }

    #[test]
    fn times_are_shown_in_words() {
        for (instant, text) in [
            ("2026-11-24T18:30:00.200Z", "in 2 days (Tue 19:30 CET)"),
            ("2026-11-22T18:31:30Z", "in 1 min 30 s (Sun 19:31:30 CET)"),
            ("2026-11-22T18:30:00.100Z", "now (Sun 19:30:00 CET)"),
            ("2026-11-22T18:25:00Z", "5 min ago (Sun 19:25:00 CET)"),
            ("2026-11-22T21:50:00Z", "in 3 h 20 min (Sun 22:50 CET)"),
            ("2026-11-22T19:29:59.9Z", "in 1 h (Sun 20:29:59 CET)"),
            ("2027-01-11T08:00:00Z", "in 49 days 14 h (Mon 11 Jan 09:00 CET)"),
            ("2046-11-22T18:30:00Z", "in 7305 days (2046-11-22 19:30 CET)"),
            ("strange", "strange"),
        ] {
            assert_eq!(told(instant, &now()), text, "{instant}");
        }
    }
}
