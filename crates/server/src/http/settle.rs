//! `ack`, `nack` and `extend`: of one message, and of many in one request with a result for each.

use axum::http::StatusCode;
use duewheel::CallError;
use duewheel::core::engine::{Applied, Ask, Attempt, Op, SettleRefusal, Settled, Typed};
use duewheel::core::{LeaseToken, MessageId, QueueName, WallMs};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::call::Call;
use super::reach::{apply_within, within};
use super::strict::{self, Id, Object, Positive, Text, Whole};
use super::traced::TracedCall;
use super::{Answer, App, answer, check_batch, reply};
use crate::auth::Caller;
use crate::error::{ItemProblem, Problem};
use crate::json::{IdText, InstantText, LevelText};
use crate::schema::{AnyJsonSchema, DeadReasonSchema, DelaySchema, TokenSchema};
use crate::span::SpanText;
use crate::traces::LeaseCall;

/// Operations on a lease: the request about one, the item of a request about many, and the answers to both.
macro_rules! lease_calls {
    ($(
        $(#[$meta:meta])* $one:ident => $answer:ty;
        $(#[$item_meta:meta])* $item:ident => $(#[$done_meta:meta])* $done:ident $flat:ident;
        $(#[$many_meta:meta])* $many:ident => $result:ident in $results:ident;
        $(#[$rules:meta])*
        { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* }
    )*) => {$(
        $(#[$meta])*
        #[derive(Debug, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$rules])*
        pub(crate) struct $one<'a> {
            #[serde(borrow)]
            #[schemars(with = "TokenSchema")]
            lease_token: Text<'a>,
            $($(#[$field_meta])* $field: $type,)*
        }

        $(#[$item_meta])*
        #[derive(Debug, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$rules])*
        pub(crate) struct $item<'a> {
            id: Id,
            /// The token of its lease. A malformed token is an error of this item alone.
            #[serde(borrow)]
            lease_token: Text<'a>,
            $($(#[$field_meta])* $field: $type,)*
        }

        $(#[$many_meta])*
        #[derive(Debug, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $many<'a> {
            #[serde(borrow)]
            messages: Vec<Object<$item<'a>>>,
        }

        /// A result for each message, in order.
        #[derive(Debug, JsonSchema, Serialize)]
        pub(crate) struct $results<'a> {
            results: Vec<$result<'a>>,
        }

        /// The result for one message.
        #[derive(Debug, JsonSchema, Serialize)]
        #[serde(untagged)]
        pub(crate) enum $result<'a> {
            Done($done),
            Refused(RefusedId<'a>),
        }

        $(#[$done_meta])*
        #[derive(Debug, JsonSchema, Serialize)]
        pub(crate) struct $done {
            id: IdText,
            #[serde(flatten)]
            $flat: $answer,
        }

        impl<'a> $many<'a> {
            /// The ids of the messages, and the request for each.
            fn items(self, app: &App) -> Result<impl Iterator<Item = (MessageId, $one<'a>)>, Problem> {
                check_batch(self.messages.len(), &app.policy)?;
                Ok(self.messages.into_iter().map(|Object($item { id: Id(id), lease_token, $($field),* })| {
                    (id, $one { lease_token, $($field),* })
                }))
            }
        }

        impl<'a> $results<'a> {
            fn of<T>(results: &'a [(MessageId, Result<T, Problem>)], answer: impl Fn(&T) -> $answer) -> Self {
                let result = |(id, result): &'a (MessageId, Result<T, Problem>)| match result {
                    Ok(done) => $result::Done($done { id: IdText(*id), $flat: answer(done) }),
                    Err(problem) => $result::Refused(RefusedId::of(*id, problem)),
                };
                $results { results: results.iter().map(result).collect() }
            }
        }
    )*};
}

lease_calls! {
    /// The lease whose message is done.
    Ack => SettledAnswer;
    /// A message and its lease.
    Leased =>
    /// A message that was acked.
    AckedItem settled;
    /// Leases whose messages are done.
    AckMany => AckResult in AckResults;
    {
        /// The result of the message: any JSON but null, of at most 16 KiB. It is kept with the done message,
        /// and left out if the queue keeps none.
        #[serde(borrow)]
        #[schemars(with = "Option<AnyJsonSchema>")]
        result: Option<&'a RawValue>,
    }

    /// The lease whose message is not done, and what happens to the message.
    Nack => SettledAnswer;
    /// A message that is not done, and what happens to it.
    NackItem =>
    /// A message that was given back.
    NackedItem settled;
    /// Leases whose messages are not done, and what happens to each message.
    NackMany => NackResult in NackResults;
    #[schemars(transform = crate::schema::nack_rules)]
    {
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

    /// The lease whose deadline is pushed.
    Extend => ExtendedAnswer;
    /// A message whose lease is extended.
    ExtendItem =>
    /// A message whose lease was extended.
    ExtendedItem extended;
    /// Leases whose deadlines are pushed.
    ExtendMany => ExtendResult in ExtendResults;
    #[schemars(transform = crate::schema::lease_rules)]
    {
        /// The length of the lease from now; by default the setting of message or queue.
        #[schemars(extend("x-limit" = "max_lease_ms"))]
        lease_ms: Option<Positive>,
        /// `lease_ms` as text, in place of the number.
        #[schemars(with = "Option<DelaySchema>")]
        lease: Option<SpanText>,
    }
}

/// The engine's answer to an extension.
type Extension = Result<Applied<WallMs>, SettleRefusal>;

/// The engine's answer to a settlement.
type Settlement = Result<Applied<Settled>, SettleRefusal>;

/// Results by message, in order.
type ItemResults<T> = Vec<(MessageId, Result<T, Problem>)>;

pub(crate) async fn ack(mut call: Call) -> Answer {
    let id = call.id()?;
    let asked = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        strict::parse::<Ack<'_>>(&bytes)?.into_ask(id, call.app.policy.max_result)?
    };
    let traced = TracedCall::begin(&call.app, call.headers());
    let done = acks(&call.app, &call.caller, vec![(id, asked)]).await;
    let done = done.and_then(|mut done| done.pop().unwrap_or_else(|| Err(CallError::NO_ANSWER.into())));
    Ok(reply(StatusCode::OK, &SettledAnswer::of(&one(traced, LeaseCall::Ack, id, done)?)))
}

pub(crate) async fn nack(mut call: Call) -> Answer {
    let id = call.id()?;
    let asked = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        strict::parse::<Nack<'_>>(&bytes)?.into_ask(id, call.app.policy.max_delay_ms)?
    };
    let traced = TracedCall::begin(&call.app, call.headers());
    let done = call.app.ask(asked).await;
    Ok(reply(StatusCode::OK, &SettledAnswer::of(&one(traced, LeaseCall::Nack, id, done)?)))
}

pub(crate) async fn extend(mut call: Call) -> Answer {
    let id = call.id()?;
    let asked = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        strict::parse::<Extend<'_>>(&bytes)?.into_ask(id)?
    };
    let traced = TracedCall::begin(&call.app, call.headers());
    let done = call.app.ask(asked).await;
    Ok(reply(StatusCode::OK, &ExtendedAnswer::of(&one(traced, LeaseCall::Extend, id, done)?)))
}

/// The result of a call about one lease, once its span has ended.
fn one<T>(
    traced: TracedCall,
    how: LeaseCall,
    id: MessageId,
    done: Result<Result<T, SettleRefusal>, Problem>,
) -> Result<T, Problem> {
    let done = done.and_then(|done| done.map_err(Problem::from_settle));
    traced.settled(how, id, &done);
    done
}

pub(crate) async fn ack_many(mut call: Call) -> Answer {
    let asked: ItemResults<Typed<Settlement>> = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        let items = strict::parse::<AckMany<'_>>(&bytes)?.items(&call.app)?;
        let longest = call.app.policy.max_result;
        let read = |(n, (id, ack)): (usize, (MessageId, Ack<'_>))| {
            (id, ack.into_ask(id, longest).map_err(|problem| within_item(problem, n)))
        };
        items.enumerate().map(read).collect()
    };
    let traced = TracedCall::begin(&call.app, call.headers());
    let (valid, slots) = split(asked);
    let done = acks(&call.app, &call.caller, valid).await?;
    let results = joined(slots, done, (traced, LeaseCall::Ack));
    Ok(reply(StatusCode::OK, &AckResults::of(&results, SettledAnswer::of)))
}

pub(crate) async fn nack_many(mut call: Call) -> Answer {
    let asked: ItemResults<Typed<Settlement>> = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        let longest_ms = call.app.policy.max_delay_ms;
        let read = |(n, (id, nack)): (usize, (MessageId, Nack<'_>))| {
            if let Err(problem) = token(&nack.lease_token) {
                return Ok((id, Err(within_item(problem, n))));
            }
            let ask = nack.into_ask(id, longest_ms).map_err(|problem| within_item(problem, n))?;
            Ok((id, Ok(ask)))
        };
        let items = strict::parse::<NackMany<'_>>(&bytes)?.items(&call.app)?;
        items.enumerate().map(read).collect::<Result<_, Problem>>()?
    };
    let traced = TracedCall::begin(&call.app, call.headers());
    let (valid, slots) = split(asked);
    let done = settle(&call.app, &call.caller, valid).await?;
    let results = joined(slots, done, (traced, LeaseCall::Nack));
    Ok(reply(StatusCode::OK, &NackResults::of(&results, SettledAnswer::of)))
}

pub(crate) async fn extend_many(mut call: Call) -> Answer {
    let asked: ItemResults<Typed<Extension>> = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        let longest_ms = call.app.policy.max_lease_ms;
        let read = |(n, (id, extend)): (usize, (MessageId, Extend<'_>))| {
            let names = ("lease", "lease_ms");
            let length = strict::either_within(extend.lease_ms, extend.lease, names, longest_ms);
            length.map_err(|problem| within_item(problem, n))?;
            Ok((id, extend.into_ask(id).map_err(|problem| within_item(problem, n))))
        };
        let items = strict::parse::<ExtendMany<'_>>(&bytes)?.items(&call.app)?;
        items.enumerate().map(read).collect::<Result<_, Problem>>()?
    };
    let traced = TracedCall::begin(&call.app, call.headers());
    let (valid, slots) = split(asked);
    let done = settle(&call.app, &call.caller, valid).await?;
    let results = joined(slots, done, (traced, LeaseCall::Extend));
    Ok(reply(StatusCode::OK, &ExtendResults::of(&results, ExtendedAnswer::of)))
}

/// The problem of an item, with its place.
fn within_item(problem: Problem, n: usize) -> Problem {
    problem.within(&format!("messages[{n}]"))
}

/// The requests that are valid, and for each item whether it is one of them.
fn split<A>(asked: ItemResults<A>) -> (Vec<(MessageId, A)>, ItemResults<()>) {
    let mut valid = Vec::with_capacity(asked.len());
    let slot = |(id, ask): (MessageId, Result<A, Problem>)| (id, ask.map(|ask| valid.push((id, ask))));
    let slots = asked.into_iter().map(slot).collect();
    (valid, slots)
}

/// The results of all items: the engine's answers, and the problems of items that were not asked.
fn joined<T>(
    slots: ItemResults<()>,
    done: Vec<Result<Result<T, SettleRefusal>, Problem>>,
    (traced, how): (TracedCall, LeaseCall),
) -> ItemResults<T> {
    let mut done = done.into_iter();
    let mut result = |valid: Result<(), Problem>| {
        let settled = valid.and_then(|()| done.next().unwrap_or_else(|| Err(CallError::NO_ANSWER.into())))?;
        settled.map_err(Problem::from_settle)
    };
    let results: ItemResults<T> = slots.into_iter().map(|(id, valid)| (id, result(valid))).collect();
    traced.settled_many(how, &results);
    results
}

/// Applies requests to the messages that the caller's token covers; others are not found.
async fn settle<A: Ask>(
    app: &App,
    caller: &Caller,
    asked: Vec<(MessageId, A)>,
) -> Result<Vec<Result<A::Reply, Problem>>, Problem> {
    match caller.limits() {
        None => app.ask_many(asked.into_iter().map(|(_, ask)| ask).collect()).await,
        Some(_) => apply_within(app, asked, |queue: &QueueName| caller.reaches(queue)).await,
    }
}

/// Acks the messages that the caller's token covers, including those that were acked before.
async fn acks(
    app: &App,
    caller: &Caller,
    leases: Vec<(MessageId, Typed<Settlement>)>,
) -> Result<Vec<Result<Settlement, Problem>>, Problem> {
    if caller.limits().is_none() {
        return app.ask_many(leases.into_iter().map(|(_, ask)| ask).collect()).await;
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
    let asked = leases.into_iter().zip(&found).filter(|(_, found)| is_asked(found));
    let mut done = app.ask_many(asked.map(|((_, ask), _)| ask).collect()).await?.into_iter();
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

impl Ack<'_> {
    fn into_ask(self, id: MessageId, longest: usize) -> Result<Typed<Settlement>, Problem> {
        let proof = token(&self.lease_token)?;
        let result = self.result.map(RawValue::get);
        if result.is_some_and(|result| result.len() > longest) {
            return Err(Problem::field("result", format_args!("must be at most {longest} bytes of JSON")));
        }
        // Line breaks in JSON are between values. A list may have a message on each line.
        Ok(Op::ack_with(id, proof, result.map(|result| result.replace(['\n', '\r'], " ").into())))
    }
}

impl Nack<'_> {
    fn into_ask(self, id: MessageId, longest_ms: u64) -> Result<Typed<Settlement>, Problem> {
        let proof = token(&self.lease_token)?;
        let note = self.reason.map(|text| text.0).unwrap_or_default();
        let attempt = match self.attempt {
            None | Some(true) => Attempt::Failed,
            Some(false) => Attempt::NotYet,
        };
        if self.dead != Some(true) {
            let names = ("delay", "delay_ms");
            let delay_ms = strict::either_within(self.delay_ms, self.delay, names, longest_ms)?;
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

impl Extend<'_> {
    fn into_ask(self, id: MessageId) -> Result<Typed<Extension>, Problem> {
        let proof = token(&self.lease_token)?;
        Ok(Op::extend(id, proof, strict::either(self.lease_ms, self.lease, "lease")?))
    }
}

fn token(text: &Text<'_>) -> Result<LeaseToken, Problem> {
    text.0.parse().map_err(|what| Problem::field("lease_token", what))
}

answer! {
    /// A lease that was extended.
    #[schemars(rename = "Extended")]
    ExtendedAnswer of (done: &Applied<WallMs>) {
        result: ExtendedWord = ExtendedWord::Extended,
        lease_until: InstantText = InstantText(done.what),
        durability: LevelText = LevelText(done.level),
    }
}

/// The status of an extended lease.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(crate) enum ExtendedWord {
    Extended,
}

answer! {
    /// Why the message with this id was not changed.
    RefusedId<'a> of (id: MessageId, problem: &'a Problem) {
        id: IdText = IdText(id),
        #[serde(flatten)]
        problem: ItemProblem<'a> = ItemProblem::of(problem),
    }
}

/// The result of settling a lease.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Settled")]
pub(crate) struct SettledAnswer {
    result: SettledWord,
    /// With `again`: when the next attempt is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    due_at: Option<InstantText>,
    /// With `dead`: the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DeadReasonSchema>")]
    dead_reason: Option<&'static str>,
    durability: LevelText,
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
    fn of(settled: &Applied<Settled>) -> Self {
        let durability = LevelText(settled.level);
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
