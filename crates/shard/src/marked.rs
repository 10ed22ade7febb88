//! A store that marks its calls, so that an observer of the driver's thread can see whether it is in the store.

use std::sync::Arc;

use duewheel_core::record::{BootAnchor, ClockPair, Group};
use duewheel_core::store::{
    AtHand, Capacity, EventPage, EventRequest, Found, Level, Load, Loaded, Lookups, Progress, Recovered,
    Store, StoreError,
};

use crate::shared::DriverShared;

/// The store of a shard's driver. Every call that may wait for a disk or a server is made in
/// [`DriverShared::in_store`].
pub(crate) struct Marked {
    store: Box<dyn Store>,
    shared: Arc<DriverShared>,
}

impl Marked {
    pub(crate) fn new(store: Box<dyn Store>, shared: &Arc<DriverShared>) -> Self {
        Marked { store, shared: shared.clone() }
    }
}

impl Store for Marked {
    fn recovered(&mut self) -> Recovered {
        self.shared.in_store(|| self.store.recovered())
    }
    fn append(&mut self, group: &Group) -> Result<(), StoreError> {
        self.shared.in_store(|| self.store.append(group))
    }
    fn sync(&mut self) -> Result<(), StoreError> {
        self.shared.in_store(|| self.store.sync())
    }
    fn sync_here(&mut self) -> Result<(), StoreError> {
        self.shared.in_store(|| self.store.sync_here())
    }
    fn progress(&mut self) -> Result<Progress, StoreError> {
        self.shared.in_store(|| self.store.progress())
    }
    fn room(&mut self) -> Capacity {
        self.shared.in_store(|| self.store.room())
    }
    fn room_error(&self) -> Option<StoreError> {
        self.store.room_error()
    }
    fn max_body_bytes(&self) -> usize {
        self.store.max_body_bytes()
    }
    fn max_group_records(&self) -> usize {
        self.store.max_group_records()
    }
    fn max_group_bytes(&self) -> usize {
        self.store.max_group_bytes()
    }
    fn find_many(&mut self, lookups: &Lookups, found: &mut Found) -> Result<(), StoreError> {
        self.shared.in_store(|| self.store.find_many(lookups, found))
    }
    fn find_at_hand(&mut self, lookups: &Lookups, found: &mut Found) -> Result<AtHand, StoreError> {
        self.shared.in_store(|| self.store.find_at_hand(lookups, found))
    }
    fn fetch(&mut self, ticket: u64, lookups: Lookups) -> Result<(), StoreError> {
        self.store.fetch(ticket, lookups)
    }
    fn fetched(&mut self) -> Option<u64> {
        self.shared.in_store(|| self.store.fetched())
    }
    fn load(&mut self, load: Load) -> Result<(), StoreError> {
        self.shared.in_store(|| self.store.load(load))
    }
    fn loaded(&mut self) -> Option<Result<Loaded, StoreError>> {
        self.shared.in_store(|| self.store.loaded())
    }
    fn forget(&mut self, ticket: u64) {
        self.shared.in_store(|| self.store.forget(ticket));
    }
    fn read_events(&mut self, asked: EventRequest) -> Result<Option<EventPage>, StoreError> {
        self.shared.in_store(|| self.store.read_events(asked))
    }
    fn events_read(&mut self) -> Option<Result<EventPage, StoreError>> {
        self.shared.in_store(|| self.store.events_read())
    }
    fn idle(&mut self, clock: ClockPair) -> Result<(), StoreError> {
        self.shared.in_store(|| self.store.idle(clock))
    }
    fn anchor(&mut self, clock: ClockPair, anchor: BootAnchor) -> Result<(), StoreError> {
        self.shared.in_store(|| self.store.anchor(clock, anchor))
    }
    fn close(&mut self, clock: ClockPair) -> Result<Progress, StoreError> {
        self.shared.in_store(|| self.store.close(clock))
    }
    fn level(&self) -> Level {
        self.store.level()
    }
    fn figures(&self) -> Vec<(&'static str, u64)> {
        self.shared.in_store(|| self.store.figures())
    }
}
