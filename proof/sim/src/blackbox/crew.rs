//! The clients of the run under kill -9: producers, cancellers, consumers, and one that reads. Each uses all abilities
//! of its system.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use duewheel_judge::history::{
    Answer, Call, Enqueue, IfExists, Leases, MsgId, Payload, Proof, Refusal, Target, When, body, wall_ms,
};
use duewheel_judge::rng::Rng;

use super::client::{Client, Message, Run, Stage, lock};
use super::{Ability, Asked, System};
use crate::process::PATIENCE;

/// The queues of the run.
pub const QUEUES: [&str; 2] = ["orders", "sms/bulk"];
const KEYS: u64 = 60;

/// What clients tell each other.
#[derive(Debug, Default)]
pub struct Gossip {
    all: Mutex<Vec<MsgId>>,
    /// Recent messages, and their due times.
    recent: Mutex<VecDeque<(MsgId, Instant)>>,
    /// Leases that are not settled in time.
    old: Mutex<Vec<Proof>>,
}

impl Gossip {
    /// Every id that was ever answered or granted.
    pub fn ids(&self) -> Vec<MsgId> {
        let mut ids = lock(&self.all).clone();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn heard(&self, id: MsgId, due: Instant) {
        lock(&self.all).push(id);
        let mut recent = lock(&self.recent);
        recent.push_back((id, due));
        if recent.len() > 400 {
            recent.pop_front();
        }
    }

    fn granted(&self, id: MsgId) {
        lock(&self.all).push(id);
    }

    fn some(&self, rng: &mut Rng) -> Option<(MsgId, Instant)> {
        let recent = lock(&self.recent);
        let n = rng.below(recent.len() as u64);
        recent.get(usize::try_from(n).ok()?).copied()
    }

    /// A message that is about to come due.
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

fn pause(run: &Run<'_>, rng: &mut Rng, most_us: u64) {
    std::thread::sleep(Duration::from_micros(rng.below(most_us * run.pace)));
}

fn queue(rng: &mut Rng) -> String {
    rng.pick(&QUEUES).copied().unwrap_or(QUEUES[0]).to_owned()
}

/// Keys contain characters that paths and JSON handle badly if they are careless.
fn key(rng: &mut Rng) -> String {
    format!("order/{} é\"%", rng.below(KEYS))
}

fn by_key(rng: &mut Rng) -> Target {
    Target::Key { queue: queue(rng), key: key(rng) }
}

/// A time in the system's unit, rounded up.
fn whole(system: &dyn System, ms: u64) -> u64 {
    ms.next_multiple_of(system.unit_ms())
}

fn when(system: &dyn System, rng: &mut Rng) -> When {
    let ms = match rng.below(10) {
        0 | 1 => 0,
        2..7 => rng.below(400),
        _ => rng.below(3_000),
    };
    if rng.percent(25) && system.can(Ability::At) {
        When::AtMs(wall_ms() + ms)
    } else {
        When::DelayMs(whole(system, ms))
    }
}

fn message(run: &Run<'_>, queue: &str, rng: &mut Rng) -> Message {
    let (tag, system) = (run.tag(), run.system);
    let len = if rng.percent(3) { rng.range(1_000, 20_000) } else { rng.range(30, 300) };
    let mut bytes = body(tag, usize::try_from(len).unwrap_or(100)).into_bytes();
    if rng.percent(10) {
        bytes.extend_from_slice(b"\xff\xfe\x00");
    }
    let if_exists = match rng.below(5) {
        _ if !system.can(Ability::IfExists) => IfExists::Reject,
        0 => IfExists::Keep,
        1 => IfExists::Reject,
        2 if system.can(Ability::Supersede) => IfExists::Supersede,
        _ => IfExists::Replace,
    };
    let call = Enqueue {
        queue: queue.to_owned(),
        key: (rng.percent(50) && system.can(Ability::Keys)).then(|| key(rng)),
        body: Payload::of(tag, &bytes),
        when: when(system, rng),
        if_exists,
        dedupe_id: (rng.percent(30) && system.can(Ability::Dedupe)).then(|| format!("dedupe-{}", tag.0)),
        max_attempts: (rng.percent(15) && system.can(Ability::MaxAttempts)).then(|| rng.range(1, 4)),
        lease_ms: (rng.percent(10) && system.can(Ability::MessageLease)).then(|| rng.range(100, 500)),
        spread_ms: 0,
        expiry: None,
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

/// Enqueues one by one and in batches; retries unanswered enqueues with the same dedupe id.
pub fn produce(run: &Run<'_>, number: u32, gossip: &Gossip, mut rng: Rng) {
    let mut client = Client::new(run, number);
    let mut again: Vec<Message> = Vec::new();
    while run.stage() == Stage::Work || !again.is_empty() {
        if run.stage() == Stage::Stop {
            return;
        }
        pause(run, &mut rng, 6_000);
        if !client.connect() {
            continue;
        }
        let queue = queue(&mut rng);
        let (messages, outcomes) = if let Some(message) = again.pop() {
            let outcome = client.enqueue(&message);
            (vec![message], vec![outcome])
        } else if rng.percent(20) {
            let count = rng.range(1, 20);
            let messages: Vec<Message> = (0..count).map(|_| message(run, &queue, &mut rng)).collect();
            let outcomes = client.enqueue_all(&messages);
            (messages, outcomes)
        } else {
            let message = message(run, &queue, &mut rng);
            let outcome = client.enqueue(&message);
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

/// Cancels, postpones and fires messages; by id and by key; often in the very moment a message comes due.
pub fn change_mind(run: &Run<'_>, number: u32, gossip: &Gossip, mut rng: Rng) {
    let mut client = Client::new(run, number);
    while run.stage() == Stage::Work {
        pause(run, &mut rng, 8_000);
        if !client.connect() {
            continue;
        }
        let keys = client.can(Ability::Keys);
        let target = match rng.below(10) {
            0..4 => match gossip.soon(&mut rng) {
                Some((id, due)) => {
                    let shift = Duration::from_micros(rng.below(4_000));
                    let at = due + shift - Duration::from_micros(1_000);
                    std::thread::sleep(at.saturating_duration_since(Instant::now()));
                    Some(Target::Id(id))
                }
                None => keys.then(|| by_key(&mut rng)),
            },
            n @ 4..10 if n < 6 || !keys => gossip.some(&mut rng).map(|(id, _)| Target::Id(id)),
            _ => Some(by_key(&mut rng)),
        };
        let Some(target) = target else { continue };
        match rng.below(10) {
            6..9 if client.can(Ability::Postpone) => {
                let fresh = (matches!(target, Target::Id(_)) && rng.percent(40)).then(|| run.tag());
                let bytes = fresh.map(|tag| body(tag, 60).into_bytes());
                let payload = fresh.zip(bytes.as_ref()).map(|(tag, bytes)| Payload::of(tag, bytes));
                let call = Call::Postpone { target, when: when(run.system, &mut rng), body: payload };
                client.one(Asked { call, bytes: bytes.unwrap_or_default() });
            }
            9 if client.can(Ability::Fire) => {
                client.one(Call::Fire(target));
            }
            _ => {
                client.cancel(target);
            }
        }
    }
}

/// Reserves messages, and uses them in all ways that a consumer may. While the run is drained it only acks.
pub fn consume(run: &Run<'_>, number: u32, gossip: &Gossip, mut rng: Rng) {
    let mut client = Client::new(run, number);
    let mut later: Vec<(Instant, Proof)> = Vec::new();
    let of_connections = run.system.rules().leases == Leases::OfConnections;
    // A longer wait is not useful with leases of 400 ms.
    let stretch = run.system.rules().lease_ms.div_ceil(400);
    let some_time = |rng: &mut Rng, ms: u64| Duration::from_millis(rng.below(ms) * stretch);
    let delay = |rng: &mut Rng, ms: u64| whole(run.system, rng.below(ms));
    while run.stage() != Stage::Stop {
        pause(run, &mut rng, 2_000);
        if !client.connect() {
            continue;
        }
        if of_connections && rng.percent(1) {
            client.hang_up();
            continue;
        }
        let draining = run.stage() == Stage::Drain;
        let now = Instant::now();
        while let Some(n) = later.iter().position(|(at, _)| *at <= now) {
            let (_, proof) = later.swap_remove(n);
            match rng.below(10) {
                0..7 => client.ack(proof),
                7..9 => client.nack(proof, Some(delay(&mut rng, 300))),
                _ => client.extend(proof, rng.range(50, 300)),
            };
        }
        if rng.percent(10) {
            // An old lease of another consumer; often others have got the message since.
            let old = {
                let mut all = lock(&gossip.old);
                let n = rng.below(all.len() as u64 + 1);
                let n = usize::try_from(n).unwrap_or(0);
                (n < all.len()).then(|| all.swap_remove(n))
            };
            match (old, rng.below(3)) {
                (Some(proof), 0) => {
                    client.extend(proof, 200);
                }
                (Some(proof), 1) => {
                    client.nack(proof, Some(0));
                }
                (Some(proof), _) => {
                    client.ack(proof);
                }
                (None, _) => {}
            }
        }
        let queue = queue(&mut rng);
        let wait = if rng.percent(50) { 0 } else { rng.below(150) };
        let lease = rng.range(60, 700);
        let lease_ms = rng.percent(85).then_some(lease);
        // One by one, so many take a slow machine longer than their lease.
        let max = if draining && client.can(Ability::ReserveMany) { 50 } else { rng.range(1, 12) };
        let grants = client.reserve(&queue, max, wait, lease_ms);
        let mut together = Vec::new();
        for grant in grants {
            let proof = Proof { id: grant.id, token: grant.token };
            gossip.granted(proof.id);
            if draining {
                together.push(proof);
                continue;
            }
            match rng.below(100) {
                0..30 => together.push(proof),
                30..66 => {
                    client.ack(proof);
                }
                66..74 => {
                    let backoff = rng.percent(30) && client.can(Ability::Backoff);
                    let delay = delay(&mut rng, 400);
                    client.nack(proof, (!backoff).then_some(delay));
                }
                74..78 => {
                    if let Some(Ok(_)) = client.extend(proof.clone(), rng.range(30, 800)) {
                        later.push((now + some_time(&mut rng, 900), proof));
                    }
                }
                // The lease is held for a while, perhaps over a kill, perhaps for too long.
                78..90 => later.push((now + some_time(&mut rng, 1_200), proof)),
                90..97 if of_connections => later.push((now + some_time(&mut rng, 2_400), proof)),
                90..97 => lock(&gossip.old).push(proof),
                _ => {}
            }
        }
        if !together.is_empty() {
            client.ack_all(together);
        }
    }
}

/// Reads messages by id and by key.
pub fn look(run: &Run<'_>, number: u32, gossip: &Gossip, mut rng: Rng) {
    let mut client = Client::new(run, number);
    while run.stage() == Stage::Work {
        pause(run, &mut rng, 12_000);
        if !client.connect() {
            continue;
        }
        if !client.can(Ability::Get) {
            continue;
        }
        let target = match gossip.some(&mut rng) {
            Some((id, _)) if rng.percent(60) => Target::Id(id),
            _ => by_key(&mut rng),
        };
        if let Some(Err(refusal)) = client.one(Call::Get(target))
            && refusal != Refusal::NotFound
        {
            run.complain(format!("a get was refused with {refusal:?}"));
        }
        if rng.percent(5) {
            // Pages and queues must be served at any time; their content is judged at the end.
            let queue = queue(&mut rng);
            if let Ok(peer) = client.peer() {
                let _ = peer.waiting(&queue);
            }
        }
    }
}

/// The clients of a run, each on a thread of its own: three producers, two that change due times, one that reads, three
/// consumers.
#[derive(Debug)]
pub struct Crew<'scope> {
    producers: Vec<ScopedJoinHandle<'scope, ()>>,
    consumers: Vec<ScopedJoinHandle<'scope, ()>>,
}

impl<'scope> Crew<'scope> {
    /// Starts the clients.
    pub fn hire<'env>(
        scope: &'scope Scope<'scope, 'env>,
        run: &'env Run<'env>,
        gossip: &'env Gossip,
        seed: u64,
    ) -> Self {
        let mut number = 0;
        let mut hire = |role: fn(&Run<'_>, u32, &Gossip, Rng), count: u32| {
            let mut hired = Vec::new();
            for _ in 0..count {
                number += 1;
                let (number, rng) = (number, Rng::new(seed ^ (u64::from(number) << 32)));
                hired.push(scope.spawn(move || role(run, number, gossip, rng)));
            }
            hired
        };
        let mut producers = hire(produce, 3);
        producers.extend(hire(change_mind, 2));
        producers.extend(hire(look, 1));
        Crew { producers, consumers: hire(consume, 3) }
    }

    /// Ends the work: producers first, then the rest is drained, then all clients end. The steps follow each other, so
    /// that no request is made while the queues are listed; whether or not they were drained, everything is dumped,
    /// because the checker explains more.
    ///
    /// # Errors
    /// A client panicked, a queue could not be listed, or messages are left and do not become fewer.
    pub fn drain(self, run: &Run<'_>, gossip: &Gossip) -> Result<(), String> {
        run.phase("drain");
        run.set_stage(Stage::Drain);
        wait(self.producers)?;
        let drained = run.until_left(&QUEUES, 0, PATIENCE);
        run.set_stage(Stage::Stop);
        wait(self.consumers)?;
        QUEUES.iter().try_for_each(|queue| run.dump(queue, &gossip.ids()))?;
        drained
    }
}

fn wait(clients: Vec<ScopedJoinHandle<'_, ()>>) -> Result<(), String> {
    clients.into_iter().try_for_each(|c| c.join().map_err(|_| "a client panicked".to_owned()))
}
