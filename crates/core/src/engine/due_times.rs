//! How many messages are due when: the tally of all messages, refined by the minutes of the scheduled ones in memory.
//!
//! A tally whose columns were widened by far messages cannot tell what is due soon. The near messages are in memory, and
//! their minutes are counted apart ([`DueTimes::near`]). The rest of a column is due already, or behind what is in memory.

use crate::message::Kind;
use crate::name::QueueName;
use crate::store::Cursor;
use crate::tally::{DueCounts, FINEST_MS};
use crate::time::{Class, Due, Now, WallMs};

use super::Engine;
use super::horizon::{CLASSES, now_of, reached_at};
use super::queue::QueueState;
use super::reply::Histogram;
use super::rows::QueueIdx;
use super::rows::RowIdx;

/// Queues with a backlog that are counted one by one for a figure of all queues.
const BACKLOGS_COUNTED: usize = 64;

/// The due times of the waiting messages of one queue or of all.
pub(super) struct DueTimes<'a> {
    pub(super) now: Now,
    /// Every waiting message.
    pub(super) all: &'a DueCounts,
    /// The scheduled messages that are in memory.
    pub(super) near: &'a DueCounts,
    /// For each class, the time from which on scheduled messages may be in the store alone.
    pub(super) known: [u64; 2],
    /// The number of messages that are due, where it was counted.
    pub(super) counted: Option<u64>,
    /// The number of due messages in memory.
    pub(super) here: u64,
}

/// Messages that are due within a span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DueSpan {
    class: Class,
    from: u64,
    /// The end, which is not part of it.
    to: u64,
    count: u64,
}

impl DueTimes<'_> {
    /// The number of messages that are due: counted, or else read off the column of the present moment.
    pub(super) fn overdue(&self) -> u64 {
        let estimate = || CLASSES.map(|class| self.past(class) + self.due_in_present(class)).iter().sum();
        self.counted.unwrap_or_else(|| self.here.max(estimate()))
    }

    /// Messages of the columns that have passed.
    fn past(&self, class: Class) -> u64 {
        self.all.between(class, 0, self.present(class).0)
    }

    /// The column of the present moment.
    fn present(&self, class: Class) -> (u64, u64) {
        let width = self.all.width_ms();
        let start = now_of(class, self.now) / width * width;
        (start, start.saturating_add(width))
    }

    /// The messages of a span of columns that are not scheduled in memory.
    fn rest(&self, class: Class, from: u64, to: u64) -> u64 {
        let minute = now_of(class, self.now) / FINEST_MS * FINEST_MS;
        self.all.between(class, from, to).saturating_sub(self.near.between(class, from.max(minute), to))
    }

    /// How many messages of the present column are due: exact if no message of it may be in the store alone.
    fn due_in_present(&self, class: Class) -> u64 {
        let (from, to) = self.present(class);
        let rest = self.rest(class, from, to);
        match self.known[class as usize] >= to {
            true => rest,
            false => part_of(rest, now_of(class, self.now) - from, to - from),
        }
    }

    /// All messages, each within a span of its class.
    fn spans(&self) -> Vec<DueSpan> {
        let mut spans = Vec::new();
        let width = self.all.width_ms();
        let mut left = self.overdue();
        for class in CLASSES {
            for (from, count) in self.all.from(class, 0).take_while(|(from, _)| *from < self.present(class).0)
            {
                left = left.saturating_sub(count);
                spans.push(DueSpan { class, from, to: from.saturating_add(width), count });
            }
        }
        let rests = CLASSES.map(|class| self.rest(class, self.present(class).0, self.present(class).1));
        let first = self.due_in_present(Class::At).max(left.saturating_sub(rests[1])).min(left).min(rests[0]);
        for (class, due) in CLASSES.into_iter().zip([first, (left - first).min(rests[1])]) {
            let c = class as usize;
            let now = now_of(class, self.now);
            let (from, end) = self.present(class);
            let mut push = |from, to, count| spans.push(DueSpan { class, from, to, count });
            push(from, now, due);
            push(now.max(self.known[c].min(end)), end, rests[c] - due);
            for (minute, count) in self.near.from(class, now) {
                push(minute.max(now), minute.saturating_add(FINEST_MS), count);
            }
            for (from, _) in self.all.from(class, end) {
                let to = from.saturating_add(width);
                push(from.max(self.known[c].min(to)), to, self.rest(class, from, to));
            }
        }
        spans.retain(|span| span.count > 0);
        spans
    }

    /// The messages by due time. A span that lies in several columns is divided between them in proportion.
    pub(super) fn histogram(&self, from: WallMs, to: WallMs, columns: usize) -> Histogram {
        let wall = |class, time| self.now.wall_of(Due::from_raw(class, time)).0;
        let spans: Vec<(u64, u64, u64)> =
            self.spans().into_iter().map(|s| (wall(s.class, s.from), wall(s.class, s.to), s.count)).collect();
        let is_coarse =
            |&(begin, end, _): &(u64, u64, u64)| end - begin > FINEST_MS && begin < to.0 && end > from.0;
        let resolution = if spans.iter().any(is_coarse) { self.all.width_ms() } else { FINEST_MS };
        let span = to.0.saturating_sub(from.0).max(1);
        let width = span.div_ceil(columns as u64).div_ceil(resolution).saturating_mul(resolution);
        let mut histogram = Histogram {
            from,
            width_ms: width,
            counts: vec![0; usize::try_from(span.div_ceil(width)).unwrap_or(columns).clamp(1, columns)],
            before: 0,
            after: 0,
            resolution_ms: resolution,
        };
        for (begin, end, count) in spans {
            // How many are due before this instant.
            let until = |at: u64| {
                if at >= end { count } else { part_of(count, at.saturating_sub(begin), (end - begin).max(1)) }
            };
            let mut seen = until(from.0);
            histogram.before += seen;
            let first = usize::try_from(begin.saturating_sub(from.0) / width).unwrap_or(usize::MAX);
            for (n, column) in histogram.counts.iter_mut().enumerate().skip(first) {
                if seen == count {
                    break;
                }
                let before = until(from.0.saturating_add(width.saturating_mul(n as u64 + 1)));
                *column += before - seen;
                seen = before;
            }
            histogram.after += count - seen;
        }
        histogram
    }
}

fn part_of(count: u64, of: u64, all: u64) -> u64 {
    u64::try_from(u128::from(count) * u128::from(of) / u128::from(all)).unwrap_or(count)
}

impl Engine {
    /// Counts a scheduled message that enters memory.
    pub(super) fn count_near(&mut self, slot: RowIdx) {
        let (idx, due) = (self.rows.get(slot).queue, self.rows.get(slot).life.due);
        if self.is_live(slot) {
            self.queues.get_mut(idx).near.add(due, usize::MAX);
            self.near_counts.add(due, usize::MAX);
        }
    }

    /// Removes a scheduled message from the counts. Those of a purged one are gone since the purge.
    pub(super) fn uncount_near(&mut self, slot: RowIdx) {
        let (idx, due) = (self.rows.get(slot).queue, self.rows.get(slot).life.due);
        if self.is_live(slot) {
            self.queues.get_mut(idx).near.sub(due);
            self.near_counts.sub(due);
        }
    }

    /// The due times of a queue.
    pub(super) fn due_times<'a>(&'a self, now: Now, queue: &'a QueueState) -> DueTimes<'a> {
        let known = CLASSES.map(|class| {
            let c = class as usize;
            queue.backlog[c].limit.or(self.horizon.known[c])
        });
        let here = queue.ready.len() as u64;
        let exact = !queue.has_backlog()
            && (self.horizon.is_caught_up(now) || here == queue.tally.part(Kind::Waiting).count);
        DueTimes {
            now,
            all: &queue.tally.due,
            near: &queue.near,
            known: known.map(end_of),
            counted: exact.then_some(here),
            here,
        }
    }

    /// The due times of all queues.
    pub(super) fn due_times_of_all(&self, now: Now) -> DueTimes<'_> {
        let limited = self.loading.limited.iter().flatten();
        let mut limited: Vec<QueueIdx> =
            limited.copied().filter(|idx| self.queues.contains(*idx)).take(2 * BACKLOGS_COUNTED).collect();
        limited.sort();
        limited.dedup();
        limited.retain(|idx| self.queues.get(*idx).has_backlog());
        self.worked(limited.len());
        let mut known = self.horizon.known.map(end_of);
        let mut counted = self.horizon.is_caught_up(now).then_some(self.ready_here());
        for idx in &limited {
            let queue = self.due_times(now, self.queues.get(*idx));
            for (known, of_queue) in known.iter_mut().zip(queue.known) {
                *known = (*known).min(of_queue);
            }
            counted = counted.map(|sum| sum + queue.overdue().saturating_sub(queue.here));
        }
        if limited.len() >= BACKLOGS_COUNTED {
            (known, counted) = (CLASSES.map(|class| now_of(class, now)), None);
        }
        if counted.is_none() && self.ready_here() == self.tally.part(Kind::Waiting).count {
            counted = Some(self.ready_here());
        }
        DueTimes {
            now,
            all: &self.tally.due,
            near: &self.near_counts,
            known,
            counted,
            here: self.ready_here(),
        }
    }

    pub(super) fn histogram(
        &self,
        queue: Option<&QueueName>,
        from: WallMs,
        to: WallMs,
        columns: usize,
    ) -> Histogram {
        let columns = columns.clamp(1, self.policy.max_histogram);
        let none = DueCounts::default();
        let times = match queue {
            None => self.due_times_of_all(self.now),
            Some(name) => match self.queues.find(name) {
                Some(idx) => self.due_times(self.now, self.queues.get(idx)),
                None => DueTimes {
                    now: self.now,
                    all: &none,
                    near: &none,
                    known: [0; 2],
                    counted: Some(0),
                    here: 0,
                },
            },
        };
        times.histogram(from, to, columns)
    }
}

fn end_of(known: Option<Cursor>) -> u64 {
    known.map_or(0, reached_at)
}
