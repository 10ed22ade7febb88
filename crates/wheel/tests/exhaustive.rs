//! Small rings, all of them: every sequence of a few operations, up to a depth, on rings of one to four slots.

use std::collections::BTreeSet;

use duewheel_wheel::{FirstDue, Geometry, Handle, Wheel};

/// There are eleven operations, so each step more takes eleven times as long.
const DEPTH: u32 = if cfg!(debug_assertions) { 4 } else { 6 };

#[derive(Clone)]
struct State {
    wheel: Wheel<u64>,
    model: BTreeSet<(u64, u64)>,
    handles: Vec<Handle>,
    now: u64,
}

impl State {
    fn insert(&mut self, due: u64) {
        // Falling ties, so that insertion order is not the order to come out in.
        let tie = 100 - self.handles.len() as u64;
        self.handles.push(self.wheel.insert(due, tie, tie));
        self.model.insert((due, tie));
    }

    fn cancel(&mut self, at: usize) {
        if let Some(handle) = self.handles.get(at) {
            let there = self.model.remove(&(handle.due(), 100 - at as u64));
            assert_eq!(self.wheel.cancel(*handle), there);
        }
    }

    fn pop(&mut self, to: u64) -> bool {
        self.now = self.now.max(to);
        let expected = self.model.first().copied().filter(|(due, _)| *due <= to);
        assert_eq!(self.wheel.pop_due(to).map(|expired| (expired.due, expired.value)), expected);
        expected.is_some_and(|first| self.model.remove(&first))
    }

    fn check(&mut self) {
        assert_eq!(self.wheel.len(), self.model.len());
        let next = self.model.first().map(|(due, _)| *due);
        assert_eq!(self.wheel.next_due(), next);
        assert_eq!(self.wheel.next_due_within(&mut 1_000), FirstDue::from(next));
        assert_eq!(self.wheel.next_wakeup().is_some(), next.is_some());
        assert!(self.wheel.next_wakeup() <= next);
        for slot in 0..self.wheel.geometry().slots() {
            let on_slot = self.model.iter().filter(|(due, _)| self.wheel.geometry().slot_of(*due) == slot);
            assert_eq!(self.wheel.tasks_on_slot(slot), on_slot.count());
        }
    }

    fn all_sequences(&self, depth: u32, visited: &mut u64) {
        *visited += 1;
        if depth == 0 {
            let mut end = self.clone();
            while let Some(wakeup) = end.wheel.next_wakeup() {
                end.pop(wakeup);
            }
            assert!(end.model.is_empty());
            return;
        }
        let tick = self.wheel.geometry().tick();
        let turn = tick * self.wheel.geometry().slots() as u64;
        let now = self.now;
        let operations: [&dyn Fn(&mut Self); 11] = [
            &|state| state.insert(now.saturating_sub(1)),
            &|state| state.insert(now + 1),
            &|state| state.insert(now + turn),
            &|state| state.insert(now + 64 * turn + tick),
            &|state| state.cancel(0),
            &|state| state.cancel(state.handles.len().saturating_sub(1)),
            &|state| _ = state.pop(now),
            &|state| _ = state.pop(now.saturating_sub(turn)),
            &|state| _ = state.pop(now + tick),
            &|state| while state.pop(now + turn) {},
            &|state| while state.pop(now + 65 * turn) {},
        ];
        for operation in operations {
            let mut next = self.clone();
            operation(&mut next);
            next.check();
            next.all_sequences(depth - 1, visited);
        }
    }
}

fn exhaust(slots: usize) {
    for (tick, start) in [(1, 0), (3, 61)] {
        let wheel = Wheel::starting_at(Geometry::new(slots, tick).expect("valid"), start);
        let state = State { wheel, model: BTreeSet::new(), handles: Vec::new(), now: start };
        let mut visited = 0;
        state.all_sequences(DEPTH, &mut visited);
        assert!(visited > 11_u64.pow(DEPTH));
    }
}

#[test]
fn rings_of_one_slot() {
    exhaust(1);
}

#[test]
fn rings_of_two_slots() {
    exhaust(2);
}

#[test]
fn rings_of_three_slots() {
    exhaust(3);
}

#[test]
fn rings_of_four_slots() {
    exhaust(4);
}
