//! Instants in JSON and on the command line: RFC 3339 in, RFC 3339 with milliseconds and `Z` out.
//!
//! The code is written by hand, because each accepted message writes an instant and nothing is allocated for it. Tests
//! compare it with jiff.

use std::fmt;

use duewheel_core::WallMs;

const DAY_MS: u64 = 86_400_000;
/// 9999-12-31T23:59:59.999Z, the last instant that four digits of a year can show.
const LAST_MS: u64 = 253_402_300_799_999;

/// The text is not an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadInstant;

impl fmt::Display for BadInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must be an RFC 3339 instant with an offset, such as 2026-01-31T08:00:00Z or 2026-01-31T09:00:00.250+01:00, up to the year 9999")
    }
}

impl std::error::Error for BadInstant {}

/// The text of an instant, always 24 bytes; an instant beyond the year 9999 shows as that year's last millisecond.
///
/// ```
/// use duewheel_core::WallMs;
/// assert_eq!(&duewheel_api::rfc3339::text(WallMs(0)), b"1970-01-01T00:00:00.000Z");
/// ```
pub fn text(t: WallMs) -> [u8; 24] {
    let ms = t.0.min(LAST_MS);
    let (year, month, day) = civil_from_days(ms / DAY_MS);
    let rest = ms % DAY_MS;
    let mut out = *b"0000-00-00T00:00:00.000Z";
    put(&mut out[0..4], year);
    put(&mut out[5..7], month);
    put(&mut out[8..10], day);
    put(&mut out[11..13], rest / 3_600_000);
    put(&mut out[14..16], rest / 60_000 % 60);
    put(&mut out[17..19], rest / 1_000 % 60);
    put(&mut out[20..23], rest % 1_000);
    out
}

/// The text of an instant as a `String`, for people.
pub fn string(t: WallMs) -> String {
    String::from_utf8_lossy(&text(t)).into_owned()
}

/// Reads an instant. A finer fraction than a millisecond is rounded up; an instant before 1970 is 1970, which has
/// passed as well; a leap second is the second after it.
///
/// ```
/// use duewheel_core::WallMs;
/// assert_eq!(duewheel_api::rfc3339::parse("1970-01-01T01:00:00.0001+01:00"), Ok(WallMs(1)));
/// assert!(duewheel_api::rfc3339::parse("1970-01-01T01:00:00").is_err(), "no offset, no instant");
/// ```
///
/// # Errors
/// [`BadInstant`] when the text is not an instant by RFC 3339.
pub fn parse(s: &str) -> Result<WallMs, BadInstant> {
    let b = s.as_bytes();
    if b.len() < 20 || b[4] != b'-' || b[7] != b'-' || b[13] != b':' || b[16] != b':' {
        return Err(BadInstant);
    }
    if !matches!(b[10], b'T' | b't' | b' ') {
        return Err(BadInstant);
    }
    let year = number(&b[0..4])?;
    let month = within(number(&b[5..7])?, 1, 12)?;
    let day = within(number(&b[8..10])?, 1, days_of_month(year, month))?;
    let hour = within(number(&b[11..13])?, 0, 23)?;
    let minute = within(number(&b[14..16])?, 0, 59)?;
    let second = within(number(&b[17..19])?, 0, 60)?;
    let (fraction_ms, offset) = fraction(&b[19..])?;
    let seconds = days_from_civil(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    let ms = (seconds - offset_seconds(offset)?) * 1_000 + fraction_ms;
    let ms = u64::try_from(ms).unwrap_or(0);
    if ms > LAST_MS { Err(BadInstant) } else { Ok(WallMs(ms)) }
}

/// Milliseconds of the fraction, if there is one, and the rest of the text.
fn fraction(b: &[u8]) -> Result<(i64, &[u8]), BadInstant> {
    let Some((b'.', rest)) = b.split_first() else { return Ok((0, b)) };
    let digits = rest.iter().take_while(|c| c.is_ascii_digit()).count();
    if digits == 0 {
        return Err(BadInstant);
    }
    let (digits, rest) = rest.split_at(digits);
    let mut ms = 0;
    for i in 0..3 {
        ms = ms * 10 + digits.get(i).map_or(0, |d| i64::from(d - b'0'));
    }
    let finer = digits.iter().skip(3).any(|d| *d != b'0');
    Ok((ms + i64::from(finer), rest))
}

fn offset_seconds(b: &[u8]) -> Result<i64, BadInstant> {
    match b {
        [b'Z' | b'z'] => Ok(0),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let hours = within(number(&[*h1, *h2])?, 0, 23)?;
            let minutes = within(number(&[*m1, *m2])?, 0, 59)?;
            let seconds = hours * 3_600 + minutes * 60;
            Ok(if *sign == b'+' { seconds } else { -seconds })
        }
        _ => Err(BadInstant),
    }
}

fn number(digits: &[u8]) -> Result<i64, BadInstant> {
    let mut n = 0;
    for d in digits {
        if !d.is_ascii_digit() {
            return Err(BadInstant);
        }
        n = n * 10 + i64::from(d - b'0');
    }
    Ok(n)
}

fn within(n: i64, low: i64, high: i64) -> Result<i64, BadInstant> {
    if (low..=high).contains(&n) { Ok(n) } else { Err(BadInstant) }
}

fn days_of_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms": days since 1970-01-01 in the Gregorian calendar.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let year_of_era = y.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The inverse, for days from 1970 on.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let m = (5 * day_of_year + 2) / 153;
    let month = if m < 10 { m + 3 } else { m - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day_of_year - (153 * m + 2) / 5 + 1)
}

/// Writes `n` right-aligned over existing zeros.
fn put(out: &mut [u8], mut n: u64) {
    for digit in out.iter_mut().rev() {
        *digit = b"0123456789"[usize::try_from(n % 10).unwrap_or(0)];
        n /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn output_is_what_jiff_writes_and_comes_back(ms in 0..=LAST_MS) {
            let ours = string(WallMs(ms));
            let jiff = jiff::Timestamp::from_millisecond(i64::try_from(ms).unwrap()).unwrap();
            prop_assert_eq!(&ours, &format!("{jiff:.3}"));
            prop_assert_eq!(parse(&ours), Ok(WallMs(ms)));
        }

        #[test]
        fn any_offset_means_the_same_instant(ms in DAY_MS..LAST_MS - DAY_MS, minutes in -1439i64..=1439) {
            let shifted = u64::try_from(i64::try_from(ms).unwrap() + minutes * 60_000).unwrap();
            let mut s = string(WallMs(shifted));
            s.pop();
            let sign = if minutes < 0 { '-' } else { '+' };
            s.push_str(&format!("{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60));
            prop_assert_eq!(parse(&s), Ok(WallMs(ms)));
        }
    }

    #[test]
    fn finer_than_a_millisecond_is_rounded_up() {
        assert_eq!(parse("1970-01-01T00:00:00.5Z"), Ok(WallMs(500)));
        assert_eq!(parse("1970-01-01T00:00:00.001Z"), Ok(WallMs(1)));
        assert_eq!(parse("1970-01-01T00:00:00.0010Z"), Ok(WallMs(1)));
        assert_eq!(parse("1970-01-01T00:00:00.00100000000001Z"), Ok(WallMs(2)));
        assert_eq!(parse("1970-01-01T00:00:00.9999Z"), Ok(WallMs(1_000)));
        assert_eq!(parse("2016-12-31t23:59:60z"), parse("2017-01-01T00:00:00Z"), "leap second");
        assert_eq!(parse("1969-07-20T20:17:40Z"), Ok(WallMs(0)));
    }

    #[test]
    fn bad_instants_are_refused() {
        for bad in [
            "",
            "tomorrow",
            "2026-01-31",
            "2026-01-31T08:00:00",
            "2026-01-31T08:00Z",
            "2026-02-29T08:00:00Z",
            "2026-13-01T08:00:00Z",
            "2026-01-31T24:00:00Z",
            "2026-01-31T08:60:00Z",
            "2026-01-31T08:00:61Z",
            "2026-01-31T08:00:00.Z",
            "2026-01-31T08:00:00+2:00",
            "2026-01-31T08:00:00+0200",
            "2026-01-31T08:00:00+02:60",
            "2026-01-31T08:00:00Z ",
            "20261130T090000Z",
            "2026-01-31T08:00:00+01:00[Europe/Paris]",
            "2026-01-31T08:00:00+01:00:00",
            "2026-01-31T08:00:00,5Z",
            "+10000-01-01T00:00:00Z",
            "10000-01-01T00:00:00Z",
            "9999-12-31T23:59:59.9999Z",
            "9999-12-31T23:59:59-00:01",
            "２026-01-31T08:00:00Z",
        ] {
            assert_eq!(parse(bad), Err(BadInstant), "{bad}");
        }
    }
}
