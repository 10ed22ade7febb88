//! Memory has a bound for each shape of data, however large the bodies are and however many queues there are. Each test
//! drives a real process to the shape, reads the peak of its resident set, and compares with the budgets that
//! `docs/operations.md` tells.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use duewheel::Policy;
use duewheel_server::http::HttpLimits;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{MIB, peak};
use crate::fixture::PATIENCE;
use crate::process::Process;

/// Bytes of a body.
const BODY: usize = 250_000;
/// Messages: together they weigh far more than any budget below, and so does each half.
const MESSAGES: usize = 2_400;
const HALF: usize = MESSAGES / 2;
/// Number of messages of one request.
const TOGETHER: usize = 60;
/// The journal's budget, `--journal-bytes`: small, so that it is no large part of a peak.
const JOURNAL: u64 = 32 * MIB;
/// What a process needs for itself: its code, threads, and what its allocator keeps of what was freed.
const PROCESS: u64 = 64 * MIB;

/// A server whose folder holds many large messages, started anew so that its peak is its own.
struct Filled {
    server: Process,
    before: u64,
    ids: Vec<Value>,
    dir: TempDir,
}

impl Filled {
    fn start(queue: impl Fn(usize) -> String, delay: &str) -> Filled {
        let dir = TempDir::new().expect("dir");
        let data = dir.path().join("data");
        let journal = JOURNAL.to_string();
        let server = Process::start(&data, &["--durability", "buffered", "--journal-bytes", &journal]);
        let body = "a".repeat(BODY);
        let line =
            |n: usize| format!("{{\"body\":\"{body}\",\"key\":\"{}\",\"delay\":\"{delay}\"}}\n", key(n));
        let mut ids = Vec::new();
        let mut first = 0;
        while first < MESSAGES {
            let of = queue(first);
            let same = (first..MESSAGES).take(TOGETHER).take_while(|n| queue(*n) == of).count();
            let lines: String = (first..first + same).map(line).collect();
            ids.extend(server.lines(&of, &lines).iter().map(|result| result["id"].clone()));
            first += same;
        }
        assert_eq!(ids.iter().filter(|id| id.is_string()).count(), MESSAGES);
        Filled { server, before: 0, ids, dir }.anew()
    }

    /// The same folder in a process that has needed nothing yet.
    fn anew(mut self) -> Filled {
        let (data, journal) = (self.dir.path().join("data"), JOURNAL.to_string());
        let address = self.server.url.trim_start_matches("http://").to_owned();
        self.server = self.server.killed_and_restarted_with(&data, &address, &["--journal-bytes", &journal]);
        self.server.call("GET", "/v1/wheel", "");
        self.before = peak(&self.server);
        self
    }

    fn cancel(&self, asked: &Value) {
        let (status, answer) = self.server.call("POST", "/v1/queues/large/cancel", &asked.to_string());
        assert_eq!(status, 200, "{answer}");
        let results = answer["results"].as_array().expect("results");
        let done = results.iter().filter(|result| result["result"] == "cancelled").count();
        assert_eq!((results.len(), done), (HALF, HALF));
    }

    /// What the server has needed so far beyond what it needs when it has just started, against a budget.
    fn check(&self, what: &str, budget: u64) {
        let grown = (peak(&self.server) - self.before) / MIB;
        let (budget, bodies) = (budget / MIB, HALF * BODY / (1 << 20));
        println!("{what}: {grown} of {budget} MiB, for {bodies} MiB of bodies");
        assert!(grown < budget, "{what}: {grown} of {budget} MiB");
    }
}

fn key(n: usize) -> String {
    format!("key-{n}")
}

/// What a batch that names many messages may need: those that are decided on together, and those that are looked up
/// meanwhile; with what the allocator has not given back of those before.
fn of_a_batch() -> u64 {
    8 * Policy::default().found_bytes as u64 + PROCESS
}

/// Many clients look at large messages at once, by id and in pages. Without a bound each page alone would be 16 MiB of
/// messages and as much of JSON, for each client.
fn read_by_many(filled: &Filled) {
    const CLIENTS: usize = 32;
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, ids) = (&filled.server, &filled.ids);
            scope.spawn(move || {
                for n in (client..MESSAGES).step_by(12 * CLIENTS) {
                    let id = ids[n].as_str().expect("id");
                    let (status, found) = server.call("GET", &format!("/v1/messages/{id}"), "");
                    assert!(status == 200 || status == 429, "{found}");
                }
                let path = "/v1/queues/large/messages?limit=1000";
                let (status, _) = server.call("GET", path, "");
                assert!(status == 200 || status == 429, "{status}");
            });
        }
    });
    let policy = Policy::default();
    let pages = policy.max_gathers * 2 * policy.load_bytes;
    let answers = HttpLimits::default().max_writing_bytes;
    let budget = (pages + answers + policy.found_bytes) as u64 + PROCESS;
    assert!(budget < (CLIENTS * 2 * policy.load_bytes) as u64, "less than all of them would hold");
    filled.check("looks", budget);
}

/// Story: the answers of a batch cancel held the bodies, and so did its look-up: 10,000 keys of 250 kB each took 3.1
/// GB.
#[test]
fn reads_and_batches_of_large_bodies_bounded() {
    let filled = Filled::start(|_| "large".to_owned(), "48h");
    read_by_many(&filled);
    let filled = filled.anew();
    filled.cancel(&json!({"keys": (0..HALF).map(key).collect::<Vec<_>>()}));
    filled.check("cancel by key", of_a_batch());
    let filled = filled.anew();
    filled.cancel(&json!({"ids": filled.ids[HALF..]}));
    filled.check("cancel by id", of_a_batch());
}

/// Story: of each queue the first ready message was always in memory, whatever it weighed: 10,000 queues with 250 kB
/// each took 3.2 GB.
#[test]
fn many_large_ready_queues_bound_memory() {
    let filled = Filled::start(|n| format!("queue-{n}"), "0s");
    // From one end to the other, so that pages come and go.
    for n in (0..filled.ids.len()).step_by(24) {
        let (status, answer) =
            filled.server.call("POST", &format!("/v1/queues/queue-{n}/reserve"), r#"{"wait_ms": 20000}"#);
        let granted = &answer["messages"][0];
        assert_eq!((status, granted["body"].as_str().map(str::len)), (200, Some(BODY)), "queue-{n}");
        let (id, token) = (granted["id"].as_str().expect("id"), &granted["lease_token"]);
        let done = filled.server.call(
            "POST",
            &format!("/v1/messages/{id}/ack"),
            &json!({"lease_token": token}).to_string(),
        );
        assert_eq!(done.0, 200, "{}", done.1);
    }
    let policy = Policy::default();
    // Ready messages, a page of each of the two sequences that is on its way to them, what a settlement looks up, and
    // what has changed lately; a quarter of an allocator's pages may be between what it was asked for.
    let budget = (policy.ready_bytes + 2 * policy.load_bytes + policy.found_bytes) as u64 + JOURNAL + PROCESS;
    let budget = budget * 4 / 3;
    assert!(budget < (filled.ids.len() * BODY) as u64 * 2 / 3, "much less than all of them");
    let grown = peak(&filled.server) / MIB;
    println!(
        "ready: {} at the start, {grown} of {} MiB, for {} MiB of bodies",
        filled.before / MIB,
        budget / MIB,
        filled.ids.len() * BODY / (1 << 20)
    );
    assert!(grown < budget / MIB, "{grown} of {} MiB", budget / MIB);
}

/// What a queue without messages may take, as `docs/operations.md` says.
const OF_A_QUEUE: u64 = 3 * 1_024;

/// A pause keeps its queue in being without a message. That it makes no more of them than are allowed is shown by
/// `queue_limit_blocks_implicit_creation`.
#[test]
fn paused_queues_fit_memory_budget() {
    const QUEUES: usize = 10_000;
    let dir = TempDir::new().expect("dir");
    let server = Process::start(dir.path(), &["--durability", "buffered", "--journal-bytes", "4194304"]);
    pause(&server, 0..100);
    let before = peak(&server);
    pause(&server, 100..100 + QUEUES);
    let (status, wheel) = server.call("GET", "/v1/queues?limit=1", "");
    assert_eq!((status, wheel["queues"].as_array().map(Vec::len)), (200, Some(1)), "{wheel}");
    let grown = peak(&server) - before;
    println!("paused queues: {} bytes each", grown / QUEUES as u64);
    let budget = QUEUES as u64 * OF_A_QUEUE;
    assert!(grown < budget, "{grown} of {budget} bytes");
}

/// Pauses queues over one connection, many requests at a time.
fn pause(server: &Process, queues: std::ops::Range<usize>) {
    const AT_ONCE: usize = 100;
    let mut stream = TcpStream::connect(server.url.trim_start_matches("http://")).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let mut answers = BufReader::new(stream.try_clone().expect("clone")).lines();
    let all: Vec<usize> = queues.collect();
    for some in all.chunks(AT_ONCE) {
        let request = |n: &usize| {
            format!("POST /v1/queues/some-queue-{n}/pause HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        };
        stream.write_all(some.iter().map(request).collect::<String>().as_bytes()).expect("write");
        let mut left = some.len();
        while left > 0 {
            let line = answers.next().expect("an answer").expect("read");
            // The body of the one before may be in front of it.
            if let Some((_, status)) = line.split_once("HTTP/1.1 ") {
                assert_eq!(status, "200 OK");
                left -= 1;
            }
        }
    }
}
