//! What stores hold, read without their servers: `duewheel inspect` and `duewheel verify`.

use std::process::Command;
use std::time::{Duration, Instant};

use duewheel_postgres_rig::{Postgres, Settings as PgSettings};
use duewheel_redis_rig::{Redis, Settings};
use serde_json::Value;

use crate::fixture::PATIENCE;
use crate::process::{BINARY, Process, run, text};

const SHARDS: u64 = 3;
const MESSAGES: u64 = 30;

fn serve(place: &[&str]) -> Process {
    let mut command = Command::new(BINARY);
    command.args(["serve", "--http", "127.0.0.1:0", "--shards", "3"]).args(place);
    Process::spawn(command)
}

fn as_json(command: &str, place: &[&str], more: &[&str]) -> Value {
    let output = run(Command::new(BINARY).arg(command).args(place).args(more).arg("--json"));
    assert!(output.status.success(), "{command}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stdout)))
}

/// Messages with a key in one queue, of which one is cancelled; then the store is read, first while the server has it.
fn is_inspected(place: &[&str], folder: Option<&str>) {
    let mut server = serve(place);
    for n in 0..MESSAGES {
        let body = format!(r#"{{"body": "body {n}", "delay": "{}h", "key": "order-{n}"}}"#, n + 1);
        let (status, answer) = server.call("POST", "/v1/queues/orders/messages", &body);
        assert_eq!(status, 201, "{answer}");
    }
    let (status, answer) = server.call("DELETE", "/v1/queues/orders/keys/order-7", "");
    assert_eq!(status, 200, "{answer}");
    let look = |more: &[&str]| as_json("inspect", place, more);
    let counted = |seen: &Value| {
        let queues = seen["queues"].as_array().expect("queues");
        assert!(queues.iter().all(|row| row["queue"] == "orders"), "{seen}");
        queues.iter().filter_map(|row| row["messages"].as_u64()).sum::<u64>()
    };
    let seen = look(&[]);
    assert_eq!(counted(&seen), MESSAGES - 1, "{seen}");
    assert_eq!(seen["shards"].as_array().map(Vec::len), usize::try_from(SHARDS).ok());
    let first = look(&["--queue", "orders", "--limit", "3"]);
    let keys: Vec<&str> =
        first["messages"].as_array().expect("messages").iter().filter_map(|m| m["key"].as_str()).collect();
    assert_eq!(keys, ["order-0", "order-1", "order-2"], "by due time, over all shards: {first}");
    assert_eq!(first["messages"][0]["body"], "body 0");
    let one = look(&["--shard", "1", "--queue", "orders", "--limit", "1000"]);
    let alone = one["messages"].as_array().expect("messages");
    assert!(!alone.is_empty() && alone.iter().all(|message| message["shard"] == 1), "{one}");
    let refused = run(Command::new(BINARY).arg("inspect").args(place).args(["--shard", "3"]));
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("shards 0 to 2"), "{}", text(&refused.stderr));

    // Its files change while a server has it, so it is not checked.
    let verify = |more: &[&str]| match folder {
        Some(folder) => run(Command::new(BINARY).args(["verify", folder]).args(more)),
        None => run(Command::new(BINARY).arg("verify").args(place).args(more)),
    };
    let busy = verify(&[]);
    assert_eq!(busy.status.code(), Some(1), "{}", text(&busy.stdout));
    server.signal("-TERM");
    assert!(server.wait().success());
    let whole = verify(&["--json"]);
    assert!(whole.status.success(), "{} {}", text(&whole.stdout), text(&whole.stderr));
    let report: Value = serde_json::from_slice(&whole.stdout).expect("JSON");
    assert_eq!(
        (report["messages"].as_u64(), report["problems"].as_array().map(Vec::len)),
        (Some(MESSAGES - 1), Some(0))
    );
    assert_eq!(counted(&look(&[])), MESSAGES - 1, "after the end of the server");
}

#[test]
fn a_data_folder_is_inspected() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data").display().to_string();
    is_inspected(&["--data", &data], Some(&data));
}

/// Story: messages that had ended and were kept, and the server's own records of schedules, were counted as pending by
/// every command that reads a folder, and by the first line of the log.
#[test]
fn done_and_internal_records_not_pending() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let data = path("data");
    let server = |log: &str| {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--http", "127.0.0.1:0", "--data", &data]);
        Process::spawn_logged(command, std::fs::File::create(path(log)).expect("a log").into())
    };
    let call = |server: &Process, method: &str, path: &str, body: &str| -> Value {
        let (status, answer) = server.call(method, path, body);
        assert!((200..300).contains(&status), "{method} {path}: {answer}");
        answer
    };
    let mut first = server("first");
    call(&first, "PATCH", "/v1/queues/kd/config", r#"{"keep_done": "24h"}"#);
    for (key, delay) in [("ended", "1h"), ("later", "2h"), ("now", "0s")] {
        let body = format!(r#"{{"body": "x", "key": "{key}", "delay": "{delay}"}}"#);
        call(&first, "POST", "/v1/queues/kd/messages", &body);
    }
    call(&first, "DELETE", "/v1/queues/kd/keys/ended", "");
    call(&first, "PUT", "/v1/schedules/s", r#"{"queue": "scheduled", "cron": "0 9 * * *", "paused": true}"#);
    let shown = call(&first, "GET", "/v1/queues/kd/keys/later", "");
    first.signal("-TERM");
    assert!(first.wait().success());

    let checked = as_json("verify", &[&data], &[]);
    assert_eq!(checked["messages"], 2, "{checked}");
    assert!(checked["kept"].as_u64() >= Some(2), "{checked}");
    let told = text(&run(Command::new(BINARY).args(["verify", &data])).stdout);
    assert!(told.contains(", 2 messages pending, ") && told.contains(" kept beside them"), "{told}");
    let seen = as_json("inspect", &["--data", &data], &[]);
    let queues = seen["queues"].as_array().expect("queues");
    let row = queues.iter().find(|row| row["queue"] == "kd").expect("the queue");
    assert_eq!((&row["messages"], &row["done"]), (&Value::from(2), &Value::from(1)), "{seen}");
    assert!(!seen.to_string().contains('#'), "{seen}");
    let listed = as_json("inspect", &["--data", &data, "--queue", "kd"], &[]);
    let messages = listed["messages"].as_array().expect("messages");
    let states: Vec<&str> = messages.iter().filter_map(|message| message["state"].as_str()).collect();
    assert_eq!(states, ["ready", "scheduled"], "{listed}");
    assert_eq!(messages[1]["due_at"], shown["due_at"], "{listed}");
    for (command, dest) in [("restore", path("restored")), ("salvage", path("salvaged"))] {
        let made = as_json(command, &[&data, &dest], &[]);
        assert_eq!(made["messages"], 2, "{command}: {made}");
    }
    let second = server("second");
    let ready = |seen: &Value| seen["status"] == "ok";
    second.until("/healthz", ready);
    let begun = Instant::now();
    loop {
        let log = std::fs::read_to_string(path("second")).expect("the log");
        if let Some(line) = log.lines().find(|line| line.contains("started ")) {
            assert!(line.contains("messages=2 "), "{line}");
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{log}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_redis_is_inspected_and_verified() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    is_inspected(&["--store", &redis.url(0)], None);
}

#[test]
fn a_postgres_is_inspected_and_verified() {
    let postgres = Postgres::start(PgSettings::default()).expect("a server of PostgreSQL");
    is_inspected(&["--store", &postgres.url()], None);
}

/// Messages in three shards, and no node.
fn filled(url: &str) {
    let mut server = serve(&["--store", url]);
    for n in 0..MESSAGES {
        let body = format!(r#"{{"body": "body {n}", "delay": "1h", "key": "order-{n}"}}"#);
        assert_eq!(server.call("POST", "/v1/queues/orders/messages", &body).0, 201);
    }
    server.signal("-TERM");
    assert!(server.wait().success());
}

fn problems(url: &str) -> (bool, Vec<String>) {
    let checked = run(Command::new(BINARY).args(["verify", "--json", "--store", url]));
    let report: Value = serde_json::from_slice(&checked.stdout).expect("JSON");
    let problems = report["problems"].as_array().expect("problems").iter();
    (checked.status.success(), problems.map(|problem| problem.as_str().expect("words").to_owned()).collect())
}

/// Story: a shard without a file was passed over, as one that never had an owner. A store that had lost all files of a
/// shard was told to be sound.
#[test]
fn redis_shard_without_files_is_problem() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let url = redis.url(0);
    let made =
        run(Command::new(BINARY).args(["cluster", "reset", "--yes", "--shards", "3", "--store", &url]));
    assert!(made.status.success(), "{}", text(&made.stderr));
    assert_eq!(problems(&url), (true, Vec::new()), "no shard has had an owner");
    filled(&url);
    assert_eq!(problems(&url), (true, Vec::new()));
    redis.command(&["DEL", "{duewheel:1}:files"]).expect("lost");
    let (sound, told) = problems(&url);
    assert!(
        !sound && told.len() == 1 && told[0].starts_with("shard 1 ") && told[0].contains("lost"),
        "{told:?}"
    );
    // Nor does a node begin the shard anew as if nothing had been there.
    let log = tempfile::NamedTempFile::new().expect("a file");
    let mut command = Command::new(BINARY);
    command.args(["serve", "--http", "127.0.0.1:0", "--shard-lease", "1s", "--store", &url]);
    let node = Process::spawn_logged(command, log.reopen().expect("the file").into());
    let begun = Instant::now();
    while !std::fs::read_to_string(log.path()).expect("the log").contains("has no MANIFEST") {
        assert!(begun.elapsed() < PATIENCE, "it says nothing");
        std::thread::sleep(Duration::from_millis(20));
    }
    node.kill();
    // The head of the shard is gone, too.
    redis.command(&["DEL", "{duewheel:2}:files", "{duewheel:2}:head"]).expect("lost");
    let owned = |told: &[String]| told.iter().filter(|problem| problem.contains("lost")).count();
    let begun = Instant::now();
    loop {
        let checked = run(Command::new(BINARY).args(["verify", "--json", "--store", &url]));
        if let Ok(report) = serde_json::from_slice::<Value>(&checked.stdout) {
            let told: Vec<String> =
                report["problems"].as_array().expect("problems").iter().map(ToString::to_string).collect();
            assert_eq!(owned(&told), 2, "{told:?}");
            return;
        }
        // The killed node's leases run out.
        assert!(begun.elapsed() < PATIENCE, "{}", text(&checked.stderr));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn postgres_shard_without_files_is_problem() {
    let postgres = Postgres::start(PgSettings::default()).expect("a server of PostgreSQL");
    let url = postgres.url();
    filled(&url);
    assert_eq!(problems(&url), (true, Vec::new()));
    postgres.query("DELETE FROM duewheel.file WHERE shard = 1").expect("lost");
    let (sound, told) = problems(&url);
    assert!(
        !sound && told.len() == 1 && told[0].starts_with("shard 1 ") && told[0].contains("lost"),
        "{told:?}"
    );
    postgres
        .query("UPDATE duewheel.shard SET used = false; DELETE FROM duewheel.turn WHERE shard = 1")
        .expect("as if it never had a file");
    assert_eq!(problems(&url), (true, Vec::new()));
}

#[test]
fn where_nothing_is_that_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let nothing = folder.path().display().to_string();
    let refused = run(Command::new(BINARY).args(["inspect", "--data", &nothing]));
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let refused = run(Command::new(BINARY).args(["verify", "--store", &redis.url(0)]));
    assert!(text(&refused.stderr).contains("no node has taken part"), "{}", text(&refused.stderr));
    let refused = run(Command::new(BINARY).arg("verify"));
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
}
