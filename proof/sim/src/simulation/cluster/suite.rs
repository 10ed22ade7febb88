//! The conformance suite of media, on the simulated one.

use std::sync::Arc;

use duewheel_core::ShardId;
use duewheel_core::mutant::{self, Mutant};
use duewheel_core::store::{Node, StoreError};
use duewheel_store_log::Options;
use duewheel_store_medium::conformance::{self, Able, MediumFixture};
use duewheel_store_medium::{Acquired, Medium, MediumShared};

use super::clock::MachineClock;
use super::store::{LEASE, NodeCoordinator, World, WorldBug};
use super::{ClusterBug, Inside};

/// The bugs of a medium that its suite finds, by name. Of the fences, the nodes of a simulated cluster notice nothing: a
/// journal whose owner has ended is read no more, and the next owner writes names again before anybody reads them.
pub const MEDIUM_BUGS: [(&str, ClusterBug); 6] = [
    ("journal without a fence", ClusterBug(Inside::World(WorldBug::JournalUnfenced))),
    ("names without a fence", ClusterBug(Inside::World(WorldBug::NamesUnfenced))),
    ("an epoch that was there before", ClusterBug(Inside::World(WorldBug::EpochKept))),
    ("a name that shows what it had before", ClusterBug(Inside::World(WorldBug::StaleNames))),
    ("clocks that a takeover notes", ClusterBug(Inside::World(WorldBug::TakeoverNoted))),
    ("a file removed while it is read", ClusterBug(Inside::Code(Mutant::RemovedWhileRead))),
];

/// Runs the suite on the simulated medium.
///
/// # Panics
/// An obligation is broken.
pub fn suite_of_media(bug: Option<ClusterBug>) {
    let (bug, of_code) = match bug {
        Some(ClusterBug(Inside::World(bug))) => (Some(bug), None),
        Some(ClusterBug(Inside::Code(mutant))) => (None, Some(mutant)),
        None => (None, None),
    };
    mutant::choose(of_code);
    conformance::run(&mut Simulated { world: World::new(1, 1, 1, bug, false), bug, now: 0, owners: 0 });
}

struct Simulated {
    world: World,
    bug: Option<WorldBug>,
    now: u64,
    owners: u32,
}

impl MediumFixture for Simulated {
    fn clear(&mut self) {
        (self.world, self.now) = (World::new(1, 1, 1, self.bug, false), 0);
    }

    /// Each owner has a clock of its own, which stands: it does not know that its lease is over.
    fn acquire(&mut self) -> Result<(Arc<dyn Medium>, Acquired), StoreError> {
        self.now += 2 * u64::try_from(LEASE.as_nanos()).unwrap_or(u64::MAX);
        self.owners += 1;
        self.world.advance(self.now, &|_| true);
        let clock = MachineClock::new(0, 0);
        clock.set(self.now);
        let way = NodeCoordinator {
            world: self.world.clone(),
            place: 0,
            clock,
            log: Options::default(),
            shared: MediumShared::default(),
        };
        let node = Node { name: "a".into(), advertise: "a:1".into(), number: self.owners };
        let (medium, acquired) = way.acquire(&node, ShardId(0), Arc::new(|| {}))?;
        Ok((Arc::new(medium), acquired))
    }

    fn lose_power(&mut self) -> Able {
        Able::No
    }
}
