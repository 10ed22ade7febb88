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
            let certain = self.certainly_done(op);
            // An ack that is known to be stale has ended nothing, whatever its outcome; a delete may have.
            let stale = self.rules.leases == Leases::OfTokens
                && life
                    .grants
                    .iter()
                    .any(|g| g.grant.token > proof.token && g.ret.idx < self.ops[op].inv.idx);
            if self.ops[op].done().is_some() || (self.ops[op].unknown() && !stale) {
                enders.push(Ender { op, how: How::Acked, certain });
            }
        }
        for &op in &life.changes {
            if matches!(self.ops[op].call, Call::Cancel(_)) && self.ops[op].possible() {
                enders.push(Ender { op, how: How::Cancelled, certain: self.certainly_done(op) });
            }
        }
        for &op in &life.loose {
            if matches!(self.ops[op].call, Call::Cancel(_)) && self.ops[op].possible() {
                enders.push(Ender { op, how: How::Cancelled, certain: false });
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
                            let certain = self.certainly_done(op) && meant.len() == 1;
                            enders.push(Ender { op, how: How::Replaced, certain });
                        } else if life.may_have_had_another_id(self)
                            && replaced.is_some_and(|id| !names.ids.contains_key(&id))
                        {
                            enders.push(Ender { op, how: How::Replaced, certain: false });
                        }
                    }
                    End::Ok(..) | End::Fail(..) => {}
                    End::Unknown => enders.push(Ender { op, how: How::Replaced, certain: false }),
                }
            }
        }
        for &op in purges.get(life.queue.as_str()).into_iter().flatten() {
            enders.push(Ender { op, how: How::Purged, certain: false });
        }
        let since = life.sends.iter().map(|&s| self.ops[s].inv.idx).min().unwrap_or(0);
        enders.retain(|e| self.ops[e.op].latest.idx > since);
        enders
    }
}
