//! What a journal says when it is read.
//!
//! A segment counts from its first LSN up to the first LSN of the next one; in that range every frame must be whole and
//! none may be missing. Only in the last one may the frames come to an end, and there the watermarks decide whether what
//! is behind the end was promised:
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
use duewheel_core::record::Record;
use duewheel_core::store::{StoreError, Table};
use duewheel_core::{Epoch, Lsn};

use super::frame::{Frame, Head};
use super::segment::{BLOCK, Header, Sealed, SegmentReader};
use crate::disk::Disk;
use crate::fault::{Problem, Trouble};
use crate::folder::MANIFEST;
use crate::manifest::{Manifest, SegmentEntry};
use crate::run_v1::reader;

/// Everything that a folder holds.
#[derive(Debug)]
pub(crate) struct Replayed {
    /// All that is pending.
    pub(crate) table: Table,
    /// Segments with frames, oldest first. The last one may still have had room; it takes no more.
    pub(crate) used: Vec<Sealed>,
    /// Segments prepared for later.
    pub(crate) unused: Vec<SegmentEntry>,
    /// The highest LSN known durable.
    pub(crate) proven: Lsn,
    /// Groups above it: read from the page cache, and perhaps not on the disk.
    pub(crate) unproven: Vec<Unproven>,
    /// The highest epoch seen.
    pub(crate) epoch: Epoch,
    /// Messages in the newest run.
    pub(crate) run_rows: u64,
    /// The header of the last segment with frames.
    last_header: Option<Header>,
}

impl Replayed {
    /// The last segment, if no sync of it is proven: then its header may be in the page cache only.
    pub(crate) fn doubtful_header(&self) -> Option<(SegmentEntry, Header)> {
        let (last, header) = (self.used.last()?, self.last_header?);
        (last.records() == 0).then_some((last.entry, header))
    }
}

/// A group that must be written again.
#[derive(Clone, Debug)]
pub(crate) struct Unproven {
    pub(crate) head: Head,
    pub(crate) payload: Bytes,
}

/// The frames of one segment, in order.
#[derive(Debug)]
pub(crate) struct Walk {
    pub(crate) segment: SegmentReader,
    /// Where the next frame starts.
    pub(crate) at: u64,
    /// The LSN that comes next.
    pub(crate) next: Lsn,
}

impl Walk {
    pub(crate) fn new(segment: SegmentReader, first: Lsn) -> Self {
        Walk { segment, at: BLOCK as u64, next: first }
    }

    /// The next frame, or what is there instead; then the walk stays where it is.
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

    /// Damage where the walk stands.
    fn problem(&self, what: impl Into<String>) -> Problem {
        self.segment.problem(self.at, what)
    }
}

/// Visits the groups and marks of a sealed segment.
pub(crate) fn sealed_frames(
    segment: SegmentReader,
    sealed: &Sealed,
    mut visit: impl FnMut(&Frame) -> Result<(), Problem>,
) -> Result<(), Trouble> {
    let mut walk = Walk::new(segment, sealed.first);
    while walk.next < sealed.end {
        let frame = walk.frame()?.map_err(|what| {
            let goes_on = sealed.end.0;
            walk.problem(format!("{what}; the journal goes on in the next segment with LSN {goes_on}"))
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
    mut visit: impl FnMut(Lsn, Record),
) -> Result<(), Problem> {
    for record in frame.records() {
        let (lsn, record) = record.map_err(|(at, what)| Problem::new(entry.no.segment(), at, what))?;
        visit(lsn, record);
    }
    Ok(())
}

/// Reads a folder. Changes nothing.
pub(crate) fn replay(disk: &dyn Disk, manifest: &Manifest) -> Result<Replayed, Trouble> {
    let mut table = Table::default();
    let run_rows = match &manifest.run {
        Some(run) => reader::restore(disk, run, &mut table)?,
        None => 0,
    };
    let headers = headers(disk, &manifest.segments)?;
    let (with_frames, prepared) = manifest.segments.split_at(headers.len());
    let mut replayed = Replayed {
        epoch: headers.iter().map(|h| h.epoch).fold(manifest.epoch, Epoch::max),
        proven: headers.iter().map(|h| h.watermark).fold(table.applied().max(manifest.proven), Lsn::max),
        table,
        used: Vec::new(),
        unused: prepared.to_vec(),
        unproven: Vec::new(),
        run_rows,
        last_header: headers.last().copied(),
    };
    for (i, (entry, header)) in with_frames.iter().zip(&headers).enumerate() {
        let segment = SegmentReader::open(disk, entry)?;
        check_start(&segment, header, replayed.table.applied())?;
        if let Some(clock) = header.clock {
            replayed.table.note_clock(clock);
        }
        match headers.get(i + 1) {
            Some(next) => replay_sealed(segment, header, next.first, &mut replayed)?,
            None => replay_last(segment, header, &mut replayed)?,
        }
    }
    // The header of the segment in use is the one thing whose loss would look like a segment never used.
    if let Some(entry) = prepared.first() {
        let mut segment = SegmentReader::open(disk, entry)?;
        let next = replayed.table.applied().next();
        refuse_if_promised(&mut segment, BLOCK as u64, next, "the header is damaged")?;
    }
    if replayed.proven > replayed.table.applied() {
        let (proven, last) = (replayed.proven.0, replayed.table.applied().0);
        let what = format!("the journal ends with LSN {last}, LSN {proven} was durable");
        let file = prepared.first().map_or(MANIFEST.into(), |entry| entry.no.segment());
        return Err(Problem::new(file, 0, what).into());
    }
    Ok(replayed)
}

/// The headers of the segments that have one: all up to the one in use.
fn headers(disk: &dyn Disk, entries: &[SegmentEntry]) -> Result<Vec<Header>, Trouble> {
    let mut headers = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        match SegmentReader::open(disk, entry)?.header()? {
            Some(header) if headers.len() == i => headers.push(header),
            Some(_) => {
                let damaged = entries[headers.len()].no.segment();
                return Err(
                    Problem::new(damaged, 0, "the header is damaged, and a later segment is in use").into()
                );
            }
            None => {}
        }
    }
    Ok(headers)
}

/// A segment must start right behind the one before.
fn check_start(segment: &SegmentReader, header: &Header, applied: Lsn) -> Result<(), Problem> {
    if header.first == applied.next() && header.first.0 <= header.watermark.0.saturating_add(1) {
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
) -> Result<(), Trouble> {
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
        apply(&entry, frame, &mut replayed.table)
    })?;
    sealed.frames = frames;
    replayed.used.push(sealed);
    Ok(())
}

fn replay_last(segment: SegmentReader, header: &Header, replayed: &mut Replayed) -> Result<(), Trouble> {
    let entry = segment.entry;
    let mut walk = Walk::new(segment, header.first);
    let mut proven = replayed.proven;
    // Those that no watermark covers yet; usually the last few.
    let mut open: VecDeque<Frame> = VecDeque::new();
    let mut frames = 0;
    let bad = loop {
        match walk.frame()? {
            Ok(frame) => {
                proven = proven.max(frame.head.watermark);
                apply(&entry, &frame, &mut replayed.table)?;
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
    replayed.proven = proven;
    replayed.used.push(sealed);
    Ok(())
}

fn apply(entry: &SegmentEntry, frame: &Frame, table: &mut Table) -> Result<(), Problem> {
    records(entry, frame, |lsn, record| table.apply_read(lsn, record))?;
    table.note_clock(frame.head.clock);
    Ok(())
}

/// Nothing promised may be lost: if a frame behind the bad one proves that this LSN was durable, it is damage.
fn refuse_if_promised(segment: &mut SegmentReader, at: u64, next: Lsn, bad: &str) -> Result<(), Trouble> {
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
