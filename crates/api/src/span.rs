//! Lengths of time: `250ms`, `10s`, `30m`, `48h`, `1h30m`, `1.5h`, `2 days`, `1w`, `PT48H`. A day has 24 hours, `m` is
//! minutes, and months and years are refused. On the command line and in files a number alone is seconds.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::{Span, SpanRelativeTo};
use serde::de::{Error, Unexpected, Visitor};

/// Longest text that is read, in bytes.
const MAX_TEXT: usize = 64;

/// A length of time in whole milliseconds; what is finer is rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeSpan(pub u64);

/// Why a text is not a length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadSpan {
    /// The text has another form.
    Form,
    /// The text has months or years.
    Calendar,
    /// The length is below 0.
    Negative,
    /// The length does not fit into 64 bits of milliseconds.
    TooLong,
}

impl fmt::Display for BadSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadSpan::Form => {
                "must be a length of time such as 250ms, 90s, 30m, 1.5h, 48h, 15d, 1w, \"2 days\" or PT48H"
            }
            BadSpan::Calendar => "must not have months or years, whose length differs",
            BadSpan::Negative => "must not be negative",
            BadSpan::TooLong => "is too long",
        })
    }
}

impl std::error::Error for BadSpan {}

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl FromStr for TimeSpan {
    type Err = BadSpan;

    fn from_str(text: &str) -> Result<Self, BadSpan> {
        match plain(text) {
            Err(BadSpan::Form) => spelled(text),
            read => read,
        }
    }
}

/// Whole numbers with the shortest names of units, the larger unit first: what programs write.
fn plain(text: &str) -> Result<TimeSpan, BadSpan> {
    let mut rest = text;
    let mut units = UNITS.as_slice();
    let mut total: u64 = 0;
    if text.is_empty() {
        return Err(BadSpan::Form);
    }
    while !rest.is_empty() {
        let (digits, tail) = split(rest, |b| b.is_ascii_digit());
        let (unit, tail) = split(tail, |b| !b.is_ascii_digit());
        let place = units.iter().position(|(name, _)| *name == unit).ok_or(BadSpan::Form)?;
        if digits.is_empty() {
            return Err(BadSpan::Form);
        }
        let n: u64 = digits.parse().map_err(|_| BadSpan::TooLong)?;
        let ms = n.checked_mul(units[place].1).ok_or(BadSpan::TooLong)?;
        total = total.checked_add(ms).ok_or(BadSpan::TooLong)?;
        units = &units[place + 1..];
        rest = tail;
    }
    Ok(TimeSpan(total))
}

/// Every other spelling.
fn spelled(text: &str) -> Result<TimeSpan, BadSpan> {
    if let Some(rest) = text.strip_prefix('-') {
        return Err(rest.parse::<TimeSpan>().map_or(BadSpan::Form, |_| BadSpan::Negative));
    }
    if text.len() > MAX_TEXT
        || text.ends_with(char::is_whitespace)
        || !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, 'P' | 'p'))
    {
        return Err(BadSpan::Form);
    }
    let span = parsed(text)?;
    if span.is_negative() {
        return Err(BadSpan::Negative);
    }
    if span.get_years() != 0 || span.get_months() != 0 {
        return Err(BadSpan::Calendar);
    }
    let length = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| BadSpan::TooLong)?;
    // Never earlier than written.
    let ms = u64::try_from(length.as_nanos()).map_err(|_| BadSpan::TooLong)?.div_ceil(1_000_000);
    Ok(TimeSpan(ms))
}

/// The span of a text. What people may mean in another way is refused: a comma within a number, which the parser takes
/// for a decimal point, and `1:30`.
///
/// # Errors
/// [`BadSpan::Form`].
pub fn parsed(text: &str) -> Result<Span, BadSpan> {
    let is_in_number = |at: usize| text[..at].ends_with(|c: char| c.is_ascii_digit());
    if text.contains(':') || text.match_indices(',').any(|(at, _)| is_in_number(at)) {
        return Err(BadSpan::Form);
    }
    text.parse().map_err(|_| BadSpan::Form)
}

fn split(s: &str, belongs: impl Fn(u8) -> bool) -> (&str, &str) {
    // Ends on a character boundary: digits are ASCII, and a run of other bytes ends before an ASCII digit or the end.
    s.split_at(s.bytes().take_while(|b| belongs(*b)).count())
}

/// Reads a length of time as people write it, on the command line, in variables and in files: with a leading `in`, or a
/// number alone, which is seconds.
///
/// # Errors
/// [`BadSpan`] when the text is no length of time.
pub fn written(text: &str) -> Result<TimeSpan, BadSpan> {
    let said = text.trim();
    let said = match said.split_once(' ') {
        Some((word, rest)) if word.eq_ignore_ascii_case("in") => rest.trim(),
        _ => said,
    };
    if let Some(rest) = said.strip_prefix('-') {
        return Err(written(rest).map_or(BadSpan::Form, |_| BadSpan::Negative));
    }
    if is_number(said) {
        let seconds: u64 = said.parse().map_err(|_| BadSpan::TooLong)?;
        return Ok(TimeSpan(seconds.checked_mul(1_000).ok_or(BadSpan::TooLong)?));
    }
    said.parse()
}

/// The length of time of a text; `None` if it is none.
pub fn duration(text: &str) -> Option<Duration> {
    text.parse::<TimeSpan>().ok().map(Duration::from)
}

/// Whether a text has digits alone.
pub fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

impl fmt::Display for TimeSpan {
    /// The shortest text that [`FromStr`] reads back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let mut left = self.0;
        for (name, ms) in UNITS {
            if left >= ms {
                write!(f, "{}{name}", left / ms)?;
                left %= ms;
            }
        }
        Ok(())
    }
}

impl From<TimeSpan> for Duration {
    fn from(span: TimeSpan) -> Duration {
        Duration::from_millis(span.0)
    }
}

impl<'de> serde::Deserialize<'de> for TimeSpan {
    /// Reads what a file has: a text as people write it, or a number of seconds.
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let form = "a length of time such as \"90s\", or a number of seconds";
        d.deserialize_any(SpanVisitor { read: written, form })
    }
}

/// A length of time in a request: text alone, because a bare number has no unit. One that is too long for 64 bits is the
/// longest, which every limit refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanText(pub u64);

impl<'de> serde::Deserialize<'de> for SpanText {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let read = |text: &str| match text.parse() {
            Err(BadSpan::TooLong) => Ok(TimeSpan(u64::MAX)),
            read => read,
        };
        let form = "a length of time as text, such as \"90s\"";
        let TimeSpan(ms) = d.deserialize_str(SpanVisitor { read, form })?;
        Ok(SpanText(ms))
    }
}

/// Reads texts, and numbers of seconds where the caller accepts more than texts.
struct SpanVisitor {
    read: fn(&str) -> Result<TimeSpan, BadSpan>,
    /// The accepted forms.
    form: &'static str,
}

impl Visitor<'_> for SpanVisitor {
    type Value = TimeSpan;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.form)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<TimeSpan, E> {
        (self.read)(text).map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, seconds: i64) -> Result<TimeSpan, E> {
        let ms = u64::try_from(seconds).ok().and_then(|seconds| seconds.checked_mul(1_000));
        ms.map(TimeSpan).ok_or_else(|| E::invalid_value(Unexpected::Signed(seconds), &self))
    }

    fn visit_u64<E: Error>(self, seconds: u64) -> Result<TimeSpan, E> {
        let ms = seconds.checked_mul(1_000);
        ms.map(TimeSpan).ok_or_else(|| E::invalid_value(Unexpected::Unsigned(seconds), &self))
    }
}

/// The length of time that a request gives as a number of milliseconds or as text, but not as both.
///
/// # Errors
/// Why the field of the text is wrong: both are given.
pub fn either(ms: Option<u64>, text: Option<SpanText>, field: &str) -> Result<Option<u64>, String> {
    match (ms, text) {
        (Some(_), Some(_)) => Err(format!("goes instead of {field}_ms, not with it")),
        (ms, text) => Ok(ms.or(text.map(|SpanText(ms)| ms))),
    }
}

impl serde::Serialize for TimeSpan {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units() {
        for (text, ms) in [
            ("0s", 0),
            ("250ms", 250),
            ("10s", 10_000),
            ("30m", 1_800_000),
            ("48h", 172_800_000),
            ("15d", 1_296_000_000),
            ("1h30m", 5_400_000),
            ("1d1ms", 86_400_001),
        ] {
            assert_eq!(text.parse(), Ok(TimeSpan(ms)), "{text}");
        }
        for (text, ms) in [
            ("1.5h", 5_400_000),
            ("1w", 604_800_000),
            ("2 days", 172_800_000),
            ("1 hour, 30 minutes", 5_400_000),
            ("PT48H", 172_800_000),
            ("1 us", 1),
        ] {
            assert_eq!(text.parse(), Ok(TimeSpan(ms)), "{text}");
        }
        for bad in ["", "10", "s", "+1s", " 1s", "1s ", "1m1h", "1s1s", "1ä", "1sß", "soon", "in 2 days"] {
            assert_eq!(bad.parse::<TimeSpan>(), Err(BadSpan::Form), "{bad}");
        }
        // Story: a comma was a decimal point, so that 10,000 hours were ten.
        for mistakable in ["10,000 h", "1,000s", "1,5h", "2h 1,000s", "PT1,5H", "01:30:00", "1h 01:30:00"] {
            assert_eq!(mistakable.parse::<TimeSpan>(), Err(BadSpan::Form), "{mistakable}");
        }
        for calendar in ["1mo", "1y", "2 months", "P1M", "P1Y2D"] {
            assert_eq!(calendar.parse::<TimeSpan>(), Err(BadSpan::Calendar), "{calendar}");
        }
        for negative in ["-1s", "-PT48H", "5s ago"] {
            assert_eq!(negative.parse::<TimeSpan>(), Err(BadSpan::Negative), "{negative}");
        }
        let long = "1".repeat(70) + " seconds";
        assert_eq!(long.parse::<TimeSpan>(), Err(BadSpan::Form));
        assert_eq!("99999999999999999999s".parse::<TimeSpan>(), Err(BadSpan::TooLong));
        assert_eq!("213503982335d".parse::<TimeSpan>(), Err(BadSpan::TooLong));
    }

    proptest! {
        #[test]
        fn text_comes_back(ms: u64) {
            prop_assert_eq!(TimeSpan(ms).to_string().parse(), Ok(TimeSpan(ms)));
        }

        #[test]
        fn nothing_panics(s in "\\PC{0,12}") {
            let _ = s.parse::<TimeSpan>();
        }
    }
}
