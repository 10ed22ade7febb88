//! The bytes of a record. `docs/format.md` describes them; change both together, and add a golden test.
//!
//! Each structure that may grow ends with a section of tagged fields ([`super::fields`]).

use std::sync::Arc;

use bytes::Bytes;

use super::fields::FieldKnown;
use super::primitive::{Reader, Writer};
use super::settings::max_attempts;
use super::{
    ClockPair, Created, DecodeError, Decoded, DedupeRow, EnqueueDefaults, Gone, Pause, Record, Totals, Was,
};
use crate::answers::{AnswerLog, AnswerPosition, AnswerSpan};
use crate::id::{Lsn, MessageId};
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
const ANSWERS_FORGOTTEN: u8 = 8;

impl Writer {
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
                    Gone::Superseded => 4,
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
            Record::AnswersForgotten { queue, upto } => {
                self.byte(ANSWERS_FORGOTTEN);
                self.blob(queue.as_str().as_bytes());
                self.varint(upto.0);
                self.no_fields();
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
        self.content_options(&m.options, m.dedupe_id.as_deref());
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
            Created::Superseding(old) => {
                self.byte(3);
                self.varint(old.0);
            }
        }
        self.fields(|fields| {
            fields.number(1, row.position.map(|position| position.nth.0));
            fields.number(2, row.position.map(|position| position.at.0));
            fields.bytes(3, row.defaults, |to, defaults| {
                let EnqueueDefaults { priority, lease_ms, max_attempts, backoff, expires_in_ms } = defaults;
                for number in [u64::from(priority), lease_ms, u64::from(max_attempts.count())] {
                    to.varint(number);
                }
                to.backoff(backoff);
                to.varint(expires_in_ms.unwrap_or(0)); // never 0 if there is one
            });
        });
    }

    /// The end of the books of a queue: a section with its log of answers, if it remembers any.
    pub fn answer_log(&mut self, log: &AnswerLog) {
        self.fields(|fields| {
            fields.bytes(1, Some(log).filter(|log| !log.is_empty()), |to, log| {
                to.varint(log.forgotten().0);
                to.varint(log.spans().len() as u64);
                for span in log.spans() {
                    let AnswerSpan { last, until, count, bytes } = *span;
                    for number in [last.nth.0, last.at.0, until.0, count, bytes] {
                        to.varint(number);
                    }
                }
            });
        });
    }

    /// A queue's totals: those above 0, by their numbers.
    pub fn totals(&mut self, t: &Totals) {
        let all = [
            t.enqueued,
            t.granted,
            t.acked,
            t.cancelled,
            t.replaced,
            t.purged,
            t.died,
            t.expired,
            t.paused,
            t.superseded,
        ];
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
                    4 => Gone::Superseded,
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
            ANSWERS_FORGOTTEN => {
                let (queue, upto) = (self.queue_name()?, Lsn(self.varint()?));
                self.no_fields("forgotten answers")?;
                Record::AnswersForgotten { queue, upto }
            }
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
        let enqueued_at = WallMs(self.varint()?);
        let (options, dedupe_id) = self.content_options()?;
        Ok(MessageContent {
            id,
            queue,
            key,
            enqueued_at,
            options,
            dedupe_id,
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
        let mut row = DedupeRow {
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
                3 => Created::Superseding(MessageId(self.varint()?)),
                _ => return Err(DecodeError::Unknown("answer of an enqueue")),
            },
            defaults: None,
            position: None,
        };
        let (mut nth, mut at) = (None, None);
        self.fields("answer", |number, value| {
            match number {
                1 => nth = Some(Lsn(value.number()?)),
                2 => at = Some(EngineMs(value.number()?)),
                3 => {
                    row.defaults = Some(value.bytes(|from| {
                        Ok(EnqueueDefaults {
                            priority: from.varint_u32()?,
                            lease_ms: from.varint()?,
                            max_attempts: max_attempts(from.varint_u32()?)?,
                            backoff: from.backoff()?,
                            expires_in_ms: Some(from.varint()?).filter(|ms| *ms > 0),
                        })
                    })?);
                }
                _ => return Ok(FieldKnown::No),
            }
            Ok(FieldKnown::Yes)
        })?;
        row.position = match (nth, at) {
            (Some(nth), Some(at)) => Some(AnswerPosition { nth, at }),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => return Err(DecodeError::Unknown("position of an answer")),
        };
        Ok(row)
    }

    /// The end of the books of a queue: a section with its log of answers, if it remembers any.
    pub fn answer_log(&mut self) -> Decoded<AnswerLog> {
        let mut log = AnswerLog::default();
        self.fields("queue", |number, value| {
            if number != 1 {
                return Ok(FieldKnown::No);
            }
            log = value.bytes(|from| {
                let forgotten = Lsn(from.varint()?);
                let spans = (0..from.count(5)?).map(|_| {
                    let last = AnswerPosition { nth: Lsn(from.varint()?), at: EngineMs(from.varint()?) };
                    let until = EngineMs(from.varint()?);
                    Ok(AnswerSpan { last, until, count: from.varint()?, bytes: from.varint()? })
                });
                Ok(AnswerLog::restored(forgotten, spans.collect::<Decoded<_>>()?))
            })?;
            Ok(FieldKnown::Yes)
        })?;
        Ok(log)
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
                10 => &mut t.superseded,
                _ => return Ok(FieldKnown::No),
            };
            *total = value.number()?;
            Ok(FieldKnown::Yes)
        })?;
        Ok(t)
    }

    /// Reads both clocks.
    pub fn clock(&mut self) -> Decoded<ClockPair> {
        Ok(ClockPair { engine: EngineMs(self.varint()?), wall: WallMs(self.varint()?) })
    }
}
