//! Runs of the simulation, judged. See `docs/testing.md`.
//!
//! `DUEWHEEL_SEEDS` (300) says how many, `DUEWHEEL_SEED` repeats one and keeps its history and trace.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use duewheel_judge::checker::{Report, check};
use duewheel_sim::simulation::{Outcome, Trace, run};

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

#[test]
fn seeds_of_every_kind_of_run_are_clean() {
    be_quiet();
    let seeds = match env("DUEWHEEL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..env("DUEWHEEL_SEEDS").unwrap_or(300),
    };
    let next = AtomicU64::new(seeds.start);
    let mut bad = Vec::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut bad = Vec::new();
                    loop {
                        let seed = next.fetch_add(1, Relaxed);
                        if seed >= seeds.end {
                            return bad;
                        }
                        let outcome = run(seed, None, Trace::No);
                        let report = check(&outcome.history);
                        if let Some(what) = fault(&outcome, &report) {
                            bad.push((seed, what));
                        }
                        if env("DUEWHEEL_SEED").is_some() {
                            keep(&outcome);
                        }
                        if env("DUEWHEEL_SHOW").is_some() {
                            println!(
                                "seed {seed}: {} events, {:?}",
                                outcome.history.events.len(),
                                outcome.facts
                            );
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            bad.extend(thread.join().expect("the judge does not panic"));
        }
    });
    bad.sort();
    for (seed, what) in bad.iter().take(60) {
        println!("seed {seed}: {what}\n");
    }
    assert!(
        bad.is_empty(),
        "{} of {} seeds: {:?}",
        bad.len(),
        seeds.end - seeds.start,
        bad.iter().map(|b| b.0).collect::<Vec<_>>()
    );
}

/// For a closer look.
fn keep(outcome: &Outcome) {
    let file = std::env::temp_dir().join("duewheel-simulation.jsonl");
    let mut out = std::fs::File::create(&file).map(std::io::BufWriter::new).expect("a file for the history");
    outcome.history.save(&mut out).expect("the history is written");
    println!("history {}", file.display());
}

fn fault(outcome: &Outcome, report: &Report) -> Option<String> {
    if let Some(what) = &outcome.broken {
        return Some(what.clone());
    }
    let first = report.violations.first()?;
    Some(format!("{} violations: {first}", report.violations.len()))
}
