//! The model over histories that a seed decides.

use crate::model::history;

#[allow(clippy::disallowed_methods, reason = "a test run is chosen by the environment")]
#[test]
fn random_histories_match_model() {
    let histories: u64 = std::env::var("DUEWHEEL_HISTORIES").map_or(10_000, |n| n.parse().unwrap());
    let first: u64 = std::env::var("DUEWHEEL_SEED").map_or(1, |n| n.parse().unwrap());
    let (mut granted, mut died) = (0, 0);
    for seed in first..first + histories {
        let caught = std::panic::catch_unwind(|| history(seed));
        match caught {
            Ok((g, d)) => {
                granted += g;
                died += d;
            }
            Err(panic) => {
                eprintln!(
                    "replay: DUEWHEEL_SEED={seed} DUEWHEEL_HISTORIES=1 cargo test -p duewheel-core --test engine model"
                );
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(granted > histories && died > histories / 20, "the histories did something: {granted} {died}");
}

/// A message that is put back and stays kept would come back twice.
#[cfg(feature = "mutants")]
#[test]
fn histories_find_doubled_restore() {
    use duewheel_core::mutant::{Mutant, choose};
    choose(Some(Mutant::RestoredTwice));
    let found = (1..2_000).find(|&seed| std::panic::catch_unwind(|| history(seed)).is_err());
    choose(None);
    assert!(found.is_some());
}
