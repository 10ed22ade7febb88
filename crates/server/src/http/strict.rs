//! Strict JSON input: undocumented input is refused, and the refusal names the field.
//!
//! The types here borrow from the request's bytes. A valid request is read once; an invalid one is read again, to find
//! the place of the error.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use duewheel::core::MessageId;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Unexpected, Visitor};
use serde_json::value::RawValue;

use crate::error::{ErrorCode, Problem};
use crate::repeated;
use crate::schema::{HeadersSchema, IdInSchema, same_schema};
use crate::span::{self, SpanText, TimeSpan};

/// The largest depth of arrays and objects. The types of requests need far less; the limit only makes the refusal
/// clear.
const MAX_DEPTH: usize = 32;

/// Reads one JSON object.
pub(crate) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Problem> {
    // Only `{` is accepted: serde would take an array for a struct, member by member.
    if bytes.iter().find(|b| !b.is_ascii_whitespace()) != Some(&b'{') {
        check_depth(bytes)?;
        return Err(Problem::new(ErrorCode::BadRequest, "a JSON object is expected"));
    }
    serde_json::from_slice(bytes).map_err(|_| explain::<T>(bytes))
}

/// Reads one JSON object; an empty body counts as an empty object.
pub(crate) fn parse_optional<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Problem> {
    parse(if bytes.is_empty() { b"{}" } else { bytes })
}

/// Reads an invalid body again, to explain the error.
#[cold]
fn explain<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Problem {
    if let Err(e) = std::str::from_utf8(bytes) {
        let detail = format!("the JSON text is not valid UTF-8 (byte {})", e.valid_up_to());
        return Problem::new(ErrorCode::BadRequest, detail);
    }
    if let Err(problem) = check_depth(bytes) {
        return problem;
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    match serde_path_to_error::deserialize::<_, T>(&mut json) {
        Err(error) => explain_at(error.path().to_string(), &error.into_inner()),
        Ok(_) => Problem::new(ErrorCode::BadRequest, "there is more after the JSON object"),
    }
}

/// Explains an error of the value at this path.
fn explain_at(path: String, inner: &serde_json::Error) -> Problem {
    let text = inner.to_string();
    if !inner.is_data() {
        return Problem::new(ErrorCode::BadRequest, format!("this is no JSON: {text}"));
    }
    let what = text.split(" at line ").next().unwrap_or_default().to_owned();
    let named = ["unknown field `", "duplicate field `", "missing field `"]
        .iter()
        .find_map(|kind| what.strip_prefix(kind))
        .and_then(|rest| rest.split('`').next());
    let field = match (path.as_str(), named) {
        (".", Some(name)) => name.to_owned(),
        (".", None) => return Problem::new(ErrorCode::BadRequest, repeated::sentence(what)),
        // The path of an unknown field ends with it already, that of a duplicate or missing one does not.
        (path, Some(name)) if path == name || path.ends_with(&format!(".{name}")) => path.to_owned(),
        (path, Some(name)) => format!("{path}.{name}"),
        (path, None) => path.to_owned(),
    };
    // Types of the library name their field, because a program has no path.
    let what = what.strip_prefix(&format!("{field}: ")).map_or(what.clone(), str::to_owned);
    // An empty name would not be visible.
    Problem::field(if field.is_empty() { "\"\"".to_owned() } else { field }, what)
}

fn check_depth(bytes: &[u8]) -> Result<(), Problem> {
    if depth(bytes) > MAX_DEPTH {
        let detail = format!("the JSON text is nested deeper than {MAX_DEPTH} levels");
        return Err(Problem::new(ErrorCode::BadRequest, detail));
    }
    Ok(())
}

/// How deep arrays and objects are nested. The value of the member `json` may be of any depth.
fn depth(bytes: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    let (mut in_string, mut escaped, mut in_json) = (false, false, false);
    let (mut begins, mut name): (usize, &[u8]) = (0, b"");
    for (at, b) in bytes.iter().enumerate() {
        match b {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' if in_string => (in_string, name) = (false, &bytes[begins..at]),
            b'"' => (in_string, begins) = (true, at + 1),
            _ if in_string => {}
            b':' if depth == 1 => in_json = name == b"json",
            b',' if depth == 1 => in_json = false,
            b'[' | b'{' => {
                depth += 1;
                if !in_json {
                    deepest = deepest.max(depth);
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// A string, borrowed where JSON has no escapes in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Text<'a>(pub(crate) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E: Error>(self, s: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(s)))
            }
            fn visit_str<E: Error>(self, s: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(s.to_owned())))
            }
        }
        d.deserialize_str(V)
    }
}

/// Enums of words, which stand for the values of a type of the engine. They are read from strings alone: serde_json
/// itself would accept `{"word": null}`, and would report a number as invalid JSON.
macro_rules! words {
    ($(#[$meta:meta])* $word:ident { $($variant:ident $text:literal),* }) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, schemars::JsonSchema, serde::Serialize)]
        $(#[$meta])*
        pub(crate) enum $word {
            $(#[serde(rename = $text)] $variant,)*
        }

        impl<'de> serde::Deserialize<'de> for $word {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = $crate::http::strict::Text::deserialize(d)?;
                match &*text.0 {
                    $($text => Ok($word::$variant),)*
                    other => Err(serde::de::Error::unknown_variant(other, &[$($text),*])),
                }
            }
        }
    };
    ($($(#[$meta:meta])* $word:ident = $of:ident { $($variant:ident $text:literal),* })*) => {$(
        words! { $(#[$meta])* $word { $($variant $text),* } }

        impl From<$word> for $of {
            fn from(word: $word) -> Self {
                match word {
                    $($word::$variant => $of::$variant,)*
                }
            }
        }

        impl From<$of> for $word {
            fn from(of: $of) -> Self {
                match of {
                    $($of::$variant => $word::$variant,)*
                }
            }
        }
    )*};
}
pub(crate) use words;

/// A member that may be `null`: `Some(None)` for that, `None` for one that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Given<T>(pub(crate) Option<Option<T>>);

impl<T> Given<T> {
    /// The value, if it is given and not `null`.
    pub(crate) fn value(self) -> Option<T> {
        self.0.flatten()
    }

    /// Sets a setting, or resets it; a member that is left out changes nothing.
    pub(crate) fn put<U>(self, to: &mut Option<U>, read: impl FnOnce(T) -> Option<U>) {
        if let Some(value) = self.0 {
            *to = value.and_then(read);
        }
    }
}

impl<T> Default for Given<T> {
    fn default() -> Self {
        Given(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Given<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Option::deserialize(d).map(|value| Given(Some(value)))
    }
}

/// A whole number from `MIN` to `MAX`, written with digits alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whole<const MIN: u64 = 0, const MAX: u64 = { u64::MAX }>(pub(crate) u64);

/// A whole number from 1.
pub(crate) type Positive = Whole<1>;

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V<const MIN: u64, const MAX: u64>;
        impl<const MIN: u64, const MAX: u64> Visitor<'_> for V<MIN, MAX> {
            type Value = Whole<MIN, MAX>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number from ")?;
                range::<MIN, MAX>(f)
            }
            fn visit_u64<E: Error>(self, n: u64) -> Result<Self::Value, E> {
                if (MIN..=MAX).contains(&n) {
                    Ok(Whole(n))
                } else {
                    Err(E::invalid_value(Unexpected::Unsigned(n), &self))
                }
            }
            fn visit_i64<E: Error>(self, n: i64) -> Result<Self::Value, E> {
                match u64::try_from(n) {
                    Ok(n) => self.visit_u64(n),
                    Err(_) => Err(E::custom(format_args!("must not be negative, and is {n}"))),
                }
            }
            fn visit_f64<E: Error>(self, n: f64) -> Result<Self::Value, E> {
                if n < 0.0 {
                    return Err(E::custom(format_args!("must not be negative, and is {n}")));
                }
                Err(E::custom("must be a whole number of 64 bits, written with digits alone"))
            }
        }
        d.deserialize_u64(V::<MIN, MAX>)
    }
}

fn range<const MIN: u64, const MAX: u64>(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if MAX == u64::MAX { write!(f, "{MIN} up") } else { write!(f, "{MIN} to {MAX}") }
}

impl<const MIN: u64> Whole<MIN, { U32_MAX }> {
    /// The number, which fits by its type.
    pub(crate) fn get(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }
}

/// The largest number of 32 bits.
pub(crate) const U32_MAX: u64 = 4_294_967_295;

/// An id: a decimal string, as in answers, or a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(pub(crate) MessageId);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl Visitor<'_> for V {
            type Value = Id;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an id: a decimal string")
            }
            fn visit_u64<E: Error>(self, n: u64) -> Result<Id, E> {
                Ok(Id(MessageId(n)))
            }
            fn visit_str<E: Error>(self, s: &str) -> Result<Id, E> {
                id(s).map(Id).ok_or_else(|| E::invalid_value(Unexpected::Str(s), &self))
            }
        }
        d.deserialize_any(V)
    }
}

/// Reads an id. Digits beyond 64 bits are an id that was never issued.
pub(crate) fn id(s: &str) -> Option<MessageId> {
    if s.is_empty() || !s.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(s.parse().unwrap_or(MessageId(u64::MAX)))
}

/// An object inside another one; an array, whose members serde would take in order, is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for V<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        d.deserialize_map(V(PhantomData))
    }
}

/// An object of strings, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strings(pub(crate) Vec<(Box<str>, Box<str>)>);

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Strings;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strings, A::Error> {
                let mut all: Vec<(Box<str>, Box<str>)> = Vec::new();
                while let Some((name, value)) = map.next_entry::<Text<'_>, Text<'_>>()? {
                    if name.0.is_empty() {
                        return Err(A::Error::custom("a name must not be empty"));
                    }
                    all.push((name.0.into(), value.0.into()));
                }
                let mut names: Vec<&str> = all.iter().map(|(name, _)| &**name).collect();
                names.sort_unstable();
                if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
                    return Err(A::Error::custom(format_args!("the name {:?} is there twice", twice[0])));
                }
                Ok(Strings(all))
            }
        }
        d.deserialize_map(V)
    }
}

/// Members as they were sent, each name once.
#[derive(Debug, Default)]
pub(crate) struct Members(pub(crate) BTreeMap<String, Box<RawValue>>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Members;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut all = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if all.insert(name.clone(), map.next_value()?).is_some() {
                        return Err(A::Error::custom(format_args!("duplicate field `{name}`")));
                    }
                }
                Ok(Members(all))
            }
        }
        d.deserialize_map(V)
    }
}

/// A length of time that is given as a number of milliseconds or as text, by at most one of two fields.
pub(super) fn either<const MIN: u64>(
    ms: Option<Whole<MIN>>,
    text: Option<SpanText>,
    field: &'static str,
) -> Result<Option<u64>, Problem> {
    let ms = span::either(ms.map(|ms| ms.0), text, field).map_err(|what| Problem::field(field, what))?;
    match ms {
        Some(ms) if ms < MIN => Err(Problem::field(field, "must be longer than 0")),
        ms => Ok(ms),
    }
}

/// A length of time as [`either`] reads it, at most `limit`; a refusal names the field that was sent.
pub(super) fn either_within<const MIN: u64>(
    ms: Option<Whole<MIN>>,
    text: Option<SpanText>,
    (field, field_ms): (&'static str, &'static str),
    limit: u64,
) -> Result<Option<u64>, Problem> {
    match either(ms, text, field)? {
        Some(ms) if ms > limit && text.is_some() => {
            Err(Problem::field(field, format_args!("must be at most {}", TimeSpan(limit))))
        }
        Some(ms) => at_most(field_ms, ms, limit).map(Some),
        None => Ok(None),
    }
}

/// Checks a number against a limit of the policy.
pub(crate) fn at_most(field: impl Into<Cow<'static, str>>, n: u64, limit: u64) -> Result<u64, Problem> {
    if n > limit { Err(Problem::field(field, format_args!("must be at most {limit}"))) } else { Ok(n) }
}

/// The names of the lengths of time that were sent as text.
pub(super) fn named<const N: usize>(texts: [(&'static str, Option<SpanText>); N]) -> Vec<&'static str> {
    texts.into_iter().filter_map(|(name, text)| text.map(|_| name)).collect()
}

/// The name under which a field was sent: `keep_done` for `keep_done_ms`, if it is among `as_text`.
pub(super) fn sent_as(field: &'static str, as_text: &[&'static str]) -> &'static str {
    field.strip_suffix("_ms").filter(|name| as_text.contains(name)).unwrap_or(field)
}

impl JsonSchema for Text<'_> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Text".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for Whole<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Whole".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "format": "uint64", "minimum": MIN, "maximum": MAX })
    }
}

same_schema! {
    impl[] Id as IdInSchema;
    impl[] Strings as HeadersSchema;
    impl[T: JsonSchema] Object<T> as T;
    impl[T: JsonSchema] Given<T> as Option<T>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only read by Debug and serde")]
    struct Sample<'a> {
        #[serde(borrow)]
        text: Option<Text<'a>>,
        n: Option<Whole>,
        small: Option<Whole<1, 10>>,
        id: Option<Id>,
        inner: Option<Object<Inner>>,
        headers: Option<Strings>,
        word: Option<Word>,
    }

    words! {
        /// A word.
        Word { Keep "keep", Replace "replace" }
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only read by Debug and serde")]
    struct Inner {
        a: Whole,
        b: Option<Whole>,
    }

    #[test]
    fn a_refusal_names_the_field() {
        for (json, field, says) in [
            (r#"{"nope": 1}"#, Some("nope"), "unknown field"),
            (r#"{"": 1}"#, Some("\"\""), "unknown field"), // found by the fuzzer: the refusal began with a colon
            (r#"{"n": 1, "n": 2}"#, Some("n"), "duplicate field"),
            (r#"{"n": -1}"#, Some("n"), "must not be negative"),
            (r#"{"n": -1.5}"#, Some("n"), "must not be negative"),
            (r#"{"n": 1.5}"#, Some("n"), "whole number"),
            (r#"{"n": 1.0}"#, Some("n"), "whole number"),
            (r#"{"n": 1e3}"#, Some("n"), "whole number"),
            (r#"{"n": 18446744073709551616}"#, Some("n"), "whole number"),
            (r#"{"n": "1"}"#, Some("n"), "invalid type: string"),
            (r#"{"n": true}"#, Some("n"), "invalid type: boolean"),
            (r#"{"small": 0}"#, Some("small"), "1 to 10"),
            (r#"{"small": 11}"#, Some("small"), "1 to 10"),
            (r#"{"text": 1}"#, Some("text"), "a string"),
            (r#"{"word": "leave"}"#, Some("word"), "expected `keep` or `replace`"),
            // Found by the fuzzer: the error was that this is not JSON.
            (r#"{"word": 99999, "text": "a"}"#, Some("word"), "expected a string"),
            (r#"{"word": true}"#, Some("word"), "expected a string"),
            (r#"{"word": ["keep"]}"#, Some("word"), "expected a string"),
            (r#"{"word": {"keep": null}}"#, Some("word"), "expected a string"),
            (r#"{"word": nul}"#, None, "no JSON"),
            (r#"{"text": ["a"]}"#, Some("text"), "a string"),
            (r#"{"id": "x"}"#, Some("id"), "decimal string"),
            (r#"{"id": -1}"#, Some("id"), "decimal string"),
            (r#"{"inner": {}}"#, Some("inner.a"), "missing field"),
            (r#"{"inner": [1, 2]}"#, Some("inner"), "an object"),
            (r#"{"inner": {"a": 1, "c": 1}}"#, Some("inner.c"), "unknown field"),
            (r#"{"inner": {"a": 1, "a": 1}}"#, Some("inner.a"), "duplicate field"),
            (r#"{"inner": {"a": -1}}"#, Some("inner.a"), "negative"),
            (r#"{"headers": {"a": 1}}"#, Some("headers.a"), "a string"),
            (r#"{"headers": {"a": "1", "a": "2"}}"#, Some("headers"), "twice"),
            (r#"{"headers": {"": "1"}}"#, Some("headers"), "empty"),
            (r#"{"headers": []}"#, Some("headers"), "object of strings"),
            (r#"{"n": 1} x"#, None, "more after"),
            (r#"{"n": 1"#, None, "no JSON"),
            (r#"{"n": 01}"#, None, "no JSON"),
            (r#"{"n": NaN}"#, None, "no JSON"),
            (r#"{'n': 1}"#, None, "no JSON"),
            (r#"{"text": "\ud800"}"#, None, "no JSON"),
            (r#"[1]"#, None, "object"),
            ("", None, "object"),
            ("null", None, "object"),
        ] {
            let problem = parse::<Sample<'_>>(json.as_bytes()).expect_err(json);
            assert_eq!(problem.code, ErrorCode::BadRequest);
            assert_eq!(problem.field.as_deref(), field, "{json}: {problem:?}");
            assert!(problem.detail.contains(says), "{json}: {problem:?}");
        }
    }

    #[test]
    fn deep_json_is_refused_without_recursion() {
        let deep = format!(r#"{{"text": {}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        let problem = parse::<Sample<'_>>(deep.as_bytes()).expect_err("deep");
        assert!(problem.detail.contains("deeper"), "{problem:?}");
        // A body in JSON may be deep; what is wrong is something else, or what is behind it.
        for (text, deepest) in [
            (r#"{"json": [[[[{"json": [1]}]]]], "a": [2]}"#, 2),
            (r#"{"json": [[[1]]], "a": [[2]], "json": "]"}"#, 3),
            (r#"{"js\"on": [[1]], "b": {"json": [[1]]}}"#, 4),
        ] {
            assert_eq!(depth(text.as_bytes()), deepest, "{text}");
        }
        let problem = parse::<Sample<'_>>(b"{\"text\": \"\xff\"}").expect_err("UTF-8");
        assert!(problem.detail.contains("UTF-8"), "{problem:?}");
    }

    #[test]
    fn what_is_right_is_taken() {
        let sample: Sample<'_> = parse(
            br#" {"text": "a", "n": 18446744073709551615, "id": "7", "headers": {"b": "1", "a": "\n"}}"#,
        )
        .unwrap();
        assert!(matches!(sample.text, Some(Text(Cow::Borrowed("a")))));
        assert_eq!(sample.n, Some(Whole(u64::MAX)));
        assert_eq!(sample.id, Some(Id(MessageId(7))));
        let null: Sample<'_> = parse(br#"{"n": null}"#).unwrap();
        assert_eq!(null.n, None);
        assert_eq!(id("99999999999999999999"), Some(MessageId(u64::MAX)));
        assert_eq!(id("+1"), None);
        let _: Sample<'_> = parse_optional(b"").unwrap();
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Lengths {
        wait_ms: Option<Whole<1>>,
        wait: Option<SpanText>,
    }

    fn length(json: &str) -> Result<Option<u64>, Problem> {
        let Lengths { wait_ms, wait } = parse(json.as_bytes())?;
        either_within(wait_ms, wait, ("wait", "wait_ms"), 172_800_000)
    }

    #[test]
    fn lengths_are_numbers_or_texts() {
        for text in ["48h", "2 days", "PT48H", "2d"] {
            assert_eq!(length(&format!(r#"{{"wait": "{text}"}}"#)).unwrap(), Some(172_800_000), "{text}");
        }
        assert_eq!(length(r#"{"wait_ms": 90}"#).unwrap(), Some(90));
        assert_eq!(length("{}").unwrap(), None);
        for (json, field) in [
            (r#"{"wait": 90}"#, "wait"),
            (r#"{"wait": "90"}"#, "wait"),
            (r#"{"wait": "0s"}"#, "wait"),
            (r#"{"wait": "1 month"}"#, "wait"),
            (r#"{"wait": "48h1ms"}"#, "wait"),
            (r#"{"wait": "99999999999999999999s"}"#, "wait"),
            (r#"{"wait": "1s", "wait_ms": 1}"#, "wait"),
            (r#"{"wait_ms": 0}"#, "wait_ms"),
            (r#"{"wait_ms": 172800001}"#, "wait_ms"),
            (r#"{"wait_ms": "90s"}"#, "wait_ms"),
        ] {
            let problem = length(json).unwrap_err();
            assert_eq!(
                (problem.code, problem.field.as_deref()),
                (ErrorCode::BadRequest, Some(field)),
                "{json}"
            );
        }
    }
}
