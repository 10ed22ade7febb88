//! The wheel: the ring of the present turn, with the entries before it and after it.
//!
//! ```text
//!              pointer
//!   current       |  ring: the rest of the present turn   |  turns: those to come
//!   ..............|.......................................|..................................> time
//!   in order      |  unordered lists, by slot             |  unordered lists, by turn
//! ```
//!
//! The position of an entry follows from its due time and the pointer alone: at or before the pointer's tick it is in
//! `current`, later in this turn in `ring`, in a later turn in `turns`. The pointer moves only when `current` has
//! nothing left to hand out, and then directly to the next occupied list.
//!
//! The list that the pointer enters is *arriving* until all of it has been moved down or sorted. With a long list that
//! may take several calls ([`Wheel::pop_due_within`]); nothing is handed out before the last of them, because the rest
//! of the list may be due earlier.
//!
//! `reached` may lie behind `now`, as long as no entry has been requested: the pointer follows then.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use crate::current::{Current, EntryRank};
use crate::geometry::{Geometry, RingPosition};
use crate::levels::{Levels, Occupied};
use crate::list::{Chunk, Entry, Pool};
use crate::list::{FirstDue, List};
use crate::liveness::{EntryIndex, Liveness};

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
    /// The latest time that the caller has given.
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
    /// The rest of the list whose range the pointer has entered, and the entries found in it that are due in the
    /// pointer's own tick.
    arriving: List<T>,
    arrived: List<T>,
    /// The rest of the present turn, by slot. The pointer's own slot is in `current`.
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
/// A handle may be kept after its entry has come out or was cancelled; [`Wheel::cancel`] then returns `false`. The
/// limit of that: a handle is an index with a generation of 32 bits. Indexes are used again, eight together each time
/// with the next generation. So a handle that is kept while its eight indexes are used up 2³² times, which takes more
/// than 2³⁴ inserts, may be taken for the handle of the entry that has its index now, and cancel that entry; the wheel
/// itself stays in order. Callers that drop a handle when its entry is done never meet this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    due: u64,
    index: EntryIndex,
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

/// An entry that has come due.
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
    /// The handle for a cancel; it also contains the due time.
    pub handle: Handle,
    /// The caller's rank among entries due at the same time.
    pub tie: u64,
    /// The caller's value.
    pub value: &'a T,
}

/// The result of [`Wheel::pop_due_within`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Popped<T> {
    /// The next entry.
    Entry(Expired<T>),
    /// Nothing is due.
    Nothing,
    /// A crowded slot is not sorted completely yet, and the allowed number of entries was examined. Call again to
    /// continue.
    NotYet,
}

/// The progress of a [`Wheel::cut`]. It belongs to the wheel that it was begun with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    after: EntryRank,
    /// The number of entries still to be examined of the list that contains the position; `None` before that list's
    /// turn.
    left: Option<usize>,
}

impl Cut {
    /// A cut of all entries behind this position in the order of (due, tie).
    #[must_use]
    pub const fn after(due: u64, tie: u64) -> Self {
        Self { after: (due, tie), left: None }
    }

    /// The due time and the tie of its position.
    #[must_use]
    pub const fn place(&self) -> (u64, u64) {
        self.after
    }
}

/// The next position of the pointer.
enum NextPosition {
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
            arriving: List::new(),
            arrived: List::new(),
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
        let slot = self.place(entry, |wheel, entry| {
            wheel.current.push_late(entry, &mut wheel.liveness, &mut wheel.pool);
        });
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
        // The entry may be there instead of in its own list.
        self.arriving.note_cancelled();
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
        if self.current.is_empty() && !self.is_arriving() {
            let target = self.geometry.tick_of(self.now);
            if self.next().is_none_or(|(_, tick)| tick > target) {
                self.move_pointer(target);
            }
        }
    }

    /// Takes out the next entry that is due at `to` or before, in the order of (due, tie).
    ///
    /// `to` is the time now. It may be less than before, like a wall clock that was stepped back: the pointer stays
    /// where it is, and still nothing comes out that is due after `to`.
    #[inline]
    pub fn pop_due(&mut self, to: u64) -> Option<Expired<T>> {
        let mut looks = usize::MAX;
        match self.pop_due_within(to, &mut looks) {
            Popped::Entry(expired) => Some(expired),
            Popped::Nothing | Popped::NotYet => None,
        }
    }

    /// Takes out the next entry like [`pop_due`](Self::pop_due), for a caller that a crowded slot must not delay: it
    /// examines at most `looks` entries that are not handed out yet, and some thousands beyond that, and subtracts them
    /// from `looks`.
    ///
    /// ```
    /// use duewheel_wheel::{Geometry, Popped, Wheel};
    ///
    /// let mut wheel = Wheel::new(Geometry::default());
    /// for id in 0..100_000 {
    ///     wheel.insert(60_000, id, id);
    /// }
    /// let mut calls = 0;
    /// while wheel.pop_due_within(60_000, &mut 1_000) == Popped::NotYet {
    ///     calls += 1; // look at something else, and ask again
    /// }
    /// assert!(calls > 10);
    /// ```
    #[inline]
    pub fn pop_due_within(&mut self, to: u64, looks: &mut usize) -> Popped<T> {
        self.now = self.now.max(to);
        loop {
            if self.is_arriving() && !self.arrive(looks) {
                return Popped::NotYet;
            }
            if let Some(Entry { due, tie, value, .. }) = self.current.pop(to, &mut self.liveness) {
                // The next entry is mostly due in the pointer's own tick, and then needs no division.
                let slot =
                    if due < self.reached_start { self.geometry.slot_of(due) } else { self.reached_slot };
                self.one_less(slot);
                return Popped::Entry(Expired { due, tie, value });
            }
            if !self.reach_next(self.geometry.tick_of(to)) {
                return Popped::Nothing;
            }
        }
    }

    /// Takes out everything that is due at `to` or before, in the order of (due, tie), and returns how many.
    ///
    /// `each` is given the due time, the tie and the value. The effect is that of [`pop_due`](Self::pop_due) called
    /// until it returns nothing; if `each` panics, the entries that it was not given stay in the wheel.
    #[inline]
    pub fn expire(&mut self, to: u64, mut each: impl FnMut(u64, u64, T)) -> usize {
        let mut count = 0;
        while let Some(Expired { due, tie, value }) = self.pop_due(to) {
            each(due, tie, value);
            count += 1;
        }
        count
    }

    /// The time of the next look: no entry is due before it. `None` if the wheel is empty.
    ///
    /// This is the exact due time of the next entry if the pointer has reached its slot, and otherwise the start of the
    /// next occupied slot, block of 64 slots, or turn. After a [`pop_due`](Self::pop_due) that found nothing it lies in
    /// the future of that call. A driver that sleeps until then, calls `pop_due` and asks again arrives at the entry in
    /// a handful of steps, at its exact time. Reads a few words.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<u64> {
        if self.is_arriving() {
            return self.current.first_due().or(Some(u64::MAX)).map(|due| due.min(self.reached_start));
        }
        self.current.first_due().or_else(|| Some(self.geometry.start_of_tick(self.next()?.1)))
    }

    /// The exact due time of the next entry. Reads one slot if the pointer has not reached it yet.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        let first_of = |list: &List<T>| {
            list.iter().filter(|entry| self.liveness.is_live(entry.index)).map(|entry| entry.due).min()
        };
        let reached = self.current.first_due();
        if reached.is_some() && !self.is_arriving() {
            return reached;
        }
        let ahead = self.next().and_then(|(next, _)| match next {
            NextPosition::Slots(at) => first_of(self.ring.list(at)),
            NextPosition::Turns(at) => first_of(self.turns.list(at)),
        });
        [reached, first_of(&self.arriving), first_of(&self.arrived), ahead].into_iter().flatten().min()
    }

    /// The exact due time of the next entry like [`next_due`](Self::next_due), for a caller that a crowded slot must
    /// not delay: it examines about `looks` entries in each of at most three lists, and subtracts them from `looks`.
    /// Results are kept, so that repeated calls come to an end.
    ///
    /// ```
    /// use duewheel_wheel::{FirstDue, Geometry, Wheel};
    ///
    /// let mut wheel = Wheel::new(Geometry::default());
    /// for id in 0..100_000 {
    ///     wheel.insert(60_000 + id % 1_000, id, id);
    /// }
    /// let mut looks = 1_000;
    /// assert_eq!(wheel.next_due_within(&mut looks), FirstDue::At(60_000));
    /// assert!(looks > 500, "what lies far behind is not looked at");
    /// ```
    #[must_use]
    pub fn next_due_within(&mut self, looks: &mut usize) -> FirstDue {
        let reached = self.current.first_due();
        if reached.is_some() && !self.is_arriving() {
            return reached.into();
        }
        let next = self.next().map(|(next, _)| next);
        let liveness = &self.liveness;
        let ahead = next.map(|next| match next {
            NextPosition::Slots(at) => self.ring.list_mut(at),
            NextPosition::Turns(at) => self.turns.list_mut(at),
        });
        let (mut first, most) = (reached, (*looks).max(1));
        for list in [&mut self.arriving, &mut self.arrived].into_iter().chain(ahead) {
            // Each list has a budget of its own, whatever the others use.
            let mut left = most;
            let found = list.first_due(liveness, &mut left);
            *looks = looks.saturating_sub(most - left);
            match found {
                FirstDue::At(due) => first = Some(first.map_or(due, |first| first.min(due))),
                FirstDue::Nothing => {}
                FirstDue::NotYet => return FirstDue::NotYet,
            }
        }
        first.into()
    }

    /// The number of entries in the wheel; cancelled ones do not count.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the wheel has no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of entries on a slot, whatever their round, overdue ones included. The count is kept up to date, so
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

    /// The position of an entry that is due `delay` ticks from now.
    ///
    /// ```
    /// use duewheel_wheel::{Geometry, RingPosition, Wheel};
    ///
    /// let wheel: Wheel<()> = Wheel::starting_at(Geometry::new(3600, 1)?, 1);
    /// assert_eq!(wheel.place_after(3610), RingPosition { slot: 11, round: 1 });
    /// # Ok::<(), duewheel_wheel::GeometryError>(())
    /// ```
    #[must_use]
    pub const fn place_after(&self, delay: u64) -> RingPosition {
        self.geometry.place_after(self.geometry.tick_of(self.now), delay)
    }

    /// The position of an entry that is due at `due`. An overdue time has round 0.
    #[must_use]
    pub const fn place_at(&self, due: u64) -> RingPosition {
        let from = self.geometry.tick_of(self.now);
        match self.geometry.tick_of(due).checked_sub(from) {
            Some(delay) => self.geometry.place_after(from, delay),
            None => RingPosition { slot: self.geometry.slot_of(due), round: 0 },
        }
    }

    /// All entries in the wheel, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = Waiting<'_, T>> {
        let reached = self.current.iter().chain(self.arriving.iter()).chain(self.arrived.iter());
        reached.chain(self.ring.iter()).chain(self.turns.iter()).filter_map(|entry| self.waiting(entry))
    }

    /// About one of every `stride` entries, wherever they are: for an estimate that reads few of them. All of them for
    /// a stride of 1.
    ///
    /// # Panics
    ///
    /// If `stride` is 0.
    pub fn sample(&self, stride: usize) -> impl Iterator<Item = Waiting<'_, T>> {
        let reached = self.current.sample(stride).chain(self.arriving.sample(0, stride));
        let reached = reached.chain(self.arrived.sample(0, stride));
        let ahead = self.ring.sample(stride).chain(self.turns.sample(stride));
        reached.chain(ahead).filter_map(|entry| self.waiting(entry))
    }

    fn waiting<'a>(&self, entry: Entry<&'a T>) -> Option<Waiting<'a, T>> {
        let generation = self.liveness.generation(entry.index)?;
        let handle = Handle { due: entry.due, index: entry.index, generation };
        Some(Waiting { handle, tie: entry.tie, value: entry.value })
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

    /// Continues a cut: takes out the entries behind its position, the latest lists first, and examines about `most`
    /// entries and at most some thousands beyond that. Returns whether it has to be continued.
    ///
    /// Entries that are inserted or moved down while a cut continues may stay, although they are behind the position.
    ///
    /// ```
    /// use duewheel_wheel::{Cut, Geometry, Wheel};
    ///
    /// let mut wheel = Wheel::new(Geometry::default());
    /// for id in 0..10_000 {
    ///     wheel.insert(1_000 * id, id, id);
    /// }
    /// let (mut cut, mut gone) = (Cut::after(2_499_000, u64::MAX), Vec::new());
    /// while wheel.cut(&mut cut, 100, |id| gone.push(id)) {}
    /// assert_eq!((wheel.len(), gone.len()), (2_500, 7_500));
    /// assert!(gone.iter().all(|id| *id >= 2_500));
    /// ```
    pub fn cut(&mut self, cut: &mut Cut, most: usize, mut each: impl FnMut(T)) -> bool {
        let mut looks = most;
        let tick = self.geometry.tick_of(cut.after.0);
        let turn = self.geometry.turn_of_tick(tick);
        // Lists whose entries are all behind the position.
        while looks > 0
            && let Some(at) = self.turns.last(self.turn).filter(|at| at.first > turn)
            && let Some(chunk) = self.turns.take_chunk(at)
        {
            self.cut_chunk(chunk, None, &mut looks, &mut each);
        }
        let slot = if tick < self.turn_start { Some(0) } else { self.slot_in_turn(tick) };
        while looks > 0
            && let Some(at) = self.ring.last(self.reached_slot as u64)
            && slot.is_some_and(|slot| at.first > slot as u64)
            && let Some(chunk) = self.ring.take_chunk(at)
        {
            self.cut_chunk(chunk, None, &mut looks, &mut each);
        }
        let more = looks == 0 || self.cut_boundary(cut, tick, &mut looks, &mut each);
        if self.len == 0 {
            self.nothing_left();
        }
        more && self.len > 0
    }

    /// Continues with the list that contains the position of a cut: as many entries as it had at first, or as many
    /// parts.
    fn cut_boundary(
        &mut self,
        cut: &mut Cut,
        tick: u64,
        looks: &mut usize,
        each: &mut impl FnMut(T),
    ) -> bool {
        if tick <= self.reached {
            // The rest of a list that the pointer has reached since is in parts now.
            let left = cut.left.get_or_insert(self.current.parts());
            *left = (*left).min(self.current.parts());
            while *looks > 0 && *left > 0 {
                *left -= 1;
                let (mut out, liveness) = (Vec::new(), &mut self.liveness);
                let looked = self.current.cut(*left, cut.after, liveness, |entry| out.push(entry));
                *looks = looks.saturating_sub(looked);
                out.into_iter().for_each(|entry| self.take_out(entry, each));
            }
            return *left > 0;
        }
        let slot = self.slot_in_turn(tick);
        loop {
            let (levels, number, present) = match slot {
                Some(slot) => (&mut self.ring, slot as u64, self.reached_slot as u64),
                None => (&mut self.turns, self.geometry.turn_of_tick(tick), self.turn),
            };
            let Some(at) = levels.list_of(number, present) else { return false };
            let left = cut.left.get_or_insert(levels.list(at).len());
            if *left == 0 || *looks == 0 {
                return *left > 0;
            }
            let Some(chunk) = levels.take_chunk(at) else { return false };
            *left = left.saturating_sub(chunk.len());
            self.cut_chunk(chunk, Some(cut.after), looks, each);
        }
    }

    /// Takes out the entries behind a rank, or all, and puts the rest back behind the other entries of its list.
    fn cut_chunk(
        &mut self,
        mut chunk: Chunk<T>,
        after: Option<EntryRank>,
        looks: &mut usize,
        each: &mut impl FnMut(T),
    ) {
        *looks = looks.saturating_sub(chunk.len());
        chunk.drain(|entry| {
            if after.is_some_and(|after| entry.key() <= after) && self.liveness.is_live(entry.index) {
                self.place(entry, |wheel, entry| wheel.arrived.push(entry, &mut wheel.pool));
            } else {
                self.take_out(entry, each);
            }
        });
        self.pool.put(chunk);
    }

    fn take_out(&mut self, entry: Entry<T>, each: &mut impl FnMut(T)) {
        if self.liveness.release(entry.index) {
            self.count_out(self.geometry.slot_of(entry.due));
            each(entry.value);
        }
    }

    /// Removes all entries. The time stays, and earlier handles are refused.
    pub fn clear(&mut self) {
        self.forget_all();
        self.on_slot.fill(0);
        self.len = 0;
    }

    #[inline]
    fn one_less(&mut self, slot: usize) {
        self.count_out(slot);
        if self.len == 0 {
            self.nothing_left();
        }
    }

    #[inline]
    fn count_out(&mut self, slot: usize) {
        // Saturating, because a handle that is taken for another one (see `Handle`) names the wrong slot.
        self.on_slot[slot] = self.on_slot[slot].saturating_sub(1);
        self.len -= 1;
    }

    /// The slot of a tick that is not before `reached`, if it belongs to the present turn.
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

    /// The next list after the pointer, and its first tick. A list that is not empty has a live entry.
    fn next(&self) -> Option<(NextPosition, u64)> {
        if let Some(at) = self.ring.first(self.reached_slot as u64) {
            return Some((NextPosition::Slots(at), self.turn_start + at.first));
        }
        let at = self.turns.first(self.turn)?;
        Some((NextPosition::Turns(at), self.geometry.first_tick_of_turn(at.first)))
    }

    /// Moves the pointer towards `target`, once everything that it has reached was handed out: to the next occupied
    /// list, which is taken in or moved down, or directly to the target. Returns whether there may be more to hand out.
    fn reach_next(&mut self, target: u64) -> bool {
        if target <= self.reached {
            return false;
        }
        let Some((next, tick)) = self.next().filter(|(_, tick)| *tick <= target) else {
            self.current.release_memory(0, &mut self.pool);
            self.move_pointer(target);
            return false;
        };
        self.move_pointer(tick);
        match next {
            NextPosition::Slots(at) if at.is_single() => self.arrived = self.ring.take(at),
            NextPosition::Slots(at) => self.arriving = self.ring.take(at),
            NextPosition::Turns(at) => self.arriving = self.turns.take(at),
        }
        true
    }

    #[inline]
    fn is_arriving(&self) -> bool {
        !self.arriving.is_empty() || !self.arrived.is_empty()
    }

    /// Distributes the list whose range the pointer has entered, and sorts the entries that are due in the pointer's
    /// own tick. Returns whether that is done; if not, the allowed number of entries was examined.
    fn arrive(&mut self, looks: &mut usize) -> bool {
        let some_dead = self.arriving.has_dead();
        while *looks > 0
            && let Some(mut chunk) = self.arriving.take_chunk()
        {
            *looks = looks.saturating_sub(chunk.len());
            chunk.drain(|entry| {
                if some_dead && !self.liveness.is_live(entry.index) {
                    self.liveness.release(entry.index);
                } else {
                    self.place(entry, |wheel, entry| wheel.arrived.push(entry, &mut wheel.pool));
                }
            });
            self.pool.put(chunk);
        }
        let start = self.reached_start;
        let last = start.saturating_add(self.geometry.tick() - 1);
        while *looks > 0 && self.arriving.is_empty() && !self.arrived.is_empty() {
            let (liveness, pool) = (&mut self.liveness, &mut self.pool);
            let looked = self.current.load(&mut self.arrived, start, last, liveness, pool);
            *looks = looks.saturating_sub(looked);
        }
        if self.is_arriving() {
            return false;
        }
        // The list's count of cancelled entries is no longer valid.
        (self.arriving, self.arrived) = (List::new(), List::new());
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

    /// Resets the indexes when nothing live is left. Lists without live entries are emptied at once, so nothing else
    /// remains to be done, except when a handle was taken for another one.
    fn nothing_left(&mut self) {
        let nothing = self.current.is_empty() && !self.is_arriving();
        if nothing && self.ring.is_empty() && self.turns.is_empty() {
            self.liveness.release_memory();
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
        (self.arriving, self.arrived) = (List::new(), List::new());
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
