//! Reads the first fields of a stored row, or of a record that puts a message, without decoding the rest: for scans and
//! ledgers, which read millions of them.

use super::TallyState;
use super::layout::{DecodeError, Decoded, MARKED, MORE, PUT, numbers_of};
use crate::id::MessageId;
use crate::message::{Died, Kind};
use crate::time::{Class, Due, EngineMs};

/// The first fields of a stored row ([`super::Writer::stored`]), read without decoding the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowHead<'a> {
    /// The message.
    pub id: MessageId,
    /// When it may be delivered.
    pub due: Due,
    /// The stage.
    pub stands: StageKind,
    /// The bytes that count against limits.
    pub weight: u64,
    /// The key of the message; empty if it has none.
    pub key: &'a [u8],
}

/// A stage without its details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageKind {
    /// Scheduled or ready.
    Waiting,
    /// Leased by a consumer.
    Leased {
        /// The lease's deadline.
        until: EngineMs,
    },
    /// Dead.
    Dead {
        /// The time of death.
        at: Died,
    },
}

impl<'a> RowHead<'a> {
    /// Reads the head of a stored row, and nothing behind it.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes end too early or hold an unknown value.
    #[inline]
    pub fn read(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut rest = bytes;
        let id = MessageId(varint(&mut rest)?);
        let (first, behind) = rest.split_first().ok_or(DecodeError::Short)?;
        rest = behind;
        let (class, stage, _) = stands(*first)?;
        let due = Due::from_raw(class, varint(&mut rest)?);
        let stands = match stage {
            0 | 1 => StageKind::Waiting,
            2 => StageKind::Leased { until: EngineMs(varint(&mut rest)?) },
            _ => StageKind::Dead { at: Died::from_raw(varint(&mut rest)?) },
        };
        let weight = varint(&mut rest)?;
        let length = usize::try_from(varint(&mut rest)?).map_err(|_| DecodeError::Short)?;
        let key = rest.get(..length).ok_or(DecodeError::Short)?;
        Ok(RowHead { id, due, stands, weight, key })
    }
}

/// The class, the stage (0 to 3) and whether marks follow ([`MARKED`]), of a stored row's first byte behind its id.
pub(super) fn stands(byte: u8) -> Decoded<(Class, u8, u8)> {
    let class = if byte & 1 == 0 { Class::At } else { Class::After };
    let (stage, marked) = (byte >> 1 & 3, byte >> 1 & MARKED);
    if byte >> 4 > 0 { Err(DecodeError::Unknown("stage")) } else { Ok((class, stage, marked)) }
}

/// Reads a varint at the start of a slice, and advances the slice.
///
/// # Errors
/// [`DecodeError`], as [`super::Reader::varint`].
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

/// A record that puts a new message, of which only the fields are read that a ledger or a run needs. A new message
/// waits, has no token, no marks and no history, and did not exist before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewPut<'a> {
    /// The message.
    pub id: MessageId,
    /// The name of the message's queue.
    pub queue: &'a str,
    /// The key of the message; empty if it has none.
    pub key: &'a [u8],
    /// When the message may be delivered.
    pub due: Due,
    /// The bytes that count against limits.
    pub weight: u64,
    /// The message behind its key, as records and rows have it.
    pub(super) content: &'a [u8],
    /// Generation, attempts and priority, as records and rows have them.
    pub(super) numbers: &'a [u8],
}

impl<'a> NewPut<'a> {
    /// Reads a record; `None` for every other record, and for bytes that are no record.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let (&PUT, mut rest) = bytes.split_first()? else { return None };
        let rest = &mut rest;
        let id = MessageId(varint(rest).ok()?);
        let queue = std::str::from_utf8(skip_blob(rest)?).ok()?;
        let key = skip_blob(rest)?;
        let (content, mut weight) = (*rest, key.len());
        varint(rest).ok()?; // accepted at
        skip_option(rest, 1)?; // lease
        skip_option(rest, 1)?; // most attempts
        skip_backoff_and_more(rest)?;
        for _ in 0..varint(rest).ok()? {
            weight += skip_blob(rest)?.len() + skip_blob(rest)?.len();
        }
        weight += skip_blob(rest)?.len();
        let content = &content[..content.len() - rest.len()];
        let class = match skip_byte(rest)? {
            0 => Class::At,
            1 => Class::After,
            _ => return None,
        };
        let due = Due::from_raw(class, varint(rest).ok()?);
        let numbers = *rest;
        for _ in 0..3 {
            varint(rest).ok()?; // generation, attempt, forgiven
        }
        skip_option(rest, 1)?; // priority
        let numbers = &numbers[..numbers.len() - rest.len()];
        let weight = weight as u64;
        // The stage, no history, and nothing before.
        (rest[..] == [0, 0, 0]).then_some(NewPut { id, queue, key, due, weight, content, numbers })
    }

    /// The state of the message behind this record.
    pub fn state(&self) -> TallyState {
        TallyState { kind: Kind::Waiting, due: self.due, weight: self.weight }
    }
}

fn skip_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*first)
}

fn skip_blob<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(varint(bytes).ok()?).ok()?;
    let (blob, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(blob)
}

/// Skips the backoff, and the options that format 7 added.
fn skip_backoff_and_more(bytes: &mut &[u8]) -> Option<()> {
    let byte = skip_byte(bytes)?;
    let backoff = if byte & 1 == 0 { 0 } else { 2 };
    (0..backoff).try_for_each(|_| varint(bytes).ok().map(|_| ()))?;
    match byte & !1 {
        0 => Some(()),
        MORE => {
            let numbers = numbers_of(skip_byte(bytes)?)?;
            (0..numbers).try_for_each(|_| varint(bytes).ok().map(|_| ()))
        }
        _ => None,
    }
}

fn skip_option(bytes: &mut &[u8], numbers: usize) -> Option<()> {
    match skip_byte(bytes)? {
        0 => Some(()),
        1 => (0..numbers).try_for_each(|_| varint(bytes).ok().map(|_| ())),
        _ => None,
    }
}
