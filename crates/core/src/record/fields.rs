//! Bytes: numbers, texts and tagged fields, of which everything else consists, and the two forms in which structures
//! state their fields once for both directions.
//!
//! Integers are LEB128 varints (unsigned), texts and bytes have a varint length in front.
//!
//! # Tagged fields
//!
//! The end of a structure, to which later versions add. A section is the number of its fields, then the fields by
//! ascending number. A field is its *head*, then its value: a varint, or a length and bytes. The head is 4 × the
//! number, plus 2 if a reader that does not know the field must refuse the structure, plus 1 if the value is bytes. A
//! reader skips an unknown field without that bit. Head and forms are those of Protocol Buffers
//! (<https://protobuf.dev/programming-guides/encoding/>); the bit is the *ancillary bit* of PNG chunks, inverted
//! (<https://www.w3.org/TR/png-3/#5Chunk-naming-conventions>).

use bytes::Bytes;

use super::{DecodeError, Decoded};
use crate::id::{Epoch, Lsn, MessageId, SessionId};
use crate::message::Detail;
use crate::time::{EngineMs, WallMs};

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

    /// The number of items or bytes that follow: a damaged count allocates nothing.
    pub(super) fn count(&mut self) -> Decoded<usize> {
        let n = usize::try_from(self.varint()?).map_err(|_| DecodeError::Short)?;
        if n > self.input.len() - self.at { Err(DecodeError::Short) } else { Ok(n) }
    }

    pub(super) fn take(&mut self, n: usize) -> Decoded<Bytes> {
        let end = self.at.checked_add(n).filter(|&e| e <= self.input.len()).ok_or(DecodeError::Short)?;
        let slice = self.input.slice(self.at..end);
        self.at = end;
        Ok(slice)
    }

    /// Length and bytes, as a slice of the input.
    pub fn blob(&mut self) -> Decoded<Bytes> {
        let n = self.count()?;
        self.take(n)
    }

    /// A value in its form.
    pub(super) fn get<T: StoredForm>(&mut self) -> Decoded<T> {
        T::read(self)
    }

    pub(super) fn text(&mut self, what: &'static str) -> Decoded<Box<str>> {
        let n = self.count()?;
        let end = self.at + n;
        let s = std::str::from_utf8(&self.input[self.at..end]).map_err(|_| DecodeError::Unknown(what))?;
        let s: Box<str> = s.into();
        self.at = end;
        Ok(s)
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
    /// Writes a field, if its value is there.
    pub(super) fn put(&mut self, number: u64, value: &impl Field) {
        value.put(number, self);
    }

    fn write<T: StoredForm>(&mut self, number: u64, value: &T) {
        self.count += 1;
        match T::FORM {
            Form::Number => {
                self.to.varint(number << BITS | REQUIRED);
                value.write(self.to);
            }
            Form::Bytes => {
                self.to.varint(number << BITS | REQUIRED | BYTES);
                self.to.with_length(|to| value.write(to));
            }
        }
    }
}

/// The value of a field, which is still to be read.
#[derive(Debug)]
pub(super) struct FieldReader<'a> {
    form: Form,
    from: &'a mut Reader,
}

impl FieldReader<'_> {
    pub(super) fn take<T: Field>(self) -> Decoded<T> {
        T::take(self)
    }

    /// Reads all bytes of the value.
    fn read<T: StoredForm>(self) -> Decoded<T> {
        match (T::FORM, self.form) {
            (Form::Number, Form::Number) => T::read(self.from),
            (Form::Bytes, Form::Bytes) => {
                let mut bytes = Reader::new(self.from.blob()?);
                let value = T::read(&mut bytes)?;
                if bytes.is_empty() { Ok(value) } else { Err(DecodeError::Unknown("length of a field")) }
            }
            (Form::Number, Form::Bytes) | (Form::Bytes, Form::Number) => {
                Err(DecodeError::Unknown("form of a field"))
            }
        }
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

    /// Writes a section of fields of bytes, by ascending number: number, whether a reader that does not know it must refuse
    /// the structure, and value.
    pub fn bytes_fields(&mut self, fields: &[(u64, bool, Vec<u8>)]) {
        self.byte(u8::try_from(fields.len()).unwrap_or(u8::MAX)); // an operation has three at most
        for (number, is_required, value) in fields {
            self.varint(number << BITS | BYTES | if *is_required { REQUIRED } else { 0 });
            self.blob(value);
        }
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
        mut read: impl FnMut(u64, FieldReader<'_>) -> Decoded<FieldKnown>,
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
            let form = if head & BYTES == 0 { Form::Number } else { Form::Bytes };
            if read(number, FieldReader { form, from: self })? == FieldKnown::No {
                if head & REQUIRED != 0 {
                    return Err(DecodeError::Newer(what));
                }
                match form {
                    Form::Number => drop(self.varint()?),
                    Form::Bytes => drop(self.blob()?),
                }
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
    find_bytes(bytes, known, 0).map(drop)
}

/// Skips a section like [`skip_fields`]; `Some(Some(_))` is the value of the field `wanted`, if it is there as bytes.
pub fn find_bytes<'a>(bytes: &mut &'a [u8], known: u64, wanted: u64) -> Option<Option<&'a [u8]>> {
    let mut found = None;
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
            let (value, rest) = bytes.split_at_checked(usize::try_from(value).ok()?)?;
            *bytes = rest;
            found = found.or((number == wanted).then_some(value));
        }
    }
    (count <= MOST).then_some(found)
}

/// The form of a value as a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Number,
    Bytes,
}

/// A value with one form in bytes.
pub(super) trait StoredForm: Sized {
    const FORM: Form = Form::Bytes;

    fn write(&self, to: &mut Writer);
    fn read(from: &mut Reader) -> Decoded<Self>;
}

/// A value that may be left out of a section: an option, a count of nothing, an empty list.
pub(super) trait Field: Sized {
    fn put(&self, number: u64, to: &mut FieldWriter<'_>);
    fn take(field: FieldReader<'_>) -> Decoded<Self>;
}

impl<T: StoredForm> Field for Option<T> {
    fn put(&self, number: u64, to: &mut FieldWriter<'_>) {
        if let Some(value) = self {
            to.write(number, value);
        }
    }
    fn take(field: FieldReader<'_>) -> Decoded<Self> {
        field.read().map(Some)
    }
}

impl<T: StoredForm> Field for Vec<T> {
    fn put(&self, number: u64, to: &mut FieldWriter<'_>) {
        if !self.is_empty() {
            to.write(number, self);
        }
    }
    fn take(field: FieldReader<'_>) -> Decoded<Self> {
        field.read()
    }
}

macro_rules! count_fields {
    ($($t:ty)*) => {$(
        impl Field for $t {
            fn put(&self, number: u64, to: &mut FieldWriter<'_>) {
                if *self > 0 {
                    to.write(number, self);
                }
            }
            fn take(field: FieldReader<'_>) -> Decoded<Self> {
                field.read()
            }
        }
    )*};
}
count_fields!(u32 u64);

impl StoredForm for u64 {
    const FORM: Form = Form::Number;

    fn write(&self, to: &mut Writer) {
        to.varint(*self);
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        from.varint()
    }
}

impl StoredForm for u32 {
    const FORM: Form = Form::Number;

    fn write(&self, to: &mut Writer) {
        to.varint(u64::from(*self));
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        u32::try_from(from.varint()?).map_err(|_| DecodeError::Unknown("32-bit number"))
    }
}

/// Types that are a number with a name.
macro_rules! numbers {
    ($($t:ident)*) => {$(
        impl StoredForm for $t {
            const FORM: Form = Form::Number;

            fn write(&self, to: &mut Writer) {
                self.0.write(to);
            }
            fn read(from: &mut Reader) -> Decoded<Self> {
                from.get().map($t)
            }
        }
    )*};
}
numbers!(MessageId Lsn SessionId WallMs EngineMs Epoch);

impl StoredForm for Box<str> {
    fn write(&self, to: &mut Writer) {
        to.blob(self.as_bytes());
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        from.text("text")
    }
}

/// All bytes of a field.
impl StoredForm for Detail {
    fn write(&self, to: &mut Writer) {
        to.bytes.extend_from_slice(self);
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        Ok(from.take(from.input.len() - from.at)?[..].into())
    }
}

impl<T: StoredForm> StoredForm for Vec<T> {
    fn write(&self, to: &mut Writer) {
        to.varint(self.len() as u64);
        self.iter().for_each(|item| item.write(to));
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        (0..from.count()?).map(|_| from.get()).collect()
    }
}

impl<A: StoredForm, B: StoredForm> StoredForm for (A, B) {
    fn write(&self, to: &mut Writer) {
        self.0.write(to);
        self.1.write(to);
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        Ok((from.get()?, from.get()?))
    }
}

/// Structures that are their fields, in this order.
macro_rules! in_order {
    ($($t:ident { $($field:ident),* })*) => {$(
        impl StoredForm for $t {
            fn write(&self, to: &mut Writer) {
                let $t { $($field),* } = self;
                $($field.write(to);)*
            }
            fn read(from: &mut Reader) -> Decoded<Self> {
                $(let $field = from.get()?;)*
                Ok($t { $($field),* })
            }
        }
    )*};
}
pub(super) use in_order;

/// Enums of which each value has a number below 128.
macro_rules! codes {
    ($($t:ident, $what:literal: $($code:literal $variant:ident $(($inner:path))?),*;)*) => {$(
        impl StoredForm for $t {
            const FORM: Form = Form::Number;

            fn write(&self, to: &mut Writer) {
                to.byte(match self {
                    $($t::$variant $(($inner))? => $code,)*
                });
            }
            fn read(from: &mut Reader) -> Decoded<Self> {
                Ok(match from.byte()? {
                    $($code => $t::$variant $(($inner))?,)*
                    _ => return Err(DecodeError::Unknown($what)),
                })
            }
        }
    )*};
}
pub(super) use codes;

/// A section of tagged fields, each stated once: its number, its place in the arguments of the function that writes it
/// and of the one that reads it, and how it is set if it has no place of its own. No number is ever used for another
/// field.
macro_rules! section {
    ($what:literal, $put:ident, $take:ident ($($arg:ident: $t:ty),*)
        $($number:literal => $value:expr $(, $new:ident => $set:expr)?;)*) => {
        fn $put(to: &mut Writer, $($arg: &$t),*) {
            to.fields(|fields| {
                $(fields.put($number, &$value);)*
            });
        }

        fn $take(from: &mut Reader, $($arg: &mut $t),*) -> Decoded<()> {
            from.fields($what, |number, field| {
                match number {
                    $($number => section!(@set field, $value $(, $new => $set)?),)*
                    _ => return Ok(FieldKnown::No),
                }
                Ok(FieldKnown::Yes)
            })
        }
    };
    (@set $field:ident, $value:expr) => {
        $value = $field.take()?
    };
    (@set $field:ident, $value:expr, $new:ident => $set:expr) => {{
        let $new = $field.take()?;
        if let Some($new) = $new {
            $set;
        }
    }};
}
pub(super) use section;
