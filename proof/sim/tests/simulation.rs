//! Runs of the simulation, judged. See `docs/testing.md`.
//!
//! `DUEWHEEL_SEEDS` (300; 100 of a cluster) says how many from `DUEWHEEL_FIRST_SEED` (0) on, `DUEWHEEL_SEED` repeats one and keeps its
//! history, `DUEWHEEL_MUTANT` names one mutant, `DUEWHEEL_MUTANT_STARTS` (1) says from how many starts mutants are
//! hunted, up to three, and `DUEWHEEL_MUTANT_SEEDS` (200) how far from each.

#[path = "simulation/cluster.rs"]
mod cluster;

use std::fmt::Debug;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use duewheel_judge::checker::{Evidence, Fact, Report, check};
use duewheel_judge::history::History;
use duewheel_sim::simulation::{BUGS, Bug, Facts, Outcome, Trace, run};

/// Panics that a simulation makes on purpose are caught, and need not be shown.
fn be_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let said = info.payload().downcast_ref::<&str>().copied().unwrap_or_default();
            if !said.contains("as it was told to") {
                hook(info);
            }
        }));
    });
}

fn env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// Does something for each number of a range, on two threads; the results in order.
fn for_each<T: Send>(range: std::ops::Range<u64>, job: impl Fn(u64) -> Option<T> + Sync) -> Vec<(u64, T)> {
    let next = AtomicU64::new(range.start);
    let work = || {
        let mut done = Vec::new();
        loop {
            let n = next.fetch_add(1, Relaxed);
            if n >= range.end {
                return done;
            }
            done.extend(job(n).map(|result| (n, result)));
            if (n + 1).is_multiple_of(1_000) {
                println!("{} of {}", n + 1, range.end);
            }
        }
    };
    let mut all: Vec<(u64, T)> = std::thread::scope(|scope| {
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads.into_iter().flat_map(|thread| thread.join().expect("the judge does not panic")).collect()
    });
    all.sort_by_key(|(n, _)| *n);
    all
}

/// Those that are asked for, else the usual number.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    match env("DUEWHEEL_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = env("DUEWHEEL_FIRST_SEED").unwrap_or(0);
            first..first + env("DUEWHEEL_SEEDS").unwrap_or(usual)
        }
    }
}

/// What a clean run gave.
struct Judged<F> {
    facts: F,
    evidence: Evidence,
    operations: u64,
}

/// Judges the runs of the seeds that are asked for. Shows those that are not clean, with how to repeat them by this
/// filter of tests, and fails if there are any.
fn all_clean<F: Debug + Send>(
    filter: &str,
    usual: u64,
    run: impl Fn(u64) -> (History, Option<String>, F) + Sync,
) -> Vec<Judged<F>> {
    let runs = for_each(seeds(usual), |seed| {
        let (history, broken, facts) = run(seed);
        let report = check(&history);
        if env("DUEWHEEL_SEED").is_some() {
            keep(&history);
            println!("{facts:?}\n{report}");
        }
        let bad = fault(broken.as_ref(), &report);
        if let Some(what) = &bad {
            println!("seed {seed}: {what}"); // now, too: the other seeds may take long
        }
        Some((bad, Judged { facts, evidence: report.evidence, operations: report.operations }))
    });
    let bad: Vec<_> =
        runs.iter().filter_map(|(seed, (bad, _))| bad.as_ref().map(|bad| (seed, bad))).collect();
    for (seed, what) in bad.iter().take(5) {
        println!("seed {seed}: {what}");
        println!(
            "again: DUEWHEEL_SEED={seed} cargo test -p duewheel-sim --test simulation {filter} -- --nocapture\n"
        );
    }
    let seeds_bad: Vec<_> = bad.iter().map(|(seed, _)| seed).collect();
    assert!(bad.is_empty(), "{} of {} seeds: {seeds_bad:?}", bad.len(), runs.len());
    runs.into_iter().map(|(_, (_, judged))| judged).collect()
}

#[test]
fn seeds_of_all_kinds_are_clean() {
    be_quiet();
    let runs = all_clean("seeds", 300, |seed| {
        let Outcome { history, broken, facts, .. } = run(seed, None, Trace::No);
        (history, broken, facts)
    });
    let mut seen = Facts::default();
    let mut evidence = Evidence::default();
    let mut operations = 0;
    for Judged { facts, evidence: of_run, operations: ops } in &runs {
        seen.add(facts);
        evidence.add_all(of_run);
        operations += ops;
    }
    println!("{} seeds, {operations} operations\n{seen:?}\n{evidence}", runs.len());
    let n = runs.len() as u64;
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

/// So many runs must prove that every kind of fault has happened; in fewer one may be missing by chance.
const ENOUGH: u64 = 100;

/// What must provably have happened, all runs together.
const EVIDENCE: [Fact; 32] = [
    Fact::KillsServing,
    Fact::KillsRecovering,
    Fact::UnknownOutcomes,
    Fact::UnansweredButAccepted,
    Fact::LostReserves,
    Fact::ExpiredLeasesGrantedAgain,
    Fact::StaleSettlesRefused,
    Fact::LeasesAckedAcrossAKill,
    Fact::CancelsWon,
    Fact::CancelsLost,
    Fact::Replaced,
    Fact::Superseded,
    Fact::Kept,
    Fact::KeysRefused,
    Fact::Deduped,
    Fact::Postponed,
    Fact::OverdueFromDowntime,
    Fact::NackedAndGrantedAgain,
    Fact::Dead,
    Fact::ExpiredDropped,
    Fact::ExpiredDead,
    Fact::ExpiredLate,
    Fact::ExpiredKeysReused,
    Fact::ExpiredAfterRetries,
    Fact::Spread,
    Fact::LimitsChanged,
    Fact::HeldBackByRate,
    Fact::HeldBackByLeases,
    Fact::AtConcurrency,
    Fact::AtConcurrencyAcrossAStart,
    Fact::AtRate,
    Fact::CaughtUp,
];

#[test]
fn same_seed_gives_identical_run() {
    be_quiet();
    for seed in 0..6 {
        let (first, second) = (run(seed, None, Trace::Yes), run(seed, None, Trace::Yes));
        assert!(first.trace.len() > 10_000, "seed {seed}: the trace tells every step");
        let differs = first.trace.lines().zip(second.trace.lines()).position(|(a, b)| a != b);
        assert_eq!(differs, None, "seed {seed}: the first line that differs");
        assert_eq!(first.trace, second.trace, "seed {seed}");
        let text = |outcome: &Outcome| {
            let mut text = Vec::new();
            outcome.history.save(&mut text).expect("memory takes everything");
            text
        };
        assert_eq!(text(&first), text(&second), "seed {seed}");
    }
}

/// For a closer look.
fn keep(history: &History) {
    let file = std::env::temp_dir().join("duewheel-simulation.jsonl");
    let mut out = std::fs::File::create(&file).map(std::io::BufWriter::new).expect("a file for the history");
    history.save(&mut out).expect("the history is written");
    println!("history {}", file.display());
}

fn fault(broken: Option<&String>, report: &Report) -> Option<String> {
    if let Some(what) = broken {
        return Some(what.clone());
    }
    let first = report.violations.first()?;
    Some(format!("{} violations: {first}", report.violations.len()))
}

/// Where the seeds begin with which a mutant is hunted. One lucky start proves little; `DUEWHEEL_MUTANT_STARTS` (1) of
/// them are taken.
const STARTS: [u64; 3] = [0, 1_000_000, 2_000_000];

/// Runs a bug through seeds from a start until one catches it: after how many, and by which check.
fn caught(bug: Bug, start: u64, seeds: u64) -> Option<(u64, String)> {
    (0..seeds).find_map(|n| {
        let outcome = run(start + n, Some(bug), Trace::No);
        if let Some(what) = &outcome.broken {
            let what = what.split(['{', '[']).next().unwrap_or(what).trim_end_matches(": ").to_owned();
            return Some((n + 1, what));
        }
        let failed = check(&outcome.history).failed();
        let failed: Vec<String> = failed.iter().map(|check| format!("`{check:?}`")).collect();
        (!failed.is_empty()).then(|| (n + 1, failed.join(", ")))
    })
}

#[test]
fn every_mutant_is_caught() {
    be_quiet();
    let only = std::env::var("DUEWHEEL_MUTANT").ok();
    let most = env("DUEWHEEL_MUTANT_SEEDS").unwrap_or(200);
    let starts = env("DUEWHEEL_MUTANT_STARTS").and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
    let starts = &STARTS[..starts.clamp(1, STARTS.len())];
    let hunts = (BUGS.len() * starts.len()) as u64;
    let rows = for_each(0..hunts, |n| {
        let n = usize::try_from(n).expect("few");
        let (name, bug) = BUGS[n / starts.len()];
        only.as_deref()
            .is_none_or(|only| only == name)
            .then(|| (name, caught(bug, starts[n % starts.len()], most)))
    });
    println!("| mutant | seeds from each start | caught by |\n|---|--:|---|");
    for hunts in rows.chunk_by(|(_, (one, _)), (_, (other, _))| one == other) {
        let seeds = hunts.iter().map(|(_, (_, row))| match row {
            Some((seeds, _)) => seeds.to_string(),
            None => "-".to_owned(),
        });
        let how = hunts.iter().find_map(|(_, (_, row))| row.as_ref().map(|(_, how)| how.as_str()));
        let seeds: Vec<String> = seeds.collect();
        println!("| {} | {} | {} |", hunts[0].1.0, seeds.join(", "), how.unwrap_or("not caught"));
    }
    let missed: Vec<&str> =
        rows.iter().filter(|(_, (_, row))| row.is_none()).map(|(_, (name, _))| *name).collect();
    assert!(missed.is_empty(), "not caught within {most} seeds: {missed:?}");
    assert!(!rows.is_empty(), "no mutant has that name");
}
