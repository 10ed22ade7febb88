//! The faults of a simulated cluster, and their times.

use duewheel_judge::history::{Blow, Fault};
use duewheel_judge::rng::Rng;
use duewheel_shard::shared::Health;

use super::super::faults::next_fault;
use super::store::LEASE;
use super::{Action, Cluster, FORGOTTEN_MS, LONGEST_MS, Link, MS, NODES, SHARDS, Stage};

/// The kinds of faults of a run, and their rate.
#[derive(Clone, Debug)]
pub(super) struct Blows {
    kinds: Vec<Kind>,
    /// The mean time between two faults, in ns.
    mean_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Kill,
    Leave,
    Pause,
    /// A node is cut off from the store.
    Cut,
    /// Answers of the store to a node are lost.
    Lossy,
    /// Two nodes are cut off from each other.
    Split,
    /// The connections between two nodes break.
    Reset,
    /// The store fails over to a copy that lacks the newest changes of a shard.
    SetBack,
}

/// A fault that ends later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    Store(usize),
    Split(usize, usize),
}

impl Blows {
    pub(super) fn of(rng: &mut Rng) -> Self {
        use Kind::{Cut, Kill, Leave, Lossy, Pause, Reset, SetBack, Split};
        let all = [Kill, Leave, Pause, Cut, Lossy, Split, Reset, SetBack];
        let mut kinds: Vec<Kind> = all.into_iter().filter(|_| rng.percent(50)).collect();
        if kinds.is_empty() {
            kinds.push(Pause);
        }
        Blows { kinds, mean_ns: rng.range(300, 1_500) * MS }
    }

    /// Whether the store may be set back.
    pub(super) fn set_back(&self) -> bool {
        self.kinds.contains(&Kind::SetBack)
    }
}

impl Cluster {
    pub(super) fn plan_fault(&mut self) {
        let (mean_ns, work_ns) = (self.faults.mean_ns, self.style.work_ns);
        if let Some(at) = next_fault(&mut self.rng, self.stage, self.now, mean_ns, work_ns) {
            self.at(at, Action::Fault);
        }
    }

    pub(super) fn do_fault(&mut self) {
        self.plan_fault();
        // What a failover may forget is told by the last fault before it.
        if self.stage != Stage::Work || self.recipe.world.is_set_back() {
            return;
        }
        let drawn = self.below(self.faults.kinds.len());
        let kind = self.faults.kinds[drawn];
        let place = self.below(NODES);
        let other = (place + 1 + self.below(NODES - 1)) % NODES;
        let is_up = self.machines[place].process.as_ref().is_some_and(|process| process.serving().is_some());
        if !is_up || self.now < self.machines[place].still_until {
            return;
        }
        let most = if self.rng.percent(60) { 600 } else { LONGEST_MS };
        let lasts = self.rng.range(50, most);
        match kind {
            Kind::Kill => {
                self.strike(Blow::NodeKilled);
                self.facts.kills += 1;
                self.gone(place);
                self.soon(50, most, Action::Start(place));
            }
            Kind::Leave => {
                self.strike(Blow::NodeLeft);
                if let Some(process) = &mut self.machines[place].process {
                    process.leave();
                }
            }
            Kind::Pause => {
                self.strike(Blow::NodePaused);
                self.facts.pauses += 1;
                self.facts.pauses_beyond += u64::from(u128::from(lasts) > LEASE.as_millis());
                self.machines[place].still_until = self.now + lasts * MS;
            }
            Kind::Cut => {
                // Mostly long enough for others to take its shards: requests that it has sent arrive after that.
                let lasts = if self.rng.percent(60) { self.rng.range(1_100, LONGEST_MS) } else { lasts };
                self.strike(Blow::NodeCut);
                self.facts.cuts += 1;
                self.recipe.world.link(place, Link::Cut);
                self.at(self.now + lasts * MS, Action::Mend(FaultKind::Store(place)));
            }
            Kind::Lossy => {
                self.strike(Blow::NodeCut);
                self.facts.lossy += 1;
                let percent = self.rng.range(10, 60);
                self.recipe.world.link(place, Link::Lossy(percent));
                self.at(self.now + lasts * MS, Action::Mend(FaultKind::Store(place)));
            }
            Kind::Split => {
                self.strike(Blow::NodeCut);
                self.facts.splits += 1;
                self.recipe.net.cut(place, other, true);
                self.at(self.now + lasts * MS, Action::Mend(FaultKind::Split(place, other)));
            }
            Kind::Reset => {
                self.strike(Blow::NodeCut);
                self.facts.resets += self.recipe.net.reset(place, other);
            }
            Kind::SetBack => {
                let shard = self.below(SHARDS as usize);
                // Totals begin anew in a queue whose settings are lost.
                let is_set = self.ready_at.is_some_and(|ready| self.now > ready + 2 * FORGOTTEN_MS * MS);
                if is_set && self.recipe.world.set_back(shard) {
                    self.strike(Blow::StoreSetBack);
                    self.failing_over = true;
                }
            }
        }
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.rng.below(n as u64)).unwrap_or(0)
    }

    fn strike(&mut self, blow: Blow) {
        self.struck = true;
        self.owners.disturb(self.now);
        self.fault(Fault::Struck(blow));
    }

    pub(super) fn mend(&mut self, kind: FaultKind) {
        match kind {
            FaultKind::Store(place) => self.recipe.world.link(place, Link::Fine),
            FaultKind::Split(one, other) => self.recipe.net.cut(one, other, false),
        }
    }

    /// Ends all faults.
    pub(super) fn heal(&mut self) {
        if !self.survey.is_ready() {
            self.broken = Some("no client could begin before everything was healed".to_owned());
        }
        self.stage = Stage::Drain;
        self.recipe.net.heal();
        for place in 0..NODES {
            self.recipe.world.link(place, Link::Fine);
        }
        self.at(self.now + 100 * MS, Action::Look);
    }

    /// Whether the cluster is complete: all nodes have joined, and each knows an owner of each shard.
    pub(super) fn is_whole(&self) -> bool {
        let mut owned = 0;
        for machine in &self.machines {
            let up = machine.process.as_ref().and_then(|process| process.serving());
            let Some(up) = up.filter(|_| self.now >= machine.still_until) else { return false };
            let [(_, here), (_, without), ..] = up.fleet.figures();
            let Health { trouble, .. } = up.client.health();
            if without > 0 || trouble.is_some() {
                return false;
            }
            owned += here;
        }
        owned == u64::from(SHARDS) && self.recipe.world.is_well() && self.recipe.net.is_well()
    }
}
