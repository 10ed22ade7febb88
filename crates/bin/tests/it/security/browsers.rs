//! Web pages that use their visitor's browser to reach a server which trusts this machine.

use duewheel::Policy;
use duewheel_server::http::HttpLimits;
use serde_json::json;
use std::io::Write;
use std::sync::Arc;
use tempfile::TempDir;

use super::{Told, connect, listen, new_token, request, say};
use crate::fixture::Server;
use crate::process::Process;

const BODY: &str = r#"{"body": "a", "delay_ms": 0}"#;

async fn status(server: &Server, method: &str, path: &str, head: &str, body: &str) -> u16 {
    call(server, method, path, head, body).await.status
}

async fn call(server: &Server, method: &str, path: &str, head: &str, body: &str) -> Told {
    let (address, bytes) =
        (server.address.to_string(), request(method, path, head, body).replace("host: localhost\r\n", ""));
    let told = tokio::task::spawn_blocking(move || say(&address, bytes.as_bytes())).await.expect("no panic");
    told.expect("an answer")
}

/// A failure may name files: a page that has given its own name to this address does not read it.
#[tokio::test(flavor = "multi_thread")]
async fn failure_reason_is_hidden_from_strangers() {
    let server = Server::start().await;
    server.app.set_failing("cannot write /srv/data/journal");
    for (host, reads) in [("127.0.0.1", true), ("page.example", false)] {
        let answer = call(&server, "GET", "/healthz", &format!("host: {host}\r\n"), "").await;
        let said: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
        assert_eq!((&said["status"], said["trouble"].is_string()), (&json!("failing"), reads), "{host}");
    }
}

/// DNS rebinding: a page's own name stands for 127.0.0.1, so that `Host` and `Origin` are the same, and both are the
/// page's.
#[tokio::test(flavor = "multi_thread")]
async fn untrusted_host_header_is_refused() {
    let hosts = "queue.example".parse().expect("hosts");
    let server = Server::start_guarded(Policy::default(), HttpLimits::default(), Arc::default(), hosts).await;
    for (host, good) in [
        ("127.0.0.1:7788", true),
        ("[::1]:7788", true),
        ("localhost:7788", true),
        ("duewheel:7788", true),
        ("queue.example:7788", true),
        ("evil.example:7788", false),
        ("127.0.0.1.evil.example:7788", false),
        ("localhost.evil.example", false),
    ] {
        for (method, path, body, right) in [
            ("GET", "/v1/queues", "", 200),
            ("GET", "/v1/queues/q/messages", "", 200),
            ("POST", "/v1/queues/q/messages", BODY, 201),
            ("GET", "/metrics", "", 200),
            // These say nothing, and whoever looks whether the server is well may use any name.
            ("GET", "/healthz", "", 200),
        ] {
            let wanted = if good || path == "/healthz" { right } else { 403 };
            let head = format!("host: {host}\r\n");
            assert_eq!(status(&server, method, path, &head, body).await, wanted, "{host} {method} {path}");
            let same = format!("host: {host}\r\norigin: http://{host}\r\n");
            assert_eq!(status(&server, method, path, &same, body).await, wanted, "{host} {method} {path}");
        }
    }
    let twice = "host: 127.0.0.1\r\nhost: evil.example\r\n";
    assert_eq!(status(&server, "GET", "/v1/queues", twice, "").await, 400);
    let queue = server.ok("GET", "/v1/queues/q", "").await;
    assert_eq!(queue["totals"]["enqueued"], 10, "only what was answered with 201");
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_origin_is_refused_without_cors() {
    let server = Server::start().await;
    for origin in [
        "http://evil.example",
        "https://evil.example",
        "null",
        "http://localhost:1",
        "http://evil.example/localhost",
    ] {
        for kind in ["application/json", "application/x-www-form-urlencoded", "text/plain"] {
            let head = format!("host: localhost\r\norigin: {origin}\r\ncontent-type: {kind}\r\n");
            assert_eq!(
                status(&server, "POST", "/v1/queues/q/messages", &head, BODY).await,
                403,
                "{origin} {kind}"
            );
        }
    }
    // Each of several is judged.
    for (first, second) in [("localhost", "evil.example"), ("evil.example", "localhost")] {
        let head = format!("host: localhost\r\norigin: http://{first}\r\norigin: http://{second}\r\n");
        assert_eq!(status(&server, "POST", "/v1/queues/q/messages", &head, BODY).await, 403, "{first}");
    }
    // The question that a browser asks before it sends what a form could not send.
    let head = "origin: http://evil.example\r\naccess-control-request-method: PUT\r\naccess-control-request-headers: content-type\r\n";
    for path in ["/v1/queues/q/messages", "/v1/queues/q/config", "/healthz"] {
        let answer = server.raw("OPTIONS", path, head, b"").await;
        assert_eq!(answer.status, 405, "{path}");
        assert!(!answer.head.to_lowercase().contains("access-control"), "{}", answer.head);
    }
    let answer = server.raw("GET", "/healthz", &format!("origin: http://{}\r\n", server.address), b"").await;
    assert!(
        answer.status == 200 && !answer.head.to_lowercase().contains("access-control"),
        "{}",
        answer.head
    );
    assert_eq!(server.ok("GET", "/v1/queues", "").await["queues"], json!([]));
}

/// A token is what a page has not; where one is asked for, the name does not matter, and public names need not be told
/// twice.
#[tokio::test(flavor = "multi_thread")]
async fn token_allows_any_host_name() {
    let dir = TempDir::new().expect("dir");
    let file = dir.path().join("tokens.toml");
    let token = new_token(&file, &["--name", "n", "--scope", "metrics"]);
    let guard = Arc::new(duewheel_server::auth::Guard::of(file).expect("tokens"));
    let server =
        Server::start_guarded(Policy::default(), HttpLimits::default(), guard, "".parse().expect("none"))
            .await;
    let host = "host: queue.example\r\n";
    assert_eq!(status(&server, "GET", "/v1/queues", host, "").await, 401);
    let head = format!("{host}{}", super::bearer(&token));
    assert_eq!(status(&server, "GET", "/v1/queues", &head, "").await, 200);
}

/// The body of such a request would be commands of beanstalkd's protocol.
#[test]
fn http_to_beanstalk_listener_enqueues_nothing() {
    let dir = TempDir::new().expect("dir");
    let mut server =
        Process::start(&dir.path().join("data"), &["--durability", "memory", "--beanstalk", "127.0.0.1:0"]);
    let address = server.beanstalk();
    let commands = "put 0 0 60 4\r\nevil\r\nuse x\r\nput 0 0 60 4\r\nevil\r\n";
    let long = format!("/{}", "a".repeat(3_000));
    for (method, path) in
        [("POST", "/"), ("PUT", "/x"), ("GET", "/"), ("post", "/"), ("POST", long.as_str()), ("ODD", "/")]
    {
        let head = request(method, path, "content-type: text/plain\r\n", commands);
        let mut stream = connect(&address);
        let _ = stream.write_all(head.as_bytes());
        let said = listen(&mut stream);
        assert!(said.is_none(), "{said:?}");
    }
    let (_, stats) = server.call("GET", "/v1/queues", "");
    let enqueued = stats["queues"]
        .as_array()
        .expect("queues")
        .iter()
        .map(|q| q["totals"]["enqueued"].as_u64().expect("n"));
    assert_eq!(enqueued.sum::<u64>(), 0, "{stats}");
    // And the same commands without HTTP around them do put.
    let mut stream = connect(&address);
    stream.write_all(format!("{commands}quit\r\n").as_bytes()).expect("write");
    let mut said = String::new();
    std::io::Read::read_to_string(&mut stream, &mut said).expect("read");
    assert_eq!(said.matches("INSERTED").count(), 2, "{said}");
}
