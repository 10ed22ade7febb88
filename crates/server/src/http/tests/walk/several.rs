//! Routes that concern several queues, or a lease: their handlers check the queues. Each has a row here that says how
//! it keeps a token within its prefix. The same call by a token without limits shows that there was something to keep.

use axum::body::Body;
use axum::http::Method;
use axum::response::Response;
use duewheel::core::QueueName;
use duewheel::core::engine::{Enqueue, Op, Quota};
use http_body_util::BodyExt;
use serde_json::Value;

use super::{ELSEWHERE, MINE, TIME_LIMIT, WalkServer};
use crate::auth::{About, AccessRule, Scope};
use crate::http::openapi::Described;
use crate::http::routes::described;

/// The answer to a token that reaches none of the queues that a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beyond {
    /// The call is refused.
    Refused(u16, &'static str),
    /// Each item of the call is refused as if it did not exist.
    ItemsNotFound,
    /// The queues that the token does not reach are left out.
    LeftOut,
    /// The call is answered as to any token: it is about no queue.
    OfNoQueue,
}

/// One call. `ID` and `TOKEN` in its body stand for a message of [`MINE`] and its lease token.
struct BeyondCall {
    /// The schedule, where the path names one: `s` puts into [`MINE`], `own` elsewhere.
    name: &'static str,
    query: &'static str,
    body: &'static str,
    beyond: Beyond,
}

fn call(body: &'static str, beyond: Beyond) -> BeyondCall {
    BeyondCall { name: "s", query: "", body, beyond }
}

/// The calls that show how a route checks queues.
///
/// # Panics
/// There is none for a route that needs one.
fn calls(route: &Described) -> Vec<BeyondCall> {
    use Beyond::{ItemsNotFound, LeftOut, OfNoQueue, Refused};
    const LEASED: &str = r#"{"messages": [{"id": "ID", "lease_token": "TOKEN"}]}"#;
    let not_found = Refused(404, "not_found");
    let forbidden = Refused(403, "forbidden");
    match (route.method.as_str(), route.path) {
        ("POST", "/v1/messages/{id}/ack") => {
            vec![call(r#"{"lease_token": "TOKEN"}"#, Refused(404, "message_not_found"))]
        }
        ("POST", "/v1/ack" | "/v1/nack") => vec![call(LEASED, ItemsNotFound)],
        ("POST", "/v1/extend") => {
            let body = r#"{"messages": [{"id": "ID", "lease_token": "TOKEN", "lease_ms": 600000}]}"#;
            vec![call(body, ItemsNotFound)]
        }
        ("POST", "/v1/reserve") => vec![
            call(r#"{"queues": [{"queue": "mine/q"}]}"#, forbidden),
            call(r#"{"queues": [{"queue": "elsewhere/q"}, {"queue": "mine/q"}]}"#, forbidden),
        ],
        ("GET", "/v1/queues" | "/v1/jobs" | "/v1/schedules" | "/v1/quotas" | "/v1/audit") => {
            vec![call("", LeftOut)]
        }
        ("GET" | "DELETE", "/v1/jobs/{job}" | "/v1/schedules/{name}") => vec![call("", not_found)],
        ("PUT", "/v1/schedules/{name}") => vec![
            call(r#"{"queue": "elsewhere/q", "every": "2h"}"#, Refused(409, "key_exists")),
            BeyondCall { name: "new", ..call(r#"{"queue": "mine/q", "every": "2h"}"#, forbidden) },
            BeyondCall { name: "own", ..call(r#"{"queue": "mine/q", "every": "2h"}"#, forbidden) },
        ],
        ("PATCH", "/v1/schedules/{name}") => vec![
            call(r#"{"paused": true}"#, not_found),
            BeyondCall { name: "own", ..call(r#"{"queue": "mine/q"}"#, forbidden) },
        ],
        ("POST", "/v1/schedules/{name}/trigger") => vec![call("", not_found)],
        ("POST", "/v1/schedules/{name}/backfill") => {
            let body = r#"{"from": "2025-12-31T20:00:00Z", "to": "2025-12-31T23:00:00Z"}"#;
            vec![call(body, not_found)]
        }
        ("POST", "/v1/schedules/preview") => vec![call(r#"{"queue": "mine/q", "every": "1h"}"#, OfNoQueue)],
        ("GET", "/v1/history") => {
            vec![BeyondCall { query: "?queue=mine%2Fq", ..call("", forbidden) }, call("", forbidden)]
        }
        // Without a queue it is a stream that does not end: `event_stream_omits_unreachable_queues`.
        ("GET", "/v1/events") => vec![BeyondCall { query: "?queue=mine%2Fq", ..call("", forbidden) }],
        (method, path) => panic!("{method} {path} has no row here that shows how it checks queues"),
    }
}

/// A server with a leased message and a ready one, a schedule, a job and a quota in [`MINE`], and a schedule elsewhere.
struct FilledServer {
    server: WalkServer,
    operator: String,
    /// Reaches queues elsewhere alone.
    limited: String,
    id: String,
    lease_token: String,
    job: String,
}

impl FilledServer {
    async fn start() -> FilledServer {
        let mut server = WalkServer::start().await;
        let operator = server.token(&Scope::ALL, None, None);
        let limited = server.token(&Scope::ALL, Some(ELSEWHERE), None);
        let quota = Quota { prefix: "mine/".into(), messages: Some(1_000), ..Quota::default() };
        server.wheel.set_quotas(vec![quota]).unwrap();
        let mut filled = FilledServer {
            server,
            operator,
            limited,
            id: String::new(),
            lease_token: String::new(),
            job: String::new(),
        };
        for queue in [MINE, "elsewhere/q"] {
            filled.enqueue(queue).await;
        }
        for (name, queue) in [("s", MINE), ("own", "elsewhere/q")] {
            // Occurrences of cron do not begin with the schedule, so a backfill has some.
            let body = serde_json::json!({"queue": queue, "cron": "0 * * * *"}).to_string();
            filled.ok(&Method::PUT, &format!("/v1/schedules/{name}"), body).await;
        }
        let all = r#"{"action": "fire", "all": true}"#;
        let job = filled.ok(&Method::POST, "/v1/queues/mine%2Fq/bulk", all.to_owned()).await;
        let granted = filled.ok(&Method::POST, "/v1/queues/mine%2Fq/reserve", String::new()).await;
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        filled.job = text(&job["id"]);
        filled.id = text(&granted["messages"][0]["id"]);
        filled.lease_token = text(&granted["messages"][0]["lease_token"]);
        filled
    }

    async fn enqueue(&self, queue: &str) {
        let message = Enqueue::new(QueueName::new(queue).unwrap(), b"body".to_vec());
        self.server.client.call(Op::Enqueue(Box::new(message))).await.unwrap();
    }

    /// A call by the operator that is answered with 2xx; its JSON.
    async fn ok(&self, method: &Method, path: &str, body: String) -> Value {
        let answer = self.server.send(method, path, &[&self.operator], Body::from(body)).await;
        let (status, text) = read(answer).await;
        assert!((200..300).contains(&status), "{method} {path}: {status} {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// One call of the table by the holder of a token.
    async fn send(&self, route: &Described, call: &BeyondCall, token: &str) -> Response {
        let path = route.path.replace("{id}", &self.id).replace("{job}", &self.job);
        let path = path.replace("{name}", call.name) + call.query;
        let body = call.body.replace("ID", &self.id).replace("TOKEN", &self.lease_token);
        self.server.send(&route.method, &path, &[token], Body::from(body)).await
    }

    /// Everything that a call could have changed, as the operator sees it.
    async fn seen(&self) -> String {
        let message = format!("/v1/messages/{}", self.id);
        let mut seen = format!("{:?}", self.server.state().await);
        for path in [
            "/v1/queues",
            "/v1/queues/mine%2Fq/messages",
            "/v1/queues/elsewhere%2Fq/messages",
            "/v1/schedules/s",
            "/v1/schedules/own",
            "/v1/schedules",
            "/v1/jobs",
            &message,
        ] {
            let answer = self.server.send(&Method::GET, path, &[&self.operator], Body::empty()).await;
            seen += &read(answer).await.1;
        }
        seen
    }
}

async fn read(answer: Response) -> (u16, String) {
    let status = answer.status().as_u16();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

/// Checks the answer to the limited token.
fn is_kept_within(at: &str, call: &BeyondCall, (status, text): &(u16, String)) {
    let json: Value = serde_json::from_str(text).unwrap();
    match call.beyond {
        Beyond::Refused(expected, code) => {
            assert_eq!((*status, json["code"].as_str()), (expected, Some(code)), "{at}: {text}");
        }
        Beyond::ItemsNotFound => {
            let results = json["results"].as_array().unwrap();
            assert!(*status == 200 && !results.is_empty(), "{at}: {text}");
            assert!(results.iter().all(|result| result["code"] == "message_not_found"), "{at}: {text}");
        }
        Beyond::LeftOut | Beyond::OfNoQueue => assert_eq!(*status, 200, "{at}: {text}"),
    }
    let is_named = call.body.contains("mine") || call.query.contains("mine");
    assert!(is_named || !text.contains("mine"), "{at} shows what is out of reach: {text}");
}

/// A route without a row in [`calls`] fails this test, as does one whose handler leaves the check out.
#[tokio::test(flavor = "multi_thread")]
async fn multi_queue_routes_respect_token_prefix() {
    let mut walked = 0;
    for route in described() {
        let AccessRule::Needs(_, About::Several | About::Lease) = route.access else { continue };
        for call in calls(&route) {
            walked += 1;
            let at = format!("{} {} {}", route.method, route.path, call.body);
            let filled = FilledServer::start().await;
            let before = filled.seen().await;
            let kept = read(filled.send(&route, &call, &filled.limited).await).await;
            is_kept_within(&at, &call, &kept);
            assert_eq!(filled.seen().await, before, "{at} has changed something");

            let answer = filled.send(&route, &call, &filled.operator).await;
            assert!(answer.status().is_success(), "{at}: {}", answer.status());
            if route.path == "/v1/events" {
                continue; // Its answer never ends.
            }
            let (_, told) = read(answer).await;
            match call.beyond {
                Beyond::OfNoQueue => assert_eq!((kept.1, filled.seen().await), (told, before), "{at}"),
                Beyond::LeftOut => assert!(told.contains("mine"), "{at}: {told}"),
                Beyond::Refused(..) | Beyond::ItemsNotFound => {
                    let is_shown = told.contains(MINE) || told.contains("series");
                    let is_shown = route.method == Method::GET && is_shown;
                    assert!(is_shown || filled.seen().await != before, "{at} does nothing without a limit");
                }
            }
        }
    }
    assert!(walked >= 23, "{walked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn event_stream_omits_unreachable_queues() {
    let filled = FilledServer::start().await;
    for (token, sees_mine) in [(&filled.operator, true), (&filled.limited, false)] {
        let answer = filled.server.send(&Method::GET, "/v1/events", &[token], Body::empty()).await;
        assert_eq!(answer.status(), 200);
        let mut body = answer.into_body();
        for queue in [MINE, "elsewhere/q"] {
            filled.enqueue(queue).await;
        }
        let mut seen = String::new();
        let reading = async {
            while !seen.contains("elsewhere/q") {
                let frame = body.frame().await.expect("the stream goes on").expect("no error");
                seen += &String::from_utf8_lossy(&frame.into_data().unwrap_or_default());
            }
        };
        tokio::time::timeout(TIME_LIMIT, reading).await.expect("the event in time");
        assert_eq!(seen.contains(MINE), sees_mine, "{seen}");
    }
}
