//! Listings over all shards: in due order, page by page, each message once.
//!
//! Each shard has its own position in a listing. A page is merged from parts of each shard's next page; the positions
//! after the messages taken form the cursor. How much a shard has sent in advance therefore does not matter.

use std::collections::VecDeque;
use std::fmt;

use duewheel_core::engine::{ListCursor, Page, View};
use duewheel_core::id::MessageId;
use duewheel_core::message::State;
use duewheel_core::name::QueueName;
use duewheel_core::store::Cursor;
use duewheel_core::time::WallMs;

/// The progress of a listing: one position for each shard. Returned by [`crate::client::Client::list`];
/// [`ListPositions::new`] reassembles one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPositions(Vec<ListPosition>);

/// The position in the listing of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListPosition {
    /// After this position; nothing has been listed so far if both of its halves are `None`.
    Behind(ListCursor),
    /// Everything has been listed.
    End,
}

impl ListPosition {
    /// Before the first message.
    pub const START: ListPosition = ListPosition::Behind(ListCursor { at: None, after: None });
}

impl ListPositions {
    /// Positions, one for each shard, in the order of the shards.
    pub fn new(positions: Vec<ListPosition>) -> Self {
        ListPositions(positions)
    }

    /// The positions, one for each shard, in the order of the shards.
    pub fn as_slice(&self) -> &[ListPosition] {
        &self.0
    }

    /// Reads the text of the positions of this number of shards; `None` when it is not such a text.
    pub fn parse(text: &str, shards: u32) -> Option<ListPositions> {
        fn digits(s: &str) -> Option<u64> {
            if s.bytes().all(|b| b.is_ascii_digit()) { s.parse().ok() } else { None }
        }
        fn half(s: &str) -> Option<Option<Cursor>> {
            if s == "-" {
                return Some(None);
            }
            let (time, id) = s.split_once('.')?;
            Some(Some((digits(time)?, MessageId(digits(id)?))))
        }
        fn position(s: &str) -> Option<ListPosition> {
            if s == "." {
                return Some(ListPosition::End);
            }
            let (at, after) = s.split_once('_')?;
            Some(ListPosition::Behind(ListCursor { at: half(at)?, after: half(after)? }))
        }
        let shards = usize::try_from(shards).ok()?;
        if text.split('~').take(shards + 1).count() != shards {
            return None;
        }
        text.split('~').map(position).collect::<Option<Vec<_>>>().map(ListPositions::new)
    }
}

/// A text that [`ListPositions::parse`] reads: a position for each shard, with `~` between them. A position is two halves,
/// each `-` or `time.id`; or `.` at the end of a shard.
impl fmt::Display for ListPositions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let half = |half: Option<Cursor>| half.map_or("-".to_owned(), |(time, id)| format!("{time}.{id}"));
        for (at, position) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("~")?;
            }
            match position {
                ListPosition::Behind(cursor) => write!(f, "{}_{}", half(cursor.at), half(cursor.after))?,
                ListPosition::End => f.write_str(".")?,
            }
        }
        Ok(())
    }
}

/// A request for a page of a listing; see [`crate::client::Client::list_from`].
#[derive(Clone, Debug)]
pub struct ListRequest {
    /// The queue.
    pub queue: QueueName,
    /// Only messages in this state.
    pub state: Option<State>,
    /// Behind the former page.
    pub after: Option<ListPositions>,
    /// The largest number of messages.
    pub limit: usize,
    /// Messages due before this instant may be left out; the same for each page.
    pub from: Option<WallMs>,
}

/// A page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Messages in due order; dead ones in the order in which they died. A page may have fewer than requested although
    /// there are more: see `next`.
    pub views: Vec<View>,
    /// Where to continue; `None`: this was the last page.
    pub next: Option<ListPositions>,
}

/// Pages of shards being merged into one.
#[derive(Debug)]
pub struct ListingMerge {
    state: Option<State>,
    shards: Vec<ShardProgress>,
    views: Vec<View>,
    bytes: usize,
    limit: usize,
    max_bytes: usize,
}

/// How far a shard's listing has been read.
#[derive(Debug)]
struct ShardProgress {
    /// The position after the messages that were taken.
    position: ListPosition,
    rows: VecDeque<(View, ListCursor)>,
    /// The position after `rows`.
    next: ListPosition,
}

impl ListingMerge {
    /// Begins at these positions. A page has at most `limit` messages, and ends when they exceed its limit of bytes.
    pub fn new(state: Option<State>, positions: ListPositions, limit: usize, max_bytes: usize) -> Self {
        let reading = |position| ShardProgress { position, rows: VecDeque::new(), next: position };
        let shards = positions.0.into_iter().map(reading).collect();
        ListingMerge { state, shards, views: Vec::new(), bytes: 0, limit, max_bytes }
    }

    /// The shards whose next page is needed before anything else can be taken, each with its cursor. Empty: the page is
    /// complete.
    pub fn wants(&self) -> Vec<(usize, ListCursor)> {
        if self.is_full() {
            return Vec::new();
        }
        let wants = |(at, reading): (usize, &ShardProgress)| match reading.next {
            ListPosition::Behind(position) if reading.rows.is_empty() => Some((at, position)),
            ListPosition::Behind(_) | ListPosition::End => None,
        };
        self.shards.iter().enumerate().filter_map(wants).collect()
    }

    /// Adds a shard's next page.
    pub fn give(&mut self, shard: usize, page: Page) {
        let Some(reading) = self.shards.get_mut(shard) else { return };
        reading.rows.extend(page.views.into_iter().zip(page.behind));
        reading.next = page.next.map_or(ListPosition::End, ListPosition::Behind);
        if reading.rows.is_empty() {
            reading.position = reading.next;
        }
    }

    /// Takes all messages that are known to come next.
    pub fn take(&mut self) {
        while !self.is_full() && self.wants().is_empty() {
            let key = |view: &View| match (self.state, view.dead) {
                (Some(State::Dead | State::Done), Some((_, since))) => (since, view.message.id),
                _ => (view.due_at, view.message.id),
            };
            let first =
                |(at, reading): (usize, &ShardProgress)| reading.rows.front().map(|(v, _)| (key(v), at));
            let Some((_, at)) = self.shards.iter().enumerate().filter_map(first).min() else { return };
            let reading = &mut self.shards[at];
            let Some((view, behind)) = reading.rows.pop_front() else { return };
            reading.position =
                if reading.rows.is_empty() { reading.next } else { ListPosition::Behind(behind) };
            self.bytes += view.message.weight();
            self.views.push(view);
        }
    }

    /// Ends the page with the messages taken so far.
    pub fn end(self) -> Listing {
        let positions: Vec<ListPosition> = self.shards.iter().map(|reading| reading.position).collect();
        let all = positions.iter().all(|position| *position == ListPosition::End);
        Listing { views: self.views, next: (!all).then_some(ListPositions(positions)) }
    }

    fn is_full(&self) -> bool {
        self.views.len() >= self.limit || self.bytes >= self.max_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_come_back() {
        let all = [
            ListPosition::START,
            ListPosition::Behind(ListCursor { at: Some((5, MessageId(7))), after: None }),
            ListPosition::Behind(ListCursor {
                at: Some((0, MessageId(0))),
                after: Some((u64::MAX, MessageId(u64::MAX))),
            }),
            ListPosition::End,
        ];
        for n in 1..=all.len() {
            let positions = ListPositions::new(all[..n].to_vec());
            let text = positions.to_string();
            for shards in 0..6 {
                let wanted = (shards as usize == n).then(|| positions.clone());
                assert_eq!(ListPositions::parse(&text, shards), wanted, "{text}, {shards} shards");
            }
        }
        let one = ListPositions::new(vec![all[1]]);
        assert_eq!(one.to_string(), "5.7_-", "as it has always been with one shard");
        for bad in
            ["", "_", "-", "5.7", "5.7_", "5_7", "a.b_-", "+1.2_-", "-_-_-", "1.2.3_-", "-_-~", "~", ".."]
        {
            assert_eq!(ListPositions::parse(bad, 1), None, "{bad}");
            assert_eq!(ListPositions::parse(&format!("{bad}~-_-"), 2), None, "{bad}");
        }
    }
}
