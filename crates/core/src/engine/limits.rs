//! Limits of a queue's grants: a rate, a lower rate while it catches up, and leases at a time.
//!
//! Each shard keeps its part of a limit ([`TokenBucket`]), as for quotas.

use crate::id::Ids;
use crate::mutant::{self, Mutant};
use crate::policy::{ARREARS_MS, CATCHUP_MS, GrantLimits, GrantRate, HOUR_MS};
use crate::time::{EngineMs, Now};

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

/// While there are arrears, a rate adds this part of itself more.
const ARREARS_PART: u64 = 4;

/// The share of one shard: the first shards get the remainder.
pub(super) fn share(limit: u64, ids: Ids) -> u64 {
    let shards = u64::from(ids.shards);
    limit / shards + u64::from(u64::from(ids.shard.0) < limit % shards)
}

/// A token bucket for enqueues or grants: a rate an hour, and a burst. It starts full.
///
/// The level is counted in fractions of a token that are so small that a whole number of them is added each ms: no rate
/// is rounded.
///
/// Tokens that a full bucket cannot hold are lost, unless a user could have taken them: then they are *arrears*, up to
/// those of [`ARREARS_MS`]. They are added over the time that follows, at a part of the rate, so the level never
/// exceeds the burst. In any span `t` at most `burst + rate × t + min(rate × t / 4, arrears)` is taken.
#[derive(Clone, Debug)]
pub(super) struct TokenBucket {
    at: EngineMs,
    level: u64,
    most: u64,
    /// Fractions that are added each ms.
    rate: u64,
    /// Fractions of one token.
    one: u64,
    /// Fractions that were lost and are still to be added.
    arrears: u64,
}

impl TokenBucket {
    pub(super) fn new(per_hour: u64, burst: u64, ids: Ids, now: EngineMs) -> Self {
        let one = HOUR_MS * u64::from(ids.shards);
        // A millisecond is the finest step of time, so the bucket must hold the tokens that one adds and the rest of a
        // token.
        let most = burst.saturating_mul(HOUR_MS).max(one + per_hour.saturating_sub(1));
        TokenBucket { at: now, level: most, most, rate: per_hour, one, arrears: 0 }
    }

    /// Takes all that it holds.
    pub(super) fn empty(&mut self) {
        self.level = 0;
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

    /// Adds what the rate gives until now.
    pub(super) fn refill(&mut self, now: EngineMs) {
        self.refill_for(now, 0);
    }

    /// Adds what the rate gives until now, for a user that could have taken it for the last `behind_ms`.
    pub(super) fn refill_for(&mut self, now: EngineMs, behind_ms: u64) {
        let more = now.0.saturating_sub(self.at.0).saturating_mul(self.rate);
        self.at = self.at.max(now);
        let most = if mutant::is(Mutant::BurstUnlimited) { u64::MAX / 2 } else { self.most };
        let added = more.min(most - self.level);
        self.level += added;
        let over = more - added;
        if over > 0 {
            let kept = over.min(behind_ms.saturating_mul(self.rate));
            // The user had nothing to take for a while: what it was owed before is settled.
            let before = if kept == over { self.arrears } else { 0 };
            self.arrears = before.saturating_add(kept).min(self.rate.saturating_mul(ARREARS_MS));
        }
        let back = self.arrears.min(more / ARREARS_PART).min(most - self.level);
        self.level += back;
        self.arrears -= back;
    }

    pub(super) fn left(&self) -> u64 {
        self.level / self.one
    }

    /// The used part of the burst.
    pub(super) fn spent(&self) -> u64 {
        self.most.saturating_sub(self.level).div_ceil(self.one)
    }

    pub(super) fn take(&mut self) -> bool {
        let there = self.level >= self.one;
        if there {
            self.level -= self.one;
        }
        there
    }

    /// Time in ms until it is half full, rounded down.
    pub(super) fn half_ms(&self) -> u64 {
        (self.most / 2).saturating_sub(self.level) / self.rate.max(1)
    }

    /// Time in ms until there is a token.
    pub(super) fn next_ms(&self) -> u64 {
        self.one.saturating_sub(self.level).div_ceil(self.rate.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bucket of this rate a second.
    fn bucket(rate: u64, burst: u64, shards: u32) -> TokenBucket {
        TokenBucket::new(rate * 3_600, burst, Ids::of(crate::ShardId(0), shards), EngineMs(0))
    }

    /// The user of a bucket that always has something to take, and is served after each of these pauses in turn.
    fn served(rate: u64, burst: u64, pauses: &[u64], behind: bool) -> Vec<(u64, u64)> {
        let mut bucket = bucket(rate, burst, 1);
        let (mut now, mut got) = (0, Vec::new());
        for pause in pauses.iter().cycle() {
            now += pause;
            if now > 20_000 {
                return got;
            }
            bucket.refill_for(EngineMs(now), if behind { now } else { 0 });
            let mut taken = 0;
            while bucket.take() {
                taken += 1;
            }
            got.push((now, taken));
        }
        got
    }

    /// Every list of pauses of one to three different lengths.
    fn each_pauses(mut each: impl FnMut(&[u64])) {
        let lengths = [1, 3, 9, 11, 60, 90, 900];
        for &a in &lengths {
            each(&[a]);
            for &b in &lengths {
                for times in [1, 20] {
                    each(&[&vec![a; times][..], &[b]].concat());
                    for &c in &lengths {
                        each(&[&vec![a; times][..], &[b, c]].concat());
                    }
                }
            }
        }
    }

    #[test]
    fn bucket_limit_holds_in_every_span() {
        each_pauses(|pauses| {
            for (rate, burst) in [(50, 1), (1_000, 10), (50_000, 500)] {
                let most = bucket(rate, burst, 1).most;
                let got = served(rate, burst, pauses, true);
                for (i, (from, _)) in got.iter().enumerate().step_by(got.len().div_ceil(40)) {
                    let mut taken = 0;
                    for (to, n) in &got[i..] {
                        taken += n;
                        let span = to - from;
                        let arrears = (rate * span / 4).min(rate * ARREARS_MS);
                        let allowed = most + (rate * span + arrears) * 3_600;
                        assert!(taken * HOUR_MS <= allowed, "{rate}/s, {pauses:?}: {taken} in {span} ms");
                    }
                }
            }
        });
    }

    #[test]
    fn short_rare_pauses_lose_no_rate() {
        // Over five seconds: a pause of up to 100 ms in each half of a second, of which 10 ms are in the burst.
        for pause in [11, 25, 50, 90, 100] {
            let pauses = [vec![1; 500], vec![pause]].concat();
            let got = served(50_000, 500, &pauses, true);
            for (i, (from, _)) in got.iter().enumerate().filter(|(_, (from, _))| *from <= 15_000).step_by(7) {
                let span = got[i..].iter().take_while(|(at, _)| *at < from + 5_000);
                let taken: u64 = span.map(|(_, n)| n).sum();
                assert!(
                    (245_000..=255_000).contains(&taken),
                    "pauses of {pause} ms: {taken} from {from} ms on"
                );
            }
        }
    }

    #[test]
    fn idle_bucket_accrues_no_arrears() {
        let pauses = [vec![1; 20], vec![60]].concat();
        let (idle, behind) = (served(1_000, 10, &pauses, false), served(1_000, 10, &pauses, true));
        let sum = |got: &[(u64, u64)]| got.iter().map(|(_, n)| n).sum::<u64>();
        // The first of the single ones finds a full bucket.
        assert_eq!(sum(&idle), (20_000 / 80) * (20 + 10) + 9, "one burst for each pause");
        assert!(sum(&behind) > sum(&idle));
        // A bucket that has stood full is not owed what was lost before.
        let mut bucket = bucket(1_000, 10, 1);
        bucket.refill_for(EngineMs(50), 50);
        assert_eq!(bucket.arrears, 50 * HOUR_MS);
        bucket.refill_for(EngineMs(100), 0);
        assert_eq!(bucket.arrears, 0);
    }

    #[test]
    fn bucket_stays_within_rate_and_burst() {
        for (rate, burst, shards) in
            [(1, 1, 1), (7, 3, 1), (1_000, 1, 1), (50_000, 10, 1), (3, 9, 16), (10_000, 100, 7)]
        {
            let mut bucket = bucket(rate, burst, shards);
            let (most, one) = (bucket.most, bucket.one);
            let (mut taken, mut now) = (0u64, 0);
            for step in [1, 1, 3, 250, 1, 999, 2, 10_000, 1, 1] {
                now += step;
                bucket.refill(EngineMs(now));
                while bucket.take() {
                    taken += 1;
                }
                assert!(
                    taken * one <= most + now * rate * 3_600,
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
