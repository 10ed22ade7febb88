//! The process under test: it starts, takes its turns and lets its store work, and is killed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use duewheel::Client;
use duewheel_core::engine::Config;
use duewheel_core::store::ErrorKind;
use duewheel_judge::history::{Fault, Moment, What};
use duewheel_shard::runner::{AfterTurn, Runner, SleepLimit, StartError, WakeOn};
use duewheel_shard::shared::DriverEnd;
use duewheel_sim_disk::Lie;
use duewheel_store_log::{Hands, LogStore, Worked};

use super::*;

pub(super) struct Process {
    pub(super) reign: u64,
    pub(super) runner: Option<Runner>,
    pub(super) client: Client,
    pub(super) handle: Shared,
    pub(super) phase: Phase,
    pub(super) nap: Option<SleepLimit>,
    /// Which planned turn counts.
    pub(super) turn: u64,
    pub(super) turn_at: u64,
    /// Which hands have something planned.
    pub(super) busy: [bool; HANDS.len()],
    /// Which hands are gone for good.
    pub(super) gone: [bool; HANDS.len()],
    pub(super) opens: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Opening,
    Serving,
    /// Its store has failed.
    Troubled,
}

pub(super) type Hand = fn(&Hands) -> Worked;
pub(super) const HANDS: [Hand; 5] = [Hands::sync, Hands::prepare, Hands::flush, Hands::merge, Hands::load];
pub(super) const LOAD: usize = 4;

impl Sim {
    pub(super) fn serving(&self) -> Option<Client> {
        let process = self.process.as_ref()?;
        (process.phase != Phase::Opening).then(|| process.client.clone())
    }

    pub(super) fn start(&mut self) {
        if self.process.is_some() {
            return;
        }
        self.reign += 1;
        self.slew(self.slew.0);
        self.arm_for_start();
        if self.bug == Some(Bug(Inside::TailNotSynced)) {
            self.disk.lie(Some(Lie::SkipSyncIn("journal")));
        }
        let handle = Shared::default();
        let (disk, options, shared) = (self.disk.clone(), self.style.options.clone(), Arc::clone(&handle));
        let large = Arc::clone(&self.large_groups);
        let bug = match self.bug {
            Some(Bug(Inside::Store(bug))) => Some(bug),
            _ => None,
        };
        let opener = Box::new(move |waker: duewheel_core::store::Waker| {
            let store = LogStore::open_on(Arc::new(disk.clone()), options.clone(), Arc::clone(&waker))?;
            Ok(store::gated(store, waker, &shared, bug, &large))
        });
        let config = Config { policy: self.style.policy.clone(), seed: self.rng.bits(), ..Config::default() };
        match Runner::start(opener, config, Arc::new(self.clock.clone())) {
            Ok(runner) => {
                self.process = Some(Process {
                    reign: self.reign,
                    client: runner.client(),
                    runner: Some(runner),
                    handle,
                    phase: Phase::Opening,
                    nap: None,
                    turn: 0,
                    turn_at: u64::MAX,
                    busy: [false; HANDS.len()],
                    gone: [false; HANDS.len()],
                    opens: 1,
                });
                self.plan_turn(self.now);
            }
            Err(error) => self.not_started(&error),
        }
    }

    pub(super) fn not_started(&mut self, error: &StartError) {
        if self.disk.has_stopped() {
            return; // it is noticed in a moment
        }
        self.facts.failed_starts += 1;
        match error {
            StartError::Store(error) if error.kind() == ErrorKind::Corrupt => {
                self.broken = Some(format!("it does not start: {error}"));
            }
            StartError::Policy(error) => self.broken = Some(format!("it does not start: {error}")),
            StartError::Store(_) | StartError::Thread(_) => {
                self.process = None;
                self.soon(20_000, 400_000, Action::Start);
            }
        }
    }

    /// A turn at that time, or before if one is planned.
    pub(super) fn plan_turn(&mut self, at: u64) {
        let Some(process) = &mut self.process else { return };
        if process.turn_at <= at {
            return;
        }
        process.turn += 1;
        process.turn_at = at;
        let action = Action::Turn { reign: process.reign, no: process.turn };
        self.at(at, action);
    }

    pub(super) fn turn(&mut self, reign: u64, no: u64) {
        let Some(process) = self.process.as_mut().filter(|p| p.reign == reign && p.turn == no) else {
            return;
        };
        process.turn_at = u64::MAX;
        let nap = process.nap.take();
        let Some(runner) = &mut process.runner else { return };
        if process.phase == Phase::Opening {
            match runner.opening() {
                Ok(None) => {
                    process.phase = Phase::Serving;
                    if self.bug == Some(Bug(Inside::TailNotSynced)) {
                        self.disk.lie(None);
                    }
                    self.fault(Fault::Started);
                    self.plan_turn(self.now);
                }
                Ok(Some(nap)) => {
                    let until = WakeOn::Gathering;
                    process.nap = Some(SleepLimit { until, at_most: nap });
                    self.plan_turn(self.now + u64::try_from(nap.as_nanos()).unwrap_or(u64::MAX));
                }
                Err(error) => {
                    self.process = None;
                    self.not_started(&error);
                }
            }
            return self.plan_hands();
        }
        if let Some(nap) = nap {
            runner.woke(nap);
        }
        let turn = runner.turn();
        self.turned(Some(turn));
    }

    /// Takes a turn as a caller does, if something has come in while the driver's thread sleeps.
    pub(super) fn lend(&mut self) {
        let Some(process) = &mut self.process else { return };
        let (Some(runner), Some(nap)) = (&mut process.runner, process.nap) else { return };
        let sleeps = process.turn_at > self.now + MOST_WAKING_US * US && runner.is_woken(nap);
        let lends = nap.ends_with_any() && process.phase != Phase::Opening;
        if !sleeps || !lends || self.disk.has_stopped() || !self.rng.percent(33) {
            return;
        }
        self.facts.lent += 1;
        let turn = runner.lent_turn(Duration::from_nanos(process.turn_at - self.now));
        self.turned(turn);
    }

    /// Goes on after a turn; `None`: the driver's thread sleeps as before.
    fn turned(&mut self, turn: Option<AfterTurn>) {
        let is_serving = |process: &Process| process.runner.as_ref().is_some_and(Runner::is_serving);
        if self.process.as_ref().is_some_and(is_serving) {
            self.count_round();
        }
        let Some(process) = &mut self.process else { return };
        let Some(runner) = &mut process.runner else { return };
        let serves = runner.is_serving();
        let was =
            std::mem::replace(&mut process.phase, if serves { Phase::Serving } else { Phase::Troubled });
        let (opens, broken) = {
            let mut handle = lock(&process.handle);
            (handle.opens, handle.broken.take())
        };
        self.broken = self.broken.take().or(broken);
        if opens > process.opens {
            process.opens = opens;
            process.busy = [false; HANDS.len()];
            process.gone = [false; HANDS.len()];
            self.facts.reopened += 1;
        }
        match turn {
            None => {}
            Some(AfterTurn::Again) => {
                let at = self.now + self.rng.range(2, 200) * US;
                self.plan_turn(at);
            }
            Some(AfterTurn::Sleep(nap)) => {
                process.nap = Some(nap);
                let at =
                    self.now.saturating_add(u64::try_from(nap.at_most.as_nanos()).unwrap_or(u64::MAX / 2));
                self.plan_turn(at);
            }
            Some(AfterTurn::Ended(end)) => return self.ended(end),
        }
        if was == Phase::Troubled && serves {
            self.fault(Fault::Stalled);
        }
        self.plan_hands();
    }

    /// The driver has ended: so does the process.
    pub(super) fn ended(&mut self, end: DriverEnd) {
        if self.disk.has_stopped() {
            return;
        }
        if let Some(runner) = self.process.as_mut().and_then(|process| process.runner.take()) {
            runner.end(end);
        }
        self.poll();
        self.crash(Down::Kill);
    }

    pub(super) fn plan_hands(&mut self) {
        for hand in 0..HANDS.len() {
            let Some(process) = &mut self.process else { return };
            if process.busy[hand] || process.gone[hand] {
                continue;
            }
            process.busy[hand] = true;
            let action = Action::Hand { reign: process.reign, hand };
            let most = match hand {
                0 => self.style.sync_ns / US,
                LOAD => 4_000,
                _ => 12_000,
            };
            self.soon(50, most, action);
        }
    }

    pub(super) fn hand(&mut self, reign: u64, hand: usize) {
        let Some(process) = self.process.as_mut().filter(|p| p.reign == reign) else { return };
        process.busy[hand] = false;
        if process.gone[hand] {
            return;
        }
        let worked = self.work(hand);
        let Some(process) = &mut self.process else { return };
        let again = match worked {
            Some(Worked::Done) => (20, 3_000),
            Some(Worked::Later) => (20_000, 60_000),
            Some(Worked::Nothing) | None => return,
        };
        process.busy[hand] = true;
        self.soon(again.0, again.1, Action::Hand { reign, hand });
    }

    /// A step of a worker; `None` if it has panicked.
    pub(super) fn work(&mut self, hand: usize) -> Option<Worked> {
        let process = self.process.as_ref()?;
        let hands = lock(&process.handle).hands.clone()?;
        let worked = catch_unwind(AssertUnwindSafe(|| HANDS[hand](&hands)));
        if worked.is_err() {
            self.facts.panics += 1;
            if let Some(process) = &mut self.process {
                process.gone[hand] = true;
            }
        }
        if let (LOAD, Ok(Worked::Done), Some(process)) = (hand, &worked, &self.process) {
            let handle = lock(&process.handle);
            handle.arrivals.fetch_add(1, Relaxed);
            if let Some(waker) = &handle.waker {
                waker();
            }
        }
        worked.ok()
    }

    /// The process is gone, and what it had not answered will never be.
    pub(super) fn crash(&mut self, down: Down) {
        self.armed = None;
        self.still_until = 0;
        self.note_figures();
        if self.manager.forget() {
            self.soon(20_000, 40_000, Action::Look);
        }
        if self.outbox.forget() {
            self.soon(20_000, 40_000, Action::Drain);
        }
        let mut lost = Vec::new();
        for (i, person) in self.people.iter_mut().enumerate() {
            if let Some(flight) = person.flight.take() {
                lost.extend(flight.ops.into_iter().map(|op| (i, op)));
            }
        }
        let process = self.process.take();
        let serving = process.as_ref().is_some_and(|process| process.phase != Phase::Opening);
        drop(process);
        self.facts.recovering += u64::from(!serving);
        self.go_down(down, if serving { Moment::Serving } else { Moment::Recovering });
        let mut woken = Vec::new();
        for (i, (op, call)) in lost {
            let what = What::Info { op, why: "the connection broke".to_owned() };
            self.gossip.hear(&call, &what, self.stage, self.now, &mut self.rng);
            self.note(i + 1, what);
            if woken.last() != Some(&i) {
                woken.push(i);
            }
        }
        for i in woken {
            self.soon(1_000, 20_000, Action::Wake(i));
        }
        let downtime = if self.rng.percent(70) { 50_000 } else { 1_500_000 };
        self.soon(100, downtime, Action::Start);
    }

    pub(super) fn note_figures(&mut self) {
        let Some(process) = &self.process else { return };
        for (name, value) in process.client.store_figures() {
            match name {
                "flushes_total" => self.facts.flushes += value,
                "merges_total" => self.facts.merges += value,
                "fetches_total" => self.facts.fetches += value,
                "flushes_over_reserve_total" if value > 0 => {
                    self.broken = Some("a flush wrote more than was kept free for it".to_owned());
                }
                _ => {}
            }
        }
    }
}
