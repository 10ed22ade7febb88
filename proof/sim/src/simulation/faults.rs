//! The faults of a simulated machine, and their times.

use std::panic::{AssertUnwindSafe, catch_unwind};

use duewheel_judge::history::{Fault, Moment};
use duewheel_judge::rng::Rng;
use duewheel_sim_disk::{Denial, Plan, Rates, Survivors, Trouble};

use super::clients::Stage;
use super::style::FaultKind;
use super::{Action, HANDS, MS, Sim};

const SECOND_MS: u64 = 1_000;
const DAY_MS: u64 = 86_400 * SECOND_MS;
const YEAR_2100_MS: u64 = 4_102_444_800_000;
/// How often the gain of the wall clock is recorded while it is slewed.
const SLEW_NOTED_NS: u64 = 50 * MS;

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Down {
    /// It is killed; its written data stays.
    Kill,
    /// The machine loses its power: any part of the unsynced data is lost.
    Power,
}

/// The time of the next fault, on average `mean_ns` after now; `None` if there are no faults (`mean_ns` is 0), or the
/// run has stopped working by then. Both simulations plan their faults with it.
pub(super) fn next_fault(rng: &mut Rng, stage: Stage, now: u64, mean_ns: u64, work_ns: u64) -> Option<u64> {
    if mean_ns == 0 || stage != Stage::Work {
        return None;
    }
    let at = now + rng.below(2 * mean_ns);
    (at < work_ns).then_some(at)
}

impl Sim {
    pub(super) fn plan_fault(&mut self) {
        let (mean_ns, work_ns) = (self.style.fault_ns, self.style.work_ns);
        if let Some(at) = next_fault(&mut self.rng, self.stage, self.now, mean_ns, work_ns) {
            self.at(at, Action::Fault);
        }
    }

    pub(super) fn do_fault(&mut self) {
        self.plan_fault();
        if self.stage != Stage::Work {
            return;
        }
        let Some(kind) = self.rng.pick(&self.style.faults.clone()).copied() else { return };
        match kind {
            FaultKind::Kill => self.strike(Down::Kill),
            FaultKind::PowerLoss => self.strike(Down::Power),
            FaultKind::ClockStep => self.step_clock(),
            FaultKind::ClockForward => {
                let by = if self.rng.percent(50) { 60 * SECOND_MS } else { 3_600 * SECOND_MS };
                self.step_to(self.clock.wall_ms() + by);
            }
            FaultKind::Pause => {
                if self.process.is_some() {
                    let most = if self.rng.percent(70) { 300 } else { 3_000 };
                    self.still_until = self.now + self.rng.range(10, most) * MS;
                    self.facts.pauses += 1;
                    self.at(self.still_until, Action::Resume);
                }
            }
            FaultKind::DiskErrors => {
                if self.armed.is_none()
                    && self.style.faults.contains(&FaultKind::PowerLoss)
                    && self.rng.percent(40)
                {
                    // The loss of a failed sync is visible when the power is lost before the data is written again.
                    self.disk.plan(Plan::Sometimes(Rates { sync: 3, ..Rates::default() }));
                    self.soon(5_000, 200_000, Action::PowerLoss);
                } else if self.armed.is_none() {
                    let mut rate = |often| if self.rng.percent(50) { often } else { 0 };
                    let rates = Rates {
                        write: rate(40),
                        short: rate(4),
                        sync: rate(25),
                        name: rate(20),
                        open: rate(30),
                        read: rate(40),
                    };
                    self.disk.plan(Plan::Sometimes(rates));
                    self.soon(20_000, 500_000, Action::Calm);
                }
            }
            FaultKind::FullDisk => {
                match self.rng.below(3) {
                    0 => self.disk.fill(),
                    _ => self.disk.set_free(self.rng.below(100_000)),
                }
                self.facts.full += 1;
                self.soon(100_000, 1_500_000, Action::Room);
            }
            FaultKind::Slew => {
                if self.slew.0 == 0 {
                    let ppm = *self.rng.pick(&[500, 500, -500, 100, -100]).unwrap_or(&500);
                    self.facts.slews += 1;
                    self.slew(ppm);
                    self.soon(300_000, 8_000_000, Action::SlewEnds);
                    self.at(self.now + SLEW_NOTED_NS, Action::SlewGoesOn);
                }
            }
            FaultKind::FlushTrouble => {
                let denial = if self.rng.percent(50) { Denial::Full } else { Denial::Failed };
                // The run of a flush may be written and the state not, and the next attempt may be a merge's.
                let folders: &[&str] = if self.rng.percent(60) { &["state"] } else { &["runs", "state"] };
                let one_in = self.rng.range(1, 4);
                self.disk.trouble(Some(Trouble { folders, denial, one_in }));
                self.facts.flush_troubles += 1;
                self.soon(100_000, 2_000_000, Action::TroubleEnds);
            }
            FaultKind::WorkerPanic => {
                let hand = usize::try_from(self.rng.below(HANDS.len() as u64)).unwrap_or(0);
                self.disk.panic_next();
                // The panic may also happen in the driver's own work on the disk, if the worker has nothing to do.
                let _ = catch_unwind(AssertUnwindSafe(|| self.work(hand)));
                self.disk.do_not_panic();
            }
        }
    }

    /// Sets the rate of the wall clock from now on.
    pub(super) fn slew(&mut self, ppm: i64) {
        let ahead = self.clock.slew(ppm);
        let gained_ns = if self.slew.0 == 0 { 0 } else { ahead - self.slew.1 };
        self.slew = (ppm, ahead);
        let gained_us = i64::try_from(gained_ns.div_euclid(1_000)).unwrap_or(0) + 1;
        if gained_ns != 0 {
            self.facts.slewed_us += gained_us.unsigned_abs();
            self.fault(Fault::Slewed { gained_us });
        }
    }

    /// Records the gain of the wall clock so far, so that later durable changes are known to be later.
    pub(super) fn slew_goes_on(&mut self) {
        if self.slew.0 != 0 {
            self.slew(self.slew.0);
            self.at(self.now + SLEW_NOTED_NS, Action::SlewGoesOn);
        }
    }

    /// Loses the power, in the middle of what failed before.
    pub(super) fn lose_power(&mut self) {
        match self.stage {
            Stage::Work if self.process.is_some() && self.armed.is_none() => self.crash(Down::Power),
            Stage::Work | Stage::Drain | Stage::Stop => self.calm(),
        }
    }

    /// Ends the process now, or in the middle of one of the next calls to the disk.
    fn strike(&mut self, down: Down) {
        if self.process.is_none() {
            return;
        }
        if self.rng.percent(40) {
            self.crash(down);
        } else {
            self.arm(down, 40);
        }
    }

    fn arm(&mut self, down: Down, calls: u64) {
        self.armed = Some(down);
        let at = self.disk.calls() + 1 + self.rng.below(calls);
        self.disk.plan(Plan::HaltAt(at));
    }

    /// Plans an end during a part of the starts.
    pub(super) fn arm_for_start(&mut self) {
        let ends: Vec<Down> = self
            .style
            .faults
            .iter()
            .filter_map(|kind| match kind {
                FaultKind::Kill => Some(Down::Kill),
                FaultKind::PowerLoss => Some(Down::Power),
                _ => None,
            })
            .collect();
        if self.stage == Stage::Work
            && self.reign > 1
            && self.rng.percent(30)
            && let Some(down) = self.rng.pick(&ends).copied()
        {
            self.arm(down, 30);
        }
    }

    /// Ends the process: the state of the disk afterwards, and the event in the history.
    pub(super) fn go_down(&mut self, down: Down, moment: Moment) {
        self.facts.kills += 1;
        self.slew(self.slew.0);
        match down {
            Down::Kill => {
                self.disk.restart(Survivors::All);
                self.fault(Fault::Killed(moment));
            }
            Down::Power => {
                self.facts.power_losses += 1;
                let survivors = if self.rng.percent(15) { Survivors::None } else { Survivors::Some };
                self.disk.restart(survivors);
                self.clock.reboot();
                self.fault(Fault::PowerLoss);
            }
        }
    }

    fn step_clock(&mut self) {
        let shown = self.clock.wall_ms();
        let by =
            *self.rng.pick(&[SECOND_MS, 60 * SECOND_MS, 3_600 * SECOND_MS, DAY_MS]).unwrap_or(&SECOND_MS);
        let to = match self.rng.below(10) {
            0 => 0,
            1 => YEAR_2100_MS,
            2..4 => self.clock.true_wall_ms(),
            4..7 => shown.saturating_sub(by),
            _ => shown.saturating_add(by),
        };
        self.step_to(to);
    }

    fn step_to(&mut self, to_ms: u64) {
        self.slew(self.slew.0);
        let (before_ms, after_ms) = self.clock.step_wall(to_ms);
        self.facts.steps += 1;
        self.fault(Fault::ClockStep { before_ms, after_ms });
        self.slew.1 = self.clock.slew(self.slew.0);
    }

    /// Lets the disk work again.
    pub(super) fn calm(&mut self) {
        if self.armed.is_none() {
            self.disk.plan(Plan::Fine);
        }
    }

    /// Ends all faults.
    pub(super) fn heal(&mut self) {
        self.stage = Stage::Drain;
        self.armed = None;
        self.disk.plan(Plan::Fine);
        self.disk.trouble(None);
        self.disk.set_free(u64::MAX);
        self.slew(0);
        let to = self.clock.true_wall_ms();
        if to != self.clock.wall_ms() {
            self.step_to(to);
        }
        self.at(self.now + 100 * MS, Action::Look);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_occur_only_during_work() {
        let mut rng = Rng::new(1);
        let mut next = |stage, now, mean| next_fault(&mut rng, stage, now, mean, 1_000);
        assert_eq!(next(Stage::Work, 0, 0), None, "no faults are wished for");
        assert_eq!((next(Stage::Drain, 0, 10), next(Stage::Stop, 0, 10)), (None, None));
        assert_eq!(next(Stage::Work, 1_000, 10), None, "the work is over");
        let times: Vec<u64> = (0..1_000).filter_map(|_| next(Stage::Work, 500, 100)).collect();
        assert_eq!(times.len(), 1_000);
        assert!(times.iter().all(|at| (500..700).contains(at)));
        let sum: u64 = times.iter().map(|at| at - 500).sum();
        assert!((90_000..110_000).contains(&sum), "the mean is {} ns", sum / 1_000);
    }
}
