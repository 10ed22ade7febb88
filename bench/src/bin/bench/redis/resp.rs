//! Redis' protocol, as far as the load needs it: commands made beforehand, replies measured and read in place.

use std::io::{self, Write};

/// Appends a command.
pub(crate) fn push(out: &mut Vec<u8>, words: &[&[u8]]) {
    head(out, words.len());
    for word in words {
        push_word(out, word);
    }
}

/// Appends the beginning of a command with this number of words.
pub(crate) fn head(out: &mut Vec<u8>, words: usize) {
    let _ = write!(out, "*{words}\r\n");
}

/// Appends a word of a command.
pub(crate) fn push_word(out: &mut Vec<u8>, word: &[u8]) {
    let _ = write!(out, "${}\r\n", word.len());
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

/// The end of the reply that begins at `at`, if it is complete.
///
/// # Errors
/// It is a refusal, or not a reply.
pub(crate) fn end(bytes: &[u8], at: usize) -> io::Result<Option<usize>> {
    let Some(line) = line(bytes, at) else { return Ok(None) };
    let next = at + line.len() + 2;
    let text = || String::from_utf8_lossy(line).into_owned();
    let number = || std::str::from_utf8(&line[1..]).ok().and_then(|n| n.parse::<i64>().ok());
    let wrong = || io::Error::other(format!("Redis answered {:?}", text()));
    match line.first() {
        Some(b'+' | b':') => Ok(Some(next)),
        Some(b'$') => {
            let length = number().ok_or_else(wrong)?;
            let end = usize::try_from(length).map_or(next, |length| next + length + 2);
            Ok((end <= bytes.len()).then_some(end))
        }
        Some(b'*') => {
            let mut at = next;
            for _ in 0..number().ok_or_else(wrong)?.max(0) {
                let Some(end) = end(bytes, at)? else { return Ok(None) };
                at = end;
            }
            Ok(Some(at))
        }
        _ => Err(wrong()),
    }
}

/// All strings of complete replies, including those within lists.
pub(crate) fn strings(replies: &[u8]) -> Vec<&[u8]> {
    let mut all = Vec::new();
    let mut at = 0;
    while let Some(line) = line(replies, at) {
        at += line.len() + 2;
        if line.first() == Some(&b'$')
            && let Some(length) = std::str::from_utf8(&line[1..]).ok().and_then(|n| n.parse::<usize>().ok())
            && let Some(string) = replies.get(at..at + length)
        {
            all.push(string);
            at += length + 2;
        }
    }
    all
}

fn line(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    let end = rest.iter().position(|b| *b == b'\r')?;
    (rest.get(end + 1) == Some(&b'\n')).then(|| &rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resp_reply_length_ignores_cuts() {
        let reply = b"*2\r\n*2\r\n$2\r\n\r\n\r\n$1\r\nb\r\n:17\r\n";
        for cut in 0..reply.len() {
            assert_eq!(end(&reply[..cut], 0).unwrap(), None, "cut at {cut}");
        }
        assert_eq!(end(reply, 0).unwrap(), Some(reply.len()));
        assert_eq!(strings(reply), [b"\r\n".as_slice(), b"b"]);
        assert_eq!(end(b"$-1\r\n:1\r\n", 0).unwrap(), Some(5));
        assert!(end(b"-NOSCRIPT no\r\n", 0).is_err());
    }

    #[test]
    fn commands_are_counted_words() {
        let mut out = Vec::new();
        push(&mut out, &[b"GET", b""]);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n");
    }
}
