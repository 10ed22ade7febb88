//! The medium of a simulated cluster: a server that keeps files, leases and members, and the owners of shards, whose
//! calls to it are lost, late, or carried out although their sender has given up. The stores over it are the real ones.
//!
//! It fulfils the obligations of [`Coordinator`] and [`Medium`] like Redis: changes are fenced by the epoch, the journal
//! by the number of the write before, the owner counts a lease from before it was requested, and what a call without an
//! answer has sent may arrive after its reign.

mod coordinator;
mod medium;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use duewheel::Clock;
use duewheel_core::store::{
    Candidate, Coordinator, ErrorKind, Joined, Level, Node, Owner, Ownership, Secrets, Store, StoreError,
    Waker,
};
use duewheel_core::{Epoch, Lsn, MessageId, ShardId};
use duewheel_judge::rng::Rng;
use duewheel_store_log::{Hands, Options as LogOptions};
use duewheel_store_medium::{
    Acquired, FileId, FileKind, Medium, MediumFiles, MediumShared, MediumStore, NamedFile, Piece,
};

use super::super::process::HANDS;
use super::clock::MachineClock;
use super::facts::ClusterFacts;
use super::network::lock;
use super::{FORGOTTEN_MS, MS, NODES};
pub(super) use coordinator::NodeCoordinator;
pub(super) use medium::SimMedium;

/// Length of a lease of a shard.
pub(super) const LEASE: Duration = Duration::from_millis(1_000);
const LEASE_NS: u64 = 1_000 * MS;
/// Number of earlier states of a shard that are kept.
const EARLIER: usize = 24;
/// Percent of its chances to work that a hand of a store takes.
const WORKS: u64 = 60;

/// A bug of the medium, or of an owner's use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorldBug {
    /// A renewal gives the lease to its sender, whatever the epoch.
    RenewalWithoutEpoch,
    /// An owner continues when its lease has ended.
    DeadlineIgnored,
    /// The journal is written whatever the epoch and the write before.
    JournalUnfenced,
    /// Files are named and removed whatever the epoch.
    NamesUnfenced,
    /// Each owner has the same epoch.
    EpochKept,
    /// A write to the journal that was lost is taken for one that arrived.
    LostWriteAcked,
    /// Pieces of a run that were lost are taken for such that arrived, so it gets a name without them.
    LostBlobAcked,
    /// What an owner has sent is done in another order: its names come before its pieces.
    NameFirst,
    /// A name shows the file that it had before.
    StaleNames,
    /// The journal is written although the write before was lost.
    GapAccepted,
    /// A write to the journal whose answer was lost is made again with more than it had.
    RetryWithOtherBytes,
    /// The server keeps a lease for longer than its owner.
    LeaseKept,
    /// The clocks count as noted when an owner writes those of an earlier one.
    TakeoverNoted,
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
    /// Whether it may be set back.
    sets_back: bool,
    /// Whether owners make a write to the journal again whose answer was lost, as on PostgreSQL, or end, as on Redis.
    repeats: bool,
    /// Earlier states of the shards, since their owners have acquired them, and their times.
    earlier: Vec<VecDeque<(u64, Files)>>,
    /// The owner that may not know yet that its shard was set back.
    unaware: Option<Weak<Mutex<Reign>>>,
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

/// The files of a shard.
#[derive(Clone, Debug, Default)]
struct Files {
    names: BTreeMap<String, NamedFile>,
    /// What names had before.
    former: BTreeMap<String, NamedFile>,
    bytes: BTreeMap<FileId, Vec<u8>>,
    /// The number of the last write to the journal, and the epoch of its owner.
    journal: u64,
    journal_of: u32,
    /// When the last write with its owner's clocks arrived.
    noted: Option<u64>,
    /// The number of the last name or removal.
    turn: u64,
    /// Numbers of writes to files.
    writes: BTreeMap<FileId, u64>,
}

/// A shard in the server.
#[derive(Debug, Default)]
struct Kept {
    files: Files,
    epoch: u32,
    lease: Option<Lease>,
    /// The last node that owned it.
    last: Option<u32>,
}

/// A change of a shard's files.
#[derive(Clone, Debug)]
enum Change {
    Write {
        file: FileId,
        /// The number of the write to the journal before, if this is one.
        journal: Option<u64>,
        pieces: Vec<Piece>,
    },
    Name {
        name: String,
        file: NamedFile,
    },
    Remove(String),
    Discard(FileId),
}

/// What its owner has changed before a change: the last write to the journal, the last name or removal, and, of a name, the
/// number of writes to its file.
#[derive(Clone, Copy, Debug)]
struct Behind {
    journal: u64,
    turn: u64,
    writes: u64,
}

impl Change {
    /// A write without the second half of its last piece.
    fn shortened(mut self) -> Change {
        if let Change::Write { pieces, .. } = &mut self
            && let Some(Piece { bytes, .. }) = pieces.last_mut()
        {
            bytes.truncate(bytes.len() / 2);
        }
        self
    }

    /// Whether a change of this kind requires those before it.
    fn is_in_order(&self) -> bool {
        match self {
            Change::Write { journal, .. } => journal.is_some(),
            Change::Name { .. } | Change::Remove(_) => true,
            Change::Discard(_) => false,
        }
    }
}

/// What a change has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Met {
    Done,
    /// There was no such name.
    Nothing,
    /// The sender's reign is over.
    Fenced,
}

#[derive(Debug)]
struct Lease {
    owner: Owner,
    until: u64,
    reign: Weak<Mutex<Reign>>,
}

/// An owner, and its connection to the server.
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
    /// The number of its last write to the journal, and of its last name or removal.
    journal: u64,
    turn: u64,
    /// Numbers of its writes to files.
    writes: BTreeMap<FileId, u64>,
    /// Whether its writes to the journal have its clocks.
    notes: bool,
    /// Renewals, and changes whose sender has given up, on their way to the server, with the times of their arrival.
    there: VecDeque<(u64, Ask)>,
    /// Answers on their way back.
    back: VecDeque<(u64, RenewalReply)>,
    renews_at: u64,
    hands: Option<Hands>,
    over: Option<StoreError>,
}

#[derive(Debug)]
enum Ask {
    Change(Change, Behind),
    /// Sent at this time by the owner's clock.
    Renew(Duration),
}

#[derive(Debug)]
enum RenewalReply {
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
    pub(super) fn new(
        seed: u64,
        shards: u32,
        latency_ms: u64,
        bug: Option<WorldBug>,
        sets_back: bool,
    ) -> Self {
        let mut rng = Rng::new(seed);
        let repeats = rng.percent(50) || bug == Some(WorldBug::RetryWithOtherBytes);
        World(Arc::new(Mutex::new(State {
            now: 0,
            rng,
            bug,
            latency_ms,
            shards: (0..shards).map(|_| Kept::default()).collect(),
            members: BTreeMap::new(),
            last_number: 0,
            links: [Link::Fine; NODES],
            reigns: Vec::new(),
            facts: ClusterFacts::default(),
            broken: None,
            sets_back,
            repeats,
            earlier: (0..shards).map(|_| VecDeque::new()).collect(),
            unaware: None,
        })))
    }

    pub(super) fn link(&self, node: usize, link: Link) {
        self.state().links[node] = link;
    }

    /// Takes the newest changes of a shard back, as a copy does that takes the place of the server. False if there are none
    /// since its owner has acquired it. The owner finds it out at its next write.
    pub(super) fn set_back(&self, shard: usize) -> bool {
        let mut state = self.state();
        let state = &mut *state;
        let since = state.now.saturating_sub(FORGOTTEN_MS * MS);
        let known: Vec<&(u64, Files)> = state.earlier[shard].iter().filter(|(at, _)| *at > since).collect();
        let kept = &mut state.shards[shard];
        let (Some((_, files)), Some(lease)) = (state.rng.pick(&known).copied(), &kept.lease) else {
            return false;
        };
        state.facts.set_backs += 1;
        state.facts.writes_lost += kept.files.journal - files.journal;
        state.unaware = Some(lease.reign.clone());
        kept.files = files.clone();
        state.earlier[shard].clear();
        true
    }

    /// Whether a shard was set back, and its owner does not know.
    pub(super) fn is_set_back(&self) -> bool {
        let mut state = self.state();
        let reign = state.unaware.as_ref().and_then(Weak::upgrade);
        let is_unaware = reign.is_some_and(|reign| lock(&reign).over.is_none());
        if !is_unaware {
            state.unaware = None;
        }
        is_unaware
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
                    let Some(said) = state.serve(&reign, ask) else { continue };
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
        for reign in &reigns {
            let (hands, place) = {
                let reign = lock(reign);
                (reign.hands.clone(), reign.place)
            };
            if let Some(hands) = hands.filter(|_| !still(place)) {
                for hand in HANDS {
                    let works = self.state().rng.percent(WORKS);
                    if works {
                        hand(&hands);
                    }
                }
            }
        }
    }

    /// Which shards have an owner that is sure of its lease and reaches the server, on a node that works.
    pub(super) fn owned(&self, works: &impl Fn(usize) -> bool) -> Vec<bool> {
        let state = self.state();
        let mut owned = vec![false; state.shards.len()];
        // The process of a reign that has no other owner is gone.
        for reign in state.reigns.iter().filter(|reign| Arc::strong_count(reign) > 1) {
            let reign = lock(reign);
            let is_sure = reign.over.is_none() && reign.clock.running() < reign.until;
            owned[reign.shard.0 as usize] |=
                is_sure && works(reign.place) && state.links[reign.place] != Link::Cut;
        }
        owned
    }

    /// Whether calls of a node reach the server.
    pub(super) fn reaches(&self, place: usize) -> bool {
        self.state().links[place] != Link::Cut
    }

    /// Whether answers of the server to a node are lost.
    pub(super) fn is_lossy(&self) -> bool {
        self.state().links.iter().any(|link| matches!(link, Link::Lossy(_)))
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

/// For how long the server keeps a lease.
fn lease_ns(bug: Option<WorldBug>) -> u64 {
    if bug == Some(WorldBug::LeaseKept) { 5 * LEASE_NS } else { LEASE_NS }
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

    fn serve(&mut self, reign: &Reign, ask: Ask) -> Option<RenewalReply> {
        match ask {
            Ask::Change(change, behind) => {
                match self.apply(reign, change, behind) {
                    Met::Fenced => self.facts.stale_writes_refused += 1,
                    Met::Done | Met::Nothing => self.facts.late_writes += 1,
                }
                None
            }
            Ask::Renew(asked) => {
                let (now, bug) = (self.now, self.bug);
                let kept = &mut self.shards[reign.shard.0 as usize];
                let counts = kept.is_of(reign) || bug == Some(WorldBug::RenewalWithoutEpoch);
                match &mut kept.lease {
                    Some(lease) if counts => {
                        lease.owner = reign.owner.clone();
                        lease.reign = reign.me.clone();
                        lease.until = now + lease_ns(bug);
                        Some(RenewalReply::Renewed(asked))
                    }
                    Some(_) | None => {
                        self.facts.stale_renewals_refused += 1;
                        Some(RenewalReply::NotRenewed)
                    }
                }
            }
        }
    }

    /// Carries a change out, if its sender still owns the shard.
    fn apply(&mut self, reign: &Reign, change: Change, behind: Behind) -> Met {
        let (now, bug) = (self.now, self.bug);
        let kept = &mut self.shards[reign.shard.0 as usize];
        let is_owner = kept.is_of(reign);
        if self.sets_back && is_owner && change.is_in_order() {
            let earlier = &mut self.earlier[reign.shard.0 as usize];
            earlier.push_back((now, kept.files.clone()));
            if earlier.len() > EARLIER {
                earlier.pop_front();
            }
        }
        let kept = &mut kept.files;
        let is_behind =
            |kept: &Files| bug.is_some() || (behind.journal == kept.journal && behind.turn == kept.turn);
        match change {
            Change::Write { file, journal, pieces } => {
                if let Some(before) = journal {
                    // It was carried out, and is made again.
                    if is_owner && kept.journal == before + 1 && kept.journal_of == reign.owner.epoch.0 {
                        return Met::Done;
                    }
                    let follows = before == kept.journal || bug == Some(WorldBug::GapAccepted);
                    let holds = bug.is_some() || behind.turn == kept.turn;
                    let is_next = is_owner && follows && holds;
                    if !is_next && bug != Some(WorldBug::JournalUnfenced) {
                        return Met::Fenced;
                    }
                    kept.journal += 1;
                    kept.journal_of = reign.owner.epoch.0;
                    if reign.notes || kept.noted.is_none() || bug == Some(WorldBug::TakeoverNoted) {
                        kept.noted = Some(now);
                    }
                }
                *kept.writes.entry(file).or_default() += 1;
                let bytes = kept.bytes.entry(file).or_default();
                for Piece { at, bytes: piece } in pieces {
                    let (at, end) = (as_index(at), as_index(at) + piece.len());
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[at..end].copy_from_slice(&piece);
                }
                Met::Done
            }
            Change::Discard(file) => {
                kept.bytes.remove(&file);
                Met::Done
            }
            Change::Name { .. } | Change::Remove(_) if !is_owner && bug != Some(WorldBug::NamesUnfenced) => {
                Met::Fenced
            }
            Change::Name { .. } | Change::Remove(_) if !is_behind(kept) => Met::Fenced,
            Change::Name { file, .. }
                if bug.is_none() && kept.writes.get(&file.id).copied().unwrap_or(0) < behind.writes =>
            {
                Met::Fenced
            }
            Change::Name { name, file } => {
                kept.turn += 1;
                if let Some(old) = kept.names.insert(name.clone(), file).filter(|old| old.id != file.id) {
                    kept.bytes.remove(&old.id);
                    kept.former.insert(name, old);
                }
                Met::Done
            }
            Change::Remove(name) => {
                kept.turn += 1;
                match kept.names.remove(&name) {
                    Some(file) => {
                        kept.bytes.remove(&file.id);
                        kept.writes.remove(&file.id);
                        Met::Done
                    }
                    None => Met::Nothing,
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
    fn behind(&self, change: &Change) -> Behind {
        let writes = match change {
            Change::Name { file, .. } => self.writes.get(&file.id).copied().unwrap_or(0),
            Change::Write { .. } | Change::Remove(_) | Change::Discard(_) => 0,
        };
        Behind { journal: self.journal, turn: self.turn, writes }
    }

    /// Counts a change that was carried out.
    fn count(&mut self, change: &Change) {
        match change {
            Change::Write { file, .. } => *self.writes.entry(*file).or_default() += 1,
            Change::Name { .. } | Change::Remove(_) => self.turn += 1,
            Change::Discard(_) => {}
        }
    }

    /// Handles answers, and renews the lease.
    fn go_on(&mut self, world: &World, link: Link, now: u64) {
        let mut woken = false;
        while link != Link::Cut
            && self.back.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, said)) = self.back.pop_front()
        {
            woken = true;
            match said {
                RenewalReply::Renewed(asked) => self.until = self.until.max(asked + LEASE),
                RenewalReply::NotRenewed => self.end(fenced("the lease is another owner's")),
            }
        }
        if self.over.is_none() {
            let _ = self.check(world); // an end of the lease is to be told
            woken |= self.over.is_some();
        }
        if self.over.is_none() && now >= self.renews_at {
            self.renews_at = now + LEASE_NS / 3;
            let asked = self.clock.running();
            self.send(world, Ask::Renew(asked));
        }
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

impl Kept {
    fn is_of(&self, reign: &Reign) -> bool {
        self.epoch == reign.owner.epoch.0
    }
}

fn as_index(n: u64) -> usize {
    usize::try_from(n).expect("a small file")
}

fn fenced(why: &str) -> StoreError {
    StoreError::new(ErrorKind::Fenced, why)
}

fn away() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, "the store does not answer")
}
