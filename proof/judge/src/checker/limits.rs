//! Limits of a queue's grants: leases at a time, and grants over time.

use crate::history::{Answer, Call, HeldBack, QueueLimits, Shards};
use crate::limits::{ARREARS_MS, BEHIND_MS, Pace};

use super::crowd::complain;
use super::evidence::Fact;
use super::life::{Granted, How, Life};
use super::op::{End, NS};
use super::world::World;
use super::{Check, Report};

/// A grant and the message that it is of.
type GrantOf<'w, 'h> = (&'w Life<'h>, &'w Granted<'h>);

/// The grants behind each one that are looked at together with it.
const TOGETHER: usize = 300;

impl World<'_> {
    /// Narrows the points between which each grant was made: of one shard, a greater token is newer.
    pub(super) fn bound_grants(&mut self) {
        if self.rules.shards != Shards::One {
            return;
        }
        let mut all: Vec<(usize, usize)> = Vec::new();
        for (l, life) in self.lives.iter().enumerate() {
            all.extend((0..life.grants.len()).map(|g| (l, g)));
        }
        all.sort_by(|a, b| {
            self.lives[a.0].grants[a.1].grant.token.cmp(&self.lives[b.0].grants[b.1].grant.token)
        });
        let mut least = None;
        for &(l, g) in &all {
            let g = &mut self.lives[l].grants[g];
            let point = least.filter(|p: &super::op::Point| p.idx > g.inv.idx).unwrap_or(g.inv);
            least = Some(point);
            g.least = point;
        }
        let mut most = None;
        for &(l, g) in all.iter().rev() {
            let g = &mut self.lives[l].grants[g];
            let point = most.filter(|p: &super::op::Point| p.idx < g.ret.idx).unwrap_or(g.ret);
            most = Some(point);
            g.most = point;
        }
    }
}

pub(super) fn check(world: &World<'_>, report: &mut Report) {
    for (queue, changes) in &world.limits {
        let lives = world.lives.iter().filter(|life| life.queue == *queue);
        let mut grants: Vec<GrantOf<'_, '_>> =
            lives.flat_map(|life| life.grants.iter().map(move |g| (life, g))).collect();
        grants.sort_by(|a, b| a.1.grant.token.cmp(&b.1.grant.token));
        if world.rules.shards == Shards::One {
            concurrency(world, queue, &grants, report);
            pace(world, queue, changes, &grants, QueueLimits::pace, report);
            grants.retain(|(_, g)| g.grant.lateness_ms > BEHIND_MS);
            pace(world, queue, changes, &grants, QueueLimits::catchup_pace, report);
            let caught = grants.iter().filter(|(_, g)| {
                let limits = world.limits_between(queue, g.least.idx, g.most.idx);
                limits.iter().all(|limits| limits.catchup_rate.is_some())
            });
            report.evidence.add(Fact::CaughtUp, caught.count() as u64);
        }
    }
    for op in &world.ops {
        let (Call::Reserve { queue, .. }, End::Ok(ret, Answer::HeldBack(HeldBack::Rate))) = (op.call, op.end)
        else {
            continue;
        };
        report.applied(Check::Untruthful);
        let limits = world.limits_between(queue, op.inv.idx, ret.idx);
        if limits.iter().all(|limits| limits.rate.is_none() && limits.catchup_rate.is_none()) {
            complain(world, op, ret, "held back by a rate, but the queue has none", report);
        }
    }
}

/// At each grant, the leases that cannot have ended are at most as many as are allowed.
fn concurrency(world: &World<'_>, queue: &str, grants: &[GrantOf<'_, '_>], report: &mut Report) {
    let mut out: Vec<GrantOf<'_, '_>> = Vec::new();
    for together in grants.chunk_by(|a, b| a.1.op == b.1.op) {
        let (Some((life, first)), Some((_, last))) = (together.first(), together.last()) else { continue };
        out.retain(|(life, held)| !may_be_over(world, life, held, last));
        let limits = world.limits_between(queue, first.least.idx, last.most.idx);
        let most: Option<Vec<u64>> = limits.iter().map(|limits| limits.concurrency).collect();
        if let Some(most) = most.and_then(|most| most.into_iter().max()) {
            report.applied(Check::Concurrency);
            let leases = (out.len() + together.len()) as u64;
            if leases > most {
                let what = format!("makes {leases} leases of {queue} at a time, of {most} at most");
                world.accuse(report, Check::Concurrency, life, what);
            }
            if leases == most {
                report.evidence.add(Fact::AtConcurrency, 1);
                let across = out.iter().any(|(_, held)| {
                    let between = |idx: usize| held.most.idx < idx && idx < first.least.idx;
                    world.downs.iter().any(|(down, _)| between(down.idx))
                });
                report.evidence.add(Fact::AtConcurrencyAcrossAStart, u64::from(across));
            }
        }
        out.extend(together);
    }
}

/// Whether a lease may have ended when another grant was made.
fn may_be_over(world: &World<'_>, life: &Life<'_>, held: &Granted<'_>, then: &Granted<'_>) -> bool {
    let at = then.most;
    // What purges and expiry end is not leased, and a superseded message ends with its lease.
    let enders = life.enders.iter();
    let mut enders = enders.filter(|e| !matches!(e.how, How::Superseded | How::Purged | How::Expired));
    enders.any(|e| e.since < at.idx)
        || life.may_be_given_back(world, held, at.idx)
        || world.forgettable(held, at.idx)
        || at.ns.saturating_add(world.jumped_unnoted(held.inv.idx, at.idx))
            >= life.lease_ends_after(world, held, at.idx)
}

/// In no span there are more grants than the rate allows in it, beside the burst and the arrears. A start gives no burst,
/// but may have arrears of its own; a change to a larger burst gives the difference.
fn pace(
    world: &World<'_>,
    queue: &str,
    changes: &[usize],
    grants: &[GrantOf<'_, '_>],
    of: impl Fn(&QueueLimits) -> Option<Pace>,
    report: &mut Report,
) {
    let starts = world.downs.iter().map(|(_, up)| up.idx).chain(world.stalls.iter().map(|at| at.idx));
    let starts: Vec<usize> = starts.collect();
    let in_force: Vec<Vec<QueueLimits>> =
        grants.iter().map(|(_, g)| world.limits_between(queue, g.least.idx, g.most.idx)).collect();
    for (j, (life, last)) in grants.iter().enumerate() {
        for i in (j.saturating_sub(TOGETHER)..=j).rev() {
            let first = grants[i].1;
            let within = |from: usize, to: usize| from < last.most.idx && to > first.least.idx;
            // What was in force at the first or the last of them, or was changed between.
            let mut paces = [&in_force[i][..], &in_force[j][..]].concat();
            let changed =
                changes.iter().map(|&c| &world.ops[c]).filter(|op| within(op.inv.idx, op.latest.idx));
            let mut times = 0;
            for op in changed {
                if let Call::Limit { limits, .. } = op.call {
                    paces.push(*limits);
                    times += 1;
                }
            }
            let Some(paces) = paces.iter().map(&of).collect::<Option<Vec<Pace>>>() else { break };
            let most = paces.iter().map(|p| p.burst).max().unwrap_or(0);
            let least = paces.iter().map(|p| p.burst).min().unwrap_or(0);
            let rate = paces.iter().map(|p| p.per_second).max().unwrap_or(0);
            let again = starts.iter().filter(|&&at| within(at, at)).count() as u64;
            // The finest step of time is one ms.
            let span_ms = last.most.ns.saturating_sub(first.least.ns).div_ceil(NS) + 1;
            // So is each rest of a step before a start.
            let arrears = rate * (span_ms / 4 + 1 + again).min(ARREARS_MS * (1 + again));
            let allowed = most + (most - least) * times + rate * (span_ms + again) + arrears;
            let n = (j - i + 1) as u64;
            report.applied(Check::Rate);
            if n * 1_000 > allowed {
                let what = format!(
                    "is the last of {n} grants of {queue} in {span_ms} ms, of {} at most",
                    allowed / 1_000
                );
                world.accuse(report, Check::Rate, life, what);
                return;
            }
            let fully = n >= 10 && again == 0 && times == 0 && n * 1_100 > allowed;
            report.evidence.add(Fact::AtRate, u64::from(fully));
        }
    }
}
