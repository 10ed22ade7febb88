//! `GET /metrics`: figures in Prometheus' text format.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use duewheel::core::State;
use duewheel::core::engine::{Counts, LATENESS_MS, Op, QueueView, QuotaUse, Reply, Resource, Stats};

use super::call::Call;
use super::queue::{is_unused_default, totals};
use super::{Answer, App, figures, typed};
use crate::error::Problem;

/// Queues that get figures of their own: what a scraper can bear.
const MAX_QUEUES: usize = 1_000;
/// Quotas that are shown.
const MAX_QUOTAS: usize = 1_000;
/// Queues that are asked for together.
const PAGE: usize = 100;

pub(crate) async fn metrics(call: Call) -> Answer {
    // The store's figures are then of a later moment than this one, once the next question is answered.
    call.app.client.renew_store_figures();
    // Of many shards one may be away: then there are no figures of the whole rather than smaller ones.
    let stats = match call.app.ask(Op::Stats).await {
        Ok(Reply::Stats(stats)) => Some(stats),
        Ok(_) => return Err(Problem::internal()),
        Err(_) => None,
    };
    let queues = first_queues(&call.app).await?;
    let mut page = Page(String::with_capacity(4_096 + queues.len() * 400));
    write_process(&mut page, &call.app);
    if let Some(stats) = stats {
        write_engine(&mut page, &stats);
    }
    write_queues(&mut page, &queues, call.app.client.now().wall.0);
    match call.app.ask(Op::Quotas).await {
        Ok(Reply::Quotas(uses)) => write_quotas(&mut page, &uses),
        Ok(_) => return Err(Problem::internal()),
        Err(_) => {}
    }
    for (name, value) in call.app.wheel.cluster_figures().into_iter().flatten() {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        page.one(&format!("duewheel_cluster_{name}"), kind, "Of this node; see docs/cluster.md.", value);
    }
    for (name, value) in call.app.client.store_figures() {
        let (kind, help) = figures::of_store(name);
        page.one(&format!("duewheel_store_{name}"), kind.as_str(), help, value);
    }
    Ok(typed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page.0))
}

/// A few at a time, so that others have their turn in between.
async fn first_queues(app: &App) -> Result<Vec<QueueView>, Problem> {
    let limit = PAGE.min(app.policy.max_page);
    let mut queues: Vec<QueueView> = Vec::new();
    let mut last = None;
    while queues.len() < MAX_QUEUES {
        match app.ask(Op::Queues { after: last, limit }).await {
            Ok(Reply::Queues(page)) => {
                let is_last = page.len() < limit;
                last = page.last().map(|queue| queue.name.clone());
                queues.extend(page.into_iter().filter(|queue| !is_unused_default(queue)));
                if is_last {
                    break;
                }
            }
            Ok(_) => return Err(Problem::internal()),
            // While draining only figures of the whole are to be had.
            Err(_) => return Ok(Vec::new()),
        }
    }
    Ok(queues)
}

fn write_process(page: &mut Page, app: &App) {
    let version = env!("CARGO_PKG_VERSION");
    page.head("duewheel_build_info", "gauge", "1, with the version and the level of durability.");
    page.line(
        "duewheel_build_info",
        &format!("version=\"{version}\",durability=\"{}\"", app.client.level().as_str()),
        1,
    );
    let health = app.client.health();
    page.head("duewheel_tick_age_seconds", "gauge", "How long ago the driver's loop last came round.");
    let _ = writeln!(page.0, "duewheel_tick_age_seconds {}", seconds(health.tick_age_ms));
    page.one("duewheel_healthy", "gauge", "1 while the driver works.", u64::from(health.trouble.is_none()));
    page.one(
        "duewheel_drain_mode",
        "gauge",
        "1 while new messages are refused: in drain mode, and while the server stops.",
        u64::from(app.refuses_new()),
    );
    let counters = &app.counters;
    page.one(
        "duewheel_http_connections",
        "gauge",
        "Open HTTP connections.",
        counters.connections.load(Ordering::Relaxed),
    );
    page.head("duewheel_http_responses_total", "counter", "HTTP responses by class of status.");
    for (class, count) in counters.responses.iter().enumerate().skip(1) {
        let labels = format!("class=\"{class}xx\"");
        page.line("duewheel_http_responses_total", &labels, count.load(Ordering::Relaxed));
    }
}

fn write_engine(page: &mut Page, stats: &Stats) {
    page.head("duewheel_messages", "gauge", "Unsettled messages by state.");
    for (state, count) in by_state(&stats.counts) {
        page.line("duewheel_messages", &format!("state=\"{}\"", state.as_str()), count);
    }
    page.one("duewheel_message_bytes", "gauge", "Weight of all unsettled messages.", stats.bytes);
    page.one("duewheel_resident_messages", "gauge", "Messages in memory.", stats.resident);
    page.one("duewheel_resident_bytes", "gauge", "Weight of the messages in memory.", stats.resident_bytes);
    page.one("duewheel_queues", "gauge", "Queues.", stats.queues);
    page.one("duewheel_waiters", "gauge", "Reserves that wait for a message.", stats.waiters);
    for (name, value) in totals(&stats.totals) {
        page.one(&format!("duewheel_{name}_total"), "counter", "Messages since the start.", value);
    }
    page.one(
        "duewheel_lease_expired_total",
        "counter",
        "Leases that ran out since the start.",
        stats.lease_expired,
    );
    page.one(
        "duewheel_lease_lost_total",
        "counter",
        "Settlements refused because of a stale token since the start.",
        stats.lease_lost,
    );
    page.one(
        "duewheel_reserve_held_back_total",
        "counter",
        "Reserves answered without a message because too many are leased, since the start.",
        stats.held_back,
    );
    page.head(
        "duewheel_lateness_seconds",
        "histogram",
        "granted_at - due_at of first attempts since the start.",
    );
    let mut sum = 0;
    for (column, count) in stats.lateness.iter().enumerate() {
        sum += count;
        let edge = LATENESS_MS.get(column).map_or("+Inf".to_owned(), |ms| seconds(*ms));
        page.line("duewheel_lateness_seconds_bucket", &format!("le=\"{edge}\""), sum);
    }
    let _ = writeln!(page.0, "duewheel_lateness_seconds_sum {}", seconds(stats.lateness_sum_ms));
    let _ = writeln!(page.0, "duewheel_lateness_seconds_count {sum}");
}

fn write_queues(page: &mut Page, queues: &[QueueView], now_ms: u64) {
    page.head(
        "duewheel_queue_messages",
        "gauge",
        "Unsettled messages by queue and state, of the first 1000 queues.",
    );
    for queue in queues {
        for (state, count) in by_state(&queue.counts) {
            // A queue's name holds neither quotes nor backslashes.
            let labels = format!("queue=\"{}\",state=\"{}\"", queue.name, state.as_str());
            page.line("duewheel_queue_messages", &labels, count);
        }
    }
    page.head(
        "duewheel_queue_oldest_overdue_seconds",
        "gauge",
        "How long the longest overdue ready message has been due, of the first 1000 queues.",
    );
    for queue in queues {
        let overdue = queue.oldest_ready.map_or(0, |t| now_ms.saturating_sub(t.0));
        let _ = writeln!(
            page.0,
            "duewheel_queue_oldest_overdue_seconds{{queue=\"{}\"}} {}",
            queue.name,
            seconds(overdue)
        );
    }
}

fn write_quotas(page: &mut Page, uses: &[QuotaUse]) {
    if uses.is_empty() {
        return;
    }
    let shown = || uses.iter().take(MAX_QUOTAS).flat_map(|one| Resource::ALL.map(|resource| (one, resource)));
    let labels = |one: &QuotaUse, resource: Resource| {
        // A prefix holds neither quotes nor backslashes, as a queue's name does not.
        format!("quota=\"{}\",resource=\"{resource}\"", one.quota.prefix)
    };
    page.head("duewheel_quota_limit", "gauge", "What a quota allows, of the first 1000 quotas.");
    for (one, resource) in shown() {
        if let Some(limit) = one.quota.limit(resource) {
            page.line("duewheel_quota_limit", &labels(one, resource), limit);
        }
    }
    page.head("duewheel_quota_used", "gauge", "What is used of it; of enqueues, how many of the burst.");
    for (one, resource) in shown() {
        page.line("duewheel_quota_used", &labels(one, resource), one.used[resource as usize]);
    }
    page.head(
        "duewheel_quota_refused_total",
        "counter",
        "Refusals since the start; of leases, reserves that were held back.",
    );
    for (one, resource) in shown() {
        page.line("duewheel_quota_refused_total", &labels(one, resource), one.refused[resource as usize]);
    }
}

fn by_state(counts: &Counts) -> [(State, u64); 4] {
    [
        (State::Scheduled, counts.scheduled),
        (State::Ready, counts.ready),
        (State::Leased, counts.leased),
        (State::Dead, counts.dead),
    ]
}

fn seconds(ms: u64) -> String {
    let text = format!("{}.{:03}", ms / 1_000, ms % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The text under way.
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: u64) {
        let _ = writeln!(self.0, "{name}{{{labels}}} {value}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.head(name, kind, help);
        let _ = writeln!(self.0, "{name} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_exact() {
        for (ms, text) in
            [(0, "0"), (1, "0.001"), (10, "0.01"), (1_000, "1"), (100_500, "100.5"), (10_000, "10")]
        {
            assert_eq!(seconds(ms), text);
        }
    }

    #[test]
    fn the_histogram_counts_up() {
        let mut page = Page(String::new());
        let mut stats =
            Stats { lateness: vec![0; LATENESS_MS.len() + 1], lateness_sum_ms: 1_234, ..Stats::default() };
        stats.lateness[1] = 2;
        stats.lateness[LATENESS_MS.len()] = 1;
        write_engine(&mut page, &stats);
        assert!(page.0.contains("duewheel_lateness_seconds_bucket{le=\"0\"} 0\n"));
        assert!(page.0.contains("duewheel_lateness_seconds_bucket{le=\"0.001\"} 2\n"));
        assert!(page.0.contains("duewheel_lateness_seconds_bucket{le=\"3600\"} 2\n"));
        assert!(page.0.contains("duewheel_lateness_seconds_bucket{le=\"+Inf\"} 3\n"));
        assert!(page.0.contains("duewheel_lateness_seconds_sum 1.234\n"));
    }
}
