//! kill -9 of a server that pushes, judged with the log of a receiver that is not always well.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use duewheel_judge::checker::Fact;
use duewheel_judge::history::{Answer, Call, MsgId, PushSeen, PushedQueue, Target, What, When};
use duewheel_judge::rng::Rng;
use duewheel_sim::blackbox::client::{Client, Message, Run};
use serde_json::json;

use crate::receiver::{Mood, Receiver};
use crate::stage::{Crew, Play, env, perform};

const QUEUE: &str = "pushed";
const TIMEOUT_MS: u64 = 2_400;
const MAX_ATTEMPTS: u64 = 4;
/// Requests of a process that are answered with a success whatever comes, and requests that get no answer at most: the
/// breaker stays closed, so that attempts can be counted.
const WELL_AT_FIRST: u64 = 10;
const HANGING: u64 = 3;

/// What the receiver knows of the present process of the server.
#[derive(Debug, Default)]
struct Process {
    requests: AtomicU64,
    hanging: AtomicU64,
}

impl Process {
    /// The mood depends on the message and its attempt.
    fn mood(&self, seen: &PushSeen) -> Mood {
        let tag = seen.body.tag.map_or(0, |tag| tag.0);
        if self.requests.fetch_add(1, Ordering::SeqCst) < WELL_AT_FIRST {
            return Mood::Well;
        }
        match (tag % 60, seen.attempt) {
            (7, 1) => Mood::Busy(1),
            (11 | 41, 1) if self.hanging.fetch_add(1, Ordering::SeqCst) < HANGING => Mood::Hanging,
            (n, _) if n % 10 == 3 => Mood::Failing,
            (n, 1..=2) if n % 10 == 5 => Mood::Failing,
            (n, _) if n % 4 == 0 => Mood::Slow(Duration::from_millis(250)),
            _ => Mood::Well,
        }
    }
}

#[test]
fn pushes_go_on_over_kill_9() {
    let kills = env("DUEWHEEL_PUSH_KILLS", 6);
    let play = Play {
        name: "pushes_go_on_over_kill_9",
        count: ("DUEWHEEL_PUSH_KILLS", kills),
        data: None,
        more: &[],
        slack_ms: None,
        facts: vec![
            (Fact::KillsServing, kills),
            (Fact::DeliveredByPush, 20 * kills),
            (Fact::DeadByPush, kills),
            (Fact::PushedAgainAfterAFailure, kills),
            (Fact::PushedAgainWhenAsked, 1),
            (Fact::PushesCutByAKill, kills / 2),
        ],
        crew: Crew::None,
    };
    perform(play, |stage, mut server| {
        let (receiver, process) = (Receiver::default(), Mutex::new(Process::default()));
        let (ids, enough) = (Mutex::new(BTreeSet::new()), AtomicBool::new(false));
        let (run, seed) = (stage.run, stage.rng.bits());
        let mood = |seen: &PushSeen| process.lock().unwrap_or_else(PoisonError::into_inner).mood(seen);
        std::thread::scope(|scope| {
            let result = (|| {
                let address = receiver.listen(scope, &run.recorder, &mood)?;
                let target = json!({
                    "url": format!("http://{address}/"), "networks": ["127.0.0.1/32"], "timeout_ms": TIMEOUT_MS,
                    "retry": {"min_ms": 20, "max_ms": 100}, "max_attempts": MAX_ATTEMPTS, "concurrency": 8,
                });
                stage.done("PUT", "/v1/targets/hook", &target)?;
                // The queue has its usual limit, which does not hold.
                let config = json!({"target": "hook"});
                stage.done("PATCH", &format!("/v1/queues/{QUEUE}/config"), &config)?;
                let pushed = PushedQueue {
                    queue: QUEUE.to_owned(),
                    max_attempts: MAX_ATTEMPTS,
                    timeout_ms: TIMEOUT_MS,
                };
                run.recorder.note(run.recorder.stamp(), 0, What::Pushed(pushed));
                scope.spawn(|| produce(run, &ids, &enough, Rng::new(seed)));
                scope.spawn(|| look(run, &ids, &enough, Rng::new(!seed)));
                for _ in 0..kills {
                    std::thread::sleep(Duration::from_millis(stage.rng.range(400, 1_200)));
                    stage.kill(server)?;
                    receiver.drained()?;
                    *process.lock().unwrap_or_else(PoisonError::into_inner) = Process::default();
                    server = stage.start()?;
                }
                enough.store(true, Ordering::SeqCst);
                run.until_left(&[QUEUE], 0, crate::stage::PATIENCE)?;
                run.dump(QUEUE, &[])?;
                Ok(server)
            })();
            enough.store(true, Ordering::SeqCst);
            receiver.stop();
            result
        })
    });
}

/// Enqueues messages, some with a limit of their own, until it is enough.
fn produce(run: &Run<'_>, ids: &Mutex<BTreeSet<MsgId>>, enough: &AtomicBool, mut rng: Rng) {
    let mut client = Client::new(run, 1);
    while !enough.load(Ordering::SeqCst) {
        let messages: Vec<Message> = (0..rng.range(1, 12))
            .map(|_| {
                let mut message = Message::new(run, QUEUE, When::DelayMs(rng.below(400)));
                message.call.max_attempts = rng.percent(20).then(|| rng.range(1, 6));
                message
            })
            .collect();
        for outcome in client.enqueue_all(&messages) {
            if let Some(Ok(Answer::Enqueued { id, .. })) = outcome {
                ids.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
            }
        }
        std::thread::sleep(Duration::from_millis(rng.range(20, 80)));
    }
}

/// Looks at messages: what is seen to be gone must not be sent again, and attempts must be true.
fn look(run: &Run<'_>, ids: &Mutex<BTreeSet<MsgId>>, enough: &AtomicBool, mut rng: Rng) {
    let mut client = Client::new(run, 2);
    while !enough.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(rng.range(2, 10)));
        let known = ids.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Mostly the young ones, about which something may still happen.
        let back = if rng.percent(80) { rng.below(20) } else { rng.below(known.len() as u64 + 1) };
        if let Some(id) = known.iter().rev().nth(usize::try_from(back).unwrap_or(0)) {
            client.one(Call::Get(Target::Id(*id)));
        }
    }
}
