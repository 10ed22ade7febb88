//! The engine against a model, over random histories.
//!
//! The model is a list of messages and a few sentences for each operation, written from the documented states and
//! operations (`docs/http.md`), not from the engine. Restarts, stepped clocks and delays on the edges of the ring are
//! part of the histories.

use duewheel_core::engine::*;
use duewheel_core::id::{LeaseToken, MessageId, SessionId};
use duewheel_core::message::{DeadReason, DoneOutcome, MaxAttempts, Options, Row, State};
use duewheel_core::policy::{Policy, QueueSettings};
use duewheel_core::store::Level;
use duewheel_core::time::{Due, EngineMs, Now, WallMs};

use crate::harness::*;

// By its path, because the fuzz targets take this file in by its own.
#[path = "model/done.rs"]
mod done;
#[path = "model/lost.rs"]
mod lost;
#[path = "model/messages.rs"]
mod messages;

use messages::{KEEP, M, Model, S};

const QUEUES: [&str; 2] = ["a", "b"];
const KEYS: [&str; 3] = ["x", "y", "z"];
const LEASE: u64 = 40;

/// Why a due time is none.
enum BadWhen {
    InThePast,
    TooFar,
}

/// Delays around everything that has an edge: now, a tick, a turn of the tiny ring, many turns.
fn delay(rng: &mut Rng) -> u64 {
    match rng.below(7) {
        0 => 0,
        1 => rng.below(5),
        2 => 10 + rng.below(3),
        3 => 79 + rng.below(3),
        4 => rng.below(400),
        5 => 80 * rng.below(20),
        _ => rng.below(100_000),
    }
}

/// Delays that somebody asks for: the same, and now and then one at the edge of what can be kept, or beyond.
fn asked(rng: &mut Rng) -> u64 {
    if rng.below(16) > 0 {
        return delay(rng);
    }
    let edge = [1 << 31, 1 << 32, 1 << 36, 1 << 53, MAX_DELAY, u64::MAX][rng.below(6) as usize];
    match rng.below(3) {
        0 => edge - 1,
        1 => edge,
        _ => edge.saturating_add(1),
    }
}

/// The default policy's.
const MAX_DELAY: u64 = 4_294_967_295_000;

/// What the clock of a machine shows that has none, and that of one that is far ahead.
const CLOCKS: [u64; 2] = [0, 4_102_444_800_000];

struct Case {
    /// How little there is of it.
    memory: u64,
    rig: Rig,
    model: Model,
    rng: Rng,
    /// Tokens seen, also those that are stale by now.
    tokens: Vec<(MessageId, LeaseToken)>,
}

/// A history that a seed decides. Returns how many were granted, and how many died.
pub fn history(seed: u64) -> (u64, u64) {
    let sizes = [seed / 4, seed / 20, seed / 80].map(|n| n as usize);
    let mut case = Case::new(seed % 8, sizes, Rng::seeded(seed));
    if case.memory == 3 {
        case.rig.slow = Some(Rng::seeded(!seed));
    }
    for _ in 0..40 {
        case.pass_time();
        case.operation();
    }
    case.compare_everything();
    (case.model.granted, case.model.died)
}

/// A history that bytes decide: the first four say how much memory there is, the others what happens.
#[allow(dead_code)] // only those who have such bytes use it
pub fn script(bytes: &[u8]) {
    let Some((setup, rest)) = bytes.split_first_chunk::<4>() else { return };
    let [memory, near, load, ready] = setup.map(usize::from);
    let mut case = Case::new(memory as u64 % 8, [near, load, ready], Rng::script(rest));
    if case.memory == 3 {
        case.rig.slow = Some(Rng::script(rest));
    }
    for step in 1.. {
        if case.rng.is_over() || step > 400 {
            break;
        }
        case.pass_time();
        case.operation();
        if step % 32 == 0 {
            case.compare_everything();
        }
    }
    case.compare_everything();
    case.rig.pass(500_000);
    case.rig.timeout();
    case.model.tick(case.rig.now);
    case.restart();
    case.compare_everything();
}

impl Case {
    /// Memory for everything (0); for little (1); with a window that orders only what is in it (2); and with pages that
    /// come late (3). From 4 on the same again, with a queue that keeps messages that have ended.
    fn new(kind: u64, [near, load, ready]: [usize; 3], rng: Rng) -> Case {
        let (memory, keeps) = (kind % 4, kind >= 4);
        let mut policy =
            Policy { wheel_slots: 8, wheel_tick_ms: 10, max_step: 3, load_rows: 2, ..Policy::default() };
        if memory > 0 {
            policy.near_messages = 1 + near % 5;
            policy.load_rows = 1 + load % 4;
        }
        if memory > 1 {
            policy.ready_messages = 1 + ready % 6;
            policy.least_window = 1;
        }
        let mut rig = Rig::new(policy);
        if keeps {
            let settings = QueueSettings { keep_done_ms: Some(KEEP), ..QueueSettings::default() };
            rig.call(Op::Configure { queue: queue(QUEUES[0]), settings });
        }
        let model = Model { keeps, ..Model::default() };
        Case { memory, rig, model, rng, tokens: vec![] }
    }

    fn pass_time(&mut self) {
        match self.rng.below(12) {
            0..=5 => {}
            6..=8 => {
                let ms = 1 + self.rng.below(15);
                self.rig.pass(ms);
            }
            9 => {
                let ms = self.rng.below(200);
                self.rig.pass(ms);
            }
            10 => {
                let ms = delay(&mut self.rng);
                self.rig.pass(ms);
            }
            _ => {
                // Somebody sets the wall clock.
                let by = self.rng.below(300);
                let wall = self.rig.now.wall.0;
                self.rig.now.wall = WallMs(match self.rng.below(64) {
                    0 => CLOCKS[self.rng.below(2) as usize],
                    1..=32 => wall + by,
                    _ => wall.saturating_sub(by),
                });
            }
        }
        self.rig.timeout();
        self.model.tick(self.rig.now);
        self.learn();
        if self.rng.chance(3) {
            self.restart();
        }
    }

    fn restart(&mut self) {
        self.rig.restart();
        self.model.acked.clear();
        self.rig.settle();
        self.end_superseded_of(|session| session != SessionId::NONE);
        let now = self.rig.now;
        let mut died = 0;
        for m in &mut self.model.live {
            m.before = None; // that is in memory only
            if let S::Leased(_, _, session) = m.stage
                && session != SessionId::NONE
            {
                m.lose(session, None);
            }
            m.stage = match m.stage {
                // A connection does not survive: its lease is released, and its token worthless.
                S::Leased(_, _, session) if session != SessionId::NONE => {
                    if m.attempt - m.forgiven >= m.max {
                        died += 1;
                        S::Dead(now.engine.0, None)
                    } else if now.is_due(m.due) {
                        S::Ready(now.wall_of(m.due).0, None)
                    } else {
                        S::Scheduled(None)
                    }
                }
                // What is ready is a matter of the clocks as they are now.
                S::Ready(_, token) if now.is_due(m.due) => S::Ready(now.wall_of(m.due).0, token),
                S::Ready(_, token) => S::Scheduled(token),
                stage => stage,
            };
        }
        self.model.died += died;
        self.learn();
    }

    fn operation(&mut self) {
        match self.rng.below(100) {
            0..=27 => self.enqueue(),
            28..=47 => self.reserve(),
            48..=57 => self.ack(),
            58..=64 => self.nack(),
            65..=66 => self.bury(),
            67..=70 => self.extend(),
            71..=73 => self.cancel(),
            74..=76 => self.cancel_kept(),
            77..=82 => self.postpone(),
            83..=86 => self.fire(),
            87..=89 => self.redrive(),
            90..=91 => self.pause_or_resume(),
            92 => self.purge(),
            93 => self.undelivered(),
            94 => self.session_closed(),
            95..=96 => self.restore(),
            _ => self.look(),
        }
    }

    fn target(&mut self) -> Target {
        if self.rng.chance(50) {
            let (q, k) = (self.rng.below(2) as usize, self.rng.below(3) as usize);
            Target::Key(queue(QUEUES[q]), key(KEYS[k]))
        } else {
            Target::Id(MessageId(self.rng.below(self.model.issued + 2)))
        }
    }

    fn when(&mut self) -> When {
        let ms = asked(&mut self.rng);
        if self.rng.chance(60) {
            return if self.rng.chance(90) {
                When::After(ms)
            } else {
                When::Seconds(self.rng.below(2) as u32)
            };
        }
        let wall = self.rig.now.wall.0;
        let past = [Past::Refuse, Past::Fire, Past::Keep][self.rng.below(3) as usize];
        let due_at = WallMs(if self.rng.chance(85) {
            wall.saturating_add(ms)
        } else {
            wall.saturating_sub(ms).saturating_sub(1)
        });
        When::At { due_at, past }
    }

    /// The due time that a `when` means.
    fn due(&self, when: When) -> Result<Due, BadWhen> {
        let Now { engine, wall, .. } = self.rig.now;
        match when {
            When::After(ms) if ms > MAX_DELAY => Err(BadWhen::TooFar),
            When::After(ms) => Ok(Due::After(EngineMs(engine.0 + ms))),
            When::Seconds(s) => Ok(Due::After(EngineMs(engine.0 + u64::from(s) * 1_000))),
            When::At { due_at, .. } if due_at.0 > wall.0 + MAX_DELAY => Err(BadWhen::TooFar),
            When::At { due_at, past } if past == Past::Keep || due_at >= wall => Ok(Due::At(due_at)),
            When::At { past: Past::Fire, .. } => Ok(Due::After(engine)),
            When::At { .. } => Err(BadWhen::InThePast),
        }
    }

    fn enqueue(&mut self) {
        let q = self.rng.below(2) as usize;
        let k = self.rng.chance(60).then(|| self.rng.below(3) as usize);
        let when = self.when();
        let all = [IfExists::Reject, IfExists::Keep, IfExists::Replace, IfExists::Supersede];
        let if_exists = all[self.rng.below(4) as usize];
        let max = 1 + self.rng.below(3) as u32;
        let priority = 10 + self.rng.below(2) as u32;
        let body = self.rng.below(256) as u8;
        let e = Enqueue {
            key: k.map(|k| key(KEYS[k])),
            body: vec![body].into(),
            when,
            if_exists,
            priority: Some(priority),
            options: Options { max_attempts: MaxAttempts::new(max), ..Options::default() },
            ..Enqueue::new(queue(QUEUES[q]), "")
        };
        let reply = match self.rig.call(Op::Enqueue(Box::new(e))) {
            Reply::Enqueue(reply) => reply,
            other => panic!("{other:?}"),
        };
        let now = self.rig.now;
        let due = match self.due(when) {
            Ok(due) => due,
            Err(BadWhen::InThePast) => return assert_eq!(reply, Err(EnqueueRefusal::InThePast)),
            Err(BadWhen::TooFar) => return assert_eq!(reply, Err(EnqueueRefusal::TooFar(MAX_DELAY))),
        };
        let mut generation = 1;
        let mut created = duewheel_core::record::Created::New;
        if let Some(at) = k.and_then(|k| self.model.holder(q, k)) {
            let held = self.model.live[at].clone();
            match if_exists {
                IfExists::Reject => {
                    let Err(EnqueueRefusal::KeyExists(holder)) = reply else { panic!("{reply:?}") };
                    return assert!(self.is_holder(&held, holder), "{holder:?}, {held:?}");
                }
                IfExists::Keep => {
                    let kept = reply.expect("kept");
                    assert_eq!((kept.id, kept.created), (held.id, duewheel_core::record::Created::Kept));
                    assert!(self.same_state(&held, kept.kept.expect("the state")), "{kept:?}, {held:?}");
                    return;
                }
                IfExists::Replace if matches!(held.stage, S::Leased(..)) => {
                    return assert_eq!(reply, Err(EnqueueRefusal::Leased(held.id)));
                }
                IfExists::Supersede if matches!(held.stage, S::Leased(..)) => {
                    generation = held.generation + 1;
                    created = duewheel_core::record::Created::Superseding(held.id);
                    let held = &mut self.model.live[at];
                    (held.key, held.superseded) = (None, true);
                }
                IfExists::Replace | IfExists::Supersede => {
                    generation = held.generation + 1;
                    created = duewheel_core::record::Created::Replacing(held.id);
                    self.model.end(at, DoneOutcome::Replaced, now);
                }
            }
        }
        // Done messages take ids, too.
        let next = self.model.issued + 1;
        self.model.issued = match &reply {
            Ok(done) if done.id.0 >= next => done.id.0,
            _ => next,
        };
        let id = MessageId(self.model.issued);
        assert_eq!(
            reply,
            Ok(Enqueued {
                id,
                due_at: now.wall_of(due),
                generation,
                created,
                kept: None,
                answered: Answered::Now,
                level: Level::default()
            })
        );
        self.model.live.push(M {
            id,
            queue: q,
            key: k,
            due,
            priority,
            generation,
            attempt: 0,
            forgiven: 0,
            max,
            losses: 0,
            held_off: None,
            body,
            superseded: false,
            before: None,
            stage: S::Scheduled(None),
        });
        let last = self.model.live.len() - 1;
        self.model.place(last, now);
    }

    fn reserve(&mut self) {
        let queues: Vec<usize> = match self.rng.below(3) {
            0 => vec![0],
            1 => vec![1],
            _ => vec![0, 1],
        };
        let max = 1 + self.rng.below(3) as usize;
        let names: Vec<&str> = queues.iter().map(|&q| QUEUES[q]).collect();
        let session = SessionId(self.rng.below(3)); // 0 is none
        let demand = Reserve { lease_ms: Some(LEASE), session, ..self.rig.demand(&names, max, 0) };
        let Reply::Reserve(Reserved::Grants(grants)) = self.rig.call(Op::Reserve(demand)) else { panic!() };
        let now = self.rig.now;
        let mut wanted = self.model.ready(&queues, now);
        let got: Vec<MessageId> = grants.iter().map(|g| g.message.id).collect();
        if self.memory > 1 {
            assert!(got.len() <= max && got.iter().all(|id| wanted.contains(id)), "{got:?} of {wanted:?}");
            assert_eq!(got.is_empty(), wanted.is_empty(), "what is ready is found: {got:?} of {wanted:?}");
        } else {
            wanted.truncate(max);
            assert_eq!(got, wanted, "order of grants");
        }
        for grant in grants {
            let at = self.model.by_id(grant.message.id).unwrap();
            let m = &mut self.model.live[at];
            m.attempt += 1;
            assert!(now.is_due(m.due), "never early");
            assert_eq!((grant.attempt, grant.generation), (m.attempt, m.generation));
            assert_eq!(grant.message.body[..], [m.body], "its own body");
            assert_eq!(grant.lateness_ms, now.since(m.due));
            assert!(self.model.last_token < Some(grant.token), "tokens only grow");
            self.model.last_token = Some(grant.token);
            let S::Ready(_, before) = m.stage else { panic!("{m:?}") };
            (m.before, m.stage) = (before, S::Leased(grant.token, now.engine.0 + LEASE, session));
            self.model.granted += 1;
            self.tokens.push((grant.message.id, grant.token));
        }
    }

    fn a_token(&mut self) -> Option<(MessageId, LeaseToken)> {
        if self.tokens.is_empty() {
            return None;
        }
        // Mostly recent ones, sometimes stale ones.
        let n = self.tokens.len() as u64;
        let back = if self.rng.chance(70) { self.rng.below(n.min(3)) } else { self.rng.below(n) };
        Some(self.tokens[(n - 1 - back) as usize])
    }

    /// Where the message is if the token may settle it, and whether the lease still runs.
    fn held(&self, id: MessageId, token: LeaseToken) -> Option<(usize, bool)> {
        let at = self.model.by_id(id)?;
        match self.model.live[at].stage {
            S::Leased(t, ..) if t == token => Some((at, true)),
            S::Ready(_, Some(t)) | S::Scheduled(Some(t)) | S::Dead(_, Some(t)) if t == token => {
                Some((at, false))
            }
            _ => None,
        }
    }

    fn ack(&mut self) {
        let Some((id, token)) = self.a_token() else { return };
        let Reply::Settle(reply) = self.rig.call(Op::Ack { id, proof: token.into(), result: None }) else {
            panic!()
        };
        match self.held(id, token) {
            Some((at, _)) => {
                assert_eq!(reply, Ok(Settled::Acked.into()));
                let m = self.model.end(at, DoneOutcome::Acked, self.rig.now);
                self.model.acked.insert(id, (token, m.queue, self.rig.now.engine));
            }
            None => assert_eq!(
                reply,
                self.acked_before(id, token).map(Applied::from).ok_or(SettleRefusal::LeaseLost)
            ),
        }
    }

    /// What an ack is told whose message is gone because of an earlier one.
    fn acked_before(&self, id: MessageId, token: LeaseToken) -> Option<Settled> {
        let (by, queue_at, at) = self.model.acked.get(&id)?;
        let kept = *by == token && self.rig.now.engine.0 - at.0 < 300_000;
        kept.then(|| Settled::Already { queue: queue(QUEUES[*queue_at]) })
    }

    fn nack(&mut self) {
        let Some((id, token)) = self.a_token() else { return };
        let delay_ms = self.rng.chance(70).then(|| asked(&mut self.rng));
        let attempt = match self.rng.below(10) {
            0..3 => Attempt::NotYet,
            // The message's own limit wins.
            3..5 => Attempt::FailedOf(MaxAttempts::new(1 + self.rng.below(4) as u32).unwrap()),
            _ => Attempt::Failed,
        };
        let op = Op::Nack { id, proof: token.into(), attempt, delay_ms, priority: None, note: "why".into() };
        let Reply::Settle(reply) = self.rig.call(op) else { panic!() };
        let Some((at, _)) = self.held(id, token) else {
            return assert_eq!(reply, Err(SettleRefusal::LeaseLost));
        };
        let now = self.rig.now;
        // As far as beanstalkd's delays go.
        let longest = MAX_DELAY.max(u64::from(u32::MAX) * 1_000);
        if delay_ms.is_some_and(|ms| ms > longest) {
            return assert_eq!(reply, Err(SettleRefusal::TooLong(longest)));
        }
        if self.ends_superseded(at) {
            return assert_eq!(reply, Ok(Settled::Superseded.into()));
        }
        let of = self.model.live[at].clone();
        let died = self.died(at);
        if died.is_some()
            && attempt == Attempt::NotYet
            && let Some(holder) = of.key.and_then(|k| self.model.holder(of.queue, k))
        {
            let Err(SettleRefusal::KeyExists(taken)) = reply else { panic!("{reply:?}") };
            return assert!(self.is_holder(&self.model.live[holder], taken), "{taken:?}");
        }
        let m = &mut self.model.live[at];
        m.forgiven += u32::from(attempt == Attempt::NotYet);
        m.losses = 0;
        if m.attempt - m.forgiven >= m.max || (died.is_some() && attempt != Attempt::NotYet) {
            assert_eq!(reply, Ok(Settled::Dead(DeadReason::MaxAttempts).into()));
            m.stage = S::Dead(died.unwrap_or(now.engine.0), None);
            self.model.died += u64::from(died.is_none());
            return;
        }
        let Ok(Applied { what: Settled::Again(again), .. }) = reply else { panic!("{reply:?}") };
        let waits = again.0 - now.wall.0;
        match delay_ms {
            Some(ms) => assert_eq!(waits, ms),
            None => assert!((1_000..=3_600_000).contains(&waits), "backoff of {waits}"),
        }
        m.due = Due::After(EngineMs(now.engine.0 + waits));
        self.model.place(at, now);
    }

    fn bury(&mut self) {
        let Some((id, token)) = self.a_token() else { return };
        let op = Op::Bury { id, proof: token.into(), priority: None, note: "".into() };
        let Reply::Settle(reply) = self.rig.call(op) else { panic!() };
        match self.held(id, token) {
            Some((at, _)) if self.ends_superseded(at) => assert_eq!(reply, Ok(Settled::Superseded.into())),
            Some((at, _)) => {
                assert_eq!(reply, Ok(Settled::Dead(DeadReason::Buried).into()));
                let died = self.died(at);
                self.model.live[at].losses = 0;
                self.model.live[at].stage = S::Dead(died.unwrap_or(self.rig.now.engine.0), None);
                self.model.died += u64::from(died.is_none());
            }
            None => assert_eq!(reply, Err(SettleRefusal::LeaseLost)),
        }
    }

    fn extend(&mut self) {
        let Some((id, token)) = self.a_token() else { return };
        let lease_ms = 1 + self.rng.below(100);
        let Reply::Extend(reply) =
            self.rig.call(Op::Extend { id, proof: token.into(), lease_ms: Some(lease_ms) })
        else {
            panic!()
        };
        let now = self.rig.now;
        match self.held(id, token) {
            Some((at, true)) => {
                assert_eq!(reply, Ok(WallMs(now.wall.0 + lease_ms).into()));
                let M { stage: S::Leased(_, until, _), before, .. } = &mut self.model.live[at] else {
                    panic!()
                };
                (*until, *before) = (now.engine.0 + lease_ms, None);
            }
            Some((_, false)) | None => assert_eq!(reply, Err(SettleRefusal::LeaseLost)),
        }
    }

    fn change(&mut self, op: Op) -> Result<Applied<Box<Outline>>, ChangeRefusal> {
        match self.rig.call(op) {
            Reply::Change(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn cancel(&mut self) {
        let target = self.target();
        let reply =
            self.change(Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target: target.clone() });
        let Some(at) = self.model.resolve(&target) else {
            return assert_eq!(reply, Err(ChangeRefusal::NotFound));
        };
        if matches!(self.model.live[at].stage, S::Leased(..)) {
            return assert_eq!(reply, Err(ChangeRefusal::Leased));
        }
        let m = self.model.end(at, DoneOutcome::Cancelled, self.rig.now);
        assert_eq!(reply.expect("cancelled").id, m.id);
    }

    fn postpone(&mut self) {
        let target = self.target();
        let when = self.rng.chance(70).then(|| self.when());
        let if_generation = self.rng.chance(30).then(|| 1 + self.rng.below(2) as u32);
        let body = self.rng.chance(30).then(|| self.rng.below(256) as u8);
        let priority = self.rng.chance(20).then(|| 10 + self.rng.below(2) as u32);
        let max = self.rng.chance(20).then(|| 1 + self.rng.below(3) as u32);
        let edit = Box::new(Edit {
            when,
            body: body.map(|b| vec![b].into()),
            priority,
            max_attempts: max.and_then(MaxAttempts::new),
            ..Edit::default()
        });
        let is_empty = *edit == Edit::default();
        let op = Op::Postpone { target: target.clone(), edit, if_generation };
        let reply = self.change(op);
        if is_empty {
            return assert_eq!(reply, Err(ChangeRefusal::NothingToChange));
        }
        let Some(at) = self.model.resolve(&target) else {
            return assert_eq!(reply, Err(ChangeRefusal::NotFound));
        };
        let due = when.map(|when| self.due(when)).transpose();
        let now = self.rig.now;
        let m = &mut self.model.live[at];
        match m.stage {
            S::Leased(..) => return assert_eq!(reply, Err(ChangeRefusal::Leased)),
            S::Dead(..) => return assert_eq!(reply, Err(ChangeRefusal::Dead)),
            S::Scheduled(_) | S::Ready(..) => {}
        }
        if if_generation.is_some_and(|g| g != m.generation) {
            return assert_eq!(reply, Err(ChangeRefusal::GenerationMismatch(m.generation)));
        }
        let due = match due {
            Ok(due) => due,
            Err(BadWhen::InThePast) => return assert_eq!(reply, Err(ChangeRefusal::InThePast)),
            Err(BadWhen::TooFar) => return assert_eq!(reply, Err(ChangeRefusal::TooFar(MAX_DELAY))),
        };
        m.due = due.unwrap_or(m.due);
        m.priority = priority.unwrap_or(m.priority);
        m.max = max.unwrap_or(m.max);
        m.generation += 1;
        m.losses = 0;
        m.body = body.unwrap_or(m.body);
        let (id, generation, body) = (m.id, m.generation, m.body);
        self.model.place(at, now);
        let view = reply.expect("postponed");
        let Reply::View(Some(found)) = self.rig.call(Op::Get { target: Target::Id(id) }) else { panic!() };
        assert_eq!((view.generation, &found.message.body[..]), (generation, &[body][..]));
        assert_eq!(view.state, Model::state(&self.model.live[at]));
    }

    fn fire(&mut self) {
        let target = self.target();
        let reply = self.change(Op::Fire { target: target.clone() });
        let Some(at) = self.model.resolve(&target) else {
            return assert_eq!(reply, Err(ChangeRefusal::NotFound));
        };
        let now = self.rig.now;
        let m = &mut self.model.live[at];
        match m.stage {
            S::Leased(..) => assert_eq!(reply, Err(ChangeRefusal::Leased)),
            S::Dead(..) => assert_eq!(reply, Err(ChangeRefusal::Dead)),
            // Ready by name although its instant has gone: the engine may or may not have noticed.
            S::Ready(..) if !now.is_due(m.due) => {
                let view = reply.expect("fired");
                if view.generation > m.generation {
                    m.generation += 1;
                    m.losses = 0;
                    m.due = Due::After(now.engine);
                    self.model.place(at, now);
                }
            }
            S::Ready(..) => assert_eq!(reply.expect("unchanged").generation, m.generation),
            S::Scheduled(_) => {
                m.generation += 1;
                m.losses = 0;
                m.due = Due::After(now.engine);
                let generation = m.generation;
                self.model.place(at, now);
                let view = reply.expect("fired");
                assert_eq!((view.state, view.generation), (State::Ready, generation));
            }
        }
    }

    fn redrive(&mut self) {
        let id = MessageId(self.rng.below(self.model.issued + 2));
        let reply = self.change(Op::Redrive { id, delay_ms: None, died: None });
        let Some(at) = self.model.by_id(id) else { return assert_eq!(reply, Err(ChangeRefusal::NotFound)) };
        let m = self.model.live[at].clone();
        if !matches!(m.stage, S::Dead(..)) {
            return assert_eq!(reply, Err(ChangeRefusal::NotDead));
        }
        if let Some(holder) = m.key.and_then(|k| self.model.holder(m.queue, k)) {
            let Err(ChangeRefusal::KeyExists(taken)) = reply else { panic!("{reply:?}") };
            return assert!(self.is_holder(&self.model.live[holder], taken), "{taken:?}");
        }
        let now = self.rig.now;
        let m = &mut self.model.live[at];
        m.forgiven = m.attempt;
        m.losses = 0;
        if !now.is_due(m.due) {
            m.due = Due::After(now.engine);
        }
        self.model.place(at, now);
        assert_eq!(reply.expect("redriven").state, State::Ready);
    }

    fn pause_or_resume(&mut self) {
        let q = self.rng.below(2) as usize;
        let name = queue(QUEUES[q]);
        let op = if self.model.paused[q] {
            Op::Resume { queue: name }
        } else {
            Op::Pause { queue: name, for_ms: None }
        };
        assert!(matches!(self.rig.call(op), Reply::Configured(_)));
        self.model.paused[q] = !self.model.paused[q];
    }

    fn purge(&mut self) {
        let q = self.rng.below(2) as usize;
        let Reply::Count(purged) = self.rig.call(Op::Purge { at_most: None, queue: queue(QUEUES[q]) }) else {
            panic!()
        };
        let before = self.model.live.len();
        self.model.live.retain(|m| m.queue != q || matches!(m.stage, S::Leased(..)));
        self.model.done.retain(|done| done.m.queue != q);
        assert_eq!(*purged as usize, before - self.model.live.len());
    }

    fn is_holder(&self, m: &M, holder: KeyHolder) -> bool {
        holder.id == m.id && self.same_state(m, holder.state)
    }

    /// Whether the engine's word for the state is right. After a wall clock that went back, a message that was ready
    /// and whose instant has gone may carry either name.
    fn same_state(&self, m: &M, shown: State) -> bool {
        let wanted = Model::state(m);
        let unsure = wanted == State::Ready && !self.rig.now.is_due(m.due);
        shown == wanted || (unsure && shown == State::Scheduled)
    }

    fn look(&mut self) {
        let target = self.target();
        let Reply::View(view) = self.rig.call(Op::Get { target: target.clone() }) else { panic!() };
        match self.model.resolve(&target) {
            None => assert_eq!(view, None),
            Some(at) => self.compare_view(&self.model.live[at], &view.expect("it is there")),
        }
        self.recall(target);
    }

    fn compare_view(&self, m: &M, view: &View) {
        assert_eq!(view.message.id, m.id);
        assert!(self.same_state(m, view.state), "{m:?} shown as {:?}", view.state);
        assert_eq!((view.attempt, view.generation, view.priority), (m.attempt, m.generation, m.priority));
        assert_eq!(view.due_at, self.rig.now.wall_of(m.due));
        assert_eq!(view.message.body[..], [m.body]);
        assert_eq!(view.message.key.as_ref().map(|key| key.as_str()), m.key.map(|key| KEYS[key]));
        assert_eq!(view.marks.superseded_by.is_some(), m.superseded);
        assert!(view.history.len() as u32 <= m.attempt + m.attempt);
    }

    /// Everything the engine shows, and everything the store would give to the next one.
    fn compare_everything(&mut self) {
        let now = self.rig.now;
        for (q, name) in QUEUES.iter().enumerate() {
            let list =
                Op::List { queue: queue(name), state: None, after: None, limit: usize::MAX, from: None };
            let Reply::Page(mut page) = self.rig.call(list) else { panic!() };
            assert_eq!(page.next, None);
            assert!(page.views.is_sorted_by_key(|view| view.due_at), "listed in due order");
            // Below 1970 all is one to the wall clock.
            page.views.sort_by_key(|view| (view.due_at, view.message.id));
            let mut wanted: Vec<&M> = self.model.live.iter().filter(|m| m.queue == q).collect();
            wanted.sort_by_key(|m| (now.wall_of(m.due), m.id));
            assert_eq!(page.views.len(), wanted.len());
            for (view, m) in page.views.iter().zip(&wanted) {
                self.compare_view(m, view);
            }
            let Reply::Queues(views) = self.rig.call(Op::Queue { queue: queue(name) }) else { panic!() };
            let counts = views.first().map(|v| v.counts).unwrap_or_default();
            let count = |state| wanted.iter().filter(|m| Model::state(m) == state).count() as u64;
            assert_eq!(counts.scheduled + counts.ready, count(State::Scheduled) + count(State::Ready));
            assert_eq!((counts.leased, counts.dead), (count(State::Leased), count(State::Dead)));
            let waiting = counts.scheduled + counts.ready;
            let all = Op::Histogram {
                queue: Some(queue(name)),
                from: WallMs(0),
                to: WallMs(u64::MAX / 2),
                columns: 1,
            };
            let Reply::Histogram(h) = self.rig.call(all) else { panic!() };
            assert_eq!(h.before + h.counts.iter().sum::<u64>() + h.after, waiting);
        }
        self.compare_all_done();
        let is_done = |row: &Row| row.message.queue.done_of().is_some();
        assert_eq!(
            self.rig.table.rows().into_iter().filter(|row| !is_done(row)).count(),
            self.model.live.len(),
            "the store holds the same messages"
        );
        for row in self.rig.table.rows().into_iter().filter(|row| !is_done(row)) {
            let m = &self.model.live[self.model.by_id(row.message.id).expect("held by both")];
            assert_eq!(
                (row.life.due, row.life.attempt, row.life.generation),
                (m.due, m.attempt, m.generation)
            );
        }
    }
}
