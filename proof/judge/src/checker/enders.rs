//! The requests that may have ended a message.

use std::collections::BTreeMap;

use crate::history::{Answer, Call, IfExists, Leases};

use super::life::{Ender, How, Life};
use super::names::Names;
use super::op::{End, Op, Point, gives_back};
use super::world::World;

impl World<'_> {
    pub(super) fn find_enders(&mut self, names: &Names) {
        let mut purges: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let mut replacers: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
        for (i, op) in self.ops.iter().enumerate().filter(|(_, op)| op.possible()) {
            match op.call {
                Call::Purge { queue } => purges.entry(queue).or_default().push(i),
                Call::Enqueue(e) if matches!(e.if_exists, IfExists::Replace | IfExists::Supersede) => {
                    if let Some(key) = &e.key {
                        replacers.entry((&e.queue, key)).or_default().push(i);
                    }
                }
                _ => {}
            }
        }
        for l in 0..self.lives.len() {
            let (enders, superseded) = self.enders_of(l, names, &purges, &replacers);
            self.lives[l].enders = enders;
            self.lives[l].superseded = superseded;
        }
    }

    /// An operation that may have ended a message, and has if it was answered.
    fn ender(&self, op: usize, how: How) -> Ender {
        let ended = self.ops[op].done().filter(|_| self.certainly_done(op));
        Ender { op, how, certain: ended.is_some(), since: self.ops[op].inv.idx, ended }
    }

    /// An operation that may have ended a message.
    fn perhaps(&self, op: usize, how: How) -> Ender {
        Ender { op, how, certain: false, since: self.ops[op].inv.idx, ended: None }
    }

    /// An enqueue that took the key of a message while a consumer had it. The message ends with that lease, unless it is
    /// acked before.
    fn superseder(&self, life: &Life<'_>, op: usize) -> Ender {
        let taken = &self.ops[op];
        let since = self.lease_may_end(life, taken).max(taken.inv.idx);
        let mut ender = Ender { since, ..self.perhaps(op, How::Superseded) };
        let Some(ret) = taken.done().filter(|_| self.certainly_done(op)) else { return ender };
        let given_back = life.settles.iter().filter(|&&s| {
            gives_back(self.ops[s].call).is_some() && self.ops[s].inv.idx > ret.idx && self.certainly_done(s)
        });
        let given_back = given_back.filter_map(|&s| self.ops[s].done()).min_by_key(|at| at.idx);
        let is_ack = |op: &Op<'_>| matches!(op.call, Call::Ack(_)) && op.possible();
        let explained = life.settles.iter().any(|&s| is_ack(&self.ops[s]))
            || !life.pushes.is_empty()
            || life.forgotten(self, usize::MAX);
        let dump = self.dumps.get(life.queue.as_str()).map(|(at, _)| *at);
        ender.ended = given_back.or(dump.filter(|at| life.held.is_none() && !explained && since < at.idx));
        ender.certain = ender.ended.is_some();
        ender
    }

    /// The point after which the lease may have ended that an enqueue found.
    fn lease_may_end(&self, life: &Life<'_>, taken: &Op<'_>) -> usize {
        let received = life.grants.iter().filter(|g| g.ret.idx < taken.inv.idx);
        let newest = received.map(|g| &g.grant.token).max();
        let held = life
            .grants
            .iter()
            .filter(|g| g.inv.idx < taken.latest.idx && newest.is_none_or(|newest| g.grant.token >= *newest));
        let ends = held.map(|g| {
            if self.forgettable(g, usize::MAX)
                || self.hung_up(g, usize::MAX)
                || self.lost_between(&life.queue, g.inv.idx, taken.latest.idx) > 0
            {
                return 0;
            }
            let end = life.lease_ends_after(self, g, usize::MAX);
            let end = end.saturating_sub(self.jumped_unnoted(g.inv.idx, usize::MAX));
            let after = self.events.partition_point(|event| event.at.mono_ns < end);
            let ran_out = if after == self.events.len() { usize::MAX } else { after.saturating_sub(1) };
            let given_back = life.settles.iter().map(|&s| &self.ops[s]);
            let given_back =
                given_back.filter(|op| op.possible() && gives_back(op.call) == Some(&g.grant.token));
            given_back.map(|op| op.inv.idx).chain([ran_out]).min().unwrap_or(0)
        });
        ends.min().unwrap_or(0)
    }

    /// All that may have ended a message, and the point before which another one has certainly taken its key.
    fn enders_of(
        &self,
        number: usize,
        names: &Names,
        purges: &BTreeMap<&str, Vec<usize>>,
        replacers: &BTreeMap<(&str, &str), Vec<usize>>,
    ) -> (Vec<Ender>, Option<Point>) {
        let life = &self.lives[number];
        let mut enders = Vec::new();
        let mut taken = None;
        for &op in &life.settles {
            let Call::Ack(proof) = self.ops[op].call else { continue };
            // An ack that is known to be stale has ended nothing, whatever its outcome; a delete may have.
            let stale = self.rules.leases == Leases::OfTokens
                && life
                    .grants
                    .iter()
                    .any(|g| g.grant.token > proof.token && g.ret.idx < self.ops[op].inv.idx);
            if self.ops[op].done().is_some() || (self.ops[op].unknown() && !stale) {
                enders.push(self.ender(op, How::Acked));
            }
        }
        for &op in &life.changes {
            if matches!(self.ops[op].call, Call::Cancel(_)) && self.ops[op].possible() {
                enders.push(self.ender(op, How::Cancelled));
            }
        }
        for &op in &life.loose {
            if matches!(self.ops[op].call, Call::Cancel(_)) && self.ops[op].possible() {
                enders.push(self.perhaps(op, How::Cancelled));
            }
        }
        if let Some(key) = &life.key {
            for &op in replacers.get(&(life.queue.as_str(), key.as_str())).into_iter().flatten() {
                if life.sends.contains(&op) {
                    continue;
                }
                match self.ops[op].end {
                    End::Ok(ret, Answer::Enqueued { replaced, superseded, .. }) => {
                        let (inv, latest) = (self.ops[op].inv.idx, self.ops[op].latest.idx);
                        let how = if superseded.is_some() { How::Superseded } else { How::Replaced };
                        let old = superseded.or(*replaced);
                        let meant = old.map_or(Vec::new(), |id| names.between(id, inv, latest));
                        if meant.contains(&number) {
                            let ender = match (meant.len(), how) {
                                (1, How::Superseded) => {
                                    taken = taken.or(Some(ret).filter(|_| self.certainly_done(op)));
                                    self.superseder(life, op)
                                }
                                (1, _) => self.ender(op, how),
                                _ => self.perhaps(op, how),
                            };
                            enders.push(ender);
                        } else if life.may_have_had_another_id(self)
                            && old.is_some_and(|id| !names.ids.contains_key(&id))
                        {
                            enders.push(self.perhaps(op, how));
                        }
                    }
                    End::Ok(..) | End::Fail(..) => {}
                    End::Unknown => {
                        enders.push(self.perhaps(op, How::Replaced));
                        if matches!(self.ops[op].call, Call::Enqueue(e) if e.if_exists == IfExists::Supersede)
                        {
                            enders.push(self.perhaps(op, How::Superseded));
                        }
                    }
                }
            }
        }
        for &op in purges.get(life.queue.as_str()).into_iter().flatten() {
            enders.push(self.perhaps(op, How::Purged));
        }
        let since = life.sends.iter().map(|&s| self.ops[s].inv.idx).min().unwrap_or(0);
        enders.retain(|e| self.ops[e.op].latest.idx > since);
        (enders, taken)
    }
}
