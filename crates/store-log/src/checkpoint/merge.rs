//! Folds a run and the sealed segments that follow it into a new run.
//!
//! The fold is a [`Table`], so that a checkpoint cannot mean anything else than the records do. But it is a partial one:
//! of the old run it takes in only the messages that the journal names, and those without their bodies. What it holds is
//! bounded by the journal, not by the backlog; the old run streams by, twice:
//!
//! 1. the journal is read for the ids it names;
//! 2. the old run is read for those, for queues, answers and counters;
//! 3. the journal is applied;
//! 4. the old run is read again: what the journal did not name is copied, unless a purge took its queue; what it did
//!    name is written with its new life, or not at all; new messages come between, by id.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use duewheel_core::message::{Message, Row};
use duewheel_core::record::Record;
use duewheel_core::store::{ErrorKind, StoreError, Table};
use duewheel_core::{Lsn, MessageId, QueueName};

use crate::disk::Disk;
use crate::fault::{Problem, Trouble};
use crate::folder::{FileNo, Incarnation};
use crate::journal::replay;
use crate::journal::segment::{Sealed, SegmentReader};
use crate::manifest::RunEntry;
use crate::run_v1::reader::{self, Entry, RawRow, RunReader};
use crate::run_v1::writer::{Counts, RunWriter};

/// Writes the new run and returns its entry; nothing lists it yet.
pub(crate) fn merge(
    disk: &dyn Disk,
    base: Option<&RunEntry>,
    sealed: &[Sealed],
    no: FileNo,
    incarnation: Incarnation,
    stop: &dyn Fn() -> bool,
) -> Result<(RunEntry, Counts), Trouble> {
    let from = reader::last(base);
    let mut fold = Fold { named: Vec::new(), swept: BTreeSet::new(), table: Table::default(), from };
    if base.is_some() {
        for segment in sealed {
            go_on(stop)?;
            visit(disk, segment, |_, record| fold.name(record))?;
        }
        fold.named.sort_unstable();
        fold.named.dedup();
    }
    fold.table.restore_counters(from, 1, None);
    if let Some(run) = base {
        fold.take_in(RunReader::open(disk, run)?, stop)?;
    }
    for segment in sealed {
        go_on(stop)?;
        fold.apply(disk, segment)?;
    }
    let mut out = RunWriter::create(disk, no, incarnation, fold.table.applied())?;
    for (queue, messages) in fold.table.queue_counts() {
        out.queue(&queue, messages)?;
    }
    let base = base.map(|run| RunReader::open(disk, run)).transpose()?;
    fold.write_messages(base, &mut out, stop)?;
    for answer in fold.table.dedupe_rows() {
        out.answer(&answer)?;
    }
    Ok(out.finish(fold.table.next_id(), fold.table.clock())?)
}

struct Fold {
    /// Ids that the journal names and the old run may hold, ascending.
    named: Vec<MessageId>,
    /// Queues that a purge has swept: of the old run, only named messages can be left there.
    swept: BTreeSet<QueueName>,
    table: Table,
    /// The old run includes everything up to here.
    from: Lsn,
}

impl Fold {
    fn name(&mut self, record: &Record) {
        match record {
            Record::Put { message, .. } => self.named.push(message.id),
            Record::Changed { id, .. } | Record::Granted { id, .. } | Record::Removed { id, .. } => {
                self.named.push(*id);
            }
            Record::Purged { keep, .. } => self.named.extend(keep),
            Record::Queue { .. } | Record::Deduped(_) => {}
        }
    }

    /// Reads the old run for what the fold needs of it.
    fn take_in(&mut self, mut run: RunReader, stop: &dyn Fn() -> bool) -> Result<(), Trouble> {
        let mut absent: BTreeMap<QueueName, u64> = BTreeMap::new();
        let mut named = self.named.iter().peekable();
        while let Some(entry) = run.entry()? {
            match entry {
                Entry::Queue { row, messages } => {
                    absent.insert(row.name.clone(), messages);
                    self.table.restore_queue(row);
                }
                Entry::Message(raw) => {
                    go_on(stop)?;
                    while named.next_if(|id| **id < raw.id).is_some() {}
                    if named.peek() != Some(&&raw.id) {
                        continue;
                    }
                    let row = without_body(decode(&run, &raw)?);
                    if let Some(count) = absent.get_mut(&row.message.queue) {
                        *count = count.saturating_sub(1);
                    }
                    self.table.restore_row(row);
                }
                Entry::Answer(row) => self.table.restore_dedupe(row),
                Entry::End(end) => self.table.restore_counters(self.from, end.next_id, end.clock),
            }
        }
        for (queue, count) in absent {
            self.table.restore_absent(&queue, count);
        }
        Ok(())
    }

    fn apply(&mut self, disk: &dyn Disk, sealed: &Sealed) -> Result<(), Trouble> {
        let segment = SegmentReader::open(disk, &sealed.entry)?;
        let header = segment.header()?.ok_or_else(|| segment.problem(0, "the header is damaged"))?;
        if let Some(clock) = header.clock {
            self.table.note_clock(clock);
        }
        replay::sealed_frames(segment, sealed, |frame| {
            replay::records(&sealed.entry, frame, |lsn, record| {
                if let Record::Purged { queue, .. } = &record {
                    self.swept.insert(queue.clone());
                }
                self.table.apply_read(lsn, record);
            })?;
            self.table.note_clock(frame.head.clock);
            Ok(())
        })
    }

    fn write_messages(
        &self,
        base: Option<RunReader>,
        out: &mut RunWriter<'_>,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), Trouble> {
        let ids = self.table.ids();
        let mut ids = ids.iter().peekable();
        let mut named = self.named.iter().peekable();
        if let Some(mut run) = base {
            while let Some(entry) = run.entry()? {
                let Entry::Message(raw) = entry else { continue };
                go_on(stop)?;
                while let Some(id) = ids.next_if(|id| **id < raw.id) {
                    self.write_new(*id, out)?;
                }
                while named.next_if(|id| **id < raw.id).is_some() {}
                if named.peek() != Some(&&raw.id) {
                    self.write_untouched(&run, &raw, out)?;
                    continue;
                }
                if ids.next_if(|id| **id == raw.id).is_none() {
                    continue; // gone
                }
                match self.table.row(raw.id) {
                    // Still the same message: its body is in the old run only.
                    Some((row, born)) if born == self.from => {
                        let message = decode(&run, &raw)?.message;
                        out.row(&Row { message, life: row.life.clone() })?;
                    }
                    Some((row, _)) => out.row(row)?,
                    None => {}
                }
            }
        }
        for id in ids {
            self.write_new(*id, out)?;
        }
        Ok(())
    }

    fn write_new(&self, id: MessageId, out: &mut RunWriter<'_>) -> Result<(), StoreError> {
        match self.table.row(id) {
            Some((row, _)) => out.row(row),
            None => Ok(()),
        }
    }

    fn write_untouched(&self, run: &RunReader, raw: &RawRow, out: &mut RunWriter<'_>) -> Result<(), Trouble> {
        if !self.swept.is_empty() {
            let queue = raw.queue().map_err(|e| run.problem(&format!("a message cannot be read: {e}")))?;
            if self.swept.contains(&queue) {
                return Ok(());
            }
        }
        Ok(out.row_bytes(&raw.bytes)?)
    }
}

fn visit(disk: &dyn Disk, sealed: &Sealed, mut see: impl FnMut(Lsn, &Record)) -> Result<(), Trouble> {
    replay::sealed_frames(SegmentReader::open(disk, &sealed.entry)?, sealed, |frame| {
        replay::records(&sealed.entry, frame, |lsn, record| see(lsn, &record))
    })
}

fn decode(run: &RunReader, raw: &RawRow) -> Result<Row, Problem> {
    raw.decode().map_err(|e| run.problem(&format!("a message cannot be read: {e}")))
}

/// The same row, as light as the fold can have it.
fn without_body(row: Row) -> Row {
    let message = Message { body: Bytes::new(), headers: Vec::new(), ..Message::clone(&row.message) };
    Row { message: Arc::new(message), life: row.life }
}

fn go_on(stop: &dyn Fn() -> bool) -> Result<(), StoreError> {
    if stop() { Err(StoreError::new(ErrorKind::Closed, "the store is being closed")) } else { Ok(()) }
}
