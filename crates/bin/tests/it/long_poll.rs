//! Reserves that wait.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::fixture::{Server, read_answer};

async fn waiting(server: &Server, wait_ms: u64) -> tokio::net::TcpStream {
    let mut stream = server.connect().await;
    let body = json!({"wait_ms": wait_ms}).to_string();
    let request = format!(
        "POST /v1/queues/q/reserve HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("write");
    stream
}

fn waiters(n: u64) -> impl Fn(&Value) -> bool {
    move |queue| queue["waiters"] == n
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_reserve_gets_next_message() {
    let server = Server::start().await;
    let mut stream = waiting(&server, 60_000).await;
    server.until("it waits", "/v1/queues/q", waiters(1)).await;
    let id = server.enqueue("q", r#"{"body": "a", "delay_ms": 500}"#).await;
    server.advance(500);
    let answer = read_answer(&mut stream).await.json();
    assert_eq!(
        (&answer["messages"][0]["id"], &answer["messages"][0]["lateness_ms"]),
        (&json!(id), &json!(0))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_wait_returns_empty_list() {
    let server = Server::start().await;
    let mut stream = waiting(&server, 1_000).await;
    server.until("it waits", "/v1/queues/q", waiters(1)).await;
    server.advance(1_000);
    let answer = read_answer(&mut stream).await;
    assert_eq!((answer.status, answer.json()), (200, json!({"messages": []})));
}

/// A consumer that is gone must not swallow a message: it goes to the next one, and does not count as an attempt.
#[tokio::test(flavor = "multi_thread")]
async fn disconnected_waiter_takes_no_message() {
    let server = Server::start().await;
    for _ in 0..20 {
        let gone = waiting(&server, 60_000).await;
        server.until("it waits", "/v1/queues/q", waiters(1)).await;
        drop(gone);
        server.until("it is noticed", "/v1/queues/q", waiters(0)).await;
    }
    server.enqueue("q", r#"{"body": "a", "delay_ms": 0}"#).await;
    let grants = server.reserve("q", "{}").await;
    assert_eq!(grants[0]["attempt"], 1);
}

/// The same, with the message coming at the very moment in which the consumer hangs up.
#[tokio::test(flavor = "multi_thread")]
async fn disconnect_racing_enqueue_loses_nothing() {
    let server = Server::start().await;
    for round in 0..50 {
        let gone = waiting(&server, 60_000).await;
        server.until("it waits", "/v1/queues/q", waiters(1)).await;
        let (id, ()) =
            tokio::join!(server.enqueue("q", r#"{"body": "a", "delay_ms": 0}"#), async { drop(gone) });
        // The grant may have been written to the dead connection already; then it comes again after its lease.
        let found = async {
            loop {
                if let Some(grant) = server.reserve("q", "{}").await.pop() {
                    return grant;
                }
                let state = server.ok("GET", &format!("/v1/messages/{id}"), "").await["state"].clone();
                if state == "leased" {
                    server.advance(30_000);
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let grant = tokio::time::timeout(Duration::from_secs(60), found)
            .await
            .unwrap_or_else(|_| panic!("round {round}"));
        assert_eq!(grant["id"], json!(id));
        let proof = json!({"lease_token": grant["lease_token"]}).to_string();
        server.ok("POST", &format!("/v1/messages/{id}/ack"), &proof).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_ends_waiting_reserves_empty() {
    let server = Server::start().await;
    let mut stream = waiting(&server, 60_000).await;
    server.until("it waits", "/v1/queues/q", waiters(1)).await;
    server.wheel.shutdown(Duration::from_secs(60)).await.expect("shutdown");
    let answer = read_answer(&mut stream).await;
    assert_eq!((answer.status, answer.json()), (200, json!({"messages": []})));
    let refused = server.call("POST", "/v1/queues/q/messages", r#"{"body": "a", "delay_ms": 0}"#).await;
    assert_eq!(refused.status, 503);
    assert!(refused.header("retry-after").is_some());
    assert_eq!(server.call("GET", "/healthz", "").await.status, 503);
    server.stop.stop();
    tokio::time::timeout(Duration::from_secs(60), server.running).await.expect("ends").expect("no panic");
}
