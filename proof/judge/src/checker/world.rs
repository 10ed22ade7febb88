//! A whole run, indexed, and what may have happened between two points of it.

use std::collections::BTreeMap;

use crate::history::{
    Answer, Call, Downtime, Event, Fault, Held, Leases, Moment, PushedQueue, Rules, Totals,
};

use super::life::{Granted, Life, Pushed};
use super::op::{End, NS, Op, Point};
use super::{Check, Report, Violation, story};

/// A reserve that may have granted messages that no client has received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub(super) op: usize,
    /// No such grant happened after this point.
    pub(super) latest: Point,
}

/// A failover of the store to a copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failover {
    /// The fault.
    pub(super) begin: Point,
    /// From this point on only the copy exists.
    pub(super) end: Point,
    /// Changes that were answered before this are in the copy.
    pub(super) kept_ns: u64,
}

/// The whole run, indexed.
#[derive(Debug)]
pub(super) struct World<'h> {
    pub(super) events: &'h [Event],
    pub(super) rules: Rules,
    pub(super) ops: Vec<Op<'h>>,
    pub(super) lives: Vec<Life<'h>>,
    /// Lives by queue and key.
    pub(super) keys: BTreeMap<(String, String), Vec<usize>>,
    /// Reserves that may have granted messages that no client has received.
    pub(super) lost_reserves: BTreeMap<&'h str, Vec<Lost>>,
    /// Reserves that were not refused, by queue.
    pub(super) reserves: BTreeMap<&'h str, Vec<usize>>,
    /// Changes of limits that were not refused, by queue.
    pub(super) limits: BTreeMap<&'h str, Vec<usize>>,
    /// Reserves that found nothing, by queue.
    pub(super) empty_reserves: BTreeMap<&'h str, Vec<usize>>,
    /// Reserves whose answer took longer than a due message may wait, by queue.
    pub(super) slow_reserves: BTreeMap<&'h str, Vec<usize>>,
    pub(super) dumps: BTreeMap<&'h str, (Point, &'h [Held])>,
    pub(super) totals: Vec<(&'h str, Point, Totals)>,
    /// Queues whose messages are sent to the receiver.
    pub(super) pushed: BTreeMap<&'h str, &'h PushedQueue>,
    /// Requests that the receiver has read.
    pub(super) pushes: Vec<Pushed<'h>>,
    pub(super) faults: Vec<(Point, &'h Fault)>,
    /// Points at which clients closed connections.
    pub(super) closings: BTreeMap<u32, Vec<usize>>,
    /// From a kill until it listened again.
    pub(super) downs: Vec<(Point, Point)>,
    /// Points at which the system ended a stall.
    pub(super) stalls: Vec<Point>,
    /// From the stop of the process until just before it continued.
    pub(super) pauses: Vec<(Point, Point)>,
    /// From a fault of the cluster until all its parts are back.
    pub(super) blows: Vec<(Point, Point)>,
    pub(super) failovers: Vec<Failover>,
    /// The kill after which the system has not listened again.
    pub(super) down_since: Option<Point>,
    pub(super) phases: Vec<(Point, &'h str)>,
}

impl World<'_> {
    /// The tolerance where the system must do something not later than a time, between two points: faults of a cluster
    /// count that were not over before the first, and began before the second.
    pub(super) fn slack_ms(&self, from: usize, to: usize) -> u64 {
        let moves = self.blows.iter().filter(|(begin, end)| begin.idx < to && from < end.idx).count();
        let moves = u64::try_from(moves).unwrap_or(u64::MAX);
        self.rules.slack_ms.saturating_add(self.rules.move_ms.saturating_mul(moves))
    }

    /// Whether it was answered positively, and no failover may have undone it.
    pub(super) fn certainly_done(&self, op: usize) -> bool {
        self.ops[op].done().is_some() && !self.undone(&self.ops[op], usize::MAX)
    }

    /// Whether a failover before a point may have undone an answered operation.
    pub(super) fn undone(&self, op: &Op<'_>, to: usize) -> bool {
        op.done().is_some_and(|ret| self.failovers.iter().any(|f| f.may_undo(op.inv, ret, to)))
    }

    pub(super) fn blame(&self, report: &mut Report, check: Check, life: usize, what: String) {
        self.accuse(report, check, &self.lives[life], what);
    }

    pub(super) fn accuse(&self, report: &mut Report, check: Check, life: &Life<'_>, what: String) {
        let story = story::of(self, life);
        report.violations.push(Violation { check, message: life.id, tag: life.tag, what, story });
    }

    /// The length of a lease with this requested length.
    pub(super) fn lease_ns(&self, life: &Life<'_>, asked_ms: Option<u64>) -> u64 {
        asked_ms.or(life.lease_ms).unwrap_or(self.rules.lease_ms).saturating_mul(NS)
    }

    /// The latest end of a lease that no client has received.
    pub(super) fn lost_lease_ends(&self, life: &Life<'_>, lost: &Lost) -> u64 {
        let asked = match self.ops[lost.op].call {
            Call::Reserve { lease_ms, .. } => *lease_ms,
            _ => None,
        };
        lost.latest.ns.saturating_add(self.lease_ns(life, asked))
    }

    /// Whether the holder's connection may have ended before a point, and its lease with it.
    pub(super) fn hung_up(&self, g: &Granted<'_>, before: usize) -> bool {
        if self.rules.leases == Leases::OfTokens {
            return false;
        }
        let within = |idx: usize| g.inv.idx < idx && idx < before;
        let closings = self.closings.get(&self.events[g.inv.idx].client);
        closings.into_iter().flatten().any(|&idx| within(idx))
            || self.downs.iter().map(|(down, _)| down).chain(&self.down_since).any(|down| within(down.idx))
    }

    /// The number of grants of a message that no client may have received between two points.
    pub(super) fn lost_between(&self, queue: &str, from: usize, to: usize) -> u64 {
        self.lost_reserves(queue, from, to).count() as u64
    }

    /// Reserves of unknown outcome that may have happened between two points.
    pub(super) fn lost_reserves(&self, queue: &str, from: usize, to: usize) -> impl Iterator<Item = &Lost> {
        let all = self.lost_reserves.get(queue).map_or(&[][..], |v| &v[..]);
        all.iter().filter(move |lost| self.ops[lost.op].inv.idx < to && lost.latest.idx > from)
    }

    /// By how much the wall clock was stepped forward between two points in a way that counts as time: while the system
    /// was down, or so shortly before that nothing durable records the step. In ns.
    pub(super) fn jumped_unnoted(&self, from: usize, to: usize) -> u64 {
        let mut us = 0;
        for (at, fault) in self.faults.iter().filter(|(at, _)| at.idx > from && at.idx < to) {
            let gained = match fault {
                Fault::ClockStep { before_ms, after_ms } => {
                    after_ms.saturating_sub(*before_ms).saturating_mul(1_000)
                }
                Fault::Slewed { gained_us } => u64::try_from(*gained_us).unwrap_or(0),
                _ => 0,
            };
            if gained > 0 && self.is_unnoted(at.idx, to) {
                us += gained;
            }
        }
        us * (NS / 1_000)
    }

    /// Whether the system may not know of a step of the wall clock when it starts next, and counts it as time.
    fn is_unnoted(&self, step: usize, to: usize) -> bool {
        let by_wall = |down: &Point, up: usize| {
            let rebooted = |(at, fault): &(Point, &Fault)| {
                matches!(fault, Fault::PowerLoss) && at.idx >= down.idx && at.idx < up
            };
            self.rules.downtime == Downtime::WallClock || self.faults.iter().any(rebooted)
        };
        let while_down =
            |(down, up): &&(Point, Point)| down.idx < step && step < up.idx && by_wall(down, up.idx);
        let next = self.downs.iter().find(|(down, _)| down.idx > step && down.idx < to);
        self.downs.iter().any(|down| while_down(&down))
            || next.is_some_and(|(down, up)| by_wall(down, up.idx) && !self.has_recorded(step, down.idx))
    }

    /// Whether a step between two points may make a message wait longer: a wall clock that goes back, or one that the
    /// system learns of at its next start.
    pub(super) fn put_back(&self, from: usize, to: usize) -> bool {
        self.faults.iter().any(|(at, fault)| {
            matches!(fault, Fault::ClockStep { before_ms, after_ms } if after_ms < before_ms || self.is_unnoted(at.idx, to))
                && at.idx > from
                && at.idx < to
        })
    }

    /// The moment at which the wall clock has certainly shown a time, if it continues undisturbed after this point or
    /// is stepped forward.
    pub(super) fn shows(&self, wall: u64, after: Point) -> u64 {
        let (mut ns, mut shown) = (after.ns, after.wall);
        for (at, fault) in self.faults.iter().filter(|(at, _)| at.idx > after.idx) {
            if let Fault::ClockStep { after_ms, .. } = fault {
                let ran = at.ns.saturating_sub(ns) / NS;
                if shown.saturating_add(ran) >= wall {
                    break;
                }
                (ns, shown) = (at.ns, *after_ms);
            }
        }
        ns.saturating_add(wall.saturating_sub(shown).saturating_mul(NS))
    }

    /// Whether a request after one point was durably answered before another: then everything before is durable, too.
    fn is_noted(&self, after: usize, before: usize) -> bool {
        self.ops.iter().any(|op| {
            let durable = !matches!(op.call, Call::Reserve { .. } | Call::Get(_));
            durable && op.inv.idx > after && op.done().is_some_and(|ret| ret.idx < before)
        })
    }

    /// Whether the system has durably recorded something that was requested after one point before another, and with it
    /// its clocks. What was settled or kept before is answered again without a record.
    fn has_recorded(&self, after: usize, before: usize) -> bool {
        self.ops.iter().any(|op| {
            let End::Ok(at, answer) = &op.end else { return false };
            let is_record = match answer {
                Answer::Enqueued { created, .. } => *created,
                Answer::Cancelled(_) | Answer::Changed(_) | Answer::Purged(_) => true,
                _ => false,
            };
            is_record && op.inv.idx > after && at.idx < before
        })
    }

    /// Whether the wall clock was stepped between two points.
    pub(super) fn stepped(&self, from: usize, to: usize) -> bool {
        self.faults.iter().any(|(at, f)| matches!(f, Fault::ClockStep { .. }) && at.idx > from && at.idx < to)
    }

    /// Whether a failover, or a power loss, between two points may have made the system forget a grant. A power loss
    /// has not if the system has durably answered a request that was made after the grant was received: replies are
    /// sent in order.
    pub(super) fn forgettable(&self, g: &Granted<'_>, to: usize) -> bool {
        let undone = self.failovers.iter().any(|f| f.may_undo(g.inv, g.ret, to));
        undone
            || self.faults.iter().any(|(at, fault)| {
                matches!(fault, Fault::PowerLoss)
                    && at.idx > g.inv.idx
                    && at.idx < to
                    && !self.is_noted(g.ret.idx, at.idx)
            })
    }

    /// Counts the kills, by moment.
    pub(super) fn kills(&self, moment: Moment) -> u64 {
        self.faults.iter().filter(|(_, f)| **f == Fault::Killed(moment)).count() as u64
    }
}

impl Failover {
    /// Whether an operation with this invocation and answer may be undone before a point.
    pub(super) fn may_undo(&self, inv: Point, ret: Point, to: usize) -> bool {
        self.begin.idx < to && inv.idx < self.end.idx && ret.ns >= self.kept_ns
    }
}
