//! The fleet's thread, made to take its steps by hand.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a panic is a failed test, and shards open on real threads

use std::time::Instant;

use duewheel_core::policy::Policy;
use duewheel_core::store::Candidate;
use duewheel_shard::clock::{ClockSample, SystemClock};

use super::*;
use crate::ownership::member::{Environment, FleetOptions, assemble};
use crate::ownership::owned::OnThreads;
use crate::testing::MemoryCoordinator;
use crate::transport::{Connector, PeerTls};

/// Longer than any test takes.
const LEASE: Duration = Duration::from_secs(600);

/// The machine's clocks, ahead by this.
#[derive(Debug)]
struct Later(Duration);

impl Clock for Later {
    fn read(&self) -> ClockSample {
        SystemClock.read()
    }

    fn running(&self) -> Duration {
        SystemClock.running() + self.0
    }
}

fn join(coordinator: &MemoryCoordinator, name: &str) -> duewheel_core::store::Joined {
    let candidate = Candidate {
        name: name.into(),
        advertise: "127.0.0.1:1".into(),
        shards_if_new: 8,
        settle_delay: Duration::ZERO,
    };
    let joined = coordinator.join(&candidate).unwrap();
    coordinator.beat(&joined.node).unwrap();
    joined
}

fn keeper(coordinator: &MemoryCoordinator, name: &str) -> Reconciler {
    let joined = join(coordinator, name);
    let options = FleetOptions {
        name: name.to_owned(),
        advertise: Some(joined.node.advertise.to_string()),
        bind: None,
        certificates: None,
        speaks: Default::default(),
        shards_if_new: joined.shards,
        settle_delay: Duration::ZERO,
        seed: Some(1),
        quotas: Default::default(),
    };
    let means = Environment {
        clock: Arc::new(SystemClock),
        jitter: Jitter::seeded(1),
        link: Connector::Tls(PeerTls::generate().unwrap()),
        starter: Arc::new(OnThreads),
    };
    assemble(Arc::new(coordinator.clone()), &joined, &options, &Policy::default(), means).1
}

fn step(keeper: &mut Reconciler) {
    assert!(keeper.take_changes().is_none() && keeper.beat().is_none());
    keeper.look();
    keeper.plan();
}

/// Story: a shard that was still being opened when another node should have it was given up again in each round of the
/// thread, with a line in the log each time, for as long as the store hung; and its place among those that move, which
/// others wait for, was never free.
#[tokio::test]
async fn opening_shard_is_released_once() {
    let coordinator = MemoryCoordinator::new(LEASE);
    let mut a = keeper(&coordinator.for_a_node(), "a");
    coordinator.hold_open();
    step(&mut a);
    let opening: Vec<usize> = (0..8).filter(|at| a.owned.stage(shard(*at)) == ShardStage::Opening).collect();
    assert!(!opening.is_empty());
    join(&coordinator.for_a_node(), "b");
    step(&mut a);
    let given = a.given.clone();
    let of_b: Vec<usize> = opening.into_iter().filter(|at| given[*at].is_some()).collect();
    assert!(!of_b.is_empty(), "b should have some of them");
    for _ in 0..3 {
        step(&mut a);
        assert_eq!(a.given, given, "given up when it had been given up");
    }
    coordinator.let_open();
    let deadline = Instant::now() + Duration::from_secs(60);
    while a.owned.is_busy() || a.misses() {
        assert!(Instant::now() < deadline, "{:?}", a.owned);
        std::thread::sleep(Duration::from_millis(2));
        step(&mut a);
    }
    let owners = coordinator.owners().unwrap();
    for at in of_b {
        assert_eq!(owners[at], Ownership::Free, "it was opened, and its lease went back");
        assert_eq!(a.given[at], given[at]);
    }
}

/// Story: a node whose first beat was seen with the address of another process of its name was never found again.
#[tokio::test]
async fn peer_follows_its_nodes_address() {
    let coordinator = MemoryCoordinator::new(LEASE);
    let mut a = keeper(&coordinator.for_a_node(), "a");
    let b = coordinator.for_a_node();
    let node = join(&b, "b").node;
    for port in [1, 2, 2] {
        let node = Node { advertise: format!("127.0.0.1:{port}").into(), ..node.clone() };
        b.beat(&node).unwrap();
        step(&mut a);
        assert_eq!(*a.peers[&node.number].0.node(), node);
    }
    assert_eq!(a.peers.len(), 1);
}

/// While shards move, each is without an owner for a moment. Health names those alone that nobody has taken for longer
/// than the death of a node explains.
#[tokio::test]
async fn health_names_long_unowned_shards() {
    let coordinator = MemoryCoordinator::new(Duration::from_secs(1));
    let mut a = keeper(&coordinator.for_a_node(), "a");
    let trouble = |a: &mut Reconciler| {
        a.tell();
        a.core.shared.health().trouble
    };
    // They move: the moment from which it counts is never passed, however slow the machine.
    let now = a.now();
    a.unowned = (0..8).map(|at| (at % 2 == 0).then_some(now + Duration::from_secs(3_600))).collect();
    assert_eq!(trouble(&mut a), None);
    a.clock = Arc::new(Later(Duration::from_secs(10)));
    let long_ago = now;
    a.unowned[3] = Some(long_ago);
    a.unowned[6] = Some(long_ago);
    let said = trouble(&mut a).unwrap();
    assert!(said.starts_with("for up to 1") && said.ends_with("s shards have had no owner: 3, 6"), "{said}");
    a.unowned[3] = None;
    assert!(trouble(&mut a).unwrap().ends_with("no owner: 6"));
    a.unowned[6] = None;
    assert_eq!(trouble(&mut a), None);
}

/// Story: a node that started while a master of a Redis Cluster hung waited for the shards of that master, although
/// other nodes should have them, until its time to start had passed.
#[tokio::test]
async fn starting_node_awaits_only_own_shards() {
    let coordinator = MemoryCoordinator::new(LEASE);
    join(&coordinator.for_a_node(), "a");
    let mut b = keeper(&coordinator.for_a_node(), "b");
    let of = |name: usize| {
        let wanted = assign(&["a", "b"], 8).into_iter().enumerate();
        wanted.filter(|(_, owner)| *owner == name).map(|(at, _)| shard(at)).collect::<Vec<_>>()
    };
    let (of_a, of_b) = (of(0), of(1));
    assert!(of_a.len() > 1 && of_b.len() > 1);
    let deadline = Instant::now() + Duration::from_secs(60);
    let until = |b: &mut Reconciler, what: &str, so: &dyn Fn(&Reconciler) -> bool| loop {
        step(b);
        if so(b) {
            break;
        }
        assert!(Instant::now() < deadline, "{what}: {:?}", b.owned);
        std::thread::sleep(Duration::from_millis(2));
    };
    // One of its own that nobody knows of holds it up.
    coordinator.hide(&[of_a[0], of_b[0]]);
    let serves = |b: &Reconciler, shards: &[ShardId]| {
        shards.iter().all(|shard| b.owned.stage(*shard) == ShardStage::Serving)
    };
    until(&mut b, "it takes what it knows", &|b| serves(b, &of_b[1..]));
    step(&mut b);
    assert!(!*b.began.borrow(), "it has not got all of its own");
    coordinator.hide(&of_a);
    until(&mut b, "it begins without those of a", &|b| *b.began.borrow());
    assert!(serves(&b, &of_b));
    assert!(of_a.iter().all(|shard| b.owned.stage(*shard) == ShardStage::Away));
}
