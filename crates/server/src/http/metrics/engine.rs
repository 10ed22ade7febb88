//! The counters and states of engines, by shard.

use duewheel::core::engine::{LATENESS_MS, Stats};
use duewheel_shard::client::LocalShard;
use duewheel_shard::figures::Counted;

use super::super::queue_view::totals;
use super::page::{MetricsPage, by_state, labels, seconds};

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
pub(super) fn write(page: &mut MetricsPage, shards: &[LocalShard]) {
    let owned: Vec<(&LocalShard, Stats)> =
        shards.iter().filter_map(|shard| Some((shard, shard.stats()?))).collect();
    page.head("duewheel_messages", "gauge", "Unsettled messages by state.");
    for (shard, stats) in &owned {
        for (state, count) in by_state(&stats.counts) {
            let state = format!("state=\"{}\"", state.as_str());
            page.line("duewheel_messages", &labels(shard, &state), count);
        }
    }
    for (name, help, of) in GAUGES {
        page.head(name, "gauge", help);
        for (shard, stats) in &owned {
            page.line(name, &labels(shard, ""), of(stats));
        }
    }
    let counted: Vec<(&LocalShard, Counted)> = shards.iter().map(|shard| (shard, shard.counted())).collect();
    for (place, (name, help, _)) in totals(&Counted::default().totals).into_iter().enumerate() {
        let name = format!("duewheel_{name}_total");
        let help = format!("{help} Since the start.");
        page.head(&name, "counter", &help);
        for (shard, counted) in &counted {
            page.line(&name, &labels(shard, ""), totals(&counted.totals)[place].2);
        }
    }
    for (name, help, of) in COUNTERS {
        page.head(name, "counter", help);
        for (shard, counted) in &counted {
            page.line(name, &labels(shard, ""), of(counted));
        }
    }
    if counted.iter().any(|(shard, _)| shard.shard().is_some()) {
        let name = "duewheel_shard_unowned_seconds_total";
        page.head(
            name,
            "counter",
            "How long a shard had no owner before this node took it, as far as this node has seen.",
        );
        for (shard, counted) in &counted {
            page.text(name, &labels(shard, ""), &seconds(counted.unowned_ms));
        }
    }
    let name = "duewheel_lateness_seconds";
    page.head(name, "histogram", "granted_at - due_at of first attempts since the start.");
    for (shard, counted) in &counted {
        lateness(page, name, shard, counted);
    }
}

fn lateness(page: &mut MetricsPage, name: &str, shard: &LocalShard, counted: &Counted) {
    let mut sum = 0;
    for column in 0..=LATENESS_MS.len() {
        sum += counted.lateness.get(column).copied().unwrap_or(0);
        let edge = LATENESS_MS.get(column).map_or("+Inf".to_owned(), |ms| seconds(*ms));
        page.line(&format!("{name}_bucket"), &labels(shard, &format!("le=\"{edge}\"")), sum);
    }
    page.text(&format!("{name}_sum"), &labels(shard, ""), &seconds(counted.lateness_sum_ms));
    page.line(&format!("{name}_count"), &labels(shard, ""), sum);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Story: the help of eight counters was "Messages since the start.", which described none of them.
    #[test]
    fn help_of_totals_is_specific() {
        let all = totals(&Counted::default().totals);
        let helps: BTreeSet<&str> = all.iter().map(|(_, help, _)| *help).collect();
        assert_eq!(helps.len(), all.len());
        assert!(helps.iter().all(|help| help.ends_with('.') && help.len() > 5), "{helps:?}");
    }
}
