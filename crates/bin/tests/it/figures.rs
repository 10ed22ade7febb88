//! Figures of `/metrics` that are of one queue, one target, or the schedules.

use duewheel_delivery::Sealing;
use serde_json::{Value, json};

use crate::fixture::{PATIENCE, Server};
use crate::hook::Hook;

impl Server {
    /// The value of a line of `/metrics`, by name and labels; `None` if there is no such line.
    async fn figure(&self, path: &str, series: &str) -> Option<f64> {
        let page = self.call("GET", path, "").await;
        let text = String::from_utf8(page.body).expect("text");
        let name = series.split('{').next().expect("a name");
        let family = name.trim_end_matches("_bucket").trim_end_matches("_sum").trim_end_matches("_count");
        let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
        let found = lines.filter(|(of, _)| *of == series).map(|(_, value)| value.parse().expect("a number"));
        let found: Vec<f64> = found.collect();
        assert!(found.len() < 2, "{series}: {found:?}");
        assert!(found.is_empty() || text.contains(&format!("# HELP {family} ")), "{family} has a help");
        found.first().copied()
    }

    /// Waits until a line has a value.
    async fn until_figure(&self, series: &str, wanted: f64) {
        let begun = std::time::Instant::now();
        loop {
            let is = self.figure("/metrics", series).await;
            if is == Some(wanted) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{series} is {is:?}, not {wanted}");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
}

/// Story: totals and metrics of the whole server counted its own records, the more the worse its webhooks did.
#[tokio::test(flavor = "multi_thread")]
async fn totals_omit_records_of_server() {
    let server = Server::start_shards(3).await;
    server.app.set_sealing(Sealing::Open);
    server.app.start_schedules();
    server.app.start_delivery();
    let hook = Hook::new(|_, _| "500".to_owned());
    let target = json!({"url": hook.url(), "networks": ["127.0.0.1/32"], "max_attempts": 1});
    server.ok("PUT", "/v1/targets/t", &target.to_string()).await;
    server.ok("PUT", "/v1/queues/w/config", r#"{"target": "t"}"#).await;
    server.ok("PUT", "/v1/queues/other/config", r#"{"max_attempts": 2}"#).await;
    let schedule = json!({"cron": "30 8 * * *", "queue": "other", "body": "x"});
    server.ok("PUT", "/v1/schedules/s", &schedule.to_string()).await;
    server.enqueue("w", r#"{"body": "x", "delay": "0s"}"#).await;
    server.until("the push has failed", "/v1/queues/w", |queue| queue["totals"]["died"] == 1).await;
    let is_over = |queue: &Value| queue["totals"]["cancelled"] == 1;
    server
        .until("the occurrence has entered", "/v1/queues/other", |queue| queue["counts"]["scheduled"] == 1)
        .await;
    server.ok("DELETE", "/v1/schedules/s", "").await;
    server.until("the occurrence is cancelled", "/v1/queues/other", is_over).await;
    let totals = server.ok("GET", "/v1/stats", "").await["totals"].clone();
    for (name, total) in totals.as_object().expect("totals") {
        let wanted = match &**name {
            "enqueued" => 2.0,
            "granted" | "died" | "cancelled" => 1.0,
            _ => 0.0,
        };
        assert_eq!(total.as_f64(), Some(wanted), "{name} of {totals}");
        let mut sum = 0.0;
        for shard in 0..3 {
            let series = format!("duewheel_{name}_total{{shard=\"{shard}\"}}");
            sum += server.figure("/metrics", &series).await.expect("a figure");
        }
        assert_eq!(sum, wanted, "duewheel_{name}_total");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lateness_is_told_for_each_queue() {
    let server = Server::start_shards(1).await;
    for (queue, late_ms) in [("a", 0), ("a", 90), ("b", 3_000), ("b", 7_200_000)] {
        server.enqueue(queue, r#"{"body": "x", "delay": "0s"}"#).await;
        server.advance(late_ms);
        assert_eq!(server.reserve(queue, r#"{"lease_ms": 9000000}"#).await.len(), 1);
    }
    server.enqueue("never", r#"{"body": "x", "delay": "0s"}"#).await;
    let bucket =
        |queue, le| format!("duewheel_queue_lateness_seconds_bucket{{queue=\"{queue}\",le=\"{le}\"}}");
    for (queue, le, wanted) in [
        ("a", "0.01", 1.0),
        ("a", "0.1", 2.0),
        ("a", "+Inf", 2.0),
        ("b", "1", 0.0),
        ("b", "5", 1.0),
        ("b", "60", 1.0),
        ("b", "+Inf", 2.0),
    ] {
        let series = bucket(queue, le);
        assert_eq!(server.figure("/metrics?queue=*", &series).await, Some(wanted), "{series}");
    }
    let of = |part, queue| format!("duewheel_queue_lateness_seconds_{part}{{queue=\"{queue}\"}}");
    assert_eq!(server.figure("/metrics", &of("sum", "b")).await, Some(7_203.0));
    assert_eq!(server.figure("/metrics?queue=b", &of("count", "b")).await, Some(2.0));
    assert_eq!(server.figure("/metrics?queue=b", &of("count", "a")).await, None, "not asked for");
    assert_eq!(server.figure("/metrics", &of("count", "never")).await, None, "nothing was granted");
    // Another attempt is late because of the first one, and does not count.
    server.advance(9_000_000);
    assert_eq!(server.reserve("a", r#"{"max": 2, "wait_ms": 10000}"#).await.len(), 2, "the leases ran out");
    assert_eq!(server.figure("/metrics", &of("count", "a")).await, Some(2.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn push_and_breaker_metrics_per_target() {
    let server = Server::start().await;
    server.app.set_sealing(Sealing::Open);
    server.app.start_delivery();
    let hook = Hook::new(|_, got| if got.body() == "bad" { "500".to_owned() } else { "200".to_owned() });
    let local = ["127.0.0.1/32"];
    let well = json!({"url": hook.url(), "networks": local, "retry": {"delays": ["1s"]}, "max_attempts": 1});
    server.ok("PUT", "/v1/targets/well", &well.to_string()).await;
    // Nobody listens at this port any more.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").and_then(|one| one.local_addr()).expect("a port");
    let away = json!({"url": format!("http://{gone}/hook"), "networks": local});
    server.ok("PUT", "/v1/targets/away", &away.to_string()).await;
    for (queue, target) in [("orders", "well"), ("lost", "away")] {
        let set = json!({"target": target}).to_string();
        server.ok("PATCH", &format!("/v1/queues/{queue}/config"), &set).await;
    }
    for body in ["good", "good", "bad"] {
        server.enqueue("orders", &json!({"body": body, "delay": "0s"}).to_string()).await;
    }
    let pushes =
        |target, outcome| format!("duewheel_pushes_total{{target=\"{target}\",outcome=\"{outcome}\"}}");
    server.until_figure(&pushes("well", "delivered"), 2.0).await;
    server.until_figure(&pushes("well", "dead"), 1.0).await;
    server.until_figure("duewheel_pushes_in_flight{target=\"well\"}", 0.0).await;
    server.until_figure("duewheel_target_open{target=\"well\"}", 0.0).await;
    // Ten that cannot be reached open the breaker.
    for _ in 0..12 {
        server.enqueue("lost", r#"{"body": "x", "delay": "0s"}"#).await;
    }
    server.until_figure("duewheel_target_open{target=\"away\"}", 1.0).await;
    assert_eq!(server.figure("/metrics", &pushes("away", "delivered")).await, Some(0.0));
    let mut lost = 0.0;
    for outcome in ["failed", "forgiven"] {
        lost += server.figure("/metrics", &pushes("away", outcome)).await.expect("a line");
    }
    assert!(lost > 0.0, "what has not arrived is counted");
    assert_eq!(server.figure("/metrics", "duewheel_push_restarts_total").await, Some(0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn occurrences_of_schedules_are_counted() {
    let server = Server::start().await;
    server.app.start_schedules();
    let outcome = |of| format!("duewheel_schedule_occurrences_total{{outcome=\"{of}\"}}");
    let put = json!({"queue": "reports", "every": "1m", "body": "tick"});
    server.ok("PUT", "/v1/schedules/ticks", &put.to_string()).await;
    server.until_figure(&outcome("entered"), 1.0).await;
    server.advance(60_000);
    server.until_figure(&outcome("entered"), 2.0).await;
    for of in ["missed", "skipped", "blocked"] {
        assert_eq!(server.figure("/metrics", &outcome(of)).await, Some(0.0), "{of}");
    }
    for name in ["duewheel_schedule_looks_failed_total", "duewheel_schedule_restarts_total"] {
        assert_eq!(server.figure("/metrics", name).await, Some(0.0), "{name}");
    }
}

/// Story: with more than a thousand queues the others had no figures, and nothing said so.
#[tokio::test(flavor = "multi_thread")]
async fn omitted_queues_are_counted_in_metrics() {
    let server = Server::start_shards(1).await;
    for n in 0..1_000 {
        server.enqueue(&format!("q{n:04}"), r#"{"body": "x", "delay": "1h"}"#).await;
    }
    assert_eq!(server.figure("/metrics", "duewheel_queues_left_out").await, Some(0.0));
    for n in 1_000..1_003 {
        server.enqueue(&format!("q{n:04}"), r#"{"body": "x", "delay": "1h"}"#).await;
    }
    assert_eq!(server.figure("/metrics", "duewheel_queues_left_out").await, Some(3.0));
    let last = r#"duewheel_queue_messages{queue="q1002",state="scheduled"}"#;
    assert_eq!(server.figure("/metrics", last).await, None);
    assert_eq!(server.figure("/metrics?queue=q10*", last).await, Some(1.0));
    let asked = server.figure("/metrics?queue=q10*", "duewheel_queues_left_out").await;
    assert_eq!(asked, None, "others were not asked for");
}
