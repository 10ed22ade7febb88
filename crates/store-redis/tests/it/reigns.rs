//! What goes over from one owner to the next: ids that are not given again, and time that has passed.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use duewheel_core::record::{ClockPair, Group};
use duewheel_core::store::conformance::History;
use duewheel_core::store::{ErrorKind, Store};
use duewheel_core::time::{EngineMs, WallMs};
use duewheel_redis_rig::{Mode, Proxy, Redis, RedisCluster, Settings};
use duewheel_store_redis::Options;

use crate::place::{SHARD, kind, of_cluster, open, options, server, until, written};

fn head(redis: &Redis, field: &str) -> Option<u64> {
    redis.command(&["HGET", "{duewheel:3}:head", field]).expect("a reply").number()
}

/// Story: a failover took the last second of enqueues with it, and the next owner gave their ids to other messages: a
/// cancel by an id of before would have met a stranger. Found by the test that sets a store back.
#[test]
fn possibly_used_id_is_not_reused() {
    let redis = server();
    let options = options(&redis);
    let mut history = History::new(1);
    let mut store = open(&options);
    assert_eq!(store.recovered().next_id, 1, "the first of all");
    store.append(&history.group(30)).unwrap();
    written(&mut store, &history);
    let given = history.model().next_id();
    assert!(given > 1);
    // What comes next is lost, as far as Redis is concerned; how much it was nobody knows.
    drop(store);
    let mut store = open(&options);
    let first = store.recovered().next_id;
    assert!(first >= 1 << 26, "{first}: many could have been given and lost");
    assert!(
        first >= by_time(&redis) - (60 << 22),
        "{first}: what was set back to any earlier time gave none of these"
    );
    store.close(history.tick()).unwrap();
    drop(store);
    let mut store = open(&options);
    assert_eq!(store.recovered().next_id, first, "a clean end uses none up");
    let aside = head(&redis, "ids").expect("ids");
    assert!(aside >= first + (1 << 26), "{aside}: they are set aside before any is given");
    assert_eq!(head(&redis, "clean"), None, "the end was used");
    store.append(&history.group(30)).unwrap();
    written(&mut store, &history);
    drop(store);
    let next = open(&options).recovered().next_id;
    assert!(next > first && next <= by_time(&redis), "{next}");
}

/// Whoever began by a clock that has gone back since gave ids that the time does not tell of.
#[test]
fn ids_continue_behind_reserved_ones() {
    let redis = server();
    let options = options(&redis);
    let mut history = History::new(1);
    let mut store = open(&options);
    store.append(&history.group(30)).unwrap();
    written(&mut store, &history);
    drop(store);
    // Set aside by a clock that was an hour ahead of today's.
    let aside = by_time(&redis) + (3_600 << 22);
    redis.command(&["HSET", "{duewheel:3}:head", "ids", &aside.to_string()]).expect("a reply");
    assert_eq!(open(&options).recovered().next_id, aside);
    assert_eq!(open(&options).recovered().next_id, aside + (1 << 26), "and once more");
}

/// The least id after an end that was not clean, now.
fn by_time(redis: &Redis) -> u64 {
    const FIRST_EPOCH: u64 = 1_577_836_800;
    let now = redis.command(&["TIME"]).expect("a reply").list()[0].number().expect("seconds");
    (now + 1 - FIRST_EPOCH) << 22
}

/// The end was clean, but what followed it may be lost: the server is another one since.
#[test]
fn clean_end_counts_for_same_master() {
    let mut redis = server();
    let options = options(&redis);
    let mut history = History::new(3);
    let mut store = open(&options);
    store.append(&history.group(30)).unwrap();
    written(&mut store, &history);
    store.close(history.tick()).unwrap();
    drop(store);
    redis.restart().unwrap();
    let next = open(&options).recovered().next_id;
    assert!(next >= by_time(&redis) - (60 << 22), "{next}");
}

/// Story: a replica that died in silence counted as one that must know of a new owner, for the minute until its master
/// missed it; nobody could take a shard of that master meanwhile. Found by review.
#[test]
fn silent_replica_blocks_no_acquire() {
    let mut cluster = RedisCluster::start(3, 1, Settings::default()).expect("a cluster");
    let options = of_cluster(&cluster);
    drop(open(&options));
    let master = cluster.master_of_key("{duewheel:3}:owner").unwrap();
    let replica = cluster.replicas_of(master).unwrap()[0];
    cluster.pause(replica).unwrap();
    // Within half of that minute.
    drop(open(&options));
    cluster.resume(replica).unwrap();
}

/// Story: Redis had carried an acquire out, and the connection broke before its reply. The next try of the same process
/// was told that somebody had the shard: itself, in a reign of which it knew nothing, until the end of the lease. Found
/// by review.
#[test]
fn lost_acquire_reply_blocks_no_retry() {
    let redis = server();
    let proxy = Proxy::start(redis.address()).unwrap();
    // Longer than `open` waits.
    let lease = Duration::from_secs(600);
    let options = Options::parse(&format!("redis://{}/0", proxy.address())).unwrap().lease(lease).unwrap();
    let owner = |field| redis.command(&["HGET", "{duewheel:3}:owner", field]).unwrap();
    // A word of the script that takes a shard, and of no other.
    proxy.set(Mode::LoseReply("'HELD'"));
    assert_eq!(
        kind(duewheel_store_redis::open(&options, SHARD, Arc::new(|| {}))),
        Some(ErrorKind::Unavailable)
    );
    let lost = owner("epoch").number().expect("it was carried out");
    assert!(owner("until").number() > Some(0), "nobody could give it back");
    proxy.heal();
    let recovered = open(&options).recovered();
    assert!(u64::from(recovered.epoch.0) > lost, "{recovered:?}");
}

/// Story: the time that a shard was without an owner was the difference of two nodes' wall clocks; a node whose clock
/// was five seconds ahead gave delays of five seconds for nothing.
#[test]
fn unowned_time_uses_server_clock() {
    let redis = server();
    let options = options(&redis);
    let began = Instant::now();
    let mut store = open(&options);
    let clock = ClockPair { engine: EngineMs(10_000), wall: WallMs(7) }; // a clock that is more than fifty years behind
    let group = Group { clock, ..History::new(2).group(5) };
    store.append(&group).unwrap();
    until("it is durable", || store.progress().expect("it lives").durable >= group.last());
    drop(store);
    let left = open(&options).recovered().clock.expect("clocks");
    assert_eq!(left.engine, EngineMs(10_000));
    let now = left.engine_at(WallMs::from_system_time_up(SystemTime::now()));
    let passed = u64::try_from(began.elapsed().as_millis()).unwrap();
    assert!(now.0 <= 10_000 + passed + 1, "{} ms were added, {passed} have passed", now.0 - 10_000);
}
