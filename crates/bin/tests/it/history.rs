//! `GET /v1/history` over several shards in one process.

use duewheel::{Duewheel, Policy, VirtualClock};
use duewheel_server::http::HttpLimits;
use serde_json::{Value, json};

use crate::fixture::Server;

/// Over three shards, at midnight.
async fn server() -> Server {
    let clock = VirtualClock::at_2026();
    let policy = Policy { max_history_bytes: 1 << 20, ..Policy::default() };
    let open = Duewheel::builder().in_memory().clock(clock.clone()).policy(policy.clone()).seed(1);
    let wheel = open.shards(3).open().await.expect("wheel");
    Server::over(wheel, clock, policy, HttpLimits::default()).await
}

fn sum(series: &Value) -> u64 {
    series.as_array().expect("a series").iter().filter_map(Value::as_u64).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_summed_over_shards() {
    let server = server().await;
    for n in 0..100 {
        server.enqueue("q", &json!({"body": "x", "key": format!("k{n}"), "delay": "0s"}).to_string()).await;
    }
    assert_eq!(server.reserve("q", r#"{"max": 98}"#).await.len(), 98);
    server.advance(20_000);
    assert_eq!(server.reserve("q", r#"{"max": 9}"#).await.len(), 2);
    server.enqueue("other", r#"{"body": "x", "delay": "1h"}"#).await;
    let history = server.ok("GET", "/v1/history?queue=q&from=2026-01-01T00:00:00Z", "").await;
    assert_eq!(
        history,
        json!({
            "step": "10s", "step_ms": 10_000, "from": "2026-01-01T00:00:00.000Z", "complete": true,
            "series": {
                "enqueued": [100, 0, 0], "granted": [98, 0, 2], "settled": [0, 0, 0], "dead": [0, 0, 0],
                "lateness_p50_ms": [0, null, 20_479], "lateness_p99_ms": [0, null, 20_479],
                "ready": [2, 2, 0], "pending": [100, 100, 100],
            },
        })
    );
    let all = server.ok("GET", "/v1/history", "").await;
    let series = &all["series"];
    assert_eq!((sum(&series["enqueued"]), sum(&series["granted"])), (101, 100));
    let steps = series["pending"].as_array().expect("a series");
    assert_eq!(
        (steps.len(), &steps[0], steps.last()),
        (361, &Value::Null, Some(&json!(101))),
        "before the start"
    );
    // Longer steps: the lateness of all grants of five minutes, from one histogram.
    let day = server.ok("GET", "/v1/history?queue=q&from=2025-12-31T00:10:00Z", "").await;
    assert_eq!((&day["step"], &day["step_ms"]), (&json!("5m"), &json!(300_000)));
    let last = |name: &str| day["series"][name].as_array().expect("a series").last().cloned();
    assert_eq!((last("granted"), last("lateness_p50_ms")), (Some(json!(100)), Some(json!(0))));
    assert_eq!(last("lateness_p99_ms"), Some(json!(20_479)));
}

#[tokio::test(flavor = "multi_thread")]
async fn history_ends_with_its_queue() {
    let server = server().await;
    server.enqueue("q", r#"{"body": "x", "delay": "1h"}"#).await;
    let path = "/v1/history?queue=q";
    assert_eq!(sum(&server.ok("GET", path, "").await["series"]["enqueued"]), 1);
    server.advance(600_000);
    assert_eq!(sum(&server.ok("GET", path, "").await["series"]["enqueued"]), 1);
    server.ok("DELETE", "/v1/queues/q", "").await;
    assert_eq!(sum(&server.ok("GET", path, "").await["series"]["enqueued"]), 0);
    let day = server.ok("GET", "/v1/history?queue=q&from=2025-12-31T00:10:00Z", "").await;
    assert_eq!(sum(&day["series"]["enqueued"]), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_history_ranges_are_refused() {
    let server = server().await;
    for (query, field) in [
        ("from=2026-01-02T00:00:00Z", "from"),
        ("from=2025-12-01T00:00:00Z", "from"),
        ("from=yesterday", "from"),
        ("from=2025-12-31T23:00:00Z&to=2025-12-31T23:00:00Z", "to"),
        ("queue=a%20b", "queue"),
        ("step=1s", "step"),
    ] {
        let answer = server.call("GET", &format!("/v1/history?{query}"), "").await;
        assert_eq!((answer.status, &answer.json()["field"]), (400, &json!(field)), "{query}");
    }
}
