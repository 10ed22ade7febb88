//! The users' operations on jobs: begin, look at, cancel; and their errors.

use std::sync::Arc;
use std::time::Duration;

use duewheel::core::engine::{ChangeRefusal, EnqueueRefusal};
use duewheel::core::name::{BadName, QueueName};
use duewheel::core::time::ceil_ms;
use duewheel::core::{MessageId, Policy};
use duewheel::{CallError, Duewheel};
use duewheel_shard::acting::{is_done_by, report, without_act};
use tokio::time::Instant;

use super::action::{BadBulk, BulkAction, UrlMoves};
use super::filter::{BulkFilter, filter_step};
use super::index::{IndexedJob, JobIndex, JobRoom};
use super::part::{JobPart, part_name};
use super::record::{BulkCounts, BulkPhase, BulkRecord, BulkTenant};
use crate::limits::{BULK_EDIT_TRIES, BULK_HELD, MAX_JOBS};
use crate::random::random_text;
use crate::records::{NextLook, NotWritten, RecordStore, StoredRecord};

/// The queue of the records of jobs.
const JOBS: &str = "#jobs";
/// The queue of the parts of jobs.
const PARTS: &str = "#job-parts";
/// Messages that one page of a walk asks for.
const PAGE: usize = 1_000;

/// The jobs of a store. Cheap to clone.
///
/// A job is durable when [`BulkJobs::begin`] has returned. A [`crate::BulkWorker`] works on it; one or several may run, in
/// any node. Clones share an index of the jobs, so a node makes one of these and clones it.
///
/// ```
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use duewheel::core::name::QueueName;
/// use duewheel::{Duewheel, Policy};
/// use duewheel_delivery::{BulkAction, BulkFilter, BulkJobs, BulkRequest, BulkTenant, BulkWorker, UrlMoves};
///
/// let wheel = Duewheel::builder().in_memory().open().await?;
/// let jobs = BulkJobs::new(&wheel, &Policy::default())?;
/// let worker = BulkWorker::start(&jobs);
/// let filter = BulkFilter { key_prefix: Some("order-".into()), ..BulkFilter::default() };
/// let request = BulkRequest { tenant: BulkTenant::Common, queue: QueueName::new("orders")?, filter,
///     action: BulkAction::Cancel, rate: None, urls: UrlMoves::Refused, expect: None,
///     keep: Some(Duration::from_secs(3600)) };
/// assert_eq!(jobs.count(&request).await?.matched, 0);
/// let job = jobs.begin(request).await?;
/// assert_eq!(jobs.get(&job.id).await?.queue, "orders");
/// worker.stop(Duration::from_secs(10)).await;
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct BulkJobs {
    pub(super) jobs: RecordStore,
    pub(super) parts: RecordStore,
    pub(super) index: Arc<JobIndex>,
    policy: Policy,
}

/// A job whose turn it is.
#[derive(Clone, Debug)]
pub(super) struct FirstJob {
    pub(super) row: (MessageId, u32),
    /// Whether it has had no turn yet.
    waits: bool,
}

/// What a job is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkRequest {
    /// The tenant that the job belongs to.
    pub tenant: BulkTenant,
    /// The queue.
    pub queue: QueueName,
    /// Which of its messages are meant. Leased ones are skipped and counted.
    pub filter: BulkFilter,
    /// What is done to them.
    pub action: BulkAction,
    /// Most messages a second; `None`: as fast as the store takes them.
    pub rate: Option<u32>,
    /// Whether a redrive into another queue moves messages that have URLs of their own.
    pub urls: UrlMoves,
    /// The largest number of messages that may match: with more nothing is changed. `None`: no limit.
    pub expect: Option<u64>,
    /// How long the messages that a [`BulkAction::Cancel`] or [`BulkAction::Purge`] removes are kept, so that
    /// [`BulkAction::Restore`] can put them back. The id of the act is that of the job.
    pub keep: Option<Duration>,
}

/// How many messages a job would concern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulkCount {
    /// Messages that would be changed.
    pub matched: u64,
    /// Messages that the filter means, and that a consumer has.
    pub leased: u64,
}

/// A job as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkView {
    /// The id of the job.
    pub id: String,
    /// The queue.
    pub queue: String,
    /// Which of its messages are meant.
    pub filter: BulkFilter,
    /// What is done to them.
    pub action: BulkAction,
    /// Most messages a second.
    pub rate: Option<u32>,
    /// The largest number of messages that may match.
    pub expect: Option<u64>,
    /// How long removed messages are kept, in ms.
    pub keep_ms: Option<u64>,
    /// How far it has come.
    pub phase: BulkPhase,
    /// The number of its messages so far, by result.
    pub counts: BulkCounts,
    /// When it began, in ms since 1970.
    pub created_ms: u64,
    /// When it ended, in ms since 1970.
    pub ended_ms: Option<u64>,
}

impl BulkView {
    pub(super) fn of(id: &str, record: BulkRecord) -> Self {
        let BulkRecord {
            queue, filter, action, rate, expect, keep_ms, created, phase, ended, counts, ..
        } = record;
        BulkView {
            id: id.to_owned(),
            queue,
            filter,
            action,
            rate,
            expect,
            keep_ms,
            phase,
            counts,
            created_ms: created,
            ended_ms: ended,
        }
    }
}

impl BulkRequest {
    fn check(&self, policy: &Policy) -> Result<(), BadBulk> {
        self.action.check(policy, &self.filter, self.rate)?;
        if let BulkAction::Redrive { to_queue: Some(queue), .. } = &self.action
            && *queue == self.queue.as_str()
        {
            return Err(BadBulk { field: "to_queue", what: "must be another queue".to_owned() });
        }
        let most = policy.max_keep_done_ms;
        let what = match self.keep.map(ceil_ms) {
            Some(_) if !self.action.removes() => "is for cancel and purge".to_owned(),
            Some(ms) if ms == 0 || ms > most => format!("must be from 1 to {most}"),
            Some(_) | None => return Ok(()),
        };
        Err(BadBulk { field: "keep_ms", what })
    }
}

impl BulkJobs {
    /// The jobs in the store of a wheel, whose limits are `policy`.
    ///
    /// # Errors
    /// The store of records has no valid name, which is a bug.
    pub fn new(wheel: &Duewheel, policy: &Policy) -> Result<Self, BadName> {
        let records = |name| QueueName::system(name).map(|queue| RecordStore::new(wheel, queue, policy));
        Ok(BulkJobs {
            jobs: records(JOBS)?,
            parts: records(PARTS)?,
            index: Arc::default(),
            policy: policy.clone(),
        })
    }

    /// Counts the messages that a job would concern, without changing any.
    ///
    /// # Errors
    /// [`BulkError::Bad`] or [`BulkError::Call`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn count(&self, request: &BulkRequest) -> Result<BulkCount, BulkError> {
        request.check(&self.policy)?;
        let BulkRequest { queue, filter, action, .. } = request;
        let queue = action.walks(queue.clone()).map_err(|_| BulkError::NotFound)?;
        let (mut count, mut after) = (BulkCount::default(), None);
        loop {
            let (state, limit) = (action.lists(filter), self.max_page());
            let page = filter_step(&self.jobs.client, &queue, state, filter, after, limit).await?;
            for view in &page.found.views {
                count.matched += u64::from(action.takes(view.state, filter));
                count.leased += u64::from(view.lease_until.is_some());
            }
            match page.found.next {
                Some(next) => after = Some(next),
                None => return Ok(count),
            }
        }
    }

    /// Begins a job.
    ///
    /// # Errors
    /// See [`BulkError`].
    ///
    /// # Cancel safety
    /// When it is dropped, the job may have begun.
    pub async fn begin(&self, request: BulkRequest) -> Result<BulkView, BulkError> {
        request.check(&self.policy)?;
        if let Some(expect) = request.expect
            && let matched = self.count(&request).await?.matched
            && matched > expect
        {
            return Err(BulkError::Changed { expect, matched });
        }
        without_act(self.make_room(&request.tenant)).await?;
        let BulkRequest { tenant, queue, filter, action, rate, urls, expect, keep } = request;
        let (queue, now) = (queue.as_str().to_owned(), self.jobs.now());
        let mut record = BulkRecord::new(tenant, queue, filter, action, rate, now);
        (record.urls, record.expect, record.keep_ms) = (urls, expect, keep.map(ceil_ms));
        let id = random_text();
        record.act = is_done_by(&id).map(|act| act.texts()).unwrap_or_default();
        let bytes = record.bytes();
        if bytes.len() > self.jobs.max_body {
            let what = format!("is too long: a job has at most {} bytes", self.jobs.max_body);
            return Err(BadBulk { field: "filter", what }.into());
        }
        let scans = self.index.scans();
        match self.jobs.create(&id, bytes).await? {
            true => {
                self.index.created(&id, &record, scans);
                Ok(BulkView::of(&id, record))
            }
            false => Err(BulkError::Busy),
        }
    }

    /// Removes the job of a tenant that has ended first, if the tenant has as many jobs as it may have. Several nodes
    /// that do so at the same time may let a tenant have a few more.
    async fn make_room(&self, tenant: &BulkTenant) -> Result<(), BulkError> {
        self.complete_index().await?;
        if self.index.room(tenant) == JobRoom::Full {
            // On another node jobs may have ended since.
            self.refresh().await?;
        }
        loop {
            let name = match self.index.room(tenant) {
                JobRoom::Free => return Ok(()),
                JobRoom::Full => return Err(BulkError::TooMany(MAX_JOBS)),
                JobRoom::Replaces(name) => name,
            };
            if let Some(row) = self.jobs.read(&name).await? {
                // If it has just been cancelled, no worker has cleaned up.
                if let Ok(mut record) = BulkRecord::read(&row.body) {
                    self.remove_parts(&name, record.at.0..=record.parts).await?;
                    if !record.act.is_empty() {
                        // Its worker may write at the same time: then all is read again.
                        let at = (row.id, row.generation);
                        match self.write(&name, at, &mut record, NextLook::After(BULK_HELD)).await {
                            Err(NotWritten::Lost) => continue,
                            written => written?,
                        };
                    }
                }
                self.jobs.remove(row.id).await?;
            }
            self.index.removed(&name);
            self.wake_first(tenant).await?;
        }
    }

    /// Reads all records again, unless that was done a moment ago.
    async fn refresh(&self) -> Result<(), CallError> {
        if self.index.is_old() {
            let _alone = self.index.scanning.lock().await;
            if self.index.is_old() {
                return self.scan().await;
            }
        }
        Ok(())
    }

    /// Adds the jobs to the index that other nodes have created. It reads no record if there are none.
    async fn complete_index(&self) -> Result<(), CallError> {
        if self.index.has_all(self.jobs.created().await?) {
            return Ok(());
        }
        let _alone = self.index.scanning.lock().await;
        // Another task may have completed it since.
        if self.index.has_all(self.jobs.created().await?) { Ok(()) } else { self.scan().await }
    }

    /// Reads all records into the index.
    async fn scan(&self) -> Result<(), CallError> {
        let begun = Instant::now();
        let scan = self.index.begin_scan(self.jobs.created().await?);
        let read = |_: &str, row: StoredRecord| BulkRecord::read(&row.body).ok().as_ref().map(IndexedJob::of);
        let found = self.jobs.scan(read).await?;
        self.index.end_scan(scan, begun.elapsed(), found.into_iter());
        Ok(())
    }

    /// The [`crate::limits::BULK_TENANT_RUNS`] unended jobs of a tenant that began first: it is their turn, on whichever
    /// nodes they run. None of them had ended when this was called.
    pub(super) async fn first_come(&self, tenant: &BulkTenant) -> Result<Vec<FirstJob>, CallError> {
        self.complete_index().await?;
        loop {
            let (names, mut first) = (self.index.first(tenant), Vec::new());
            for name in &names {
                let row = self.jobs.read(name).await?;
                let Some((row, record)) = row.and_then(|row| {
                    let record = BulkRecord::read(&row.body).ok()?;
                    Some(((row.id, row.generation), record))
                }) else {
                    self.index.removed(name);
                    continue;
                };
                self.index.note(name, &record);
                if !record.phase.is_end() {
                    first.push(FirstJob { row, waits: record.phase == BulkPhase::Waiting });
                }
            }
            if first.len() == names.len() {
                return Ok(first);
            }
        }
    }

    /// Lets the jobs of a tenant begin that have waited for a turn and have it now. What has ended is durable before: a
    /// job that is about to wait either sees it, or is written between its look and its wait, and looks again.
    pub(super) async fn wake_first(&self, tenant: &BulkTenant) -> Result<(), NotWritten> {
        // The number of created records does not show a job of another node if a shard has forgotten some since.
        self.refresh().await.map_err(NotWritten::Unknown)?;
        for _ in 0..BULK_EDIT_TRIES {
            let mut is_woken = true;
            for job in self.first_come(tenant).await.map_err(NotWritten::Unknown)? {
                if job.waits {
                    is_woken &= self.jobs.wake(job.row).await.map_err(NotWritten::Unknown)?;
                }
            }
            if is_woken {
                return Ok(());
            }
        }
        Err(NotWritten::Refused(ChangeRefusal::Busy))
    }

    /// How often this node has read the records of all jobs.
    pub fn scans(&self) -> u64 {
        self.index.scans()
    }

    /// A job.
    ///
    /// # Errors
    /// [`BulkError::NotFound`], [`BulkError::Unreadable`] or [`BulkError::Call`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn get(&self, id: &str) -> Result<BulkView, BulkError> {
        let row = self.jobs.read(id).await?.ok_or(BulkError::NotFound)?;
        let record = BulkRecord::read(&row.body).map_err(BulkError::Unreadable)?;
        Ok(BulkView::of(id, record))
    }

    /// All jobs, the newest first. One that cannot be read is left out.
    ///
    /// # Errors
    /// [`BulkError::Call`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn list(&self) -> Result<Vec<BulkView>, BulkError> {
        let view = |id: &str, row: StoredRecord| Some(BulkView::of(id, BulkRecord::read(&row.body).ok()?));
        let mut all: Vec<BulkView> = self.jobs.scan(view).await?.into_values().collect();
        all.sort_by(|a, b| (b.created_ms, &b.id).cmp(&(a.created_ms, &a.id)));
        Ok(all)
    }

    /// Lets a job end before it has changed all its messages. What it has changed stays; one that has ended stays as it is.
    ///
    /// # Errors
    /// See [`BulkError`].
    ///
    /// # Cancel safety
    /// When it is dropped, the job may be cancelled or not.
    pub async fn cancel(&self, id: &str) -> Result<BulkView, BulkError> {
        // The worker writes often.
        for _ in 0..BULK_EDIT_TRIES {
            let row = self.jobs.read(id).await?.ok_or(BulkError::NotFound)?;
            let mut record = BulkRecord::read(&row.body).map_err(BulkError::Unreadable)?;
            if record.phase.is_end() {
                return Ok(BulkView::of(id, record));
            }
            record.is_cut = record.phase == BulkPhase::Running;
            record.end(BulkPhase::Cancelled, self.jobs.now());
            let soon = NextLook::After(Duration::ZERO);
            match self.jobs.write((row.id, row.generation), record.bytes(), Some(soon), None).await {
                Ok(_) => {
                    self.index.note(id, &record);
                    return Ok(BulkView::of(id, record));
                }
                Err(NotWritten::Lost) => {}
                Err(why) => return Err(why.into()),
            }
        }
        Err(BulkError::Busy)
    }

    /// Writes the record of a job; its act gets the outcome in the same group, if the job has ended.
    pub(super) async fn write(
        &self,
        id: &str,
        at: (MessageId, u32),
        record: &mut BulkRecord,
        next: NextLook,
    ) -> Result<u32, NotWritten> {
        let mut written = record.clone();
        let ended = written.ended_act();
        let generation = self.jobs.write(at, written.bytes(), Some(next), ended.as_ref()).await?;
        ended.iter().for_each(|act| report(act, None));
        self.index.note(id, &written);
        *record = written;
        Ok(generation)
    }

    /// Creates a part, or takes the one that is there: an earlier try has found it, and may have gone on from it.
    pub(super) async fn put_part(&self, job: &str, no: u32, part: JobPart) -> Result<JobPart, NotWritten> {
        if self.parts.create(&part_name(job, no), part.bytes()).await? {
            return Ok(part);
        }
        let there = self.read_part(job, no).await.map_err(NotWritten::Unknown)?;
        // Another has done with it already.
        there.ok_or(NotWritten::Lost)
    }

    /// Removes those of these parts that are there.
    pub(super) async fn remove_parts(
        &self,
        job: &str,
        parts: std::ops::RangeInclusive<u32>,
    ) -> Result<(), NotWritten> {
        for part in parts {
            if let Some(row) = self.parts.read(&part_name(job, part)).await.map_err(NotWritten::Unknown)? {
                self.parts.remove(row.id).await?;
            }
        }
        Ok(())
    }

    /// A part that cannot be read is like one that is gone, and the log says so.
    pub(super) async fn read_part(&self, job: &str, no: u32) -> Result<Option<JobPart>, CallError> {
        let Some(row) = self.parts.read(&part_name(job, no)).await? else { return Ok(None) };
        let part = JobPart::read(&row.body);
        if part.is_none() {
            tracing::error!(job, part = no, "a part of a job cannot be read; its messages are left alone");
        }
        Ok(part)
    }

    pub(super) fn part_bytes(&self) -> usize {
        self.parts.max_body
    }

    pub(super) fn max_page(&self) -> usize {
        PAGE.min(self.policy.max_page)
    }
}

/// Why something was not done with a job.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BulkError {
    /// The request is not valid.
    #[error(transparent)]
    Bad(#[from] BadBulk),
    /// There is no such job within reach.
    #[error("there is no job with this id; one that has ended is kept for a week")]
    NotFound,
    /// More messages match than were expected. Nothing was changed.
    #[error("{matched} messages match, and {expect} were expected; nothing was changed")]
    Changed {
        /// The number that was expected.
        expect: u64,
        /// The number that matches.
        matched: u64,
    },
    /// The tenant has too many jobs that have not ended.
    #[error("{0} jobs of this tenant have not ended, and no more are accepted")]
    TooMany(u64),
    /// The record cannot be read.
    #[error("the job cannot be read: {0}")]
    Unreadable(String),
    /// Others work on the job. Nothing was changed; try again.
    #[error("the job is being written; try again shortly")]
    Busy,
    /// The store refused the record of a new job.
    #[error("the record was refused: {0}")]
    Refused(EnqueueRefusal),
    /// The store refused the record.
    #[error("the record was refused: {0}")]
    RecordRefused(ChangeRefusal),
    /// The store gave no answer.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl From<NotWritten> for BulkError {
    fn from(why: NotWritten) -> Self {
        match why {
            NotWritten::Lost => BulkError::Busy,
            NotWritten::Refused(refusal) => BulkError::RecordRefused(refusal),
            NotWritten::NewRefused(refusal) => BulkError::Refused(refusal),
            NotWritten::Unknown(error) => BulkError::Call(error),
        }
    }
}
