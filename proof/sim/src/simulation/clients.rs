//! The requests of the clients: decisions alone, from the seed.

use std::collections::VecDeque;

use duewheel_judge::history::{Answer, Call, Enqueue, IfExists, MsgId, Proof, Tag, Target, What, When};
use duewheel_judge::rng::Rng;

use super::ask::payload;
use super::style::{MAX_BODY, Style};

const MS: u64 = 1_000_000;
/// The largest number of operations of a request that names many messages: several times a batch of the driver.
const SHARED: u64 = 50;

/// The kind of requests that a client makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Producer,
    Changer,
    Consumer,
    Looker,
}

/// The stage of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Work,
    Drain,
    Stop,
}

/// What clients tell each other.
#[derive(Debug, Default)]
pub(super) struct Gossip {
    tags: u64,
    recent: VecDeque<MsgId>,
    /// Leases that their holders do not settle in time.
    old: Vec<Proof>,
    /// Leases to be settled at a time.
    later: Vec<(u64, Proof)>,
    /// Enqueues to be retried with their dedupe ids.
    again: Vec<Enqueue>,
    /// The last request that named many messages.
    shared: Vec<Call>,
    /// How often such a request was sent again.
    repeats: u64,
}

impl Gossip {
    /// The number of bodies made so far.
    pub(super) fn tags(&self) -> u64 {
        self.tags
    }

    /// How often a request that names many messages was sent again.
    pub(super) fn repeats(&self) -> u64 {
        self.repeats
    }

    /// Whether any client still has something to do.
    pub(super) fn has_retries(&self) -> bool {
        !self.again.is_empty()
    }

    /// The next requests of a client; several are made together.
    pub(super) fn next(
        &mut self,
        role: Role,
        stage: Stage,
        style: &Style,
        at: (u64, u64),
        rng: &mut Rng,
    ) -> Vec<Call> {
        match role {
            Role::Producer => self.produce(stage, style, at.1, rng),
            Role::Changer if stage == Stage::Work && style.shared > 0 && rng.percent(style.shared) => {
                self.share(style, at.1, rng)
            }
            Role::Changer if stage == Stage::Work => self.change_mind(style, at.1, rng).into_iter().collect(),
            Role::Looker if stage == Stage::Work => vec![Call::Get(self.target(style, rng))],
            Role::Consumer if stage != Stage::Stop => self.consume(stage, style, at.0, rng),
            Role::Changer | Role::Looker | Role::Consumer => Vec::new(),
        }
    }

    fn produce(&mut self, stage: Stage, style: &Style, wall: u64, rng: &mut Rng) -> Vec<Call> {
        if let Some(again) = self.again.pop() {
            return vec![Call::Enqueue(again)];
        }
        if stage != Stage::Work {
            return Vec::new();
        }
        let n = if rng.percent(style.batches) { rng.range(2, 9) } else { 1 };
        (0..n).map(|_| self.message(style, wall, rng)).collect()
    }

    fn message(&mut self, style: &Style, wall: u64, rng: &mut Rng) -> Call {
        self.tags += 1;
        let tag = Tag(self.tags);
        let len = match rng.below(100) {
            n if n < style.large => MAX_BODY as u64 + u64::from(rng.percent(5)),
            95.. => rng.range(300, 900),
            _ => rng.range(30, 120),
        };
        let when = when(style, wall, rng);
        let spread_ms = style.bounds.spread_ms(rng);
        let expiry = style.bounds.expiry(&when, spread_ms, wall, rng);
        Call::Enqueue(Enqueue {
            queue: queue(style, rng),
            key: rng.percent(style.keyed).then(|| key(style, rng)),
            body: payload(tag, usize::try_from(len).unwrap_or(40)),
            when,
            spread_ms,
            expiry,
            if_exists: match rng.below(5) {
                0 => IfExists::Keep,
                1 => IfExists::Reject,
                2 => IfExists::Supersede,
                _ => IfExists::Replace,
            },
            dedupe_id: rng.percent(30).then(|| format!("dedupe-{}", tag.0)),
            max_attempts: rng.percent(15).then(|| rng.range(1, 4)),
            lease_ms: rng.percent(10).then(|| rng.range(60, 400)),
        })
    }

    fn target(&mut self, style: &Style, rng: &mut Rng) -> Target {
        let n = usize::try_from(rng.below(self.recent.len() as u64)).unwrap_or(0);
        match self.recent.get(n) {
            Some(id) if rng.percent(60) => Target::Id(*id),
            _ => Target::Key { queue: queue(style, rng), key: format!("order-{}", rng.below(12)) },
        }
    }

    fn change_mind(&mut self, style: &Style, wall: u64, rng: &mut Rng) -> Option<Call> {
        if style.bounds.changes(rng) {
            return Some(Call::Limit { queue: queue(style, rng), limits: style.bounds.limits(rng) });
        }
        let target = self.target(style, rng);
        Some(match rng.below(20) {
            0..11 => Call::Cancel(target),
            11..17 => {
                let body = (matches!(target, Target::Id(_)) && rng.percent(40)).then(|| {
                    self.tags += 1;
                    payload(Tag(self.tags), 50)
                });
                Call::Postpone { target, when: when(style, wall, rng), body }
            }
            _ => Call::Fire(target),
        })
    }

    /// A request of up to [`SHARED`] operations, most of which other requests name, too: a retry of the one before, often
    /// in another order, or a new one.
    fn share(&mut self, style: &Style, wall: u64, rng: &mut Rng) -> Vec<Call> {
        if self.shared.is_empty() || rng.percent(40) {
            let (kind, n) = (rng.below(4), rng.range(2, SHARED));
            self.shared = (0..n).map(|_| self.shared_call(kind, style, wall, rng)).collect();
            return self.shared.clone();
        }
        self.repeats += 1;
        let mut again = self.shared.clone();
        for call in &mut again {
            if let Call::Enqueue(enqueue) = call {
                self.tags += 1;
                enqueue.body = payload(Tag(self.tags), 40);
            }
        }
        if rng.percent(50) {
            rng.shuffle(&mut again);
        }
        again
    }

    fn shared_call(&mut self, kind: u64, style: &Style, wall: u64, rng: &mut Rng) -> Call {
        if kind == 0 {
            self.tags += 1;
            return Call::Enqueue(Enqueue {
                queue: queue(style, rng),
                key: Some(key(style, rng)),
                body: payload(Tag(self.tags), 40),
                when: when(style, wall, rng),
                spread_ms: 0,
                expiry: None,
                if_exists: IfExists::Keep,
                dedupe_id: None,
                max_attempts: None,
                lease_ms: None,
            });
        }
        let target = self.target(style, rng);
        match kind {
            1 => Call::Cancel(target),
            2 => Call::Postpone { target, when: when(style, wall, rng), body: None },
            _ => Call::Get(target),
        }
    }

    fn consume(&mut self, stage: Stage, style: &Style, now: u64, rng: &mut Rng) -> Vec<Call> {
        if let Some(n) = self.later.iter().position(|(at, _)| *at <= now) {
            let (_, proof) = self.later.swap_remove(n);
            if stage == Stage::Drain {
                return vec![Call::Ack(proof)];
            }
            return vec![match rng.below(20) {
                0..12 => Call::Ack(proof),
                12..15 => Call::Nack { proof, delay_ms: Some(rng.below(300)) },
                15..17 => Call::Nack { proof, delay_ms: None },
                _ => {
                    self.later.push((now + rng.below(200) * MS, proof.clone()));
                    Call::Extend { proof, lease_ms: rng.range(50, 300) }
                }
            }];
        }
        if stage == Stage::Work && rng.percent(12) && !self.old.is_empty() {
            let n = usize::try_from(rng.below(self.old.len() as u64)).unwrap_or(0);
            let proof = self.old.swap_remove(n);
            return vec![match rng.below(3) {
                0 => Call::Extend { proof, lease_ms: 200 },
                1 => Call::Nack { proof, delay_ms: Some(0) },
                _ => Call::Ack(proof),
            }];
        }
        let draining = stage == Stage::Drain;
        // A consumer that waits in one of many queues would let the others wait.
        let wait_ms = if draining { style.wait_ms * 2 / style.queues.len() as u64 } else { style.wait_ms };
        // A queue with a rate gives few messages to each reserve.
        let wait_ms = if draining && style.bounds.limit_grants() { wait_ms.min(1_000) } else { wait_ms };
        // Where everything fits, the first queue is to become much longer than an equal part for each queue would be.
        let from = match style.fits && !draining {
            true => rng.pick(&style.queues).unwrap_or(&style.queues[0]).clone(),
            false => queue(style, rng),
        };
        vec![Call::Reserve {
            queue: from,
            max: if draining { 20 } else { rng.range(1, 6) },
            wait_ms: if rng.percent(style.polls) { 0 } else { rng.below(wait_ms) },
            lease_ms: (draining || rng.percent(85)).then(|| rng.range(60, 500)),
        }]
    }

    /// Handles the answer that a client gets.
    pub(super) fn hear(&mut self, call: &Call, what: &What, stage: Stage, now: u64, rng: &mut Rng) {
        match what {
            What::Ok { answer: Answer::Enqueued { id, .. }, .. } => {
                self.recent.push_back(*id);
                if self.recent.len() > 60 {
                    self.recent.pop_front();
                }
            }
            What::Ok { answer: Answer::Grants(grants), .. } => {
                for grant in grants {
                    let proof = Proof { id: grant.id, token: grant.token.clone() };
                    let wait = match rng.below(100) {
                        _ if stage == Stage::Drain => 0,
                        0..60 => rng.below(20),
                        // The lease is held for a while, perhaps over a crash, perhaps for too long.
                        60..82 => rng.below(700),
                        82..95 => {
                            self.old.push(proof);
                            continue;
                        }
                        _ => continue,
                    };
                    self.later.push((now + wait * MS, proof));
                }
            }
            What::Info { .. } => {
                if let Call::Enqueue(e) = call
                    && e.dedupe_id.is_some()
                {
                    self.again.push(e.clone());
                }
            }
            _ => {}
        }
    }
}

fn queue(style: &Style, rng: &mut Rng) -> String {
    // Half of the work is in the first two queues, however many there are.
    let all = &style.queues[..];
    let some = match rng.percent(50) {
        true if style.fits => &all[..1],
        true => &all[..2],
        false => all,
    };
    rng.pick(some).unwrap_or(&all[0]).clone()
}

fn key(style: &Style, rng: &mut Rng) -> String {
    format!("order-{}", rng.below(style.keys))
}

fn when(style: &Style, wall: u64, rng: &mut Rng) -> When {
    let ms = match rng.below(100) {
        _ if rng.percent(style.at_once) => 0,
        _ if rng.percent(style.far) => rng.range(3_000, 120_000),
        0..15 => 0,
        15..70 => rng.below(300),
        70..90 => rng.below(2_500),
        90..97 => rng.range(2_000, 9_000),
        97 | 98 => rng.range(1, 4) * 86_400_000,
        _ => 4_294_967_295_000 - 1,
    };
    if rng.percent(style.instants) { When::AtMs(wall.saturating_add(ms)) } else { When::DelayMs(ms) }
}
