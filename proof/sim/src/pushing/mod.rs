//! Runs in which the system pushes: a receiver that is not always well, and clients that enqueue and look.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use duewheel_judge::history::{Answer, Call, MsgId, PushSeen, PushedQueue, Target, When};
use duewheel_judge::rng::Rng;
use serde_json::{Value, json};

use crate::blackbox::client::{Client, Message, Run};

mod receiver;

pub use receiver::{Mood, Receiver};

/// The queue whose messages are pushed.
pub const QUEUE: &str = "pushed";
const TIMEOUT_MS: u64 = 2_400;
const MAX_ATTEMPTS: u64 = 4;
/// Requests of a process that are answered with a success whatever comes, and requests that get no answer at most: the
/// breaker stays closed, so that attempts can be counted.
const WELL_AT_FIRST: u64 = 10;
const HANGING: u64 = 3;
/// Requests of a process that are told to wait at most. Each holds the whole target up for its second: if their number
/// grew with the messages, a slow machine would enqueue more than can be pushed in the time that the end has.
const BUSY: u64 = 3;

/// What the receiver knows of the process that pushes at present.
#[derive(Debug, Default)]
pub struct Pushing {
    requests: AtomicU64,
    hanging: AtomicU64,
    busy: AtomicU64,
}

impl Pushing {
    /// The mood of the receiver depends on the message and its attempt.
    pub fn mood(&self, seen: &PushSeen) -> Mood {
        let tag = seen.body.tag.map_or(0, |tag| tag.0);
        if self.requests.fetch_add(1, Ordering::SeqCst) < WELL_AT_FIRST {
            return Mood::Well;
        }
        match (tag % 60, seen.attempt) {
            (7, 1) if self.busy.fetch_add(1, Ordering::SeqCst) < BUSY => Mood::Busy(1),
            (11 | 41, 1) if self.hanging.fetch_add(1, Ordering::SeqCst) < HANGING => Mood::Hanging,
            (n, _) if n % 10 == 3 => Mood::Failing,
            (n, 1..=2) if n % 10 == 5 => Mood::Failing,
            (n, _) if n % 4 == 0 => Mood::Slow(Duration::from_millis(250)),
            _ => Mood::Well,
        }
    }

    /// Its requests so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }
}

/// The settings of a target that leads to the receiver.
pub fn target(address: SocketAddr) -> Value {
    json!({
        "url": format!("http://{address}/"), "networks": ["127.0.0.1/32"], "timeout_ms": TIMEOUT_MS,
        "retry": {"min_ms": 20, "max_ms": 100}, "max_attempts": MAX_ATTEMPTS, "concurrency": 8,
    })
}

/// The settings of the queue. A setting of its own keeps it while it is empty: without one it would end whenever all its
/// messages have ended, and the next one would begin totals anew, which the judge expects to grow.
pub fn config() -> Value {
    json!({"target": "hook", "priority": 7})
}

/// What the history says of the queue. It has its usual limit of attempts, which does not hold.
pub fn pushed() -> PushedQueue {
    PushedQueue { queue: QUEUE.to_owned(), max_attempts: MAX_ATTEMPTS, timeout_ms: TIMEOUT_MS }
}

/// The messages of a run, and whether it is enough.
#[derive(Debug, Default)]
pub struct Work {
    ids: Mutex<BTreeSet<MsgId>>,
    enough: AtomicBool,
}

impl Work {
    /// Lets its clients end.
    pub fn end(&self) {
        self.enough.store(true, Ordering::SeqCst);
    }

    fn goes_on(&self) -> bool {
        !self.enough.load(Ordering::SeqCst)
    }

    /// Enqueues up to 12 messages at a time, some with a limit of their own, until it is enough. The pauses between have
    /// so many ms.
    pub fn produce(&self, run: &Run<'_>, mut rng: Rng, pauses: Range<u64>) {
        let mut client = Client::new(run, 1);
        while self.goes_on() {
            let messages: Vec<Message> = (0..rng.range(1, 12))
                .map(|_| {
                    let mut message = Message::new(run, QUEUE, When::DelayMs(rng.below(400)));
                    message.call.max_attempts = rng.percent(20).then(|| rng.range(1, 6));
                    message
                })
                .collect();
            for outcome in client.enqueue_all(&messages) {
                if let Some(Ok(Answer::Enqueued { id, .. })) = outcome {
                    self.ids.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
                }
            }
            std::thread::sleep(Duration::from_millis(rng.range(pauses.start, pauses.end)));
        }
    }

    /// Looks at messages: what is seen to be gone must not be sent again, and attempts must be true.
    pub fn look(&self, run: &Run<'_>, mut rng: Rng) {
        let mut client = Client::new(run, 2);
        while self.goes_on() {
            std::thread::sleep(Duration::from_millis(rng.range(2, 10)));
            let known = self.ids.lock().unwrap_or_else(PoisonError::into_inner).clone();
            // Mostly the young ones, about which something may still happen.
            let back = if rng.percent(80) { rng.below(20) } else { rng.below(known.len() as u64 + 1) };
            if let Some(id) = known.iter().rev().nth(usize::try_from(back).unwrap_or(0)) {
                client.one(Call::Get(Target::Id(*id)));
            }
        }
    }
}
