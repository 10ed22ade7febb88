//! Records, stored rows and the books, as bytes.

use std::sync::Arc;

use bytes::Bytes;
use duewheel_core::message::{Kind, Row};
use duewheel_core::record::{NewPut, Reader, Record, RowHead, StageKind, TallyState, Writer, varint};
use duewheel_core::tally::Tally;
use duewheel_core::time::Class;
use duewheel_core::{Lsn, QueueName};

use duewheel_core::store::Ledger;

use crate::choices::Choices;
use crate::cuts::cuts;
use crate::wild;

/// The first byte chooses how the others are read: as a record, a row of a run, a queue's books, or decisions that make
/// a record.
pub fn record(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    match first % 4 {
        0 => any_record(rest),
        1 => any_row(rest),
        2 => any_tally(rest),
        _ => made_up(rest),
    }
}

/// A value that is read is the same when it is written and read again, and its head alone is read in the same way.
fn any_record(bytes: &[u8]) {
    let all = Bytes::copy_from_slice(bytes);
    let mut short = bytes;
    let by_slice = varint(&mut short);
    let mut reader = Reader::new(all.clone());
    assert_eq!(by_slice, reader.varint(), "two readers of one number");
    assert!(by_slice.is_err() || reader.position() == bytes.len() - short.len());

    let mut reader = Reader::new(all);
    let Ok(record) = reader.record() else { return };
    assert!(reader.position() <= bytes.len());
    let written = comes_back(&record);
    says_the_same(&record, &bytes[..reader.position()], &written);
}

fn made_up(bytes: &[u8]) {
    let record = wild::record(&mut Choices::new(bytes));
    let written = comes_back(&record);
    says_the_same(&record, &written, &written);
}

fn comes_back(record: &Record) -> Bytes {
    let mut writer = Writer::default();
    writer.record(record);
    let written = Bytes::from(writer.bytes);
    let mut reader = Reader::new(written.clone());
    assert_eq!(reader.record().as_ref(), Ok(record), "a record does not come back");
    assert!(reader.is_empty(), "a record is longer than it is");
    // No part of it is a record.
    for cut in cuts(&written) {
        assert!(Reader::new(written.slice(..cut)).record().is_err(), "half a record is one");
    }
    if let Record::Put { message, life, .. } = record {
        let row = Row { message: message.clone(), life: life.clone() };
        let mut stored = Writer::default();
        stored.stored(&row);
        let stored = Bytes::from(stored.bytes);
        assert_eq!(Reader::new(stored.clone()).stored(message.queue.clone()).as_ref(), Ok(&row));
        has_a_head(&row, &stored, Weight::Right);
    }
    written
}

/// Both ways in which a ledger applies a record have the same result. `bytes` are the record as it was read, `written`
/// as it is written.
fn says_the_same(record: &Record, bytes: &[u8], written: &[u8]) {
    let (mut by_record, mut by_bytes) = (Ledger::default(), Ledger::default());
    by_record.apply(Lsn(1), record);
    by_bytes.apply_bytes(Lsn(1), bytes).expect("it was read before");
    by_record.apply(Lsn(2), record);
    by_bytes.apply_bytes(Lsn(2), bytes).expect("it was read before");
    assert_eq!(by_record, by_bytes, "the books depend on how they are kept");
    // As a flush makes a row of a record: perhaps one that this version would write in fewer bytes.
    if let (Some(put), Record::Put { message, life, .. }) = (NewPut::read(bytes), record) {
        let mut stored = Writer::default();
        stored.stored_put(&put);
        let row = Reader::new(stored.bytes.into()).stored(message.queue.clone());
        assert_eq!(row, Ok(Row { message: Arc::clone(message), life: life.clone() }), "another message");
    }
    let Some(put) = NewPut::read(written) else { return };
    let Record::Put { message, life, was } = record else { panic!("{record:?} is no new message") };
    assert!(was.is_none() && life.stage.kind() == Kind::Waiting);
    assert_eq!((put.id, put.queue), (message.id, message.queue.as_str()));
    let mut stored = Writer::default();
    stored.stored_put(&put);
    let mut row = Writer::default();
    row.stored(&Row { message: Arc::clone(message), life: life.clone() });
    assert_eq!(stored.bytes, row.bytes, "a row depends on how it is made");
    assert_eq!(
        put.state(),
        TallyState { kind: Kind::Waiting, due: life.due, weight: (message.weight() + life.weight()) as u64 }
    );
}

fn any_row(bytes: &[u8]) {
    let queue = QueueName::new("q").expect("a good name");
    let bytes = Bytes::copy_from_slice(bytes);
    let mut reader = Reader::new(bytes.clone());
    let Ok(row) = reader.stored(queue.clone()) else { return };
    has_a_head(&row, &bytes, Weight::Perhaps);
    let mut writer = Writer::default();
    writer.stored(&row);
    let written = Bytes::from(writer.bytes);
    assert_eq!(Reader::new(written.clone()).stored(queue), Ok(row.clone()), "a row does not come back");
    has_a_head(&row, &written, Weight::Right);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Weight {
    Right,
    Perhaps,
}

fn has_a_head(row: &Row, bytes: &[u8], weight: Weight) {
    let head = RowHead::read(bytes).expect("a row has a head");
    let key = row.message.key.as_ref().map_or("", |key| key.as_str());
    assert_eq!((head.id, head.due, head.key), (row.message.id, row.life.due, key.as_bytes()));
    assert!(weight == Weight::Perhaps || head.weight == row.weight() as u64);
    let kind = match head.stands {
        StageKind::Waiting => Kind::Waiting,
        StageKind::Leased { .. } => Kind::Leased,
        StageKind::Dead { .. } => Kind::Dead,
    };
    assert_eq!(kind, row.life.stage.kind());
}

/// Books that were read can be shown, updated and written.
fn any_tally(bytes: &[u8]) {
    let mut reader = Reader::new(Bytes::copy_from_slice(bytes));
    let Ok(mut tally) = Tally::decode(&mut reader) else { return };
    let mut writer = Writer::default();
    tally.encode(&mut writer);
    assert_eq!(
        Tally::decode(&mut Reader::new(writer.bytes.into())).as_ref(),
        Ok(&tally),
        "books do not come back"
    );
    let mut c = Choices::new(&bytes[reader.position()..]);
    for _ in 0..8 {
        let now = c.number();
        let shown: u64 = tally.due.from(Class::At, now).map(|(_, n)| n).sum();
        assert!(tally.due.between(Class::At, now, u64::MAX) <= shown, "more is due than there is");
        let record = wild::record(&mut c);
        match record.moves() {
            (Some(was), _) => tally.sub(was.kind, was.due, was.weight),
            (None, Some(is)) => tally.add(is.kind, is.due, is.weight, 64),
            (None, None) => {
                let gone = tally.purge();
                assert_eq!(tally.count(), tally.part(Kind::Leased).count);
                tally.due.sub_all(&gone.due);
            }
        }
        assert!(tally.weight() >= tally.part(Kind::Waiting).weight);
    }
}
