//! Everything that waits for time: one wheel for each clock class, one for leases.

use duewheel_wheel::{Geometry, GeometryError, Handle, Wheel};

use crate::id::MessageId;
use crate::policy::Policy;
use crate::time::{Class, Due, EngineMs, Now, WallMs};

use super::rows::Slot;

/// The rings. Each entry is a row's slot; the message id breaks ties.
#[derive(Debug)]
pub(super) struct Schedule {
    at: Wheel<Slot>,
    after: Wheel<Slot>,
    leases: Wheel<Slot>,
}

impl Schedule {
    pub(super) fn new(policy: &Policy, now: Now) -> Result<Self, GeometryError> {
        let geometry = Geometry::new(policy.wheel_slots, policy.wheel_tick_ms)?;
        Ok(Schedule {
            at: Wheel::starting_at(geometry, now.wall.0),
            after: Wheel::starting_at(geometry, now.engine.0),
            leases: Wheel::starting_at(geometry, now.engine.0),
        })
    }

    pub(super) fn insert(&mut self, due: Due, id: MessageId, slot: Slot) -> Handle {
        self.ring_mut(due.class()).insert(due.raw(), id.0, slot)
    }

    pub(super) fn cancel(&mut self, class: Class, handle: Handle) {
        self.ring_mut(class).cancel(handle);
    }

    pub(super) fn insert_lease(&mut self, until: EngineMs, id: MessageId, slot: Slot) -> Handle {
        self.leases.insert(until.0, id.0, slot)
    }

    pub(super) fn cancel_lease(&mut self, handle: Handle) {
        self.leases.cancel(handle);
    }

    /// The next message that is due. Never one that is early, whatever the wall clock did: the wheel compares with the
    /// time given here, not with the greatest it has seen.
    pub(super) fn pop_due(&mut self, now: Now) -> Option<Slot> {
        let popped = self.after.pop_due(now.engine.0).or_else(|| self.at.pop_due(now.wall.0));
        popped.map(|e| e.value)
    }

    /// The next lease that has run out.
    pub(super) fn pop_lease(&mut self, now: Now) -> Option<Slot> {
        self.leases.pop_due(now.engine.0).map(|e| e.value)
    }

    /// When to check again; at the latest when the next entry is due.
    pub(super) fn next_wakeup(&self, now: Now) -> Option<EngineMs> {
        let at = self.at.next_wakeup().map(|t| now.engine_of_wall(WallMs(t)));
        let after = self.after.next_wakeup().map(EngineMs);
        let lease = self.leases.next_wakeup().map(EngineMs);
        [at, after, lease].into_iter().flatten().min()
    }

    /// The exact due time of the first scheduled message.
    pub(super) fn next_due(&self, now: Now) -> Option<WallMs> {
        let at = self.at.next_due().map(WallMs);
        let after = self.after.next_due().map(|t| now.wall_of_engine(EngineMs(t)));
        [at, after].into_iter().flatten().min()
    }

    /// Number of messages in both rings.
    pub(super) fn len(&self) -> usize {
        self.at.len() + self.after.len()
    }

    /// Number of running leases.
    pub(super) fn leases(&self) -> usize {
        self.leases.len()
    }

    /// Slots of all messages in a ring.
    pub(super) fn iter(&self, class: Class) -> impl Iterator<Item = Slot> + '_ {
        self.ring(class).iter().map(|w| *w.value)
    }

    /// Takes out of a ring what is not to be kept, and returns it.
    pub(super) fn retain(&mut self, class: Class, keep: impl Fn(Slot) -> bool) -> Vec<Slot> {
        let mut gone = Vec::new();
        self.ring_mut(class).retain(|w| {
            let kept = keep(*w.value);
            if !kept {
                gone.push(*w.value);
            }
            kept
        });
        gone
    }

    pub(super) fn ring(&self, class: Class) -> &Wheel<Slot> {
        match class {
            Class::At => &self.at,
            Class::After => &self.after,
        }
    }

    fn ring_mut(&mut self, class: Class) -> &mut Wheel<Slot> {
        match class {
            Class::At => &mut self.at,
            Class::After => &mut self.after,
        }
    }
}
