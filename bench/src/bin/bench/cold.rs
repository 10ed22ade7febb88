//! Look-ups that read the disk must delay the calls that need them and nothing else: the latency of enqueues while other
//! callers cancel messages that are in no memory. The store waits for its reads on the driver's thread in one round, and
//! fetches them beside it in the next one, in turn.
//!
//! `bench/run cold [--messages 1000000] [--seconds 10] [--rounds 3] [--dir FOLDER]`. The folder must be on a disk; a file
//! system in memory has no cold messages.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::Parser;
use duewheel::core::engine::{DedupeId, Enqueue, EnqueueRefusal, Op, Reply, Target, When};
use duewheel::core::id::MessageId;
use duewheel::core::name::{Key, QueueName};
use duewheel::core::pass_on;
use duewheel::core::store::{AtHand, Found, Lookups, Store, StoreError};
use duewheel::{Client, Duewheel};
use duewheel_bench::submit::submit_all;
use duewheel_judge::rng::scatter;
use duewheel_store_log::{LogStore, Options, SyncMode};

#[derive(Clone, Parser)]
struct Args {
    /// Messages in the folder, due in a year.
    #[arg(long, default_value_t = 1_000_000)]
    messages: u64,
    /// Length of a round.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Rounds of each kind.
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Callers that cancel, one message after the other.
    #[arg(long, default_value_t = 8)]
    cancellers: u64,
    /// Where the data lies; a temporary folder by default.
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// What a store does with a look-up that needs the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Waits,
    Fetches,
}

/// The log store, which waits for its disk if the kind says so.
struct Measured(LogStore, Kind);

impl Store for Measured {
    pass_on!(0: recovered append sync sync_here progress room room_error terms ask arrived idle close figures);
    fn find_many(&mut self, lookups: &Lookups, found: &mut Found) -> Result<AtHand, StoreError> {
        match self.1 {
            Kind::Waits => self.0.find_many(&Lookups { at_hand: false, ..lookups.clone() }, found),
            Kind::Fetches => self.0.find_many(lookups, found),
        }
    }
}

pub(crate) fn main() {
    let args = crate::arguments::<Args>();
    println!("{}", duewheel_bench::machine::describe());
    let temporary = tempfile::tempdir().expect("a folder");
    let dir = args.dir.clone().unwrap_or_else(|| temporary.path().to_owned()).join("cold");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(fill(&args, &dir));
    let mut taken = 0;
    for round in 1..=args.rounds {
        let [waits, fetches] =
            [Kind::Waits, Kind::Fetches].map(|kind| runtime.block_on(measure(&args, kind, &dir, &mut taken)));
        println!(
            "round {round}: enqueues beside cold cancels, fetches to waits: p50 {:.2}, p99 {:.2}, number {:.2}; cancels {:.2}",
            ratio(fetches.p50, waits.p50),
            ratio(fetches.p99, waits.p99),
            fetches.enqueues as f64 / waits.enqueues.max(1) as f64,
            fetches.cancels as f64 / waits.cancels.max(1) as f64,
        );
    }
    let _ = std::fs::remove_dir_all(&dir);
}

fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64().max(f64::EPSILON)
}

fn queue() -> QueueName {
    QueueName::new("orders").expect("a name")
}

async fn open(kind: Kind, dir: &Path) -> Duewheel {
    let dir = dir.to_owned();
    // Without a sync in each answer, so that the disk is needed for reads alone.
    let options = Options { sync: SyncMode::Buffered, ..Options::default() };
    let open = move |waker| {
        let store = LogStore::open(&dir, options.clone(), waker)?;
        Ok(Box::new(Measured(store, kind)) as Box<dyn Store>)
    };
    Duewheel::builder().store(open).open().await.expect("opened")
}

fn put(key: String, ms: u64) -> Op {
    let key = Some(Key::new(&key).expect("a key"));
    Op::Enqueue(Box::new(Enqueue { key, when: When::After(ms), ..Enqueue::new(queue(), vec![b'.'; 1_000]) }))
}

/// Messages that are due in a year, all in runs.
async fn fill(args: &Args, dir: &Path) {
    let wheel = open(Kind::Waits, dir).await;
    submit_all(
        wheel.client(),
        args.messages,
        |n| put(format!("old-{n}"), 365 * 86_400_000 + n),
        |answer| match answer {
            Ok(Reply::Enqueue(Ok(_))) => true,
            Ok(Reply::Enqueue(Err(EnqueueRefusal::Busy))) => false,
            other => panic!("{other:?}"),
        },
    )
    .await;
    wheel.shutdown(Duration::from_secs(60)).await.expect("closed");
}

struct Measure {
    p50: Duration,
    p99: Duration,
    enqueues: u64,
    cancels: u64,
}

async fn measure(args: &Args, kind: Kind, dir: &Path, taken: &mut u64) -> Measure {
    let wheel = open(kind, dir).await;
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let (stop, next) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(*taken)));
    // What is read is made cold again all the time.
    let cooling = std::thread::spawn({
        let (stop, dir) = (Arc::clone(&stop), dir.to_owned());
        move || {
            while !stop.load(Relaxed) {
                cool(&dir);
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    });
    let cancellers: Vec<_> = (0..args.cancellers)
        .map(|_| {
            let (client, next, messages) = (wheel.client().clone(), Arc::clone(&next), args.messages);
            tokio::spawn(async move {
                let mut cancels = 0;
                while Instant::now() < end {
                    let id = MessageId(1 + scatter(next.fetch_add(1, Relaxed)) % messages);
                    cancel(&client, id).await;
                    cancels += 1;
                }
                cancels
            })
        })
        .collect();
    let mut took = Vec::new();
    while Instant::now() < end {
        let (n, begun) = (next.fetch_add(1, Relaxed), Instant::now());
        let answers = wheel.client().submit(vec![put(format!("new-{n}"), 86_400_000)]).expect("taken").await;
        assert!(matches!(answers[0], Ok(Reply::Enqueue(Ok(_)))), "{:?}", answers[0]);
        took.push(begun.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut cancels = 0;
    for canceller in cancellers {
        cancels += canceller.await.expect("no panic");
    }
    stop.store(true, Relaxed);
    cooling.join().expect("no panic");
    *taken = next.load(Relaxed);
    let fetches = wheel.client().store_figures().into_iter().find(|(name, _)| *name == "fetches_total");
    wheel.shutdown(Duration::from_secs(60)).await.expect("closed");
    took.sort_unstable();
    let at = |per_cent: usize| took[(took.len() - 1) * per_cent / 100];
    println!(
        "{:8} {} enqueues, p50 {:?}, p99 {:?}, max {:?}; {cancels} cancels; {} fetches",
        format!("{kind:?}").to_lowercase(),
        took.len(),
        at(50),
        at(99),
        at(100),
        fetches.map_or(0, |(_, n)| n),
    );
    Measure { p50: at(50), p99: at(99), enqueues: took.len() as u64, cancels }
}

async fn cancel(client: &Client, id: MessageId) {
    let answers = client
        .submit(vec![Op::Cancel { keep: None, target: Target::Id(id), dedupe_id: DedupeId::Stays }])
        .expect("taken")
        .await;
    // It may have been cancelled before.
    assert!(matches!(answers[0], Ok(Reply::Change(_))), "{:?}", answers[0]);
}

/// Lets the page cache forget the runs.
fn cool(dir: &Path) {
    let Ok(runs) = std::fs::read_dir(dir.join("runs")) else { return };
    for run in runs.flatten() {
        if let Ok(file) = std::fs::File::open(run.path()) {
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
    }
}
