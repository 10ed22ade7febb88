//! `ack`, `nack` and `extend` of one message.

use std::borrow::Cow;

use axum::http::StatusCode;
use duewheel::CallError;
use duewheel::core::engine::{Applied, Attempt, Op, SettleRefusal, Settled, Typed};
use duewheel::core::{LeaseToken, MessageId, QueueName, WallMs};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::limits;
use super::reach::within;
use super::strict::{self, Positive, Text, Whole};
use super::traced::TracedCall;
use super::{Answer, App, reply};
use crate::auth::Caller;
use crate::error::{ItemProblem, Problem};
use crate::json::{IdText, InstantText};
use crate::schema::{DeadReasonSchema, DelaySchema, LevelSchema, TokenSchema};
use crate::span::SpanText;
use crate::traces::LeaseCall;

/// The lease whose message is done.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ack<'a> {
    #[serde(borrow)]
    #[schemars(with = "TokenSchema")]
    lease_token: Text<'a>,
}

/// The engine's answer to an extension.
pub(super) type Extension = Result<Applied<WallMs>, SettleRefusal>;

/// The engine's answer to a settlement.
pub(super) type Settlement = Result<Applied<Settled>, SettleRefusal>;

pub(crate) async fn ack(mut call: Call) -> Answer {
    let id = call.id()?;
    let token = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        token(&strict::parse::<Ack<'_>>(&bytes)?.lease_token, || "lease_token".into())?
    };
    let traced = TracedCall::begin(&call.app, call.headers());
    let done = acks(&call.app, &call.caller, &[(id, token)]).await;
    let done = done.and_then(|mut done| done.pop().unwrap_or_else(|| Err(CallError::NO_ANSWER.into())));
    let done = done.and_then(|done| done.map_err(Problem::from_settle));
    traced.settled(LeaseCall::Ack, id, &done);
    settled(&done?)
}

/// Acks the messages that the caller's token covers, including those that were acked before.
pub(super) async fn acks(
    app: &App,
    caller: &Caller,
    leases: &[(MessageId, LeaseToken)],
) -> Result<Vec<Result<Settlement, Problem>>, Problem> {
    let ask = |&(id, token): &(MessageId, LeaseToken)| Op::ack(id, token);
    if caller.limits().is_none() {
        return app.ask_many(leases.iter().map(ask).collect()).await;
    }
    let ids: Vec<MessageId> = leases.iter().map(|(id, _)| *id).collect();
    let reaches = |queue: &QueueName| caller.reaches(queue);
    let found = within(app, &ids, |queue| match queue {
        Some(queue) if reaches(queue) => QueueVerdict::Within,
        Some(_) => QueueVerdict::Beyond,
        None => QueueVerdict::Nothing,
    })
    .await?;
    // A message that is gone stays gone: acking it changes nothing, and shows whether it was acked, and in which queue.
    let is_asked = |found: &Result<QueueVerdict, Problem>| {
        matches!(found, Ok(QueueVerdict::Within | QueueVerdict::Nothing))
    };
    let asked = leases.iter().zip(&found).filter(|(_, found)| is_asked(found));
    let mut done = app.ask_many(asked.map(|(lease, _)| ask(lease)).collect()).await?.into_iter();
    let result = |found| {
        let found = found?;
        if found == QueueVerdict::Beyond {
            return Err(Problem::message_not_found());
        }
        let done = done.next().unwrap_or_else(|| Err(CallError::NO_ANSWER.into()))?;
        match (&done, found) {
            (Ok(Applied { what: Settled::Already { queue }, .. }), _) if reaches(queue) => Ok(done),
            (_, QueueVerdict::Within) => Ok(done),
            (_, QueueVerdict::Nothing | QueueVerdict::Beyond) => Err(Problem::message_not_found()),
        }
    };
    Ok(found.into_iter().map(result).collect())
}

/// Whether a message is in a queue that the caller's token permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueVerdict {
    Within,
    Beyond,
    Nothing,
}

/// The lease whose message is not done, and what happens to the message.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = crate::schema::nack_rules)]
pub(crate) struct Nack<'a> {
    #[serde(borrow)]
    #[schemars(with = "TokenSchema")]
    pub(super) lease_token: Text<'a>,
    /// The delay before the next attempt, in place of the backoff. It does not go with `dead`.
    #[schemars(extend("x-limit" = "max_delay_ms"))]
    pub(super) delay_ms: Option<Whole>,
    /// `delay_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    pub(super) delay: Option<SpanText>,
    /// Kept in the history of the message, cut to 256 bytes.
    pub(super) reason: Option<Text<'a>>,
    /// `true`: the message is dead at once, with this reason.
    pub(super) dead: Option<bool>,
    /// `false`: not yet. The grant is forgiven and does not count against `max_attempts`. It does not go with `dead`.
    pub(super) attempt: Option<bool>,
}

impl Nack<'_> {
    pub(super) fn into_ask(self, id: MessageId, longest_ms: u64) -> Result<Typed<Settlement>, Problem> {
        let proof = token(&self.lease_token, || "lease_token".into())?;
        let note = self.reason.map(|text| text.0).unwrap_or_default();
        let attempt = match self.attempt {
            None | Some(true) => Attempt::Failed,
            Some(false) => Attempt::NotYet,
        };
        if self.dead != Some(true) {
            let names = ("delay", "delay_ms");
            let delay_ms = limits::either_within(self.delay_ms, self.delay, names, longest_ms)?;
            return Ok(Op::nack(id, proof, attempt, delay_ms, &note));
        }
        if self.delay_ms.is_some() || self.delay.is_some() {
            return Err(Problem::field(
                if self.delay.is_some() { "delay" } else { "delay_ms" },
                "does not go with dead: a dead message does not come again",
            ));
        }
        if attempt == Attempt::NotYet {
            return Err(Problem::field(
                "attempt",
                "false does not go with dead: a dead message is not tried again",
            ));
        }
        Ok(Op::bury(id, proof, &note))
    }
}

pub(crate) async fn nack(mut call: Call) -> Answer {
    let id = call.id()?;
    let asked = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        strict::parse::<Nack<'_>>(&bytes)?.into_ask(id, call.app.policy.max_delay_ms)?
    };
    let traced = TracedCall::begin(&call.app, call.headers());
    let done = call.app.ask(asked).await.and_then(|done| done.map_err(Problem::from_settle));
    traced.settled(LeaseCall::Nack, id, &done);
    settled(&done?)
}

/// The lease whose deadline is pushed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = crate::schema::lease_rules)]
pub(crate) struct Extend<'a> {
    #[serde(borrow)]
    #[schemars(with = "TokenSchema")]
    pub(super) lease_token: Text<'a>,
    /// The length of the lease from now; by default the setting of message or queue.
    #[schemars(extend("x-limit" = "max_lease_ms"))]
    pub(super) lease_ms: Option<Positive>,
    /// `lease_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    pub(super) lease: Option<SpanText>,
}

pub(crate) async fn extend(mut call: Call) -> Answer {
    let id = call.id()?;
    let asked = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        strict::parse::<Extend<'_>>(&bytes)?.into_ask(id)?
    };
    let traced = TracedCall::begin(&call.app, call.headers());
    let done = call.app.ask(asked).await.and_then(|done| done.map_err(Problem::from_settle));
    traced.settled(LeaseCall::Extend, id, &done);
    Ok(reply(StatusCode::OK, &ExtendedAnswer::of(&done?)))
}

impl Extend<'_> {
    pub(super) fn into_ask(self, id: MessageId) -> Result<Typed<Extension>, Problem> {
        let proof = token(&self.lease_token, || "lease_token".into())?;
        Ok(Op::extend(id, proof, limits::either(self.lease_ms, self.lease, "lease")?))
    }
}

/// A lease that was extended.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Extended")]
pub(crate) struct ExtendedAnswer {
    pub(super) result: ExtendedWord,
    pub(super) lease_until: InstantText,
    #[schemars(with = "LevelSchema")]
    pub(super) durability: &'static str,
}

impl ExtendedAnswer {
    pub(super) fn of(done: &Applied<WallMs>) -> Self {
        ExtendedAnswer {
            result: ExtendedWord::Extended,
            lease_until: InstantText(done.what),
            durability: done.level.as_str(),
        }
    }
}

/// The status of an extended lease.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(crate) enum ExtendedWord {
    Extended,
}

/// Why the message with this id was not changed.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct RefusedId<'a> {
    pub(super) id: IdText,
    #[serde(flatten)]
    pub(super) problem: ItemProblem<'a>,
}

impl<'a> RefusedId<'a> {
    pub(crate) fn of(id: MessageId, problem: &'a Problem) -> Self {
        RefusedId { id: IdText(id), problem: ItemProblem::of(problem) }
    }
}

pub(super) fn token(text: &Text<'_>, field: impl Fn() -> Cow<'static, str>) -> Result<LeaseToken, Problem> {
    text.0.parse().map_err(|what| Problem::field(field(), what))
}

fn settled(done: &Applied<Settled>) -> Answer {
    Ok(reply(StatusCode::OK, &SettledAnswer::of(done)))
}

/// The result of settling a lease.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Settled")]
pub(crate) struct SettledAnswer {
    pub(super) result: SettledWord,
    /// With `again`: when the next attempt is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) due_at: Option<InstantText>,
    /// With `dead`: the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DeadReasonSchema>")]
    pub(super) dead_reason: Option<&'static str>,
    #[schemars(with = "LevelSchema")]
    pub(super) durability: &'static str,
}

/// The result for the message. `already`: this token has acked it before, recently. `superseded`: it is gone instead of
/// coming again, because another message took its key while it was leased.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "SettledResult")]
pub(crate) enum SettledWord {
    Acked,
    Already,
    Again,
    Dead,
    Superseded,
}

impl SettledAnswer {
    pub(super) fn of(settled: &Applied<Settled>) -> Self {
        let durability = settled.level.as_str();
        let plain = |result| SettledAnswer { result, due_at: None, dead_reason: None, durability };
        match &settled.what {
            Settled::Acked => plain(SettledWord::Acked),
            Settled::Already { queue: _ } => plain(SettledWord::Already),
            Settled::Superseded => plain(SettledWord::Superseded),
            Settled::Again(due_at) => {
                SettledAnswer { due_at: Some(InstantText(*due_at)), ..plain(SettledWord::Again) }
            }
            Settled::Dead(reason) => {
                SettledAnswer { dead_reason: Some(reason.as_str()), ..plain(SettledWord::Dead) }
            }
        }
    }
}
