//! Each message is cancelled about when it comes due, while consumers wait for it: exactly one of the two gets it.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use duewheel_judge::checker::Fact;
use duewheel_judge::history::{Answer, MsgId, Target, When};
use duewheel_judge::rng::Rng;

use super::{Done, Figures, Host, Trial, proof, wait};
use crate::blackbox::client::{Client, Message, Run, Stage, lock};
use crate::process::PATIENCE;

const QUEUE: &str = "race";
const PRODUCERS: u32 = 2;
const CANCELLERS: u32 = 4;
const CONSUMERS: u32 = 3;

#[derive(Debug, Default)]
struct Course {
    /// The number of messages that are still to be enqueued.
    to_put: AtomicU64,
    /// The messages to be cancelled, in due order.
    coming: Mutex<VecDeque<(Instant, MsgId)>>,
    all: Mutex<Vec<MsgId>>,
}

pub(super) fn act(trial: &Trial<'_>) -> Result<Done, String> {
    let (run, size) = (trial.run, trial.size);
    let mut host = Host::new(trial);
    host.begin(&[QUEUE])?;
    let course = Course { to_put: AtomicU64::new(size), ..Course::default() };
    std::thread::scope(|scope| {
        let course = &course;
        let rng = |n: u32| Rng::new(trial.seed ^ (u64::from(n) << 32));
        let producers = (1..=PRODUCERS).map(|n| scope.spawn(move || produce(run, n, course))).collect();
        let cancellers =
            (11..=10 + CANCELLERS).map(|n| scope.spawn(move || cancel(run, n, course, rng(n)))).collect();
        let consumers = (21..=20 + CONSUMERS).map(|n| scope.spawn(move || consume(run, n))).collect();
        wait(producers)?;
        run.set_stage(Stage::Drain);
        wait(cancellers)?;
        let drained = host.run.until_left(&[QUEUE], 0, PATIENCE);
        run.set_stage(Stage::Stop);
        wait(consumers)?;
        drained
    })?;
    host.run.dump(QUEUE, &lock(&course.all))?;
    host.kill()?;
    let few = size / 50;
    let figures = Figures::new(|report| {
        format!(
            "{} cancels won, {} met a lease",
            report.evidence.count(Fact::CancelsWon),
            report.evidence.count(Fact::CancelsLost)
        )
    });
    Ok(Done { require: vec![(Fact::CancelsWon, few), (Fact::CancelsLost, few)], figures })
}

fn produce(run: &Run<'_>, number: u32, course: &Course) {
    let mut client = Client::new(run, number);
    let delay = 300u64.next_multiple_of(run.system.unit_ms());
    let one_less = |n: u64| n.checked_sub(1);
    while course.to_put.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
        let before = Instant::now();
        let outcome = client.enqueue(&Message::new(run, QUEUE, When::DelayMs(delay)));
        if let Some(Ok(Answer::Enqueued { id, .. })) = outcome {
            // The delay began at some moment between request and answer.
            let due = before + before.elapsed() / 2 + Duration::from_millis(delay);
            lock(&course.coming).push_back((due, id));
            lock(&course.all).push(id);
        }
    }
}

fn cancel(run: &Run<'_>, number: u32, course: &Course, mut rng: Rng) {
    let mut client = Client::new(run, number);
    loop {
        let next = lock(&course.coming).pop_front();
        match next {
            Some((due, id)) => {
                let at = due + Duration::from_micros(rng.below(3_000)) - Duration::from_micros(1_500);
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
                client.cancel(Target::Id(id));
            }
            None if run.stage() != Stage::Work => return,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn consume(run: &Run<'_>, number: u32) {
    let mut client = Client::new(run, number);
    while run.stage() != Stage::Stop {
        let grants = client.reserve(QUEUE, 3, 20, None);
        // A short pause, so that a cancel may meet the lease.
        if !grants.is_empty() {
            std::thread::sleep(Duration::from_millis(2));
        }
        client.ack_all(grants.iter().map(proof).collect());
    }
}
