//! Arithmetic of random numbers. The caller chooses their source: a seed, a hash, the system.
//!
//! Results are a function of the arguments alone, and never change between versions: recorded seeds, the delays of
//! messages and the dates of occurrences depend on them.
//!
//! The delay of a message within its spread is a hash of its name, so that it is the same each time.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::id::MessageId;
use crate::name::{Key, QueueName};

/// The increment of [`SplitMix64`]: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A sequence of random numbers from a seed: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014).
///
/// ```
/// use duewheel_core::random::SplitMix64;
/// let mut numbers = SplitMix64::new(1_234_567);
/// assert_eq!(numbers.next(), 6_457_827_717_110_365_317);
/// assert_eq!(numbers.next(), 3_203_168_211_198_807_973);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        SplitMix64(seed)
    }

    /// The sequence of this seed behind its first `n` numbers.
    pub fn after(seed: u64, n: u64) -> Self {
        SplitMix64(seed.wrapping_add(n.wrapping_mul(STEP)))
    }

    /// The next number.
    #[allow(clippy::should_implement_trait)] // the sequence has no end
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mixed(self.0)
    }
}

/// A number all of whose bits depend on all bits of `n`: the output function of [`SplitMix64`].
pub fn mixed(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// A number from 0 to `most`, evenly distributed if `random` is: 0 gives 0, and the largest number gives `most`.
///
/// ```
/// use duewheel_core::random::scaled;
/// assert_eq!((scaled(0, 10), scaled(u64::MAX / 2, 10), scaled(u64::MAX, 10)), (0, 5, 10));
/// ```
pub fn scaled(random: u64, most: u64) -> u64 {
    let product = u128::from(random) * (u128::from(most) + 1);
    u64::try_from(product >> 64).unwrap_or(most)
}

/// The name whose hash gives the delay, besides the queue: the same name gives the same delay at each attempt to
/// enqueue, on each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpreadBy<'a> {
    /// The key of the message.
    Key(&'a Key),
    /// The dedupe id of the enqueue, for a message without a key.
    DedupeId(&'a str),
    /// The message itself, if it has neither.
    Id(MessageId),
}

/// The ms from 0 to `spread_ms` by which a message is due later than it was asked for, evenly distributed over names.
///
/// ```
/// use duewheel_core::{Key, QueueName, random::{SpreadBy, offset_ms}};
/// let (sms, key) = (QueueName::new("sms")?, Key::new("order-42")?);
/// let drawn = offset_ms(&sms, SpreadBy::Key(&key), 3_600_000);
/// assert!(drawn <= 3_600_000);
/// assert_eq!(offset_ms(&sms, SpreadBy::Key(&key), 3_600_000), drawn);
/// assert_eq!(offset_ms(&sms, SpreadBy::Key(&key), 0), 0);
/// # Ok::<(), duewheel_core::name::BadName>(())
/// ```
pub fn offset_ms(queue: &QueueName, by: SpreadBy<'_>, spread_ms: u64) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&xxh3_64(queue.as_str().as_bytes()).to_le_bytes());
    match by {
        SpreadBy::Key(key) => hash.update(key.as_str().as_bytes()),
        SpreadBy::DedupeId(id) => hash.update(id.as_bytes()),
        SpreadBy::Id(id) => hash.update(&id.0.to_le_bytes()),
    }
    scaled(hash.digest(), spread_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_be_left_out() {
        let mut all = SplitMix64::new(7);
        for _ in 0..3 {
            all.next();
        }
        assert_eq!(SplitMix64::after(7, 3), all);
    }

    #[test]
    fn spread_offsets_are_evenly_distributed() {
        let queue = QueueName::new("campaign").unwrap();
        let mut tenths = [0u32; 10];
        for n in 0..100_000u64 {
            let key = Key::new(&format!("customer-{n}")).unwrap();
            let drawn = offset_ms(&queue, SpreadBy::Key(&key), 999);
            tenths[usize::try_from(drawn / 100).unwrap()] += 1;
        }
        assert!(tenths.iter().all(|&n| (9_500..10_500).contains(&n)), "{tenths:?}");
        let ids: Vec<u64> = (1..100).map(|id| offset_ms(&queue, SpreadBy::Id(MessageId(id)), 1)).collect();
        assert!(ids.contains(&0) && ids.contains(&1), "both ends are in it");
        assert_eq!(
            offset_ms(&queue, SpreadBy::DedupeId("a"), u64::MAX),
            offset_ms(&queue, SpreadBy::DedupeId("a"), u64::MAX)
        );
    }
}
