//! The whole frames of the damaged journal, in order, and the state of each message according to them.

use std::collections::BTreeMap;

use duewheel_core::message::{Lease, Life, Stage};
use duewheel_core::record::{BootAnchor, ClockPair, Record};
use duewheel_core::store::StoreError;
use duewheel_core::{Due, Epoch, Lsn, MessageId, QueueName};

use crate::fault::{Damage, ReadFault, note};
use crate::journal::segment::{BLOCK, Frame, Header, SegmentReader};
use crate::manifest::SegmentEntry;
use crate::run::Mask;
use crate::salvage::books::SalvagedBooks;
use crate::salvage::files::{ReadOnlyDisk, SalvageFiles};
use crate::salvage::report::{Loss, SalvageReport};

/// Segments that hold frames, by their first LSN.
#[derive(Debug)]
pub(super) struct JournalFrames<'a> {
    source: &'a ReadOnlyDisk<'a>,
    segments: Vec<Segment>,
    cut: Lsn,
    proven: Lsn,
    /// The highest epoch in a header.
    pub(super) epoch: Epoch,
}

#[derive(Debug)]
struct Segment {
    /// The entry, with the true size of the file.
    entry: SegmentEntry,
    header: Option<Header>,
    first: Lsn,
}

/// The end of the journal.
#[derive(Debug)]
pub(super) struct Visited {
    pub(super) next: Lsn,
    pub(super) clocks: Vec<ClockPair>,
    /// The last anchor, if nothing behind it is damaged.
    pub(super) anchor: Option<BootAnchor>,
}

impl<'a> JournalFrames<'a> {
    pub(super) fn open(
        source: &'a ReadOnlyDisk<'a>,
        listing: &SalvageFiles,
        report: &mut SalvageReport,
    ) -> Result<Self, StoreError> {
        let mut segments = Vec::new();
        for listed in &listing.segments {
            let opened = SegmentReader::open(source, listed).or_else(|trouble| {
                let Some(bytes) = size_of(source, listed) else { return Err(trouble) };
                // A file that was cut short may still hold whole frames.
                if let ReadFault::Damaged(problem) = trouble {
                    report.damage.push(problem);
                }
                SegmentReader::open(source, &SegmentEntry { bytes, ..*listed })
            });
            let Some(mut reader) = note(opened, &mut report.damage)? else { continue };
            let header = note(SegmentReader::header_as(&reader, listed), &mut report.damage)?.flatten();
            let first = match header {
                Some(header) => Some(header.first),
                None => reader.find_frame(BLOCK as u64)?.map(|frame| frame.head.first),
            };
            segments.extend(first.map(|first| Segment { entry: reader.entry, header, first }));
        }
        segments.sort_by_key(|segment| (segment.first, segment.entry.no));
        let headers = || segments.iter().filter_map(|segment| segment.header);
        let proven =
            headers().map(|header| header.watermark).fold(listing.proven.max(listing.cut()), Lsn::max);
        let epoch = headers().map(|header| header.epoch).max().unwrap_or(Epoch(0));
        Ok(JournalFrames { source, segments, cut: listing.cut(), proven, epoch })
    }

    /// Visits the records in order. Unreadable ones, and damaged places, are reported.
    pub(super) fn visit(
        &self,
        report: &mut SalvageReport,
        mut visit: impl FnMut(Lsn, Record) -> Result<(), StoreError>,
    ) -> Result<Visited, StoreError> {
        let mut visited = Visited { next: self.cut.next(), clocks: Vec::new(), anchor: None };
        for (i, segment) in self.segments.iter().enumerate() {
            let file = segment.entry.no.segment();
            // A segment without a header is valid if it continues the former one: it may be the beginning of an owner
            // that was killed.
            let adds = segment.header.is_some() || self.last_of(segment)? >= visited.next;
            if !adds {
                continue;
            }
            if segment.header.is_none() {
                report.damage.push(Damage::new(&*file, 0, "the header is damaged"));
            }
            self.lose(visited.next, segment.first, report);
            visited.clocks.extend(segment.header.and_then(|header| header.clock));
            visited.anchor = segment.header.and_then(|header| header.anchor).or(visited.anchor);
            let end = self.segments[i + 1..].iter().find(|next| next.header.is_some()).map(|next| next.first);
            let next = self.segment(segment, end, report, &mut visited, &mut visit)?;
            visited.next = visited.next.max(next);
        }
        if self.proven >= visited.next && self.segments.is_empty() {
            self.lose(visited.next, self.proven.next(), report);
        }
        Ok(visited)
    }

    /// Visits a segment up to an LSN; returns the LSN behind the last record that was read, or is known to have
    /// existed.
    fn segment(
        &self,
        segment: &Segment,
        end: Option<Lsn>,
        report: &mut SalvageReport,
        visited: &mut Visited,
        visit: &mut impl FnMut(Lsn, Record) -> Result<(), StoreError>,
    ) -> Result<Lsn, StoreError> {
        let Some(mut reader) = note(SegmentReader::open(self.source, &segment.entry), &mut report.damage)?
        else {
            return Ok(segment.first);
        };
        let (mut at, mut next, mut proven) = (BLOCK as u64, segment.first, self.proven);
        while end.is_none_or(|end| next < end) {
            let found = reader.frame(at)?;
            let what = match found {
                Ok(frame) if frame.head.first == next => {
                    proven = proven.max(frame.head.watermark);
                    visited.clocks.extend(Some(frame.head.clock));
                    visited.anchor = frame.anchor().or(visited.anchor);
                    self.records(&segment.entry, &frame, end, report, visit)?;
                    (at, next) = (frame.end, frame.next());
                    continue;
                }
                Ok(frame) => {
                    format!("the frame starts with LSN {}, LSN {} is due", frame.head.first.0, next.0)
                }
                Err(no) => no.as_str().to_owned(),
            };
            if end.is_none() {
                let evidence = reader.evidence(at)?.map_or(Lsn(0), |(watermark, _)| watermark);
                if proven.max(evidence) < next {
                    break; // the journal ends here: nothing more was promised
                }
                proven = proven.max(evidence);
            }
            report.damage.push(reader.problem(at, what));
            visited.anchor = None; // the damaged bytes may have named another boot
            let further = reader.find_further(at, next)?;
            let further = further.filter(|frame| end.is_none_or(|end| frame.head.first < end));
            let Some(frame) = further else {
                let until = end.unwrap_or(proven.next());
                self.lose(next, until, report);
                next = until;
                break;
            };
            self.lose(next, frame.head.first, report);
            (at, next) = (frame.at, frame.head.first);
        }
        Ok(next)
    }

    fn records(
        &self,
        entry: &SegmentEntry,
        frame: &Frame,
        end: Option<Lsn>,
        report: &mut SalvageReport,
        visit: &mut impl FnMut(Lsn, Record) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut next = frame.head.first;
        for record in frame.records() {
            match record {
                Ok((lsn, record, _)) if end.is_none_or(|end| lsn < end) => {
                    next = lsn.next();
                    visit(lsn, record)?;
                }
                Ok(_) => break,
                Err((at, what)) => {
                    report.damage.push(Damage::new(entry.no.segment(), at, what));
                    self.lose(next, frame.next(), report);
                }
            }
        }
        Ok(())
    }

    /// Reports records from one to before another as lost, unless they are in the runs anyway.
    fn lose(&self, from: Lsn, until: Lsn, report: &mut SalvageReport) {
        let from = from.max(self.cut.next());
        if from < until {
            report.losses.push(Loss::Records { from, to: Lsn(until.0 - 1) });
        }
    }

    /// The last record of a segment without a header.
    fn last_of(&self, segment: &Segment) -> Result<Lsn, StoreError> {
        let mut reader = SegmentReader::open(self.source, &segment.entry)?;
        let (mut last, mut at) = (Lsn(0), BLOCK as u64);
        while let Some(frame) = reader.find_frame(at)? {
            last = last.max(Lsn(frame.next().0.saturating_sub(1)));
            at = frame.end;
        }
        Ok(last)
    }
}

/// The true size of a segment's file, if it exists and has room for frames.
fn size_of(source: &ReadOnlyDisk<'_>, entry: &SegmentEntry) -> Option<u64> {
    use crate::disk::{Disk, FileAccess};
    let file = source.open(&entry.no.segment(), FileAccess::Read).ok()?;
    file.size().ok().filter(|size| *size > BLOCK as u64)
}

// The journal's state of each message: its last record takes precedence over any run.

/// The fold of the journal, without bodies.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    fates: BTreeMap<MessageId, Fate>,
    purges: Vec<(QueueName, Mask)>,
}

#[derive(Debug)]
struct Fate {
    queue: QueueName,
    due: Due,
    /// The record that holds the message, if the journal does.
    put: Option<Lsn>,
    life: Option<Life>,
    /// A later grant.
    grant: Option<(u32, Lease)>,
    end: MessageFate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageFate {
    /// The message is alive, and was not written yet.
    Open,
    /// The message is alive, and was written.
    Written,
    /// The message is settled.
    Gone,
}

impl Overlay {
    /// Reads the whole journal.
    pub(super) fn fold(
        frames: &JournalFrames<'_>,
        books: &mut SalvagedBooks,
        report: &mut SalvageReport,
    ) -> Result<Self, StoreError> {
        let mut overlay = Overlay::default();
        let from = books.fold_from();
        let visited = frames.visit(report, |lsn, record| {
            books.apply(lsn, &record);
            if lsn > from {
                overlay.apply(lsn, record);
            }
            Ok(())
        })?;
        books.note(visited.next, visited.clocks, visited.anchor);
        if report.losses.iter().any(|loss| matches!(loss, Loss::Records { .. })) {
            books.doubt();
        }
        Ok(overlay)
    }

    fn apply(&mut self, lsn: Lsn, record: Record) {
        let fate = |queue: &QueueName, due| Fate {
            queue: queue.clone(),
            due,
            put: None,
            life: None,
            grant: None,
            end: MessageFate::Open,
        };
        match record {
            Record::Put { message, life, .. } => {
                let fate = Fate { put: Some(lsn), ..fate(&message.queue, life.due) };
                self.fates.insert(message.id, fate);
            }
            Record::Changed { id, life, was } => {
                let fate = self.fates.entry(id).or_insert_with(|| fate(&was.queue, was.due));
                (fate.due, fate.life, fate.grant) = (life.due, Some(life), None);
            }
            Record::Granted { id, attempt, lease, was } => {
                let fate = self.fates.entry(id).or_insert_with(|| fate(&was.queue, was.due));
                fate.grant = Some((attempt, lease));
            }
            Record::Removed { id, was, .. } => {
                self.fates.insert(id, Fate { end: MessageFate::Gone, ..fate(&was.queue, was.due) });
            }
            Record::Purged { queue, keep, before, .. } => {
                let mask = Mask { before, keep: keep.iter().collect() };
                let of_queue = self.fates.range_mut(..before).filter(|(_, fate)| fate.queue == queue);
                for (_, fate) in of_queue.filter(|(id, _)| mask.takes(**id)) {
                    (fate.end, fate.life, fate.put) = (MessageFate::Gone, None, None);
                }
                self.purges.push((queue, mask));
            }
            _ => {} // a record about a queue
        }
    }

    /// The life of a message that this record holds; `None` if a later one holds it, or if it is settled.
    pub(super) fn life_of(&mut self, id: MessageId, lsn: Lsn, put: Life) -> Option<Life> {
        let fate = self.fates.get_mut(&id)?;
        if fate.put != Some(lsn) || fate.end != MessageFate::Open {
            return None;
        }
        Some(fate.write(put))
    }

    /// The life of a message that a run holds.
    pub(super) fn changed(&mut self, id: MessageId, life: Life) -> Life {
        match self.fates.get_mut(&id) {
            Some(fate) => fate.write(life),
            None => life,
        }
    }

    /// Whether the row of a message in a run is outdated.
    pub(super) fn replaces(&self, id: MessageId) -> bool {
        self.fates.get(&id).is_some_and(|fate| fate.end != MessageFate::Open || fate.put.is_some())
    }

    /// Whether a purge removed the message from its run.
    pub(super) fn purges(&self, id: MessageId, queue: &QueueName) -> bool {
        self.purges.iter().any(|(of, mask)| of == queue && mask.takes(id))
    }

    /// Live messages of which only changes were found.
    pub(super) fn left_over(&self) -> Vec<(MessageId, QueueName, Due)> {
        let open = self.fates.iter().filter(|(_, fate)| fate.end == MessageFate::Open);
        open.map(|(id, fate)| (*id, fate.queue.clone(), fate.due)).collect()
    }
}

impl Fate {
    fn write(&mut self, base: Life) -> Life {
        self.end = MessageFate::Written;
        let mut life = self.life.take().unwrap_or(base);
        if let Some((attempt, lease)) = self.grant.take() {
            (life.attempt, life.stage) = (attempt, Stage::Leased(lease));
        }
        life
    }
}
