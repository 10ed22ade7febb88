//! What the wheel allocates, counted by the allocator. One test only: the count is that of the whole process.

use std::alloc::System;

use duewheel_wheel::{Geometry, Handle, Wheel};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Ten million take too long in a debug build; one million show the same.
const TIMERS: usize = if cfg!(debug_assertions) { 1_000_000 } else { 10_000_000 };
const HOUR: u64 = 3_600_000;

fn allocated() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

fn random(state: &mut u64, limit: u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)) % limit
}

fn fill(span: u64, state: &mut u64) -> (Wheel<u64>, Vec<Handle>) {
    let mut handles = Vec::with_capacity(TIMERS);
    let mut wheel = Wheel::new(Geometry::default());
    for id in 0..TIMERS as u64 {
        handles.push(wheel.insert(1 + random(state, span), id, id));
    }
    (wheel, handles)
}

fn shuffle(handles: &mut [Handle], state: &mut u64) {
    for at in (1..handles.len()).rev() {
        let other = usize::try_from(random(state, at as u64 + 1)).expect("an index");
        handles.swap(at, other);
    }
}

#[test]
fn memory_is_given_back() {
    let mut state = 1;

    // An idle wheel is small.
    let before = allocated();
    let mut idle = Wheel::new(Geometry::default());
    idle.insert(HOUR * 24, 1, 1_u64);
    idle.insert(HOUR / 2, 1, 1_u64);
    assert!(allocated() - before < 48 * 1024, "{} bytes for two timers", allocated() - before);
    drop(idle);

    // All in this turn; over a few turns; over years.
    for span in [HOUR, 100 * HOUR, 200_000 * HOUR] {
        let before = allocated();
        let (mut wheel, mut handles) = fill(span, &mut state);
        let handles_take = handles.capacity() * size_of::<Handle>();
        let held = |before: usize| allocated() - before - handles_take;
        let full = held(before);
        let each = full as f64 / TIMERS as f64 - size_of::<u64>() as f64;
        println!("span {span}: {each:.1} bytes a timer besides its value");
        assert!(each <= 32.0, "{each} bytes a timer besides its value");

        // 90 % are cancelled before their turn.
        shuffle(&mut handles, &mut state);
        for handle in &handles[..TIMERS / 10 * 9] {
            assert!(wheel.cancel(*handle));
        }
        let left = held(before) as f64 / full as f64;
        println!("span {span}: {:.1} % left after cancelling 90 %", left * 100.0);
        assert!(left <= 0.25, "{left} of the memory left");
        assert_eq!(wheel.len(), TIMERS / 10);

        // The rest comes out, and takes its memory with it.
        assert_eq!(wheel.expire(span, |_, _, _| {}), TIMERS / 10);
        assert!(held(before) < 1024 * 1024, "{} bytes for nothing", held(before));
    }

    // All in one slot: the most that is ever held at once, and then nothing.
    let before = allocated();
    let mut wheel = Wheel::new(Geometry::default());
    for id in 0..TIMERS as u64 {
        wheel.insert(5_000 + id % 1000, id, id);
    }
    let full = allocated() - before;
    assert!(wheel.pop_due(5_000).is_some());
    let loaded = allocated() - before;
    println!("one slot: {:.2} times as much while it is handed out", loaded as f64 / full as f64);
    assert!(loaded <= full + full / 2);
    assert_eq!(wheel.expire(6_000, |_, _, _| {}), TIMERS - 1);
    assert!(allocated() - before < 1024 * 1024);
}
