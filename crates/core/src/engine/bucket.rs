//! Parts of limits that several shards share, and rates.

use crate::time::EngineMs;

use super::ids::Ids;

/// The share of one shard: the first shards get the remainder.
pub(super) fn share(limit: u64, ids: Ids) -> u64 {
    let shards = u64::from(ids.shards);
    limit / shards + u64::from(u64::from(ids.shard.0) < limit % shards)
}

/// A token bucket for enqueues or grants: a rate a second, and a burst. It starts full.
///
/// It counts fractions of a token that are so small that a whole number of them is added each ms: no rate is
/// rounded.
#[derive(Clone, Debug)]
pub(super) struct TokenBucket {
    at: EngineMs,
    level: u64,
    most: u64,
    /// Fractions that are added each ms.
    rate: u64,
    /// Fractions of one token.
    one: u64,
}

impl TokenBucket {
    pub(super) fn new(per_second: u64, burst: u64, ids: Ids, now: EngineMs) -> Self {
        let one = 1_000 * u64::from(ids.shards);
        // A millisecond is the finest step of time, so the bucket must hold what one adds, beside the rest of a
        // token.
        let most = burst.saturating_mul(1_000).max(one + per_second - 1);
        TokenBucket { at: now, level: most, most, rate: per_second, one }
    }

    /// Limits the fill to that of the former bucket.
    pub(super) fn filled_as(mut self, old: Option<TokenBucket>) -> Self {
        if let Some(mut old) = old {
            old.refill(self.at);
            // A bucket that was full stays full under a larger burst.
            if old.level < old.most {
                self.level = self.most.min(old.level);
            }
        }
        self
    }

    pub(super) fn refill(&mut self, now: EngineMs) {
        let more = now.0.saturating_sub(self.at.0).saturating_mul(self.rate);
        self.level = self.level.saturating_add(more).min(self.most);
        self.at = self.at.max(now);
    }

    pub(super) fn left(&self) -> u64 {
        self.level / self.one
    }

    /// The used part of the burst.
    pub(super) fn spent(&self) -> u64 {
        (self.most - self.level).div_ceil(self.one)
    }

    pub(super) fn take(&mut self) -> bool {
        let there = self.level >= self.one;
        if there {
            self.level -= self.one;
        }
        there
    }

    /// Time in ms until there is a token.
    pub(super) fn next_ms(&self) -> u64 {
        self.one.saturating_sub(self.level).div_ceil(self.rate.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bucket_gives_more_than_its_rate_and_its_burst() {
        for (rate, burst, shards) in
            [(1, 1, 1), (7, 3, 1), (1_000, 1, 1), (50_000, 10, 1), (3, 9, 16), (10_000, 100, 7)]
        {
            let ids = Ids::of(crate::ShardId(0), shards);
            let mut bucket = TokenBucket::new(rate, burst, ids, EngineMs(0));
            let (most, one) = (bucket.most, bucket.one);
            let (mut taken, mut now) = (0u64, 0);
            for step in [1, 1, 3, 250, 1, 999, 2, 10_000, 1, 1] {
                now += step;
                bucket.refill(EngineMs(now));
                while bucket.take() {
                    taken += 1;
                }
                assert!(
                    taken * one <= most + now * rate,
                    "{rate}/s, {burst} at once, {shards} shards, after {now} ms"
                );
                let wait = bucket.next_ms();
                assert!(wait > 0);
                let mut later = bucket.clone();
                later.refill(EngineMs(now + wait - 1));
                assert!(!later.take(), "not earlier than said");
                later.refill(EngineMs(now + wait));
                assert!(later.take(), "when it is said");
            }
        }
    }
}
