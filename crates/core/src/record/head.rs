//! Reads the first fields of a stored row without decoding the rest: for scans, which read millions of them.

use super::primitive::varint;
use super::{DecodeError, Decoded};
use crate::id::MessageId;
use crate::message::Died;
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
