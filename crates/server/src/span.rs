//! Lengths of time: `250ms`, `10s`, `30m`, `48h`, `15d`, `1h30m`; and, where people write them, also `1.5h`, `2 days`,
//! `PT48H`, and a number alone, which is seconds.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::{Span, SpanRelativeTo};
use serde::de::{Error, Unexpected, Visitor};

/// A length of time in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeSpan(pub u64);

/// Why a text is not a length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadSpan {
    /// The text has another form.
    Form,
    /// The length does not fit into 64 bits of milliseconds.
    TooLong,
}

impl fmt::Display for BadSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadSpan::Form => f.write_str(
                "must be whole numbers with the units d, h, m, s, ms, the larger unit first, such as 250ms, 10s, 48h or 1h30m",
            ),
            BadSpan::TooLong => f.write_str("is too long"),
        }
    }
}

impl std::error::Error for BadSpan {}

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl FromStr for TimeSpan {
    type Err = BadSpan;

    fn from_str(s: &str) -> Result<Self, BadSpan> {
        let mut rest = s;
        let mut units = UNITS.as_slice();
        let mut total: u64 = 0;
        if s.is_empty() {
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
}

fn split(s: &str, belongs: impl Fn(u8) -> bool) -> (&str, &str) {
    // Ends on a character boundary: digits are ASCII, and a run of other bytes ends before an ASCII digit or the end.
    s.split_at(s.bytes().take_while(|b| belongs(*b)).count())
}

/// The error of [`written`] for a text that is no length of time.
pub(crate) const SPANS: &str =
    "must be a length of time such as 250ms, 90s, 1.5h, 48h, 15d, \"2 days\" or PT48H";

/// Reads a length of time as people write it, on the command line, in variables and in files. HTTP reads [`TimeSpan`]
/// alone.
pub(crate) fn written(text: &str) -> Result<TimeSpan, String> {
    let said = text.trim();
    let said = match said.split_once(' ') {
        Some((word, rest)) if word.eq_ignore_ascii_case("in") => rest.trim(),
        _ => said,
    };
    if said.strip_prefix('-').is_some_and(|rest| written(rest).is_ok()) {
        return Err("must not be negative".to_owned());
    }
    if let Ok(span) = said.parse() {
        return Ok(span);
    }
    if is_number(said) {
        let seconds: u64 = said.parse().map_err(|_| "is too long".to_owned())?;
        return Ok(TimeSpan(seconds.checked_mul(1_000).ok_or("is too long")?));
    }
    let span: Span = said.parse().map_err(|_| SPANS.to_owned())?;
    if span.is_negative() {
        return Err("must not be negative".to_owned());
    }
    if span.get_years() != 0 || span.get_months() != 0 {
        return Err("must not have months or years, whose length differs".to_owned());
    }
    let length =
        span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| "is too long".to_owned())?;
    // Never earlier than said.
    let ms = u64::try_from(length.as_nanos()).map_err(|_| "is too long".to_owned())?.div_ceil(1_000_000);
    Ok(TimeSpan(ms))
}

/// Whether a text has digits alone.
pub(crate) fn is_number(text: &str) -> bool {
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
        struct V;
        impl Visitor<'_> for V {
            type Value = TimeSpan;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a length of time such as \"90s\", or a number of seconds")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<TimeSpan, E> {
                written(text).map_err(E::custom)
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
        d.deserialize_any(V)
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
        for bad in [
            "", "10", "s", "1.5h", "-1s", "+1s", " 1s", "1 s", "1S", "1m1h", "1s1s", "1w", "1sec", "1ä",
            "1sß",
        ] {
            assert_eq!(bad.parse::<TimeSpan>(), Err(BadSpan::Form), "{bad}");
        }
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
