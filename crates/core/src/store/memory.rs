//! The store of plain tables in memory: for tests, and the model in them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event::MessageEvent;
use crate::id::{Epoch, Lsn};
use crate::policy::AGREED_GROUP_BYTES;
use crate::record::{BootAnchor, ClockPair, Group};
use crate::store::{
    AtHand, Capacity, ErrorKind, EventPage, EventRequest, Found, Level, Lookups, More, Progress, Recovered,
    Store, StoreArrival, StoreError, StoreRequest, StoreTerms, Table, Waker,
};
use crate::time::EngineMs;

/// The data that survives the owner of a memory store: a test can "restart" a store, and decide when a sync completes.
///
/// Clones share the same disk.
#[derive(Clone, Default)]
pub struct MemoryDisk(Arc<Mutex<MemoryContents>>);

#[derive(Default)]
struct MemoryContents {
    groups: Vec<Group>,
    clock: Option<ClockPair>,
    epoch: u32,
    durable: Lsn,
    /// The position up to which a sync was requested.
    asked: Lsn,
    manual: SyncTiming,
    level: Option<Level>,
    room: Capacity,
    room_error: Option<StoreError>,
    /// Number of groups until it is full.
    left: Option<u64>,
    fail: Option<StoreError>,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum SyncTiming {
    #[default]
    AtOnce,
    ByHand,
}

/// Keeps everything in memory, until the process ends.
#[derive(Debug)]
pub struct MemoryStore {
    table: Table,
    epoch: Epoch,
    disk: Option<MemoryDisk>,
    arrived: VecDeque<StoreArrival>,
    closed: bool,
    waker: Waker2,
    group_bytes: usize,
    recent: RecentEvents,
}

/// A waker that implements `Debug`.
#[derive(Clone)]
struct Waker2(Waker);

impl fmt::Debug for Waker2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

impl fmt::Debug for MemoryDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let disk = self.disk();
        f.debug_struct("MemoryDisk")
            .field("groups", &disk.groups.len())
            .field("durable", &disk.durable)
            .finish()
    }
}

impl MemoryDisk {
    fn disk(&self) -> MutexGuard<'_, MemoryContents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets syncs complete only with [`MemoryDisk::complete_sync`] from now on.
    pub fn sync_by_hand(&self) {
        self.disk().manual = SyncTiming::ByHand;
    }

    /// Reports another level than `memory`, so that a test sees how answers wait.
    pub fn claim(&self, level: Level) {
        self.disk().level = Some(level);
    }

    /// Completes all requested syncs.
    pub fn complete_sync(&self) {
        let waker = {
            let mut disk = self.disk();
            disk.durable = disk.asked;
            disk.waker.clone()
        };
        if let Some(wake) = waker {
            wake();
        }
    }

    /// Sets the answer of [`Store::room`].
    pub fn set_room(&self, room: Capacity) {
        self.disk().room = room;
    }

    /// Sets the answer of [`Store::room_error`].
    pub fn set_room_error(&self, error: Option<StoreError>) {
        self.disk().room_error = error;
    }

    /// Makes [`Store::room`] answer [`Capacity::SettleOnly`] after this many more groups.
    pub fn full_after(&self, groups: Option<u64>) {
        self.disk().left = groups;
    }

    /// Makes every call fail from now on, until the next open.
    pub fn fail(&self, error: StoreError) {
        self.disk().fail = Some(error);
    }

    /// Loses everything that was not synced, as a power loss does.
    pub fn lose_power(&self) {
        let mut disk = self.disk();
        let durable = disk.durable;
        disk.groups.retain(|g| g.last() <= durable);
    }

    /// Every group that was appended, oldest first.
    pub fn groups(&self) -> Vec<Group> {
        self.disk().groups.clone()
    }
}

impl MemoryStore {
    /// A store whose data ends with the process.
    pub fn new() -> Self {
        MemoryStore {
            table: Table::default(),
            epoch: Epoch(1),
            disk: None,
            arrived: VecDeque::new(),
            closed: false,
            waker: Waker2(Arc::new(|| {})),
            group_bytes: AGREED_GROUP_BYTES,
            recent: RecentEvents::default(),
        }
    }

    /// A store for groups of this size whose data ends with the process.
    #[must_use]
    pub fn taking(self, group_bytes: usize) -> Self {
        MemoryStore { group_bytes, ..self }
    }

    /// A store whose data ends with the process; it calls `wake` when a page is loaded.
    pub fn with_waker(wake: Waker) -> Self {
        MemoryStore { waker: Waker2(wake), ..Self::new() }
    }

    /// A store on the data that earlier stores have left on `disk`; it calls `wake` when a sync completes.
    pub fn open(disk: &MemoryDisk, wake: Waker) -> Self {
        let mut table = Table::default();
        let mut inner = disk.disk();
        for group in &inner.groups {
            table.apply(group);
        }
        if let Some(clock) = inner.clock {
            table.note_clock(clock);
        }
        inner.epoch += 1;
        inner.fail = None;
        inner.durable = table.applied();
        inner.asked = table.applied();
        inner.waker = Some(wake.clone());
        let epoch = Epoch(inner.epoch);
        drop(inner);
        MemoryStore { table, epoch, disk: Some(disk.clone()), ..Self::with_waker(wake) }
    }

    /// The content of the store, for tests and views.
    pub fn table(&self) -> &Table {
        &self.table
    }

    fn check(&self) -> Result<(), StoreError> {
        if self.closed {
            return Err(StoreError::new(ErrorKind::Closed, "the store is closed"));
        }
        let Some(disk) = &self.disk else { return Ok(()) };
        let disk = disk.disk();
        if let Some(error) = &disk.fail {
            return Err(error.clone());
        }
        if disk.epoch != self.epoch.0 {
            return Err(StoreError::new(ErrorKind::Fenced, "a later owner has opened the store"));
        }
        Ok(())
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for MemoryStore {
    fn recovered(&mut self) -> Recovered {
        self.table.recovered(self.epoch)
    }

    fn append(&mut self, group: &Group) -> Result<(), StoreError> {
        self.check()?;
        self.table.apply(group);
        self.recent.take(group);
        if let Some(disk) = &self.disk {
            let mut disk = disk.disk();
            disk.groups.push(group.clone());
            disk.left = disk.left.map(|left| left.saturating_sub(1));
            disk.clock = Some(group.clock);
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.check()?;
        if let Some(disk) = &self.disk {
            let mut disk = disk.disk();
            disk.asked = self.table.applied();
            if disk.manual == SyncTiming::AtOnce {
                disk.durable = disk.asked;
            }
        }
        Ok(())
    }

    fn progress(&mut self) -> Result<Progress, StoreError> {
        self.check()?;
        let written = self.table.applied();
        let durable = self.disk.as_ref().map_or(written, |d| d.disk().durable);
        Ok(Progress { written, durable, level: self.terms().level })
    }

    fn terms(&self) -> StoreTerms {
        let claimed = self.disk.as_ref().and_then(|d| d.disk().level);
        StoreTerms { group_bytes: self.group_bytes, ..StoreTerms::of(claimed.unwrap_or(Level::Memory)) }
    }

    fn room(&mut self) -> Capacity {
        let Some(disk) = &self.disk else { return Capacity::Enough };
        let disk = disk.disk();
        if disk.left == Some(0) { Capacity::SettleOnly } else { disk.room }
    }

    fn room_error(&self) -> Option<StoreError> {
        self.disk.as_ref().and_then(|disk| disk.disk().room_error.clone())
    }

    fn find_many(&mut self, lookups: &Lookups, found: &mut Found) -> Result<AtHand, StoreError> {
        self.check()?;
        self.table.find_many(lookups, found);
        Ok(AtHand::Yes)
    }

    fn ask(&mut self, request: StoreRequest) -> Result<(), StoreError> {
        let durable = self.progress()?.durable;
        self.arrived.push_back(match request {
            StoreRequest::Fetch(ticket, _) => StoreArrival::Fetched(ticket),
            StoreRequest::Load(load) => StoreArrival::Loaded(self.table.load(load)),
            StoreRequest::Forget(_) => return Ok(()),
            StoreRequest::Events(asked) => {
                StoreArrival::Events(self.recent.page(asked, self.table.applied(), durable))
            }
        });
        (self.waker.0)();
        Ok(())
    }

    fn arrived(&mut self) -> Option<Result<StoreArrival, StoreError>> {
        self.arrived.pop_front().map(Ok)
    }

    fn idle(&mut self, clock: ClockPair, _: Option<BootAnchor>) -> Result<(), StoreError> {
        self.check()?;
        self.table.note_clock(clock);
        if let Some(disk) = &self.disk {
            disk.disk().clock = Some(clock);
        }
        Ok(())
    }

    fn close(&mut self, clock: ClockPair) -> Result<Progress, StoreError> {
        self.idle(clock, None)?;
        if let Some(disk) = &self.disk {
            let mut disk = disk.disk();
            disk.durable = self.table.applied();
        }
        self.closed = true;
        let last = self.table.applied();
        Ok(Progress { written: last, durable: last, level: self.terms().level })
    }

    fn figures(&self) -> Vec<(&'static str, u64)> {
        vec![("messages", self.table.len() as u64)]
    }
}

// A ring of recent events, for stores without a journal.

/// Recent events in memory, for a store that cannot read its groups again.
///
/// Events are kept from the first request on, so that a store without requests keeps none, until ten minutes after the
/// last request.
#[derive(Debug)]
pub struct RecentEvents {
    events: VecDeque<MessageEvent>,
    /// The memory of the events, in bytes.
    bytes: usize,
    most_bytes: usize,
    kept: KeptSince,
}

#[derive(Debug)]
enum KeptSince {
    Nothing,
    /// All events behind a position, which grows when the oldest are forgotten.
    Behind {
        floor: Lsn,
        /// Engine time of the first group behind the last request.
        unasked_since: Option<EngineMs>,
    },
}

/// The memory for the events of a shard, in bytes.
pub const RECENT_EVENTS_BYTES: usize = 4 * 1024 * 1024;
/// Events are kept for this long after the last request, in ms of engine time.
const ASKED_MS: u64 = 600_000;

impl Default for RecentEvents {
    fn default() -> Self {
        RecentEvents::new(RECENT_EVENTS_BYTES)
    }
}

impl RecentEvents {
    /// Room for events of this many bytes.
    pub fn new(most_bytes: usize) -> Self {
        RecentEvents { events: VecDeque::new(), bytes: 0, most_bytes, kept: KeptSince::Nothing }
    }

    /// Takes the events of a group that was appended.
    pub fn take(&mut self, group: &Group) {
        let KeptSince::Behind { floor, unasked_since } = &mut self.kept else { return };
        let now = group.clock.engine;
        let since = unasked_since.get_or_insert(now);
        if now.0.saturating_sub(since.0) > ASKED_MS {
            *self = RecentEvents::new(self.most_bytes);
            return;
        }
        for event in MessageEvent::of_group(group) {
            self.bytes += event.weight();
            self.events.push_back(event);
        }
        while self.bytes > self.most_bytes
            && let Some(oldest) = self.events.pop_front()
        {
            self.bytes -= oldest.weight();
            *floor = oldest.position;
        }
    }

    /// The page for a request to a store whose last record is `applied`, and whose last durable one is `durable`.
    pub fn page(&mut self, asked: EventRequest, applied: Lsn, durable: Lsn) -> EventPage {
        let floor = match self.kept {
            KeptSince::Behind { floor, .. } => floor,
            KeptSince::Nothing => applied,
        };
        self.kept = KeptSince::Behind { floor, unasked_since: None };
        let EventRequest { ticket, after, events: most, .. } = asked;
        let from = after.filter(|after| *after <= durable).unwrap_or(durable).max(floor);
        if from >= durable {
            // Nothing is known of records that are not durable yet and were appended before the first request.
            return EventPage { ticket, from, upto: from, more: More::No, events: Vec::new() };
        }
        let first = self.events.partition_point(|event| event.position <= from);
        let behind = self.events.range(first..).take_while(|event| event.position <= durable);
        let mut behind = behind.peekable();
        let events: Vec<MessageEvent> = behind.by_ref().take(most.max(1)).cloned().collect();
        let (upto, more) = match (behind.peek(), events.last()) {
            (Some(_), Some(last)) => (last.position, More::Yes),
            _ => (durable, More::No),
        };
        EventPage { ticket, from, upto, more, events }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::MessageId;
    use crate::message::Kind;
    use crate::name::QueueName;
    use crate::record::{ClockPair, Gone, Record, Was};
    use crate::time::{Due, WallMs};

    fn group(first: u64, engine: u64) -> Group {
        let was = Was {
            queue: QueueName::new("q").unwrap(),
            kind: Kind::Waiting,
            due: Due::At(WallMs(1)),
            weight: 0,
            detail: 0,
            past: 0,
            unweighed: 0,
        };
        let removed = |n| Record::Removed { id: MessageId(n), why: Gone::Acked, was: was.clone() };
        let clock = ClockPair { engine: EngineMs(engine), wall: WallMs(engine) };
        Group { first: Lsn(first), clock, records: vec![removed(first), removed(first + 1)] }
    }

    fn positions(page: &EventPage) -> Vec<u64> {
        page.events.iter().map(|event| event.position.0).collect()
    }

    fn ask(after: Option<u64>, events: usize) -> EventRequest {
        EventRequest { ticket: 1, after: after.map(Lsn), events, bytes: usize::MAX }
    }

    #[test]
    fn events_are_kept_from_first_request() {
        let mut recent = RecentEvents::default();
        recent.take(&group(1, 0));
        let page = recent.page(ask(Some(0), 9), Lsn(2), Lsn(2));
        assert_eq!((page.from, page.upto, positions(&page)), (Lsn(2), Lsn(2), vec![]), "not kept");
        recent.take(&group(3, 0));
        recent.take(&group(5, 0));
        let page = recent.page(ask(Some(2), 3), Lsn(6), Lsn(6));
        assert_eq!(
            (page.from, page.upto, page.more, positions(&page)),
            (Lsn(2), Lsn(5), More::Yes, vec![3, 4, 5])
        );
        let page = recent.page(ask(Some(5), 3), Lsn(6), Lsn(6));
        assert_eq!((page.upto, page.more, positions(&page)), (Lsn(6), More::No, vec![6]));
        let page = recent.page(ask(Some(2), 9), Lsn(6), Lsn(4));
        assert_eq!((page.upto, positions(&page)), (Lsn(4), vec![3, 4]), "the others are not durable");
        let page = recent.page(ask(Some(77), 9), Lsn(6), Lsn(6));
        assert_eq!((page.from, page.upto), (Lsn(6), Lsn(6)), "not a position of this store");
    }

    #[test]
    fn oldest_events_leave_full_memory() {
        let two = MessageEvent::of_group(&group(1, 0)).map(|event| event.weight()).sum::<usize>();
        let mut recent = RecentEvents::new(two * 3 / 2);
        recent.page(ask(None, 9), Lsn(0), Lsn(0));
        recent.take(&group(1, 0));
        assert_eq!(positions(&recent.page(ask(Some(0), 9), Lsn(2), Lsn(2))), [1, 2]);
        recent.take(&group(3, 0));
        let page = recent.page(ask(Some(0), 9), Lsn(4), Lsn(4));
        assert_eq!((page.from, positions(&page)), (Lsn(1), vec![2, 3, 4]), "there is memory for three");
    }

    #[test]
    fn events_are_dropped_when_unrequested() {
        let mut recent = RecentEvents::default();
        recent.page(ask(None, 9), Lsn(0), Lsn(0));
        recent.take(&group(1, 1_000));
        recent.take(&group(3, 1_000 + ASKED_MS));
        assert_eq!(recent.events.len(), 4);
        recent.take(&group(5, 1_001 + ASKED_MS));
        assert_eq!((recent.events.len(), recent.bytes), (0, 0));
        assert_eq!(recent.page(ask(Some(0), 9), Lsn(6), Lsn(6)).from, Lsn(6));
    }
}
