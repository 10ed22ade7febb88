//! A server in this process, with virtual time.

use std::collections::BTreeSet;
use std::sync::Arc;

use duewheel::{Duewheel, Policy, VirtualClock};
use duewheel_server::auth::{Guard, Hosts};
use duewheel_server::http::HttpLimits;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::stream::{EventReader, ReadEvent};
use crate::fixture::Server;
use crate::security::{bearer, new_token};

async fn follow(server: &Server, path: &str) -> EventReader {
    EventReader::open(&server.address.to_string(), path, "").await
}

fn brief(events: &[ReadEvent]) -> Vec<String> {
    events.iter().map(ReadEvent::brief).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn message_events_arrive_once_in_order() {
    let server = Server::start().await;
    let mut reader = follow(&server, "/v1/events").await;
    let id = server
        .enqueue("q", r#"{"body": "secret", "headers": {"h": "v"}, "key": "order-42", "delay": "1s"}"#)
        .await;
    server.ok("PATCH", &format!("/v1/messages/{id}"), r#"{"delay": "2s"}"#).await;
    server.advance(2_000);
    let granted = server.reserve("q", r#"{"wait_ms": 20000}"#).await.remove(0);
    let token = granted["lease_token"].as_str().expect("token");
    let nack = json!({"lease_token": token, "delay_ms": 500, "reason": "not today"});
    server.ok("POST", &format!("/v1/messages/{id}/nack"), &nack.to_string()).await;
    server.advance(500);
    let granted = server.reserve("q", r#"{"wait_ms": 20000}"#).await.remove(0);
    let ack = json!({"lease_token": granted["lease_token"]});
    server.ok("POST", &format!("/v1/messages/{id}/ack"), &ack.to_string()).await;
    let events = reader.up_to(|event| event.name == "acked").await;
    let names: Vec<&str> = events.iter().map(|event| &*event.name).collect();
    // That it became due is told while somebody follows.
    assert_eq!(names, ["accepted", "postponed", "fired", "granted", "returned", "fired", "granted", "acked"]);
    assert!(events.iter().all(|event| event.text("id") == id && event.text("queue") == "q"), "{events:?}");
    let due_at = "2026-01-01T00:00:01.000Z";
    assert_eq!((events[0].text("key"), events[0].text("due_at")), ("order-42", due_at), "{:?}", events[0]);
    assert_eq!(events[4].data["attempt"], 1);
    assert_eq!(events[4].text("reason"), "nacked");
    let all = format!("{events:?}");
    for hidden in ["secret", "not today", token] {
        assert!(!all.contains(hidden), "{hidden}: {all}");
    }
    let live: Vec<bool> = events.iter().map(|event| event.id.is_none()).collect();
    assert_eq!(live, [false, false, true, false, false, true, false, false], "fired has no position");
}

/// Story: with the clock of a machine each due time of an event was a millisecond later than that of the answer.
/// Virtual time has no parts of milliseconds. Between two readings the machine's clock may be slewed by one.
#[tokio::test(flavor = "multi_thread")]
async fn event_due_times_equal_response_times() {
    let wheel = Duewheel::builder().in_memory().open().await.expect("wheel");
    let unused = VirtualClock::at_2026();
    let server = Server::over(wheel, unused, Policy::default(), HttpLimits::default()).await;
    let mut reader = follow(&server, "/v1/events").await;
    let mut differ = 0;
    for n in 0..20 {
        let body = json!({"body": "x", "key": n.to_string(), "delay_ms": 3_600_000 + n}).to_string();
        let made = server.ok("POST", "/v1/queues/q/messages", &body).await;
        let path = format!("/v1/messages/{}", made["id"].as_str().expect("id"));
        let seen = server.ok("GET", &path, "").await;
        let moved = server.ok("PATCH", &path, r#"{"delay": "2h"}"#).await;
        let events = reader.up_to(|event| event.name == "postponed").await;
        let told: Vec<&Value> = events.iter().map(|event| &event.data["due_at"]).collect();
        let pairs =
            [(told[0], &made["due_at"]), (told[1], &moved["due_at"]), (&seen["due_at"], &made["due_at"])];
        assert_eq!(told.len(), 2, "{events:?}");
        differ += pairs.iter().filter(|(told, answered)| told != answered).count();
    }
    assert!(differ <= 6, "{differ} of 60 due times");
}

#[tokio::test(flavor = "multi_thread")]
async fn event_stream_resumes_after_last_id() {
    let server = Server::start().await;
    let mut reader = follow(&server, "/v1/events").await;
    let began = {
        server.enqueue("q", r#"{"body": "", "delay_ms": 0}"#).await;
        reader.next().await.expect("an event")
    };
    for _ in 0..600 {
        server.enqueue("q", r#"{"body": "", "delay_ms": 0}"#).await;
    }
    let id = began.id.expect("an id");
    drop(reader);
    // The header counts, because a browser repeats the address.
    let address = server.address.to_string();
    let mut again =
        EventReader::open(&address, "/v1/events?since=0", &format!("last-event-id: {id}\r\n")).await;
    let rest = again.up_to(|event| event.text("id") == "601").await;
    let wanted: Vec<String> = (2..=601).map(|id| format!("accepted {id}")).collect();
    assert_eq!(brief(&rest), wanted);
    let mut again = follow(&server, &format!("/v1/events?since={id}")).await;
    assert_eq!(brief(&again.up_to(|event| event.text("id") == "601").await), wanted);
    // It goes on live.
    server.enqueue("q", r#"{"body": "", "delay_ms": 0}"#).await;
    assert_eq!(again.next().await.expect("an event").brief(), "accepted 602");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_kept_is_said() {
    let server = Server::start().await;
    for _ in 0..3 {
        server.enqueue("q", r#"{"body": "", "delay_ms": 0}"#).await;
    }
    // The store in memory keeps events from the first reader on.
    let mut reader = follow(&server, "/v1/events?since=1").await;
    let missed = reader.next().await.expect("an event");
    assert_eq!((&*missed.name, missed.text("from"), missed.text("to")), ("missed", "1", "3"));
    assert_eq!(missed.id.as_deref(), Some("3"));
    server.enqueue("q", r#"{"body": "", "delay_ms": 0}"#).await;
    assert_eq!(reader.next().await.expect("an event").brief(), "accepted 4");
    // A position that this store has not reached: its folder is another one.
    let mut reader = follow(&server, "/v1/events?since=77").await;
    let missed = reader.next().await.expect("an event");
    assert_eq!((&*missed.name, missed.text("from"), missed.text("to")), ("missed", "77", "4"));
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_values_are_refused() {
    let server = Server::start().await;
    for (path, field, what) in [
        ("/v1/events?since=yesterday", "since", "must be the id of an event"),
        ("/v1/events?since=1.2", "since", "is a position in 2 shards, and this server has 1"),
        ("/v1/events?queue=%23schedules", "queue", ""),
        ("/v1/events?from=1", "from", "unknown query parameter"),
    ] {
        let answer = server.call("GET", path, "").await;
        let problem = answer.json();
        assert_eq!((answer.status, &problem["field"]), (400, &json!(field)), "{path}: {problem}");
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains(what)), "{problem}");
    }
    let answer = server.raw("GET", "/v1/events", "last-event-id: x\r\n", b"").await;
    assert_eq!((answer.status, &answer.json()["field"]), (400, &json!("last-event-id")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_has_all_shards() {
    let server = Server::start_shards(3).await;
    let mut reader = follow(&server, "/v1/events").await;
    let mut ids = BTreeSet::new();
    for n in 0..60 {
        ids.insert(
            server
                .enqueue("q", &json!({"body": "", "delay_ms": 0, "key": format!("k{n}")}).to_string())
                .await,
        );
    }
    let mut events = Vec::new();
    for _ in 0..60 {
        events.push(reader.next().await.expect("an event"));
    }
    let told: BTreeSet<String> = events.iter().map(|event| event.text("id").to_owned()).collect();
    assert_eq!(told, ids, "each once");
    // From any event on the others follow, each once.
    for cut in [0, 17, 40] {
        let path = format!("/v1/events?since={}", events[cut].id.as_deref().expect("an id"));
        assert_eq!(path.matches('.').count(), 2, "{path}");
        let mut again = follow(&server, &path).await;
        let mut rest = BTreeSet::new();
        for _ in cut + 1..60 {
            rest.insert(again.next().await.expect("an event").text("id").to_owned());
        }
        let wanted = events[cut + 1..].iter().map(|event| event.text("id").to_owned()).collect();
        assert_eq!(rest, wanted, "behind {cut}");
    }
}

/// A server with tokens; the tokens of these arguments.
async fn guarded(dir: &TempDir, tokens: &[&[&str]]) -> (Server, Vec<String>) {
    let file = dir.path().join("tokens.toml");
    let tokens = tokens.iter().map(|args| new_token(&file, args)).collect();
    let guard = Arc::new(Guard::of(file).expect("tokens"));
    let (policy, limits) = (Policy::default(), HttpLimits::default());
    (Server::start_guarded(policy, limits, guard, Hosts::default()).await, tokens)
}

#[tokio::test(flavor = "multi_thread")]
async fn limited_token_sees_own_queue_events() {
    let dir = TempDir::new().expect("dir");
    let all: &[&str] = &["--name", "all", "--scope", "admin", "--scope", "enqueue"];
    let shop: &[&str] = &["--name", "shop", "--scope", "admin", "--queue", "shop/"];
    let poor: &[&str] = &["--name", "poor", "--scope", "metrics"];
    let (server, tokens) = guarded(&dir, &[all, shop, poor]).await;
    let address = server.address.to_string();
    let [all, shop, poor] = [0, 1, 2].map(|n: usize| bearer(&tokens[n]));
    let mut of_shop = EventReader::open(&address, "/v1/events", &shop).await;
    let mut of_all = EventReader::open(&address, "/v1/events", &all).await;
    let mut of_one = EventReader::open(&address, "/v1/events?queue=shop/b", &shop).await;
    for queue in ["bank", "shop/a", "bank", "shop/b"] {
        let path = format!("/v1/queues/{}/messages", queue.replace('/', "%2F"));
        let body = r#"{"body": "", "delay_ms": 0}"#;
        let head = format!("{all}content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        assert_eq!(server.raw("POST", &path, &head, body.as_bytes()).await.status, 201);
    }
    let is_last = |event: &ReadEvent| event.text("queue") == "shop/b";
    let queues = |events: &[ReadEvent]| events.iter().map(|e| e.text("queue").to_owned()).collect::<Vec<_>>();
    assert_eq!(queues(&of_shop.up_to(is_last).await), ["shop/a", "shop/b"]);
    assert_eq!(queues(&of_all.up_to(is_last).await), ["bank", "shop/a", "bank", "shop/b"]);
    assert_eq!(queues(&of_one.up_to(is_last).await), ["shop/b"]);
    for (path, token) in [("/v1/events?queue=bank", &shop), ("/v1/events", &poor)] {
        let (status, text) = EventReader::unread(&address, path, token).await.refusal().await;
        assert_eq!(status, 403, "{path}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn system_queues_are_invisible() {
    let server = Server::start().await;
    let mut reader = follow(&server, "/v1/events").await;
    let put = json!({"queue": "q", "every": "1h", "body": "x"});
    server.ok("PUT", "/v1/schedules/hourly", &put.to_string()).await;
    server.ok("DELETE", "/v1/schedules/hourly", "").await;
    server.enqueue("q", r#"{"body": "", "delay_ms": 0}"#).await;
    let event = reader.next().await.expect("an event");
    assert_eq!((&*event.name, event.text("queue")), ("accepted", "q"));
    assert_ne!(event.id.as_deref(), Some("1"), "records of schedules came before");
}

/// Nothing waits for a reader that does not read, and what it has missed it reads later.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_holds_nobody_up() {
    const MESSAGES: usize = 20_000;
    // One that reads nothing is disconnected at some time, which is not what this is about.
    let limits = HttpLimits { body_timeout: 10 * crate::fixture::PATIENCE, ..HttpLimits::default() };
    let server = Server::start_with(Policy::default(), limits).await;
    let slow = EventReader::unread(&server.address.to_string(), "/v1/events", "").await;
    let mut quick = follow(&server, "/v1/events").await;
    let lines = r#"{"body": "", "delay_ms": 0}
"#
    .repeat(1_000);
    // A connection and the ring hold far less than that.
    for _ in 0..MESSAGES / 1_000 {
        let results = server.lines("q", &lines).await.results();
        assert!(results.len() == 1_000 && results.iter().all(|line| line["id"].is_string()));
    }
    let last = MESSAGES.to_string();
    let is_last = |event: &ReadEvent| event.text("id") == last;
    let by_quick = count(&quick.up_to(is_last).await);
    let mut slow = slow.begun().await;
    let by_slow = count(&slow.up_to(is_last).await);
    assert_eq!((by_quick, by_slow), (MESSAGES as u64, MESSAGES as u64));
}

/// The number of positions that events of accepted messages, or of missed records, stand for.
fn count(events: &[ReadEvent]) -> u64 {
    let position = |event: &ReadEvent, field| event.text(field).parse::<u64>().expect("a position");
    let weight = |event: &ReadEvent| match &*event.name {
        "accepted" => 1,
        "missed" => position(event, "to") - position(event, "from"),
        other => panic!("{other}: {event:?}"),
    };
    events.iter().map(weight).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_readers_is_bounded() {
    let server = Server::start().await;
    let mut readers = Vec::new();
    for _ in 0..100 {
        readers.push(follow(&server, "/v1/events").await);
    }
    let refused = server.call("GET", "/v1/events", "").await;
    assert_eq!((refused.status, &refused.json()["code"]), (429, &json!("overloaded")));
    drop(readers);
    // Their places become free when the server sees that they have gone: with the next event.
    let admitted = async {
        loop {
            server.enqueue("q", r#"{"body": "", "delay_ms": 0}"#).await;
            let mut reader = EventReader::unread(&server.address.to_string(), "/v1/events", "").await;
            if reader.head().await.starts_with("HTTP/1.0 200") {
                return;
            }
        }
    };
    tokio::time::timeout(crate::fixture::PATIENCE, admitted).await.expect("a free place");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_end_on_stop_not_drain() {
    let server = Server::start().await;
    let mut reader = follow(&server, "/v1/events").await;
    let id = server.enqueue("q", r#"{"body": "", "delay_ms": 0}"#).await;
    server.drain.turn_on();
    server.ok("DELETE", &format!("/v1/messages/{id}"), "").await;
    let events = reader.up_to(|event| event.name == "cancelled").await;
    assert_eq!(events.len(), 2);

    let server = Server::start().await;
    let mut reader = follow(&server, "/v1/events").await;
    let mut unread = follow(&server, "/v1/events").await;
    server.app.set_draining();
    server.stop.stop();
    assert_eq!(reader.next().await, None);
    assert_eq!(unread.next().await, None);
    server.running.await.expect("it stops");
}

/// What `openapi.json` says of an event.
#[tokio::test(flavor = "multi_thread")]
async fn events_are_as_described() {
    let server = Server::start().await;
    let mut reader = follow(&server, "/v1/events").await;
    server.enqueue("q", r#"{"body": "", "key": "k", "delay_ms": 0}"#).await;
    server.ok("POST", "/v1/queues/q/purge", "").await;
    let schema: &'static Value = crate::schema::of_component("Event");
    for event in reader.up_to(|event| event.name == "purged").await {
        crate::schema::validate(schema, &event.data).unwrap_or_else(|error| panic!("{error}: {event:?}"));
    }
}
