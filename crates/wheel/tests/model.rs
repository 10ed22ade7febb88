//! The wheel against a model that is plainly right: an ordered set of (due, tie, serial number).

use std::collections::BTreeSet;

use duewheel_wheel::{Cut, FirstDue, Geometry, Handle, Popped, Wheel};
use proptest::prelude::*;
use proptest::sample::Index;

#[derive(Clone, Debug)]
enum Time {
    /// After the latest time that the wheel was told.
    Ticks(u64),
    Turns(u64, u64),
    Units(u64),
    Before(u64),
    Exactly(u64),
    /// As an entry that is or was there, plus or minus one.
    Like(Index, i8),
}

#[derive(Clone, Debug)]
enum Step {
    Insert(Time, u64),
    Cancel(Index),
    Advance(Time),
    Pop(Time),
    Expire(Time),
    /// A pop that may look at so few entries that it has to be asked again.
    PopWithin(Time, usize),
    Retain(u64),
    /// A cut behind a place: so many entries at a time, so many times at most.
    Cut(Time, u64, usize, usize),
    Clear,
}

fn times() -> impl Strategy<Value = Time> {
    prop_oneof![
        4 => (0u64..70).prop_map(Time::Ticks),
        3 => (0u64..5000, 0u64..5).prop_map(|(turns, ticks)| Time::Turns(turns, ticks)),
        3 => (0u64..5000).prop_map(Time::Units),
        2 => (0u64..5000).prop_map(Time::Before),
        1 => prop_oneof![Just(0), Just(u64::MAX), Just(u64::MAX - 1), any::<u64>()].prop_map(Time::Exactly),
        1 => (0u32..64).prop_map(|bit| Time::Units(1 << bit)),
        3 => (any::<Index>(), -1i8..=1).prop_map(|(index, by)| Time::Like(index, by)),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        40 => (times(), 0u64..4).prop_map(|(time, tie)| Step::Insert(time, tie)),
        25 => any::<Index>().prop_map(Step::Cancel),
        8 => times().prop_map(Step::Advance),
        20 => times().prop_map(Step::Pop),
        6 => times().prop_map(Step::Expire),
        12 => (times(), 0usize..20).prop_map(|(time, looks)| Step::PopWithin(time, looks)),
        1 => (1u64..5).prop_map(Step::Retain),
        1 => (times(), 0u64..4, 1usize..20, prop_oneof![1usize..3, Just(usize::MAX)])
            .prop_map(|(time, tie, most, times)| Step::Cut(time, tie, most, times)),
        1 => Just(Step::Clear),
    ]
}

fn geometries() -> impl Strategy<Value = Geometry> {
    let slots = prop_oneof![1usize..9, Just(60), 63usize..66, Just(100), Just(3600), 4095usize..4098];
    let tick =
        prop_oneof![3 => 1u64..4, 3 => Just(1000), 1 => 5u64..100, 1 => Just(1 << 40), 1 => Just(u64::MAX)];
    (slots, tick).prop_map(|(slots, tick)| Geometry::new(slots, tick).expect("valid"))
}

struct Pair {
    wheel: Wheel<usize>,
    model: BTreeSet<(u64, u64, usize)>,
    /// By serial number: every handle that was ever given out, and its tie.
    given: Vec<(Handle, u64)>,
    now: u64,
}

impl Pair {
    fn resolve(&self, time: &Time) -> u64 {
        let tick = self.wheel.geometry().tick();
        let turn = tick.saturating_mul(self.wheel.geometry().slots() as u64);
        match *time {
            Time::Ticks(ticks) => self.now.saturating_add(tick.saturating_mul(ticks)),
            Time::Turns(turns, ticks) => {
                let delay = turn.saturating_mul(turns).saturating_add(tick.saturating_mul(ticks));
                self.now.saturating_add(delay)
            }
            Time::Units(units) => self.now.saturating_add(units),
            Time::Before(units) => self.now.saturating_sub(units),
            Time::Exactly(time) => time,
            Time::Like(_, _) if self.given.is_empty() => self.now,
            Time::Like(index, by) => {
                self.given[index.index(self.given.len())].0.due().saturating_add_signed(by.into())
            }
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Insert(time, tie) => {
                let (due, serial) = (self.resolve(time), self.given.len());
                let handle = self.wheel.insert(due, *tie, serial);
                assert_eq!(handle.due(), due);
                self.given.push((handle, *tie));
                self.model.insert((due, *tie, serial));
            }
            Step::Cancel(_) if self.given.is_empty() => {}
            Step::Cancel(index) => {
                let serial = index.index(self.given.len());
                let (handle, tie) = self.given[serial];
                let there = self.model.remove(&(handle.due(), tie, serial));
                assert_eq!(self.wheel.contains(handle), there);
                assert_eq!(self.wheel.cancel(handle), there, "cancel of {serial}");
                assert!(!self.wheel.contains(handle));
            }
            Step::Advance(time) => {
                let to = self.resolve(time);
                self.wheel.advance(to);
                self.now = self.now.max(to);
            }
            Step::Pop(time) => {
                let to = self.resolve(time);
                self.pop(to);
            }
            Step::Expire(time) => {
                let to = self.resolve(time);
                while self.pop(to) {}
            }
            Step::PopWithin(time, looks) => {
                let to = self.resolve(time);
                self.pop_within(to, *looks);
            }
            Step::Cut(time, tie, most, times) => {
                let place = (self.resolve(time), *tie);
                // What arrives just now might stay: all of it shall have arrived.
                self.pop_within(self.now, usize::MAX);
                let mut cut = Cut::after(place.0, place.1);
                let (mut gone, mut more) = (Vec::new(), true);
                for _ in 0..*times {
                    more = self.wheel.cut(&mut cut, *most, |serial| gone.push(serial));
                    if !more {
                        break;
                    }
                }
                for serial in gone {
                    let (handle, tie) = self.given[serial];
                    assert!((handle.due(), tie) > place, "it is behind the cut");
                    assert!(self.model.remove(&(handle.due(), tie, serial)), "each goes once");
                }
                let behind = self.model.range((place.0, place.1, usize::MAX)..).count();
                assert!(more || behind == 0, "{behind} behind the cut stayed");
            }
            Step::Retain(keep) => {
                self.wheel.retain(|waiting| *waiting.value as u64 % 5 < *keep);
                self.model.retain(|(_, _, serial)| *serial as u64 % 5 < *keep);
            }
            Step::Clear => {
                self.wheel.clear();
                self.model.clear();
            }
        }
        self.check();
    }

    /// Says whether something was due.
    fn pop(&mut self, to: u64) -> bool {
        self.now = self.now.max(to);
        let expected = self.model.first().copied().filter(|(due, ..)| *due <= to);
        let popped = self.wheel.pop_due(to);
        assert_eq!(popped.map(|popped| (popped.due, popped.tie)), expected.map(|(due, tie, _)| (due, tie)));
        if let Some(popped) = popped {
            // Which of those that agree in both is not specified.
            assert!(self.model.remove(&(popped.due, popped.tie, popped.value)), "each comes out once");
        }
        popped.is_some()
    }

    /// What was due, if it could be told.
    fn pop_within(&mut self, to: u64, mut looks: usize) -> Option<bool> {
        self.now = self.now.max(to);
        let expected = self.model.first().copied().filter(|(due, ..)| *due <= to);
        match self.wheel.pop_due_within(to, &mut looks) {
            Popped::NotYet => {
                assert_eq!(looks, 0, "it has looked at as many as it may");
                None
            }
            Popped::Nothing => {
                assert_eq!(expected, None);
                Some(false)
            }
            Popped::Entry(popped) => {
                assert_eq!(Some((popped.due, popped.tie)), expected.map(|(due, tie, _)| (due, tie)));
                assert!(self.model.remove(&(popped.due, popped.tie, popped.value)), "each comes out once");
                Some(true)
            }
        }
    }

    fn check(&mut self) {
        let next = self.model.first().map(|(due, ..)| *due);
        assert_eq!(self.wheel.len(), self.model.len());
        assert_eq!(self.wheel.is_empty(), self.model.is_empty());
        assert_eq!(self.wheel.next_due(), next);
        assert_eq!(self.wheel.next_due_within(&mut 1_000_000), FirstDue::from(next));
        match (self.wheel.next_wakeup(), next) {
            (Some(wakeup), Some(next)) => assert!(wakeup <= next),
            (wakeup, next) => assert_eq!(wakeup, next),
        }
        assert_eq!(self.wheel.now(), self.now);
        assert_eq!(self.wheel.pointer(), self.wheel.geometry().slot_of(self.now));

        let geometry = self.wheel.geometry();
        let mut counts = vec![0; geometry.slots()];
        for (due, ..) in &self.model {
            counts[geometry.slot_of(*due)] += 1;
        }
        assert!(self.wheel.slot_counts().eq(counts.iter().copied()));
        assert_eq!(self.wheel.tasks_on_slot(0), counts[0]);
        assert_eq!(self.wheel.tasks_on_slot(geometry.slots()), 0);

        let seen: BTreeSet<_> =
            self.wheel.iter().map(|waiting| (waiting.handle.due(), waiting.tie, *waiting.value)).collect();
        assert_eq!(seen, self.model);
        assert!(self.wheel.iter().all(|waiting| waiting.handle == self.given[*waiting.value].0));
    }

    /// Sleeping until `next_wakeup` reaches everything at its exact time, in few steps each.
    fn sleep_to_the_end(&mut self) {
        let mut idle = 0;
        let mut last = None;
        while let Some(wakeup) = self.wheel.next_wakeup() {
            if self.pop(wakeup) {
                idle = 0;
                last = None;
            } else {
                idle += 1;
                assert!(idle <= 14, "at most one for each level");
                assert!(last < Some(wakeup), "time goes on");
                last = Some(wakeup);
            }
        }
        assert!(self.model.is_empty());
        self.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(debug_assertions) { 512 } else { 8192 }, ..Default::default() })]

    #[test]
    fn agrees_with_the_model(
        geometry in geometries(),
        start in prop_oneof![Just(0u64), Just(1_700_000_000_000), any::<u64>()],
        steps in prop::collection::vec(steps(), 1..120),
    ) {
        let wheel = Wheel::starting_at(geometry, start);
        let mut pair = Pair { wheel, model: BTreeSet::new(), given: Vec::new(), now: start };
        for step in &steps {
            pair.step(step);
        }
        pair.sleep_to_the_end();
    }
}

/// Enough entries for many chunks in one list, so that compaction, levels and the sort of a full slot all happen.
#[test]
fn agrees_with_the_model_when_crowded() {
    let mut state = 7_u64;
    let mut random = |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    for (slots, tick, span) in
        [(3600, 1000, 300_000), (60, 1000, 9_000_000), (1, 1, 5_000), (7, 100_000, 400_000)]
    {
        let wheel = Wheel::new(Geometry::new(slots, tick).expect("valid"));
        let mut pair = Pair { wheel, model: BTreeSet::new(), given: Vec::new(), now: 0 };
        for _ in 0..6 {
            for _ in 0..8_000 {
                let serial = pair.given.len();
                let due = pair.now + random(span);
                let tie = if slots == 60 { random(5) } else { serial as u64 };
                let handle = pair.wheel.insert(due, tie, serial);
                pair.given.push((handle, tie));
                pair.model.insert((due, tie, serial));
            }
            pair.check();
            for _ in 0..9_000 {
                let serial = usize::try_from(random(pair.given.len() as u64)).expect("an index");
                let (handle, tie) = pair.given[serial];
                let there = pair.model.remove(&(handle.due(), tie, serial));
                assert_eq!(pair.wheel.cancel(handle), there);
            }
            pair.check();
            let to = pair.now + span / 3;
            while pair.pop(to) {}
            pair.check();
        }
        pair.sleep_to_the_end();
    }
}
