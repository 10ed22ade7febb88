//! Bodies in JSON, and `Idempotency-Key`.

use serde_json::json;

use crate::fixture::{Answer, Server};

#[tokio::test(flavor = "multi_thread")]
async fn json_body_keeps_its_bytes() {
    let server = Server::start().await;
    let odd = "{ \"b\":1.50,\t\"a\" : [null, \"\\u00e9\\/\", {\"a\":1,\"a\":2}] }";
    let sent = [odd, "0", "-1e400", "\"text\"", "[]", "true", "\"\\ud800\""];
    for (n, value) in sent.into_iter().enumerate() {
        let enqueue = format!("{{\"json\":  {value} , \"delay_ms\": 0, \"priority\": {n}}}");
        // As it is: the reader of JSON that checks other calls of these tests refuses some of these values.
        assert_eq!(enqueue_with(&server, "", &enqueue).await.status, 201, "{value}");
    }
    let lines = format!(
        "{{\"json\": {odd}, \"delay_ms\": 0, \"priority\": 100}}\n{{\"json\": [1, \"delay_ms\": 0}}\n"
    );
    let answer = server.lines("q", &lines).await;
    let results = answer.results();
    assert_eq!((&results[0]["status"], &results[1]["code"]), (&json!(201), &json!("bad_request")));
    let mut grants = server.reserve("q", r#"{"max": 20}"#).await;
    grants.sort_by_key(|grant| grant["priority"].as_u64());
    let bodies: Vec<&str> = grants.iter().filter_map(|grant| grant["body"].as_str()).collect();
    assert_eq!(bodies, [&sent[..], &[odd]].concat());
    assert!(grants.iter().all(|grant| grant["headers"] == json!({"content-type": "application/json"})));

    // A value of any depth is a value.
    let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    let done = enqueue_with(&server, "", &format!("{{\"json\": {deep}, \"delay_ms\": 0}}")).await.json();
    let path = format!("/v1/messages/{}", done["id"].as_str().expect("id"));
    assert_eq!(server.ok("GET", &path, "").await["body"], deep);
}

#[tokio::test(flavor = "multi_thread")]
async fn json_body_keeps_own_content_type() {
    let server = Server::start().await;
    let own = json!({"Content-Type": "application/vnd.order+json", "a": "b"});
    let message = json!({"json": {"a": 1}, "delay": "1h", "headers": own, "key": "k"});
    let id = server.enqueue("q", &message.to_string()).await;
    let path = format!("/v1/messages/{id}");
    assert_eq!(server.ok("GET", &path, "").await["headers"], own);

    server.ok("PATCH", &path, r#"{"json": [2]}"#).await;
    let shown = server.ok("GET", &path, "").await;
    assert_eq!((&shown["body"], &shown["headers"]), (&json!("[2]"), &own), "headers stay");
    server.ok("PATCH", &path, r#"{"json": [3], "headers": {"c": "d"}}"#).await;
    let shown = server.ok("GET", &path, "").await;
    let typed = json!({"c": "d", "content-type": "application/json"});
    assert_eq!((&shown["body"], &shown["headers"]), (&json!("[3]"), &typed));
    server.ok("PATCH", &path, r#"{"body": "4", "json": null, "headers": {}}"#).await;
    let shown = server.ok("GET", &path, "").await;
    assert_eq!((&shown["body"], &shown["headers"]), (&json!("4"), &json!({})));

    let replaced = json!({"json": 5, "delay": "1h", "key": "k", "if_exists": "replace"}).to_string();
    let id = server.enqueue("q", &replaced).await;
    assert_eq!(server.ok("GET", &format!("/v1/messages/{id}"), "").await["body"], "5");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_has_one_body() {
    let server = Server::start().await;
    for (message, field, says) in [
        (r#"{"body": "a", "json": 1, "delay_ms": 0}"#, "json", "instead of body"),
        (r#"{"json": 1, "body_base64": "YQ==", "delay_ms": 0}"#, "body_base64", "instead of json"),
        (r#"{"body": "a", "body_base64": "YQ==", "delay_ms": 0}"#, "body_base64", "instead of body"),
        (r#"{"body": "a", "json": 1, "body_base64": "YQ==", "delay_ms": 0}"#, "json", "instead of body"),
        (r#"{"json": null, "delay_ms": 0}"#, "body", "is missing"),
        (r#"{"json": {"a": [1, 2]}, "delay_ms": "soon"}"#, "delay_ms", "invalid type"),
        (r#"{"json": 1, "json": 2, "delay_ms": 0}"#, "json", "duplicate field"),
        (
            &format!(r#"{{"json": {}1{}, "delay": 1}}"#, "[".repeat(50), "]".repeat(50)),
            "delay",
            "invalid type",
        ),
    ] {
        let refused = server.call("POST", "/v1/queues/q/messages", message).await;
        let problem = refused.json();
        assert_eq!((refused.status, problem["field"].as_str()), (400, Some(field)), "{message}: {problem}");
        assert!(problem["detail"].as_str().expect("detail").contains(says), "{message}: {problem}");
    }
    // A body that is no JSON at all, or too large.
    assert_eq!(
        server.call("POST", "/v1/queues/q/messages", r#"{"json": {a}, "delay_ms": 0}"#).await.status,
        400
    );
    let large = format!(r#"{{"json": "{}", "delay_ms": 0}}"#, "x".repeat(256 * 1024));
    assert_eq!(server.call("POST", "/v1/queues/q/messages", &large).await.status, 413);
    assert_eq!(server.ok("GET", "/v1/queues/q", "").await["totals"]["enqueued"], 0);
}

async fn enqueue_with(server: &Server, head: &str, message: &str) -> Answer {
    let head = format!("content-type: application/json\r\ncontent-length: {}\r\n{head}", message.len());
    server.raw("POST", "/v1/queues/q/messages", &head, message.as_bytes()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn idempotency_key_acts_as_dedupe_id() {
    let server = Server::start().await;
    let message = r#"{"body": "a", "delay_ms": 0}"#;
    let first = enqueue_with(&server, "Idempotency-Key: \"order 42\"\r\n", message).await;
    assert_eq!((first.status, first.header("idempotent-replayed")), (201, None));
    let again = enqueue_with(&server, "idempotency-key: \"order 42\"\r\n", message).await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (201, Some("true")));
    assert_eq!(again.json()["id"], first.json()["id"]);
    assert_eq!((&first.json()["replayed"], &again.json()["replayed"]), (&json!(null), &json!(true)));
    // As the field, with the quotes, which are a part of it.
    let field = r#"{"body": "a", "delay_ms": 0, "dedupe_id": "\"order 42\""}"#;
    let by_field = enqueue_with(&server, "", field).await;
    assert_eq!(
        (by_field.json()["id"].clone(), by_field.header("idempotent-replayed")),
        (first.json()["id"].clone(), Some("true"))
    );
    let both = enqueue_with(&server, "idempotency-key: \"order 42\"\r\n", field).await;
    assert_eq!((both.status, both.header("idempotent-replayed")), (201, Some("true")));
    let other =
        enqueue_with(&server, "idempotency-key: \"order 42\"\r\n", r#"{"body": "b", "delay_ms": 0}"#).await;
    assert_eq!((other.status, other.json()["code"].as_str()), (409, Some("dedupe_mismatch")));
    assert_eq!(server.ok("GET", "/v1/queues/q", "").await["totals"]["enqueued"], 1);

    let long = format!("idempotency-key: {}\r\n", "k".repeat(257));
    for (head, says) in [
        ("idempotency-key: another\r\n", "differs from dedupe_id"),
        ("idempotency-key: a\r\nidempotency-key: a\r\n", "is there twice"),
        ("idempotency-key: \r\n", "must not be empty"),
        (&long, "must have at most 256 bytes"),
    ] {
        let refused = enqueue_with(&server, head, field).await;
        assert_eq!(
            (refused.status, refused.json()["field"].as_str()),
            (400, Some("Idempotency-Key")),
            "{head}"
        );
        assert!(refused.json()["detail"].as_str().expect("detail").contains(says), "{head}: {refused:?}");
    }
    let lines = "content-type: application/x-ndjson\r\nidempotency-key: a\r\n";
    let head = format!("{lines}content-length: {}\r\n", message.len());
    let refused = server.raw("POST", "/v1/queues/q/messages", &head, message.as_bytes()).await;
    assert_eq!((refused.status, refused.json()["field"].as_str()), (400, Some("Idempotency-Key")));
    assert_eq!(server.ok("GET", "/v1/queues/q", "").await["totals"]["enqueued"], 1);
}
