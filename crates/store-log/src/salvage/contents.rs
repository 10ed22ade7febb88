//! The content of the whole blocks of one run. Tail and indexes are not needed for it, except for the names of queues.

use bytes::Bytes;
use duewheel_core::message::Row;
use duewheel_core::record::{DedupeRow, Reader, varint};
use duewheel_core::store::StoreError;
use duewheel_core::time::Class;
use duewheel_core::{Due, MessageId, QueueName};
use roaring::RoaringTreemap;

use super::blocks::{Block, Blocks};
use super::read_only::ReadOnlyDisk;
use super::report::{Loss, SalvageReport};
use super::state::SalvagedBooks;
use crate::disk::{Disk, FileAccess};
use crate::fault::{Damage, failed};
use crate::le::u64_at;
use crate::manifest::RunEntry;
use crate::run::Mask;
use crate::run::block::{BlockKind, FOOTER, Footer, HEAD};
use crate::run::row::{self, BlockRows};

/// The readable parts of a run.
#[derive(Debug, Default)]
pub(super) struct RunContents {
    queues: Vec<QueueName>,
    /// Ids of its messages, if they can be read.
    ids: Option<RoaringTreemap>,
    /// The starts of its spans and their first due times, in order of the starts.
    spans: Vec<(u64, Due)>,
    gaps: Vec<(u64, u64)>,
    removed: RoaringTreemap,
    masks: Vec<(u32, Mask)>,
}

/// An item of a run.
pub(super) enum RunItem {
    /// A message, and the run's number of its queue.
    Message(u32, Row),
    Answer(DedupeRow),
}

/// How much of a run was read.
#[derive(Default)]
struct RunCoverage {
    rows: u64,
    answers: u64,
    told: Option<u64>,
    footer: Option<Footer>,
    last: Option<u8>,
    /// Whether bytes are missing where answers may have been.
    hole: bool,
}

impl RunContents {
    /// Examines all blocks, and reports losses. `None` if the file does not exist.
    pub(super) fn open(
        source: &ReadOnlyDisk<'_>,
        entry: &RunEntry,
        books: &SalvagedBooks,
        report: &mut SalvageReport,
    ) -> Result<Option<RunContents>, StoreError> {
        let name = entry.no.run();
        if let Err(error) = source.open(&name, FileAccess::Read) {
            if error.kind() != std::io::ErrorKind::NotFound {
                return Err(failed("open", &name)(error));
            }
            report.damage.push(Damage::new(&*name, 0, "the run is missing"));
            report.losses.push(Loss::Run { file: name.clone(), messages: None });
            report.losses.push(Loss::Answers { file: name });
            return Ok(None);
        }
        let mut pieces = RunContents::default();
        if let Some(lost) = books.lost_of(entry.no) {
            (pieces.removed, pieces.masks) = (lost.removed.clone(), lost.masks.clone());
        }
        if !books.knows_removed(entry.no) {
            report.losses.push(Loss::Settled { file: name.clone() });
        }
        let mut met = RunCoverage::default();
        let mut blocks = blocks(source, entry)?;
        let mut gaps = 0;
        while let Some(block) = blocks.next()? {
            if blocks.gaps.len() > gaps && met.last.is_none_or(|kind| kind <= BlockKind::Answers as u8) {
                met.hole = true;
            }
            gaps = blocks.gaps.len();
            met.last = Some(block.kind);
            pieces.take(&block, &mut met);
        }
        // Without a footer the file may have been cut short there.
        let is_short = met.footer.is_none() && met.last != Some(BlockKind::Footer as u8);
        if (blocks.gaps.len() > gaps || is_short)
            && met.last.is_none_or(|kind| kind <= BlockKind::Answers as u8)
        {
            met.hole = true;
        }
        if is_short && blocks.gaps.is_empty() {
            report.damage.push(Damage::new(&*name, entry.bytes, "the run is not complete"));
        }
        for (from, to) in &blocks.gaps {
            let what = format!("there is no whole block up to byte {to}");
            report.damage.push(Damage::new(&*name, *from, what));
        }
        pieces.gaps = blocks.gaps;
        let rows = met.footer.map(|footer| footer.rows).or(met.told);
        if pieces.ids.is_none() && (met.hole || rows.is_some_and(|rows| rows > met.rows)) {
            let messages = rows.map(|rows| rows.saturating_sub(met.rows));
            report.losses.push(Loss::Run { file: name.clone(), messages });
        } else if pieces.ids.is_none() && pieces.queues.is_empty() && met.rows > 0 {
            report.losses.push(Loss::Run { file: name.clone(), messages: Some(met.rows) });
        }
        if met.footer.map_or(met.hole, |footer| met.answers < footer.answers) {
            report.losses.push(Loss::Answers { file: name });
        }
        Ok(Some(pieces))
    }

    fn take(&mut self, block: &Block, met: &mut RunCoverage) {
        match block.kind {
            kind if kind == BlockKind::Messages as u8 => met.rows += u64::from(block.entries),
            kind if kind == BlockKind::Answers as u8 => met.answers += u64::from(block.entries),
            kind if kind == BlockKind::Queues as u8 => {
                if let Some((queues, rows)) = read_queues(&block.payload, block.entries) {
                    (self.queues, met.told) = (queues, Some(rows));
                }
            }
            kind if kind == BlockKind::Spans as u8 => {
                let spans = block.payload.chunks_exact(32).map(|span| {
                    let class = if u64_at(span, 8) == Class::At as u64 { Class::At } else { Class::After };
                    (u64_at(span, 0), Due::from_raw(class, u64_at(span, 16)))
                });
                self.spans = spans.collect();
            }
            kind if kind == BlockKind::Ids as u8 => {
                self.ids = RoaringTreemap::deserialize_from(&block.payload[..]).ok();
            }
            kind if kind == BlockKind::Footer as u8 && block.payload.len() == FOOTER - HEAD => {
                met.footer = Footer::read(&block.payload, block.at).ok();
            }
            _ => {}
        }
    }

    /// The greatest id that it may have.
    pub(super) fn greatest_id(&self) -> Option<u64> {
        self.ids.as_ref().and_then(RoaringTreemap::max)
    }

    /// Whether a row is live, according to the state.
    pub(super) fn counts(&self, id: MessageId, queue: u32) -> bool {
        !self.removed.contains(id.0) && !self.is_purged(id, queue)
    }

    /// Whether a purge has removed it, according to the state: that is final in every run.
    pub(super) fn is_purged(&self, id: MessageId, queue: u32) -> bool {
        let takes = |mask: &Mask| id < mask.before && mask.keep.binary_search(&id).is_err();
        self.masks.iter().any(|(of, mask)| *of == queue && takes(mask))
    }

    /// Live messages of the run, except for those that were read.
    pub(super) fn unread(&self, read: &RoaringTreemap) -> RoaringTreemap {
        match &self.ids {
            Some(ids) => &(ids - read) - &self.removed,
            None => RoaringTreemap::new(),
        }
    }

    /// The ranges of due times with unreadable parts.
    pub(super) fn unread_spans(&self, file: &str) -> Vec<Loss> {
        let ends = self.spans.iter().skip(1).map(Some).chain([None]);
        let stretches = self.spans.iter().zip(ends).filter(|((at, _), end)| {
            let is_before_end = |from: u64| end.is_none_or(|(end, _)| from < *end);
            self.gaps.iter().any(|(from, to)| to > at && is_before_end(*from))
        });
        let lost = stretches.map(|((_, from), end)| Loss::Due {
            file: file.to_owned(),
            from: *from,
            until: end.map(|(_, until)| *until).filter(|until| until.class() == from.class()),
        });
        lost.collect()
    }

    /// Returns the messages and the answers of the whole blocks.
    pub(super) fn visit(
        &self,
        source: &ReadOnlyDisk<'_>,
        entry: &RunEntry,
        mut visit: impl FnMut(RunItem) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut blocks = blocks(source, entry)?;
        while let Some(block) = blocks.next()? {
            match block.kind {
                kind if kind == BlockKind::Messages as u8 => {
                    for (queue, row) in self.rows(&block) {
                        visit(RunItem::Message(queue, row))?;
                    }
                }
                kind if kind == BlockKind::Answers as u8 => {
                    for row in answers(&block) {
                        visit(RunItem::Answer(row))?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The rows of a block; unreadable ones are missing, and are reported by their ids.
    fn rows(&self, block: &Block) -> Vec<(u32, Row)> {
        let mut found = Vec::new();
        let mut rows = BlockRows::new(&block.payload, block.entries);
        while let Ok(Some(row)) = rows.next() {
            let Some(queue) = self.queues.get(row.queue as usize) else { continue };
            let decoded = row::decode(Bytes::copy_from_slice(row.bytes), queue.clone());
            found.extend(decoded.ok().map(|decoded| (row.queue, decoded)));
        }
        found
    }
}

fn blocks(source: &ReadOnlyDisk<'_>, entry: &RunEntry) -> Result<Blocks, StoreError> {
    let name = entry.no.run();
    let file = source.open(&name, FileAccess::Read).map_err(failed("open", &name))?;
    Blocks::new(file, name, entry.incarnation)
}

fn answers(block: &Block) -> Vec<DedupeRow> {
    let mut rest = Reader::new(block.payload.clone());
    let answers = (0..block.entries).map_while(|_| rest.blob().ok());
    answers.filter_map(|answer| Reader::new(answer).dedupe().ok()).collect()
}

/// Names of queues, and how many messages there are in all.
fn read_queues(mut bytes: &[u8], count: u32) -> Option<(Vec<QueueName>, u64)> {
    let (mut queues, mut rows) = (Vec::new(), 0u64);
    for _ in 0..count {
        let length = usize::try_from(varint(&mut bytes).ok()?).ok()?;
        let (name, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        queues.push(QueueName::stored(std::str::from_utf8(name).ok()?).ok()?);
        rows = rows.saturating_add(varint(&mut bytes).ok()?);
        varint(&mut bytes).ok()?;
    }
    Some((queues, rows))
}
