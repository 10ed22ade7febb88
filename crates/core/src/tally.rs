//! Counts of a queue's messages and their due times: updated with every change, so that no operation counts messages.
//!
//! A [`Tally`] is a fold over records alone (they contain [`Was`](crate::record::Was) for it), so a store can keep it
//! for messages that are not in memory, and an engine continues it after a restart.

use std::collections::BTreeMap;

use crate::message::Kind;
use crate::record::{DecodeError, Reader, TallyState, Writer};
use crate::time::{Class, Due};

/// Width of the finest column, in ms.
pub const FINEST_MS: u64 = 60_000;
/// Upper bound of the number of messages: ids stay below it.
const MOST: u64 = 1 << 53;
/// Approximate number of columns of all queues together; [`columns_per_queue`] gives a queue's share.
const COLUMNS: usize = 1 << 21;

/// The number of columns that a queue may have when there are this many queues.
pub fn columns_per_queue(queues: usize) -> usize {
    (COLUMNS / queues.max(1)).clamp(32, 4096)
}

/// The messages of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTally {
    /// The number of messages.
    pub count: u64,
    /// The total weight of the messages in bytes.
    pub weight: u64,
}

/// The counts of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    parts: [StageTally; 3],
    /// The due times of waiting messages.
    pub due: DueCounts,
}

impl Tally {
    /// The messages of one kind.
    pub fn part(&self, kind: Kind) -> StageTally {
        self.parts[kind as usize]
    }

    /// The number of all messages.
    pub fn count(&self) -> u64 {
        self.parts.iter().map(|p| p.count).sum()
    }

    /// Weight of all messages.
    pub fn weight(&self) -> u64 {
        self.parts.iter().fold(0, |sum, p| sum.saturating_add(p.weight))
    }

    /// Adds a message; `columns` bounds the histogram.
    pub fn add(&mut self, kind: Kind, due: Due, weight: u64, columns: usize) {
        let part = &mut self.parts[kind as usize];
        part.count += 1;
        part.weight = part.weight.saturating_add(weight);
        if kind == Kind::Waiting {
            self.due.add(due, columns);
        }
    }

    /// Removes a message.
    pub fn sub(&mut self, kind: Kind, due: Due, weight: u64) {
        let part = &mut self.parts[kind as usize];
        part.count = part.count.saturating_sub(1);
        part.weight = part.weight.saturating_sub(weight);
        if kind == Kind::Waiting {
            self.due.sub(due);
        }
    }

    /// Takes a message from its former state to its present one.
    pub(crate) fn take(&mut self, was: Option<TallyState>, is: Option<TallyState>, columns: usize) {
        if let Some(was) = was {
            self.sub(was.kind, was.due, was.weight);
        }
        if let Some(is) = is {
            self.add(is.kind, is.due, is.weight, columns);
        }
    }

    /// The tally of several queues whose messages have these due times; their counts are still to be added.
    pub(crate) fn with_due(due: DueCounts) -> Self {
        Tally { due, ..Tally::default() }
    }

    /// Adds the counts of one queue without its due times.
    pub(crate) fn add_parts(&mut self, of_queue: &Tally) {
        for (part, more) in self.parts.iter_mut().zip(&of_queue.parts) {
            part.count += more.count;
            part.weight = part.weight.saturating_add(more.weight);
        }
    }

    /// Removes waiting and dead messages, and returns their counts.
    pub fn purge(&mut self) -> Tally {
        let kept = self.part(Kind::Leased);
        let mut gone = std::mem::take(self);
        self.parts[Kind::Leased as usize] = kept;
        gone.parts[Kind::Leased as usize] = StageTally::default();
        gone
    }

    /// Subtracts the counts that [`Tally::purge`] returned for one queue.
    pub fn sub_all(&mut self, gone: &Tally) {
        for (part, gone) in self.parts.iter_mut().zip(&gone.parts) {
            part.count = part.count.saturating_sub(gone.count);
            part.weight = part.weight.saturating_sub(gone.weight);
        }
    }

    /// Writes the tally in the format of stores.
    pub fn encode(&self, w: &mut Writer) {
        for part in self.parts {
            w.varint(part.count);
            w.varint(part.weight);
        }
        self.due.encode(w);
    }

    /// Reads what [`Tally::encode`] wrote.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are no valid tally.
    pub fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let mut tally = Tally::default();
        let mut messages = 0;
        for part in &mut tally.parts {
            *part = StageTally { count: counted(r, &mut messages)?, weight: r.varint()? };
        }
        tally.due = DueCounts::decode(r)?;
        Ok(tally)
    }
}

/// Counts of messages by due time, in columns.
///
/// The columns of both clock classes have one width. It starts at [`FINEST_MS`] and doubles when there would be more
/// columns than allowed; it is reset when nothing is left. The counts are exact for the width.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueCounts {
    columns: [BTreeMap<u64, u64>; 2],
    /// The number of times that the finest width was doubled.
    doubled: u32,
}

impl DueCounts {
    /// Width of a column, in ms.
    pub fn width_ms(&self) -> u64 {
        FINEST_MS << self.doubled
    }

    /// Whether no message is counted.
    pub fn is_empty(&self) -> bool {
        self.columns.iter().all(BTreeMap::is_empty)
    }

    /// Adds a message.
    pub fn add(&mut self, due: Due, columns: usize) {
        *self.columns[due.class() as usize].entry(due.raw() / self.width_ms()).or_default() += 1;
        while self.columns[0].len() + self.columns[1].len() > columns.max(2) {
            self.coarsen();
        }
    }

    /// Removes a message.
    pub fn sub(&mut self, due: Due) {
        let column = due.raw() / self.width_ms();
        let map = &mut self.columns[due.class() as usize];
        if let Some(count) = map.get_mut(&column) {
            *count -= 1;
            if *count == 0 {
                map.remove(&column);
                if self.is_empty() {
                    self.doubled = 0;
                }
            }
        }
    }

    /// Subtracts `other`, whose messages are also counted here; its columns must not be wider.
    pub fn sub_all(&mut self, other: &DueCounts) {
        while self.width_ms() < other.width_ms() {
            self.coarsen();
        }
        let narrower = self.doubled - other.doubled;
        for (map, gone) in self.columns.iter_mut().zip(&other.columns) {
            for (&column, &n) in gone {
                if let Some(count) = map.get_mut(&(column >> narrower)) {
                    *count = count.saturating_sub(n);
                    if *count == 0 {
                        map.remove(&(column >> narrower));
                    }
                }
            }
        }
        if self.is_empty() {
            self.doubled = 0;
        }
    }

    /// The columns of a class from the one of this time on: start and count.
    pub fn from(&self, class: Class, from: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let width = self.width_ms();
        self.columns[class as usize].range(from / width..).map(move |(&column, &n)| (column * width, n))
    }

    /// The number of messages of the columns that begin from `from` on and before `to`.
    pub fn between(&self, class: Class, from: u64, to: u64) -> u64 {
        let width = self.width_ms();
        let (first, end) = (from.div_ceil(width), to.div_ceil(width));
        if first >= end {
            return 0;
        }
        self.columns[class as usize].range(first..end).map(|(_, n)| n).sum()
    }

    /// A time by which `n` of the messages that are due from `from` on are due; `None` if there are fewer.
    pub fn reach(&self, class: Class, from: u64, n: u64) -> Option<u64> {
        let width = self.width_ms();
        let mut seen = 0;
        for (column, count) in self.columns[class as usize].range(from / width..) {
            seen += count;
            if seen >= n {
                return Some((column + 1).saturating_mul(width) - 1);
            }
        }
        None
    }

    /// A time before which none of the messages is due that are due from `from` on; `None` if there are none of these.
    pub fn first(&self, class: Class, from: u64) -> Option<u64> {
        let width = self.width_ms();
        self.columns[class as usize].range(from / width..).next().map(|(column, _)| column * width)
    }

    fn coarsen(&mut self) {
        self.doubled += 1;
        for map in &mut self.columns {
            let fine = std::mem::take(map);
            for (column, n) in fine {
                *map.entry(column / 2).or_default() += n;
            }
        }
    }

    /// Writes the counts in the format of stores.
    pub fn encode(&self, w: &mut Writer) {
        w.varint(u64::from(self.doubled));
        for map in &self.columns {
            w.varint(map.len() as u64);
            let mut before = 0;
            for (&column, &n) in map {
                w.varint(column - before);
                w.varint(n);
                before = column;
            }
        }
    }

    /// Reads what [`DueCounts::encode`] wrote.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are no valid counts.
    pub fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        let doubled = r.varint()?;
        let widest = (u64::MAX / FINEST_MS).ilog2();
        let doubled =
            u32::try_from(doubled).ok().filter(|d| *d <= widest).ok_or(DecodeError::Unknown("width"))?;
        let mut counts = DueCounts { doubled, ..DueCounts::default() };
        let last = u64::MAX / counts.width_ms();
        let mut messages = 0;
        for map in &mut counts.columns {
            let mut column = 0u64;
            for _ in 0..r.varint()? {
                column = column.checked_add(r.varint()?).ok_or(DecodeError::Unknown("column"))?;
                let count = counted(r, &mut messages)?;
                // A column that counts nothing, stands twice, or starts behind the end of time was not written.
                if count == 0 || column > last || map.insert(column, count).is_some() {
                    return Err(DecodeError::Unknown("column"));
                }
            }
        }
        Ok(counts)
    }
}

/// Reads a number of messages, and adds it to `sum`. There are never more messages than ids.
fn counted(r: &mut Reader, sum: &mut u64) -> Result<u64, DecodeError> {
    let count = r.varint()?;
    *sum = sum
        .checked_add(count)
        .filter(|sum| *sum <= MOST)
        .ok_or(DecodeError::Unknown("number of messages"))?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use crate::time::{EngineMs, WallMs};

    use super::*;

    fn after(ms: u64) -> Due {
        Due::After(EngineMs(ms))
    }

    #[test]
    fn columns_stay_few_and_exact() {
        let mut tally = Tally::default();
        let dues: Vec<Due> = (0..10_000u64).map(|n| after(n * 997_331)).collect();
        for due in &dues {
            tally.add(Kind::Waiting, *due, 7, 64);
        }
        let width = tally.due.width_ms();
        assert!(width > FINEST_MS);
        assert!(tally.due.from(Class::After, 0).count() <= 64);
        for (start, n) in tally.due.from(Class::After, 0) {
            let exact = dues.iter().filter(|d| d.raw() / width == start / width).count();
            assert_eq!(n, exact as u64);
        }
        let mut w = Writer::default();
        tally.encode(&mut w);
        assert_eq!(Tally::decode(&mut Reader::new(w.bytes.into())), Ok(tally.clone()));
        for due in &dues {
            tally.sub(Kind::Waiting, *due, 7);
        }
        assert_eq!(tally, Tally::default());
    }

    /// Story: the fuzzer wrote books whose counts were near 2^64, and made their checksum right. Adding them up
    /// overflowed, and a column of zero messages went below zero with the first one that left it.
    #[test]
    fn books_that_cannot_be_are_refused() {
        let read = |numbers: &[u64]| {
            let mut w = Writer::default();
            numbers.iter().for_each(|n| w.varint(*n));
            Tally::decode(&mut Reader::new(w.bytes.into())).map(|tally| (tally.count(), tally.weight()))
        };
        assert_eq!(read(&[1, u64::MAX, 0, 0, 1, 7, 0, 0, 1, 5, 1]), Ok((2, u64::MAX)));
        for (what, numbers) in [
            ("too many messages", &[MOST, 0, 1, 0, 0, 0, 0, 0, 0][..]),
            ("a column of none", &[1, 0, 0, 0, 0, 0, 0, 1, 5, 0, 0]),
            ("a column twice", &[2, 0, 0, 0, 0, 0, 0, 2, 5, 1, 0, 1, 0]),
            ("a column behind the end of time", &[1, 0, 0, 0, 0, 0, 0, 1, u64::MAX / FINEST_MS + 1, 1, 0]),
            ("columns that are too wide", &[0, 0, 0, 0, 0, 0, 49, 0, 0]),
        ] {
            assert!(read(numbers).is_err(), "{what}");
        }
    }

    #[test]
    fn the_widest_columns_come_back() {
        let mut tally = Tally::default();
        for n in 0..100 {
            tally.add(Kind::Waiting, after(u64::MAX / 100 * n), 1, 32);
            tally.add(Kind::Waiting, Due::At(WallMs(u64::MAX / 100 * n)), 1, 32);
        }
        let mut w = Writer::default();
        tally.encode(&mut w);
        assert_eq!(Tally::decode(&mut Reader::new(w.bytes.into())), Ok(tally));
    }

    #[test]
    fn a_purge_leaves_what_is_leased() {
        let (mut all, mut one) = (Tally::default(), Tally::default());
        for n in 0..100 {
            all.add(Kind::Waiting, after(n * FINEST_MS), 3, 8);
            one.add(Kind::Waiting, after(n * FINEST_MS), 3, 4096);
        }
        all.add(Kind::Waiting, after(5), 3, 8);
        for tally in [&mut all, &mut one] {
            tally.add(Kind::Leased, after(5), 10, 8);
            tally.add(Kind::Dead, after(5), 20, 8);
        }
        let gone = one.purge();
        assert_eq!((one.count(), one.weight()), (1, 10));
        assert_eq!((gone.count(), gone.weight()), (101, 320));
        all.sub_all(&gone);
        all.due.sub_all(&gone.due);
        assert_eq!((all.part(Kind::Waiting).count, all.part(Kind::Leased).count), (1, 1));
        assert_eq!(all.due.between(Class::After, 0, u64::MAX), 1);
    }
}
