//! The users' operations on schedules: put, read, list, change, remove.

use std::collections::BTreeSet;
use std::time::Instant;

use duewheel::core::Policy;
use duewheel::core::name::{BadName, QueueName};
use duewheel::{CallError, Duewheel};

use super::look::{EditJob, Look, LookEnd, PastOccurrences, ScheduleEdit, ScheduleError};
use super::message;
use crate::limits::{EDIT_WAIT, MAX_SCHEDULE_NAME, MAX_SCHEDULES};
use crate::random::random_text;
use crate::records::{RecordStore, StoredRecord};
use crate::recurrence::Occurrence;
use crate::schedule::{PastOccurrence, ScheduleCounts, ScheduleRecord, ScheduleSettings, to_time};
use crate::settings::{BadSettings, check_name};

/// The queue of the records.
const QUEUE: &str = "#schedules";
/// The pause before a record is read again that a worker holds.
const HELD_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// The schedules of a store. Cheap to clone.
///
/// A schedule is durable when a call has returned. A [`crate::ScheduleWorker`] lets its occurrences enter their queue;
/// several workers may run, on any nodes.
///
/// ```
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use duewheel::{Args, Duewheel, Job, Policy, Workers};
/// use duewheel_delivery::{RecurrenceSettings, ScheduleSettings, ScheduleWorker, Schedules};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Report {
///     shop: String,
/// }
///
/// impl Job for Report {
///     const QUEUE: &'static str = "reports"; // or #[derive(Job)] with duewheel's feature `derive`
/// }
///
/// async fn report(Args(report): Args<Report>) {
///     println!("the week of {}", report.shop);
/// }
///
/// let wheel = Duewheel::builder().in_memory().open().await?;
/// Workers::new(&wheel, ()).on::<Report, _>(report).start()?;
/// let schedules = Schedules::new(&wheel, &Policy::default())?;
/// let worker = ScheduleWorker::start(&schedules);
/// let mondays = RecurrenceSettings { cron: Some("0 9 * * MON".into()), ..Default::default() };
/// let settings = ScheduleSettings::of_job(&Report { shop: "Berlin".into() }, mondays)?;
/// let schedule = schedules.put("weekly-report", settings, None).await?;
/// assert_eq!(schedule.next.len(), 10);
/// worker.stop(Duration::from_secs(10)).await;
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Schedules {
    pub(crate) records: RecordStore,
}

/// A schedule as it is.
#[derive(Clone, Debug)]
pub struct ScheduleView {
    /// The name of the schedule.
    pub name: String,
    /// The record of the schedule.
    pub record: ScheduleRecord,
    /// How many occurrences enter from now on, that which is put ahead included; `None`: any number.
    pub remaining: Option<u64>,
    /// The next ten occurrences of the schedule, those among them whose messages wait in their queue. Left out is what
    /// a caller has removed before it was due.
    pub next: Vec<Occurrence>,
    /// The latest occurrences, oldest first, without those that are not due yet.
    pub latest: Vec<PastOccurrence>,
    /// The occurrences, counted by outcome. Those that are not due yet do not count as entered.
    pub counts: ScheduleCounts,
    /// Why it does not run although its record can be read.
    pub error: Option<BadSettings>,
}

/// A schedule in a list.
#[derive(Clone, Debug)]
pub struct ScheduleListed {
    /// The name of the schedule.
    pub name: String,
    /// The schedule, or the reason why its record cannot be read.
    pub view: Result<Box<ScheduleView>, String>,
}

impl ScheduleView {
    /// A schedule as its record says, at this instant in ms since 1970. The messages of the instants `gone` were
    /// removed before they were due.
    fn of(name: &str, record: ScheduleRecord, now: u64, gone: &BTreeSet<u64>) -> Self {
        let (next, error) = match record.timetable() {
            Ok(table) => (record.state.upcoming(&table, now, gone), None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let mut ahead: BTreeSet<u64> = record.state.ahead(now).map(|entry| entry.at).collect();
        // An edit has found that callers had changed their messages.
        let entered = |at: &u64| record.state.latest.iter().any(|past| past.at == *at);
        ahead.extend(record.state.done_ahead.iter().filter(|at| **at > now && entered(at)));
        let latest = record.state.latest.iter().filter(|past| !ahead.contains(&past.at)).cloned().collect();
        let mut counts = record.state.counts.clone();
        counts.entered = counts.entered.saturating_sub(ahead.len() as u64);
        let removed = record.state.ahead(now).filter(|entry| gone.contains(&entry.at)).count() as u64;
        let remaining = record.state.left(now).map(|left| left.saturating_sub(removed));
        ScheduleView { name: name.to_owned(), record, remaining, next, latest, counts, error }
    }
}

/// Makes the new settings from those that a schedule has, and may change how many occurrences remain, and whether all
/// of them may have passed.
pub type SettingsChange<'a> = dyn FnMut(
        &ScheduleSettings,
        &mut Option<u64>,
        &mut PastOccurrences,
    ) -> Result<ScheduleSettings, ScheduleError>
    + Send
    + 'a;

impl Schedules {
    /// The schedules in the store of a wheel, whose limits are `policy`.
    ///
    /// # Errors
    /// The store of records has no valid name, which is a bug.
    pub fn new(wheel: &Duewheel, policy: &Policy) -> Result<Self, BadName> {
        Ok(Schedules { records: RecordStore::new(wheel, QueueName::system(QUEUE)?, policy) })
    }

    /// Creates a schedule, or gives one other settings. What an existing one owes stays owed: occurrences that were due
    /// by the former settings enter or are counted. `remaining` limits the occurrences from now on; a message that is
    /// put ahead is one of them.
    ///
    /// # Errors
    /// See [`ScheduleError`].
    ///
    /// # Cancel safety
    /// When it is dropped, the schedule may be changed or not; it is never damaged.
    pub async fn put(
        &self,
        name: &str,
        settings: ScheduleSettings,
        remaining: Option<u64>,
    ) -> Result<ScheduleView, ScheduleError> {
        self.put_within(name, settings, (remaining, PastOccurrences::Refuse), &|_| true).await
    }

    /// Sets a schedule like [`Schedules::put`], for a caller who reaches some queues only.
    ///
    /// # Errors
    /// See [`ScheduleError`]; [`ScheduleError::Taken`] if another tenant has the name.
    ///
    /// # Cancel safety
    /// As [`Schedules::put`].
    pub async fn put_within(
        &self,
        name: &str,
        settings: ScheduleSettings,
        (remaining, past): (Option<u64>, PastOccurrences),
        reaches: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<ScheduleView, ScheduleError> {
        check_name(name, MAX_SCHEDULE_NAME)?;
        loop {
            let now = self.records.now();
            if self.records.read(name).await?.is_none() {
                let record = ScheduleRecord::new(random_text(), now, settings.clone(), remaining);
                past.check(Some(&record.timetable()?), remaining, now)?;
                record.check_size(self.records.max_body)?;
                let count = self.records.count().await?;
                if count >= MAX_SCHEDULES {
                    return Err(ScheduleError::TooMany(count));
                }
                if self.records.create(name, record.bytes()).await? {
                    return Ok(ScheduleView::of(name, record, now, &BTreeSet::new()));
                }
            }
            let mut save = |record: &ScheduleRecord| {
                if !reaches(&record.settings.queue) {
                    return Err(ScheduleError::Taken);
                }
                Ok(ScheduleEdit::Save(Box::new(settings.clone()), Some(remaining), past))
            };
            match self.edit(name, &mut save).await {
                // The schedule was removed between the read and the edit.
                Err(ScheduleError::NotFound) => continue,
                other => return other.and_then(|view| view.ok_or(ScheduleError::NotFound)),
            }
        }
    }

    /// Changes the settings of a schedule, or the number of occurrences that remain: `change` gets the present ones,
    /// and may be called again.
    ///
    /// # Errors
    /// See [`ScheduleError`], and what `change` returns.
    ///
    /// # Cancel safety
    /// As [`Schedules::put`].
    pub async fn change(
        &self,
        name: &str,
        change: &mut SettingsChange<'_>,
    ) -> Result<ScheduleView, ScheduleError> {
        let mut save = |record: &ScheduleRecord| {
            let left = record.state.left(self.records.now());
            let (mut remaining, mut past) = (left, PastOccurrences::Refuse);
            let settings = change(&record.settings, &mut remaining, &mut past)?;
            let remaining = (remaining != left).then_some(remaining);
            Ok(ScheduleEdit::Save(Box::new(settings), remaining, past))
        };
        self.edit(name, &mut save).await?.ok_or(ScheduleError::NotFound)
    }

    /// Removes a schedule, and its occurrence that is not due yet. `reaches` says which queues the caller reaches.
    ///
    /// # Errors
    /// See [`ScheduleError`].
    ///
    /// # Cancel safety
    /// When it is dropped after it has begun, the worker completes it.
    pub async fn remove(
        &self,
        name: &str,
        reaches: &(dyn Fn(Option<&str>) -> bool + Sync),
    ) -> Result<(), ScheduleError> {
        let mut remove = |record: &ScheduleRecord| {
            if !reaches(Some(&record.settings.queue)) {
                return Err(ScheduleError::NotFound);
            }
            Ok(ScheduleEdit::Remove)
        };
        match self.edit(name, &mut remove).await {
            Ok(_) => Ok(()),
            // Nothing is known of what it has entered.
            Err(ScheduleError::Unreadable(_)) if reaches(None) => match self.records.read(name).await? {
                Some(row) if ScheduleRecord::read(&row.body).is_err() => {
                    Ok(self.records.remove(row.id).await?)
                }
                Some(_) | None => Err(ScheduleError::Busy),
            },
            Err(error) => Err(error),
        }
    }

    /// Returns the schedule with this name.
    ///
    /// # Errors
    /// There is none, it cannot be read, or no answer came.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn get(&self, name: &str) -> Result<ScheduleView, ScheduleError> {
        let row = self.records.read(name).await?.ok_or(ScheduleError::NotFound)?;
        let record = read(&row)?;
        if record.state.removing {
            return Err(ScheduleError::NotFound);
        }
        Ok(self.view(name, record).await?)
    }

    /// A schedule, after a look at the messages of its occurrences that are not due yet.
    async fn view(&self, name: &str, record: ScheduleRecord) -> Result<ScheduleView, CallError> {
        let now = self.records.now();
        let gone = message::gone(&self.records.client, record.state.ahead(now)).await?;
        Ok(ScheduleView::of(name, record, now, &gone))
    }

    /// Schedules by name, behind the name `after`, at most `limit`. `shown` gets the queue of each; `None` for one that
    /// cannot be read.
    ///
    /// # Errors
    /// No answer came.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn list(
        &self,
        after: Option<&str>,
        limit: usize,
        shown: &(dyn Fn(Option<&str>) -> bool + Sync),
    ) -> Result<Vec<ScheduleListed>, CallError> {
        let within = |name: &str, row: StoredRecord| {
            let record = ScheduleRecord::read(&row.body);
            let queue = record.as_ref().ok().map(|record| record.settings.queue.as_str());
            let is_shown = after.is_none_or(|after| name > after) && shown(queue);
            is_shown.then_some(())
        };
        let names = self.records.scan(within).await?;
        let mut page = Vec::new();
        for name in names.into_keys() {
            if page.len() == limit {
                break;
            }
            let Some(row) = self.records.read(&name).await? else { continue };
            let view = match ScheduleRecord::read(&row.body) {
                Ok(record) if record.state.removing => continue,
                Ok(record) => Ok(Box::new(self.view(&name, record).await?)),
                Err(error) => Err(error.to_string()),
            };
            page.push(ScheduleListed { name, view });
        }
        Ok(page)
    }

    /// The next occurrences of settings, without saving anything.
    ///
    /// # Errors
    /// [`BadSettings`] names the field.
    pub fn preview(
        &self,
        settings: &ScheduleSettings,
        from: Option<std::time::SystemTime>,
        count: usize,
    ) -> Result<Vec<Occurrence>, BadSettings> {
        let now = to_time(self.records.now());
        let table = crate::schedule::Timetable::new(settings, now)?;
        Ok(table.recurrence.upcoming(from.unwrap_or(now)).take(count).collect())
    }

    /// Applies an edit to a record that no worker holds. `None`: it is removed.
    async fn edit(&self, name: &str, job: &mut EditJob<'_>) -> Result<Option<ScheduleView>, ScheduleError> {
        let deadline = Instant::now() + EDIT_WAIT;
        loop {
            let row = self.records.read(name).await?.ok_or(ScheduleError::NotFound)?;
            let record = read(&row)?;
            if record.state.removing && record.state.held_until <= self.records.now() {
                // A removal that was interrupted: it is completed first.
                let _ = self.look(name, &row, record, 0).run(None).await?;
                continue;
            }
            // An edit that the caller may not make is refused at once, and without effect.
            job(&record)?;
            if record.state.held_until <= self.records.now() {
                let mut look = self.look(name, &row, record, 0);
                match look.run(Some(job)).await {
                    Ok(LookEnd::Removed) => return Ok(None),
                    Ok(LookEnd::Written) => {
                        return Ok(Some(self.view(name, look.record).await?));
                    }
                    Err(ScheduleError::Busy) => {}
                    Err(error) => return Err(error),
                }
            }
            if Instant::now() > deadline {
                return Err(ScheduleError::Busy);
            }
            tokio::time::sleep(HELD_PAUSE).await;
        }
    }

    pub(crate) fn look<'a>(
        &'a self,
        name: &'a str,
        row: &StoredRecord,
        record: ScheduleRecord,
        began: u64,
    ) -> Look<'a> {
        Look { records: &self.records, name, id: row.id, generation: row.generation, record, began }
    }
}

fn read(row: &StoredRecord) -> Result<ScheduleRecord, ScheduleError> {
    ScheduleRecord::read(&row.body).map_err(|error| ScheduleError::Unreadable(error.to_string()))
}
