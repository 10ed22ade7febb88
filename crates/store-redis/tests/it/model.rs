//! Random histories, closes and kills agree with the model.

use std::sync::Arc;

use duewheel_core::store::conformance::History;
use duewheel_core::store::{Found, Load, More, Sequence, Store, StoreRequest, Table, Which};
use duewheel_redis_rig::Redis;
use duewheel_store_medium::MediumStore;
use proptest::prelude::*;

use crate::place::{open, options, server, small, until, written};

#[derive(Clone, Copy, Debug)]
enum Step {
    /// So many groups of at most so many records.
    Append(u64, u64),
    /// A clean end, and another start.
    Close,
    /// No clean end, and another start.
    Kill,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (1..20u64, 1..60u64).prop_map(|(groups, most)| Step::Append(groups, most)),
        1 => Just(Step::Close),
        1 => Just(Step::Kill),
    ];
    prop::collection::vec(step, 1..8)
}

pub(crate) fn same(store: &mut MediumStore, history: &History) -> Result<(), TestCaseError> {
    let (mut found, mut expected) = (Found::default(), Found::default());
    let model = history.model();
    store.find_many(&history.lookups(), &mut found).expect("find_many");
    model.find_many(&history.lookups(), &mut expected);
    for f in [&mut found, &mut expected] {
        f.rows.sort_unstable_by_key(|row| row.message.id);
        f.answers.retain(|row| row.until > history.clock().engine && model.ledger().remembers(row));
        f.answers.sort_unstable_by(|a, b| (&a.queue, &a.dedupe_id).cmp(&(&b.queue, &b.dedupe_id)));
    }
    prop_assert_eq!(found, expected);
    let names: Vec<_> = model.queue_rows().into_iter().map(|row| row.name).collect();
    for sequence in Sequence::ALL {
        let some = Arc::from_iter(names.iter().skip(1).cloned());
        let mut whiches = vec![Which::All, Which::AllBut(some)];
        whiches.extend(names.iter().cloned().map(Which::One));
        for which in whiches {
            prop_assert_eq!(pages(store, sequence, &which), of_model(model, sequence, &which));
        }
    }
    Ok(())
}

fn pages(store: &mut MediumStore, sequence: Sequence, which: &Which) -> Vec<duewheel_core::message::Row> {
    let which = which.clone();
    let mut load = Load { ticket: 1, sequence, which, after: None, until: u64::MAX, rows: 13, bytes: 2_000 };
    let mut rows = Vec::new();
    loop {
        store.ask(StoreRequest::Load(load.clone())).expect("load");
        let mut page = None;
        until("the page comes", || {
            page = store.arrived();
            page.is_some()
        });
        let page = page.expect("a page").expect("loaded").page().expect("a page");
        rows.extend(page.rows);
        match page.more {
            More::Yes => load.after = page.upto,
            More::No => return rows,
        }
    }
}

fn of_model(model: &Table, sequence: Sequence, which: &Which) -> Vec<duewheel_core::message::Row> {
    let which = which.clone();
    let (rows, bytes) = (usize::MAX, usize::MAX);
    model.load(Load { ticket: 1, sequence, which, after: None, until: u64::MAX, rows, bytes }).rows
}

fn run(redis: &Redis, seed: u64, steps: &[Step], prefix: &str) -> Result<(), TestCaseError> {
    let options = small(options(redis).prefix(prefix).expect("a good prefix"));
    let mut history = History::new(seed).spread_ms(40 * 65_536);
    let mut store = open(&options);
    for step in steps {
        match step {
            Step::Append(groups, most) => {
                for _ in 0..*groups {
                    store.append(&history.group(*most)).expect("append");
                }
                continue;
            }
            Step::Close => drop(store.close(history.tick()).expect("close")),
            Step::Kill => written(&mut store, &history),
        }
        drop(store);
        store = open(&options);
        let recovered = store.recovered();
        let mut expected = history.model().recovered(recovered.epoch);
        expected.tokens = recovered.tokens;
        (expected.clock, expected.as_of) = (recovered.clock, recovered.as_of);
        prop_assert!(recovered.next_id >= expected.next_id);
        expected.next_id = recovered.next_id;
        prop_assert_eq!(recovered, expected);
    }
    same(&mut store, &history)?;
    Ok(())
}

#[test]
fn histories_agree_with_the_model() {
    let redis = server();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let next = std::cell::Cell::new(0u32);
    runner
        .run(&(any::<u64>(), steps()), |(seed, steps)| {
            next.set(next.get() + 1);
            run(&redis, seed, &steps, &format!("model{}", next.get()))
        })
        .expect("all agree");
}
