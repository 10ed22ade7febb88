//! Operations on a queue: get, pause, resume, purge, redrive.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use duewheel::core::MessageId;
use duewheel::core::engine::{Attended, ChangeRefusal, Counts, Op, QueueView};
use duewheel::core::message::State;
use duewheel::core::name::QueueName;
use duewheel::core::record::{Pause, Totals};
use duewheel::core::store::Level;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::cancel::level_of;
use super::limits;
use super::message::Nothing;
use super::queue_view::QueueAnswer;
use super::reach::of_queue;
use super::redrive_to::{MovedMessage, redrive_to};
use super::settle::RefusedId;
use super::strict::{self, Id, Positive};
use super::{Answer, App, check_batch, reply};
use crate::beanstalk::default_queue;
use crate::error::{ErrorCode, Problem};
use crate::json::IdText;
use crate::schema::{DelaySchema, LevelSchema, QueueSchema};
use crate::span::SpanText;

/// Dead messages that are asked why they stay dead, in one call.
const REFUSALS_WALKED: usize = 20_000;
/// Messages of these in memory at a time.
const REFUSALS_AT_ONCE: usize = 32;
/// Ids of refused messages that an answer has for each reason.
const REFUSALS_SHOWN: usize = 10;

pub(crate) async fn show(call: Call) -> Answer {
    let queue = call.queue()?;
    let view = call.app.ask(Op::queue(queue.clone())).await?;
    // Queues need no creation, so an unused one is not an error: it is empty.
    let view = view.unwrap_or_else(|| QueueView::empty(queue));
    Ok(reply(StatusCode::OK, &QueueAnswer::of(&view, call.app.client.now().wall)))
}

/// The length of a pause; without either member it lasts until it is resumed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Pause", transform = crate::schema::pause_rules)]
pub(crate) struct PauseFor {
    #[schemars(extend("x-limit" = "max_delay_ms"))]
    for_ms: Option<Positive>,
    #[schemars(with = "Option<DelaySchema>")]
    r#for: Option<SpanText>,
}

/// Whether a queue is paused.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Paused")]
pub(crate) struct PausedAnswer<'a> {
    #[schemars(with = "QueueSchema")]
    pub(super) queue: &'a str,
    pub(super) paused: bool,
    /// The length of the pause; `null` until resumed.
    pub(super) for_ms: Option<u64>,
    #[schemars(with = "LevelSchema")]
    pub(super) durability: &'static str,
}

/// A queue that runs.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Resumed")]
pub(crate) struct ResumedAnswer<'a> {
    #[schemars(with = "QueueSchema")]
    pub(super) queue: &'a str,
    pub(super) paused: bool,
    #[schemars(with = "LevelSchema")]
    pub(super) durability: &'static str,
}

/// The number of removed messages.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Purged")]
pub(crate) struct PurgedAnswer {
    pub(super) purged: u64,
    #[schemars(with = "LevelSchema")]
    pub(super) durability: &'static str,
}

pub(crate) async fn pause(mut call: Call) -> Answer {
    let queue = call.queue()?;
    let limit = call.app.policy.max_delay_ms;
    let for_ms = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        let asked: PauseFor = strict::parse_optional(&bytes)?;
        limits::either_within(asked.for_ms, asked.r#for, ("for", "for_ms"), limit)?
    };
    let done = call.app.ask(Op::pause(queue.clone(), for_ms)).await?.map_err(Problem::from_settings)?;
    let durability = done.level.as_str();
    Ok(reply(StatusCode::OK, &PausedAnswer { queue: queue.as_str(), paused: true, for_ms, durability }))
}

pub(crate) async fn resume(mut call: Call) -> Answer {
    let queue = call.queue()?;
    let Nothing {} = call.json(call.app.policy.max_batch_bytes).await?;
    let durability = call.app.ask(Op::resume(queue.clone())).await?.level.as_str();
    Ok(reply(StatusCode::OK, &ResumedAnswer { queue: queue.as_str(), paused: false, durability }))
}

pub(crate) async fn purge(mut call: Call) -> Answer {
    let queue = call.queue()?;
    let Nothing {} = call.json(call.app.policy.max_batch_bytes).await?;
    let done = call.app.ask(Op::purge(queue)).await?;
    let answer = PurgedAnswer { purged: done.what, durability: done.level.as_str() };
    Ok(reply(StatusCode::OK, &answer))
}

/// Which dead messages are made ready: those with these ids, at most this number, or all without either.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = crate::schema::redrive_rules)]
pub(crate) struct Redrive {
    ids: Option<Vec<Id>>,
    max: Option<Positive>,
    /// Each of the messages with these ids becomes a new one of this queue, with its key, headers and options; the old one
    /// is removed when the new one is durable.
    #[schemars(with = "Option<QueueSchema>")]
    to_queue: Option<String>,
}

/// The number of messages made ready.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Redriven")]
pub(crate) struct RedrivenAnswer<'a> {
    pub(super) redriven: u64,
    /// A result for each of the ids, in order, where ids were given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) results: Option<Vec<RedriveResult<'a>>>,
    /// The messages that stay dead, by the code of their refusal, where no ids were given; of the first 20,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<Vec<RedriveRefusals>>,
    /// The durability that all of them have reached, where no ids were given. With ids each result has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<LevelSchema>")]
    pub(super) durability: Option<&'static str>,
}

/// The messages that were refused for one reason.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct RedriveRefusals {
    #[schemars(with = "ErrorCode")]
    pub(super) code: &'static str,
    pub(super) messages: u64,
    /// The first ten of them.
    pub(super) ids: Vec<IdText>,
}

/// The result for one message.
#[derive(Debug, JsonSchema, Serialize)]
#[serde(untagged)]
pub(crate) enum RedriveResult<'a> {
    Done(RedrivenId),
    Refused(RefusedId<'a>),
}

/// The message with this id is ready, or has become another one.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub(crate) struct RedrivenId {
    pub(super) id: IdText,
    pub(super) result: RedrivenWord,
    /// The new message, with `to_queue`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) new_id: Option<IdText>,
    #[schemars(with = "LevelSchema")]
    pub(super) durability: &'static str,
}

impl RedrivenId {
    pub(super) fn of(id: MessageId, level: Level) -> Self {
        let result = RedrivenWord::Redriven;
        RedrivenId { id: IdText(id), result, new_id: None, durability: level.as_str() }
    }

    fn moved(id: MessageId, moved: &MovedMessage) -> Self {
        RedrivenId { new_id: Some(IdText(moved.id)), ..RedrivenId::of(id, moved.level) }
    }
}

/// The status of a redriven message.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(crate) enum RedrivenWord {
    Redriven,
}

pub(crate) async fn redrive(mut call: Call) -> Answer {
    let queue = call.queue()?;
    let asked: Redrive = call.json(call.app.policy.max_batch_bytes).await?;
    if let (Some(_), None) = (&asked.to_queue, &asked.ids) {
        let why = "goes with ids; for many messages at once begin a job: POST /v1/queues/{queue}/bulk";
        return Err(Problem::field("to_queue", why));
    }
    let to = asked.to_queue.map(|name| QueueName::new(&name)).transpose();
    let to = to.map_err(|what| Problem::field("to_queue", what))?;
    let ids = match (asked.ids, asked.max) {
        (Some(_), Some(_)) => return Err(Problem::field("max", "only one of ids and max may be given")),
        (Some(ids), None) => ids,
        (None, max) => {
            let max = max.map_or(usize::MAX, |n| usize::try_from(n.0).unwrap_or(usize::MAX));
            return redrive_many(&call.app, queue, max).await;
        }
    };
    check_batch(ids.len(), &call.app.policy)?;
    let ids: Vec<_> = ids.into_iter().map(|id| id.0).collect();
    let results: Vec<Result<RedrivenId, Problem>> = match to {
        None => {
            let results = of_queue(&call.app, &queue, &ids, Op::redrive).await?;
            let done = |(id, result)| level_of(result).map(|level| RedrivenId::of(id, level));
            ids.iter().copied().zip(results).map(done).collect()
        }
        Some(to) => {
            call.caller.need_queue(&to)?;
            call.app.accepts()?;
            let mut results = Vec::with_capacity(ids.len());
            for id in &ids {
                let moved = redrive_to((&call.app, &call.caller), &queue, *id, &to).await;
                results.push(moved.map(|moved| RedrivenId::moved(*id, &moved)));
            }
            results
        }
    };
    let redriven = results.iter().filter(|result| result.is_ok()).count() as u64;
    let results: Vec<(MessageId, Result<RedrivenId, Problem>)> = ids.into_iter().zip(results).collect();
    let shown = results.iter().map(|(id, result)| match result {
        Ok(done) => RedriveResult::Done(done.clone()),
        Err(problem) => RedriveResult::Refused(RefusedId::of(*id, problem)),
    });
    Ok(reply(
        StatusCode::OK,
        &RedrivenAnswer { redriven, results: Some(shown.collect()), refused: None, durability: None },
    ))
}

/// The engine redrives a bounded number at a time, so that other requests are served in between.
async fn redrive_many(app: &App, queue: QueueName, max: usize) -> Answer {
    let (mut redriven, mut level) = (0, None::<Level>);
    let mut refused = BTreeMap::new();
    loop {
        let left = max.saturating_sub(usize::try_from(redriven).unwrap_or(usize::MAX));
        let done = app.ask(Op::redrive_many(queue.clone(), left)).await?;
        redriven += done.what;
        level = Some(level.map_or(done.level, |level| level.and(done.level)));
        if redriven >= max as u64 {
            break;
        }
        if done.what == 0 {
            refused = refusals(app, &queue).await?;
            break;
        }
    }
    let durability = Some(level.unwrap_or_default().as_str());
    let refusals = |(code, (messages, ids))| RedriveRefusals { code, messages, ids };
    let refused = (!refused.is_empty()).then(|| refused.into_iter().map(refusals).collect());
    Ok(reply(StatusCode::OK, &RedrivenAnswer { redriven, results: None, refused, durability }))
}

/// Number and first ids of refused messages, by code.
type RefusedByCode = BTreeMap<&'static str, (u64, Vec<IdText>)>;

/// Why the messages that are dead after a redrive of all could not be made ready: each is asked for by itself. One that
/// has died in between is redriven.
async fn refusals(app: &App, queue: &QueueName) -> Result<RefusedByCode, Problem> {
    let (mut refused, mut after, mut walked) = (RefusedByCode::new(), None, 0);
    while walked < REFUSALS_WALKED {
        let page = app.client.list(queue.clone(), Some(State::Dead), after, REFUSALS_AT_ONCE).await?;
        walked += page.views.len();
        let ids: Vec<MessageId> = page.views.iter().map(|view| view.message.id).collect();
        let asks = ids.iter().map(|id| Op::redrive(*id)).collect();
        let answers = app.client.ask_many(asks).await?;
        for (id, answer) in ids.into_iter().zip(answers) {
            let Err(refusal) = answer? else { continue };
            if !matches!(refusal, ChangeRefusal::NotFound | ChangeRefusal::NotDead) {
                let code = Problem::from_change(refusal, "due_at").code.as_str();
                let (messages, first) = refused.entry(code).or_default();
                *messages += 1;
                if first.len() < REFUSALS_SHOWN {
                    first.push(IdText(id));
                }
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(refused)
}

/// Whether a queue exists only because beanstalkd's protocol always has a tube `default`: since it exists, no client
/// has put a message into it, reserved from it, or changed its settings. Listings leave such a queue out.
pub(crate) fn is_unused_default(queue: &QueueView) -> bool {
    let Counts { scheduled, ready, leased, dead, estimated: _ } = queue.counts;
    queue.name == default_queue()
        && scheduled + ready + leased + dead == 0
        && queue.waiters == 0
        && queue.attended == Attended::No
        && queue.totals == Totals::default()
        && !queue.settings.keep_a_queue()
        && queue.pause == Pause::Running
}
