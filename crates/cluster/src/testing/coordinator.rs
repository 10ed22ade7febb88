//! A coordinator in memory, for tests of several nodes in one process: its leases end by the clock, and it fails on
//! demand.
#![allow(clippy::disallowed_methods)] // it stands for another machine, with a clock and a thread of its own

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use duewheel_core::id::ShardId;
use duewheel_core::pass_on;
use duewheel_core::record::{ClockPair, Group};
use duewheel_core::store::{
    Candidate, Coordinator, ErrorKind, Joined, Level, MemoryDisk, MemoryStore, Node, Owner, Ownership,
    Progress, Secrets, Store, StoreError, Waker,
};

/// Keeps in memory what nodes share. Clones share one state and one identity.
#[derive(Clone, Debug)]
pub struct MemoryCoordinator {
    world: Arc<World>,
    /// The number of the node that has joined through this handle; 0: none.
    who: Arc<AtomicU32>,
}

#[derive(Debug)]
struct World {
    lease: Duration,
    state: Mutex<CoordinatorState>,
    let_open: Condvar,
    let_append: Condvar,
}

#[derive(Debug)]
struct CoordinatorState {
    shards: Vec<ShardState>,
    secrets: Secrets,
    /// The nodes that have read the present secrets.
    know: BTreeSet<u32>,
    members: BTreeMap<Box<str>, Member>,
    last_number: u32,
    away: Option<StoreError>,
    cut_off: BTreeSet<u32>,
    panic_at: Option<ShardId>,
    /// Shards whose owners are not reported.
    hidden: BTreeSet<ShardId>,
    opens: Opens,
    /// The shard whose appends hang, and the number of appends that do.
    held_append: Option<ShardId>,
    hanging: usize,
}

impl Default for CoordinatorState {
    fn default() -> Self {
        CoordinatorState {
            shards: Vec::new(),
            secrets: Secrets { current: [7; 32], former: None },
            know: BTreeSet::new(),
            members: BTreeMap::new(),
            last_number: 0,
            away: None,
            cut_off: BTreeSet::new(),
            panic_at: None,
            hidden: BTreeSet::new(),
            opens: Opens::default(),
            held_append: None,
            hanging: 0,
        }
    }
}

/// Behavior of calls that open a shard.
#[derive(Debug, Default, PartialEq, Eq)]
enum Opens {
    #[default]
    Open,
    Hang,
}

#[derive(Debug)]
struct Member {
    node: Node,
    heard: Instant,
}

#[derive(Debug)]
struct ShardState {
    disk: MemoryDisk,
    lease: Option<ShardLease>,
}

#[derive(Debug)]
struct ShardLease {
    owner: Owner,
    until: Instant,
    /// The store; a lease whose store is gone is not renewed.
    store: Weak<()>,
}

impl MemoryCoordinator {
    /// A coordinator without nodes. A thread of its own renews leases as long as it lives.
    pub fn new(lease: Duration) -> Self {
        let world = Arc::new(World {
            lease,
            state: Mutex::default(),
            let_open: Condvar::new(),
            let_append: Condvar::new(),
        });
        let weak = Arc::downgrade(&world);
        std::thread::spawn(move || {
            while let Some(world) = weak.upgrade() {
                world.renew();
                drop(world);
                std::thread::sleep(lease / 8);
            }
        });
        MemoryCoordinator { world, who: Arc::default() }
    }

    /// A handle for one node, which can be cut off alone.
    #[must_use]
    pub fn for_a_node(&self) -> Self {
        MemoryCoordinator { world: self.world.clone(), who: Arc::default() }
    }

    /// Lets all calls fail until [`MemoryCoordinator::come_back`]; running leases are renewed all the same.
    pub fn go_away(&self) {
        self.world.state().away = Some(unavailable("the coordinator is away"));
    }

    /// Ends [`MemoryCoordinator::go_away`].
    pub fn come_back(&self) {
        self.world.state().away = None;
    }

    /// Lets every call of a node fail, including those of its stores, and lets its leases run out, until
    /// [`MemoryCoordinator::let_in`].
    pub fn cut_off(&self, node: u32) {
        self.world.state().cut_off.insert(node);
    }

    /// Ends [`MemoryCoordinator::cut_off`].
    pub fn let_in(&self, node: u32) {
        self.world.state().cut_off.remove(&node);
    }

    /// Ends the lease of a shard now; its owner is fenced.
    pub fn end_lease(&self, shard: ShardId) {
        if let Some(shard) = self.world.state().shards.get_mut(shard.0 as usize) {
            shard.lease = None;
        }
    }

    /// Ends the membership and the leases of a node now: others see it as dead until it renews.
    pub fn end_time(&self, node: u32) {
        let mut state = self.world.state();
        state.members.retain(|_, member| member.node.number != node);
        for shard in &mut state.shards {
            shard.lease = shard.lease.take().filter(|lease| lease.owner.node.number != node);
        }
    }

    /// Hides the owners of these shards, as if a part of the coordinator hung; with no shards: all are shown again.
    pub fn hide(&self, shards: &[ShardId]) {
        self.world.state().hidden = shards.iter().copied().collect();
    }

    /// Lets the next append of a shard panic, as a bug would.
    pub fn panic_at(&self, shard: ShardId) {
        self.world.state().panic_at = Some(shard);
    }

    /// Lets calls that open a shard hang until [`MemoryCoordinator::let_open`].
    pub fn hold_open(&self) {
        self.world.state().opens = Opens::Hang;
    }

    /// Ends [`MemoryCoordinator::hold_open`].
    pub fn let_open(&self) {
        self.world.state().opens = Opens::Open;
        self.world.let_open.notify_all();
    }

    /// Lets appends of this shard hang until [`MemoryCoordinator::let_append`], while its lease is renewed.
    pub fn hold_append(&self, shard: ShardId) {
        self.world.state().held_append = Some(shard);
    }

    /// Whether an append hangs now.
    pub fn hangs(&self) -> bool {
        self.world.state().hanging > 0
    }

    /// Ends [`MemoryCoordinator::hold_append`].
    pub fn let_append(&self) {
        self.world.state().held_append = None;
        self.world.let_append.notify_all();
    }

    /// Replaces the secret; the former one stays valid until [`MemoryCoordinator::end_rotation`].
    pub fn rotate_secret(&self, secret: [u8; 32]) {
        let mut state = self.world.state();
        state.secrets = Secrets { current: secret, former: Some(state.secrets.current) };
        state.know.clear();
    }

    /// Whether all living nodes have read the present secrets.
    pub fn all_know(&self) -> bool {
        let state = self.world.state();
        let now = Instant::now();
        let mut living = state.members.values().filter(|member| member.heard + self.world.lease > now);
        living.all(|member| state.know.contains(&member.node.number))
    }

    /// Ends the validity of the former secret.
    pub fn end_rotation(&self) {
        let mut state = self.world.state();
        state.secrets.former = None;
        state.know.clear();
    }

    /// The files that the stores of a shard leave behind.
    ///
    /// # Panics
    /// When the shard does not exist yet.
    pub fn disk(&self, shard: ShardId) -> MemoryDisk {
        self.world.state().shards[shard.0 as usize].disk.clone()
    }
}

fn unavailable(what: &str) -> StoreError {
    StoreError::new(ErrorKind::Unavailable, what)
}

fn fenced(what: impl fmt::Display) -> StoreError {
    StoreError::new(ErrorKind::Fenced, what)
}

impl World {
    fn state(&self) -> MutexGuard<'_, CoordinatorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renew(&self) {
        let mut state = self.state();
        let CoordinatorState { shards, cut_off, .. } = &mut *state;
        let now = Instant::now();
        for lease in shards.iter_mut().filter_map(|shard| shard.lease.as_mut()) {
            let lives = lease.store.strong_count() > 0 && now < lease.until;
            if lives && !cut_off.contains(&lease.owner.node.number) {
                lease.until = now + self.lease;
            }
        }
    }
}

impl CoordinatorState {
    fn check(&self, node: u32) -> Result<(), StoreError> {
        if self.cut_off.contains(&node) {
            return Err(unavailable("cut off"));
        }
        self.away.clone().map_or(Ok(()), Err)
    }

    fn running(&self, shard: ShardId) -> Option<&Owner> {
        let lease = self.shards.get(shard.0 as usize)?.lease.as_ref()?;
        (Instant::now() < lease.until).then_some(&lease.owner)
    }
}

impl Coordinator for MemoryCoordinator {
    fn join(&self, candidate: &Candidate) -> Result<Joined, StoreError> {
        let mut state = self.world.state();
        state.check(self.who.load(SeqCst))?;
        let now = Instant::now();
        if let Some(member) = state.members.get(&candidate.name)
            && member.heard + self.world.lease > now
        {
            return Err(fenced(format_args!("node {} lives", candidate.name)));
        }
        if state.shards.is_empty() {
            let shard = |_| ShardState { disk: MemoryDisk::default(), lease: None };
            state.shards = (0..candidate.shards_if_new).map(shard).collect();
        }
        state.last_number += 1;
        self.who.store(state.last_number, SeqCst);
        let node = Node {
            name: candidate.name.clone(),
            advertise: candidate.advertise.clone(),
            number: state.last_number,
        };
        state.members.insert(node.name.clone(), Member { node: node.clone(), heard: now });
        let shards = u32::try_from(state.shards.len()).unwrap_or(u32::MAX);
        Ok(Joined { node, shards, secret: state.secrets.current, is_alone: false })
    }

    fn secrets(&self) -> Result<Secrets, StoreError> {
        let mut state = self.world.state();
        let who = self.who.load(SeqCst);
        state.check(who)?;
        state.know.insert(who);
        Ok(state.secrets)
    }

    fn beat(&self, node: &Node) -> Result<Vec<Node>, StoreError> {
        let mut state = self.world.state();
        state.check(node.number)?;
        let now = Instant::now();
        let me = Member { node: node.clone(), heard: now };
        match state.members.get_mut(&node.name) {
            Some(member) if member.node.number != node.number => {
                return Err(fenced(format_args!("node {} has the name", member.node.number)));
            }
            Some(member) => *member = me,
            None => drop(state.members.insert(node.name.clone(), me)),
        }
        let lease = self.world.lease;
        let living = state.members.values().filter(|member| member.heard + lease > now);
        Ok(living.map(|member| member.node.clone()).collect())
    }

    fn leave(&self, node: &Node) -> Result<(), StoreError> {
        let mut state = self.world.state();
        state.check(node.number)?;
        if state.members.get(&node.name).is_some_and(|member| member.node.number == node.number) {
            state.members.remove(&node.name);
        }
        Ok(())
    }

    fn owners(&self) -> Result<Vec<Ownership>, StoreError> {
        let state = self.world.state();
        state.check(self.who.load(SeqCst))?;
        let shards = (0..u32::try_from(state.shards.len()).unwrap_or(u32::MAX)).map(ShardId);
        let owner = |shard| match state.running(shard) {
            _ if state.hidden.contains(&shard) => Ownership::Unknown("it does not answer".into()),
            Some(owner) => Ownership::Owned(owner.clone()),
            None => Ownership::Free,
        };
        Ok(shards.map(owner).collect())
    }

    fn open(&self, node: &Node, shard: ShardId, waker: Waker) -> Result<Box<dyn Store>, StoreError> {
        let mut state = self.world.state();
        while state.opens == Opens::Hang {
            state = self.world.let_open.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.check(node.number)?;
        if let Some(owner) = state.running(shard)
            && owner.node.number != node.number
        {
            return Err(fenced(format_args!("node {} has shard {shard}", owner.node.name)));
        }
        let lease = self.world.lease;
        let Some(kept) = state.shards.get_mut(shard.0 as usize) else {
            return Err(StoreError::new(ErrorKind::Corrupt, "there is no such shard"));
        };
        let mut store = MemoryStore::open(&kept.disk, waker);
        let owner = Owner { node: node.clone(), epoch: store.recovered().epoch };
        let lives = Arc::new(());
        let until = Instant::now() + lease;
        kept.lease = Some(ShardLease { owner: owner.clone(), until, store: Arc::downgrade(&lives) });
        let world = self.world.clone();
        Ok(Box::new(LeasedStore { store, world, shard, owner, _lives: lives }))
    }

    fn lease(&self) -> Duration {
        self.world.lease
    }

    fn level(&self) -> Level {
        Level::Memory
    }
}

/// A store that works while its lease runs.
struct LeasedStore {
    store: MemoryStore,
    world: Arc<World>,
    shard: ShardId,
    owner: Owner,
    _lives: Arc<()>,
}

impl LeasedStore {
    fn check(&self) -> Result<(), StoreError> {
        let state = self.world.state();
        match state.running(self.shard) {
            Some(owner) if *owner == self.owner => {}
            _ => return Err(fenced("the lease is over")),
        }
        if state.cut_off.contains(&self.owner.node.number) {
            return Err(unavailable("cut off"));
        }
        Ok(())
    }

    fn checked<T>(
        &mut self,
        call: impl FnOnce(&mut MemoryStore) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.check()?;
        call(&mut self.store)
    }
}

impl Store for LeasedStore {
    pass_on!(in checked: sync progress find_many ask idle);
    pass_on!(store: recovered room room_error terms arrived figures);

    fn append(&mut self, group: &Group) -> Result<(), StoreError> {
        self.check()?;
        let mut state = self.world.state();
        let panics = state.panic_at == Some(self.shard);
        while state.held_append == Some(self.shard) {
            state.hanging += 1;
            state = self.world.let_append.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.hanging -= 1;
        }
        drop(state);
        assert!(!panics, "the test wants it");
        self.store.append(group)
    }

    fn close(&mut self, clock: ClockPair) -> Result<Progress, StoreError> {
        self.check()?;
        let done = self.store.close(clock)?;
        let mut state = self.world.state();
        if state.running(self.shard) == Some(&self.owner)
            && let Some(shard) = state.shards.get_mut(self.shard.0 as usize)
        {
            shard.lease = None;
        }
        Ok(done)
    }
}
