//! `backup` of a server under load, `verify` and `restore` of the copies, and a server on what was restored.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use duewheel_store_log::folders_in;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::{PATIENCE, Server};
use crate::process::{BINARY, Process, run, text};
use crate::schema;

/// Messages of a round of a producer.
const ROUND: u64 = 30;
const PRODUCERS: u64 = 3;
/// A delayed message's due time is shown by the clocks as they are; a machine may put its wall clock right meanwhile.
pub(crate) const CLOCKS_MS: i64 = 2_000;

/// What a message was said to be.
#[derive(Clone, Debug)]
struct Said {
    queue: &'static str,
    key: Option<String>,
    body: String,
    due_at: String,
    /// By a delay, and not at an instant.
    is_delayed: bool,
}

/// What the clients know.
#[derive(Clone, Debug, Default)]
struct Book {
    /// Accepted, and not known to be gone.
    pending: BTreeMap<u64, Said>,
    /// A cancel or an ack was sent.
    touched: BTreeSet<u64>,
    /// A cancel or an ack was answered.
    gone: BTreeSet<u64>,
    /// Leases that nobody settles.
    held: Vec<(u64, String)>,
}

/// A server, and clients that use it until told to stop.
struct Load<'a> {
    server: &'a Process,
    book: Mutex<Book>,
    stop: AtomicBool,
    accepted: AtomicU64,
}

impl Load<'_> {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("book")
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Acquire)
    }

    /// Enqueues with and without keys, at instants, after delays and for now, and cancels a part of it.
    fn produce(&self, producer: u64) {
        let mut number = 0_usize;
        while self.goes_on() {
            let (mut said, mut lines) = (Vec::new(), String::new());
            for _ in 0..ROUND {
                number += 1;
                let key = (!number.is_multiple_of(3)).then(|| format!("p{producer}-{number}"));
                let body = format!("body {producer}/{number} {}", "x".repeat(500 + number % 1_000));
                let mut line = json!({"body": body, "key": key});
                let (queue, is_delayed) = ("later", number.is_multiple_of(2));
                if is_delayed {
                    line["delay"] = json!("48h");
                } else {
                    line["due_at"] =
                        json!(format!("2099-01-{:02}T00:00:00.{:03}Z", number % 28 + 1, number % 1_000));
                }
                lines.push_str(&format!("{line}\n"));
                said.push(Said { queue, key, body, due_at: String::new(), is_delayed });
            }
            let ids = self.enqueue("later", &lines, said);
            let cancelled: Vec<u64> = ids.into_iter().skip(1).step_by(5).collect();
            self.book().touched.extend(&cancelled);
            let asked: Vec<String> = cancelled.iter().map(u64::to_string).collect();
            let (status, done) =
                self.server.call("POST", "/v1/queues/later/cancel", &json!({ "ids": asked }).to_string());
            assert_eq!(status, 200, "{done}");
            self.settled(&cancelled, &done, "cancelled");

            let now: String =
                (0..5).map(|n| format!("{}\n", json!({"body": format!("now {n}"), "delay_ms": 0}))).collect();
            let said = (0..5).map(|n| Said {
                queue: "now",
                key: None,
                body: format!("now {n}"),
                due_at: String::new(),
                is_delayed: true,
            });
            self.enqueue("now", &now, said.collect());
        }
    }

    /// Lines that the server was too busy for are sent again, as it asks for.
    fn enqueue(&self, queue: &str, lines: &str, said: Vec<Said>) -> Vec<u64> {
        let mut left: Vec<(String, Said)> = lines.lines().map(|line| format!("{line}\n")).zip(said).collect();
        let begun = Instant::now();
        let mut ids = Vec::new();
        while !left.is_empty() {
            assert!(begun.elapsed() < PATIENCE, "busy for ever");
            let lines: String = left.iter().map(|(line, _)| line.as_str()).collect();
            let results = self.server.lines(queue, &lines);
            assert_eq!(results.len(), left.len(), "{results:?}");
            let mut book = self.book();
            let mut again = Vec::new();
            for (result, (line, said)) in results.iter().zip(left) {
                if result["code"] == "overloaded" {
                    again.push((line, said));
                    continue;
                }
                assert_eq!(result["status"], 201, "{result}");
                let id = id(&result["id"]);
                let due_at = result["due_at"].as_str().expect("due_at").to_owned();
                // A consumer may have been quicker than the answer.
                if !book.gone.contains(&id) {
                    book.pending.insert(id, Said { due_at, ..said });
                }
                ids.push(id);
            }
            drop(book);
            left = again;
            if !left.is_empty() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.accepted.fetch_add(ids.len() as u64, Ordering::AcqRel);
        ids
    }

    /// Reserves and acks, but one of each batch.
    fn consume(&self) {
        while self.goes_on() {
            let ask = r#"{"max": 10, "wait_ms": 100, "lease_ms": 3600000}"#;
            let (status, grants) = self.server.call("POST", "/v1/queues/now/reserve", ask);
            assert_eq!(status, 200, "{grants}");
            let mut grants = grants["messages"].as_array().expect("messages").clone();
            let Some(kept) = grants.pop() else { continue };
            let acked: Vec<u64> = grants.iter().map(|grant| id(&grant["id"])).collect();
            {
                let mut book = self.book();
                book.held.push((id(&kept["id"]), kept["lease_token"].as_str().expect("token").to_owned()));
                book.touched.extend(&acked);
            }
            if acked.is_empty() {
                continue;
            }
            let messages: Vec<Value> =
                grants.iter().map(|g| json!({"id": g["id"], "lease_token": g["lease_token"]})).collect();
            let (status, done) =
                self.server.call("POST", "/v1/ack", &json!({ "messages": messages }).to_string());
            assert_eq!(status, 200, "{done}");
            self.settled(&acked, &done, "acked");
        }
    }

    fn settled(&self, ids: &[u64], done: &Value, how: &str) {
        let results = done["results"].as_array().expect("results");
        assert!(results.len() == ids.len() && results.iter().all(|r| r["result"] == how), "{done}");
        let mut book = self.book();
        for id in ids {
            book.gone.insert(*id);
            book.pending.remove(id);
        }
    }

    fn until(&self, what: &str, so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !so() {
            assert!(begun.elapsed() < 3 * PATIENCE, "never: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Backs up in the middle of it all: what the command said, what was known before it began, and what had been
    /// touched when it was done.
    fn backup(&self, dir: &Path, args: &[&str]) -> (String, Book) {
        let before = Book::clone(&self.book());
        let said = ok(duewheel(dir).args(["backup", "--server", &self.server.url]).args(args));
        let touched = self.book().touched.clone();
        (said, Book { touched, ..before })
    }
}

fn id(value: &Value) -> u64 {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no id: {value}"))
}

pub(crate) fn duewheel(dir: &Path) -> Command {
    let mut command = Command::new(BINARY);
    command.current_dir(dir);
    command
}

pub(crate) fn ok(command: &mut Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn fails(command: &mut Command, says: &str) {
    let output = run(command);
    let stderr = text(&output.stderr);
    // 2: the server refuses the folder; 5: there is no server.
    assert!(matches!(output.status.code(), Some(1 | 2 | 5)), "{command:?}: {stderr}");
    assert!(stderr.starts_with("duewheel: ") && stderr.contains(says), "{command:?}: {stderr}");
    assert!(stderr.lines().count() == 1 && output.stdout.is_empty(), "{command:?}: {stderr}");
}

/// Runs of all shards.
pub(crate) fn runs(data: &Path) -> usize {
    let folders = folders_in(data).unwrap_or_default();
    let names = folders.iter().flat_map(|folder| std::fs::read_dir(folder.join("runs")));
    let names = names.flatten().flatten();
    names.filter(|entry| entry.path().extension().is_some_and(|ending| ending == "run")).count()
}

/// All messages of a queue, by id.
pub(crate) fn listed(server: &Process, queue: &str) -> BTreeMap<u64, Value> {
    let mut all = BTreeMap::new();
    let mut path = format!("/v1/queues/{queue}/messages?limit=1000");
    loop {
        let (status, page) = server.call("GET", &path, "");
        assert_eq!(status, 200, "{page}");
        for message in page["messages"].as_array().expect("messages") {
            all.insert(id(&message["id"]), message.clone());
        }
        match page["next"].as_str() {
            Some(next) => path = format!("/v1/queues/{queue}/messages?limit=1000&after={next}"),
            None => return all,
        }
    }
}

pub(crate) fn ms(instant: &str) -> i64 {
    instant.parse::<jiff::Timestamp>().expect("an instant").as_millisecond()
}

/// A server on a restored copy has what was acknowledged before the copy began, as it was said, and nothing that was
/// gone.
fn check(server: &Process, book: &Book, what: &str) {
    let there: BTreeMap<&str, _> = ["later", "now"].map(|queue| (queue, listed(server, queue))).into();
    let mut compared = 0;
    for (id, said) in &book.pending {
        if book.touched.contains(id) {
            continue; // its end may be in the copy or not
        }
        let Some(found) = there[said.queue].get(id) else { panic!("{what}: {id} is lost: {said:?}") };
        let key = said.key.as_deref().map_or(Value::Null, Value::from);
        assert_eq!((&found["key"], &found["body"]), (&key, &json!(said.body)), "{what}: {id}");
        let due_at = found["due_at"].as_str().expect("due_at");
        if said.is_delayed {
            assert!((ms(due_at) - ms(&said.due_at)).abs() < CLOCKS_MS, "{what}: {id}: {due_at}, {said:?}");
        } else {
            assert_eq!(due_at, said.due_at, "{what}: {id}");
        }
        compared += 1;
    }
    assert!(compared > 100 && book.gone.len() > 10, "{what}: {compared} compared, {} gone", book.gone.len());
    for id in &book.gone {
        assert!(there.values().all(|queue| !queue.contains_key(id)), "{what}: {id} was gone");
    }
    // A key finds its message, and is still taken.
    let keyed = |said: &Said| said.key.clone();
    let (id, key) = book
        .pending
        .iter()
        .rev()
        .find_map(|(id, said)| Some((id, keyed(said).filter(|_| !book.touched.contains(id))?)))
        .expect("a key");
    assert_eq!(server.call("GET", &format!("/v1/queues/later/keys/{key}"), "").1["id"], id.to_string());
    let again = json!({"body": "", "delay": "1h", "key": key}).to_string();
    assert_eq!(server.call("POST", "/v1/queues/later/messages", &again).1["code"], "key_exists");
    // The leases are there; their tokens are the original's alone.
    assert!(!book.held.is_empty(), "{what}");
    for (id, token) in &book.held {
        assert_eq!(there["now"][id]["state"], "leased", "{what}: {id}");
        for call in ["ack", "nack", "extend"] {
            let body = json!({ "lease_token": token }).to_string();
            let (status, refused) = server.call("POST", &format!("/v1/messages/{id}/{call}"), &body);
            assert_eq!((status, &refused["code"]), (409, &json!("lease_lost")), "{what}: {call} {id}");
        }
    }
}

#[test]
fn backups_under_load_restore_acknowledged() {
    backups_under_load("1");
}

#[test]
fn sharded_backups_under_load_restore_acknowledged() {
    backups_under_load("2");
}

fn backups_under_load(shards: &str) {
    let dir = TempDir::new().expect("dir");
    let dir = dir.path();
    let data = dir.join("data");
    let original = Process::start(&data, &["--journal-bytes", "1048576", "--shards", shards]);
    let load = Load {
        server: &original,
        book: Mutex::default(),
        stop: AtomicBool::new(false),
        accepted: AtomicU64::new(0),
    };
    let copies = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..=PRODUCERS)
            .map(|n| {
                let load = &load;
                scope.spawn(move || if n < PRODUCERS { load.produce(n) } else { load.consume() })
            })
            .collect();
        let copies = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            load.until("runs", || runs(&data) > 1 && load.book().held.len() > 3);
            let (said, first) = load.backup(dir, &["one", "--json"]);
            let at_first = load.accepted.load(Ordering::Acquire);
            load.until("more", || load.accepted.load(Ordering::Acquire) > at_first + 500);
            let (told, second) = load.backup(dir, &["folder/two"]);
            let at_second = load.accepted.load(Ordering::Acquire);
            load.until("requests go on", || load.accepted.load(Ordering::Acquire) > at_second + 100);
            (said, first, told, second)
        }));
        load.stop.store(true, Ordering::Release);
        for client in clients {
            client.join().expect("a client");
        }
        copies.expect("backups")
    });
    let (said, first, told, second) = copies;
    let answer: Value = serde_json::from_str(&said).expect("json");
    assert_eq!(answer["dest"].as_str().map(Path::new), Some(&*dir.join("one")), "absolute: {answer}");
    assert!(answer["linked"].as_u64() > Some(0) && answer["bytes"].as_u64() > Some(500_000), "{answer}");
    schema::check(
        "POST",
        "/v1/backup",
        br#"{"dest": "/x"}"#,
        200,
        "application/json",
        said.trim().as_bytes(),
    );
    assert!(told.contains("folder/two") && told.contains(&original.url), "{told}");

    for (copy, book) in [("one", &first), ("folder/two", &second)] {
        let restored = format!("{copy}-restored");
        let verified = ok(duewheel(dir).args(["verify", copy, "--json"]));
        let verified: Value = serde_json::from_str(&verified).expect("json");
        assert_eq!(verified["problems"], json!([]), "{copy}");
        let report = ok(duewheel(dir).args(["restore", copy, &restored, "--json"]));
        let report: Value = serde_json::from_str(&report).expect("json");
        assert_eq!(report["messages"], verified["messages"], "{copy}: {report}");
        assert!(report["tokens_ended"].as_u64() >= Some(book.held.len() as u64), "{copy}: {report}");
        fails(duewheel(dir).args(["restore", copy, &restored]), "not empty");
        check(&Process::start(&dir.join(&restored), &[]), book, copy);
        // The copy was not touched, and may be restored again.
        let told = ok(duewheel(dir).args(["restore", copy, "again"]));
        assert!(told.starts_with(&format!("{} messages pending, ", report["messages"])), "{told}");
        std::fs::remove_dir_all(dir.join("again")).expect("remove");
    }
    // The original's own tokens go on there.
    let (id, token) = &first.held[0];
    let body = json!({ "lease_token": token }).to_string();
    assert_eq!(original.call("POST", &format!("/v1/messages/{id}/ack"), &body).0, 200);

    let server = ["backup", "--server", &original.url];
    fails(duewheel(dir).args(server).arg("one"), "bad_request: dest: the folder is not empty");
    fails(duewheel(dir).args(server).arg("data/copy"), "inside of the data folder");
    fails(duewheel(dir).args(["restore", "data", "from-data"]), "another process");
    fails(duewheel(dir).args(["restore", "missing", "from-missing"]), "missing");
    assert!(!dir.join("from-data").exists() && !dir.join("from-missing").exists());
    fails(
        duewheel(dir).args(["backup", "three", "--wait", "0", "--server", "http://127.0.0.1:9"]),
        "no server",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_backup_destination_is_named() {
    let server = Server::start().await;
    for (body, field) in [
        ("{}", json!("dest")),
        (r#"{"dest": "relative/path"}"#, json!("dest")),
        (r#"{"dest": ""}"#, json!("dest")),
        (r#"{"dest": 1}"#, json!("dest")),
        (r#"{"dest": "/a\u0000b"}"#, json!("dest")),
        (r#"{"dest": "/tmp/x", "to": "/tmp/y"}"#, json!("to")),
    ] {
        let answer = server.call("POST", "/v1/backup", body).await;
        assert_eq!((answer.status, &answer.json()["code"]), (400, &json!("bad_request")), "{body}");
        assert_eq!(answer.json()["field"], field, "{body}");
    }
    assert_eq!(server.call("GET", "/v1/backup", "").await.status, 405);
    let answer = server.call("POST", "/v1/backup", r#"{"dest": "/nowhere/at/all"}"#).await;
    assert_eq!((answer.status, &answer.json()["code"]), (400, &json!("bad_request")));
    assert!(
        answer.json()["detail"].as_str().is_some_and(|d| d.contains("not in a data folder")),
        "{answer:?}"
    );
}
