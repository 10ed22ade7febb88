//! A clock of Redis that is stepped forward, as that of a virtual machine that was stopped. Nothing is early by it:
//! neither a delay nor the end of a consumer's lease.

use std::time::Duration;

use duewheel_judge::checker::Fact;
use duewheel_judge::history::Blow;
use duewheel_redis_rig::{Redis, Settings, Value};
use duewheel_sim::blackbox::cluster::{Door, DuewheelCluster};

use crate::stage::{Play, in_runs, ms, perform};

const NODES: usize = 3;

/// To a script, a step is that all times that are stored are older by as much: leases of shards, the lives of nodes,
/// and when the clocks were noted. All of them go back in one step.
const STEP: &str = "
local step = 600000
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
fn a_forward_step_of_the_clock_of_redis_makes_nothing_early() {
    in_runs("DUEWHEEL_CLOCK_STEPS", 3, 25, step_clock);
}

fn step_clock(steps: u64) {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let system = DuewheelCluster::new(Door::Http, Duration::from_secs(3));
    let shards = system.shards.to_string();
    let play = Play {
        name: "clocks::a_forward_step_of_the_clock_of_redis_makes_nothing_early",
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
            match redis.command(&["EVAL", STEP, "0", &shards]) {
                Ok(Value::Error(said)) => return Err(format!("the step: {said}")),
                Ok(_) => {}
                Err(error) => return Err(format!("the step: {error}")),
            }
            stage.heal(since)
        })?;
        stage.say(format!("all served again after at most {} ms", ms(worst)));
        Ok(())
    });
}
