//! The audit trail and the status: what operators read of their own acts.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use duewheel::Policy;
use duewheel_server::auth::{Guard, Hosts};
use duewheel_server::http::HttpLimits;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::Server;
use crate::process::Process;
use crate::security::new_token;

async fn acts(server: &Server) -> Vec<Value> {
    let answer = server.ok("GET", "/v1/audit", "").await;
    assert_eq!(answer["next"], Value::Null);
    answer["acts"].as_array().expect("acts").clone()
}

fn names(acts: &[Value]) -> Vec<(&str, &str)> {
    acts.iter()
        .map(|act| (act["act"].as_str().expect("act"), act["object"].as_str().expect("object")))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn acts_are_listed_newest_first() {
    let server = Server::start_shards(4).await;
    for _ in 0..20 {
        server.enqueue("mail%2Fa", r#"{"body": "x", "delay": "1h"}"#).await;
    }
    let calls = [
        ("POST", "/v1/queues/mail%2Fa/pause", "{}"),
        ("PATCH", "/v1/queues/mail%2Fa/config", r#"{"max_attempts": 3}"#),
        ("PUT", "/v1/targets/crm", r#"{"url": "https://example.com/hook"}"#),
        ("PUT", "/v1/schedules/daily", r#"{"cron": "0 9 * * *", "queue": "mail/a", "body": "b"}"#),
        ("DELETE", "/v1/schedules/daily", ""),
        ("POST", "/v1/queues/mail%2Fa/resume", ""),
        ("POST", "/v1/queues/mail%2Fa/purge", ""),
        ("DELETE", "/v1/targets/crm", ""),
    ];
    for (method, path, body) in calls {
        server.advance(1_000);
        let length = body.len();
        let head =
            format!("x-request-id: mine\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n");
        let answer = server.raw(method, path, &head, body.as_bytes()).await;
        assert_eq!(answer.status, 200, "{method} {path}: {}", answer.json());
    }
    let found = acts(&server).await;
    let expected = [
        ("removeTarget", "crm"),
        ("purgeQueue", "mail/a"),
        ("resumeQueue", "mail/a"),
        ("removeSchedule", "daily"),
        ("putSchedule", "daily"),
        ("putTarget", "crm"),
        ("changeQueueConfig", "mail/a"),
        ("pauseQueue", "mail/a"),
    ];
    assert_eq!(names(&found), expected);
    assert_eq!(found[1]["count"], 20, "the parts of all shards are one act");
    for act in &found {
        assert_eq!((act["request_id"].as_str(), act["address"].as_str()), (Some("mine"), Some("127.0.0.1")));
        assert!(act.get("token").is_none(), "{act}");
    }
    assert_eq!(found[4]["detail"], "mail/a");

    let mut pages = Vec::new();
    let mut after = String::new();
    loop {
        let page = server.ok("GET", &format!("/v1/audit?limit=3{after}"), "").await;
        pages.extend(page["acts"].as_array().expect("acts").clone());
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(pages, found);
    for wrong in ["after=x", "limit=0", "limit=1001"] {
        assert_eq!(server.call("GET", &format!("/v1/audit?{wrong}"), "").await.status, 400, "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_and_empty_acts_are_unrecorded() {
    let server = Server::start().await;
    server.enqueue("q", r#"{"body": "x", "delay": "1h"}"#).await;
    for (method, path, body, status) in [
        ("PUT", "/v1/queues/q/config", r#"{"max_attempts": 0}"#, 400),
        ("DELETE", "/v1/queues/none", "", 404),
        ("PUT", "/v1/targets/t", "{}", 400),
        ("POST", "/v1/clock/advance", r#"{"by": "1s"}"#, 404),
        ("POST", "/v1/queues/none/purge", "", 200),
        ("POST", "/v1/queues/q/purge", r#"{"expect": 0}"#, 409),
        ("POST", "/v1/queues/q/bulk", r#"{"action": "cancel", "all": true, "dry_run": true}"#, 200),
    ] {
        let answer = server.call(method, path, body).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.json());
    }
    assert_eq!(acts(&server).await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn act_of_job_gets_its_outcome() {
    let server = Server::start_shards(2).await;
    for key in ["a", "b", "c"] {
        server.enqueue("orders", &json!({"body": "x", "key": key, "delay": "1h"}).to_string()).await;
    }
    let bulk = |action| json!({"action": action, "all": true}).to_string();
    let [ended, cancelled] = [
        server.ok("POST", "/v1/queues/orders/bulk", &bulk("cancel")).await,
        server.ok("POST", "/v1/queues/empty/bulk", &bulk("fire")).await,
    ];
    let path = format!("/v1/jobs/{}", cancelled["id"].as_str().expect("id"));
    server.ok("DELETE", &path, "").await;
    let begun = acts(&server).await;
    let find = |acts: &[Value], name: &str| acts.iter().find(|act| act["act"] == name).cloned();
    let act = find(&begun, "bulk_cancel").expect("recorded");
    assert_eq!((&act["job"], &act["count"]), (&ended["id"], &Value::Null), "it is running");
    assert!(find(&begun, "bulk_fire").is_some() && find(&begun, "cancelJob").is_some());
    server.app.start_jobs();
    server.ended(&ended, "").await;
    let act = find(&acts(&server).await, "bulk_cancel").expect("recorded");
    assert_eq!((&act["job"], &act["count"], &act["refused"]), (&ended["id"], &json!(3), &Value::Null));
    // What has ended without a change leaves none.
    let fired = |audit: &Value| find(audit["acts"].as_array().expect("acts"), "bulk_fire");
    server.until("the job is cleaned up", "/v1/audit", |audit| fired(audit).is_none()).await;
    assert!(find(&acts(&server).await, "cancelJob").is_some());
}

/// Story: a purge that was refused because messages had arrived after the count was in the audit trail.
#[tokio::test(flavor = "multi_thread")]
async fn purge_refused_later_leaves_no_record() {
    let server = Server::start().await;
    server.enqueue("q", r#"{"body": "x", "delay": "1h"}"#).await;
    let purge = server.call("POST", "/v1/queues/q/purge", r#"{"keep": "1h", "expect": 1}"#);
    let more = async {
        server.until("the job begins", "/v1/jobs", |jobs| jobs["jobs"] != json!([])).await;
        server.enqueue("q", r#"{"body": "y", "delay": "1h"}"#).await;
        server.app.start_jobs();
    };
    let (refused, ()) = tokio::join!(purge, more);
    assert_eq!((refused.status, &refused.json()["code"]), (409, &json!("changed")));
    assert_eq!(acts(&server).await, Vec::<Value>::new());
    assert_eq!(server.ok("GET", "/v1/queues/q", "").await["counts"]["scheduled"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_an_act_brings_are_counted() {
    let server = Server::start_shards(2).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(
            server.enqueue("q", &json!({"body": "x", "delay": "0s", "state": "dead"}).to_string()).await,
        );
    }
    let moves = json!({"ids": [ids[0], ids[1], "99"], "to_queue": "other"}).to_string();
    for again in [2, 0] {
        let moved = server.ok("POST", "/v1/queues/q/redrive", &moves).await;
        assert_eq!(moved["redriven"], again, "{moved}");
    }
    let ready = json!({"ids": [ids[2]]}).to_string();
    assert_eq!(server.ok("POST", "/v1/queues/q/redrive", &ready).await["redriven"], 1);
    let schedule = r#"{"cron": "* * * * *", "queue": "q", "body": "b"}"#;
    server.ok("PUT", "/v1/schedules/often", schedule).await;
    let span = r#"{"from": "2025-12-31T23:00:00Z", "to": "2025-12-31T23:09:00Z", "id": "a"}"#;
    for _ in 0..2 {
        server.ok("POST", "/v1/schedules/often/backfill", span).await;
    }
    let mut found: Vec<_> = acts(&server).await.iter().map(|act| json!([act["act"], act["count"]])).collect();
    found.sort_by_key(Value::to_string);
    let [backfill, put] = [json!(["backfillSchedule", 10]), json!(["putSchedule", null])];
    assert_eq!(found, [backfill, put, json!(["redriveMessages", 1]), json!(["redriveMessages", 2])]);
}

#[tokio::test(flavor = "multi_thread")]
async fn limited_token_sees_acts_on_its_queues() {
    let dir = TempDir::new().expect("dir");
    let file = dir.path().join("tokens.toml");
    let token = |args: &[&str]| new_token(&file, args);
    let tokens = [
        token(&["--name", "all", "--scope", "admin"]),
        token(&["--name", "mail", "--scope", "admin", "--queue", "mail/"]),
        token(&["--name", "shop", "--scope", "admin", "--queue", "shop/"]),
        token(&["--name", "eyes", "--scope", "metrics"]),
    ];
    let guard = Arc::new(Guard::of(file.clone()).expect("tokens"));
    let server =
        Server::start_guarded(Policy::default(), HttpLimits::default(), guard, Hosts::default()).await;
    let [all, mail, shop, eyes] = &tokens;
    for (token, path) in [(mail, "mail%2Fa"), (shop, "shop%2Fa"), (all, "mail%2Fb"), (all, "other")] {
        let (status, answer) = server.call_by(token, "POST", &format!("/v1/queues/{path}/pause"), "").await;
        assert_eq!(status, 200, "{answer}");
    }
    let (status, answer) =
        server.call_by(all, "PUT", "/v1/targets/t", r#"{"url": "https://example.com/hook"}"#).await;
    assert_eq!(status, 200, "{answer}");
    let seen = async |token: &str| {
        let (status, answer) = server.call_by(token, "GET", "/v1/audit", "").await;
        assert_eq!(status, 200, "{answer}");
        let acts = answer["acts"].as_array().expect("acts").iter();
        let mut seen: Vec<_> = acts.map(|act| json!([act["object"], act["token"]]).to_string()).collect();
        seen.sort();
        seen
    };
    assert_eq!(seen(mail).await, [r#"["mail/a","mail"]"#, r#"["mail/b","all"]"#]);
    assert_eq!(seen(shop).await, [r#"["shop/a","shop"]"#]);
    assert_eq!(seen(all).await.len(), 5);
    assert_eq!(server.call_by(eyes, "GET", "/v1/audit", "").await.0, 403);
    assert_eq!(server.call_by(mail, "GET", "/v1/status", "").await.0, 403, "it is about the whole server");
    // No record of an act has a token's text.
    let (_, answer) = server.call_by(all, "GET", "/v1/audit", "").await;
    assert!(!tokens.iter().any(|token| answer.to_string().contains(token)), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn status_names_store_and_shards() {
    let server = Server::start_shards(2).await;
    let status = server.ok("GET", "/v1/status", "").await;
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["store"]["kind"], "memory");
    let shards: Vec<_> = status["shards"].as_array().expect("shards").iter().map(|s| &s["open"]).collect();
    assert_eq!(shards, [true, true]);
    assert_eq!((&status["last_backup"], &status["warnings"]), (&Value::Null, &json!([])));
}

/// The store has gone, and with it the audit trail.
#[tokio::test(flavor = "multi_thread")]
async fn status_is_shown_without_its_store() {
    let server = Server::start_shards(2).await;
    server.wheel.shutdown(Duration::from_secs(60)).await.expect("shutdown");
    assert_eq!(server.call("GET", "/v1/audit", "").await.status, 503);
    let status = server.ok("GET", "/v1/status", "").await;
    assert_eq!(status["last_backup"], Value::Null);
}

/// A kill -9 while purges are under way: each has its effect and its record, or neither. With other pauses until some of
/// them, but not all, had run.
#[test]
fn act_and_effect_survive_kill_together() {
    let mut ran = (1..=20).map(|n| purges_that_survive(Duration::from_micros(n * 500)));
    assert!(ran.any(|ran| ran > 0 && ran < UNDER_WAY), "each kill came before or after all purges");
}

const QUEUES: usize = 60;
const UNDER_WAY: usize = QUEUES / 2;

/// The number of purges under way at a kill after this pause that have had their effect.
fn purges_that_survive(pause: Duration) -> usize {
    let dir = TempDir::new().expect("dir");
    let server = Process::start(dir.path(), &[]);
    for n in 0..QUEUES {
        server.call("POST", &format!("/v1/queues/q{n}/messages"), r#"{"body": "x", "delay": "1h"}"#);
    }
    let address = server.url.trim_start_matches("http://").to_owned();
    for n in 0..QUEUES / 2 {
        assert_eq!(server.call("POST", &format!("/v1/queues/q{n}/purge"), "").0, 200);
    }
    let under_way = (QUEUES / 2..QUEUES).map(|n| {
        let mut stream = TcpStream::connect(&address).expect("connect");
        let head =
            format!("POST /v1/queues/q{n}/purge HTTP/1.1\r\nhost: {address}\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("write");
        stream
    });
    let under_way: Vec<TcpStream> = under_way.collect();
    std::thread::sleep(pause);
    let server = server.killed_and_restarted(dir.path(), &address);
    drop(under_way);
    let (_, answer) = server.call("GET", "/v1/audit?limit=1000", "");
    let acts: BTreeSet<&str> = answer["acts"]
        .as_array()
        .expect("acts")
        .iter()
        .map(|act| {
            assert_eq!((&act["act"], &act["count"]), (&json!("purgeQueue"), &json!(1)));
            act["object"].as_str().expect("object")
        })
        .collect();
    let mut ran = 0;
    for n in 0..QUEUES {
        let (_, queue) = server.call("GET", &format!("/v1/queues/q{n}"), "");
        let is_empty = queue["counts"]["scheduled"] == 0;
        assert_eq!(is_empty, acts.contains(&*format!("q{n}")), "q{n}: {queue}");
        assert!(is_empty || n >= QUEUES / 2, "q{n} was answered");
        ran += usize::from(is_empty && n >= QUEUES / 2);
    }
    server.kill();
    ran
}
