//! One engine and a router over four shards get the same random operations, under one clock that the test moves. Their
//! answers must be the same, except for the order of several messages, ids, tokens, and the totals of a queue that
//! nothing keeps.

use std::collections::BTreeMap;

use duewheel_core::engine::{
    Attempt, ChangeRefusal, Edit, Enqueue, EnqueueRefusal, Enqueued, Grant, Hold, IfExists, Op, Outline,
    Past, Proof, QueueView, Reply, Reserve, Reserved, SettleRefusal, Target, View, When,
};
use duewheel_core::id::{LeaseToken, MessageId, SessionId};
use duewheel_core::message::{Marks, MaxAttempts, State};
use duewheel_core::policy::{Backoff, Policy, QueueSettings};
use duewheel_core::record::Created;
use duewheel_core::time::WallMs;
use duewheel_shard::client::Client;
use duewheel_shard::clock::VirtualClock;

use super::list::Random;
use super::rig::*;

const QUEUES: [&str; 3] = ["kept", "plain", "other"];

/// One of the two sides: it knows messages by their tags, which are their bodies.
struct Side {
    client: Client,
    ids: BTreeMap<u64, MessageId>,
    tags: BTreeMap<MessageId, u64>,
    tokens: BTreeMap<u64, LeaseToken>,
}

/// An operation that names messages by their tags.
#[derive(Clone, Debug)]
enum Ask {
    Op(Op),
    Id(u64, fn(MessageId) -> Op),
    Proved(u64, By, fn(MessageId, Proof) -> Op),
    Delete(u64, SessionId),
    One(u64, SessionId),
}

#[derive(Clone, Copy, Debug)]
enum By {
    Token,
    Session(SessionId),
}

impl Side {
    fn new(client: Client) -> Self {
        Side { client, ids: BTreeMap::new(), tags: BTreeMap::new(), tokens: BTreeMap::new() }
    }

    fn id(&self, tag: u64) -> MessageId {
        // One that was never given.
        self.ids.get(&tag).copied().unwrap_or(MessageId(1 << 40))
    }

    fn tag(&self, id: MessageId) -> u64 {
        self.tags.get(&id).copied().unwrap_or(u64::MAX)
    }

    /// Asks, and says what came in words that both sides have in common.
    async fn ask(&mut self, ask: &Ask) -> String {
        let op = match ask {
            Ask::Op(op) => op.clone(),
            Ask::Id(tag, op) => op(self.id(*tag)),
            Ask::Proved(tag, by, op) => {
                let none = LeaseToken { epoch: duewheel_core::Epoch(9), counter: 0 };
                let proof = match by {
                    By::Token => Proof::Token(self.tokens.get(tag).copied().unwrap_or(none)),
                    By::Session(session) => Proof::Session(*session),
                };
                op(self.id(*tag), proof)
            }
            Ask::Delete(tag, session) => Op::Delete { id: self.id(*tag), session: *session },
            Ask::One(tag, session) => Op::ReserveOne { id: self.id(*tag), session: *session, lease_ms: None },
        };
        let tag = match &op {
            Op::Enqueue(e) => String::from_utf8_lossy(&e.body).parse().unwrap_or(0),
            _ => 0,
        };
        match self.client.call(op.clone()).await.unwrap() {
            Reply::Enqueue(Ok(done)) => {
                self.ids.entry(tag).or_insert(done.id);
                self.tags.entry(done.id).or_insert(tag);
                let Enqueued { id, due_at, generation, created, kept: _, answered: _, level: _ } = done;
                let created = match created {
                    Created::Replacing(id) => format!("replacing {}", self.tag(id)),
                    Created::Superseding(id) => format!("superseding {}", self.tag(id)),
                    other => format!("{other:?}"),
                };
                format!("{} {due_at:?} {generation} {created}", self.tag(id))
            }
            Reply::Enqueue(Err(refusal)) => match refusal {
                EnqueueRefusal::KeyExists(holder) => format!("key exists {}", self.tag(holder.id)),
                EnqueueRefusal::Leased(id) => format!("leased {}", self.tag(id)),
                EnqueueRefusal::DedupeMismatch(id) => format!("mismatch {}", self.tag(id)),
                other => format!("{other:?}"),
            },
            Reply::Reserve(Reserved::Grants(grants)) => {
                let mut all: Vec<String> = grants.iter().map(|grant| self.grant(grant)).collect();
                all.sort_unstable();
                format!("{all:?}")
            }
            Reply::Reserve(other) => format!("{other:?}"),
            Reply::ReserveOne(Ok(grant)) => self.grant(&grant),
            Reply::ReserveOne(Err(refusal)) => self.refusal(refusal),
            Reply::Settle(Err(SettleRefusal::NeverIssued | SettleRefusal::LeaseLost)) => "lost".into(),
            Reply::Settle(settled) => format!("{settled:?}"),
            Reply::Extend(Err(SettleRefusal::NeverIssued | SettleRefusal::LeaseLost)) => "lost".into(),
            Reply::Extend(extended) => format!("{extended:?}"),
            Reply::Change(Ok(outline)) => self.outline(&outline),
            Reply::Change(Err(refusal)) => self.refusal(refusal),
            Reply::View(view) => match (&op, view) {
                (_, None) => "none".into(),
                // Which of those that are first together is shown may differ.
                (Op::Peek { state: State::Leased, .. }, Some(view)) => format!("{:?}", view.state),
                (Op::Peek { state: State::Dead, .. }, Some(view)) => {
                    format!("{:?}", view.dead.map(|(_, since)| since))
                }
                (Op::Peek { .. }, Some(view)) => {
                    format!("{:?} {} {:?}", view.state, view.priority, view.due_at)
                }
                (_, Some(view)) => self.view(&view),
            },
            Reply::Queues(views) => views.iter().map(queue_view).collect::<Vec<_>>().join("; "),
            Reply::Histogram(h) => format!("{h:?}"),
            Reply::Wheel(wheel) => format!("{wheel:?}"),
            Reply::Stats(stats) => {
                let counted = (stats.counts, stats.urgent, stats.bytes, stats.waiters);
                let mut totals = stats.totals;
                totals.paused = 0; // each shard counts the pauses of queues that it knows
                format!("{counted:?} {totals:?} {} {}", stats.lease_expired, stats.lease_lost)
            }
            Reply::Configured(applied) => {
                format!("{:?} {:?}", applied.what.as_deref().map(queue_view), applied.level)
            }
            Reply::Page(_) => "listed elsewhere".into(),
            other @ (Reply::Configure(_)
            | Reply::Count(_)
            | Reply::Deadline(_)
            | Reply::NextDue(_)
            | Reply::Quotas(_)
            | Reply::Events(_)
            | Reply::History(_)
            | Reply::Recorded(_)
            | Reply::Done) => format!("{other:?}"),
        }
    }

    fn grant(&mut self, grant: &Grant) -> String {
        let tag = self.tag(grant.message.id);
        self.tokens.insert(tag, grant.token);
        let Grant { attempt, priority, due_at, lease_until, lateness_ms, generation, .. } = grant;
        format!("{tag:05} {attempt} {priority} {due_at:?} {lease_until:?} {lateness_ms} {generation}")
    }

    fn view(&self, view: &View) -> String {
        let dead = view.dead.map(|(reason, _)| reason);
        let marks = Marks { superseded_by: None, ..view.marks };
        format!(
            "{:05} {:?} {:?} {} {} {} {:?} {:?} {marks:?} {:?} {}",
            self.tag(view.message.id),
            view.state,
            view.due_at,
            view.attempt,
            view.generation,
            view.priority,
            view.lease_until,
            dead,
            view.marks.superseded_by.map(|id| self.tag(id)),
            view.history.len()
        )
    }

    fn outline(&self, outline: &Outline) -> String {
        let Outline { id, state, due_at, attempt, generation, priority, dead, .. } = outline;
        let dead = dead.map(|(reason, _)| reason);
        format!("{:05} {state:?} {due_at:?} {attempt} {generation} {priority} {dead:?}", self.tag(*id))
    }

    fn refusal(&self, refusal: ChangeRefusal) -> String {
        match refusal {
            ChangeRefusal::KeyExists(holder) => format!("key exists {}", self.tag(holder.id)),
            other => format!("{other:?}"),
        }
    }

    /// Everything there is, as listings show it.
    async fn contents(&self) -> Vec<String> {
        let mut all = Vec::new();
        for name in QUEUES {
            let mut after = None;
            loop {
                let page = self.client.list(queue(name), None, after, 50).await.unwrap();
                all.extend(page.views.iter().map(|view| self.view(view)));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        all.sort_unstable();
        all
    }
}

fn queue_view(view: &QueueView) -> String {
    let kept = view.settings.keep_a_queue().then_some(view.totals);
    let (pause, left) = (view.pause != duewheel_core::record::Pause::Running, view.pause_left_ms);
    format!(
        "{} {:?} {} {:?} {} {} {} {:?} {:?} {pause} {left:?}",
        view.name,
        view.counts,
        view.urgent,
        view.oldest_ready,
        view.waiters,
        view.using,
        view.watching,
        view.settings,
        kept
    )
}

fn any_op(random: &mut Random, tags: &mut u64, wall: u64) -> Ask {
    let name = queue(QUEUES[random.below(3) as usize]);
    let session = SessionId((1 << 50) + random.below(2));
    let tag = random.below(*tags + 2);
    let by = if random.below(3) == 0 { By::Session(session) } else { By::Token };
    let target = Target::Key(name.clone(), key(&format!("k{}", random.below(12))));
    let when = match random.below(4) {
        0 => When::After(0),
        1 => When::After(random.below(20_000)),
        2 => When::Seconds(random.below(20) as u32),
        _ => When::At { due_at: WallMs(wall + random.below(20_000)), past: Past::Fire },
    };
    match random.below(30) {
        0..=7 => {
            *tags += 1;
            let keyed = random.below(3) > 0;
            let put = Enqueue {
                key: keyed.then(|| key(&format!("k{}", random.below(12)))),
                when,
                if_exists: [IfExists::Reject, IfExists::Keep, IfExists::Replace, IfExists::Supersede]
                    [random.below(4) as usize],
                dedupe_id: (!keyed && random.below(3) == 0).then(|| format!("d{}", random.below(6)).into()),
                priority: (random.below(4) == 0).then(|| 1_000 + random.below(50) as u32),
                ..Enqueue::new(name, tags.to_string())
            };
            Ask::Op(Op::Enqueue(Box::new(put)))
        }
        8 | 9 => {
            let session = if random.below(2) == 0 { session } else { SessionId::NONE };
            Ask::Op(Op::Reserve(Reserve {
                waiter: duewheel_core::engine::WaiterId(u64::MAX),
                queues: if random.below(3) == 0 { QUEUES.map(queue).to_vec() } else { vec![name] },
                max: 1_000,
                max_bytes: usize::MAX,
                wait_ms: 0,
                lease_ms: Some(5_000),
                session,
                max_of: Vec::new(),
                max_attempts: None,
                deadline_margin_ms: Some(1_000),
            }))
        }
        10 | 11 => Ask::Proved(tag, by, |id, proof| Op::Ack { id, proof, result: None }),
        12 => Ask::Proved(tag, by, |id, proof| Op::Nack {
            id,
            proof,
            attempt: Attempt::Failed,
            delay_ms: Some(700),
            priority: Some(3),
            note: "no".into(),
        }),
        13 => Ask::Proved(tag, by, |id, proof| Op::Bury { id, proof, priority: None, note: "no".into() }),
        14 => Ask::Proved(tag, by, |id, proof| Op::Extend { id, proof, lease_ms: Some(9_000) }),
        15 => Ask::Delete(tag, session),
        16 => Ask::One(tag, session),
        17 => Ask::Id(tag, |id| Op::Redrive { id, delay_ms: None, died: None }),
        18 => Ask::Id(tag, |id| Op::Fire { target: Target::Id(id) }),
        19 => Ask::Op(Op::Cancel { keep: None, dedupe_id: duewheel_core::engine::DedupeId::Stays, target }),
        20 => Ask::Op(Op::Postpone { target, edit: Box::new(Edit::due(when)), if_generation: None }),
        21 => Ask::Op(Op::Get { target }),
        22 => match random.below(6) {
            0 => Ask::Op(Op::FireMany { queue: name, max: 1_000 }),
            1 => Ask::Op(Op::RedriveMany { queue: name, max: 1_000 }),
            2 => Ask::Op(Op::Purge { at_most: None, queue: name }),
            3 => Ask::Op(Op::SessionClosed { session }),
            _ => Ask::Op(Op::SessionDeadline { session }),
        },
        23 => match random.below(3) {
            0 => Ask::Op(Op::Pause { queue: name, for_ms: Some(random.below(3_000)) }),
            1 => Ask::Op(Op::Pause { queue: name, for_ms: None }),
            _ => Ask::Op(Op::Resume { queue: name }),
        },
        24 => Ask::Op(Op::Queue { queue: name }),
        25 => Ask::Op(Op::Queues { after: None, limit: 100 }),
        26 => Ask::Op(Op::Peek { queue: name, state: State::ALL[random.below(4) as usize] }),
        27 => match random.below(3) {
            0 => Ask::Op(Op::Histogram {
                queue: Some(name),
                // Whole minutes: an edge within one divides its messages, and each shard rounds its own part.
                from: WallMs(wall / 60_000 * 60_000),
                to: WallMs(wall / 60_000 * 60_000 + 3_600_000),
                columns: 10,
            }),
            1 => Ask::Op(Op::Wheel),
            _ => Ask::Op(Op::NextDue),
        },
        28 => Ask::Op(Op::Hold { queue: name, how: [Hold::Use, Hold::Watch][random.below(2) as usize] }),
        _ => Ask::Op(Op::Stats),
    }
}

async fn check(seed: u64, steps: usize) {
    let clock = VirtualClock::at_2026();
    // Without backoffs: their jitter depends on ids, which differ.
    let mut policy = Policy::default();
    policy.defaults.backoff = Backoff { min_ms: 0, max_ms: 0 };
    let one = rig_with(1, policy.clone(), clock.clone());
    let four = rig_with(4, policy, clock.clone());
    let (mut one_side, mut four_side) = (Side::new(one.local.client(0)), Side::new(four.client.clone()));
    let mut random = Random::new(seed);
    let settings = QueueSettings { max_attempts: MaxAttempts::new(3), ..QueueSettings::default() };
    let mut asks = vec![Ask::Op(Op::Configure { queue: queue("kept"), settings })];
    let mut tags = 0;
    let mut said = Vec::new();
    for step in 0..steps {
        let ask = asks.pop().unwrap_or_else(|| {
            let wall = one.client.now().wall.0;
            any_op(&mut random, &mut tags, wall)
        });
        if random.below(4) == 0 {
            let ms = random.below(2_000);
            clock.advance(std::time::Duration::from_millis(ms));
            // Who is not asked looks at the clock when its thread has its turn: before the next step, or a death would
            // be dated later.
            one.looks_at_the_clock().await;
            four.looks_at_the_clock().await;
        }
        let (left, right) = (one_side.ask(&ask).await, four_side.ask(&ask).await);
        said.push(format!("{ask:?}: {left}"));
        let last = &said[said.len().saturating_sub(8)..];
        assert_eq!(left, right, "seed {seed}, step {step}, after\n{}", last.join("\n"));
        if step % 50 == 0 {
            assert_eq!(one_side.contents().await, four_side.contents().await, "seed {seed}, step {step}");
        }
    }
    for ask in [Op::Stats, Op::Queues { after: None, limit: 100 }] {
        let ask = Ask::Op(ask);
        assert_eq!(one_side.ask(&ask).await, four_side.ask(&ask).await, "seed {seed}, at the end");
    }
    assert_eq!(one_side.contents().await, four_side.contents().await, "seed {seed}, at the end");
}

#[tokio::test]
async fn four_shards_answer_like_one_engine() {
    for seed in 0..super::seeds(20) {
        check(seed, 400).await;
    }
}
