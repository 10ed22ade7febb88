//! Reads the first fields of a record that puts a new message, without decoding the rest: for ledgers, which read
//! millions of them, and for flushes, which copy them.

use super::TallyState;
use super::codec::PUT;
use super::head::{LifeHead, StageKind};
use super::life::skip_rest_of_waiting;
use super::primitive::{Writer, varint};
use super::settings::skip_options;
use crate::id::MessageId;
use crate::message::Kind;
use crate::time::Due;

/// A record that puts a new message, of which only the fields are read that a ledger or a run needs. A new message
/// waits, has no token, and did not exist before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewPut<'a> {
    /// The message.
    pub id: MessageId,
    /// The name of the message's queue.
    pub queue: &'a str,
    /// The key of the message; empty if it has none.
    pub key: &'a [u8],
    /// When the message may be delivered.
    pub due: Due,
    /// The bytes that count against limits.
    pub weight: u64,
    /// The message behind its key, as records and rows have it.
    content: &'a [u8],
    /// The life behind its head, as records and rows have it.
    rest: &'a [u8],
}

impl<'a> NewPut<'a> {
    /// Reads a record; `None` for every other record, and for bytes that are no record.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let (&PUT, mut rest) = bytes.split_first()? else { return None };
        let rest = &mut rest;
        let id = MessageId(varint(rest).ok()?);
        let queue = std::str::from_utf8(skip_blob(rest)?).ok()?;
        let key = skip_blob(rest)?;
        let (content, mut weight) = (*rest, key.len());
        varint(rest).ok()?; // accepted at
        skip_options(rest)?;
        for _ in 0..varint(rest).ok()? {
            weight += skip_blob(rest)?.len() + skip_blob(rest)?.len();
        }
        weight += skip_blob(rest)?.len();
        let content = &content[..content.len() - rest.len()];
        let LifeHead { due, stands: StageKind::Waiting, has_token: false } = LifeHead::read(rest).ok()?
        else {
            return None;
        };
        let behind = *rest;
        skip_rest_of_waiting(rest)?;
        let life = &behind[..behind.len() - rest.len()];
        // Nothing was there before.
        (rest[..] == [0]).then_some(NewPut {
            id,
            queue,
            key,
            due,
            weight: weight as u64,
            content,
            rest: life,
        })
    }

    /// The state of the message behind this record.
    pub fn state(&self) -> TallyState {
        TallyState { kind: Kind::Waiting, due: self.due, weight: self.weight }
    }
}

fn skip_blob<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(varint(bytes).ok()?).ok()?;
    let (blob, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(blob)
}

impl Writer {
    /// Writes a new message as [`Writer::stored`] does, from the record that puts it. The fields of that record are
    /// copied as they are, also those that a later version has added.
    pub fn stored_put(&mut self, put: &NewPut<'_>) {
        self.varint(put.id.0);
        self.byte(put.due.class() as u8);
        self.varint(put.due.raw());
        self.varint(put.weight);
        self.blob(put.key);
        self.bytes.extend_from_slice(put.content);
        self.bytes.extend_from_slice(put.rest);
    }
}
