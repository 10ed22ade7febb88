//! The last hour as the server keeps it, for `duewheel top`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use duewheel_client::segment;
use serde_json::Value;

use super::remote::Remote;
use super::table::per_second;

/// The oldest history of the whole server that is shown, and of a queue. The server has a point for each ten seconds.
const STALE: Duration = Duration::from_secs(10);
const STALE_OF_QUEUE: Duration = Duration::from_secs(60);
/// The histories that are asked for at one look.
const HISTORIES: usize = 8;

/// Counts of each step of the last hour.
#[derive(Clone, Debug, Default)]
pub(super) struct PastHour {
    pub(super) enqueued: Vec<Option<u64>>,
    pub(super) granted: Vec<Option<u64>>,
    pub(super) settled: Vec<Option<u64>>,
    step_ms: u64,
}

impl PastHour {
    /// Reads an answer of `GET /v1/history`.
    pub(super) fn of(history: &Value) -> PastHour {
        let series = |name: &str| {
            let list = history["series"][name].as_array();
            list.map(|list| list.iter().map(Value::as_u64).collect()).unwrap_or_default()
        };
        PastHour {
            enqueued: series("enqueued"),
            granted: series("granted"),
            settled: series("settled"),
            step_ms: history["step_ms"].as_u64().unwrap_or(0).max(1),
        }
    }

    /// The rate of the latest step that is known.
    pub(super) fn rate(&self, series: &[Option<u64>]) -> String {
        let count = series.iter().rev().find_map(|count| *count);
        count.map_or("-".to_owned(), |count| per_second(count as f64 * 1_000.0 / self.step_ms as f64))
    }
}

/// The last hour of the whole server under an empty name, and of the queues on the screen.
#[derive(Default)]
pub(super) struct PastHours(HashMap<String, (Instant, PastHour)>);

impl PastHours {
    /// Asks again for what is missing or old. What the server does not answer stays as it is.
    pub(super) fn refresh(&mut self, remote: &Remote, shown: &[String]) {
        self.0.retain(|name, _| name.is_empty() || shown.contains(name));
        let mut asked = 0;
        for name in std::iter::once("").chain(shown.iter().map(String::as_str)) {
            let (path, stale) = match name {
                "" => ("/v1/history".to_owned(), STALE),
                _ => (format!("/v1/history?queue={}", segment(name)), STALE_OF_QUEUE),
            };
            if asked == HISTORIES || self.0.get(name).is_some_and(|(at, _)| at.elapsed() < stale) {
                continue;
            }
            asked += 1;
            if let Ok(history) = remote.get(&path) {
                self.0.insert(name.to_owned(), (Instant::now(), PastHour::of(&history)));
            }
        }
    }

    pub(super) fn all(&self) -> HashMap<String, PastHour> {
        self.0.iter().map(|(name, (_, hour))| (name.clone(), hour.clone())).collect()
    }
}
