//! How long messages that are pending wait for another owner, when the node that has all shards is killed.
//!
//! `bench/run takeover [--medium redis] [--medium postgres] [--messages 16000000] [--shards 16] [--connections 8]`. A node
//! takes the messages, as NDJSON in batches of 1000; then it is killed, and a node that starts at that moment has its
//! shards when it counts all messages. Exits with 1 if that takes longer than the lease and two seconds.

use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use duewheel_bench::process::resident_mib_of;
use duewheel_bench::server::{ADDRESS, Connection, Server};
use duewheel_postgres_rig::{Postgres, Settings};
use duewheel_redis_rig::{Redis, Settings as RedisSettings, free_port};
use serde_json::{Value, json};

/// Measures how long a take-over lasts.
#[derive(Debug, Parser)]
struct Args {
    /// Where the shards lie; may be given several times [default: both]
    #[arg(long, value_enum)]
    medium: Vec<MediumKind>,
    /// Messages that are pending
    #[arg(long, value_name = "N", default_value_t = 16_000_000)]
    messages: u64,
    /// Bytes of a message's body
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    body: usize,
    /// Shards that the messages are spread over
    #[arg(long, value_name = "N", default_value_t = 16)]
    shards: u32,
    /// Connections that enqueue
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    connections: u64,
    /// The lease of a shard, in seconds
    #[arg(long, value_name = "N", default_value_t = 5)]
    lease: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MediumKind {
    Redis,
    Postgres,
}

/// Messages of one batch.
const BATCH: u64 = 1_000;
/// What a take-over may need besides the lease.
const BEYOND: Duration = Duration::from_secs(2);
/// The measurement gives up after this time.
const PATIENCE: Duration = Duration::from_secs(120);
const DAY_MS: u64 = 24 * 3_600_000;

/// A server of a medium, which ends with it.
enum MediumServer {
    Redis(Redis),
    Postgres(Postgres),
}

impl MediumServer {
    fn start(kind: MediumKind) -> io::Result<Self> {
        Ok(match kind {
            MediumKind::Redis => MediumServer::Redis(Redis::start(RedisSettings::default())?),
            MediumKind::Postgres => MediumServer::Postgres(Postgres::start(Settings::default())?),
        })
    }

    fn url(&self) -> String {
        match self {
            MediumServer::Redis(redis) => redis.url(0),
            MediumServer::Postgres(postgres) => postgres.url(),
        }
    }

    /// What it keeps, in words.
    fn kept(&self) -> io::Result<String> {
        match self {
            MediumServer::Redis(redis) => {
                let info = redis.command(&["INFO", "memory"])?.text().unwrap_or_default();
                let used = info.lines().find_map(|line| line.strip_prefix("used_memory_human:"));
                Ok(format!("{} of memory", used.unwrap_or("?").trim()))
            }
            MediumServer::Postgres(postgres) => postgres.query(
                "SELECT pg_size_pretty(pg_database_size('postgres')) || ', dead rows ' || sum(n_dead_tup) \
                 FROM pg_stat_user_tables",
            ),
        }
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the measurement failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> io::Result<bool> {
    duewheel_bench::server::build()?;
    println!("{}", duewheel_bench::machine::describe());
    println!(
        "{} messages of {} bytes in {} shards, a lease of {} s\n",
        args.messages, args.body, args.shards, args.lease
    );
    println!("| medium | accepted/s | medium keeps | node's memory MiB | killed to served ms |");
    println!("|---|--:|--:|--:|--:|");
    let both = [MediumKind::Redis, MediumKind::Postgres];
    let media = if args.medium.is_empty() { &both[..] } else { &args.medium };
    let mut is_met = true;
    for kind in media {
        let medium = MediumServer::start(*kind)?;
        let (mut first, _) = node(args, &medium, "a")?;
        let began = Instant::now();
        enqueue(args, &first)?;
        let rate = args.messages as f64 / began.elapsed().as_secs_f64();
        let (kept, memory) = (medium.kept()?, resident_mib_of(first.process()));
        first.kill();
        let killed = Instant::now();
        let (mut second, _) = node(args, &medium, "b")?;
        while pending(&mut second)? != Some(args.messages) {
            if killed.elapsed() > PATIENCE {
                return Err(io::Error::other("the other node does not have all messages"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        let took = killed.elapsed();
        println!("| {kind:?} | {rate:.0} | {kept} | {memory} | {} |", took.as_millis());
        if took > Duration::from_secs(args.lease) + BEYOND {
            eprintln!("missed: {kind:?}: {} ms, target: the lease and 2 s", took.as_millis());
            is_met = false;
        }
    }
    Ok(is_met)
}

/// Starts a node, which has all shards that no living node has.
fn node(args: &Args, medium: &MediumServer, name: &str) -> io::Result<(Server, Duration)> {
    let advertise = format!("127.0.0.1:{}", free_port()?);
    let words = [
        ("--store", medium.url()),
        ("--shards", args.shards.to_string()),
        ("--shard-lease", format!("{}s", args.lease)),
        ("--node", name.to_owned()),
        ("--advertise", advertise),
    ];
    Server::start(words.iter().flat_map(|(option, value)| [*option, value.as_str()]), ADDRESS)
}

/// Enqueues all messages over several connections, into a queue for each.
fn enqueue(args: &Args, node: &Server) -> io::Result<()> {
    let line = json!({ "body": "x".repeat(args.body), "delay_ms": DAY_MS }).to_string() + "\n";
    let left = AtomicU64::new(args.messages);
    thread::scope(|scope| {
        let enqueuing: Vec<_> = (0..args.connections)
            .map(|number| {
                let (line, left) = (&line, &left);
                scope.spawn(move || -> io::Result<()> {
                    let mut connection = Connection::new(node.address);
                    let path = format!("/v1/queues/takeover-{number}/messages");
                    loop {
                        let take = |left: u64| (left > 0).then(|| left.saturating_sub(BATCH));
                        let Ok(before) = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) else {
                            return Ok(());
                        };
                        let lines = line.repeat(usize::try_from(before.min(BATCH)).expect("few"));
                        connection.ask(&path, "application/x-ndjson", &lines)?;
                    }
                })
            })
            .collect();
        enqueuing.into_iter().try_for_each(|one| one.join().expect("no panic"))
    })
}

/// The number of pending messages, if all shards answer.
fn pending(node: &mut Server) -> io::Result<Option<u64>> {
    let (status, answer) = node.call("GET", "/v1/stats", "", "")?;
    if status != 200 {
        return Ok(None);
    }
    let stats: Value = serde_json::from_str(&answer)?;
    Ok(stats["counts"]["scheduled"].as_u64())
}
