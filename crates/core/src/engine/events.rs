//! Events: questions of those who follow, which the store answers, and what became due while somebody follows.
//!
//! Events of records come from the store, which has the durable ones. That a message has become due is no record: it is
//! kept here for a moment, with the position of the record before it, while somebody has asked lately.

use std::collections::{BTreeMap, VecDeque};

use crate::event::MessageEvent;
use crate::id::{Lsn, ReplyTo};
use crate::store::{EventPage, EventRequest};
use crate::time::{EngineMs, Now};

use super::Engine;
use super::effect::{Effect, Effects};
use super::question::GivenUp;
use super::reply::Reply;
use super::rows::RowIdx;

/// Most events of messages that became due that are kept.
const FIRED: usize = 1_024;
/// They are kept for this long after somebody has asked for them, in ms of engine time.
const FOLLOWED_MS: u64 = 10_000;
/// Largest number of events of a page.
const PAGE: usize = 1_000;
/// Bytes of records that are read for a page.
const PAGE_BYTES: usize = 1024 * 1024;

/// What is followed, and who waits for events.
#[derive(Debug, Default)]
pub(super) struct Following {
    questions: BTreeMap<u64, EventQuestion>,
    next_ticket: u64,
    fired: VecDeque<MessageEvent>,
    /// The number of the last one of `fired`, counted since the start.
    last_fired: u64,
    /// Until when what becomes due is kept.
    until: Option<EngineMs>,
}

/// A caller that waits for a page.
#[derive(Debug)]
struct EventQuestion {
    to: ReplyTo,
    fired_after: Option<u64>,
}

/// The answer to [`super::Op::Events`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ShardEvents {
    /// The events, with those of messages that became due among them, in order.
    pub page: EventPage,
    /// The number of the last event of a message that became due that this or an earlier answer has.
    pub fired: u64,
}

impl Following {
    pub(super) fn is_asked(&self) -> bool {
        !self.questions.is_empty()
    }

    /// Whether what becomes due is kept now.
    fn is_followed(&mut self, now: Now) -> bool {
        if self.until.is_some_and(|until| until < now.engine) {
            self.until = None;
            self.fired = VecDeque::new();
        }
        self.until.is_some()
    }

    fn push(&mut self, event: MessageEvent) {
        if self.fired.len() == FIRED {
            self.fired.pop_front();
        }
        self.fired.push_back(event);
        self.last_fired += 1;
    }

    /// What became due behind the number `after`, up to a position; and the number of the last of these.
    fn fired_since(&self, after: u64, upto: Lsn) -> (Vec<MessageEvent>, u64) {
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

impl Engine {
    /// Asks the store for a page of events.
    pub(super) fn events(
        &mut self,
        now: Now,
        to: ReplyTo,
        after: Option<Lsn>,
        limit: usize,
        fired_after: Option<u64>,
        fx: &mut Effects,
    ) {
        let following = &mut self.following;
        if after.is_none() || fired_after.is_some() {
            following.is_followed(now);
            following.until = Some(EngineMs(now.engine.0.saturating_add(FOLLOWED_MS)));
        }
        let ticket = following.next_ticket;
        following.next_ticket += 1;
        following.questions.insert(ticket, EventQuestion { to, fired_after });
        let events = limit.clamp(1, PAGE);
        fx.push(Effect::ReadEvents(EventRequest { ticket, after, events, bytes: PAGE_BYTES }));
    }

    /// Answers with a page of events.
    pub(super) fn take_events(&mut self, mut page: EventPage, fx: &mut Effects) {
        let Some(question) = self.following.questions.remove(&page.ticket) else { return };
        let mut last = self.following.last_fired;
        if let Some(after) = question.fired_after {
            let fired;
            (fired, last) = self.following.fired_since(after, page.upto);
            page.events.extend(fired);
            // One that became due comes behind the record before it.
            page.events.sort_by_key(|event| event.position);
        }
        page.ticket = 0; // it concerns the engine and its store alone
        let reply = Reply::Events(Box::new(ShardEvents { page, fired: last }));
        self.respond(question.to, reply, fx);
    }

    /// Gives up a page of events that cannot be read.
    pub fn give_up_events(&mut self, ticket: u64) -> Option<GivenUp> {
        self.following.questions.remove(&ticket).map(|question| GivenUp::Untouched(question.to))
    }

    /// Keeps that a message has become due, if somebody follows.
    pub(super) fn note_fired(&mut self, now: Now, slot: RowIdx) {
        if !self.following.is_followed(now) {
            return;
        }
        let message = &self.rows.get(slot).message;
        if !message.queue.is_system() {
            let event = MessageEvent::fired(message.queue.clone(), message.id, self.last, now.wall);
            self.following.push(event);
        }
    }
}
