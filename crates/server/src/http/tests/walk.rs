//! Calls every route of the table without permission, and with it.

mod several;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::OpenOptionsExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::{Method, Request, header};
use axum::response::Response;
use bytes::Bytes;
use duewheel::core::engine::{Enqueue, Op, Reply, Stats};
use duewheel::core::{Key, QueueName, WallMs};
use duewheel::{Client, Duewheel, Policy, VirtualClock};
use http_body_util::BodyExt;
use hyper::body::Frame;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use schemars::SchemaGenerator;
use serde_json::Value;

use crate::auth::{About, AccessRule, Guard, Hash, Hosts, Scope, TokenEntry, block, generate};
use crate::drain::Drain;
use crate::http::openapi::Described;
use crate::http::routes::{described, router};
use crate::http::{App, HttpLimits};

const MINE: &str = "mine/q";
const ELSEWHERE: &str = "elsewhere/";

/// Longer than any answer takes that does not wait for a body.
const TIME_LIMIT: Duration = Duration::from_secs(20);

struct WalkServer {
    router: TowerToHyperService<Router>,
    client: Client,
    guard: Arc<Guard>,
    file: tempfile::NamedTempFile,
    entries: Vec<TokenEntry>,
    wheel: Duewheel,
}

impl WalkServer {
    /// A server with one message, id 1 and key `k`, in [`MINE`].
    async fn start() -> WalkServer {
        let clock = VirtualClock::at_2026();
        let wheel = Duewheel::builder().in_memory().clock(clock).seed(1).open().await.unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let guard = Arc::new(Guard::of(file.path().to_owned()).unwrap());
        let client = wheel.client().clone();
        let app = App::guarded(
            wheel.clone(),
            Policy::default(),
            // A handler that reads the body would wait for it until the test gives up.
            HttpLimits { body_timeout: Duration::from_secs(3_600), ..HttpLimits::default() },
            Drain::default(),
            Arc::clone(&guard),
            Hosts::default(),
        );
        let queue = QueueName::new(MINE).unwrap();
        let message = Enqueue { key: Some(Key::new("k").unwrap()), ..Enqueue::new(queue, b"body".to_vec()) };
        client.call(Op::Enqueue(Box::new(message))).await.unwrap();
        app.start_bridges(&[]).await.unwrap();
        let router = TowerToHyperService::new(router(app));
        WalkServer { router, client, guard, file, entries: Vec::new(), wheel }
    }

    /// A new token, which is valid at once.
    fn token(&mut self, scopes: &[Scope], queues: Option<&str>, expires: Option<WallMs>) -> String {
        let token = generate().unwrap();
        self.entries.push(TokenEntry {
            name: format!("t{}", self.entries.len()),
            hash: Hash::of(token.reveal().as_bytes()),
            scopes: scopes.iter().copied().collect::<BTreeSet<_>>(),
            queues: queues.map(|prefix| vec![QueueName::new(prefix).unwrap()]),
            expires,
        });
        let text: String = self.entries.iter().map(|entry| block(entry).to_string()).collect();
        let mut write = std::fs::OpenOptions::new();
        let mut file = write.write(true).truncate(true).mode(0o600).open(self.file.path()).unwrap();
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        self.guard.reload().unwrap();
        token.reveal().to_owned()
    }

    async fn call(&self, route: &Described, tokens: &[&str], body: Body) -> Response {
        let path = route
            .path
            .replace("{queue}", "mine%2Fq")
            .replace("{id}", "1")
            .replace("{key}", "k")
            .replace("{name}", "s")
            .replace("{job}", "s");
        // Without a queue it is about the whole server.
        let path = path.replace("/v1/history", "/v1/history?queue=mine%2Fq");
        self.send(&route.method, &path, tokens, body).await
    }

    async fn send(&self, method: &Method, path: &str, tokens: &[&str], body: Body) -> Response {
        let mut request = Request::builder().method(method.clone()).uri(path);
        for token in tokens {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let answer = self.router.call(request.body(body).unwrap());
        let answer = tokio::time::timeout(TIME_LIMIT, answer).await;
        answer.unwrap_or_else(|_| panic!("{method} {path} waits for the body")).unwrap()
    }

    /// Everything that a call could have changed.
    async fn state(&self) -> (Stats, String) {
        let Reply::Stats(stats) = self.client.call(Op::Stats).await.unwrap() else { panic!("stats") };
        let queues = self.client.call(Op::Queues { after: None, limit: 100 }).await.unwrap();
        (*stats, format!("{queues:?}"))
    }
}

/// A body that never arrives.
struct Never;

impl HttpBody for Never {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Pending
    }
}

async fn problem(answer: Response) -> (u16, String, String) {
    let status = answer.status().as_u16();
    let challenge = answer.headers().get(header::WWW_AUTHENTICATE).map(|v| v.to_str().unwrap().to_owned());
    assert_eq!(challenge.as_deref(), (status == 401).then_some("Bearer"));
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    let json: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let text = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
    (status, text("code"), text("detail"))
}

#[tokio::test(flavor = "multi_thread")]
async fn guarded_routes_refuse_strangers() {
    let mut server = WalkServer::start().await;
    let wrong = generate().unwrap().reveal().to_owned();
    let expired = server.token(&Scope::ALL, None, Some(WallMs(1)));
    let before = server.state().await;
    let mut refused = 0;
    for route in described() {
        let at = format!("{} {}", route.method, route.path);
        let strangers: [&[&str]; 5] = [&[], &[&wrong], &[&expired], &["dw_"], &[&wrong, &wrong]];
        for tokens in strangers {
            let answer = server.call(&route, tokens, Body::new(Never)).await;
            if route.access == AccessRule::Open {
                assert_eq!(answer.status(), 200, "{at}");
                continue;
            }
            let (status, code, detail) = problem(answer).await;
            assert_eq!((status, code.as_str()), (401, "unauthorized"), "{at}: {detail}");
            assert!(!detail.contains(&wrong), "{at}: {detail}");
            refused += 1;
        }
    }
    let guarded = described().filter(|route| route.access != AccessRule::Open).count();
    assert_eq!(refused, guarded * 5);
    assert_eq!(server.state().await, before, "nothing was applied");
}

#[tokio::test(flavor = "multi_thread")]
async fn token_needs_scope_and_queue() {
    let mut server = WalkServer::start().await;
    let mut without = BTreeMap::new();
    let elsewhere = server.token(&Scope::ALL, Some(ELSEWHERE), None);
    let before = server.state().await;
    for route in described() {
        let at = format!("{} {}", route.method, route.path);
        let AccessRule::Needs(scopes, about) = route.access else { continue };
        let others: Vec<Scope> = Scope::ALL.into_iter().filter(|other| !scopes.contains(other)).collect();
        let token = &without.entry(scopes).or_insert_with(|| server.token(&others, None, None)).clone();
        let (status, code, detail) = problem(server.call(&route, &[token], Body::new(Never)).await).await;
        assert_eq!((status, code.as_str()), (403, "forbidden"), "{at}: {detail}");
        assert!(detail.ends_with(&format!("scope {}", Scope::either(scopes))), "{at}: {detail}");

        if route.path.ends_with("/replay") {
            let token = server.token(&[Scope::Cancel], None, None);
            let (status, code, detail) =
                problem(server.call(&route, &[&token], Body::new(Never)).await).await;
            assert_eq!((status, code.as_str()), (403, "forbidden"), "{at}: {detail}");
            assert!(detail.ends_with("scope enqueue"), "{at}: {detail}");
        }
        if matches!(about, About::Several | About::Lease) {
            // The handler checks the queues once it has read the body: see `several`.
            continue;
        }
        // The handler of these looks at the message itself.
        let body = if about == About::Recalled { Body::from("{}") } else { Body::new(Never) };
        let answer = server.call(&route, &[&elsewhere], body).await;
        let (status, code, detail) = problem(answer).await;
        let (expected, says) = match about {
            About::Queue => ((403, "forbidden"), MINE),
            About::Message | About::Recalled => ((404, "message_not_found"), "nothing is pending"),
            About::Server | About::Several | About::Lease => ((403, "forbidden"), "whole server"),
        };
        assert_eq!((status, code.as_str()), expected, "{at}: {detail}");
        assert!(detail.contains(says), "{at}: {detail}");
    }
    assert_eq!(server.state().await, before, "nothing was applied");
}

/// The routes that take a `target_url` need the scope `push-any` for it, besides their own.
#[tokio::test(flavor = "multi_thread")]
async fn message_url_needs_push_any_scope() {
    let mut server = WalkServer::start().await;
    let others: Vec<Scope> = Scope::ALL.into_iter().filter(|scope| *scope != Scope::PushAny).collect();
    let (without, with) = (server.token(&others, None, None), server.token(&Scope::ALL, None, None));
    let url = r#""target_url": "https://customer.example/hook""#;
    let mut walked = 0;
    for route in described() {
        let body = match (&route.method, route.path) {
            (&Method::POST, "/v1/queues/{queue}/messages") => {
                format!(r#"{{"body": "a", "delay_ms": 0, {url}}}"#)
            }
            (&Method::PATCH, "/v1/messages/{id}" | "/v1/queues/{queue}/keys/{key}") => {
                format!("{{{url}}}")
            }
            _ => continue,
        };
        walked += 1;
        let before = server.state().await;
        let (status, code, detail) =
            problem(server.call(&route, &[&without], Body::from(body.clone())).await).await;
        assert_eq!((status, code.as_str()), (403, "forbidden"), "{}: {detail}", route.path);
        assert!(detail.ends_with("scope push-any"), "{}: {detail}", route.path);
        assert_eq!(server.state().await, before, "nothing was applied");
        // It is let through, and the queue has no target.
        let (status, code, detail) = problem(server.call(&route, &[&with], Body::from(body)).await).await;
        assert_eq!((status, code.as_str()), (400, "bad_request"), "{}: {detail}", route.path);
        assert!(detail.starts_with("target_url: ") && detail.contains("no target"), "{detail}");
    }
    let takes_it = |route: &Described| {
        let mut schemas = SchemaGenerator::default();
        route.doc.request.iter().for_each(|form| drop((form.schema)(&mut schemas)));
        serde_json::to_string(schemas.definitions()).unwrap().contains("\"target_url\"")
    };
    assert_eq!(walked, described().filter(takes_it).count(), "every route that takes it");
}

/// A stream that has begun ends when its token is revoked.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_its_token() {
    let mut server = WalkServer::start().await;
    let token = server.token(&[Scope::Metrics], None, None);
    let stream = described().find(|route| route.path == "/v1/stats/stream").expect("a route");
    let mut body = server.call(&stream, &[&token], Body::empty()).await.into_body();
    body.frame().await.expect("an event").expect("no error");
    server.entries.clear();
    server.token(&[Scope::Metrics], None, None);
    let end = async { while body.frame().await.is_some() {} };
    tokio::time::timeout(TIME_LIMIT, end).await.expect("the stream ends");
}

/// Each token has one scope and, where possible, only the one queue.
#[tokio::test(flavor = "multi_thread")]
async fn the_right_token_is_let_through() {
    for route in described() {
        let AccessRule::Needs(scopes, about) = route.access else { continue };
        for scope in scopes {
            is_let_through(&route, *scope, about).await;
        }
    }
}

async fn is_let_through(route: &Described, scope: Scope, about: About) {
    let mut server = WalkServer::start().await;
    let at = format!("{} {} {scope}", route.method, route.path);
    let queues = (about != About::Server).then_some("mine/");
    // A replay is an enqueue, too.
    let replays = route.path.ends_with("/replay");
    let scopes = if replays { &[scope, Scope::Enqueue][..] } else { &[scope] };
    let token = server.token(scopes, queues, Some(WallMs(u64::MAX)));
    if ["/v1/stats/stream", "/v1/events"].contains(&route.path) {
        // Its answer never ends.
        assert_eq!(server.call(route, &[&token], Body::empty()).await.status(), 200, "{at}");
        return;
    }
    let (status, code, detail) = problem(server.call(route, &[&token], Body::from("{}")).await).await;
    // An empty object is not a valid message, but it was read.
    let through = status == 200 || (status == 400 && code == "bad_request");
    // And this server is no node of a cluster, and goes by the machine's clock.
    let lacks = ["/v1/cluster", "/v1/clock/advance"].contains(&route.path);
    // It has no schedule, target, bridge or job of this name, either.
    let named = ["/v1/schedules/{name}", "/v1/targets/{name}", "/v1/bridges/{name}", "/v1/jobs/{job}"];
    let lacks = lacks || named.iter().any(|path| route.path.starts_with(path));
    let through = through || (lacks && code == "not_found") || (replays && code == "not_done");
    assert!(through, "{at}: {status} {code} {detail}");
}

/// Story: a worker could lease all messages of its queue, and needed `admin`, with which it could remove the queue, to
/// list them.
#[tokio::test(flavor = "multi_thread")]
async fn consumers_list_messages_of_their_queues() {
    let mut server = WalkServer::start().await;
    let consumer = server.token(&[Scope::Consume], Some("mine/"), None);
    let others = [Scope::Enqueue, Scope::Cancel, Scope::Metrics, Scope::PushAny];
    let others = server.token(&others, Some("mine/"), None);
    let of_another = server.token(&[Scope::Consume], Some(ELSEWHERE), None);
    for (path, answers) in [("messages?state=scheduled", [200, 403, 403]), ("dead", [200, 403, 403])] {
        for (token, status) in [&consumer, &others, &of_another].into_iter().zip(answers) {
            let path = format!("/v1/queues/mine%2Fq/{path}");
            let answer = server.send(&Method::GET, &path, &[token], Body::empty()).await;
            assert_eq!(answer.status(), status, "{path}");
        }
    }
}
