//! The usage of a process: memory, processor time, bytes written.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Memory that is this process's own: RssAnon and RssShmem, in MiB.
#[must_use]
pub fn resident_mib() -> u64 {
    resident("self")
}

/// The memory of another process, in the same way.
#[must_use]
pub fn resident_mib_of(process: u32) -> u64 {
    resident(&process.to_string())
}

fn resident(process: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let kib = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name));
        line.and_then(|l| l.split_whitespace().nth(1)).and_then(|n| n.parse().ok()).unwrap_or(0)
    };
    (kib("RssAnon:") + kib("RssShmem:")) / 1024
}

/// Processor time of this process so far.
#[must_use]
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Processor time of another process so far, in steps of 10 ms.
#[must_use]
pub fn processor_time_of(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name in parentheses may contain spaces; user and system time are fields 14 and 15 of all.
    let after = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let ticks: u64 = after.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// Processor time so far of a process, of its descendants, and of those that have ended, in steps of 10 ms.
#[must_use]
pub fn processor_time_of_tree(root: u32) -> Duration {
    // Process, its parent, and its time with that of its ended children.
    let mut processes: Vec<(u32, u32, u64)> = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((_, after)) = stat.rsplit_once(')') else { continue };
        let field =
            |n: usize| after.split_whitespace().nth(n).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        let parent = u32::try_from(field(1)).unwrap_or(0);
        processes.push((process, parent, (11..15).map(field).sum()));
    }
    let (mut tree, mut ticks) = (vec![root], 0);
    while let Some(process) = tree.pop() {
        ticks += processes.iter().filter(|(one, ..)| *one == process).map(|(.., ticks)| ticks).sum::<u64>();
        tree.extend(processes.iter().filter(|(_, parent, _)| *parent == process).map(|(child, ..)| child));
    }
    Duration::from_millis(ticks * 10)
}

/// Processor time of the threads of another process so far, by their names without the number at the end.
#[must_use]
pub fn processor_time_by_thread(process: u32) -> BTreeMap<String, Duration> {
    let mut times: BTreeMap<String, Duration> = BTreeMap::new();
    for task in std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        // The first number is the time on a processor, in ns: more exact than the ticks of `stat`.
        let ns = read("schedstat").split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
        let name = read("comm").trim().trim_end_matches(|c: char| c.is_ascii_digit() || c == '-').to_owned();
        *times.entry(name).or_default() += Duration::from_nanos(ns);
    }
    times
}

/// Bytes that this process has written to files so far.
#[must_use]
pub fn written_bytes() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|n| n.parse().ok()).unwrap_or(0)
}
