//! The outbox in PostgreSQL: a backlog, a drain beside inserts, and single commits.
//!
//! | part | does |
//! |---|---|
//! | backlog | fills the outbox, starts the drain, and measures until it is empty |
//! | beside inserts | connections commit one call after the other, for a time, while the drain runs |
//! | idle | single commits with pauses, each measured until its message is durable here |
//!
//! PostgreSQL and the log store are in folders of their own, and sync. Each figure is of one run.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use duewheel::{Duewheel, Policy};
use duewheel_bridge::outbox::{OutboxService, OutboxSettings, install, status};
use duewheel_postgres_rig::{Postgres, Settings};
use duewheel_store_postgres::{Options, connect};

/// Measures the drain of an outbox.
#[derive(Debug, Parser)]
struct Args {
    /// Rows of the backlog
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    rows: u64,
    /// Bytes of a message's body
    #[arg(long, value_name = "BYTES", default_value_t = 150)]
    body: usize,
    /// Seconds of inserts beside the drain
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Connections that insert
    #[arg(long, value_name = "N", default_value_t = 4)]
    connections: usize,
    /// Commits a second while the drain runs, if not as many as there can be
    #[arg(long, value_name = "N")]
    rate: Option<u32>,
    /// Transaction that stays open beside the inserts
    #[arg(long)]
    long_transaction: bool,
    /// Folder for both stores
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    within: PathBuf,
}

#[tokio::main]
pub(crate) async fn main() {
    let args = crate::arguments::<Args>();
    println!("{}", duewheel_bench::machine::describe());
    let postgres = Postgres::start(Settings::default().within(&args.within)).expect("a server of PostgreSQL");
    let options = Options::parse(&postgres.url()).expect("a URL");
    install(&options, 262_144).await.expect("installed");
    let folder = tempfile::tempdir_in(&args.within).expect("a folder");
    let wheel = Duewheel::open(folder.path().join("data")).await.expect("a wheel");
    let settings = OutboxSettings::new("bench", &postgres.url()).expect("settings");
    let call = format!("SELECT duewheel.enqueue('q', repeat('x', {}), delay => '48h')", args.body);

    let fill = format!("{call} FROM generate_series(1, {})", args.rows);
    postgres.query(&format!("SELECT count(*) FROM ({fill}) AS made")).expect("filled");
    let begun = Instant::now();
    let service = OutboxService::start(&wheel, &Policy::default(), "bench", std::slice::from_ref(&settings));
    until_applied(&service, args.rows).await;
    let seconds = begun.elapsed().as_secs_f64();
    println!("backlog: {} rows in {seconds:.1} s, {:.0} rows/s", args.rows, args.rows as f64 / seconds);

    let _long = args.long_transaction.then(|| {
        postgres.long_transaction("SELECT count(*) FROM duewheel.outbox").expect("a long transaction")
    });
    let before = applied(&service);
    let begun = Instant::now();
    let end = begun + Duration::from_secs(args.seconds);
    let pause =
        args.rate.map(|rate| Duration::from_secs(1) * u32::try_from(args.connections).unwrap_or(1) / rate);
    let mut inserting = Vec::new();
    for _ in 0..args.connections {
        let (connection, call) = (connect(&options).await.expect("a connection"), call.clone());
        inserting.push(tokio::spawn(async move {
            let mut made = 0_u64;
            let mut ticks = tokio::time::interval(pause.unwrap_or(Duration::from_nanos(1)));
            while Instant::now() < end {
                if pause.is_some() {
                    ticks.tick().await;
                }
                connection.client.batch_execute(&call).await.expect("committed");
                made += 1;
            }
            made
        }));
    }
    let mut made = 0;
    for one in inserting {
        made += one.await.expect("no panic");
    }
    let left = made - (applied(&service) - before);
    let bytes = status(&options).await.expect("a status").bytes;
    println!(
        "beside inserts: {:.0} commits/s, {left} rows left, table of {:.1} MiB",
        made as f64 / args.seconds as f64,
        bytes as f64 / f64::from(1 << 20)
    );
    until_applied(&service, before + made).await;

    let connection = connect(&options).await.expect("a connection");
    let mut times = Vec::new();
    for n in 0..200_u64 {
        tokio::time::sleep(Duration::from_millis(300 + n * 7 % 250)).await;
        let wanted = applied(&service) + 1;
        connection.client.batch_execute(&call).await.expect("committed");
        let since = Instant::now();
        until_applied(&service, wanted).await;
        times.push(since.elapsed());
    }
    times.sort();
    println!("idle: commit to durable median {:?}, p99 {:?}", times[100], times[198]);
    service.stop(Duration::from_secs(10)).await;
}

fn applied(service: &OutboxService) -> u64 {
    service.figures().map(|figures| figures.applied()).sum()
}

async fn until_applied(service: &OutboxService, rows: u64) {
    while applied(service) < rows {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
