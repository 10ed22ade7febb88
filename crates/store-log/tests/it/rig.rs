//! What most tests need: small options, a store worked by hand, and comparison with the model.

use std::sync::Arc;

use duewheel_core::message::{Kind, Row};
use duewheel_core::record::Was;
use duewheel_core::store::conformance::History;
use duewheel_core::store::{
    ErrorKind, Found, Load, Loaded, More, Recovered, Sequence, Store, StoreError, StoreRequest, Table, Which,
};
use duewheel_core::{Due, Lsn, QueueName};
use duewheel_store_log::disk::Disk;
use duewheel_store_log::{AtSegmentEnd, Hands, LogStore, Options, WorkMode, Worked};

/// Segments so small that a few groups fill one, and a journal budget to match; few runs, so that they are merged.
pub(crate) fn small() -> Options {
    Options {
        segment_bytes: 12 * 1024,
        journal_bytes: 20 * 1024,
        journal_records: 300,
        small_runs: 3,
        readers: 1,
        max_group_bytes: 3 * 1024,
        retry_after: std::time::Duration::from_millis(5),
        ..Options::default()
    }
}

/// How often a random test is repeated: `DUEWHEEL_TEST_TIMES=100` makes a night of it.
pub(crate) fn times(often: u64) -> u64 {
    let factor = std::env::var("DUEWHEEL_TEST_TIMES").ok().and_then(|times| times.parse().ok());
    often * factor.unwrap_or(1)
}

/// The seeds of a test that a long run splits: as many as [`times`] says, behind those of the first
/// `DUEWHEEL_TEST_FIRST` (0) parts of a run with `DUEWHEEL_TEST_TIMES=1`.
pub(crate) fn seeds(often: u64) -> std::ops::Range<u64> {
    let first = std::env::var("DUEWHEEL_TEST_FIRST").ok().and_then(|first| first.parse::<u64>().ok());
    let first = often * first.unwrap_or(0);
    first..first + times(often)
}

/// Bytes of journal that are damaged one after the other: `DUEWHEEL_TEST_BYTES=262144` is the full test.
pub(crate) fn test_bytes() -> u64 {
    let bytes = std::env::var("DUEWHEEL_TEST_BYTES").ok().and_then(|bytes| bytes.parse().ok());
    bytes.unwrap_or(8 * 1024)
}

pub(crate) fn by_hand() -> Options {
    Options { workers: WorkMode::ByHand, at_segment_end: AtSegmentEnd::Wait, ..small() }
}

pub(crate) fn open(disk: &(impl Disk + Clone + 'static), options: Options) -> Result<LogStore, StoreError> {
    LogStore::open_on(Arc::new(disk.clone()), options, Arc::new(|| {}))
}

/// Everything that a store says it has is what the model says, whole groups of it.
#[track_caller]
pub(crate) fn assert_is(store: &mut LogStore, recovered: &Recovered, history: &History, what: &str) {
    let last = Lsn(recovered.next_lsn.0 - 1);
    let Some(model) = history.model_at(last) else { panic!("{what}: {last:?} is in the middle of a group") };
    let should = model.recovered(recovered.epoch);
    assert_eq!(recovered.next_id, should.next_id, "{what}: next id");
    assert_eq!(recovered.queues, should.queues, "{what}: queues");
    assert_eq!(recovered.due, should.due, "{what}: when messages are due");
    assert!(recovered.clock.map(|c| c.engine) >= should.clock.map(|c| c.engine), "{what}: clock");
    assert_rows(store, history, &model, what);
}

/// Everything that can be found or loaded is what the model has.
#[track_caller]
pub(crate) fn assert_rows(store: &mut LogStore, history: &History, model: &Table, what: &str) {
    let lookups = history.lookups();
    let (mut found, mut expected) = (Found::default(), Found::default());
    store.find_many(&lookups, &mut found).unwrap_or_else(|e| panic!("{what}: {e}"));
    model.find_many(&lookups, &mut expected);
    for found in [&mut found, &mut expected] {
        // What is over or forgotten may be found or not.
        found.answers.retain(|row| row.until > history.clock().engine && model.ledger().remembers(row));
        found.rows.sort_unstable_by_key(|row| row.message.id);
        found.answers.sort_unstable_by(|a, b| (&a.queue, &a.dedupe_id).cmp(&(&b.queue, &b.dedupe_id)));
    }
    let ids = |f: &Found| f.rows.iter().map(|row| row.message.id).collect::<Vec<_>>();
    assert_eq!(ids(&found), ids(&expected), "{what}: messages found");
    for (found, expected) in found.rows.iter().zip(&expected.rows) {
        assert_eq!(found, expected, "{what}: messages found");
    }
    assert_eq!(found.answers, expected.answers, "{what}: answers found");
    let rows = all_rows(store);
    let ids = |rows: &[Row]| rows.iter().map(|row| row.message.id).collect::<Vec<_>>();
    assert_eq!(ids(&rows), ids(&model.rows()), "{what}: rows");
    assert_eq!(rows, model.rows(), "{what}: rows");
}

/// Reads everything that can be read: damage shows in it, or the answers are right.
pub(crate) fn read_all(store: &mut LogStore, history: &History) -> Result<(), StoreError> {
    store.find_many(&history.lookups(), &mut Found::default())?;
    for sequence in Sequence::ALL {
        let mut load = Load {
            ticket: 1,
            sequence,
            which: Which::All,
            after: None,
            until: u64::MAX,
            rows: 1_000,
            bytes: 1_000_000,
        };
        loop {
            store.ask(StoreRequest::Load(load.clone()))?;
            let page = store.arrived().expect("by hand a page is there at once")?.page().expect("a page");
            match page.more {
                More::Yes => load.after = page.upto,
                More::No => break,
            }
        }
    }
    Ok(())
}

/// All messages, by id, as pages give them.
pub(crate) fn all_rows(store: &mut LogStore) -> Vec<Row> {
    let mut rows = Vec::new();
    for sequence in [Sequence::AllAt, Sequence::AllAfter] {
        rows.extend(load_all(store, sequence, Which::All, 50));
    }
    rows.sort_unstable_by_key(|row| row.message.id);
    rows
}

/// All messages of a sequence, in pages of so many.
pub(crate) fn load_all(store: &mut LogStore, sequence: Sequence, which: Which, rows: usize) -> Vec<Row> {
    let mut load = Load { ticket: 1, sequence, which, after: None, until: u64::MAX, rows, bytes: 100_000 };
    let mut all = Vec::new();
    loop {
        let page = load_page(store, load.clone());
        all.extend(page.rows);
        match page.more {
            More::Yes => load.after = page.upto,
            More::No => return all,
        }
    }
}

pub(crate) fn load_page(store: &mut LogStore, load: Load) -> Loaded {
    store.ask(StoreRequest::Load(load)).unwrap_or_else(|e| panic!("load: {e}"));
    loop {
        if let Some(arrival) = store.arrived() {
            return arrival.unwrap_or_else(|e| panic!("loaded: {e}")).page().expect("a page");
        }
        std::thread::yield_now();
    }
}

/// One step of the background work.
pub(crate) fn work(hands: &Hands) -> Worked {
    match hands.flush() {
        Worked::Nothing => hands.merge(),
        other => other,
    }
}

/// All of the background work that there is.
pub(crate) fn work_all(hands: &Hands) {
    while work(hands) == Worked::Done {}
}

/// Where the test message `id` stood, as the records below say.
pub(crate) fn was(queue: &str, due: Due, weight: u64) -> Was {
    Was {
        queue: QueueName::new(queue).expect("a good name"),
        kind: Kind::Waiting,
        due,
        weight,
        detail: 0,
        past: 0,
        unweighed: 0,
    }
}

pub(crate) fn figure(store: &LogStore, name: &str) -> u64 {
    store.figures().into_iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| value)
}

/// A store over a history that it follows.
pub(crate) struct Rig {
    pub(crate) store: LogStore,
    pub(crate) history: History,
    pub(crate) recovered: Recovered,
}

impl Rig {
    pub(crate) fn open(disk: &(impl Disk + Clone + 'static), options: Options, history: History) -> Self {
        let mut store = open(disk, options).unwrap_or_else(|e| panic!("open: {e:?}"));
        let recovered = store.recovered();
        Rig { store, history, recovered }
    }

    /// Closes the store, and opens it again: it has all that the history says.
    #[track_caller]
    pub(crate) fn assert_reopens(self, disk: &(impl Disk + Clone + 'static), options: Options) {
        drop(self.store);
        Rig::open(disk, options, self.history).assert_is("reopened");
    }

    /// What the store said when it was opened, and all that it has, is what the history says.
    #[track_caller]
    pub(crate) fn assert_is(&mut self, what: &str) {
        assert_is(&mut self.store, &self.recovered, &self.history, what);
    }

    /// Appends a group of up to `most` records.
    pub(crate) fn append(&mut self, most: u64) -> Lsn {
        let group = self.history.group(most);
        self.store.append(&group).unwrap_or_else(|e| panic!("append: {e:?}"));
        group.last()
    }

    /// Makes everything durable; by hand.
    pub(crate) fn sync(&mut self) {
        self.store.sync().expect("sync");
        self.store.hands().sync();
        let progress = self.store.progress().expect("progress");
        assert_eq!(progress.durable, progress.written);
    }
}

pub(crate) fn is_corrupt(error: &StoreError) -> bool {
    error.kind() == ErrorKind::Corrupt
}
