//! A damaged data folder: it is refused with the position of the damage, or all its answers are right.

use std::collections::BTreeSet;

use duewheel_core::Epoch;
use duewheel_core::store::{Found, Lookups, Recovered, Store};
use duewheel_store_log::{LogStore, verify_on};

use crate::base::{self, Base, Everything, names_a_place, open};
use crate::choices::Choices;
use crate::disk::MemDisk;
use crate::edits;

/// Damages the journal's segments: a damaged end, frames of other incarnations, groups that no engine would write.
pub fn journal(data: &[u8]) {
    damaged(data, &["journal/"]);
}

/// Damages the runs.
pub fn run_file(data: &[u8]) {
    damaged(data, &["runs/"]);
}

/// Damages the manifest.
pub fn manifest(data: &[u8]) {
    damaged(data, &["MANIFEST"]);
}

/// Damages the state: the books of all queues, and the removed rows of the runs.
pub fn state(data: &[u8]) {
    damaged(data, &["state/"]);
}

/// The first byte chooses the folder, the others its damage.
fn damaged(data: &[u8], scope: &[&str]) {
    let Some((first, script)) = data.split_first() else { return };
    let with_runs = scope == ["runs/"] || scope == ["state/"];
    let bases = if with_runs { &base::all()[2..] } else { base::all() };
    let base = &bases[usize::from(*first) % bases.len()];
    let disk = base.disk.copy();
    edits::apply(&disk, scope, &mut Choices::new(script));
    check(base, &disk, scope);
}

/// Checks what must hold for a damaged folder, whatever the damage.
fn check(base: &Base, disk: &MemDisk, scope: &[&str]) {
    let forged = base.is_forged(disk);
    let report = match verify_on(&disk.copy()) {
        Ok(report) => report,
        Err(error) => {
            let refused = open(&disk.copy()).expect_err("of another format");
            assert!(error.to_string().contains("format"), "damage is no error of verify: {error:?}");
            assert!(refused.to_string().contains("format"), "{refused:?}");
            return;
        }
    };
    // Every byte of these two is checked; of the others some have no meaning, and some are read on demand.
    let whole = scope == ["MANIFEST"] || scope == ["state/"];
    let harmless = forged || !whole || !base.is_changed(disk);
    let disk = disk.copy();
    let mut store = match open(&disk) {
        Ok(store) => store,
        Err(error) => {
            assert!(names_a_place(&error), "{error:?} names no place");
            assert!(!report.problems.is_empty(), "refused, and verify has nothing to say: {error}");
            let again = open(&disk).expect_err("refused once, refused always");
            assert_eq!(again.to_string(), error.to_string(), "refused for another reason the second time");
            return;
        }
    };
    assert!(harmless, "damage was not noticed");
    let recovered = store.recovered();
    let everything = match base.ask(&mut store, &recovered) {
        Ok(everything) => everything,
        Err(error) => {
            assert!(names_a_place(&error), "{error:?} names no place");
            assert!(!report.problems.is_empty(), "it cannot be read, and verify has nothing to say: {error}");
            return;
        }
    };
    answers_what_was_asked(&everything.found, base.lookups());
    if !forged {
        assert!(recovered.next_lsn > base.must_have, "what was durable is lost, and nobody says so");
        let expected = base.expected(&recovered).expect("whole groups, or none of them");
        is_as_expected(&everything, &expected);
    } else if report.problems.is_empty() && scope != ["journal/"] {
        // The content is forged but consistent: then everything that is shown is found, too.
        is_consistent(&mut store, &everything);
    }
    drop(store);
    let mut again = match open(&disk) {
        // The last id was given already.
        Err(error) if recovered.epoch == Epoch(u32::MAX) => {
            return assert!(names_a_place(&error), "{error:?}");
        }
        opened => opened.expect("opened once, opened always"),
    };
    let reopened = again.recovered();
    assert!(reopened.epoch > recovered.epoch, "each owner has an epoch of its own");
    let second = base.ask(&mut again, &reopened).expect("read once, read always");
    let first = Everything { recovered: Recovered { epoch: reopened.epoch, ..recovered }, ..everything };
    assert_eq!(first, second, "another owner finds something else");
}

fn is_as_expected(everything: &Everything, expected: &Everything) {
    let (is, should) = (&everything.recovered, &expected.recovered);
    assert_eq!((is.next_lsn, is.next_id), (should.next_lsn, should.next_id), "positions");
    assert_eq!(is.queues, should.queues, "books of the queues");
    assert_eq!(is.due, should.due, "when messages are due");
    assert!(is.clock.map(|c| c.engine) >= should.clock.map(|c| c.engine), "the clock went back");
    assert_eq!(everything.found, expected.found, "what is found");
    assert_eq!(everything.rows, expected.rows, "what is loaded");
}

/// Every result was asked for.
fn answers_what_was_asked(found: &Found, asked: &Lookups) {
    for row in &found.rows {
        let (queue, key) = (&row.message.queue, &row.message.key);
        let by_key = key.as_ref().is_some_and(|key| asked.keys.iter().any(|(q, k)| q == queue && k == key));
        assert!(by_key || asked.ids.contains(&row.message.id), "{row:?} was not asked for");
    }
    for row in &found.answers {
        assert!(asked.answers.iter().any(|(q, id)| *q == row.queue && *id == row.dedupe_id));
    }
}

/// A message that is loaded is found by its id with the same content.
fn is_consistent(store: &mut LogStore, everything: &Everything) {
    let ids: BTreeSet<_> = everything.rows.iter().map(|row| row.message.id).collect();
    assert_eq!(ids.len(), everything.rows.len(), "a message is there twice");
    let lookups = Lookups { ids: ids.into_iter().collect(), ..Lookups::default() };
    let mut found = Found::default();
    store.find_many(&lookups, &mut found).expect("what was loaded can be found");
    found.rows.sort_by_key(|row| row.message.id);
    assert_eq!(found.rows, everything.rows, "what is loaded is found");
}
