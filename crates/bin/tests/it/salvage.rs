//! `duewheel salvage` and `duewheel store backup`: exit codes, the list, and a folder that opens.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use duewheel::core::store::Store;
use duewheel::core::store::conformance::History;
use duewheel_postgres_rig::{Postgres, Settings as PgSettings};
use duewheel_redis_rig::{Redis, Settings};
use duewheel_store_log::{LogStore, Options, verify};
use serde_json::Value;

use crate::process::{BINARY, Process, run, text};

fn salvage(src: &Path, dest: &Path) -> Output {
    Command::new(BINARY).args(["salvage", "--json"]).args([src, dest]).output().expect("run")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn salvage_exit_code_reports_losses() {
    let dir = tempfile::tempdir().expect("a folder");
    let (src, whole, rest) = (dir.path().join("src"), dir.path().join("whole"), dir.path().join("rest"));
    let options = Options { segment_bytes: 64 * 1024, ..Options::default() };
    let mut store = LogStore::open(&src, options, Arc::new(|| {})).expect("open");
    let mut history = History::new(3);
    for _ in 0..30 {
        store.append(&history.group(9)).expect("append");
    }
    store.close(history.tick()).expect("close");

    let done = salvage(&src, &whole);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(json(&done)["losses"], serde_json::json!([]));
    let report = verify(&whole).expect("verify");
    assert_eq!((report.problems.len(), report.messages), (0, history.model().len() as u64));
    assert!(!dir.path().join("whole.partial").exists());

    let again = salvage(&src, &whole);
    assert_eq!(again.status.code(), Some(1), "the new folder must not be there");
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists"), "{again:?}");

    let journal = src.join("journal/0000000001.log");
    let mut bytes = fs::read(&journal).expect("read");
    bytes[4_096 + 60] ^= 1;
    fs::write(&journal, &bytes).expect("write");
    let lossy = salvage(&src, &rest);
    assert_eq!(lossy.status.code(), Some(1), "{lossy:?}");
    let told = json(&lossy);
    assert_eq!(told["losses"][0]["kind"], "records", "{told}");
    assert!(told["damage"][0].as_str().expect("a place").starts_with("journal/0000000001.log"), "{told}");
    assert_eq!(fs::read(&journal).expect("read"), bytes, "the damaged folder stays as it is");
    let report = verify(&rest).expect("verify");
    assert_eq!((report.problems.len(), Some(report.messages)), (0, told["messages"].as_u64()));

    let usage = Command::new(BINARY).arg("salvage").output().expect("run");
    assert_eq!(usage.status.code(), Some(2));
}

const MESSAGES: u64 = 40;

fn serve(place: &[&str]) -> Process {
    let mut command = Command::new(BINARY);
    command.args(["serve", "--http", "127.0.0.1:0", "--shards", "3"]).args(place);
    Process::spawn(command)
}

fn salvage_store(url: &str, dest: &Path) -> Output {
    run(Command::new(BINARY).args(["salvage", "--json", "--store", url]).arg(dest))
}

/// A store on a server with messages, of which one is cancelled, and a paused queue; nobody owns it.
fn filled(url: &str, dest: &Path) {
    let mut server = serve(&["--store", url]);
    for n in 0..MESSAGES {
        let body = format!(r#"{{"body": "body {n}", "delay": "{}h", "key": "order-{n}"}}"#, n + 1);
        assert_eq!(server.call("POST", "/v1/queues/orders/messages", &body).0, 201);
    }
    assert_eq!(server.call("DELETE", "/v1/queues/orders/keys/order-7", "").0, 200);
    assert_eq!(server.call("POST", "/v1/queues/mails/pause", "{}").0, 200);
    let owned = salvage_store(url, dest);
    assert_eq!(owned.status.code(), Some(1));
    assert!(text(&owned.stderr).contains("stop all nodes first"), "{}", text(&owned.stderr));
    assert!(!dest.exists());
    server.signal("-TERM");
    assert!(server.wait().success());
}

/// The folder of a salvage serves what was told, with its keys.
fn is_served(dest: &Path, messages: u64) {
    let data = dest.display().to_string();
    let mut server = serve(&["--data", &data]);
    let (status, stats) = server.call("GET", "/v1/stats", "");
    assert_eq!(status, 200, "{stats}");
    assert_eq!(stats["counts"]["scheduled"].as_u64(), Some(messages), "{stats}");
    assert_eq!(server.call("GET", "/v1/queues/orders/keys/order-7", "").0, 404, "it was cancelled");
    let body = r#"{"body": "new", "delay": "1h", "key": "order-7"}"#;
    let (status, answer) = server.call("POST", "/v1/queues/orders/messages", body);
    assert_eq!(status, 201, "{answer}");
    server.signal("-TERM");
    assert!(server.wait().success());
}

/// Nothing is damaged, so this is a copy of the store in a folder, settings and keys included.
fn a_whole_store_becomes_a_folder(url: &str) {
    let dir = tempfile::tempdir().expect("a folder");
    let dest = dir.path().join("dest");
    filled(url, &dest);
    let done = salvage_store(url, &dest);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let told = json(&done);
    assert_eq!(
        (told["messages"].as_u64(), &told["losses"]),
        (Some(MESSAGES - 1), &serde_json::json!([])),
        "{told}"
    );
    let data = dest.display().to_string();
    let mut server = serve(&["--data", &data]);
    let (_, queue) = server.call("GET", "/v1/queues/mails", "");
    assert_eq!(queue["paused"], true, "{queue}");
    server.signal("-TERM");
    assert!(server.wait().success());
    is_served(&dest, MESSAGES - 1);
}

#[test]
fn intact_redis_salvages_to_folder() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    a_whole_store_becomes_a_folder(&redis.url(0));
}

#[test]
fn intact_postgres_salvages_to_folder() {
    let postgres = Postgres::start(PgSettings::default()).expect("a server of PostgreSQL");
    a_whole_store_becomes_a_folder(&postgres.url());
}

/// What checksums prove is kept, and what is lost is told. `spoil` changes some of the bodies, wherever they lie: in the
/// journals.
fn a_damaged_store_is_salvaged(url: &str, spoil: impl FnOnce()) {
    let dir = tempfile::tempdir().expect("a folder");
    let dest = dir.path().join("dest");
    filled(url, &dest);
    spoil();
    let damaged = run(Command::new(BINARY).args(["verify", "--store", url]));
    assert_eq!(damaged.status.code(), Some(1), "{}", text(&damaged.stdout));
    let lossy = salvage_store(url, &dest);
    assert_eq!(lossy.status.code(), Some(1), "{}", text(&lossy.stderr));
    let told = json(&lossy);
    let places = told["damage"].as_array().expect("damage");
    assert!(
        places.iter().all(|place| place.as_str().is_some_and(|place| place.contains("-of-3/"))),
        "{told}"
    );
    let messages = told["messages"].as_u64().expect("a number");
    assert!((1..MESSAGES - 1).contains(&messages), "{told}");
    is_served(&dest, messages);
}

#[test]
fn a_damaged_redis_is_salvaged() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    // Each body that ends with a 2.
    let spoil = "for _, key in ipairs(redis.call('KEYS', '*')) do \
                 if redis.call('TYPE', key).ok == 'string' then \
                 local at = string.find(redis.call('GET', key), 'body %d?2') \
                 if at then redis.call('SETRANGE', key, at - 1, 'BODY') end end end";
    a_damaged_store_is_salvaged(&redis.url(0), || {
        redis.command(&["EVAL", spoil, "0"]).expect("spoilt");
    });
}

#[test]
fn a_damaged_postgres_is_salvaged() {
    let postgres = Postgres::start(PgSettings::default()).expect("a server of PostgreSQL");
    let spoil = "UPDATE duewheel.piece SET body = overlay(body placing 'BODY'::bytea from position(wanted IN body)) \
                 FROM (SELECT ('body ' || n)::bytea AS wanted FROM generate_series(2, 32, 10) AS n) AS bodies \
                 WHERE position(wanted IN body) > 0";
    a_damaged_store_is_salvaged(&postgres.url(), || {
        postgres.query(spoil).expect("spoilt");
    });
}

fn backup_store(url: &str, dest: &Path) -> Output {
    run(Command::new(BINARY).args(["store", "backup", "--json", "--store", url]).arg(dest))
}

/// A copy of a store is restored to a folder, and serves what it had.
fn is_restored(copy: &Path, messages: u64) {
    let data = copy.with_extension("restored");
    let verified = run(Command::new(BINARY).arg("verify").arg(copy));
    assert_eq!(verified.status.code(), Some(0), "{}", text(&verified.stdout));
    let restored = run(Command::new(BINARY).arg("restore").arg(copy).arg(&data));
    assert_eq!(restored.status.code(), Some(0), "{}", text(&restored.stderr));
    is_served(&data, messages);
}

/// The copy is of one moment of all shards, however much they change meanwhile.
#[test]
fn postgres_backup_runs_beside_node() {
    let postgres = Postgres::start(PgSettings::default()).expect("a server of PostgreSQL");
    let dir = tempfile::tempdir().expect("a folder");
    filled(&postgres.url(), &dir.path().join("none"));
    let mut server = serve(&["--store", &postgres.url()]);
    let ends = AtomicBool::new(false);
    let told = std::thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let mut sent = 0;
            while !ends.load(Ordering::Relaxed) || sent < 20 {
                let body = format!(r#"{{"body": "beside {sent}", "delay": "9h"}}"#);
                let (status, answer) = server.call("POST", "/v1/queues/beside/messages", &body);
                assert_eq!(status, 201, "{answer}");
                sent += 1;
            }
            sent
        });
        let told: Vec<Value> = (0..3)
            .map(|n| {
                let copied = backup_store(&postgres.url(), &dir.path().join(format!("copy-{n}")));
                assert_eq!(copied.status.code(), Some(0), "{}", text(&copied.stderr));
                json(&copied)
            })
            .collect();
        ends.store(true, Ordering::Relaxed);
        let sent = beside.join().expect("it ends");
        let counts: Vec<u64> = told.iter().filter_map(|told| told["messages"].as_u64()).collect();
        let all = MESSAGES - 1..MESSAGES + sent;
        assert!(counts.is_sorted() && counts.iter().all(|n| all.contains(n)), "{counts:?}");
        told
    });
    server.signal("-TERM");
    assert!(server.wait().success());
    for (n, told) in told.iter().enumerate() {
        is_restored(&dir.path().join(format!("copy-{n}")), told["messages"].as_u64().expect("a number"));
    }
}

#[test]
fn redis_backup_requires_unowned_shards() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let dir = tempfile::tempdir().expect("a folder");
    let copy = dir.path().join("copy");
    filled(&redis.url(0), &copy);
    let mut server = serve(&["--store", &redis.url(0)]);
    let owned = backup_store(&redis.url(0), &copy);
    assert_eq!(owned.status.code(), Some(1));
    assert!(text(&owned.stderr).contains("stop all nodes first"), "{}", text(&owned.stderr));
    server.signal("-TERM");
    assert!(server.wait().success());
    let copied = backup_store(&redis.url(0), &copy);
    assert_eq!(copied.status.code(), Some(0), "{}", text(&copied.stderr));
    assert_eq!(json(&copied)["messages"].as_u64(), Some(MESSAGES - 1));
    is_restored(&copy, MESSAGES - 1);
    let folder = run(Command::new(BINARY).args(["store", "backup"]).arg(dir.path().join("other")));
    assert_eq!(folder.status.code(), Some(2));
    assert!(text(&folder.stderr).contains("duewheel backup"), "{}", text(&folder.stderr));
}
