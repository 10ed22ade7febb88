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

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use crate::history::{HistoryStep, QueueDepth, QueueHistory};
use crate::id::{MessageId, ReplyTo};
use crate::message::{DeadReason, Life, MessageContent, Options, Stage};
use crate::name::QueueName;
use crate::record::{Record, Totals, Writer};
use crate::store::{Capacity, Sequence, Which};
use crate::time::{Due, EngineMs, WallMs};

use super::Engine;
use super::points::{
    HistoryRequest, MAX_STEPS, OpenWindow, PAGE, RECORD_BYTES, RecentPoints, VERSION, depth, write_entry,
};
use super::question::Want;
use super::reply::Reply;
use super::rows::QueueIdx;

use HistoryStep::{FiveMinutes, TenSeconds};

impl From<QueueHistory> for Reply {
    fn from(history: QueueHistory) -> Self {
        Reply::History(Box::new(history))
    }
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
            // A queue that went and came back is listed already if its points wait to be stored.
            let waits = self.histories.queues.get(&name).is_some_and(|points| points.open.is_some());
            if !mem::replace(&mut self.queues.get_mut(idx).window.is_listed, true) && !waits {
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
        let histories = &self.histories;
        let listed = histories.changed.len() + histories.storing.len();
        let again = listed.saturating_sub(histories.queues.len());
        histories.bytes + again * size_of::<QueueName>()
    }

    /// Counts the events of a record.
    pub(super) fn count_events(&mut self, idx: QueueIdx, before: &Totals) {
        let queue = self.queues.get_mut(idx);
        if queue.window.is_open {
            let since = queue.totals.since(before);
            let events = [since.enqueued, since.granted, since.settled(), since.died, since.acked];
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

    /// Forgets the history of a queue. A full store keeps what it has stored, for its time.
    pub(super) fn erase_history(&mut self, name: &QueueName) {
        self.histories.remove(name);
        if let Some(idx) = self.queues.find(name) {
            let is_listed = self.queues.get(idx).window.is_listed;
            self.queues.get_mut(idx).window = OpenWindow { is_listed, ..OpenWindow::default() };
        }
        if self.takes_puts() && self.queues.find(&QueueName::history()).is_some() {
            let mut record = Writer { bytes: vec![VERSION] };
            write_entry(&mut record, name.as_str(), None);
            self.put_points(record);
        }
    }
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
