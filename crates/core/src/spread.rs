//! The delay of a message within its spread: a hash of its name, so that it is the same each time.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::id::MessageId;
use crate::name::{Key, QueueName};
use crate::random::scaled;

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
/// use duewheel_core::{Key, QueueName, spread::{SpreadBy, offset_ms}};
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
