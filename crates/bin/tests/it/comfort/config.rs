//! The settings of a queue, and its removal.

use serde_json::{Value, json};

use crate::fixture::Server;
use crate::process::Process;
use crate::shell::Shell;

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_shown_changed_and_reset() {
    let server = Server::start().await;
    let path = "/v1/queues/q/config";
    let defaults = json!({
        "lease_ms": 30_000, "max_attempts": 20, "priority": 1024, "dedupe_window_ms": 86_400_000,
        "backoff": {"min_ms": 1_000, "max_ms": 3_600_000}, "dead_ttl_ms": null, "order": "due", "rate": null, "catchup_rate": null, "concurrency": null,
        "expires_in_ms": null, "on_expiry": "deliver_late", "keep_done_ms": null, "trace": "link", "target": null,
    });
    let nothing = json!({
        "lease_ms": null, "max_attempts": null, "priority": null, "dedupe_window_ms": null, "backoff": null,
        "dead_ttl_ms": null, "order": null, "rate": null, "catchup_rate": null, "concurrency": null, "expires_in_ms": null,
        "on_expiry": null, "keep_done_ms": null, "trace": null,
    });
    let shown = server.ok("GET", path, "").await;
    assert_eq!(shown, json!({"queue": "q", "config": nothing, "effective": defaults}));

    let all = json!({
        "lease_ms": 1, "max_attempts": 4_294_967_295_u64, "priority": 0, "dedupe_window_ms": 0,
        "backoff": {"min_ms": 5, "max_ms": 6}, "dead_ttl_ms": 9, "order": "arrival", "rate": {"per_second": 5, "burst": null}, "catchup_rate": 3, "concurrency": 7,
        "expires_in_ms": 60_000, "on_expiry": "drop", "keep_done_ms": 3_000, "trace": "child",
    });
    let changed = server.ok("PATCH", path, &all.to_string()).await;
    assert_eq!((&changed["queue"], &changed["config"]), (&json!("q"), &all));
    assert!(changed["durability"].is_string());
    let shown = server.ok("GET", path, "").await;
    // The burst that applies, and no target.
    let mut applies = all.clone();
    (applies["rate"]["burst"], applies["target"]) = (json!(1), Value::Null);
    assert_eq!((&shown["config"], &shown["effective"]), (&all, &applies));

    let some = json!({"lease_ms": null, "priority": 7, "order": null, "backoff": null}).to_string();
    server.ok("PATCH", path, &some).await;
    let shown = server.ok("GET", path, "").await;
    let expected = |name: &str| match name {
        "priority" => json!(7),
        "lease_ms" | "order" | "backoff" => defaults[name].clone(),
        _ => applies[name].clone(),
    };
    for (name, value) in shown["effective"].as_object().expect("object") {
        assert_eq!(*value, expected(name), "{name}");
    }
    assert_eq!(shown["config"]["lease_ms"], Value::Null);
    // What is shown can be set again.
    let config = shown["config"].to_string();
    assert_eq!(server.ok("PUT", path, &config).await["config"], shown["config"]);
    server.ok("PATCH", path, &nothing.to_string()).await;
    assert_eq!(server.ok("GET", path, "").await["effective"], defaults);

    for (change, field) in [
        (r#"{"lease_ms": 0}"#, Some("lease_ms")),
        (r#"{"order": "age"}"#, Some("order")),
        (r#"{"trace": "parent"}"#, Some("trace")),
        (r#"{"backoff": {"min_ms": 2, "max_ms": 1}}"#, Some("backoff")),
        (r#"{"backoff": {"min_ms": 2}}"#, Some("backoff.max_ms")),
        (r#"{"dead_ttl_ms": 99999999999999}"#, Some("dead_ttl_ms")),
        (r#"{"lease_ms": 1, "lease_ms": null}"#, Some("lease_ms")),
        (r#"{"target": "t"}"#, Some("target")),
        ("{}", None),
    ] {
        let refused = server.call("PATCH", path, change).await;
        assert_eq!((refused.status, refused.json()["field"].as_str()), (400, field), "{change}");
    }
    assert_eq!(server.ok("GET", path, "").await["effective"], defaults, "nothing was changed");
}

/// Story: a change is made of what was read before; two at the same time must both count.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_config_changes_all_apply() {
    let server = Server::start().await;
    let path = "/v1/queues/q/config";
    for round in 1..=20 {
        let changes = [
            json!({"lease_ms": round}).to_string(),
            json!({"priority": round}).to_string(),
            json!({"dedupe_window_ms": round}).to_string(),
            json!({"max_attempts": round}).to_string(),
        ];
        let [a, b, c, d] = changes.each_ref().map(|change| server.ok("PATCH", path, change));
        let _ = tokio::join!(a, b, c, d);
        let config = server.ok("GET", path, "").await["config"].take();
        for name in ["lease_ms", "priority", "dedupe_window_ms", "max_attempts"] {
            assert_eq!(config[name], round, "{name} of {config}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unused_queue_is_removed_completely() {
    let server = Server::start().await;
    let path = "/v1/queues/q";
    let nothing = server.call("DELETE", path, "").await;
    assert_eq!((nothing.status, nothing.json()["code"].as_str()), (404, Some("not_found")));
    for n in 0..3 {
        let delay_ms = n * 60_000;
        server
            .enqueue("q", &json!({"body": "a", "delay_ms": delay_ms, "key": n.to_string()}).to_string())
            .await;
    }
    server.ok("PUT", "/v1/queues/q/config", r#"{"lease_ms": 5000}"#).await;
    let grant = server.reserve("q", "{}").await.remove(0);
    let leased = server.call("DELETE", path, "").await;
    assert_eq!((leased.status, leased.json()["code"].as_str()), (409, Some("leased")));
    let nack = json!({"lease_token": grant["lease_token"], "dead": true}).to_string();
    server.ok("POST", &format!("/v1/messages/{}/nack", grant["id"].as_str().expect("id")), &nack).await;
    server.ok("POST", "/v1/queues/q/pause", "").await;
    assert_eq!(server.ok("GET", path, "").await["totals"]["enqueued"], 3, "a refusal has changed nothing");

    let removed = server.ok("DELETE", path, "").await;
    assert_eq!(
        (&removed["result"], &removed["queue"], &removed["purged"]),
        (&json!("removed"), &json!("q"), &json!(3))
    );
    let queues = server.ok("GET", "/v1/queues", "").await;
    assert_eq!(queues["queues"], json!([]));
    let shown = server.ok("GET", path, "").await;
    assert_eq!((&shown["paused"], &shown["config"]["lease_ms"]), (&json!(false), &Value::Null));
    assert_eq!(shown["totals"]["enqueued"], 0);
    assert_eq!(server.call("DELETE", path, "").await.status, 404);
    // The key is free, and the queue begins anew.
    server.enqueue("q", r#"{"body": "b", "delay_ms": 0, "key": "1"}"#).await;
    assert_eq!(server.ok("GET", path, "").await["totals"]["enqueued"], 1);
    // One that has settings alone.
    server.ok("PUT", "/v1/queues/empty/config", r#"{"lease_ms": 5000}"#).await;
    assert_eq!(server.ok("DELETE", "/v1/queues/empty", "").await["purged"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_with_waiters_cannot_be_removed() {
    let server = Server::start().await;
    let waiting = server.ok("POST", "/v1/queues/q/reserve", r#"{"wait_ms": 600000}"#);
    let refused = async {
        server.until("it waits", "/v1/queues/q", |queue| queue["waiters"] == 1).await;
        let refused = server.call("DELETE", "/v1/queues/q", "").await;
        assert_eq!((refused.status, refused.json()["code"].as_str()), (409, Some("in_use")));
        server.enqueue("q", r#"{"body": "a", "delay_ms": 0}"#).await;
    };
    let (grants, ()) = tokio::join!(waiting, refused);
    assert_eq!(grants["messages"][0]["body"], "a");
}

/// After kill -9 a removed queue stays away, with its settings.
#[test]
fn removed_queue_stays_removed_after_kill() {
    let dir = tempfile::TempDir::new().expect("dir");
    let data = dir.path().join("data");
    let server = Process::start(&data, &[]);
    let address = server.url.trim_start_matches("http://").to_owned();
    assert_eq!(server.call("POST", "/v1/queues/q/messages", r#"{"body": "a", "delay": "1h"}"#).0, 201);
    assert_eq!(server.call("PATCH", "/v1/queues/q/config", r#"{"lease_ms": 5000}"#).0, 200);
    assert_eq!(server.call("DELETE", "/v1/queues/q", "").0, 200);
    let server = server.killed_and_restarted(&data, &address);
    assert_eq!(server.call("GET", "/v1/queues", "").1["queues"], json!([]));
    assert_eq!(server.call("GET", "/v1/queues/q/config", "").1["config"]["lease_ms"], Value::Null);
    assert_eq!(server.call("DELETE", "/v1/queues/q", "").0, 404);
}

#[test]
fn the_command_line_does_the_same() {
    let shell = Shell::new();
    let shown = shell.ok(&["config", "q"]);
    assert!(shown.contains("--lease           30s  (default)\n"), "{shown}");
    assert!(shown.contains("--dead-ttl        never  (default)\n"), "{shown}");
    let changed = shell.ok(&["config", "q", "--lease", "1m", "--priority", "5"]);
    assert!(
        changed.contains("--lease           1m\n") && changed.contains("--priority        5\n"),
        "{changed}"
    );
    let unset = shell.ok(&["config", "q", "--unset", "lease"]);
    assert!(
        unset.contains("--lease           30s  (default)\n") && unset.contains("--priority        5\n"),
        "{unset}"
    );
    assert_eq!(shell.json(&["config", "q", "--json"])["effective"]["lease_ms"], 30_000);
    let both = shell.fails(&["config", "q", "--lease", "1m", "--unset", "lease"], 2);
    assert!(both.contains("lease"), "{both}");

    shell.ok(&["enqueue", "q", "hello", "--delay", "1h"]);
    let unconfirmed = shell.fails(&["queue", "rm", "q"], 2);
    assert!(unconfirmed.contains("1 message for ever; confirm with --yes"), "{unconfirmed}");
    assert_eq!(shell.ok(&["queue", "rm", "q", "--yes"]), "q  removed, with 1 message\n");
    shell.fails(&["queue", "rm", "q", "--yes"], 3);
    shell.ok(&["enqueue", "q", "hello"]);
    shell.ok(&["reserve", "q"]);
    let leased = shell.fails(&["queue", "rm", "q", "--yes"], 4);
    assert!(leased.contains("1 messages"), "{leased}");
    assert!(shell.ok(&["queue", "q"]).contains("leased            1\n"));
    shell.ok(&["enqueue", "rm", "hello"]);
    assert!(shell.ok(&["queue", "--", "rm"]).contains("queue             rm\n"));
    shell.fails(&["queue"], 2);
}
