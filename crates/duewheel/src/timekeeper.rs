//! Engine time out of readings of a clock.

use duewheel_core::record::ClockPair;
use duewheel_core::time::{EngineMs, Now, Partial, WallMs};

use crate::clock::Reading;

/// Turns readings of a clock into engine time that counts on from where the store was left.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timekeeper {
    /// Engine time at `since`, in ns.
    base_ns: u64,
    since_ns: u64,
}

impl Timekeeper {
    pub(crate) fn now(&self, reading: Reading) -> Now {
        let engine_ns = self.engine_ns(reading);
        let whole = engine_ns.is_multiple_of(1_000_000) && reading.wall_ns.is_multiple_of(1_000_000);
        let partial = if whole { Partial::Whole } else { Partial::Cut };
        Now { engine: EngineMs(engine_ns / 1_000_000), wall: WallMs(reading.wall_ns / 1_000_000), partial }
    }

    /// Goes on from where the store was left, at this reading: downtime counts. After a failure in mid-life, what was
    /// shown `before` counts, too.
    pub(crate) fn resume(before: Option<Timekeeper>, left: Option<ClockPair>, reading: Reading) -> Self {
        let wall = WallMs(reading.wall_ns / 1_000_000);
        if let Some(keeper) = before {
            // Elapsed time is known better than the wall clock, which may have been stepped meanwhile.
            let left_ns = left.map_or(0, |pair| pair.engine.0.saturating_mul(1_000_000));
            return Timekeeper {
                base_ns: keeper.engine_ns(reading).max(left_ns),
                since_ns: reading.elapsed_ns,
            };
        }
        let left = left.map_or(EngineMs(0), |pair| pair.engine_at(wall));
        // The downtime up to this very instant: with the wall clock's own part of a millisecond. So both clocks tick
        // together, and the instant shown for a delayed message is the same at every look.
        let left_ns = left.0.saturating_mul(1_000_000).saturating_add(reading.wall_ns % 1_000_000);
        Timekeeper { base_ns: left_ns, since_ns: reading.elapsed_ns }
    }

    fn engine_ns(&self, reading: Reading) -> u64 {
        self.base_ns.saturating_add(reading.elapsed_ns.saturating_sub(self.since_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn engine_time_begins_where_the_store_was_left_whatever_the_uptime() {
        // Story: the first open compared with a keeper that had not been set, which showed the machine's uptime. On a host
        // that was up for longer than the folder was old, every delay would have ended at once; on any other, each
        // restart gained the time between two readings, and messages came some ms early. Found by the kill -9 test.
        let up_for_years = Reading { elapsed_ns: u64::from(u32::MAX) * 1_000 * MS, wall_ns: 70_000 * MS };
        let new = Timekeeper::resume(None, None, up_for_years);
        assert_eq!(new.now(up_for_years).engine, EngineMs(0));
        let left = ClockPair { engine: EngineMs(500), wall: WallMs(60_000) };
        let again = Timekeeper::resume(None, Some(left), up_for_years);
        assert_eq!(again.now(up_for_years).engine, EngineMs(10_500), "downtime counts, uptime does not");
    }

    #[test]
    fn opened_again_in_mid_life_elapsed_time_counts_and_no_step_of_the_wall_clock() {
        let at = |ms: u64| Reading { elapsed_ns: ms * MS, wall_ns: 50_000 * MS };
        let first = Timekeeper::resume(None, None, at(100));
        let left = ClockPair { engine: EngineMs(10), wall: WallMs(40_000) }; // stepped by ten seconds since
        let again = Timekeeper::resume(Some(first), Some(left), at(400));
        assert_eq!(again.now(at(400)).engine, EngineMs(300));
        assert_eq!(again.now(at(450)).engine, EngineMs(350));
    }
}
