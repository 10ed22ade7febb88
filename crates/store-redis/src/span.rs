//! Spans of due time: messages that are enqueued many at a time are entries of a list for each span, which is sorted
//! when it is read, like a slot of a wheel. Adding to a list costs a tenth of adding to a sorted set, and nothing is
//! removed from it: an entry is valid while its message exists and has that due time. A list is deleted with the last
//! message that is only in it.

use std::collections::HashMap;

use duewheel_core::store::{Cursor, StoreError};
use redis::{Pipeline, Value};

use crate::load::Range;
use crate::plan::MOST_SCORE;
use crate::shared::RedisShared;
use crate::{fault, lex, value};

/// Length of a span: 65.536 s, in ms, as a power of two.
const SPAN_BITS: u32 = 16;
/// Lists that were not read for this many pages are dropped from memory.
const IDLE_PAGES: u64 = 64;
/// Smallest number of positions of one list that are kept.
const LEAST_KEPT: usize = 64;
/// Smallest number of entries of one list that are read at once when many are read together.
const LEAST_READ: usize = 100;

/// A time as a score.
pub(crate) fn score(time: u64) -> u64 {
    time.min(MOST_SCORE)
}

/// The start of the span of a time.
pub(crate) fn start(time: u64) -> u64 {
    score(time) >> SPAN_BITS << SPAN_BITS
}

/// The limits of what is read at once from lists and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanReadLimits {
    /// Number of entries that are read at once: other requests are served in between.
    pub(crate) slice: usize,
    /// Approximate number of positions that are kept between two pages, 16 bytes each.
    pub(crate) kept: usize,
}

impl SpanReadLimits {
    /// The default: 200 KB at once, and 8 MiB.
    pub(crate) const USUAL: Self = SpanReadLimits { slice: 10_000, kept: 1 << 19 };
}

/// The parts of lists that were read, so that the next page reads only what was added since.
#[derive(Debug)]
pub(crate) struct Windows {
    reading: SpanReadLimits,
    windows: HashMap<String, Window>,
    page: u64,
    /// Number of queues whose lists the page reads in turn.
    beside: usize,
}

/// A part of a list: all positions behind `after` up to and including `upto`.
#[derive(Debug, Default)]
struct Window {
    /// The first element of the list: another list under the same key has another one.
    stamp: Vec<u8>,
    /// Number of elements that were read, including the stamp.
    seen: usize,
    /// Positions in order, unless entries are still being read.
    places: Vec<Cursor>,
    after: Option<Cursor>,
    /// The end of the part; `None`: the end of the list.
    upto: Option<Cursor>,
    /// The last page that has used it.
    page: u64,
    state: SpanListState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SpanListState {
    /// There may be entries that were not read.
    #[default]
    Behind,
    /// There may be entries that were not read, and some that were read are not sorted.
    Loose,
    /// It is complete as of this page.
    Read,
}

/// Positions of a list behind a cursor.
#[derive(Debug)]
pub(crate) struct SpanSlice<'a> {
    pub(crate) places: &'a [Cursor],
    /// The end of the part if the list continues; `None`: it is complete.
    pub(crate) upto: Option<Cursor>,
}

impl Windows {
    pub(crate) fn new(reading: SpanReadLimits) -> Self {
        Windows { reading, windows: HashMap::new(), page: 0, beside: 1 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// Begins a page that reads the lists of several queues in turn.
    pub(crate) fn begin(&mut self, queues: usize) {
        self.beside = queues.max(1);
    }

    /// Reads the next slice of several lists in one request.
    pub(crate) async fn read(
        &mut self,
        shared: &RedisShared,
        keys: &[String],
        range: Range,
    ) -> Result<(), StoreError> {
        if keys.is_empty() {
            return Ok(());
        }
        let SpanReadLimits { slice, .. } = self.reading;
        let slice = (5 * slice / keys.len().max(1)).clamp(LEAST_READ.min(slice), slice);
        let mut ask = Pipeline::with_capacity(2 * keys.len());
        for key in keys {
            let window = self.windows.entry(key.clone()).or_default();
            window.page = self.page;
            window.turn_to(range);
            window.ask(&mut ask, key, slice);
        }
        let mut replies = shared.wire.call(ask).await?.into_iter();
        let most = self.share(self.beside);
        for key in keys {
            let Some(window) = self.windows.get_mut(key) else { continue };
            window.take(key, &mut replies, slice, most)?;
        }
        Ok(())
    }

    /// The positions of a list behind a cursor, at least some if there are any.
    pub(crate) async fn part(
        &mut self,
        shared: &RedisShared,
        key: &str,
        range: Range,
    ) -> Result<SpanSlice<'_>, StoreError> {
        let (slice, most) = (self.reading.slice, self.share(self.beside));
        let window = self.windows.entry(key.into()).or_default();
        window.page = self.page;
        loop {
            if window.state == SpanListState::Read {
                if window.upto.is_none_or(|upto| range.after < Some(upto)) {
                    break;
                }
                window.reset(range.after);
            }
            let mut ask = Pipeline::with_capacity(2);
            window.ask(&mut ask, key, slice);
            window.take(key, &mut shared.wire.call(ask).await?.into_iter(), slice, most)?;
        }
        let from = window.places.partition_point(|place| Some(*place) <= range.after);
        Ok(SpanSlice { places: &window.places[from..], upto: window.upto })
    }

    fn share(&self, lists: usize) -> usize {
        (self.reading.kept / lists.max(1)).max(LEAST_KEPT)
    }

    /// Ends a page. Drops unused parts, and reduces the rest when it is too large; returns the number of positions that
    /// are kept.
    pub(crate) fn rest(&mut self) -> usize {
        self.page += 1;
        let page = self.page;
        self.windows.retain(|_, window| window.page + IDLE_PAGES >= page);
        self.windows.values_mut().for_each(Window::rest);
        let mut kept: usize = self.windows.values().map(|window| window.places.capacity()).sum();
        if kept > self.reading.kept {
            let large = self.windows.values().filter(|window| window.places.len() > LEAST_KEPT);
            let most = self.share(large.count());
            self.windows.values_mut().for_each(|window| window.cut(most));
            kept = self.windows.values().map(|window| window.places.capacity()).sum();
        }
        kept
    }
}

impl Window {
    /// Drops positions before the page, or all if the page begins elsewhere.
    fn turn_to(&mut self, range: Range) {
        self.rest();
        let (since, after) = (range.since, range.after);
        if after < self.after {
            self.reset(since);
        } else if self.upto.is_some_and(|upto| after >= Some(upto)) {
            self.reset(after);
        } else if since > self.after {
            let gone = self.places.partition_point(|place| Some(*place) <= since);
            self.places.drain(..gone);
            self.after = since;
            if self.places.capacity() > 4 * self.places.len() {
                self.places.shrink_to(2 * self.places.len());
            }
        }
    }

    /// Sorts the entries that were read; there may be more by now.
    fn rest(&mut self) {
        if self.state == SpanListState::Loose {
            // The entries are mostly sorted already, with a few new ones behind them.
            self.places.sort();
            self.places.dedup();
        }
        self.state = SpanListState::Behind;
    }

    fn reset(&mut self, after: Option<Cursor>) {
        *self = Window { after, page: self.page, ..Window::default() };
    }

    fn ask(&self, ask: &mut Pipeline, key: &str, slice: usize) {
        let from = self.seen.max(1);
        ask.cmd("LINDEX").arg(key).arg(0);
        ask.cmd("LRANGE").arg(key).arg(from).arg(from + slice - 1);
    }

    /// Takes in the reply to [`Window::ask`].
    fn take(
        &mut self,
        key: &str,
        replies: &mut impl Iterator<Item = Value>,
        slice: usize,
        most: usize,
    ) -> Result<(), StoreError> {
        let stamp = value::bytes(value::some(replies.next(), "LINDEX")?, "LINDEX")?;
        let entries = value::bytes_list(value::some(replies.next(), "LRANGE")?, "LRANGE")?;
        let Some(stamp) = stamp else {
            // The list was deleted, and with it all messages that were only in it.
            self.reset(self.after);
            self.state = SpanListState::Read;
            return Ok(());
        };
        let from = self.seen.max(1);
        if stamp != self.stamp {
            self.reset(self.after);
            self.stamp = stamp;
            if from > 1 {
                return Ok(()); // what was read is of the middle of another list
            }
        }
        let read = entries.len();
        if self.places.len() + read > 2 * most {
            self.cut(most);
        }
        for entry in entries.into_iter().flatten() {
            let place = lex::read_place(&entry).ok_or_else(|| {
                fault::damaged(key, String::from_utf8_lossy(&entry), "an entry of another form")
            })?;
            if Some(place) > self.after && self.upto.is_none_or(|upto| place <= upto) {
                self.places.push(place);
                self.state = SpanListState::Loose;
            }
        }
        self.seen = from + read;
        if read < slice {
            self.rest();
            self.state = SpanListState::Read;
        }
        Ok(())
    }

    /// Keeps only the first positions.
    fn cut(&mut self, most: usize) {
        if self.places.len() > most {
            let (_, last, _) = self.places.select_nth_unstable(most - 1);
            self.upto = Some(*last);
            self.places.truncate(most);
            self.places.sort_unstable();
        }
        self.places.shrink_to(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_where_its_times_start() {
        for (time, at) in [(0, 0), (65_535, 0), (65_536, 65_536), (131_071, 65_536), (u64::MAX, MOST_SCORE)] {
            assert_eq!(start(time), at, "{time}");
        }
    }
}
