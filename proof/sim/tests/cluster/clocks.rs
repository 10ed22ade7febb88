//! A clock of Redis that is stepped: forward, as that of a virtual machine that was stopped, or back. Nothing is early
//! by it, neither a delay nor the end of a consumer's lease, and no lease of a shard becomes longer.

use std::time::{Duration, Instant};

use duewheel_judge::checker::Fact;
use duewheel_judge::history::Blow;
use duewheel_redis_rig::{Redis, Settings, Value};
use duewheel_sim::blackbox::cluster::{Door, DuewheelCluster};

use crate::stage::{PATIENCE, Play, Stage, in_runs, ms, perform};

const NODES: usize = 3;

const FORWARD_MS: i64 = 600_000;
const BACK_MS: i64 = -3_600_000;

/// To a script, a step is that all times that are stored are older by as much: leases of shards, the lives of nodes,
/// and when the clocks were noted. All of them go back in one step, or forward if the clock goes back.
const STEP: &str = "
local step = tonumber(ARGV[2])
for shard = 0, ARGV[1] - 1 do
  local tag = '{duewheel:' .. shard .. '}:'
  for _, at in ipairs({ { 'owner', 'until' }, { 'head', 'at' } }) do
    local key = tag .. at[1]
    local time = tonumber(redis.call('HGET', key, at[2]) or '0')
    if time > 0 then
      redis.call('HSET', key, at[2], string.format('%.0f', time - step))
    end
  end
end
local nodes = redis.call('HGETALL', '{duewheel:cluster}:nodes')
for i = 1, #nodes, 2 do
  local number, ends, advertise = string.match(nodes[i + 1], '^(%d+) (%d+) (.*)$')
  redis.call('HSET', '{duewheel:cluster}:nodes', nodes[i], string.format('%s %.0f %s', number, ends - step, advertise))
end
return 'OK'";

/// Story: the step was counted as time without an owner. Delays of minutes were over at once, and messages went to a
/// second consumer while the first had them.
#[test]
fn forward_step_delivers_nothing_early() {
    in_runs("DUEWHEEL_CLOCK_STEPS", 3, 25, step_clock);
}

fn step_clock(steps: u64) {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let system = DuewheelCluster::new(Door::Http, Duration::from_secs(3));
    let shards = system.shards.to_string();
    let play = Play {
        name: "clocks::forward_step_delivers_nothing_early",
        count: ("DUEWHEEL_CLOCK_STEPS", steps),
        system,
        stores: vec![redis.url(0); NODES],
        nodes: NODES,
        facts: vec![
            (Fact::Struck(Blow::StoreClockStepped), steps),
            (Fact::CancelsWon, steps),
            (Fact::ExpiredLeasesGrantedAgain, steps),
        ],
    };
    perform(play, |stage| {
        let worst = stage.worst_of(steps, |stage, _| {
            stage.sleep(1_500, 3_000);
            let since = stage.strike(Blow::StoreClockStepped);
            step(&redis, &shards, FORWARD_MS)?;
            stage.heal(since)
        })?;
        stage.say(format!("all served again after at most {} ms", ms(worst)));
        Ok(())
    });
}

fn step(redis: &Redis, shards: &str, by: i64) -> Result<(), String> {
    match redis.command(&["EVAL", STEP, "0", shards, &by.to_string()]) {
        Ok(Value::Error(said)) => Err(format!("the step: {said}")),
        Ok(_) => Ok(()),
        Err(error) => Err(format!("the step: {error}")),
    }
}

/// A node dies, and the clock of Redis goes ten minutes forward: the next owners of its shards are other processes,
/// which know the time without an owner by two clocks that disagree. They take the shorter one, and say so.
#[test]
fn forward_step_with_failover_is_counted() {
    in_runs("DUEWHEEL_CLOCK_STEPS", 2, 25, |steps| step_and_kill(steps, FORWARD_MS));
}

/// Story: a node died, and the clock of Redis went back by an hour: the lease that it had left was to run for an hour
/// more. Whoever looked let it run for a whole lease, and whoever then took the shard for one more.
#[test]
fn backward_step_frees_dead_node_shards() {
    in_runs("DUEWHEEL_CLOCK_STEPS", 1, 10, |steps| step_and_kill(steps, BACK_MS));
}

fn step_and_kill(steps: u64, by: i64) {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let (name, lease) = match by {
        FORWARD_MS => ("clocks::forward_step_with_failover_is_counted", 3),
        // One lease is over within a minute, for which a test waits, and two are not.
        _ => ("clocks::backward_step_frees_dead_node_shards", 35),
    };
    let system = DuewheelCluster::new(Door::Http, Duration::from_secs(lease));
    let shards = system.shards.to_string();
    let play = Play {
        name,
        count: ("DUEWHEEL_CLOCK_STEPS", steps),
        system,
        stores: vec![redis.url(0); NODES],
        nodes: NODES,
        facts: vec![
            (Fact::Struck(Blow::StoreClockStepped), steps),
            (Fact::Struck(Blow::NodeKilled), steps),
            // A forward step ends the dead node's lease at once.
            (Fact::DelayedByABlow, if by == BACK_MS { steps } else { 0 }),
            (Fact::CancelsWon, steps),
        ],
    };
    perform(play, |stage| {
        let worst = stage.worst_of(steps, |stage, _| {
            stage.sleep(1_500, 3_000);
            let node = stage.owner_of(0)?;
            let living: Vec<usize> = (0..NODES).filter(|other| *other != node).collect();
            let before = disagreements(stage, &living)?;
            let since = stage.strike(Blow::NodeKilled);
            stage.kill(node)?;
            let gone = Instant::now();
            stage.strike(Blow::StoreClockStepped);
            step(&redis, &shards, by)?;
            let took = stage.probe()?.until_whole(gone, PATIENCE)?;
            let after = disagreements(stage, &living)?;
            if by == FORWARD_MS && (after.0 <= before.0 || after.1 <= before.1) {
                return Err(format!("disagreements, counted and logged: {before:?}, then {after:?}"));
            }
            stage.start(node)?;
            stage.heal(since)?;
            if by == BACK_MS {
                // By the clock of Redis no time has passed. The shorter time counts, so delays are later by the time
                // without an owner.
                stage.system.may_stand_still(took);
            }
            Ok(took)
        })?;
        stage.say_longest("shards of a dead node served again", worst);
        Ok(())
    });
}

/// How often these nodes have seen two clocks disagree: by their metrics, and by their logs.
fn disagreements(stage: &Stage<'_>, nodes: &[usize]) -> Result<(u64, usize), String> {
    let (mut counted, mut logged) = (0, 0);
    for node in nodes {
        let page = stage.text(*node, "/metrics")?;
        let lines = page.lines().filter(|line| line.starts_with("duewheel_store_clock_disagreements_total{"));
        counted += lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>();
        let words = "disagree about how long a shard was without an owner";
        logged += stage.log(*node)?.matches(words).count();
    }
    Ok((counted, logged))
}
