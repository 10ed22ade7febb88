//! Tests that need access to private parts.

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::current::RUN;
use crate::{Cut, FirstDue, Geometry, Handle, Popped, Wheel};

/// A wheel with entries in the present slot, in the ring and in later turns, and their handles.
fn spread() -> (Wheel<u64>, Vec<Handle>) {
    let mut wheel = Wheel::new(Geometry::new(100, 10).unwrap());
    let mut handles: Vec<_> = (0..3000).map(|id| wheel.insert(id * 7 % 5000, id, id)).collect();
    assert!(wheel.pop_due(0).is_some());
    wheel.pop_due(14);
    handles.extend((3000..3100).map(|id| wheel.insert(id % 20, id, id)));
    (wheel, handles)
}

#[test]
fn every_index_comes_back() {
    let (mut wheel, handles) = spread();
    for handle in handles.iter().skip(1).step_by(3) {
        wheel.cancel(*handle);
    }
    assert!(wheel.liveness().stored() >= wheel.len());
    let len = wheel.len();
    assert_eq!(wheel.expire(u64::MAX, |_, _, _| {}), len);
    assert_eq!(wheel.liveness().stored(), 0);

    let (mut wheel, _) = spread();
    wheel.clear();
    assert_eq!((wheel.len(), wheel.liveness().stored()), (0, 0));
    assert!(wheel.slot_counts().all(|count| count == 0));
}

/// A list whose entries were all cancelled is empty, so that it causes no wakeup.
#[test]
fn no_wakeup_for_what_was_cancelled() {
    let (mut wheel, mut handles) = spread();
    let last = wheel.insert(u64::MAX, 1, 1);
    handles.reverse();
    for handle in handles {
        wheel.cancel(handle);
    }
    assert_eq!(wheel.len(), 1);
    assert_eq!(wheel.liveness().stored(), 1);
    assert!(wheel.cancel(last));
    assert_eq!(wheel.next_wakeup(), None);
}

/// The cancels of a list never leave more dead entries than about a quarter of it.
#[test]
fn cancelled_entries_are_few() {
    let mut wheel = Wheel::new(Geometry::default());
    let handles: Vec<_> = (0..100_000).map(|id| wheel.insert(10_000_000 + id, id, id)).collect();
    for some in handles.chunks(700) {
        for handle in some.iter().enumerate().filter(|(at, _)| at % 7 != 0).map(|(_, handle)| handle) {
            assert!(wheel.cancel(*handle));
        }
        let dead = wheel.liveness().stored() - wheel.len();
        assert!(dead <= wheel.liveness().stored() / 4 + 300, "{dead} of {}", wheel.liveness().stored());
    }
}

/// A handle so old that its generation has come round again is taken for another's (see `Handle`). The due time that it
/// names is then wrong, and so is the list whose dead entries are counted. Nothing else may follow from that.
#[test]
fn wrapped_generation_cancels_at_most_one() {
    for (old_due, new_due) in [(15, 9_000), (9_000, 15), (300, 700), (15, 15), (40_000, 700), (700, 40_000)] {
        let (mut wheel, _) = spread();
        let new = wheel.insert(new_due, 2, 2);
        let old = new.with_due(old_due);
        let len = wheel.len();
        assert!(wheel.cancel(old), "taken for the other's");
        assert!(!wheel.cancel(new));
        assert_eq!(wheel.len(), len - 1);

        // Everything else comes out, in order, once.
        let mut last = (0, 0);
        let mut count = 0;
        while let Some(time) = wheel.next_wakeup() {
            wheel.expire(time, |due, tie, _| {
                assert!(last <= (due, tie) && due <= time);
                last = (due, tie);
                count += 1;
            });
        }
        assert_eq!(count, len - 1);
        assert_eq!((wheel.len(), wheel.liveness().stored()), (0, 0));
    }
}

/// Story: a million entries on one slot were moved down and sorted in one call, and whoever drove the wheel was away
/// for so long.
#[test]
fn crowded_slot_is_sorted_in_pieces() {
    const MANY: u64 = 20_000;
    const LOOKS: usize = 300;
    for due in
        [|id: u64| 5_000_000 + id * 7_919 % 1_000, |id: u64| 61_000 + id * 31 % 900, |_: u64| 3_600_500]
    {
        let mut wheel = Wheel::new(Geometry::default());
        for id in 0..MANY {
            // Ties come in no order.
            wheel.insert(due(id), id * 7_907 % MANY, id);
        }
        let (mut calls, mut last, mut popped) = (0, (0, 0), 0);
        loop {
            let mut looks = LOOKS;
            match wheel.pop_due_within(6_000_000, &mut looks) {
                Popped::NotYet => calls += 1,
                Popped::Nothing => break,
                Popped::Entry(entry) => {
                    assert!(last < (entry.due, entry.tie), "in order, each once");
                    (last, popped) = ((entry.due, entry.tie), popped + 1);
                }
            }
        }
        assert_eq!(popped, MANY);
        let most = (LOOKS + RUN) as u64;
        assert!(calls >= MANY / most, "{calls} calls: some looked at more than {most}");
    }
}

/// Entries behind the pointer are put in order piece by piece, too: a clock that was stepped back leaves many of them.
#[test]
fn many_late_entries_are_runs() {
    let mut wheel = Wheel::new(Geometry::default());
    assert!(wheel.pop_due(10_000_000).is_none());
    let handles: Vec<_> = (0..10_000u64).map(|id| wheel.insert(id * 7_919 % 9_000_000, id, id)).collect();
    for handle in handles.iter().filter(|handle| handle.due() % 10 != 0) {
        assert!(wheel.cancel(*handle));
        let dead = wheel.liveness().stored() - wheel.len();
        assert!(dead <= wheel.liveness().stored() / 2 + 3 * RUN, "{dead} cancelled entries are kept");
    }
    let mut last = None;
    while let Some(entry) = wheel.pop_due(10_000_000) {
        assert!(entry.due % 10 == 0 && last < Some((entry.due, entry.tie)));
        last = Some((entry.due, entry.tie));
    }
    assert!(wheel.is_empty());
    assert_eq!(wheel.liveness().stored(), 0);
}

#[test]
fn sample_represents_all_entries() {
    let (mut wheel, _) = spread();
    assert_eq!(wheel.sample(1).count(), wheel.len());
    for id in 0..50_000 {
        wheel.insert(3_000 + id * 31 % 100_000, id, id);
    }
    let few: Vec<_> = wheel.sample(100).map(|waiting| waiting.handle.due()).collect();
    assert!((wheel.len() / 100..wheel.len() / 100 + 300).contains(&few.len()), "{}", few.len());
    let late = few.iter().filter(|due| **due >= 53_000).count() * 100 / few.len();
    assert!((40..60).contains(&late), "half of them are late, and {late} % of the sample");
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u64, u64),
    Cancel(prop::sample::Index),
    Pop(u64, usize, usize),
    Cut(u64, usize),
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]

    /// Thousands of entries in a few crowded slots, in runs: against an ordered set.
    #[test]
    fn crowded_slots_agree_with_the_model(
        steps in prop::collection::vec(
            prop_oneof![
                3 => (0u64..40, 1u64..900).prop_map(|(at, many)| Step::Insert(at, many)),
                3 => any::<prop::sample::Index>().prop_map(Step::Cancel),
                4 => (0u64..45, 0usize..700, 1usize..500).prop_map(|(to, looks, many)| Step::Pop(to, looks, many)),
                1 => (0u64..45, 1usize..900).prop_map(|(after, most)| Step::Cut(after, most)),
            ],
            1..60,
        )
    ) {
        let mut wheel = Wheel::new(Geometry::new(8, 10).unwrap());
        let mut model = BTreeSet::new();
        let mut handles: Vec<Handle> = Vec::new();
        for step in steps {
            match step {
                Step::Insert(at, many) => for n in 0..many {
                    let (due, id) = (1 + at * 10 + n * 7 % 31, handles.len() as u64);
                    let tie = id * 7_907 % 10_007 * 100_000 + id;
                    handles.push(wheel.insert(due, tie, id));
                    model.insert((due, tie, id));
                },
                Step::Cancel(_) if handles.is_empty() => {}
                Step::Cancel(first) => for id in (first.index(handles.len())..handles.len()).step_by(2) {
                    let tie = id as u64 * 7_907 % 10_007 * 100_000 + id as u64;
                    let there = model.remove(&(handles[id].due(), tie, id as u64));
                    prop_assert_eq!(wheel.cancel(handles[id]), there);
                },
                Step::Pop(to, looks, many) => for _ in 0..many {
                    let first = model.first().copied().filter(|(due, ..)| *due <= to * 10);
                    match wheel.pop_due_within(to * 10, &mut looks.clone()) {
                        Popped::Entry(entry) => {
                            prop_assert_eq!(Some((entry.due, entry.tie, entry.value)), first);
                            model.pop_first();
                        }
                        Popped::Nothing => {
                            prop_assert_eq!(first, None);
                            break;
                        }
                        Popped::NotYet => {}
                    }
                },
                Step::Cut(after, most) => {
                    while wheel.pop_due_within(0, &mut usize::MAX.clone()) == Popped::NotYet {}
                    let (mut cut, mut gone) = (Cut::after(after * 10, 0), Vec::new());
                    while wheel.cut(&mut cut, most, |id| gone.push(id)) {}
                    for id in gone {
                        let tie = id * 7_907 % 10_007 * 100_000 + id;
                        prop_assert!(model.remove(&(handles[usize::try_from(id).unwrap()].due(), tie, id)));
                    }
                    prop_assert!(model.range((after * 10, 0, u64::MAX)..).next().is_none());
                }
            }
            prop_assert_eq!(wheel.len(), model.len());
            prop_assert_eq!(wheel.next_due(), model.first().map(|(due, ..)| *due));
            let mut asked = 0;
            let first = loop {
                match wheel.next_due_within(&mut 1) {
                    FirstDue::NotYet => asked += 1,
                    first => break first,
                }
                prop_assert!(asked < 10_000, "it comes to an end");
            };
            prop_assert_eq!(first, FirstDue::from(model.first().map(|(due, ..)| *due)));
            prop_assert!(wheel.next_wakeup() <= wheel.next_due());
        }
        while let Some(entry) = wheel.pop_due(u64::MAX) {
            prop_assert_eq!(Some((entry.due, entry.tie, entry.value)), model.pop_first());
        }
        prop_assert!(model.is_empty());
        prop_assert_eq!(wheel.liveness().stored(), 0);
    }
}

/// Story: whoever asked for the next due time had all entries of a crowded slot read in one call.
#[test]
fn crowded_next_due_takes_few_looks() {
    const MANY: u64 = 50_000;
    let mut wheel = Wheel::new(Geometry::default());
    let handles: Vec<_> = (0..MANY).map(|id| wheel.insert(60_000_000 + id * 7_919 % MANY, id, id)).collect();
    let ask = |wheel: &mut Wheel<u64>, most: usize| {
        for calls in 1.. {
            let mut looks = most;
            let first = wheel.next_due_within(&mut looks);
            if first != FirstDue::NotYet {
                return (first, calls, most - looks);
            }
        }
        unreachable!()
    };
    let (first, calls, looked) = ask(&mut wheel, 4_096);
    assert_eq!((first, calls), (FirstDue::At(60_000_000), 1));
    assert!(looked <= 256, "{looked} entries looked at");
    // The first ones are cancelled, and nearly each piece of the list has lost the one that it had first.
    for handle in handles.iter().filter(|handle| handle.due() < 60_000_000 + MANY / 10) {
        assert!(wheel.cancel(*handle));
    }
    let (first, calls, _) = ask(&mut wheel, 512);
    assert_eq!(first, FirstDue::At(60_000_000 + MANY / 10));
    assert!(calls > 10, "it is spread over {calls} calls");
    let (again, calls, looked) = ask(&mut wheel, 4_096);
    assert_eq!((again, calls), (first, 1));
    assert!(looked <= 256, "what was found out is known: {looked} entries looked at");
}
