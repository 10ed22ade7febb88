//! The possible due times of a message; no grant is before them.

use crate::history::{Call, Fault, Token, When};

use super::Check;
use super::judge::Judge;
use super::life::Granted;
use super::op::{NS, Op, Point};

/// An operation that sets a message's due time.
pub(super) struct Setter {
    pub(super) inv: Point,
    pub(super) latest: Point,
    done: Option<Point>,
    pub(super) due: Due,
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
        let setters = self.setters();
        if setters.is_empty() {
            return;
        }
        let life = self.life;
        for g in &life.grants {
            self.report.applied(Check::Early);
            let open: Vec<&Setter> = setters
                .iter()
                .filter(|s| s.inv.idx < g.ret.idx)
                .filter(|s| {
                    // Superseded: another due time was requested after this operation had ended, and answered before
                    // this reserve.
                    !setters
                        .iter()
                        .any(|t| t.inv.idx > s.latest.idx && t.done.is_some_and(|done| done.idx < g.inv.idx))
                })
                .collect();
            let least = open.iter().map(|s| self.early_by(s, g)).min();
            match least {
                Some(0) => {}
                Some(ns) => {
                    let what = format!("attempt {} came {} µs early", g.grant.attempt, ns.div_ceil(1_000));
                    self.blame(Check::Early, what);
                }
                None => self.blame(Check::Early, "granted before it was asked for".to_owned()),
            }
        }
    }

    fn early_by(&self, s: &Setter, g: &Granted<'_>) -> u64 {
        match s.due {
            Due::Now => 0,
            Due::After(ns) => {
                let passed = g.ret.ns.saturating_sub(s.inv.ns);
                ns.saturating_sub(passed + self.world.jumped_unnoted(s.inv.idx, g.ret.idx))
            }
            Due::At(ms) => {
                // The clock may have shown the time before it was stepped back.
                let mut shown = g.ret.wall;
                for (at, fault) in &self.world.faults {
                    if let Fault::ClockStep { before_ms, .. } = fault
                        && at.idx > s.inv.idx
                        && at.idx < g.ret.idx
                    {
                        shown = shown.max(*before_ms);
                    }
                }
                ms.saturating_sub(shown).saturating_mul(NS)
            }
        }
    }

    pub(super) fn setters(&self) -> Vec<Setter> {
        let mut setters = Vec::new();
        let due = |when: &When| match when {
            When::DelayMs(ms) => Due::After(ms.saturating_mul(NS)),
            When::AtMs(ms) => Due::At(*ms),
        };
        for op in self.ops(&self.life.sends) {
            if let Call::Enqueue(e) = op.call
                && op.possible()
            {
                // Of an enqueue and its retries the first may be the one that was accepted: none supersedes another.
                setters.push(Setter { inv: op.inv, latest: op.latest, done: None, due: due(&e.when) });
            }
        }
        if self.life.sends.is_empty() {
            return setters;
        }
        let mut add = |op: &Op<'_>, due| {
            if op.possible() {
                let done = op.done().filter(|_| !self.world.undone(op, usize::MAX));
                setters.push(Setter { inv: op.inv, latest: op.latest, done, due });
            }
        };
        for op in self.ops(&self.life.changes).chain(self.ops(&self.life.loose)) {
            match op.call {
                Call::Postpone { when, .. } => add(op, due(when)),
                Call::Fire(_) | Call::Redrive(_) => add(op, Due::Now),
                _ => {}
            }
        }
        for op in self.ops(&self.life.settles) {
            if let Call::Nack { proof, delay_ms } = op.call {
                let attempt = self.attempt_of(&proof.token);
                let ms = delay_ms.unwrap_or_else(|| self.backoff(attempt));
                add(op, Due::After(ms.saturating_mul(NS)));
            }
        }
        setters
    }

    pub(super) fn attempt_of(&self, token: &Token) -> u64 {
        self.life.grants.iter().find(|g| g.grant.token == *token).map_or(1, |g| g.grant.attempt)
    }

    /// The shortest delay of the backoff: jitter never reduces the step, except at the cap down to three quarters.
    pub(super) fn backoff(&self, attempt: u64) -> u64 {
        let rules = &self.world.rules;
        let doublings = attempt.saturating_sub(1).min(40);
        let step = rules.backoff_min_ms.saturating_mul(1 << doublings);
        step.min(rules.backoff_max_ms / 4 * 3).max(rules.backoff_min_ms)
    }
}
