//! Lengths of time as people write them.

use std::time::Duration;

use jiff::{Span, SpanRelativeTo};

/// Longest text that is read as a length of time, in bytes.
const MAX_TEXT: usize = 64;

/// A length of time such as `250ms`, `15m` or `1h30m`; a day has 24 hours. `None`: it is not one, or it is negative.
pub(crate) fn parse_length(text: &str) -> Option<Duration> {
    if text.len() > MAX_TEXT || !text.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let span: Span = text.parse().ok()?;
    let length = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    Duration::try_from(length).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths() {
        for (text, ms) in
            [("5s", 5_000), ("15m", 900_000), ("250ms", 250), ("1h30m", 5_400_000), ("2d", 172_800_000)]
        {
            assert_eq!(parse_length(text), Some(Duration::from_millis(ms)), "{text}");
        }
        let long = "1".repeat(70) + "s";
        for text in ["", "5", "-5s", "5s ago", "1mo", "1y", "soon", "s", "P1D", &long] {
            assert_eq!(parse_length(text), None, "{text}");
        }
    }
}
