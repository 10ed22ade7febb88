//! The state that the owner's thread and the tasks of a store share.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use duewheel_core::record::ClockPair;
use duewheel_core::store::{ErrorKind, Level, Loaded, Progress, StoreError, Waker};
use duewheel_core::{Lsn, MessageId, QueueName};
use redis::{Cmd, Pipeline};
use tokio::sync::Notify;

use crate::fault::FenceReason;
use crate::keys::Keys;
use crate::mark::Mark;
use crate::memory::Memory;
use crate::options::Options;
use crate::reign::{self, Fence, RedisReign};
use crate::remembered::ReignClock;
use crate::script;
use crate::waits::ReplicationState;
use crate::wire::{self, RedisReply, Servers, Wire};

/// Largest size of groups that wait for their replies, in bytes; above it the owner waits.
const UNDER_WAY_BYTES: u64 = 64 * 1024 * 1024;
pub(crate) struct RedisShared {
    pub(crate) servers: Servers,
    pub(crate) keys: Keys,
    pub(crate) reign: RedisReign,
    pub(crate) fence: Fence,
    /// The connection for everything about messages, in order.
    pub(crate) wire: Wire,
    waker: Waker,
    over: Mutex<Option<StoreError>>,
    is_over: AtomicBool,
    /// The last group that the script has applied and that enough replicas have.
    acked: AtomicU64,
    reached: Mutex<Reached>,
    under_way: Mutex<u64>,
    came: Condvar,
    pub(crate) pages: Mutex<VecDeque<Result<Loaded, StoreError>>>,
    /// Purges that the sweep has not completed.
    marks: Mutex<Arc<BTreeMap<QueueName, Mark>>>,
    /// Notified when there is something to sweep.
    pub(crate) sweep: Notify,
    /// Engine time of the last group or pause.
    pub(crate) engine: AtomicU64,
    /// Whether any answer is remembered.
    pub(crate) answers: AtomicBool,
    /// The memory of the master, shared by all shards of this process on it.
    pub(crate) memory: Arc<Memory>,
    /// Bytes of new messages of this shard in flight.
    putting: AtomicU64,
    pub(crate) counts: RequestFigures,
    /// The clock of this incarnation, for a later one of this process.
    pub(crate) clock: Arc<ReignClock>,
    /// Number of disagreements of Redis' clock and this node's about a time without an owner.
    pub(crate) disagreements: u64,
}

/// The level of acknowledged changes.
#[derive(Clone, Copy, Debug)]
struct Reached {
    /// The common level of all changes since the last report.
    level: Level,
    /// The position up to which the level was reported.
    reported: Lsn,
}

/// Figures for people.
#[derive(Debug, Default)]
pub(crate) struct RequestFigures {
    pub(crate) groups: AtomicU64,
    pub(crate) group_bytes: AtomicU64,
    pub(crate) records: AtomicU64,
    /// Number of changes whose reply has arrived, and the total time of these.
    pub(crate) answered: AtomicU64,
    pub(crate) append_micros: AtomicU64,
    pub(crate) finds: AtomicU64,
    pub(crate) pages: AtomicU64,
    pub(crate) renewals: AtomicU64,
    /// Number of changes for which the wait failed.
    pub(crate) wait_failures: AtomicU64,
    /// Number of ends of ownership by reason.
    pub(crate) fences: [AtomicU64; 4],
    pub(crate) checkpoints: AtomicU64,
    pub(crate) swept: AtomicU64,
    pub(crate) forgets: AtomicU64,
    /// Number of positions of lists that are kept between pages.
    pub(crate) list_places: AtomicU64,
}

impl RequestFigures {
    /// Records the time until the reply to a change.
    pub(crate) fn took(&self, time: Duration) {
        self.answered.fetch_add(1, SeqCst);
        self.append_micros.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), SeqCst);
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RedisShared {
    pub(crate) fn new(
        servers: Servers,
        keys: Keys,
        (reign, fence): (RedisReign, Fence),
        (wire, memory, replicas): (Wire, Arc<Memory>, u64),
        waker: Waker,
        applied: Lsn,
        marks: BTreeMap<QueueName, Mark>,
    ) -> Self {
        let remembered = &servers.0.remembered;
        let clock = remembered.begin(&keys, &reign.incarnation);
        // Each reign reports its own; the reader of the figures adds those of all reigns.
        let disagreements = remembered.disagreements(&keys).swap(0, SeqCst);
        RedisShared {
            clock,
            disagreements,
            servers,
            keys,
            reign,
            fence,
            wire,
            waker,
            over: Mutex::new(None),
            is_over: AtomicBool::new(false),
            acked: AtomicU64::new(applied.0),
            reached: Mutex::new(Reached {
                level: ReplicationState::following(replicas).level(memory.alone()),
                reported: applied,
            }),
            under_way: Mutex::new(0),
            came: Condvar::new(),
            pages: Mutex::default(),
            marks: Mutex::new(Arc::new(marks)),
            sweep: Notify::new(),
            engine: AtomicU64::new(0),
            answers: AtomicBool::new(true),
            memory,
            putting: AtomicU64::new(0),
            counts: RequestFigures::default(),
        }
    }

    pub(crate) fn options(&self) -> &Options {
        &self.servers.0
    }

    pub(crate) fn wake(&self) {
        (self.waker)();
    }

    /// Whether the store may still answer: an error is permanent, and so is an uncertain lease.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if !self.is_over.load(SeqCst) {
            match self.fence.check() {
                Ok(()) => return Ok(()),
                Err(error) => self.end(error),
            }
        }
        match &*locked(&self.over) {
            Some(error) => Err(error.clone()),
            None => Err(StoreError::new(ErrorKind::Closed, "the store is closed")),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(SeqCst)
    }

    /// Ends the store. The first error stays.
    pub(crate) fn end(&self, error: StoreError) {
        {
            let mut over = locked(&self.over);
            if over.is_some() {
                return;
            }
            if let Some(reason) = FenceReason::of(&error) {
                self.counts.fences[reason as usize].fetch_add(1, SeqCst);
            }
            *over = Some(error);
            self.is_over.store(true, SeqCst);
        }
        // From now on no answer of this reign is sent, so the same process need not wait for its lease.
        reign::ended(&self.reign.incarnation);
        self.came.notify_all();
        self.sweep.notify_waiters();
        self.wake();
    }

    /// Ends the store for an error of a task, after the groups in flight, so that their outcome is known.
    pub(crate) async fn end_behind(&self, error: StoreError) {
        loop {
            {
                // A group that is sent now waits here, and finds that the store has ended.
                let under_way = locked(&self.under_way);
                if self.is_over() {
                    return;
                }
                if *under_way == 0 {
                    return self.end(error.with_nothing_from(self.acked().next()));
                }
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
            let _ = self.check(); // an end of the lease is one, too
        }
    }

    /// Sends commands behind all others, and waits for their replies, but not longer than the lease is certain.
    pub(crate) fn ask(&self, ask: Pipeline) -> RedisReply {
        let (done, reply) = sync_channel(1);
        self.wire.post(ask, move |result| {
            let _ = done.send(result); // nobody waits any more
        });
        loop {
            let left = Duration::from_millis(self.fence.left().clamp(1, 100));
            match reply.recv_timeout(left) {
                Ok(reply) => return reply,
                Err(RecvTimeoutError::Disconnected) => return Err(wire::gone().into()),
                Err(RecvTimeoutError::Timeout) => self.check()?,
            }
        }
    }

    pub(crate) fn acked(&self) -> Lsn {
        Lsn(self.acked.load(SeqCst))
    }

    /// Counts a group that is sent. Waits while too much is in flight.
    pub(crate) fn goes(&self, bytes: u64) -> Result<(), StoreError> {
        let mut under_way = locked(&self.under_way);
        let deadline = Instant::now() + self.options().response_timeout + Duration::from_secs(5);
        while *under_way > UNDER_WAY_BYTES && !self.is_over() {
            if Instant::now() >= deadline {
                drop(under_way);
                self.end(StoreError::new(ErrorKind::Unavailable, "Redis does not answer in time"));
                return self.check();
            }
            let waited = self.came.wait_timeout(under_way, Duration::from_millis(100));
            under_way = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *under_way += bytes;
        drop(under_way);
        self.check()
    }

    /// Counts bytes of new messages that are sent.
    pub(crate) fn puts(&self, bytes: u64) {
        self.putting.fetch_add(bytes, SeqCst);
        self.memory.goes(bytes);
    }

    /// Counts bytes of new messages that have arrived, or never will.
    pub(crate) fn put(&self, bytes: u64) {
        self.putting.fetch_sub(bytes, SeqCst);
        self.memory.comes(bytes);
    }

    /// The positions that are written and durable, and the common level of everything since the last call.
    pub(crate) fn progress(&self) -> Progress {
        let mut reached = locked(&self.reached);
        let acked = self.acked();
        reached.reported = acked;
        Progress { written: acked, durable: acked, level: reached.level }
    }

    /// The level of a change.
    pub(crate) fn level(&self, reach: ReplicationState) -> Level {
        reach.level(self.memory.alone())
    }

    /// Bytes of changes that wait for their replies.
    pub(crate) fn under_way(&self) -> u64 {
        *locked(&self.under_way)
    }

    /// Counts a group that has arrived, and its level.
    pub(crate) fn comes(&self, last: Lsn, bytes: u64, result: Result<Level, StoreError>) {
        match result {
            Ok(level) => {
                let mut reached = locked(&self.reached);
                let is_reported = reached.reported == self.acked();
                reached.level = if is_reported { level } else { reached.level.and(level) };
                self.acked.fetch_max(last.0, SeqCst);
            }
            Err(error) => self.end(error),
        }
        *locked(&self.under_way) -= bytes;
        self.came.notify_all();
        self.wake();
    }

    /// Waits until everything up to here has arrived.
    pub(crate) fn wait_until(&self, last: Lsn) -> Result<(), StoreError> {
        let mut under_way = locked(&self.under_way);
        let deadline = Instant::now() + self.options().response_timeout + Duration::from_secs(5);
        while self.acked() < last && !self.is_over() {
            if Instant::now() >= deadline {
                return Err(StoreError::new(ErrorKind::Unavailable, "Redis does not answer in time"));
            }
            let waited = self.came.wait_timeout(under_way, Duration::from_millis(100));
            under_way = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(under_way);
        if self.acked() < last { self.check() } else { Ok(()) }
    }

    /// The beginning of a script call that changes something: the fence, the expected and the new head, the clocks.
    pub(crate) fn fenced(
        &self,
        script: &str,
        must: Option<Lsn>,
        gets: Option<Lsn>,
        clock: Option<ClockPair>,
    ) -> Cmd {
        let mut cmd = script::call(script, &self.keys);
        cmd.arg(self.reign.epoch.0).arg(&self.reign.incarnation).arg(&self.reign.replid);
        for lsn in [must, gets] {
            match lsn {
                Some(Lsn(n)) => cmd.arg(n),
                None => cmd.arg(""),
            };
        }
        match clock {
            Some(clock) => cmd.arg(clock.engine.0).arg(clock.wall.0),
            None => cmd.arg("").arg(""),
        };
        cmd
    }

    pub(crate) fn marks(&self) -> Arc<BTreeMap<QueueName, Mark>> {
        Arc::clone(&locked(&self.marks))
    }

    pub(crate) fn set_mark(&self, queue: QueueName, mark: Mark) {
        Arc::make_mut(&mut locked(&self.marks)).insert(queue, mark);
        self.sweep.notify_one();
    }

    /// Removes a completed mark, unless a later purge has replaced it.
    pub(crate) fn unset_mark(&self, queue: &QueueName, mark: &Mark) {
        let mut marks = locked(&self.marks);
        if marks.get(queue) == Some(mark) {
            Arc::make_mut(&mut marks).remove(queue);
        }
    }

    /// Whether a purge has removed this message.
    pub(crate) fn is_purged(marks: &BTreeMap<QueueName, Mark>, queue: &QueueName, id: MessageId) -> bool {
        !marks.is_empty() && marks.get(queue).is_some_and(|mark| mark.hides(id))
    }
}

impl Drop for RedisShared {
    fn drop(&mut self) {
        // The requests in flight that were lost with the connection.
        self.memory.comes(self.putting.load(SeqCst));
    }
}

impl fmt::Debug for RedisShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("keys", &self.keys.tag())
            .field("epoch", &self.reign.epoch)
            .field("acked", &self.acked())
            .field("over", &locked(&self.over))
            .finish_non_exhaustive()
    }
}
