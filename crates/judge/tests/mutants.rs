//! The checker's own mutant test, first half: a toy of the system with bugs.
//!
//! Without a bug the toy's histories must be clean, so that the checker is not a liar; each bug must be caught within
//! 200 seeds, so that it is not blind.

use duewheel_judge::checker::{Fact, check};
use duewheel_judge::model::{Bug, run};

const SEEDS: u64 = 200;

#[test]
fn a_toy_without_a_bug_is_clean() {
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
fn each_bug_of_the_toy_is_caught() {
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
