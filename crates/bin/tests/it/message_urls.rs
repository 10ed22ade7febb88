//! Messages with URLs of their own, over HTTP and on the command line. What is sent where is tested in the crate of
//! delivery: requests of a server lead to public addresses alone, and so none arrives in a test.

use std::sync::Arc;

use duewheel::Policy;
use duewheel_delivery::{Sealing, TARGET_URL_HEADER};
use duewheel_server::auth::{Guard, Hosts};
use duewheel_server::http::HttpLimits;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::{Answer, Server};
use crate::hook::Hook;
use crate::security::{bearer, new_token};
use crate::shell::Shell;

const URL: &str = "https://customer.example/hook?token=hunter2";

/// A server whose queue `orders` has a target that may reach any address, and is paused.
async fn server(hook: &Hook) -> Server {
    let server = Server::start().await;
    server.app.set_sealing(Sealing::Open);
    server.app.start_delivery();
    let target = json!({"url": hook.url(), "networks": ["any", "127.0.0.1/32"]});
    server.ok("PUT", "/v1/targets/shop", &target.to_string()).await;
    server.ok("POST", "/v1/targets/shop/pause", r#"{"reason": "not yet"}"#).await;
    server.ok("PATCH", "/v1/queues/orders/config", r#"{"target": "shop"}"#).await;
    server
}

fn is_refused(answer: &Answer, field: &str) {
    let problem = answer.json();
    assert_eq!(
        (answer.status, &problem["code"], &problem["field"]),
        (400, &json!("bad_request"), &json!(field))
    );
    assert!(!problem.to_string().contains("hunter2"), "{problem}");
}

#[tokio::test(flavor = "multi_thread")]
async fn message_url_requires_queue_target() {
    let hook = Hook::well();
    let server = server(&hook).await;
    let put = async |queue: &str, url: &Value| {
        let body = json!({"body": "a", "delay_ms": 0, "target_url": url});
        server.call("POST", &format!("/v1/queues/{queue}/messages"), &body.to_string()).await
    };
    for url in [
        json!("ftp://customer.example/hunter2"),
        json!("https://me:hunter2@customer.example/"),
        json!("https://customer.example/#hunter2"),
        json!("http://127.0.0.1/hunter2"),
        json!("http://169.254.169.254/hunter2"),
        json!(7),
    ] {
        is_refused(&put("orders", &url).await, "target_url");
    }
    is_refused(&put("elsewhere", &json!(URL)).await, "target_url");
    for name in ["duewheel-target-url", "Duewheel-Target-URL"] {
        let field = format!("headers.{name}");
        let headers = json!({name: URL});
        let body = json!({"body": "a", "delay": "1h", "headers": headers});
        is_refused(&server.call("POST", "/v1/queues/orders/messages", &body.to_string()).await, &field);
        let id = server.enqueue("orders", r#"{"body": "a", "delay": "1h"}"#).await;
        let body = json!({"headers": headers}).to_string();
        is_refused(&server.call("PATCH", &format!("/v1/messages/{id}"), &body).await, &field);
    }
    // A message a line: only those with a URL are refused.
    let with = json!({"body": "with", "delay": "1h", "target_url": URL});
    let lines = format!("{with}\n{{\"body\": \"without\", \"delay\": \"1h\"}}\n{with}\n");
    let statuses = async |queue: &str| {
        let results = server.lines(queue, &lines).await.results();
        results.iter().map(|result| result["status"].as_u64().expect("status")).collect::<Vec<_>>()
    };
    assert_eq!(statuses("elsewhere").await, [400, 201, 400]);
    assert_eq!(statuses("orders").await, [201, 201, 201]);
}

#[tokio::test(flavor = "multi_thread")]
async fn message_url_survives_header_changes() {
    let hook = Hook::well();
    let server = server(&hook).await;
    let put = json!({"body": "a", "delay": "1h", "key": "k", "headers": {"a": "1"}, "target_url": URL});
    let id = server.enqueue("orders", &put.to_string()).await;
    let (by_id, by_key) = (format!("/v1/messages/{id}"), "/v1/queues/orders/keys/k");
    let shown = async || {
        let seen = server.ok("GET", &by_id, "").await;
        (seen["target_url"].as_str().map(str::to_owned), seen["headers"].clone(), seen["generation"].clone())
    };
    assert_eq!(shown().await, (Some(URL.to_owned()), json!({"a": "1"}), json!(1)));
    let listed = server.ok("GET", "/v1/queues/orders/messages", "").await;
    assert_eq!(
        (&listed["messages"][0]["target_url"], &listed["messages"][0]["headers"]),
        (&json!(URL), &json!({"a": "1"}))
    );

    server.ok("PATCH", by_key, r#"{"headers": {"b": "2"}}"#).await;
    assert_eq!(shown().await, (Some(URL.to_owned()), json!({"b": "2"}), json!(2)));
    server.ok("PATCH", &by_id, r#"{"target_url": null}"#).await;
    assert_eq!(shown().await, (None, json!({"b": "2"}), json!(3)));
    let other = "https://other.example/";
    let change = json!({"target_url": other, "if_generation": 2}).to_string();
    assert_eq!(server.call("PATCH", by_key, &change).await.json()["code"], "generation_mismatch");
    server.ok("PATCH", by_key, &json!({"target_url": other, "if_generation": 3}).to_string()).await;
    assert_eq!(shown().await, (Some(other.to_owned()), json!({"b": "2"}), json!(4)));

    // Its target is paused; a consumer takes it.
    server.ok("POST", &format!("{by_id}/fire"), "").await;
    let granted = server.ok("POST", "/v1/queues/orders/reserve", r#"{"wait_ms": 10000}"#).await;
    assert_eq!(granted["messages"][0]["target_url"], other);
    let gone = server.call("PATCH", "/v1/messages/999999", r#"{"headers": {}}"#).await;
    assert_eq!(gone.json()["code"], "message_not_found");
}

/// The target may reach this machine; a URL of a message may not, by whatever name. It is judged again at the delivery:
/// a caller of the library sets the header without a check.
#[tokio::test(flavor = "multi_thread")]
async fn message_url_to_private_address_refused() {
    let hook = Hook::well();
    let server = server(&hook).await;
    let port = hook.address.port();
    for host in ["localhost", "127.0.0.1", "[::1]"] {
        let put = json!({"body": "a", "delay_ms": 0, "target_url": format!("http://{host}:{port}/c?token=hunter2")});
        let answer = server.call("POST", "/v1/queues/orders/messages", &put.to_string()).await;
        let problem = answer.json();
        assert_eq!((answer.status, &problem["field"]), (400, &json!("target_url")), "{problem}");
        assert!(!problem.to_string().contains("hunter2"), "{problem}");
        let unchecked = format!("http://{host}:{port}/c?token=hunter2");
        let message = server.wheel.queue("orders").message(&"private").header(TARGET_URL_HEADER, &unchecked);
        message.enqueue().await.expect("enqueue");
    }
    server.enqueue("orders", r#"{"body": "plain", "delay_ms": 0}"#).await;
    server.ok("POST", "/v1/targets/shop/resume", "").await;
    let path = "/v1/queues/orders/messages?state=dead";
    let all_dead = |seen: &Value| seen["messages"].as_array().is_some_and(|dead| dead.len() == 3);
    server.until("the deliveries are refused", path, all_dead).await;
    for dead in server.ok("GET", path, "").await["messages"].as_array().expect("messages") {
        let seen = server.ok("GET", &format!("/v1/messages/{}", dead["id"].as_str().expect("id")), "").await;
        assert_eq!(seen["history"][0]["note"], "bad_target_url", "{seen}");
        assert!(!seen["history"].to_string().contains("hunter2"), "{seen}");
    }
    let got = hook.until("the other one is delivered", |got| !got.is_empty());
    assert!(got.iter().all(|got| got.body() == "plain"), "{got:?}");
}

/// A line with a URL is refused alone. A replay repeats the URL of a message that is done, which somebody else may have
/// given.
#[tokio::test(flavor = "multi_thread")]
async fn message_url_requires_push_any_scope() {
    let dir = TempDir::new().expect("dir");
    let file = dir.path().join("tokens.toml");
    let scopes = "enqueue,consume,cancel,admin";
    let without = new_token(&file, &["--name", "without", "--scope", scopes]);
    let with = new_token(&file, &["--name", "with", "--scope", scopes, "--scope", "push-any"]);
    let guard = Arc::new(Guard::of(file).expect("tokens"));
    let server =
        Server::start_guarded(Policy::default(), HttpLimits::default(), guard, Hosts::default()).await;
    server.app.set_sealing(Sealing::Open);
    let ok = async |method: &str, path: &str, body: &str| {
        let (status, answer) = server.call_by(&with, method, path, body).await;
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        answer
    };
    let is_forbidden = |(status, problem): (u64, &Value)| {
        assert_eq!((status, &problem["code"]), (403, &json!("forbidden")), "{problem}");
        assert!(problem["detail"].as_str().is_some_and(|why| why.ends_with("scope push-any")), "{problem}");
        assert!(!problem.to_string().contains("hunter2"), "{problem}");
    };
    // No worker of this server delivers to it.
    ok("PUT", "/v1/targets/shop", r#"{"url": "https://shop.example/hook"}"#).await;
    ok("PATCH", "/v1/queues/orders/config", r#"{"target": "shop", "keep_done": "24h"}"#).await;

    let url = json!({"body": "url", "delay": "0s", "target_url": URL});
    let lines = format!("{url}\n{{\"body\": \"plain\", \"delay\": \"0s\"}}\n{url}\n");
    let enqueue = async |token: &str| {
        let head = format!(
            "{}content-type: application/x-ndjson\r\ncontent-length: {}\r\n",
            bearer(token),
            lines.len()
        );
        server.raw("POST", "/v1/queues/orders/messages", &head, lines.as_bytes()).await.results()
    };
    let statuses = |results: &[Value]| -> Vec<u64> {
        results.iter().map(|result| result["status"].as_u64().expect("a status")).collect()
    };
    let refused = enqueue(&without).await;
    assert_eq!(statuses(&refused), [403, 201, 403]);
    for n in [0, 2] {
        is_forbidden((403, &refused[n]));
    }
    let waiting = async || {
        let listed = ok("GET", "/v1/queues/orders/messages", "").await;
        let all = listed["messages"].as_array().expect("messages").clone();
        let with_url = all.iter().filter(|message| message["target_url"] == URL).count();
        (all.len(), with_url)
    };
    assert_eq!(waiting().await, (1, 0));
    assert_eq!(statuses(&enqueue(&with).await), [201, 201, 201]);
    assert_eq!(waiting().await, (4, 2));

    let granted = ok("POST", "/v1/queues/orders/reserve", r#"{"max": 10}"#).await;
    let granted = granted["messages"].as_array().expect("messages");
    assert_eq!(granted.len(), 4);
    for message in granted {
        let path = format!("/v1/messages/{}", message["id"].as_str().expect("an id"));
        let proof = json!({"lease_token": message["lease_token"]}).to_string();
        ok("POST", &format!("{path}/ack"), &proof).await;
        assert_eq!(ok("GET", &path, "").await["target_url"], message["target_url"], "kept as done");
        let replay = format!("{path}/replay");
        let before = waiting().await;
        let (status, answer) = server.call_by(&without, "POST", &replay, "{}").await;
        if message["target_url"].is_null() {
            assert_eq!(status, 201, "{answer}");
            continue;
        }
        is_forbidden((status.into(), &answer));
        assert_eq!(waiting().await, before, "nothing was applied");
        let again = ok("POST", &replay, "{}").await;
        let path = format!("/v1/messages/{}", again["id"].as_str().expect("an id"));
        assert_eq!(ok("GET", &path, "").await["target_url"], URL);
    }
    assert_eq!(waiting().await, (4, 2));
}

#[test]
fn cli_round_trips_message_url() {
    let (from, to) = (Shell::new(), Shell::new());
    from.ok(&["target", "put", "shop", "https://shop.example/hook"]);
    from.ok(&["config", "orders", "--target", "shop"]);
    from.ok(&["target", "pause", "shop"]);
    from.ok(&[
        "enqueue",
        "orders",
        "a",
        "--delay",
        "2h",
        "--key",
        "k",
        "--target-url",
        URL,
        "--header",
        "a=1",
    ]);
    assert!(from.ok(&["get", "orders", "--key", "k"]).contains(&format!("target_url   {URL}\n")));
    let refused = from.run(&["enqueue", "orders", "a", "--target-url", "ftp://customer.example/?hunter2"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("--target-url: is neither http nor https"), "{said}");

    let file = from.dir.path().join("all.ndjson");
    let file = file.to_str().expect("path");
    from.ok(&["export", file]);
    // There the queue has no target: what nobody would send is refused, and said so.
    let refused = to.run(&["import", file]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("has no target"), "{refused:?}");
    to.ok(&["target", "put", "shop", "https://shop.example/hook"]);
    to.ok(&["import", file]);
    let seen = to.json(&["get", "orders", "--key", "k", "--json"]);
    assert_eq!((&seen["target_url"], &seen["headers"]), (&json!(URL), &json!({"a": "1"})));
    to.ok(&["postpone", "orders", "--key", "k", "--no-target-url"]);
    assert!(to.json(&["get", "orders", "--key", "k", "--json"])["target_url"].is_null());
}
