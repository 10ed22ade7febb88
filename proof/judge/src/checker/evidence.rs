//! The facts that a history proves. A run whose faults had no effect proves nothing.

use std::collections::BTreeMap;
use std::fmt;

use crate::history::{Answer, Blow, Call, Fault, HeldBack, Moment, Refusal, State, What};

use super::life::{How, Life};
use super::op::{End, NS, Point, proof};
use super::world::World;

/// A fact that a run may be required to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fact {
    /// The process was killed while it served.
    KillsServing,
    /// The process was killed before it listened.
    KillsRecovering,
    /// An operation's outcome is unknown.
    UnknownOutcomes,
    /// An enqueue was never answered, and its message was seen.
    UnansweredButAccepted,
    /// A reserve was never answered.
    LostReserves,
    /// A grant that no client received shows in the number of the next attempt.
    LostGrants,
    /// A lease ran out, and the message was granted again.
    ExpiredLeasesGrantedAgain,
    /// A settle was refused because of a newer grant.
    StaleSettlesRefused,
    /// The process was stopped for a while.
    Pauses,
    /// A lease ran out while the process was stopped, and the message was granted again afterwards.
    LeasesEndedInAPause,
    /// A message came due while the process was stopped, and was granted afterwards.
    OverdueFromPauses,
    /// A fault was injected into a cluster.
    Struck(Blow),
    /// The store has failed over to a copy.
    FailedOver,
    /// A message is gone, and only a failover of the store explains it.
    Forgotten,
    /// A message came due while a part of the cluster was missing, and its first grant was not requested within a
    /// second.
    DelayedByABlow,
    /// An operation was refused, or its outcome is unknown, because the store was away.
    StorageUnavailable,
    /// A lease was given before a fault of the cluster and acked after it.
    LeasesAckedAcrossABlow,
    /// A lease was given before a kill and acked after it.
    LeasesAckedAcrossAKill,
    /// A message was cancelled.
    CancelsWon,
    /// A cancel came too late: a consumer had the message.
    CancelsLost,
    /// A message was replaced.
    Replaced,
    /// A leased message lost its key to another one, and ended with its lease.
    Superseded,
    /// An enqueue kept the older message.
    Kept,
    /// An enqueue was refused because of its key.
    KeysRefused,
    /// An enqueue with a `dedupe_id` was retried after its first attempt was not answered, and was answered.
    Deduped,
    /// A message was given another due time.
    Postponed,
    /// A message was made due before its time.
    Fired,
    /// A message came due while the system was down, and was granted afterwards.
    OverdueFromDowntime,
    /// A grant with attempt > 1.
    Redeliveries,
    /// A message came again after a nack.
    NackedAndGrantedAgain,
    /// A lease was extended.
    Extended,
    /// A message is dead at the end.
    Dead,
    /// A message was dropped because it had expired.
    ExpiredDropped,
    /// A message is dead because it had expired.
    ExpiredDead,
    /// A message was granted although it had expired, as its queue wanted.
    ExpiredLate,
    /// The key of a message that had expired was given to another one.
    ExpiredKeysReused,
    /// A message that was returned by a consumer had expired when it was granted again.
    ExpiredAfterRetries,
    /// A message is due at a later instant of its spread.
    Spread,
    /// The limits of a queue were changed.
    LimitsChanged,
    /// A reserve was held back by a rate.
    HeldBackByRate,
    /// A reserve was held back by a number of leases.
    HeldBackByLeases,
    /// A grant made a queue's leases as many as its concurrency.
    AtConcurrency,
    /// The same, with leases of before a start.
    AtConcurrencyAcrossAStart,
    /// A queue granted as fast as its rate allows for at least ten grants.
    AtRate,
    /// A message was granted at a catch-up rate.
    CaughtUp,
    /// A message is gone, and a push of it was answered with a success.
    DeliveredByPush,
    /// A push failed, and another one of the message followed.
    PushedAgainAfterAFailure,
    /// A push was put off by its answer, and another one of the message followed.
    PushedAgainWhenAsked,
    /// A push was under way when the process was killed, and another one of the message followed.
    PushesCutByAKill,
    /// A push was answered with a success, and the message came again after a kill, which explains it.
    SuccessesLostInAKill,
    /// A message is dead after its pushes have failed.
    DeadByPush,
}

/// The number of times that each fact provably happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    counts: BTreeMap<Fact, u64>,
}

impl Evidence {
    /// The number of times that a fact happened.
    pub fn count(&self, fact: Fact) -> u64 {
        self.counts.get(&fact).copied().unwrap_or(0)
    }

    /// Requires each fact at least this number of times; the error lists those that are missing.
    pub fn require(&self, least: &[(Fact, u64)]) -> Result<(), String> {
        let missing: Vec<String> = least
            .iter()
            .filter(|(fact, n)| self.count(*fact) < *n)
            .map(|(fact, n)| format!("{fact:?}: {} of at least {n}", self.count(*fact)))
            .collect();
        if missing.is_empty() { Ok(()) } else { Err(missing.join(", ")) }
    }

    /// Adds the counts of another run.
    pub fn add_all(&mut self, other: &Evidence) {
        for (fact, n) in &other.counts {
            self.add(*fact, *n);
        }
    }

    pub(super) fn add(&mut self, fact: Fact, n: u64) {
        *self.counts.entry(fact).or_default() += n;
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "evidence       ")?;
        for (fact, n) in &self.counts {
            write!(f, " {fact:?} {n}")?;
        }
        Ok(())
    }
}

pub(super) fn gather(world: &World<'_>, evidence: &mut Evidence) {
    evidence.add(Fact::KillsServing, world.kills(Moment::Serving));
    evidence.add(Fact::KillsRecovering, world.kills(Moment::Recovering));
    evidence.add(Fact::Pauses, world.pauses.len() as u64);
    for (_, fault) in &world.faults {
        match fault {
            Fault::Struck(blow) => evidence.add(Fact::Struck(*blow), 1),
            Fault::FailedOver => evidence.add(Fact::FailedOver, 1),
            _ => {}
        }
    }
    let away = |what: &What| match what {
        What::Fail { refusal: Refusal::Other(code), .. } => code == "storage_unavailable",
        What::Info { why, .. } => why.contains("storage_unavailable"),
        _ => false,
    };
    let away = world.events.iter().filter(|event| away(&event.what)).count() as u64;
    evidence.add(Fact::StorageUnavailable, away);
    for op in &world.ops {
        let fact = match (op.call, op.end) {
            (Call::Reserve { .. }, End::Unknown) => {
                evidence.add(Fact::UnknownOutcomes, 1);
                Some(Fact::LostReserves)
            }
            (_, End::Unknown) => Some(Fact::UnknownOutcomes),
            (Call::Cancel(_), End::Fail(_, Refusal::Leased)) => Some(Fact::CancelsLost),
            (Call::Cancel(_), End::Ok(..)) => Some(Fact::CancelsWon),
            (Call::Enqueue(_), End::Ok(_, Answer::Enqueued { replaced: Some(_), .. })) => {
                Some(Fact::Replaced)
            }
            (Call::Enqueue(_), End::Ok(_, Answer::Enqueued { created: false, .. })) => Some(Fact::Kept),
            (Call::Enqueue(_), End::Fail(_, Refusal::KeyExists)) => Some(Fact::KeysRefused),
            (Call::Postpone { .. }, End::Ok(..)) => Some(Fact::Postponed),
            (Call::Fire(_), End::Ok(..)) => Some(Fact::Fired),
            (Call::Limit { .. }, End::Ok(..)) => Some(Fact::LimitsChanged),
            (_, End::Ok(_, Answer::HeldBack(HeldBack::Rate))) => Some(Fact::HeldBackByRate),
            (_, End::Ok(_, Answer::HeldBack(HeldBack::Leases))) => Some(Fact::HeldBackByLeases),
            (Call::Extend { .. }, End::Ok(..)) => Some(Fact::Extended),
            _ => None,
        };
        if let Some(fact) = fact {
            evidence.add(fact, 1);
        }
    }
    for life in &world.lives {
        of_life(world, life, evidence);
    }
}

fn of_life(world: &World<'_>, life: &Life<'_>, evidence: &mut Evidence) {
    let answered = life.sends.iter().any(|&s| world.ops[s].done().is_some());
    super::expiry::gather(world, life, evidence);
    super::pushes::gather(world, life, evidence);
    if !life.sends.is_empty() && !answered && life.exists.is_some() {
        evidence.add(Fact::UnansweredButAccepted, 1);
    }
    if answered && life.sends.iter().any(|&s| world.ops[s].unknown()) {
        evidence.add(Fact::Deduped, 1);
    }
    let gone = life.exists.is_some() && life.held.is_none() && !life.may_have_ended(usize::MAX);
    evidence.add(Fact::Forgotten, u64::from(gone && life.forgotten(world, usize::MAX)));
    if life.held.is_some_and(|(_, row)| row.state == State::Dead) {
        evidence.add(Fact::Dead, 1);
    }
    let superseded = life.certain_end().is_some_and(|(e, _)| e.how == How::Superseded);
    evidence.add(Fact::Superseded, u64::from(superseded));
    let mut before = 0;
    for (i, g) in life.grants.iter().enumerate() {
        evidence.add(Fact::LostGrants, g.grant.attempt.saturating_sub(before + 1));
        evidence.add(Fact::Redeliveries, u64::from(g.grant.attempt > 1 || i > 0));
        before = g.grant.attempt;
    }
    for pair in life.grants.windows(2) {
        let back = life.may_be_given_back(world, &pair[0], pair[1].ret.idx);
        let fact = if back { Fact::NackedAndGrantedAgain } else { Fact::ExpiredLeasesGrantedAgain };
        evidence.add(fact, 1);
        let given = &pair[0];
        // Not before the pause began, and not after it ended.
        let inside = |(paused, resumed): &(Point, Point)| {
            given.ret.idx < paused.idx
                && given.inv.ns.saturating_add(given.lease_ns) > paused.ns
                && given.ret.ns.saturating_add(given.lease_ns) < resumed.ns
                && resumed.idx < pair[1].ret.idx
        };
        let extended = life.settles.iter().any(|&s| matches!(world.ops[s].call, Call::Extend { .. }));
        let ended = !back && !extended && world.pauses.iter().any(inside);
        evidence.add(Fact::LeasesEndedInAPause, u64::from(ended));
    }
    for &c in &life.changes {
        // The message was removed or leased: leased, if nothing can have ended it before.
        let op = &world.ops[c];
        if let (Call::Cancel(_), End::Fail(ret, Refusal::GoneOrLeased)) = (op.call, op.end) {
            let leased = life.exists.is_some_and(|p| p.idx < op.inv.idx) && !life.may_have_ended(ret.idx);
            evidence.add(Fact::CancelsLost, u64::from(leased));
        }
    }
    for &s in &life.settles {
        let op = &world.ops[s];
        let Some(proof) = proof(op.call) else { continue };
        let newer = life.grants.iter().any(|g| g.grant.token > proof.token && g.ret.idx < op.inv.idx);
        if newer && matches!(op.end, End::Fail(_, Refusal::LeaseLost)) {
            evidence.add(Fact::StaleSettlesRefused, 1);
        }
    }
    for e in life.enders.iter().filter(|e| e.certain && e.how == How::Acked) {
        let op = &world.ops[e.op];
        let Some(proof) = proof(op.call) else { continue };
        let Some(g) = life.grants.iter().find(|g| g.grant.token == proof.token) else { continue };
        let across = world.downs.iter().any(|(down, up)| g.ret.idx < down.idx && up.idx < op.inv.idx);
        evidence.add(Fact::LeasesAckedAcrossAKill, u64::from(across));
        let across = world.blows.iter().any(|(blow, _)| g.ret.idx < blow.idx && blow.idx < op.inv.idx);
        evidence.add(Fact::LeasesAckedAcrossABlow, u64::from(across));
    }
    if let (Some(first), Some(&send)) = (life.grants.first(), life.sends.first())
        && life.changes.is_empty()
        && life.sends.len() == 1
        && let Some(due) = super::lateness::due(world, send)
    {
        // Down before the earliest and still down at the latest moment at which the message can have come due.
        let inside = |(down, up): &(Point, Point)| {
            down.ns <= due.earliest && due.latest.saturating_add(NS) <= up.ns && up.idx < first.ret.idx
        };
        evidence.add(Fact::OverdueFromDowntime, u64::from(world.downs.iter().any(inside)));
        evidence.add(Fact::OverdueFromPauses, u64::from(world.pauses.iter().any(inside)));
        let delayed = |(blow, healed): &(Point, Point)| {
            blow.ns <= due.earliest
                && due.latest <= healed.ns
                && due.latest.saturating_add(1_000 * NS) <= first.inv.ns
        };
        evidence.add(Fact::DelayedByABlow, u64::from(world.blows.iter().any(delayed)));
    }
}
