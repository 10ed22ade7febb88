//! A queue without consumers must not slow other queues: its messages come due by the million while no consumer
//! reserves from it, and the lateness of the others stays. Then its consumer returns.
//!
//! `bench/run idle-queue [--messages 2000000] [--seconds 20]`. The same load of the other queues runs alone first.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Parser;
use duewheel::core::engine::{Enqueue, EnqueueRefusal, Grant, Op, Past, Reply, Reserved, When};
use duewheel::core::name::QueueName;
use duewheel::core::record::ClockPair;
use duewheel::core::store::{Load, Recovered, Sequence, Store, StoreRequest, Which};
use duewheel::core::time::WallMs;
use duewheel::{CallError, Client, Duewheel};
use duewheel_bench::process::resident_mib;
use duewheel_bench::submit::submit_all;
use duewheel_judge::rng::scatter;
use duewheel_shard::client::Reserve;
use duewheel_store_log::LogStore;

#[derive(Clone, Parser)]
struct Args {
    /// Messages of the queue that nobody serves.
    #[arg(long, default_value_t = 2_000_000)]
    messages: u64,
    /// How long messages come due.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Messages of the other queues that are due each second.
    #[arg(long, default_value_t = 5_000)]
    rate: u64,
    /// The other queues.
    #[arg(long, default_value_t = 50)]
    queues: u64,
    /// Where the data lies; a temporary folder by default.
    #[arg(long)]
    dir: Option<PathBuf>,
}

pub(crate) fn main() {
    let args = crate::arguments::<Args>();
    println!("{}", duewheel_bench::machine::describe());
    let temporary = tempfile::tempdir().expect("a folder");
    let dir = args.dir.clone().unwrap_or_else(|| temporary.path().to_owned());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    println!("{} other queues, {} due each second for {} s", args.queues, args.rate, args.seconds);
    for (what, messages) in [("alone", 0), ("beside", args.messages)] {
        let dir = dir.join(what);
        runtime.block_on(round(&args, what, messages, &dir));
        if messages > 0 {
            skipping(&dir);
            let _ = std::fs::remove_dir_all(&dir);
        }
    }
}

fn name(text: &str) -> QueueName {
    QueueName::new(text).expect("a name")
}

async fn round(args: &Args, what: &str, messages: u64, dir: &std::path::Path) {
    let wheel = Duewheel::open(dir).await.expect("opened");
    let client = wheel.client();
    let others: Vec<QueueName> = (0..args.queues).map(|n| name(&format!("served-{n}"))).collect();
    let total = args.rate * args.seconds;
    // All messages are put before the first is due.
    let lead = 4_000 + (messages + total) / 100;
    let start = client.now().wall.0 + lead;
    let window = args.seconds * 1_000;
    let put = |n: u64| {
        let (queue, due) = if n < messages {
            (name("idle"), start + scatter(n) % window)
        } else {
            let queue = usize::try_from(scatter(n) % args.queues).expect("few");
            (others[queue].clone(), start + scatter(n ^ 1) % window)
        };
        let when = When::At { due_at: WallMs(due), past: Past::Refuse };
        Op::Enqueue(Box::new(Enqueue { when, ..Enqueue::new(queue, vec![b'.'; 100]) }))
    };
    put_all(client, messages + total, put).await;
    let waits = start.saturating_sub(client.now().wall.0);
    assert!(waits > 0, "the messages were put before they were due");

    let lateness = Arc::new(Mutex::new(Vec::new()));
    let consumers: Vec<_> = (0..4)
        .map(|_| {
            let (client, others, lateness) = (client.clone(), others.clone(), lateness.clone());
            tokio::spawn(async move {
                loop {
                    let queues = others.clone();
                    let demand = Reserve {
                        max: 100,
                        wait_ms: 3_000 + waits,
                        queues,
                        ..Reserve::new(others[0].clone())
                    };
                    let grants = granted(client.reserve(demand).await);
                    if grants.is_empty() {
                        return;
                    }
                    lateness.lock().expect("whole").extend(grants.iter().map(|g| g.lateness_ms));
                    ack(&client, &grants).await;
                }
            })
        })
        .collect();
    for consumer in consumers {
        consumer.await.expect("no panic");
    }
    let mut lateness = std::mem::take(&mut *lateness.lock().expect("whole"));
    lateness.sort_unstable();
    assert_eq!(lateness.len() as u64, total, "each was granted once");
    let at = |per_mille: usize| lateness[(lateness.len() - 1) * per_mille / 1_000];
    println!(
        "{what:7} {messages:>9} idle: lateness p50 {} ms, p99 {} ms, p99.9 {} ms, max {} ms; resident {} MiB",
        at(500),
        at(990),
        at(999),
        at(1_000),
        resident_mib()
    );
    if messages > 0 {
        drain(client, messages).await;
        // The same messages again, due in an hour, for the measurement of single pages.
        let later = |n: u64| match put(n) {
            Op::Enqueue(mut e) => {
                e.when = When::After(3_600_000 + scatter(n) % window);
                Op::Enqueue(e)
            }
            other => other,
        };
        put_all(client, messages + total, later).await;
    }
    wheel.shutdown(Duration::from_secs(60)).await.expect("closed");
}

/// The consumer comes back.
async fn drain(client: &Client, messages: u64) {
    let (began, mut drained, mut last) = (Instant::now(), 0u64, 0);
    let mut acks: Option<duewheel_shard::inbox::Pending> = None;
    while drained < messages {
        let demand = Reserve { max: 5_000, wait_ms: 5_000, ..Reserve::new(name("idle")) };
        let grants = granted(client.reserve(demand).await);
        assert!(!grants.is_empty(), "{drained} of {messages} came");
        for grant in &grants {
            assert!(grant.due_at.0 >= last, "in due order");
            last = grant.due_at.0;
        }
        if let Some(acks) = acks.take() {
            acks.await;
        }
        drained += grants.len() as u64;
        let ops = grants
            .iter()
            .map(|g| Op::Ack { id: g.message.id, proof: g.token.into(), result: None })
            .collect();
        acks = Some(client.submit(ops).expect("submitted"));
    }
    if let Some(acks) = acks {
        acks.await;
    }
    let rate = messages as f64 / began.elapsed().as_secs_f64();
    println!("backlog drained in due order at {rate:.0} /s; resident {} MiB", resident_mib());
}

/// The cost of a page of the other queues when the idle one is read and discarded, and when it is left out.
fn skipping(dir: &std::path::Path) {
    let mut store = LogStore::open(dir, Default::default(), Arc::new(|| {})).expect("opened");
    let Recovered { .. } = store.recovered();
    for (what, which) in [
        ("one cursor over all queues", Which::All),
        ("leaving the idle one out", Which::AllBut([name("idle")].into())),
    ] {
        let (began, mut found, mut after) = (Instant::now(), 0, None);
        while found < 10_000 {
            let load = Load {
                ticket: 1,
                sequence: Sequence::After,
                which: which.clone(),
                after,
                until: u64::MAX,
                rows: 10_000,
                bytes: 1 << 24,
            };
            store.ask(StoreRequest::Load(load)).expect("asked");
            let page = loop {
                if let Some(page) = store.arrived().and_then(|arrival| arrival.expect("read").page()) {
                    break page;
                }
                std::thread::yield_now();
            };
            found += page.rows.iter().filter(|r| r.message.queue.as_str() != "idle").count();
            after = page.upto;
            if page.more == duewheel::core::store::More::No {
                break;
            }
        }
        println!("{found} rows of other queues, {what}: {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
    }
    store.close(ClockPair::default()).expect("closed");
}

async fn put_all(client: &Client, count: u64, make: impl Fn(u64) -> Op) {
    submit_all(client, count, make, |answer| match answer {
        Ok(Reply::Enqueue(Ok(_))) => true,
        Ok(Reply::Enqueue(Err(EnqueueRefusal::Busy))) => false,
        other => panic!("{other:?}"),
    })
    .await;
}

fn granted(reserved: Result<Reserved, CallError>) -> Vec<Grant> {
    match reserved.expect("reserved") {
        Reserved::Grants(grants) => grants,
        other => panic!("{other:?}"),
    }
}

async fn ack(client: &Client, grants: &[Grant]) {
    let ops =
        grants.iter().map(|g| Op::Ack { id: g.message.id, proof: g.token.into(), result: None }).collect();
    for answer in client.submit(ops).expect("submitted").await {
        assert!(matches!(answer, Ok(Reply::Settle(Ok(_)))), "{answer:?}");
    }
}
