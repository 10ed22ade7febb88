//! The horizon: the due time up to which messages are in memory, for each clock class.

use std::collections::BTreeSet;

use duewheel_wheel::Cut;

use crate::id::{MessageId, ReplyTo};
use crate::store::Cursor;
use crate::time::{Class, Due, Now};

use super::index::QueueIdx;

/// The end of every sequence.
pub(super) const END: Cursor = (u64::MAX, MessageId(u64::MAX));
/// Messages that are due within this time, in ms, take precedence over all others when the wheel is full.
pub(super) const SOON_MS: u64 = 2_000;

/// Both clock classes, in the order of their indices.
pub(super) const CLASSES: [Class; 2] = [Class::At, Class::After];

/// The part of all messages that is in memory, and the loads that extend it. Each field is for one clock class after
/// the other.
#[derive(Debug, Default)]
pub(super) struct Horizon {
    /// Everything up to here is in memory.
    pub(super) known: [Option<Cursor>; 2],
    /// The page behind the horizon that is loading.
    pub(super) near: [Option<Near>; 2],
    /// Messages scheduled behind the horizon that are leaving memory.
    pub(super) cuts: [Option<Cut>; 2],
    /// Number of scheduled messages in memory behind the horizon.
    pub(super) beyond: [usize; 2],
    /// Queues with a backlog of which nothing is due yet and for which the wheel has no room, and when to check them
    /// again.
    pub(super) resting: [BTreeSet<(u64, QueueIdx)>; 2],
    /// Queues whose backlog is loaded up to the horizon, and that wait for the page which moves it.
    pub(super) awaiting: [BTreeSet<QueueIdx>; 2],
    /// Callers that wait for the next due time; answered when no loading page can change it.
    pub(super) asked: Vec<ReplyTo>,
}

/// A page for the horizon that is loading.
#[derive(Clone, Copy, Debug)]
pub(super) struct Near {
    /// The page reaches up to this time.
    pub(super) until: u64,
    /// Whether the horizon went back while the page was loading, so that the page is useless.
    pub(super) void: bool,
}

impl Horizon {
    /// The end of what is in memory or being loaded.
    pub(super) fn reach(&self, class: Class) -> Option<Cursor> {
        let c = class as usize;
        self.known[c].max(self.near[c].map(|near| (near.until, MessageId(u64::MAX))))
    }

    /// Whether everything that is due is in memory.
    pub(super) fn is_caught_up(&self, now: Now) -> bool {
        CLASSES
            .into_iter()
            .all(|class| self.known[class as usize] >= Some((now_of(class, now), MessageId(u64::MAX))))
    }

    /// Whether messages behind the horizon may be due soon.
    pub(super) fn is_soon(&self, now: Now, class: Class) -> bool {
        self.known[class as usize].map_or(0, reached_at) <= now_of(class, now).saturating_add(SOON_MS)
    }

    /// Whether the wheel may hold messages of a class that are not due soon.
    pub(super) fn is_ahead(&self, now: Now, class: Class) -> bool {
        let c = class as usize;
        let soon = now_of(class, now).saturating_add(SOON_MS);
        self.beyond[c] > 0 || self.known[c] > Some((soon, MessageId(u64::MAX)))
    }

    /// Whether the message of a class that is due first is known, if it is due at `first` by what is in memory. One
    /// behind the horizon may be there by chance, before others that are due before it.
    pub(super) fn is_first_known(&self, class: Class, first: Option<u64>) -> bool {
        let c = class as usize;
        let is_within = first.is_some_and(|time| self.known[c].is_some_and(|known| time <= known.0));
        (self.near[c].is_none() && self.cuts[c].is_none()) || is_within
    }

    /// Notes that a message was scheduled.
    pub(super) fn note_scheduled(&mut self, due: Due, id: MessageId) {
        let c = due.class() as usize;
        self.beyond[c] += usize::from(Some((due.raw(), id)) > self.known[c]);
    }

    /// Moves the horizon back. Messages scheduled behind it are to leave memory.
    pub(super) fn move_back(&mut self, class: Class, to: Cursor) {
        let c = class as usize;
        if self.known[c] >= Some(to) {
            self.beyond[c] = 0;
        }
        // Without a horizon nothing is known to be in memory, and that does not change here.
        let to = self.known[c].map_or(to, |known| known.min(to));
        self.known[c] = self.known[c].map(|_| to);
        if let Some(near) = &mut self.near[c] {
            near.void = true;
        }
        let is_cut_already = |cut: &Cut| cut.place() <= (to.0, to.1.0);
        if !self.cuts[c].as_ref().is_some_and(is_cut_already) {
            self.cuts[c] = Some(Cut::after(to.0, to.1.0));
        }
    }
}

/// The time at which messages behind a horizon come due.
pub(super) fn reached_at((time, id): Cursor) -> u64 {
    time.saturating_add(u64::from(id.0 == u64::MAX))
}

/// The time now on the clock of a class.
pub(super) fn now_of(class: Class, now: Now) -> u64 {
    match class {
        Class::At => now.wall.0,
        Class::After => now.engine.0,
    }
}
