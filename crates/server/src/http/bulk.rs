//! Changes to many messages at once, and their jobs.
//!
//! A token that is limited to queues has the jobs whose queues it reaches; others do not exist for it.

use std::fmt;
use std::time::Duration;

use axum::http::StatusCode;
use duewheel::core::engine::{Op, QuotaUse};
use duewheel::core::{QueueName, WallMs};
use duewheel_delivery::{
    BadBulk, BulkAction, BulkCounts, BulkError, BulkFilter, BulkJobs, BulkMove, BulkRequest, BulkTenant,
    BulkView, UrlMoves,
};
use duewheel_shard::acting::{concerns, is_called};
use schemars::JsonSchema;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use tokio::time::Instant;

use super::call::Call;
use super::queue::purge_at_most;
use super::strict::{self, Object, Positive, Strings, Text, U32_MAX, Whole};
use super::{Answer, App, answer, listing, reply, target};
use crate::auth::Caller;
use crate::error::{ErrorCode, Problem};
use crate::json::{InstantText, LevelText};
use crate::rfc3339;
use crate::schema::{
    DeadReasonSchema, DelaySchema, HeadersSchema, InstantSchema, JobSchema, QueueSchema, ShiftSchema,
    StateSchema,
};
use crate::span::{SpanText, TimeSpan};

/// The action and its messages. Either `filter`, or `all`; `restore` has `act` instead.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Bulk", transform = crate::schema::bulk_rules)]
pub(crate) struct BulkFields<'a> {
    /// `cancel`, `postpone` and `fire` concern scheduled and ready messages, `redrive` dead ones. A `cancel` whose filter
    /// has the state `dead`, or a reason of death, removes dead ones. `restore` puts back what an act has removed and kept.
    action: BulkActionWord,
    /// Messages for which everything holds that is given; at least one field.
    #[serde(borrow)]
    filter: Option<Object<FilterFields<'a>>>,
    /// All messages.
    #[serde(default)]
    all: bool,
    /// For `postpone` and `redrive`: due this number of milliseconds after the request.
    #[schemars(extend("x-limit" = "max_delay_ms"))]
    delay_ms: Option<Whole>,
    /// `delay_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    delay: Option<SpanText>,
    /// For `postpone`: due this number of milliseconds later than it was, earlier if negative. What is past is due now.
    #[schemars(extend("x-limit-both-ways" = "max_delay_ms"))]
    shift_ms: Option<i64>,
    /// `shift_ms` as text, with a `-` before it for earlier, in place of the number.
    #[schemars(with = "Option<ShiftSchema>")]
    shift: Option<Text<'a>>,
    /// For `redrive`: each becomes a new message of this queue, with its key, and the old one is removed.
    #[schemars(with = "Option<QueueSchema>")]
    to_queue: Option<Text<'a>>,
    /// Messages a second; without it there is no limit.
    #[schemars(range(max = 1_000_000))]
    rate: Option<Whole<1, U32_MAX>>,
    /// Counts the messages, and changes none.
    #[serde(default)]
    dry_run: bool,
    /// The largest number of messages that may match: with more the answer is 409 `changed`, and none is changed.
    expect: Option<Whole>,
    /// For `cancel`: how many milliseconds the messages are kept, so that `restore` can put them back.
    #[schemars(extend("x-limit" = "max_keep_done_ms"))]
    keep_ms: Option<Positive>,
    /// `keep_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    keep: Option<SpanText>,
    /// For `restore`: the act whose messages are put back, by the id that its answer had.
    #[schemars(length(min = 1, max = 32), extend("pattern" = "^[A-Za-z0-9]*$"))]
    act: Option<Text<'a>>,
}

/// What is done to each message.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "BulkAction")]
pub(crate) enum BulkActionWord {
    Cancel,
    Postpone,
    Fire,
    Redrive,
    Restore,
}

/// Which messages are meant.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields, rename = "MessageFilter", transform = crate::schema::filter_rules)]
pub(crate) struct FilterFields<'a> {
    /// Due at this instant or later.
    #[serde(borrow)]
    #[schemars(with = "Option<InstantSchema>")]
    due_from: Option<Text<'a>>,
    /// Due before this instant.
    #[schemars(with = "Option<InstantSchema>")]
    due_to: Option<Text<'a>>,
    /// The key begins with this, which is not empty.
    #[schemars(length(min = 1))]
    key_prefix: Option<Text<'a>>,
    /// Each of these headers is there with this value; at least one.
    #[schemars(with = "Option<HeadersSchema>", extend("minProperties" = 1))]
    headers: Option<Strings>,
    #[schemars(with = "Option<StateSchema>")]
    state: Option<Text<'a>>,
    /// Dead messages with this reason; without `state` it means `dead`.
    #[schemars(with = "Option<DeadReasonSchema>")]
    reason: Option<Text<'a>>,
    /// Dead messages whose last attempt has this in its note, in capitals or not; an empty one for those without a note.
    note: Option<Text<'a>>,
    /// Another name of `reason`.
    #[schemars(with = "Option<DeadReasonSchema>")]
    dead_reason: Option<Text<'a>>,
    /// Dead messages whose last attempt has exactly this note; an empty one for those without a note.
    dead_note: Option<Text<'a>>,
    /// `header.NAME`, as in a filtered list: the same as `NAME` among `headers`. All other members are unknown.
    #[serde(flatten)]
    #[schemars(skip)]
    named: NamedHeaders,
}

/// Members `header.NAME` of a filter.
#[derive(Debug, Default)]
struct NamedHeaders(Vec<(Box<str>, Box<str>)>);

impl<'de> Deserialize<'de> for NamedHeaders {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = NamedHeaders;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("members header.NAME")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NamedHeaders, A::Error> {
                let mut all: Vec<(Box<str>, Box<str>)> = Vec::new();
                while let Some(member) = map.next_key::<Text<'_>>()? {
                    let name = member.0.strip_prefix("header.").filter(|name| !name.is_empty());
                    let Some(name) = name else {
                        return Err(A::Error::custom(format_args!("unknown field `{}`", member.0)));
                    };
                    if all.iter().any(|(other, _)| **other == *name) {
                        return Err(A::Error::custom(format_args!("duplicate field `{}`", member.0)));
                    }
                    let value = map.next_value::<Text<'_>>();
                    let value = value.map_err(|bad| A::Error::custom(format_args!("{}: {bad}", member.0)))?;
                    all.push((name.into(), value.0.into()));
                }
                Ok(NamedHeaders(all))
            }
        }
        d.deserialize_map(V)
    }
}

impl FilterFields<'_> {
    fn into_filter(self) -> Result<BulkFilter, Problem> {
        let instant = |name: &'static str, text: Option<Text<'_>>| match text {
            None => Ok(None),
            Some(text) => {
                rfc3339::parse(&text.0).map(|at| Some(at.0)).map_err(|bad| Problem::field(name, bad))
            }
        };
        if self.headers.as_ref().is_some_and(|headers| headers.0.is_empty()) {
            return Err(Problem::field("headers", "must name at least one header"));
        }
        let mut headers = self.headers.map_or_else(Vec::new, |headers| headers.0);
        for (name, value) in self.named.0 {
            if headers.iter().any(|(other, _)| *other == name) {
                return Err(Problem::field(format!("header.{name}"), "is in headers, too"));
            }
            headers.push((name, value));
        }
        Ok(BulkFilter {
            due_from: instant("due_from", self.due_from)?,
            due_to: instant("due_to", self.due_to)?,
            key_prefix: self.key_prefix.map(|prefix| prefix.0.into_owned()),
            headers: headers.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            state: self.state.map(|word| listing::state(&word.0)).transpose()?,
            dead_reason: listing::dead_reason(
                self.reason.as_ref().map(|word| &*word.0),
                self.dead_reason.as_ref().map(|word| &*word.0),
            )?,
            dead_note: self.dead_note.map(|note| note.0.into_owned()),
            note: self.note.map(|note| note.0.into_owned()),
        })
    }
}

impl BulkFields<'_> {
    /// The lengths of time that were sent as text.
    fn as_text(&self) -> Vec<&'static str> {
        let given =
            [self.delay.map(|_| "delay"), self.shift.as_ref().map(|_| "shift"), self.keep.map(|_| "keep")];
        given.into_iter().flatten().collect()
    }

    /// The request for a job, and whether it is only counted.
    fn into_request(self, queue: QueueName) -> Result<(BulkRequest, bool), Problem> {
        let filter = self.filter.map(|filter| filter.0.into_filter()).transpose();
        let filter = filter.map_err(|bad| bad.within("filter"))?.unwrap_or_default();
        let is_restore = self.action == BulkActionWord::Restore;
        match (filter.is_empty(), self.all) {
            (_, true) if is_restore => return Err(Problem::field("all", "is not for restore")),
            (true, false) if is_restore => {}
            (false, true) => return Err(Problem::field("all", "only one of filter and all may be given")),
            (true, false) => {
                let what = "names no message; give at least one of its fields, or all: true for all messages";
                return Err(Problem::field("filter", what));
            }
            (true, true) | (false, false) => {}
        }
        let has_queue = self.to_queue.is_some();
        let delay = strict::either(self.delay_ms, self.delay, "delay")?;
        let shift = shift(self.shift_ms, self.shift.as_ref())?;
        // Into its own queue is what a redrive does anyway.
        let to_queue = self.to_queue.map(|to| to.0.into_owned()).filter(|to| to != queue.as_str());
        let is = |word| self.action == word;
        let refuse = |field, what: &str| Err(Problem::field(field, what));
        match () {
            () if delay.is_some() && !is(BulkActionWord::Postpone) && !is(BulkActionWord::Redrive) => {
                refuse("delay", "is for postpone and redrive")
            }
            () if shift.is_some() && !is(BulkActionWord::Postpone) => refuse("shift", "is for postpone"),
            () if has_queue && !is(BulkActionWord::Redrive) => refuse("to_queue", "is for redrive"),
            () if self.act.is_some() && !is_restore => refuse("act", "is for restore"),
            () => Ok(()),
        }?;
        let keep = strict::either(self.keep_ms, self.keep, "keep")?.map(Duration::from_millis);
        let action = match self.action {
            BulkActionWord::Cancel => BulkAction::Cancel,
            BulkActionWord::Restore => match self.act {
                Some(act) => BulkAction::Restore { act: act.0.into_owned() },
                None => return Err(Problem::field("act", "is missing: the act that is undone")),
            },
            BulkActionWord::Fire => BulkAction::Fire,
            BulkActionWord::Redrive => BulkAction::Redrive { delay_ms: delay, to_queue },
            BulkActionWord::Postpone => BulkAction::Postpone(match (delay, shift) {
                (Some(ms), None) => BulkMove::Delay(ms),
                (None, Some(ms)) => BulkMove::Shift(ms),
                (Some(_), Some(_)) => return refuse_shift("only one of delay and shift may be given"),
                (None, None) => return refuse_shift("one of delay and shift must be given"),
            }),
        };
        let (tenant, rate, urls) = (BulkTenant::Common, self.rate.map(Whole::get), UrlMoves::default());
        let expect = self.expect.map(|expect| expect.0);
        Ok((BulkRequest { tenant, queue, filter, action, rate, urls, expect, keep }, self.dry_run))
    }
}

fn refuse_shift<T>(what: &str) -> Result<T, Problem> {
    Err(Problem::field("shift", what))
}

fn shift(ms: Option<i64>, text: Option<&Text<'_>>) -> Result<Option<i64>, Problem> {
    let text = match (ms, text) {
        (Some(_), Some(_)) => return refuse_shift("only one of shift and shift_ms may be given"),
        (ms, None) => return Ok(ms),
        (None, Some(text)) => &*text.0,
    };
    let (sign, span) = text.strip_prefix('-').map_or((1, text), |span| (-1, span));
    let span: TimeSpan = span.parse().map_err(|bad| Problem::field("shift", bad))?;
    match i64::try_from(span.0) {
        Ok(ms) => Ok(Some(sign * ms)),
        Err(_) => refuse_shift("is too long"),
    }
}

/// How many messages a job would concern.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "BulkCount")]
pub(crate) struct BulkCountAnswer {
    /// Messages that would be changed.
    pub(super) matched: u64,
    /// Messages that the filter means and that a consumer has; they would be left alone.
    pub(super) leased: u64,
}

answer! {
    /// A job.
    #[schemars(rename = "Job")]
    JobAnswer of (view: BulkView) with {
        let BulkView { id, queue, action, rate, expect, keep_ms, phase, counts, created_ms, ended_ms, .. } = view;
        let BulkCounts { matched, done, leased, changed, refused } = counts;
    } {
        #[schemars(with = "JobSchema")]
        id: String = id,
        #[schemars(with = "QueueSchema")]
        queue: String = queue,
        /// `cancel`, `postpone`, `fire`, `redrive` or `restore`; `purge` for a purge whose messages are kept.
        action: &'static str = action.as_str(),
        /// `waiting`: others of its tenant come first. `collecting`: it writes down which messages it concerns.
        /// `running`: it changes them. `done`, or `cancelled`: also by itself, if more messages match than `expect`.
        state: &'static str = phase.as_str(),
        /// Messages that it concerns; all of them are known once it is `running`.
        matched: u64 = matched,
        /// Messages that it has changed.
        done: u64 = done,
        /// Messages that a consumer has, or had when they were to be changed.
        leased: u64 = leased,
        /// Messages that others have changed or removed since the job began, and that were left alone.
        changed: u64 = changed,
        /// Messages that could not be changed: their key is taken, or they have a URL of their own, and the job's
        /// caller had no scope `push-any`, or `to_queue` no target, when it began.
        refused: u64 = refused,
        /// Messages a second, if there is a limit.
        ?rate: u32 = rate,
        /// The queue that its messages go to, if it is another one.
        #[schemars(with = "Option<QueueSchema>")]
        ?to_queue: String = to_queue(&action).map(str::to_owned),
        /// The act that is undone.
        ?act: String = if let BulkAction::Restore { act } = action { Some(act) } else { None },
        /// The largest number of messages that may match.
        ?expect: u64 = expect,
        /// How many milliseconds each removed message is kept: so long `restore` with this job's id as `act` puts it
        /// back.
        ?keep_ms: u64 = keep_ms,
        created_at: InstantText = InstantText(WallMs(created_ms)),
        /// When it ended.
        ?ended_at: InstantText = ended_ms.map(|ms| InstantText(WallMs(ms))),
    }
}

/// The jobs that have not ended, and those that ended within a week; the newest first.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Jobs")]
pub(crate) struct JobsAnswer {
    pub(super) jobs: Vec<JobAnswer>,
}

pub(crate) async fn bulk(mut call: Call) -> Answer {
    let queue = call.queue()?;
    let (as_text, (mut request, dry_run)) = {
        let bytes = call.json_bytes(call.app.max_single_bytes()).await?;
        let fields = strict::parse::<BulkFields<'_>>(&bytes)?;
        (fields.as_text(), fields.into_request(queue)?)
    };
    let refused = |error: BulkError| match error {
        BulkError::Bad(bad) => of_bad(bad, &as_text),
        error => error.into(),
    };
    if let BulkAction::Restore { .. } = &request.action {
        call.app.accepts()?;
    }
    if let BulkAction::Redrive { to_queue: Some(to), .. } = &request.action {
        let to = QueueName::new(to).map_err(|what| Problem::field("to_queue", what))?;
        call.caller.need_queue(&to)?;
        call.app.accepts()?;
        // The job has no caller: what this one may do is decided now.
        request.urls = target::url_moves(&call.app, &call.caller, &to).await?;
    }
    let jobs = jobs(&call.app)?;
    if dry_run {
        let count = jobs.count(&request).await.map_err(refused)?;
        return Ok(reply(StatusCode::OK, &BulkCountAnswer { matched: count.matched, leased: count.leased }));
    }
    request.tenant = tenant(call.app.ask(Op::quotas()).await?, &call.caller, &request.queue);
    is_called(&format!("bulk_{}", request.action.as_str()));
    let view = jobs.begin(request).await.map_err(refused)?;
    Ok(reply(StatusCode::ACCEPTED, &JobAnswer::of(view)))
}

/// How a queue is purged.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = crate::schema::purge_rules)]
pub(crate) struct PurgeRequest {
    /// The largest number of messages to remove: with more the answer is 409 `changed`, and none is removed.
    expect: Option<Whole>,
    /// How many milliseconds the messages are kept, so that the bulk action `restore` can put them back.
    #[schemars(extend("x-limit" = "max_keep_done_ms"))]
    keep_ms: Option<Positive>,
    /// `keep_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    keep: Option<SpanText>,
}

/// The number of removed messages.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Purged")]
pub(crate) struct PurgedAnswer {
    /// Messages that are removed; with `keep`, so far.
    pub(super) purged: u64,
    /// With `keep`: the act, for `restore`. The job of this id removes the messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<JobSchema>")]
    pub(super) act: Option<String>,
    /// With `keep`: the state of that job; the messages are removed when it is `done`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) state: Option<&'static str>,
    /// The durability that all of them have reached; not with `keep`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) durability: Option<LevelText>,
}

pub(crate) async fn purge(mut call: Call) -> Answer {
    let queue = call.queue()?;
    let policy = &call.app.policy;
    let (limit, keep_limit) = (policy.max_batch_bytes, policy.max_keep_done_ms);
    let asked: PurgeRequest = call.json(limit).await?;
    let keep = strict::either_within(asked.keep_ms, asked.keep, ("keep", "keep_ms"), keep_limit)?;
    let expect = asked.expect.map(|expect| expect.0);
    if let Some(keep) = keep {
        let job = purge_kept((&call.app, &call.caller), queue, Duration::from_millis(keep), expect).await?;
        let status = if job.ended_ms.is_some() { StatusCode::OK } else { StatusCode::ACCEPTED };
        let (purged, act, state) = (job.counts.done, Some(job.id), Some(job.phase.as_str()));
        return Ok(reply(status, &PurgedAnswer { purged, act, state, durability: None }));
    }
    let done = purge_at_most(&call.app, queue, expect).await?;
    let durability = Some(LevelText(done.level));
    Ok(reply(StatusCode::OK, &PurgedAnswer { purged: done.what, act: None, state: None, durability }))
}

/// How long a purge waits for its job.
const PURGE_WAIT: Duration = Duration::from_secs(10);
/// How often it looks.
const PURGE_LOOK: Duration = Duration::from_millis(50);

/// Purges a queue by a job that keeps its messages. Returns the job when it has ended, or as far as it is known to have
/// come in ten seconds.
async fn purge_kept(
    (app, caller): (&App, &Caller),
    queue: QueueName,
    keep: Duration,
    expect: Option<u64>,
) -> Result<BulkView, Problem> {
    let jobs = jobs(app)?;
    let (filter, action, urls) = (BulkFilter::default(), BulkAction::Purge, UrlMoves::default());
    let tenant = tenant(app.ask(Op::quotas()).await?, caller, &queue);
    let request = BulkRequest { tenant, queue, filter, action, rate: None, urls, expect, keep: Some(keep) };
    let mut view = jobs.begin(request).await?;
    let until = Instant::now() + PURGE_WAIT;
    while view.ended_ms.is_none() && Instant::now() < until {
        tokio::time::sleep(PURGE_LOOK).await;
        match jobs.get(&view.id).await {
            Ok(now) => view = now,
            // The job goes on, and the caller needs its id.
            Err(_) => break,
        }
    }
    match view.expect {
        Some(expect) if view.counts.matched > expect => Err(Problem::changed(expect, view.counts.matched)),
        Some(_) | None => Ok(view),
    }
}

/// The tenant of a job of this queue: the one whose quota the queue has, or else the holder of the caller's token.
fn tenant(quotas: impl IntoIterator<Item = QuotaUse>, caller: &Caller, queue: &QueueName) -> BulkTenant {
    let prefixes = quotas.into_iter().map(|one| one.quota.prefix);
    let of_queue = prefixes.filter(|prefix| queue.as_str().starts_with(&**prefix));
    match (of_queue.max_by_key(|prefix| prefix.len()), caller) {
        (Some(prefix), _) => BulkTenant::Quota(prefix),
        (None, Caller::Holder(token)) => BulkTenant::Token(token.name.as_str().into()),
        (None, Caller::Trusted | Caller::Stranger(_)) => BulkTenant::Common,
    }
}

pub(crate) async fn list(call: Call) -> Answer {
    let found = jobs(&call.app)?.list().await?;
    let shown = found.into_iter().filter(|view| reaches(&call.caller, view));
    Ok(reply(StatusCode::OK, &JobsAnswer { jobs: shown.map(JobAnswer::of).collect() }))
}

pub(crate) async fn show(call: Call) -> Answer {
    let view = within(&call.app, &call.caller, &call.job()?).await?;
    Ok(reply(StatusCode::OK, &JobAnswer::of(view)))
}

/// Ends a job before it has changed all its messages.
pub(crate) async fn cancel(call: Call) -> Answer {
    let id = call.job()?;
    within(&call.app, &call.caller, &id).await?;
    Ok(reply(StatusCode::OK, &JobAnswer::of(jobs(&call.app)?.cancel(&id).await?)))
}

fn jobs(app: &App) -> Result<BulkJobs, Problem> {
    app.bulk_jobs().map_err(|_| Problem::internal())
}

/// A job out of reach does not exist for the caller.
async fn within(app: &App, caller: &Caller, id: &str) -> Result<BulkView, Problem> {
    let view = jobs(app)?.get(id).await?;
    if reaches(caller, &view) { Ok(view) } else { Err(BulkError::NotFound.into()) }
}

/// Whether the caller reaches the queues of a job.
fn reaches(caller: &Caller, view: &BulkView) -> bool {
    QueueName::new(&view.queue).iter().for_each(concerns);
    let has = |queue: &str| QueueName::new(queue).is_ok_and(|queue| caller.reaches(&queue));
    has(&view.queue) && to_queue(&view.action).is_none_or(has)
}

/// The queue that the messages of a job go to, if it is another one.
fn to_queue(action: &BulkAction) -> Option<&str> {
    match action {
        BulkAction::Redrive { to_queue, .. } => to_queue.as_deref(),
        _ => None,
    }
}

/// The problem of a field, by its name in the request. `as_text` lists the lengths of time that were sent as text.
fn of_bad(BadBulk { field, what }: BadBulk, as_text: &[&'static str]) -> Problem {
    let problem = Problem::field(strict::sent_as(field, as_text), what);
    match field {
        "key_prefix" | "state" | "dead_reason" | "dead_note" | "note" => problem.within("filter"),
        _ => problem,
    }
}

impl From<BulkError> for Problem {
    fn from(error: BulkError) -> Self {
        let detail = error.to_string();
        match error {
            BulkError::Bad(bad) => of_bad(bad, &[]),
            BulkError::NotFound => Problem::new(ErrorCode::NotFound, detail),
            BulkError::Unreadable(_) => Problem::new(ErrorCode::KeyExists, detail),
            BulkError::Changed { expect, matched } => Problem::changed(expect, matched),
            BulkError::TooMany(_) | BulkError::Busy => Problem::new(ErrorCode::Overloaded, detail),
            BulkError::Refused(refusal) => Problem::from_enqueue(refusal, "action"),
            BulkError::RecordRefused(refusal) => Problem::from_change(refusal, "action"),
            BulkError::Call(error) => Problem::from(error),
            // The library may get further kinds; each must have an arm above.
            _ => Problem::internal(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use duewheel::core::engine::Quota;

    use super::*;
    use crate::auth::{Hash, TokenEntry};

    fn read(text: &str) -> Result<(BulkRequest, bool), String> {
        let queue = QueueName::new("q").unwrap();
        let fields = strict::parse::<BulkFields<'_>>(text.as_bytes());
        fields.and_then(|fields| fields.into_request(queue)).map_err(|problem| problem.detail.into_owned())
    }

    #[test]
    fn jobs_belong_to_quotas_or_tokens() {
        let quota = |prefix: &str| QuotaUse {
            quota: Quota { prefix: prefix.into(), ..Quota::default() },
            used: [0; 5],
            refused: [0; 5],
        };
        let token = TokenEntry {
            name: "shop".to_owned(),
            hash: Hash::of(b"x"),
            scopes: BTreeSet::new(),
            queues: None,
            expires: None,
        };
        let holder = Caller::Holder(Arc::new(token));
        let of = |prefixes: &[&str], caller, queue| {
            tenant(prefixes.iter().map(|prefix| quota(prefix)), caller, &QueueName::new(queue).unwrap())
        };
        let quotas = ["acme.", "acme.eu.", "z"];
        assert_eq!(of(&quotas, &holder, "acme.eu.sms"), BulkTenant::Quota("acme.eu.".into()));
        assert_eq!(of(&quotas, &Caller::Trusted, "acme.sms"), BulkTenant::Quota("acme.".into()));
        assert_eq!(of(&quotas, &holder, "orders"), BulkTenant::Token("shop".into()));
        assert_eq!(of(&[], &Caller::Trusted, "orders"), BulkTenant::Common);
    }

    #[test]
    fn requests_are_read_strictly() {
        let action = |text: &str| read(text).unwrap().0.action;
        assert_eq!(action(r#"{"action": "cancel", "all": true}"#), BulkAction::Cancel);
        let shift = r#"{"action": "postpone", "all": true, "shift": "-1h30m"}"#;
        assert_eq!(action(shift), BulkAction::Postpone(BulkMove::Shift(-5_400_000)));
        let delay = r#"{"action": "postpone", "filter": {"key_prefix": "a"}, "delay": "2s"}"#;
        assert_eq!(action(delay), BulkAction::Postpone(BulkMove::Delay(2_000)));
        assert_eq!(action(r#"{"action": "cancel", "filter": {}, "all": true}"#), BulkAction::Cancel);
        let both = r#"{"action": "cancel", "filter": {"header.a": "1", "headers": {"b": "2"}}}"#;
        let headers = [("a", "1"), ("b", "2")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(read(both).unwrap().0.filter.headers, headers.into());
        let redrive = r#"{"action": "redrive", "all": true, "delay_ms": 5, "to_queue": "z", "rate": 7}"#;
        let (request, dry_run) = read(redrive).unwrap();
        assert_eq!((request.rate, dry_run), (Some(7), false));
        assert_eq!(request.action, BulkAction::Redrive { delay_ms: Some(5), to_queue: Some("z".into()) });
        for (text, says) in [
            (r#"{"action": "cancel"}"#, "filter: names no message"),
            (r#"{"action": "cancel", "filter": {}}"#, "filter: names no message"),
            (r#"{"action": "cancel", "filter": {"state": "ready"}, "all": true}"#, "all: only one"),
            (r#"{"action": "cancel", "filter": {"header.": "x"}}"#, "filter.header.: unknown"),
            (r#"{"action": "cancel", "filter": {"header.a": 5}}"#, "header.a: invalid type"),
            (r#"{"action": "cancel", "filter": {"header.a": "1", "header.a": "1"}}"#, "header.a: duplicate"),
            (r#"{"action": "cancel", "filter": {"header.a": "1", "headers": {"a": "1"}}}"#, "is in headers"),
            (r#"{"action": "cancel", "filter": {"headers": {}}}"#, "filter.headers: must name"),
            (r#"{"action": "cancel", "filter": {"state": "done"}}"#, "filter.state: must be"),
            (
                r#"{"action": "cancel", "filter": {"dead_reason": "done_acked"}}"#,
                "filter.dead_reason: must be",
            ),
            (
                r#"{"action": "cancel", "filter": {"due_from": "soon"}}"#,
                "filter.due_from: must be an RFC 3339",
            ),
            (r#"{"action": "cancel", "filter": {"kay": 1}}"#, "kay"),
            (r#"{"action": "cancel", "all": true, "delay": "1s"}"#, "delay: is for"),
            (r#"{"action": "fire", "all": true, "shift_ms": 1}"#, "shift: is for"),
            (r#"{"action": "fire", "all": true, "to_queue": "z"}"#, "to_queue: is for"),
            (r#"{"action": "postpone", "all": true}"#, "shift: one of"),
            (r#"{"action": "postpone", "all": true, "delay": "1s", "shift": "1s"}"#, "shift: only one"),
            (r#"{"action": "postpone", "all": true, "shift": "--1s"}"#, "shift: must not be"),
            (r#"{"action": "purge", "all": true}"#, "action"),
            (r#"{"action": "restore"}"#, "act: is missing"),
            (r#"{"action": "restore", "act": "a", "all": true}"#, "all: is not for restore"),
            (r#"{"action": "cancel", "all": true, "act": "a"}"#, "act: is for restore"),
            (r#"{"action": "cancel", "all": true, "keep": "0s"}"#, "keep: must be longer than 0"),
            (r#"{"action": "cancel", "all": true, "keep": "1h", "keep_ms": 1}"#, "keep: goes instead"),
            (r#"{"action": "cancel", "all": true, "expect": -1}"#, "expect"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
