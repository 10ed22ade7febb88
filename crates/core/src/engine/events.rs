//! Events: requests for pages, which the store answers, and messages that became due while a caller follows.
//!
//! Events of records come from the store, which has the durable ones. A message that becomes due makes no record: its
//! event is kept here for a moment, with the position of the record before it, while a caller has asked lately.

use std::collections::{BTreeMap, VecDeque};

use crate::event::MessageEvent;
use crate::id::{Lsn, ReplyTo};
use crate::store::{EventPage, EventRequest};
use crate::time::{EngineMs, Now};

use super::Engine;
use super::effect::Effect;
use super::question::GivenUp;
use super::reply::{Reply, ShardEvents};
use super::rows::RowIdx;

/// Events are kept for this long after a caller has asked for them, in ms of engine time.
const FOLLOWED_MS: u64 = 10_000;
/// Largest number of events of a page.
const PAGE: usize = 1_000;
/// Bytes of records that are read for a page.
const PAGE_BYTES: usize = 1024 * 1024;

impl Engine {
    /// Asks the store for a page of events.
    pub(super) fn events(&mut self, to: ReplyTo, after: Option<Lsn>, limit: usize, fired_after: Option<u64>) {
        let following = &mut self.following;
        if after.is_none() || fired_after.is_some() {
            following.is_followed(self.now);
            following.until = Some(EngineMs(self.now.engine.0.saturating_add(FOLLOWED_MS)));
        }
        let ticket = following.next_ticket;
        following.next_ticket += 1;
        following.questions.insert(ticket, EventQuestion { to, fired_after });
        let events = limit.clamp(1, PAGE);
        self.fx.push(Effect::ReadEvents(EventRequest { ticket, after, events, bytes: PAGE_BYTES }));
    }

    /// Answers with a page of events.
    pub(super) fn take_events(&mut self, mut page: EventPage) {
        let Some(question) = self.following.questions.remove(&page.ticket) else { return };
        let mut last = self.following.last_fired;
        if let Some(after) = question.fired_after {
            let fired;
            (fired, last) = self.following.fired_since(after, page.upto);
            page.events.extend(fired);
            // The event of a message that became due comes behind the record before it.
            page.events.sort_by_key(|event| event.position);
        }
        page.ticket = 0; // it concerns the engine and its store alone
        let reply = Reply::Events(Box::new(ShardEvents { page, fired: last }));
        self.respond(question.to, reply);
    }

    /// Gives up a page of events that cannot be read.
    pub fn give_up_events(&mut self, ticket: u64) -> Option<GivenUp> {
        self.following.questions.remove(&ticket).map(|question| GivenUp::Untouched(question.to))
    }

    /// Keeps that a message has become due, if a caller follows.
    pub(super) fn note_fired(&mut self, slot: RowIdx) {
        if !self.following.is_followed(self.now) {
            return;
        }
        let message = &self.rows.get(slot).message;
        if !message.queue.is_system() {
            let event = MessageEvent::fired(message.queue.clone(), message.id, self.last, self.now.wall);
            self.following.push(event);
        }
    }
}

/// Most events of messages that became due that are kept.
const FIRED: usize = 1_024;

/// State of the callers that follow events: their open requests, and the messages that became due.
#[derive(Debug, Default)]
pub(super) struct Following {
    pub(super) questions: BTreeMap<u64, EventQuestion>,
    pub(super) next_ticket: u64,
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
