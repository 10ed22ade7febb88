//! A target on this node: its entry in the list of targets, its ticket, its pusher, and its status.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use duewheel::Duewheel;
use duewheel::core::name::QueueName;
use duewheel::core::time::{EngineMs, Now, WallMs};
use tokio::sync::watch;

use super::latest::LatestOfTargets;
use super::ticket::Ticket;
use crate::breaker::{BreakerStage, Failing};
use crate::client::PushClient;
use crate::pusher::{PushCounts, PushJob, Pusher, PusherError, PusherParts};
use crate::target::PushTarget;

/// Whether messages are delivered to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetStage {
    /// Messages are delivered.
    Active,
    /// Messages are delivered one at a time, when the target's `Retry-After` has passed, until one succeeds.
    Slowed,
    /// The breaker of the target is open: messages wait, and a probe is sent now and then.
    Open,
    /// Messages wait until it is resumed.
    Paused,
}

impl TargetStage {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            TargetStage::Active => "active",
            TargetStage::Slowed => "slowed",
            TargetStage::Open => "open",
            TargetStage::Paused => "paused",
        }
    }
}

/// A target as the node sees it that pushes to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetStatus {
    /// Whether messages are delivered to it.
    pub stage: TargetStage,
    /// Why it is paused, or the class of the last failure of an open or slowed one.
    pub reason: Option<String>,
    /// Since when.
    pub since: SystemTime,
    /// How attempts have ended since this node began to push to it.
    pub counts: PushCounts,
    /// Requests whose message is not settled.
    pub in_flight: usize,
    /// The current run of failures, if any.
    pub failing: Option<FailingTarget>,
}

/// Dependencies shared by all runners of a node.
#[derive(Clone, Debug)]
pub(crate) struct RunnerContext {
    pub(crate) wheel: Duewheel,
    pub(crate) store: String,
    pub(crate) parts: PusherParts,
    /// The newest attempts to all targets.
    pub(crate) latest: LatestOfTargets,
}

/// A target on this node.
#[derive(Debug)]
pub(crate) struct TargetRunner {
    pub(crate) entry: TargetEntry,
    pub(crate) ticket: Option<Ticket>,
    pusher: Pusher,
    /// The present stage, its reason, and since when, in ms since 1970.
    shown: (TargetStage, Option<String>, WallMs),
    /// The revision whose pause was reported.
    reported: Option<u64>,
}

impl TargetRunner {
    pub(crate) fn new(
        context: &RunnerContext,
        entry: &TargetEntry,
        failing: Option<FailingTarget>,
    ) -> Result<Self, PusherError> {
        let parts = PusherParts {
            name: format!("the pusher of the target {}", entry.name),
            latest: Some(context.latest.list_of(&entry.name)),
            ..context.parts.clone()
        };
        let pusher = Pusher::start_job(&context.wheel, &context.store, job(entry), parts)?;
        let now = context.wheel.client().now();
        if let Some(FailingTarget { since, failures }) = failing {
            let earlier_ms = now.wall.0.saturating_sub(since.0);
            pusher.has_failed(Failing { since: now.engine, earlier_ms, failures });
        }
        let since = now.wall;
        Ok(TargetRunner {
            entry: entry.clone(),
            ticket: None,
            pusher,
            shown: (TargetStage::Active, None, since),
            reported: None,
        })
    }

    /// Takes over an edit: requests under way end as they were begun. Other queues alone leave the breaker as it is.
    pub(crate) fn edit(&mut self, entry: &TargetEntry) {
        if self.entry.revision != entry.revision {
            self.pusher.change(job(entry));
            self.reported = None;
        } else if self.entry.queues != entry.queues {
            self.pusher.serve(entry.queues.clone());
        } else {
            return;
        }
        self.entry = entry.clone();
    }

    /// Begins requests for as long as it has the ticket, and none without it.
    pub(crate) fn follow_ticket(&self) {
        self.pusher.open_until(self.ticket.map_or(EngineMs(0), |ticket| ticket.until));
    }

    /// Requests that are not settled.
    pub(crate) fn in_flight(&self) -> usize {
        self.pusher.in_flight()
    }

    /// The reason of a pause that its target has asked for, or that five days of failures have, if it is not reported.
    pub(crate) fn unreported(&self) -> Option<String> {
        match self.pusher.stage() {
            BreakerStage::Paused { reason } if self.reported != Some(self.entry.revision) => Some(reason),
            BreakerStage::Paused { .. } | BreakerStage::Open { .. } | BreakerStage::Closed => None,
        }
    }

    /// The pause of the present revision is recorded.
    pub(crate) fn is_reported(&mut self) {
        self.reported = Some(self.entry.revision);
    }

    /// Returns its present status.
    pub(crate) fn status(&mut self, now: Now) -> TargetStatus {
        let wall = |since: EngineMs| WallMs(now.wall.0.saturating_sub(now.engine.0.saturating_sub(since.0)));
        let breaker = self.pusher.breaker();
        let failed = || breaker.last_failure().map(|class| class.to_string());
        let (stage, reason, since) = match breaker.stage() {
            BreakerStage::Closed => match breaker.slowed_since() {
                Some(since) => (TargetStage::Slowed, failed(), Some(wall(since))),
                None => (TargetStage::Active, None, None),
            },
            BreakerStage::Open { since, .. } => (TargetStage::Open, failed(), Some(wall(*since))),
            BreakerStage::Paused { reason } => (TargetStage::Paused, Some(reason.clone()), None),
        };
        if self.shown.0 != stage {
            self.shown.2 = since.unwrap_or(now.wall);
            let (name, since_ms) = (&*self.entry.name, now.wall.0.saturating_sub(self.shown.2.0));
            let (is, was) = (stage.as_str(), self.shown.0.as_str());
            match stage {
                TargetStage::Active => {
                    tracing::info!(target = name, is, was, "messages of a target are delivered")
                }
                TargetStage::Slowed | TargetStage::Open | TargetStage::Paused => {
                    tracing::warn!(target = name, is, was, reason, since_ms, "messages of a target wait");
                }
            }
        }
        self.shown = (stage, reason.clone(), self.shown.2);
        TargetStatus {
            stage,
            reason,
            since: self.shown.2.to_system_time(),
            counts: self.pusher.counts(),
            in_flight: self.pusher.in_flight(),
            failing: breaker.failing().map(|failing| FailingTarget {
                since: WallMs(now.wall.0.saturating_sub(failing.lasts_ms(now.engine))),
                failures: failing.failures,
            }),
        }
    }

    /// The pusher, to be stopped, and the ticket, to be given back then.
    pub(crate) fn leave(self) -> (Pusher, Option<Ticket>) {
        (self.pusher, self.ticket)
    }
}

fn job(entry: &TargetEntry) -> PushJob {
    PushJob::new(PushClient::new(entry.target.clone()), entry.queues.clone())
}

/// A target and its queues, for a delivery worker. Its secrets are in the clear, in memory only; `Debug` shows none.
#[derive(Clone, Debug)]
pub struct TargetEntry {
    /// The name of the target.
    pub name: String,
    /// Where its requests go.
    pub target: Arc<PushTarget>,
    /// The queues that are delivered to it. Without one it does nothing.
    pub queues: Vec<QueueName>,
    /// Why it is paused, if it is.
    pub paused: Option<String>,
    /// A number that is another one after each edit, pause and resume: its breaker begins anew. Its queues may change
    /// without that.
    pub revision: u64,
}

/// All targets as they are now. Cheap to clone; clones share them.
///
/// # What survives a crash
/// Nothing: the book is filled from the records of targets.
#[derive(Clone, Debug)]
pub struct TargetBook {
    entries: Arc<watch::Sender<Arc<Vec<TargetEntry>>>>,
}

impl Default for TargetBook {
    fn default() -> Self {
        TargetBook { entries: Arc::new(watch::Sender::new(Arc::default())) }
    }
}

impl TargetBook {
    /// A book without targets.
    pub fn new() -> Self {
        TargetBook::default()
    }

    /// Replaces all entries. Workers follow within moments.
    pub fn set(&self, entries: Vec<TargetEntry>) {
        self.entries.send_replace(Arc::new(entries));
    }

    /// All entries, again whenever one of them has changed.
    pub fn watch(&self) -> watch::Receiver<Arc<Vec<TargetEntry>>> {
        self.entries.subscribe()
    }
}

/// A target that has done nothing but fail for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailingTarget {
    /// When that began, by the wall clock.
    pub since: WallMs,
    /// The failures since then, as far as they were counted.
    pub failures: u32,
}

/// The records that workers write and read about their targets: pauses and failures.
pub trait BookReport: Send + Sync + fmt::Debug + 'static {
    /// The target has said that it takes no more messages, or has failed for days: it is to be paused with this reason,
    /// unless it was edited since `revision`. The worker sends nothing more to it, and asks again after an error.
    ///
    /// # Errors
    /// In words, when the pause was not recorded.
    fn pause<'a>(
        &'a self,
        name: &'a str,
        revision: u64,
        reason: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

    /// The recorded failures of a target, read when a worker begins to push to it: five days of failures are counted
    /// over all processes. `None` if nothing is recorded, or the target was edited since `revision`.
    fn failing<'a>(
        &'a self,
        _name: &'a str,
        _revision: u64,
    ) -> Pin<Box<dyn Future<Output = Option<FailingTarget>> + Send + 'a>> {
        Box::pin(std::future::ready(None))
    }
}
