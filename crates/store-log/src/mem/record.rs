//! A record of a memtable: its head, the names in it, and what it says of a message.
//!
//! The head in front of each record:
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 4 | length of the record |
//! | 4 | 4 | offset of the record that contains the message's life (this one, or the one before a grant); 0: it is older |
//! | 8 | 4 | offset of the record that contains the message itself; 0: it is older |
//! | 12 | 4 | number of the queue, and in the upper bits the message's stage |
//! | 16 | 8 | when it is due |
//! | 24 | 4 | bytes of the message in older tables, which a flush writes again |

use duewheel_core::message::{Kind, Lease, Life, Row, Stage};
use duewheel_core::mutant::{self, Mutant};
use duewheel_core::record::{DecodeError, varint};
use duewheel_core::time::Class;
use duewheel_core::{Due, IdSet, MessageId};

use crate::format::{u32_at, u64_at};
use crate::mem::arena::{Arena, ArenaOffset};

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

// Reads the names in a record from its bytes, and computes the short hashes by which the record is found.

/// The first byte of a record that puts a message, and of an answer.
const PUT: u8 = 1;
const DEDUPED: u8 = 7;

/// Id, queue and key of a record that puts a message.
pub(super) fn put_names(bytes: &[u8]) -> Option<(MessageId, &[u8], &[u8])> {
    let (kind, mut rest) = bytes.split_first()?;
    if *kind != PUT {
        return None;
    }
    let id = varint(&mut rest).ok()?;
    let queue = blob(&mut rest).ok()?;
    Some((MessageId(id), queue, blob(&mut rest).ok()?))
}

/// Whether a record is the answer remembered under this id.
pub(super) fn names_answer(bytes: &[u8], queue: &str, id: &str) -> bool {
    let Some((&DEDUPED, mut rest)) = bytes.split_first() else { return false };
    blob(&mut rest) == Ok(queue.as_bytes()) && blob(&mut rest) == Ok(id.as_bytes())
}

fn blob<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let length = usize::try_from(varint(rest)?).map_err(|_| DecodeError::Short)?;
    let (blob, behind) = rest.split_at_checked(length).ok_or(DecodeError::Short)?;
    *rest = behind;
    Ok(blob)
}

/// The part of a hash that is kept. More of it would cost memory and spare nothing: under a secret seed two names share
/// these 32 bits by chance alone, so a look-up in a table of ten million examines a stranger once in 400 times.
#[allow(clippy::cast_possible_truncation)] // a part of it is enough
pub(super) fn short(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// The short hash, spread over all bits that a hash table uses.
pub(super) fn spread(short: u32) -> u64 {
    u64::from(short).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

// Patches: the changes of a message whose other content is in an older table.

/// The changes of a message that is in an older table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Patch {
    pub(super) life: Option<Life>,
    pub(super) grant: Option<(u32, Lease)>,
}

impl Patch {
    /// Applies the change to what was known before.
    pub(crate) fn apply(self, row: &mut Row) {
        if let Some(life) = self.life {
            row.life = life;
        }
        if let Some((attempt, lease)) = self.grant {
            row.life.attempt = attempt;
            row.life.stage = Stage::Leased(lease);
        }
    }

    /// This change applied after an older one.
    pub(crate) fn on(self, older: Patch) -> Patch {
        match self.life {
            Some(_) => self,
            None => Patch { life: older.life, grant: self.grant.or(older.grant) },
        }
    }
}

// Purges of queues, as a memtable keeps them.

/// A purge of a queue.
#[derive(Clone, Debug)]
pub(crate) struct Purge {
    pub(super) place: ArenaOffset,
    /// The first id that the purge does not concern.
    pub(crate) before: MessageId,
    /// The ids that it kept: those of the leased messages.
    pub(crate) keep: IdSet,
}

impl Purge {
    /// Whether it removed this message, if the message is older.
    pub(crate) fn takes(&self, id: MessageId) -> bool {
        id < self.before && !self.keep.contains(id)
    }
}

// The size of a flush, computed from the memtables.

/// The size of messages in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Number of messages.
    pub(crate) rows: u64,
    /// Bytes of them in this table: a run with them is not smaller.
    pub(crate) least: u64,
    /// Largest size of a run with them in bytes, including its indexes and the temporary space for sorting these.
    pub(crate) most: u64,
    /// Bytes of messages that are in a run already and are written again.
    pub(crate) again: u64,
}

/// Bytes of a row besides those of its record: lengths, and its part of the head of a block.
const ROW: u64 = 24;
/// An entry of the index of ids, and as much while it is sorted.
const BY_ID: u64 = 2 * 16;
/// An entry of the index of keys, and as much while it is sorted; and the key's bits in the filter.
const BY_KEY: u64 = 2 * 24 + 2;
/// An id in the set of ids.
const IN_SET: u64 = 4;
/// An entry of an index of the leased, of the dead, or of the spans of a queue.
const OTHER: u64 = 2 * 32;

impl Extent {
    /// The size of a message with `here` bytes in this table and `elsewhere` bytes in an older one.
    pub(crate) fn of_row(here: u64, elsewhere: u64, kind: Kind) -> Self {
        let entries = match kind {
            Kind::Waiting => 0,
            Kind::Leased => OTHER,
            Kind::Dead => 2 * OTHER,
        };
        let bytes = here + elsewhere;
        let most = match mutant::is(Mutant::ReserveWithoutIndexes) {
            true => bytes,
            false => bytes + bytes / 64 + ROW + BY_ID + BY_KEY + IN_SET + OTHER + entries,
        };
        Extent { rows: 1, least: bytes, most, again: elsewhere }
    }

    /// The size of a remembered answer.
    pub(crate) fn of_answer(bytes: u64) -> Self {
        Extent { most: bytes + bytes / 64 + ROW + BY_KEY, ..Extent::default() }
    }

    pub(crate) fn add(&mut self, other: Extent) {
        self.rows += other.rows;
        self.least += other.least;
        self.most += other.most;
        self.again += other.again;
    }

    /// Subtracts a size that was added before. If a journal was not written by an engine, its purges may keep other
    /// messages than the leased ones; then only the sizes are wrong.
    pub(super) fn sub(&mut self, other: Extent) {
        self.rows = self.rows.saturating_sub(other.rows);
        self.least = self.least.saturating_sub(other.least);
        self.most = self.most.saturating_sub(other.most);
        self.again = self.again.saturating_sub(other.again);
    }
}
