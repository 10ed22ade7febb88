//! Quotas over HTTP, over several shards, and read again at SIGHUP.

use duewheel::core::engine::Quota;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::Server;
use crate::process::{Process, run, serve, text};

fn quota(prefix: &str) -> Quota {
    Quota { prefix: prefix.into(), ..Quota::default() }
}

const NOW: &str = r#"{"body": "four", "delay_ms": 0}"#;

async fn status(server: &Server, queue: &str, body: &str) -> (u16, Value, Option<String>) {
    let answer = server.call("POST", &format!("/v1/queues/{queue}/messages"), body).await;
    (answer.status, answer.json(), answer.header("retry-after").map(str::to_owned))
}

fn counted(problem: &Value) -> (u64, u64, &Value, &Value) {
    let number = |name: &str| problem[name].as_u64().expect("a number");
    (number("limit"), number("used"), &problem["quota"], &problem["resource"])
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_refusals_report_usage_and_retry() {
    let server = Server::start_shards(1).await;
    let rate = Quota { enqueues_per_second: Some(1), burst: Some(2), ..quota("rate") };
    let acme = Quota { messages: Some(3), bytes: Some(40), leases: Some(1), ..quota("acme.") };
    server.wheel.set_quotas(vec![acme, rate]).expect("quotas");
    for _ in 0..3 {
        assert_eq!(status(&server, "acme.a", NOW).await.0, 201);
    }
    let (code, problem, retry) = status(&server, "acme.b", NOW).await;
    assert_eq!((code, &problem["code"], retry.as_deref()), (429, &json!("over_quota"), Some("1")));
    assert_eq!(counted(&problem), (3, 3, &json!("acme."), &json!("messages")));
    assert_eq!(status(&server, "other", NOW).await.0, 201);

    // A consumer is told why there is nothing for it, and a change may make a message no larger than the quota.
    let grants = server.reserve("acme.a", r#"{"max": 9}"#).await;
    assert_eq!(grants.len(), 1);
    let held = server.ok("POST", "/v1/queues/acme.a/reserve", r#"{"max": 9}"#).await;
    assert_eq!(held, json!({"messages": [], "held_back": "leases"}));
    let none = server.ok("POST", "/v1/queues/acme.none/reserve", "").await;
    assert_eq!(none, json!({"messages": []}));
    let list = server.ok("GET", "/v1/queues/acme.a/messages?state=ready", "").await;
    let id = list["messages"][0]["id"].as_str().expect("id");
    let larger = json!({"delay_ms": 0, "body": "x".repeat(33)}).to_string();
    let answer = server.call("PATCH", &format!("/v1/messages/{id}"), &larger).await;
    assert_eq!((answer.status, counted(&answer.json())), (429, (40, 12, &json!("acme."), &json!("bytes"))));
    let fits = json!({"delay_ms": 0, "body": "x".repeat(32)}).to_string();
    server.ok("PATCH", &format!("/v1/messages/{id}"), &fits).await;

    // What settles is never refused, and makes room.
    let ack = json!({"lease_token": grants[0]["lease_token"]}).to_string();
    let acked = grants[0]["id"].as_str().expect("id");
    server.ok("POST", &format!("/v1/messages/{acked}/ack"), &ack).await;
    let (code, problem, _) = status(&server, "acme.a", r#"{"body": "12345", "delay_ms": 0}"#).await;
    assert_eq!((code, counted(&problem)), (429, (40, 36, &json!("acme."), &json!("bytes"))));
    assert_eq!(status(&server, "acme.a", NOW).await.0, 201);

    // Line by line.
    let lines = [NOW; 4].join("\n");
    let answer = server.lines("rate", &lines).await;
    let results = answer.results();
    let codes: Vec<_> = results.iter().map(|line| line["status"].as_u64().expect("status")).collect();
    assert_eq!((answer.status, codes), (200, vec![201, 201, 429, 429]));
    assert_eq!(counted(&results[2]), (1, 1, &json!("rate"), &json!("enqueues_per_second")));
    assert_eq!(results[2]["retry_after_ms"], 1_000);
    server.advance(500);
    let (code, problem, retry) = status(&server, "rate", NOW).await;
    assert_eq!((code, &problem["retry_after_ms"], retry.as_deref()), (429, &json!(500), Some("1")));
    server.advance(500);
    assert_eq!(status(&server, "rate", NOW).await.0, 201);

    let quotas = server.ok("GET", "/v1/quotas", "").await;
    let acme = json!({
        "prefix": "acme.",
        "messages": {"limit": 3, "used": 3, "refused": 1},
        "bytes": {"limit": 40, "used": 40, "refused": 2},
        "leases": {"limit": 1, "used": 0, "refused": 1},
        "answers": {"limit": 30, "used": 0, "refused": 0},
        "enqueues_per_second": {"limit": null, "burst": null, "used": 0, "refused": 0},
    });
    assert_eq!(quotas["quotas"][0], acme);
    let rate = json!({"limit": 1, "burst": 2, "used": 2, "refused": 3});
    assert_eq!(quotas["quotas"][1]["enqueues_per_second"], rate);
    let metrics = server.raw("GET", "/metrics", "", b"").await;
    let metrics = String::from_utf8(metrics.body).expect("text");
    for line in [
        r#"duewheel_quota_limit{quota="acme.",resource="bytes"} 40"#,
        r#"duewheel_quota_used{quota="acme.",resource="messages"} 3"#,
        r#"duewheel_quota_refused_total{quota="acme.",resource="leases"} 1"#,
        r#"duewheel_quota_refused_total{quota="rate",resource="enqueues_per_second"} 3"#,
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    assert!(!metrics.contains(r#"duewheel_quota_limit{quota="acme.",resource="enqueues_per_second"}"#));
}

#[tokio::test(flavor = "multi_thread")]
async fn remembered_answers_are_in_the_quota() {
    let server = Server::start_shards(1).await;
    server.wheel.set_quotas(vec![Quota { answers: Some(2), ..quota("t.") }]).expect("quotas");
    let with = |id: &str, window: &str| {
        json!({"body": "x", "delay_ms": 0, "dedupe_id": id, "dedupe_window": window}).to_string()
    };
    assert_eq!(status(&server, "t.a", &with("one", "1h")).await.0, 201);
    assert_eq!(status(&server, "t.a", &with("two", "1m")).await.0, 201);
    let (code, problem, retry) = status(&server, "t.a", &with("three", "1h")).await;
    assert_eq!((code, retry.as_deref()), (429, Some("600")));
    assert_eq!(counted(&problem), (2, 2, &json!("t."), &json!("answers")));
    assert_eq!(problem["retry_after_ms"], 600_000);
    // The second one has expired.
    server.advance(60_000);
    assert_eq!(status(&server, "t.a", &with("three", "1h")).await.0, 201);
    server.advance(540_000);
    // The first one is old enough to be forgotten.
    assert_eq!(status(&server, "t.a", &with("four", "1h")).await.0, 201);
    let metrics = server.raw("GET", "/metrics", "", b"").await;
    let metrics = String::from_utf8(metrics.body).expect("text");
    assert!(metrics.contains(r#"duewheel_store_answers_forgotten_total{reason="quota"} 1"#), "{metrics}");

    let (code, problem, _) = status(&server, "t.a", &with("long", "25h")).await;
    assert_eq!((code, &problem["code"]), (400, &json!("bad_request")));
    let detail = problem["detail"].as_str().expect("words");
    assert!(detail.starts_with("dedupe_window: ") && detail.contains("configure a longer one"), "{detail}");
}

#[tokio::test(flavor = "multi_thread")]
async fn freed_tenant_lease_wakes_waiting_consumer() {
    let server = Server::start_shards(1).await;
    server.wheel.set_quotas(vec![Quota { leases: Some(1), ..quota("t.") }]).expect("quotas");
    server.enqueue("t.a", NOW).await;
    server.enqueue("t.b", NOW).await;
    let grant = server.reserve("t.a", "").await.remove(0);
    let (id, token) = (grant["id"].as_str().expect("id"), json!({"lease_token": grant["lease_token"]}));
    let waiting = server.reserve("t.b", r#"{"wait_ms": 600000}"#);
    let ack = async {
        server.until("it waits", "/v1/queues/t.b", |queue| queue["waiters"] == 1).await;
        server.ok("POST", &format!("/v1/messages/{id}/ack"), &token.to_string()).await;
    };
    let (served, ()) = tokio::join!(waiting, ack);
    assert_eq!(served.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn over_several_shards_the_sum_holds() {
    let server = Server::start_shards(4).await;
    let limits = Quota { messages: Some(10), leases: Some(6), ..quota("m") };
    let rate = Quota { enqueues_per_second: Some(8), ..quota("r") };
    server.wheel.set_quotas(vec![limits, rate]).expect("quotas");
    let mut accepted = 0;
    for n in 0..200 {
        let body = if n % 2 == 0 {
            NOW.to_owned()
        } else {
            json!({"body": "b", "delay_ms": 0, "key": n.to_string()}).to_string()
        };
        accepted += u64::from(status(&server, "m", &body).await.0 == 201);
    }
    assert_eq!(accepted, 10, "neither more, nor less once each shard has been tried");
    let mut leased = 0;
    for _ in 0..20 {
        leased += server.reserve("m", r#"{"max": 9}"#).await.len();
    }
    assert_eq!(leased, 6);
    let mut accepted = 0;
    for n in 0..100 {
        let body = json!({"body": "b", "delay_ms": 0, "key": n.to_string()}).to_string();
        accepted += u64::from(status(&server, "r", &body).await.0 == 201);
    }
    assert_eq!(accepted, 8);
    server.advance(1_000);
    let refused = (0..100).map(|n| json!({"body": "b", "delay_ms": 0, "key": format!("x{n}")}).to_string());
    let answer = server.lines("r", &refused.collect::<Vec<_>>().join("\n")).await;
    let accepted = answer.results().iter().filter(|line| line["status"] == 201).count();
    assert_eq!(accepted, 8);

    let quotas = server.ok("GET", "/v1/quotas", "").await;
    let messages = &quotas["quotas"][0]["messages"];
    assert_eq!((&messages["limit"], &messages["used"]), (&json!(10), &json!(10)));
    assert_eq!(
        (&quotas["quotas"][0]["leases"]["limit"], &quotas["quotas"][0]["leases"]["used"]),
        (&json!(6), &json!(6))
    );
    assert_eq!(quotas["quotas"][1]["messages"]["used"], 16);
}

const FILE: &str = "http = '127.0.0.1:0'\nbeanstalk = 'off'\ndurability = 'memory'\n";

/// Writes the file; SIGHUP, until the quotas are so.
fn set(server: &Process, dir: &TempDir, quotas: &str, so: impl Fn(&Value) -> bool) {
    std::fs::write(dir.path().join("duewheel.toml"), format!("{FILE}{quotas}")).expect("file");
    server.signal("-HUP");
    server.until("/v1/quotas", |shown| so(&shown["quotas"]));
}

#[test]
fn quotas_reload_at_sighup_if_valid() {
    let dir = TempDir::new().expect("dir");
    let file = dir.path().join("duewheel.toml");
    std::fs::write(&file, format!("{FILE}[[quota]]\nprefix = 'acme.'\nmessages = 2\n")).expect("file");
    let log = std::fs::File::create(dir.path().join("log")).expect("log");
    let mut command = serve();
    command.arg("--config").arg(&file).arg("--data").arg(dir.path().join("data"));
    let mut server = Process::spawn_logged(command, log.into());
    let put = |server: &Process| server.call("POST", "/v1/queues/acme.q/messages", NOW).0;
    assert_eq!([put(&server), put(&server), put(&server)], [201, 201, 429]);

    set(&server, &dir, "[[quota]]\nprefix = 'acme.'\nmessages = 3\n", |quotas| {
        quotas[0]["messages"]["limit"] == 3
    });
    assert_eq!([put(&server), put(&server)], [201, 429], "raised");
    set(&server, &dir, "[[quota]]\nprefix = 'acme.'\nmessages = 1\n", |quotas| {
        quotas[0]["messages"]["limit"] == 1
    });
    let quotas = server.call("GET", "/v1/quotas", "").1;
    assert_eq!(
        quotas["quotas"][0]["messages"],
        json!({"limit": 1, "used": 3, "refused": 2}),
        "lowered below use"
    );
    assert_eq!(put(&server), 429);

    std::fs::write(&file, "[[quota]]\nprefix = 'acme.'\nmessages = 0\n").expect("file");
    server.signal("-HUP");
    let says = "the quotas stay as they were";
    let log = || std::fs::read_to_string(dir.path().join("log")).expect("log");
    let begun = std::time::Instant::now();
    while !log().contains(says) {
        assert!(begun.elapsed() < crate::fixture::PATIENCE, "never: {says}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(log().contains("messages: must be from 1 to"), "{}", log());
    assert_eq!(
        (put(&server), server.call("GET", "/v1/quotas", "").1["quotas"][0]["messages"]["limit"].clone()),
        (429, json!(1))
    );

    set(&server, &dir, "", |quotas| quotas == &json!([]));
    assert_eq!(put(&server), 201, "removed");
    server.signal("-TERM");
    assert!(server.wait().success());
}

#[test]
fn invalid_quotas_prevent_start() {
    let dir = TempDir::new().expect("dir");
    let file = dir.path().join("duewheel.toml");
    std::fs::write(&file, format!("{FILE}[[quota]]\nprefix = 'acme.'\nburst = 2\n")).expect("file");
    let output = run(serve().arg("--config").arg(&file).arg("--data").arg(dir.path().join("data")));
    assert!(!output.status.success());
    let says = text(&output.stderr);
    assert!(says.contains(r#"quota "acme.": burst: needs enqueues_per_second"#), "{says}");
}
