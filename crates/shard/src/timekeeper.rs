//! Engine time from readings of a clock.

use duewheel_core::mutant::{self, Mutant};
use duewheel_core::record::BootAnchor;
use duewheel_core::store::Recovered;
use duewheel_core::time::{EngineMs, Now, Partial, WallMs};

use crate::clock::{Clock, ClockSample};

const NS_OF_MS: u64 = 1_000_000;

/// Converts readings of a clock into engine time that continues where the store was left.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timekeeper {
    /// Engine time at `since`, in ns.
    base_ns: u64,
    since_ns: u64,
}

impl Timekeeper {
    /// The time by both clocks at this sample.
    pub fn now(&self, reading: ClockSample) -> Now {
        let engine_ns = self.engine_ns(reading);
        let whole = engine_ns.is_multiple_of(1_000_000) && reading.wall_ns.is_multiple_of(1_000_000);
        let partial = if whole { Partial::Whole } else { Partial::Cut };
        Now { engine: EngineMs(engine_ns / 1_000_000), wall: WallMs(reading.wall_ns / 1_000_000), partial }
    }

    /// Continues where the store was left: downtime counts. On the boot of the anchor it is computed from elapsed time,
    /// otherwise from the wall clock, up to a reading of the store's if it has one. After a failure while running, the
    /// time shown `before` also counts.
    pub fn resume(before: Option<Timekeeper>, recovered: &Recovered, clock: &dyn Clock) -> Self {
        let (left, anchor) = (recovered.clock, recovered.anchor);
        let wall_ns = clock.read().wall_ns;
        // The elapsed time is read after the wall clock: the time in between is counted by neither, rather than by
        // both.
        let reading = ClockSample { wall_ns, ..clock.read() };
        let anchored = anchor.zip(clock.boot());
        if let Some(engine_ns) = anchored
            .and_then(|(anchor, boot)| anchor.engine_ns(boot, reading.elapsed_ns))
            .filter(|_| before.is_none())
        {
            let left_ns = left.map_or(0, |pair| pair.engine.0.saturating_mul(NS_OF_MS));
            return Timekeeper { base_ns: engine_ns.max(left_ns), since_ns: reading.elapsed_ns };
        }
        if let Some(keeper) = before {
            // Elapsed time is more exact than the wall clock, which may have been stepped since.
            let left_ns = left.map_or(0, |pair| pair.engine.0.saturating_mul(1_000_000));
            return Timekeeper {
                base_ns: keeper.engine_ns(reading).max(left_ns),
                since_ns: reading.elapsed_ns,
            };
        }
        let as_of = recovered.as_of.filter(|_| !mutant::is(Mutant::OpenedByWall));
        let wall_ns = as_of.map_or(reading.wall_ns, |as_of| {
            as_of.wall_ns.saturating_add(reading.elapsed_ns.saturating_sub(as_of.elapsed_ns))
        });
        let left = left.map_or(EngineMs(0), |pair| pair.engine_at(WallMs(wall_ns / 1_000_000)));
        // The downtime up to this very instant, with the wall clock's own part of a millisecond. So both clocks tick
        // together, and each read of a delayed message shows the same instant.
        let left_ns = left.0.saturating_mul(1_000_000).saturating_add(wall_ns % 1_000_000);
        Timekeeper { base_ns: left_ns, since_ns: reading.elapsed_ns }
    }

    /// The anchor from which the next owner on this boot continues.
    pub fn anchor(&self, clock: &dyn Clock) -> Option<BootAnchor> {
        let boot = clock.boot()?;
        // The end of the millisecond: a whole one of engine time, and never before the boot.
        let engine = self.base_ns.div_ceil(NS_OF_MS);
        let ahead = engine.checked_mul(NS_OF_MS)? - self.base_ns;
        Some(BootAnchor { boot, engine: EngineMs(engine), elapsed_ns: self.since_ns.checked_add(ahead)? })
    }

    fn engine_ns(&self, reading: ClockSample) -> u64 {
        self.base_ns.saturating_add(reading.elapsed_ns.saturating_sub(self.since_ns))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use duewheel_core::record::{BootId, ClockPair};

    use super::*;

    const MS: u64 = 1_000_000;
    const BOOT: BootId = BootId(7);

    /// A machine's clocks. A pause passes between any two readings, as when the process has to wait for a processor.
    #[derive(Debug)]
    struct Machine {
        boot: Option<BootId>,
        pause_ns: u64,
        now: Mutex<ClockSample>,
    }

    impl Machine {
        fn at(elapsed_ns: u64, wall_ns: u64) -> Self {
            Machine { boot: None, pause_ns: 0, now: Mutex::new(ClockSample { elapsed_ns, wall_ns }) }
        }

        fn of(self, boot: BootId) -> Self {
            Machine { boot: Some(boot), ..self }
        }

        /// Lets true time pass, by both clocks.
        fn pass(&self, ns: u64) {
            let mut now = self.now.lock().unwrap();
            now.elapsed_ns += ns;
            now.wall_ns += ns;
        }
    }

    impl Clock for Machine {
        fn read(&self) -> ClockSample {
            self.pass(self.pause_ns);
            let elapsed_ns = self.now.lock().unwrap().elapsed_ns;
            self.pass(self.pause_ns);
            ClockSample { elapsed_ns, wall_ns: self.now.lock().unwrap().wall_ns }
        }

        fn boot(&self) -> Option<BootId> {
            self.boot
        }
    }

    fn pair(engine: u64, wall: u64) -> Option<ClockPair> {
        Some(ClockPair { engine: EngineMs(engine), wall: WallMs(wall) })
    }

    fn left(clock: Option<ClockPair>, anchor: Option<BootAnchor>) -> Recovered {
        Recovered { clock, anchor, ..Recovered::default() }
    }

    fn shown(keeper: &Timekeeper, clock: &Machine) -> EngineMs {
        keeper.now(clock.read()).engine
    }

    #[test]
    fn engine_time_ignores_machine_uptime() {
        // Story: the first open compared with a keeper that had not been set, which showed the machine's uptime. On a
        // host that was up for longer than the folder was old, every delay would have ended at once; on any other, each
        // restart gained the time between two readings, and messages came some ms early. Found by the kill -9 test.
        let up_for_years = Machine::at(u64::from(u32::MAX) * 1_000 * MS, 70_000 * MS);
        let new = Timekeeper::resume(None, &left(None, None), &up_for_years);
        assert_eq!(shown(&new, &up_for_years), EngineMs(0));
        let again = Timekeeper::resume(None, &left(pair(500, 60_000), None), &up_for_years);
        assert_eq!(shown(&again, &up_for_years), EngineMs(10_500), "downtime counts, uptime does not");
    }

    #[test]
    fn reopening_counts_elapsed_time_only() {
        let at = |ms: u64| Machine::at(ms * MS, 50_000 * MS).of(BOOT);
        let first = Timekeeper::resume(None, &left(None, None), &at(100));
        let noted = pair(10, 40_000); // stepped by ten seconds since
        let again = Timekeeper::resume(Some(first), &left(noted, first.anchor(&at(100))), &at(400));
        assert_eq!(shown(&again, &at(400)), EngineMs(300));
        assert_eq!(shown(&again, &at(450)), EngineMs(350));
    }

    #[test]
    fn preemption_between_readings_gains_no_time() {
        // Story: elapsed time was read before the wall clock. What passed in between counted as downtime, and again as
        // time that had elapsed since: a process that was preempted there showed messages early by as much.
        for pause_ns in [0, 1, 3 * MS, 70 * MS] {
            let clock = Machine { pause_ns, ..Machine::at(5_000 * MS, 70_000 * MS) };
            let keeper = Timekeeper::resume(None, &left(pair(500, 60_000), None), &clock);
            let shown = shown(&keeper, &clock).0;
            let true_engine = 500 + (clock.now.lock().unwrap().wall_ns / MS - 60_000);
            assert!(shown <= true_engine, "{pause_ns} ns: shows {shown}, and it is {true_engine}");
        }
    }

    #[test]
    fn same_boot_ignores_wall_clock_changes() {
        // Story: downtime was what the wall clock showed. An hour by which it was stepped while the process was down
        // ended every delay of an hour, and a slew that was not noted yet made all of them early.
        let clock = Machine::at(5_000 * MS + 123, 70_000 * MS + 456_789).of(BOOT);
        let keeper = Timekeeper::resume(None, &left(pair(500, 60_000), None), &clock);
        let before = keeper.engine_ns(clock.read());
        let anchor = keeper.anchor(&clock).expect("a boot has an anchor");
        clock.pass(2_000 * MS + 5);
        let noted = pair(before / MS + 1_000, 71_000); // noted a second before the end
        for wall_ns in [0, 70_500 * MS, 72_000 * MS, 3_672_000 * MS] {
            clock.now.lock().unwrap().wall_ns = wall_ns;
            let again = Timekeeper::resume(None, &left(noted, Some(anchor)), &clock);
            assert_eq!(
                again.engine_ns(clock.read()),
                before + 2_000 * MS + 5,
                "to the ns, at wall {wall_ns}"
            );
            assert_eq!(again.anchor(&clock).and_then(|a| a.at(anchor.engine)), Some(anchor), "the same line");
        }
        // Engine time that was shown before does not go back if the anchor gives less.
        let ahead = Timekeeper::resume(None, &left(pair(900_000, 60_000), Some(anchor)), &clock);
        assert_eq!(shown(&ahead, &clock), EngineMs(900_000));
    }

    #[test]
    fn wall_clock_measures_downtime_across_boots() {
        let clock = Machine::at(5_000 * MS, 70_000 * MS).of(BOOT);
        let anchor = Timekeeper::resume(None, &left(pair(500, 70_000), None), &clock).anchor(&clock);
        let noted = pair(700, 70_200);
        let later = |boot| Machine { boot, ..Machine::at(9_000 * MS, 80_200 * MS) };
        for boot in [Some(BootId(8)), None] {
            let again = Timekeeper::resume(None, &left(noted, anchor), &later(boot));
            assert_eq!(shown(&again, &later(boot)), EngineMs(10_700));
        }
        // A clock that is behind the anchor belongs to another boot, whatever its id.
        let behind = Machine::at(4_000 * MS, 80_200 * MS).of(BOOT);
        assert_eq!(
            shown(&Timekeeper::resume(None, &left(noted, anchor), &behind), &behind),
            EngineMs(10_700)
        );
    }

    #[test]
    fn wall_step_during_opening_counts_nothing() {
        // Story: a machine was started with its wall clock two hours behind, and acquired a shard. Its clock was set
        // while the store was opened: two hours counted as time without an owner, and as many of each delay were over.
        let clock = Machine::at(5_000 * MS, 70_000 * MS).of(BOOT);
        let recovered = Recovered { as_of: Some(clock.read()), ..left(pair(500, 60_000), None) };
        clock.pass(300 * MS);
        for wall_ns in [0, 70_300 * MS, 7_270_300 * MS] {
            clock.now.lock().unwrap().wall_ns = wall_ns;
            let keeper = Timekeeper::resume(None, &recovered, &clock);
            assert_eq!(shown(&keeper, &clock), EngineMs(10_800), "at wall {wall_ns}");
        }
    }
}
