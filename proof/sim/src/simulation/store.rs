//! The store as the driver sees it in a simulation: the real one, whose pages come when the scheduler says so, and
//! which may have bugs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duewheel_core::message::Stage;
use duewheel_core::pass_on;
use duewheel_core::record::{ClockPair, Group, Record};
use duewheel_core::store::{
    ErrorKind, Loaded, Recovered, Store, StoreArrival, StoreError, StoreRequest, Waker,
};
use duewheel_core::{Due, EngineMs, Epoch, MessageContent};
use duewheel_store_log::{Hands, LogStore};

use super::style::AGREED_BYTES;

/// A bug between driver and store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreBug {
    /// Each owner has the same epoch, so tokens come again.
    EpochKept,
    /// Keys are not written.
    KeysDropped,
    /// Every third page that is loaded while the shard serves has nothing on it.
    PagesLost,
    /// What was waiting at a start waits for its whole delay again.
    DelayFromStart,
}

/// What the scheduler holds of the store that is open.
#[derive(Default)]
pub(super) struct Handle {
    pub(super) hands: Option<Hands>,
    pub(super) waker: Option<Waker>,
    /// How often it was opened.
    pub(super) opens: u64,
    /// The number of requests whose results may arrive.
    pub(super) arrivals: Arc<AtomicU64>,
    /// An obligation that the store has not kept.
    pub(super) broken: Option<String>,
}

pub(super) type Shared = Arc<Mutex<Handle>>;

pub(super) fn lock(shared: &Shared) -> MutexGuard<'_, Handle> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts a store that was just opened into the scheduler's hands.
pub(super) fn gated(
    store: LogStore,
    waker: Waker,
    shared: &Shared,
    bug: Option<StoreBug>,
    large: &Arc<AtomicU64>,
) -> Box<dyn Store> {
    let mut handle = lock(shared);
    let arrivals = Arc::new(AtomicU64::new(0));
    *handle = Handle {
        hands: Some(store.hands()),
        waker: Some(waker),
        opens: handle.opens + 1,
        arrivals: Arc::clone(&arrivals),
        broken: handle.broken.take(),
    };
    let (shared, large) = (Arc::clone(shared), Arc::clone(large));
    Box::new(Gated { store, arrivals, bug, fetched: 0, unread: false, began: None, shared, large })
}

struct Gated {
    store: LogStore,
    arrivals: Arc<AtomicU64>,
    bug: Option<StoreBug>,
    fetched: u64,
    /// A page could not be read, and the store has not had an occasion yet to ask for it again.
    unread: bool,
    /// Where the clocks stood when the owner before had written last.
    began: Option<ClockPair>,
    shared: Shared,
    /// Groups of at least a quarter of the size agreed: there the driver cuts.
    large: Arc<AtomicU64>,
}

impl Gated {
    /// An append never fails for want of room.
    fn appended(&self, result: Result<(), StoreError>) -> Result<(), StoreError> {
        if let Err(error) = &result
            && error.kind() == ErrorKind::Full
        {
            lock(&self.shared).broken.get_or_insert(format!("an append fails for want of room: {error}"));
        }
        result
    }

    fn measure(&self, group: &Group) {
        let bytes: u64 = group
            .records
            .iter()
            .map(|record| match record {
                Record::Put { message, .. } => message.weight() as u64,
                _ => 0,
            })
            .sum();
        let agreed = self.store.terms().group_bytes as u64;
        if bytes > agreed {
            let what = format!("a group of at least {bytes} bytes, where {agreed} were agreed");
            lock(&self.shared).broken.get_or_insert(what);
        }
        self.large.fetch_add(u64::from(4 * bytes >= AGREED_BYTES), Relaxed);
    }

    fn spoil(&mut self, loaded: &mut Loaded) {
        self.fetched += 1;
        match self.bug {
            Some(StoreBug::PagesLost) if self.fetched > 3 && self.fetched.is_multiple_of(3) => {
                loaded.rows.clear();
            }
            Some(StoreBug::DelayFromStart) => {
                let Some(began) = self.began else { return };
                for row in &mut loaded.rows {
                    if let (Stage::Waiting { .. }, Due::After(due)) = (&row.life.stage, row.life.due)
                        && due > began.engine
                    {
                        let age = began.wall.0.saturating_sub(row.message.enqueued_at.0);
                        row.life.due = Due::After(EngineMs(due.0.saturating_add(age)));
                    }
                }
            }
            Some(StoreBug::EpochKept | StoreBug::KeysDropped | StoreBug::PagesLost) | None => {}
        }
    }
}

impl Store for Gated {
    fn recovered(&mut self) -> Recovered {
        let mut recovered = self.store.recovered();
        if self.bug == Some(StoreBug::EpochKept) {
            recovered.epoch = Epoch(1);
        }
        self.began = recovered.clock;
        recovered
    }

    fn append(&mut self, group: &Group) -> Result<(), StoreError> {
        self.measure(group);
        if self.bug != Some(StoreBug::KeysDropped) {
            let result = self.store.append(group);
            return self.appended(result);
        }
        let mut group = group.clone();
        for record in &mut group.records {
            if let Record::Put { message, .. } = record {
                *message = Arc::new(MessageContent { key: None, ..MessageContent::clone(message) });
            }
        }
        self.store.append(&group)
    }

    fn ask(&mut self, request: StoreRequest) -> Result<(), StoreError> {
        if let StoreRequest::Events(_) = request {
            self.arrivals.fetch_add(1, Relaxed);
        }
        self.store.ask(request)
    }

    fn arrived(&mut self) -> Option<Result<StoreArrival, StoreError>> {
        // An error is told at once; a page when the scheduler has let the loader make it. After a page that could not
        // be read the store is asked until it has nothing more to tell: that is where it asks for the page again.
        if !self.unread
            && self.store.progress().is_ok()
            && self.arrivals.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_err()
        {
            return None;
        }
        let mut arrival = self.store.arrived();
        self.unread = match &arrival {
            None => false,
            Some(arrival) => self.unread || arrival.is_err(),
        };
        if let Some(Ok(StoreArrival::Loaded(loaded))) = &mut arrival {
            self.spoil(loaded);
        }
        arrival
    }

    pass_on!(store: sync sync_here progress room room_error terms find_many idle close figures);
}
