//! How long a shard of a simulated cluster is without an owner.

use super::store::LEASE;
use super::{Cluster, MS, SHARDS};

/// After a fault a shard has an owner again within a lease and this.
const TAKEOVER_NS: u64 = 2_000 * MS;

/// The times at which owners were lost.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// Since when a shard is without an owner.
    lost: [Option<u64>; SHARDS as usize],
    /// The time of the last fault.
    fault: u64,
}

impl Owners {
    /// Counts from now on.
    pub(super) fn disturb(&mut self, now: u64) {
        self.fault = now;
    }
}

impl Cluster {
    /// Checks that every shard has an owner again within a lease and 2 s after its owner is gone. Each fault begins that
    /// time anew; as long as calls to the store fail by chance, or no node works, it does not run.
    pub(super) fn look_at_owners(&mut self) {
        let (now, machines) = (self.now, &self.machines);
        let works = |place: usize| {
            let machine = &machines[place];
            let up = machine.process.as_ref().and_then(|process| process.serving());
            up.is_some() && now >= machine.still_until
        };
        let is_alone = !(0..machines.len()).any(|place| works(place) && self.recipe.world.reaches(place));
        if is_alone || self.recipe.world.is_lossy() {
            self.owners.disturb(now);
        }
        let owned = self.recipe.world.owned(&works);
        for (shard, (lost, is_owned)) in self.owners.lost.iter_mut().zip(owned).enumerate() {
            if is_owned {
                *lost = None;
                continue;
            }
            let since = (*lost.get_or_insert(now)).max(self.owners.fault);
            let away = now - since;
            self.facts.longest_away_ms = self.facts.longest_away_ms.max(away / MS);
            if u128::from(away) > LEASE.as_nanos() + u128::from(TAKEOVER_NS) {
                let what = format!("no owner within a lease and 2 s of shard {shard}: {} ms", away / MS);
                self.broken.get_or_insert(what);
            }
        }
    }
}
