//! Requests through the real routes over an engine in memory, and bodies through the real parsers.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use base64::Engine as _;
use bytes::Bytes;
use duewheel::testing::Stepped;
use duewheel::{BootId, Clock, ClockSample, VirtualClock};
use duewheel_api::rfc3339;
use duewheel_core::engine::{Enqueue, IfExists, InitialState, Past, When};
use duewheel_core::policy::Policy;
use duewheel_core::{QueueName, WallMs};
use duewheel_server::drain::Drain;
use duewheel_server::error::{ErrorCode, Problem};
use duewheel_server::fuzzing::http as parsers;
use duewheel_server::http::{App, HttpLimits};
use serde_json::{Map, Value, json};
use tokio::runtime::{Builder, Runtime};

/// The largest number of requests of one script.
const MOST: usize = 12;

/// The bytes are requests, with a zero byte between two. Each is a line, `POST /v1/queues/q/messages`, and a body
/// behind it; a line that starts with `>` sends its body as NDJSON. Bytes without such a line are the body of an
/// enqueue.
pub fn http(data: &[u8]) {
    let requests: Vec<Asked<'_>> = data.split(|b| *b == 0).take(MOST).map(Asked::read).collect();
    for asked in &requests {
        body(asked.body);
    }
    routes(&requests);
}

/// The answers of the routes to these bytes, without figures of the process.
pub fn http_answers(data: &[u8]) -> Vec<u8> {
    let requests: Vec<Asked<'_>> = data.split(|b| *b == 0).take(MOST).map(Asked::read).collect();
    let answers = routes(&requests);
    let of_the_process = |asked: &Asked<'_>| asked.path.starts_with("/metrics");
    let kept = requests.iter().filter(|asked| asked.method.is_some()).zip(answers);
    let kept = kept.filter(|(asked, _)| !of_the_process(asked));
    kept.flat_map(|(_, (status, answer))| [status.as_str().as_bytes(), b" ", &answer, b"\n"].concat())
        .collect()
}

struct Asked<'a> {
    /// `None` if there was no line.
    method: Option<Method>,
    path: &'a str,
    lines: bool,
    body: &'a [u8],
}

impl<'a> Asked<'a> {
    fn read(bytes: &'a [u8]) -> Asked<'a> {
        let none = Asked { method: None, path: "", lines: false, body: bytes };
        let end = bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len());
        let Ok(line) = std::str::from_utf8(&bytes[..end]) else { return none };
        let (lines, line) = line.strip_prefix('>').map_or((false, line), |line| (true, line));
        let Some((method, path)) = line.split_once(' ') else { return none };
        let known = ["GET", "POST", "PUT", "PATCH", "DELETE"].contains(&method);
        match method.parse() {
            Ok(method) if known && path.starts_with('/') => {
                Asked { method: Some(method), path, lines, body: bytes.get(end + 1..).unwrap_or_default() }
            }
            Ok(_) | Err(_) => none,
        }
    }
}

/// Parses a body as an enqueue: an accepted one is returned unchanged, a refusal names the place, and a single body and
/// a line are treated alike.
fn body(bytes: &[u8]) {
    let queue = QueueName::new("q").expect("a good name");
    let alone = parsers::line(bytes, &queue);
    match &alone {
        Ok((message, _)) => {
            says_what_was_sent(message, bytes);
            comes_back(message, &queue);
        }
        Err(problem) => is_prescriptive(problem, bytes),
    }
    // The same body on a line of its own gives the same result.
    let is_one_line = !bytes.is_empty() && !bytes.contains(&b'\n') && !bytes.ends_with(b"\r");
    let lines = parsers::lines(bytes, &queue);
    if is_one_line {
        assert_eq!(lines.len(), 1);
        match (&alone, &lines[0]) {
            (Ok((one, _)), Ok(line)) => assert_eq!(one, line),
            (Err(one), Err(line)) => {
                assert_eq!((one.code, &one.detail, &one.field), (line.code, &line.detail, &line.field));
            }
            (one, line) => panic!("alone {one:?}, as a line {line:?}"),
        }
    }
    let ends = bytes.iter().filter(|b| **b == b'\n').count();
    assert!(lines.len() <= ends + 1, "{} lines of {ends}", lines.len());
}

/// Each field is what another reader of JSON reads.
fn says_what_was_sent(message: &Enqueue, bytes: &[u8]) {
    let Ok(sent) = serde_json::from_slice::<Value>(bytes) else {
        // This reader of JSON refuses a value of `json` that is deeper, or has larger numbers, than it takes.
        let is_there = bytes.windows(message.body.len().max(1)).any(|part| part == message.body);
        assert!(is_there, "it was taken as JSON: {:?}", String::from_utf8_lossy(bytes));
        return;
    };
    let text = |name: &str| sent[name].as_str();
    let number = |name: &str| sent[name].as_u64();
    let options = &message.options;
    assert_eq!(message.priority.map(u64::from), number("priority"), "{sent}");
    assert_eq!(options.lease_ms, number("lease_ms"), "{sent}");
    assert_eq!(options.max_attempts.map(|n| u64::from(n.count())), number("max_attempts"), "{sent}");
    let backoff = options.backoff.map(|b| (Some(b.min_ms), Some(b.max_ms)));
    let sent_backoff = sent["backoff"].as_object().map(|b| (b["min_ms"].as_u64(), b["max_ms"].as_u64()));
    assert_eq!(backoff, sent_backoff, "{sent}");
    assert_eq!(message.key.as_ref().map(|key| key.as_str()), text("key"), "{sent}");
    assert_eq!(message.dedupe_id.as_deref(), text("dedupe_id"), "{sent}");
    assert_eq!(message.begins == InitialState::Dead, text("state") == Some("dead"), "{sent}");
    let headers =
        message.headers.iter().map(|(name, value)| (&**name, Some(&**value))).collect::<BTreeMap<_, _>>();
    let sent_headers = sent["headers"].as_object().into_iter().flatten();
    let mut expected: BTreeMap<_, _> = sent_headers.map(|(name, value)| (&**name, value.as_str())).collect();
    if !sent["json"].is_null() && !expected.keys().any(|name| name.eq_ignore_ascii_case("content-type")) {
        expected.insert("content-type", Some("application/json"));
    }
    assert_eq!(headers, expected, "{sent}");
    match (text("body"), sent.get("json").filter(|json| !json.is_null())) {
        (Some(text), _) => assert_eq!(message.body, text.as_bytes(), "{sent}"),
        (None, Some(json)) => {
            assert_eq!(serde_json::from_slice::<Value>(&message.body).ok().as_ref(), Some(json), "{sent}");
        }
        (None, None) => {
            assert_eq!(message.body, decoded(text("body_base64").expect("one of them")), "{sent}")
        }
    }
    match message.when {
        When::After(ms) => assert!(number("delay_ms").is_none_or(|sent| sent == ms), "{sent}"),
        When::At { .. } => assert!(text("due_at").is_some(), "{sent}"),
        When::Seconds(_) => panic!("there is no such field"),
    }
}

fn decoded(text: &str) -> Vec<u8> {
    base64::engine::general_purpose::STANDARD.decode(text).expect("it was accepted")
}

/// A message written as JSON is the same message when it is read again.
fn comes_back(message: &Enqueue, queue: &QueueName) {
    let mut all = Map::new();
    all.insert("body_base64".into(), base64::engine::general_purpose::STANDARD.encode(&message.body).into());
    match message.when {
        When::After(ms) => all.insert("delay_ms".into(), ms.into()),
        When::At { due_at, past } => {
            assert!(due_at.0 <= 253_402_300_799_999, "beyond the year 9999");
            let past = match past {
                Past::Refuse => "refuse",
                Past::Fire => "fire",
                Past::Keep => "keep",
            };
            all.insert("past".into(), past.into());
            all.insert("due_at".into(), rfc3339::string(WallMs(due_at.0)).into())
        }
        When::Seconds(_) => panic!("there is no such field"),
    };
    let if_exists = match message.if_exists {
        IfExists::Reject => "reject",
        IfExists::Keep => "keep",
        IfExists::Replace => "replace",
        IfExists::Supersede => "supersede",
    };
    all.insert("if_exists".into(), if_exists.into());
    let mut put = |name: &str, value: Option<Value>| value.and_then(|value| all.insert(name.into(), value));
    put("key", message.key.as_ref().map(|key| key.as_str().into()));
    put("dedupe_id", message.dedupe_id.as_ref().map(|id| id.to_string().into()));
    put("priority", message.priority.map(Into::into));
    put("lease_ms", message.options.lease_ms.map(Into::into));
    put("max_attempts", message.options.max_attempts.map(|n| n.count().into()));
    put("backoff", message.options.backoff.map(|b| json!({"min_ms": b.min_ms, "max_ms": b.max_ms})));
    put("state", (message.begins == InitialState::Dead).then(|| "dead".into()));
    let headers =
        message.headers.iter().map(|(name, value)| (name.to_string(), Value::from(value.to_string())));
    put("headers", Some(headers.collect::<Map<_, _>>().into()));
    let text = serde_json::to_vec(&all).expect("JSON can be written");
    let (mut again, _) =
        parsers::line(&text, queue).unwrap_or_else(|problem| panic!("{message:?} is refused: {problem:?}"));
    // A JSON object of this library is in another order.
    let mut message = message.clone();
    message.headers.sort();
    again.headers.sort();
    assert_eq!(again, message, "it comes back as something else");
}

fn is_prescriptive(problem: &Problem, bytes: &[u8]) {
    assert_eq!(problem.code, ErrorCode::BadRequest, "{problem:?}");
    assert!(!problem.detail.is_empty());
    // JSON of the right form is refused because of a member.
    if matches!(serde_json::from_slice(bytes), Ok(Value::Object(_))) && depth(bytes) <= 32 {
        assert!(
            problem.field.as_deref().is_some_and(|field| !field.is_empty()),
            "{problem:?} names no field"
        );
    }
}

/// An upper bound of the depth of nesting.
fn depth(bytes: &[u8]) -> usize {
    bytes.iter().filter(|b| matches!(b, b'[' | b'{')).count()
}

/// The answers of a server to these requests, one after the other. The server has no thread of its own, so that each
/// input finds it in the same state and is answered in the same order.
fn routes(requests: &[Asked<'_>]) -> Vec<(StatusCode, Bytes)> {
    if requests.iter().all(|asked| asked.method.is_none()) {
        return Vec::new();
    }
    RUNTIME.with(|runtime| runtime.block_on(talk(requests)))
}

thread_local! {
    static RUNTIME: Runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
}

async fn talk(requests: &[Asked<'_>]) -> Vec<(StatusCode, Bytes)> {
    let clock = Still(VirtualClock::at_2026());
    let policy = Policy {
        wheel_slots: 16,
        max_body: 200,
        max_batch_messages: 20,
        max_batch_bytes: 4_096,
        ..Policy::default()
    };
    let (wheel, shard) = Stepped::open(policy.clone(), clock.clone(), 1).expect("memory opens");
    let app = App::new(wheel.clone(), policy, HttpLimits::default(), Drain::default());
    let mut server = Server { routes: parsers::Routes::new(app), shard };
    let mut answers = Vec::new();
    for asked in requests {
        let Some(method) = &asked.method else { continue };
        let (status, answer) = server.call(method, asked.path, asked.lines, asked.body).await;
        check(status, &answer, asked);
        if status == StatusCode::CREATED && !asked.lines && *method == Method::POST {
            server.has(&answer, asked.body).await;
        }
        // Messages that came due meanwhile, and leases that ran out, are handled by the next request.
        clock.0.advance(Duration::from_millis(asked.body.len() as u64 * 100));
        server.shard.rest();
        answers.push((status, answer));
    }
    server.shard.drive(wheel.shutdown(Duration::ZERO)).await.expect("memory closes");
    answers
}

/// A clock that stands still for pauses, too.
#[derive(Clone, Debug)]
struct Still(VirtualClock);

impl Clock for Still {
    fn read(&self) -> ClockSample {
        self.0.read()
    }

    fn boot(&self) -> Option<BootId> {
        self.0.boot()
    }

    fn running(&self) -> Duration {
        Duration::from_nanos(self.0.read().elapsed_ns)
    }
}

/// The routes, and the shard behind them.
struct Server {
    routes: parsers::Routes,
    shard: Stepped,
}

impl Server {
    async fn call(&mut self, method: &Method, path: &str, lines: bool, body: &[u8]) -> (StatusCode, Bytes) {
        // Waits are not tested, and the clock stands still meanwhile.
        let waits = path.ends_with("/reserve") && String::from_utf8_lossy(body).contains("wait");
        let body = if waits { b"{}" } else { body };
        let kind = if lines { "application/x-ndjson" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("content-type", kind);
        let Ok(request) = request.body(Body::from(body.to_vec())) else {
            return (
                StatusCode::BAD_REQUEST,
                Bytes::from_static(br#"{"code":"bad_request","status":400,"detail":"-","field":"-"}"#),
            );
        };
        // An act is a task of its own, which goes on whenever the shard has done its work.
        let mut call = pin!(self.routes.call(request));
        let call = poll_fn(|cx| {
            let polled = call.as_mut().poll(cx);
            if polled.is_pending() {
                cx.waker().wake_by_ref();
            }
            polled
        });
        let (response, body) = self.shard.drive(call).await;
        (response.status(), body)
    }

    /// Checks that an accepted message is stored, byte for byte.
    async fn has(&mut self, answer: &Bytes, sent: &[u8]) {
        let answer: Value = serde_json::from_slice(answer).expect("checked before");
        let (Some(id), Ok(sent)) = (answer["id"].as_str(), serde_json::from_slice::<Value>(sent)) else {
            return;
        };
        let (status, shown) = self.call(&Method::GET, &format!("/v1/messages/{id}"), false, b"").await;
        if sent.get("dedupe_id").is_some() && status == StatusCode::NOT_FOUND {
            return; // the first answer, whose message may be gone
        }
        assert_eq!(status, StatusCode::OK, "accepted, and not there: {answer}");
        let shown: Value = serde_json::from_slice(&shown).expect("an answer is JSON");
        if !sent["json"].is_null() {
            let body = shown["body"].as_str().expect("JSON is text");
            assert_eq!(
                serde_json::from_str::<Value>(body).ok().as_ref(),
                Some(&sent["json"]),
                "another body"
            );
            return;
        }
        let bytes = |of: &Value| match (of["body"].as_str(), of["body_base64"].as_str()) {
            (Some(text), _) => text.as_bytes().to_vec(),
            (None, Some(text)) => decoded(text),
            (None, None) => panic!("no body: {of}"),
        };
        assert_eq!(bytes(&shown), bytes(&sent), "another body");
        assert_eq!(shown["key"], sent.get("key").cloned().unwrap_or_default(), "another key");
        assert_eq!(shown["id"], answer["id"]);
    }
}

/// Every answer is JSON, but for pages, scripts, metrics and a stream of events; a refusal has a known code and its status, and is never an internal error.
fn check(status: StatusCode, answer: &Bytes, asked: &Asked<'_>) {
    let what = format!("{:?} {} {:?}", asked.method, asked.path, String::from_utf8_lossy(asked.body));
    let shown = String::from_utf8_lossy(answer);
    assert!(status != StatusCode::INTERNAL_SERVER_ERROR, "{what}: {shown}");
    let path = asked.path.split(['?', '#']).next().unwrap_or_default();
    let is_other =
        ["/", "/errors", "/metrics", "/v1/stats/stream"].contains(&path) || path.starts_with("/ui/");
    if status.is_success() && is_other {
        return;
    }
    if status.is_success() && asked.lines && path.ends_with("/messages") {
        for line in answer.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
            let line: Value = serde_json::from_slice(line).unwrap_or_else(|e| panic!("{what}: {e}: {shown}"));
            let status = line["status"].as_u64().unwrap_or_else(|| panic!("{what}: {shown}"));
            if status >= 400 {
                is_known(&line, status, &what)
            } else {
                assert!(line["id"].is_string(), "{what}: {shown}")
            }
        }
        return;
    }
    let answer: Value = serde_json::from_slice(answer).unwrap_or_else(|e| panic!("{what}: {e}: {shown}"));
    if status.is_success() {
        assert!(answer.is_object(), "{what}: {shown}");
    } else {
        is_known(&answer, u64::from(status.as_u16()), &what);
    }
}

fn is_known(problem: &Value, status: u64, what: &str) {
    let code = problem["code"].as_str().unwrap_or_default();
    let known = ErrorCode::ALL.iter().find(|known| known.as_str() == code);
    let known = known.unwrap_or_else(|| panic!("{what}: unknown code in {problem}"));
    assert_eq!(u64::from(known.status().as_u16()), status, "{what}: {problem}");
    assert_eq!(problem["status"].as_u64(), Some(status), "{what}: {problem}");
    assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{what}: {problem}");
    assert!(*known != ErrorCode::Internal, "{what}: {problem}");
}
