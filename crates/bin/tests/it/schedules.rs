//! Schedules from outside: over HTTP with virtual time, on the command line, and over crashes of real processes.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use duewheel::Policy;
use duewheel::core::engine::Quota;
use duewheel_redis_rig::{Redis, Settings};
use duewheel_server::auth::{Guard, Hosts};
use duewheel_server::http::HttpLimits;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::{PATIENCE, Server};
use crate::process::{BINARY, Process, serve};
use crate::security::new_token;
use crate::shell::Shell;

const MINUTE: u64 = 60_000;

async fn server() -> Server {
    let server = Server::start().await;
    server.app.start_schedules();
    server
}

/// Waits until so many occurrences were put into their queue, which is done ahead of their time.
async fn entered(server: &Server, queue: &str, count: u64) {
    let path = format!("/v1/queues/{queue}");
    let begun = std::time::Instant::now();
    // The queue does not exist before.
    while server.call("GET", &path, "").await.json()["totals"]["enqueued"] != count {
        assert!(begun.elapsed() < crate::fixture::PATIENCE, "{count} occurrences in {queue}");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_over_http() {
    let server = server().await;
    let put = json!({"queue": "reports", "cron": "30 8 * * *", "zone": "Europe/Berlin", "body": "daily", "headers": {"a": "b"}});
    let made = server.ok("PUT", "/v1/schedules/daily", &put.to_string()).await;
    assert_eq!(made["next"].as_array().map(Vec::len), Some(10));
    assert_eq!((&made["next"][0]["offset"], &made["queue"]), (&json!(3_600), &json!("reports")));
    entered(&server, "reports", 1).await;
    let queues = server.ok("GET", "/v1/queues", "").await;
    assert_eq!(queues["queues"].as_array().map(Vec::len), Some(1), "{queues}");
    assert_eq!(server.ok("GET", "/v1/stats", "").await["counts"]["scheduled"], 1);
    let pending = server.ok("GET", "/v1/queues/reports/messages", "").await;
    let message = &pending["messages"][0];
    assert_eq!(message["due_at"], made["next"][0]["at"]);
    assert_eq!(message["headers"]["duewheel-schedule"], "daily");
    assert_eq!(message["headers"]["duewheel-occurrence"], message["due_at"]);
    assert_eq!(message["key"], format!("daily@{}", message["due_at"].as_str().unwrap_or_default()));

    let shown = server.ok("GET", "/v1/schedules/daily", "").await;
    let defaults = ["missed", "catchup", "overlap", "dst_gap", "dst_fold"].map(|field| &shown[field]);
    assert_eq!(defaults, ["last", "24h", "allow", "shift", "first"], "{shown}");
    assert_eq!(made["zone"], "Europe/Berlin");

    let changed = server.ok("PATCH", "/v1/schedules/daily", r#"{"every": "1m", "note": "faster"}"#).await;
    assert_eq!((&changed["every"], &changed["note"]), (&json!("1m"), &json!("faster")));
    assert!(changed["cron"].is_null() && changed["zone"].is_null(), "{changed}");
    assert_eq!(changed["body"], "daily");
    server.advance(MINUTE);
    let grants = server.reserve("reports", r#"{"wait_ms": 20000}"#).await;
    assert_eq!(grants[0]["body"], "daily");
    let plain = server.ok("PATCH", "/v1/schedules/daily", r#"{"note": null, "json": {"a": [1, 2]}}"#).await;
    assert!(plain["note"].is_null());
    assert_eq!(plain["body"], r#"{"a": [1, 2]}"#, "as it was sent");
    assert_eq!(plain["headers"], json!({"a": "b", "content-type": "application/json"}));

    let first = server.call("POST", "/v1/schedules/daily/trigger", r#"{"dedupe_id": "x"}"#).await;
    let again = server.call("POST", "/v1/schedules/daily/trigger", r#"{"dedupe_id": "x"}"#).await;
    let repeated = again.json();
    assert_eq!((first.status, again.status, &first.json()["id"]), (201, 201, &repeated["id"]), "one answer");
    assert_eq!((&first.json()["replayed"], &repeated["replayed"]), (&Value::Null, &json!(true)));
    let span = r#"{"from": "2025-01-01T00:00:00Z", "to": "2025-01-01T01:00:00Z", "id": "b"}"#;
    let done = server.ok("POST", "/v1/schedules/daily/backfill", span).await;
    assert_eq!(done, json!({"id": "b", "occurrences": 0}), "an interval begins at the creation");

    let list = server.ok("GET", "/v1/schedules", "").await;
    assert_eq!(list["schedules"][0]["name"], "daily");
    assert!(
        list["zone_data"]
            .as_str()
            .is_some_and(|data| data.starts_with("system") || data.starts_with("bundled"))
    );
    server.ok("DELETE", "/v1/schedules/daily", "").await;
    assert_eq!(server.call("GET", "/v1/schedules/daily", "").await.status, 404);
    assert_eq!(server.call("DELETE", "/v1/schedules/daily", "").await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preview_marks_what_clocks_do() {
    let server = Server::start().await;
    let asked = json!({"cron": "30 2 * * *", "zone": "Europe/Berlin", "dst_fold": "both", "from": "2027-03-27T12:00:00Z", "count": 2});
    let seen = server.ok("POST", "/v1/schedules/preview", &asked.to_string()).await;
    assert_eq!(seen["next"][0]["note"], "shifted");
    assert!(seen["next"][1]["note"].is_null());
    let asked = json!({"cron": "30 2 * * *", "zone": "Europe/Berlin", "dst_fold": "both", "from": "2027-10-30T12:00:00Z", "count": 2});
    let seen = server.ok("POST", "/v1/schedules/preview", &asked.to_string()).await;
    assert_eq!(seen["next"][1]["note"], "repeated");
    assert_eq!(server.ok("GET", "/v1/schedules", "").await["schedules"], json!([]), "nothing is saved");
}

/// Story: a preview showed ten occurrences of a schedule that had two left, and of one that was paused.
#[tokio::test(flavor = "multi_thread")]
async fn a_preview_shows_what_would_occur() {
    let server = Server::start().await;
    for (more, count) in
        [("", 3), (r#", "remaining": 2"#, 2), (r#", "remaining": 9"#, 3), (r#", "paused": true"#, 0)]
    {
        let asked = format!(r#"{{"every": "1h", "count": 3{more}}}"#);
        let seen = server.ok("POST", "/v1/schedules/preview", &asked).await;
        assert_eq!(seen["next"].as_array().map(Vec::len), Some(count), "{asked}: {seen}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_schedules_are_refused_by_field() {
    let server = Server::start().await;
    let long = "*".repeat(257);
    for (body, field) in [
        (json!({}), "queue"),
        (json!({"queue": "q"}), "cron"),
        (json!({"queue": "#schedules", "every": "1m"}), "queue"),
        (json!({"queue": "q", "every": "1m", "cron": "* * * * *"}), "cron"),
        (json!({"queue": "q", "every": "10ms"}), "every"),
        (json!({"queue": "q", "cron": "0 0 31 2 *"}), "cron"),
        (json!({"queue": "q", "cron": long}), "cron"),
        (json!({"queue": "q", "cron": "* * * * *", "zone": "Moon/Crater"}), "zone"),
        (json!({"queue": "q", "at": ["2027-01-01T00:00:00Z", "soon"]}), "at[1]"),
        (json!({"queue": "q", "every": "1m", "zone": "UTC"}), "zone"),
        (json!({"queue": "q", "every": "1m", "missed": "some"}), "missed"),
        (json!({"queue": "q", "every": "1m", "overlap": "no"}), "overlap"),
        (json!({"queue": "q", "every": "1m", "catchup": "400d"}), "catchup"),
        (json!({"queue": "q", "every": "1m", "jitter": "25h"}), "jitter"),
        (json!({"queue": "q", "every": "1m", "remaining": 0}), "remaining"),
        (json!({"queue": "q", "every": "1m", "body": "a", "json": 1}), "json"),
        (
            json!({"queue": "q", "every": "1m", "headers": {"Duewheel-Schedule": "x"}}),
            "headers.Duewheel-Schedule",
        ),
        (json!({"queue": "q", "every": "1m", "colour": "red"}), "colour"),
        (json!({"queue": "q", "every": "1m", "note": "x".repeat(1_025)}), "note"),
        (json!({"queue": "q", "every": "1m", "body": "x".repeat(230_000)}), "body"),
    ] {
        let answer = server.call("PUT", "/v1/schedules/s", &body.to_string()).await;
        let problem = answer.json();
        assert_eq!((answer.status, &problem["field"]), (400, &json!(field)), "{problem}");
    }
    let name = "n".repeat(129);
    let answer =
        server.call("PUT", &format!("/v1/schedules/{name}"), r#"{"queue": "q", "every": "1m"}"#).await;
    assert_eq!((answer.status, &answer.json()["field"]), (400, &json!("name")));
    for (path, body, field) in [
        (
            "/v1/schedules/s/backfill",
            json!({"from": "2026-02-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}),
            "to",
        ),
        ("/v1/schedules/s/backfill", json!({"from": "x", "to": "2026-01-01T00:00:00Z"}), "from"),
        (
            "/v1/schedules/s/backfill",
            json!({"from": "2026-01-01T00:00:00Z", "to": "2027-01-01T00:00:00Z"}),
            "to",
        ),
        ("/v1/schedules/s/trigger", json!({"dedupe_id": "a b"}), "dedupe_id"),
        ("/v1/schedules/preview", json!({"cron": "* * * * *", "count": 0}), "count"),
        ("/v1/schedules/preview", json!({"cron": "* * * * *", "colour": 0}), "colour"),
    ] {
        server.ok("PUT", "/v1/schedules/s", r#"{"queue": "q", "cron": "* * * * *", "paused": true}"#).await;
        let answer = server.call("POST", path, &body.to_string()).await;
        assert_eq!((answer.status, &answer.json()["field"]), (400, &json!(field)), "{}", answer.json());
    }
}

/// Story: instants that had passed were taken, and nothing ever occurred. Undo and import send what was there, which is
/// taken.
#[tokio::test]
async fn past_schedules_need_a_word() {
    let server = server().await;
    let path = "/v1/schedules/s";
    let settings = json!({"queue": "q", "at": ["2020-01-01T00:00:00Z"]});
    let answer = server.call("PUT", path, &settings.to_string()).await;
    let problem = answer.json();
    assert_eq!(
        (answer.status, &problem["code"], &problem["field"]),
        (422, &json!("in_the_past"), &json!("at"))
    );
    let mut kept = settings.clone();
    kept["past"] = json!("keep");
    server.ok("PUT", path, &kept.to_string()).await;
    server.ok("PUT", path, &settings.to_string()).await;
    server.ok("PATCH", path, r#"{"note": "words"}"#).await;
    let answer = server.call("PATCH", path, r#"{"at": ["2020-01-02T00:00:00Z"]}"#).await;
    assert_eq!(answer.status, 422, "{}", answer.json());
    server.ok("PATCH", path, r#"{"at": ["2020-01-02T00:00:00Z"], "past": "keep"}"#).await;
}

/// What `buffer_one` holds back is shown.
#[tokio::test(flavor = "multi_thread")]
async fn a_buffered_occurrence_is_shown() {
    let server = server().await;
    let settings = r#"{"queue": "q", "every": "1m", "overlap": "buffer_one", "catchup": "24h"}"#;
    server.ok("PUT", "/v1/schedules/s", settings).await;
    for n in 1..3 {
        server.advance(60_000);
        server
            .until("it was looked at", "/v1/schedules/s", |seen| {
                seen["counts"]["entered"] == 1 && (n == 1 || seen["waits"].is_object())
            })
            .await;
    }
    let waits = server.ok("GET", "/v1/schedules/s", "").await["waits"].clone();
    assert_eq!(waits["why"], "the message of the previous occurrence is not settled");
    assert!(waits["at"].is_string() && waits["until"].is_null(), "{waits}");
}

/// A token has the schedules of its queues; the others do not exist for it, but that their names are taken.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_reach_schedules_of_own_queues() {
    let dir = TempDir::new().expect("dir");
    let file = dir.path().join("tokens.toml");
    let all = new_token(&file, &["--name", "all", "--scope", "admin"]);
    let shop = new_token(&file, &["--name", "shop", "--scope", "admin", "--queue", "shop/"]);
    let guard = std::sync::Arc::new(Guard::of(file).expect("tokens"));
    let server =
        Server::start_guarded(Policy::default(), HttpLimits::default(), guard, Hosts::default()).await;
    let call = async |token: &str, method: &str, path: &str, body: &str| {
        server.call_by(token, method, path, body).await
    };
    let of = |queue: &str| json!({"queue": queue, "every": "1m"}).to_string();
    assert_eq!(call(&all, "PUT", "/v1/schedules/theirs", &of("other/q")).await.0, 200);
    assert_eq!(call(&shop, "PUT", "/v1/schedules/mine", &of("shop/q")).await.0, 200);
    assert_eq!(call(&shop, "PUT", "/v1/schedules/more", &of("other/q")).await.0, 403);
    assert_eq!(call(&shop, "PATCH", "/v1/schedules/mine", r#"{"queue": "other/q"}"#).await.0, 403);
    let (status, taken) = call(&shop, "PUT", "/v1/schedules/theirs", &of("shop/q")).await;
    assert_eq!((status, &taken["code"]), (409, &json!("key_exists")));
    assert!(!taken.to_string().contains("other"), "{taken}");
    for (method, path, body) in [
        ("GET", "/v1/schedules/theirs", ""),
        ("DELETE", "/v1/schedules/theirs", ""),
        ("PATCH", "/v1/schedules/theirs", r#"{"paused": true}"#),
        ("POST", "/v1/schedules/theirs/trigger", ""),
        (
            "POST",
            "/v1/schedules/theirs/backfill",
            r#"{"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}"#,
        ),
    ] {
        let (status, answer) = call(&shop, method, path, body).await;
        assert_eq!(status, 404, "{method} {path}: {answer}");
        assert!(!answer.to_string().contains("other"), "{answer}");
    }
    let names = async |token: &str| {
        let (_, list) = call(token, "GET", "/v1/schedules", "").await;
        list["schedules"].as_array().into_iter().flatten().map(|s| s["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&shop).await, ["mine"]);
    assert_eq!(names(&all).await, ["mine", "theirs"]);
    let (_, page) = call(&all, "GET", "/v1/schedules?limit=1", "").await;
    assert_eq!((&page["schedules"][0]["name"], &page["next"]), (&json!("mine"), &json!("mine")));
    let (_, page) = call(&all, "GET", "/v1/schedules?limit=1&after=mine", "").await;
    assert_eq!(page["schedules"][0]["name"], "theirs");
}

/// Story: the record of a schedule had an id like any message, and ids can be guessed: `DELETE /v1/messages/1` removed
/// the schedule, and a look showed what only duewheel may know.
#[tokio::test(flavor = "multi_thread")]
async fn schedule_records_are_unreachable_by_id() {
    let server = server().await;
    server.ok("PUT", "/v1/schedules/daily", r#"{"queue": "reports", "every": "24h"}"#).await;
    entered(&server, "reports", 1).await;
    let mut found = 0;
    for id in 1..=8 {
        let path = format!("/v1/messages/{id}");
        let look = server.call("GET", &path, "").await;
        if look.status == 200 {
            assert_eq!(look.json()["queue"], "reports", "{}", look.json());
            found += 1;
            continue;
        }
        for (method, path, body) in [
            ("PATCH", path.clone(), r#"{"delay": "1h"}"#),
            ("POST", format!("{path}/fire"), ""),
            ("DELETE", path.clone(), ""),
        ] {
            assert_eq!(server.call(method, &path, body).await.status, 404, "{method} {path}");
        }
    }
    assert_eq!(found, 1, "the pending occurrence");
    let seen = server.ok("GET", "/v1/schedules/daily", "").await;
    assert_eq!((&seen["counts"]["entered"], &seen["latest"]), (&json!(0), &json!([])), "it is not due");
    assert!(seen["next"][0]["message"].is_string() && seen["next"][1]["message"].is_null(), "{seen}");
}

/// In drain mode no occurrence enters by way of this node, and no schedule is made.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_drains_enters_nothing() {
    let server = server().await;
    server.ok("PUT", "/v1/schedules/s", r#"{"queue": "q", "every": "1m"}"#).await;
    entered(&server, "q", 1).await;
    server.drain.turn_on();
    assert_eq!(server.call("PUT", "/v1/schedules/t", r#"{"queue": "q", "every": "1m"}"#).await.status, 503);
    assert_eq!(server.call("POST", "/v1/schedules/s/trigger", "").await.status, 503);
    // Another recurrence would put an occurrence at once.
    assert_eq!(server.call("PATCH", "/v1/schedules/s", r#"{"every": "2m"}"#).await.status, 503);
}

/// An occurrence that a quota keeps out of its queue is shown with the reason, and enters when there is room.
#[tokio::test(flavor = "multi_thread")]
async fn quota_blocked_occurrence_shows_reason() {
    let server = server().await;
    let quota = Quota { prefix: "reports".into(), messages: Some(1), ..Quota::default() };
    server.wheel.set_quotas(vec![quota]).expect("quotas");
    server.ok("PUT", "/v1/schedules/s", r#"{"queue": "reports", "every": "1h"}"#).await;
    entered(&server, "reports", 1).await;
    let seen = server.ok("GET", "/v1/schedules/s", "").await;
    assert_eq!((&seen["waits"], &seen["counts"]["blocked"]), (&Value::Null, &json!(0)), "{seen}");
    server.advance(60 * MINUTE);
    server.until("it waits", "/v1/schedules/s", |seen| seen["waits"].is_object()).await;
    let seen = server.ok("GET", "/v1/schedules/s", "").await;
    assert_eq!((&seen["counts"]["blocked"], &seen["counts"]["entered"]), (&json!(1), &json!(1)), "{seen}");
    assert_eq!(seen["waits"]["why"], "a quota is used up");
    assert_eq!(seen["waits"]["until"], "2026-01-01T01:00:01.000Z");
    let metric = |text: &str, outcome: &str| {
        let name = format!("duewheel_schedule_occurrences_total{{outcome=\"{outcome}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)).expect("a metric").to_owned()
    };
    let page = String::from_utf8(server.call("GET", "/metrics", "").await.body).expect("text");
    assert_eq!((metric(&page, "blocked"), metric(&page, "entered")), ("1".to_owned(), "1".to_owned()));

    let first = server.reserve("reports", "{}").await.remove(0);
    let ack = json!({"lease_token": first["lease_token"]}).to_string();
    server.ok("POST", &format!("/v1/messages/{}/ack", first["id"].as_str().expect("id")), &ack).await;
    server.advance(1_000);
    server.until("it has entered", "/v1/schedules/s", |seen| seen["waits"].is_null()).await;
    let pending = server.ok("GET", "/v1/queues/reports/messages", "").await;
    let messages = pending["messages"].as_array().expect("messages");
    assert_eq!((messages.len(), &messages[0]["due_at"]), (1, &json!("2026-01-01T02:00:00.000Z")));
    let seen = server.ok("GET", "/v1/schedules/s", "").await;
    assert_eq!((&seen["counts"]["blocked"], &seen["counts"]["missed"]), (&json!(1), &json!(0)), "{seen}");
    assert_eq!(seen["next"][0]["message"], messages[0]["id"], "{seen}");
}

/// A folder that `TZDIR` names and that has no zones: what is built in is used, and said so.
#[test]
fn bundled_time_zones_replace_missing_system() {
    let (dir, zones) = (TempDir::new().expect("dir"), TempDir::new().expect("zones"));
    let mut command = serve();
    command.args(["--http", "127.0.0.1:0", "--durability", "memory", "--data"]).arg(dir.path().join("data"));
    command.env("TZDIR", zones.path());
    let process = Process::spawn(command);
    let cron =
        json!({"cron": "30 8 * * *", "zone": "America/New_York", "from": "2026-01-01T00:00:00Z", "count": 1});
    let (status, shown) = process.call("POST", "/v1/schedules/preview", &cron.to_string());
    assert_eq!((status, &shown["next"][0]["at"]), (200, &json!("2026-01-01T13:30:00.000Z")), "{shown}");
    let listed = process.call("GET", "/v1/schedules", "").1;
    for answer in [&shown, &listed] {
        assert!(answer["zone_data"].as_str().is_some_and(|data| data.starts_with("bundled 20")), "{answer}");
    }
    process.kill();
}

/// The occurrences of the schedule that are in its queue, each once and without a gap. `None`: not all shards answer.
fn each_once(process: &Process, name: &str) -> Option<usize> {
    let mut seen: BTreeMap<i64, u32> = BTreeMap::new();
    let mut after = String::new();
    loop {
        let path = format!("/v1/queues/{name}/messages?limit=500{after}");
        let (status, page) = process.call("GET", &path, "");
        if status != 200 {
            return None;
        }
        for message in page["messages"].as_array().into_iter().flatten() {
            let at = message["headers"]["duewheel-occurrence"].as_str().unwrap_or_default();
            let at: jiff::Timestamp = at.parse().unwrap_or_else(|e| panic!("{message}: {e}"));
            *seen.entry(at.as_millisecond()).or_default() += 1;
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    let twice: Vec<_> = seen.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    let instants: Vec<_> = seen.keys().collect();
    let gaps: Vec<_> = instants.windows(2).filter(|pair| pair[1] - pair[0] != 1_000).collect();
    assert!(gaps.is_empty(), "{gaps:?}");
    Some(instants.len())
}

fn count(process: &Process, name: &str) -> u64 {
    process.call("GET", &format!("/v1/schedules/{name}"), "").1["counts"]["entered"].as_u64().unwrap_or(0)
}

/// A call that is repeated while shards move between nodes.
fn insist(process: &Process, method: &str, path: &str, body: &Value) -> Value {
    let begun = Instant::now();
    loop {
        let (status, answer) = process.call(method, path, &body.to_string());
        if status == 200 {
            return answer;
        }
        assert!([503, 429].contains(&status) && begun.elapsed() < PATIENCE, "{status}: {answer}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn put_every_second(process: &Process, name: &str) {
    let body = json!({"queue": name, "every": "1s", "missed": "all", "body": "tick"});
    insist(process, "PUT", &format!("/v1/schedules/{name}"), &body);
}

/// Ends a schedule that occurs every second, and compares what has entered with what had to.
fn ends_complete(process: &Process, name: &str) -> u64 {
    let path = format!("/v1/schedules/{name}");
    // A killed process may have held the record, and a change waits until that is over; this one makes no difference.
    insist(process, "PATCH", &path, &json!({"note": "ends soon"}));
    let end = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(5);
    // The server rounds a finer instant up.
    let end = jiff::Timestamp::from_millisecond(end.as_millisecond()).expect("an instant");
    let schedule = insist(process, "PATCH", &path, &json!({"end": end.to_string()}));
    assert!(jiff::Timestamp::now() < end, "the change was made in time");
    let created: jiff::Timestamp =
        schedule["created_at"].as_str().unwrap_or_default().parse().expect("an instant");
    let all = u64::try_from(end.duration_since(created).as_millis() / 1_000).expect("a number");
    process.until(&path, |seen| seen["counts"]["entered"] == all);
    let counts = &insist(process, "GET", &path, &json!({}))["counts"];
    assert_eq!((&counts["missed"], &counts["unsure"]), (&json!(0), &json!(0)), "{counts}");
    let begun = Instant::now();
    while each_once(process, name) != usize::try_from(all).ok() {
        assert!(begun.elapsed() < PATIENCE, "{name}: {:?} of {all}", each_once(process, name));
        std::thread::sleep(Duration::from_millis(20));
    }
    all
}

/// kill -9 again and again, whatever the worker does: each second enters once.
#[test]
fn kill_9_keeps_occurrences_exactly_once() {
    let dir = TempDir::new().expect("dir");
    let mut process = Process::start(dir.path(), &[]);
    let address = process.url.trim_start_matches("http://").to_owned();
    for name in ["a", "b", "c"] {
        put_every_second(&process, name);
    }
    for round in 0..8u64 {
        let before = count(&process, "a");
        let begun = Instant::now();
        // The instants differ from round to round, so that each step of a look is hit.
        while count(&process, "a") <= before || begun.elapsed() < Duration::from_millis(130 * round) {
            assert!(begun.elapsed() < PATIENCE, "nothing enters");
            std::thread::sleep(Duration::from_millis(23));
        }
        process = process.killed_and_restarted(dir.path(), &address);
    }
    for name in ["a", "b", "c"] {
        assert!(ends_complete(&process, name) >= 8, "{name}");
    }
}

/// Two nodes on Redis, of which one dies at a time: the other goes on, and each second enters once.
#[test]
fn dead_node_schedules_run_elsewhere() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let node = |name: &str| {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--http", "127.0.0.1:0", "--store", &redis.url(0), "--node", name]);
        command.args(["--advertise", "127.0.0.1:0", "--shards", "4", "--shard-lease", "1s"]);
        Process::spawn(command)
    };
    let mut nodes = vec![node("n0"), node("n1")];
    nodes[0].until("/v1/cluster", |seen| seen["shards_without_owner"] == 0);
    let names = ["a", "b", "c", "d"];
    for name in names {
        put_every_second(&nodes[0], name);
    }
    for round in 0..2 {
        let dies = nodes.remove(0);
        dies.kill();
        let before = names.map(|name| count(&nodes[0], name));
        for (name, before) in names.iter().zip(before) {
            let path = format!("/v1/schedules/{name}");
            nodes[0].until(&path, |seen| seen["counts"]["entered"].as_u64().is_some_and(|n| n > before + 1));
        }
        nodes.push(node(&format!("n{}", round + 2)));
        nodes[1].until("/v1/cluster", |seen| seen["shards_without_owner"] == 0);
    }
    for name in names {
        ends_complete(&nodes[0], name);
    }
}

#[test]
fn the_command_line_of_schedules() {
    let shell = Shell::new();
    let made = shell.ok(&[
        "schedule",
        "put",
        "daily",
        "--queue",
        "q",
        "--cron",
        "30 2 * * *",
        "--zone",
        "Europe/Berlin",
        "work",
    ]);
    assert!(made.contains("cron        30 2 * * *") && made.contains("next        20"), "{made}");
    let seen = shell.ok(&[
        "schedule",
        "preview",
        "--cron",
        "30 2 * * *",
        "--zone",
        "Europe/Berlin",
        "--from",
        "2027-03-27T12:00:00Z",
        "--count",
        "1",
    ]);
    assert!(seen.contains("2027-03-28 03:00:00 +02:00 (shifted)") && seen.contains("zone data"), "{seen}");
    assert!(shell.ok(&["schedule", "trigger", "daily", "--dedupe-id", "x"]).starts_with("entered as "));
    let again = shell.ok(&["schedule", "trigger", "daily", "--dedupe-id", "x"]);
    assert!(again.starts_with("entered before as "), "{again}");
    let past = ["schedule", "put", "past", "--queue", "q", "--at", "2020-01-01T00:00:00Z"];
    assert!(shell.fails(&past, 2).contains("in_the_past"));
    assert!(shell.fails(&[&past[..], &["--past", "refuse"]].concat(), 2).contains("in_the_past"));
    assert!(shell.ok(&[&past[..], &["--past", "keep"]].concat()).starts_with("name        past\n"));
    let paused = shell.ok(&["schedule", "pause", "daily", "--note", "holidays"]);
    assert!(paused.contains("paused      true") && paused.contains("note        holidays"), "{paused}");
    assert!(shell.ok(&["schedule", "list"]).contains("paused"));
    assert!(shell.ok(&["schedule", "resume", "daily"]).contains("paused      false"));
    let filled = shell.ok(&[
        "schedule",
        "backfill",
        "daily",
        "--from",
        "2026-01-01T00:00:00Z",
        "--to",
        "2026-01-03T00:00:00Z",
        "--id",
        "b",
    ]);
    assert!(filled.starts_with("2 occurrences entered"), "{filled}");
    let shown: Value = shell.json(&["schedule", "get", "daily", "--json"]);
    assert_eq!(shown["queue"], "q");
    assert_eq!(shell.ok(&["schedule", "rm", "daily"]), "removed daily\n");
    shell.fails(&["schedule", "get", "daily"], 3);
    let wrong = shell.fails(&["schedule", "put", "daily", "--queue", "q", "--cron", "never"], 2);
    assert!(wrong.contains("bad_request: --cron \"never\": "), "{wrong}");
}

/// Story: `schedule put` sent `paused: false` each time, so that a change of the body started a schedule that somebody
/// had paused, and it dropped the headers, which had no option.
#[test]
fn repeated_schedule_put_keeps_unnamed_settings() {
    let shell = Shell::new();
    let put = |more: &[&str]| -> Value {
        let args = [&["schedule", "put", "daily", "--queue", "q", "--json"], more].concat();
        serde_json::from_str(&shell.ok(&args)).expect("JSON")
    };
    let made = put(&[
        "--cron",
        "0 9 * * *",
        "--zone",
        "Europe/Berlin",
        "--header",
        "a=b",
        "--remaining",
        "9",
        "one",
    ]);
    assert_eq!((&made["headers"], &made["paused"]), (&json!({"a": "b"}), &json!(false)));
    shell.ok(&["schedule", "pause", "daily", "--note", "holidays"]);
    let again = put(&["--cron", "0 8 * * *", "two"]);
    assert_eq!((&again["cron"], &again["body"]), (&json!("0 8 * * *"), &json!("two")));
    assert_eq!((&again["paused"], &again["note"]), (&json!(true), &json!("holidays")));
    assert_eq!((&again["headers"], &again["zone"]), (&json!({"a": "b"}), &json!("Europe/Berlin")));
    assert_eq!(again["remaining"], 9);
    let again = put(&["--header", "c=d=e", "--unset", "zone", "--unset", "note"]);
    assert_eq!((&again["headers"], &again["body"]), (&json!({"c": "d=e"}), &json!("two")));
    assert!(again["zone"] == "UTC" && again["note"].is_null(), "{again}");
    let every = put(&["--every", "1h", "--unset", "headers", "--unset", "remaining"]);
    assert_eq!((&every["every"], &every["headers"]), (&json!("1h"), &json!({})));
    assert!(every["cron"].is_null() && every["remaining"].is_null(), "{every}");
    shell.ok(&["schedule", "resume", "daily"]);
    assert_eq!(put(&["--paused"])["paused"], true);
    let both =
        shell.fails(&["schedule", "put", "daily", "--queue", "q", "--note", "x", "--unset", "note"], 2);
    assert!(both.contains("--unset note"), "{both}");
    shell.fails(&["schedule", "put", "new", "--queue", "q"], 2);
    assert_eq!(put(&["--unset", "zone"])["paused"], true);
    // Story: the queue had to be named again, too.
    let other = shell.json(&["schedule", "put", "daily", "--every", "2h", "--json"]);
    assert_eq!((&other["every"], &other["queue"]), (&json!("2h"), &json!("q")), "{other}");
    let new = shell.fails(&["schedule", "put", "new", "--every", "2h"], 2);
    assert!(new.contains("--queue"), "{new}");
}

/// Story: of a member that was there twice the last one counted, in a preview and in a change.
#[tokio::test(flavor = "multi_thread")]
async fn duplicate_schedule_member_is_refused() {
    let server = server().await;
    server.ok("PUT", "/v1/schedules/s", r#"{"queue": "q", "every": "1h"}"#).await;
    for (method, path, body, field) in [
        ("POST", "/v1/schedules/preview", r#"{"every": "1h", "every": "2h"}"#, "every"),
        ("POST", "/v1/schedules/preview", r#"{"every": "1h", "count": 1, "count": 2}"#, "count"),
        ("POST", "/v1/schedules/preview", r#"{"every": "1h", "headers": {"a": "1", "a": "2"}}"#, "headers"),
        ("PATCH", "/v1/schedules/s", r#"{"note": "a", "note": "b"}"#, "note"),
        ("PUT", "/v1/schedules/s", r#"{"queue": "q", "every": "1h", "every": "2h"}"#, "every"),
        ("POST", "/v1/schedules/preview", r#"{"every": "1h", "count": "ten"}"#, "count"),
    ] {
        let refused = server.call(method, path, body).await;
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!(field)), "{method} {body}");
    }
}
