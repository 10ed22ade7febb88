//! Runs of three nodes on a simulated store and network, judged.

use std::panic::{AssertUnwindSafe, catch_unwind};

use duewheel_judge::checker::{Evidence, Fact, check};
use duewheel_sim::simulation::{
    CLUSTER_BUGS, ClusterBug, ClusterFacts, ClusterOutcome, MEDIUM_BUGS, Trace, run_cluster, suite_of_media,
};

use super::{ENOUGH, Judged, STARTS, all_clean, be_quiet, env, for_each};

/// What must provably have happened, all runs together.
const EVIDENCE: [Fact; 11] = [
    Fact::UnknownOutcomes,
    Fact::UnansweredButAccepted,
    Fact::ExpiredLeasesGrantedAgain,
    Fact::StaleSettlesRefused,
    Fact::CancelsWon,
    Fact::Replaced,
    Fact::Superseded,
    Fact::Deduped,
    Fact::NackedAndGrantedAgain,
    Fact::DelayedByABlow,
    Fact::Dead,
];

#[test]
fn runs_of_a_cluster_are_clean() {
    be_quiet();
    let runs = all_clean("runs_of_a_cluster", 100, |seed| {
        let ClusterOutcome { history, broken, facts, .. } = run_cluster(seed, None, Trace::No);
        (history, broken, facts)
    });
    let mut seen = ClusterFacts::default();
    let mut evidence = Evidence::default();
    let mut operations = 0;
    for Judged { facts, evidence: of_run, operations: ops } in &runs {
        seen.add(facts);
        evidence.add_all(of_run);
        operations += ops;
    }
    println!("{} seeds of a cluster, {operations} operations\n{seen:?}\n{evidence}", runs.len());
    let n = runs.len() as u64;
    assert!(operations >= 50 * n, "the clients did {operations} operations in {n} runs");
    if n >= ENOUGH {
        // Runs in which nothing broke prove nothing.
        if let Err(missing) = seen.require(n) {
            panic!("the runs prove too little: {missing}");
        }
        let least: Vec<(Fact, u64)> = EVIDENCE.iter().map(|fact| (*fact, n.div_ceil(30))).collect();
        if let Err(missing) = evidence.require(&least) {
            panic!("the runs prove too little: {missing}");
        }
    }
}

#[test]
fn conformance_suite_catches_medium_bugs() {
    suite_of_media(None);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {})); // they are to be caught
    let missed: Vec<&str> = MEDIUM_BUGS
        .iter()
        .filter(|(_, bug)| catch_unwind(AssertUnwindSafe(|| suite_of_media(Some(*bug)))).is_ok())
        .map(|(name, _)| *name)
        .collect();
    std::panic::set_hook(hook);
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

#[test]
fn same_seed_gives_identical_cluster_run() {
    be_quiet();
    for seed in 0..3 {
        let (first, second) = (run_cluster(seed, None, Trace::Yes), run_cluster(seed, None, Trace::Yes));
        assert!(first.trace.len() > 5_000, "seed {seed}: the trace tells every step");
        let differs = first.trace.lines().zip(second.trace.lines()).position(|(a, b)| a != b);
        assert_eq!(differs, None, "seed {seed}: the first line that differs");
        assert_eq!(first.trace, second.trace, "seed {seed}");
        let text = |outcome: &ClusterOutcome| {
            let mut text = Vec::new();
            outcome.history.save(&mut text).expect("memory takes everything");
            text
        };
        assert_eq!(text(&first), text(&second), "seed {seed}");
        assert_eq!(first.facts, second.facts, "seed {seed}");
    }
}

/// Runs a bug through seeds from a start until one catches it: after how many, and by which check.
fn caught(bug: ClusterBug, start: u64, seeds: u64) -> Option<(u64, String)> {
    (0..seeds).find_map(|n| {
        let outcome = run_cluster(start + n, Some(bug), Trace::No);
        if let Some(what) = outcome.broken {
            return Some((n + 1, what.split(" of shard").next().unwrap_or(&what).to_owned()));
        }
        let failed = check(&outcome.history).failed();
        let failed: Vec<String> = failed.iter().map(|check| format!("`{check:?}`")).collect();
        (!failed.is_empty()).then(|| (n + 1, failed.join(", ")))
    })
}

#[test]
fn every_cluster_mutant_is_caught() {
    be_quiet();
    let only = std::env::var("DUEWHEEL_MUTANT").ok();
    let most = env("DUEWHEEL_MUTANT_SEEDS").unwrap_or(200);
    let starts = env("DUEWHEEL_MUTANT_STARTS").and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
    let starts = starts.clamp(1, STARTS.len());
    let hunts = (CLUSTER_BUGS.len() * starts) as u64;
    let rows = for_each(0..hunts, |n| {
        let n = usize::try_from(n).expect("few");
        let (name, bug) = CLUSTER_BUGS[n / starts];
        only.as_deref().is_none_or(|only| only == name).then(|| (name, caught(bug, STARTS[n % starts], most)))
    });
    println!("| mutant of a cluster | seeds from each start | caught by |\n|---|--:|---|");
    let mut missed = Vec::new();
    for hunts in rows.chunk_by(|(_, (one, _)), (_, (other, _))| one == other) {
        let name = hunts[0].1.0;
        let seeds: Vec<String> = hunts
            .iter()
            .map(|(_, (_, row))| row.as_ref().map_or("-".to_owned(), |(seeds, _)| seeds.to_string()))
            .collect();
        let how = hunts.iter().find_map(|(_, (_, row))| row.as_ref().map(|(_, how)| how.as_str()));
        println!("| {name} | {} | {} |", seeds.join(", "), how.unwrap_or("not caught"));
        if hunts.iter().any(|(_, (_, row))| row.is_none()) {
            missed.push(name);
        }
    }
    assert!(missed.is_empty(), "not caught within {most} seeds: {missed:?}");
}
