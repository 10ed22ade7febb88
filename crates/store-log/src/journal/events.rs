//! Reads events out of the journal, on a worker's thread, while it is written, cut and used again.
//!
//! The owner says which segments hold the durable records behind a position, as of the request ([`JournalRequest`]). By
//! the time the worker reads, some of them may be in use again for other records. It sees that, because every frame
//! names the incarnation of its segment and its position under one checksum: a frame that is read is the one that was
//! written there, or it is none. So a frame that is missing means that its segment is no longer listed; the page then
//! begins behind it.

use std::collections::VecDeque;
use std::sync::Mutex;

use duewheel_core::Lsn;
use duewheel_core::event::MessageEvent;
use duewheel_core::store::{ErrorKind, EventPage, EventRequest, More, StoreError};

use super::replay::Walk;
use super::segment::{BLOCK, Sealed, SegmentReader};
use crate::fault::ReadFault;
use crate::manifest::SegmentEntry;
use crate::shared::{StoreShared, Worked};
use crate::sync::{WorkerBell, lock};

/// The number of places in segments that are kept, so that whoever follows does not read a segment from its start again.
const PLACES: usize = 32;

/// A request with the segments to read, as of when it was made.
#[derive(Debug)]
pub(crate) struct JournalRequest {
    asked: EventRequest,
    /// Without a gap, the last one being that in use.
    parts: Vec<JournalPart>,
    durable: Lsn,
}

/// The records of a segment: those from `first` to before `end`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalPart {
    pub(crate) entry: SegmentEntry,
    pub(crate) first: Lsn,
    pub(crate) end: Lsn,
}

/// Where a frame begins.
#[derive(Clone, Copy, Debug)]
struct FrameStart {
    entry: SegmentEntry,
    next: Lsn,
    at: u64,
}

/// Pending requests and their results.
#[derive(Debug, Default)]
pub(crate) struct EventReader {
    requests: Mutex<VecDeque<JournalRequest>>,
    pages: Mutex<VecDeque<Result<EventPage, StoreError>>>,
    starts: Mutex<VecDeque<FrameStart>>,
    pub(crate) bell: WorkerBell,
}

impl From<&Sealed> for JournalPart {
    fn from(sealed: &Sealed) -> Self {
        JournalPart { entry: sealed.entry, first: sealed.first, end: sealed.end }
    }
}

impl JournalRequest {
    /// A request to the journal of these segments, oldest first; the last one ends with the durable records.
    pub(crate) fn new(asked: EventRequest, mut parts: Vec<JournalPart>, durable: Lsn) -> Self {
        let gap = parts.windows(2).rposition(|two| two[0].end != two[1].first);
        parts.drain(..gap.map_or(0, |gap| gap + 1));
        JournalRequest { asked, parts, durable }
    }

    /// The position behind which the page begins.
    fn from(&self) -> Lsn {
        let oldest = self.parts.first().map_or(self.durable, |part| Lsn(part.first.0.saturating_sub(1)));
        let known = self.asked.after.filter(|after| *after <= self.durable);
        known.unwrap_or(self.durable).max(oldest.min(self.durable))
    }

    /// The page, if nothing has to be read for it.
    pub(crate) fn page_at_hand(&self) -> Option<EventPage> {
        (self.from() >= self.durable).then(|| EventPage::nothing_kept(self.asked.ticket, self.durable))
    }
}

impl EventReader {
    pub(crate) fn ask(&self, request: JournalRequest) {
        lock(&self.requests).push_back(request);
        self.bell.ring();
    }

    /// The next page that was read, in the order of requests.
    pub(crate) fn page(&self) -> Option<Result<EventPage, StoreError>> {
        lock(&self.pages).pop_front()
    }

    /// The known start of the frame that is nearest before a position of a segment.
    fn start(&self, part: &JournalPart, next: Lsn) -> FrameStart {
        let starts = lock(&self.starts);
        let known = starts.iter().filter(|start| start.entry == part.entry && start.next <= next);
        let nearest = known.max_by_key(|start| (start.next, start.at)).copied();
        nearest.unwrap_or(FrameStart { entry: part.entry, next: part.first, at: BLOCK as u64 })
    }

    fn keep(&self, start: FrameStart) {
        let mut starts = lock(&self.starts);
        if starts.len() == PLACES {
            starts.pop_front();
        }
        starts.push_back(start);
    }
}

/// The reader's loop.
pub(crate) fn run(shared: &StoreShared) {
    while !shared.is_stopping() {
        if step(shared) == Worked::Nothing {
            shared.events.bell.wait(None);
        }
    }
}

/// Reads one page.
pub(crate) fn step(shared: &StoreShared) -> Worked {
    let Some(request) = lock(&shared.events.requests).pop_front() else { return Worked::Nothing };
    let ticket = request.asked.ticket;
    let page = read(shared, &request).map_err(|error| {
        // The records are those of messages that are elsewhere, too: nothing else is in doubt.
        StoreError::new(ErrorKind::Unavailable, error).of_page(ticket)
    });
    lock(&shared.events.pages).push_back(page);
    (shared.waker)();
    Worked::Done
}

fn read(shared: &StoreShared, request: &JournalRequest) -> Result<EventPage, StoreError> {
    let from = request.from();
    let mut page =
        EventPage { ticket: request.asked.ticket, from, upto: from, more: More::Yes, events: Vec::new() };
    let mut bytes_left = request.asked.bytes as u64;
    for part in &request.parts {
        if part.end <= page.upto.next() {
            continue;
        }
        match read_part(shared, part, request, &mut page, &mut bytes_left) {
            Ok(ReadEnd::Part) => {}
            Ok(ReadEnd::Page) => break,
            Err(error) if shared.manifest().segments.contains(&part.entry) => return Err(error),
            // It was cut off meanwhile. What was read before it is valid.
            Err(_) if page.upto > page.from => break,
            Err(_) => {
                page.from = Lsn(part.end.0 - 1).min(request.durable);
                page.upto = page.from;
                break;
            }
        }
    }
    if page.upto >= request.durable {
        page.more = More::No;
    }
    Ok(page)
}

/// Where reading has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadEnd {
    /// With the part's last record.
    Part,
    /// In the part, because the page is full.
    Page,
}

fn read_part(
    shared: &StoreShared,
    part: &JournalPart,
    request: &JournalRequest,
    page: &mut EventPage,
    bytes_left: &mut u64,
) -> Result<ReadEnd, StoreError> {
    let last = Lsn(part.end.0 - 1).min(request.durable);
    let start = shared.events.start(part, page.upto.next());
    let segment = SegmentReader::open(&*shared.disk, &part.entry)?;
    let mut walk = Walk { segment, at: start.at, next: start.next };
    while page.upto < last {
        let start = FrameStart { entry: part.entry, next: walk.next, at: walk.at };
        let frame = walk.frame()?.map_err(|what| ReadFault::from(walk.problem(what)))?;
        for record in frame.records() {
            let (lsn, record, _) =
                record.map_err(|(at, what)| ReadFault::from(walk.segment.problem(at, what)))?;
            if lsn <= page.upto {
                continue;
            }
            if lsn > last || page.events.len() >= request.asked.events {
                shared.events.keep(start);
                return Ok(ReadEnd::Page);
            }
            page.events.extend(MessageEvent::of(&record, lsn, frame.head.clock));
            page.upto = lsn;
        }
        // Frames before the position are passed over, and each page makes progress.
        if frame.next() > page.from.next() {
            *bytes_left = bytes_left.saturating_sub(frame.bytes());
        }
        if *bytes_left == 0 && page.upto > page.from {
            break;
        }
    }
    shared.events.keep(FrameStart { entry: part.entry, next: walk.next, at: walk.at });
    Ok(if page.upto < last { ReadEnd::Page } else { ReadEnd::Part })
}
