//! A look at one schedule: the steps of its plan, one after the other, on its record; and why it fails.

use std::time::Duration;

use duewheel::CallError;
use duewheel::core::MessageId;
use duewheel::core::engine::{ChangeRefusal, EnqueueRefusal, Op};
use duewheel::core::message::Expiry;
use duewheel::core::time::{WallMs, ceil_ms};

use super::message::{self, OccurrenceMessage};
use crate::limits::{LOOK_AGAIN, LOOK_STEPS, MAX_JUDGED_AT_EDIT, ON_TIME, UNREADABLE_LOOK};
use crate::records::{NextLook, NotWritten, RecordStore};
use crate::schedule::{
    EnterOutcome, LookFacts, PreviousRun, ScheduleEntry, ScheduleRecord, ScheduleSettings, ScheduleStep,
    TakeBack, TakeOutcome, Timetable, to_time,
};
use crate::settings::{BadSettings, bad};

/// The change that an edit makes to a schedule.
#[derive(Clone, Debug)]
pub(crate) enum ScheduleEdit {
    /// Saves these settings, and how many occurrences enter from now on. The outer `None` leaves that number.
    Save(Box<ScheduleSettings>, Option<Option<u64>>, PastOccurrences),
    /// Removes the schedule.
    Remove,
}

/// Whether a schedule is saved of which no occurrence is to come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PastOccurrences {
    /// The schedule is refused, unless its recurrence and what remains are those that are stored.
    #[default]
    Refuse,
    /// The schedule is saved.
    Keep,
}

impl PastOccurrences {
    /// Checks a new timetable and a new number of occurrences.
    pub(crate) fn check(
        self,
        table: Option<&Timetable>,
        left: Option<u64>,
        now: u64,
    ) -> Result<(), ScheduleError> {
        if self == PastOccurrences::Keep {
            return Ok(());
        }
        if left == Some(0) {
            return Err(bad("remaining", "must be at least 1").into());
        }
        let ended = table.and_then(|table| table.recurrence.ended_by(to_time(now)));
        ended.map_or(Ok(()), |field| Err(ScheduleError::Past(field)))
    }
}

/// Decides about an edit once the record is at rest.
pub(crate) type EditJob<'a> = dyn FnMut(&ScheduleRecord) -> Result<ScheduleEdit, ScheduleError> + Send + 'a;

/// How a look has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookEnd {
    /// The record says when the next one is.
    Written,
    /// The schedule is removed.
    Removed,
}

/// A look at one schedule. Nobody else writes the record while it is held.
#[derive(Debug)]
pub(crate) struct Look<'a> {
    pub(crate) records: &'a RecordStore,
    pub(crate) name: &'a str,
    pub(crate) id: MessageId,
    pub(crate) generation: u32,
    pub(crate) record: ScheduleRecord,
    /// When it began by the clock of the record's shard, which may be ahead of this node's; 0: that is not known.
    pub(crate) began: u64,
}

impl Look<'_> {
    /// The present: by the clock that is ahead of the others.
    fn now(&self) -> u64 {
        self.records.now().max(self.began)
    }

    /// Takes the steps of the plan, until it sleeps.
    ///
    /// # Cancel safety
    /// When it is dropped, the record is looked at again once nobody holds it.
    pub(crate) async fn run(&mut self, mut job: Option<&mut EditJob<'_>>) -> Result<LookEnd, ScheduleError> {
        let (mut previous, mut is_checked) = (PreviousRun::Unknown, false);
        self.ask_due().await;
        for _ in 0..LOOK_STEPS {
            let now = self.now();
            let step = match self.record.state.unfinished(now) {
                Some(step) => step,
                None => match job.take() {
                    Some(job) => {
                        self.edit(job).await?;
                        continue;
                    }
                    None => self.next_step(now, previous, is_checked),
                },
            };
            previous = PreviousRun::Unknown;
            match step {
                ScheduleStep::Enter(entries) => self.enter(entries).await?,
                ScheduleStep::Take(list) => self.take(list).await?,
                ScheduleStep::Erase(ids) => self.erase(ids).await?,
                ScheduleStep::Check => match self.find_removed().await {
                    Ok(()) => is_checked = true,
                    Err(why) => return Err(self.stopped(why.into()).await),
                },
                ScheduleStep::Look(id) => match message::is_settled(&self.records.client, id).await {
                    Some(answer) => previous = answer,
                    None => return Err(self.stopped(ScheduleError::Busy).await),
                },
                ScheduleStep::Sleep(until) => {
                    // At once, also where the clock is behind the present of the record.
                    let at_once = until <= self.record.state.present;
                    let next = if at_once { NextLook::After(Duration::ZERO) } else { NextLook::At(until) };
                    self.write(0, next).await?;
                    return Ok(LookEnd::Written);
                }
                ScheduleStep::Remove => {
                    self.hold().await?;
                    self.records.remove(self.id).await?;
                    return Ok(LookEnd::Removed);
                }
            }
        }
        if job.is_some() {
            return Err(ScheduleError::Busy);
        }
        // Others get their turn.
        self.write(0, NextLook::After(Duration::ZERO)).await?;
        Ok(LookEnd::Written)
    }

    fn next_step(&mut self, now: u64, previous: PreviousRun, is_checked: bool) -> ScheduleStep {
        let table = match self.record.timetable() {
            Ok(table) => table,
            Err(error) => {
                if error.field == "cron" && !self.record.settings.paused {
                    // An earlier version has accepted the expression.
                    tracing::warn!(schedule = self.name, %error, "a schedule is paused");
                    self.record.settings.paused = true;
                    self.record.state.change_unreadable(now);
                } else {
                    tracing::warn!(schedule = self.name, %error, "the settings of a schedule became invalid");
                }
                let pause = u64::try_from(UNREADABLE_LOOK.as_millis()).unwrap_or(u64::MAX);
                let sleep = ScheduleStep::Sleep(now.saturating_add(pause));
                return self.record.state.unfinished(now).unwrap_or(sleep);
            }
        };
        let remembered = self.records.remembered;
        let facts = LookFacts { name: self.name, now, previous, is_checked, remembered };
        self.record.state.compute_again(&table, facts);
        self.record.state.advance(&table, facts)
    }

    /// Asks the shards of messages that are due whether these have entered. A shard that gives no answer, because it is
    /// closed for example, is asked again at the next look.
    async fn ask_due(&mut self) {
        self.record.state.pass_due(self.now());
        for (at, answer) in message::due_answers(&self.records.client, &self.record.state.unanswered).await {
            self.record.state.answered(self.now(), at, answer);
        }
    }

    /// Finds the messages ahead that callers have removed.
    async fn find_removed(&mut self) -> Result<(), CallError> {
        let now = self.now();
        for at in message::gone(&self.records.client, self.record.state.ahead(now)).await? {
            self.record.state.removed(now, at);
        }
        Ok(())
    }

    /// Changes the settings of a record at rest, and writes it.
    async fn edit(&mut self, job: &mut EditJob<'_>) -> Result<(), ScheduleError> {
        let now = self.now();
        self.find_removed().await?;
        let (name, remembered) = (self.name, self.records.remembered);
        let facts = LookFacts { name, now, previous: PreviousRun::Unknown, is_checked: false, remembered };
        match job(&self.record)? {
            ScheduleEdit::Remove => self.record.state.remove(now),
            ScheduleEdit::Save(settings, remaining, past) => {
                let old = self.record.timetable();
                let same = settings.recurrence == self.record.settings.recurrence;
                let mut after = self.record.clone();
                after.settings = *settings;
                let new = after.timetable()?;
                after.check_size(self.records.max_body)?;
                let left = remaining.filter(|left| *left != self.record.state.left(now)).flatten();
                past.check(if same { None } else { Some(&new) }, left, now)?;
                match &old {
                    Ok(old) => {
                        if !old.paused && !after.state.judge(old, facts, MAX_JUDGED_AT_EDIT) {
                            return Err(ScheduleError::Behind);
                        }
                        after.state.change(old, &new, same, facts);
                    }
                    Err(_) => after.state.change_unreadable(now),
                }
                if let Some(remaining) = remaining {
                    after.state.limit(now, remaining);
                }
                self.record = after;
            }
        }
        self.hold().await
    }

    async fn enter(&mut self, entries: Vec<ScheduleEntry>) -> Result<(), ScheduleError> {
        self.hold().await?;
        if self.records.now() >= self.record.state.held_until {
            // The write took so long that others may have the record by now.
            return Err(ScheduleError::Busy);
        }
        let (keyless, keyed) = entries.into_iter().partition(|entry| entry.keyless);
        let taken = self.enqueue(keyed, true).await?;
        if !taken.is_empty() {
            for entry in &taken {
                self.record.state.without_key(entry);
            }
            self.hold().await?;
        }
        let keyless: Vec<ScheduleEntry> = taken.into_iter().chain(keyless).collect();
        self.enqueue(keyless, false).await.map(drop)
    }

    /// Enqueues occurrences with their keys, or without. Returns those whose key another message has.
    async fn enqueue(
        &mut self,
        entries: Vec<ScheduleEntry>,
        keyed: bool,
    ) -> Result<Vec<ScheduleEntry>, ScheduleError> {
        if entries.is_empty() {
            return Ok(entries);
        }
        let now = self.now();
        let is_late = |entry: &ScheduleEntry| now.saturating_sub(entry.due) > ceil_ms(ON_TIME);
        let mut lives = None;
        if entries.iter().any(is_late) {
            let queue = self.record.timetable()?.queue;
            lives = match self.records.client.ask(Op::queue(queue)).await {
                Ok(view) => view.and_then(|view| view.settings.expires_in_ms),
                Err(error) => return Err(self.stopped(ScheduleError::Call(error)).await),
            };
        }
        let op = |entry: &ScheduleEntry| {
            let mut op = OccurrenceMessage::of(self.name, &self.record, entry).enqueue(keyed)?;
            // What is caught up has its life before it, although its due time is long ago.
            if is_late(entry)
                && let Some(ms) = lives
            {
                op.options.expiry = Some(Expiry::At(WallMs(now.saturating_add(ms))));
            }
            Ok(op)
        };
        let ops: Result<Vec<_>, BadSettings> = entries.iter().map(op).collect();
        let answers = match ops {
            Ok(ops) => match self.records.client.ask_many(ops).await {
                Ok(answers) => answers,
                Err(error) => return Err(self.stopped(ScheduleError::Call(error)).await),
            },
            Err(bad) => {
                // Settings that were valid once. The occurrences wait for others.
                let now = self.now();
                for entry in &entries {
                    self.record.state.entered(now, entry, EnterOutcome::Refused(bad.to_string()));
                }
                return Ok(Vec::new());
            }
        };
        let mut taken = Vec::new();
        let mut unknown = None;
        for (entry, answer) in entries.into_iter().zip(answers) {
            let error = answer.as_ref().err().cloned();
            match message::outcome(answer, keyed) {
                Some(outcome) => {
                    let now = self.now();
                    self.record.state.entered(now, &entry, outcome);
                }
                None => taken.push(entry),
            }
            unknown = unknown.or(error);
        }
        match unknown {
            Some(error) => Err(self.stopped(ScheduleError::Call(error)).await),
            None => Ok(taken),
        }
    }

    async fn take(&mut self, list: Vec<TakeBack>) -> Result<(), ScheduleError> {
        self.hold().await?;
        let table = self.record.timetable().ok();
        for take in list {
            let outcome = message::take(&self.records.client, &self.record.mark(), &take).await;
            if outcome == TakeOutcome::Unknown {
                return Err(self.stopped(ScheduleError::Busy).await);
            }
            let now = self.now();
            self.record.state.took(table.as_ref(), now, &take, outcome);
        }
        Ok(())
    }

    async fn erase(&mut self, ids: Vec<u64>) -> Result<(), ScheduleError> {
        self.hold().await?;
        for id in ids {
            if !message::erase(&self.records.client, id).await {
                return Err(self.stopped(ScheduleError::Busy).await);
            }
            self.record.state.erased(&[id]);
        }
        Ok(())
    }

    /// Ends a look whose store gave no answer, and returns why: what is under way stays in the record, and is completed
    /// later.
    async fn stopped(&mut self, why: ScheduleError) -> ScheduleError {
        // If this also fails, the record is due when it is no longer held.
        let _ = self.write(0, NextLook::After(LOOK_AGAIN)).await;
        why
    }

    /// Writes the record before the steps it plans are taken, and holds it so that no other look takes them.
    async fn hold(&mut self) -> Result<(), ScheduleError> {
        let until = self.records.held_until();
        Ok(self.write(until, NextLook::After(crate::limits::HELD)).await?)
    }

    async fn write(&mut self, held_until: u64, next: NextLook) -> Result<(), NotWritten> {
        self.record.state.held_until = held_until;
        self.generation =
            self.records.write((self.id, self.generation), self.record.bytes(), Some(next), None).await?;
        Ok(())
    }
}

/// Why something was not done with a schedule.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The settings are not valid.
    #[error(transparent)]
    Bad(#[from] BadSettings),
    /// Nothing would occur any more because of this field.
    #[error("{0}: all occurrences have passed; to save the schedule all the same, say past: keep")]
    Past(&'static str),
    /// There is no schedule of this name within reach.
    #[error("there is no schedule of this name")]
    NotFound,
    /// Another tenant has a schedule of this name.
    #[error("the name is that of a schedule which this caller may not see")]
    Taken,
    /// There are too many schedules.
    #[error("there are {0} schedules, and no more are accepted")]
    TooMany(u64),
    /// The record cannot be read: it can only be removed.
    #[error("the schedule cannot be read, and can only be removed: {0}")]
    Unreadable(String),
    /// Others work on the schedule. Nothing was changed; try again.
    #[error("the schedule is being looked at; try again shortly")]
    Busy,
    /// More instants have passed than the worker has judged yet. Nothing was changed; try again.
    #[error("the schedule has not caught up with the time it was not looked at; try again shortly")]
    Behind,
    /// A queue refused a message of a trigger or a backfill.
    #[error("the queue refused the message: {0:?}")]
    Refused(EnqueueRefusal),
    /// A backfill ended before all of its occurrences had entered. Repeat it with this id: none enters twice.
    #[error(
        "{why}; some of the occurrences may have entered: repeat it with the id {id}, and none enters twice"
    )]
    Interrupted {
        /// The id of the backfill, which was drawn if the caller gave none.
        id: String,
        /// The error that ended it.
        why: Box<ScheduleError>,
    },
    /// The store refused the record.
    #[error("the record was refused: {0}")]
    RecordRefused(ChangeRefusal),
    /// The store gave no answer; what was begun is completed once it does.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl From<NotWritten> for ScheduleError {
    fn from(why: NotWritten) -> Self {
        match why {
            NotWritten::Lost => ScheduleError::Busy,
            NotWritten::Refused(refusal) => ScheduleError::RecordRefused(refusal),
            NotWritten::NewRefused(refusal) => ScheduleError::Refused(refusal),
            NotWritten::Unknown(error) => ScheduleError::Call(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use duewheel::core::engine::Target;
    use duewheel::core::name::{Key, QueueName};
    use duewheel::{Duewheel, Policy, VirtualClock};

    use super::*;
    use crate::schedule::occurrence_key;
    use crate::{RecurrenceSettings, Schedules};

    /// Story: an occurrence entered without its key, because a stranger had that; its answer was lost and the stranger
    /// went. It was tried with its key again, in another shard, which did not remember it.
    #[tokio::test]
    async fn keyless_occurrence_is_retried_without_key() {
        let wheel = Duewheel::builder().in_memory().open().await.unwrap();
        let schedules = Schedules::new(&wheel, &Policy::default()).unwrap();
        let recurrence = RecurrenceSettings { every: Some("1h".into()), ..Default::default() };
        let settings = ScheduleSettings { queue: "q".into(), recurrence, ..Default::default() };
        schedules.put("hourly", settings, None).await.unwrap();
        let row = schedules.records.read("hourly").await.unwrap().unwrap();
        let mut record = ScheduleRecord::read(&row.body).unwrap();
        let at = record.created + 3_600_000;
        let entry = ScheduleEntry {
            at,
            due: at,
            round: record.state.round,
            until: u64::MAX,
            keyless: true,
            id: None,
            generation: 0,
        };
        record.state.cursor = at;
        record.state.entering.push(entry);
        let mut look = schedules.look("hourly", &row, record, 0);
        assert_eq!(look.run(None).await.unwrap(), LookEnd::Written);
        assert_eq!((look.record.state.counts.entered, look.record.state.counts.keyless), (1, 1));
        let key = Key::new(&occurrence_key("hourly", at)).unwrap();
        let keyed = Op::get(Target::Key(QueueName::new("q").unwrap(), key));
        assert!(wheel.client().ask(keyed).await.unwrap().is_none(), "it has no key");
    }

    /// Story: a message was put ahead in a shard that was closed while it became due, and the record was in another one,
    /// which was open: the occurrence counted as entered, and was granted late whatever `missed` said. Both are in one
    /// folder here, and the look of the open shard is done by hand.
    #[tokio::test]
    async fn closed_shard_occurrence_follows_missed_policy() {
        for (missed, entered) in
            [("none", &[160, 200][..]), ("last", &[160, 200]), ("all", &[40, 80, 120, 160, 200])]
        {
            let (folder, clock) = (tempfile::tempdir().unwrap(), VirtualClock::at_2026());
            let open = async || {
                let builder = Duewheel::builder().data(folder.path()).clock(clock.clone());
                let wheel = builder.open().await.unwrap();
                let schedules = Schedules::new(&wheel, &Policy::default()).unwrap();
                (wheel, schedules)
            };
            let look_now = async |schedules: &Schedules, by_hand: Option<ScheduleRecord>| {
                let row = schedules.records.read("report").await.unwrap().unwrap();
                let record = by_hand.unwrap_or_else(|| ScheduleRecord::read(&row.body).unwrap());
                let mut look = schedules.look("report", &row, record, 0);
                while look.run(None).await.unwrap() != LookEnd::Written || !look.record.state.is_quiet() {}
                look.record
            };
            let (wheel, schedules) = open().await;
            let recurrence = RecurrenceSettings { every: Some("40s".into()), ..Default::default() };
            let settings = ScheduleSettings {
                queue: "q".into(),
                recurrence,
                missed: Some(missed.into()),
                ..Default::default()
            };
            schedules.put("report", settings, None).await.unwrap();
            let mut record = look_now(&schedules, None).await;
            let start = record.created;
            wheel.shutdown(Duration::from_secs(60)).await.unwrap();
            let due = record.state.pending[0].due;
            record.state.pass_due(due);
            record.state.answered(due, due, crate::schedule::DueAnswer::Unknown);
            clock.advance(Duration::from_secs(185));
            let (wheel, schedules) = open().await;
            let mut record = look_now(&schedules, Some(record)).await;
            // Missed ones enter a few at a time.
            while record.state.counts.entered < entered.len() as u64 {
                clock.advance(Duration::from_millis(100));
                record = look_now(&schedules, None).await;
            }
            let queue = QueueName::new("q").unwrap();
            let views = wheel.client().list(queue, None, None, 100).await.unwrap().views;
            let due: Vec<u64> = views.iter().map(|view| (view.due_at.0 - start) / 1_000).collect();
            assert_eq!(due, entered, "{missed}");
            assert_eq!(record.state.counts.missed, 5 - entered.len() as u64, "{missed}");
            wheel.shutdown(Duration::from_secs(60)).await.unwrap();
        }
    }

    /// How far a look comes before its node dies.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum LookCut {
        Look,
        Write,
        Enqueue,
    }

    /// Takes the steps of [`Look::run`] up to the enqueue of an occurrence, and dies there.
    async fn cut(look: &mut Look<'_>, cut: LookCut) {
        let mut previous = PreviousRun::Unknown;
        loop {
            let now = look.now();
            let unfinished = look.record.state.unfinished(now);
            match unfinished.unwrap_or_else(|| look.next_step(now, previous, true)) {
                ScheduleStep::Look(id) => {
                    previous = message::is_settled(&look.records.client, id).await.unwrap();
                }
                ScheduleStep::Enter(entries) if cut != LookCut::Look => {
                    look.hold().await.unwrap();
                    if cut == LookCut::Enqueue {
                        look.enqueue(entries, true).await.unwrap();
                    }
                    return;
                }
                _ => return,
            }
        }
    }

    /// The look at the previous occurrence, the write of the record and the enqueue are three calls, and a node may die
    /// before and after each of them.
    #[tokio::test]
    async fn interrupted_look_neither_overlaps_nor_loses() {
        const CUTS: [LookCut; 3] = [LookCut::Look, LookCut::Write, LookCut::Enqueue];
        for overlap in ["skip", "buffer_one"] {
            let clock = VirtualClock::at_2026();
            let wheel = Duewheel::builder().in_memory().clock(clock.clone()).open().await.unwrap();
            let schedules = Schedules::new(&wheel, &Policy::default()).unwrap();
            let recurrence = RecurrenceSettings { every: Some("1m".into()), ..Default::default() };
            let overlap = Some(overlap.into());
            let settings = ScheduleSettings { queue: "q".into(), recurrence, overlap, ..Default::default() };
            schedules.put("minutely", settings, None).await.unwrap();
            let look_now = async |at: Option<LookCut>| {
                let row = schedules.records.read("minutely").await.unwrap().unwrap();
                let record = ScheduleRecord::read(&row.body).unwrap();
                let mut look = schedules.look("minutely", &row, record, 0);
                match at {
                    Some(at) => cut(&mut look, at).await,
                    None => assert_eq!(look.run(None).await.unwrap(), LookEnd::Written),
                }
            };
            let (mut settled, mut cut_with_one_entering) = (0, 0);
            clock.advance(std::time::Duration::from_secs(20));
            for minute in 0..60 {
                let queue = QueueName::new("q").unwrap();
                let there = wheel.client().list(queue.clone(), None, None, 10).await.unwrap().views;
                // The previous one is settled before the look in two of three minutes.
                if let (Some(view), 0..2) = (there.first(), minute % 3) {
                    wheel.client().ask(Op::cancel(Target::Id(view.message.id))).await.unwrap().unwrap();
                    settled += 1;
                }
                clock.advance(std::time::Duration::from_secs(40));
                look_now(Some(CUTS[minute / 3 % 3])).await;
                let record = schedules.get("minutely").await.unwrap().record;
                cut_with_one_entering += u32::from(!record.state.entering.is_empty());
                // The next node takes it over when the first one does not hold it any more.
                clock.advance(std::time::Duration::from_secs(20));
                look_now(None).await;
                let there = wheel.client().list(queue, None, None, 10).await.unwrap().views;
                assert!(there.len() <= 1, "{} unsettled at a time", there.len());
            }
            let state = schedules.get("minutely").await.unwrap().record.state;
            let counts = &state.counts;
            let waiting = u64::from(state.buffered.is_some()) + state.backlog.len() as u64;
            assert_eq!(counts.entered + counts.skipped + counts.missed + waiting, 60, "{counts:?}");
            assert_eq!((counts.missed, counts.unsure), (0, 0));
            assert!(settled > 20 && cut_with_one_entering > 20, "{settled} {cut_with_one_entering}");
        }
    }
}
