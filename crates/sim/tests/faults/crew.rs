//! The clients: producers, cancellers, consumers, and one that looks.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use duewheel_judge::history::{
    Answer, Enqueue, IfExists, MsgId, Payload, Proof, Refusal, Tag, Target, When, body, wall_ms,
};
use duewheel_judge::rng::Rng;

use crate::api::{Api, Message, Shared, Stage, lock};

pub(crate) const QUEUES: [&str; 2] = ["orders", "sms/bulk"];
const KEYS: u64 = 60;

/// What clients tell each other.
#[derive(Debug, Default)]
pub(crate) struct Gossip {
    tags: AtomicU64,
    /// Recent messages, and when they come due.
    recent: Mutex<VecDeque<(MsgId, Instant)>>,
    /// Leases that are not settled in time.
    old: Mutex<Vec<Proof>>,
}

impl Gossip {
    fn tag(&self) -> Tag {
        Tag(self.tags.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn heard(&self, id: MsgId, due: Instant) {
        let mut recent = lock(&self.recent);
        recent.push_back((id, due));
        if recent.len() > 400 {
            recent.pop_front();
        }
    }

    fn some(&self, rng: &mut Rng) -> Option<(MsgId, Instant)> {
        let recent = lock(&self.recent);
        let n = rng.below(recent.len() as u64);
        recent.get(usize::try_from(n).ok()?).copied()
    }

    /// One that is about to come due.
    fn soon(&self, rng: &mut Rng) -> Option<(MsgId, Instant)> {
        let now = Instant::now();
        let soon: Vec<(MsgId, Instant)> = lock(&self.recent)
            .iter()
            .filter(|(_, due)| *due > now && *due < now + Duration::from_millis(30))
            .copied()
            .collect();
        rng.pick(&soon).copied()
    }
}

fn pause(rng: &mut Rng, most_us: u64) {
    std::thread::sleep(Duration::from_micros(rng.below(most_us)));
}

fn queue(rng: &mut Rng) -> String {
    rng.pick(&QUEUES).copied().unwrap_or(QUEUES[0]).to_owned()
}

/// Keys hold what paths and JSON stumble over.
fn key(rng: &mut Rng) -> String {
    format!("order/{} é\"%", rng.below(KEYS))
}

fn by_key(rng: &mut Rng) -> Target {
    Target::Key { queue: queue(rng), key: key(rng) }
}

fn when(rng: &mut Rng) -> When {
    let ms = match rng.below(10) {
        0 | 1 => 0,
        2..7 => rng.below(400),
        _ => rng.below(3_000),
    };
    if rng.percent(25) { When::AtMs(wall_ms() + ms) } else { When::DelayMs(ms) }
}

fn message(queue: &str, rng: &mut Rng, gossip: &Gossip) -> Message {
    let tag = gossip.tag();
    let len = if rng.percent(3) { rng.range(1_000, 20_000) } else { rng.range(30, 300) };
    let mut bytes = body(tag, usize::try_from(len).unwrap_or(100)).into_bytes();
    if rng.percent(10) {
        bytes.extend_from_slice(b"\xff\xfe\x00");
    }
    let if_exists = match rng.below(5) {
        0 => IfExists::Keep,
        1 => IfExists::Reject,
        _ => IfExists::Replace,
    };
    let call = Enqueue {
        queue: queue.to_owned(),
        key: rng.percent(50).then(|| key(rng)),
        body: Payload::of(tag, &bytes),
        when: when(rng),
        if_exists,
        dedupe_id: rng.percent(30).then(|| format!("dedupe-{}", tag.0)),
        max_attempts: rng.percent(15).then(|| rng.range(1, 4)),
        lease_ms: rng.percent(10).then(|| rng.range(100, 500)),
    };
    Message { call, bytes }
}

fn due(call: &Enqueue) -> Instant {
    let ms = match call.when {
        When::DelayMs(ms) => ms,
        When::AtMs(at) => at.saturating_sub(wall_ms()),
    };
    Instant::now() + Duration::from_millis(ms)
}

/// Enqueues one by one and in batches; tries again with the same dedupe id what was not answered.
pub(crate) fn produce(shared: &Shared, number: u32, gossip: &Gossip, mut rng: Rng) {
    let mut api = Api::new(shared, number);
    let mut again: Vec<Message> = Vec::new();
    while shared.stage() == Stage::Work || !again.is_empty() {
        if shared.stage() == Stage::Stop {
            return;
        }
        pause(&mut rng, 6_000);
        if !api.connect() {
            continue;
        }
        let queue = queue(&mut rng);
        let (messages, outcomes) = if let Some(message) = again.pop() {
            let outcome = api.enqueue(&message);
            (vec![message], vec![outcome])
        } else if rng.percent(20) {
            let count = rng.range(1, 20);
            let messages: Vec<Message> = (0..count).map(|_| message(&queue, &mut rng, gossip)).collect();
            let outcomes = api.enqueue_batch(&messages);
            (messages, outcomes)
        } else {
            let message = message(&queue, &mut rng, gossip);
            let outcome = api.enqueue(&message);
            (vec![message], vec![outcome])
        };
        for (message, outcome) in messages.into_iter().zip(outcomes) {
            match outcome {
                Some(Ok(Answer::Enqueued { id, .. })) => gossip.heard(id, due(&message.call)),
                None if message.call.dedupe_id.is_some() => again.push(message),
                _ => {}
            }
        }
    }
}

/// Changes its mind: cancels, postpones, fires; by id and by key; often in the very moment a message comes due.
pub(crate) fn change_mind(shared: &Shared, number: u32, gossip: &Gossip, mut rng: Rng) {
    let mut api = Api::new(shared, number);
    while shared.stage() == Stage::Work {
        pause(&mut rng, 8_000);
        if !api.connect() {
            continue;
        }
        let target = match rng.below(10) {
            0..4 => match gossip.soon(&mut rng) {
                Some((id, due)) => {
                    let shift = Duration::from_micros(rng.below(4_000));
                    let at = due + shift - Duration::from_micros(1_000);
                    std::thread::sleep(at.saturating_duration_since(Instant::now()));
                    Target::Id(id)
                }
                None => by_key(&mut rng),
            },
            4..6 => match gossip.some(&mut rng) {
                Some((id, _)) => Target::Id(id),
                None => by_key(&mut rng),
            },
            _ => by_key(&mut rng),
        };
        match rng.below(10) {
            0..6 => {
                api.cancel(target);
            }
            6..9 => {
                let fresh = (matches!(target, Target::Id(_)) && rng.percent(40)).then(|| gossip.tag());
                api.postpone(target, when(&mut rng), fresh);
            }
            _ => {
                api.fire(target);
            }
        }
    }
}

/// Takes messages, and does with them whatever a consumer may do. When all is drained it only acks.
pub(crate) fn consume(shared: &Shared, number: u32, gossip: &Gossip, mut rng: Rng) {
    let mut api = Api::new(shared, number);
    let mut later: Vec<(Instant, Proof)> = Vec::new();
    while shared.stage() != Stage::Stop {
        if !api.connect() {
            pause(&mut rng, 2_000);
            continue;
        }
        let draining = shared.stage() == Stage::Drain;
        let now = Instant::now();
        while let Some(n) = later.iter().position(|(at, _)| *at <= now) {
            let (_, proof) = later.swap_remove(n);
            match rng.below(10) {
                0..7 => api.ack(proof),
                7..9 => api.nack(proof, Some(rng.below(300))),
                _ => api.extend(proof, rng.range(50, 300)),
            };
        }
        if rng.percent(10) {
            // Somebody else's old lease; often others have got the message since.
            let old = {
                let mut all = lock(&gossip.old);
                let n = rng.below(all.len() as u64 + 1);
                let n = usize::try_from(n).unwrap_or(0);
                (n < all.len()).then(|| all.swap_remove(n))
            };
            match (old, rng.below(3)) {
                (Some(proof), 0) => {
                    api.extend(proof, 200);
                }
                (Some(proof), 1) => {
                    api.nack(proof, Some(0));
                }
                (Some(proof), _) => {
                    api.ack(proof);
                }
                (None, _) => {}
            }
        }
        let queue = queue(&mut rng);
        let wait = if rng.percent(50) { 0 } else { rng.below(150) };
        let lease = rng.range(60, 700);
        let lease_ms = rng.percent(85).then_some(lease);
        let max = if draining { 50 } else { rng.range(1, 12) };
        let grants = api.reserve(&queue, max, wait, lease_ms);
        let mut together = Vec::new();
        for grant in grants {
            let proof = Proof { id: grant.id, token: grant.token };
            if draining {
                together.push(proof);
                continue;
            }
            match rng.below(100) {
                0..30 => together.push(proof),
                30..66 => {
                    api.ack(proof);
                }
                66..74 => {
                    let delay = rng.percent(70).then(|| rng.below(400));
                    api.nack(proof, delay);
                }
                74..78 => {
                    if let Some(Ok(_)) = api.extend(proof.clone(), rng.range(30, 800)) {
                        later.push((now + Duration::from_millis(rng.below(900)), proof));
                    }
                }
                // Held for a while, perhaps over a kill, perhaps for too long.
                78..90 => later.push((now + Duration::from_millis(rng.below(1_200)), proof)),
                90..97 => lock(&gossip.old).push(proof),
                _ => {}
            }
        }
        if !together.is_empty() {
            api.ack_batch(together);
        }
    }
}

/// Looks at messages by id and by key.
pub(crate) fn look(shared: &Shared, number: u32, gossip: &Gossip, mut rng: Rng) {
    let mut api = Api::new(shared, number);
    while shared.stage() == Stage::Work {
        pause(&mut rng, 12_000);
        if !api.connect() {
            continue;
        }
        let target = match gossip.some(&mut rng) {
            Some((id, _)) if rng.percent(60) => Target::Id(id),
            _ => by_key(&mut rng),
        };
        if let Some(Err(refusal)) = api.get(target)
            && refusal != Refusal::NotFound
        {
            shared.complain(format!("a get was refused with {refusal:?}"));
        }
        if rng.percent(5) {
            // Pages and queues must be served at any time; what they say is judged at the end.
            let queue = queue(&mut rng);
            let name = duewheel_sim::http::escape(&queue);
            let _ = api.plain("GET", format!("/v1/queues/{name}"), &serde_json::Value::Null);
        }
    }
}
