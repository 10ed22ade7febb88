//! Slots of a Redis Cluster that move from one master to another under a shard.

use std::collections::BTreeMap;
use std::time::Duration;

use duewheel_core::Lsn;
use duewheel_core::store::conformance::History;
use duewheel_core::store::{ErrorKind, Store};
use duewheel_redis_rig::{RedisCluster, Settings};
use duewheel_store_redis::{Options, RedisStore};

use crate::model::{same, written};
use crate::place::{kind, of_cluster, open, until};
use crate::spans::indexes_agree;

fn cluster() -> RedisCluster {
    RedisCluster::start(3, 0, Settings::default()).expect("a cluster")
}

fn long_lease(cluster: &RedisCluster) -> Options {
    of_cluster(cluster).lease(Duration::from_secs(60)).expect("a good lease")
}

/// Story: while a slot moves, Redis refuses a key that is not there, or there no more, when the script comes to it.
/// What the script had done before stayed: a postponed message was in no index and never came, a key was free while its
/// message lived. Found by three masters that moved slots under load.
#[test]
fn a_group_that_meets_a_moving_slot_is_applied_as_a_whole_or_not_at_all() {
    let cluster = cluster();
    let options = long_lease(&cluster);
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
    let master = cluster.master_of_slot(slot).unwrap();
    until("the sweeps have ended", || {
        let purges = cluster.node(master).command(&["HLEN", "{duewheel:3}:purges"]).unwrap();
        purges.number() == Some(0)
    });
    indexes_agree(cluster.node(master), "duewheel", history.model());
}

/// Nothing of it is written either, so that the owner of before can go on where it was.
#[test]
fn a_shard_is_not_taken_while_its_slot_moves() {
    let cluster = cluster();
    let options = long_lease(&cluster);
    let slot = cluster.slot_of_key("{duewheel:3}:owner").unwrap();
    let mut store = open(&options);
    let epoch = store.recovered().epoch;
    store.append(&History::new(1).group(5)).unwrap();
    drop(store);
    let master = cluster.master_of_slot(slot).unwrap();
    let moving = cluster.begin_move(slot, (master + 1) % 3).unwrap();
    let refused = RedisStore::open(&options, crate::place::SHARD, std::sync::Arc::new(|| {}));
    let error = refused.map(drop).expect_err("the slot moves");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("moving"), "{error}");
    let stored = cluster.node(master).command(&["HGET", "{duewheel:3}:owner", "epoch"]).unwrap().number();
    assert_eq!(stored, Some(u64::from(epoch.0)));
    moving.take(&["{duewheel:3}:head".to_owned()]).unwrap();
    let refused = RedisStore::open(&options, crate::place::SHARD, std::sync::Arc::new(|| {}));
    assert_eq!(kind(refused), Some(ErrorKind::Unavailable));
    moving.finish().unwrap();
    assert!(open(&options).recovered().epoch > epoch);
}
