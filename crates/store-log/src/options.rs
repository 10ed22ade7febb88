//! What can be set.

use std::time::Duration;

use crate::journal::frame::{HEAD, MARK_BYTES};
use crate::journal::segment::BLOCK;

const MIB: u64 = 1024 * 1024;
/// What a group takes in a segment besides its records: its frame's head and padding, and the mark behind it.
const OF_FRAME: u64 = (HEAD + 8 + MARK_BYTES) as u64;

/// Settings of a log store. `Options::default()` is what the server and the library use.
#[derive(Clone, Debug)]
pub struct Options {
    /// What "durable" means.
    pub sync: SyncMode,
    /// Size of a journal segment, in bytes, rounded up to 4096; at least 8192. A group that is larger gets a segment of
    /// its own, for which there is no promise of room: twice the largest message is the least that is wise.
    pub segment_bytes: u64,
    /// Bytes of records in memory: when there are half as many, they are cut off and written to a run, while the next
    /// half gathers. So much of the journal is read when the store is opened, and not much more.
    pub journal_bytes: u64,
    /// The same for the number of records.
    pub journal_records: u64,
    /// A run has about so many messages at most.
    pub run_rows: u64,
    /// A flush begins another run when it has written so many bytes to one.
    pub run_bytes: u64,
    /// From so many small runs on, some are merged.
    pub small_runs: usize,
    /// Threads that help when many messages are looked up in runs at once.
    pub readers: usize,
    /// A group of at most so many bytes is sure of its place after `Room::Enough`. Cut down to what one segment takes.
    pub max_group_bytes: u64,
    /// After so long without a group a mark is written that proves the last one durable, in ms.
    pub idle_ms: u64,
    /// The clocks are noted at least so often while nothing is written, in ms.
    pub clock_ms: u64,
    /// In buffered mode nothing stays unsynced longer than this.
    pub buffered_for: Duration,
    /// How long to wait before something that failed for want of room is tried again.
    pub retry_after: Duration,
    /// Who does the background work.
    pub workers: Workers,
    /// Whether the owner waits at the end of a journal segment. [`AtSegmentEnd::GoOn`] by default.
    pub at_segment_end: AtSegmentEnd,
}

/// What "durable" means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// `fdatasync` has returned: survives a power loss.
    Fsync,
    /// `write` has returned: survives kill -9; synced within [`Options::buffered_for`].
    Buffered,
}

/// Who does the background work: syncing, preparing segments, flushing, merging, loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// Threads of the store's own.
    Threads,
    /// Nobody but [`Hands`](crate::Hands), step by step; for simulations. What the owner would have to wait for is done
    /// on the spot.
    ByHand,
}

/// What the owner does at the end of a journal segment, while that one is not durable yet or the next one not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtSegmentEnd {
    /// It goes on: groups wait in memory, neither written nor durable, up to two of the agreed size.
    GoOn,
    /// It waits: a group that was appended is written.
    Wait,
}

impl Options {
    /// A segment has room for its header and for something else, and ends with a block.
    pub(crate) fn sound(mut self) -> Self {
        let block = BLOCK as u64;
        self.small_runs = self.small_runs.max(2);
        self.run_rows = self.run_rows.max(1);
        self.segment_bytes = self.segment_bytes.clamp(2 * block, 1 << 40).next_multiple_of(block);
        self.max_group_bytes = self.max_group_bytes.min(self.segment_bytes - block - OF_FRAME);
        self
    }

    /// Bytes of a segment that a group of the agreed size takes, with the mark behind it.
    pub(crate) fn agreed_frame(&self) -> usize {
        usize::try_from(self.max_group_bytes.saturating_add(OF_FRAME)).unwrap_or(usize::MAX / 2)
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            sync: SyncMode::Fsync,
            segment_bytes: 64 * MIB,
            journal_bytes: 256 * MIB,
            journal_records: 2_000_000,
            run_rows: 16_000_000,
            run_bytes: 4096 * MIB,
            small_runs: 16,
            readers: 3,
            max_group_bytes: 16 * MIB,
            idle_ms: 100,
            clock_ms: 60_000,
            buffered_for: Duration::from_millis(50),
            retry_after: Duration::from_secs(1),
            workers: Workers::Threads,
            at_segment_end: AtSegmentEnd::GoOn,
        }
    }
}
