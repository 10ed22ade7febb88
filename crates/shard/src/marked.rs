//! A store that marks its calls, so that an observer of the driver's thread can see whether it is in the store.

use std::sync::Arc;

use duewheel_core::pass_on;
use duewheel_core::store::Store;

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

    fn called<T>(&mut self, call: impl FnOnce(&mut dyn Store) -> T) -> T {
        self.shared.in_store(|| call(&mut *self.store))
    }
}

impl Store for Marked {
    pass_on!(in called: recovered append sync sync_here progress room find_many ask arrived idle close);
    pass_on!(store: room_error terms);
    fn figures(&self) -> Vec<(&'static str, u64)> {
        self.shared.in_store(|| self.store.figures())
    }
}
