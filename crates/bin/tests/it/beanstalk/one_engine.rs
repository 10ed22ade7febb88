//! Messages of HTTP are jobs, and jobs are messages.

use duewheel::Policy;
use duewheel_server::http::HttpLimits;
use serde_json::{Value, json};

use super::Both;
use super::client::Client;
use crate::fixture::Server;

#[tokio::test(flavor = "multi_thread")]
async fn beanstalk_reserves_and_deletes_messages() {
    let server = Both::start().await;
    let id = server.http.enqueue("q", r#"{"body": "käse", "delay_ms": 0, "key": "k"}"#).await;
    let mut client = server.client("q");
    assert_eq!(client.ask("reserve"), format!("RESERVED {id} 5\r\nkäse"));
    assert_eq!(client.ask(&format!("delete {id}")), "DELETED");
    assert_eq!(server.http.call("GET", &format!("/v1/messages/{id}"), "").await.status, 404);
    let again = server.http.enqueue("q", r#"{"body": "b", "delay_ms": 0, "key": "k"}"#).await;
    assert_ne!(again, id, "the key is free");
}

#[tokio::test(flavor = "multi_thread")]
async fn http_reserves_and_acks_jobs() {
    let server = Both::start().await;
    let mut client = server.client("q");
    let id = client.put("put 7 0 60", "one");
    let grants = server.http.reserve("q", "").await;
    assert_eq!(grants.len(), 1);
    let grant = &grants[0];
    assert_eq!(
        (&grant["id"], &grant["body"], &grant["attempt"]),
        (&json!(id), &json!("one"), &json!(1)),
        "{grant}"
    );
    let proof = json!({"lease_token": grant["lease_token"]}).to_string();
    let acked = server.http.ok("POST", &format!("/v1/messages/{id}/ack"), &proof).await;
    assert_eq!(acked["result"], "acked");
    assert_eq!(client.ask(&format!("peek {id}")), "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn scheduled_message_becomes_ready_for_beanstalk() {
    let server = Both::start().await;
    let id = server.http.enqueue("q", r#"{"body": "a", "delay_ms": 10000}"#).await;
    let mut client = server.client("q");
    assert_eq!(client.field(&format!("stats-job {id}"), "state").as_deref(), Some("delayed"));
    let mut waiting = server.client("q");
    waiting.send("reserve\r\n");
    client.until("stats-tube q", "current-waiting", "1");
    server.http.advance(9_999);
    assert_eq!(client.ask("reserve-with-timeout 0"), "TIMED_OUT");
    assert_eq!(client.field("stats-tube q", "current-waiting").as_deref(), Some("1"));
    server.http.advance(1);
    assert_eq!(waiting.reply(), format!("RESERVED {id} 1\r\na"));
}

#[tokio::test(flavor = "multi_thread")]
async fn delayed_job_becomes_ready_for_http() {
    let server = Both::start().await;
    let id = server.client("q").put("put 0 10 60", "a");
    let path = format!("/v1/messages/{id}");
    assert_eq!(server.http.ok("GET", &path, "").await["state"], "scheduled");
    server.http.advance(9_999);
    assert_eq!(server.http.reserve("q", "").await, Vec::<Value>::new());
    assert_eq!(server.http.ok("GET", &path, "").await["due_in_ms"], 1);
    server.http.advance(1);
    server.http.until("ready", &path, |m| m["state"] == "ready").await;
    assert_eq!(server.http.reserve("q", "").await[0]["id"], json!(id));
}

#[tokio::test(flavor = "multi_thread")]
async fn http_lease_is_hidden_from_beanstalk() {
    let server = Both::start().await;
    let id = server.http.enqueue("q", r#"{"body": "a", "delay_ms": 0}"#).await;
    let token = server.http.reserve("q", "").await[0]["lease_token"].clone();
    let mut client = server.client("q");
    assert_eq!(client.field(&format!("stats-job {id}"), "state").as_deref(), Some("reserved"));
    for line in ["delete ID", "release ID 0 0", "bury ID 0", "touch ID", "reserve-job ID", "kick-job ID"] {
        assert_eq!(client.ask(&line.replace("ID", &id)), "NOT_FOUND", "{line}");
    }
    assert_eq!(client.ask("reserve-with-timeout 0"), "TIMED_OUT");
    let proof = json!({"lease_token": token}).to_string();
    assert_eq!(server.http.ok("POST", &format!("/v1/messages/{id}/ack"), &proof).await["result"], "acked");
}

#[tokio::test(flavor = "multi_thread")]
async fn reservation_is_uncancellable_http_lease() {
    let server = Both::start().await;
    let mut client = server.client("q");
    let id = client.put("put 0 0 60", "a");
    assert!(client.ask("reserve").starts_with("RESERVED"));
    let path = format!("/v1/messages/{id}");
    let seen = server.http.ok("GET", &path, "").await;
    assert_eq!((&seen["state"], &seen["lease_ms"]), (&json!("leased"), &json!(60_000)));
    for (method, at, body) in [("DELETE", path.clone(), ""), ("PATCH", path.clone(), r#"{"delay": "1h"}"#)] {
        let answer = server.http.call(method, &at, body).await;
        assert_eq!((answer.status, &answer.json()["code"]), (409, &json!("leased")), "{method}");
    }
    let proof = json!({"lease_token": "000000010000000000000000"}).to_string();
    let answer = server.http.call("POST", &format!("{path}/ack"), &proof).await;
    assert_eq!((answer.status, &answer.json()["code"]), (409, &json!("lease_lost")));
    assert_eq!(client.ask(&format!("delete {id}")), "DELETED");
}

/// The time to run is a lease: it ends by itself, and `touch` moves its end.
#[tokio::test(flavor = "multi_thread")]
async fn expired_reservation_goes_to_next_consumer() {
    let server = Both::start().await;
    let mut client = server.client("q");
    let id = client.put("put 0 0 10", "a");
    assert!(client.ask("reserve").starts_with("RESERVED"));
    server.http.advance(9_000);
    assert_eq!(client.ask(&format!("touch {id}")), "TOUCHED");
    server.http.advance(9_999);
    assert_eq!(server.http.reserve("q", "").await, Vec::<Value>::new());
    server.http.advance(1);
    server.http.until("ready", &format!("/v1/messages/{id}"), |m| m["state"] == "ready").await;
    let grants = server.http.reserve("q", "").await;
    assert_eq!((&grants[0]["id"], &grants[0]["attempt"]), (&json!(id), &json!(2)));
    assert_eq!(client.ask(&format!("release {id} 0 0")), "NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn reserves_are_attempts() {
    let server = Both::start().await;
    let mut client = server.client("q");
    let id = client.put("put 0 0 60", "a");
    assert!(client.ask("reserve").starts_with("RESERVED"));
    assert_eq!(client.ask(&format!("release {id} 0 0")), "RELEASED");
    let grant = server.http.reserve("q", "").await.remove(0);
    assert_eq!(grant["attempt"], 2);
    let back = json!({"lease_token": grant["lease_token"], "delay_ms": 0}).to_string();
    server.http.ok("POST", &format!("/v1/messages/{id}/nack"), &back).await;
    assert!(client.ask("reserve").starts_with("RESERVED"));
    assert_eq!(client.field(&format!("stats-job {id}"), "reserves").as_deref(), Some("3"));
    assert_eq!(server.http.ok("GET", &format!("/v1/messages/{id}"), "").await["attempt"], 3);
}

/// However often a job is given back it is not dead, unlike a message.
#[tokio::test(flavor = "multi_thread")]
async fn job_attempts_are_unlimited() {
    let server = Both::start().await;
    let mut client = server.client("q");
    let id = client.put("put 0 0 60", "a");
    for n in 0..100 {
        assert_eq!(client.ask("reserve"), format!("RESERVED {id} 1\r\na"), "{n}");
        assert_eq!(client.ask(&format!("release {id} 0 0")), "RELEASED", "{n}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_have_the_same_priorities() {
    let server = Both::start().await;
    let mut client = server.client("q");
    let low = client.put("put 2000 0 60", "low");
    let usual = server.http.enqueue("q", r#"{"body": "usual", "delay_ms": 0}"#).await;
    let first = server.http.enqueue("q", r#"{"body": "first", "delay_ms": 0, "priority": 1}"#).await;
    let second = client.put("put 2 0 60", "second");
    assert_eq!(server.http.ok("GET", &format!("/v1/messages/{second}"), "").await["priority"], 2);
    assert_eq!(client.field(&format!("stats-job {usual}"), "pri").as_deref(), Some("1024"));
    assert_eq!(client.ask("reserve"), format!("RESERVED {first} 5\r\nfirst"));
    let grants = server.http.reserve("q", r#"{"max": 2}"#).await;
    let ids: Vec<_> = grants.iter().map(|g| g["id"].as_str().expect("id")).collect();
    assert_eq!(ids, [&*second, &*usual]);
    assert_eq!(client.ask("reserve"), format!("RESERVED {low} 3\r\nlow"));
}

#[tokio::test(flavor = "multi_thread")]
async fn buried_job_is_redriven_over_http() {
    let server = Both::start().await;
    let mut client = server.client("q");
    let id = client.put("put 0 0 60", "a");
    assert!(client.ask("reserve").starts_with("RESERVED"));
    assert_eq!(client.ask(&format!("bury {id} 5")), "BURIED");
    let dead = server.http.ok("GET", "/v1/queues/q/messages?state=dead", "").await;
    let dead = dead["messages"].as_array().expect("messages");
    assert_eq!(dead.len(), 1);
    assert_eq!((&dead[0]["id"], &dead[0]["dead_reason"]), (&json!(id), &json!("buried")));
    assert_eq!(server.http.ok("POST", "/v1/queues/q/redrive", "").await["redriven"], 1);
    assert_eq!(client.ask("reserve"), format!("RESERVED {id} 1\r\na"));
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_message_is_buried_and_kickable() {
    let server = Both::start().await;
    let id = server.http.enqueue("q", r#"{"body": "a", "delay_ms": 0, "max_attempts": 1}"#).await;
    let grant = server.http.reserve("q", "").await.remove(0);
    let proof = json!({"lease_token": grant["lease_token"]}).to_string();
    assert_eq!(server.http.ok("POST", &format!("/v1/messages/{id}/nack"), &proof).await["result"], "dead");
    let mut client = server.client("q");
    assert_eq!(client.ask("peek-buried"), format!("FOUND {id} 1\r\na"));
    assert_eq!(client.ask("kick 10"), "KICKED 1");
    assert_eq!(client.ask("reserve"), format!("RESERVED {id} 1\r\na"));
}

#[tokio::test(flavor = "multi_thread")]
async fn kick_fires_scheduled_message() {
    let server = Both::start().await;
    let id = server.http.enqueue("q", r#"{"body": "a", "delay": "1h"}"#).await;
    let mut client = server.client("q");
    assert_eq!(client.ask(&format!("kick-job {id}")), "KICKED");
    assert_eq!(client.ask("reserve"), format!("RESERVED {id} 1\r\na"));
}

#[tokio::test(flavor = "multi_thread")]
async fn tube_pause_holds_for_http() {
    let server = Both::start().await;
    let mut client = server.client("q");
    let id = client.put("put 0 0 60", "a");
    assert_eq!(client.ask("pause-tube q 10"), "PAUSED");
    let seen = server.http.ok("GET", "/v1/queues/q", "").await;
    assert_eq!((&seen["paused"], &seen["pause_left_ms"]), (&json!(true), &json!(10_000)));
    server.http.advance(9_999);
    assert_eq!(server.http.reserve("q", "").await, Vec::<Value>::new());
    server.http.advance(1);
    server.http.until("running", "/v1/queues/q", |q| q["paused"] == false).await;
    assert_eq!(client.ask("reserve"), format!("RESERVED {id} 1\r\na"));
}

#[tokio::test(flavor = "multi_thread")]
async fn http_pause_holds_for_beanstalk() {
    let server = Both::start().await;
    let mut client = server.client("q");
    let id = client.put("put 0 0 60", "a");
    server.http.ok("POST", "/v1/queues/q/pause", r#"{"for": "10s"}"#).await;
    assert_eq!(client.field("stats-tube q", "pause").as_deref(), Some("10"));
    // beanstalkd says 9, too: some of the ten seconds is over by the time it looks.
    assert_eq!(client.field("stats-tube q", "pause-time-left").as_deref(), Some("9"));
    server.http.ok("POST", "/v1/queues/q/pause", "").await;
    server.http.advance(3_600_000);
    assert_eq!(client.ask("reserve-with-timeout 0"), "TIMED_OUT");
    let mut waiting = server.client("q");
    waiting.send("reserve\r\n");
    client.until("stats-tube q", "current-waiting", "1");
    server.http.ok("POST", "/v1/queues/q/resume", "").await;
    assert_eq!(waiting.reply(), format!("RESERVED {id} 1\r\na"));
}

/// Story: `use` and `watch` of a tube beyond the limit were answered as if they had been done, and the tube was not
/// held; letting go of it later let go of what somebody else held.
#[tokio::test(flavor = "multi_thread")]
async fn use_and_watch_respect_queue_limit() {
    let policy = Policy { max_queues: 2, ..Policy::default() };
    let server = Both::over(Server::start_with(policy, HttpLimits::default()).await).await;
    let mut client = Client::connect(&server.address);
    assert_eq!(client.ask("use a"), "USING a", "the second one, beside `default`");
    assert_eq!(client.ask("use b"), "OUT_OF_MEMORY");
    assert_eq!(client.ask("list-tube-used"), "USING a", "it goes on with the one before");
    assert_eq!(client.field("stats-tube a", "current-using").as_deref(), Some("1"));
    assert_eq!(client.ask("watch b"), "OUT_OF_MEMORY");
    assert_eq!(client.ask("ignore default"), "NOT_IGNORED", "nothing else is watched");
    client.put("put 0 0 60", "x");
    assert_eq!(client.field("stats-tube a", "current-jobs-ready").as_deref(), Some("1"));
    assert_eq!(client.field("stats-tube b", "name"), None);
    assert_eq!(client.ask("watch a"), "WATCHING 2");
}

/// The tube that every client of the protocol has at its start was in each listing, on a server that nobody had used.
#[tokio::test(flavor = "multi_thread")]
async fn unused_default_tube_is_unlisted() {
    let server = Both::start().await;
    let mut client = Client::connect(&server.address);
    let names = |listed: Value| -> Vec<Value> {
        listed["queues"].as_array().expect("queues").iter().map(|queue| queue["queue"].clone()).collect()
    };
    let listed = async || {
        let metrics = server.http.call("GET", "/metrics", "").await;
        let text = String::from_utf8(metrics.body).expect("text");
        let page = names(server.http.ok("GET", "/v1/queues?limit=1", "").await);
        (page, text.contains("queue=\"default\""))
    };
    assert_eq!(client.ask("list-tubes"), "OK 14\r\n---\n- default\n");
    assert_eq!(listed().await, (vec![], false));
    // A page ends behind it as behind any other.
    server.http.enqueue("z", r#"{"body": "a", "delay_ms": 0}"#).await;
    let first = server.http.ok("GET", "/v1/queues?limit=1", "").await;
    assert_eq!((&first["next"], names(first.clone())), (&json!("default"), vec![]));
    assert_eq!(names(server.http.ok("GET", "/v1/queues?limit=1&after=default", "").await), ["z"]);
    assert_eq!(names(server.http.ok("GET", "/v1/queues", "").await), ["z"]);

    let id = client.put("put 0 0 60", "one");
    assert_eq!(listed().await, (vec![json!("default")], true));
    assert_eq!(client.ask(&format!("delete {id}")), "DELETED");
    assert_eq!(listed().await, (vec![json!("default")], true), "it has been used");
}

#[tokio::test(flavor = "multi_thread")]
async fn schedule_record_is_no_job() {
    let server = Both::start().await;
    let put = r#"{"queue": "q", "every": "24h", "paused": true}"#;
    server.http.ok("PUT", "/v1/schedules/daily", put).await;
    let mut client = server.client("q");
    for id in 1..=8 {
        for command in ["peek", "stats-job", "reserve-job", "kick-job", "delete"] {
            assert_eq!(client.ask(&format!("{command} {id}")), "NOT_FOUND", "{command} {id}");
        }
    }
    server.http.ok("GET", "/v1/schedules/daily", "").await;
}
