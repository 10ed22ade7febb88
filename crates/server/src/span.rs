//! Lengths of time as people write them: `250ms`, `10s`, `30m`, `48h`, `15d`, `1h30m`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

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
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
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
