//! The possible due times of a message; no grant is before them.

use crate::history::{Call, Fault, Token, When};

use super::Check;
use super::judge::Judge;
use super::life::Life;
use super::op::{NS, Op, Point};
use super::world::World;

/// An operation that sets a message's due time.
pub(super) struct Setter {
    pub(super) inv: Point,
    pub(super) latest: Point,
    done: Option<Point>,
    pub(super) due: Due,
    /// The message is due this many ns later at most.
    pub(super) spread_ns: u64,
    /// Whether it is the return of an attempt: that moves no expiry.
    pub(super) retries: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Due {
    /// This number of ns after the moment at which it took effect.
    After(u64),
    /// By the wall clock.
    At(u64),
    Now,
}

impl Judge<'_, '_> {
    /// A grant must not be early by any due time that may have been in force.
    pub(super) fn early(&mut self) {
        let life = self.life;
        let setters = self.world.setters(life);
        if setters.is_empty() {
            return;
        }
        for g in &life.grants {
            self.early_at(&setters, g.grant.attempt, g.inv.idx, g.ret);
        }
        // It is not known since when a request was on its way, so no due time supersedes another.
        for push in &life.pushes {
            self.early_at(&setters, push.seen.attempt, 0, push.read);
        }
    }

    /// Checks an attempt that cannot have begun before one point and was seen at another.
    fn early_at(&mut self, setters: &[Setter], attempt: u64, since: usize, at: Point) {
        self.report.applied(Check::Early);
        // Superseded: another due time was requested after this operation had ended, and answered before this reserve.
        let superseded = |s: &Setter| {
            setters.iter().any(|t| t.inv.idx > s.latest.idx && t.done.is_some_and(|done| done.idx < since))
        };
        let open = setters.iter().filter(|s| s.inv.idx < at.idx).filter(|s| !superseded(s));
        match open.map(|s| self.world.is_ahead_by(s.due, s.inv, at)).min() {
            Some(0) => {}
            Some(ns) => {
                let what = format!("attempt {attempt} came {} µs early", ns.div_ceil(1_000));
                self.blame(Check::Early, what);
            }
            None => self.blame(Check::Early, "granted before it was asked for".to_owned()),
        }
    }
}

impl World<'_> {
    /// By how many ns a time that was set at one point is still ahead at another: at least, as far as that is proven.
    pub(super) fn is_ahead_by(&self, due: Due, set: Point, at: Point) -> u64 {
        match due {
            Due::Now => 0,
            Due::After(ns) => {
                let passed = at.ns.saturating_sub(set.ns);
                ns.saturating_sub(passed.saturating_add(self.jumped_unnoted(set.idx, at.idx)))
            }
            Due::At(ms) => {
                // The clock may have shown the time before it was stepped back.
                let mut shown = at.wall;
                for (stepped, fault) in &self.faults {
                    if let Fault::ClockStep { before_ms, .. } = fault
                        && stepped.idx > set.idx
                        && stepped.idx <= at.idx
                    {
                        shown = shown.max(*before_ms);
                    }
                }
                ms.saturating_sub(shown).saturating_mul(NS)
            }
        }
    }

    /// The operations that may have set the due time of a message.
    pub(super) fn setters(&self, life: &Life<'_>) -> Vec<Setter> {
        let mut setters = Vec::new();
        let spread_ns = life.spread_ms.saturating_mul(NS);
        let due = |when: &When| match when {
            When::DelayMs(ms) => Due::After(ms.saturating_mul(NS)),
            When::AtMs(ms) => Due::At(*ms),
        };
        for op in life.sends.iter().map(|&send| &self.ops[send]) {
            if let Call::Enqueue(e) = op.call
                && op.possible()
            {
                let (inv, latest, due) = (op.inv, op.latest, due(&e.when));
                // Of an enqueue and its retries the first may be the one that was accepted: none supersedes another.
                setters.push(Setter { inv, latest, done: None, due, spread_ns, retries: false });
            }
        }
        if life.sends.is_empty() {
            return setters;
        }
        let mut add = |op: &Op<'_>, due, spread_ns, retries| {
            if op.possible() {
                let done = op.done().filter(|_| !self.undone(op, usize::MAX));
                setters.push(Setter { inv: op.inv, latest: op.latest, done, due, spread_ns, retries });
            }
        };
        for op in life.changes.iter().chain(&life.loose).map(|&op| &self.ops[op]) {
            match op.call {
                Call::Postpone { when, .. } => add(op, due(when), spread_ns, false),
                Call::Fire(_) | Call::Redrive(_) => add(op, Due::Now, 0, false),
                _ => {}
            }
        }
        for op in life.settles.iter().map(|&op| &self.ops[op]) {
            if let Call::Nack { proof, delay_ms } = op.call {
                let ms = delay_ms.unwrap_or_else(|| self.backoff(life.attempt_of(&proof.token)));
                add(op, Due::After(ms.saturating_mul(NS)), 0, true);
            }
        }
        setters
    }

    /// The shortest delay of the backoff: jitter never reduces the step, except at the cap down to three quarters.
    pub(super) fn backoff(&self, attempt: u64) -> u64 {
        let rules = &self.rules;
        let doublings = attempt.saturating_sub(1).min(40);
        let step = rules.backoff_min_ms.saturating_mul(1 << doublings);
        step.min(rules.backoff_max_ms / 4 * 3).max(rules.backoff_min_ms)
    }
}

impl Life<'_> {
    /// The number of the attempt with this token.
    pub(super) fn attempt_of(&self, token: &Token) -> u64 {
        self.grants.iter().find(|g| g.grant.token == *token).map_or(1, |g| g.grant.attempt)
    }
}
