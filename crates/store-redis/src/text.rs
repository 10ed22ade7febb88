//! The values in the hashes, as text that a person can read with `redis-cli`: words of the form `name=value`, separated
//! by one space.
//!
//! Bytes that would end a word, and `%`, are written as `%` and two hexadecimal digits. A message's body follows its
//! words behind a line feed, byte for byte. `docs/redis.md` describes them.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use duewheel_core::id::{Epoch, LeaseToken, MessageId, SessionId};
use duewheel_core::message::{
    DeadReason, Died, Ended, Expiry, Lease, Life, Marks, MaxAttempts, MessageContent, Options, PastAttempt,
    Row, Stage,
};
use duewheel_core::policy::Backoff;
use duewheel_core::record::{Created, DedupeRow};
use duewheel_core::time::{Due, EngineMs, WallMs};
use duewheel_core::{Key, QueueName, percent};

use crate::lex;

/// The name of the word that could not be read.
pub(crate) type Bad = &'static str;
type ParseResult<T> = Result<T, Bad>;

/// Writes words.
struct WordWriter(Vec<u8>);

impl WordWriter {
    fn word(&mut self, name: &str) {
        if !self.0.is_empty() {
            self.0.push(b' ');
        }
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b'=');
    }

    fn number(&mut self, name: &str, n: u64) {
        self.word(name);
        lex::push_decimal(&mut self.0, n);
    }

    fn numbers(&mut self, name: &str, list: &[u64]) {
        self.word(name);
        for (i, n) in list.iter().enumerate() {
            if i > 0 {
                self.0.push(b',');
            }
            lex::push_decimal(&mut self.0, *n);
        }
    }

    fn maybe(&mut self, name: &str, n: Option<u64>) {
        if let Some(n) = n {
            self.number(name, n);
        }
    }

    fn text(&mut self, name: &str, text: &str) {
        self.word(name);
        escape(&mut self.0, text);
    }

    fn due(&mut self, due: Due) {
        match due {
            Due::At(t) => self.number("at", t.0),
            Due::After(t) => self.number("after", t.0),
        }
    }

    fn token(&mut self, token: LeaseToken) {
        self.word("token");
        self.0.extend_from_slice(token.to_string().as_bytes());
    }
}

/// Appends a text, escaped for a word.
pub(crate) fn escape(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for &b in text.as_bytes() {
        if b <= b' ' || b == b'%' || b == b'=' || b == b',' || b == 0x7f {
            out.extend([b'%', HEX[usize::from(b >> 4)], HEX[usize::from(b & 15)]]);
        } else {
            out.push(b);
        }
    }
}

fn unescape(text: &str, what: Bad) -> ParseResult<String> {
    percent::decode(text).map(Cow::into_owned).map_err(|_| what)
}

/// The words of a text, in order.
fn words(text: &[u8]) -> ParseResult<impl Iterator<Item = ParseResult<(&str, &str)>>> {
    let text = std::str::from_utf8(text).map_err(|_| "text")?;
    Ok(text.split(' ').map(|word| word.split_once('=').ok_or("word")))
}

fn number<T: std::str::FromStr>(text: &str, what: Bad) -> ParseResult<T> {
    text.parse().map_err(|_| what)
}

fn numbers(text: &str, what: Bad) -> ParseResult<Vec<u64>> {
    text.split(',').map(|n| number(n, what)).collect()
}

fn token(text: &str) -> ParseResult<LeaseToken> {
    text.parse().map_err(|_| "token")
}

/// A message, and the life that it has until it changes.
pub(crate) fn message(m: &MessageContent, life: &Life) -> Vec<u8> {
    let mut w = WordWriter(Vec::with_capacity(96 + m.body.len()));
    w.text("queue", m.queue.as_str());
    w.due(life.due);
    w.number("put", m.enqueued_at.0);
    if let Some(key) = &m.key {
        w.text("key", key.as_str());
    }
    w.maybe("priority", life.priority.map(u64::from));
    w.maybe("lease", m.options.lease_ms);
    w.maybe("attempts", m.options.max_attempts.map(|n| u64::from(n.count())));
    if let Some(Backoff { min_ms, max_ms }) = m.options.backoff {
        w.numbers("backoff", &[min_ms, max_ms]);
    }
    w.maybe("spread", m.options.spread_ms);
    match m.options.expiry {
        None => {}
        Some(Expiry::In(ms)) => w.number("expires-in", ms),
        Some(Expiry::At(at)) => w.number("expires-at", at.0),
    }
    for (name, value) in &m.headers {
        w.text("header", name);
        w.0.push(b',');
        escape(&mut w.0, value);
    }
    w.0.push(b'\n');
    w.0.extend_from_slice(&m.body);
    w.0
}

/// Whether a life is the one that [`message`] has written already.
pub(crate) fn is_untouched(life: &Life) -> bool {
    let Life { due: _, generation, attempt, forgiven, priority: _, stage, marks, history } = life;
    *generation == 1
        && (*attempt, *forgiven) == (0, 0)
        && *stage == Stage::Waiting { token: None }
        && *marks == Marks::default()
        && history.is_empty()
}

/// Reads what [`message`] wrote.
pub(crate) fn read_message(id: MessageId, text: Vec<u8>) -> ParseResult<Row> {
    let end = text.iter().position(|b| *b == b'\n').ok_or("end of the words")?;
    let (mut queue, mut due, mut put, mut key, mut priority) = (None, None, None, None, None);
    let (mut options, mut headers) = (Options::default(), Vec::new());
    for word in words(&text[..end])? {
        let (name, value) = word?;
        match name {
            "queue" => queue = Some(QueueName::stored(&unescape(value, "queue")?).map_err(|_| "queue")?),
            "at" => due = Some(Due::At(WallMs(number(value, "at")?))),
            "after" => due = Some(Due::After(EngineMs(number(value, "after")?))),
            "put" => put = Some(WallMs(number(value, "put")?)),
            "key" => key = Some(Key::new(&unescape(value, "key")?).map_err(|_| "key")?),
            "priority" => priority = Some(number(value, "priority")?),
            "lease" => options.lease_ms = Some(number(value, "lease")?),
            "attempts" => {
                let n = MaxAttempts::new(number(value, "attempts")?);
                options.max_attempts = Some(n.ok_or("attempts")?);
            }
            "backoff" => match numbers(value, "backoff")?[..] {
                [min_ms, max_ms] => options.backoff = Some(Backoff { min_ms, max_ms }),
                _ => return Err("backoff"),
            },
            "spread" => options.spread_ms = Some(number(value, "spread")?),
            "expires-in" => options.expiry = Some(Expiry::In(number(value, "expires-in")?)),
            "expires-at" => options.expiry = Some(Expiry::At(WallMs(number(value, "expires-at")?))),
            "header" => {
                let (name, value) = value.split_once(',').ok_or("header")?;
                headers.push((unescape(name, "header")?.into(), unescape(value, "header")?.into()));
            }
            _ => return Err("unknown word of a message"),
        }
    }
    let body = Bytes::from(text).slice(end + 1..);
    let enqueued_at = put.ok_or("put")?;
    let message =
        MessageContent { id, queue: queue.ok_or("queue")?, key, body, headers, options, enqueued_at };
    Ok(Row { message: Arc::new(message), life: Life::new(due.ok_or("due time")?, priority) })
}

/// A life. A lease is only marked: it is in another hash ([`lease`]).
pub(crate) fn life(life: &Life) -> Vec<u8> {
    let mut w = WordWriter(Vec::with_capacity(96));
    match &life.stage {
        Stage::Waiting { .. } => w.text("stage", "waiting"),
        Stage::Leased(_) => w.text("stage", "leased"),
        Stage::Dead { at, .. } => {
            // The due time comes first, and in the form of the sets' members: the script reads it from here.
            w.word("dead");
            lex::push(&mut w.0, at.raw());
        }
    }
    w.due(life.due);
    w.number("generation", u64::from(life.generation));
    w.number("attempt", u64::from(life.attempt));
    if life.forgiven > 0 {
        w.number("forgiven", u64::from(life.forgiven));
    }
    w.maybe("priority", life.priority.map(u64::from));
    match &life.stage {
        Stage::Waiting { token: Some(token) } => w.token(*token),
        Stage::Dead { reason, .. } => w.text("reason", reason.as_str()),
        Stage::Waiting { token: None } | Stage::Leased(_) => {}
    }
    let Marks { timeouts, releases, burials, fires, delay_ms, asked, limit } = life.marks;
    if life.marks != Marks::default() {
        w.numbers("marks", &[timeouts, releases, burials, fires].map(u64::from));
        w.maybe("delay", delay_ms);
        match asked {
            None => {}
            Some(Due::At(t)) => w.number("asked-at", t.0),
            Some(Due::After(t)) => w.number("asked-after", t.0),
        }
        w.maybe("limit", limit.map(|limit| u64::from(limit.count())));
    }
    for past in &life.history {
        w.numbers("past", &[u64::from(past.attempt), past.granted_at.0, past.ended_at.0]);
        w.0.push(b',');
        w.0.extend_from_slice(past.how.as_str().as_bytes());
        w.0.push(b',');
        escape(&mut w.0, &past.note);
    }
    w.0
}

/// A life without its lease, and whether it has one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReadLife {
    /// The complete life.
    Whole(Life),
    /// The life without its lease, which is in another hash.
    Leased(Life),
}

/// Reads what [`life`] wrote.
pub(crate) fn read_life(text: &[u8]) -> ParseResult<ReadLife> {
    let (mut stage, mut due, mut waits_with, mut died) = ("", None, None, None);
    let mut life = Life::new(Due::At(WallMs(0)), None);
    for word in words(text)? {
        let (name, value) = word?;
        match name {
            "stage" => stage = value,
            "dead" => match lex::read(value.as_bytes()) {
                Some((raw, [])) => died = Some(Died::from_raw(raw)),
                Some(_) | None => return Err("dead"),
            },
            "at" => due = Some(Due::At(WallMs(number(value, "at")?))),
            "after" => due = Some(Due::After(EngineMs(number(value, "after")?))),
            "generation" => life.generation = number(value, "generation")?,
            "attempt" => life.attempt = number(value, "attempt")?,
            "forgiven" => life.forgiven = number(value, "forgiven")?,
            "priority" => life.priority = Some(number(value, "priority")?),
            "token" => waits_with = Some(token(value)?),
            "reason" => {
                let reason = DeadReason::named(value).ok_or("reason")?;
                life.stage = Stage::Dead { reason, at: died.ok_or("dead")? };
            }
            "marks" => {
                let list = numbers(value, "marks")?;
                let list: Vec<u32> = list.into_iter().filter_map(|n| u32::try_from(n).ok()).collect();
                let [timeouts, releases, burials, fires] = list[..] else { return Err("marks") };
                life.marks = Marks { timeouts, releases, burials, fires, ..Marks::default() };
            }
            "delay" => life.marks.delay_ms = Some(number(value, "delay")?),
            "asked-at" => life.marks.asked = Some(Due::At(WallMs(number(value, "asked-at")?))),
            "asked-after" => life.marks.asked = Some(Due::After(EngineMs(number(value, "asked-after")?))),
            "limit" => life.marks.limit = Some(MaxAttempts::new(number(value, "limit")?).ok_or("limit")?),
            "past" => life.history.push(past(value)?),
            _ => return Err("unknown word of a life"),
        }
    }
    life.due = due.ok_or("due time")?;
    match (stage, died, &life.stage) {
        ("waiting", None, _) => life.stage = Stage::Waiting { token: waits_with },
        ("leased", None, _) => return Ok(ReadLife::Leased(life)),
        ("", Some(_), Stage::Dead { .. }) => {}
        _ => return Err("stage"),
    }
    Ok(ReadLife::Whole(life))
}

fn past(text: &str) -> ParseResult<PastAttempt> {
    let parts: Vec<&str> = text.split(',').collect();
    let [attempt, granted, ended, how, note] = parts[..] else { return Err("past") };
    let ends = [Ended::Nacked, Ended::LeaseExpired, Ended::Released, Ended::Buried];
    Ok(PastAttempt {
        attempt: number(attempt, "past")?,
        granted_at: WallMs(number(granted, "past")?),
        ended_at: WallMs(number(ended, "past")?),
        how: ends.into_iter().find(|e| e.as_str() == how).ok_or("past")?,
        note: unescape(note, "past")?.into(),
    })
}

/// A lease with its attempt.
pub(crate) fn lease(attempt: u32, lease: &Lease) -> Vec<u8> {
    let mut w = WordWriter(Vec::with_capacity(96));
    w.number("until", lease.until.0);
    w.number("attempt", u64::from(attempt));
    w.token(lease.token);
    w.number("session", lease.session.0);
    w.number("granted", lease.granted_at.0);
    w.0
}

/// Reads what [`lease`] wrote.
pub(crate) fn read_lease(text: &[u8]) -> ParseResult<(u32, Lease)> {
    let zero = LeaseToken { epoch: Epoch(0), counter: 0 };
    let mut lease =
        Lease { token: zero, until: EngineMs(0), session: SessionId::NONE, granted_at: WallMs(0) };
    let (mut attempt, mut seen) = (0, 0);
    for word in words(text)? {
        let (name, value) = word?;
        match name {
            "until" => lease.until = EngineMs(number(value, "until")?),
            "attempt" => attempt = number(value, "attempt")?,
            "token" => lease.token = token(value)?,
            "session" => lease.session = SessionId(number(value, "session")?),
            "granted" => lease.granted_at = WallMs(number(value, "granted")?),
            _ => return Err("unknown word of a lease"),
        }
        seen += 1;
    }
    if seen == 5 { Ok((attempt, lease)) } else { Err("lease") }
}

/// Combines a message from the three hashes.
pub(crate) fn read_row(
    id: MessageId,
    message: Vec<u8>,
    life: Option<&[u8]>,
    lease: Option<&[u8]>,
) -> ParseResult<Row> {
    let mut row = read_message(id, message)?;
    let mut must_be_leased = false;
    match life.map(read_life).transpose()? {
        Some(ReadLife::Whole(life)) => row.life = life,
        Some(ReadLife::Leased(life)) => (row.life, must_be_leased) = (life, true),
        None => {}
    }
    match lease.map(read_lease).transpose()? {
        Some((attempt, lease)) => (row.life.attempt, row.life.stage) = (attempt, Stage::Leased(lease)),
        None if must_be_leased => return Err("lease"),
        None => {}
    }
    Ok(row)
}

/// The field of a remembered answer.
pub(crate) fn answer_name(queue: &QueueName, dedupe_id: &str) -> Vec<u8> {
    let mut name = queue.as_str().as_bytes().to_vec();
    name.push(b' ');
    name.extend_from_slice(dedupe_id.as_bytes());
    name
}

/// A remembered answer.
pub(crate) fn answer(row: &DedupeRow) -> Vec<u8> {
    let mut w = WordWriter(Vec::with_capacity(128));
    w.number("until", row.until.0);
    w.number("id", row.id.0);
    if let Some(key) = &row.key {
        w.text("key", key.as_str());
    }
    w.number("due", row.due_at.0);
    w.number("generation", u64::from(row.generation));
    match row.created {
        Created::New => w.text("created", "new"),
        Created::Replacing(old) => w.number("replacing", old.0),
        Created::Kept => w.text("created", "kept"),
    }
    w.word("content");
    w.0.extend_from_slice(format!("{:032x}", row.content).as_bytes());
    w.0
}

/// Reads what [`answer`] wrote.
pub(crate) fn read_answer(queue: &QueueName, dedupe_id: &str, text: &[u8]) -> ParseResult<DedupeRow> {
    let mut row = DedupeRow {
        queue: queue.clone(),
        dedupe_id: dedupe_id.into(),
        content: 0,
        until: EngineMs(0),
        id: MessageId(0),
        key: None,
        due_at: WallMs(0),
        generation: 0,
        created: Created::New,
    };
    for word in words(text)? {
        let (name, value) = word?;
        match name {
            "until" => row.until = EngineMs(number(value, "until")?),
            "id" => row.id = MessageId(number(value, "id")?),
            "key" => row.key = Some(Key::new(&unescape(value, "key")?).map_err(|_| "key")?),
            "due" => row.due_at = WallMs(number(value, "due")?),
            "generation" => row.generation = number(value, "generation")?,
            "created" if value == "kept" => row.created = Created::Kept,
            "created" if value == "new" => row.created = Created::New,
            "replacing" => row.created = Created::Replacing(MessageId(number(value, "replacing")?)),
            "content" => row.content = u128::from_str_radix(value, 16).map_err(|_| "content")?,
            _ => return Err("unknown word of an answer"),
        }
    }
    Ok(row)
}

#[cfg(test)]
mod tests {
    use duewheel_core::store::conformance::History;

    use super::*;

    #[test]
    fn everything_comes_back() {
        let mut history = History::new(5);
        let (mut rows, mut answers) = (0, 0);
        for _ in 0..300 {
            history.group(9);
            for row in history.model().rows() {
                let id = row.message.id;
                let base = message(&row.message, &row.life);
                let whole = (!is_untouched(&row.life)).then(|| life(&row.life));
                let leased = row.life.lease().map(|l| lease(row.life.attempt, l));
                assert_eq!(read_row(id, base, whole.as_deref(), leased.as_deref()), Ok(row));
                rows += 1;
            }
            for row in history.model().answers() {
                assert_eq!(read_answer(&row.queue, &row.dedupe_id, &answer(&row)), Ok(row));
                answers += 1;
            }
        }
        assert!(rows > 1000 && answers > 100);
    }

    #[test]
    fn awkward_texts_come_back() {
        let mut history = History::new(6);
        history.group(50);
        let row = history.model().rows().into_iter().next().expect("a message");
        let mut m = (*row.message).clone();
        m.key = Some(Key::new("a b=c,d%e\nf ü\u{7f}").unwrap());
        m.headers = vec![("x=, y".into(), "\n=,% \0".into()), ("".into(), "".into())];
        m.body = Bytes::from_static(b"\nno words=\x00\xff\n");
        let text = message(&m, &row.life);
        assert_eq!(*read_row(m.id, text, None, None).unwrap().message, m);
        let mut row = row;
        row.life.history.push(PastAttempt {
            attempt: 3,
            granted_at: WallMs(1),
            ended_at: WallMs(2),
            how: Ended::Nacked,
            note: "no, not\n100 % = so".into(),
        });
        assert_eq!(read_life(&life(&row.life)), Ok(ReadLife::Whole(row.life)));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bad in [
            "",
            "x",
            "\n",
            "queue=q\n",
            "queue=q at=1\n",
            "queue=q at=1 put=x\n",
            "queue=q at=1 put=1 new=1\n",
        ] {
            assert!(read_message(MessageId(1), bad.as_bytes().to_vec()).is_err(), "{bad:?}");
        }
        for bad in [
            "",
            "stage=waiting",
            "stage=odd at=1",
            "dead=b1 at=1",
            "dead=a1 at=1",
            "stage=waiting at=1 past=1,2",
        ] {
            assert!(read_life(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert!(read_lease(b"until=1 attempt=1").is_err());
    }
}
