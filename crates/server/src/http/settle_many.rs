//! `POST /v1/ack`, `/v1/nack` and `/v1/extend`: many messages in one request, with a result for each.

use axum::http::StatusCode;
use duewheel::CallError;
use duewheel::core::engine::{Ask, SettleRefusal, Typed};
use duewheel::core::{LeaseToken, MessageId, QueueName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::limits;
use super::reach::apply_within;
use super::settle::{
    Extend, ExtendedAnswer, Extension, Nack, RefusedId, SettledAnswer, Settlement, acks, token,
};
use super::strict::{self, Id, Object, Positive, Text, Whole};
use super::traced::TracedCall;
use super::{Answer, App, check_batch, reply};
use crate::auth::Caller;
use crate::error::Problem;
use crate::json::IdText;
use crate::schema::DelaySchema;
use crate::span::SpanText;
use crate::traces::LeaseCall;

/// Leases whose messages are done.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AckMany<'a> {
    #[serde(borrow)]
    messages: Vec<Object<Leased<'a>>>,
}

/// A message and its lease.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Leased<'a> {
    id: Id,
    /// The token of its lease. A malformed token is an error of this item alone.
    #[serde(borrow)]
    lease_token: Text<'a>,
}

pub(crate) async fn ack_many(mut call: Call) -> Answer {
    let items: Vec<(MessageId, Result<LeaseToken, Problem>)> = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        let asked: AckMany<'_> = strict::parse(&bytes)?;
        check_batch(asked.messages.len(), &call.app.policy)?;
        let one = |(n, Object(leased)): (usize, &Object<Leased<'_>>)| {
            (leased.id.0, token(&leased.lease_token, || format!("messages[{n}].lease_token").into()))
        };
        asked.messages.iter().enumerate().map(one).collect()
    };
    let leases: Vec<(MessageId, LeaseToken)> =
        items.iter().filter_map(|(id, token)| Some((*id, *token.as_ref().ok()?))).collect();
    let traced = TracedCall::begin(&call.app, call.headers());
    let mut done = acks(&call.app, &call.caller, &leases).await?.into_iter();
    let results = items.into_iter().map(|(id, token)| match token {
        Ok(_) => (id, done.next().unwrap_or_else(|| Err(CallError::NO_ANSWER.into()))),
        Err(problem) => (id, Err(problem)),
    });
    let results: Vec<_> = results
        .map(|(id, result)| (id, result.and_then(|settled| settled.map_err(Problem::from_settle))))
        .collect();
    traced.settled_many(LeaseCall::Ack, &results);
    let results = results.iter().map(|(id, result)| match result {
        Ok(settled) => AckResult::Done(AckedItem { id: IdText(*id), settled: SettledAnswer::of(settled) }),
        Err(problem) => AckResult::Refused(RefusedId::of(*id, problem)),
    });
    Ok(reply(StatusCode::OK, &AckResults { results: results.collect() }))
}

/// A result for each message, in order.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct AckResults<'a> {
    pub(super) results: Vec<AckResult<'a>>,
}

/// The result for one message.
#[derive(Debug, JsonSchema, Serialize)]
#[serde(untagged)]
pub(crate) enum AckResult<'a> {
    Done(AckedItem),
    Refused(RefusedId<'a>),
}

/// A message that was acked.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct AckedItem {
    pub(super) id: IdText,
    #[serde(flatten)]
    pub(super) settled: SettledAnswer,
}

/// Leases whose messages are not done, and what happens to each message.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NackMany<'a> {
    #[serde(borrow)]
    messages: Vec<Object<NackItem<'a>>>,
}

/// A message that is not done, and what happens to it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = crate::schema::nack_rules)]
pub(crate) struct NackItem<'a> {
    id: Id,
    /// The token of its lease. A malformed token is an error of this item alone.
    #[serde(borrow)]
    lease_token: Text<'a>,
    /// The delay before the next attempt, in place of the backoff. It does not go with `dead`.
    #[schemars(extend("x-limit" = "max_delay_ms"))]
    delay_ms: Option<Whole>,
    /// `delay_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    delay: Option<SpanText>,
    /// Kept in the history of the message, cut to 256 bytes.
    reason: Option<Text<'a>>,
    /// `true`: the message is dead at once, with this reason.
    dead: Option<bool>,
    /// `false`: not yet. The grant is forgiven and does not count against `max_attempts`. It does not go with `dead`.
    attempt: Option<bool>,
}

pub(crate) async fn nack_many(mut call: Call) -> Answer {
    let asked: Vec<Asked<Settlement>> = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        let NackMany { messages } = strict::parse(&bytes)?;
        check_batch(messages.len(), &call.app.policy)?;
        let longest_ms = call.app.policy.max_delay_ms;
        let one = |(n, Object(item)): (usize, Object<NackItem<'_>>)| {
            let NackItem { id: Id(id), lease_token, delay_ms, delay, reason, dead, attempt } = item;
            if let Err(problem) = token(&lease_token, || format!("messages[{n}].lease_token").into()) {
                return Ok((id, Err(problem)));
            }
            let ask = Nack { lease_token, delay_ms, delay, reason, dead, attempt }.into_ask(id, longest_ms);
            let ask = ask.map_err(|problem| problem.within(&format!("messages[{n}]")))?;
            Ok((id, Ok(ask)))
        };
        messages.into_iter().enumerate().map(one).collect::<Result<_, Problem>>()?
    };
    let traced = TracedCall::begin(&call.app, call.headers());
    let results = settle_all(&call.app, &call.caller, asked).await?;
    traced.settled_many(LeaseCall::Nack, &results);
    let results = results.iter().map(|(id, result)| match result {
        Ok(settled) => NackResult::Done(NackedItem { id: IdText(*id), settled: SettledAnswer::of(settled) }),
        Err(problem) => NackResult::Refused(RefusedId::of(*id, problem)),
    });
    Ok(reply(StatusCode::OK, &NackResults { results: results.collect() }))
}

/// A result for each message, in order.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct NackResults<'a> {
    pub(super) results: Vec<NackResult<'a>>,
}

/// The result for one message.
#[derive(Debug, JsonSchema, Serialize)]
#[serde(untagged)]
pub(crate) enum NackResult<'a> {
    Done(NackedItem),
    Refused(RefusedId<'a>),
}

/// A message that was given back.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct NackedItem {
    pub(super) id: IdText,
    #[serde(flatten)]
    pub(super) settled: SettledAnswer,
}

/// Leases whose deadlines are pushed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExtendMany<'a> {
    #[serde(borrow)]
    messages: Vec<Object<ExtendItem<'a>>>,
}

/// A message whose lease is extended.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = crate::schema::lease_rules)]
pub(crate) struct ExtendItem<'a> {
    id: Id,
    /// The token of its lease. A malformed token is an error of this item alone.
    #[serde(borrow)]
    lease_token: Text<'a>,
    /// The length of the lease from now; by default the setting of message or queue.
    #[schemars(extend("x-limit" = "max_lease_ms"))]
    lease_ms: Option<Positive>,
    /// `lease_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    lease: Option<SpanText>,
}

pub(crate) async fn extend_many(mut call: Call) -> Answer {
    let asked: Vec<Asked<Extension>> = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        let ExtendMany { messages } = strict::parse(&bytes)?;
        check_batch(messages.len(), &call.app.policy)?;
        let longest_ms = call.app.policy.max_lease_ms;
        let one = |(n, Object(item)): (usize, Object<ExtendItem<'_>>)| {
            let ExtendItem { id: Id(id), lease_token, lease_ms, lease } = item;
            let within = limits::either_within(lease_ms, lease, ("lease", "lease_ms"), longest_ms);
            within.map_err(|problem| problem.within(&format!("messages[{n}]")))?;
            let ask = Extend { lease_token, lease_ms, lease }.into_ask(id);
            Ok((id, ask.map_err(|problem| problem.within(&format!("messages[{n}]")))))
        };
        messages.into_iter().enumerate().map(one).collect::<Result<_, Problem>>()?
    };
    let traced = TracedCall::begin(&call.app, call.headers());
    let results = settle_all(&call.app, &call.caller, asked).await?;
    traced.settled_many(LeaseCall::Extend, &results);
    let results = results.iter().map(|(id, result)| match result {
        Ok(done) => ExtendResult::Done(ExtendedItem { id: IdText(*id), extended: ExtendedAnswer::of(done) }),
        Err(problem) => ExtendResult::Refused(RefusedId::of(*id, problem)),
    });
    Ok(reply(StatusCode::OK, &ExtendResults { results: results.collect() }))
}

/// A result for each message, in order.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct ExtendResults<'a> {
    pub(super) results: Vec<ExtendResult<'a>>,
}

/// The result for one message.
#[derive(Debug, JsonSchema, Serialize)]
#[serde(untagged)]
pub(crate) enum ExtendResult<'a> {
    Done(ExtendedItem),
    Refused(RefusedId<'a>),
}

/// A message whose lease was extended.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct ExtendedItem {
    pub(super) id: IdText,
    #[serde(flatten)]
    pub(super) extended: ExtendedAnswer,
}

/// A message, and what is asked for it, if that is valid.
type Asked<R> = (MessageId, Result<Typed<R>, Problem>);

/// Applies what is valid to the messages that the caller's token covers; others are not found.
async fn settle_all<T>(
    app: &App,
    caller: &Caller,
    asked: Vec<Asked<Result<T, SettleRefusal>>>,
) -> Result<Vec<(MessageId, Result<T, Problem>)>, Problem>
where
    Typed<Result<T, SettleRefusal>>: Ask<Reply = Result<T, SettleRefusal>>,
{
    let mut valid = Vec::with_capacity(asked.len());
    let mut results = Vec::with_capacity(asked.len());
    for (id, ask) in asked {
        match ask {
            Ok(ask) => {
                valid.push((id, ask));
                results.push((id, Ok(())));
            }
            Err(problem) => results.push((id, Err(problem))),
        }
    }
    let done = match caller.limits() {
        None => app.ask_many(valid.into_iter().map(|(_, ask)| ask).collect()).await?,
        Some(_) => apply_within(app, valid, |queue: &QueueName| caller.reaches(queue)).await?,
    };
    let mut done = done.into_iter();
    let mut result = |valid: Result<(), Problem>| {
        let settled = valid.and_then(|()| done.next().unwrap_or_else(|| Err(CallError::NO_ANSWER.into())))?;
        settled.map_err(Problem::from_settle)
    };
    Ok(results.into_iter().map(|(id, valid)| (id, result(valid))).collect())
}
