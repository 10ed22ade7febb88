//! Percent-decoding (RFC 3986), read strictly: a `%` that begins no escape is an error, and never stands for itself.

use std::borrow::Cow;
use std::fmt;

/// Why a text cannot be percent-decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadPercent {
    /// A `%` has not two hexadecimal digits behind it.
    Escape,
    /// The decoded bytes are not UTF-8.
    NotUtf8,
}

impl fmt::Display for BadPercent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadPercent::Escape => "bad percent-encoding: a % must be followed by two hexadecimal digits",
            BadPercent::NotUtf8 => "is not UTF-8 after percent-decoding",
        })
    }
}

impl std::error::Error for BadPercent {}

/// The decoded text; it is borrowed if it has no escapes. A `+` stands for itself.
///
/// # Errors
/// The text has a `%` that begins no escape, or is not UTF-8 once it is decoded.
pub fn decode(text: &str) -> Result<Cow<'_, str>, BadPercent> {
    let begins_escape = |behind: &str| {
        let digits = behind.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if !text.split('%').skip(1).all(begins_escape) {
        return Err(BadPercent::Escape);
    }
    percent_encoding::percent_decode_str(text).decode_utf8().map_err(|_| BadPercent::NotUtf8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_percent_encoding_is_refused() {
        assert_eq!(decode("a%2Fb%c3%bc+").as_deref(), Ok("a/bü+"));
        assert_eq!(decode("%25%"), Err(BadPercent::Escape));
        // `%+1` was taken for a byte 1.
        for bad in ["%", "%2", "%zz", "a%", "%%20", "%+1", "%ü"] {
            assert_eq!(decode(bad), Err(BadPercent::Escape), "{bad}");
        }
        for bad in ["%ff", "%C3", "%C3a"] {
            assert_eq!(decode(bad), Err(BadPercent::NotUtf8), "{bad}");
        }
    }

    #[test]
    fn unescaped_text_is_not_copied() {
        for text in ["", "order-42", "ü"] {
            assert!(matches!(decode(text), Ok(Cow::Borrowed(same)) if same == text));
        }
    }
}
