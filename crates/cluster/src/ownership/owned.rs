//! The shards of this node: opening, serving, giving up. Each shard has its own thread, store and engine.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{fmt, io};

use duewheel_core::engine::{BoundLeases, Config, GeometryError, Ids};
use duewheel_core::hash_key::HashKey;
use duewheel_core::id::ShardId;
use duewheel_core::policy::Policy;
use duewheel_core::store::{Coordinator, ErrorKind, Level, Node};
use duewheel_shard::clock::Clock;
use duewheel_shard::error::CallError;
use duewheel_shard::fairness::QuotaSource;
use duewheel_shard::inbox::{Admission, Inbox};
use duewheel_shard::random::{Jitter, RetryPause};
use duewheel_shard::runner::{OpenStore, StartError, WhenFenced};
use duewheel_shard::shared::{DriverEnd, DriverShared, Health, ThreadCommand, ThreadIn, bug};
use duewheel_shard::thread::{Shard, panic_text};

use crate::forwarding::routes::{RouteTable, ShardRoute};
use crate::ownership::core::{LocalCounters, ShardStage};

/// The number of shards that are opened at a time: each reads what must be in memory.
const MAX_OPENING: usize = 4;

/// How long a shard may be without its store before its node reports it: an owner that opens it again takes less.
const BRIEFLY: Duration = Duration::from_secs(1);

/// Dependencies and settings that a node needs to open a shard.
pub(crate) struct ShardConfig {
    pub(crate) coordinator: Arc<dyn Coordinator>,
    pub(crate) me: Node,
    pub(crate) shards: u32,
    /// Whether connections of an earlier process are closed.
    pub(crate) is_alone: bool,
    /// The limits of one shard.
    pub(crate) policy: Policy,
    pub(crate) seed: u64,
    /// From which the keys of the shards' hash tables are derived.
    pub(crate) hash_key: HashKey,
    pub(crate) quotas: QuotaSource,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) jitter: Jitter,
    pub(crate) starter: Arc<dyn Starter>,
}

/// Starts shards: on threads of their own, or stepped by a simulation.
pub(crate) trait Starter: Send + Sync {
    /// Opens a shard and serves it until it ends. `tell` is called with the result of the opening, on any thread.
    ///
    /// # Errors
    /// The thread could not be started. Then `tell` is not called.
    fn start(&self, opening: Opening, tell: OpeningCallback) -> io::Result<()>;
}

/// Called once, with the opened shard or the reason why it did not open.
pub(crate) type OpeningCallback = Box<dyn FnOnce(Result<Shard, NotOpened>) + Send>;

/// A shard that is to be opened.
pub(crate) struct Opening {
    pub(crate) opener: OpenStore,
    pub(crate) config: Config,
    pub(crate) quotas: QuotaSource,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Opens each shard on a thread, and serves it on another one.
#[derive(Debug)]
pub(crate) struct OnThreads;

impl Starter for OnThreads {
    fn start(&self, opening: Opening, tell: OpeningCallback) -> io::Result<()> {
        let open = move || {
            let Opening { opener, config, quotas, clock } = opening;
            let open = AssertUnwindSafe(|| Shard::start(opener, config, quotas, clock, WhenFenced::End));
            tell(match catch_unwind(open) {
                Ok(opened) => opened.map_err(NotOpened::Refused),
                Err(panic) => Err(NotOpened::panicked(&*panic)),
            });
        };
        #[expect(clippy::disallowed_methods, reason = "threads that open shards are started here")]
        std::thread::Builder::new().name("duewheel-open".into()).spawn(open).map(drop)
    }
}

/// The shards that this node opens, owns or closes. Only the reconciler's thread uses it.
pub(crate) struct Owned {
    recipe: Arc<ShardConfig>,
    states: Vec<OwnershipState>,
    opened: mpsc::Receiver<OpeningResult>,
    opener: mpsc::Sender<OpeningResult>,
    inbox: Arc<Inbox>,
    routes: RouteTable,
    /// The counters of the shards, for figures.
    locals: LocalCounters,
    runtime: tokio::runtime::Handle,
    pauses: [Duration; 2],
    /// Shards that this node should serve and whose store prevents it.
    ill: BTreeMap<ShardId, ShardFault>,
    /// Shards that this node has served.
    served: BTreeSet<ShardId>,
}

/// Why a shard that this node should own is not served.
struct ShardFault {
    since: Duration,
    why: String,
    /// Whether an operator must act.
    lasting: bool,
}

type OpeningResult = (ShardId, Result<Shard, NotOpened>);

/// Why a shard does not open.
pub(crate) enum NotOpened {
    Refused(StartError),
    /// The thread panicked, which is a bug.
    Panicked(String),
}

impl NotOpened {
    pub(crate) fn panicked(panic: &(dyn std::any::Any + Send)) -> Self {
        NotOpened::Panicked(bug("opening a shard", panic_text(panic)))
    }
}

enum OwnershipState {
    /// The shard is not here, and is not opened before `until`, by [`Clock::running`].
    Away {
        until: Duration,
        pause: RetryPause,
    },
    Opening {
        pause: RetryPause,
        /// Whether another node should own the shard by now.
        unwanted: bool,
    },
    Serving(ServedShard),
    Closing(ServedShard),
}

impl OwnershipState {
    fn served(&self) -> Option<&ServedShard> {
        if let OwnershipState::Serving(here) = self { Some(here) } else { None }
    }
}

struct ServedShard {
    inbox: Arc<Inbox>,
    shared: Arc<DriverShared>,
}

/// The shards whose state has changed since the last look.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// The number of shards that were opened or given up.
    pub(crate) moved: usize,
    /// The number of shards that ended by themselves or did not open.
    pub(crate) failed: usize,
    /// The fault that ends the node, if there is one.
    pub(crate) fatal: Option<Fatal>,
}

/// A fault that ends the node.
#[derive(Debug)]
pub(crate) enum Fatal {
    Bug(String),
    Policy(GeometryError),
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owned").field("stages", &self.stages()).finish_non_exhaustive()
    }
}

impl Owned {
    pub(crate) fn new(
        recipe: ShardConfig,
        lease: Duration,
        inbox: &Arc<Inbox>,
        (routes, locals): (&RouteTable, &LocalCounters),
        runtime: &tokio::runtime::Handle,
    ) -> Self {
        let (opener, opened) = mpsc::channel();
        // The usual reasons: a lease has not run out yet, or the other owner has not given the shard up yet.
        let pauses = [(lease / 64).max(Duration::from_millis(10)), (lease / 2).min(Duration::from_secs(5))];
        let now = recipe.clock.running();
        let away = |_| OwnershipState::Away {
            until: now,
            pause: RetryPause::new(pauses[0], pauses[1], &recipe.jitter),
        };
        Owned {
            states: (0..recipe.shards).map(away).collect(),
            recipe: Arc::new(recipe),
            opened,
            opener,
            inbox: inbox.clone(),
            routes: routes.clone(),
            locals: locals.clone(),
            runtime: runtime.clone(),
            pauses,
            ill: BTreeMap::new(),
            served: BTreeSet::new(),
        }
    }

    /// Collects the shards that were opened and those that have ended.
    pub(crate) fn look(&mut self) -> Changes {
        let mut changes = Changes::default();
        while let Ok((shard, opened)) = self.opened.try_recv() {
            self.take_opened(shard, opened, &mut changes);
        }
        for at in 0..self.states.len() {
            let (OwnershipState::Serving(here) | OwnershipState::Closing(here)) = &self.states[at] else {
                continue;
            };
            if !here.shared.has_ended() {
                continue;
            }
            let shard = ShardId(u32::try_from(at).unwrap_or(u32::MAX));
            if let Some(bug) = here.shared.bug() {
                changes.fatal = Some(Fatal::Bug(bug.clone()));
            }
            if matches!(self.states[at], OwnershipState::Serving(_)) {
                tracing::warn!(%shard, why = here.shared.health().trouble, "a shard of this node ended");
                changes.failed += 1;
                self.routes.forget(shard, &ShardRoute::Here(here.inbox.clone()));
            } else {
                tracing::info!(%shard, "closed a shard for another node");
            }
            changes.moved += 1;
            self.locals.fold(shard);
            self.states[at] = self.away(self.pauses[0]);
        }
        changes
    }

    /// Opens a shard, if its pause is over and not too many are being opened. Of those, `hanging` do not count: they
    /// wait for a part of the coordinator that this shard does not need.
    pub(crate) fn open(&mut self, shard: ShardId, hanging: usize) {
        let opening = self.states.iter().filter(|s| matches!(s, OwnershipState::Opening { .. })).count();
        let Some(OwnershipState::Away { until, pause }) = self.states.get(shard.0 as usize) else { return };
        if opening >= MAX_OPENING + hanging || self.now() < *until {
            return;
        }
        let pause = pause.clone();
        let (opener, inbox) = (self.opener.clone(), self.inbox.clone());
        let tell = Box::new(move |opened| {
            // The fleet is gone: the shard is dropped, and stops.
            let _ = opener.send((shard, opened));
            inbox.wake();
        });
        let started = self.recipe.starter.start(self.recipe.opening(shard, self.bound(shard)), tell);
        self.states[shard.0 as usize] = match started {
            Ok(()) => OwnershipState::Opening { pause, unwanted: false },
            Err(error) => {
                tracing::error!(%shard, %error, "no thread to open a shard");
                self.away_after(pause)
            }
        };
    }

    /// Gives a shard up: waits there end, accepted changes become durable, and its lease is returned.
    pub(crate) fn close(&mut self, shard: ShardId) {
        let away = self.away(Duration::ZERO);
        let Some(state) = self.states.get_mut(shard.0 as usize) else { return };
        match std::mem::replace(state, away) {
            OwnershipState::Serving(here) => {
                self.routes.forget(shard, &ShardRoute::Here(here.inbox.clone()));
                here.inbox.close_door(Admission::Closed(CallError::Draining));
                here.shared.wish(ThreadCommand::Stop, &here.inbox);
                self.states[shard.0 as usize] = OwnershipState::Closing(here);
            }
            OwnershipState::Opening { pause, .. } => {
                self.states[shard.0 as usize] = OwnershipState::Opening { pause, unwanted: true };
            }
            other @ (OwnershipState::Away { .. } | OwnershipState::Closing(_)) => {
                self.states[shard.0 as usize] = other
            }
        }
    }

    /// The route to a shard, if this node serves it.
    pub(crate) fn route(&self, shard: ShardId) -> Option<ShardRoute> {
        let here = self.states.get(shard.0 as usize)?.served()?;
        Some(ShardRoute::Here(here.inbox.clone()))
    }

    pub(crate) fn stage(&self, shard: ShardId) -> ShardStage {
        self.states.get(shard.0 as usize).map_or(ShardStage::Away, stage)
    }

    pub(crate) fn stages(&self) -> Vec<ShardStage> {
        self.states.iter().map(stage).collect()
    }

    /// Whether a shard is being opened or closed.
    pub(crate) fn is_busy(&self) -> bool {
        self.states.iter().any(|s| matches!(s, OwnershipState::Opening { .. } | OwnershipState::Closing(_)))
    }

    /// The shards whose drivers hang.
    pub(crate) fn hanging(&self) -> Option<HangingShards> {
        HangingShards::among(self.here().map(|(shard, here)| (shard, here.shared.health())))
    }

    /// The first shard that this node should serve and does not, with the reason, and the number of others.
    pub(crate) fn trouble(&mut self) -> Option<String> {
        let here = self.here().map(|(shard, here)| (shard, here.shared.health().trouble));
        for (shard, trouble) in here.collect::<Vec<_>>() {
            match trouble {
                Some(why) => self.note_ill(shard, why, false),
                None => drop(self.ill.remove(&shard)),
            }
        }
        let now = self.now();
        let is_long = |ill: &ShardFault| ill.lasting || now.saturating_sub(ill.since) >= BRIEFLY;
        let mut ill = self.ill.iter().filter(|(_, ill)| is_long(ill));
        let (shard, first) = ill.next()?;
        Some(match ill.count() {
            0 => format!("shard {shard} is not served: {}", first.why),
            more => format!("shard {shard} and {more} more are not served: {}", first.why),
        })
    }

    /// Treatment of leases that are bound to connections. They outlive a move of a shard; their nodes report when they
    /// close.
    fn bound(&self, shard: ShardId) -> BoundLeases {
        match self.recipe.is_alone && !self.served.contains(&shard) {
            true => BoundLeases::Release,
            false => BoundLeases::Keep,
        }
    }

    fn note_ill(&mut self, shard: ShardId, why: String, lasting: bool) {
        let since = self.ill.get(&shard).map_or_else(|| self.now(), |ill| ill.since);
        self.ill.insert(shard, ShardFault { since, why, lasting });
    }

    /// Records that another node serves the shard or is about to.
    pub(crate) fn is_elsewhere(&mut self, shard: ShardId) {
        self.ill.remove(&shard);
    }

    /// The lowest level that the latest answers of all shards here have reached; `None` without a shard.
    pub(crate) fn level(&self) -> Option<Level> {
        self.here().map(|(_, here)| here.shared.level()).reduce(Level::and)
    }

    /// The shards that are served.
    fn here(&self) -> impl Iterator<Item = (ShardId, &ServedShard)> {
        (0..).map(ShardId).zip(&self.states).filter_map(|(shard, state)| Some((shard, state.served()?)))
    }

    fn take_opened(&mut self, shard: ShardId, opened: Result<Shard, NotOpened>, changes: &mut Changes) {
        let OwnershipState::Opening { pause, unwanted } = &self.states[shard.0 as usize] else { return };
        let (pause, unwanted) = (pause.clone(), *unwanted);
        match opened {
            Ok(opened) => {
                let (inbox, shared) = opened.hand_on();
                tracing::info!(%shard, "owns a shard");
                changes.moved += 1;
                self.ill.remove(&shard);
                self.served.insert(shard);
                self.watch(shard, &inbox, &shared);
                self.locals.opened(shard, inbox.clone(), shared.clone());
                self.states[shard.0 as usize] =
                    OwnershipState::Serving(ServedShard { inbox: inbox.clone(), shared });
                if unwanted {
                    self.close(shard);
                } else {
                    self.routes.set(shard, ShardRoute::Here(inbox));
                }
            }
            Err(error) => {
                changes.failed += 1;
                match error {
                    NotOpened::Panicked(bug) => changes.fatal = Some(Fatal::Bug(bug)),
                    NotOpened::Refused(StartError::Policy(error)) => {
                        changes.fatal = Some(Fatal::Policy(error))
                    }
                    NotOpened::Refused(StartError::Store(error)) if error.kind() == ErrorKind::Fenced => {
                        tracing::debug!(%shard, %error, "a shard has another owner still");
                    }
                    NotOpened::Refused(StartError::Store(error)) => {
                        tracing::error!(%shard, %error, "a shard does not open");
                        self.note_ill(shard, error.to_string(), error.kind() == ErrorKind::Corrupt);
                    }
                    NotOpened::Refused(StartError::Thread(error)) => {
                        tracing::error!(%shard, %error, "no thread for a shard");
                    }
                }
                self.states[shard.0 as usize] = self.away_after(pause);
            }
        }
    }

    /// Removes the route as soon as the shard ends, whatever the fleet's thread is doing.
    fn watch(&self, shard: ShardId, inbox: &Arc<Inbox>, shared: &Arc<DriverShared>) {
        let (routes, fleet, shared) = (self.routes.clone(), self.inbox.clone(), shared.clone());
        let route = ShardRoute::Here(inbox.clone());
        self.runtime.spawn(async move {
            // The reason is handled when the reconciler looks next.
            let _: DriverEnd = shared.ended().await;
            routes.forget(shard, &route);
            fleet.wake();
        });
    }

    fn away(&self, after: Duration) -> OwnershipState {
        let pause = RetryPause::new(self.pauses[0], self.pauses[1], &self.recipe.jitter);
        OwnershipState::Away { until: self.now() + after, pause }
    }

    fn away_after(&self, mut pause: RetryPause) -> OwnershipState {
        OwnershipState::Away { until: self.now() + pause.take(), pause }
    }

    fn now(&self) -> Duration {
        self.recipe.clock.running()
    }
}

fn stage(state: &OwnershipState) -> ShardStage {
    match state {
        OwnershipState::Away { .. } => ShardStage::Away,
        OwnershipState::Opening { unwanted: false, .. } => ShardStage::Opening,
        OwnershipState::Serving(_) => ShardStage::Serving,
        // A counter that is folded once must not be found again in each round.
        OwnershipState::Opening { unwanted: true, .. } | OwnershipState::Closing(_) => ShardStage::Closing,
    }
}

impl ShardConfig {
    fn opening(&self, shard: ShardId, bound: BoundLeases) -> Opening {
        let (coordinator, me) = (self.coordinator.clone(), self.me.clone());
        let opener: OpenStore = Box::new(move |waker| coordinator.open(&me, shard, waker));
        let config = Config {
            policy: self.policy.clone(),
            // A different seed for each shard and each start of a node.
            seed: self.seed ^ (u64::from(shard.0) << 32 | u64::from(self.me.number)).rotate_left(17),
            hash_key: self.hash_key.derive(&shard.0.to_le_bytes()),
            bound,
            ids: Ids::of(shard, self.shards),
            ..Config::default()
        };
        Opening { opener, config, quotas: self.quotas.clone(), clock: self.clock.clone() }
    }
}

/// The limits of one shard, derived from those of its node.
///
/// Limits of memory and of totals are divided by the number of all shards: one node may have to own all of them when
/// the others are gone, and must not use more memory then than it was given. So a node of a larger cluster uses only a
/// part of its budget and may be given more. Limits of one request, one queue or one message stay as they are. Each
/// share has a least size, below which a shard would be slow.
pub(crate) fn share_of(policy: &Policy, shards: u32) -> Policy {
    let n = shards.max(1) as usize;
    let part = |whole: usize, least: usize| whole.div_ceil(n).max(least.min(whole));
    let mut share = policy.clone();
    share.max_messages = part(policy.max_messages, 1);
    share.max_message_bytes = part(policy.max_message_bytes, 1);
    share.max_history_bytes = part(policy.max_history_bytes, 1);
    share.near_messages = part(policy.near_messages, 1_000);
    share.near_bytes = part(policy.near_bytes, 1 << 20);
    share.ready_messages = part(policy.ready_messages, 1_000);
    share.ready_bytes = part(policy.ready_bytes, 1 << 20);
    share.max_leased = part(policy.max_leased, 1_000);
    share.max_leased_bytes = part(policy.max_leased_bytes, 1 << 20);
    share.load_rows = part(policy.load_rows, 500);
    share.load_bytes = part(policy.load_bytes, 1 << 20);
    share.max_inbox_requests = part(policy.max_inbox_requests, policy.max_batch_messages);
    share.max_inbox_bytes = part(policy.max_inbox_bytes, policy.max_batch_bytes);
    share.max_pending_replies = part(policy.max_pending_replies, policy.max_batch_messages);
    share
}

/// A driver that completes no round for this long, in ms, counts as hanging.
const HANGS_MS: u64 = 10_000;

/// The number of shards that a message names; further ones are only counted.
const MAX_NAMED: usize = 8;

/// The shards whose drivers hang, and what holds their threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HangingShards {
    /// The state of the threads of all these shards: waiting for a store only if all of them do.
    pub(crate) thread: ThreadIn,
    /// The number of shards of the node that do not hang.
    pub(crate) others: usize,
    shards: Vec<ShardId>,
    longest_ms: u64,
}

impl HangingShards {
    /// The hanging shards among those that a node serves; `None` if none hangs.
    pub(crate) fn among(shards: impl Iterator<Item = (ShardId, Health)>) -> Option<Self> {
        let (hanging, others): (Vec<_>, Vec<_>) =
            shards.partition(|(_, health)| health.tick_age_ms >= HANGS_MS);
        // A driver that has just returned from its store is about to make the next call or to begin the next round.
        let in_store = |health: &Health| health.thread == ThreadIn::Store || health.quiet_ms < HANGS_MS;
        let unreported = |health: &Health| health.thread == ThreadIn::Unreported;
        let all = |of: &dyn Fn(&Health) -> bool| hanging.iter().all(|(_, health)| of(health));
        let thread = if all(&|health| in_store(health) && !unreported(health)) {
            ThreadIn::Store
        } else if all(&in_store) {
            ThreadIn::Unreported
        } else {
            ThreadIn::Ours
        };
        Some(HangingShards {
            thread,
            others: others.len(),
            longest_ms: hanging.iter().map(|(_, health)| health.tick_age_ms).max()?,
            shards: hanging.into_iter().map(|(shard, _)| shard).collect(),
        })
    }

    /// A sentence that names the shards that wait for their store, and for how long; `None` if a thread waits for
    /// something else.
    pub(crate) fn waiting_for_store(&self) -> Option<String> {
        let waits = match self.thread {
            ThreadIn::Ours => return None,
            ThreadIn::Store => "has not returned from a call",
            ThreadIn::Unreported => "has confirmed nothing",
        };
        let (named, more) = self.shards.split_at(self.shards.len().min(MAX_NAMED));
        let named: Vec<String> = named.iter().map(ToString::to_string).collect();
        let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        let (word, up_to) = if self.shards.len() == 1 { ("shard", "") } else { ("shards", "up to ") };
        let others = match self.others {
            0 => "this node serves no other shard".to_owned(),
            others => format!("shards of this node that are served: {others}"),
        };
        Some(format!(
            "{word} {}{more}: the store {waits} for {up_to}{} s; {others}",
            named.join(", "),
            self.longest_ms / 1_000
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_policies_fit_node_policy() {
        let whole = Policy::default();
        let one = share_of(&whole, 16);
        let within = |part: usize, whole: usize| assert!(part * 16 <= whole + 16, "{part} of {whole}");
        within(one.near_bytes, whole.near_bytes);
        within(one.ready_bytes, whole.ready_bytes);
        within(one.max_leased_bytes, whole.max_leased_bytes);
        within(one.max_inbox_bytes, whole.max_inbox_bytes);
        within(one.max_messages, whole.max_messages);
        assert_eq!(
            (one.max_body, one.max_queues, one.max_page),
            (whole.max_body, whole.max_queues, whole.max_page)
        );
        assert_eq!(share_of(&whole, 1), whole);
        let tiny = Policy { near_messages: 10, ..Policy::default() };
        assert_eq!(share_of(&tiny, 16).near_messages, 10, "no part is larger than the whole");
    }
}

#[cfg(test)]
mod hanging_tests {
    use super::*;

    const WELL: u64 = HANGS_MS - 1;
    const LATE: u64 = 60_000;

    fn among(all: &[(u64, u64, ThreadIn)]) -> Option<HangingShards> {
        let health =
            |&(tick_age_ms, quiet_ms, thread)| Health { tick_age_ms, quiet_ms, thread, ..Health::default() };
        HangingShards::among((0..).map(ShardId).zip(all.iter().map(health)))
    }

    /// Story: a node whose shards hung in their store was killed for it, and its successor hung in the same store.
    #[test]
    fn store_hang_excludes_other_causes() {
        let of = |all: &[(u64, u64, ThreadIn)]| among(all).map(|hanging| (hanging.thread, hanging.others));
        let in_store = (LATE, 0, ThreadIn::Store);
        let well = (WELL, WELL, ThreadIn::Ours);
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[well, (WELL, 0, ThreadIn::Store)]), None);
        assert_eq!(of(&[well, in_store, in_store]), Some((ThreadIn::Store, 1)));
        assert_eq!(
            of(&[(LATE, 20, ThreadIn::Ours)]),
            Some((ThreadIn::Store, 0)),
            "back from it a moment ago"
        );
        assert_eq!(of(&[in_store, (LATE, LATE, ThreadIn::Ours)]), Some((ThreadIn::Ours, 0)));
        let unreported = (LATE, 0, ThreadIn::Unreported);
        assert_eq!(of(&[in_store, unreported, well]), Some((ThreadIn::Unreported, 1)));
        assert_eq!(of(&[unreported, (LATE, LATE, ThreadIn::Ours)]), Some((ThreadIn::Ours, 0)));
    }

    #[test]
    fn shards_waiting_for_store_are_named() {
        let well = (0, 0, ThreadIn::Ours);
        let words =
            |all: &[_]| among(all).and_then(|hanging| hanging.waiting_for_store()).unwrap_or_default();
        assert_eq!(
            words(&[well, (12_345, 0, ThreadIn::Store), well]),
            "shard 1: the store has not returned from a call for 12 s; shards of this node that are served: 2"
        );
        assert_eq!(
            words(&[(LATE, 0, ThreadIn::Store); 11]),
            "shards 0, 1, 2, 3, 4, 5, 6, 7 and 3 more: the store has not returned from a call for up to 60 s; \
             this node serves no other shard"
        );
        assert_eq!(
            words(&[(12_345, 0, ThreadIn::Unreported), well]),
            "shard 0: the store has confirmed nothing for 12 s; shards of this node that are served: 1"
        );
        assert_eq!(words(&[(LATE, LATE, ThreadIn::Ours)]), "", "the node itself is stalled");
    }
}
