//! What the engine answers. Refusals are values: one comparable enum per operation.

use std::ops::Deref;
use std::sync::Arc;

use crate::id::{LeaseToken, MessageId};
use crate::message::{DeadReason, Marks, Message, PastAttempt, State};
use crate::name::{Key, QueueName};
use crate::policy::QueueSettings;
use crate::record::{Created, Pause, Totals};
use crate::store::Level;
use crate::time::WallMs;

use super::input::ListCursor;
use super::quota::{OverQuota, QuotaUse};

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
    /// To [`super::Op::Cancel`], [`super::Op::Postpone`], [`super::Op::Fire`], [`super::Op::Redrive`]
    /// and [`super::Op::Outline`]: the message as it is now (for a cancel: as it was).
    Change(Result<Applied<Box<Outline>>, ChangeRefusal>),
    /// To [`super::Op::Get`] and [`super::Op::Peek`].
    View(Option<Box<View>>),
    /// To [`super::Op::List`].
    Page(Page),
    /// To [`super::Op::Queue`], [`super::Op::Queues`] and [`super::Op::Configure`].
    Queues(Vec<QueueView>),
    /// To [`super::Op::Configure`], [`super::Op::Pause`] and [`super::Op::Hold`], when refused.
    Configure(SettingsRefusal),
    /// To [`super::Op::Histogram`].
    Histogram(Histogram),
    /// To [`super::Op::Wheel`].
    Wheel(Box<WheelView>),
    /// To [`super::Op::Stats`].
    Stats(Box<Stats>),
    /// To [`super::Op::Purge`], [`super::Op::FireMany`], [`super::Op::RedriveMany`].
    Count(Applied<u64>),
    /// To [`super::Op::SessionDeadline`]: ms until then.
    Deadline(Option<u64>),
    /// To [`super::Op::NextDue`].
    NextDue(Option<WallMs>),
    /// To [`super::Op::Quotas`]: by prefix.
    Quotas(Vec<QuotaUse>),
    /// To operations that cannot be refused.
    Done,
}

impl Reply {
    /// Says in the answer to an applied change what the store has reached. Other answers have no place for it.
    pub fn reached(&mut self, reached: Level) {
        if let Reply::Enqueue(Ok(Enqueued { level, .. }))
        | Reply::Settle(Ok(Applied { level, .. }))
        | Reply::Extend(Ok(Applied { level, .. }))
        | Reply::Change(Ok(Applied { level, .. }))
        | Reply::Count(Applied { level, .. }) = self
        {
            *level = reached;
        }
    }

    /// The leases that it gives: what goes back with [`super::Op::Undelivered`] if it reaches nobody.
    pub fn leases(&self) -> Vec<(MessageId, LeaseToken)> {
        let lease = |grant: &Grant| (grant.message.id, grant.token);
        match self {
            Reply::Reserve(Reserved::Grants(grants)) => grants.iter().map(lease).collect(),
            Reply::ReserveOne(Ok(grant)) => vec![lease(grant)],
            _ => Vec::new(),
        }
    }

    /// The level that the answer to an applied change says; `None` in refusals and in the answers to everything else.
    pub fn level(&self) -> Option<Level> {
        if let Reply::Enqueue(Ok(Enqueued { level, .. }))
        | Reply::Settle(Ok(Applied { level, .. }))
        | Reply::Extend(Ok(Applied { level, .. }))
        | Reply::Change(Ok(Applied { level, .. }))
        | Reply::Count(Applied { level, .. }) = self
        {
            return Some(*level);
        }
        None
    }

    /// Weight of the bodies, keys and headers in it, in bytes.
    pub fn weight(&self) -> usize {
        match self {
            Reply::Reserve(Reserved::Grants(grants)) => grants.iter().map(|g| g.message.weight()).sum(),
            Reply::ReserveOne(Ok(grant)) => grant.message.weight(),
            Reply::View(Some(view)) => view.message.weight(),
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
            | Reply::Done => 0,
        }
    }
}

/// What a change has done, and how safe that is. It can be used as what it holds.
///
/// Between nodes it travels without its level, which is beside the answer: an earlier version does not say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Applied<T> {
    /// What was done.
    pub what: T,
    /// How safe it is. The engine does not know: its caller says it with [`Reply::reached`] when the answer leaves.
    #[cfg_attr(feature = "serde", serde(skip))]
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
    /// Its generation.
    pub generation: u32,
    /// What was done.
    pub created: Created,
    /// How safe it is. The engine does not know: its caller says it with [`Reply::reached`] when the answer leaves.
    pub level: Level,
}

/// Why an enqueue was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum EnqueueRefusal {
    /// Another message has the key.
    KeyExists(MessageId),
    /// The message that has the key is in a consumer's hands and cannot be replaced.
    Leased(MessageId),
    /// The due time has passed.
    InThePast,
    /// The due time is further away than this many ms.
    TooFar(u64),
    /// The same `dedupe_id` stands for another content.
    DedupeMismatch(MessageId),
    /// A part is larger than this many bytes.
    TooLarge(Part, usize),
    /// A value is outside of its range.
    OutOfRange(Part),
    /// As much is held as a limit allows.
    Overloaded(Limit),
    /// The store is behind with its work; it catches up by itself.
    Busy,
    /// The store has no room for new messages.
    DiskFull,
    /// The queue's tenant has used up its quota.
    OverQuota(Box<OverQuota>),
}

impl From<Box<OverQuota>> for EnqueueRefusal {
    fn from(over: Box<OverQuota>) -> Self {
        EnqueueRefusal::OverQuota(over)
    }
}

/// The part of an enqueue or a change that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Part {
    /// `body`
    Body,
    /// `headers`
    Headers,
    /// `dedupe_id`
    DedupeId,
    /// `lease_ms`
    Lease,
    /// `max_attempts`
    MaxAttempts,
    /// `backoff`
    Backoff,
}

/// Answer to a reserve.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Reserved {
    /// What there was; empty when the wait is over.
    Grants(Vec<Grant>),
    /// Nothing, although something is ready: it is held back for this reason.
    HeldBack(HeldBack),
    /// Nothing is ready, and a lease of this session runs out soon.
    DeadlineSoon,
    /// Too many are waiting.
    Overloaded,
    /// It would wait on a queue that is one too many.
    TooManyQueues,
}

/// Why a reserve was kept waiting although something is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum HeldBack {
    /// Its queues hold as many leases as they may have now ([`crate::policy::Policy::max_leased`]). They are served when leases end.
    Leases,
}

impl HeldBack {
    /// The word for it in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            HeldBack::Leases => "leases",
        }
    }
}

/// A message handed to a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Grant {
    /// What the producer said.
    pub message: Arc<Message>,
    /// Grants so far, this one included.
    pub attempt: u32,
    /// The priority by which it was chosen.
    pub priority: u32,
    /// When it was due.
    pub due_at: WallMs,
    /// Proof of this lease.
    pub token: LeaseToken,
    /// The lease's deadline, by the wall clock as it is now.
    pub lease_until: WallMs,
    /// The lease's length, in ms.
    pub lease_ms: u64,
    /// Granted so long after it was due, in ms.
    pub lateness_ms: u64,
    /// Its generation.
    pub generation: u32,
}

/// What became of a settled message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Settled {
    /// It is no more.
    Acked,
    /// It is no more since an earlier ack with the same token, which is remembered in memory for a while.
    Already {
        /// The queue that it was in.
        queue: QueueName,
    },
    /// It comes again at this time.
    Again(WallMs),
    /// It is dead.
    Dead(DeadReason),
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
}

/// Why a change was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ChangeRefusal {
    /// Nothing is pending under this id or key.
    NotFound,
    /// A consumer has it.
    Leased,
    /// It is dead.
    Dead,
    /// It is not dead.
    NotDead,
    /// Its key was taken meanwhile.
    KeyExists(MessageId),
    /// Its generation is another.
    GenerationMismatch(u32),
    /// The due time has passed.
    InThePast,
    /// The due time is further away than this many ms.
    TooFar(u64),
    /// A part is larger than this many bytes.
    TooLarge(Part, usize),
    /// A value is outside of its range.
    OutOfRange(Part),
    /// Nothing was given that could be changed.
    NothingToChange,
    /// The lease asked for is longer than this many ms.
    LeaseTooLong(u64),
    /// Its queue gives nothing out.
    Paused,
    /// The store has no room for changes.
    DiskFull,
    /// As much is held as a limit allows.
    Overloaded(Limit),
    /// The store is behind with its work; it catches up by itself.
    Busy,
    /// The queue's tenant has used up its quota.
    OverQuota(Box<OverQuota>),
}

impl From<Box<OverQuota>> for ChangeRefusal {
    fn from(over: Box<OverQuota>) -> Self {
        ChangeRefusal::OverQuota(over)
    }
}

/// What is held in such a number that no more of it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Limit {
    /// Unsettled messages: so many are allowed.
    Messages(u64),
    /// Bytes of unsettled messages: so many are allowed.
    Bytes(u64),
    /// Queues: so many are allowed.
    Queues(u64),
    /// Leases, or bytes of leased messages.
    Leases,
}

/// The name of a field of [`QueueSettings`].
pub type SettingsField = &'static str;

/// Why settings were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum SettingsRefusal {
    /// This field is above its limit.
    OutOfRange(
        #[cfg_attr(feature = "serde", serde(with = "crate::wire::settings_field"))] SettingsField,
        u64,
    ),
    /// Too many queues.
    Overloaded,
}

/// A message as it is at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct View {
    /// What the producer said.
    pub message: Arc<Message>,
    /// Its state.
    pub state: State,
    /// When it is (or was) due, by the wall clock as it is now.
    pub due_at: WallMs,
    /// ms until it is due; 0 when it is.
    pub due_in_ms: u64,
    /// Grants so far.
    pub attempt: u32,
    /// Grants of these that do not count against `max_attempts`.
    pub forgiven: u32,
    /// Its generation.
    pub generation: u32,
    /// Its priority, its queue's setting counted in.
    pub priority: u32,
    /// The length of a lease, its queue's setting counted in.
    pub lease_ms: u64,
    /// The number of attempts it may have, its queue's setting counted in.
    pub max_attempts: u32,
    /// The lease's deadline, when leased.
    pub lease_until: Option<WallMs>,
    /// Why and since when, when dead.
    pub dead: Option<(DeadReason, WallMs)>,
    /// What has happened to it, counted.
    pub marks: Marks,
    /// The delay that was asked for last, in ms.
    pub delay_ms: u64,
    /// How earlier attempts ended.
    pub history: Vec<PastAttempt>,
}

/// A message as it is at this moment, without its body, headers and history: the answer to a change. A batch of ten
/// thousand changes takes as little memory for large messages as for small ones.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Outline {
    /// Its id.
    pub id: MessageId,
    /// Its queue.
    pub queue: QueueName,
    /// The producer's own name for it.
    pub key: Option<Key>,
    /// Its state.
    pub state: State,
    /// When it is (or was) due, by the wall clock as it is now.
    pub due_at: WallMs,
    /// ms until it is due; 0 when it is.
    pub due_in_ms: u64,
    /// Grants so far.
    pub attempt: u32,
    /// Its generation.
    pub generation: u32,
    /// Its priority, its queue's setting counted in.
    pub priority: u32,
    /// The length of a lease in ms, its queue's setting counted in.
    pub lease_ms: u64,
    /// The number of attempts it may have, its queue's setting counted in.
    pub max_attempts: u32,
    /// When it was accepted, by the wall clock.
    pub enqueued_at: WallMs,
    /// Why and since when, when dead.
    pub dead: Option<(DeadReason, WallMs)>,
}

/// A page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Page {
    /// Messages in due order. May be fewer than asked for although there are more: see `next`.
    pub views: Vec<View>,
    /// The place behind each of them: whoever takes only the first ones goes on there.
    pub behind: Vec<ListCursor>,
    /// Go on here; `None`: that was all.
    pub next: Option<ListCursor>,
}

/// A queue as it is at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QueueView {
    /// Its name.
    pub name: QueueName,
    /// Messages per state.
    pub counts: Counts,
    /// Those of its ready messages in memory whose priority is below 1024.
    pub urgent: u64,
    /// Its ready message that has been due for longest, if any: due since.
    pub oldest_ready: Option<WallMs>,
    /// Reserves waiting on it.
    pub waiters: usize,
    /// How often it is held for use.
    pub using: u32,
    /// How often it is held for watching.
    pub watching: u32,
    /// Whether anybody has reserved from it since the start.
    pub attended: Attended,
    /// What it has seen.
    pub totals: Totals,
    /// Per second, over the last seconds.
    pub rates: Rates,
    /// What its owner has set.
    pub settings: QueueSettings,
    /// Whether it gives messages out.
    pub pause: Pause,
    /// ms until a timed pause ends.
    pub pause_left_ms: Option<u64>,
}

/// Whether anybody has reserved from a queue since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Attended {
    /// Somebody has.
    Yes,
    /// Nobody has: what is ready there is kept and waits.
    #[default]
    No,
}

/// Messages per state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Counts {
    /// Not due.
    pub scheduled: u64,
    /// Due.
    pub ready: u64,
    /// With a consumer.
    pub leased: u64,
    /// Parked.
    pub dead: u64,
    /// `scheduled` and `ready` are exact together, but which of the two a message counts for is read off the histogram: not
    /// everything that is due is in memory.
    pub estimated: bool,
}

/// Events per second × 1000, over a sliding window of 10 to 20 s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Rates {
    /// Accepted.
    pub enqueued_milli: u64,
    /// Granted.
    pub granted_milli: u64,
    /// Acked.
    pub acked_milli: u64,
}

/// How many messages are due when.
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
    /// A message may be counted in the neighbouring column if it is due closer to the edge than this, in ms. Messages
    /// due at an instant are exact at this resolution; those due after a delay are placed by the present offset of the
    /// clocks.
    pub resolution_ms: u64,
}

/// The ring as it is at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WheelView {
    /// Slots of the ring.
    pub slots: usize,
    /// One step of the pointer, in ms.
    pub tick_ms: u64,
    /// The slot that the pointer has reached: of the ring of instants, and of the ring of delays.
    pub pointers: [usize; 2],
    /// Messages in the rings.
    pub messages: u64,
    /// Slots that are not empty, and how many messages are on each, of the ring of instants and of the ring of delays.
    pub occupied: [Vec<(usize, u64)>; 2],
}

/// Figures of the whole engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Stats {
    /// Messages per state.
    pub counts: Counts,
    /// Ready messages in memory whose priority is below 1024.
    pub urgent: u64,
    /// Weight of all unsettled messages, in bytes.
    pub bytes: u64,
    /// Messages in memory.
    pub resident: u64,
    /// Their weight, in bytes.
    pub resident_bytes: u64,
    /// Queues.
    pub queues: u64,
    /// Reserves waiting.
    pub waiters: u64,
    /// Since this engine was made.
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

/// Upper edges of the lateness columns, in ms; one more column is for everything above.
pub const LATENESS_MS: [u64; 14] = [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 60_000, 3_600_000];
