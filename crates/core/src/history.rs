//! The history of a queue: what happened to its messages in each step of time, and how late they were granted.
//!
//! A point is stored as varints: enqueued, granted, settled, dead, ready, pending, the number of columns of the
//! lateness, then for each column its number and its count.

use crate::record::{DecodeError, Writer, varint};
use crate::time::WallMs;

/// The width of a column doubles after this many columns.
const PER_DOUBLING: u64 = 4;
/// Latenesses below this, in ms, have columns of their own.
const EXACT: u64 = 2 * PER_DOUBLING;

/// Grants by their lateness, in columns that become wider with it: each reaches at most a quarter beyond its start.
/// Histograms of different shards and steps of time can be added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LatenessCounts(Vec<(u8, u64)>);

impl LatenessCounts {
    /// Counts one grant.
    pub fn count(&mut self, lateness_ms: u64) {
        self.put(column_of(lateness_ms), 1);
    }

    /// Adds the grants of another histogram.
    pub fn add(&mut self, other: &LatenessCounts) {
        other.0.iter().for_each(|&(column, n)| self.put(column, n));
    }

    /// The lateness in ms that this part of the grants, in percent, did not exceed: the upper end of its column. `None`
    /// without grants.
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        let total: u128 = self.0.iter().map(|&(_, n)| u128::from(n)).sum();
        let mut sum = 0;
        self.0.iter().find_map(|&(column, n)| {
            sum += u128::from(n);
            (sum * 100 >= total * u128::from(percent)).then(|| end_of(column))
        })
    }

    /// Bytes of memory that it takes in addition to its own size.
    pub(crate) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<(u8, u64)>()
    }

    fn put(&mut self, column: u8, n: u64) {
        match self.0.binary_search_by_key(&column, |&(column, _)| column) {
            Ok(at) => self.0[at].1 = self.0[at].1.saturating_add(n),
            Err(at) => {
                self.0.reserve_exact(1);
                self.0.insert(at, (column, n));
            }
        }
    }
}

#[allow(clippy::cast_possible_truncation)] // 2^64 ms have 252 columns
fn column_of(ms: u64) -> u8 {
    if ms < EXACT {
        return ms as u8;
    }
    let doublings = u64::from(ms.ilog2()) - 3;
    (EXACT + doublings * PER_DOUBLING + (ms >> (doublings + 1)) % PER_DOUBLING) as u8
}

/// The largest lateness of a column, in ms.
fn end_of(column: u8) -> u64 {
    let column = u64::from(column);
    if column < EXACT {
        return column;
    }
    let (doublings, part) = ((column - EXACT) / PER_DOUBLING, (column - EXACT) % PER_DOUBLING);
    // The end of the last column is 2^64 − 1.
    ((u128::from(PER_DOUBLING + part + 1) << (doublings + 1)) - 1).try_into().unwrap_or(u64::MAX)
}

/// The length of a step of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum HistoryStep {
    /// Ten seconds: kept in memory for an hour.
    TenSeconds,
    /// Five minutes: stored for 48 hours.
    FiveMinutes,
}

impl HistoryStep {
    /// Length of the step, in ms.
    pub fn ms(self) -> u64 {
        match self {
            HistoryStep::TenSeconds => 10_000,
            HistoryStep::FiveMinutes => 300_000,
        }
    }

    /// How long its points are kept, in ms.
    pub fn kept_ms(self) -> u64 {
        match self {
            HistoryStep::TenSeconds => 3_600_000,
            HistoryStep::FiveMinutes => 48 * 3_600_000,
        }
    }

    /// The number of the step at an instant.
    pub fn at(self, instant: WallMs) -> u64 {
        instant.0 / self.ms()
    }
}

/// Messages of a queue at the end of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QueueDepth {
    /// Ready messages.
    pub ready: u64,
    /// Scheduled, ready and leased messages.
    pub pending: u64,
}

/// The events of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HistoryPoint {
    /// Messages accepted, granted, acked, and deaths of messages.
    pub events: [u64; 4],
    /// The messages at the end; `None` if that is not known.
    pub depth: Option<QueueDepth>,
    /// First grants by their lateness.
    pub late: LatenessCounts,
}

impl HistoryPoint {
    /// Adds the point of another shard. The depth is unknown if that of one of them is.
    pub fn add(&mut self, other: &HistoryPoint) {
        self.add_events(other);
        self.depth = self.depth.zip(other.depth).map(|(one, other)| QueueDepth {
            ready: one.ready.saturating_add(other.ready),
            pending: one.pending.saturating_add(other.pending),
        });
    }

    /// Adds what happened later in the step.
    pub fn follow(&mut self, later: &HistoryPoint) {
        self.add_events(later);
        self.depth = later.depth.or(self.depth);
    }

    fn add_events(&mut self, other: &HistoryPoint) {
        self.events.iter_mut().zip(other.events).for_each(|(sum, n)| *sum = sum.saturating_add(n));
        self.late.add(&other.late);
    }

    /// Writes its stored form.
    pub(crate) fn write(&self, to: &mut Writer) {
        let QueueDepth { ready, pending } = self.depth.unwrap_or_default();
        self.events.into_iter().chain([ready, pending]).for_each(|n| to.varint(n));
        to.varint(self.late.0.len() as u64);
        for &(column, n) in &self.late.0 {
            to.byte(column);
            to.varint(n);
        }
    }

    /// Reads what [`HistoryPoint::write`] has written, and advances the slice.
    pub(crate) fn read(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
        let mut point = HistoryPoint::default();
        for n in &mut point.events {
            *n = varint(bytes)?;
        }
        point.depth = Some(QueueDepth { ready: varint(bytes)?, pending: varint(bytes)? });
        for _ in 0..varint(bytes)? {
            let (&column, rest) = bytes.split_first().ok_or(DecodeError::Short)?;
            *bytes = rest;
            point.late.put(column, varint(bytes)?);
        }
        Ok(point)
    }
}

/// The answer to [`crate::engine::Op::History`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QueueHistory {
    /// The start of the first step.
    pub from: WallMs,
    /// The length of each.
    pub step: HistoryStep,
    /// The steps, in order; `None` where nothing is known.
    pub points: Vec<Option<HistoryPoint>>,
    /// Whether the points of this step reach back as far as any do.
    pub reaches_back: bool,
    /// Whether no point was given up because of a bound of memory or of the store.
    pub complete: bool,
}

impl QueueHistory {
    /// Adds the history of another shard, of the same steps.
    pub fn add(&mut self, other: &QueueHistory) {
        self.reaches_back &= other.reaches_back;
        self.complete &= other.complete;
        for (sum, point) in self.points.iter_mut().zip(&other.points) {
            match (sum, point) {
                (Some(sum), Some(point)) => sum.add(point),
                (sum @ None, Some(point)) => *sum = Some(HistoryPoint { depth: None, ..point.clone() }),
                (Some(sum), None) => sum.depth = None,
                (None, None) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each lateness is in a column whose end is at most a quarter above it, and columns are in order.
    #[test]
    fn columns_are_at_most_a_quarter_wide() {
        let some = (0..4_096).chain((12..63).flat_map(|e| [(1 << e) - 1, 1 << e, (1 << e) / 4 * 5]));
        let mut last = 0;
        for ms in some.chain([u64::MAX]) {
            let column = column_of(ms);
            let end = end_of(column);
            assert!(end >= ms && end - ms <= ms / 4, "{ms}: {end}");
            assert!(column == 0 || end_of(column - 1) < ms, "{ms}");
            last = column.max(last);
        }
        assert_eq!(last, 251);
    }

    #[test]
    fn percentiles_come_from_merged_histograms() {
        let of = |ms: u64, n: u64| {
            let mut late = LatenessCounts::default();
            (0..n).for_each(|_| late.count(ms));
            late
        };
        assert_eq!(LatenessCounts::default().percentile(50), None);
        // A quiet shard that is late, and a busy one that is not: the average of both would be late.
        let mut sum = of(1, 985);
        sum.add(&of(60_000, 15));
        assert_eq!((sum.percentile(50), sum.percentile(99)), (Some(1), Some(65_535)));
        sum.add(&of(1, 1_000));
        assert_eq!(sum.percentile(99), Some(1));
    }

    #[test]
    fn point_survives_its_stored_form() {
        let mut point = HistoryPoint {
            events: [1, 200, u64::MAX, 0],
            depth: Some(QueueDepth { ready: 5, pending: 1 << 40 }),
            late: LatenessCounts::default(),
        };
        [0, 0, 7, 900, 86_400_000, u64::MAX].into_iter().for_each(|ms| point.late.count(ms));
        let mut to = Writer::default();
        point.write(&mut to);
        let mut bytes = to.bytes.as_slice();
        assert_eq!(HistoryPoint::read(&mut bytes), Ok(point));
        assert!(bytes.is_empty());
        for n in 0..to.bytes.len() {
            assert!(HistoryPoint::read(&mut &to.bytes[..n]).is_err(), "{n}");
        }
    }
}
