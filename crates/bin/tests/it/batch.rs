//! Batches: NDJSON in and out, cancel and ack of many.

use std::fmt::Write as _;

use duewheel::Policy;
use duewheel_server::http::HttpLimits;
use serde_json::{Value, json};

use crate::fixture::Server;

#[tokio::test(flavor = "multi_thread")]
async fn batch_has_ordered_result_per_line() {
    let server = Server::start().await;
    let lines = concat!(
        r#"{"body": "a", "delay_ms": 0, "key": "k"}"#,
        "\n",
        r#"{"body": "b", "delay_ms": -1}"#,
        "\n",
        r#"{"body": "c", "delay_ms": 0, "key": "k"}"#,
        "\r\n",
        "\n",
        r#"{"body": "d", "delay_ms": 0, "key": "k", "if_exists": "keep"}"#,
        "\n",
        r#"{"body": "e", "delay": "1h", "key": "k", "if_exists": "replace"}"#,
        "\n",
        r#"{"body": "f", "due_at": "2020-01-01T00:00:00Z"}"#,
        "\n",
        r#"{"body": "g", "delay_ms": 99999999999999}"#,
        "\n",
        "nonsense\n",
        r#"{"body_base64": "/w==", "delay_ms": 1}"#,
    );
    let answer = server.lines("q", lines).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/x-ndjson")));
    let results = answer.results();
    let short: Vec<(u64, String)> = results
        .iter()
        .map(|r| {
            let word = r.get("code").or(r.get("id")).and_then(Value::as_str).expect("word");
            (r["status"].as_u64().expect("status"), word.to_owned())
        })
        .collect();
    let expected = [
        (201, "1"),
        (400, "bad_request"),
        (409, "key_exists"),
        (400, "bad_request"),
        (200, "1"),
        (201, "2"),
        (422, "in_the_past"),
        (400, "bad_request"),
        (400, "bad_request"),
        (201, "3"),
    ];
    let expected: Vec<(u64, String)> = expected.into_iter().map(|(s, w)| (s, w.to_owned())).collect();
    assert_eq!(short, expected);
    assert!(results.iter().all(|r| r.get("code").is_none() || r.get("id").is_none()), "a refusal has no id");
    assert_eq!(results[1]["field"], "delay_ms");
    assert_eq!((&results[2]["existing_id"], &results[2]["state"]), (&json!("1"), &json!("ready")));
    assert_eq!((&results[4]["created"], &results[4]["state"]), (&json!(false), &json!("ready")));
    assert_eq!(results[5]["replaced"], "1");
    let single = server.ok("GET", "/v1/messages/2", "").await;
    assert_eq!(single["body"], "e");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_batch_is_streamed_in_order() {
    let server = Server::start().await;
    let mut lines = String::new();
    for n in 0..10_000 {
        let _ = writeln!(lines, r#"{{"body": "m{n}", "delay_ms": {}, "key": "k{n}"}}"#, n % 7);
    }
    let answer = server.lines("q", &lines).await;
    assert_eq!((answer.status, answer.header("transfer-encoding")), (200, Some("chunked")));
    let results = answer.results();
    assert_eq!(results.len(), 10_000);
    for (n, result) in results.iter().enumerate() {
        assert_eq!((result["status"].as_u64(), &result["key"]), (Some(201), &json!(format!("k{n}"))));
        assert_eq!(result["id"], json!((n + 1).to_string()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn above_the_limits_nothing_is_applied() {
    let policy = Policy { max_batch_messages: 3, max_batch_bytes: 1_000, ..Policy::default() };
    let server = Server::start_with(policy, HttpLimits::default()).await;
    let line = |n: usize| format!("{{\"body\": \"{}\", \"delay_ms\": 0}}\n", "x".repeat(n));
    for too_much in [line(1).repeat(4), line(990)] {
        let answer = server.lines("q", &too_much).await;
        assert_eq!((answer.status, &answer.json()["code"]), (413, &json!("body_too_large")));
    }
    assert_eq!(server.ok("GET", "/v1/queues/q", "").await["totals"]["enqueued"], 0);
    assert_eq!(server.lines("q", &line(1).repeat(3)).await.results().len(), 3);
    let empty = server.lines("q", "").await;
    assert_eq!((empty.status, empty.body.len()), (200, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_line_is_refused_alone() {
    let policy = Policy { max_body: 10, ..Policy::default() };
    let server = Server::start_with(policy, HttpLimits::default()).await;
    let lines = "{\"body\": \"0123456789\", \"delay_ms\": 0}\n{\"body\": \"0123456789x\", \"delay_ms\": 0}\n";
    let results = server.lines("q", lines).await.results();
    assert_eq!((&results[0]["status"], &results[1]["code"]), (&json!(201), &json!("body_too_large")));
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_cancel_answers_each_message() {
    let server = Server::start().await;
    let a = server.enqueue("q", r#"{"body": "a", "delay": "1h", "key": "ka"}"#).await;
    let b = server.enqueue("q", r#"{"body": "b", "delay": "1h"}"#).await;
    let leased = server.enqueue("q", r#"{"body": "c", "delay_ms": 0, "key": "kc"}"#).await;
    let other = server.enqueue("other", r#"{"body": "d", "delay": "1h"}"#).await;
    server.reserve("q", "{}").await;
    let ask = json!({"keys": ["ka", "kc", "none"], "ids": [b, a, other, leased, 999]});
    let answer = server.ok("POST", "/v1/queues/q/cancel", &ask.to_string()).await;
    let results = answer["results"].as_array().expect("results").clone();
    let word =
        |r: &Value| r.get("result").or(r.get("code")).and_then(Value::as_str).expect("word").to_owned();
    let words: Vec<String> = results.iter().map(word).collect();
    assert_eq!(
        words,
        [
            "cancelled",
            "leased",
            "message_not_found",
            "cancelled",
            "message_not_found",
            "message_not_found",
            "leased",
            "message_not_found"
        ]
    );
    assert_eq!((&results[0]["key"], &results[3]["id"]), (&json!("ka"), &json!(b)));
    assert!(results.iter().all(|r| (r["durability"] == "memory") == (word(r) == "cancelled")), "{results:?}");
    let kept = server.ok("GET", &format!("/v1/messages/{other}"), "").await;
    assert_eq!(kept["state"], "scheduled", "an id of another queue is not cancelled through this one");
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_ack_answers_each_message() {
    let server = Server::start().await;
    for _ in 0..3 {
        server.enqueue("q", r#"{"body": "a", "delay_ms": 0}"#).await;
    }
    let grants = server.reserve("q", r#"{"max": 10}"#).await;
    let token = |n: usize| grants[n]["lease_token"].clone();
    let ask = json!({"messages": [
        {"id": "1", "lease_token": token(0)}, {"id": 2, "lease_token": token(0)}, {"id": "3", "lease_token": token(2)},
        {"id": "3", "lease_token": token(2)}, {"id": "77", "lease_token": token(2)},
    ]});
    let answer = server.ok("POST", "/v1/ack", &ask.to_string()).await;
    let words: Vec<&str> = answer["results"]
        .as_array()
        .expect("results")
        .iter()
        .map(|r| r.get("result").or(r.get("code")).and_then(Value::as_str).expect("word"))
        .collect();
    assert_eq!(words, ["acked", "lease_lost", "acked", "already", "message_not_found"]);
    assert_eq!(server.ok("GET", "/v1/queues/q", "").await["counts"]["leased"], 1);
}
