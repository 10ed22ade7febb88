//! HTTP over several shards: ids, orders and cursors are other than with one, and the promises are the same.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::Server;
use crate::process::{BINARY, Process, run, text};

#[test]
fn server_keeps_its_shard_count() {
    let dir = TempDir::new().expect("dir");
    let data = dir.path().join("data");
    let server = Process::start(&data, &["--shards", "3"]);
    let lines: String = (0..30)
        .map(|n| json!({"body": "a", "key": n.to_string(), "delay": "1h"}).to_string() + "\n")
        .collect();
    assert!(server.lines("q", &lines).iter().all(|line| line["status"] == 201));
    let (_, cluster) = server.call("GET", "/v1/cluster", "");
    assert_eq!(
        (&cluster["shards_without_owner"], cluster["shards"].as_array().map(Vec::len)),
        (&json!(0), Some(3))
    );
    let shown = run(Command::new(BINARY).args(["cluster", "show", "--server", &server.url]));
    let shown = text(&shown.stdout);
    assert!(shown.contains("SHARD") && shown.ends_with("shards without an owner: 0\n"), "{shown}");
    let address = server.url.trim_start_matches("http://").to_owned();
    // Killed; without a number it is opened as it is.
    let mut server = server.killed_and_restarted(&data, &address);
    let (status, queue) = server.call("GET", "/v1/queues/q", "");
    assert_eq!((status, &queue["counts"]["scheduled"]), (200, &json!(30)), "{queue}");
    server.signal("-TERM");
    assert!(server.wait().success());
    for asked in ["1", "4"] {
        let mut serve = Command::new(BINARY);
        serve
            .args(["serve", "--http", "127.0.0.1:0", "--beanstalk", "off", "--shards", asked, "--data"])
            .arg(&data);
        let refused = run(&mut serve);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains("has 3 shards, which cannot be changed, and"), "{said}");
    }
    let verified = run(Command::new(BINARY).arg("verify").arg(&data).arg("--json"));
    let report: Value = serde_json::from_slice(&verified.stdout).expect("json");
    assert_eq!((&report["messages"], &report["problems"]), (&json!(30), &json!([])));
}

/// Story: with several shards the server's own queues, at which its workers wait, were listed among the others, and an
/// export ended at the first of them.
#[test]
fn internal_queues_are_never_listed() {
    let dir = TempDir::new().expect("dir");
    let server = Process::start(&dir.path().join("data"), &["--shards", "2"]);
    let (status, _) =
        server.call("POST", "/v1/queues/a/messages", &json!({"body": "x", "delay": "1h"}).to_string());
    assert_eq!(status, 201);
    let (_, listed) = server.call("GET", "/v1/queues", "");
    let names: Vec<&str> = listed["queues"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|queue| queue["queue"].as_str())
        .collect();
    assert_eq!(names, ["a"], "{listed}");
    let exported = run(Command::new(BINARY).args(["export", "-", "--server", &server.url]));
    let (lines, said) = (text(&exported.stdout), text(&exported.stderr));
    assert!(exported.status.success(), "{said}");
    assert_eq!(lines.lines().filter(|line| line.contains("\"type\":\"message\"")).count(), 1, "{lines}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sharded_pages_follow_due_order() {
    let server = Server::start_shards(5).await;
    for n in 0..60 {
        let body = match n % 2 {
            0 => json!({"body": "a", "delay_ms": 1_000_000 - n * 1_000}),
            _ => {
                json!({"body": "a", "key": n.to_string(), "due_at": format!("2026-01-01T00:{:02}:00Z", 59 - n % 50)})
            }
        };
        server.enqueue("q", &body.to_string()).await;
    }
    for limit in [1, 7, 50, 1_000] {
        let mut seen: Vec<(String, u64)> = Vec::new();
        let mut after = String::new();
        loop {
            let page = server.ok("GET", &format!("/v1/queues/q/messages?limit={limit}{after}"), "").await;
            for m in page["messages"].as_array().expect("messages") {
                let id = m["id"].as_str().expect("id").parse().expect("a number");
                seen.push((m["due_at"].as_str().expect("due_at").into(), id));
            }
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        assert_eq!(seen.len(), 60);
        assert!(seen.is_sorted(), "{limit} at a time");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cursor_of_other_shard_count_refused() {
    let server = Server::start_shards(3).await;
    server.enqueue("q", r#"{"body": "a", "delay_ms": 5000}"#).await;
    for after in ["-_-", "-_-~-_-", "-_-~-_-~-_-~-_-", "~~", "1.2_-~.~", "a~b~c"] {
        let answer = server.call("GET", &format!("/v1/queues/q/messages?after={after}"), "").await;
        assert_eq!((answer.status, &answer.json()["field"]), (400, &json!("after")), "{after}");
    }
    let page = server.ok("GET", "/v1/queues/q/messages?after=-_-~.~-_-", "").await;
    assert!(page["messages"].is_array());
    let none = server.ok("GET", "/v1/queues/q/messages?after=.~.~.", "").await;
    assert_eq!(none, json!({"messages": [], "next": null}));
}

#[tokio::test(flavor = "multi_thread")]
async fn message_operations_work_across_shards() {
    let server = Server::start_shards(4).await;
    let keyed = |n: u64| json!({"body": "a", "key": format!("k{n}"), "delay_ms": 60_000}).to_string();
    let ids: BTreeSet<String> = {
        let mut ids = BTreeSet::new();
        for n in 0..30 {
            ids.insert(server.enqueue("q", &keyed(n)).await);
        }
        ids
    };
    assert_eq!(ids.len(), 30);
    let again = server.call("POST", "/v1/queues/q/messages", &keyed(3)).await;
    assert_eq!(again.status, 409);
    let keys: Vec<String> = (0..10).map(|n| format!("k{n}")).collect();
    let some: Vec<&String> = ids.iter().take(5).collect();
    let cancelled =
        server.ok("POST", "/v1/queues/q/cancel", &json!({"keys": keys, "ids": some}).to_string()).await;
    assert_eq!(cancelled["results"].as_array().map(Vec::len), Some(15));
    let count = |counts: &Value| counts["counts"]["scheduled"].as_u64().expect("a number");
    let left = count(&server.ok("GET", "/v1/queues/q", "").await);
    assert!((15..=20).contains(&left), "{left}");

    server.advance(60_000);
    let grants = server.reserve("q", r#"{"max": 100}"#).await;
    assert_eq!(grants.len() as u64, left);
    let acks: Vec<Value> =
        grants.iter().map(|g| json!({"id": g["id"], "lease_token": g["lease_token"]})).collect();
    let acked = server.ok("POST", "/v1/ack", &json!({"messages": acks}).to_string()).await;
    assert!(acked["results"].as_array().expect("results").iter().all(|r| r["result"] == "acked"), "{acked}");
    let tokens: BTreeSet<&str> = grants.iter().filter_map(|g| g["lease_token"].as_str()).collect();
    assert_eq!(tokens.len(), grants.len(), "no token is one of another message");
    let queue = server.ok("GET", "/v1/queues/q", "").await;
    assert_eq!(count(&queue), 0);
    let metrics = server.call("GET", "/metrics", "").await;
    let text = String::from_utf8(metrics.body).expect("text");
    let acked = text.lines().filter_map(|line| line.strip_prefix("duewheel_acked_total{shard=\""));
    let acked: Vec<(&str, u64)> = acked
        .filter_map(|line| line.split_once("\"} "))
        .map(|(shard, n)| (shard, n.parse().expect("a number")))
        .collect();
    assert_eq!(acked.iter().map(|(shard, _)| *shard).collect::<String>(), "0123");
    assert_eq!(acked.iter().map(|(_, n)| n).sum::<u64>(), left, "{text}");
}

/// More lines than one slice has: the slices go one after the other, and the last line of a key wins.
#[tokio::test(flavor = "multi_thread")]
async fn large_batch_lines_keep_order() {
    let server = Server::start_shards(4).await;
    let line = |n: u64| {
        let key = format!("k{}", n % 40);
        json!({"body": n.to_string(), "key": key, "if_exists": "replace", "delay_ms": 60_000}).to_string()
    };
    let body: Vec<String> = (0..2_480).map(line).collect();
    let results = server.lines("q", &body.join("\n")).await.results();
    assert_eq!(results.len(), 2_480);
    let mut holders = vec![Value::Null; 40];
    for (n, result) in results.iter().enumerate() {
        assert_eq!(result["status"], 201, "{n}: {result}");
        assert_eq!(result["key"], format!("k{}", n % 40), "{n}");
        let replaced = result.get("replaced").cloned().unwrap_or(Value::Null);
        assert_eq!(replaced, std::mem::replace(&mut holders[n % 40], result["id"].clone()), "{n}");
    }
    for (k, holder) in holders.iter().enumerate() {
        let held = server.ok("GET", &format!("/v1/queues/q/keys/k{k}"), "").await;
        assert_eq!((&held["id"], &held["body"]), (holder, &json!((2_440 + k).to_string())), "k{k}");
    }
}
