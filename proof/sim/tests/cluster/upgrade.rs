//! A rolling upgrade: nodes are replaced one after the other by those of the next version of the nodes' protocol, and
//! one of them by this version again, as operators do who do not like what they see. Clients work meanwhile.

use std::time::Duration;

use duewheel_judge::checker::Fact;
use duewheel_judge::history::Blow;
use duewheel_redis_rig::{Redis, Settings};
use duewheel_sim::blackbox::cluster::{Build, Door, DuewheelCluster};

use crate::joining::{comes, leaves};
use crate::stage::{Play, Stage, in_runs, perform};

const NODES: usize = 3;

/// Story: nodes of two versions did not talk, so forwards between them failed for the whole roll-out.
#[test]
fn rolling_upgrade_and_downgrade_work() {
    in_runs("DUEWHEEL_UPGRADES", 1, 5, upgrade);
}

fn upgrade(rounds: u64) {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let replaced = (NODES as u64 + 1) * rounds;
    let play = Play {
        name: "upgrade::rolling_upgrade_and_downgrade_work",
        count: ("DUEWHEEL_UPGRADES", rounds),
        system: DuewheelCluster::new(Door::Http, Duration::from_secs(3)),
        stores: vec![redis.url(0); NODES],
        nodes: NODES,
        facts: vec![
            (Fact::Struck(Blow::NodeCame), replaced),
            (Fact::Struck(Blow::NodeLeft), replaced),
            (Fact::ExpiredLeasesGrantedAgain, rounds),
            (Fact::LeasesAckedAcrossABlow, rounds),
        ],
    };
    perform(play, |stage| {
        let mut worst = Duration::ZERO;
        for round in 0..rounds {
            for node in 0..NODES {
                worst = worst.max(replace(stage, node, Build::Next)?);
            }
            let both = speaks_next(stage)?;
            let back = usize::try_from(stage.rng.below(NODES as u64)).unwrap_or(0);
            worst = worst.max(replace(stage, back, Build::This)?);
            if round + 1 < rounds {
                for node in (0..NODES).filter(|node| *node != back) {
                    worst = worst.max(replace(stage, node, Build::This)?);
                }
            }
            stage.say(format!("{both} nodes spoke the next version with each other"));
        }
        stage.say_longest("each key with an answer again", worst);
        Ok(())
    });
}

/// The longest time for which a shard was not served during the exchange.
fn replace(stage: &mut Stage<'_>, node: usize, build: Build) -> Result<Duration, String> {
    let left = leaves(stage, node)?;
    stage.set_build(node, build);
    Ok(left.max(comes(stage, node)?))
}

/// How many nodes have spoken the highest version of all that were spoken. Waits until it is one that this build does
/// not have.
fn speaks_next(stage: &Stage<'_>) -> Result<usize, String> {
    let pretends = |log: &str| log.contains("pretends to be of the next version");
    let versions = |log: &str| -> Vec<u32> {
        let connected = log.lines().filter(|line| line.contains("connected to a node"));
        let version = |line: &str| {
            let digits = line.split_once("version=")?.1;
            digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        connected.filter_map(version).collect()
    };
    let mut both = 0;
    stage.until("nodes of the next version speak it with each other", |stage| {
        let mut of_each = Vec::new();
        for node in 0..NODES {
            let log = stage.log(node)?;
            if !pretends(&log) {
                return Err(format!(
                    "node {node} is no debug build: it does not pretend to be of the next version"
                ));
            }
            of_each.push(versions(&log));
        }
        let (lowest, highest) = (of_each.iter().flatten().min(), of_each.iter().flatten().max());
        // The first node that was replaced spoke this version with the others.
        let (Some(lowest), Some(highest)) = (lowest, highest) else { return Ok(None) };
        both = of_each.iter().filter(|versions| versions.contains(highest)).count();
        Ok((highest > lowest && both == NODES).then_some(()))
    })?;
    Ok(both)
}
