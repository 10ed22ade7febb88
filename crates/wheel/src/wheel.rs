//! The wheel: the ring of the present turn, with what comes before it and after it.
//!
//! ```text
//!              pointer
//!   current       |  ring: the rest of the present turn   |  turns: those to come
//!   ..............|.......................................|..................................> time
//!   in order      |  unordered lists, by slot             |  unordered lists, by turn
//! ```
//!
//! Where an entry lies follows from its due time and the pointer alone: at or before the pointer's tick it is
//! in `current`, later in this turn in `ring`, in a later turn in `turns`. The pointer moves only when `current`
//! has nothing left to hand out, and then straight to the next list that holds something.
//!
//! `reached` may lie behind `now`, as long as nothing has been asked for: the pointer follows when it is.

use std::fmt;

use crate::chunk::{Entry, Pool};
use crate::current::Current;
use crate::geometry::{Geometry, Place};
use crate::levels::{Levels, Occupied};
use crate::list::List;
use crate::liveness::{Index, Liveness};

/// A timing wheel over values of type `T`: see the [crate's introduction](crate).
///
/// Times are plain `u64` in a unit of the caller's choice, and nothing in here reads a clock.
///
/// ```
/// use duewheel_wheel::{Geometry, Wheel};
///
/// let mut wheel = Wheel::new(Geometry::default()); // 3600 slots of 1000 ms
/// wheel.insert(1_500, 1, "first");
/// let second = wheel.insert(1_500, 2, "second");
/// wheel.insert(48 * 3_600_000, 3, "in two days");
///
/// assert!(wheel.pop_due(1_499).is_none()); // never early, though the slot has been reached
/// assert!(wheel.cancel(second));
/// assert_eq!(wheel.pop_due(1_500).map(|expired| expired.value), Some("first"));
/// assert!(wheel.pop_due(1_500).is_none());
/// assert!(!wheel.cancel(second)); // it is gone, and says so
/// assert_eq!(wheel.next_due(), Some(48 * 3_600_000));
/// ```
#[derive(Clone)]
pub struct Wheel<T> {
    geometry: Geometry,
    /// The latest time the caller has told us.
    now: u64,
    /// The tick of the pointer; at most the tick of `now`.
    reached: u64,
    /// The start of that tick.
    reached_start: u64,
    /// The turn of `reached`, and that turn's first tick.
    turn: u64,
    turn_start: u64,
    /// The slot of `reached`.
    reached_slot: usize,

    current: Current<T>,
    /// By slot. The pointer's own slot is in `current`.
    ring: Levels<T>,
    /// Later turns, by turn.
    turns: Levels<T>,

    pool: Pool<T>,
    liveness: Liveness,
    len: usize,
    /// Live entries of each slot, whatever their round, overdue ones included.
    on_slot: Box<[u32]>,
}

/// Identifies one entry for a cancel: 16 bytes that may be copied. It belongs to the wheel that returned it.
///
/// A handle may be kept after its entry has come out or was cancelled; [`Wheel::cancel`] then says `false`. The
/// one limit: a handle is an index with a generation of 32 bits. Indexes are used again, eight together each
/// time with the next generation. So a handle that is kept while its eight indexes are used up 2³² times, which
/// takes more than 2³⁴ inserts, may then be taken for that of the entry which has its index just
/// now, and cancel that one; the wheel itself stays in order. Callers that drop a handle when its entry is
/// done never meet this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    due: u64,
    index: Index,
    generation: u32,
}

impl Handle {
    /// The due time the entry was inserted with.
    #[must_use]
    pub const fn due(&self) -> u64 {
        self.due
    }

    #[cfg(test)]
    pub(crate) fn with_due(self, due: u64) -> Self {
        Self { due, ..self }
    }
}

/// An entry whose time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Expired<T> {
    /// When it was due.
    pub due: u64,
    /// The caller's rank among entries due at the same time.
    pub tie: u64,
    /// The caller's value.
    pub value: T,
}

/// An entry that is still in the wheel, as [`Wheel::iter`] shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waiting<'a, T> {
    /// Cancels the entry; also says when it is due.
    pub handle: Handle,
    /// The caller's rank among entries due at the same time.
    pub tie: u64,
    /// The caller's value.
    pub value: &'a T,
}

/// Where the pointer goes next.
enum Next {
    Slots(Occupied),
    Turns(Occupied),
}

impl<T> Wheel<T> {
    /// An empty wheel at time 0.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        Self::starting_at(geometry, 0)
    }

    /// An empty wheel at time `now`.
    #[must_use]
    pub fn starting_at(geometry: Geometry, now: u64) -> Self {
        let mut wheel = Self {
            geometry,
            now,
            reached: 0,
            reached_start: 0,
            turn: 0,
            turn_start: 0,
            reached_slot: 0,
            current: Current::new(),
            ring: Levels::new(geometry.slots() as u64 - 1),
            turns: Levels::new(geometry.turn_of_tick(geometry.tick_of(u64::MAX))),
            pool: Pool::new(),
            liveness: Liveness::new(),
            len: 0,
            on_slot: vec![0; geometry.slots()].into_boxed_slice(),
        };
        wheel.move_pointer(geometry.tick_of(now));
        wheel
    }

    /// Adds a value that is due at `due`. Never fails: an overdue value comes out next.
    ///
    /// `tie` ranks entries due at the same time, so it should differ among those; a message's id does. The
    /// order of entries that agree in both is not specified.
    ///
    /// # Panics
    ///
    /// If the wheel runs out of indexes, which cannot happen while it holds fewer than 2²⁹ entries.
    #[inline]
    pub fn insert(&mut self, due: u64, tie: u64, value: T) -> Handle {
        let (index, generation) = self.liveness.admit();
        let entry = Entry { due, tie, value, index };
        let slot = self.place(entry, |wheel, entry| wheel.current.push_late(entry));
        self.on_slot[slot] += 1;
        self.len += 1;
        Handle { due, index, generation }
    }

    /// Removes an entry that has not come out yet. Returns whether it was still there.
    ///
    /// Constant time on average. The value is dropped later, when its list is compacted or its turn comes. At most
    /// about a quarter of a list are cancelled entries, so memory is freed as entries are cancelled, a few kilobytes at
    /// a time.
    #[inline]
    pub fn cancel(&mut self, handle: Handle) -> bool {
        if !self.liveness.cancel(handle.index, handle.generation) {
            return false;
        }
        let tick = self.geometry.tick_of(handle.due);
        let slot = if tick <= self.reached {
            self.current.entry_cancelled(&mut self.liveness, &mut self.pool);
            self.geometry.slot_of_tick(tick)
        } else if let Some(slot) = self.slot_in_turn(tick) {
            let present = self.reached_slot as u64;
            self.ring.entry_cancelled(slot as u64, present, &mut self.liveness, &mut self.pool);
            slot
        } else {
            let turn = self.geometry.turn_of_tick(tick);
            self.turns.entry_cancelled(turn, self.turn, &mut self.liveness, &mut self.pool);
            self.geometry.slot_of_tick(tick)
        };
        self.one_less(slot);
        true
    }

    /// Whether the handle's entry is still in the wheel.
    #[must_use]
    pub fn contains(&self, handle: Handle) -> bool {
        self.liveness.holds(handle.index, handle.generation)
    }

    /// Sets the time without taking anything out. A time before the present one is ignored.
    pub fn advance(&mut self, to: u64) {
        self.now = self.now.max(to);
        if self.current.is_empty() {
            let target = self.geometry.tick_of(self.now);
            if self.next().is_none_or(|(_, tick)| tick > target) {
                self.move_pointer(target);
            }
        }
    }

    /// Takes out the next entry that is due at `to` or before, in the order of (due, tie).
    ///
    /// `to` is the time now. It may be less than before, as a wall clock that was stepped back is: the pointer
    /// stays where it is, and still nothing comes out that is due after `to`.
    #[inline]
    pub fn pop_due(&mut self, to: u64) -> Option<Expired<T>> {
        self.now = self.now.max(to);
        loop {
            if let Some(Entry { due, tie, value, .. }) = self.current.pop(to, &mut self.liveness) {
                // What comes out is mostly due in the pointer's own tick, and then needs no division.
                let slot =
                    if due < self.reached_start { self.geometry.slot_of(due) } else { self.reached_slot };
                self.one_less(slot);
                return Some(Expired { due, tie, value });
            }
            if !self.reach_next(self.geometry.tick_of(to)) {
                return None;
            }
        }
    }

    /// Takes out everything that is due at `to` or before, in the order of (due, tie), and returns how many.
    ///
    /// `each` is given the due time, the tie and the value. As [`pop_due`](Self::pop_due) called until it has
    /// nothing more; if `each` panics, what it was not given stays in the wheel.
    #[inline]
    pub fn expire(&mut self, to: u64, mut each: impl FnMut(u64, u64, T)) -> usize {
        let mut count = 0;
        while let Some(Expired { due, tie, value }) = self.pop_due(to) {
            each(due, tie, value);
            count += 1;
        }
        count
    }

    /// The time at which to look again: no entry is due before it. `None` if the wheel is empty.
    ///
    /// This is the exact due time of the next entry if the pointer has reached its slot, and otherwise the start of the
    /// next occupied slot, block of 64 slots, or turn. After a [`pop_due`](Self::pop_due) that found nothing it lies in
    /// the future of that call. A driver that sleeps until then, calls `pop_due` and asks again arrives at the entry in
    /// a handful of steps, at its exact time. Reads a few words.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<u64> {
        self.current.first_due().or_else(|| Some(self.geometry.start_of_tick(self.next()?.1)))
    }

    /// The exact due time of the next entry. Reads one slot if the pointer has not reached it yet.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        self.current.first_due().or_else(|| {
            let list = match self.next()?.0 {
                Next::Slots(at) => self.ring.list(at),
                Next::Turns(at) => self.turns.list(at),
            };
            list.iter().filter(|entry| self.liveness.is_live(entry.index)).map(|entry| entry.due).min()
        })
    }

    /// How many entries are in the wheel; cancelled ones do not count.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is in the wheel.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many entries lie on a slot, whatever their round, overdue ones included. A count that is kept, so
    /// nothing is scanned. Zero for a slot that the ring does not have.
    #[must_use]
    pub fn tasks_on_slot(&self, slot: usize) -> usize {
        self.on_slot.get(slot).map_or(0, |count| *count as usize)
    }

    /// [`tasks_on_slot`](Self::tasks_on_slot) for each slot from 0.
    pub fn slot_counts(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.on_slot.iter().map(|count| *count as usize)
    }

    /// The slot of the time now.
    #[must_use]
    pub fn pointer(&self) -> usize {
        self.geometry.slot_of(self.now)
    }

    /// The latest time that this wheel was given.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// The shape of the ring.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The place of something due `delay` ticks from now.
    ///
    /// ```
    /// use duewheel_wheel::{Geometry, Place, Wheel};
    ///
    /// let wheel: Wheel<()> = Wheel::starting_at(Geometry::new(3600, 1)?, 1);
    /// assert_eq!(wheel.place_after(3610), Place { slot: 11, round: 1 });
    /// # Ok::<(), duewheel_wheel::GeometryError>(())
    /// ```
    #[must_use]
    pub const fn place_after(&self, delay: u64) -> Place {
        self.geometry.place_after(self.geometry.tick_of(self.now), delay)
    }

    /// The place of something due at `due`. An overdue time has round 0.
    #[must_use]
    pub const fn place_at(&self, due: u64) -> Place {
        let from = self.geometry.tick_of(self.now);
        match self.geometry.tick_of(due).checked_sub(from) {
            Some(delay) => self.geometry.place_after(from, delay),
            None => Place { slot: self.geometry.slot_of(due), round: 0 },
        }
    }

    /// Everything in the wheel, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = Waiting<'_, T>> {
        self.current.iter().chain(self.ring.iter()).chain(self.turns.iter()).filter_map(|entry| {
            let generation = self.liveness.generation(entry.index)?;
            let handle = Handle { due: entry.due, index: entry.index, generation };
            Some(Waiting { handle, tie: entry.tie, value: entry.value })
        })
    }

    /// Cancels every entry for which `keep` returns `false`. Visits all of them.
    pub fn retain(&mut self, mut keep: impl FnMut(Waiting<'_, T>) -> bool) {
        let unwanted: Vec<Handle> = self
            .iter()
            .filter_map(|waiting| {
                let handle = waiting.handle;
                (!keep(waiting)).then_some(handle)
            })
            .collect();
        for handle in unwanted {
            self.cancel(handle);
        }
    }

    /// Removes everything. Time stays, and handles given out before are refused.
    pub fn clear(&mut self) {
        self.forget_all();
        self.on_slot.fill(0);
        self.len = 0;
    }

    #[inline]
    fn one_less(&mut self, slot: usize) {
        // Saturating, because a handle that is taken for another one's (see `Handle`) names the wrong slot.
        self.on_slot[slot] = self.on_slot[slot].saturating_sub(1);
        self.len -= 1;
        if self.len == 0 {
            self.nothing_left();
        }
    }

    /// The slot of a tick that is not before `reached`, if it is of the present turn.
    #[inline]
    fn slot_in_turn(&self, tick: u64) -> Option<usize> {
        usize::try_from(tick - self.turn_start).ok().filter(|slot| *slot < self.geometry.slots())
    }

    /// Puts an entry into its list, and returns the slot. An entry that is not ahead of the pointer is passed to
    /// `reached`.
    #[inline]
    fn place(&mut self, entry: Entry<T>, reached: impl FnOnce(&mut Self, Entry<T>)) -> usize {
        let tick = self.geometry.tick_of(entry.due);
        if tick <= self.reached {
            reached(self, entry);
            self.geometry.slot_of_tick(tick)
        } else if let Some(slot) = self.slot_in_turn(tick) {
            self.ring.push(slot as u64, self.reached_slot as u64, entry, &mut self.pool);
            slot
        } else {
            self.turns.push(self.geometry.turn_of_tick(tick), self.turn, entry, &mut self.pool);
            self.geometry.slot_of_tick(tick)
        }
    }

    /// The next list after the pointer, and its first tick. A list that holds something holds something live.
    fn next(&self) -> Option<(Next, u64)> {
        if let Some(at) = self.ring.first(self.reached_slot as u64) {
            return Some((Next::Slots(at), self.turn_start + at.first));
        }
        let at = self.turns.first(self.turn)?;
        Some((Next::Turns(at), self.geometry.first_tick_of_turn(at.first)))
    }

    /// Moves the pointer towards `target`, once everything that it has reached was handed out: to the next list that
    /// holds something, which is taken in or moved down, or directly to the target. Returns whether there may be more
    /// to hand out.
    fn reach_next(&mut self, target: u64) -> bool {
        if target <= self.reached {
            return false;
        }
        let Some((next, tick)) = self.next().filter(|(_, tick)| *tick <= target) else {
            self.current.give_back_room(0, &mut self.pool);
            self.move_pointer(target);
            return false;
        };
        self.move_pointer(tick);
        let slot = match next {
            Next::Slots(at) if at.is_single() => self.ring.take(at),
            Next::Slots(at) => {
                let list = self.ring.take(at);
                self.move_down(list)
            }
            Next::Turns(at) => {
                let list = self.turns.take(at);
                self.move_down(list)
            }
        };
        if !slot.is_empty() {
            let start = self.reached_start;
            let last = start.saturating_add(self.geometry.tick() - 1);
            self.current.load(slot, start, last, &mut self.liveness, &mut self.pool);
        }
        true
    }

    fn move_pointer(&mut self, tick: u64) {
        if tick > self.reached {
            self.reached = tick;
            self.reached_start = self.geometry.start_of_tick(tick);
            self.turn = self.geometry.turn_of_tick(tick);
            self.turn_start = self.geometry.first_tick_of_turn(self.turn);
            self.reached_slot = self.geometry.slot_of_tick(tick);
        }
    }

    /// Distributes a list whose range the pointer has just entered. What is due in the pointer's own tick is
    /// returned.
    fn move_down(&mut self, mut list: List<T>) -> List<T> {
        let mut slot = List::new();
        let some_dead = list.has_dead();
        while let Some(mut chunk) = list.take_chunk() {
            chunk.drain(|entry| {
                if some_dead && !self.liveness.is_live(entry.index) {
                    self.liveness.release(entry.index);
                } else {
                    self.place(entry, |wheel, entry| {
                        slot.push(entry, &mut wheel.pool);
                    });
                }
            });
            self.pool.put(chunk);
        }
        slot
    }

    /// Resets the indexes when nothing live is left. Lists without anything live are emptied at once, so nothing else
    /// remains to be done; unless a handle was taken for another one's.
    fn nothing_left(&mut self) {
        if self.current.is_empty() && self.ring.is_empty() && self.turns.is_empty() {
            self.liveness.give_back_room();
        } else {
            self.clear();
        }
    }

    #[cfg(test)]
    pub(crate) fn liveness(&self) -> &Liveness {
        &self.liveness
    }

    fn forget_all(&mut self) {
        self.current = Current::new();
        self.pool = Pool::new();
        self.ring.clear();
        self.turns.clear();
        self.liveness.clear();
    }
}

impl<T> fmt::Debug for Wheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wheel")
            .field("geometry", &self.geometry)
            .field("now", &self.now)
            .field("pointer", &self.pointer())
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
