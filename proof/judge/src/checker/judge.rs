//! Checks of a single message.

use crate::history::{Answer, Call, Held, Leases, Refusal, State, Told};

use super::life::{Ender, Granted, How, Life, may_be_leased};
use super::op::{End, NS, Op, Point, proof};
use super::world::World;
use super::{Check, Report};

pub(super) fn check(world: &World<'_>, life: &Life<'_>, report: &mut Report) {
    let mut judge = Judge { world, life, report };
    judge.tokens();
    judge.expiry();
    judge.spread();
    judge.early();
    judge.leases();
    judge.attempts();
    judge.pushes();
    judge.ends();
    judge.superseded();
    judge.settles();
    judge.changes();
    judge.gets();
    judge.held();
    judge.offered();
    judge.lateness();
    judge.balance();
}

pub(super) struct Judge<'a, 'h> {
    pub(super) world: &'a World<'h>,
    pub(super) life: &'a Life<'h>,
    pub(super) report: &'a mut Report,
}

impl<'h> Judge<'_, 'h> {
    pub(super) fn blame(&mut self, check: Check, what: String) {
        self.world.accuse(self.report, check, self.life, what);
    }

    pub(super) fn ops<'b>(&'b self, which: &'b [usize]) -> impl Iterator<Item = &'b Op<'h>> {
        which.iter().map(|&i| &self.world.ops[i])
    }

    /// Tokens grow from grant to grant.
    fn tokens(&mut self) {
        let life = self.life;
        for (i, a) in life.grants.iter().enumerate() {
            self.report.applied(Check::TokenOrder);
            for b in &life.grants[i + 1..] {
                if a.grant.token == b.grant.token {
                    self.blame(Check::TokenOrder, format!("token {} was given twice", a.grant.token.0));
                } else if b.ret.idx < a.inv.idx {
                    let what = format!("token {} was given after {}", a.grant.token.0, b.grant.token.0);
                    self.blame(Check::TokenOrder, what);
                }
            }
        }
    }

    /// No consumer gets a message while another one has it.
    fn leases(&mut self) {
        let life = self.life;
        for pair in life.grants.windows(2) {
            let (a, b) = (&pair[0], &pair[1]);
            if life.may_be_given_back(self.world, a, b.ret.idx) || self.world.forgettable(a, b.ret.idx) {
                continue;
            }
            self.report.applied(Check::LeaseBroken);
            let free = life.lease_ends_after(self.world, a, b.ret.idx);
            let seen = b.ret.ns + self.world.jumped_unnoted(a.inv.idx, b.ret.idx);
            if seen < free {
                let what = format!(
                    "granted again (attempt {}) {} µs before the lease of attempt {} can have run out",
                    b.grant.attempt,
                    (free - seen).div_ceil(1_000),
                    a.grant.attempt
                );
                self.blame(Check::LeaseBroken, what);
            }
        }
    }

    /// Attempts count up by one for each grant; a gap needs a reserve whose answer was lost.
    fn attempts(&mut self) {
        let life = self.life;
        if self.world.rules.attempts == Told::No {
            return;
        }
        let born = life.born(self.world);
        let mut last: Option<&Granted<'_>> = None;
        for g in &life.grants {
            self.report.applied(Check::Attempts);
            let n = g.grant.attempt;
            let (before, from) = last.map_or((0, born), |l| (l.grant.attempt, l.inv.idx));
            let forgotten = last.is_some_and(|l| self.world.forgettable(l, g.ret.idx));
            let lost = self.world.lost_between(&life.queue, from, g.ret.idx);
            if n <= before && !forgotten {
                self.blame(Check::Attempts, format!("attempt {n} after attempt {before}"));
            } else if n > before + 1 + lost {
                let what =
                    format!("attempt {n} after attempt {before}, but only {lost} grants can have been lost");
                self.blame(Check::Attempts, what);
            }
            if n > life.max_attempts && !life.redriven(self.world, g.ret.idx) {
                let what = format!("attempt {n} of at most {}", life.max_attempts);
                self.blame(Check::DeadInexact, what);
            }
            last = Some(g);
        }
    }

    /// A message ends once, and nothing follows.
    fn ends(&mut self) {
        let life = self.life;
        let certain: Vec<&Ender> = life.enders.iter().filter(|e| e.certain).collect();
        if certain.len() > 1 {
            let hows: Vec<String> = certain.iter().map(|e| format!("{:?}", e.how)).collect();
            self.blame(Check::EndedTwice, format!("ended more than once: {}", hows.join(", ")));
        }
        if !certain.is_empty() {
            self.report.applied(Check::EndedTwice);
        }
        for e in certain {
            let op = &self.world.ops[e.op];
            let Some(ret) = e.ended else { continue };
            match e.how {
                How::Acked => self.nothing_after_ack(op, ret),
                How::Cancelled | How::Replaced => self.nothing_after_cancel(op, ret),
                How::Expired => self.nothing_after_expiry(ret),
                How::Superseded | How::Purged => {}
            }
        }
    }

    /// A message whose key was taken while it was leased is not granted again, shows no key, and is leased until it is
    /// gone.
    fn superseded(&mut self) {
        let life = self.life;
        let Some(taken) = life.superseded else { return };
        self.report.applied(Check::GrantAfterCancel);
        for g in life.grants.iter().filter(|g| g.inv.idx > taken.idx) {
            let what =
                format!("attempt {} was asked for after another message took its key", g.grant.attempt);
            self.blame(Check::GrantAfterCancel, what);
        }
        let seen = self.ops(&life.gets).filter_map(|op| match op.end {
            End::Ok(_, Answer::Found(row)) => Some((op.inv, row)),
            End::Ok(..) | End::Fail(..) | End::Unknown => None,
        });
        let seen: Vec<_> = seen.chain(life.held).filter(|(at, _)| at.idx > taken.idx).collect();
        for (_, row) in seen.into_iter().filter(|(_, row)| row.state != State::Leased || row.key.is_some()) {
            let what = format!("is {:?}, key {:?}, after another message took its key", row.state, row.key);
            self.blame(Check::Resurrected, what);
        }
    }

    fn nothing_after_ack(&mut self, op: &Op<'h>, ret: Point) {
        let life = self.life;
        let Some(proof) = proof(op.call) else { return };
        self.report.applied(Check::GrantAfterAck);
        if self.world.rules.leases == Leases::OfConnections {
            for g in life.grants.iter().filter(|g| g.grant.token != proof.token) {
                if let Some(how) = self.granted_after(g, op, ret) {
                    self.blame(Check::GrantAfterAck, format!("{how} the ack was answered"));
                }
            }
            return;
        }
        for g in &life.grants {
            // The ack was accepted, so its token was the latest then; a greater one is newer than the ack, or was
            // forgotten.
            if g.grant.token > proof.token && self.world.forgettable(g, ret.idx) && g.ret.idx < op.inv.idx {
                continue;
            }
            if g.grant.token > proof.token {
                let what =
                    format!("attempt {} has a newer token than the one that was acked", g.grant.attempt);
                self.blame(Check::GrantAfterAck, what);
            } else if g.inv.idx > ret.idx {
                let what = format!("attempt {} was asked for after the ack was answered", g.grant.attempt);
                self.blame(Check::GrantAfterAck, what);
            }
        }
    }

    fn nothing_after_cancel(&mut self, op: &Op<'h>, ret: Point) {
        self.report.applied(Check::GrantAfterCancel);
        for g in &self.life.grants {
            if let Some(how) = self.granted_after(g, op, ret) {
                self.blame(Check::GrantAfterCancel, format!("{how} the cancel was answered"));
            }
        }
    }

    /// Checks a grant after an operation that removes the message unless a consumer has it; `None` if the two may
    /// follow each other.
    fn granted_after(&self, g: &Granted<'h>, op: &Op<'h>, ret: Point) -> Option<String> {
        let attempt = g.grant.attempt;
        if g.inv.idx > ret.idx {
            return Some(format!("attempt {attempt} was asked for after"));
        }
        // The two overlap. Either the grant was first: then its lease must have ended before the removal was answered.
        // Or it came after the removal, which is wrong.
        if self.over(g, ret) {
            return None;
        }
        let order = if g.ret.idx < op.inv.idx { "was held" } else { "overlaps" };
        Some(format!("attempt {attempt} {order}, its lease cannot have ended before"))
    }

    /// Whether a lease may have ended before a point.
    fn over(&self, g: &Granted<'h>, at: Point) -> bool {
        let (life, world) = (self.life, self.world);
        at.ns + world.jumped_unnoted(g.inv.idx, at.idx) >= life.lease_ends_after(world, g, at.idx)
            || life.may_be_given_back(world, g, at.idx)
            || world.forgettable(g, at.idx)
    }

    /// Stale settles are refused, those of the holder are not.
    fn settles(&mut self) {
        let (life, world) = (self.life, self.world);
        let gone = life.certain_end();
        for &s in &life.settles {
            let op = &world.ops[s];
            let Some(proof) = proof(op.call) else { continue };
            match op.end {
                End::Ok(ret, _) => {
                    self.report.applied(Check::StaleSettle);
                    // Any client may delete a message that no consumer has.
                    let open = world.rules.leases == Leases::OfConnections && matches!(op.call, Call::Ack(_));
                    let newer = life
                        .grants
                        .iter()
                        .filter(|g| g.grant.token > proof.token && g.ret.idx < op.inv.idx)
                        .find(|g| !(world.forgettable(g, ret.idx) || open && self.over(g, ret)));
                    if let Some(g) = newer {
                        let what =
                            format!("accepted token {} although {} was out", proof.token.0, g.grant.token.0);
                        self.blame(Check::StaleSettle, what);
                    }
                    if let Some((e, at)) = gone
                        && e.op != s
                        && at.idx < op.inv.idx
                    {
                        let what = format!("accepted a settle after the message was {:?}", e.how);
                        self.blame(Check::StaleSettle, what);
                    }
                    if matches!(op.call, Call::Extend { .. }) {
                        self.late_extend(op, ret);
                    }
                }
                End::Fail(ret, Refusal::LeaseLost) => self.refused(s, op, ret),
                End::Fail(ret, Refusal::AlreadyAcked) => self.repeated(s, op, ret),
                End::Fail(ret, Refusal::NotFound)
                    if life.exists.is_some_and(|p| p.idx < op.inv.idx) && !life.forgotten(world, ret.idx) =>
                {
                    self.blame(Check::Untruthful, "the id was said never to have been given".to_owned());
                }
                End::Fail(..) | End::Unknown => {}
            }
        }
    }

    fn late_extend(&mut self, op: &Op<'h>, ret: Point) {
        let (life, world) = (self.life, self.world);
        let Some(proof) = proof(op.call) else { return };
        let Some(g) = life.grants.iter().find(|g| g.grant.token == proof.token) else { return };
        if world.stepped(g.inv.idx, ret.idx) {
            return;
        }
        self.report.applied(Check::LateExtend);
        let mut end = g.ret.ns.saturating_add(g.lease_ns);
        for other in life.extends(world, g).filter(|o| o.inv.idx != op.inv.idx && o.inv.idx < ret.idx) {
            if let Call::Extend { lease_ms, .. } = other.call {
                end = end.max(other.latest.ns.saturating_add(lease_ms.saturating_mul(NS)));
            }
        }
        end = end.saturating_add(world.slack_ms(g.inv.idx, op.inv.idx) * NS);
        if op.inv.ns > end {
            let what = format!("extended {} ms after the lease had run out", (op.inv.ns - end) / NS);
            self.blame(Check::LateExtend, what);
        }
    }

    /// An ack was answered with "already acked": there must be another ack with this token, or the message was superseded.
    fn repeated(&mut self, s: usize, op: &Op<'h>, ret: Point) {
        let (life, world) = (self.life, self.world);
        let Some(proof) = proof(op.call) else { return };
        self.report.applied(Check::Untruthful);
        let acked = life.settles.iter().any(|&other| {
            let o = &world.ops[other];
            let same = self::proof(o.call).is_some_and(|p| p.token == proof.token);
            other != s && same && matches!(o.call, Call::Ack(_)) && o.possible() && o.inv.idx < ret.idx
        });
        let superseded = life.enders.iter().any(|e| e.how == How::Superseded && e.since < ret.idx);
        if !acked && !superseded {
            let what = "an ack was told that its message is done, and no other was made".to_owned();
            self.blame(Check::Untruthful, what);
        }
    }

    /// A settle was refused with `lease_lost`: there must be a way in which the lease was lost.
    fn refused(&mut self, s: usize, op: &Op<'h>, ret: Point) {
        let (life, world) = (self.life, self.world);
        let Some(proof) = proof(op.call) else { return };
        let Some(g) = life.grants.iter().find(|g| g.grant.token == proof.token) else { return };
        let settled = life.settles.iter().any(|&other| {
            let o = &world.ops[other];
            let same = self::proof(o.call).is_some_and(|p| p.token == proof.token);
            other != s
                && same
                && o.possible()
                && o.inv.idx < ret.idx
                && !matches!(o.call, Call::Extend { .. })
        });
        if settled || g.ret.idx > op.inv.idx || world.forgettable(g, ret.idx) || world.hung_up(g, ret.idx) {
            return;
        }
        self.report.applied(Check::WronglyRefused);
        let now = ret.ns + world.jumped_unnoted(g.inv.idx, ret.idx);
        // What purges and expiry end is not leased, and a superseded message ends with its lease.
        let others = life.enders.iter();
        let others = others.filter(|e| !matches!(e.how, How::Superseded | How::Purged | How::Expired));
        let others = others.into_iter().any(|e| e.since < ret.idx);
        if now < life.lease_ends_after(world, g, ret.idx) {
            if !others {
                self.blame(Check::WronglyRefused, "refused although the lease still ran".to_owned());
            }
            return;
        }
        let newer = life.grants.iter().any(|n| n.grant.token > proof.token && n.inv.idx < ret.idx);
        let changed =
            self.ops(&life.changes).chain(self.ops(&life.loose)).any(|c| c.possible() && c.inv.idx < ret.idx);
        let ended = life.may_have_ended(ret.idx);
        let lost = world.lost_between(&life.queue, g.inv.idx, ret.idx) > 0;
        let expired = life.may_have_expired_dead(ret.idx);
        let needs_a_running_lease = match op.call {
            Call::Extend { .. } => true,
            Call::Nack { .. } | Call::Bury(_) => world.rules.leases == Leases::OfConnections,
            _ => false,
        };
        if !(newer || changed || ended || lost || expired || needs_a_running_lease) {
            let what = "refused although nobody can have got the message since the lease ran out".to_owned();
            self.blame(Check::WronglyRefused, what);
        }
    }

    /// Checks the changes of a producer by id.
    fn changes(&mut self) {
        let (life, world) = (self.life, self.world);
        for &c in &life.changes {
            let op = &world.ops[c];
            match op.end {
                End::Ok(ret, _) => {
                    self.not_gone(op, "was changed");
                    if !matches!(op.call, Call::Cancel(_)) {
                        self.not_leased(op, ret);
                    }
                }
                End::Fail(ret, Refusal::NotFound) => self.not_found(op, ret),
                End::Fail(ret, Refusal::Leased) => self.said_leased(op, ret),
                End::Fail(ret, Refusal::GoneOrLeased) => self.said_gone_or_leased(op, ret),
                End::Fail(ret, Refusal::Dead) => {
                    self.report.applied(Check::Untruthful);
                    if !life.may_be_dead(world, ret.idx) {
                        self.blame(Check::Untruthful, "was said to be dead, but cannot be".to_owned());
                    }
                }
                End::Fail(..) | End::Unknown => {}
            }
        }
    }

    fn not_gone(&mut self, op: &Op<'h>, verb: &str) {
        self.report.applied(Check::Resurrected);
        if let Some((e, at)) = self.life.certain_end()
            && at.idx < op.inv.idx
        {
            self.blame(Check::Resurrected, format!("{verb} after it was {:?}", e.how));
        }
    }

    fn not_leased(&mut self, op: &Op<'h>, ret: Point) {
        let life = self.life;
        self.report.applied(Check::ChangedWhileLeased);
        for g in life.grants.iter().filter(|g| g.ret.idx < op.inv.idx) {
            if !self.over(g, ret) {
                let what = format!("changed while attempt {} was out", g.grant.attempt);
                self.blame(Check::ChangedWhileLeased, what);
            }
        }
    }

    fn not_found(&mut self, op: &Op<'h>, ret: Point) {
        self.report.applied(Check::Untruthful);
        if self.life.alive(self.world, op.inv.idx, ret.idx) {
            self.blame(Check::Untruthful, "was said not to be there".to_owned());
        }
    }

    fn said_leased(&mut self, op: &Op<'h>, ret: Point) {
        self.report.applied(Check::Untruthful);
        if !may_be_leased(self.world, self.life, op, ret) {
            self.blame(Check::Untruthful, "was said to be leased, but nobody can have it".to_owned());
        }
    }

    fn said_gone_or_leased(&mut self, op: &Op<'h>, ret: Point) {
        self.report.applied(Check::Untruthful);
        let there = self.life.alive(self.world, op.inv.idx, ret.idx);
        if there && !may_be_leased(self.world, self.life, op, ret) {
            let what = "was said to be gone or leased, but it is there, and nobody can have it".to_owned();
            self.blame(Check::Untruthful, what);
        }
    }

    fn gets(&mut self) {
        let life = self.life;
        for &i in &life.gets {
            let op = &self.world.ops[i];
            match op.end {
                End::Ok(ret, Answer::Found(row)) => {
                    self.not_gone(op, "was seen");
                    self.row(row, op.inv, ret);
                }
                End::Fail(ret, Refusal::NotFound) => self.not_found(op, ret),
                End::Ok(..) | End::Fail(..) | End::Unknown => {}
            }
        }
    }

    fn held(&mut self) {
        let Some((at, row)) = self.life.held else { return };
        self.report.applied(Check::Resurrected);
        if let Some((e, _)) = self.life.certain_end() {
            self.blame(Check::Resurrected, format!("in the final dump although it was {:?}", e.how));
        }
        self.row(row, at, at);
    }

    /// Checks attempts and death in a get or the dump.
    fn row(&mut self, row: &Held, inv: Point, ret: Point) {
        let (life, world) = (self.life, self.world);
        if world.rules.attempts == Told::No {
            return;
        }
        if let Some(pushed) = self.is_pushed() {
            return self.pushed_row(pushed, row, inv, ret);
        }
        self.report.applied(Check::Attempts);
        let forgotten = life.grants.iter().any(|g| world.forgettable(g, ret.idx));
        let most = |grants: &mut dyn Iterator<Item = &Granted<'_>>| {
            grants.map(|g| g.grant.attempt).max().unwrap_or(0)
        };
        let known = most(&mut life.grants.iter().filter(|g| g.ret.idx < inv.idx));
        let asked = most(&mut life.grants.iter().filter(|g| g.inv.idx < ret.idx));
        let since = life.grants.iter().filter(|g| g.ret.idx < inv.idx).map(|g| g.inv.idx).max();
        let lost = world.lost_between(&life.queue, since.unwrap_or_else(|| life.born(world)), ret.idx);
        if row.attempt < known && !forgotten {
            self.blame(Check::Attempts, format!("shows {} attempts after {known} grants", row.attempt));
        }
        if row.attempt > asked + lost && !life.sends.is_empty() {
            let what =
                format!("shows {} attempts, but {asked} grants and {lost} lost ones at most", row.attempt);
            self.blame(Check::Attempts, what);
        }
        if life.redriven(world, ret.idx) || life.buried(world, ret.idx) || life.sends.is_empty() {
            return;
        }
        if row.state == State::Dead && self.dead_by_expiry(row, ret) {
            return;
        }
        self.report.applied(Check::DeadInexact);
        match row.state {
            State::Dead if row.attempt != life.max_attempts => {
                let what = format!("dead after {} attempts of {}", row.attempt, life.max_attempts);
                self.blame(Check::DeadInexact, what);
            }
            State::Scheduled | State::Ready if row.attempt >= life.max_attempts => {
                let what = format!("{:?} after {} attempts of {}", row.state, row.attempt, life.max_attempts);
                self.blame(Check::DeadInexact, what);
            }
            State::Scheduled | State::Ready | State::Leased | State::Dead => {}
        }
    }

    /// Checks the lateness: the grant happened between reserve and answer, and the message came due at a time that is
    /// known, too; the reported difference must lie between.
    fn lateness(&mut self) {
        let (life, world) = (self.life, self.world);
        let (Some(first), [send]) = (life.grants.first(), &life.sends[..]) else { return };
        let untold = world.rules.lateness == Told::No || world.rules.attempts == Told::No;
        if untold || first.grant.attempt != 1 || !life.changes.is_empty() || !life.loose.is_empty() {
            return;
        }
        let Some(due) = super::lateness::due(world, *send) else { return };
        if due.latest == u64::MAX || world.stepped(life.born(world), first.ret.idx) {
            return;
        }
        self.report.applied(Check::Lateness);
        let least = first.inv.ns.saturating_sub(due.latest) / NS;
        let most = first.ret.ns.saturating_sub(due.earliest).div_ceil(NS);
        let (said, slack) = (first.grant.lateness_ms, world.slack_ms(life.born(world), first.ret.idx));
        if said + slack < least || said > most + slack {
            self.blame(
                Check::Lateness,
                format!("said to be {said} ms late, but is {least} to {most} ms late"),
            );
        }
    }

    /// Each accepted message is in exactly one place.
    fn balance(&mut self) {
        let (life, world) = (self.life, self.world);
        if life.exists.is_none() {
            return;
        }
        let balance = &mut self.report.balance;
        balance.accepted += 1;
        let answered = self.life.sends.iter().any(|&s| world.ops[s].done().is_some());
        balance.accepted_unanswered += u64::from(!answered);
        let unknown = life.may_have_ended(usize::MAX);
        let delivered = life.pushes.iter().any(|push| push.accepted().is_some());
        let forgotten = life.forgotten(world, usize::MAX);
        match (life.certain_end().map(|(e, _)| e.how), life.held) {
            (Some(How::Acked), _) => balance.acked += 1,
            (Some(How::Cancelled), _) => balance.cancelled += 1,
            (Some(How::Replaced), _) => balance.replaced += 1,
            (Some(How::Superseded), _) => balance.superseded += 1,
            (Some(How::Expired), _) => balance.expired += 1,
            (Some(How::Purged) | None, Some((_, row))) if row.state == State::Dead => balance.dead += 1,
            (Some(How::Purged) | None, Some(_)) => balance.held += 1,
            (Some(How::Purged) | None, None) if delivered => balance.delivered += 1,
            (Some(How::Purged) | None, None) if unknown => balance.unknown += 1,
            (Some(How::Purged) | None, None) if forgotten => balance.forgotten += 1,
            (Some(How::Purged) | None, None) => balance.lost += 1,
        }
        if !world.dumps.contains_key(life.queue.as_str()) {
            return;
        }
        self.report.applied(Check::Lost);
        if life.held.is_none() && !unknown && !forgotten {
            let granted = match (life.grants.is_empty(), life.pushes.len()) {
                (true, 0) => "was never granted".to_owned(),
                (true, pushes) => format!("was pushed {pushes} times without a success"),
                (false, _) => "was never settled".to_owned(),
            };
            self.blame(Check::Lost, format!("was accepted, {granted}, and is not in the final dump"));
        }
    }
}
