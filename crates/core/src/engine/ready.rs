//! Memory for ready messages: the share of each queue, the queue that gives memory back, and the next backlog to load.
//!
//! While all ready messages fit into `ready_messages` and `ready_bytes`, all of them are in memory, whatever queue they
//! are in. Demand decides about those that do not fit. A queue is *in demand* while a reserve waits on it, and for
//! `demand_ms` after the last one:
//!
//! | memory is full, and a message becomes ready in a queue | what happens |
//! |---|---|
//! | without demand | the message stays in the store, unless it precedes one of its queue that is in memory |
//! | in demand | the last message of the largest queue without demand leaves memory; if there is none, that of the largest queue in demand, if it holds more than twice as much |
//! | where a reserve waits and nothing is in memory | the message is taken into memory: it is granted in the same step |
//!
//! A message that leaves memory belongs to its queue's backlog. Backlogs are loaded in two orders: first those of
//! queues in demand that have little in memory, then the others, as long as less than half of the memory is in use. A
//! queue is added when something happens to it, so a step costs nothing for queues that wait.

use std::collections::BTreeSet;

use crate::id::MessageId;
use crate::message::Kind;
use crate::mutant::{self, Mutant};
use crate::time::EngineMs;

use super::Engine;
use super::queue::{HasDemand, LoadOrder};
use super::rows::{GrantRank, QueueIdx};

/// The end of a queue's demand may be noted late by this time, in ms, so that not each reserve moves it.
const DEMAND_GRAIN_MS: u64 = 1_000;

/// Rows, and bytes of bodies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amount {
    pub(super) rows: usize,
    pub(super) bytes: u64,
}

impl Engine {
    /// Number of queues examined so far to serve waiting consumers or to load more messages: the cost of many queues,
    /// for tests.
    #[doc(hidden)]
    pub fn visited(&self) -> u64 {
        self.ready.visited
    }

    /// Number of ready messages in memory.
    pub(super) fn ready_here(&self) -> u64 {
        self.ready.rows as u64
    }

    pub(super) fn note_visit(&mut self) {
        self.ready.visited += 1;
    }

    /// Counts a message that has become ready in memory.
    pub(super) fn count_ready(&mut self, idx: QueueIdx, weight: u64) {
        self.ready.rows += 1;
        self.ready.weight += weight;
        self.weigh(idx);
    }

    /// Counts messages that are no longer ready in memory.
    pub(super) fn uncount_ready(&mut self, idx: QueueIdx, rows: usize, weight: u64) {
        self.ready.rows -= rows;
        self.ready.weight -= weight;
        self.weigh(idx);
    }

    /// Updates a queue's position among the holders of memory.
    fn weigh(&mut self, idx: QueueIdx) {
        let magnitude = match self.load_of(idx) {
            0 => None,
            load => Some(load.ilog2()),
        };
        let share = &mut self.queues.get_mut(idx).share;
        if share.magnitude == magnitude {
            return;
        }
        let holders = &mut self.ready.holders[share.demand as usize];
        if let Some(old) = std::mem::replace(&mut share.magnitude, magnitude) {
            holders.remove(&(old, idx));
        }
        holders.extend(magnitude.map(|magnitude| (magnitude, idx)));
    }

    /// The load of a queue, rows and bytes in one number: a row counts as much as its part of the bytes.
    fn load_of(&self, idx: QueueIdx) -> u64 {
        let queue = self.queues.get(idx);
        queue.ready_weight + queue.ready.len() as u64 * self.bytes_of_a_row()
    }

    fn bytes_of_a_row(&self) -> u64 {
        (self.policy.ready_bytes / self.policy.ready_messages.max(1)).max(1) as u64
    }

    /// Notes that a reserve names the queue, or that a reserve which waited there leaves.
    pub(super) fn note_demand(&mut self, idx: QueueIdx) {
        let end = EngineMs(self.now.engine.0.saturating_add(self.policy.demand_ms));
        let share = &mut self.queues.get_mut(idx).share;
        if share.ends.is_some_and(|ends| end.0 - ends.0.min(end.0) < DEMAND_GRAIN_MS) {
            return;
        }
        if let Some(old) = share.ends.replace(end) {
            self.ready.ends.remove(&(old, idx));
        }
        self.ready.ends.insert((end, idx));
        self.set_demand(idx, HasDemand::Yes);
    }

    /// Ends the demand of queues from which no consumer has reserved for a while.
    pub(super) fn end_demand(&mut self) {
        for _ in 0..self.policy.max_step {
            let Some(&(end, idx)) = self.ready.ends.first().filter(|(end, _)| *end <= self.now.engine) else {
                return;
            };
            self.ready.ends.remove(&(end, idx));
            let queue = self.queues.get_mut(idx);
            queue.share.ends = None;
            // A waiting reserve keeps the demand up, and its end is noted when it leaves.
            if queue.waiters.is_empty() {
                self.set_demand(idx, HasDemand::No);
            }
        }
    }

    fn set_demand(&mut self, idx: QueueIdx, demand: HasDemand) {
        let share = &mut self.queues.get_mut(idx).share;
        let old = std::mem::replace(&mut share.demand, demand);
        if old == demand {
            return;
        }
        if let Some(magnitude) = share.magnitude {
            self.ready.holders[old as usize].remove(&(magnitude, idx));
            self.ready.holders[demand as usize].insert((magnitude, idx));
        }
        self.note_hunger(idx);
    }

    /// Forgets a queue that is about to vanish.
    pub(super) fn forget_share(&mut self, idx: QueueIdx) {
        let share = std::mem::take(&mut self.queues.get_mut(idx).share);
        self.ready.busy -= usize::from(share.is_busy);
        if let Some(end) = share.ends {
            self.ready.ends.remove(&(end, idx));
        }
        if let Some((load_order, place)) = share.load_order {
            self.ready.to_load[load_order as usize].remove(&(place, idx));
        }
        if let Some(magnitude) = share.magnitude {
            self.ready.holders[share.demand as usize].remove(&(magnitude, idx));
        }
    }

    fn has_ready_room(&self) -> bool {
        let (rows, bytes) = (self.policy.ready_messages.max(1), self.policy.ready_bytes.max(1) as u64);
        self.ready.rows < rows && self.ready.weight < bytes
    }

    /// Whether a message of the queue that becomes ready is granted before the step ends, so that it needs no memory
    /// for ready messages.
    fn is_granted_at_once(&self, idx: QueueIdx) -> bool {
        let queue = self.queues.get(idx);
        queue.ready.is_empty()
            && !queue.waiters.is_empty()
            && !queue.is_paused(self.now)
            && self.may_lease(idx)
    }

    /// The queue whose last ready message leaves memory for one of this queue.
    fn queue_to_evict_from(&self, idx: QueueIdx) -> Option<QueueIdx> {
        if self.queues.get(idx).share.demand == HasDemand::No {
            return None;
        }
        let [idle, served] = &self.ready.holders;
        if let Some(&(_, largest)) = idle.last() {
            return Some(largest);
        }
        let &(_, largest) = served.last()?;
        let enough = self.load_of(idx).max(self.bytes_of_a_row()).saturating_mul(2);
        (largest != idx && self.load_of(largest) > enough).then_some(largest)
    }

    /// Whether there would be memory for a message of the queue, as far as that is known without the message.
    fn finds_room(&self, idx: QueueIdx) -> bool {
        self.has_ready_room() || self.is_granted_at_once(idx) || self.queue_to_evict_from(idx).is_some()
    }

    /// Makes room for one ready message of a queue. Returns whether there is any. The message is not counted yet.
    pub(super) fn make_room_for_ready(&mut self, idx: QueueIdx, place: (GrantRank, MessageId)) -> bool {
        if mutant::is(Mutant::WindowByQueues) {
            let queues = self.ready.holders.iter().map(BTreeSet::len).sum::<usize>().max(1);
            let window = (self.policy.ready_messages / queues).max(self.policy.least_window);
            if self.queues.get(idx).ready.len() >= window {
                return false;
            }
        }
        while !self.has_ready_room() {
            if self.is_granted_at_once(idx) {
                break;
            }
            let last = self.queues.get(idx).ready.last_key_value();
            let precedes = last.is_some_and(|(last, _)| place < *last);
            match self.queue_to_evict_from(idx) {
                Some(other) => self.evict_last(other),
                None if precedes => self.evict_last(idx),
                None => return false,
            }
        }
        true
    }

    /// Removes the last ready message of a queue from memory.
    fn evict_last(&mut self, idx: QueueIdx) {
        let Some((_, &slot)) = self.queues.get(idx).ready.last_key_value() else { return };
        self.take_out(slot);
        self.leave_to_store(slot);
        self.keep_out(slot);
    }

    /// Removes messages from memory that were taken in because they would be granted, and were not.
    pub(super) fn trim_ready(&mut self) {
        let largest = (self.policy.max_body + self.policy.max_headers) as u64;
        let (rows, bytes) = (self.policy.ready_messages.max(1), self.policy.ready_bytes as u64 + largest);
        while self.ready.rows > rows || self.ready.weight > bytes {
            let [idle, served] = &self.ready.holders;
            let Some(&(_, idx)) = idle.last().or(served.last()) else { return };
            self.evict_last(idx);
        }
    }

    /// The share of each queue in demand that has a backlog: half of the memory is divided equally among them.
    fn part(&self) -> Amount {
        let busy = 2 * self.ready.busy.max(1);
        Amount {
            rows: (self.policy.ready_messages / busy).max(self.policy.least_window),
            bytes: (self.policy.ready_bytes / busy) as u64,
        }
    }

    /// The memory that is left for queues without demand: up to half of it.
    fn left_over(&self) -> Amount {
        let (rows, bytes) = (self.policy.ready_messages / 2, self.policy.ready_bytes as u64 / 2);
        Amount {
            rows: rows.max(1).saturating_sub(self.ready.rows + self.ready.coming_rows),
            bytes: bytes.max(1).saturating_sub(self.ready.weight + self.ready.coming_weight),
        }
    }

    /// Whether a queue has less than half of its share.
    fn is_low(&self, idx: QueueIdx) -> bool {
        let (part, queue) = (self.part(), self.queues.get(idx));
        queue.ready.is_empty() || (queue.ready.len() < part.rows / 2 && queue.ready_weight < part.bytes / 2)
    }

    /// The size of the next page of a queue's backlog.
    pub(super) fn next_page_size(&self, idx: QueueIdx) -> Amount {
        let (queue, left) = (self.queues.get(idx), self.left_over());
        let (mut rows, mut bytes) = (left.rows, left.bytes);
        if queue.share.demand == HasDemand::Yes {
            let part = self.part();
            rows = rows.max(part.rows.saturating_sub(queue.ready.len()));
            bytes = bytes.max(part.bytes.saturating_sub(queue.ready_weight));
        }
        let waiting = usize::try_from(queue.tally.part(Kind::Waiting).count).unwrap_or(usize::MAX);
        let found_room = queue.share.page_rows.unwrap_or(usize::MAX);
        let most = self.policy.load_rows.min(waiting).min(found_room).max(1);
        Amount { rows: rows.clamp(1, most), bytes: bytes.clamp(1, self.policy.load_bytes as u64) }
    }

    /// Notes how many rows of a backlog page fitted into memory, or that all did. The next page has that size, or twice
    /// the size after a page that fitted: other rows are read in vain.
    pub(super) fn note_page(&mut self, idx: QueueIdx, found_room: Option<usize>) {
        let (least, most) = (self.policy.least_window, self.policy.load_rows);
        let rows = &mut self.queues.get_mut(idx).share.page_rows;
        *rows = match found_room {
            Some(found_room) => Some(found_room.max(least)),
            None => rows.map(|rows| rows.saturating_mul(2)).filter(|rows| *rows < most),
        };
    }

    /// Notes that a page of a backlog was requested.
    pub(super) fn expect_rows(&mut self, rows: usize, bytes: usize) {
        self.ready.coming_rows += rows;
        self.ready.coming_weight += bytes as u64;
    }

    /// Notes that the page has arrived.
    pub(super) fn expected_rows_came(&mut self, rows: usize, bytes: usize) {
        self.ready.coming_rows -= rows;
        self.ready.coming_weight -= bytes as u64;
    }

    /// Updates a queue's position in the order of loading, after an event that may change whether its backlog is
    /// loaded.
    pub(super) fn note_hunger(&mut self, idx: QueueIdx) {
        let is_hungry = self.count_busy(idx) && self.is_low(idx) && self.finds_room(idx);
        let load_order = if is_hungry { LoadOrder::Served } else { LoadOrder::Idle };
        self.join_load_order(idx, load_order);
    }

    /// Notes that there was no memory for a message of the queue. The queue is loaded again when one of its messages is
    /// removed, when a consumer reserves from it, or when there is memory for all; not before, because its pages would
    /// be read in vain.
    pub(super) fn note_no_room(&mut self, idx: QueueIdx) {
        self.count_busy(idx);
        let load_order = if self.is_granted_at_once(idx) { LoadOrder::Served } else { LoadOrder::Idle };
        self.join_load_order(idx, load_order);
        let queue = self.queues.get(idx);
        if queue.ready.is_empty() && !queue.waiters.is_empty() {
            self.note_starved(idx);
        }
    }

    /// Updates the number of queues in demand that have a backlog; returns whether this queue is one.
    fn count_busy(&mut self, idx: QueueIdx) -> bool {
        let queue = self.queues.get_mut(idx);
        let is_busy = queue.share.demand == HasDemand::Yes && queue.has_backlog();
        let was_busy = std::mem::replace(&mut queue.share.is_busy, is_busy);
        self.ready.busy = self.ready.busy + usize::from(is_busy) - usize::from(was_busy);
        is_busy
    }

    /// Puts a queue at the end of an order of loading, if a page of its backlog is wanted and the queue is not in it
    /// yet.
    fn join_load_order(&mut self, idx: QueueIdx, load_order: LoadOrder) {
        let queue = self.queues.get_mut(idx);
        let wanted = queue.lacks_a_page().then_some(load_order);
        if queue.share.load_order.map(|(load_order, _)| load_order) == wanted {
            return;
        }
        if let Some((load_order, place)) = queue.share.load_order.take() {
            self.ready.to_load[load_order as usize].remove(&(place, idx));
        }
        if let Some(load_order) = wanted {
            self.ready.places += 1;
            queue.share.load_order = Some((load_order, self.ready.places));
            self.ready.to_load[load_order as usize].insert((self.ready.places, idx));
        }
    }

    /// Removes and returns the next queue whose backlog is to be loaded.
    pub(super) fn next_hungry(&mut self) -> Option<QueueIdx> {
        let (_, idx) = match self.ready.to_load[LoadOrder::Served as usize].pop_first() {
            Some(first) => first,
            None => {
                let left = self.left_over();
                if left.rows == 0 || left.bytes == 0 {
                    return None;
                }
                self.ready.to_load[LoadOrder::Idle as usize].pop_first()?
            }
        };
        self.ready.visited += 1;
        self.queues.get_mut(idx).share.load_order = None;
        Some(idx)
    }
}
