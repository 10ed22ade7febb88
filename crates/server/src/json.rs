//! JSON out: one buffer, written front to back.

use bytes::Bytes;
use duewheel::core::{MessageId, WallMs};

use crate::decimal::digits;
use crate::rfc3339;

/// Writes JSON objects into one buffer. The caller opens and closes; commas are written here.
#[derive(Debug, Default)]
pub(crate) struct Json {
    out: Vec<u8>,
}

impl Json {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Json { out: Vec::with_capacity(bytes) }
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        self.out.into()
    }

    /// Bytes so far.
    pub(crate) fn len(&self) -> usize {
        self.out.len()
    }

    fn comma(&mut self) {
        if !matches!(self.out.last(), None | Some(b'{' | b'[' | b'\n')) {
            self.out.push(b',');
        }
    }

    fn name(&mut self, name: &'static str) {
        self.comma();
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    /// Starts an object as the next element.
    pub(crate) fn open(&mut self) {
        self.comma();
        self.out.push(b'{');
    }

    /// Starts an object as a member.
    pub(crate) fn open_member(&mut self, name: &'static str) {
        self.name(name);
        self.out.push(b'{');
    }

    pub(crate) fn close(&mut self) {
        self.out.push(b'}');
    }

    /// Ends a line of NDJSON.
    pub(crate) fn newline(&mut self) {
        self.out.push(b'\n');
    }

    /// Starts an array as a member.
    pub(crate) fn open_list(&mut self, name: &'static str) {
        self.name(name);
        self.out.push(b'[');
    }

    pub(crate) fn close_list(&mut self) {
        self.out.push(b']');
    }

    /// A string of ours that needs no escapes.
    pub(crate) fn plain(&mut self, name: &'static str, value: &'static str) {
        self.name(name);
        self.quoted(value.as_bytes());
    }

    /// Any string.
    pub(crate) fn text(&mut self, name: &'static str, value: &str) {
        self.name(name);
        self.escaped(value);
    }

    pub(crate) fn text_or_null(&mut self, name: &'static str, value: Option<&str>) {
        match value {
            Some(value) => self.text(name, value),
            None => self.null(name),
        }
    }

    /// A member whose name comes from outside.
    pub(crate) fn text_member(&mut self, name: &str, value: &str) {
        self.comma();
        self.escaped(name);
        self.out.push(b':');
        self.escaped(value);
    }

    pub(crate) fn null(&mut self, name: &'static str) {
        self.name(name);
        self.out.extend_from_slice(b"null");
    }

    pub(crate) fn number(&mut self, name: &'static str, value: u64) {
        self.name(name);
        self.digits(value);
    }

    pub(crate) fn number_or_null(&mut self, name: &'static str, value: Option<u64>) {
        match value {
            Some(value) => self.number(name, value),
            None => self.null(name),
        }
    }

    /// A number given in thousandths, written with up to three decimals.
    pub(crate) fn thousandths(&mut self, name: &'static str, value: u64) {
        self.name(name);
        self.digits(value / 1_000);
        if !value.is_multiple_of(1_000) {
            let text = format!(".{:03}", value % 1_000);
            self.out.extend_from_slice(text.trim_end_matches('0').as_bytes());
        }
    }

    pub(crate) fn truth(&mut self, name: &'static str, value: bool) {
        self.name(name);
        self.out.extend_from_slice(if value { b"true" } else { b"false" });
    }

    /// An id: a decimal string, because a JSON number is a double in too many languages.
    pub(crate) fn id(&mut self, name: &'static str, id: MessageId) {
        self.name(name);
        self.out.push(b'"');
        self.digits(id.0);
        self.out.push(b'"');
    }

    pub(crate) fn instant(&mut self, name: &'static str, t: WallMs) {
        self.name(name);
        self.quoted(&rfc3339::text(t));
    }

    pub(crate) fn instant_or_null(&mut self, name: &'static str, t: Option<WallMs>) {
        match t {
            Some(t) => self.instant(name, t),
            None => self.null(name),
        }
    }

    /// Any value that serde can write.
    pub(crate) fn shown(&mut self, name: &'static str, value: &impl std::fmt::Display) {
        self.name(name);
        self.escaped(&value.to_string());
    }

    /// `body` when it is text, else `body_base64`.
    pub(crate) fn body(&mut self, body: &[u8]) {
        match std::str::from_utf8(body) {
            Ok(text) => self.text("body", text),
            Err(_) => {
                use base64::Engine as _;
                self.name("body_base64");
                self.out.push(b'"');
                let from = self.out.len();
                // Padded base64 is four bytes for each three begun.
                self.out.resize(from + body.len().div_ceil(3) * 4, 0);
                let written = base64::engine::general_purpose::STANDARD
                    .encode_slice(body, &mut self.out[from..])
                    .unwrap_or(0);
                self.out.truncate(from + written);
                self.out.push(b'"');
            }
        }
    }

    fn quoted(&mut self, bytes: &[u8]) {
        self.out.push(b'"');
        self.out.extend_from_slice(bytes);
        self.out.push(b'"');
    }

    fn escaped(&mut self, value: &str) {
        // Writing a string into a vector cannot fail.
        let _ = serde_json::to_writer(&mut self.out, value);
    }

    fn digits(&mut self, n: u64) {
        digits(&mut self.out, n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_json() {
        let mut json = Json::default();
        json.open();
        json.id("id", MessageId(u64::MAX));
        json.text("key", "a\"b\\c\n\u{1}ü");
        json.number("zero", 0);
        json.thousandths("rate", 12_340);
        json.thousandths("whole", 2_000);
        json.open_list("list");
        json.open();
        json.body(b"\xff\x00");
        json.close();
        json.open();
        json.body("text ✓".as_bytes());
        json.close();
        json.close_list();
        json.open_member("headers");
        json.text_member("x-\"y", "1");
        json.text_member("b", "2");
        json.close();
        json.instant("at", WallMs(1));
        json.truth("yes", true);
        json.null("nothing");
        json.close();
        let value: serde_json::Value = serde_json::from_slice(&json.into_bytes()).unwrap();
        assert_eq!(
            value,
            serde_json::json!({
                "id": "18446744073709551615", "key": "a\"b\\c\n\u{1}ü", "zero": 0, "rate": 12.34, "whole": 2,
                "list": [{"body_base64": "/wA="}, {"body": "text ✓"}],
                "headers": {"x-\"y": "1", "b": "2"},
                "at": "1970-01-01T00:00:00.001Z", "yes": true, "nothing": null,
            })
        );
    }
}
