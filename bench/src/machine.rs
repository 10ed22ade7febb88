//! The machine and the build of a measurement.

use std::process::Command;

/// Processor, cores, system, compiler profile and commit, one to a line.
#[must_use]
pub fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "machine  {}, {cores} cores, {} {}\ncommit   {}\nbuild    {}",
        processor().unwrap_or_else(|| "unknown processor".into()),
        std::env::consts::OS,
        std::env::consts::ARCH,
        commit().unwrap_or_else(|| "unknown".into()),
        if cfg!(debug_assertions) { "debug: these numbers mean nothing" } else { "release" },
    )
}

/// Memory without huge pages, as the server has it: their first use makes single messages late.
pub fn without_huge_pages() {
    rustix::thread::disable_transparent_huge_pages(true).expect("a setting of Linux");
}

fn processor() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn commit() -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short", "HEAD"])?;
    let changed = git(&["status", "--porcelain"]).is_none_or(|changes| !changes.is_empty());
    Some(if changed { format!("{commit} with local changes") } else { commit })
}
