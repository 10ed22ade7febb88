//! Tagged fields: the end of a structure, to which later versions add.
//!
//! A section is the number of its fields, then the fields by ascending number. A field is its *head*, then its value: a
//! varint, or a length and bytes. The head is 4 × the number, plus 2 if a reader that does not know the field must refuse
//! the structure, plus 1 if the value is bytes. A reader skips an unknown field without that bit. Head and forms are those
//! of Protocol Buffers (<https://protobuf.dev/programming-guides/encoding/>); the bit is the *ancillary bit* of PNG chunks,
//! inverted (<https://www.w3.org/TR/png-3/#5Chunk-naming-conventions>).

use super::primitive::{Reader, Writer, varint};
use super::{DecodeError, Decoded};

/// The bit of a head whose value is bytes.
const BYTES: u64 = 1;
/// The bit of a head that no reader may skip.
const REQUIRED: u64 = 2;
/// The number of bits of both.
const BITS: u32 = 2;
/// Most fields of a section: their count is one byte.
const MOST: u8 = 0x7f;

/// Writes the fields of one section, by ascending number.
#[derive(Debug)]
pub(super) struct FieldWriter<'a> {
    to: &'a mut Writer,
    count: u8,
}

impl FieldWriter<'_> {
    /// Writes a field whose value is a number, if it is there.
    pub(super) fn number(&mut self, number: u64, value: Option<u64>) {
        if let Some(value) = value {
            self.head(number, REQUIRED);
            self.to.varint(value);
        }
    }

    /// Writes a field whose value is bytes, if it is there.
    pub(super) fn bytes<T>(&mut self, number: u64, value: Option<T>, write: impl FnOnce(&mut Writer, T)) {
        let Some(value) = value else { return };
        self.head(number, REQUIRED | BYTES);
        self.to.with_length(|to| write(to, value));
    }

    fn head(&mut self, number: u64, bits: u64) {
        self.count += 1;
        self.to.varint(number << BITS | bits);
    }
}

/// The value of a field.
#[derive(Debug)]
pub(super) enum FieldValue {
    Number(u64),
    Bytes(Reader),
}

impl FieldValue {
    pub(super) fn number(self) -> Decoded<u64> {
        match self {
            FieldValue::Number(n) => Ok(n),
            FieldValue::Bytes(_) => Err(DecodeError::Unknown("form of a field")),
        }
    }

    pub(super) fn number_u32(self) -> Decoded<u32> {
        u32::try_from(self.number()?).map_err(|_| DecodeError::Unknown("32-bit number"))
    }

    /// Reads all bytes of the value.
    pub(super) fn bytes<T>(self, read: impl FnOnce(&mut Reader) -> Decoded<T>) -> Decoded<T> {
        let FieldValue::Bytes(mut bytes) = self else { return Err(DecodeError::Unknown("form of a field")) };
        let value = read(&mut bytes)?;
        if bytes.is_empty() { Ok(value) } else { Err(DecodeError::Unknown("length of a field")) }
    }
}

/// Whether a reader knows a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldKnown {
    Yes,
    No,
}

impl Writer {
    /// Writes a section.
    pub(super) fn fields(&mut self, write: impl FnOnce(&mut FieldWriter<'_>)) {
        let at = self.bytes.len();
        self.byte(0);
        let mut fields = FieldWriter { to: self, count: 0 };
        write(&mut fields);
        let count = fields.count;
        debug_assert!(count <= MOST, "the count of fields is one byte");
        self.bytes[at] = count;
    }

    /// Writes the section of tagged fields of a structure that has none yet.
    pub fn no_fields(&mut self) {
        self.byte(0);
    }
}

impl Reader {
    /// Reads a section: calls `read` with the number and the value of each field. `what` names the structure.
    pub(super) fn fields(
        &mut self,
        what: &'static str,
        mut read: impl FnMut(u64, FieldValue) -> Decoded<FieldKnown>,
    ) -> Decoded<()> {
        let count = self.byte()?;
        if count > MOST {
            return Err(DecodeError::Unknown("number of fields"));
        }
        let mut least = 0;
        for _ in 0..count {
            let head = self.varint()?;
            let number = head >> BITS;
            if number < least {
                return Err(DecodeError::Unknown("order of fields"));
            }
            least = number + 1;
            let value = if head & BYTES == 0 {
                FieldValue::Number(self.varint()?)
            } else {
                FieldValue::Bytes(Reader::new(self.blob()?))
            };
            if read(number, value)? == FieldKnown::No && head & REQUIRED != 0 {
                return Err(DecodeError::Newer(what));
            }
        }
        Ok(())
    }

    /// Reads the section of tagged fields of a structure of which this version knows none. `what` names the structure.
    ///
    /// # Errors
    /// [`DecodeError::Newer`] if a later version has added a field that must not be ignored; see [`DecodeError`].
    pub fn no_fields(&mut self, what: &'static str) -> Decoded<()> {
        self.fields(what, |_, _| Ok(FieldKnown::No))
    }
}

/// Skips a section of tagged fields at the start of a slice, and advances the slice. `None` if it is none, or has a
/// required field above `known`.
pub fn skip_fields(bytes: &mut &[u8], known: u64) -> Option<()> {
    let (&count, rest) = bytes.split_first()?;
    *bytes = rest;
    let mut least = 0;
    for _ in 0..count {
        let head = varint(bytes).ok()?;
        let number = head >> BITS;
        if number < least || (head & REQUIRED != 0 && !(1..=known).contains(&number)) {
            return None;
        }
        least = number + 1;
        let value = varint(bytes).ok()?;
        if head & BYTES != 0 {
            *bytes = bytes.get(usize::try_from(value).ok()?..)?;
        }
    }
    (count <= MOST).then_some(())
}
