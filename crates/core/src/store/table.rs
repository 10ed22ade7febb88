//! The fold of all records with every message in memory: the memory store, and the model that other stores are compared
//! with.
//!
//! The table applies records, and never decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::ledger::Ledger;
use super::{Cursor, FOUND_AHEAD, Found, Load, Loaded, Lookups, More, QueueRow, Recovered, Sequence, Which};
use crate::id::{Epoch, Lsn, MessageId};
use crate::message::{Row, Stage};
use crate::name::{Key, QueueName};
use crate::record::{ClockPair, DedupeRow, Group, Record};
use crate::time::{Class, EngineMs};

/// Number of dead messages that are found for a key, the newest ones, besides the one that holds it.
pub const DEAD_FOUND: usize = 8;

/// Every unsettled message, every queue, every remembered answer, as of the last group applied.
#[derive(Debug, Default)]
pub struct Table {
    rows: BTreeMap<MessageId, Stored>,
    keys: BTreeMap<(QueueName, Key), BTreeSet<MessageId>>,
    /// Every message in its sequences, over all queues and in its own.
    order: BTreeSet<(Sequence, u64, MessageId)>,
    by_queue: BTreeMap<QueueName, BTreeSet<(Sequence, u64, MessageId)>>,
    answers: BTreeMap<(QueueName, Box<str>), DedupeRow>,
    answer_ends: BTreeSet<(EngineMs, QueueName, Box<str>)>,
    ledger: Ledger,
}

#[derive(Debug)]
struct Stored {
    row: Row,
    /// The record that put it; a purge removes messages that are older than itself.
    born: Lsn,
}

impl Table {
    /// The position of the last record applied.
    pub fn applied(&self) -> Lsn {
        self.ledger.applied()
    }

    /// Number of unsettled messages.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is no unsettled message.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The clocks as recorded last.
    pub fn clock(&self) -> Option<ClockPair> {
        self.ledger.clock()
    }

    /// The books of all queues.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Records the clocks.
    pub fn note_clock(&mut self, clock: ClockPair) {
        self.ledger.note_clock(clock);
        while let Some((until, queue, id)) = self.answer_ends.first().cloned() {
            if until > clock.engine {
                return;
            }
            self.answer_ends.pop_first();
            self.answers.remove(&(queue, id));
        }
    }

    /// Applies a group whose first record follows the last one applied.
    pub fn apply(&mut self, group: &Group) {
        for (lsn, record) in (group.first.0..).zip(&group.records) {
            self.apply_record(Lsn(lsn), record);
        }
        self.note_clock(group.clock);
    }

    /// Applies one record.
    pub fn apply_record(&mut self, lsn: Lsn, record: &Record) {
        self.ledger.apply(lsn, record);
        match record {
            Record::Put { message, life, .. } => {
                self.remove(message.id);
                self.insert(Row { message: message.clone(), life: life.clone() }, lsn);
            }
            Record::Changed { id, life, .. } => self.change(*id, |row| row.life.clone_from(life)),
            Record::Granted { id, attempt, lease, .. } => self.change(*id, |row| {
                row.life.attempt = *attempt;
                row.life.stage = Stage::Leased(*lease);
            }),
            Record::Removed { id, .. } => {
                self.remove(*id);
            }
            Record::Queue { .. } => {}
            Record::Purged { queue, keep, .. } => {
                let Some(places) = self.by_queue.get(queue) else { return };
                let gone: BTreeSet<MessageId> = places
                    .iter()
                    .map(|(_, _, id)| *id)
                    .filter(|id| !keep.contains(*id))
                    .filter(|id| self.rows.get(id).is_some_and(|s| s.born < lsn))
                    .collect();
                for id in gone {
                    self.remove(id);
                }
            }
            Record::Deduped(row) => {
                let name = (row.queue.clone(), row.dedupe_id.clone());
                self.answer_ends.insert((row.until, name.0.clone(), name.1.clone()));
                if let Some(old) = self.answers.insert(name, row.clone())
                    && old.until != row.until
                {
                    self.answer_ends.remove(&(old.until, old.queue, old.dedupe_id));
                }
            }
            Record::AnswersForgotten { queue, .. } => {
                let ledger = &self.ledger;
                let of_queue = self.answers.range((queue.clone(), "".into())..);
                let gone: Vec<_> = of_queue
                    .take_while(|((of, _), _)| of == queue)
                    .filter(|(_, row)| !ledger.remembers(row))
                    .map(|(name, row)| (name.clone(), row.until))
                    .collect();
                for (name, until) in gone {
                    self.answers.remove(&name);
                    self.answer_ends.remove(&(until, name.0, name.1));
                }
            }
        }
    }

    /// The state that the owner needs at startup.
    pub fn recovered(&self, epoch: Epoch) -> Recovered {
        Recovered {
            epoch,
            tokens: 0,
            next_lsn: self.applied().next(),
            next_id: self.ledger.next_id().0,
            clock: self.clock(),
            as_of: None,
            anchor: None,
            due: self.ledger.due().clone(),
            queues: self.queue_rows(),
        }
    }

    /// All queues, by name.
    pub fn queue_rows(&self) -> Vec<QueueRow> {
        self.ledger.rows().collect()
    }

    /// All remembered answers that are valid at the last recorded time, in order of (queue, id).
    pub fn answers(&self) -> Vec<DedupeRow> {
        self.answers.values().filter(|row| self.counts(row)).cloned().collect()
    }

    /// All unsettled messages, in order of id.
    pub fn rows(&self) -> Vec<Row> {
        self.rows.values().map(|s| s.row.clone()).collect()
    }

    /// A message and the position of the record that put it.
    pub fn row(&self, id: MessageId) -> Option<(&Row, Lsn)> {
        self.rows.get(&id).map(|s| (&s.row, s.born))
    }

    /// The next id.
    pub fn next_id(&self) -> u64 {
        self.ledger.next_id().0
    }

    /// Finds messages and answers (obligation 3).
    pub fn find_many(&self, lookups: &Lookups, found: &mut Found) {
        let mut wanted: BTreeSet<MessageId> = BTreeSet::new();
        let mut weight = 0;
        let mut want = |id: MessageId| {
            let row = self.rows.get(&id).filter(|_| wanted.insert(id));
            weight += row.map_or(0, |s| s.row.weight());
            weight
        };
        let is_last = |made: usize, weight: usize| made >= FOUND_AHEAD && weight >= lookups.bytes;
        let mut made = 0;
        for id in &lookups.ids {
            made += 1;
            if is_last(made, want(*id)) {
                break;
            }
        }
        found.left.ids = lookups.ids.len() - made;
        made = 0;
        for name in &lookups.keys {
            made += 1;
            let mut weight = 0;
            for id in self.with_key(name) {
                weight = want(id);
            }
            if is_last(made, weight) {
                break;
            }
        }
        found.left.keys = lookups.keys.len() - made;
        found.rows.extend(wanted.iter().filter_map(|id| self.rows.get(id)).map(|s| s.row.clone()));
        for name in &lookups.answers {
            found.answers.extend(self.answers.get(name).filter(|row| self.counts(row)).cloned());
        }
    }

    /// The message that holds a key, and the newest dead ones that had it.
    fn with_key<'a>(&'a self, name: &(QueueName, Key)) -> impl Iterator<Item = MessageId> + 'a {
        let is_dead = |id: &&MessageId| {
            self.rows.get(id).is_some_and(|s| matches!(s.row.life.stage, Stage::Dead { .. }))
        };
        let with_key = self.keys.get(name);
        let alive = with_key.into_iter().flatten().filter(move |id| !is_dead(id));
        let dead = with_key.into_iter().flat_map(|ids| ids.iter().rev()).filter(is_dead).take(DEAD_FOUND);
        alive.chain(dead).copied()
    }

    /// Loads a page (obligation 4).
    pub fn load(&self, load: Load) -> Loaded {
        let (mut rows, mut bytes, mut upto, mut more) = (Vec::new(), 0, None, More::No);
        let none = BTreeSet::new();
        let order = match &load.which {
            Which::All | Which::AllBut(_) => &self.order,
            Which::One(queue) => self.by_queue.get(queue).unwrap_or(&none),
        };
        use std::ops::Bound::{Excluded, Included};
        let from = match load.after {
            None => Included((load.sequence, 0, MessageId(0))),
            Some((time, id)) => Excluded((load.sequence, time, id)),
        };
        let to = (load.sequence, load.until, MessageId(u64::MAX));
        let range = if load.after.is_some_and(|(time, id)| (load.sequence, time, id) >= to) {
            None
        } else {
            Some(order.range((from, Included(to))))
        };
        for (_, time, id) in range.into_iter().flatten() {
            let Some(Stored { row, .. }) = self.rows.get(id) else { continue };
            if let Which::AllBut(queues) = &load.which
                && queues.binary_search(&row.message.queue).is_ok()
            {
                continue;
            }
            if rows.len() >= load.rows || (bytes >= load.bytes && !rows.is_empty()) {
                more = More::Yes;
                break;
            }
            bytes += row.weight();
            upto = Some((*time, *id));
            rows.push(row.clone());
        }
        Loaded { load, as_of: self.applied(), rows, upto, more }
    }

    fn insert(&mut self, row: Row, born: Lsn) {
        let id = row.message.id;
        if let Some(key) = &row.message.key {
            self.keys.entry((row.message.queue.clone(), key.clone())).or_default().insert(id);
        }
        let places = self.by_queue.entry(row.message.queue.clone()).or_default();
        for (sequence, time) in places_of(&row) {
            self.order.insert((sequence, time, id));
            places.insert((sequence, time, id));
        }
        self.rows.insert(id, Stored { row, born });
    }

    fn change(&mut self, id: MessageId, change: impl FnOnce(&mut Row)) {
        if let Some(Stored { mut row, born }) = self.remove(id) {
            change(&mut row);
            self.insert(row, born);
        }
    }

    fn remove(&mut self, id: MessageId) -> Option<Stored> {
        let stored = self.rows.remove(&id)?;
        let message: &Arc<_> = &stored.row.message;
        if let Some(key) = &message.key {
            let name = (message.queue.clone(), key.clone());
            if let Some(ids) = self.keys.get_mut(&name) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.keys.remove(&name);
                }
            }
        }
        if let Some(places) = self.by_queue.get_mut(&message.queue) {
            for (sequence, time) in places_of(&stored.row) {
                self.order.remove(&(sequence, time, id));
                places.remove(&(sequence, time, id));
            }
            if places.is_empty() {
                self.by_queue.remove(&message.queue);
            }
        }
        Some(stored)
    }

    fn counts(&self, row: &DedupeRow) -> bool {
        row.until > self.clock().map_or(EngineMs(0), |c| c.engine)
    }
}

/// The sequences of a row, with its position in each.
pub fn places_of(row: &Row) -> [(Sequence, u64); 2] {
    let (due, class) = (row.life.due.raw(), row.life.due.class());
    let by_due = match class {
        Class::At => Sequence::AllAt,
        Class::After => Sequence::AllAfter,
    };
    let by_stage = match &row.life.stage {
        Stage::Waiting { .. } => match class {
            Class::At => (Sequence::At, due),
            Class::After => (Sequence::After, due),
        },
        Stage::Leased(lease) => (Sequence::Leased, lease.until.0),
        Stage::Dead { at, .. } => (Sequence::Dead, at.raw()),
    };
    [(by_due, due), by_stage]
}

/// The position of a row in a sequence; `None` if the row is not in it.
pub fn place_in(sequence: Sequence, row: &Row) -> Option<Cursor> {
    let place = places_of(row).into_iter().find(|(s, _)| *s == sequence);
    place.map(|(_, time)| (time, row.message.id))
}
