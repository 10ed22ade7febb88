//! The head in front of each record of a memtable:
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 4 | length of the record |
//! | 4 | 4 | offset of the record that contains the message's life (this one, or the one before a grant); 0: it is older |
//! | 8 | 4 | offset of the record that contains the message itself; 0: it is older |
//! | 12 | 4 | number of the queue, and in the upper bits the message's stage |
//! | 16 | 8 | when it is due |
//! | 24 | 4 | bytes of the message in older tables, which a flush writes again |

use duewheel_core::Due;
use duewheel_core::message::Kind;
use duewheel_core::time::Class;

use super::arena::{Arena, ArenaOffset};
use crate::le::{u32_at, u64_at};

/// Bytes in front of each record.
pub(super) const HEAD: usize = 28;
/// The upper bits of a head's fourth field.
pub(super) const QUEUE_BITS: u32 = 27;

/// The stage of a message after a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StageAfter {
    Is(Kind),
    Gone,
}

/// The content of a record, and the position of the rest.
#[derive(Clone, Copy, Debug)]
pub(super) enum RecordParts {
    Put,
    Life { put: ArenaOffset },
    Grant { life: ArenaOffset, put: ArenaOffset },
}

/// The decoded head of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordNode {
    pub(super) place: ArenaOffset,
    pub(super) length: usize,
    pub(super) life: ArenaOffset,
    pub(super) put: ArenaOffset,
    pub(super) queue: u32,
    pub(super) stands: StageAfter,
    pub(super) due: Due,
    /// Bytes of the message in older tables.
    pub(super) elsewhere: u32,
}

/// The head of a record of so many bytes.
pub(super) fn head(
    length: u32,
    says: RecordParts,
    queue: u32,
    stands: StageAfter,
    due: Due,
    elsewhere: u32,
) -> [u8; HEAD] {
    let stage = match stands {
        StageAfter::Is(kind) => kind as u32,
        StageAfter::Gone => 3,
    };
    let (life, put) = match says {
        RecordParts::Put => (ArenaOffset::MAX, ArenaOffset::MAX),
        RecordParts::Life { put } => (ArenaOffset::MAX, put),
        RecordParts::Grant { life, put } => (life, put),
    };
    let field = queue | stage << QUEUE_BITS | (due.class() as u32) << (QUEUE_BITS + 2);
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&length.to_le_bytes());
    head[4..8].copy_from_slice(&life.to_le_bytes());
    head[8..12].copy_from_slice(&put.to_le_bytes());
    head[12..16].copy_from_slice(&field.to_le_bytes());
    head[16..24].copy_from_slice(&due.raw().to_le_bytes());
    head[24..28].copy_from_slice(&elsewhere.to_le_bytes());
    head
}

/// Decodes the head at an offset.
pub(super) fn node_at(arena: &Arena, place: ArenaOffset) -> RecordNode {
    let head = arena.at(place);
    let field = u32_at(head, 12);
    let class = if field >> (QUEUE_BITS + 2) == 0 { Class::At } else { Class::After };
    let own = |named: ArenaOffset| if named == ArenaOffset::MAX { place } else { named };
    RecordNode {
        place,
        length: u32_at(head, 0) as usize,
        life: own(u32_at(head, 4)),
        put: own(u32_at(head, 8)),
        queue: field & ((1 << QUEUE_BITS) - 1),
        stands: match field >> QUEUE_BITS & 3 {
            0 => StageAfter::Is(Kind::Waiting),
            1 => StageAfter::Is(Kind::Leased),
            2 => StageAfter::Is(Kind::Dead),
            _ => StageAfter::Gone,
        },
        due: Due::from_raw(class, u64_at(head, 16)),
        elsewhere: u32_at(head, 24),
    }
}

/// The record at an offset.
pub(super) fn record_at(arena: &Arena, place: ArenaOffset) -> &[u8] {
    let head = arena.at(place);
    &head[HEAD..HEAD + u32_at(head, 0) as usize]
}
