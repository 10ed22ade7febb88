//! The model of the system: a table and a few rules.

use std::collections::BTreeMap;

use super::{Bug, EPOCH_MS, MS, RULES, UNSYNCED, US};
use crate::history::{
    Answer, Call, Enqueue, Grant, Held, IfExists, MsgId, Proof, Refusal, Seen, State, Target, Token, Totals,
    When,
};
use crate::rng::Rng;

#[derive(Clone, Default)]
pub(super) struct Toy {
    pub(super) messages: BTreeMap<MsgId, Message>,
    gone: BTreeMap<MsgId, (u64, Why, Message)>,
    keys: BTreeMap<String, MsgId>,
    dedupe: BTreeMap<String, Answer>,
    last_id: u64,
    epoch: u64,
    counter: u64,
    crashed_at: u64,
    pub(super) totals: Totals,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    Acked,
    Cancelled,
    Other,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Message {
    key: Option<String>,
    body: Seen,
    due: u64,
    delay: u64,
    since: u64,
    attempt: u64,
    max: u64,
    token: Option<String>,
    pub(super) stage: Stage,
    granted_at: u64,
    /// Another message took its key while it was leased.
    superseded: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Waiting,
    Leased(u64),
    Dead,
}

impl Message {
    pub(super) fn row(&self, id: MsgId, now: u64) -> Held {
        let state = match self.stage {
            Stage::Waiting if self.due > now => State::Scheduled,
            Stage::Waiting => State::Ready,
            Stage::Leased(_) => State::Leased,
            Stage::Dead => State::Dead,
        };
        Held {
            id,
            key: self.key.clone().filter(|_| !self.superseded),
            state,
            attempt: self.attempt,
            body: Some(self.body),
            forgiven: None,
            death: None,
        }
    }
}

impl Toy {
    /// A copy of everything, except for what only some bugs need.
    pub(super) fn copy(&mut self) -> Toy {
        self.gone.clear();
        self.clone()
    }

    /// Restores a former state; only the epoch stays.
    pub(super) fn fall_back(&mut self, copy: Toy) {
        let epoch = self.epoch;
        *self = Toy { epoch, ..copy };
    }

    pub(super) fn start(&mut self, now: u64, bug: Option<Bug>) {
        self.epoch += 1;
        self.counter = 0;
        if bug == Some(Bug::TokenReused) {
            self.epoch = 1;
        }
        if bug == Some(Bug::KeysForgotten) {
            self.keys.clear();
        }
        if bug == Some(Bug::DedupeForgotten) {
            self.dedupe.clear();
        }
        if bug == Some(Bug::TotalsForgotten) {
            self.totals = Totals { enqueued: self.messages.len() as u64, ..Totals::default() };
        }
        for m in self.messages.values_mut() {
            if bug == Some(Bug::LeasesDropped) && matches!(m.stage, Stage::Leased(_)) {
                m.stage = Stage::Waiting;
            }
            if bug == Some(Bug::DowntimeForgotten) {
                m.due += now - self.crashed_at;
            }
            if bug == Some(Bug::DelayFromStart) {
                m.due = now + m.delay;
            }
        }
    }

    pub(super) fn crash(&mut self, now: u64, bug: Option<Bug>) {
        self.crashed_at = now;
        let synced = now.saturating_sub(UNSYNCED);
        match bug {
            Some(Bug::EnqueueBeforeSync) => {
                self.messages.retain(|_, m| m.since < synced);
                let there = &self.messages;
                self.keys.retain(|_, id| there.contains_key(id));
                self.totals.enqueued = self.totals.acked
                    + self.totals.cancelled
                    + self.totals.replaced
                    + self.totals.superseded
                    + self.messages.len() as u64;
            }
            Some(Bug::AckBeforeSync | Bug::CancelBeforeSync) => {
                let lost = if bug == Some(Bug::AckBeforeSync) { Why::Acked } else { Why::Cancelled };
                for (id, (at, why, m)) in std::mem::take(&mut self.gone) {
                    if at >= synced && why == lost && m.key.is_none() {
                        self.messages.insert(id, m);
                        self.totals.acked -= u64::from(why == Why::Acked);
                        self.totals.cancelled -= u64::from(why == Why::Cancelled);
                    }
                }
            }
            Some(Bug::GrantForgotten) => {
                for m in self.messages.values_mut() {
                    if matches!(m.stage, Stage::Leased(_)) && m.granted_at >= synced {
                        m.stage = Stage::Waiting;
                        m.attempt -= 1;
                        m.token = None;
                    }
                }
            }
            _ => {}
        }
    }

    /// Ends a leased message whose key another one took; returns whether it was one.
    fn end_superseded(&mut self, id: MsgId, now: u64, bug: Option<Bug>) -> bool {
        let superseded = self.messages.get(&id).is_some_and(|m| m.superseded);
        if superseded && bug != Some(Bug::SupersededReturns) {
            self.end(id, Why::Other, now);
            self.totals.superseded += 1;
            return true;
        }
        false
    }

    fn tick(&mut self, now: u64, bug: Option<Bug>) {
        let over = |m: &Message| matches!(m.stage, Stage::Leased(until) if until <= now);
        let over: Vec<MsgId> = self.messages.iter().filter(|(_, m)| over(m)).map(|(id, _)| *id).collect();
        for id in over {
            self.end_superseded(id, now, bug);
        }
        for m in self.messages.values_mut() {
            if let Stage::Leased(until) = m.stage
                && until <= now
            {
                m.stage = Stage::Waiting;
                m.due = until;
                m.die(bug);
            }
        }
        let messages = &self.messages;
        self.keys.retain(|_, id| {
            bug == Some(Bug::KeyLeaked) || messages.get(id).is_some_and(|m| m.stage != Stage::Dead)
        });
    }

    pub(super) fn handle(
        &mut self,
        call: &Call,
        now: u64,
        bug: Option<Bug>,
        rng: &mut Rng,
    ) -> Result<Answer, Refusal> {
        self.tick(now, bug);
        match call {
            Call::Enqueue(e) => self.enqueue(e, now, bug),
            Call::Reserve { max, lease_ms, .. } => Ok(self.reserve(*max, *lease_ms, now, bug, rng)),
            Call::Ack(proof) => {
                self.settle(proof, now, bug, true)?;
                self.end(proof.id, Why::Acked, now);
                self.totals.acked += 1;
                Ok(Answer::Settled)
            }
            Call::Nack { proof, delay_ms } => {
                self.settle(proof, now, bug, true)?;
                if self.end_superseded(proof.id, now, bug) {
                    return Ok(Answer::Settled);
                }
                let Some(m) = self.messages.get_mut(&proof.id) else { return Err(Refusal::LeaseLost) };
                let step = 40u64 << (m.attempt.max(1) - 1).min(4);
                let delay = delay_ms.unwrap_or_else(|| rng.range(step, step + step / 2));
                // From the next millisecond on, as a server that truncates its clock must do.
                m.due = now + delay * MS + 10 * US;
                m.stage = Stage::Waiting;
                m.token = None;
                if bug == Some(Bug::AttemptAtNack) {
                    m.attempt += 1;
                }
                m.die(bug);
                if bug == Some(Bug::NackLoses) && rng.percent(10) {
                    self.messages.remove(&proof.id);
                    self.totals.acked += 1;
                }
                Ok(Answer::Settled)
            }
            Call::Extend { proof, lease_ms } => {
                let m = self.settle(proof, now, bug, bug == Some(Bug::ExtendAfterEnd))?;
                m.stage = Stage::Leased(now + lease_ms * MS);
                Ok(Answer::Settled)
            }
            Call::Cancel(target) => {
                let id = self.find(target)?;
                let m = &self.messages[&id];
                if matches!(m.stage, Stage::Leased(_)) && bug != Some(Bug::CancelTakesLeased) {
                    return Err(Refusal::Leased);
                }
                if bug == Some(Bug::ReadyNotFound) && m.stage == Stage::Waiting && m.due <= now {
                    return Err(Refusal::NotFound);
                }
                if bug != Some(Bug::CancelInTwoSteps) {
                    self.end(id, Why::Cancelled, now);
                }
                self.totals.cancelled += 1;
                Ok(Answer::Cancelled(Some(id)))
            }
            Call::Postpone { target, when, .. } => {
                let id = self.find(target)?;
                let blind = bug == Some(Bug::PostponeTakesLeased);
                let Some(m) = self.messages.get_mut(&id) else { return Err(Refusal::NotFound) };
                m.changeable(blind)?;
                (m.due, m.delay) = due(when, now, bug);
                m.stage = Stage::Waiting;
                m.token = None;
                Ok(Answer::Changed(Some(id)))
            }
            Call::Fire(target) => {
                let id = self.find(target)?;
                let Some(m) = self.messages.get_mut(&id) else { return Err(Refusal::NotFound) };
                m.changeable(false)?;
                m.due = m.due.min(now);
                Ok(Answer::Changed(Some(id)))
            }
            Call::Get(target) => {
                let id = self.find(target)?;
                Ok(Answer::Found(self.messages[&id].row(id, now)))
            }
            Call::Bury(_) | Call::Redrive(_) | Call::Purge { .. } | Call::Limit { .. } => {
                Err(Refusal::Other("not in the toy".to_owned()))
            }
        }
    }

    fn enqueue(&mut self, e: &Enqueue, now: u64, bug: Option<Bug>) -> Result<Answer, Refusal> {
        if let Some(answer) = e.dedupe_id.as_ref().and_then(|d| self.dedupe.get(d)) {
            return Ok(answer.clone());
        }
        let (mut replaced, mut superseded) = (None, None);
        if let Some(&old) = e.key.as_ref().and_then(|k| self.keys.get(k)) {
            let leased = self.messages.get(&old).is_some_and(|m| matches!(m.stage, Stage::Leased(_)));
            match e.if_exists {
                IfExists::Reject => {
                    if bug == Some(Bug::RefusedApplied) {
                        self.insert(e, now, bug);
                    }
                    return Err(Refusal::KeyExists);
                }
                IfExists::Keep => {
                    let answer = Answer::Enqueued {
                        id: old,
                        created: false,
                        replaced: None,
                        superseded: None,
                        due_at_ms: None,
                    };
                    if let Some(d) = &e.dedupe_id {
                        self.dedupe.insert(d.clone(), answer.clone());
                    }
                    return Ok(answer);
                }
                IfExists::Replace if leased => return Err(Refusal::Leased),
                IfExists::Supersede if leased => {
                    if let Some(m) = self.messages.get_mut(&old) {
                        m.superseded = true;
                    }
                    superseded = Some(old);
                }
                IfExists::Replace | IfExists::Supersede => {
                    if bug != Some(Bug::ReplaceKeepsBoth) {
                        self.end(old, Why::Other, now);
                    }
                    self.totals.replaced += 1;
                    replaced = Some(old);
                }
            }
        }
        let id = self.insert(e, now, bug);
        let answer = Answer::Enqueued { id, created: true, replaced, superseded, due_at_ms: None };
        if let Some(d) = &e.dedupe_id {
            self.dedupe.insert(d.clone(), answer.clone());
        }
        Ok(answer)
    }

    fn insert(&mut self, e: &Enqueue, now: u64, bug: Option<Bug>) -> MsgId {
        self.last_id += 1;
        let id = MsgId(self.last_id);
        let (due, delay) = due(&e.when, now, bug);
        let max = e.max_attempts.unwrap_or(RULES.max_attempts);
        let message = Message {
            key: e.key.clone(),
            body: e.body.seen(),
            due,
            delay,
            since: now,
            attempt: 0,
            max,
            token: None,
            stage: Stage::Waiting,
            granted_at: 0,
            superseded: false,
        };
        self.messages.insert(id, message);
        if let Some(key) = &e.key {
            self.keys.insert(key.clone(), id);
        }
        self.totals.enqueued += 1;
        id
    }

    fn reserve(
        &mut self,
        max: u64,
        lease_ms: Option<u64>,
        now: u64,
        bug: Option<Bug>,
        rng: &mut Rng,
    ) -> Answer {
        let mut ready: Vec<(u64, MsgId)> = self
            .messages
            .iter()
            .filter(|(_, m)| m.stage == Stage::Waiting && m.due <= now)
            .filter(|(_, m)| bug != Some(Bug::FarNotLoaded) || m.delay < 1_000 * MS)
            .map(|(id, m)| (m.due, *id))
            .collect();
        ready.sort_unstable();
        let other = self.messages.values().next_back().map(|m| m.body);
        let mut grants = Vec::new();
        for (due, id) in ready.into_iter().take(usize::try_from(max).unwrap_or(1)) {
            self.counter += 1;
            let token = format!("{:04x}{:08x}", self.epoch, self.counter);
            let Some(m) = self.messages.get_mut(&id) else { continue };
            if bug != Some(Bug::AttemptAtNack) {
                m.attempt += 1;
            }
            m.token = Some(token.clone());
            let lease = lease_ms.unwrap_or(RULES.lease_ms) * MS;
            let lease = if bug == Some(Bug::LeaseShort) { lease / 10 * 9 } else { lease };
            m.stage = Stage::Leased(now + lease);
            m.granted_at = now;
            let swap = bug == Some(Bug::BodySwapped) && rng.percent(2);
            let lateness_ms = (now - due) / MS;
            let body = if swap { other.unwrap_or(m.body) } else { m.body };
            grants.push(Grant {
                id,
                token: Token(token),
                attempt: m.attempt,
                key: m.key.clone(),
                body,
                lateness_ms,
                late: false,
            });
        }
        Answer::Grants(grants)
    }

    fn settle(
        &mut self,
        proof: &Proof,
        _now: u64,
        bug: Option<Bug>,
        after_end: bool,
    ) -> Result<&mut Message, Refusal> {
        let Some(m) = self.messages.get_mut(&proof.id) else { return Err(Refusal::LeaseLost) };
        let holds = match m.stage {
            Stage::Leased(_) => true,
            Stage::Waiting | Stage::Dead => after_end,
        };
        let unchecked = bug == Some(Bug::TokenUnchecked);
        if holds && (unchecked || m.token.as_ref() == Some(&proof.token.0)) {
            Ok(m)
        } else {
            Err(Refusal::LeaseLost)
        }
    }

    fn end(&mut self, id: MsgId, why: Why, now: u64) {
        if let Some(mut m) = self.messages.remove(&id) {
            if why == Why::Acked {
                m.stage = Stage::Waiting;
            }
            self.gone.insert(id, (now, why, m));
        }
    }

    fn find(&self, target: &Target) -> Result<MsgId, Refusal> {
        let id = match target {
            Target::Id(id) => Some(*id),
            Target::Key { key, .. } => self.keys.get(key).copied(),
        };
        id.filter(|id| self.messages.contains_key(id)).ok_or(Refusal::NotFound)
    }
}

impl Message {
    fn die(&mut self, bug: Option<Bug>) {
        let max = match bug {
            Some(Bug::OneAttemptMore) => self.max + 1,
            Some(Bug::OneAttemptLess) => self.max - 1,
            _ => self.max,
        };
        if self.attempt >= max {
            self.stage = Stage::Dead;
        }
    }

    fn changeable(&self, blind: bool) -> Result<(), Refusal> {
        match self.stage {
            Stage::Leased(_) if !blind => Err(Refusal::Leased),
            Stage::Dead => Err(Refusal::Dead),
            Stage::Leased(_) | Stage::Waiting => Ok(()),
        }
    }
}

/// Due time and delay.
fn due(when: &When, now: u64, bug: Option<Bug>) -> (u64, u64) {
    match when {
        When::DelayMs(ms) => {
            let ms = if bug == Some(Bug::DueRoundedDown) { ms / 10 * 10 } else { *ms };
            (now + ms * MS, ms * MS)
        }
        When::AtMs(ms) => {
            let due = ms.saturating_sub(EPOCH_MS) * MS;
            (due, due.saturating_sub(now))
        }
    }
}
