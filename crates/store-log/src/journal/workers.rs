//! What workers do for a journal in use: they make it durable, and read events out of it.
//!
//! The owner writes and requests syncs; one worker syncs, or the owner itself when it has nothing else to do, but never
//! both at a time. After a failed sync nothing is synced any more: the kernel may have dropped the pages, and a second
//! sync that "succeeds" would be false.

use std::time::{Duration, Instant};

use duewheel_core::Lsn;
use duewheel_core::event::MessageEvent;
use duewheel_core::store::{ErrorKind, EventPage, More, StoreError};

use crate::fault::{ReadFault, failed};
use crate::journal::events::{FrameStart, JournalPart, JournalRequest};
use crate::journal::replay::Walk;
use crate::journal::segment::SegmentReader;
use crate::options::WorkMode;
use crate::pool::TaskPause;
use crate::shared::{StoreShared, Worked};

/// The longest expected sync that an owner makes on its own thread; where syncs take longer, the worker makes them.
const AWAY_AT_MOST: Duration = Duration::from_millis(1);

/// The syncer's loop.
pub(crate) fn run(shared: &StoreShared) {
    loop {
        shared.syncer.wait_for_work(shared.options.buffered_for, || shared.is_stopping());
        if shared.is_stopping() {
            return;
        }
        step(shared);
    }
}

/// Syncs once, if there is something to sync, and notifies the owner.
pub(crate) fn step(shared: &StoreShared) -> Worked {
    let worked = sync_once(shared);
    if worked == Worked::Done {
        (shared.waker)();
    }
    worked
}

/// Syncs everything written so far on this thread, unless the worker is syncing or syncs take long; then the sync is
/// only requested.
pub(crate) fn sync_here(shared: &StoreShared) {
    let syncer = &shared.syncer;
    if syncer.took() > AWAY_AT_MOST || shared.options.workers == WorkMode::ByHand {
        return syncer.ask();
    }
    syncer.ask_for_this_thread();
    if sync_once(shared) == Worked::Nothing {
        // The worker is syncing; it makes the sync that was just requested afterwards.
        syncer.wake_worker();
    }
}

/// Waits until everything written so far is durable.
pub(crate) fn wait(shared: &StoreShared) -> Result<(), StoreError> {
    shared.syncer.ask();
    if shared.options.workers == WorkMode::ByHand {
        while step(shared) == Worked::Done {}
    }
    shared.syncer.wait(|| {
        shared.check()?;
        by_another(shared)
    })?;
    shared.check()
}

/// Waits until everything up to a written position is durable.
pub(crate) fn wait_until(lsn: Lsn, shared: &StoreShared) -> Result<(), StoreError> {
    let syncer = &shared.syncer;
    syncer.ask();
    if shared.options.workers == WorkMode::ByHand {
        while syncer.synced() < lsn && step(shared) == Worked::Done {}
    }
    syncer.wait_until(lsn, || {
        shared.check()?;
        if shared.is_stopping() {
            return Err(StoreError::new(ErrorKind::Closed, "the store is being closed"));
        }
        by_another(shared)
    })?;
    shared.check()
}

/// Syncs once, if there is something to sync and no sync is running.
fn sync_once(shared: &StoreShared) -> Worked {
    let Some(sync) = shared.syncer.begin(|| shared.is_stopping()) else { return Worked::Nothing };
    let began = Instant::now();
    let result = sync.file.sync_data().map_err(failed("sync", &sync.name));
    let took = began.elapsed();
    shared.counters.synced(took);
    match result {
        Ok(()) => shared.syncer.finish(&sync, took),
        Err(error) => {
            shared.poison(error);
            shared.syncer.abort();
        }
    }
    Worked::Done
}

/// Fails where the work is done step by step, because waiting for another thread would deadlock.
fn by_another(shared: &StoreShared) -> Result<(), StoreError> {
    if shared.options.workers == WorkMode::ByHand {
        return Err(StoreError::new(ErrorKind::Unavailable, "the journal cannot be synced by hand now"));
    }
    Ok(())
}

// Reads events out of the journal, on a worker's thread, while it is written, cut and used again.
//
// The owner says which segments hold the durable records behind a position, as of the request ([`JournalRequest`]). By
// the time the worker reads, some of them may be in use again for other records. The worker detects this, because
// every frame names the incarnation of its segment and its position under one checksum: a frame that is read is either
// the one that was written there, or not valid. So a frame that is missing means that its segment is no longer listed;
// the page then begins behind it.

/// A step of the reader's task.
pub(crate) fn serve(shared: &StoreShared) -> TaskPause {
    match read_step(shared) {
        Worked::Nothing => TaskPause::UntilRung,
        Worked::Done | Worked::Later => TaskPause::None,
    }
}

/// Reads one page.
pub(crate) fn read_step(shared: &StoreShared) -> Worked {
    let Some(request) = shared.events.next() else { return Worked::Nothing };
    let ticket = request.asked.ticket;
    let page = read(shared, &request).map_err(|error| {
        // Each message of these records is also stored elsewhere: nothing else is in doubt.
        StoreError::new(ErrorKind::Unavailable, error).of_page(ticket)
    });
    shared.events.done(page);
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
            // The segment was cut off since then. Events that were read before it are valid.
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
