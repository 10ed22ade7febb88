//! Records of schedules, targets and jobs: messages of a queue of their own, each with a name as its key.
//!
//! A record of a schedule or a job is due when it is to be worked on next; other records never become due. Each write
//! needs the generation that was read and raises it, so one of two concurrent writes is refused. A record is removed by
//! its id, which is never used again: one that was created anew under the name stays.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use duewheel::core::act::Act;
use duewheel::core::engine::{
    Attempt, ChangeRefusal, Edit, Enqueue, EnqueueRefusal, Grant, IfExists, Op, Past, Reserved, Target, View,
    When,
};
use duewheel::core::message::{MaxAttempts, Options};
use duewheel::core::name::{Key, QueueName};
use duewheel::core::time::{WallMs, ceil_ms};
use duewheel::core::{MessageId, Policy};
use duewheel::{CallError, Client, Duewheel};
use duewheel_shard::client::Reserve;

use crate::limits::{HELD, REMEMBERED};

/// The records, and the store that they are in. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RecordStore {
    pub(crate) client: Client,
    pub(crate) queue: QueueName,
    /// Longest record, in bytes.
    pub(crate) max_body: usize,
    /// How long answers are remembered, in ms.
    pub(crate) remembered: u64,
}

/// A record that was read.
#[derive(Clone, Debug)]
pub struct StoredRecord {
    /// The id of its message, which is never used again.
    pub id: MessageId,
    /// The generation, which each write raises.
    pub generation: u32,
    /// The content.
    pub body: Bytes,
}

/// Why a record was not written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotWritten {
    /// Another writer was first, or the record is gone: what was planned is out of date.
    #[error("another change came first")]
    Lost,
    /// The store refused the change, for this reason.
    #[error("refused: {0}")]
    Refused(ChangeRefusal),
    /// The store refused a new record, for this reason.
    #[error("refused: {0}")]
    NewRefused(EnqueueRefusal),
    /// No answer came; it may be written.
    #[error(transparent)]
    Unknown(CallError),
}

/// When a record is due.
#[derive(Clone, Copy, Debug)]
pub enum NextLook {
    /// At this instant, in ms since 1970.
    At(u64),
    /// After this time, by elapsed time: clocks that are set do not matter.
    After(Duration),
}

impl NextLook {
    fn when(self) -> When {
        match self {
            NextLook::At(ms) => When::At { due_at: WallMs(ms), past: Past::Keep },
            NextLook::After(delay) => When::After(ceil_ms(delay)),
        }
    }
}

impl RecordStore {
    /// The records in a system queue of this wheel, whose limits are `policy`.
    pub fn new(wheel: &Duewheel, queue: QueueName, policy: &Policy) -> Self {
        let remembered = ceil_ms(REMEMBERED).min(policy.max_dedupe_window_ms);
        RecordStore { client: wheel.client().clone(), queue, max_body: policy.max_body, remembered }
    }

    /// The present, in ms since 1970.
    pub(crate) fn now(&self) -> u64 {
        self.client.now().wall.0
    }

    /// Returns the record with this name.
    ///
    /// # Errors
    /// No answer came.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn read(&self, name: &str) -> Result<Option<StoredRecord>, CallError> {
        let Ok(key) = Key::new(name) else { return Ok(None) };
        let view = self.client.ask(Op::get(Target::Key(self.queue.clone(), key))).await?;
        Ok(view.map(|view| StoredRecord::of(&view)))
    }

    /// Puts a new record, which is due at once; durable when this returns. `false`: there is one already.
    ///
    /// # Errors
    /// See [`NotWritten`].
    ///
    /// # Cancel safety
    /// When the future is dropped, it is unknown whether the record is there.
    pub async fn create(&self, name: &str, body: Bytes) -> Result<bool, NotWritten> {
        let enqueue = Enqueue {
            key: Key::new(name).ok(),
            if_exists: IfExists::Reject,
            options: Options { max_attempts: Some(MaxAttempts::UNLIMITED), ..Options::default() },
            ..Enqueue::new(self.queue.clone(), body)
        };
        match self.client.ask(enqueue).await {
            Ok(Ok(_)) => Ok(true),
            Ok(Err(EnqueueRefusal::KeyExists(_))) => Ok(false),
            Ok(Err(refusal)) => Err(NotWritten::NewRefused(refusal)),
            Err(error) => Err(NotWritten::Unknown(error)),
        }
    }

    /// Writes a record over the generation that was read, and when it is due next if that changes, as part of an act if
    /// there is one. Returns the new generation; then the record is durable.
    ///
    /// # Errors
    /// See [`NotWritten`].
    ///
    /// # Cancel safety
    /// When the future is dropped, it is unknown whether it was written.
    pub async fn write(
        &self,
        (id, generation): (MessageId, u32),
        body: Bytes,
        next: Option<NextLook>,
        act: Option<&Arc<Act>>,
    ) -> Result<u32, NotWritten> {
        let edit = Edit { when: next.map(NextLook::when), body: Some(body), ..Edit::default() };
        let op = Op::postpone(Target::Own(id), Box::new(edit), Some(generation));
        match self.client.ask(op.of_act(act)).await {
            Ok(Ok(outline)) => Ok(outline.generation),
            Ok(Err(
                ChangeRefusal::GenerationMismatch(_)
                | ChangeRefusal::NotFound
                | ChangeRefusal::Leased
                | ChangeRefusal::Dead,
            )) => Err(NotWritten::Lost),
            Ok(Err(refusal)) => Err(NotWritten::Refused(refusal)),
            Err(error) => Err(NotWritten::Unknown(error)),
        }
    }

    /// Waits for records that are due, at most `max`, each under a short lease. After an error,
    /// [`RecordStore::recover`] comes before the next call.
    ///
    /// # Cancel safety
    /// When the future is dropped, what was granted comes back.
    pub(crate) async fn due(&self, max: usize) -> Result<Vec<Grant>, CallError> {
        let demand =
            Reserve { max, wait_ms: WAIT_MS, lease_ms: Some(LEASE_MS), ..Reserve::new(self.queue.clone()) };
        granted(&self.client, demand).await
    }

    /// Pauses after a reserve that failed. `None`: the wheel is closed.
    pub(crate) async fn recover(why: CallError) -> Option<()> {
        if matches!(why, CallError::Closed(_)) {
            return None;
        }
        tokio::time::sleep(PAUSE).await;
        Some(())
    }

    /// Lets a granted record come again by itself after this time, and uses up no attempt. Returns its name and content;
    /// `None`: another may have it.
    pub(crate) async fn hold<'a>(&self, grant: &'a Grant, held: Duration) -> Option<(&'a str, StoredRecord)> {
        let message = &grant.message;
        let back = Op::nack(message.id, grant.token, Attempt::NotYet, Some(ceil_ms(held)), "");
        if !matches!(self.client.ask(back).await, Ok(Ok(_))) {
            return None;
        }
        let row = StoredRecord { id: message.id, generation: grant.generation, body: message.body.clone() };
        message.key.as_ref().map(|name| (name.as_str(), row))
    }

    /// Makes a record due now. `false`: it was written since, or another has it.
    pub(crate) async fn wake(&self, (id, generation): (MessageId, u32)) -> Result<bool, CallError> {
        let edit = Edit::due(NextLook::After(Duration::ZERO).when());
        let op = Op::postpone(Target::Own(id), Box::new(edit), Some(generation));
        Ok(self.client.ask(op).await?.is_ok())
    }

    /// Removes one record, and none that was created later.
    pub(crate) async fn remove(&self, id: MessageId) -> Result<(), NotWritten> {
        match self.client.ask(Op::cancel(Target::Own(id))).await {
            Ok(Ok(_) | Err(ChangeRefusal::NotFound)) => Ok(()),
            Ok(Err(ChangeRefusal::Leased)) => Err(NotWritten::Lost),
            Ok(Err(refusal)) => Err(NotWritten::Refused(refusal)),
            Err(error) => Err(NotWritten::Unknown(error)),
        }
    }

    /// The number of records.
    pub(crate) async fn count(&self) -> Result<u64, CallError> {
        let view = self.client.ask(Op::queue(self.queue.clone())).await?;
        Ok(view.map_or(0, |view| {
            let counts = view.counts;
            counts.scheduled + counts.ready + counts.leased + counts.dead
        }))
    }

    /// The number of records that were ever created.
    pub(crate) async fn created(&self) -> Result<u64, CallError> {
        let view = self.client.ask(Op::queue(self.queue.clone())).await?;
        Ok(view.map_or(0, |view| view.totals.enqueued))
    }

    /// Calls `each` with the name and content of all records, page by page.
    pub(crate) async fn scan<T>(
        &self,
        mut each: impl FnMut(&str, StoredRecord) -> Option<T>,
    ) -> Result<BTreeMap<String, T>, CallError> {
        let mut all = BTreeMap::new();
        let mut after = None;
        loop {
            let page = self.client.list(self.queue.clone(), None, after.take(), PAGE).await?;
            for view in &page.views {
                let Some(name) = view.message.key.as_ref().map(Key::as_str) else { continue };
                if let Some(found) = each(name, StoredRecord::of(view)) {
                    all.insert(name.to_owned(), found);
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(all),
            }
        }
    }

    /// Until when a record is held that is written now, in ms since 1970.
    pub(crate) fn held_until(&self) -> u64 {
        self.now().saturating_add(ceil_ms(HELD))
    }
}

/// How long a reserve of records waits; it only limits how often an idle loop repeats.
const WAIT_MS: u64 = 60_000;
/// The lease of a record, until it is held.
const LEASE_MS: u64 = 10_000;
/// The pause after a reserve that failed.
const PAUSE: Duration = Duration::from_millis(200);
/// Records of one page of a scan.
const PAGE: usize = 256;

/// The grants of a reserve of a system queue, on which nothing but an overload can be in the way.
pub(crate) async fn granted(client: &Client, demand: Reserve) -> Result<Vec<Grant>, CallError> {
    match client.reserve(demand).await? {
        Reserved::Grants(grants) => Ok(grants),
        Reserved::DeadlineSoon | Reserved::Overloaded | Reserved::TooManyQueues | Reserved::HeldBack(_) => {
            Err(CallError::Overloaded)
        }
    }
}

impl StoredRecord {
    fn of(view: &View) -> Self {
        StoredRecord { id: view.message.id, generation: view.generation, body: view.message.body.clone() }
    }
}
