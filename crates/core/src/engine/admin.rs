//! Settings and pause of a queue, and their effects as time passes.

use crate::id::ReplyTo;
use crate::message::{Died, Kind};
use crate::name::QueueName;
use crate::policy::{Lasting, QueueSettings, SECONDS_PER_HOUR};
use crate::record::{Pause, Record, Totals};
use crate::time::EngineMs;

use super::Engine;
use super::input::{Enqueue, Hold};
use super::operation::Op;
use super::quota::OverQuota;
use super::reply::{Reply, SettingsRefusal};
use super::rows::QueueIdx;
use super::rows::TenantIdx;

impl Engine {
    pub(super) fn configure(&mut self, to: ReplyTo, name: &QueueName, settings: QueueSettings) {
        if let Err(refusal) = self.check_settings(name, &settings) {
            return self.respond(to, Reply::Configure(refusal));
        }
        if settings.keep_a_queue()
            && let Err(over) = self.charge_settings(name)
        {
            return self.respond(to, Reply::Configure(SettingsRefusal::OverQuota(over)));
        }
        let idx = self.queues.find_or_make(name);
        let queue = self.queues.get_mut(idx);
        let rank = (settings.priority, settings.order);
        let reordered = rank != (queue.settings.priority, queue.settings.order);
        queue.settings = settings;
        self.renew_limiter(idx);
        self.record_queue(idx);
        if !self.queues.get(idx).is_there() {
            self.queues.get_mut(idx).totals = Totals::default();
        }
        self.forget_dead_check(idx);
        self.plan_dead_check(idx, Died::default());
        self.renew_done(name);
        let view = self.view_of_queue(self.queues.get(idx));
        let answer = Reply::Configured(Some(Box::new(view)).into());
        if reordered {
            return self.start_rerank(idx, to, answer);
        }
        self.release(idx);
        self.respond(to, answer);
    }

    /// Gives a new queue the order that the front end of its first message asks for.
    pub(super) fn choose_order(&mut self, e: &Enqueue) {
        let Some(order) = e.order_if_new else { return };
        let idx = self.queues.find_or_make(&e.queue);
        let queue = self.queues.get_mut(idx);
        if queue.settings.order.is_some() || queue.tally.count() > 0 {
            return;
        }
        if queue.settings == QueueSettings::default() {
            queue.settings.lasting = Lasting::WhileUsed;
        }
        // No message of this queue is ready, so none has to move.
        queue.settings.order = Some(order);
        self.record_queue(idx);
    }

    pub(super) fn hold(&mut self, name: &QueueName, how: Hold) -> Reply {
        if !self.has_room_for(name) {
            return Reply::Configure(SettingsRefusal::Overloaded);
        }
        let idx = self.queues.find_or_make(name);
        self.queues.get_mut(idx).holds[how as usize] += 1;
        Reply::Done
    }

    /// Whether a queue exists, or may be created.
    pub(super) fn has_room_for(&self, name: &QueueName) -> bool {
        self.queues.len() < self.policy.max_queues || self.queues.find(name).is_some()
    }

    pub(super) fn let_go(&mut self, name: &QueueName, how: Hold) {
        if let Some(idx) = self.queues.find(name) {
            let queue = self.queues.get_mut(idx);
            let holds = &mut queue.holds[how as usize];
            *holds = holds.saturating_sub(1);
            self.release(idx);
        }
    }

    /// Drops a queue that nothing refers to any more, or schedules that.
    pub(super) fn release(&mut self, idx: QueueIdx) {
        self.drop_if_over(idx);
        if self.queues.contains(idx) && self.queues.get(idx).may_leave() {
            self.leaving.insert(idx);
        }
    }

    fn drop_if_over(&mut self, idx: QueueIdx) {
        if self.queues.is_over(idx) {
            self.end_starving(idx);
            self.end_rate_wait(idx);
            self.forget_share(idx);
            let tenant = self.queues.get(idx).tenant;
            self.end_window(idx);
            self.queues.drop(self.now, idx);
            self.make_way_for(tenant);
        }
    }

    /// A tenant has no more queues with settings and resting totals together than its quota allows of the former.
    pub(super) fn make_way_for(&mut self, tenant: Option<TenantIdx>) {
        let Some(tenant) = tenant else { return };
        let resting = &mut self.queues.resting;
        while self.tenants.lacks_room_for(tenant, resting.count_of(tenant)) && resting.pop_first_of(tenant) {}
    }

    /// Forgets totals that were kept for a day.
    pub(super) fn end_rests(&mut self) {
        let mut budget = self.budget();
        while self.spend(&mut budget, 1) && self.queues.resting.pop_over(self.now) {}
    }

    /// Ends a queue without messages before an operation creates one of the same name, so that the new queue has totals
    /// of its own.
    pub(super) fn end_before_return(&mut self, op: &Op) {
        if self.leaving.is_empty() {
            return;
        }
        let names = match op {
            Op::Enqueue(e) => std::slice::from_ref(&e.queue),
            Op::Reserve(r) => &r.queues[..],
            Op::Hold { queue, .. } | Op::Pause { queue, .. } | Op::Configure { queue, .. } => {
                std::slice::from_ref(queue)
            }
            _ => return,
        };
        for name in names {
            if let Some(idx) = self.queues.find(name)
                && self.leaving.remove(&idx)
            {
                self.end_queue(idx);
            }
        }
    }

    /// Ends queues with settings that do not outlive them.
    pub(super) fn end_queues(&mut self) {
        let mut budget = self.budget();
        while let Some(&idx) = self.leaving.first() {
            if !self.spend(&mut budget, 1) {
                return;
            }
            self.leaving.remove(&idx);
            self.end_queue(idx);
        }
    }

    fn end_queue(&mut self, idx: QueueIdx) {
        if self.queues.contains(idx) && self.queues.get(idx).may_leave() {
            self.end_rate_wait(idx);
            let queue = self.queues.get_mut(idx);
            (queue.settings, queue.limiter) = (QueueSettings::default(), None);
            queue.totals = Totals::default();
            self.record_queue(idx);
            self.drop_if_over(idx);
        }
    }

    /// Whether a queue may get settings or a pause: a tenant has no more such queues than it may have messages. Each
    /// shard has the settings of all queues, so the whole limit holds in each.
    fn charge_settings(&mut self, name: &QueueName) -> Result<(), Box<OverQuota>> {
        let is_charged = self.queues.find(name).is_some_and(|idx| self.queues.get(idx).is_charged);
        if is_charged || self.tenants.is_empty() {
            return Ok(());
        }
        let tenant = self.queues.tenant_of(name);
        self.tenants.configure(tenant)
    }

    /// Records a queue's present settings and pause.
    pub(super) fn record_queue(&mut self, idx: QueueIdx) {
        let queue = self.queues.get_mut(idx);
        let is = queue.is_configured();
        let was = std::mem::replace(&mut queue.is_charged, is);
        let tenant = queue.tenant;
        self.tenants.count_settings(tenant, was, is);
        self.make_way_for(tenant);
        let queue = self.queues.get(idx);
        let (name, settings, pause) = (queue.name.clone(), queue.settings.clone(), queue.pause);
        self.append(Record::Queue { name, settings, pause });
    }

    fn check_settings(&self, name: &QueueName, s: &QueueSettings) -> Result<(), SettingsRefusal> {
        let (policy, limits) = (&self.policy, s.limits);
        let backoff = s.backoff.map(|b| b.max_ms);
        let burst = limits.rate.and_then(|rate| rate.burst).map(u64::from);
        let (delay, rate) = (policy.max_delay_ms, policy.max_quota_rate);
        // Each with its least and its largest value, and the unit of the latter.
        let numbers = [
            ("lease_ms", s.lease_ms, 1, policy.max_lease_ms, 1),
            ("backoff", backoff, 0, delay, 1),
            ("dedupe_window_ms", s.dedupe_window_ms, 0, policy.max_dedupe_window_ms, 1),
            ("dead_ttl_ms", s.dead_ttl_ms, 0, delay, 1),
            ("keep_done_ms", s.keep_done_ms, 1, policy.max_keep_done_ms, 1),
            ("expires_in_ms", s.expires_in_ms, 1, delay, 1),
            ("rate.per_second", limits.rate.map(|rate| rate.per_hour), 1, rate, SECONDS_PER_HOUR),
            ("rate.burst", burst, 1, rate, 1),
            ("catchup_rate", limits.catchup_per_hour, 1, rate, SECONDS_PER_HOUR),
            ("concurrency", limits.concurrency.map(u64::from), 1, rate, 1),
        ];
        for (field, number, least, most, unit) in numbers {
            if number.is_some_and(|n| n < least || n > most.saturating_mul(unit)) {
                return Err(SettingsRefusal::OutOfRange(field, most));
            }
        }
        if s.backoff.is_some_and(|b| b.min_ms > b.max_ms) {
            return Err(SettingsRefusal::OutOfRange("backoff", delay));
        }
        // A shard without a lease would never grant its messages.
        let least = self.ids.shards;
        if limits.concurrency.is_some_and(|leases| leases < least) {
            return Err(SettingsRefusal::BelowShards("concurrency", least));
        }
        if self.has_room_for(name) { Ok(()) } else { Err(SettingsRefusal::Overloaded) }
    }

    pub(super) fn pause(&mut self, name: &QueueName, for_ms: Option<u64>) -> Reply {
        if !self.has_room_for(name) {
            return Reply::Configure(SettingsRefusal::Overloaded);
        }
        if let Err(over) = self.charge_settings(name) {
            return Reply::Configure(SettingsRefusal::OverQuota(over));
        }
        let idx = self.queues.find_or_make(name);
        let pause = match for_ms {
            None => Pause::Paused,
            Some(ms) => Pause::Until { end: self.now.after(ms).unwrap_or(EngineMs(u64::MAX)), length_ms: ms },
        };
        self.set_pause(idx, pause);
        Reply::Configured(None.into())
    }

    pub(super) fn resume(&mut self, name: &QueueName) -> Reply {
        if let Some(idx) = self.queues.find(name) {
            self.set_pause(idx, Pause::Running);
            self.release(idx);
        }
        Reply::Configured(None.into())
    }

    fn set_pause(&mut self, idx: QueueIdx, pause: Pause) {
        let queue = self.queues.get_mut(idx);
        let old = std::mem::replace(&mut queue.pause, pause);
        queue.totals.count_pause(pause, old);
        if let Pause::Until { end, .. } = old {
            self.pauses.remove(&(end, idx));
        }
        match pause {
            Pause::Until { end, .. } => {
                self.pauses.insert((end, idx));
            }
            Pause::Running => self.wake_queue(idx),
            Pause::Paused => {}
        }
        self.record_queue(idx);
    }

    /// Ends timed pauses.
    pub(super) fn end_pauses(&mut self) {
        let mut budget = self.budget();
        while let Some(&(_, idx)) = self.pauses.first().filter(|(t, _)| *t <= self.now.engine)
            && self.spend(&mut budget, 1)
        {
            self.set_pause(idx, Pause::Running);
            self.release(idx);
        }
    }

    fn wake_queue(&mut self, idx: QueueIdx) {
        let queue = self.queues.get(idx);
        if !queue.ready.is_empty() && !queue.waiters.is_empty() {
            self.matching.dirty.insert(idx);
        }
        self.note_hunger(idx);
    }

    /// Schedules a check of the queue's dead messages, if its settings have them removed after a time.
    pub(super) fn plan_dead_check(&mut self, idx: QueueIdx, died: Died) {
        let Some(ttl) = self.dead_ttl_ms(idx) else { return };
        self.check_dead_at(died.older_at(ttl, self.now), idx);
    }

    pub(super) fn forget_dead_check(&mut self, idx: QueueIdx) {
        if let Some(planned) = self.queues.get_mut(idx).dead_check.take() {
            self.dead_checks.remove(&(planned, idx));
        }
    }

    /// Schedules a check of the queue's dead messages at this time, or leaves one that comes before.
    pub(super) fn check_dead_at(&mut self, when: EngineMs, idx: QueueIdx) {
        let queue = self.queues.get_mut(idx);
        if let Some(planned) = queue.dead_check {
            if planned <= when {
                return;
            }
            self.dead_checks.remove(&(planned, idx));
        }
        queue.dead_check = Some(when);
        self.dead_checks.insert((when, idx));
    }

    fn may_ask_dead(&self) -> bool {
        self.loading.dead < self.policy.max_dead_pages
    }

    /// When the next check of dead messages is due; `None` while as many pages are loading as are allowed.
    pub(super) fn next_dead_check(&self) -> Option<EngineMs> {
        self.dead_checks.first().filter(|_| self.may_ask_dead()).map(|(t, _)| *t)
    }

    /// Loads the dead messages of queues in which some may have expired.
    pub(super) fn expire_dead(&mut self) {
        while let Some((t, idx)) = self.dead_checks.first().copied().filter(|_| self.may_ask_dead()) {
            if t > self.now.engine {
                return;
            }
            self.dead_checks.pop_first();
            if !self.queues.contains(idx) {
                continue;
            }
            let queue = self.queues.get_mut(idx);
            queue.dead_check = None;
            if queue.tally.part(Kind::Dead).count > 0 {
                let name = queue.name.clone();
                self.ask_dead(name, None);
            }
        }
    }
}
