//! The main loop of a shard, turn by turn: it reads the clock, steps the driver, computes how long to sleep, and
//! reopens the store after a failure.
//!
//! A turn never waits. The thread of [`crate::thread`] sleeps between turns; a simulation lets its own time pass
//! instead.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use duewheel_core::QueueName;
use duewheel_core::engine::{BoundLeases, Config, GeometryError};
use duewheel_core::mutant::{self, Mutant};
use duewheel_core::record::ClockPair;
use duewheel_core::store::{ErrorKind, Level, Store, StoreError, Waker};
use duewheel_core::time::Now;

use crate::backpressure::{Gate, WaitingSubmissions};
use crate::client::Client;
use crate::clock::Clock;
use crate::driver::{Driver, Leftover, UNSYNCED_MS};
use crate::error::{CallError, Outcome};
use crate::fairness::{FairQueue, QuotaSource};
use crate::figures::Counted;
use crate::inbox::{Admission, Inbox, Submission};
use crate::marked::Marked;
use crate::random::{Jitter, RetryPause};
use crate::shared::{DriverEnd, DriverShared, DriverWork, Lifecycle, ThreadCommand};
use crate::testing;
use crate::timekeeper::Timekeeper;

/// Opens the shard's store; called at the start and after each failure.
pub type OpenStore = Box<dyn FnMut(Waker) -> Result<Box<dyn Store>, StoreError> + Send>;

/// Why a shard did not start.
#[derive(Debug)]
pub enum StartError {
    /// The store could not be opened, or what must be in memory could not be loaded.
    Store(StoreError),
    /// The policy has a ring of an impossible size.
    Policy(GeometryError),
    /// The operating system could not start a thread.
    Thread(std::io::Error),
}

/// Reaction of a runner when another owner has its shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFenced {
    /// The runner reopens the store, under a new epoch.
    #[default]
    OpenAgain,
    /// The runner ends: another component decides who owns the shard.
    End,
}

/// The caller's next action after a turn.
#[derive(Debug)]
pub enum AfterTurn {
    /// Take the next one at once.
    Again,
    /// Sleep; call [`Runner::woke`] afterwards.
    Sleep(SleepLimit),
    /// The runner has ended; call [`Runner::end`].
    Ended(DriverEnd),
}

/// The longest sleep of the runner, and the events that end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepLimit {
    /// The event that ends it early.
    pub until: WakeOn,
    /// The longest duration of the sleep.
    pub at_most: Duration,
}

impl SleepLimit {
    /// Whether a submission ends it.
    pub fn ends_with_any(&self) -> bool {
        matches!(self.until, WakeOn::Anything | WakeOn::Soon)
    }
}

/// The events that end a sleep early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeOn {
    /// A call of [`Inbox::wake`]; submissions that arrive during the sync in progress form one group.
    Gathering,
    /// A call of [`Inbox::wake`].
    Wake,
    /// A call of [`Inbox::wake`], or a submission in the inbox.
    Anything,
    /// A call of [`Inbox::wake`], or a submission in the inbox. The longest duration is in real time even where a test
    /// has stopped the clock: the store is to be reopened, or to be asked for a sync.
    Soon,
}

type ShardDriver = Driver<Box<dyn Store>>;

/// How long requests are collected while a sync is in progress.
const GATHER: Duration = Duration::from_micros(500);

/// With at least this many callers, the driver waits a moment for the others when the first submission arrives: a sync
/// for each few of them would cost more than the moment (PostgreSQL's `commit_delay` and `commit_siblings` do the
/// same).
const CROWD: usize = 6;

/// The longest duration of that moment; it ends when as many have arrived as recently.
const GATHER_CROWD: Duration = Duration::from_micros(200);

/// The longest time that records which no answer waits for lie unsynced.
const UNSYNCED: Duration = Duration::from_millis(UNSYNCED_MS);

/// The first pause before the store is reopened; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause for a shard of a node: it should serve again soon after its store is back, regardless of the
/// lease.
const LONGEST_PAUSE_OF_A_NODE: Duration = Duration::from_secs(1);

/// The greatest age of the store's figures while the driver works.
const FIGURES: Duration = Duration::from_secs(1);

/// The interval at which a loading store is checked if it does not report.
const OPENING: Duration = Duration::from_millis(100);

/// A shard between two turns. Owned by one thread, or by a simulation.
pub struct Runner {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) shared: Arc<DriverShared>,
    opener: OpenStore,
    config: Config,
    /// The holds of the former engine, for the one that replaces it after a failure.
    holds: Vec<(QueueName, [u32; 3])>,
    /// The state that the former driver has left for its replacement.
    remains: Leftover,
    fenced: WhenFenced,
    /// The jitter of the pauses before the store is reopened, seeded by [`Config::seed`]: shards that lost the same
    /// server do not return at the same moment.
    jitter: Jitter,
    phase: Phase,
    submissions: Vec<Submission>,
    waiting: WaitingSubmissions,
    quotas: QuotaSource,
    /// The version of the quotas that the driver has.
    quotas_seen: u64,
    turns: FairQueue,
    /// Only with [`Mutant::LentTurnStale`]: when the runner's thread fell asleep.
    asleep_since: Option<Now>,
    /// When the store's figures are reported again, by [`Clock::running`].
    figures_due: Duration,
    /// An estimate of the number of callers: as many as recently arrived together.
    crowd: usize,
}

enum Phase {
    /// The store is open, and the data that must be in memory is being loaded.
    Opening(Box<ShardDriver>, ReopenPause),
    Serving(Box<ShardDriver>),
    /// The store has failed.
    Failed(StoreError, ReopenPause),
    /// Between two phases, or ended.
    Ended,
}

/// When the store may be reopened.
#[derive(Clone, Debug)]
struct ReopenPause {
    until: Duration,
    next: RetryPause,
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match &self.phase {
            Phase::Opening(..) => "opening",
            Phase::Serving(_) => "serving",
            Phase::Failed(..) => "failed",
            Phase::Ended => "ended",
        };
        f.debug_struct("Runner").field("phase", &phase).finish_non_exhaustive()
    }
}

impl Runner {
    /// Opens the store. The caller calls [`Runner::opening`] until everything is loaded.
    ///
    /// # Errors
    /// The store does not open, or the policy has a ring of an impossible size.
    pub fn start(mut opener: OpenStore, config: Config, clock: Arc<dyn Clock>) -> Result<Self, StartError> {
        let inbox = Arc::new(Inbox::new(&config.policy));
        clock.attach(&inbox);
        let store = opener(waker(&inbox)).map_err(StartError::Store)?;
        let shared = Arc::new(DriverShared::new(store.terms().level, clock));
        let jitter = Jitter::seeded(config.seed);
        let mut runner = Runner {
            waiting: WaitingSubmissions::new(&config.policy),
            turns: FairQueue::new(&config.policy),
            quotas: QuotaSource::default(),
            quotas_seen: 0,
            inbox,
            shared,
            opener,
            config,
            holds: Vec::new(),
            remains: Leftover::default(),
            fenced: WhenFenced::OpenAgain,
            jitter,
            phase: Phase::Ended,
            submissions: Vec::new(),
            asleep_since: None,
            figures_due: Duration::ZERO,
            crowd: 0,
        };
        let driver = runner.driver(store)?;
        runner.phase = Phase::Opening(Box::new(driver), runner.first_pause());
        Ok(runner)
    }

    /// Sets what to do when another owner has the shard; by default it is reopened.
    #[must_use]
    pub fn when_fenced(mut self, fenced: WhenFenced) -> Self {
        self.fenced = fenced;
        self
    }

    /// Sets the source of its quotas, which is checked before each step.
    #[must_use]
    pub fn with_quotas(mut self, quotas: QuotaSource) -> Self {
        self.quotas = quotas;
        self
    }

    /// A client for callers.
    pub fn client(&self) -> Client {
        Client::new(self.inbox.clone(), self.shared.clone())
    }

    /// The owner's control over the runner.
    pub fn lifecycle(&self) -> Lifecycle {
        Lifecycle::new(self.inbox.clone(), self.shared.clone())
    }

    /// Whether the shard serves: everything is loaded, and the store works.
    pub fn is_serving(&self) -> bool {
        matches!(self.phase, Phase::Serving(_))
    }

    /// Whether a sleep of this kind has ended before its time.
    pub fn is_woken(&self, nap: SleepLimit) -> bool {
        self.inbox.is_woken() || nap.ends_with_any() && !self.inbox.is_empty()
    }

    /// Continues loading; returns `None` when everything that must be in memory is there, otherwise how long to wait
    /// for a signal of the store.
    ///
    /// # Errors
    /// The store failed before the shard has served a request: it has not started.
    pub fn opening(&mut self) -> Result<Option<Duration>, StartError> {
        let Phase::Opening(driver, _) = &mut self.phase else { return Ok(None) };
        let now = self.shared.now();
        driver.step(now, &mut Vec::new()).map_err(StartError::Store)?;
        if !driver.is_open() {
            return Ok(Some(OPENING));
        }
        if let Phase::Opening(driver, _) = std::mem::replace(&mut self.phase, Phase::Ended) {
            self.phase = Phase::Serving(driver);
        }
        Ok(None)
    }

    /// The number of submissions to wait for, and the longest wait, before the next turn.
    pub fn crowd(&self) -> Option<(usize, Duration)> {
        let Phase::Serving(driver) = &self.phase else { return None };
        let gathers =
            !driver.is_full() && self.crowd >= CROWD && driver.store().terms().level != Level::Memory;
        gathers.then_some((self.crowd, GATHER_CROWD))
    }

    /// Whether the last turns had one submission at most.
    pub fn is_lone(&self) -> bool {
        self.crowd <= 1
    }

    /// Takes one turn.
    pub fn turn(&mut self) -> AfterTurn {
        let turn = match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Serving(driver) => self.serve(driver),
            Phase::Opening(driver, pause) => {
                self.phase = Phase::Opening(driver, pause.clone());
                match self.opening() {
                    Ok(None) => {
                        tracing::info!("the store is open again");
                        self.shared.set_trouble(None);
                        AfterTurn::Again
                    }
                    Ok(Some(at_most)) => AfterTurn::Sleep(SleepLimit { until: WakeOn::Gathering, at_most }),
                    Err(error) => {
                        let phase = std::mem::replace(&mut self.phase, Phase::Ended);
                        if let (Phase::Opening(driver, _), StartError::Store(error)) = (phase, &error) {
                            self.keep_remains(driver.fail(error));
                        }
                        self.not_open(error, pause)
                    }
                }
            }
            Phase::Failed(error, pause) => self.reopen(error, pause),
            Phase::Ended => AfterTurn::Ended(DriverEnd::Stopped),
        };
        self.shared.tick(self.work());
        turn
    }

    /// Takes a turn on a caller's thread, while the runner's own thread sleeps for `left` more. `None`: that may sleep
    /// on; otherwise it goes on as after a turn of its own.
    pub fn lent_turn(&mut self, left: Duration) -> Option<AfterTurn> {
        let after = self.turn();
        let sleeps_on = match &after {
            AfterTurn::Sleep(nap) => nap.ends_with_any() && nap.at_most >= left,
            AfterTurn::Again | AfterTurn::Ended(_) => false,
        };
        (!sleeps_on).then_some(after)
    }

    /// The work of the present driver. While there is none, nothing waits for one: it is refused, or kept for the next.
    fn work(&self) -> DriverWork {
        let Phase::Serving(driver) = &self.phase else { return DriverWork::default() };
        let mut work = driver.work();
        let has_more = !self.submissions.is_empty() || !self.turns.is_empty();
        work.has_undecided |= has_more && !driver.is_full();
        work
    }

    /// To be called after a sleep.
    pub fn woke(&mut self, nap: SleepLimit) {
        self.asleep_since = None;
        if let (false, Phase::Serving(driver)) = (nap.ends_with_any(), &mut self.phase) {
            // Callers that waited continue while the next requests gather. An error shows again in the next step.
            let _ = driver.answer();
        }
    }

    /// Ends the shard: nothing more is accepted, and callers receive the reason.
    pub fn end(mut self, end: DriverEnd) {
        let refusal = match &end {
            DriverEnd::Stopped => CallError::Draining,
            DriverEnd::Fenced(why) => {
                tracing::warn!(%why, "the shard has another owner");
                not_applied(&StoreError::new(ErrorKind::Fenced, why))
            }
            DriverEnd::Failed(why) => {
                tracing::error!(%why, "the driver ended");
                CallError::Closed("the driver ended; see the log")
            }
        };
        self.inbox.close_door(Admission::Closed(refusal.clone()));
        self.remains = std::mem::take(&mut self.remains).refuse(&refusal);
        refuse(&mut self.submissions, &refusal);
        self.refuse_waiting(&refusal);
        self.shared.set_ended(end);
    }

    /// Creates a driver for a store; it has to load before it is open.
    fn driver(&mut self, store: Box<dyn Store>) -> Result<ShardDriver, StartError> {
        let mut store: Box<dyn Store> = Box::new(Marked::new(store, &self.shared));
        let clock = &**self.shared.clock();
        let recovered = store.recovered();
        let before = self.shared.keeper();
        let keeper = Timekeeper::resume(before, &recovered, clock);
        self.shared.set_keeper(keeper);
        let now = keeper.now(clock.read());
        if let Some(anchor) = keeper.anchor(clock) {
            store.idle(ClockPair::of(now), Some(anchor)).map_err(StartError::Store)?;
        }
        let mut config = self.config.clone();
        config.policy = config.policy.fitting(store.terms().group_bytes);
        if config.policy.max_body < self.config.policy.max_body {
            let (wanted, largest) = (self.config.policy.max_body, config.policy.max_body);
            tracing::warn!(
                wanted,
                largest,
                "the store cannot hold bodies of the wanted size; bodies above its largest are refused"
            );
        }
        if before.is_some() {
            config.bound = BoundLeases::Keep;
            config.holds = self.holds.clone();
        }
        config.policy.max_body = config.policy.max_body.min(store.terms().body_bytes);
        self.quotas_seen = 0;
        let remains = std::mem::take(&mut self.remains);
        self.shared.count(&Counted::of(&remains.doubtful.applied(recovered.next_lsn)));
        let mut driver = Driver::new(store, recovered, config, now).map_err(StartError::Policy)?;
        driver.take_over(remains);
        Ok(driver)
    }

    fn serve(&mut self, mut driver: Box<ShardDriver>) -> AfterTurn {
        // The rest of the former step comes first, unchanged.
        let is_fresh = !driver.is_full() && self.submissions.is_empty();
        self.shared.begin_work();
        if is_fresh {
            self.inbox.take(&mut self.submissions);
            self.crowd = self.submissions.len().max(self.crowd - self.crowd.div_ceil(8));
        }
        let now = self.asleep_since.unwrap_or_else(|| self.shared.now());
        let closed = driver.is_busy(now) && !self.shared.wished(ThreadCommand::EndWaits);
        let gate = if closed { Gate::Closed } else { Gate::Open };
        self.waiting.sort(&mut self.submissions, gate, self.shared.clock().running());
        if let Some((version, quotas)) = self.quotas.newer(self.quotas_seen) {
            self.quotas_seen = version;
            driver.set_quotas(now, quotas);
        }
        self.refresh_figures(&mut driver);
        // This is done every round: a reserve may have arrived before the door was closed.
        let waits_ended = self.shared.wished(ThreadCommand::EndWaits);
        if waits_ended {
            driver.end_waits();
        }
        if waits_ended || !driver.engine().has_quotas() {
            let before = if is_fresh { 0 } else { self.submissions.len() };
            self.turns.give_back(before, &mut self.submissions);
        } else if is_fresh {
            self.turns.sort(&mut self.submissions, |queue| driver.tenant_of(queue));
        }
        if let Err(error) = driver.step(now, &mut self.submissions) {
            self.waiting.give_back(&mut self.submissions);
            self.turns.give_back(0, &mut self.submissions);
            return self.failed(*driver, error);
        }
        self.shared.set_level(driver.reached());
        testing::place("driver");
        if let Some(bug) = self.shared.bug() {
            driver.end_waits();
            // Accepted changes become durable if possible; the bug is reported in any case.
            self.shared.fold_figures(&driver.figures(now));
            let _ = driver.close(now);
            return AfterTurn::Ended(DriverEnd::Failed(bug.clone()));
        }
        let done = self.submissions.is_empty() && !driver.is_waiting_for_store();
        if waits_ended && self.shared.wished(ThreadCommand::Stop) && done {
            driver.end_waits();
            self.shared.fold_figures(&driver.figures(now));
            let rest = driver.unreported();
            return AfterTurn::Ended(match driver.close(now) {
                Ok(()) => {
                    self.shared.count(&Counted::of(&rest));
                    DriverEnd::Stopped
                }
                Err(error) => DriverEnd::Failed(error.to_string()),
            });
        }
        let turn = self.nap(&mut driver);
        self.phase = Phase::Serving(driver);
        turn
    }

    /// Reports the store's figures on request, and once a second however busy the driver is. This happens before a
    /// step, so that a caller who requests figures and then submits an operation gets figures from after the request.
    fn refresh_figures(&mut self, driver: &mut ShardDriver) {
        let running = self.shared.clock().running();
        if self.shared.take_figures_wanted() || running >= self.figures_due {
            self.figures_due = running.saturating_add(FIGURES);
            self.shared.set_figures(driver.figures(self.shared.now()));
        }
    }

    fn nap(&mut self, driver: &mut ShardDriver) -> AfterTurn {
        let most =
            if mutant::is(Mutant::OneLongSleep) { u64::MAX / 2 } else { self.config.policy.max_sleep_ms };
        let longest = Duration::from_millis(most).min(self.waiting.nap());
        if !self.turns.is_empty() && !driver.is_full() {
            return AfterTurn::Again;
        }
        // The clock is read again: the step may have taken long.
        let now = self.shared.now();
        if !self.submissions.is_empty() && !driver.is_full() {
            return AfterTurn::Again;
        }
        let wanted = match driver.next_wakeup(now) {
            None => longest,
            Some(t) if t <= now.engine => return AfterTurn::Again,
            Some(t) => longest.min(Duration::from_millis(t.0 - now.engine.0)),
        };
        if wanted == longest {
            // Done while nothing else is waiting, so that the figures of a driver that sleeps are those of its last
            // step.
            self.shared.set_figures(driver.figures(now));
        }
        if mutant::is(Mutant::LentTurnStale) {
            self.asleep_since.get_or_insert(now);
        }
        AfterTurn::Sleep(if driver.is_full() {
            SleepLimit { until: WakeOn::Wake, at_most: wanted }
        } else if driver.is_waiting_for_store() {
            // Submissions that arrive during the sync under way become one group, for one write and one sync. Grants
            // do not need the sync, so the sleep is short even where syncs are long.
            SleepLimit { until: WakeOn::Gathering, at_most: wanted.min(GATHER) }
        } else if driver.leaves_unsynced() {
            SleepLimit { until: WakeOn::Soon, at_most: wanted.min(UNSYNCED) }
        } else {
            self.shared.rest(now.engine, driver.next_event());
            SleepLimit { until: WakeOn::Anything, at_most: wanted }
        })
    }

    /// Handles a failed store. The outcome of operations in progress is unknown; the store is reopened under a new
    /// epoch.
    fn failed(&mut self, mut driver: ShardDriver, error: StoreError) -> AfterTurn {
        tracing::error!(%error, "the store failed; answers under way are unknown; opening it again");
        self.holds = driver.engine().holds();
        self.shared.fold_figures(&driver.figures(self.shared.now()));
        self.keep_remains(driver.fail(&error));
        if !self.remains.goes_on() {
            refuse(&mut self.submissions, &not_applied(&error));
        }
        self.reopen(error, self.first_pause())
    }

    /// Keeps what a driver has left for the next one. What the store has confirmed is counted now, because there may be
    /// no next one.
    fn keep_remains(&mut self, remains: Leftover) {
        self.shared.count(&Counted::of(&remains.confirmed));
        self.remains = remains;
    }

    /// Reopens the store, if its pause is over.
    fn reopen(&mut self, error: StoreError, pause: ReopenPause) -> AfterTurn {
        self.shared.set_trouble(Some(error.to_string()));
        if let Some(bug) = self.shared.bug() {
            return AfterTurn::Ended(DriverEnd::Failed(bug.clone()));
        }
        if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Closed)
            || self.shared.wished(ThreadCommand::Stop)
        {
            return AfterTurn::Ended(DriverEnd::Failed(error.to_string()));
        }
        if !self.remains.goes_on() {
            self.refuse_waiting(&not_applied(&error));
        }
        if error.kind() == ErrorKind::Fenced && self.fenced == WhenFenced::End {
            return AfterTurn::Ended(DriverEnd::Fenced(error.to_string()));
        }
        let left = pause.until.saturating_sub(self.shared.clock().running());
        if !left.is_zero() {
            self.phase = Phase::Failed(error, pause);
            return AfterTurn::Sleep(SleepLimit { until: WakeOn::Soon, at_most: left });
        }
        let (opener, waker) = (&mut self.opener, waker(&self.inbox));
        let opened = self.shared.in_store(|| opener(waker)).map_err(StartError::Store);
        match opened.and_then(|store| self.driver(store)) {
            Ok(driver) => {
                self.phase = Phase::Opening(Box::new(driver), pause);
                AfterTurn::Again
            }
            Err(error) => self.not_open(error, pause),
        }
    }

    fn not_open(&mut self, error: StartError, mut pause: ReopenPause) -> AfterTurn {
        match error {
            StartError::Store(error) => {
                let refusal = not_applied(&error);
                self.remains = std::mem::take(&mut self.remains).refuse(&refusal);
                refuse(&mut self.submissions, &refusal);
                pause.until = self.shared.clock().running() + pause.next.take();
                self.phase = Phase::Failed(error, pause);
                AfterTurn::Again
            }
            StartError::Policy(why) => AfterTurn::Ended(DriverEnd::Failed(why.to_string())),
            StartError::Thread(why) => AfterTurn::Ended(DriverEnd::Failed(why.to_string())),
        }
    }

    fn first_pause(&self) -> ReopenPause {
        let longest = match self.fenced {
            WhenFenced::OpenAgain => LONGEST_PAUSE,
            WhenFenced::End => LONGEST_PAUSE_OF_A_NODE,
        };
        let next = RetryPause::new(FIRST_PAUSE, longest, &self.jitter);
        ReopenPause { until: self.shared.clock().running(), next }
    }

    /// Answers waiting submissions while there is no store: they were not applied.
    fn refuse_waiting(&self, refusal: &CallError) {
        let mut waiting = Vec::new();
        self.inbox.take(&mut waiting);
        refuse(&mut waiting, refusal);
    }
}

fn refuse(submissions: &mut Vec<Submission>, refusal: &CallError) {
    for Submission { ops, answer, .. } in submissions.drain(..) {
        // The caller is gone: there is nothing to send.
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
