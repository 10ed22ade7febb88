//! The users' operations on targets: put, read, list, pause, remove.

use std::collections::BTreeMap;
use std::time::SystemTime;

use bytes::Bytes;
use duewheel::core::engine::{Enqueue, IfExists, Op, Target};
use duewheel::core::message::{MaxAttempts, Options};
use duewheel::core::name::{BadName, Key, QueueName};
use duewheel::core::{MessageId, Policy};
use duewheel::{CallError, Duewheel, STORE_QUEUE};

use super::record::{ShownTarget, TargetError, TargetPause, TargetRecord};
use super::seal::Sealing;
use crate::client::{PushClient, PushOutcome};
use crate::limits::{MAX_TARGET_NAME, MAX_TARGETS, TARGET_TRIES};
use crate::random::random_text;
use crate::records::{NotWritten, RecordStore, StoredRecord};
use crate::request::{PushRequest, webhook_id};
use crate::settings::check_name;
use crate::target::{PushTarget, TargetSettings};

/// The queue of the records of targets.
const TARGETS: &str = "#targets";
/// The queue of the records of which queue goes to which target.
const ROUTES: &str = "#target-queues";
/// The queue of the records of what nodes see of their targets.
const STAGES: &str = "#target-stages";
/// The queue of the stamp.
const STAMPS: &str = "#target-stamp";
/// The name of the stamp, which each edit raises: who sees it raised reads all targets.
const STAMP: &str = "stamp";
/// The name of the record that has the store's random id.
const STORE_ID: &str = "id";

/// The body of a test request.
const TEST_BODY: &[u8] = br#"{"type":"duewheel.test"}"#;
/// The queue that a test names; there need not be one.
const TEST_QUEUE: &str = "duewheel.test";

/// The targets of a store, and the queues that are delivered to them. Cheap to clone.
///
/// An edit is durable when a call has returned. The [`TargetService`](crate::TargetService) of each node follows it
/// within about a second.
///
/// ```
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use duewheel::core::name::QueueName;
/// use duewheel::{Duewheel, Policy};
/// use duewheel_delivery::{Sealing, TargetService, TargetSettings, Targets};
///
/// let wheel = Duewheel::builder().in_memory().open().await?;
/// let targets = Targets::new(&wheel, &Policy::default(), Sealing::Open)?;
/// let service = TargetService::start(&wheel, &targets);
/// let queue = QueueName::new("close-review")?;
/// targets.put("shop", &TargetSettings::new("https://example.com/close-review")).await?;
/// targets.choose(&queue, Some("shop"), &|_| true).await?;
/// assert_eq!(targets.target_of(&queue).await?.as_deref(), Some("shop"));
/// service.stop(Duration::from_secs(10)).await;
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Targets {
    pub(super) targets: RecordStore,
    pub(super) routes: RecordStore,
    pub(super) stages: RecordStore,
    stamps: RecordStore,
    pub(super) sealing: Sealing,
}

/// A target as its record says. It holds no secret.
#[derive(Clone, Debug)]
pub struct TargetView {
    /// The name of the target.
    pub name: String,
    /// When it was created, in ms since 1970.
    pub created_ms: u64,
    /// The settings of the target; `None` if the record cannot be read.
    pub shown: Option<ShownTarget>,
    /// Why it is paused, if it is.
    pub paused: Option<TargetPause>,
    /// Why nothing is delivered to it until it is put anew, if that is so.
    pub error: Option<String>,
    /// The queues that are delivered to it.
    pub queues: Vec<QueueName>,
}

/// The contents of the records of all targets.
pub(super) struct AllTargets {
    /// The targets that can be delivered to, by name.
    pub(super) ready: BTreeMap<String, ReadyTarget>,
    /// Why the others cannot.
    pub(super) broken: BTreeMap<String, String>,
    /// Number of targets whose secrets are stored in the clear.
    pub(super) open: usize,
}

/// A target that can be delivered to.
pub(super) struct ReadyTarget {
    pub(super) row: RowMark,
    /// `None`: its record is as the caller knows it.
    pub(super) target: Option<PushTarget>,
    pub(super) queues: Vec<QueueName>,
    pub(super) paused: Option<String>,
}

/// The version of a record: its id and generation, which differ after each change.
pub(super) type RowMark = (MessageId, u32);

/// The reason of a pause that has none.
const BY_HAND: &str = "paused by hand";

/// The result of a test request to a target.
#[derive(Clone, Debug)]
pub struct TestedTarget {
    /// When the request was sent.
    pub at: SystemTime,
    /// The `webhook-id` of the request.
    pub webhook_id: String,
    /// How it ended.
    pub outcome: PushOutcome,
}

impl Targets {
    /// The targets in the store of a wheel, whose limits are `policy`.
    ///
    /// # Errors
    /// A queue of records has no valid name, which is a bug.
    pub fn new(wheel: &Duewheel, policy: &Policy, sealing: Sealing) -> Result<Self, BadName> {
        let records = |queue| QueueName::system(queue).map(|queue| RecordStore::new(wheel, queue, policy));
        Ok(Targets {
            targets: records(TARGETS)?,
            routes: records(ROUTES)?,
            stages: records(STAGES)?,
            stamps: records(STAMPS)?,
            sealing,
        })
    }

    /// Creates a target, or gives one other settings. A pause stays.
    ///
    /// # Errors
    /// See [`TargetError`]; [`TargetError::InUse`] if a queue that is delivered to it is none of `settings.queues`.
    ///
    /// # Cancel safety
    /// When it is dropped, the target may be changed or not.
    pub async fn put(&self, name: &str, settings: &TargetSettings) -> Result<TargetView, TargetError> {
        check_name(name, MAX_TARGET_NAME)?;
        for _ in 0..TARGET_TRIES {
            let before = self.targets.read(name).await?;
            // A record that cannot be read is replaced as if it were new.
            let known = before.as_ref().and_then(|row| TargetRecord::read(&row.body).ok());
            let now = self.targets.now();
            let record = TargetRecord::new(name, settings, &self.sealing, known.as_ref(), now)?;
            record.check_size(self.targets.max_body)?;
            let queues = self.queues_of(name).await?;
            let left: Vec<_> = queues.iter().filter(|queue| !record.shown.serves(queue)).cloned().collect();
            if !left.is_empty() {
                return Err(TargetError::InUse(left));
            }
            let written = match &before {
                Some(row) => self.write(row, record.bytes()).await?,
                None => {
                    let count = self.targets.count().await?;
                    if count >= MAX_TARGETS {
                        return Err(TargetError::TooMany(count, "targets"));
                    }
                    self.targets.create(name, record.bytes()).await?
                }
            };
            if written {
                self.raise_stamp().await;
                self.forget_stage(name).await;
                return Ok(view_of(name, Ok(record), None, queues));
            }
        }
        Err(TargetError::Busy)
    }

    /// Writes a record over what was read. `false`: another was quicker.
    async fn write(&self, row: &StoredRecord, body: Bytes) -> Result<bool, TargetError> {
        match self.targets.write((row.id, row.generation), body, None, None).await {
            Ok(_) => Ok(true),
            Err(NotWritten::Lost) => Ok(false),
            Err(why) => Err(why.into()),
        }
    }

    /// Returns the target with this name.
    ///
    /// # Errors
    /// [`TargetError::NotFound`], or no answer came.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn get(&self, name: &str) -> Result<TargetView, TargetError> {
        let row = self.targets.read(name).await?.ok_or(TargetError::NotFound)?;
        let queues = self.queues_of(name).await?;
        Ok(self.view(name, &row, queues))
    }

    /// Targets by name, behind the name `after`, at most `limit`.
    ///
    /// # Errors
    /// No answer came.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn list(&self, after: Option<&str>, limit: usize) -> Result<Vec<TargetView>, CallError> {
        let rows = self.targets.scan(|name, row| after.is_none_or(|after| name > after).then_some(row));
        let rows = rows.await?;
        let mut queues = self.queues_by_target().await?;
        let page = rows.into_iter().take(limit);
        Ok(page.map(|(name, row)| self.view(&name, &row, queues.remove(&name).unwrap_or_default())).collect())
    }

    pub(super) fn view(&self, name: &str, row: &StoredRecord, queues: Vec<QueueName>) -> TargetView {
        let record = TargetRecord::read(&row.body);
        let error = record.as_ref().ok().and_then(|record| record.open(name, &self.sealing).err());
        view_of(name, record, error, queues)
    }

    /// The target as requests are sent to it.
    ///
    /// # Errors
    /// [`TargetError::NotFound`], [`TargetError::Unreadable`], or no answer came.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn open(&self, name: &str) -> Result<PushTarget, TargetError> {
        let row = self.targets.read(name).await?.ok_or(TargetError::NotFound)?;
        let opened = TargetRecord::read(&row.body).and_then(|record| record.open(name, &self.sealing));
        opened.map_err(TargetError::Unreadable)
    }

    /// Sends one signed message now that is in no queue. Returns what came back.
    ///
    /// # Errors
    /// As [`Targets::open`], and [`Targets::store_id`].
    ///
    /// # Cancel safety
    /// When it is dropped, the target may have got the request.
    pub async fn test(&self, name: &str) -> Result<TestedTarget, TargetError> {
        let target = self.open(name).await?;
        let store = self.store_id().await?;
        let now = SystemTime::now();
        let request = PushRequest {
            webhook_id: webhook_id(&store, &format!("test-{}", random_text()), 0),
            now,
            queue: TEST_QUEUE.to_owned(),
            key: None,
            attempt: 1,
            due_at: now,
            headers: vec![("content-type".to_owned(), "application/json".to_owned())],
            body: Bytes::from_static(TEST_BODY),
            span: None,
        };
        let outcome = PushClient::new(target.into()).deliver(&request).await;
        Ok(TestedTarget { at: now, webhook_id: request.webhook_id, outcome })
    }

    /// Removes a target that no queue is delivered to.
    ///
    /// # Errors
    /// [`TargetError::InUse`], or see [`TargetError`].
    ///
    /// # Cancel safety
    /// When it is dropped, the target may be removed or not.
    pub async fn remove(&self, name: &str) -> Result<(), TargetError> {
        let row = self.targets.read(name).await?.ok_or(TargetError::NotFound)?;
        let queues = self.queues_of(name).await?;
        if !queues.is_empty() {
            return Err(TargetError::InUse(queues));
        }
        self.targets.remove(row.id).await?;
        self.raise_stamp().await;
        self.forget_stage(name).await;
        Ok(())
    }

    /// Lets the messages of a target wait until it is resumed. A reason replaces that of a target which is paused
    /// already, since when it was; without one it keeps its own.
    ///
    /// # Errors
    /// See [`TargetError`].
    ///
    /// # Cancel safety
    /// When it is dropped, the target may be paused or not.
    pub async fn pause(&self, name: &str, reason: Option<&str>) -> Result<TargetView, TargetError> {
        let pause = TargetPause::new(reason.unwrap_or(BY_HAND), self.targets.now());
        let change = |before: Option<TargetPause>| match (before, reason) {
            (Some(before), None) => Some(before),
            (Some(TargetPause { at_ms, .. }), Some(_)) => Some(TargetPause { at_ms, ..pause.clone() }),
            (None, _) => Some(pause.clone()),
        };
        self.change_pause(name, &change).await
    }

    /// Lets a paused target have messages again, and forgets the failures of one whose breaker is open.
    ///
    /// # Errors
    /// See [`TargetError`].
    ///
    /// # Cancel safety
    /// As [`Targets::pause`].
    pub async fn resume(&self, name: &str) -> Result<TargetView, TargetError> {
        self.change_pause(name, &|_| None).await
    }

    async fn change_pause(
        &self,
        name: &str,
        change: &(dyn Fn(Option<TargetPause>) -> Option<TargetPause> + Sync),
    ) -> Result<TargetView, TargetError> {
        for _ in 0..TARGET_TRIES {
            let row = self.targets.read(name).await?.ok_or(TargetError::NotFound)?;
            let mut record = TargetRecord::read(&row.body).map_err(TargetError::Unreadable)?;
            let paused = change(record.paused.clone());
            // A resume is written also if there is no pause: who pushes to the target begins anew.
            let is_same = paused.is_some() && record.paused == paused;
            if is_same || self.write_pause(&row, &mut record, paused).await? {
                if !is_same {
                    self.forget_stage(name).await;
                }
                return self.get(name).await;
            }
        }
        Err(TargetError::Busy)
    }

    async fn write_pause(
        &self,
        row: &StoredRecord,
        record: &mut TargetRecord,
        paused: Option<TargetPause>,
    ) -> Result<bool, TargetError> {
        record.paused = paused;
        let written = self.write(row, record.bytes()).await?;
        self.raise_stamp().await;
        Ok(written)
    }

    /// Pauses a target unless its record was written since it was `mark`.
    pub(super) async fn pause_if(&self, name: &str, mark: RowMark, reason: &str) -> Result<(), TargetError> {
        let Some(row) = self.targets.read(name).await? else { return Ok(()) };
        if (row.id, row.generation) != mark {
            return Ok(());
        }
        let mut record = TargetRecord::read(&row.body).map_err(TargetError::Unreadable)?;
        let pause = TargetPause::new(reason, self.targets.now());
        self.write_pause(&row, &mut record, Some(pause)).await.map(drop)
    }

    /// Reads all records. `known` says how the caller knows a target's record.
    pub(super) async fn read_all(
        &self,
        known: &(dyn Fn(&str) -> Option<RowMark> + Sync),
    ) -> Result<AllTargets, CallError> {
        let mut queues = self.queues_by_target().await?;
        let (mut ready, mut broken) = (BTreeMap::new(), BTreeMap::new());
        let rows = self.targets.scan(|_, row| Some(row)).await?;
        let mut open = 0;
        for (name, row) in rows {
            let record = TargetRecord::read(&row.body);
            open += usize::from(record.as_ref().is_ok_and(TargetRecord::tells_secrets));
            let mark = (row.id, row.generation);
            let read = record.and_then(|record| {
                if known(&name) == Some(mark) {
                    return Ok((None, record.paused));
                }
                record.open(&name, &self.sealing).map(|target| (Some(target), record.paused))
            });
            match read {
                Ok((target, paused)) => {
                    let queues = queues.remove(&name).unwrap_or_default();
                    let paused = paused.map(|paused| paused.reason);
                    ready.insert(name, ReadyTarget { row: mark, target, queues, paused });
                }
                Err(why) => drop(broken.insert(name, why)),
            }
        }
        Ok(AllTargets { ready, broken, open })
    }

    /// Announces an edit to all nodes by changing the stamp. If that fails, they see it when they read all targets.
    pub(super) async fn raise_stamp(&self) {
        let raised = async {
            match self.stamps.read(STAMP).await.map_err(NotWritten::Unknown)? {
                None => drop(self.stamps.create(STAMP, Bytes::new()).await?),
                Some(row) => drop(self.stamps.write((row.id, row.generation), row.body, None, None).await?),
            }
            Ok(())
        };
        match raised.await {
            // Another has raised it since the record was written.
            Ok(()) | Err(NotWritten::Lost) => {}
            Err(why) => tracing::warn!(?why, "nodes were not told of an edit of a target, and read it later"),
        }
    }

    /// The stamp: it is another one after each edit.
    pub(super) async fn stamp(&self) -> Result<Option<RowMark>, CallError> {
        Ok(self.stamps.read(STAMP).await?.map(|row| (row.id, row.generation)))
    }

    /// The random id of the store, which is a part of `webhook-id`: made at the first call. A folder that is restored or
    /// salvaged gets another one, because its messages may go on in another way than those of its original.
    ///
    /// # Errors
    /// The store gave no answer, or refused the record.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn store_id(&self) -> Result<String, TargetError> {
        let Ok(queue) = QueueName::system(STORE_QUEUE) else { return Err(TargetError::Busy) };
        let Ok(key) = Key::new(STORE_ID) else { return Err(TargetError::Busy) };
        let client = &self.targets.client;
        for _ in 0..TARGET_TRIES {
            let found = client.ask(Op::get(Target::Key(queue.clone(), key.clone()))).await?;
            if let Some(view) = found {
                let id = std::str::from_utf8(&view.message.body).unwrap_or_default();
                return Ok(id.to_owned());
            }
            let enqueue = Enqueue {
                key: Some(key.clone()),
                if_exists: IfExists::Reject,
                options: Options { max_attempts: Some(MaxAttempts::UNLIMITED), ..Options::default() },
                ..Enqueue::new(queue.clone(), Bytes::from(random_text()))
            };
            // The id that is read next counts: another node may have been quicker.
            let answer = client.ask(enqueue).await?;
            if let Err(refusal) = answer
                && !matches!(refusal, duewheel::core::engine::EnqueueRefusal::KeyExists(_))
            {
                return Err(TargetError::Refused(refusal));
            }
        }
        Err(TargetError::Busy)
    }
}

fn view_of(
    name: &str,
    record: Result<TargetRecord, String>,
    error: Option<String>,
    queues: Vec<QueueName>,
) -> TargetView {
    let name = name.to_owned();
    match record {
        Ok(TargetRecord { created, shown, paused, .. }) => {
            TargetView { name, created_ms: created, shown: Some(shown), paused, error, queues }
        }
        Err(why) => TargetView { name, created_ms: 0, shown: None, paused: None, error: Some(why), queues },
    }
}
