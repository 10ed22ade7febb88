//! The rows that may be recorded in duewheel, as a durable record: written before a batch is applied.
//!
//! ```text
//! version  u8    1
//! rows     (seq i64, id u128) each
//! ```
//!
//! All numbers are little-endian.

use std::collections::BTreeSet;

use bytes::Bytes;
use duewheel::core::MessageId;
use duewheel::core::engine::{Op, SourceRow};
use duewheel::core::name::QueueName;
use duewheel::{Client, Duewheel, Policy};
use duewheel_delivery::{NotWritten, RecordStore};

use super::error::OutboxError;
use super::row::RowName;

const VERSION: u8 = 1;
const HEAD: usize = 1;
const ROW: usize = 24;
/// The name of the record in the queue of its database.
const NAME: &str = "intent";

/// The record of one database.
#[derive(Debug)]
pub(super) struct IntentRecord {
    store: RecordStore,
    /// The system queue of the record, under which rows are recorded.
    pub(super) queue: QueueName,
    max_body: usize,
    /// The number of rows that one operation releases.
    max_step: usize,
    /// The message of the record and its generation, as they were read or written last.
    place: Option<(MessageId, u32)>,
}

impl IntentRecord {
    pub(super) fn new(wheel: &Duewheel, policy: &Policy, queue: QueueName) -> Self {
        let store = RecordStore::new(wheel, queue.clone(), policy);
        IntentRecord {
            store,
            queue,
            max_body: policy.max_body,
            max_step: policy.max_step.max(1),
            place: None,
        }
    }

    /// The number of rows that a record can name.
    pub(super) fn capacity(&self) -> usize {
        self.max_body.saturating_sub(HEAD) / ROW
    }

    /// Reads the record, and creates it if it is missing.
    pub(super) async fn read(&mut self) -> Result<BTreeSet<RowName>, OutboxError> {
        loop {
            if let Some(found) = self.store.read(NAME).await? {
                self.place = Some((found.id, found.generation));
                return decoded(&found.body);
            }
            self.store.create(NAME, encoded(&BTreeSet::new())).await?;
        }
    }

    /// Writes the record. It is durable when this returns. Refused if another process has written it since.
    pub(super) async fn write(&mut self, rows: &BTreeSet<RowName>) -> Result<(), OutboxError> {
        let Some(place) = self.place else { return Err(NotWritten::Lost.into()) };
        let generation = self.store.write(place, encoded(rows), None, None).await?;
        self.place = Some((place.0, generation));
        Ok(())
    }
}

impl IntentRecord {
    /// The operation, applied once for its row: a replay gets the first outcome, until the row is released.
    pub(super) fn once(&self, op: Op, row: RowName) -> Op {
        op.once(SourceRow { source: self.queue.clone(), id: recorded(row) })
    }

    /// Forgets rows that are gone from the table. It is durable when this returns.
    pub(super) async fn release(
        &self,
        client: &Client,
        rows: impl IntoIterator<Item = &RowName>,
    ) -> Result<(), OutboxError> {
        let rows: Vec<Box<str>> = rows.into_iter().map(|row| recorded(*row)).collect();
        let confirm = |rows: &[Box<str>]| Op::confirm(self.queue.clone(), rows.to_vec());
        for answer in client.ask_many(rows.chunks(self.max_step).map(confirm).collect()).await? {
            answer?;
        }
        Ok(())
    }
}

/// The id under which a row is recorded.
fn recorded(row: RowName) -> Box<str> {
    format!("{:032x}", row.id).into()
}

fn encoded(rows: &BTreeSet<RowName>) -> Bytes {
    let mut bytes = Vec::with_capacity(HEAD + rows.len() * ROW);
    bytes.push(VERSION);
    for row in rows {
        bytes.extend(row.seq.to_le_bytes());
        bytes.extend(row.id.to_le_bytes());
    }
    bytes.into()
}

fn decoded(bytes: &[u8]) -> Result<BTreeSet<RowName>, OutboxError> {
    let (version, rows) = bytes.split_first().ok_or(OutboxError::BadRecord)?;
    let (rows, rest) = rows.as_chunks::<ROW>();
    if *version != VERSION || !rest.is_empty() {
        return Err(OutboxError::BadRecord);
    }
    let row = |bytes: &[u8; ROW]| RowName {
        seq: bytes.first_chunk().map_or(0, |seq| i64::from_le_bytes(*seq)),
        id: bytes.last_chunk().map_or(0, |id| u128::from_le_bytes(*id)),
    };
    Ok(rows.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intents_survive_their_bytes() {
        let rows =
            [(1, 7), (i64::MAX, u128::MAX), (-1, 1 << 127)].map(|(seq, id)| RowName { seq, id }).into();
        let bytes = encoded(&rows);
        assert_eq!(bytes.len(), HEAD + 3 * ROW);
        assert_eq!(decoded(&bytes).unwrap(), rows);
        for broken in [&bytes[..2], &[2], &[]] {
            assert!(matches!(decoded(broken), Err(OutboxError::BadRecord)), "{broken:?}");
        }
    }
}
