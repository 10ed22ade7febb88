//! Operations and clock steps for the engine.

use std::collections::BTreeMap;

use bytes::Bytes;
use duewheel_core::engine::{
    Attempt, DedupeId, Edit, Enqueue, Grant, Hold, IfExists, InitialState, KeptFor, ListCursor, Op, Past,
    Proof, Reply, Reserved, Target, View, When,
};
use duewheel_core::message::{Expiry, MaxAttempts, Options, QueueLimit, State};
use duewheel_core::policy::{
    Backoff, GrantLimits, GrantRate, Lasting, OnExpiry, Policy, QueueSettings, ReadyOrder, TraceMode,
};
use duewheel_core::time::{EngineMs, Partial};
use duewheel_core::{Key, LeaseToken, MessageId, QueueName, SessionId, WallMs};

use crate::choices::Choices;
use crate::harness::Rig;
use crate::model;

/// The largest number of steps of one script.
const MOST: usize = 200;

/// The first byte chooses: operations that the model covers exactly, or every operation with numbers of all sizes and
/// general checks.
pub fn engine(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    match first % 2 {
        0 => model::script(rest),
        _ => wild(&mut Choices::new(rest)),
    }
}

/// What is remembered of the engine's answers.
struct Seen {
    rig: Rig,
    bodies: BTreeMap<MessageId, Bytes>,
    tokens: Vec<(MessageId, LeaseToken)>,
    cursor: Option<ListCursor>,
}

fn wild(c: &mut Choices<'_>) {
    let mut policy =
        Policy { wheel_slots: 8, wheel_tick_ms: 10, max_step: 3, load_rows: 3, ..Policy::default() };
    if c.once_in(2) {
        policy.near_messages = 1 + c.below(6);
        policy.ready_messages = 1 + c.below(6);
        policy.least_window = 1;
        policy.max_messages = 1 + c.below(64);
        policy.max_leased = 1 + c.below(8);
        policy.max_queues = 1 + c.below(4);
        policy.max_history = c.below(3);
        policy.max_note = c.below(9);
    }
    let mut seen = Seen { rig: Rig::new(policy), bodies: BTreeMap::new(), tokens: Vec::new(), cursor: None };
    let told = std::env::var_os("DUEWHEEL_FUZZ_SHOW").is_some();
    for _ in 0..MOST {
        if c.is_over() {
            break;
        }
        seen.pass(c);
        let op = seen.op(c);
        if told {
            println!("{:?}: {op:?}", seen.rig.now);
        }
        let reply = seen.call(op.clone());
        if told {
            println!("  {reply:?}");
        }
        seen.check(&op, reply);
        if c.once_in(16) {
            seen.restart();
        }
    }
    seen.restart();
}

impl Seen {
    fn pass(&mut self, c: &mut Choices<'_>) {
        match c.below(8) {
            0..=3 => {}
            4 | 5 => self.rig.pass(c.below(100) as u64),
            6 => self.rig.pass(c.number().min(1 << 44)),
            _ => {
                self.rig.now.wall = WallMs(c.number());
                self.rig.now.partial = *c.pick(&[Partial::Whole, Partial::Cut]);
            }
        }
        // Five hundred years from now are enough.
        self.rig.now.engine = EngineMs(self.rig.now.engine.0.min(1 << 54));
        self.rig.timeout();
    }

    /// Every operation is answered at once, except for a reserve that may wait a little for due messages that cannot be
    /// granted.
    fn call(&mut self, op: Op) -> Reply {
        let may_wait = matches!(op, Op::Reserve(_));
        self.rig.timeout();
        let to = self.rig.step(op);
        self.rig.settle();
        if let Some(reply) = self.rig.reply(to) {
            return reply;
        }
        assert!(may_wait, "not answered");
        self.rig.pass(self.rig.policy.max_load_wait_ms + 1); // a clock reading that was cut off is rounded up
        self.rig.settle();
        self.rig.reply(to).expect("answered when the wait is over")
    }

    fn op(&mut self, c: &mut Choices<'_>) -> Op {
        match c.below(40) {
            0..=9 => Op::Enqueue(Box::new(enqueue(c))),
            10..=14 => {
                let queues: Vec<QueueName> = (0..1 + c.below(3)).map(|_| queue(c)).collect();
                let mut demand = self.rig.demand(&[], c.below(6), 0);
                demand.queues = queues;
                demand.max_bytes = *c.pick(&[0, 10, usize::MAX]);
                demand.session = session(c);
                demand.lease_ms = c.once_in(2).then(|| c.number());
                demand.deadline_margin_ms = c.once_in(4).then(|| c.number());
                Op::Reserve(demand)
            }
            15 => Op::ReserveOne {
                id: self.id(c),
                session: session(c),
                lease_ms: c.once_in(2).then(|| c.number()),
            },
            16 => Op::Undelivered { leases: vec![self.token(c)] },
            17..=18 => {
                let (id, proof) = self.proof(c);
                Op::Ack { id, proof, result: None }
            }
            19..=20 => {
                let (id, proof) = self.proof(c);
                let (delay_ms, priority) = (c.once_in(2).then(|| c.number()), priority(c));
                let attempt = if c.once_in(4) { Attempt::NotYet } else { Attempt::Failed };
                Op::Nack { id, proof, attempt, delay_ms, priority, note: "gründlich schief".into() }
            }
            21 => {
                let (id, proof) = self.proof(c);
                Op::Bury { id, proof, priority: priority(c), note: "".into() }
            }
            22 => Op::Delete { id: self.id(c), session: session(c) },
            23 => {
                let (id, proof) = self.proof(c);
                Op::Extend { id, proof, lease_ms: c.once_in(2).then(|| c.number()) }
            }
            24 if c.once_in(4) => {
                let (id, died) = (self.id(c), WallMs(c.number()));
                Op::RemoveDead { id, died, keep: kept_for(c) }
            }
            24 if c.once_in(2) => Op::Restore { id: self.id(c) },
            24 => Op::Cancel {
                target: self.target(c),
                dedupe_id: if c.once_in(3) { DedupeId::Freed } else { DedupeId::Stays },
                keep: kept_for(c),
            },
            25..=26 => Op::Postpone {
                target: self.target(c),
                edit: Box::new(Edit {
                    when: c.once_in(2).then(|| when(c)),
                    body: c.once_in(2).then(|| Bytes::copy_from_slice(c.bytes(8))),
                    priority: priority(c),
                    lease_ms: c.once_in(8).then(|| c.number()),
                    ..Edit::default()
                }),
                if_generation: c.once_in(3).then(|| c.number32()),
            },
            27 => Op::Fire { target: self.target(c) },
            28 => Op::FireMany { queue: queue(c), max: size(c) },
            29 => Op::Redrive { id: self.id(c), delay_ms: c.once_in(4).then(|| c.number()), died: None },
            30 => Op::RedriveMany { queue: queue(c), max: size(c) },
            31 => match c.below(6) {
                0 => Op::Get { target: self.target(c) },
                1 => Op::Peek { queue: queue(c), state: state(c) },
                2 => Op::Queue { queue: queue(c) },
                3 => Op::Queues { after: c.once_in(2).then(|| queue(c)), limit: size(c) },
                4 => Op::Wheel,
                _ => Op::NextDue,
            },
            32 => Op::List {
                queue: queue(c),
                state: c.once_in(2).then(|| state(c)),
                after: c.once_in(2).then_some(self.cursor).flatten(),
                limit: size(c).max(1),
                from: c.once_in(4).then(|| WallMs(c.number())),
            },
            33 => Op::Histogram {
                queue: c.once_in(2).then(|| queue(c)),
                from: WallMs(c.number()),
                to: WallMs(c.number()),
                columns: c.below(100),
            },
            34 => Op::Configure { queue: queue(c), settings: settings(c) },
            35 => Op::Pause { queue: queue(c), for_ms: c.once_in(2).then(|| c.number()) },
            36 => Op::Resume { queue: queue(c) },
            37 => Op::Purge { queue: queue(c), at_most: c.once_in(2).then(|| c.number()) },
            38 => {
                let (queue, how) = (queue(c), *c.pick(&[Hold::Use, Hold::Watch, Hold::Keep]));
                if c.once_in(2) { Op::Hold { queue, how } } else { Op::LetGo { queue, how } }
            }
            _ => {
                let session = session(c);
                if c.once_in(2) { Op::SessionClosed { session } } else { Op::SessionDeadline { session } }
            }
        }
    }

    fn id(&self, c: &mut Choices<'_>) -> MessageId {
        let given = self.bodies.len();
        match self.bodies.keys().nth(c.below(given + 1)) {
            Some(id) => *id,
            None => MessageId(c.number()),
        }
    }

    fn token(&self, c: &mut Choices<'_>) -> (MessageId, LeaseToken) {
        let n = self.tokens.len();
        match self.tokens.len().checked_sub(1 + c.below(n + 1)) {
            Some(at) => self.tokens[at],
            None => {
                (self.id(c), LeaseToken { epoch: duewheel_core::Epoch(c.number32()), counter: c.number() })
            }
        }
    }

    fn proof(&self, c: &mut Choices<'_>) -> (MessageId, Proof) {
        let (id, token) = self.token(c);
        if c.once_in(4) { (id, Proof::Session(session(c))) } else { (id, token.into()) }
    }

    fn target(&self, c: &mut Choices<'_>) -> Target {
        if c.once_in(2) { Target::Key(queue(c), key(c)) } else { Target::Id(self.id(c)) }
    }

    fn check(&mut self, op: &Op, reply: Reply) {
        match (op, reply) {
            (Op::Enqueue(e), Reply::Enqueue(Ok(done))) => {
                self.bodies.entry(done.id).or_insert_with(|| e.body.clone());
            }
            (Op::Postpone { edit, .. }, Reply::Change(Ok(outline))) => {
                if let Some(body) = &edit.body {
                    self.bodies.insert(outline.id, body.clone());
                }
            }
            (Op::Reserve(demand), Reply::Reserve(Reserved::Grants(grants))) => {
                assert!(grants.len() <= demand.max.max(1), "more than was asked for");
                for grant in &grants {
                    assert!(self.rig.now.is_due(due(&self.rig, grant.message.id)), "early: {grant:?}");
                    assert!(demand.queues.contains(&grant.message.queue), "from another queue: {grant:?}");
                    self.grant(grant);
                }
            }
            (Op::ReserveOne { id, .. }, Reply::ReserveOne(Ok(grant))) => {
                assert_eq!(grant.message.id, *id);
                self.grant(&grant);
            }
            (Op::Get { .. } | Op::Peek { .. }, Reply::View(Some(view))) => self.view(&view),
            (Op::List { limit, state, queue, .. }, Reply::Page(page)) => {
                assert!(page.views.len() <= *limit, "more than was asked for");
                for view in &page.views {
                    assert!(view.message.queue == *queue && state.is_none_or(|state| view.state == state));
                    self.view(view);
                }
                self.cursor = page.next;
            }
            (Op::Histogram { queue, columns, .. }, Reply::Histogram(shown)) => {
                assert!(shown.counts.len() <= (*columns).max(1), "more columns than were asked for");
                let counted = shown.counts.iter().fold(shown.before + shown.after, |sum, n| sum + n);
                let waits = |row: &duewheel_core::message::Row| {
                    matches!(row.life.stage, duewheel_core::message::Stage::Waiting { .. })
                        && queue.as_ref().is_none_or(|queue| row.message.queue == *queue)
                };
                let waiting = self.rig.table.rows().iter().filter(|row| waits(row)).count();
                assert_eq!(counted, waiting as u64, "the histogram counts others than there are");
            }
            // Everything else has been decided; a restart shows that the next owner decides it in the same way.
            _ => {}
        }
        self.counts();
    }

    fn grant(&mut self, grant: &Grant) {
        let last = self.tokens.iter().map(|(_, token)| *token).max();
        assert!(last < Some(grant.token), "tokens only grow: {grant:?}");
        assert_eq!(self.bodies.get(&grant.message.id), Some(&grant.message.body), "its own body");
        self.tokens.push((grant.message.id, grant.token));
    }

    fn view(&self, view: &View) {
        assert_eq!(self.bodies.get(&view.message.id), Some(&view.message.body), "its own body");
        assert!((view.state == State::Leased) == view.lease_until.is_some());
        assert!((view.state == State::Dead) == view.dead.is_some());
    }

    /// The stored messages; what acts keep is in no count and no list.
    fn rows(&self) -> Vec<duewheel_core::message::Row> {
        let rows = self.rig.table.rows().into_iter();
        rows.filter(|row| row.message.queue.done_of().is_none()).collect()
    }

    /// The counts are those of the store, which has each message once.
    fn counts(&mut self) {
        let Reply::Stats(stats) = self.rig.call(Op::Stats) else {
            panic!("stats have an answer of their own")
        };
        let rows = self.rows();
        let of = |kind| rows.iter().filter(|row| row.life.stage.kind() == kind).count() as u64;
        use duewheel_core::message::Kind;
        let counts = stats.counts;
        assert_eq!(counts.scheduled + counts.ready, of(Kind::Waiting), "{counts:?}");
        assert_eq!((counts.leased, counts.dead), (of(Kind::Leased), of(Kind::Dead)), "{counts:?}");
        assert_eq!(stats.bytes, rows.iter().map(|row| row.message.weight() as u64).sum::<u64>());
    }

    /// Another engine takes over: it shows the same messages.
    fn restart(&mut self) {
        self.rig.restart();
        self.rig.settle();
        self.counts();
        let rows = self.rows();
        let mut shown = 0;
        for queue in QUEUES {
            let queue = QueueName::new(queue).expect("a good name");
            let list = Op::List { queue, state: None, after: None, limit: usize::MAX, from: None };
            let Reply::Page(page) = self.rig.call(list) else { panic!("a list has an answer of its own") };
            shown += page.views.len();
            for view in &page.views {
                self.view(view);
                let row =
                    rows.iter().find(|row| row.message.id == view.message.id).expect("it is in the store");
                assert_eq!(row.message, view.message);
                assert_eq!((row.life.attempt, row.life.generation), (view.attempt, view.generation));
            }
        }
        assert_eq!(shown, rows.len(), "all are listed, once");
    }
}

fn due(rig: &Rig, id: MessageId) -> duewheel_core::Due {
    rig.table.rows().iter().find(|row| row.message.id == id).expect("it is leased").life.due
}

const QUEUES: [&str; 3] = ["a", "b", "c"];

fn queue(c: &mut Choices<'_>) -> QueueName {
    QueueName::new(QUEUES[c.below(QUEUES.len())]).expect("a good name")
}

fn key(c: &mut Choices<'_>) -> Key {
    Key::new(["x", "y"][c.below(2)]).expect("a good key")
}

fn session(c: &mut Choices<'_>) -> SessionId {
    SessionId(c.below(3) as u64)
}

fn state(c: &mut Choices<'_>) -> State {
    *c.pick(&[State::Scheduled, State::Ready, State::Leased, State::Dead])
}

fn size(c: &mut Choices<'_>) -> usize {
    usize::try_from(c.number()).unwrap_or(usize::MAX)
}

fn priority(c: &mut Choices<'_>) -> Option<u32> {
    c.once_in(3).then(|| c.number32())
}

fn kept_for(c: &mut Choices<'_>) -> Option<KeptFor> {
    c.once_in(3).then(|| KeptFor { act: "a1".into(), keep_ms: c.number() })
}

fn when(c: &mut Choices<'_>) -> When {
    match c.below(4) {
        0 | 1 => When::After(c.number()),
        2 => When::Seconds(c.number32()),
        _ => When::At { due_at: WallMs(c.number()), past: *c.pick(&[Past::Refuse, Past::Fire, Past::Keep]) },
    }
}

fn attempts(c: &mut Choices<'_>) -> Option<MaxAttempts> {
    c.once_in(2).then(|| c.number32()).and_then(MaxAttempts::new)
}

fn backoff(c: &mut Choices<'_>) -> Option<Backoff> {
    c.once_in(3).then(|| Backoff { min_ms: c.number(), max_ms: c.number() })
}

fn enqueue(c: &mut Choices<'_>) -> Enqueue {
    Enqueue {
        key: c.once_in(2).then(|| key(c)),
        when: when(c),
        due_words: c.once_in(6).then(|| "1 month".into()),
        if_exists: *c.pick(&[IfExists::Reject, IfExists::Keep, IfExists::Replace, IfExists::Supersede]),
        dedupe_id: c.once_in(4).then(|| format!("once-{}", c.below(3)).into()),
        priority: priority(c),
        options: Options {
            lease_ms: c.once_in(3).then(|| c.number()),
            max_attempts: attempts(c),
            queue_limit: if c.once_in(4) { QueueLimit::Wins } else { QueueLimit::Yields },
            backoff: backoff(c),
            spread_ms: c.once_in(4).then(|| c.number()),
            expiry: match c.below(6) {
                0 => Some(Expiry::In(c.number())),
                1 => Some(Expiry::At(WallMs(c.number()))),
                _ => None,
            },
        },
        begins: if c.once_in(6) { InitialState::Dead } else { InitialState::Waiting },
        order_if_new: c.once_in(4).then(|| *c.pick(&[ReadyOrder::Due, ReadyOrder::Arrival])),
        ..Enqueue::new(queue(c), Bytes::copy_from_slice(c.bytes(8)))
    }
}

fn limits(c: &mut Choices<'_>) -> GrantLimits {
    let rate = c.once_in(3).then(|| GrantRate { per_hour: u64::from(c.number32()) * 1_200, burst: small(c) });
    GrantLimits { rate, catchup_per_hour: small(c).map(u64::from), concurrency: small(c) }
}

fn small(c: &mut Choices<'_>) -> Option<u32> {
    c.once_in(3).then(|| c.number32())
}

fn settings(c: &mut Choices<'_>) -> QueueSettings {
    let mut settings = QueueSettings {
        lease_ms: c.once_in(3).then(|| c.number()),
        max_attempts: attempts(c),
        priority: priority(c),
        backoff: backoff(c),
        dedupe_window_ms: c.once_in(3).then(|| c.number()),
        dead_ttl_ms: c.once_in(3).then(|| c.number()),
        order: c.once_in(3).then(|| *c.pick(&[ReadyOrder::Due, ReadyOrder::Arrival])),
        lasting: *c.pick(&[Lasting::Always, Lasting::WhileUsed]),
        limits: limits(c),
        expires_in_ms: c.once_in(4).then(|| c.number()),
        on_expiry: c.once_in(2).then(|| *c.pick(&[OnExpiry::DeliverLate, OnExpiry::Dead, OnExpiry::Drop])),
        keep_done_ms: None,
        trace: None,
    };
    // No bytes of their own, so that inputs that were found before mean what they meant.
    settings.keep_done_ms = settings.expires_in_ms.filter(|ms| ms % 2 == 1);
    settings.trace = settings.dead_ttl_ms.and_then(|ms| match ms % 4 {
        1 => Some(TraceMode::Link),
        3 => Some(TraceMode::Child),
        _ => None,
    });
    settings
}
