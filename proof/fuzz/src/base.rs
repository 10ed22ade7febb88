//! Healthy data folders, made by the store itself, which the targets damage.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use duewheel_core::Lsn;
use duewheel_core::message::Row;
use duewheel_core::record::DedupeRow;
use duewheel_core::store::conformance::History;
use duewheel_core::store::{
    ErrorKind, Found, Load, Lookups, More, QueueRow, Recovered, Sequence, Store, StoreError, StoreRequest,
    Which,
};
use duewheel_store_log::{AtSegmentEnd, Hands, LogStore, Options, WorkMode, Worked};

use crate::disk::MemDisk;
use crate::pieces;

/// A healthy folder, and all facts about it.
#[derive(Debug)]
pub(crate) struct Base {
    /// The files as they were written; read from then on.
    pub(crate) disk: MemDisk,
    /// The groups that the store was given.
    history: History,
    /// Everything up to this position is proven by more than the end of the journal.
    pub(crate) must_have: Lsn,
    /// Everything that a store could be asked for.
    lookups: Lookups,
    /// For each file, the hashes of the pieces that have a checksum.
    pieces: BTreeMap<String, HashSet<u64>>,
    /// The expected content after the groups up to a position.
    known: Mutex<BTreeMap<Lsn, Option<Arc<Everything>>>>,
}

/// The answers of a store when it is asked for everything.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Everything {
    /// What [`Store::recovered`] returns.
    pub(crate) recovered: Recovered,
    /// The messages found by id, key and dedupe id.
    pub(crate) found: Found,
    /// The messages loaded by time.
    pub(crate) rows: Vec<Row>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Closed: everything is proven.
    Closed,
    /// Killed with groups that nothing proves yet.
    Killed,
}

/// All bases. Their order must not change: the corpora name them by number.
pub(crate) fn all() -> &'static [Base] {
    static BASES: OnceLock<Vec<Base>> = OnceLock::new();
    BASES.get_or_init(|| {
        vec![
            one_segment(End::Killed),
            one_segment(End::Closed),
            many_files(6, End::Closed),
            many_files(7, End::Killed),
            many_files(8, End::Killed),
        ]
    })
}

/// Segments so small that a few groups fill one, few runs, and background work only on request.
pub(crate) fn options() -> Options {
    Options {
        segment_bytes: 12 * 1024,
        journal_bytes: 20 * 1024,
        journal_records: 300,
        small_runs: 3,
        readers: 1,
        max_group_bytes: 3 * 1024,
        retry_after: Duration::ZERO,
        workers: WorkMode::ByHand,
        at_segment_end: AtSegmentEnd::Wait,
        ..Options::default()
    }
}

/// Opens a folder.
pub(crate) fn open(disk: &MemDisk) -> Result<LogStore, StoreError> {
    LogStore::open_on(Arc::new(disk.clone()), options(), Arc::new(|| {}))
}

struct Making {
    disk: MemDisk,
    store: LogStore,
    hands: Hands,
    history: History,
}

impl Making {
    fn new(seed: u64) -> Making {
        let disk = MemDisk::default();
        let mut store = open(&disk).expect("a new folder opens");
        store.recovered();
        Making { disk, hands: store.hands(), store, history: History::new(seed) }
    }

    fn append(&mut self, most: u64) {
        self.store.append(&self.history.group(most)).expect("a healthy disk takes everything");
    }

    fn sync(&mut self) {
        self.store.sync().expect("a healthy disk syncs");
        self.hands.sync();
    }

    fn figure(&self, name: &str) -> u64 {
        self.store.figures().into_iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| value)
    }

    fn finish(mut self, end: End) -> Base {
        let clock = self.history.tick();
        let mut must_have = Lsn(0);
        if end == End::Closed {
            self.store.close(clock).expect("a healthy store closes");
            must_have = self.history.model().applied();
        }
        drop(self.store);
        let disk = self.disk;
        let pieces = disk.names().into_iter().map(|name| {
            let bytes = disk.read(&name);
            let hashes = pieces::of(&name, &bytes, pieces::incarnation(&name, &bytes));
            (name, hashes.into_iter().collect())
        });
        Base {
            pieces: pieces.collect(),
            lookups: self.history.lookups(),
            history: self.history,
            disk,
            must_have,
            known: Mutex::default(),
        }
    }
}

fn one_segment(end: End) -> Base {
    let mut making = Making::new(5);
    while making.figure("journal_bytes") < 5_000 {
        making.append(6);
        if making.history.dice().once_in(3) {
            making.sync();
        }
    }
    making.sync();
    making.append(4);
    making.finish(end)
}

/// Runs, a state with deltas, sealed segments, one in use, and prepared ones that were used before.
fn many_files(seed: u64, end: End) -> Base {
    let mut making = Making::new(seed);
    // With deltas behind the first file of the state.
    let merged = |making: &Making| {
        let states = making.disk.names().iter().filter(|name| name.starts_with("state/")).count();
        making.figure("merges_total") >= 1 && making.figure("runs") >= 2 && states >= 3
    };
    while !merged(&making) || making.figure("journal_segments") < 4 {
        making.append(9);
        making.sync();
        if !merged(&making) {
            while work(&making.hands) == Worked::Done {}
        }
        while making.hands.prepare() == Worked::Done {}
    }
    making.append(9);
    making.append(9);
    making.finish(end)
}

/// One step of the background work.
fn work(hands: &Hands) -> Worked {
    match hands.flush() {
        Worked::Nothing => hands.merge(),
        other => other,
    }
}

impl Base {
    /// Whether a file holds bytes with a correct checksum that the store has not written: they count as valid.
    pub(crate) fn is_forged(&self, disk: &MemDisk) -> bool {
        self.pieces.iter().any(|(name, known)| {
            let (was, is) = (self.disk.read(name), disk.read(name));
            let incarnation = pieces::incarnation(name, &was);
            !Arc::ptr_eq(&was, &is)
                && pieces::of(name, &is, incarnation).iter().any(|piece| !known.contains(piece))
        })
    }

    /// Whether any file has changed.
    pub(crate) fn is_changed(&self, disk: &MemDisk) -> bool {
        self.pieces.keys().any(|name| self.disk.read(name) != disk.read(name))
    }

    /// The expected answers of a store with the groups up to a position; `None` if that is in the middle of a group.
    pub(crate) fn expected(&self, recovered: &Recovered) -> Option<Arc<Everything>> {
        let last = Lsn(recovered.next_lsn.0 - 1);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let expected = known.entry(last).or_insert_with(|| {
            let model = self.history.model_at(last)?;
            let mut found = Found::default();
            model.find_many(&self.lookups, &mut found);
            self.sort(&mut found, &model.queue_rows());
            Some(Arc::new(Everything {
                recovered: model.recovered(recovered.epoch),
                found,
                rows: model.rows(),
            }))
        });
        expected.clone()
    }

    /// Asks a store for everything.
    pub(crate) fn ask(&self, store: &mut LogStore, recovered: &Recovered) -> Result<Everything, StoreError> {
        let mut found = Found::default();
        store.find_many(&self.lookups, &mut found)?;
        self.sort(&mut found, &recovered.queues);
        // The sequences without new information are read, too, because each has an index of its own.
        for sequence in [Sequence::At, Sequence::After, Sequence::Leased, Sequence::Dead] {
            load(store, sequence)?;
        }
        let mut rows = load(store, Sequence::AllAt)?;
        rows.extend(load(store, Sequence::AllAfter)?);
        rows.sort_by_key(|row| row.message.id);
        Ok(Everything { recovered: recovered.clone(), found, rows })
    }

    /// Expired and forgotten answers may be found or not.
    fn sort(&self, found: &mut Found, queues: &[QueueRow]) {
        let is_forgotten = |row: &DedupeRow| {
            let log = queues.iter().find(|queue| queue.name == row.queue).map(|queue| &queue.answers);
            row.position.is_some_and(|position| !log.is_some_and(|log| log.remembers(position.nth)))
        };
        found.answers.retain(|row| row.until > self.history.clock().engine && !is_forgotten(row));
        found.rows.sort_by_key(|row| row.message.id);
        found.answers.sort_by(|a, b| (&a.queue, &a.dedupe_id).cmp(&(&b.queue, &b.dedupe_id)));
    }

    /// Everything that a store could be asked for.
    pub(crate) fn lookups(&self) -> &Lookups {
        &self.lookups
    }
}

/// All rows of a sequence, in pages.
fn load(store: &mut LogStore, sequence: Sequence) -> Result<Vec<Row>, StoreError> {
    let mut load = Load {
        ticket: 1,
        sequence,
        which: Which::All,
        after: None,
        until: u64::MAX,
        rows: 40,
        bytes: 100_000,
    };
    let mut rows = Vec::new();
    loop {
        store.ask(StoreRequest::Load(load.clone()))?;
        let page = store.arrived().expect("by hand a page is there at once")?.page().expect("a page");
        rows.extend(page.rows);
        match page.more {
            More::No => return Ok(rows),
            More::Yes => {
                assert!(page.upto > load.after, "a page that brings nobody further");
                load.after = page.upto;
            }
        }
    }
}

/// Whether an error reports damage and names its position.
pub(crate) fn names_a_place(error: &StoreError) -> bool {
    error.kind() == ErrorKind::Corrupt && error.to_string().contains(" at byte ")
}
