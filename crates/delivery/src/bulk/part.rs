//! The messages that a job concerns, in parts that each have a record.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use duewheel::core::MessageId;

/// Bytes of one message in a part.
const ENTRY: usize = 20;

/// One message that a job concerns, as it was when the job collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartEntry {
    pub(super) id: MessageId,
    pub(super) generation: u32,
    /// When it was due, in ms since 1970.
    pub(super) due: u64,
}

/// The number of messages of a part whose record has at most this many bytes.
pub(super) fn entries_within(bytes: usize) -> usize {
    (bytes / ENTRY).clamp(1, crate::limits::BULK_PART)
}

/// The name of a part's record.
pub(super) fn part_name(job: &str, part: u32) -> String {
    format!("{job}/{part}")
}

pub(super) fn write_part(entries: &[PartEntry]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(entries.len() * ENTRY);
    for entry in entries {
        bytes.put_u64_le(entry.id.0);
        bytes.put_u32_le(entry.generation);
        bytes.put_u64_le(entry.due);
    }
    bytes.freeze()
}

/// `None`: it is no part.
pub(super) fn read_part(mut bytes: &[u8]) -> Option<Vec<PartEntry>> {
    if bytes.len() % ENTRY != 0 {
        return None;
    }
    let mut entries = Vec::with_capacity(bytes.len() / ENTRY);
    while bytes.has_remaining() {
        let (id, generation, due) = (MessageId(bytes.get_u64_le()), bytes.get_u32_le(), bytes.get_u64_le());
        entries.push(PartEntry { id, generation, due });
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_comes_back() {
        let entry = |n: u64| PartEntry { id: MessageId(n), generation: 7, due: u64::MAX - n };
        let entries: Vec<_> = (0..3).map(entry).collect();
        let bytes = write_part(&entries);
        assert_eq!(read_part(&bytes), Some(entries));
        assert_eq!(read_part(&bytes[1..]), None);
        assert_eq!(entries_within(39), 1);
    }
}
