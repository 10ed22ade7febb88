//! The bytes of a run.
//!
//! Head of the file:
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 8 | `dw-runfl` |
//! | 8 | 4 | format version |
//! | 12 | 4 | crc32c of the other 60 bytes |
//! | 16 | 8 | number of the file |
//! | 24 | 8 | incarnation |
//! | 32 | 8 | the last LSN that is included |
//! | 40 | 24 | zero |
//!
//! Head of a block:
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 4 | crc32c of everything from byte 4 to the end of the block |
//! | 4 | 4 | length of the payload |
//! | 8 | 1 | kind: 1 queues, 2 messages, 3 remembered answers, 4 end |
//! | 9 | 3 | zero |
//! | 12 | 4 | number of entries |
//! | 16 | 8 | incarnation of the run |
//! | 24 | 8 | where the block starts in the file |
//! | 32 | | payload: entries, each with its length in front; then zeros up to a multiple of 8 |

use crc32c::{crc32c, crc32c_append};

use crate::folder::Incarnation;
use crate::le::{align8, set_u32, set_u64, u32_at, u64_at};
use crate::manifest::{FORMAT, RunEntry, unknown_format};

pub(crate) const FILE_HEAD: usize = 64;
pub(crate) const HEAD: usize = 32;

const MAGIC: [u8; 8] = *b"dw-runfl";

/// What is in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Queues,
    Messages,
    Answers,
    End,
}

/// The head of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockHead {
    pub(crate) kind: Kind,
    pub(crate) entries: u32,
    /// Bytes of the payload, without the zeros behind it.
    pub(crate) payload: usize,
}

pub(crate) fn file_head(run: &RunEntry) -> Vec<u8> {
    let mut head = vec![0; FILE_HEAD];
    head[..8].copy_from_slice(&MAGIC);
    set_u32(&mut head, 8, FORMAT);
    set_u64(&mut head, 16, run.no.0);
    set_u64(&mut head, 24, run.incarnation.0);
    set_u64(&mut head, 32, run.last.0);
    let crc = crc32c_append(crc32c(&head[..12]), &head[16..]);
    set_u32(&mut head, 12, crc);
    head
}

pub(crate) fn check_file_head(head: &[u8], run: &RunEntry) -> Result<(), String> {
    if head[..8] != MAGIC {
        return Err("this is no run of duewheel".into());
    }
    if u32_at(head, 8) != FORMAT {
        return Err(unknown_format(u32_at(head, 8)));
    }
    if head != file_head(run) {
        return Err("the head is damaged, or of another run than the manifest lists".into());
    }
    Ok(())
}

/// Completes a block: `bytes` holds room for its head, then the payload.
pub(crate) fn finish(bytes: &mut Vec<u8>, kind: Kind, entries: u32, incarnation: Incarnation, at: u64) {
    let payload = u32::try_from(bytes.len() - HEAD).expect("a block has less than 4 GiB");
    bytes.resize(align8(bytes.len()), 0);
    set_u32(bytes, 4, payload);
    bytes[8] = match kind {
        Kind::Queues => 1,
        Kind::Messages => 2,
        Kind::Answers => 3,
        Kind::End => 4,
    };
    set_u32(bytes, 12, entries);
    set_u64(bytes, 16, incarnation.0);
    set_u64(bytes, 24, at);
    let crc = crc32c(&bytes[4..]);
    set_u32(bytes, 0, crc);
}

/// How long the block is whose head this is.
pub(crate) fn length(head: &[u8]) -> usize {
    align8(HEAD + u32_at(head, 4) as usize)
}

/// Checks a whole block.
pub(crate) fn check(bytes: &[u8], incarnation: Incarnation, at: u64) -> Result<BlockHead, &'static str> {
    if u32_at(bytes, 0) != crc32c(&bytes[4..]) {
        return Err("the block's checksum does not match");
    }
    if u64_at(bytes, 16) != incarnation.0 || u64_at(bytes, 24) != at || bytes[9..12] != [0; 3] {
        return Err("the block belongs to another place");
    }
    let kind = match bytes[8] {
        1 => Kind::Queues,
        2 => Kind::Messages,
        3 => Kind::Answers,
        4 => Kind::End,
        _ => return Err("the block is of an unknown kind"),
    };
    Ok(BlockHead { kind, entries: u32_at(bytes, 12), payload: u32_at(bytes, 4) as usize })
}
