//! The messages of the model: where each stands, and what time does to them.

use std::collections::BTreeMap;

use duewheel_core::engine::Target;
use duewheel_core::id::{LeaseToken, MessageId, SessionId};
use duewheel_core::message::{DoneOutcome, State};
use duewheel_core::time::{Due, EngineMs, Now};

use super::{KEYS, QUEUES};

#[derive(Clone, Debug)]
pub struct M {
    pub id: MessageId,
    pub queue: usize,
    pub key: Option<usize>,
    pub due: Due,
    pub priority: u32,
    pub generation: u32,
    pub attempt: u32,
    pub forgiven: u32,
    pub max: u32,
    /// Sessions in a row that have lost it.
    pub losses: u32,
    /// Set while its due time is one that only the engine knows; with its token.
    pub held_off: Option<Option<LeaseToken>>,
    pub body: u8,
    /// Another message has taken its key.
    pub superseded: bool,
    /// The token that could settle it before its lease, for a grant that reaches nobody.
    pub before: Option<LeaseToken>,
    pub stage: S,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum S {
    /// With the token that may still settle it.
    Scheduled(Option<LeaseToken>),
    /// With its rank, fixed when it became ready.
    Ready(u64, Option<LeaseToken>),
    Leased(LeaseToken, u64, SessionId),
    /// Since this time, with the token of the lease whose end was the death.
    Dead(u64, Option<LeaseToken>),
}

/// A message that has ended in a queue that keeps such messages.
#[derive(Clone, Debug)]
pub struct DoneM {
    pub m: M,
    pub outcome: DoneOutcome,
    pub wall: u64,
    pub engine: u64,
}

/// How long they are kept.
pub const KEEP: u64 = 2_000;

/// How long the act of the model keeps the messages that it has removed.
pub const KEEP_ACT: u64 = 3_000;

#[derive(Default)]
pub struct Model {
    /// Whether the first queue keeps messages that have ended.
    pub keeps: bool,
    pub live: Vec<M>,
    /// In the order in which they ended.
    pub done: Vec<DoneM>,
    /// Messages that the act has removed, and keeps.
    pub kept: Vec<DoneM>,
    pub issued: u64,
    pub paused: [bool; 2],
    pub last_token: Option<LeaseToken>,
    pub granted: u64,
    pub died: u64,
    /// What the engine remembers as acked: token, queue, when.
    pub acked: BTreeMap<MessageId, (LeaseToken, usize, EngineMs)>,
}

impl M {
    /// Its lease ends without a settle.
    pub fn lose(&mut self, session: SessionId, token: Option<LeaseToken>) {
        self.losses += u32::from(session != SessionId::NONE);
        let is_dead = self.attempt - self.forgiven >= self.max;
        if session != SessionId::NONE && self.losses > 2 && !is_dead {
            self.held_off = Some(token);
        }
    }
}

impl Model {
    pub fn state(m: &M) -> State {
        match m.stage {
            S::Scheduled(_) => State::Scheduled,
            S::Ready(..) => State::Ready,
            S::Leased(..) => State::Leased,
            S::Dead(..) => State::Dead,
        }
    }

    /// A message ends.
    pub fn end(&mut self, at: usize, outcome: DoneOutcome, now: Now) -> M {
        let m = self.live.remove(at);
        if self.keeps && m.queue == 0 {
            self.done.push(DoneM { m: m.clone(), outcome, wall: now.wall.0, engine: now.engine.0 });
        }
        m
    }

    /// A superseded message ends, whose lease this one was; a late ack is answered `already`.
    pub fn end_superseded(&mut self, at: usize, token: LeaseToken, now: Now) {
        let m = self.end(at, DoneOutcome::Superseded, now);
        self.acked.insert(m.id, (token, m.queue, now.engine));
    }

    /// The done message that a target names.
    pub fn recall(&self, target: &Target, now: Now) -> Option<&DoneM> {
        let found =
            self.done.iter().rev().filter(|done| done.engine + KEEP > now.engine.0).find(
                |done| match target {
                    Target::Id(id) => done.m.id == *id,
                    Target::Own(_) => false,
                    Target::Key(q, k) => {
                        QUEUES[done.m.queue] == q.as_str()
                            && done.m.key.is_some_and(|key| KEYS[key] == k.as_str())
                    }
                },
            );
        found.or_else(|| self.kept(now).find(|done| *target == Target::Id(done.m.id)))
    }

    /// The messages that the act keeps still.
    pub fn kept(&self, now: Now) -> impl Iterator<Item = &DoneM> {
        self.kept.iter().filter(move |done| done.engine + KEEP_ACT > now.engine.0)
    }

    /// Leases end, what is due becomes ready.
    pub fn tick(&mut self, now: Now) {
        for at in (0..self.live.len()).rev() {
            let M { superseded, stage, .. } = self.live[at];
            if let S::Leased(token, until, _) = stage
                && superseded
                && until <= now.engine.0
            {
                self.end_superseded(at, token, now);
            }
        }
        let mut died = 0;
        for m in &mut self.live {
            if let S::Leased(token, until, session) = m.stage
                && until <= now.engine.0
            {
                m.lose(session, Some(token));
                m.stage = if m.attempt - m.forgiven >= m.max {
                    died += 1;
                    S::Dead(now.engine.0, Some(token))
                } else if now.is_due(m.due) {
                    S::Ready(now.wall_of(m.due).0, Some(token))
                } else {
                    S::Scheduled(Some(token)) // the wall clock went back meanwhile
                };
            }
        }
        self.died += died;
        for m in &mut self.live {
            if let S::Scheduled(token) = m.stage
                && now.is_due(m.due)
            {
                m.stage = S::Ready(now.wall_of(m.due).0, token);
            }
        }
    }

    pub fn place(&mut self, at: usize, now: Now) {
        let m = &mut self.live[at];
        m.stage = if now.is_due(m.due) { S::Ready(now.wall_of(m.due).0, None) } else { S::Scheduled(None) };
    }

    pub fn by_id(&self, id: MessageId) -> Option<usize> {
        self.live.iter().position(|m| m.id == id)
    }

    pub fn holder(&self, queue: usize, key: usize) -> Option<usize> {
        let holds = |m: &M| m.queue == queue && m.key == Some(key) && !matches!(m.stage, S::Dead(..));
        self.live.iter().position(holds)
    }

    pub fn resolve(&self, target: &Target) -> Option<usize> {
        match target {
            Target::Id(id) | Target::Own(id) => self.by_id(*id),
            Target::Key(q, k) => {
                let queue = QUEUES.iter().position(|name| *name == q.as_str())?;
                let key = KEYS.iter().position(|name| *name == k.as_str())?;
                self.holder(queue, key).or_else(|| {
                    let same = |m: &&M| m.queue == queue && m.key == Some(key);
                    let last = self.live.iter().filter(same).max_by_key(|m| m.id)?;
                    self.by_id(last.id)
                })
            }
        }
    }

    /// Ids in the order in which a reserve gets them. A ready message whose instant is not here any more is not given.
    pub fn ready(&self, queues: &[usize], now: Now) -> Vec<MessageId> {
        let mut found: Vec<_> = self
            .live
            .iter()
            .filter(|m| queues.contains(&m.queue) && !self.paused[m.queue] && now.is_due(m.due))
            .filter_map(|m| match m.stage {
                S::Ready(rank, _) => Some((m.priority, rank, m.id)),
                _ => None,
            })
            .collect();
        found.sort();
        found.into_iter().map(|(_, _, id)| id).collect()
    }
}
