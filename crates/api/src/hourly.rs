//! Rates of a queue's grants: numbers a second in JSON, and texts such as `10/m` on the command line.

use std::fmt;

use duewheel_core::policy::SECONDS_PER_HOUR;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number that is this far from a whole number an hour counts as that: 0.1666667 a second is 600 an hour.
const TOLERANCE: f64 = 0.001;

/// The largest rate, in messages a second.
const MOST: u32 = u32::MAX;

/// Messages an hour, above 0, that are written as a number a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HourlyRate(pub u64);

impl HourlyRate {
    /// Reads `50`, `0.5`, `10/m` or `600/h`.
    ///
    /// # Errors
    /// The text is no such rate, or one that is not a whole number an hour; a phrase that fits after it.
    pub fn written(text: &str) -> Result<Self, String> {
        let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
        let seconds = match unit {
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3_600.0,
            _ => return Err("the unit is s, m or h: 10/m is ten a minute".into()),
        };
        if !number.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            return Err("not a number above 0, such as 50, 0.5 or 10/m".into());
        }
        let number: f64 = number.parse().map_err(|_| "not a number above 0, such as 50, 0.5 or 10/m")?;
        HourlyRate::of(number / seconds)
    }

    fn of(per_second: f64) -> Result<Self, String> {
        if per_second.is_nan() || per_second <= 0.0 || per_second > f64::from(MOST) {
            return Err(format!("must be more than 0 and at most {MOST}"));
        }
        let hourly = per_second * 3_600.0;
        let nearest = hourly.round().max(1.0);
        if (hourly - nearest).abs() > TOLERANCE {
            return Err(format!(
                "must be a whole number an hour, divided by 3600; the nearest is {}",
                nearest / 3_600.0
            ));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is whole, and above 0 and below 2^44"
        )]
        Ok(HourlyRate(nearest as u64))
    }
}

/// The text that [`HourlyRate::written`] reads, in the largest unit in which it is a whole number.
impl fmt::Display for HourlyRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n.is_multiple_of(SECONDS_PER_HOUR) => write!(f, "{}", n / SECONDS_PER_HOUR),
            n if n.is_multiple_of(60) => write!(f, "{}/m", n / 60),
            n => write!(f, "{n}/h"),
        }
    }
}

impl Serialize for HourlyRate {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(SECONDS_PER_HOUR) {
            return s.serialize_u64(self.0 / SECONDS_PER_HOUR);
        }
        #[expect(clippy::cast_precision_loss, reason = "rates are below 2^44 an hour")]
        s.serialize_f64(self.0 as f64 / 3_600.0)
    }
}

impl<'de> Deserialize<'de> for HourlyRate {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl Visitor<'_> for V {
            type Value = HourlyRate;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a number a second, more than 0 and at most {MOST}")
            }
            fn visit_u64<E: Error>(self, n: u64) -> Result<HourlyRate, E> {
                match u32::try_from(n) {
                    Ok(n @ 1..) => Ok(HourlyRate(u64::from(n) * SECONDS_PER_HOUR)),
                    _ => Err(E::custom(format_args!("must be more than 0 and at most {MOST}"))),
                }
            }
            fn visit_i64<E: Error>(self, n: i64) -> Result<HourlyRate, E> {
                self.visit_u64(u64::try_from(n).unwrap_or(0))
            }
            fn visit_f64<E: Error>(self, n: f64) -> Result<HourlyRate, E> {
                HourlyRate::of(n).map_err(E::custom)
            }
        }
        d.deserialize_f64(V)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for HourlyRate {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "HourlyRate".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "number", "exclusiveMinimum": 0, "maximum": MOST })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Option<u64> {
        serde_json::from_str::<HourlyRate>(json).ok().map(|rate| rate.0)
    }

    #[test]
    fn fractional_rates_survive_json_and_text() {
        for (json, hourly) in
            [("50", 180_000), ("0.5", 1_800), ("1.0", 3_600), ("0.1666667", 600), ("1e-2", 36)]
        {
            assert_eq!(read(json), Some(hourly), "{json}");
        }
        for bad in
            ["0", "0.0", "-1", "-0.5", "0.1667", "0.0001", "1e300", "4294967296", "\"10/m\"", "null", "[1]"]
        {
            assert_eq!(read(bad), None, "{bad}");
        }
        let more = [u64::from(MOST) * 3_600, u64::from(MOST) * 3_600 - 1, 1_000_000_000 * 3_600 - 7];
        for hourly in (1..10_000).chain(more) {
            let rate = HourlyRate(hourly);
            assert_eq!(read(&serde_json::to_string(&rate).unwrap()), Some(hourly));
            assert_eq!(HourlyRate::written(&rate.to_string()), Ok(rate));
        }
    }

    #[test]
    fn rate_texts_have_units() {
        for (text, hourly) in
            [("50", 180_000), ("50/s", 180_000), ("10/m", 600), ("10/min", 600), ("7/h", 7), ("0.5", 1_800)]
        {
            assert_eq!(HourlyRate::written(text), Ok(HourlyRate(hourly)), "{text}");
        }
        for bad in ["", "0", "-1", "10/d", "10/", "/m", "x", "inf", "1e3", "0.3/h", "4294967296", "."] {
            assert!(HourlyRate::written(bad).is_err(), "{bad}");
        }
        let near = HourlyRate::written("0.1667").unwrap_err();
        assert!(near.contains("the nearest is 0.16666666666666666"), "{near}");
    }
}
