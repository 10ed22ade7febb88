//! Listings over all shards: in due order, page by page, each message once.
//!
//! Each shard has its own position in a listing. A page is merged from parts of each shard's next page; the positions
//! after the messages taken form the cursor. How much a shard has sent in advance therefore does not matter.

use std::collections::VecDeque;

use duewheel_core::engine::{ListCursor, Page, View};
use duewheel_core::message::State;

/// The progress of a listing: one position for each shard. Returned by [`crate::client::Client::list`];
/// [`ListPlaces::new`] reassembles one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPlaces(Vec<ListPlace>);

/// The position in the listing of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListPlace {
    /// After this position; nothing has been listed so far if both of its halves are `None`.
    Behind(ListCursor),
    /// Everything has been listed.
    End,
}

impl ListPlace {
    /// Before the first message.
    pub const START: ListPlace = ListPlace::Behind(ListCursor { at: None, after: None });
}

impl ListPlaces {
    /// Positions, one for each shard, in the order of the shards.
    pub fn new(places: Vec<ListPlace>) -> Self {
        ListPlaces(places)
    }

    /// The positions, one for each shard, in the order of the shards.
    pub fn as_slice(&self) -> &[ListPlace] {
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
    pub next: Option<ListPlaces>,
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
    place: ListPlace,
    rows: VecDeque<(View, ListCursor)>,
    /// The position after `rows`.
    next: ListPlace,
}

impl ListingMerge {
    /// Begins at these positions. A page has at most `limit` messages, and ends when they exceed its limit of bytes.
    pub fn new(state: Option<State>, places: ListPlaces, limit: usize, max_bytes: usize) -> Self {
        let reading = |place| ShardProgress { place, rows: VecDeque::new(), next: place };
        let shards = places.0.into_iter().map(reading).collect();
        ListingMerge { state, shards, views: Vec::new(), bytes: 0, limit, max_bytes }
    }

    /// The shards whose next page is needed before anything else can be taken, each with its cursor. Empty: the page is
    /// complete.
    pub fn wants(&self) -> Vec<(usize, ListCursor)> {
        if self.is_full() {
            return Vec::new();
        }
        let wants = |(at, reading): (usize, &ShardProgress)| match reading.next {
            ListPlace::Behind(place) if reading.rows.is_empty() => Some((at, place)),
            ListPlace::Behind(_) | ListPlace::End => None,
        };
        self.shards.iter().enumerate().filter_map(wants).collect()
    }

    /// Adds a shard's next page.
    pub fn give(&mut self, shard: usize, page: Page) {
        let Some(reading) = self.shards.get_mut(shard) else { return };
        reading.rows.extend(page.views.into_iter().zip(page.behind));
        reading.next = page.next.map_or(ListPlace::End, ListPlace::Behind);
        if reading.rows.is_empty() {
            reading.place = reading.next;
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
            reading.place = if reading.rows.is_empty() { reading.next } else { ListPlace::Behind(behind) };
            self.bytes += view.message.weight();
            self.views.push(view);
        }
    }

    /// Ends the page with the messages taken so far.
    pub fn end(self) -> Listing {
        let places: Vec<ListPlace> = self.shards.iter().map(|reading| reading.place).collect();
        let all = places.iter().all(|place| *place == ListPlace::End);
        Listing { views: self.views, next: (!all).then_some(ListPlaces(places)) }
    }

    fn is_full(&self) -> bool {
        self.views.len() >= self.limit || self.bytes >= self.max_bytes
    }
}
