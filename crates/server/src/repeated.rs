//! The part of the refused input that an error repeats.

use std::borrow::Cow;

/// The largest number of characters of the input.
const MOST: usize = 100;
/// Sentences of our own are shorter than this number of bytes, without what they quote.
const SENTENCE: usize = 300;

/// A name from the input; the beginning of a long one.
pub(crate) fn name(text: Cow<'static, str>) -> Cow<'static, str> {
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text,
    }
}

/// A sentence that may quote the input, with the beginning of what is long: `unknown field `aaa…`, expected …`.
pub(crate) fn sentence(text: String) -> String {
    if text.len() <= SENTENCE {
        return text;
    }
    let Some((open, quote)) = text.char_indices().find(|(_, c)| matches!(c, '`' | '"')) else {
        return name(text.into()).into_owned();
    };
    // The readers of JSON and TOML say after their quote which values they expected.
    let end = text.rfind(", expected").unwrap_or(text.len());
    let begin = open + quote.len_utf8();
    let close = text.get(begin..end).and_then(|rest| rest.rfind(quote)).map_or(end, |at| begin + at);
    match text.get(begin..close).and_then(|quoted| quoted.char_indices().nth(MOST)) {
        Some((cut, _)) => format!("{}…{}", &text[..begin + cut], &text[close..]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_truncate_long_input() {
        let (long, kept) = ("ä".repeat(20_000), "ä".repeat(100));
        assert_eq!(name(long.clone().into()), format!("{kept}…"));
        assert_eq!(name("header.a".into()), "header.a");
        for (before, behind) in [
            ("unknown field `", "`, expected one of `body`, `key`"),
            ("invalid type: string \"", "\", expected a whole number from 0 up"),
            ("the name \"", "\" is there twice"),
        ] {
            let told = sentence(format!("{before}{long}{behind}"));
            assert_eq!(told, format!("{before}{kept}…{behind}"));
            let short = format!("{before}x{behind}");
            assert_eq!(sentence(short.clone()), short);
        }
        assert_eq!(sentence(long), format!("{kept}…"));
        let many = format!("unknown field `x`, expected one of {}", "`name`, ".repeat(100));
        assert_eq!(sentence(many.clone()), many, "our own words stay");
    }

    #[test]
    fn no_sentence_panics() {
        for text in ["`".repeat(400), format!("{}, expected \"", "a".repeat(400)), "\"ä".repeat(200)] {
            assert!(sentence(text.clone()).len() <= text.len() + 3, "{text}");
        }
    }
}
