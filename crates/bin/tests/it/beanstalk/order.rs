//! The order of grants: by arrival in tubes, by due time in queues.

use serde_json::Value;

use super::Both;
use super::client::Client;

/// Two messages; the first one is due last. What is reserved when both are ready.
async fn reserved_after_30s(server: &Both, client: &mut Client) -> [String; 2] {
    server.http.advance(30_000);
    server.http.until("both ready", "/v1/queues/q", |q| q["counts"]["ready"] == 2).await;
    let mut body = || client.ask("reserve").split_once("\r\n").expect("body").1.to_owned();
    [body(), body()]
}

async fn config(server: &Both) -> Value {
    server.http.ok("GET", "/v1/queues/q", "").await["config"]["order"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn tube_delivers_in_arrival_order() {
    let server = Both::start().await;
    let mut client = server.client("q");
    client.put("put 0 20 60", "first");
    client.put("put 0 10 60", "second");
    assert_eq!(config(&server).await, "arrival");
    assert_eq!(reserved_after_30s(&server, &mut client).await, ["first", "second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn http_queue_keeps_due_order() {
    let server = Both::start().await;
    server.http.enqueue("q", r#"{"body": "first", "delay": "20s"}"#).await;
    let mut client = server.client("q");
    client.put("put 1024 10 60", "second");
    assert_eq!(config(&server).await, Value::Null);
    assert_eq!(reserved_after_30s(&server, &mut client).await, ["second", "first"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn configured_order_holds_for_tubes() {
    let server = Both::start().await;
    server.http.ok("PUT", "/v1/queues/q/config", r#"{"order": "due"}"#).await;
    let mut client = server.client("q");
    client.put("put 0 20 60", "first");
    client.put("put 0 10 60", "second");
    assert_eq!(config(&server).await, "due");
    assert_eq!(reserved_after_30s(&server, &mut client).await, ["second", "first"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_can_use_arrival_order() {
    let server = Both::start().await;
    server.http.ok("PUT", "/v1/queues/q/config", r#"{"order": "arrival"}"#).await;
    server.http.enqueue("q", r#"{"body": "first", "delay": "20s"}"#).await;
    server.http.enqueue("q", r#"{"body": "second", "delay": "10s"}"#).await;
    let mut client = server.client("q");
    assert_eq!(reserved_after_30s(&server, &mut client).await, ["first", "second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_unused_tube_loses_its_order() {
    let server = Both::start().await;
    let mut client = server.client("q");
    let id = client.put("put 0 0 60", "a");
    let names = |queues: Value| -> Vec<Value> {
        queues["queues"].as_array().expect("queues").iter().map(|q| q["queue"].clone()).collect()
    };
    assert_eq!(client.ask(&format!("delete {id}")), "DELETED");
    assert_eq!(config(&server).await, "arrival", "it is in use");
    assert!(client.ask("list-tubes").ends_with("\n- q\n"));
    assert_eq!(client.ask("use default"), "USING default");
    assert_eq!(config(&server).await, "arrival", "it is watched");
    assert_eq!(client.ask("watch default"), "WATCHING 2");
    assert_eq!(client.ask("ignore q"), "WATCHING 1");
    assert_eq!(client.ask("list-tubes"), "OK 14\r\n---\n- default\n");
    assert_eq!(config(&server).await, Value::Null);
    assert!(names(server.http.ok("GET", "/v1/queues", "").await).is_empty());
}
