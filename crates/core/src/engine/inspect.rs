//! Read-only operations: one message, a queue, the ring; and the counts of grants and leases. None changes anything,
//! and none counts messages one by one.

use std::sync::Arc;
use std::time::Duration;

use crate::id::MessageId;
use crate::message::{DeadReason, Died, Kind, Life, MessageContent, Row, Stage, State};
use crate::name::QueueName;
use crate::policy::QueueSettings;
use crate::record::{Pause, Totals};
use crate::time::{Class, EngineMs, Now, WallMs};

use super::Engine;
use super::change::asked_delay;
use super::input::{Hold, Target};
use super::queue::QueueState;
use super::reply::{
    Attended, Counts, ExpiredCounts, Outline, QueueLateness, QueueView, Rates, RecordedCounts, Stats, View,
    WheelView,
};
use super::rows::{MessageEntry, QueueIdx, RowIdx};

impl View {
    /// The time until it is due; zero when it is.
    pub fn due_in(&self) -> Duration {
        Duration::from_millis(self.due_in_ms)
    }

    /// The bytes of its content and its detail.
    pub fn weight(&self) -> usize {
        self.message.weight() + self.detail.as_ref().map_or(0, |detail| detail.len())
    }

    /// The effective length of a lease.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

impl Engine {
    pub(super) fn look(&self, target: &Target) -> Option<Box<View>> {
        self.resolve(target).map(|slot| self.whole_view(slot))
    }

    pub(super) fn recall(&self, target: &Target) -> Option<Box<View>> {
        let slot = match (self.resolve(target), self.resolve_done(target)) {
            (Some(slot), Some(done)) if self.ended_at(slot) < self.ended_at(done) => done,
            (Some(slot), _) | (None, Some(slot)) => slot,
            (None, None) => return None,
        };
        Some(self.whole_view(slot))
    }

    /// The view of a message with its detail.
    fn whole_view(&self, slot: RowIdx) -> Box<View> {
        Box::new(View { detail: self.rows.get(slot).life.detail.clone(), ..self.view(slot) })
    }

    /// When a message has died or ended, to be compared with others: engine time comes first, because steps of the wall
    /// clock do not change it. What is neither is newer than all that is.
    fn ended_at(&self, slot: RowIdx) -> (bool, Option<EngineMs>, Died) {
        match self.rows.get(slot).life.stage {
            Stage::Dead { at, .. } => (false, at.engine(), at),
            Stage::Waiting { .. } | Stage::Leased(_) => (true, None, Died::default()),
        }
    }

    pub(super) fn view(&self, slot: RowIdx) -> View {
        let entry = self.rows.get(slot);
        if self.queues.get(entry.queue).is_done {
            let row = Row { message: entry.message.clone(), life: entry.life.clone() };
            return self.view_of_done(entry.queue, &row);
        }
        self.raw_view(slot)
    }

    /// The view of a message under the id and in the queue that it has, also of a done one.
    pub(super) fn raw_view(&self, slot: RowIdx) -> View {
        let entry = self.rows.get(slot);
        self.view_of(entry.queue, &entry.message, &entry.life, self.shown_state(slot))
    }

    /// The present state of a message as answers have it: a withheld one is scheduled, whether it is in a structure or
    /// was looked up.
    pub(super) fn shown_state(&self, slot: RowIdx) -> State {
        let entry = self.rows.get(slot);
        match entry.state(self.now) {
            State::Ready if self.withheld.holds(self.now, &entry.message, &entry.life) => State::Scheduled,
            state => state,
        }
    }

    /// The present state of a message.
    pub(super) fn view_of(
        &self,
        queue: QueueIdx,
        message: &Arc<MessageContent>,
        life: &Life,
        state: State,
    ) -> View {
        let message = match life.holds_key() {
            true => message.clone(),
            false => Arc::new(MessageContent { key: None, ..(**message).clone() }),
        };
        View {
            state,
            due_at: self.now.wall_of(life.due),
            due_in_ms: self.now.until(life.due),
            attempt: life.attempt,
            forgiven: life.forgiven,
            generation: life.generation,
            priority: self.priority(queue, life),
            lease_ms: self.lease_ms(queue, &message),
            max_attempts: self.max_attempts(queue, &message, life),
            lease_until: life.lease().map(|l| self.now.wall_of_engine(l.until)),
            dead: died(life),
            marks: life.marks,
            delay_ms: asked_delay(self.now, &message, life),
            history: life.history.clone(),
            expires_at: self.expires(queue, &message, life).map(|expires| self.now.wall_of(expires)),
            detail: None,
            message,
        }
    }

    /// The answer to a change.
    pub(super) fn outline(&self, slot: RowIdx) -> Outline {
        let MessageEntry { message, life, queue, .. } = self.rows.get(slot);
        Outline {
            id: message.id,
            queue: message.queue.clone(),
            key: life.key_of(message).cloned(),
            state: self.shown_state(slot),
            due_at: self.now.wall_of(life.due),
            due_in_ms: self.now.until(life.due),
            attempt: life.attempt,
            generation: life.generation,
            priority: self.priority(*queue, life),
            lease_ms: self.lease_ms(*queue, message),
            max_attempts: self.max_attempts(*queue, message, life),
            enqueued_at: message.enqueued_at,
            dead: died(life),
        }
    }

    pub(super) fn queue_view(&self, name: &QueueName) -> Option<QueueView> {
        let Some(idx) = self.queues.find(name) else {
            let totals = self.queues.resting.of(name)?;
            return Some(QueueView { totals, ..QueueView::empty(name.clone()) });
        };
        let queue = self.queues.get(idx);
        (queue.is_there() || queue.totals.enqueued > 0).then(|| self.view_of_queue(queue))
    }

    pub(super) fn queue_views(&self, after: Option<&QueueName>, limit: usize) -> Vec<QueueView> {
        let limit = limit.min(self.policy.max_page);
        let queues: Vec<&QueueState> = self.queues.named_after(after).take(limit).collect();
        self.worked(queues.len());
        // All requests of one step together examine no more messages than a step may.
        let priorities = self.policy.max_priorities.min(self.policy.max_step / queues.len().max(1)).max(1);
        let view = |queue: &QueueState| QueueView {
            oldest_ready: self.oldest_ready(queue, priorities),
            ..self.view_of_queue_but_oldest(queue)
        };
        queues.into_iter().map(view).collect()
    }

    pub(super) fn view_of_queue(&self, queue: &QueueState) -> QueueView {
        let oldest_ready = self.oldest_ready(queue, self.policy.max_priorities);
        QueueView { oldest_ready, ..self.view_of_queue_but_oldest(queue) }
    }

    fn view_of_queue_but_oldest(&self, queue: &QueueState) -> QueueView {
        QueueView {
            name: queue.name.clone(),
            counts: self.counts(self.now, queue),
            urgent: queue.urgent,
            oldest_ready: None,
            waiters: queue.waiters.len(),
            using: queue.holds[Hold::Use as usize],
            watching: queue.holds[Hold::Watch as usize],
            attended: queue.attended,
            totals: queue.totals,
            rates: queue.window.rates(self.now),
            settings: queue.settings.clone(),
            pause: queue.pause,
            done: self.done_in(&queue.name),
            expired: queue.expired,
            lateness: queue.lateness.as_deref().copied().unwrap_or_default(),
            pause_left_ms: match queue.pause {
                Pause::Until { end, .. } => Some(end.0.saturating_sub(self.now.engine.0)),
                Pause::Running | Pause::Paused => None,
            },
        }
    }

    /// Messages per state. The number of due messages among those that wait is exact while all due messages are in
    /// memory, and read off the histogram otherwise.
    /// The number of ready messages of a queue from which no consumer has reserved since the start, 0 while it is paused;
    /// `None` for every other queue.
    pub fn unattended(&self, now: Now, name: &QueueName) -> Option<u64> {
        let queue = self.queues.get(self.queues.find(name)?);
        let is_alone = queue.is_there() && queue.attended == Attended::No;
        is_alone.then(|| if queue.is_paused(now) { 0 } else { self.counts(now, queue).ready })
    }

    pub(super) fn counts(&self, now: Now, queue: &QueueState) -> Counts {
        let waiting = queue.tally.part(Kind::Waiting).count;
        let times = self.due_times(now, queue);
        let (ready, exact) = (times.overdue().min(waiting), times.counted.is_some());
        Counts {
            scheduled: waiting - ready,
            ready,
            leased: queue.tally.part(Kind::Leased).count,
            dead: queue.tally.part(Kind::Dead).count,
            estimated: !exact,
        }
    }

    /// The due time of the ready message that has been due for longest: the first one of each priority is examined, up
    /// to a bound.
    fn oldest_ready(&self, queue: &QueueState, priorities: usize) -> Option<WallMs> {
        let mut oldest: Option<WallMs> = None;
        let mut priority = 0;
        for _ in 0..priorities {
            self.worked(1);
            let from = ((priority, 0), MessageId(0));
            let Some((&((found, _), _), &slot)) = queue.ready.range(from..).next() else { break };
            let due = self.now.wall_of(self.rows.get(slot).life.due);
            oldest = Some(oldest.map_or(due, |o| o.min(due)));
            let Some(next) = found.checked_add(1) else { break };
            priority = next;
        }
        oldest
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

    /// Present figures and counters, as [`super::Op::Stats`] returns them.
    pub fn stats(&self, now: Now) -> Stats {
        let waiting = self.tally.part(Kind::Waiting).count;
        let times = self.due_times_of_all(now);
        let ready = times.overdue().min(waiting);
        let exact = times.counted.is_some() && (ready == self.ready_here() || !self.has_backlogs());
        let counts = Counts {
            scheduled: waiting - ready,
            ready,
            leased: self.tally.part(Kind::Leased).count,
            dead: self.tally.part(Kind::Dead).count,
            estimated: !exact,
        };
        let (own, own_queues, own_waiters) = self.own_counts(now);
        Stats {
            counts: without(counts, own),
            urgent: self.urgent,
            bytes: self.tally.weight(),
            resident: self.rows.len() as u64,
            resident_bytes: self.rows.bytes(),
            queues: (self.queues.len() as u64).saturating_sub(own_queues),
            waiters: (self.waiters.len() as u64).saturating_sub(own_waiters),
            totals: self.totals,
            lease_expired: self.figures.lease_expired,
            lease_lost: self.figures.lease_lost,
            held_back: self.figures.held_back,
            lateness: self.figures.lateness.to_vec(),
            lateness_sum_ms: self.figures.lateness_sum_ms,
        }
    }

    /// Counts of the server's own queues, which statistics exclude: messages, queues and waiters. These queues are the
    /// first by name.
    fn own_counts(&self, now: Now) -> (Counts, u64, u64) {
        // Done messages are in none of the counts.
        let (mut sum, mut queues, mut waiters) = (Counts::default(), self.queues.with_done(), 0);
        for queue in self.queues.system_but_done() {
            let counts = self.counts(now, queue);
            sum.scheduled += counts.scheduled;
            sum.ready += counts.ready;
            sum.leased += counts.leased;
            sum.dead += counts.dead;
            queues += 1;
            waiters += queue.waiters.len() as u64;
        }
        (sum, queues, waiters)
    }

    /// The counts that rise with records, up to the last one decided.
    pub fn recorded_counts(&self) -> RecordedCounts {
        RecordedCounts {
            totals: self.totals,
            lease_expired: self.figures.lease_expired,
            lateness: self.figures.lateness,
            lateness_sum_ms: self.figures.lateness_sum_ms,
        }
    }
}

fn without(all: Counts, own: Counts) -> Counts {
    Counts {
        scheduled: all.scheduled.saturating_sub(own.scheduled),
        ready: all.ready.saturating_sub(own.ready),
        leased: all.leased.saturating_sub(own.leased),
        dead: all.dead.saturating_sub(own.dead),
        ..all
    }
}

/// Reason and time of a message's death.
fn died(life: &Life) -> Option<(DeadReason, WallMs)> {
    match life.stage {
        Stage::Dead { reason, at, .. } => Some((reason, at.wall())),
        Stage::Waiting { .. } | Stage::Leased(_) => None,
    }
}

impl QueueView {
    /// The view of a queue of which nothing is known.
    pub fn empty(name: QueueName) -> Self {
        QueueView {
            name,
            counts: Counts::default(),
            urgent: 0,
            oldest_ready: None,
            waiters: 0,
            using: 0,
            watching: 0,
            attended: Attended::No,
            totals: Totals::default(),
            rates: Rates::default(),
            settings: QueueSettings::default(),
            pause: Pause::Running,
            pause_left_ms: None,
            done: 0,
            expired: ExpiredCounts::default(),
            lateness: QueueLateness::default(),
        }
    }

    /// Whether it has messages, consumers, holders for use or watching, settings or a pause, and not only totals.
    pub fn is_there(&self) -> bool {
        let Counts { scheduled, ready, leased, dead, estimated: _ } = self.counts;
        scheduled + ready + leased + dead > 0
            || self.waiters > 0
            || self.using > 0
            || self.watching > 0
            || self.settings.keep_a_queue()
            || self.pause != Pause::Running
    }
}
