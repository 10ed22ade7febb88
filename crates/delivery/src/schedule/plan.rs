//! The plan of a look at a schedule: a pure function of its record, the present, and answers.
//!
//! A worker that has a record for itself asks for a step, writes the record, does what the step says, and reports the
//! answers. So what is about to happen is durable before it happens, and a crash in between repeats it: an enqueue
//! under the same id, which its queue remembers, and a removal of the same message.
//!
//! ```text
//!   advance ─► Enter │ Take │ Erase ─► write the record ─► act ─► entered │ took │ erased ─┐
//!      ▲                                                                                   │
//!      └───────────────────────────────────────────────────────────────────────────────────┘
//!   advance ─► Sleep ─► write the record, due then
//! ```

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::settings::{MissedPolicy, OverlapPolicy, Timetable};
use super::state::{
    AfterTaking, DueAnswer, EnterOutcome, LookFacts, OccurrenceEnd, PastOccurrence, PreviousRun,
    ScheduleBlock, ScheduleEntry, ScheduleState, ScheduleStep, TakeBack, TakeOutcome,
};
use crate::limits::{
    ASKED, CHECK_AHEAD, FIRST_REFUSED, IDLE_LOOK, LATE_GRACE, LATE_SPREAD, LATE_TOGETHER, LONGEST_REFUSED,
    LOOK_AGAIN, MAX_ENTERED, MAX_JUDGED, MAX_LATE, MAX_PENDING, ON_TIME, OVERLAP_POLL, REMEMBERED_MARGIN,
    SHOWN_OCCURRENCES,
};
use crate::recurrence::Occurrence;

impl<'a> LookFacts<'a> {
    fn at(self, now: u64) -> LookFacts<'a> {
        LookFacts { now, ..self }
    }
}

impl ScheduleState {
    /// A schedule that was created at this instant.
    pub fn new(created: u64, remaining: Option<u64>) -> Self {
        ScheduleState { cursor: created, remaining, ..ScheduleState::default() }
    }

    /// The present of a look whose clock says `now`. Clocks of nodes differ, and one may be set back; what has occurred
    /// by one of them must not occur again by another.
    fn go_on(&mut self, now: u64) -> u64 {
        self.present = self.present.max(now);
        self.present
    }

    /// Returns the step that an earlier look or a crash has left unfinished, if any. It precedes anything new.
    pub fn unfinished(&mut self, now: u64) -> Option<ScheduleStep> {
        let now = self.go_on(now);
        if !self.taking.is_empty() {
            return Some(ScheduleStep::Take(self.taking.clone()));
        }
        if !self.erasing.is_empty() {
            return Some(ScheduleStep::Erase(self.erasing.clone()));
        }
        self.forget_unsure(now);
        if !self.entering.is_empty() {
            return Some(ScheduleStep::Enter(self.entering.clone()));
        }
        self.removing.then_some(ScheduleStep::Remove)
    }

    /// Notes what the shard of a message said when it was asked about [`ScheduleState::unanswered`].
    ///
    /// A shard that answers in time is open, and grants the message. One that still has it as scheduled later was closed
    /// when it became due, and withholds it for a few seconds: it is taken back, and judged like the occurrences after
    /// it.
    pub fn answered(&mut self, now: u64, at: u64, answer: DueAnswer) {
        let now = self.go_on(now);
        let Some(place) = self.unanswered.iter().position(|entry| entry.at == at) else { return };
        if answer == DueAnswer::Unknown {
            return;
        }
        let entry = self.unanswered.remove(place);
        if answer == DueAnswer::Scheduled && now.saturating_sub(entry.due) > ms(ON_TIME) {
            self.taking.push(TakeBack { entry, then: AfterTaking::Judged, surplus: false });
            self.round = self.round.saturating_add(1);
        }
    }

    /// Returns the next step. The work of one step is bounded.
    pub fn advance(&mut self, table: &Timetable, facts: LookFacts<'_>) -> ScheduleStep {
        match self.next_step(table, facts) {
            // Soon enough for what a shard withholds after it has opened.
            ScheduleStep::Sleep(until) if !self.unanswered.is_empty() => {
                ScheduleStep::Sleep(until.min(self.present.saturating_add(ms(LOOK_AGAIN))))
            }
            step => step,
        }
    }

    fn next_step(&mut self, table: &Timetable, facts: LookFacts<'_>) -> ScheduleStep {
        let now = self.go_on(facts.now);
        let facts = facts.at(now);
        if let Some(step) = self.unfinished(now) {
            return step;
        }
        if table.paused {
            return ScheduleStep::Sleep(now.saturating_add(ms(IDLE_LOOK)));
        }
        if !self.judge(table, facts, MAX_JUDGED) {
            return ScheduleStep::Sleep(now);
        }
        self.pass_due(now);
        if let Some(block) = &self.block
            && block.until > now
        {
            // The next one is judged at its instant, or it would be missed because this one waits.
            let next = self.next_of(table, facts.name, self.cursor).map_or(u64::MAX, |(at, _)| at);
            return ScheduleStep::Sleep(block.until.min(next));
        }
        self.drop_stale(table, facts);
        let step = match table.overlap {
            OverlapPolicy::Allow => self.advance_many(table, facts),
            OverlapPolicy::Skip | OverlapPolicy::BufferOne => self.advance_one(table, facts),
        };
        match (step, self.pending.iter().map(|entry| entry.due).min()) {
            // The record is due with each message, so that a message that missed its time is judged at once.
            (ScheduleStep::Sleep(until), Some(due)) => ScheduleStep::Sleep(until.min(due)),
            (step, _) => step,
        }
    }

    /// Judges the instants up to the present, `most` at a time. Whether all are judged.
    pub fn judge(&mut self, table: &Timetable, facts: LookFacts<'_>, most: usize) -> bool {
        let facts = facts.at(self.go_on(facts.now));
        let judged = self.cursor.min(facts.now);
        self.done_ahead.retain(|done| *done > judged);
        self.skip_long_past(table, facts);
        for _ in 0..most {
            // At its instant: with a jitter a later one may be due before it.
            let Some((at, due)) = self.next_of(table, facts.name, self.cursor) else { break };
            if at > facts.now {
                break;
            }
            self.cursor = at;
            if self.done_ahead.contains(&at) {
                continue;
            }
            self.judge_one(table, facts.now, at, due);
        }
        let done = self.next_of(table, facts.name, self.cursor).is_none_or(|(at, _)| facts.now < at);
        if done && let Some(last) = self.candidate.take() {
            self.queue_up(last);
        }
        done
    }

    fn judge_one(&mut self, table: &Timetable, now: u64, at: u64, due: u64) {
        if self.remaining.is_some_and(|left| left <= self.backlog.len() as u64) {
            return; // It has no more occurrences than remain.
        }
        let late = now.saturating_sub(due);
        if late <= ms(ON_TIME) {
            // Of the missed ones and this one `last` keeps the newest.
            if let Some(former) = self.candidate.take() {
                self.miss(former);
            }
            return self.queue_up(at);
        }
        if table.missed == MissedPolicy::None || late > ms(table.catchup) {
            return self.miss(at);
        }
        match table.missed {
            MissedPolicy::None => {}
            MissedPolicy::Last => {
                let is_newer = |past: &PastOccurrence| {
                    past.at > at && past.at <= now && past.end == OccurrenceEnd::Entered
                };
                if self.latest.iter().any(is_newer) {
                    return self.miss(at);
                }
                let newest = self.candidate.map_or(at, |former| former.max(at));
                if let Some(former) = self.candidate.replace(newest) {
                    self.miss(former.min(at));
                }
            }
            MissedPolicy::All => self.queue_up(at),
        }
    }

    /// Counts intervals that passed long ago without a look at each of them.
    fn skip_long_past(&mut self, table: &Timetable, facts: LookFacts<'_>) {
        if self.done_ahead.iter().any(|done| *done <= facts.now) || self.remaining.is_some() {
            return;
        }
        let beyond = ms(table.catchup) + ms(ON_TIME) + table.recurrence.jitter_ms();
        let Some(until) = facts.now.checked_sub(beyond) else { return };
        if until <= self.cursor {
            return;
        }
        if let Some((passed, last)) = table.recurrence.intervals_between(self.cursor, until) {
            self.counts.missed = self.counts.missed.saturating_add(passed);
            self.cursor = last;
            self.remember(last, OccurrenceEnd::Missed, None);
        }
    }

    /// Lets an occurrence enter; the oldest one is missed if too many wait.
    fn queue_up(&mut self, at: u64) {
        let place = self.backlog.partition_point(|other| *other < at);
        self.backlog.insert(place, at);
        if self.backlog.len() > MAX_LATE {
            let oldest = self.backlog.remove(0);
            self.miss(oldest);
        }
    }

    fn miss(&mut self, at: u64) {
        self.counts.missed = self.counts.missed.saturating_add(1);
        self.remember(at, OccurrenceEnd::Missed, None);
    }

    fn skip(&mut self, at: u64) {
        self.counts.skipped = self.counts.skipped.saturating_add(1);
        self.remember(at, OccurrenceEnd::Skipped, None);
    }

    fn remember(&mut self, at: u64, end: OccurrenceEnd, id: Option<u64>) {
        let place = self.latest.partition_point(|past| past.at <= at);
        self.latest.insert(place, PastOccurrence { at, end, id });
        if self.latest.len() > SHOWN_OCCURRENCES {
            self.latest.remove(0);
        }
    }

    /// Occurrences whose answer is lost and not remembered any more: nothing can be said about them.
    fn forget_unsure(&mut self, now: u64) {
        let (known, unsure): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.entering).into_iter().partition(|entry| entry.until > now);
        self.entering = known;
        for entry in unsure {
            self.counts.unsure = self.counts.unsure.saturating_add(1);
            self.remember(entry.at, OccurrenceEnd::Unsure, None);
        }
    }

    /// Occurrences that have waited for longer than their time to catch up.
    fn drop_stale(&mut self, table: &Timetable, facts: LookFacts<'_>) {
        let most = ms(table.catchup).saturating_add(ms(LATE_GRACE));
        while let Some(at) = self.backlog.first().copied()
            && facts.now.saturating_sub(self.due_of(table, facts.name, at)) > most
        {
            self.backlog.remove(0);
            self.miss(at);
        }
        if self.remaining == Some(0) {
            // They were judged while one was left that has entered since.
            self.backlog.clear();
            self.buffered = None;
        }
    }

    /// Every occurrence enters; the next one is put ahead of its time.
    fn advance_many(&mut self, table: &Timetable, facts: LookFacts<'_>) -> ScheduleStep {
        let now = facts.now;
        if let Some(at) = self.buffered.take() {
            self.queue_up(at);
        }
        if !self.backlog.is_empty() {
            let entries = self.take_from_backlog(table, facts);
            if entries.is_empty() {
                return ScheduleStep::Sleep(self.wake_of_backlog(table, facts));
            }
            return self.enter(entries);
        }
        let Some((at, due)) = self.next_to_put(table, facts.name) else {
            return ScheduleStep::Sleep(now.saturating_add(ms(IDLE_LOOK)));
        };
        if self.cursor > now {
            return self.wait_for_next(facts);
        }
        if self.pending.len() >= MAX_PENDING {
            // The next one is judged at its instant: its message may be due before all of these.
            return ScheduleStep::Sleep(at);
        }
        self.cursor = at;
        let entry = self.entry(facts, at, due);
        self.enter(vec![entry])
    }

    /// Sleeps until the next instant. Just before it, a look finds out whether callers have removed the message that is
    /// put ahead: later that could not be told from an ack.
    fn wait_for_next(&self, facts: LookFacts<'_>) -> ScheduleStep {
        let check_at = self.cursor.saturating_sub(ms(CHECK_AHEAD));
        if self.pending.is_empty() || facts.is_checked {
            ScheduleStep::Sleep(self.cursor)
        } else if facts.now < check_at {
            ScheduleStep::Sleep(check_at)
        } else {
            ScheduleStep::Check
        }
    }

    /// When the first of the occurrences can enter that wait because missed ones enter at a distance; or when the next
    /// one is to be judged.
    fn wake_of_backlog(&self, table: &Timetable, facts: LookFacts<'_>) -> u64 {
        let next = self.next_of(table, facts.name, self.cursor).map(|(at, _)| at);
        let waiting = self.backlog.iter().map(|at| self.due_of(table, facts.name, *at));
        let times = waiting.chain([self.spread_until]).chain(next);
        let idle = facts.now.saturating_add(ms(IDLE_LOOK));
        times.filter(|time| *time > facts.now).min().unwrap_or(idle)
    }

    /// Notes which messages have become due: the last of them is the previous occurrence. Their shards are asked
    /// whether they have entered, for [`ASKED`] at most.
    pub fn pass_due(&mut self, now: u64) {
        let now = self.go_on(now);
        let (ahead, due): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.pending).into_iter().partition(|entry| entry.due > now);
        self.pending = ahead;
        if let Some(id) = due.last().and_then(|entry| entry.id) {
            self.last_id = Some(id);
        }
        let until = now.saturating_add(ms(ASKED));
        self.unanswered.extend(due.into_iter().map(|entry| ScheduleEntry { until, ..entry }));
        self.unanswered.retain(|entry| entry.until > now);
        let surplus = self.unanswered.len().saturating_sub(MAX_PENDING);
        self.unanswered.drain(..surplus);
    }

    /// The message that the next occurrence waits for if occurrences may not overlap. A change of `overlap` may leave
    /// some in the queue that are not due yet.
    fn previous_id(&self) -> Option<u64> {
        let last = self.pending.iter().max_by_key(|entry| entry.at);
        last.and_then(|entry| entry.id).or(self.last_id)
    }

    /// Takes the waiting occurrences that enter now. Missed ones enter a few at a time; others do not wait for them. No
    /// more are in their queue before their time than the record has room for.
    fn take_from_backlog(&mut self, table: &Timetable, facts: LookFacts<'_>) -> Vec<ScheduleEntry> {
        let (now, spreads) = (facts.now, self.backlog.len() > 1);
        let waits = self.spread_until > now;
        let mut late = 0;
        let mut ahead = MAX_PENDING.saturating_sub(self.pending.len());
        let mut entries = Vec::new();
        for at in std::mem::take(&mut self.backlog) {
            let own = self.due_of(table, facts.name, at);
            let is_late = now.saturating_sub(own) > ms(ON_TIME);
            let is_spread = is_late && spreads;
            let is_held = is_spread && late == LATE_TOGETHER;
            if entries.len() == self.room() || (is_late && waits) || is_held || (own > now && ahead == 0) {
                self.backlog.push(at);
                continue;
            }
            if is_spread {
                (late, self.spread_until) = (late + 1, now + ms(LATE_SPREAD));
            }
            ahead -= usize::from(own > now);
            entries.push(self.entry(facts, at, own));
        }
        entries
    }

    /// Advances a schedule whose occurrences do not overlap: each enters at its time, if the previous one is settled.
    fn advance_one(&mut self, table: &Timetable, facts: LookFacts<'_>) -> ScheduleStep {
        let now = facts.now;
        let due: Vec<u64> =
            self.backlog.iter().copied().filter(|at| self.due_of(table, facts.name, *at) <= now).collect();
        let Some(first) = self.buffered.or(due.first().copied()) else {
            return ScheduleStep::Sleep(self.next_look(table, facts));
        };
        let unsettled = match (self.previous_id(), facts.previous) {
            (None, _) | (Some(_), PreviousRun::Settled) => false,
            (Some(id), PreviousRun::Unknown) => return ScheduleStep::Look(id),
            (Some(_), PreviousRun::Unsettled) => true,
        };
        if !unsettled {
            self.buffered = None;
            self.backlog.retain(|other| *other != first);
            let entry = self.entry(facts, first, self.due_of(table, facts.name, first));
            return self.enter(vec![entry]);
        }
        self.backlog.retain(|at| !due.contains(at));
        for at in due {
            if table.overlap == OverlapPolicy::BufferOne && self.buffered.is_none() {
                self.buffered = Some(at);
            } else {
                self.skip(at);
            }
        }
        let next = self.next_look(table, facts);
        ScheduleStep::Sleep(if self.buffered.is_some() { next.min(now + ms(OVERLAP_POLL)) } else { next })
    }

    /// When the next occurrence is due that enters at its time, or is to be judged.
    fn next_look(&self, table: &Timetable, facts: LookFacts<'_>) -> u64 {
        let waiting = self.backlog.iter().map(|at| self.due_of(table, facts.name, *at)).min();
        let next =
            if self.remaining == Some(0) { None } else { self.next_of(table, facts.name, self.cursor) };
        let idle = facts.now.saturating_add(ms(IDLE_LOOK));
        waiting.into_iter().chain(next.map(|(at, _)| at)).min().map_or(idle, |due| due.min(idle))
    }

    fn room(&self) -> usize {
        let left = self.remaining.map_or(MAX_ENTERED, |left| usize::try_from(left).unwrap_or(MAX_ENTERED));
        left.min(MAX_ENTERED)
    }

    fn entry(&self, facts: LookFacts<'_>, at: u64, due: u64) -> ScheduleEntry {
        let until = facts.now.saturating_add(facts.remembered).saturating_sub(ms(REMEMBERED_MARGIN));
        ScheduleEntry { at, due, round: self.round, until, keyless: false, id: None, generation: 0 }
    }

    fn enter(&mut self, entries: Vec<ScheduleEntry>) -> ScheduleStep {
        if let Some(left) = &mut self.remaining {
            *left = left.saturating_sub(entries.len() as u64);
        }
        self.entering.extend(entries);
        ScheduleStep::Enter(self.entering.clone())
    }

    /// Another message has the key of an occurrence: from now on it is enqueued without one. That must be durable
    /// before, because a key and no key may lead to different shards, and each remembers its own answers.
    pub fn without_key(&mut self, entry: &ScheduleEntry) {
        if let Some(entry) = self.entering.iter_mut().find(|other| other.at == entry.at) {
            entry.keyless = true;
        }
    }

    /// The answer to the enqueue of an occurrence.
    pub fn entered(&mut self, now: u64, entry: &ScheduleEntry, outcome: EnterOutcome) {
        let now = self.go_on(now);
        let Some(place) = self.entering.iter().position(|other| other.at == entry.at) else { return };
        match outcome {
            EnterOutcome::Unknown => {}
            EnterOutcome::Entered { id, generation, keyed } => {
                let entry = self.entering.remove(place);
                self.block = None;
                self.counts.entered = self.counts.entered.saturating_add(1);
                self.counts.keyless = self.counts.keyless.saturating_add(u64::from(!keyed));
                self.remember(entry.at, OccurrenceEnd::Entered, Some(id));
                match entry.due > now {
                    true => self.pending.push(ScheduleEntry { id: Some(id), generation, ..entry }),
                    false => self.last_id = Some(id),
                }
            }
            EnterOutcome::Refused(why) => {
                let entry = self.entering.remove(place);
                self.remaining = self.remaining.map(|left| left.saturating_add(1));
                self.queue_up(entry.at);
                self.refused(now, entry.at, why);
            }
        }
    }

    fn refused(&mut self, now: u64, at: u64, why: String) {
        let former = self.block.take();
        if former.as_ref().is_none_or(|former| former.at < at) {
            self.counts.blocked = self.counts.blocked.saturating_add(1);
        }
        let (highest, tries) = former.map_or((at, 0), |former| (former.at.max(at), former.tries));
        let pause = ms(FIRST_REFUSED).saturating_mul(1 << tries.min(10)).min(ms(LONGEST_REFUSED));
        let until = now.saturating_add(pause);
        self.block = Some(ScheduleBlock { at: highest, why, tries: tries.saturating_add(1), until });
    }

    /// The answer to taking an occurrence back. Without a timetable, one that is to be judged is missed.
    pub fn took(&mut self, table: Option<&Timetable>, now: u64, take: &TakeBack, outcome: TakeOutcome) {
        let now = self.go_on(now);
        let at = take.entry.at;
        let Some(place) = self.taking.iter().position(|other| other.entry.at == at) else { return };
        match outcome {
            TakeOutcome::Unknown => {}
            TakeOutcome::Taken => {
                let take = self.taking.remove(place);
                self.erasing.extend(take.entry.id);
                let place = u64::from(!take.surplus);
                self.remaining = self.remaining.map(|left| left.saturating_add(place));
                self.counts.entered = self.counts.entered.saturating_sub(1);
                self.latest.retain(|past| past.at != at);
                match take.then {
                    AfterTaking::EntersAgain => self.queue_up(at),
                    AfterTaking::Missed => self.miss(at),
                    AfterTaking::Dropped => {}
                    // Earlier versions have moved the cursor back.
                    AfterTaking::Judged if at > self.cursor => {}
                    AfterTaking::Judged => match table {
                        Some(table) => self.judge_one(table, now, at, take.entry.due),
                        None => self.miss(at),
                    },
                }
            }
            TakeOutcome::Gone => {
                // It may have been delivered, and is not settled then.
                self.last_id = self.taking.remove(place).entry.id.or(self.last_id);
                self.pass_over(now, at);
            }
            TakeOutcome::Removed => {
                self.taking.remove(place);
                self.removed(now, at);
            }
        }
    }

    /// A caller has removed the message of an occurrence before it was due: it has not entered, and does not come
    /// again.
    pub fn removed(&mut self, now: u64, at: u64) {
        self.pending.retain(|entry| entry.at != at);
        self.counts.entered = self.counts.entered.saturating_sub(1);
        self.latest.retain(|past| past.at != at);
        self.pass_over(now, at);
    }

    /// Lets an instant not occur again: a later edit may move the cursor back to the present.
    fn pass_over(&mut self, now: u64, at: u64) {
        if at > self.cursor.min(now) && !self.done_ahead.contains(&at) {
            self.done_ahead.push(at);
            self.done_ahead.sort_unstable();
        }
        if self.done_ahead.len() > MAX_PENDING {
            // More than a caller and edits bring about; what must not happen is that one enters twice.
            self.cursor = self.cursor.max(self.done_ahead.remove(0));
        }
    }

    /// Records that messages were removed.
    pub fn erased(&mut self, ids: &[u64]) {
        self.erasing.retain(|id| !ids.contains(id));
    }

    /// Whether nothing is under way whose answer could be lost, so that settings may be changed.
    pub fn is_quiet(&self) -> bool {
        self.entering.is_empty() && self.taking.is_empty() && self.erasing.is_empty()
    }

    /// Goes over from one timetable to another. What was due by the old one must be judged, and the state
    /// [quiet](ScheduleState::is_quiet).
    pub fn change(&mut self, old: &Timetable, new: &Timetable, same_recurrence: bool, facts: LookFacts<'_>) {
        let now = self.go_on(facts.now);
        let facts = facts.at(now);
        self.pass_due(now);
        if old.paused {
            // Instants during the pause did not occur.
            self.cursor = now;
        } else if new.paused {
            self.withdraw(now);
            self.give_up_waiting(now);
        } else if !same_recurrence {
            self.queue_up_passed(old, facts);
            self.take_back(|entry| (entry.at > now).then_some(AfterTaking::Dropped));
            self.backlog.retain(|at| *at <= now);
            self.cursor = now;
        } else if changes_messages(old, new) {
            self.take_back(|entry| (entry.at > now).then_some(AfterTaking::EntersAgain));
        }
    }

    /// How many occurrences enter from now on: those that are in their queue and not due are among them.
    pub fn left(&self, now: u64) -> Option<u64> {
        self.remaining.map(|left| left.saturating_add(self.ahead(now).count() as u64))
    }

    /// Sets how many occurrences enter from now on. Messages that are not due are among them; of more than these the
    /// latest are taken back. Follows [`ScheduleState::change`].
    pub fn limit(&mut self, now: u64, left: Option<u64>) {
        let now = self.go_on(now);
        self.pass_due(now);
        let Some(left) = left else {
            self.remaining = None;
            return;
        };
        let taking = self.taking.iter().map(|take| take.entry.at);
        let mut ahead: Vec<u64> = self.pending.iter().map(|entry| entry.at).chain(taking).collect();
        ahead.sort_unstable();
        let kept = ahead.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if let Some(&first) = ahead.get(kept) {
            let behind = |at: u64| if at > now { AfterTaking::Dropped } else { AfterTaking::Missed };
            self.take_back(|entry| (entry.at >= first).then(|| behind(entry.at)));
            for take in self.taking.iter_mut().filter(|take| take.entry.at >= first) {
                take.surplus = true;
                if take.then == AfterTaking::EntersAgain {
                    take.then = behind(take.entry.at);
                }
            }
            // Their instants are judged anew if the limit is raised in time.
            self.cursor = self.cursor.min(now.max(first.saturating_sub(1)));
            let cursor = self.cursor;
            self.backlog.retain(|at| *at <= cursor);
        }
        self.remaining = Some(left.saturating_sub(kept as u64));
    }

    /// Goes over to a timetable from settings that cannot be read any more. Instants since the cursor did not occur.
    pub fn change_unreadable(&mut self, now: u64) {
        let now = self.go_on(now);
        self.pass_due(now);
        self.withdraw(now);
        self.give_up_waiting(now);
        self.cursor = now;
    }

    /// Occurrences whose instant has passed, and whose jitter has not, enter although the recurrence is another now.
    fn queue_up_passed(&mut self, old: &Timetable, facts: LookFacts<'_>) {
        while let Some((at, _)) =
            self.next_of(old, facts.name, self.cursor).filter(|(at, _)| *at <= facts.now)
        {
            self.cursor = at;
            self.queue_up(at);
        }
    }

    /// Begins to remove the schedule: no occurrence of it comes any more that is not due yet.
    pub fn remove(&mut self, now: u64) {
        let now = self.go_on(now);
        self.removing = true;
        self.pass_due(now);
        self.withdraw(now);
        self.backlog.clear();
        self.candidate = None;
        self.buffered = None;
    }

    fn withdraw(&mut self, now: u64) {
        self.unanswered.clear();
        self.take_back(|entry| Some(if entry.at > now { AfterTaking::Dropped } else { AfterTaking::Missed }));
        self.cursor = self.cursor.min(now);
    }

    /// Counts what waits to enter as missed.
    fn give_up_waiting(&mut self, now: u64) {
        let waiting: Vec<u64> =
            self.backlog.drain(..).chain(self.candidate.take()).chain(self.buffered.take()).collect();
        for at in waiting.into_iter().filter(|at| *at <= now) {
            self.miss(at);
        }
        self.block = None;
    }

    fn take_back(&mut self, then: impl Fn(&ScheduleEntry) -> Option<AfterTaking>) {
        let mut kept = Vec::new();
        let before = self.taking.len();
        for entry in std::mem::take(&mut self.pending) {
            match then(&entry) {
                Some(then) => self.taking.push(TakeBack { entry, then, surplus: false }),
                None => kept.push(entry),
            }
        }
        self.pending = kept;
        if self.taking.len() > before {
            self.round = self.round.saturating_add(1);
        }
    }

    /// Takes back what another reading of the recurrence has put ahead: its zone may have other data now.
    pub fn compute_again(&mut self, table: &Timetable, facts: LookFacts<'_>) {
        let now = facts.now.max(self.present);
        let stale = |entry: &ScheduleEntry| {
            entry.at > now
                && self.next_of(table, facts.name, entry.at - 1).map(|(at, _)| at) != Some(entry.at)
        };
        let earlier = self.next_of(table, facts.name, now).map(|(at, _)| at);
        let first = self.pending.iter().map(|entry| entry.at).filter(|at| *at > now).min();
        let another_is_first = first.is_some() && earlier.is_some_and(|earlier| Some(earlier) < first);
        let any_stale = self.pending.iter().any(stale);
        if self.is_quiet()
            && (any_stale || (another_is_first && self.done_ahead.is_empty() && self.backlog.is_empty()))
        {
            self.take_back(|entry| (entry.at > now).then_some(AfterTaking::Dropped));
            self.backlog.retain(|at| *at <= now);
            self.cursor = self.cursor.min(now);
        }
    }

    /// Occurrences in their queue that are not due.
    pub fn ahead(&self, now: u64) -> impl Iterator<Item = &ScheduleEntry> {
        self.pending.iter().filter(move |entry| entry.due > now)
    }

    /// The next occurrences that have not entered, and those in the queue that are not due; without those of the
    /// instants `gone`, and those whose messages were delivered or removed before an edit could take them back.
    pub fn upcoming(&self, table: &Timetable, now: u64, gone: &BTreeSet<u64>) -> Vec<Occurrence> {
        if table.paused || self.removing {
            return Vec::new();
        }
        let ahead: BTreeSet<u64> = self.ahead(now).map(|entry| entry.at).collect();
        let left = self.remaining.map_or(usize::MAX, |left| {
            usize::try_from(left.saturating_add(ahead.len() as u64)).unwrap_or(usize::MAX)
        });
        // A jitter makes messages due later than their instants.
        let from = ahead.first().map_or(now, |first| now.min(first.saturating_sub(1)));
        let is_next = |occurrence: &Occurrence| {
            let at = to_ms(occurrence.at);
            at > now || ahead.contains(&at)
        };
        let next = table.recurrence.upcoming(to_time(from)).filter(is_next).take(left);
        let is_over = |at: u64| gone.contains(&at) || (at > now && self.done_ahead.contains(&at));
        let shown = next.filter(|occurrence| !is_over(to_ms(occurrence.at)));
        shown.take(SHOWN_OCCURRENCES).collect()
    }

    fn next_to_put(&self, table: &Timetable, name: &str) -> Option<(u64, u64)> {
        if self.remaining == Some(0) {
            return None;
        }
        let mut after = self.cursor;
        loop {
            let (at, due) = self.next_of(table, name, after)?;
            if !self.done_ahead.contains(&at) {
                return Some((at, due));
            }
            after = at;
        }
    }

    /// The first instant after another, and when its message is due.
    fn next_of(&self, table: &Timetable, name: &str, after: u64) -> Option<(u64, u64)> {
        let next = table.recurrence.next(to_time(after))?;
        Some((to_ms(next.at), to_ms(table.recurrence.due_at(name, &next))))
    }

    fn due_of(&self, table: &Timetable, name: &str, at: u64) -> u64 {
        let occurrence = Occurrence { at: to_time(at), offset: 0, note: None };
        to_ms(table.recurrence.due_at(name, &occurrence))
    }
}

/// Whether messages in their queue differ from those that enter from now on.
fn changes_messages(old: &Timetable, new: &Timetable) -> bool {
    // In which order headers were given makes no other message.
    let sorted = |table: &Timetable| {
        let mut headers = table.headers.clone();
        headers.sort_unstable();
        headers
    };
    old.queue != new.queue || old.body != new.body || old.overlap != new.overlap || sorted(old) != sorted(new)
}

fn ms(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// The instant of a number of ms since 1970.
pub(crate) fn to_time(ms: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(ms)).unwrap_or(UNIX_EPOCH)
}

/// The number of ms since 1970, rounded up.
pub(crate) fn to_ms(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
