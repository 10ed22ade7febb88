//! A ring of recent events, for stores without a journal.

use std::collections::VecDeque;

use super::{EventPage, EventRequest, More};
use crate::event::MessageEvent;
use crate::id::Lsn;
use crate::record::Group;
use crate::time::EngineMs;

/// Recent events in memory, for a store that cannot read its groups again.
///
/// Events are kept from the first request on, so that a store without requests keeps none, until ten minutes after the
/// last request.
#[derive(Debug)]
pub struct RecentEvents {
    events: VecDeque<MessageEvent>,
    /// The memory of the events, in bytes.
    bytes: usize,
    most_bytes: usize,
    kept: KeptSince,
}

#[derive(Debug)]
enum KeptSince {
    Nothing,
    /// All events behind a position, which grows when the oldest are forgotten.
    Behind {
        floor: Lsn,
        /// Engine time of the first group behind the last request.
        unasked_since: Option<EngineMs>,
    },
}

/// The memory for the events of a shard, in bytes.
pub const RECENT_EVENTS_BYTES: usize = 4 * 1024 * 1024;
/// Events are kept for this long after the last request, in ms of engine time.
const ASKED_MS: u64 = 600_000;

impl Default for RecentEvents {
    fn default() -> Self {
        RecentEvents::new(RECENT_EVENTS_BYTES)
    }
}

impl RecentEvents {
    /// Room for events of this many bytes.
    pub fn new(most_bytes: usize) -> Self {
        RecentEvents { events: VecDeque::new(), bytes: 0, most_bytes, kept: KeptSince::Nothing }
    }

    /// Takes the events of a group that was appended.
    pub fn take(&mut self, group: &Group) {
        let KeptSince::Behind { floor, unasked_since } = &mut self.kept else { return };
        let now = group.clock.engine;
        let since = unasked_since.get_or_insert(now);
        if now.0.saturating_sub(since.0) > ASKED_MS {
            *self = RecentEvents::new(self.most_bytes);
            return;
        }
        for event in MessageEvent::of_group(group) {
            self.bytes += event.weight();
            self.events.push_back(event);
        }
        while self.bytes > self.most_bytes
            && let Some(oldest) = self.events.pop_front()
        {
            self.bytes -= oldest.weight();
            *floor = oldest.position;
        }
    }

    /// The page for a request to a store whose last record is `applied`, and whose last durable one is `durable`.
    pub fn page(&mut self, asked: EventRequest, applied: Lsn, durable: Lsn) -> EventPage {
        let floor = match self.kept {
            KeptSince::Behind { floor, .. } => floor,
            KeptSince::Nothing => applied,
        };
        self.kept = KeptSince::Behind { floor, unasked_since: None };
        let EventRequest { ticket, after, events: most, .. } = asked;
        let from = after.filter(|after| *after <= durable).unwrap_or(durable).max(floor);
        if from >= durable {
            // Nothing is known of records that are not durable yet and were appended before the first request.
            return EventPage { ticket, from, upto: from, more: More::No, events: Vec::new() };
        }
        let first = self.events.partition_point(|event| event.position <= from);
        let behind = self.events.range(first..).take_while(|event| event.position <= durable);
        let mut behind = behind.peekable();
        let events: Vec<MessageEvent> = behind.by_ref().take(most.max(1)).cloned().collect();
        let (upto, more) = match (behind.peek(), events.last()) {
            (Some(_), Some(last)) => (last.position, More::Yes),
            _ => (durable, More::No),
        };
        EventPage { ticket, from, upto, more, events }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::MessageId;
    use crate::message::Kind;
    use crate::name::QueueName;
    use crate::record::{ClockPair, Gone, Record, Was};
    use crate::time::{Due, WallMs};

    fn group(first: u64, engine: u64) -> Group {
        let was = Was {
            queue: QueueName::new("q").unwrap(),
            kind: Kind::Waiting,
            due: Due::At(WallMs(1)),
            weight: 0,
        };
        let removed = |n| Record::Removed { id: MessageId(n), why: Gone::Acked, was: was.clone() };
        let clock = ClockPair { engine: EngineMs(engine), wall: WallMs(engine) };
        Group { first: Lsn(first), clock, records: vec![removed(first), removed(first + 1)] }
    }

    fn positions(page: &EventPage) -> Vec<u64> {
        page.events.iter().map(|event| event.position.0).collect()
    }

    fn ask(after: Option<u64>, events: usize) -> EventRequest {
        EventRequest { ticket: 1, after: after.map(Lsn), events, bytes: usize::MAX }
    }

    #[test]
    fn events_are_kept_from_first_request() {
        let mut recent = RecentEvents::default();
        recent.take(&group(1, 0));
        let page = recent.page(ask(Some(0), 9), Lsn(2), Lsn(2));
        assert_eq!((page.from, page.upto, positions(&page)), (Lsn(2), Lsn(2), vec![]), "not kept");
        recent.take(&group(3, 0));
        recent.take(&group(5, 0));
        let page = recent.page(ask(Some(2), 3), Lsn(6), Lsn(6));
        assert_eq!(
            (page.from, page.upto, page.more, positions(&page)),
            (Lsn(2), Lsn(5), More::Yes, vec![3, 4, 5])
        );
        let page = recent.page(ask(Some(5), 3), Lsn(6), Lsn(6));
        assert_eq!((page.upto, page.more, positions(&page)), (Lsn(6), More::No, vec![6]));
        let page = recent.page(ask(Some(2), 9), Lsn(6), Lsn(4));
        assert_eq!((page.upto, positions(&page)), (Lsn(4), vec![3, 4]), "the others are not durable");
        let page = recent.page(ask(Some(77), 9), Lsn(6), Lsn(6));
        assert_eq!((page.from, page.upto), (Lsn(6), Lsn(6)), "not a position of this store");
    }

    #[test]
    fn oldest_events_leave_full_memory() {
        let two = MessageEvent::of_group(&group(1, 0)).map(|event| event.weight()).sum::<usize>();
        let mut recent = RecentEvents::new(two * 3 / 2);
        recent.page(ask(None, 9), Lsn(0), Lsn(0));
        recent.take(&group(1, 0));
        assert_eq!(positions(&recent.page(ask(Some(0), 9), Lsn(2), Lsn(2))), [1, 2]);
        recent.take(&group(3, 0));
        let page = recent.page(ask(Some(0), 9), Lsn(4), Lsn(4));
        assert_eq!((page.from, positions(&page)), (Lsn(1), vec![2, 3, 4]), "there is memory for three");
    }

    #[test]
    fn events_are_dropped_when_unrequested() {
        let mut recent = RecentEvents::default();
        recent.page(ask(None, 9), Lsn(0), Lsn(0));
        recent.take(&group(1, 1_000));
        recent.take(&group(3, 1_000 + ASKED_MS));
        assert_eq!(recent.events.len(), 4);
        recent.take(&group(5, 1_001 + ASKED_MS));
        assert_eq!((recent.events.len(), recent.bytes), (0, 0));
        assert_eq!(recent.page(ask(Some(0), 9), Lsn(6), Lsn(6)).from, Lsn(6));
    }
}
