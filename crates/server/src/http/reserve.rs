//! `POST /v1/queues/{queue}/reserve` and `POST /v1/reserve`: lease messages of one queue or of several, and wait for the
//! first one on request.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use duewheel::core::engine::{Grant, Reserve, Reserved, WaiterId};
use duewheel::core::{Policy, QueueName, SessionId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::message::ContentAnswer;
use super::strict::{self, Object, Positive, Text, Whole};
use super::traced::TracedCall;
use super::{Answer, App, answer, held, reply, write_large};
use crate::auth::Scope;
use crate::error::{Problem, overloaded};
use crate::json::{self, Elements, InstantText, TokenText};
use crate::schema::{DelaySchema, HeldBackSchema, QueueSchema};
use crate::span::SpanText;

/// How often the token of a waiting reserve is checked; the file of tokens is read as often.
const TOKEN_LOOK: Duration = Duration::from_secs(2);

/// The number of bytes of a grant besides its body, key and headers.
const GRANT_BYTES: usize = 320;

/// The number of messages to lease, and how long to wait for the first.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Reserve", transform = crate::schema::reserve_rules)]
pub(crate) struct ReserveRequest {
    /// The largest number of messages; 1 by default. An answer has at most 4096 messages.
    #[schemars(extend("x-limit" = "max_reserve"))]
    max: Option<Positive>,
    /// How long to wait for the first message; 0 by default.
    #[schemars(extend("x-limit" = "max_wait_ms"))]
    wait_ms: Option<Whole>,
    /// `wait_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    wait: Option<SpanText>,
    /// The length of the leases; by default that of each message.
    #[schemars(extend("x-limit" = "max_lease_ms"))]
    lease_ms: Option<Positive>,
    /// `lease_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    lease: Option<SpanText>,
}

/// The queues to lease messages of, the number of messages, and how long to wait for the first.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = crate::schema::reserve_rules)]
pub(crate) struct ReserveOfMany<'a> {
    /// The queues. The best message of all of them is granted first: by priority, then by due time.
    #[serde(borrow)]
    #[schemars(length(min = 1), extend("x-limit-items" = "max_reserve_queues"))]
    queues: Vec<Object<QueueDemand<'a>>>,
    /// The largest number of messages; 1 by default. An answer has at most 4096 messages.
    #[schemars(extend("x-limit" = "max_reserve"))]
    max: Option<Positive>,
    /// How long to wait for the first message; 0 by default.
    #[schemars(extend("x-limit" = "max_wait_ms"))]
    wait_ms: Option<Whole>,
    /// `wait_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    wait: Option<SpanText>,
    /// The length of the leases; by default that of each message.
    #[schemars(extend("x-limit" = "max_lease_ms"))]
    lease_ms: Option<Positive>,
    /// `lease_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    lease: Option<SpanText>,
}

/// A queue to lease messages of.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueueDemand<'a> {
    #[serde(borrow)]
    #[schemars(with = "QueueSchema")]
    queue: Text<'a>,
    /// The largest number of messages of this queue; by default that of the request.
    #[schemars(extend("x-limit" = "max_reserve"))]
    max: Option<Positive>,
}

impl ReserveOfMany<'_> {
    /// The queues, those of them that have a number of their own, and what concerns all of them.
    fn into_parts(self, policy: &Policy) -> Result<(ReserveQueues, ReserveRequest), Problem> {
        let ReserveOfMany { queues: named, max, wait_ms, wait, lease_ms, lease } = self;
        let most = policy.max_reserve_queues;
        if named.is_empty() || named.len() > most {
            return Err(Problem::field("queues", format_args!("must name from 1 to {most} queues")));
        }
        let mut queues = ReserveQueues { names: Vec::with_capacity(named.len()), max_of: Vec::new() };
        let mut seen = BTreeSet::new();
        for (n, Object(QueueDemand { queue, max })) in named.into_iter().enumerate() {
            let field = |member: &str| format!("queues[{n}].{member}");
            let name = QueueName::new(&queue.0).map_err(|what| Problem::field(field("queue"), what))?;
            if !seen.insert(name.clone()) {
                return Err(Problem::field(field("queue"), "is there twice"));
            }
            if let Some(Whole(max)) = max {
                let max = strict::at_most(field("max"), max, policy.max_reserve as u64)?;
                queues.max_of.push((name.clone(), max.try_into().unwrap_or(usize::MAX)));
            }
            queues.names.push(name);
        }
        Ok((queues, ReserveRequest { max, wait_ms, wait, lease_ms, lease }))
    }
}

/// The queues of a reserve.
struct ReserveQueues {
    names: Vec<QueueName>,
    /// The queues that have a largest number of their own.
    max_of: Vec<(QueueName, usize)>,
}

pub(crate) async fn reserve(mut call: Call) -> Answer {
    let queue = call.queue()?;
    let asked: ReserveRequest = call.json(call.app.max_single_bytes()).await?;
    grant(&call.app, call.headers().clone(), ReserveQueues { names: vec![queue], max_of: Vec::new() }, asked)
        .await
}

pub(crate) async fn reserve_of_many(mut call: Call) -> Answer {
    let (queues, asked) = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        strict::parse::<ReserveOfMany<'_>>(&bytes)?.into_parts(&call.app.policy)?
    };
    for queue in &queues.names {
        call.caller.need_queue(queue)?;
    }
    grant(&call.app, call.headers().clone(), queues, asked).await
}

async fn grant(app: &App, headers: HeaderMap, queues: ReserveQueues, asked: ReserveRequest) -> Answer {
    let traced = TracedCall::begin(app, &headers);
    let policy = &app.policy;
    let max = asked.max.map_or(Ok(1), |n| strict::at_most("max", n.0, policy.max_reserve as u64))?;
    // While other consumers do not read the messages that they have reserved, each request gets one at a time.
    let max = if app.rooms.has(policy.max_reserve_bytes) { max.try_into().unwrap_or(1) } else { 1 };
    let demand = Reserve {
        waiter: WaiterId(0), // the client replaces it
        queues: queues.names,
        max_of: queues.max_of,
        max_attempts: None,
        max,
        max_bytes: usize::MAX,
        wait_ms: strict::either_within(asked.wait_ms, asked.wait, ("wait", "wait_ms"), policy.max_wait_ms)?
            .unwrap_or(0),
        lease_ms: strict::either_within(
            asked.lease_ms,
            asked.lease,
            ("lease", "lease_ms"),
            policy.max_lease_ms,
        )?,
        session: SessionId::NONE,
        deadline_margin_ms: None,
    };
    let only = traced.only(&demand.queues);
    let names = demand.queues.clone();
    let reserved = tokio::select! {
        biased;
        // What is granted to a reserve that has ended is given back.
        problem = revoked(app, &headers, &names) => Err(problem),
        reserved = app.client.reserve(demand) => reserved.map_err(Problem::from),
    };
    match &reserved {
        Ok(Reserved::Grants(grants)) => traced.received(only.as_ref(), grants, None),
        Ok(_) => traced.received(only.as_ref(), &[], None),
        Err(problem) => traced.received(only.as_ref(), &[], Some(problem)),
    }
    match reserved? {
        Reserved::Grants(grants) => {
            let bytes: usize = grants.iter().map(|g| g.message.weight() + GRANT_BYTES).sum();
            let write = move || {
                let messages = Elements(&grants, GrantAnswer::of);
                json::line(bytes + 32, &GrantsAnswer { messages, held_back: None })
            };
            let out = write_large(bytes, write).await?;
            let room = app.rooms.take_left(out.len());
            Ok(held(StatusCode::OK, room, out))
        }
        Reserved::HeldBack(why) => {
            let messages = Elements(&[], GrantAnswer::of);
            Ok(reply(StatusCode::OK, &GrantsAnswer { messages, held_back: Some(why.as_str()) }))
        }
        Reserved::TooManyQueues => Err(overloaded("as many queues exist as the limits allow")),
        Reserved::Overloaded => Err(overloaded(
            "as many reserves wait as are allowed; close some, or reserve from several queues by fewer consumers",
        )),
        Reserved::DeadlineSoon => Err(Problem::internal()),
    }
}

/// Ends when the caller's token no longer permits a reserve of these queues. Cancel safe.
async fn revoked(app: &App, headers: &HeaderMap, queues: &[QueueName]) -> Problem {
    if app.guard.is_open() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(TOKEN_LOOK).await;
        let caller = app.guard.caller(headers, app.client.now().wall);
        let allowed = caller.need(Scope::Consume);
        let allowed = allowed.and_then(|()| queues.iter().try_for_each(|queue| caller.need_queue(queue)));
        if let Err(problem) = allowed {
            return problem;
        }
    }
}

/// Messages under leases. The list is empty when no message arrived while the call waited.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Grants")]
pub(crate) struct GrantsAnswer<'a> {
    pub(super) messages: Elements<'a, Grant, GrantAnswer<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<HeldBackSchema>")]
    pub(super) held_back: Option<&'static str>,
}

answer! {
    /// A message under a lease. It has `body`, or `body_base64` if the bytes are not UTF-8 text.
    #[schemars(rename = "Grant")]
    GrantAnswer<'a> of (grant: &'a Grant) {
        #[serde(flatten)]
        content: ContentAnswer<'a> = ContentAnswer::of(&grant.message),
        /// Grants of this message so far, this one included.
        attempt: u32 = grant.attempt,
        /// Priority; lower is granted first.
        priority: u32 = grant.priority,
        /// A number that each change by the producer raises.
        generation: u32 = grant.generation,
        due_at: InstantText = InstantText(grant.due_at),
        lease_token: TokenText = TokenText(grant.token),
        lease_until: InstantText = InstantText(grant.lease_until),
        lease_ms: u64 = grant.lease_ms,
        /// How long after its due time it was granted.
        lateness_ms: u64 = grant.lateness_ms,
        /// Whether it had expired; left out if not.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        late: bool = grant.late,
    }
}
