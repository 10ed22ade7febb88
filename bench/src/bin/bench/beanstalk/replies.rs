//! Reads replies as they arrive, in pieces of any size, without allocating.

use std::fmt;

use crate::beanstalk::commands::Commands;

/// The expected replies to the commands in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// `INSERTED <id>`
    Inserted,
    /// `RESERVED <id> <bytes>` and a body that was put, or `TIMED_OUT`
    Reserved,
    /// `DELETED`
    Deleted,
}

/// The complete replies at the beginning of some bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Bytes of them; the rest is the beginning of the next.
    pub(crate) bytes: usize,
    pub(crate) replies: usize,
    /// How many of them were `TIMED_OUT`.
    pub(crate) empty: usize,
}

/// An unexpected reply, up to its end or as far as it has arrived.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Unexpected(Vec<u8>);

impl fmt::Debug for Unexpected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unexpected reply {:?}", String::from_utf8_lossy(&self.0))
    }
}

/// A reply, if all of it is there.
enum Reply<'a> {
    Partial,
    Whole { bytes: usize, id: &'a [u8] },
    Empty { bytes: usize },
}

/// Reads at most `most` whole replies. For each job that was reserved, its delete is added to `deletes`.
pub(crate) fn read(
    bytes: &[u8],
    expected: Expected,
    most: usize,
    commands: &Commands,
    deletes: &mut Vec<u8>,
) -> Result<Seen, Unexpected> {
    let mut seen = Seen::default();
    while seen.replies < most {
        let rest = &bytes[seen.bytes..];
        let reply = match expected {
            Expected::Inserted => inserted(rest),
            Expected::Reserved => reserved(rest, commands),
            Expected::Deleted => deleted(rest),
        };
        match reply.ok_or_else(|| unexpected(rest))? {
            Reply::Partial => break,
            Reply::Whole { bytes, id } => {
                seen.bytes += bytes;
                if expected == Expected::Reserved {
                    deletes.extend_from_slice(b"delete ");
                    deletes.extend_from_slice(id);
                    deletes.extend_from_slice(b"\r\n");
                }
            }
            Reply::Empty { bytes } => {
                seen.bytes += bytes;
                seen.empty += 1;
            }
        }
        seen.replies += 1;
    }
    Ok(seen)
}

// Each of these is None when the bytes cannot become the expected reply.

fn inserted(bytes: &[u8]) -> Option<Reply<'_>> {
    let mut cursor = Cursor { bytes, at: 0 };
    if !cursor.word(b"INSERTED ")? {
        return Some(Reply::Partial);
    }
    let Some(id) = cursor.number()? else { return Some(Reply::Partial) };
    Some(if cursor.word(b"\r\n")? { Reply::Whole { bytes: cursor.at, id } } else { Reply::Partial })
}

fn reserved<'a>(bytes: &'a [u8], commands: &Commands) -> Option<Reply<'a>> {
    let mut cursor = Cursor { bytes, at: 0 };
    if bytes.first() == Some(&b'T') {
        return Some(if cursor.word(b"TIMED_OUT\r\n")? {
            Reply::Empty { bytes: cursor.at }
        } else {
            Reply::Partial
        });
    }
    if !cursor.word(b"RESERVED ")? {
        return Some(Reply::Partial);
    }
    let Some(id) = cursor.number()? else { return Some(Reply::Partial) };
    if !cursor.word(b" ")? {
        return Some(Reply::Partial);
    }
    let Some(length) = cursor.number()? else { return Some(Reply::Partial) };
    if decimal(length)? != commands.body() {
        return None;
    }
    if !cursor.word(b"\r\n")? {
        return Some(Reply::Partial);
    }
    let start = cursor.at;
    let Some(body) = bytes.get(start..start + commands.body()) else { return Some(Reply::Partial) };
    if !commands.knows(body) {
        return None;
    }
    cursor.at += body.len();
    Some(if cursor.word(b"\r\n")? { Reply::Whole { bytes: cursor.at, id } } else { Reply::Partial })
}

fn deleted(bytes: &[u8]) -> Option<Reply<'_>> {
    let mut cursor = Cursor { bytes, at: 0 };
    Some(if cursor.word(b"DELETED\r\n")? {
        Reply::Whole { bytes: cursor.at, id: &[] }
    } else {
        Reply::Partial
    })
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Whether the whole word has arrived. None if the bytes differ.
    fn word(&mut self, word: &[u8]) -> Option<bool> {
        let rest = &self.bytes[self.at..];
        if rest.starts_with(word) {
            self.at += word.len();
            return Some(true);
        }
        word.starts_with(rest).then_some(false)
    }

    /// The digits, if something follows them. None without digits.
    fn number(&mut self) -> Option<Option<&'a [u8]>> {
        let rest = &self.bytes[self.at..];
        let Some(end) = rest.iter().position(|b| !b.is_ascii_digit()) else { return Some(None) };
        self.at += end;
        (end > 0).then_some(Some(&rest[..end]))
    }
}

fn decimal(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn unexpected(bytes: &[u8]) -> Unexpected {
    let line = bytes.iter().position(|b| *b == b'\n').map_or(bytes.len(), |end| end + 1);
    // A wrong body is shown as well.
    let shown = if bytes.starts_with(b"RESERVED ") { line + 120 } else { line };
    Unexpected(bytes[..shown.min(bytes.len())].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::beanstalk::commands::Kind;

    fn commands() -> Commands {
        Commands::new(Kind::Ready, 10, 4)
    }

    /// Feeds the bytes in pieces of these sizes in turn, as a connection does.
    fn feed(
        bytes: &[u8],
        pieces: &[usize],
        expected: Expected,
    ) -> Result<(usize, usize, Vec<u8>), Unexpected> {
        let commands = commands();
        let (mut carry, mut deletes, mut replies, mut empty) = (Vec::new(), Vec::new(), 0, 0);
        let mut rest = bytes;
        for size in pieces.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            rest = after;
            carry.extend_from_slice(piece);
            let seen = read(&carry, expected, usize::MAX, &commands, &mut deletes)?;
            carry.drain(..seen.bytes);
            replies += seen.replies;
            empty += seen.empty;
        }
        assert!(carry.is_empty(), "left over: {:?}", String::from_utf8_lossy(&carry));
        Ok((replies, empty, deletes))
    }

    /// What comes of whole replies, however they are split.
    struct Sample {
        bytes: Vec<u8>,
        expected: Expected,
        replies: usize,
        empty: usize,
        deletes: &'static [u8],
    }

    fn samples() -> [Sample; 3] {
        let commands = commands();
        let [first, last] = [0, 1023].map(|n| String::from_utf8_lossy(&commands.bodies()[n]).into_owned());
        let reserved =
            format!("RESERVED 7 10\r\n{first}\r\nTIMED_OUT\r\nRESERVED 123 10\r\n{last}\r\nTIMED_OUT\r\n");
        [
            Sample {
                bytes: b"INSERTED 1\r\nINSERTED 23\r\nINSERTED 18446744073709551615\r\n".to_vec(),
                expected: Expected::Inserted,
                replies: 3,
                empty: 0,
                deletes: b"",
            },
            Sample {
                bytes: reserved.into_bytes(),
                expected: Expected::Reserved,
                replies: 4,
                empty: 2,
                deletes: b"delete 7\r\ndelete 123\r\n",
            },
            Sample {
                bytes: b"DELETED\r\nDELETED\r\n".to_vec(),
                expected: Expected::Deleted,
                replies: 2,
                empty: 0,
                deletes: b"",
            },
        ]
    }

    #[test]
    fn any_split_gives_the_same_counts() {
        for Sample { bytes, expected, replies, empty, deletes } in samples() {
            let want = Ok((replies, empty, deletes.to_vec()));
            for size in 1..=bytes.len() {
                assert_eq!(feed(&bytes, &[size], expected), want, "pieces of {size}");
            }
            for first in 1..bytes.len() {
                for second in 1..=bytes.len() - first {
                    let pieces = [first, second, bytes.len()];
                    assert_eq!(feed(&bytes, &pieces, expected), want, "pieces of {pieces:?}");
                }
            }
        }
    }

    #[test]
    fn no_more_than_asked_for() {
        let sample = &samples()[0];
        let seen = read(&sample.bytes, sample.expected, 2, &commands(), &mut Vec::new());
        assert_eq!(seen, Ok(Seen { bytes: 25, replies: 2, empty: 0 }));
    }

    #[test]
    fn anything_else_is_an_error() {
        let wrong: [(&[u8], Expected); 12] = [
            (b"OUT_OF_MEMORY\r\n", Expected::Inserted),
            (b"BURIED 1\r\n", Expected::Inserted),
            (b"INSERTED \r\n", Expected::Inserted),
            (b"INSERTED 1x\r\n", Expected::Inserted),
            (b"INSERTED 1\n\n", Expected::Inserted),
            (b"EXPECTED_CRLF\r\n", Expected::Inserted),
            (b"DEADLINE_SOON\r\n", Expected::Reserved),
            (b"RESERVED 1 11\r\n", Expected::Reserved),
            (b"RESERVED 1 10\r\n0000000xxx\r\n", Expected::Reserved),
            (b"RESERVED 1 10\r\n00001024xx\r\n", Expected::Reserved),
            (b"NOT_FOUND\r\n", Expected::Deleted),
            (b"INTERNAL_ERROR\r\n", Expected::Deleted),
        ];
        for (bytes, expected) in wrong {
            let shown = String::from_utf8_lossy(bytes).into_owned();
            for size in 1..=bytes.len() {
                assert!(feed(bytes, &[size], expected).is_err(), "{shown:?} in pieces of {size}");
            }
        }
    }
}
