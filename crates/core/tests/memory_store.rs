//! The memory store keeps the obligations of a store.

use duewheel_core::store::conformance::{self, Fixture, FixtureSpace, Hook};
use duewheel_core::store::{Capacity, ErrorKind, MemoryDisk, MemoryStore, StoreError, Waker};

#[derive(Default)]
struct Memory(MemoryDisk);

impl Fixture for Memory {
    type Store = MemoryStore;

    fn clear(&mut self) {
        self.0 = MemoryDisk::default();
    }

    fn open(&mut self, waker: Waker) -> Result<MemoryStore, StoreError> {
        Ok(MemoryStore::open(&self.0, waker))
    }

    fn lose_power(&mut self) -> Hook {
        self.0.lose_power();
        Hook::Done
    }

    fn fail(&mut self) -> Hook {
        self.0.fail(StoreError::new(ErrorKind::Unavailable, "the test wants it"));
        Hook::Done
    }

    fn space(&mut self, space: FixtureSpace) -> Hook {
        self.0.set_room(match space {
            FixtureSpace::Full => Capacity::SettleOnly,
            FixtureSpace::Free => Capacity::Enough,
        });
        Hook::Done
    }
}

#[test]
fn memory_store_conforms() {
    conformance::run(&mut Memory::default());
}
