//! Settle: ack, nack, bury, extend. Each needs proof of the latest lease. Also delete, which settles or cancels.

use crate::id::{MessageId, SessionId};
use crate::message::{DeadReason, Ended, Kind, Lease, PastAttempt, QueueLimit, Stage};
use crate::mutant::{self, Mutant};
use crate::name::QueueName;
use crate::record::Gone;
use crate::store::Capacity;
use crate::time::{Due, EngineMs, WallMs};

use super::input::{Attempt, Proof};
use super::reply::{SettleRefusal, Settled};
use super::rows::RowIdx;
use super::{Engine, push_history};

type Refused<T> = Result<T, SettleRefusal>;

impl Engine {
    pub(super) fn ack(&mut self, id: MessageId, proof: Proof, result: Option<Box<str>>) -> Refused<Settled> {
        if let Some(queue) = self.acked_before(id, proof) {
            return Ok(Settled::Already { queue });
        }
        let (slot, _) = self.held(id, proof)?;
        let entry = self.rows.get(slot);
        if let Proof::Token(token) = proof {
            let queue = entry.message.queue.clone();
            self.acked.insert(&self.policy, self.now.engine, id, token, queue);
        }
        self.remove_acked(slot, result);
        Ok(Settled::Acked)
    }

    /// The queue of a message that was removed because this token acked it recently.
    fn acked_before(&self, id: MessageId, proof: Proof) -> Option<QueueName> {
        let Proof::Token(token) = proof else { return None };
        self.acked.queue_of(&self.policy, self.now.engine, id, token).cloned()
    }

    pub(super) fn delete(&mut self, id: MessageId, session: SessionId) -> Refused<Settled> {
        let Some(slot) = self.shown(id) else { return Err(SettleRefusal::LeaseLost) };
        match self.rows.get(slot).life.lease() {
            Some(lease) if lease.is_of(session) => return self.ack(id, Proof::Session(session), None),
            Some(_) => return Err(SettleRefusal::LeaseLost),
            None => {}
        }
        self.remove(slot, Gone::Cancelled);
        Ok(Settled::Acked)
    }

    #[allow(clippy::too_many_arguments)] // the fields of one operation
    pub(super) fn nack(
        &mut self,
        id: MessageId,
        proof: Proof,
        attempt: Attempt,
        delay_ms: Option<u64>,
        priority: Option<u32>,
        note: &str,
    ) -> Refused<Settled> {
        if mutant::is(Mutant::NackDroppedWhenFull) && self.room == Capacity::SettleOnly {
            return self.ack(id, proof, None);
        }
        let (slot, lease) = self.held(id, proof)?;
        // As far as `When::Seconds` goes.
        let longest = self.policy.max_delay_ms.max(u64::from(u32::MAX) * 1_000);
        if delay_ms.is_some_and(|ms| ms > longest) {
            return Err(SettleRefusal::TooLong(longest));
        }
        if self.end_superseded(slot) {
            return Ok(Settled::Superseded);
        }
        // Its last lease ran out: only an attempt that does not count brings it back.
        let dead = self.rows.get(slot).life.stage.kind() == Kind::Dead;
        if dead
            && attempt == Attempt::NotYet
            && let Some(holder) = self.key_taken(slot)
        {
            return Err(SettleRefusal::KeyExists(holder));
        }
        // Protocols without attempts return a message as often as they want to.
        let returned = matches!(proof, Proof::Session(_))
            && self.rows.get(slot).message.options.queue_limit == QueueLimit::Wins;
        if attempt == Attempt::NotYet || returned {
            // The priority is recorded with the change itself.
            let life = &mut self.rows.get_mut(slot).life;
            life.forgiven = life.forgiven.saturating_add(1);
        }
        let limit = match attempt {
            Attempt::Failed => None,
            Attempt::FailedOf(limit) => Some(limit),
            Attempt::NotYet => self.rows.get(slot).life.marks.limit,
        };
        self.rows.get_mut(slot).life.marks.limit = limit; // recorded with the change itself
        if self.attempts_used_up(slot) || (dead && attempt != Attempt::NotYet) {
            self.park(slot, lease, Ended::Nacked, DeadReason::MaxAttempts, priority, note);
            return Ok(Settled::Dead(DeadReason::MaxAttempts));
        }
        let entry = self.rows.get(slot);
        let tries = entry.life.attempt.saturating_sub(entry.life.forgiven);
        let random = self.random(id.0, u64::from(entry.life.attempt));
        let delay_ms = delay_ms.unwrap_or_else(|| self.backoff(slot).delay_ms(tries, random));
        let due = Due::After(self.now.after(delay_ms).unwrap_or(EngineMs(u64::MAX)));
        let (max, past) = (self.policy.max_history, self.past(slot, lease, Ended::Nacked, note));
        let asked = self.asked_due(slot);
        self.change_life(slot, |life| {
            life.marks.asked = asked;
            life.attempt += u32::from(mutant::is(Mutant::AttemptAtNack));
            life.due = due;
            life.priority = priority.or(life.priority);
            life.stage = Stage::Waiting { token: None };
            life.marks.releases = life.marks.releases.saturating_add(1);
            life.marks.losses = 0;
            life.marks.delay_ms = Some(delay_ms);
            push_history(&mut life.history, past, max);
        });
        Ok(Settled::Again(self.now.wall_of(due)))
    }

    pub(super) fn bury(
        &mut self,
        id: MessageId,
        proof: Proof,
        priority: Option<u32>,
        note: &str,
    ) -> Refused<Settled> {
        let (slot, lease) = self.held(id, proof)?;
        if self.end_superseded(slot) {
            return Ok(Settled::Superseded);
        }
        self.park(slot, lease, Ended::Buried, DeadReason::Buried, priority, note);
        Ok(Settled::Dead(DeadReason::Buried))
    }

    pub(super) fn extend(&mut self, id: MessageId, proof: Proof, lease_ms: Option<u64>) -> Refused<WallMs> {
        let (slot, lease) = self.held(id, proof)?;
        // Others may have seen a lease that ran out as lost, so it cannot be extended.
        let Some(lease) = lease.filter(|lease| lease.until > self.now.engine) else {
            self.figures.lease_lost += 1;
            return Err(SettleRefusal::LeaseLost);
        };
        let entry = self.rows.get(slot);
        let wanted = lease_ms.unwrap_or_else(|| self.lease_ms(entry.queue, &entry.message));
        if wanted > self.policy.max_lease_ms {
            return Err(SettleRefusal::TooLong(self.policy.max_lease_ms));
        }
        let until = self.now.after(wanted).unwrap_or(EngineMs(u64::MAX));
        // Only who names a length makes a lease end earlier: it may have been granted for longer than its queue says.
        let until = if lease_ms.is_none() { until.max(lease.until) } else { until };
        self.change_life(slot, |life| life.stage = Stage::Leased(Lease { until, ..lease }));
        Ok(self.now.wall_of_engine(until))
    }

    #[allow(clippy::too_many_arguments)] // the fields of one operation
    fn park(
        &mut self,
        slot: RowIdx,
        lease: Option<Lease>,
        how: Ended,
        reason: DeadReason,
        priority: Option<u32>,
        note: &str,
    ) {
        let (max, past) = (self.policy.max_history, self.past(slot, lease, how, note));
        let died = match &self.rows.get(slot).life.stage {
            Stage::Dead { at, .. } => Some(*at),
            Stage::Waiting { .. } | Stage::Leased(_) => None,
        };
        let at = died.unwrap_or_else(|| self.dies());
        self.change_life(slot, |life| {
            life.priority = priority.or(life.priority);
            life.stage = Stage::Dead { reason, at, token: None };
            life.marks.losses = 0;
            match how {
                Ended::Buried => life.marks.burials = life.marks.burials.saturating_add(1),
                Ended::Nacked => life.marks.releases = life.marks.releases.saturating_add(1),
                Ended::LeaseExpired | Ended::Released => {}
            }
            push_history(&mut life.history, past, max);
        });
        self.notice_death(slot);
    }

    /// How the present attempt ends. If the lease has run out before, the attempt was recorded already; this completes
    /// it.
    fn past(&self, slot: RowIdx, lease: Option<Lease>, how: Ended, note: &str) -> PastAttempt {
        let life = &self.rows.get(slot).life;
        let noted = life.history.last().filter(|p| p.attempt == life.attempt).map(|p| p.granted_at);
        let granted_at = lease.map(|l| l.granted_at).or(noted).unwrap_or(self.now.wall);
        PastAttempt { attempt: life.attempt, granted_at, ended_at: self.now.wall, how, note: self.cut(note) }
    }

    fn cut(&self, note: &str) -> Box<str> {
        let mut end = note.len().min(self.policy.max_note);
        while !note.is_char_boundary(end) {
            end -= 1;
        }
        note[..end].into()
    }

    /// The message whose latest lease the proof belongs to, and the lease itself if it has not run out. A message that is
    /// dead because that lease ran out is still its holder's to settle, once.
    fn held(&mut self, id: MessageId, proof: Proof) -> Refused<(RowIdx, Option<Lease>)> {
        let Some(slot) = self.live(id) else {
            if id.0 == 0 || id.0 >= self.next_id {
                return Err(SettleRefusal::NeverIssued);
            }
            self.figures.lease_lost += 1;
            return Err(SettleRefusal::LeaseLost);
        };
        let held = match (&self.rows.get(slot).life.stage, proof) {
            (Stage::Leased(lease), Proof::Token(token)) if lease.token == token => Ok((slot, Some(*lease))),
            (
                Stage::Waiting { token: Some(last) } | Stage::Dead { token: Some(last), .. },
                Proof::Token(token),
            ) if *last == token => Ok((slot, None)),
            (Stage::Leased(lease), Proof::Session(session)) if lease.is_of(session) => {
                Ok((slot, Some(*lease)))
            }
            (Stage::Leased(lease), _) if mutant::is(Mutant::TokenUnchecked) => Ok((slot, Some(*lease))),
            (Stage::Leased(_) | Stage::Waiting { .. } | Stage::Dead { .. }, _) => {
                Err(SettleRefusal::LeaseLost)
            }
        };
        self.figures.lease_lost += u64::from(held.is_err());
        held
    }
}
