//! Cron expressions: how they are read, and which civil times they match.
//!
//! | field | values | only there |
//! |---|---|---|
//! | second, optional | 0-59 | |
//! | minute | 0-59 | |
//! | hour | 0-23 | |
//! | day | 1-31 | `?`, `L`, `L-3`, `LW`, `15W` |
//! | month | 1-12, JAN-DEC | |
//! | weekday | 0-7, SUN-SAT; 0 and 7 are Sunday | `?`, `FRIL`, `FRI#2`, `+` before it: day and weekday |
//! | year, optional behind seconds | 1970-9999 | |
//!
//! A field is a list of `*`, `5`, `5-9`, and of these with a step: `*/2`, `5-9/2`, `5/2` (from 5 on). A range may pass
//! the last value: `FRI-MON`, `22-2`. As in crontab(5), a time matches day *or* weekday, unless one of the two begins
//! with `*` or is `?`: then it matches both.

use std::ops::RangeInclusive;

use jiff::ToSpan;
use jiff::civil::{Date, DateTime, Time};

/// A field of an expression.
#[derive(Debug)]
struct CronField {
    name: &'static str,
    values: RangeInclusive<u32>,
    /// Names of values, from the first value on.
    names: &'static [&'static str],
    longest_step: u32,
}

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

const fn field(
    name: &'static str,
    values: RangeInclusive<u32>,
    names: &'static [&'static str],
    longest_step: u32,
) -> CronField {
    CronField { name, values, names, longest_step }
}

const SECOND: usize = 0;
const MINUTE: usize = 1;
const HOUR: usize = 2;
const DAY: usize = 3;
const MONTH: usize = 4;
const WEEKDAY: usize = 5;
const YEAR: usize = 6;

const FIELDS: [CronField; 7] = [
    field("second", 0..=59, &[], 59),
    field("minute", 0..=59, &[], 59),
    field("hour", 0..=23, &[], 23),
    field("day", 1..=31, &[], 30),
    field("month", 1..=12, &MONTHS, 11),
    field("weekday", 0..=7, &WEEKDAYS, 7),
    field("year", 1970..=9999, &[], 8029),
];

/// Short forms of expressions.
const NICKNAMES: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// A cron expression that was read. Sets of small numbers are bits.
#[derive(Clone, Debug, Default)]
pub(crate) struct CronExpression {
    seconds: u64,
    minutes: u64,
    hours: u64,
    days: CronDays,
    months: u64,
    weekdays: CronWeekdays,
    /// First, last and step of each item; empty: every year.
    years: Vec<(u32, u32, u32)>,
    /// Whether a time matches day and weekday; else one of them is enough.
    both: bool,
    /// Whether the hour is given: a `*` in its field means that the expression follows elapsed time.
    pub(crate) fixed_hours: bool,
}

/// Days of a month.
#[derive(Clone, Debug, Default)]
struct CronDays {
    days: u64,
    /// Numbers of days before the last one.
    before_last: u64,
    /// Days whose nearest weekday matches.
    nearest: u64,
    last_weekday: bool,
}

/// Days of a week.
#[derive(Clone, Debug, Default)]
struct CronWeekdays {
    days: u64,
    /// The first to fifth one of a month.
    nth: [u64; 5],
    /// The last one of a month.
    last: u64,
}

/// An item of a list in a field, with its place for errors.
#[derive(Clone, Copy, Debug)]
struct CronItem<'a> {
    field: usize,
    /// All fields, from the seconds on.
    fields: &'a [&'a str],
    /// The number of the field as people count, and the number of the item's first byte.
    place: (usize, usize),
    text: &'a str,
}

impl CronExpression {
    /// Reads an expression.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let lower = text.trim().to_ascii_lowercase();
        if lower.starts_with('@') {
            return nickname(&lower).and_then(CronExpression::read);
        }
        if let Some(zone) = lower.strip_prefix("cron_tz=").or_else(|| lower.strip_prefix("tz=")) {
            let zone = text.trim().get(lower.len() - zone.len()..).unwrap_or_default();
            let zone = zone.split_whitespace().next().unwrap_or_default();
            return Err(format!("must not name a zone: set zone to {zone:?}"));
        }
        let given: Vec<&str> = text.split_whitespace().collect();
        let start = match given.len() {
            5 => MINUTE,
            6 | 7 => SECOND,
            n => {
                return Err(format!(
                    "has {n} fields: give minute, hour, day, month and weekday; seconds before and a year behind \
                     them are optional, and a command is no part of it"
                ));
            }
        };
        let mut fields = vec!["0"; start];
        fields.extend(&given);
        let mut read = CronExpression {
            both: begins_with_star(fields[DAY]) || begins_with_star(fields[WEEKDAY]),
            fixed_hours: !fields[HOUR].contains('*'),
            ..CronExpression::default()
        };
        for (index, whole) in fields.iter().enumerate().skip(start) {
            // The position of a subslice of the text.
            let mut position = (whole.as_ptr() as usize).saturating_sub(text.as_ptr() as usize) + 1;
            let mut list = *whole;
            if index == WEEKDAY
                && let Some(rest) = list.strip_prefix('+')
            {
                (read.both, list, position) = (true, rest, position + 1);
            }
            for text in list.split(',') {
                let place = (index - start + 1, position);
                position += text.len() + 1;
                read.add(CronItem { field: index, fields: &fields, place, text })?;
            }
        }
        if start == MINUTE {
            read.seconds = 1;
        }
        Ok(read)
    }

    fn add(&mut self, item: CronItem<'_>) -> Result<(), String> {
        let is_day = item.field == DAY || item.field == WEEKDAY;
        if item.text.contains('?') && !(is_day && item.fields[item.field] == "?") {
            return Err(item.wrong("is not understood: a ? stands alone, as day or weekday"));
        }
        if item.field == DAY && self.days.add(item)? {
            return Ok(());
        }
        if item.field == WEEKDAY {
            item.check_numbers()?;
            if self.weekdays.add(item)? {
                return Ok(());
            }
        }
        let (first, last, step) = item.range()?;
        if item.field == YEAR {
            self.years.push((first, last, step));
            return Ok(());
        }
        let (lowest, length) = (item.lowest(), item.length());
        let mut set = 0;
        for value in (first..=last).step_by(step as usize) {
            set |= 1_u64 << (lowest + (value - lowest) % length);
        }
        match item.field {
            SECOND => self.seconds |= set,
            MINUTE => self.minutes |= set,
            HOUR => self.hours |= set,
            DAY => self.days.days |= set,
            MONTH => self.months |= set,
            _ => self.weekdays.days |= set,
        }
        Ok(())
    }

    /// The first civil time that matches, from one to another, both included.
    pub(crate) fn next(&self, from: DateTime, until: DateTime) -> Option<DateTime> {
        let (mut day, mut start) = (from.date(), from.time());
        while day <= until.date() {
            count_step();
            let is_month = has(self.months, day.month()) && self.has_year(day.year());
            if is_month
                && self.has_day(day)
                && let Some(time) = self.time_from(start)
            {
                return Some(day.to_datetime(time)).filter(|found| *found <= until);
            }
            start = Time::midnight();
            day = match is_month {
                true => day.tomorrow().ok()?,
                false => day.first_of_month().checked_add(1.month()).ok()?,
            };
        }
        None
    }

    fn has_year(&self, year: i16) -> bool {
        let year = u32::try_from(year).unwrap_or(0);
        let is_in = |(first, last, step): &(u32, u32, u32)| {
            (*first..=*last).contains(&year) && (year - first).is_multiple_of(*step)
        };
        self.years.is_empty() || self.years.iter().any(is_in)
    }

    fn has_day(&self, day: Date) -> bool {
        let (of_month, of_week) = (self.days.has(day), self.weekdays.has(day));
        if self.both { of_month && of_week } else { of_month || of_week }
    }

    /// The first time of a day that matches.
    fn time_from(&self, start: Time) -> Option<Time> {
        for hour in (start.hour()..24).filter(|hour| has(self.hours, *hour)) {
            let is_first = hour == start.hour();
            let minute = if is_first { start.minute() } else { 0 };
            for minute in (minute..60).filter(|minute| has(self.minutes, *minute)) {
                let second = if is_first && minute == start.minute() { start.second() } else { 0 };
                if let Some(second) = (second..60).find(|second| has(self.seconds, *second)) {
                    return Time::new(hour, minute, second, 0).ok();
                }
            }
        }
        None
    }
}

impl CronDays {
    /// Adds an item that only this field has. Whether it is one.
    fn add(&mut self, item: CronItem<'_>) -> Result<bool, String> {
        let text = item.text.to_ascii_uppercase();
        if text == "?" {
            self.days = u64::MAX;
        } else if text == "LW" {
            self.last_weekday = true;
        } else if text == "L" {
            self.before_last |= 1;
        } else if let Some(before) = text.strip_prefix("L-") {
            match before.parse() {
                Ok(before @ 0..=30) => self.before_last |= 1_u64 << before,
                _ => return Err(item.wrong("is not understood: L-0 to L-30 count back from the last day")),
            }
        } else if let Some(day) = text.strip_suffix('W') {
            match day.parse() {
                Ok(day @ 1..=31) => self.nearest |= 1_u64 << day,
                _ => return Err(item.wrong("is not understood: 1W to 31W are the weekday nearest to a day")),
            }
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn has(&self, day: Date) -> bool {
        let (number, length) = (day.day(), day.days_in_month());
        let is_nearest = |wanted: i8| has(self.nearest, wanted) && nearest_weekday(day, wanted) == number;
        let last_weekday = nearest_weekday(day, length) == number;
        has(self.days, number)
            || has(self.before_last, length - number)
            || (self.last_weekday && last_weekday)
            || (self.nearest != 0 && (1..=length).any(is_nearest))
    }
}

impl CronWeekdays {
    /// Adds an item that only this field has. Whether it is one.
    fn add(&mut self, item: CronItem<'_>) -> Result<bool, String> {
        let text = item.text.to_ascii_uppercase();
        let day = |text: &str| item.value(text).map(|day| 1_u64 << (day % 7));
        if text == "?" {
            self.days = u64::MAX;
        } else if let Some((of, nth)) = text.split_once('#') {
            match nth {
                "1" | "2" | "3" | "4" | "5" => self.nth[usize::from(nth.as_bytes()[0] - b'1')] |= day(of)?,
                "L" => self.last |= day(of)?,
                _ => {
                    return Err(
                        item.wrong("is not understood: FRI#1 to FRI#5 and FRI#L are the ones of a month")
                    );
                }
            }
        } else if let Some(of) = text.strip_suffix('L') {
            if of.is_empty() {
                return Err(
                    item.wrong("is not understood: write SAT, or FRIL for the last Friday of a month")
                );
            }
            self.last |= day(of)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn has(&self, day: Date) -> bool {
        let weekday = day.weekday().to_sunday_zero_offset();
        let nth = usize::try_from((day.day() - 1) / 7).unwrap_or(0);
        has(self.days, weekday)
            || has(self.nth[nth], weekday)
            || (has(self.last, weekday) && day.day() + 7 > day.days_in_month())
    }
}

impl CronItem<'_> {
    fn lowest(&self) -> u32 {
        *FIELDS[self.field].values.start()
    }

    /// The number of different values: 7 is the same weekday as 0.
    fn length(&self) -> u32 {
        if self.field == WEEKDAY { 7 } else { FIELDS[self.field].values.end() + 1 - self.lowest() }
    }

    fn wrong(&self, why: &str) -> String {
        let (number, position) = self.place;
        format!("{} (field {number}, position {position}): {:?} {why}", FIELDS[self.field].name, self.text)
    }

    /// First, last and step. The last is beyond the values of the field if the range goes around.
    fn range(&self) -> Result<(u32, u32, u32), String> {
        if self.text.starts_with('/') {
            return Err(
                self.wrong("is not understood: a step is written */2, and a command is no part of it")
            );
        }
        let (base, step) = match self.text.split_once('/') {
            Some((base, step)) => (base, Some(self.step(base, step)?)),
            None => (self.text, None),
        };
        let (lowest, length) = (self.lowest(), self.length());
        let end = lowest + length - 1;
        if base == "*" {
            return Ok((lowest, end, step.unwrap_or(1)));
        }
        let Some((first, last)) = base.split_once('-') else {
            let first = self.value(base)?;
            // Sunday is 7 or 0, and a step begins with the first day.
            let first = if first > end { first - length } else { first };
            return Ok((first, if step.is_some() { end } else { first }, step.unwrap_or(1)));
        };
        let (mut first, mut last) = (self.value(first)?, self.value(last)?);
        if first > last {
            if self.field == YEAR {
                return Err(self.wrong("ends before it begins"));
            }
            first = if first > end { first - length } else { first };
            last = if first > last { last + length } else { last };
        }
        Ok((first, last, step.unwrap_or(1)))
    }

    /// A number or a name.
    fn value(&self, text: &str) -> Result<u32, String> {
        let field = &FIELDS[self.field];
        let named = field.names.iter().position(|name| name.eq_ignore_ascii_case(text));
        let named = named.and_then(|place| u32::try_from(place).ok()).map(|place| place + self.lowest());
        let number = text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        if let Some(value) = named.or(number).filter(|value| field.values.contains(value)) {
            return Ok(value);
        }
        if text.is_empty() {
            return Err(self.wrong("lacks a value"));
        }
        if text.eq_ignore_ascii_case("H") || text.starts_with("H(") {
            return Err(self.wrong("is Jenkins's: give a number, and a jitter to spread what runs"));
        }
        let (first, last) = (field.values.start(), field.values.end());
        Err(self.wrong(&match field.names {
            [] => format!("must be {first} to {last}"),
            [name, .., end] => format!("must be {first} to {last}, or {name} to {end}"),
            [name] => format!("must be {first} to {last}, or {name}"),
        }))
    }

    fn step(&self, base: &str, text: &str) -> Result<u32, String> {
        let step = text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        let Some(step) = step.filter(|step| *step > 0) else {
            return Err(self.wrong("has no step: write a number from 1 behind the /"));
        };
        let longest = FIELDS[self.field].longest_step;
        if step <= longest {
            return Ok(step);
        }
        let meant = (base == "*").then(|| self.meant(step)).flatten();
        Err(self.wrong(&format!("has a step above {longest}{}", meant.unwrap_or_default())))
    }

    /// The expression that was meant by too long a step from the first value on.
    fn meant(&self, step: u32) -> Option<String> {
        if self.fields[self.field] != self.text {
            return None;
        }
        let length = if self.field == WEEKDAY { 8 } else { self.length() };
        let unit = ["s", "m", "h"].get(self.field);
        let mut fields: Vec<String> = self.fields.iter().copied().map(str::to_owned).collect();
        fields[self.field] = self.lowest().to_string();
        let longer = step / length;
        let is_next = unit.is_some() && self.field != HOUR && fields[self.field + 1] == "*";
        if step != length && unit.is_some() {
            let is_whole = is_next && step.is_multiple_of(length);
            if !is_whole || longer > FIELDS[self.field + 1].longest_step {
                return unit
                    .map(|unit| format!(": an interval is no cron expression, set every to {step}{unit}"));
            }
            fields[self.field + 1] = format!("*/{longer}");
        }
        let shown = if self.place.0 == self.field + 1 { &fields[..] } else { &fields[1..] };
        Some(format!(": write {:?}", shown.join(" ")))
    }

    /// Quartz counts weekdays from 1, crontab from 0. A `?` as day is Quartz's or Spring's, which count differently.
    fn check_numbers(&self) -> Result<(), String> {
        let values = self.text.split(['#', '/']).next().unwrap_or_default();
        if self.fields[DAY] == "?" && (values.contains(|c: char| c.is_ascii_digit()) || values == "L") {
            let why =
                "may count from SUN = 0 or from SUN = 1 where the day is ?: write names, such as MON-FRI";
            return Err(self.wrong(why));
        }
        Ok(())
    }
}

fn nickname(text: &str) -> Result<&'static str, String> {
    if let Some((_, expression)) = NICKNAMES.iter().find(|(name, _)| *name == text) {
        return Ok(expression);
    }
    match text.split_once(char::is_whitespace) {
        Some(("@every", length)) => {
            Err(format!("{text:?} is an interval: set every to {:?}, and no cron", length.trim()))
        }
        _ if text == "@reboot" => {
            Err("\"@reboot\" has no time: enqueue a message when the machine starts".into())
        }
        _ => {
            let names: Vec<&str> = NICKNAMES.iter().map(|(name, _)| *name).collect();
            Err(format!("{text:?} is no nickname: there are {}", names.join(", ")))
        }
    }
}

fn begins_with_star(field: &str) -> bool {
    field.starts_with('*') || field == "?"
}

fn has(set: u64, value: i8) -> bool {
    u32::try_from(value).is_ok_and(|value| set >> value & 1 == 1)
}

/// The day of the same month from Monday to Friday that is nearest to a day.
fn nearest_weekday(day: Date, wanted: i8) -> i8 {
    let length = day.days_in_month();
    let away = (i32::from(wanted) - i32::from(day.day())).rem_euclid(7);
    match (i32::from(day.weekday().to_sunday_zero_offset()) + away) % 7 {
        6 if wanted == 1 => 3,
        6 => wanted - 1,
        0 if wanted == length => wanted - 2,
        0 => wanted + 1,
        _ => wanted,
    }
}

#[cfg(feature = "fuzzing")]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts a day that a search looks at.
fn count_step() {
    #[cfg(feature = "fuzzing")]
    STEPS.set(STEPS.get() + 1);
}

/// Days that searches of this thread have looked at since the last call.
#[cfg(feature = "fuzzing")]
pub fn cron_steps() -> u64 {
    STEPS.take()
}
