//! The server over HTTP: accepted messages per second in batches and one by one, and the lateness of messages.
//!
//! Server and load generator are processes on the same machine, so they share its cores. The load generator has one
//! thread. The server with `fsync` is compared with the same server with `memory` (the cost of durability) and with a
//! server that only speaks HTTP by the same library (the cost of HTTP).

mod child;
mod commits;
mod connection;
mod hello;
mod load;
mod parts;
mod shards;

use std::io;
use std::time::Duration;

use clap::Parser;
use duewheel_bench::medium::{MediumKind, MediumServer};

use child::Server;
use load::{Lateness, Outcome};

/// Measures the server over HTTP.
#[derive(Debug, Parser)]
struct Args {
    /// Short runs, to see that it works
    #[arg(long)]
    quick: bool,
    /// Seconds of each throughput run
    #[arg(long, value_name = "S")]
    seconds: Option<u64>,
    /// Connections that send batches
    #[arg(long, value_name = "N", default_value_t = 8)]
    batch_connections: usize,
    /// Connections that send single messages
    #[arg(long, value_name = "N", default_value_t = 50)]
    single_connections: usize,
    /// Messages per second that come due in the lateness run
    #[arg(long, value_name = "N", default_value_t = 50_000)]
    due_rate: u64,
    /// Where the store of the lateness run is [default: a folder]
    #[arg(long, value_enum)]
    medium: Option<MediumKind>,
    /// Consumers of the lateness run
    #[arg(long, value_name = "N", default_value_t = 4)]
    consumers: usize,
    /// Shards of the run `shards`
    #[arg(long, value_name = "N", default_value_t = 2)]
    shards: u32,
    /// Rounds of the run `shards`
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u32,
    /// Only these runs: batch, single, late, commits, shards, parts
    #[arg(long, value_name = "RUN")]
    only: Vec<String>,
    /// Serves plain HTTP (used by the comparison itself)
    #[arg(long, hide = true)]
    hello: bool,
}

pub(crate) fn main() -> io::Result<()> {
    let args = crate::arguments::<Args>();
    if args.hello {
        return hello::serve();
    }
    duewheel_bench::server::build()?;
    println!("{}", duewheel_bench::machine::describe());
    println!(
        "settings {} batch connections x 1000, {} single connections, bodies of 100 bytes due within an hour; \
         load generator on the same machine, one thread\n",
        args.batch_connections, args.single_connections
    );
    let time = Duration::from_secs(args.seconds.unwrap_or(if args.quick { 2 } else { 10 }));
    let wants = |run: &str| args.only.is_empty() || args.only.iter().any(|o| o == run);
    if wants("batch") || wants("single") {
        println!("| run | durability | messages/s | p50 ms | p99 ms | server cpu s per million | ratio |");
        println!("|---|---|--:|--:|--:|--:|--:|");
    }
    if wants("batch") {
        let memory =
            throughput("NDJSON x 1000", "memory", args.batch_connections, time, load::batches, None)?;
        throughput("NDJSON x 1000", "fsync", args.batch_connections, time, load::batches, Some(memory))?;
    }
    if wants("single") {
        let hello = plain(args.single_connections, time)?;
        for durability in ["memory", "fsync"] {
            throughput("single", durability, args.single_connections, time, load::singles, Some(hello))?;
        }
    }
    if wants("late") {
        let time = Duration::from_secs(if args.quick { 5 } else { 20 });
        let dir = tempfile::tempdir()?;
        let medium = args.medium.map(MediumServer::start).transpose()?;
        let server = match &medium {
            None => Server::duewheel(&dir.path().join("data"), "fsync")?,
            Some(medium) => Server::on_medium(&medium.url())?,
        };
        let seen = load::come_due(server.address, args.due_rate, time, args.consumers)?;
        drop(server);
        print_lateness(&args, time, &seen);
    }
    if wants("shards") {
        let connections = [args.batch_connections, args.single_connections];
        println!();
        shards::compare(args.shards, args.rounds, connections, time)?;
    }
    if wants("parts") {
        println!();
        parts::measure(args.batch_connections, args.due_rate, time, args.consumers)?;
    }
    if wants("commits") {
        let dir = tempfile::tempdir()?;
        let server = Server::duewheel(&dir.path().join("data"), "fsync")?;
        let done = commits::run(server.address, args.batch_connections)?;
        println!("\n| real commits, keyed | events | keys | events/s | cancels/s |\n|---|--:|--:|--:|--:|");
        println!(
            "| each replaces the one before; then all are cancelled | {} | {} | {:.0} | {:.0} |",
            done.events, done.keys, done.events_per_s, done.cancels_per_s
        );
    }
    Ok(())
}

type Load = fn(std::net::SocketAddr, usize, Duration) -> io::Result<Outcome>;

/// One run against the real server; a row of the table, with the ratio to `base`.
fn throughput(
    name: &str,
    durability: &str,
    connections: usize,
    time: Duration,
    load: Load,
    base: Option<f64>,
) -> io::Result<f64> {
    let dir = tempfile::tempdir()?;
    let server = Server::duewheel(&dir.path().join("data"), durability)?;
    let outcome = load(server.address, connections, time)?;
    let all = load::accepted(server.address)?;
    if all < outcome.messages {
        return Err(io::Error::other(format!("{} answers, but {all} messages", outcome.messages)));
    }
    let cpu = server.processor_s() / (all as f64 / 1e6);
    Ok(row(name, durability, &outcome, cpu, base))
}

fn plain(connections: usize, time: Duration) -> io::Result<f64> {
    let server = Server::hello()?;
    let outcome = load::singles(server.address, connections, time)?;
    // The warm-up is a sixth of the whole.
    let cpu = server.processor_s() / (outcome.messages as f64 * 1.2 / 1e6);
    Ok(row("single", "HTTP library alone", &outcome, cpu, None))
}

fn row(name: &str, durability: &str, outcome: &Outcome, cpu: f64, base: Option<f64>) -> f64 {
    let rate = outcome.messages as f64 / outcome.seconds;
    let ratio = base.map_or("1".to_owned(), |base| format!("{:.2}", rate / base));
    println!(
        "| {name} | {durability} | {rate:.0} | {:.2} | {:.2} | {cpu:.2} | {ratio} |",
        outcome.p50, outcome.p99
    );
    rate
}

fn print_lateness(args: &Args, time: Duration, seen: &Lateness) {
    println!("\n| lateness | messages | per reserve | p50 ms | p99 ms | p99.9 ms | max ms |");
    println!("|---|--:|--:|--:|--:|--:|--:|");
    println!(
        "| {}{}/s due for {} s, {} consumers reserve up to 1000 and ack them, fsync | {} | {:.0} | {} | {} | {} | {} |",
        args.medium.map_or(String::new(), |medium| format!("{medium:?}: ")),
        args.due_rate,
        time.as_secs(),
        args.consumers,
        seen.granted,
        seen.granted as f64 / seen.reserves.max(1) as f64,
        seen.at(500),
        seen.at(990),
        seen.at(999),
        seen.max_ms
    );
}
