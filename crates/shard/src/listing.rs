//! Listings over all shards: in due order, page by page, each message once.
//!
//! Each shard has its own position in a listing. A page is merged from parts of each shard's next page; the positions
//! after the messages taken form the cursor. How much a shard has sent in advance therefore does not matter.

use std::collections::VecDeque;

use duewheel_core::engine::{ListCursor, Page, View};
use duewheel_core::message::State;

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
                (Some(State::Dead), Some((_, since))) => (since, view.message.id),
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
