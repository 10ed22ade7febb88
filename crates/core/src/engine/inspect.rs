//! Looking: one message, a page, a queue, the ring. Nothing here changes anything.

use crate::id::MessageId;
use crate::message::{Stage, State};
use crate::name::QueueName;
use crate::record::Pause;
use crate::store::Cursor;
use crate::time::{Class, Due, Now, WallMs};

use super::Engine;
use super::input::{ListCursor, Target};
use super::queue::{Event, Queue};
use super::reply::{Counts, Histogram, Page, QueueView, Rates, Stats, View, WheelView};
use super::rows::Slot;

impl Engine {
    pub(super) fn look(&self, now: Now, target: &Target) -> Option<Box<View>> {
        self.resolve(target).map(|slot| Box::new(self.view(now, slot)))
    }

    /// The message that comes first in a state: next to be granted, next to be due, first to have died, or (leased) of
    /// the lowest id.
    pub(super) fn peek(&self, now: Now, queue: &QueueName, state: State) -> Option<Box<View>> {
        let slot = match state {
            State::Scheduled => self.first_scheduled(now, queue)?,
            State::Ready | State::Leased | State::Dead => {
                let queue = self.queues.get(self.queues.find(queue)?);
                let id = match state {
                    State::Ready => queue.ready.first().map(|&(_, id)| id),
                    State::Dead => queue.dead.first().map(|&(_, id)| id),
                    State::Leased | State::Scheduled => queue.leased.first().copied(),
                };
                self.live(id?)?
            }
        };
        Some(Box::new(self.view(now, slot)))
    }

    pub(super) fn view(&self, now: Now, slot: Slot) -> View {
        let entry = self.rows.get(slot);
        let life = &entry.life;
        View {
            message: entry.message.clone(),
            state: entry.state(),
            due_at: now.wall_of(life.due),
            due_in_ms: now.until(life.due),
            attempt: life.attempt,
            generation: life.generation,
            priority: self.priority(slot),
            lease_ms: self.lease_ms(slot),
            max_attempts: self.max_attempts(slot),
            lease_until: life.lease().map(|l| now.wall_of_engine(l.until)),
            dead: match life.stage {
                Stage::Dead { reason, at } => Some((reason, at)),
                Stage::Waiting { .. } | Stage::Leased(_) => None,
            },
            history: life.history.clone(),
        }
    }

    /// A page in due order. Looks at a bounded number of messages, so a page may be short while there is more.
    pub(super) fn list(
        &self,
        now: Now,
        queue: &QueueName,
        state: Option<State>,
        after: Option<ListCursor>,
        limit: usize,
    ) -> Page {
        let Some(idx) = self.queues.find(queue) else { return Page::default() };
        let queue = self.queues.get(idx);
        let mut seen = after.unwrap_or(ListCursor { at: None, after: None });
        if state == Some(State::Scheduled) {
            // Nothing that is due is Scheduled.
            let due = |t: u64, seen: Option<Cursor>| seen.max(Some((t, MessageId(u64::MAX))));
            seen = ListCursor { at: due(now.wall.0, seen.at), after: due(now.engine.0, seen.after) };
        }
        let behind = |class: Class, seen: Option<Cursor>| {
            use std::ops::Bound::{Excluded, Unbounded};
            let from = seen.map_or(Unbounded, Excluded);
            queue.by_due[class as usize].range((from, Unbounded)).copied().peekable()
        };
        let mut at = behind(Class::At, seen.at);
        let mut delayed = behind(Class::After, seen.after);
        let mut page = Page::default();
        for _ in 0..self.policy.max_page_steps {
            let wall = |class, cursor: Option<&Cursor>| {
                cursor.map(|&(raw, id)| (now.wall_of(Due::from_raw(class, raw)), id))
            };
            let (next_at, next_after) = (wall(Class::At, at.peek()), wall(Class::After, delayed.peek()));
            let id = match (next_at, next_after) {
                (None, None) => return page,
                _ if page.views.len() >= limit => break,
                (Some(a), Some(b)) if b < a => take(&mut delayed, &mut seen.after),
                (Some(_), _) => take(&mut at, &mut seen.at),
                (None, Some(_)) => take(&mut delayed, &mut seen.after),
            };
            if let Some(slot) = id.and_then(|id| self.live(id))
                && state.is_none_or(|wanted| self.rows.get(slot).state() == wanted)
            {
                page.views.push(self.view(now, slot));
            }
        }
        page.next = Some(seen);
        page
    }

    pub(super) fn queue_view(&self, now: Now, name: &QueueName) -> Option<QueueView> {
        let queue = self.queues.get(self.queues.find(name)?);
        queue.is_there().then(|| self.view_of_queue(now, queue))
    }

    pub(super) fn queue_views(&self, now: Now, after: Option<&QueueName>, limit: usize) -> Vec<QueueView> {
        let limit = limit.min(self.policy.max_page);
        self.queues.after(after).take(limit).map(|q| self.view_of_queue(now, q)).collect()
    }

    pub(super) fn view_of_queue(&self, now: Now, queue: &Queue) -> QueueView {
        let rate = |event: Event| queue.rates[event as usize].per_second_milli(now);
        QueueView {
            name: queue.name.clone(),
            counts: queue.counts,
            oldest_ready: self.oldest_ready(now, queue),
            waiters: queue.waiters.len(),
            attended: queue.attended,
            totals: queue.totals,
            rates: Rates {
                enqueued_milli: rate(Event::Enqueued),
                granted_milli: rate(Event::Granted),
                acked_milli: rate(Event::Acked),
            },
            settings: queue.settings.clone(),
            pause: queue.pause,
            pause_left_ms: match queue.pause {
                Pause::Until(t) => Some(t.0.saturating_sub(now.engine.0)),
                Pause::Running | Pause::Paused => None,
            },
        }
    }

    /// Since when the message waits that is ready and has been due for longest. Those due first are leased, dead or ready,
    /// so this looks at a bounded number of them.
    fn oldest_ready(&self, now: Now, queue: &Queue) -> Option<WallMs> {
        if queue.counts.ready == 0 {
            return None;
        }
        let first = |class: Class| {
            let ids = queue.by_due[class as usize].iter().take(self.policy.max_page_steps);
            let mut ready = ids.filter(|&&(_, id)| {
                self.live(id).is_some_and(|slot| self.rows.get(slot).state() == State::Ready)
            });
            ready.next().map(|&(raw, _)| now.wall_of(Due::from_raw(class, raw)))
        };
        [first(Class::At), first(Class::After)].into_iter().flatten().min()
    }

    pub(super) fn histogram(
        &self,
        now: Now,
        queue: Option<&QueueName>,
        from: WallMs,
        to: WallMs,
        columns: usize,
    ) -> Histogram {
        let resolution = self.policy.histogram_resolution_ms;
        let columns = columns.clamp(1, self.policy.max_histogram);
        let start = from.0 / resolution * resolution;
        let span = to.0.saturating_sub(start).max(1);
        let width = span.div_ceil(columns as u64).div_ceil(resolution).saturating_mul(resolution);
        let mut histogram = Histogram {
            from: WallMs(start),
            width_ms: width,
            counts: vec![0; usize::try_from(span.div_ceil(width)).unwrap_or(columns).clamp(1, columns)],
            before: 0,
            after: 0,
            resolution_ms: resolution,
        };
        let counts = match queue {
            None => Some(&self.due_counts),
            Some(name) => self.queues.find(name).map(|idx| &self.queues.get(idx).due_counts),
        };
        for (time, n) in counts.into_iter().flat_map(|c| c.columns(now, resolution)) {
            if time.0 < start {
                histogram.before += n;
                continue;
            }
            let column = usize::try_from((time.0 - start) / width).unwrap_or(usize::MAX);
            match histogram.counts.get_mut(column) {
                Some(count) => *count += n,
                None => histogram.after += n,
            }
        }
        histogram
    }

    pub(super) fn wheel_view(&self) -> WheelView {
        let occupied = |class: Class| {
            let counts = self.schedule.ring(class).slot_counts();
            counts.enumerate().filter(|&(_, n)| n > 0).map(|(slot, n)| (slot, n as u64)).collect()
        };
        let rings = [Class::At, Class::After].map(|class| self.schedule.ring(class));
        WheelView {
            slots: self.policy.wheel_slots,
            tick_ms: self.policy.wheel_tick_ms,
            pointers: rings.map(|ring| ring.pointer()),
            messages: rings.iter().map(|ring| ring.len() as u64).sum(),
            occupied: [occupied(Class::At), occupied(Class::After)],
        }
    }

    pub(super) fn stats(&self) -> Stats {
        let mut counts = Counts::default();
        for queue in self.queues.iter() {
            counts.scheduled += queue.counts.scheduled;
            counts.ready += queue.counts.ready;
            counts.leased += queue.counts.leased;
            counts.dead += queue.counts.dead;
        }
        Stats {
            counts,
            bytes: self.rows.bytes(),
            queues: self.queues.len() as u64,
            waiters: self.waiters.len() as u64,
            dedupe: self.dedupe.len() as u64,
            totals: self.totals,
            lease_expired: self.lease_expired,
            lease_lost: self.lease_lost,
            lateness: self.lateness.to_vec(),
            lateness_sum_ms: self.lateness_sum_ms,
        }
    }
}

fn take(
    sequence: &mut std::iter::Peekable<impl Iterator<Item = Cursor>>,
    seen: &mut Option<Cursor>,
) -> Option<MessageId> {
    *seen = sequence.next();
    seen.map(|(_, id)| id)
}
