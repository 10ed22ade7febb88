//! The example of `docs/media.md`, by both suites; a medium that does not answer.

mod directory;
mod hanging;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use duewheel_core::record::ClockPair;
use duewheel_core::store::conformance::{self, Fixture, Hook};
use duewheel_core::store::{Store, StoreError, Waker};
use duewheel_core::time::{EngineMs, WallMs};
use duewheel_store_log::Options;
use duewheel_store_medium::conformance::{self as of_medium, Able, MediumFixture};
use duewheel_store_medium::{Acquired, Medium, MediumShared, MediumStore, read_clocks};
use tempfile::TempDir;

use directory::Directory;

struct Place {
    folder: TempDir,
    places: u32,
}

impl Place {
    fn new() -> Self {
        Place { folder: tempfile::tempdir().expect("a folder"), places: 0 }
    }

    fn shard(&self) -> PathBuf {
        self.folder.path().join(self.places.to_string())
    }
}

impl MediumFixture for Place {
    fn clear(&mut self) {
        self.places += 1;
    }

    fn acquire(&mut self) -> Result<(Arc<dyn Medium>, Acquired), StoreError> {
        let (medium, acquired) = Directory::acquire(&self.shard())?;
        Ok((Arc::new(medium), acquired))
    }

    /// What was synced stays; the store's own suite of disks proves that.
    fn lose_power(&mut self) -> Able {
        Able::No
    }
}

impl Fixture for Place {
    type Store = MediumStore;

    fn clear(&mut self) {
        self.places += 1;
    }

    fn open(&mut self, waker: Waker) -> Result<MediumStore, StoreError> {
        let (medium, acquired) = Directory::acquire(&self.shard())?;
        // Memtables so small that they are flushed and merged.
        let log = Options {
            journal_bytes: 24 * 1024,
            journal_records: 400,
            small_runs: 3,
            max_group_bytes: 256 * 1024,
            segment_bytes: 1 << 20,
            ..Options::default()
        };
        MediumStore::open(Arc::new(medium), &MediumShared::default(), log, &acquired, waker)
    }

    fn damage(&mut self) -> Hook {
        Hook::Unsupported
    }
}

/// Story: the wall clock of a machine that had just been started was set while a shard was opened: the step counted as
/// time without an owner, and as much of each delay was over.
#[test]
fn opening_continues_from_acquisition() {
    let place = Place::new();
    let now = read_clocks();
    let open = |acquired: &Acquired, medium: Directory| {
        let shared = MediumShared::default();
        MediumStore::open(Arc::new(medium), &shared, Options::default(), acquired, Arc::new(|| {}))
            .expect("open")
    };
    let (medium, acquired) = Directory::acquire(&place.shard()).expect("an owner");
    let mut store = open(&acquired, medium);
    let pair =
        |engine, wall_ns: u64| ClockPair { engine: EngineMs(engine), wall: WallMs(wall_ns / 1_000_000) };
    store.close(pair(10_000, now.wall_ns - 2 * 3_600_000_000_000)).expect("close");
    let (medium, mut acquired) = Directory::acquire(&place.shard()).expect("an owner");
    acquired.noted_ago = Some(Duration::from_secs(1));
    acquired.taken.wall_ns -= 3_600_000_000_000; // it was stepped since
    let recovered = open(&acquired, medium).recovered();
    assert_eq!(recovered.as_of, Some(acquired.taken));
    let clock = recovered.clock.expect("clocks");
    let unowned = clock.engine_at(WallMs(acquired.taken.wall_ns / 1_000_000)).0 - 10_000;
    assert!((990..=1_000).contains(&unowned), "{unowned} ms");
}

#[test]
fn the_medium_of_the_example_conforms() {
    of_medium::run(&mut Place::new());
}

#[test]
fn the_store_over_it_conforms() {
    conformance::run(&mut Place::new());
}
