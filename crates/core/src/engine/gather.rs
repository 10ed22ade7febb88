//! Answers that need pages from the store: listings, peeks, and changes of many messages of a queue.
//!
//! A page is as old as its position. A row that has changed since is shown in its present state if it is in memory, and
//! left out otherwise; messages put since may be missing, as if the request had come before them.

use std::collections::VecDeque;

use crate::id::{Lsn, MessageId, ReplyTo};
use crate::message::{Row, State};
use crate::name::QueueName;
use crate::record::Gone;
use crate::store::{Capacity, Cursor, Load, Loaded, Lookups, More, Sequence, Which, place_in};
use crate::time::Class;

use super::Engine;
use super::effect::Effects;
use super::horizon::now_of;
use super::input::ListCursor;
use super::question::{FoundMessage, Gather, GivenUp, Many, Pages, ToMany, Want};
use super::reply::{Page, Reply, View};
use super::rows::{RowIdx, state_of};

/// A page of a listing, and how far it has been read.
struct PageProgress {
    sequence: Sequence,
    rows: std::iter::Peekable<std::vec::IntoIter<Row>>,
    as_of: crate::Lsn,
    seen: Option<Cursor>,
    upto: Option<Cursor>,
    more: More,
}

/// Number of rows to load to find one that is still in the wanted state.
const PEEK_ROWS: usize = 8;

const NOTHING_SEEN: ListCursor = ListCursor { at: None, after: None };

impl Engine {
    /// The first message in a state: next to be granted, next to be due, first to have died, or (leased) of the lowest
    /// id.
    pub(super) fn peek(&mut self, to: ReplyTo, queue: &QueueName, state: State) {
        let Some(idx) = self.queues.find(queue) else { return self.respond(to, Reply::View(None)) };
        let first = match state {
            State::Ready => self.queues.get(idx).ready.first_key_value().map(|(&(_, id), _)| id),
            State::Leased => {
                let some = self.queues.get(idx).leased.iter().take(self.policy.max_step);
                some.into_iter().find(|&id| !self.is_overdue(id))
            }
            State::Scheduled | State::Dead | State::Done => None,
        };
        if let Some(slot) = first.and_then(|id| self.live(id)) {
            let view = Box::new(self.view(slot));
            return self.respond(to, Reply::View(Some(view)));
        }
        let loads = match state {
            State::Scheduled => self.pages_of_scheduled(queue, NOTHING_SEEN, PEEK_ROWS),
            State::Ready if self.expects_more(self.now, idx) => {
                self.pages_of_ready(queue, NOTHING_SEEN, PEEK_ROWS)
            }
            State::Dead => vec![self.page(Sequence::Dead, Which::One(queue.clone()), None, PEEK_ROWS)],
            State::Ready | State::Leased | State::Done => vec![],
        };
        self.gather(to, queue, Want::Peek(state), loads);
    }

    /// A page in due order; dead messages in order of death, with their position in the first half of the cursor. A
    /// page may be short while there is more.
    #[allow(clippy::too_many_arguments)] // the fields of one operation
    pub(super) fn list(
        &mut self,
        to: ReplyTo,
        queue: &QueueName,
        state: Option<State>,
        seen: ListCursor,
        limit: usize,
    ) {
        let done = (state == Some(State::Done) && !queue.is_of_act()).then(|| queue.of_done());
        let queue = done.as_ref().unwrap_or(queue);
        let Some(idx) = self.queues.find(queue) else {
            return self.respond(to, Reply::Page(Page::default()));
        };
        let limit = limit.clamp(1, self.policy.max_page);
        if state == Some(State::Leased) {
            let page = self.list_leased(idx, seen, limit);
            return self.respond(to, Reply::Page(page));
        }
        let of = || Which::One(queue.clone());
        let loads = match state {
            None => vec![
                self.page(Sequence::AllAt, of(), seen.at, limit),
                self.page(Sequence::AllAfter, of(), seen.after, limit),
            ],
            Some(State::Scheduled) => self.pages_of_scheduled(queue, seen, limit),
            Some(State::Ready) => self.pages_of_ready(queue, seen, limit),
            Some(State::Dead | State::Done) => vec![self.page(Sequence::Dead, of(), seen.at, limit)],
            Some(State::Leased) => vec![],
        };
        self.gather(to, queue, Want::List { state, seen, limit }, loads);
    }

    /// Makes scheduled messages of a queue due now, in due order; or dead ones ready again, in the order in which they
    /// died.
    pub(super) fn change_many(&mut self, what: ToMany, to: ReplyTo, queue: &QueueName, max: usize) {
        let max = max.min(self.policy.max_step);
        let rows = max.max(PEEK_ROWS);
        let loads = match what {
            _ if max == 0 => vec![],
            ToMany::Fire => self.pages_of_scheduled(queue, NOTHING_SEEN, rows),
            ToMany::Redrive => vec![self.page(Sequence::Dead, Which::One(queue.clone()), None, rows)],
        };
        let many = Many { max, done: 0, act: self.take_act() };
        self.gather(to, queue, Want::Change(what, many), loads);
    }

    /// The pages for scheduled messages: a due message is never Scheduled.
    fn pages_of_scheduled(&self, queue: &QueueName, seen: ListCursor, rows: usize) -> Vec<Load> {
        let behind =
            |class, seen: Option<Cursor>| seen.max(Some((now_of(class, self.now), MessageId(u64::MAX))));
        let of = || Which::One(queue.clone());
        vec![
            self.page(Sequence::At, of(), behind(Class::At, seen.at), rows),
            self.page(Sequence::After, of(), behind(Class::After, seen.after), rows),
        ]
    }

    /// The pages for ready messages: a due message that waits is Ready.
    fn pages_of_ready(&self, queue: &QueueName, seen: ListCursor, rows: usize) -> Vec<Load> {
        let of = || Which::One(queue.clone());
        let until = |class| now_of(class, self.now);
        vec![
            Load { until: until(Class::At), ..self.page(Sequence::At, of(), seen.at, rows) },
            Load { until: until(Class::After), ..self.page(Sequence::After, of(), seen.after, rows) },
        ]
    }

    pub(super) fn gather(&mut self, to: ReplyTo, queue: &QueueName, want: Want, loads: Vec<Load>) {
        let nothing = self.queues.find(queue).is_none_or(|i| self.queues.get(i).tally.count() == 0);
        let pages = Pages { to, queue: queue.clone(), want, missing: loads.len(), pages: Vec::new() };
        if nothing || loads.is_empty() {
            return self.finish(pages);
        }
        self.gathers.waiting.push_back((pages, loads));
        self.start_gathers();
    }

    /// Loads the pages of waiting answers, a few answers at a time.
    pub(super) fn start_gathers(&mut self) {
        while self.gathers.running.len() < self.policy.max_gathers
            && let Some((pages, loads)) = self.gathers.waiting.pop_front()
        {
            self.start_gather(pages, loads);
        }
    }

    fn start_gather(&mut self, pages: Pages, loads: Vec<Load>) {
        let number = self.gathers.start(Gather::Pages(pages));
        for load in loads {
            self.ask_gather(number, self.last, load);
        }
    }

    pub(super) fn take_gathered(&mut self, number: u64, asked: Lsn, loaded: Loaded) {
        let Some(Gather::Pages(mut pages)) = self.gathers.running.remove(&number) else { return };
        let sequence = loaded.load.sequence;
        match pages.pages.iter_mut().find(|page| page.load.sequence == sequence) {
            None => pages.pages.push(loaded),
            Some(page) => {
                page.rows.extend(loaded.rows);
                (page.upto, page.more) = (loaded.upto.or(page.upto), loaded.more);
            }
        }
        // A page may be short or empty without being the last, because its rows were removed.
        let page = pages.pages.iter().find(|page| page.load.sequence == sequence);
        let short = page.filter(|page| {
            let bytes: usize = page.rows.iter().map(Row::weight).sum();
            page.more == More::Yes && page.rows.len() < page.load.rows && bytes < page.load.bytes
        });
        if let Some(page) = short {
            let rows = page.load.rows - page.rows.len();
            let load = Load { after: page.upto, rows, ..page.load.clone() };
            self.gathers.running.insert(number, Gather::Pages(pages));
            return self.ask_gather(number, asked, load);
        }
        pages.missing -= 1;
        if pages.missing > 0 {
            self.gathers.running.insert(number, Gather::Pages(pages));
        } else {
            self.finish(pages);
        }
    }

    fn finish(&mut self, pages: Pages) {
        let Pages { to, queue, want, mut pages, .. } = pages;
        pages.sort_by_key(|page| page.load.sequence);
        // The position to continue at if this page is not enough: its rows may have changed since.
        let next: Vec<Load> = pages
            .iter()
            .filter(|page| page.more == More::Yes)
            .map(|page| Load { after: page.upto, ..page.load.clone() })
            .collect();
        match want {
            Want::Peek(state) => {
                let limit = PEEK_ROWS;
                let page = self.read(&queue, Some(state), pages, limit);
                let first = page.views.into_iter().next().map(Box::new);
                if first.is_none() && !next.is_empty() {
                    return self.gather(to, &queue, Want::Peek(state), next);
                }
                self.respond(to, Reply::View(first));
            }
            Want::List { state, seen, limit } => {
                let mut page = self.read(&queue, state, pages, limit);
                for place in page.behind.iter_mut().chain(&mut page.next) {
                    place.at = place.at.or(seen.at);
                    place.after = place.after.or(seen.after);
                }
                self.respond(to, Reply::Page(page));
            }
            Want::History(mut request) => {
                pages.iter().flat_map(|page| &page.rows).for_each(|row| request.take(row));
                if next.is_empty() {
                    return self.finish_history(to, *request);
                }
                self.gather(to, &queue, Want::History(request), next);
            }
            Want::Change(what, many) => {
                let mut rows: Vec<Row> = pages.into_iter().flat_map(|page| page.rows).collect();
                if what == ToMany::Fire {
                    rows.sort_by_key(|row| (self.now.wall_of(row.life.due), row.message.id));
                }
                let found = |row: Row| FoundMessage {
                    id: row.message.id,
                    key: row.message.key.clone().filter(|_| what == ToMany::Redrive),
                };
                let rows: VecDeque<FoundMessage> = rows.into_iter().map(found).collect();
                let number = self.gathers.start(Gather::Many { to, queue, rows, what, many, next });
                self.gathers.changes.push_back(number);
                self.unfinished = true;
            }
        }
    }

    /// Adds the look-ups for pending changes of many messages: as many messages as one step changes.
    pub(super) fn look_up_own(&mut self, lookups: &mut Lookups) {
        self.gathers.looked_up = 0;
        for number in &self.gathers.changes {
            let Some(Gather::Many { queue, rows, .. }) = self.gathers.running.get(number) else { continue };
            for row in rows {
                if self.gathers.looked_up == self.policy.max_step {
                    return;
                }
                self.gathers.looked_up += 1;
                self.look_up_id(row.id, lookups);
                if let Some(key) = &row.key {
                    self.look_up_key(queue, key, lookups);
                }
            }
        }
    }

    /// Gives up the next change of many messages, because what it needs cannot be read or written. If it has changed
    /// none, the result says whom to tell; otherwise the answer says how many.
    pub fn give_up_many(&mut self, fx: &mut Effects) -> Option<GivenUp> {
        self.gathers.looked_up = 0;
        let number = self.gathers.changes.pop_front()?;
        match self.gathers.running.remove(&number)? {
            Gather::Many { to, many, .. } => Some(self.step(fx, |engine| engine.give_up(to, many.done))),
            Gather::Pages(_) => None,
        }
    }

    /// Handles a page that cannot be read. If only a question waits for it, the question is given up, so that the next
    /// can start; a page that is needed for anything else is still awaited.
    pub fn give_up_page(&mut self, ticket: u64, fx: &mut Effects) -> Option<GivenUp> {
        if let Some(question) = self.following.questions.remove(&ticket) {
            return Some(GivenUp::Untouched(question.to));
        }
        let number = self.forget_page(ticket)?;
        Some(self.step(fx, |engine| {
            let given_up = match engine.gathers.running.remove(&number) {
                None => GivenUp::Told, // with another page of the same question
                Some(Gather::Many { to, many, .. }) => engine.give_up(to, many.done),
                Some(Gather::Pages(pages)) => {
                    let done = match pages.want {
                        Want::Change(_, many) => many.done,
                        Want::Peek(_) | Want::List { .. } | Want::History(_) => 0,
                    };
                    engine.give_up(pages.to, done)
                }
            };
            engine.start_gathers();
            given_up
        }))
    }

    fn give_up(&mut self, to: ReplyTo, done: usize) -> GivenUp {
        if done == 0 {
            return GivenUp::Untouched(to);
        }
        self.respond(to, Reply::Count((done as u64).into()));
        GivenUp::Told
    }

    /// Fires and redrives the messages for which everything needed has been looked up.
    pub(super) fn finish_manys(&mut self) {
        if self.room == Capacity::RemoveOnly {
            return; // it would write what the store has no room for now
        }
        let mut budget = self.budget();
        while let Some(number) = self.gathers.changes.pop_front() {
            let Some(Gather::Many { to, queue, mut rows, what, mut many, next }) =
                self.gathers.running.remove(&number)
            else {
                continue;
            };
            let before = many.done;
            while many.left() > 0
                && let Some(row) = rows.front()
            {
                let key_unmade = |key| self.unmade.has_key(&queue, key);
                let unmade = self.unmade.has_id(row.id) || row.key.as_ref().is_some_and(key_unmade);
                if self.gathers.looked_up == 0 || unmade || !self.spend(&mut budget, 1) {
                    self.unfinished = true;
                    self.gathers.looked_up = 0;
                    self.record_step(&many, before);
                    self.gathers.running.insert(number, Gather::Many { to, queue, rows, what, many, next });
                    return self.gathers.changes.push_front(number);
                }
                self.gathers.looked_up -= 1;
                let slot = self.live(row.id);
                rows.pop_front();
                many.done += usize::from(slot.is_some_and(|slot| self.change_one(slot, what)));
            }
            self.record_step(&many, before);
            // The messages behind these that were looked up are not needed.
            self.gathers.looked_up -= rows.len().min(self.gathers.looked_up);
            if many.left() > 0 && !next.is_empty() {
                self.gather(to, &queue, Want::Change(what, many), next);
            } else {
                self.respond(to, Reply::Count((many.done as u64).into()));
            }
        }
    }

    /// Records what a step has changed, if it is part of an act.
    fn record_step(&mut self, many: &Many, before: usize) {
        if let Some(act) = many.act.as_ref().filter(|_| many.done > before) {
            self.record_act(act, Some((many.done - before) as u64));
        }
    }

    /// Changes one message of a page, if it is still in the required state. Returns whether it was.
    fn change_one(&mut self, slot: RowIdx, what: ToMany) -> bool {
        let state = self.rows.get(slot).state(self.now);
        match what {
            ToMany::Fire if state == State::Scheduled => self.fire_now(slot),
            ToMany::Redrive if state == State::Dead && self.key_taken(slot).is_none() => {
                self.count_fire(slot);
                self.revive(slot);
            }
            ToMany::Fire | ToMany::Redrive => return false,
        }
        true
    }

    /// Merges pages of one queue, by the present offset of the clocks.
    fn read(&self, queue: &QueueName, state: Option<State>, pages: Vec<Loaded>, limit: usize) -> Page {
        let mut readings: Vec<PageProgress> = pages
            .into_iter()
            .map(|page| PageProgress {
                sequence: page.load.sequence,
                rows: page.rows.into_iter().peekable(),
                as_of: page.as_of,
                seen: page.load.after,
                upto: page.upto,
                more: page.more,
            })
            .collect();
        let mut page = Page::default();
        loop {
            let mut first: Option<(crate::WallMs, MessageId, usize)> = None;
            let mut cut = false;
            for (i, reading) in readings.iter_mut().enumerate() {
                match reading.rows.peek() {
                    Some(row) => {
                        let place = place_in(reading.sequence, row).map_or(0, |(time, _)| time);
                        let wall = match reading.sequence {
                            Sequence::At | Sequence::AllAt | Sequence::Dead => crate::WallMs(place),
                            Sequence::After | Sequence::AllAfter | Sequence::Leased => {
                                self.now.wall_of_engine(crate::EngineMs(place))
                            }
                        };
                        let this = (wall, row.message.id, i);
                        first = Some(first.map_or(this, |f| f.min(this)));
                    }
                    // The next row of this sequence is not known, so nothing behind it can be shown.
                    None if reading.more == More::Yes => cut = true,
                    None => {}
                }
            }
            let (Some((_, _, i)), false) = (first, cut) else { break };
            if page.views.len() >= limit {
                break;
            }
            let reading = &mut readings[i];
            let Some(row) = reading.rows.next() else { break };
            reading.seen = place_in(reading.sequence, &row);
            let as_of = reading.as_of;
            let view = self.view_of_row(queue, &row, as_of);
            if let Some(view) = view.filter(|v| state.is_none_or(|wanted| v.state == wanted)) {
                page.views.push(view);
                page.behind.push(place_of(readings.iter().map(|r| (r.sequence, r.seen))));
            }
        }
        let mut rest = false;
        for reading in &mut readings {
            let left = reading.rows.peek().is_some();
            rest |= left || reading.more == More::Yes;
            if !left {
                reading.seen = reading.upto.max(reading.seen);
            }
        }
        let next = place_of(readings.iter().map(|r| (r.sequence, r.seen)));
        page.next = rest.then_some(next);
        page
    }

    /// The present state of a row of a page; `None` if it was removed, or has changed and is not in memory.
    fn view_of_row(&self, queue: &QueueName, row: &Row, as_of: crate::Lsn) -> Option<View> {
        let idx = self.queues.find(queue)?;
        if self.queues.get(idx).is_done && self.is_done_over(idx, &row.life) {
            return None;
        }
        if let Some(slot) = self.rows.slot(row.message.id) {
            let is_live = self.is_live(slot);
            return is_live.then(|| if queue.is_of_act() { self.raw_view(slot) } else { self.view(slot) });
        }
        if self.loading.is_newer(&row.message, as_of) {
            return None;
        }
        // The messages of an act are listed to be restored, under the ids that they have.
        if self.queues.get(idx).is_done && !queue.is_of_act() {
            return Some(self.view_of_done(idx, row));
        }
        Some(self.view_of(idx, &row.message, &row.life, state_of(self.now, &row.life)))
    }

    fn list_leased(&self, idx: super::rows::QueueIdx, seen: ListCursor, limit: usize) -> Page {
        use std::ops::Bound::{Excluded, Unbounded};
        let [at, after] = &self.queues.get(idx).leased_by_due;
        let behind = |seen: Option<Cursor>| (seen.map_or(Unbounded, Excluded), Unbounded);
        let mut at = at.range(behind(seen.at)).peekable();
        let mut after = after.range(behind(seen.after)).peekable();
        let mut page = Page { next: Some(seen), ..Page::default() };
        let mut place = seen;
        let (mut bytes, mut left_out) = (0, 0);
        // Limited like a page from the store: a few large bodies fill it, and it has at least one message. A lease that
        // has run out but has not been ended yet is not shown as one.
        while page.views.len() < limit && bytes < self.policy.load_bytes && left_out < self.policy.max_step {
            let wall_at = at.peek().map(|&&(time, id)| (crate::WallMs(time), id));
            let wall_after =
                after.peek().map(|&&(time, id)| (self.now.wall_of_engine(crate::EngineMs(time)), id));
            let is_at = match (wall_at, wall_after) {
                (None, None) => break,
                (Some(at), Some(after)) => at <= after,
                (at, _) => at.is_some(),
            };
            let first = if is_at { at.next() } else { after.next() };
            let Some(&(time, id)) = first else { break };
            self.worked(1);
            if is_at {
                place.at = Some((time, id));
            } else {
                place.after = Some((time, id));
            }
            let Some(slot) = self.live(id).filter(|_| !self.is_overdue(id)) else {
                left_out += 1;
                continue;
            };
            bytes += self.rows.get(slot).message.weight();
            page.views.push(self.view(slot));
            page.behind.push(place);
        }
        let more = at.peek().is_some() || after.peek().is_some();
        page.next = more.then_some(place);
        page
    }

    /// Whether the lease of a message has run out, although it has not been ended yet.
    fn is_overdue(&self, id: MessageId) -> bool {
        let lease = self.live(id).and_then(|slot| self.rows.get(slot).life.lease());
        lease.is_some_and(|lease| lease.until <= self.now.engine)
    }

    /// Appends a removal without a settle, for a queue's expiry settings.
    pub(super) fn expire_one(&mut self, slot: RowIdx) {
        self.remove(slot, Gone::Expired);
    }
}

/// A position in a listing, composed of the positions in its sequences.
fn place_of(seen: impl Iterator<Item = (Sequence, Option<Cursor>)>) -> ListCursor {
    let mut place = NOTHING_SEEN;
    for (sequence, seen) in seen {
        match sequence {
            Sequence::After | Sequence::AllAfter | Sequence::Leased => place.after = seen,
            Sequence::At | Sequence::AllAt | Sequence::Dead => place.at = seen,
        }
    }
    place
}
