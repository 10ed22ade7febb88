//! Limits of a queue's grants and the expiry of its messages, in JSON.

use std::borrow::Cow;

use duewheel::core::policy::{GrantLimits, GrantRate, OnExpiry, QueueSettings, TraceMode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::strict::{U32_MAX, Whole};
use crate::error::Problem;
use crate::hourly::HourlyRate;
use crate::span::{self, SpanText, TimeSpan};

/// Grants a second, over time and at once.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
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

/// A length of time that is given as a number of milliseconds or as text, by at most one of two fields.
pub(super) fn either<const MIN: u64>(
    ms: Option<Whole<MIN>>,
    text: Option<SpanText>,
    field: &'static str,
) -> Result<Option<u64>, Problem> {
    let ms = span::either(ms.map(|ms| ms.0), text, field).map_err(|what| Problem::field(field, what))?;
    match ms {
        Some(ms) if ms < MIN => Err(Problem::field(field, "must be longer than 0")),
        ms => Ok(ms),
    }
}

/// A length of time as [`either`] reads it, at most `limit`; a refusal names the field that was sent.
pub(super) fn either_within<const MIN: u64>(
    ms: Option<Whole<MIN>>,
    text: Option<SpanText>,
    (field, field_ms): (&'static str, &'static str),
    limit: u64,
) -> Result<Option<u64>, Problem> {
    match either(ms, text, field)? {
        Some(ms) if ms > limit && text.is_some() => {
            Err(Problem::field(field, format_args!("must be at most {}", TimeSpan(limit))))
        }
        Some(ms) => at_most(field_ms, ms, limit).map(Some),
        None => Ok(None),
    }
}

/// Checks a number against a limit of the policy.
pub(crate) fn at_most(field: impl Into<Cow<'static, str>>, n: u64, limit: u64) -> Result<u64, Problem> {
    if n > limit { Err(Problem::field(field, format_args!("must be at most {limit}"))) } else { Ok(n) }
}

/// The names of the lengths of time that were sent as text.
pub(super) fn named<const N: usize>(texts: [(&'static str, Option<SpanText>); N]) -> Vec<&'static str> {
    texts.into_iter().filter_map(|(name, text)| text.map(|_| name)).collect()
}

/// The name under which a field was sent: `keep_done` for `keep_done_ms`, if it is among `as_text`.
pub(super) fn sent_as(field: &'static str, as_text: &[&'static str]) -> &'static str {
    field.strip_suffix("_ms").filter(|name| as_text.contains(name)).unwrap_or(field)
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

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::error::ErrorCode;
    use crate::http::strict;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Lengths {
        wait_ms: Option<Whole<1>>,
        wait: Option<SpanText>,
    }

    fn read(json: &str) -> Result<Option<u64>, Problem> {
        let Lengths { wait_ms, wait } = strict::parse(json.as_bytes())?;
        either_within(wait_ms, wait, ("wait", "wait_ms"), 172_800_000)
    }

    #[test]
    fn lengths_are_numbers_or_texts() {
        for text in ["48h", "2 days", "PT48H", "2d"] {
            assert_eq!(read(&format!(r#"{{"wait": "{text}"}}"#)).unwrap(), Some(172_800_000), "{text}");
        }
        assert_eq!(read(r#"{"wait_ms": 90}"#).unwrap(), Some(90));
        assert_eq!(read("{}").unwrap(), None);
        for (json, field) in [
            (r#"{"wait": 90}"#, "wait"),
            (r#"{"wait": "90"}"#, "wait"),
            (r#"{"wait": "0s"}"#, "wait"),
            (r#"{"wait": "1 month"}"#, "wait"),
            (r#"{"wait": "48h1ms"}"#, "wait"),
            (r#"{"wait": "99999999999999999999s"}"#, "wait"),
            (r#"{"wait": "1s", "wait_ms": 1}"#, "wait"),
            (r#"{"wait_ms": 0}"#, "wait_ms"),
            (r#"{"wait_ms": 172800001}"#, "wait_ms"),
            (r#"{"wait_ms": "90s"}"#, "wait_ms"),
        ] {
            let problem = read(json).unwrap_err();
            assert_eq!(
                (problem.code, problem.field.as_deref()),
                (ErrorCode::BadRequest, Some(field)),
                "{json}"
            );
        }
    }
}
