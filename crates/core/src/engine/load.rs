//! What comes from the store: pages at the start, and messages found for an operation.

use std::collections::BTreeMap;

use crate::id::{Lsn, MessageId};
use crate::message::Row;
use crate::record::Record;
use crate::store::{Found, Load, Loaded, More, Sequence};
use crate::time::Now;

use super::Engine;
use super::effect::{Effect, Effects};

/// What is being loaded, and what has changed meanwhile.
#[derive(Debug, Default)]
pub(super) struct Loading {
    in_flight: u32,
    /// Sequences still to be loaded before the engine is open.
    left: Vec<Sequence>,
    /// Messages that changed while a load was in flight: what the page says of them may be older.
    touched: BTreeMap<MessageId, Lsn>,
    state: LoadState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LoadState {
    #[default]
    Closed,
    Open,
}

impl Loading {
    pub(super) fn touch(&mut self, record: &Record, lsn: Lsn) {
        if self.in_flight == 0 {
            return;
        }
        match record {
            Record::Put { message, .. } => {
                self.touched.insert(message.id, lsn);
            }
            Record::Changed { id, .. } | Record::Granted { id, .. } | Record::Removed { id, .. } => {
                self.touched.insert(*id, lsn);
            }
            Record::Queue { .. } | Record::Purged { .. } | Record::Deduped(_) => {}
        }
    }
}

impl Engine {
    /// Starts to load what the store holds. No request may be handled before [`Engine::is_open`].
    pub fn start(&mut self, fx: &mut Effects) {
        self.loading.left = Sequence::ALL.to_vec();
        self.load_next(fx);
    }

    /// Whether everything that must be in memory has been loaded.
    pub fn is_open(&self) -> bool {
        self.loading.state == LoadState::Open
    }

    fn load_next(&mut self, fx: &mut Effects) {
        if let Some(sequence) = self.loading.left.pop() {
            self.ask(sequence, None, fx);
        } else {
            self.loading.state = LoadState::Open;
        }
    }

    fn ask(&mut self, sequence: Sequence, after: Option<(u64, MessageId)>, fx: &mut Effects) {
        self.loading.in_flight += 1;
        fx.push(Effect::Load(Load {
            sequence,
            ticket: 0,
            which: crate::store::Which::All,
            after,
            until: u64::MAX,
            rows: self.policy.load_rows,
            bytes: self.policy.load_bytes,
        }));
    }

    pub(super) fn take_loaded(&mut self, now: Now, loaded: Loaded, fx: &mut Effects) {
        self.loading.in_flight = self.loading.in_flight.saturating_sub(1);
        let last = loaded.upto;
        for row in loaded.rows {
            self.take_row(now, row, loaded.as_of, fx);
        }
        if self.loading.in_flight == 0 {
            self.loading.touched.clear();
        }
        match (loaded.more, last) {
            (More::Yes, Some(cursor)) => self.ask(loaded.load.sequence, Some(cursor), fx),
            (More::Yes, None) | (More::No, _) => {
                let was_open = self.is_open();
                self.load_next(fx);
                if self.is_open() && !was_open && self.bound_leases == super::BoundLeases::Release {
                    self.release_bound(now, fx);
                }
            }
        }
    }

    /// Takes a message in as the store had it at `as_of`, unless more is known of it here.
    fn take_row(&mut self, now: Now, row: Row, as_of: Lsn, fx: &mut Effects) {
        let id = row.message.id;
        let known = self.rows.slot(id).is_some();
        let newer = self.loading.touched.get(&id).is_some_and(|&lsn| lsn > as_of);
        let queue = self.queues.find(&row.message.queue);
        let purged = queue.is_some_and(|idx| self.queues.get(idx).purged > as_of);
        if !known && !newer && !purged {
            self.insert_row(now, row, as_of, as_of, fx);
        }
    }

    /// Takes messages in that were found in the store for an operation of this batch.
    pub(super) fn adopt(&mut self, now: Now, found: &Found) {
        if found.rows.is_empty() {
            return;
        }
        let mut none = Effects::new();
        for row in &found.rows {
            self.take_row(now, row.clone(), self.last, &mut none);
        }
        debug_assert!(
            none.iter().all(|fx| matches!(fx, Effect::Notice(_))),
            "taking a row in decides nothing"
        );
    }
}
