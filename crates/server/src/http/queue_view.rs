//! The present state of a queue in JSON, and its settings.

use duewheel::core::WallMs;
use duewheel::core::engine::{Attended, Counts, ExpiredCounts, QueueView, Rates};
use duewheel::core::policy::{Backoff, GrantRate, OnExpiry, QueueSettings, ReadyOrder, TraceMode};
use duewheel::core::record::{Pause, Totals};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::answer;
use super::strict::{U32_MAX, Whole, words};
use crate::hourly::HourlyRate;
use crate::json::{InstantText, QueueText, Thousandths};

answer! {
    /// The present state of a queue.
    #[schemars(rename = "Queue")]
    QueueAnswer<'a> of (view: &'a QueueView, now: WallMs) {
        queue: QueueText<'a> = QueueText(view.name.as_str()),
        counts: CountsAnswer = CountsAnswer::of(view.counts),
        /// Messages that have ended and are kept as done; they are in none of the counts.
        done: u64 = view.done,
        /// When the message that has been ready for longest was due.
        oldest_overdue: Option<InstantText> = view.oldest_ready.map(InstantText),
        /// The time since then; 0 when none is ready.
        oldest_overdue_ms: u64 = view.oldest_ready.map_or(0, |t| now.0.saturating_sub(t.0)),
        /// The number of reserves that wait.
        waiters: u64 = view.waiters as u64,
        /// Whether a consumer has reserved since the start.
        attended: bool = view.attended == Attended::Yes,
        rates: RatesAnswer = RatesAnswer::of(view.rates),
        totals: TotalsAnswer = TotalsAnswer::of(&view.totals),
        expired: ExpiredAnswer = ExpiredAnswer::of(view.expired),
        paused: bool = view.pause != Pause::Running,
        pause_left_ms: Option<u64> = view.pause_left_ms,
        config: SettingsAnswer = SettingsAnswer::of(&view.settings),
    }
}

answer! {
    /// Messages by state.
    #[schemars(rename = "Counts")]
    CountsAnswer of (counts: Counts) {
        scheduled: u64 = counts.scheduled,
        ready: u64 = counts.ready,
        leased: u64 = counts.leased,
        dead: u64 = counts.dead,
        /// Whether not all due messages are in memory: the sum of `scheduled` and `ready` is exact, and its two parts
        /// are read off the histogram.
        estimated: bool = counts.estimated,
    }
}

answer! {
    /// Counts of messages that had expired, since the start. Those that were dropped are in the totals, as `expired`.
    #[schemars(rename = "ExpiredCounts")]
    ExpiredAnswer of (expired: ExpiredCounts) {
        /// Grants of expired messages.
        late: u64 = expired.late,
        /// Messages that are dead because they had expired; `died` of the totals has them, too.
        dead: u64 = expired.dead,
    }
}

answer! {
    /// Messages per second, over the last seconds.
    #[schemars(rename = "Rates")]
    RatesAnswer of (rates: Rates) {
        enqueued: Thousandths = Thousandths(rates.enqueued_milli),
        granted: Thousandths = Thousandths(rates.granted_milli),
        acked: Thousandths = Thousandths(rates.acked_milli),
    }
}

macro_rules! totals {
    ($(#[doc = $doc:tt] $name:ident),*) => {
        /// Totals since the queue came into existence.
        #[derive(Debug, JsonSchema, Serialize)]
        #[schemars(rename = "Totals")]
        pub(crate) struct TotalsAnswer {
            $(#[doc = $doc] pub(super) $name: u64,)*
        }

        impl TotalsAnswer {
            pub(super) fn of(totals: &Totals) -> Self {
                TotalsAnswer { $($name: totals.$name,)* }
            }
        }

        /// Names, descriptions and values of all totals.
        pub(crate) fn totals(totals: &Totals) -> [(&'static str, &'static str, u64); TOTALS.len()] {
            [$((stringify!($name), $doc.trim_ascii(), totals.$name),)*]
        }

        const TOTALS: &[&str] = &[$(stringify!($name),)*];
    };
}

totals! {
    /// Messages accepted.
    enqueued,
    /// Grants.
    granted,
    /// Messages acked.
    acked,
    /// Messages cancelled.
    cancelled,
    /// Messages replaced.
    replaced,
    /// Messages whose key another one took while they were leased, and whose lease ended without an ack.
    superseded,
    /// Messages purged.
    purged,
    /// Messages that died, each time.
    died,
    /// Messages removed because they had expired: dead ones by the queue's `dead_ttl_ms`, others by its `on_expiry`.
    expired
}

answer! {
    /// The settings of a queue, in the form in which they can be set again; `null` where the server's default applies.
    #[schemars(rename = "Settings")]
    SettingsAnswer of (settings: &QueueSettings) {
        lease_ms: Option<u64> = settings.lease_ms,
        max_attempts: Option<u32> = settings.max_attempts.map(|n| n.count()),
        priority: Option<u32> = settings.priority,
        backoff: Option<BackoffAnswer> = settings.backoff.map(BackoffAnswer::of),
        dedupe_window_ms: Option<u64> = settings.dedupe_window_ms,
        dead_ttl_ms: Option<u64> = settings.dead_ttl_ms,
        order: Option<OrderWord> = settings.order.map(OrderWord::from),
        #[serde(flatten)]
        limits: LimitsAnswer = LimitsAnswer::of(settings),
        on_expiry: Option<OnExpiryWord> = settings.on_expiry.map(OnExpiryWord::from),
        /// How long messages that have ended are kept; `null` for not at all.
        keep_done_ms: Option<u64> = settings.keep_done_ms,
        trace: Option<TraceWord> = settings.trace.map(TraceWord::from),
        /// The target that its messages are delivered to, if it has one; only where the settings are asked for or set.
        ?target: String = None,
    }
}

words! {
    /// The order of ready messages of equal priority: by due time, which is the default, or in the order in which they
    /// were accepted.
    #[schemars(rename = "Order")]
    OrderWord = ReadyOrder { Due "due", Arrival "arrival" }

    /// What happens with a message that has expired when it would be granted: it is granted and the grant says `late`,
    /// which is the default, or it is dead, or it is removed.
    #[schemars(rename = "OnExpiry")]
    OnExpiryWord = OnExpiry { DeliverLate "deliver_late", Dead "dead", Drop "drop" }

    /// How the trace of a delivery belongs to that of its message's creation: `link`, which is the default, is a trace of
    /// its own with a link, `child` a span of the same trace.
    #[schemars(rename = "Trace")]
    TraceWord = TraceMode { Link "link", Child "child" }
}

/// Grants a second, over time and at once.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "GrantRate")]
pub(crate) struct GrantRateFields {
    /// Messages granted a second, over time: a whole number, or a fraction that is a whole number an hour.
    per_second: HourlyRate,
    /// Messages that may be granted at once after a pause; by default those of 10 ms, at least one.
    burst: Option<Whole<1, U32_MAX>>,
}

impl From<GrantRateFields> for GrantRate {
    fn from(fields: GrantRateFields) -> Self {
        GrantRate { per_hour: fields.per_second.0, burst: fields.burst.map(Whole::get) }
    }
}

answer! {
    /// The rate of a queue's grants, as it was set.
    #[schemars(rename = "GrantRateSettings")]
    GrantRateAnswer of (rate: GrantRate) {
        per_second: HourlyRate = HourlyRate(rate.per_hour),
        /// `null`: the messages of 10 ms, at least one.
        burst: Option<u32> = rate.burst,
    }
}

answer! {
    /// The limits and the expiry in effect; `null` where there is none.
    #[schemars(rename = "GrantSettings")]
    LimitsAnswer of (settings: &QueueSettings) with {
        let limits = settings.limits;
    } {
        /// Messages granted a second; `null` for no limit.
        rate: Option<GrantRateAnswer> = limits.rate.map(GrantRateAnswer::of),
        /// Messages granted a second while the next one has been due for more than 10 s; `null` for `rate` alone.
        catchup_rate: Option<HourlyRate> = limits.catchup_per_hour.map(HourlyRate),
        /// Leases at a time; `null` for no limit of the queue's own.
        concurrency: Option<u32> = limits.concurrency,
        /// How long after its due time a message without an expiry of its own expires; `null` for never.
        expires_in_ms: Option<u64> = settings.expires_in_ms,
    }
}

answer! {
    /// The delay before the next attempt, as it was set.
    #[schemars(rename = "BackoffSettings")]
    BackoffAnswer of (backoff: Backoff) {
        min_ms: u64 = backoff.min_ms,
        max_ms: u64 = backoff.max_ms,
    }
}
