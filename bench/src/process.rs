//! What a process uses.

/// Memory that is this process's own: RssAnon and RssShmem, in MiB.
#[must_use]
pub fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name));
        line.and_then(|l| l.split_whitespace().nth(1)).and_then(|n| n.parse().ok()).unwrap_or(0)
    };
    (kib("RssAnon:") + kib("RssShmem:")) / 1024
}
