//! Each bad input that the interface lists, and its relatives: status, code, field, and nothing was applied.

use serde_json::Value;

use crate::fixture::Server;

const MESSAGES: &str = "/v1/queues/q/messages";
const RESERVE: &str = "/v1/queues/q/reserve";
const CONFIG: &str = "/v1/queues/q/config";
const NONE: &str = "";

/// Story: the answer to a query of 20,000 bytes repeated it twice.
#[tokio::test(flavor = "multi_thread")]
async fn refusal_answer_truncates_long_input() {
    let server = Server::start().await;
    let long = "x".repeat(20_000);
    for (method, path, body) in [
        ("GET", format!("/v1/queues?{long}=1"), String::new()),
        ("POST", MESSAGES.to_owned(), format!(r#"{{"body": "a", "delay_ms": 0, "{long}": 1}}"#)),
        ("POST", MESSAGES.to_owned(), format!(r#"{{"body": "a", "delay_ms": "{long}"}}"#)),
        ("POST", MESSAGES.to_owned(), format!(r#"{{"body": "a", "delay_ms": 0, "if_exists": "{long}"}}"#)),
    ] {
        let answer = server.call(method, &path, &body).await;
        let told = answer.json().to_string();
        assert_eq!(answer.status, 400, "{told}");
        assert!(told.len() < 2_000 && told.contains("xxx…"), "{told}");
    }
}

/// Story: a refusal named `keep_done_ms` where `keep_done` was sent, and `due_to` where `filter.due_to` was.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_name_sent_field() {
    let server = Server::start().await;
    let bulk = "/v1/queues/q/bulk";
    for (method, path, body, field) in [
        ("PATCH", CONFIG, r#"{"keep_done": "367d"}"#, "keep_done"),
        ("PATCH", CONFIG, r#"{"keep_done_ms": 40000000000}"#, "keep_done_ms"),
        ("PATCH", CONFIG, r#"{"keep_done": null, "keep_done_ms": 40000000000}"#, "keep_done_ms"),
        ("PUT", CONFIG, r#"{"keep_done": "367d"}"#, "keep_done"),
        ("PATCH", CONFIG, r#"{"expires_in": "60000d"}"#, "expires_in"),
        ("PUT", CONFIG, r#"{"expires_in_ms": 5000000000000}"#, "expires_in_ms"),
        ("POST", bulk, r#"{"action": "cancel", "filter": {"due_to": "x"}}"#, "filter.due_to"),
        ("POST", bulk, r#"{"action": "cancel", "filter": {"key_prefix": ""}}"#, "filter.key_prefix"),
        ("POST", bulk, r#"{"action": "cancel", "filter": {"headers": {}}}"#, "filter.headers"),
        ("POST", bulk, r#"{"action": "cancel", "filter": {"state": "leased"}}"#, "filter.state"),
        ("POST", bulk, r#"{"action": "postpone", "all": true, "delay": "60000d"}"#, "delay"),
        ("POST", bulk, r#"{"action": "postpone", "all": true, "delay_ms": 5000000000000}"#, "delay_ms"),
        ("POST", bulk, r#"{"action": "postpone", "all": true, "shift": "-60000d"}"#, "shift"),
    ] {
        let answer = server.call(method, path, body).await;
        let problem = answer.json();
        assert_eq!((answer.status, &problem["field"]), (400, &Value::from(field)), "{body}: {problem}");
        let detail = problem["detail"].as_str().expect("a sentence");
        assert!(detail.starts_with(&format!("{field}: ")), "{body}: {detail}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_bodies_name_the_field() {
    let server = Server::start().await;
    let deep = format!(r#"{{"body": {}1{}, "delay_ms": 0}}"#, "[".repeat(40), "]".repeat(40));
    let long_key = format!(r#"{{"body": "a", "delay_ms": 0, "key": "{}"}}"#, "k".repeat(513));
    let long_dedupe = format!(r#"{{"body": "a", "delay_ms": 0, "dedupe_id": "{}"}}"#, "d".repeat(257));
    let long_header =
        format!(r#"{{"body": "a", "delay_ms": 0, "headers": {{"h": "{}"}}}}"#, "v".repeat(16 * 1024));
    let rows: &[(&str, &str, &str, &str)] = &[
        // Unknown and duplicate fields, wherever they are.
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "dealy": 1}"#, "dealy"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "id": "1"}"#, "id"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "delay_ms": 1}"#, "delay_ms"),
        ("POST", MESSAGES, r#"{"body": "a", "body": "b", "delay_ms": 0}"#, "body"),
        ("POST", RESERVE, r#"{"count": 1}"#, "count"),
        ("POST", "/v1/messages/1/ack", r#"{"lease_token": "000000010000000000000001", "x": 1}"#, "x"),
        ("POST", "/v1/messages/1/nack", r#"{"lease_token": "000000010000000000000001", "x": 1}"#, "x"),
        ("POST", "/v1/messages/1/extend", r#"{"lease_token": "000000010000000000000001", "x": 1}"#, "x"),
        ("POST", "/v1/messages/1/fire", r#"{"x": 1}"#, "x"),
        ("PATCH", "/v1/messages/1", r#"{"delay_ms": 1, "key": "k"}"#, "key"),
        (
            "POST",
            "/v1/ack",
            r#"{"messages": [{"id": "1", "lease_token": "000000010000000000000001", "x": 1}]}"#,
            "messages[0].x",
        ),
        ("POST", "/v1/queues/q/cancel", r#"{"keys": [], "all": true}"#, "all"),
        ("POST", "/v1/queues/q/pause", r#"{"until": 1}"#, "until"),
        ("POST", "/v1/queues/q/resume", r#"{"x": 1}"#, "x"),
        ("POST", "/v1/queues/q/purge", r#"{"state": "dead"}"#, "state"),
        ("POST", "/v1/queues/q/redrive", r#"{"all": true}"#, "all"),
        ("PUT", CONFIG, r#"{"lease": 1}"#, "lease"),
        // When it is due: exactly one way.
        ("POST", MESSAGES, r#"{"body": "a"}"#, "delay_ms"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": null}"#, "delay_ms"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 1, "delay": "1s"}"#, "delay"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 1, "due_at": "2027-01-01T00:00:00Z"}"#, "due_at"),
        ("POST", MESSAGES, r#"{"body": "a", "delay": "1s", "due_at": "2027-01-01T00:00:00Z"}"#, "due_at"),
        (
            "POST",
            MESSAGES,
            r#"{"body": "a", "delay_ms": 1, "delay": "1s", "due_at": "2027-01-01T00:00:00Z"}"#,
            "due_at",
        ),
        ("PATCH", "/v1/messages/1", r#"{"past": "fire", "body": "a"}"#, "past"),
        // Story: these took the word for nothing.
        ("PATCH", "/v1/messages/1", r#"{"past": "fire", "delay": "1s"}"#, "past"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "past": "fire"}"#, "past"),
        ("POST", MESSAGES, r#"{"body": "a", "delay": "1s", "past": "refuse"}"#, "past"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "dedupe_window": "1h"}"#, "dedupe_window"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "dedupe_window_ms": 1000}"#, "dedupe_window_ms"),
        ("PATCH", "/v1/messages/1", r#"{"delay_ms": 1, "delay": "1s"}"#, "delay"),
        ("POST", MESSAGES, r#"{"body": "a", "due_at": "tomorrow"}"#, "due_at"),
        ("POST", MESSAGES, r#"{"body": "a", "due_at": "2027-01-01T00:00:00"}"#, "due_at"),
        ("POST", MESSAGES, r#"{"body": "a", "due_at": "+12027-01-01T00:00:00Z"}"#, "due_at"),
        ("POST", MESSAGES, r#"{"body": "a", "due_at": 1767225600}"#, "due_at"),
        ("POST", MESSAGES, r#"{"body": "a", "due_at": "2200-01-01T00:00:00Z"}"#, "due_at"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 4294967295001}"#, "delay_ms"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 18446744073709551615}"#, "delay_ms"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 18446744073709551616}"#, "delay_ms"),
        ("POST", MESSAGES, r#"{"body": "a", "delay": "49711d"}"#, "delay"),
        ("POST", MESSAGES, r#"{"body": "a", "delay": "99999999999999999999999d"}"#, "delay"),
        ("POST", MESSAGES, r#"{"body": "a", "delay": "10"}"#, "delay"),
        ("POST", MESSAGES, r#"{"body": "a", "delay": "-1s"}"#, "delay"),
        ("POST", MESSAGES, r#"{"body": "a", "delay": "1.5x"}"#, "delay"),
        ("POST", MESSAGES, r#"{"body": "a", "delay": ""}"#, "delay"),
        ("POST", MESSAGES, r#"{"body": "a", "due_at": "2020-01-01T00:00:00Z", "past": "ignore"}"#, "past"),
        // Numbers.
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": -1}"#, "delay_ms"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 1.5}"#, "delay_ms"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 1e3}"#, "delay_ms"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": "1000"}"#, "delay_ms"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": true}"#, "delay_ms"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "priority": -1}"#, "priority"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "priority": 4294967296}"#, "priority"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "priority": 0.5}"#, "priority"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "lease_ms": -1}"#, "lease_ms"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "lease_ms": 0}"#, "lease_ms"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "lease_ms": 18446744073709551615}"#, "lease_ms"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "max_attempts": 0}"#, "max_attempts"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "max_attempts": 1.1}"#, "max_attempts"),
        (
            "POST",
            MESSAGES,
            r#"{"body": "a", "delay_ms": 0, "backoff": {"min_ms": 2, "max_ms": 1}}"#,
            "backoff",
        ),
        (
            "POST",
            MESSAGES,
            r#"{"body": "a", "delay_ms": 0, "backoff": {"min_ms": -2, "max_ms": 1}}"#,
            "backoff.min_ms",
        ),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "backoff": {"min_ms": 2}}"#, "backoff.max_ms"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "backoff": [1, 2]}"#, "backoff"),
        ("POST", RESERVE, r#"{"max": 0}"#, "max"),
        ("POST", RESERVE, r#"{"max": -1}"#, "max"),
        ("POST", RESERVE, r#"{"max": 1000000}"#, "max"),
        ("POST", RESERVE, r#"{"wait_ms": -1}"#, "wait_ms"),
        ("POST", RESERVE, r#"{"wait_ms": 0.5}"#, "wait_ms"),
        ("POST", RESERVE, r#"{"wait_ms": 600001}"#, "wait_ms"),
        ("POST", RESERVE, r#"{"lease_ms": 0}"#, "lease_ms"),
        ("POST", RESERVE, r#"{"lease_ms": 18446744073709551615}"#, "lease_ms"),
        (
            "POST",
            "/v1/messages/1/nack",
            r#"{"lease_token": "000000010000000000000001", "delay_ms": -1}"#,
            "delay_ms",
        ),
        (
            "POST",
            "/v1/messages/1/nack",
            r#"{"lease_token": "000000010000000000000001", "delay_ms": 4294967295001}"#,
            "delay_ms",
        ),
        (
            "POST",
            "/v1/messages/1/extend",
            r#"{"lease_token": "000000010000000000000001", "lease_ms": 0}"#,
            "lease_ms",
        ),
        ("POST", "/v1/queues/q/pause", r#"{"for_ms": -1}"#, "for_ms"),
        ("POST", "/v1/queues/q/pause", r#"{"for": "soon"}"#, "for"),
        ("POST", "/v1/queues/q/pause", r#"{"for": "1s", "for_ms": 1}"#, "for"),
        ("POST", "/v1/queues/q/redrive", r#"{"max": 0}"#, "max"),
        ("POST", "/v1/queues/q/redrive", r#"{"max": 1, "ids": []}"#, "max"),
        ("PUT", CONFIG, r#"{"lease_ms": 0}"#, "lease_ms"),
        ("PUT", CONFIG, r#"{"lease_ms": 18446744073709551615}"#, "lease_ms"),
        ("PUT", CONFIG, r#"{"max_attempts": 0}"#, "max_attempts"),
        ("PUT", CONFIG, r#"{"order": "random"}"#, "order"),
        ("PUT", CONFIG, r#"{"dedupe_window_ms": 18446744073709551615}"#, "dedupe_window_ms"),
        ("PUT", CONFIG, r#"{"backoff": {"min_ms": 2, "max_ms": 1}}"#, "backoff"),
        // Bodies, keys, headers, tokens, ids.
        ("POST", MESSAGES, r#"{"delay_ms": 0}"#, "body"),
        ("POST", MESSAGES, r#"{"body": "a", "body_base64": "YQ==", "delay_ms": 0}"#, "body_base64"),
        ("POST", MESSAGES, r#"{"body_base64": "YQ", "delay_ms": 0}"#, "body_base64"),
        ("POST", MESSAGES, r#"{"body_base64": "%%%%", "delay_ms": 0}"#, "body_base64"),
        ("POST", MESSAGES, r#"{"body": {"a": 1}, "delay_ms": 0}"#, "body"),
        ("PATCH", "/v1/messages/1", r#"{"delay_ms": 1, "body": "a", "body_base64": "YQ=="}"#, "body_base64"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "key": ""}"#, "key"),
        ("POST", MESSAGES, &long_key, "key"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "key": 7}"#, "key"),
        (
            "POST",
            MESSAGES,
            r#"{"body": "a", "delay_ms": 0, "key": "k", "if_exists": "overwrite"}"#,
            "if_exists",
        ),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "dedupe_id": ""}"#, "dedupe_id"),
        ("POST", MESSAGES, &long_dedupe, "dedupe_id"),
        // The server's own ids are remembered for a week.
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "dedupe_id": "\u0001schedule/x"}"#, "dedupe_id"),
        ("POST", MESSAGES, &long_header, "headers"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "headers": {"a": 1}}"#, "headers.a"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "headers": ["a"]}"#, "headers"),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0, "headers": {"a": "1", "a": "2"}}"#, "headers"),
        ("POST", "/v1/messages/1/ack", "{}", "lease_token"),
        ("POST", "/v1/messages/1/ack", r#"{"lease_token": "x"}"#, "lease_token"),
        ("POST", "/v1/ack", r#"{"messages": [{"id": "-1", "lease_token": "x"}]}"#, "messages[0].id"),
        ("POST", "/v1/ack", r#"{}"#, "messages"),
        ("POST", "/v1/queues/q/cancel", r#"{}"#, "keys"),
        ("POST", "/v1/queues/q/cancel", r#"{"keys": ["a", ""]}"#, "keys[1]"),
        ("POST", "/v1/queues/q/cancel", r#"{"ids": ["x"]}"#, "ids[0]"),
        // Not JSON, or not an object.
        ("POST", MESSAGES, "", NONE),
        ("POST", MESSAGES, "hello", NONE),
        ("POST", MESSAGES, "[]", NONE),
        ("POST", MESSAGES, r#"["a", null, 0]"#, NONE),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0"#, NONE),
        ("POST", MESSAGES, r#"{"body": "a", "delay_ms": 0}{}"#, NONE),
        ("POST", MESSAGES, r#"{"body": "\ud800", "delay_ms": 0}"#, NONE),
        ("POST", MESSAGES, &deep, NONE),
        // Paths.
        ("POST", "/v1/queues/-q/messages", r#"{"body": "a", "delay_ms": 0}"#, "queue"),
        ("POST", "/v1/queues/a%20b/messages", r#"{"body": "a", "delay_ms": 0}"#, "queue"),
        ("POST", "/v1/queues/a%C2%A0b/messages", r#"{"body": "a", "delay_ms": 0}"#, "queue"),
        ("POST", "/v1/queues//messages", r#"{"body": "a", "delay_ms": 0}"#, "queue"),
        ("POST", "/v1/queues/a%2/messages", r#"{"body": "a", "delay_ms": 0}"#, "queue"),
        ("POST", "/v1/queues/a%zz/messages", r#"{"body": "a", "delay_ms": 0}"#, "queue"),
        ("GET", "/v1/queues/q/keys/%ff", "", "key"),
        ("GET", "/v1/queues/q/keys/a%", "", "key"),
        ("GET", "/v1/queues/q/keys/", "", "key"),
        ("DELETE", "/v1/queues/q/keys/", "", "key"),
        ("POST", "/v1/queues/q/keys//fire", "", "key"),
        ("GET", "/v1/messages/abc", "", "id"),
        ("GET", "/v1/messages/-1", "", "id"),
        ("GET", "/v1/messages/1.5", "", "id"),
        // Queries.
        ("GET", "/v1/queues/q/messages?state=pending", "", "state"),
        ("GET", "/v1/queues/q/messages?limit=0", "", "limit"),
        ("GET", "/v1/queues/q/messages?limit=1001", "", "limit"),
        ("GET", "/v1/queues/q/messages?limit=-1", "", "limit"),
        ("GET", "/v1/queues/q/messages?limit=+5", "", "limit"),
        ("GET", "/v1/queues/q/messages?limit=1.5", "", "limit"),
        ("GET", "/v1/queues/q/messages?limit=1&limit=2", "", "limit"),
        ("GET", "/v1/queues/q/messages?after=x", "", "after"),
        ("GET", "/v1/queues/q/messages?page=2", "", "page"),
        ("GET", "/v1/queues/q/messages?state=%zz", "", "state"),
        ("GET", "/v1/queues?after=-", "", "after"),
        ("GET", "/v1/queues/q/histogram?from=now", "", "from"),
        ("GET", "/v1/queues/q/histogram?buckets=0", "", "buckets"),
        ("GET", "/v1/queues/q/histogram?buckets=10001", "", "buckets"),
        ("GET", "/v1/queues/q/histogram?from=2027-01-01T00:00:00Z&to=2026-01-01T00:00:00Z", "", "to"),
        ("POST", "/v1/queues/q/messages?delay_ms=5000", r#"{"body": "a", "delay_ms": 0}"#, "delay_ms"),
        ("GET", "/v1/wheel?slot=1", "", "slot"),
    ];
    for (method, path, body, field) in rows {
        let answer = server.call(method, path, body).await;
        let at = format!("{method} {path} {}", body.get(..200.min(body.len())).unwrap_or_default());
        assert_eq!(answer.status, 400, "{at}: {answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{at}");
        let problem = answer.json();
        assert_eq!(problem["code"], "bad_request", "{at}: {problem}");
        assert_eq!(problem["status"], 400, "{at}");
        let named = problem.get("field").and_then(Value::as_str).unwrap_or_default();
        assert_eq!(named, *field, "{at}: {problem}");
        assert!(problem["detail"].as_str().unwrap_or_default().contains(named), "{at}: {problem}");
    }
    nothing_was_applied(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_refusals_have_their_codes() {
    let server = Server::start().await;
    let large = format!(r#"{{"body": "{}", "delay_ms": 0}}"#, "a".repeat(256 * 1024 + 1));
    let huge = "a".repeat(3 * 1024 * 1024);
    let many_keys = format!(r#"{{"keys": [{}"k"]}}"#, r#""k","#.repeat(10_000));
    for (method, path, body, status, code) in [
        ("GET", "/v2/queues", "", 404, "not_found"),
        ("GET", "/v1", "", 404, "not_found"),
        ("GET", "/v1/messages", "", 404, "not_found"),
        ("GET", "/v1/messages/", "", 404, "not_found"),
        ("GET", "/v1/queues/q/keys", "", 404, "not_found"),
        ("GET", "/v1/queues/q/keys/a/b", "", 404, "not_found"),
        ("GET", "/v1/messages/1", "", 404, "message_not_found"),
        ("GET", "/v1/messages/99999999999999999999999", "", 404, "message_not_found"),
        ("GET", "/v1/queues/q/keys/k", "", 404, "message_not_found"),
        ("DELETE", "/v1/messages/1", "", 404, "message_not_found"),
        ("DELETE", "/v1/queues/q/keys/k", "", 404, "message_not_found"),
        ("PATCH", "/v1/messages/1", r#"{"delay_ms": 1}"#, 404, "message_not_found"),
        ("POST", "/v1/messages/1/fire", "", 404, "message_not_found"),
        ("POST", "/v1/queues/q/keys/k/fire", "{}", 404, "message_not_found"),
        (
            "POST",
            "/v1/messages/1/ack",
            r#"{"lease_token": "000000010000000000000001"}"#,
            404,
            "message_not_found",
        ),
        ("PUT", MESSAGES, "", 405, "method_not_allowed"),
        ("DELETE", "/v1/queues/q", "", 404, "not_found"),
        ("DELETE", "/v1/queues", "", 405, "method_not_allowed"),
        ("GET", RESERVE, "", 405, "method_not_allowed"),
        ("POST", "/v1/messages/1", "{}", 405, "method_not_allowed"),
        ("POST", "/healthz", "", 405, "method_not_allowed"),
        ("POST", "/", "", 405, "method_not_allowed"),
        ("POST", MESSAGES, large.as_str(), 413, "body_too_large"),
        ("POST", MESSAGES, huge.as_str(), 413, "body_too_large"),
        ("POST", "/v1/queues/q/cancel", many_keys.as_str(), 413, "body_too_large"),
        ("POST", MESSAGES, r#"{"body": "a", "due_at": "2025-12-31T23:59:59.999Z"}"#, 422, "in_the_past"),
        (
            "POST",
            MESSAGES,
            r#"{"body": "a", "due_at": "1960-01-01T00:00:00Z", "past": "refuse"}"#,
            422,
            "in_the_past",
        ),
    ] {
        let answer = server.call(method, path, body).await;
        let at = format!("{method} {path} {}", body.get(..100.min(body.len())).unwrap_or_default());
        assert_eq!(answer.status, status, "{at}: {answer:?}");
        let problem = answer.json();
        assert_eq!(problem["code"], code, "{at}: {problem}");
        assert_eq!(problem["status"], status, "{at}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{at}");
        assert_eq!(answer.header("allow").is_some(), status == 405, "{at}");
    }
    let allow = server.call("PUT", MESSAGES, "").await;
    let allow = allow.header("allow").unwrap_or_default();
    assert!(allow.contains("POST") && allow.contains("GET") && !allow.contains("PUT"), "{allow}");
    nothing_was_applied(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn content_types_and_origins() {
    let server = Server::start().await;
    let body = br#"{"body": "a", "delay_ms": 0}"#;
    let length = format!("content-length: {}\r\n", body.len());
    for (head, status) in [
        ("", 201),
        ("content-type: application/json; charset=utf-8\r\n", 201),
        ("content-type: APPLICATION/JSON\r\n", 201),
        ("content-type: application/vnd.shop+json\r\n", 201),
        ("content-type: application/x-www-form-urlencoded\r\n", 201),
        ("content-type: text/plain\r\n", 415),
        ("content-type: application/xml\r\n", 415),
        ("content-type: multipart/form-data; boundary=x\r\n", 415),
        ("origin: https://elsewhere.example\r\n", 403),
        ("origin: null\r\n", 403),
    ] {
        let answer = server.raw("POST", MESSAGES, &format!("{head}{length}"), body).await;
        assert_eq!(answer.status, status, "{head}: {answer:?}");
    }
    let own = format!("origin: http://{}\r\n{length}", server.address);
    assert_eq!(server.raw("POST", MESSAGES, &own, body).await.status, 201);
    let invalid = b"{\"body\": \"\xff\xfe\", \"delay_ms\": 0}";
    let answer =
        server.raw("POST", MESSAGES, &format!("content-length: {}\r\n", invalid.len()), invalid).await;
    assert_eq!((answer.status, &answer.json()["code"]), (400, &"bad_request".into()));
    assert!(answer.json()["detail"].as_str().unwrap_or_default().contains("UTF-8"));
}

async fn nothing_was_applied(server: &Server) {
    let queues = server.ok("GET", "/v1/queues", "").await;
    for queue in queues["queues"].as_array().into_iter().flatten() {
        assert_eq!(queue["totals"]["enqueued"], 0, "{queue}");
    }
}
