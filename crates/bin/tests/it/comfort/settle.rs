//! Several queues in one reserve, and several messages in one nack or extend.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::fixture::Server;

/// Reserves without waiting; queue and body of each grant.
async fn granted(server: &Server, request: &Value) -> Vec<(String, String)> {
    let done = server.ok("POST", "/v1/reserve", &request.to_string()).await;
    let text = |grant: &Value, name: &str| grant[name].as_str().expect("text").to_owned();
    let grants = done["messages"].as_array().expect("messages");
    grants.iter().map(|grant| (text(grant, "queue"), text(grant, "body"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn multi_queue_reserve_takes_best() {
    let server = Server::start_shards(1).await;
    for (queue, body, priority) in
        [("a", "5", 5), ("b", "1", 1), ("c", "3", 3), ("a", "2", 2), ("b", "4", 4), ("other", "0", 0)]
    {
        server.enqueue(queue, &json!({"body": body, "delay_ms": 0, "priority": priority}).to_string()).await;
    }
    let of = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(queue, body)| ((*queue).to_owned(), (*body).to_owned())).collect::<Vec<_>>()
    };
    let three = json!([{"queue": "a", "max": 1}, {"queue": "b"}, {"queue": "c"}]);
    let best = granted(&server, &json!({"queues": three})).await;
    assert_eq!(best, of(&[("b", "1")]), "one by default");
    let rest = granted(&server, &json!({"queues": three, "max": 10})).await;
    assert_eq!(rest, of(&[("a", "2"), ("c", "3"), ("b", "4")]), "one of a");
    let last = granted(&server, &json!({"queues": three, "max": 10, "lease_ms": 5_000})).await;
    assert_eq!(last, of(&[("a", "5")]));
    assert_eq!(granted(&server, &json!({"queues": three, "max": 10})).await, []);
}

/// Over several shards the order is that of each shard, over all queues.
#[tokio::test(flavor = "multi_thread")]
async fn each_shard_grants_its_best_first() {
    const SHARDS: u64 = 3;
    let server = Server::start_shards(3).await;
    for n in 0..60 {
        let (queue, priority) = (["a", "b", "c"][n % 3], n * 37 % 60);
        let message = json!({"body": "x", "delay_ms": 0, "priority": priority, "key": format!("k{n}")});
        server.enqueue(queue, &message.to_string()).await;
    }
    let asked = json!({"queues": [{"queue": "a"}, {"queue": "b"}, {"queue": "c"}], "max": 7}).to_string();
    let mut of_shards: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    loop {
        let done = server.ok("POST", "/v1/reserve", &asked).await;
        let grants = done["messages"].as_array().expect("messages");
        if grants.is_empty() {
            break;
        }
        for grant in grants {
            let id: u64 = grant["id"].as_str().expect("id").parse().expect("a number");
            of_shards.entry(id % SHARDS).or_default().push(grant["priority"].as_u64().expect("priority"));
        }
    }
    assert_eq!(of_shards.values().map(Vec::len).sum::<usize>(), 60);
    assert_eq!(of_shards.len(), 3, "each shard has some");
    for (shard, priorities) in of_shards {
        assert!(priorities.is_sorted(), "{shard}: {priorities:?}");
    }
}

/// A reserve that waits is served by whichever queue has a message first.
#[tokio::test(flavor = "multi_thread")]
async fn reserve_waits_on_all_its_queues() {
    let server = Server::start().await;
    let waits = json!({"queues": [{"queue": "a"}, {"queue": "b", "max": 2}], "wait_ms": 600_000, "max": 5});
    let request = waits.to_string();
    let waiting = server.ok("POST", "/v1/reserve", &request);
    let enqueue = async {
        server.until("it waits on a", "/v1/queues/a", |queue| queue["waiters"] == 1).await;
        server.until("it waits on b", "/v1/queues/b", |queue| queue["waiters"] == 1).await;
        server.enqueue("b", r#"{"body": "x", "delay_ms": 0}"#).await;
    };
    let (grants, ()) = tokio::join!(waiting, enqueue);
    assert_eq!(
        (&grants["messages"][0]["queue"], grants["messages"].as_array().map(Vec::len)),
        (&json!("b"), Some(1))
    );
}

/// With several shards, too, no queue gives more than its number.
#[tokio::test(flavor = "multi_thread")]
async fn queue_maximum_holds_over_shards() {
    let server = Server::start_shards(5).await;
    for n in 0..30 {
        for queue in ["a", "b"] {
            server
                .enqueue(queue, &json!({"body": "x", "delay_ms": 0, "key": n.to_string()}).to_string())
                .await;
        }
    }
    let mut total: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..200 {
        let asked = json!({"queues": [{"queue": "a", "max": 2}, {"queue": "b", "max": 7}], "max": 8});
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let grants = granted(&server, &asked).await;
        assert!(grants.len() <= 8);
        grants.into_iter().for_each(|(queue, _)| *counts.entry(queue).or_default() += 1);
        assert!(
            counts.get("a").is_none_or(|n| *n <= 2) && counts.get("b").is_none_or(|n| *n <= 7),
            "{counts:?}"
        );
        counts.into_iter().for_each(|(queue, n)| *total.entry(queue).or_default() += n);
        if total.values().sum::<usize>() == 60 {
            return;
        }
    }
    panic!("not all were granted: {total:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_reserve_names_its_queue() {
    let server = Server::start().await;
    let many: Vec<Value> = (0..101).map(|n| json!({"queue": format!("q{n}")})).collect();
    for (request, field) in [
        (json!({}), "queues"),
        (json!({"queues": []}), "queues"),
        (json!({"queues": many}), "queues"),
        (json!({"queues": [{"queue": "a"}, {"queue": "b c"}]}), "queues[1].queue"),
        (json!({"queues": [{"queue": "a"}, {"queue": "a"}]}), "queues[1].queue"),
        (json!({"queues": [{"queue": "#a"}]}), "queues[0].queue"),
        (json!({"queues": [{"queue": "a", "max": 0}]}), "queues[0].max"),
        (json!({"queues": [{"queue": "a", "max": 10_001}]}), "queues[0].max"),
        (json!({"queues": [{"queue": "a", "least": 1}]}), "queues[0].least"),
        (json!({"queues": [{}]}), "queues[0].queue"),
        (json!({"queues": [{"queue": "a"}], "wait_ms": 600_001}), "wait_ms"),
        (json!({"queues": [{"queue": "a"}], "max": 10_001}), "max"),
        (json!({"queues": [{"queue": "a"}], "wait": 1}), "wait"),
    ] {
        let refused = server.call("POST", "/v1/reserve", &request.to_string()).await;
        assert_eq!(
            (refused.status, refused.json()["field"].as_str()),
            (400, Some(field)),
            "{request}: {refused:?}"
        );
    }
}

/// Grants of three messages of a queue: id and token of each.
async fn three(server: &Server) -> Vec<(String, String)> {
    for n in 0..3 {
        server.enqueue("q", &json!({"body": n.to_string(), "delay_ms": 0, "priority": n}).to_string()).await;
    }
    let mut grants = Vec::new();
    while grants.len() < 3 {
        grants.extend(server.reserve("q", r#"{"max": 3}"#).await);
    }
    let text = |grant: &Value, name: &str| grant[name].as_str().expect("text").to_owned();
    grants.iter().map(|grant| (text(grant, "id"), text(grant, "lease_token"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_nacks_have_a_result_each() {
    let server = Server::start().await;
    let held = three(&server).await;
    let request = json!({"messages": [
        {"id": held[0].0, "lease_token": held[0].1, "delay_ms": 60_000, "reason": "later"},
        {"id": held[1].0, "lease_token": held[1].1, "dead": true, "reason": "broken"},
        {"id": held[2].0, "lease_token": "x"},
        {"id": held[2].0, "lease_token": held[2].1, "delay_ms": 0, "attempt": false},
        {"id": held[0].0, "lease_token": held[0].1},
        {"id": "999999999", "lease_token": held[0].1},
    ]});
    let done = server.ok("POST", "/v1/nack", &request.to_string()).await;
    let results = done["results"].as_array().expect("results");
    let words: Vec<&str> = results
        .iter()
        .map(|r| r["result"].as_str().or(r["field"].as_str()).or(r["code"].as_str()).unwrap())
        .collect();
    let expected = ["again", "dead", "messages[2].lease_token", "again", "lease_lost", "message_not_found"];
    assert_eq!(words, expected);
    assert_eq!(results[1]["dead_reason"], "buried");
    assert!(
        results[2]["detail"].as_str().expect("detail").starts_with("messages[2].lease_token: "),
        "{results:?}"
    );
    let last = server.ok("GET", &format!("/v1/messages/{}", held[2].0), "").await;
    assert_eq!((&last["forgiven"], &last["state"]), (&json!(1), &json!("ready")));
    let good = json!({"id": held[0].0, "lease_token": held[0].1});
    for (bad, field) in [
        (json!({"id": "1", "lease_token": held[0].1, "token": "x"}), "messages[1].token"),
        (json!({"id": "1", "lease_token": held[0].1, "dead": true, "delay_ms": 1}), "messages[1].delay_ms"),
        (json!({"id": "1", "lease_token": held[0].1, "dead": true, "attempt": false}), "messages[1].attempt"),
        (
            json!({"id": "1", "lease_token": held[0].1, "delay_ms": 5_000_000_000_000_u64}),
            "messages[1].delay_ms",
        ),
    ] {
        let refused = server.call("POST", "/v1/nack", &json!({"messages": [good, bad]}).to_string()).await;
        assert_eq!((refused.status, refused.json()["field"].as_str()), (400, Some(field)), "{bad}");
    }
    assert_eq!(server.ok("POST", "/v1/nack", r#"{"messages": []}"#).await, json!({"results": []}));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_extensions_have_a_result_each() {
    let server = Server::start().await;
    let held = three(&server).await;
    let request = json!({"messages": [
        {"id": held[0].0, "lease_token": held[0].1, "lease_ms": 3_600_000},
        {"id": held[1].0, "lease_token": held[1].1},
        {"id": held[2].0, "lease_token": held[1].1},
        {"id": held[2].0, "lease_token": "x"},
    ]});
    let done = server.ok("POST", "/v1/extend", &request.to_string()).await;
    assert_eq!(done["results"][0]["lease_until"], "2026-01-01T01:00:00.000Z");
    assert_eq!(done["results"][1]["lease_until"], "2026-01-01T00:00:30.000Z");
    assert_eq!(done["results"][2]["code"], "lease_lost");
    assert_eq!(done["results"][3]["field"], "messages[3].lease_token");
    let long = json!({"messages": [{"id": held[2].0, "lease_token": held[2].1, "lease_ms": 99_999_999_999_999_u64}]});
    let refused = server.call("POST", "/v1/extend", &long.to_string()).await;
    assert_eq!((refused.status, refused.json()["field"].as_str()), (400, Some("messages[0].lease_ms")));
    server.advance(31_000);
    server.until("two leases have ended", "/v1/queues/q", |queue| queue["counts"]["leased"] == 1).await;
    let many: Vec<Value> = (0..10_001).map(|n| json!({"id": n, "lease_token": held[0].1})).collect();
    let refused = server.call("POST", "/v1/extend", &json!({"messages": many}).to_string()).await;
    assert_eq!(refused.status, 413);
}
