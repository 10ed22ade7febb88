//! The suite that every store runs, on the machine's own disk and on a simulated one that can lose power.

use std::sync::Arc;
use std::time::Duration;

use duewheel_core::store::conformance::{self, Fixture, FixtureSpace, Hook};
use duewheel_core::store::{StoreError, Waker};
use duewheel_store_log::disk::{self, RamDisk, RealDisk};
use duewheel_store_log::{LogStore, Options, SyncMode};

use crate::rig::small;
use duewheel_sim_disk::{Plan, SimDisk, Survivors};

struct Real {
    dir: tempfile::TempDir,
    options: Options,
}

impl Fixture for Real {
    type Store = LogStore;

    fn clear(&mut self) {
        self.dir = tempfile::tempdir().expect("a folder");
    }

    fn open(&mut self, waker: Waker) -> Result<LogStore, StoreError> {
        LogStore::open(self.dir.path().join("data"), self.options.clone(), waker)
    }
}

#[test]
fn conforms_on_the_real_disk() {
    let dir = tempfile::tempdir().expect("a folder");
    conformance::run(&mut Real { dir, options: small() });
}

#[test]
fn conforms_buffered() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = Options { sync: SyncMode::Buffered, buffered_for: Duration::from_millis(1), ..small() };
    conformance::run(&mut Real { dir, options });
}

struct Volatile(Arc<RamDisk>);

impl Fixture for Volatile {
    type Store = LogStore;

    fn clear(&mut self) {
        self.0 = Arc::default();
    }

    fn open(&mut self, waker: Waker) -> Result<LogStore, StoreError> {
        LogStore::open_on(self.0.clone(), Options { sync: SyncMode::Memory, ..small() }, waker)
    }
}

#[test]
fn conforms_in_memory() {
    conformance::run(&mut Volatile(Arc::default()));
}

struct Simulated {
    disk: SimDisk,
    seed: u64,
}

impl Fixture for Simulated {
    type Store = LogStore;

    fn clear(&mut self) {
        self.seed += 1;
        self.disk = SimDisk::new(self.seed);
    }

    fn open(&mut self, waker: Waker) -> Result<LogStore, StoreError> {
        self.disk.plan(Plan::Fine); // a disk that failed is mended
        LogStore::open_on(Arc::new(self.disk.clone()), small(), waker)
    }

    fn lose_power(&mut self) -> Hook {
        self.disk.restart(Survivors::Some);
        Hook::Done
    }

    fn damage(&mut self) -> Hook {
        let segment = self.disk.names("journal").into_iter().find(|name| {
            let bytes = self.disk.read(name);
            bytes[4096..].iter().any(|b| *b != 0)
        });
        let name = segment.expect("a segment has frames");
        let mut bytes = self.disk.read(&name);
        bytes[4096 + 70] ^= 4;
        self.disk.overwrite(&name, &bytes);
        Hook::Done
    }

    fn fail(&mut self) -> Hook {
        self.disk.plan(Plan::FailAll("journal"));
        Hook::Done
    }

    fn space(&mut self, space: FixtureSpace) -> Hook {
        match space {
            // A flush may give room back, and the store makes one for that.
            FixtureSpace::Full => self.disk.fill(),
            FixtureSpace::Free => self.disk.set_free(10_000_000),
        }
        Hook::Done
    }
}

#[test]
fn store_conforms_on_failing_disk() {
    conformance::run(&mut Simulated { disk: SimDisk::new(0), seed: 0 });
}

#[test]
fn the_real_disk_conforms() {
    disk::conformance::run(&RealDisk::new(tempfile::tempdir().expect("a folder").path()));
}

#[test]
fn the_simulated_disk_conforms() {
    disk::conformance::run(&SimDisk::new(1));
}

#[test]
fn the_disk_in_memory_conforms() {
    disk::conformance::run(&RamDisk::default());
}
