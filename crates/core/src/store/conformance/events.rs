//! Obligation 8: events are those of durable records, in order, without a gap that a page does not say.

use super::{Case, Fixture, OpenedStore, PATIENCE};
use crate::event::MessageEvent;
use crate::id::Lsn;
use crate::record::Group;
use crate::store::{EventPage, EventRequest, More, Store};
use std::time::Instant;

/// Events of a page.
const PAGE: usize = 7;

impl<S: Store> OpenedStore<S> {
    fn read_events(&mut self, ticket: u64, after: Option<Lsn>) -> EventPage {
        let asked = EventRequest { ticket, after, events: PAGE, bytes: 4_096 };
        let asked = self.store.read_events(asked);
        if let Some(page) = self.case.ok(asked, "events") {
            return page;
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(page) = self.store.events_read() {
                return self.case.ok(page, "events");
            }
            self.case.check(Instant::now() < deadline, "events that were asked for come");
            self.bell.wait();
        }
    }

    /// Reads from a position to the last durable record.
    fn follow(&mut self, groups: &[Group], after: Lsn) {
        let (case, mut at) = (self.case, after);
        for ticket in 0.. {
            let durable = self.progress().durable;
            let page = self.read_events(ticket, Some(at));
            case.check(page.ticket == ticket, "a page answers its request");
            case.check(page.from >= at.min(durable) && page.from <= page.upto, "pages follow each other");
            case.check(page.upto <= self.progress().durable.max(at), "events are of durable records");
            let all = groups.iter().flat_map(MessageEvent::of_group);
            let of_page = all.filter(|event| event.position > page.from && event.position <= page.upto);
            case.check(of_page.eq(page.events), "a page has all events between its positions");
            case.check(page.more == More::No || page.upto > at, "each page makes progress");
            at = page.upto;
            if page.more == More::No {
                case.check(at >= durable, "the last page reaches what was durable");
                return;
            }
        }
    }
}

pub(super) fn events_are_of_durable_records<F: Fixture>(fixture: &mut F, case: Case) {
    fixture.clear();
    let mut history = case.history();
    let mut groups: Vec<Group> = Vec::new();
    for _ in 0..3 {
        let mut opened = OpenedStore::open(fixture, case);
        opened.make_durable(history.model().applied());
        let page = opened.read_events(1, None);
        let nothing = page.events.is_empty() && page.more == More::No && page.from == page.upto;
        case.check(nothing && page.upto == history.model().applied(), "without a position: from now on");
        let now = page.upto;
        opened.follow(&groups, Lsn(0));
        for _ in 0..30 {
            let group = history.group(9);
            opened.append(&group);
            groups.push(group);
            if history.dice().once_in(4) {
                let applied = history.model().applied().0;
                let after = history.dice().below(applied + 1);
                opened.follow(&groups, Lsn(after));
            }
        }
        opened.make_durable(history.model().applied());
        opened.follow(&groups, now);
        let ahead = Lsn(history.model().applied().0 + 1_000);
        let page = opened.read_events(1, Some(ahead));
        case.check(page.from == history.model().applied(), "a position that is not one of the store");
        fixture.kill(opened.store);
    }
}
