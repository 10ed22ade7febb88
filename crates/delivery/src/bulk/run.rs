//! The steps of a job: it collects, then it changes.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use duewheel::core::engine::{
    Applied, ChangeRefusal, DedupeId, Edit, Enqueue, KeptFor, Op, Outline, Target, Typed, View, When,
};
use duewheel::core::message::State;
use duewheel::core::name::QueueName;
use duewheel::core::policy::OWN_DEDUPE;
use duewheel::core::time::{WallMs, ceil_ms};
use duewheel::core::{IdSet, MessageId};
use duewheel::{CallError, Outcome, same_content};
use duewheel_shard::listing::ListPositions;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use super::action::{
    BulkAction, BulkOpen, BulkOutcome, Judged, UrlMoves, of_change, of_move, of_removal, of_restore,
};
use super::filter::filter_step;
use super::index::WaitingJobs;
use super::jobs::BulkJobs;
use super::moves::{DeadMove, move_dead};
use super::part::{JobPart, LEASED, PartEntry, PartWalk, due_times, entries_within, last_delay};
use super::record::{BulkPhase, BulkRecord, BulkWalk};
use crate::limits::{
    BULK_HELD, BULK_SLICE, BULK_SLICE_OF_KEPT, BULK_SLICE_WITH_BODIES, BULK_TURN_LOOK, BULK_WALK, KEEP_JOBS,
    LOOK_AGAIN,
};
use crate::message_url::MessageUrl;
use crate::records::{NextLook, NotWritten};

/// The place of a run among the steps that its node does at a time. A run that waits has none.
#[derive(Debug)]
pub(super) struct BulkPlace {
    pub(super) all: Arc<Semaphore>,
    pub(super) taken: Option<OwnedSemaphorePermit>,
    /// The jobs of the node that wait for room.
    pub(super) waiting: Arc<WaitingJobs>,
}

/// A job that this node works on.
pub(super) struct BulkRun<'a> {
    jobs: &'a BulkJobs,
    id: &'a str,
    row: (MessageId, u32),
    record: BulkRecord,
    place: BulkPlace,
    stop: watch::Receiver<bool>,
    /// Messages of the part that is worked on before this one may have been changed by a node that has died.
    unsure: usize,
    /// How many parts are known, and the messages that they have; while it collects.
    met: Option<(u32, IdSet)>,
}

/// Why a run has ended.
#[derive(Debug)]
pub(super) enum RunEnd {
    /// The job has ended, or another works on it, or this node stops.
    Over,
    /// The store refused or gave no answer: another try follows.
    Again(String),
}

impl From<CallError> for RunEnd {
    fn from(error: CallError) -> Self {
        RunEnd::Again(error.to_string())
    }
}

impl From<NotWritten> for RunEnd {
    fn from(why: NotWritten) -> Self {
        match why {
            NotWritten::Lost => RunEnd::Over,
            why => RunEnd::Again(format!("{why:?}")),
        }
    }
}

impl<'a> BulkRun<'a> {
    pub(super) fn new(
        jobs: &'a BulkJobs,
        id: &'a str,
        row: (MessageId, u32),
        record: BulkRecord,
        place: BulkPlace,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let mut run = BulkRun { jobs, id, row, record, place, stop, unsure: 0, met: None };
        // What a node that has died had begun is in the slice behind what its record says.
        run.unsure = run.record.at.1 + run.slice();
        run
    }

    /// Works until the job has ended, another has it, this node stops, or the store refuses.
    pub(super) async fn go(&mut self) -> RunEnd {
        // A node that has died may have been done with a part, and not have removed it.
        if let Some(before) = self.record.at.0.checked_sub(1)
            && let Err(why) = self.jobs.remove_parts(self.id, before..=before).await
        {
            return why.into();
        }
        loop {
            // A job that has ended is cleaned up first.
            if *self.stop.borrow() && !self.record.phase.is_end() {
                let soon = NextLook::After(Duration::ZERO);
                return self.save(soon).await.err().unwrap_or(RunEnd::Over);
            }
            let step = match self.record.phase {
                BulkPhase::Waiting => self.take_turn().await,
                BulkPhase::Collecting => self.collect().await,
                BulkPhase::Running => self.change().await,
                BulkPhase::Done | BulkPhase::Cancelled => {
                    return self.clean_up().await.err().unwrap_or(RunEnd::Over);
                }
            };
            if let Err(end) = step {
                return end;
            }
            if let Err(end) = self.rest(Instant::now()).await {
                return end;
            }
        }
    }

    /// Begins, or waits until it is the job's turn.
    async fn take_turn(&mut self) -> Result<(), RunEnd> {
        if self.jobs.first_come(&self.record.tenant).await?.iter().any(|first| first.row.0 == self.row.0) {
            self.record.phase = BulkPhase::Collecting;
            return self.hold().await;
        }
        self.save(NextLook::After(BULK_TURN_LOOK)).await?;
        Err(RunEnd::Over)
    }

    /// Gives the run's place to others until this instant at least, and has one again.
    pub(super) async fn rest(&mut self, until: Instant) -> Result<(), RunEnd> {
        self.place.taken = None;
        let stop = async {
            // An error means that the worker is gone.
            let _ = self.stop.wait_for(|stop| *stop).await;
        };
        let _ = tokio::time::timeout_at(until, stop).await;
        let mut free = pin!(self.place.all.clone().acquire_owned());
        loop {
            match tokio::time::timeout(BULK_HELD / 2, &mut free).await {
                Ok(taken) => {
                    self.place.taken = taken.ok();
                    return Ok(());
                }
                Err(_) => drop(self.hold_if_room().await?),
            }
        }
    }

    async fn save(&mut self, next: NextLook) -> Result<(), RunEnd> {
        Ok(self.write(next).await?)
    }

    async fn write(&mut self, next: NextLook) -> Result<(), NotWritten> {
        self.row.1 = self.jobs.write(self.id, self.row, &mut self.record, next).await?;
        Ok(())
    }

    /// Lets a node try again after this pause.
    pub(super) async fn again_in(&mut self, pause: Duration) {
        // Without an answer it is tried when this node does not hold it any more.
        drop(self.save(NextLook::After(pause)).await);
    }

    async fn hold(&mut self) -> Result<(), RunEnd> {
        self.save(NextLook::After(BULK_HELD)).await
    }

    /// Why the store does not let the job be held now; `None`: it is held.
    async fn hold_if_room(&mut self) -> Result<Option<String>, RunEnd> {
        match self.write(NextLook::After(BULK_HELD)).await {
            Err(NotWritten::Refused(refusal)) => Ok(Some(format!("{refusal:?}"))),
            Err(NotWritten::Unknown(error))
                if error.is_retryable() && error.outcome() == Outcome::NotApplied =>
            {
                Ok(Some(error.to_string()))
            }
            written => Ok(written.map(|()| None)?),
        }
    }

    /// Holds the job as soon as the store has room for that. `false`: this node stops.
    async fn hold_in_time(&mut self) -> Result<bool, RunEnd> {
        let mut waits = None;
        while let Some(why) = self.hold_if_room().await? {
            waits.get_or_insert_with(|| self.place.waiting.enter(self.id));
            tracing::info!(job = self.id, why, "a job waits and tries again");
            self.rest(Instant::now() + LOOK_AGAIN).await?;
            if self.is_stopped() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_stopped(&self) -> bool {
        // An error means that the worker is gone.
        *self.stop.borrow() || self.stop.has_changed().is_err()
    }

    /// Walks on through the queue, and writes down one part.
    async fn collect(&mut self) -> Result<(), RunEnd> {
        self.recall_met().await?;
        let client = &self.jobs.jobs.client;
        let record = &mut self.record;
        let Ok(queue) = QueueName::new(&record.queue).and_then(|queue| record.action.walks(queue)) else {
            record.end(BulkPhase::Done, self.jobs.jobs.now());
            return self.hold().await;
        };
        let state = record.action.lists(&record.filter);
        let mut position = match record.position.as_deref() {
            None => None,
            Some(text) => match ListPositions::parse(text, client.shards()) {
                Some(positions) => Some(positions),
                None => return Err(RunEnd::Again("the number of shards has changed".to_owned())),
            },
        };
        let met = &mut self.met.get_or_insert_default().1;
        let mut entries = Vec::new();
        let moves = record.action.moves();
        let most = entries_within(self.jobs.part_bytes(), moves);
        let limit = self.jobs.max_page().min(most / 2);
        let (mut walked, mut is_end) = (0, false);
        while entries.len() + limit <= most && walked < BULK_WALK && !is_end {
            let page = filter_step(client, &queue, state, &record.filter, position.take(), limit).await?;
            walked += page.walked.max(1);
            let meant = page.found.views.iter().filter(|view| record.means(view));
            for entry in meant.map(|view| part_entry(view, moves)) {
                if !met.contains(entry.id) {
                    met.insert(entry.id);
                    entries.push(entry);
                }
            }
            position = page.found.next;
            is_end = position.is_none();
        }
        let position = position.map(|position| position.to_string());
        let leased = entries.iter().filter(|entry| !entry.is_meant()).count() as u64;
        let found = JobPart { walk: PartWalk { position, leased }, entries };
        let part = self.jobs.put_part(self.id, self.record.parts, found.clone()).await?;
        match &mut self.met {
            Some((parts, _)) if part == found => *parts += 1,
            // Others have found something else before: what was found here, and is not in the part, is not met.
            met => *met = None,
        }
        self.record.parts += 1;
        self.record.counts.matched += part.entries.iter().filter(|entry| entry.is_meant()).count() as u64;
        self.record.counts.leased += part.walk.leased;
        self.record.position = part.walk.position;
        if self.record.expect.is_some_and(|expect| self.record.counts.matched > expect) {
            self.record.end(BulkPhase::Cancelled, self.jobs.jobs.now());
            return self.hold().await;
        }
        if self.record.position.is_none() {
            self.end_walk();
        }
        self.hold().await
    }

    /// Goes over to the second walk, or to the changes.
    fn end_walk(&mut self) {
        // A message that dies stands behind all that are dead, so one walk meets all of them.
        let listed = self.record.action.lists(&self.record.filter);
        let in_due_order = !matches!(listed, Some(State::Dead | State::Done));
        match self.record.walk {
            BulkWalk::First if in_due_order => self.record.walk = BulkWalk::Second,
            BulkWalk::First | BulkWalk::Second => {
                self.record.phase = BulkPhase::Running;
                self.unsure = 0;
                self.met = None;
            }
        }
    }

    /// Reads which messages the parts so far have: after a node has died, another one knows them.
    async fn recall_met(&mut self) -> Result<(), RunEnd> {
        let (parts, met) = self.met.get_or_insert_default();
        while *parts < self.record.parts {
            // One that cannot be read is like an empty one, and the log says so.
            let part = self.jobs.read_part(self.id, *parts).await?;
            part.iter().flat_map(|part| &part.entries).for_each(|entry| met.insert(entry.id));
            *parts += 1;
        }
        Ok(())
    }

    /// Changes the messages of the next slice.
    async fn change(&mut self) -> Result<(), RunEnd> {
        let (part, from) = self.record.at;
        if part >= self.record.parts {
            self.record.end(BulkPhase::Done, self.jobs.jobs.now());
            return self.hold().await;
        }
        // A part that is gone was done with before its record said so.
        let mut entries =
            self.jobs.read_part(self.id, part).await?.map(|part| part.entries).unwrap_or_default();
        entries.retain(PartEntry::is_meant);
        let mut at = from;
        while at < entries.len() && !self.is_stopped() {
            let begun = Instant::now();
            let end = entries.len().min(at + self.slice());
            let (now, record) = (self.jobs.jobs.now(), &self.record);
            let moves = due_times(&record.action, record.created, &entries[at..end], now);
            // The next slice is due behind this one.
            let behind = last_delay(&moves).map_or(Duration::ZERO, |ms| Duration::from_millis(ms + 1));
            let outcomes = self.change_all(&entries[at..end], &moves, at).await?;
            for outcome in outcomes.into_iter().map_while(|outcome| outcome) {
                self.count(outcome);
                at += 1;
            }
            self.record.at = (part, at);
            if !self.hold_in_time().await? {
                break;
            }
            self.rest(self.paced(begun).max(Instant::now() + behind)).await?;
        }
        if at >= entries.len() {
            self.record.at = (part + 1, 0);
            self.unsure = 0;
            self.hold().await?;
            self.jobs.remove_parts(self.id, part..=part).await?;
        }
        Ok(())
    }

    /// The number of messages that are changed together.
    fn slice(&self) -> usize {
        let most = match &self.record.action {
            action if action.moves() => BULK_SLICE_WITH_BODIES,
            BulkAction::Restore { .. } => BULK_SLICE_OF_KEPT,
            _ if self.record.keep_ms.is_some() => BULK_SLICE_OF_KEPT,
            _ => BULK_SLICE,
        };
        match self.record.rate {
            // Ten slices a second.
            Some(rate) => most.min(usize::try_from(rate / 10).unwrap_or(most)).max(1),
            None => most,
        }
    }

    /// When the rate allows the next slice, after one that has begun then.
    fn paced(&self, begun: Instant) -> Instant {
        let Some(rate) = self.record.rate else { return begun };
        let slice = u32::try_from(self.slice()).unwrap_or(1);
        begun + Duration::from_secs(1) * slice / rate.max(1)
    }

    fn count(&mut self, outcome: BulkOutcome) {
        let counts = &mut self.record.counts;
        match outcome {
            BulkOutcome::Done => counts.done += 1,
            BulkOutcome::Leased => counts.leased += 1,
            BulkOutcome::Changed => counts.changed += 1,
            BulkOutcome::Refused => counts.refused += 1,
        }
    }

    /// Changes messages, the first of which has the number `first` in its part. Those that are refused for now are asked for
    /// again; the outcomes that are missing when this node stops are unknown.
    async fn change_all(
        &mut self,
        entries: &[PartEntry],
        moves: &[When],
        first: usize,
    ) -> Result<Vec<Option<BulkOutcome>>, RunEnd> {
        let mut outcomes = vec![None; entries.len()];
        let mut waits = None;
        // With whether the change may have been made before.
        let mut open: Vec<(usize, bool)> = (0..entries.len()).map(|n| (n, first + n < self.unsure)).collect();
        loop {
            let asked: Vec<PartEntry> = open.iter().map(|(n, _)| entries[*n].clone()).collect();
            let due: Vec<When> = open.iter().map(|(n, _)| moves[*n]).collect();
            let judged = self.change_slice(&asked, &due, &|n: usize| open[n].1).await;
            let (mut still, mut last) = (Vec::new(), None);
            for ((n, was_unsure), judged) in open.into_iter().zip(judged) {
                match judged {
                    Ok(outcome) => outcomes[n] = Some(outcome),
                    Err(why) => {
                        still.push((n, why.is_unsure(was_unsure)));
                        last = Some(why);
                    }
                }
            }
            let Some(why) = last else { return Ok(outcomes) };
            open = still;
            waits.get_or_insert_with(|| self.place.waiting.enter(self.id));
            tracing::info!(job = self.id, ?why, "a job waits and tries again");
            self.rest(Instant::now() + LOOK_AGAIN).await?;
            // Another node may have the job since.
            if self.is_stopped() || !self.hold_in_time().await? {
                return Ok(outcomes);
            }
        }
    }

    /// Outcomes of these messages, in order.
    async fn change_slice(
        &self,
        entries: &[PartEntry],
        moves: &[When],
        is_unsure: &(impl Fn(usize) -> bool + Sync),
    ) -> Vec<Judged> {
        if let BulkAction::Redrive { delay_ms, to_queue: Some(queue) } = &self.record.action {
            return match QueueName::new(queue) {
                Ok(queue) => self.move_all(entries, &queue, *delay_ms, is_unsure).await,
                Err(_) => vec![Ok(BulkOutcome::Refused); entries.len()],
            };
        }
        let ask = entries.iter().zip(moves).map(|(entry, when)| self.op(entry, *when)).collect();
        match self.jobs.jobs.client.ask_many(ask).await {
            Ok(answers) => {
                let judge = |(n, answer): (usize, Result<Result<_, _>, CallError>)| match answer {
                    Ok(answer) => self.judge(answer.map(drop), is_unsure(n)),
                    Err(error) => Err(error.into()),
                };
                answers.into_iter().enumerate().map(judge).collect()
            }
            Err(error) => vec![Err(error.into()); entries.len()],
        }
    }

    /// Outcome of the change of one message, from its answer.
    fn judge(&self, answer: Result<(), ChangeRefusal>, unsure: bool) -> Judged {
        match (&self.record.action, answer) {
            // A message that cannot be kept stays.
            (_, Err(ChangeRefusal::Overloaded(_))) if self.record.keep_ms.is_some() => {
                Ok(BulkOutcome::Refused)
            }
            (BulkAction::Restore { .. }, Err(refusal @ ChangeRefusal::OverQuota(_))) => {
                Err(BulkOpen::Refused(refusal))
            }
            (BulkAction::Restore { .. }, answer) => of_restore(answer, unsure),
            (BulkAction::Cancel | BulkAction::Purge, answer) => of_removal(answer, unsure),
            (BulkAction::Postpone(_) | BulkAction::Fire | BulkAction::Redrive { .. }, answer) => {
                of_change(answer, unsure)
            }
        }
    }

    /// Whether the job is about dead messages alone, and knows when each has died.
    fn is_of_dead(&self) -> bool {
        self.record.action.lists(&self.record.filter) == Some(State::Dead)
    }

    /// The change of one message within its queue.
    fn op(&self, entry: &PartEntry, when: When) -> Typed<Result<Applied<Box<Outline>>, ChangeRefusal>> {
        // With its generation: one that was moved before a crash is not moved again.
        let died = self.is_of_dead().then_some(WallMs(entry.at));
        match &self.record.action {
            BulkAction::Cancel | BulkAction::Purge => {
                let keep = self.record.keep_ms.map(|keep_ms| KeptFor { act: self.id.into(), keep_ms });
                match died {
                    Some(died) => Op::remove_dead(entry.id, died, keep),
                    None => Op::cancel_with(Target::Id(entry.id), DedupeId::Stays, keep),
                }
            }
            BulkAction::Restore { .. } => Op::restore(entry.id),
            BulkAction::Postpone(_) | BulkAction::Fire => {
                Op::postpone(Target::Id(entry.id), Box::new(Edit::due(when)), Some(entry.generation))
            }
            BulkAction::Redrive { delay_ms, .. } => {
                Op::redrive_of(entry.id, delay_ms.map(|ms| self.left_of(ms)), died)
            }
        }
    }

    /// Moves dead messages into another queue.
    async fn move_all(
        &self,
        entries: &[PartEntry],
        to: &QueueName,
        delay_ms: Option<u64>,
        is_unsure: &(impl Fn(usize) -> bool + Sync),
    ) -> Vec<Judged> {
        let client = &self.jobs.jobs.client;
        let looks = entries.iter().map(|entry| Op::get(Target::Id(entry.id))).collect();
        let views = match client.ask_many(looks).await {
            Ok(views) => views,
            Err(error) => return vec![Err(BulkOpen::untried(&error)); entries.len()],
        };
        let mut judged: Vec<Judged> = Vec::with_capacity(entries.len());
        let (mut moves, mut of) = (Vec::new(), Vec::new());
        for (n, (view, entry)) in views.into_iter().zip(entries).enumerate() {
            let view = match view {
                Ok(view) => view,
                Err(error) => {
                    judged.push(Err(BulkOpen::untried(&error)));
                    continue;
                }
            };
            let dead = view.as_deref().filter(|view| died(view) == Some(entry.at));
            let copy = match dead {
                Some(dead) if self.may_move(dead) => Ok(self.copy(dead, to, delay_ms)),
                Some(_) => Err(BulkOutcome::Refused),
                None if !is_unsure(n) => Err(BulkOutcome::Changed),
                // An earlier try has moved it, or has left a copy of what others have changed since.
                None => {
                    let (key, dedupe_id) = (entry.key.clone(), Some(self.move_id(entry.id)));
                    Ok(Enqueue { key, dedupe_id, ..Enqueue::new(to.clone(), "") })
                }
            };
            let copy = match copy {
                Ok(copy) => copy,
                Err(outcome) => {
                    judged.push(Ok(outcome));
                    continue;
                }
            };
            judged.push(Err(BulkOpen::Untried(String::new()))); // until it is moved
            moves.push(DeadMove { id: entry.id, died: WallMs(entry.at), copy, enters: dead.is_some() });
            of.push(n);
        }
        for (n, end) in of.into_iter().zip(move_dead(client, &moves).await) {
            judged[n] = of_move(end);
        }
        judged
    }

    /// Whether a dead message may enter another queue: one with a URL only if that was allowed when the job began.
    fn may_move(&self, view: &View) -> bool {
        match self.record.urls {
            UrlMoves::Allowed => true,
            UrlMoves::Refused => MessageUrl::of(&view.message).is_none(),
        }
    }

    /// The message that enters another queue, once for each job.
    fn copy(&self, view: &View, to: &QueueName, delay_ms: Option<u64>) -> Enqueue {
        let delay_ms = delay_ms.map_or(0, |ms| self.left_of(ms));
        let now = WallMs(self.jobs.jobs.now());
        Enqueue {
            key: view.message.key.clone(),
            dedupe_id: Some(self.move_id(view.message.id)),
            ..same_content(view, to.clone(), now, delay_ms)
        }
    }

    /// The name of a message's move by this job.
    fn move_id(&self, id: MessageId) -> Box<str> {
        format!("{OWN_DEDUPE}job/{}/{}", self.id, id.0).into()
    }

    /// What is left of a delay that began with the job.
    fn left_of(&self, ms: u64) -> u64 {
        self.record.created.saturating_add(ms).saturating_sub(self.jobs.jobs.now())
    }

    /// Lets others have the turn of a job that has ended, removes its parts, and in a week the job itself.
    async fn clean_up(&mut self) -> Result<(), RunEnd> {
        self.jobs.wake_first(&self.record.tenant).await?;
        let until = self.record.ended.unwrap_or(0).saturating_add(ceil_ms(KEEP_JOBS));
        let is_over = until <= self.jobs.jobs.now();
        // A node that was slow may have created one again that was done with.
        let first = if is_over { 0 } else { self.record.at.0 };
        // The part behind the last one may have been created before the job was cancelled.
        self.jobs.remove_parts(self.id, first..=self.record.parts).await?;
        if is_over && self.record.act.is_empty() {
            self.jobs.jobs.remove(self.row.0).await?;
            self.jobs.index.removed(self.id);
            return Ok(());
        }
        self.record.at.0 = self.record.parts;
        self.save(NextLook::At(until)).await
    }
}

/// A message as a walk has met it; with its key if it is to move.
fn part_entry(view: &View, moves: bool) -> PartEntry {
    let generation = if view.lease_until.is_some() { LEASED } else { view.generation };
    let at = view.dead.map_or(view.due_at, |(_, died)| died).0;
    let key = view.message.key.clone().filter(|_| moves);
    PartEntry { id: view.message.id, generation, at, key }
}

/// When a dead message has died, in ms since 1970.
fn died(view: &View) -> Option<u64> {
    view.dead.filter(|_| view.state == State::Dead).map(|(_, died)| died.0)
}

#[cfg(test)]
mod tests;
