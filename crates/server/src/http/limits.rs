//! Limits of a queue's grants and the expiry of its messages, in JSON.

use duewheel::core::policy::{GrantLimits, GrantRate, OnExpiry, QueueSettings, TraceMode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::strict::{Positive, Text, U32_MAX, Whole};
use crate::error::Problem;
use crate::span::{BadSpan, TimeSpan};

/// Grants a second, over time and at once.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "GrantRate")]
pub(crate) struct GrantRateFields {
    /// Messages granted a second, over time.
    per_second: Whole<1, U32_MAX>,
    /// Messages that may be granted at once after a pause; by default those of 10 ms, at least one.
    burst: Option<Whole<1, U32_MAX>>,
}

impl From<GrantRateFields> for GrantRate {
    fn from(fields: GrantRateFields) -> Self {
        GrantRate { per_second: fields.per_second.get(), burst: fields.burst.map(Whole::get) }
    }
}

/// The rate of a queue's grants, as it was set.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "GrantRateSettings")]
pub(crate) struct GrantRateAnswer {
    pub(super) per_second: u32,
    /// `null`: the messages of 10 ms, at least one.
    pub(super) burst: Option<u32>,
}

impl GrantRateAnswer {
    pub(super) fn of(GrantRate { per_second, burst }: GrantRate) -> Self {
        GrantRateAnswer { per_second, burst }
    }
}

/// What happens with a message that has expired when it would be granted: it is granted and the grant says `late`, which
/// is the default, or it is dead, or it is removed.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "OnExpiry")]
pub(crate) enum OnExpiryWord {
    DeliverLate,
    Dead,
    Drop,
}

impl From<OnExpiryWord> for OnExpiry {
    fn from(word: OnExpiryWord) -> Self {
        match word {
            OnExpiryWord::DeliverLate => OnExpiry::DeliverLate,
            OnExpiryWord::Dead => OnExpiry::Dead,
            OnExpiryWord::Drop => OnExpiry::Drop,
        }
    }
}

impl From<OnExpiry> for OnExpiryWord {
    fn from(what: OnExpiry) -> Self {
        match what {
            OnExpiry::DeliverLate => OnExpiryWord::DeliverLate,
            OnExpiry::Dead => OnExpiryWord::Dead,
            OnExpiry::Drop => OnExpiryWord::Drop,
        }
    }
}

/// How the trace of a delivery belongs to that of its message's creation: `link`, which is the default, is a trace of its
/// own with a link, `child` a span of the same trace.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Trace")]
pub(crate) enum TraceWord {
    Link,
    Child,
}

impl From<TraceWord> for TraceMode {
    fn from(word: TraceWord) -> Self {
        match word {
            TraceWord::Link => TraceMode::Link,
            TraceWord::Child => TraceMode::Child,
        }
    }
}

impl From<TraceMode> for TraceWord {
    fn from(mode: TraceMode) -> Self {
        match mode {
            TraceMode::Link => TraceWord::Link,
            TraceMode::Child => TraceWord::Child,
        }
    }
}

/// A time that is given as a number of milliseconds or as text, by at most one of two fields.
pub(super) fn either(
    ms: Option<u64>,
    text: Option<&Text<'_>>,
    field: &'static str,
) -> Result<Option<u64>, Problem> {
    match (ms, text) {
        (Some(_), Some(_)) => {
            Err(Problem::field(field, format_args!("goes instead of {field}_ms, not with it")))
        }
        (ms, None) => Ok(ms),
        (None, Some(text)) => match text.0.parse() {
            Ok(TimeSpan(ms)) => Ok(Some(ms)),
            // The engine knows the limit, and refuses with it.
            Err(BadSpan::TooLong) => Ok(Some(u64::MAX)),
            Err(what @ BadSpan::Form) => Err(Problem::field(field, what)),
        },
    }
}

/// The names of the lengths of time that were sent as text.
pub(super) fn named<T>(texts: [(&'static str, Option<&T>); 2]) -> Vec<&'static str> {
    texts.into_iter().filter_map(|(name, text)| text.map(|_| name)).collect()
}

/// The name under which a field was sent: `keep_done` for `keep_done_ms`, if it is among `as_text`.
pub(super) fn sent_as(field: &'static str, as_text: &[&'static str]) -> &'static str {
    field.strip_suffix("_ms").filter(|name| as_text.contains(name)).unwrap_or(field)
}

/// A time above 0, by at most one of two fields; 0 is refused by the name of its field.
pub(super) fn positive(
    ms: Option<Positive>,
    text: Option<&Text<'_>>,
    field: &'static str,
) -> Result<Option<u64>, Problem> {
    match either(ms.map(|ms| ms.0), text, field)? {
        Some(0) => Err(Problem::field(field, "must be longer than 0")),
        ms => Ok(ms),
    }
}

/// The limits and the expiry in effect; `null` where there is none.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "GrantSettings")]
pub(crate) struct LimitsAnswer {
    /// Messages granted a second; `null` for no limit.
    pub(super) rate: Option<GrantRateAnswer>,
    /// Messages granted a second while the next one has been due for more than 10 s; `null` for `rate` alone.
    pub(super) catchup_rate: Option<u32>,
    /// Leases at a time; `null` for no limit of the queue's own.
    pub(super) concurrency: Option<u32>,
    /// How long after its due time a message without an expiry of its own expires; `null` for never.
    pub(super) expires_in_ms: Option<u64>,
}

impl LimitsAnswer {
    pub(super) fn of(settings: &QueueSettings) -> Self {
        let GrantLimits { rate, catchup_rate, concurrency } = settings.limits;
        LimitsAnswer {
            rate: rate.map(GrantRateAnswer::of),
            catchup_rate,
            concurrency,
            expires_in_ms: settings.expires_in_ms,
        }
    }
}
