//! The usual home-made queue on Redis, as careful people build it: the bodies in hashes, the due times and the leases
//! in two sorted sets, each operation one Lua script, time by the server's clock, tokens from a counter.
//!
//! It can also have a defect on purpose ([`Defect`]), of the kinds that such queues usually have: the tests must find
//! it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use duewheel_judge::history::{
    Answer, Call, Grant, Held, IfExists, MsgId, Proof, Recorder, Refusal, Rules, Seen, State, Target, Token,
    When, wall_ms,
};
use duewheel_redis_rig::{Appendonly, Settings, Value, Wire, answers, free_port, program};

use super::{Ability, Asked, Heard, Peer, Reply, System};
use crate::http::Soundness;
use crate::process::{Listens, PATIENCE, Server};

/// A defect of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Due messages are looked up in one step and taken in another.
    PopInTwoSteps,
    /// A message is removed when it is handed out.
    AckBeforeProcessing,
    /// The clock is rounded down to seconds when the due time is computed.
    DueRoundedDown,
    /// Settles do not compare tokens.
    TokenIgnored,
    /// A cancel looks in one step and removes in another.
    CancelInTwoSteps,
    /// Redis with its default settings: snapshots now and then, no append-only file.
    NoLog,
}

impl Defect {
    /// All of them.
    pub const ALL: [Defect; 6] = [
        Defect::PopInTwoSteps,
        Defect::AckBeforeProcessing,
        Defect::DueRoundedDown,
        Defect::TokenIgnored,
        Defect::CancelInTwoSteps,
        Defect::NoLog,
    ];
}

/// Redis with the scripts of this file.
#[derive(Clone, Copy, Debug)]
pub struct Redis {
    defect: Option<Defect>,
}

impl Redis {
    /// The queue without a defect.
    pub fn sound() -> Self {
        Redis { defect: None }
    }

    /// The queue with a defect.
    pub fn with(defect: Defect) -> Self {
        Redis { defect: Some(defect) }
    }

    /// The script of an operation, with the defect if it concerns it.
    fn script(&self, verb: &str) -> String {
        let right = match verb {
            "enqueue" => ENQUEUE,
            "reserve" => RESERVE,
            "look" => LOOK,
            "settle" => SETTLE,
            "cancel" => CANCEL,
            "find" => FIND,
            "dump" => DUMP,
            other => unreachable!("no script {other}"),
        };
        let (from, to) = match (self.defect, verb) {
            (Some(Defect::DueRoundedDown), "enqueue") => ("math.ceil(now_us / 1000)", "now - now % 1000"),
            (Some(Defect::PopInTwoSteps), "reserve") => (POP, "local ids = {unpack(ARGV, 4)}\n"),
            (Some(Defect::AckBeforeProcessing), "reserve") => ("local kept = true", "local kept = false"),
            (Some(Defect::AckBeforeProcessing), "settle") => ("return 'lost'", "return 'settled'"),
            (Some(Defect::TokenIgnored), "settle") => ("held ~= token", "not held"),
            (Some(Defect::CancelInTwoSteps), "cancel") => {
                ("local look_first = true", "local look_first = false")
            }
            _ => ("", ""),
        };
        assert!(right.contains(from), "the defect {:?} has no place in {verb}", self.defect);
        format!("{COMMON}{}", if from.is_empty() { right.to_owned() } else { right.replace(from, to) })
    }
}

/// The time, the keys of a queue, and the end of leases: overdue messages in `leased` are due again.
const COMMON: &str = "
local q = ARGV[1]
if q == '' then q = redis.call('HGET', 'm:' .. ARGV[2], 'queue') or '' end
local t = redis.call('TIME')
local now_us = t[1] * 1000000 + t[2]
local now = math.floor(now_us / 1000)
local due, leased, keys = q .. ':due', q .. ':leased', q .. ':keys'
local function m(id) return 'm:' .. id end
local function remove(id)
  local key = redis.call('HGET', m(id), 'key')
  if key and redis.call('HGET', keys, key) == id then redis.call('HDEL', keys, key) end
  redis.call('ZREM', due, id)
  redis.call('ZREM', leased, id)
  redis.call('DEL', m(id))
end
local over = redis.call('ZRANGEBYSCORE', leased, '-inf', now, 'WITHSCORES')
for i = 1, #over, 2 do
  redis.call('ZREM', leased, over[i])
  redis.call('ZADD', due, over[i + 1], over[i])
end
";

/// queue, body, delay, at, key, if_exists
const ENQUEUE: &str = "
local body, delay, at, key, if_exists = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local score = tonumber(at)
if not score then
  local d = tonumber(delay)
  if not d or d < 0 then return redis.error_reply('BADDELAY ' .. delay) end
  score = math.ceil(now_us / 1000) + d
end
local replaced = ''
if key ~= '' then
  local old = redis.call('HGET', keys, key)
  if old then
    if if_exists == 'reject' then return {'exists'} end
    if if_exists == 'keep' then return {'kept', old} end
    if redis.call('ZSCORE', leased, old) then return {'leased'} end
    remove(old)
    replaced = old
  end
end
local id = tostring(redis.call('INCR', 'ids'))
redis.call('HSET', m(id), 'queue', q, 'body', body)
if key ~= '' then
  redis.call('HSET', m(id), 'key', key)
  redis.call('HSET', keys, key, id)
end
redis.call('ZADD', due, score, id)
return {'created', id, replaced}
";

/// queue, max
const LOOK: &str = "
return redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, ARGV[2])
";

const POP: &str = "local ids = redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, ARGV[2])\n";

/// queue, max, lease
const RESERVE: &str = "
local ids = redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, ARGV[2])
local out = {}
local kept = true
for _, id in ipairs(ids) do
  local was = redis.call('ZSCORE', due, id) or now
  redis.call('ZREM', due, id)
  local key, body = unpack(redis.call('HMGET', m(id), 'key', 'body'))
  if body then
    local token = tostring(redis.call('INCR', 'tokens'))
    local attempt = tostring(redis.call('HINCRBY', m(id), 'attempt', 1))
    redis.call('HSET', m(id), 'token', token)
    redis.call('ZADD', leased, math.ceil(now_us / 1000) + ARGV[3], id)
    table.insert(out, {id, token, attempt, key or '', body, tostring(now - was)})
    if not kept then remove(id) end
  end
end
return out
";

/// queue, id, token, verb, ms
const SETTLE: &str = "
local id, token, verb, ms = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local held = redis.call('HGET', m(id), 'token')
if held ~= token then return 'lost' end
if verb == 'extend' then
  if not redis.call('ZSCORE', leased, id) then return 'lost' end
  redis.call('ZADD', leased, math.ceil(now_us / 1000) + ms, id)
elseif verb == 'nack' then
  redis.call('HDEL', m(id), 'token')
  redis.call('ZREM', leased, id)
  redis.call('ZADD', due, math.ceil(now_us / 1000) + ms, id)
else
  remove(id)
end
return 'settled'
";

/// queue, id, key
const CANCEL: &str = "
local id = ARGV[2]
if id == '' then id = redis.call('HGET', keys, ARGV[3]) or '' end
local look_first = true
if look_first then
  if redis.call('EXISTS', m(id)) == 0 then return {'gone'} end
  if redis.call('ZSCORE', leased, id) then return {'leased'} end
end
remove(id)
return {'cancelled', id}
";

/// queue, id, key
const FIND: &str = "
local id = ARGV[2]
if id == '' then id = redis.call('HGET', keys, ARGV[3]) or '' end
if redis.call('EXISTS', m(id)) == 0 then return {} end
local key, body, attempt = unpack(redis.call('HMGET', m(id), 'key', 'body', 'attempt'))
local at = redis.call('ZSCORE', due, id)
local state = 'leased'
if at then state = tonumber(at) > now and 'scheduled' or 'ready' end
return {id, state, attempt or '0', key or '', body, at or ''}
";

/// queue
const DUMP: &str = "
local out = {}
for _, set in ipairs({due, leased}) do
  for _, id in ipairs(redis.call('ZRANGE', set, 0, -1)) do table.insert(out, id) end
end
return out
";

const ABILITIES: [Ability; 10] = [
    Ability::Cancel,
    Ability::Keys,
    Ability::IfExists,
    Ability::At,
    Ability::Get,
    Ability::LeaseLength,
    Ability::ReserveMany,
    Ability::Nack,
    Ability::Extend,
    Ability::Durable,
];

impl System for Redis {
    fn name(&self) -> &'static str {
        match self.defect {
            None => "Redis, sorted sets",
            Some(Defect::PopInTwoSteps) => "Redis, pop in two steps",
            Some(Defect::AckBeforeProcessing) => "Redis, ack before processing",
            Some(Defect::DueRoundedDown) => "Redis, due rounded down",
            Some(Defect::TokenIgnored) => "Redis, token ignored",
            Some(Defect::CancelInTwoSteps) => "Redis, cancel in two steps",
            Some(Defect::NoLog) => "Redis, no log",
        }
    }

    fn described(&self) -> String {
        let version = Command::new(program()).arg("--version").output();
        let version = match version {
            Ok(o) => {
                let text = String::from_utf8_lossy(&o.stdout).into_owned();
                text.split(' ').find_map(|w| w.strip_prefix("v=")).unwrap_or("?").to_owned()
            }
            Err(e) => e.to_string(),
        };
        let settings = match self.defect {
            Some(Defect::NoLog) => "as it is by default",
            _ => "`appendonly yes`, `appendfsync always`",
        };
        format!("Redis {version}, {settings}; the scripts of `proof/sim/src/blackbox/redis.rs`")
    }

    fn abilities(&self) -> &[Ability] {
        &ABILITIES
    }

    fn unit_ms(&self) -> u64 {
        1
    }

    fn rules(&self) -> Rules {
        Rules { lease_ms: 400, max_attempts: u64::MAX, offer_ms: 5_000, ..Rules::default() }
    }

    fn spawn(&self, folder: &Path) -> io::Result<Server> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let settings = match self.defect {
            Some(Defect::NoLog) => Settings {
                appendonly: Appendonly::Off,
                // The default settings.
                extra: ["--save", "3600 1 300 100 60 10000"].map(str::to_owned).to_vec(),
                ..Settings::default()
            },
            _ => Settings::default(),
        };
        let command = settings.command(&folder.join("data"), address.port())?;
        Server::spawn(command, &folder.join("server.log"), Listens::Answers(address, answers))
    }

    fn connect(&self, address: SocketAddr, _reign: u64) -> io::Result<Box<dyn Peer>> {
        Ok(Box::new(Queue { wire: Wire::open(address, PATIENCE)?, system: *self }))
    }
}

type Words = Vec<Vec<u8>>;

#[derive(Debug)]
struct Queue {
    wire: Wire,
    system: Redis,
}

impl Queue {
    fn eval(&self, verb: &str, arguments: Vec<Vec<u8>>) -> Words {
        let mut words = vec![b"EVAL".to_vec(), self.system.script(verb).into_bytes(), b"0".to_vec()];
        words.extend(arguments);
        words
    }

    fn words(&self, asked: &Asked) -> Option<Words> {
        let text = |t: &str| t.as_bytes().to_vec();
        // A message that is named by its id knows its queue.
        let settle = |proof: &Proof, verb: &str, ms: u64| {
            let id = proof.id.0.to_string();
            self.eval("settle", ["", &id, &proof.token.0, verb, &ms.to_string()].map(text).to_vec())
        };
        let target = |verb: &str, target: &Target| match target {
            Target::Id(id) => self.eval(verb, ["", &id.0.to_string(), ""].map(text).to_vec()),
            Target::Key { queue, key } => self.eval(verb, [queue, "", key].map(text).to_vec()),
        };
        Some(match &asked.call {
            Call::Enqueue(e) => {
                let (delay, at) = match (&asked.delay, e.when) {
                    (Some(delay), _) => (delay.clone(), String::new()),
                    (None, When::DelayMs(ms)) => (ms.to_string(), String::new()),
                    (None, When::AtMs(ms)) => (String::new(), ms.to_string()),
                };
                let if_exists = match e.if_exists {
                    IfExists::Reject => "reject",
                    IfExists::Keep => "keep",
                    IfExists::Replace => "replace",
                    IfExists::Supersede => return None,
                };
                let key = e.key.as_deref().unwrap_or("");
                let mut words = vec![text(&e.queue), asked.bytes.clone()];
                words.extend([&delay, &at, key, if_exists].map(text));
                self.eval("enqueue", words)
            }
            Call::Cancel(t) => target("cancel", t),
            Call::Get(t) => target("find", t),
            Call::Reserve { queue, max, lease_ms, .. } => {
                let lease = lease_ms.unwrap_or(self.system.rules().lease_ms);
                self.eval("reserve", [queue, &max.to_string(), &lease.to_string()].map(|t| text(t)).to_vec())
            }
            Call::Ack(proof) => settle(proof, "ack", 0),
            Call::Nack { proof, delay_ms } => settle(proof, "nack", delay_ms.unwrap_or(0)),
            Call::Extend { proof, lease_ms } => settle(proof, "extend", *lease_ms),
            Call::Postpone { .. }
            | Call::Fire(_)
            | Call::Bury(_)
            | Call::Redrive(_)
            | Call::Purge { .. }
            | Call::Limit { .. } => {
                return None;
            }
        })
    }

    /// The first of two steps, if the defect needs two; `None`: the second step has nothing to do.
    fn first_step(&mut self, asked: &Asked, words: Words) -> io::Result<Option<Words>> {
        match (self.system.defect, &asked.call) {
            (Some(Defect::PopInTwoSteps), Call::Reserve { .. }) => {
                self.wire.send(&[self.eval("look", words[3..5].to_vec())])?;
                let ids = self.wire.read()?;
                let ids = ids.list().iter().filter_map(Value::text).map(String::into_bytes);
                Ok(Some(words.into_iter().chain(ids).collect()))
            }
            (Some(Defect::CancelInTwoSteps), Call::Cancel(_)) => {
                self.wire.send(&[self.eval("find", words[3..].to_vec())])?;
                let found = self.wire.read()?;
                let leased = found.list().get(1).and_then(Value::text).as_deref() == Some("leased");
                Ok((!found.list().is_empty() && !leased).then_some(words))
            }
            _ => Ok(Some(words)),
        }
    }

    fn try_ask(&mut self, asked: &[Asked], clock: &Recorder) -> io::Result<Vec<Reply>> {
        let mut commands = Vec::new();
        for a in asked {
            let Some(words) = self.words(a) else {
                let heard = Heard::Absurd(format!("no words for {:?}", a.call));
                return Ok(vec![Reply { at: clock.stamp(), heard }; asked.len()]);
            };
            match self.first_step(a, words)? {
                Some(words) => commands.push(words),
                None => {
                    let heard = Heard::Refused(Refusal::Other("the first step found nothing".to_owned()));
                    return Ok(vec![Reply { at: clock.stamp(), heard }; asked.len()]);
                }
            }
        }
        self.wire.send(&commands)?;
        let replies = asked.iter().map(|a| {
            let value = self.wire.read();
            let at = clock.stamp();
            let heard =
                value.map_or_else(|e| Heard::Unknown(e.to_string()), |value| understand(&a.call, &value));
            Reply { at, heard }
        });
        Ok(replies.collect())
    }

    fn script(&mut self, verb: &str, arguments: &[&str]) -> Result<Value, String> {
        let arguments = arguments.iter().map(|a| a.as_bytes().to_vec()).collect();
        self.wire.send(&[self.eval(verb, arguments)]).map_err(|e| e.to_string())?;
        match self.wire.read().map_err(|e| e.to_string())? {
            Value::Error(e) => Err(e),
            value => Ok(value),
        }
    }

    /// The fields that `find` returns; `None` if the message does not exist.
    fn find(&mut self, id: MsgId) -> Result<Option<Vec<Value>>, String> {
        let found = self.script("find", &["", &id.0.to_string(), ""])?;
        Ok((!found.list().is_empty()).then(|| found.list().to_vec()))
    }
}

impl Peer for Queue {
    fn ask(&mut self, asked: &[Asked], clock: &Recorder) -> Vec<Reply> {
        let replies = self.try_ask(asked, clock);
        replies.unwrap_or_else(|e| {
            let reply = Reply { at: clock.stamp(), heard: Heard::Unknown(e.to_string()) };
            vec![reply; asked.len()]
        })
    }

    fn soundness(&self) -> Soundness {
        if self.wire.is_sound() { Soundness::Open } else { Soundness::Closed }
    }

    fn list(&mut self, queue: &str, _known: &[MsgId]) -> Result<Vec<Held>, String> {
        let ids = self.script("dump", &[queue])?;
        let mut rows = Vec::new();
        for id in ids.list().iter().filter_map(Value::number) {
            let fields =
                self.find(MsgId(id))?.ok_or_else(|| format!("{id} is in a set, but is no message"))?;
            rows.push(read_held(&fields).ok_or_else(|| format!("cannot read {fields:?}"))?);
        }
        Ok(rows)
    }

    fn waiting(&mut self, queue: &str) -> Result<u64, String> {
        let ids = self.script("dump", &[queue])?;
        Ok(ids.list().len() as u64)
    }

    fn left_ms(&mut self, _queue: &str, id: MsgId) -> Result<Option<u64>, String> {
        let Some(fields) = self.find(id)? else { return Ok(None) };
        // A score is a float, and the largest of them are beyond any integer.
        let due: f64 = fields.get(5).and_then(Value::text).and_then(|t| t.parse().ok()).unwrap_or(0.0);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let left = (due - wall_ms() as f64).max(0.0) as u64;
        Ok(Some(left))
    }
}

fn understand(call: &Call, value: &Value) -> Heard {
    if let Value::Error(e) = value {
        return if e.starts_with("BADDELAY") {
            Heard::Refused(Refusal::Other(e.clone()))
        } else {
            Heard::Absurd(format!("{call:?} was answered {e:?}"))
        };
    }
    read(call, value).unwrap_or_else(|| Heard::Absurd(format!("{call:?} was answered {value:?}")))
}

fn read(call: &Call, value: &Value) -> Option<Heard> {
    let list = value.list();
    let id = |n: usize| list.get(n).and_then(Value::number).map(MsgId);
    let word = list.first().and_then(Value::text);
    Some(match (call, word.as_deref()) {
        (Call::Enqueue(_), Some("created")) => Heard::Done(Answer::Enqueued {
            id: id(1)?,
            created: true,
            replaced: id(2),
            superseded: None,
            due_at_ms: None,
        }),
        (Call::Enqueue(_), Some("kept")) => Heard::Done(Answer::Enqueued {
            id: id(1)?,
            created: false,
            replaced: None,
            superseded: None,
            due_at_ms: None,
        }),
        (Call::Enqueue(_), Some("exists")) => Heard::Refused(Refusal::KeyExists),
        (Call::Enqueue(_) | Call::Cancel(_), Some("leased")) => Heard::Refused(Refusal::Leased),
        (Call::Cancel(_), Some("gone")) => Heard::Refused(Refusal::NotFound),
        (Call::Cancel(_), Some("cancelled")) => Heard::Done(Answer::Cancelled(Some(id(1)?))),
        (Call::Get(_), None) => Heard::Refused(Refusal::NotFound),
        (Call::Get(_), Some(_)) => Heard::Done(Answer::Found(read_held(list)?)),
        (Call::Reserve { .. }, _) => {
            let grants = list.iter().map(|g| read_grant(g.list())).collect::<Option<Vec<_>>>()?;
            Heard::Done(Answer::Grants(grants))
        }
        (Call::Ack(_) | Call::Nack { .. } | Call::Extend { .. }, None) => match value.text()?.as_str() {
            "settled" => Heard::Done(Answer::Settled),
            "lost" => Heard::Refused(Refusal::LeaseLost),
            _ => return None,
        },
        _ => return None,
    })
}

fn read_grant(fields: &[Value]) -> Option<Grant> {
    let [id, token, attempt, key, body, late] = fields else { return None };
    let Value::Bytes(body) = body else { return None };
    Some(Grant {
        id: MsgId(id.number()?),
        token: Token(token.text()?),
        attempt: attempt.number()?,
        key: key.text().filter(|key| !key.is_empty()),
        body: Seen::of(body),
        lateness_ms: late.number()?,
        late: false,
    })
}

fn read_held(fields: &[Value]) -> Option<Held> {
    let [id, state, attempt, key, body, _] = fields else { return None };
    let Value::Bytes(body) = body else { return None };
    let state = match state.text()?.as_str() {
        "scheduled" => State::Scheduled,
        "ready" => State::Ready,
        "leased" => State::Leased,
        _ => return None,
    };
    Some(Held {
        id: MsgId(id.number()?),
        key: key.text().filter(|key| !key.is_empty()),
        state,
        attempt: attempt.number()?,
        body: Some(Seen::of(body)),
        forgiven: None,
        death: None,
    })
}
