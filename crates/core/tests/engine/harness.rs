//! An engine with a table behind it that applies every record and answers look-ups and loads, as a store does.

use std::collections::VecDeque;

use duewheel_core::engine::{
    Config, Effect, Effects, Engine, Enqueue, Grant, Ids, Input, Op, Reply, Reserve, Reserved, WaiterId, When,
};
use duewheel_core::hash_key::HashKey;
use duewheel_core::id::{Epoch, Lsn, MessageId, ReplyTo, SessionId};
use duewheel_core::name::{Key, QueueName};
use duewheel_core::policy::Policy;
use duewheel_core::random::SplitMix64;
use duewheel_core::record::{ClockPair, Group, Record};
use duewheel_core::store::{EventRequest, Found, Load, Loaded, Lookups, RecentEvents, Recovered, Table};
use duewheel_core::time::{EngineMs, Now, WallMs};

pub const WALL: u64 = 1_000_000_000;

pub struct Rig {
    pub engine: Engine,
    pub table: Table,
    pub epoch: u32,
    pub policy: Policy,
    ids: Ids,
    pub now: Now,
    next_to: u64,
    waiters: u64,
    pub replies: Vec<(ReplyTo, Reply)>,
    /// Pages read and not delivered yet.
    pub pages: VecDeque<Loaded>,
    /// Whether pages are delivered late, now and then.
    pub slow: Option<Rng>,
    /// Rows that look-ups and pages have brought.
    pub brought: u64,
    /// Pages asked for.
    pub asked: u64,
    /// What was asked for last.
    pub loads: Vec<Load>,
    /// The events of all records since the start.
    recent: RecentEvents,
}

impl Rig {
    pub fn new(policy: Policy) -> Self {
        Self::of_shard(policy, Ids::default())
    }

    pub fn of_shard(policy: Policy, ids: Ids) -> Self {
        Self::hashing(policy, ids, HashKey::default())
    }

    pub fn hashing(policy: Policy, ids: Ids, hash_key: HashKey) -> Self {
        let now = Now::whole(0, WALL);
        let recovered = Recovered { epoch: Epoch(1), next_lsn: Lsn(1), next_id: 1, ..Recovered::default() };
        let config = Config { policy: policy.clone(), seed: 7, hash_key, ids, ..Config::default() };
        let engine = Engine::new(config, recovered, now).unwrap();
        let mut rig = Rig {
            engine,
            table: Table::default(),
            epoch: 1,
            policy,
            ids,
            now,
            next_to: 0,
            waiters: 0,
            replies: vec![],
            pages: VecDeque::new(),
            slow: None,
            brought: 0,
            asked: 0,
            loads: vec![],
            recent: RecentEvents::default(),
        };
        let from_now_on = EventRequest { ticket: 0, after: None, events: 0, bytes: 0 };
        rig.recent.page(from_now_on, Lsn(0), Lsn(0));
        rig.load();
        rig
    }

    /// The process is killed and started again: all that is left is the table. Time goes on.
    pub fn restart(&mut self) {
        self.renew();
        self.load();
    }

    fn renew(&mut self) {
        self.pages.clear();
        self.epoch += 1;
        let recovered = self.table.recovered(Epoch(self.epoch));
        let config = Config { policy: self.policy.clone(), seed: 7, ids: self.ids, ..Config::default() };
        self.engine = Engine::new(config, recovered, self.now).unwrap();
    }

    fn load(&mut self) {
        self.pages.clear();
        let mut fx = Effects::new();
        self.engine.start(&mut fx);
        self.absorb(fx);
        while !self.engine.is_open() {
            self.deliver();
        }
    }

    /// Gives the engine a page that was read, if there is one.
    fn deliver(&mut self) -> bool {
        self.deliver_noting(|_| {})
    }

    /// The same; `note` sees what the engine decides upon it.
    pub fn deliver_noting(&mut self, note: impl FnOnce(&Effects)) -> bool {
        let Some(page) = self.pages.pop_front() else { return false };
        self.brought += page.rows.len() as u64;
        let mut fx = Effects::new();
        self.engine.handle(self.now, Input::Loaded(page), &mut fx);
        note(&fx);
        self.absorb(fx);
        true
    }

    /// As [`Rig::restart`]; tells how many records each page has made the engine write.
    pub fn restart_noting(&mut self) -> Vec<usize> {
        self.renew();
        let mut fx = Effects::new();
        self.engine.start(&mut fx);
        self.absorb(fx);
        let mut records = Vec::new();
        while !self.engine.is_open() {
            let appends = |fx: &Effects| fx.iter().filter(|e| matches!(e, Effect::Append(_))).count();
            self.deliver_noting(|fx| records.push(appends(fx)));
        }
        records
    }

    /// Looks up what an operation needs, as a driver does.
    pub fn look_up(&mut self, op: Option<&Op>) {
        for _ in 0..2 {
            let mut lookups = Lookups::default();
            self.engine.look_up(op, &mut lookups);
            let mut found = Found::default();
            self.table.find_many(&lookups, &mut found);
            self.brought += found.rows.len() as u64;
            self.engine.adopt(&lookups, found);
        }
    }

    pub fn pass(&mut self, ms: u64) {
        self.now.engine = EngineMs(self.now.engine.0 + ms);
        self.now.wall = WallMs(self.now.wall.0.saturating_add(ms));
    }

    fn apply(&mut self, record: Record) {
        let first = self.table.applied().next();
        let clock = ClockPair::of(self.now);
        let group = Group { first, clock, records: vec![record] };
        self.table.apply(&group);
        self.recent.take(&group);
    }

    /// Applies records, keeps replies, and checks what holds for every effect of one operation.
    pub fn absorb(&mut self, fx: Effects) -> Effects {
        self.take(fx, true)
    }

    /// The same for the effects of several operations together.
    pub fn absorb_batch(&mut self, fx: Effects) {
        self.take(fx, false);
    }

    fn take(&mut self, fx: Effects, alone: bool) -> Effects {
        let mut loads: Vec<Load> = vec![];
        let mut events: Vec<EventRequest> = vec![];
        for effect in &fx {
            match effect {
                Effect::Append(record) => self.apply(record.clone()),
                Effect::Respond { to, reply, after } => {
                    let applied = self.table.applied();
                    assert!(
                        !alone || after.durable <= applied && after.written <= applied,
                        "waits for what never comes"
                    );
                    match reply {
                        Reply::Reserve(Reserved::Grants(g)) if !g.is_empty() => {}
                        Reply::ReserveOne(Ok(_)) => {}
                        _ => assert_eq!(after.durable, applied, "an answer tells of everything before it"),
                    }
                    self.replies.push((*to, reply.clone()));
                }
                Effect::Load(load) => loads.push(load.clone()),
                Effect::ReadEvents(asked) => events.push(*asked),
                Effect::Notice(_) => {}
            }
        }
        for load in loads {
            self.asked += 1;
            self.loads.push(load.clone());
            self.pages.push_back(self.table.load(load));
        }
        self.engine.end_batch();
        assert_eq!(self.table.applied(), self.engine.last_lsn());
        for asked in events {
            let applied = self.table.applied();
            let page = self.recent.page(asked, applied, applied);
            let mut told = Effects::new();
            self.engine.handle(self.now, Input::Events(page), &mut told);
            self.take(told, alone);
        }
        fx
    }

    /// One operation, without the time steps around it.
    pub fn raw(&mut self, op: Op) -> (ReplyTo, Effects) {
        self.next_to += 1;
        let to = ReplyTo(self.next_to);
        self.look_up(Some(&op));
        let mut fx = Effects::new();
        self.engine.handle(self.now, Input::Request { to, op }, &mut fx);
        (to, self.absorb(fx))
    }

    /// One operation with what a driver does around it: time does its work between the look-up and the decision.
    pub fn step(&mut self, op: Op) -> ReplyTo {
        self.next_to += 1;
        let to = ReplyTo(self.next_to);
        self.deliver(); // what has come meanwhile is taken first, and may overfill the wheel
        self.look_up(Some(&op));
        let mut fx = Effects::new();
        self.engine.handle_timeout(self.now, &mut fx);
        self.engine.handle(self.now, Input::Request { to, op }, &mut fx);
        self.engine.handle_timeout(self.now, &mut fx);
        self.absorb_batch(fx);
        to
    }

    /// Time passes, a page arrives if one is under way, and the engine does what time asks for.
    pub fn slow_step(&mut self, ms: u64) {
        self.pass(ms);
        self.deliver();
        self.look_up(None);
        let mut fx = Effects::new();
        self.engine.handle_timeout(self.now, &mut fx);
        self.absorb_batch(fx);
    }

    pub fn timeout(&mut self) -> Effects {
        let mut all = Effects::new();
        for _ in 0..10_000 {
            let late = self.slow.as_mut().is_some_and(|rng| rng.chance(50));
            let delivered = !late && self.deliver();
            self.look_up(None);
            let mut fx = Effects::new();
            self.engine.handle_timeout(self.now, &mut fx);
            all.extend(self.absorb(fx));
            let waits = self.engine.next_wakeup().is_none_or(|t| t > self.now.engine);
            if waits && !delivered && (late || self.pages.is_empty()) {
                return all;
            }
        }
        panic!("the engine does not come to rest");
    }

    /// Everything that is under way arrives.
    pub fn settle(&mut self) {
        let slow = self.slow.take();
        self.timeout();
        self.slow = slow;
    }

    /// One operation as the driver does it; the answer must come once all pages have arrived.
    pub fn call(&mut self, op: Op) -> Reply {
        self.timeout();
        let to = self.step(op);
        self.timeout();
        if let Some(reply) = self.reply(to) {
            return reply;
        }
        self.settle();
        self.reply(to).expect("answered at once")
    }

    pub fn reply(&mut self, to: ReplyTo) -> Option<Reply> {
        let at = self.replies.iter().position(|(t, _)| *t == to)?;
        Some(self.replies.swap_remove(at).1)
    }

    pub fn demand(&mut self, queues: &[&str], max: usize, wait_ms: u64) -> Reserve {
        self.waiters += 1;
        Reserve {
            waiter: WaiterId(self.waiters),
            queues: queues.iter().map(|q| queue(q)).collect(),
            max,
            max_bytes: usize::MAX,
            wait_ms,
            lease_ms: None,
            session: SessionId::NONE,
            max_of: Vec::new(),
            max_attempts: None,
            deadline_margin_ms: None,
        }
    }

    pub fn reserve(&mut self, name: &str, max: usize) -> Vec<Grant> {
        let demand = self.demand(&[name], max, 0);
        match self.call(Op::Reserve(demand)) {
            Reply::Reserve(Reserved::Grants(grants)) => grants,
            other => panic!("{other:?}"),
        }
    }

    pub fn put(&mut self, name: &str, delay: u64, k: Option<&str>) -> MessageId {
        let mut e = message(name, delay);
        e.key = k.map(key);
        match self.call(Op::Enqueue(Box::new(e))) {
            Reply::Enqueue(Ok(enqueued)) => enqueued.id,
            other => panic!("{other:?}"),
        }
    }
}

pub fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

pub fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

pub fn message(name: &str, delay: u64) -> Enqueue {
    Enqueue { when: When::After(delay), ..Enqueue::new(queue(name), "body") }
}

/// Where a random test takes its decisions from.
pub enum Rng {
    /// The numbers of a seed, which are the same everywhere.
    Seed(SplitMix64),
    /// Bytes that somebody else has thought out, such as a fuzzer; zeros when they are used up.
    Script { bytes: Vec<u8>, at: usize },
}

impl Rng {
    pub fn seeded(seed: u64) -> Rng {
        Rng::Seed(SplitMix64::new(seed))
    }

    pub fn script(bytes: &[u8]) -> Rng {
        Rng::Script { bytes: bytes.to_vec(), at: 0 }
    }

    /// Whether a script is at its end.
    pub fn is_over(&self) -> bool {
        matches!(self, Rng::Script { bytes, at } if *at >= bytes.len())
    }

    /// A number below `n`. A script is read byte by byte, as many as `n` needs, so that it stays readable.
    pub fn below(&mut self, n: u64) -> u64 {
        match self {
            Rng::Seed(numbers) => numbers.next() % n,
            Rng::Script { bytes, at } => {
                let (mut drawn, mut most) = (0u64, 1u64);
                while most < n {
                    drawn = drawn << 8 | u64::from(bytes.get(*at).copied().unwrap_or(0));
                    *at += 1;
                    most = most.saturating_mul(256);
                }
                drawn % n
            }
        }
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
