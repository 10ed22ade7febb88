//! Pages that are being loaded from the store, and what has changed since they were asked for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::id::{Lsn, MessageId};
use crate::message::MessageContent;
use crate::name::QueueName;
use crate::record::Record;
use crate::store::Cursor;
use crate::time::Class;

use super::index::QueueIdx;

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
        let id = match record {
            Record::Put { message, .. } => message.id,
            Record::Changed { id, .. } | Record::Granted { id, .. } | Record::Removed { id, .. } => *id,
            Record::Purged { queue, .. } => {
                self.purges.insert(queue.clone(), lsn);
                return;
            }
            Record::Queue { .. } | Record::Deduped(_) | Record::AnswersForgotten { .. } => return,
        };
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
