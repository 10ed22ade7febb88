//! Numbers, texts and bytes, of which everything else consists.
//!
//! Integers are LEB128 varints (unsigned), texts and bytes have a varint length in front.

use bytes::Bytes;

use super::{DecodeError, Decoded};

/// Writes fields to a buffer.
#[derive(Debug, Default)]
pub struct Writer {
    /// The bytes so far.
    pub bytes: Vec<u8>,
}

/// Reads fields back. Never panics and never allocates more than the input's size, whatever the bytes. Each of its
/// methods returns a [`DecodeError`] when the bytes end too early or hold a value that this version does not know.
#[derive(Debug)]
pub struct Reader {
    input: Bytes,
    at: usize,
}

impl Writer {
    /// An unsigned number, 1 to 10 bytes (LEB128).
    #[inline]
    pub fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            #[allow(clippy::cast_possible_truncation)] // the low seven bits are what is wanted
            self.bytes.push(n as u8 | 0x80);
            n >>= 7;
        }
        #[allow(clippy::cast_possible_truncation)] // below 0x80
        self.bytes.push(n as u8);
    }

    /// Length and bytes.
    #[inline]
    pub fn blob(&mut self, b: &[u8]) {
        self.varint(b.len() as u64);
        self.bytes.extend_from_slice(b);
    }

    /// Writes the length of what `write` writes, then that.
    pub fn with_length<R>(&mut self, write: impl FnOnce(&mut Self) -> R) -> R {
        let at = self.bytes.len();
        let result = write(self);
        let mut length = Writer::default();
        length.varint((self.bytes.len() - at) as u64);
        self.bytes.splice(at..at, length.bytes);
        result
    }

    /// Writes one byte.
    #[inline]
    pub fn byte(&mut self, b: u8) {
        self.bytes.push(b);
    }

    pub(super) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            None => self.byte(0),
            Some(v) => {
                self.byte(1);
                write(self, v);
            }
        }
    }
}

#[expect(clippy::missing_errors_doc, reason = "the type lists the errors of all its methods")]
impl Reader {
    /// Reads from the start of `input`.
    pub fn new(input: Bytes) -> Self {
        Reader { input, at: 0 }
    }

    /// Whether all bytes have been read.
    pub fn is_empty(&self) -> bool {
        self.at == self.input.len()
    }

    /// How many bytes have been read.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Reads one byte.
    pub fn byte(&mut self) -> Decoded<u8> {
        let b = *self.input.get(self.at).ok_or(DecodeError::Short)?;
        self.at += 1;
        Ok(b)
    }

    /// An unsigned number; a form longer than ten bytes or above 2^64−1 is refused.
    pub fn varint(&mut self) -> Decoded<u64> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let b = self.byte()?;
            let part = u64::from(b & 0x7f);
            if shift == 63 && part > 1 {
                return Err(DecodeError::Unknown("varint"));
            }
            n |= part << shift;
            if b & 0x80 == 0 {
                return Ok(n);
            }
        }
        Err(DecodeError::Unknown("varint"))
    }

    pub(super) fn varint_u32(&mut self) -> Decoded<u32> {
        u32::try_from(self.varint()?).map_err(|_| DecodeError::Unknown("32-bit number"))
    }

    /// The number of items that follow, each of at least `least` bytes: a damaged count allocates nothing.
    pub(super) fn count(&mut self, least: usize) -> Decoded<usize> {
        let n = usize::try_from(self.varint()?).map_err(|_| DecodeError::Short)?;
        let left = self.input.len() - self.at;
        if n.saturating_mul(least) > left { Err(DecodeError::Short) } else { Ok(n) }
    }

    pub(super) fn take(&mut self, n: usize) -> Decoded<Bytes> {
        let end = self.at.checked_add(n).filter(|&e| e <= self.input.len()).ok_or(DecodeError::Short)?;
        let slice = self.input.slice(self.at..end);
        self.at = end;
        Ok(slice)
    }

    /// Length and bytes, as a slice of the input.
    pub fn blob(&mut self) -> Decoded<Bytes> {
        let n = self.count(1)?;
        self.take(n)
    }

    pub(super) fn text(&mut self, what: &'static str) -> Decoded<Box<str>> {
        let n = self.count(1)?;
        let end = self.at + n;
        let s = std::str::from_utf8(&self.input[self.at..end]).map_err(|_| DecodeError::Unknown(what))?;
        let s: Box<str> = s.into();
        self.at = end;
        Ok(s)
    }

    pub(super) fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Decoded<T>) -> Decoded<Option<T>> {
        match self.byte()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => Err(DecodeError::Unknown("presence byte")),
        }
    }

    /// The bytes that have not been read.
    pub(super) fn rest(&self) -> &[u8] {
        &self.input[self.at..]
    }

    /// Skips bytes of [`Reader::rest`].
    pub(super) fn skip(&mut self, n: usize) {
        self.at = (self.at + n).min(self.input.len());
    }
}

/// Reads a varint at the start of a slice, and advances the slice.
///
/// # Errors
/// [`DecodeError`], as [`Reader::varint`].
#[inline]
pub fn varint(bytes: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut n = 0u64;
    for (i, &b) in bytes.iter().enumerate().take(10) {
        let part = u64::from(b & 0x7f);
        if i == 9 && part > 1 {
            break;
        }
        n |= part << (7 * i);
        if b & 0x80 == 0 {
            *bytes = &bytes[i + 1..];
            return Ok(n);
        }
    }
    Err(if bytes.len() < 10 { DecodeError::Short } else { DecodeError::Unknown("varint") })
}
