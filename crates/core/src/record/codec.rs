//! The bytes of a record. `docs/format.md` describes them; change both together, and add a golden test.
//!
//! Integers are LEB128 varints (unsigned), texts and bytes have a varint length in front. Each structure that may grow
//! ends with a section of tagged fields ([`super::fields`]).

use std::sync::Arc;

use bytes::Bytes;

use super::fields::Known;
use super::{ClockPair, Created, DecodeError, Decoded, DedupeRow, Gone, Pause, Record, Totals, Was};
use crate::id::MessageId;
use crate::id_set::IdSet;
use crate::message::{Headers, Kind, MessageContent, Row};
use crate::name::{Key, QueueName};
use crate::policy::Backoff;
use crate::time::{Class, Due, EngineMs, WallMs};

/// The first byte of a record that puts a message.
pub(super) const PUT: u8 = 1;
const CHANGED: u8 = 2;
const GRANTED: u8 = 3;
const REMOVED: u8 = 4;
const QUEUE: u8 = 5;
const PURGED: u8 = 6;
const DEDUPED: u8 = 7;

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

    /// Writes the length of what `write` writes, then that.
    pub fn with_length<R>(&mut self, write: impl FnOnce(&mut Self) -> R) -> R {
        let at = self.bytes.len();
        let result = write(self);
        let mut length = Writer::default();
        length.varint((self.bytes.len() - at) as u64);
        self.bytes.splice(at..at, length.bytes);
        result
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
                self.no_fields();
            }
            Record::Purged { queue, keep, before, purged } => {
                self.byte(PURGED);
                self.blob(queue.as_str().as_bytes());
                self.varint(before.0);
                self.varint(*purged);
                self.varint(keep.len() as u64);
                let mut last = 0;
                for id in keep.iter() {
                    self.varint(id.0 - last);
                    last = id.0;
                }
                self.no_fields();
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
        self.no_fields();
    }

    fn message(&mut self, m: &MessageContent) {
        self.varint(m.id.0);
        self.blob(m.queue.as_str().as_bytes());
        self.blob(m.key.as_ref().map_or(&[], |k| k.as_str().as_bytes())); // a key is never empty
        self.content(m);
    }

    /// The fields of a message after its key.
    pub(super) fn content(&mut self, m: &MessageContent) {
        self.varint(m.enqueued_at.0);
        self.options(&m.options);
        self.varint(m.headers.len() as u64);
        for (name, value) in &m.headers {
            self.blob(name.as_bytes());
            self.blob(value.as_bytes());
        }
        self.blob(&m.body);
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
        self.no_fields();
    }

    /// A queue's totals: those above 0, by their numbers.
    pub fn totals(&mut self, t: &Totals) {
        let all =
            [t.enqueued, t.granted, t.acked, t.cancelled, t.replaced, t.purged, t.died, t.expired, t.paused];
        self.fields(|fields| {
            for (number, total) in (1..).zip(all) {
                fields.number(number, Some(total).filter(|total| *total > 0));
            }
        });
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
    pub(super) fn count(&mut self, least: usize) -> Decoded<usize> {
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

    pub(super) fn text(&mut self, what: &'static str) -> Decoded<Box<str>> {
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

    pub(super) fn key(&mut self) -> Decoded<Option<Key>> {
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

    /// The bytes that have not been read.
    pub(super) fn rest(&self) -> &[u8] {
        &self.input[self.at..]
    }

    /// Skips bytes of [`Reader::rest`].
    pub(super) fn skip(&mut self, n: usize) {
        self.at = (self.at + n).min(self.input.len());
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
                let (name, settings, pause) = (self.queue_name()?, self.settings()?, self.pause()?);
                self.no_fields("queue")?;
                Record::Queue { name, settings, pause }
            }
            PURGED => {
                let queue = self.queue_name()?;
                let before = MessageId(self.varint()?);
                let purged = self.varint()?;
                let keep = self.ids()?;
                self.no_fields("purge")?;
                Record::Purged { queue, keep, before, purged }
            }
            DEDUPED => Record::Deduped(self.dedupe()?),
            _ => return Err(DecodeError::Unknown("record kind")),
        })
    }

    /// The ids that a purge keeps: each as its difference from the one before.
    fn ids(&mut self) -> Decoded<IdSet> {
        let n = self.count(1)?;
        let mut last = 0u64;
        let ids = (0..n).map(|_| {
            last = last.checked_add(self.varint()?).ok_or(DecodeError::Unknown("kept id"))?;
            Ok(MessageId(last))
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
        let was = Was { queue, kind, due: Due::from_raw(class, self.varint()?), weight: self.varint()? };
        self.no_fields("message")?;
        Ok(was)
    }

    fn message(&mut self) -> Decoded<MessageContent> {
        let (id, queue, key) = (MessageId(self.varint()?), self.queue_name()?, self.key()?);
        self.content(id, queue, key)
    }

    /// The fields of a message after its key.
    pub(super) fn content(
        &mut self,
        id: MessageId,
        queue: QueueName,
        key: Option<Key>,
    ) -> Decoded<MessageContent> {
        Ok(MessageContent {
            id,
            queue,
            key,
            enqueued_at: WallMs(self.varint()?),
            options: self.options()?,
            headers: self.headers()?,
            body: Bytes::copy_from_slice(&self.blob()?), // a slice would keep the whole segment in memory
        })
    }

    fn headers(&mut self) -> Decoded<Headers> {
        let n = self.count(2)?;
        (0..n).map(|_| Ok((self.text("header")?, self.text("header")?))).collect()
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
        let row = DedupeRow {
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
        };
        self.no_fields("answer")?;
        Ok(row)
    }

    /// A queue's totals.
    pub fn totals(&mut self) -> Decoded<Totals> {
        let mut t = Totals::default();
        self.fields("queue", |number, value| {
            let total = match number {
                1 => &mut t.enqueued,
                2 => &mut t.granted,
                3 => &mut t.acked,
                4 => &mut t.cancelled,
                5 => &mut t.replaced,
                6 => &mut t.purged,
                7 => &mut t.died,
                8 => &mut t.expired,
                9 => &mut t.paused,
                _ => return Ok(Known::No),
            };
            *total = value.number()?;
            Ok(Known::Yes)
        })?;
        Ok(t)
    }

    /// Reads both clocks.
    pub fn clock(&mut self) -> Decoded<ClockPair> {
        Ok(ClockPair { engine: EngineMs(self.varint()?), wall: WallMs(self.varint()?) })
    }
}
