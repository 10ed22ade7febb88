//! Partition: the shard of each operation.
//!
//! | operation | shard |
//! |---|---|
//! | on an id | [`ShardId::of`] the id |
//! | on a key, and the enqueue of a message with one | XXH3-64 of queue, a zero byte, key; modulo the number of shards |
//! | the enqueue of a message without a key, with a `dedupe_id` | the same, of queue, a zero byte, `dedupe_id` |
//! | the enqueue of a message without both, of a row of an outbox | the same, of the source, a zero byte, id of the row |
//! | any other enqueue | any shard; those of this node first |
//! | on a queue, on a session, on everything | all |
//! | for the events of a shard | the shard that it names |
//!
//! Messages are stored where this function has put them, so it must never change. One consequence: a `dedupe_id` is
//! known only in its shard, so one that is used with two keys, or once with a key and once without, may stand for two
//! messages.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use duewheel_core::engine::{Named, Op, Routing};
use duewheel_core::id::{LeaseToken, MessageId, ShardId};
use duewheel_core::name::QueueName;
use xxhash_rust::xxh3::Xxh3;

/// The shards to which an operation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// A single shard takes the operation.
    To(ShardId),
    /// Any shard.
    Any,
    /// Several shards, whose answers are merged.
    Many,
    /// No shard: the operation is about connections of this node.
    Node,
}

/// The shards to which an operation goes, out of this number of shards.
pub(crate) fn placement(op: &Op, shards: u32) -> Placement {
    match op.operation().routing {
        Routing::Message => match op.names() {
            Named::Id(id) => Placement::To(ShardId::of(id, shards)),
            Named::Key(queue, key) => Placement::To(of_name(queue, key.as_str(), shards)),
            Named::Nothing => match op.dedupe_id().or_else(|| op.row()) {
                Some((queue, id)) => Placement::To(of_name(queue, id, shards)),
                None => Placement::Any,
            },
        },
        Routing::Leases => match by_shard(op.leases(), shards).as_slice() {
            [(shard, _)] => Placement::To(*shard),
            _ => Placement::Many,
        },
        Routing::All => Placement::Many,
        Routing::Node => Placement::Node,
        Routing::Shard => Placement::To(ShardId(op.shard().unwrap_or_default().0 % shards.max(1))),
    }
}

/// The shard of a queue's key or `dedupe_id`.
pub(crate) fn of_name(queue: &QueueName, name: &str, shards: u32) -> ShardId {
    let mut hash = Xxh3::new();
    hash.update(queue.as_str().as_bytes());
    hash.update(&[0]);
    hash.update(name.as_bytes());
    let shard = hash.digest() % u64::from(shards.max(1));
    ShardId(u32::try_from(shard).unwrap_or(0))
}

/// Leases, sorted by shard.
pub(crate) type Leases = Vec<(MessageId, LeaseToken)>;

/// Sorts leases by their shards.
pub(crate) fn by_shard(leases: &[(MessageId, LeaseToken)], shards: u32) -> Vec<(ShardId, Leases)> {
    let mut sorted: Vec<(ShardId, Leases)> = Vec::new();
    for &lease in leases {
        let shard = ShardId::of(lease.0, shards);
        match sorted.iter_mut().find(|(of, _)| *of == shard) {
            Some((_, leases)) => leases.push(lease),
            None => sorted.push((shard, vec![lease])),
        }
    }
    sorted
}

/// How long a shard that has refused is not asked again.
const LATELY: Duration = Duration::from_millis(100);
/// The largest number of refusals that are remembered.
const MOST: usize = 10_000;

/// Which shards have refused messages of which tenant, and until when they are not asked.
#[derive(Debug, Default)]
pub(crate) struct ExhaustedShards(Mutex<BTreeMap<(Box<str>, ShardId), u64>>);

impl ExhaustedShards {
    pub(super) fn note(&self, quota: &str, shard: ShardId, now: u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.retain(|_, until| *until > now);
        }
        if all.len() < MOST {
            let until = now.saturating_add(u64::try_from(LATELY.as_nanos()).unwrap_or(u64::MAX));
            all.insert((quota.into(), shard), until);
        }
    }

    pub(super) fn has(&self, quota: &str, shard: ShardId, now: u64) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&(quota.into(), shard)).is_some_and(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use duewheel_core::Key;
    use duewheel_core::engine::{Enqueue, SourceRow, Target};

    use super::*;

    fn queue(name: &str) -> QueueName {
        QueueName::stored(name).unwrap()
    }

    #[test]
    fn shard_of_name_never_changes() {
        let shards = |n| ["", "k", "order-42", "über"].map(|name| of_name(&queue("q"), name, n).0);
        assert_eq!(shards(1), [0; 4]);
        assert_eq!(shards(16), [11, 9, 2, 11], "data lies where these numbers say");
        assert_eq!(of_name(&queue("a"), "bc", 1 << 31), of_name(&queue("a"), "bc", 1 << 31));
        assert_ne!(of_name(&queue("a"), "bc", 1 << 31), of_name(&queue("ab"), "c", 1 << 31));
    }

    #[test]
    fn keyed_message_has_stable_placement() {
        for n in 0..100 {
            let key = Key::new(&format!("key-{n}")).unwrap();
            let put = Enqueue {
                key: Some(key.clone()),
                dedupe_id: Some("d".into()),
                ..Enqueue::new(queue("q"), "")
            };
            let get = Op::Get { target: Target::Key(queue("q"), key) };
            assert_eq!(placement(&Op::Enqueue(Box::new(put)), 7), placement(&get, 7));
        }
        let any = Op::Enqueue(Box::new(Enqueue::new(queue("q"), "")));
        assert_eq!(placement(&any, 7), Placement::Any);
        let row = SourceRow { source: queue("#outbox"), id: "7".into() };
        assert_eq!(placement(&any.once(row), 7), Placement::To(of_name(&queue("#outbox"), "7", 7)));
        assert_eq!(
            placement(&Op::Redrive { id: MessageId(9), delay_ms: None, died: None }, 7),
            Placement::To(ShardId(1))
        );
    }

    #[test]
    fn names_are_spread_evenly() {
        let mut counts = [0; 16];
        for n in 0..16_000 {
            counts[of_name(&queue("orders"), &format!("order-{n}"), 16).0 as usize] += 1;
        }
        assert!(counts.iter().all(|n| (850..1150).contains(n)), "{counts:?}");
    }
}

#[cfg(test)]
mod used_up_tests {
    use super::*;

    #[test]
    fn exhausted_shard_is_skipped_briefly() {
        let (used_up, lately) = (ExhaustedShards::default(), 100_000_000);
        used_up.note("a", ShardId(1), 1_000);
        assert!(used_up.has("a", ShardId(1), 1_000) && used_up.has("a", ShardId(1), 999 + lately));
        assert!(!used_up.has("a", ShardId(1), 1_000 + lately));
        assert!(!used_up.has("a", ShardId(2), 1_000) && !used_up.has("b", ShardId(1), 1_000));
        for n in 0..2 * MOST {
            used_up.note(&format!("{n}"), ShardId(0), 1_000);
        }
        assert_eq!(used_up.0.lock().unwrap().len(), MOST, "bounded");
        used_up.note("late", ShardId(0), 1_000 + lately);
        assert!(used_up.has("late", ShardId(0), 1_000 + lately), "old ones make room");
    }
}
