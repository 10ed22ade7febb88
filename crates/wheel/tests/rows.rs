//! The rows of the mission that the wheel alone can show, by their numbers.

use duewheel_wheel::{Expired, Geometry, RingPosition, Wheel};

const SECOND: u64 = 1000;

fn wheel_at(slots: usize, pointer: u64) -> Wheel<&'static str> {
    let mut wheel = Wheel::new(Geometry::new(slots, SECOND).expect("valid"));
    wheel.advance(pointer * SECOND);
    wheel
}

/// M1: a ring of N slots, 3600 unless said otherwise; the pointer moves one slot each tick, 1 s unless said
/// otherwise; each slot holds a set of tasks.
#[test]
fn m1_pointer_moves_slot_per_tick() {
    let mut wheel: Wheel<&str> = Wheel::new(Geometry::default());
    assert_eq!((wheel.geometry().slots(), wheel.geometry().tick()), (3600, SECOND));
    for second in 0..8000_u64 {
        wheel.advance(second * SECOND);
        assert_eq!(wheel.pointer() as u64, second % 3600);
        wheel.advance(second * SECOND + SECOND - 1);
        assert_eq!(wheel.pointer() as u64, second % 3600);
    }

    let mut wheel = Wheel::new(Geometry::new(12, 5).expect("valid"));
    wheel.insert(10, 1, "a");
    wheel.insert(14, 2, "b");
    wheel.insert(15, 3, "c");
    assert_eq!(wheel.slot_counts().collect::<Vec<_>>(), [0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
}

/// M1: the tick decides how many tasks share a slot, not how exactly they come out.
#[test]
fn m1_expiry_is_tick_independent() {
    for tick in [1, 2, 7, 100, 1000, 60_000, u64::MAX] {
        for slots in [1, 3, 60, 3600] {
            let mut wheel = Wheel::new(Geometry::new(slots, tick).expect("valid"));
            for (tie, due) in [5000, 4999, 5001, 1, 90_000, 5000].into_iter().enumerate() {
                wheel.insert(due, tie as u64, due);
            }
            let mut seen = Vec::new();
            for now in 0..=90_000 {
                while let Some(Expired { due, tie, value }) = wheel.pop_due(now) {
                    assert_eq!((due, value), (now, now), "{slots} slots of {tick}");
                    seen.push((due, tie));
                }
            }
            assert_eq!(seen, [(1, 3), (4999, 1), (5000, 0), (5000, 5), (5001, 2), (90_000, 4)]);
        }
    }
}

/// M2, first worked example: pointer at slot 1, due in 3610 s, ring of 3600: slot 11, and one more round.
#[test]
fn m2_3610_seconds_is_round_1() {
    let mut wheel = wheel_at(3600, 1);
    assert_eq!(wheel.pointer(), 1);
    assert_eq!(wheel.place_after(3610), RingPosition { slot: 11, round: 1 });

    let due = (1 + 3610) * SECOND;
    assert_eq!(wheel.place_at(due), RingPosition { slot: 11, round: 1 });
    wheel.insert(due, 1, "close the order");
    assert_eq!(wheel.tasks_on_slot(11), 1);
    assert_fires_in_its_round(wheel, 11, 1, due);
}

/// M2, second worked example: pointer at slot 2, due in 147 s, ring of 60: slot 29, and two more rounds.
#[test]
fn m2_147_seconds_is_round_2() {
    let mut wheel = wheel_at(60, 2);
    assert_eq!(wheel.pointer(), 2);
    assert_eq!(wheel.place_after(147), RingPosition { slot: 29, round: 2 });

    let due = (2 + 147) * SECOND;
    assert_eq!(wheel.place_at(due), RingPosition { slot: 29, round: 2 });
    wheel.insert(due, 1, "remind");
    assert_eq!(wheel.tasks_on_slot(29), 1);
    assert_fires_in_its_round(wheel, 29, 2, due);
}

/// The pointer passes the slot `round` times without the task, and meets it the next time.
fn assert_fires_in_its_round(mut wheel: Wheel<&'static str>, slot: usize, round: usize, due: u64) {
    let mut met = 0;
    let mut second = wheel.now() / SECOND;
    loop {
        second += 1;
        let expired = wheel.pop_due(second * SECOND);
        if wheel.pointer() != slot {
            assert!(expired.is_none());
            continue;
        }
        if met == round {
            assert_eq!(expired.map(|expired| expired.due), Some(due));
            assert_eq!(second * SECOND, due);
            assert_eq!(wheel.tasks_on_slot(slot), 0);
            return;
        }
        assert!(expired.is_none(), "round {met} is too early");
        assert_eq!(wheel.place_at(due).round, (round - met - 1) as u64);
        met += 1;
    }
}

/// M2: a delay of many turns fires in the right turn, whatever the number of turns.
#[test]
fn m2_many_turn_delay_fires_correctly() {
    for turns in [0, 1, 2, 63, 64, 65, 4095, 4096, 4097, 300_000] {
        let mut wheel = wheel_at(10, 3);
        let due = (3 + turns * 10 + 4) * SECOND;
        assert_eq!(wheel.place_at(due), RingPosition { slot: 7, round: turns });
        wheel.insert(due, 1, "late");
        assert_eq!(wheel.tasks_on_slot(7), 1);
        assert!(wheel.pop_due(due - 1).is_none());
        assert_eq!(wheel.pop_due(due).map(|expired| expired.value), Some("late"));
    }
}

/// M12: a generic queue of the caller's own type, with a ring of chosen length, driven by an external timer.
#[test]
fn m12_caller_drives_own_ring_type() {
    #[derive(Debug, PartialEq)]
    struct Sms {
        to: &'static str,
    }
    let mut ring = Wheel::new(Geometry::new(5, 1).expect("valid"));
    let read = |ring: &mut Wheel<Sms>| {
        let mut batch = Vec::new();
        ring.expire(ring.now() + 1, |_, _, sms| batch.push(sms.to));
        batch
    };
    ring.insert(2, 1, Sms { to: "ann" });
    ring.insert(2, 2, Sms { to: "bob" });
    ring.insert(7, 3, Sms { to: "cid" });
    assert_eq!(ring.tasks_on_slot(2), 3);
    let batches: Vec<_> = (0..8).map(|_| read(&mut ring)).collect();
    let none: &[&str] = &[];
    assert_eq!(batches, [none, &["ann", "bob"], none, none, none, none, &["cid"], none]);
}

/// A wall clock that is stepped back makes nothing early, and what is inserted behind the pointer is not lost.
#[test]
fn backward_time_fires_nothing_early() {
    let mut wheel = Wheel::new(Geometry::default());
    wheel.insert(500_000, 1, "stays");
    assert!(wheel.pop_due(499_999).is_none());
    assert!(wheel.pop_due(100_000).is_none());
    assert_eq!((wheel.now(), wheel.pointer()), (499_999, 499));

    wheel.insert(100_002, 3, "behind, second");
    wheel.insert(100_001, 2, "behind, first");
    assert_eq!(wheel.next_wakeup(), Some(100_001));
    assert!(wheel.pop_due(100_000).is_none());
    assert_eq!(wheel.pop_due(100_001).map(|expired| expired.value), Some("behind, first"));
    assert!(wheel.pop_due(100_001).is_none());
    assert_eq!(wheel.pop_due(100_002).map(|expired| expired.value), Some("behind, second"));
    assert!(wheel.pop_due(499_999).is_none());
    assert_eq!(wheel.pop_due(500_000).map(|expired| expired.value), Some("stays"));
}

/// Years without anything, and the end of time, cost a handful of steps.
#[test]
fn huge_jumps_are_fast() {
    let geometry = Geometry::new(1, 1).expect("valid"); // the most levels there can be
    let mut wheel = Wheel::new(geometry);
    wheel.insert(u64::MAX, 9, "the end");
    wheel.insert(u64::MAX - 1, 9, "nearly");
    wheel.insert(1 << 50, 1, "far");
    let mut wakeups = 0;
    let mut seen = Vec::new();
    while let Some(time) = wheel.next_wakeup() {
        wakeups += 1;
        wheel.expire(time, |due, _, value| seen.push((due, value)));
    }
    assert_eq!(seen, [(1 << 50, "far"), (u64::MAX - 1, "nearly"), (u64::MAX, "the end")]);
    assert!(wakeups <= 25, "{wakeups}");

    wheel.insert(0, 1, "overdue");
    wheel.insert(u64::MAX, 2, "due");
    assert_eq!(wheel.pop_due(u64::MAX).map(|expired| expired.value), Some("overdue"));
    assert_eq!(wheel.pop_due(u64::MAX).map(|expired| expired.value), Some("due"));
    assert!(wheel.is_empty());
}
