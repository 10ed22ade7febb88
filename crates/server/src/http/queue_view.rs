//! The present state of a queue in JSON, and its settings.

use duewheel::core::WallMs;
use duewheel::core::engine::{Attended, Counts, QueueView, Rates};
use duewheel::core::policy::{
    Backoff, GrantLimits, GrantRate, OnExpiry, QueueSettings, ReadyOrder, TraceMode,
};
use duewheel::core::record::{Pause, Totals};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::strict::{U32_MAX, Whole, words};
use crate::hourly::HourlyRate;
use crate::json::{InstantText, Thousandths};
use crate::schema::QueueSchema;

/// The present state of a queue.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Queue")]
pub(crate) struct QueueAnswer<'a> {
    #[schemars(with = "QueueSchema")]
    pub(super) queue: &'a str,
    pub(super) counts: CountsAnswer,
    /// Messages that have ended and are kept as done; they are in none of the counts.
    pub(super) done: u64,
    /// When the message that has been ready for longest was due.
    pub(super) oldest_overdue: Option<InstantText>,
    /// The time since then; 0 when none is ready.
    pub(super) oldest_overdue_ms: u64,
    /// The number of reserves that wait.
    pub(super) waiters: u64,
    /// Whether a consumer has reserved since the start.
    pub(super) attended: bool,
    pub(super) rates: RatesAnswer,
    pub(super) totals: TotalsAnswer,
    pub(super) expired: ExpiredAnswer,
    pub(super) paused: bool,
    pub(super) pause_left_ms: Option<u64>,
    pub(super) config: SettingsAnswer,
}

impl<'a> QueueAnswer<'a> {
    pub(crate) fn of(view: &'a QueueView, now: WallMs) -> Self {
        QueueAnswer {
            queue: view.name.as_str(),
            counts: CountsAnswer::of(view.counts),
            done: view.done,
            oldest_overdue: view.oldest_ready.map(InstantText),
            oldest_overdue_ms: view.oldest_ready.map_or(0, |t| now.0.saturating_sub(t.0)),
            waiters: view.waiters as u64,
            attended: view.attended == Attended::Yes,
            rates: RatesAnswer::of(view.rates),
            totals: TotalsAnswer::of(&view.totals),
            expired: ExpiredAnswer { late: view.expired.late, dead: view.expired.dead },
            paused: view.pause != Pause::Running,
            pause_left_ms: view.pause_left_ms,
            config: SettingsAnswer::of(&view.settings),
        }
    }
}

/// Messages by state.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Counts")]
pub(crate) struct CountsAnswer {
    pub(super) scheduled: u64,
    pub(super) ready: u64,
    pub(super) leased: u64,
    pub(super) dead: u64,
    /// Whether not all due messages are in memory: the sum of `scheduled` and `ready` is exact, and its two parts are
    /// read off the histogram.
    pub(super) estimated: bool,
}

impl CountsAnswer {
    pub(super) fn of(counts: Counts) -> Self {
        let Counts { scheduled, ready, leased, dead, estimated } = counts;
        CountsAnswer { scheduled, ready, leased, dead, estimated }
    }
}

/// Counts of messages that had expired, since the start. Those that were dropped are in the totals, as `expired`.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "ExpiredCounts")]
pub(crate) struct ExpiredAnswer {
    /// Grants of expired messages.
    pub(super) late: u64,
    /// Messages that are dead because they had expired; `died` of the totals has them, too.
    pub(super) dead: u64,
}

/// Messages per second, over the last seconds.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Rates")]
pub(crate) struct RatesAnswer {
    pub(super) enqueued: Thousandths,
    pub(super) granted: Thousandths,
    pub(super) acked: Thousandths,
}

impl RatesAnswer {
    fn of(rates: Rates) -> Self {
        RatesAnswer {
            enqueued: Thousandths(rates.enqueued_milli),
            granted: Thousandths(rates.granted_milli),
            acked: Thousandths(rates.acked_milli),
        }
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

/// The settings of a queue, in the form in which they can be set again; `null` where the server's default applies.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Settings")]
pub(crate) struct SettingsAnswer {
    pub(super) lease_ms: Option<u64>,
    pub(super) max_attempts: Option<u32>,
    pub(super) priority: Option<u32>,
    pub(super) backoff: Option<BackoffAnswer>,
    pub(super) dedupe_window_ms: Option<u64>,
    pub(super) dead_ttl_ms: Option<u64>,
    pub(super) order: Option<OrderWord>,
    #[serde(flatten)]
    pub(super) limits: LimitsAnswer,
    pub(super) on_expiry: Option<OnExpiryWord>,
    /// How long messages that have ended are kept; `null` for not at all.
    pub(super) keep_done_ms: Option<u64>,
    pub(super) trace: Option<TraceWord>,
    /// The target that its messages are delivered to, if it has one; only where the settings are asked for or set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<String>,
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

/// The rate of a queue's grants, as it was set.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "GrantRateSettings")]
pub(crate) struct GrantRateAnswer {
    pub(super) per_second: HourlyRate,
    /// `null`: the messages of 10 ms, at least one.
    pub(super) burst: Option<u32>,
}

impl GrantRateAnswer {
    pub(super) fn of(GrantRate { per_hour, burst }: GrantRate) -> Self {
        GrantRateAnswer { per_second: HourlyRate(per_hour), burst }
    }
}

/// The limits and the expiry in effect; `null` where there is none.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "GrantSettings")]
pub(crate) struct LimitsAnswer {
    /// Messages granted a second; `null` for no limit.
    pub(super) rate: Option<GrantRateAnswer>,
    /// Messages granted a second while the next one has been due for more than 10 s; `null` for `rate` alone.
    pub(super) catchup_rate: Option<HourlyRate>,
    /// Leases at a time; `null` for no limit of the queue's own.
    pub(super) concurrency: Option<u32>,
    /// How long after its due time a message without an expiry of its own expires; `null` for never.
    pub(super) expires_in_ms: Option<u64>,
}

impl LimitsAnswer {
    pub(super) fn of(settings: &QueueSettings) -> Self {
        let GrantLimits { rate, catchup_per_hour, concurrency } = settings.limits;
        LimitsAnswer {
            rate: rate.map(GrantRateAnswer::of),
            catchup_rate: catchup_per_hour.map(HourlyRate),
            concurrency,
            expires_in_ms: settings.expires_in_ms,
        }
    }
}

/// The delay before the next attempt, as it was set.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "BackoffSettings")]
pub(crate) struct BackoffAnswer {
    pub(super) min_ms: u64,
    pub(super) max_ms: u64,
}

impl BackoffAnswer {
    pub(super) fn of(Backoff { min_ms, max_ms }: Backoff) -> Self {
        BackoffAnswer { min_ms, max_ms }
    }
}

impl SettingsAnswer {
    pub(super) fn of(settings: &QueueSettings) -> Self {
        SettingsAnswer {
            lease_ms: settings.lease_ms,
            max_attempts: settings.max_attempts.map(|n| n.count()),
            priority: settings.priority,
            backoff: settings.backoff.map(BackoffAnswer::of),
            dedupe_window_ms: settings.dedupe_window_ms,
            dead_ttl_ms: settings.dead_ttl_ms,
            order: settings.order.map(OrderWord::from),
            limits: LimitsAnswer::of(settings),
            on_expiry: settings.on_expiry.map(OnExpiryWord::from),
            keep_done_ms: settings.keep_done_ms,
            trace: settings.trace.map(TraceWord::from),
            target: None,
        }
    }
}
