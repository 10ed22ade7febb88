//! Chooses the runs that are merged next: a pure function of their sizes.
//!
//! * A run without live rows is dropped.
//! * A run that is less than half live is rewritten, together with neighbours that are not larger than its live part.
//!   So runs take at most twice the room of their live rows.
//! * From 16 small runs on, neighbours are merged: those with the fewest bytes written for each removed run, if the
//!   result is four times as large as the largest of them. So a row is written only a few times on its way into a large
//!   run. From 24 on, the cheapest ones are merged.

use std::ops::Range;

/// The size of a run. Runs are listed from the oldest to the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// The number of its live rows and answers.
    pub(crate) live: u64,
    /// Bytes of its file.
    pub(crate) bytes: u64,
    /// The approximate part of these bytes that belongs to live rows and answers.
    pub(crate) live_bytes: u64,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MergePlan {
    Nothing,
    /// Drops this run without reading it.
    Drop(usize),
    /// Merges these runs into one.
    Merge(Range<usize>),
}

/// The result of a merge is at least this many times as large as its largest input.
const GROWTH: u64 = 4;

/// Limits of the size of runs and of the number of small ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MergeLimits {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    /// From this number on there are too many small runs; also the largest number that is merged at once.
    pub(crate) small: usize,
}

impl Default for MergeLimits {
    fn default() -> Self {
        MergeLimits { rows: 16_000_000, bytes: 8 << 30, small: 16 }
    }
}

impl Size {
    /// Whether less than half of it is live. Bytes are counted: a few large messages that were removed weigh more than
    /// many small ones that were not.
    fn is_mostly_gone(&self) -> bool {
        self.live_bytes < self.bytes.div_ceil(2)
    }

    /// Whether it is small: two small neighbours can always be merged.
    fn is_small(&self, limits: &MergeLimits) -> bool {
        self.live <= limits.rows / 2 && self.live_bytes <= limits.bytes / 2
    }
}

/// The total of a window of runs.
#[derive(Clone, Copy, Debug, Default)]
struct WindowTotal {
    live: u64,
    bytes: u64,
}

impl WindowTotal {
    fn with(self, run: &Size) -> Self {
        WindowTotal { live: self.live + run.live, bytes: self.bytes + run.live_bytes }
    }

    fn fits(&self, limits: &MergeLimits) -> bool {
        self.live <= limits.rows && self.bytes <= limits.bytes
    }
}

/// Chooses the next step.
pub(crate) fn plan(runs: &[Size], limits: &MergeLimits) -> MergePlan {
    if let Some(i) = runs.iter().position(|run| run.live == 0) {
        return MergePlan::Drop(i);
    }
    let garbage = |run: &Size| run.bytes.saturating_sub(run.live_bytes);
    let worst = (0..runs.len()).filter(|i| runs[*i].is_mostly_gone()).max_by_key(|i| garbage(&runs[*i]));
    if let Some(i) = worst {
        return MergePlan::Merge(with_neighbours(runs, i, limits));
    }
    let small = runs.iter().filter(|run| run.is_small(limits)).count();
    let growth = match small {
        n if n < limits.small => return MergePlan::Nothing,
        n if n < limits.small + limits.small / 2 => GROWTH,
        _ => 1,
    };
    cheapest(runs, limits, growth).map_or(MergePlan::Nothing, MergePlan::Merge)
}

/// Chooses a step on a full disk: a run of which less than half is live is rewritten by itself, the one with the
/// smallest live part first. The sizes are estimates (rows differ in size), so after `tries` failures other runs are
/// chosen.
pub(crate) fn squeeze(runs: &[Size], tries: u64) -> MergePlan {
    let mut all: Vec<usize> = (0..runs.len()).filter(|i| runs[*i].is_mostly_gone()).collect();
    all.sort_by_key(|i| runs[*i].live_bytes);
    let turn = tries.checked_rem(all.len() as u64).and_then(|turn| usize::try_from(turn).ok());
    turn.map_or(MergePlan::Nothing, |turn| MergePlan::Merge(all[turn]..all[turn] + 1))
}

/// A run, and neighbours that cost no more than it does.
fn with_neighbours(runs: &[Size], i: usize, limits: &MergeLimits) -> Range<usize> {
    let mut window = i..i + 1;
    let mut sum = WindowTotal::default().with(&runs[i]);
    loop {
        let before = window.start.checked_sub(1).map(|j| (j, j..window.end));
        let behind = (window.end < runs.len()).then(|| (window.end, window.start..window.end + 1));
        let wider = [before, behind].into_iter().flatten().find(|(j, wider)| {
            runs[*j].live_bytes <= sum.bytes
                && sum.with(&runs[*j]).fits(limits)
                && wider.len() <= limits.small
        });
        let Some((j, wider)) = wider else { return window };
        sum = sum.with(&runs[j]);
        window = wider;
    }
}

/// The neighbours for which the least is written for each removed run.
fn cheapest(runs: &[Size], limits: &MergeLimits, growth: u64) -> Option<Range<usize>> {
    let mut best: Option<(u64, Range<usize>)> = None;
    for start in 0..runs.len() {
        let mut sum = WindowTotal::default();
        let mut largest = 0;
        for (end, run) in (start + 1..).zip(&runs[start..]).take(limits.small) {
            sum = sum.with(run);
            largest = largest.max(run.live_bytes);
            if !sum.fits(limits) {
                break;
            }
            let gone = (end - start - 1) as u64;
            let Some(cost) = sum.bytes.checked_div(gone) else { continue };
            if sum.bytes < largest.saturating_mul(growth) {
                continue;
            }
            // Of equally cheap ones the last, so that all of a row of equal runs are merged.
            if best.as_ref().is_none_or(|(least, window)| (cost, window.start) <= (*least, start)) {
                best = Some((cost, start..end));
            }
        }
    }
    best.map(|(_, window)| window)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: MergeLimits = MergeLimits { rows: 16_000, bytes: 1 << 40, small: 16 };

    fn full(rows: u64) -> Size {
        Size { live: rows, bytes: rows * 200, live_bytes: rows * 200 }
    }

    #[test]
    fn nothing_is_done_without_a_reason() {
        assert_eq!(plan(&[], &LIMITS), MergePlan::Nothing);
        assert_eq!(plan(&[full(100); 15], &LIMITS), MergePlan::Nothing);
        assert_eq!(plan(&[full(16_000), full(16_000), full(9_000), full(3)], &LIMITS), MergePlan::Nothing);
    }

    #[test]
    fn dead_runs_are_dropped_unread() {
        let gone = Size { live: 0, live_bytes: 0, ..full(100) };
        assert_eq!(plan(&[full(5), gone, full(5)], &LIMITS), MergePlan::Drop(1));
    }

    #[test]
    fn full_disk_merges_emptiest_run_first() {
        let run = |live: u64| Size { live, bytes: 1_000_000, live_bytes: live * 1_000 };
        let runs = [run(1_000), run(20), run(300), run(10)];
        assert_eq!(squeeze(&runs, 0), MergePlan::Merge(3..4));
        assert_eq!(squeeze(&runs, 1), MergePlan::Merge(1..2), "the other one failed");
        assert_eq!(squeeze(&runs, 2), MergePlan::Merge(2..3));
        assert_eq!(squeeze(&runs, 3), MergePlan::Merge(3..4), "in turn");
        assert_eq!(squeeze(&runs[..1], 0), MergePlan::Nothing, "nothing to give back");
    }

    #[test]
    fn half_empty_runs_merge_with_neighbours() {
        let half = Size { live: 499, live_bytes: 499 * 200, ..full(1_000) };
        assert_eq!(plan(&[full(5_000), half, full(4_000)], &LIMITS), MergePlan::Merge(1..2));
        assert_eq!(
            plan(&[full(5_000), full(400), half, full(90), full(4_000)], &LIMITS),
            MergePlan::Merge(1..4)
        );
        assert_eq!(
            plan(&[full(5_000), Size { live: 500, live_bytes: 500 * 200, ..half }], &LIMITS),
            MergePlan::Nothing
        );
    }

    #[test]
    fn sixteen_equal_runs_merge() {
        let mut runs = vec![full(16_000), full(1_600)];
        runs.extend([full(100); 15]);
        assert_eq!(plan(&runs, &LIMITS), MergePlan::Merge(2..17));
        runs.push(full(100));
        assert_eq!(plan(&runs, &LIMITS), MergePlan::Merge(2..18));
        assert_eq!(plan(&[full(9_000); 40], &LIMITS), MergePlan::Nothing);
    }

    /// The life of a store: flushes of `batch` rows, of which a share is removed later, oldest first or anywhere.
    struct Life {
        runs: Vec<Size>,
        written: u64,
        flushed: u64,
    }

    impl Life {
        fn settle(&mut self) {
            loop {
                match plan(&self.runs, &LIMITS) {
                    MergePlan::Nothing => break,
                    MergePlan::Drop(i) => drop(self.runs.remove(i)),
                    MergePlan::Merge(window) => {
                        let sum =
                            window.clone().fold(WindowTotal::default(), |sum, i| sum.with(&self.runs[i]));
                        assert!(sum.fits(&LIMITS), "no run becomes too large");
                        self.written += sum.bytes;
                        self.runs.splice(
                            window,
                            [Size { live: sum.live, bytes: sum.bytes, live_bytes: sum.bytes }],
                        );
                    }
                }
            }
            let (bytes, live) = self
                .runs
                .iter()
                .fold((0, 0), |(bytes, live), run| (bytes + run.bytes, live + run.live_bytes));
            assert!(bytes <= 2 * live + 400, "{bytes} bytes for {live}");
            let rows: u64 = self.runs.iter().map(|run| run.live).sum();
            assert!(self.runs.len() as u64 <= 24 + rows.div_ceil(LIMITS.rows / 2), "{:?}", self.runs);
        }
    }

    /// How many of a run's rows are removed, given its rows and its age in runs.
    type Remove = fn(usize, u64) -> u64;

    fn live(batch: u64, remove: Remove) -> Life {
        let mut life = Life { runs: Vec::new(), written: 0, flushed: 0 };
        for step in 0..4_000 {
            life.runs.push(full(batch));
            life.flushed += batch * 200;
            let count = life.runs.len();
            for i in 0..count {
                let gone = remove(count - i, life.runs[i].live).min(life.runs[i].live);
                life.runs[i].live -= gone;
                life.runs[i].live_bytes = life.runs[i].live * 200;
            }
            if step % 3 != 0 {
                life.settle();
            }
        }
        life
    }

    #[test]
    fn merge_policy_bounds_runs_and_writes() {
        let shapes: [(&str, Remove); 4] = [
            ("nothing goes", |_, _| 0),
            ("the old goes", |age, live| if age > 10 { live / 20 + 1 } else { 0 }),
            ("much goes at once", |age, live| if age < 3 { live * 9 / 10 } else { live / 50 }),
            ("a little goes everywhere", |_, live| live / 100 + 1),
        ];
        for (name, remove) in shapes {
            for batch in [10, 100, 1_000] {
                let life = live(batch, remove);
                let times = life.written as f64 / life.flushed as f64;
                assert!(times < 4.0, "{name}, {batch}: each byte is written {times:.1} times more");
            }
        }
    }
}
