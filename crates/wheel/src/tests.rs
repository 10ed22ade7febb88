//! Tests that need access to private parts.

use crate::{Geometry, Handle, Wheel};

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
fn a_handle_of_a_generation_gone_round_does_no_more_harm_than_one_cancel() {
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
