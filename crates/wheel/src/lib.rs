//! A timing wheel that takes time as an argument: generic, no clock, no threads.
//!
//! The wheel is a ring of slots with a pointer that moves one slot each tick. A slot is an unordered heap of entries.
//! Entries further ahead are in coarser heaps, blocks of 64 slots and then turns of the ring, and are moved down when
//! the pointer enters them. A slot is sorted only when the pointer reaches it, and then handed out to the exact unit of
//! time, so the tick determines how much is sorted at once and not the exactness.
//!
//! | operation | cost |
//! |---|---|
//! | [`insert`](Wheel::insert) | one append |
//! | [`cancel`](Wheel::cancel) | two bits written; memory is given back in small steps as cancels go on |
//! | [`pop_due`](Wheel::pop_due) | a share of moving and sorting one slot, which is linear if ties were inserted in order |
//! | a jump over empty time, of any length | a few words read |
//! | memory | 17 bytes an entry besides the value, and a few kilobytes for each occupied heap |
//!
//! # Guarantees
//!
//! - **Never early.** A call with time `to` returns only what is due at `to` or before, also if an earlier call named a
//!   later time: a wall clock that is stepped back makes nothing early.
//! - **In order.** Everything that can come out comes out by (due, tie).
//! - **Truthful.** A cancel returns `true` exactly if it kept the entry from coming out ([`Handle`] names the one
//!   exception).
//! - **Any time.** Due times and jumps may be any value of `u64`, its last one included.
//!
//! # Driving it
//!
//! The caller provides the time: from a clock, from a test, from a log that is replayed. A driver that sleeps until the
//! next entry is due:
//!
//! ```
//! use duewheel_wheel::{Geometry, Wheel};
//!
//! let mut wheel = Wheel::new(Geometry::default());
//! wheel.insert(90_061_001, 1, "after a day, an hour, a minute, a second and a millisecond");
//!
//! let mut sleeps = 0;
//! while let Some(time) = wheel.next_wakeup() {
//!     // sleep until `time`, then:
//!     if let Some(expired) = wheel.pop_due(time) {
//!         assert_eq!(time, expired.due);
//!     }
//!     sleeps += 1;
//! }
//! assert!(sleeps <= 4);
//! ```
//!
//! A simple ring of the caller's own type and length, driven by an external timer that calls `read` each second:
//!
//! ```
//! use duewheel_wheel::{Geometry, GeometryError, Wheel};
//!
//! struct Ring<T> {
//!     wheel: Wheel<T>,
//!     seconds: u64,
//!     added: u64,
//! }
//!
//! impl<T> Ring<T> {
//!     fn new(slots: usize) -> Result<Self, GeometryError> {
//!         let wheel = Wheel::new(Geometry::new(slots, 1)?); // the unit of time is the second
//!         Ok(Self { wheel, seconds: 0, added: 0 })
//!     }
//!
//!     fn add(&mut self, delay: u64, value: T) {
//!         self.wheel.insert(self.seconds + delay, self.added, value);
//!         self.added += 1;
//!     }
//!
//!     /// Moves the pointer one slot, and gives what is due there in this turn.
//!     fn read(&mut self) -> Vec<T> {
//!         self.seconds += 1;
//!         let mut due = Vec::new();
//!         self.wheel.expire(self.seconds, |_due, _tie, value| due.push(value));
//!         due
//!     }
//! }
//!
//! let mut ring = Ring::new(60)?;
//! ring.add(2, "soon");
//! ring.add(62, "a turn later, on the same slot");
//! assert_eq!(ring.wheel.tasks_on_slot(2), 2);
//! let due: Vec<_> = (1..=62).map(|_| ring.read()).collect();
//! assert_eq!(due[1], ["soon"]);
//! assert_eq!(due[61], ["a turn later, on the same slot"]);
//! # Ok::<(), GeometryError>(())
//! ```
//!
//! # Choosing a geometry
//!
//! The default, an hour of seconds, suits times in milliseconds and anything from one entry to tens of millions. A
//! shorter tick sorts fewer entries at once. More slots make a turn longer, so that fewer entries are moved from turn
//! to turn. When a turn begins, its entries are moved, some 8 ns each, and a slot that the pointer reaches is sorted:
//! with many millions of entries in one turn or slot that is a noticeable pause.
//! [`pop_due_within`](Wheel::pop_due_within) does it in pieces.
//!
//! # What is not in here
//!
//! The crate needs `alloc`, and no `std`. It has no clock, no threads, no randomness, no unsafe code and no dependencies.
//! A cancel does not return the value: it is dropped later, and nothing is looked up by its handle. Due times are plain
//! numbers; the caller decides their unit and their zero.

#![cfg_attr(not(test), no_std)]
// Each public function that can fail lists its errors.
#![warn(clippy::missing_errors_doc)]

extern crate alloc;

mod current;
mod geometry;
mod levels;
mod list;
mod liveness;
mod occupancy;
mod sort;
mod wheel;

pub use geometry::{Geometry, GeometryError, MAX_SLOTS, RingPosition};
pub use list::FirstDue;
pub use wheel::{Cut, Expired, Handle, Popped, Waiting, Wheel};

#[cfg(test)]
mod tests;
