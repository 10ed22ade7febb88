//! The horizon: the due time up to which messages are in memory, for each clock class; and the pages that are being
//! loaded from the store, with what has changed since they were asked for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use duewheel_wheel::Cut;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::id::{Lsn, MessageId, ReplyTo};
use crate::message::MessageContent;
use crate::name::QueueName;
use crate::record::Record;
use crate::store::Cursor;
use crate::time::{Class, Due, Now};

use super::rows::QueueIdx;

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

/// Loads in progress, and the changes since they were requested.
#[derive(Debug, Default)]
pub(super) struct Loading {
    pub(super) tickets: u64,
    pub(super) flights: BTreeMap<u64, Flight>,
    /// Number of backlog pages that are loading.
    pub(super) backlogs: usize,
    /// Queues with a backlog, for each clock class, and some that had one.
    pub(super) limited: [BTreeSet<QueueIdx>; 2],
    /// The queues among them that pages for the others leave out.
    pub(super) left_out: [LeftOut; 2],
    /// Number of pages of possibly expired dead messages that are loading.
    pub(super) dead: usize,
    /// Messages that changed during a load: a page's row of such a message may be older.
    touched: HashMap<MessageId, Lsn, FixedState>,
    /// The changes of messages in order, to be forgotten when no page can be older.
    touches: VecDeque<(Lsn, MessageId)>,
    /// Purges during a load. The queue may have vanished and come back since.
    purges: BTreeMap<QueueName, Lsn>,
    pub(super) state: LoadState,
}

/// Queues that are left out of pages for the others: few, so that a page can name them, and those that spare the most
/// reading.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    pub(super) names: BTreeSet<QueueName>,
    /// The list for pages, as long as it is valid.
    pub(super) list: Option<Arc<[QueueName]>>,
}

/// Whether every lease is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LoadState {
    #[default]
    Closed,
    Open,
}

/// A page that is loading.
#[derive(Debug)]
pub(super) struct Flight {
    /// The page shows at least everything up to here.
    pub(super) asked: Lsn,
    pub(super) what: PagePurpose,
}

/// The purpose of a page.
#[derive(Debug)]
pub(super) enum PagePurpose {
    /// Leases, at the start.
    Leased,
    /// The next messages of all queues except those with a backlog.
    Near(Class, Arc<[QueueName]>, Option<Cursor>),
    /// The next messages of a queue with a backlog.
    Backlog(Class, QueueName),
    /// Dead messages of a queue that may have expired.
    Dead(QueueName),
    /// A page for an answer.
    Gather(u64),
}

impl Loading {
    pub(super) fn touch(&mut self, record: &Record, lsn: Lsn) {
        if self.flights.is_empty() {
            return;
        }
        if let Record::Purged { queue, .. } = record {
            self.purges.insert(queue.clone(), lsn);
        }
        let Some(id) = record.message() else { return };
        self.touched.insert(id, lsn);
        self.touches.push_back((lsn, id));
    }

    /// Whether the message has changed or was purged since.
    pub(super) fn is_newer(&self, message: &MessageContent, as_of: Lsn) -> bool {
        self.touched.get(&message.id).is_some_and(|&lsn| lsn > as_of)
            || self.purges.get(&message.queue).is_some_and(|&lsn| lsn > as_of)
    }

    /// Forgets changes that every loading page already shows.
    pub(super) fn forget(&mut self) {
        let oldest = self.flights.values().map(|f| f.asked).min().unwrap_or(Lsn(u64::MAX));
        self.purges.retain(|_, lsn| *lsn > oldest);
        while let Some(&(lsn, id)) = self.touches.front() {
            if lsn > oldest {
                return;
            }
            self.touches.pop_front();
            if self.touched.get(&id) == Some(&lsn) {
                self.touched.remove(&id);
            }
        }
    }
}
