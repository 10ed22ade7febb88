//! `ack`, `nack`, `extend`, and `POST /v1/ack` for many.

use std::borrow::Cow;

use axum::http::StatusCode;
use duewheel::core::engine::{Applied, Attempt, Op, Reply, Settled};
use duewheel::core::{LeaseToken, MessageId, QueueName};
use serde::Deserialize;

use super::call::Call;
use super::reach::within;
use super::reserve::at_most;
use super::strict::{self, Id, Object, Positive, Text, Whole};
use super::{Answer, App, Json, check_batch, object};
use crate::auth::Caller;
use crate::error::Problem;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ack<'a> {
    #[serde(borrow)]
    lease_token: Text<'a>,
}

pub(crate) async fn ack(mut call: Call) -> Answer {
    let id = call.id()?;
    let token = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        token(&strict::parse::<Ack<'_>>(&bytes)?.lease_token, || "lease_token".into())?
    };
    settled(acks(&call.app, &call.caller, &[(id, token)]).await?.pop().unwrap_or(Err(Problem::internal()))?)
}

/// Acks those whose messages are within the caller's reach, or were when they were acked before.
async fn acks(
    app: &App,
    caller: &Caller,
    leases: &[(MessageId, LeaseToken)],
) -> Result<Vec<Result<Reply, Problem>>, Problem> {
    let op = |&(id, token): &(MessageId, LeaseToken)| Op::Ack { id, proof: token.into() };
    if caller.limits().is_none() {
        return app.ask_many(leases.iter().map(op).collect()).await;
    }
    let ids: Vec<MessageId> = leases.iter().map(|(id, _)| *id).collect();
    let reaches = |queue: &QueueName| caller.reaches(queue);
    let found = within(app, &ids, |queue| match queue {
        Some(queue) if reaches(queue) => Found::Within,
        Some(_) => Found::Beyond,
        None => Found::Nothing,
    })
    .await?;
    // What is no more stays no more: to ack it changes nothing, and tells whether it was acked, and in which queue.
    let is_asked = |found: &Result<Found, Problem>| matches!(found, Ok(Found::Within | Found::Nothing));
    let asked = leases.iter().zip(&found).filter(|(_, found)| is_asked(found));
    let mut done = app.ask_many(asked.map(|(lease, _)| op(lease)).collect()).await?.into_iter();
    let result = |found| {
        let found = found?;
        if found == Found::Beyond {
            return Err(Problem::message_not_found());
        }
        let reply = done.next().unwrap_or(Err(Problem::internal()))?;
        match (&reply, found) {
            (Reply::Settle(Ok(Applied { what: Settled::Already { queue }, .. })), _) if reaches(queue) => {
                Ok(reply)
            }
            (_, Found::Within) => Ok(reply),
            (_, Found::Nothing | Found::Beyond) => Err(Problem::message_not_found()),
        }
    };
    Ok(found.into_iter().map(result).collect())
}

/// What a caller finds whose token is limited to some queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Within,
    Beyond,
    Nothing,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nack<'a> {
    #[serde(borrow)]
    lease_token: Text<'a>,
    delay_ms: Option<Whole>,
    reason: Option<Text<'a>>,
    dead: Option<bool>,
    attempt: Option<bool>,
}

impl Nack<'_> {
    fn into_op(self, id: MessageId, longest_ms: u64) -> Result<Op, Problem> {
        let proof = token(&self.lease_token, || "lease_token".into())?.into();
        let note = self.reason.map(|text| text.0.into()).unwrap_or_default();
        let attempt = match self.attempt {
            None | Some(true) => Attempt::Failed,
            Some(false) => Attempt::NotYet,
        };
        if self.dead != Some(true) {
            let delay_ms = self.delay_ms.map(|n| at_most("delay_ms", n.0, longest_ms)).transpose()?;
            return Ok(Op::Nack { id, proof, attempt, delay_ms, priority: None, note });
        }
        if self.delay_ms.is_some() {
            return Err(Problem::field(
                "delay_ms",
                "does not go with dead: a dead message does not come again",
            ));
        }
        if attempt == Attempt::NotYet {
            return Err(Problem::field(
                "attempt",
                "false does not go with dead: a dead message is not tried again",
            ));
        }
        Ok(Op::Bury { id, proof, priority: None, note })
    }
}

pub(crate) async fn nack(mut call: Call) -> Answer {
    let id = call.id()?;
    let op = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        strict::parse::<Nack<'_>>(&bytes)?.into_op(id, call.app.policy.max_delay_ms)?
    };
    settled(call.app.ask(op).await?)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Extend<'a> {
    #[serde(borrow)]
    lease_token: Text<'a>,
    lease_ms: Option<Positive>,
}

pub(crate) async fn extend(mut call: Call) -> Answer {
    let id = call.id()?;
    let op = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        let asked: Extend<'_> = strict::parse(&bytes)?;
        let token = token(&asked.lease_token, || "lease_token".into())?;
        Op::Extend { id, proof: token.into(), lease_ms: asked.lease_ms.map(|n| n.0) }
    };
    match call.app.ask(op).await? {
        Reply::Extend(Ok(done)) => Ok(object(StatusCode::OK, |out| {
            out.plain("result", "extended");
            out.instant("lease_until", done.what);
            out.plain("durability", done.level.as_str());
        })),
        Reply::Extend(Err(refusal)) => Err(Problem::from_settle(refusal)),
        _ => Err(Problem::internal()),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AckMany<'a> {
    #[serde(borrow)]
    messages: Vec<Object<Leased<'a>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Leased<'a> {
    id: Id,
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
    let mut done = acks(&call.app, &call.caller, &leases).await?.into_iter();
    let results = items.into_iter().map(|(id, token)| match token {
        Ok(_) => (id, done.next().unwrap_or(Err(Problem::internal()))),
        Err(problem) => (id, Err(problem)),
    });
    Ok(object(StatusCode::OK, |out| {
        out.open_list("results");
        for (id, result) in results {
            out.open();
            out.id("id", id);
            match result {
                Ok(Reply::Settle(Ok(settled))) => write(out, &settled),
                Ok(Reply::Settle(Err(refusal))) => Problem::from_settle(refusal).write_line(out),
                Ok(_) => Problem::internal().write_line(out),
                Err(problem) => problem.write_line(out),
            }
            out.close();
        }
        out.close_list();
    }))
}

fn token(text: &Text<'_>, field: impl Fn() -> Cow<'static, str>) -> Result<LeaseToken, Problem> {
    text.0.parse().map_err(|what| Problem::field(field(), what))
}

fn settled(reply: Reply) -> Answer {
    match reply {
        Reply::Settle(Ok(settled)) => Ok(object(StatusCode::OK, |out| write(out, &settled))),
        Reply::Settle(Err(refusal)) => Err(Problem::from_settle(refusal)),
        _ => Err(Problem::internal()),
    }
}

fn write(out: &mut Json, settled: &Applied<Settled>) {
    match &settled.what {
        Settled::Acked => out.plain("result", "acked"),
        Settled::Already { queue: _ } => out.plain("result", "already"),
        Settled::Again(due_at) => {
            out.plain("result", "again");
            out.instant("due_at", *due_at);
        }
        Settled::Dead(reason) => {
            out.plain("result", "dead");
            out.plain("dead_reason", reason.as_str());
        }
    }
    out.plain("durability", settled.level.as_str());
}
