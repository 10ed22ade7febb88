//! The latest attempts of messages that have failed, or stay readable when they are done, for people to read.
//!
//! Each message has a record in a system queue, with the message's id as its key. A record is due a day after it was
//! written: it is removed then if its message was gone for that long, and looked at again a day later otherwise. A done
//! message that its queue keeps is not gone. Nothing waits for a record: attempts that cannot be written are counted
//! and left out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duewheel::core::engine::{Enqueue, EnqueueRefusal, Grant, IfExists, Op, Target, View, When};
use duewheel::core::message::{MaxAttempts, Options, State};
use duewheel::core::name::{Key, QueueName};
use duewheel::core::record::Created;
use duewheel::core::time::{WallMs, ceil_ms};
use duewheel::core::{MessageId, Policy};
use duewheel::{CallError, Client};
use duewheel_shard::listing::ListPositions;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::client::PushOutcome;
use crate::limits::{KEEP_ATTEMPTS, KEPT_ATTEMPTS, MAX_ATTEMPT_RECORDS, WAITING_ATTEMPTS, WRITTEN_ATTEMPTS};
use crate::records::{NextLook, RecordStore};

/// The queue of the records.
const QUEUE: &str = "#attempts";
/// Records that are looked at together.
const LOOKED_AT: usize = 64;
/// How often the number of records is counted.
const COUNT_AGAIN: Duration = Duration::from_secs(10);
/// Records that are looked at together, the oldest first, when there are too many.
const LOOKED_AT_FOR_ROOM: usize = 512;
/// Records that are then removed, at least, if there are so many of messages that have ended.
const ROOM_MADE: usize = 128;
/// The pause after a call that failed.
const PAUSE: Duration = Duration::from_millis(200);
/// How often a record is written that another node looks at.
const TRIES: u32 = 5;

/// An attempt to deliver a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryAttempt {
    /// When it began, in ms since 1970.
    pub at_ms: u64,
    /// How long it took, in ms.
    pub ms: u64,
    /// The status of the answer, if there was one.
    pub status: Option<u16>,
    /// How it ended, in a word: `status_500`, `timeout`, …
    pub class: String,
    /// The first KiB of the answer, as of [`PushOutcome`].
    pub answer: String,
}

impl DeliveryAttempt {
    /// A request that began at `at`.
    pub(crate) fn of(at: WallMs, outcome: &PushOutcome) -> Self {
        DeliveryAttempt {
            at_ms: at.0,
            ms: ceil_ms(outcome.took),
            status: outcome.class.status(),
            class: outcome.class.to_string(),
            answer: outcome.answer.clone(),
        }
    }
}

/// The attempts of a message that are kept, oldest first: the last ten, from the first on that has not delivered it,
/// because it failed or was snoozed. Empty if there was none and its queue keeps no done messages, or a day after the
/// message is gone.
///
/// # Errors
/// When the store gave no answer.
///
/// # Cancel safety
/// Cancel safe.
pub async fn deliveries(client: &Client, id: MessageId) -> Result<Vec<DeliveryAttempt>, CallError> {
    let Some((queue, key)) = place(id) else { return Ok(Vec::new()) };
    let view = client.ask(Op::get(Target::Key(queue, key))).await?;
    Ok(view.map(|view| AttemptRecord::read(&view.message.body).attempts).unwrap_or_default())
}

/// Where the record of a message is.
fn place(id: MessageId) -> Option<(QueueName, Key)> {
    Some((QueueName::system(QUEUE).ok()?, Key::new(&id.to_string()).ok()?))
}

/// The record of one message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct AttemptRecord {
    attempts: Vec<DeliveryAttempt>,
    /// Whether the message was gone when the record was written.
    gone: bool,
}

impl AttemptRecord {
    /// An unreadable record is an empty one: it is written anew.
    fn read(body: &[u8]) -> Self {
        serde_json::from_slice(body).unwrap_or_default()
    }

    fn bytes(&self) -> bytes::Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    fn add(&mut self, notes: &[AttemptNote]) {
        self.attempts.extend(notes.iter().map(|note| note.attempt.clone()));
        // An attempt may be noted after the next one, which begins when the message is given back.
        self.attempts.sort_by_key(|attempt| attempt.at_ms);
        let surplus = self.attempts.len().saturating_sub(KEPT_ATTEMPTS);
        self.attempts.drain(..surplus);
        self.gone = notes.iter().any(|note| note.gone);
    }
}

/// An attempt that has ended, to be kept.
#[derive(Clone, Debug)]
pub(crate) struct AttemptNote {
    pub(crate) id: MessageId,
    pub(crate) attempt: DeliveryAttempt,
    /// Whether it is kept although there is no record: it was the first attempt, or has not delivered the message, which
    /// has failed or is postponed as the target has asked for.
    pub(crate) begins: bool,
    /// Whether the message is done.
    pub(crate) gone: bool,
}

/// Where pushers leave attempts. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct AttemptLog {
    notes: mpsc::Sender<AttemptNote>,
    lost: Arc<AtomicU64>,
}

/// Writes attempts, and removes old ones, until it is stopped.
#[derive(Debug)]
pub(crate) struct AttemptWriter {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl AttemptLog {
    /// Starts a writer on the runtime of the caller.
    pub(crate) fn start(client: &Client) -> Result<(Self, AttemptWriter), duewheel::core::name::BadName> {
        AttemptLog::start_with(client, MAX_ATTEMPT_RECORDS)
    }

    /// Starts a writer that keeps so many records at most.
    fn start_with(
        client: &Client,
        most: u64,
    ) -> Result<(Self, AttemptWriter), duewheel::core::name::BadName> {
        let (notes, waiting) = mpsc::channel(WAITING_ATTEMPTS);
        let keeper = AttemptKeeper::new(client, most)?;
        let lost = keeper.lost.clone();
        let stop = watch::Sender::new(false);
        let task = tokio::spawn(keeper.work(waiting, stop.subscribe()));
        Ok((AttemptLog { notes, lost }, AttemptWriter { stop, task }))
    }

    /// Leaves an attempt to be written, without waiting.
    pub(crate) fn note(&self, note: AttemptNote) {
        if self.notes.try_send(note).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Attempts that were not kept.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl AttemptWriter {
    /// Writes what waits, and ends.
    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        drop(self.task.await);
    }
}

struct AttemptKeeper {
    records: RecordStore,
    lost: Arc<AtomicU64>,
    /// The number of records, and when they were counted.
    count: Option<(u64, Instant)>,
    /// The most that there may be.
    most: u64,
    room: RoomSearch,
}

/// How far the search for records that make room has come. Those of living messages are not looked at again for each batch
/// of attempts.
#[derive(Clone, Debug)]
enum RoomSearch {
    /// The search goes on behind this position; `None`: at the oldest record.
    Behind(Option<ListPositions>),
    /// All were looked at; it begins again at this instant.
    Resting(Instant),
}

impl AttemptKeeper {
    fn new(client: &Client, most: u64) -> Result<Self, duewheel::core::name::BadName> {
        Ok(AttemptKeeper {
            records: RecordStore::over(client, QueueName::system(QUEUE)?, &Policy::default()),
            lost: Arc::default(),
            count: None,
            most,
            room: RoomSearch::Behind(None),
        })
    }

    async fn work(mut self, mut waiting: mpsc::Receiver<AttemptNote>, mut stop: watch::Receiver<bool>) {
        let records = self.records.clone();
        let mut due = Box::pin(due(records.clone(), Duration::ZERO));
        loop {
            let mut notes = Vec::new();
            // In any order: neither many attempts nor many old records keep the others waiting.
            tokio::select! {
                // Attempts that are still in the channel are written before the end.
                () = async { drop(stop.wait_for(|stop| *stop).await) }, if !waiting.is_closed() => waiting.close(),
                _ = waiting.recv_many(&mut notes, WRITTEN_ATTEMPTS) => {
                    if notes.is_empty() {
                        return;
                    }
                    self.write(notes).await;
                }
                granted = &mut due, if !waiting.is_closed() => {
                    let pause = if granted.is_err() { PAUSE } else { Duration::ZERO };
                    if let Ok(grants) = granted {
                        self.sweep(grants).await;
                    }
                    due = Box::pin(self::due(records.clone(), pause));
                }
            }
        }
    }

    /// Adds attempts to the records of their messages.
    async fn write(&mut self, notes: Vec<AttemptNote>) {
        let mut of: BTreeMap<String, Vec<AttemptNote>> = BTreeMap::new();
        for note in notes {
            of.entry(note.id.to_string()).or_default().push(note);
        }
        for tries in 1..=TRIES {
            of = self.write_once(of).await;
            if of.is_empty() {
                return;
            }
            if tries < TRIES {
                tokio::time::sleep(PAUSE).await;
            }
        }
        let lost: usize = of.values().map(Vec::len).sum();
        self.count_lost(lost);
    }

    /// Returns what is to be written again: another node looks at the record, or the store is behind.
    async fn write_once(
        &mut self,
        of: BTreeMap<String, Vec<AttemptNote>>,
    ) -> BTreeMap<String, Vec<AttemptNote>> {
        let key = |id: &String| Key::new(id).ok().map(|key| Target::Key(self.records.queue.clone(), key));
        let gets = of.keys().filter_map(key).map(Op::get).collect();
        let Ok(views) = self.records.client.ask_many(gets).await else { return of };
        let new = views.iter().filter(|view| matches!(view, Ok(None))).count();
        let full = self.is_full().await && !self.make_room(new).await;
        let (mut again, mut writing, mut enqueues) = (BTreeMap::new(), Vec::new(), Vec::new());
        for ((id, notes), view) in of.into_iter().zip(views) {
            let Ok(view) = view else {
                again.insert(id, notes);
                continue;
            };
            match self.enqueue(&id, &notes, view.as_deref(), full) {
                Some(enqueue) => {
                    writing.push((id, notes));
                    enqueues.push(enqueue);
                }
                None if notes.iter().any(|note| note.begins) => self.count_lost(notes.len()),
                None => {}
            }
        }
        let Ok(answers) = self.records.client.ask_many(enqueues).await else {
            again.extend(writing);
            return again;
        };
        let mut new = 0;
        for ((id, notes), answer) in writing.into_iter().zip(answers) {
            match answer {
                Ok(Ok(enqueued)) => new += u64::from(enqueued.created == Created::New),
                Ok(Err(EnqueueRefusal::Leased(_) | EnqueueRefusal::Busy)) | Err(_) => {
                    again.insert(id, notes);
                }
                Ok(Err(_)) => self.count_lost(notes.len()),
            }
        }
        if let Some((records, _)) = &mut self.count {
            *records += new;
        }
        again
    }

    /// The record with these attempts. `None`: nothing is to be kept.
    fn enqueue(&self, id: &str, notes: &[AttemptNote], view: Option<&View>, full: bool) -> Option<Enqueue> {
        let mut record = match view {
            Some(view) => AttemptRecord::read(&view.message.body),
            // A success behind failures that were not kept says little.
            None if full || !notes.iter().any(|note| note.begins) => return None,
            None => AttemptRecord::default(),
        };
        record.add(notes);
        Some(Enqueue {
            key: Key::new(id).ok(),
            if_exists: IfExists::Replace,
            when: When::After(ceil_ms(KEEP_ATTEMPTS)),
            options: Options { max_attempts: Some(MaxAttempts::UNLIMITED), ..Options::default() },
            ..Enqueue::new(self.records.queue.clone(), record.bytes())
        })
    }

    /// Whether there are as many records as there may be.
    async fn is_full(&mut self) -> bool {
        if self.count.is_none_or(|(_, at)| at.elapsed() >= COUNT_AGAIN)
            && let Ok(records) = self.records.count().await
        {
            self.count = Some((records, Instant::now()));
        }
        self.count.is_some_and(|(records, _)| records >= self.most)
    }

    /// Removes records of messages that have ended, the oldest first, until there is room for `new` more. Returns
    /// whether there is. It looks at one page and goes on behind it the next time; behind the last page it rests.
    async fn make_room(&mut self, new: usize) -> bool {
        let after = match &self.room {
            RoomSearch::Resting(until) if Instant::now() < *until => return false,
            RoomSearch::Resting(_) => None,
            RoomSearch::Behind(after) => after.clone(),
        };
        self.room = RoomSearch::Behind(after.clone());
        let queue = self.records.queue.clone();
        let list = self.records.client.list(queue, Some(State::Scheduled), after.clone(), LOOKED_AT_FOR_ROOM);
        let Ok(page) = list.await else { return false };
        let of = |view: &View| view.message.key.as_ref().and_then(|key| key.as_str().parse().ok());
        let records: Vec<(MessageId, MessageId)> =
            page.views.iter().filter_map(|view| Some((view.message.id, of(view)?))).collect();
        let recalls = records.iter().map(|(_, of)| Op::recall(Target::Id(*of))).collect();
        let Ok(views) = self.records.client.ask_many(recalls).await else { return false };
        let has_ended = |view: &Option<Box<View>>| {
            view.as_ref().is_none_or(|view| matches!(view.state, State::Dead | State::Done))
        };
        let ended = records.iter().zip(views).filter(|(_, view)| view.as_ref().is_ok_and(has_ended));
        let mut cancels: Vec<_> = ended.map(|((record, _), _)| Op::cancel(Target::Own(*record))).collect();
        let most = new.max(ROOM_MADE);
        self.room = match page.next {
            // The next call continues with the rest of this page.
            _ if cancels.len() > most => RoomSearch::Behind(after),
            None => RoomSearch::Resting(Instant::now() + COUNT_AGAIN),
            next => RoomSearch::Behind(next),
        };
        cancels.truncate(most);
        let Ok(answers) = self.records.client.ask_many(cancels).await else { return false };
        let removed = answers.iter().filter(|answer| matches!(answer, Ok(Ok(_)))).count();
        if let Some((records, _)) = &mut self.count {
            *records = records.saturating_sub(u64::try_from(removed).unwrap_or(0));
        }
        removed >= new
    }

    fn count_lost(&self, lost: usize) {
        self.lost.fetch_add(u64::try_from(lost).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Looks at records that are due. What does not end here is looked at again when the lease has run out.
    async fn sweep(&self, grants: Vec<Grant>) {
        for grant in grants {
            let of: Option<MessageId> = grant.message.key.as_ref().and_then(|key| key.as_str().parse().ok());
            let exists = match of {
                None => false,
                // A done message that is kept exists.
                Some(of) => match self.records.client.ask(Op::recall(Target::Id(of))).await {
                    Ok(view) => view.is_some(),
                    Err(_) => continue,
                },
            };
            let mut record = AttemptRecord::read(&grant.message.body);
            if !exists && (record.gone || of.is_none()) {
                drop(self.records.client.ask(Op::ack(grant.message.id, grant.token)).await);
                continue;
            }
            let back = self.records.hold(&grant, KEEP_ATTEMPTS).await;
            if let Some((_, row)) = back
                && !exists
            {
                record.gone = true;
                let later = Some(NextLook::After(KEEP_ATTEMPTS));
                // If it fails, the message is found gone a day later.
                drop(self.records.write((row.id, row.generation), record.bytes(), later, None).await);
            }
        }
    }
}

/// Waits for records that are due.
async fn due(records: RecordStore, pause: Duration) -> Result<Vec<Grant>, CallError> {
    tokio::time::sleep(pause).await;
    records.due(LOOKED_AT).await
}

#[cfg(test)]
mod tests {
    use duewheel::Duewheel;
    use duewheel::core::engine::Reserved;
    use duewheel_shard::client::Reserve;

    use super::*;

    async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !done().await {
            assert!(Instant::now() < deadline, "waited in vain until {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A failure of a message.
    fn note(id: MessageId) -> AttemptNote {
        let attempt = DeliveryAttempt {
            at_ms: 1,
            ms: 1,
            status: Some(500),
            class: "status_500".into(),
            answer: String::new(),
        };
        AttemptNote { id, attempt, begins: true, gone: false }
    }

    /// Story: each batch of attempts looked at the same 512 oldest records again, all of living messages, and never at
    /// those behind them.
    #[tokio::test]
    async fn room_search_continues_past_living_messages() {
        let wheel = Duewheel::builder().in_memory().open().await.unwrap();
        let client = wheel.client();
        let mut keeper = AttemptKeeper::new(client, 600).unwrap();
        let mut ids = Vec::new();
        for _ in 0..600 {
            let later = wheel.queue("q").body("x").delay(duewheel::HOUR);
            ids.push(later.enqueue().await.unwrap().id);
        }
        for some in ids.chunks(WRITTEN_ATTEMPTS) {
            keeper.write(some.iter().map(|id| note(*id)).collect()).await;
        }
        assert!(keeper.is_full().await);
        client.ask(Op::cancel(Target::Id(ids[599]))).await.unwrap().unwrap();
        assert!(!keeper.make_room(1).await, "the first 512 live");
        assert!(matches!(&keeper.room, RoomSearch::Behind(Some(_))), "{:?}", keeper.room);
        assert!(keeper.make_room(1).await, "the last one has ended");
        // All were looked at: for ten seconds it looks at none.
        client.ask(Op::cancel(Target::Id(ids[0]))).await.unwrap().unwrap();
        assert!(matches!(keeper.room, RoomSearch::Resting(_)), "{:?}", keeper.room);
        assert!(!keeper.make_room(1).await);
        keeper.room = RoomSearch::Resting(Instant::now());
        assert!(keeper.make_room(1).await, "then it begins at the oldest");
    }

    /// Story: dead messages stay for good, and so did their records, until those of living messages had no room.
    #[tokio::test]
    async fn records_of_ended_messages_make_room() {
        let wheel = Duewheel::builder().in_memory().open().await.unwrap();
        let client = wheel.client();
        let (log, writer) = AttemptLog::start_with(client, 3).unwrap();
        let kept = async |id: MessageId| !deliveries(client, id).await.unwrap().is_empty();
        let mut ids = Vec::new();
        for n in 0..5 {
            ids.push(wheel.queue("q").body("x").delay(duewheel::HOUR * n).enqueue().await.unwrap().id);
        }
        // The first one is dead, the others wait.
        let Ok(Reserved::Grants(grants)) = client.reserve(Reserve::new(QueueName::new("q").unwrap())).await
        else {
            panic!("a grant")
        };
        for id in &ids[..3] {
            log.note(note(*id));
            until("it is kept", async || kept(*id).await).await;
        }
        client.ask(Op::bury(ids[0], grants[0].token, "")).await.unwrap().unwrap();
        log.note(note(ids[3]));
        until("the fourth is kept", async || kept(ids[3]).await).await;
        assert!(!kept(ids[0]).await, "the dead one has made room");
        assert!(kept(ids[1]).await && kept(ids[2]).await);
        // Those that wait do not.
        log.note(note(ids[4]));
        until("it is counted", async || log.lost() == 1).await;
        assert!(!kept(ids[4]).await);
        writer.stop().await;
    }
}
