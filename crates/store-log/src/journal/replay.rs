//! Reads a journal.
//!
//! A segment is valid from its first LSN up to the first LSN of the next one; in that range every frame must be whole
//! and none may be missing. Only in the last segment may the frames come to an end, and there the watermarks determine
//! whether anything behind the end was promised:
//!
//! ```text
//!             proven            next
//!   ... │ durable │  unproven    │  bad frame, or nothing │ perhaps whole frames again
//!                 ▲                ▲                         their watermarks are evidence,
//!       highest watermark found    if a watermark is here    they themselves are dropped
//!                                  or behind: refuse
//! ```

use std::collections::VecDeque;

use bytes::Bytes;
use duewheel_core::record::{BootAnchor, ClockPair, Record};
use duewheel_core::store::{Ledger, StoreError};
use duewheel_core::{Epoch, Lsn};

use super::segment::{BLOCK, Header, Sealed, SegmentReader};
use crate::disk::Disk;
use crate::fault::{Damage, ReadFault};
use crate::format::MANIFEST;
use crate::journal::segment::{Frame, FrameHead};
use crate::manifest::{Manifest, SegmentEntry};
use crate::mem::Mem;

/// The content of a folder.
#[derive(Debug)]
pub(crate) struct Replayed {
    /// The records behind the last cut.
    pub(crate) mem: Mem,
    /// The books with these records in them.
    pub(crate) ledger: Ledger,
    /// The last existing record.
    pub(crate) applied: Lsn,
    /// Segments with frames, oldest first. The last one may have room left; it takes no more frames.
    pub(crate) used: Vec<Sealed>,
    /// Segments prepared for later.
    pub(crate) unused: Vec<SegmentEntry>,
    /// The highest LSN known durable.
    pub(crate) proven: Lsn,
    /// Groups above it: read from the page cache, and perhaps not on the disk.
    pub(crate) unproven: Vec<Unproven>,
    /// The highest epoch found.
    pub(crate) epoch: Epoch,
    /// The last anchor.
    pub(crate) anchor: Option<BootAnchor>,
    /// The header of the last segment with frames.
    last_header: Option<Header>,
    /// Groups up to here were written before the header of their segment, whose clock is newer.
    older: Lsn,
}

impl Replayed {
    /// The header of the last segment: it may be in the page cache only. Its own watermark does not prove that it is on
    /// the disk: its owner may have been killed between writing and syncing it.
    pub(crate) fn doubtful_header(&self) -> Option<(SegmentEntry, Header)> {
        Some((self.used.last()?.entry, self.last_header?))
    }
}

impl Replayed {
    /// Takes the frames of the last segments for those that must be written again, as far as they have at most so many
    /// bytes together: once they are written, the space of these segments is free. Returns the LSN with which they start.
    pub(crate) fn take_back_last(&mut self, disk: &dyn Disk, most: u64) -> Result<Option<Lsn>, ReadFault> {
        let mut bytes = 0;
        let short = self.used.iter().rev().take_while(|sealed| {
            bytes += sealed.frames;
            bytes <= most
        });
        let from = self.used.len() - short.count();
        let mut again = Vec::new();
        for sealed in &mut self.used[from..] {
            sealed_frames(SegmentReader::open(disk, &sealed.entry)?, sealed, |frame| {
                if frame.head.records > 0 {
                    again.push(Unproven { head: frame.head, payload: frame.payload.clone() });
                }
                Ok(())
            })?;
            (sealed.end, sealed.frames) = (sealed.first, 0);
        }
        again.append(&mut self.unproven);
        self.unproven = again;
        Ok(self.used.get(from).map(|sealed| sealed.first))
    }

    /// Applies a frame behind the cut.
    fn apply(&mut self, entry: &SegmentEntry, frame: &Frame) -> Result<(), ReadFault> {
        let cut = self.mem.before();
        records(entry, frame, |lsn, record, bytes| {
            if lsn > cut {
                self.ledger.apply(lsn, &record);
                self.mem.push(&record, bytes)?;
            }
            Ok(())
        })?;
        let is_behind = frame.next().0 > cut.0 + 1 || (frame.head.records == 0 && frame.head.first > cut);
        if is_behind && frame.head.first > self.older {
            self.note_clock(frame.head.clock);
        }
        self.anchor = frame.anchor().or(self.anchor);
        Ok(())
    }

    fn note_clock(&mut self, clock: ClockPair) {
        self.ledger.note_clock(clock);
        self.mem.note_clock(clock);
    }
}

/// A group that must be written again.
#[derive(Clone, Debug)]
pub(crate) struct Unproven {
    pub(crate) head: FrameHead,
    pub(crate) payload: Bytes,
}

/// The frames of one segment, in order.
#[derive(Debug)]
pub(crate) struct Walk {
    pub(crate) segment: SegmentReader,
    /// The start of the next frame.
    pub(crate) at: u64,
    /// The LSN that comes next.
    pub(crate) next: Lsn,
}

impl Walk {
    pub(crate) fn new(segment: SegmentReader, first: Lsn) -> Self {
        Walk { segment, at: BLOCK as u64, next: first }
    }

    /// The next frame, or the reason why there is none; then the walk stays at its position.
    pub(crate) fn frame(&mut self) -> Result<Result<Frame, String>, StoreError> {
        let frame = match self.segment.frame(self.at)? {
            Ok(frame) => frame,
            Err(no) => return Ok(Err(no.as_str().into())),
        };
        if frame.head.first != self.next {
            let (is, due) = (frame.head.first.0, self.next.0);
            return Ok(Err(format!("the frame starts with LSN {is}, LSN {due} is due")));
        }
        self.at = frame.end;
        self.next = frame.next();
        Ok(Ok(frame))
    }

    /// Damage at the position of the walk.
    pub(super) fn problem(&self, what: impl Into<String>) -> Damage {
        self.segment.problem(self.at, what)
    }
}

/// Visits the groups and marks of a sealed segment.
pub(crate) fn sealed_frames(
    segment: SegmentReader,
    sealed: &Sealed,
    mut visit: impl FnMut(&Frame) -> Result<(), ReadFault>,
) -> Result<(), ReadFault> {
    let mut walk = Walk::new(segment, sealed.first);
    while walk.next < sealed.end {
        let frame = walk.frame()?.map_err(|what| {
            let goes_on = sealed.end.0;
            walk.problem(format!("{what}; the journal continues in the next segment with LSN {goes_on}"))
        })?;
        if frame.next() > sealed.end {
            let what = format!("the group goes beyond LSN {}, where the next segment starts", sealed.end.0);
            return Err(walk.segment.problem(frame.at, what).into());
        }
        visit(&frame)?;
    }
    Ok(())
}

/// Visits the records of a frame.
pub(crate) fn records(
    entry: &SegmentEntry,
    frame: &Frame,
    mut visit: impl FnMut(Lsn, Record, &[u8]) -> Result<(), ReadFault>,
) -> Result<(), ReadFault> {
    for record in frame.records() {
        let (lsn, record, bytes) = record.map_err(|(at, what)| Damage::new(entry.no.segment(), at, what))?;
        visit(lsn, record, &bytes)?;
    }
    Ok(())
}

/// Reads the journal of a folder behind the last cut, to which `books` belong. Changes nothing.
///
/// `id_step` is the distance of new ids.
pub(crate) fn replay(
    disk: &dyn Disk,
    manifest: &Manifest,
    books: &Ledger,
    id_step: u64,
) -> Result<Replayed, ReadFault> {
    let cut = books.applied();
    let headers = headers(disk, &manifest.segments)?;
    let (with_frames, prepared) = manifest.segments.split_at(headers.len());
    let mut replayed = Replayed {
        epoch: headers.iter().map(|h| h.epoch).fold(manifest.epoch, Epoch::max),
        proven: headers.iter().map(|h| h.watermark).fold(cut.max(manifest.proven), Lsn::max),
        mem: Mem::new(manifest.hasher(), cut, (books.next_id().0, id_step), books.clock()),
        ledger: books.clone(),
        applied: cut,
        used: Vec::new(),
        unused: prepared.to_vec(),
        unproven: Vec::new(),
        anchor: None,
        last_header: headers.last().copied(),
        older: Lsn(0),
    };
    let mut is_first = true;
    for (i, (entry, header)) in with_frames.iter().zip(&headers).enumerate() {
        let segment = SegmentReader::open(disk, entry)?;
        if headers[i + 1..].iter().any(|later| later.first <= header.first) {
            // A later segment has all of its groups, and this one was about to be unlisted.
            replayed.used.push(Sealed { entry: *entry, first: header.first, end: header.first, frames: 0 });
            continue;
        }
        check_start(&segment, header, replayed.applied, std::mem::take(&mut is_first))?;
        replayed.older = header.clock.map_or(Lsn(0), |_| header.watermark);
        if let Some(clock) = header.clock.filter(|_| header.watermark >= cut) {
            replayed.note_clock(clock);
        }
        replayed.anchor = header.anchor.or(replayed.anchor);
        match headers[i + 1..].iter().map(|later| later.first).min() {
            Some(end) => replay_sealed(segment, header, end, &mut replayed)?,
            None => replay_last(segment, header, &mut replayed)?,
        }
    }
    // If the header of the segment in use is lost, the segment looks as if it had never been used.
    if let Some(entry) = prepared.first() {
        let mut segment = SegmentReader::open(disk, entry)?;
        let next = replayed.applied.next();
        refuse_if_promised(&mut segment, BLOCK as u64, next, "the header is damaged")?;
    }
    if replayed.proven > replayed.applied {
        let (proven, last) = (replayed.proven.0, replayed.applied.0);
        let what = format!("the journal ends with LSN {last}, LSN {proven} was durable");
        let file = prepared.first().map_or(MANIFEST.into(), |entry| entry.no.segment());
        return Err(Damage::new(file, 0, what).into());
    }
    Ok(replayed)
}

/// The headers of the segments that have one: all up to the one in use.
fn headers(disk: &dyn Disk, entries: &[SegmentEntry]) -> Result<Vec<Header>, ReadFault> {
    let mut headers = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        match SegmentReader::open(disk, entry)?.header()? {
            Some(header) if headers.len() == i => headers.push(header),
            Some(_) => {
                let damaged = entries[headers.len()].no.segment();
                return Err(
                    Damage::new(damaged, 0, "the header is damaged, and a later segment is in use").into()
                );
            }
            None => {}
        }
    }
    Ok(headers)
}

/// Checks that a segment starts right behind the one before; the first one may start before the cut.
fn check_start(segment: &SegmentReader, header: &Header, applied: Lsn, is_first: bool) -> Result<(), Damage> {
    let fits = header.first == applied.next() || (is_first && header.first <= applied);
    if fits && header.first > Lsn(0) && header.first.0 <= header.watermark.0.saturating_add(1) {
        return Ok(());
    }
    let (is, due) = (header.first.0, applied.0 + 1);
    Err(segment.problem(40, format!("the segment starts with LSN {is}, LSN {due} is due")))
}

fn replay_sealed(
    segment: SegmentReader,
    header: &Header,
    end: Lsn,
    replayed: &mut Replayed,
) -> Result<(), ReadFault> {
    if end < header.first {
        let (is, next) = (header.first.0, end.0);
        return Err(segment
            .problem(40, format!("the segment starts with LSN {is}, the next one with {next}"))
            .into());
    }
    let entry = segment.entry;
    let mut sealed = Sealed { entry, first: header.first, end, frames: 0 };
    let mut frames = 0;
    sealed_frames(segment, &sealed, |frame| {
        frames += frame.bytes();
        replayed.apply(&entry, frame)
    })?;
    replayed.applied = Lsn(end.0 - 1);
    sealed.frames = frames;
    replayed.used.push(sealed);
    Ok(())
}

fn replay_last(segment: SegmentReader, header: &Header, replayed: &mut Replayed) -> Result<(), ReadFault> {
    let entry = segment.entry;
    let mut walk = Walk::new(segment, header.first);
    let mut proven = replayed.proven;
    // Groups that no watermark covers yet; usually the last few.
    let mut open: VecDeque<Frame> = VecDeque::new();
    let mut frames = 0;
    let bad = loop {
        match walk.frame()? {
            Ok(frame) => {
                proven = proven.max(frame.head.watermark);
                replayed.apply(&entry, &frame)?;
                open.push_back(frame);
                while open.front().is_some_and(|oldest| oldest.next().0 <= proven.0.saturating_add(1)) {
                    frames += open.pop_front().map_or(0, |frame| frame.bytes());
                }
            }
            Err(what) => break what,
        }
    };
    if proven >= walk.next {
        let (due, durable) = (walk.next.0, proven.0);
        return Err(walk
            .problem(format!("{bad}; LSN {due} was due here, and LSN {durable} was durable"))
            .into());
    }
    let (at, next) = (walk.at, walk.next);
    refuse_if_promised(&mut walk.segment, at, next, &bad)?;
    for frame in open {
        if frame.head.first <= proven {
            let what = format!("LSN {} was durable, which is in the middle of this group", proven.0);
            return Err(walk.segment.problem(frame.at, what).into());
        }
        if frame.head.records > 0 {
            replayed.unproven.push(Unproven { head: frame.head, payload: frame.payload });
        }
    }
    let sealed = Sealed { entry, first: header.first, end: proven.next(), frames };
    replayed.applied = replayed.applied.max(Lsn(walk.next.0 - 1));
    replayed.proven = proven;
    replayed.used.push(sealed);
    Ok(())
}

/// Refuses damage to promised records: it is damage if a frame behind the bad one proves that this LSN was durable.
fn refuse_if_promised(segment: &mut SegmentReader, at: u64, next: Lsn, bad: &str) -> Result<(), ReadFault> {
    match segment.evidence(at)? {
        Some((watermark, proof)) if watermark >= next => {
            let what = format!(
                "{bad}; LSN {} was due here, and the frame at byte {proof} proves that LSN {} was durable",
                next.0, watermark.0
            );
            Err(segment.problem(at, what).into())
        }
        Some(_) | None => Ok(()),
    }
}
