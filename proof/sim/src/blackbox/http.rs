//! duewheel over HTTP.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use duewheel_judge::history::{
    Answer, Call, Death, Enqueue, Grant, Held, IfExists, MsgId, Proof, Recorder, Refusal, Rules, Seen,
    Shards, Stamp, State, Target, Token, Totals, When,
};
use serde_json::{Value, json};

use super::{Ability, Asked, Heard, OFFER_MS, Peer, Reply, System};
use crate::http::{Completeness, Connection, Response, Soundness, escape, rfc3339};
use crate::process::{PATIENCE, Server, binary};

const JSON: &str = "application/json";
const LINES: &str = "application/x-ndjson";
/// The pause before a look is repeated.
const AGAIN: Duration = Duration::from_millis(50);

/// So little that runs are written and merged all the time, and most messages are on the disk alone.
pub const LITTLE_MEMORY: [&str; 4] = ["--journal-bytes", "1048576", "--memory-messages", "100"];

/// The duewheel server over HTTP.
#[derive(Clone, Copy, Debug)]
pub struct DuewheelHttp {
    /// Shards of its data folder.
    pub shards: u32,
}

impl System for DuewheelHttp {
    fn name(&self) -> &'static str {
        "duewheel, HTTP"
    }

    fn abilities(&self) -> &[Ability] {
        &[
            Ability::Cancel,
            Ability::Keys,
            Ability::IfExists,
            Ability::Supersede,
            Ability::At,
            Ability::Postpone,
            Ability::Fire,
            Ability::Get,
            Ability::Dedupe,
            Ability::MaxAttempts,
            Ability::LeaseLength,
            Ability::MessageLease,
            Ability::ReserveMany,
            Ability::Wait,
            Ability::Nack,
            Ability::Backoff,
            Ability::Extend,
        ]
    }

    fn unit_ms(&self) -> u64 {
        1
    }

    fn rules(&self) -> Rules {
        Rules {
            lease_ms: 400,
            max_attempts: 20,
            backoff_min_ms: 100,
            backoff_max_ms: 1_000,
            offer_ms: OFFER_MS,
            slack_ms: 50,
            shards: if self.shards > 1 { Shards::Many } else { Shards::One },
            ..Rules::USUAL
        }
    }

    fn spawn(&self, folder: &Path) -> io::Result<Server> {
        let mut command = Command::new(binary()?);
        command.arg("serve").arg("--data").arg(folder.join("data"));
        command.args(["--http", "127.0.0.1:0", "--beanstalk", "off"]).args(LITTLE_MEMORY);
        command.args(["--shards", &self.shards.to_string()]);
        Server::spawn(command, &folder.join("server.log"), "http")
    }

    fn connect(&self, address: SocketAddr, _reign: u64) -> io::Result<Box<dyn Peer>> {
        Ok(Box::new(HttpPeer { connection: Connection::open(address, PATIENCE)? }))
    }

    /// Sets short leases and retries for all queues; they must survive the kills, too.
    fn prepare(&self, address: SocketAddr, queue: &str) -> Result<(), String> {
        let rules = self.rules();
        let settings = json!({
            "lease_ms": rules.lease_ms,
            "backoff": {"min_ms": rules.backoff_min_ms, "max_ms": rules.backoff_max_ms},
        });
        let connection = Connection::open(address, PATIENCE).map_err(|e| e.to_string())?;
        let path = format!("/v1/queues/{}/config", escape(queue));
        HttpPeer { connection }.plain("PUT", path, &settings).map(|_| ())
    }
}

/// A request on the wire.
#[derive(Debug)]
struct Request {
    method: &'static str,
    path: String,
    kind: &'static str,
    body: Vec<u8>,
}

/// One connection.
#[derive(Debug)]
struct HttpPeer {
    connection: Connection,
}

impl Peer for HttpPeer {
    fn ask(&mut self, asked: &[Asked], clock: &Recorder) -> Vec<Reply> {
        if let Some((request, split)) = together(asked) {
            return self.many(asked, &request, split, clock);
        }
        asked.iter().map(|a| self.one(a, clock)).collect()
    }

    fn soundness(&self) -> Soundness {
        self.connection.soundness()
    }

    fn list(&mut self, queue: &str, _known: &[MsgId]) -> Result<Vec<Held>, String> {
        let mut rows = Vec::new();
        let mut after = String::new();
        loop {
            let path = format!("/v1/queues/{}/messages?limit=100{after}", escape(queue));
            let page = self.plain("GET", path, &Value::Null)?;
            let messages = page["messages"].as_array().ok_or_else(|| format!("no messages in {page}"))?;
            for message in messages {
                rows.push(read_held(message).ok_or_else(|| format!("cannot read {message}"))?);
            }
            match page["next"].as_str() {
                Some(next) => after = format!("&after={}", escape(next)),
                None => return Ok(rows),
            }
        }
    }

    fn waiting(&mut self, queue: &str) -> Result<u64, String> {
        let view = self.plain("GET", format!("/v1/queues/{}", escape(queue)), &Value::Null)?;
        Ok(["scheduled", "ready", "leased"].iter().filter_map(|s| view["counts"][s].as_u64()).sum())
    }

    fn totals(&mut self, queue: &str) -> Result<Option<Totals>, String> {
        let view = self.plain("GET", format!("/v1/queues/{}", escape(queue)), &Value::Null)?;
        let figure = |name: &str| {
            view["totals"][name].as_u64().ok_or_else(|| format!("no total {name} of {queue} in {view}"))
        };
        Ok(Some(Totals {
            enqueued: figure("enqueued")?,
            acked: figure("acked")?,
            cancelled: figure("cancelled")?,
            replaced: figure("replaced")?,
            superseded: figure("superseded")?,
            purged: figure("purged")?,
            expired: figure("expired")?,
        }))
    }
}

type Split = fn(&Response) -> Vec<Value>;

/// Several operations in one request, if the API has one for them.
fn together(asked: &[Asked]) -> Option<(Request, Split)> {
    let (Some(first), true) = (asked.first(), asked.len() > 1) else { return None };
    match &first.call {
        Call::Enqueue(e) => {
            let mut body = Vec::new();
            for a in asked {
                body.extend_from_slice(enqueue_fields(e_of(a)?, a).to_string().as_bytes());
                body.push(b'\n');
            }
            let path = format!("/v1/queues/{}/messages", escape(&e.queue));
            Some((Request { method: "POST", path, kind: LINES, body }, split_lines))
        }
        Call::Ack(_) => {
            let leases: Vec<Value> = asked
                .iter()
                .filter_map(|a| match &a.call {
                    Call::Ack(p) => Some(json!({"id": p.id.0.to_string(), "lease_token": p.token.0})),
                    _ => None,
                })
                .collect();
            let body = json!({ "messages": leases }).to_string().into_bytes();
            Some((Request { method: "POST", path: "/v1/ack".to_owned(), kind: JSON, body }, split_results))
        }
        _ => None,
    }
}

fn e_of(asked: &Asked) -> Option<&Enqueue> {
    match &asked.call {
        Call::Enqueue(e) => Some(e),
        _ => None,
    }
}

fn split_lines(r: &Response) -> Vec<Value> {
    // A line counts when it is complete.
    let whole = r.body.iter().rposition(|b| *b == b'\n').map_or(0, |n| n + 1);
    let lines = r.body[..whole].split(|b| *b == b'\n').filter(|l| !l.is_empty());
    lines.map(|l| serde_json::from_slice(l).unwrap_or(Value::Null)).collect()
}

fn split_results(r: &Response) -> Vec<Value> {
    let value: Value = serde_json::from_slice(&r.body).unwrap_or(Value::Null);
    value["results"].as_array().cloned().unwrap_or_default()
}

impl HttpPeer {
    fn exchange(&mut self, request: &Request) -> io::Result<Response> {
        self.connection.request(request.method, &request.path, request.kind, &request.body)
    }

    fn one(&mut self, asked: &Asked, clock: &Recorder) -> Reply {
        let Some(request) = request_of(asked) else {
            return Reply {
                at: clock.stamp(),
                heard: Heard::Absurd(format!("no words for {:?}", asked.call)),
            };
        };
        let result = self.exchange(&request);
        let at = clock.stamp();
        let heard = match result {
            Err(e) => Heard::Unknown(e.to_string()),
            Ok(r) if r.end == Completeness::Cut => Heard::Unknown("the answer was cut".to_owned()),
            Ok(r) => {
                let value = serde_json::from_slice(&r.body).unwrap_or(Value::Null);
                impatient(&request, &r).unwrap_or_else(|| understand(asked, &request, r.status, &value))
            }
        };
        Reply { at, heard }
    }

    /// Sends several operations in one request; the answers come in their order.
    fn many(&mut self, asked: &[Asked], request: &Request, split: Split, clock: &Recorder) -> Vec<Reply> {
        let count = asked.len();
        let result = self.exchange(request);
        let at: Stamp = clock.stamp();
        let mut heard: Vec<Heard> = Vec::with_capacity(count);
        match result {
            Err(e) => heard.resize(count, Heard::Unknown(e.to_string())),
            Ok(r) if r.status != 200 => {
                let value = serde_json::from_slice(&r.body).unwrap_or(Value::Null);
                let one = impatient(request, &r);
                heard.resize(count, one.unwrap_or_else(|| understand(&asked[0], request, r.status, &value)));
            }
            Ok(r) => {
                let values = split(&r);
                for (a, value) in asked.iter().zip(&values) {
                    // A line contains its own status; a line without a code is a success.
                    let good = if value.get("code").is_some() { 0 } else { 200 };
                    let status = value["status"].as_u64().and_then(|s| u16::try_from(s).ok()).unwrap_or(good);
                    heard.push(understand(a, request, status, value));
                }
                let rest = if r.end == Completeness::Whole {
                    Heard::Absurd(format!("{} answers to {count} lines", values.len()))
                } else {
                    Heard::Unknown("the answer was cut".to_owned())
                };
                heard.resize(count, rest);
            }
        }
        heard.into_iter().map(|heard| Reply { at, heard }).collect()
    }

    /// Sends a request that is not an operation of the history.
    fn plain(&mut self, method: &'static str, path: String, body: &Value) -> Result<Value, String> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request { method, path, kind: JSON, body };
        let begun = Instant::now();
        let answered = loop {
            match self.exchange(&request) {
                // A shard is between two owners.
                Ok(r) if r.status == 503 && begun.elapsed() < PATIENCE => thread::sleep(AGAIN),
                other => break other,
            }
        };
        match answered {
            Ok(r) if r.end == Completeness::Whole && r.status == 200 => {
                serde_json::from_slice(&r.body).map_err(|e| e.to_string())
            }
            Ok(r) => {
                Err(format!("{} {}: {} {}", method, request.path, r.status, String::from_utf8_lossy(&r.body)))
            }
            Err(e) => Err(e.to_string()),
        }
    }
}

/// A temporary refusal has `Retry-After`.
fn impatient(request: &Request, response: &Response) -> Option<Heard> {
    let silent = response.status == 429 && response.retry_after.is_none();
    silent.then(|| Heard::Absurd(format!("{} {}: 429 without Retry-After", request.method, request.path)))
}

fn understand(asked: &Asked, request: &Request, status: u16, value: &Value) -> Heard {
    if (200..300).contains(&status) {
        if matches!(asked.call, Call::Ack(_)) && value["result"] == "already" {
            return Heard::Refused(Refusal::AlreadyAcked);
        }
        return match read(&asked.call, value) {
            Some(answer) => Heard::Done(answer),
            None => Heard::Absurd(format!("{} {}: cannot read {value}", request.method, request.path)),
        };
    }
    let code = value["code"].as_str().unwrap_or("");
    Heard::Refused(match (status, code) {
        (409, "key_exists") => Refusal::KeyExists,
        (409, "leased") => Refusal::Leased,
        (404, "message_not_found") => Refusal::NotFound,
        (409, "dead") => Refusal::Dead,
        (409, "lease_lost") => Refusal::LeaseLost,
        (409, "dedupe_mismatch") => Refusal::DedupeMismatch,
        (429 | 507, _) => Refusal::Other(code.to_owned()),
        (503, _) if value["outcome"] == "not_applied" || code == "draining" => {
            Refusal::Other(code.to_owned())
        }
        (503, _) => return Heard::Unknown(format!("{status} {value}")),
        _ => {
            return Heard::Absurd(format!(
                "{} {} {} was answered {status} {value}",
                request.method,
                request.path,
                String::from_utf8_lossy(&request.body)
            ));
        }
    })
}

/// The request for an operation; `None` if this adapter does not support it.
fn request_of(asked: &Asked) -> Option<Request> {
    let post = |path: String, fields: Value| Request {
        method: "POST",
        path,
        kind: JSON,
        body: fields.to_string().into_bytes(),
    };
    let bare = |method, path| Request { method, path, kind: JSON, body: Vec::new() };
    Some(match &asked.call {
        Call::Enqueue(e) => {
            post(format!("/v1/queues/{}/messages", escape(&e.queue)), enqueue_fields(e, asked))
        }
        Call::Cancel(target) => bare("DELETE", path_of(target)),
        Call::Postpone { target, when, body } => {
            let mut fields = json!({});
            put_when(&mut fields, *when);
            if body.is_some() {
                fields["body"] = String::from_utf8_lossy(&asked.bytes).into();
            }
            Request { method: "PATCH", ..post(path_of(target), fields) }
        }
        Call::Fire(target) => post(format!("{}/fire", path_of(target)), json!({})),
        Call::Get(target) => bare("GET", path_of(target)),
        Call::Reserve { queue, max, wait_ms, lease_ms } => {
            let mut fields = json!({"max": max, "wait_ms": wait_ms});
            if let Some(ms) = lease_ms {
                fields["lease_ms"] = (*ms).into();
            }
            post(format!("/v1/queues/{}/reserve", escape(queue)), fields)
        }
        Call::Ack(proof) => settle(proof, "ack", json!({})),
        Call::Nack { proof, delay_ms } => {
            settle(proof, "nack", delay_ms.map_or(json!({}), |ms| json!({ "delay_ms": ms })))
        }
        Call::Extend { proof, lease_ms } => settle(proof, "extend", json!({ "lease_ms": lease_ms })),
        Call::Bury(_) | Call::Redrive(_) | Call::Purge { .. } | Call::Limit { .. } => return None,
    })
}

fn read(call: &Call, v: &Value) -> Option<Answer> {
    match call {
        Call::Enqueue(_) => {
            let old = |name: &str| match &v[name] {
                Value::Null => Some(None),
                other => number(other).map(Some),
            };
            Some(Answer::Enqueued {
                id: id_of(v)?,
                created: v["created"].as_bool()?,
                replaced: old("replaced")?,
                superseded: old("superseded")?,
                due_at_ms: None,
            })
        }
        Call::Cancel(_) => (v["result"] == "cancelled").then(|| Answer::Cancelled(id_of(v))),
        Call::Postpone { .. } | Call::Fire(_) => id_of(v).map(|id| Answer::Changed(Some(id))),
        Call::Get(_) => read_held(v).map(Answer::Found),
        Call::Reserve { .. } => {
            let grants = v["messages"].as_array()?.iter().map(read_grant).collect::<Option<Vec<_>>>()?;
            Some(Answer::Grants(grants))
        }
        Call::Ack(_) => (v["result"] == "acked").then_some(Answer::Settled),
        Call::Nack { .. } => {
            let results = ["again", "dead", "superseded"];
            results.iter().any(|result| v["result"] == *result).then_some(Answer::Settled)
        }
        Call::Extend { .. } => Some(Answer::Settled),
        Call::Bury(_) | Call::Redrive(_) | Call::Purge { .. } | Call::Limit { .. } => None,
    }
}

fn enqueue_fields(e: &Enqueue, asked: &Asked) -> Value {
    let mut fields = json!({});
    match std::str::from_utf8(&asked.bytes) {
        Ok(text) => fields["body"] = text.into(),
        Err(_) => fields["body_base64"] = STANDARD.encode(&asked.bytes).into(),
    }
    put_when(&mut fields, e.when);
    if let Some(key) = &e.key {
        fields["key"] = key.as_str().into();
    }
    match e.if_exists {
        IfExists::Reject => {}
        IfExists::Keep => fields["if_exists"] = "keep".into(),
        IfExists::Replace => fields["if_exists"] = "replace".into(),
        IfExists::Supersede => fields["if_exists"] = "supersede".into(),
    }
    if let Some(id) = &e.dedupe_id {
        fields["dedupe_id"] = id.as_str().into();
    }
    if let Some(n) = e.max_attempts {
        fields["max_attempts"] = n.into();
    }
    if let Some(ms) = e.lease_ms {
        fields["lease_ms"] = ms.into();
    }
    fields
}

fn put_when(fields: &mut Value, when: When) {
    match when {
        When::DelayMs(ms) => fields["delay_ms"] = ms.into(),
        When::AtMs(ms) => {
            fields["due_at"] = rfc3339(ms).into();
            fields["past"] = "keep".into();
        }
    }
}

fn settle(proof: &Proof, verb: &str, mut fields: Value) -> Request {
    fields["lease_token"] = proof.token.0.as_str().into();
    Request {
        method: "POST",
        path: format!("/v1/messages/{}/{verb}", proof.id.0),
        kind: JSON,
        body: fields.to_string().into_bytes(),
    }
}

fn path_of(target: &Target) -> String {
    match target {
        Target::Id(id) => format!("/v1/messages/{}", id.0),
        Target::Key { queue, key } => format!("/v1/queues/{}/keys/{}", escape(queue), escape(key)),
    }
}

fn number(value: &Value) -> Option<MsgId> {
    value.as_str()?.parse().ok().map(MsgId)
}

fn id_of(value: &Value) -> Option<MsgId> {
    number(&value["id"])
}

fn read_seen(value: &Value) -> Option<Seen> {
    match (value["body"].as_str(), value["body_base64"].as_str()) {
        (Some(text), None) => Some(Seen::of(text.as_bytes())),
        (None, Some(text)) => Some(Seen::of(&STANDARD.decode(text).ok()?)),
        _ => None,
    }
}

fn read_grant(value: &Value) -> Option<Grant> {
    Some(Grant {
        id: id_of(value)?,
        token: Token(value["lease_token"].as_str()?.to_owned()),
        attempt: value["attempt"].as_u64()?,
        key: value["key"].as_str().map(str::to_owned),
        body: read_seen(value)?,
        lateness_ms: value["lateness_ms"].as_u64()?,
        late: value["late"].as_bool().unwrap_or(false),
    })
}

fn read_held(value: &Value) -> Option<Held> {
    let state = match value["state"].as_str()? {
        "scheduled" => State::Scheduled,
        "ready" => State::Ready,
        "leased" => State::Leased,
        "dead" => State::Dead,
        _ => return None,
    };
    Some(Held {
        id: id_of(value)?,
        key: value["key"].as_str().map(str::to_owned),
        state,
        attempt: value["attempt"].as_u64()?,
        body: read_seen(value),
        forgiven: value["forgiven"].as_u64(),
        death: match value["dead_reason"].as_str() {
            Some("max_attempts") => Some(Death::MaxAttempts),
            Some("buried") => Some(Death::Buried),
            Some("expired") => Some(Death::Expired),
            _ => None,
        },
    })
}
