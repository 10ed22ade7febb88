//! The points of the histories in memory, and what a request for a history has found: leaves that do not know the engine
//! ([`super::history`]).

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use crate::history::{HistoryPoint, HistoryStep, LatenessCounts, QueueDepth, QueueHistory};
use crate::id::MessageId;
use crate::message::Row;
use crate::name::QueueName;
use crate::record::{DecodeError, Writer, varint};
use crate::time::{Now, WallMs};

use super::reply::{Counts, Rates};

use HistoryStep::{FiveMinutes, TenSeconds};

/// Largest size of the points of one queue in memory, in bytes: 16 KiB with what else it takes.
pub(super) const MAX_BYTES: usize = 14 * 1024;
/// A stored record of points has about this size, in bytes.
pub(super) const RECORD_BYTES: usize = 256 * 1024;
/// The number of records of points in a page.
pub(super) const PAGE: usize = 8;
/// Largest number of steps of an answer.
pub(super) const MAX_STEPS: u64 = 600;
/// The number of counted events: those of a [`HistoryPoint`], and acks.
const EVENTS: usize = 5;
/// The first byte of a record of points.
pub(super) const VERSION: u8 = 1;

/// Counts of the present window of ten seconds, and of the one before it.
#[derive(Debug, Default)]
pub(super) struct OpenWindow {
    pub(super) number: u64,
    pub(super) is_open: bool,
    /// Whether its queue is among [`Histories::changed`].
    pub(super) is_listed: bool,
    pub(super) events: [u32; EVENTS],
    pub(super) before: [u32; EVENTS],
    pub(super) late: LatenessCounts,
}

impl OpenWindow {
    pub(super) fn is_at(&self, number: u64) -> bool {
        self.is_open && self.number == number
    }

    pub(super) fn begin(&mut self, number: u64) {
        if self.number != number {
            self.before = if self.number + 1 == number { self.events } else { [0; EVENTS] };
            (self.number, self.late) = (number, LatenessCounts::default());
        }
        (self.events, self.is_open) = ([0; EVENTS], true);
    }

    pub(super) fn add(&mut self, events: [u32; EVENTS]) {
        self.events.iter_mut().zip(events).for_each(|(sum, n)| *sum = sum.saturating_add(n));
    }

    pub(super) fn end(&mut self, depth: QueueDepth) -> HistoryPoint {
        self.is_open = false;
        HistoryPoint { late: mem::take(&mut self.late), ..self.point(depth) }
    }

    pub(super) fn point(&self, depth: QueueDepth) -> HistoryPoint {
        let [events @ .., _acked] = self.events.map(u64::from);
        HistoryPoint { events, depth: Some(depth), late: self.late.clone() }
    }

    /// Events per second × 1000: this window, and as much of the previous one as makes ten seconds.
    pub(super) fn rates(&self, now: Now) -> Rates {
        let number = TenSeconds.at(now.wall);
        let (events, before) = match number.checked_sub(self.number) {
            Some(0) => (self.events, self.before),
            Some(1) => ([0; EVENTS], self.events),
            _ => ([0; EVENTS], [0; EVENTS]),
        };
        let into = now.wall.0 % TenSeconds.ms();
        let milli = |at: usize| {
            let weighted =
                u64::from(before[at]) * (TenSeconds.ms() - into) + u64::from(events[at]) * TenSeconds.ms();
            weighted * 1_000 / TenSeconds.ms() / (TenSeconds.ms() / 1_000)
        };
        Rates { enqueued_milli: milli(0), granted_milli: milli(1), acked_milli: milli(4) }
    }
}

/// The points of one queue in memory.
#[derive(Debug, Default)]
pub(super) struct RecentPoints {
    /// The points before the last one: each has its distance from the one before it, in windows.
    pub(super) bytes: Vec<u8>,
    /// The windows from which the first distance counts, and the next one.
    pub(super) ends: [u64; 2],
    /// The messages after the points that are gone.
    pub(super) depth: Option<QueueDepth>,
    pub(super) last: Option<(u64, HistoryPoint)>,
    /// The point that is not stored yet, with the number of its five minutes.
    pub(super) open: Option<(u64, HistoryPoint)>,
    /// The last window whose point was given up for a bound.
    pub(super) lost: u64,
    /// Bytes that it counts in [`Histories::bytes`].
    pub(super) charged: usize,
}

impl RecentPoints {
    pub(super) fn push(&mut self, number: u64, point: HistoryPoint) {
        match &mut self.open {
            Some((_, open)) => open.follow(&point),
            None => self.open = Some((number * TenSeconds.ms() / FiveMinutes.ms(), point.clone())),
        }
        match &mut self.last {
            Some((last, sum)) if *last == number => return sum.follow(&point),
            // The clock was set back: points of a time to come are of no use.
            Some((last, _)) if *last > number => {
                *self = RecentPoints {
                    open: self.open.take(),
                    charged: self.charged,
                    lost: number,
                    ..Self::default()
                };
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
    pub(super) fn first(&self) -> Option<(u64, HistoryPoint, usize)> {
        let mut rest = self.bytes.as_slice();
        let distance = varint(&mut rest).ok()?;
        Some((self.ends[0] + distance, HistoryPoint::read(&mut rest).ok()?, rest.len()))
    }

    pub(super) fn all(&self) -> BTreeMap<u64, HistoryPoint> {
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
    pub(super) fn forget(&mut self) {
        self.lost = self.last.take().map_or(self.lost, |(last, _)| last);
        self.bytes = Vec::new();
    }

    pub(super) fn size(&self, name: &QueueName) -> usize {
        let late =
            |point: &Option<(u64, HistoryPoint)>| point.as_ref().map_or(0, |(_, point)| point.late.bytes());
        OF_A_QUEUE + name.as_str().len() + self.bytes.capacity() + late(&self.last) + late(&self.open)
    }
}

/// Memory that the points of a queue take besides their bytes, with their places in two lists.
pub(super) const OF_A_QUEUE: usize = size_of::<RecentPoints>() + 160;

/// The points of all queues.
#[derive(Debug, Default)]
pub(super) struct Histories {
    /// When the engine was made.
    pub(super) began: WallMs,
    /// Whether there were stored points then.
    pub(super) has_past: bool,
    /// Number of stored records.
    pub(super) stored: u64,
    /// The window of the whole shard, and its points.
    pub(super) window: OpenWindow,
    pub(super) whole: RecentPoints,
    pub(super) queues: BTreeMap<QueueName, RecentPoints>,
    /// Queues with points of ten seconds, by the last window of each.
    pub(super) order: BTreeSet<(u64, QueueName)>,
    /// Approximate memory of `queues`, in bytes.
    pub(super) bytes: usize,
    /// The last window of which a queue gave its points up for the bound of all.
    pub(super) lost: u64,
    /// Queues with events since the points were last stored, and the number of the five minutes of the first of them.
    pub(super) changed: Vec<QueueName>,
    pub(super) five: u64,
    /// Queues of `changed` whose points are being stored.
    pub(super) storing: Vec<QueueName>,
}

impl Histories {
    pub(super) fn new(now: Now, stored: u64) -> Self {
        Histories { began: now.wall, has_past: stored > 0, stored, ..Self::default() }
    }

    pub(super) fn list(&mut self, now: Now, name: QueueName) {
        if self.changed.is_empty() {
            self.five = FiveMinutes.at(now.wall);
        }
        self.changed.push(name);
    }

    pub(super) fn push(&mut self, name: &QueueName, number: u64, point: HistoryPoint, max: usize) {
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
    pub(super) fn forget(&mut self, name: &QueueName) {
        if let Some(points) = self.queues.get_mut(name) {
            points.forget();
            self.charge(name);
        }
    }

    /// Counts the memory of a queue anew, which is forgotten if it has no points.
    pub(super) fn charge(&mut self, name: &QueueName) {
        let Some(points) = self.queues.get_mut(name) else { return };
        let size = points.size(name);
        self.bytes = self.bytes - mem::replace(&mut points.charged, size) + size;
        if points.last.is_none() && points.open.is_none() {
            self.remove(name);
        }
    }

    pub(super) fn remove(&mut self, name: &QueueName) {
        if let Some(points) = self.queues.remove(name) {
            self.bytes -= points.charged;
            if let Some((last, _)) = points.last {
                self.order.remove(&(last, name.clone()));
            }
        }
    }

    /// Forgets the points of ten seconds that are too old.
    pub(super) fn forget_old(&mut self, now: Now) {
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
    pub(super) fn is_due(&self, now: Now, max: usize) -> bool {
        let is_over = self.bytes > max || FiveMinutes.at(now.wall) != self.five;
        !self.storing.is_empty() || !self.changed.is_empty() && is_over
    }
}

/// A request for a history, and what was found so far.
#[derive(Debug)]
pub(super) struct HistoryRequest {
    pub(super) queue: Option<QueueName>,
    pub(super) step: HistoryStep,
    /// The number of the first step, and the number behind the last one.
    pub(super) steps: [u64; 2],
    /// Records from this one on hold what is in `open`.
    pub(super) before: MessageId,
    /// Points that are in memory alone.
    pub(super) open: BTreeMap<u64, HistoryPoint>,
    pub(super) stored: BTreeMap<u64, HistoryPoint>,
    /// The first step of which anything is known, and the first one that is stored.
    pub(super) known: u64,
    pub(super) oldest: u64,
}

pub(super) fn write_entry(to: &mut Writer, name: &str, open: Option<&(u64, HistoryPoint)>) {
    to.with_length(|to| {
        to.blob(name.as_bytes());
        if let Some((five, point)) = open {
            to.varint(*five);
            point.write(to);
        }
    });
}

pub(super) fn depth(counts: Counts) -> QueueDepth {
    let Counts { scheduled, ready, leased, .. } = counts;
    QueueDepth { ready, pending: scheduled + ready + leased }
}

impl HistoryRequest {
    /// Adds the open window, which begins at an instant.
    pub(super) fn take_open(&mut self, open: Option<(u64, HistoryPoint)>) {
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

    pub(super) fn take_entry(&mut self, rest: &mut &[u8]) -> Result<(), DecodeError> {
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
    pub(super) fn answer(
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

pub(super) fn blob<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], DecodeError> {
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
        let mut histories = Histories::new(Now::whole(0, 0), 0);
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
