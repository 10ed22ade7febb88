//! The memtable: what the journal holds since the last cut, in memory and found by id, key and time.
//!
//! The records' own bytes are kept once, as the journal has them, in an [`arena`]. Each has a small head in front of
//! it, a [`RecordNode`], which says where the message itself is, where its life is, its stage and its due time.
//!
//! So the newest record of an id, which the [`IdTable`] finds, leads to everything that this table has of its message
//! in one step. That may be only a [`Patch`]: the rest of the message is then in an older table or in a run.
//!
//! | memory for | bytes |
//! |---|---|
//! | head of a record | 28 |
//! | offset by id | 4 |
//! | entry in the order of due times | 16, and as many for a lease or a death |
//! | entry by key, if it has one | about 10 |

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use bytes::Bytes;
use duewheel_core::growing::SplitTable;
use duewheel_core::message::{Kind, Life, Row, Stage};
use duewheel_core::record::{ClockPair, DedupeRow, NewPut, Reader, Record};
use duewheel_core::store::{ErrorKind, Sequence, StoreError};
use duewheel_core::time::Class;
use duewheel_core::{Due, Key, Lsn, MessageId, QueueName};
use hot_keys::{CROWD, Crowds};
use record::{
    HEAD, QUEUE_BITS, RecordNode, RecordParts, names_answer, node_at, put_names, record_at, short, spread,
};

use crate::format::u32_at;
use crate::run::filter::{NameHasher, QueueHash};
use crate::run::{Newer, NewerTables};
use arena::{Arena, ArenaOffset, IdTable, TimeOrder};

pub(crate) use record::{Extent, Patch, Purge, StageAfter};
pub(crate) use scan::{MemScan, ScanStep};

mod arena;
pub(crate) mod hot_keys;
pub(crate) mod record;
mod scan;

const GRANTED: u8 = 3;

/// A memtable; see the [module](self).
pub(crate) struct Mem {
    hasher: NameHasher,
    arena: Arena,
    ids: IdTable,
    names: Vec<QueueName>,
    /// The hashes of these queues.
    hashes: Vec<QueueHash>,
    numbers: HashMap<QueueName, u32>,
    /// Records that put a message with a key, by a part of the key's hash.
    keys: SplitTable<(u32, ArenaOffset)>,
    /// The messages of crowded keys.
    crowds: Crowds,
    answers: SplitTable<(u32, ArenaOffset)>,
    /// Messages by due time; both classes, any stage.
    due: [TimeOrder; 2],
    leased: TimeOrder,
    dead: TimeOrder,
    /// The last purge of each purged queue: it includes everything that an earlier one removed.
    purges: BTreeMap<u32, Purge>,
    before: Lsn,
    last: Lsn,
    clock: Option<ClockPair>,
    /// The size of its messages in a run, in total and by queue.
    extent: Extent,
    extents: Vec<QueueExtent>,
    /// Number of records that remove a message or purge a queue.
    removals: u64,
    purged: bool,
    /// Number of ids that the purges of all queues keep.
    kept: u64,
    /// The weights in older tables of messages to which a record in this table gives another one, by id.
    replaced: SplitTable<(u64, u64)>,
    /// The first id of this table's own messages.
    next_id: u64,
    /// Number of records that bring back a dead message of an older table, whose key is not known here.
    revived: u64,
}

/// The size of a queue's messages in a run: of the leased ones, which a purge keeps, and of the others.
#[derive(Clone, Copy, Default)]
struct QueueExtent {
    leased: Extent,
    others: Extent,
}

impl QueueExtent {
    fn of(&mut self, stands: StageAfter) -> &mut Extent {
        match stands {
            StageAfter::Is(Kind::Leased) => &mut self.leased,
            StageAfter::Is(Kind::Waiting | Kind::Dead) | StageAfter::Gone => &mut self.others,
        }
    }
}

/// The content of a memtable for one message.
#[derive(Debug)]
pub(crate) enum MemAnswer {
    /// Nothing; an older table may contain it.
    Nothing,
    /// The message was removed.
    Gone,
    /// The whole message.
    Row(Row),
    /// The changes of the message; the rest is in an older table.
    Patch(Patch),
}

impl fmt::Debug for Mem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mem").field("before", &self.before).field("last", &self.last).finish_non_exhaustive()
    }
}

impl Mem {
    /// An empty table, for records behind `before` and new messages from `next_id` on, of which every `id_step`-th.
    pub(crate) fn new(hasher: NameHasher, before: Lsn, ids: (u64, u64), clock: Option<ClockPair>) -> Self {
        Mem::unused(hasher).start(before, ids, clock)
    }

    /// A table that has not been started.
    pub(crate) fn unused(hasher: NameHasher) -> Self {
        Mem {
            hasher,
            arena: Arena::default(),
            ids: IdTable::default(),
            names: Vec::new(),
            hashes: Vec::new(),
            numbers: HashMap::new(),
            keys: SplitTable::new(),
            crowds: Crowds::default(),
            answers: SplitTable::new(),
            due: Default::default(),
            leased: TimeOrder::default(),
            dead: TimeOrder::default(),
            purges: BTreeMap::new(),
            before: Lsn(0),
            last: Lsn(0),
            clock: None,
            extent: Extent::default(),
            extents: Vec::new(),
            removals: 0,
            purged: false,
            kept: 0,
            replaced: SplitTable::new(),
            next_id: 0,
            revived: 0,
        }
    }

    /// Empties the table, and keeps its memory for the next use.
    pub(crate) fn start(mut self, before: Lsn, ids: (u64, u64), clock: Option<ClockPair>) -> Self {
        let (next_id, id_step) = ids;
        self.arena.clear();
        self.ids.start(next_id, id_step);
        self.names.clear();
        self.hashes.clear();
        self.numbers.clear();
        self.keys.clear();
        self.crowds.clear();
        self.answers.clear();
        for order in [&mut self.leased, &mut self.dead].into_iter().chain(&mut self.due) {
            order.clear();
        }
        self.purges.clear();
        self.replaced.clear();
        self.extents.clear();
        let (extent, removals, purged) = (Extent::default(), 0, false);
        Mem { before, last: before, clock, extent, removals, purged, kept: 0, next_id, revived: 0, ..self }
    }

    /// The hashes of its folder.
    pub(crate) fn hasher(&self) -> NameHasher {
        self.hasher
    }

    /// The last record that it does not hold.
    pub(crate) fn before(&self) -> Lsn {
        self.before
    }

    /// The last record that it holds.
    pub(crate) fn last(&self) -> Lsn {
        self.last
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.last == self.before
    }

    pub(crate) fn records(&self) -> u64 {
        self.last.0 - self.before.0
    }

    /// Bytes of records, including their heads.
    pub(crate) fn bytes(&self) -> u64 {
        self.arena.bytes() as u64
    }

    /// The size of its messages in a run, including those that newer tables remove.
    pub(crate) fn extent(&self) -> Extent {
        self.extent
    }

    /// Number of records that remove something.
    pub(crate) fn removals(&self) -> u64 {
        self.removals
    }

    /// Whether a queue was purged.
    pub(crate) fn has_purges(&self) -> bool {
        self.purged
    }

    /// The queues of its records.
    pub(crate) fn queues(&self) -> &[QueueName] {
        &self.names
    }

    /// The queue of a message in this table.
    pub(crate) fn queue_of(&self, id: MessageId) -> Option<&QueueName> {
        let place = self.ids.get(id.0);
        (place != 0).then(|| &self.names[self.at(place).queue as usize])
    }

    /// The size of a message in a run; `None` if the table does not know it or it was removed.
    pub(crate) fn extent_of(&self, id: MessageId) -> Option<Extent> {
        self.known(id).map(|node| self.extent_at(&node))
    }

    /// Whether the table records that a message was removed.
    pub(crate) fn is_gone(&self, id: MessageId) -> bool {
        self.node(id).is_some_and(|node| node.stands == StageAfter::Gone)
    }

    /// The weight of a message in older tables, in bytes; 0 if it is not known, or if the message was put first in this
    /// table.
    pub(crate) fn weight_before(&self, id: MessageId) -> u64 {
        let place = self.ids.get(id.0);
        if place == 0 {
            return 0;
        }
        if let Some((_, weight)) = self.replaced.find(arena::spread(id.0), |(known, _)| *known == id.0) {
            return *weight;
        }
        decode(self.record(place)).moves().0.map_or(0, |was| was.weight)
    }

    /// A table with the records of this one, followed by those of the next one.
    ///
    /// # Errors
    /// [`StoreError`] when a table cannot hold both.
    pub(crate) fn and(&self, next: &Mem) -> Result<Mem, StoreError> {
        let ids = (self.next_id, self.ids.step());
        let mut both = Mem::new(self.hasher, self.before, ids, next.clock.or(self.clock));
        let mut pushed = Ok(());
        for table in [self, next] {
            table.for_each(|_, bytes| {
                if pushed.is_ok() {
                    pushed = both.push(&decode(bytes), bytes);
                }
            });
        }
        both.settle();
        pushed.map(|()| both)
    }

    /// Approximate size in memory, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.memory_of_records() + self.crowds.memory() as u64
    }

    /// Bytes of memory, without keys that many messages have, which are counted one by one.
    pub(crate) fn memory_of_records(&self) -> u64 {
        let hashed = (self.keys.capacity() + self.answers.capacity()) * 9;
        let orders = [&self.due[0], &self.due[1], &self.leased, &self.dead];
        let orders: usize = orders.into_iter().map(TimeOrder::memory).sum();
        (self.arena.bytes() + self.ids.memory() + hashed + orders) as u64
    }

    /// The memory that [`Mem::memory_of_records`] counts when the table is started again.
    pub(crate) fn memory_when_empty(&self) -> u64 {
        let hashed = (self.keys.capacity() + self.answers.capacity()) * 9;
        let orders = [&self.due[0], &self.due[1], &self.leased, &self.dead];
        let orders: usize = orders.into_iter().map(TimeOrder::memory_when_empty).sum();
        (self.ids.memory() + hashed + orders) as u64
    }

    pub(crate) fn clock(&self) -> Option<ClockPair> {
        self.clock
    }

    pub(crate) fn note_clock(&mut self, clock: ClockPair) {
        self.clock = Some(clock);
    }

    /// Adds the next record; `bytes` are its encoding.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot hold more: at 32 GiB, or 2^27 queues.
    pub(crate) fn push(&mut self, record: &Record, bytes: &[u8]) -> Result<(), StoreError> {
        match record {
            Record::Put { message, life, was } => {
                let old = self.known(message.id);
                if let Some(was) = was.as_ref().filter(|_| old.is_none_or(|old| old.put == 0)) {
                    self.note_replaced(message.id.0, was.weight);
                }
                let stands = StageAfter::Is(life.stage.kind());
                let node = self.add(&message.queue, RecordParts::Put, stands, life.due, bytes, 0)?;
                if let Some(key) = message.key.as_ref().filter(|_| old.is_none_or(|old| old.put == 0)) {
                    self.note_key(key, node);
                }
                self.turn(message.id, old, node);
                self.place_stage(message.id, &life.stage);
            }
            Record::Changed { id, life, was } => {
                let old = self.known(*id);
                let put = old.map_or(0, |old| old.put);
                let stands = StageAfter::Is(life.stage.kind());
                if put == 0 && was.detail != life.weight() as u64 {
                    self.note_replaced(id.0, was.weight);
                }
                let elsewhere =
                    elsewhere(put, was.weight.saturating_sub(was.detail).saturating_add(was.unweighed));
                let node =
                    self.add(&was.queue, RecordParts::Life { put }, stands, life.due, bytes, elsewhere)?;
                self.note_revived(was.kind, life.stage.kind(), put);
                self.turn(*id, old, node);
                self.place_stage(*id, &life.stage);
            }
            Record::Granted { id, lease, was, .. } => {
                let old = self.known(*id);
                let (life, put) = old.map_or((0, 0), |old| (old.life, old.put));
                let stands = StageAfter::Is(Kind::Leased);
                // A record of this table that has the life has its past as well.
                let past = if life == 0 { was.past } else { 0 };
                let elsewhere = elsewhere(put, was.weight.saturating_add(was.unweighed).saturating_add(past));
                let says = RecordParts::Grant { life, put };
                let node = self.add(&was.queue, says, stands, was.due, bytes, elsewhere)?;
                self.note_revived(was.kind, Kind::Leased, put);
                self.turn(*id, old, node);
                self.leased.push((lease.until.0, id.0));
            }
            Record::Removed { id, was, .. } => {
                let old = self.known(*id);
                let says = RecordParts::Grant { life: 0, put: 0 };
                let node = self.add(&was.queue, says, StageAfter::Gone, was.due, bytes, 0)?;
                self.turn(*id, old, node);
                self.removals += 1;
            }
            Record::Purged { queue, keep, before, .. } => {
                let node = self.add_other(queue, bytes)?;
                let others = std::mem::take(&mut self.extents[node.queue as usize].others);
                self.extent.sub(others);
                let purge = Purge { place: node.place, before: *before, keep: keep.clone() };
                self.crowds.purge(node.queue, &purge);
                self.kept += purge.keep.len() as u64;
                if let Some(earlier) = self.purges.insert(node.queue, purge) {
                    self.kept -= earlier.keep.len() as u64;
                }
                self.removals += 1;
                self.purged = true;
            }
            Record::Deduped(row) => {
                let node = self.add_other(&row.queue, bytes)?;
                self.note_answer(row, node);
                // The entry stays when another record replaces it, which is rare.
                let answer = Extent::of_answer(bytes.len() as u64);
                self.extent.add(answer);
            }
            other => {
                self.add_other(other.queue(), bytes)?;
            }
        }
        self.last = self.last.next();
        Ok(())
    }

    /// Prepares the table for scans: sorts the entries that are not sorted yet.
    pub(crate) fn settle(&mut self) {
        for order in [&mut self.leased, &mut self.dead].into_iter().chain(&mut self.due) {
            order.settle();
        }
    }

    /// Visits the bytes of all records in order.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(Lsn, &[u8])) {
        let mut lsn = self.before;
        let mut behind = None;
        while let Some(place) = self.arena.next(behind) {
            let head = self.arena.at(place);
            let length = u32_at(head, 0) as usize;
            lsn = lsn.next();
            visit(lsn, &head[HEAD..HEAD + length]);
            behind = Some((place, HEAD + length));
        }
    }

    /// The record that puts a message, and its queue, if this table has no later record of that message.
    pub(crate) fn new_put(&self, id: MessageId) -> Option<(&QueueName, NewPut<'_>)> {
        let node = self.known(id).filter(|node| node.put == node.place)?;
        Some((&self.names[node.queue as usize], NewPut::read(self.record(node.place))?))
    }

    /// The content of the table for a message.
    pub(crate) fn told(&self, id: MessageId) -> MemAnswer {
        match self.node(id) {
            None => MemAnswer::Nothing,
            Some(node) => self.tell(id, &node),
        }
    }

    /// Whether older tables and runs are outdated for this message: this table has it, or its queue was purged.
    pub(crate) fn hides(&self, id: MessageId, queue: &QueueName) -> bool {
        self.ids.get(id.0) != 0 || self.has_purged(id, queue)
    }

    /// The effect of the table on a message in an older table or run.
    pub(crate) fn says(&self, id: MessageId, queue: &QueueName) -> Newer {
        match self.node(id) {
            Some(node) if node.stands == StageAfter::Gone => Newer::Gone,
            Some(_) => Newer::Changed,
            None if self.has_purged(id, queue) => Newer::Gone,
            None => Newer::Nothing,
        }
    }

    /// The stage of a message according to this table, if it contains it.
    pub(crate) fn stands(&self, id: MessageId, queue: &QueueName) -> Option<StageAfter> {
        match self.node(id) {
            Some(node) => Some(node.stands),
            None => self.has_purged(id, queue).then_some(StageAfter::Gone),
        }
    }

    /// Whether a message that is dead in an older table may have been revived.
    pub(crate) fn has_revived(&self) -> bool {
        self.revived > 0
    }

    /// Whether a purge recorded here removed this message, if the message is older than this table.
    pub(crate) fn has_purged(&self, id: MessageId, queue: &QueueName) -> bool {
        !self.purges.is_empty()
            && self.numbers.get(queue).and_then(|no| self.purges.get(no)).is_some_and(|purge| purge.takes(id))
    }

    /// Number of ids that the purges recorded here keep.
    pub(crate) fn kept(&self) -> u64 {
        self.kept
    }

    /// The purges recorded here, by queue.
    pub(crate) fn purges(&self) -> impl Iterator<Item = (&QueueName, &Purge)> {
        self.purges.iter().map(|(no, purge)| (&self.names[*no as usize], purge))
    }

    /// Every id in this table, ascending.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.ids.sorted().map(|(id, _)| id)
    }

    /// The messages that were put in this table with this key, including removed ones; of many dead ones the newest
    /// (see [`Crowds::find`]). Also returns how many were examined.
    pub(crate) fn find_key(
        &self,
        hash: u64,
        (queue, key): (&QueueName, &Key),
        newer: &NewerTables<'_>,
        ids: &mut Vec<MessageId>,
    ) -> usize {
        let (short, mut looks) = (short(hash), 0);
        if !self.crowds.is_empty()
            && let Some(no) = self.numbers.get(queue)
        {
            looks += self.crowds.find(hash, *no, key.as_str().as_bytes(), newer, ids);
        }
        for (_, place) in self.keys.iter_hash(spread(short)).filter(|(known, _)| *known == short) {
            looks += 1;
            if let Some((id, q, k)) = put_names(self.record(*place))
                && q == queue.as_str().as_bytes()
                && k == key.as_str().as_bytes()
            {
                ids.push(id);
            }
        }
        looks
    }

    /// The newest answer remembered here under this id.
    pub(crate) fn find_answer(&self, hash: u64, queue: &QueueName, id: &str) -> Option<DedupeRow> {
        let short = short(hash);
        let is_it = |known: &(u32, ArenaOffset)| {
            known.0 == short && names_answer(self.record(known.1), queue.as_str(), id)
        };
        let (_, place) = self.answers.find(spread(short), is_it)?;
        match decode(self.record(*place)) {
            Record::Deduped(row) => Some(row),
            _ => None,
        }
    }

    /// All answers remembered here, each once, in no order.
    pub(crate) fn answers(&self) -> impl Iterator<Item = DedupeRow> + '_ {
        self.answers.iter().filter_map(|(_, place)| match decode(self.record(*place)) {
            Record::Deduped(row) => Some(row),
            _ => None,
        })
    }

    fn order(&self, sequence: Sequence) -> &TimeOrder {
        match sequence {
            Sequence::At | Sequence::AllAt => &self.due[Class::At as usize],
            Sequence::After | Sequence::AllAfter => &self.due[Class::After as usize],
            Sequence::Leased => &self.leased,
            Sequence::Dead => &self.dead,
        }
    }

    fn number(&mut self, queue: &QueueName) -> Result<u32, StoreError> {
        if let Some(no) = self.numbers.get(queue) {
            return Ok(*no);
        }
        let no = u32::try_from(self.names.len()).ok().filter(|no| *no < 1 << QUEUE_BITS).ok_or_else(full)?;
        self.names.push(queue.clone());
        self.hashes.push(self.hasher.queue(queue));
        self.extents.push(QueueExtent::default());
        self.numbers.insert(queue.clone(), no);
        Ok(no)
    }

    fn add(
        &mut self,
        queue: &QueueName,
        says: RecordParts,
        stands: StageAfter,
        due: Due,
        bytes: &[u8],
        elsewhere: u32,
    ) -> Result<RecordNode, StoreError> {
        let queue = self.number(queue)?;
        let length = u32::try_from(bytes.len()).map_err(|_| full())?;
        let head = record::head(length, says, queue, stands, due, elsewhere);
        let place = self.arena.push(&[&head, bytes]).ok_or_else(full)?;
        Ok(self.at(place))
    }

    fn add_other(&mut self, queue: &QueueName, bytes: &[u8]) -> Result<RecordNode, StoreError> {
        let due = Due::from_raw(Class::At, 0);
        self.add(queue, RecordParts::Grant { life: 0, put: 0 }, StageAfter::Gone, due, bytes, 0)
    }

    /// Makes this node the newest one of its message.
    fn turn(&mut self, id: MessageId, old: Option<RecordNode>, node: RecordNode) {
        if let Some(old) = &old {
            let extent = self.extent_at(old);
            self.extent.sub(extent);
            self.extents[old.queue as usize].of(old.stands).sub(extent);
        }
        self.ids.set(id.0, node.place);
        let put = if node.put == 0 { old.map_or(0, |old| old.put) } else { node.put };
        if !self.crowds.is_empty()
            && put != 0
            && let Some((_, _, key)) = put_names(record_at(&self.arena, put))
        {
            let hash = self.hashes[node.queue as usize].key(key);
            let stands = match node.stands {
                StageAfter::Is(kind) => Some(kind),
                StageAfter::Gone => None,
            };
            self.crowds.turn(hash, node.queue, key, id, stands);
        }
        if node.stands == StageAfter::Gone {
            return;
        }
        let extent = self.extent_at(&node);
        self.extent.add(extent);
        self.extents[node.queue as usize].of(node.stands).add(extent);
        if old.is_none_or(|old| old.due != node.due) {
            self.due[node.due.class() as usize].push((node.due.raw(), id.0));
        }
    }

    /// Notes the weight in older tables of a message that has another one from here on, unless it has changed before.
    fn note_replaced(&mut self, id: u64, weight: u64) {
        if self.replaced.find(arena::spread(id), |(known, _)| *known == id).is_none() {
            self.replaced.insert(arena::spread(id), (id, weight), |(known, _)| arena::spread(*known));
        }
    }

    fn note_revived(&mut self, was: Kind, is: Kind, put: ArenaOffset) {
        self.revived += u64::from(put == 0 && was == Kind::Dead && is != Kind::Dead);
    }

    fn place_stage(&mut self, id: MessageId, stage: &Stage) {
        match stage {
            Stage::Waiting { .. } => {}
            Stage::Leased(lease) => self.leased.push((lease.until.0, id.0)),
            Stage::Dead { at, .. } => self.dead.push((at.raw(), id.0)),
        }
    }

    /// The size of a message in a run.
    fn extent_at(&self, node: &RecordNode) -> Extent {
        let StageAfter::Is(kind) = node.stands else { return Extent::default() };
        let length = |place: ArenaOffset| if place == 0 { 0 } else { self.at(place).length };
        let put = if node.put == node.place { 0 } else { length(node.put) };
        let life = if node.life == node.place || node.life == node.put { 0 } else { length(node.life) };
        Extent::of_row((node.length + put + life) as u64, u64::from(node.elsewhere), kind)
    }

    fn note_key(&mut self, key: &Key, RecordNode { place, queue, .. }: RecordNode) {
        let hash = self.hashes[queue as usize].key(key.as_str().as_bytes());
        let short = short(hash);
        if self.crowds.has(hash, queue, key.as_str().as_bytes()) {
            return; // it is noted there with its stage
        }
        // A key that is used again and again must not leave entries of removed messages.
        let arena = &self.arena;
        let (ids, purges) = (&self.ids, &self.purges);
        let is_gone = |known: ArenaOffset| {
            let id = put_names(record_at(arena, known)).map(|(id, ..)| id);
            id.is_some_and(|id| {
                let node = node_at(arena, ids.get(id.0));
                node.stands == StageAfter::Gone
                    || purges
                        .get(&node.queue)
                        .is_some_and(|purge| purge.place > node.place && purge.takes(id))
            })
        };
        let mut looks = 0;
        let known = self.keys.iter_hash_mut(spread(short)).filter(|(known, _)| *known == short);
        if let Some(gone) = known.take(CROWD).inspect(|_| looks += 1).find(|(_, known)| is_gone(*known)) {
            gone.1 = place;
            return;
        }
        if looks == CROWD && self.crowds.begin(hash, queue, key.as_str().as_bytes()) {
            return self.gather_crowd(hash, queue, key);
        }
        self.keys.insert(spread(short), (short, place), |(known, _)| spread(*known));
    }

    /// Gathers the messages of a key that becomes crowded.
    fn gather_crowd(&mut self, hash: u64, queue: u32, key: &Key) {
        let (short, name, key) = (short(hash), self.names[queue as usize].as_str(), key.as_str());
        let arena = &self.arena;
        let named = |place: ArenaOffset| {
            let names = put_names(record_at(arena, place));
            names.filter(|(_, q, k)| *q == name.as_bytes() && *k == key.as_bytes()).map(|(id, ..)| id)
        };
        let mut ids = Vec::new();
        while let Some((_, place)) = self.keys.remove(spread(short), |e| e.0 == short && named(e.1).is_some())
        {
            ids.extend(named(place));
        }
        for id in ids {
            if let Some(RecordNode { stands: StageAfter::Is(kind), .. }) = self.known(id) {
                self.crowds.turn(hash, queue, key.as_bytes(), id, Some(kind));
            }
        }
    }

    fn note_answer(&mut self, row: &DedupeRow, RecordNode { place, queue, .. }: RecordNode) {
        let short = short(self.hashes[queue as usize].answer(&row.dedupe_id));
        let arena = &self.arena;
        let is_it = |known: &(u32, ArenaOffset)| {
            known.0 == short && names_answer(record_at(arena, known.1), row.queue.as_str(), &row.dedupe_id)
        };
        match self.answers.find_mut(spread(short), is_it) {
            Some(known) => known.1 = place,
            None => self.answers.insert(spread(short), (short, place), |(known, _)| spread(*known)),
        }
    }

    fn at(&self, place: ArenaOffset) -> RecordNode {
        node_at(&self.arena, place)
    }

    fn record(&self, place: ArenaOffset) -> &[u8] {
        record_at(&self.arena, place)
    }

    /// The newest node of a message.
    fn node(&self, id: MessageId) -> Option<RecordNode> {
        let place = self.ids.get(id.0);
        if place == 0 {
            return None;
        }
        let mut node = self.at(place);
        let purge = self.purges.get(&node.queue);
        if purge.is_some_and(|purge| purge.place > place && purge.takes(id)) {
            node.stands = StageAfter::Gone;
        }
        Some(node)
    }

    /// The newest node of a message, if it was not removed.
    fn known(&self, id: MessageId) -> Option<RecordNode> {
        self.node(id).filter(|node| node.stands != StageAfter::Gone)
    }

    fn tell(&self, id: MessageId, node: &RecordNode) -> MemAnswer {
        if node.stands == StageAfter::Gone {
            return MemAnswer::Gone;
        }
        debug_assert_eq!(self.ids.get(id.0), node.place);
        let mut patch = Patch::default();
        let newest = self.record(node.place);
        if newest.first() == Some(&GRANTED)
            && let Record::Granted { attempt, lease, .. } = decode(newest)
        {
            patch.grant = Some((attempt, lease));
        }
        if node.put == 0 {
            patch.life = match node.life {
                0 => None,
                life => life_of(decode(self.record(life))),
            };
            return MemAnswer::Patch(patch);
        }
        let Record::Put { message, life, .. } = decode(self.record(node.put)) else { return MemAnswer::Gone };
        let mut row = Row { message, life };
        if node.life != node.put && node.life != 0 {
            patch.life = life_of(decode(self.record(node.life)));
        }
        patch.apply(&mut row);
        MemAnswer::Row(row)
    }
}

/// Bytes of a message that no record in this table puts.
fn elsewhere(put: ArenaOffset, weight: u64) -> u32 {
    if put == 0 { u32::try_from(weight).unwrap_or(u32::MAX) } else { 0 }
}

fn decode(bytes: &[u8]) -> Record {
    let record = Reader::new(Bytes::copy_from_slice(bytes)).record();
    record.expect("it was encoded here, or was decoded before")
}

fn life_of(record: Record) -> Option<Life> {
    match record {
        Record::Put { life, .. } | Record::Changed { life, .. } => Some(life),
        _ => None,
    }
}

fn full() -> StoreError {
    StoreError::new(
        ErrorKind::Unavailable,
        "the memtable has more entries than it can number: it was not cut off in time",
    )
}

#[cfg(test)]
mod tests;
