//! Requests that need pages from the store: their parameters, and what has been read so far.

use std::collections::{BTreeMap, VecDeque};

use crate::id::{MessageId, ReplyTo};
use crate::message::State;
use crate::name::{Key, QueueName};
use crate::store::{Load, Loaded};

use super::input::ListCursor;

/// The requests that wait for pages, and the changes of many messages among them.
#[derive(Debug, Default)]
pub(super) struct Gathers {
    /// Requests whose pages are loading or whose changes are under way, by number.
    pub(super) running: BTreeMap<u64, Gather>,
    next: u64,
    /// Requests that wait for their turn: pages of a few are loaded at a time.
    pub(super) waiting: VecDeque<(Pages, Vec<Load>)>,
    /// The running ones that change many messages, and can continue now.
    pub(super) changes: VecDeque<u64>,
    /// Number of their messages, from the first on, that this batch has looked up.
    pub(super) looked_up: usize,
}

impl Gathers {
    /// Whether no request waits.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Adds a running request under a number of its own.
    pub(super) fn start(&mut self, gather: Gather) -> u64 {
        let number = self.next;
        self.next += 1;
        self.running.insert(number, gather);
        number
    }
}

/// A request that waits for pages.
#[derive(Debug)]
pub(super) enum Gather {
    /// Pages of one sequence or of two.
    Pages(Pages),
    /// Messages of pages that are to be fired or redriven; they are looked up once more.
    Many {
        to: ReplyTo,
        queue: QueueName,
        rows: VecDeque<FoundMessage>,
        what: ToMany,
        many: Many,
        next: Vec<Load>,
    },
}

/// A request whose pages are being read.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) to: ReplyTo,
    pub(super) queue: QueueName,
    pub(super) want: Want,
    pub(super) missing: usize,
    pub(super) pages: Vec<Loaded>,
}

/// The parameters of a request.
#[derive(Debug)]
pub(super) enum Want {
    Peek(State),
    List { state: Option<State>, seen: ListCursor, limit: usize },
    Change(ToMany, Many),
}

/// The change that is applied to many messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToMany {
    Fire,
    Redrive,
}

/// A message of a page that is to be changed. Other fields of the page may be outdated by then.
#[derive(Debug)]
pub(super) struct FoundMessage {
    pub(super) id: MessageId,
    /// The key of a dead message, which must be free when the message comes back.
    pub(super) key: Option<Key>,
}

/// The result of giving up a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// Nothing was changed; this caller must be given the reason.
    Untouched(ReplyTo),
    /// No caller waits for an answer any more, or some messages were changed and the answer contains their number.
    Told,
}

/// Progress of a change of many messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Many {
    pub(super) max: usize,
    pub(super) done: usize,
}

impl Many {
    pub(super) fn left(self) -> usize {
        self.max - self.done
    }
}
