//! `POST /v1/queues/{queue}/cancel`: cancels many messages, by key and by id.

use axum::http::StatusCode;
use duewheel::core::engine::{Applied, ChangeRefusal, Op, Outline, Target};
use duewheel::core::store::Level;
use duewheel::core::{Key, MessageId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::message::{CancelledWord, dedupe_id};
use super::reach::of_queue;
use super::settle::RefusedId;
use super::strict::{self, Id, Text};
use super::{Answer, check_batch, reply};
use crate::error::{ItemProblem, Problem};
use crate::json::IdText;
use crate::schema::{KeySchema, LevelSchema};

/// Messages to cancel, by key, by id, or both.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = crate::schema::cancel_rules)]
pub(crate) struct CancelMany<'a> {
    #[serde(borrow)]
    #[schemars(with = "Option<Vec<KeySchema>>")]
    keys: Option<Vec<Text<'a>>>,
    ids: Option<Vec<Id>>,
    /// The answers that are remembered for the `dedupe_id`s of the cancelled messages are forgotten.
    forget_dedupe: Option<bool>,
}

pub(crate) async fn cancel_many(mut call: Call) -> Answer {
    let queue = call.queue()?;
    let (keys, ids, dedupe_id) = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        let asked: CancelMany<'_> = strict::parse(&bytes)?;
        if asked.keys.is_none() && asked.ids.is_none() {
            return Err(Problem::field("keys", "keys or ids must be given"));
        }
        let keys = asked.keys.unwrap_or_default();
        let ids = asked.ids.unwrap_or_default();
        check_batch(keys.len() + ids.len(), &call.app.policy)?;
        let key = |(n, text): (usize, &Text<'_>)| {
            Key::new(&text.0).map_err(|what| Problem::field(format!("keys[{n}]"), what))
        };
        (
            keys.iter().enumerate().map(key).collect::<Result<Vec<_>, _>>()?,
            ids,
            dedupe_id(asked.forget_dedupe),
        )
    };
    let ids: Vec<MessageId> = ids.into_iter().map(|id| id.0).collect();
    let cancel = |target| Op::cancel_with(target, dedupe_id);
    let by_key = keys.iter().map(|key| cancel(Target::Key(queue.clone(), key.clone()))).collect();
    let key_results = call.app.ask_many(by_key).await?;
    let id_results = of_queue(&call.app, &queue, &ids, |id| cancel(Target::Id(id))).await?;

    let key_results: Vec<_> = key_results.into_iter().map(level_of).collect();
    let id_results: Vec<_> = id_results.into_iter().map(level_of).collect();
    let by_key = keys.iter().zip(&key_results).map(|(key, result)| match result {
        Ok(level) => CancelResult::Key(CancelledKey::of(key.as_str(), *level)),
        Err(problem) => {
            CancelResult::KeyRefused(RefusedKey { key: key.as_str(), problem: ItemProblem::of(problem) })
        }
    });
    let by_id = ids.iter().zip(&id_results).map(|(id, result)| match result {
        Ok(level) => CancelResult::Id(CancelledId::of(*id, *level)),
        Err(problem) => CancelResult::IdRefused(RefusedId::of(*id, problem)),
    });
    Ok(reply(StatusCode::OK, &CancelResults { results: by_key.chain(by_id).collect() }))
}

/// A result for each key, then for each id, in order.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct CancelResults<'a> {
    pub(super) results: Vec<CancelResult<'a>>,
}

/// The result for one message.
#[derive(Debug, JsonSchema, Serialize)]
#[serde(untagged)]
pub(crate) enum CancelResult<'a> {
    Key(CancelledKey<'a>),
    Id(CancelledId),
    KeyRefused(RefusedKey<'a>),
    IdRefused(RefusedId<'a>),
}

/// The message with this key was cancelled.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct CancelledKey<'a> {
    #[schemars(with = "KeySchema")]
    pub(super) key: &'a str,
    pub(super) result: CancelledWord,
    #[schemars(with = "LevelSchema")]
    pub(super) durability: &'static str,
}

impl<'a> CancelledKey<'a> {
    pub(super) fn of(key: &'a str, level: Level) -> Self {
        CancelledKey { key, result: CancelledWord::Cancelled, durability: level.as_str() }
    }
}

/// The message with this id was cancelled.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct CancelledId {
    pub(super) id: IdText,
    pub(super) result: CancelledWord,
    #[schemars(with = "LevelSchema")]
    pub(super) durability: &'static str,
}

impl CancelledId {
    pub(super) fn of(id: MessageId, level: Level) -> Self {
        CancelledId { id: IdText(id), result: CancelledWord::Cancelled, durability: level.as_str() }
    }
}

/// Why the message with this key was not cancelled.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct RefusedKey<'a> {
    #[schemars(with = "KeySchema")]
    pub(super) key: &'a str,
    #[serde(flatten)]
    pub(super) problem: ItemProblem<'a>,
}

/// The durability level of the change of one of many messages, or why it was refused.
pub(super) fn level_of(
    result: Result<Result<Applied<Box<Outline>>, ChangeRefusal>, Problem>,
) -> Result<Level, Problem> {
    result?.map(|changed| changed.level).map_err(|refusal| Problem::from_change(refusal, "due_at"))
}
