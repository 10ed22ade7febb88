//! The coordinator of the simulated server, as one node reaches it: members, leases of shards, and their owners.

use super::*;

/// Fewer ids and tokens of a shard are given in a ms.
const IDS_A_MS: u64 = 1 << 10;
/// Percent of the openings of shards during which a wrong wall clock is stepped.
const STEPS: u64 = 30;

/// The coordinator as one node reaches it.
#[derive(Debug)]
pub(in super::super) struct NodeCoordinator {
    pub(in super::super) world: World,
    pub(in super::super) place: usize,
    pub(in super::super) clock: MachineClock,
    pub(in super::super) log: LogOptions,
    /// The memory of the node's process.
    pub(in super::super) shared: MediumShared,
}

impl NodeCoordinator {
    /// Acquires a shard: its files, for their owner.
    pub(in super::super) fn acquire(
        &self,
        node: &Node,
        shard: ShardId,
        waker: Waker,
    ) -> Result<(SimMedium, Acquired), StoreError> {
        let asked = self.clock.running();
        let mut state = self.world.state();
        state.reaches(self.place)?;
        let (now, bug, shards) = (state.now, state.bug, state.shards.len());
        let sets_back = state.sets_back;
        state.earlier[shard.0 as usize].clear();
        let until = now + lease_ns(state.bug);
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
        if bug != Some(WorldBug::EpochKept) || kept.epoch == 0 {
            kept.epoch += 1;
        }
        let owner = Owner { node: node.clone(), epoch: Epoch(kept.epoch) };
        let moved = kept.last.replace(node.number).is_some_and(|last| last != node.number);
        let named: Vec<FileId> = kept.files.names.values().map(|file| file.id).collect();
        kept.files.bytes.retain(|file, _| named.contains(file));
        let acquired = Acquired {
            shard: shard.0,
            shards: u32::try_from(shards).unwrap_or(u32::MAX),
            // What is lost has given no such id and token.
            first_id: if sets_back { now / MS * IDS_A_MS } else { 0 },
            given_up: Epoch(0),
            tokens: if sets_back { now / MS * IDS_A_MS } else { 0 },
            noted_ago: kept.files.noted.map(|noted| Duration::from_nanos(now - noted)),
            taken: self.clock.read(),
        };
        let (journal, turn) = (kept.files.journal, kept.files.turn);
        let reign = Arc::new_cyclic(|me| {
            Mutex::new(Reign {
                me: me.clone(),
                place: self.place,
                shard,
                owner: owner.clone(),
                waker: Wakes(Arc::clone(&waker)),
                clock: Arc::new(self.clock.clone()),
                until: asked + LEASE,
                journal,
                turn,
                writes: BTreeMap::new(),
                notes: false,
                there: VecDeque::new(),
                back: VecDeque::new(),
                renews_at: now + LEASE_NS / 3,
                hands: None,
                over: None,
            })
        });
        kept.lease = Some(Lease { owner, until, reign: Arc::downgrade(&reign) });
        state.facts.reigns += 1;
        state.facts.takeovers += u64::from(moved);
        state.answered(self.place, ())?;
        state.reigns.push(reign.clone());
        drop(state);
        Ok((SimMedium { world: self.world.clone(), reign }, acquired))
    }
}

impl Coordinator for NodeCoordinator {
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
        let (medium, acquired) = self.acquire(node, shard, Arc::clone(&waker))?;
        let reign = Arc::clone(&medium.reign);
        if self.clock.is_skewed() {
            let mut state = self.world.state();
            if state.rng.percent(STEPS) {
                self.clock.step(state.rng.range(0, 7_200_000).cast_signed() - 3_600_000);
                state.facts.stepped += 1;
            }
        }
        let lost_before = self.shared.ends.lost_total(shard.0);
        let store = MediumStore::open(Arc::new(medium), &self.shared, self.log.clone(), &acquired, waker)?;
        self.world.state().facts.lost_noticed += self.shared.ends.lost_total(shard.0) - lost_before;
        lock(&reign).hands = Some(store.hands());
        Ok(Box::new(store))
    }

    fn lease(&self) -> Duration {
        LEASE
    }

    fn level(&self) -> Level {
        Level::Buffered
    }
}
