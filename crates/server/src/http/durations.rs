//! How long answers take, by route and class of status.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::http::{Method, StatusCode};

/// Upper edges of the columns in ms: Prometheus' usual ones, and two below. A last column has what takes longer.
pub(super) const EDGES_MS: [u64; 13] = [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000];
/// Classes of status, from 1xx to 5xx.
const CLASSES: usize = 5;

/// The durations of a route's answers, by class of status.
#[derive(Debug)]
pub(super) struct RouteDurations {
    pub(super) method: Method,
    pub(super) path: &'static str,
    classes: [ClassDurations; CLASSES],
}

/// The histogram of the durations of a route's answers of one class.
#[derive(Debug, Default)]
struct ClassDurations {
    columns: [AtomicU64; EDGES_MS.len() + 1],
    sum_us: AtomicU64,
}

/// A histogram as it is now.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Durations {
    /// The first digit of the status.
    pub(super) class: usize,
    pub(super) columns: [u64; EDGES_MS.len() + 1],
    pub(super) sum_us: u64,
}

impl RouteDurations {
    pub(super) fn new(method: Method, path: &'static str) -> Self {
        RouteDurations { method, path, classes: Default::default() }
    }

    /// An answer has taken so long, from its request's headers to its own.
    pub(super) fn count(&self, status: StatusCode, took: Duration) {
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES) - 1;
        // An edge belongs to its column.
        let column =
            EDGES_MS.iter().position(|edge| took <= Duration::from_millis(*edge)).unwrap_or(EDGES_MS.len());
        let of = &self.classes[class];
        of.columns[column].fetch_add(1, Relaxed);
        of.sum_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// The classes that there were answers of.
    pub(super) fn all(&self) -> impl Iterator<Item = Durations> {
        self.classes.iter().zip(1..).filter_map(|(of, class)| {
            let columns = std::array::from_fn(|column| of.columns[column].load(Relaxed));
            let any = columns.iter().any(|count| *count > 0);
            any.then(|| Durations { class, columns, sum_us: of.sum_us.load(Relaxed) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_duration_is_counted_by_class() {
        let route = RouteDurations::new(Method::GET, "/x");
        for (status, ms) in [(200, 0), (201, 1), (200, 3), (404, 10_000), (503, 10_001)] {
            route.count(StatusCode::from_u16(status).unwrap(), Duration::from_millis(ms));
        }
        let all: Vec<Durations> = route.all().collect();
        assert_eq!(all.iter().map(|one| one.class).collect::<Vec<_>>(), [2, 4, 5]);
        assert_eq!((all[0].columns[0], all[0].columns[2], all[0].sum_us), (2, 1, 4_000));
        assert_eq!((all[1].columns[12], all[2].columns[13]), (1, 1));
    }
}
