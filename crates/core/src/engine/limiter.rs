//! The limits of one queue's grants at one shard, and what is left of them.

use crate::policy::{CATCHUP_MS, GrantLimits, GrantRate};
use crate::time::{EngineMs, Now};

use super::bucket::{TokenBucket, share};
use super::ids::Ids;

/// Consumers that wait for a rate are served at least this often, if there is a token, in ms.
const GATHER_MS: u64 = 5;

/// The limits of one queue at this shard, and the tokens that are left.
#[derive(Debug)]
pub(super) struct GrantLimiter {
    rate: Option<TokenBucket>,
    catchup: Option<TokenBucket>,
    pub(super) leases: Option<u64>,
    /// When its consumers are served again.
    pub(super) wakes: Option<EngineMs>,
}

/// Whether the next message of a queue has been due for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pursuit {
    UpToDate,
    Behind,
}

/// Why a queue grants nothing now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtLimit {
    /// The queue has as many leases as it may have.
    Leases,
    /// The rate of the queue allows the next grant in this many ms.
    Rate(u64),
}

impl Pursuit {
    /// The pursuit of a queue whose next message was due this many ms ago.
    pub(super) fn of(late_ms: u64) -> Self {
        if late_ms > CATCHUP_MS { Pursuit::Behind } else { Pursuit::UpToDate }
    }
}

impl GrantLimiter {
    /// The limiter of a queue with these limits; `None` if it has none. Tokens that a former limiter had used stay used.
    pub(super) fn new(
        limits: GrantLimits,
        ids: Ids,
        now: Now,
        old: Option<&GrantLimiter>,
    ) -> Option<Box<Self>> {
        let GrantLimits { rate, catchup_per_hour, concurrency } = limits;
        if limits == GrantLimits::default() {
            return None;
        }
        let bucket = |rate: GrantRate, old: Option<&TokenBucket>| {
            let burst = u64::from(rate.burst_that_applies());
            TokenBucket::new(rate.per_hour, burst, ids, now.engine).filled_as(old.cloned())
        };
        let catchup = catchup_per_hour.map(GrantRate::per_hour);
        Some(Box::new(GrantLimiter {
            rate: rate.map(|rate| bucket(rate, old.and_then(|old| old.rate.as_ref()))),
            catchup: catchup.map(|rate| bucket(rate, old.and_then(|old| old.catchup.as_ref()))),
            leases: concurrency.map(|leases| share(u64::from(leases), ids)),
            wakes: None,
        }))
    }

    /// The limiter of a queue that the store knows: it begins without tokens, because a former owner may have used them up
    /// a moment ago.
    pub(super) fn recovered(limits: GrantLimits, ids: Ids, now: Now) -> Option<Box<Self>> {
        let mut limiter = GrantLimiter::new(limits, ids, now, None)?;
        limiter.rate.iter_mut().chain(&mut limiter.catchup).for_each(TokenBucket::empty);
        Some(limiter)
    }

    /// Time in ms until the rates allow the grant of a message that has been due for `late_ms`; 0 for now.
    pub(super) fn wait_ms(&self, now: Now, late_ms: u64) -> u64 {
        self.buckets(now, late_ms).map(|bucket| bucket.next_ms()).max().unwrap_or(0)
    }

    /// Time in ms after which consumers that wait are served: at high rates, several grants are made together.
    pub(super) fn pause_ms(&self, now: Now, late_ms: u64) -> u64 {
        let pause =
            self.buckets(now, late_ms).map(|bucket| bucket.next_ms().max(bucket.half_ms().min(GATHER_MS)));
        pause.max().unwrap_or(0)
    }

    /// The buckets that hold for such a message, as they are now.
    fn buckets(&self, now: Now, late_ms: u64) -> impl Iterator<Item = TokenBucket> {
        let catchup = self.catchup.as_ref().filter(|_| Pursuit::of(late_ms) == Pursuit::Behind);
        self.rate.iter().chain(catchup).map(move |bucket| {
            let mut bucket = bucket.clone();
            bucket.refill_for(now.engine, late_ms);
            bucket
        })
    }

    /// Takes what the grant of a message that has been due for `late_ms` uses.
    pub(super) fn take(&mut self, now: Now, late_ms: u64) {
        let catchup = self.catchup.as_mut().filter(|_| Pursuit::of(late_ms) == Pursuit::Behind);
        for bucket in self.rate.iter_mut().chain(catchup) {
            bucket.refill_for(now.engine, late_ms);
            bucket.take();
        }
    }
}
