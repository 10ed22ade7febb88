//! Steps of Redis' clock. What a script sees after a step is that all times that it has stored are older, or later, by
//! as much: so that is what the tests make them, with a clock that goes on as it did.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use duewheel_core::ShardId;
use duewheel_core::record::{ClockPair, Group};
use duewheel_core::store::conformance::History;
use duewheel_core::store::{Candidate, Coordinator, ErrorKind, Ownership, Store};
use duewheel_core::time::{EngineMs, WallMs};
use duewheel_redis_rig::Redis;
use duewheel_store_medium::MediumStore;
use duewheel_store_redis::{Options, RedisCoordinator};

use crate::place::{kind, open, options, server, until};
use crate::shard::ask;

const OWNER: &str = "{duewheel:3}:owner";
const HEAD: &str = "{duewheel:3}:head";
const STEP: u64 = 600_000;
/// Of the engine, when it was noted last.
const NOTED: u64 = 10_000;

fn wall() -> WallMs {
    WallMs::from_system_time_up(SystemTime::now())
}

/// An owner that has written, and is gone; gives when it wrote.
fn leave_a_shard(options: &Options) -> Instant {
    leave_a_shard_behind(options, 0)
}

/// The same, with a wall clock that is behind by so many ms.
fn leave_a_shard_behind(options: &Options, behind: u64) -> Instant {
    let mut store = open(options);
    let began = Instant::now();
    let wall = WallMs(wall().0 - behind);
    let group = Group { clock: ClockPair { engine: EngineMs(NOTED), wall }, ..History::new(2).group(5) };
    store.append(&group).expect("append");
    until("it is durable", || store.progress().expect("it lives").durable >= group.last());
    began
}

/// The server's clock goes forward.
fn step_forward(redis: &Redis) {
    let back = format!("-{STEP}");
    ask(redis, &["HINCRBY", OWNER, "until", &back]);
    ask(redis, &["HINCRBY", HEAD, "at", &back]);
}

/// How much time the next owner counts.
fn counted(store: &mut MediumStore) -> u64 {
    let clock = store.recovered().clock.expect("clocks");
    clock.engine_at(wall()).0 - NOTED
}

fn passed(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).expect("not long") + 1
}

/// Story: a virtual machine with Redis on it was resumed, and its clock went ten minutes forward. The owner was fenced,
/// took its shard again, and counted ten minutes without an owner: delays of five minutes were over, and so were leases
/// that consumers had.
#[test]
fn forward_step_keeps_same_owner_delays() {
    let redis = server();
    let options = options(&redis);
    let began = leave_a_shard(&options);
    step_forward(&redis);
    let counts = counted(&mut open(&options));
    assert!(counts <= passed(began), "{counts} ms were counted, {} have passed", passed(began));
}

#[test]
fn forward_step_keeps_next_owner_delays() {
    let redis = server();
    let began = leave_a_shard(&options(&redis));
    step_forward(&redis);
    let mut next = open(&options(&redis)); // another process remembers nothing of it
    let counts = counted(&mut next);
    assert!(counts <= passed(began), "{counts} ms were counted, {} have passed", passed(began));
    let figure = |store: &MediumStore| {
        store.figures().into_iter().find(|(name, _)| *name == "clock_disagreements_total").map(|(_, n)| n)
    };
    assert_eq!(figure(&next), Some(1));
}

#[test]
fn unowned_time_needs_both_clocks() {
    let redis = server();
    // As if all of it had been away.
    let began = leave_a_shard_behind(&options(&redis), STEP);
    step_forward(&redis);
    let counts = counted(&mut open(&options(&redis)));
    assert!((STEP - 10..=STEP + passed(began)).contains(&counts), "{counts} ms were counted");
}

/// Story: all machines had been without power for hours. The first owner after that died in its takeover, and the time
/// without an owner was counted from what it had written: all delays were late by hours.
#[test]
fn failed_takeover_keeps_unowned_time() {
    let redis = server();
    let began = leave_a_shard_behind(&options(&redis), STEP);
    step_forward(&redis);
    for _ in 0..2 {
        drop(open(&options(&redis))); // its clocks were never written
    }
    let counts = counted(&mut open(&options(&redis)));
    assert!((STEP - 10..=STEP + passed(began)).contains(&counts), "{counts} ms were counted");
}

/// Story: the clock of Redis went an hour back, and the owner died before it had renewed its lease. The lease ran for
/// an hour more, and nobody served the shard.
#[test]
fn backward_step_extends_no_lease() {
    let redis = server();
    let lease = Duration::from_millis(700);
    let of = options(&redis).lease(lease).unwrap();
    drop(open(&of)); // makes the shard
    let replid = ask(&redis, &["HGET", OWNER, "replid"]).text().unwrap();
    let hour = (now(&redis) + 3_600_000).to_string();
    let words = ["HSET", OWNER, "epoch", "7", "incarnation", "other", "node", "b", "number", "1"];
    let words: Vec<&str> = words.into_iter().chain(["advertise", "b:1", "replid", &replid]).collect();
    let words: Vec<&str> = words.into_iter().chain(["lease", "700", "until", &hour]).collect();
    ask(&redis, &words);
    let asked = Instant::now();
    let refused = duewheel_store_redis::open(&of, crate::place::SHARD, Arc::new(|| {}));
    assert_eq!(kind(refused), Some(ErrorKind::Fenced), "it may run still");
    drop(open(&of));
    assert!(asked.elapsed() >= lease, "a whole lease from when it was seen");
}

/// The same for whoever only looks who owns what, and for a node's own life.
#[test]
fn backward_step_frees_dead_node() {
    let redis = server();
    let lease = Duration::from_millis(700);
    let nodes = RedisCoordinator::new(options(&redis).lease(lease).unwrap());
    let candidate = |name: &str| Candidate {
        name: name.into(),
        advertise: format!("{name}:1").into(),
        shards_if_new: 4,
        settle_delay: Duration::ZERO,
    };
    let dead = nodes.join(&candidate("dead")).unwrap().node;
    drop(nodes.open(&dead, ShardId(3), Arc::new(|| {})).unwrap());
    let hour = (now(&redis) + 3_600_000).to_string();
    ask(&redis, &["HSET", OWNER, "until", &hour]);
    let of_dead = format!("{} {hour} dead:1", dead.number);
    ask(&redis, &["HSET", "{duewheel:cluster}:nodes", "dead", &of_dead]);
    let me = nodes.join(&candidate("me")).unwrap().node;
    let seen = nodes.owners().unwrap()[3].owner().cloned().expect("it may run still");
    assert_eq!(seen.node.name, dead.name);
    until("the shard is nobody's", || nodes.owners().unwrap()[3] == Ownership::Free);
    until("the node is dead", || nodes.beat(&me).unwrap() == vec![me.clone()]);
    ask(&redis, &["HSET", "{duewheel:cluster}:nodes", "dead", &of_dead]);
    until("its name is free", || nodes.join(&candidate("dead")).is_ok());
}

fn now(redis: &Redis) -> u64 {
    let time = ask(redis, &["TIME"]);
    time.list()[0].number().expect("seconds") * 1_000
}
