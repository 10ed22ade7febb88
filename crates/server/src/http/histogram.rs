//! `GET /v1/queues/{queue}/histogram`: how many messages are due when.

use axum::http::StatusCode;
use duewheel::core::WallMs;
use duewheel::core::engine::{Op, Reply};

use super::call::Call;
use super::{Answer, object};
use crate::error::Problem;
use crate::rfc3339;

const DAY_MS: u64 = 86_400_000;
const COLUMNS: usize = 48;

pub(crate) async fn histogram(call: Call) -> Answer {
    let queue = call.queue()?;
    let from = instant(&call, "from")?.unwrap_or(call.app.client.now().wall);
    let to = instant(&call, "to")?.unwrap_or(WallMs(from.0.saturating_add(DAY_MS)));
    let columns = call.count_param("buckets", COLUMNS, call.app.policy.max_histogram)?;
    if to <= from {
        return Err(Problem::field("to", "must be after from"));
    }
    match call.app.ask(Op::Histogram { queue: Some(queue), from, to, columns }).await? {
        Reply::Histogram(found) => Ok(object(StatusCode::OK, |out| {
            out.instant("from", found.from);
            out.number("width_ms", found.width_ms);
            out.number("resolution_ms", found.resolution_ms);
            out.number("before", found.before);
            out.number("after", found.after);
            out.open_list("buckets");
            let mut start = found.from.0;
            for count in &found.counts {
                out.open();
                out.instant("from", WallMs(start));
                out.number("count", *count);
                out.close();
                start = start.saturating_add(found.width_ms);
            }
            out.close_list();
        })),
        _ => Err(Problem::internal()),
    }
}

fn instant(call: &Call, field: &'static str) -> Result<Option<WallMs>, Problem> {
    call.param(field)?
        .map(|text| rfc3339::parse(&text).map_err(|what| Problem::field(field, what)))
        .transpose()
}
