//! Acts on many messages that expect a number and keep what they remove: over HTTP, by the command line, over kill -9.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::Server;
use crate::process::{Process, text};
use crate::shell::Shell;

/// A server with a worker of jobs, three scheduled messages and a dead one in `orders`.
async fn orders() -> Server {
    let server = Server::start().await;
    server.app.start_jobs();
    for (key, delay) in [("a", "1h"), ("b", "2h"), ("c", "3h")] {
        let message = json!({"body": key, "key": key, "delay": delay, "priority": 7, "headers": {"h": key}});
        server.enqueue("orders", &message.to_string()).await;
    }
    server.enqueue("orders", &json!({"body": "d", "key": "d", "delay_ms": 0}).to_string()).await;
    let granted = server.ok("POST", "/v1/queues/orders/reserve", r#"{"wait_ms": 60000}"#).await;
    let message = &granted["messages"][0];
    let nack = json!({"lease_token": message["lease_token"], "dead": true}).to_string();
    server.ok("POST", &format!("/v1/messages/{}/nack", message["id"].as_str().expect("id")), &nack).await;
    server
}

async fn in_orders(server: &Server) -> Value {
    server.ok("GET", "/v1/queues/orders", "").await["counts"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn act_on_more_than_expected_does_nothing() {
    let server = orders().await;
    let before = in_orders(&server).await;
    let of = "/v1/queues/orders";
    for (method, path, body, matched) in [
        ("POST", format!("{of}/bulk"), json!({"action": "cancel", "all": true, "expect": 2}), 3),
        ("POST", format!("{of}/purge"), json!({"expect": 3}), 4),
        ("POST", format!("{of}/purge"), json!({"expect": 3, "keep": "1h"}), 4),
        ("POST", format!("{of}/redrive"), json!({"expect": 0}), 1),
        ("DELETE", format!("{of}?expect=3"), json!(null), 4),
    ] {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let refused = server.call(method, &path, &body).await;
        let problem = refused.json();
        assert_eq!(
            (refused.status, &problem["code"], &problem["matched"]),
            (409, &json!("changed"), &json!(matched)),
            "{path}: {problem}"
        );
        assert_eq!(in_orders(&server).await, before, "{path}");
    }
    assert_eq!(server.ok("GET", "/v1/jobs", "").await, json!({"jobs": []}));
    for (path, body, field) in [
        ("bulk", json!({"action": "cancel", "all": true, "keep": "367d"}), "keep"),
        ("bulk", json!({"action": "cancel", "all": true, "keep_ms": 31_708_800_001_u64}), "keep_ms"),
        ("bulk", json!({"action": "fire", "all": true, "keep": "1h"}), "keep"),
        ("bulk", json!({"action": "restore", "act": "no/act"}), "act"),
        ("purge", json!({"keep": "367d"}), "keep"),
        ("redrive", json!({"ids": ["1"], "expect": 1}), "expect"),
    ] {
        let refused = server.call("POST", &format!("{of}/{path}"), &body.to_string()).await;
        let problem = refused.json();
        assert_eq!((refused.status, &problem["field"]), (400, &json!(field)), "{body}: {problem}");
    }
    let refused = server.call("DELETE", &format!("{of}?expect=-1"), "").await;
    assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("expect")));
    assert_eq!(server.ok("POST", &format!("{of}/redrive"), r#"{"expect": 1}"#).await["redriven"], 1);
    assert_eq!(server.ok("POST", &format!("{of}/purge"), r#"{"expect": 4}"#).await["purged"], 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn purge_with_keep_is_undone() {
    let server = orders().await;
    let shown = async || server.ok("GET", "/v1/queues/orders/messages", "").await["messages"].clone();
    let before = shown().await;
    let purged = server.ok("POST", "/v1/queues/orders/purge", r#"{"keep": "1h", "expect": 4}"#).await;
    let act = purged["act"].as_str().expect("act");
    assert_eq!(purged, json!({"purged": 4, "act": act, "state": "done"}));
    assert_eq!(shown().await, json!([]));
    let gone = format!("/v1/messages/{}", before[0]["id"].as_str().expect("id"));
    assert_eq!(server.ok("GET", &gone, "").await["state"], "done");
    assert_eq!(server.ok("GET", "/v1/queues/orders/messages?state=done", "").await["messages"], json!([]));
    let job = server.ok("GET", &format!("/v1/jobs/{act}"), "").await;
    assert_eq!((&job["action"], &job["keep_ms"]), (&json!("purge"), &json!(3_600_000)));
    let restore = json!({"action": "restore", "act": act}).to_string();
    for restored in [4, 0] {
        let undo = server.call("POST", "/v1/queues/orders/bulk", &restore).await;
        assert_eq!((undo.status, &undo.json()["act"]), (202, &json!(act)));
        let undo = server.ended(&undo.json(), "").await;
        assert_eq!((&undo["done"], &undo["matched"]), (&json!(restored), &json!(restored)), "{undo}");
        let after = shown().await;
        assert_eq!(after.as_array().map(Vec::len), Some(4));
        for (was, is) in before.as_array().expect("list").iter().zip(after.as_array().expect("list")) {
            let mut is = is.clone();
            assert_ne!(is["id"], was["id"]);
            (is["id"], is["due_in_ms"]) = (was["id"].clone(), was["due_in_ms"].clone());
            assert_eq!(is, *was);
        }
    }
    assert_eq!(server.call("GET", &gone, "").await.status, 404);
    // The act of another queue puts nothing back here.
    let other = server.ok("POST", "/v1/queues/orders/purge", r#"{"keep_ms": 60000}"#).await;
    let restore = json!({"action": "restore", "act": other["act"], "dry_run": true}).to_string();
    assert_eq!(server.ok("POST", "/v1/queues/others/bulk", &restore).await["matched"], 0);
    assert_eq!(server.ok("POST", "/v1/queues/orders/bulk", &restore).await["matched"], 4);
}

/// A server that is killed again and again while it cancels and restores loses no message and doubles none, and its
/// audit trail has the outcome of both acts.
#[test]
fn kill_9_restores_each_message_once() {
    const MESSAGES: u64 = 4_000;
    // A job waits until the node that has died does not hold it any more: by a clock that the test moves.
    let virtual_clock = ["--virtual-clock", "force"];
    let dir = TempDir::new().expect("dir");
    let mut server = Process::start(dir.path(), &[&virtual_clock[..], &["--shards", "2"]].concat());
    let address = server.url.trim_start_matches("http://").to_owned();
    let due = "2031-05-01T10:00:00.000Z";
    for chunk in 0..MESSAGES / 1_000 {
        let line = |n: u64| {
            format!("{{\"body\": \"x\", \"key\": \"k{}\", \"due_at\": \"{due}\"}}\n", chunk * 1_000 + n)
        };
        let lines: String = (0..1_000).map(line).collect();
        assert!(server.lines("orders", &lines).iter().all(|answer| answer["created"] == true));
    }
    let mut act = Value::Null;
    for (action, left) in [("cancel", 0), ("restore", MESSAGES)] {
        let asked = match action {
            "cancel" => {
                json!({"action": "cancel", "all": true, "keep": "1h", "expect": MESSAGES, "rate": 1000})
            }
            _ => json!({"action": "restore", "act": act, "rate": 1000}),
        };
        let (status, job) = server.call("POST", "/v1/queues/orders/bulk", &asked.to_string());
        assert_eq!(status, 202, "{job}");
        act = job["id"].clone();
        let path = format!("/v1/jobs/{}", job["id"].as_str().expect("id"));
        for at in [1, MESSAGES / 3] {
            // While the job goes on.
            server.until(&path, |job| job["done"].as_u64().expect("done") >= at && job["ended_at"].is_null());
            server = server.killed_and_restarted_with(dir.path(), &address, &virtual_clock);
            assert_eq!(server.call("POST", "/v1/clock/advance", r#"{"by": "10s"}"#).0, 200);
        }
        let job = server.until(&path, |job| job["ended_at"].is_string());
        assert_eq!((&job["done"], &job["changed"]), (&json!(MESSAGES), &json!(0)), "{job}");
        assert_eq!(server.call("GET", "/v1/queues/orders", "").1["counts"]["scheduled"], left);
    }
    let (_, audit) = server.call("GET", "/v1/audit", "");
    let acts = audit["acts"].as_array().expect("acts").iter();
    let mut counts: Vec<_> = acts.map(|act| (act["act"].as_str(), act["count"].as_u64())).collect();
    counts.retain(|(act, _)| *act != Some("advanceClock"));
    assert_eq!(counts, ["bulk_restore", "bulk_cancel"].map(|act| (Some(act), Some(MESSAGES))));
    let (_, last) = server.call("GET", &format!("/v1/queues/orders/keys/k{}", MESSAGES - 1), "");
    assert_eq!((&last["due_at"], &last["state"]), (&json!(due), &json!("scheduled")));
}

#[test]
fn commands_say_how_an_act_is_undone() {
    let shell = Shell::new();
    for key in ["order-1", "order-2", "sms-1"] {
        shell.ok(&["enqueue", "orders", "x", "--key", key, "--delay", "1h"]);
    }
    let undo_of = |args: &[&str]| {
        let out = shell.run(args);
        let said = text(&out.stderr);
        assert!(out.status.success(), "{args:?}: {said}");
        let command = said.lines().find_map(|line| line.strip_prefix("undo: duewheel ")).map(str::to_owned);
        command.unwrap_or_else(|| panic!("{args:?}: {said}"))
    };
    let listed = || shell.ok(&["list", "orders"]);
    for act in [
        &["bulk", "cancel", "orders", "--key-prefix", "order-", "--keep", "1h", "--yes", "--wait"][..],
        &["purge", "orders", "--keep", "1h", "--expect", "3", "--yes"],
    ] {
        let undo = undo_of(act);
        assert!(!listed().contains("order-1"), "{act:?}");
        let args: Vec<&str> = undo.split(' ').chain(["--yes", "--wait"]).collect();
        assert!(shell.ok(&args).contains("restore"), "{undo}");
        assert!(["order-1", "order-2", "sms-1"].iter().all(|key| listed().contains(key)), "{}", listed());
    }
    let changed = [
        &["bulk", "cancel", "orders", "--all", "--expect", "2", "--yes"][..],
        &["purge", "orders", "--expect", "2", "--yes"],
        &["queue", "rm", "orders", "--expect", "2", "--yes"],
    ];
    for args in changed {
        let said = shell.fails(args, 4);
        assert!(said.contains("3 messages match, and 2 were expected"), "{args:?}: {said}");
    }
    assert!(shell.fails(&["bulk", "restore", "orders", "--yes"], 2).contains("--act"));
}
