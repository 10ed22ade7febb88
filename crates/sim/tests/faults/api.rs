//! One client: asks over HTTP and writes down what it saw.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use duewheel_judge::history::{
    Answer, Call, Grant, Held, IfExists, MsgId, OpId, Proof, Recorder, Refusal, Seen, State, Tag, Target,
    Token, What, When, body,
};
use duewheel_sim::http::{Completeness, Connection, Response, Soundness, escape, rfc3339};
use serde_json::{Value, json};

const JSON: &str = "application/json";
const LINES: &str = "application/x-ndjson";
const PATIENCE: Duration = Duration::from_secs(10);

/// What all clients of a run share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) recorder: Recorder,
    /// Where the server listens, and how often it had been started then.
    address: Mutex<Option<(SocketAddr, u64)>>,
    stage: AtomicU64,
    /// Answers that no client should ever get.
    complaints: Mutex<Vec<String>>,
}

/// What the clients are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Work,
    Drain,
    Stop,
}

impl Shared {
    pub(crate) fn stage(&self) -> Stage {
        match self.stage.load(Ordering::SeqCst) {
            0 => Stage::Work,
            1 => Stage::Drain,
            _ => Stage::Stop,
        }
    }

    pub(crate) fn set_stage(&self, stage: Stage) {
        self.stage.store(stage as u64, Ordering::SeqCst);
    }

    pub(crate) fn set_address(&self, address: Option<(SocketAddr, u64)>) {
        *lock(&self.address) = address;
    }

    pub(crate) fn complain(&self, what: String) {
        let mut all = lock(&self.complaints);
        if all.len() < 20 {
            all.push(what);
        }
    }

    pub(crate) fn complaints(&self) -> Vec<String> {
        lock(&self.complaints).clone()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What became of an operation; `None`: nobody knows.
pub(crate) type Outcome = Option<Result<Answer, Refusal>>;

/// A request on the wire.
struct Request {
    method: &'static str,
    path: String,
    kind: &'static str,
    body: Vec<u8>,
}

/// A client of its own connection.
#[derive(Debug)]
pub(crate) struct Api<'s> {
    pub(crate) shared: &'s Shared,
    number: u32,
    connection: Option<(Connection, u64)>,
}

impl<'s> Api<'s> {
    pub(crate) fn new(shared: &'s Shared, number: u32) -> Self {
        Api { shared, number, connection: None }
    }

    /// Connects if need be. An invocation is written down only when the connection is open: it then belongs to that one
    /// process and can have no effect in a later one.
    pub(crate) fn connect(&mut self) -> bool {
        let address = *lock(&self.shared.address);
        let Some((address, reign)) = address else {
            self.connection = None;
            return false;
        };
        let usable =
            self.connection.as_ref().is_some_and(|(c, r)| *r == reign && c.soundness() == Soundness::Open);
        if !usable {
            self.connection = Connection::open(address, PATIENCE).ok().map(|c| (c, reign));
        }
        self.connection.is_some()
    }

    fn exchange(&mut self, request: &Request) -> std::io::Result<Response> {
        let Some((connection, _)) = &mut self.connection else {
            return Err(std::io::ErrorKind::NotConnected.into());
        };
        let answer = connection.request(request.method, &request.path, request.kind, &request.body)?;
        if answer.status == 429 && answer.retry_after.is_none() {
            self.shared.complain(format!("{} {}: 429 without Retry-After", request.method, request.path));
        }
        Ok(answer)
    }

    /// One operation with one answer.
    fn one(&mut self, call: Call, request: &Request, read: impl Fn(&Value) -> Option<Answer>) -> Outcome {
        if !self.connect() {
            return None;
        }
        let op = self.shared.recorder.invoke(self.number, vec![call])[0];
        let result = self.exchange(request);
        let at = self.shared.recorder.stamp();
        let outcome = match result {
            Err(e) => Err(e.to_string()),
            Ok(r) if r.end == Completeness::Cut => Err("the answer was cut".to_owned()),
            Ok(r) => {
                let value = serde_json::from_slice(&r.body).unwrap_or(Value::Null);
                self.understand(request, r.status, &value, &read)
            }
        };
        self.note(at, op, &outcome);
        outcome.ok()
    }

    /// Several operations in one request; the answers come in their order.
    fn many(
        &mut self,
        calls: Vec<Call>,
        request: &Request,
        split: impl Fn(&Response) -> Vec<Value>,
        read: impl Fn(&Value) -> Option<Answer>,
    ) -> Vec<Outcome> {
        let count = calls.len();
        if !self.connect() {
            return vec![None; count];
        }
        let ops = self.shared.recorder.invoke(self.number, calls);
        let result = self.exchange(request);
        let at = self.shared.recorder.stamp();
        let mut outcomes: Vec<Result<Result<Answer, Refusal>, String>> = Vec::with_capacity(count);
        match result {
            Err(e) => outcomes.resize(count, Err(e.to_string())),
            Ok(r) if r.status != 200 => {
                let value = serde_json::from_slice(&r.body).unwrap_or(Value::Null);
                outcomes.resize(count, self.understand(request, r.status, &value, &read));
            }
            Ok(r) => {
                let values = split(&r);
                if r.end == Completeness::Whole && values.len() != count {
                    self.shared.complain(format!("{} answers to {count} lines", values.len()));
                }
                for value in values.iter().take(count) {
                    // A line says its own status; where it has no code it is a success.
                    let good = if value.get("code").is_some() { 0 } else { 200 };
                    let status = value["status"].as_u64().and_then(|s| u16::try_from(s).ok()).unwrap_or(good);
                    outcomes.push(self.understand(request, status, value, &read));
                }
                outcomes.resize(count, Err("the answer was cut".to_owned()));
            }
        }
        for (op, outcome) in ops.iter().zip(&outcomes) {
            self.note(at, *op, outcome);
        }
        outcomes.into_iter().map(Result::ok).collect()
    }

    fn note(
        &self,
        at: duewheel_judge::history::Stamp,
        op: OpId,
        outcome: &Result<Result<Answer, Refusal>, String>,
    ) {
        let what = match outcome.clone() {
            Ok(Ok(answer)) => What::Ok { op, answer },
            Ok(Err(refusal)) => What::Fail { op, refusal },
            Err(why) => What::Info { op, why },
        };
        self.shared.recorder.note(at, self.number, what);
    }

    fn understand(
        &self,
        request: &Request,
        status: u16,
        value: &Value,
        read: impl Fn(&Value) -> Option<Answer>,
    ) -> Result<Result<Answer, Refusal>, String> {
        if (200..300).contains(&status) {
            return match read(value) {
                Some(answer) => Ok(Ok(answer)),
                None => {
                    self.shared.complain(format!("{} {}: cannot read {value}", request.method, request.path));
                    Err(format!("unreadable: {value}"))
                }
            };
        }
        let code = value["code"].as_str().unwrap_or("");
        let refusal = match (status, code) {
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
            (503, _) => return Err(format!("{status} {value}")),
            _ => {
                self.shared.complain(format!(
                    "{} {} {} was answered {status} {value}",
                    request.method,
                    request.path,
                    String::from_utf8_lossy(&request.body)
                ));
                return Err(format!("{status} {value}"));
            }
        };
        Ok(Err(refusal))
    }

    pub(crate) fn enqueue(&mut self, message: &Message) -> Outcome {
        let request = Request {
            method: "POST",
            path: format!("/v1/queues/{}/messages", escape(&message.call.queue)),
            kind: JSON,
            body: message.json().to_string().into_bytes(),
        };
        self.one(Call::Enqueue(message.call.clone()), &request, read_enqueued)
    }

    /// All of one queue.
    pub(crate) fn enqueue_batch(&mut self, messages: &[Message]) -> Vec<Outcome> {
        let Some(first) = messages.first() else { return Vec::new() };
        let mut body = Vec::new();
        for message in messages {
            body.extend_from_slice(message.json().to_string().as_bytes());
            body.push(b'\n');
        }
        let path = format!("/v1/queues/{}/messages", escape(&first.call.queue));
        let request = Request { method: "POST", path, kind: LINES, body };
        let calls = messages.iter().map(|m| Call::Enqueue(m.call.clone())).collect();
        let split = |r: &Response| {
            // A line counts when it is whole.
            let whole = r.body.iter().rposition(|b| *b == b'\n').map_or(0, |n| n + 1);
            let lines = r.body[..whole].split(|b| *b == b'\n').filter(|l| !l.is_empty());
            lines.map(|l| serde_json::from_slice(l).unwrap_or(Value::Null)).collect()
        };
        self.many(calls, &request, split, read_enqueued)
    }

    pub(crate) fn cancel(&mut self, target: Target) -> Outcome {
        let request = Request { method: "DELETE", path: path_of(&target), kind: JSON, body: Vec::new() };
        self.one(Call::Cancel(target), &request, |v| {
            (v["result"] == "cancelled").then(|| Answer::Cancelled(id_of(v)))
        })
    }

    pub(crate) fn postpone(&mut self, target: Target, when: When, new_body: Option<Tag>) -> Outcome {
        let mut fields = json!({});
        put_when(&mut fields, when);
        let mut payload = None;
        if let Some(tag) = new_body {
            let text = body(tag, 60);
            payload = Some(duewheel_judge::history::Payload::of(tag, text.as_bytes()));
            fields["body"] = text.into();
        }
        let body = fields.to_string().into_bytes();
        let request = Request { method: "PATCH", path: path_of(&target), kind: JSON, body };
        let call = Call::Postpone { target, when, body: payload };
        self.one(call, &request, |v| id_of(v).map(|id| Answer::Changed(Some(id))))
    }

    pub(crate) fn fire(&mut self, target: Target) -> Outcome {
        let path = format!("{}/fire", path_of(&target));
        let request = Request { method: "POST", path, kind: JSON, body: b"{}".to_vec() };
        self.one(Call::Fire(target), &request, |v| id_of(v).map(|id| Answer::Changed(Some(id))))
    }

    pub(crate) fn get(&mut self, target: Target) -> Outcome {
        let request = Request { method: "GET", path: path_of(&target), kind: JSON, body: Vec::new() };
        self.one(Call::Get(target), &request, |v| read_held(v).map(Answer::Found))
    }

    pub(crate) fn reserve(
        &mut self,
        queue: &str,
        max: u64,
        wait_ms: u64,
        lease_ms: Option<u64>,
    ) -> Vec<Grant> {
        let mut fields = json!({"max": max, "wait_ms": wait_ms});
        if let Some(ms) = lease_ms {
            fields["lease_ms"] = ms.into();
        }
        let request = Request {
            method: "POST",
            path: format!("/v1/queues/{}/reserve", escape(queue)),
            kind: JSON,
            body: fields.to_string().into_bytes(),
        };
        let call = Call::Reserve { queue: queue.to_owned(), max, wait_ms, lease_ms };
        let read = |v: &Value| {
            let grants = v["messages"].as_array()?.iter().map(read_grant).collect::<Option<Vec<_>>>()?;
            Some(Answer::Grants(grants))
        };
        match self.one(call, &request, read) {
            Some(Ok(Answer::Grants(grants))) => grants,
            _ => Vec::new(),
        }
    }

    pub(crate) fn ack(&mut self, proof: Proof) -> Outcome {
        let request = settle(&proof, "ack", json!({}));
        self.one(Call::Ack(proof), &request, |v| (v["result"] == "acked").then_some(Answer::Settled))
    }

    pub(crate) fn ack_batch(&mut self, proofs: Vec<Proof>) -> Vec<Outcome> {
        let leases: Vec<Value> =
            proofs.iter().map(|p| json!({"id": p.id.0.to_string(), "lease_token": p.token.0})).collect();
        let request = Request {
            method: "POST",
            path: "/v1/ack".to_owned(),
            kind: JSON,
            body: json!({ "messages": leases }).to_string().into_bytes(),
        };
        let calls = proofs.into_iter().map(Call::Ack).collect();
        let split = |r: &Response| {
            let value: Value = serde_json::from_slice(&r.body).unwrap_or(Value::Null);
            value["results"].as_array().cloned().unwrap_or_default()
        };
        self.many(calls, &request, split, |v| (v["result"] == "acked").then_some(Answer::Settled))
    }

    pub(crate) fn nack(&mut self, proof: Proof, delay_ms: Option<u64>) -> Outcome {
        let fields = delay_ms.map_or(json!({}), |ms| json!({ "delay_ms": ms }));
        let request = settle(&proof, "nack", fields);
        let read = |v: &Value| (v["result"] == "again" || v["result"] == "dead").then_some(Answer::Settled);
        self.one(Call::Nack { proof, delay_ms }, &request, read)
    }

    pub(crate) fn extend(&mut self, proof: Proof, lease_ms: u64) -> Outcome {
        let request = settle(&proof, "extend", json!({ "lease_ms": lease_ms }));
        self.one(Call::Extend { proof, lease_ms }, &request, |_| Some(Answer::Settled))
    }

    /// Something that is no operation of the history.
    pub(crate) fn plain(
        &mut self,
        method: &'static str,
        path: String,
        body: &Value,
    ) -> Result<Value, String> {
        if !self.connect() {
            return Err("not connected".to_owned());
        }
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request { method, path, kind: JSON, body };
        match self.exchange(&request) {
            Ok(r) if r.end == Completeness::Whole && r.status == 200 => {
                serde_json::from_slice(&r.body).map_err(|e| e.to_string())
            }
            Ok(r) => {
                Err(format!("{} {}: {} {}", method, request.path, r.status, String::from_utf8_lossy(&r.body)))
            }
            Err(e) => Err(e.to_string()),
        }
    }

    /// Everything that is visible in a queue.
    pub(crate) fn list(&mut self, queue: &str) -> Result<Vec<Held>, String> {
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
}

/// A message to be enqueued: what the history keeps of it, and its bytes.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) call: duewheel_judge::history::Enqueue,
    pub(crate) bytes: Vec<u8>,
}

impl Message {
    fn json(&self) -> Value {
        let e = &self.call;
        let mut fields = json!({});
        match std::str::from_utf8(&self.bytes) {
            Ok(text) => fields["body"] = text.into(),
            Err(_) => fields["body_base64"] = STANDARD.encode(&self.bytes).into(),
        }
        put_when(&mut fields, e.when);
        if let Some(key) = &e.key {
            fields["key"] = key.as_str().into();
        }
        match e.if_exists {
            IfExists::Reject => {}
            IfExists::Keep => fields["if_exists"] = "keep".into(),
            IfExists::Replace => fields["if_exists"] = "replace".into(),
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
}

fn put_when(fields: &mut Value, when: When) {
    match when {
        When::DelayMs(ms) => fields["delay_ms"] = ms.into(),
        When::AtMs(ms) => {
            fields["due_at"] = rfc3339(ms).into();
            fields["past"] = "fire".into();
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

fn read_enqueued(value: &Value) -> Option<Answer> {
    let replaced = match &value["replaced"] {
        Value::Null => None,
        other => Some(number(other)?),
    };
    Some(Answer::Enqueued { id: id_of(value)?, created: value["created"].as_bool()?, replaced })
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
    })
}
