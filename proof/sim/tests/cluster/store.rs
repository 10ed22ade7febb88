//! A single Redis that is killed, stopped, cut off from one node, or away.

use std::time::{Duration, Instant};

use duewheel_judge::checker::Fact;
use duewheel_judge::history::Blow;
use duewheel_redis_rig::{Mode, Proxy, Redis, Settings};
use duewheel_sim::blackbox::cluster::{Door, DuewheelCluster};
use duewheel_sim::http;
use serde_json::json;

use crate::stage::{PATIENCE, Play, Stage, in_runs, ms, perform};

const NODES: usize = 3;

const ROUNDS: &str = "DUEWHEEL_STORE_FAULTS";

fn play(name: &'static str, rounds: u64, stores: Vec<String>, facts: Vec<(Fact, u64)>) -> Play {
    Play {
        name,
        count: (ROUNDS, rounds),
        system: DuewheelCluster::new(Door::Http, Duration::from_secs(3)),
        nodes: stores.len(),
        stores,
        facts,
    }
}

/// After some time; gives the moment from which on it counts.
fn kill(stage: &mut Stage<'_>, redis: &mut Redis) -> Result<Instant, String> {
    stage.sleep(500, 1_500);
    let since = stage.strike(Blow::StoreKilled);
    redis.kill().map_err(|e| format!("kill of Redis: {e}"))?;
    Ok(since)
}

fn restart(redis: &mut Redis) -> Result<(), String> {
    redis.restart().map_err(|e| format!("restart of Redis: {e}"))
}

/// With `appendfsync always` and one server nothing is lost.
#[test]
fn killed_or_paused_redis_loses_nothing() {
    in_runs(ROUNDS, 1, 10, killed_or_stopped);
}

fn killed_or_stopped(rounds: u64) {
    let mut redis = Redis::start(Settings::default()).expect("a redis-server");
    let facts = vec![
        (Fact::Struck(Blow::StoreKilled), rounds),
        (Fact::Struck(Blow::StorePaused), 2 * rounds),
        (Fact::UnknownOutcomes, rounds),
        (Fact::StorageUnavailable, rounds),
        (Fact::DelayedByABlow, rounds),
        (Fact::ExpiredLeasesGrantedAgain, rounds),
        (Fact::LeasesAckedAcrossABlow, rounds.div_ceil(2)),
    ];
    let stores = vec![redis.url(0); NODES];
    let play = play("store::killed_or_paused_redis_loses_nothing", rounds, stores, facts);
    perform(play, |stage| {
        let worst = stage.worst_of(rounds, |stage, _| {
            let since = kill(stage, &mut redis)?;
            stage.sleep(0, 1_500);
            restart(&mut redis)?;
            let mut worst = stage.heal(since)?;
            // Once within the lease, and once for longer.
            for (from, until) in [(200, 1_500), (3_500, 5_000)] {
                stage.sleep(500, 1_500);
                let since = stage.strike(Blow::StorePaused);
                redis.pause().map_err(|e| format!("stop of Redis: {e}"))?;
                stage.sleep(from, until);
                redis.resume().map_err(|e| format!("Redis goes on: {e}"))?;
                worst = worst.max(stage.heal(since)?);
            }
            Ok(worst)
        })?;
        stage.say(format!("served again within {} ms of each fault", ms(worst)));
        Ok(())
    });
}

/// Its shards go to the others, and it asks them; by itself it neither writes nor grants.
#[test]
fn node_without_redis_loses_only_shards() {
    in_runs(ROUNDS, 1, 10, cut_off);
}

fn cut_off(rounds: u64) {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let proxies: Vec<Proxy> = (0..NODES).map(|_| Proxy::start(redis.address()).expect("a proxy")).collect();
    let stores = proxies.iter().map(|proxy| format!("redis://{}/0", proxy.address())).collect();
    let facts = vec![
        (Fact::Struck(Blow::NodeCut), 2 * rounds),
        (Fact::ExpiredLeasesGrantedAgain, rounds),
        (Fact::UnknownOutcomes, rounds),
    ];
    let play = play("store::node_without_redis_loses_only_shards", rounds, stores, facts);
    perform(play, |stage| {
        let worst = stage.until_it_bites(2 * rounds, "after a cut", |stage, round| {
            stage.sleep(500, 1_500);
            let node = stage.any();
            let since = stage.strike(Blow::NodeCut);
            stage.probe()?.leave(node);
            // Refused connections, and connections on which nothing moves.
            proxies[node].set(if round % 2 == 0 { Mode::Cut } else { Mode::Stall });
            let gone = Instant::now();
            // The others have all of its shards.
            let took = stage.probe()?.until_whole(gone, PATIENCE)?;
            stage.sleep(0, 1_000);
            proxies[node].heal();
            stage.probe()?.set_node(node, Some(stage.http(node)?));
            stage.heal(since)?;
            Ok(took)
        })?;
        stage.say_longest("shards of a node that was cut off served again", worst);
        Ok(())
    });
}

/// Every node says that its store is away, and what that means for the request; nobody has to do anything for it to go
/// on.
#[test]
fn redis_outage_is_reported_to_requests() {
    in_runs(ROUNDS, 1, 10, away);
}

fn away(rounds: u64) {
    let mut redis = Redis::start(Settings::default()).expect("a redis-server");
    let facts = vec![
        (Fact::Struck(Blow::StoreKilled), rounds),
        (Fact::StorageUnavailable, 3 * rounds),
        (Fact::DelayedByABlow, rounds),
    ];
    let play = play("store::redis_outage_is_reported_to_requests", rounds, vec![redis.url(0); NODES], facts);
    perform(play, |stage| {
        let worst = stage.worst_of(rounds, |stage, _| {
            let since = kill(stage, &mut redis)?;
            for node in 0..NODES {
                says_so(stage, node)?;
            }
            stage.sleep(1_000, 4_000);
            let back = Instant::now();
            restart(&mut redis)?;
            stage.heal(since)?;
            let took = back.elapsed();
            for node in 0..NODES {
                let message = json!({"body": "after", "delay_ms": 0});
                let said =
                    http::done(stage.http(node)?, PATIENCE, "POST", "/v1/queues/own/messages", &message)?;
                if said["durability"] != "fsync" {
                    return Err(format!("with Redis back node {node} answers {said}"));
                }
            }
            Ok(took)
        })?;
        stage.say(format!("served again within {} ms of Redis' restart, by itself", ms(worst)));
        Ok(())
    });
}

/// The queue is not of the history: nobody knows what becomes of these.
fn says_so(stage: &Stage<'_>, node: usize) -> Result<(), String> {
    for (path, body) in [
        ("/v1/queues/own/messages", json!({"body": "while it is away", "delay_ms": 0})),
        ("/v1/queues/own/reserve", json!({"max": 1})),
    ] {
        let mut last = String::new();
        stage
            .until("it says that the store is away", |stage| {
                let (status, said) = stage.call(node, "POST", path, &body)?;
                last = format!("{status} {said}");
                let outcome = said["outcome"].as_str().unwrap_or("");
                let right = status == 503
                    && said["code"] == "storage_unavailable"
                    && ["unknown", "not_applied"].contains(&outcome);
                if (200..300).contains(&status) && path.ends_with("messages") {
                    return Err(format!("node {node} accepts a message without a store: {last}"));
                }
                Ok(right.then_some(()))
            })
            .map_err(|e| format!("node {node}, {path}: {e}; last {last}"))?;
    }
    Ok(())
}
