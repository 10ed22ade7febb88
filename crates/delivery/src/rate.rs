//! A limit of requests a second, as a bucket that fills with time. It is pure: instants are arguments.

use duewheel::core::time::EngineMs;

use crate::target::PushRate;

/// The cost of a request in the bucket's unit: a rate of one a second adds this much in a second.
const ONE: i64 = 1_000;

#[derive(Clone, Debug)]
pub(crate) struct RateBucket {
    per_second: u64,
    most: i64,
    /// Less than nothing after requests that were sent without asking.
    held: i64,
    at: EngineMs,
}

impl RateBucket {
    /// A full bucket.
    pub(crate) fn new(rate: PushRate, now: EngineMs) -> Self {
        let most = i64::from(rate.burst.unwrap_or(rate.per_second)) * ONE;
        RateBucket { per_second: u64::from(rate.per_second), most, held: most, at: now }
    }

    /// How many requests may begin now.
    pub(crate) fn available(&mut self, now: EngineMs) -> usize {
        let passed = now.0.saturating_sub(self.at.0).saturating_mul(self.per_second);
        self.held = self.held.saturating_add_unsigned(passed).min(self.most);
        self.at = self.at.max(now);
        usize::try_from(self.held.max(0) / ONE).unwrap_or(usize::MAX)
    }

    /// Counts requests that have begun.
    pub(crate) fn take(&mut self, requests: usize) {
        let requests = i64::try_from(requests).unwrap_or(i64::MAX);
        self.held = self.held.saturating_sub(requests.saturating_mul(ONE));
    }

    /// When the next request may begin.
    pub(crate) fn next(&self) -> EngineMs {
        EngineMs(self.at.0 + ONE.saturating_sub(self.held).max(0).unsigned_abs().div_ceil(self.per_second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let mut bucket = RateBucket::new(PushRate { per_second: 3, burst: Some(5) }, EngineMs(0));
        assert_eq!(bucket.available(EngineMs(0)), 5);
        bucket.take(5);
        assert_eq!(bucket.available(EngineMs(0)), 0);
        assert_eq!(bucket.next(), EngineMs(334));
        let mut begun = 0;
        for ms in 1..=60_000 {
            let now = bucket.available(EngineMs(ms));
            bucket.take(now);
            begun += now;
        }
        assert_eq!(begun, 180, "three a second for a minute");
        assert_eq!(bucket.available(EngineMs(3_600_000)), 5, "no more than the burst");
        assert_eq!(bucket.available(EngineMs(0)), 5, "a clock that goes back takes nothing");
        // Two of them were sent without asking.
        bucket.take(7);
        assert_eq!((bucket.available(EngineMs(3_600_000)), bucket.next()), (0, EngineMs(3_601_000)));
        assert_eq!(bucket.available(EngineMs(3_601_000)), 1);
    }
}
