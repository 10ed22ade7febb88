//! What most tests need: small options, a store worked by hand, and comparison with the model.

use std::sync::Arc;

use duewheel_core::Lsn;
use duewheel_core::store::conformance::History;
use duewheel_core::store::{ErrorKind, Found, Recovered, Store, StoreError, Table};
use duewheel_store_log::disk::Disk;
use duewheel_store_log::{LogStore, Options, Workers};

/// Segments so small that a few groups fill one, and a journal budget to match.
pub(crate) fn small() -> Options {
    Options {
        segment_bytes: 12 * 1024,
        journal_bytes: 20 * 1024,
        journal_records: 300,
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

pub(crate) fn by_hand() -> Options {
    Options { workers: Workers::ByHand, ..small() }
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
    assert_eq!(recovered.messages, should.messages, "{what}: messages");
    assert_eq!(recovered.dedupe, dedupe_by(&model, recovered), "{what}: remembered answers");
    assert!(recovered.clock.map(|c| c.engine) >= should.clock.map(|c| c.engine), "{what}: clock");
    assert_rows(store, history, &model, what);
}

/// A later clock pair than that of the last group may have let some answers be forgotten.
fn dedupe_by(model: &Table, recovered: &Recovered) -> Vec<duewheel_core::record::DedupeRow> {
    let now = recovered.clock.map_or(duewheel_core::EngineMs(0), |c| c.engine);
    model.dedupe_rows().into_iter().filter(|row| row.until > now).collect()
}

#[track_caller]
pub(crate) fn assert_rows(store: &mut LogStore, history: &History, model: &Table, what: &str) {
    let lookups = history.lookups();
    let (mut found, mut expected) = (Found::default(), Found::default());
    store.find_many(&lookups, &mut found).unwrap_or_else(|e| panic!("{what}: {e}"));
    model.find_many(&lookups, &mut expected);
    assert_eq!(found, expected, "{what}: messages");
    assert_eq!(store.table().rows(), model.rows(), "{what}: rows");
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
