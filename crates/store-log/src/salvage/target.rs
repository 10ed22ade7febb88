//! The new folder, written through its own store.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use duewheel_core::answers::AnswerPosition;
use duewheel_core::message::{Life, MessageContent, Row, Stage};
use duewheel_core::record::{ClockPair, DedupeRow, Group, Record, Was};
use duewheel_core::store::{Capacity, ErrorKind, Found, Lookups, Store, StoreError};
use duewheel_core::{Epoch, Key, Lsn, MessageId, QueueName};

use super::report::{Loss, SalvageReport};
use crate::backup::empty_folder;
use crate::format::FileNo;
use crate::manifest::Manifest;
use crate::options::Options;
use crate::salvage::books::SalvagedBooks;
use crate::state;
use crate::store::LogStore;

/// Number of messages and answers that are written together.
const TOGETHER: usize = 512;
/// A group is closed when it has this many bytes.
const GROUP_BYTES: usize = 1024 * 1024;
const SEGMENT_BYTES: u64 = 4 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct SalvageTarget {
    store: LogStore,
    clock: ClockPair,
    next: Lsn,
    rows: Vec<Row>,
    bytes: usize,
    answers: Vec<(DedupeRow, ExistingAnswer)>,
    written: WriteResult,
}

/// The relation of an answer to an existing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExistingAnswer {
    /// The existing answer is newer.
    Replaces,
    /// The existing answer is older.
    Yields,
}

/// The result of the writes.
#[derive(Clone, Debug, Default)]
pub(super) struct WriteResult {
    pub(super) messages: u64,
    pub(super) answers: u64,
    pub(super) per_queue: BTreeMap<QueueName, u64>,
}

impl SalvageTarget {
    /// Makes a folder with the books, and opens it.
    pub(super) fn create(
        dir: &Path,
        books: &SalvagedBooks,
        epoch: Epoch,
        clock: ClockPair,
    ) -> Result<Self, StoreError> {
        if dir.exists() {
            let what = format_args!("{} exists", dir.display()).to_string();
            return Err(StoreError::new(ErrorKind::Unavailable, what));
        }
        let disk = empty_folder(dir)?;
        let ledger = books.without_messages();
        let state = state::write::write_whole(&disk, FileNo(1), &ledger, &[])?;
        let (next_file, proven) = (FileNo(2), ledger.applied());
        Manifest {
            epoch,
            next_file,
            proven,
            is_closed: true,
            states: vec![state],
            ..Manifest::drawn(&disk)?
        }
        .replace(&disk)?;
        let thread = thread::current();
        let options = Options { segment_bytes: SEGMENT_BYTES, ..Options::default() };
        let mut store = LogStore::open(dir, options, Arc::new(move || thread.unpark()))?;
        let next = store.recovered().next_lsn;
        if let Some(anchor) = books.anchor() {
            store.idle(clock, Some(anchor))?;
        }
        let (rows, answers, written) = (Vec::new(), Vec::new(), WriteResult::default());
        Ok(SalvageTarget { store, clock, next, rows, bytes: 0, answers, written })
    }

    pub(super) fn clock(&self) -> ClockPair {
        self.clock
    }

    /// Adds a message; each one once.
    pub(super) fn put(
        &mut self,
        message: Arc<MessageContent>,
        life: Life,
        report: &mut SalvageReport,
    ) -> Result<(), StoreError> {
        let row = Row { message, life };
        self.bytes += row.weight();
        self.rows.push(row);
        self.flush_if_due(report)
    }

    /// Adds a remembered answer.
    pub(super) fn answer(
        &mut self,
        row: DedupeRow,
        over: ExistingAnswer,
        report: &mut SalvageReport,
    ) -> Result<(), StoreError> {
        self.answers.push((row, over));
        self.flush_if_due(report)
    }

    fn flush_if_due(&mut self, report: &mut SalvageReport) -> Result<(), StoreError> {
        if self.bytes < GROUP_BYTES && self.rows.len() + self.answers.len() < TOGETHER {
            return Ok(());
        }
        self.flush(report)
    }

    /// Writes everything that was added.
    pub(super) fn flush(&mut self, report: &mut SalvageReport) -> Result<(), StoreError> {
        let mut records = self.settle_keys(report)?;
        for row in std::mem::take(&mut self.rows) {
            self.written.messages += 1;
            *self.written.per_queue.entry(row.message.queue.clone()).or_default() += 1;
            records.push(Record::Put { message: row.message, life: row.life, was: None });
        }
        self.bytes = 0;
        let answers = self.new_answers()?;
        self.written.answers += answers.iter().filter(|row| row.until > self.clock.engine).count() as u64;
        // An answer has the position of its record.
        let first = self.next.0 + records.len() as u64;
        records.extend((first..).zip(answers).map(|(nth, mut row)| {
            row.position = row.position.map(|position| AnswerPosition { nth: Lsn(nth), ..position });
            Record::Deduped(row)
        }));
        if records.is_empty() {
            return Ok(());
        }
        loop {
            match self.store.room() {
                Capacity::Enough => break,
                Capacity::Busy => {
                    self.store.progress()?;
                    thread::park_timeout(Duration::from_millis(10));
                }
                Capacity::SettleOnly | Capacity::RemoveOnly => {
                    return Err(StoreError::new(ErrorKind::Full, "there is no room for the new folder"));
                }
            }
        }
        let group = Group { first: self.next, clock: self.clock, records };
        self.next = group.last().next();
        self.store.append(&group)
    }

    /// Resolves messages that have one key: the newest keeps it. Returns the rows that must be written again.
    fn settle_keys(&mut self, report: &mut SalvageReport) -> Result<Vec<Record>, StoreError> {
        let keys: BTreeSet<(QueueName, Key)> = self.rows.iter().filter_map(held).collect();
        let mut found = Found::default();
        let lookups = Lookups { keys: keys.iter().cloned().collect(), ..Lookups::default() };
        self.store.find_many(&lookups, &mut found)?;
        let mut written: BTreeMap<MessageId, Row> = BTreeMap::new();
        let mut holders: BTreeMap<(QueueName, Key), MessageId> = BTreeMap::new();
        for row in found.rows {
            if let Some(key) = held(&row).filter(|key| keys.contains(key)) {
                holders.insert(key, row.message.id);
                written.insert(row.message.id, row);
            }
        }
        let mut losers: BTreeSet<MessageId> = BTreeSet::new();
        for row in &self.rows {
            let Some(key) = held(row) else { continue };
            let id = row.message.id;
            let Some(other) = holders.insert(key.clone(), id) else { continue };
            let (loser, holder) = (id.min(other), id.max(other));
            holders.insert(key.clone(), holder);
            losers.insert(loser);
            report.losses.push(Loss::Key { id: loser, queue: key.0, key: key.1, holder });
        }
        for row in self.rows.iter_mut().filter(|row| losers.contains(&row.message.id)) {
            row.message = without_key(&row.message);
        }
        let again = written.into_values().filter(|row| losers.contains(&row.message.id));
        Ok(again
            .map(|Row { message, life }| {
                let was = Was::of(&message, &life);
                Record::Put { message: without_key(&message), life, was: Some(was) }
            })
            .collect())
    }

    /// The answers to write: the newer of two for one `dedupe_id`.
    fn new_answers(&mut self) -> Result<Vec<DedupeRow>, StoreError> {
        let answers = std::mem::take(&mut self.answers);
        let name = |row: &DedupeRow| (row.queue.clone(), row.dedupe_id.clone());
        let yielding: BTreeSet<_> = answers
            .iter()
            .filter(|(_, over)| *over == ExistingAnswer::Yields)
            .map(|(row, _)| name(row))
            .collect();
        let mut found = Found::default();
        let lookups = Lookups { answers: yielding.into_iter().collect(), ..Lookups::default() };
        self.store.find_many(&lookups, &mut found)?;
        let there: BTreeSet<_> = found.answers.iter().map(name).collect();
        let is_new = |(row, over): &(DedupeRow, ExistingAnswer)| {
            *over == ExistingAnswer::Replaces || !there.contains(&name(row))
        };
        Ok(answers.into_iter().filter(is_new).map(|(row, _)| row).collect())
    }

    /// Makes everything durable.
    pub(super) fn close(&mut self) -> Result<WriteResult, StoreError> {
        self.store.close(self.clock)?;
        Ok(self.written.clone())
    }
}

/// The key that a message holds.
fn held(row: &Row) -> Option<(QueueName, Key)> {
    let is_dead = matches!(row.life.stage, Stage::Dead { .. });
    let key = row.life.key_of(&row.message).filter(|_| !is_dead)?;
    Some((row.message.queue.clone(), key.clone()))
}

fn without_key(message: &Arc<MessageContent>) -> Arc<MessageContent> {
    let mut message = MessageContent::clone(message);
    message.key = None;
    Arc::new(message)
}
