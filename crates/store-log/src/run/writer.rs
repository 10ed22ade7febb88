//! Writes a run, from its start to its end, in memory bounded by one span and by the pieces of the sorters.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use duewheel_core::message::{self, Row};
use duewheel_core::record::{DedupeRow, NewPut, RowHead, StageKind, Writer};
use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_core::time::Class;
use duewheel_core::{Due, Lsn, MessageId, QueueName};
use roaring::RoaringTreemap;

use super::block::{self, BLOCK, BlockKind, FILE_HEAD, Footer, HEAD};
use super::filter::FilterWriter;
use super::find;
use super::index::RunIndex;
use super::opened::{RunAnswers, RunQueue, Span};
use crate::disk::{Disk, DiskFile};
use crate::fault::failed;
use crate::format::{FileNo, Incarnation, RUNS};
use crate::manifest::RunEntry;
use crate::run::filter::{self, NameHasher, QueueHash};
use crate::run::index::{LeafEntry, LeafWriter, SortedEntries, Sorter, Spill};
use crate::run::opened::RawRow;

/// Bytes of rows in a span.
pub(crate) const SPAN: usize = 1024 * 1024;
/// A queue with this many bytes of rows in a span gets its own blocks, which scans of others skip.
pub(super) const OWN: usize = 32 * 1024;
/// Size of the pieces that are written.
const WRITE: usize = 1024 * 1024;
/// Size of the pieces that are synced, so that a sync of the journal never queues behind a whole run.
const SYNC: u64 = 2 * 1024 * 1024;
/// An entry of an index takes about as long as this many bytes of rows.
const BYTES_OF_ENTRY: u64 = 48;

/// Takes rows in ascending order of (class, due, id), then answers.
#[derive(Debug)]
pub(crate) struct RunWriter {
    out: Output,
    span: usize,
    hasher: NameHasher,
    queues: Vec<RunQueue>,
    hashes: Vec<QueueHash>,
    numbers: HashMap<QueueName, u32>,
    /// The rows of the present span, and their bytes.
    held: Vec<SpanRow>,
    bytes: Vec<u8>,
    last: Option<(Class, u64, MessageId)>,
    spans: Vec<Span>,
    /// Queues whose last row of this span is in the present block, with the position of their first one.
    ending: Vec<(u32, u64, BlockSharing)>,
    answers: Vec<(u64, Range<usize>)>,
    answer_bytes: Vec<u8>,
    answers_by_queue: BTreeMap<QueueName, RunAnswers>,
    spill: Spill,
    by_id: Sorter<2>,
    by_key: Sorter<3>,
    by_queue: Sorter<4>,
    leased: Sorter<4>,
    dead: Sorter<4>,
    graves: Sorter<4>,
    footer: Footer,
    finishing: Finishing,
}

/// The parts of a run behind rows and answers, and the data that is gathered for the tail.
#[derive(Debug, Default)]
struct Finishing {
    stage: WriterStage,
    fences: Vec<(u32, Vec<u8>)>,
    ids: IdSetBuilder,
    filter: Option<FilterWriter>,
}

/// Builds the set of ids from ascending ones, most of which are consecutive.
#[derive(Debug, Default)]
struct IdSetBuilder {
    set: RoaringTreemap,
    row: Option<RangeInclusive<u64>>,
}

#[derive(Debug, Default)]
enum WriterStage {
    #[default]
    Begin,
    Ids(Leaves<2>),
    Keys(Leaves<3>),
    /// The queues' spans, the leased, the dead, the dead of each queue.
    Others(OtherIndex, Leaves<4>),
    Tail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OtherIndex {
    Spans,
    Leased,
    Dead,
    Graves,
}

/// An index that is being written.
#[derive(Debug)]
struct Leaves<const C: usize> {
    kind: BlockKind,
    sorted: SortedEntries<C>,
    leaf: LeafWriter<C>,
    leaves: Vec<(u64, LeafEntry<C>)>,
    entries: u64,
}

/// A row of the present span.
#[derive(Debug)]
struct SpanRow {
    queue: u32,
    id: MessageId,
    due: Due,
    stands: StageKind,
    key: Option<u64>,
    from: usize,
    length: usize,
}

/// Whether a queue shares its blocks of a span with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockSharing {
    Shared,
    Own,
}

/// The file, and the present block.
#[derive(Debug)]
struct Output {
    disk: Arc<dyn Disk>,
    file: Arc<dyn DiskFile>,
    temp: String,
    run: RunEntry,
    /// Bytes written before those in `bytes`.
    written: u64,
    synced: u64,
    /// Complete blocks, then the present one.
    bytes: Vec<u8>,
    /// The start of the present block in `bytes`: space for its head, then its content.
    block: usize,
    entries: u32,
}

impl RunWriter {
    pub(crate) fn create(
        disk: &Arc<dyn Disk>,
        no: FileNo,
        incarnation: Incarnation,
        last: Lsn,
        hasher: NameHasher,
    ) -> Result<Self, StoreError> {
        let temp = no.run_temp();
        let file = disk.create(&temp).map_err(failed("create", &temp))?;
        let run = RunEntry { no, incarnation, bytes: 0, last, tail: None };
        Ok(RunWriter {
            out: Output {
                disk: Arc::clone(disk),
                file,
                temp,
                run,
                written: 0,
                synced: 0,
                bytes: [&block::file_head(&run)[..], &[0; HEAD]].concat(),
                block: FILE_HEAD,
                entries: 0,
            },
            span: SPAN,
            hasher,
            queues: Vec::new(),
            hashes: Vec::new(),
            numbers: HashMap::new(),
            held: Vec::new(),
            bytes: Vec::new(),
            last: None,
            spans: Vec::new(),
            ending: Vec::new(),
            answers: Vec::new(),
            answer_bytes: Vec::new(),
            answers_by_queue: BTreeMap::new(),
            spill: Spill::new(Arc::clone(disk), no),
            by_id: Sorter::new(),
            by_key: Sorter::new(),
            by_queue: Sorter::new(),
            leased: Sorter::new(),
            dead: Sorter::new(),
            graves: Sorter::new(),
            footer: Footer::default(),
            finishing: Finishing::default(),
        })
    }

    /// Sets another length of spans: for tests and the example `runs`.
    #[allow(dead_code)]
    pub(crate) fn set_span(&mut self, bytes: usize) {
        self.span = bytes;
    }

    /// Writes pieces of the indexes early.
    #[cfg(test)]
    pub(crate) fn set_piece(&mut self, bytes: usize) {
        self.spill.set_piece(bytes);
    }

    /// Bytes so far, without its indexes.
    pub(crate) fn bytes(&self) -> u64 {
        self.out.at() + self.bytes.len() as u64
    }

    /// The number of a queue in this run.
    pub(crate) fn queue(&mut self, name: &QueueName) -> u32 {
        if let Some(no) = self.numbers.get(name) {
            return *no;
        }
        let no = u32::try_from(self.queues.len()).expect("a run has less than 2^32 queues");
        self.queues.push(RunQueue { name: name.clone(), rows: 0, weight: 0 });
        self.hashes.push(self.hasher.queue(name));
        self.numbers.insert(name.clone(), no);
        no
    }

    /// Adds the next message.
    pub(crate) fn row(&mut self, row: &Row) -> Result<(), StoreError> {
        let queue = self.queue(&row.message.queue);
        let stands = match &row.life.stage {
            message::Stage::Waiting { .. } => StageKind::Waiting,
            message::Stage::Leased(lease) => StageKind::Leased { until: lease.until },
            message::Stage::Dead { at, .. } => StageKind::Dead { at: *at },
        };
        let (id, due, weight) = (row.message.id, row.life.due, row.weight() as u64);
        let key = row.message.key.as_ref().map_or(&[][..], |key| key.as_str().as_bytes());
        self.add(queue, &RowHead { id, due, stands, weight, key }, |writer| writer.stored(row))
    }

    /// Adds the next message, as the record has it that puts it.
    pub(crate) fn new_put(&mut self, queue: &QueueName, put: &NewPut<'_>) -> Result<(), StoreError> {
        let queue = self.queue(queue);
        let NewPut { id, due, weight, key, .. } = *put;
        let head = RowHead { id, due, stands: StageKind::Waiting, weight, key };
        self.add(queue, &head, |writer| writer.stored_put(put))
    }

    /// Adds the next message, as another run has it; `queue` is its number in this one.
    pub(crate) fn raw(&mut self, queue: u32, row: &RawRow) -> Result<(), StoreError> {
        let key = RowHead::read(&row.bytes).map_or(&[][..], |head| head.key);
        let RawRow { id, due, stands, weight, .. } = *row;
        let head = RowHead { id, due, stands, weight, key };
        self.add(queue, &head, |writer| writer.bytes.extend_from_slice(&row.bytes))
    }

    /// Adds the next message, which `write` writes.
    fn add(
        &mut self,
        queue: u32,
        head: &RowHead<'_>,
        write: impl FnOnce(&mut Writer),
    ) -> Result<(), StoreError> {
        let from = self.bytes.len();
        let mut writer = Writer { bytes: std::mem::take(&mut self.bytes) };
        write(&mut writer);
        self.bytes = writer.bytes;
        let held = SpanRow {
            queue,
            id: head.id,
            due: head.due,
            stands: head.stands,
            key: (!head.key.is_empty()).then(|| self.hashes[queue as usize].key(head.key)),
            from,
            length: self.bytes.len() - from,
        };
        self.hold(held, head.weight)
    }

    /// Adds a remembered answer; in any order. They are kept in memory until the end.
    pub(crate) fn answer(&mut self, row: &DedupeRow) {
        let from = self.answer_bytes.len();
        let mut writer = Writer { bytes: std::mem::take(&mut self.answer_bytes) };
        writer.dedupe(row);
        self.answer_bytes = writer.bytes;
        let hash = self.hasher.answer(&row.queue, &row.dedupe_id);
        self.answers.push((hash, from..self.answer_bytes.len()));
        self.count_answer(row, self.answer_bytes.len() - from);
    }

    /// Adds a remembered answer behind all rows, in ascending order of the hashes; it is not kept in memory. Do not
    /// combine with [`RunWriter::answer`].
    pub(crate) fn answer_in_order(&mut self, hash: u64, row: &DedupeRow) -> Result<(), StoreError> {
        self.end_messages()?;
        let mut writer = Writer::default();
        writer.dedupe(row);
        self.count_answer(row, writer.bytes.len());
        self.write_answer(hash, &writer.bytes)
    }

    fn count_answer(&mut self, row: &DedupeRow, bytes: usize) {
        self.footer.answers_until = self.footer.answers_until.max(row.until.0);
        let Some(position) = row.position else { return };
        if !self.answers_by_queue.contains_key(&row.queue) {
            let new = RunAnswers { queue: row.queue.clone(), count: 0, bytes: 0, last: Lsn(0) };
            self.answers_by_queue.insert(row.queue.clone(), new);
        }
        let Some(of) = self.answers_by_queue.get_mut(&row.queue) else { return };
        of.count += 1;
        of.bytes += bytes as u64;
        of.last = of.last.max(position.nth);
    }

    /// Completes the run, makes it durable and renames it.
    pub(crate) fn finish(mut self) -> Result<RunEntry, StoreError> {
        loop {
            if let Some(run) = self.finish_step(u64::MAX)? {
                return Ok(run);
            }
        }
    }

    /// Does a part of the work of [`RunWriter::finish`], about as much as takes the time of writing this many bytes of
    /// rows. The run is complete when its entry is returned.
    pub(crate) fn finish_step(&mut self, bytes: u64) -> Result<Option<RunEntry>, StoreError> {
        let mut entries = bytes / BYTES_OF_ENTRY + 1;
        while entries > 0 {
            let spill = &mut self.spill;
            let finishing = &mut self.finishing;
            let next = match std::mem::replace(&mut finishing.stage, WriterStage::Tail) {
                WriterStage::Begin => {
                    self.end_messages()?;
                    self.end_answers()?;
                    let keys = self.by_key.len();
                    self.finishing.filter = Some(FilterWriter::new(keys));
                    WriterStage::Ids(Leaves::new(BlockKind::IdLeaf, self.by_id.take(), &mut self.spill)?)
                }
                WriterStage::Ids(mut leaves) => {
                    let ids = &mut finishing.ids;
                    let whole = leaves.write(&mut self.out, &mut entries, |[id, _]| ids.push(*id))?;
                    match whole {
                        None => WriterStage::Ids(leaves),
                        Some(fences) => {
                            finishing.fences.push(fences);
                            WriterStage::Keys(Leaves::new(BlockKind::KeyLeaf, self.by_key.take(), spill)?)
                        }
                    }
                }
                WriterStage::Keys(mut leaves) => {
                    let filter = &mut finishing.filter;
                    let whole = leaves.write(&mut self.out, &mut entries, |[what, ..]| {
                        if let Some(filter) = filter {
                            filter.push(what >> 2);
                        }
                        Ok(())
                    })?;
                    match whole {
                        None => WriterStage::Keys(leaves),
                        Some(fences) => {
                            finishing.fences.push(fences);
                            let leaves = Leaves::new(BlockKind::SpanLeaf, self.by_queue.take(), spill)?;
                            WriterStage::Others(OtherIndex::Spans, leaves)
                        }
                    }
                }
                WriterStage::Others(which, mut leaves) => {
                    match leaves.write(&mut self.out, &mut entries, |_| Ok(()))? {
                        None => WriterStage::Others(which, leaves),
                        Some(fences) => {
                            finishing.fences.push(fences);
                            let (next, kind, sorter) = match which {
                                OtherIndex::Spans => {
                                    (OtherIndex::Leased, BlockKind::LeasedLeaf, &mut self.leased)
                                }
                                OtherIndex::Leased => (OtherIndex::Dead, BlockKind::DeadLeaf, &mut self.dead),
                                OtherIndex::Dead => {
                                    (OtherIndex::Graves, BlockKind::GraveLeaf, &mut self.graves)
                                }
                                OtherIndex::Graves => continue, // the tail is next
                            };
                            WriterStage::Others(next, Leaves::new(kind, sorter.take(), spill)?)
                        }
                    }
                }
                WriterStage::Tail => return self.tail().map(Some),
            };
            self.finishing.stage = next;
        }
        Ok(None)
    }

    /// Abandons the run.
    pub(crate) fn discard(disk: &dyn Disk, no: FileNo) {
        for name in [no.run_temp(), no.run_spill(), no.run()] {
            let _ = disk.remove(&name); // or it is removed by the next owner
        }
    }

    /// Adds a row whose bytes are at the end of `self.bytes`.
    fn hold(&mut self, row: SpanRow, weight: u64) -> Result<(), StoreError> {
        let place = (row.due.class(), row.due.raw(), row.id);
        if self.last >= Some(place) {
            // The caller's mistake, or a run that is damaged below its checksums.
            let what = format_args!("message {} is to be written to a run out of order", row.id);
            return Err(StoreError::new(ErrorKind::Corrupt, what));
        }
        assert!(self.footer.messages_end == 0, "rows come before answers");
        let class = self.last.map(|(class, ..)| class);
        self.last = Some(place);
        if class.is_some_and(|class| class != place.0) {
            let rest = self.bytes.split_off(row.from);
            self.close_span()?;
            self.bytes = rest;
            self.held.push(SpanRow { from: 0, ..row });
        } else {
            self.held.push(row);
        }
        let queue = &mut self.queues[self.held[self.held.len() - 1].queue as usize];
        queue.rows += 1;
        queue.weight += weight;
        self.footer.rows += 1;
        self.footer.weight += weight;
        if self.bytes.len() >= self.span { self.close_span() } else { Ok(()) }
    }

    fn close_span(&mut self) -> Result<(), StoreError> {
        let mut held = std::mem::take(&mut self.held);
        let Some(first) = held.first() else { return Ok(()) };
        let span = self.spans.len() as u64;
        let (class, due, id) = (first.due.class(), first.due.raw(), first.id);
        self.spans.push(Span { at: self.out.at(), class, due, id });
        // They come by (due, id), and keep that order within their queue.
        let mut order: Vec<(u32, u32)> = held.iter().map(|row| row.queue).zip(0..).collect();
        order.sort_unstable();
        let bytes = std::mem::take(&mut self.bytes);
        for rows in order.chunk_by(|a, b| a.0 == b.0) {
            let queue = rows[0].0;
            let rows = || rows.iter().map(|(_, i)| &held[*i as usize]);
            let blocks = if rows().map(|row| row.length).sum::<usize>() >= OWN {
                BlockSharing::Own
            } else {
                BlockSharing::Shared
            };
            if blocks == BlockSharing::Own
                || self.ending.last().is_some_and(|(.., blocks)| *blocks == BlockSharing::Own)
            {
                self.close_block(span)?;
            }
            let mut start = None;
            for row in rows() {
                let at = self.place(queue, &bytes[row.from..row.from + row.length], span)?;
                start.get_or_insert(at);
                self.note(row, at / 8)?;
            }
            self.ending.extend(start.map(|start| (queue, start, blocks)));
        }
        self.close_block(span)?;
        self.bytes = bytes;
        self.bytes.clear();
        held.clear();
        self.held = held;
        Ok(())
    }

    /// Writes a row to a block, and returns the start of the block.
    fn place(&mut self, queue: u32, row: &[u8], span: u64) -> Result<u64, StoreError> {
        let length = varint_length(u64::from(queue)) + row.len();
        let whole = varint_length(length as u64) + length;
        if self.out.length() + whole > BLOCK && self.out.entries > 0 {
            self.close_block(span)?;
        }
        self.out.entry(|writer| {
            writer.varint(length as u64);
            writer.varint(u64::from(queue));
            writer.bytes.extend_from_slice(row);
        });
        Ok(self.out.at())
    }

    /// Closes a block of rows; the end of the queues that end in it is now known.
    fn close_block(&mut self, span: u64) -> Result<(), StoreError> {
        self.out.close(BlockKind::Messages)?;
        let end = self.out.at();
        for (queue, start, blocks) in self.ending.drain(..) {
            let extent = ((end - start) / 8) << 1 | u64::from(blocks == BlockSharing::Own);
            self.by_queue.push([u64::from(queue), span, start / 8, extent], &mut self.spill)?;
        }
        Ok(())
    }

    fn note(&mut self, row: &SpanRow, block: u64) -> Result<(), StoreError> {
        let (queue, id) = (u64::from(row.queue), row.id.0);
        let spill = &mut self.spill;
        self.by_id.push([id, block], spill)?;
        if let Some(hash) = row.key {
            let what = filter::short(hash) << 2 | find::holder_or_dead(row.stands);
            self.by_key.push([what, !id, block], spill)?;
        }
        match row.stands {
            StageKind::Waiting => {}
            StageKind::Leased { until } => self.leased.push([until.0, id, block, queue], spill)?,
            StageKind::Dead { at } => {
                self.dead.push([at.raw(), id, block, queue], spill)?;
                self.graves.push([queue, at.raw(), id, block], spill)?;
            }
        }
        Ok(())
    }

    fn end_messages(&mut self) -> Result<(), StoreError> {
        if self.footer.messages_end == 0 {
            self.close_span()?;
            self.footer.messages_end = self.out.at();
        }
        Ok(())
    }

    fn end_answers(&mut self) -> Result<(), StoreError> {
        let mut answers = std::mem::take(&mut self.answers);
        answers.sort_unstable_by_key(|(hash, bytes)| (*hash, bytes.start));
        let bytes = std::mem::take(&mut self.answer_bytes);
        for (hash, range) in answers {
            self.write_answer(hash, &bytes[range])?;
        }
        self.out.close(BlockKind::Answers)?;
        self.footer.answers_end = self.out.at();
        Ok(())
    }

    fn tail(&mut self) -> Result<RunEntry, StoreError> {
        let out = &mut self.out;
        self.footer.leaves_end = out.at();
        for queue in &self.queues {
            out.entry(|writer| {
                writer.blob(queue.name.as_str().as_bytes());
                writer.varint(queue.rows);
                writer.varint(queue.weight);
            });
        }
        self.footer.queues = self.queues.len() as u64;
        let mut writer = Writer { bytes: std::mem::take(&mut out.bytes) };
        for RunAnswers { queue, count, bytes, last } in self.answers_by_queue.values() {
            writer.blob(queue.as_str().as_bytes());
            [*count, *bytes, last.0].into_iter().for_each(|number| writer.varint(number));
        }
        out.bytes = writer.bytes;
        out.section(BlockKind::Queues)?;
        for span in &self.spans {
            out.entry(|writer| span.write(&mut writer.bytes));
        }
        out.section(BlockKind::Spans)?;
        for (leaves, payload) in std::mem::take(&mut self.finishing.fences) {
            out.bytes.extend_from_slice(&payload);
            out.entries = leaves;
            out.section(BlockKind::Fences)?;
        }
        if let Some(filter) = self.finishing.filter.take() {
            out.entries = filter.write(&mut out.bytes);
        }
        out.section(BlockKind::Filter)?;
        let ids = std::mem::take(&mut self.finishing.ids).whole();
        ids.serialize_into(&mut out.bytes).expect("memory takes it");
        out.section(BlockKind::Ids)?;
        self.footer.write(&mut out.bytes);
        out.section(BlockKind::Footer)?;
        out.finish(self.footer.leaves_end)
    }

    fn write_answer(&mut self, hash: u64, row: &[u8]) -> Result<(), StoreError> {
        let whole = varint_length(row.len() as u64) + row.len();
        if self.out.length() + whole > BLOCK && self.out.entries > 0 {
            self.out.close(BlockKind::Answers)?;
        }
        self.out.entry(|writer| writer.blob(row));
        self.footer.answers += 1;
        let entry = [filter::short(hash) << 2 | find::ANSWER, 0, self.out.at() / 8];
        self.by_key.push(entry, &mut self.spill)
    }
}

impl IdSetBuilder {
    fn push(&mut self, id: u64) -> Result<(), StoreError> {
        match &self.row {
            Some(row) if id == row.end().wrapping_add(1) => self.row = Some(*row.start()..=id),
            Some(row) if id <= *row.end() => {
                let what = format_args!("message {id} is to be written to a run twice");
                return Err(StoreError::new(ErrorKind::Corrupt, what));
            }
            Some(_) | None => {
                self.close();
                self.row = Some(id..=id);
            }
        }
        Ok(())
    }

    fn close(&mut self) {
        if let Some(row) = self.row.take() {
            self.set.insert_range(row);
        }
    }

    fn whole(mut self) -> RoaringTreemap {
        self.close();
        self.set.optimize();
        self.set
    }
}

impl Output {
    /// The start of the present block.
    fn at(&self) -> u64 {
        self.written + self.block as u64
    }

    /// The present length of the block, its head included.
    fn length(&self) -> usize {
        self.bytes.len() - self.block
    }

    /// Adds an entry to it.
    fn entry(&mut self, write: impl FnOnce(&mut Writer)) {
        let mut writer = Writer { bytes: std::mem::take(&mut self.bytes) };
        write(&mut writer);
        self.bytes = writer.bytes;
        self.entries += 1;
    }

    /// Completes the present block, if it is not empty.
    fn close(&mut self, kind: BlockKind) -> Result<(), StoreError> {
        if self.entries == 0 { Ok(()) } else { self.section(kind) }
    }

    /// Completes the present block, even an empty one.
    fn section(&mut self, kind: BlockKind) -> Result<(), StoreError> {
        let at = self.at();
        block::finish(&mut self.bytes, self.block, kind, self.entries, self.run.incarnation, at);
        self.block = self.bytes.len();
        self.entries = 0;
        if self.at() > block::MAX_BYTES {
            return Err(StoreError::new(ErrorKind::Full, "a run may not be longer than 32 GiB"));
        }
        if self.bytes.len() >= WRITE {
            self.flush()?;
        }
        self.bytes.resize(self.block + HEAD, 0);
        Ok(())
    }

    fn finish(&mut self, tail: u64) -> Result<RunEntry, StoreError> {
        self.bytes.truncate(self.block);
        self.flush()?;
        self.sync()?;
        let name = self.run.no.run();
        self.disk.rename(&self.temp, &name).map_err(failed("rename", &self.temp))?;
        self.disk.sync_dir(RUNS).map_err(failed("sync the names of", RUNS))?;
        Ok(RunEntry { bytes: self.written, tail: Some(tail), ..self.run })
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.file.write_at(&self.bytes, self.written).map_err(failed("write", &self.temp))?;
        self.written += self.bytes.len() as u64;
        self.bytes.clear();
        self.block = 0;
        if self.written - self.synced >= SYNC { self.sync() } else { Ok(()) }
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.synced = self.written;
        self.file.sync_data().map_err(failed("sync", &self.temp))
    }
}

impl<const C: usize> Leaves<C> {
    fn new(kind: BlockKind, sorter: Sorter<C>, spill: &mut Spill) -> Result<Self, StoreError> {
        let sorted = sorter.sorted(spill)?;
        Ok(Leaves { kind, sorted, leaf: LeafWriter::new(), leaves: Vec::new(), entries: 0 })
    }

    /// Writes entries; behind the last one, returns the number of leaves and the payload of the fences.
    fn write(
        &mut self,
        out: &mut Output,
        entries: &mut u64,
        mut see: impl FnMut(&LeafEntry<C>) -> Result<(), StoreError>,
    ) -> Result<Option<(u32, Vec<u8>)>, StoreError> {
        while *entries > 0 {
            *entries -= 1;
            let Some(entry) = self.sorted.next()? else {
                self.close(out)?;
                let mut payload = Vec::new();
                RunIndex::write(self.kind, self.entries, &self.leaves, out.at(), &mut payload);
                let leaves = u32::try_from(self.leaves.len()).expect("a run is shorter than 2^32 leaves");
                return Ok(Some((leaves, payload)));
            };
            see(&entry)?;
            self.entries += 1;
            if !self.leaf.push(entry) {
                self.close(out)?;
                self.leaf.push(entry);
            }
        }
        Ok(None)
    }

    fn close(&mut self, out: &mut Output) -> Result<(), StoreError> {
        let Some(first) = self.leaf.first() else { return Ok(()) };
        self.leaves.push((out.at(), *first));
        out.entries = self.leaf.write(&mut out.bytes);
        out.section(self.kind)
    }
}

/// Encoded length of a number.
fn varint_length(n: u64) -> usize {
    (64 - (n | 1).leading_zeros()).div_ceil(7) as usize
}
