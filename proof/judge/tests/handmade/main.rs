//! The checker on histories made by hand: for each check one that is right, and the same with one thing wrong.

mod cluster;
mod connections;
mod contents;
mod ends;
mod evidence;
mod leases;
mod limits;
mod pushes;
mod script;
mod supersede;
mod times;

use duewheel_judge::checker::Check;

#[test]
fn every_check_has_a_case() {
    // Each check is named in one of these; a new one must not be forgotten.
    let text = concat!(
        include_str!("ends.rs"),
        include_str!("leases.rs"),
        include_str!("contents.rs"),
        include_str!("times.rs"),
        include_str!("connections.rs"),
        include_str!("limits.rs"),
        include_str!("pushes.rs"),
    );
    for check in Check::ALL {
        assert!(text.contains(&format!("case(Check::{check:?}")), "{check:?} has no case");
    }
}
