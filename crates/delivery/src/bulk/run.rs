//! The steps of a job: it collects, then it changes.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use duewheel::core::engine::{
    Applied, ChangeRefusal, Edit, Enqueue, EnqueueRefusal, Enqueued, Op, Outline, Target, Typed, View, When,
};
use duewheel::core::message::State;
use duewheel::core::name::QueueName;
use duewheel::core::policy::OWN_DEDUPE;
use duewheel::core::time::{WallMs, ceil_ms};
use duewheel::core::{IdSet, MessageId};
use duewheel::{CallError, same_content};
use duewheel_shard::listing::ListPositions;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use super::action::{
    BulkAction, BulkOutcome, Judged, UrlMoves, of_change, of_enqueue, of_removal, of_taken_back,
};
use super::filter::filter_step;
use super::jobs::BulkJobs;
use super::part::{JobPart, LEASED, PartEntry, PartWalk, due_times, entries_within, last_delay};
use super::record::{BulkPhase, BulkRecord, BulkWalk};
use crate::limits::{BULK_HELD, BULK_SLICE, BULK_SLICE_WITH_BODIES, BULK_TURN_LOOK, BULK_WALK, KEEP_JOBS};
use crate::message_url::MessageUrl;
use crate::records::{NextLook, NotWritten};

/// The place of a run among the steps that its node does at a time. A run that waits has none.
#[derive(Debug)]
pub(super) struct BulkPlace {
    pub(super) all: Arc<Semaphore>,
    pub(super) taken: Option<OwnedSemaphorePermit>,
}

/// A job that this node works on.
pub(super) struct BulkRun<'a> {
    jobs: &'a BulkJobs,
    id: &'a str,
    row: (MessageId, u32),
    record: BulkRecord,
    place: BulkPlace,
    stop: watch::Receiver<bool>,
    /// Messages of the part that is worked on before this one may have been changed by a node that has died, or by a call
    /// without an answer.
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
        // What a node that has died had begun is in the slice behind what its record says.
        let unsure = record.at.1 + BULK_SLICE;
        BulkRun { jobs, id, row, record, place, stop, unsure, met: None }
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
            if *self.stop.borrow() {
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
                Err(_) => self.hold().await?,
            }
        }
    }

    async fn save(&mut self, next: NextLook) -> Result<(), RunEnd> {
        let written = self.jobs.jobs.write(self.row, self.record.bytes(), Some(next)).await;
        self.row.1 = written?;
        self.jobs.index.note(self.id, &self.record);
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
        let most = entries_within(self.jobs.part_bytes());
        let limit = self.jobs.max_page().min(most / 2);
        let (mut walked, mut is_end) = (0, false);
        while entries.len() + limit <= most && walked < BULK_WALK && !is_end {
            let page = filter_step(client, &queue, state, &record.filter, position.take(), limit).await?;
            walked += page.walked.max(1);
            let meant = page.found.views.iter().filter(|view| record.means(view));
            for entry in meant.map(part_entry) {
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
        while at < entries.len() && !*self.stop.borrow() {
            let begun = Instant::now();
            let end = entries.len().min(at + self.slice());
            let (now, record) = (self.jobs.jobs.now(), &self.record);
            let moves = due_times(&record.action, record.created, &entries[at..end], now);
            // The next slice is due behind this one.
            let behind = last_delay(&moves).map_or(Duration::ZERO, |ms| Duration::from_millis(ms + 1));
            let outcomes = self.change_slice(&entries[at..end], &moves, at).await;
            self.unsure = self.unsure.max(end);
            let mut why = None;
            for outcome in outcomes {
                match outcome {
                    Ok(outcome) => self.count(outcome),
                    Err(error) => {
                        why = Some(error);
                        break;
                    }
                }
                at += 1;
            }
            self.record.at = (part, at);
            self.hold().await?;
            if let Some(why) = why {
                return Err(RunEnd::Again(why));
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
            BulkAction::Redrive { to_queue: Some(_), .. } => BULK_SLICE_WITH_BODIES,
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

    /// What becomes of these messages, in order. The first of them has the number `first` in its part.
    async fn change_slice(&self, entries: &[PartEntry], moves: &[When], first: usize) -> Vec<Judged> {
        let is_unsure = |n: usize| first + n < self.unsure;
        if let BulkAction::Redrive { delay_ms, to_queue: Some(queue) } = &self.record.action {
            return match QueueName::new(queue) {
                Ok(queue) => self.move_all(entries, &queue, *delay_ms, &is_unsure).await,
                Err(_) => vec![Ok(BulkOutcome::Refused); entries.len()],
            };
        }
        let ask = entries.iter().zip(moves).map(|(entry, when)| self.op(entry, *when)).collect();
        match self.jobs.jobs.client.ask_many(ask).await {
            Ok(answers) => {
                let judge = |(n, answer): (usize, Result<Result<_, _>, CallError>)| match answer {
                    Ok(answer) => self.judge(answer.map(drop), is_unsure(n)),
                    Err(error) => Err(error.to_string()),
                };
                answers.into_iter().enumerate().map(judge).collect()
            }
            Err(error) => vec![Err(error.to_string())],
        }
    }

    /// What the answer to the change of one message says.
    fn judge(&self, answer: Result<(), ChangeRefusal>, unsure: bool) -> Judged {
        match (&self.record.action, answer) {
            // A message that cannot be kept stays.
            (_, Err(ChangeRefusal::Overloaded(_))) if self.record.keep_ms.is_some() => {
                Ok(BulkOutcome::Refused)
            }
            (BulkAction::Restore { .. }, Err(refusal @ ChangeRefusal::OverQuota(_))) => {
                Err(format!("{refusal:?}"))
            }
            // A message that is put back is removed where it was kept.
            (BulkAction::Cancel | BulkAction::Purge | BulkAction::Restore { .. }, answer) => {
                of_removal(answer, unsure)
            }
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
            BulkAction::Cancel | BulkAction::Purge => match (self.record.keep_ms, died) {
                (Some(keep_ms), died) => Op::cancel_kept(entry.id, died, self.id.into(), keep_ms),
                (None, Some(died)) => Op::remove_dead(entry.id, died),
                (None, None) => Op::cancel(Target::Id(entry.id)),
            },
            BulkAction::Restore { .. } => Op::restore(entry.id),
            BulkAction::Postpone(_) | BulkAction::Fire => {
                Op::postpone(Target::Id(entry.id), Box::new(Edit::due(when)), Some(entry.generation))
            }
            BulkAction::Redrive { delay_ms, .. } => {
                Op::redrive_in(entry.id, delay_ms.map(|ms| self.left_of(ms)))
            }
        }
    }

    /// Puts dead messages into another queue, and removes them from theirs.
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
            Err(error) => return vec![Err(error.to_string())],
        };
        let mut judged: Vec<Judged> = Vec::with_capacity(entries.len());
        let (mut copies, mut of) = (Vec::new(), Vec::new());
        for (n, view) in views.into_iter().enumerate() {
            judged.push(match view {
                Err(error) => Err(error.to_string()),
                Ok(None) if is_unsure(n) => Ok(BulkOutcome::Done),
                Ok(None) => Ok(BulkOutcome::Changed),
                Ok(Some(view)) if died(&view) != Some(entries[n].at) => Ok(BulkOutcome::Changed),
                Ok(Some(view)) if !self.may_move(&view) => Ok(BulkOutcome::Refused),
                Ok(Some(view)) => {
                    copies.push(self.copy(&view, to, delay_ms));
                    of.push(n);
                    // Until its copy is durable, and it is removed.
                    Ok(BulkOutcome::Refused)
                }
            });
        }
        let entered = match client.ask_many(copies).await {
            Ok(entered) => entered,
            Err(error) => return vec![Err(error.to_string())],
        };
        let (mut copied, mut copied_of) = (Vec::new(), Vec::new());
        for (n, answer) in of.into_iter().zip(entered) {
            match answer.map_err(|error| error.to_string()) {
                // With the same id it is there since before a crash.
                Ok(Ok(Enqueued { id, .. }) | Err(EnqueueRefusal::DedupeMismatch(id))) => {
                    copied.push((&entries[n], id));
                    copied_of.push(n);
                }
                Ok(Err(refusal)) => judged[n] = of_enqueue(&refusal),
                Err(error) => judged[n] = Err(error),
            }
        }
        match self.remove_moved(&copied).await {
            Ok(removed) => {
                for (n, outcome) in copied_of.into_iter().zip(removed) {
                    judged[n] = outcome;
                }
                judged
            }
            Err(error) => vec![Err(error.to_string())],
        }
    }

    /// Removes dead messages of which there are copies now. Where one was redriven meanwhile its copy is taken back.
    async fn remove_moved(&self, copied: &[(&PartEntry, MessageId)]) -> Result<Vec<Judged>, CallError> {
        let client = &self.jobs.jobs.client;
        let removes = copied.iter().map(|(entry, _)| Op::remove_dead(entry.id, WallMs(entry.at))).collect();
        let removed = client.ask_many(removes).await?;
        let mut judged: Vec<Judged> = Vec::with_capacity(copied.len());
        for ((_, copy), answer) in copied.iter().zip(removed) {
            judged.push(match answer {
                Ok(Err(ChangeRefusal::NotDead)) => {
                    of_taken_back(client.ask(Op::cancel(Target::Id(*copy))).await)
                }
                Ok(answer) => of_removal(answer.map(drop), true),
                Err(error) => Err(error.to_string()),
            });
        }
        Ok(judged)
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
            dedupe_id: Some(format!("{OWN_DEDUPE}job/{}/{}", self.id, view.message.id.0).into()),
            ..same_content(view, to.clone(), now, delay_ms)
        }
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
        if is_over {
            self.jobs.jobs.remove(self.row.0).await?;
            self.jobs.index.removed(self.id);
            return Ok(());
        }
        self.record.at.0 = self.record.parts;
        self.save(NextLook::At(until)).await
    }
}

/// A message as a walk has met it.
fn part_entry(view: &View) -> PartEntry {
    let generation = if view.lease_until.is_some() { LEASED } else { view.generation };
    let at = view.dead.map_or(view.due_at, |(_, died)| died).0;
    PartEntry { id: view.message.id, generation, at }
}

/// When a dead message has died, in ms since 1970.
fn died(view: &View) -> Option<u64> {
    view.dead.filter(|_| view.state == State::Dead).map(|(_, died)| died.0)
}

#[cfg(test)]
mod tests {
    use duewheel::core::Policy;
    use duewheel::core::engine::{Attempt, InitialState, Past};
    use duewheel::core::id::SessionId;
    use duewheel::core::message::State;
    use duewheel::{Client, Duewheel, VirtualClock};

    use super::super::action::BulkMove;
    use super::super::filter::BulkFilter;
    use super::super::record::{BulkCounts, BulkTenant};
    use super::*;
    use crate::records::StoredRecord;

    impl BulkPlace {
        /// A place for one run alone.
        fn alone() -> Self {
            BulkPlace { all: Arc::new(Semaphore::new(1)), taken: None }
        }
    }

    #[tokio::test]
    async fn waiting_run_releases_its_slot() {
        let wheel = Duewheel::builder().in_memory().clock(VirtualClock::at_2026()).open().await.unwrap();
        let jobs = BulkJobs::new(&wheel, &Policy::default()).unwrap();
        let (filter, action) = (BulkFilter::default(), BulkAction::Cancel);
        let record = BulkRecord::new(BulkTenant::Common, "orders".into(), filter, action, None, 0);
        let (stop, stopped) = watch::channel(false);
        let BulkPlace { all, .. } = BulkPlace::alone();
        let taken = Some(all.clone().acquire_owned().await.unwrap());
        let place = BulkPlace { all: all.clone(), taken };
        let mut run = BulkRun::new(&jobs, "job", (MessageId(1), 1), record, place, stopped);
        let mut resting = Box::pin(run.rest(Instant::now() + BULK_TURN_LOOK));
        tokio::select! {
            biased;
            _ = &mut resting => panic!("it does not wait"),
            () = std::future::ready(()) => assert_eq!(all.available_permits(), 1),
        }
        stop.send(true).unwrap();
        resting.await.unwrap();
        assert_eq!(all.available_permits(), 0);
    }

    fn at(ms: u64) -> When {
        When::At { due_at: WallMs(ms), past: Past::Fire }
    }

    /// A node has written that a part is done with, and dies before it has removed it.
    #[tokio::test]
    async fn finished_part_of_dead_node_removed() {
        let wheel = Duewheel::builder().in_memory().clock(VirtualClock::at_2026()).open().await.unwrap();
        let jobs = BulkJobs::new(&wheel, &Policy::default()).unwrap();
        for phase in [BulkPhase::Running, BulkPhase::Cancelled] {
            let (filter, action) = (BulkFilter::default(), BulkAction::Cancel);
            let mut record =
                BulkRecord::new(BulkTenant::Common, "orders".into(), filter, action, None, jobs.jobs.now());
            (record.phase, record.parts, record.at) = (phase, 2, (1, 0));
            record.ended = phase.is_end().then(|| jobs.jobs.now());
            let id = phase.as_str();
            assert!(jobs.jobs.create(id, record.bytes()).await.unwrap());
            for part in 0..2 {
                let walk = PartWalk { position: None, leased: 0 };
                jobs.put_part(id, part, JobPart { walk, entries: Vec::new() }).await.unwrap();
            }
            let StoredRecord { id: row, generation, .. } = jobs.jobs.read(id).await.unwrap().unwrap();
            let (_keep, stop) = watch::channel(false);
            let end = BulkRun::new(&jobs, id, (row, generation), record, BulkPlace::alone(), stop).go().await;
            assert!(matches!(end, RunEnd::Over), "{end:?}");
            assert!(jobs.get(id).await.unwrap().ended_ms.is_some());
            for part in 0..2 {
                assert_eq!(jobs.read_part(id, part).await.unwrap(), None, "{id}, part {part}");
            }
        }
    }

    /// Story: a message that was fired, or postponed to an earlier time, while the job collected went from ahead of the walk
    /// to behind it, and the job never met it.
    #[tokio::test]
    async fn second_walk_meets_moved_messages() {
        for shards in [1, 3] {
            let memory = Duewheel::builder().in_memory().clock(VirtualClock::at_2026()).shards(shards);
            let wheel = memory.open().await.unwrap();
            let (client, jobs) = (wheel.client(), BulkJobs::new(&wheel, &Policy::default()).unwrap());
            let now = client.now().wall.0;
            let queue = QueueName::new("orders").unwrap();
            let mut ids = Vec::new();
            for n in 0..6_000 {
                let when = at(now + 3_600_000 + n);
                let order = Enqueue { when, ..Enqueue::new(queue.clone(), b"".to_vec()) };
                ids.push(client.ask(order).await.unwrap().unwrap().id);
            }
            let record = BulkRecord::new(
                BulkTenant::Common,
                "orders".into(),
                BulkFilter::default(),
                BulkAction::Postpone(BulkMove::Delay(9_000_000)),
                None,
                jobs.jobs.now(),
            );
            assert!(jobs.jobs.create("job", record.bytes()).await.unwrap());
            let StoredRecord { id: row, generation, .. } = jobs.jobs.read("job").await.unwrap().unwrap();
            let (_keep, stop) = watch::channel(false);
            let mut run =
                BulkRun::new(&jobs, "job", (row, generation), record, BulkPlace::alone(), stop.clone());
            run.collect().await.unwrap();
            let (walk, met) = (run.record.walk, run.record.counts.matched);
            assert!(walk == BulkWalk::First && (1_000..5_000).contains(&met), "{met}");
            let [.., soon, earlier, later, leased] = ids[..] else { unreachable!() };
            let postpone = |id, ms| Op::postpone(Target::Id(id), Box::new(Edit::due(at(ms))), None);
            for op in [postpone(soon, now), postpone(earlier, now + 1_000), postpone(later, now + 8_000_000)]
            {
                client.ask(op).await.unwrap().unwrap();
            }
            // A consumer has one where the walk comes later, and gives it back at once; and one that was met is moved.
            let lease = |id| Op::reserve_one(id, duewheel::core::id::SessionId::NONE, None);
            let grant = client.ask(lease(leased)).await.unwrap().unwrap();
            client.ask(postpone(ids[0], now + 8_500_000)).await.unwrap().unwrap();
            let ((row, generation), record) = (run.row, run.record.clone());
            drop(run);
            // Another node goes on.
            let mut run = BulkRun::new(&jobs, "job", (row, generation), record, BulkPlace::alone(), stop);
            while run.record.walk == BulkWalk::First {
                run.collect().await.unwrap();
            }
            let back = Op::nack(leased, grant.token, Attempt::NotYet, Some(0), "");
            client.ask(back).await.unwrap().unwrap();
            assert!(matches!(run.go().await, RunEnd::Over));
            let counts = jobs.get("job").await.unwrap().counts;
            let expected = BulkCounts { matched: 5_999, done: 5_998, leased: 1, changed: 1, refused: 0 };
            assert_eq!(counts, expected, "over {shards} shards");
            for id in [soon, earlier, later] {
                let view = client.ask(Op::get(Target::Id(id))).await.unwrap().unwrap();
                assert_eq!(view.due_at.0, now + 9_000_000, "{id}");
            }
        }
    }

    /// Dead messages of the queue `orders`, of an in-memory library.
    async fn some_dead(client: &Client, n: usize) -> Vec<MessageId> {
        let mut ids = Vec::new();
        for _ in 0..n {
            let order = Enqueue::new(QueueName::new("orders").unwrap(), b"".to_vec());
            let order = Enqueue { begins: InitialState::Dead, ..order };
            ids.push(client.ask(order).await.unwrap().unwrap().id);
        }
        ids
    }

    /// Lets a message die once more.
    async fn bury(client: &Client, id: MessageId) {
        let grant = client.ask(Op::reserve_one(id, SessionId::NONE, None)).await.unwrap().unwrap();
        client.ask(Op::bury(id, grant.token, "no use")).await.unwrap().unwrap();
    }

    async fn job(jobs: &BulkJobs, filter: BulkFilter, action: BulkAction) -> (MessageId, u32, BulkRecord) {
        let record =
            BulkRecord::new(BulkTenant::Common, "orders".into(), filter, action, None, jobs.jobs.now());
        assert!(jobs.jobs.create("job", record.bytes()).await.unwrap());
        let StoredRecord { id, generation, .. } = jobs.jobs.read("job").await.unwrap().unwrap();
        (id, generation, record)
    }

    /// Story: a job that was to remove dead messages removed those, too, that were redriven after it had collected
    /// them, and counted them as done.
    #[tokio::test]
    async fn redriven_dead_message_is_skipped() {
        let move_to = BulkAction::Redrive { delay_ms: None, to_queue: Some("others".into()) };
        for action in [BulkAction::Cancel, move_to] {
            let clock = VirtualClock::at_2026();
            let memory = Duewheel::builder().in_memory().clock(clock.clone());
            let wheel = memory.open().await.unwrap();
            let (client, jobs) = (wheel.client(), BulkJobs::new(&wheel, &Policy::default()).unwrap());
            let ids = some_dead(client, 3).await;
            let dead = BulkFilter { state: Some(State::Dead), ..BulkFilter::default() };
            let (row, generation, record) = job(&jobs, dead, action.clone()).await;
            let (_keep, stop) = watch::channel(false);
            let mut run = BulkRun::new(&jobs, "job", (row, generation), record, BulkPlace::alone(), stop);
            run.collect().await.unwrap();
            assert_eq!((run.record.phase, run.record.counts.matched), (BulkPhase::Running, 3));
            clock.advance(Duration::from_secs(1));
            for id in &ids[..2] {
                client.ask(Op::redrive(*id)).await.unwrap().unwrap();
            }
            // Dead as it is now, it is another matter.
            bury(client, ids[1]).await;
            // Also where a node that has died may have come so far.
            run.unsure = 3;
            assert!(matches!(run.go().await, RunEnd::Over));
            let counts = jobs.get("job").await.unwrap().counts;
            assert_eq!((counts.done, counts.changed), (1, 2), "{action:?}");
            let mut states = Vec::new();
            for id in ids {
                states.push(client.ask(Op::get(Target::Id(id))).await.unwrap().map(|view| view.state));
            }
            assert_eq!(states, [Some(State::Ready), Some(State::Dead), None], "{action:?}");
        }
    }

    /// Story: a dead message that was redriven between its copy and its removal was removed, or, with a consumer by then,
    /// lived twice.
    #[tokio::test]
    async fn copy_of_redriven_message_is_removed() {
        let wheel = Duewheel::builder().in_memory().clock(VirtualClock::at_2026()).open().await.unwrap();
        let (client, jobs) = (wheel.client(), BulkJobs::new(&wheel, &Policy::default()).unwrap());
        let ids = some_dead(client, 3).await;
        let action = BulkAction::Redrive { delay_ms: None, to_queue: Some("others".into()) };
        let (row, generation, record) = job(&jobs, BulkFilter::default(), action).await;
        let (_keep, stop) = watch::channel(false);
        let run = BulkRun::new(&jobs, "job", (row, generation), record, BulkPlace::alone(), stop);
        let (mut entries, mut copies) = (Vec::new(), Vec::new());
        for id in &ids {
            let view = client.ask(Op::get(Target::Id(*id))).await.unwrap().unwrap();
            entries.push(part_entry(&view));
            let copy = run.copy(&view, &QueueName::new("others").unwrap(), None);
            copies.push(client.ask(copy).await.unwrap().unwrap().id);
        }
        for id in &ids[..2] {
            client.ask(Op::redrive(*id)).await.unwrap().unwrap();
        }
        let lease = |id| Op::reserve_one(id, SessionId::NONE, None);
        client.ask(lease(ids[0])).await.unwrap().unwrap();
        // The copy of the second one has a consumer already.
        client.ask(lease(copies[1])).await.unwrap().unwrap();
        let copied: Vec<_> = entries.iter().zip(copies.iter().copied()).collect();
        let judged = run.remove_moved(&copied).await.unwrap();
        assert_eq!(judged, [BulkOutcome::Changed, BulkOutcome::Done, BulkOutcome::Done].map(Ok));
        let mut there = Vec::new();
        for id in ids.into_iter().chain(copies) {
            there.push(client.ask(Op::get(Target::Id(id))).await.unwrap().is_some());
        }
        assert_eq!(there, [true, true, false, false, true, true], "the messages, and their copies");
    }
}
