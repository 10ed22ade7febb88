//! Overdue messages are offered to every consumer.

use crate::history::{Call, Leases, QueueLimits};

use super::Check;
use super::due::Due;
use super::judge::Judge;
use super::life::Granted;
use super::op::{NS, Op};

impl Judge<'_, '_> {
    /// Checks that no message is overdue while a consumer asks in vain: gets nothing, or waits for longer than it
    /// should have to.
    pub(super) fn offered(&mut self) {
        let (life, world) = (self.life, self.world);
        let Some(exists) = life.exists else { return };
        let queue = life.queue.as_str();
        let empties = world.empty_reserves.get(queue).map_or(&[][..], Vec::as_slice);
        let slow = world.slow_reserves.get(queue).map_or(&[][..], Vec::as_slice);
        if empties.is_empty() && slow.is_empty() {
            return;
        }
        if life.sends.is_empty() {
            return;
        }
        self.report.applied(Check::NotOffered);
        let ended = life.may_end_at();
        let ended = ended.min(life.forgotten_at(world));
        for i in 0..=life.grants.len() {
            let next = life.grants.get(i);
            let until = next.map_or(usize::MAX, |g| g.inv.idx);
            let since = i.checked_sub(1).map(|p| &life.grants[p]);
            let Some(ready) = self.ready_at_latest(since, until) else { continue };
            let start = since.map_or(exists.idx, |g| g.ret.idx).max(exists.idx);
            // They are in the order of their invocations, and excused as soon as an operation may have ended the
            // message.
            let before = until.min(ended);
            let patience = (world.rules.offer_ms + world.slack_ms(life.born(world), before)) * NS;
            let from = ready.saturating_add(patience);
            let first =
                empties.partition_point(|&e| world.ops[e].inv.ns <= from || world.ops[e].inv.idx <= start);
            let vain = empties[first..]
                .iter()
                .map(|&e| &world.ops[e])
                .take_while(|e| e.inv.idx < before)
                .find(|e| e.latest.idx < until && self.in_vain(e, e.inv.ns, patience));
            if let Some(e) = vain {
                let ms = (e.inv.ns - ready) / NS;
                self.blame(
                    Check::NotOffered,
                    format!("has been due for {ms} ms when a reserve came back empty"),
                );
                return;
            }
            // A reserve that waited could have been answered when the message came due; so could the one that got it in
            // the end.
            let late = slow.iter().filter(|&&r| world.ops[r].inv.idx > start && world.ops[r].inv.idx < ended);
            let late = late.filter_map(|&r| world.ops[r].done().map(|ret| (r, ret))).find(|(r, ret)| {
                let got_it = next.is_some_and(|g| g.op == *r);
                let r = &world.ops[*r];
                (ret.idx < until || got_it)
                    && ret.ns > ready.max(r.inv.ns).saturating_add(patience)
                    && self.in_vain(r, ret.ns, patience)
            });
            if let Some((_, ret)) = late {
                let ms = (ret.ns - ready) / NS;
                self.blame(
                    Check::NotOffered,
                    format!("had been due for {ms} ms when a reserve that waited was answered"),
                );
                return;
            }
        }
    }

    /// Whether nothing excuses this reserve at this moment: no end, death, lost lease, restart, stall or stepped clock
    /// shortly before, and no limit of the queue.
    fn in_vain(&self, r: &Op<'_>, at: u64, patience: u64) -> bool {
        let (life, world) = (self.life, self.world);
        let born = life.born(world);
        if life.may_have_ended(r.latest.idx)
            || life.may_be_dead(world, r.latest.idx)
            || world.put_back(born, r.latest.idx)
            || world.limits_between(&life.queue, r.inv.idx, r.latest.idx).iter().any(QueueLimits::holds_back)
        {
            return false;
        }
        let ups = world.downs.iter().map(|(_, up)| up).chain(&world.stalls);
        let away = world.pauses.iter().chain(&world.blows);
        let away = away.filter(|(paused, _)| paused.idx < r.latest.idx).map(|(_, up)| up);
        let ups = ups.filter(|up| up.idx < r.latest.idx).chain(away);
        let up = ups.into_iter().all(|up| up.ns.saturating_add(patience) < at);
        let leased = world
            .lost_reserves(&life.queue, born, r.latest.idx)
            .any(|lost| world.lost_lease_ends(life, lost).saturating_add(patience) >= r.inv.ns);
        up && !leased
    }

    /// The latest moment at which it became ready after a grant (or at first), if that is known.
    fn ready_at_latest(&self, since: Option<&Granted<'_>>, until: usize) -> Option<u64> {
        let (life, world) = (self.life, self.world);
        let mut ready = since.map_or(0, |g| life.lease_ends_before(world, g));
        for s in world.setters(life).iter().filter(|s| s.inv.idx < until) {
            let unknown = s.latest.idx == usize::MAX;
            if unknown {
                return None;
            }
            let due = match s.due {
                Due::Now => s.latest.ns,
                Due::After(ns) => s.latest.ns.saturating_add(ns),
                Due::At(ms) => self.world.shows(ms, s.latest),
            };
            ready = ready.max(due.saturating_add(s.spread_ns));
        }
        // From the third loss in a row on, a job of a connection waits a backoff.
        if world.rules.leases == Leases::OfConnections
            && let Some(since) = since
        {
            let granted = life.grants.iter().filter(|g| g.ret.idx <= since.ret.idx).count() as u64;
            let losses = granted + world.lost_between(&life.queue, life.born(world), until);
            if losses > 2 {
                ready = ready.saturating_add(world.backoff(losses - 2).saturating_mul(3 * NS / 2));
            }
        }
        // A nack without a delay waits for up to one and a half times its step.
        for op in self.ops(&life.settles).filter(|op| op.possible() && op.inv.idx < until) {
            if let Call::Nack { proof, delay_ms: None } = op.call {
                let longest = world.backoff(life.attempt_of(&proof.token)).saturating_mul(3 * NS / 2);
                ready = ready.max(op.latest.ns.saturating_add(longest));
            }
        }
        Some(ready)
    }
}
