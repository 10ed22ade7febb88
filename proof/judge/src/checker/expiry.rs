//! Messages that expire: when that may have happened, when it must have, and what then must become of them.

use crate::history::{
    Answer, Call, Death, Enqueue, Expiry, Held, OnExpiry, QueueLimits, Refusal, Shards, State, When,
};

use super::Check;
use super::due::Due;
use super::evidence::{Evidence, Fact};
use super::judge::Judge;
use super::life::{Ender, Granted, How, Life};
use super::op::{End, NS, Point};
use super::world::World;

impl World<'_> {
    /// The limits of a queue that may have been in force between two points.
    pub(super) fn limits_between(&self, queue: &str, from: usize, to: usize) -> Vec<QueueLimits> {
        let changes = self.limits.get(queue).map_or(&[][..], Vec::as_slice);
        // A change supersedes those that had ended before it was asked for.
        let done = changes
            .iter()
            .map(|&c| &self.ops[c])
            .filter(|op| op.done().is_some_and(|done| done.idx < from) && !self.undone(op, usize::MAX));
        let last = done.map(|op| op.inv.idx).max();
        let superseded = |since: usize| last.is_some_and(|last| last >= since);
        let mut all = Vec::new();
        if !superseded(0) {
            all.push(QueueLimits::default());
        }
        for op in changes.iter().map(|&c| &self.ops[c]).filter(|op| op.inv.idx < to) {
            if let Call::Limit { limits, .. } = op.call
                && !superseded(op.latest.idx)
            {
                all.push(*limits);
            }
        }
        all
    }

    fn point(&self, idx: usize) -> Point {
        self.events.get(idx).map_or(Point::NEVER, |event| Point::new(idx, event.at))
    }

    /// The expiries that a message may have between two points.
    fn expiries(&self, life: &Life<'_>, from: usize, to: usize) -> Vec<Expiry> {
        match life.expiry {
            Some(expiry) => vec![expiry],
            None => {
                let limits = self.limits_between(&life.queue, from, to).into_iter();
                limits.filter_map(|limits| limits.expires_in_ms.map(Expiry::InMs)).collect()
            }
        }
    }

    /// Whether a message may have expired at a point.
    pub(super) fn may_have_expired(&self, life: &Life<'_>, at: Point) -> bool {
        let setters = self.setters(life);
        let Some(first) = setters.first() else { return true }; // nothing is known about it
        let over = |due, set| self.is_ahead_by(due, set, at) == 0;
        self.expiries(life, life.born(self), at.idx).into_iter().any(|expiry| match expiry {
            Expiry::AtMs(ms) => over(Due::At(ms), first.inv),
            Expiry::InMs(ms) => setters.iter().filter(|s| s.inv.idx < at.idx).any(|s| match s.due {
                Due::After(ns) => over(Due::After(ns.saturating_add(ms.saturating_mul(NS))), s.inv),
                Due::At(due) => over(Due::At(due.saturating_add(ms)), s.inv),
                // By whichever clock the message follows.
                Due::Now => {
                    self.stepped(s.inv.idx, at.idx)
                        || over(Due::After(ms.saturating_mul(NS)), s.inv)
                        || over(Due::At(s.inv.wall.saturating_add(ms)), s.inv)
                }
            }),
        })
    }

    /// The latest moment at which a message expires that was granted; `None` if that is not known.
    fn expires_at_latest(&self, life: &Life<'_>, g: &Granted<'_>) -> Option<u64> {
        let born = life.born(self);
        if self.stepped(born, g.ret.idx) || life.redriven(self, g.ret.idx) {
            return None;
        }
        if life.expiry.is_none() {
            let limits = self.limits_between(&life.queue, born, g.ret.idx);
            if limits.iter().any(|limits| limits.expires_in_ms.is_none()) {
                return None;
            }
        }
        let setters = self.setters(life);
        let setters = || setters.iter().filter(|s| s.inv.idx < g.ret.idx && !s.retries);
        if setters().any(|s| s.latest.idx == usize::MAX) {
            return None;
        }
        let due = |s: &super::due::Setter| match s.due {
            Due::Now => s.latest.ns,
            Due::After(ns) => s.latest.ns.saturating_add(ns).saturating_add(s.spread_ns),
            Due::At(ms) => self.shows(ms, s.latest).max(s.latest.ns).saturating_add(s.spread_ns),
        };
        let of = |expiry: Expiry| match expiry {
            Expiry::InMs(ms) => setters().map(due).max().map(|due| due.saturating_add(ms.saturating_mul(NS))),
            // A message that was fired after its instant does not expire.
            Expiry::AtMs(ms) if setters().any(|s| matches!(s.due, Due::Now) && s.latest.wall >= ms) => None,
            Expiry::AtMs(ms) => setters().next().map(|s| self.shows(ms, s.latest).max(s.latest.ns)),
        };
        let all: Option<Vec<u64>> =
            self.expiries(life, born, g.ret.idx).into_iter().map(of).collect::<Option<_>>();
        all?.into_iter().max()
    }

    /// Finds which messages may have been dropped, and which may have died, because they had expired.
    pub(super) fn find_expiries(&mut self) {
        for l in 0..self.lives.len() {
            let life = &self.lives[l];
            if life.expiry.is_none() && !self.limits.contains_key(life.queue.as_str()) {
                continue;
            }
            let Some(first) = self.first_expired(life) else { continue };
            let dropped = self.ended_by_reserve(life, first, OnExpiry::Drop);
            let dead = self.ended_by_reserve(life, first, OnExpiry::Dead);
            let life = &mut self.lives[l];
            life.expired_dead = dead.map(|(_, since)| since);
            let Some((op, since)) = dropped else { continue };
            life.enders.push(Ender { op, how: How::Expired, certain: false, since, ended: None });
            if let Some(gone) = self.seen_gone(&self.lives[l]) {
                let ender = Ender { op, how: How::Expired, certain: true, since, ended: Some(gone) };
                let life = &mut self.lives[l];
                life.enders.pop();
                life.enders.push(ender);
            }
        }
    }

    /// The first event before which a message may have expired.
    fn first_expired(&self, life: &Life<'_>) -> Option<usize> {
        let born = life.born(self);
        let n = self.events.len() - born;
        // It is found by bisection: what may have expired stays so.
        let (mut low, mut high) = (0, n);
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.may_have_expired(life, self.point(born + middle)) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        (low < n || self.may_have_expired(life, Point::NEVER)).then_some(born + low)
    }

    /// The reserve that may have been the first to find a message expired and to end it in this way, and the point after
    /// which it has.
    fn ended_by_reserve(&self, life: &Life<'_>, first: usize, how: OnExpiry) -> Option<(usize, usize)> {
        let reserves = self.reserves.get(life.queue.as_str()).map_or(&[][..], Vec::as_slice);
        let after = first.saturating_sub(1);
        let may = |&&r: &&usize| {
            let op = &self.ops[r];
            let from = op.inv.idx.max(after);
            op.latest.idx >= first
                && self.limits_between(&life.queue, from, op.latest.idx).iter().any(|l| l.on_expiry == how)
        };
        // They are in the order of their invocations: behind one that began later, none is earlier.
        let earlier = reserves.iter().take_while(|&&r| self.ops[r].inv.idx <= after).find(may);
        let op =
            *earlier.or_else(|| reserves.iter().skip_while(|&&r| self.ops[r].inv.idx <= after).find(may))?;
        Some((op, self.ops[op].inv.idx.max(after)))
    }

    /// The first point at which a message was gone that only its expiry can have removed.
    fn seen_gone(&self, life: &Life<'_>) -> Option<Point> {
        let exists = life.exists?;
        let asked = life.gets.iter().chain(&life.changes).filter_map(|&op| match self.ops[op].end {
            End::Fail(ret, Refusal::NotFound) if self.ops[op].inv.idx > exists.idx => Some(ret),
            _ => None,
        });
        let dump = self.dumps.get(life.queue.as_str()).map(|(at, _)| *at).filter(|_| life.held.is_none());
        let gone = asked.chain(dump).min_by_key(|at| at.idx)?;
        let by_expiry = life.enders.iter().all(|e| e.how == How::Expired || e.since >= gone.idx);
        let may_have = life.enders.iter().any(|e| e.how == How::Expired && e.since < gone.idx);
        (by_expiry && may_have && !life.forgotten(self, gone.idx)).then_some(gone)
    }
}

impl Judge<'_, '_> {
    /// A grant says truly whether its message had expired, and an expired one is granted only if its queue wants that.
    pub(super) fn expiry(&mut self) {
        let (life, world) = (self.life, self.world);
        let may_expire = life.expiry.is_some() || world.limits.contains_key(life.queue.as_str());
        for g in &life.grants {
            if !may_expire && !g.grant.late {
                continue;
            }
            self.report.applied(Check::Expiry);
            let attempt = g.grant.attempt;
            let limits = world.limits_between(&life.queue, g.inv.idx, g.ret.idx);
            if g.grant.late && !world.may_have_expired(life, g.ret) {
                self.blame(
                    Check::Expiry,
                    format!("attempt {attempt} is said to be late before it has expired"),
                );
            } else if g.grant.late && limits.iter().all(|l| l.on_expiry != OnExpiry::DeliverLate) {
                let what = format!("attempt {attempt} is of an expired message, which was to end instead");
                self.blame(Check::Expiry, what);
            } else if let (false, Some(expired)) = (g.grant.late, world.expires_at_latest(life, g)) {
                let slack = world.slack_ms(life.born(world), g.ret.idx) * NS;
                if g.least.ns > expired.saturating_add(slack) {
                    let ms = (g.least.ns - expired) / NS;
                    let what =
                        format!("attempt {attempt} is said to be in time {ms} ms after it had expired");
                    self.blame(Check::Expiry, what);
                }
            }
            let dead = life.gets.iter().any(|&get| {
                let op = &world.ops[get];
                let died = matches!(op.end, End::Ok(ret, Answer::Found(row))
                    if row.death == Some(Death::Expired) && ret.idx < g.inv.idx);
                died && !life.redriven(world, g.ret.idx)
            });
            if dead {
                self.blame(Check::Expiry, format!("attempt {attempt} was granted after it had died expired"));
            }
        }
    }

    pub(super) fn nothing_after_expiry(&mut self, gone: Point) {
        for g in &self.life.grants {
            self.report.applied(Check::Expiry);
            if g.inv.idx > gone.idx {
                let what = format!("attempt {} was asked for after it had been dropped", g.grant.attempt);
                self.blame(Check::Expiry, what);
            }
        }
    }

    /// Checks a dead message that says that it had expired; returns whether it does.
    pub(super) fn dead_by_expiry(&mut self, row: &Held, ret: Point) -> bool {
        let (life, world) = (self.life, self.world);
        let may = life.may_have_expired_dead(ret.idx);
        match row.death {
            Some(Death::Expired) => {
                self.report.applied(Check::Expiry);
                if !may {
                    self.blame(Check::Expiry, "is said to have died expired, and cannot have".to_owned());
                } else if row.attempt >= life.max_attempts && life.grants.is_empty() {
                    let lost = world.lost_between(&life.queue, life.born(world), ret.idx);
                    if row.attempt > lost {
                        self.blame(Check::Expiry, "its expiry has used up an attempt".to_owned());
                    }
                }
                true
            }
            Some(Death::MaxAttempts | Death::Buried) => false,
            None => may,
        }
    }

    /// The due time in the answer to an enqueue lies in the spread.
    pub(super) fn spread(&mut self) {
        let (life, world) = (self.life, self.world);
        let Some(first) = life.sends.first().map(|&send| world.ops[send].inv) else { return };
        for op in self.life.sends.iter().map(|&send| &world.ops[send]) {
            let End::Ok(ret, Answer::Enqueued { created: true, due_at_ms: Some(due), .. }) = op.end else {
                continue;
            };
            let Call::Enqueue(Enqueue { when, spread_ms, .. }) = op.call else { continue };
            let (from, to) = match *when {
                When::AtMs(ms) => (ms, ms),
                // The clocks of several machines may differ.
                When::DelayMs(_) if world.rules.shards == Shards::Many => continue,
                When::DelayMs(_) if world.stepped(first.idx, ret.idx) => continue,
                When::DelayMs(ms) => {
                    let slack = world.rules.slack_ms;
                    let from = first.wall.saturating_add(ms).saturating_sub(slack);
                    (from, ret.wall.saturating_add(ms).saturating_add(slack))
                }
            };
            self.report.applied(Check::Spread);
            if *due < from || *due > to.saturating_add(*spread_ms) {
                let what = format!("is due at {due}, not within {spread_ms} ms from {from} to {to} on");
                self.blame(Check::Spread, what);
            }
        }
    }
}

/// What a message's expiry and spread prove.
pub(super) fn gather(world: &World<'_>, life: &Life<'_>, evidence: &mut Evidence) {
    let dropped = life.certain_end().filter(|(e, _)| e.how == How::Expired);
    evidence.add(Fact::ExpiredDropped, u64::from(dropped.is_some()));
    let seen = life.gets.iter().filter_map(|&get| match world.ops[get].end {
        End::Ok(_, Answer::Found(row)) => Some(row),
        _ => None,
    });
    let mut rows = seen.chain(life.held.map(|(_, row)| row));
    let dead = rows.any(|row| row.state == State::Dead && row.death == Some(Death::Expired));
    evidence.add(Fact::ExpiredDead, u64::from(dead));
    for (i, g) in life.grants.iter().enumerate().filter(|(_, g)| g.grant.late) {
        evidence.add(Fact::ExpiredLate, 1);
        let back = i > 0 && life.may_be_given_back(world, &life.grants[i - 1], g.ret.idx);
        evidence.add(Fact::ExpiredAfterRetries, u64::from(back));
    }
    let drawn = life.sends.iter().any(|&send| {
        let op = &world.ops[send];
        matches!((op.call, op.end), (Call::Enqueue(Enqueue { when: When::AtMs(ms), .. }), End::Ok(_, Answer::Enqueued { created: true, due_at_ms: Some(due), .. })) if due > ms)
    });
    evidence.add(Fact::Spread, u64::from(drawn));
    if (dropped.is_some() || dead)
        && let Some(key) = &life.key
    {
        let others = &world.keys[&(life.queue.clone(), key.clone())];
        let gone = dropped.map(|(_, at)| at.idx);
        let since = gone.or(life.expired_dead).unwrap_or(usize::MAX);
        let later = others
            .iter()
            .map(|&l| &world.lives[l])
            .any(|other| other.exists.is_some() && other.sends.iter().all(|&s| world.ops[s].inv.idx > since));
        evidence.add(Fact::ExpiredKeysReused, u64::from(later));
    }
}
