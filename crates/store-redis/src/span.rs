//! Spans of due time: messages that come many at a time are entries of a list for each stretch of time, which is sorted when it is read, as the slots of a
//! wheel are. Adding to a list costs a tenth of adding to a sorted set, and nothing is taken out: an entry counts while the message that it names is due
//! then. A list goes with the last message that is in it alone.

use std::collections::HashMap;

use duewheel_core::store::{Cursor, StoreError};
use redis::Pipeline;

use crate::plan::MOST_SCORE;
use crate::shared::Shared;
use crate::{fault, lex, value};

/// Length of a span: 65.536 s, in ms, as a power of two.
const SPAN_BITS: u32 = 16;
/// Entries that are read at once: others have their turn in between.
const SLICE: usize = 10_000;
/// Places that are kept between two pages, at most, 16 bytes each.
const KEPT: usize = 1 << 19;
/// Places of one list that are kept, at least.
const LEAST_KEPT: usize = 1 << 12;

/// The time as a score.
pub(crate) fn score(time: u64) -> u64 {
    time.min(MOST_SCORE)
}

/// Where the span of a time starts.
pub(crate) fn start(time: u64) -> u64 {
    score(time) >> SPAN_BITS << SPAN_BITS
}

/// What was read of lists, so that the next page needs no more than what was added since.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    windows: HashMap<String, Window>,
    turn: u64,
}

/// A part of a list, sorted: all places behind `after` up to and with `upto`.
#[derive(Debug, Default)]
struct Window {
    /// The first element of the list: another list under the same key has another.
    stamp: Vec<u8>,
    /// Elements that were looked at, with the stamp.
    seen: usize,
    places: Vec<Cursor>,
    after: Option<Cursor>,
    /// `None`: up to the end.
    upto: Option<Cursor>,
    turn: u64,
}

/// Places of a list behind a cursor.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub(crate) places: &'a [Cursor],
    /// The part ends here and the list goes on; `None`: that is all.
    pub(crate) upto: Option<Cursor>,
}

impl Windows {
    /// The places of a list behind `after`, at least some if there are any. `lists` is how many are read in turn.
    pub(crate) async fn part(
        &mut self,
        shared: &Shared,
        key: String,
        after: Option<Cursor>,
        lists: usize,
    ) -> Result<Part<'_>, StoreError> {
        let most = (KEPT / lists.max(1)).max(LEAST_KEPT);
        self.turn += 1;
        self.make_room(&key);
        let window = self.windows.entry(key.clone()).or_default();
        window.turn = self.turn;
        if after < window.after || window.upto.is_some_and(|upto| after >= Some(upto)) {
            *window = Window { after, turn: self.turn, ..Window::default() };
        }
        window.refresh(shared, &key, most).await?;
        if after > window.after {
            let gone = window.places.partition_point(|place| Some(*place) <= after);
            window.places.drain(..gone);
            window.after = after;
        }
        Ok(Part { places: &window.places, upto: window.upto })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// Forgets what was not used for longest while too much is kept.
    fn make_room(&mut self, but: &str) {
        let mut kept: usize = self.windows.values().map(|window| window.places.len()).sum();
        while kept > KEPT {
            let others = self.windows.iter().filter(|(key, _)| *key != but);
            let Some((key, window)) = others.min_by_key(|(_, window)| window.turn) else { return };
            kept -= window.places.len();
            let key = key.clone();
            self.windows.remove(&key);
        }
    }
}

impl Window {
    /// Reads what was added.
    async fn refresh(&mut self, shared: &Shared, key: &str, most: usize) -> Result<(), StoreError> {
        let mut is_sorted = true;
        loop {
            let from = self.seen.max(1);
            let mut ask = Pipeline::with_capacity(2);
            ask.cmd("LINDEX").arg(key).arg(0);
            ask.cmd("LRANGE").arg(key).arg(from).arg(from + SLICE - 1);
            let mut reply = shared.wire.call(ask).await?.into_iter();
            let stamp = value::bytes(value::some(reply.next(), "LINDEX")?, "LINDEX")?;
            let entries = value::bytes_list(value::some(reply.next(), "LRANGE")?, "LRANGE")?;
            let Some(stamp) = stamp else {
                // The list is gone, and with it all that was only in it.
                *self = Window { after: self.after, turn: self.turn, ..Window::default() };
                return Ok(());
            };
            if stamp != self.stamp {
                *self = Window { stamp, after: self.after, turn: self.turn, ..Window::default() };
                if from > 1 {
                    continue;
                }
            }
            let read = entries.len();
            for entry in entries.into_iter().flatten() {
                let place = lex::read_place(&entry).ok_or_else(|| {
                    fault::damaged(key, String::from_utf8_lossy(&entry), "an entry of another form")
                })?;
                if Some(place) > self.after && self.upto.is_none_or(|upto| place <= upto) {
                    self.places.push(place);
                    is_sorted = false;
                }
            }
            self.seen = from + read;
            if self.places.len() > 2 * most {
                let (_, last, _) = self.places.select_nth_unstable(most - 1);
                self.upto = Some(*last);
                self.places.truncate(most);
                is_sorted = false;
            }
            if read < SLICE {
                break;
            }
        }
        if !is_sorted {
            self.places.sort_unstable();
            self.places.dedup();
        }
        Ok(())
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
