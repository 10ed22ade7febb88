//! The figures of a bridge: counts and the state of its two directions.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

/// Figures of a bridge on a node since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "BridgeCounts"))]
pub struct BridgeFigures {
    /// Messages of the other side that are durable here.
    #[serde(rename = "in")]
    pub taken: u64,
    /// Messages that the other side has confirmed.
    #[serde(rename = "out")]
    pub sent: u64,
    /// Messages of the other side that were put aside.
    pub rejected: u64,
    /// Messages of the other side whose id had come before.
    pub duplicates: u64,
    /// Whether the other side is away, so that the breaker is open.
    #[serde(skip)]
    pub is_open: bool,
    /// Messages in a second, over the last seconds.
    pub in_per_second: u64,
    /// Messages out a second, over the last seconds.
    pub out_per_second: u64,
    /// How late the message is that has been due for longest, in ms.
    #[serde(skip)]
    pub lag_ms: u64,
    /// The last error, if no direction has worked since.
    #[serde(skip)]
    pub last_error: Option<String>,
}

/// The figures, as the two directions change them.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    pub(crate) taken: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) duplicates: AtomicU64,
    pub(crate) lag_ms: AtomicU64,
    is_open: [AtomicBool; 2],
    error: Mutex<Option<String>>,
    rates: Mutex<BridgeRates>,
}

/// The rates of the last seconds, and the counts at their end.
#[derive(Debug, Default)]
struct BridgeRates {
    at: Option<Instant>,
    counts: [u64; 2],
    per_second: [u64; 2],
}

/// How long rates are measured at least.
const MEASURED: Duration = Duration::from_secs(5);

/// A direction of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    In,
    Out,
}

impl Direction {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Direction::In => "in",
            Direction::Out => "out",
        }
    }
}

impl Meter {
    pub(crate) fn add(count: &AtomicU64, more: usize) {
        count.fetch_add(u64::try_from(more).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The other side answers.
    pub(crate) fn close(&self, direction: Direction) {
        self.is_open[direction as usize].store(false, Ordering::Relaxed);
        if !self.is_open() {
            *self.error() = None;
        }
    }

    /// The other side is away.
    pub(crate) fn open(&self, direction: Direction, why: &str) {
        self.is_open[direction as usize].store(true, Ordering::Relaxed);
        *self.error() = Some(format!("{}: {why}", direction.as_str()));
    }

    /// This node does not run the bridge any more.
    pub(crate) fn rest(&self) {
        self.close(Direction::In);
        self.close(Direction::Out);
        self.lag_ms.store(0, Ordering::Relaxed);
        self.rates().per_second = [0; 2];
    }

    /// Measures the rates anew, once some seconds are over.
    pub(crate) fn note_rates(&self) {
        let mut rates = self.rates();
        let elapsed = rates.at.map(|at| at.elapsed());
        if elapsed.is_some_and(|elapsed| elapsed < MEASURED) {
            return;
        }
        let counts = [&self.taken, &self.sent].map(|count| count.load(Ordering::Relaxed));
        let ms = elapsed.map_or(u64::MAX, |elapsed| u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
        let before = std::mem::replace(&mut rates.counts, counts);
        rates.per_second =
            [0, 1].map(|n| counts[n].saturating_sub(before[n]).saturating_mul(1_000) / ms.max(1));
        rates.at = Some(Instant::now());
    }

    fn rates(&self) -> MutexGuard<'_, BridgeRates> {
        self.rates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_open(&self) -> bool {
        self.is_open.iter().any(|open| open.load(Ordering::Relaxed))
    }

    fn error(&self) -> MutexGuard<'_, Option<String>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read(&self) -> BridgeFigures {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let [in_per_second, out_per_second] = self.rates().per_second;
        BridgeFigures {
            taken: of(&self.taken),
            sent: of(&self.sent),
            rejected: of(&self.rejected),
            duplicates: of(&self.duplicates),
            is_open: self.is_open(),
            in_per_second,
            out_per_second,
            lag_ms: of(&self.lag_ms),
            last_error: self.error().clone(),
        }
    }
}
