//! Two clocks, two classes of due time, and all rounding.
//!
//! | clock | type | follows | used for |
//! |---|---|---|---|
//! | wall | [`WallMs`] | the calendar; may be stepped | messages scheduled *at* an instant |
//! | engine | [`EngineMs`] | elapsed time, suspend included; never goes back | delays, leases, waits |
//!
//! Rounding rules, all here:
//! * a clock reading is rounded **down** ([`Now`]), so `due <= now` means the instant has really passed;
//! * a delay is counted from the reading rounded **up** ([`Now::after`]), so that less than the delay never
//!   passes between the caller's request and the delivery;
//! * the pair of clocks that a store keeps has the wall clock rounded **up** ([`crate::record::ClockPair`]), so that a
//!   restart gains no time;
//! * a [`std::time::Duration`] or [`std::time::SystemTime`] from a caller is rounded **up** to a millisecond.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::mutant::{self, Mutant};

/// Milliseconds since the Unix epoch by the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WallMs(pub u64);

/// Milliseconds of engine time: elapsed time since the data folder was created, downtime included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EngineMs(pub u64);

impl WallMs {
    /// The instant of a [`SystemTime`], rounded up to a whole millisecond; an instant before 1970 is 1970.
    pub fn from_system_time_up(t: SystemTime) -> Self {
        match t.duration_since(UNIX_EPOCH) {
            Ok(d) => WallMs(ceil_ms(d)),
            Err(_) => WallMs(0),
        }
    }

    /// This instant as a [`SystemTime`].
    pub fn to_system_time(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.0)
    }
}

/// A duration in whole milliseconds, rounded up; saturates at `u64::MAX`.
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(duewheel_core::time::ceil_ms(Duration::from_micros(1_001)), 2);
/// assert_eq!(duewheel_core::time::ceil_ms(Duration::from_millis(2)), 2);
/// ```
pub fn ceil_ms(d: Duration) -> u64 {
    u64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The clock that a due time follows. Each class is a separate sequence, in memory and in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// An instant of the wall clock.
    At,
    /// A point of engine time.
    After,
}

/// When a message may be delivered, by the clock that it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Due {
    /// At this instant of the wall clock; a stepped clock moves it.
    At(WallMs),
    /// At this point of engine time; a stepped clock does not move it.
    After(EngineMs),
}

impl Due {
    /// The clock class.
    pub fn class(self) -> Class {
        match self {
            Due::At(_) => Class::At,
            Due::After(_) => Class::After,
        }
    }

    /// The number on its own clock.
    pub fn raw(self) -> u64 {
        match self {
            Due::At(t) => t.0,
            Due::After(t) => t.0,
        }
    }

    /// This time and `ms`, on the same clock; saturates.
    #[must_use]
    pub fn plus(self, ms: u64) -> Self {
        Due::from_raw(self.class(), self.raw().saturating_add(ms))
    }

    /// Rebuilds a due time from class and number.
    pub fn from_raw(class: Class, raw: u64) -> Self {
        match class {
            Class::At => Due::At(WallMs(raw)),
            Class::After => Due::After(EngineMs(raw)),
        }
    }
}

/// A sample of both clocks, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSample {
    /// Elapsed time since a fixed moment of this process's life, including suspend.
    pub elapsed_ns: u64,
    /// Time since the Unix epoch.
    pub wall_ns: u64,
}

/// A reading of both clocks, rounded down to whole milliseconds.
///
/// This argument is the only way in which time enters the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Elapsed time.
    pub engine: EngineMs,
    /// Wall clock.
    pub wall: WallMs,
    /// Whether the exact times lie between these and the next millisecond.
    pub partial: Partial,
}

/// Whether a reading was rounded: the base of a delay is then the next millisecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Partial {
    /// The reading is a whole millisecond, as virtual time usually is.
    #[default]
    Whole,
    /// Part of a millisecond was cut off.
    Cut,
}

impl Now {
    /// A whole-millisecond reading, as tests and virtual clocks use it.
    pub fn whole(engine: u64, wall: u64) -> Self {
        Now { engine: EngineMs(engine), wall: WallMs(wall), partial: Partial::Whole }
    }

    /// The engine time at which `delay_ms` has certainly passed; `None` if it cannot be represented.
    pub fn after(&self, delay_ms: u64) -> Option<EngineMs> {
        let cut = match self.partial {
            Partial::Cut if delay_ms > 0 && !mutant::is(Mutant::DueRoundedDown) => 1,
            Partial::Cut | Partial::Whole => 0,
        };
        self.engine.0.checked_add(cut)?.checked_add(delay_ms).map(EngineMs)
    }

    /// Engine time, rounded up: for comparisons with a deadline that [`Now::after`] has rounded up.
    pub fn engine_up(&self) -> EngineMs {
        let cut = match self.partial {
            Partial::Cut => 1,
            Partial::Whole => 0,
        };
        EngineMs(self.engine.0.saturating_add(cut))
    }

    /// Whether a message with this due time may be delivered.
    pub fn is_due(&self, due: Due) -> bool {
        match due {
            Due::At(t) => t <= self.wall,
            Due::After(t) => t <= self.engine,
        }
    }

    /// Milliseconds until `due` (0 when it has come).
    pub fn until(&self, due: Due) -> u64 {
        match due {
            Due::At(t) => t.0.saturating_sub(self.wall.0),
            Due::After(t) => t.0.saturating_sub(self.engine.0),
        }
    }

    /// Milliseconds since `due` (0 when it has not come yet).
    pub fn since(&self, due: Due) -> u64 {
        match due {
            Due::At(t) => self.wall.0.saturating_sub(t.0),
            Due::After(t) => self.engine.0.saturating_sub(t.0),
        }
    }

    /// The wall-clock instant of `due`, by the present offset between the clocks.
    pub fn wall_of(&self, due: Due) -> WallMs {
        match due {
            Due::At(t) => t,
            Due::After(t) => self.wall_of_engine(t),
        }
    }

    /// The wall-clock instant of a point of engine time, by the present offset.
    pub fn wall_of_engine(&self, t: EngineMs) -> WallMs {
        if t >= self.engine {
            WallMs(self.wall.0.saturating_add(t.0 - self.engine.0))
        } else {
            WallMs(self.wall.0.saturating_sub(self.engine.0 - t.0))
        }
    }

    /// The engine time at which the wall clock will show `t` if it is not stepped; past instants give a past time.
    pub fn engine_of_wall(&self, t: WallMs) -> EngineMs {
        if t >= self.wall {
            EngineMs(self.engine.0.saturating_add(t.0 - self.wall.0))
        } else {
            EngineMs(self.engine.0.saturating_sub(self.wall.0 - t.0))
        }
    }
}

impl fmt::Display for WallMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms (wall)", self.0)
    }
}

impl fmt::Display for EngineMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms (engine)", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_counts_from_rounded_up_now() {
        // Story: asked at 10.9 ms for 5 ms, due at floor(10.9) + 5 = 15 would be 0.9 ms early for the caller.
        let now = Now { engine: EngineMs(10), wall: WallMs(0), partial: Partial::Cut };
        assert_eq!(now.after(5), Some(EngineMs(16)));
        assert_eq!(now.after(0), Some(EngineMs(10)), "now means now");
        assert_eq!(Now::whole(10, 0).after(5), Some(EngineMs(15)));
        assert_eq!(now.after(u64::MAX), None);
    }

    #[test]
    fn wall_step_moves_only_absolute_times() {
        let before = Now::whole(1_000, 50_000);
        let stepped = Now::whole(1_000, 40_000);
        assert_eq!(before.until(Due::At(WallMs(51_000))), 1_000);
        assert_eq!(stepped.until(Due::At(WallMs(51_000))), 11_000);
        assert_eq!(stepped.until(Due::After(EngineMs(2_000))), 1_000);
        assert_eq!(stepped.wall_of(Due::After(EngineMs(2_000))), WallMs(41_000));
    }
}
