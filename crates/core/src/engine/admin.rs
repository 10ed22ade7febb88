//! What the owner of a queue sets: settings and pause. And what follows from them as time passes.

use crate::message::Kind;
use crate::name::QueueName;
use crate::policy::QueueSettings;
use crate::record::{Pause, Record};
use crate::time::{EngineMs, Now, WallMs};

use super::Engine;
use super::effect::Effects;
use super::queue::QueueIdx;
use super::reply::{Reply, SettingsRefusal};

impl Engine {
    pub(super) fn configure(
        &mut self,
        now: Now,
        name: &QueueName,
        settings: QueueSettings,
        fx: &mut Effects,
    ) -> Reply {
        if let Err(refusal) = self.check_settings(name, &settings) {
            return Reply::Configure(refusal);
        }
        let idx = self.queues.find_or_make(name);
        let queue = self.queues.get_mut(idx);
        let rank = (settings.priority, settings.order);
        let reordered = rank != (queue.settings.priority, queue.settings.order);
        queue.settings = settings.clone();
        let record = Record::Queue { name: name.clone(), settings, pause: queue.pause };
        self.append(record, fx);
        if reordered {
            self.rank_again(now, idx, fx);
        }
        if let Some(planned) = self.queues.get_mut(idx).dead_check.take() {
            self.dead_checks.remove(&(planned, idx));
        }
        self.plan_dead_check(now, idx, WallMs(0));
        let view = self.view_of_queue(now, self.queues.get(idx));
        self.queues.drop_if_empty(idx);
        Reply::Queues(vec![view])
    }

    /// Settings count at the moment of use: what is ready takes its place by the new ones.
    fn rank_again(&mut self, now: Now, idx: QueueIdx, fx: &mut Effects) {
        let ready: Vec<_> = self.queues.get(idx).ready.keys().map(|&(_, id)| id).collect();
        for id in ready {
            if let Some(slot) = self.live(id) {
                self.take_out(slot);
                self.put_in_place(now, slot, fx);
            }
        }
    }

    fn check_settings(&self, name: &QueueName, s: &QueueSettings) -> Result<(), SettingsRefusal> {
        let policy = &self.policy;
        let out = |field, max| Err(SettingsRefusal::OutOfRange(field, max));
        if s.lease_ms.is_some_and(|ms| ms == 0 || ms > policy.max_lease_ms) {
            return out("lease_ms", policy.max_lease_ms);
        }
        if s.backoff.is_some_and(|b| b.min_ms > b.max_ms || b.max_ms > policy.max_delay_ms) {
            return out("backoff", policy.max_delay_ms);
        }
        if s.dedupe_window_ms.is_some_and(|ms| ms > policy.max_dedupe_window_ms) {
            return out("dedupe_window_ms", policy.max_dedupe_window_ms);
        }
        if s.dead_ttl_ms.is_some_and(|ms| ms > policy.max_delay_ms) {
            return out("dead_ttl_ms", policy.max_delay_ms);
        }
        if self.queues.len() >= policy.max_queues && self.queues.find(name).is_none() {
            return Err(SettingsRefusal::Overloaded);
        }
        Ok(())
    }

    pub(super) fn pause(&mut self, now: Now, name: &QueueName, for_ms: Option<u64>, fx: &mut Effects) {
        let idx = self.queues.find_or_make(name);
        let pause = match for_ms {
            None => Pause::Paused,
            Some(ms) => Pause::Until(now.after(ms).unwrap_or(EngineMs(u64::MAX))),
        };
        self.set_pause(idx, pause, fx);
    }

    pub(super) fn resume(&mut self, name: &QueueName, fx: &mut Effects) {
        if let Some(idx) = self.queues.find(name) {
            self.set_pause(idx, Pause::Running, fx);
            self.queues.drop_if_empty(idx);
        }
    }

    fn set_pause(&mut self, idx: QueueIdx, pause: Pause, fx: &mut Effects) {
        let queue = self.queues.get_mut(idx);
        let old = std::mem::replace(&mut queue.pause, pause);
        let record = Record::Queue { name: queue.name.clone(), settings: queue.settings.clone(), pause };
        if let Pause::Until(t) = old {
            self.pauses.remove(&(t, idx));
        }
        match pause {
            Pause::Until(t) => {
                self.pauses.insert((t, idx));
            }
            Pause::Running => self.wake_queue(idx),
            Pause::Paused => {}
        }
        self.append(record, fx);
    }

    /// Ends timed pauses. No record: that it has ended follows from the one that began it.
    pub(super) fn end_pauses(&mut self, now: Now) {
        while let Some(&(t, idx)) = self.pauses.first() {
            if t > now.engine {
                return;
            }
            self.pauses.pop_first();
            self.queues.get_mut(idx).pause = Pause::Running;
            self.wake_queue(idx);
            self.queues.drop_if_empty(idx);
        }
    }

    fn wake_queue(&mut self, idx: QueueIdx) {
        let queue = self.queues.get(idx);
        if !queue.ready.is_empty() && !queue.waiters.is_empty() {
            self.dirty.insert(idx);
        }
    }

    /// Notes that a message of the queue died then, if its owner wants dead messages removed.
    pub(super) fn plan_dead_check(&mut self, now: Now, idx: QueueIdx, died: WallMs) {
        let queue = self.queues.get_mut(idx);
        let Some(ttl) = queue.settings.dead_ttl_ms else { return };
        let when = now.engine_of_wall(WallMs(died.0.saturating_add(ttl)));
        if let Some(planned) = queue.dead_check {
            if planned <= when {
                return;
            }
            self.dead_checks.remove(&(planned, idx));
        }
        queue.dead_check = Some(when);
        self.dead_checks.insert((when, idx));
    }

    /// Asks for the dead messages of queues in which the time of some may be over.
    pub(super) fn expire_dead(&mut self, now: Now, fx: &mut Effects) {
        while let Some(&(t, idx)) = self.dead_checks.first() {
            if t > now.engine {
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
                self.ask_dead(name, None, fx);
            }
        }
    }
}
