//! Rate, concurrency, expiry and spread: over HTTP, beanstalkd's protocol, the command line, and several shards.

use serde_json::{Value, json};

use crate::fixture::Server;
use crate::shell::Shell;

async fn config(server: &Server, queue: &str, settings: Value) -> Value {
    server.ok("PATCH", &format!("/v1/queues/{queue}/config"), &settings.to_string()).await
}

async fn put(server: &Server, queue: &str, more: Value) -> Value {
    let mut message = json!({"body": "x", "delay_ms": 0});
    message.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
    server.ok("POST", &format!("/v1/queues/{queue}/messages"), &message.to_string()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn reserve_reports_rate_and_concurrency_limits() {
    let server = Server::start().await;
    config(&server, "sms", json!({"rate": {"per_second": 2, "burst": 1}})).await;
    config(&server, "jobs", json!({"concurrency": 2})).await;
    for _ in 0..4 {
        put(&server, "sms", json!({})).await;
        put(&server, "jobs", json!({})).await;
    }
    let reserve = |queue: &'static str| {
        let server = &server;
        async move {
            let answer = server.ok("POST", &format!("/v1/queues/{queue}/reserve"), r#"{"max": 9}"#).await;
            (answer["messages"].as_array().expect("messages").len(), answer["held_back"].clone())
        }
    };
    assert_eq!(reserve("sms").await, (1, Value::Null));
    assert_eq!(reserve("sms").await, (0, json!("rate")));
    assert_eq!(reserve("jobs").await, (2, Value::Null));
    assert_eq!(reserve("jobs").await, (0, json!("leases")));
    server.advance(500);
    assert_eq!(reserve("sms").await, (1, Value::Null));

    let shown = server.ok("GET", "/v1/queues/sms/config", "").await;
    assert_eq!(shown["config"]["rate"], json!({"per_second": 2, "burst": 1}));
    assert_eq!(shown["effective"]["concurrency"], Value::Null);
    config(&server, "sms", json!({"rate": null})).await;
    assert_eq!(reserve("sms").await, (2, Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn expiry_follows_queue_policy() {
    let server = Server::start().await;
    config(&server, "dead", json!({"on_expiry": "dead"})).await;
    config(&server, "drop", json!({"on_expiry": "drop", "expires_in": "5s"})).await;
    let late = put(&server, "late", json!({"expires_in": "10s", "key": "a"})).await;
    put(&server, "dead", json!({"expires_in_ms": 10_000, "key": "a"})).await;
    put(&server, "drop", json!({"key": "a"})).await;
    let shown = server.ok("GET", "/v1/queues/late/keys/a", "").await;
    assert_eq!(shown["own"]["expires_in_ms"], 10_000);
    assert!(shown["expires_at"].as_str().expect("instant") > late["due_at"].as_str().expect("instant"));
    server.advance(10_001);
    let grant = server.reserve("late", "{}").await.remove(0);
    assert_eq!(grant["late"], true);
    assert!(server.reserve("dead", "{}").await.is_empty());
    assert_eq!(server.ok("GET", "/v1/queues/dead/keys/a", "").await["dead_reason"], "expired");
    assert!(server.reserve("drop", "{}").await.is_empty());
    assert_eq!(server.call("GET", "/v1/queues/drop/keys/a", "").await.status, 404);
    assert_eq!(server.ok("GET", "/v1/queues/drop", "").await["totals"]["expired"], 1);
    let fresh = put(&server, "late", json!({"expires_in": "10s"})).await;
    assert_eq!(fresh["created"], true);
    let grant = server.reserve("late", "{}").await.remove(0);
    assert_eq!(grant.get("late"), None, "left out where it is not");
}

#[tokio::test(flavor = "multi_thread")]
async fn spread_starts_at_due_time() {
    let server = Server::start().await;
    let at = "2026-03-01T10:00:00Z";
    let mut seen = std::collections::BTreeSet::new();
    for n in 0..20 {
        let more =
            json!({"delay_ms": null, "due_at": at, "past": "fire", "spread": "1h", "key": format!("k{n}")});
        let due = put(&server, "campaign", more).await["due_at"].as_str().expect("instant").to_owned();
        assert!(("2026-03-01T10:00:00.000Z"..="2026-03-01T11:00:00.000Z").contains(&due.as_str()), "{due}");
        seen.insert(due);
    }
    assert!(seen.len() > 15, "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_limits_name_their_field() {
    let server = Server::start().await;
    for (more, field) in [
        (json!({"spread": "1h", "spread_ms": 5}), "spread"),
        (json!({"spread": "soon"}), "spread"),
        (json!({"spread_ms": -1}), "spread_ms"),
        (json!({"spread": "101y"}), "spread"),
        (json!({"spread_ms": 99_999_999_999_999_u64}), "spread"),
        (json!({"expires_in": "1h", "expires_in_ms": 5}), "expires_in"),
        (json!({"expires_in": "0s"}), "expires_in"),
        (json!({"expires_in_ms": 0}), "expires_in_ms"),
        (json!({"expires_in": "1h", "expires_at": "2036-01-01T00:00:00Z"}), "expires_at"),
        (json!({"expires_at": "tomorrow"}), "expires_at"),
        (json!({"delay_ms": 60_000, "expires_at": "2026-01-01T00:00:30Z"}), "expires_at"),
    ] {
        let mut message = json!({"body": "x", "delay_ms": 0});
        message.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
        let refused = server.call("POST", "/v1/queues/q/messages", &message.to_string()).await;
        assert_eq!((refused.status, refused.json()["field"].as_str()), (400, Some(field)), "{more}");
        let why = refused.json()["detail"].to_string();
        assert!(!why.contains("outside of its range"), "it says what is right: {why}");
    }
    for (settings, field) in [
        (json!({"rate": {"per_second": 0}}), "rate.per_second"),
        (json!({"rate": 5}), "rate"),
        (json!({"rate": {"per_second": 5, "each": 1}}), "rate.each"),
        (json!({"rate": {"per_second": 4_294_967_295_u64}}), "rate.per_second"),
        (json!({"rate": {"per_second": 0.1667}}), "rate.per_second"),
        (json!({"rate": {"per_second": "10/m"}}), "rate.per_second"),
        (json!({"concurrency": 0}), "concurrency"),
        (json!({"catchup_rate": 0.0001}), "catchup_rate"),
        (json!({"expires_in": "0s"}), "expires_in"),
        (json!({"on_expiry": "forget"}), "on_expiry"),
        (json!({"expires_in": "1h", "expires_in_ms": 3_600_000}), "expires_in"),
    ] {
        let refused = server.call("PATCH", "/v1/queues/q/config", &settings.to_string()).await;
        assert_eq!((refused.status, refused.json()["field"].as_str()), (400, Some(field)), "{settings}");
    }
    assert_eq!(server.ok("GET", "/v1/queues", "").await["queues"], json!([]), "nothing was made");
}

/// Ten a minute: read, kept and shown exactly, and sent again as it was shown.
#[tokio::test]
async fn per_second_may_be_a_fraction() {
    let server = Server::start().await;
    for per_second in [10.0 / 60.0, 0.5, 1.5, 1.0 / 3_600.0] {
        config(&server, "sms", json!({"rate": {"per_second": per_second}, "catchup_rate": per_second})).await;
        let shown = server.ok("GET", "/v1/queues/sms", "").await["config"].clone();
        assert_eq!(
            (&shown["rate"]["per_second"], &shown["catchup_rate"]),
            (&json!(per_second), &json!(per_second))
        );
        config(&server, "sms", json!({"rate": shown["rate"], "catchup_rate": shown["catchup_rate"]})).await;
        assert_eq!(server.ok("GET", "/v1/queues/sms", "").await["config"], shown);
    }
    put(&server, "sms", json!({})).await;
    put(&server, "sms", json!({})).await;
    assert_eq!(server.reserve("sms", r#"{"max": 9}"#).await.len(), 1);
    let refused = server.call("PATCH", "/v1/queues/sms/config", r#"{"rate": {"per_second": 0.1667}}"#).await;
    let why = refused.json()["detail"].to_string();
    assert!(why.contains("the nearest is 0.16666666666666666"), "{why}");
}

/// Each shard keeps to its part of a limit: waiting consumers get everything in the end, and never more than the limit.
#[tokio::test(flavor = "multi_thread")]
async fn sharded_limits_hold_in_sum() {
    let server = Server::start_shards(4).await;
    let refused = server.call("PATCH", "/v1/queues/jobs/config", r#"{"concurrency": 3}"#).await;
    assert_eq!((refused.status, refused.json()["field"].as_str()), (400, Some("concurrency")));
    assert!(refused.json()["detail"].as_str().expect("words").contains("the number of shards"));
    config(&server, "jobs", json!({"concurrency": 6})).await;
    for n in 0..40 {
        put(&server, "jobs", json!({"key": format!("k{n}")})).await;
    }
    let mut done = 0;
    while done < 40 {
        let grants = server.reserve("jobs", r#"{"max": 40, "wait_ms": 10000}"#).await;
        assert!((1..=6).contains(&grants.len()), "{}", grants.len());
        assert!(server.ok("GET", "/v1/queues/jobs", "").await["counts"]["leased"].as_u64() <= Some(6));
        for grant in &grants {
            let (id, token) = (grant["id"].as_str().expect("id"), &grant["lease_token"]);
            let ack = json!({"lease_token": token}).to_string();
            server.ok("POST", &format!("/v1/messages/{id}/ack"), &ack).await;
        }
        done += grants.len();
    }
    assert_eq!(server.ok("GET", "/v1/queues/jobs", "").await["totals"]["acked"], 40);
}

#[test]
fn cli_sets_limits_and_expiries() {
    let shell = Shell::new();
    let set = ["config", "sms", "--rate", "50", "--burst", "5", "--concurrency", "9", "--expires-in", "1h"];
    let shown = shell.ok(&[&set[..], &["--on-expiry", "drop", "--catchup-rate", "10"]].concat());
    for line in ["--rate", "50", "--burst", "--concurrency", "9", "--expires-in", "1h", "drop"] {
        assert!(shown.contains(line), "{line} in {shown}");
    }
    for (given, text) in [("10/m", "10/m"), ("0.5", "30/m"), ("120/m", "2"), ("7/h", "7/h")] {
        let shown = shell.ok(&["config", "sms", "--rate", given, "--catchup-rate", given]);
        assert_eq!(shown.split_whitespace().filter(|word| *word == text).count(), 2, "{given}: {shown}");
    }
    assert!(shell.fails(&["config", "sms", "--rate", "0.1667"], 2).contains("the nearest is"));
    let shown = shell.ok(&["config", "sms", "--unset", "rate", "--unset", "on-expiry"]);
    assert!(shown.contains("deliver_late"), "{shown}");
    assert!(shell.fails(&["config", "sms", "--burst", "5"], 2).contains("--rate"));
    assert!(shell.fails(&["config", "sms", "--rate", "0"], 2).contains("--rate"));
    shell.ok(&[
        "enqueue",
        "sms",
        "hello",
        "--delay",
        "1h",
        "--spread",
        "1h",
        "--expires-in",
        "1d",
        "--key",
        "k",
    ]);
    let got: Value = serde_json::from_str(&shell.ok(&["get", "sms", "--key", "k", "--json"])).expect("JSON");
    assert_eq!(
        (&got["own"]["spread_ms"], &got["own"]["expires_in_ms"]),
        (&json!(3_600_000), &json!(86_400_000))
    );
    let bad = ["enqueue", "sms", "hello", "--delay", "48h", "--expires-at", "2001-01-01T00:00:00Z"];
    assert!(shell.fails(&bad, 2).contains("--expires-at"));
    // A retry that comes after the expiry: no server accepts such a message, and an import must lose none.
    shell.ok(&["enqueue", "late", "hello", "--expires-in", "1h", "--key", "l"]);
    let grant = shell.json(&["reserve", "late", "--json"])["messages"][0].take();
    let (id, token) = (grant["id"].as_str().expect("id"), grant["lease_token"].as_str().expect("token"));
    shell.ok(&["nack", id, token, "--delay", "48h"]);
    // Exported and imported: the drawn due time and the expiry stay.
    let file = shell.ok(&["export", "-"]);
    assert!(file.contains("\"expires_in_ms\":86400000"), "{file}");
    let other = Shell::new();
    other.ok_with(&["import", "-"], file.as_bytes());
    let there: Value =
        serde_json::from_str(&other.ok(&["get", "sms", "--key", "k", "--json"])).expect("JSON");
    assert_eq!(
        (&there["due_at"], &there["expires_at"], &there["own"].get("spread_ms")),
        (&got["due_at"], &got["expires_at"], &None)
    );
    let limits: Value = serde_json::from_str(&other.ok(&["config", "sms", "--json"])).expect("JSON");
    assert_eq!((&limits["concurrency"], &limits["rate"]), (&json!(9), &Value::Null));
    let moved = shell.json(&["get", "late", "--key", "l", "--json"]);
    assert!(moved["expires_at"].as_str() < moved["due_at"].as_str(), "{moved}");
    let there = other.json(&["get", "late", "--key", "l", "--json"]);
    assert_eq!((&there["due_at"], &there["expires_at"]), (&moved["due_at"], &moved["due_at"]));
}
