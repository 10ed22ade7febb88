//! A burst behind a rate: a million messages that are due in the same second, of a queue with a rate, beside a calm queue.
//!
//! `bench/run burst [--count 1000000] [--rate 50000] [--rounds 3]`; a round takes about forty seconds. In each round the
//! calm queue is measured alone, then while the burst is worked off. Three targets, and the program exits with 1 if one
//! is missed: the messages of the burst come in their order; in each span of five seconds their number is within 2 % of
//! the rate; and the p99 of the calm queue's lateness, the median of the rounds, is at most twice that alone.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use clap::Parser;
use duewheel::core::engine::{Enqueue, Op, Past, When};
use duewheel::core::name::QueueName;
use duewheel::core::policy::{GrantLimits, GrantRate, QueueSettings};
use duewheel::core::time::WallMs;
use duewheel::{Client, Duewheel};
use duewheel_bench::submit::{ack, put_all, take};
use duewheel_judge::rng::scatter;

/// The span in which the rate is counted.
const SPAN: Duration = Duration::from_secs(5);
/// How long the calm queue is measured, alone and beside the burst, in ms.
const CALM_MS: u64 = 8_000;
/// Groups of acks that the burst's consumer does not wait for.
const ACKS_IN_FLIGHT: usize = 64;
/// Longer than a round.
const LEASE_MS: u64 = 600_000;

#[derive(Clone, Parser)]
struct Args {
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Messages of the burst.
    #[arg(long, default_value_t = 1_000_000)]
    count: u64,
    /// The rate of their queue.
    #[arg(long, default_value_t = 50_000)]
    rate: u32,
    /// Messages a second of the calm queue.
    #[arg(long, default_value_t = 500)]
    calm: u64,
}

struct Round {
    /// The largest difference from the rate in a span, as a part of it.
    off: f64,
    out_of_order: u64,
    alone_us: f64,
    beside_us: f64,
}

pub(crate) fn main() {
    let args = crate::arguments::<Args>();
    duewheel_bench::machine::without_huge_pages();
    println!("{}", duewheel_bench::machine::describe());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let mut rounds = Vec::new();
    for n in 1..=args.rounds {
        let folder = tempfile::tempdir().expect("a folder");
        let round = runtime.block_on(measure(&args, folder.path()));
        println!(
            "round {n}: rate off by {:.2} % at most, {} out of order; calm queue: p99 {:.0} us alone, {:.0} us beside: {:.2}",
            round.off * 100.0,
            round.out_of_order,
            round.alone_us,
            round.beside_us,
            round.beside_us / round.alone_us
        );
        rounds.push(round);
    }
    let mut ratios: Vec<f64> = rounds.iter().map(|round| round.beside_us / round.alone_us).collect();
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    println!("the calm queue beside the burst: {median:.2} times its p99 alone (median)");
    if median > 2.0 || rounds.iter().any(|round| round.off > 0.02 || round.out_of_order > 0) {
        println!("a target is missed");
        std::process::exit(1);
    }
}

fn name(name: &str) -> QueueName {
    QueueName::new(name).expect("a good name")
}

async fn measure(args: &Args, dir: &Path) -> Round {
    let wheel = Duewheel::builder().data(dir).open().await.expect("opened");
    let client = wheel.client();
    let rate = GrantRate::per_second(args.rate);
    let settings = QueueSettings {
        limits: GrantLimits { rate: Some(rate), ..GrantLimits::default() },
        ..QueueSettings::default()
    };
    wheel.queue("burst").configure(settings).await.expect("configured");
    let due = client.now().wall.0 + 60_000;
    put_all(client, args.count, |n| {
        let due_at = WallMs(due + scatter(n) % 1_000);
        let e = Enqueue {
            when: When::At { due_at, past: Past::Fire },
            ..Enqueue::new(name("burst"), vec![b'.'; 100])
        };
        Op::Enqueue(Box::new(e))
    })
    .await;
    let left = due.saturating_sub(client.now().wall.0);
    assert!(left > CALM_MS + 4_000, "the burst was put too slowly: {left} ms are left");
    let alone_us = calm(args, client).await;
    tokio::time::sleep(Duration::from_millis(due.saturating_sub(client.now().wall.0))).await;
    let drained = tokio::spawn({
        let (client, count) = (client.clone(), args.count);
        async move { drain(&client, count).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let beside_us = calm(args, client).await;
    let (times, out_of_order) = drained.await.expect("no panic");
    wheel.shutdown(Duration::from_secs(60)).await.expect("closed");
    Round { off: off(args.rate, &times), out_of_order, alone_us, beside_us }
}

/// Takes the whole burst; when each group of grants came and how many it had, and how many were out of order.
async fn drain(client: &Client, count: u64) -> (Vec<(Instant, u64)>, u64) {
    let (mut times, mut taken, mut out_of_order) = (Vec::new(), 0, 0);
    let mut last = None;
    let mut acks: VecDeque<duewheel_shard::inbox::Pending> = VecDeque::new();
    while taken < count {
        let grants = take(client, name("burst"), 1_000, 1_000, LEASE_MS).await;
        let now = Instant::now();
        for grant in &grants {
            let at = Some((grant.due_at, grant.message.id));
            out_of_order += u64::from(at < last);
            last = at;
        }
        times.push((now, grants.len() as u64));
        taken += grants.len() as u64;
        if !grants.is_empty() {
            acks.push_back(ack(client, &grants));
        }
        // The next messages are asked for while acks are synced.
        if acks.len() > ACKS_IN_FLIGHT
            && let Some(oldest) = acks.pop_front()
        {
            oldest.await;
        }
    }
    for acks in acks {
        acks.await;
    }
    (times, out_of_order)
}

/// The largest difference from the rate in any span that begins with a group of grants and ends before the last one.
fn off(rate: u32, times: &[(Instant, u64)]) -> f64 {
    let expected = f64::from(rate) * SPAN.as_secs_f64();
    let end = times.last().expect("grants").0;
    let (mut most, mut count, mut to) = (0f64, 0u64, 0);
    for (begin, groups) in times {
        if *begin + SPAN > end {
            break;
        }
        while times[to].0 < *begin + SPAN {
            count += times[to].1;
            to += 1;
        }
        most = most.max((count as f64 - expected).abs() / expected);
        count -= groups;
    }
    most
}

/// The p99 of the time from due to delivery of a queue with a few messages a second, in microseconds.
async fn calm(args: &Args, client: &Client) -> f64 {
    let total = args.calm * CALM_MS / 1_000;
    let start = client.now().wall.0 + 1_000;
    put_all(client, total, |n| {
        let due_at = WallMs(start + scatter(n) % CALM_MS);
        let when = When::At { due_at, past: Past::Fire };
        Op::Enqueue(Box::new(Enqueue { when, ..Enqueue::new(name("calm"), vec![b'.'; 100]) }))
    })
    .await;
    let mut late: Vec<u128> = Vec::new();
    while (late.len() as u64) < total {
        let grants = take(client, name("calm"), 100, 1_000, LEASE_MS).await;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        late.extend(grants.iter().map(|g| now.as_micros().saturating_sub(u128::from(g.due_at.0) * 1_000)));
        if !grants.is_empty() {
            ack(client, &grants).await;
        }
    }
    late.sort_unstable();
    late[(late.len() - 1) * 99 / 100] as f64
}
