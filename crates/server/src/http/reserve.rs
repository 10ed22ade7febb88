//! `POST /v1/queues/{queue}/reserve`: leases messages, waiting for the first if asked to.

use axum::http::StatusCode;
use duewheel::Demand;
use duewheel::core::SessionId;
use duewheel::core::engine::{Grant, Reserved};
use serde::Deserialize;

use super::call::Call;
use super::strict::{Positive, Whole};
use super::{Answer, Json, held, object, view, write_large};
use crate::error::{Problem, overloaded};

/// Bytes of a grant beside its body.
const GRANT_BYTES: usize = 320;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    max: Option<Positive>,
    wait_ms: Option<Whole>,
    lease_ms: Option<Positive>,
}

pub(crate) async fn reserve(mut call: Call) -> Answer {
    let queue = call.queue()?;
    let asked: Asked = call.json(call.app.max_single_bytes()).await?;
    let policy = &call.app.policy;
    let max = asked.max.map_or(Ok(1), |n| at_most("max", n.0, policy.max_reserve as u64))?;
    // While others do not take what they have reserved, each gets one at a time.
    let max = if call.app.rooms.has(policy.max_reserve_bytes) { max.try_into().unwrap_or(1) } else { 1 };
    let demand = Demand {
        queues: vec![queue],
        max,
        wait_ms: asked.wait_ms.map_or(Ok(0), |n| at_most("wait_ms", n.0, policy.max_wait_ms))?,
        lease_ms: asked.lease_ms.map(|n| at_most("lease_ms", n.0, policy.max_lease_ms)).transpose()?,
        session: SessionId::NONE,
        deadline_margin_ms: None,
    };
    match call.app.client.reserve(demand).await? {
        Reserved::Grants(grants) => {
            let bytes: usize = grants.iter().map(|g| g.message.weight() + GRANT_BYTES).sum();
            let write = move || {
                let mut out = Json::with_capacity(bytes + 32);
                out.open();
                out.open_list("messages");
                for grant in &grants {
                    out.open();
                    write(&mut out, grant);
                    out.close();
                }
                out.close_list();
                out.close();
                out
            };
            let out = write_large(bytes, write).await?;
            let room = call.app.rooms.take_left(out.len());
            Ok(held(StatusCode::OK, room, out))
        }
        Reserved::HeldBack(why) => {
            let write = |out: &mut Json| {
                out.open_list("messages");
                out.close_list();
                out.plain("held_back", why.as_str());
            };
            Ok(object(StatusCode::OK, write))
        }
        Reserved::TooManyQueues => Err(overloaded("as many queues exist as the limits allow")),
        Reserved::Overloaded => Err(overloaded(
            "as many reserves wait as are allowed; close some, or reserve from several queues by fewer consumers",
        )),
        Reserved::DeadlineSoon => Err(Problem::internal()),
    }
}

/// Checks a number against a limit of the policy.
pub(crate) fn at_most(field: &'static str, n: u64, limit: u64) -> Result<u64, Problem> {
    if n > limit { Err(Problem::field(field, format_args!("must be at most {limit}"))) } else { Ok(n) }
}

fn write(out: &mut Json, grant: &Grant) {
    view::write_message(out, &grant.message);
    out.number("attempt", u64::from(grant.attempt));
    out.number("priority", u64::from(grant.priority));
    out.number("generation", u64::from(grant.generation));
    out.instant("due_at", grant.due_at);
    out.shown("lease_token", &grant.token);
    out.instant("lease_until", grant.lease_until);
    out.number("lease_ms", grant.lease_ms);
    out.number("lateness_ms", grant.lateness_ms);
}
