//! A medium that does not answer while a blob is written, and another one beside it.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use duewheel_core::store::conformance::History;
use duewheel_core::store::{Capacity, Level, Store, StoreError};
use duewheel_core::{Epoch, MessageId};
use duewheel_store_log::{Options, WorkerPool};
use duewheel_store_medium::{
    FileId, FileKind, Medium, MediumFiles, MediumShared, MediumStore, NamedFile, Piece,
};
use tempfile::TempDir;

use crate::directory::Directory;

const PATIENCE: Duration = Duration::from_secs(60);

/// Whether a medium answers, and whether a call waits for that.
#[derive(Debug, Default)]
struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
    has_waiters: AtomicBool,
}

impl Gate {
    fn set_shut(&self, is_shut: bool) {
        *self.is_shut.lock().expect("a gate") = is_shut;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let is_shut = self.is_shut.lock().expect("a gate");
        self.has_waiters.fetch_or(*is_shut, SeqCst);
        drop(self.opened.wait_while(is_shut, |is_shut| *is_shut).expect("a gate"));
    }
}

#[derive(Debug)]
struct Gated {
    directory: Directory,
    gate: Arc<Gate>,
}

impl MediumFiles for Gated {
    fn read(&self, file: FileId, at: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        self.directory.read(file, at, length)
    }

    fn find(&self, name: &str) -> Result<Option<NamedFile>, StoreError> {
        self.directory.find(name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.directory.list(prefix)
    }
}

impl Medium for Gated {
    fn epoch(&self) -> Epoch {
        self.directory.epoch()
    }

    fn check(&self) -> Result<(), StoreError> {
        self.directory.check()
    }

    fn lease_left(&self) -> Duration {
        self.directory.lease_left()
    }

    fn lease(&self) -> Duration {
        self.directory.lease()
    }

    fn write(&self, file: FileId, kind: FileKind, pieces: Vec<Piece>) -> Result<Level, StoreError> {
        if kind == FileKind::Blob {
            self.gate.pass();
        }
        self.directory.write(file, kind, pieces)
    }

    fn give_name(&self, name: &str, file: FileId, kind: FileKind, bytes: u64) -> Result<(), StoreError> {
        self.directory.give_name(name, file, kind, bytes)
    }

    fn remove(&self, name: &str) -> Result<bool, StoreError> {
        self.directory.remove(name)
    }

    fn discard(&self, file: FileId) -> Result<(), StoreError> {
        self.directory.discard(file)
    }

    fn level(&self) -> Level {
        self.directory.level()
    }

    fn note_clocks(&self) {
        self.directory.note_clocks();
    }

    fn give_back(&self, next_id: Option<MessageId>) -> Result<(), StoreError> {
        self.directory.give_back(next_id)
    }

    fn ended(&self, why: StoreError) {
        self.directory.ended(why);
    }
}

struct Shard {
    store: MediumStore,
    history: History,
    gate: Arc<Gate>,
    _folder: TempDir,
}

impl Shard {
    fn open(log: Options) -> Shard {
        let folder = tempfile::tempdir().expect("a folder");
        let (directory, acquired) = Directory::acquire(folder.path()).expect("acquire");
        let gate: Arc<Gate> = Arc::default();
        let medium = Arc::new(Gated { directory, gate: Arc::clone(&gate) });
        let store = MediumStore::open(medium, &MediumShared::default(), log, &acquired, Arc::new(|| {}))
            .expect("open");
        Shard { store, history: History::new(1), gate, _folder: folder }
    }

    /// Appends groups until `is_so`.
    fn append_until(&mut self, what: &str, is_so: impl Fn(&Shard) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < PATIENCE, "never: {what}");
            self.store.progress().expect("progress");
            if self.store.room() == Capacity::Enough {
                self.store.append(&self.history.group(20)).expect("append");
                self.store.sync().expect("sync");
            } else {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn flushes(&self) -> u64 {
        let figures = self.store.figures();
        figures.iter().find(|(name, _)| *name == "flushes_total").expect("a figure").1
    }
}

/// A test that fails ends, too.
impl Drop for Shard {
    fn drop(&mut self) {
        self.gate.set_shut(false);
    }
}

/// Nodes open their shards with the same options, a pool of workers among them; servers fail one by one.
#[test]
fn hanging_medium_delays_no_other_shard() {
    let log = Options {
        journal_bytes: 24 * 1024,
        segment_bytes: 1 << 20,
        max_group_bytes: 256 * 1024,
        pool: WorkerPool::new(1),
        ..Options::default()
    };
    let (mut hanging, mut other) = (Shard::open(log.clone()), Shard::open(log));
    hanging.gate.set_shut(true);
    hanging.append_until("a blob is written", |shard| shard.gate.has_waiters.load(SeqCst));
    let before = other.flushes();
    other.append_until("the other shard flushes", |shard| shard.flushes() >= before + 3);
    let waited = hanging.flushes();
    hanging.gate.set_shut(false);
    hanging.append_until("the shard goes on once the medium answers", |shard| shard.flushes() > waited);
    for shard in [&mut hanging, &mut other] {
        shard.store.close(shard.history.clock()).expect("close");
    }
}
