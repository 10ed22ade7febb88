//! What a runner shares with its clients.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use duewheel_core::store::Level;
use duewheel_core::time::Now;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::figures::{Counted, Figures};
use crate::health::{Health, ThreadIn};
use crate::inbox::Inbox;
use crate::timekeeper::Timekeeper;

/// What a driver shares with its clients.
#[derive(Debug)]
pub struct Shared {
    /// What is reached now; at first what the store hopes for.
    level: Mutex<Level>,
    clock: Arc<dyn Clock>,
    /// `None` until the store was opened for the first time: before, there is no engine time.
    keeper: Mutex<Option<Timekeeper>>,
    pulse: Mutex<Pulse>,
    trouble: Mutex<Option<String>>,
    /// Of the reign under way, and what earlier ones have counted.
    figures: Mutex<(Figures, Counted)>,
    /// Somebody wants the figures of a moment from now on.
    figures_wanted: AtomicBool,
    wish: AtomicU64,
    /// A bug elsewhere than in the driver; it ends the driver, too.
    bug: OnceLock<String>,
    ended: watch::Sender<Option<End>>,
}

impl Shared {
    /// For a driver by this clock, which has not ended.
    pub fn new(level: Level, clock: Arc<dyn Clock>) -> Self {
        Shared {
            level: Mutex::new(level),
            keeper: Mutex::new(None),
            pulse: Mutex::new(Pulse::new(clock.running())),
            trouble: Mutex::new(None),
            figures: Mutex::default(),
            figures_wanted: AtomicBool::new(false),
            wish: AtomicU64::new(Wish::Run as u64),
            bug: OnceLock::new(),
            ended: watch::Sender::new(None),
            clock,
        }
    }

    /// Where its time comes from.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(crate) fn keeper(&self) -> Option<Timekeeper> {
        *lock(&self.keeper)
    }

    /// From now on engine time is told by this.
    pub fn set_keeper(&self, keeper: Timekeeper) {
        *lock(&self.keeper) = Some(keeper);
    }

    /// The loop has come round.
    pub fn tick(&self) {
        let now = self.clock.running();
        *lock(&self.pulse) = Pulse::new(now);
    }

    /// The loop has not come round, for want of a store: its thread is well.
    pub fn waits_for_store(&self) {
        let now = self.clock.running();
        let mut pulse = lock(&self.pulse);
        (pulse.seen, pulse.waits) = (now, ThreadIn::Store);
    }

    /// Makes a call of the store on the loop's thread: the time that it takes is the store's, not the thread's.
    pub fn in_store<T>(&self, call: impl FnOnce() -> T) -> T {
        lock(&self.pulse).thread = ThreadIn::Store;
        let result = call();
        let now = self.clock.running();
        let mut pulse = lock(&self.pulse);
        (pulse.seen, pulse.thread) = (now, ThreadIn::Ours);
        result
    }

    /// What [`Health::trouble`] says while the driver lives; `None`: all is well.
    pub fn set_trouble(&self, trouble: Option<String>) {
        *lock(&self.trouble) = trouble;
    }

    pub(crate) fn set_figures(&self, figures: Figures) {
        lock(&self.figures).0 = figures;
    }

    /// A reign is over, with these figures: what it has counted stays.
    pub(crate) fn fold_figures(&self, last: &Figures) {
        let mut figures = lock(&self.figures);
        figures.1.add(&last.counted());
        figures.0 = Figures::default();
    }

    /// What all reigns have counted.
    pub(crate) fn counted(&self) -> Counted {
        let figures = lock(&self.figures);
        let mut counted = figures.1.clone();
        counted.add(&figures.0.counted());
        counted
    }

    /// Whether the figures have been wanted since the last call.
    pub(crate) fn take_figures_wanted(&self) -> bool {
        self.figures_wanted.load(Ordering::Relaxed) && self.figures_wanted.swap(false, Ordering::AcqRel)
    }

    /// The driver has ended.
    pub fn set_ended(&self, end: End) {
        self.ended.send_replace(Some(end));
    }
}

/// When the thread of a loop was seen, by [`Clock::running`].
#[derive(Clone, Copy, Debug)]
struct Pulse {
    /// The loop came round.
    tick: Duration,
    /// That, or a call of the store returned.
    seen: Duration,
    /// Where the thread is now.
    thread: ThreadIn,
    /// What holds up the threads that this one looks after.
    waits: ThreadIn,
}

impl Pulse {
    fn new(now: Duration) -> Self {
        Pulse { tick: now, seen: now, thread: ThreadIn::Ours, waits: ThreadIn::Ours }
    }
}

/// How a driver ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It was asked to.
    Stopped,
    /// Another owner has its shard; a sentence for people.
    Fenced(String),
    /// Its store cannot be had any more, or a bug of ours; a sentence for people.
    Failed(String),
}

/// What the owner wants of the driver's thread; only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wish {
    /// It runs on.
    Run,
    /// Reserves that wait end with what there is.
    EndWaits,
    /// It ends once everything that was accepted is durable.
    Stop,
}

impl Shared {
    /// What answers mean now.
    pub fn level(&self) -> Level {
        *lock(&self.level)
    }

    /// From now on answers mean this.
    pub fn set_level(&self, level: Level) {
        *lock(&self.level) = level;
    }

    pub(crate) fn now(&self) -> Now {
        self.keeper().unwrap_or_default().now(self.clock.read())
    }

    /// How the driver is doing.
    pub fn health(&self) -> Health {
        let pulse = *lock(&self.pulse);
        let age = |since| {
            let age = self.clock.running().saturating_sub(since).as_millis();
            u64::try_from(age).unwrap_or(u64::MAX)
        };
        let (quiet_ms, thread) = match (pulse.thread, pulse.waits) {
            (ThreadIn::Store, _) => (0, ThreadIn::Store),
            (ThreadIn::Ours, waits) => (age(pulse.seen), waits),
        };
        let trouble = match &*self.ended.borrow() {
            Some(End::Stopped) => Some("shut down".to_owned()),
            Some(End::Fenced(why) | End::Failed(why)) => Some(why.clone()),
            None => self.bug.get().cloned().or_else(|| lock(&self.trouble).clone()),
        };
        Health { tick_age_ms: age(pulse.tick), quiet_ms, thread, trouble }
    }

    pub(crate) fn figures(&self) -> Figures {
        lock(&self.figures).0.clone()
    }

    pub(crate) fn want_figures(&self) {
        self.figures_wanted.store(true, Ordering::Release);
    }

    /// Wants this of the driver, and wakes it.
    pub fn wish(&self, wish: Wish, inbox: &Inbox) {
        self.wish.fetch_max(wish as u64, Ordering::SeqCst);
        inbox.wake();
    }

    /// Something of ours has panicked: nothing is trusted any more, and the driver ends.
    pub fn end(&self, bug: String, inbox: &Inbox) {
        tracing::error!(%bug, "closing");
        let _ = self.bug.set(bug); // the first one counts
        inbox.wake();
    }

    /// The bug for which the driver must end, if there is one.
    pub fn bug(&self) -> Option<&String> {
        self.bug.get()
    }

    /// Waits until the driver has ended, and says how.
    pub async fn ended(&self) -> End {
        let mut ended = self.ended.subscribe();
        match ended.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or(End::Stopped),
            Err(_) => End::Stopped,
        }
    }

    /// Whether the driver has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Whether the owner wants this, or more.
    pub fn wished(&self, wish: Wish) -> bool {
        self.wish.load(Ordering::SeqCst) >= wish as u64
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is said of a panic.
pub fn bug(place: &str, what: &str) -> String {
    format!("a bug in duewheel: {place} has panicked: {what}")
}

/// Kept by a task of ours while it runs: if it panics, the handle closes with an error. A panic that nobody sees would leave
/// messages that are never handed out, or a copy that is never made.
#[derive(Debug)]
pub struct EndOnPanic {
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    place: &'static str,
}

impl EndOnPanic {
    /// For a task of this name of the driver with this inbox.
    pub fn new(shared: &Arc<Shared>, inbox: &Arc<Inbox>, place: &'static str) -> Self {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::clock::Reading;

    /// A clock whose seconds a test counts.
    #[derive(Debug, Default)]
    struct Counted(AtomicU64);

    impl Clock for Counted {
        fn read(&self) -> Reading {
            Reading { elapsed_ns: 0, wall_ns: 0 }
        }
        fn running(&self) -> Duration {
            Duration::from_secs(self.0.load(Ordering::SeqCst))
        }
    }

    #[test]
    fn time_in_the_store_is_not_counted_as_a_stall_of_the_thread() {
        let clock = Arc::new(Counted::default());
        let shared = Shared::new(Level::Memory, clock.clone());
        let pass = |seconds| {
            clock.0.fetch_add(seconds, Ordering::SeqCst);
        };
        let health = || {
            let Health { tick_age_ms, quiet_ms, thread, trouble: _ } = shared.health();
            (tick_age_ms / 1_000, quiet_ms / 1_000, thread)
        };
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
        // What looks after other threads is held up by their stores, and stalls like any other.
        shared.waits_for_store();
        pass(1);
        assert_eq!(health(), (811, 1, ThreadIn::Store));
        pass(300);
        assert_eq!(health(), (1_111, 301, ThreadIn::Store));
        shared.tick();
        assert_eq!(health(), (0, 0, ThreadIn::Ours));
    }
}
