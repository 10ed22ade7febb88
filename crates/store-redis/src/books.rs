//! The ledger in Redis: a blob for each queue as of a checkpoint, and a short list of later changes.
//!
//! So startup reads the queues and the list, and no message.

use std::sync::Arc;

use bytes::Bytes;
use duewheel_core::id::{Epoch, LeaseToken, SessionId};
use duewheel_core::message::{DeadReason, Died, Kind, Lease, Life, MessageContent, Options, Stage};
use duewheel_core::record::{ClockPair, DecodeError, Gone, Group, Reader, Record, Was, Writer};
use duewheel_core::store::{Ledger, QueueRow};
use duewheel_core::tally::Tally;
use duewheel_core::time::{Class, Due, EngineMs, WallMs};
use duewheel_core::{IdSet, Lsn, MessageId, QueueName};

const PUT: u8 = 0;
const PUT_AGAIN: u8 = 1;
const RECORD: u8 = 2;
const NOTHING: u8 = 3;

/// The parts of a group that the ledger needs.
pub(crate) fn heads(group: &Group) -> Vec<u8> {
    let mut w = Writer::default();
    w.bytes.reserve(group.records.len() * 40);
    w.varint(group.first.0);
    w.clock(group.clock);
    w.varint(group.records.len() as u64);
    for record in &group.records {
        head(&mut w, record);
    }
    w.bytes
}

fn head(w: &mut Writer, record: &Record) {
    match record {
        Record::Put { message, life, was } => {
            w.byte(if was.is_some() { PUT_AGAIN } else { PUT });
            w.varint(message.id.0);
            w.blob(message.queue.as_str().as_bytes());
            w.byte(life.stage.kind() as u8 | (life.due.class() as u8) << 2);
            w.varint(life.due.raw());
            w.varint(message.weight() as u64);
            if let Some(was) = was {
                w.record(&Record::Removed { id: message.id, why: Gone::Replaced, was: was.clone() });
            }
        }
        Record::Changed { id, life, was } => {
            let life = bare(life.stage.kind(), life.due);
            w.byte(RECORD);
            w.record(&Record::Changed { id: *id, life, was: was.clone() });
        }
        Record::Purged { queue, before, purged, .. } => {
            let (queue, keep) = (queue.clone(), IdSet::default());
            w.byte(RECORD);
            w.record(&Record::Purged { queue, keep, before: *before, purged: *purged });
        }
        Record::Granted { .. } | Record::Removed { .. } | Record::Queue { .. } => {
            w.byte(RECORD);
            w.record(record);
        }
        Record::Deduped(_) => w.byte(NOTHING),
    }
}

/// A life of this kind with default values.
fn bare(kind: Kind, due: Due) -> Life {
    let mut life = Life::new(due, None);
    life.stage = match kind {
        Kind::Waiting => Stage::Waiting { token: None },
        Kind::Leased => Stage::Leased(Lease {
            token: LeaseToken { epoch: Epoch(0), counter: 0 },
            until: EngineMs(0),
            session: SessionId::NONE,
            granted_at: WallMs(0),
        }),
        Kind::Dead => Stage::Dead { reason: DeadReason::Buried, at: Died::default() },
    };
    life
}

/// Reads the records of groups back, as far as a ledger needs them.
#[derive(Debug, Default)]
pub(crate) struct GroupReader {
    /// Zeros in place of all bodies.
    zeros: Bytes,
}

/// The heads of one group.
#[derive(Debug)]
pub(crate) struct GroupHeads {
    pub(crate) first: Lsn,
    pub(crate) clock: ClockPair,
    /// The records; `None` for one that a ledger only counts as a position.
    pub(crate) records: Vec<Option<Record>>,
}

impl GroupReader {
    /// Reads what [`heads`] wrote.
    pub(crate) fn read(&mut self, bytes: Vec<u8>) -> Result<GroupHeads, DecodeError> {
        let left = bytes.len() as u64;
        let mut r = Reader::new(bytes.into());
        let (first, clock, count) = (Lsn(r.varint()?), r.clock()?, r.varint()?);
        if count > left {
            return Err(DecodeError::Short);
        }
        let records = (0..count).map(|_| self.record(&mut r)).collect::<Result<_, _>>()?;
        if r.is_empty() { Ok(GroupHeads { first, clock, records }) } else { Err(DecodeError::Unknown("end")) }
    }

    fn record(&mut self, r: &mut Reader) -> Result<Option<Record>, DecodeError> {
        let tag = r.byte()?;
        match tag {
            PUT | PUT_AGAIN => {
                let (id, queue) = (MessageId(r.varint()?), r.queue_name()?);
                let stands = r.byte()?;
                let kind = match stands & 3 {
                    0 => Kind::Waiting,
                    1 => Kind::Leased,
                    2 => Kind::Dead,
                    _ => return Err(DecodeError::Unknown("stage")),
                };
                let class = if stands >> 2 == 0 { Class::At } else { Class::After };
                let due = Due::from_raw(class, r.varint()?);
                let body = self.zeros(r.varint()?)?;
                let was: Option<Was> = if tag == PUT {
                    None
                } else {
                    match r.record()? {
                        Record::Removed { was, .. } => Some(was),
                        _ => return Err(DecodeError::Unknown("where it stood")),
                    }
                };
                let message = MessageContent {
                    id,
                    queue,
                    key: None,
                    body,
                    headers: Vec::new(),
                    options: Options::default(),
                    enqueued_at: WallMs(0),
                };
                Ok(Some(Record::Put { message: Arc::new(message), life: bare(kind, due), was }))
            }
            RECORD => r.record().map(Some),
            NOTHING => Ok(None),
            _ => Err(DecodeError::Unknown("head of a record")),
        }
    }

    fn zeros(&mut self, weight: u64) -> Result<Bytes, DecodeError> {
        // No message weighs more than this, so a damaged number allocates nothing.
        let most = 1 << 30;
        let weight = usize::try_from(weight).ok().filter(|w| *w <= most);
        let weight = weight.ok_or(DecodeError::Unknown("weight"))?;
        if self.zeros.len() < weight {
            self.zeros = vec![0; weight.next_power_of_two()].into();
        }
        Ok(self.zeros.slice(..weight))
    }
}

impl GroupHeads {
    /// Applies the records that a ledger has not applied yet.
    pub(crate) fn apply_to(&self, ledger: &mut Ledger) {
        for (lsn, record) in (self.first.0..).zip(&self.records) {
            if lsn > ledger.applied().0 {
                match record {
                    Some(record) => ledger.apply(Lsn(lsn), record),
                    None => ledger.skip(Lsn(lsn)),
                }
            }
        }
        ledger.note_clock(self.clock);
    }
}

/// The blob of a queue.
pub(crate) fn blob(row: &QueueRow) -> Vec<u8> {
    let mut w = Writer::default();
    w.settings(&row.settings);
    w.pause(row.pause);
    w.totals(&row.totals);
    row.tally.encode(&mut w);
    w.bytes
}

/// Reads what [`blob`] wrote.
pub(crate) fn read_blob(name: QueueName, bytes: Vec<u8>) -> Result<QueueRow, DecodeError> {
    let mut r = Reader::new(bytes.into());
    let (settings, pause, totals) = (r.settings()?, r.pause()?, r.totals()?);
    let row = QueueRow { name, settings, pause, totals, tally: Tally::decode(&mut r)? };
    if r.is_empty() { Ok(row) } else { Err(DecodeError::Unknown("end")) }
}

#[cfg(test)]
mod tests {
    use duewheel_core::store::conformance::History;

    use super::*;

    #[test]
    fn a_ledger_of_heads_is_the_ledger() {
        for seed in 0..20 {
            let mut history = History::new(seed);
            let (mut ledger, mut reader) = (Ledger::default(), GroupReader::default());
            for _ in 0..100 {
                let group = history.group(20);
                reader.read(heads(&group)).unwrap().apply_to(&mut ledger);
                assert_eq!(ledger, *history.model().ledger(), "seed {seed}");
            }
            for row in ledger.rows() {
                assert_eq!(read_blob(row.name.clone(), blob(&row)), Ok(row));
            }
        }
    }

    #[test]
    fn damage_is_refused() {
        let group = History::new(3).group(20);
        let whole = heads(&group);
        for end in 0..whole.len() {
            assert!(GroupReader::default().read(whole[..end].to_vec()).is_err(), "cut at {end}");
        }
        let mut longer = whole;
        longer.push(0);
        assert!(GroupReader::default().read(longer).is_err());
    }
}
