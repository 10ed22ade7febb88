//! The history of queues: events are counted in the open window of their queue; a window that ends becomes a point of
//! ten seconds in memory, and is added to the open five minutes, which are stored for all queues together.
//!
//! A window ends when the first event of a later one comes, or when five minutes are stored, so a queue without events
//! costs nothing. The points are stored as dead messages of the queue `#history`, whose bodies are
//!
//! ```text
//!   version (1)  entry …        an entry: length, length of the name, name, then nothing: the queue was removed,
//!                               or number of the five minutes, point
//! ```
//!
//! The name of the whole shard is empty. Points of the same five minutes add up, and readers skip what follows a point.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use crate::history::{HistoryPoint, HistoryStep, LatenessCounts, QueueDepth, QueueHistory};
use crate::id::{MessageId, ReplyTo};
use crate::message::{DeadReason, Life, MessageContent, Options, Row, Stage};
use crate::name::QueueName;
use crate::record::{DecodeError, Record, Totals, Writer, varint};
use crate::store::{Capacity, Sequence, Which};
use crate::time::{Due, EngineMs, Now, WallMs};

use super::Engine;
use super::question::Want;
use super::reply::{Counts, Rates};
use super::rows::QueueIdx;

use HistoryStep::{FiveMinutes, TenSeconds};

/// Largest size of the points of one queue in memory, in bytes: 16 KiB with what else it takes.
const MAX_BYTES: usize = 14 * 1024;
/// A stored record of points has about this size, in bytes.
const RECORD_BYTES: usize = 256 * 1024;
/// The number of records of points in a page.
const PAGE: usize = 64;
/// Largest number of steps of an answer.
const MAX_STEPS: u64 = 600;
/// The first byte of a record of points.
const VERSION: u8 = 1;

/// Counts of the present window of ten seconds, and of the one before it.
#[derive(Debug, Default)]
pub(super) struct OpenWindow {
    number: u64,
    is_open: bool,
    /// Whether its queue is among [`Histories::changed`].
    is_listed: bool,
    events: [u32; 4],
    before: [u32; 4],
    late: LatenessCounts,
}

impl OpenWindow {
    fn is_at(&self, number: u64) -> bool {
        self.is_open && self.number == number
    }

    fn begin(&mut self, number: u64) {
        if self.number != number {
            self.before = if self.number + 1 == number { self.events } else { [0; 4] };
            (self.number, self.late) = (number, LatenessCounts::default());
        }
        (self.events, self.is_open) = ([0; 4], true);
    }

    fn add(&mut self, events: [u32; 4]) {
        self.events.iter_mut().zip(events).for_each(|(sum, n)| *sum = sum.saturating_add(n));
    }

    fn end(&mut self, depth: QueueDepth) -> HistoryPoint {
        self.is_open = false;
        HistoryPoint { late: mem::take(&mut self.late), ..self.point(depth) }
    }

    fn point(&self, depth: QueueDepth) -> HistoryPoint {
        HistoryPoint { events: self.events.map(u64::from), depth: Some(depth), late: self.late.clone() }
    }

    /// Events per second × 1000: this window, and as much of the previous one as makes ten seconds.
    pub(super) fn rates(&self, now: Now) -> Rates {
        let number = TenSeconds.at(now.wall);
        let (events, before) = match number.checked_sub(self.number) {
            Some(0) => (self.events, self.before),
            Some(1) => ([0; 4], self.events),
            _ => ([0; 4], [0; 4]),
        };
        let into = now.wall.0 % TenSeconds.ms();
        let milli = |at: usize| {
            let weighted =
                u64::from(before[at]) * (TenSeconds.ms() - into) + u64::from(events[at]) * TenSeconds.ms();
            weighted * 1_000 / TenSeconds.ms() / (TenSeconds.ms() / 1_000)
        };
        Rates { enqueued_milli: milli(0), granted_milli: milli(1), acked_milli: milli(2) }
    }
}

/// The points of one queue in memory.
#[derive(Debug, Default)]
struct RecentPoints {
    /// The points before the last one: each has its distance from the one before it, in windows.
    bytes: Vec<u8>,
    /// The windows from which the first distance counts, and the next one.
    ends: [u64; 2],
    /// The messages after the points that are gone.
    depth: Option<QueueDepth>,
    last: Option<(u64, HistoryPoint)>,
    /// The point that is not stored yet, with the number of its five minutes.
    open: Option<(u64, HistoryPoint)>,
    /// The last window whose point was given up for a bound.
    lost: u64,
    /// Bytes that it counts in [`Histories::bytes`].
    charged: usize,
}

impl RecentPoints {
    fn push(&mut self, number: u64, point: HistoryPoint) {
        match &mut self.open {
            Some((_, open)) => open.follow(&point),
            None => self.open = Some((number * TenSeconds.ms() / FiveMinutes.ms(), point.clone())),
        }
        match &mut self.last {
            Some((last, sum)) if *last == number => return sum.follow(&point),
            // The clock was set back: points of a time to come are of no use.
            Some((last, _)) if *last > number => {
                *self = RecentPoints { open: self.open.take(), charged: self.charged, ..Self::default() };
            }
            Some(_) | None => {}
        }
        if let Some((last, before)) = self.last.replace((number, point)) {
            if self.bytes.is_empty() {
                self.ends = [last; 2];
            }
            let mut to = Writer::default();
            to.varint(last - self.ends[1]);
            before.write(&mut to);
            self.bytes.reserve_exact(to.bytes.len());
            self.bytes.extend_from_slice(&to.bytes);
            self.ends[1] = last;
        }
        let oldest = number.saturating_sub(TenSeconds.kept_ms() / TenSeconds.ms());
        while let Some((first, point, rest)) = self.first()
            && (first < oldest || self.bytes.len() > MAX_BYTES)
        {
            if first >= oldest {
                self.lost = first;
            }
            self.bytes.drain(..self.bytes.len() - rest);
            (self.ends[0], self.depth) = (first, point.depth);
        }
    }

    /// The first point in `bytes`, and the size of those behind it.
    fn first(&self) -> Option<(u64, HistoryPoint, usize)> {
        let mut rest = self.bytes.as_slice();
        let distance = varint(&mut rest).ok()?;
        Some((self.ends[0] + distance, HistoryPoint::read(&mut rest).ok()?, rest.len()))
    }

    fn all(&self) -> BTreeMap<u64, HistoryPoint> {
        let (mut rest, mut number) = (self.bytes.as_slice(), self.ends[0]);
        let mut all = BTreeMap::new();
        while let Ok(distance) = varint(&mut rest)
            && let Ok(point) = HistoryPoint::read(&mut rest)
        {
            number += distance;
            all.insert(number, point);
        }
        all.extend(self.last.clone());
        all
    }

    /// Gives up the points of ten seconds.
    fn forget(&mut self) {
        self.lost = self.last.take().map_or(self.lost, |(last, _)| last);
        self.bytes = Vec::new();
    }

    fn size(&self, name: &QueueName) -> usize {
        let late =
            |point: &Option<(u64, HistoryPoint)>| point.as_ref().map_or(0, |(_, point)| point.late.bytes());
        OF_A_QUEUE + name.as_str().len() + self.bytes.capacity() + late(&self.last) + late(&self.open)
    }
}

/// Memory that the points of a queue take besides their bytes, with their places in two lists.
const OF_A_QUEUE: usize = size_of::<RecentPoints>() + 160;

/// The points of all queues.
#[derive(Debug, Default)]
pub(super) struct Histories {
    /// When the engine was made.
    began: WallMs,
    /// Whether there were stored points then.
    has_past: bool,
    /// The window of the whole shard, and its points.
    pub(super) window: OpenWindow,
    whole: RecentPoints,
    queues: BTreeMap<QueueName, RecentPoints>,
    /// Queues with points of ten seconds, by the last window of each.
    order: BTreeSet<(u64, QueueName)>,
    /// Approximate memory of `queues`, in bytes.
    bytes: usize,
    /// The last window of which a queue gave its points up for the bound of all.
    lost: u64,
    /// Queues with events since the points were last stored, and the number of the five minutes of the first of them.
    changed: Vec<QueueName>,
    five: u64,
    /// Those of them whose points are being stored.
    storing: Vec<QueueName>,
}

impl Histories {
    pub(super) fn new(now: Now, has_past: bool) -> Self {
        Histories { began: now.wall, has_past, ..Self::default() }
    }

    fn list(&mut self, now: Now, name: QueueName) {
        if self.changed.is_empty() {
            self.five = FiveMinutes.at(now.wall);
        }
        self.changed.push(name);
    }

    fn push(&mut self, name: &QueueName, number: u64, point: HistoryPoint, max: usize) {
        let lost = self.lost;
        let points =
            self.queues.entry(name.clone()).or_insert_with(|| RecentPoints { lost, ..Default::default() });
        if let Some((last, _)) = points.last {
            self.order.remove(&(last, name.clone()));
        }
        points.push(number, point);
        self.order.insert((number, name.clone()));
        self.charge(name);
        while self.bytes > max
            && let Some((last, name)) = self.order.pop_first()
        {
            self.lost = self.lost.max(last);
            self.forget(&name);
        }
    }

    /// Gives up the points of ten seconds of a queue that is no longer in `order`.
    fn forget(&mut self, name: &QueueName) {
        if let Some(points) = self.queues.get_mut(name) {
            points.forget();
            self.charge(name);
        }
    }

    /// Counts the memory of a queue anew, which is forgotten if it has no points.
    fn charge(&mut self, name: &QueueName) {
        let Some(points) = self.queues.get_mut(name) else { return };
        let size = points.size(name);
        self.bytes = self.bytes - mem::replace(&mut points.charged, size) + size;
        if points.last.is_none() && points.open.is_none() {
            self.remove(name);
        }
    }

    fn remove(&mut self, name: &QueueName) {
        if let Some(points) = self.queues.remove(name) {
            self.bytes -= points.charged;
            if let Some((last, _)) = points.last {
                self.order.remove(&(last, name.clone()));
            }
        }
    }

    /// Forgets the points of ten seconds that are too old.
    fn forget_old(&mut self, now: Now) {
        let oldest = TenSeconds.at(now.wall).saturating_sub(TenSeconds.kept_ms() / TenSeconds.ms());
        while self.order.first().is_some_and(|(last, _)| *last < oldest)
            && let Some((_, name)) = self.order.pop_first()
        {
            let lost = self.queues.get(&name).map_or(0, |points| points.lost);
            self.forget(&name);
            if let Some(points) = self.queues.get_mut(&name) {
                points.lost = lost;
            }
        }
    }

    /// Whether points must be stored: five minutes are over, or those that wait for that take too much memory.
    fn is_due(&self, now: Now, max: usize) -> bool {
        let is_over = self.bytes > max || FiveMinutes.at(now.wall) != self.five;
        !self.storing.is_empty() || !self.changed.is_empty() && is_over
    }
}

/// A request for a history, and what was found so far.
#[derive(Debug)]
pub(super) struct HistoryRequest {
    queue: Option<QueueName>,
    step: HistoryStep,
    /// The number of the first step, and the number behind the last one.
    steps: [u64; 2],
    /// Records from this one on hold what is in `open`.
    before: MessageId,
    /// Points that are in memory alone.
    open: BTreeMap<u64, HistoryPoint>,
    stored: BTreeMap<u64, HistoryPoint>,
    /// The first step of which anything is known, and the first one that is stored.
    known: u64,
    oldest: u64,
}

impl Engine {
    fn keeps_history(&self) -> bool {
        self.policy.max_history_bytes > 0
    }

    /// Begins the present window of a queue; called before anything of the queue changes.
    #[inline]
    pub(super) fn turn_window(&mut self, idx: QueueIdx) {
        let number = TenSeconds.at(self.now.wall);
        let is_whole_at = !self.keeps_history() || self.histories.window.is_at(number);
        if !is_whole_at || !self.queues.get(idx).window.is_at(number) {
            self.begin_window(idx, number);
        }
    }

    fn begin_window(&mut self, idx: QueueIdx, number: u64) {
        let queue = self.queues.get(idx);
        if queue.name.is_system() {
            return;
        }
        if self.keeps_history() {
            let name = queue.name.clone();
            self.end_window(idx);
            if !self.histories.window.is_at(number) {
                self.end_whole_window();
                self.histories.window.begin(number);
            }
            if !mem::replace(&mut self.queues.get_mut(idx).window.is_listed, true) {
                self.histories.list(self.now, name);
            }
        }
        self.queues.get_mut(idx).window.begin(number);
    }

    /// Makes a point of the open window of a queue, if it has one.
    pub(super) fn end_window(&mut self, idx: QueueIdx) {
        let queue = self.queues.get(idx);
        if !self.keeps_history() || !queue.window.is_open {
            return;
        }
        let depth = depth(self.counts(self.now, queue));
        let queue = self.queues.get_mut(idx);
        let (number, point, name) = (queue.window.number, queue.window.end(depth), queue.name.clone());
        self.histories.push(&name, number, point, self.policy.max_history_bytes);
    }

    fn end_whole_window(&mut self) {
        if self.histories.window.is_open {
            let depth = depth(self.stats(self.now).counts);
            let point = self.histories.window.end(depth);
            self.histories.whole.push(self.histories.window.number, point);
        }
    }

    /// Approximate memory of the points of all queues, in bytes.
    pub fn history_bytes(&self) -> usize {
        self.histories.bytes
    }

    /// Counts the events of a record.
    pub(super) fn count_events(&mut self, idx: QueueIdx, before: &Totals) {
        let queue = self.queues.get_mut(idx);
        if queue.window.is_open {
            let since = queue.totals.since(before);
            let events = [since.enqueued, since.granted, since.acked, since.died];
            let events = events.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
            queue.window.add(events);
            self.histories.window.add(events);
        }
    }

    /// Counts the lateness of a first grant.
    pub(super) fn count_late(&mut self, idx: QueueIdx, lateness_ms: u64) {
        let queue = self.queues.get_mut(idx);
        if self.policy.max_history_bytes > 0 && queue.window.is_open {
            queue.window.late.count(lateness_ms);
            self.histories.window.late.count(lateness_ms);
        }
    }

    /// When points are stored next.
    pub(super) fn next_points(&self) -> Option<EngineMs> {
        let histories = &self.histories;
        if self.room != Capacity::Enough || histories.changed.is_empty() && histories.storing.is_empty() {
            return None;
        }
        let end = WallMs((histories.five + 1).saturating_mul(FiveMinutes.ms()));
        Some(self.now.engine_of_wall(end).max(self.now.engine))
    }

    /// Stores the points of five minutes, of a bounded number of queues a step. Without room in the store they wait.
    pub(super) fn store_points(&mut self) {
        let max = self.policy.max_history_bytes;
        if !self.histories.is_due(self.now, max) || self.room != Capacity::Enough {
            return;
        }
        let mut record = Writer { bytes: vec![VERSION] };
        if self.histories.storing.is_empty() {
            self.histories.storing = mem::take(&mut self.histories.changed);
            self.end_whole_window();
            let open = self.histories.whole.open.take();
            open.iter().for_each(|open| write_entry(&mut record, "", Some(open)));
        }
        for _ in 0..self.policy.max_step {
            if record.bytes.len() >= RECORD_BYTES {
                break;
            }
            let Some(name) = self.histories.storing.pop() else { break };
            if let Some(idx) = self.queues.find(&name) {
                self.end_window(idx);
                self.queues.get_mut(idx).window.is_listed = false;
            }
            let points = self.histories.queues.get_mut(&name);
            let open = points.and_then(|points| points.open.take());
            if open.is_some() {
                write_entry(&mut record, name.as_str(), open.as_ref());
                self.histories.charge(&name);
            }
        }
        if record.bytes.len() > 1 {
            self.put_points(record);
        }
        if self.histories.storing.is_empty() {
            self.histories.forget_old(self.now);
        } else {
            self.unfinished = true;
        }
    }

    fn put_points(&mut self, record: Writer) {
        let id = MessageId(self.next_id);
        self.next_id = self.ids.after(self.next_id);
        let message = Arc::new(MessageContent {
            id,
            queue: QueueName::history(),
            key: None,
            body: record.bytes.into(),
            headers: Vec::new(),
            options: Options::default(),
            dedupe_id: None,
            enqueued_at: self.now.wall,
        });
        let at = self.dies();
        let stage = Stage::Dead { reason: DeadReason::Buried, at, token: None };
        let life = Life { stage, ..Life::new(Due::At(self.now.wall), None) };
        let record = Record::Put { message: message.clone(), life: life.clone(), was: None };
        let idx = self.queues.find_or_make(&message.queue);
        self.count(idx, &record);
        let lsn = self.append(record);
        if self.has_too_many_points(idx) {
            self.check_dead_at(self.now.engine, idx);
        } else {
            self.plan_dead_check(idx, at);
        }
        self.fresh.push(message, life, lsn);
    }

    /// Whether a queue has stored points, and more of them than allowed.
    pub(super) fn has_too_many_points(&self, idx: QueueIdx) -> bool {
        let queue = self.queues.get(idx);
        queue.name.is_history() && queue.tally.weight() > self.policy.max_history_bytes as u64
    }

    /// Forgets the history of a queue.
    pub(super) fn erase_history(&mut self, name: &QueueName) {
        self.histories.remove(name);
        if let Some(idx) = self.queues.find(name) {
            let is_listed = self.queues.get(idx).window.is_listed;
            self.queues.get_mut(idx).window = OpenWindow { is_listed, ..OpenWindow::default() };
        }
        if self.queues.find(&QueueName::history()).is_some() {
            let mut record = Writer { bytes: vec![VERSION] };
            write_entry(&mut record, name.as_str(), None);
            self.put_points(record);
        }
    }
}

fn write_entry(to: &mut Writer, name: &str, open: Option<&(u64, HistoryPoint)>) {
    to.with_length(|to| {
        to.blob(name.as_bytes());
        if let Some((five, point)) = open {
            to.varint(*five);
            point.write(to);
        }
    });
}

fn depth(counts: Counts) -> QueueDepth {
    let Counts { scheduled, ready, leased, .. } = counts;
    QueueDepth { ready, pending: scheduled + ready + leased }
}

impl Engine {
    /// The history of a queue, or of the whole shard.
    pub(super) fn history(
        &mut self,
        to: ReplyTo,
        queue: Option<QueueName>,
        [from, until]: [WallMs; 2],
        step: HistoryStep,
    ) {
        let first = step.at(from);
        let behind = step.at(WallMs(until.0.saturating_sub(1))).saturating_add(1);
        let mut request = HistoryRequest {
            step,
            steps: [first, behind.clamp(first, first.saturating_add(MAX_STEPS))],
            before: MessageId(self.next_id),
            open: BTreeMap::new(),
            stored: BTreeMap::new(),
            known: step.at(self.histories.began),
            oldest: u64::MAX,
            queue,
        };
        let points = match &request.queue {
            None => Some(&self.histories.whole),
            Some(name) => self.histories.queues.get(name),
        };
        let window = match &request.queue {
            None => Some((&self.histories.window, self.stats(self.now).counts)),
            Some(name) => self.queues.find(name).map(|idx| {
                let queue = self.queues.get(idx);
                (&queue.window, self.counts(self.now, queue))
            }),
        };
        let depth = window.map(|(_, counts)| depth(counts)).unwrap_or_default();
        let open = window.filter(|(window, _)| window.is_open);
        let open = open.map(|(window, _)| (window.number * TenSeconds.ms(), window.point(depth)));
        match step {
            TenSeconds => {
                let before = points.and_then(|points| points.depth);
                let lost = points.map_or(self.histories.lost, |points| points.lost);
                let complete = lost < first;
                request.open = points.map(RecentPoints::all).unwrap_or_default();
                request.take_open(open);
                let is_past = self.histories.has_past && first < request.known;
                let answer = QueueHistory {
                    reaches_back: complete && !is_past,
                    ..request.answer(self.now, before, depth, complete)
                };
                self.respond(to, answer.into());
            }
            FiveMinutes => {
                request.open = points.and_then(|points| points.open.clone()).into_iter().collect();
                request.take_open(open);
                let name = QueueName::history();
                let load = self.page(Sequence::Dead, Which::One(name.clone()), None, PAGE);
                self.gather(to, &name, Want::History(Box::new(request)), vec![load]);
            }
        }
    }

    /// Answers once all stored points were read.
    pub(super) fn finish_history(&mut self, to: ReplyTo, mut request: HistoryRequest) {
        let depth = match &request.queue {
            None => depth(self.stats(self.now).counts),
            Some(name) => {
                let queue = self.queues.find(name).map(|idx| self.queues.get(idx));
                queue.map_or(QueueDepth::default(), |queue| depth(self.counts(self.now, queue)))
            }
        };
        let bytes =
            self.queues.find(&QueueName::history()).map_or(0, |idx| self.queues.get(idx).tally.weight());
        // The oldest are given up page by page, so there may be less than the bound.
        let is_at_bound = bytes > self.policy.max_history_bytes as u64 / 8 * 7;
        let complete = !is_at_bound || request.oldest <= request.steps[0];
        request.known = if is_at_bound { request.oldest } else { request.known.min(request.oldest) };
        for (five, point) in mem::take(&mut request.stored) {
            let open = request.open.remove(&five);
            let sum = request.open.entry(five).or_insert(point);
            open.iter().for_each(|open| sum.follow(open));
        }
        let answer = request.answer(self.now, None, depth, complete);
        self.respond(to, answer.into());
    }
}

impl HistoryRequest {
    /// Adds the open window, which begins at an instant.
    fn take_open(&mut self, open: Option<(u64, HistoryPoint)>) {
        if let Some((at, point)) = open {
            self.open.entry(self.step.at(WallMs(at))).or_default().follow(&point);
        }
    }

    /// Takes stored points. Records of another version are left out.
    pub(super) fn take(&mut self, row: &Row) {
        if row.message.id < self.before
            && let Some((&VERSION, mut rest)) = row.message.body.split_first()
        {
            while !rest.is_empty() && self.take_entry(&mut rest).is_ok() {}
        }
    }

    fn take_entry(&mut self, rest: &mut &[u8]) -> Result<(), DecodeError> {
        let mut entry = blob(rest)?;
        let name = blob(&mut entry)?;
        let is_wanted = name == self.queue.as_ref().map_or("", QueueName::as_str).as_bytes();
        if entry.is_empty() {
            if is_wanted {
                self.stored.clear();
            }
            return Ok(());
        }
        let five = varint(&mut entry)?;
        self.oldest = self.oldest.min(five);
        if is_wanted {
            self.stored.entry(five).or_default().follow(&HistoryPoint::read(&mut entry)?);
        }
        Ok(())
    }

    /// All steps in order. A step without a point had no events, and leaves as many messages as the one before it.
    fn answer(
        &self,
        now: Now,
        before: Option<QueueDepth>,
        present: QueueDepth,
        complete: bool,
    ) -> QueueHistory {
        let [first, behind] = self.steps;
        let earlier = self.open.range(..first).next_back().and_then(|(_, point)| point.depth);
        // Without any event there are as many as ever.
        let mut depth = earlier.or(before).or(self.open.is_empty().then_some(present));
        let point = |number: u64| {
            if let Some(point) = self.open.get(&number) {
                depth = point.depth;
                return Some(point.clone());
            }
            let is_known = number >= self.known && number <= self.step.at(now.wall);
            is_known.then(|| HistoryPoint { depth, ..HistoryPoint::default() })
        };
        QueueHistory {
            from: WallMs(first.saturating_mul(self.step.ms())),
            step: self.step,
            points: (first..behind).map(point).collect(),
            reaches_back: true,
            complete,
        }
    }
}

fn blob<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let length = usize::try_from(varint(bytes)?).map_err(|_| DecodeError::Short)?;
    let (blob, rest) = bytes.split_at_checked(length).ok_or(DecodeError::Short)?;
    *bytes = rest;
    Ok(blob)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: usize = 32 * 1024 * 1024;

    fn point(n: u64) -> HistoryPoint {
        let mut late = LatenessCounts::default();
        (0..40).for_each(|k| late.count(k * k * k));
        HistoryPoint { events: [n; 4], depth: Some(QueueDepth { ready: n, pending: n }), late }
    }

    /// Ten thousand active queues take what they may take together, and the one that was idle gives its points up.
    #[test]
    fn ten_thousand_queues_keep_to_their_bound() {
        let mut histories = Histories::new(Now::whole(0, 0), false);
        let names: Vec<QueueName> =
            (0..10_000).map(|n| QueueName::new(&format!("shop/mail-{n}")).unwrap()).collect();
        histories.push(&names[0], 1, point(7), BOUND);
        for number in 2..51 {
            for name in &names[1..] {
                histories.push(name, number, point(1_000), BOUND);
            }
            assert!(histories.bytes <= BOUND, "{}", histories.bytes);
        }
        assert!(histories.bytes > BOUND / 10 * 9);
        let idle = &histories.queues[&names[0]];
        assert!(idle.all().is_empty() && idle.last.is_none());
        assert_eq!(idle.lost, 1, "the number of the window that it lost");
        assert_eq!(idle.open.as_ref().map(|(_, open)| open.events[0]), Some(7), "that of five minutes stays");
        let last = &histories.queues[&names[9_999]];
        assert_eq!(last.all().len(), 49);
    }

    #[test]
    fn one_queue_keeps_an_hour_within_its_bound() {
        let mut points = RecentPoints::default();
        for number in 1_000..2_000 {
            let depth = Some(QueueDepth { ready: number, pending: 1_000_000 });
            let mut late = LatenessCounts::default();
            [0, 1, 2, 2, 3].into_iter().for_each(|ms| late.count(ms));
            points.push(number, HistoryPoint { events: [50_000, 50_000, 50_000, 3], depth, late });
        }
        assert_eq!((points.all().len(), points.lost), (361, 0));
        assert!(points.size(&QueueName::history()) <= 16 * 1024);
        for number in 2_000..2_400 {
            points.push(number, point(1 << 40));
        }
        assert!(points.all().len() < 361 && points.lost > 2_000, "{}", points.all().len());
        assert!(points.size(&QueueName::history()) <= 16 * 1024);
    }
}
