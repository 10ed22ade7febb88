//! Nodes that come and go, all in order.

use std::time::{Duration, Instant};

use duewheel_judge::checker::Fact;
use duewheel_judge::history::Blow;
use duewheel_redis_rig::{Redis, Settings};
use duewheel_sim::blackbox::cluster::{Door, DuewheelCluster};

use crate::stage::{Play, Stage, in_runs, perform};

const NODES: usize = 3;

/// Two nodes are joined by a third; one leaves and comes back; then all are restarted one after the other.
#[test]
fn nodes_join_and_leave_without_interruption() {
    in_runs("DUEWHEEL_ROLLS", 1, 5, come_and_go);
}

fn come_and_go(rounds: u64) {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let play = Play {
        name: "joining::nodes_join_and_leave_without_interruption",
        count: ("DUEWHEEL_ROLLS", rounds),
        system: DuewheelCluster::new(Door::Http, Duration::from_secs(3)),
        stores: vec![redis.url(0); NODES],
        nodes: NODES - 1,
        facts: vec![
            (Fact::Struck(Blow::NodeCame), 5 * rounds),
            (Fact::Struck(Blow::NodeLeft), 5 * rounds),
            (Fact::ExpiredLeasesGrantedAgain, rounds),
            (Fact::StaleSettlesRefused, rounds),
            (Fact::LeasesAckedAcrossABlow, rounds),
        ],
    };
    perform(play, |stage| {
        let mut worst = Duration::ZERO;
        for _ in 0..rounds {
            let newcomer = NODES - 1;
            worst = worst.max(comes(stage, newcomer)?);
            let other = usize::try_from(stage.rng.below(2)).unwrap_or(0);
            worst = worst.max(leaves(stage, other)?);
            worst = worst.max(comes(stage, other)?);
            for node in 0..NODES {
                worst = worst.max(leaves(stage, node)?);
                worst = worst.max(comes(stage, node)?);
            }
            // As at the beginning.
            worst = worst.max(leaves(stage, newcomer)?);
        }
        stage.say_longest("shards with an owner again", worst);
        Ok(())
    });
}

/// The longest time for which a shard was not served meanwhile.
pub(crate) fn comes(stage: &mut Stage<'_>, node: usize) -> Result<Duration, String> {
    stage.probe()?.longest();
    let since = stage.strike(Blow::NodeCame);
    stage.start(node)?;
    owns_its_share(stage, node)?;
    done(stage, since)
}

pub(crate) fn leaves(stage: &mut Stage<'_>, node: usize) -> Result<Duration, String> {
    stage.sleep(300, 1_000);
    stage.probe()?.longest();
    let since = stage.strike(Blow::NodeLeft);
    stage.stop(node)?;
    done(stage, since)
}

fn done(stage: &Stage<'_>, since: Instant) -> Result<Duration, String> {
    stage.heal(since)?;
    Ok(stage.probe()?.longest())
}

/// Waits until a node has shards of its own.
fn owns_its_share(stage: &Stage<'_>, node: usize) -> Result<(), String> {
    stage.until("a node that came owns something", |stage| {
        let (status, said) = stage.call(node, "GET", "/v1/cluster", &serde_json::Value::Null)?;
        let name = format!("node-{node}");
        let shards = said["shards"].as_array().map_or(&[][..], Vec::as_slice);
        Ok((status == 200 && shards.iter().any(|shard| shard["owner"] == name.as_str())).then_some(()))
    })
}
