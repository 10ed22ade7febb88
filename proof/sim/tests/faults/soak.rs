//! More is asked of the server than it is allowed to take: it refuses, and keeps what it has accepted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use duewheel_judge::checker::Fact;
use duewheel_judge::history::{Answer, Proof, Refusal, When};
use duewheel_judge::rng::Rng;
use duewheel_sim::blackbox::client::{Client, Message, Run};
use duewheel_sim::blackbox::crew::QUEUES;

use crate::stage::{Crew, PATIENCE, Play, env, perform, read};

/// What consumers take in a second: the rate that the server is meant for.
const RATE: u64 = 200;
/// What producers offer in a second.
const OFFERED: u64 = 2 * RATE;
/// Messages that the server may hold: reached within seconds, and small beside what it needs anyway.
const HELD: &str = "400";
const PRODUCERS: u64 = 4;
const CONSUMERS: u64 = 2;

#[derive(Debug, Default)]
struct Counts {
    accepted: AtomicU64,
    overloaded: AtomicU64,
    acked: AtomicU64,
}

#[test]
fn double_load_is_refused_never_lost() {
    let seconds = env("DUEWHEEL_SOAK_SECONDS", 30);
    let play = Play {
        name: "double_load_is_refused_never_lost",
        count: ("DUEWHEEL_SOAK_SECONDS", seconds),
        data: None,
        more: &["--max-messages", HELD],
        slack_ms: None,
        facts: vec![(Fact::Redeliveries, 1), (Fact::NackedAndGrantedAgain, 1)],
        crew: Crew::None,
    };
    perform(play, |stage, server| {
        let counts = Counts::default();
        let begun = Instant::now();
        let end = begun + Duration::from_secs(seconds);
        let rss = Mutex::new(Vec::new());
        let stop = &AtomicU64::new(0);
        let drained = std::thread::scope(|scope| {
            let producers: Vec<_> = (0..PRODUCERS)
                .map(|n| {
                    let (work, counts) = (stage.run, &counts);
                    scope.spawn(move || produce(work, n, begun, end, counts))
                })
                .collect();
            for n in 0..CONSUMERS {
                let (work, counts) = (stage.run, &counts);
                let rng = Rng::new(n);
                scope.spawn(move || consume(work, n, rng, end, stop, counts));
            }
            while Instant::now() < end {
                rss.lock().unwrap_or_else(PoisonError::into_inner).push(resident(server.id()));
                std::thread::sleep(Duration::from_millis(100));
            }
            let ended = producers.into_iter().all(|producer| producer.join().is_ok());
            let drained = stage.run.until_left(&QUEUES, 0, PATIENCE);
            stop.store(1, Ordering::SeqCst);
            if ended { drained } else { Err("a producer panicked".into()) }
        });
        drained?;
        println!("{counts:?}");
        let of = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        let (accepted, overloaded, acked) = (of(&counts.accepted), of(&counts.overloaded), of(&counts.acked));
        // Twice the rate was offered; what is accepted is what is taken, and what fits.
        if overloaded * 2 < accepted {
            return Err(format!("{accepted} were accepted and only {overloaded} refused"));
        }
        if acked != accepted {
            return Err(format!("{accepted} were accepted, and {acked} acked"));
        }
        flat(&rss.into_inner().unwrap_or_else(PoisonError::into_inner))?;
        Ok(server)
    });
}

/// One after the other, in time, whatever the answer; what is refused is gone.
fn produce(work: &Run<'_>, number: u64, begun: Instant, end: Instant, counts: &Counts) {
    let mut client = Client::new(work, u32::try_from(number).unwrap_or(0) + 1);
    let between =
        Duration::from_secs(1) * u32::try_from(PRODUCERS).unwrap_or(1) / u32::try_from(OFFERED).unwrap_or(1);
    let mut next = begun;
    let mut turn = number;
    while Instant::now() < end {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        next += between;
        if !client.connect() {
            continue;
        }
        turn += 1;
        let queue = QUEUES[usize::try_from(turn % 2).unwrap_or(0)];
        match client.enqueue(&Message::new(work, queue, When::DelayMs(turn * 37 % 500))) {
            Some(Ok(Answer::Enqueued { .. })) => _ = counts.accepted.fetch_add(1, Ordering::SeqCst),
            Some(Err(Refusal::Other(code))) if code == "overloaded" => {
                counts.overloaded.fetch_add(1, Ordering::SeqCst);
            }
            other => work.complain(format!("an enqueue was answered {other:?}")),
        }
    }
}

/// At the rated speed while there is load, and as fast as possible afterwards. One attempt in fifty is given back.
fn consume(work: &Run<'_>, number: u64, mut rng: Rng, end: Instant, stop: &AtomicU64, counts: &Counts) {
    const AT_ONCE: u64 = 10;
    let mut client = Client::new(work, u32::try_from(PRODUCERS + number).unwrap_or(0) + 1);
    let between = Duration::from_millis(1_000 * CONSUMERS * AT_ONCE / RATE);
    let mut next = Instant::now();
    let mut turn = number;
    while stop.load(Ordering::SeqCst) == 0 {
        if Instant::now() < end {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            next += between;
        }
        if !client.connect() {
            continue;
        }
        turn += 1;
        let queue = QUEUES[usize::try_from(turn % 2).unwrap_or(0)];
        let wait = if Instant::now() < end { 0 } else { 50 };
        let mut acks = Vec::new();
        for grant in client.reserve(queue, AT_ONCE, wait, Some(5_000)) {
            let proof = Proof { id: grant.id, token: grant.token };
            if rng.percent(2) {
                client.nack(proof, Some(50));
            } else {
                acks.push(proof);
            }
        }
        if !acks.is_empty() {
            let done = client.ack_all(acks).into_iter().filter(|ack| matches!(ack, Some(Ok(_)))).count();
            counts.acked.fetch_add(done as u64, Ordering::SeqCst);
        }
    }
}

/// Resident memory, in KiB.
fn resident(process: u32) -> u64 {
    let status = read(format!("/proc/{process}/status").as_ref());
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// In the second half it is at most what it was in the first, a tenth and 8 MiB more.
fn flat(samples: &[u64]) -> Result<(), String> {
    let (first, second) = samples.split_at(samples.len() / 2);
    let most = |half: &[u64]| half.iter().copied().max().unwrap_or(0);
    let (before, after) = (most(first), most(second));
    println!("resident memory: at most {before} KiB in the first half, {after} KiB in the second");
    if samples.len() < 20 || before == 0 || after > before + before / 10 + 8 * 1024 {
        return Err(format!("memory grows: {before} KiB, then {after} KiB ({} samples)", samples.len()));
    }
    Ok(())
}

#[test]
fn growing_memory_is_noticed() {
    let is_flat = |samples: &[u64]| flat(samples).is_ok();
    assert!(is_flat(&[50_000; 40]));
    assert!(!is_flat(&[50_000; 10]), "too few samples say nothing");
    assert!(!is_flat(&(0..40).map(|n| 50_000 + n * 2_000).collect::<Vec<u64>>()));
}
