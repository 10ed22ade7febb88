//! A Redis Cluster of three masters with a replica each. A failover may lose what its old master had acknowledged and
//! not yet passed on: that is counted and said; everything else must hold. And a single Redis that is set back to an
//! older copy, which is a failover that always loses something.

use std::time::{Duration, Instant};

use duewheel_judge::checker::Fact;
use duewheel_judge::history::{Blow, Fault};
use duewheel_redis_rig::{Redis, RedisCluster, Role, Settings};
use duewheel_sim::blackbox::cluster::{Door, DuewheelCluster};

use crate::stage::{PATIENCE, Play, Stage, in_runs, ms, perform};

const NODES: usize = 3;

const ROUNDS: &str = "DUEWHEEL_FAILOVERS";

fn start() -> (RedisCluster, Vec<String>) {
    let redis = RedisCluster::start(3, 1, Settings::default()).expect("a Redis Cluster");
    let hosts: Vec<String> = redis.addresses()[..3].iter().map(ToString::to_string).collect();
    let store = format!("redis-cluster://{}", hosts.join(","));
    (redis, vec![store; NODES])
}

/// A master with messages, and one of its slots.
fn a_master(redis: &RedisCluster) -> Result<(usize, u16), String> {
    let nodes = redis.nodes().map_err(|e| e.to_string())?;
    let masters = nodes.iter().filter(|node| node.role == Role::Master && !node.slots.is_empty());
    let size = |number: usize| {
        let size = redis.node(number).command(&["DBSIZE"]).ok();
        size.and_then(|value| value.number()).unwrap_or(0)
    };
    let most = masters.max_by_key(|node| size(node.number)).ok_or("no master")?;
    Ok((most.number, most.slots[0].0))
}

fn kill_a_master(stage: &mut Stage<'_>, redis: &mut RedisCluster) -> Result<Duration, String> {
    stage.sleep(1_000, 2_000);
    let (master, slot) = a_master(redis)?;
    let fail = |e: std::io::Error| format!("kill of master {master}: {e}");
    let since = stage.strike(Blow::MasterKilled);
    redis.kill(master).map_err(fail)?;
    stage.run.fault(Fault::FailedOver);
    redis.wait_for_failover(slot, master, PATIENCE).map_err(fail)?;
    // It comes back as a replica, at once or when all is well again.
    stage.sleep(0, 2_000);
    redis.restart(master).map_err(fail)?;
    let took = stage.heal(since)?;
    redis.wait_until_well(PATIENCE).map_err(fail)?;
    Ok(took)
}

/// What its old clients had sent to it waits in its sockets; when it goes on it may acknowledge some of that before it
/// learns that there is another master. All of it is lost.
fn pause_a_master(stage: &mut Stage<'_>, redis: &mut RedisCluster) -> Result<Duration, String> {
    stage.sleep(1_000, 2_000);
    let (master, slot) = a_master(redis)?;
    let fail = |e: std::io::Error| format!("stop of master {master}: {e}");
    let since = stage.strike(Blow::MasterPaused);
    redis.pause(master).map_err(fail)?;
    redis.wait_for_failover(slot, master, PATIENCE).map_err(fail)?;
    stage.sleep(0, 3_000);
    redis.resume(master).map_err(fail)?;
    redis.wait_until_well(PATIENCE).map_err(fail)?;
    stage.run.fault(Fault::FailedOver);
    stage.heal(since)
}

/// All at once; each master comes back with its append-only file, and nothing is lost.
fn restart_all(stage: &mut Stage<'_>, redis: &mut RedisCluster) -> Result<Duration, String> {
    stage.sleep(1_000, 2_000);
    let since = stage.strike(Blow::StoreKilled);
    redis.kill_all().map_err(|e| format!("kill of all of Redis: {e}"))?;
    stage.sleep(0, 1_000);
    redis.restart_all().map_err(|e| format!("restart of all of Redis: {e}"))?;
    stage.heal(since)
}

#[test]
fn failover_loses_only_recent_writes() {
    in_runs(ROUNDS, 1, 5, fail_over);
}

fn fail_over(rounds: u64) {
    let (mut redis, stores) = start();
    let play = Play {
        name: "failover::failover_loses_only_recent_writes",
        count: (ROUNDS, rounds),
        system: DuewheelCluster::new(Door::Http, Duration::from_secs(3)),
        stores,
        nodes: NODES,
        facts: vec![
            (Fact::Struck(Blow::MasterKilled), rounds),
            (Fact::Struck(Blow::MasterPaused), rounds),
            (Fact::Struck(Blow::StoreKilled), rounds),
            (Fact::FailedOver, 2 * rounds),
            (Fact::UnknownOutcomes, rounds),
            (Fact::DelayedByABlow, rounds),
            (Fact::ExpiredLeasesGrantedAgain, rounds),
        ],
    };
    perform(play, |stage| {
        let mut worst = [Duration::ZERO; 3];
        for _ in 0..rounds {
            worst[0] = worst[0].max(kill_a_master(stage, &mut redis)?);
            worst[1] = worst[1].max(pause_a_master(stage, &mut redis)?);
            worst[2] = worst[2].max(restart_all(stage, &mut redis)?);
        }
        let [killed, paused, all] = worst.map(ms);
        stage.say(format!(
            "all served again after at most {killed} ms (a master killed), {paused} ms (stopped), {all} ms (all of Redis killed)"
        ));
        Ok(())
    });
}

#[test]
fn failover_after_replica_wait() {
    in_runs(ROUNDS, 1, 5, fail_over_with_wait);
}

fn fail_over_with_wait(rounds: u64) {
    let (mut redis, stores) = start();
    let mut system = DuewheelCluster::new(Door::Http, Duration::from_secs(3));
    system.wait = 1;
    let play = Play {
        name: "failover::failover_after_replica_wait",
        count: (ROUNDS, rounds),
        system,
        stores,
        nodes: NODES,
        facts: vec![
            (Fact::Struck(Blow::MasterKilled), rounds),
            (Fact::FailedOver, rounds),
            (Fact::UnknownOutcomes, rounds),
            (Fact::DelayedByABlow, rounds),
        ],
    };
    perform(play, |stage| {
        let worst = stage.worst_of(rounds, |stage, _| kill_a_master(stage, &mut redis))?;
        stage.say(format!("all served again after at most {} ms", ms(worst)));
        Ok(())
    });
}

/// A node that owned shards is stopped; others take them, in a later reign; then all of that is forgotten by the store,
/// and the node goes on and finds itself named as the owner. It is not: neither are its writes taken, nor is a token
/// given twice.
#[test]
fn rolled_back_store_revives_no_owner() {
    in_runs(ROUNDS, 1, 5, set_back);
}

fn set_back(rounds: u64) {
    let mut redis = Redis::start(Settings::default()).expect("a redis-server");
    let system = DuewheelCluster::new(Door::Http, Duration::from_secs(1));
    let play = Play {
        name: "failover::rolled_back_store_revives_no_owner",
        count: (ROUNDS, rounds),
        system,
        stores: vec![redis.url(0); NODES],
        nodes: NODES,
        facts: vec![
            (Fact::Struck(Blow::StoreSetBack), 2 * rounds),
            (Fact::FailedOver, 2 * rounds),
            (Fact::Forgotten, rounds),
            (Fact::ExpiredLeasesGrantedAgain, rounds),
        ],
    };
    perform(play, |stage| {
        let worst = stage.worst_of(2 * rounds, |stage, round| {
            stage.sleep(1_000, 2_000);
            let copied = Instant::now();
            let copy = redis.copy().map_err(|e| format!("a copy of Redis' file: {e}"))?;
            let node = stage.any();
            let moved = round % 2 == 1;
            if moved {
                stage.strike(Blow::NodePaused);
                stage.pause(node)?;
                stage.probe()?.until_whole(Instant::now(), PATIENCE)?;
            }
            stage.sleep(300, 1_000);
            let since = stage.strike(Blow::StoreSetBack);
            stage.system.may_forget(copied.elapsed());
            redis.kill().map_err(|e| format!("kill of Redis: {e}"))?;
            stage.run.fault(Fault::FailedOver);
            redis.restart_from(&copy).map_err(|e| format!("restart of Redis: {e}"))?;
            if moved {
                stage.sleep(0, 1_000);
                stage.resume(node)?;
            }
            stage.heal(since)
        })?;
        stage.say(format!("all served again after at most {} ms", ms(worst)));
        Ok(())
    });
}
