//! Queues, pages, histogram, wheel, health and metrics.

use serde_json::{Value, json};

use crate::fixture::Server;

#[tokio::test(flavor = "multi_thread")]
async fn message_pages_follow_due_order() {
    let server = Server::start().await;
    for n in 0..25 {
        let body = match n % 2 {
            0 => json!({"body": "a", "delay_ms": 1_000_000 - n * 1_000}),
            _ => json!({"body": "a", "due_at": format!("2026-01-01T00:{:02}:00Z", 59 - n)}),
        };
        server.enqueue("q", &body.to_string()).await;
    }
    let mut seen: Vec<(String, String)> = Vec::new();
    let mut after = String::new();
    loop {
        let page = server.ok("GET", &format!("/v1/queues/q/messages?limit=4{after}"), "").await;
        for m in page["messages"].as_array().expect("messages") {
            seen.push((m["due_at"].as_str().expect("due_at").into(), m["id"].as_str().expect("id").into()));
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 25);
    let mut sorted = seen.clone();
    sorted.sort();
    assert_eq!(seen, sorted);
    let ready = server.ok("GET", "/v1/queues/q/messages?state=ready", "").await;
    assert_eq!(ready, json!({"messages": [], "next": null}));
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_exist_without_creation() {
    let server = Server::start().await;
    let empty = server.ok("GET", "/v1/queues/nobody", "").await;
    assert_eq!(
        empty["counts"],
        json!({"scheduled": 0, "ready": 0, "leased": 0, "dead": 0, "estimated": false})
    );
    for (queue, delay) in [("b", 0), ("b", 0), ("b", 60_000), ("a", 60_000)] {
        server.enqueue(queue, &json!({"body": "x", "delay_ms": delay}).to_string()).await;
    }
    server.reserve("b", "{}").await;
    server.advance(2_500);
    let b = server.ok("GET", "/v1/queues/b", "").await;
    assert_eq!(b["counts"], json!({"scheduled": 1, "ready": 1, "leased": 1, "dead": 0, "estimated": false}));
    assert_eq!(
        (&b["oldest_overdue"], &b["oldest_overdue_ms"]),
        (&json!("2026-01-01T00:00:00.000Z"), &json!(2_500))
    );
    assert_eq!(b["attended"], true);
    let first = server.ok("GET", "/v1/queues?limit=1", "").await;
    assert_eq!((&first["queues"][0]["queue"], &first["next"]), (&json!("a"), &json!("a")));
    let rest = server.ok("GET", "/v1/queues?limit=5&after=a", "").await;
    assert_eq!((&rest["queues"][0]["queue"], &rest["next"]), (&json!("b"), &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn put_replaces_all_settings() {
    let server = Server::start().await;
    let all = json!({"lease_ms": 1_000, "max_attempts": 2, "priority": 5, "backoff": {"min_ms": 1, "max_ms": 2},
        "dedupe_window_ms": 60_000, "dead_ttl_ms": 1_000, "order": "arrival", "rate": {"per_second": 9, "burst": 2},
        "catchup_rate": 8, "concurrency": 7, "expires_in_ms": 6_000, "on_expiry": "dead",
        "keep_done_ms": 86_400_000, "trace": "child"});
    let set = server.ok("PUT", "/v1/queues/q/config", &all.to_string()).await;
    assert_eq!(set["config"], all);
    let id = server.enqueue("q", r#"{"body": "a", "delay_ms": 0}"#).await;
    let seen = server.ok("GET", &format!("/v1/messages/{id}"), "").await;
    assert_eq!(
        (&seen["lease_ms"], &seen["max_attempts"], &seen["priority"]),
        (&json!(1_000), &json!(2), &json!(5))
    );
    let set = server.ok("PUT", "/v1/queues/q/config", r#"{"lease_ms": 7}"#).await;
    assert_eq!((&set["config"]["lease_ms"], &set["config"]["order"]), (&json!(7), &Value::Null));
    let set = server.ok("PUT", "/v1/queues/empty/config", "{}").await;
    assert_eq!((&set["config"]["lease_ms"], &set["durability"]), (&Value::Null, &json!("memory")));
    let shown = server.ok("GET", "/v1/queues/empty", "").await;
    assert_eq!(shown.get("durability"), None, "what is only read has reached nothing");
}

/// Story: `for_ms: 0` answered that the queue was paused, and resumed it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_of_no_length_is_refused() {
    let server = Server::start().await;
    server.ok("POST", "/v1/queues/q/pause", "").await;
    for (body, field) in [(r#"{"for_ms": 0}"#, "for_ms"), (r#"{"for": "0s"}"#, "for")] {
        let refused = server.call("POST", "/v1/queues/q/pause", body).await;
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!(field)));
    }
    assert_eq!(server.ok("GET", "/v1/queues/q", "").await["paused"], true);
}

/// Story: the answer was `{"redriven": 0}` with all messages still dead, and nothing said why.
#[tokio::test(flavor = "multi_thread")]
async fn a_redrive_of_all_counts_refusals() {
    let server = Server::start().await;
    let mut ids = Vec::new();
    for n in 0..12 {
        let message = json!({"body": "a", "key": format!("k{n}"), "delay_ms": 0}).to_string();
        ids.push(server.enqueue("q", &message).await);
        let grant = server.reserve("q", "{}").await.remove(0);
        let nack = json!({"lease_token": grant["lease_token"], "dead": true}).to_string();
        server.ok("POST", &format!("/v1/messages/{}/nack", ids[n]), &nack).await;
        if n > 0 {
            server.enqueue("q", &message.replace(":0", ":1000")).await;
        }
    }
    let answer = server.ok("POST", "/v1/queues/q/redrive", "{}").await;
    assert_eq!(answer["redriven"], 1);
    assert_eq!(answer["refused"], json!([{"code": "key_exists", "messages": 11, "ids": ids[1..11]}]));
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_resume_purge_redrive() {
    let server = Server::start().await;
    server.ok("POST", "/v1/queues/q/pause", "").await;
    server.enqueue("q", r#"{"body": "a", "delay_ms": 0}"#).await;
    assert!(server.reserve("q", "{}").await.is_empty());
    let q = server.ok("GET", "/v1/queues/q", "").await;
    assert_eq!((&q["paused"], &q["counts"]["ready"]), (&json!(true), &json!(1)), "it still becomes ready");
    assert_eq!(
        server.ok("POST", "/v1/queues/q/resume", "{}").await,
        json!({"queue": "q", "paused": false, "durability": "memory"})
    );
    assert_eq!(
        server.ok("POST", "/v1/queues/q/pause", r#"{"for": "2s"}"#).await,
        json!({"queue": "q", "paused": true, "for_ms": 2_000, "durability": "memory"})
    );
    server.advance(1_999);
    assert!(server.reserve("q", "{}").await.is_empty());
    server.advance(1);
    let grant = server.reserve("q", "{}").await.remove(0);
    server.enqueue("q", r#"{"body": "b", "delay": "1h"}"#).await;
    server.enqueue("q", r#"{"body": "c", "delay_ms": 0}"#).await;
    assert_eq!(
        server.ok("POST", "/v1/queues/q/purge", "").await,
        json!({"purged": 2, "durability": "memory"}),
        "the leased one stays"
    );
    let ack = json!({"lease_token": grant["lease_token"]}).to_string();
    server.ok("POST", &format!("/v1/messages/{}/ack", grant["id"].as_str().expect("id")), &ack).await;

    for _ in 0..3 {
        let id = server.enqueue("d", r#"{"body": "x", "delay_ms": 0, "max_attempts": 1}"#).await;
        let grant = server.reserve("d", "{}").await.remove(0);
        let nack = json!({"lease_token": grant["lease_token"]}).to_string();
        server.ok("POST", &format!("/v1/messages/{id}/nack"), &nack).await;
    }
    assert_eq!(
        server.ok("POST", "/v1/queues/d/redrive", r#"{"max": 2}"#).await,
        json!({"redriven": 2, "durability": "memory"})
    );
    assert_eq!(
        server.ok("POST", "/v1/queues/d/redrive", "").await,
        json!({"redriven": 1, "durability": "memory"})
    );
    assert_eq!(server.ok("GET", "/v1/queues/d", "").await["counts"]["ready"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn histogram_and_wheel_count_every_message() {
    let server = Server::start().await;
    for minutes in [1, 1, 61, 61, 61, 600] {
        server.enqueue("q", &json!({"body": "a", "delay_ms": minutes * 60_000}).to_string()).await;
    }
    server.enqueue("q", r#"{"body": "a", "due_at": "2026-01-01T00:01:00Z"}"#).await;
    // An offset with a plus sign needs no escape.
    let path = "/v1/queues/q/histogram?from=2026-01-01T01:00:00+01:00&to=2026-01-01T02:00:00Z&buckets=2";
    let seen = server.ok("GET", path, "").await;
    assert_eq!(seen["from"], "2026-01-01T00:00:00.000Z");
    let counts: Vec<&Value> =
        seen["buckets"].as_array().expect("buckets").iter().map(|b| &b["count"]).collect();
    assert_eq!((counts, &seen["before"], &seen["after"]), (vec![&json!(3), &json!(3)], &json!(0), &json!(1)));
    let wheel = server.ok("GET", "/v1/wheel", "").await;
    assert_eq!((&wheel["slots"], &wheel["tick_ms"]), (&json!(3600), &json!(1000)));
    let on_slots: u64 = ["at", "after"]
        .into_iter()
        .flat_map(|ring| wheel["occupied"][ring].as_array().expect("ring"))
        .map(|slot| slot["messages"].as_u64().expect("messages"))
        .sum();
    assert_eq!((on_slots, &wheel["messages"]), (7, &json!(7)));
}

#[tokio::test(flavor = "multi_thread")]
async fn health_metrics_and_the_page() {
    let server = Server::start().await;
    server.enqueue("q", r#"{"body": "a", "delay_ms": 0}"#).await;
    server.reserve("q", "{}").await;
    let health = server.ok("GET", "/healthz", "").await;
    assert_eq!((&health["status"], &health["durability"]), (&json!("ok"), &json!("memory")));
    server.until("a tick", "/healthz", |health| health["tick_age_ms"].as_u64().expect("age") < 5_000).await;
    let metrics = server.call("GET", "/metrics", "").await;
    let text = String::from_utf8(metrics.body).expect("text");
    for line in [
        "duewheel_messages{state=\"leased\"} 1",
        "duewheel_queue_messages{queue=\"q\",state=\"leased\"} 1",
        "duewheel_enqueued_total 1",
        "duewheel_granted_total 1",
        "duewheel_lateness_seconds_bucket{le=\"0\"} 1",
        "duewheel_lateness_seconds_count 1",
        "duewheel_healthy 1",
        "duewheel_drain_mode 0",
        "# TYPE duewheel_store_messages gauge",
        "# HELP duewheel_store_messages Messages in the store: pending ones, those that are kept as done, and the \
         server's own.",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
    }
    assert!(!text.contains(" untyped\n"), "{text}");
    let names: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("# TYPE ")).collect();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let described = |t: &&str| {
            let family = t.split(' ').next().unwrap_or_default();
            name == family
                || name.strip_prefix(family).is_some_and(|s| ["_bucket", "_sum", "_count"].contains(&s))
        };
        assert!(names.iter().any(described), "{line} has no type");
        assert!(line.rsplit(' ').next().is_some_and(|v| v.parse::<f64>().is_ok()), "{line}");
    }
    let page = server.call("GET", "/", "").await;
    let page = String::from_utf8(page.body).expect("page");
    assert!(
        page.contains("/metrics")
            && page.contains("/openapi.json")
            && page.contains(" POST    /v1/queues/{queue}/reserve\n")
            && page.contains(" DELETE  /v1/messages/{id}\n")
    );
    let spec = server.ok("GET", "/openapi.json", "").await;
    assert!(spec["openapi"].as_str().expect("version").starts_with("3.1"));
    let head = server.raw("HEAD", "/healthz", "", b"").await;
    assert_eq!((head.status, head.body.len()), (200, 0));
}

/// Drain mode could be seen only by trying an enqueue.
#[tokio::test(flavor = "multi_thread")]
async fn health_and_metrics_show_drain_mode() {
    let server = Server::start().await;
    assert_eq!(server.ok("GET", "/healthz", "").await["drain_mode"], false);
    server.drain.turn_on();
    let health = server.ok("GET", "/healthz", "").await;
    assert_eq!((&health["status"], &health["drain_mode"]), (&json!("ok"), &json!(true)));
    let metrics = server.call("GET", "/metrics", "").await;
    let text = String::from_utf8(metrics.body).expect("text");
    assert!(text.contains("\nduewheel_drain_mode 1\n"), "{text}");
}
