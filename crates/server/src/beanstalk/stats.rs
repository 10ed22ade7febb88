//! The replies to `stats`, `stats-tube`, `stats-job` and the lists: YAML, field by field as beanstalkd 1.13 formats it
//! (`STATS_FMT` and its siblings in its `prot.c`). Clients parse it, some of them by position.

use std::fmt::Write as _;
use std::fs;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use duewheel::core::QueueName;
use duewheel::core::engine::{QueueView, Stats, View};
use duewheel::core::message::State;
use duewheel::core::record::Pause;
use duewheel::core::time::Now;

use super::BeanstalkState;
use super::codec::CommandKind;

/// The version; clients compare it as a number.
const VERSION: &str = "1.13";

/// A list of names.
pub(super) fn list(names: &[QueueName]) -> String {
    let mut out = String::from("---\n");
    for name in names {
        let _ = writeln!(out, "- {name}");
    }
    out
}

/// The statistics of a message, for `stats-job`.
pub(super) fn message(view: &View, now: Now) -> String {
    let time_left = match view.state {
        State::Scheduled => seconds_left(view.due_in_ms),
        State::Leased => view.lease_until.map_or(0, |until| seconds_left(until.0.saturating_sub(now.wall.0))),
        State::Ready | State::Dead | State::Done => 0,
    };
    let state = match view.state {
        State::Scheduled => "delayed",
        State::Ready => "ready",
        State::Leased => "reserved",
        State::Dead | State::Done => "buried", // a done message is not found here
    };
    let mut out = String::from("---\n");
    let mut field = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(out, "{name}: {value}");
    };
    field("id", &view.message.id);
    field("tube", &Quoted(view.message.queue.as_str()));
    field("state", &state);
    field("pri", &view.priority);
    field("age", &(now.wall.0.saturating_sub(view.message.enqueued_at.0) / 1_000));
    // The delay was given in whole seconds; the clocks may have moved against each other since.
    field("delay", &((view.delay_ms + 500) / 1_000));
    field("ttr", &(view.lease_ms / 1_000));
    field("time-left", &time_left);
    field("file", &0);
    field("reserves", &view.attempt);
    field("timeouts", &view.marks.timeouts);
    field("releases", &view.marks.releases);
    field("buries", &view.marks.burials);
    field("kicks", &view.marks.fires);
    out
}

/// The statistics of a queue, for `stats-tube`.
pub(super) fn queue(view: &QueueView) -> String {
    let length_ms = match view.pause {
        Pause::Until { length_ms, .. } => length_ms,
        // The pause lasts until it is ended, for which this protocol has no word.
        Pause::Paused => u64::from(u32::MAX) * 1_000,
        Pause::Running => 0,
    };
    let left_ms = match view.pause {
        Pause::Paused => length_ms,
        Pause::Until { .. } | Pause::Running => view.pause_left_ms.unwrap_or(0),
    };
    let mut out = String::from("---\n");
    let mut field = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(out, "{name}: {value}");
    };
    field("name", &Quoted(view.name.as_str()));
    field("current-jobs-urgent", &view.urgent);
    field("current-jobs-ready", &view.counts.ready);
    field("current-jobs-reserved", &view.counts.leased);
    field("current-jobs-delayed", &view.counts.scheduled);
    field("current-jobs-buried", &view.counts.dead);
    field("total-jobs", &view.totals.enqueued);
    field("current-using", &view.using);
    field("current-watching", &view.watching);
    field("current-waiting", &view.waiters);
    field("cmd-delete", &view.totals.acked.saturating_add(view.totals.cancelled));
    field("cmd-pause-tube", &view.totals.paused);
    field("pause", &(length_ms / 1_000));
    field("pause-time-left", &seconds_left(left_ms));
    out
}

/// The whole server.
pub(super) fn server(stats: &Stats, shared: &BeanstalkState) -> String {
    let count = &shared.counters;
    let (user, system) = processor_time();
    let mut out = String::from("---\n");
    let mut field = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(out, "{name}: {value}");
    };
    field("current-jobs-urgent", &stats.urgent);
    field("current-jobs-ready", &stats.counts.ready);
    field("current-jobs-reserved", &stats.counts.leased);
    field("current-jobs-delayed", &stats.counts.scheduled);
    field("current-jobs-buried", &stats.counts.dead);
    for (name, kind) in COMMANDS {
        field(name, &count.of(*kind));
    }
    field("job-timeouts", &stats.lease_expired);
    field("total-jobs", &stats.totals.enqueued);
    field("max-job-size", &shared.max_body);
    field("current-tubes", &stats.queues);
    field("current-connections", &count.connections.load(Relaxed));
    field("current-producers", &count.producers.load(Relaxed));
    field("current-workers", &count.workers.load(Relaxed));
    field("current-waiting", &stats.waiters);
    field("total-connections", &count.total_connections.load(Relaxed));
    field("pid", &std::process::id());
    field("version", &Quoted(VERSION));
    field("rusage-utime", &user);
    field("rusage-stime", &system);
    field("uptime", &shared.started.elapsed().as_secs());
    // Files of the binlog: the journal is not one.
    field("binlog-oldest-index", &0);
    field("binlog-current-index", &0);
    field("binlog-records-migrated", &0);
    field("binlog-records-written", &0);
    field("binlog-max-size", &10_485_760);
    field("draining", &shared.drain.is_on());
    field("id", &shared.instance);
    field("hostname", &Quoted(&shared.kernel.hostname));
    field("os", &Quoted(&shared.kernel.os));
    field("platform", &Quoted(std::env::consts::ARCH));
    out
}

const COMMANDS: &[(&str, CommandKind)] = &[
    ("cmd-put", CommandKind::Put),
    ("cmd-peek", CommandKind::Peek),
    ("cmd-peek-ready", CommandKind::PeekReady),
    ("cmd-peek-delayed", CommandKind::PeekDelayed),
    ("cmd-peek-buried", CommandKind::PeekBuried),
    ("cmd-reserve", CommandKind::Reserve),
    ("cmd-reserve-with-timeout", CommandKind::ReserveWithTimeout),
    ("cmd-delete", CommandKind::Delete),
    ("cmd-release", CommandKind::Release),
    ("cmd-use", CommandKind::Use),
    ("cmd-watch", CommandKind::Watch),
    ("cmd-ignore", CommandKind::Ignore),
    ("cmd-bury", CommandKind::Bury),
    ("cmd-kick", CommandKind::Kick),
    ("cmd-touch", CommandKind::Touch),
    ("cmd-stats", CommandKind::Stats),
    ("cmd-stats-job", CommandKind::StatsJob),
    ("cmd-stats-tube", CommandKind::StatsTube),
    ("cmd-list-tubes", CommandKind::ListTubes),
    ("cmd-list-tube-used", CommandKind::ListTubeUsed),
    ("cmd-list-tubes-watched", CommandKind::ListTubesWatched),
    ("cmd-pause-tube", CommandKind::PauseTube),
];

/// Whole seconds until a deadline. Deadlines are up to two ms later than requested, so that nothing is early; without
/// this correction the answer right after a reserve with 60 seconds would be 60 instead of beanstalkd's 59.
fn seconds_left(ms: u64) -> u64 {
    ms.saturating_sub(2) / 1_000
}

/// A string in double quotes, which contains none.
struct Quoted<'a>(&'a str);

impl std::fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}

/// Seconds of this process in user and system mode, with six decimal places, from proc_pid_stat(5): to a hundredth, and
/// 0 where there is no such file.
fn processor_time() -> (String, String) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Read behind the name, which may contain any character but ends with the last parenthesis.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let time = |at: usize| {
        let hundredths: u64 = fields.get(at).and_then(|f| f.parse().ok()).unwrap_or(0);
        format!("{}.{:06}", hundredths / 100, hundredths % 100 * 10_000)
    };
    (time(11), time(12))
}

/// Whether the client has put or reserved jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientRole {
    Not,
    Counted,
}

impl ClientRole {
    pub(super) fn begin(&mut self, counter: &AtomicUsize) {
        if *self == ClientRole::Not {
            *self = ClientRole::Counted;
            counter.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn end(&mut self, counter: &AtomicUsize) {
        if *self == ClientRole::Counted {
            *self = ClientRole::Not;
            counter.fetch_sub(1, Relaxed);
        }
    }
}
