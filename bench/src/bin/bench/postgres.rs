//! The store on PostgreSQL compared with a bare loop that inserts the same bytes in the same groups.
//!
//! | contender | does |
//! |---|---|
//! | bare insert | one prepared `INSERT` of one `bytea` for each group, which is a transaction |
//! | store, one by one | appends a group, waits until it is durable |
//! | store, pipelined | appends the next groups while the former one is under way, with a limit in flight |
//!
//! All use one server of their own, which syncs its log. They take turns in each round; the result is the median of the
//! rounds. The store also puts every message into its table, and writes runs, as a server does.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use duewheel_bench::median;
use duewheel_bench::message::put;
use duewheel_core::record::{ClockPair, Group, Record, Writer};
use duewheel_core::store::conformance::Dice;
use duewheel_core::store::{Candidate, Coordinator, Joined, Store};
use duewheel_core::{Due, EngineMs, Lsn, MessageId, QueueName, ShardId, WallMs};
use duewheel_postgres_rig::{Postgres, Settings};
use duewheel_store_postgres::{Options, PostgresCoordinator};

/// Compares the store on PostgreSQL with a bare insert.
#[derive(Debug, Parser)]
struct Args {
    /// Messages in a group; may be given several times [default: 1, 100 and 1000]
    #[arg(long, value_name = "N")]
    group: Vec<usize>,
    /// Bytes of a message's body
    #[arg(long, value_name = "BYTES", default_value_t = 150)]
    body: usize,
    /// Each number is the median of so many rounds
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Groups that may be appended and not yet durable
    #[arg(long, value_name = "N", default_value_t = 4)]
    in_flight: usize,
    /// Messages that each round appends at most; at most 2000 groups
    #[arg(long, value_name = "N", default_value_t = 400_000)]
    messages: usize,
}

const CONTENDERS: [&str; 3] = ["bare insert", "store, one by one", "store, pipelined"];

pub(crate) fn main() {
    let args = crate::arguments::<Args>();
    println!("{}", duewheel_bench::machine::describe());
    println!(
        "settings bodies of {} bytes, due times random, median of {} rounds, {} groups in flight",
        args.body, args.rounds, args.in_flight
    );
    let postgres =
        Postgres::start(Settings::default().within(&std::env::temp_dir())).expect("a server of PostgreSQL");
    let groups = if args.group.is_empty() { vec![1, 100, 1000] } else { args.group.clone() };
    for size in groups {
        compare(&args, &postgres, size);
    }
}

fn compare(args: &Args, postgres: &Postgres, size: usize) {
    let mut rates: [Vec<f64>; 3] = Default::default();
    let count = (args.messages / size).clamp(1, 2_000);
    let groups = groups(args, size, count);
    let bytes = bytes_of(&groups[0]);
    for round in 0..args.rounds {
        for turn in 0..CONTENDERS.len() {
            let who = (round + turn) % CONTENDERS.len();
            let took = match who {
                0 => bare(postgres, bytes, count),
                1 => store(postgres, &groups, 1),
                _ => store(postgres, &groups, args.in_flight),
            };
            rates[who].push((size * count) as f64 / took.as_secs_f64());
        }
    }
    println!("\n{count} groups of {size}, {bytes} bytes each");
    println!("{:<20} {:>12} {:>12} {:>14}", "", "messages/s", "us/group", "of bare insert");
    let rates = rates.map(median);
    for (name, rate) in CONTENDERS.iter().zip(rates) {
        let of_bare = format!("{:.0} %", 100.0 * rate / rates[0]);
        println!("{name:<20} {rate:>12.0} {:>12.1} {of_bare:>14}", 1e6 * size as f64 / rate);
    }
}

/// Inserts `count` rows, one after the other.
fn bare(postgres: &Postgres, bytes: usize, count: usize) -> Duration {
    postgres.query("DROP TABLE IF EXISTS bare").expect("drop");
    postgres.query("CREATE TABLE bare (n bigint PRIMARY KEY, body bytea NOT NULL)").expect("create");
    postgres.query("ALTER TABLE bare ALTER COLUMN body SET STORAGE EXTERNAL").expect("alter");
    let body: Vec<u8> = (0..=250).cycle().take(bytes).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let connected = tokio_postgres::connect(&postgres.url(), tokio_postgres::NoTls).await;
        let (client, connection) = connected.expect("a connection");
        tokio::spawn(async move {
            let _ = connection.await; // it ends with its client
        });
        let insert = client.prepare("INSERT INTO bare (n, body) VALUES ($1, $2)").await.expect("prepare");
        let began = Instant::now();
        for n in 0..count as i64 {
            client.execute(&insert, &[&n, &body]).await.expect("insert");
        }
        began.elapsed()
    })
}

/// Appends the groups to a new shard, with at most `in_flight` of them not durable.
fn store(postgres: &Postgres, groups: &[Group], in_flight: usize) -> Duration {
    postgres.query("DROP SCHEMA IF EXISTS duewheel CASCADE").expect("drop");
    let (nodes, joined) = node(postgres);
    let owner = thread::current();
    let waker = Arc::new(move || owner.unpark());
    let mut store = nodes.open(&joined.node, ShardId(0), waker).expect("open");
    let began = Instant::now();
    for (n, group) in groups.iter().enumerate() {
        store.append(group).expect("append");
        store.sync().expect("sync");
        if let Some(oldest) = (n + 1).checked_sub(in_flight) {
            wait(&mut *store, groups[oldest].last());
        }
    }
    wait(&mut *store, groups[groups.len() - 1].last());
    let took = began.elapsed();
    store.close(groups[groups.len() - 1].clock).expect("close");
    nodes.leave(&joined.node).expect("leave");
    took
}

fn node(postgres: &Postgres) -> (PostgresCoordinator, Joined) {
    let options = Options::parse(&postgres.url()).expect("a URL");
    let nodes = PostgresCoordinator::new(options).expect("a coordinator");
    nodes.init().expect("tables");
    let candidate = Candidate {
        name: "bench".into(),
        advertise: "bench:1".into(),
        shards_if_new: 1,
        settle_delay: Duration::ZERO,
    };
    let joined = nodes.join(&candidate).expect("join");
    (nodes, joined)
}

fn wait(store: &mut dyn Store, lsn: Lsn) {
    while store.progress().expect("progress").durable < lsn {
        thread::park();
    }
}

/// Bytes of a group's records.
fn bytes_of(group: &Group) -> usize {
    let mut writer = Writer::default();
    group.records.iter().for_each(|record| writer.record(record));
    writer.bytes.len()
}

/// Groups of messages with random due times within 48 hours.
fn groups(args: &Args, size: usize, count: usize) -> Vec<Group> {
    let queue = QueueName::new("close-review").expect("a good name");
    let mut dice = Dice::new(1);
    let mut lsn = 1;
    let mut group = |_| {
        let clock = ClockPair { engine: EngineMs(lsn), wall: WallMs(1_700_000_000_000 + lsn) };
        let first = Lsn(lsn);
        let records: Vec<Record> = (0..size)
            .map(|_| {
                let id = MessageId(lsn);
                lsn += 1;
                let due = Due::After(EngineMs(clock.engine.0 + dice.below(48 * 3_600_000)));
                put(id, &queue, args.body, due, clock.wall)
            })
            .collect();
        Group { first, clock, records }
    };
    (0..count).map(&mut group).collect()
}
