//! When a failed delivery is tried again.

use std::time::Duration;

use duewheel::core::random::scaled;

use crate::limits::{DELAYS, JITTER_PERCENT};

/// The delays between the attempts of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetryPlan {
    /// The delay after the first, second, … failed attempt; the last one repeats. At least one.
    Delays(Vec<Duration>),
    /// `min` after the first failed attempt, doubled with each, up to `max`.
    Doubling {
        /// The first delay.
        min: Duration,
        /// The longest delay.
        max: Duration,
    },
}

impl Default for RetryPlan {
    /// 5 s, 5 m, 30 m, 2 h, 5 h, 10 h, and 10 h from then on.
    fn default() -> Self {
        RetryPlan::Delays(DELAYS.to_vec())
    }
}

impl RetryPlan {
    /// The delay after this many failed attempts, 1 or more, up to a fifth shorter or longer. `random` is any number;
    /// the same number gives the same delay.
    ///
    /// ```
    /// use std::time::Duration;
    /// use duewheel_delivery::RetryPlan;
    /// let plan = RetryPlan::default();
    /// assert_eq!(plan.delay(1, 0), Duration::from_secs(4));
    /// assert_eq!(plan.delay(1, u64::MAX), Duration::from_secs(6));
    /// assert_eq!(plan.delay(99, 0), Duration::from_secs(8 * 3_600));
    /// ```
    pub fn delay(&self, failures: u32, random: u64) -> Duration {
        let index = failures.saturating_sub(1);
        let delay = match self {
            RetryPlan::Delays(delays) => {
                let place = usize::try_from(index).unwrap_or(usize::MAX).min(delays.len().saturating_sub(1));
                delays.get(place).copied().unwrap_or_default()
            }
            RetryPlan::Doubling { min, max } => {
                let doublings = 1u32.checked_shl(index).unwrap_or(u32::MAX);
                min.saturating_mul(doublings).min(*max)
            }
        };
        jittered(delay, random)
    }
}

/// A delay that is up to [`JITTER_PERCENT`] shorter or longer, in whole milliseconds.
pub(crate) fn jittered(delay: Duration, random: u64) -> Duration {
    let ms = delay.as_millis();
    let part = ms * u128::from(JITTER_PERCENT) / 100;
    let (shortest, range) = (u64::try_from(ms - part), u64::try_from(2 * part));
    let (shortest, range) = (shortest.unwrap_or(u64::MAX), range.unwrap_or(u64::MAX));
    Duration::from_millis(shortest.saturating_add(scaled(random, range)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn default_retry_plan_without_jitter() {
        let plan = RetryPlan::default();
        let middle = u64::MAX / 2;
        let seconds: Vec<u64> = (1..=8).map(|n| plan.delay(n, middle).as_secs()).collect();
        assert_eq!(seconds, [5, 300, 1_800, 7_200, 18_000, 36_000, 36_000, 36_000]);
    }

    #[test]
    fn doubling_stops_at_its_longest() {
        let plan = RetryPlan::Doubling { min: Duration::from_secs(1), max: Duration::from_secs(60) };
        let middle = u64::MAX / 2;
        assert_eq!([1, 2, 6, 7, 40].map(|n| plan.delay(n, middle).as_secs()), [1, 2, 32, 60, 60]);
    }

    proptest! {
        #[test]
        fn a_delay_varies_by_a_fifth(ms in 0u64..100_000_000_000, random: u64) {
            let jittered = u64::try_from(jittered(Duration::from_millis(ms), random).as_millis()).unwrap();
            prop_assert!(jittered >= ms - ms / 5 && jittered <= ms + ms / 5, "{ms} became {jittered}");
        }
    }
}
