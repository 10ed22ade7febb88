//! Instants as text.

/// The RFC 3339 text of this number of milliseconds since 1970, by Howard Hinnant's algorithm for days.
#[must_use]
pub fn instant(ms: u64) -> String {
    let (days, rest) = (ms / 86_400_000, ms % 86_400_000);
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let m = (5 * day_of_year + 2) / 153;
    let month = if m < 10 { m + 3 } else { m - 9 };
    let (year, day) = (year_of_era + era * 400 + u64::from(month <= 2), day_of_year - (153 * m + 2) / 5 + 1);
    let (h, min, s, ms) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1_000 % 60, rest % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{min:02}:{s:02}.{ms:03}Z")
}
