//! Percent-encoding, read strictly: of options, and of what stands in Redis.

/// The text, decoded. `None` where a `%` has not two hexadecimal digits behind it, or all of it is no UTF-8.
pub(crate) fn decode(text: &str) -> Option<String> {
    let is_whole = |behind: &str| {
        let digits = behind.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if !text.split('%').skip(1).all(is_whole) {
        return None;
    }
    percent_encoding::percent_decode_str(text).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_percent_encoding_is_refused() {
        assert_eq!(decode("a%2Fb%c3%bc+").as_deref(), Some("a/bü+"));
        assert_eq!(decode("").as_deref(), Some(""));
        // `%+1` was taken for a byte 1.
        for bad in ["%", "%2", "%zz", "a%", "%%20", "%ff", "%C3", "%+1"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
