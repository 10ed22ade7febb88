//! `GET /v1/history`: what happened to messages in each step of time.

use axum::http::StatusCode;
use duewheel::core::engine::Op;
use duewheel::core::history::{HistoryPoint, HistoryStep, QueueHistory};
use duewheel::core::{QueueName, WallMs};

use super::call::Call;
use super::stats::instant;
use super::{Answer, answer, reply};
use crate::error::Problem;
use crate::json::InstantText;
use crate::span::TimeSpan;

const HOUR_MS: u64 = 3_600_000;

pub(crate) async fn history(call: Call) -> Answer {
    let queue = match call.param("queue")? {
        Some(name) => Some(QueueName::new(&name).map_err(|what| Problem::field("queue", what))?),
        None => None,
    };
    match &queue {
        Some(queue) => call.caller.need_queue(queue)?,
        None => call.caller.need_all_queues()?,
    }
    let now = call.app.client.now().wall;
    let (from, to) = range(instant(&call, "from")?, instant(&call, "to")?, now)?;
    let ask = |step| call.app.ask(Op::history(queue.clone(), from, to, step));
    let mut complete = true;
    if from.0.saturating_add(HOUR_MS) >= now.0 {
        let fine = ask(HistoryStep::TenSeconds).await?;
        if fine.reaches_back {
            return Ok(reply(StatusCode::OK, &HistoryAnswer::of(&fine)));
        }
        complete = fine.complete;
    }
    let coarse = ask(HistoryStep::FiveMinutes).await?;
    let complete = complete && coarse.complete;
    Ok(reply(StatusCode::OK, &HistoryAnswer::of(&QueueHistory { complete, ..coarse })))
}

/// The range that is asked for: at most as long as points are kept.
fn range(from: Option<WallMs>, to: Option<WallMs>, now: WallMs) -> Result<(WallMs, WallMs), Problem> {
    // The present step is one of them.
    let until = to.unwrap_or(WallMs(now.0.saturating_add(1)));
    let to = to.unwrap_or(now);
    let from = from.unwrap_or(WallMs(to.0.saturating_sub(HOUR_MS)));
    if from > now {
        return Err(Problem::field("from", "must not be in the future"));
    }
    if to <= from {
        return Err(Problem::field("to", "must be after from"));
    }
    let kept = HistoryStep::FiveMinutes.kept_ms();
    if to.0 - from.0 > kept {
        return Err(Problem::field("from", format_args!("must be at most {} before to", TimeSpan(kept))));
    }
    Ok((from, until))
}

answer! {
    /// Events and counts of messages in each step of time. Each series has a number or null for each step, from `from`
    /// on.
    #[schemars(rename = "History")]
    HistoryAnswer of (history: &QueueHistory) {
        /// The length of a step: `10s` or `5m`.
        step: String = TimeSpan(history.step.ms()).to_string(),
        step_ms: u64 = history.step.ms(),
        /// The start of the first step.
        from: InstantText = InstantText(history.from),
        series: HistorySeries = HistorySeries::of(history),
        /// Whether all points are there: false if some were given up for a bound of memory or of the store.
        complete: bool = history.complete,
    }
}

answer! {
    /// A number for each step; null where nothing is known.
    HistorySeries of (history: &QueueHistory) with {
        let of = |value: fn(&HistoryPoint) -> Option<u64>| -> Vec<Option<u64>> {
            history.points.iter().map(|point| point.as_ref().and_then(value)).collect()
        };
    } {
        /// Messages accepted.
        enqueued: Vec<Option<u64>> = of(|point| Some(point.events[0])),
        /// Grants.
        granted: Vec<Option<u64>> = of(|point| Some(point.events[1])),
        /// Acks.
        settled: Vec<Option<u64>> = of(|point| Some(point.events[2])),
        /// Deaths of messages.
        dead: Vec<Option<u64>> = of(|point| Some(point.events[3])),
        /// The lateness that half of the first grants did not exceed; null without grants.
        lateness_p50_ms: Vec<Option<u64>> = of(|point| point.late.percentile(50)),
        /// The lateness that 99 % of the first grants did not exceed.
        lateness_p99_ms: Vec<Option<u64>> = of(|point| point.late.percentile(99)),
        /// Ready messages at the end of the step.
        ready: Vec<Option<u64>> = of(|point| point.depth.map(|depth| depth.ready)),
        /// Scheduled, ready and leased messages at the end of the step.
        pending: Vec<Option<u64>> = of(|point| point.depth.map(|depth| depth.pending)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_ranges_name_their_field() {
        let now = WallMs(100 * HOUR_MS);
        let at = |hours: u64| Some(WallMs(hours * HOUR_MS));
        assert_eq!(range(None, None, now).unwrap(), (WallMs(99 * HOUR_MS), WallMs(now.0 + 1)));
        assert_eq!(range(at(52), None, now).unwrap(), (WallMs(52 * HOUR_MS), WallMs(now.0 + 1)));
        for (from, to, field) in
            [(at(101), None, "from"), (at(99), at(99), "to"), (at(99), at(98), "to"), (at(51), None, "from")]
        {
            let problem = range(from, to, now).unwrap_err();
            assert_eq!(problem.field.as_deref(), Some(field), "{problem:?}");
        }
    }
}
