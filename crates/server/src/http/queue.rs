//! A queue: look, set, pause, resume, purge, redrive.

use axum::http::StatusCode;
use axum::response::Response;
use duewheel::core::WallMs;
use duewheel::core::engine::{Applied, Attended, Counts, Op, QueueView, Reply};
use duewheel::core::message::MaxAttempts;
use duewheel::core::name::QueueName;
use duewheel::core::policy::{Lasting, QueueSettings, ReadyOrder};
use duewheel::core::record::{Pause, Totals};
use duewheel::core::store::Level;
use serde::Deserialize;

use super::call::Call;
use super::line::BackoffFields;
use super::message::Nothing;
use super::reach::of_queue;
use super::reserve::at_most;
use super::strict::{self, Id, Object, Positive, Text, U32_MAX, Whole};
use super::{Answer, App, Json, check_batch, object};
use crate::beanstalk::default_queue;
use crate::error::Problem;
use crate::span::Span;

pub(crate) async fn show(call: Call) -> Answer {
    let queue = call.queue()?;
    let view = match call.app.ask(Op::Queue { queue: queue.clone() }).await? {
        Reply::Queues(mut found) => found.pop(),
        _ => return Err(Problem::internal()),
    };
    // Queues need no creation, so one that nobody uses is no error: it is empty.
    let view = view.unwrap_or_else(|| QueueView {
        name: queue,
        counts: Default::default(),
        urgent: 0,
        using: 0,
        watching: 0,
        oldest_ready: None,
        waiters: 0,
        attended: Attended::No,
        totals: Default::default(),
        rates: Default::default(),
        settings: QueueSettings::default(),
        pause: Pause::Running,
        pause_left_ms: None,
    });
    Ok(object(StatusCode::OK, |out| write(out, &view, call.app.client.now().wall)))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    lease_ms: Option<Positive>,
    max_attempts: Option<Whole<1, U32_MAX>>,
    priority: Option<Whole<0, U32_MAX>>,
    backoff: Option<Object<BackoffFields>>,
    dedupe_window_ms: Option<Whole>,
    dead_ttl_ms: Option<Whole>,
    order: Option<OrderWord>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OrderWord {
    Due,
    Arrival,
}

pub(crate) async fn configure(mut call: Call) -> Answer {
    let queue = call.queue()?;
    let asked: Settings = strict::parse(&call.json_bytes(call.app.policy.max_batch_bytes).await?)?;
    let settings = QueueSettings {
        lease_ms: asked.lease_ms.map(|n| n.0),
        max_attempts: asked.max_attempts.and_then(|n| MaxAttempts::new(n.get())),
        priority: asked.priority.map(Whole::get),
        backoff: asked.backoff.map(|b| b.0.check()).transpose()?,
        dedupe_window_ms: asked.dedupe_window_ms.map(|n| n.0),
        dead_ttl_ms: asked.dead_ttl_ms.map(|n| n.0),
        order: asked.order.map(|word| match word {
            OrderWord::Due => ReadyOrder::Due,
            OrderWord::Arrival => ReadyOrder::Arrival,
        }),
        lasting: Lasting::Always,
    };
    match call.app.ask(Op::Configure { queue, settings }).await? {
        Reply::Queues(views) => match views.first() {
            Some(view) => Ok(object(StatusCode::OK, |out| write(out, view, call.app.client.now().wall))),
            // Settings that set nothing leave nothing behind.
            None => Box::pin(show(call)).await,
        },
        Reply::Configure(refusal) => Err(Problem::from_settings(refusal)),
        _ => Err(Problem::internal()),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseFor<'a> {
    for_ms: Option<Whole>,
    #[serde(borrow)]
    r#for: Option<Text<'a>>,
}

pub(crate) async fn pause(mut call: Call) -> Answer {
    let queue = call.queue()?;
    let limit = call.app.policy.max_delay_ms;
    let for_ms = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        match strict::parse_optional::<PauseFor<'_>>(&bytes)? {
            PauseFor { for_ms: Some(_), r#for: Some(_) } => {
                return Err(Problem::field("for", "only one of for_ms and for may be given"));
            }
            PauseFor { for_ms: Some(ms), r#for: None } => Some(at_most("for_ms", ms.0, limit)?),
            PauseFor { for_ms: None, r#for: Some(text) } => {
                let Span(ms) = text.0.parse().map_err(|what| Problem::field("for", what))?;
                Some(at_most("for", ms, limit)?)
            }
            PauseFor { for_ms: None, r#for: None } => None,
        }
    };
    if let Reply::Configure(refusal) = call.app.ask(Op::Pause { queue: queue.clone(), for_ms }).await? {
        return Err(Problem::from_settings(refusal));
    }
    Ok(object(StatusCode::OK, |out| {
        out.text("queue", queue.as_str());
        out.truth("paused", true);
        out.number_or_null("for_ms", for_ms);
    }))
}

pub(crate) async fn resume(mut call: Call) -> Answer {
    let queue = call.queue()?;
    let Nothing {} = call.json(call.app.policy.max_batch_bytes).await?;
    call.app.ask(Op::Resume { queue: queue.clone() }).await?;
    Ok(object(StatusCode::OK, |out| {
        out.text("queue", queue.as_str());
        out.truth("paused", false);
    }))
}

pub(crate) async fn purge(mut call: Call) -> Answer {
    let queue = call.queue()?;
    let Nothing {} = call.json(call.app.policy.max_batch_bytes).await?;
    count(&call.app, Op::Purge { queue }, "purged").await
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Redrive {
    ids: Option<Vec<Id>>,
    max: Option<Positive>,
}

pub(crate) async fn redrive(mut call: Call) -> Answer {
    let queue = call.queue()?;
    let asked: Redrive = call.json(call.app.policy.max_batch_bytes).await?;
    let ids = match (asked.ids, asked.max) {
        (Some(_), Some(_)) => return Err(Problem::field("max", "only one of ids and max may be given")),
        (Some(ids), None) => ids,
        (None, max) => {
            let max = max.map_or(usize::MAX, |n| usize::try_from(n.0).unwrap_or(usize::MAX));
            return redrive_many(&call.app, queue, max).await;
        }
    };
    check_batch(ids.len(), &call.app.policy)?;
    let ids: Vec<_> = ids.into_iter().map(|id| id.0).collect();
    let results = of_queue(&call.app, &queue, &ids, |id| Op::Redrive { id }).await?;
    let redriven = results.iter().filter(|r| matches!(r, Ok(Reply::Change(Ok(_))))).count();
    Ok(object(StatusCode::OK, |out| {
        out.number("redriven", redriven as u64);
        out.open_list("results");
        for (id, result) in ids.iter().zip(results) {
            out.open();
            out.id("id", *id);
            match result {
                Ok(Reply::Change(Ok(now))) => {
                    out.plain("result", "redriven");
                    out.plain("durability", now.level.as_str());
                }
                Ok(Reply::Change(Err(refusal))) => Problem::from_change(refusal, "due_at").write_line(out),
                Ok(_) => Problem::internal().write_line(out),
                Err(problem) => problem.write_line(out),
            }
            out.close();
        }
        out.close_list();
    }))
}

/// The engine redrives a bounded number at a time, so that others have their turn in between.
async fn redrive_many(app: &App, queue: QueueName, max: usize) -> Answer {
    let (mut redriven, mut level) = (0, None::<Level>);
    loop {
        let left = max.saturating_sub(usize::try_from(redriven).unwrap_or(usize::MAX));
        let Reply::Count(done) = app.ask(Op::RedriveMany { queue: queue.clone(), max: left }).await? else {
            return Err(Problem::internal());
        };
        redriven += done.what;
        level = Some(level.map_or(done.level, |level| level.and(done.level)));
        if done.what == 0 || redriven >= max as u64 {
            break;
        }
    }
    Ok(counted("redriven", Applied { what: redriven, level: level.unwrap_or_default() }))
}

async fn count(app: &App, op: Op, name: &'static str) -> Answer {
    match app.ask(op).await? {
        Reply::Count(done) => Ok(counted(name, done)),
        _ => Err(Problem::internal()),
    }
}

fn counted(name: &'static str, done: Applied<u64>) -> Response {
    object(StatusCode::OK, |out| {
        out.number(name, done.what);
        out.plain("durability", done.level.as_str());
    })
}

/// The members of a queue.
pub(crate) fn write(out: &mut Json, view: &QueueView, now: WallMs) {
    out.text("queue", view.name.as_str());
    out.open_member("counts");
    out.number("scheduled", view.counts.scheduled);
    out.number("ready", view.counts.ready);
    out.number("leased", view.counts.leased);
    out.number("dead", view.counts.dead);
    out.truth("estimated", view.counts.estimated);
    out.close();
    out.instant_or_null("oldest_overdue", view.oldest_ready);
    out.number("oldest_overdue_ms", view.oldest_ready.map_or(0, |t| now.0.saturating_sub(t.0)));
    out.number("waiters", view.waiters as u64);
    out.truth("attended", view.attended == Attended::Yes);
    out.open_member("rates");
    out.thousandths("enqueued", view.rates.enqueued_milli);
    out.thousandths("granted", view.rates.granted_milli);
    out.thousandths("acked", view.rates.acked_milli);
    out.close();
    out.open_member("totals");
    for (name, n) in totals(&view.totals) {
        out.number(name, n);
    }
    out.close();
    out.truth("paused", view.pause != Pause::Running);
    out.number_or_null("pause_left_ms", view.pause_left_ms);
    out.open_member("config");
    write_settings(out, &view.settings);
    out.close();
}

/// Whether a queue is there only because beanstalkd's protocol has a tube `default` in any case: nobody has put anything into it, asked
/// for anything of it, or set anything, since it is there. Such a queue is in no listing.
pub(crate) fn is_unused_default(queue: &QueueView) -> bool {
    let Counts { scheduled, ready, leased, dead, estimated: _ } = queue.counts;
    queue.name == default_queue()
        && scheduled + ready + leased + dead == 0
        && queue.waiters == 0
        && queue.attended == Attended::No
        && queue.totals == Totals::default()
        && !queue.settings.keep_a_queue()
        && queue.pause == Pause::Running
}

/// Names and values of all totals.
pub(crate) fn totals(totals: &duewheel::core::record::Totals) -> [(&'static str, u64); 8] {
    [
        ("enqueued", totals.enqueued),
        ("granted", totals.granted),
        ("acked", totals.acked),
        ("cancelled", totals.cancelled),
        ("replaced", totals.replaced),
        ("purged", totals.purged),
        ("died", totals.died),
        ("expired", totals.expired),
    ]
}

/// What was set, so that it can be put again as it is.
fn write_settings(out: &mut Json, settings: &QueueSettings) {
    out.number_or_null("lease_ms", settings.lease_ms);
    out.number_or_null("max_attempts", settings.max_attempts.map(|n| u64::from(n.count())));
    out.number_or_null("priority", settings.priority.map(u64::from));
    match settings.backoff {
        None => out.null("backoff"),
        Some(backoff) => {
            out.open_member("backoff");
            out.number("min_ms", backoff.min_ms);
            out.number("max_ms", backoff.max_ms);
            out.close();
        }
    }
    out.number_or_null("dedupe_window_ms", settings.dedupe_window_ms);
    out.number_or_null("dead_ttl_ms", settings.dead_ttl_ms);
    match settings.order {
        None => out.null("order"),
        Some(ReadyOrder::Due) => out.plain("order", "due"),
        Some(ReadyOrder::Arrival) => out.plain("order", "arrival"),
    }
}
