//! A small model of the system under test, in virtual time, with switchable bugs: it makes histories on which the
//! checker is tested. Without a bug each history must be clean; each bug must be caught.
//!
//! The model is a table and a few rules; it shares nothing with the real engine. Clients work one operation at a time,
//! each operation takes effect at a random moment between its invocation and its answer, and the model is killed now
//! and then: operations in flight then have an unknown outcome.

mod toy;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use crate::history::{
    Answer, Blow, Call, Enqueue, Event, Fault, Held, History, IfExists, Moment, MsgId, OpId, Payload, Proof,
    Rules, Stamp, Tag, Target, Unanswered, What, When, body,
};
use crate::rng::Rng;

use toy::{Stage, Toy};

/// The bugs of the model. The names follow the mutants of the real system where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// Enqueues are answered before they are durable: a kill loses the last of them.
    EnqueueBeforeSync,
    /// Acks are answered before they are durable.
    AckBeforeSync,
    /// Cancels are answered before they are durable.
    CancelBeforeSync,
    /// Grants are not durable: a kill loses the leases and attempts of the last of them.
    GrantForgotten,
    /// Delays are rounded down to 10 ms.
    DueRoundedDown,
    /// After a start delays begin again.
    DelayFromStart,
    /// Messages that are due far in the future are never loaded.
    FarNotLoaded,
    /// Leases are dropped by a start.
    LeasesDropped,
    /// Leases end a tenth too early.
    LeaseShort,
    /// The token's counter begins again after a start.
    TokenReused,
    /// Settles are accepted without a check of the token.
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
    /// A cancel ignores leases.
    CancelTakesLeased,
    /// A postpone ignores leases.
    PostponeTakesLeased,
    /// The table of keys is not restored.
    KeysForgotten,
    /// A key stays taken after its message is gone.
    KeyLeaked,
    /// A replacement leaves the old message.
    ReplaceKeepsBoth,
    /// A superseded message comes back when its lease ends.
    SupersededReturns,
    /// A refused enqueue is carried out.
    RefusedApplied,
    /// Now and then a nack loses the message.
    NackLoses,
    /// Now and then the body of another message is returned.
    BodySwapped,
    /// Dedupe ids are not restored.
    DedupeForgotten,
    /// A cancel of a ready message answers that it does not exist.
    ReadyNotFound,
    /// Totals are not restored.
    TotalsForgotten,
    /// Time stands still while the system is down.
    DowntimeForgotten,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 29] = [
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
        Bug::SupersededReturns,
        Bug::RefusedApplied,
        Bug::NackLoses,
        Bug::BodySwapped,
        Bug::DedupeForgotten,
        Bug::ReadyNotFound,
        Bug::TotalsForgotten,
        Bug::DowntimeForgotten,
    ];
}

/// The promises of the model.
pub const RULES: Rules = Rules {
    lease_ms: 400,
    max_attempts: 4,
    backoff_min_ms: 40,
    backoff_max_ms: 1_000,
    offer_ms: 400,
    slack_ms: 2,
    ..Rules::USUAL
};

const QUEUE: &str = "toy";
const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const EPOCH_MS: u64 = 1_700_000_000_000;
const PRODUCERS: u32 = 3;
const CONSUMERS: u32 = 3;
const PRODUCE_UNTIL: u64 = 2_500 * MS;
const GIVE_UP: u64 = 20_000 * MS;
/// The time for which a bug of durability loses changes in a kill.
const UNSYNCED: u64 = 40 * MS;
/// The longest time that a failover forgets.
pub const KEPT_MS: u64 = 60;
/// The time between two copies.
const COPY: u64 = 4 * MS;

/// The faults of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is killed and restarts with all its data.
    Kills,
    /// It fails over to a copy that is at most this number of ms old.
    Failovers(u64),
}

/// Runs the model with random clients and kills.
pub fn run(seed: u64, bug: Option<Bug>) -> History {
    run_under(Fate::Kills, seed, bug)
}

/// Runs the model with other faults. A failover is promised to forget at most [`KEPT_MS`].
pub fn run_under(fate: Fate, seed: u64, bug: Option<Bug>) -> History {
    let mut run = Run {
        fate,
        copies: VecDeque::new(),
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
    let rules = match fate {
        Fate::Kills => RULES,
        Fate::Failovers(_) => Rules {
            failover_ms: KEPT_MS,
            // Requests in flight at a failover never arrive.
            unanswered: Unanswered::ForMs(0),
            ..RULES
        },
    };
    History { title: format!("toy, {fate:?}, seed {seed}, bug {bug:?}"), rules, events: run.events }
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
    fate: Fate,
    /// Former states of the model, with their times; the newest last.
    copies: VecDeque<(u64, Toy)>,
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
    /// Operations in flight, by client.
    flying: BTreeMap<u32, (OpId, Call)>,
    ids: Vec<MsgId>,
    proofs: Vec<Proof>,
    /// Enqueues that are retried with the same dedupe id.
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
                self.copy();
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
                let first = self.reign == 1;
                let fault = if first || self.fate == Fate::Kills { Fault::Started } else { Fault::Healed };
                self.push(0, What::Fault(fault));
            }
            Action::Remove(id) => {
                self.toy.messages.remove(&id);
            }
        }
    }

    fn kill(&mut self) {
        self.up = false;
        match self.fate {
            Fate::Kills => {
                self.toy.crash(self.now, self.bug);
                self.push(0, What::Fault(Fault::Killed(Moment::Serving)));
            }
            Fate::Failovers(most) => self.fail_over(most),
        }
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

    fn copy(&mut self) {
        let Fate::Failovers(most) = self.fate else { return };
        if self.copies.back().is_none_or(|(at, _)| at + COPY <= self.now) {
            self.copies.push_back((self.now, self.toy.copy()));
        }
        while self.copies.front().is_some_and(|(at, _)| at + most * MS < self.now) {
            self.copies.pop_front();
        }
    }

    fn fail_over(&mut self, most: u64) {
        self.push(0, What::Fault(Fault::Struck(Blow::MasterKilled)));
        self.copies.retain(|(at, _)| at + most * MS >= self.now);
        let n = self.rng.below(self.copies.len() as u64);
        if let Some((_, copy)) = usize::try_from(n).ok().and_then(|n| self.copies.remove(n)) {
            self.toy.fall_back(copy);
        }
        self.copies.clear();
        self.push(0, What::Fault(Fault::FailedOver));
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
                let if_exists = match self.rng.below(5) {
                    0 => IfExists::Keep,
                    1 | 2 => IfExists::Replace,
                    3 => IfExists::Supersede,
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
                    spread_ms: 0,
                    expiry: None,
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
