//! Ends leases and waits of closed connections, a bounded number a step.

use crate::id::{ReplyTo, SessionId};
use crate::message::Ended;

use super::Engine;
use super::reply::{Reply, Reserved};
use super::rows::RowIdx;

impl Engine {
    /// Closes a session. The answer comes when its waits and leases have ended.
    pub(super) fn session_closed(&mut self, to: ReplyTo, session: SessionId) {
        if session == SessionId::NONE {
            return self.respond(to, Reply::Done);
        }
        let is_first = self.closing.is_empty();
        self.closing.sessions.push_back((session, to));
        if is_first {
            self.close_sessions();
        }
    }

    /// Schedules the release of leases of connections of an earlier epoch, which are closed.
    pub(super) fn release_bound(&mut self) {
        let tokens = self.bound.iter().filter_map(|&(_, _, id)| {
            let lease = self.rows.get(self.live(id)?).life.lease()?;
            Some((id, lease.token))
        });
        self.closing.leases = tokens.collect();
        self.close_sessions();
    }

    /// Continues to end leases and waits of closed connections.
    pub(super) fn close_sessions(&mut self) {
        let mut budget = self.budget();
        while let Some(&(id, token)) = self.closing.leases.front() {
            if !self.spend(&mut budget, 1) {
                return;
            }
            self.closing.leases.pop_front();
            // The lease may have run out since then, and the message been granted again.
            let slot = self.live(id);
            if let Some(slot) =
                slot.filter(|&s| self.rows.get(s).life.lease().is_some_and(|l| l.token == token))
            {
                self.end_bound(slot);
            }
        }
        while let Some(&(session, to)) = self.closing.sessions.front() {
            while let Some(arrival) = self.waiters.first_of(session) {
                let Some(waiter) = self.waiters.get(arrival) else { break };
                if !self.spend(&mut budget, waiter.queues.len().max(1)) {
                    return;
                }
                let Some(waiter) = self.waiters.remove(arrival) else { break };
                self.leave_queues(&waiter);
                self.respond(waiter.to, Reply::Reserve(Reserved::Grants(Vec::new())));
            }
            while let Some((_, _, id)) = self.first_bound_entry(session) {
                let Some(slot) = self.rows.slot(id) else { break };
                if !self.spend(&mut budget, 1) {
                    return;
                }
                self.end_bound(slot);
            }
            self.closing.sessions.pop_front();
            self.respond(to, Reply::Done);
        }
    }

    /// Ends a lease of a connection that is gone. One that had run out before is counted as that.
    fn end_bound(&mut self, slot: RowIdx) {
        let is_overdue = self.rows.get(slot).life.lease().is_some_and(|lease| lease.until <= self.now.engine);
        self.figures.lease_expired += u64::from(is_overdue);
        let how = if is_overdue { Ended::LeaseExpired } else { Ended::Released };
        self.end_lease(slot, how);
    }
}
