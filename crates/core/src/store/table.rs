//! The fold of all records: what a store that keeps everything in memory knows.
//!
//! The memory store is this table; the log store rebuilds it from its journal, and folds its checkpoints with it. It
//! applies, and never decides.
//!
//! | part | holds | found by |
//! |---|---|---|
//! | `rows` | every unsettled message | slot |
//! | `ids` | slot of a message | id |
//! | `keys` | slot of a message with a key | hash of (queue, key), compared in `rows` |
//! | `queues` | settings, pause, totals, number of messages | number; its name |
//! | `order` | cursors in load order, from the first load on | sequence |

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashTable};

use self::hash::ById;
use self::order::{Order, Walk};
use self::slab::{Slab, Slot};
use super::{Cursor, Found, Load, Loaded, Lookups, More, QueueRow, Recovered, Sequence};
use crate::id::{Epoch, Lsn, MessageId};
use crate::message::{Message, Row, Stage};
use crate::name::{Key, QueueName};
use crate::policy::QueueSettings;
use crate::record::{ClockPair, DedupeRow, Group, Known, Pause, Record, Totals};
use crate::time::{Class, EngineMs};

mod hash;
mod order;
mod slab;

/// Every unsettled message, every queue, every remembered answer, as of the last group applied.
///
/// A table may be *partial*, as the fold of a checkpoint is: it then knows of messages that it does not hold only how
/// many there are of each queue ([`Table::restore_absent`]).
#[derive(Debug)]
pub struct Table {
    rows: Slab<Stored>,
    ids: HashMap<MessageId, Slot, ById>,
    keys: HashTable<KeyEntry>,
    hasher: FixedState,
    queues: Queues,
    dedupe: HashTable<DedupeRow>,
    /// Sweep forgotten answers when there are so many.
    dedupe_sweep: usize,
    clock: Option<ClockPair>,
    applied: Lsn,
    next_id: u64,
    /// Weight of all rows held.
    bytes: u64,
    /// `None` until the first load, and again when changes outnumber the rows.
    order: Option<Order>,
}

#[derive(Debug)]
struct Stored {
    row: Row,
    /// The record that put it; a purge takes what is older than itself.
    born: Lsn,
    queue: QueueNumber,
}

/// The hash is kept so that growing the index reads no row.
#[derive(Debug)]
struct KeyEntry {
    hash: u64,
    slot: Slot,
}

type QueueNumber = u32;

#[derive(Debug)]
struct Queues {
    numbers: HashMap<QueueName, QueueNumber, FixedState>,
    states: Slab<QueueState>,
    /// The queue asked for last: groups mostly stay with one.
    last: Option<QueueNumber>,
}

#[derive(Debug)]
struct QueueState {
    name: QueueName,
    settings: QueueSettings,
    pause: Pause,
    totals: Totals,
    /// Messages held here.
    messages: u64,
    /// Messages of this queue that a partial table does not hold.
    absent: u64,
}

const DEDUPE_SWEEP_AT_LEAST: usize = 1024;

impl Default for Table {
    fn default() -> Self {
        Table {
            rows: Slab::default(),
            ids: HashMap::with_hasher(ById),
            keys: HashTable::new(),
            hasher: FixedState::with_seed(2),
            queues: Queues {
                numbers: HashMap::with_hasher(FixedState::with_seed(1)),
                states: Slab::default(),
                last: None,
            },
            dedupe: HashTable::new(),
            dedupe_sweep: DEDUPE_SWEEP_AT_LEAST,
            clock: None,
            applied: Lsn(0),
            next_id: 1,
            bytes: 0,
            order: None,
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
        self.ids.len()
    }

    /// Whether nothing is unsettled.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Roughly the bytes that all rows take when they are encoded.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The clocks as noted last.
    pub fn clock(&self) -> Option<ClockPair> {
        self.clock
    }

    /// Notes the clocks.
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
        match record {
            Record::Put { message, life } => {
                let row = Row { message: message.clone(), life: life.clone() };
                self.put(lsn, row, record);
            }
            Record::Changed { id, life } => {
                self.change(*id, record, |row| row.life.clone_from(life));
            }
            Record::Granted { id, attempt, lease } => {
                self.change(*id, record, |row| {
                    row.life.attempt = *attempt;
                    row.life.stage = Stage::Leased(*lease);
                });
            }
            Record::Removed { id, .. } => {
                if let Some(stored) = self.remove(*id) {
                    self.queues.states[stored.queue].totals.count(record, Known::Yes);
                    self.queues.forget_if_empty(stored.queue);
                }
            }
            Record::Queue { name, settings, pause } => {
                let number = self.queues.number(name);
                let queue = &mut self.queues.states[number];
                queue.settings = settings.clone();
                queue.pause = *pause;
                self.queues.forget_if_empty(number);
            }
            Record::Purged { queue, keep, .. } => {
                let Some(number) = self.queues.find(queue) else { return };
                let gone: Vec<MessageId> = self
                    .rows
                    .iter()
                    .filter(|s| s.queue == number && s.born < lsn)
                    .map(|s| s.row.message.id)
                    .filter(|id| keep.binary_search(id).is_err())
                    .collect();
                for id in gone {
                    self.remove(id);
                }
                let queue = &mut self.queues.states[number];
                queue.absent = 0;
                queue.totals.count(record, Known::Yes);
                self.queues.forget_if_empty(number);
            }
            Record::Deduped(row) => self.remember(row.clone()),
        }
    }

    /// Applies a record that was read from somewhere and is nobody else's: names are shared instead of kept once for each
    /// message.
    pub fn apply_read(&mut self, lsn: Lsn, mut record: Record) {
        if let Record::Put { message, .. } = &mut record {
            self.share_name(message);
        }
        self.apply_record(lsn, &record);
    }

    /// Takes a row in as a checkpoint holds it, without counting it as new. It counts as born at [`Table::applied`].
    pub fn restore_row(&mut self, mut row: Row) {
        self.share_name(&mut row.message);
        self.next_id = self.next_id.max(row.message.id.0.saturating_add(1));
        self.remove(row.message.id);
        let queue = self.queues.number(&row.message.queue);
        self.insert(row, self.applied, queue);
    }

    /// Takes a queue in as a checkpoint holds it. Rows are restored before or after.
    pub fn restore_queue(&mut self, row: QueueRow) {
        let number = self.queues.number(&row.name);
        let queue = &mut self.queues.states[number];
        queue.settings = row.settings;
        queue.pause = row.pause;
        queue.totals = row.totals;
    }

    /// Makes the table partial: so many messages of a queue are not in it. Records that name one of those have no effect;
    /// a purge takes them all.
    pub fn restore_absent(&mut self, queue: &QueueName, messages: u64) {
        let number = self.queues.number(queue);
        self.queues.states[number].absent = messages;
    }

    /// Takes a remembered answer in as a checkpoint holds it.
    pub fn restore_dedupe(&mut self, row: DedupeRow) {
        self.remember(row);
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
            messages: self.len() as u64,
        }
    }

    /// All queues, by name.
    pub fn queue_rows(&self) -> Vec<QueueRow> {
        self.queue_counts().into_iter().map(|(row, _)| row).collect()
    }

    /// All queues, by name, with the number of their messages, absent ones included.
    pub fn queue_counts(&self) -> Vec<(QueueRow, u64)> {
        let mut rows: Vec<(QueueRow, u64)> = self
            .queues
            .states
            .iter()
            .map(|q| {
                let row = QueueRow {
                    name: q.name.clone(),
                    settings: q.settings.clone(),
                    pause: q.pause,
                    totals: q.totals,
                };
                (row, q.messages + q.absent)
            })
            .collect();
        rows.sort_unstable_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        rows
    }

    /// All remembered answers that count after the last noted time, in order of (queue, id).
    pub fn dedupe_rows(&self) -> Vec<DedupeRow> {
        let now = self.engine_now();
        let mut rows: Vec<DedupeRow> = self.dedupe.iter().filter(|r| r.until > now).cloned().collect();
        rows.sort_unstable_by(|a, b| (&a.queue, &a.dedupe_id).cmp(&(&b.queue, &b.dedupe_id)));
        rows
    }

    /// All unsettled messages, in order of id.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = self.rows.iter().map(|s| s.row.clone()).collect();
        rows.sort_unstable_by_key(|r| r.message.id);
        rows
    }

    /// The ids of all unsettled messages, ascending.
    pub fn ids(&self) -> Vec<MessageId> {
        let mut ids: Vec<MessageId> = self.rows.iter().map(|s| s.row.message.id).collect();
        ids.sort_unstable();
        ids
    }

    /// A message and the position of the record that put it.
    pub fn row(&self, id: MessageId) -> Option<(&Row, Lsn)> {
        self.ids.get(&id).map(|&slot| (&self.rows[slot].row, self.rows[slot].born))
    }

    /// The next id.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Obligation 3.
    pub fn find_many(&self, lookups: &Lookups, found: &mut Found) {
        for id in &lookups.ids {
            if let Some((row, _)) = self.row(*id) {
                found.rows.insert(*id, row.clone());
            }
        }
        for (queue, key) in &lookups.keys {
            let hit = self.keys.find(self.key_hash(queue, key), |entry| self.holds(entry.slot, queue, key));
            if let Some(entry) = hit {
                let row = &self.rows[entry.slot].row;
                found.rows.insert(row.message.id, row.clone());
                found.keys.insert((queue.clone(), key.clone()), row.message.id);
            }
        }
    }

    /// Obligation 4. The first load sorts all rows; later ones sort what has changed since.
    pub fn load(&mut self, load: Load) -> Loaded {
        let mut order = self.order.take().filter(|o| o.len() <= 2 * self.len() + 4096).unwrap_or_else(|| {
            let mut order = Order::default();
            for stored in self.rows.iter() {
                let (sequence, time) = place(&stored.row);
                order.note(sequence, (time, stored.row.message.id));
            }
            order
        });
        let queue = load.queue.as_ref().map(|name| self.queues.find(name));
        let mut rows: Vec<Row> = Vec::new();
        let mut bytes = 0;
        let mut more = More::No;
        let live =
            |(time, id): Cursor| self.row(id).is_some_and(|(row, _)| place(row) == (load.sequence, time));
        order.visit(load.sequence, load.after, live, |(time, id)| {
            if time > load.until {
                return Walk::Stop;
            }
            let Some(&slot) = self.ids.get(&id) else { return Walk::On };
            let stored = &self.rows[slot];
            if queue.is_some_and(|wanted| wanted != Some(stored.queue)) {
                return Walk::On;
            }
            if rows.len() >= load.rows || (bytes >= load.bytes && !rows.is_empty()) {
                more = More::Yes;
                return Walk::Stop;
            }
            bytes += stored.row.message.weight();
            rows.push(stored.row.clone());
            Walk::On
        });
        self.order = Some(order);
        Loaded { load, as_of: self.applied, rows, more }
    }

    fn put(&mut self, lsn: Lsn, row: Row, record: &Record) {
        let id = row.message.id;
        // Ids are given in order: most puts are of one that was never seen, and need not be looked for.
        let known = if id.0 < self.next_id && self.remove(id).is_some() { Known::Yes } else { Known::No };
        self.next_id = self.next_id.max(id.0.saturating_add(1));
        let queue = self.queues.number(&row.message.queue);
        self.queues.states[queue].totals.count(record, known);
        self.insert(row, lsn, queue);
    }

    fn share_name(&self, message: &mut Arc<Message>) {
        if let (Some(number), Some(message)) = (self.queues.find(&message.queue), Arc::get_mut(message)) {
            message.queue = self.queues.states[number].name.clone();
        }
    }

    fn insert(&mut self, row: Row, born: Lsn, queue: QueueNumber) {
        let id = row.message.id;
        self.queues.states[queue].messages += 1;
        self.bytes += weight(&row);
        note_place(&mut self.order, self.ids.len(), &row);
        let hash = row.message.key.as_ref().map(|key| self.key_hash(&row.message.queue, key));
        let slot = self.rows.insert(Stored { row, born, queue });
        self.ids.insert(id, slot);
        // Dead messages keep their key on the row, but do not hold it; see `holds`.
        if let Some(hash) = hash {
            self.keys.insert_unique(hash, KeyEntry { hash, slot }, |entry| entry.hash);
        }
    }

    fn change(&mut self, id: MessageId, record: &Record, change: impl FnOnce(&mut Row)) {
        let Some(&slot) = self.ids.get(&id) else { return };
        let stored = &mut self.rows[slot];
        self.bytes -= weight(&stored.row);
        change(&mut stored.row);
        self.bytes += weight(&stored.row);
        self.queues.states[stored.queue].totals.count(record, Known::Yes);
        note_place(&mut self.order, self.ids.len(), &stored.row);
    }

    fn remove(&mut self, id: MessageId) -> Option<Stored> {
        let slot = self.ids.remove(&id)?;
        let stored = self.rows.remove(slot)?;
        if let Some(key) = &stored.row.message.key {
            let hash = self.key_hash(&stored.row.message.queue, key);
            if let Ok(entry) = self.keys.find_entry(hash, |held| held.slot == slot) {
                entry.remove();
            }
        }
        self.bytes -= weight(&stored.row);
        self.queues.states[stored.queue].messages -= 1;
        Some(stored)
    }

    fn remember(&mut self, row: DedupeRow) {
        if self.dedupe.len() >= self.dedupe_sweep {
            let now = self.engine_now();
            self.dedupe.retain(|r| r.until > now);
            self.dedupe_sweep = DEDUPE_SWEEP_AT_LEAST.max(2 * self.dedupe.len());
        }
        let hasher = &self.hasher;
        let hash_of = |r: &DedupeRow| hasher.hash_one((r.queue.as_str(), &*r.dedupe_id));
        let same = |r: &DedupeRow| r.queue == row.queue && r.dedupe_id == row.dedupe_id;
        match self.dedupe.find_mut(hash_of(&row), same) {
            Some(held) => *held = row,
            None => {
                self.dedupe.insert_unique(hash_of(&row), row, hash_of);
            }
        }
    }

    fn engine_now(&self) -> EngineMs {
        self.clock.map_or(EngineMs(0), |c| c.engine)
    }

    /// Whether the message holds the key: a dead one has left it free.
    fn holds(&self, slot: Slot, queue: &QueueName, key: &Key) -> bool {
        let row = &self.rows[slot].row;
        row.message.key.as_ref() == Some(key)
            && row.message.queue == *queue
            && !matches!(row.life.stage, Stage::Dead { .. })
    }

    fn key_hash(&self, queue: &QueueName, key: &Key) -> u64 {
        self.hasher.hash_one((queue.as_str(), key.as_str()))
    }
}

impl Queues {
    /// The number of a queue, which comes to be if it was not there.
    #[inline]
    fn number(&mut self, name: &QueueName) -> QueueNumber {
        if let Some(number) = self.find_last(name) {
            return number;
        }
        let number = match self.numbers.get(name) {
            Some(number) => *number,
            None => {
                let number = self.states.insert(QueueState {
                    name: name.clone(),
                    settings: QueueSettings::default(),
                    pause: Pause::default(),
                    totals: Totals::default(),
                    messages: 0,
                    absent: 0,
                });
                self.numbers.insert(name.clone(), number);
                number
            }
        };
        self.last = Some(number);
        number
    }

    fn find(&self, name: &QueueName) -> Option<QueueNumber> {
        self.find_last(name).or_else(|| self.numbers.get(name).copied())
    }

    #[inline]
    fn find_last(&self, name: &QueueName) -> Option<QueueNumber> {
        self.last.filter(|&number| self.states[number].name == *name)
    }

    fn forget_if_empty(&mut self, number: QueueNumber) {
        let queue = &self.states[number];
        if queue.messages + queue.absent == 0
            && queue.settings == QueueSettings::default()
            && queue.pause == Pause::Running
        {
            self.last = None;
            self.numbers.remove(&queue.name);
            self.states.remove(number);
        }
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

fn note_place(order: &mut Option<Order>, rows: usize, row: &Row) {
    if order.as_ref().is_some_and(|order| order.len() > 2 * rows + 4096) {
        *order = None; // nobody loads any more
    }
    if let Some(order) = order {
        let (sequence, time) = place(row);
        order.note(sequence, (time, row.message.id));
    }
}

/// Roughly the encoded size of a row: names, options and numbers are counted flat.
fn weight(row: &Row) -> u64 {
    const FLAT: usize = 64;
    let history: usize = row.life.history.iter().map(|past| 16 + past.note.len()).sum();
    (FLAT + row.message.queue.as_str().len() + row.message.weight() + history) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Created;
    use crate::time::WallMs;

    #[test]
    fn forgotten_answers_give_their_memory_back() {
        let mut table = Table::default();
        for n in 1..=100_000 {
            let row = DedupeRow {
                queue: QueueName::new("q").unwrap(),
                dedupe_id: format!("id-{n}").into(),
                content: 0,
                until: EngineMs(n + 100),
                id: MessageId(n),
                key: None,
                due_at: WallMs(0),
                generation: 1,
                created: Created::New,
            };
            let clock = ClockPair { engine: EngineMs(n), wall: WallMs(0) };
            table.apply(&Group { first: Lsn(n), clock, records: vec![Record::Deduped(row)] });
        }
        assert_eq!(table.dedupe_rows().len(), 100);
        assert!(table.dedupe.len() <= DEDUPE_SWEEP_AT_LEAST, "{}", table.dedupe.len());
    }

    #[test]
    fn a_partial_table_keeps_a_queue_for_messages_it_does_not_hold() {
        let queue = QueueName::new("q").unwrap();
        let mut table = Table::default();
        table.restore_absent(&queue, 3);
        let running =
            Record::Queue { name: queue.clone(), settings: QueueSettings::default(), pause: Pause::Running };
        table.apply_record(Lsn(1), &running);
        assert_eq!(table.queue_counts().len(), 1);
        table.apply_record(Lsn(2), &Record::Purged { queue, keep: vec![], purged: 3 });
        assert_eq!(table.queue_counts(), []);
    }
}
