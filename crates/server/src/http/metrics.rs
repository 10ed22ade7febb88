//! `GET /metrics`: figures in Prometheus' text format.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::StatusCode;
use duewheel::core::QueueName;
use duewheel::core::engine::{
    Attended, Counts, LATENESS_MS, Op, QUEUE_LATENESS_MS, QueueLateness, QueueView, Reply, Resource, Stats,
};
use duewheel::core::record::{Pause, Totals};
use duewheel_shard::client::LocalShard;
use duewheel_shard::figures::{Counted, is_counter};
use duewheel_shard::inbox::Pending;
use page::{MetricsPage, by_state, columns, labels, micros, seconds};

use super::call::Call;
use super::queue::is_unused_default;
use super::queue_view::totals;
use super::{Answer, App, typed};
use crate::error::Problem;

mod bridges;
mod figures;
mod page;
mod process;

pub(super) use process::free_of;

/// The number of queues that get figures of their own, so that scrapers can process the answer.
const MAX_QUEUES: usize = 1_000;
/// The number of quotas that are shown.
const MAX_QUOTAS: usize = 1_000;
/// The time limit for new figures of a shard, and for the queues of all shards.
const TIME_LIMIT: Duration = Duration::from_secs(1);
/// The number of queues that are requested together.
const PAGE: usize = 100;

pub(crate) async fn metrics(call: Call) -> Answer {
    let app = &call.app;
    let shards = renewed(app).await;
    let asked = ShownQueues::of(call.param("queue")?.as_deref())?;
    let queues = first_queues(app, &shards, &asked).await;
    let mut page = MetricsPage::with_capacity(8_192 + queues.len() * 400 + shards.len() * 8_192);
    process::write_process(&mut page);
    process::write_server(&mut page, app);
    write_spans(&mut page, app);
    let waiters = app.client.waiting();
    page.one(
        "duewheel_waiters",
        "gauge",
        "Reserves that wait for a message, of callers of this node.",
        waiters,
    );
    write_engines(&mut page, &shards);
    write_queues(&mut page, &queues, app.client.now().wall.0);
    if asked.is_all() {
        page.one(
            "duewheel_queues_left_out",
            "gauge",
            "Queues in the shards of this node without figures here, at least: the first 1000 have figures.",
            left_out(&queues, &shards),
        );
    }
    write_quotas(&mut page, &shards);
    write_cluster(&mut page, app);
    bridges::write_figures(&mut page, app).await;
    write_stores(&mut page, &shards);
    write_store_histograms(&mut page, &shards);
    Ok(typed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page.into_text()))
}

/// The shards of this node with new figures. Each is asked separately: one that hangs is shown with its last figures,
/// and does not affect the others.
async fn renewed(app: &App) -> Vec<LocalShard> {
    let shards = app.client.local_shards();
    let asked: Vec<Pending> = shards
        .iter()
        .filter_map(|shard| {
            shard.renew();
            shard.ask(Op::Stats).ok()
        })
        .collect();
    let all = async {
        for one in asked {
            let _ = one.await; // the figures count, not the answer
        }
    };
    let _late = tokio::time::timeout(TIME_LIMIT, all).await;
    shards
}

/// The figures of a queue: its part in the shards of this node.
#[derive(Default)]
struct QueueFigures {
    counts: Counts,
    oldest_ready: Option<u64>,
    waiters: u64,
    attended: bool,
    paused: bool,
    /// By shard; their sum would jump when a shard comes to this node.
    totals: Vec<(LocalShard, Totals)>,
    lateness: Vec<(LocalShard, QueueLateness)>,
}

impl QueueFigures {
    fn add(&mut self, shard: &LocalShard, view: QueueView) {
        self.counts = sum(&self.counts, &view.counts);
        let oldest = view.oldest_ready.map(|at| at.0);
        self.oldest_ready = [self.oldest_ready, oldest].into_iter().flatten().min();
        self.waiters += view.waiters as u64;
        self.attended |= view.attended == Attended::Yes;
        self.paused |= view.pause != Pause::Running;
        self.totals.push((shard.clone(), view.totals));
        if view.lateness != QueueLateness::default() {
            self.lateness.push((shard.clone(), view.lateness));
        }
    }
}

/// Which queues are asked for: all, one, or those whose names begin with a prefix.
#[derive(Default)]
struct ShownQueues {
    prefix: String,
    /// The queue named like the prefix, which listing behind it leaves out.
    exact: Option<QueueName>,
    /// No others than that one.
    only: bool,
}

impl ShownQueues {
    fn is_all(&self) -> bool {
        self.prefix.is_empty() && !self.only
    }

    /// `NAME`, or `PREFIX*`.
    fn of(text: Option<&str>) -> Result<Self, Problem> {
        let Some(text) = text.filter(|text| *text != "*") else { return Ok(ShownQueues::default()) };
        let (prefix, only) = text.strip_suffix('*').map_or((text, true), |prefix| (prefix, false));
        let exact = QueueName::new(prefix).map_err(|what| Problem::field("queue", what))?;
        Ok(ShownQueues { prefix: prefix.to_owned(), exact: Some(exact), only })
    }
}

/// How many queues there are behind the first ones. One that is in several shards counts once only if all of them are in
/// the same one, so it is the shard with the most that tells.
fn left_out(shown: &BTreeMap<QueueName, QueueFigures>, shards: &[LocalShard]) -> u64 {
    if shown.len() < MAX_QUEUES {
        return 0;
    }
    let most = shards.iter().filter_map(LocalShard::stats).map(|stats| stats.queues).max();
    most.unwrap_or(0).saturating_sub(shown.len() as u64)
}

/// The queues with the first names, a few of a shard at a time, so that others have their turn in between.
async fn first_queues(
    app: &App,
    shards: &[LocalShard],
    asked: &ShownQueues,
) -> BTreeMap<QueueName, QueueFigures> {
    let limit = PAGE.min(app.policy.max_page);
    let mut queues: BTreeMap<QueueName, QueueFigures> = BTreeMap::new();
    let until = tokio::time::Instant::now() + TIME_LIMIT;
    for shard in shards {
        if let Some(name) = &asked.exact {
            for view in page_of(shard, Op::Queue { queue: name.clone() }, until).await.unwrap_or_default() {
                queues.entry(name.clone()).or_default().add(shard, view);
            }
        }
        let (mut seen, mut last) = (0, asked.exact.clone());
        while seen < MAX_QUEUES && !asked.only {
            let Some(page) = page_of(shard, Op::Queues { after: last, limit }, until).await else { break };
            let mut is_last = page.len() < limit;
            seen += page.len();
            last = page.last().map(|queue| queue.name.clone());
            for view in page.into_iter().filter(|queue| !is_unused_default(queue)) {
                if view.name.as_str().starts_with(&asked.prefix) {
                    queues.entry(view.name.clone()).or_default().add(shard, view);
                } else {
                    is_last = true;
                }
            }
            // Queues behind the first names are not shown for any shard.
            if is_last || (queues.len() >= MAX_QUEUES && queues.keys().nth(MAX_QUEUES - 1) < last.as_ref()) {
                break;
            }
        }
    }
    if let Some(first) = queues.keys().nth(MAX_QUEUES).cloned() {
        queues.split_off(&first);
    }
    queues
}

/// Queues of one shard; `None` when it does not answer in time.
async fn page_of(shard: &LocalShard, op: Op, until: tokio::time::Instant) -> Option<Vec<QueueView>> {
    let answers = tokio::time::timeout_at(until, shard.ask(op).ok()?).await.ok()?;
    match answers.into_iter().next()? {
        Ok(Reply::Queues(page)) => Some(page),
        Ok(_) | Err(_) => None,
    }
}

fn sum(a: &Counts, b: &Counts) -> Counts {
    Counts {
        scheduled: a.scheduled + b.scheduled,
        ready: a.ready + b.ready,
        leased: a.leased + b.leased,
        dead: a.dead + b.dead,
        estimated: a.estimated || b.estimated,
    }
}

fn write_queues(page: &mut MetricsPage, queues: &BTreeMap<QueueName, QueueFigures>, now_ms: u64) {
    // A queue's name contains neither quotes nor backslashes.
    let of = |name: &QueueName| format!("queue=\"{name}\"");
    page.family(
        (
            "duewheel_queue_messages",
            "gauge",
            "Unsettled messages by queue and state in the shards of this node, of the first 1000 queues.",
        ),
        queues.iter().flat_map(|(name, queue)| {
            by_state(&queue.counts)
                .map(|(state, count)| (format!("{},state=\"{}\"", of(name), state.as_str()), count))
        }),
    );
    page.family(
        (
            "duewheel_queue_oldest_overdue_seconds",
            "gauge",
            "How long the longest overdue ready message has been due, of the first 1000 queues.",
        ),
        queues.iter().map(|(name, queue)| {
            (of(name), seconds(queue.oldest_ready.map_or(0, |at| now_ms.saturating_sub(at))))
        }),
    );
    for (metric, help, value) in QUEUE_GAUGES {
        page.family((metric, "gauge", help), queues.iter().map(|(name, queue)| (of(name), value(queue))));
    }
    for (place, (total, help, _)) in totals(&Totals::default()).into_iter().enumerate() {
        let lines = queues.iter().flat_map(|(name, queue)| {
            let line = move |(shard, counted): &(LocalShard, Totals)| {
                (labels(shard, &of(name)), totals(counted)[place].2)
            };
            queue.totals.iter().map(line)
        });
        let help = format!("{help} By queue, of the first 1000 queues.");
        page.family((&format!("duewheel_queue_{total}_total"), "counter", &help), lines);
    }
    // Queues that have granted a message since the start have it; the others have no lines.
    let name = "duewheel_queue_lateness_seconds";
    let help = "granted_at - due_at of first attempts since the start, by queue, of the first 1000 queues.";
    page.head(name, "histogram", help);
    for (queue, figures) in queues {
        for (shard, QueueLateness { counts, sum_ms }) in &figures.lateness {
            let columns = columns(&QUEUE_LATENESS_MS, counts.iter().copied());
            page.histogram(name, &labels(shard, &of(queue)), columns, &seconds(*sum_ms));
        }
    }
}

/// A gauge of a queue.
type QueueGauge = (&'static str, &'static str, fn(&QueueFigures) -> u64);

const QUEUE_GAUGES: [QueueGauge; 3] = [
    ("duewheel_queue_waiters", "Reserves that wait at this queue, of the first 1000 queues.", |queue| {
        queue.waiters
    }),
    (
        "duewheel_queue_attended",
        "1 when a consumer has reserved since the start, of the first 1000 queues.",
        |queue| u64::from(queue.attended),
    ),
    ("duewheel_queue_paused", "1 while the queue is paused, of the first 1000 queues.", |queue| {
        u64::from(queue.paused)
    }),
];

/// Use and refusals of a quota in the shards of this node; the limit is the whole one.
#[derive(Default)]
struct QuotaFigures {
    limits: [Option<u64>; 5],
    used: [u64; 5],
    refused: [u64; 5],
}

fn write_quotas(page: &mut MetricsPage, shards: &[LocalShard]) {
    let mut quotas: BTreeMap<Box<str>, QuotaFigures> = BTreeMap::new();
    for shard in shards {
        for one in shard.quotas() {
            let figures = quotas.entry(one.quota.prefix.clone()).or_default();
            figures.limits = Resource::ALL.map(|resource| one.quota.limit(resource));
            figures.used.iter_mut().zip(one.used).for_each(|(sum, n)| *sum += n);
        }
        for (prefix, refused) in shard.counted().quota_refused {
            let figures = quotas.entry(prefix).or_default();
            figures.refused.iter_mut().zip(refused).for_each(|(sum, n)| *sum += n);
        }
    }
    if quotas.is_empty() {
        return;
    }
    let shown =
        || quotas.iter().take(MAX_QUOTAS).flat_map(|one| Resource::ALL.map(|resource| (one, resource)));
    // A prefix contains neither quotes nor backslashes, like a queue's name.
    let labels = |prefix: &str, resource: Resource| format!("quota=\"{prefix}\",resource=\"{resource}\"");
    page.family(
        ("duewheel_quota_limit", "gauge", "What a quota allows over all shards, of the first 1000 quotas."),
        shown().filter_map(|((prefix, one), resource)| {
            Some((labels(prefix, resource), one.limits[resource as usize]?))
        }),
    );
    page.family(
        (
            "duewheel_quota_used",
            "gauge",
            "What is used of a quota in the shards of this node; of enqueues, how many of the burst.",
        ),
        shown().map(|((prefix, one), resource)| (labels(prefix, resource), one.used[resource as usize])),
    );
    page.family(
        (
            "duewheel_quota_refused_total",
            "counter",
            "Refusals by this node since its start; of leases, reserves that were held back.",
        ),
        shown().map(|((prefix, one), resource)| (labels(prefix, resource), one.refused[resource as usize])),
    );
}

fn write_cluster(page: &mut MetricsPage, app: &App) {
    let Some(all) = app.wheel.cluster_figures() else { return };
    for (name, value) in all {
        let kind = if is_counter(name) { "counter" } else { "gauge" };
        page.one(&format!("duewheel_cluster_{name}"), kind, figures::of_cluster(name), value);
    }
    page.family(
        (
            "duewheel_cluster_forwarded_total",
            "counter",
            "Submissions that this node has sent to another one, by that node's name.",
        ),
        // A node's name contains neither quotes nor backslashes.
        app.wheel.cluster_forwards().into_iter().map(|(peer, count)| (format!("peer=\"{peer}\""), count)),
    );
}

/// Writes the histograms of the stores.
fn write_store_histograms(page: &mut MetricsPage, shards: &[LocalShard]) {
    for histogram in &figures::HISTOGRAMS {
        let name = format!("duewheel_store_{}", histogram.name);
        let mut is_first = true;
        for shard in shards {
            let figures = shard.counted().store;
            let mut columns: Vec<(f64, &str, u64)> = figures
                .iter()
                .filter_map(|(figure, count)| {
                    let (family, edge) = figure.split_once('.')?;
                    (family == histogram.columns).then_some((edge.parse().ok()?, edge, *count))
                })
                .collect();
            if columns.is_empty() {
                continue; // a store of another kind
            }
            columns.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
            if std::mem::take(&mut is_first) {
                page.head(&name, "histogram", histogram.help);
            }
            let sum = figures.get(histogram.sum).copied().unwrap_or(0);
            let is_time = histogram.sum.ends_with("_microseconds_total");
            let sum = if is_time { micros(sum) } else { sum.to_string() };
            let columns = columns.into_iter().map(|(_, edge, count)| (edge.to_owned(), count));
            page.histogram(&name, &labels(shard, ""), columns, &sum);
        }
    }
}

/// Writes the figures of the stores: counters of all reigns of this process, and states of the shards that it owns.
fn write_stores(page: &mut MetricsPage, shards: &[LocalShard]) {
    // Sorted by family, and within it by shard and reason.
    let mut families: BTreeMap<&'static str, Vec<(String, u64)>> = BTreeMap::new();
    for shard in shards {
        for (name, value) in shard.counted().store.into_iter().chain(shard.states()) {
            let (family, reason) = match name.split_once('.') {
                Some((family, reason)) => (family, format!("reason=\"{reason}\"")),
                None => (name, String::new()),
            };
            if figures::HISTOGRAMS.iter().any(|histogram| histogram.columns == family) {
                continue;
            }
            families.entry(family).or_default().push((labels(shard, &reason), value));
        }
    }
    for (family, lines) in families {
        let (kind, help) = figures::of_store(family);
        // Prometheus counts time in seconds.
        let in_seconds = family.strip_suffix("_microseconds_total").map(|of| format!("{of}_seconds_total"));
        let name = format!("duewheel_store_{}", in_seconds.as_deref().unwrap_or(family));
        page.head(&name, kind.as_str(), help);
        for (labels, value) in lines {
            match in_seconds {
                Some(_) => page.text(&name, &labels, &micros(value)),
                None => page.line(&name, &labels, value),
            }
        }
    }
}

/// A gauge of the shards that this node owns.
type Gauge = (&'static str, &'static str, fn(&Stats) -> u64);

const GAUGES: [Gauge; 4] = [
    ("duewheel_message_bytes", "Weight of all unsettled messages.", |stats| stats.bytes),
    ("duewheel_resident_messages", "Messages in memory.", |stats| stats.resident),
    ("duewheel_resident_bytes", "Weight of the messages in memory.", |stats| stats.resident_bytes),
    ("duewheel_queues", "Queues; one that is in several shards counts in each.", |stats| stats.queues),
];

/// A counter of this process.
type Counter = (&'static str, &'static str, fn(&Counted) -> u64);

const COUNTERS: [Counter; 3] = [
    ("duewheel_lease_expired_total", "Leases that ran out since the start.", |counted| counted.lease_expired),
    (
        "duewheel_lease_lost_total",
        "Settlements refused because of a stale token since the start.",
        |counted| counted.lease_lost,
    ),
    (
        "duewheel_reserve_held_back_total",
        "Reserves answered without a message because too many are leased, since the start.",
        |counted| counted.held_back,
    ),
];

/// Writes the states of the shards that this node owns, and the counters of these and of shards that it owned before.
fn write_engines(page: &mut MetricsPage, shards: &[LocalShard]) {
    let owned: Vec<(&LocalShard, Stats)> =
        shards.iter().filter_map(|shard| Some((shard, shard.stats()?))).collect();
    page.family(
        ("duewheel_messages", "gauge", "Unsettled messages by state."),
        owned.iter().flat_map(|(shard, stats)| {
            by_state(&stats.counts)
                .map(|(state, count)| (labels(shard, &format!("state=\"{}\"", state.as_str())), count))
        }),
    );
    for (name, help, of) in GAUGES {
        page.family((name, "gauge", help), owned.iter().map(|(shard, stats)| (labels(shard, ""), of(stats))));
    }
    let counted: Vec<(&LocalShard, Counted)> = shards.iter().map(|shard| (shard, shard.counted())).collect();
    for (place, (name, help, _)) in totals(&Counted::default().totals).into_iter().enumerate() {
        let value =
            |(shard, counted): &(&LocalShard, Counted)| (labels(shard, ""), totals(&counted.totals)[place].2);
        let help = format!("{help} Since the start.");
        page.family((&format!("duewheel_{name}_total"), "counter", &help), counted.iter().map(value));
    }
    for (name, help, of) in COUNTERS {
        let value = |(shard, counted): &(&LocalShard, Counted)| (labels(shard, ""), of(counted));
        page.family((name, "counter", help), counted.iter().map(value));
    }
    if counted.iter().any(|(shard, _)| shard.shard().is_some()) {
        let name = "duewheel_shard_unowned_seconds_total";
        let help = "How long a shard had no owner before this node took it, as far as this node has seen.";
        let value =
            |(shard, counted): &(&LocalShard, Counted)| (labels(shard, ""), seconds(counted.unowned_ms));
        page.family((name, "counter", help), counted.iter().map(value));
    }
    let name = "duewheel_lateness_seconds";
    page.head(name, "histogram", "granted_at - due_at of first attempts since the start.");
    for (shard, counted) in &counted {
        let columns = columns(&LATENESS_MS, counted.lateness.iter().copied());
        page.histogram(name, &labels(shard, ""), columns, &seconds(counted.lateness_sum_ms));
    }
}

/// Counts of spans; nothing if none are made.
fn write_spans(page: &mut MetricsPage, app: &App) {
    let Some(counts) = app.traces().map(|traces| traces.counts()) else { return };
    page.one(
        "duewheel_otel_spans_exported_total",
        "counter",
        "Spans that the collector has taken.",
        counts.exported,
    );
    page.one(
        "duewheel_otel_spans_dropped_total",
        "counter",
        "Spans that were dropped: too many waited, or their export failed.",
        counts.dropped,
    );
    page.one("duewheel_otel_spans_waiting", "gauge", "Spans that wait for their export.", counts.waiting);
    page.one("duewheel_otel_export_failures_total", "counter", "Exports that failed.", counts.failures);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Story: the help of eight counters was "Messages since the start.", which described none of them.
    #[test]
    fn help_of_totals_is_specific() {
        let all = totals(&Counted::default().totals);
        let helps: BTreeSet<&str> = all.iter().map(|(_, help, _)| *help).collect();
        assert_eq!(helps.len(), all.len());
        assert!(helps.iter().all(|help| help.ends_with('.') && help.len() > 5), "{helps:?}");
    }
}
