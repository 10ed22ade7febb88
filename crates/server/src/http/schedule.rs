//! `/v1/schedules`: put, look, change, remove, trigger, backfill, preview.
//!
//! A token that is limited to queues has the schedules whose queue it reaches; others do not exist for it, except that
//! their names are taken.

use std::collections::BTreeMap;

use axum::http::{HeaderValue, StatusCode};
use duewheel::core::QueueName;
use duewheel::core::engine::Answered;
use duewheel_delivery::{PastOccurrences, ScheduleError, ScheduleSettings, Schedules, zone_data};
use duewheel_shard::acting::concerns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::call::Call;
use super::line::is_false;
use super::schedule_view::{
    ListedSchedule, OccurrenceAnswer, PreviewAnswer, PreviewRequest, ScheduleAnswer, ScheduleRequest,
    SchedulesAnswer, as_request, instant,
};
use super::strict::{self, Members, Text};
use super::{Answer, App, reply};
use crate::auth::Caller;
use crate::error::{ErrorCode, Problem};
use crate::json::{IdText, InstantText, written};
use crate::schema::{IdSchema, InstantSchema};

/// The number of schedules of a page by default.
const SCHEDULES: usize = 100;

/// One message now. With the same `dedupe_id` it enters once within a week.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Trigger")]
pub(crate) struct TriggerRequest<'a> {
    #[serde(borrow)]
    #[schemars(regex(pattern = "^[A-Za-z0-9._-]{1,48}$"))]
    dedupe_id: Option<Text<'a>>,
}

/// The message of a trigger.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Triggered")]
pub(crate) struct TriggeredAnswer {
    #[schemars(with = "IdSchema")]
    pub(super) id: IdText,
    pub(super) due_at: InstantText,
    /// The `dedupe_id` was remembered: this is the answer to an earlier trigger.
    #[serde(skip_serializing_if = "is_false")]
    #[schemars(default)]
    pub(super) replayed: bool,
}

/// Occurrences from one instant to another, both included. With the same `id` each enters once within a week.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Backfill")]
pub(crate) struct BackfillRequest<'a> {
    #[serde(borrow)]
    #[schemars(with = "InstantSchema")]
    from: Text<'a>,
    #[schemars(with = "InstantSchema")]
    to: Text<'a>,
    #[schemars(regex(pattern = "^[A-Za-z0-9._-]{1,48}$"))]
    id: Option<Text<'a>>,
}

/// What a backfill has done.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "BackfillDone")]
pub(crate) struct BackfilledAnswer {
    /// The id, to repeat it.
    pub(super) id: String,
    /// The number of occurrences.
    pub(super) occurrences: usize,
}

/// A schedule that was removed.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "ScheduleRemoved")]
pub(crate) struct ScheduleRemoved {
    pub(super) name: String,
    pub(super) removed: bool,
}

pub(crate) async fn put(mut call: Call) -> Answer {
    call.app.accepts()?;
    let name = call.name()?;
    let (settings, remaining, past) = {
        let bytes = call.json_bytes(call.app.max_single_bytes()).await?;
        strict::parse::<ScheduleRequest<'_>>(&bytes)?.into_settings()?
    };
    need(&call.caller, &settings)?;
    let caller = &call.caller;
    let reaches = |queue: &str| reaches(caller, Some(queue));
    let view = schedules(&call.app)?.put_within(&name, settings, (remaining, past), &reaches).await?;
    Ok(reply(StatusCode::OK, &ScheduleAnswer::of(&view)))
}

pub(crate) async fn show(call: Call) -> Answer {
    let view = schedules(&call.app)?.get(&call.name()?).await?;
    within(&call.caller, &view.record.settings)?;
    Ok(reply(StatusCode::OK, &ScheduleAnswer::of(&view)))
}

pub(crate) async fn list(call: Call) -> Answer {
    let after = call.param("after")?;
    let limit = call.count_param("limit", SCHEDULES, call.app.policy.max_page)?;
    let caller = &call.caller;
    let shown = |queue: Option<&str>| reaches(caller, queue);
    let found = schedules(&call.app)?.list(after.as_deref(), limit, &shown).await?;
    // A full page may be the last one; then the next is empty.
    let next = if found.len() < limit { None } else { found.last().map(|last| last.name.clone()) };
    let schedules = found.into_iter().map(ListedSchedule::of).collect();
    Ok(reply(StatusCode::OK, &SchedulesAnswer { schedules, next, zone_data: zone_data() }))
}

pub(crate) async fn change(mut call: Call) -> Answer {
    // An edit may put occurrences at once, and a node that drains enters none.
    call.app.accepts()?;
    let name = call.name()?;
    let Members(named) = {
        let bytes = call.json_bytes(call.app.max_single_bytes()).await?;
        strict::parse(&bytes)?
    };
    if named.is_empty() {
        return Err(Problem::new(ErrorCode::BadRequest, "nothing is to be changed: give at least one field"));
    }
    let caller = &call.caller;
    let mut refused = None;
    let mut change =
        |settings: &ScheduleSettings, remaining: &mut Option<u64>, past: &mut PastOccurrences| match changed(
            caller,
            settings,
            &named,
            (remaining, past),
        ) {
            Ok(settings) => Ok(settings),
            Err(problem) => {
                refused = Some(problem);
                Err(ScheduleError::NotFound)
            }
        };
    let changed = schedules(&call.app)?.change(&name, &mut change).await;
    match refused {
        Some(problem) => Err(problem),
        None => Ok(reply(StatusCode::OK, &ScheduleAnswer::of(&changed?))),
    }
}

/// Fields as they were sent: the body of a message may be one of them.
type RawFields = BTreeMap<String, Box<RawValue>>;

fn raw(value: &Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).unwrap_or_default()
}

/// The settings with the changes of a PATCH: `null` resets, and one form of a choice removes the others.
fn changed(
    caller: &Caller,
    settings: &ScheduleSettings,
    named: &RawFields,
    (remaining, past): (&mut Option<u64>, &mut PastOccurrences),
) -> Result<ScheduleSettings, Problem> {
    within(caller, settings)?;
    let mut all: RawFields =
        as_request(settings).iter().map(|(field, value)| (field.clone(), raw(value))).collect();
    let is_given = |field: &str| named.get(field).is_some_and(|value| value.get() != "null");
    for choice in [&["cron", "every", "at"][..], &["body", "body_base64", "json"]] {
        if choice.iter().any(|field| is_given(field)) {
            choice.iter().for_each(|field| drop(all.remove(*field)));
        }
    }
    if named.contains_key("cron") || named.contains_key("every") || named.contains_key("at") {
        let keeps = all.contains_key("cron") || is_given("cron");
        if !keeps {
            ["zone", "dst_gap", "dst_fold"].iter().for_each(|field| drop(all.remove(*field)));
        }
    }
    for (field, value) in named {
        all.insert(field.clone(), value.clone());
    }
    let text = written(256, &all);
    let (after, left, past_of) = strict::parse::<ScheduleRequest<'_>>(&text)?.into_settings()?;
    *past = past_of;
    if named.contains_key("remaining") {
        *remaining = left;
    }
    need(caller, &after)?;
    Ok(after)
}

pub(crate) async fn remove(call: Call) -> Answer {
    let name = call.name()?;
    let caller = &call.caller;
    schedules(&call.app)?.remove(&name, &|queue| reaches(caller, queue)).await?;
    Ok(reply(StatusCode::OK, &ScheduleRemoved { name, removed: true }))
}

pub(crate) async fn trigger(mut call: Call) -> Answer {
    call.app.accepts()?;
    let name = call.name()?;
    let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
    let asked: TriggerRequest<'_> = strict::parse_optional(&bytes)?;
    let schedules = schedules(&call.app)?;
    let caller = &call.caller;
    let id = asked.dedupe_id.as_ref().map(|id| &*id.0);
    let entered = schedules.trigger_within(&name, id, &|queue| reaches(caller, Some(queue))).await?;
    let replayed = entered.answered == Answered::Before;
    let answer = TriggeredAnswer { id: IdText(entered.id), due_at: InstantText(entered.due_at), replayed };
    let mut response = reply(StatusCode::CREATED, &answer);
    if replayed {
        response.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
    }
    Ok(response)
}

pub(crate) async fn backfill(mut call: Call) -> Answer {
    call.app.accepts()?;
    let name = call.name()?;
    let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
    let asked: BackfillRequest<'_> = strict::parse(&bytes)?;
    let span = (instant("from", &asked.from.0)?, instant("to", &asked.to.0)?);
    let schedules = schedules(&call.app)?;
    let caller = &call.caller;
    let id = asked.id.as_ref().map(|id| &*id.0);
    let done = schedules.backfill_within(&name, span, id, &|queue| reaches(caller, Some(queue))).await?;
    Ok(reply(StatusCode::OK, &BackfilledAnswer { id: done.id, occurrences: done.instants }))
}

pub(crate) async fn preview(mut call: Call) -> Answer {
    let bytes = call.json_bytes(call.app.max_single_bytes()).await?;
    let asked = strict::parse::<PreviewRequest>(&bytes)?;
    let (from, count) = (asked.from()?, asked.count()?);
    let mut fields: RawFields = asked.schedule.0;
    // Nothing is put into it.
    fields.entry("queue".to_owned()).or_insert_with(|| raw(&"preview".into()));
    let text = written(256, &fields);
    let (settings, remaining, _) = strict::parse::<ScheduleRequest<'_>>(&text)?.into_settings()?;
    // As many as would enter if the schedule began at `from`: none while it is paused.
    let left = if settings.paused { Some(0) } else { remaining };
    let count = left.map_or(count, |left| count.min(usize::try_from(left).unwrap_or(usize::MAX)));
    let found = schedules(&call.app)?.preview(&settings, from, count);
    let found = found.map_err(|bad| Problem::from(ScheduleError::Bad(bad)))?;
    let next = found.iter().map(OccurrenceAnswer::of).collect();
    Ok(reply(StatusCode::OK, &PreviewAnswer { next, zone_data: zone_data() }))
}

fn schedules(app: &App) -> Result<Schedules, Problem> {
    Schedules::new(&app.wheel, &app.policy).map_err(|_| Problem::internal())
}

/// Whether the caller reaches a schedule by its queue. One whose record cannot be read is for unlimited tokens.
fn reaches(caller: &Caller, queue: Option<&str>) -> bool {
    let queue = queue.and_then(|queue| QueueName::new(queue).ok());
    queue.iter().for_each(concerns);
    queue.map_or_else(|| caller.limits().is_none(), |queue| caller.reaches(&queue))
}

/// A schedule out of reach does not exist for the caller.
fn within(caller: &Caller, settings: &ScheduleSettings) -> Result<(), Problem> {
    if reaches(caller, Some(&settings.queue)) { Ok(()) } else { Err(ScheduleError::NotFound.into()) }
}

/// The queue of a schedule must be within the caller's reach.
fn need(caller: &Caller, settings: &ScheduleSettings) -> Result<(), Problem> {
    let queue = QueueName::new(&settings.queue).map_err(|what| Problem::field("queue", what))?;
    concerns(&queue);
    caller.need_queue(&queue)
}

impl From<ScheduleError> for Problem {
    fn from(error: ScheduleError) -> Self {
        let detail = error.to_string();
        match error {
            ScheduleError::Bad(bad) => Problem::field(bad.field, bad.what),
            ScheduleError::Past(field) => {
                Problem { field: Some(field.into()), ..Problem::new(ErrorCode::InThePast, detail) }
            }
            ScheduleError::NotFound => Problem::new(ErrorCode::NotFound, detail),
            ScheduleError::Taken | ScheduleError::Unreadable(_) => Problem::new(ErrorCode::KeyExists, detail),
            ScheduleError::TooMany(_) | ScheduleError::Busy | ScheduleError::Behind => {
                Problem::new(ErrorCode::Overloaded, detail)
            }
            ScheduleError::Refused(refusal) => Problem::from_enqueue(refusal, "from"),
            ScheduleError::Interrupted { id, why } => {
                let problem = Problem::from(*why);
                let again = format!("repeat it with the id {id}, and none enters twice");
                let detail = format!("{}; some of the occurrences may have entered: {again}", problem.detail);
                Problem { detail: detail.into(), ..problem }
            }
            ScheduleError::RecordRefused(refusal) => Problem::from_change(refusal, "start"),
            ScheduleError::Call(error) => Problem::from(error),
            // The library may get further kinds; each must have an arm above.
            _ => Problem::internal(),
        }
    }
}
