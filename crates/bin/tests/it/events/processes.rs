//! Real servers, which are killed, and the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::stream::{EventReader, ReadEvent};
use crate::fixture::PATIENCE;
use crate::process::{BINARY, Process};
use crate::shell::Shell;

fn address(server: &Process) -> String {
    server.url.trim_start_matches("http://").to_owned()
}

/// A batch of messages; the ids of those that were acknowledged.
fn put(server: &Process, queue: &str, count: usize) -> Vec<String> {
    let line = "{\"body\": \"\", \"delay\": \"1h\"}\n";
    let results = server.lines(queue, &line.repeat(count));
    results.iter().filter_map(|line| line["id"].as_str().map(str::to_owned)).collect()
}

/// Writes messages from a thread until its server is gone; gives the ids that were acknowledged. Between two requests it
/// does not notice that another process has taken the place of the server, so `killed` says so.
fn write_until_killed(address: String, killed: Arc<AtomicBool>) -> thread::JoinHandle<Vec<String>> {
    thread::spawn(move || {
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
        let mut acknowledged = Vec::new();
        while !killed.load(Ordering::Relaxed) {
            let answer = agent
                .post(format!("http://{address}/v1/queues/q/messages"))
                .header("content-type", "application/json")
                .send("{\"body\": \"\", \"delay\": \"1h\"}");
            let body = answer.and_then(|mut answer| answer.body_mut().read_to_string());
            let Ok(body) = body else { return acknowledged };
            let told: Value = serde_json::from_str(&body).expect("JSON");
            acknowledged.extend(told["id"].as_str().map(str::to_owned));
        }
        acknowledged
    })
}

/// The server is killed while messages are written, three times. Between the ids at which the reader has gone on no
/// event of a durable record is missing, and none is there twice.
#[tokio::test(flavor = "multi_thread")]
async fn reader_resumes_across_kill_9() {
    let dir = TempDir::new().expect("dir");
    let data = dir.path().join("data");
    let mut server = Process::start(&data, &[]);
    let at = address(&server);
    let mut acknowledged: BTreeSet<String> = BTreeSet::new();
    let mut told: BTreeMap<String, usize> = BTreeMap::new();
    let mut reader = EventReader::open(&at, "/v1/events", "").await;
    let mut take = |event: &ReadEvent| {
        assert_eq!(event.name, "accepted", "{event:?}");
        *told.entry(event.text("id").to_owned()).or_default() += 1;
    };
    for round in 0..3 {
        let killed = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..3).map(|_| write_until_killed(at.clone(), killed.clone())).collect();
        // In the middle of the stream, and in the middle of writing.
        for _ in 0..100 + 70 * round {
            take(&reader.next().await.expect("an event"));
        }
        server = server.killed_and_restarted(&data, &at);
        killed.store(true, Ordering::Relaxed);
        for writer in writers {
            acknowledged.extend(writer.join().expect("a writer"));
        }
        // What has arrived before the end of the connection counts.
        while let Some(event) = reader.next().await {
            take(&event);
        }
        let id = format!("last-event-id: {}\r\n", reader.id);
        reader = EventReader::open(&at, "/v1/events", &id).await;
    }
    acknowledged.extend(put(&server, "last", 1));
    loop {
        let event = reader.next().await.expect("an event");
        take(&event);
        if event.text("queue") == "last" {
            break;
        }
    }
    let missing: Vec<_> = acknowledged.iter().filter(|id| !told.contains_key(*id)).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    let twice: Vec<_> = told.iter().filter(|(_, times)| **times != 1).collect();
    assert!(twice.is_empty() && told.len() > 300, "{} events, doubled: {twice:?}", told.len());
    server.kill();
}

/// With a small journal its oldest segments are used again: what was in them is missed, and the rest is there.
#[tokio::test(flavor = "multi_thread")]
async fn recycled_segments_yield_missed_event() {
    let dir = TempDir::new().expect("dir");
    let server = Process::start(&dir.path().join("data"), &["--journal-bytes", "1048576"]);
    let at = address(&server);
    put(&server, "q", 10);
    let mut reader = EventReader::open(&at, "/v1/events?since=0", "").await;
    let first = reader.next().await.expect("an event");
    assert_eq!(first.brief(), "accepted 1", "the journal has everything yet");
    drop(reader);
    let body = "x".repeat(4_000);
    let line = json!({"body": body, "delay": "1h"}).to_string() + "\n";
    let begun = Instant::now();
    let mut last = 10;
    let missed = loop {
        last += server.lines("q", &line.repeat(200)).iter().filter(|line| line["id"].is_string()).count();
        let mut reader = EventReader::open(&at, "/v1/events?since=0", "").await;
        let event = reader.next().await.expect("an event");
        if event.name == "missed" {
            break (event, reader);
        }
        assert!(begun.elapsed() < PATIENCE, "the journal is never cut");
    };
    let (missed, mut reader) = missed;
    assert_eq!(missed.text("from"), "0");
    let to: u64 = missed.text("to").parse().expect("a position");
    // One record for each message: their positions are their ids.
    let events = reader.up_to(|event| event.text("id") == last.to_string()).await;
    let ids: Vec<u64> = events.iter().map(|event| event.text("id").parse().expect("an id")).collect();
    assert_eq!(ids, (to + 1..=last as u64).collect::<Vec<_>>(), "everything behind, without a gap");
    server.kill();
}

/// A command that prints lines, killed when dropped.
struct Printing {
    child: Child,
    lines: Receiver<String>,
    /// What it says on standard error.
    said: Receiver<String>,
}

/// The lines of a stream, read by a thread of their own.
fn lines_of(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

impl Printing {
    fn start(mut command: Command) -> Printing {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("spawn");
        let lines = lines_of(child.stdout.take().expect("stdout"));
        let said = lines_of(child.stderr.take().expect("stderr"));
        Printing { child, lines, said }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line")
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.line()).expect("JSON")
    }

    /// The next line that it says besides.
    fn said(&self) -> String {
        self.said.recv_timeout(PATIENCE).expect("a line")
    }

    /// Ends it as Ctrl-C does; its exit code.
    fn interrupt(&mut self) -> Option<i32> {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().expect("kill").success());
        self.child.wait().expect("wait").code()
    }
}

impl Drop for Printing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tail(url: &str, args: &[&str]) -> Printing {
    let mut command = Command::new(BINARY);
    command.arg("tail").args(args).env("DUEWHEEL_SERVER", url);
    Printing::start(command)
}

fn restarted(server: Process, data: &Path) -> Process {
    let at = address(&server);
    server.killed_and_restarted(data, &at)
}

#[test]
fn tail_resumes_across_restart() {
    let dir = TempDir::new().expect("dir");
    let data = dir.path().join("data");
    let mut server = Process::start(&data, &[]);
    let all = tail(&server.url, &["--since", "0", "--json"]);
    let mut people = tail(&server.url, &["a", "b", "--since", "0"]);
    let first = put(&server, "a", 1).remove(0);
    let event = all.json();
    assert_eq!(
        (&event["event"], &event["id"], &event["position"]),
        (&json!("accepted"), &json!(first), &json!("1"))
    );
    assert!(people.line().contains("accepted      a  1  due in "), "a line for people");
    // It says that it waits once it has found nobody there.
    server.signal("-KILL");
    let waits = people.said();
    assert!(waits.contains("waiting for the server: "), "{waits}");
    server = restarted(server, &data);
    put(&server, "hidden", 1);
    let last = put(&server, "b", 1).remove(0);
    assert_eq!(all.json()["queue"], "hidden");
    assert_eq!(all.json()["id"], json!(last));
    let line = people.line();
    assert!(line.contains("accepted      b  3"), "only the queues that were named: {line}");
    assert_eq!(people.interrupt(), Some(0));
    let position = people.said();
    assert!(position.contains("--since 3"), "{position}");
    // Where it says, another one goes on.
    put(&server, "b", 1);
    let again = tail(&server.url, &["--since", "3", "--json"]);
    assert_eq!(again.json()["id"], "4");
    server.kill();
}

#[test]
fn tail_fails_as_other_commands_do() {
    let shell = Shell::new();
    let nobody = shell.fails(&["tail", "--server", "http://127.0.0.1:9"], 5);
    assert!(nobody.contains("duewheel serve"), "{nobody}");
    let bad = shell.fails(&["tail", "--since", "yesterday"], 2);
    assert!(bad.contains("--since") && bad.contains("must be the id of an event"), "{bad}");
    let other = shell.fails(&["tail", "--since", "1.2"], 2);
    assert!(other.contains("is a position in 2 shards"), "{other}");
}
