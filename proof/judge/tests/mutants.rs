//! The checker's own mutant test: a toy of the system with bugs.
//!
//! Without a bug the toy's histories must be clean, so that the checker is not a liar; each bug must be caught within
//! 200 seeds, so that it is not blind.

use duewheel_judge::checker::{Check, Fact, check};
use duewheel_judge::model::{Bug, Fate, KEPT_MS, run, run_under};

const SEEDS: u64 = 200;

#[test]
fn bugless_toy_is_clean() {
    let mut grants = 0;
    for seed in 0..SEEDS {
        let history = run(seed, None);
        let report = check(&history);
        for violation in &report.violations {
            eprintln!("{violation}");
        }
        assert!(report.violations.is_empty(), "seed {seed}\n{report}");
        assert_eq!(report.balance.lost, 0);
        grants += report.evidence.count(Fact::ExpiredLeasesGrantedAgain);
        if seed == 0 {
            println!("{report}");
        }
    }
    assert!(grants > 1_000, "the toy does too little: {grants}");
}

#[test]
fn every_toy_bug_is_caught() {
    let mut blind = Vec::new();
    for bug in Bug::ALL {
        let caught = (0..SEEDS).find_map(|seed| {
            let report = check(&run(seed, Some(bug)));
            (!report.violations.is_empty()).then(|| (seed, report.failed()))
        });
        match caught {
            Some((seed, checks)) => println!("{bug:?}: seed {seed}, by {checks:?}"),
            None => blind.push(bug),
        }
    }
    assert!(blind.is_empty(), "not caught within {SEEDS} seeds: {blind:?}");
}

#[test]
fn toy_failover_losses_are_no_violation() {
    let (mut forgotten, mut failovers, mut again) = (0, 0, 0);
    for seed in 0..SEEDS {
        let report = check(&run_under(Fate::Failovers(KEPT_MS), seed, None));
        for violation in &report.violations {
            eprintln!("{violation}");
        }
        assert!(report.violations.is_empty(), "seed {seed}\n{report}");
        forgotten += report.balance.forgotten;
        failovers += report.evidence.count(Fact::FailedOver);
        again += report.evidence.count(Fact::ExpiredLeasesGrantedAgain);
    }
    println!("{failovers} failovers, {forgotten} messages forgotten");
    assert!(failovers > SEEDS && forgotten > SEEDS && again > 1_000, "{failovers} {forgotten} {again}");
}

#[test]
fn what_no_failover_explains_is_caught() {
    let caught = |fate: Fate, bug: Option<Bug>, by: Check| {
        let seed = (0..SEEDS).find(|&seed| check(&run_under(fate, seed, bug)).failed().contains(&by));
        let Some(seed) = seed else { panic!("{fate:?}, {bug:?}: {by:?} is not found within {SEEDS} seeds") };
        println!("{fate:?}, {bug:?}: seed {seed}, by {by:?}");
    };
    // A copy that is older than promised.
    for by in [Check::Lost, Check::Attempts, Check::Resurrected, Check::Totals] {
        caught(Fate::Failovers(5 * KEPT_MS), None, by);
    }
    let usual = Fate::Failovers(KEPT_MS);
    caught(usual, Some(Bug::TokenReused), Check::TokenOrder);
    caught(usual, Some(Bug::TokenUnchecked), Check::StaleSettle);
    caught(usual, Some(Bug::LeasesDropped), Check::LeaseBroken);
    caught(usual, Some(Bug::DueRoundedDown), Check::Early);
    caught(usual, Some(Bug::NackLoses), Check::Lost);
    caught(usual, Some(Bug::CancelInTwoSteps), Check::GrantAfterCancel);
    caught(usual, Some(Bug::KeysForgotten), Check::DoubleKey);
    caught(usual, Some(Bug::OneAttemptMore), Check::DeadInexact);
}
