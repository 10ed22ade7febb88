//! The thread around a driver: it reads the clock, waits, and opens the store again after a failure.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use duewheel_core::QueueName;
use duewheel_core::engine::{BoundLeases, Config};
use duewheel_core::record::ClockPair;
use duewheel_core::store::{ErrorKind, Level, Store, StoreError, Waker};
use duewheel_core::time::{EngineMs, Now, Partial, WallMs};
use tokio::sync::watch;

use crate::client::Health;
use crate::clock::{Clock, Reading};
use crate::driver::Driver;
use crate::error::{CallError, Outcome};
use crate::inbox::{Door, Inbox, Submission};
use crate::testing;
use crate::waiting::{Gate, Waiting};

/// Opens the shard's store; called at the start, and after each failure.
pub(crate) type Opener = Box<dyn FnMut(Waker) -> Result<Box<dyn Store>, StoreError> + Send>;

/// What a driver shares with its clients.
#[derive(Debug)]
pub(crate) struct Shared {
    level: Level,
    clock: Arc<dyn Clock>,
    /// `None` until the store was opened for the first time: before, there is no engine time.
    keeper: Mutex<Option<Timekeeper>>,
    /// When the loop last came round, in ms of elapsed time, and in real time for clocks that stand still.
    tick: Mutex<Instant>,
    trouble: Mutex<Option<String>>,
    figures: Mutex<Vec<(&'static str, u64)>>,
    wish: AtomicU64,
    /// A bug elsewhere than in the driver; it ends the driver, too.
    bug: OnceLock<String>,
    ended: watch::Sender<Option<End>>,
}

/// How a driver ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It was asked to.
    Stopped,
    /// Its store cannot be had any more, or a bug of ours; a sentence for people.
    Failed(String),
}

/// What the owner wants of the driver's thread; only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wish {
    Run,
    EndWaits,
    Stop,
}

/// Turns readings of a clock into engine time that counts on from where the store was left.
#[derive(Clone, Copy, Debug, Default)]
struct Timekeeper {
    /// Engine time at `since`, in ns.
    base_ns: u64,
    since_ns: u64,
}

impl Timekeeper {
    fn now(&self, reading: Reading) -> Now {
        let engine_ns = self.engine_ns(reading);
        let whole = engine_ns.is_multiple_of(1_000_000) && reading.wall_ns.is_multiple_of(1_000_000);
        let partial = if whole { Partial::Whole } else { Partial::Cut };
        Now { engine: EngineMs(engine_ns / 1_000_000), wall: WallMs(reading.wall_ns / 1_000_000), partial }
    }

    /// Goes on from where the store was left, at this reading: downtime counts. After a failure in mid-life, what was
    /// shown `before` counts, too.
    fn resume(before: Option<Timekeeper>, left: Option<ClockPair>, reading: Reading) -> Self {
        let wall = WallMs(reading.wall_ns / 1_000_000);
        if let Some(keeper) = before {
            // Elapsed time is known better than the wall clock, which may have been stepped meanwhile.
            let left_ns = left.map_or(0, |pair| pair.engine.0.saturating_mul(1_000_000));
            return Timekeeper {
                base_ns: keeper.engine_ns(reading).max(left_ns),
                since_ns: reading.elapsed_ns,
            };
        }
        let left = left.map_or(EngineMs(0), |pair| pair.engine_at(wall));
        // The downtime up to this very instant: with the wall clock's own part of a millisecond. So both clocks tick
        // together, and the instant shown for a delayed message is the same at every look.
        let left_ns = left.0.saturating_mul(1_000_000).saturating_add(reading.wall_ns % 1_000_000);
        Timekeeper { base_ns: left_ns, since_ns: reading.elapsed_ns }
    }

    fn engine_ns(&self, reading: Reading) -> u64 {
        self.base_ns.saturating_add(reading.elapsed_ns.saturating_sub(self.since_ns))
    }
}

impl Shared {
    pub(crate) fn level(&self) -> Level {
        self.level
    }

    pub(crate) fn now(&self) -> Now {
        let keeper = lock(&self.keeper).unwrap_or_default();
        keeper.now(self.clock.read())
    }

    pub(crate) fn health(&self) -> Health {
        let age = lock(&self.tick).elapsed().as_millis();
        let trouble = match &*self.ended.borrow() {
            Some(End::Stopped) => Some("shut down".to_owned()),
            Some(End::Failed(why)) => Some(why.clone()),
            None => self.bug.get().cloned().or_else(|| lock(&self.trouble).clone()),
        };
        Health { tick_age_ms: u64::try_from(age).unwrap_or(u64::MAX), trouble }
    }

    pub(crate) fn figures(&self) -> Vec<(&'static str, u64)> {
        lock(&self.figures).clone()
    }

    pub(crate) fn wish(&self, wish: Wish, inbox: &Inbox) {
        self.wish.fetch_max(wish as u64, Ordering::SeqCst);
        inbox.wake();
    }

    /// Something of ours has panicked: nothing is trusted any more, and the driver ends.
    fn end(&self, bug: String, inbox: &Inbox) {
        tracing::error!(%bug, "closing");
        let _ = self.bug.set(bug); // the first one counts
        inbox.wake();
    }

    pub(crate) async fn ended(&self) -> End {
        let mut ended = self.ended.subscribe();
        match ended.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or(End::Stopped),
            Err(_) => End::Stopped,
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    fn wished(&self, wish: Wish) -> bool {
        self.wish.load(Ordering::SeqCst) >= wish as u64
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A shard that runs: its driver's thread, and what is shared with it.
///
/// Dropped before it was handed on, it stops: nobody waits for it any more.
pub(crate) struct Shard {
    inbox: Arc<Inbox>,
    shared: Arc<Shared>,
    handed_on: bool,
}

impl Drop for Shard {
    fn drop(&mut self) {
        if !self.handed_on {
            self.shared.wish(Wish::Stop, &self.inbox);
        }
    }
}

impl Shard {
    /// Its parts, for an owner that will stop it.
    pub(crate) fn hand_on(mut self) -> (Arc<Inbox>, Arc<Shared>) {
        self.handed_on = true;
        (self.inbox.clone(), self.shared.clone())
    }

    /// Opens the store and starts the driver's thread. Blocks until everything that must be in memory is loaded.
    pub(crate) fn start(
        mut opener: Opener,
        config: Config,
        clock: Arc<dyn Clock>,
    ) -> Result<Shard, StartError> {
        let inbox = Arc::new(Inbox::new(&config.policy));
        clock.attach(&inbox);
        let store = opener(waker(&inbox)).map_err(StartError::Store)?;
        let shared = Arc::new(Shared {
            level: store.level(),
            keeper: Mutex::new(None),
            tick: Mutex::new(Instant::now()),
            trouble: Mutex::new(None),
            figures: Mutex::new(Vec::new()),
            wish: AtomicU64::new(Wish::Run as u64),
            bug: OnceLock::new(),
            ended: watch::Sender::new(None),
            clock,
        });
        let mut thread =
            Thread { holds: Vec::new(), inbox: inbox.clone(), shared: shared.clone(), opener, config };
        let driver = thread.open(store)?;
        std::thread::Builder::new()
            .name("duewheel-shard".into())
            .spawn(move || thread.run(driver))
            .map_err(StartError::Thread)?;
        Ok(Shard { inbox, shared, handed_on: false })
    }
}

/// Why a shard did not start.
#[derive(Debug)]
pub(crate) enum StartError {
    Store(StoreError),
    Policy(duewheel_core::engine::GeometryError),
    Thread(std::io::Error),
}

type ShardDriver = Driver<Box<dyn Store>>;

/// How long requests gather while a sync is under way.
const GATHER: Duration = Duration::from_micros(500);

/// From so many callers on, the driver waits a moment for the others when the first of them comes: a sync for each
/// handful would cost more than the moment. (PostgreSQL's `commit_delay` and `commit_siblings` do the same.)
const CROWD: usize = 6;

/// How long that moment is at most; it ends when as many have come as came lately.
const GATHER_CROWD: Duration = Duration::from_micros(200);

/// What the thread has slept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slept {
    No,
    ForStore,
    ForAnything,
}

struct Thread {
    /// Of the engine before, for the one that takes its place after a failure.
    holds: Vec<(QueueName, [u32; 3])>,
    inbox: Arc<Inbox>,
    shared: Arc<Shared>,
    opener: Opener,
    config: Config,
}

impl Thread {
    /// Makes a driver for a store and loads until it is open.
    fn open(&mut self, mut store: Box<dyn Store>) -> Result<ShardDriver, StartError> {
        let reading = self.shared.clock.read();
        let recovered = store.recovered();
        let before = *lock(&self.shared.keeper);
        let keeper = Timekeeper::resume(before, recovered.clock, reading);
        *lock(&self.shared.keeper) = Some(keeper);
        let now = keeper.now(reading);
        let mut config = self.config.clone();
        if before.is_some() {
            config.bound = BoundLeases::Keep;
            config.holds = self.holds.clone();
        }
        let mut driver = Driver::new(store, recovered, config, now).map_err(StartError::Policy)?;
        while !driver.is_open() {
            driver.step(now, &mut Vec::new()).map_err(StartError::Store)?;
            if !driver.is_open() {
                self.inbox.wait_for_wake(Duration::from_millis(100));
            }
        }
        Ok(driver)
    }

    fn run(mut self, driver: ShardDriver) {
        let end = match catch_unwind(AssertUnwindSafe(|| self.drive(driver))) {
            Ok(end) => end,
            Err(panic) => End::Failed(bug("the driver", panic_text(&*panic))),
        };
        let refusal = match &end {
            End::Stopped => CallError::Draining,
            End::Failed(why) => {
                tracing::error!(%why, "the driver ended");
                CallError::Closed("the driver ended; see the log")
            }
        };
        self.inbox.close_door(Door::Closed(refusal.clone()));
        self.refuse_waiting(&refusal);
        self.shared.ended.send_replace(Some(end));
    }

    fn drive(&mut self, mut driver: ShardDriver) -> End {
        let mut submissions = Vec::new();
        let mut waiting = Waiting::new(&self.config.policy);
        // About how many callers there are: as many as came together lately.
        let mut crowd = 0;
        loop {
            if !driver.is_full() {
                if crowd >= CROWD && self.shared.level != Level::Memory {
                    self.inbox.wait_for_crowd(crowd, GATHER_CROWD);
                }
                self.inbox.take(&mut submissions);
                crowd = submissions.len().max(crowd - crowd.div_ceil(8));
            }
            let now = self.shared.now();
            let closed = driver.is_busy(now) && !self.shared.wished(Wish::EndWaits);
            waiting.sort(&mut submissions, if closed { Gate::Closed } else { Gate::Open });
            // Every round: a reserve may have come in before the door was closed.
            let waits_ended = self.shared.wished(Wish::EndWaits);
            if waits_ended {
                driver.end_waits();
            }
            let stepped = driver.step(now, &mut submissions);
            *lock(&self.shared.tick) = Instant::now();
            if let Err(error) = stepped {
                waiting.give_back(&mut submissions);
                driver = match self.reopen(driver, &mut submissions, &error) {
                    Ok(driver) => driver,
                    Err(end) => return end,
                };
                continue;
            }
            testing::place("driver");
            if let Some(bug) = self.shared.bug.get() {
                driver.end_waits();
                // What was accepted becomes durable if it can; the bug is the news in any case.
                let _ = driver.close(now);
                return End::Failed(bug.clone());
            }
            if waits_ended && self.shared.wished(Wish::Stop) && !driver.is_waiting_for_store() {
                driver.end_waits();
                return match driver.close(now) {
                    Ok(()) => End::Stopped,
                    Err(error) => End::Failed(error.to_string()),
                };
            }
            if self.sleep(&driver, &waiting) == Slept::ForStore {
                // Whoever waited goes on while the next ones gather. An error shows again in the next step.
                let _ = driver.answer();
            }
        }
    }

    fn sleep(&self, driver: &ShardDriver, waiting: &Waiting) -> Slept {
        let max = Duration::from_millis(self.config.policy.max_sleep_ms).min(waiting.nap());
        // The clock again: the step may have taken long.
        let now = self.shared.now();
        let wanted = match driver.next_wakeup(now) {
            None => max,
            Some(t) if t <= now.engine => return Slept::No,
            Some(t) => max.min(Duration::from_millis(t.0 - now.engine.0)),
        };
        if wanted == max {
            // At leisure: once a second, not in the rush.
            *lock(&self.shared.figures) = driver.store().figures();
        }
        if driver.is_full() {
            self.inbox.wait_for_wake(self.shared.clock.nap(wanted));
            Slept::ForStore
        } else if driver.is_waiting_for_store() {
            // A sync is under way: what comes in meanwhile becomes one group, for one write and one sync. Grants do not
            // need the sync, so this is not for long even where syncs are.
            self.inbox.wait_for_wake(wanted.min(GATHER));
            Slept::ForStore
        } else {
            self.inbox.wait(self.shared.clock.nap(wanted));
            Slept::ForAnything
        }
    }

    /// The store failed. What was under way is unknown; then it is opened again, under a new epoch.
    fn reopen(
        &mut self,
        driver: ShardDriver,
        submissions: &mut Vec<Submission>,
        error: &StoreError,
    ) -> Result<ShardDriver, End> {
        tracing::error!(%error, "the store failed; answers under way are unknown; opening it again");
        self.holds = driver.engine().holds();
        driver.fail(error);
        refuse(submissions, &not_applied(error));
        let mut error = error.clone();
        let mut pause = Duration::from_millis(50);
        loop {
            *lock(&self.shared.trouble) = Some(error.to_string());
            if let Some(bug) = self.shared.bug.get() {
                return Err(End::Failed(bug.clone()));
            }
            if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Closed)
                || self.shared.wished(Wish::Stop)
            {
                return Err(End::Failed(error.to_string()));
            }
            self.refuse_waiting(&not_applied(&error));
            match (self.opener)(waker(&self.inbox)).map_err(StartError::Store).and_then(|s| self.open(s)) {
                Ok(driver) => {
                    tracing::info!("the store is open again");
                    *lock(&self.shared.trouble) = None;
                    return Ok(driver);
                }
                Err(StartError::Store(again)) => error = again,
                Err(StartError::Policy(why)) => return Err(End::Failed(why.to_string())),
                Err(StartError::Thread(why)) => return Err(End::Failed(why.to_string())),
            }
            let until = Instant::now() + pause;
            while Instant::now() < until && !self.shared.wished(Wish::Stop) {
                self.refuse_waiting(&not_applied(&error));
                self.inbox.wait(until.saturating_duration_since(Instant::now()));
            }
            *lock(&self.shared.tick) = Instant::now();
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }

    /// Answers what waits while there is no store: it was not applied.
    fn refuse_waiting(&self, refusal: &CallError) {
        let mut waiting = Vec::new();
        self.inbox.take(&mut waiting);
        refuse(&mut waiting, refusal);
    }
}

fn refuse(submissions: &mut Vec<Submission>, refusal: &CallError) {
    for Submission { ops, answer, .. } in submissions.drain(..) {
        // Nobody there any more: nothing to tell.
        let _ = answer.send(ops.iter().map(|_| Err(refusal.clone())).collect());
    }
}

fn not_applied(error: &StoreError) -> CallError {
    CallError::Store { error: error.clone(), outcome: Outcome::NotApplied }
}

fn waker(inbox: &Arc<Inbox>) -> Waker {
    let inbox = Arc::downgrade(inbox);
    Arc::new(move || {
        if let Some(inbox) = inbox.upgrade() {
            inbox.wake();
        }
    })
}

fn bug(place: &str, what: &str) -> String {
    format!("a bug in duewheel: {place} has panicked: {what}")
}

/// Kept by a task of ours while it runs: if it panics, the handle closes with an error. A panic that nobody sees would leave
/// messages that are never handed out, or a copy that is never made.
pub(crate) struct EndOnPanic {
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    place: &'static str,
}

impl EndOnPanic {
    pub(crate) fn new(shared: &Arc<Shared>, inbox: &Arc<Inbox>, place: &'static str) -> Self {
        EndOnPanic { shared: shared.clone(), inbox: inbox.clone(), place }
    }
}

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.end(bug(self.place, "see the standard error"), &self.inbox);
        }
    }
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn engine_time_begins_where_the_store_was_left_whatever_the_uptime() {
        // Story: the first open compared with a keeper that had not been set, which showed the machine's uptime. On a host
        // that was up for longer than the folder was old, every delay would have ended at once; on any other, each
        // restart gained the time between two readings, and messages came some ms early. Found by the kill -9 test.
        let up_for_years = Reading { elapsed_ns: u64::from(u32::MAX) * 1_000 * MS, wall_ns: 70_000 * MS };
        let new = Timekeeper::resume(None, None, up_for_years);
        assert_eq!(new.now(up_for_years).engine, EngineMs(0));
        let left = ClockPair { engine: EngineMs(500), wall: WallMs(60_000) };
        let again = Timekeeper::resume(None, Some(left), up_for_years);
        assert_eq!(again.now(up_for_years).engine, EngineMs(10_500), "downtime counts, uptime does not");
    }

    #[test]
    fn opened_again_in_mid_life_elapsed_time_counts_and_no_step_of_the_wall_clock() {
        let at = |ms: u64| Reading { elapsed_ns: ms * MS, wall_ns: 50_000 * MS };
        let first = Timekeeper::resume(None, None, at(100));
        let left = ClockPair { engine: EngineMs(10), wall: WallMs(40_000) }; // stepped by ten seconds since
        let again = Timekeeper::resume(Some(first), Some(left), at(400));
        assert_eq!(again.now(at(400)).engine, EngineMs(300));
        assert_eq!(again.now(at(450)).engine, EngineMs(350));
    }
}
