//! Checks of messages that the system sends to the receiver of the run.

use crate::history::{Fault, Held, PushAnswer, PushedQueue, Refusal, State};
use crate::pushes::parts_of;

use super::evidence::{Evidence, Fact};
use super::judge::Judge;
use super::life::{Life, Pushed};
use super::op::{End, NS, Point};
use super::world::World;
use super::{Check, Report, Violation};

/// All messages name one store in their `webhook-id`.
pub(super) fn check_stores(world: &World<'_>, report: &mut Report) {
    let store = |push: &Pushed<'_>| parts_of(&push.seen.webhook_id).map(|(store, ..)| store.to_owned());
    let Some(first) = world.pushes.iter().find_map(store) else { return };
    report.applied(Check::WebhookId);
    for push in world.pushes.iter().filter(|push| store(push).is_some_and(|store| store != first)) {
        report.violations.push(Violation {
            check: Check::WebhookId,
            message: None,
            tag: push.seen.body.tag,
            what: format!("the webhook-id {:?} names another store than {first}", push.seen.webhook_id),
            story: world.events[push.read.idx..=push.read.idx].to_vec(),
        });
    }
}

impl<'h> Judge<'_, 'h> {
    /// Whether the message is one of those that are sent to the receiver, and how.
    pub(super) fn is_pushed(&self) -> Option<&'h PushedQueue> {
        self.world.pushed.get(self.life.queue.as_str()).copied()
    }

    pub(super) fn pushes(&mut self) {
        let Some(pushed) = self.is_pushed() else { return };
        self.one_webhook_id();
        self.push_attempts(pushed);
        self.nothing_after_success(pushed);
        self.not_before(pushed);
        self.nothing_after_it_was_gone();
    }

    fn one_webhook_id(&mut self) {
        let life = self.life;
        if !(life.changes.is_empty() && life.loose.is_empty()) {
            return;
        }
        for pair in life.pushes.windows(2) {
            self.report.applied(Check::WebhookId);
            let (a, b) = (&pair[0].seen.webhook_id, &pair[1].seen.webhook_id);
            if a != b {
                self.blame(Check::WebhookId, format!("was sent with the webhook-id {a}, then with {b}"));
            }
        }
    }

    /// Attempts grow by one and the grants that no request has brought to the receiver: at most one for each process
    /// that has ended since.
    fn push_attempts(&mut self, pushed: &PushedQueue) {
        let (life, world) = (self.life, self.world);
        let mut last = (0, life.born(world));
        for push in &life.pushes {
            self.report.applied(Check::PushAttempts);
            let (n, (before, since)) = (push.seen.attempt, last);
            let lost = ends(world, since, push.read.idx);
            if n <= before {
                self.blame(Check::PushAttempts, format!("request of attempt {n} after attempt {before}"));
            } else if n > before + 1 + lost {
                let what = format!(
                    "request of attempt {n} after attempt {before}, but only {lost} can have been cut off"
                );
                self.blame(Check::PushAttempts, what);
            }
            if n > life.max_attempts + put_off(life, pushed, push.read.idx)
                && !life.redriven(world, push.read.idx)
            {
                let what = format!("request of attempt {n} of at most {}", life.max_attempts);
                self.blame(Check::DeadInexact, what);
            }
            last = (n, push.read.idx);
        }
    }

    fn nothing_after_success(&mut self, pushed: &PushedQueue) {
        let (life, world) = (self.life, self.world);
        for pair in life.pushes.windows(2) {
            if pair[0].accepted().is_none() || !heard(&pair[0], pushed) {
                continue;
            }
            self.report.applied(Check::PushAfterEnd);
            if ends(world, pair[0].read.idx, pair[1].read.idx) == 0 && !life.redriven(world, usize::MAX) {
                let what = format!(
                    "attempt {} came although attempt {} was answered with a success by the same process",
                    pair[1].seen.attempt, pair[0].seen.attempt
                );
                self.blame(Check::PushAfterEnd, what);
            }
        }
    }

    /// A time that an answer asks for is kept, unless a kill has made the system forget the answer.
    fn not_before(&mut self, pushed: &PushedQueue) {
        let (life, world) = (self.life, self.world);
        for pair in life.pushes.windows(2) {
            let Some((answered, PushAnswer::NotBefore { ms })) = pair[0].answered else { continue };
            if !heard(&pair[0], pushed) || ends(world, pair[0].read.idx, pair[1].read.idx) > 0 {
                continue;
            }
            self.report.applied(Check::Early);
            let passed = pair[1].read.ns.saturating_sub(answered.ns);
            if passed < ms.saturating_mul(NS) {
                let what = format!(
                    "attempt {} came after {} ms, and the answer to the one before asked for {ms} ms",
                    pair[1].seen.attempt,
                    passed / NS
                );
                self.blame(Check::Early, what);
            }
        }
    }

    fn nothing_after_it_was_gone(&mut self) {
        let (life, world) = (self.life, self.world);
        let Some(exists) = life.exists else { return };
        let told = self.ops(&life.gets).filter(|op| exists.idx < op.inv.idx).filter_map(|op| match op.end {
            End::Fail(ret, Refusal::NotFound) => Some(ret),
            _ => None,
        });
        let listed = world.dumps.get(life.queue.as_str()).filter(|_| life.held.is_none()).map(|(at, _)| *at);
        let Some(gone) = told.chain(listed).min_by_key(|at| at.idx) else { return };
        self.report.applied(Check::PushAfterEnd);
        if let Some(push) = life.pushes.iter().find(|push| push.read.idx > gone.idx) {
            let what = format!("attempt {} came after the message was seen to be gone", push.seen.attempt);
            self.blame(Check::PushAfterEnd, what);
        }
    }

    /// Checks attempts and death in a get or the dump.
    pub(super) fn pushed_row(&mut self, pushed: &PushedQueue, row: &Held, inv: Point, ret: Point) {
        let (life, world) = (self.life, self.world);
        if life.sends.is_empty() || life.redriven(world, ret.idx) {
            return;
        }
        self.report.applied(Check::Attempts);
        let known = life.pushes.iter().filter(|push| push.read.idx < inv.idx).map(|push| push.seen.attempt);
        let known = known.max().unwrap_or(0);
        let seen: Vec<_> = life.pushes.iter().filter(|push| push.read.idx < ret.idx).collect();
        let (last, since) =
            seen.last().map_or((0, life.born(world)), |push| (push.seen.attempt, push.read.idx));
        let under_way = u64::from(row.state == State::Leased);
        let most = last + ends(world, since, ret.idx) + under_way;
        if row.attempt < known || row.attempt > most {
            let what = format!("shows {} attempts, but the receiver knows of {known}..={most}", row.attempt);
            self.blame(Check::Attempts, what);
        }
        let Some(forgiven) = row.forgiven else { return };
        let most = put_off(life, pushed, ret.idx);
        let least = life.pushes.windows(2).filter(|pair| {
            matches!(pair[0].answered, Some((_, PushAnswer::NotBefore { .. })))
                && heard(&pair[0], pushed)
                && pair[1].read.idx < inv.idx
                && ends(world, pair[0].read.idx, pair[1].read.idx) == 0
        });
        let least = least.count() as u64;
        if forgiven < least || forgiven > most {
            let what =
                format!("shows {forgiven} forgiven attempts, but the receiver knows of {least}..={most}");
            self.blame(Check::Attempts, what);
        }
        self.report.applied(Check::DeadInexact);
        let (used, most) = (row.attempt.saturating_sub(forgiven), life.max_attempts);
        match row.state {
            State::Dead if used != most => {
                self.blame(Check::DeadInexact, format!("dead after {used} attempts of {most}"));
            }
            State::Scheduled | State::Ready if used >= most => {
                self.blame(Check::DeadInexact, format!("{:?} after {used} attempts of {most}", row.state));
            }
            State::Scheduled | State::Ready | State::Leased | State::Dead => {}
        }
    }
}

/// Processes that have ended between two points. Ends and not starts: a process is ended before the next one exists, and
/// the next one pushes before anybody can record that it has started.
fn ends(world: &World<'_>, from: usize, to: usize) -> u64 {
    let between = world.faults.iter().filter(|(at, _)| from < at.idx && at.idx < to);
    let is_end = |fault: &Fault| {
        matches!(fault, Fault::Killed(_) | Fault::Stopped | Fault::PowerLoss | Fault::Struck(_))
    };
    between.filter(|(_, fault)| is_end(fault)).count() as u64
}

/// Whether the answer was sent in time, so that only the end of its process can have kept the system from hearing it.
fn heard(push: &Pushed<'_>, pushed: &PushedQueue) -> bool {
    let third = pushed.timeout_ms.saturating_mul(NS) / 3;
    push.answered.is_some_and(|(at, _)| at.ns.saturating_sub(push.read.ns) <= third)
}

/// Requests before a point that can have used up no attempt: those whose answers have put the message off, and those
/// without an answer, while the target answered nothing else.
fn put_off(life: &Life<'_>, pushed: &PushedQueue, before: usize) -> u64 {
    let is_put_off = |push: &&Pushed<'_>| match push.answered {
        Some((at, PushAnswer::NotBefore { .. })) => at.idx < before,
        Some((_, PushAnswer::Nothing)) | None => true,
        Some((_, PushAnswer::Accepted | PushAnswer::Failed)) => !heard(push, pushed),
    };
    life.pushes.iter().filter(|push| push.read.idx < before).filter(is_put_off).count() as u64
}

pub(super) fn gather(world: &World<'_>, life: &Life<'_>, evidence: &mut Evidence) {
    let accepted = life.pushes.iter().any(|push| push.accepted().is_some());
    let dumped = world.dumps.contains_key(life.queue.as_str());
    evidence.add(Fact::DeliveredByPush, u64::from(accepted && dumped && life.held.is_none()));
    let dead = life.held.is_some_and(|(_, row)| row.state == State::Dead);
    evidence.add(Fact::DeadByPush, u64::from(dead && !life.pushes.is_empty()));
    for pair in life.pushes.windows(2) {
        let killed = ends(world, pair[0].read.idx, pair[1].read.idx) > 0;
        let fact = match pair[0].answered {
            Some((_, PushAnswer::Accepted)) if killed => Fact::SuccessesLostInAKill,
            None if killed => Fact::PushesCutByAKill,
            Some((_, PushAnswer::Failed | PushAnswer::Nothing)) if !killed => Fact::PushedAgainAfterAFailure,
            Some((_, PushAnswer::NotBefore { .. })) if !killed => Fact::PushedAgainWhenAsked,
            _ => continue,
        };
        evidence.add(fact, 1);
    }
}
