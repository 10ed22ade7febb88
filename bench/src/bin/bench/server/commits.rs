//! Real events over HTTP: every commit of the nudge example schedules a nudge, replacing the one before; then all due
//! times change. The bursts, the keys and their repetitions are real; the answers must be exact.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use crate::server::connection::{Connection, find, get, post};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/duewheel/examples/nudge/commits.csv");
const BATCH: usize = 1_000;

/// The result, and the rate.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) events: usize,
    pub(crate) keys: usize,
    pub(crate) events_per_s: f64,
    pub(crate) cancels_per_s: f64,
}

/// Sends all events over this number of connections. A key stays on its connection, so that its events stay in order.
pub(crate) fn run(address: SocketAddr, connections: usize) -> io::Result<Done> {
    let text = std::fs::read_to_string(FILE)?;
    let mut lanes: Vec<Vec<String>> = vec![Vec::new(); connections];
    let mut keys: BTreeMap<String, usize> = BTreeMap::new();
    for line in text.lines().skip(1) {
        let (_, key) = line.split_once(',').ok_or_else(|| wrong("an event is time,project,author"))?;
        let key = key.replacen(',', "/", 1);
        let next = keys.len() % connections;
        let lane = *keys.entry(key.clone()).or_insert(next);
        lanes[lane].push(key);
    }
    let events = lanes.iter().map(Vec::len).sum();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;

    let start = Instant::now();
    let enqueue = |key: &String| {
        format!(
            "{{\"body\":\"nudge {key}\",\"key\":\"{key}\",\"delay\":\"48h\",\"if_exists\":\"replace\"}}\n"
        )
    };
    let bodies = |lane: &[String]| -> Vec<Vec<u8>> {
        let ndjson = |batch: &[String]| batch.iter().map(enqueue).collect::<String>();
        let path = "/v1/queues/nudge/messages";
        lane.chunks(BATCH).map(|b| post(path, "application/x-ndjson", ndjson(b).as_bytes())).collect()
    };
    let replaced =
        runtime.block_on(send(address, lanes.iter().map(|l| bodies(l)).collect(), b"\"replaced\":"))?;
    let events_per_s = events as f64 / start.elapsed().as_secs_f64();
    if replaced != events - keys.len() {
        return Err(wrong(&format!("{replaced} replaced instead of {}", events - keys.len())));
    }
    let scheduled = format!("\"scheduled\":{}", keys.len());
    runtime.block_on(async {
        let mut connection = Connection::open(address).await?;
        let (_, body) = connection.call(&get("/v1/queues/nudge")).await?;
        find(body, scheduled.as_bytes()).map(|_| ()).ok_or_else(|| wrong(&String::from_utf8_lossy(body)))
    })?;

    let start = Instant::now();
    let mut lanes: Vec<Vec<&str>> = vec![Vec::new(); connections];
    for (key, lane) in &keys {
        lanes[*lane].push(key);
    }
    let cancels = |lane: &[&str]| -> Vec<Vec<u8>> {
        let body = |batch: &[&str]| format!("{{\"keys\":[\"{}\"]}}", batch.join("\",\""));
        let path = "/v1/queues/nudge/cancel";
        lane.chunks(BATCH).map(|b| post(path, "application/json", body(b).as_bytes())).collect()
    };
    let cancelled =
        runtime.block_on(send(address, lanes.iter().map(|l| cancels(l)).collect(), b"\"cancelled\""))?;
    if cancelled != keys.len() {
        return Err(wrong(&format!("{cancelled} cancelled instead of {}", keys.len())));
    }
    let cancels_per_s = cancelled as f64 / start.elapsed().as_secs_f64();
    Ok(Done { events, keys: keys.len(), events_per_s, cancels_per_s })
}

/// Sends each lane's requests over its own connection; counts a mark in the answers.
async fn send(address: SocketAddr, lanes: Vec<Vec<Vec<u8>>>, mark: &'static [u8]) -> io::Result<usize> {
    let mut tasks = tokio::task::JoinSet::new();
    for requests in lanes {
        tasks.spawn(async move {
            let mut connection = Connection::open(address).await?;
            let mut marks = 0;
            for request in requests {
                let (status, body) = connection.call(&request).await?;
                if status != 200 {
                    return Err(wrong(&String::from_utf8_lossy(body)));
                }
                marks += body.windows(mark.len()).filter(|w| w == &mark).count();
            }
            Ok(marks)
        });
    }
    let mut all = 0;
    while let Some(marks) = tasks.join_next().await {
        all += marks.map_err(io::Error::other)??;
    }
    Ok(all)
}

fn wrong(what: &str) -> io::Error {
    io::Error::other(what.to_owned())
}
