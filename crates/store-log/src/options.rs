//! Options of the store.

use std::time::Duration;

use crate::budget::MemoryBudget;
use crate::journal::segment::{BLOCK, HEAD, MARK_BYTES};
use crate::pool::WorkerPool;

const MIB: u64 = 1024 * 1024;
/// Bytes of a group in a segment besides its records: its frame's head and padding, and the mark behind it.
const OF_FRAME: u64 = (HEAD + 8 + MARK_BYTES) as u64;

/// Settings of a log store. `Options::default()` are those of the server and the library.
#[derive(Clone, Debug)]
pub struct Options {
    /// The meaning of "durable".
    pub sync: SyncMode,
    /// Size of a journal segment, in bytes, rounded up to 4096; at least 8192. A larger group gets its own segment, for
    /// which space is not guaranteed: use at least twice the size of the largest message.
    pub segment_bytes: u64,
    /// Size of a journal segment while the folder holds little, in bytes: less than this in runs, and no full segment.
    /// Corrected to take a group of the agreed size, and to be no larger than `segment_bytes`. Three segments are made at
    /// the start.
    pub small_segment_bytes: u64,
    /// Bytes of zeros that a start writes to the first journal segment of a folder that has none prepared. The rest of
    /// that segment is merely allocated, and the writer leaves it where the zeros end once the next one is prepared.
    /// Default: 1 MiB.
    pub filled_at_start: u64,
    /// Largest size of records in memory, in bytes. When half of it is reached, the records are cut off and written to
    /// a run, while the next half gathers. Opening the store reads about as much journal.
    pub journal_bytes: u64,
    /// Largest number of records in memory. It works like `journal_bytes`; the limit that is reached first applies.
    pub journal_records: u64,
    /// Memory for records and their indexes, together with all other stores that have a clone of this budget. When half
    /// of it is used, the store that has the most cuts its records off, perhaps earlier than `journal_bytes` says; so
    /// does a lone store. A quarter of it is reserved for all stores in even parts; a store with more, when the rest is
    /// used up, says `Capacity::Busy` as its `Store::room`. Other records than new messages, and the start, are bounded
    /// by `journal_bytes` alone.
    pub memory: MemoryBudget,
    /// Approximate largest number of messages of a run.
    pub run_rows: u64,
    /// A flush begins another run after this many bytes.
    pub run_bytes: u64,
    /// The number of small runs from which on some are merged.
    pub small_runs: usize,
    /// Number of threads that help when many messages are looked up in runs at once.
    pub readers: usize,
    /// Largest size of a group, in bytes, that is guaranteed to fit after `Capacity::Enough`. Reduced to the size that one
    /// segment takes.
    pub max_group_bytes: u64,
    /// The distance of the ids of new messages: the number of shards, of which each gives every n-th id. Another distance
    /// costs memory, and nothing else.
    pub id_step: u64,
    /// Time without a group, in ms, after which a mark is written that proves the last one durable.
    pub idle_ms: u64,
    /// Time, in ms, after which the manifest records that a group is durable, if nothing else has replaced it since: a
    /// second proof, which damage to the journal does not reach.
    pub position_ms: u64,
    /// Longest time between two records of the clocks while nothing is written, in ms.
    pub clock_ms: u64,
    /// Time without a group, in ms, after which a folder that holds little gives large segments back.
    pub rest_ms: u64,
    /// Longest time that data stays unsynced in buffered mode.
    pub buffered_for: Duration,
    /// Time until a step that failed because the disk was full is retried.
    pub retry_after: Duration,
    /// How the background work is run.
    pub workers: WorkMode,
    /// The threads of [`WorkMode::Threads`], together with all other stores that have a clone of this pool.
    pub pool: WorkerPool,
    /// Whether the owner waits at the end of a journal segment. [`AtSegmentEnd::GoOn`] by default.
    pub at_segment_end: AtSegmentEnd,
}

/// The meaning of "durable".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// `fdatasync` has returned: survives a power loss.
    Fsync,
    /// `write` has returned: survives kill -9; synced within [`Options::buffered_for`].
    Buffered,
    /// Nothing outlives the process, on a [`RamDisk`](crate::disk::RamDisk).
    Memory,
}

/// How the background work is run: syncing, preparing segments, flushing, merging, loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkMode {
    /// By the store's own threads.
    Threads,
    /// By [`Hands`](crate::Hands), step by step; for simulations. Work that the owner would wait for is done on its own
    /// thread.
    ByHand,
}

/// Behavior of the owner at the end of a journal segment that is not durable yet, or whose successor is not prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtSegmentEnd {
    /// The store continues: groups wait in memory, neither written nor durable, up to two of the agreed size.
    GoOn,
    /// The store waits: a group that was appended is written.
    Wait,
}

impl Options {
    /// Corrects the options: a segment has room for its header and a frame, and ends with a block.
    pub(crate) fn sound(mut self) -> Self {
        let block = BLOCK as u64;
        self.small_runs = self.small_runs.max(2);
        self.readers = self.readers.max(1); // what is fetched for a look-up has nobody else
        self.run_rows = self.run_rows.max(1);
        self.segment_bytes = self.segment_bytes.clamp(2 * block, 1 << 40).next_multiple_of(block);
        self.max_group_bytes = self.max_group_bytes.min(self.segment_bytes - block - OF_FRAME);
        let least = (block + self.max_group_bytes + OF_FRAME).next_multiple_of(block);
        let small = self.small_segment_bytes.min(self.segment_bytes).next_multiple_of(block);
        self.small_segment_bytes = small.max(least).min(self.segment_bytes);
        self
    }

    /// The size of the next segment of a folder that holds this many bytes in runs and full segments.
    pub(crate) fn segment_bytes_for(&self, held: u64) -> u64 {
        if held > self.small_segment_bytes { self.segment_bytes } else { self.small_segment_bytes }
    }

    /// Bytes of a segment for a group of the agreed size, with the mark behind it.
    pub(crate) fn agreed_frame(&self) -> usize {
        usize::try_from(self.max_group_bytes.saturating_add(OF_FRAME)).unwrap_or(usize::MAX / 2)
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            sync: SyncMode::Fsync,
            segment_bytes: 64 * MIB,
            small_segment_bytes: 20 * MIB,
            filled_at_start: MIB,
            journal_bytes: 256 * MIB,
            journal_records: 2_000_000,
            memory: MemoryBudget::default(),
            run_rows: 16_000_000,
            run_bytes: 4096 * MIB,
            small_runs: 16,
            readers: 3,
            max_group_bytes: 16 * MIB,
            id_step: 1,
            idle_ms: 100,
            position_ms: 500,
            clock_ms: 60_000,
            rest_ms: 60_000,
            buffered_for: Duration::from_millis(50),
            retry_after: Duration::from_secs(1),
            workers: WorkMode::Threads,
            pool: WorkerPool::default(),
            at_segment_end: AtSegmentEnd::GoOn,
        }
    }
}
