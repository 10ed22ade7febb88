//! Nodes and shards.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use duewheel_core::ShardId;
use duewheel_core::record::ClockPair;
use duewheel_core::store::conformance::History;
use duewheel_core::store::{Candidate, Coordinator, ErrorKind, Level, Ownership, Secrets, Store};
use duewheel_redis_rig::{RedisCluster, Settings};
use duewheel_store_medium::SecretRotation;
use duewheel_store_redis::{Options, RedisCoordinator};

use crate::place::{kind, of_cluster, options, server, until};

const LEASE: Duration = Duration::from_millis(600);

fn candidate(name: &str) -> Candidate {
    let advertise = format!("{name}.example:7600").into();
    Candidate { name: name.into(), advertise, shards_if_new: 4, settle_delay: Duration::ZERO }
}

/// Story: a server of Redis Cluster hung without closing its connections. Each call waited for the hung one, gave up as
/// a whole, and left the dead connection and the old masters for the next; so beats and owners were gone for every
/// node, also when a replica had taken its place. Found by review.
#[test]
fn hanging_master_yields_to_replica() {
    let mut cluster = RedisCluster::start(3, 1, Settings::default()).expect("a cluster");
    let nodes = RedisCoordinator::new(of_cluster(&cluster).lease(Duration::from_secs(2)).unwrap());
    let me = nodes.join(&candidate("a")).unwrap().node;
    nodes.owners().unwrap();
    let master = cluster.master_of_key("{duewheel:cluster}:nodes").unwrap();
    cluster.pause(master).unwrap();
    until("its replica is asked", || nodes.beat(&me).is_ok());
    let is_known = |owner: &Ownership| !matches!(owner, Ownership::Unknown(_));
    until("and knows the owners", || nodes.owners().is_ok_and(|owners| owners.iter().all(is_known)));
    cluster.resume(master).unwrap();
}

/// One that accepts connections and says nothing, and stands first in the list.
#[test]
fn hanging_host_blocks_no_others() {
    let cluster = RedisCluster::start(3, 0, Settings::default()).expect("a cluster");
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis-cluster://{},{}", hung.local_addr().unwrap(), cluster.addresses()[0]);
    let nodes = RedisCoordinator::new(Options::parse(&url).unwrap().lease(Duration::from_secs(2)).unwrap());
    let me = nodes.join(&candidate("a")).unwrap().node;
    assert_eq!(nodes.beat(&me).unwrap(), std::slice::from_ref(&me));
    assert!(nodes.open(&me, ShardId(1), Arc::new(|| {})).is_ok());
}

/// Story: each try to join by the name of a living node put the joiner's address into that node's place.
#[test]
fn refused_join_changes_no_address() {
    let redis = server();
    let nodes = RedisCoordinator::new(options(&redis));
    let a = nodes.join(&candidate("a")).unwrap().node;
    let b = nodes.join(&candidate("b")).unwrap().node;
    let other = Candidate { advertise: "elsewhere.example:7600".into(), ..candidate("a") };
    assert_eq!(kind(nodes.join(&other)), Some(ErrorKind::Fenced), "the name is held");
    let mut seen = nodes.beat(&b).unwrap();
    seen.sort_by_key(|node| node.number);
    assert_eq!(seen, [a, b]);
}

#[test]
fn secret_rotation_steps_are_repeatable() {
    let redis = server();
    let options = options(&redis).lease(LEASE).unwrap();
    let (a, operator) = (RedisCoordinator::new(options.clone()), RedisCoordinator::new(options));
    assert_eq!(kind(operator.begin_rotation()), Some(ErrorKind::Corrupt), "there is no cluster");
    let joined = a.join(&candidate("a")).unwrap();
    let before = Secrets { current: joined.secret, former: None };
    assert_eq!(a.secrets().unwrap(), (before));
    operator.end_rotation().unwrap();
    assert_eq!(a.secrets().unwrap(), (before), "no rotation has begun");

    assert_eq!(operator.begin_rotation().unwrap(), (SecretRotation { is_new: true, wait: LEASE * 2 }));
    let during = a.secrets().unwrap();
    assert_eq!(during.former, Some(joined.secret));
    assert_ne!(during.current, joined.secret);
    // It was interrupted: nothing is replaced twice, or a node that knows the first alone would know neither.
    assert_eq!(operator.begin_rotation().unwrap(), (SecretRotation { is_new: false, wait: LEASE * 2 }));
    assert_eq!(a.secrets().unwrap(), (during));
    let b = operator.join(&candidate("b")).unwrap();
    assert_eq!(b.secret, during.current);
    operator.end_rotation().unwrap();
    assert_eq!(a.secrets().unwrap(), (Secrets { former: None, ..during }));

    // A node puts a lost key back with the secret of now, not with the one that it has joined by.
    let gone = redis.command(&["DEL", "{duewheel:cluster}:cluster"]).unwrap();
    assert_eq!(gone.number(), Some(1));
    a.beat(&joined.node).unwrap();
    assert_eq!(a.secrets().unwrap(), (Secrets { former: None, ..during }));
}

/// Story: nodes that wait for different times before a newcomer gets shards want different owners for them until both
/// times have passed. Their leases were compared, and this was not.
#[test]
fn different_settle_delays_cannot_join() {
    let redis = server();
    let options = options(&redis).lease(LEASE).unwrap();
    let (a, b) = (RedisCoordinator::new(options.clone()), RedisCoordinator::new(options));
    let of = |name, seconds| Candidate { settle_delay: Duration::from_secs(seconds), ..candidate(name) };
    let first = a.join(&of("a", 10)).unwrap();
    let refused = b.join(&of("b", 11)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt);
    let said = refused.to_string();
    assert!(said.contains("--settle-delay 10000ms") && said.contains("11000ms"), "{said}");
    let same = b.join(&of("b", 10)).unwrap();
    // Once nobody takes part, it may be another one.
    a.leave(&first.node).unwrap();
    b.leave(&same.node).unwrap();
    b.join(&of("b", 11)).unwrap();
    assert_eq!(kind(a.join(&of("a", 10))), Some(ErrorKind::Corrupt));
}

#[test]
fn nodes_join_and_share_shards() {
    let redis = server();
    let options = options(&redis).lease(LEASE).unwrap();
    let (a, b) = (RedisCoordinator::new(options.clone()), RedisCoordinator::new(options));
    assert_eq!((a.lease(), a.level()), (LEASE, Level::BestEffortReplicated));
    let of_a = a.join(&candidate("a")).unwrap();
    let of_b = b.join(&Candidate { shards_if_new: 9, ..candidate("b") }).unwrap();
    assert_eq!((of_a.shards, of_b.shards), (4, 4), "the first node fixes it");
    assert!(of_a.secret == of_b.secret && of_a.secret != [0; 32]);
    assert!(of_a.node.number < of_b.node.number);
    assert_eq!(kind(b.join(&candidate("a"))), Some(ErrorKind::Fenced), "a is alive");
    assert_eq!(a.beat(&of_a.node).unwrap(), vec![of_a.node.clone(), of_b.node.clone()]);

    assert_eq!(a.owners().unwrap(), vec![Ownership::Free; 4]);
    let mut first = a.open(&of_a.node, ShardId(2), Arc::new(|| {})).unwrap();
    let epoch = first.recovered().epoch;
    assert_eq!(kind(b.open(&of_b.node, ShardId(2), Arc::new(|| {}))), Some(ErrorKind::Fenced));
    let owner = b.owners().unwrap()[2].owner().cloned().expect("an owner");
    assert_eq!((owner.node, owner.epoch), (of_a.node.clone(), epoch));

    // A clean end is quick, and nothing is lost by it.
    let mut history = History::new(1);
    first.append(&history.group(20)).unwrap();
    first.close(ClockPair::default()).unwrap();
    assert_eq!(b.owners().unwrap(), vec![Ownership::Free; 4]);
    let mut second = b.open(&of_b.node, ShardId(2), Arc::new(|| {})).unwrap();
    let recovered = second.recovered();
    assert!(recovered.epoch > epoch);
    assert_eq!(recovered.next_lsn, history.model().applied().next());

    // The lease is kept for as long as the store lives, with nobody calling it.
    let renewals = |store: &dyn Store| {
        store.figures().into_iter().find(|(name, _)| *name == "renewals_total").map_or(0, |(_, n)| n)
    };
    until("the lease was renewed past its length", || renewals(&*second) > 4);
    assert!(second.progress().is_ok());
    drop(second);

    // Who is not heard of is dead; its name is free, and its number is not given again.
    a.leave(&of_a.node).unwrap();
    let again = a.join(&candidate("a")).unwrap();
    assert!(again.node.number > of_b.node.number);
    until("b has not been heard of", || a.beat(&again.node).unwrap() == vec![again.node.clone()]);
    let other = a.join(&candidate("b")).unwrap();
    assert_eq!(kind(b.beat(&of_b.node)), Some(ErrorKind::Fenced), "another node has its name");
    b.leave(&of_b.node).unwrap();
    assert_eq!(a.beat(&again.node).unwrap(), vec![again.node.clone(), other.node]);
}
