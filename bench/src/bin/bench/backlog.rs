//! A backlog far larger than memory: how fast it grows, what it costs, and how soon it is served after a restart.
//!
//! `bench/run backlog [--messages 10000000] [--dir FOLDER]`. The parts run in processes of their own, so that one can
//! be killed and the memory of each is measured separately; `--only PART` runs one part on an existing folder.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use clap::{Parser, ValueEnum};
use duewheel::core::engine::{DedupeId, Enqueue, Op, Reply, Target, When};
use duewheel::core::id::MessageId;
use duewheel::core::name::{Key, QueueName};
use duewheel::{Client, Duewheel, VirtualClock};
use duewheel_bench::process::resident_mib;
use duewheel_bench::submit::submit_all;
use duewheel_judge::rng::scatter;
use duewheel_shard::client::Reserve;

const DAYS_30: u64 = 30 * 24 * 3_600_000;
const BODY: usize = 100;

#[derive(Clone, Parser)]
struct Args {
    /// How many messages to put.
    #[arg(long, default_value_t = 10_000_000)]
    messages: u64,
    /// The folder of the data; a temporary folder by default.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The number of cancels by key, and as many by id.
    #[arg(long)]
    cancels: Option<u64>,
    /// How many to bring due at once and drain.
    #[arg(long)]
    drain: Option<u64>,
    /// Queues over which the messages are spread.
    #[arg(long, default_value_t = 1)]
    queues: u64,
    /// One part alone, on a folder that is there.
    #[arg(long)]
    only: Option<BacklogPhase>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BacklogPhase {
    /// Puts the messages.
    Load,
    /// Cancels by random key and by random id, then waits to be killed.
    Cancel,
    /// Opens, and leases one message that is due.
    First,
    /// Brings a part of the messages due at once, and drains them.
    Drain,
}

impl Args {
    fn cancels(&self) -> u64 {
        self.cancels.unwrap_or(self.messages / 20)
    }
    fn drain(&self) -> u64 {
        self.drain.unwrap_or(self.messages / 10)
    }
}

pub(crate) fn main() {
    let args = crate::arguments::<Args>();
    match args.only {
        None => all(&args),
        Some(part) => {
            let dir = args.dir.clone().expect("--only needs --dir");
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(run(part, &args, &dir));
        }
    }
}

fn all(args: &Args) {
    println!("{}", duewheel_bench::machine::describe());
    let temporary = tempfile::tempdir().expect("a folder");
    let dir = args.dir.clone().unwrap_or_else(|| temporary.path().join("data"));
    println!(
        "{} messages of {BODY} bytes, due within 30 days, half with a key, {} queue(s), fsync",
        args.messages, args.queues
    );
    finish(start(args, &dir, BacklogPhase::Load));
    println!("on disk: {:.1} bytes a message", bytes_in(&dir) as f64 / args.messages as f64);
    // Killed while all its changes are only in the journal.
    let mut cancels = start(args, &dir, BacklogPhase::Cancel);
    echo_until(&mut cancels, "READY");
    cancels.kill().expect("killed");
    cancels.wait().expect("gone");
    finish(start(args, &dir, BacklogPhase::First));
    finish(start(args, &dir, BacklogPhase::Drain));
}

fn start(args: &Args, dir: &Path, part: BacklogPhase) -> Child {
    let part = part.to_possible_value().expect("a name").get_name().to_owned();
    Command::new(std::env::current_exe().expect("a name"))
        .arg("backlog")
        .args(["--only", &part, "--messages", &args.messages.to_string()])
        .args(["--cancels", &args.cancels().to_string(), "--drain", &args.drain().to_string()])
        .args(["--queues", &args.queues.to_string(), "--dir"])
        .arg(dir)
        .stdout(Stdio::piped())
        .spawn()
        .expect("started")
}

fn echo_until(child: &mut Child, end: &str) {
    let out = child.stdout.take().expect("piped");
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        if line == end {
            return;
        }
        println!("{line}");
    }
}

fn finish(mut child: Child) {
    echo_until(&mut child, "");
    assert!(child.wait().expect("ended").success(), "a part failed");
}

async fn run(part: BacklogPhase, args: &Args, dir: &Path) {
    let began = Instant::now();
    match part {
        BacklogPhase::Load => load(args, dir).await,
        BacklogPhase::Cancel => cancel(args, dir).await,
        BacklogPhase::First => first(dir, began).await,
        BacklogPhase::Drain => drain(args, dir).await,
    }
}

/// Names, bodies and due times of messages, from their numbers.
fn message(args: &Args, names: &[QueueName], n: u64) -> Op {
    let mut body = [b'.'; BODY];
    body[..8].copy_from_slice(&n.to_le_bytes());
    let (name, key) = place(args, names, n);
    let when = When::After(scatter(n) % DAYS_30);
    Op::Enqueue(Box::new(Enqueue { key, when, ..Enqueue::new(name, body.to_vec()) }))
}

fn place(args: &Args, names: &[QueueName], n: u64) -> (QueueName, Option<Key>) {
    let name = names[usize::try_from(n % args.queues).expect("few")].clone();
    (name, n.is_multiple_of(2).then(|| Key::new(&format!("order-{n:08}")).expect("a key")))
}

fn names(args: &Args) -> Vec<QueueName> {
    (0..args.queues).map(|q| QueueName::new(&format!("queue-{q}")).expect("a name")).collect()
}

async fn load(args: &Args, dir: &Path) {
    let wheel = Duewheel::open(dir).await.expect("opened");
    let names = names(args);
    let tenth = (args.messages / 10).max(1);
    let (began, mut since) = (Instant::now(), Instant::now());
    let mut accepted = 0u64;
    let make = |n| message(args, &names, n);
    let busy = submit_all(wheel.client(), args.messages, make, |answer| {
        match answer {
            Ok(Reply::Enqueue(Ok(_))) => {}
            Ok(Reply::Enqueue(Err(duewheel::core::engine::EnqueueRefusal::Busy))) => return false,
            other => panic!("{other:?}"),
        }
        accepted += 1;
        if accepted.is_multiple_of(tenth) {
            let rate = tenth as f64 / since.elapsed().as_secs_f64();
            println!(
                "enqueue, {:>3} % {rate:>12.0} /s   resident {:>5} MiB",
                accepted / tenth * 10,
                resident_mib()
            );
            since = Instant::now();
        }
        true
    })
    .await;
    let rate = args.messages as f64 / began.elapsed().as_secs_f64();
    println!("enqueue, all   {rate:>12.0} /s   refused and retried {busy}");
    wheel.shutdown(Duration::from_secs(60)).await.expect("closed");
}

async fn cancel(args: &Args, dir: &Path) {
    let began = Instant::now();
    let wheel = Duewheel::open(dir).await.expect("opened");
    println!("open           {:>12.3} s", began.elapsed().as_secs_f64());
    let names = names(args);
    settle(wheel.client()).await;
    for (what, salt) in [("key", 1u64 << 40), ("id", 2 << 40)] {
        let (began, mut found) = (Instant::now(), 0u64);
        let make = |i| {
            let n = scatter(salt + i) % args.messages;
            let target = if what == "key" {
                let (name, key) = place(args, &names, n & !1);
                Target::Key(name, key.expect("even ones have a key"))
            } else {
                Target::Id(MessageId(n + 1))
            };
            Op::Cancel { keep: None, target, dedupe_id: DedupeId::Stays }
        };
        submit_all(wheel.client(), args.cancels(), make, |answer| {
            match answer {
                Ok(Reply::Change(result)) => found += u64::from(result.is_ok()),
                other => panic!("{other:?}"),
            }
            true
        })
        .await;
        let rate = args.cancels() as f64 / began.elapsed().as_secs_f64();
        println!("cancel by {what:<4} {rate:>12.0} /s   found {found}, resident {} MiB", resident_mib());
    }
    println!("READY");
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Waits until the store's background work is done, so that it does not affect the next measurement.
async fn settle(client: &Client) {
    let (began, mut before) = (Instant::now(), client.store_figures());
    loop {
        tokio::time::sleep(Duration::from_secs(3)).await;
        let now = client.store_figures();
        if now == before || began.elapsed() > Duration::from_secs(300) {
            return;
        }
        before = now;
    }
}

async fn first(dir: &Path, began: Instant) {
    let clock = VirtualClock::new(SystemTime::now() + Duration::from_secs(3_600));
    let wheel = Duewheel::builder().data(dir).clock(clock).open().await.expect("opened");
    let opened = began.elapsed();
    let name = wheel.queues().await.expect("queues").remove(0).name;
    loop {
        let got = wheel.client().reserve(Reserve { wait_ms: 10_000, ..Reserve::new(name.clone()) }).await;
        match got.expect("reserved") {
            duewheel::core::engine::Reserved::Grants(grants) if !grants.is_empty() => break,
            _ => assert!(began.elapsed() < Duration::from_secs(120), "nothing came due"),
        }
    }
    println!(
        "after kill -9: open {:.3} s, first message {:.3} s, resident {} MiB",
        opened.as_secs_f64(),
        began.elapsed().as_secs_f64(),
        resident_mib()
    );
    wheel.shutdown(Duration::from_secs(60)).await.expect("closed");
}

async fn drain(args: &Args, dir: &Path) {
    // The due times are spread evenly: this share of the 30 days makes about as many messages due.
    let share = args.drain() as f64 / args.messages as f64;
    let ahead = Duration::from_millis(DAYS_30).mul_f64(share);
    let clock = VirtualClock::new(SystemTime::now() + ahead);
    let wheel = Duewheel::builder().data(dir).clock(clock).open().await.expect("opened");
    let client = wheel.client();
    let names = names(args);
    settle(client).await;
    let (began, mut drained) = (Instant::now(), 0u64);
    let mut acks: Option<duewheel_shard::inbox::Pending> = None;
    loop {
        let demand = Reserve { max: 5_000, queues: names.clone(), ..Reserve::new(names[0].clone()) };
        let grants = match client.reserve(demand).await.expect("reserved") {
            duewheel::core::engine::Reserved::Grants(grants) => grants,
            other => panic!("{other:?}"),
        };
        if let Some(acks) = acks.take() {
            for answer in acks.await {
                assert!(matches!(answer, Ok(Reply::Settle(Ok(_)))), "{answer:?}");
            }
        }
        if grants.is_empty() {
            break;
        }
        drained += grants.len() as u64;
        let ops = grants
            .iter()
            .map(|g| Op::Ack { id: g.message.id, proof: g.token.into(), result: None })
            .collect();
        acks = Some(client.submit(ops).expect("submitted"));
    }
    let rate = drained as f64 / began.elapsed().as_secs_f64();
    println!("drain          {rate:>12.0} /s   {drained} messages, resident {} MiB", resident_mib());
    wheel.shutdown(Duration::from_secs(60)).await.expect("closed");
}

fn bytes_in(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => bytes_in(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}
