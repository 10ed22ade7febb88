//! Ticks, slots, turns and rounds: all arithmetic on time.
//!
//! ```text
//! time   u64, in the caller's unit          0 ........................................ u64::MAX
//! tick   time / tick length                 |--0--|--1--|--2--| ... |--N-1--|--N--|--N+1--| ...
//! slot   tick % slots                       |  0  |  1  |  2  | ... |  N-1  |  0  |   1   | ...
//! turn   tick / slots                       |--------------- 0 -------------|------ 1 ------ ...
//! ```
//!
//! Every function divides before it multiplies, so none can overflow for any `u64`.

use core::fmt;

/// The largest number of slots of a wheel: 2²⁴. A wheel keeps a count of four bytes for each.
pub const MAX_SLOTS: usize = 1 << 24;

/// The shape of a wheel: the number of slots, and the length of a tick.
///
/// The unit of time is the caller's. The default, 3600 slots and a tick of 1000, is one turn an hour when
/// times are milliseconds. The tick does not limit exactness: a wheel hands out each entry at its exact due
/// time, and the tick only decides how many entries share a slot.
///
/// ```
/// use duewheel_wheel::Geometry;
///
/// let minute = Geometry::new(60, 1)?; // 60 slots; times in seconds
/// assert_eq!((minute.slots(), minute.tick()), (60, 1));
/// assert_eq!(Geometry::default(), Geometry::new(3600, 1000)?);
/// assert!(Geometry::new(0, 1000).is_err());
/// # Ok::<(), duewheel_wheel::GeometryError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    slots: usize,
    tick: u64,
}

impl Geometry {
    /// A ring of `slots` slots whose pointer moves one slot every `tick` units of time.
    ///
    /// # Errors
    ///
    /// [`GeometryError`] if `slots` is zero or more than [`MAX_SLOTS`], or if `tick` is zero.
    pub const fn new(slots: usize, tick: u64) -> Result<Self, GeometryError> {
        if slots == 0 {
            Err(GeometryError::NoSlots)
        } else if slots > MAX_SLOTS {
            Err(GeometryError::TooManySlots)
        } else if tick == 0 {
            Err(GeometryError::NoTick)
        } else {
            Ok(Self { slots, tick })
        }
    }

    /// The number of slots of the ring.
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.slots
    }

    /// The length of one tick, in the caller's unit of time.
    #[must_use]
    pub const fn tick(&self) -> u64 {
        self.tick
    }

    /// The slot of the due time `due`, whatever the round.
    ///
    /// ```
    /// # use duewheel_wheel::Geometry;
    /// assert_eq!(Geometry::default().slot_of(3_611_000), 11);
    /// ```
    #[must_use]
    pub const fn slot_of(&self, due: u64) -> usize {
        self.slot_of_tick(self.tick_of(due))
    }

    pub(crate) const fn tick_of(&self, time: u64) -> u64 {
        time / self.tick
    }

    /// The start of a tick. Valid for ticks that came from [`tick_of`](Self::tick_of), or lie before such a tick: the
    /// product then fits.
    pub(crate) const fn start_of_tick(&self, tick: u64) -> u64 {
        tick * self.tick
    }

    #[expect(clippy::cast_possible_truncation, reason = "a remainder of a usize fits into a usize")]
    pub(crate) const fn slot_of_tick(&self, tick: u64) -> usize {
        (tick % self.slots as u64) as usize
    }

    pub(crate) const fn turn_of_tick(&self, tick: u64) -> u64 {
        tick / self.slots as u64
    }

    /// The first tick of a turn. As for [`start_of_tick`](Self::start_of_tick), valid for turns up to that of an
    /// existing tick.
    pub(crate) const fn first_tick_of_turn(&self, turn: u64) -> u64 {
        turn * self.slots as u64
    }

    /// The place of a tick that is `delay` ticks after `from`.
    pub(crate) const fn place_after(&self, from: u64, delay: u64) -> RingPosition {
        let slots = self.slots as u64;
        // Not (from + delay) % slots: the sum may overflow.
        let slot = self.slot_of_tick(from % slots + delay % slots);
        RingPosition { slot, round: delay.saturating_sub(1) / slots }
    }
}

impl Default for Geometry {
    fn default() -> Self {
        Self { slots: 3600, tick: 1000 }
    }
}

/// A slot of the ring, and how many more turns the pointer makes before the place is due.
///
/// Exactly: the pointer first reaches the slot after 1 to `slots` ticks, and `round` whole turns later the
/// place is due. So a delay of one full turn has round 0, because the pointer stands on the slot now, leaves
/// it, and meets it again for the first time when the place is due. A delay of zero ticks, and anything
/// overdue, has round 0 as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingPosition {
    /// The slot, `0..slots`.
    pub slot: usize,
    /// How many more turns after the pointer first reaches the slot.
    pub round: u64,
}

/// Why a [`Geometry`] was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GeometryError {
    /// A ring needs at least one slot.
    NoSlots,
    /// More than [`MAX_SLOTS`] slots: choose a longer tick instead.
    TooManySlots,
    /// A tick must be at least one unit of time.
    NoTick,
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSlots => write!(f, "a wheel needs at least one slot"),
            Self::TooManySlots => write!(f, "a wheel has at most {MAX_SLOTS} slots; choose a longer tick"),
            Self::NoTick => write!(f, "a tick must last at least one unit of time"),
        }
    }
}

impl core::error::Error for GeometryError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_cannot_turn() {
        assert_eq!(Geometry::new(0, 1), Err(GeometryError::NoSlots));
        assert_eq!(Geometry::new(1, 0), Err(GeometryError::NoTick));
        assert_eq!(Geometry::new(MAX_SLOTS + 1, 1), Err(GeometryError::TooManySlots));
        assert!(Geometry::new(MAX_SLOTS, u64::MAX).is_ok());
        assert!(GeometryError::TooManySlots.to_string().contains("16777216"));
    }

    #[test]
    fn full_turn_has_round_zero() {
        let geometry = Geometry::new(10, 1).unwrap();
        assert_eq!(geometry.place_after(3, 0), RingPosition { slot: 3, round: 0 });
        assert_eq!(geometry.place_after(3, 10), RingPosition { slot: 3, round: 0 });
        assert_eq!(geometry.place_after(3, 11), RingPosition { slot: 4, round: 1 });
        assert_eq!(geometry.place_after(3, 20), RingPosition { slot: 3, round: 1 });
    }

    #[test]
    fn end_of_time_has_place() {
        let geometry = Geometry::new(7, 1).unwrap();
        let expected = RingPosition { slot: geometry.slot_of(u64::MAX), round: (u64::MAX - 1) / 7 };
        assert_eq!(geometry.place_after(0, u64::MAX), expected);
        assert_eq!(geometry.place_after(u64::MAX, u64::MAX).round, expected.round);
    }
}
