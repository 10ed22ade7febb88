//! Requests for pages of events out of the journal, and their results.

use std::collections::VecDeque;
use std::sync::Mutex;

use duewheel_core::Lsn;
use duewheel_core::store::{EventPage, EventRequest, StoreError};

use crate::fault::lock;
use crate::journal::segment::{BLOCK, Sealed};
use crate::manifest::SegmentEntry;
use crate::pool::TaskBell;

/// The number of places in segments that are kept, so that a follower does not read a segment from its start again.
const PLACES: usize = 32;

/// A request with the segments to read, as of when it was made.
#[derive(Debug)]
pub(crate) struct JournalRequest {
    pub(super) asked: EventRequest,
    /// Without a gap, the last one being that in use.
    pub(super) parts: Vec<JournalPart>,
    pub(super) durable: Lsn,
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
pub(super) struct FrameStart {
    pub(super) entry: SegmentEntry,
    pub(super) next: Lsn,
    pub(super) at: u64,
}

/// Pending requests and their results.
#[derive(Debug, Default)]
pub(crate) struct EventReader {
    requests: Mutex<VecDeque<JournalRequest>>,
    pages: Mutex<VecDeque<Result<EventPage, StoreError>>>,
    starts: Mutex<VecDeque<FrameStart>>,
    pub(crate) bell: TaskBell,
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
    pub(super) fn from(&self) -> Lsn {
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

    /// The request that was made first.
    pub(super) fn next(&self) -> Option<JournalRequest> {
        lock(&self.requests).pop_front()
    }

    /// Adds a page that was read.
    pub(crate) fn done(&self, page: Result<EventPage, StoreError>) {
        lock(&self.pages).push_back(page);
    }

    /// The known start of the frame that is nearest before a position of a segment.
    pub(super) fn start(&self, part: &JournalPart, next: Lsn) -> FrameStart {
        let starts = lock(&self.starts);
        let known = starts.iter().filter(|start| start.entry == part.entry && start.next <= next);
        let nearest = known.max_by_key(|start| (start.next, start.at)).copied();
        nearest.unwrap_or(FrameStart { entry: part.entry, next: part.first, at: BLOCK as u64 })
    }

    pub(super) fn keep(&self, start: FrameStart) {
        let mut starts = lock(&self.starts);
        if starts.len() == PLACES {
            starts.pop_front();
        }
        starts.push_back(start);
    }
}
