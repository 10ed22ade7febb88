//! A message's life: everything in the history that concerns it, and the conclusions from it.

use crate::history::{Call, Expiry, Grant, Held, MsgId, PushAnswer, PushSeen, Tag};

use super::op::{NS, Op, Point, gives_back, proof};
use super::world::World;

/// A grant that a consumer has received.
#[derive(Debug)]
pub(super) struct Granted<'h> {
    pub(super) op: usize,
    pub(super) grant: &'h Grant,
    /// When the reserve was invoked: the grant is not older.
    pub(super) inv: Point,
    /// The grant was received.
    pub(super) ret: Point,
    /// Points between which it was made, as far as the other grants of the shard show: a greater token is newer.
    pub(super) least: Point,
    pub(super) most: Point,
    pub(super) lease_ns: u64,
}

/// A request with a message that the receiver has read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pushed<'h> {
    pub(super) seen: &'h PushSeen,
    /// The receiver has read it.
    pub(super) read: Point,
    /// Its answer, before which nobody can know it.
    pub(super) answered: Option<(Point, PushAnswer)>,
}

/// A request that may have ended a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ender {
    pub(super) op: usize,
    pub(super) how: How,
    /// Whether it was answered, and has certainly ended the message.
    pub(super) certain: bool,
    /// It has ended the message after this point.
    pub(super) since: usize,
    /// If it is certain: before this point.
    pub(super) ended: Option<Point>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Acked,
    Cancelled,
    Replaced,
    /// Ended with the lease during which another message took its key.
    Superseded,
    Purged,
    /// Dropped by a reserve that found it expired.
    Expired,
}

/// One message: everything in the history that concerns it. Numbers are positions in [`World::ops`].
#[derive(Debug, Default)]
pub(super) struct Life<'h> {
    pub(super) id: Option<MsgId>,
    pub(super) tag: Option<Tag>,
    pub(super) queue: String,
    pub(super) key: Option<String>,
    pub(super) max_attempts: u64,
    /// The length of its leases, if the message has one of its own.
    pub(super) lease_ms: Option<u64>,
    pub(super) spread_ms: u64,
    /// Its expiry, if the message has one of its own.
    pub(super) expiry: Option<Expiry>,
    /// The point after which it may have died because it had expired.
    pub(super) expired_dead: Option<usize>,
    /// Enqueues: one, or several with the same `dedupe_id`.
    pub(super) sends: Vec<usize>,
    /// Sorted by token.
    pub(super) grants: Vec<Granted<'h>>,
    /// Ack, nack, extend, bury.
    pub(super) settles: Vec<usize>,
    /// Cancels, postpones, fires and redrives that name it by id, or whose answer does.
    pub(super) changes: Vec<usize>,
    /// Changes by key that may concern it.
    pub(super) loose: Vec<usize>,
    pub(super) gets: Vec<usize>,
    pub(super) enders: Vec<Ender>,
    /// The point before which another message has certainly taken its key, while it was leased.
    pub(super) superseded: Option<Point>,
    /// Requests that have brought it to the receiver, in the order in which they were read.
    pub(super) pushes: Vec<Pushed<'h>>,
    pub(super) held: Option<(Point, &'h Held)>,
    /// The point from which on it is proven to exist.
    pub(super) exists: Option<Point>,
}

impl Pushed<'_> {
    /// When the receiver answered with a success.
    pub(super) fn accepted(&self) -> Option<Point> {
        self.answered.filter(|(_, answer)| *answer == PushAnswer::Accepted).map(|(at, _)| at)
    }
}

impl Life<'_> {
    pub(super) fn all_ops(&self) -> Vec<usize> {
        let mut ops = [&self.sends[..], &self.settles, &self.changes, &self.loose, &self.gets].concat();
        ops.extend(self.enders.iter().map(|e| e.op));
        ops
    }

    pub(super) fn grant_ops(&self) -> Vec<usize> {
        self.grants.iter().map(|g| g.op).collect()
    }

    /// The first end that was answered.
    pub(super) fn certain_end(&self) -> Option<(Ender, Point)> {
        let ends = self.enders.iter().filter(|e| e.certain);
        ends.filter_map(|e| e.ended.map(|at| (*e, at))).min_by_key(|(_, at)| at.idx)
    }

    /// Whether anything may have ended it before this point.
    pub(super) fn may_have_ended(&self, before: usize) -> bool {
        self.may_end_at() < before
    }

    /// The point after which an operation, or the success of a push, may have ended it.
    pub(super) fn may_end_at(&self) -> usize {
        let pushed = self.pushes.iter().filter_map(Pushed::accepted).map(|at| at.idx);
        self.enders.iter().map(|e| e.since).chain(pushed).min().unwrap_or(usize::MAX)
    }

    /// The point after which it may have ended, or another message may have taken its key.
    pub(super) fn may_lose_key_at(&self, world: &World<'_>) -> usize {
        let taken = self.enders.iter().filter(|e| e.how == How::Superseded).map(|e| world.ops[e.op].inv.idx);
        taken.min().unwrap_or(usize::MAX).min(self.may_end_at())
    }

    /// Whether it may have died before this point.
    pub(super) fn may_be_dead(&self, world: &World<'_>, before: usize) -> bool {
        if self.buried(world, before) || self.may_have_expired_dead(before) {
            return true;
        }
        let known =
            self.grants.iter().filter(|g| g.inv.idx < before).map(|g| g.grant.attempt).max().unwrap_or(0);
        known + world.lost_between(&self.queue, self.born(world), before) >= self.max_attempts
    }

    /// Whether it may have died before this point because it had expired.
    pub(super) fn may_have_expired_dead(&self, before: usize) -> bool {
        self.expired_dead.is_some_and(|since| since < before)
    }

    /// The first point at which it may have died.
    pub(super) fn may_die_at(&self, world: &World<'_>) -> usize {
        if !self.may_be_dead(world, usize::MAX) {
            return usize::MAX;
        }
        let mut places: Vec<usize> = self.grants.iter().map(|g| g.inv.idx).collect();
        places.extend(
            world
                .lost_reserves(&self.queue, self.born(world), usize::MAX)
                .map(|lost| world.ops[lost.op].inv.idx),
        );
        places.extend(self.settles.iter().map(|&s| world.ops[s].inv.idx));
        places.extend(self.expired_dead);
        places.sort_unstable();
        places.into_iter().find(|at| self.may_be_dead(world, at + 1)).unwrap_or(usize::MAX)
    }

    pub(super) fn buried(&self, world: &World<'_>, before: usize) -> bool {
        self.settles.iter().any(|&s| {
            let op = &world.ops[s];
            matches!(op.call, Call::Bury(_)) && op.possible() && op.inv.idx < before
        })
    }

    pub(super) fn redriven(&self, world: &World<'_>, before: usize) -> bool {
        self.changes.iter().any(|&c| {
            let op = &world.ops[c];
            matches!(op.call, Call::Redrive(_)) && op.possible() && op.inv.idx < before
        })
    }

    /// The point before which it cannot have been granted.
    pub(super) fn born(&self, world: &World<'_>) -> usize {
        self.sends
            .iter()
            .filter(|&&s| world.ops[s].possible())
            .map(|&s| world.ops[s].inv.idx)
            .min()
            .unwrap_or(0)
    }

    /// Whether it provably exists, unsettled, between two points.
    pub(super) fn alive(&self, world: &World<'_>, from: usize, to: usize) -> bool {
        self.exists.is_some_and(|p| p.idx < from) && !self.may_have_ended(to) && !self.forgotten(world, to)
    }

    /// Whether it may have existed under an id that is not known: none is, or a failover may have forgotten the message
    /// of a first attempt before a retry made it again.
    pub(super) fn may_have_had_another_id(&self, world: &World<'_>) -> bool {
        let unanswered = self.sends.iter().map(|&s| &world.ops[s]).filter(|op| op.unknown());
        let born = unanswered.map(|op| op.inv.idx).min();
        self.id.is_none() || born.is_some_and(|born| world.failovers.iter().any(|f| f.end.idx > born))
    }

    /// The first point at which a failover may have removed it.
    pub(super) fn forgotten_at(&self, world: &World<'_>) -> usize {
        let Some(exists) = self.exists else { return usize::MAX };
        let sends = self.sends.iter().filter(|&&s| world.ops[s].possible()).map(|&s| world.ops[s].inv);
        let Some(born) = sends.min_by_key(|inv| inv.idx) else { return usize::MAX };
        let failovers = world.failovers.iter().filter(|f| f.may_undo(born, exists, usize::MAX));
        failovers.map(|f| f.begin.idx).min().unwrap_or(usize::MAX)
    }

    /// Whether a failover before a point may have removed it.
    pub(super) fn forgotten(&self, world: &World<'_>, to: usize) -> bool {
        self.forgotten_at(world) < to
    }

    /// The earliest end of a lease, judged by the operations before a point.
    pub(super) fn lease_ends_after(&self, world: &World<'_>, g: &Granted<'_>, before: usize) -> u64 {
        let mut end = g.inv.ns.saturating_add(g.lease_ns);
        let mut extends: Vec<&Op<'_>> = self.extends(world, g).filter(|op| op.inv.idx < before).collect();
        extends.sort_by_key(|op| op.inv.idx);
        for (i, op) in extends.iter().enumerate() {
            let Call::Extend { lease_ms, .. } = op.call else { continue };
            let new = op.inv.ns.saturating_add(lease_ms.saturating_mul(NS));
            // An extend may shorten a lease. It certainly has an effect if it was answered before the next began.
            let alone = op.done().is_some_and(|at| at.idx < before)
                && !world.undone(op, before)
                && extends[..i].iter().all(|earlier| earlier.latest.idx < op.inv.idx);
            end = if alone { new } else { end.min(new) };
        }
        end
    }

    /// The latest end of a lease.
    pub(super) fn lease_ends_before(&self, world: &World<'_>, g: &Granted<'_>) -> u64 {
        let mut end = g.ret.ns.saturating_add(g.lease_ns);
        for op in self.extends(world, g) {
            if let Call::Extend { lease_ms, .. } = op.call {
                end = end.max(op.latest.ns.saturating_add(lease_ms.saturating_mul(NS)));
            }
        }
        end
    }

    pub(super) fn extends<'w, 'h>(
        &self,
        world: &'w World<'h>,
        g: &Granted<'_>,
    ) -> impl Iterator<Item = &'w Op<'h>> {
        self.settles.iter().map(|&s| &world.ops[s]).filter(move |op| {
            op.possible() && matches!(op.call, Call::Extend { proof, .. } if proof.token == g.grant.token)
        })
    }

    /// Whether the holder may have returned the message before this point.
    pub(super) fn may_be_given_back(&self, world: &World<'_>, g: &Granted<'_>, before: usize) -> bool {
        self.settles.iter().any(|&s| {
            let op = &world.ops[s];
            op.possible() && op.inv.idx < before && gives_back(op.call) == Some(&g.grant.token)
        }) || self.redriven(world, before)
            || world.hung_up(g, before)
    }
}

/// Whether a consumer can have had the message during an operation.
pub(super) fn may_be_leased(world: &World<'_>, life: &Life<'_>, op: &Op<'_>, ret: Point) -> bool {
    let born = life.born(world);
    let slack = world.slack_ms(born, ret.idx) * NS;
    if world.stepped(born, ret.idx) {
        return true;
    }
    let known = life.grants.iter().filter(|g| g.inv.idx < ret.idx).any(|g| {
        let settled = life.settles.iter().map(|&s| &world.ops[s]).any(|s| {
            let same = proof(s.call).is_some_and(|p| p.token == g.grant.token);
            same && !matches!(s.call, Call::Extend { .. })
                && s.done().is_some_and(|at| at.idx < op.inv.idx)
                && !world.undone(s, ret.idx)
        });
        !settled && life.lease_ends_before(world, g).saturating_add(slack) >= op.inv.ns
    });
    known
        || world
            .lost_reserves(&life.queue, born, ret.idx)
            .any(|lost| world.lost_lease_ends(life, lost).saturating_add(slack) >= op.inv.ns)
}
