//! One shard and several in one process, in turn, and what each kind of thread costs: the parts of a model of larger
//! machines.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use duewheel_bench::median;

use crate::server::child::Server;
use crate::server::load;

/// One run.
struct ShardRun {
    /// Messages a second.
    rate: f64,
    /// Microseconds of a processor for a message, by kind of thread.
    cost: BTreeMap<String, f64>,
}

/// Compares `shards` shards with one, in batches and with single messages, both without keys.
pub(crate) fn compare(shards: u32, rounds: u32, connections: [usize; 2], time: Duration) -> io::Result<()> {
    println!("| run | shards | messages/s, each round | median | ratio to one |");
    println!("|---|--:|---|--:|--:|");
    let runs: [(&str, usize, crate::server::Load); 2] =
        [("NDJSON x 1000", connections[0], load::batches), ("single", connections[1], load::singles)];
    let mut costs = Vec::new();
    for (name, connections, load) in runs {
        let (mut one, mut several) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            one.push(run(1, connections, time, load)?);
            several.push(run(shards, connections, time, load)?);
        }
        let base = row(name, 1, &one, None);
        row(name, shards, &several, Some(base));
        costs.extend([(name, 1, one), (name, shards, several)]);
    }
    println!("\n| run | shards | thread | µs of a processor for a message |\n|---|--:|---|--:|");
    for (name, shards, runs) in &costs {
        for thread in runs.iter().flat_map(|run| run.cost.keys()).collect::<BTreeSet<_>>() {
            let cost = median(runs.iter().map(|run| run.cost.get(thread).copied().unwrap_or(0.0)).collect());
            if cost >= 0.005 {
                println!("| {name} | {shards} | {thread} | {cost:.2} |");
            }
        }
    }
    Ok(())
}

fn run(shards: u32, connections: usize, time: Duration, load: crate::server::Load) -> io::Result<ShardRun> {
    let dir = tempfile::tempdir()?;
    let server = Server::sharded(&dir.path().join("data"), "fsync", shards)?;
    let outcome = load(server.address, connections, time)?;
    let all = load::accepted(server.address)?;
    if all < outcome.messages {
        return Err(io::Error::other(format!("{} answers, but {all} messages", outcome.messages)));
    }
    let cost = |(thread, took): (String, Duration)| (thread, took.as_secs_f64() * 1e6 / all as f64);
    let cost = server.by_thread().into_iter().map(cost).collect();
    Ok(ShardRun { rate: outcome.messages as f64 / outcome.seconds, cost })
}

fn row(name: &str, shards: u32, runs: &[ShardRun], base: Option<f64>) -> f64 {
    let rates: Vec<String> = runs.iter().map(|run| format!("{:.0}", run.rate)).collect();
    let rate = median(runs.iter().map(|run| run.rate).collect());
    let ratio = base.map_or("1".to_owned(), |base| format!("{:.2}", rate / base));
    println!("| {name} | {shards} | {} | {rate:.0} | {ratio} |", rates.join(", "));
    rate
}
