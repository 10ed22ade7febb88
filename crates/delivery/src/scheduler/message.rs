//! The messages of occurrences: how they are enqueued, and how they are taken back.

use std::collections::BTreeSet;

use bytes::Bytes;
use duewheel::core::MessageId;
use duewheel::core::engine::{
    ChangeRefusal, Edit, Enqueue, EnqueueRefusal, Enqueued, Op, Past, Target, When,
};
use duewheel::core::message::{Headers, State};
use duewheel::core::name::{Key, QueueName};
use duewheel::core::policy::OWN_DEDUPE;
use duewheel::core::time::{WallMs, ceil_ms};
use duewheel::{CallError, Client};
use tokio::task::JoinSet;

use crate::limits::{DUE_WAIT, REMEMBERED};
use crate::schedule::{
    DueAnswer, EnterOutcome, PreviousRun, ScheduleEntry, ScheduleRecord, TakeBack, TakeOutcome, instant_text,
    occurrence_key,
};
use crate::settings::{BadSettings, bad};

/// The header with the name of the schedule.
const SCHEDULE: &str = "duewheel-schedule";
/// The header with the nominal instant.
const OCCURRENCE: &str = "duewheel-occurrence";
/// The header of a message that is taken back, with the record's own id.
const WITHDRAWN: &str = "duewheel-withdrawn";

/// The message of one occurrence.
pub(crate) struct OccurrenceMessage<'a> {
    pub(crate) name: &'a str,
    pub(crate) record: &'a ScheduleRecord,
    pub(crate) at: u64,
    pub(crate) due: u64,
    /// The key of the message, which begins with the schedule's name.
    pub(crate) key: String,
    pub(crate) dedupe_id: Option<String>,
}

impl<'a> OccurrenceMessage<'a> {
    pub(crate) fn of(name: &'a str, record: &'a ScheduleRecord, entry: &ScheduleEntry) -> Self {
        OccurrenceMessage {
            name,
            record,
            at: entry.at,
            due: entry.due,
            key: occurrence_key(name, entry.at),
            dedupe_id: Some(record.dedupe_id(name, entry)),
        }
    }

    /// The enqueue. Without its key if another message has that.
    pub(crate) fn enqueue(&self, keyed: bool) -> Result<Enqueue, BadSettings> {
        let settings = &self.record.settings;
        let queue = QueueName::new(&settings.queue).map_err(|e| bad("queue", e))?;
        let mut headers: Headers = settings
            .headers
            .iter()
            .map(|(name, value)| (name.as_str().into(), value.as_str().into()))
            .collect();
        headers.push((SCHEDULE.into(), self.name.into()));
        headers.push((OCCURRENCE.into(), instant_text(self.at).into()));
        Ok(Enqueue {
            key: if keyed { Key::new(&self.key).ok() } else { None },
            headers,
            when: When::At { due_at: WallMs(self.due), past: Past::Keep },
            dedupe_id: self.dedupe_id.as_ref().map(|id| format!("{OWN_DEDUPE}{id}").into()),
            ..Enqueue::new(queue, settings.body.clone())
        })
    }
}

/// Converts the answer to an enqueue into the outcome of its occurrence. `None`: the key is taken, and the enqueue is
/// to be repeated without one.
pub(crate) fn outcome(
    answer: Result<Result<Enqueued, EnqueueRefusal>, CallError>,
    keyed: bool,
) -> Option<EnterOutcome> {
    match answer {
        Ok(Ok(entered)) => {
            Some(EnterOutcome::Entered { id: entered.id.0, generation: entered.generation, keyed })
        }
        Ok(Err(EnqueueRefusal::KeyExists(_))) if keyed => None,
        Ok(Err(refusal)) => Some(EnterOutcome::Refused(words(&refusal).to_owned())),
        Err(_) => Some(EnterOutcome::Unknown),
    }
}

/// Why a queue refuses an occurrence, in words that name no queue.
fn words(refusal: &EnqueueRefusal) -> &'static str {
    match refusal {
        EnqueueRefusal::KeyExists(_) | EnqueueRefusal::Leased(_) | EnqueueRefusal::DedupeMismatch(_) => {
            "its key is taken"
        }
        EnqueueRefusal::InThePast | EnqueueRefusal::Expired | EnqueueRefusal::TooFar(_) => {
            "its time is out of range"
        }
        EnqueueRefusal::TooLarge(..) => "it is too large",
        EnqueueRefusal::OutOfRange(_) => "a value of it is out of range",
        EnqueueRefusal::Overloaded(_) => "a limit of the server is reached",
        EnqueueRefusal::Busy => "the store is behind",
        EnqueueRefusal::DiskFull => "the disk is full",
        EnqueueRefusal::OverQuota(_) => "a quota is used up",
    }
}

/// Makes sure that a message cannot be delivered any more, if nobody has touched it: it gets a mark and a later time.
/// A message that is judged again may be ready, if it was never delivered.
pub(crate) async fn take(client: &Client, mark: &str, take: &TakeBack) -> TakeOutcome {
    let entry = &take.entry;
    let Some(id) = entry.id.map(MessageId) else { return TakeOutcome::Gone };
    let view = match client.ask(Op::get(Target::Id(id))).await {
        Ok(Some(view)) => view,
        Ok(None) if client.now().wall.0 < entry.due => return TakeOutcome::Removed,
        Ok(None) => return TakeOutcome::Gone,
        Err(_) => return TakeOutcome::Unknown,
    };
    if view.message.headers.iter().any(|(name, value)| &**name == WITHDRAWN && &**value == mark) {
        return TakeOutcome::Taken;
    }
    if view.state != State::Scheduled || view.generation != entry.generation {
        return TakeOutcome::Gone;
    }
    let edit = Edit {
        when: Some(When::After(ceil_ms(REMEMBERED))),
        headers: Some(vec![(WITHDRAWN.into(), mark.into())]),
        body: Some(Bytes::new()),
        ..Edit::default()
    };
    match client.ask(Op::postpone(Target::Id(id), Box::new(edit), Some(entry.generation))).await {
        Ok(Ok(_)) => TakeOutcome::Taken,
        Ok(Err(
            ChangeRefusal::NotFound
            | ChangeRefusal::Leased
            | ChangeRefusal::Dead
            | ChangeRefusal::GenerationMismatch(_),
        )) => TakeOutcome::Gone,
        Ok(Err(_)) | Err(_) => TakeOutcome::Unknown,
    }
}

/// The instants of those entries whose messages are not in their queue any more, and are not due yet either.
pub(crate) async fn gone<'a>(
    client: &Client,
    entries: impl Iterator<Item = &'a ScheduleEntry>,
) -> Result<BTreeSet<u64>, CallError> {
    let known = entries.filter_map(|entry| Some((entry, Op::get(Target::Id(MessageId(entry.id?))))));
    let (entries, looks): (Vec<_>, Vec<_>) = known.unzip();
    let mut gone = BTreeSet::new();
    if !looks.is_empty() {
        for (entry, found) in entries.into_iter().zip(client.ask_many(looks).await?) {
            if found?.is_none() && client.now().wall.0 < entry.due {
                gone.insert(entry.at);
            }
        }
    }
    Ok(gone)
}

/// Removes a message that was taken back. Whether it is gone.
pub(crate) async fn erase(client: &Client, id: u64) -> bool {
    match client.ask(Op::cancel(Target::Id(MessageId(id)))).await {
        Ok(Ok(_) | Err(ChangeRefusal::NotFound | ChangeRefusal::Leased | ChangeRefusal::Dead)) => true,
        Ok(Err(_)) | Err(_) => false,
    }
}

/// Whether the messages of occurrences that are due have entered, by their instants.
pub(crate) async fn due_answers(client: &Client, entries: &[ScheduleEntry]) -> Vec<(u64, DueAnswer)> {
    let mut asked = JoinSet::new();
    for entry in entries {
        let (client, at, generation) = (client.clone(), entry.at, entry.generation);
        let Some(id) = entry.id.map(MessageId) else { continue };
        asked.spawn(async move {
            let answer = match tokio::time::timeout(DUE_WAIT, client.ask(Op::outline(id))).await {
                Ok(Ok(Ok(outline)))
                    if outline.state == State::Scheduled && outline.generation == generation =>
                {
                    // By the clock of a shard that is behind it may not be due.
                    if outline.due_in_ms == 0 { DueAnswer::Scheduled } else { DueAnswer::Unknown }
                }
                Ok(Ok(Ok(_) | Err(ChangeRefusal::NotFound))) => DueAnswer::Entered,
                Ok(Ok(Err(_)) | Err(_)) | Err(_) => DueAnswer::Unknown,
            };
            (at, answer)
        });
    }
    let mut answers = Vec::with_capacity(entries.len());
    while let Some(answer) = asked.join_next().await {
        // An error is a bug in the ask: no answer.
        answers.extend(answer.ok());
    }
    answers
}

/// Whether a message is settled. `None`: no answer came.
pub(crate) async fn is_settled(client: &Client, id: u64) -> Option<PreviousRun> {
    match client.ask(Op::outline(MessageId(id))).await {
        Ok(Ok(outline)) if outline.state == State::Dead => Some(PreviousRun::Settled),
        Ok(Ok(_)) => Some(PreviousRun::Unsettled),
        Ok(Err(ChangeRefusal::NotFound)) => Some(PreviousRun::Settled),
        Ok(Err(_)) | Err(_) => None,
    }
}
