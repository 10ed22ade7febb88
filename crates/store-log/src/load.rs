//! Loads pages, away from the owner's thread.
//!
//! The owner takes its part out of the active memtable when it makes a request ([`LoadRequest`]). The loader merges that
//! with the frozen memtable and the runs as they were at that moment. When the owner fetches the page
//! ([`LoadedPage::loaded`]), it removes the rows that its memtables hide by then. So no thread waits for a lock, and no row
//! is missing or duplicated.
//!
//! A scan is kept when its page is full: the next page of the same sequence continues it, and reads nothing again.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};

use duewheel_core::message::Row;
use duewheel_core::policy::PAGES_UNDER_WAY;
use duewheel_core::record::StageKind;
use duewheel_core::store::{Cursor, ErrorKind, Load, Loaded, Lookups, More, Sequence, StoreError, Which};
use duewheel_core::{Lsn, MessageId, QueueName};

use crate::fault::{ReadFault, lock};
use crate::find::{self, Finder};
use crate::mem::{Mem, MemAnswer, MemScan, Patch, ScanStep};
use crate::pool::TaskBell;
use crate::readers::{ReadPriority, Readers};
use crate::run::{RawRow, RunScan, before};
use crate::view::{LiveRun, StoreView};

/// Largest number of entries of the active memtable that the owner's thread examines for one page.
const LOOKED_AT: usize = 16 * 1024;
/// Number of scans that are kept: one for each page that an engine loads at a time.
const KEPT: usize = PAGES_UNDER_WAY + 4;
/// A page that leaves queues out ends after it has read this many times the bytes that it may bring, so that discarded
/// reads are bounded.
const READ_FOR_NOTHING: u64 = 4;
/// Number of partly known messages that are completed together.
const TOGETHER: usize = 32;

/// A request for a page.
#[derive(Debug)]
pub(crate) struct LoadRequest {
    pub(crate) load: Load,
    pub(crate) as_of: Lsn,
    view: Arc<StoreView>,
    active: VecDeque<(Cursor, MemAnswer)>,
    /// The end of the active memtable's part; `None`: it is complete.
    active_end: Option<Cursor>,
}

/// A page that was loaded.
#[derive(Debug)]
pub(crate) struct LoadedPage {
    loaded: Loaded,
    /// Whether each row comes from behind the active memtable of the request.
    older: Vec<bool>,
}

/// The result of a request.
#[derive(Debug)]
pub(crate) enum LoadResult {
    Loaded(LoadedPage),
    /// The disk could not read a block. The page may be requested again.
    Unread(Load, StoreError),
    /// The store has ended.
    Ended(StoreError),
}

/// Pending requests and their results.
#[derive(Default)]
pub(crate) struct Loader {
    requests: Mutex<VecDeque<LoadRequest>>,
    pages: Mutex<VecDeque<LoadResult>>,
    kept: Mutex<VecDeque<OlderScan>>,
    pub(crate) bell: TaskBell,
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader").finish_non_exhaustive()
    }
}

impl LoadRequest {
    /// A request with the part of the active memtable.
    pub(crate) fn new(load: Load, as_of: Lsn, view: Arc<StoreView>, active: &mut Mem) -> Self {
        let mut request = LoadRequest { load, as_of, view, active: VecDeque::new(), active_end: None };
        active.settle();
        let load = &request.load;
        let mut scan = active.scan(load.sequence, &load.which, load.after);
        let (mut looked_at, mut bytes) = (0, 0);
        while let Some(step) = scan.step(active) {
            looked_at += 1;
            let (ScanStep::Here(cursor, _) | ScanStep::Stale(cursor)) = step;
            if cursor.0 > load.until {
                break;
            }
            if let ScanStep::Here((_, id), _) = step {
                let answer = active.told(id);
                if let MemAnswer::Row(row) = &answer {
                    bytes += row.weight();
                }
                request.active.push_back((cursor, answer));
            }
            if looked_at >= LOOKED_AT || request.active.len() >= load.rows || bytes >= load.bytes {
                request.active_end = Some(cursor);
                break;
            }
        }
        request
    }
}

impl LoadedPage {
    /// The page without the rows that one of these memtables hides, which are all that were active since the request.
    pub(crate) fn loaded<'a>(self, since: impl Iterator<Item = &'a Mem> + Clone) -> Loaded {
        let LoadedPage { mut loaded, older } = self;
        let mut older = older.into_iter();
        loaded.rows.retain(|row| {
            let is_older = older.next() == Some(true);
            !is_older || !since.clone().any(|mem| mem.hides(row.message.id, &row.message.queue))
        });
        loaded
    }
}

impl Loader {
    pub(crate) fn ask(&self, request: LoadRequest) {
        lock(&self.requests).push_back(request);
        self.bell.ring();
    }

    /// The next page, in the order of requests.
    pub(crate) fn page(&self) -> Option<LoadResult> {
        lock(&self.pages).pop_front()
    }

    /// The request that was made first.
    pub(crate) fn next(&self) -> Option<LoadRequest> {
        lock(&self.requests).pop_front()
    }

    /// A request has come to this.
    pub(crate) fn done(&self, outcome: LoadResult) {
        lock(&self.pages).push_back(outcome);
    }

    /// Loads a page, and keeps the scan if it goes on and its view counts still.
    pub(crate) fn load(
        &self,
        readers: &Arc<Readers>,
        request: LoadRequest,
        current: impl FnOnce() -> Arc<StoreView>,
    ) -> Result<LoadedPage, ReadFault> {
        let mut older = take_kept(self, &request)?;
        let (view, page) = (Arc::clone(&request.view), PageInProgress::new(readers, request));
        let page = page.make(&mut older)?;
        if page.loaded.more == More::Yes {
            older.at = page.loaded.upto;
            let mut kept = lock(&self.kept);
            // A later replacement of the view also takes this lock.
            if Arc::ptr_eq(&view, &current()) {
                if kept.len() >= KEPT {
                    kept.pop_front();
                }
                kept.push_back(older);
            }
        }
        Ok(page)
    }

    /// Forgets scans of former views: they keep files that are no longer listed.
    pub(crate) fn forget_all_but(&self, view: &Arc<StoreView>) {
        lock(&self.kept).retain(|older| Arc::ptr_eq(&older.view, view));
    }
}

/// The scan at the start of this request, or a new one.
fn take_kept(loader: &Loader, request: &LoadRequest) -> Result<OlderScan, ReadFault> {
    let goes_on = {
        let mut kept = lock(&loader.kept);
        let fits = |older: &OlderScan| older.goes_on_with(request);
        kept.iter().position(fits).and_then(|i| kept.remove(i))
    };
    match goes_on {
        Some(mut older) => {
            older.go_on(request)?;
            Ok(older)
        }
        None => {
            let Load { sequence, which, after, .. } = &request.load;
            let allowed = allowed(request);
            OlderScan::new(Arc::clone(&request.view), *sequence, which.clone(), *after, allowed)
        }
    }
}

fn allowed(request: &LoadRequest) -> u64 {
    READ_FOR_NOTHING.saturating_mul(request.load.bytes as u64)
}

/// A page in progress.
struct PageInProgress<'a> {
    readers: &'a Arc<Readers>,
    request: LoadRequest,
    rows: Vec<Option<Row>>,
    older: Vec<bool>,
    bytes: usize,
    /// Rows that must be read: their position in the page, and the changes to apply.
    parts: Vec<(usize, MessageId, Patch)>,
}

impl<'a> PageInProgress<'a> {
    fn new(readers: &'a Arc<Readers>, request: LoadRequest) -> Self {
        PageInProgress { readers, request, rows: Vec::new(), older: Vec::new(), bytes: 0, parts: Vec::new() }
    }

    fn make(mut self, older: &mut OlderScan) -> Result<LoadedPage, ReadFault> {
        let mut upto = None;
        let more = loop {
            let is_full = self.rows.len() >= self.request.load.rows
                || (self.bytes >= self.request.load.bytes && !self.rows.is_empty());
            let next = match (self.request.active.front(), older.peek()) {
                (Some((active, _)), Some(behind)) => Some((*active).min(behind)),
                (Some((active, _)), None) => Some(*active),
                (None, behind) => behind,
            };
            let next = next.filter(|next| next.0 <= self.request.load.until);
            if let Some(barrier) = older.barrier().filter(|barrier| barrier.0 <= self.request.load.until)
                && next.is_none_or(|next| next >= barrier)
            {
                upto = Some(before(barrier)).max(self.request.load.after);
                break More::Yes;
            }
            if let Some(end) = self.request.active_end
                && next.is_none_or(|next| next > end)
            {
                upto = Some(end);
                break More::Yes;
            }
            let Some(next) = next else {
                upto = Some((self.request.load.until, MessageId(u64::MAX))).max(self.request.load.after);
                break More::No;
            };
            if is_full {
                break More::Yes;
            }
            upto = Some(next);
            if self.request.active.front().is_some_and(|(cursor, _)| *cursor == next) {
                if let Some((_, answer)) = self.request.active.pop_front() {
                    self.take(next, answer, false)?;
                }
                if older.peek() == Some(next) {
                    older.next()?; // the same message as it was before
                }
            } else if let Some(found) = older.next()? {
                let answer = match found {
                    OlderRow::Run(part, raw) => MemAnswer::Row(older.view.parts[part].run.decode(&raw)?),
                    OlderRow::Frozen(answer) => answer,
                };
                self.take(next, answer, true)?;
            }
        };
        self.read_parts()?;
        let PageInProgress { request: LoadRequest { load, as_of, .. }, rows, older, .. } = self;
        let (rows, older) =
            rows.into_iter().zip(older).filter_map(|(row, older)| row.map(|row| (row, older))).unzip();
        Ok(LoadedPage { loaded: Loaded { load, as_of, rows, upto, more }, older })
    }

    fn take(&mut self, (_, id): Cursor, answer: MemAnswer, is_older: bool) -> Result<(), ReadFault> {
        let row = match answer {
            MemAnswer::Row(row) => {
                self.bytes += row.weight();
                Some(row)
            }
            MemAnswer::Patch(patch) => {
                self.parts.push((self.rows.len(), id, patch));
                None
            }
            MemAnswer::Nothing | MemAnswer::Gone => return Ok(()),
        };
        self.rows.push(row);
        self.older.push(is_older);
        if self.parts.len() >= TOGETHER { self.read_parts() } else { Ok(()) }
    }

    fn read_parts(&mut self) -> Result<(), ReadFault> {
        let parts = std::mem::take(&mut self.parts);
        let mut ids: Vec<MessageId> = parts.iter().map(|(_, id, _)| *id).collect();
        ids.sort_unstable();
        ids.dedup();
        let finder = Finder::new(&self.request.view, self.readers, ReadPriority::Page);
        let found = finder.rows(&ids, HashMap::new())?;
        for (place, id, patch) in parts {
            let row = ids.binary_search(&id).ok().and_then(|i| found[i].clone());
            let mut row = row.ok_or_else(|| find::nowhere(id))?;
            patch.apply(&mut row);
            self.bytes += row.weight();
            self.rows[place] = Some(row);
        }
        Ok(())
    }
}

/// Visits the queue of each live message of a sequence.
pub(crate) fn for_each(
    view: &StoreView,
    sequence: Sequence,
    mut visit: impl FnMut(&QueueName),
) -> Result<(), ReadFault> {
    let view = Arc::new(view.clone());
    let mut older = OlderScan::new(view, sequence, Which::All, None, u64::MAX)?;
    while let Some(cursor) = older.peek() {
        let of_frozen = older.frozen.iter().find_map(|(_, _, head)| {
            let (at, queue) = head.as_ref()?;
            (*at == cursor).then(|| queue.clone())
        });
        let queue = match of_frozen {
            Some(queue) => queue,
            None => {
                let head = older.runs.iter().find_map(|(no, _, head)| {
                    let (at, row) = head.as_ref()?;
                    (*at == cursor).then_some((*no, row.queue))
                });
                let Some((no, queue)) = head else { break };
                older.view.parts[no].run.queues()[queue as usize].name.clone()
            }
        };
        visit(&queue);
        older.next()?;
    }
    Ok(())
}

/// The messages of a view in a sequence, in order; keeps its position.
struct OlderScan {
    view: Arc<StoreView>,
    sequence: Sequence,
    which: Which,
    /// Everything up to here has been returned.
    at: Option<Cursor>,
    /// The frozen memtables, oldest first, as in the view.
    frozen: Vec<(Arc<Mem>, MemScan, ScanHead<QueueName>)>,
    runs: Vec<(usize, RunScan, ScanHead<RawRow>)>,
}

/// The next message of a scan.
type ScanHead<T> = Option<(Cursor, T)>;

enum OlderRow {
    Frozen(MemAnswer),
    /// From the run at this position.
    Run(usize, RawRow),
}

impl OlderScan {
    fn new(
        view: Arc<StoreView>,
        sequence: Sequence,
        which: Which,
        after: Option<Cursor>,
        allowed: u64,
    ) -> Result<Self, ReadFault> {
        let scan = |mem: &Arc<Mem>| (Arc::clone(mem), mem.scan(sequence, &which, after), None);
        let frozen: Vec<_> = view.frozen.iter().map(scan).collect();
        let mut older = OlderScan { sequence, which, at: after, frozen, runs: Vec::new(), view };
        for i in 0..older.frozen.len() {
            older.step_frozen(i);
        }
        for (no, part) in older.view.parts.iter().enumerate() {
            let mut scan = part.run.scan(&part.live, sequence, &older.which, after, u64::MAX)?;
            scan.allow(allowed, after);
            older.runs.push((no, scan, None));
        }
        for i in 0..older.runs.len() {
            older.step_run(i)?;
        }
        Ok(older)
    }

    fn goes_on_with(&self, request: &LoadRequest) -> bool {
        let load = &request.load;
        Arc::ptr_eq(&self.view, &request.view)
            && self.sequence == load.sequence
            && self.which == load.which
            && load.after >= self.at
            && self.peek().is_none_or(|head| load.after < Some(head))
            && self.barrier().is_none_or(|barrier| load.after < Some(barrier))
    }

    /// Lets the runs that have paused read for another page.
    fn go_on(&mut self, request: &LoadRequest) -> Result<(), ReadFault> {
        for i in 0..self.runs.len() {
            let (_, scan, head) = &mut self.runs[i];
            scan.allow(allowed(request), request.load.after);
            if head.is_none() && scan.paused().is_some() {
                self.step_run(i)?;
            }
        }
        Ok(())
    }

    /// The position of the first run that has paused: before it every row is known.
    fn barrier(&self) -> Option<Cursor> {
        let stopped = self.runs.iter().filter(|(_, _, head)| head.is_none());
        stopped.filter_map(|(_, scan, _)| scan.paused()).min()
    }

    /// The position of the next message.
    fn peek(&self) -> Option<Cursor> {
        let frozen = self.frozen.iter().filter_map(|(_, _, head)| head.as_ref().map(|(cursor, _)| *cursor));
        let runs = self.runs.iter().filter_map(|(_, _, head)| head.as_ref().map(|(cursor, _)| *cursor));
        frozen.chain(runs).min()
    }

    fn next(&mut self) -> Result<Option<OlderRow>, ReadFault> {
        let Some(next) = self.peek() else { return Ok(None) };
        let is_next =
            |(_, _, head): &(_, _, ScanHead<QueueName>)| head.as_ref().is_some_and(|(c, _)| *c == next);
        if let Some(i) = self.frozen.iter().position(is_next) {
            let answer = self.frozen[i].0.told(next.1);
            self.step_frozen(i);
            return Ok(Some(OlderRow::Frozen(answer)));
        }
        let Some(i) =
            self.runs.iter().position(|(_, _, head)| head.as_ref().is_some_and(|(c, _)| *c == next))
        else {
            return Ok(None);
        };
        let row = self.runs[i].2.take().map(|(_, row)| OlderRow::Run(self.runs[i].0, row));
        self.step_run(i)?;
        Ok(row)
    }

    fn step_frozen(&mut self, i: usize) {
        let newer = &self.view.frozen[i + 1..];
        let (frozen, scan, head) = &mut self.frozen[i];
        *head = loop {
            match scan.step(frozen) {
                Some(ScanStep::Here((_, id), queue)) if newer.iter().any(|mem| mem.hides(id, &queue)) => {}
                Some(ScanStep::Here(cursor, queue)) => break Some((cursor, queue)),
                Some(ScanStep::Stale(_)) => {}
                None => break None,
            }
        };
    }

    fn step_run(&mut self, i: usize) -> Result<(), ReadFault> {
        let (no, scan, head) = &mut self.runs[i];
        let LiveRun { run, .. } = &self.view.parts[*no];
        *head = loop {
            let Some(row) = scan.next()? else { break None };
            if !self.view.frozen.is_empty() {
                let Some(queue) = run.queues().get(row.queue as usize) else {
                    let what = format!("{} has a row of a queue that it does not name", run.entry().no.run());
                    return Err(StoreError::new(ErrorKind::Corrupt, what).into());
                };
                if self.view.frozen.iter().any(|frozen| frozen.hides(row.id, &queue.name)) {
                    continue;
                }
            }
            let time = match (self.sequence, row.stands) {
                (Sequence::Leased, StageKind::Leased { until }) => until.0,
                (Sequence::Dead, StageKind::Dead { at }) => at.raw(),
                (
                    Sequence::At | Sequence::After | Sequence::AllAt | Sequence::AllAfter,
                    StageKind::Waiting | StageKind::Leased { .. } | StageKind::Dead { .. },
                ) => row.due.raw(),
                (Sequence::Leased | Sequence::Dead, _) => continue,
            };
            break Some(((time, row.id), row));
        };
        Ok(())
    }
}

// The look-ups that are fetched outside the owner's thread.

/// Look-ups that wait to be fetched, and the tickets of those that are.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    asked: Mutex<VecDeque<(u64, Lookups)>>,
    done: Mutex<VecDeque<u64>>,
}

impl Fetches {
    pub(crate) fn ask(&self, ticket: u64, lookups: Lookups) {
        lock(&self.asked).push_back((ticket, lookups));
    }

    /// The look-up that was asked for first.
    pub(crate) fn next(&self) -> Option<(u64, Lookups)> {
        lock(&self.asked).pop_front()
    }

    /// A look-up was fetched, well or not.
    pub(crate) fn end(&self, ticket: u64) {
        lock(&self.done).push_back(ticket);
    }

    /// The ticket of a look-up that was fetched.
    pub(crate) fn done(&self) -> Option<u64> {
        lock(&self.done).pop_front()
    }
}
