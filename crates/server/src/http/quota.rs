//! `GET /v1/quotas`: what tenants may have, and what they have.

use axum::http::StatusCode;
use duewheel::core::engine::{Op, QuotaUse, Reply, Resource};

use super::call::Call;
use super::{Answer, Json, object};
use crate::error::Problem;

/// A token that is limited to queues sees the quotas of these queues alone, and none that it shares with others.
pub(crate) async fn quotas(call: Call) -> Answer {
    let Reply::Quotas(mut uses) = call.app.ask(Op::Quotas).await? else { return Err(Problem::internal()) };
    if let Some(prefixes) = call.caller.limits() {
        uses.retain(|one| prefixes.iter().any(|prefix| one.quota.prefix.starts_with(prefix.as_str())));
    }
    Ok(object(StatusCode::OK, |out| {
        out.open_list("quotas");
        for one in &uses {
            out.open();
            write(out, one);
            out.close();
        }
        out.close_list();
    }))
}

fn write(out: &mut Json, one: &QuotaUse) {
    out.text("prefix", &one.quota.prefix);
    for resource in Resource::ALL {
        out.open_member(resource.as_str());
        out.number_or_null("limit", one.quota.limit(resource));
        if resource == Resource::Enqueues {
            out.number_or_null("burst", one.quota.burst.or(one.quota.enqueues_per_second));
        }
        out.number("used", one.used[resource as usize]);
        out.number("refused", one.refused[resource as usize]);
        out.close();
    }
}
