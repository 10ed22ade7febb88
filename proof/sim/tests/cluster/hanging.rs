//! A master of a Redis Cluster that hangs, with no replica to take its place, while a node dies: what the other masters
//! keep goes on.

use std::time::{Duration, Instant};

use duewheel_judge::checker::Fact;
use duewheel_judge::history::Blow;
use duewheel_redis_rig::{RedisCluster, Settings};
use duewheel_sim::blackbox::cluster::{Door, DuewheelCluster};
use serde_json::Value;

use crate::stage::{Play, Stage, in_runs, perform};

const NODES: usize = 3;
const MASTERS: usize = 3;

/// Story: while one of three masters hung, nobody could read who owned what, so the shards of a dead node stayed
/// without an owner at the two other masters as well, for as long as it hung.
#[test]
fn hanging_master_blocks_only_own_shards() {
    in_runs("DUEWHEEL_HANGING_MASTERS", 1, 10, hang);
}

fn hang(times: u64) {
    // The cluster is not to do anything about it by itself: a node that is not heard of for so long is dead to it.
    let extra = ["--cluster-node-timeout", "300000"].map(str::to_owned).to_vec();
    let settings = Settings { extra, ..Settings::default() };
    let mut redis = RedisCluster::start(MASTERS, 0, settings).expect("a Redis Cluster");
    let system = DuewheelCluster::new(Door::Http, Duration::from_secs(3));
    let shards = usize::try_from(system.shards).expect("few shards");
    let play = Play {
        name: "hanging::hanging_master_blocks_only_own_shards",
        count: ("DUEWHEEL_HANGING_MASTERS", times),
        system,
        stores: vec![redis.url(); NODES],
        nodes: NODES,
        facts: vec![
            (Fact::Struck(Blow::MasterPaused), times),
            (Fact::Struck(Blow::NodeKilled), times),
            (Fact::DelayedByABlow, times),
        ],
    };
    perform(play, |stage| {
        let worst = stage.worst_of(times, |stage, _| hang_one(stage, &mut redis, shards))?;
        stage.say_longest("shards of other masters with an owner again", worst);
        Ok(())
    });
}

fn hang_one(stage: &mut Stage<'_>, redis: &mut RedisCluster, shards: usize) -> Result<Duration, String> {
    stage.sleep(1_000, 2_000);
    let fail = |e: std::io::Error| format!("a master that hangs: {e}");
    let master_of =
        |redis: &RedisCluster, name: &str| redis.master_of_key(&format!("{{duewheel:{name}}}:owner"));
    // Who takes part is known by the master of the cluster's own keys alone.
    let common = master_of(redis, "cluster").map_err(fail)?;
    let masters: Vec<usize> = (0..shards)
        .map(|shard| master_of(redis, &shard.to_string()))
        .collect::<Result<_, _>>()
        .map_err(fail)?;
    let hung = *masters.iter().find(|master| **master != common).ok_or("all shards are at one master")?;
    let others: Vec<usize> = (0..shards).filter(|shard| masters[*shard] != hung).collect();
    let owner = |stage: &Stage<'_>, at: usize, shard: usize| {
        let (_, view) = stage.call(at, "GET", "/v1/cluster", &Value::Null)?;
        Ok::<Value, String>(view["shards"][shard].clone())
    };
    let node = stage.owner_of(others[0])?;

    let since = stage.strike(Blow::MasterPaused);
    redis.pause(hung).map_err(fail)?;
    stage.sleep(0, 1_000);
    stage.strike(Blow::NodeKilled);
    stage.kill(node)?;
    let gone = Instant::now();
    let living: Vec<usize> = (0..NODES).filter(|other| *other != node).collect();
    stage.until("the shards of the other masters are served by others", |stage| {
        for shard in &others {
            let served = living.iter().map(|at| Ok(owner(stage, *at, *shard)?["here"] == "serving"));
            if !served.collect::<Result<Vec<bool>, String>>()?.contains(&true) {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })?;
    let took = gone.elapsed();
    // What nobody can know is not said to be without an owner, and is said. Each node sees it in its own time.
    let mut last = Value::Null;
    let seen =
        stage.until("what is known has an owner, and what is not known is said to be unknown", |stage| {
            let (_, view) = stage.call(living[0], "GET", "/v1/cluster", &Value::Null)?;
            let known = (0..shards).filter(|shard| masters[*shard] == hung).all(|shard| {
                let shown = &view["shards"][shard];
                let why = shown["unknown"].as_str().unwrap_or_default();
                why.contains("does not answer") && shown["owner"].is_null()
            });
            let so = known && view["shards_without_owner"] == 0;
            last = view;
            Ok(so.then_some(()))
        });
    seen.map_err(|error| format!("{error}: {last}"))?;
    stage.until("health says what is not known", |stage| {
        let (status, why) = stage.health(living[0])?;
        Ok((status == 503 && (why.contains("not been known") || why.contains("not served"))).then_some(()))
    })?;
    redis.resume(hung).map_err(fail)?;
    stage.start(node)?;
    stage.heal(since)?;
    Ok(took)
}
