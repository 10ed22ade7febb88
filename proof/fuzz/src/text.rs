//! Texts that people and programs write: instants, lengths of time, names, tokens; and the replies of a beanstalkd to
//! an import.

use duewheel_api::rfc3339;
use duewheel_api::span::TimeSpan;
use duewheel_cli::fuzzing::import as replies;
use duewheel_core::{Key, LeaseToken, MessageId, QueueName, WallMs};

/// Parses each text as each of these.
pub fn text(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        instant(text);
        span(text);
        names(text);
        import(text);
    }
}

fn instant(text: &str) {
    let ours = rfc3339::parse(text);
    if let Ok(WallMs(ms)) = ours {
        let shown = rfc3339::string(WallMs(ms));
        assert_eq!(rfc3339::parse(&shown), Ok(WallMs(ms)), "{text} comes back as something else");
    }
    // The library reads more forms than RFC 3339 has; where both accept a text the instant is the same, and ours
    // refuses nothing that the library writes.
    let Ok(theirs) = text.parse::<jiff::Timestamp>() else { return };
    if let Ok(WallMs(ms)) = ours {
        let up = i64::from(theirs.as_nanosecond().rem_euclid(1_000_000) != 0);
        let floor = i64::try_from(theirs.as_nanosecond().div_euclid(1_000_000)).unwrap_or(i64::MAX);
        let wanted = u64::try_from(floor + up).unwrap_or(0);
        // A leap second, or more than nine digits, may be read differently.
        let same_grain = !text.contains(":60") && text.bytes().filter(u8::is_ascii_digit).count() <= 27;
        assert!(!same_grain || ms == wanted, "{text}: {ms}, and {wanted} by jiff");
    }
    let back = rfc3339::parse(&theirs.to_string());
    let in_range = theirs >= jiff::Timestamp::UNIX_EPOCH && theirs.as_millisecond() < 253_402_300_799_999;
    assert!(!in_range || back.is_ok(), "{theirs} is refused");
}

fn span(text: &str) {
    let Ok(span) = text.parse::<TimeSpan>() else { return };
    assert_eq!(span.to_string().parse(), Ok(span), "{text} comes back as something else");
    let json = serde_json::to_string(text).expect("a text is JSON");
    assert_eq!(serde_json::from_str::<TimeSpan>(&json).ok(), Some(span), "{text} in JSON");
}

fn names(text: &str) {
    let name = QueueName::new(text);
    assert!(name.is_err() || (1..=200).contains(&text.len()));
    if let Ok(name) = name {
        assert_eq!(QueueName::stored(text).as_ref(), Ok(&name), "{text:?} is not read again");
    }
    if let Ok(key) = Key::new(text) {
        assert_eq!(key.as_str(), text);
        assert!((1..=512).contains(&text.len()));
        let path =
            percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
        assert_eq!(percent_encoding::percent_decode_str(&path).decode_utf8().as_deref(), Ok(text));
    }
    if let Ok(token) = text.parse::<LeaseToken>() {
        assert_eq!(token.to_string().parse(), Ok(token), "{text}");
        assert!(token.to_string().eq_ignore_ascii_case(text));
    }
    if let Ok(id) = text.parse::<MessageId>() {
        assert_eq!(id.to_string().parse(), Ok(id), "{text}");
    }
}

fn import(text: &str) {
    let understood = replies::replies(text);
    if understood.iter().any(Option::is_some) {
        assert!(text.starts_with("---\n"), "this is no YAML");
    }
    if let Some([id, bytes]) = replies::numbers(text, "FOUND") {
        assert!(text.starts_with("FOUND ") && !text.contains('+'));
        let plain = format!("FOUND {id} {bytes}");
        assert_eq!(replies::numbers(&plain, "FOUND"), Some([id, bytes]));
    }
}
