//! Messages that have ended and are kept as done: read, listed and replayed, over HTTP, by tokens, on the command line,
//! over kill -9, and on the nodes of a cluster.

use std::process::Command;
use std::sync::Arc;

use duewheel::Policy;
use duewheel_redis_rig::{Redis, Settings};
use duewheel_server::auth::{Guard, Hosts};
use duewheel_server::http::HttpLimits;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::Server;
use crate::process::{BINARY, Process};
use crate::redis::{node, until_each_has_two_shards};
use crate::security::new_token;
use crate::shell::Shell;

const KEEP: &str = r#"{"keep_done": "24h"}"#;

async fn keeping(shards: u32, queues: &[&str]) -> Server {
    let server = Server::start_shards(shards).await;
    for queue in queues {
        server.ok("PATCH", &format!("/v1/queues/{queue}/config"), KEEP).await;
    }
    server
}

async fn ack(server: &Server, queue: &str) -> String {
    let grant = server.reserve(queue, r#"{"wait_ms": 10000}"#).await.remove(0);
    let id = grant["id"].as_str().expect("id").to_owned();
    let body = json!({"lease_token": grant["lease_token"]}).to_string();
    server.ok("POST", &format!("/v1/messages/{id}/ack"), &body).await;
    id
}

fn ids(page: &Value) -> Vec<&str> {
    let messages = page["messages"].as_array().expect("messages");
    messages.iter().map(|message| message["id"].as_str().expect("id")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn done_messages_report_their_outcome() {
    for shards in [1, 4] {
        let server = keeping(shards, &["orders"]).await;
        let message = json!({"body": "close", "key": "order-42", "delay": "1h", "headers": {"shop": "eu"}});
        let cancelled = server.enqueue("orders", &message.to_string()).await;
        server.ok("DELETE", "/v1/queues/orders/keys/order-42", "").await;
        server.advance(60_000);
        server.enqueue("orders", r#"{"body": "mail", "key": "order-43", "delay": "0s"}"#).await;
        let acked = ack(&server, "orders").await;

        for path in [format!("/v1/messages/{cancelled}"), "/v1/queues/orders/keys/order-42".into()] {
            let shown = server.ok("GET", &path, "").await;
            for (name, value) in [
                ("state", json!("done")),
                ("outcome", json!("cancelled")),
                ("ended_at", json!("2026-01-01T00:00:00.000Z")),
                ("queue", json!("orders")),
                ("key", json!("order-42")),
                ("id", json!(cancelled)),
                ("body", json!("close")),
                ("headers", json!({"shop": "eu"})),
                ("dead_reason", Value::Null),
            ] {
                assert_eq!(shown[name], value, "{name} of {shown}");
            }
        }
        let page = server.ok("GET", "/v1/queues/orders/messages?state=done", "").await;
        assert_eq!(ids(&page), [&cancelled, &acked], "in the order in which they ended");
        let page = server.ok("GET", "/v1/queues/orders/messages?state=done&key_prefix=order-43", "").await;
        assert_eq!((ids(&page), &page["messages"][0]["outcome"]), (vec![&*acked], &json!("acked")));
        assert_eq!(ids(&server.ok("GET", "/v1/queues/orders/messages", "").await), [] as [&str; 0]);
        let queue = server.ok("GET", "/v1/queues/orders", "").await;
        assert_eq!((&queue["done"], &queue["counts"]["dead"]), (&json!(2), &json!(0)));
        assert_eq!(ids_of_queues(&server).await, ["orders"]);

        // For every verb they are gone.
        for (method, path) in [("DELETE", ""), ("POST", "/fire")] {
            let answer = server.call(method, &format!("/v1/messages/{acked}{path}"), "").await;
            assert_eq!(
                (answer.status, &answer.json()["code"]),
                (404, &json!("message_not_found")),
                "{method}"
            );
        }
        server.advance(86_400_000);
        for id in [&cancelled, &acked] {
            assert_eq!(server.call("GET", &format!("/v1/messages/{id}"), "").await.status, 404);
        }
        server.until("none is left", "/v1/queues/orders", |queue| queue["done"] == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ack_result_is_kept_with_done_message() {
    let server = keeping(2, &["orders"]).await;
    let leased = async |queue: &str, n: usize| {
        for n in 0..n {
            server.enqueue(queue, &json!({"body": n.to_string(), "delay_ms": 0}).to_string()).await;
        }
        let mut grants = Vec::new();
        while grants.len() < n {
            grants.extend(server.reserve(queue, r#"{"max": 9, "wait_ms": 10000}"#).await);
        }
        grants
    };
    let ack = |grant: &Value, result: &str| {
        let path = format!("/v1/messages/{}/ack", grant["id"].as_str().expect("id"));
        (path, format!(r#"{{"lease_token": {}, "result": {result}}}"#, grant["lease_token"]))
    };
    let of = |grant: &Value| format!("/v1/messages/{}", grant["id"].as_str().expect("id"));
    let grants = leased("orders", 5).await;

    let long = format!("\"{}\"", "x".repeat(16 * 1024 - 2));
    let (path, too_long) = ack(&grants[0], &long.replacen('x', "xx", 1));
    let refused = server.call("POST", &path, &too_long).await;
    assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("result")));
    let (_, broken) = ack(&grants[0], "{1}");
    assert_eq!(server.call("POST", &path, &broken).await.status, 400);
    let (_, longest) = ack(&grants[0], &long);
    assert_eq!(server.ok("POST", &path, &longest).await["result"], "acked");
    let (_, other) = ack(&grants[0], "2");
    assert_eq!(server.ok("POST", &path, &other).await["result"], "already");
    let shown = server.ok("GET", &of(&grants[0]), "").await;
    assert_eq!(
        (shown["result"].to_string(), &shown["headers"]),
        (long, &json!({})),
        "a repeated ack leaves it"
    );

    let result = json!({"sum": 1.5, "of": [null, "ä"]});
    let lease = |grant: &Value| json!({"id": grant["id"], "lease_token": grant["lease_token"]});
    let item = |grant: &Value, result: &Value| {
        let mut item = lease(grant);
        item["result"] = result.clone();
        item
    };
    let items = json!({"messages": [item(&grants[1], &result), item(&grants[2], &Value::Null)]});
    server.ok("POST", "/v1/ack", &items.to_string()).await;
    // Story: one result that was too large left all the others unacked.
    let items = json!({"messages": [item(&grants[4], &json!("x".repeat(20_000))), lease(&grants[3])]});
    let results = &server.ok("POST", "/v1/ack", &items.to_string()).await["results"];
    let detail = results[0]["detail"].as_str().expect("a sentence");
    assert!(results[0]["status"] == 400 && detail.starts_with("messages[0].result: "), "{results}");
    assert_eq!(results[1]["result"], "acked", "{results}");
    let page = server.ok("GET", "/v1/queues/orders/messages?state=done&limit=10", "").await;
    let with: Vec<&Value> =
        page["messages"].as_array().expect("messages").iter().filter_map(|m| m.get("result")).collect();
    assert_eq!((with.len(), ids(&page).len(), with.contains(&&result)), (2, 4, true));

    let again = server.ok("POST", &format!("{}/replay", of(&grants[1])), "{}").await;
    let again = server.ok("GET", &of(&again), "").await;
    assert_eq!(
        (again.get("result"), again["headers"].as_object().map(serde_json::Map::len)),
        (None, Some(1))
    );
    let other = leased("other", 1).await;
    let (path, done) = ack(&other[0], "1");
    assert_eq!(server.ok("POST", &path, &done).await["result"], "acked");
    assert_eq!(server.call("GET", &of(&other[0]), "").await.status, 404, "a queue that keeps nothing");
}

async fn ids_of_queues(server: &Server) -> Vec<String> {
    let queues = server.ok("GET", "/v1/queues", "").await;
    let name = |queue: &Value| queue["queue"].as_str().expect("name").to_owned();
    queues["queues"].as_array().expect("queues").iter().map(name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_copies_content_to_new_message() {
    for shards in [1, 4] {
        let server = keeping(shards, &["q"]).await;
        let message = json!({"body_base64": "/wD/", "key": "a", "delay": "0s", "headers": {"x": "y"},
            "priority": 7, "max_attempts": 3, "lease_ms": 5_000, "spread": "10s"});
        server.enqueue("q", &message.to_string()).await;
        let pending = server.enqueue("q", r#"{"body": "b", "delay": "1h"}"#).await;
        let refused = server.call("POST", &format!("/v1/messages/{pending}/replay"), "{}").await;
        assert_eq!((refused.status, &refused.json()["code"]), (409, &json!("not_done")));
        server.advance(10_000);
        let id = ack(&server, "q").await;
        let path = format!("/v1/messages/{id}/replay");
        let again = server.ok("POST", &path, "").await;
        assert_ne!(again["id"], json!(id));
        assert_eq!((&again["key"], &again["created"]), (&Value::Null, &json!(true)));
        let shown =
            server.ok("GET", &format!("/v1/messages/{}", again["id"].as_str().expect("id")), "").await;
        for (name, value) in [
            ("state", json!("ready")),
            ("body_base64", json!("/wD/")),
            ("headers", json!({"x": "y", "duewheel-replay-of": id})),
            ("priority", json!(7)),
            ("max_attempts", json!(3)),
            ("lease_ms", json!(5_000)),
            ("attempt", json!(0)),
        ] {
            assert_eq!(shown[name], value, "{name} of {shown}");
        }
        let keyed = server.ok("POST", &path, r#"{"key": "b"}"#).await;
        assert_eq!(keyed["key"], "b");
        let taken = server.call("POST", &path, r#"{"key": "b"}"#).await;
        assert_eq!((taken.status, &taken.json()["code"]), (409, &json!("key_exists")));
        // A replay of a replay names what it is a replay of, once.
        let first = ack(&server, "q").await;
        assert!([&again["id"], &keyed["id"]].contains(&&json!(first)), "{first}");
        let third = server.ok("POST", &format!("/v1/messages/{first}/replay"), "{}").await;
        let shown =
            server.ok("GET", &format!("/v1/messages/{}", third["id"].as_str().expect("id")), "").await;
        assert_eq!(shown["headers"], json!({"x": "y", "duewheel-replay-of": first}));
        for (body, field) in [(r#"{"key": ""}"#, "key"), (r#"{"delay": "1h"}"#, "delay")] {
            let bad = server.call("POST", &path, body).await;
            assert_eq!((bad.status, &bad.json()["field"]), (400, &json!(field)), "{body}");
        }
    }
}

/// Story: the answer to a replay with a key was lost, its message was done at once, and the repeat replayed it again.
#[tokio::test(flavor = "multi_thread")]
async fn repeated_replay_makes_no_second_message() {
    let server = keeping(1, &["q"]).await;
    server.enqueue("q", r#"{"body": "a", "delay_ms": 0}"#).await;
    let path = format!("/v1/messages/{}/replay", ack(&server, "q").await);
    let by_header =
        async || server.raw("POST", &path, "idempotency-key: once\r\ncontent-length: 2\r\n", b"{}").await;
    let first = by_header().await;
    ack(&server, "q").await;
    let again = by_header().await;
    assert_eq!((first.status, again.status, again.header("idempotent-replayed")), (201, 201, Some("true")));
    assert_eq!((&again.json()["id"], &again.json()["replayed"]), (&first.json()["id"], &json!(true)));
    let by_field = server.ok("POST", &path, r#"{"dedupe_id": "once"}"#).await;
    assert_eq!(by_field["id"], first.json()["id"]);
    let head = "idempotency-key: once\r\ncontent-length: 20\r\n";
    let other = server.raw("POST", &path, head, br#"{"dedupe_id": "two"}"#).await;
    assert_eq!((other.status, &other.json()["field"]), (400, &json!("Idempotency-Key")), "{other:?}");
    assert_eq!(server.ok("GET", "/v1/queues/q", "").await["totals"]["enqueued"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_message_replays_without_keep_done() {
    let server = Server::start().await;
    let id = server.enqueue("q", r#"{"body": "x", "delay": "0s", "max_attempts": 1, "key": "k"}"#).await;
    let grant = server.reserve("q", "{}").await.remove(0);
    let nack = json!({"lease_token": grant["lease_token"]}).to_string();
    server.ok("POST", &format!("/v1/messages/{id}/nack"), &nack).await;
    let again = server.ok("POST", &format!("/v1/messages/{id}/replay"), r#"{"key": "k"}"#).await;
    assert_eq!(server.ok("GET", &format!("/v1/messages/{id}"), "").await["state"], "dead", "it stays");
    assert_eq!(server.ok("GET", "/v1/queues/q/keys/k", "").await["id"], again["id"]);
}

async fn dead(server: &Server, key: &str, expires_at: Option<&str>) -> String {
    let message = json!({"body": "x", "key": key, "delay": "0s", "headers": {"shop": "eu"}, "max_attempts": 1,
        "priority": 7, "spread": "1s", "expires_at": expires_at});
    let id = server.enqueue("q", &message.to_string()).await;
    server.advance(1_000);
    let grant = server.reserve("q", r#"{"wait_ms": 10000}"#).await.remove(0);
    let nack = json!({"lease_token": grant["lease_token"]}).to_string();
    server.ok("POST", &format!("/v1/messages/{id}/nack"), &nack).await;
    id
}

/// The answer names both messages, and the same call again makes no third one.
#[tokio::test(flavor = "multi_thread")]
async fn redrive_to_other_queue_reports_ids() {
    for shards in [1, 4] {
        let server = Server::start_shards(shards).await;
        let soon = Some("2026-01-01T01:00:00Z");
        let (first, second) = (dead(&server, "a", soon).await, dead(&server, "b", soon).await);
        let waiting = server.enqueue("q", r#"{"body": "y", "delay": "9h"}"#).await;
        // The instant at which they would have expired is over, and they are asked for now.
        server.advance(7_200_000);
        let asked = json!({"ids": [first, waiting, second, "999983"], "to_queue": "again"}).to_string();
        let answer = server.ok("POST", "/v1/queues/q/redrive", &asked).await;
        assert_eq!(answer["redriven"], 2, "{answer}");
        let results = answer["results"].as_array().expect("results");
        assert_eq!(
            (&results[1]["code"], &results[3]["code"]),
            (&json!("not_dead"), &json!("message_not_found"))
        );
        for (result, (old, key)) in
            [&results[0], &results[2]].into_iter().zip([(&first, "a"), (&second, "b")])
        {
            assert_eq!((&result["id"], &result["result"]), (&json!(old), &json!("redriven")));
            let new = result["new_id"].as_str().expect("the new one");
            let shown = server.ok("GET", &format!("/v1/messages/{new}"), "").await;
            assert_eq!(
                (
                    &shown["queue"],
                    &shown["state"],
                    &shown["key"],
                    &shown["headers"]["shop"],
                    &shown["max_attempts"]
                ),
                (&json!("again"), &json!("ready"), &json!(key), &json!("eu"), &json!(1))
            );
            assert_eq!((&shown["priority"], &shown["own"]), (&json!(7), &json!({"max_attempts": 1})));
            assert_eq!(server.call("GET", &format!("/v1/messages/{old}"), "").await.status, 404);
        }
        let again = server.ok("POST", "/v1/queues/q/redrive", &asked).await;
        assert_eq!(again["redriven"], 0);
        assert_eq!(server.ok("GET", "/v1/queues/again", "").await["totals"]["enqueued"], 2);
        // A key that is taken there: the dead message stays.
        let third = dead(&server, "a", None).await;
        let asked = json!({"ids": [third], "to_queue": "again"}).to_string();
        let taken = server.ok("POST", "/v1/queues/q/redrive", &asked).await;
        assert_eq!(taken["results"][0]["code"], "key_exists");
        assert_eq!(server.ok("GET", &format!("/v1/messages/{third}"), "").await["state"], "dead");
        for (body, field) in [
            (json!({"to_queue": "again"}), "to_queue"),
            (json!({"to_queue": "again", "max": 1}), "to_queue"),
            (json!({"to_queue": "#done", "ids": ["1"]}), "to_queue"),
        ] {
            let refused = server.call("POST", "/v1/queues/q/redrive", &body.to_string()).await;
            assert_eq!((refused.status, &refused.json()["field"]), (400, &json!(field)), "{body}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keep_done_setting_is_validated() {
    let server = Server::start().await;
    for (settings, field) in [
        (json!({"keep_done": "0s"}), "keep_done"),
        (json!({"keep_done": "soon"}), "keep_done"),
        (json!({"keep_done": "1h", "keep_done_ms": 5}), "keep_done"),
        (json!({"keep_done_ms": -1}), "keep_done_ms"),
        (json!({"keep_done": "10000d"}), "keep_done"),
    ] {
        let refused = server.call("PATCH", "/v1/queues/q/config", &settings.to_string()).await;
        assert_eq!((refused.status, &refused.json()["field"]), (400, &json!(field)), "{settings}");
    }
    server.ok("PATCH", "/v1/queues/q/config", KEEP).await;
    server.enqueue("q", r#"{"body": "x", "delay": "1h", "key": "k"}"#).await;
    server.ok("DELETE", "/v1/queues/q/keys/k", "").await;
    assert_eq!(server.ok("GET", "/v1/queues/q/keys/k", "").await["outcome"], "cancelled");
    server.ok("PATCH", "/v1/queues/q/config", r#"{"keep_done": null}"#).await;
    assert_eq!(server.call("GET", "/v1/queues/q/keys/k", "").await.status, 404, "null erases what was kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_see_done_of_own_queues() {
    let dir = TempDir::new().expect("dir");
    let file = dir.path().join("tokens.toml");
    let all = new_token(&file, &["--name", "all", "--scope", "admin,cancel,enqueue"]);
    let shop = new_token(&file, &["--name", "shop", "--scope", "admin,cancel,enqueue", "--queue", "shop/"]);
    let away = json!({"ids": ["1"], "to_queue": "other/q"}).to_string();
    let looks = new_token(&file, &["--name", "looks", "--scope", "cancel", "--queue", "shop/"]);
    let guard = Arc::new(Guard::of(file).expect("tokens"));
    let server =
        Server::start_guarded(Policy::default(), HttpLimits::default(), guard, Hosts::default()).await;
    let call = async |token: &str, method: &str, path: &str, body: &str| {
        server.call_by(token, method, path, body).await
    };
    assert_eq!(call(&shop, "POST", "/v1/queues/shop%2Fq/redrive", &away).await.0, 403, "it must reach both");
    let mut done = Vec::new();
    for queue in ["shop%2Fq", "other%2Fq"] {
        let queue = format!("/v1/queues/{queue}");
        assert_eq!(call(&all, "PATCH", &format!("{queue}/config"), KEEP).await.0, 200);
        let put = call(&all, "POST", &format!("{queue}/messages"), r#"{"body": "x", "delay": "1h"}"#).await.1;
        let path = format!("/v1/messages/{}", put["id"].as_str().expect("id"));
        assert_eq!(call(&all, "DELETE", &path, "").await.0, 200);
        done.push(path);
    }
    for (path, status) in done.iter().zip([200, 404]) {
        assert_eq!(call(&shop, "GET", path, "").await.0, status);
        assert_eq!(call(&all, "GET", path, "").await.0, 200);
        let replayed = if status == 200 { 201 } else { 404 };
        assert_eq!(call(&shop, "POST", &format!("{path}/replay"), "{}").await.0, replayed);
        assert_eq!(call(&looks, "POST", &format!("{path}/replay"), "{}").await.0, 403, "it may not enqueue");
    }
}

#[test]
fn done_messages_on_the_command_line() {
    let shell = Shell::new();
    let shown = shell.ok(&["config", "orders", "--keep-done", "24h"]);
    assert!(shown.contains("keep-done") && shown.contains("1d"), "{shown}");
    let put = shell.json(&["enqueue", "orders", "close", "--delay", "1h", "--key", "order-42", "--json"]);
    let id = put["id"].as_str().expect("id");
    shell.fails(&["replay", id], 4);
    shell.ok(&["cancel", id]);
    let shown = shell.ok(&["get", "orders", "--key", "order-42"]);
    assert!(shown.contains("outcome      cancelled\n") && shown.contains("ended_at"), "{shown}");
    let listed = shell.ok(&["list", "orders", "--state", "done"]);
    assert!(listed.contains("done, cancelled"), "{listed}");
    let replayed = shell.ok(&["replay", id, "--key", "order-42"]);
    assert!(replayed.ends_with(&format!("enqueued with the content of {id}\n")), "{replayed}");
    assert_eq!(shell.json(&["get", "orders", "--key", "order-42", "--json"])["state"], "ready");
    assert!(shell.fails(&["bulk", "cancel", "orders", "--state", "done", "--yes"], 2).contains("state"));
    let shown = shell.ok(&["config", "orders", "--unset", "keep-done"]);
    assert!(shown.contains("--keep-done       not kept  (default)\n"), "{shown}");
}

/// beanstalkd's protocol and kill -9: what has ended is not found there, and what is kept outlives the process.
#[test]
fn kill_9_loses_no_done_message() {
    let data = TempDir::new().expect("dir");
    let mut server = Process::start(data.path(), &[]);
    assert_eq!(server.call("PATCH", "/v1/queues/q/config", KEEP).0, 200);
    let mut ended: Vec<(String, &str)> = Vec::new();
    for round in 0..4 {
        let line = |n| format!("{{\"body\": \"{round}-{n}\", \"delay_ms\": 0, \"key\": \"{round}-{n}\"}}\n");
        let put = server.lines("q", &(0..200).map(line).collect::<String>());
        for message in put.iter().step_by(2) {
            let id = message["id"].as_str().expect("id");
            assert_eq!(server.call("DELETE", &format!("/v1/messages/{id}"), "").0, 200);
            ended.push((id.to_owned(), "cancelled"));
        }
        let (_, grants) = server.call("POST", "/v1/queues/q/reserve", r#"{"max": 500, "wait_ms": 5000}"#);
        let grants = grants["messages"].as_array().expect("messages");
        let acks: Vec<Value> = grants
            .iter()
            .map(|g| json!({"id": g["id"], "lease_token": g["lease_token"], "result": g["id"]}))
            .collect();
        assert_eq!(server.call("POST", "/v1/ack", &json!({"messages": acks}).to_string()).0, 200);
        ended.extend(grants.iter().map(|g| (g["id"].as_str().expect("id").to_owned(), "acked")));
        let address = server.url.trim_start_matches("http://").to_owned();
        server = server.killed_and_restarted(data.path(), &address);
        for (id, outcome) in ended.iter().rev().take(200) {
            let (status, shown) = server.call("GET", &format!("/v1/messages/{id}"), "");
            assert_eq!((status, shown["outcome"].as_str()), (200, Some(*outcome)), "{id}: {shown}");
            let result = (*outcome == "acked").then_some(&**id);
            assert_eq!(shown.get("result").and_then(Value::as_str), result, "{shown}");
        }
    }
    let (_, queue) = server.call("GET", "/v1/queues/q", "");
    assert_eq!((&queue["done"], queue["counts"]["leased"].as_u64()), (&json!(ended.len()), Some(0)));
    let verified = crate::process::run(Command::new(BINARY).arg("verify").arg({
        server.kill();
        data.path()
    }));
    assert!(verified.status.success(), "{}", crate::process::text(&verified.stdout));
}

/// On Redis, and over the node that has the shard.
#[test]
fn nodes_show_what_others_keep() {
    let redis = Redis::start(Settings::default()).expect("a redis-server");
    let start = |name, host| node(&redis, name, host, &["--advertise", &format!("{host}:0")]);
    let nodes = [start("a", "127.0.0.2"), start("b", "127.0.0.3")];
    until_each_has_two_shards([&nodes[0], &nodes[1]]);
    assert_eq!(nodes[0].call("PATCH", "/v1/queues/q/config", KEEP).0, 200);
    let line = |n| format!("{{\"body\": \"x\", \"delay\": \"1h\", \"key\": \"k{n}\"}}\n");
    let put = nodes[0].lines("q", &(0..32).map(line).collect::<String>());
    for message in &put {
        let id = message["id"].as_str().expect("id");
        assert_eq!(nodes[1].call("DELETE", &format!("/v1/messages/{id}"), "").0, 200);
    }
    let line = |n| format!("{{\"body\": \"x\", \"delay_ms\": 0, \"key\": \"r{n}\"}}\n");
    nodes[0].lines("results", &(0..32).map(line).collect::<String>());
    assert_eq!(nodes[0].call("PATCH", "/v1/queues/results/config", KEEP).0, 200);
    let mut acked = 0;
    while acked < 32 {
        let reserve = r#"{"max": 32, "wait_ms": 5000}"#;
        let (_, granted) = nodes[1].call("POST", "/v1/queues/results/reserve", reserve);
        for grant in granted["messages"].as_array().expect("messages") {
            let path = format!("/v1/messages/{}", grant["id"].as_str().expect("id"));
            let done = json!({"lease_token": grant["lease_token"], "result": grant["key"]}).to_string();
            assert_eq!(nodes[acked % 2].call("POST", &format!("{path}/ack"), &done).0, 200);
            assert_eq!(nodes[1 - acked % 2].call("GET", &path, "").1["result"], grant["key"]);
            acked += 1;
        }
    }
    for server in &nodes {
        for (n, message) in put.iter().enumerate() {
            for path in [
                format!("/v1/messages/{}", message["id"].as_str().expect("id")),
                format!("/v1/queues/q/keys/k{n}"),
            ] {
                let (status, shown) = server.call("GET", &path, "");
                assert_eq!((status, shown["outcome"].as_str()), (200, Some("cancelled")), "{path}: {shown}");
            }
        }
        let (_, page) = server.call("GET", "/v1/queues/q/messages?state=done&limit=50", "");
        assert_eq!(ids(&page).len(), 32);
        assert_eq!(server.call("GET", "/v1/queues/q", "").1["done"], 32);
    }
    let again =
        nodes[1].call("POST", &format!("/v1/messages/{}/replay", put[0]["id"].as_str().expect("id")), "{}");
    assert_eq!(again.0, 201, "{}", again.1);
}
