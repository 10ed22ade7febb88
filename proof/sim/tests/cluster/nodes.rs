//! Nodes that are killed, and nodes that are stopped for longer than their lease.

use std::time::{Duration, Instant};

use duewheel_judge::checker::Fact;
use duewheel_judge::history::Blow;
use duewheel_redis_rig::{Redis, Settings};
use duewheel_sim::blackbox::cluster::{Door, DuewheelCluster};

use crate::stage::{PATIENCE, Play, Stage, in_runs, perform};

const NODES: usize = 3;

fn redis() -> Redis {
    Redis::start(Settings::default()).expect("a redis-server")
}

#[test]
fn a_killed_node_is_replaced() {
    in_runs("DUEWHEEL_NODE_KILLS", 3, 25, killed_over_http);
}

fn killed_over_http(kills: u64) {
    let redis = redis();
    let play = Play {
        name: "nodes::a_killed_node_is_replaced",
        count: ("DUEWHEEL_NODE_KILLS", kills),
        system: DuewheelCluster::new(Door::Http, Duration::from_secs(3)),
        stores: vec![redis.url(0); NODES],
        nodes: NODES,
        facts: vec![
            (Fact::Struck(Blow::NodeKilled), kills),
            (Fact::UnknownOutcomes, kills),
            (Fact::DelayedByABlow, kills),
            (Fact::ExpiredLeasesGrantedAgain, kills),
            (Fact::StaleSettlesRefused, kills.div_ceil(3)),
            (Fact::CancelsWon, kills),
            (Fact::Replaced, kills),
            (Fact::LeasesAckedAcrossABlow, kills.div_ceil(3)),
        ],
    };
    perform(play, |stage| kill_nodes(stage, kills));
}

#[test]
fn killed_node_is_replaced_over_beanstalk() {
    in_runs("DUEWHEEL_NODE_KILLS", 3, 25, killed_over_beanstalk);
}

fn killed_over_beanstalk(kills: u64) {
    let redis = redis();
    let play = Play {
        name: "nodes::killed_node_is_replaced_over_beanstalk",
        count: ("DUEWHEEL_NODE_KILLS", kills),
        system: DuewheelCluster::new(Door::Beanstalk, Duration::from_secs(2)),
        stores: vec![redis.url(0); NODES],
        nodes: NODES,
        facts: vec![
            (Fact::Struck(Blow::NodeKilled), kills),
            (Fact::UnknownOutcomes, kills),
            (Fact::Redeliveries, kills),
            (Fact::CancelsWon, kills),
        ],
    };
    perform(play, |stage| kill_nodes(stage, kills));
}

/// Half of the nodes come back at once, with their lease still running; the others when somebody else has their shards.
fn kill_nodes(stage: &mut Stage<'_>, kills: u64) -> Result<(), String> {
    let worst = stage.until_it_bites(kills, "after a kill", |stage, round| {
        stage.sleep(500, 2_000);
        let node = stage.any();
        let since = stage.strike(Blow::NodeKilled);
        stage.kill(node)?;
        let gone = Instant::now();
        if round % 2 == 1 {
            stage.start(node)?;
        }
        let took = stage.probe()?.until_whole(gone, PATIENCE)?;
        if round % 2 == 0 {
            stage.start(node)?;
        }
        stage.heal(since)?;
        Ok(took)
    })?;
    stage.say_longest("shards of a killed node served again", worst);
    Ok(())
}

/// Its clients' requests wait in its sockets meanwhile, so it has something to do when it goes on: it must find out
/// that its shards are not its own any more before it writes or grants anything.
#[test]
fn node_asleep_past_lease_grants_nothing() {
    in_runs("DUEWHEEL_NODE_PAUSES", 3, 50, slept);
}

fn slept(pauses: u64) {
    let redis = redis();
    let play = Play {
        name: "nodes::node_asleep_past_lease_grants_nothing",
        count: ("DUEWHEEL_NODE_PAUSES", pauses),
        system: DuewheelCluster::new(Door::Http, Duration::from_secs(1)),
        stores: vec![redis.url(0); NODES],
        nodes: NODES,
        facts: vec![
            (Fact::Struck(Blow::NodePaused), pauses),
            (Fact::ExpiredLeasesGrantedAgain, pauses),
            (Fact::StaleSettlesRefused, pauses.div_ceil(3)),
            (Fact::LeasesAckedAcrossABlow, pauses.div_ceil(3)),
        ],
    };
    perform(play, |stage| {
        let worst = stage.until_it_bites(pauses, "after a pause", |stage, _| {
            stage.sleep(200, 1_000);
            let node = stage.any();
            let since = stage.strike(Blow::NodePaused);
            stage.pause(node)?;
            // Others have all of its shards, so its lease is over.
            let took = stage.probe()?.until_whole(Instant::now(), PATIENCE)?;
            stage.sleep(0, 300);
            stage.resume(node)?;
            stage.heal(since)?;
            Ok(took)
        })?;
        stage.say_longest("shards of a stopped node served again", worst);
        Ok(())
    });
}
