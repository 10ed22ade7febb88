//! `ack`, `nack`, `extend`, and `POST /v1/ack` for many.

use std::borrow::Cow;

use axum::http::StatusCode;
use duewheel::core::engine::{Op, Reply, Settled};
use duewheel::core::{LeaseToken, MessageId};
use serde::Deserialize;

use super::call::Call;
use super::cancel::apply_within;
use super::reserve::at_most;
use super::strict::{self, Id, Object, Positive, Text, Whole};
use super::{Answer, Json, check_batch, object};
use crate::error::Problem;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ack<'a> {
    #[serde(borrow)]
    lease_token: Text<'a>,
}

pub(crate) async fn ack(mut call: Call) -> Answer {
    let id = call.id()?;
    let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
    let token = token(&strict::parse::<Ack<'_>>(&bytes)?.lease_token, || "lease_token".into())?;
    settled(call.app.ask(Op::Ack { id, proof: token.into() }).await?)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nack<'a> {
    #[serde(borrow)]
    lease_token: Text<'a>,
    delay_ms: Option<Whole>,
    reason: Option<Text<'a>>,
}

pub(crate) async fn nack(mut call: Call) -> Answer {
    let id = call.id()?;
    let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
    let op = {
        let asked: Nack<'_> = strict::parse(&bytes)?;
        let limit = call.app.policy.max_delay_ms;
        Op::Nack {
            id,
            proof: token(&asked.lease_token, || "lease_token".into())?.into(),
            delay_ms: asked.delay_ms.map(|n| at_most("delay_ms", n.0, limit)).transpose()?,
            priority: None,
            note: asked.reason.map(|text| text.0.into()).unwrap_or_default(),
        }
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
    let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
    let op = {
        let asked: Extend<'_> = strict::parse(&bytes)?;
        let token = token(&asked.lease_token, || "lease_token".into())?;
        Op::Extend { id, proof: token.into(), lease_ms: asked.lease_ms.map(|n| n.0) }
    };
    match call.app.ask(op).await? {
        Reply::Extend(Ok(until)) => Ok(object(StatusCode::OK, |out| {
            out.plain("result", "extended");
            out.instant("lease_until", until);
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
    let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
    let leases = {
        let asked: AckMany<'_> = strict::parse(&bytes)?;
        check_batch(asked.messages.len(), &call.app.policy)?;
        let one = |(n, Object(leased)): (usize, &Object<Leased<'_>>)| {
            Ok((leased.id.0, token(&leased.lease_token, || format!("messages[{n}].lease_token").into())?))
        };
        asked
            .messages
            .iter()
            .enumerate()
            .map(one)
            .collect::<Result<Vec<(MessageId, LeaseToken)>, Problem>>()?
    };
    drop(bytes);
    let op = |(id, token): &(MessageId, LeaseToken)| Op::Ack { id: *id, proof: (*token).into() };
    let results = if call.caller.limits().is_none() {
        call.app.ask_many(leases.iter().map(op).collect()).await?
    } else {
        let ops = leases.iter().map(|lease| (lease.0, op(lease))).collect();
        apply_within(&call.app, ops, |queue| call.caller.reaches(queue)).await?
    };
    Ok(object(StatusCode::OK, |out| {
        out.open_list("results");
        for ((id, _), result) in leases.iter().zip(results) {
            out.open();
            out.id("id", *id);
            match result {
                Ok(Reply::Settle(Ok(settled))) => write(out, settled),
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
        Reply::Settle(Ok(settled)) => Ok(object(StatusCode::OK, |out| write(out, settled))),
        Reply::Settle(Err(refusal)) => Err(Problem::from_settle(refusal)),
        _ => Err(Problem::internal()),
    }
}

fn write(out: &mut Json, settled: Settled) {
    match settled {
        Settled::Acked => out.plain("result", "acked"),
        Settled::Again(due_at) => {
            out.plain("result", "again");
            out.instant("due_at", due_at);
        }
        Settled::Dead(reason) => {
            out.plain("result", "dead");
            out.plain("dead_reason", reason.as_str());
        }
    }
}
