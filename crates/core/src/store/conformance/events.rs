//! Reads events as a reader that follows does, and compares them with the records.

use crate::event::MessageEvent;
use crate::id::Lsn;
use crate::record::Group;
use crate::store::{EventPage, EventRequest, More, Store, StoreArrival, StoreError, StoreRequest};

/// Events of a page.
const PAGE: usize = 7;

/// A store whose events are read, and what to do when a page is awaited or a check is made.
pub(super) struct EventProbe<'a, S> {
    pub(super) store: &'a mut S,
    /// Waits for the store's waker; ends the test when that takes too long.
    pub(super) wait: &'a mut dyn FnMut(),
    pub(super) check: &'a dyn Fn(bool, &str),
}

impl<S: Store> EventProbe<'_, S> {
    pub(super) fn page(&mut self, ticket: u64, after: Option<Lsn>) -> EventPage {
        let asked = EventRequest { ticket, after, events: PAGE, bytes: 4_096 };
        self.ok(|store| store.ask(StoreRequest::Events(asked)).map(Some));
        loop {
            match self.ok(|store| store.arrived().transpose()) {
                Some(StoreArrival::Events(page)) => return page,
                Some(StoreArrival::Fetched(_) | StoreArrival::Loaded(_)) => {
                    (self.check)(false, "what was asked for arrives")
                }
                None => (self.wait)(),
            }
        }
    }

    fn durable(&mut self) -> Lsn {
        self.ok(|store| store.progress().map(|progress| Some(progress.durable))).unwrap_or_default()
    }

    fn ok<T>(&mut self, call: impl FnOnce(&mut S) -> Result<Option<T>, StoreError>) -> Option<T> {
        match call(self.store) {
            Ok(answer) => answer,
            Err(error) => {
                (self.check)(false, &format!("events: {error:?}"));
                None
            }
        }
    }

    /// Reads from a position to the last durable record.
    pub(super) fn follow(&mut self, groups: &[Group], after: Lsn) {
        let (check, mut at) = (self.check, after);
        for ticket in 0.. {
            let durable = self.durable();
            let page = self.page(ticket, Some(at));
            check(page.ticket == ticket, "a page answers its request");
            check(page.from >= at.min(durable) && page.from <= page.upto, "pages follow each other");
            check(page.upto <= self.durable().max(at), "events are of durable records");
            let all = groups.iter().flat_map(MessageEvent::of_group);
            let of_page = all.filter(|event| event.position > page.from && event.position <= page.upto);
            check(of_page.eq(page.events), "a page has all events between its positions");
            check(page.more == More::No || page.upto > at, "each page makes progress");
            at = page.upto;
            if page.more == More::No {
                return check(at >= durable, "the last page reaches what was durable");
            }
        }
    }
}
