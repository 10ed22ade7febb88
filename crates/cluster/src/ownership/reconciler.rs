//! The reconciler: a thread that renews the node's membership, reads who owns which shard, takes shards and gives them
//! up.
//!
//! The reconciler is a thread, not a task, because the calls of the coordinator may block. Nothing else waits for it:
//! owned shards are served while it hangs, and the route to a shard that ends is removed without it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use duewheel_core::id::ShardId;
use duewheel_core::store::{Coordinator, ErrorKind, Node, Owner, Ownership};
use duewheel_shard::clock::Clock;
use duewheel_shard::error::CallError;
use duewheel_shard::inbox::Admission;
use duewheel_shard::random::Jitter;
use duewheel_shard::shared::{DriverEnd, DriverWork, ThreadCommand, ThreadIn, bug};
use duewheel_shard::thread::panic_text;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::forwarding::routes::ShardRoute;
use crate::ownership::assignment::{Presence, assign};
use crate::ownership::core::{ClusterView, Core, ShardStage, ShardView, stranger};
use crate::ownership::owned::{Fatal, Owned};
use crate::transport::{Host, Peer, TransportConfig};

/// The longest sleep of the thread; health shows when it came round last.
const NAP: Duration = Duration::from_millis(250);

/// The number of shards that are given up at a time. The next one follows when another node has taken one of these, so
/// no shard is without an owner for long.
const MAX_MOVING: usize = 4;

/// Other nodes take the shards of a dead node within its lease and this time.
const TAKEN_WITHIN: Duration = Duration::from_secs(2);

/// The number of shards that a sentence names.
const MAX_NAMED: usize = 8;

/// The pause between two looks at shards that close, and at answers that leave, when the node ends.
const CLOSING: Duration = Duration::from_millis(10);
const TALKING: Duration = Duration::from_millis(5);

/// How long a node that ends waits until its answers have left.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Keeps the shards of a node in step with the assignment until the node ends.
pub(crate) struct Reconciler {
    core: Arc<Core>,
    coordinator: Arc<dyn Coordinator>,
    owned: Owned,
    /// The nodes among which shards are assigned.
    presence: Presence,
    clock: Arc<dyn Clock>,
    jitter: Jitter,
    terms: TransportConfig,
    max_queued: usize,
    runtime: tokio::runtime::Handle,
    peers: BTreeMap<u32, (Arc<Peer>, AbortHandle)>,
    /// Nodes that have left, until their last answer has come.
    parted: Vec<(Arc<Peer>, AbortHandle)>,
    /// The members, as the coordinator reported them last.
    nodes: Vec<Node>,
    owners: Vec<Option<Owner>>,
    /// For each shard whose owner the coordinator does not report: since when, and why. Its entry in `owners` is older.
    unknown: Vec<Option<(Duration, Box<str>)>>,
    /// The node that owned each shard last, whether it does now or not.
    last_owners: Vec<Option<u32>>,
    /// When each shard was given up, if no other node has taken it yet.
    given: Vec<Option<Duration>>,
    /// The node that should own each shard, as an index into `assigned`. Empty: not known.
    wanted: Vec<usize>,
    /// The names of the nodes from which `wanted` was computed.
    assigned: Vec<Box<str>>,
    next_beat: Duration,
    /// The earliest instant of the next look: frequent looks are slow for all nodes.
    next_look: Duration,
    heard: Duration,
    /// Until this instant no shard moves to another node.
    calm_until: Duration,
    /// The error of the membership, if any; faults of shards are kept apart.
    trouble: Option<String>,
    /// When the owners were read, if the view does not show it yet.
    looked: Option<Duration>,
    /// Since when each shard has had no owner, as far as this node has seen.
    unowned: Vec<Option<Duration>>,
    began: watch::Sender<bool>,
    /// The task that answers other nodes.
    listening: Option<AbortHandle>,
    ending: EndPhase,
    /// Why the node ends, once that is known.
    end: Option<DriverEnd>,
}

/// The phase of a node that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndPhase {
    NotYet,
    Begins,
    /// The shards close, until this instant at most.
    Shards(Duration),
    /// The last answers leave, until this instant at most.
    Words(Duration),
    Done,
}

/// The parts of a reconciler.
pub(crate) struct ReconcilerParts {
    pub(crate) coordinator: Arc<dyn Coordinator>,
    pub(crate) owned: Owned,
    pub(crate) presence: Presence,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) jitter: Jitter,
    pub(crate) terms: TransportConfig,
    pub(crate) runtime: tokio::runtime::Handle,
}

impl Reconciler {
    pub(crate) fn new(core: Arc<Core>, parts: ReconcilerParts, max_queued: usize) -> Self {
        let ReconcilerParts { coordinator, owned, presence, clock, jitter, terms, runtime } = parts;
        let now = clock.running();
        let shards = core.shards as usize;
        Reconciler {
            core,
            coordinator,
            owned,
            presence,
            clock,
            jitter,
            terms,
            max_queued,
            runtime,
            peers: BTreeMap::new(),
            parted: Vec::new(),
            nodes: Vec::new(),
            owners: vec![None; shards],
            unknown: vec![None; shards],
            last_owners: vec![None; shards],
            given: vec![None; shards],
            wanted: Vec::new(),
            assigned: Vec::new(),
            next_beat: now,
            next_look: now,
            heard: now,
            calm_until: now,
            trouble: None,
            looked: None,
            unowned: vec![None; shards],
            began: watch::Sender::new(false),
            listening: None,
            ending: EndPhase::NotYet,
            end: None,
        }
    }

    /// Ties the task that answers other nodes to the life of this one.
    pub(crate) fn listens(&mut self, listening: Option<AbortHandle>) {
        self.listening = listening;
    }

    /// A receiver that becomes true when all shards are open that this node should own.
    pub(crate) fn began(&self) -> watch::Receiver<bool> {
        self.began.subscribe()
    }

    /// Runs on the thread until the node ends.
    pub(crate) fn run(mut self) {
        while let Some(nap) = self.turn() {
            self.core.inbox.wait_for_wake(nap);
        }
    }

    /// Takes one turn. Returns the longest time to wait for the next one, unless the node's inbox is woken; `None`: the
    /// node has ended. It blocks only in calls of the coordinator.
    pub(crate) fn turn(&mut self) -> Option<Duration> {
        let ending = self.ending;
        let turned = catch_unwind(AssertUnwindSafe(|| match ending {
            EndPhase::NotYet => self.work(),
            EndPhase::Begins => self.give_up(),
            EndPhase::Shards(until) => self.close_shards(until),
            EndPhase::Words(until) => self.speak_last(until),
            EndPhase::Done => None,
        }));
        turned.unwrap_or_else(|panic| {
            let bug = bug("the fleet", panic_text(&*panic));
            match &self.end {
                None => self.begin_end(DriverEnd::Failed(bug)),
                Some(_) => {
                    tracing::error!(bug, "while ending");
                    self.finish()
                }
            }
        })
    }

    fn work(&mut self) -> Option<Duration> {
        match self.drive() {
            Some(end) => self.begin_end(end),
            None => Some(self.nap()),
        }
    }

    fn drive(&mut self) -> Option<DriverEnd> {
        if self.core.killed.load(Ordering::SeqCst) {
            return Some(DriverEnd::Failed("killed".to_owned()));
        }
        if let Some(end) = self.take_changes() {
            return Some(end);
        }
        if let Some(bug) = self.core.shared.bug() {
            return Some(DriverEnd::Failed(bug.clone()));
        }
        if self.core.shared.wished(ThreadCommand::EndWaits) {
            self.core.routes.end_waits();
        }
        if self.core.shared.wished(ThreadCommand::Stop) {
            return Some(DriverEnd::Stopped);
        }
        if self.core.nudged.load(Ordering::SeqCst) && self.now() >= self.next_look {
            self.core.nudged.store(false, Ordering::SeqCst);
            self.next_beat = self.now();
        }
        if self.now() >= self.next_beat
            && let Some(end) = self.beat()
        {
            return Some(end);
        }
        if self.now() >= self.next_look && self.core.look.load(Ordering::SeqCst) {
            self.look();
        }
        self.plan();
        self.tell();
        None
    }

    /// Begins the end: the node accepts no more requests.
    fn begin_end(&mut self, end: DriverEnd) -> Option<Duration> {
        self.core.inbox.close_door(Admission::Closed(match &end {
            DriverEnd::Stopped => CallError::Draining,
            DriverEnd::Fenced(_) | DriverEnd::Failed(_) => CallError::Closed("the node ended; see the log"),
        }));
        self.end = Some(end);
        if self.core.killed.load(Ordering::SeqCst) {
            return self.finish();
        }
        self.ending = EndPhase::Begins;
        Some(Duration::ZERO)
    }

    /// Closes the shards, waits until answers have left, and notifies the other nodes.
    fn give_up(&mut self) -> Option<Duration> {
        self.core.routes.end_waits();
        for shard in self.core.routes.shards() {
            self.owned.close(shard);
        }
        self.ending = EndPhase::Shards(self.now() + self.core.lease.max(Duration::from_secs(5)));
        Some(Duration::ZERO)
    }

    fn close_shards(&mut self, until: Duration) -> Option<Duration> {
        if self.owned.is_busy() && self.now() < until {
            let changes = self.owned.look();
            if let Some(Fatal::Bug(bug)) = changes.fatal {
                tracing::error!(%bug, "while closing");
            }
            self.core.shared.tick(DriverWork::default());
            return Some(CLOSING);
        }
        if self.owned.is_busy() {
            tracing::error!("shards did not close in time; their leases run out");
        }
        let fenced = matches!(self.end, Some(DriverEnd::Fenced(_)));
        if !fenced && let Err(error) = self.coordinator.leave(&self.core.me) {
            tracing::warn!(%error, "could not remove this node from the cluster; its membership will expire");
        }
        self.nudge();
        self.terms.end();
        self.ending = EndPhase::Words(self.now() + LAST_WORDS);
        Some(Duration::ZERO)
    }

    fn speak_last(&mut self, until: Duration) -> Option<Duration> {
        let talks = self.terms.open() > 0 || self.peers.values().any(|(peer, _)| peer.flying() > 0);
        if talks && self.now() < until { Some(TALKING) } else { self.finish() }
    }

    fn finish(&mut self) -> Option<Duration> {
        let end = self.end.take().unwrap_or(DriverEnd::Stopped);
        if let DriverEnd::Fenced(why) | DriverEnd::Failed(why) = &end {
            tracing::error!(%why, "the node ended");
        }
        self.core.routes.refuse_all(&CallError::Draining);
        if let Some(listening) = self.listening.take() {
            listening.abort();
        }
        for (peer, task) in self.peers.values().chain(&self.parted) {
            peer.close("this node ended");
            task.abort();
        }
        for shard in self.core.routes.shards() {
            self.owned.close(shard);
        }
        self.ending = EndPhase::Done;
        self.core.shared.set_ended(end);
        None
    }

    /// The clock that is never stopped, as for all instants here.
    fn now(&self) -> Duration {
        self.clock.running()
    }

    fn since(&self, instant: Duration) -> Duration {
        self.now().saturating_sub(instant)
    }

    fn take_changes(&mut self) -> Option<DriverEnd> {
        let changes = self.owned.look();
        if changes.moved > 0 {
            self.core.look.store(true, Ordering::SeqCst);
            self.nudge();
        }
        match changes.fatal? {
            Fatal::Bug(bug) => {
                self.core.shared.end(bug.clone(), &self.core.inbox);
                Some(DriverEnd::Failed(bug))
            }
            Fatal::Policy(error) => Some(DriverEnd::Failed(format!("the ring cannot be made: {error}"))),
        }
    }

    /// Renews the membership of the node.
    fn beat(&mut self) -> Option<DriverEnd> {
        let lease = self.core.lease;
        // Counted from the beginning of the call, so that renewals keep their distance however long a call takes.
        let uneasy = (lease / 20).clamp(Duration::from_millis(20), Duration::from_millis(500));
        self.next_beat = self.now() + self.jitter.of(if self.is_uneasy() { uneasy } else { lease / 4 });
        match self.core.shared.in_store(|| self.coordinator.beat(&self.core.me)) {
            Ok(nodes) => {
                if self.since(self.heard) >= lease / 2 {
                    // Other nodes return when this one does; until they have, each keeps the shards that it had.
                    self.calm_until = self.now() + retry(lease);
                    self.next_beat = self.now() + self.jitter.of(uneasy);
                }
                self.heard = self.now();
                let now = self.elapsed();
                if self.now() < self.calm_until {
                    self.presence.saw_some(now, &nodes);
                } else {
                    self.presence.saw(now, &nodes);
                }
                self.nodes = nodes;
                self.core.look.store(true, Ordering::SeqCst);
                let alone = stranger(&self.core.me, &self.nodes).map(|problem| problem.to_string());
                if let Some(problem) = &alone {
                    tracing::error!(%problem, "nodes of the cluster cannot share its shards");
                }
                self.trouble = alone;
                self.learn_secrets();
                self.meet();
            }
            Err(error) if error.kind() == ErrorKind::Fenced => {
                let name = &self.core.me.name;
                return Some(DriverEnd::Fenced(format!("another node has taken the name {name:?}: {error}")));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot renew this node's membership; its shards continue to serve");
                if error.kind() == ErrorKind::Corrupt {
                    self.trouble = Some(error.to_string());
                } else if self.since(self.heard) >= lease {
                    self.trouble = Some(format!("the coordinator of the nodes is not available: {error}"));
                }
                self.next_beat = self.now() + self.jitter.of(retry(lease));
            }
        }
        None
    }

    /// An operator may have replaced the secret by which nodes authenticate each other.
    fn learn_secrets(&self) {
        if self.core.me.advertise.is_empty() {
            return; // it speaks with nobody
        }
        match self.core.shared.in_store(|| self.coordinator.secrets()) {
            Ok(secrets) => self.terms.know(&secrets),
            Err(error) => {
                tracing::warn!(%error, "cannot read the cluster's secret; this node keeps the one it has")
            }
        }
    }

    /// Reads the owners of shards and sets the routes.
    fn look(&mut self) {
        // Who asks from now on may mean something newer.
        self.core.look.store(false, Ordering::SeqCst);
        self.next_look =
            self.now() + (self.core.lease / 100).clamp(Duration::from_millis(5), Duration::from_millis(100));
        let owners = match self.core.shared.in_store(|| self.coordinator.owners()) {
            Ok(owners) => owners,
            Err(error) => {
                tracing::debug!(%error, "cannot read the owners of the shards");
                let pause =
                    (self.core.lease / 20).clamp(Duration::from_millis(50), Duration::from_millis(500));
                self.next_look = self.now() + self.jitter.of(pause);
                self.core.look.store(true, Ordering::SeqCst);
                return;
            }
        };
        for (at, owner) in owners.into_iter().enumerate().take(self.owners.len()) {
            self.unknown[at] = match owner {
                Ownership::Unknown(why) => {
                    let since = self.unknown[at].as_ref().map_or_else(|| self.now(), |(since, _)| *since);
                    self.unowned[at] = None;
                    Some((since, why))
                }
                Ownership::Owned(_) | Ownership::Free => {
                    self.owners[at] = owner.owner().cloned();
                    None
                }
            };
        }
        self.meet();
        for at in (0..self.owners.len()).filter(|at| self.unknown[*at].is_none()).collect::<Vec<_>>() {
            let shard = shard(at);
            let owner = self.owners[at].clone();
            let number = owner.as_ref().map(|owner| owner.node.number);
            if number.is_some() && number != self.last_owners[at] {
                // Only the node that takes a shard counts the time.
                if self.last_owners[at].is_some() && number == Some(self.core.me.number) {
                    self.core.moves.fetch_add(1, Ordering::Relaxed);
                }
                self.last_owners[at] = number;
            }
            match (number, self.unowned[at].take()) {
                (None, since) => self.unowned[at] = since.or_else(|| Some(self.now())),
                (Some(number), Some(since)) if number == self.core.me.number => {
                    self.core.locals.was_unowned(shard, self.since(since));
                }
                (Some(_), _) => {}
            }
            if number.is_some_and(|number| number != self.core.me.number) {
                self.given[at] = None;
                self.owned.is_elsewhere(shard);
            }
            let elsewhere = owner.filter(|owner| owner.node.number != self.core.me.number);
            if elsewhere.is_some() && self.owned.stage(shard) == ShardStage::Serving {
                // The lease of this node has ended: it cannot write any more, and would notice that later.
                tracing::warn!(%shard, "a shard of this node has another owner");
                self.owned.close(shard);
            }
            let route = match (self.owned.route(shard), elsewhere) {
                (Some(here), _) => here,
                (None, Some(owner)) => self
                    .peers
                    .get(&owner.node.number)
                    .map_or(ShardRoute::None, |(peer, _)| ShardRoute::There(peer.clone())),
                (None, None) => ShardRoute::None,
            };
            self.core.routes.set(shard, route);
        }
        self.looked = Some(self.now());
    }

    /// Takes the shards that this node should own and nobody owns, and gives up those that it should not own.
    fn plan(&mut self) {
        // A node without an address gives no shards to others that join all the same.
        let nodes: Vec<Node> = if self.core.me.advertise.is_empty() {
            self.nodes.iter().filter(|node| node.number == self.core.me.number).cloned().collect()
        } else {
            self.nodes.clone()
        };
        if !nodes.iter().any(|node| node.number == self.core.me.number) {
            return;
        }
        let settled = self.presence.settled(self.elapsed(), &nodes, &self.owners);
        let names: Vec<Box<str>> = settled.into_iter().map(|node| node.name.clone()).collect();
        if names != self.assigned {
            let borrowed: Vec<&str> = names.iter().map(|name| &**name).collect();
            self.wanted = assign(&borrowed, self.core.shards);
            self.assigned = names;
        }
        let calm = self.now() < self.calm_until;
        let mut missing = 0;
        let lease = self.core.lease;
        // A shard that no node takes for long does not keep others from moving.
        let mut moving = self.given.iter().flatten().filter(|given| self.since(**given) < lease).count();
        let hangs =
            |at: &usize| self.unknown[*at].is_some() && self.owned.stage(shard(*at)) == ShardStage::Opening;
        let hanging = (0..self.unknown.len()).filter(hangs).count();
        for (at, owner) in self.wanted.iter().enumerate() {
            let shard = shard(at);
            let name = &self.assigned[*owner];
            let is_mine = *name == self.core.me.name;
            if self.unknown[at].is_some() {
                // The shard can be neither taken nor handed over.
                missing += usize::from(is_mine && self.owned.stage(shard) != ShardStage::Serving);
                continue;
            }
            if !is_mine {
                self.owned.is_elsewhere(shard);
            }
            if is_mine {
                let other = self.owners[at].as_ref().map(|owner| owner.node.number);
                let other = other.filter(|number| *number != self.core.me.number);
                // A living owner gives the shard up when this node has stayed long enough; the lease of a dead one is
                // about to run out.
                let lives = |number| self.nodes.iter().any(|node| node.number == number);
                let waits = self.owned.stage(shard) != ShardStage::Serving && !other.is_some_and(lives);
                missing += usize::from(waits);
                let free = other.is_none();
                let had = self.last_owners[at] == Some(self.core.me.number);
                if free && (had || !calm) {
                    self.owned.open(shard, hanging);
                }
            } else if !calm
                && moving < MAX_MOVING
                && matches!(self.owned.stage(shard), ShardStage::Serving | ShardStage::Opening)
            {
                moving += 1;
                self.given[at] = Some(self.now());
                tracing::info!(%shard, to = %name, "closes a shard for another node");
                self.owned.close(shard);
            }
        }
        // The view must also show it, because it may be asked for right after the start.
        if missing == 0 && !self.core.look.load(Ordering::SeqCst) {
            self.began.send_replace(true);
        }
    }

    /// Connects to new nodes and new addresses, and disconnects from those that have left.
    fn meet(&mut self) {
        let owners = self.owners.iter().flatten().map(|owner| &owner.node);
        let others: BTreeMap<u32, &Node> = self
            .nodes
            .iter()
            .chain(owners)
            .filter(|node| node.number != self.core.me.number && !node.advertise.is_empty())
            .map(|node| (node.number, node))
            .collect();
        self.peers.retain(|number, (peer, task)| {
            let stays = others.get(number).is_some_and(|node| *node == peer.node());
            if !stays {
                peer.part();
                self.parted.push((peer.clone(), task.clone()));
            }
            stays
        });
        self.parted.retain(|(_, task)| !task.is_finished());
        for (number, node) in others {
            if !self.peers.contains_key(&number) {
                let peer = Arc::new(Peer::new(node.clone(), self.terms.clone(), self.max_queued));
                let (runs, end) = (peer.clone(), self.core.end_on_panic());
                let task = self.runtime.spawn(async move {
                    let _end = end;
                    runs.run().await;
                });
                let task = task.abort_handle();
                self.peers.insert(number, (peer, task));
            }
        }
    }

    /// Whether a node or an owner may be dead, so that the next look should come soon.
    fn is_uneasy(&self) -> bool {
        self.core.routes.lost() > 0 || self.peers.values().any(|(peer, _)| !peer.is_up())
    }

    fn nudge(&self) {
        for (peer, _) in self.peers.values() {
            peer.nudge();
        }
    }

    /// Updates the view and the health of the node.
    fn tell(&mut self) {
        let hanging = self.owned.hanging();
        match hanging.as_ref().map(|hanging| (hanging.thread, hanging.others)) {
            // Only a restart helps.
            Some((ThreadIn::Ours, _)) => {}
            Some((ThreadIn::Store, 0)) => self.core.shared.waits_for_store(),
            // Shards that are served keep the node ready for requests, and so do rounds: a store that all nodes share, and
            // that takes no changes, makes none of them unready.
            Some((ThreadIn::Store | ThreadIn::Unreported, _)) | None => {
                self.core.shared.tick(DriverWork::default())
            }
        }
        self.core.shared.set_hanging(hanging.and_then(|hanging| hanging.waiting_for_store()));
        let trouble = self.trouble.clone().or_else(|| self.owned.trouble());
        let trouble = trouble.or_else(|| self.without_owner()).or_else(|| self.not_known());
        self.core.shared.set_trouble(trouble);
        if let Some(level) = self.owned.level() {
            self.core.shared.set_level(level);
        }
        if let Some(at) = self.looked.take() {
            let view = self.view();
            *self.core.view() = (view, at);
        }
        let mut strays = Vec::new();
        self.core.inbox.take(&mut strays);
        for stray in strays {
            // This inbox takes no operations: front ends use those of shards.
            let refuse = |_| Err(CallError::Closed("the inbox of a node takes no operations"));
            let refused = stray.ops.iter().map(refuse).collect();
            let _ = stray.answer.send(refused);
        }
    }

    /// Names the shards that have had no owner for longer than the death of a node explains.
    fn without_owner(&self) -> Option<String> {
        let (longest, shards) = self.for_long(self.unowned.iter().copied())?;
        Some(format!("for up to {longest} s shards have had no owner: {shards}"))
    }

    /// Names the shards whose owner has not been known for as long.
    fn not_known(&self) -> Option<String> {
        let since = |unknown: &Option<(Duration, Box<str>)>| unknown.as_ref().map(|(since, _)| *since);
        let (longest, shards) = self.for_long(self.unknown.iter().map(since))?;
        let (_, why) = self.unknown.iter().flatten().min_by_key(|(since, _)| *since)?;
        Some(format!("for up to {longest} s it has not been known who owns shards {shards}: {why}"))
    }

    /// The longest of these times in seconds, and the names of the shards, if a time is longer than the death of a node
    /// explains.
    fn for_long(&self, since: impl Iterator<Item = Option<Duration>>) -> Option<(u64, String)> {
        let most = self.core.lease + TAKEN_WITHIN;
        let times = since.map(|since| since.map_or(Duration::ZERO, |since| self.since(since)));
        let late: Vec<(usize, Duration)> = times.enumerate().filter(|(_, time)| *time >= most).collect();
        let longest = late.iter().map(|(_, time)| *time).max()?;
        let names: Vec<String> = late.iter().map(|(at, _)| at.to_string()).collect();
        let (shown, more) = names.split_at(names.len().min(MAX_NAMED));
        let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        Some((longest.as_secs(), format!("{}{more}", shown.join(", "))))
    }

    /// The time by which [`Presence`] measures how long nodes have stayed.
    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.clock.read().elapsed_ns)
    }

    fn view(&self) -> ClusterView {
        let known = |at: usize| self.owners[at].as_ref().filter(|_| self.unknown[at].is_none());
        let views = (0..self.owners.len()).map(|at| ShardView {
            shard: shard(at),
            owner: known(at).map(|owner| owner.node.name.clone()),
            unknown: self.unknown[at].as_ref().map(|(_, why)| why.clone()),
            epoch: known(at).map(|owner| owner.epoch),
            wanted: self.wanted.get(at).and_then(|wanted| self.assigned.get(*wanted)).cloned(),
            here: self.owned.stage(shard(at)),
        });
        ClusterView {
            me: self.core.me.clone(),
            nodes: self.nodes.clone(),
            shards: views.collect(),
            age: Duration::ZERO,
        }
    }

    fn nap(&self) -> Duration {
        let now = self.now();
        let mut nap = NAP.min(self.next_beat.saturating_sub(now));
        if self.core.look.load(Ordering::SeqCst) {
            nap = nap.min(self.next_look.saturating_sub(now));
        }
        let waits = self.owned.is_busy() || !*self.began.borrow() || self.misses();
        if waits { nap.min((self.core.lease / 64).max(Duration::from_millis(5))) } else { nap }
    }

    /// Whether a shard that this node should own has no owner.
    fn misses(&self) -> bool {
        self.wanted.iter().enumerate().any(|(at, wanted)| {
            self.assigned[*wanted] == self.core.me.name
                && self.owners[at].is_none()
                && self.unknown[at].is_none()
                && self.owned.stage(shard(at)) == ShardStage::Away
        })
    }
}

/// When to try again while the coordinator cannot be reached.
fn retry(lease: Duration) -> Duration {
    (lease / 8).min(Duration::from_secs(1))
}

fn shard(at: usize) -> ShardId {
    ShardId(u32::try_from(at).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
