//! Reads every byte of a run.

use bytes::Bytes;
use duewheel_core::message::Row;
use duewheel_core::record::{Reader, StageKind};
use duewheel_core::time::Class;
use duewheel_core::{MessageId, QueueName};
use xxhash_rust::xxh3::xxh3_128;

use super::block::BlockKind;
use super::find::{self, text};
use super::index::{IndexScan, RunIndex};
use super::opened::{Run, payload};
use crate::disk::Disk;
use crate::fault::ReadFault;
use crate::manifest::RunEntry;
use crate::run::block::Blocking;
use crate::run::filter::{self, NameHasher, QueueHash};
use crate::run::index::LeafEntry;
use crate::run::opened::{self, BlockRows, InBlock, Interner};

/// The content of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verified {
    pub(crate) rows: u64,
    pub(crate) answers: u64,
}

/// Checks a run: every block, the order of rows, and that tail and indexes agree with the rows.
pub(crate) fn verify(disk: &dyn Disk, entry: &RunEntry, hasher: NameHasher) -> Result<Verified, ReadFault> {
    let run = Run::open(disk, entry, hasher, &Interner::default())?;
    let mut check = Check {
        hashes: run.queues().iter().map(|queue| hasher.queue(&queue.name)).collect(),
        counts: vec![(0, 0); run.queues().len()],
        run: &run,
        by_id: HashSum::default(),
        by_key: HashSum::default(),
        by_queue: HashSum::default(),
        leased: HashSum::default(),
        dead: HashSum::default(),
        graves: HashSum::default(),
    };
    for span in 0..run.spans.len() {
        check.span(span)?;
    }
    let listed: Vec<(u64, u64)> = run.queues().iter().map(|queue| (queue.rows, queue.weight)).collect();
    if listed != check.counts {
        return Err(run.file.problem(run.footer.leaves_end, "the queues do not match their counts").into());
    }
    let answers = check.answers()?;
    check.index(&run.by_id, &check.by_id)?;
    check.index(&run.by_key, &check.by_key)?;
    check.index(&run.by_queue, &check.by_queue)?;
    check.index(&run.leased, &check.leased)?;
    check.index(&run.dead, &check.dead)?;
    check.index(&run.graves, &check.graves)?;
    check.ids()?;
    check.filter()?;
    Ok(Verified { rows: run.rows(), answers })
}

/// A sum over the hashes of entries: equal for equal sets, in any order.
#[derive(Debug, Default, PartialEq, Eq)]
struct HashSum {
    entries: u64,
    hashes: u128,
}

impl HashSum {
    fn add<const C: usize>(&mut self, entry: LeafEntry<C>) {
        let mut bytes = [0; 32];
        for (n, place) in entry.iter().zip(bytes.chunks_exact_mut(8)) {
            place.copy_from_slice(&n.to_le_bytes());
        }
        self.entries += 1;
        self.hashes = self.hashes.wrapping_add(xxh3_128(&bytes));
    }
}

struct Check<'a> {
    run: &'a Run,
    hashes: Vec<QueueHash>,
    counts: Vec<(u64, u64)>,
    by_id: HashSum,
    by_key: HashSum,
    by_queue: HashSum,
    leased: HashSum,
    dead: HashSum,
    graves: HashSum,
}

/// The rows of one queue in a span.
struct QueueRows {
    queue: u32,
    start: u64,
    end: u64,
    bytes: usize,
}

impl Check<'_> {
    /// Reads a span: its rows are in order and due within its bounds, and are counted for the indexes.
    fn span(&mut self, number: usize) -> Result<(), ReadFault> {
        let run = self.run;
        let span = run.spans[number];
        let bound = run.spans.get(number + 1).map(|next| next.key());
        let end = run.span_end(number);
        let mut at = span.at;
        let mut least: Option<(Class, u64, MessageId)> = None;
        let mut last: Option<(u32, u64, MessageId)> = None;
        let mut stretches: Vec<QueueRows> = Vec::new();
        let mut buffer = Vec::new();
        while at < end {
            let head = run.file.block_within(BlockKind::Messages, at, end, &mut buffer, Blocking::Allowed)?;
            let bad = |what: &str| -> ReadFault { run.file.problem(at, what).into() };
            let mut rows = BlockRows::new(payload(&buffer, head), head.entries);
            let next = at + head.length as u64;
            while let Some(row) = rows.next().map_err(run.file.unreadable(at))? {
                let place = (row.head.due.class(), row.head.due.raw(), row.head.id);
                let order = (row.queue, place.1, place.2);
                if place.0 != span.class || bound.is_some_and(|bound| place >= bound) {
                    return Err(bad("a row is due outside of its span"));
                }
                if last.is_some_and(|last| last >= order) {
                    return Err(bad("the rows are out of order"));
                }
                last = Some(order);
                least = Some(least.map_or(place, |least| least.min(place)));
                match stretches.last_mut() {
                    Some(stretch) if stretch.queue == row.queue => {
                        stretch.end = next;
                        stretch.bytes += row.bytes.len();
                    }
                    Some(_) | None => {
                        stretches.push(QueueRows {
                            queue: row.queue,
                            start: at,
                            end: next,
                            bytes: row.bytes.len(),
                        });
                    }
                }
                self.row(&row, at)?;
            }
            at = next;
        }
        if least != Some(span.key()) {
            return Err(run
                .file
                .problem(span.at, "the span does not start as the table of spans says")
                .into());
        }
        for stretch in stretches {
            let own = u64::from(stretch.bytes >= super::writer::OWN);
            let extent = ((stretch.end - stretch.start) / 8) << 1 | own;
            self.by_queue.add([u64::from(stretch.queue), number as u64, stretch.start / 8, extent]);
        }
        Ok(())
    }

    fn row(&mut self, found: &InBlock<'_>, at: u64) -> Result<(), ReadFault> {
        let run = self.run;
        let queue: QueueName = run.queue_name(found.queue, at)?;
        let row: Row = opened::decode_row(Bytes::copy_from_slice(found.bytes), queue)
            .map_err(run.file.unreadable(at))?;
        let head = &found.head;
        if row.weight() as u64 != head.weight {
            return Err(run.file.problem(at, "a message is not as heavy as its row says").into());
        }
        let counts = &mut self.counts[found.queue as usize];
        *counts = (counts.0 + 1, counts.1.wrapping_add(head.weight));
        let (id, block, queue) = (head.id.0, at / 8, u64::from(found.queue));
        self.by_id.add([id, block]);
        if !head.key.is_empty() {
            let hash = filter::short(self.hashes[found.queue as usize].key(head.key));
            self.by_key.add([hash << 2 | find::holder_or_dead(head.stands), !id, block]);
        }
        match head.stands {
            StageKind::Waiting => {}
            StageKind::Leased { until } => self.leased.add([until.0, id, block, queue]),
            StageKind::Dead { at } => {
                self.dead.add([at.raw(), id, block, queue]);
                self.graves.add([queue, at.raw(), id, block]);
            }
        }
        Ok(())
    }

    fn answers(&mut self) -> Result<u64, ReadFault> {
        let run = self.run;
        let (mut at, end) = (run.footer.messages_end, run.footer.answers_end);
        let (mut count, mut last, mut until) = (0, 0, 0);
        let mut buffer = Vec::new();
        while at < end {
            let head = run.file.block_within(BlockKind::Answers, at, end, &mut buffer, Blocking::Allowed)?;
            let bad = |what: &str| -> ReadFault { run.file.problem(at, what).into() };
            let mut rest = payload(&buffer, head);
            for _ in 0..head.entries {
                let entry = text(&mut rest).ok_or_else(|| bad("an answer cannot be read"))?;
                let mut reader = Reader::new(Bytes::copy_from_slice(entry));
                let row = reader.dedupe().map_err(run.file.unreadable(at))?;
                let hash = run.hasher.answer(&row.queue, &row.dedupe_id);
                if !reader.is_empty() || hash < last {
                    return Err(bad("the answers are out of order"));
                }
                last = hash;
                until = row.until.0.max(until);
                count += 1;
                self.by_key.add([filter::short(hash) << 2 | find::ANSWER, 0, at / 8]);
            }
            if !rest.is_empty() {
                return Err(bad("bytes are left behind the last answer"));
            }
            at += head.length as u64;
        }
        if (count, until) != (run.footer.answers, run.footer.answers_until) {
            return Err(run
                .file
                .problem(run.footer.messages_end, "the answers are not as the footer says")
                .into());
        }
        Ok(count)
    }

    /// Reads an index: it is in order, and names exactly the rows that exist.
    fn index<const C: usize>(&self, index: &RunIndex<C>, rows: &HashSum) -> Result<(), ReadFault> {
        let mut scan = IndexScan::new();
        let mut sum = HashSum::default();
        let mut last = None;
        while let Some(entry) = scan.next(&self.run.file, index)? {
            // Answers with equal hashes have equal entries.
            if last.is_some_and(|last| last > entry) {
                return Err(self
                    .run
                    .file
                    .problem(index.end(), "the index that ends here is out of order")
                    .into());
            }
            last = Some(entry);
            sum.add(entry);
        }
        if sum != *rows || sum.entries != index.entries {
            return Err(self
                .run
                .file
                .problem(index.end(), "the index that ends here does not fit the rows")
                .into());
        }
        Ok(())
    }

    fn ids(&self) -> Result<(), ReadFault> {
        let mut scan = IndexScan::new();
        let mut ids = self.run.ids().iter();
        while let Some([id, _]) = scan.next(&self.run.file, &self.run.by_id)? {
            if ids.next() != Some(id) {
                return Err(self
                    .run
                    .file
                    .problem(self.run.footer.leaves_end, "the set of ids does not fit the rows")
                    .into());
            }
        }
        Ok(())
    }

    fn filter(&self) -> Result<(), ReadFault> {
        let mut scan = IndexScan::new();
        while let Some([what, ..]) = scan.next(&self.run.file, &self.run.by_key)? {
            if !self.run.filter.may_have(what >> 2) {
                return Err(self
                    .run
                    .file
                    .problem(self.run.footer.leaves_end, "the filter does not know a key")
                    .into());
            }
        }
        Ok(())
    }
}
