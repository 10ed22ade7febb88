//! The duewheel server over beanstalkd's protocol.
//!
//! The protocol has no lease tokens: a reservation belongs to its connection. So the token of a grant is made here,
//! when the grant is read: the number of the process's start, then a counter. The order is right as long as a grant is
//! read while its lease must still run; one that is read later counts as unknown. Only the connection that took a lease
//! can settle it, as long as it has not been given the same job again.
//!
//! Delays are whole seconds. There is no listing: the jobs in the history are queried one by one, and their number is
//! compared with the tube's.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duewheel_judge::history::{
    Answer, Call, Grant, Held, Leases, MsgId, Proof, Recorder, Refusal, Rules, Seen, Shards, Stamp, State,
    Target, Token, Told, When,
};

use super::http::LITTLE_MEMORY;
use super::{Ability, Asked, Heard, OFFER_MS, Peer, Reply, System};
use crate::http::Soundness;
use crate::process::{PATIENCE, Server, binary};

pub(super) const OURS: [Ability; 5] = [
    Ability::Cancel,
    Ability::Wait,
    Ability::Nack,
    Ability::Extend,
    // The commands are `put-key` and `delete-key`; the reply to `replace-key` does not name the replaced message.
    Ability::Keys,
];

/// The promises of our server over this protocol.
pub(super) fn ours() -> Rules {
    Rules {
        lease_ms: 2_000,
        max_attempts: u64::MAX,
        offer_ms: OFFER_MS,
        slack_ms: 50,
        shards: Shards::Many,
        keys: Told::No,
        lateness: Told::No,
        leases: Leases::OfConnections,
        ..Rules::default()
    }
}

/// The duewheel server over beanstalkd's protocol.
#[derive(Clone, Debug, Default)]
pub struct DuewheelBeanstalk {
    tokens: Arc<AtomicU64>,
}

impl System for DuewheelBeanstalk {
    fn name(&self) -> &'static str {
        "duewheel, beanstalk"
    }

    fn abilities(&self) -> &[Ability] {
        &OURS
    }

    fn unit_ms(&self) -> u64 {
        1_000
    }

    fn rules(&self) -> Rules {
        ours()
    }

    fn spawn(&self, folder: &Path) -> io::Result<Server> {
        let mut command = Command::new(binary()?);
        command.arg("serve").arg("--data").arg(folder.join("data"));
        command.args(["--http", "off", "--beanstalk", "127.0.0.1:0"]).args(LITTLE_MEMORY);
        Server::spawn(command, &folder.join("server.log"), "beanstalk")
    }

    fn connect(&self, address: SocketAddr, reign: u64) -> io::Result<Box<dyn Peer>> {
        Ok(Box::new(Beanstalk::open(address, reign, self.rules(), Arc::clone(&self.tokens))?))
    }
}

/// Lines and bodies over a connection.
#[derive(Debug)]
struct Wire {
    stream: BufReader<TcpStream>,
    sound: Soundness,
}

impl Wire {
    fn open(address: SocketAddr, patience: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Wire { stream: BufReader::new(stream), sound: Soundness::Open })
    }

    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        if result.is_err() {
            self.sound = Soundness::Closed;
        }
        result
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let result = self.stream.get_mut().write_all(bytes);
        self.note(result)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        let read = self.stream.read_until(b'\n', &mut line);
        let whole = read.and_then(|_| match line.strip_suffix(b"\r\n") {
            Some(line) => String::from_utf8(line.to_vec()).map_err(io::Error::other),
            None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed")),
        });
        self.note(whole)
    }

    /// Reads a body of this number of bytes, and the end of its line.
    fn body(&mut self, len: &str) -> io::Result<Vec<u8>> {
        let len: usize = len.parse().map_err(io::Error::other)?;
        let mut body = vec![0; len + 2];
        let result = self.stream.read_exact(&mut body);
        self.note(result)?;
        body.truncate(len);
        Ok(body)
    }

    /// Reads the data of the reply `OK`; `None` for `NOT_FOUND`.
    fn read_yaml(&mut self) -> io::Result<Option<String>> {
        let line = self.line()?;
        match line.split_once(' ') {
            Some(("OK", len)) => {
                let body = self.body(len)?;
                Ok(Some(String::from_utf8_lossy(&body).into_owned()))
            }
            _ if line == "NOT_FOUND" => Ok(None),
            _ => self.note(Err(io::Error::other(format!("answered {line:?}")))),
        }
    }

    fn yaml(&mut self, command: &str) -> io::Result<Option<String>> {
        self.send(command.as_bytes())?;
        self.read_yaml()
    }
}

fn field<'y>(yaml: &'y str, name: &str) -> Option<&'y str> {
    yaml.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn number(yaml: &str, name: &str) -> io::Result<u64> {
    let value = field(yaml, name).and_then(|text| text.parse().ok());
    value.ok_or_else(|| io::Error::other(format!("no {name} in {yaml:?}")))
}

#[derive(Debug)]
pub(super) struct Beanstalk {
    wire: Wire,
    rules: Rules,
    reign: u64,
    tokens: Arc<AtomicU64>,
    /// The latest lease that this connection took of each job.
    taken: BTreeMap<MsgId, Token>,
    used: String,
    watched: String,
}

const PRIORITY: u32 = 1024;

impl Beanstalk {
    pub(super) fn open(
        address: SocketAddr,
        reign: u64,
        rules: Rules,
        tokens: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let wire = Wire::open(address, PATIENCE)?;
        let default = || "default".to_owned();
        let taken = BTreeMap::new();
        Ok(Beanstalk { wire, rules, reign, tokens, taken, used: default(), watched: default() })
    }

    /// The commands to send for an operation, and the number of replies that belong to preceding commands.
    fn words(&mut self, asked: &Asked) -> Option<(Vec<u8>, usize)> {
        let mut before = 0;
        let mut out = Vec::new();
        match &asked.call {
            Call::Enqueue(e) => {
                if self.used != e.queue {
                    out.extend_from_slice(format!("use {}\r\n", e.queue).as_bytes());
                    self.used.clone_from(&e.queue);
                    before += 1;
                }
                let When::DelayMs(delay_ms) = e.when else { return None };
                let delay = delay_ms / 1_000;
                let verb = match &e.key {
                    Some(key) => format!("put-key {}", encode(key)),
                    None => "put".to_owned(),
                };
                let ttr = e.lease_ms.unwrap_or(self.rules.lease_ms).div_ceil(1_000);
                let head = format!("{verb} {PRIORITY} {delay} {ttr} {}\r\n", asked.bytes.len());
                out.extend_from_slice(head.as_bytes());
                out.extend_from_slice(&asked.bytes);
                out.extend_from_slice(b"\r\n");
            }
            Call::Cancel(Target::Id(id)) => out.extend_from_slice(format!("delete {}\r\n", id.0).as_bytes()),
            Call::Cancel(Target::Key { queue, key }) => {
                if self.used != *queue {
                    out.extend_from_slice(format!("use {queue}\r\n").as_bytes());
                    self.used.clone_from(queue);
                    before += 1;
                }
                out.extend_from_slice(format!("delete-key {}\r\n", encode(key)).as_bytes());
            }
            Call::Reserve { queue, wait_ms, .. } => {
                if self.watched != *queue {
                    let old = std::mem::replace(&mut self.watched, queue.clone());
                    out.extend_from_slice(format!("watch {queue}\r\nignore {old}\r\n").as_bytes());
                    before += 2;
                }
                out.extend_from_slice(format!("reserve-with-timeout {}\r\n", wait_ms / 1_000).as_bytes());
            }
            Call::Ack(proof) => out.extend_from_slice(format!("delete {}\r\n", proof.id.0).as_bytes()),
            Call::Nack { proof, delay_ms } => {
                let delay = delay_ms.unwrap_or(0) / 1_000;
                out.extend_from_slice(format!("release {} {PRIORITY} {delay}\r\n", proof.id.0).as_bytes());
            }
            Call::Extend { proof, .. } => {
                out.extend_from_slice(format!("touch {}\r\n", proof.id.0).as_bytes());
            }
            Call::Postpone { .. }
            | Call::Fire(_)
            | Call::Get(_)
            | Call::Bury(_)
            | Call::Redrive(_)
            | Call::Purge { .. }
            | Call::Limit { .. } => return None,
        }
        Some((out, before))
    }

    fn hear(&mut self, call: &Call, before: usize, clock: &Recorder) -> Reply {
        if self.wire.sound == Soundness::Closed {
            let heard = Heard::Unknown("the replies before it were cut".to_owned());
            return Reply { at: clock.stamp(), heard };
        }
        let heard = self.try_hear(call, before, clock);
        heard.unwrap_or_else(|e| Reply { at: clock.stamp(), heard: Heard::Unknown(e.to_string()) })
    }

    fn try_hear(&mut self, call: &Call, before: usize, clock: &Recorder) -> io::Result<Reply> {
        for _ in 0..before {
            let line = self.wire.line()?;
            if !(line.starts_with("USING ") || line.starts_with("WATCHING ")) {
                let heard = Heard::Absurd(format!("use, watch or ignore was answered {line:?}"));
                return Ok(Reply { at: clock.stamp(), heard });
            }
        }
        let line = self.wire.line()?;
        let words: Vec<&str> = line.split(' ').collect();
        let id = |text: &str| text.parse().ok().map(MsgId);
        let heard = match (call, &words[..]) {
            (Call::Enqueue(_), ["INSERTED", n]) => id(n)
                .map(|id| {
                    Heard::Done(Answer::Enqueued {
                        id,
                        created: true,
                        replaced: None,
                        superseded: None,
                        due_at_ms: None,
                    })
                })
                .unwrap_or_else(|| Heard::Absurd(line.clone())),
            (Call::Enqueue(_), ["KEY_EXISTS", _]) => Heard::Refused(Refusal::KeyExists),
            (Call::Enqueue(_), ["JOB_TOO_BIG"]) => Heard::Refused(Refusal::Other(line.clone())),
            (Call::Enqueue(_), ["BAD_FORMAT"]) => {
                // The body is read as commands: none of the following replies belongs to the intended command.
                self.wire.sound = Soundness::Closed;
                Heard::Refused(Refusal::Other(line.clone()))
            }
            (Call::Cancel(target), ["DELETED"]) => Heard::Done(Answer::Cancelled(match target {
                Target::Id(id) => Some(*id),
                Target::Key { .. } => None,
            })),
            (Call::Cancel(Target::Id(_)), ["NOT_FOUND"]) => Heard::Refused(Refusal::GoneOrLeased),
            (Call::Cancel(Target::Key { .. }), ["NOT_FOUND"]) => Heard::Refused(Refusal::NotFound),
            (Call::Cancel(Target::Key { .. }), ["KEY_RESERVED"]) => Heard::Refused(Refusal::Leased),
            (Call::Reserve { .. }, ["RESERVED", n, len]) => {
                let body = self.wire.body(len)?;
                let at = clock.stamp();
                return Ok(match id(n) {
                    Some(id) => self.granted(id, &body, at),
                    None => Reply { at, heard: Heard::Absurd(line.clone()) },
                });
            }
            (Call::Reserve { .. }, ["TIMED_OUT"]) => Heard::Done(Answer::Grants(Vec::new())),
            (Call::Reserve { .. }, ["DEADLINE_SOON"]) => Heard::Refused(Refusal::Other(line.clone())),
            (Call::Ack(_), ["DELETED"])
            | (Call::Nack { .. }, ["RELEASED"])
            | (Call::Extend { .. }, ["TOUCHED"]) => Heard::Done(Answer::Settled),
            (Call::Ack(_) | Call::Nack { .. } | Call::Extend { .. }, ["NOT_FOUND"]) => {
                Heard::Refused(Refusal::LeaseLost)
            }
            (_, ["OUT_OF_MEMORY" | "DRAINING"]) => Heard::Refused(Refusal::Other(line.clone())),
            (_, ["INTERNAL_ERROR"]) => Heard::Unknown(line.clone()),
            _ => {
                self.wire.sound = Soundness::Closed;
                Heard::Absurd(format!("{call:?} was answered {line:?}"))
            }
        };
        Ok(Reply { at: clock.stamp(), heard })
    }

    fn granted(&mut self, id: MsgId, body: &[u8], at: Stamp) -> Reply {
        let n = self.tokens.fetch_add(1, Ordering::SeqCst) + 1;
        let token = Token(format!("{:06}-{n:012}", self.reign));
        self.taken.insert(id, token.clone());
        let grant =
            Grant { id, token, attempt: 0, key: None, body: Seen::of(body), lateness_ms: 0, late: false };
        Reply { at, heard: Heard::Done(Answer::Grants(vec![grant])) }
    }

    /// Looks up what the grants do not contain, and drops those that were read so late that another consumer may have
    /// them.
    fn complete(&mut self, replies: &mut [Reply], asked_at: Stamp, clock: &Recorder) {
        let mut told: BTreeMap<MsgId, Result<u64, String>> = BTreeMap::new();
        let ids: Vec<MsgId> = replies.iter().flat_map(granted_ids).collect();
        let all: String = ids.iter().map(|id| format!("stats-job {}\r\n", id.0)).collect();
        let sent = self.wire.send(all.as_bytes());
        for id in ids {
            let told_of = match &sent {
                Ok(()) => self.reserves(),
                Err(e) => Err(e.to_string()),
            };
            told.insert(id, told_of);
        }
        let late = clock.stamp().mono_ns.saturating_sub(asked_at.mono_ns) >= self.rules.lease_ms * 1_000_000;
        for reply in replies {
            let Heard::Done(Answer::Grants(grants)) = &mut reply.heard else { continue };
            let mut unknown = (late && !grants.is_empty()).then(|| "read after its lease".to_owned());
            for grant in grants {
                match told.get(&grant.id) {
                    Some(Ok(attempt)) => grant.attempt = *attempt,
                    Some(Err(why)) => unknown = Some(format!("its attempts cannot be told: {why}")),
                    None => {}
                }
                if unknown.is_some() {
                    self.taken.remove(&grant.id);
                }
            }
            if let Some(why) = unknown {
                reply.heard = Heard::Unknown(why);
            }
        }
    }

    fn reserves(&mut self) -> Result<u64, String> {
        let yaml = self.wire.read_yaml().map_err(|e| e.to_string())?;
        let yaml = yaml.ok_or("it is gone")?;
        number(&yaml, "reserves").map_err(|e| e.to_string())
    }

    fn counts(&mut self, queue: &str) -> io::Result<[u64; 4]> {
        let Some(yaml) = self.wire.yaml(&format!("stats-tube {queue}\r\n"))? else { return Ok([0; 4]) };
        let count = |state: &str| number(&yaml, &format!("current-jobs-{state}"));
        Ok([count("delayed")?, count("ready")?, count("reserved")?, count("buried")?])
    }

    fn rows(&mut self, queue: &str, known: &[MsgId]) -> io::Result<Vec<Held>> {
        let mut rows = Vec::new();
        for ids in known.chunks(100) {
            let all: String = ids.iter().map(|id| format!("stats-job {}\r\n", id.0)).collect();
            self.wire.send(all.as_bytes())?;
            for id in ids {
                let Some(yaml) = self.wire.read_yaml()? else { continue };
                if field(&yaml, "tube").map(|tube| tube.trim_matches('"')) != Some(queue) {
                    continue;
                }
                let state = match field(&yaml, "state") {
                    Some("delayed") => State::Scheduled,
                    Some("ready") => State::Ready,
                    Some("reserved") => State::Leased,
                    Some("buried") => State::Dead,
                    other => return Err(io::Error::other(format!("a job's state is {other:?}"))),
                };
                let attempt = number(&yaml, "reserves")?;
                rows.push(Held {
                    id: *id,
                    key: None,
                    state,
                    attempt,
                    body: None,
                    forgiven: None,
                    death: None,
                });
            }
        }
        let held: u64 = self.counts(queue)?.iter().sum();
        if held != rows.len() as u64 {
            let what = format!("{queue} says that it holds {held} jobs, but {} are known", rows.len());
            return Err(io::Error::other(what));
        }
        Ok(rows)
    }
}

fn granted_ids(reply: &Reply) -> Vec<MsgId> {
    match &reply.heard {
        Heard::Done(Answer::Grants(grants)) => grants.iter().map(|g| g.id).collect(),
        _ => Vec::new(),
    }
}

impl Peer for Beanstalk {
    fn ask(&mut self, asked: &[Asked], clock: &Recorder) -> Vec<Reply> {
        let asked_at = clock.stamp();
        let mut all = Vec::new();
        let mut befores = Vec::new();
        for a in asked {
            match self.words(a) {
                Some((words, before)) => {
                    all.extend_from_slice(&words);
                    befores.push(before);
                }
                None => {
                    let heard = Heard::Absurd(format!("no words for {:?}", a.call));
                    return vec![Reply { at: clock.stamp(), heard }; asked.len()];
                }
            }
        }
        if let Err(e) = self.wire.send(&all) {
            return vec![Reply { at: clock.stamp(), heard: Heard::Unknown(e.to_string()) }; asked.len()];
        }
        let replies = asked.iter().zip(befores).map(|(a, before)| self.hear(&a.call, before, clock));
        let mut replies: Vec<Reply> = replies.collect();
        self.complete(&mut replies, asked_at, clock);
        replies
    }

    fn soundness(&self) -> Soundness {
        self.wire.sound
    }

    fn may_settle(&self, proof: &Proof) -> bool {
        self.taken.get(&proof.id) == Some(&proof.token)
    }

    fn list(&mut self, queue: &str, known: &[MsgId]) -> Result<Vec<Held>, String> {
        self.rows(queue, known).map_err(|e| e.to_string())
    }

    fn waiting(&mut self, queue: &str) -> Result<u64, String> {
        let [delayed, ready, reserved, _] = self.counts(queue).map_err(|e| e.to_string())?;
        Ok(delayed + ready + reserved)
    }
}

/// A key in the form of `put-key`.
fn encode(key: &str) -> String {
    crate::http::escape(key)
}
