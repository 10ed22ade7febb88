//! Verdicts on messages, read from the answers of their targets.

use std::time::{Duration, SystemTime};

use duewheel_api::span;
use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, RETRY_AFTER};

use crate::limits::{MAX_EXCERPT, MAX_RETRY_AFTER, MAX_SNOOZE, MIN_RETRY_AFTER};

/// The consequence of an attempt for its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushVerdict {
    /// The message is delivered.
    Delivered,
    /// The target has taken note and wants it again after this time (`duewheel-snooze`). No attempt is used up.
    Snoozed(Duration),
    /// The target is busy, and wants it after this time (429 or 503 with `Retry-After`). No attempt is used up, unless a
    /// message's own URL has an origin where nothing has succeeded for days.
    Slowed(Duration),
    /// The target takes no more messages (410, or `webhook-delivery: disable`). No attempt is used up.
    Refused,
    /// The target will never take this message (`webhook-delivery: abort-message`, or a code in `dead_on`).
    Dead,
    /// The attempt has failed.
    Failed,
}

/// An answer, judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub(crate) verdict: PushVerdict,
    /// Whether the target takes no more messages after this one.
    pub(crate) disable: bool,
    /// Whether a 2xx asks for a snooze whose length cannot be read.
    pub(crate) bad_snooze: bool,
}

const DELIVERY: HeaderName = HeaderName::from_static("webhook-delivery");
const SNOOZE: HeaderName = HeaderName::from_static("duewheel-snooze");

/// Judges status and headers of an answer.
pub(crate) fn judge(status: StatusCode, headers: &HeaderMap, dead_on: &[u16], now: SystemTime) -> Judgement {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let delivery = text(&DELIVERY);
    let disable = delivery == Some("disable") || status == StatusCode::GONE;
    let mut bad_snooze = false;
    let verdict = if status.is_success() {
        match headers.contains_key(SNOOZE).then(|| text(&SNOOZE).and_then(span::duration)) {
            None => PushVerdict::Delivered,
            Some(Some(length)) => PushVerdict::Snoozed(length.clamp(MIN_RETRY_AFTER, MAX_SNOOZE)),
            // The target does not want to have had it. An ack would lose the message.
            Some(None) => {
                bad_snooze = true;
                PushVerdict::Failed
            }
        }
    } else if delivery == Some("abort-message") || dead_on.contains(&status.as_u16()) {
        PushVerdict::Dead
    } else if disable {
        PushVerdict::Refused
    } else if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
        && let Some(after) = text(&RETRY_AFTER).and_then(|value| retry_after(value, now))
    {
        PushVerdict::Slowed(after)
    } else {
        PushVerdict::Failed
    };
    Judgement { verdict, disable, bad_snooze }
}

/// The delay that `Retry-After` asks for, in seconds or as a date, within limits.
fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let after = if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default()
    };
    Some(after.clamp(MIN_RETRY_AFTER, MAX_RETRY_AFTER))
}

/// The beginning of an answer as text for people: without control characters and without characters that turn the
/// direction of writing, at most [`MAX_EXCERPT`] bytes.
pub(crate) fn excerpt(body: &[u8]) -> String {
    let cut = &body[..body.len().min(MAX_EXCERPT)];
    let mut text = String::with_capacity(cut.len());
    for c in String::from_utf8_lossy(cut).chars() {
        let hidden = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{61c}');
        let shown = match c {
            '\n' | '\t' => c,
            _ if c.is_control() || hidden => char::REPLACEMENT_CHARACTER,
            _ => c,
        };
        if text.len() + shown.len_utf8() > MAX_EXCERPT {
            break;
        }
        text.push(shown);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn judged(status: u16, headers: &[(&'static str, &str)]) -> Judgement {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        // Sun, 06 Nov 1994 08:49:37 GMT
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        judge(StatusCode::from_u16(status).unwrap(), &map, &[422, 302], now)
    }

    #[test]
    fn each_status_has_its_verdict() {
        use PushVerdict::{Dead, Delivered, Failed, Refused};
        for (statuses, verdict) in [
            (&[200, 201, 202, 204, 299][..], Delivered),
            (&[101, 301, 303, 304, 307, 308, 400, 401, 404, 429, 500, 502, 503, 504, 599, 999], Failed),
            (&[410], Refused),
            (&[422, 302], Dead),
        ] {
            for status in statuses {
                let judgement = judged(*status, &[]);
                assert_eq!(judgement.verdict, verdict, "{status}");
                assert_eq!(judgement.disable, *status == 410, "{status}");
            }
        }
    }

    #[test]
    fn what_headers_ask_for() {
        let seconds = |n| Duration::from_secs(n);
        use PushVerdict::{Dead, Delivered, Failed, Refused, Slowed, Snoozed};
        for (status, header, verdict) in [
            (500, ("webhook-delivery", "disable"), Refused),
            (500, ("webhook-delivery", "abort-message"), Dead),
            (410, ("webhook-delivery", "abort-message"), Dead),
            (500, ("webhook-delivery", "whatever"), Failed),
            (200, ("webhook-delivery", "abort-message"), Delivered),
            (429, ("retry-after", "120"), Slowed(seconds(120))),
            (503, ("retry-after", "0"), Slowed(seconds(1))),
            (503, ("retry-after", "Sun, 06 Nov 1994 08:50:37 GMT"), Slowed(seconds(60))),
            (503, ("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT"), Slowed(seconds(1))),
            (429, ("retry-after", "99999999999999999999999999"), Slowed(DAY)),
            (429, ("retry-after", "-1"), Failed),
            (429, ("retry-after", "soon"), Failed),
            (500, ("retry-after", "120"), Failed),
            (200, ("duewheel-snooze", "15m"), Snoozed(seconds(900))),
            (202, ("duewheel-snooze", "0s"), Snoozed(seconds(1))),
            (200, ("duewheel-snooze", "3000d"), Snoozed(365 * DAY)),
            (200, ("duewheel-snooze", "later"), Failed),
            (500, ("duewheel-snooze", "15m"), Failed),
        ] {
            assert_eq!(judged(status, &[header]).verdict, verdict, "{status} {header:?}");
        }
        // The message is done, and it was the last one.
        let last = judged(200, &[("webhook-delivery", "disable")]);
        assert_eq!((last.verdict, last.disable), (Delivered, true));
    }

    #[test]
    fn an_excerpt_has_nothing_that_hides() {
        assert_eq!(excerpt(b"no such order\n\tat 1"), "no such order\n\tat 1");
        assert_eq!(
            excerpt("a\u{1b}[31m\0\u{202e}\u{200b}b\r".as_bytes()),
            "a\u{fffd}[31m\u{fffd}\u{fffd}\u{fffd}b\u{fffd}"
        );
        assert_eq!(excerpt(&[b'a', 0xff, b'b']), "a\u{fffd}b");
        for long in [vec![b'x'; 5_000], "é".repeat(5_000).into_bytes(), vec![0xff; 5_000], vec![0; 5_000]] {
            let text = excerpt(&long);
            assert!(text.len() <= MAX_EXCERPT && text.len() > MAX_EXCERPT - 4, "{}", text.len());
        }
    }
}
