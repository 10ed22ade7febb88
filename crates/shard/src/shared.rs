//! What a runner shares with its clients.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use duewheel_core::store::Level;
use duewheel_core::time::Now;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::figures::{Counted, Figures};
use crate::health::Health;
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
    /// When the last turn ended, by [`Clock::running`].
    tick: Mutex<Duration>,
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
            tick: Mutex::new(clock.running()),
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
        *lock(&self.tick) = self.clock.running();
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
        let age = self.clock.running().saturating_sub(*lock(&self.tick)).as_millis();
        let trouble = match &*self.ended.borrow() {
            Some(End::Stopped) => Some("shut down".to_owned()),
            Some(End::Fenced(why) | End::Failed(why)) => Some(why.clone()),
            None => self.bug.get().cloned().or_else(|| lock(&self.trouble).clone()),
        };
        Health { tick_age_ms: u64::try_from(age).unwrap_or(u64::MAX), trouble }
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
