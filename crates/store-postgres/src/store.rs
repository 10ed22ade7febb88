//! The store of a shard: a log store over rows, and the lease that it holds.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use duewheel_core::Lsn;
use duewheel_core::record::{BootAnchor, ClockPair, Group};
use duewheel_core::store::{
    Capacity, ErrorKind, EventPage, EventRequest, Found, Level, Load, Loaded, Lookups, Progress, Recovered,
    Store, StoreError, Waker,
};
use duewheel_core::time::WallMs;
use duewheel_store_log::{LogStore, Options as LogOptions};

use crate::cache::BlockCache;
use crate::calls::Database;
use crate::files::PgFiles;
use crate::leases::PgLeases;
use crate::pool;
use crate::reign::{self, Acquired, EndedMarks, PgReign};

/// What the stores of a process share.
#[derive(Clone, Debug)]
pub(crate) struct OfProcess {
    pub(crate) database: Arc<Database>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) leases: Arc<PgLeases>,
    pub(crate) ended: Arc<EndedMarks>,
}

/// A shard's store, while this process has the shard.
pub(crate) struct PostgresStore {
    of_process: OfProcess,
    reign: Arc<PgReign>,
    store: LogStore,
    recovered: Recovered,
    appended: Lsn,
    /// As the last progress has shown.
    durable: Lsn,
}

impl PostgresStore {
    /// Opens the store of a shard that was acquired.
    pub(crate) fn open(
        of_process: OfProcess,
        reign: PgReign,
        acquired: &Acquired,
        waker: Waker,
    ) -> Result<Self, StoreError> {
        let OfProcess { database, cache, leases, ended } = &of_process;
        let reign = Arc::new(reign);
        leases.add(&reign, Arc::clone(&waker));
        let files = PgFiles::new(Arc::clone(database), Arc::clone(cache), Arc::clone(&reign));
        let log = LogOptions { id_step: u64::from(acquired.shards), ..database.options.log.clone() };
        let opened = LogStore::open_on(Arc::new(files), log, waker);
        let mut store = opened.inspect_err(|_| {
            leases.remove(reign.mark);
            ended.note(reign.mark);
        })?;
        store.skip_ids(acquired.first_id);
        let mut recovered = store.recovered();
        recovered.tokens = acquired.tokens;
        if let (Some(clock), Some(ago)) = (&mut recovered.clock, acquired.noted_ago) {
            clock.wall = wall_before(acquired, ago);
        }
        let appended = Lsn(recovered.next_lsn.0.saturating_sub(1));
        Ok(PostgresStore { of_process, reign, store, recovered, appended, durable: appended })
    }

    fn check(&self) -> Result<(), StoreError> {
        self.reign.fence.check()
    }

    /// Ends the ownership: what this process still answers is nothing.
    fn end(&self) {
        self.reign.fence.lose(StoreError::new(ErrorKind::Closed, "the store is closed"));
        self.of_process.leases.remove(self.reign.mark);
        self.of_process.ended.note(self.reign.mark);
    }
}

/// The time by this node's wall clock at which the clocks were recorded.
fn wall_before(acquired: &Acquired, ago: Duration) -> WallMs {
    let now = acquired.taken.duration_since(UNIX_EPOCH).unwrap_or_default();
    WallMs(u64::try_from(now.saturating_sub(ago).as_millis()).unwrap_or(0))
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.end();
    }
}

impl Store for PostgresStore {
    fn recovered(&mut self) -> Recovered {
        std::mem::take(&mut self.recovered)
    }

    fn append(&mut self, group: &Group) -> Result<(), StoreError> {
        self.check().map_err(|error| error.with_nothing_from(group.first))?;
        self.store.append(group)?;
        self.appended = group.last();
        // It is sent without being asked for: nothing keeps it while this process ends.
        self.store.sync()
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.check()?;
        self.store.sync()
    }

    fn progress(&mut self) -> Result<Progress, StoreError> {
        self.check()?;
        let progress = self.store.progress()?;
        // Changes that were durable while the lease was certain may be reported.
        self.check()?;
        self.durable = progress.durable;
        Ok(Progress { written: progress.durable, level: self.level(), ..progress })
    }

    fn room(&mut self) -> Capacity {
        if self.check().is_err() { Capacity::SettleOnly } else { self.store.room() }
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
        self.check()?;
        self.store.find_many(lookups, found)?;
        self.check()
    }

    fn load(&mut self, load: Load) -> Result<(), StoreError> {
        self.check()?;
        self.store.load(load)
    }

    fn loaded(&mut self) -> Option<Result<Loaded, StoreError>> {
        let page = self.store.loaded()?;
        Some(self.check().and(page))
    }

    fn forget(&mut self, ticket: u64) {
        self.store.forget(ticket);
    }

    fn read_events(&mut self, asked: EventRequest) -> Result<Option<EventPage>, StoreError> {
        self.check()?;
        self.store.read_events(asked)
    }

    fn events_read(&mut self) -> Option<Result<EventPage, StoreError>> {
        let page = self.store.events_read()?;
        Some(self.check().and(page))
    }

    fn idle(&mut self, clock: ClockPair) -> Result<(), StoreError> {
        self.check()?;
        self.store.idle(clock)
    }

    /// The next owner on this boot takes the time between the two from it, and one elsewhere from the server's clock: the
    /// mark that it writes says what that counts from.
    fn anchor(&mut self, clock: ClockPair, anchor: BootAnchor) -> Result<(), StoreError> {
        self.check()?;
        self.store.anchor(clock, anchor)
    }

    fn close(&mut self, clock: ClockPair) -> Result<Progress, StoreError> {
        self.check()?;
        let closed = self.store.close(clock);
        let level = self.level();
        let (database, reign) = (Arc::clone(&self.of_process.database), Arc::clone(&self.reign));
        self.of_process.leases.remove(reign.mark);
        let given = pool::wait_for(async move { reign::give_back(&database, &reign).await });
        self.end();
        let progress = closed?;
        // The lease that could not be given back runs out.
        match given {
            Err(error) if error.kind() != ErrorKind::Unavailable => Err(error),
            Ok(()) | Err(_) => Ok(Progress { level, ..progress }),
        }
    }

    fn level(&self) -> Level {
        self.of_process.database.level()
    }

    fn figures(&self) -> Vec<(&'static str, u64)> {
        let mut figures = self.store.figures();
        figures.push(("lease_left_ms", self.reign.fence.left()));
        figures.push(("unsent_records", self.appended.0.saturating_sub(self.durable.0)));
        figures
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("reign", &self.reign).finish_non_exhaustive()
    }
}
