//! Every limit and every default of duewheel, in one file.
//!
//! No request may exceed a limit; a default applies when neither the message nor its queue has a setting of its own.
//! Limits are values, so that tests can make them tiny.

use std::time::Duration;

use crate::name::named_enum;
use crate::random::scaled;
use crate::time::ceil_ms;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
const SECOND: u64 = 1_000;
const HOUR: u64 = 3_600 * SECOND;
const DAY: u64 = 24 * HOUR;

/// The size of a group, in bytes, that every store accepts after it has reported room. A driver cuts its groups between
/// operations, at a quarter of this size at the latest, so that another operation fits. Records that time causes in a
/// step (at most [`Policy::max_step`] of a kind) are cut only afterwards.
pub const AGREED_GROUP_BYTES: usize = 16 * MIB;

/// Largest size of a record without the message's body and headers, in bytes: names, keys, numbers.
pub const OF_RECORD: usize = 4 * KIB;
/// Largest size of a number or a length in a record, in bytes.
pub(crate) const OF_A_NUMBER: usize = 10;

/// Largest number of backlog pages that an engine loads at a time.
pub const PAGES_UNDER_WAY: usize = 16;

/// How long the totals of an empty queue without settings are kept, in ms.
pub const REST_MS: u64 = DAY;

/// A structure whose fields are stated together with their defaults.
macro_rules! with_defaults {
    ($(#[$of_all:meta])* pub struct $name:ident { $($(#[$of:meta])* pub $field:ident: $t:ty = $default:expr,)* }) => {
        $(#[$of_all])*
        pub struct $name {
            $($(#[$of])* pub $field: $t,)*
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $default,)* }
            }
        }
    };
}

with_defaults! {
/// Every limit. `Policy::default()` is the policy of the server and the library.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct Policy {
    /// Longest delay, and furthest due time from now, in ms: the longest of beanstalkd's protocol, whose seconds have 32
    /// bits; 136 years.
    pub max_delay_ms: u64 = u64::from(u32::MAX) * 1_000,
    /// Longest lease, in ms. 2^32 s, as far as beanstalkd's TTR goes.
    pub max_lease_ms: u64 = 4_294_967_296 * SECOND,
    /// Largest body, in bytes.
    pub max_body: usize = 256 * KIB,
    /// Largest sum of header names and values of a message, in bytes.
    pub max_headers: usize = 16 * KIB,
    /// Longest `dedupe_id`, in bytes.
    pub max_dedupe_id: usize = 256,
    /// Longest dedupe window a queue may ask for, in ms.
    pub max_dedupe_window_ms: u64 = 30 * DAY,
    /// Largest number of messages of one batch request.
    pub max_batch_messages: usize = 10_000,
    /// Largest size of one batch request, in bytes.
    pub max_batch_bytes: usize = 16 * MIB,
    /// Largest number of messages of one reserve.
    pub max_reserve: usize = 10_000,
    /// Largest size of the bodies of one reserve, in bytes (the first message always fits).
    pub max_reserve_bytes: usize = 16 * MIB,
    /// Largest number of queues that one request may reserve from.
    pub max_reserve_queues: usize = 100,
    /// Longest wait that a front end may offer for one request, in ms. The engine itself sets no limit.
    pub max_wait_ms: u64 = 10 * 60 * SECOND,
    /// Largest number of waiting reserves.
    pub max_waiters: usize = 100_000,
    /// Largest number of messages in one page of a listing.
    pub max_page: usize = 1_000,
    /// Number of priorities that are examined to find the oldest ready message of a queue.
    pub max_priorities: usize = 1_000,
    /// Largest number of columns of a histogram.
    pub max_histogram: usize = 10_000,
    /// Largest number of unsettled messages.
    pub max_messages: usize = 10_000_000_000,
    /// Largest weight of the unsettled messages, in bytes.
    pub max_message_bytes: usize = 4 * 1024 * 1024 * MIB,
    /// Largest number of remembered answers (`dedupe_id`), of all queues together. At the limit the oldest are forgotten.
    pub max_answers: usize = 1_000_000_000,
    /// Largest size of those, in bytes; likewise.
    pub max_answer_bytes: usize = 256 * 1024 * MIB,
    /// Answers younger than this are not forgotten for a limit or for room, in ms.
    pub min_answer_ms: u64 = 600 * SECOND,
    /// Largest number of done messages, of all queues together. A queue whose messages end beyond it gives up the done
    /// messages that it has had for longest.
    pub max_done: usize = 10_000_000,
    /// Largest weight of the done messages, in bytes; likewise.
    pub max_done_bytes: usize = 4 * 1024 * MIB,
    /// Largest number of acts whose records are kept ([`crate::act`]); the oldest are removed.
    pub max_acts: usize = 1_000,
    /// Largest number of them with the same token.
    pub max_acts_of_token: usize = 100,
    /// Largest result of an ack, in bytes.
    pub max_result: usize = 16 * 1024,
    /// Largest detail of a settlement, in bytes; a larger one is left out.
    pub max_detail: usize = 24 * KIB,
    /// Longest time for which done messages are kept, in ms.
    pub max_keep_done_ms: u64 = 366 * DAY,
    /// Largest size of the records of one operation, in bytes: a message that ends is kept only if its record fits
    /// together with the operation's other records.
    pub max_op_bytes: usize = AGREED_GROUP_BYTES - 4 * MIB,
    /// Largest number of queues.
    pub max_queues: usize = 1_000_000,
    /// Largest number of quotas.
    pub max_quotas: usize = 10_000,
    /// Largest limit of a quota: messages, bytes or leases.
    pub max_quota: u64 = 1 << 53,
    /// Largest rate, and largest burst, of a quota, in enqueues a second.
    pub max_quota_rate: u64 = 1_000_000_000,
    /// The longest time in ms that a new message waits for its quota's rate, if it may wait.
    pub max_pace_wait_ms: u64 = 10 * SECOND,
    /// Number of messages that the reserves of one step may ask for while there are quotas; further reserves take their
    /// turn in the next step.
    pub max_turn: usize = 4_096,
    /// Memory for the histories of all queues, and size of those that are stored, in bytes; beyond it the oldest points
    /// are given up. 0: no history is kept, as in the library.
    pub max_history_bytes: usize = 0,
    /// Number of past attempts that are kept of a message.
    pub max_history: usize = 8,
    /// Longest note of a nack, in bytes; a longer one is cut.
    pub max_note: usize = 256,
    /// Number of acks kept in memory, so that a repeated ack is answered as done.
    pub max_acked: usize = 100_000,
    /// How long an ack is remembered, in ms.
    pub acked_ms: u64 = 5 * 60 * SECOND,
    /// Largest amount of each kind of work in one step of the engine: messages fired, leases ended, purged messages
    /// swept, messages put into another order, grants, and ended waits, pauses and queues.
    pub max_step: usize = 4_096,
    /// Approximate bytes of the records that time causes in one step of the engine; a step that would make more
    /// continues in the next one. A driver decides no further operation of a batch either once its records have this
    /// size.
    pub max_step_bytes: usize = MIB,
    /// Number of operations that are decided after one look-up in the store.
    pub max_batch_ops: usize = 2_048,
    /// Largest number of records of one group; a step that decides more makes several groups.
    pub max_group_records: usize = 50_000,
    /// Largest size of one group, in bytes, likewise.
    pub max_group_bytes: usize = 4 * MIB,
    /// Largest number of requests that wait for the driver.
    pub max_inbox_requests: usize = 200_000,
    /// Largest size of the requests that wait for the driver, in bytes.
    pub max_inbox_bytes: usize = 256 * MIB,
    /// Number of replies that may wait for the disk; above it the driver takes no more requests until some replies have
    /// left.
    pub max_pending_replies: usize = 400_000,
    /// Weight of the messages in those replies, in bytes, likewise.
    pub max_pending_reply_bytes: usize = 64 * MIB,
    /// Largest number of messages in the wheel; messages due later are in the store alone.
    pub near_messages: usize = 200_000,
    /// Largest weight of those, in bytes; it may be exceeded by one message.
    pub near_bytes: usize = 128 * MIB,
    /// Largest number of ready messages in memory, of all queues together. While all ready messages fit, all are in
    /// memory; demand decides about the others, which are in the store alone.
    pub ready_messages: usize = 200_000,
    /// Largest weight of those, in bytes; it may be exceeded by one message.
    pub ready_bytes: usize = 128 * MIB,
    /// Number of backlog messages that a queue in demand is given at a time, however many queues share.
    pub least_window: usize = 4,
    /// How long a queue is in demand after a reserve, in ms.
    pub demand_ms: u64 = 10 * SECOND,
    /// Largest number of queues with a backlog that a page for the other queues leaves out.
    pub max_left_out: usize = 256,
    /// Largest number of leases, of all queues together. Half of them are given in order of arrival; while more are in
    /// use, a queue gets another one only if it has less than a part of those that are still free
    /// ([`Policy::lease_part`]). So one queue alone has at most half of them.
    pub max_leased: usize = 500_000,
    /// Largest weight of leased messages, in bytes; shared in the same way.
    pub max_leased_bytes: usize = 512 * MIB,
    /// The divisor that determines a queue's part of the free leases while more than half is leased.
    pub lease_part: u64 = 8,
    /// Longest time that a reserve waits for due messages that are being loaded from the store, in ms.
    pub max_load_wait_ms: u64 = 2 * SECOND,
    /// Largest number of rows of one load from the store.
    pub load_rows: usize = 4_096,
    /// Largest size of the bodies of one load from the store, in bytes.
    pub load_bytes: usize = 16 * MIB,
    /// Largest weight of the messages that one look-up in the store brings into memory, in bytes. A batch whose
    /// operations name more is decided in several parts, each with its own look-up.
    pub found_bytes: usize = 16 * MIB,
    /// Number of answers (listings, peeks, redrives) for which pages are read at a time; each may hold `load_bytes` for
    /// each of two sequences. The others wait for their turn.
    pub max_gathers: usize = 4,
    /// Number of queues whose dead messages are read at a time to remove expired ones; `load_bytes` for each.
    pub max_dead_pages: usize = 2,
    /// Number of slots of the ring.
    pub wheel_slots: usize = 3_600,
    /// Duration of one step of the pointer, in ms. Precision does not depend on it.
    pub wheel_tick_ms: u64 = 1_000,
    /// Longest sleep of the driver, in ms, so that it notices a stepped clock.
    pub max_sleep_ms: u64 = SECOND,
    /// Settings of a queue when neither the queue nor the message has its own.
    pub defaults: Defaults = Defaults::default(),
}
}

with_defaults! {
/// Settings that apply when neither the message nor its queue has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct Defaults {
    /// Length of a lease, in ms.
    pub lease_ms: u64 = 30 * SECOND,
    /// Number of grants after which a message is dead.
    pub max_attempts: MaxAttempts = MaxAttempts::new(20).unwrap_or(MaxAttempts::UNLIMITED),
    /// Priority; lower is granted first.
    pub priority: u32 = 1024,
    /// Delay before the next attempt.
    pub backoff: Backoff = Backoff { min_ms: SECOND, max_ms: HOUR },
    /// How long a `dedupe_id` is remembered, in ms.
    pub dedupe_window_ms: u64 = 24 * HOUR,
}
}

/// Number of grants after which a message is dead; at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MaxAttempts(std::num::NonZeroU32);

impl From<std::num::NonZeroU32> for MaxAttempts {
    fn from(n: std::num::NonZeroU32) -> Self {
        MaxAttempts(n)
    }
}

impl MaxAttempts {
    /// No limit: attempts never make the message dead, as in beanstalkd.
    pub const UNLIMITED: MaxAttempts = MaxAttempts(std::num::NonZeroU32::MAX);

    /// A limit of `n` attempts; `None` for 0, because a message that may never be tried makes no sense.
    pub fn new(n: u32) -> Option<Self> {
        std::num::NonZeroU32::new(n).map(MaxAttempts)
    }

    /// The limit as a number.
    pub fn count(self) -> u32 {
        self.0.get()
    }
}

/// Exponential backoff between `min_ms` and `max_ms`, which doubles with each attempt and has jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Backoff {
    /// Delay after the first failed attempt, in ms.
    pub min_ms: u64,
    /// Longest delay, in ms.
    pub max_ms: u64,
}

impl Backoff {
    /// The delay before the next attempt, never outside of `min_ms ..= max_ms`.
    ///
    /// `attempt` counts from 1. `random` is any 64-bit number; the same number gives the same delay. Below the cap the
    /// delay lies between d and 1.5 d with d = min × 2^(attempt−1), at the cap between 0.75 max and max, so that
    /// retries of one incident spread out (Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
    ///
    /// ```
    /// use duewheel_core::policy::Backoff;
    /// let b = Backoff { min_ms: 1_000, max_ms: 3_600_000 };
    /// assert_eq!(b.delay_ms(1, 0), 1_000);
    /// assert_eq!(b.delay_ms(4, 0), 8_000);
    /// assert_eq!(b.delay_ms(40, 0), 3_600_000);
    /// ```
    pub fn delay_ms(&self, attempt: u32, random: u64) -> u64 {
        let max = self.max_ms.max(self.min_ms);
        let doublings = attempt.saturating_sub(1).min(63);
        let base = self.min_ms.saturating_mul(1u64 << doublings).min(max);
        let share = |whole: u64| scaled(random, whole.saturating_sub(1));
        let up = base.saturating_add(share(base / 2));
        if up <= max { up } else { (max - share(max / 4)).max(self.min_ms) }
    }
}

/// Order in which ready messages of equal priority are granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ReadyOrder {
    /// By due time.
    #[default]
    Due,
    /// By the order in which they were accepted, as in beanstalkd.
    Arrival,
}

/// How long a queue's settings last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Lasting {
    /// Until they are replaced: they keep an empty queue in existence.
    #[default]
    Always,
    /// While the queue has messages or users.
    WhileUsed,
}

/// The settings that the owner of a queue has configured. `None`: the default applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct QueueSettings {
    /// Length of a lease, in ms.
    pub lease_ms: Option<u64>,
    /// Number of grants after which a message is dead.
    pub max_attempts: Option<MaxAttempts>,
    /// Priority; lower is granted first.
    pub priority: Option<u32>,
    /// Delay before the next attempt.
    pub backoff: Option<Backoff>,
    /// How long a `dedupe_id` is remembered, in ms.
    pub dedupe_window_ms: Option<u64>,
    /// Dead messages are removed after this time, in ms. `None`: kept.
    pub dead_ttl_ms: Option<u64>,
    /// Order of grants.
    pub order: Option<ReadyOrder>,
    /// How long these settings last.
    pub lasting: Lasting,
    /// Limits of its grants.
    pub limits: GrantLimits,
    /// Messages without an expiry of their own expire this many ms after they are due. `None`: never.
    pub expires_in_ms: Option<u64>,
    /// How expired messages are handled.
    pub on_expiry: Option<OnExpiry>,
    /// Messages that have ended are kept as done for this time, in ms. `None`: not kept.
    pub keep_done_ms: Option<u64>,
    /// How the trace of a delivery belongs to the one in which its message was created.
    pub trace: Option<TraceMode>,
}

/// Limits of the grants of one queue, for all its consumers together. `None`: no limit.
///
/// Each shard of a cluster keeps to its part of them, so the sum over all shards holds without communication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GrantLimits {
    /// Grants over time.
    pub rate: Option<GrantRate>,
    /// Grants an hour while the next message has been due for more than [`CATCHUP_MS`], if that is less than `rate`.
    pub catchup_per_hour: Option<u64>,
    /// Leases at a time; not less than the number of shards.
    pub concurrency: Option<u32>,
}

/// Grants over time and at once.
///
/// ```
/// use duewheel_core::policy::GrantRate;
/// let ten_a_minute = GrantRate::per_hour(10 * 60);
/// assert_eq!(GrantRate::per_second(5), GrantRate::per_hour(5 * 3_600));
/// assert_eq!(GrantRate { burst: Some(3), ..ten_a_minute }.burst_that_applies(), 3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GrantRate {
    /// Grants an hour, over time.
    pub per_hour: u64,
    /// Grants that may come at once after a pause. `None`: those of [`BURST_MS`], at least one.
    pub burst: Option<u32>,
}

impl GrantRate {
    /// This many grants a second, with the usual burst.
    pub const fn per_second(n: u32) -> Self {
        GrantRate::per_hour(n as u64 * SECONDS_PER_HOUR)
    }

    /// This many grants an hour, with the usual burst.
    pub const fn per_hour(n: u64) -> Self {
        GrantRate { per_hour: n, burst: None }
    }

    /// The grants that may come at once after a pause, at least one.
    ///
    /// ```
    /// use duewheel_core::policy::GrantRate;
    /// assert_eq!(GrantRate::per_second(5_000).burst_that_applies(), 50);
    /// assert_eq!(GrantRate::per_second(5).burst_that_applies(), 1);
    /// ```
    pub fn burst_that_applies(self) -> u32 {
        let usual = self.per_hour.saturating_mul(BURST_MS) / HOUR_MS;
        self.burst.unwrap_or(u32::try_from(usual).unwrap_or(u32::MAX)).max(1)
    }
}

/// Rates of grants are whole numbers an hour.
pub const SECONDS_PER_HOUR: u64 = 3_600;

pub(crate) const HOUR_MS: u64 = SECONDS_PER_HOUR * SECOND;

/// Largest arrears of a queue, in ms of its rate: grants that were possible, but that consumers or the server were too
/// late for, are made up for up to this limit. With the burst of [`BURST_MS`] that is 2 % of five seconds.
pub const ARREARS_MS: u64 = 90;

/// A queue whose next message has been due for longer than this is behind, and catches up, in ms.
pub const CATCHUP_MS: u64 = 10 * SECOND;

/// A rate without a burst lets the grants of this time through at once, in ms: what any window of a few seconds counts
/// is within a hundredth of the rate.
pub const BURST_MS: u64 = 10;

named_enum! {
/// How a message that has expired is handled when it would be granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum OnExpiry {
    /// An expired message is granted all the same, and the grant says that it is late.
    #[default]
    DeliverLate => "deliver_late",
    /// An expired message is dead.
    Dead => "dead",
    /// An expired message is removed, as settled.
    Drop => "drop",
}
}

/// How the trace of a delivery belongs to the one in which its message was created. The engine keeps the setting, and does
/// nothing with it: programs that make spans read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum TraceMode {
    /// The delivery is a trace of its own with a link to the creation of the message.
    #[default]
    Link,
    /// The delivery is a child of the creation of the message, in the same trace.
    Child,
}

impl QueueSettings {
    /// Sets how long a consumer has a message to itself, rounded up to a millisecond, as all times here.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        QueueSettings { lease_ms: Some(ceil_ms(lease)), ..self }
    }

    /// Makes messages dead after this many deliveries; 0 counts as 1.
    #[must_use]
    pub fn max_attempts(self, n: u32) -> Self {
        QueueSettings { max_attempts: MaxAttempts::new(n.max(1)), ..self }
    }

    /// Sets the delay before the next attempt: `min` after the first, doubled up to `max`.
    #[must_use]
    pub fn backoff(self, min: Duration, max: Duration) -> Self {
        QueueSettings { backoff: Some(Backoff { min_ms: ceil_ms(min), max_ms: ceil_ms(max) }), ..self }
    }

    /// Sets how long a `dedupe_id` is remembered.
    #[must_use]
    pub fn dedupe_window(self, window: Duration) -> Self {
        QueueSettings { dedupe_window_ms: Some(ceil_ms(window)), ..self }
    }

    /// Removes dead messages after this time.
    #[must_use]
    pub fn keep_dead(self, time: Duration) -> Self {
        QueueSettings { dead_ttl_ms: Some(ceil_ms(time)), ..self }
    }

    /// Keeps messages that have ended as done for this time.
    #[must_use]
    pub fn keep_done(self, time: Duration) -> Self {
        QueueSettings { keep_done_ms: Some(ceil_ms(time)), ..self }
    }

    /// Makes messages without an expiry of their own expire this long after they are due.
    #[must_use]
    pub fn expires_in(self, time: Duration, on_expiry: OnExpiry) -> Self {
        QueueSettings { expires_in_ms: Some(ceil_ms(time)), on_expiry: Some(on_expiry), ..self }
    }

    /// Whether they keep an empty queue in existence.
    pub fn keep_a_queue(&self) -> bool {
        self.lasting == Lasting::Always && *self != QueueSettings::default()
    }
}

impl Policy {
    /// The smallest size of a store's groups that accepts every message that this policy allows, in bytes.
    pub fn least_group(&self) -> usize {
        let largest = self.max_body.saturating_add(self.max_headers).saturating_add(OF_RECORD);
        largest.saturating_mul(2).max(AGREED_GROUP_BYTES)
    }

    /// This policy, reduced to a store whose groups have at most `group_bytes` bytes: bodies and headers are no larger
    /// than such a group, and there are no more leases than the record of a purge can name, however far apart their ids
    /// are. The operation that is decided last comes on top of what a driver has gathered before it cuts a group.
    #[must_use]
    pub fn fitting(mut self, group_bytes: usize) -> Policy {
        let gathered = self.max_group_bytes.min(group_bytes / 4);
        self.max_op_bytes = self.max_op_bytes.min(group_bytes.saturating_sub(gathered));
        let most = group_bytes.saturating_sub(gathered).saturating_sub(OF_RECORD);
        // Headers are small compared to bodies, and must keep some space.
        self.max_headers = self.max_headers.min(most / 32);
        self.max_body = self.max_body.min(most - self.max_headers);
        self.max_leased = self.max_leased.min(most / OF_A_NUMBER);
        self
    }
}

/// The first character of a `dedupe_id` that duewheel itself makes, for occurrences of schedules. Its answer is remembered
/// for [`OWN_DEDUPE_WINDOW_MS`], whatever the window of the queue is: a schedule has to know later whether an occurrence
/// has entered its queue.
pub const OWN_DEDUPE: char = '\u{1}';

/// How the `dedupe_id` of an occurrence begins that a schedule has entered itself.
pub const OWN_OCCURRENCE: &str = "\u{1}schedule/";

/// An occurrence is on time for this long after it was due, in ms.
pub const ON_TIME_MS: u64 = 30 * SECOND;

/// Occurrences that became due while their shard was closed, and are not on time, are withheld from consumers for this
/// long after its opening, in ms, so that their schedules decide first.
pub const WITHHELD_MS: u64 = 5 * SECOND;

/// How long the answer to an enqueue with such a `dedupe_id` is remembered, in ms; at most
/// [`Policy::max_dedupe_window_ms`].
pub const OWN_DEDUPE_WINDOW_MS: u64 = 7 * DAY;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::MessageId;
    use crate::record::{Record, Writer};

    #[test]
    fn policy_fits_store_group_size() {
        let default = Policy::default();
        assert_eq!(default.clone().fitting(AGREED_GROUP_BYTES), default, "every store takes the defaults");
        let large = Policy { max_body: 100 * MIB, max_headers: MIB, ..Policy::default() };
        let fitting = large.clone().fitting(AGREED_GROUP_BYTES);
        let gathered = AGREED_GROUP_BYTES / 4;
        assert_eq!(fitting.max_body + fitting.max_headers + OF_RECORD + gathered, AGREED_GROUP_BYTES);
        assert!(fitting.max_headers > 16 * KIB && fitting.max_headers < MIB);
        for policy in [default, large.clone()] {
            assert_eq!(policy.clone().fitting(policy.least_group()), policy);
        }
        assert_eq!(large.fitting(100).max_body, 0);
    }

    /// Story: the record of a purge names the leases that stay, and with enough of them it was larger than the store
    /// had agreed to.
    #[test]
    fn purge_record_fits_store_group() {
        for group in [64 * KIB, 256 * KIB, MIB] {
            let policy = Policy { max_leased: 100_000_000, ..Policy::default() }.fitting(group);
            let far_apart = u64::MAX / policy.max_leased as u64;
            let keep = (1..=policy.max_leased as u64).map(|n| MessageId(n * far_apart)).collect();
            let queue = crate::QueueName::new(&"q".repeat(200)).unwrap();
            let record = Record::Purged { queue, keep, before: MessageId(u64::MAX), purged: u64::MAX };
            let gathered = policy.max_group_bytes.min(group / 4);
            assert!(gathered + record.weight() <= group, "{} in a group of {group}", record.weight());
            let mut writer = Writer::default();
            writer.record(&record);
            assert!(writer.bytes.len() <= record.weight());
            assert!(policy.max_leased >= group / 20, "{} leases", policy.max_leased);
        }
        assert_eq!(Policy::default().fitting(AGREED_GROUP_BYTES).max_leased, Policy::default().max_leased);
    }

    #[test]
    fn backoff_grows_within_its_bounds() {
        let b = Backoff { min_ms: 1_000, max_ms: 3_600_000 };
        for attempt in 1..100 {
            for random in [0, 1, u64::MAX / 2, u64::MAX] {
                let d = b.delay_ms(attempt, random);
                assert!((1_000..=3_600_000).contains(&d), "{attempt} {random}: {d}");
            }
        }
        assert_eq!(b.delay_ms(1, u64::MAX), 1_499);
        assert_eq!(b.delay_ms(50, u64::MAX), 2_700_001);
        assert_eq!(Backoff { min_ms: u64::MAX, max_ms: 0 }.delay_ms(9, u64::MAX), u64::MAX);
        assert_eq!(Backoff { min_ms: 0, max_ms: 0 }.delay_ms(9, 7), 0);
    }
}
