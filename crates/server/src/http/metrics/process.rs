//! Figures of this process and of its disk, and how long answers take.

use std::path::Path;
use std::sync::atomic::Ordering;

use duewheel_bridge::outbox::{OutboxFigures, OutboxService};
use duewheel_delivery::TargetStage;

use super::super::App;
use super::super::app::EDGES_MS;
use super::page::{MetricsPage, columns, micros, seconds};

/// Writes the figures of this server: version, health, requests.
pub(super) fn write_server(page: &mut MetricsPage, app: &App) {
    let version = env!("CARGO_PKG_VERSION");
    page.head("duewheel_build_info", "gauge", "1, with the version and the level of durability.");
    page.line(
        "duewheel_build_info",
        &format!("version=\"{version}\",durability=\"{}\"", app.client.level().as_str()),
        1,
    );
    let health = app.client.health();
    page.one(
        "duewheel_tick_age_seconds",
        "gauge",
        "Time since the last round of the driver that came on with what waits.",
        seconds(health.tick_age_ms),
    );
    page.one("duewheel_healthy", "gauge", "1 while the driver works.", u64::from(health.trouble.is_none()));
    page.one(
        "duewheel_drain_mode",
        "gauge",
        "1 while new messages are refused: in drain mode, and while the server stops.",
        u64::from(app.refuses_new()),
    );
    write_schedules(page, app);
    write_jobs(page, app);
    write_targets(page, app);
    write_outboxes(page, app);
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
    write_durations(page, app);
    if let Some(folder) = app.start.get().and_then(|start| start.facts.folder.as_ref()) {
        write_disk(page, folder);
    }
}

fn write_durations(page: &mut MetricsPage, app: &App) {
    let name = "duewheel_http_request_seconds";
    page.head(
        name,
        "histogram",
        "Time from the headers of a request until its answer begins, the wait of a reserve included.",
    );
    for route in app.durations.get().into_iter().flatten() {
        for of in route.all() {
            let labels =
                format!("method=\"{}\",route=\"{}\",status=\"{}xx\"", route.method, route.path, of.class);
            page.histogram(name, &labels, columns(&EDGES_MS, of.columns), &micros(of.sum_us));
        }
    }
}

/// Bytes that the server's user may still write to the disk of a folder.
pub(in crate::http) fn free_of(folder: &Path) -> Option<u64> {
    rustix::fs::statvfs(folder).ok().map(|of| of.f_bavail.saturating_mul(of.f_frsize))
}

fn write_disk(page: &mut MetricsPage, folder: &Path) {
    let Ok(of) = rustix::fs::statvfs(folder) else { return };
    page.one(
        "duewheel_disk_free_bytes",
        "gauge",
        "Bytes that the server's user may still write to the disk of the data folder.",
        of.f_bavail.saturating_mul(of.f_frsize),
    );
    page.one(
        "duewheel_disk_size_bytes",
        "gauge",
        "Size of the disk of the data folder.",
        of.f_blocks.saturating_mul(of.f_frsize),
    );
}

/// Writes the figures of this process, by the names that all exporters use. What the system does not tell is left out.
#[cfg(target_os = "linux")]
pub(super) fn write_process(page: &mut MetricsPage) {
    use procfs::process::{LimitValue, Process};
    let Ok(process) = Process::myself() else { return };
    if let Ok(stat) = process.stat() {
        let ticks = procfs::ticks_per_second().max(1);
        let cpu_ms = (stat.utime + stat.stime).saturating_mul(1_000) / ticks;
        page.one("process_cpu_seconds_total", "counter", "Processor time of this process.", seconds(cpu_ms));
        let resident = stat.rss.saturating_mul(procfs::page_size());
        page.one("process_resident_memory_bytes", "gauge", "Memory of this process.", resident);
        page.one("process_virtual_memory_bytes", "gauge", "Address space of this process.", stat.vsize);
        page.one("process_threads", "gauge", "Threads.", u64::try_from(stat.num_threads).unwrap_or(0));
        if let Ok(boot) = procfs::boot_time_secs() {
            let start_ms =
                boot.saturating_mul(1_000).saturating_add(stat.starttime.saturating_mul(1_000) / ticks);
            page.one(
                "process_start_time_seconds",
                "gauge",
                "When this process began, in seconds since 1970.",
                seconds(start_ms),
            );
        }
    }
    if let Ok(open) = process.fd_count() {
        page.one("process_open_fds", "gauge", "Open files.", open as u64);
    }
    if let Ok(limits) = process.limits()
        && let LimitValue::Value(most) = limits.max_open_files.soft_limit
    {
        page.one("process_max_fds", "gauge", "Files that may be open.", most);
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn write_process(_: &mut MetricsPage) {}

/// Writes the counts of this node's worker of schedules.
fn write_schedules(page: &mut MetricsPage, app: &App) {
    let Some(counts) = app.schedule_counts() else { return };
    let outcomes = [
        ("entered", counts.entered),
        ("missed", counts.missed),
        ("skipped", counts.skipped),
        ("blocked", counts.blocked),
    ];
    let help = "Occurrences of schedules, by what this node made of them.";
    page.family(
        ("duewheel_schedule_occurrences_total", "counter", help),
        outcomes.map(|(outcome, count)| (format!("outcome=\"{outcome}\""), count)),
    );
    page.one(
        "duewheel_schedule_looks_failed_total",
        "counter",
        "Looks at schedules that did not end: no answer of the store, or a record that cannot be read.",
        counts.failed,
    );
    page.one(
        "duewheel_schedule_restarts_total",
        "counter",
        "Times that the worker of schedules began again after a bug.",
        counts.restarts,
    );
}

/// Writes the restarts of this node's worker of jobs.
fn write_jobs(page: &mut MetricsPage, app: &App) {
    let Some(restarts) = app.job_restarts() else { return };
    let help = "Times that a job or its worker began again after a bug.";
    page.one("duewheel_job_restarts_total", "counter", help, restarts);
}

/// Writes the counts and states of the targets that this node delivers to.
fn write_targets(page: &mut MetricsPage, app: &App) {
    let (statuses, restarts) = match app.delivery().as_ref() {
        Some(service) => (service.statuses(), service.restarts()),
        None => return,
    };
    let name = "duewheel_pushes_total";
    page.head(name, "counter", "Attempts to deliver to targets of this node, by how they ended.");
    for (target, status) in &statuses {
        let counts = status.counts;
        let outcomes = [
            ("delivered", counts.delivered),
            ("failed", counts.failed),
            ("forgiven", counts.forgiven),
            ("dead", counts.dead),
        ];
        for (outcome, count) in outcomes {
            page.line(name, &format!("target={target:?},outcome=\"{outcome}\""), count);
        }
    }
    let of = |target: &String| format!("target={target:?}");
    page.family(
        ("duewheel_pushes_in_flight", "gauge", "Requests to targets of this node that are under way."),
        statuses.iter().map(|(target, status)| (of(target), status.in_flight as u64)),
    );
    let help = "Whether the breaker of a target of this node is open, so that its messages wait.";
    page.family(
        ("duewheel_target_open", "gauge", help),
        statuses.iter().map(|(target, status)| (of(target), u64::from(status.stage == TargetStage::Open))),
    );
    page.one(
        "duewheel_push_restarts_total",
        "counter",
        "Times that a delivery worker began again after a bug.",
        restarts,
    );
}

/// Writes the figures of the outboxes that this node drains or stands by for.
fn write_outboxes(page: &mut MetricsPage, app: &App) {
    let outboxes = app.outboxes();
    let all = || outboxes.iter().flat_map(OutboxService::figures);
    let families = all().next().map(OutboxFigures::all).into_iter().flatten();
    for (i, (name, kind, help, _)) in families.enumerate() {
        let line = |of: &OutboxFigures| Some((format!("database={:?}", of.database()), of.all().get(i)?.3));
        page.family((&format!("duewheel_outbox_{name}"), kind, help), all().filter_map(line));
    }
}
