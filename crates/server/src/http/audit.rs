//! The audit trail: routes whose calls are acts, and `GET /v1/audit`.
//!
//! A row of the table of routes says that its calls are acts ([`super::openapi::OperationDoc::audited`]). The operations
//! of such a call are recorded with it, each in its shard and in the group of its effect
//! ([`duewheel_shard::acting`]); the list puts the parts of an act together.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;
use std::panic::resume_unwind;

use axum::http::StatusCode;
use duewheel::Client;
use duewheel::core::act::Act;
use duewheel::core::engine::{Op, Reply};
use duewheel::core::{QueueName, State, WallMs};
use duewheel_shard::acting::{acting, report};
use duewheel_shard::random::hash_key;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::task::JoinError;
use tracing::Instrument;

use super::call::{Call, CallHandler, Handled};
use super::{Answer, App, answer, reply};
use crate::auth::{Audit, Caller};
use crate::error::{ErrorCode, Problem};
use crate::json::InstantText;
use crate::schema::JobSchema;

/// The number of acts of a page by default, and at most.
pub(crate) const ACTS: usize = 100;
const MOST: usize = 1_000;
/// Records that are read at a time.
const PAGE: usize = 256;

/// The address of the client of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerAddress(pub(super) IpAddr);

/// Runs a call as an act of this name. An act is a task of its own: the client may leave, and the act is recorded.
pub(super) async fn run(audit: Audit, name: &str, call: Call, handler: &CallHandler) -> Answer {
    if audit == Audit::No {
        return handler(call).await;
    }
    let client = call.app.client.clone();
    let act = act_of(name, &call);
    let called = run_act(audit, client, act, handler(call)).in_current_span();
    match tokio::spawn(called).await.map_err(JoinError::try_into_panic) {
        Ok(answer) => answer,
        Err(Ok(panic)) => resume_unwind(panic),
        Err(Err(_)) => Err(Problem::new(ErrorCode::Internal, "the server ends")),
    }
}

async fn run_act(audit: Audit, client: Client, act: Act, called: Handled) -> Answer {
    let (answer, acted) = acting(act.clone(), called).await;
    if audit == Audit::Alone && answer.is_ok() {
        note(&client, act).await;
    }
    let failed = answer.as_ref().err().filter(|problem| {
        // Of several shards some may have made the change.
        problem.code.status().is_server_error() || problem.code == ErrorCode::Changed
    });
    if let Some(mut acted) = acted.filter(|_| answer.is_ok() || failed.is_some()) {
        // The number that matched is not one of changes.
        acted.count = acted.count.filter(|_| failed.is_none_or(|problem| problem.code != ErrorCode::Changed));
        report(&acted, failed.map(|problem| problem.code.as_str()));
    }
    answer
}

/// An act on a queue by a client without tokens.
pub(crate) fn act_on_queue(client: &Client, name: &str, queue: &QueueName, address: Option<IpAddr>) -> Act {
    let address = address.map(|address| address.to_string().into());
    Act { queue: Some(queue.clone()), address, ..new_act(client, name, queue.as_str()) }
}

/// Reports an act that was answered.
pub(crate) fn report_act(act: &Act, reply: &Reply) {
    let count = if let Reply::Count(count) = reply { Some(count.what) } else { None };
    report(&Act { count, ..act.clone() }, None);
}

/// An act that begins now, whose request has no name.
fn new_act(client: &Client, name: &str, object: &str) -> Act {
    let nonce = hash_key(None).numbers()[0];
    let (request_id, at) = (format!("{nonce:016x}").into(), client.now().wall);
    Act { nonce, at, name: name.into(), object: object.into(), request_id, ..Act::default() }
}

/// Records and reports an act of the server itself.
pub(crate) async fn of_server(client: &Client, name: &str, object: &str) {
    note(client, new_act(client, name, object)).await;
}

/// Reports and records an act that submits no operations.
async fn note(client: &Client, act: Act) {
    report(&act, None);
    if let Err(why) = client.ask(Op::note_act(act)).await {
        tracing::warn!(%why, "an act is not in the audit trail");
    }
}

/// The act that a call is.
fn act_of(name: &str, call: &Call) -> Act {
    let act = new_act(&call.app.client, name, &call.object());
    let request_id = call.request_id().map_or_else(|| act.request_id.clone(), Box::from);
    let token = match &call.caller {
        Caller::Holder(entry) => Some(entry.name.as_str().into()),
        Caller::Trusted | Caller::Stranger(_) => None,
    };
    let queue = call.path().starts_with("/v1/queues/").then(|| call.queue().ok()).flatten();
    let address = call.extension::<PeerAddress>().map(|PeerAddress(address)| address.to_string().into());
    Act { queue, token, address, request_id, ..act }
}

/// Position of an act in the list: the newest first.
type ActPosition = (Reverse<WallMs>, u64);

/// `GET /v1/audit`.
pub(crate) async fn list(call: Call) -> Answer {
    let limit = call.count_param("limit", ACTS, MOST)?;
    let after = call.param("after")?.map(|text| parse(&text)).transpose()?;
    let mut acts = newest(&call.app, &call.caller, after, limit.saturating_add(1)).await?;
    let has_more = acts.len() > limit;
    while acts.len() > limit {
        acts.pop_last();
    }
    let last = acts.last_key_value().map(|((Reverse(at), nonce), _)| format!("{}-{nonce}", at.0));
    let acts = acts.values().map(ActAnswer::of).collect();
    Ok(reply(StatusCode::OK, &AuditAnswer { acts, next: last.filter(|_| has_more) }))
}

fn parse(text: &str) -> Result<ActPosition, Problem> {
    let parsed = text
        .split_once('-')
        .and_then(|(at, nonce)| Some((Reverse(WallMs(at.parse().ok()?)), nonce.parse().ok()?)));
    parsed.ok_or_else(|| Problem::field("after", "must be the `next` of an earlier page"))
}

/// The newest acts that the caller may see, behind a position: no more than `most` of them are in memory.
async fn newest(
    app: &App,
    caller: &Caller,
    after: Option<ActPosition>,
    most: usize,
) -> Result<BTreeMap<ActPosition, Act>, Problem> {
    let (mut acts, mut position) = (BTreeMap::<ActPosition, Act>::new(), None);
    loop {
        let page = app.client.list(QueueName::of_acts(), Some(State::Dead), position, PAGE).await?;
        for view in &page.views {
            let part = Act::of(&view.message.headers);
            let at = (Reverse(part.at), part.nonce);
            if after.is_some_and(|after| at <= after) || !sees(caller, &part) {
                continue;
            }
            match acts.entry(at) {
                Entry::Occupied(mut act) => act.get_mut().add(&part),
                Entry::Vacant(free) => {
                    free.insert(part);
                }
            }
            // The parts of an act have the same position, so one that is dropped does not come back in part.
            if acts.len() > most {
                acts.pop_last();
            }
        }
        position = page.next;
        if position.is_none() {
            return Ok(acts);
        }
    }
}

/// Whether a caller may see an act: a token for some queues sees those on its queues.
fn sees(caller: &Caller, act: &Act) -> bool {
    caller.limits().is_none() || act.queue.as_ref().is_some_and(|queue| caller.reaches(queue))
}

/// When the newest act of this name was, if it is recorded.
pub(super) async fn last(app: &App, name: &str) -> Result<Option<WallMs>, Problem> {
    let acts = newest(app, &Caller::Trusted, None, MOST).await?;
    Ok(acts.into_values().find(|act| *act.name == *name).map(|act| act.at))
}

/// A page of acts, the newest first.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Audit")]
pub(crate) struct AuditAnswer<'a> {
    pub(super) acts: Vec<ActAnswer<'a>>,
    /// The `after` of the next page; `null` on the last one.
    pub(super) next: Option<String>,
}

answer! {
    /// A change of many messages or of a setting.
    #[schemars(rename = "Act")]
    ActAnswer<'a> of (act: &'a Act) with {
        let queue = act.queue.as_ref().map(QueueName::as_str);
    } {
        at: InstantText = InstantText(act.at),
        /// The `operationId` of the call; of a job `bulk_` and its action.
        act: &'a str = &act.name,
        /// The queue, target, schedule or job; else what the path of the call names.
        object: &'a str = &act.object,
        /// The number of messages, if they were counted.
        ?count: u64 = act.count,
        /// The number of messages that the job could not change.
        ?refused: u64 = act.refused,
        /// The job that does it: without `count` the job goes on.
        #[schemars(with = "Option<JobSchema>")]
        ?job: &'a str = act.job.as_deref(),
        /// The name of the caller's token.
        ?token: &'a str = act.token.as_deref(),
        /// The address of the caller.
        ?address: &'a str = act.address.as_deref(),
        /// The `X-Request-Id` of the request, or one that the server has given it.
        request_id: &'a str = &act.request_id,
        /// The queue, where the object is none.
        ?detail: &'a str = queue.filter(|queue| *queue != &*act.object),
    }
}
