//! The store of a simulated cluster: a server that keeps groups, leases and members, and the stores of the nodes, whose
//! messages to it are late, lost, or applied although their sender has given up.
//!
//! It fulfils the obligations of [`Coordinator`] and [`Store`] like the store on Redis: appends are fenced by the epoch
//! and by their position, the owner counts a lease from before it was requested, and requests of an owner may arrive
//! after its reign.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use duewheel::Clock;
use duewheel_core::record::{ClockPair, Group};
use duewheel_core::store::{
    Candidate, Capacity, Coordinator, ErrorKind, Found, Joined, Level, Load, Loaded, Lookups, Node, Owner,
    Ownership, Progress, Recovered, Secrets, Store, StoreError, Table, Waker,
};
use duewheel_core::{Epoch, Lsn, ShardId, WallMs};
use duewheel_judge::rng::Rng;

use super::facts::ClusterFacts;
use super::network::lock;
use super::{MS, NODES};

/// Length of a lease of a shard.
pub(super) const LEASE: Duration = Duration::from_millis(1_000);
const LEASE_NS: u64 = 1_000 * MS;
/// How long an owner waits for the answer to a group.
const ANSWERED_WITHIN_NS: u64 = 400 * MS;

/// A bug of the store, or of an owner's use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorldBug {
    /// A renewal gives the lease to its sender, whatever the epoch.
    RenewalWithoutEpoch,
    /// An owner continues when its lease has ended.
    DeadlineIgnored,
    /// A group is applied whatever its epoch and position.
    AppendUnfenced,
}

/// The server, and all requests and answers in flight. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct World(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    now: u64,
    rng: Rng,
    bug: Option<WorldBug>,
    latency_ms: u64,
    shards: Vec<Kept>,
    members: BTreeMap<Box<str>, Member>,
    last_number: u32,
    links: [Link; NODES],
    reigns: Vec<Arc<Mutex<Reign>>>,
    facts: ClusterFacts,
    broken: Option<String>,
}

/// The connection between a node and the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Link {
    #[default]
    Fine,
    /// It is cut; requests arrive when the cut ends.
    Cut,
    /// This percentage of calls reach the server, and their answers are lost.
    Lossy(u64),
}

#[derive(Debug)]
struct Member {
    node: Node,
    heard: u64,
}

/// A shard in the server.
#[derive(Debug)]
struct Kept {
    groups: Vec<Group>,
    next: Lsn,
    /// The clocks of the last group, and the time of its arrival.
    clock: Option<(ClockPair, u64)>,
    epoch: u32,
    lease: Option<Lease>,
    /// The last node that owned it.
    last: Option<u32>,
}

#[derive(Debug)]
struct Lease {
    owner: Owner,
    until: u64,
    reign: Weak<Mutex<Reign>>,
}

/// An owner's store, and its connection to the server.
#[derive(Debug)]
struct Reign {
    me: Weak<Mutex<Reign>>,
    place: usize,
    shard: ShardId,
    owner: Owner,
    waker: Wakes,
    clock: Arc<dyn Clock>,
    /// The end of its certain lease, by its own clock.
    until: Duration,
    acked: Lsn,
    /// Groups and renewals on their way to the server, in order, with the times of their arrival.
    there: VecDeque<(u64, Ask)>,
    /// Answers on their way back.
    back: VecDeque<(u64, Said)>,
    /// The times at which unanswered groups were sent.
    waits: VecDeque<u64>,
    renews_at: u64,
    pages: VecDeque<(u64, Loaded)>,
    over: Option<StoreError>,
}

#[derive(Debug)]
enum Ask {
    Append(Group),
    /// Sent at this time by the owner's clock.
    Renew(Duration),
}

#[derive(Debug)]
enum Said {
    Applied(Lsn),
    /// Nothing from this position on was applied.
    Refused(Lsn),
    Renewed(Duration),
    NotRenewed,
}

#[derive(Clone)]
struct Wakes(Waker);

impl fmt::Debug for Wakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

impl World {
    pub(super) fn new(seed: u64, shards: u32, latency_ms: u64, bug: Option<WorldBug>) -> Self {
        let kept =
            |_| Kept { groups: Vec::new(), next: Lsn(1), clock: None, epoch: 0, lease: None, last: None };
        World(Arc::new(Mutex::new(State {
            now: 0,
            rng: Rng::new(seed),
            bug,
            latency_ms,
            shards: (0..shards).map(kept).collect(),
            members: BTreeMap::new(),
            last_number: 0,
            links: [Link::Fine; NODES],
            reigns: Vec::new(),
            facts: ClusterFacts::default(),
            broken: None,
        })))
    }

    pub(super) fn link(&self, node: usize, link: Link) {
        self.state().links[node] = link;
    }

    /// Whether all nodes reach the server.
    pub(super) fn is_well(&self) -> bool {
        self.state().links.iter().all(|link| *link == Link::Fine)
    }

    pub(super) fn facts(&self) -> ClusterFacts {
        self.state().facts
    }

    /// Lets time pass. Owners on paused nodes neither receive nor send anything.
    pub(super) fn advance(&self, now: u64, still: &impl Fn(usize) -> bool) {
        let reigns = {
            let mut state = self.state();
            state.now = now;
            // Owners that are gone may still have requests in flight.
            state.reigns.retain(|reign| Arc::strong_count(reign) > 1 || !lock(reign).there.is_empty());
            state.reigns.clone()
        };
        for reign in &reigns {
            let mut state = self.state();
            let mut reign = lock(reign);
            let link = state.links[reign.place];
            if link != Link::Cut {
                while reign.there.front().is_some_and(|(at, _)| *at <= now)
                    && let Some((_, ask)) = reign.there.pop_front()
                {
                    let said = state.serve(&reign, ask);
                    let at = state.arrival();
                    let at = reign.back.back().map_or(at, |(last, _)| at.max(*last));
                    reign.back.push_back((at, said));
                }
            }
            drop(state);
            if !still(reign.place) {
                reign.go_on(self, link, now);
            }
        }
        self.look_for_two_owners(&reigns, still);
    }

    /// An obligation that was not kept.
    pub(super) fn broken(&self) -> Option<String> {
        self.state().broken.clone()
    }

    /// Checks that there is one owner at a time: no two owners are sure of their lease, and only the last one has a
    /// lease.
    fn look_for_two_owners(&self, reigns: &[Arc<Mutex<Reign>>], still: &impl Fn(usize) -> bool) {
        {
            let mut state = self.state();
            let is_old = |kept: &Kept| kept.lease.as_ref().is_some_and(|l| l.owner.epoch.0 != kept.epoch);
            if state.shards.iter().any(is_old) {
                state.broken.get_or_insert_with(|| "a lease is that of an earlier epoch".to_owned());
            }
        }
        let mut owners: BTreeMap<ShardId, (usize, Epoch)> = BTreeMap::new();
        for reign in reigns {
            let mut reign = lock(reign);
            if still(reign.place) || reign.check(self).is_err() {
                continue;
            }
            let (place, epoch) = (reign.place, reign.owner.epoch);
            if let Some((other, before)) = owners.insert(reign.shard, (place, epoch)) {
                let shard = reign.shard;
                let what = format!(
                    "two owners of shard {shard} at a time: node {other} of epoch {before:?} and node {place} of epoch {epoch:?}"
                );
                self.state().broken.get_or_insert(what);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl State {
    fn arrival(&mut self) -> u64 {
        self.now + self.rng.range(1, self.latency_ms + 1) * MS
    }

    /// Whether a call reaches the server, and its answer the caller.
    fn reaches(&mut self, node: usize) -> Result<(), StoreError> {
        match self.links[node] {
            Link::Fine => Ok(()),
            Link::Cut => Err(away()),
            Link::Lossy(percent) if self.rng.percent(percent) => {
                if self.rng.percent(50) {
                    Ok(())
                } else {
                    Err(away())
                }
            }
            Link::Lossy(_) => Ok(()),
        }
    }

    /// Whether the answer of a call that has reached the server is lost.
    fn answered<T>(&mut self, node: usize, answer: T) -> Result<T, StoreError> {
        match self.links[node] {
            Link::Lossy(percent) if self.rng.percent(percent) => {
                self.facts.answers_lost += 1;
                Err(away())
            }
            Link::Fine | Link::Cut | Link::Lossy(_) => Ok(answer),
        }
    }

    fn serve(&mut self, reign: &Reign, ask: Ask) -> Said {
        let (now, bug) = (self.now, self.bug);
        let kept = &mut self.shards[reign.shard.0 as usize];
        let is_owner = kept.epoch == reign.owner.epoch.0;
        match ask {
            Ask::Append(group) => {
                let fenced = !is_owner || group.first != kept.next;
                if fenced && bug != Some(WorldBug::AppendUnfenced) {
                    self.facts.stale_writes_refused += 1;
                    return Said::Refused(group.first);
                }
                self.facts.late_writes += u64::from(reign.over.is_some());
                let last = group.last();
                kept.next = last.next();
                kept.clock = Some((group.clock, now));
                kept.groups.push(group);
                Said::Applied(last)
            }
            Ask::Renew(asked) => {
                let counts = is_owner || bug == Some(WorldBug::RenewalWithoutEpoch);
                match &mut kept.lease {
                    Some(lease) if counts => {
                        lease.owner = reign.owner.clone();
                        lease.reign = reign.me.clone();
                        lease.until = now + LEASE_NS;
                        Said::Renewed(asked)
                    }
                    Some(_) | None => {
                        self.facts.stale_renewals_refused += 1;
                        Said::NotRenewed
                    }
                }
            }
        }
    }

    fn living(&self) -> Vec<Node> {
        let lives = |member: &&Member| self.now < member.heard + LEASE_NS;
        self.members.values().filter(lives).map(|member| member.node.clone()).collect()
    }

    fn owner(&self, shard: usize) -> Option<Owner> {
        let lease = self.shards[shard].lease.as_ref()?;
        (self.now < lease.until).then(|| lease.owner.clone())
    }
}

impl Reign {
    /// Handles arrived requests, and sends answers.
    fn go_on(&mut self, world: &World, link: Link, now: u64) {
        let mut woken = false;
        while link != Link::Cut
            && self.back.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, said)) = self.back.pop_front()
        {
            woken = true;
            match said {
                Said::Applied(last) => {
                    self.waits.pop_front();
                    self.acked = self.acked.max(last);
                }
                Said::Refused(first) => {
                    self.waits.pop_front();
                    self.end(fenced("another owner has the shard").with_nothing_from(first));
                }
                Said::Renewed(asked) => self.until = self.until.max(asked + LEASE),
                Said::NotRenewed => self.end(fenced("the lease is another owner's")),
            }
        }
        if self.over.is_none() {
            let _ = self.check(world); // an end of the lease is to be told
            if self.waits.front().is_some_and(|sent| now >= sent + ANSWERED_WITHIN_NS) {
                world.state().facts.unanswered_writes += 1;
                self.end(away());
            }
            woken |= self.over.is_some();
        }
        if self.over.is_none() && now >= self.renews_at {
            self.renews_at = now + LEASE_NS / 3;
            let asked = self.clock.running();
            self.send(world, Ask::Renew(asked));
        }
        woken |= self.pages.front().is_some_and(|(at, _)| *at <= now);
        if woken {
            (self.waker.0)();
        }
    }

    fn send(&mut self, world: &World, ask: Ask) {
        let at = world.state().arrival();
        let at = self.there.back().map_or(at, |(last, _)| at.max(*last));
        self.there.push_back((at, ask));
    }

    fn end(&mut self, why: StoreError) {
        self.over.get_or_insert(why);
    }

    /// Whether the store may still answer.
    fn check(&mut self, world: &World) -> Result<(), StoreError> {
        if self.over.is_none() && self.clock.running() >= self.until {
            let mut state = world.state();
            if state.bug != Some(WorldBug::DeadlineIgnored) {
                state.facts.leases_run_out += 1;
                drop(state);
                self.end(fenced("the lease is over"));
            }
        }
        self.over.clone().map_or(Ok(()), Err)
    }
}

/// The coordinator as one node reaches it.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) world: World,
    pub(super) place: usize,
    pub(super) clock: Arc<dyn Clock>,
}

impl Coordinator for Way {
    fn join(&self, candidate: &Candidate) -> Result<Joined, StoreError> {
        let mut state = self.world.state();
        state.reaches(self.place)?;
        if state.living().iter().any(|node| node.name == candidate.name) {
            return Err(fenced("the name is taken"));
        }
        state.last_number += 1;
        let node = Node {
            name: candidate.name.clone(),
            advertise: candidate.advertise.clone(),
            number: state.last_number,
        };
        let heard = state.now;
        state.members.insert(node.name.clone(), Member { node: node.clone(), heard });
        let shards = u32::try_from(state.shards.len()).unwrap_or(u32::MAX);
        state.answered(self.place, Joined { node, shards, secret: [7; 32], is_alone: false })
    }

    fn beat(&self, node: &Node) -> Result<Vec<Node>, StoreError> {
        let mut state = self.world.state();
        state.reaches(self.place)?;
        let now = state.now;
        match state.members.get_mut(&node.name) {
            Some(member) if member.node.number == node.number => member.heard = now,
            Some(member) if now < member.heard + LEASE_NS => return Err(fenced("another has the name")),
            Some(_) | None => {
                let member = Member { node: node.clone(), heard: now };
                state.members.insert(node.name.clone(), member);
            }
        }
        let living = state.living();
        state.answered(self.place, living)
    }

    fn leave(&self, node: &Node) -> Result<(), StoreError> {
        let mut state = self.world.state();
        state.reaches(self.place)?;
        if state.members.get(&node.name).is_some_and(|member| member.node.number == node.number) {
            state.members.remove(&node.name);
        }
        state.answered(self.place, ())
    }

    fn secrets(&self) -> Result<Secrets, StoreError> {
        self.world.state().reaches(self.place)?;
        Ok(Secrets { current: [7; 32], former: None })
    }

    fn owners(&self) -> Result<Vec<Ownership>, StoreError> {
        let mut state = self.world.state();
        state.reaches(self.place)?;
        let owner = |shard| state.owner(shard).map_or(Ownership::Free, Ownership::Owned);
        Ok((0..state.shards.len()).map(owner).collect())
    }

    fn open(&self, node: &Node, shard: ShardId, waker: Waker) -> Result<Box<dyn Store>, StoreError> {
        let asked = self.clock.running();
        let mut state = self.world.state();
        state.reaches(self.place)?;
        let now = state.now;
        let kept = &mut state.shards[shard.0 as usize];
        if let Some(lease) = kept.lease.as_ref().filter(|lease| now < lease.until) {
            // A process knows that an ended reign of its own answers no calls any more.
            let is_over = match lease.reign.upgrade() {
                Some(reign) => lock(&reign).over.is_some(),
                None => true,
            };
            if lease.owner.node.number != node.number || !is_over {
                return Err(fenced("another lease runs"));
            }
        }
        kept.epoch += 1;
        let owner = Owner { node: node.clone(), epoch: Epoch(kept.epoch) };
        let moved = kept.last.replace(node.number).is_some_and(|last| last != node.number);
        let mut table = Table::default();
        for group in &kept.groups {
            table.apply(group);
        }
        let recovered = kept.recovered(&table, now, self.clock.read().wall_ns / MS);
        let reign = Arc::new_cyclic(|me| {
            Mutex::new(Reign {
                me: me.clone(),
                place: self.place,
                shard,
                owner: owner.clone(),
                waker: Wakes(waker),
                clock: self.clock.clone(),
                until: asked + LEASE,
                acked: table.applied(),
                there: VecDeque::new(),
                back: VecDeque::new(),
                waits: VecDeque::new(),
                renews_at: now + LEASE_NS / 3,
                pages: VecDeque::new(),
                over: None,
            })
        });
        kept.lease = Some(Lease { owner, until: now + LEASE_NS, reign: Arc::downgrade(&reign) });
        state.facts.reigns += 1;
        state.facts.takeovers += u64::from(moved);
        state.answered(self.place, ())?;
        state.reigns.push(reign.clone());
        drop(state);
        let world = self.world.clone();
        Ok(Box::new(SimStore { world, reign, table, recovered }))
    }

    fn lease(&self) -> Duration {
        LEASE
    }

    fn level(&self) -> Level {
        Level::Buffered
    }
}

impl Kept {
    /// The state for a new owner. The time since the last group is measured by the server's clock, and converted to the
    /// owner's wall clock.
    fn recovered(&self, table: &Table, now: u64, wall_ms: u64) -> Recovered {
        let mut recovered = table.recovered(Epoch(self.epoch));
        recovered.clock = self.clock.map(|(clock, came)| {
            // Both ends are rounded, so one more millisecond would not be certain.
            let passed = ((now - came) / MS).saturating_sub(1);
            ClockPair { engine: clock.engine, wall: WallMs(wall_ms.saturating_sub(passed)) }
        });
        recovered
    }
}

/// The store of an owner.
struct SimStore {
    world: World,
    reign: Arc<Mutex<Reign>>,
    /// The shard with everything that this owner has appended: its reads follow its appends.
    table: Table,
    recovered: Recovered,
}

impl SimStore {
    fn reign(&self) -> Result<MutexGuard<'_, Reign>, StoreError> {
        let mut reign = lock(&self.reign);
        reign.check(&self.world)?;
        Ok(reign)
    }
}

impl Store for SimStore {
    fn recovered(&mut self) -> Recovered {
        self.recovered.clone()
    }

    fn append(&mut self, group: &Group) -> Result<(), StoreError> {
        let mut reign = self.reign()?;
        reign.send(&self.world, Ask::Append(group.clone()));
        let now = self.world.state().now;
        reign.waits.push_back(now);
        drop(reign);
        self.table.apply(group);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.reign().map(drop)
    }

    fn progress(&mut self) -> Result<Progress, StoreError> {
        let acked = self.reign()?.acked;
        Ok(Progress { written: acked, durable: acked, level: self.level() })
    }

    fn room(&mut self) -> Capacity {
        Capacity::Enough
    }

    fn find_many(&mut self, lookups: &Lookups, found: &mut Found) -> Result<(), StoreError> {
        drop(self.reign()?);
        self.table.find_many(lookups, found);
        Ok(())
    }

    fn load(&mut self, load: Load) -> Result<(), StoreError> {
        let page = self.table.load(load);
        let mut reign = self.reign()?;
        let at = self.world.state().arrival();
        let at = reign.pages.back().map_or(at, |(last, _)| at.max(*last));
        reign.pages.push_back((at, page));
        Ok(())
    }

    fn loaded(&mut self) -> Option<Result<Loaded, StoreError>> {
        let now = self.world.state().now;
        let mut reign = match self.reign() {
            Ok(reign) => reign,
            Err(error) => return Some(Err(error)),
        };
        let is_there = reign.pages.front().is_some_and(|(at, _)| *at <= now);
        if is_there { reign.pages.pop_front().map(|(_, page)| Ok(page)) } else { None }
    }

    fn idle(&mut self, _: ClockPair) -> Result<(), StoreError> {
        self.reign().map(drop)
    }

    fn close(&mut self, clock: ClockPair) -> Result<Progress, StoreError> {
        let mut state = self.world.state();
        let place = lock(&self.reign).place;
        let reached = state.reaches(place);
        drop(state);
        let mut reign = self.reign()?;
        reached?;
        // It waits until everything has arrived, which is now.
        let (world, asks) = (self.world.clone(), std::mem::take(&mut reign.there));
        let mut state = world.state();
        for (_, ask) in asks {
            if let Said::Refused(first) = state.serve(&reign, ask) {
                reign.end(fenced("another owner has the shard").with_nothing_from(first));
            }
        }
        let now = state.now;
        let kept = &mut state.shards[reign.shard.0 as usize];
        if kept.epoch == reign.owner.epoch.0 && reign.over.is_none() {
            kept.lease = None;
            kept.clock = Some((clock, now));
        }
        drop(state);
        reign.over.clone().map_or(Ok(()), Err)?;
        reign.end(StoreError::new(ErrorKind::Closed, "the store is closed"));
        let last = self.table.applied();
        Ok(Progress { written: last, durable: last, level: Level::Buffered })
    }

    fn level(&self) -> Level {
        Level::Buffered
    }

    fn figures(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

impl Drop for SimStore {
    fn drop(&mut self) {
        // The lease is not renewed any more; earlier requests may still arrive.
        lock(&self.reign).end(StoreError::new(ErrorKind::Closed, "its owner is gone"));
    }
}

fn fenced(why: &str) -> StoreError {
    StoreError::new(ErrorKind::Fenced, why)
}

fn away() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, "the store does not answer")
}
