//! Making a data folder, or another store, from a backup.
//!
//! The log store copies the bytes. This module ensures that no lease token of the original is accepted by the restored
//! folder: the original may have continued to run, and may have delivered the message to another consumer since.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use duewheel_core::id::LeaseToken;
use duewheel_core::message::{Lease, Row, Stage};
use duewheel_core::record::{ClockPair, Gone, Group, Record, Was};
use duewheel_core::store::{Capacity, Load, Loaded, More, Recovered, Sequence, Store, StoreError, Which};
use duewheel_core::{Epoch, Lsn};
use duewheel_shard::clock::{Clock, SystemClock};
use duewheel_shard::timekeeper::Timekeeper;
use duewheel_store_log::{LogStore, Options};

/// The queue of what tells a store apart from its copies: a restore and a salvage remove its messages. Only the server
/// itself can have messages in it.
pub const STORE_QUEUE: &str = "#store";

/// The result of a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// The pending messages: scheduled, ready, leased and dead. Those that have ended and are kept are not counted.
    pub messages: u64,
    /// How many of these had a lease token, which is no longer accepted.
    pub tokens_ended: u64,
    /// The number of files of the copy.
    pub files: u64,
    /// The total size of the files, in bytes.
    pub bytes: u64,
    /// The number of records in the copy's journal.
    pub records: u64,
}

/// The number of messages processed at a time.
const ROWS: usize = 1_024;
/// The bytes of bodies read at a time.
const BYTES: usize = 4 * 1024 * 1024;
/// Segments can be small, because little is written here.
const SEGMENT_BYTES: u64 = 4 * 1024 * 1024;

/// Makes a data folder in `dir` from a copy: of a [`Duewheel::backup`](crate::Duewheel::backup), or of a folder that no
/// process has open. `dir` is created if it is missing, and must be empty otherwise. The copy is not changed.
///
/// Everything is checked before anything is copied. Due times, keys, attempts and settings are those of the copy, and
/// the time since then counts: messages whose due time has passed are due at once. No lease token of the original is
/// accepted, and none is ever given again: a message that was leased is delivered again when its lease has run out.
///
/// This reads everything three times and blocks the calling thread. [`Duewheel::backup`](crate::Duewheel::backup) has
/// an example.
///
/// # Errors
/// [`Corrupt`](duewheel_core::store::ErrorKind::Corrupt) if the copy is damaged (run
/// [`verify`](duewheel_store_log::verify()) for all damaged places),
/// [`Fenced`](duewheel_core::store::ErrorKind::Fenced) if a process has it open,
/// [`Full`](duewheel_core::store::ErrorKind::Full) or [`Unavailable`](duewheel_core::store::ErrorKind::Unavailable) if
/// a disk returns an error, or if `dir` is not empty. After an error, or if the process was killed before the end,
/// remove `dir`.
pub fn restore(src: impl AsRef<Path>, dir: impl AsRef<Path>) -> Result<Restored, StoreError> {
    let dir = dir.as_ref();
    let report = duewheel_store_log::restore(src, dir)?;
    let tokens_ended = end_tokens(dir).inspect_err(|_| {
        // An incomplete folder must not be opened. If even the removal fails, the error above is returned.
        let _ = duewheel_store_log::spoil(dir);
    })?;
    Ok(Restored {
        messages: report.pending,
        tokens_ended,
        files: report.files,
        bytes: report.bytes,
        records: report.records,
    })
}

/// Makes every lease invalid, and forgets the tokens of leases that have run out. Returns how many there were.
pub(crate) fn end_tokens(dir: &Path) -> Result<u64, StoreError> {
    duewheel_store_log::folders_in(dir)?.iter().map(|folder| end_tokens_of(folder)).sum()
}

fn end_tokens_of(dir: &Path) -> Result<u64, StoreError> {
    let thread = thread::current();
    let options = Options { segment_bytes: SEGMENT_BYTES, ..Options::default() };
    let mut store = LogStore::open(dir, options, Arc::new(move || thread.unpark()))?;
    let recovered = store.recovered();
    // A store without a clock has no records.
    let Some(clock) = recovered.clock else { return Ok(0) };
    end_all(&mut store, &recovered, clock)
}

/// Makes every lease of a store invalid to which a copy was restored, as [`restore`] does, and closes it. The time
/// since the copy counts: the store continues from the clocks of this machine, whatever the clock of its medium says of
/// when it was written.
///
/// Returns how many messages had a lease token.
///
/// # Errors
/// As of the store.
pub fn close_restored(store: &mut dyn Store) -> Result<u64, StoreError> {
    let (recovered, clock) = (store.recovered(), SystemClock);
    let keeper = Timekeeper::resume(None, recovered.clock, recovered.anchor, &clock);
    let now = ClockPair::of(keeper.now(clock.read()));
    if let Some(anchor) = keeper.anchor(&clock) {
        store.anchor(now, anchor)?;
    }
    end_all(store, &recovered, now)
}

/// Makes every lease of a store invalid, and closes it.
fn end_all(store: &mut dyn Store, recovered: &Recovered, clock: ClockPair) -> Result<u64, StoreError> {
    let mut ending = Ending { epoch: recovered.epoch, next: recovered.next_lsn, clock, ended: 0 };
    for sequence in [Sequence::AllAt, Sequence::AllAfter] {
        let mut after = None;
        loop {
            let which = Which::All;
            let until = u64::MAX;
            store.load(Load { ticket: 0, sequence, which, after, until, rows: ROWS, bytes: BYTES })?;
            let page = loaded(store)?;
            ending.end(store, page.rows)?;
            match page.more {
                More::No => break,
                More::Yes => after = page.upto,
            }
        }
    }
    store.close(clock)?;
    Ok(ending.ended)
}

struct Ending {
    /// The epoch of this run, which grants no other leases.
    epoch: Epoch,
    next: Lsn,
    clock: ClockPair,
    ended: u64,
}

impl Ending {
    fn end(&mut self, store: &mut dyn Store, rows: Vec<Row>) -> Result<(), StoreError> {
        let records: Vec<Record> = rows.into_iter().filter_map(|row| self.record(row)).collect();
        if records.is_empty() {
            return Ok(());
        }
        while store.room() == Capacity::Busy {
            store.progress()?;
            thread::park_timeout(Duration::from_millis(10));
        }
        let group = Group { first: self.next, clock: self.clock, records };
        self.next = group.last().next();
        store.append(&group)
    }

    fn record(&mut self, Row { message, mut life }: Row) -> Option<Record> {
        let kind = life.stage.kind();
        let was = Was { queue: message.queue.clone(), kind, due: life.due, weight: message.weight() as u64 };
        if message.queue.as_str() == STORE_QUEUE {
            return Some(Record::Removed { id: message.id, why: Gone::Cancelled, was });
        }
        life.stage = match life.stage {
            Stage::Leased(lease) => {
                self.ended += 1;
                let token = LeaseToken { epoch: self.epoch, counter: self.ended };
                Stage::Leased(Lease { token, ..lease })
            }
            Stage::Waiting { token: Some(_) } => {
                self.ended += 1;
                Stage::Waiting { token: None }
            }
            Stage::Waiting { token: None } | Stage::Dead { .. } => return None,
        };
        Some(Record::Changed { id: message.id, life, was })
    }
}

fn loaded(store: &mut dyn Store) -> Result<Loaded, StoreError> {
    loop {
        if let Some(page) = store.loaded() {
            return page;
        }
        thread::park_timeout(Duration::from_millis(100));
    }
}
