//! The requests that may have ended a message.

use std::collections::BTreeMap;

use crate::history::{Answer, Call, IfExists, Leases};

use super::life::{Ender, How};
use super::names::Names;
use super::op::End;
use super::world::World;

impl World<'_> {
    pub(super) fn find_enders(&mut self, names: &Names) {
        let mut purges: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let mut replacers: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
        for (i, op) in self.ops.iter().enumerate().filter(|(_, op)| op.possible()) {
            match op.call {
                Call::Purge { queue } => purges.entry(queue).or_default().push(i),
                Call::Enqueue(e) if e.if_exists == IfExists::Replace => {
                    if let Some(key) = &e.key {
                        replacers.entry((&e.queue, key)).or_default().push(i);
                    }
                }
                _ => {}
            }
        }
        for l in 0..self.lives.len() {
            let enders = self.enders_of(l, names, &purges, &replacers);
            self.lives[l].enders = enders;
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

    fn enders_of(
        &self,
        number: usize,
        names: &Names,
        purges: &BTreeMap<&str, Vec<usize>>,
        replacers: &BTreeMap<(&str, &str), Vec<usize>>,
    ) -> Vec<Ender> {
        let life = &self.lives[number];
        let mut enders = Vec::new();
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
                    End::Ok(_, Answer::Enqueued { replaced, .. }) => {
                        let (inv, latest) = (self.ops[op].inv.idx, self.ops[op].latest.idx);
                        let meant = replaced.map_or(Vec::new(), |id| names.between(id, inv, latest));
                        if meant.contains(&number) {
                            let ender = match meant.len() {
                                1 => self.ender(op, How::Replaced),
                                _ => self.perhaps(op, How::Replaced),
                            };
                            enders.push(ender);
                        } else if life.may_have_had_another_id(self)
                            && replaced.is_some_and(|id| !names.ids.contains_key(&id))
                        {
                            enders.push(self.perhaps(op, How::Replaced));
                        }
                    }
                    End::Ok(..) | End::Fail(..) => {}
                    End::Unknown => enders.push(self.perhaps(op, How::Replaced)),
                }
            }
        }
        for &op in purges.get(life.queue.as_str()).into_iter().flatten() {
            enders.push(self.perhaps(op, How::Purged));
        }
        let since = life.sends.iter().map(|&s| self.ops[s].inv.idx).min().unwrap_or(0);
        enders.retain(|e| self.ops[e.op].latest.idx > since);
        enders
    }
}
