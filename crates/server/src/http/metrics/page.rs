//! The text of `/metrics`: families, lines and labels.

use std::fmt::{self, Write as _};

use duewheel::core::State;
use duewheel::core::engine::Counts;
use duewheel_shard::client::LocalShard;

/// A page of figures in Prometheus' text format, while it is being written.
pub(super) struct MetricsPage(String);

impl MetricsPage {
    /// An empty page, with memory for this number of bytes.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        MetricsPage(String::with_capacity(bytes))
    }

    /// The whole text.
    pub(super) fn into_text(self) -> String {
        self.0
    }

    /// Begins a family: its help and its kind.
    pub(super) fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Adds a line with a whole number.
    pub(super) fn line(&mut self, name: &str, labels: &str, value: u64) {
        self.text(name, labels, &value.to_string());
    }

    /// Adds a line whose value is a text already.
    pub(super) fn text(&mut self, name: &str, labels: &str, value: &str) {
        let _ = match labels {
            "" => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
    }

    /// Adds a family with these lines: labels and values.
    pub(super) fn family<V: fmt::Display>(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        lines: impl IntoIterator<Item = (String, V)>,
    ) {
        self.head(name, kind, help);
        for (labels, value) in lines {
            self.text(name, &labels, &value.to_string());
        }
    }

    /// Adds a family with one line, which has no labels.
    pub(super) fn one(&mut self, name: &str, kind: &str, help: &str, value: impl fmt::Display) {
        self.family((name, kind, help), [(String::new(), value)]);
    }

    /// Adds the lines of a histogram with these labels: its columns by upper edge, and the sum of its values.
    pub(super) fn histogram(
        &mut self,
        name: &str,
        labels: &str,
        columns: impl IntoIterator<Item = (String, u64)>,
        sum: &str,
    ) {
        let (bucket, comma) = (format!("{name}_bucket"), if labels.is_empty() { "" } else { "," });
        let mut all = 0;
        for (edge, count) in columns {
            all += count;
            self.line(&bucket, &format!("{labels}{comma}le=\"{edge}\""), all);
        }
        self.text(&format!("{name}_sum"), labels, sum);
        self.line(&format!("{name}_count"), labels, all);
    }
}

/// The columns of a histogram: each with its upper edge, and one for everything above.
pub(super) fn columns<'a>(
    edges_ms: &'a [u64],
    counts: impl IntoIterator<Item = u64> + 'a,
) -> impl Iterator<Item = (String, u64)> + 'a {
    let edges = edges_ms.iter().map(|ms| seconds(*ms)).chain(["+Inf".to_owned()]);
    edges.zip(counts.into_iter().chain(std::iter::repeat(0)))
}

/// The labels of a line about a shard; there is no label `shard` where there is no cluster.
pub(super) fn labels(shard: &LocalShard, more: &str) -> String {
    match (shard.shard(), more) {
        (None, more) => more.to_owned(),
        (Some(shard), "") => format!("shard=\"{shard}\""),
        (Some(shard), more) => format!("shard=\"{shard}\",{more}"),
    }
}

/// Each state, and its count.
pub(super) fn by_state(counts: &Counts) -> [(State, u64); 4] {
    [
        (State::Scheduled, counts.scheduled),
        (State::Ready, counts.ready),
        (State::Leased, counts.leased),
        (State::Dead, counts.dead),
    ]
}

/// Milliseconds as an exact decimal number of seconds.
pub(super) fn seconds(ms: u64) -> String {
    let text = format!("{}.{:03}", ms / 1_000, ms % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Microseconds as an exact decimal number of seconds.
pub(super) fn micros(us: u64) -> String {
    let text = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
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
        for (us, text) in [(0, "0"), (1, "0.000001"), (1_500_000, "1.5"), (20_000_000, "20")] {
            assert_eq!(micros(us), text);
        }
    }
}
