//! The effect of neighbours: ten busy queues alone, then beside
//!
//! * `many`: 25,000 queues with one ready message each, and no consumer;
//! * `idle`: a queue with a million ready messages, and no consumer;
//! * `limits`: four tenants, each at one limit of its quota (messages, bytes, leases, enqueues a second), that keep
//!   asking;
//! * `leases`: a consumer that takes leases and never settles.
//!
//! `bench/run neighbours [--rounds 5] [--only CASE]`; five rounds take about four minutes. In each round every case has
//! a new folder: the neighbour is set up; the ten queues have more ready messages than memory holds; once the process
//! rests, each is drained by one consumer; then messages come due in them, and the time until their delivery is
//! recorded. Each figure is compared with that of the ten alone in the same round, and the medians of these ratios are
//! the result. The target is that rate and p99 are within a factor of two of alone; the program exits with 1 if they
//! are not.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use clap::{Parser, ValueEnum};
use duewheel::core::engine::{Enqueue, Op, Past, Quota, Resource, When};
use duewheel::core::name::QueueName;
use duewheel::core::time::WallMs;
use duewheel::{Client, Duewheel};
use duewheel_bench::process::{processor_time, resident_mib, written_bytes};
use duewheel_bench::submit::{ack, put_all, take};
use duewheel_judge::rng::scatter;

/// The busy queues.
const BUSY: u64 = 10;
/// The largest acceptable slowdown.
const AIM: f64 = 2.0;
/// Messages or leases that each tenant of `limits` may have, and enqueues a second.
const TENANT_HAS: u64 = 10_000;
/// Operations of one submission of such a tenant.
const ATTEMPTS: u64 = 100;
/// The process rests when it uses less processor time than this between two checks, and writes less than the bytes
/// below.
const REST: Duration = Duration::from_millis(15);
const REST_BYTES: u64 = 64 * 1024;
const LOOK: Duration = Duration::from_millis(200);

#[derive(Clone, Parser)]
struct Args {
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Beside this neighbour only.
    #[arg(long)]
    only: Option<Case>,
    /// Messages that the ten have ready when they are drained.
    #[arg(long, default_value_t = 300_000)]
    drained: u64,
    /// Messages that come due in the ten each second, for the lateness.
    #[arg(long, default_value_t = 2_000)]
    rate: u64,
    /// How long they do.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Queues with one ready message each.
    #[arg(long, default_value_t = 25_000)]
    queues: u64,
    /// Messages of the queue that nobody serves.
    #[arg(long, default_value_t = 1_000_000)]
    idle: u64,
    /// Messages for the consumer that never settles.
    #[arg(long, default_value_t = 600_000)]
    leases: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Case {
    Alone,
    Many,
    Idle,
    Limits,
    Leases,
}

#[derive(Clone, Copy, Debug)]
struct Figures {
    drained_per_s: f64,
    p99_us: f64,
}

pub(crate) fn main() {
    let args = crate::arguments::<Args>();
    duewheel_bench::machine::without_huge_pages();
    println!("{}", duewheel_bench::machine::describe());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let mut cases = vec![Case::Alone, Case::Many, Case::Idle, Case::Limits, Case::Leases];
    cases.retain(|case| *case == Case::Alone || args.only.is_none_or(|only| only == *case));
    let mut figures: Vec<Vec<Figures>> = vec![Vec::new(); cases.len()];
    for round in 1..=args.rounds {
        for (case, figures) in cases.iter().zip(&mut figures) {
            let folder = tempfile::tempdir().expect("a folder");
            let found = runtime.block_on(measure(&args, *case, folder.path()));
            println!(
                "round {round} {:7} {:>9.0} /s, p99 {:>9.0} us, resident {} MiB",
                name_of(*case),
                found.drained_per_s,
                found.p99_us,
                resident_mib()
            );
            figures.push(found);
        }
    }
    if !report(&cases, &figures) {
        println!("the aim is missed: within {AIM} times of alone");
        std::process::exit(1);
    }
}

/// Prints the medians; returns whether the target is met.
fn report(cases: &[Case], figures: &[Vec<Figures>]) -> bool {
    let alone = &figures[0];
    println!(
        "\n| ten busy queues | drained /s | of alone | p99 of lateness, ms | times alone |\n|---|---|---|---|---|"
    );
    let mut met = true;
    for (case, figures) in cases.iter().zip(figures) {
        let rounds = || figures.iter().zip(alone);
        let rate = median(rounds().map(|(beside, alone)| beside.drained_per_s / alone.drained_per_s));
        let late = median(rounds().map(|(beside, alone)| beside.p99_us / alone.p99_us));
        met &= rate * AIM >= 1.0 && late <= AIM;
        let per_s = median(figures.iter().map(|f| f.drained_per_s));
        let ms = median(figures.iter().map(|f| f.p99_us)) / 1e3;
        println!("| {} | {per_s:.0} | {rate:.2} | {ms:.2} | {late:.2} |", name_of(*case));
    }
    met
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn name_of(case: Case) -> String {
    case.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn name(text: &str) -> QueueName {
    QueueName::new(text).expect("a name")
}

fn busy(n: u64) -> QueueName {
    name(&format!("busy-{}", n % BUSY))
}

fn put(queue: QueueName, when: When) -> Op {
    Op::Enqueue(Box::new(Enqueue { when, ..Enqueue::new(queue, vec![b'.'; 100]) }))
}

async fn measure(args: &Args, case: Case, dir: &Path) -> Figures {
    let quotas = if case == Case::Limits { quotas() } else { Vec::new() };
    let wheel = Duewheel::builder().data(dir).quotas(quotas).open().await.expect("opened");
    let client = wheel.client();
    set_up(args, case, client).await;
    put_all(client, args.drained, |n| put(busy(n), When::After(0))).await;
    // The store's background work after the puts is not measured: the neighbour is a state, not a load.
    rest().await;
    let neighbours = go_on(case, client);
    let drained_per_s = drain(args, client).await;
    let p99_us = lateness(args, client).await;
    for neighbour in neighbours {
        neighbour.abort();
        let _ = neighbour.await;
    }
    for (used, resource) in wheel.quotas().await.expect("answered").iter().zip(LIMITED) {
        let refused = used.refused[resource as usize];
        assert!(refused > 0, "{} was never at its limit", used.quota.prefix);
        println!("        {refused} refused: {resource}");
    }
    wheel.shutdown(Duration::from_secs(60)).await.expect("closed");
    Figures { drained_per_s, p99_us }
}

/// Returns when the process has done next to nothing for a few looks, or after a minute.
async fn rest() {
    let began = Instant::now();
    let mut quiet = 0;
    while quiet < 3 && began.elapsed() < Duration::from_secs(60) {
        let (time, bytes) = (processor_time(), written_bytes());
        tokio::time::sleep(LOOK).await;
        let rests = processor_time() - time < REST && written_bytes() - bytes < REST_BYTES;
        quiet = if rests { quiet + 1 } else { 0 };
    }
}

/// The resource that each tenant of `limits` has a limit of, by prefix.
const LIMITED: [Resource; 4] = [Resource::Bytes, Resource::Enqueues, Resource::Leases, Resource::Messages];

/// One tenant for each limit.
fn quotas() -> Vec<Quota> {
    let of = |prefix: &str| Quota { prefix: prefix.into(), ..Quota::default() };
    vec![
        Quota { messages: Some(TENANT_HAS), ..of("messages.") },
        Quota { bytes: Some(TENANT_HAS * 100), ..of("bytes.") },
        Quota { leases: Some(TENANT_HAS), ..of("leases.") },
        Quota { enqueues_per_second: Some(TENANT_HAS / 10), ..of("enqueues.") },
    ]
}

/// Puts the neighbour next to the ten.
async fn set_up(args: &Args, case: Case, client: &Client) {
    match case {
        Case::Alone => {}
        Case::Many => {
            put_all(client, args.queues, |n| put(name(&format!("one-{n}")), When::After(0))).await;
        }
        Case::Idle => {
            put_all(client, args.idle, |_| put(name("idle"), When::After(0))).await;
        }
        Case::Limits => {
            for queue in ["messages.q", "bytes.q"] {
                put_all(client, TENANT_HAS, |_| put(name(queue), When::After(0))).await;
            }
            put_all(client, 2 * TENANT_HAS, |_| put(name("leases.q"), When::After(0))).await;
            take_all(client, "leases.q").await;
        }
        Case::Leases => {
            put_all(client, args.leases, |_| put(name("hog"), When::After(0))).await;
            take_all(client, "hog").await;
        }
    }
}

/// Takes leases until nothing comes.
async fn take_all(client: &Client, queue: &str) {
    let mut taken = 0;
    loop {
        let grants = take(client, name(queue), 10_000, 0, 3_600_000).await.len();
        taken += grants;
        if grants == 0 {
            break;
        }
    }
    println!("        {taken} leases are taken and never settled");
}

/// The activity of the neighbours while the ten are measured.
fn go_on(case: Case, client: &Client) -> Vec<tokio::task::JoinHandle<()>> {
    let keep_taking = |queue: &'static str, wait_ms: u64| {
        let client = client.clone();
        tokio::spawn(async move {
            loop {
                take(&client, name(queue), 10_000, wait_ms, 3_600_000).await;
            }
        })
    };
    match case {
        Case::Alone | Case::Many | Case::Idle => Vec::new(),
        Case::Leases => vec![keep_taking("hog", 500)],
        Case::Limits => {
            let mut tasks = vec![keep_taking("leases.q", 0)];
            for queue in ["messages.q", "bytes.q", "enqueues.q"] {
                let client = client.clone();
                tasks.push(tokio::spawn(async move {
                    loop {
                        let ops = (0..ATTEMPTS).map(|_| put(name(queue), When::After(0))).collect();
                        client.submit(ops).expect("submitted").await;
                    }
                }));
            }
            tasks
        }
    }
}

/// Drains the ten with a consumer each; messages a second.
async fn drain(args: &Args, client: &Client) -> f64 {
    let (began, patience) = (Instant::now(), Duration::from_secs(30));
    let drained = Arc::new(AtomicU64::new(0));
    let all = args.drained;
    let consumers: Vec<_> = (0..BUSY)
        .map(|n| {
            let (client, drained) = (client.clone(), drained.clone());
            tokio::spawn(async move {
                let mut acks: Option<duewheel_shard::inbox::Pending> = None;
                while drained.load(Ordering::Relaxed) < all && began.elapsed() < patience {
                    let grants = take(&client, busy(n), 1_000, 100, 600_000).await;
                    drained.fetch_add(grants.len() as u64, Ordering::Relaxed);
                    if let Some(acks) = acks.take() {
                        acks.await;
                    }
                    acks = (!grants.is_empty()).then(|| ack(&client, &grants));
                }
                if let Some(acks) = acks {
                    acks.await;
                }
            })
        })
        .collect();
    for consumer in consumers {
        consumer.await.expect("no panic");
    }
    // Consumers that finish early wait for the last one, for a tenth of a second at most.
    drained.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()
}

/// The 99th percentile of the time from due to delivery, in microseconds.
async fn lateness(args: &Args, client: &Client) -> f64 {
    let total = args.rate * args.seconds;
    let start = client.now().wall.0 + 1_500;
    let span = args.seconds * 1_000;
    put_all(client, total, |n| {
        let due_at = WallMs(start + scatter(n) % span);
        put(busy(n), When::At { due_at, past: Past::Fire })
    })
    .await;
    let end = Instant::now() + Duration::from_millis(1_500 + span + 5_000);
    let seen = Arc::new(AtomicU64::new(0));
    let consumers: Vec<_> = (0..BUSY)
        .map(|n| {
            let (client, seen) = (client.clone(), seen.clone());
            tokio::spawn(async move {
                let mut late = Vec::new();
                let mut acks: Option<duewheel_shard::inbox::Pending> = None;
                while seen.load(Ordering::Relaxed) < total && Instant::now() < end {
                    let grants = take(&client, busy(n), 100, 100, 600_000).await;
                    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
                    late.extend(
                        grants.iter().map(|g| now.as_micros().saturating_sub(u128::from(g.due_at.0) * 1_000)),
                    );
                    seen.fetch_add(grants.len() as u64, Ordering::Relaxed);
                    if let Some(acks) = acks.take() {
                        acks.await;
                    }
                    acks = (!grants.is_empty()).then(|| ack(&client, &grants));
                }
                late
            })
        })
        .collect();
    let mut late = Vec::new();
    for consumer in consumers {
        late.extend(consumer.await.expect("no panic"));
    }
    // A message that has not arrived is at least as late as the time that was waited.
    let missing = usize::try_from(total).expect("few").saturating_sub(late.len());
    late.extend(std::iter::repeat_n(5_000_000, missing));
    late.sort_unstable();
    late[(late.len() - 1) * 99 / 100] as f64
}
