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

use bytes::Bytes;
use duewheel_core::record::Record;
use duewheel_core::store::Table;
use duewheel_core::{Epoch, Lsn};

use super::frame::{self, Frame, Head, NoFrame};
use super::segment::{self, BLOCK, Header, Sealed};
use crate::disk::Disk;
use crate::fault::{Problem, Trouble};
use crate::folder::MANIFEST;
use crate::manifest::{Manifest, SegmentEntry};
use crate::run::reader;

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
pub(crate) struct Walk<'a> {
    segment: &'a Bytes,
    entry: SegmentEntry,
    /// Where the next frame starts.
    pub(crate) at: usize,
    /// The LSN that comes next.
    pub(crate) next: Lsn,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(segment: &'a Bytes, entry: SegmentEntry, first: Lsn) -> Self {
        Walk { segment, entry, at: BLOCK, next: first }
    }

    /// The next frame, or what is there instead; then the walk stays where it is.
    pub(crate) fn frame(&mut self) -> Result<Frame, String> {
        let frame = Frame::read(self.segment, self.at, self.entry.incarnation)
            .map_err(|no: NoFrame| no.as_str().to_owned())?;
        if frame.head.first != self.next {
            return Err(format!(
                "the frame starts with LSN {}, LSN {} is due",
                frame.head.first.0, self.next.0
            ));
        }
        self.at = frame.end;
        self.next = frame.next();
        Ok(frame)
    }
}

/// Visits the groups and marks of a sealed segment.
pub(crate) fn sealed_frames(
    segment: &Bytes,
    sealed: &Sealed,
    mut visit: impl FnMut(&Frame) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let mut walk = Walk::new(segment, sealed.entry, sealed.first);
    while walk.next < sealed.end {
        let frame = walk.frame().map_err(|what| {
            let what = format!("{what}; the journal goes on in the next segment with LSN {}", sealed.end.0);
            Problem::new(sealed.entry.no.segment(), walk.at as u64, what)
        })?;
        if frame.next() > sealed.end {
            let what = format!("the group goes beyond LSN {}, where the next segment starts", sealed.end.0);
            return Err(Problem::new(sealed.entry.no.segment(), frame.at as u64, what));
        }
        visit(&frame)?;
    }
    Ok(())
}

/// Visits the records of a frame.
pub(crate) fn records(
    segment: &Bytes,
    entry: &SegmentEntry,
    frame: &Frame,
    mut visit: impl FnMut(Lsn, Record),
) -> Result<(), Problem> {
    for record in frame.records(segment) {
        let (lsn, record) = record.map_err(|(at, what)| Problem::new(entry.no.segment(), at as u64, what))?;
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
        let bytes = segment::read(disk, entry)?;
        check_start(entry, header, replayed.table.applied())?;
        if let Some(clock) = header.clock {
            replayed.table.note_clock(clock);
        }
        match headers.get(i + 1) {
            Some(next) => replay_sealed(&bytes, entry, header, next.first, &mut replayed)?,
            None => replay_last(&bytes, entry, header, &mut replayed)?,
        }
    }
    // The header of the segment in use is the one thing whose loss would look like a segment never used.
    if let Some(entry) = prepared.first() {
        let bytes = segment::read(disk, entry)?;
        refuse_if_promised(&bytes, entry, BLOCK, replayed.table.applied().next(), "the header is damaged")?;
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
        match segment::read_header(disk, entry)? {
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
fn check_start(entry: &SegmentEntry, header: &Header, applied: Lsn) -> Result<(), Problem> {
    if header.first == applied.next() && header.first.0 <= header.watermark.0.saturating_add(1) {
        return Ok(());
    }
    let what = format!("the segment starts with LSN {}, LSN {} is due", header.first.0, applied.0 + 1);
    Err(Problem::new(entry.no.segment(), 40, what))
}

fn replay_sealed(
    bytes: &Bytes,
    entry: &SegmentEntry,
    header: &Header,
    end: Lsn,
    replayed: &mut Replayed,
) -> Result<(), Problem> {
    if end < header.first {
        let what = format!("the segment starts with LSN {}, the next one with {}", header.first.0, end.0);
        return Err(Problem::new(entry.no.segment(), 40, what));
    }
    let mut sealed = Sealed { entry: *entry, first: header.first, end, frames: 0 };
    let mut frames = 0;
    sealed_frames(bytes, &sealed, |frame| {
        frames += (frame.end - frame.at) as u64;
        apply(bytes, entry, frame, &mut replayed.table)
    })?;
    sealed.frames = frames;
    replayed.used.push(sealed);
    Ok(())
}

fn replay_last(
    bytes: &Bytes,
    entry: &SegmentEntry,
    header: &Header,
    replayed: &mut Replayed,
) -> Result<(), Problem> {
    let mut walk = Walk::new(bytes, *entry, header.first);
    let mut frames = Vec::new();
    let mut proven = replayed.proven;
    let bad = loop {
        match walk.frame() {
            Ok(frame) => {
                proven = proven.max(frame.head.watermark);
                frames.push(frame);
            }
            Err(what) => break what,
        }
    };
    if proven >= walk.next {
        let what = format!("{bad}; LSN {} was due here, and LSN {} was durable", walk.next.0, proven.0);
        return Err(Problem::new(entry.no.segment(), walk.at as u64, what));
    }
    refuse_if_promised(bytes, entry, walk.at, walk.next, &bad)?;
    let mut sealed = Sealed { entry: *entry, first: header.first, end: proven.next(), frames: 0 };
    for frame in &frames {
        apply(bytes, entry, frame, &mut replayed.table)?;
        if frame.next() <= sealed.end {
            sealed.frames += (frame.end - frame.at) as u64;
        } else if frame.head.first <= proven {
            let what = format!("LSN {} was durable, which is in the middle of this group", proven.0);
            return Err(Problem::new(entry.no.segment(), frame.at as u64, what));
        } else if frame.head.records > 0 {
            let payload = bytes.slice(frame.payload.clone());
            replayed.unproven.push(Unproven { head: frame.head, payload });
        }
    }
    replayed.proven = proven;
    replayed.used.push(sealed);
    Ok(())
}

fn apply(bytes: &Bytes, entry: &SegmentEntry, frame: &Frame, table: &mut Table) -> Result<(), Problem> {
    records(bytes, entry, frame, |lsn, record| table.apply_read(lsn, record))?;
    table.note_clock(frame.head.clock);
    Ok(())
}

/// Nothing promised may be lost: if a frame behind the bad one proves that this LSN was durable, it is damage.
fn refuse_if_promised(
    bytes: &Bytes,
    entry: &SegmentEntry,
    at: usize,
    next: Lsn,
    bad: &str,
) -> Result<(), Problem> {
    match frame::evidence(bytes, at, entry.incarnation) {
        Some((watermark, proof)) if watermark >= next => {
            let what = format!(
                "{bad}; LSN {} was due here, and the frame at byte {proof} proves that LSN {} was durable",
                next.0, watermark.0
            );
            Err(Problem::new(entry.no.segment(), at as u64, what))
        }
        Some(_) | None => Ok(()),
    }
}
