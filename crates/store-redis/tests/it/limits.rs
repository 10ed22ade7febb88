//! Memory that runs out, large groups, and what an operator may have done.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use duewheel_core::MessageId;
use duewheel_core::record::{ClockPair, Record};
use duewheel_core::store::{Capacity, ErrorKind, Found, Lookups, Store, Table};
use duewheel_core::time::{EngineMs, WallMs};
use duewheel_redis_rig::{Redis, Settings, Value};

use crate::place::{PATIENCE, SHARD, open, options, server, until};
use crate::shard::{Shard, ask, dead, number, put, queue};

#[test]
fn full_server_takes_settlements_only() {
    let redis =
        Redis::start(Settings { maxmemory: Some(256 << 20), ..Settings::default() }).expect("a server");
    let options = options(&redis);
    let mut shard = Shard::open(&options);
    assert_eq!(shard.store.room(), Capacity::Enough);
    let q = queue("q");
    let first = put(&q, 1, Some("one"), Bytes::from_static(b"x"));
    shard.append(vec![first.clone()]);
    shard.settle();
    ask(&redis, &["CONFIG", "SET", "maxmemory", "1"]);
    until("the store knows", || shard.store.room() == Capacity::SettleOnly);
    // What puts nothing goes on.
    shard.append(vec![dead(&first, 5)]);
    shard.settle();
    ask(&redis, &["CONFIG", "SET", "maxmemory", "0"]);
    until("there is room again", || shard.store.room() == Capacity::Enough);
    let next = shard.next;
    drop(shard);
    let recovered = open(&options).recovered();
    assert_eq!((recovered.next_lsn, recovered.queues[0].tally.count()), (next, 1));
}

#[test]
fn evicting_server_is_refused() {
    let redis =
        Redis::start(Settings { maxmemory: Some(64 << 20), ..Settings::default() }).expect("a server");
    ask(&redis, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let error = duewheel_store_redis::open(&options(&redis), SHARD, Arc::new(|| {})).map(drop);
    let error = error.expect_err("it must be refused");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("maxmemory-policy"), "{error}");
    // Keys of duewheel's never expire, so these throw nothing away.
    ask(&redis, &["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    open(&options(&redis));
}

#[test]
fn foreign_key_is_refused_untouched() {
    let redis = server();
    let error = |key: &str| {
        ask(&redis, &["SET", key, "mine"]);
        let error = duewheel_store_redis::open(&options(&redis), SHARD, Arc::new(|| {})).map(drop);
        ask(&redis, &["DEL", key]);
        error.expect_err("it must be refused")
    };
    for key in ["{duewheel:3}:files", "{duewheel:3}:owner", "{duewheel:3}:blocks"] {
        let error = error(key);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{key}");
        assert!(error.to_string().contains(key), "{error}");
    }
    // One that is set behind the store's back is found when it is used.
    let mut shard = Shard::open(&options(&redis));
    ask(&redis, &["SET", "{duewheel:3}:blocks", "mine"]);
    shard.append(vec![put(&queue("q"), 1, None, Bytes::new())]);
    let mut error = None;
    until("it is refused", || {
        error = shard.store.progress().err();
        error.is_some()
    });
    let error = error.expect("it is refused");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("{duewheel:3}:blocks is a string"), "{error}");
}

#[test]
fn the_clocks_are_noted_at_rest() {
    let redis = server();
    let options = options(&redis);
    let mut shard = Shard::open(&options);
    shard.append(vec![put(&queue("q"), 1, None, Bytes::new())]);
    // A little more than five seconds.
    let later = ClockPair { engine: EngineMs(5_001), wall: WallMs(1_700_000_005_001) };
    shard.settle();
    let noted = shard.figure("appends_answered_total");
    until("the clocks are noted", || {
        shard.store.idle(later, None).expect("it lives");
        shard.figure("appends_answered_total") > noted
    });
    drop(shard);
    assert_eq!(open(&options).recovered().clock.map(|pair| pair.engine), Some(later.engine));
}

#[test]
fn replicas_that_are_waited_for() {
    let redis = server();
    let base = options(&redis).lease(Duration::from_secs(60)).unwrap();
    let wants = |time| base.clone().wait_replicas(1, time).unwrap();
    // An owner writes before it serves.
    let refused = duewheel_store_redis::open(&wants(Duration::from_millis(200)), SHARD, Arc::new(|| {}));
    let refused = refused.map(drop).expect_err("there is none");
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.to_string().contains("0 of 1 replicas have the change"), "{refused}");
    let copy = server();
    ask(&copy, &["REPLICAOF", "127.0.0.1", &redis.port().to_string()]);
    until("it follows", || {
        let told = ask(&copy, &["INFO", "replication"]).text().unwrap_or_default();
        let known = ask(&redis, &["INFO", "replication"]).text().unwrap_or_default();
        told.contains("master_link_status:up") && known.contains("state=online")
    });
    let mut shard = Shard::open(&wants(PATIENCE));
    shard.append(vec![put(&queue("q"), 1, None, Bytes::new())]);
    shard.settle();
    let writes = |of: &Redis| number(of, &["HGET", "{duewheel:3}:head", "journal"]);
    assert_eq!(writes(&copy), writes(&redis), "what is durable is on the replica");
    drop(shard);
    let mut shard = Shard::open(&wants(Duration::from_secs(2)));
    copy.pause().unwrap();
    let last = shard.next;
    shard.append(vec![put(&queue("q"), 2, None, Bytes::new())]);
    let mut error = None;
    until("it is behind", || {
        error = shard.store.progress().err();
        error.is_some()
    });
    let error = error.expect("an error");
    assert_eq!((error.kind(), error.nothing_from()), (ErrorKind::Unavailable, None), "{error}");
    drop(shard);
    copy.resume().unwrap();
    let shard = Shard::open(&base);
    assert_eq!(shard.next, last.next(), "the outcome was unknown: it is there");
}

/// What a full group of the policy costs: the server does nothing else meanwhile. A figure for the documents, and a
/// limit that only a mistake reaches.
#[test]
fn a_full_group_is_one_step() {
    let redis = server();
    let mut shard = Shard::open(&options(&redis));
    let q = queue("q");
    ask(&redis, &["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    let records: Vec<Record> =
        (1..=50_000).map(|id| put(&q, id, None, Bytes::from_static(b"12345678"))).collect();
    let mut model = Table::default();
    let group = shard.append(records);
    model.apply(&group);
    shard.settle();
    let log = ask(&redis, &["SLOWLOG", "GET", "100"]);
    let slowest = log.list().iter().filter_map(|entry| entry.list().get(2).and_then(Value::number)).max();
    println!("50,000 new messages in one group: {} µs", slowest.expect("a time"));
    let mut found = Found::default();
    let lookups = Lookups { ids: [1, 25_000, 50_000].map(MessageId).to_vec(), ..Lookups::default() };
    shard.store.find_many(&lookups, &mut found).unwrap();
    let mut expected = Found::default();
    model.find_many(&lookups, &mut expected);
    assert_eq!(found.rows, expected.rows);
}

/// Story: a benchmark sent groups faster than they went out. The runtime let a task that had worked for long enough
/// wait, and woke what had waited in the opposite order, so a group overtook the one before and was refused as a gap.
#[test]
fn groups_under_way_stay_in_order() {
    let redis = server();
    let mut shard = Shard::open(&options(&redis));
    let q = queue("q");
    for round in 0..5 {
        for n in 0..500 {
            shard.append(vec![put(&q, 1 + round * 500 + n, None, Bytes::from_static(&[0; 2_000]))]);
        }
        let found = &mut Found::default();
        let lookups = Lookups { ids: vec![MessageId((round + 1) * 500)], ..Lookups::default() };
        shard.store.find_many(&lookups, found).expect("all are in order");
        assert_eq!(found.rows.len(), 1);
    }
    shard.settle();
}
