//! `GET /v1/quotas`: limits and use of tenants.

use axum::http::StatusCode;
use duewheel::core::engine::{Op, QuotaUse, Resource};
use schemars::JsonSchema;
use serde::Serialize;

use super::call::Call;
use super::{Answer, reply};
use crate::json::Elements;

/// Returns the quotas. A token that is limited to queues sees only the quotas of these queues, and none that it shares
/// with others.
pub(crate) async fn quotas(call: Call) -> Answer {
    let mut uses = call.app.ask(Op::quotas()).await?;
    uses.retain(|one| call.caller.sees_quota(&one.quota.prefix));
    Ok(reply(StatusCode::OK, &QuotasAnswer { quotas: Elements::new(&uses, QuotaAnswer::of) }))
}

/// All quotas.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Quotas")]
pub(crate) struct QuotasAnswer<'a> {
    pub(super) quotas: Elements<'a, QuotaUse, QuotaAnswer<'a>>,
}

/// Limits and use of a tenant.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Quota")]
pub(crate) struct QuotaAnswer<'a> {
    /// The prefix of the tenant's queues.
    pub(super) prefix: &'a str,
    pub(super) messages: ResourceAnswer,
    pub(super) bytes: ResourceAnswer,
    pub(super) leases: ResourceAnswer,
    /// Remembered answers to enqueues with a `dedupe_id`.
    pub(super) answers: ResourceAnswer,
    pub(super) enqueues_per_second: RateAnswer,
}

/// A limit, and its use.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "QuotaResource")]
pub(crate) struct ResourceAnswer {
    /// `null` where there is no limit.
    pub(super) limit: Option<u64>,
    pub(super) used: u64,
    /// Refusals since the start; of leases: reserves that were held back.
    pub(super) refused: u64,
}

/// A rate, and its use.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "QuotaRate")]
pub(crate) struct RateAnswer {
    /// Enqueues a second; `null` where there is no limit.
    pub(super) limit: Option<u64>,
    /// Enqueues at once.
    pub(super) burst: Option<u64>,
    /// The used part of the burst.
    pub(super) used: u64,
    /// Refusals since the start.
    pub(super) refused: u64,
}

impl<'a> QuotaAnswer<'a> {
    fn of(one: &'a QuotaUse) -> Self {
        let resource = |resource: Resource| ResourceAnswer {
            limit: one.quota.limit(resource),
            used: one.used[resource as usize],
            refused: one.refused[resource as usize],
        };
        let rate = resource(Resource::Enqueues);
        QuotaAnswer {
            prefix: &one.quota.prefix,
            messages: resource(Resource::Messages),
            bytes: resource(Resource::Bytes),
            leases: resource(Resource::Leases),
            answers: resource(Resource::Answers),
            enqueues_per_second: RateAnswer {
                limit: rate.limit,
                burst: one.quota.burst.or(one.quota.enqueues_per_second),
                used: rate.used,
                refused: rate.refused,
            },
        }
    }
}
