//! The bytes of a record. `docs/format.md` describes them; change both together, and add a golden test.
//!
//! Integers are LEB128 varints (unsigned), texts and bytes have a varint length in front, optional values a presence
//! byte.

use std::sync::Arc;

use bytes::Bytes;

use super::head::{NewPut, stands};
use super::layout::{DecodeError, Decoded, LIMITED, LISTED, MARKED, MORE, PUT};
use super::{ClockPair, Created, DedupeRow, Gone, Pause, Record, Totals, Was};
use crate::id::{Epoch, LeaseToken, MessageId, SessionId};
use crate::id_set::IdSet;
use crate::message::{
    DeadReason, Died, DoneOutcome, Ended, Headers, Kind, Lease, Life, Marks, MaxAttempts, MessageContent,
    Options, PastAttempt, Row, Stage,
};
use crate::name::{Key, QueueName};
use crate::policy::Backoff;
use crate::time::{Class, Due, EngineMs, WallMs};

const CHANGED: u8 = 2;
const GRANTED: u8 = 3;
const REMOVED: u8 = 4;
const QUEUE: u8 = 5;
const PURGED: u8 = 6;
const DEDUPED: u8 = 7;
/// The tag of a purge with more kept ids than are listed one by one: each as its difference from the one before.
const PURGED_KEEPING: u8 = 8;

/// Added to a reason of death: engine time follows.
const TIMED: u8 = 2;

/// Writes fields to a buffer.
#[derive(Debug, Default)]
pub struct Writer {
    /// The bytes so far.
    pub bytes: Vec<u8>,
}

/// Reads fields back. Never panics and never allocates more than the input's size, whatever the bytes. Each of its
/// methods returns a [`DecodeError`] when the bytes end too early or hold a value that this version does not know.
#[derive(Debug)]
pub struct Reader {
    input: Bytes,
    at: usize,
}

fn class_byte(due: Due) -> u8 {
    match due.class() {
        Class::At => 0,
        Class::After => 1,
    }
}

impl Writer {
    /// An unsigned number, 1 to 10 bytes (LEB128).
    #[inline]
    pub fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            #[allow(clippy::cast_possible_truncation)] // the low seven bits are what is wanted
            self.bytes.push(n as u8 | 0x80);
            n >>= 7;
        }
        #[allow(clippy::cast_possible_truncation)] // below 0x80
        self.bytes.push(n as u8);
    }

    /// Length and bytes.
    #[inline]
    pub fn blob(&mut self, b: &[u8]) {
        self.varint(b.len() as u64);
        self.bytes.extend_from_slice(b);
    }

    /// Writes one byte.
    #[inline]
    pub fn byte(&mut self, b: u8) {
        self.bytes.push(b);
    }

    pub(super) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            None => self.byte(0),
            Some(v) => {
                self.byte(1);
                write(self, v);
            }
        }
    }

    pub(super) fn option_varint(&mut self, value: Option<u64>) {
        self.option(value, Self::varint);
    }

    /// Writes one record.
    pub fn record(&mut self, record: &Record) {
        match record {
            Record::Put { message, life, was } => {
                self.byte(PUT);
                self.message(message);
                self.life(life);
                self.option(was.as_ref(), Self::was);
            }
            Record::Changed { id, life, was } => {
                self.byte(CHANGED);
                self.varint(id.0);
                self.life(life);
                self.was(was);
            }
            Record::Granted { id, attempt, lease, was } => {
                self.byte(GRANTED);
                self.varint(id.0);
                self.varint(u64::from(*attempt));
                self.lease(lease);
                self.was(was);
            }
            Record::Removed { id, why, was } => {
                self.byte(REMOVED);
                self.varint(id.0);
                self.byte(match why {
                    Gone::Acked => 0,
                    Gone::Cancelled => 1,
                    Gone::Replaced => 2,
                    Gone::Expired => 3,
                });
                self.was(was);
            }
            Record::Queue { name, settings, pause } => {
                self.byte(QUEUE);
                self.blob(name.as_str().as_bytes());
                self.settings(settings);
                self.pause(*pause);
            }
            Record::Purged { queue, keep, before, purged } => {
                let is_listed = keep.len() <= LISTED;
                self.byte(if is_listed { PURGED } else { PURGED_KEEPING });
                self.blob(queue.as_str().as_bytes());
                self.varint(before.0);
                self.varint(*purged);
                self.varint(keep.len() as u64);
                let mut last = 0;
                for id in keep.iter() {
                    self.varint(id.0 - last);
                    last = if is_listed { 0 } else { id.0 };
                }
            }
            Record::Deduped(row) => {
                self.byte(DEDUPED);
                self.dedupe(row);
            }
        }
    }

    /// A message and its life, as a checkpoint holds them.
    pub fn row(&mut self, row: &Row) {
        self.message(&row.message);
        self.life(&row.life);
    }

    fn was(&mut self, was: &Was) {
        self.blob(was.queue.as_str().as_bytes());
        self.byte(was.kind as u8 | (was.due.class() as u8) << 2);
        self.varint(was.due.raw());
        self.varint(was.weight);
    }

    fn message(&mut self, m: &MessageContent) {
        self.varint(m.id.0);
        self.blob(m.queue.as_str().as_bytes());
        self.blob(m.key.as_ref().map_or(&[], |k| k.as_str().as_bytes())); // a key is never empty
        self.content(m);
    }

    /// The fields of a message after its key.
    fn content(&mut self, m: &MessageContent) {
        self.varint(m.enqueued_at.0);
        self.option_varint(m.options.lease_ms);
        self.option_varint(m.options.max_attempts.map(|n| u64::from(n.count())));
        let more = m.options.more();
        self.byte(u8::from(m.options.backoff.is_some()) | if more == 0 { 0 } else { MORE });
        if let Some(backoff) = m.options.backoff {
            self.backoff(backoff);
        }
        if more != 0 {
            self.more_options(more, &m.options);
        }
        self.varint(m.headers.len() as u64);
        for (name, value) in &m.headers {
            self.blob(name.as_bytes());
            self.blob(value.as_bytes());
        }
        self.blob(&m.body);
    }

    fn life(&mut self, life: &Life) {
        self.byte(class_byte(life.due));
        self.varint(life.due.raw());
        self.varint(u64::from(life.generation));
        self.varint(u64::from(life.attempt));
        self.varint(u64::from(life.forgiven));
        self.option_varint(life.priority.map(u64::from));
        let marked = if life.marks == Marks::default() { 0 } else { MARKED };
        match &life.stage {
            Stage::Waiting { token: None } => self.byte(marked),
            Stage::Waiting { token: Some(token) } => {
                self.byte(1 | marked);
                self.token(*token);
            }
            Stage::Leased(lease) => {
                self.byte(2 | marked);
                self.lease(lease);
            }
            Stage::Dead { reason, at } => {
                self.byte(3 | marked);
                self.death(*reason, *at);
                self.varint(at.raw());
            }
        }
        self.marks(&life.marks);
        self.history(&life.history);
    }

    /// Writes the marks, or nothing when there are none.
    fn marks(&mut self, marks: &Marks) {
        if *marks != Marks::default() {
            for n in [marks.timeouts, marks.releases, marks.burials, marks.fires] {
                self.varint(u64::from(n));
            }
            let class = marks.asked.map_or(0, |asked| MORE << (asked.class() as u8));
            let limited = if marks.limit.is_some() { LIMITED } else { 0 };
            self.byte(u8::from(marks.delay_ms.is_some()) | class | limited);
            let limit = marks.limit.map(|limit| u64::from(limit.count()));
            for n in [marks.delay_ms, marks.asked.map(Due::raw), limit].into_iter().flatten() {
                self.varint(n);
            }
        }
    }

    fn history(&mut self, history: &[PastAttempt]) {
        self.varint(history.len() as u64);
        for past in history {
            self.varint(u64::from(past.attempt));
            self.varint(past.granted_at.0);
            self.varint(past.ended_at.0);
            self.byte(match past.how {
                Ended::Nacked => 0,
                Ended::LeaseExpired => 1,
                Ended::Released => 2,
                Ended::Buried => 3,
            });
            self.blob(past.note.as_bytes());
        }
    }

    /// A message without the name of its queue, and its life, as a run holds them. The fields that a scan needs come
    /// first ([`super::RowHead`]); no field is written twice.
    pub fn stored(&mut self, row: &Row) {
        let (m, life) = (&row.message, &row.life);
        self.varint(m.id.0);
        let class = class_byte(life.due);
        let (stage, when) = match &life.stage {
            Stage::Waiting { token: None } => (0, None),
            Stage::Waiting { token: Some(_) } => (1, None),
            Stage::Leased(lease) => (2, Some(lease.until.0)),
            Stage::Dead { at, .. } => (3, Some(at.raw())),
        };
        let marked = if life.marks == Marks::default() { 0 } else { MARKED };
        self.byte(class | (stage | marked) << 1);
        self.varint(life.due.raw());
        if let Some(when) = when {
            self.varint(when);
        }
        self.varint(m.weight() as u64);
        self.blob(m.key.as_ref().map_or(&[], |k| k.as_str().as_bytes()));
        self.content(m);
        self.varint(u64::from(life.generation));
        self.varint(u64::from(life.attempt));
        self.varint(u64::from(life.forgiven));
        self.option_varint(life.priority.map(u64::from));
        match &life.stage {
            Stage::Waiting { token: None } => {}
            Stage::Waiting { token: Some(token) } => self.token(*token),
            Stage::Leased(lease) => {
                self.token(lease.token);
                self.varint(lease.session.0);
                self.varint(lease.granted_at.0);
            }
            Stage::Dead { reason, at } => self.death(*reason, *at),
        }
        self.marks(&life.marks);
        self.history(&life.history);
    }

    /// What [`Writer::stored`] writes of a new message, from the record that puts it. Numbers of that record which take
    /// more bytes than they need are copied as they are.
    pub fn stored_put(&mut self, put: &NewPut<'_>) {
        self.varint(put.id.0);
        self.byte(class_byte(put.due));
        self.varint(put.due.raw());
        self.varint(put.weight);
        self.blob(put.key);
        self.bytes.extend_from_slice(put.content);
        self.bytes.extend_from_slice(put.numbers);
        self.byte(0); // no history
    }

    /// Reason and time of death, with engine time if that is known.
    fn death(&mut self, reason: DeadReason, at: Died) {
        let reason = match reason {
            DeadReason::MaxAttempts => 0,
            DeadReason::Buried => 1,
            DeadReason::Expired => 4,
            DeadReason::Done(DoneOutcome::Acked) => 8,
            DeadReason::Done(DoneOutcome::Cancelled) => 9,
            DeadReason::Done(DoneOutcome::Replaced) => 12,
            DeadReason::Done(DoneOutcome::Expired) => 13,
        };
        match at.engine() {
            None => self.byte(reason),
            Some(engine) => {
                self.byte(reason | TIMED);
                self.varint(engine.0);
            }
        }
    }

    fn token(&mut self, token: LeaseToken) {
        self.varint(u64::from(token.epoch.0));
        self.varint(token.counter);
    }

    fn lease(&mut self, lease: &Lease) {
        self.token(lease.token);
        self.varint(lease.until.0);
        self.varint(lease.session.0);
        self.varint(lease.granted_at.0);
    }

    pub(super) fn backoff(&mut self, b: Backoff) {
        self.varint(b.min_ms);
        self.varint(b.max_ms);
    }

    /// A queue's pause.
    pub fn pause(&mut self, pause: Pause) {
        match pause {
            Pause::Running => self.byte(0),
            Pause::Paused => self.byte(1),
            Pause::Until { end, length_ms } => {
                self.byte(2);
                self.varint(end.0);
                self.varint(length_ms);
            }
        }
    }

    /// A remembered answer.
    pub fn dedupe(&mut self, row: &DedupeRow) {
        self.blob(row.queue.as_str().as_bytes());
        self.blob(row.dedupe_id.as_bytes());
        self.bytes.extend_from_slice(&row.content.to_le_bytes());
        self.varint(row.until.0);
        self.varint(row.id.0);
        self.blob(row.key.as_ref().map_or(&[], |k| k.as_str().as_bytes()));
        self.varint(row.due_at.0);
        self.varint(u64::from(row.generation));
        match row.created {
            Created::New => self.byte(0),
            Created::Replacing(old) => {
                self.byte(1);
                self.varint(old.0);
            }
            Created::Kept => self.byte(2),
        }
    }

    /// A queue's totals.
    pub fn totals(&mut self, t: &Totals) {
        for n in
            [t.enqueued, t.granted, t.acked, t.cancelled, t.replaced, t.purged, t.died, t.expired, t.paused]
        {
            self.varint(n);
        }
    }

    /// Writes both clocks.
    pub fn clock(&mut self, c: ClockPair) {
        self.varint(c.engine.0);
        self.varint(c.wall.0);
    }
}

#[expect(clippy::missing_errors_doc, reason = "the type lists the errors of all its methods")]
impl Reader {
    /// Reads from the start of `input`.
    pub fn new(input: Bytes) -> Self {
        Reader { input, at: 0 }
    }

    /// Whether all bytes have been read.
    pub fn is_empty(&self) -> bool {
        self.at == self.input.len()
    }

    /// How many bytes have been read.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Reads one byte.
    pub fn byte(&mut self) -> Decoded<u8> {
        let b = *self.input.get(self.at).ok_or(DecodeError::Short)?;
        self.at += 1;
        Ok(b)
    }

    /// An unsigned number; a form longer than ten bytes or above 2^64−1 is refused.
    pub fn varint(&mut self) -> Decoded<u64> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let b = self.byte()?;
            let part = u64::from(b & 0x7f);
            if shift == 63 && part > 1 {
                return Err(DecodeError::Unknown("varint"));
            }
            n |= part << shift;
            if b & 0x80 == 0 {
                return Ok(n);
            }
        }
        Err(DecodeError::Unknown("varint"))
    }

    pub(super) fn varint_u32(&mut self) -> Decoded<u32> {
        u32::try_from(self.varint()?).map_err(|_| DecodeError::Unknown("32-bit number"))
    }

    /// The number of items that follow, each of at least `least` bytes: a damaged count allocates nothing.
    fn count(&mut self, least: usize) -> Decoded<usize> {
        let n = usize::try_from(self.varint()?).map_err(|_| DecodeError::Short)?;
        let left = self.input.len() - self.at;
        if n.saturating_mul(least) > left { Err(DecodeError::Short) } else { Ok(n) }
    }

    fn take(&mut self, n: usize) -> Decoded<Bytes> {
        let end = self.at.checked_add(n).filter(|&e| e <= self.input.len()).ok_or(DecodeError::Short)?;
        let slice = self.input.slice(self.at..end);
        self.at = end;
        Ok(slice)
    }

    /// Length and bytes, as a slice of the input.
    pub fn blob(&mut self) -> Decoded<Bytes> {
        let n = self.count(1)?;
        self.take(n)
    }

    fn text(&mut self, what: &'static str) -> Decoded<Box<str>> {
        let n = self.count(1)?;
        let end = self.at + n;
        let s = std::str::from_utf8(&self.input[self.at..end]).map_err(|_| DecodeError::Unknown(what))?;
        let s: Box<str> = s.into();
        self.at = end;
        Ok(s)
    }

    /// A queue's name.
    pub fn queue_name(&mut self) -> Decoded<QueueName> {
        QueueName::stored(&self.text("queue name")?).map_err(|_| DecodeError::Unknown("queue name"))
    }

    fn key(&mut self) -> Decoded<Option<Key>> {
        let text = self.text("key")?;
        if text.is_empty() {
            return Ok(None);
        }
        Key::new(&text).map(Some).map_err(|_| DecodeError::Unknown("key"))
    }

    pub(super) fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Decoded<T>) -> Decoded<Option<T>> {
        match self.byte()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => Err(DecodeError::Unknown("presence byte")),
        }
    }

    pub(super) fn max_attempts(&mut self) -> Decoded<MaxAttempts> {
        MaxAttempts::new(self.varint_u32()?).ok_or(DecodeError::Unknown("max_attempts"))
    }

    /// Reads one record.
    pub fn record(&mut self) -> Decoded<Record> {
        Ok(match self.byte()? {
            PUT => Record::Put {
                message: Arc::new(self.message()?),
                life: self.life()?,
                was: self.option(Self::was)?,
            },
            CHANGED => {
                Record::Changed { id: MessageId(self.varint()?), life: self.life()?, was: self.was()? }
            }
            GRANTED => Record::Granted {
                id: MessageId(self.varint()?),
                attempt: self.varint_u32()?,
                lease: self.lease()?,
                was: self.was()?,
            },
            REMOVED => Record::Removed {
                id: MessageId(self.varint()?),
                why: match self.byte()? {
                    0 => Gone::Acked,
                    1 => Gone::Cancelled,
                    2 => Gone::Replaced,
                    3 => Gone::Expired,
                    _ => return Err(DecodeError::Unknown("cause of removal")),
                },
                was: self.was()?,
            },
            QUEUE => {
                Record::Queue { name: self.queue_name()?, settings: self.settings()?, pause: self.pause()? }
            }
            kind @ (PURGED | PURGED_KEEPING) => {
                let queue = self.queue_name()?;
                let before = MessageId(self.varint()?);
                let purged = self.varint()?;
                let keep = self.ids(kind == PURGED)?;
                Record::Purged { queue, keep, before, purged }
            }
            DEDUPED => Record::Deduped(self.dedupe()?),
            _ => return Err(DecodeError::Unknown("record kind")),
        })
    }

    /// The ids that a purge keeps: each whole, or as its difference from the one before.
    fn ids(&mut self, are_whole: bool) -> Decoded<IdSet> {
        let n = self.count(1)?;
        let mut last = 0u64;
        let ids = (0..n).map(|_| {
            let id = last.checked_add(self.varint()?).ok_or(DecodeError::Unknown("kept id"))?;
            last = if are_whole { 0 } else { id };
            Ok(MessageId(id))
        });
        ids.collect()
    }

    /// A message and its life.
    pub fn row(&mut self) -> Decoded<Row> {
        Ok(Row { message: Arc::new(self.message()?), life: self.life()? })
    }

    fn was(&mut self) -> Decoded<Was> {
        let queue = self.queue_name()?;
        let stood = self.byte()?;
        let kind = match stood & 3 {
            0 => Kind::Waiting,
            1 => Kind::Leased,
            2 => Kind::Dead,
            _ => return Err(DecodeError::Unknown("stage")),
        };
        let class = match stood >> 2 {
            0 => Class::At,
            1 => Class::After,
            _ => return Err(DecodeError::Unknown("clock class")),
        };
        Ok(Was { queue, kind, due: Due::from_raw(class, self.varint()?), weight: self.varint()? })
    }

    fn message(&mut self) -> Decoded<MessageContent> {
        Ok(MessageContent {
            id: MessageId(self.varint()?),
            queue: self.queue_name()?,
            key: self.key()?,
            enqueued_at: WallMs(self.varint()?),
            options: self.options()?,
            headers: self.headers()?,
            body: Bytes::copy_from_slice(&self.blob()?), // a slice would keep the whole segment in memory
        })
    }

    fn life(&mut self) -> Decoded<Life> {
        let class = match self.byte()? {
            0 => Class::At,
            1 => Class::After,
            _ => return Err(DecodeError::Unknown("clock class")),
        };
        let due = Due::from_raw(class, self.varint()?);
        let (generation, attempt, forgiven) = (self.varint_u32()?, self.varint_u32()?, self.varint_u32()?);
        let priority = self.option(Self::varint_u32)?;
        let byte = self.byte()?;
        let stage = match byte & !MARKED {
            0 => Stage::Waiting { token: None },
            1 => Stage::Waiting { token: Some(self.token()?) },
            2 => Stage::Leased(self.lease()?),
            3 => {
                let (reason, engine) = self.death()?;
                let at = Died::from_raw(self.varint()?);
                Stage::Dead { reason, at: engine.map_or(at, |engine| at.since(engine)) }
            }
            _ => return Err(DecodeError::Unknown("stage")),
        };
        let marks = self.marks(byte & MARKED)?;
        let history = self.history()?;
        Ok(Life { due, generation, attempt, forgiven, priority, stage, marks, history })
    }

    /// Reads what [`Writer::stored`] has written for a message of this queue.
    pub fn stored(&mut self, queue: QueueName) -> Decoded<Row> {
        let id = MessageId(self.varint()?);
        let (class, stage, marked) = stands(self.byte()?)?;
        let due = Due::from_raw(class, self.varint()?);
        let when = if stage >= 2 { self.varint()? } else { 0 };
        self.varint()?; // the weight follows from the rest
        let message = MessageContent {
            id,
            queue,
            key: self.key()?,
            enqueued_at: WallMs(self.varint()?),
            options: self.options()?,
            headers: self.headers()?,
            body: Bytes::copy_from_slice(&self.blob()?), // as above
        };
        let life = Life {
            due,
            generation: self.varint_u32()?,
            attempt: self.varint_u32()?,
            forgiven: self.varint_u32()?,
            priority: self.option(Self::varint_u32)?,
            stage: match stage {
                0 => Stage::Waiting { token: None },
                1 => Stage::Waiting { token: Some(self.token()?) },
                2 => Stage::Leased(Lease {
                    token: self.token()?,
                    until: EngineMs(when),
                    session: SessionId(self.varint()?),
                    granted_at: WallMs(self.varint()?),
                }),
                _ => {
                    let (reason, engine) = self.death()?;
                    let at = Died::from_raw(when);
                    Stage::Dead { reason, at: engine.map_or(at, |engine| at.since(engine)) }
                }
            },
            marks: self.marks(marked)?,
            history: self.history()?,
        };
        Ok(Row { message: Arc::new(message), life })
    }

    fn death(&mut self) -> Decoded<(DeadReason, Option<EngineMs>)> {
        let byte = self.byte()?;
        let reason = match byte & !TIMED {
            0 => DeadReason::MaxAttempts,
            1 => DeadReason::Buried,
            4 => DeadReason::Expired,
            8 => DeadReason::Done(DoneOutcome::Acked),
            9 => DeadReason::Done(DoneOutcome::Cancelled),
            12 => DeadReason::Done(DoneOutcome::Replaced),
            13 => DeadReason::Done(DoneOutcome::Expired),
            _ => return Err(DecodeError::Unknown("reason of death")),
        };
        let engine = if byte & TIMED == 0 { None } else { Some(EngineMs(self.varint()?)) };
        Ok((reason, engine))
    }

    fn marks(&mut self, marked: u8) -> Decoded<Marks> {
        if marked == 0 {
            return Ok(Marks::default());
        }
        let [timeouts, releases, burials, fires] =
            [self.varint_u32()?, self.varint_u32()?, self.varint_u32()?, self.varint_u32()?];
        let byte = self.byte()?;
        let class = match (byte & !LIMITED) >> 1 {
            0 => None,
            1 => Some(Class::At),
            2 => Some(Class::After),
            _ => return Err(DecodeError::Unknown("presence byte")),
        };
        let delay_ms = if byte & 1 == 0 { None } else { Some(self.varint()?) };
        let asked = class.map(|class| Ok(Due::from_raw(class, self.varint()?))).transpose()?;
        let limit = if byte & LIMITED == 0 { None } else { Some(self.max_attempts()?) };
        Ok(Marks { timeouts, releases, burials, fires, delay_ms, asked, limit })
    }

    fn options(&mut self) -> Decoded<Options> {
        let (lease_ms, max_attempts) = (self.option(Self::varint)?, self.option(Self::max_attempts)?);
        let byte = self.byte()?;
        if byte > 1 | MORE {
            return Err(DecodeError::Unknown("presence byte"));
        }
        let backoff = if byte & 1 == 0 { None } else { Some(self.backoff()?) };
        let options = Options { lease_ms, max_attempts, backoff, ..Options::default() };
        if byte & MORE == 0 { Ok(options) } else { self.more_options(options) }
    }

    fn headers(&mut self) -> Decoded<Headers> {
        let n = self.count(2)?;
        (0..n).map(|_| Ok((self.text("header")?, self.text("header")?))).collect()
    }

    fn history(&mut self) -> Decoded<Vec<PastAttempt>> {
        let n = self.count(5)?;
        (0..n).map(|_| self.past_attempt()).collect()
    }

    fn past_attempt(&mut self) -> Decoded<PastAttempt> {
        Ok(PastAttempt {
            attempt: self.varint_u32()?,
            granted_at: WallMs(self.varint()?),
            ended_at: WallMs(self.varint()?),
            how: match self.byte()? {
                0 => Ended::Nacked,
                1 => Ended::LeaseExpired,
                2 => Ended::Released,
                3 => Ended::Buried,
                _ => return Err(DecodeError::Unknown("end of an attempt")),
            },
            note: self.text("note")?,
        })
    }

    fn token(&mut self) -> Decoded<LeaseToken> {
        Ok(LeaseToken { epoch: Epoch(self.varint_u32()?), counter: self.varint()? })
    }

    fn lease(&mut self) -> Decoded<Lease> {
        Ok(Lease {
            token: self.token()?,
            until: EngineMs(self.varint()?),
            session: SessionId(self.varint()?),
            granted_at: WallMs(self.varint()?),
        })
    }

    pub(super) fn backoff(&mut self) -> Decoded<Backoff> {
        Ok(Backoff { min_ms: self.varint()?, max_ms: self.varint()? })
    }

    /// A queue's pause.
    pub fn pause(&mut self) -> Decoded<Pause> {
        match self.byte()? {
            0 => Ok(Pause::Running),
            1 => Ok(Pause::Paused),
            2 => Ok(Pause::Until { end: EngineMs(self.varint()?), length_ms: self.varint()? }),
            _ => Err(DecodeError::Unknown("pause")),
        }
    }

    /// A remembered answer.
    pub fn dedupe(&mut self) -> Decoded<DedupeRow> {
        Ok(DedupeRow {
            queue: self.queue_name()?,
            dedupe_id: self.text("dedupe id")?,
            content: {
                let raw = self.take(16)?;
                let mut le = [0u8; 16];
                le.copy_from_slice(&raw);
                u128::from_le_bytes(le)
            },
            until: EngineMs(self.varint()?),
            id: MessageId(self.varint()?),
            key: self.key()?,
            due_at: WallMs(self.varint()?),
            generation: self.varint_u32()?,
            created: match self.byte()? {
                0 => Created::New,
                1 => Created::Replacing(MessageId(self.varint()?)),
                2 => Created::Kept,
                _ => return Err(DecodeError::Unknown("answer of an enqueue")),
            },
        })
    }

    /// A queue's totals.
    pub fn totals(&mut self) -> Decoded<Totals> {
        Ok(Totals {
            enqueued: self.varint()?,
            granted: self.varint()?,
            acked: self.varint()?,
            cancelled: self.varint()?,
            replaced: self.varint()?,
            purged: self.varint()?,
            died: self.varint()?,
            expired: self.varint()?,
            paused: self.varint()?,
        })
    }

    /// Reads both clocks.
    pub fn clock(&mut self) -> Decoded<ClockPair> {
        Ok(ClockPair { engine: EngineMs(self.varint()?), wall: WallMs(self.varint()?) })
    }
}
