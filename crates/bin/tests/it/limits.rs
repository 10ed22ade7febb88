//! Limits and timeouts of the listener.

use std::time::Duration;

use duewheel::core::policy::AGREED_GROUP_BYTES;
use duewheel::core::store::{MemoryDisk, MemoryStore, Store};
use duewheel::{Duewheel, Policy, VirtualClock};
use duewheel_server::http::HttpLimits;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixture::{PATIENCE, Server, read_answer};

fn short() -> HttpLimits {
    HttpLimits {
        header_timeout: Duration::from_millis(200),
        body_timeout: Duration::from_millis(200),
        ..HttpLimits::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_gibibyte_body_is_refused_early() {
    let server = Server::start().await;
    for path in ["/v1/queues/q/messages", "/v1/queues/q/reserve", "/v1/ack"] {
        let answer = server.raw("POST", path, "content-length: 10737418240\r\n", b"").await;
        assert_eq!((answer.status, &answer.json()["code"]), (413, &json!("body_too_large")), "{path}");
    }
    let head = "content-type: application/x-ndjson\r\ncontent-length: 18446744073709551615\r\n";
    assert!(server.raw("POST", "/v1/queues/q/messages", head, b"").await.status >= 400);
}

/// A client that sends all it has before it reads must still see the refusal, not a broken connection.
#[tokio::test(flavor = "multi_thread")]
async fn sending_client_sees_refusal() {
    let server = Server::start().await;
    let body = vec![b'a'; 20 * 1024 * 1024];
    let length = format!("content-type: application/x-ndjson\r\ncontent-length: {}\r\n", body.len());
    let answer = server.raw("POST", "/v1/queues/q/messages", &length, &body).await;
    assert_eq!(answer.status, 413);
}

#[tokio::test(flavor = "multi_thread")]
async fn chunked_body_stops_at_limit() {
    let policy = Policy { max_batch_bytes: 1_000, ..Policy::default() };
    let server = Server::start_with(policy, HttpLimits::default()).await;
    let chunk = format!("100\r\n{}\r\n", "a".repeat(256));
    let body = format!("{}0\r\n\r\n", chunk.repeat(5));
    let head = "content-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n";
    let answer = server.raw("POST", "/v1/queues/q/messages", head, body.as_bytes()).await;
    assert_eq!(answer.status, 413);
    let line = r#"{"body": "a", "delay_ms": 0}"#;
    let pieces = format!("5\r\n{}\r\n{:x}\r\n{}\r\n0\r\n\r\n", &line[..5], line.len() - 5, &line[5..]);
    let answer = server
        .raw("POST", "/v1/queues/q/messages", "transfer-encoding: chunked\r\n", pieces.as_bytes())
        .await;
    assert_eq!(answer.status, 201, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_headers_are_cut_off() {
    let server = Server::start_with(Policy::default(), short()).await;
    for sent in ["", "POST /v1/queues/q/messages HTTP/1.1\r\nhost: x\r\nx-slow:"] {
        let mut stream = server.connect().await;
        stream.write_all(sent.as_bytes()).await.expect("write");
        let mut rest = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        read.expect("the server hangs up").expect("read");
        let rest = String::from_utf8_lossy(&rest);
        assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 408"), "{rest}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_body_times_out() {
    let server = Server::start_with(Policy::default(), short()).await;
    let mut stream = server.connect().await;
    let head = "POST /v1/queues/q/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"body\":";
    stream.write_all(head.as_bytes()).await.expect("write");
    let answer = read_answer(&mut stream).await;
    assert_eq!((answer.status, &answer.json()["code"]), (408, &json!("request_timeout")));
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_headers_are_refused() {
    let server = Server::start().await;
    let head = format!("x-large: {}\r\n", "a".repeat(17 * 1024));
    let answer = server.raw("GET", "/healthz", &head, b"").await;
    assert_eq!((answer.status, &answer.json()["code"]), (431, &json!("headers_too_large")));
    let head = format!("x-large: {}\r\n", "a".repeat(15 * 1024));
    assert_eq!(server.raw("GET", "/healthz", &head, b"").await.status, 200);
    // Far above the limit the connection ends, and a client that is still sending may not even see the status.
    let mut stream = server.connect().await;
    let request = format!("GET /healthz HTTP/1.1\r\nhost: x\r\nx-large: {}\r\n\r\n", "a".repeat(200 * 1024));
    let _ = stream.write_all(request.as_bytes()).await;
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("the server hangs up");
    assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 431"));
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_limit_refuses_surplus() {
    let limits = HttpLimits { max_connections: 2, ..HttpLimits::default() };
    let server = Server::start_with(Policy::default(), limits).await;
    let request = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = server.connect().await;
        stream.write_all(request).await.expect("write");
        let mut some = [0; 1024];
        assert!(stream.read(&mut some).await.expect("read") > 0);
        held.push(stream);
    }
    let mut third = server.connect().await;
    third.write_all(request).await.expect("write");
    let answer = read_answer(&mut third).await;
    assert_eq!((answer.status, &answer.json()["code"]), (429, &json!("overloaded")));
    assert_eq!(answer.header("retry-after"), Some("1"));
    held.clear();
    let again = async {
        loop {
            let mut stream = server.connect().await;
            stream
                .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                .await
                .expect("write");
            if read_answer(&mut stream).await.status == 200 {
                break;
            }
        }
    };
    tokio::time::timeout(PATIENCE, again).await.expect("places become free");
}

/// Story: when the bodies that were being read had as many bytes as is allowed, a further sender got 429 at once.
#[tokio::test(flavor = "multi_thread")]
async fn senders_wait_for_reading_budget() {
    const PART: usize = 600_000;
    let limits = HttpLimits { max_reading_bytes: 1_000_000, ..HttpLimits::default() };
    let server = Server::start_with(Policy::default(), limits).await;
    let line = json!({"body": "a".repeat(100_000), "delay_ms": 0}).to_string() + "\n";
    let lines = line.repeat(10);
    let head = format!(
        "POST /v1/queues/q/messages HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         content-type: application/x-ndjson\r\ncontent-length: {}\r\n\r\n",
        lines.len()
    );
    // More than fits is sent by six connections, none of which has sent all of it.
    let (parts, rest) = lines.as_bytes().split_at(PART);
    let mut streams = Vec::new();
    for _ in 0..6 {
        let mut stream = server.connect().await;
        stream.write_all(head.as_bytes()).await.expect("write");
        streams.push(stream);
    }
    // A sender that is not read from is stuck in its write.
    let senders: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            let (part, rest) = (parts.to_vec(), rest.to_vec());
            tokio::spawn(async move {
                stream.write_all(&part).await.expect("write");
                stream.write_all(&rest).await.expect("write");
                read_answer(&mut stream).await
            })
        })
        .collect();
    for sender in senders {
        let answer = tokio::time::timeout(3 * PATIENCE, sender).await.expect("in time").expect("no panic");
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.results().iter().all(|result| result["status"] == 201), "{answer:?}");
    }
    let queue = server.ok("GET", "/v1/queues/q", "").await;
    assert_eq!(queue["counts"]["ready"], 60);
}

/// Story: a body that was allowed, and larger than a store takes in a group, was handed to the store, which had never
/// agreed to it.
#[tokio::test(flavor = "multi_thread")]
async fn body_beyond_store_limit_is_refused() {
    let policy = Policy { max_body: 100 << 20, ..Policy::default() };
    let largest = policy.clone().fitting(AGREED_GROUP_BYTES).max_body;
    let clock = VirtualClock::at_2026();
    let store = |waker| Ok(Box::new(MemoryStore::open(&MemoryDisk::default(), waker)) as Box<dyn Store>);
    let open = Duewheel::builder().store(store).clock(clock.clone()).policy(policy.clone()).seed(1);
    let wheel = open.open().await.expect("wheel");
    let server = Server::over(wheel, clock, policy, HttpLimits::default()).await;
    let message = |bytes: usize| json!({"body": "a".repeat(bytes), "delay": "1h"}).to_string();
    let lines = [message(1), message(largest + 1), message(2)].join("\n");
    let results = server.lines("q", &lines).await.results();
    let statuses: Vec<&serde_json::Value> = results.iter().map(|result| &result["status"]).collect();
    assert_eq!(statuses, [201, 413, 201], "{results:?}");
    let single = server.call("POST", "/v1/queues/q/messages", &message(largest + 1)).await;
    let accepted = server.enqueue("q", &message(largest)).await;
    let edit = json!({"body": "a".repeat(largest + 1)}).to_string();
    let patched = server.call("PATCH", &format!("/v1/messages/{accepted}"), &edit).await;
    for refused in [results[1].clone(), single.json(), patched.json()] {
        assert_eq!(
            (&refused["code"], &refused["field"]),
            (&json!("body_too_large"), &json!("body")),
            "{refused}"
        );
        let detail = refused["detail"].as_str().expect("detail");
        assert!(detail.contains(&format!("at most {largest} bytes")), "{detail}");
    }
    assert_eq!(single.status, 413);
}

#[tokio::test(flavor = "multi_thread")]
async fn message_limit_returns_overloaded() {
    let policy = Policy { max_messages: 2, ..Policy::default() };
    let server = Server::start_with(policy, HttpLimits::default()).await;
    for _ in 0..2 {
        server.enqueue("q", r#"{"body": "a", "delay": "1h"}"#).await;
    }
    let answer = server.call("POST", "/v1/queues/q/messages", r#"{"body": "a", "delay": "1h"}"#).await;
    assert_eq!((answer.status, &answer.json()["code"]), (429, &json!("overloaded")));
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_limit_returns_overloaded() {
    let policy = Policy { max_waiters: 0, ..Policy::default() };
    let server = Server::start_with(policy, HttpLimits::default()).await;
    let answer = server.call("POST", "/v1/queues/q/reserve", r#"{"wait_ms": 1000}"#).await;
    assert_eq!((answer.status, &answer.json()["code"]), (429, &json!("overloaded")));
}

/// Story: when too much was leased, consumers of all queues saw empty answers with 200 and no reason.
#[tokio::test(flavor = "multi_thread")]
async fn reserve_reports_lease_limit() {
    let policy = Policy { max_leased: 4, ..Policy::default() };
    let clock = VirtualClock::at_2026();
    // One shard: several do not say why.
    let open = Duewheel::builder().in_memory().clock(clock.clone()).policy(policy.clone()).seed(1);
    let server = Server::over(open.open().await.expect("wheel"), clock, policy, HttpLimits::default()).await;
    for queue in ["hog", "hog", "hog", "other"] {
        server.enqueue(queue, r#"{"body": "a", "delay_ms": 0}"#).await;
    }
    let reserve = r#"{"max": 10}"#;
    assert_eq!(server.reserve("hog", reserve).await.len(), 2, "half of the leases");
    let held = server.ok("POST", "/v1/queues/hog/reserve", reserve).await;
    assert_eq!(held, json!({"messages": [], "held_back": "leases"}));
    let empty = server.ok("POST", "/v1/queues/empty/reserve", reserve).await;
    assert_eq!(empty, json!({"messages": []}));
    assert_eq!(server.reserve("other", reserve).await.len(), 1, "another queue goes on");
    let metrics = server.call("GET", "/metrics", "").await;
    assert!(String::from_utf8_lossy(&metrics.body).contains("\nduewheel_reserve_held_back_total 1\n"));
}

/// Story: a pause and a reserve that waits made queues beyond the limit that an enqueue is refused for.
#[tokio::test(flavor = "multi_thread")]
async fn queue_limit_blocks_implicit_creation() {
    let policy = Policy { max_queues: 1, ..Policy::default() };
    let server = Server::start_with(policy, HttpLimits::default()).await;
    server.enqueue("q", r#"{"body": "a", "delay": "1h"}"#).await;
    for (path, body) in [("pause", ""), ("pause", r#"{"for": "1m"}"#), ("reserve", r#"{"wait_ms": 1000}"#)] {
        let answer = server.call("POST", &format!("/v1/queues/new/{path}"), body).await;
        assert_eq!((answer.status, &answer.json()["code"]), (429, &json!("overloaded")), "{path}");
        assert!(answer.json().to_string().contains("queues"), "{path}: it says of what there is too much");
    }
    assert_eq!(server.call("POST", "/v1/queues/q/pause", "").await.status, 200);
    let listed = server.ok("GET", "/v1/queues", "").await;
    assert_eq!(listed["queues"].as_array().map(Vec::len), Some(1), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_serves_pipelined_requests() {
    let server = Server::start().await;
    let mut stream = server.connect().await;
    let body = r#"{"body": "a", "delay_ms": 0}"#;
    let one = format!(
        "POST /v1/queues/q/messages HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let last = one.replace("host: x", "host: x\r\nconnection: close");
    stream.write_all(format!("{}{last}", one.repeat(9)).as_bytes()).await.expect("write");
    let mut all = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("in time").expect("read");
    assert_eq!(String::from_utf8_lossy(&all).matches("HTTP/1.1 201 Created").count(), 10);
    let queue = server.ok("GET", "/v1/queues/q", "").await;
    assert_eq!(queue["counts"]["ready"], 10);
}

/// A page of leased messages is cut by its bytes, as those of the others are, and no message is left out between two
/// pages.
#[tokio::test(flavor = "multi_thread")]
async fn leased_page_is_bounded_by_bytes() {
    let policy = Policy { load_bytes: 1_000, ..Policy::default() };
    let server = Server::start_with(policy, HttpLimits::default()).await;
    let body = json!({"body": "a".repeat(300), "delay_ms": 0}).to_string();
    for _ in 0..10 {
        server.enqueue("q", &body).await;
    }
    assert_eq!(server.reserve("q", r#"{"max": 10}"#).await.len(), 10);
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = server.ok("GET", &format!("/v1/queues/q/messages?state=leased{after}"), "").await;
        let messages = page["messages"].as_array().expect("messages");
        assert!((1..=4).contains(&messages.len()), "{} messages", messages.len());
        seen.extend(messages.iter().map(|m| m["id"].as_str().expect("id").to_owned()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(seen, (1..=10).map(|n| n.to_string()).collect::<Vec<_>>());
}
