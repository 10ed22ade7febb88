//! Leases that are bound to connections of this node: the shards where they are, and when the first lease of a
//! connection runs out.
//!
//! The number of a session is given by one node and used by no other, so all leases of the session have passed through
//! this node. The ends in this table are lower bounds: a lease may have been extended or settled by its token
//! elsewhere. So before a consumer is notified that a lease ends soon, the shards are asked.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use duewheel_core::engine::{Grant, Named, OnLease, Op, Reply};
use duewheel_core::id::{MessageId, SessionId, ShardId};
use duewheel_shard::error::CallError;

/// A millisecond, in the unit of [`duewheel_shard::clock::ClockSample::elapsed_ns`].
pub(crate) const MS: u64 = 1_000_000;

/// The sessions of this node that have asked for leases.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<SessionTable>);

#[derive(Debug, Default)]
struct SessionTable {
    sessions: HashMap<SessionId, SessionLeases>,
    /// The session of each lease.
    of: HashMap<MessageId, SessionId>,
}

#[derive(Debug, Default)]
struct SessionLeases {
    /// The shards at which it may have leases.
    shards: BTreeSet<ShardId>,
    leases: BTreeMap<MessageId, SessionLease>,
    by_end: BTreeSet<(u64, MessageId)>,
}

#[derive(Clone, Copy, Debug)]
struct SessionLease {
    /// The end by the clock of this node, in ns; not later than the end at the shard.
    until: u64,
    length: LeaseLength,
}

/// The length of a lease.
#[derive(Clone, Copy, Debug)]
enum LeaseLength {
    /// The length in ms that message and queue determine; an extension without a length also uses it.
    Natural(u64),
    /// The length that the consumer asked for.
    Wished,
}

/// The effect of an answer on leases.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeaseEffect {
    /// A lease was granted.
    Grant(SessionId, Option<u64>),
    /// A lease was extended, by this number of ms.
    Extend(MessageId, Option<u64>),
    /// A lease has ended.
    Settle(MessageId),
}

impl SessionTable {
    fn end(&mut self, id: MessageId) {
        let Some(session) = self.of.remove(&id).and_then(|of| self.sessions.get_mut(&of)) else { return };
        if let Some(lease) = session.leases.remove(&id) {
            session.by_end.remove(&(lease.until, id));
        }
    }

    /// Forgets a few leases that have run out.
    fn forget(&mut self, of: SessionId, now: u64) {
        for _ in 0..4 {
            let first = self.sessions.get(&of).and_then(|session| session.by_end.first());
            match first {
                Some(&(until, id)) if until <= now => self.end(id),
                Some(_) | None => return,
            }
        }
    }

    fn begin(&mut self, now: u64, of: SessionId, id: MessageId, lease: SessionLease) {
        self.end(id);
        self.forget(of, now);
        // The session has closed since then, and with it its leases.
        let Some(session) = self.sessions.get_mut(&of) else { return };
        session.leases.insert(id, lease);
        session.by_end.insert((lease.until, id));
        self.of.insert(id, of);
    }
}

impl Sessions {
    fn table(&self) -> MutexGuard<'_, SessionTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the session may have leases from now on, until it closes.
    pub(crate) fn open(&self, session: SessionId) {
        if session != SessionId::NONE {
            self.table().sessions.entry(session).or_default();
        }
    }

    /// Records that the session may have leases at this shard from now on, if it has not closed.
    pub(crate) fn asks(&self, session: SessionId, shard: ShardId) {
        if let Some(open) = self.table().sessions.get_mut(&session) {
            open.shards.insert(shard);
        }
    }

    /// The effect of this operation's answer on leases, if any. To be called before the operation is sent.
    pub(crate) fn watch(&self, op: &Op, shard: ShardId) -> Option<LeaseEffect> {
        if let Op::ReserveOne { session, lease_ms, .. } = op {
            self.open(*session);
            self.asks(*session, shard);
            return (*session != SessionId::NONE).then_some(LeaseEffect::Grant(*session, *lease_ms));
        }
        if !op.leases().is_empty() {
            let mut table = self.table();
            op.leases().iter().for_each(|&(id, _)| table.end(id));
            return None;
        }
        let Named::Id(id) = op.names() else { return None };
        let watch = match (op.operation().lease, op) {
            (OnLease::Extends, Op::Extend { lease_ms, .. }) => LeaseEffect::Extend(id, *lease_ms),
            (OnLease::Ends | OnLease::EndsOwn, _) => LeaseEffect::Settle(id),
            (OnLease::Nothing | OnLease::Begins | OnLease::Extends, _) => return None,
        };
        self.table().of.contains_key(&id).then_some(watch)
    }

    /// Handles the answer to an operation that was sent at `asked`, in ns.
    pub(crate) fn answered(&self, watch: LeaseEffect, answer: &Result<Reply, CallError>, asked: u64) {
        match (watch, answer) {
            (LeaseEffect::Grant(session, wished), Ok(Reply::ReserveOne(Ok(grant)))) => {
                self.granted(session, wished, std::slice::from_ref(&**grant), asked);
            }
            (LeaseEffect::Extend(id, wished), Ok(Reply::Extend(Ok(_)))) => {
                let mut table = self.table();
                let Some(&of) = table.of.get(&id) else { return };
                let Some(&lease) = table.sessions.get(&of).and_then(|s| s.leases.get(&id)) else { return };
                let length_ms = match (wished, lease.length) {
                    (Some(ms), _) | (None, LeaseLength::Natural(ms)) => ms,
                    // The new end is not known: the shards are asked when the old end is near.
                    (None, LeaseLength::Wished) => return,
                };
                table.begin(asked, of, id, SessionLease { until: end(asked, length_ms), ..lease });
            }
            (LeaseEffect::Settle(id), Ok(Reply::Settle(Ok(_)))) => self.table().end(id),
            // The extension was refused or not answered: the lease runs on, or has run out before.
            (LeaseEffect::Grant(..) | LeaseEffect::Extend(..) | LeaseEffect::Settle(_), _) => {}
        }
    }

    /// Records leases that answer a reserve sent at `asked`, with the length that the consumer asked for, if it did.
    pub(crate) fn granted(&self, session: SessionId, wished: Option<u64>, grants: &[Grant], asked: u64) {
        if session == SessionId::NONE {
            return;
        }
        let mut table = self.table();
        for grant in grants {
            let length = wished.map_or(LeaseLength::Natural(grant.lease_ms), |_| LeaseLength::Wished);
            let lease = SessionLease { until: end(asked, grant.lease_ms), length };
            table.begin(asked, session, grant.message.id, lease);
        }
    }

    /// When the first lease of a session runs out, in ns.
    pub(crate) fn first_end(&self, session: SessionId, now: u64) -> Option<u64> {
        let mut table = self.table();
        loop {
            let &(until, id) = table.sessions.get(&session)?.by_end.first()?;
            if until > now {
                return Some(until);
            }
            table.end(id);
        }
    }

    /// The number of leases of all sessions that have not run out.
    pub(crate) fn bound_leases(&self, now: u64) -> u64 {
        let table = self.table();
        let ends = table.sessions.values().flat_map(|session| &session.by_end);
        ends.filter(|&&(until, _)| until > now).count() as u64
    }

    /// The shards at which it may have leases.
    pub(crate) fn shards(&self, session: SessionId) -> Vec<ShardId> {
        let table = self.table();
        table.sessions.get(&session).map_or_else(Vec::new, |s| s.shards.iter().copied().collect())
    }

    /// Removes a session. Returns the shards at which it may have leases.
    pub(crate) fn close(&self, session: SessionId) -> Vec<ShardId> {
        let mut table = self.table();
        let Some(closed) = table.sessions.remove(&session) else { return Vec::new() };
        for id in closed.leases.keys() {
            table.of.remove(id);
        }
        closed.shards.into_iter().collect()
    }
}

fn end(asked: u64, length_ms: u64) -> u64 {
    asked.saturating_add(length_ms.saturating_mul(MS))
}

#[cfg(test)]
mod tests {
    use duewheel_core::engine::{Proof, Settled};

    use duewheel_core::time::WallMs;

    use super::*;

    const SESSION: SessionId = SessionId(7);

    fn grant(id: u64, lease_ms: u64) -> Grant {
        Grant { lease_ms, ..crate::routing::demand::tests::grant(id) }
    }

    #[test]
    fn first_lease_end_follows_settlements() {
        let sessions = Sessions::default();
        let first = |now: u64| sessions.first_end(SESSION, now * MS).map(|ns| ns / MS);
        sessions.open(SESSION);
        sessions.granted(SESSION, None, &[grant(1, 100), grant(2, 300)], 0);
        assert_eq!(first(0), Some(100));
        let proof = Proof::Session(SESSION);
        let extend = Op::Extend { id: MessageId(1), proof, lease_ms: None };
        let watch = sessions.watch(&extend, ShardId(0)).unwrap();
        sessions.answered(watch, &Ok(Reply::Extend(Ok(WallMs(0).into()))), 250 * MS);
        assert_eq!(first(0), Some(300), "100 ms from 250 on, and the other one");
        let ack = Op::Ack { id: MessageId(2), proof, result: None };
        let watch = sessions.watch(&ack, ShardId(0)).unwrap();
        sessions.answered(watch, &Err(CallError::Overloaded), 0);
        assert_eq!(first(0), Some(300), "not settled");
        sessions.answered(watch, &Ok(Reply::Settle(Ok(Settled::Acked.into()))), 0);
        assert_eq!(first(0), Some(350));
        assert_eq!([349, 350].map(|now| sessions.bound_leases(now * MS)), [1, 0]);
        assert_eq!(first(350), None, "it has run out");
        assert!(sessions.watch(&ack, ShardId(0)).is_none());
    }

    #[test]
    fn closing_session_lists_its_shards() {
        let sessions = Sessions::default();
        sessions.open(SessionId::NONE);
        sessions.asks(SessionId::NONE, ShardId(1));
        let one = Op::ReserveOne { id: MessageId(3), session: SESSION, lease_ms: Some(10) };
        let watch = sessions.watch(&one, ShardId(2)).unwrap();
        sessions.answered(watch, &Ok(Reply::ReserveOne(Ok(Box::new(grant(3, 10))))), 0);
        sessions.asks(SESSION, ShardId(0));
        assert_eq!(sessions.close(SESSION), [ShardId(0), ShardId(2)]);
        sessions.granted(SESSION, None, &[grant(4, 10)], 0);
        sessions.asks(SESSION, ShardId(0));
        assert!(sessions.close(SESSION).is_empty(), "an answer that comes late changes nothing");
        let table = sessions.table();
        assert!(table.of.is_empty() && table.sessions.is_empty());
    }
}
