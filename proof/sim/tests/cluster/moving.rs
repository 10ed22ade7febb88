//! Slots of a Redis Cluster that move from one master to another under load, as in a resharding. Nothing may be lost by
//! it, and nothing may be applied in part; a shard whose slot is on its way stands still, and is served again soon
//! after.

use std::time::{Duration, Instant};

use duewheel_judge::checker::Fact;
use duewheel_judge::history::Blow;
use duewheel_redis_rig::{RedisCluster, Settings};
use duewheel_sim::blackbox::cluster::{Door, DuewheelCluster};

use crate::stage::{PATIENCE, Play, Stage, in_runs, perform};

const NODES: usize = 3;
const MASTERS: usize = 3;

/// Story: 73,000 messages were accepted, postponed and cancelled while 50,000 slots moved between three masters, and
/// one never came: Redis had refused a key in the midst of the script that postponed it.
#[test]
fn slots_move_under_load_both_ways() {
    in_runs("DUEWHEEL_SLOT_MOVES", 12, 60, move_slots);
}

fn move_slots(moves: u64) {
    let about = SlotPlay {
        name: "moving::slots_move_under_load_both_ways",
        variable: "DUEWHEEL_SLOT_MOVES",
        lease: Duration::from_secs(3),
        // The keys by which the nodes agree have a slot of their own, which moves once in so many rounds.
        common: 6,
        facts: vec![(Fact::Replaced, moves)],
    };
    play(about, moves, move_slot);
}

struct SlotPlay {
    name: &'static str,
    variable: &'static str,
    lease: Duration,
    common: u64,
    facts: Vec<(Fact, u64)>,
}

/// Moves a slot in each round, of a shard or of the keys that all have in common: `act` is told whose, and the number
/// of the round.
fn play(
    about: SlotPlay,
    moves: u64,
    mut act: impl FnMut(&mut Stage<'_>, &RedisCluster, &str, u64) -> Result<Duration, String>,
) {
    let redis = RedisCluster::start(MASTERS, 0, Settings::default()).expect("a Redis Cluster");
    let system = DuewheelCluster::new(Door::Http, about.lease);
    let shards = system.shards;
    let mut facts = about.facts;
    facts.extend([
        (Fact::Struck(Blow::SlotMoved), moves),
        (Fact::CancelsWon, moves),
        (Fact::DelayedByABlow, moves.div_ceil(about.common)),
    ]);
    let play = Play {
        name: about.name,
        count: (about.variable, moves),
        system,
        stores: vec![redis.url(); NODES],
        nodes: NODES,
        facts,
    };
    perform(play, |stage| {
        let worst = stage.worst_of(moves, |stage, round| {
            stage.sleep(200, 1_000);
            let shard = stage.rng.below(u64::from(shards));
            let is_common = round % about.common == about.common - 1;
            let name = if is_common { "cluster".to_owned() } else { shard.to_string() };
            act(stage, &redis, &name, round)
        })?;
        stage.say_longest("served again when a slot had moved", worst);
        Ok(())
    });
}

/// A resharding that is interrupted: a slot stays open for longer than a lease, with some of its keys at either master.
/// A shard's own slot, and that of the keys by which the nodes agree.
#[test]
fn slot_open_beyond_lease_recovers() {
    in_runs("DUEWHEEL_OPEN_SLOTS", 2, 20, open_slots);
}

fn open_slots(moves: u64) {
    let lease = Duration::from_secs(2);
    let about = SlotPlay {
        name: "moving::slot_open_beyond_lease_recovers",
        variable: "DUEWHEEL_OPEN_SLOTS",
        lease,
        common: 2,
        facts: Vec::new(),
    };
    play(about, moves, |stage, redis, name, _| leave_open(stage, redis, name, lease));
}

fn leave_open(
    stage: &mut Stage<'_>,
    redis: &RedisCluster,
    name: &str,
    lease: Duration,
) -> Result<Duration, String> {
    let fail = |e: std::io::Error| format!("an open slot of {name}: {e}");
    let slot = redis.slot_of_key(&format!("{{duewheel:{name}}}:owner")).map_err(fail)?;
    let from = redis.master_of_slot(slot).map_err(fail)?;
    let since = stage.strike(Blow::SlotMoved);
    let moving = redis.begin_move(slot, (from + 1) % MASTERS).map_err(fail)?;
    let opened = Instant::now();
    // The owner of a shard, or the list of the nodes, is at the new master; all else is at the old one.
    let first = if name == "cluster" { "nodes" } else { "owner" };
    moving.take(&[format!("{{duewheel:{name}}}:{first}")]).map_err(fail)?;
    let trouble =
        |stage: &Stage<'_>| (0..NODES).map(|node| stage.health(node)).collect::<Result<Vec<_>, String>>();
    let says = |all: &[(u16, String)]| all.iter().any(|(status, why)| *status == 503 && why.contains("slot"));
    stage.until("a node says that a slot is moving", |stage| Ok(says(&trouble(stage)?).then_some(())))?;
    while opened.elapsed() < lease * 2 {
        stage.sleep(100, 200);
    }
    // It is still said, and nobody has made the shard anew meanwhile.
    let said = trouble(stage)?;
    if !says(&said) {
        return Err(format!("an open slot that is forgotten: {said:?}"));
    }
    moving.finish().map_err(fail)?;
    let took = stage.probe()?.until_whole(Instant::now(), PATIENCE)?;
    stage.until("all is well", |stage| {
        Ok(trouble(stage)?.iter().all(|(status, _)| *status == 200).then_some(()))
    })?;
    stage.heal(since)?;
    Ok(took)
}

fn move_slot(
    stage: &mut Stage<'_>,
    redis: &RedisCluster,
    name: &str,
    round: u64,
) -> Result<Duration, String> {
    let fail = |e: std::io::Error| format!("a move of the slot of {name}: {e}");
    let slot = redis.slot_of_key(&format!("{{duewheel:{name}}}:owner")).map_err(fail)?;
    let from = redis.master_of_slot(slot).map_err(fail)?;
    let since = stage.strike(Blow::SlotMoved);
    let moving = redis.begin_move(slot, (from + 1) % MASTERS).map_err(fail)?;
    // Some keys go first; others wait for them, some of the times for longer than it takes to say so.
    let keys = moving.keys().map_err(fail)?;
    let some: Vec<String> = keys.into_iter().filter(|_| stage.rng.below(3) == 0).collect();
    moving.take(&some).map_err(fail)?;
    if round % 3 == 1 && name != "cluster" {
        stage.until("a node says that a slot is moving", |stage| {
            for node in 0..NODES {
                let (status, why) = stage.health(node)?;
                if status == 503 && why.contains("moving") {
                    return Ok(Some(()));
                }
            }
            Ok(None)
        })?;
    } else {
        stage.sleep(0, 500);
    }
    if round % 4 == 3 { moving.turn_back() } else { moving.finish() }.map_err(fail)?;
    let took = stage.probe()?.until_whole(Instant::now(), PATIENCE)?;
    stage.heal(since)?;
    Ok(took)
}
