//! The bodies of messages: each names the request that sent it, and shows that it came back whole.

use serde::{Deserialize, Serialize};

/// The tag that makes a body unique in its run: it identifies the one request that sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tag(pub u64);

/// A body that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payload {
    /// The tag of the request.
    pub tag: Tag,
    /// The number of bytes.
    pub len: u64,
    /// The [`hash`] of the bytes.
    pub hash: u64,
}

/// A body that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The tag in it, if there is one.
    pub tag: Option<Tag>,
    /// The number of bytes.
    pub len: u64,
    /// The [`hash`] of the bytes.
    pub hash: u64,
}

const MARK: &[u8] = b"duewheel-sim:";

/// A body of about `len` bytes of UTF-8 text with a tag in it. The text depends on the tag alone and contains
/// characters that careless codecs mishandle: quotes, backslashes, controls, characters of two, three and four bytes.
pub fn body(tag: Tag, len: usize) -> String {
    const ALPHABET: [char; 16] = [
        'a', 'Z', '7', ' ', '"', '\\', '/', '\n', '\r', '\t', '\u{1}', '\u{7f}', 'é', '中', '\u{2028}', '🦀',
    ];
    let mut text = format!("duewheel-sim:{:016x};", tag.0);
    let mut x = tag.0 | 1;
    while text.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        text.push(ALPHABET[usize::try_from(x % 16).unwrap_or(0)]);
    }
    text
}

impl Payload {
    /// Describes a body made by [`body`].
    pub fn of(tag: Tag, bytes: &[u8]) -> Self {
        Payload { tag, len: bytes.len() as u64, hash: hash(bytes) }
    }

    /// The body as it must come back.
    pub fn seen(self) -> Seen {
        Seen { tag: Some(self.tag), len: self.len, hash: self.hash }
    }
}

impl Seen {
    /// Describes bytes that came back.
    pub fn of(bytes: &[u8]) -> Self {
        let tag = bytes
            .strip_prefix(MARK)
            .and_then(|rest| rest.get(..16))
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u64::from_str_radix(hex, 16).ok())
            .map(Tag);
        Seen { tag, len: bytes.len() as u64, hash: hash(bytes) }
    }
}

/// FNV-1a, 64 bits: enough to distinguish accidental differences.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_names_request_and_detects_changes() {
        let text = body(Tag(77), 200);
        let sent = Payload::of(Tag(77), text.as_bytes());
        assert_eq!(Seen::of(text.as_bytes()), sent.seen());
        let mut other = text.clone().into_bytes();
        other[40] ^= 1;
        assert_ne!(Seen::of(&other), sent.seen());
        assert_eq!(Seen::of(b"duewheel-sim:zz").tag, None);
    }
}
