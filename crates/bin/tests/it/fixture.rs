//! A server in this process, with virtual time and everything in memory, and a small HTTP client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use duewheel::{Duewheel, Policy, VirtualClock};
use duewheel_server::auth::{Guard, Hosts};
use duewheel_server::drain::Drain;
use duewheel_server::drain::Stop;
use duewheel_server::http::{App, HttpLimits, HttpListener};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::schema;
use crate::security::bearer;

/// Longer than anything here takes; reached only when a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) clock: VirtualClock,
    pub(crate) wheel: Duewheel,
    pub(crate) app: App,
    pub(crate) drain: Drain,
    pub(crate) stop: Stop,
    pub(crate) running: JoinHandle<()>,
}

/// What a server has answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

/// How many shards the engine has: what `DUEWHEEL_TEST_SHARDS` says, or one.
fn shards() -> u32 {
    let Ok(text) = std::env::var("DUEWHEEL_TEST_SHARDS") else { return 1 };
    text.parse().unwrap_or_else(|_| panic!("DUEWHEEL_TEST_SHARDS is not a number: {text}"))
}

impl Server {
    pub(crate) async fn start() -> Server {
        Server::start_with(Policy::default(), HttpLimits::default()).await
    }

    /// Over so many shards in this process.
    pub(crate) async fn start_shards(shards: u32) -> Server {
        let (clock, policy) = (VirtualClock::at_2026(), Policy::default());
        let open = Duewheel::builder().in_memory().clock(clock.clone()).policy(policy.clone()).seed(1);
        let wheel = open.shards(shards).open().await.expect("wheel");
        Server::over(wheel, clock, policy, HttpLimits::default()).await
    }

    pub(crate) async fn start_with(policy: Policy, limits: HttpLimits) -> Server {
        Server::start_guarded(policy, limits, Arc::default(), Hosts::default()).await
    }

    pub(crate) async fn start_guarded(
        policy: Policy,
        limits: HttpLimits,
        guard: Arc<Guard>,
        hosts: Hosts,
    ) -> Server {
        let clock = VirtualClock::at_2026();
        let open = Duewheel::builder().in_memory().clock(clock.clone()).policy(policy.clone()).seed(1);
        let wheel = open.shards(shards()).open().await.expect("wheel");
        let drain = Drain::default();
        let app = App::guarded(wheel.clone(), policy, limits, drain.clone(), guard, hosts);
        Server::listen(wheel, clock, app, drain).await
    }

    /// Over a wheel that was opened otherwise.
    pub(crate) async fn over(
        wheel: Duewheel,
        clock: VirtualClock,
        policy: Policy,
        limits: HttpLimits,
    ) -> Server {
        let drain = Drain::default();
        let app = App::new(wheel.clone(), policy, limits, drain.clone());
        Server::listen(wheel, clock, app, drain).await
    }

    async fn listen(wheel: Duewheel, clock: VirtualClock, app: App, drain: Drain) -> Server {
        let at = "127.0.0.1:0".parse().expect("address");
        let listener = HttpListener::bind(at, app.clone()).await.expect("bind");
        let (address, stop) = (listener.address().expect("address"), listener.stopper());
        let running = tokio::spawn(listener.run(PATIENCE));
        Server { address, clock, wheel, app, drain, stop, running }
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("connect")
    }

    /// One request on a connection of its own. The answer is compared with the description of the API.
    pub(crate) async fn call(&self, method: &str, path: &str, body: &str) -> Answer {
        self.call_as(method, path, "application/json", body.as_bytes()).await
    }

    pub(crate) async fn lines(&self, queue: &str, body: &str) -> Answer {
        let path = format!("/v1/queues/{queue}/messages");
        self.call_as("POST", &path, "application/x-ndjson", body.as_bytes()).await
    }

    pub(crate) async fn call_as(&self, method: &str, path: &str, content_type: &str, body: &[u8]) -> Answer {
        let head = format!("content-type: {content_type}\r\ncontent-length: {}\r\n", body.len());
        let answer = self.raw(method, path, &head, body).await;
        schema::check(
            method,
            path,
            body,
            answer.status,
            answer.header("content-type").unwrap_or_default(),
            &answer.body,
        );
        answer
    }

    /// A JSON request by the holder of a token: status and JSON.
    pub(crate) async fn call_by(&self, token: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (by, length) = (bearer(token), body.len());
        let head = format!("{by}content-type: application/json\r\ncontent-length: {length}\r\n");
        let answer = self.raw(method, path, &head, body.as_bytes()).await;
        (answer.status, answer.json())
    }

    /// One request with any headers, `name: value` with CRLF behind each.
    pub(crate) async fn raw(&self, method: &str, path: &str, head: &str, body: &[u8]) -> Answer {
        let mut stream = self.connect().await;
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{head}\r\n", self.address);
        stream.write_all(head.as_bytes()).await.expect("write");
        // A server that refuses a body early may close before all of it is written.
        let _ = stream.write_all(body).await;
        read_answer(&mut stream).await
    }

    /// A call that must be answered with 2xx; its JSON.
    pub(crate) async fn ok(&self, method: &str, path: &str, body: &str) -> Value {
        let answer = self.call(method, path, body).await;
        assert!((200..300).contains(&answer.status), "{method} {path} {body}: {answer:?}");
        answer.json()
    }

    /// Enqueues; gives the id.
    pub(crate) async fn enqueue(&self, queue: &str, body: &str) -> String {
        let done = self.ok("POST", &format!("/v1/queues/{queue}/messages"), body).await;
        done["id"].as_str().expect("id").to_owned()
    }

    /// Reserves without waiting; gives the grants.
    pub(crate) async fn reserve(&self, queue: &str, body: &str) -> Vec<Value> {
        let done = self.ok("POST", &format!("/v1/queues/{queue}/reserve"), body).await;
        done["messages"].as_array().expect("messages").clone()
    }

    pub(crate) fn advance(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
    }

    /// A job, when it has ended. The headers say who asks.
    pub(crate) async fn ended(&self, job: &Value, head: &str) -> Value {
        let path = format!("/v1/jobs/{}", job["id"].as_str().expect("id"));
        let asking = async {
            loop {
                let job = self.raw("GET", &path, head, b"").await.json();
                if job["ended_at"].is_string() {
                    return job;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("it goes on: {job}"))
    }

    /// Asks again until it is so.
    pub(crate) async fn until(&self, what: &str, path: &str, so: impl Fn(&Value) -> bool) {
        let asking = async {
            while !so(&self.ok("GET", path, "").await) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("never: {what}"));
    }
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (n, value) = line.split_once(':')?;
            n.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn results(&self) -> Vec<Value> {
        let lines = self.body.split(|b| *b == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).expect("line")).collect()
    }
}

/// Reads until the server closes.
pub(crate) async fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let read =
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("an answer in time");
    if bytes.is_empty() {
        read.expect("read");
    }
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap_or_else(|| {
        panic!("no answer: {:?}", String::from_utf8_lossy(&bytes));
    });
    let head = String::from_utf8(bytes[..end].to_vec()).expect("head");
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("status");
    let mut answer = Answer { status, head, body: bytes[end + 4..].to_vec() };
    if answer.header("transfer-encoding") == Some("chunked") {
        answer.body = dechunk(&answer.body);
    }
    answer
}

fn dechunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let line = bytes.windows(2).position(|w| w == b"\r\n").expect("chunk");
        let n = usize::from_str_radix(std::str::from_utf8(&bytes[..line]).expect("size"), 16).expect("size");
        if n == 0 {
            return out;
        }
        out.extend_from_slice(&bytes[line + 2..line + 2 + n]);
        bytes = &bytes[line + 2 + n + 2..];
    }
}
