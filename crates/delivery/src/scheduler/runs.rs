//! Occurrences that people ask for: a run now, and runs of times past.

use duewheel::core::engine::{EnqueueRefusal, Enqueued};

use super::edits::Schedules;
use super::look::ScheduleError;
use super::message::OccurrenceMessage;
use crate::limits::{MAX_BACKFILL, MAX_RUN_ID};
use crate::random::random_text;
use crate::schedule::{ScheduleRecord, occurrence_key, to_ms, to_time};
use crate::settings;

/// Messages of a backfill that are enqueued together.
const TOGETHER: usize = 200;

/// The result of a backfill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backfilled {
    /// The id of the backfill: with the same one each instant enters once.
    pub id: String,
    /// The instants.
    pub instants: usize,
}

fn bad(field: &str, what: impl ToString) -> ScheduleError {
    settings::bad(field, what).into()
}

fn check_id(field: &str, id: &str) -> Result<(), ScheduleError> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if id.is_empty() || id.len() > MAX_RUN_ID || !id.bytes().all(allowed) {
        return Err(bad(
            field,
            format!("must be 1 to {MAX_RUN_ID} letters, digits, dots, hyphens and underscores"),
        ));
    }
    Ok(())
}

impl Schedules {
    /// Enters one message of a schedule, due now. It moves no cursor and skips no occurrence; `paused`, `overlap` and
    /// `remaining` do not concern it. With the same `id` it enters once within a week.
    ///
    /// # Errors
    /// See [`ScheduleError`].
    ///
    /// # Cancel safety
    /// When it is dropped, the message may have entered; try again with the same id.
    pub async fn trigger(&self, name: &str, id: Option<&str>) -> Result<Enqueued, ScheduleError> {
        self.trigger_within(name, id, &|_| true).await
    }

    /// [`Schedules::trigger`] of a schedule whose queue is within reach; another one is not found.
    ///
    /// # Errors
    /// See [`ScheduleError`].
    ///
    /// # Cancel safety
    /// As [`Schedules::trigger`].
    pub async fn trigger_within(
        &self,
        name: &str,
        id: Option<&str>,
        reaches: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Enqueued, ScheduleError> {
        if let Some(id) = id {
            check_id("dedupe_id", id)?;
        }
        let record = self.get(name).await?.record;
        if !reaches(&record.settings.queue) {
            return Err(ScheduleError::NotFound);
        }
        let now = self.records.now();
        let own = id.map_or_else(random_text, str::to_owned);
        let message = OccurrenceMessage {
            name,
            record: &record,
            at: now,
            due: now,
            key: format!("{name}@trigger/{own}"),
            dedupe_id: Some(record.trigger_id(name, &own)),
        };
        for keyed in [true, false] {
            match self.records.client.ask(message.enqueue(keyed)?).await? {
                Ok(entered) => return Ok(entered),
                Err(EnqueueRefusal::KeyExists(_)) if keyed => {}
                Err(refusal) => return Err(ScheduleError::Refused(refusal)),
            }
        }
        Err(ScheduleError::Busy)
    }

    /// Enters the occurrences from one instant to another, both included, due now, whether they have run before or
    /// not. It moves no cursor. With the same `id` each instant enters once within a week, so that a backfill that was
    /// interrupted can be repeated.
    ///
    /// # Errors
    /// See [`ScheduleError`]; more than 10,000 instants are an error, and then none enters. One that has begun ends with
    /// [`ScheduleError::Interrupted`], which has the id to repeat it.
    ///
    /// # Cancel safety
    /// When it is dropped, some may have entered; try again with the same id.
    pub async fn backfill(
        &self,
        name: &str,
        (from, to): (std::time::SystemTime, std::time::SystemTime),
        id: Option<&str>,
    ) -> Result<Backfilled, ScheduleError> {
        self.backfill_within(name, (from, to), id, &|_| true).await
    }

    /// [`Schedules::backfill`] of a schedule whose queue is within reach; another one is not found.
    ///
    /// # Errors
    /// See [`ScheduleError`].
    ///
    /// # Cancel safety
    /// As [`Schedules::backfill`].
    pub async fn backfill_within(
        &self,
        name: &str,
        (from, to): (std::time::SystemTime, std::time::SystemTime),
        id: Option<&str>,
        reaches: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Backfilled, ScheduleError> {
        if let Some(id) = id {
            check_id("id", id)?;
        }
        if to < from {
            return Err(bad("to", "is before from"));
        }
        if to > to_time(self.records.now()) {
            return Err(bad(
                "to",
                "is in the future: a backfill enters what has passed, the schedule what is to come",
            ));
        }
        let record = self.get(name).await?.record;
        if !reaches(&record.settings.queue) {
            return Err(ScheduleError::NotFound);
        }
        let instants = instants(&record, to_ms(from), to_ms(to))?;
        let id = id.map_or_else(random_text, str::to_owned);
        for some in instants.chunks(TOGETHER) {
            let entered = self.enter_some(name, &record, &id, some).await;
            entered.map_err(|why| ScheduleError::Interrupted { id: id.clone(), why: Box::new(why) })?;
        }
        Ok(Backfilled { id, instants: instants.len() })
    }

    async fn enter_some(
        &self,
        name: &str,
        record: &ScheduleRecord,
        id: &str,
        instants: &[u64],
    ) -> Result<(), ScheduleError> {
        let now = self.records.now();
        let message = |at: &u64| OccurrenceMessage {
            name,
            record,
            at: *at,
            due: now,
            key: format!("{}/{id}", occurrence_key(name, *at)),
            dedupe_id: Some(record.backfill_id(name, id, *at)),
        };
        let mut lacking: Vec<_> = instants.iter().map(message).collect();
        for keyed in [true, false] {
            let ops = lacking.iter().map(|m| m.enqueue(keyed)).collect::<Result<Vec<_>, _>>()?;
            let answers = self.records.client.ask_many(ops).await?;
            let mut taken = Vec::new();
            for (message, answer) in lacking.into_iter().zip(answers) {
                match answer? {
                    Ok(_) => {}
                    Err(EnqueueRefusal::KeyExists(_)) if keyed => taken.push(message),
                    Err(refusal) => return Err(ScheduleError::Refused(refusal)),
                }
            }
            lacking = taken;
            if lacking.is_empty() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// The instants of a backfill. They are counted before any message is made.
fn instants(record: &ScheduleRecord, from: u64, to: u64) -> Result<Vec<u64>, ScheduleError> {
    let table = record.timetable()?;
    let after = to_time(from.saturating_sub(1));
    let within = table.recurrence.upcoming(after).map(|found| to_ms(found.at)).take_while(|at| *at <= to);
    let instants: Vec<u64> = within.take(MAX_BACKFILL + 1).collect();
    if instants.len() > MAX_BACKFILL {
        return Err(bad("to", format!("leaves more than {MAX_BACKFILL} occurrences")));
    }
    Ok(instants)
}
