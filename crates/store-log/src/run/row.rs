//! A message of a run, not decoded.

use bytes::Bytes;
use duewheel_core::message::Row;
use duewheel_core::record::{DecodeError, Reader, RowHead, StageKind, varint};
use duewheel_core::{Due, MessageId, QueueName};

/// A row as a scan returns it. It keeps a part of the file in memory as long as it lives.
#[derive(Clone, Debug)]
pub(crate) struct RawRow {
    pub(crate) id: MessageId,
    pub(crate) due: Due,
    pub(crate) stands: StageKind,
    pub(crate) weight: u64,
    /// The run's number of its queue.
    pub(crate) queue: u32,
    /// The row in the codec's form.
    pub(crate) bytes: Bytes,
    /// The row's offset in the file, for messages about damage.
    pub(crate) at: u64,
}

/// A row in the payload of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InBlock<'a> {
    pub(crate) queue: u32,
    pub(crate) head: RowHead<'a>,
    /// The row in the codec's form.
    pub(crate) bytes: &'a [u8],
    /// The start of these bytes in the payload.
    pub(crate) at: usize,
}

/// The rows of a block's payload, one by one.
#[derive(Debug)]
pub(crate) struct BlockRows<'a> {
    payload: &'a [u8],
    rest: &'a [u8],
    left: u32,
}

impl<'a> BlockRows<'a> {
    pub(crate) fn new(payload: &'a [u8], entries: u32) -> Self {
        BlockRows { payload, rest: payload, left: entries }
    }

    /// The next row; `None` when the block ends where it should.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<InBlock<'a>>, DecodeError> {
        if self.left == 0 {
            return if self.rest.is_empty() { Ok(None) } else { Err(DecodeError::Unknown("end of a block")) };
        }
        self.left -= 1;
        let length = usize::try_from(varint(&mut self.rest)?).map_err(|_| DecodeError::Short)?;
        let (mut row, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::Short)?;
        self.rest = rest;
        let queue = u32::try_from(varint(&mut row)?).map_err(|_| DecodeError::Unknown("queue"))?;
        let at = self.payload.len() - rest.len() - row.len();
        Ok(Some(InBlock { queue, head: RowHead::read(row)?, bytes: row, at }))
    }
}

/// Decodes the whole row.
pub(crate) fn decode(bytes: Bytes, queue: QueueName) -> Result<Row, DecodeError> {
    let mut reader = Reader::new(bytes);
    let row = reader.stored(queue)?;
    if reader.is_empty() { Ok(row) } else { Err(DecodeError::Unknown("end of a message")) }
}
