//! Merges the answers of all shards into one. Pure.

use std::collections::BTreeMap;

use duewheel_core::engine::{
    Applied, Attended, Counts, Histogram, QueueView, QuotaUse, Stats, View, WheelView,
};
use duewheel_core::message::State;
use duewheel_core::name::QueueName;
use duewheel_core::policy::{Lasting, QueueSettings};
use duewheel_core::record::{Pause, Totals};
use duewheel_core::store::Level;
use duewheel_core::time::WallMs;

/// The part of a queue's view that only this node knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LocalQueue {
    /// The number of holds of each `Hold`.
    pub(crate) holds: [u32; 3],
    /// The number of reserves in its waiting list.
    pub(crate) waiting: usize,
    /// The number of those, and of the ones that are being served.
    pub(crate) total: usize,
}

/// Adds the view of another shard. Numbers are summed; a setting of at least one shard is shown.
pub(crate) fn queue(into: &mut QueueView, other: QueueView) {
    into.counts = counts(into.counts, other.counts);
    into.done += other.done;
    into.expired.add(other.expired);
    into.lateness.add(&other.lateness);
    into.urgent += other.urgent;
    into.oldest_ready = [into.oldest_ready, other.oldest_ready].into_iter().flatten().min();
    into.waiters += other.waiters;
    into.using += other.using;
    into.watching += other.watching;
    if other.attended == Attended::Yes {
        into.attended = Attended::Yes;
    }
    into.totals = totals(into.totals, other.totals);
    into.rates.enqueued_milli += other.rates.enqueued_milli;
    into.rates.granted_milli += other.rates.granted_milli;
    into.rates.acked_milli += other.rates.acked_milli;
    // Settings are the same in all shards, unless setting them has failed at some of them, or they last only while
    // there are messages.
    let is_set = |s: &QueueSettings| (*s != QueueSettings::default(), s.lasting == Lasting::Always);
    if is_set(&other.settings) > is_set(&into.settings) {
        into.settings = other.settings;
    }
    let length = |view: (Pause, Option<u64>)| match view.0 {
        Pause::Running => (0, 0),
        Pause::Until { .. } => (1, view.1.unwrap_or(0)),
        Pause::Paused => (2, 0),
    };
    let (mine, others) = ((into.pause, into.pause_left_ms), (other.pause, other.pause_left_ms));
    (into.pause, into.pause_left_ms) = if length(others) > length(mine) { others } else { mine };
}

/// Queues by name, merged from those of the shards and of this node. Holds and waiting reserves are those of this node:
/// shards count nodes as waiting. A queue without anything else is left out.
pub(crate) fn queues(
    shards: impl IntoIterator<Item = Vec<QueueView>>,
    own: BTreeMap<QueueName, LocalQueue>,
) -> Vec<QueueView> {
    let mut all = every(shards, &own);
    all.retain(|name, view| view.is_there() || is_own(&own, name));
    all.into_values().collect()
}

/// The view of a single queue, which may have nothing but totals.
pub(crate) fn one_queue(views: Vec<QueueView>, own: BTreeMap<QueueName, LocalQueue>) -> Vec<QueueView> {
    let mut all = every([views], &own);
    all.retain(|name, view| view.is_there() || is_own(&own, name) || view.totals.enqueued > 0);
    all.into_values().collect()
}

fn is_own(own: &BTreeMap<QueueName, LocalQueue>, name: &QueueName) -> bool {
    own.get(name).is_some_and(|own| *own != LocalQueue::default())
}

fn every(
    shards: impl IntoIterator<Item = Vec<QueueView>>,
    own: &BTreeMap<QueueName, LocalQueue>,
) -> BTreeMap<QueueName, QueueView> {
    let mut all: BTreeMap<QueueName, QueueView> = BTreeMap::new();
    for mut view in shards.into_iter().flatten() {
        (view.waiters, view.using, view.watching) = (0, 0, 0);
        match all.get_mut(&view.name) {
            Some(into) => queue(into, view),
            None => drop(all.insert(view.name.clone(), view)),
        }
    }
    for name in own.keys() {
        all.entry(name.clone()).or_insert_with(|| QueueView::empty(name.clone()));
    }
    for (name, view) in &mut all {
        let own = own.get(name).copied().unwrap_or_default();
        [view.using, view.watching, _] = own.holds;
        view.waiters = own.waiting;
    }
    all
}

/// The lowest level that the shards have reached that applied a change.
pub(crate) fn reached(levels: impl Iterator<Item = Level>) -> Level {
    levels.reduce(Level::and).unwrap_or_default()
}

/// The number of messages changed in all shards, and the lowest level that they have reached.
pub(crate) fn sum(shards: Vec<Applied<u64>>) -> Applied<u64> {
    let both = |a: Applied<u64>, b: Applied<u64>| Applied {
        what: a.what.saturating_add(b.what),
        level: a.level.and(b.level),
    };
    shards.into_iter().reduce(both).unwrap_or_default()
}

fn counts(mut a: Counts, b: Counts) -> Counts {
    a.scheduled += b.scheduled;
    a.ready += b.ready;
    a.leased += b.leased;
    a.dead += b.dead;
    a.estimated |= b.estimated;
    a
}

/// A queue is paused in all shards at once, so that counts as one pause.
fn totals(a: Totals, b: Totals) -> Totals {
    Totals { paused: a.paused.max(b.paused), ..a.with(&b, u64::saturating_add) }
}

/// Figures of all shards. Each shard counts the queues of which it has something, so the cluster has at least as many
/// as the shard with the most. Waiting reserves are counted by the node.
pub(crate) fn stats(shards: Vec<Stats>) -> Stats {
    shards.into_iter().fold(Stats::default(), |mut sum, one| {
        sum.counts = counts(sum.counts, one.counts);
        sum.urgent += one.urgent;
        sum.bytes = sum.bytes.saturating_add(one.bytes);
        sum.resident += one.resident;
        sum.resident_bytes = sum.resident_bytes.saturating_add(one.resident_bytes);
        sum.queues = sum.queues.max(one.queues);
        sum.totals = totals(sum.totals, one.totals);
        sum.lease_expired += one.lease_expired;
        sum.lease_lost += one.lease_lost;
        sum.held_back += one.held_back;
        sum.lateness.resize(sum.lateness.len().max(one.lateness.len()), 0);
        for (sum, n) in sum.lateness.iter_mut().zip(one.lateness) {
            *sum += n;
        }
        sum.lateness_sum_ms = sum.lateness_sum_ms.saturating_add(one.lateness_sum_ms);
        sum
    })
}

/// The use of each quota over all shards, by prefix. While nodes have different quotas, the limit that the first shard
/// reports for a prefix is shown.
pub(crate) fn quotas(shards: Vec<Vec<QuotaUse>>) -> Vec<QuotaUse> {
    let mut all: BTreeMap<Box<str>, QuotaUse> = BTreeMap::new();
    for one in shards.into_iter().flatten() {
        match all.get_mut(&one.quota.prefix) {
            None => drop(all.insert(one.quota.prefix.clone(), one)),
            Some(sum) => {
                let numbers = sum.used.iter_mut().chain(&mut sum.refused);
                for (sum, n) in numbers.zip(one.used.into_iter().chain(one.refused)) {
                    *sum = sum.saturating_add(n);
                }
            }
        }
    }
    all.into_values().collect()
}

/// Columns that several histograms can have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    pub(crate) from: WallMs,
    pub(crate) to: WallMs,
    pub(crate) columns: usize,
}

/// The columns of the coarsest histogram, if the histograms differ. A shard with a finer resolution can also answer
/// with these columns: resolutions are doubled, and columns are multiples of them.
pub(crate) fn common_columns(all: &[Histogram]) -> Option<Columns> {
    let coarsest = all.iter().max_by_key(|h| (h.resolution_ms, h.width_ms))?;
    let differs = |h: &&Histogram| !is_empty(h) && !fits(h, coarsest);
    all.iter().find(differs)?;
    let span = coarsest.width_ms.saturating_mul(coarsest.counts.len() as u64);
    Some(Columns {
        from: coarsest.from,
        to: WallMs(coarsest.from.0.saturating_add(span)),
        columns: coarsest.counts.len(),
    })
}

fn fits(a: &Histogram, b: &Histogram) -> bool {
    (a.from, a.width_ms, a.counts.len()) == (b.from, b.width_ms, b.counts.len())
}

fn is_empty(h: &Histogram) -> bool {
    h.before == 0 && h.after == 0 && h.counts.iter().all(|n| *n == 0)
}

/// Merges histograms. Where the columns of two do not match, each narrow column is counted where it begins, and the
/// resolution shows the possible error.
pub(crate) fn histogram(all: Vec<Histogram>) -> Option<Histogram> {
    let mut merged = all.iter().max_by_key(|h| (h.resolution_ms, h.width_ms))?.clone();
    merged.counts.fill(0);
    (merged.before, merged.after) = (0, 0);
    for one in all {
        merged.before += one.before;
        merged.after += one.after;
        if !is_empty(&one) {
            merged.resolution_ms = merged.resolution_ms.max(one.resolution_ms);
            if !fits(&one, &merged) {
                merged.resolution_ms = merged.resolution_ms.max(one.width_ms).max(merged.width_ms);
            }
        }
        for (n, count) in (0..).zip(one.counts) {
            let start = one.from.0.saturating_add(one.width_ms.saturating_mul(n));
            if start < merged.from.0 {
                merged.before += count;
                continue;
            }
            let column = usize::try_from((start - merged.from.0) / merged.width_ms.max(1));
            match merged.counts.get_mut(column.unwrap_or(usize::MAX)) {
                Some(sum) => *sum += count,
                None => merged.after += count,
            }
        }
    }
    Some(merged)
}

/// Merges rings: those of the other shards are turned so that their pointers meet that of the first one. Each shard has
/// its own engine time, so their pointers differ; the distance of a message from the pointer stays right.
pub(crate) fn wheel(shards: Vec<WheelView>) -> Option<WheelView> {
    let mut shards = shards.into_iter();
    let mut merged = shards.next()?;
    let slots = merged.slots.max(1);
    for one in shards {
        merged.messages += one.messages;
        for (ring, occupied) in one.occupied.into_iter().enumerate() {
            let turn = slots + merged.pointers[ring] % slots - one.pointers[ring] % slots;
            let mut sum: BTreeMap<usize, u64> = merged.occupied[ring].iter().copied().collect();
            for (slot, n) in occupied {
                *sum.entry((slot + turn) % slots).or_default() += n;
            }
            merged.occupied[ring] = sum.into_iter().collect();
        }
    }
    Some(merged)
}

/// The first message of a state: ready, by priority, due time, id; scheduled, by due time; dead, by when it died;
/// leased, by id.
pub(crate) fn first(state: State, found: impl Iterator<Item = Box<View>>) -> Option<Box<View>> {
    found.min_by_key(|view| {
        let (priority, time) = match state {
            State::Ready => (view.priority, view.due_at.0),
            State::Scheduled => (0, view.due_at.0),
            State::Dead => (0, view.dead.map_or(u64::MAX, |(_, since)| since.0)),
            State::Leased | State::Done => (0, 0),
        };
        (priority, time, view.message.id)
    })
}

#[cfg(test)]
mod tests {
    use duewheel_core::engine::{ExpiredCounts, Rates};
    use duewheel_core::message::MaxAttempts;
    use duewheel_core::time::EngineMs;

    use super::*;

    fn name(text: &str) -> QueueName {
        QueueName::new(text).unwrap()
    }

    fn view(text: &str, ready: u64) -> QueueView {
        QueueView { counts: Counts { ready, ..Counts::default() }, ..QueueView::empty(name(text)) }
    }

    #[test]
    fn queue_view_is_sum_of_shards() {
        let settings = QueueSettings { max_attempts: MaxAttempts::new(3), ..QueueSettings::default() };
        let until = Pause::Until { end: EngineMs(9), length_ms: 5 };
        let rates = Rates { enqueued_milli: 5, granted_milli: 6, acked_milli: 7 };
        let a = QueueView {
            oldest_ready: Some(WallMs(8)),
            totals: Totals { enqueued: 4, paused: 2, ..Totals::default() },
            pause: until,
            pause_left_ms: Some(3),
            rates,
            expired: ExpiredCounts { late: 1, dead: 2 },
            ..view("q", 1)
        };
        let b = QueueView {
            oldest_ready: Some(WallMs(5)),
            totals: Totals { enqueued: 3, paused: 2, ..Totals::default() },
            attended: Attended::Yes,
            settings: settings.clone(),
            pause: until,
            pause_left_ms: Some(4),
            rates,
            expired: ExpiredCounts { late: 3, dead: 4 },
            waiters: 9,
            ..view("q", 2)
        };
        let own = LocalQueue { holds: [1, 2, 3], waiting: 4, total: 5 };
        let merged = queues([vec![a], vec![b]], BTreeMap::from([(name("q"), own)]));
        let wanted = QueueView {
            oldest_ready: Some(WallMs(5)),
            totals: Totals { enqueued: 7, paused: 2, ..Totals::default() },
            attended: Attended::Yes,
            settings,
            pause: until,
            pause_left_ms: Some(4),
            rates: Rates { enqueued_milli: 10, granted_milli: 12, acked_milli: 14 },
            expired: ExpiredCounts { late: 4, dead: 6 },
            waiters: 4,
            using: 1,
            watching: 2,
            ..view("q", 3)
        };
        assert_eq!(merged, [wanted]);
    }

    #[test]
    fn queue_exists_while_used_anywhere() {
        let waited_at = QueueView { waiters: 1, attended: Attended::Yes, ..view("node-waits", 0) };
        let paused = QueueView { pause: Pause::Paused, ..view("paused", 0) };
        let own = BTreeMap::from([(name("held"), LocalQueue { holds: [0, 0, 1], ..LocalQueue::default() })]);
        let names: Vec<String> = queues([vec![waited_at], vec![paused, view("used", 1)]], own)
            .into_iter()
            .map(|q| q.name.to_string())
            .collect();
        assert_eq!(names, ["held", "paused", "used"]);
    }

    #[test]
    fn stats_add_up_counting_queues_once() {
        let one = Stats { queues: 3, bytes: 5, waiters: 7, lateness: vec![1, 2], ..Stats::default() };
        let sum = stats(vec![one.clone(), Stats { queues: 2, ..one }]);
        assert_eq!((sum.queues, sum.bytes, sum.waiters), (3, 10, 0));
        assert_eq!(sum.lateness, [2, 4]);
    }

    fn columns(from: u64, width_ms: u64, resolution_ms: u64, counts: &[u64]) -> Histogram {
        let (before, after) = (1, 2);
        Histogram { from: WallMs(from), width_ms, counts: counts.to_vec(), before, after, resolution_ms }
    }

    #[test]
    fn columns_that_fit_are_added_exactly() {
        let all = vec![columns(60, 60, 60, &[1, 2]), columns(60, 60, 60, &[3, 4])];
        assert_eq!(common_columns(&all), None);
        let wanted = Histogram { before: 2, after: 4, ..columns(60, 60, 60, &[4, 6]) };
        assert_eq!(histogram(all), Some(wanted));
    }

    #[test]
    fn histogram_uses_coarsest_shard_columns() {
        let all = vec![columns(60, 60, 60, &[1, 2, 3]), columns(0, 120, 120, &[4, 5])];
        let wanted = Columns { from: WallMs(0), to: WallMs(240), columns: 2 };
        assert_eq!(common_columns(&all), Some(wanted));
        // With different columns the sum is approximate, and the result says so.
        let merged = histogram(all).unwrap();
        assert_eq!((merged.counts, merged.resolution_ms), (vec![5, 10], 120));
        let nothing = Histogram { before: 0, after: 0, ..columns(60, 60, 60, &[0]) };
        assert_eq!(common_columns(&[nothing, columns(0, 120, 120, &[4, 5])]), None);
    }

    #[test]
    fn count_reports_weakest_durability_level() {
        use duewheel_core::store::Level::{Buffered, Fsync, Memory, Quorum};
        let of = |all: &[(u64, _)]| {
            let Applied { what, level } =
                sum(all.iter().map(|&(what, level)| Applied { what, level }).collect());
            (what, level)
        };
        assert_eq!(of(&[(2, Fsync), (3, Quorum), (0, Buffered)]), (5, Buffered));
        assert_eq!((of(&[(7, Quorum)]), of(&[])), ((7, Quorum), (0, Memory)));
        assert_eq!(reached([Fsync, Quorum, Buffered].into_iter()), Buffered, "a change of settings");
    }

    #[test]
    fn rings_are_turned_to_one_pointer() {
        let ring = |pointers, occupied: [Vec<(usize, u64)>; 2]| WheelView {
            slots: 10,
            tick_ms: 1,
            pointers,
            messages: occupied.iter().flatten().map(|(_, n)| n).sum(),
            occupied,
        };
        let merged = wheel(vec![
            ring([2, 8], [vec![(3, 1)], vec![(9, 1)]]),
            ring([2, 1], [vec![(3, 1), (4, 2)], vec![(2, 5), (3, 1)]]),
        ]);
        let wanted = ring([2, 8], [vec![(3, 2), (4, 2)], vec![(0, 1), (9, 6)]]);
        assert_eq!(merged, Some(wanted), "one and two slots ahead of the pointer");
    }
}
