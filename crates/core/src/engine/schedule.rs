//! Everything that waits for a time: one wheel for each clock class, and one for leases; and the occurrences of
//! schedules that became due while the shard was closed.

use std::collections::BTreeMap;

use duewheel_wheel::{Cut, FirstDue, Geometry, GeometryError, Handle, Popped, Wheel};

use crate::id::MessageId;
use crate::message::{Life, MessageContent};
use crate::policy::{ON_TIME_MS, OWN_OCCURRENCE, Policy, WITHHELD_MS};
use crate::time::{Class, Due, EngineMs, Now, WallMs};

use super::horizon::{CLASSES, now_of};
use super::rows::RowIdx;

/// The rings. Each entry is a row's slot; the message id breaks ties.
#[derive(Debug)]
pub(super) struct Schedule {
    /// The ring of each clock class.
    rings: [Wheel<RowIdx>; 2],
    leases: Wheel<RowIdx>,
}

/// An event that the pointer has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScheduleEvent {
    /// The entry of this row is due.
    Of(RowIdx),
    /// A crowded slot is not sorted completely yet.
    NotYet,
}

impl Schedule {
    pub(super) fn new(policy: &Policy, now: Now) -> Result<Self, GeometryError> {
        let geometry = Geometry::new(policy.wheel_slots, policy.wheel_tick_ms)?;
        Ok(Schedule {
            rings: CLASSES.map(|class| Wheel::starting_at(geometry, now_of(class, now))),
            leases: Wheel::starting_at(geometry, now.engine.0),
        })
    }

    pub(super) fn insert(&mut self, due: Due, id: MessageId, slot: RowIdx) -> Handle {
        self.ring_mut(due.class()).insert(due.raw(), id.0, slot)
    }

    pub(super) fn cancel(&mut self, class: Class, handle: Handle) {
        self.ring_mut(class).cancel(handle);
    }

    pub(super) fn insert_lease(&mut self, until: EngineMs, id: MessageId, slot: RowIdx) -> Handle {
        self.leases.insert(until.0, id.0, slot)
    }

    pub(super) fn cancel_lease(&mut self, handle: Handle) {
        self.leases.cancel(handle);
    }

    /// The next message that is due. It is never early, whatever the wall clock did: the wheel compares with the time
    /// given here, not with the greatest time it has seen. A crowded slot is sorted over several calls: `looks` limits
    /// the number of its entries that this call examines.
    pub(super) fn pop_due(&mut self, now: Now, looks: &mut usize) -> Option<ScheduleEvent> {
        match self.ring_mut(Class::After).pop_due_within(now.engine.0, looks) {
            Popped::Entry(e) => Some(ScheduleEvent::Of(e.value)),
            // The wheel of the other class comes next.
            after => match self.ring_mut(Class::At).pop_due_within(now.wall.0, looks) {
                Popped::Entry(e) => Some(ScheduleEvent::Of(e.value)),
                at => (after == Popped::NotYet || at == Popped::NotYet).then_some(ScheduleEvent::NotYet),
            },
        }
    }

    /// Removes and returns the next lease that has run out.
    pub(super) fn pop_lease(&mut self, now: Now, looks: &mut usize) -> Option<ScheduleEvent> {
        match self.leases.pop_due_within(now.engine.0, looks) {
            Popped::Entry(e) => Some(ScheduleEvent::Of(e.value)),
            Popped::NotYet => Some(ScheduleEvent::NotYet),
            Popped::Nothing => None,
        }
    }

    /// Whether a message may be due that was not returned yet.
    pub(super) fn has_overdue_messages(&self, now: Now) -> bool {
        let is_behind = |class| self.ring(class).next_wakeup().is_some_and(|time| time <= now_of(class, now));
        CLASSES.into_iter().any(is_behind)
    }

    /// Whether a lease may have run out that was not returned yet.
    pub(super) fn has_overdue_leases(&self, now: Now) -> bool {
        self.leases.next_wakeup().is_some_and(|time| time <= now.engine.0)
    }

    /// When to check the leases again; at the latest when the next one ends.
    pub(super) fn next_lease_end(&self) -> Option<EngineMs> {
        self.leases.next_wakeup().map(EngineMs)
    }

    /// When to check the messages again; at the latest when the next one is due.
    pub(super) fn next_wakeup(&self, now: Now) -> Option<EngineMs> {
        let at = self.ring(Class::At).next_wakeup().map(|t| now.engine_of_wall(WallMs(t)));
        let after = self.ring(Class::After).next_wakeup().map(EngineMs);
        [at, after].into_iter().flatten().min()
    }

    /// The exact due time of the first scheduled message of a class, on its clock. `looks` limits the number of entries
    /// of a crowded slot that the call examines.
    pub(super) fn next_due(&mut self, class: Class, looks: &mut usize) -> FirstDue {
        self.ring_mut(class).next_due_within(looks)
    }

    /// Number of messages in both rings.
    pub(super) fn len(&self) -> usize {
        self.rings.iter().map(Wheel::len).sum()
    }

    /// Number of running leases.
    pub(super) fn leases(&self) -> usize {
        self.leases.len()
    }

    /// The slots of a sample of the messages in a ring: about one of `stride` messages; all for a stride of 1.
    pub(super) fn sample(&self, class: Class, stride: usize) -> impl Iterator<Item = RowIdx> + '_ {
        self.ring(class).sample(stride).map(|w| *w.value)
    }

    /// Removes entries behind the position of a cut from a ring and examines about `most` of them; returns whether
    /// there may be more.
    pub(super) fn cut(&mut self, class: Class, cut: &mut Cut, most: usize, gone: &mut Vec<RowIdx>) -> bool {
        self.ring_mut(class).cut(cut, most, |slot| gone.push(slot))
    }

    pub(super) fn ring(&self, class: Class) -> &Wheel<RowIdx> {
        &self.rings[class as usize]
    }

    fn ring_mut(&mut self, class: Class) -> &mut Wheel<RowIdx> {
        &mut self.rings[class as usize]
    }
}

/// Which occurrences are withheld, and those of them in memory.
#[derive(Debug)]
pub(super) struct Withheld {
    /// The last instant at which the shard is known to have been open before.
    closed: WallMs,
    opened: WallMs,
    /// Messages from this id on are new.
    first_new: MessageId,
    /// When they are granted; the end of time until the shard is open.
    pub(super) until: EngineMs,
    pub(super) rows: BTreeMap<MessageId, RowIdx>,
    /// The weight of these.
    pub(super) weight: u64,
}

impl Withheld {
    /// The state for a shard that is being opened and was last open at `closed`; a new one withholds nothing.
    pub(super) fn new(closed: Option<WallMs>, now: Now, first_new: u64) -> Self {
        let (closed, first_new) = (closed.unwrap_or(now.wall), MessageId(first_new));
        let (until, rows) = (EngineMs(u64::MAX), BTreeMap::new());
        Withheld { closed, opened: now.wall, first_new, until, rows, weight: 0 }
    }

    /// The shard is open: its occurrences are withheld for a while from now on.
    pub(super) fn open(&mut self, now: Now) {
        self.until = now.after(WITHHELD_MS).unwrap_or(now.engine);
    }

    /// Whether no consumer may get this message yet, which is due.
    pub(super) fn holds(&self, now: Now, message: &MessageContent, life: &Life) -> bool {
        let is_old = |due: WallMs| due > self.closed && due.0.saturating_add(ON_TIME_MS) < self.opened.0;
        now.engine < self.until
            && message.id < self.first_new
            && life.attempt == 0
            && matches!(life.due, Due::At(due) if is_old(due))
            && message.dedupe_id.as_deref().is_some_and(|id| id.starts_with(OWN_OCCURRENCE))
    }

    pub(super) fn next_wakeup(&self) -> Option<EngineMs> {
        (!self.rows.is_empty()).then_some(self.until)
    }
}
