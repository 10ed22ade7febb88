//! State that a runner shares with its clients: health, figures, and the commands of its owner.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use duewheel_core::store::Level;
use duewheel_core::time::{EngineMs, Now};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::error::CallError;
use crate::figures::{Counted, Figures};
use crate::inbox::{Admission, Inbox};
use crate::timekeeper::Timekeeper;

/// State that a driver shares with its clients.
#[derive(Debug)]
pub struct DriverShared {
    /// The level reached now; at first the one that the store expects to reach.
    level: Mutex<Level>,
    clock: Arc<dyn Clock>,
    /// `None` until the store was opened for the first time: before that there is no engine time.
    keeper: Mutex<Option<Timekeeper>>,
    pulse: Mutex<Pulse>,
    trouble: Mutex<Option<String>>,
    hanging: Mutex<Option<String>>,
    /// The figures of the current run, and the counts of earlier ones.
    figures: Mutex<(Figures, Counted)>,
    /// Set when a caller has requested figures as of now or later.
    figures_wanted: AtomicBool,
    wish: AtomicU64,
    /// The engine time up to which everything was done when the driver went to sleep last, plus 1; 0 while it works.
    rested: AtomicU64,
    /// When time next causes work of a driver that sleeps; `u64::MAX`: never.
    next_event: AtomicU64,
    /// A bug outside the driver; it also ends the driver.
    bug: OnceLock<String>,
    ended: watch::Sender<Option<DriverEnd>>,
}

impl DriverShared {
    /// The driver sleeps until something comes in, or a later time: everything up to this time is done. `next` is its
    /// next event.
    pub fn rest(&self, at: EngineMs, next: Option<EngineMs>) {
        self.next_event.store(next.map_or(u64::MAX, |next| next.0), Ordering::SeqCst);
        self.rested.store(at.0.saturating_add(1), Ordering::SeqCst);
    }

    /// The driver is about to take what came in.
    pub(crate) fn begin_work(&self) {
        self.rested.store(0, Ordering::SeqCst);
    }

    /// How long it takes until the next event of a driver that sleeps; `None`: there is none.
    pub(crate) fn next_event_in(&self) -> Option<Duration> {
        let next = self.next_event.load(Ordering::SeqCst);
        (next != u64::MAX).then(|| Duration::from_millis(next.saturating_sub(self.now().engine.0)))
    }

    /// Whether everything that was to be done by now is done: what is due is ready, what has run out is ended. On a clock
    /// that does not stand this is true only for moments.
    pub fn has_caught_up(&self) -> bool {
        self.rested.load(Ordering::SeqCst) > self.now().engine.0
    }

    /// The state of a driver with this clock, which has not ended.
    pub fn new(level: Level, clock: Arc<dyn Clock>) -> Self {
        DriverShared {
            level: Mutex::new(level),
            keeper: Mutex::new(None),
            pulse: Mutex::new(Pulse::new(clock.running())),
            trouble: Mutex::new(None),
            hanging: Mutex::new(None),
            figures: Mutex::default(),
            figures_wanted: AtomicBool::new(false),
            wish: AtomicU64::new(ThreadCommand::Run as u64),
            rested: AtomicU64::new(0),
            next_event: AtomicU64::new(u64::MAX),
            bug: OnceLock::new(),
            ended: watch::Sender::new(None),
            clock,
        }
    }

    /// The source of its time.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(crate) fn keeper(&self) -> Option<Timekeeper> {
        *lock(&self.keeper)
    }

    /// Sets the source of engine time.
    pub fn set_keeper(&self, keeper: Timekeeper) {
        *lock(&self.keeper) = Some(keeper);
    }

    /// Records that the loop has completed a round, and the work done by then. An observer learns of a driver that does
    /// round after round, and comes on with nothing of what waits.
    pub fn tick(&self, work: DriverWork) {
        let now = self.clock.running();
        let mut pulse = lock(&self.pulse);
        let last = pulse.work;
        let since = |waits: bool, goes_on: bool, since: Option<Duration>| {
            (waits && !goes_on).then(|| since.unwrap_or(now))
        };
        let stuck = since(work.has_undecided, work.decided != last.decided, pulse.stuck);
        *pulse = Pulse {
            stuck,
            in_store: if stuck.is_some() { pulse.in_store } else { Duration::ZERO },
            unconfirmed: since(work.awaits_position, work.confirmed != last.confirmed, pulse.unconfirmed),
            unfetched: since(work.awaits_fetch, work.fetched != last.fetched, pulse.unfetched),
            work,
            ..Pulse::new(now)
        };
    }

    /// Records that the loop completes no round because it has no store: its thread works.
    pub fn waits_for_store(&self) {
        let now = self.clock.running();
        let mut pulse = lock(&self.pulse);
        (pulse.seen, pulse.waits) = (now, ThreadIn::Store);
    }

    /// Makes a call to the store on the loop's thread: its duration is attributed to the store, not to the thread.
    pub fn in_store<T>(&self, call: impl FnOnce() -> T) -> T {
        {
            let mut pulse = lock(&self.pulse);
            pulse.thread = ThreadIn::Store;
            pulse.entered = pulse.stuck.map(|_| self.clock.running());
        }
        let result = call();
        let now = self.clock.running();
        let mut pulse = lock(&self.pulse);
        (pulse.seen, pulse.thread) = (now, ThreadIn::Ours);
        if let Some(entered) = pulse.entered.take() {
            pulse.in_store += now.saturating_sub(entered);
        }
        result
    }

    /// Sets [`Health::trouble`] while the driver lives; `None`: no trouble.
    pub fn set_trouble(&self, trouble: Option<String>) {
        *lock(&self.trouble) = trouble;
    }

    /// Sets [`Health::hanging`].
    pub fn set_hanging(&self, hanging: Option<String>) {
        *lock(&self.hanging) = hanging;
    }

    pub(crate) fn set_figures(&self, figures: Figures) {
        lock(&self.figures).0 = figures;
    }

    /// Ends a run with these figures: its counts are kept.
    pub(crate) fn fold_figures(&self, last: &Figures) {
        let mut figures = lock(&self.figures);
        figures.1.add(&last.counted());
        figures.0 = Figures::default();
    }

    /// Adds counts of a run that has ended.
    pub(crate) fn count(&self, more: &Counted) {
        lock(&self.figures).1.add(more);
    }

    /// The counts of all runs.
    pub(crate) fn counted(&self) -> Counted {
        let figures = lock(&self.figures);
        let mut counted = figures.1.clone();
        counted.add(&figures.0.counted());
        counted
    }

    /// Whether figures were requested since the last call.
    pub(crate) fn take_figures_wanted(&self) -> bool {
        self.figures_wanted.load(Ordering::Relaxed) && self.figures_wanted.swap(false, Ordering::AcqRel)
    }

    /// Records that the driver has ended.
    pub fn set_ended(&self, end: DriverEnd) {
        self.ended.send_replace(Some(end));
    }
}

/// A thread that does not come on for so long has stalled: rounds come each second.
const STALL: Duration = Duration::from_secs(5);

/// When the thread of a loop last showed activity, by [`Clock::running`].
#[derive(Clone, Copy, Debug)]
struct Pulse {
    /// The loop completed a round.
    tick: Duration,
    /// The loop completed a round, or a call to the store returned.
    seen: Duration,
    /// The first of the last rounds, all of which decided nothing, though operations waited for that.
    stuck: Option<Duration>,
    /// The time since then that the thread has been in calls to the store.
    in_store: Duration,
    /// The first of the last rounds in all of which the store confirmed nothing, though answers waited for that.
    unconfirmed: Option<Duration>,
    /// The first of the last rounds in all of which the store fetched nothing, though calls waited for that.
    unfetched: Option<Duration>,
    /// The work done by the end of the last round.
    work: DriverWork,
    /// Where the thread is now.
    thread: ThreadIn,
    /// When the thread of a stuck driver began its call to the store.
    entered: Option<Duration>,
    /// Where the threads that this one supervises are delayed: [`ThreadIn::Store`] while one has no store.
    waits: ThreadIn,
}

impl Pulse {
    fn new(now: Duration) -> Self {
        Pulse {
            tick: now,
            seen: now,
            stuck: None,
            in_store: Duration::ZERO,
            unconfirmed: None,
            unfetched: None,
            work: DriverWork::default(),
            thread: ThreadIn::Ours,
            entered: None,
            waits: ThreadIn::Ours,
        }
    }

    /// How long the thread has decided nothing of what waits, its calls to the store not counted.
    fn stuck_for(&self, now: Duration) -> Duration {
        let until = self.entered.unwrap_or(now).saturating_sub(self.in_store);
        self.stuck.map_or(Duration::ZERO, |since| until.saturating_sub(since))
    }

    /// How long the store has reported nothing of what calls wait for.
    fn unreported_for(&self, now: Duration) -> Duration {
        let first = self.unconfirmed.into_iter().chain(self.unfetched).min();
        first.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }
}

/// How a driver ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverEnd {
    /// The owner of the driver has ended it.
    Stopped,
    /// Another owner has the shard; the text explains it.
    Fenced(String),
    /// The store is permanently unavailable, or there is a bug in duewheel; the text explains it.
    Failed(String),
}

/// The command of the owner for the driver's thread; it only increases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ThreadCommand {
    /// The driver continues.
    Run,
    /// Waiting reserves end with the messages that they have.
    EndWaits,
    /// The driver ends once everything accepted is durable.
    Stop,
}

impl DriverShared {
    /// The current durability of answers.
    pub fn level(&self) -> Level {
        *lock(&self.level)
    }

    /// Sets the durability of answers.
    pub fn set_level(&self, level: Level) {
        *lock(&self.level) = level;
    }

    pub(crate) fn now(&self) -> Now {
        self.keeper().unwrap_or_default().now(self.clock.read())
    }

    /// The state of the driver.
    pub fn health(&self) -> Health {
        let pulse = *lock(&self.pulse);
        let now = self.clock.running();
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (age, quiet) = (now.saturating_sub(pulse.tick), now.saturating_sub(pulse.seen));
        let (stuck, unreported) = (pulse.stuck_for(now), pulse.unreported_for(now));
        let (quiet, thread) = match (pulse.thread, pulse.waits) {
            // The calls to the store of a livelock are short.
            _ if stuck >= STALL => (stuck, ThreadIn::Ours),
            (ThreadIn::Store, _) => (Duration::ZERO, ThreadIn::Store),
            (_, ThreadIn::Ours) if unreported > age && quiet < STALL => (quiet, ThreadIn::Unreported),
            (_, waits) => (quiet, waits),
        };
        let (tick_age_ms, quiet_ms) = (ms(age.max(stuck).max(unreported)), ms(quiet));
        let trouble = match &*self.ended.borrow() {
            Some(DriverEnd::Stopped) => Some("shut down".to_owned()),
            Some(DriverEnd::Fenced(why) | DriverEnd::Failed(why)) => Some(why.clone()),
            None => self.bug.get().cloned().or_else(|| lock(&self.trouble).clone()),
        };
        let hanging = lock(&self.hanging).clone();
        Health { tick_age_ms, quiet_ms, thread, trouble, hanging }
    }

    pub(crate) fn figures(&self) -> Figures {
        lock(&self.figures).0.clone()
    }

    pub(crate) fn want_figures(&self) {
        self.figures_wanted.store(true, Ordering::Release);
    }

    /// Gives the driver a command, and wakes it.
    pub fn wish(&self, wish: ThreadCommand, inbox: &Inbox) {
        self.wish.fetch_max(wish as u64, Ordering::SeqCst);
        inbox.wake();
    }

    /// Records a panic in duewheel: nothing is trusted any more, and the driver ends.
    pub fn end(&self, bug: String, inbox: &Inbox) {
        tracing::error!(%bug, "closing");
        let _ = self.bug.set(bug); // the first one counts
        inbox.wake();
    }

    /// The bug because of which the driver must end, if there is one.
    pub fn bug(&self) -> Option<&String> {
        self.bug.get()
    }

    /// Waits until the driver has ended, and returns how.
    pub async fn ended(&self) -> DriverEnd {
        let mut ended = self.ended.subscribe();
        match ended.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or(DriverEnd::Stopped),
            Err(_) => DriverEnd::Stopped,
        }
    }

    /// Whether the driver has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Whether the owner has given this command, or a greater one.
    pub fn wished(&self, wish: ThreadCommand) -> bool {
        self.wish.load(Ordering::SeqCst) >= wish as u64
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The message about a panic.
pub fn bug(place: &str, what: &str) -> String {
    format!("a bug in duewheel: {place} has panicked: {what}")
}

/// A guard that an internal task holds while it runs: if the task panics, the driver ends with an error. An unnoticed
/// panic would leave messages that are never delivered, or a copy that is never made.
#[derive(Debug)]
pub struct EndOnPanic {
    shared: Arc<DriverShared>,
    inbox: Arc<Inbox>,
    place: &'static str,
}

impl EndOnPanic {
    /// A guard for the task of this name, of the driver with this inbox.
    pub fn new(shared: &Arc<DriverShared>, inbox: &Arc<Inbox>, place: &'static str) -> Self {
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

/// The state of a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The time since the driver's loop last completed a round, in ms. It completes at least one every second. A round
    /// does not count if calls wait, and nothing of them was decided, or the store has reported nothing of them.
    pub tick_age_ms: u64,
    /// How long its thread has shown no activity, in ms: it has neither completed a round that counts nor returned from
    /// a call to the store. 0 while it is in such a call.
    pub quiet_ms: u64,
    /// The reason why the loop does not complete a round that counts.
    pub thread: ThreadIn,
    /// Why the driver does not work; `None` if it does.
    pub trouble: Option<String>,
    /// The shards of a node that have waited for long for a call of their store, in words; `None` if none has.
    pub hanging: Option<String>,
}

/// The work of a driver so far, and what waits for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverWork {
    /// Operations that were decided or refused.
    pub decided: u64,
    /// Whether operations wait that the driver could decide now.
    pub has_undecided: bool,
    /// Reports of a higher position by the store.
    pub confirmed: u64,
    /// Whether answers wait for such a report.
    pub awaits_position: bool,
    /// Look-ups that the store has fetched.
    pub fetched: u64,
    /// Whether calls wait for one.
    pub awaits_fetch: bool,
}

/// Where the driver's thread is, or the threads of a node's shards that do not complete their rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadIn {
    /// In duewheel's own code.
    #[default]
    Ours,
    /// In a call to the store: a disk or a server that does not answer.
    Store,
    /// In duewheel's own code, which goes on; but the store reports nothing of what calls wait for.
    Unreported,
}

/// Ends a driver, or waits for its end. Cheap to clone; all clones control the same driver. Dropping it ends nothing.
#[derive(Clone, Debug)]
pub struct Lifecycle {
    inbox: Arc<Inbox>,
    shared: Arc<DriverShared>,
}

impl Lifecycle {
    /// Controls the driver with this inbox.
    pub fn new(inbox: Arc<Inbox>, shared: Arc<DriverShared>) -> Self {
        Lifecycle { inbox, shared }
    }

    /// Accepts only operations that settle messages from now on; waiting reserves end with the messages that they have.
    pub fn drain(&self) {
        self.inbox.close_door(Admission::Draining);
        self.shared.wish(ThreadCommand::EndWaits, &self.inbox);
    }

    /// Stops accepting operations, and ends once everything accepted is durable.
    pub fn close(&self) {
        self.inbox.close_door(Admission::Closed(CallError::Draining));
        self.stop();
    }

    /// Ends the driver without closing its inbox first.
    pub fn stop(&self) {
        self.shared.wish(ThreadCommand::Stop, &self.inbox);
    }

    /// Whether the driver has ended.
    pub fn has_ended(&self) -> bool {
        self.shared.has_ended()
    }

    /// Waits until the driver has ended, and returns the reason.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn ended(&self) -> DriverEnd {
        self.shared.ended().await
    }

    /// A guard for a task of the owner: if the task panics while it holds the guard, the driver ends. `place` names the
    /// task.
    pub fn end_on_panic(&self, place: &'static str) -> EndOnPanic {
        EndOnPanic::new(&self.shared, &self.inbox, place)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::clock::ClockSample;

    /// A clock whose seconds a test counts.
    #[derive(Debug, Default)]
    struct Counted(AtomicU64);

    impl Clock for Counted {
        fn read(&self) -> ClockSample {
            ClockSample { elapsed_ns: 0, wall_ns: 0 }
        }
        fn running(&self) -> Duration {
            Duration::from_secs(self.0.load(Ordering::SeqCst))
        }
    }

    #[test]
    fn store_time_is_not_a_stall() {
        let (clock, shared) = watched();
        let pass = |seconds| clock.pass(seconds);
        let health = || seconds(&shared);
        pass(7);
        assert_eq!(health(), (7, 7, ThreadIn::Ours));
        shared.in_store(|| {
            pass(600);
            assert_eq!(health(), (607, 0, ThreadIn::Store));
        });
        pass(3);
        assert_eq!(health(), (610, 3, ThreadIn::Ours), "since it was back");
        pass(200);
        assert_eq!(health(), (810, 203, ThreadIn::Ours), "a stall of ours after it");
        // A thread that supervises others is delayed by their stores, and stalls like any other.
        shared.waits_for_store();
        pass(1);
        assert_eq!(health(), (811, 1, ThreadIn::Store));
        pass(300);
        assert_eq!(health(), (1_111, 301, ThreadIn::Store));
        shared.tick(DriverWork::default());
        assert_eq!(health(), (0, 0, ThreadIn::Ours));
    }

    #[test]
    fn undecided_rounds_are_not_activity() {
        let (clock, shared) = watched();
        let stuck = DriverWork { decided: 7, has_undecided: true, ..DriverWork::default() };
        shared.tick(stuck);
        shared.tick(stuck);
        for _ in 0..10 {
            shared.in_store(|| clock.pass(1));
            clock.pass(1);
            shared.tick(stuck);
        }
        assert_eq!(seconds(&shared), (10, 10, ThreadIn::Ours), "time in the store does not count");
        shared.in_store(|| {
            clock.pass(100);
            assert_eq!(seconds(&shared), (100, 10, ThreadIn::Ours));
        });
        assert_eq!(seconds(&shared), (100, 10, ThreadIn::Ours));
        shared.tick(DriverWork { decided: 8, ..stuck });
        assert_eq!(seconds(&shared), (0, 0, ThreadIn::Ours));
    }

    #[test]
    fn single_undecided_round_is_not_stalled() {
        let (clock, shared) = watched();
        let stuck = DriverWork { has_undecided: true, ..DriverWork::default() };
        shared.tick(stuck);
        clock.pass(1);
        shared.tick(stuck);
        shared.in_store(|| {
            clock.pass(100);
            assert_eq!(seconds(&shared), (100, 0, ThreadIn::Store));
        });
    }

    /// Story: while a sync hung on a thread of the store, each probe said that all was well.
    #[test]
    fn rounds_without_reports_await_store() {
        let (clock, shared) = watched();
        let rounds = |work: &mut dyn FnMut(u64) -> DriverWork| {
            for n in 0..10 {
                clock.pass(1);
                shared.tick(work(n));
            }
            seconds(&shared)
        };
        let syncs = DriverWork { awaits_position: true, ..DriverWork::default() };
        let fetches = DriverWork { awaits_fetch: true, ..DriverWork::default() };
        assert_eq!(rounds(&mut |_| DriverWork::default()), (0, 0, ThreadIn::Ours), "nothing waits");
        // Reports of the other kind change nothing.
        assert_eq!(rounds(&mut |n| DriverWork { fetched: n, ..syncs }), (9, 0, ThreadIn::Unreported));
        assert_eq!(rounds(&mut |n| DriverWork { confirmed: n, ..syncs }), (0, 0, ThreadIn::Ours));
        assert_eq!(
            rounds(&mut |n| DriverWork { confirmed: n + 10, ..fetches }),
            (9, 0, ThreadIn::Unreported)
        );
        assert_eq!(rounds(&mut |n| DriverWork { fetched: n + 10, ..fetches }), (0, 0, ThreadIn::Ours));
    }

    /// A thread that stalls in duewheel's own code while a sync is under way.
    #[test]
    fn stall_during_sync_counts_as_ours() {
        let (clock, shared) = watched();
        let syncs = DriverWork { awaits_position: true, ..DriverWork::default() };
        for _ in 0..2 {
            clock.pass(1);
            shared.tick(syncs);
        }
        clock.pass(200);
        assert_eq!(seconds(&shared), (201, 200, ThreadIn::Ours));
    }

    fn watched() -> (Arc<Counted>, DriverShared) {
        let clock = Arc::new(Counted::default());
        (clock.clone(), DriverShared::new(Level::Fsync, clock))
    }

    fn seconds(shared: &DriverShared) -> (u64, u64, ThreadIn) {
        let Health { tick_age_ms, quiet_ms, thread, .. } = shared.health();
        (tick_age_ms / 1_000, quiet_ms / 1_000, thread)
    }

    impl Counted {
        fn pass(&self, seconds: u64) {
            self.0.fetch_add(seconds, Ordering::SeqCst);
        }
    }
}
