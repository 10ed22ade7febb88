//! Data in another format, and keys of another program: refused, named, and left as they are.

use std::sync::Arc;
use std::time::Duration;

use duewheel_core::ShardId;
use duewheel_core::store::{Candidate, Coordinator, ErrorKind, Node, Ownership, StoreError};
use duewheel_redis_rig::{Redis, Value};
use duewheel_store_medium::RestoreTarget;
use duewheel_store_redis::RedisCoordinator;

use crate::place::{SHARD, options, server};
use crate::shard::ask;

const CLUSTER: &str = "{duewheel:cluster}:cluster";
const NODES: &str = "{duewheel:cluster}:nodes";
const HEAD: &str = "{duewheel:3}:head";

fn nodes(redis: &Redis) -> RedisCoordinator {
    RedisCoordinator::new(options(redis))
}

fn candidate(name: &str) -> Candidate {
    Candidate { name: name.into(), advertise: "a:1".into(), shards_if_new: 4, settle_delay: Duration::ZERO }
}

/// The refusals of all that begins with the cluster's key.
fn by_cluster(redis: &Redis, joined: &(RedisCoordinator, Node)) -> Vec<StoreError> {
    let fresh = nodes(redis);
    let refusals = [
        fresh.join(&candidate("b")).map(drop),
        fresh.owners().map(drop),
        fresh.secrets().map(drop),
        fresh.begin_rotation().map(drop),
        fresh.end_rotation(),
        fresh.reset(4).map(drop),
        fresh.begin_restore(4),
        joined.0.beat(&joined.1).map(drop),
    ];
    refusals.map(|done| done.expect_err("it must be refused")).into()
}

/// The refusals of all that begins with a shard's head, without the cluster's key.
fn by_head(redis: &Redis) -> Vec<StoreError> {
    let fresh = nodes(redis);
    let opened = duewheel_store_redis::open(&options(redis), SHARD, Arc::new(|| {})).map(drop);
    let refusals = [opened, fresh.reset(4).map(drop), fresh.begin_restore(4)];
    refusals.map(|done| done.expect_err("it must be refused")).into()
}

/// Checks that this format is refused with these words, first at the cluster's key, then at a shard's head.
fn is_refused(format: &str, words: &[&str]) {
    let redis = server();
    let all = || -> Vec<Value> {
        let keys = [CLUSTER, NODES, HEAD].map(|key| ask(&redis, &["HGETALL", key]));
        keys.into_iter().chain([ask(&redis, &["DBSIZE"])]).collect()
    };
    let check = |key: &str, refusals: Vec<StoreError>| {
        for error in refusals {
            let said = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{said}");
            assert!(words.iter().chain([&key]).all(|word| said.contains(word)), "{said}");
        }
    };
    let a = nodes(&redis);
    let joined = a.join(&candidate("a")).expect("join").node;
    a.leave(&joined).expect("leave");
    ask(&redis, &["HSET", CLUSTER, "format", format]);
    let before = all();
    check(CLUSTER, by_cluster(&redis, &(a, joined)));
    assert_eq!(all(), before, "nothing is changed");
    ask(&redis, &["FLUSHALL"]);
    ask(&redis, &["HSET", HEAD, "format", format, "journal", "7"]);
    let before = all();
    check(HEAD, by_head(&redis));
    assert_eq!(all(), before, "nothing is changed");
}

#[test]
fn earlier_format_is_refused_unchanged() {
    for format in ["1", "2", "3", "restoring"] {
        is_refused(format, &["before 0.1.0", "`duewheel export`", "`duewheel import`"]);
    }
}

#[test]
fn later_format_is_refused_by_number() {
    is_refused("duewheel-2", &["format \"duewheel-2\"", "this version knows \"duewheel-1\""]);
}

#[test]
fn key_of_wrong_type_is_named() {
    let redis = server();
    let a = nodes(&redis);
    let joined = a.join(&candidate("a")).expect("join").node;
    let owner = "{duewheel:2}:owner";
    ask(&redis, &["SET", owner, "mine"]);
    drop(a.open(&joined, ShardId(1), Arc::new(|| {})).expect("another shard"));
    let owners = a.owners().expect("the others are known");
    let named = |why: &str, key: &str| why.contains(key) && why.contains("is a string");
    assert!(matches!(&owners[2], Ownership::Unknown(why) if named(why, owner)), "{owners:?}");
    assert_eq!(owners.iter().filter(|owner| matches!(owner, Ownership::Unknown(_))).count(), 1);
    for key in [CLUSTER, NODES] {
        ask(&redis, &["DEL", CLUSTER, NODES]);
        ask(&redis, &["SET", key, "mine"]);
        let fresh = nodes(&redis);
        for done in [fresh.join(&candidate("b")).map(drop), fresh.reset(4).map(drop)] {
            let error = done.expect_err("it must be refused");
            assert!(error.kind() == ErrorKind::Corrupt && named(&error.to_string(), key), "{error}");
        }
        assert_eq!(ask(&redis, &["GET", key]).text().as_deref(), Some("mine"));
    }
}
