//! JSON output: the small values of answers, and one buffer for each answer.

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use duewheel::core::message::RESULT_HEADER;
use duewheel::core::store::Level;
use duewheel::core::{LeaseToken, MessageId, WallMs};
use duewheel_delivery::TARGET_URL_HEADER;
use serde::{Serialize, Serializer};

use crate::rfc3339;
use crate::schema::{
    Base64Schema, HeadersSchema, IdSchema, InstantSchema, KeySchema, LevelSchema, QueueSchema, TokenSchema,
    same_schema,
};

/// A value as JSON, in a buffer with an initial capacity of `capacity` bytes.
pub(crate) fn written(capacity: usize, value: &impl Serialize) -> Vec<u8> {
    let mut out = Vec::with_capacity(capacity);
    write(&mut out, value);
    out
}

/// An answer of its own: a value as [`written`], and the end of the line for terminals.
pub(crate) fn line(capacity: usize, value: &impl Serialize) -> Vec<u8> {
    let mut out = written(capacity, value);
    out.push(b'\n');
    out
}

/// Appends one value.
pub(crate) fn write(out: &mut Vec<u8>, value: &impl Serialize) {
    // Writing to a vector does not fail, and all keys of answers are strings.
    let _ = serde_json::to_writer(out, value);
}

/// An id: a decimal string, because a JSON number is a double in too many languages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdText(pub(crate) MessageId);

impl Serialize for IdText {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(itoa::Buffer::new().format(self.0.0))
    }
}

/// The name of a queue.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct QueueText<'a>(pub(crate) &'a str);

/// A key.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct KeyText<'a>(pub(crate) &'a str);

/// A level of durability.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LevelText(pub(crate) Level);

impl Serialize for LevelText {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.0.as_str())
    }
}

/// An instant by RFC 3339.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InstantText(pub(crate) WallMs);

impl Serialize for InstantText {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&String::from_utf8_lossy(&rfc3339::text(self.0)))
    }
}

/// A lease token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenText(pub(crate) LeaseToken);

impl Serialize for TokenText {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&self.0)
    }
}

/// A number that is counted in thousandths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thousandths(pub(crate) u64);

impl Serialize for Thousandths {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(1_000) {
            return s.serialize_u64(self.0 / 1_000);
        }
        // Rates are far below 2^53 thousandths: the shortest digits of the quotient are the decimal fraction.
        #[allow(clippy::cast_precision_loss, reason = "as said above")]
        s.serialize_f64(self.0 as f64 / 1_000.0)
    }
}

/// Bytes in base64.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Base64Text<'a>(pub(crate) &'a [u8]);

impl Serialize for Base64Text<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&Base64Display::new(self.0, &STANDARD))
    }
}

/// Names and values of headers, in order. The URL of a message is none of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeaderPairs<'a>(pub(crate) &'a [(Box<str>, Box<str>)]);

impl Serialize for HeaderPairs<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let has_member = |name: &str| [TARGET_URL_HEADER, RESULT_HEADER].contains(&name);
        let shown = self.0.iter().filter(|(name, _)| !has_member(name));
        s.collect_map(shown.map(|(name, value)| (name, value)))
    }
}

/// A list whose elements are made while they are written, one after the other: of source values, by a function.
#[derive(Debug)]
pub(crate) struct Elements<'a, S, T>(pub(crate) &'a [S], pub(crate) fn(&'a S) -> T);

impl<S, T: Serialize> Serialize for Elements<'_, S, T> {
    fn serialize<Z: Serializer>(&self, s: Z) -> Result<Z::Ok, Z::Error> {
        s.collect_seq(self.0.iter().map(self.1))
    }
}

same_schema! {
    impl[] IdText as IdSchema;
    impl['a] QueueText<'a> as QueueSchema;
    impl['a] KeyText<'a> as KeySchema;
    impl[] LevelText as LevelSchema;
    impl[] InstantText as InstantSchema;
    impl[] TokenText as TokenSchema;
    impl[] Thousandths as f64;
    impl['a] Base64Text<'a> as Base64Schema;
    impl['a] HeaderPairs<'a> as HeadersSchema;
    impl['a, S, T: schemars::JsonSchema] Elements<'a, S, T> as Vec<T>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_values_are_written_as_documented() {
        assert_eq!(shown(&IdText(MessageId(u64::MAX))), "\"18446744073709551615\"");
        assert_eq!(shown(&InstantText(WallMs(1))), "\"1970-01-01T00:00:00.001Z\"");
        for (thousandths, text) in
            [(0, "0"), (2_000, "2"), (12_340, "12.34"), (1, "0.001"), (999_999, "999.999")]
        {
            assert_eq!(shown(&Thousandths(thousandths)), text);
        }
        assert_eq!(shown(&Base64Text(b"\xff\x00")), "\"/wA=\"");
        let headers: [(Box<str>, Box<str>); 2] = [("x-\"y".into(), "1".into()), ("b".into(), "2".into())];
        assert_eq!(shown(&HeaderPairs(&headers)), r#"{"x-\"y":"1","b":"2"}"#);
        assert_eq!(shown(&Elements(&[1u8, 2], |n| n + 1)), "[2,3]");
    }

    fn shown(value: &impl Serialize) -> String {
        String::from_utf8(written(0, value)).unwrap()
    }
}
