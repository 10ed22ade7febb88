//! The fleet's own thread: it says that the node is alive, looks who owns what, takes shards and gives them up.
//!
//! It is a thread and no task because the coordinator's calls may wait. Nothing else waits for it: shards that are owned serve on while it
//! hangs, and one that ends is off the table without it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use duewheel_core::id::ShardId;
use duewheel_core::store::{Coordinator, ErrorKind, Node, Owner, Ownership};
use duewheel_shard::backoff::Jitter;
use duewheel_shard::clock::Clock;
use duewheel_shard::error::CallError;
use duewheel_shard::health::ThreadIn;
use duewheel_shard::inbox::Admission;
use duewheel_shard::shared::{DriverEnd, ThreadCommand, bug};
use duewheel_shard::thread::panic_text;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::forwarding::routes::ShardRoute;
use crate::ownership::assignment::assign;
use crate::ownership::core::Core;
use crate::ownership::error::stranger;
use crate::ownership::owned::{Fatal, Owned};
use crate::ownership::presence::Presence;
use crate::ownership::view::{ClusterView, ShardStage, ShardView};
use crate::transport::{Host, Peer, TransportConfig};

/// How long the thread sleeps at most: health shows when it came round last.
const NAP: Duration = Duration::from_millis(250);

/// Shards that are given up at a time: the next one when another node has taken one of these. So none of many waits for long.
const MAX_MOVING: usize = 4;

/// Others take the shards of a dead node within its lease and this.
const TAKEN_WITHIN: Duration = Duration::from_secs(2);

/// Shards that a sentence names.
const MAX_NAMED: usize = 8;

/// Between two looks at shards that close, and at answers that leave, at the node's end.
const CLOSING: Duration = Duration::from_millis(10);
const TALKING: Duration = Duration::from_millis(5);

/// How long the node waits at its end until answers have left.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Keeps the shards of a node in step with the assignment until the node ends.
pub(crate) struct Reconciler {
    core: Arc<Core>,
    coordinator: Arc<dyn Coordinator>,
    owned: Owned,
    /// Among whom shards are shared out.
    presence: Presence,
    clock: Arc<dyn Clock>,
    jitter: Jitter,
    terms: TransportConfig,
    max_queued: usize,
    runtime: tokio::runtime::Handle,
    peers: BTreeMap<u32, (Arc<Peer>, AbortHandle)>,
    /// Those that take part no more, until the last answer.
    parted: Vec<(Arc<Peer>, AbortHandle)>,
    /// As the coordinator said last.
    nodes: Vec<Node>,
    owners: Vec<Option<Owner>>,
    /// Since when, and why, the coordinator does not say who owns a shard; its entry in `owners` is as of before.
    unknown: Vec<Option<(Duration, Box<str>)>>,
    /// The node that owned a shard last, whether it does now or not.
    last_owners: Vec<Option<u32>>,
    /// When shards were given up that nobody has taken yet.
    given: Vec<Option<Duration>>,
    /// Whose each shard should be: places in `assigned`. Empty: not known.
    wanted: Vec<usize>,
    /// The names by which that was computed.
    assigned: Vec<Box<str>>,
    next_beat: Duration,
    /// Not before: what is looked at too often is slow for all.
    next_look: Duration,
    heard: Duration,
    /// Until then no shard goes to another node.
    calm_until: Duration,
    /// What is wrong with taking part; shards have troubles of their own.
    trouble: Option<String>,
    /// When it was read who owns what, if nobody has been shown that yet.
    looked: Option<Duration>,
    /// Since when nobody owns a shard, as far as this node has seen it.
    unowned: Vec<Option<Duration>>,
    began: watch::Sender<bool>,
    /// What answers other nodes.
    listening: Option<AbortHandle>,
    ending: EndPhase,
    /// Why it ends, once that is known.
    end: Option<DriverEnd>,
}

/// The phase of a node that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndPhase {
    NotYet,
    Begins,
    /// Its shards close, and have until then.
    Shards(Duration),
    /// Its last answers leave, and have until then.
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

    /// What answers other nodes ends with it.
    pub(crate) fn listens(&mut self, listening: Option<AbortHandle>) {
        self.listening = listening;
    }

    /// Tells when all shards have been opened that this node should have.
    pub(crate) fn began(&self) -> watch::Receiver<bool> {
        self.began.subscribe()
    }

    /// The thread's life.
    pub(crate) fn run(mut self) {
        while let Some(nap) = self.turn() {
            self.core.inbox.wait_for_wake(nap);
        }
    }

    /// Takes a turn. Returns how long to wait for the next one, unless the node's inbox is woken; `None`: the node has
    /// ended. It does not wait itself, but for the coordinator's calls.
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
            self.core.ways.end_waits();
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
        if self.now() >= self.next_look && self.core.look.swap(false, Ordering::SeqCst) {
            self.look();
        }
        self.plan();
        self.tell();
        None
    }

    /// The node takes no more requests.
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

    /// Gives everything up: shards are closed, answers leave, the others are told.
    fn give_up(&mut self) -> Option<Duration> {
        self.core.ways.end_waits();
        for shard in self.core.ways.shards() {
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
            self.core.shared.tick();
            return Some(CLOSING);
        }
        if self.owned.is_busy() {
            tracing::error!("shards did not close in time; their leases run out");
        }
        let fenced = matches!(self.end, Some(DriverEnd::Fenced(_)));
        if !fenced && let Err(error) = self.coordinator.leave(&self.core.me) {
            tracing::warn!(%error, "could not say that this node takes part no more; others find out");
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
        self.core.ways.refuse_all(&CallError::Draining);
        if let Some(listening) = self.listening.take() {
            listening.abort();
        }
        for (peer, task) in self.peers.values().chain(&self.parted) {
            peer.close("this node ended");
            task.abort();
        }
        for shard in self.core.ways.shards() {
            self.owned.close(shard);
        }
        self.ending = EndPhase::Done;
        self.core.shared.set_ended(end);
        None
    }

    /// By the clock that runs, as all instants here.
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

    /// Says that the node is alive.
    fn beat(&mut self) -> Option<DriverEnd> {
        let lease = self.core.lease;
        // From the beginning of the call, so that beats keep their distance however long a call takes.
        let uneasy = (lease / 20).clamp(Duration::from_millis(20), Duration::from_millis(500));
        self.next_beat = self.now() + self.jitter.of(if self.is_uneasy() { uneasy } else { lease / 4 });
        match self.core.shared.in_store(|| self.coordinator.beat(&self.core.me)) {
            Ok(nodes) => {
                if self.since(self.heard) >= lease / 2 {
                    // Others come back when this one does; until they have, each has only what it had.
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
                    tracing::error!(%problem, "nodes that cannot share");
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
                tracing::warn!(%error, "cannot say that this node is alive; shards that it owns serve on");
                if error.kind() == ErrorKind::Corrupt {
                    self.trouble = Some(error.to_string());
                } else if self.since(self.heard) >= lease {
                    self.trouble = Some(format!("what the nodes agree by is away: {error}"));
                }
                self.next_beat = self.now() + self.jitter.of(retry(lease));
            }
        }
        None
    }

    /// An operator may have replaced the secret by which nodes know each other.
    fn learn_secrets(&self) {
        if self.core.me.advertise.is_empty() {
            return; // it speaks with nobody
        }
        match self.core.shared.in_store(|| self.coordinator.secrets()) {
            Ok(secrets) => self.terms.know(&secrets),
            Err(error) => {
                tracing::warn!(%error, "cannot read the cluster's secret; the one that is known stays")
            }
        }
    }

    /// Reads who owns what, and sets the ways.
    fn look(&mut self) {
        self.next_look =
            self.now() + (self.core.lease / 100).clamp(Duration::from_millis(5), Duration::from_millis(100));
        let owners = match self.core.shared.in_store(|| self.coordinator.owners()) {
            Ok(owners) => owners,
            Err(error) => {
                tracing::debug!(%error, "cannot read who owns what");
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
                // The node that takes a shard counts it, and no other.
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
                // Its lease here is over: it cannot write any more, and would find that out later.
                tracing::warn!(%shard, "a shard of this node has another owner");
                self.owned.close(shard);
            }
            let way = match (self.owned.way(shard), elsewhere) {
                (Some(here), _) => here,
                (None, Some(owner)) => self
                    .peers
                    .get(&owner.node.number)
                    .map_or(ShardRoute::None, |(peer, _)| ShardRoute::There(peer.clone())),
                (None, None) => ShardRoute::None,
            };
            self.core.ways.set(shard, way);
        }
        self.looked = Some(self.now());
    }

    /// Takes the shards that this node should have and nobody has, and gives up those that it should not have.
    fn plan(&mut self) {
        // Alone means alone: others that take part all the same get nothing from here.
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
        // What nobody takes for so long keeps no other from moving.
        let mut moving = self.given.iter().flatten().filter(|given| self.since(**given) < lease).count();
        let hangs =
            |at: &usize| self.unknown[*at].is_some() && self.owned.stage(shard(*at)) == ShardStage::Opening;
        let hanging = (0..self.unknown.len()).filter(hangs).count();
        for (at, owner) in self.wanted.iter().enumerate() {
            let shard = shard(at);
            let name = &self.assigned[*owner];
            let is_mine = *name == self.core.me.name;
            if self.unknown[at].is_some() {
                // It can be neither taken nor handed over.
                missing += usize::from(is_mine && self.owned.stage(shard) != ShardStage::Serving);
                continue;
            }
            if !is_mine {
                self.owned.is_elsewhere(shard);
            }
            if is_mine {
                let other = self.owners[at].as_ref().map(|owner| owner.node.number);
                let other = other.filter(|number| *number != self.core.me.number);
                // What another living node has it gives up when this one has stayed; a dead one's lease is about to run out.
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
                tracing::info!(%shard, to = %name, "gives a shard up");
                self.owned.close(shard);
            }
        }
        if missing == 0 {
            self.began.send_replace(true);
        }
    }

    /// Connects to those that are new, and parts from those that are gone.
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
            let stays = others.contains_key(number);
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

    /// Whether a node or an owner may be dead: then it is to be known soon.
    fn is_uneasy(&self) -> bool {
        self.core.ways.lost() > 0 || self.peers.values().any(|(peer, _)| !peer.is_up())
    }

    fn nudge(&self) {
        for (peer, _) in self.peers.values() {
            peer.nudge();
        }
    }

    /// For those who look at the node.
    fn tell(&mut self) {
        let hanging = self.owned.hanging();
        match hanging.as_ref().map(|hanging| (hanging.thread, hanging.others)) {
            // Only a restart helps.
            Some((ThreadIn::Ours, _)) => {}
            Some((ThreadIn::Store, 0)) => self.core.shared.waits_for_store(),
            // Shards that are served keep the node ready for requests.
            Some((ThreadIn::Store, _)) | None => self.core.shared.tick(),
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
            // Nothing is put in here: front ends go to shards.
            let refused =
                stray.ops.iter().map(|_| Err(CallError::Closed("a node decides nothing"))).collect();
            let _ = stray.answer.send(refused);
        }
    }

    /// Says which shards nobody has taken for longer than a node's death explains.
    fn without_owner(&self) -> Option<String> {
        let (longest, shards) = self.for_long(self.unowned.iter().copied())?;
        Some(format!("for up to {longest} s shards have had no owner: {shards}"))
    }

    /// Says of which shards it has not been known for as long who owns them.
    fn not_known(&self) -> Option<String> {
        let since = |unknown: &Option<(Duration, Box<str>)>| unknown.as_ref().map(|(since, _)| *since);
        let (longest, shards) = self.for_long(self.unknown.iter().map(since))?;
        let (_, why) = self.unknown.iter().flatten().min_by_key(|(since, _)| *since)?;
        Some(format!("for up to {longest} s it has not been known who owns shards {shards}: {why}"))
    }

    /// The longest of these times in s, and the names of the shards, if a time is longer than a node's death explains.
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

    /// For who has stayed how long.
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

    /// Whether a shard is nobody's that should be this node's.
    fn misses(&self) -> bool {
        self.wanted.iter().enumerate().any(|(at, wanted)| {
            self.assigned[*wanted] == self.core.me.name
                && self.owners[at].is_none()
                && self.unknown[at].is_none()
                && self.owned.stage(shard(at)) == ShardStage::Away
        })
    }
}

/// When a coordinator that is away is tried again.
fn retry(lease: Duration) -> Duration {
    (lease / 8).min(Duration::from_secs(1))
}

fn shard(at: usize) -> ShardId {
    ShardId(u32::try_from(at).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
