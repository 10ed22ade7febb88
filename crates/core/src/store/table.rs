//! The fold of all records: what a store that keeps everything in memory knows.
//!
//! The memory store is this table; the log store rebuilds it from its journal. It applies, and never decides.

use std::collections::BTreeMap;

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashTable};

use super::{Cursor, Found, Load, Loaded, Lookups, More, QueueRow, Recovered, Sequence};
use crate::id::{Epoch, Lsn, MessageId};
use crate::message::{Row, Stage};
use crate::name::{Key, QueueName};
use crate::policy::QueueSettings;
use crate::record::{ClockPair, DedupeRow, Group, Known, Pause, Record, Totals};
use crate::time::{Class, EngineMs};

/// Every unsettled message, every queue, every remembered answer, as of the last group applied.
#[derive(Debug)]
pub struct Table {
    rows: HashMap<MessageId, Stored, FixedState>,
    /// Ids of keyed messages, hashed by (queue, key); the names are compared in `rows`.
    keys: HashTable<MessageId>,
    hasher: FixedState,
    queues: BTreeMap<QueueName, QueueState>,
    dedupe: HashMap<(QueueName, Box<str>), DedupeRow, FixedState>,
    clock: Option<ClockPair>,
    applied: Lsn,
    next_id: u64,
    /// Rows in load order, built when a load asks and dropped by the next change.
    sorted: Option<[Vec<Cursor>; 4]>,
}

#[derive(Debug)]
struct Stored {
    row: Row,
    /// The record that put it; a purge takes what is older than itself.
    born: Lsn,
}

#[derive(Debug, Default)]
struct QueueState {
    settings: QueueSettings,
    pause: Pause,
    totals: Totals,
    messages: u64,
}

impl Default for Table {
    fn default() -> Self {
        Table {
            rows: HashMap::with_hasher(FixedState::with_seed(1)),
            keys: HashTable::new(),
            hasher: FixedState::with_seed(2),
            queues: BTreeMap::new(),
            dedupe: HashMap::with_hasher(FixedState::with_seed(3)),
            clock: None,
            applied: Lsn(0),
            next_id: 1,
            sorted: None,
        }
    }
}

impl Table {
    /// The position of the last record applied.
    pub fn applied(&self) -> Lsn {
        self.applied
    }

    /// Unsettled messages.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether nothing is unsettled.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The clocks as noted last.
    pub fn clock(&self) -> Option<ClockPair> {
        self.clock
    }

    /// Notes the clocks; also frees answers that are forgotten by then, when there are many.
    pub fn note_clock(&mut self, clock: ClockPair) {
        self.clock = Some(clock);
    }

    /// Applies a group whose first record follows the last one applied.
    pub fn apply(&mut self, group: &Group) {
        for (lsn, record) in (group.first.0..).zip(&group.records) {
            self.apply_record(Lsn(lsn), record);
        }
        self.clock = Some(group.clock);
    }

    /// Applies one record.
    pub fn apply_record(&mut self, lsn: Lsn, record: &Record) {
        self.applied = lsn;
        self.sorted = None;
        match record {
            Record::Put { message, life } => {
                let row = Row { message: message.clone(), life: life.clone() };
                self.put(lsn, row, record);
            }
            Record::Changed { id, life } => {
                if let Some(stored) = self.rows.get_mut(id) {
                    stored.row.life.clone_from(life);
                    count(&mut self.queues, &stored.row.message.queue, record);
                }
            }
            Record::Granted { id, attempt, lease } => {
                if let Some(stored) = self.rows.get_mut(id) {
                    stored.row.life.attempt = *attempt;
                    stored.row.life.stage = Stage::Leased(*lease);
                    count(&mut self.queues, &stored.row.message.queue, record);
                }
            }
            Record::Removed { id, .. } => {
                if let Some(row) = self.remove(*id) {
                    count(&mut self.queues, &row.message.queue, record);
                    self.forget_if_empty(&row.message.queue);
                }
            }
            Record::Queue { name, settings, pause } => {
                let queue = self.queues.entry(name.clone()).or_default();
                queue.settings = settings.clone();
                queue.pause = *pause;
                self.forget_if_empty(name);
            }
            Record::Purged { queue, keep, .. } => {
                let gone: Vec<MessageId> = {
                    #[allow(clippy::iter_over_hash_type)] // sorted below
                    let mut ids: Vec<MessageId> = self
                        .rows
                        .iter()
                        .filter(|(id, s)| {
                            s.row.message.queue == *queue && s.born < lsn && keep.binary_search(id).is_err()
                        })
                        .map(|(id, _)| *id)
                        .collect();
                    ids.sort_unstable();
                    ids
                };
                for id in gone {
                    self.remove(id);
                }
                count(&mut self.queues, queue, record);
                self.forget_if_empty(queue);
            }
            Record::Deduped(row) => {
                self.dedupe.insert((row.queue.clone(), row.dedupe_id.clone()), row.clone());
            }
        }
    }

    /// Takes a row in as a checkpoint holds it, without counting it as new.
    pub fn restore_row(&mut self, row: Row) {
        self.next_id = self.next_id.max(row.message.id.0 + 1);
        self.sorted = None;
        self.queues.entry(row.message.queue.clone()).or_default().messages += 1;
        self.index_key(&row);
        self.rows.insert(row.message.id, Stored { row, born: self.applied });
    }

    /// Takes a queue in as a checkpoint holds it. Rows are restored before or after.
    pub fn restore_queue(&mut self, row: QueueRow) {
        let queue = self.queues.entry(row.name).or_default();
        queue.settings = row.settings;
        queue.pause = row.pause;
        queue.totals = row.totals;
    }

    /// Takes a remembered answer in as a checkpoint holds it.
    pub fn restore_dedupe(&mut self, row: DedupeRow) {
        self.dedupe.insert((row.queue.clone(), row.dedupe_id.clone()), row);
    }

    /// Takes positions in as a checkpoint holds them.
    pub fn restore_counters(&mut self, applied: Lsn, next_id: u64, clock: Option<ClockPair>) {
        self.applied = applied;
        self.next_id = self.next_id.max(next_id);
        self.clock = clock;
    }

    /// What the owner needs at the start.
    pub fn recovered(&self, epoch: Epoch) -> Recovered {
        Recovered {
            epoch,
            next_lsn: self.applied.next(),
            next_id: self.next_id,
            clock: self.clock,
            queues: self.queue_rows(),
            dedupe: self.dedupe_rows(),
            messages: self.rows.len() as u64,
        }
    }

    /// All queues, by name.
    pub fn queue_rows(&self) -> Vec<QueueRow> {
        self.queues
            .iter()
            .map(|(name, q)| QueueRow {
                name: name.clone(),
                settings: q.settings.clone(),
                pause: q.pause,
                totals: q.totals,
            })
            .collect()
    }

    /// All remembered answers that count after the last noted time, in order of (queue, id).
    pub fn dedupe_rows(&self) -> Vec<DedupeRow> {
        let now = self.clock.map_or(EngineMs(0), |c| c.engine);
        let mut rows: Vec<DedupeRow> = self.dedupe.values().filter(|r| r.until > now).cloned().collect();
        rows.sort_unstable_by(|a, b| (&a.queue, &a.dedupe_id).cmp(&(&b.queue, &b.dedupe_id)));
        rows
    }

    /// All unsettled messages, in order of id.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = self.rows.values().map(|s| s.row.clone()).collect();
        rows.sort_unstable_by_key(|r| r.message.id);
        rows
    }

    /// The next id.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Obligation 3.
    pub fn find_many(&self, lookups: &Lookups, found: &mut Found) {
        for id in &lookups.ids {
            if let Some(stored) = self.rows.get(id) {
                found.rows.insert(*id, stored.row.clone());
            }
        }
        for (queue, key) in &lookups.keys {
            let hash = self.key_hash(queue, key);
            let hit = self.keys.find(hash, |id| self.holds(*id, queue, key));
            if let Some(stored) = hit.and_then(|id| self.rows.get(id)) {
                let id = stored.row.message.id;
                found.rows.insert(id, stored.row.clone());
                found.keys.insert((queue.clone(), key.clone()), id);
            }
        }
    }

    /// Obligation 4. The first load after a change sorts everything; those that follow read on.
    pub fn load(&mut self, load: Load) -> Loaded {
        let sorted = self.sorted.take().unwrap_or_else(|| self.sort());
        let order = &sorted[load.sequence as usize];
        let start = load.after.map_or(0, |after| order.partition_point(|c| *c <= after));
        let mut rows = Vec::new();
        let mut bytes = 0;
        let mut more = More::No;
        for &(time, id) in &order[start..] {
            if time > load.until {
                break;
            }
            let Some(stored) = self.rows.get(&id) else { continue };
            if load.queue.as_ref().is_some_and(|q| *q != stored.row.message.queue) {
                continue;
            }
            if rows.len() >= load.rows || (bytes >= load.bytes && !rows.is_empty()) {
                more = More::Yes;
                break;
            }
            bytes += stored.row.message.weight();
            rows.push(stored.row.clone());
        }
        self.sorted = Some(sorted);
        Loaded { load, as_of: self.applied, rows, more }
    }

    fn sort(&self) -> [Vec<Cursor>; 4] {
        let mut sorted: [Vec<Cursor>; 4] = Default::default();
        #[allow(clippy::iter_over_hash_type)] // sorted below
        for stored in self.rows.values() {
            let (sequence, time) = place(&stored.row);
            sorted[sequence as usize].push((time, stored.row.message.id));
        }
        for order in &mut sorted {
            order.sort_unstable();
        }
        sorted
    }

    fn put(&mut self, lsn: Lsn, row: Row, record: &Record) {
        let id = row.message.id;
        self.next_id = self.next_id.max(id.0 + 1);
        let known = if self.remove(id).is_some() { Known::Yes } else { Known::No };
        let queue = self.queues.entry(row.message.queue.clone()).or_default();
        queue.totals.count(record, known);
        queue.messages += 1;
        self.index_key(&row);
        self.rows.insert(id, Stored { row, born: lsn });
    }

    fn remove(&mut self, id: MessageId) -> Option<Row> {
        let row = self.rows.remove(&id)?.row;
        if let Some(key) = &row.message.key {
            let hash = self.key_hash(&row.message.queue, key);
            if let Ok(entry) = self.keys.find_entry(hash, |held| *held == id) {
                entry.remove();
            }
        }
        if let Some(queue) = self.queues.get_mut(&row.message.queue) {
            queue.messages -= 1;
        }
        Some(row)
    }

    fn index_key(&mut self, row: &Row) {
        // Dead messages keep their key on the row, but do not hold it; see `holds`.
        if let Some(key) = &row.message.key {
            let hash = self.key_hash(&row.message.queue, key);
            let (rows, hasher) = (&self.rows, &self.hasher);
            self.keys.insert_unique(hash, row.message.id, |id| {
                rows.get(id).map_or(0, |s| hash_key(hasher, &s.row.message.queue, s.row.message.key.as_ref()))
            });
        }
    }

    /// Whether the message holds the key: a dead one has left it free.
    fn holds(&self, id: MessageId, queue: &QueueName, key: &Key) -> bool {
        self.rows.get(&id).is_some_and(|s| {
            s.row.message.queue == *queue
                && s.row.message.key.as_ref() == Some(key)
                && !matches!(s.row.life.stage, Stage::Dead { .. })
        })
    }

    fn key_hash(&self, queue: &QueueName, key: &Key) -> u64 {
        hash_key(&self.hasher, queue, Some(key))
    }

    fn forget_if_empty(&mut self, name: &QueueName) {
        let empty = self.queues.get(name).is_some_and(|q| {
            q.messages == 0 && q.settings == QueueSettings::default() && q.pause == Pause::Running
        });
        if empty {
            self.queues.remove(name);
        }
    }
}

fn hash_key(hasher: &FixedState, queue: &QueueName, key: Option<&Key>) -> u64 {
    use std::hash::BuildHasher;
    hasher.hash_one((queue.as_str(), key.map(Key::as_str)))
}

fn count(queues: &mut BTreeMap<QueueName, QueueState>, name: &QueueName, record: &Record) {
    if let Some(queue) = queues.get_mut(name) {
        queue.totals.count(record, Known::Yes);
    }
}

/// In which sequence a row is, and where.
pub(crate) fn place(row: &Row) -> (Sequence, u64) {
    match &row.life.stage {
        Stage::Waiting { .. } => match row.life.due.class() {
            Class::At => (Sequence::At, row.life.due.raw()),
            Class::After => (Sequence::After, row.life.due.raw()),
        },
        Stage::Leased(lease) => (Sequence::Leased, lease.until.0),
        Stage::Dead { at, .. } => (Sequence::Dead, at.0),
    }
}
