//! What a server logs of its start and its end, as text and as JSON.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::PATIENCE;
use crate::process::{Process, run, serve, text};

fn start(dir: &Path, log: &str, more: &[&str]) -> Process {
    let mut command = serve();
    command.args(["--http", "127.0.0.1:0", "--data"]).arg(dir.join("data")).args(more);
    Process::spawn_logged(command, Stdio::from(File::create(dir.join(log)).expect("log")))
}

fn read(dir: &Path, log: &str) -> String {
    std::fs::read_to_string(dir.join(log)).expect("log")
}

#[test]
fn start_logs_recovery_and_last_end() {
    let dir = TempDir::new().expect("dir");
    let dir = dir.path();
    let enqueue = |server: &Process| {
        server.call("POST", "/v1/queues/q/messages", r#"{"body": "a", "delay": "1h"}"#);
    };
    let mut server = start(dir, "first", &["--log-format", "text"]);
    enqueue(&server);
    server.signal("-TERM");
    assert!(server.wait().success());
    let first = read(dir, "first");
    let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    for words in [
        "started ",
        &version,
        "durability=\"fsync\"",
        "messages=0",
        "the folder is new",
        "stopped: everything",
    ] {
        assert!(first.contains(words), "{words}: {first}");
    }
    let server = start(dir, "second", &[]);
    enqueue(&server);
    server.kill();
    let second = read(dir, "second");
    assert!(second.contains("messages=1") && second.contains("last_end=\"complete\""), "{second}");
    assert!(!second.contains("stopped"), "{second}");
    let server = start(dir, "third", &[]);
    server.kill();
    let third = read(dir, "third");
    assert!(third.contains("messages=2") && third.contains("last_end=\"cut off\""), "{third}");
    assert!(!third.contains("journal_records=0"), "{third}");
}

/// Story: the destination of a backup ended its line of the log, and what followed was a line of its own.
#[test]
fn logged_values_cannot_forge_lines() {
    let dir = TempDir::new().expect("dir");
    let root = dir.path().join("backups");
    std::fs::create_dir(&root).expect("a folder");
    let more = ["--log-format", "text", "--backup-root", root.to_str().expect("text")];
    let server = start(dir.path(), "log", &more);
    let (status, answer) = server.call("POST", "/v1/backup", r#"{"dest": "a\nforged \u001b[2J\u202e"}"#);
    assert_eq!(status, 200, "{answer}");
    server.kill();
    let log = read(dir.path(), "log");
    assert!(log.contains(r"a\nforged \u{1b}[2J\u{202e}"), "{log}");
    assert!(!log.lines().any(|line| line.starts_with("forged")), "{log}");
}

/// Story: over several shards the line said that nothing was recovered, and that the last end was unknown.
#[test]
fn start_logs_recovery_of_all_shards() {
    let dir = TempDir::new().expect("dir");
    let dir = dir.path();
    let shards = ["--shards", "3"];
    let enqueue = |server: &Process, keys: std::ops::Range<u32>| {
        for n in keys {
            let message = format!(r#"{{"body": "a", "delay": "1h", "key": "order-{n}"}}"#);
            server.call("POST", "/v1/queues/q/messages", &message);
        }
    };
    let mut server = start(dir, "first", &shards);
    enqueue(&server, 0..12);
    server.signal("-TERM");
    assert!(server.wait().success());
    let first = read(dir, "first");
    assert!(first.contains("messages=0") && first.contains("the folder is new"), "{first}");
    let data = format!("data={}", dir.join("data").display());
    assert!(first.contains(&data) && first.contains("took_ms="), "{first}");
    let server = start(dir, "second", &shards);
    server.kill();
    let second = read(dir, "second");
    assert!(second.contains("messages=12") && second.contains("last_end=\"complete\""), "{second}");
    let server = start(dir, "third", &shards);
    enqueue(&server, 12..24);
    server.kill();
    let server = start(dir, "fourth", &shards);
    server.kill();
    let fourth = read(dir, "fourth");
    assert!(fourth.contains("messages=24") && fourth.contains("last_end=\"cut off\""), "{fourth}");
    assert!(!fourth.contains("journal_records=0"), "{fourth}");
}

#[test]
fn queue_without_consumers_is_logged_once() {
    let dir = TempDir::new().expect("dir");
    let log = File::create(dir.path().join("log")).expect("log");
    let mut command = serve();
    command.args(["--http", "127.0.0.1:0", "--virtual-clock"]).current_dir(dir.path());
    let server = Process::spawn_logged(command, Stdio::from(log));
    for queue in ["odrers", "orders"] {
        server.call("POST", &format!("/v1/queues/{queue}/messages"), r#"{"body": "a", "delay": "0s"}"#);
    }
    server.call("POST", "/v1/queues/orders/reserve", "{}");
    let said = || read(dir.path(), "log").matches("without a reserve from its queue").count();
    let deadline = Instant::now() + PATIENCE;
    while said() == 0 {
        assert!(Instant::now() < deadline, "{}", read(dir.path(), "log"));
        assert_eq!(server.call("POST", "/v1/clock/advance", r#"{"by": "1m"}"#).0, 200);
    }
    for _ in 0..5 {
        server.call("POST", "/v1/clock/advance", r#"{"by": "1m"}"#);
    }
    let log = read(dir.path(), "log");
    assert!(said() == 1 && log.contains("odrers") && !log.contains("queue=orders"), "{log}");
}

/// All lines, the last error among them, have the same five words.
#[test]
fn json_log_format_covers_every_line() {
    let dir = TempDir::new().expect("dir");
    let dir = dir.path();
    let lines = |text: &str| -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        text.lines().map(parse).collect()
    };
    let json = ["--log-format", "json"];
    let mut server = start(dir, "log", &json);
    let mut second = serve();
    second.args(["--http", "127.0.0.1:0", "--beanstalk", "off", "--data"]).arg(dir.join("data")).args(json);
    let refused = run(&mut second);
    assert_eq!(refused.status.code(), Some(1));
    let errors = lines(&text(&refused.stderr));
    let last = errors.last().expect("a line");
    assert_eq!(last["level"], "error");
    assert!(last["message"].as_str().expect("message").starts_with("cannot open "), "{last}");
    server.signal("-TERM");
    assert!(server.wait().success());
    let all = lines(&read(dir, "log"));
    let started = all.iter().find(|line| line["message"] == "started").expect("a start");
    assert_eq!(started["fields"]["messages"], 0);
    assert_eq!(started["fields"]["last_end"], "none: the folder is new");
    for line in all.iter().chain(&errors) {
        let words: Vec<&String> = line.as_object().expect("object").keys().collect();
        assert!(
            words.iter().all(|word| ["time", "level", "area", "message", "fields"].contains(&word.as_str())),
            "{line}"
        );
        assert!(line["time"].as_str().expect("time").ends_with('Z'), "{line}");
    }
}

/// The act of a job is logged when it begins, and when it has ended with its count.
#[test]
fn job_logs_the_end_of_its_act() {
    let dir = TempDir::new().expect("dir");
    let mut server = start(dir.path(), "log", &["--log-format", "json"]);
    server.call("POST", "/v1/queues/q/messages", r#"{"body": "a", "delay": "1h"}"#);
    let (_, job) = server.call("POST", "/v1/queues/q/bulk", r#"{"action": "cancel", "all": true}"#);
    let path = format!("/v1/jobs/{}", job["id"].as_str().expect("id"));
    server.until(&path, |job| job["ended_at"].is_string());
    server.signal("-TERM");
    assert!(server.wait().success());
    let log = read(dir.path(), "log");
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let mut acts: Vec<Value> =
        lines.filter(|line| line["message"] == "act").map(|line| line["fields"].clone()).collect();
    // A job may be quicker than the answer.
    acts.sort_by_key(|act| act["count"].as_u64());
    let [begun, ended] = &acts[..] else { panic!("{log}") };
    assert_eq!((&begun["count"], &ended["count"]), (&Value::Null, &json!(1)));
    for act in &acts {
        assert_eq!(act["request_id"], begun["request_id"]);
        let of = ["act", "object", "job", "address"].map(|name| &act[name]);
        assert_eq!(of, [&json!("bulk_cancel"), &json!("q"), &job["id"], &json!("127.0.0.1")]);
    }
}

/// Story: a wrong option was told as text, which the collector of a server's log could not read.
#[test]
fn bad_option_error_follows_log_format() {
    let dir = TempDir::new().expect("dir");
    let file = dir.path().join("duewheel.toml");
    std::fs::write(&file, "log_format = \"json\"\nmax_delay = \"soon\"\n").expect("write");
    let file = file.to_str().expect("a path");
    let json = ["--log-format", "json"];
    for (args, env, words) in [
        (vec!["--nonsense"], "json", "--nonsense"),
        ([&["--http"][..], &json].concat(), "", "--http"),
        ([&["--drain-timeout", "soon"][..], &json].concat(), "", "soon"),
        ([&["--log", "a=b=c"][..], &json].concat(), "", "--log"),
        (vec!["--log-format=json", "--store", "none"], "", "--store"),
        (vec!["--http", "off", "--beanstalk", "off"], "json", "listener"),
        ([&["--config", file][..], &json].concat(), "", "max_delay"),
    ] {
        let mut command = serve();
        command.args(&args).current_dir(dir.path());
        if !env.is_empty() {
            command.env("DUEWHEEL_LOG_FORMAT", env);
        }
        let failed = run(&mut command);
        let told = text(&failed.stderr);
        assert_eq!(failed.status.code(), Some(2), "{args:?}: {told}");
        let line: Value = serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error}: {told}"));
        assert_eq!(line["level"], "error", "{told}");
        assert!(line["message"].as_str().is_some_and(|message| message.contains(words)), "{args:?}: {told}");
    }
    let failed = run(serve().arg("--nonsense"));
    assert!(text(&failed.stderr).starts_with("duewheel: "), "people get text");
}

#[test]
fn redis_password_is_never_logged() {
    let dir = TempDir::new().expect("dir");
    for format in ["text", "json"] {
        let mut command = serve();
        command.args(["--http", "127.0.0.1:0", "--beanstalk", "off", "--data"]).arg(dir.path().join("data"));
        command.args(["--store", "redis://user:hunter2@127.0.0.1:1", "--redis-start-timeout", "100ms"]);
        command.args(["--log", "trace", "--log-format", format]);
        let ended = run(&mut command);
        let log = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{log}");
        assert!(log.contains("Redis") && !log.contains("hunter2"), "{log}");
    }
}
