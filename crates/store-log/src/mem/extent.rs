//! The size of a flush, computed from the memtables.

use duewheel_core::message::Kind;
use duewheel_core::mutant::{self, Mutant};

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
