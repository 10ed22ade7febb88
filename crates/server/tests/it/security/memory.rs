//! Memory has a bound for each shape of data, however large the bodies are. Each test drives a real process to the shape and reads
//! the peak of its resident set.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{MIB, peak};
use crate::process::Process;

/// Bytes of a body.
const BODY: usize = 250_000;
/// Messages: together they weigh far more than the bounds below.
const MESSAGES: usize = 1_600;
/// Messages of one request.
const TOGETHER: usize = 60;

/// A server whose folder holds many large messages that are due in two days, started anew so that its peak is its own.
struct Filled {
    server: Process,
    before: u64,
    ids: Vec<Value>,
    _dir: TempDir,
}

impl Filled {
    fn start() -> Filled {
        let dir = TempDir::new().expect("dir");
        let data = dir.path().join("data");
        let server = Process::start(&data, &["--durability", "buffered"]);
        let address = server.url.trim_start_matches("http://").to_owned();
        let body = "a".repeat(BODY);
        let mut ids = Vec::new();
        for first in (0..MESSAGES).step_by(TOGETHER) {
            let one = |n: usize| json!({"body": body, "key": key(n), "delay": "48h"});
            let lines: Vec<String> =
                (first..MESSAGES.min(first + TOGETHER)).map(|n| one(n).to_string()).collect();
            let results = server.lines("large", &lines.join("\n"));
            ids.extend(results.iter().map(|result| result["id"].clone()));
        }
        assert_eq!(ids.iter().filter(|id| id.is_string()).count(), MESSAGES);
        let server = server.killed_and_restarted(&data, &address);
        server.call("GET", "/v1/queues/large", "");
        let before = peak(&server);
        Filled { server, before, ids, _dir: dir }
    }

    fn cancel(&self, asked: &Value) {
        let (status, answer) = self.server.call("POST", "/v1/queues/large/cancel", &asked.to_string());
        assert_eq!(status, 200, "{answer}");
        let results = answer["results"].as_array().expect("results");
        let done = results.iter().filter(|result| result["result"] == "cancelled").count();
        assert_eq!((results.len(), done), (MESSAGES, MESSAGES));
    }

    /// What the server has needed so far beyond what it needs when it has just started, in MiB.
    fn grown(&self) -> u64 {
        (peak(&self.server) - self.before) / MIB
    }
}

fn key(n: usize) -> String {
    format!("key-{n}")
}

/// Story: the answers of a batch cancel held the bodies, and so did its look-up: 10,000 keys of 250 kB each took 3.1 GB.
#[test]
fn a_batch_cancel_of_large_bodies_does_not_hold_them() {
    let filled = Filled::start();
    let keys: Vec<String> = (0..MESSAGES).map(key).collect();
    filled.cancel(&json!({"keys": keys}));
    let grown = filled.grown();
    println!("cancel by key: {grown} MiB for {} MiB of bodies", MESSAGES * BODY / (1 << 20));
    assert!(grown < 260, "{grown} MiB");
}

#[test]
fn a_batch_cancel_by_id_does_not_hold_the_bodies() {
    let filled = Filled::start();
    filled.cancel(&json!({"ids": filled.ids}));
    let grown = filled.grown();
    println!("cancel by id: {grown} MiB for {} MiB of bodies", MESSAGES * BODY / (1 << 20));
    assert!(grown < 260, "{grown} MiB");
}

/// Many clients look at large messages at once, by id and in pages.
#[test]
fn many_looks_at_large_bodies_hold_a_bounded_number_of_them() {
    let filled = Filled::start();
    std::thread::scope(|scope| {
        for client in 0..12 {
            let (server, ids) = (&filled.server, &filled.ids);
            scope.spawn(move || {
                for n in (client..MESSAGES).step_by(48) {
                    let id = ids[n].as_str().expect("id");
                    let (status, found) = server.call("GET", &format!("/v1/messages/{id}"), "");
                    assert!(status == 200 || status == 429, "{found}");
                }
                for _ in 0..3 {
                    let path = "/v1/queues/large/messages?limit=1000";
                    let (status, _) = server.call("GET", path, "");
                    assert!(status == 200 || status == 429, "{status}");
                }
            });
        }
    });
    let grown = filled.grown();
    println!("looks: {grown} MiB for {} MiB of bodies", MESSAGES * BODY / (1 << 20));
    assert!(grown < 350, "{grown} MiB");
}
