//! Drain mode: nothing new, and everything else as before.

use std::time::Instant;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::client::Client;
use super::{Both, start};
use crate::fixture::PATIENCE;
use crate::process::Process;

#[tokio::test(flavor = "multi_thread")]
async fn draining_put_consumes_its_body() {
    let server = Both::start().await;
    let mut client = server.client("q");
    server.http.drain.turn_on();
    for line in ["put 0 0 60 4", "put-key k 0 0 60 4", "replace-key k 0 0 60 4"] {
        // A body that would be a command.
        client.send(format!("{line}\r\n"));
        client.send("quit\r\nlist-tube-used\r\n");
        assert_eq!([client.reply(), client.reply()], ["DRAINING", "USING q"], "{line}");
    }
    client.send("put 0 0 60 4\r\nquit!!");
    assert_eq!(client.reply(), "EXPECTED_CRLF");
    assert_eq!(client.ask(&format!("put 0 0 60 65536\r\n{}", "x".repeat(65536))), "JOB_TOO_BIG");
    assert_eq!(client.field("stats", "total-jobs").as_deref(), Some("0"));
    assert_eq!(client.field("stats", "draining").as_deref(), Some("true"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_protocol_goes_on_while_draining() {
    let server = Both::start().await;
    let mut client = server.client("q");
    let (first, second) = (client.put("put 1 0 60", "one"), client.put("put 2 100 60", "two"));
    let third = client.put("put-key k 3 100 60", "three");
    server.http.drain.turn_on();
    assert_eq!(client.ask("reserve"), format!("RESERVED {first} 3\r\none"));
    assert_eq!(client.ask(&format!("touch {first}")), "TOUCHED");
    assert_eq!(client.ask(&format!("release {first} 1 0")), "RELEASED");
    assert_eq!(client.ask(&format!("reserve-job {first}")), format!("RESERVED {first} 3\r\none"));
    assert_eq!(client.ask(&format!("bury {first} 1")), "BURIED");
    assert_eq!(client.ask("kick 1"), "KICKED 1");
    assert_eq!(client.ask(&format!("kick-job {second}")), "KICKED");
    assert_eq!(client.ask("peek-ready"), format!("FOUND {first} 3\r\none"));
    assert_eq!(client.ask("peek-key k"), format!("FOUND {third} 5\r\nthree"));
    assert_eq!(client.ask("delete-key k"), "DELETED");
    assert_eq!(client.ask(&format!("delete {first}")), "DELETED");
    assert_eq!(server.client("q").ask("reserve"), format!("RESERVED {second} 3\r\ntwo"));
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_http_refuses_only_new_messages() {
    let server = Both::start().await;
    let http = &server.http;
    let now = http.enqueue("q", r#"{"body": "a", "delay_ms": 0}"#).await;
    http.enqueue("q", r#"{"body": "b", "delay": "1h", "key": "k"}"#).await;
    http.enqueue("q", r#"{"body": "c", "delay": "1h", "key": "l"}"#).await;
    http.drain.turn_on();
    let body = r#"{"body": "d", "delay_ms": 0}"#;
    let replace = r#"{"body": "d", "delay_ms": 0, "key": "k", "if_exists": "replace"}"#;
    for answer in [
        http.call("POST", "/v1/queues/q/messages", body).await,
        http.call("POST", "/v1/queues/q/messages", replace).await,
        http.lines("q", &format!("{body}\n{replace}\n")).await,
    ] {
        assert_eq!((answer.status, &answer.json()["code"]), (503, &json!("draining")), "{answer:?}");
        assert!(answer.header("retry-after").is_some(), "{answer:?}");
    }
    assert_eq!(http.ok("GET", "/v1/queues/q", "").await["totals"]["enqueued"], 3);

    let grant = http.reserve("q", "").await.remove(0);
    assert_eq!(grant["id"], json!(now));
    let proof = json!({"lease_token": grant["lease_token"], "delay_ms": 0}).to_string();
    http.ok("POST", &format!("/v1/messages/{now}/nack"), &proof).await;
    http.ok("PATCH", "/v1/queues/q/keys/k", r#"{"delay": "2h", "body": "e"}"#).await;
    http.ok("POST", "/v1/queues/q/keys/k/fire", "").await;
    assert_eq!(http.ok("DELETE", "/v1/queues/q/keys/l", "").await["result"], "cancelled");
    http.ok("PUT", "/v1/queues/q/config", r#"{"order": "due"}"#).await;
    assert_eq!(http.ok("GET", "/healthz", "").await["status"], "ok");
    assert_eq!(http.ok("POST", "/v1/queues/q/purge", "").await["purged"], 2);
}

/// Story: a server that was stopped refused to settle from the first moment on, so jobs that were done were done again.
#[test]
fn stopping_server_accepts_settles() {
    let dir = TempDir::new().expect("dir");
    let (mut server, address) = start(dir.path(), &["--drain-timeout", "1m"]);
    let mut client = Client::connect(&address);
    client.enter("q");
    let mut job = |n: u32| {
        let id = client.put(&format!("put {n} 0 60"), "job");
        assert_eq!(client.ask("reserve"), format!("RESERVED {id} 3\r\njob"));
        id
    };
    let [done, again, buried] = [1, 2, 3].map(&mut job);
    let now = r#"{"body": "b", "delay_ms": 0}"#;
    let leases: Vec<String> = (0..3)
        .map(|_| {
            server.call("POST", "/v1/queues/h/messages", now);
            let (status, got) = server.call("POST", "/v1/queues/h/reserve", "{}");
            assert_eq!(status, 200, "{got}");
            let id = got["messages"][0]["id"].as_str().expect("an id").to_owned();
            format!("{id} {}", got["messages"][0]["lease_token"].as_str().expect("a token"))
        })
        .collect();
    let settle = |server: &Process, lease: &str, how: &str| {
        let (id, token) = lease.split_once(' ').expect("both");
        let proof = json!({"lease_token": token}).to_string();
        server.call("POST", &format!("/v1/messages/{id}/{how}"), &proof)
    };
    server.signal("-TERM");
    let begun = Instant::now();
    let mut other = Client::connect(&address);
    while other.ask_put("put 0 0 60", "new") != "DRAINING" {
        assert!(begun.elapsed() < PATIENCE, "the drain begins");
    }
    assert_eq!(other.ask("reserve-with-timeout 0"), "DRAINING");
    assert_eq!(client.ask(&format!("touch {done}")), "TOUCHED");
    assert_eq!(client.ask(&format!("delete {done}")), "DELETED");
    assert_eq!(client.ask(&format!("release {again} 2 0")), "RELEASED");
    assert_eq!(client.ask(&format!("bury {buried} 3")), "BURIED");
    for (lease, how) in [(0, "extend"), (0, "ack"), (1, "nack"), (2, "ack")] {
        let (status, said) = settle(&server, &leases[lease], how);
        assert_eq!(status, 200, "{how}: {said}");
    }
    assert_eq!(server.wait().code(), Some(0), "nothing is left to settle");

    let (server, address) = start(dir.path(), &[]);
    let mut client = Client::connect(&address);
    client.enter("q");
    assert_eq!(client.ask(&format!("peek {done}")), "NOT_FOUND");
    assert_eq!(client.field(&format!("stats-job {buried}"), "state").as_deref(), Some("buried"));
    assert_eq!(client.field(&format!("stats-job {again}"), "state").as_deref(), Some("ready"));
    let (_, queue) = server.call("GET", "/v1/queues/h", "");
    assert_eq!((&queue["totals"]["acked"], &queue["counts"]["leased"]), (&json!(2), &json!(0)), "{queue}");
}

#[test]
fn drain_timeout_bounds_wait_for_settles() {
    let dir = TempDir::new().expect("dir");
    let (mut server, address) = start(dir.path(), &["--drain-timeout", "100ms"]);
    let mut client = Client::connect(&address);
    client.enter("q");
    let id = client.put("put 0 0 3600", "one");
    assert_eq!(client.ask("reserve"), format!("RESERVED {id} 3\r\none"));
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn sigusr1_enables_drain_mode() {
    let dir = TempDir::new().expect("dir");
    let (mut server, address) = start(dir.path(), &[]);
    let mut client = Client::connect(&address);
    client.enter("q");
    assert_eq!(client.field("stats", "draining").as_deref(), Some("false"));
    let id = client.put("put 0 0 60", "one");
    server.signal("-USR1");
    client.until("stats", "draining", "true");
    assert_eq!(client.ask_put("put 0 0 60", "two"), "DRAINING");
    let message = r#"{"body": "b", "delay_ms": 0}"#;
    let (status, answer) = server.call("POST", "/v1/queues/q/messages", message);
    assert_eq!((status, &answer["code"]), (503, &json!("draining")));
    // Another one changes nothing; new connections are served.
    server.signal("-USR1");
    let mut other = Client::connect(&address);
    other.enter("q");
    assert_eq!(other.ask("reserve"), format!("RESERVED {id} 3\r\none"));
    assert_eq!(other.ask(&format!("delete {id}")), "DELETED");
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));

    let (server, address) = start(dir.path(), &[]);
    Client::connect(&address).put("put 0 0 60", "off after a restart");
    assert_ne!(server.call("POST", "/v1/queues/q/messages", message).1["id"], Value::Null);
}
