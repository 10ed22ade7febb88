//! The books of all queues: everything that records say about a queue rather than about one message.

use std::collections::BTreeMap;

use super::QueueRow;
use crate::answers::AnswerLog;
use crate::id::{Lsn, MessageId};
use crate::message::Kind;
use crate::name::QueueName;
use crate::policy::QueueSettings;
use crate::record::{ClockPair, DecodeError, DedupeRow, NewPut, Pause, Reader, Record, Totals};
use crate::tally::{DueCounts, Tally, columns_per_queue};

/// Number of columns of the histogram of all queues together: few enough to stay in a processor's cache.
pub const ALL_COLUMNS: usize = 1 << 12;

/// A fold over records: settings, pauses, totals and tallies of all queues, the clocks, the next id. It contains no
/// message.
///
/// A store keeps it so that startup need not read each message. Each record must be applied once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    queues: BTreeMap<QueueName, QueueBooks>,
    due: DueCounts,
    clock: Option<ClockPair>,
    applied: Lsn,
    next_id: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct QueueBooks {
    settings: QueueSettings,
    pause: Pause,
    totals: Totals,
    tally: Tally,
    answers: AnswerLog,
}

/// A saved state of a ledger: of the named queues, and of all of them together. See [`Ledger::remember`].
#[derive(Clone, Debug)]
pub struct Remembered {
    queues: Vec<(QueueName, Option<QueueBooks>)>,
    due: DueCounts,
    clock: Option<ClockPair>,
    applied: Lsn,
    next_id: u64,
}

impl Default for Ledger {
    fn default() -> Self {
        Ledger {
            queues: BTreeMap::new(),
            due: DueCounts::default(),
            clock: None,
            applied: Lsn(0),
            next_id: 1,
        }
    }
}

impl Ledger {
    /// Continues from a saved state: positions, clocks and the histogram of all queues. Queues follow with
    /// [`Ledger::restore`].
    pub fn resume(applied: Lsn, next_id: u64, clock: Option<ClockPair>, due: DueCounts) -> Self {
        Ledger { queues: BTreeMap::new(), due, clock, applied, next_id }
    }

    /// Continues with a later saved state. The queues stay as they are: those that are different follow with
    /// [`Ledger::restore`] and [`Ledger::forget`].
    pub fn go_on(&mut self, applied: Lsn, next_id: u64, clock: Option<ClockPair>, due: DueCounts) {
        (self.applied, self.next_id, self.clock, self.due) = (applied, next_id, clock, due);
    }

    /// Removes a queue that a later saved state no longer has.
    pub fn forget(&mut self, name: &QueueName) {
        self.queues.remove(name);
    }

    /// Takes in a saved queue, in place of one of the same name.
    pub fn restore(&mut self, row: QueueRow) {
        let QueueRow { name, settings, pause, totals, tally, answers } = row;
        self.queues.insert(name, QueueBooks { settings, pause, totals, tally, answers });
    }

    /// Saves what is needed to undo later records of these queues; records of other queues cannot be undone.
    pub fn remember<'a>(&self, queues: impl Iterator<Item = &'a QueueName>) -> Remembered {
        let queues = queues.map(|name| (name.clone(), self.queues.get(name).cloned()));
        Remembered {
            queues: queues.collect(),
            due: self.due.clone(),
            clock: self.clock,
            applied: self.applied,
            next_id: self.next_id,
        }
    }

    /// Undoes the records that were applied since.
    pub fn take_back(&mut self, remembered: Remembered) {
        let Remembered { queues, due, clock, applied, next_id } = remembered;
        for (name, books) in queues {
            match books {
                Some(books) => self.queues.insert(name, books),
                None => self.queues.remove(&name),
            };
        }
        (self.due, self.clock, self.applied, self.next_id) = (due, clock, applied, next_id);
    }

    /// Applies the next record.
    pub fn apply(&mut self, lsn: Lsn, record: &Record) {
        self.applied = lsn;
        if let Record::Put { message, .. } = record {
            self.next_id = self.next_id.max(message.id.0.saturating_add(1));
        }
        match record {
            Record::Put { .. } | Record::Changed { .. } | Record::Granted { .. } | Record::Removed { .. } => {
                self.take(record);
            }
            Record::Queue { name, settings, pause } => {
                let books = self.queues.entry(name.clone()).or_default();
                books.totals.count_pause(*pause, books.pause);
                books.settings = settings.clone();
                books.pause = *pause;
                self.forget_if_empty(name);
            }
            Record::Purged { queue, .. } => {
                let Some(books) = self.queues.get_mut(queue) else { return };
                books.totals.count(record);
                let gone = books.tally.purge();
                self.due.sub_all(&gone.due);
                self.forget_if_empty(queue);
            }
            Record::Deduped(row) => {
                let Some(position) = row.position else { return };
                let books = self.queues.entry(row.queue.clone()).or_default();
                books.answers.add(position, row.until, row.size());
            }
            Record::AnswersForgotten { queue, upto } => {
                let Some(books) = self.queues.get_mut(queue) else { return };
                books.answers.forget(*upto);
                self.forget_if_empty(queue);
            }
        }
    }

    /// Whether a remembered answer is still remembered, unless it has expired.
    pub fn remembers(&self, row: &DedupeRow) -> bool {
        let Some(position) = row.position else { return true };
        self.queues.get(&row.queue).is_some_and(|books| books.answers.remembers(position.nth))
    }

    /// The log of a queue's answers.
    pub fn answers(&self, name: &QueueName) -> Option<&AnswerLog> {
        self.queues.get(name).map(|books| &books.answers)
    }

    /// Applies the bytes of the next record. Most records are of new messages, and of those only a few fields are read.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are no record.
    pub fn apply_bytes(&mut self, lsn: Lsn, bytes: &[u8]) -> Result<(), DecodeError> {
        if let Some(put) = NewPut::read(bytes)
            && let columns = columns_per_queue(self.queues.len())
            && let Some(books) = self.queues.get_mut(put.queue)
        {
            self.applied = lsn;
            self.next_id = self.next_id.max(put.id.0.saturating_add(1));
            books.totals.enqueued = books.totals.enqueued.saturating_add(1);
            let stands = put.state();
            books.tally.add(stands.kind, stands.due, stands.weight, columns);
            self.due.add(stands.due, ALL_COLUMNS);
            return Ok(());
        }
        let record = Reader::new(bytes::Bytes::copy_from_slice(bytes)).record()?;
        self.apply(lsn, &record);
        Ok(())
    }

    fn take(&mut self, record: &Record) {
        let name = record.queue();
        if !self.queues.contains_key(name) {
            self.queues.insert(name.clone(), QueueBooks::default());
        }
        let columns = columns_per_queue(self.queues.len());
        let Some(books) = self.queues.get_mut(name) else { return };
        books.totals.count(record);
        let (was, is) = record.moves();
        books.tally.take(was, is, columns);
        if let Some(was) = was
            && was.kind == Kind::Waiting
        {
            self.due.sub(was.due);
        }
        match is {
            Some(is) => {
                if is.kind == Kind::Waiting {
                    self.due.add(is.due, ALL_COLUMNS);
                }
            }
            None => self.forget_if_empty(name),
        }
    }

    fn forget_if_empty(&mut self, name: &QueueName) {
        let is_empty = |b: &QueueBooks| {
            b.tally.count() == 0 && b.settings == QueueSettings::default() && b.pause == Pause::Running
        };
        let Some(books) = self.queues.get_mut(name).filter(|books| is_empty(books)) else { return };
        if books.answers.is_empty() {
            self.queues.remove(name);
        } else {
            // The queue has ended, and a later one of its name has totals of its own.
            *books = QueueBooks { answers: std::mem::take(&mut books.answers), ..QueueBooks::default() };
        }
    }

    /// Skips a record that concerns no queue.
    pub fn skip(&mut self, lsn: Lsn) {
        self.applied = lsn;
    }

    /// Records the clocks.
    pub fn note_clock(&mut self, clock: ClockPair) {
        self.clock = Some(clock);
    }

    /// The clocks as recorded last.
    pub fn clock(&self) -> Option<ClockPair> {
        self.clock
    }

    /// Position of the last record applied.
    pub fn applied(&self) -> Lsn {
        self.applied
    }

    /// The next id.
    pub fn next_id(&self) -> MessageId {
        MessageId(self.next_id)
    }

    /// When the messages of all queues are due.
    pub fn due(&self) -> &DueCounts {
        &self.due
    }

    /// Number of unsettled messages.
    pub fn messages(&self) -> u64 {
        self.queues.values().map(|b| b.tally.count()).sum()
    }

    /// Number of queues.
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Whether there is no queue.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// A queue, if it exists.
    pub fn row(&self, name: &QueueName) -> Option<QueueRow> {
        self.queues.get_key_value(name).map(|(name, books)| books.row(name))
    }

    /// The counts of a queue, if it exists.
    pub fn tally(&self, name: &QueueName) -> Option<&Tally> {
        self.queues.get(name).map(|books| &books.tally)
    }

    /// The counts of each queue, by name.
    pub fn tallies(&self) -> impl Iterator<Item = (&QueueName, &Tally)> {
        self.queues.iter().map(|(name, books)| (name, &books.tally))
    }

    /// All queues, by name.
    pub fn rows(&self) -> impl Iterator<Item = QueueRow> + '_ {
        self.queues.iter().map(|(name, books)| books.row(name))
    }
}

impl QueueBooks {
    fn row(&self, name: &QueueName) -> QueueRow {
        QueueRow {
            name: name.clone(),
            settings: self.settings.clone(),
            pause: self.pause,
            totals: self.totals,
            tally: self.tally.clone(),
            answers: self.answers.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::conformance::History;
    use super::*;

    #[test]
    fn applied_records_are_rolled_back_completely() {
        for seed in 0..20 {
            let mut history = History::new(seed);
            let mut ledger = Ledger::default();
            for turn in 0..40 {
                let groups: Vec<_> = (0..3).map(|_| history.group(9)).collect();
                let records: Vec<_> =
                    groups.iter().flat_map(|group| (group.first.0..).map(Lsn).zip(&group.records)).collect();
                let before = ledger.clone();
                let names: std::collections::BTreeSet<_> =
                    records.iter().map(|(_, record)| record.queue().clone()).collect();
                for again in 0..2 {
                    let remembered = ledger.remember(names.iter());
                    records.iter().for_each(|(lsn, record)| ledger.apply(*lsn, record));
                    ledger.note_clock(groups[2].clock);
                    if turn % 3 > 0 || again > 0 {
                        break;
                    }
                    assert_ne!(ledger, before);
                    ledger.take_back(remembered);
                    assert_eq!(ledger, before, "seed {seed}, turn {turn}");
                }
            }
        }
    }
}
