//! What a token that is limited to queues sees of the others: nothing, not even that it is there.

use std::sync::Arc;

use duewheel::Policy;
use duewheel::core::engine::Quota;
use duewheel_server::auth::Guard;
use duewheel_server::http::HttpLimits;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{bearer, new_token};
use crate::fixture::{Answer, Server};

const EVERYTHING: [&str; 2] = ["--scope", "enqueue,consume,cancel,admin,metrics"];

struct Shop {
    server: Server,
    /// For queues that begin with `mine/` or `me`.
    tenant: String,
    /// For all.
    operator: String,
    _dir: TempDir,
}

impl Shop {
    async fn open() -> Shop {
        let dir = TempDir::new().expect("dir");
        let file = dir.path().join("tokens.toml");
        let tenant = new_token(
            &file,
            &[&["--name", "tenant"][..], &EVERYTHING, &["--queue", "mine/", "--queue", "me"]].concat(),
        );
        let operator = new_token(&file, &[&["--name", "operator"][..], &EVERYTHING].concat());
        let guard = Arc::new(Guard::of(file).expect("tokens"));
        let server =
            Server::start_guarded(Policy::default(), HttpLimits::default(), guard, "".parse().expect("none"))
                .await;
        Shop { server, tenant, operator, _dir: dir }
    }

    async fn call(&self, token: &str, method: &str, path: &str, body: &str) -> Answer {
        let head = format!("{}content-length: {}\r\n", bearer(token), body.len());
        self.server.raw(method, path, &head, body.as_bytes()).await
    }

    async fn ok(&self, token: &str, method: &str, path: &str, body: &str) -> Value {
        let answer = self.call(token, method, path, body).await;
        assert!((200..300).contains(&answer.status), "{method} {path}: {answer:?}");
        answer.json()
    }

    async fn enqueue(&self, queue: &str) -> String {
        let path = format!("/v1/queues/{}/messages", queue.replace('/', "%2F"));
        let done = self.ok(&self.operator, "POST", &path, r#"{"body": "a", "delay_ms": 0}"#).await;
        done["id"].as_str().expect("id").to_owned()
    }

    /// Leases one; id and lease token.
    async fn lease(&self, queue: &str) -> (String, String) {
        let path = format!("/v1/queues/{}/reserve", queue.replace('/', "%2F"));
        let done = self.ok(&self.operator, "POST", &path, "").await;
        let text = |name: &str| done["messages"][0][name].as_str().expect("granted").to_owned();
        (text("id"), text("lease_token"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_id_looks_nonexistent() {
    let shop = Shop::open().await;
    shop.enqueue("theirs").await;
    let (leased, lease_token) = shop.lease("theirs").await;
    let ready = shop.enqueue("theirs").await;
    shop.enqueue("theirs/2").await;
    let (settled, settled_token) = shop.lease("theirs/2").await;
    let ack = format!("/v1/messages/{settled}/ack");
    shop.ok(&shop.operator, "POST", &ack, &json!({"lease_token": settled_token}).to_string()).await;

    let with_token = json!({"lease_token": lease_token}).to_string();
    for (method, what, body) in [
        ("GET", "", ""),
        ("DELETE", "", ""),
        ("PATCH", "", r#"{"delay_ms": 0, "body": "mine now"}"#),
        ("POST", "/fire", ""),
        ("POST", "/ack", with_token.as_str()),
        ("POST", "/nack", with_token.as_str()),
        ("POST", "/extend", with_token.as_str()),
    ] {
        let never = shop.call(&shop.tenant, method, &format!("/v1/messages/999999{what}"), body).await;
        assert_eq!(
            (never.status, &never.json()["code"]),
            (404, &json!("message_not_found")),
            "{method} {what}"
        );
        for id in [&leased, &ready, &settled] {
            let theirs = shop.call(&shop.tenant, method, &format!("/v1/messages/{id}{what}"), body).await;
            assert_eq!((theirs.status, theirs.body), (404, never.body.clone()), "{method} {id}{what}");
        }
    }
    let batch = json!({"messages": [
        {"id": leased, "lease_token": lease_token}, {"id": settled, "lease_token": settled_token},
        {"id": "999999", "lease_token": lease_token},
    ]});
    for path in ["/v1/ack", "/v1/nack", "/v1/extend"] {
        let done = shop.ok(&shop.tenant, "POST", path, &batch.to_string()).await;
        for (n, result) in done["results"].as_array().expect("results").iter().enumerate() {
            assert_eq!(
                (&result["status"], &result["code"]),
                (&json!(404), &json!("message_not_found")),
                "{path} {n}: {done}"
            );
            assert_eq!(result["detail"], done["results"][2]["detail"]);
        }
    }
    let ids = json!({"ids": [leased, ready, settled]}).to_string();
    for what in ["cancel", "redrive"] {
        let done = shop.ok(&shop.tenant, "POST", &format!("/v1/queues/mine%2Fq/{what}"), &ids).await;
        let results = done["results"].as_array().expect("results");
        assert!(results.len() == 3 && results.iter().all(|r| r["code"] == "message_not_found"), "{done}");
    }

    // Nothing of that was applied: the lease still counts, and the other message is as it was.
    let seen = shop.ok(&shop.operator, "GET", &format!("/v1/messages/{ready}"), "").await;
    assert_eq!(
        (&seen["state"], &seen["body"], &seen["generation"]),
        (&json!("ready"), &json!("a"), &json!(1))
    );
    let seen = shop.ok(&shop.operator, "GET", &format!("/v1/messages/{leased}"), "").await;
    assert_eq!((&seen["state"], &seen["attempt"]), (&json!("leased"), &json!(1)));
    let done = shop.ok(&shop.operator, "POST", "/v1/ack", &batch.to_string()).await;
    assert_eq!(done["results"][0]["result"], "acked", "{done}");
    assert_eq!(done["results"][1]["result"], "already", "{done}");
}

/// Bodies that some call takes, and bodies that none takes; `TOKEN` is a lease token.
const BODIES: [&str; 14] = [
    "",
    "{}",
    r#"{"lease_token": "TOKEN"}"#,
    r#"{"lease_token": "TOKEN", "lease_ms": 1000}"#,
    r#"{"delay_ms": 0}"#,
    "{",
    "[]",
    "null",
    r#"{"lease_token": 1}"#,
    r#"{"lease_token": "no token"}"#,
    r#"{"lease_token": "TOKEN", "unknown": 1}"#,
    r#"{"lease_token": "TOKEN", "delay_ms": -1}"#,
    r#"{"delay_ms": 0, "delay": "1s"}"#,
    "\u{1}",
];

/// Story: an ack with a malformed body was answered 404 where the id was another tenant's, because it was looked up
/// before the body was read, and 400 where nothing was pending under the id: whoever may consume one queue could count
/// the messages of all.
#[tokio::test(flavor = "multi_thread")]
async fn answers_never_reveal_foreign_ids() {
    let shop = Shop::open().await;
    shop.enqueue("theirs").await;
    let (leased, lease_token) = shop.lease("theirs").await;
    let ready = shop.enqueue("theirs").await;
    let contract = shop.ok(&shop.tenant, "GET", "/openapi.json", "").await;
    let paths = contract["paths"].as_object().expect("paths");
    let mut routes: Vec<(String, String)> = Vec::new();
    for (path, methods) in paths.iter().filter(|(path, _)| path.contains("{id}")) {
        let methods = methods.as_object().expect("methods").keys();
        let methods =
            methods.filter(|name| ["get", "post", "put", "patch", "delete"].contains(&name.as_str()));
        routes.extend(methods.map(|method| (method.to_uppercase(), path.clone())));
    }
    assert!(routes.len() >= 7, "{routes:?}");
    let head = |answer: &Answer| -> Vec<String> {
        let lines = answer.head.lines().filter(|line| !line.to_lowercase().starts_with("date:"));
        lines.map(str::to_owned).collect()
    };
    // As long as the other: where a fault is in a line is counted in bytes.
    let nobodys = |id: &str| {
        let candidates = ["9", "8", "7"].map(|digit| digit.repeat(id.len()));
        candidates.into_iter().find(|other| ![&leased, &ready].contains(&other)).expect("an id")
    };
    let mut seen = std::collections::BTreeSet::new();
    for (method, path) in &routes {
        for body in BODIES {
            let body = body.replace("TOKEN", &lease_token);
            for more in ["", "content-type: text/plain\r\n", "content-encoding: gzip\r\n", "?unknown=1"] {
                let (query, more) = if more.starts_with('?') { (more, "") } else { ("", more) };
                let headers = format!("{}{more}content-length: {}\r\n", bearer(&shop.tenant), body.len());
                let ask = async |id: &str| {
                    let path = format!("{}{query}", path.replace("{id}", id));
                    shop.server.raw(method, &path, &headers, body.as_bytes()).await
                };
                for id in [&leased, &ready] {
                    let (never, theirs) = (ask(&nobodys(id)).await, ask(id).await);
                    let at = format!("{method} {path}{query} {more:?} {body:?}");
                    assert_eq!((head(&theirs), &theirs.body), (head(&never), &never.body), "{at}");
                    seen.insert(never.status);
                }
            }
        }
    }
    assert!(seen.contains(&400) && seen.contains(&404), "{seen:?}");

    // Ids in bodies.
    for (path, item) in [
        ("/v1/ack", r#"{"messages": [{"id": "ID", "lease_token": "TOKEN"}]}"#),
        ("/v1/ack", r#"{"messages": [{"id": "ID", "lease_token": "no token"}]}"#),
        ("/v1/ack", r#"{"messages": [{"id": "ID"}]}"#),
        ("/v1/nack", r#"{"messages": [{"id": "ID", "lease_token": "TOKEN"}]}"#),
        ("/v1/nack", r#"{"messages": [{"id": "ID", "lease_token": "no token"}]}"#),
        ("/v1/nack", r#"{"messages": [{"id": "ID", "lease_token": "TOKEN", "dead": true, "delay_ms": 1}]}"#),
        ("/v1/extend", r#"{"messages": [{"id": "ID", "lease_token": "TOKEN", "lease_ms": 1000}]}"#),
        ("/v1/extend", r#"{"messages": [{"id": "ID", "lease_token": "no token"}]}"#),
        ("/v1/queues/mine%2Fq/cancel", r#"{"ids": ["ID"]}"#),
        ("/v1/queues/mine%2Fq/cancel", r#"{"ids": ["ID", -1]}"#),
        ("/v1/queues/mine%2Fq/redrive", r#"{"ids": ["ID"]}"#),
        ("/v1/queues/mine%2Fq/redrive", r#"{"ids": ["ID"], "unknown": 1}"#),
    ] {
        let ask = async |id: &str| {
            let body = item.replace("ID", id).replace("TOKEN", &lease_token);
            let answer = shop.call(&shop.tenant, "POST", path, &body).await;
            (answer.status, String::from_utf8(answer.body).expect("text").replace(&format!("\"{id}\""), "ID"))
        };
        for id in [&leased, &ready] {
            assert_eq!(ask(id).await, ask(&nobodys(id)).await, "{path} {item}");
        }
    }

    // Nothing of that was applied.
    for (id, state) in [(&leased, "leased"), (&ready, "ready")] {
        let seen = shop.ok(&shop.operator, "GET", &format!("/v1/messages/{id}"), "").await;
        assert_eq!((&seen["state"], &seen["generation"]), (&json!(state), &json!(1)));
    }
}

/// Every queue that a reserve names must be within reach: one that is not makes it a refusal, and nothing is granted.
#[tokio::test(flavor = "multi_thread")]
async fn multi_queue_reserve_checks_each_permission() {
    let shop = Shop::open().await;
    for queue in ["mine/q", "mine/r", "theirs"] {
        shop.enqueue(queue).await;
    }
    let over = |names: &[&str]| {
        let queues: Vec<_> = names.iter().map(|name| json!({"queue": name})).collect();
        json!({"queues": queues, "max": 10}).to_string()
    };
    for names in
        [&["mine/q", "theirs"][..], &["theirs", "mine/q"], &["mine/q", "mine/r", "nothing"], &["theirs"]]
    {
        let refused = shop.call(&shop.tenant, "POST", "/v1/reserve", &over(names)).await;
        assert_eq!((refused.status, &refused.json()["code"]), (403, &json!("forbidden")), "{names:?}");
    }
    for queue in ["mine%2Fq", "mine%2Fr", "theirs"] {
        let seen = shop.ok(&shop.operator, "GET", &format!("/v1/queues/{queue}"), "").await;
        assert_eq!(seen["counts"]["ready"], 1, "{queue}");
    }
    let granted = shop.ok(&shop.tenant, "POST", "/v1/reserve", &over(&["mine/q", "mine/r"])).await;
    assert!(!granted["messages"].as_array().expect("messages").is_empty(), "{granted}");
    let granted = shop.ok(&shop.operator, "POST", "/v1/reserve", &over(&["mine/q", "theirs"])).await;
    assert!(!granted["messages"].as_array().expect("messages").is_empty(), "{granted}");
}

/// A quota tells how much a tenant has: a token sees those of its own queues, and none that it shares with others.
#[tokio::test(flavor = "multi_thread")]
async fn token_sees_only_own_quotas() {
    let shop = Shop::open().await;
    let prefixes = ["", "m", "mine/", "mine/vip", "theirs"];
    let quota =
        |prefix: &str| Quota { messages: Some(9), ..Quota { prefix: prefix.into(), ..Quota::default() } };
    shop.server.wheel.set_quotas(prefixes.map(quota).to_vec()).expect("quotas");
    let seen = async |token: &str| {
        let shown = shop.ok(token, "GET", "/v1/quotas", "").await;
        let all = shown["quotas"].as_array().expect("quotas").clone();
        all.iter().map(|one| one["prefix"].as_str().expect("prefix").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(seen(&shop.operator).await.len(), prefixes.len());
    assert_eq!(seen(&shop.tenant).await, ["mine/", "mine/vip"]);

    // Neither does a refusal tell the use of a quota that it shares.
    let quota =
        |prefix: &str| Quota { bytes: Some(1), ..Quota { prefix: prefix.into(), ..Quota::default() } };
    shop.server.wheel.set_quotas(["m", "mine/vip"].map(quota).to_vec()).expect("quotas");
    let large = r#"{"body": "large", "delay_ms": 0}"#;
    let refused = async |token: &str, queue: &str| {
        let answer = shop.call(token, "POST", &format!("/v1/queues/{queue}/messages"), large).await;
        let head = format!(
            "{}content-type: application/x-ndjson\r\ncontent-length: {}\r\n",
            bearer(token),
            large.len()
        );
        let path = format!("/v1/queues/{queue}/messages");
        let line = shop.server.raw("POST", &path, &head, large.as_bytes()).await.results().remove(0);
        let problem = answer.json();
        for told in [&problem, &line] {
            assert_eq!((&told["code"], &told["resource"]), (&json!("over_quota"), &json!("bytes")), "{told}");
        }
        assert_eq!(problem["limit"], line["limit"]);
        let detail = problem["detail"].as_str().expect("detail").contains("\"m\"");
        (problem["quota"].as_str().map(str::to_owned), problem["limit"].as_u64(), detail)
    };
    assert_eq!(refused(&shop.tenant, "mine%2Fq").await, (None, None, false));
    assert_eq!(refused(&shop.operator, "mine%2Fq").await, (Some("m".to_owned()), Some(1), true));
    assert_eq!(refused(&shop.tenant, "mine%2Fvip").await, (Some("mine/vip".to_owned()), Some(1), false));
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_of_reachable_queues() {
    let shop = Shop::open().await;
    shop.enqueue("mine/q").await;
    for (query, status) in [("?queue=mine%2Fq", 200), ("?queue=theirs", 403), ("", 403)] {
        let path = format!("/v1/history{query}");
        assert_eq!(shop.call(&shop.tenant, "GET", &path, "").await.status, status, "{path}");
        assert_eq!(shop.call(&shop.operator, "GET", &path, "").await.status, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_ack_is_answered_within_reach() {
    let shop = Shop::open().await;
    for (queue, status) in [("mine/q", 200), ("theirs", 404)] {
        shop.enqueue(queue).await;
        let (id, token) = shop.lease(queue).await;
        let (path, proof) = (format!("/v1/messages/{id}/ack"), json!({"lease_token": token}).to_string());
        assert_eq!(shop.ok(&shop.operator, "POST", &path, &proof).await["result"], "acked");
        let again = shop.call(&shop.tenant, "POST", &path, &proof).await;
        assert_eq!(again.status, status, "{queue}: {}", again.json());
        let batch = json!({"messages": [{"id": id, "lease_token": token}]}).to_string();
        let many = shop.ok(&shop.tenant, "POST", "/v1/ack", &batch).await;
        let already = json!({"id": id, "result": "already", "durability": "memory"});
        assert_eq!(many["results"][0] == already, status == 200, "{many}");
        let other = json!({"lease_token": "000000010000000000000000"}).to_string();
        let lost = shop.call(&shop.tenant, "POST", &path, &other).await;
        assert_eq!((lost.status, &lost.json()["code"]), (404, &json!("message_not_found")), "{queue}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limited_token_works_fully_within_reach() {
    let shop = Shop::open().await;
    shop.enqueue("theirs").await;
    let (foreign, foreign_token) = shop.lease("theirs").await;
    for n in 0..3 {
        shop.enqueue("mine/q").await;
        let (id, token) = shop.lease("mine/q").await;
        let batch = json!({"messages": [
            {"id": foreign, "lease_token": foreign_token}, {"id": id, "lease_token": token}, {"id": id, "lease_token": token},
        ]});
        let done = shop.ok(&shop.tenant, "POST", "/v1/ack", &batch.to_string()).await;
        let results: Vec<&Value> = done["results"].as_array().expect("results").iter().collect();
        assert_eq!((&results[0]["id"], &results[0]["status"]), (&json!(foreign), &json!(404)), "{n}: {done}");
        assert_eq!((&results[1]["id"], &results[1]["result"]), (&json!(id), &json!("acked")), "{done}");
        assert_eq!(results[2]["result"], "already", "the same one again: {done}");
    }
    shop.enqueue("mine/q").await;
    let (id, token) = shop.lease("mine/q").await;
    let body = json!({"lease_token": token}).to_string();
    let call = |what: &'static str| {
        shop.ok(
            &shop.tenant,
            "POST",
            Box::leak(format!("/v1/messages/{id}/{what}").into()),
            Box::leak(body.clone().into()),
        )
    };
    assert_eq!(call("extend").await["result"], "extended");
    assert_eq!(call("nack").await["result"], "again");
    assert_eq!(shop.ok(&shop.tenant, "GET", &format!("/v1/messages/{id}"), "").await["attempt"], 1);
    assert_eq!(
        shop.ok(&shop.tenant, "DELETE", &format!("/v1/messages/{id}"), "").await["result"],
        "cancelled"
    );
}

/// `me` is a queue, and the beginning of others; `mf` comes behind them, `mine` and `a` are not within reach.
#[tokio::test(flavor = "multi_thread")]
async fn queue_pages_list_reachable_queues_only() {
    let shop = Shop::open().await;
    for queue in ["a", "me", "me-2", "mf", "mine", "mine/1", "mine/2", "mine0", "z"] {
        shop.enqueue(queue).await;
    }
    let wanted = ["me", "me-2", "mine/1", "mine/2"];
    for limit in 1..=5 {
        let (mut seen, mut after) = (Vec::new(), String::new());
        loop {
            let page = shop.ok(&shop.tenant, "GET", &format!("/v1/queues?limit={limit}{after}"), "").await;
            let names = page["queues"].as_array().expect("queues").iter();
            let names: Vec<String> = names.map(|q| q["queue"].as_str().expect("name").to_owned()).collect();
            assert!(names.len() <= limit);
            seen.extend(names);
            match page["next"].as_str() {
                Some(next) => after = format!("&after={}", next.replace('/', "%2F")),
                None => break,
            }
        }
        assert_eq!(seen, wanted, "pages of {limit}");
    }
    for (after, first) in [("a", "me"), ("mf", "mine/1"), ("mine", "mine/1"), ("mine/15", "mine/2")] {
        let path = format!("/v1/queues?limit=1&after={}", after.replace('/', "%2F"));
        let page = shop.ok(&shop.tenant, "GET", &path, "").await;
        assert_eq!(page["queues"][0]["queue"], first, "after {after}");
    }
    let page = shop.ok(&shop.tenant, "GET", "/v1/queues?after=z", "").await;
    assert_eq!(page["queues"], json!([]));
    let all = shop.ok(&shop.operator, "GET", "/v1/queues", "").await;
    assert_eq!(all["queues"].as_array().map(Vec::len), Some(9));
}

/// Percent-encoding must not lead around the check, nor a path that a proxy would understand otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn path_encoding_cannot_escape_reach() {
    let shop = Shop::open().await;
    shop.enqueue("theirs").await;
    for (path, status) in [
        ("/v1/queues/theirs/messages", 403),
        ("/v1/queues/%74heirs/messages", 403),
        ("/v1/queues/mine%2F..%2F..%2Ftheirs/messages", 200),
        ("/v1/queues/mine/../theirs/messages", 404),
        ("/v1/queues/mine%2F../theirs/messages", 404),
        ("/v1/queues/mine%2Fq%00theirs/messages", 400),
        ("//v1/queues/theirs/messages", 404),
        ("/v1/queues/theirs/messages?state=ready", 403),
        ("/v1/queues/theirs%3Fmine%2F/messages", 400),
        ("/v1//queues/theirs/messages", 404),
    ] {
        let answer = shop.call(&shop.tenant, "GET", path, "").await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        assert!(!String::from_utf8_lossy(&answer.body).contains("\"body\""), "{path}");
    }
}
