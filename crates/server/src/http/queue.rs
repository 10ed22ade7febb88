//! Operations on a queue: get, pause, resume, redrive; and on many of its messages: cancel, redrive into another
//! queue.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use duewheel::core::engine::{
    Applied, Attended, ChangeRefusal, Counts, Enqueue, Op, Outline, QueueView, Target,
};
use duewheel::core::policy::OWN_DEDUPE;
use duewheel::core::record::{Pause, Totals};
use duewheel::core::store::Level;
use duewheel::core::{Key, MessageId, QueueName, State};
use duewheel::{CallError, same_content};
use duewheel_delivery::{DeadMove, MoveFailure, MovedDead, move_dead};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::message::{CancelledWord, Nothing, fate_of_id, room};
use super::queue_view::QueueAnswer;
use super::reach::of_queue;
use super::settle::RefusedId;
use super::strict::{self, Id, Positive, Text, Whole};
use super::{Answer, App, answer, check_batch, reply, target};
use crate::auth::Caller;
use crate::beanstalk::default_queue;
use crate::error::{ErrorCode, ItemProblem, Problem};
use crate::json::{IdText, KeyText, LevelText, QueueText};
use crate::schema::{DelaySchema, KeySchema, QueueSchema};
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
    pub(super) queue: QueueText<'a>,
    pub(super) paused: bool,
    /// The length of the pause; `null` until resumed.
    pub(super) for_ms: Option<u64>,
    pub(super) durability: LevelText,
}

/// A queue that runs.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Resumed")]
pub(crate) struct ResumedAnswer<'a> {
    pub(super) queue: QueueText<'a>,
    pub(super) paused: bool,
    pub(super) durability: LevelText,
}

pub(crate) async fn pause(mut call: Call) -> Answer {
    let queue = call.queue()?;
    let limit = call.app.policy.max_delay_ms;
    let for_ms = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        let asked: PauseFor = strict::parse_optional(&bytes)?;
        strict::either_within(asked.for_ms, asked.r#for, ("for", "for_ms"), limit)?
    };
    let done = call.app.ask(Op::pause(queue.clone(), for_ms)).await?.map_err(Problem::from_settings)?;
    let (queue, durability) = (QueueText(queue.as_str()), LevelText(done.level));
    Ok(reply(StatusCode::OK, &PausedAnswer { queue, paused: true, for_ms, durability }))
}

pub(crate) async fn resume(mut call: Call) -> Answer {
    let queue = call.queue()?;
    let Nothing {} = call.json(call.app.policy.max_batch_bytes).await?;
    let durability = LevelText(call.app.ask(Op::resume(queue.clone())).await?.level);
    Ok(reply(StatusCode::OK, &ResumedAnswer { queue: QueueText(queue.as_str()), paused: false, durability }))
}

/// Purges a queue, unless it has more messages to remove than are expected.
pub(super) async fn purge_at_most(
    app: &App,
    queue: QueueName,
    expect: Option<u64>,
) -> Result<Applied<u64>, Problem> {
    let purged = app.ask(Op::purge(queue, expect)).await?;
    match expect.filter(|expect| purged.what > *expect) {
        None => Ok(purged),
        Some(expect) if app.client.shards() > 1 => Err(Problem::changed_in_some(expect, purged.what)),
        Some(expect) => Err(Problem::changed(expect, purged.what)),
    }
}

/// Which dead messages are made ready: those with these ids, at most this number, or all without either.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = crate::schema::redrive_rules)]
pub(crate) struct Redrive {
    ids: Option<Vec<Id>>,
    max: Option<Positive>,
    /// Without `ids`: the largest number of dead messages that there may be. With more the answer is 409 `changed`, and
    /// none is made ready.
    expect: Option<Whole>,
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
    pub(super) durability: Option<LevelText>,
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
    pub(super) durability: LevelText,
}

impl RedrivenId {
    pub(super) fn of(id: MessageId, level: Level) -> Self {
        let result = RedrivenWord::Redriven;
        RedrivenId { id: IdText(id), result, new_id: None, durability: LevelText(level) }
    }

    fn moved(id: MessageId, moved: MovedDead) -> Self {
        RedrivenId { new_id: moved.id.map(IdText), ..RedrivenId::of(id, moved.level) }
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
    let expect = asked.expect.map(|expect| expect.0);
    let ids = match (asked.ids, asked.max) {
        (Some(_), _) if expect.is_some() => return Err(Problem::field("expect", "goes without ids")),
        (Some(_), Some(_)) => return Err(Problem::field("max", "only one of ids and max may be given")),
        (Some(ids), None) => ids,
        (None, max) => {
            if let Some(expect) = expect {
                let view = call.app.ask(Op::queue(queue.clone())).await?;
                let dead = view.map_or(0, |view| view.counts.dead);
                if dead > expect {
                    return Err(Problem::changed(expect, dead));
                }
            }
            let max = max.map(|n| n.0).into_iter().chain(expect).min();
            let max = max.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
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
                results.push(moved.map(|moved| RedrivenId::moved(*id, moved)));
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
        let done = app.ask_behind(Op::redrive_many(queue.clone(), left), redriven > 0).await?;
        redriven += done.what;
        level = Some(level.map_or(done.level, |level| level.and(done.level)));
        if redriven >= max as u64 {
            break;
        }
        if done.what == 0 {
            (redriven, refused) = refusals(app, &queue, left, redriven).await?;
            break;
        }
    }
    let durability = Some(LevelText(level.unwrap_or_default()));
    let refusals = |(code, (messages, ids))| RedriveRefusals { code, messages, ids };
    let refused = (!refused.is_empty()).then(|| refused.into_iter().map(refusals).collect());
    Ok(reply(StatusCode::OK, &RedrivenAnswer { redriven, results: None, refused, durability }))
}

/// Number and first ids of refused messages, by code.
type RefusedByCode = BTreeMap<&'static str, (u64, Vec<IdText>)>;

/// Why the messages that are dead after a redrive of all could not be made ready: each is asked for by itself. Those that
/// have died in between are redriven, at most `left`; the first value is their number and those that were redriven before.
async fn refusals(
    app: &App,
    queue: &QueueName,
    mut left: usize,
    mut redriven: u64,
) -> Result<(u64, RefusedByCode), Problem> {
    let (mut refused, mut after, mut walked) = (RefusedByCode::new(), None, 0);
    while walked < REFUSALS_WALKED && left > 0 {
        let failed = |error: CallError| if redriven > 0 { error.of_one_of_several() } else { error };
        let limit = REFUSALS_AT_ONCE.min(left);
        let page = app.client.list(queue.clone(), Some(State::Dead), after, limit).await.map_err(failed)?;
        walked += page.views.len();
        let ids: Vec<MessageId> = page.views.iter().map(|view| view.message.id).collect();
        let asks = ids.iter().map(|id| Op::redrive(*id)).collect();
        let answers = app.client.ask_many(asks).await.map_err(failed)?;
        let done = answers.iter().filter(|answer| matches!(answer, Ok(Ok(_)))).count();
        (redriven, left) = (redriven + done as u64, left - done);
        let failed = |error: CallError| if redriven > 0 { error.of_one_of_several() } else { error };
        for (id, answer) in ids.into_iter().zip(answers) {
            let Err(refusal) = answer.map_err(failed)? else { continue };
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
    Ok((redriven, refused))
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
            fate_of_id(asked.forget_dedupe),
        )
    };
    let ids: Vec<MessageId> = ids.into_iter().map(|id| id.0).collect();
    let cancel = |target| Op::cancel_with(target, dedupe_id, None);
    let by_key = keys.iter().map(|key| cancel(Target::Key(queue.clone(), key.clone()))).collect();
    let key_results = call.app.ask_many(by_key).await?;
    let id_results = of_queue(&call.app, &queue, &ids, |id| cancel(Target::Id(id))).await;
    // The keys have their results, whatever becomes of the ids.
    let id_results = match id_results {
        Err(problem) if !keys.is_empty() => vec![Err(problem); ids.len()],
        id_results => id_results?,
    };
    let key_results: Vec<_> = key_results.into_iter().map(level_of).collect();
    let id_results: Vec<_> = id_results.into_iter().map(level_of).collect();
    let by_key = keys.iter().zip(&key_results).map(|(key, result)| match result {
        Ok(level) => CancelResult::Key(CancelledKey::of(key.as_str(), *level)),
        Err(problem) => CancelResult::KeyRefused(RefusedKey::of(key.as_str(), problem)),
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

answer! {
    /// The message with this key was cancelled.
    CancelledKey<'a> of (key: &'a str, level: Level) {
        key: KeyText<'a> = KeyText(key),
        result: CancelledWord = CancelledWord::Cancelled,
        durability: LevelText = LevelText(level),
    }
}

answer! {
    /// The message with this id was cancelled.
    CancelledId of (id: MessageId, level: Level) {
        id: IdText = IdText(id),
        result: CancelledWord = CancelledWord::Cancelled,
        durability: LevelText = LevelText(level),
    }
}

answer! {
    /// Why the message with this key was not cancelled.
    RefusedKey<'a> of (key: &'a str, problem: &'a Problem) {
        key: KeyText<'a> = KeyText(key),
        #[serde(flatten)]
        problem: ItemProblem<'a> = ItemProblem::of(problem),
    }
}

/// The durability level of the change of one of many messages, or why it was refused.
pub(super) fn level_of(
    result: Result<Result<Applied<Box<Outline>>, ChangeRefusal>, Problem>,
) -> Result<Level, Problem> {
    result?.map(|changed| changed.level).map_err(|refusal| Problem::from_change(refusal, "due_at"))
}

/// Moves a dead message into `to`. The same request again, after one without an answer, finds the message gone, or
/// finishes what was begun: the new message has a dedupe id of the old one.
pub(super) async fn redrive_to(
    (app, caller): (&App, &Caller),
    from: &QueueName,
    id: MessageId,
    to: &QueueName,
) -> Result<MovedDead, Problem> {
    let _room = room(app).await?;
    let found = app.ask(Op::get(Target::Id(id))).await?;
    let found = found.filter(|found| found.message.queue == *from).ok_or_else(Problem::message_not_found)?;
    let not_dead = || Problem::new(ErrorCode::NotDead, "the message is not dead");
    let (State::Dead, Some((_, died))) = (found.state, found.dead) else { return Err(not_dead()) };
    let copy = Enqueue {
        key: found.message.key.clone(),
        // Of this death: once redriven in its own queue the message may die, and be moved, again.
        dedupe_id: Some(format!("{OWN_DEDUPE}redrive/{}/{}", id.0, died.0).into()),
        ..same_content(&found, to.clone(), app.client.now().wall, 0)
    };
    if target::has_url(&copy) {
        target::check_url(app, caller, to).await?;
    }
    let moved = move_dead(&app.client, &[DeadMove { id, died, copy, enters: true }]).await.pop();
    moved.unwrap_or(Err(MoveFailure::Call(CallError::NO_ANSWER))).map_err(|failure| match failure {
        MoveFailure::Copy(refusal) => Problem::from_enqueue(refusal, "to_queue"),
        MoveFailure::Removal(refusal) => Problem::from_change(refusal, "to_queue"),
        MoveFailure::Call(error) => error.into(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use duewheel::core::Policy;
    use duewheel::{Duewheel, Outcome};

    use super::*;
    use crate::drain::Drain;
    use crate::error::Extra;
    use crate::http::HttpLimits;

    /// Story: when a step behind the first one was refused, the answer was that nothing was applied, and a caller that asked
    /// again had more messages ready than it wanted.
    #[tokio::test]
    async fn failed_rest_of_redrive_is_unknown() {
        let wheel = Duewheel::builder().in_memory().open().await.unwrap();
        let app = App::new(wheel.clone(), Policy::default(), HttpLimits::default(), Drain::default());
        wheel.shutdown(Duration::ZERO).await.unwrap();
        let queue = QueueName::new("q").unwrap();
        let is_unknown = |problem: Problem| problem.extra == Extra::Outcome(Outcome::Unknown);
        for redriven in [0, 1] {
            let is_part = redriven > 0;
            let step = app.ask_behind(Op::redrive_many(queue.clone(), 5), is_part).await;
            assert_eq!(is_unknown(step.unwrap_err()), is_part);
            let refused = refusals(&app, &queue, 5, redriven).await;
            assert_eq!(is_unknown(refused.unwrap_err()), is_part);
        }
    }
}
