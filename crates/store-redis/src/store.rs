//! The store on Redis: it sends groups in order, and keeps the books in memory.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use duewheel_core::record::{ClockPair, Group, Record, Writer};
use duewheel_core::store::{
    Capacity, ErrorKind, EventPage, EventRequest, Found, Ledger, Level, Load, Loaded, Lookups, Progress,
    RecentEvents, Recovered, Store, StoreError, Waker,
};
use duewheel_core::{Lsn, QueueName, ShardId};
use redis::{Cmd, Pipeline};
use roaring::RoaringTreemap;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::fault::FenceReason;
use crate::fold::fold;
use crate::load::SequenceRequest;
use crate::mark::Mark;
use crate::open::{self, AcquiredShard};
use crate::options::Options;
use crate::plan::{Commands, ScriptPlan, WordList};
use crate::reign::{self, Claimant};
use crate::shared::{RedisShared, locked};
use crate::waits::WaitRequirements;
use crate::wire::{self, Begun, Servers};
use crate::{books, fault, find, script, value};

/// Largest number of records of a group: Redis serves no other client while it applies one, some 7 µs for each record
/// (docs/redis.md).
const GROUP_RECORDS: usize = 4_000;
/// Longest time between two records of the clocks while nothing is appended, in ms.
const CLOCK_MS: u64 = 5_000;

/// The store on Redis: one shard, one owner, which holds a lease of it.
///
/// A group is one call of a script that checks the fence and applies it; groups are sent one behind the other, and none
/// is ever sent twice. The books of the queues are in memory; messages are in Redis alone.
///
/// # Errors
/// A group that fails, or whose answer does not arrive, ends the store: every later call returns the same error, and
/// the outcome of calls in flight is unknown until the shard is opened again. A lease that cannot be renewed in time
/// ends the store, too: then every call returns [`ErrorKind::Fenced`], by a clock that continues while the process is
/// stopped.
///
/// # Dropping
/// A store that is dropped without [`Store::close`] leaves its shard as `kill -9` would, except that the same process
/// need not wait for the lease to end.
///
/// # Examples
/// ```no_run
/// use std::sync::Arc;
/// use duewheel_core::ShardId;
/// use duewheel_core::store::Store;
/// use duewheel_store_redis::{Options, RedisStore};
///
/// let options = Options::parse("redis://127.0.0.1:6379/0")?;
/// let mut store = RedisStore::open(&options, ShardId(0), Arc::new(|| {}))?;
/// let recovered = store.recovered();
/// println!("{} queues, epoch {}", recovered.queues.len(), recovered.epoch.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RedisStore {
    shared: Arc<RedisShared>,
    tasks: Vec<JoinHandle<()>>,
    loads: mpsc::UnboundedSender<SequenceRequest>,
    ledger: Ledger,
    /// Messages of this incarnation without a key.
    unkeyed: RoaringTreemap,
    /// Queues whose books in Redis are older than the ledger.
    dirty: BTreeSet<QueueName>,
    /// Bytes of changes of the books since they were written.
    tail: usize,
    max_body_bytes: usize,
    /// The clocks as recorded in Redis last.
    noted: ClockPair,
    /// Ids below this one are reserved.
    aside: u64,
    recovered: Recovered,
    state: RedisStoreState,
    recent: RecentEvents,
}

/// Whether this is the last checkpoint of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckpointKind {
    NotYet,
    /// Nothing follows: the next owner continues with the id behind the last one.
    Clean,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RedisStoreState {
    Open,
    Closed,
}

impl RedisStore {
    /// Opens a shard for a single owner, as node `duewheel`. `waker` is called when something became durable or a page
    /// was loaded. Several nodes share shards by a [`RedisCoordinator`](crate::RedisCoordinator).
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] while the lease of another owner runs, [`ErrorKind::Corrupt`] for an unknown format,
    /// damage, or a server that may evict keys (`maxmemory-policy allkeys-…`), [`ErrorKind::Unavailable`] if Redis
    /// cannot be reached.
    pub fn open(options: &Options, shard: ShardId, waker: Waker) -> Result<Self, StoreError> {
        let alone = Claimant { node: "duewheel".into(), number: 0, advertise: "".into(), cluster: None };
        Self::open_as(Servers(Arc::new(options.clone())), shard, alone, waker)
    }

    pub(crate) fn open_as(
        servers: Servers,
        shard: ShardId,
        claimant: Claimant,
        waker: Waker,
    ) -> Result<Self, StoreError> {
        wire::wait_for(async move {
            let AcquiredShard { shared, control, ledger, tail, gone, max_body_bytes } =
                open::open(servers, shard, claimant, waker).await?;
            let (loads, asked) = mpsc::unbounded_channel();
            let tasks = crate::tasks::start(&shared, control, asked);
            let noted = ledger.clock().unwrap_or_default();
            shared.engine.store(noted.engine.0, SeqCst);
            let recovered = Recovered {
                epoch: shared.reign.epoch,
                tokens: shared.reign.tokens,
                next_lsn: ledger.applied().next(),
                next_id: ledger.next_id().0.max(shared.reign.first_id),
                clock: ledger.clock(),
                anchor: None,
                due: ledger.due().clone(),
                queues: ledger.rows().collect(),
            };
            // The list contains queues that the next checkpoint must write.
            let dirty = recovered
                .queues
                .iter()
                .map(|row| row.name.clone())
                .filter(|_| tail > 0)
                .chain(gone)
                .collect();
            let aside = shared.reign.first_id.saturating_add(reign::IDS_ASIDE);
            let (unkeyed, state) = (RoaringTreemap::new(), RedisStoreState::Open);
            Ok(RedisStore {
                shared,
                tasks,
                loads,
                ledger,
                unkeyed,
                dirty,
                tail,
                max_body_bytes,
                noted,
                aside,
                recovered,
                state,
                recent: RecentEvents::default(),
            })
        })
    }

    fn check(&self) -> Result<(), StoreError> {
        match self.state {
            RedisStoreState::Open => self.shared.check(),
            RedisStoreState::Closed => Err(StoreError::new(ErrorKind::Closed, "the store is closed")),
        }
    }

    /// Ends the store if the result is an error.
    fn or_end<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &result {
            self.shared.end(error.clone());
            self.check()?;
        }
        result
    }

    /// Sends a script call whose reply applies to everything up to a position. With `first` the call contains the
    /// records from there on; without it the call moves no position, so that a later group may be applied although this
    /// call is refused.
    fn post(
        &self,
        call: Cmd,
        bytes: u64,
        first: Option<Lsn>,
        last: Lsn,
        puts: u64,
    ) -> Result<(), StoreError> {
        self.shared.goes(bytes)?;
        self.shared.puts(puts);
        let waits = WaitRequirements::of(self.shared.options());
        let mut ask = Pipeline::with_capacity(2);
        ask.add_command(call);
        waits.ask(&mut ask);
        let shared = Arc::clone(&self.shared);
        let sent = Instant::now();
        self.shared.wire.post(ask, move |reply| {
            shared.counts.took(sent.elapsed());
            let result = reply.and_then(|values| waits.read(values, &shared.counts.wait_failures));
            let result = result.map(|reach| shared.level(reach));
            let result = result.map_err(|failure| match (failure.begun, first) {
                // Later groups follow this one, so they are refused, too; earlier ones have been answered.
                (Begun::No, Some(first)) => {
                    failure.error.with_nothing_from(first).with_reached(shared.progress())
                }
                (Begun::No, None) | (Begun::Maybe, _) => failure.error,
            });
            shared.put(puts);
            shared.comes(last, bytes, result);
        });
        Ok(())
    }

    /// The call that applies a group.
    fn call(&mut self, group: &Group, script: &str, heads: &[u8]) -> Cmd {
        let (keys, before) = (&self.shared.keys, self.ledger.applied());
        let mut call = self.shared.fenced(script, Some(before), Some(group.last()), Some(group.clock));
        let folded = fold(group);
        let mut plan = ScriptPlan::new(keys, &self.unkeyed, self.shared.options().dense);
        plan.take(&folded);
        let mut commands = Commands(&mut call);
        plan.write(&mut commands);
        commands.one(&[b"RPUSH", keys.tail.as_bytes(), heads]);
        let newest = group.records.iter().filter_map(|record| match record {
            Record::Put { message, .. } => Some(message.id.0),
            _ => None,
        });
        let newest = newest.max().unwrap_or(0);
        if newest.saturating_add(reign::IDS_ASIDE / 2) > self.aside {
            self.aside = newest.saturating_add(reign::IDS_ASIDE);
            let aside = self.aside.to_string();
            commands.one(&[b"HSET", keys.head.as_bytes(), b"ids", aside.as_bytes()]);
        }
        call
    }

    fn take(&mut self, group: &Group) {
        for (lsn, record) in (group.first.0..).zip(&group.records) {
            self.ledger.apply(Lsn(lsn), record);
            match record {
                Record::Purged { queue, keep, before, .. } => {
                    self.shared
                        .set_mark(queue.clone(), Mark { before: *before, keep: keep.iter().collect() });
                }
                Record::Deduped(_) => {
                    self.shared.answers.store(true, SeqCst);
                    continue;
                }
                Record::Put { message, .. } => {
                    if message.key.is_none() {
                        self.unkeyed.insert(message.id.0);
                    }
                }
                Record::Removed { id, .. } => {
                    self.unkeyed.remove(id.0);
                }
                Record::Changed { .. } | Record::Granted { .. } | Record::Queue { .. } => {}
            }
            if !self.dirty.contains(record.queue()) {
                self.dirty.insert(record.queue().clone());
            }
        }
        self.ledger.note_clock(group.clock);
        self.note(group.clock);
    }

    fn note(&mut self, clock: ClockPair) {
        self.noted = clock;
        self.shared.clock.note(clock.engine);
        self.shared.engine.store(clock.engine.0, SeqCst);
    }

    /// Writes the books of the queues that have changed, and clears the list of changes.
    fn write_books(&mut self, clock: ClockPair, clean: CheckpointKind) -> Result<(), StoreError> {
        let keys = &self.shared.keys;
        let applied = self.ledger.applied();
        let mut call = self.shared.fenced(script::settle(), Some(applied), None, Some(clock));
        let (mut set, mut del) = (WordList::default(), WordList::default());
        let mut bytes = 0;
        for name in std::mem::take(&mut self.dirty) {
            match self.ledger.row(&name) {
                Some(row) => {
                    let blob = books::blob(&row);
                    bytes += blob.len();
                    set.push(name.as_str().as_bytes());
                    set.push(&blob);
                }
                None => del.push(name.as_str().as_bytes()),
            }
        }
        let mut due = Writer::default();
        self.ledger.due().encode(&mut due);
        let (applied_text, next_id) = (applied.0.to_string(), self.ledger.next_id().0.to_string());
        let mut commands = Commands(&mut call);
        commands.many(&["HSET", &keys.books], &set, 2);
        commands.many(&["HDEL", &keys.books], &del, 1);
        commands.one(&[
            b"HSET",
            keys.head.as_bytes(),
            b"books",
            applied_text.as_bytes(),
            b"next_id",
            next_id.as_bytes(),
            b"due",
            &due.bytes,
        ]);
        commands.one(&[b"DEL", keys.tail.as_bytes()]);
        if clean == CheckpointKind::Clean {
            let next_id = self.ledger.next_id().0.max(self.shared.reign.first_id);
            let clean = format!("{next_id}@{}", self.shared.reign.replid);
            commands.one(&[b"HSET", keys.head.as_bytes(), b"clean", clean.as_bytes()]);
        }
        self.tail = 0;
        self.shared.counts.checkpoints.fetch_add(1, SeqCst);
        self.post(call, (bytes + due.bytes.len()) as u64, None, applied, 0)
    }

    /// Ends all tasks and connections.
    fn end(&mut self) {
        self.shared.end(StoreError::new(ErrorKind::Closed, "the store is closed"));
        self.shared.wire.cut();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.end();
    }
}

impl Store for RedisStore {
    fn recovered(&mut self) -> Recovered {
        std::mem::take(&mut self.recovered)
    }

    fn append(&mut self, group: &Group) -> Result<(), StoreError> {
        self.check()?;
        if group.first != self.ledger.applied().next() || group.records.is_empty() {
            return self.or_end(Err(fault::bug("a group does not follow the one before")));
        }
        let puts = group.records.iter().any(|record| matches!(record, Record::Put { .. }));
        let heads = books::heads(group);
        let call = self.call(group, if puts { script::apply() } else { script::settle() }, &heads);
        let bytes = call.args_iter().map(|arg| if let redis::Arg::Simple(arg) = arg { arg.len() } else { 0 });
        let bytes = bytes.sum::<usize>() as u64;
        self.shared.counts.groups.fetch_add(1, SeqCst);
        self.shared.counts.records.fetch_add(group.records.len() as u64, SeqCst);
        self.shared.counts.group_bytes.fetch_add(bytes, SeqCst);
        self.post(call, bytes, Some(group.first), group.last(), if puts { bytes } else { 0 })?;
        self.tail += heads.len();
        self.take(group);
        self.recent.take(group);
        if self.tail > self.shared.options().tail_bytes {
            self.write_books(group.clock, CheckpointKind::NotYet)?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.check() // everything is on its way
    }

    fn progress(&mut self) -> Result<Progress, StoreError> {
        self.check()?;
        let progress = self.shared.progress();
        // Changes that were acknowledged while the lease was certain may be reported.
        self.check()?;
        Ok(progress)
    }

    fn room(&mut self) -> Capacity {
        if self.check().is_err() { Capacity::SettleOnly } else { self.shared.memory.room() }
    }

    fn find_many(&mut self, lookups: &Lookups, found: &mut Found) -> Result<(), StoreError> {
        self.check()?;
        self.shared.counts.finds.fetch_add(1, SeqCst);
        let result = find::find(&self.shared, &self.ledger, lookups, found);
        self.or_end(result)?;
        self.check()
    }

    fn load(&mut self, load: Load) -> Result<(), StoreError> {
        self.check()?;
        let asked = self.loads.send(SequenceRequest::new(&self.shared.keys, &self.ledger, load));
        self.or_end(asked.map_err(|_| fault::bug("pages are no longer loaded")))
    }

    fn loaded(&mut self) -> Option<Result<Loaded, StoreError>> {
        let page = locked(&self.shared.pages).pop_front()?;
        Some(self.check().and(page))
    }

    fn read_events(&mut self, asked: EventRequest) -> Result<Option<EventPage>, StoreError> {
        let durable = self.progress()?.durable;
        Ok(Some(self.recent.page(asked, self.ledger.applied(), durable)))
    }

    fn idle(&mut self, clock: ClockPair) -> Result<(), StoreError> {
        self.check()?;
        self.ledger.note_clock(clock);
        self.shared.engine.store(clock.engine.0, SeqCst);
        if clock.engine.0.saturating_sub(self.noted.engine.0) < CLOCK_MS {
            return Ok(());
        }
        self.note(clock);
        let applied = self.ledger.applied();
        let call = self.shared.fenced(script::settle(), Some(applied), None, Some(clock));
        self.post(call, 0, None, applied, 0)
    }

    fn max_body_bytes(&self) -> usize {
        self.max_body_bytes
    }

    fn max_group_records(&self) -> usize {
        GROUP_RECORDS
    }

    fn close(&mut self, clock: ClockPair) -> Result<Progress, StoreError> {
        self.check()?;
        self.ledger.note_clock(clock);
        let applied = self.ledger.applied();
        let written = self.write_books(clock, CheckpointKind::Clean).and_then(|()| {
            // It is sent behind all requests in flight, so its answer is the last.
            let mut give_back = Pipeline::new();
            give_back.add_command(reign::renewal(&self.shared.keys, &self.shared.reign, Duration::ZERO));
            let reply = self.shared.ask(give_back)?;
            self.shared.wait_until(applied)?;
            reign::judge(value::some(reply.into_iter().next(), "renew")?)
        });
        let written = match (written, self.shared.check()) {
            // The first error is the cause.
            (Err(_), Err(first)) => Err(first),
            (written, _) => written,
        };
        let progress = self.shared.progress();
        self.state = RedisStoreState::Closed;
        self.end();
        written.map(|()| progress)
    }

    fn level(&self) -> Level {
        Level::BestEffortReplicated
    }

    fn figures(&self) -> Vec<(&'static str, u64)> {
        let counts = &self.shared.counts;
        vec![
            ("messages", self.ledger.messages()),
            ("epoch", u64::from(self.shared.reign.epoch.0)),
            ("groups_total", counts.groups.load(SeqCst)),
            ("group_bytes_total", counts.group_bytes.load(SeqCst)),
            ("records_total", counts.records.load(SeqCst)),
            ("append_microseconds_total", counts.append_micros.load(SeqCst)),
            ("appends_answered_total", counts.answered.load(SeqCst)),
            ("under_way_bytes", self.shared.under_way()),
            ("finds_total", counts.finds.load(SeqCst)),
            ("pages_total", counts.pages.load(SeqCst)),
            ("checkpoints_total", counts.checkpoints.load(SeqCst)),
            ("renewals_total", counts.renewals.load(SeqCst)),
            ("swept_total", counts.swept.load(SeqCst)),
            ("answers_forgotten_total", counts.forgets.load(SeqCst)),
            ("fences_total.other_owner", counts.fences[FenceReason::Owner as usize].load(SeqCst)),
            ("fences_total.lease_ran_out", counts.fences[FenceReason::Lease as usize].load(SeqCst)),
            ("fences_total.other_master", counts.fences[FenceReason::Master as usize].load(SeqCst)),
            ("fences_total.lost_changes", counts.fences[FenceReason::Gap as usize].load(SeqCst)),
            ("wait_failures_total", counts.wait_failures.load(SeqCst)),
            ("clock_disagreements_total", self.shared.disagreements),
            ("list_places", counts.list_places.load(SeqCst)),
            ("lease_left_ms", self.shared.fence.left()),
            ("server_memory_bytes", self.shared.memory.used()),
            ("server_memory_max_bytes", self.shared.memory.max()),
        ]
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("shared", &self.shared)
            .field("applied", &self.ledger.applied())
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
