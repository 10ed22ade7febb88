//! Reads the first fields of stored rows, and of records that put new messages, without decoding the rest: for scans
//! and ledgers, which read millions of them, and for flushes, which copy them.

use super::fields::{Writer, find_bytes, skip_fields, varint};
use super::{DecodeError, Decoded, TallyState};
use crate::id::MessageId;
use crate::message::{Died, Kind};
use crate::time::{Class, Due, EngineMs};

/// The first byte of a record that puts a message.
pub(super) const PUT: u8 = 1;
/// The highest field of a message.
const LAST_OF_A_MESSAGE: u64 = 8;
/// The highest field of a life, which is its detail.
const LAST_OF_A_LIFE: u64 = 15;

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

/// The head of a life.
#[derive(Clone, Copy, Debug)]
pub(super) struct LifeHead {
    pub(super) due: Due,
    pub(super) stands: StageKind,
    /// Whether it waits, and a lease that ran out may still be settled.
    pub(super) has_token: bool,
}

impl LifeHead {
    /// Reads the head at the start of a slice, and advances the slice.
    #[inline]
    pub(super) fn read(bytes: &mut &[u8]) -> Decoded<Self> {
        let (&first, rest) = bytes.split_first().ok_or(DecodeError::Short)?;
        *bytes = rest;
        let class = if first & 1 == 0 { Class::At } else { Class::After };
        let due = Due::from_raw(class, varint(bytes)?);
        let stands = match first >> 1 {
            0 | 1 => StageKind::Waiting,
            2 => StageKind::Leased { until: EngineMs(varint(bytes)?) },
            3 => StageKind::Dead { at: Died::from_raw(varint(bytes)?) },
            _ => return Err(DecodeError::Unknown("stage")),
        };
        Ok(LifeHead { due, stands, has_token: first >> 1 == 1 })
    }
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
        let LifeHead { due, stands, .. } = LifeHead::read(&mut rest)?;
        let weight = varint(&mut rest)?;
        let length = usize::try_from(varint(&mut rest)?).map_err(|_| DecodeError::Short)?;
        let key = rest.get(..length).ok_or(DecodeError::Short)?;
        Ok(RowHead { id, due, stands, weight, key })
    }
}

/// A record that puts a new message, of which only the fields are read that a ledger or a run needs. A new message
/// waits, has no token, and did not exist before.
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
    content: &'a [u8],
    /// The life behind its head, as records and rows have it.
    rest: &'a [u8],
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
        skip_fields(rest, LAST_OF_A_MESSAGE)?;
        for _ in 0..varint(rest).ok()? {
            weight += skip_blob(rest)?.len() + skip_blob(rest)?.len();
        }
        weight += skip_blob(rest)?.len();
        let content = &content[..content.len() - rest.len()];
        let LifeHead { due, stands: StageKind::Waiting, has_token: false } = LifeHead::read(rest).ok()?
        else {
            return None;
        };
        let behind = *rest;
        for _ in 0..3 {
            varint(rest).ok()?; // generation, attempt, forgiven
        }
        weight += find_bytes(rest, LAST_OF_A_LIFE, LAST_OF_A_LIFE)?.map_or(0, <[u8]>::len);
        let life = &behind[..behind.len() - rest.len()];
        // Nothing was there before.
        (rest[..] == [0]).then_some(NewPut {
            id,
            queue,
            key,
            due,
            weight: weight as u64,
            content,
            rest: life,
        })
    }

    /// The state of the message behind this record.
    pub fn state(&self) -> TallyState {
        TallyState { kind: Kind::Waiting, due: self.due, weight: self.weight }
    }
}

fn skip_blob<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(varint(bytes).ok()?).ok()?;
    let (blob, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(blob)
}

impl Writer {
    /// Writes a new message as [`Writer::stored`] does, from the record that puts it. The fields of that record are
    /// copied as they are, also those that a later version has added.
    pub fn stored_put(&mut self, put: &NewPut<'_>) {
        self.varint(put.id.0);
        self.byte(put.due.class() as u8);
        self.varint(put.due.raw());
        self.varint(put.weight);
        self.blob(put.key);
        self.bytes.extend_from_slice(put.content);
        self.bytes.extend_from_slice(put.rest);
    }
}
