//! Groups that Redis refuses as a whole: what goes on all the same, and what is counted.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use duewheel_redis_rig::{Redis, Settings};

use crate::process::Process;
use crate::redis::{Known, ack, serve, until};

const MESSAGE: &str = r#"{"body": "a", "delay": "1h"}"#;

fn set(redis: &Redis, name: &str, value: &str) {
    let reply = redis.command(&["CONFIG", "SET", name, value]).expect("a reply");
    assert_eq!(reply.text().as_deref(), Some("OK"));
}

/// Story: Redis had no memory left and refused a group. The acks that were in it, and in those behind it, got 507 with
/// the new messages, although they free memory.
#[test]
fn acks_proceed_while_redis_is_full() {
    const ACKS: usize = 8;
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    // A lease that a busy machine does not lose.
    let server = Process::spawn(serve(&redis, &["--shard-lease", "30s"]));
    let server = &server;
    let enqueue = || server.call("POST", "/v1/queues/room/messages", MESSAGE);
    let mut known = Known::default();
    for round in 0..3 {
        set(&redis, "maxmemory", "0");
        until("there is room in every shard", || (0..20).all(|_| enqueue().0 == 201));
        known.enqueue(server, &format!("round-{round}"), 2 * ACKS);
        let leased = known.reserve(server, 2 * ACKS);
        assert_eq!(leased.len(), 2 * ACKS);
        let (before, after) = leased.split_at(ACKS);
        // The server does not know yet that there is no room.
        set(&redis, "maxmemory", "1");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let fillers = [0, 1].map(|_| {
                scope.spawn(|| {
                    while !is_over.load(SeqCst) {
                        let (status, said) = enqueue();
                        assert!(matches!(status, 201 | 507), "{status} {said}");
                    }
                })
            });
            let all_acked = |leases: &[(String, String)]| {
                leases.iter().map(|lease| ack(server, lease)).find(|(status, _)| *status != 200)
            };
            let odd = all_acked(before);
            until("new messages are refused", || enqueue().0 == 507);
            let odd = odd.or_else(|| all_acked(after));
            // Before anything is asserted: the others wait for it.
            is_over.store(true, SeqCst);
            for filler in fillers {
                filler.join().expect("no answer is odd");
            }
            assert_eq!(odd, None);
        });
    }
}

/// A replica that hangs: whether a change stays is unknown, and each such change is counted.
#[test]
fn unreplicated_change_is_unknown_and_counted() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let copy = Redis::start(Settings::default()).expect("a redis-server");
    copy.command(&["REPLICAOF", "127.0.0.1", &redis.port().to_string()]).expect("a reply");
    until("it follows", || {
        let told = redis.command(&["INFO", "replication"]).expect("a reply").text().unwrap_or_default();
        told.contains("state=online")
    });
    let server = Process::spawn(serve(&redis, &["--redis-wait", "1"]));
    let enqueue = || server.call("POST", "/v1/queues/q/messages", MESSAGE);
    until("it is taken", || enqueue().0 == 201);
    let failures = || {
        let page = server.text("/metrics");
        let failures = page.lines().filter(|line| line.starts_with("duewheel_store_wait_failures_total{"));
        failures.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>()
    };
    let before = failures();
    copy.pause().expect("pause");
    let (status, said) = enqueue();
    assert_eq!(
        (status, &said["code"], &said["outcome"]),
        (503, &"storage_unavailable".into(), &"unknown".into())
    );
    until("it is counted", || failures() > before);
    copy.resume().expect("resume");
    until("it is taken again", || enqueue().0 == 201);
}

/// Story: after a fence `duewheel_enqueued_total` counted the refused group and the second try: 45 for 32.
#[test]
fn refused_messages_are_not_counted() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let server = Process::spawn(serve(&redis, &["--shard-lease", "2s"]));
    let mut accepted = 0;
    // What is asked for while Redis refuses is not there, whether the server can know that or not.
    let mut enqueue = || {
        let (status, said) = server.call("POST", "/v1/queues/q/messages", MESSAGE);
        assert!(matches!(status, 201 | 503), "{status} {said}");
        accepted += u32::from(status == 201);
        status
    };
    for _ in 0..5 {
        assert_eq!(enqueue(), 201);
    }
    let sum = |name: &str| {
        let page = server.text("/metrics");
        let lines = page.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    for _ in 0..3 {
        set(&redis, "min-replicas-to-write", "1");
        until("it is refused", || enqueue() == 503);
        set(&redis, "min-replicas-to-write", "0");
        until("it is taken again", || enqueue() == 201);
        // Another owner, whose lease is over. The node takes the shard again, and what was refused goes there once
        // more.
        let fences = sum("duewheel_store_fences_total");
        let fence = ["HSET", "{duewheel:0}:owner", "incarnation", "other", "until", "0"];
        redis.command(&fence).expect("a reply");
        until("it is fenced", || {
            enqueue();
            sum("duewheel_store_fences_total") > fences
        });
        until("it is taken again", || enqueue() == 201);
    }
    assert_eq!(sum("duewheel_enqueued_total"), f64::from(accepted));
}
