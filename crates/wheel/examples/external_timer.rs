//! A ring of the caller's own type and length, driven by an external timer: here a loop that sleeps a second.
//!
//! `cargo run -p duewheel-wheel --example external_timer`

#![allow(clippy::disallowed_methods, reason = "the caller of a wheel has the clock")]

use std::time::Duration;

use duewheel_wheel::{Geometry, GeometryError, Wheel};

#[derive(Debug)]
struct Reminder {
    to: &'static str,
    text: &'static str,
}

/// Counts seconds, because its caller does.
struct Ring<T> {
    wheel: Wheel<T>,
    added: u64,
}

impl<T> Ring<T> {
    fn new(slots: usize) -> Result<Self, GeometryError> {
        Ok(Self { wheel: Wheel::new(Geometry::new(slots, 1)?), added: 0 })
    }

    fn add(&mut self, delay: u64, value: T) {
        let place = self.wheel.place_after(delay);
        println!("in {delay:2} s: slot {}, round {}", place.slot, place.round);
        self.wheel.insert(self.wheel.now() + delay, self.added, value);
        self.added += 1;
    }

    /// To be called each second: moves the pointer one slot, and gives what is due.
    fn read(&mut self) -> Vec<T> {
        let mut due = Vec::new();
        self.wheel.expire(self.wheel.now() + 1, |_due, _tie, value| due.push(value));
        due
    }
}

fn main() -> Result<(), GeometryError> {
    let mut ring = Ring::new(5)?;
    ring.add(2, Reminder { to: "ann", text: "tea is ready" });
    ring.add(2, Reminder { to: "bob", text: "tea is ready" });
    ring.add(7, Reminder { to: "cid", text: "the same slot, a round later" });
    while !ring.wheel.is_empty() {
        std::thread::sleep(Duration::from_secs(1));
        let due = ring.read();
        println!("pointer at slot {}", ring.wheel.pointer());
        for Reminder { to, text } in due {
            println!("  {to}: {text}");
        }
    }
    Ok(())
}
