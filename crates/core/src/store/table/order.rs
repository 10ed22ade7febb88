//! The order in which rows are loaded, kept only while somebody loads.
//!
//! A change appends one cursor to a heap of fresh ones; nothing else is done on the way of an append. A load sorts the
//! fresh cursors into a short sorted list, and merges lists of similar length, so that each cursor is moved a
//! logarithmic number of times. A cursor whose row has moved on is skipped, and dropped when a merge or the head of a
//! list comes by.

use super::super::{Cursor, Sequence};

/// Cursors of all four sequences.
#[derive(Debug, Default)]
pub(super) struct Order {
    sequences: [Lists; 4],
    /// Cursors held, whether they still point to a row or not.
    cursors: usize,
}

#[derive(Debug, Default)]
struct Lists {
    fresh: Vec<Cursor>,
    /// Sorted, longest first; each at least twice as long as the next.
    sorted: Vec<List>,
}

#[derive(Debug, Default)]
struct List {
    cursors: Vec<Cursor>,
    /// Those before it point nowhere any more.
    start: usize,
}

impl Order {
    /// Notes where a row is now.
    #[inline]
    pub(super) fn note(&mut self, sequence: Sequence, cursor: Cursor) {
        self.sequences[sequence as usize].fresh.push(cursor);
        self.cursors += 1;
    }

    pub(super) fn len(&self) -> usize {
        self.cursors
    }

    /// Visits the cursors of a sequence behind `after` in order, until `visit` says stop. `live` tells whether a cursor
    /// still points to a row.
    pub(super) fn visit(
        &mut self,
        sequence: Sequence,
        after: Option<Cursor>,
        live: impl Fn(Cursor) -> bool,
        mut visit: impl FnMut(Cursor) -> Walk,
    ) {
        let lists = &mut self.sequences[sequence as usize];
        let before = lists.len();
        lists.tidy(&live);
        self.cursors -= before - lists.len();
        let mut heads: Vec<&[Cursor]> = lists
            .sorted
            .iter()
            .map(|list| {
                let cursors = &list.cursors[list.start..];
                &cursors[after.map_or(0, |after| cursors.partition_point(|c| *c <= after))..]
            })
            .collect();
        let mut last = None;
        while let Some(least) = heads.iter().enumerate().filter_map(|(i, h)| Some((*h.first()?, i))).min() {
            let (cursor, i) = least;
            heads[i] = &heads[i][1..];
            // A row that left a place and came back is noted twice.
            if last == Some(cursor) || !live(cursor) {
                continue;
            }
            last = Some(cursor);
            if visit(cursor) == Walk::Stop {
                return;
            }
        }
    }
}

/// Whether a visitor wants more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walk {
    On,
    Stop,
}

impl Lists {
    fn len(&self) -> usize {
        self.fresh.len() + self.sorted.iter().map(List::len).sum::<usize>()
    }

    fn tidy(&mut self, live: &impl Fn(Cursor) -> bool) {
        if !self.fresh.is_empty() {
            let mut cursors = std::mem::take(&mut self.fresh);
            cursors.sort_unstable();
            cursors.dedup();
            self.sorted.push(List { cursors, start: 0 });
        }
        while let [.., longer, shorter] = self.sorted.as_slice() {
            if longer.len() >= 2 * shorter.len() {
                break;
            }
            let b = self.sorted.pop().unwrap_or_default();
            let a = self.sorted.pop().unwrap_or_default();
            self.sorted.push(merge(&a, &b, live));
        }
        for list in &mut self.sorted {
            while list.cursors.get(list.start).is_some_and(|c| !live(*c)) {
                list.start += 1;
            }
        }
        self.sorted.retain(|list| list.len() > 0);
    }
}

impl List {
    fn len(&self) -> usize {
        self.cursors.len() - self.start
    }
}

fn merge(a: &List, b: &List, live: &impl Fn(Cursor) -> bool) -> List {
    let (mut a, mut b) = (&a.cursors[a.start..], &b.cursors[b.start..]);
    let mut cursors: Vec<Cursor> = Vec::with_capacity(a.len() + b.len());
    loop {
        let next = match (a.first(), b.first()) {
            (Some(x), Some(y)) if x <= y => take(&mut a),
            (Some(_), None) => take(&mut a),
            (_, Some(_)) => take(&mut b),
            (None, None) => return List { cursors, start: 0 },
        };
        if cursors.last() != Some(&next) && live(next) {
            cursors.push(next);
        }
    }
}

fn take(cursors: &mut &[Cursor]) -> Cursor {
    let first = cursors[0];
    *cursors = &cursors[1..];
    first
}
