//! A toy of the system under test, in virtual time, with switchable bugs: it makes histories on which the checker is
//! tested. Without a bug each history must be clean; each bug must be caught.
//!
//! The toy is a table and a few rules; it shares nothing with the real engine. Clients work one operation at a time,
//! each operation takes effect at a random moment between its invocation and its answer, and the toy is killed now and
//! then: what is on its way then has an unknown outcome.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::history::{
    Answer, Call, Enqueue, Event, Fault, Grant, Held, History, IfExists, Leases, Moment, MsgId, OpId,
    Payload, Proof, Refusal, Rules, Seen, Shards, Stamp, State, Tag, Target, Token, Told, Totals, Unanswered,
    What, When, body,
};
use crate::rng::Rng;

/// What the toy does wrong. The names follow the mutants of the real system where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// Enqueues are answered before they are durable: a kill takes the last of them.
    EnqueueBeforeSync,
    /// Acks are answered before they are durable.
    AckBeforeSync,
    /// Cancels are answered before they are durable.
    CancelBeforeSync,
    /// Grants are not durable: a kill takes the leases and attempts of the last of them.
    GrantForgotten,
    /// Delays are rounded down to 10 ms.
    DueRoundedDown,
    /// After a start delays begin anew.
    DelayFromStart,
    /// What is far away is never loaded.
    FarNotLoaded,
    /// Leases are dropped by a start.
    LeasesDropped,
    /// Leases end a tenth too early.
    LeaseShort,
    /// The token's counter begins anew after a start.
    TokenReused,
    /// Settles are accepted without looking at the token.
    TokenUnchecked,
    /// An extend is accepted after the lease ran out.
    ExtendAfterEnd,
    /// Attempts are counted when a message comes back.
    AttemptAtNack,
    /// One attempt too many.
    OneAttemptMore,
    /// One attempt too few.
    OneAttemptLess,
    /// A cancel answers first and removes a little later.
    CancelInTwoSteps,
    /// A cancel looks at no lease.
    CancelTakesLeased,
    /// A postpone looks at no lease.
    PostponeTakesLeased,
    /// The table of keys is not restored.
    KeysForgotten,
    /// A key stays taken after its message is gone.
    KeyLeaked,
    /// A replacement leaves the old message.
    ReplaceKeepsBoth,
    /// A refused enqueue is carried out.
    RefusedApplied,
    /// Now and then a nack loses the message.
    NackLoses,
    /// Now and then another message's body is given.
    BodySwapped,
    /// Dedupe ids are not restored.
    DedupeForgotten,
    /// A cancel of a ready message says it was not there.
    ReadyNotFound,
    /// Totals are not restored.
    TotalsForgotten,
    /// Time stands still while the system is down.
    DowntimeForgotten,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 28] = [
        Bug::EnqueueBeforeSync,
        Bug::AckBeforeSync,
        Bug::CancelBeforeSync,
        Bug::GrantForgotten,
        Bug::DueRoundedDown,
        Bug::DelayFromStart,
        Bug::FarNotLoaded,
        Bug::LeasesDropped,
        Bug::LeaseShort,
        Bug::TokenReused,
        Bug::TokenUnchecked,
        Bug::ExtendAfterEnd,
        Bug::AttemptAtNack,
        Bug::OneAttemptMore,
        Bug::OneAttemptLess,
        Bug::CancelInTwoSteps,
        Bug::CancelTakesLeased,
        Bug::PostponeTakesLeased,
        Bug::KeysForgotten,
        Bug::KeyLeaked,
        Bug::ReplaceKeepsBoth,
        Bug::RefusedApplied,
        Bug::NackLoses,
        Bug::BodySwapped,
        Bug::DedupeForgotten,
        Bug::ReadyNotFound,
        Bug::TotalsForgotten,
        Bug::DowntimeForgotten,
    ];
}

/// What the toy promises.
pub const RULES: Rules = Rules {
    lease_ms: 400,
    max_attempts: 4,
    backoff_min_ms: 40,
    backoff_max_ms: 1_000,
    offer_ms: 400,
    slack_ms: 2,
    shards: Shards::One,
    attempts: Told::Yes,
    keys: Told::Yes,
    lateness: Told::Yes,
    leases: Leases::OfTokens,
    failover_ms: 0,
    unanswered: Unanswered::UntilKilled,
};

const QUEUE: &str = "toy";
const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const EPOCH_MS: u64 = 1_700_000_000_000;
const PRODUCERS: u32 = 3;
const CONSUMERS: u32 = 3;
const PRODUCE_UNTIL: u64 = 2_500 * MS;
const GIVE_UP: u64 = 20_000 * MS;
/// What a bug of durability loses in a kill.
const UNSYNCED: u64 = 40 * MS;

/// Runs the toy under random clients and kills.
pub fn run(seed: u64, bug: Option<Bug>) -> History {
    let mut run = Run {
        rng: Rng::new(seed),
        bug,
        now: 0,
        events: Vec::new(),
        queue: BinaryHeap::new(),
        actions: BTreeMap::new(),
        planned: 0,
        ops: 0,
        tags: 0,
        reign: 0,
        up: false,
        flying: BTreeMap::new(),
        ids: Vec::new(),
        proofs: Vec::new(),
        retry: BTreeMap::new(),
        toy: Toy::default(),
        done: false,
    };
    run.go();
    History { title: format!("toy, seed {seed}, bug {bug:?}"), rules: RULES, events: run.events }
}

enum Action {
    Wake(u32),
    Arrive { client: u32, op: OpId, call: Call, reign: u64, until: u64 },
    Answer { client: u32, op: OpId, what: What, reign: u64 },
    Kill,
    Start,
    Remove(MsgId),
}

struct Run {
    rng: Rng,
    bug: Option<Bug>,
    now: u64,
    events: Vec<Event>,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    actions: BTreeMap<u64, Action>,
    planned: u64,
    ops: u64,
    tags: u64,
    reign: u64,
    up: bool,
    /// Operations on their way, by client.
    flying: BTreeMap<u32, (OpId, Call)>,
    ids: Vec<MsgId>,
    proofs: Vec<Proof>,
    /// Enqueues to be tried again with the same dedupe id.
    retry: BTreeMap<u32, Enqueue>,
    toy: Toy,
    done: bool,
}

impl Run {
    fn go(&mut self) {
        self.at(0, Action::Start);
        for client in 1..=PRODUCERS + CONSUMERS {
            self.at(MS, Action::Wake(client));
        }
        let first = self.rng.range(100, 500) * MS;
        self.at(first, Action::Kill);
        while let Some(Reverse((time, n))) = self.queue.pop() {
            self.now = time;
            let Some(action) = self.actions.remove(&n) else { continue };
            self.act(action);
            if self.done || self.now > GIVE_UP {
                break;
            }
        }
        let mut rows: Vec<Held> = Vec::new();
        for (id, m) in &self.toy.messages {
            rows.push(m.row(*id, self.now));
        }
        self.push(0, What::Dump { queue: QUEUE.to_owned(), rows });
        self.push(0, What::Totals { queue: QUEUE.to_owned(), totals: self.toy.totals });
    }

    fn at(&mut self, time: u64, action: Action) {
        let n = self.planned;
        self.planned += 1;
        self.actions.insert(n, action);
        self.queue.push(Reverse((time, n)));
    }

    fn push(&mut self, client: u32, what: What) {
        let at = Stamp { mono_ns: self.now, wall_ms: EPOCH_MS + self.now / MS };
        self.events.push(Event { at, client, what });
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Wake(client) => self.wake(client),
            Action::Arrive { client, op, call, reign, until } => {
                if reign != self.reign || !self.up {
                    return;
                }
                let outcome = self.toy.handle(&call, self.now, self.bug, &mut self.rng);
                let empty = matches!(&outcome, Ok(Answer::Grants(g)) if g.is_empty());
                if empty && self.now < until {
                    self.at(self.now + 500 * US, Action::Arrive { client, op, call, reign, until });
                    return;
                }
                if self.bug == Some(Bug::CancelInTwoSteps)
                    && let Ok(Answer::Cancelled(Some(id))) = &outcome
                {
                    let later = self.now + self.rng.range(1, 60) * MS;
                    self.at(later, Action::Remove(*id));
                }
                let what = match outcome {
                    Ok(answer) => What::Ok { op, answer },
                    Err(refusal) => What::Fail { op, refusal },
                };
                let back = self.now + self.rng.range(20, 3_000) * US;
                self.at(back, Action::Answer { client, op, what, reign });
            }
            Action::Answer { client, op, what, reign } => {
                if reign != self.reign || self.flying.get(&client).is_none_or(|(o, _)| *o != op) {
                    return;
                }
                self.flying.remove(&client);
                self.learn(client, &what);
                self.push(client, what);
                let next = self.now + self.rng.range(10, 8_000) * US;
                self.at(next, Action::Wake(client));
            }
            Action::Kill => self.kill(),
            Action::Start => {
                self.reign += 1;
                self.up = true;
                self.toy.start(self.now, self.bug);
                self.push(0, What::Fault(Fault::Started));
            }
            Action::Remove(id) => {
                self.toy.messages.remove(&id);
            }
        }
    }

    fn kill(&mut self) {
        self.up = false;
        self.toy.crash(self.now, self.bug);
        self.push(0, What::Fault(Fault::Killed(Moment::Serving)));
        for (client, (op, call)) in std::mem::take(&mut self.flying) {
            self.push(client, What::Info { op, why: "connection lost".to_owned() });
            if let Call::Enqueue(e) = call
                && e.dedupe_id.is_some()
            {
                self.retry.insert(client, e);
            }
            let next = self.now + self.rng.range(10, 8_000) * US;
            self.at(next, Action::Wake(client));
        }
        let up = self.now + self.rng.range(1, 300) * MS;
        self.at(up, Action::Start);
        if up < PRODUCE_UNTIL {
            let next = up + self.rng.range(50, 500) * MS;
            self.at(next, Action::Kill);
        }
    }

    fn wake(&mut self, client: u32) {
        if !self.up {
            self.at(self.now + 5 * MS, Action::Wake(client));
            return;
        }
        let call = if client <= PRODUCERS { self.produce(client) } else { self.consume() };
        let Some(call) = call else { return };
        let op = OpId(self.ops);
        self.ops += 1;
        self.push(client, What::Invoke { op, call: call.clone() });
        self.flying.insert(client, (op, call.clone()));
        let there = self.now + self.rng.range(20, 2_000) * US;
        let until = match &call {
            Call::Reserve { wait_ms, .. } => there + wait_ms * MS,
            _ => there,
        };
        self.at(there, Action::Arrive { client, op, call, reign: self.reign, until });
    }

    fn produce(&mut self, client: u32) -> Option<Call> {
        if let Some(again) = self.retry.remove(&client) {
            return Some(Call::Enqueue(again));
        }
        if self.now > PRODUCE_UNTIL {
            return None;
        }
        let target = if self.rng.percent(50) {
            Target::Key { queue: QUEUE.to_owned(), key: format!("k{}", self.rng.below(6)) }
        } else {
            let recent = self.ids.len().saturating_sub(30);
            Target::Id(self.rng.pick(&self.ids[recent..]).copied().unwrap_or(MsgId(1)))
        };
        Some(match self.rng.below(100) {
            0..60 => {
                self.tags += 1;
                let tag = Tag(self.tags);
                let delay = match self.rng.below(10) {
                    0..3 => 0,
                    3..9 => self.rng.below(300),
                    _ => self.rng.below(1_500),
                };
                let when = if self.rng.percent(20) {
                    When::AtMs(EPOCH_MS + self.now / MS + delay)
                } else {
                    When::DelayMs(delay)
                };
                let if_exists = match self.rng.below(4) {
                    0 => IfExists::Keep,
                    1 | 2 => IfExists::Replace,
                    _ => IfExists::Reject,
                };
                Call::Enqueue(Enqueue {
                    queue: QUEUE.to_owned(),
                    key: self.rng.percent(50).then(|| format!("k{}", self.rng.below(6))),
                    body: Payload::of(tag, body(tag, 40).as_bytes()),
                    when,
                    if_exists,
                    dedupe_id: self.rng.percent(30).then(|| format!("d{}", tag.0)),
                    max_attempts: self.rng.percent(20).then_some(2),
                    lease_ms: None,
                })
            }
            60..80 => Call::Cancel(target),
            80..87 => Call::Get(target),
            87..94 => Call::Postpone { target, when: When::DelayMs(self.rng.below(300)), body: None },
            _ => Call::Fire(target),
        })
    }

    fn consume(&mut self) -> Option<Call> {
        let draining = self.now > PRODUCE_UNTIL;
        if draining && self.toy.messages.values().all(|m| m.stage == Stage::Dead) && self.retry.is_empty() {
            self.done = self.flying.is_empty();
        }
        if let Some(proof) = self.proofs.pop() {
            if self.rng.percent(20) {
                // Later, perhaps too late.
                let place = self.rng.below(self.proofs.len() as u64 + 1);
                self.proofs.insert(usize::try_from(place).unwrap_or(0), proof);
                return self.consume_none();
            }
            return Some(match self.rng.below(100) {
                0..65 => Call::Ack(proof),
                65..80 => Call::Nack { proof, delay_ms: Some(self.rng.below(80)) },
                80..86 => Call::Nack { proof, delay_ms: None },
                86..94 => Call::Extend { proof, lease_ms: self.rng.range(20, 120) },
                _ => return self.consume_none(),
            });
        }
        self.consume_none()
    }

    fn consume_none(&mut self) -> Option<Call> {
        let lease_ms = Some(self.rng.range(30, 150));
        Some(Call::Reserve {
            queue: QUEUE.to_owned(),
            max: self.rng.range(1, 4),
            wait_ms: self.rng.below(3) * 20,
            lease_ms,
        })
    }

    fn learn(&mut self, client: u32, what: &What) {
        if let What::Ok { answer, .. } = what {
            match answer {
                Answer::Enqueued { id, .. } => self.ids.push(*id),
                Answer::Grants(grants) if client > PRODUCERS => {
                    self.proofs.extend(grants.iter().map(|g| Proof { id: g.id, token: g.token.clone() }));
                }
                _ => {}
            }
        }
    }
}

#[derive(Default)]
struct Toy {
    messages: BTreeMap<MsgId, Message>,
    gone: BTreeMap<MsgId, (u64, Why, Message)>,
    keys: BTreeMap<String, MsgId>,
    dedupe: BTreeMap<String, Answer>,
    last_id: u64,
    epoch: u64,
    counter: u64,
    crashed_at: u64,
    totals: Totals,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Acked,
    Cancelled,
    Other,
}

#[derive(Clone, PartialEq, Eq)]
struct Message {
    key: Option<String>,
    body: Seen,
    due: u64,
    delay: u64,
    since: u64,
    attempt: u64,
    max: u64,
    token: Option<String>,
    stage: Stage,
    granted_at: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Leased(u64),
    Dead,
}

impl Message {
    fn row(&self, id: MsgId, now: u64) -> Held {
        let state = match self.stage {
            Stage::Waiting if self.due > now => State::Scheduled,
            Stage::Waiting => State::Ready,
            Stage::Leased(_) => State::Leased,
            Stage::Dead => State::Dead,
        };
        Held { id, key: self.key.clone(), state, attempt: self.attempt, body: Some(self.body) }
    }
}

impl Toy {
    fn start(&mut self, now: u64, bug: Option<Bug>) {
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

    fn crash(&mut self, now: u64, bug: Option<Bug>) {
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

    fn tick(&mut self, now: u64, bug: Option<Bug>) {
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

    fn handle(&mut self, call: &Call, now: u64, bug: Option<Bug>, rng: &mut Rng) -> Result<Answer, Refusal> {
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
                let m = self.settle(proof, now, bug, true)?;
                let step = 40u64 << (m.attempt.max(1) - 1).min(4);
                let delay = delay_ms.unwrap_or_else(|| rng.range(step, step + step / 2));
                // From the millisecond after, as a server that cuts its clock must.
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
            Call::Bury(_) | Call::Redrive(_) | Call::Purge { .. } => {
                Err(Refusal::Other("not in the toy".to_owned()))
            }
        }
    }

    fn enqueue(&mut self, e: &Enqueue, now: u64, bug: Option<Bug>) -> Result<Answer, Refusal> {
        if let Some(answer) = e.dedupe_id.as_ref().and_then(|d| self.dedupe.get(d)) {
            return Ok(answer.clone());
        }
        let mut replaced = None;
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
                    let answer = Answer::Enqueued { id: old, created: false, replaced: None };
                    if let Some(d) = &e.dedupe_id {
                        self.dedupe.insert(d.clone(), answer.clone());
                    }
                    return Ok(answer);
                }
                IfExists::Replace if leased => return Err(Refusal::Leased),
                IfExists::Replace => {
                    if bug != Some(Bug::ReplaceKeepsBoth) {
                        self.end(old, Why::Other, now);
                    }
                    self.totals.replaced += 1;
                    replaced = Some(old);
                }
            }
        }
        let id = self.insert(e, now, bug);
        let answer = Answer::Enqueued { id, created: true, replaced };
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
            Stage::Waiting => after_end,
            Stage::Dead => false,
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
