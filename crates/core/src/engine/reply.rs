//! Replies of the engine. Refusals are values: one comparable enum per operation.

use std::ops::Deref;
use std::sync::Arc;

use crate::history::QueueHistory;
use crate::id::{LeaseToken, MessageId};
use crate::message::{DeadReason, Detail, Marks, MessageContent, PastAttempt, State};
use crate::name::{Key, QueueName};
use crate::policy::QueueSettings;
use crate::record::{Created, Pause, Totals};
use crate::store::{EventPage, Level};
use crate::time::WallMs;

use super::input::ListCursor;
use super::quota::{OverQuota, QuotaUse};
use super::row::RowOutcome;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Reply {
    /// To [`super::Op::Enqueue`].
    Enqueue(Result<Enqueued, EnqueueRefusal>),
    /// To [`super::Op::Reserve`].
    Reserve(Reserved),
    /// To [`super::Op::ReserveOne`].
    ReserveOne(Result<Box<Grant>, ChangeRefusal>),
    /// To [`super::Op::Ack`], [`super::Op::Nack`], [`super::Op::Bury`] and [`super::Op::Delete`].
    Settle(Result<Applied<Settled>, SettleRefusal>),
    /// To [`super::Op::Extend`]: the new deadline.
    Extend(Result<Applied<WallMs>, SettleRefusal>),
    /// To [`super::Op::Cancel`], [`super::Op::RemoveDead`], [`super::Op::Restore`],
    /// [`super::Op::Postpone`], [`super::Op::Fire`], [`super::Op::Redrive`] and [`super::Op::Outline`]: the present state of the message (for a removal: the former one).
    Change(Result<Applied<Box<Outline>>, ChangeRefusal>),
    /// To [`super::Op::Get`] and [`super::Op::Peek`].
    View(Option<Box<View>>),
    /// To [`super::Op::List`].
    Page(Page),
    /// To [`super::Op::Queue`] and [`super::Op::Queues`].
    Queues(Vec<QueueView>),
    /// To [`super::Op::Configure`], [`super::Op::Pause`] and [`super::Op::Hold`], when refused.
    Configure(SettingsRefusal),
    /// To [`super::Op::Histogram`].
    Histogram(Histogram),
    /// To [`super::Op::Wheel`].
    Wheel(Box<WheelView>),
    /// To [`super::Op::Stats`].
    Stats(Box<Stats>),
    /// To [`super::Op::Purge`], [`super::Op::FireMany`], [`super::Op::RedriveMany`], [`super::Op::Confirm`].
    Count(Applied<u64>),
    /// To [`super::Op::SessionDeadline`]: ms until then.
    Deadline(Option<u64>),
    /// To [`super::Op::NextDue`].
    NextDue(Option<WallMs>),
    /// To [`super::Op::Quotas`]: by prefix.
    Quotas(Vec<QuotaUse>),
    /// To operations that cannot be refused.
    Done,
    /// To [`super::Op::Configure`], [`super::Op::Pause`] and [`super::Op::Resume`], when applied; the queue as it is
    /// now for [`super::Op::Configure`].
    Configured(Applied<Option<Box<QueueView>>>),
    /// To [`super::Op::Events`].
    Events(Box<ShardEvents>),
    /// To [`super::Op::History`].
    History(Box<QueueHistory>),
    /// To [`super::Op::Once`] of a row that is recorded: nothing was changed.
    Recorded(RowOutcome),
}

impl Reply {
    /// Whether it refuses an operation because the store has no room.
    pub fn is_disk_full(&self) -> bool {
        matches!(
            self,
            Reply::Enqueue(Err(EnqueueRefusal::DiskFull))
                | Reply::Change(Err(ChangeRefusal::DiskFull))
                | Reply::ReserveOne(Err(ChangeRefusal::DiskFull))
        )
    }

    /// Sets the level that the store has reached, if this is the answer to an applied change.
    pub fn reached(&mut self, reached: Level) {
        if let Reply::Enqueue(Ok(Enqueued { level, .. }))
        | Reply::Settle(Ok(Applied { level, .. }))
        | Reply::Extend(Ok(Applied { level, .. }))
        | Reply::Change(Ok(Applied { level, .. }))
        | Reply::Count(Applied { level, .. })
        | Reply::Configured(Applied { level, .. }) = self
        {
            *level = reached;
        }
    }

    /// The leases that it grants, which [`super::Op::Undelivered`] returns if the answer cannot be delivered.
    pub fn leases(&self) -> Vec<(MessageId, LeaseToken)> {
        let lease = |grant: &Grant| (grant.message.id, grant.token);
        match self {
            Reply::Reserve(Reserved::Grants(grants)) => grants.iter().map(lease).collect(),
            Reply::ReserveOne(Ok(grant)) => vec![lease(grant)],
            _ => Vec::new(),
        }
    }

    /// The level in the answer to an applied change; `None` in refusals and in all other answers.
    pub fn level(&self) -> Option<Level> {
        if let Reply::Enqueue(Ok(Enqueued { level, .. }))
        | Reply::Settle(Ok(Applied { level, .. }))
        | Reply::Extend(Ok(Applied { level, .. }))
        | Reply::Change(Ok(Applied { level, .. }))
        | Reply::Count(Applied { level, .. })
        | Reply::Configured(Applied { level, .. }) = self
        {
            return Some(*level);
        }
        None
    }

    /// Weight of the bodies, keys and headers in the reply, in bytes.
    pub fn weight(&self) -> usize {
        match self {
            Reply::Reserve(Reserved::Grants(grants)) => grants.iter().map(|g| g.message.weight()).sum(),
            Reply::ReserveOne(Ok(grant)) => grant.message.weight(),
            Reply::Events(events) => events.page.weight(),
            Reply::View(Some(view)) => view.weight(),
            Reply::Page(page) => page.views.iter().map(|view| view.message.weight()).sum(),
            Reply::Reserve(
                Reserved::DeadlineSoon
                | Reserved::Overloaded
                | Reserved::TooManyQueues
                | Reserved::HeldBack(_),
            )
            | Reply::Quotas(_)
            | Reply::ReserveOne(Err(_))
            | Reply::View(None)
            | Reply::Enqueue(_)
            | Reply::Settle(_)
            | Reply::Extend(_)
            | Reply::Change(_)
            | Reply::Queues(_)
            | Reply::Configure(_)
            | Reply::Histogram(_)
            | Reply::Wheel(_)
            | Reply::Stats(_)
            | Reply::Count(_)
            | Reply::Deadline(_)
            | Reply::NextDue(_)
            | Reply::Done
            | Reply::Configured(_)
            | Reply::History(_)
            | Reply::Recorded(_) => 0,
        }
    }
}

/// The answer to [`super::Op::Events`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ShardEvents {
    /// The events, with those of messages that became due among them, in order.
    pub page: EventPage,
    /// The number of the last event of a message that became due that this or an earlier answer has.
    pub fired: u64,
}

/// The result of a change, and the durability level that it reached. It dereferences to the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Applied<T> {
    /// The effect.
    pub what: T,
    /// The durability level, which the caller of the engine sets when the answer leaves ([`Reply::reached`]).
    pub level: Level,
}

impl<T> From<T> for Applied<T> {
    fn from(what: T) -> Self {
        Applied { what, level: Level::default() }
    }
}

impl<T> Deref for Applied<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.what
    }
}

/// An accepted enqueue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Enqueued {
    /// The message that has the key now.
    pub id: MessageId,
    /// When it is due, by the wall clock as it is now.
    pub due_at: WallMs,
    /// The generation of the message.
    pub generation: u32,
    /// The effect.
    pub created: Created,
    /// The state of the message that was kept, as it was then. `None` if the message is new.
    pub kept: Option<State>,
    /// Whether an earlier enqueue with the same `dedupe_id` had this answer.
    pub answered: Answered,
    /// The durability level, which the caller of the engine sets when the answer leaves ([`Reply::reached`]).
    pub level: Level,
}

impl Enqueued {
    /// Whether this enqueue has brought a message.
    pub fn is_new(&self) -> bool {
        self.answered == Answered::Now && self.created != Created::Kept
    }
}

/// The message that has a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct KeyHolder {
    /// The id of the message.
    pub id: MessageId,
    /// The present state of the message.
    pub state: State,
}

/// Whether an answer is that of an earlier enqueue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Answered {
    /// The enqueue was decided now.
    #[default]
    Now,
    /// An enqueue with the same `dedupe_id` and content was decided before; this one has changed nothing.
    Before,
}

/// Why an enqueue was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum EnqueueRefusal {
    /// Another message has the key.
    KeyExists(KeyHolder),
    /// A consumer has leased the message that has the key, so it cannot be replaced.
    Leased(MessageId),
    /// The due time has passed.
    InThePast,
    /// The due time is further away than this many ms.
    TooFar(u64),
    /// The `dedupe_id` was used for another content.
    DedupeMismatch(MessageId),
    /// A field is larger than this many bytes.
    TooLarge(RefusedPart, usize),
    /// A value is outside of its range.
    OutOfRange(RefusedPart),
    /// A limit is reached.
    Overloaded(Limit),
    /// The store is behind with its work; it catches up by itself.
    Busy,
    /// The store has no room for new messages.
    DiskFull,
    /// The queue's tenant has used up its quota.
    OverQuota(Box<OverQuota>),
    /// The instant of the expiry has passed.
    Expired,
}

/// The part of an enqueue or a change that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum RefusedPart {
    /// `body`
    Body,
    /// `headers`, whose names must not begin with `#`
    Headers,
    /// `dedupe_id`
    DedupeId,
    /// `dedupe_window`, which must not be longer than the window of the queue
    DedupeWindow,
    /// `lease_ms`
    Lease,
    /// `max_attempts`
    MaxAttempts,
    /// `backoff`
    Backoff,
    /// `spread`
    Spread,
    /// `expires_in`
    ExpiresIn,
    /// `expires_at`, which must not be before the due time
    ExpiresAt,
}

/// Answer to a reserve.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Reserved {
    /// The grants; empty when the wait is over.
    Grants(Vec<Grant>),
    /// No message, although some are ready: they are held back for this reason.
    HeldBack(HeldBack),
    /// No message is ready, and a lease of this session runs out soon.
    DeadlineSoon,
    /// Too many reserves are waiting.
    Overloaded,
    /// The reserve would wait on a new queue beyond the limit of queues.
    TooManyQueues,
}

/// Why a reserve waits although messages are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum HeldBack {
    /// The queues have as many leases as they may have now ([`crate::policy::Policy::max_leased`]). They are served
    /// when leases end.
    Leases,
    /// A queue's own rate allows no grant yet ([`crate::policy::GrantLimits`]). It is served when the rate does.
    Rate,
}

impl HeldBack {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            HeldBack::Leases => "leases",
            HeldBack::Rate => "rate",
        }
    }
}

/// A message handed to a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Grant {
    /// The content.
    pub message: Arc<MessageContent>,
    /// Number of grants so far, this one included.
    pub attempt: u32,
    /// The priority by which it was chosen.
    pub priority: u32,
    /// The due time.
    pub due_at: WallMs,
    /// Proof of this lease.
    pub token: LeaseToken,
    /// The lease's deadline, by the wall clock as it is now.
    pub lease_until: WallMs,
    /// The lease's length, in ms.
    pub lease_ms: u64,
    /// Time between due time and grant, in ms.
    pub lateness_ms: u64,
    /// The generation of the message.
    pub generation: u32,
    /// Whether it had expired ([`crate::policy::OnExpiry::DeliverLate`]).
    pub late: bool,
}

/// The result of a settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Settled {
    /// The message is removed.
    Acked,
    /// The message was removed by an earlier ack with the same token, which is kept in memory for a while.
    Already {
        /// The queue that it was in.
        queue: QueueName,
    },
    /// The message comes again at this time.
    Again(WallMs),
    /// The message is dead.
    Dead(DeadReason),
    /// The message is removed instead of coming again, because another one has taken its key while it was leased.
    Superseded,
}

/// Why a lease token was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum SettleRefusal {
    /// The lease is not the message's latest, or the message is gone.
    LeaseLost,
    /// No message ever had this id.
    NeverIssued,
    /// The lease asked for is longer than this many ms.
    TooLong(u64),
    /// The message is dead and cannot wait again, because this message has taken its key since.
    KeyExists(KeyHolder),
}

/// Why a change was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum ChangeRefusal {
    /// Nothing is pending under this id or key.
    NotFound,
    /// A consumer has leased the message.
    Leased,
    /// The message is dead.
    Dead,
    /// The message is not dead.
    NotDead,
    /// Another message has taken the key since then.
    KeyExists(KeyHolder),
    /// The message has another generation, namely this one.
    GenerationMismatch(u32),
    /// The due time has passed.
    InThePast,
    /// The due time is further away than this many ms.
    TooFar(u64),
    /// A field is larger than this many bytes.
    TooLarge(RefusedPart, usize),
    /// A value is outside of its range.
    OutOfRange(RefusedPart),
    /// No field to change was given.
    NothingToChange,
    /// The lease asked for is longer than this many ms.
    LeaseTooLong(u64),
    /// The queue of the message is paused.
    Paused,
    /// The store has no room for changes.
    DiskFull,
    /// A limit is reached.
    Overloaded(Limit),
    /// The store is behind with its work; it catches up by itself.
    Busy,
    /// The queue's tenant has used up its quota.
    OverQuota(Box<OverQuota>),
}

/// A limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum Limit {
    /// The number of unsettled messages, and its limit.
    Messages(u64),
    /// The bytes of unsettled messages, and their limit.
    Bytes(u64),
    /// The number of queues, and its limit.
    Queues(u64),
    /// Remembered answers, all of them young, and the limit of their number.
    Answers(u64),
    /// Leases, or bytes of leased messages.
    Leases,
    /// Grants of the queue a second; the next one may come in this many ms.
    GrantRate(u64),
}

/// The name of a field of [`QueueSettings`].
pub type SettingsField = &'static str;

/// Why settings were refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum SettingsRefusal {
    /// This field is above its limit.
    OutOfRange(
        #[cfg_attr(feature = "serde", serde(with = "crate::wire::settings_field"))] SettingsField,
        u64,
    ),
    /// Too many queues.
    Overloaded,
    /// The tenant has as many queues with settings or a pause as it may have messages.
    OverQuota(Box<OverQuota>),
    /// This field is below the number of shards, each of which needs a part of it.
    BelowShards(
        #[cfg_attr(feature = "serde", serde(with = "crate::wire::settings_field"))] SettingsField,
        u32,
    ),
}

/// The present state of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct View {
    /// The content.
    pub message: Arc<MessageContent>,
    /// The state of the message.
    pub state: State,
    /// When it is (or was) due, by the wall clock as it is now.
    pub due_at: WallMs,
    /// ms until it is due; 0 when it is.
    pub due_in_ms: u64,
    /// Number of grants so far.
    pub attempt: u32,
    /// Number of grants that do not count against `max_attempts`.
    pub forgiven: u32,
    /// The generation of the message.
    pub generation: u32,
    /// The effective priority.
    pub priority: u32,
    /// The effective length of a lease, in ms.
    pub lease_ms: u64,
    /// The effective number of attempts.
    pub max_attempts: u32,
    /// The lease's deadline, if it is leased.
    pub lease_until: Option<WallMs>,
    /// Reason and time of death, if it is dead.
    pub dead: Option<(DeadReason, WallMs)>,
    /// Counts of what has happened to it.
    pub marks: Marks,
    /// The delay that was asked for last, in ms.
    pub delay_ms: u64,
    /// How earlier attempts ended.
    pub history: Vec<PastAttempt>,
    /// When it expires, by the wall clock as it is now.
    pub expires_at: Option<WallMs>,
    /// The detail that its last settlement with one brought; only of [`super::Op::Get`] and [`super::Op::Recall`].
    #[cfg_attr(feature = "serde", serde(skip))] // between nodes it is a field of the answer
    pub detail: Option<Detail>,
}

/// The present state of a message without body, headers and history: the answer to a change. A batch of ten thousand
/// changes takes as little memory for large messages as for small ones.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct Outline {
    /// The id of the message.
    pub id: MessageId,
    /// The queue of the message.
    pub queue: QueueName,
    /// The producer's own name for it.
    pub key: Option<Key>,
    /// The state of the message.
    pub state: State,
    /// When it is (or was) due, by the wall clock as it is now.
    pub due_at: WallMs,
    /// ms until it is due; 0 when it is.
    pub due_in_ms: u64,
    /// Number of grants so far.
    pub attempt: u32,
    /// The generation of the message.
    pub generation: u32,
    /// The effective priority.
    pub priority: u32,
    /// The effective length of a lease, in ms.
    pub lease_ms: u64,
    /// The effective number of attempts.
    pub max_attempts: u32,
    /// When it was accepted, by the wall clock.
    pub enqueued_at: WallMs,
    /// Reason and time of death, if it is dead.
    pub dead: Option<(DeadReason, WallMs)>,
}

/// A page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Page {
    /// Messages in due order. There may be fewer than asked for although there are more: see `next`.
    pub views: Vec<View>,
    /// The position behind each of them, for callers that use only the first ones.
    pub behind: Vec<ListCursor>,
    /// The position of the next page; `None`: this is the last.
    pub next: Option<ListCursor>,
}

/// The present state of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct QueueView {
    /// The name of the queue.
    pub name: QueueName,
    /// Messages per state.
    pub counts: Counts,
    /// Number of its ready messages in memory whose priority is below 1024.
    pub urgent: u64,
    /// The due time of the ready message that has been due for longest, if any.
    pub oldest_ready: Option<WallMs>,
    /// Number of reserves that wait on it.
    pub waiters: usize,
    /// Number of holds for use.
    pub using: u32,
    /// Number of holds for watching.
    pub watching: u32,
    /// Whether a consumer has reserved from it since the start.
    pub attended: Attended,
    /// The totals of the queue.
    pub totals: Totals,
    /// Rates per second, over the last seconds.
    pub rates: Rates,
    /// The configured settings.
    pub settings: QueueSettings,
    /// Whether it grants messages.
    pub pause: Pause,
    /// Time until a timed pause ends, in ms.
    pub pause_left_ms: Option<u64>,
    /// Number of its messages that have ended and are kept as done.
    pub done: u64,
    /// Counts of its expired messages that were not dropped.
    pub expired: ExpiredCounts,
    /// How late its messages were granted. Nodes do not tell each other: it is that of the shards here.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub lateness: QueueLateness,
}

/// Counts of expired messages since the engine was made. Those that were dropped are in [`Totals::expired`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ExpiredCounts {
    /// Grants of expired messages.
    pub late: u64,
    /// Messages that are dead because they had expired; they are also among [`Totals::died`].
    pub dead: u64,
}

impl ExpiredCounts {
    /// Adds those of another shard.
    pub fn add(&mut self, other: ExpiredCounts) {
        self.late = self.late.saturating_add(other.late);
        self.dead = self.dead.saturating_add(other.dead);
    }
}

/// How late messages of a queue were granted for the first time, since the engine was made. It has few columns, because
/// every queue has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLateness {
    /// Count per column of [`QUEUE_LATENESS_MS`], and of everything above.
    pub counts: [u64; QUEUE_LATENESS_MS.len() + 1],
    /// Sum of the latenesses, in ms.
    pub sum_ms: u64,
}

/// Upper edges of the lateness columns of a queue, in ms; one more column is for everything above.
pub const QUEUE_LATENESS_MS: [u64; 5] = [10, 100, 1_000, 5_000, 60_000];

impl QueueLateness {
    pub(super) fn count(&mut self, lateness_ms: u64) {
        self.counts[QUEUE_LATENESS_MS.partition_point(|&edge| edge < lateness_ms)] += 1;
        self.sum_ms = self.sum_ms.saturating_add(lateness_ms);
    }

    /// Adds that of another shard.
    pub fn add(&mut self, other: &QueueLateness) {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, n)| *sum += n);
        self.sum_ms = self.sum_ms.saturating_add(other.sum_ms);
    }
}

/// Whether a consumer has reserved from a queue since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Attended {
    /// At least one reserve has named it.
    Yes,
    /// No reserve has named it: its ready messages are kept and wait.
    #[default]
    No,
}

/// Messages per state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct Counts {
    /// The messages that are not due.
    pub scheduled: u64,
    /// Due.
    pub ready: u64,
    /// Leased by consumers.
    pub leased: u64,
    /// Dead.
    pub dead: u64,
    /// Whether the split of `scheduled` and `ready`, which are exact together, is read off the histogram because not
    /// all due messages are in memory.
    pub estimated: bool,
}

/// Events per second × 1000, over a sliding window of 10 to 20 s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Rates {
    /// Accepted messages.
    pub enqueued_milli: u64,
    /// Grants.
    pub granted_milli: u64,
    /// Acks.
    pub acked_milli: u64,
}

/// Counts of messages by due time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Histogram {
    /// The start of the first column; rounded down to the resolution.
    pub from: WallMs,
    /// The width of a column, in ms; a multiple of the resolution.
    pub width_ms: u64,
    /// Scheduled and ready messages due in each column.
    pub counts: Vec<u64>,
    /// Due before the first column.
    pub before: u64,
    /// Due after the last column.
    pub after: u64,
    /// The resolution in ms: a message that is due closer to the edge of a column than this may be counted in the
    /// neighbouring one. Messages due at an instant are exact at this resolution; those due after a delay are placed by
    /// the present offset of the clocks.
    pub resolution_ms: u64,
}

/// The present state of the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WheelView {
    /// Number of slots of the ring.
    pub slots: usize,
    /// Duration of one step of the pointer, in ms.
    pub tick_ms: u64,
    /// The slots of the pointers: of the ring of instants, and of the ring of delays.
    pub pointers: [usize; 2],
    /// Messages in the rings.
    pub messages: u64,
    /// Slots that are not empty, and their numbers of messages, of the ring of instants and of the ring of delays.
    pub occupied: [Vec<(usize, u64)>; 2],
}

/// Figures of the whole engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct Stats {
    /// Messages per state.
    pub counts: Counts,
    /// Ready messages in memory whose priority is below 1024.
    pub urgent: u64,
    /// Weight of all unsettled messages, in bytes.
    pub bytes: u64,
    /// Messages in memory.
    pub resident: u64,
    /// The weight of the messages in memory, in bytes.
    pub resident_bytes: u64,
    /// Queues.
    pub queues: u64,
    /// Number of waiting reserves.
    pub waiters: u64,
    /// Leases that end with a session. Nodes do not send it to each other: a node knows it of its own shards.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub bound_leases: u64,
    /// Totals since this engine was made.
    pub totals: Totals,
    /// Leases that ran out since this engine was made.
    pub lease_expired: u64,
    /// Settlements refused because of a stale token since this engine was made.
    pub lease_lost: u64,
    /// Reserves answered with [`Reserved::HeldBack`] since this engine was made.
    pub held_back: u64,
    /// Lateness of grants of first attempts since this engine was made: count per column of [`LATENESS_MS`].
    pub lateness: Vec<u64>,
    /// Sum of those latenesses, in ms.
    pub lateness_sum_ms: u64,
}

/// The counts that rise with records, since the engine was made. They count decisions: only the engine's owner knows
/// which of them its store has applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordedCounts {
    /// The totals of all queues, as [`Stats::totals`] has them.
    pub totals: Totals,
    /// The leases that ran out, as [`Stats::lease_expired`] counts them.
    pub lease_expired: u64,
    /// The grants by lateness, as [`Stats::lateness`] counts them.
    pub lateness: [u64; LATENESS_MS.len() + 1],
    /// The sum of all lateness, as [`Stats::lateness_sum_ms`] has it.
    pub lateness_sum_ms: u64,
}

impl RecordedCounts {
    /// The counts since `before`, which is an earlier state of the same counts.
    #[must_use]
    pub fn since(&self, before: &RecordedCounts) -> RecordedCounts {
        let mut lateness = self.lateness;
        lateness.iter_mut().zip(before.lateness).for_each(|(now, then)| *now = now.saturating_sub(then));
        RecordedCounts {
            totals: self.totals.since(&before.totals),
            lease_expired: self.lease_expired.saturating_sub(before.lease_expired),
            lateness,
            lateness_sum_ms: self.lateness_sum_ms.saturating_sub(before.lateness_sum_ms),
        }
    }
}

/// Upper edges of the lateness columns, in ms; one more column is for everything above.
pub const LATENESS_MS: [u64; 14] = [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 60_000, 3_600_000];
