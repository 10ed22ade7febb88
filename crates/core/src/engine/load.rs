//! Loading: the messages that are in memory, and those that are loaded from the store before they are needed.
//!
//! All unsettled messages are in the store. Besides the leased ones, memory holds
//!
//! * messages due up to the *horizon*, a position in each clock class's order; it advances when the wheel has room, and
//!   goes back when new messages have overfilled it;
//! * ready messages for which there is memory ([`super::ready`]). The rest of a queue is its *backlog*: the queue then
//!   has a *limit* of its own, a position before the horizon, and is loaded by itself when there is memory. Loads for
//!   the other queues leave it out if that saves much reading.
//!
//! | position of a waiting message | in memory |
//! |---|---|
//! | up to the horizon, its queue has no limit | yes |
//! | up to its queue's limit | yes |
//! | behind either | only by chance: it may have been put while a page was loading |
//!
//! A message behind a limit that is in memory does no harm: what is in memory takes precedence over what is loaded. A
//! message before the limit that is missing would be lost until the next start. So while a page is loading, what is put
//! within its range stays in memory, because the page may be older.
//!
//! When the wheel holds too much, the horizon moves back at once, and the messages behind it leave memory, a bounded
//! number a step. Until then they are in memory by chance, like any message behind the horizon. A page that moves the
//! horizon forward over them again ends the removal.
//!
//! Rows of a page that have changed since it was asked for are ignored ([`super::horizon`]).

use std::sync::Arc;

use crate::id::{Lsn, MessageId};
use crate::message::{Kind, Life, Row, Stage};
use crate::name::QueueName;
use crate::policy::{PAGES_UNDER_WAY, ReadyOrder};
use crate::store::{Cursor, Load, Loaded, More, Sequence, Which};
use crate::time::{Class, Now};

use super::Engine;
use super::effect::{Effect, Effects};
use super::horizon::{CLASSES, END, Near, SOON_MS, now_of, reached_at};
use super::horizon::{Flight, LeftOut, LoadState, PagePurpose};
use super::rows::QueueIdx;
use super::rows::{MessageEntry, RowIdx, RowLocation};

/// The time in ms after which a queue is checked again that has a backlog without due messages and for which the wheel
/// has no capacity.
const REST_MS: u64 = 50;
/// The part of the wheel that a page for the horizon may fill: pages of both classes, which fill it from the half,
/// leave some of it for new messages.
const PAGE_PART: usize = 8;
/// Smallest backlog of a queue that is left out of pages for the others.
const WORTH_LEAVING_OUT: u64 = 64;

/// Approximate size of the record of a removal, in bytes.
const OF_A_REMOVAL: usize = 256;
/// The approximate number of messages that are examined to find the new horizon.
const SAMPLE: usize = 2_048;

impl Engine {
    /// Starts to load what must be in memory. No request may be handled before [`Engine::is_open`].
    pub fn start(&mut self, fx: &mut Effects) {
        self.step(fx, |engine| engine.ask_leased(None));
    }

    fn ask_leased(&mut self, after: Option<Cursor>) {
        let load = self.page(Sequence::Leased, Which::All, after, self.policy.load_rows);
        self.ask(PagePurpose::Leased, self.last, load);
    }

    /// Whether requests may be handled, because every lease is known. Waiting messages are loaded as they come due.
    pub fn is_open(&self) -> bool {
        self.loading.state == LoadState::Open
    }

    /// The part of a queue that is in memory, loading pages included.
    pub(super) fn reach(&self, idx: QueueIdx, class: Class) -> Option<Cursor> {
        let c = class as usize;
        let backlog = &self.queues.get(idx).backlog[c];
        match backlog.limit {
            Some(limit) => {
                Some(backlog.catching.map_or(limit, |(_, until)| limit.max((until, MessageId(u64::MAX)))))
            }
            None => self.horizon.reach(class),
        }
    }

    /// Whether a due message may be ready in memory. If it may not although it is within the limit, its queue has a
    /// backlog from now on.
    pub(super) fn admits(&mut self, slot: RowIdx) -> bool {
        let entry = self.rows.get(slot);
        let (idx, class, id) = (entry.queue, entry.life.due.class(), entry.message.id);
        let is_behind = self.reach(idx, class).is_none_or(|reach| (entry.life.due.raw(), id) > reach);
        if is_behind && !self.overtakes(idx, id, &entry.life) {
            return false;
        }
        let place = (self.rank(slot), id);
        let is_in = self.make_room_for_ready(idx, place);
        if !is_in && !is_behind {
            self.keep_out(slot);
        }
        is_in
    }

    /// Whether a due message behind the backlog may be ready before it: because it is more urgent than a ready one, or
    /// of equal urgency and older in a queue in order of arrival.
    pub(super) fn overtakes(&self, idx: QueueIdx, id: MessageId, life: &Life) -> bool {
        let queue = self.queues.get(idx);
        let Some((&((last, _), last_id), _)) = queue.ready.last_key_value() else { return false };
        let priority = self.priority(idx, life);
        let precedes = match self.order_of(idx) {
            ReadyOrder::Due => priority < last,
            ReadyOrder::Arrival => (priority, id) < (last, last_id),
        };
        precedes && queue.backlog[life.due.class() as usize].limit.is_some()
    }

    /// Drops a message before the limit: the limit of its queue moves back to before it.
    pub(super) fn keep_out(&mut self, slot: RowIdx) {
        let entry = self.rows.get(slot);
        let (idx, class) = (entry.queue, entry.life.due.class());
        self.limit(idx, class, (entry.life.due.raw(), MessageId(entry.message.id.0 - 1)));
    }

    /// Moves the limit of a queue back to before a message for which there is no memory.
    fn limit(&mut self, idx: QueueIdx, class: Class, before: Cursor) {
        // Between the horizon and the end of a loading page nothing is known to be in memory yet.
        let known = self.horizon.known[class as usize].unwrap_or((0, MessageId(0)));
        let queue = self.queues.get_mut(idx);
        let backlog = &mut queue.backlog[class as usize];
        backlog.move_back(known, before);
        self.loading.limited[class as usize].insert(idx);
        self.leave_out(idx, class);
        self.note_no_room(idx);
    }

    /// Leaves a queue with a backlog out of pages for the others if that saves enough reading.
    fn leave_out(&mut self, idx: QueueIdx, class: Class) {
        let queue = self.queues.get(idx);
        let left_out = &mut self.loading.left_out[class as usize];
        if queue.tally.part(Kind::Waiting).count < WORTH_LEAVING_OUT || left_out.names.contains(&queue.name) {
            return;
        }
        if left_out.names.len() < self.policy.max_left_out {
            left_out.names.insert(queue.name.clone());
        }
        left_out.list = None; // which also drops names of queues that have no backlog any more
    }

    /// Whether a queue has due messages that are not in memory yet and will be loaded.
    pub(super) fn expects_more(&self, now: Now, idx: QueueIdx) -> bool {
        let queue = self.queues.get(idx);
        if queue.is_paused(now) {
            return false;
        }
        // The wheel may need several steps for what is due.
        let behind = !self.horizon.is_caught_up(now) || self.schedule.has_overdue_messages(now);
        let waiting = queue.tally.part(Kind::Waiting).count;
        let is_due = |class: Class| {
            let limit = queue.backlog[class as usize].limit;
            limit.is_some_and(|limit| reached_at(limit) <= now_of(class, now))
        };
        CLASSES.into_iter().any(is_due) || (behind && waiting > queue.ready.len() as u64)
    }

    /// Whether any queue has a backlog.
    pub(super) fn has_backlogs(&self) -> bool {
        let has_limit = |&idx: &QueueIdx| {
            self.worked(1);
            self.queues.contains(idx) && self.queues.get(idx).has_backlog()
        };
        self.loading.limited.iter().flatten().any(has_limit)
    }

    /// Requests the pages that will be needed.
    pub(super) fn plan_loads(&mut self) {
        if !self.is_open() {
            return;
        }
        self.shrink();
        for class in CLASSES {
            self.plan_near(class);
        }
        for class in CLASSES {
            for _ in 0..self.policy.max_step {
                let (resting, today) = (&mut self.horizon.resting[class as usize], now_of(class, self.now));
                let rested = resting.first().copied().filter(|(time, _)| *time <= today);
                let Some((time, idx)) = rested else { break };
                resting.remove(&(time, idx));
                if self.queues.contains(idx) {
                    self.note_hunger(idx);
                }
            }
        }
        for _ in 0..self.policy.max_step {
            if self.loading.backlogs >= PAGES_UNDER_WAY {
                return; // until one of those under way has come
            }
            let Some(idx) = self.next_hungry() else { return };
            for class in CLASSES {
                self.plan_backlog(idx, class);
            }
        }
        self.unfinished = true;
    }

    fn plan_near(&mut self, class: Class) {
        let c = class as usize;
        let horizon = self.horizon.known[c];
        if self.horizon.near[c].is_some() || horizon == Some(END) {
            return;
        }
        let today = now_of(class, self.now);
        let behind = horizon < Some((today, MessageId(u64::MAX)));
        let soon = self.horizon.is_soon(self.now, class);
        if !soon && CLASSES.into_iter().any(|other| self.horizon.is_soon(self.now, other)) {
            return; // the other class goes first: this one would take the room that is made for it
        }
        // Also when behind: pages that take time would stay behind, and bring only what is due.
        if soon && !self.has_room() {
            self.make_room();
        }
        if !behind && !self.has_room() {
            return;
        }
        let rows = self.policy.load_rows.min(self.policy.near_messages / PAGE_PART).max(1);
        let from = match horizon {
            None => 0,
            Some((time, MessageId(u64::MAX))) => time.saturating_add(1),
            Some((time, _)) => time,
        };
        let mut until = self.tally.due.reach(class, from, rows as u64).unwrap_or(u64::MAX);
        if behind && !self.has_room() {
            until = until.min(today); // what is due takes no room in the wheel
        }
        // Messages that were to leave memory lie within the page, or before it: they must stay again.
        if self.horizon.cuts[c].as_ref().is_some_and(|cut| until >= cut.place().0) {
            self.horizon.cuts[c] = None;
        }
        let except = self.list_left_out(class);
        let which = if except.is_empty() { Which::All } else { Which::AllBut(except.clone()) };
        self.horizon.near[c] = Some(Near { until, void: false });
        let bytes = self.policy.load_bytes.min(self.policy.near_bytes / PAGE_PART).max(1);
        let load = Load { until, bytes, ..self.page(sequence(class), which, horizon, rows) };
        self.ask(PagePurpose::Near(class, except, horizon), self.last, load);
    }

    /// The queues that a page for the others leaves out. The list stays the same until a queue is added or removed.
    fn list_left_out(&mut self, class: Class) -> Arc<[QueueName]> {
        let (c, queues) = (class as usize, &self.queues);
        let LeftOut { names, list } = &mut self.loading.left_out[c];
        let has_limit = |idx| queues.get(idx).backlog[c].limit.is_some();
        let again = || {
            names.retain(|name| queues.find(name).is_some_and(has_limit));
            names.iter().cloned().collect()
        };
        list.get_or_insert_with(again).clone()
    }

    /// Removes messages from the wheel that are not due soon: those behind the horizon, and those of the other class
    /// that were loaded further ahead.
    fn make_room(&mut self) {
        for class in CLASSES {
            if self.horizon.is_ahead(self.now, class) {
                let soon = now_of(class, self.now).saturating_add(SOON_MS);
                self.move_back(class, (soon, MessageId(u64::MAX)));
                self.horizon.beyond[class as usize] = 0;
            }
        }
    }

    /// Whether the wheel is at least half empty. Its messages come due and leave it.
    pub(super) fn has_room(&self) -> bool {
        self.schedule.len() < (self.policy.near_messages / 2).max(1)
            && self.near_weight < (self.policy.near_bytes as u64 / 2).max(1)
    }

    /// Whether a row of a page may be taken into memory. Rows that are not due yet may not overfill the wheel: they would
    /// leave it again, and the same page would be loaded again. A wheel with room takes any one message.
    fn fits(&mut self, row: &Row) -> bool {
        let weight = row.weight() as u64;
        let is_below = self.schedule.len() < self.policy.near_messages
            && self.near_weight + weight <= self.policy.near_bytes as u64;
        if is_below || self.now.is_due(row.life.due) {
            return true;
        }
        let has_room = self.has_room();
        if has_room {
            self.near_surplus = weight;
        }
        has_room
    }

    fn plan_backlog(&mut self, idx: QueueIdx, class: Class) {
        let c = class as usize;
        let (next, room, today) = (self.next_page_size(idx), self.has_room(), now_of(class, self.now));
        let queue = self.queues.get_mut(idx);
        let (Some(limit), None) = (queue.backlog[c].limit, queue.backlog[c].catching) else { return };
        let known = self.horizon.known[c];
        if self.horizon.near[c].is_some() && Some(limit) >= known {
            self.horizon.awaiting[c].insert(idx);
            return;
        }
        let Some(first) = queue.tally.due.first(class, limit.0) else {
            self.end_backlog(idx, class);
            return self.note_hunger(idx);
        };
        let mut until = known.map_or(0, |(time, _)| time);
        if !room {
            // Nothing of the queue is due between its limit and the first of the others.
            let before = known.min((first > limit.0).then(|| (first - 1, MessageId(u64::MAX))));
            let limit = before.map_or(limit, |before| limit.max(before));
            queue.backlog[c].limit = Some(limit);
            // Due messages take no capacity of the wheel. Without a consumer they are requested again only after a
            // pause.
            let reached = reached_at(limit);
            if reached > today {
                self.horizon.resting[c].insert((reached.max(today.saturating_add(REST_MS)), idx));
                return;
            }
            until = until.min(today);
        }
        self.loading.backlogs += 1;
        queue.backlog[c].catching = Some((self.loading.tickets + 1, until));
        queue.backlog[c].dropped = None;
        let name = queue.name.clone();
        let which = Which::One(name.clone());
        let bytes = usize::try_from(next.bytes).unwrap_or(usize::MAX);
        self.expect_rows(next.rows, bytes);
        let load = Load { until, bytes, ..self.page(sequence(class), which, Some(limit), next.rows) };
        self.ask(PagePurpose::Backlog(class, name), self.last, load);
    }

    /// Requests a page. `asked` is the position of the request, or of the first one of several that belong together: it
    /// separates later changes from earlier ones.
    fn ask(&mut self, what: PagePurpose, asked: Lsn, load: Load) {
        self.loading.tickets += 1;
        let ticket = self.loading.tickets;
        self.loading.flights.insert(ticket, Flight { asked, what });
        self.fx.push(Effect::Load(Load { ticket, ..load }));
    }

    /// The usual request for a page: everything behind a position.
    pub(super) fn page(&self, sequence: Sequence, which: Which, after: Option<Cursor>, rows: usize) -> Load {
        let bytes = self.policy.load_bytes;
        Load { ticket: 0, sequence, which, after, until: u64::MAX, rows, bytes }
    }

    /// Requests dead messages of a queue, to find expired ones.
    pub(super) fn ask_dead(&mut self, name: QueueName, after: Option<Cursor>) {
        // A step removes all of a page.
        let rows = self.policy.max_step.min(self.policy.max_step_bytes / 2 / OF_A_REMOVAL).max(1);
        let mut load = self.page(Sequence::Dead, Which::One(name.clone()), after, rows);
        let keeps = |idx| self.queues.get(idx).settings.keep_done_ms.is_some();
        if self.queues.find(&name).is_some_and(keeps) {
            // The removal of a message writes it again, as done.
            load.bytes = load.bytes.min(self.policy.max_step_bytes);
        }
        self.loading.dead += 1;
        self.ask(PagePurpose::Dead(name), self.last, load);
    }

    /// Requests a page that an answer needs.
    pub(super) fn ask_gather(&mut self, gather: u64, asked: Lsn, load: Load) {
        self.ask(PagePurpose::Gather(gather), asked, load);
    }

    pub(super) fn take_loaded(&mut self, loaded: Loaded) {
        let Some(flight) = self.loading.flights.remove(&loaded.load.ticket) else { return };
        match flight.what {
            PagePurpose::Leased => self.take_leased(loaded),
            PagePurpose::Near(class, except, from) => self.take_near(class, &except, from, loaded),
            PagePurpose::Backlog(class, name) => {
                self.loading.backlogs -= 1;
                self.expected_rows_came(loaded.load.rows, loaded.load.bytes);
                self.take_backlog(class, &name, loaded);
            }
            PagePurpose::Dead(name) => {
                self.loading.dead -= 1;
                self.take_dead(&name, loaded);
            }
            PagePurpose::Gather(number) => self.take_gathered(number, flight.asked, loaded),
        }
        self.loading.forget();
    }

    /// Forgets a page that a question waits for, and returns the question.
    pub(super) fn forget_page(&mut self, ticket: u64) -> Option<u64> {
        let PagePurpose::Gather(number) = self.loading.flights.get(&ticket)?.what else { return None };
        self.loading.flights.remove(&ticket);
        self.loading.forget();
        Some(number)
    }

    fn take_leased(&mut self, loaded: Loaded) {
        for row in loaded.rows {
            self.take_row(row, loaded.as_of);
        }
        if loaded.more == More::Yes {
            return self.ask_leased(loaded.upto);
        }
        self.loading.state = LoadState::Open;
        self.withheld.open(self.now);
        if self.bound_leases == super::BoundLeases::Release {
            self.release_bound();
        }
        self.load_acts();
        self.plan_loads();
    }

    fn take_near(&mut self, class: Class, except: &[QueueName], from: Option<Cursor>, loaded: Loaded) {
        let c = class as usize;
        let near = self.horizon.near[c].take();
        for idx in std::mem::take(&mut self.horizon.awaiting[c]) {
            if self.queues.contains(idx) {
                self.note_hunger(idx);
            }
        }
        if near.is_none_or(|near| near.void) {
            return;
        }
        self.horizon.known[c] = match (loaded.more, loaded.upto) {
            (More::Yes, Some(upto)) => Some(upto),
            (More::Yes, None) => from,
            (More::No, _) if loaded.load.until == u64::MAX => Some(END),
            (More::No, _) => Some((loaded.load.until, MessageId(u64::MAX))),
        };
        if self.horizon.known[c] == Some(END) {
            self.horizon.beyond[c] = 0;
        }
        // The page leaves these queues out. A queue among them that had been loaded up to the horizon is behind again.
        for name in except {
            if let Some(idx) = self.queues.find(name) {
                let limit = &mut self.queues.get_mut(idx).backlog[c].limit;
                if limit.is_none() {
                    *limit = Some(from.unwrap_or((0, MessageId(0))));
                    self.loading.limited[c].insert(idx);
                }
                self.note_hunger(idx);
            }
        }
        for row in loaded.rows {
            let id = row.message.id;
            if !self.fits(&row) {
                self.move_back(class, (row.life.due.raw(), MessageId(id.0 - 1)));
                break;
            }
            self.take_row(row, loaded.as_of);
            // This was read in vain: the queue has a backlog, and grows.
            if let Some(slot) = self.rows.slot(id)
                && let MessageEntry { queue, place: RowLocation::Far, .. } = *self.rows.get(slot)
                && self.queues.get(queue).backlog[c].limit.is_some()
            {
                self.leave_out(queue, class);
            }
        }
    }

    fn take_backlog(&mut self, class: Class, name: &QueueName, loaded: Loaded) {
        let c = class as usize;
        let Some(idx) = self.queues.find(name) else { return };
        let (horizon, near) = (self.horizon.known[c], self.horizon.near[c].is_some());
        let backlog = &mut self.queues.get_mut(idx).backlog[c];
        let Some(limit) = backlog.limit else { return };
        if backlog.catching.is_none_or(|(ticket, _)| ticket != loaded.load.ticket) {
            return; // of a queue of the same name that is gone
        }
        backlog.catching = None;
        let upto = match loaded.more {
            More::Yes => loaded.upto.or(loaded.load.after),
            More::No => Some((loaded.load.until, MessageId(u64::MAX))),
        };
        let reached = upto.map_or(limit, |upto| upto.max(limit));
        let caught_up = loaded.more == More::No && !near && horizon.is_none_or(|h| reached >= h);
        backlog.limit = if caught_up { None } else { Some(reached) };
        if let Some(dropped) = backlog.dropped.take() {
            backlog.limit = Some(backlog.limit.map_or(dropped, |limit| limit.min(dropped)));
        }
        if backlog.limit.is_none() {
            self.end_backlog(idx, class);
        }
        let is_empty = loaded.rows.is_empty() && loaded.more == More::No;
        let queue = self.queues.get(idx);
        let (before, ready) = (queue.backlog[c].limit, queue.ready.len());
        for row in loaded.rows {
            if !self.fits(&row) {
                self.limit(idx, class, (row.life.due.raw(), MessageId(row.message.id.0 - 1)));
                break;
            }
            self.take_row(row, loaded.as_of);
        }
        let queue = self.queues.get(idx);
        let (limit, found_room) = (queue.backlog[c].limit, queue.ready.len().saturating_sub(ready));
        self.note_page(idx, (limit != before).then_some(found_room));
        if is_empty && self.parked.is_empty() && !self.has_room() {
            // Nothing is due, and there is no capacity for later messages: the next page would bring nothing either.
            // The time of the page counts and not the present one, or a slow store would be asked again and again.
            let later = now_of(class, self.now).saturating_add(REST_MS);
            if limit.is_some() {
                self.horizon.resting[c].insert((later, idx));
            }
        } else if limit == before {
            self.note_hunger(idx);
        } else {
            self.note_no_room(idx);
        }
        self.release(idx);
    }

    /// Ends the limit of a queue of which everything up to the horizon is in memory.
    fn end_backlog(&mut self, idx: QueueIdx, class: Class) {
        let queue = self.queues.get_mut(idx);
        queue.backlog[class as usize].limit = None;
        self.loading.limited[class as usize].remove(&idx);
        let left_out = &mut self.loading.left_out[class as usize];
        if left_out.names.remove(&queue.name) {
            left_out.list = None;
        }
    }

    fn take_dead(&mut self, name: &QueueName, loaded: Loaded) {
        if name.is_of_acts() {
            return self.take_acts(loaded);
        }
        let Some(idx) = self.queues.find(name) else { return };
        let Some(ttl) = self.dead_ttl_ms(idx) else { return };
        // An act keeps its messages for their time.
        let yields = self.queues.get(idx).is_done && !name.is_of_act();
        let mut next = None;
        for row in loaded.rows {
            let Stage::Dead { at, .. } = row.life.stage else { continue };
            let is_over = at.is_older(ttl, self.now);
            if !(is_over || yields && self.has_too_many_done() || self.has_too_many_points(idx)) {
                next = Some(at);
                break;
            }
            self.done.given_up += u64::from(yields && !is_over);
            if let Some(slot) = self.take_far(row, loaded.as_of)
                && matches!(self.rows.get(slot).life.stage, Stage::Dead { .. })
            {
                self.expire_one(slot);
            }
        }
        let Some(idx) = self.queues.find(name) else { return };
        match next {
            Some(at) => self.plan_dead_check(idx, at),
            // A page may be empty without being the last, because its rows were removed.
            None if loaded.more == More::Yes => self.ask_dead(name.clone(), loaded.upto),
            None => {}
        }
    }

    /// Takes a row into memory as the store had it at `as_of`, unless a newer state is known.
    fn take_row(&mut self, row: Row, as_of: Lsn) {
        if self.is_news(&row, as_of) {
            self.insert_row(row, as_of, as_of);
        }
    }

    /// Takes a row into memory for this batch, unless a newer state is known; returns its present slot, if it exists.
    pub(super) fn take_far(&mut self, row: Row, as_of: Lsn) -> Option<RowIdx> {
        let id = row.message.id;
        if self.is_news(&row, as_of) {
            return Some(self.insert_far(row, as_of, as_of));
        }
        self.live(id)
    }

    fn is_news(&self, row: &Row, as_of: Lsn) -> bool {
        self.rows.slot(row.message.id).is_none() && !self.loading.is_newer(&row.message, as_of)
    }
}

impl Engine {
    /// Moves the horizon back when the wheel holds too much: to where about half of the messages are kept, by a sample.
    fn shrink(&mut self) {
        if self.continue_cut() {
            return;
        }
        let (most, bytes) = (self.policy.near_messages as u64, self.policy.near_bytes as u64);
        if self.near_weight <= bytes {
            self.near_surplus = 0;
        }
        if self.schedule.len() as u64 <= most && self.near_weight <= bytes + self.near_surplus {
            return;
        }
        let stride = self.schedule.len().div_ceil(SAMPLE).max(1);
        let mut waiting: Vec<(u64, Class, Cursor, u64)> = Vec::new();
        for class in CLASSES {
            for slot in self.schedule.sample(class, stride) {
                let entry = self.rows.get(slot);
                let place = (entry.life.due.raw(), entry.message.id);
                waiting.push((self.now.until(entry.life.due), class, place, entry.weight()));
            }
        }
        self.worked(waiting.len());
        waiting.sort_unstable();
        let stride = stride as u64;
        let (mut kept, mut weight) = (0, 0);
        for (.., w) in &waiting {
            weight += w * stride;
            if kept > 0 && (kept as u64 * stride >= most / 2 || weight > bytes / 2) {
                break;
            }
            kept += 1;
        }
        // A sample may miss the few large bodies that fill the wheel.
        kept = if kept == waiting.len() { kept / 2 } else { kept };
        for class in CLASSES {
            let first_gone = waiting[kept..].iter().filter(|w| w.1 == class).map(|w| w.2).min();
            if let Some((due, id)) = first_gone {
                self.move_back(class, (due, MessageId(id.0 - 1)));
            }
        }
        self.continue_cut();
    }

    /// Schedules the removal of all messages behind a position from memory, over several steps.
    pub(super) fn move_back(&mut self, class: Class, to: Cursor) {
        self.horizon.move_back(class, to);
        self.unfinished = true;
    }

    /// Removes more of the messages behind the horizon from memory. Returns whether that has to be continued.
    fn continue_cut(&mut self) -> bool {
        let mut left = self.policy.max_step;
        for class in CLASSES {
            let c = class as usize;
            let Some(mut cut) = self.horizon.cuts[c].take_if(|_| left > 0) else { continue };
            let mut gone = Vec::new();
            let more = self.schedule.cut(class, &mut cut, left, &mut gone);
            self.worked(left);
            left = left.saturating_sub(gone.len().max(1));
            for slot in gone {
                self.limit_reach(class, slot);
            }
            if more {
                self.horizon.cuts[c] = Some(cut);
                left = 0;
            }
        }
        let is_cutting = self.horizon.cuts.iter().any(Option::is_some);
        self.unfinished |= is_cutting;
        is_cutting
    }

    /// Handles a scheduled message behind the horizon that was removed from the wheel. If the limit of its queue is
    /// further ahead, it moves back.
    fn limit_reach(&mut self, class: Class, slot: RowIdx) {
        self.uncount_near(slot);
        let entry = self.rows.get_mut(slot);
        self.near_weight -= entry.weight();
        let (idx, id, due) = (entry.queue, entry.message.id, entry.life.due.raw());
        self.leave_to_store(slot);
        let backlog = &mut self.queues.get_mut(idx).backlog[class as usize];
        let Some(limit) = backlog.limit else { return };
        let before = (due, MessageId(id.0 - 1));
        backlog.move_back(limit, before);
        if limit > before {
            self.note_hunger(idx);
        }
    }
}

fn sequence(class: Class) -> Sequence {
    match class {
        Class::At => Sequence::At,
        Class::After => Sequence::After,
    }
}
