//! What a message costs a node and its store, on each medium: the parts of the models of docs/scaling.md.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use clap::ValueEnum as _;
use duewheel_bench::medium::{MediumKind, MediumServer};

use crate::server::child::Server;
use crate::server::load;

/// The thread that decides; each shard has one.
const SHARD_THREAD: &str = "duewheel-shard";

/// Measures enqueues in batches, and whole lives of messages that come due at a rate, on a folder and on each medium.
pub(crate) fn measure(connections: usize, due_rate: u64, time: Duration, consumers: usize) -> io::Result<()> {
    println!(
        "| store | run | messages/s | µs a message: shard's thread | other threads of the node | the medium | kept |"
    );
    println!("|---|---|--:|--:|--:|--:|---|");
    for kind in std::iter::once(None).chain(MediumKind::value_variants().iter().copied().map(Some)) {
        row(kind, &format!("enqueued, NDJSON x 1000, {connections} connections"), |server| {
            let outcome = load::batches(server.address, connections, time)?;
            Ok((load::accepted(server.address)?, outcome.messages as f64 / outcome.seconds))
        })?;
        row(kind, &format!("enqueued, granted and acked, {due_rate}/s due"), |server| {
            let seen = load::come_due(server.address, due_rate, time, consumers)?;
            Ok((seen.granted, due_rate as f64))
        })?;
    }
    Ok(())
}

/// A run on a store of its own. `run` returns the number of messages and their rate.
fn row(
    kind: Option<MediumKind>,
    name: &str,
    run: impl FnOnce(&Server) -> io::Result<(u64, f64)>,
) -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let medium = kind.map(MediumServer::start).transpose()?;
    let server = match &medium {
        None => Server::duewheel(&dir.path().join("data"), "fsync")?,
        Some(medium) => Server::on_medium(&medium.url())?,
    };
    let of_medium = || medium.as_ref().map_or(Duration::ZERO, MediumServer::processor_time);
    let (before, medium_before) = (server.by_thread(), of_medium());
    let (messages, rate) = run(&server)?;
    let (after, medium_took) = (server.by_thread(), of_medium().saturating_sub(medium_before));
    let took = |is_wanted: fn(&str) -> bool| -> Duration {
        let sum = |times: &BTreeMap<String, Duration>| -> Duration {
            times.iter().filter(|(thread, _)| is_wanted(thread)).map(|(_, time)| *time).sum()
        };
        sum(&after).saturating_sub(sum(&before))
    };
    let each = |time: Duration| time.as_secs_f64() * 1e6 / messages as f64;
    println!(
        "| {} | {name} | {rate:.0} | {:.2} | {:.2} | {:.2} | {} |",
        kind.map_or("Folder".to_owned(), |kind| format!("{kind:?}")),
        each(took(|thread| thread == SHARD_THREAD)),
        each(took(|thread| thread != SHARD_THREAD)),
        each(medium_took),
        medium.as_ref().map(MediumServer::kept).transpose()?.unwrap_or_default(),
    );
    Ok(())
}
