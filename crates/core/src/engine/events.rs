//! Events: requests for pages, which the store answers, and messages that became due while a caller follows.
//!
//! Events of records come from the store, which has the durable ones. A message that becomes due makes no record: its
//! event is kept here for a moment, with the position of the record before it, while a caller has asked lately.

use crate::event::MessageEvent;
use crate::id::{Lsn, ReplyTo};
use crate::store::{EventPage, EventRequest};
use crate::time::EngineMs;

use super::Engine;
use super::effect::Effect;
use super::question::EventQuestion;
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
        self.loading.tickets += 1;
        let ticket = self.loading.tickets;
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
