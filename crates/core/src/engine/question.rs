//! Requests that need pages from the store: their parameters, and what has been read so far; callers that follow
//! events; and work that takes several steps.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::act::Act;
use crate::event::MessageEvent;
use crate::id::{LeaseToken, Lsn, MessageId, ReplyTo, SessionId};
use crate::message::State;
use crate::name::{Key, QueueName};
use crate::store::{Load, Loaded};
use crate::time::{EngineMs, Now};

use super::input::ListCursor;
use super::points::HistoryRequest;
use super::reply::Reply;
use super::rows::{GrantRank, QueueIdx, RowIdx};

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
    History(Box<HistoryRequest>),
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
#[derive(Clone, Debug)]
pub(super) struct Many {
    pub(super) max: usize,
    pub(super) done: usize,
    /// The act that it is part of.
    pub(super) act: Option<Arc<Act>>,
}

impl Many {
    pub(super) fn left(&self) -> usize {
        self.max - self.done
    }
}

/// Most events of messages that became due that are kept.
const FIRED: usize = 1_024;

/// State of the callers that follow events: their open requests, and the messages that became due.
#[derive(Debug, Default)]
pub(super) struct Following {
    pub(super) questions: BTreeMap<u64, EventQuestion>,
    fired: VecDeque<MessageEvent>,
    /// The number of the last one of `fired`, counted since the start.
    pub(super) last_fired: u64,
    /// Until when what becomes due is kept.
    pub(super) until: Option<EngineMs>,
}

/// A caller that waits for a page.
#[derive(Debug)]
pub(super) struct EventQuestion {
    pub(super) to: ReplyTo,
    pub(super) fired_after: Option<u64>,
}

impl Following {
    pub(super) fn is_asked(&self) -> bool {
        !self.questions.is_empty()
    }

    /// Whether what becomes due is kept now.
    pub(super) fn is_followed(&mut self, now: Now) -> bool {
        if self.until.is_some_and(|until| until < now.engine) {
            self.until = None;
            self.fired = VecDeque::new();
        }
        self.until.is_some()
    }

    pub(super) fn push(&mut self, event: MessageEvent) {
        if self.fired.len() == FIRED {
            self.fired.pop_front();
        }
        self.fired.push_back(event);
        self.last_fired += 1;
    }

    /// Events of messages that became due behind number `after`, up to a position; and the number of the last.
    pub(super) fn fired_since(&self, after: u64, upto: Lsn) -> (Vec<MessageEvent>, u64) {
        let before = self.last_fired - self.fired.len() as u64;
        // The number of an engine that was replaced may be higher.
        let after = after.min(self.last_fired).max(before);
        let skip = usize::try_from(after - before).unwrap_or(usize::MAX);
        let fired = self.fired.iter().skip(skip).take_while(|event| event.position <= upto);
        let fired: Vec<MessageEvent> = fired.cloned().collect();
        let last = after + fired.len() as u64;
        (fired, last)
    }
}

/// Purged messages that were ready, to be dropped later. Those in the wheel are dropped when they are due.
#[derive(Debug)]
pub(super) struct PurgedMessages {
    pub(super) queue: QueueIdx,
    pub(super) ready: BTreeMap<(GrantRank, MessageId), RowIdx>,
}

/// Progress of the new order of a queue's ready messages.
#[derive(Debug, Default)]
pub(super) struct Rerank {
    /// Everything up to this rank has been visited. A message that is moved behind it is visited twice, and stays.
    pub(super) seen: Option<(GrantRank, MessageId)>,
    pub(super) answers: Vec<(ReplyTo, Reply)>,
}

/// Closed connections whose leases and waits have not ended.
#[derive(Debug, Default)]
pub(super) struct Closing {
    /// Closed sessions, and where to answer when everything of one has ended.
    pub(super) sessions: VecDeque<(SessionId, ReplyTo)>,
    /// Leases of connections of the former process.
    pub(super) leases: VecDeque<(MessageId, LeaseToken)>,
}

impl Closing {
    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.leases.is_empty()
    }
}
