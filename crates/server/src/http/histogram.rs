//! `GET /v1/queues/{queue}/histogram`: the numbers of messages by due time.

use axum::http::StatusCode;
use duewheel::core::engine::Op;
use duewheel::core::{QueueName, WallMs};
use schemars::JsonSchema;
use serde::Serialize;

use super::call::Call;
use super::{Answer, reply};
use crate::error::Problem;
use crate::json::InstantText;
use crate::rfc3339;

const DAY_MS: u64 = 86_400_000;
/// The number of buckets by default.
pub(crate) const COLUMNS: usize = 48;

pub(crate) async fn histogram(call: Call) -> Answer {
    let queue = call.queue()?;
    of(call, Some(queue)).await
}

/// The histogram over all queues.
pub(crate) async fn all_queues(call: Call) -> Answer {
    of(call, None).await
}

async fn of(call: Call, queue: Option<QueueName>) -> Answer {
    let from = instant(&call, "from")?.unwrap_or(call.app.client.now().wall);
    let to = instant(&call, "to")?.unwrap_or(WallMs(from.0.saturating_add(DAY_MS)));
    let columns = call.count_param("buckets", COLUMNS, call.app.policy.max_histogram)?;
    if to <= from {
        return Err(Problem::field("to", "must be after from"));
    }
    let found = call.app.ask(Op::histogram(queue, from, to, columns)).await?;
    let starts = std::iter::successors(Some(found.from.0), |at| Some(at.saturating_add(found.width_ms)));
    let bucket = |(from, count): (u64, &u64)| BucketAnswer { from: InstantText(WallMs(from)), count: *count };
    let answer = HistogramAnswer {
        from: InstantText(found.from),
        width_ms: found.width_ms,
        resolution_ms: found.resolution_ms,
        before: found.before,
        after: found.after,
        buckets: starts.zip(&found.counts).map(bucket).collect(),
    };
    Ok(reply(StatusCode::OK, &answer))
}

/// Scheduled and ready messages by due time.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Histogram")]
pub(crate) struct HistogramAnswer {
    /// The start of the first bucket.
    pub(super) from: InstantText,
    /// The width of a bucket.
    pub(super) width_ms: u64,
    /// A message that is due closer than this to the edge of a bucket may be counted in the next one.
    pub(super) resolution_ms: u64,
    /// Messages due before the first bucket: if that begins now, the overdue ones.
    pub(super) before: u64,
    /// Messages due after the last bucket.
    pub(super) after: u64,
    pub(super) buckets: Vec<BucketAnswer>,
}

/// The messages that are due in one bucket.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Bucket")]
pub(crate) struct BucketAnswer {
    pub(super) from: InstantText,
    pub(super) count: u64,
}

fn instant(call: &Call, field: &'static str) -> Result<Option<WallMs>, Problem> {
    call.param(field)?
        .map(|text| rfc3339::parse(&text).map_err(|what| Problem::field(field, what)))
        .transpose()
}
