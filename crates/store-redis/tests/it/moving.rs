//! Slots of a Redis Cluster that move from one master to another under a shard.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use duewheel_core::store::conformance::History;
use duewheel_core::store::{Candidate, Coordinator, ErrorKind, Ownership, Store};
use duewheel_core::{Lsn, ShardId};
use duewheel_redis_rig::{RedisCluster, Settings};
use duewheel_store_redis::{Options, RedisCoordinator};

use crate::model::same;
use crate::place::{kind, of_cluster, open, small, until, written};

fn cluster() -> RedisCluster {
    RedisCluster::start(3, 0, Settings::default()).expect("a cluster")
}

fn long_lease(cluster: &RedisCluster) -> Options {
    of_cluster(cluster).lease(Duration::from_secs(60)).expect("a good lease")
}

/// Story: while a slot moves, Redis refuses a key that is not there, or there no more, when the script comes to it.
/// What the script had done before stayed: a group was applied in part. Found by three masters that moved slots under load.
#[test]
fn group_in_moving_slot_is_atomic() {
    let cluster = cluster();
    let options = small(long_lease(&cluster));
    let slot = cluster.slot_of_key("{duewheel:3}:owner").unwrap();
    let mut history = History::new(11).spread_ms(40 * 65_536);
    let mut refused = 0;
    let mut words = BTreeMap::from([("ASK", 0), ("TRYAGAIN", 0)]);
    for round in 0..42_usize {
        let mut store = open(&options);
        history.forget_after(Lsn(store.recovered().next_lsn.0 - 1));
        same(&mut store, &history).unwrap_or_else(|e| panic!("round {round}: {e}"));
        for _ in 0..3 {
            store.append(&history.group(20)).unwrap();
        }
        written(&mut store, &history);
        let master = cluster.master_of_slot(slot).unwrap();
        let moving = cluster.begin_move(slot, (master + 1) % 3).unwrap();
        // Another part of the keys each time; the first ones are who owns the shard, and how far it has come.
        let keys = moving.keys().unwrap().into_iter().enumerate();
        let first = |key: &String| key.ends_with(":owner") || key.ends_with(":head");
        let goes = |at: usize, key: &String| match round % 6 {
            0 => false,
            1 => !first(key) && (at + round).is_multiple_of(7),
            2 => !first(key),
            // Redis redirects a script if all keys that it names have gone, and refuses it if some have.
            3 => true,
            4 => key.ends_with(":head"),
            _ => at % 3 == round % 3,
        };
        let keys: Vec<String> = keys.filter(|(at, key)| goes(*at, key)).map(|(_, key)| key).collect();
        moving.take(&keys).unwrap();
        let before = history.model().applied();
        let groups: Vec<_> = (0..3).map(|_| history.group(20)).collect();
        let mut error = groups.iter().find_map(|group| store.append(group).err());
        until("it is known what became of them", || {
            error = error.take().or_else(|| store.progress().err());
            error.is_some() || store.progress().is_ok_and(|p| p.durable == history.model().applied())
        });
        if let Some(error) = error {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            refused += 1;
            let said = error.to_string();
            for (word, count) in &mut words {
                *count += usize::from(said.contains(&format!("Redis: {word} ")));
            }
            assert_eq!(error.nothing_from(), Some(before.next()), "{error}");
        }
        drop(store);
        if round / 6 % 2 == 0 { moving.finish().unwrap() } else { moving.turn_back().unwrap() }
    }
    assert_eq!(refused, 42, "a moving slot is not written to");
    assert!(words.values().all(|count| *count > 0), "each has been met: {words:?}");
    let mut store = open(&options);
    history.forget_after(Lsn(store.recovered().next_lsn.0 - 1));
    same(&mut store, &history).unwrap();
}

/// Nothing of it is written either, so that the owner of before can go on where it was.
#[test]
fn shard_in_moving_slot_is_unavailable() {
    let cluster = cluster();
    let options = long_lease(&cluster);
    let slot = cluster.slot_of_key("{duewheel:3}:owner").unwrap();
    let mut store = open(&options);
    let epoch = store.recovered().epoch;
    store.append(&History::new(1).group(5)).unwrap();
    drop(store);
    let master = cluster.master_of_slot(slot).unwrap();
    let moving = cluster.begin_move(slot, (master + 1) % 3).unwrap();
    let refused = duewheel_store_redis::open(&options, crate::place::SHARD, std::sync::Arc::new(|| {}));
    let error = refused.map(drop).expect_err("the slot moves");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("moving"), "{error}");
    let stored = cluster.node(master).command(&["HGET", "{duewheel:3}:owner", "epoch"]).unwrap().number();
    assert_eq!(stored, Some(u64::from(epoch.0)));
    moving.take(&["{duewheel:3}:head".to_owned()]).unwrap();
    let refused = duewheel_store_redis::open(&options, crate::place::SHARD, std::sync::Arc::new(|| {}));
    assert_eq!(kind(refused), Some(ErrorKind::Unavailable));
    moving.finish().unwrap();
    assert!(open(&options).recovered().epoch > epoch);
}

/// How many shards there are where a master has several.
const MANY: u32 = 12;

/// A coordinator that has joined, and the stores of its shards, all of which are open.
fn open_all(options: Options) -> (RedisCoordinator, Vec<Box<dyn Store>>) {
    let nodes = RedisCoordinator::new(options);
    let advertise = "a.example:7600".into();
    let candidate =
        Candidate { name: "a".into(), advertise, shards_if_new: MANY, settle_delay: Duration::ZERO };
    let me = nodes.join(&candidate).expect("a cluster").node;
    let open = |shard| nodes.open(&me, ShardId(shard), Arc::new(|| {})).expect("a free shard");
    let stores = (0..MANY).map(open).collect();
    (nodes, stores)
}

/// The shards that the coordinator knows nothing of, each with the reason.
fn unknown(nodes: &RedisCoordinator) -> Vec<(usize, String)> {
    let owners = nodes.owners().expect("a master answers").into_iter().enumerate();
    let reason = |(shard, owner)| match owner {
        Ownership::Unknown(why) => Some((shard, why.to_string())),
        Ownership::Owned(_) => None,
        Ownership::Free => panic!("shard {shard} has an owner"),
    };
    owners.filter_map(reason).collect()
}

/// Story: the owners of all shards of a master were asked for at once, and a refusal of one was the answer for all.
/// While a slot moved, no shard of its master had a known owner, and nobody took those of a node that died meanwhile.
#[test]
fn moving_slot_hides_own_owner_only() {
    let cluster = cluster();
    let (nodes, _stores) = open_all(long_lease(&cluster));
    let owner_key = |shard: usize| format!("{{duewheel:{shard}}}:owner");
    let slot = cluster.slot_of_key(&owner_key(3)).unwrap();
    let master = cluster.master_of_slot(slot).unwrap();
    let others = (0..MANY as usize).filter(|shard| *shard != 3);
    let beside = others.filter(|shard| cluster.master_of_key(&owner_key(*shard)).unwrap() == master).count();
    assert!(beside > 0, "its master has other shards");
    until("all are known", || unknown(&nodes).is_empty());
    let moving = cluster.begin_move(slot, (master + 1) % 3).unwrap();
    moving.take(&[owner_key(3)]).unwrap();
    until("the owner of shard 3 is unknown, and no other", || {
        let why = "a slot is moving to another master; Redis: ASK ";
        matches!(unknown(&nodes).as_slice(), [(3, said)] if said.contains(why))
    });
    moving.finish().unwrap();
    until("its new master is asked", || unknown(&nodes).is_empty());
}

/// Story: a list of the masters in which a slot had none was kept until a connection failed, so the shard of that slot
/// stayed unknown after the slot had a master again.
#[test]
fn masterless_slot_is_looked_up_again() {
    let extra = ["--cluster-require-full-coverage", "no"].map(str::to_owned).to_vec();
    let cluster = RedisCluster::start(3, 0, Settings { extra, ..Settings::default() }).expect("a cluster");
    let options = long_lease(&cluster);
    let (nodes, _stores) = open_all(options.clone());
    let key = "{duewheel:3}:owner";
    let slot = cluster.slot_of_key(key).unwrap();
    let master = cluster.master_of_slot(slot).unwrap();
    let must = |node: usize, verb: &str| {
        let said = cluster.node(node).command(&["CLUSTER", verb, &slot.to_string()]).unwrap();
        assert_eq!(said.text().as_deref(), Some("OK"), "{verb} at node {node}: {said:?}");
    };
    // Its master first: the others believe what it says.
    must(master, "DELSLOTS");
    (0..3).filter(|node| *node != master).for_each(|node| must(node, "DELSLOTS"));
    until("the shard has no master", || {
        let hidden = unknown(&nodes);
        matches!(hidden.as_slice(), [(3, why)] if why.contains(&format!("no master has slot {slot}")))
    });
    must(master, "ADDSLOTS");
    until("its master is found again", || unknown(&nodes).is_empty());
}
