//! The table of states and operations, over HTTP; and everything a message can carry.

use serde_json::{Value, json};

use crate::fixture::{Answer, Server};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Before {
    Scheduled,
    Ready,
    Leased,
    /// The lease ran out; nobody has had the message since.
    Lapsed,
    Dead,
    Acked,
    Cancelled,
}

/// A message in a state, under a key of its own, with the token of its last lease.
struct Case {
    queue: String,
    id: String,
    token: String,
}

const NO_TOKEN: &str = "000000010000000000000000";

async fn bring(server: &Server, n: usize, before: Before) -> Case {
    let queue = format!("q{n}");
    let delay = if before == Before::Scheduled || before == Before::Cancelled { 3_600_000 } else { 0 };
    let body = json!({"body": "b", "delay_ms": delay, "key": "k", "max_attempts": if before == Before::Dead { 1 } else { 20 }});
    let id = server.enqueue(&queue, &body.to_string()).await;
    let mut token = NO_TOKEN.to_owned();
    if matches!(before, Before::Leased | Before::Lapsed | Before::Dead | Before::Acked) {
        let grants = server.reserve(&queue, r#"{"lease_ms": 1000}"#).await;
        token = grants[0]["lease_token"].as_str().expect("token").to_owned();
    }
    let settle = format!("/v1/messages/{id}");
    let proof = json!({"lease_token": token}).to_string();
    match before {
        Before::Scheduled | Before::Ready | Before::Leased => {}
        Before::Lapsed => server.advance(1_000),
        Before::Dead => {
            let answer = server.ok("POST", &format!("{settle}/nack"), &proof).await;
            assert_eq!(answer["result"], "dead");
        }
        Before::Acked => {
            server.ok("POST", &format!("{settle}/ack"), &proof).await;
        }
        Before::Cancelled => {
            server.ok("DELETE", &settle, "").await;
        }
    }
    let wanted = match before {
        Before::Scheduled => "scheduled",
        Before::Ready | Before::Lapsed => "ready",
        Before::Leased => "leased",
        Before::Dead => "dead",
        Before::Acked | Before::Cancelled => return Case { queue, id, token },
    };
    server.until(wanted, &format!("/v1/messages/{id}"), |m| m["state"] == wanted).await;
    Case { queue, id, token }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_of_states_and_operations() {
    use Before::*;
    let server = Server::start().await;
    // What is asked, in which state, and status and code (or `result` or `state`) of the answer.
    let rows: &[(&str, Before, u16, &str)] = &[
        ("cancel", Scheduled, 200, "cancelled"),
        ("cancel", Ready, 200, "cancelled"),
        ("cancel", Leased, 409, "leased"),
        ("cancel", Lapsed, 200, "cancelled"),
        ("cancel", Dead, 200, "cancelled"),
        ("cancel", Acked, 404, "message_not_found"),
        ("cancel", Cancelled, 404, "message_not_found"),
        ("postpone", Scheduled, 200, "scheduled"),
        ("postpone", Ready, 200, "scheduled"),
        ("postpone", Leased, 409, "leased"),
        ("postpone", Lapsed, 200, "scheduled"),
        ("postpone", Dead, 409, "dead"),
        ("postpone", Acked, 404, "message_not_found"),
        ("fire", Scheduled, 200, "ready"),
        ("fire", Ready, 200, "ready"),
        ("fire", Leased, 409, "leased"),
        ("fire", Dead, 409, "dead"),
        ("fire", Cancelled, 404, "message_not_found"),
        ("reject", Scheduled, 409, "key_exists"),
        ("reject", Ready, 409, "key_exists"),
        ("reject", Leased, 409, "key_exists"),
        ("reject", Dead, 201, "new"),
        ("reject", Acked, 201, "new"),
        ("keep", Scheduled, 200, "kept"),
        ("keep", Ready, 200, "kept"),
        ("keep", Leased, 200, "kept"),
        ("keep", Dead, 201, "new"),
        ("keep", Cancelled, 201, "new"),
        ("replace", Scheduled, 201, "replaced"),
        ("replace", Ready, 201, "replaced"),
        ("replace", Leased, 409, "leased"),
        ("replace", Lapsed, 201, "replaced"),
        ("replace", Dead, 201, "new"),
        ("replace", Acked, 201, "new"),
        ("supersede", Scheduled, 201, "replaced"),
        ("supersede", Ready, 201, "replaced"),
        ("supersede", Leased, 201, "superseded"),
        ("supersede", Lapsed, 201, "replaced"),
        ("supersede", Dead, 201, "new"),
        ("supersede", Acked, 201, "new"),
        ("ack", Leased, 200, "acked"),
        ("ack", Lapsed, 200, "acked"),
        ("ack", Dead, 409, "lease_lost"),
        ("ack", Acked, 200, "already"),
        ("ack", Cancelled, 409, "lease_lost"),
        ("nack", Leased, 200, "again"),
        ("nack", Lapsed, 200, "again"),
        ("nack", Dead, 409, "lease_lost"),
        ("nack", Acked, 409, "lease_lost"),
        ("extend", Leased, 200, "extended"),
        ("extend", Lapsed, 409, "lease_lost"),
        ("extend", Dead, 409, "lease_lost"),
        ("extend", Acked, 409, "lease_lost"),
        ("stale ack", Leased, 409, "lease_lost"),
        ("stale ack", Acked, 409, "lease_lost"),
        ("edit", Scheduled, 200, "scheduled"),
        ("edit", Ready, 200, "ready"),
        ("edit", Leased, 409, "leased"),
        ("edit", Lapsed, 200, "ready"),
        ("edit", Dead, 409, "dead"),
        ("edit", Acked, 404, "message_not_found"),
        ("not yet", Leased, 200, "again"),
        ("not yet", Lapsed, 200, "again"),
        ("not yet", Dead, 409, "lease_lost"),
        ("dead letter", Leased, 200, "dead"),
        ("dead letter", Lapsed, 200, "dead"),
        ("dead letter", Dead, 409, "lease_lost"),
        ("dead letter", Acked, 409, "lease_lost"),
        ("stale ack", Scheduled, 409, "lease_lost"),
        ("redrive", Dead, 200, "redriven"),
        ("redrive", Ready, 409, "not_dead"),
        ("redrive with its key taken", Dead, 409, "key_exists"),
    ];
    for (n, (operation, before, status, word)) in rows.iter().enumerate() {
        let case = bring(&server, n, *before).await;
        let (got_status, got) = apply(&server, &case, operation).await;
        assert_eq!((got_status, &*got), (*status, *word), "{operation} of a message that is {before:?}");
    }
}

/// Applies an operation; gives the status and the word that tells what happened.
async fn apply(server: &Server, case: &Case, operation: &str) -> (u16, String) {
    let Case { queue, id, token } = case;
    let by_id = format!("/v1/messages/{id}");
    let by_key = format!("/v1/queues/{queue}/keys/k");
    let messages = format!("/v1/queues/{queue}/messages");
    let proof = json!({"lease_token": token}).to_string();
    let enqueue = |how: &str| json!({"body": "c", "delay_ms": 5, "key": "k", "if_exists": how}).to_string();
    let answer = match operation {
        "cancel" => {
            let answer = server.call("DELETE", &by_id, "").await;
            if word(&answer) == "leased" {
                assert_eq!(answer.json()["state"], "leased");
            }
            answer
        }
        "postpone" => {
            let answer = server.call("PATCH", &by_id, r#"{"delay": "2h"}"#).await;
            if answer.status == 200 {
                let now = answer.json();
                assert_eq!(
                    (&now["id"], &now["generation"]),
                    (&json!(id), &json!(2)),
                    "same id, generation + 1"
                );
            }
            answer
        }
        "fire" => {
            let answer = server.call("POST", &format!("{by_key}/fire"), "").await;
            // By id it must be the same.
            let again = server.call("POST", &format!("{by_id}/fire"), "{}").await;
            let dead_key = answer.status == 404 && again.status == 409;
            assert!(answer.status == again.status || dead_key, "{answer:?} {again:?}");
            again
        }
        "reject" | "keep" | "replace" | "supersede" => {
            let state = server.call("GET", &by_id, "").await.json()["state"].clone();
            let answer = server.call("POST", &messages, &enqueue(operation)).await;
            let done = answer.json();
            match (answer.status, operation) {
                (409, _) => {
                    assert_eq!(
                        (&done["existing_id"], &done["state"]),
                        (&json!(id), &state),
                        "the holder is named"
                    );
                }
                (200, "keep") => assert_eq!(
                    (&done["id"], &done["created"], &done["state"]),
                    (&json!(id), &json!(false), &state)
                ),
                (201, _) => assert!(done["id"] != json!(id) && done["created"] == true, "{done}"),
                other => panic!("{other:?} {done}"),
            }
            for word in ["replaced", "superseded"] {
                if let Some(old) = done.get(word) {
                    assert_eq!((old, &done["generation"]), (&json!(id), &json!(2)));
                    return (answer.status, word.into());
                }
            }
            let word = match answer.status {
                201 => "new".to_owned(),
                200 => "kept".to_owned(),
                _ => word(&answer),
            };
            return (answer.status, word);
        }
        "edit" => server.call("PATCH", &by_key, r#"{"body": "c"}"#).await,
        "not yet" => {
            let body = json!({"lease_token": token, "attempt": false, "reason": "no stock"}).to_string();
            server.call("POST", &format!("{by_id}/nack"), &body).await
        }
        "dead letter" => {
            let body = json!({"lease_token": token, "dead": true, "reason": "no such order"}).to_string();
            server.call("POST", &format!("{by_id}/nack"), &body).await
        }
        "ack" => server.call("POST", &format!("{by_id}/ack"), &proof).await,
        "nack" => server.call("POST", &format!("{by_id}/nack"), &proof).await,
        "extend" => {
            let body = json!({"lease_token": token, "lease_ms": 60_000}).to_string();
            server.call("POST", &format!("{by_id}/extend"), &body).await
        }
        "stale ack" => {
            let body = json!({"lease_token": NO_TOKEN}).to_string();
            server.call("POST", &format!("{by_id}/ack"), &body).await
        }
        "redrive" | "redrive with its key taken" => {
            if operation != "redrive" {
                server.enqueue(queue, &enqueue("reject")).await;
            }
            let body = json!({"ids": [id]}).to_string();
            let answer = server.ok("POST", &format!("/v1/queues/{queue}/redrive"), &body).await;
            let result = &answer["results"][0];
            assert_eq!(answer["redriven"], u64::from(result["result"] == "redriven"));
            assert_eq!(result["durability"] == "memory", result["result"] == "redriven", "{answer}");
            let status = result["status"].as_u64().unwrap_or(200).try_into().expect("status");
            let word = result.get("code").or(result.get("result")).and_then(Value::as_str).expect("word");
            return (status, word.to_owned());
        }
        other => panic!("{other}"),
    };
    let word = word(&answer);
    (answer.status, word)
}

fn word(answer: &Answer) -> String {
    let json = answer.json();
    let is_applied = json.get("code").is_none();
    assert_eq!(json.get("durability").is_some_and(|level| level == "memory"), is_applied, "{json}");
    let found =
        ["code", "result", "state"].into_iter().find_map(|name| json.get(name)?.as_str().map(str::to_owned));
    found.unwrap_or_else(|| panic!("{json}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn message_round_trips_byte_for_byte() {
    let server = Server::start().await;
    let all = json!({
        "body": "tschüß \u{0} \"✓\"\n", "due_at": "2026-01-01T02:00:00.0001+01:00", "key": "a/b c%ü?",
        "priority": 7, "lease_ms": 5_000, "max_attempts": 3, "headers": {"b": "1", "a": "ü"},
        "backoff": {"min_ms": 10, "max_ms": 10},
    });
    let done = server.ok("POST", "/v1/queues/orders%2Fclose/messages", &all.to_string()).await;
    assert_eq!(
        done,
        json!({"id": "1", "queue": "orders/close", "key": "a/b c%ü?", "due_at": "2026-01-01T01:00:00.001Z",
            "generation": 1, "created": true, "durability": "memory"}),
        "an instant finer than a millisecond is rounded up"
    );
    let by_key = "/v1/queues/orders%2Fclose/keys/a%2Fb%20c%25%C3%BC%3F";
    let seen = server.ok("GET", by_key, "").await;
    for (name, value) in [
        ("id", json!("1")),
        ("queue", json!("orders/close")),
        ("state", json!("scheduled")),
        ("attempt", json!(0)),
        ("generation", json!(1)),
        ("priority", json!(7)),
        ("lease_ms", json!(5_000)),
        ("max_attempts", json!(3)),
        ("body", all["body"].clone()),
        ("headers", all["headers"].clone()),
        ("due_in_ms", json!(3_600_001)),
        ("enqueued_at", json!("2026-01-01T00:00:00.000Z")),
        ("due_at", json!("2026-01-01T01:00:00.001Z")),
    ] {
        assert_eq!(seen[name], value, "{name}");
    }
    server.advance(3_600_000);
    assert!(server.reserve("orders%2Fclose", "{}").await.is_empty(), "a millisecond early");
    server.advance(1);
    let grants = server.reserve("orders%2Fclose", r#"{"max": 10}"#).await;
    let grant = &grants[0];
    for (name, value) in [
        ("id", json!("1")),
        ("key", json!("a/b c%ü?")),
        ("body", all["body"].clone()),
        ("attempt", json!(1)),
        ("headers", all["headers"].clone()),
        ("lateness_ms", json!(0)),
        ("lease_ms", json!(5_000)),
        ("lease_until", json!("2026-01-01T01:00:05.001Z")),
        ("due_at", json!("2026-01-01T01:00:00.001Z")),
    ] {
        assert_eq!(grant[name], value, "{name}");
    }
    let nack = json!({"lease_token": grant["lease_token"], "delay_ms": 1_000, "reason": "not today"});
    let again = server.ok("POST", "/v1/messages/1/nack", &nack.to_string()).await;
    assert_eq!(
        again,
        json!({"result": "again", "due_at": "2026-01-01T01:00:01.001Z", "durability": "memory"})
    );
    let seen = server.ok("GET", "/v1/messages/1", "").await;
    assert_eq!(
        (&seen["history"][0]["how"], &seen["history"][0]["note"]),
        (&json!("nacked"), &json!("not today"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn binary_bodies_use_base64() {
    let server = Server::start().await;
    server.enqueue("q", r#"{"body_base64": "//4AgA==", "delay_ms": 0}"#).await;
    server.enqueue("q", r#"{"body_base64": "aGk=", "delay_ms": 0}"#).await;
    server.enqueue("q", r#"{"body": "", "delay_ms": 0}"#).await;
    let grants = server.reserve("q", r#"{"max": 10}"#).await;
    assert_eq!((grants[0].get("body"), &grants[0]["body_base64"]), (None, &json!("//4AgA==")));
    assert_eq!((&grants[1]["body"], grants[1].get("body_base64")), (&json!("hi"), None));
    assert_eq!(grants[2]["body"], "");
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_enqueue_returns_first_answer() {
    let server = Server::start().await;
    let path = "/v1/queues/q/messages";
    let body =
        r#"{"body": "a", "delay": "1h", "key": "k", "dedupe_id": "d1", "headers": {"a": "1", "b": "2"}}"#;
    let first = server.call("POST", path, body).await;
    server.ok("DELETE", &format!("/v1/messages/{}", first.json()["id"].as_str().expect("id")), "").await;
    let second = server.call("POST", path, body).await;
    assert_eq!((first.status, second.status), (201, 201));
    let mut replayed = first.json();
    replayed["replayed"] = json!(true);
    assert_eq!(second.json(), replayed, "also after the message is gone");
    let other =
        server.call("POST", path, r#"{"body": "b", "delay": "1h", "key": "k", "dedupe_id": "d1"}"#).await;
    assert_eq!((other.status, &other.json()["code"]), (409, &json!("dedupe_mismatch")));
    assert_eq!(other.json()["existing_id"], first.json()["id"]);
    let again =
        server.call("POST", path, r#"{"body": "b", "delay": "1h", "key": "k", "dedupe_id": "d2"}"#).await;
    assert_eq!(again.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn postpone_checks_generation_and_replaces_body() {
    let server = Server::start().await;
    let id = server.enqueue("q", r#"{"body": "a", "delay": "1h", "key": "k"}"#).await;
    let path = "/v1/queues/q/keys/k";
    let wrong = server.call("PATCH", path, r#"{"delay": "2h", "if_generation": 2}"#).await;
    assert_eq!((wrong.status, &wrong.json()["code"]), (409, &json!("generation_mismatch")));
    assert_eq!(wrong.json()["generation"], 1);
    let now = server.ok("PATCH", path, r#"{"delay": "2h", "if_generation": 1, "body": "b"}"#).await;
    assert_eq!((&now["id"], &now["generation"], &now["key"]), (&json!(id), &json!(2), &json!("k")));
    assert!(now.get("body").is_none(), "a change is answered without the body: {now}");
    assert_eq!(server.ok("GET", path, "").await["body"], "b");
    assert_eq!((&now["due_at"], &now["state"]), (&json!("2026-01-01T02:00:00.000Z"), &json!("scheduled")));
    let past = server.call("PATCH", path, r#"{"due_at": "2025-01-01T00:00:00Z"}"#).await;
    assert_eq!((past.status, &past.json()["code"]), (422, &json!("in_the_past")));
    let now = server.ok("PATCH", path, r#"{"due_at": "2025-01-01T00:00:00Z", "past": "fire"}"#).await;
    assert_eq!(now["state"], "ready");
    let far = server.call("PATCH", path, r#"{"delay_ms": 4294967295001}"#).await;
    assert_eq!((far.status, &far.json()["field"]), (400, &json!("delay_ms")));
}

/// Story: a change of the body alone was refused with the advice to say `delay_ms: 0`, which had a message of 48 hours
/// come at once.
#[tokio::test(flavor = "multi_thread")]
async fn patch_without_due_time_keeps_it() {
    let server = Server::start().await;
    let all = r#"{"body": "a", "delay": "48h", "key": "k", "headers": {"a": "1", "b": "2"}, "priority": 7}"#;
    let id = server.enqueue("q", all).await;
    for path in ["/v1/queues/q/keys/k".to_owned(), format!("/v1/messages/{id}")] {
        let before = server.ok("GET", &path, "").await;
        for (patch, name, value) in [
            (json!({"body": "b"}), "body", json!("b")),
            (json!({"body_base64": "/w=="}), "body_base64", json!("/w==")),
            (json!({"headers": {"c": "3"}}), "headers", json!({"c": "3"})),
            (json!({"headers": {}}), "headers", json!({})),
            (json!({"priority": 0}), "priority", json!(0)),
            (json!({"max_attempts": 2}), "max_attempts", json!(2)),
            (json!({"lease_ms": 90_000}), "lease_ms", json!(90_000)),
        ] {
            let generation = server.ok("GET", &path, "").await["generation"].as_u64().expect("generation");
            let patch_if = {
                let mut patch = patch.clone();
                patch["if_generation"] = generation.into();
                patch.to_string()
            };
            let now = server.ok("PATCH", &path, &patch_if).await;
            // The answer has neither body nor headers.
            let seen = server.ok("GET", &path, "").await;
            assert_eq!((&seen[name], &now["generation"]), (&value, &json!(generation + 1)), "{patch}");
            assert_eq!((&now["due_at"], &now["state"]), (&before["due_at"], &json!("scheduled")), "{patch}");
            let stale = server.call("PATCH", &path, &patch_if).await;
            assert_eq!((stale.status, &stale.json()["code"]), (409, &json!("generation_mismatch")));
        }
    }
    server.advance(48 * 3_600_000 - 1);
    assert!(server.reserve("q", "{}").await.is_empty(), "a millisecond early");
    server.advance(1);
    let grant = &server.reserve("q", "{}").await[0];
    assert_eq!((&grant["body_base64"], &grant["lease_ms"]), (&json!("/w=="), &json!(90_000)));
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_patch_never_advises_earlier_delivery() {
    let server = Server::start().await;
    let id = server.enqueue("q", r#"{"body": "a", "delay": "48h", "key": "k"}"#).await;
    let path = format!("/v1/messages/{id}");
    let long = "x".repeat(262_145);
    for (patch, status, code, field) in [
        (json!({}), 400, "bad_request", None),
        (json!({"if_generation": 1}), 400, "bad_request", None),
        (json!({"past": "fire"}), 400, "bad_request", Some("past")),
        (json!({"due_at": "2020-01-01T00:00:00Z"}), 422, "in_the_past", Some("due_at")),
        (json!({"lease_ms": 0}), 400, "bad_request", Some("lease_ms")),
        (json!({"lease_ms": u64::MAX}), 400, "bad_request", Some("lease_ms")),
        (json!({"max_attempts": 0}), 400, "bad_request", Some("max_attempts")),
        (json!({"priority": 4_294_967_296u64}), 400, "bad_request", Some("priority")),
        (json!({"headers": {"a": "x".repeat(16_385)}}), 400, "bad_request", Some("headers")),
        (json!({"body": long}), 413, "body_too_large", Some("body")),
    ] {
        let answer = server.call("PATCH", &path, &patch.to_string()).await;
        let problem = answer.json();
        assert_eq!((answer.status, &problem["code"]), (status, &json!(code)), "{patch} {problem}");
        assert_eq!(problem.get("field"), field.map(|f| json!(f)).as_ref(), "{problem}");
        let detail = problem["detail"].as_str().expect("detail");
        for advice in ["delay_ms: 0", "for now", "at once", "fire"] {
            assert!(!detail.contains(advice), "{detail}");
        }
    }
    let missing = server.call("POST", "/v1/queues/q/messages", r#"{"body": "a"}"#).await;
    assert_eq!(missing.json()["detail"], "delay_ms: one of delay_ms, delay and due_at must be given");
    let now = server.ok("GET", &path, "").await;
    assert_eq!((&now["generation"], &now["due_in_ms"]), (&json!(1), &json!(48 * 3_600_000)));
}

#[tokio::test(flavor = "multi_thread")]
async fn nack_defers_or_dead_letters() {
    let server = Server::start().await;
    let id = server.enqueue("q", r#"{"body": "a", "delay_ms": 0, "max_attempts": 1}"#).await;
    let nack = format!("/v1/messages/{id}/nack");
    for n in 1..=3 {
        let token = server.reserve("q", "{}").await[0]["lease_token"].clone();
        let not_yet = json!({"lease_token": token, "attempt": false, "delay_ms": 0, "reason": "no stock"});
        let answer = server.ok("POST", &nack, &not_yet.to_string()).await;
        assert_eq!(answer["result"], "again", "max_attempts is 1, and the grant is forgiven");
        let now = server.ok("GET", &format!("/v1/messages/{id}"), "").await;
        assert_eq!((&now["attempt"], &now["forgiven"]), (&json!(n), &json!(n)));
    }
    let token = server.reserve("q", "{}").await[0]["lease_token"].clone();
    for (with, field) in [(json!(1), "delay_ms"), (json!(false), "attempt")] {
        let mut wrong = json!({"lease_token": token, "dead": true});
        wrong[field] = with;
        let answer = server.call("POST", &nack, &wrong.to_string()).await;
        assert_eq!((answer.status, &answer.json()["field"]), (400, &json!(field)));
    }
    let dead = json!({"lease_token": token, "dead": true, "reason": "no such order"});
    let answer = server.ok("POST", &nack, &dead.to_string()).await;
    assert_eq!(answer, json!({"result": "dead", "dead_reason": "buried", "durability": "memory"}));
    let now = server.ok("GET", &format!("/v1/messages/{id}"), "").await;
    assert_eq!((&now["state"], &now["attempt"]), (&json!("dead"), &json!(4)));
    assert_eq!(now["history"].as_array().and_then(|h| h.last()).expect("history")["note"], "no such order");
}

/// Story: one token that was none failed the acks of all the others beside it.
#[tokio::test(flavor = "multi_thread")]
async fn batch_acks_are_answered_individually() {
    let server = Server::start().await;
    for _ in 0..2 {
        server.enqueue("q", r#"{"body": "a", "delay_ms": 0}"#).await;
    }
    let grants = server.reserve("q", r#"{"max": 2}"#).await;
    let of = |n: usize| json!({"id": grants[n]["id"], "lease_token": grants[n]["lease_token"]});
    let wrong = json!({"id": grants[1]["id"], "lease_token": "no token"});
    let asked = json!({"messages": [of(0), wrong, of(0), of(1), {"id": "99", "lease_token": NO_TOKEN}]});
    let answer = server.ok("POST", "/v1/ack", &asked.to_string()).await;
    let word = |n: usize| {
        let result = &answer["results"][n];
        result.get("result").or(result.get("code")).cloned().unwrap_or_default()
    };
    let words: Vec<Value> = (0..5).map(word).collect();
    assert_eq!(words, ["acked", "bad_request", "already", "acked", "message_not_found"]);
    let levels: Vec<bool> = (0..5).map(|n| answer["results"][n]["durability"] == "memory").collect();
    assert_eq!(levels, [true, false, true, true, false]);
    assert_eq!(answer["results"][1]["field"], "messages[1].lease_token");
}

#[tokio::test(flavor = "multi_thread")]
async fn past_due_time_can_fire_immediately() {
    let server = Server::start().await;
    let body = r#"{"body": "a", "due_at": "2020-01-01T00:00:00Z", "past": "fire"}"#;
    let answer = server.call("POST", "/v1/queues/q/messages", body).await;
    assert_eq!(answer.status, 201);
    let now = server.reserve("q", "").await;
    assert_eq!(now[0]["due_at"], "2026-01-01T00:00:00.000Z", "not late");
    let expired = body.replace("\"past\"", "\"expires_at\": \"2025-01-01T00:00:00Z\", \"past\"");
    let refused = server.call("POST", "/v1/queues/q/messages", &expired).await;
    assert_eq!((refused.status, &refused.json()["field"]), (422, &json!("expires_at")));
    let kept = server.call("POST", "/v1/queues/q/messages", &expired.replace("fire", "keep")).await;
    assert_eq!((kept.status, &kept.json()["due_at"]), (201, &json!("2020-01-01T00:00:00.000Z")));
}

#[tokio::test(flavor = "multi_thread")]
async fn superseded_message_ends_at_nack() {
    let server = Server::start().await;
    server.ok("PATCH", "/v1/queues/q/config", r#"{"keep_done": "1h"}"#).await;
    let messages = "/v1/queues/q/messages";
    let put =
        |delay: &str| json!({"body": "a", "delay": delay, "key": "k", "if_exists": "supersede"}).to_string();
    let old = server.enqueue("q", &put("0s")).await;
    let token = server.reserve("q", "{}").await[0]["lease_token"].clone();
    let new = server.call("POST", messages, &put("1h")).await.json();
    assert_eq!((&new["superseded"], new.get("replaced")), (&json!(old), None));
    let path = format!("/v1/messages/{old}");
    let shown = server.ok("GET", &path, "").await;
    assert_eq!((&shown["state"], &shown["key"]), (&json!("leased"), &json!(null)));
    assert_eq!(shown["superseded_by"], new["id"]);
    assert_eq!(server.ok("GET", "/v1/queues/q/keys/k", "").await["id"], new["id"]);
    let refused = server.call("DELETE", &path, "").await;
    assert_eq!((refused.status, &refused.json()["code"]), (409, &json!("leased")));
    let proof = json!({"lease_token": token}).to_string();
    let settled = server.ok("POST", &format!("{path}/nack"), &proof).await;
    assert_eq!(settled["result"], "superseded");
    assert_eq!(server.ok("POST", &format!("{path}/ack"), &proof).await["result"], "already");
    let done = server.ok("GET", &path, "").await;
    assert_eq!((&done["state"], &done["outcome"]), (&json!("done"), &json!("superseded")));
    let totals = server.ok("GET", "/v1/queues/q", "").await["totals"].clone();
    assert_eq!((&totals["superseded"], &totals["died"]), (&json!(1), &json!(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn extend_pushes_the_deadline() {
    let server = Server::start().await;
    let id = server.enqueue("q", r#"{"body": "a", "delay_ms": 0, "lease_ms": 1000}"#).await;
    let token = server.reserve("q", "{}").await[0]["lease_token"].clone();
    server.advance(900);
    let path = format!("/v1/messages/{id}/extend");
    let body = json!({"lease_token": token, "lease_ms": 5_000}).to_string();
    let extended = server.ok("POST", &path, &body).await;
    assert_eq!(extended["lease_until"], "2026-01-01T00:00:05.900Z");
    let proof = json!({"lease_token": token}).to_string();
    let extended = server.ok("POST", &path, &proof).await;
    assert_eq!(extended["lease_until"], "2026-01-01T00:00:05.900Z", "no earlier");
    server.advance(4_500);
    let extended = server.ok("POST", &path, &proof).await;
    assert_eq!(extended["lease_until"], "2026-01-01T00:00:06.400Z", "as the message says");
    let long = json!({"lease_token": token, "lease_ms": u64::MAX}).to_string();
    let answer = server.call("POST", &path, &long).await;
    assert_eq!((answer.status, &answer.json()["field"]), (400, &json!("lease_ms")));
}
