//! The router and the table of operations agree.

use std::collections::BTreeMap;

use duewheel_core::engine::{Named, Op, Routing};
use duewheel_core::id::ShardId;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use super::rig::*;
use crate::routing::partition::of_name;
use crate::transport::wire::samples;

const SHARDS: u32 = 3;
/// Samples of each operation.
const EACH: usize = 6;
/// These ask as many shards as it takes, or those at which a session may have leases.
const AS_NEEDED: [&str; 5] = ["reserve", "fire_many", "redrive_many", "session_closed", "session_deadline"];

/// Some of each operation, by the name in its row.
fn some_of_each() -> BTreeMap<&'static str, Vec<Op>> {
    let mut runner = TestRunner::deterministic();
    let mut all: BTreeMap<&'static str, Vec<Op>> = BTreeMap::new();
    for _ in 0..4_000 {
        let mut op = samples::op().new_tree(&mut runner).unwrap().current();
        match &mut op {
            Op::Reserve(reserve) => reserve.wait_ms = 0,
            // A place in the listing of one shard is none in that of several.
            Op::List { after, .. } => *after = None,
            // None are asked for no queues.
            Op::Queues { limit, .. } => *limit = (*limit).max(1),
            _ => {}
        }
        let of = all.entry(op.operation().name).or_default();
        if of.len() < EACH {
            of.push(op);
        }
    }
    all
}

#[tokio::test]
async fn operations_are_routed_as_declared() {
    let rig = rig(SHARDS);
    let samples = some_of_each();
    assert_eq!(samples.len(), 42);
    for op in samples.into_values().flatten() {
        let before = rig.local.all_asked();
        let answer = rig.client.call(op.clone()).await;
        assert!(answer.is_ok(), "{op:?}: {answer:?}");
        let now = rig.local.all_asked();
        let asked: Vec<u32> = (0..SHARDS).filter(|&n| now[n as usize] > before[n as usize]).collect();
        let operation = op.operation();
        match operation.routing {
            Routing::Message => match op.names() {
                Named::Id(id) => assert_eq!(asked, [ShardId::of(id, SHARDS).0], "{op:?}"),
                Named::Key(queue, key) => {
                    assert_eq!(asked, [of_name(queue, key.as_str(), SHARDS).0], "{op:?}");
                }
                Named::Nothing => assert_eq!(asked.len(), 1, "{op:?}"),
            },
            Routing::Leases => {
                let mut wanted: Vec<u32> =
                    op.leases().iter().map(|(id, _)| ShardId::of(*id, SHARDS).0).collect();
                wanted.sort_unstable();
                wanted.dedup();
                assert_eq!(asked, wanted, "{op:?}");
            }
            Routing::All if AS_NEEDED.contains(&operation.name) => {}
            Routing::All => assert_eq!(asked, [0, 1, 2], "{op:?}"),
            Routing::Node => assert!(asked.is_empty(), "{op:?}"),
            Routing::Shard => assert_eq!(asked, [op.shard().unwrap().0 % SHARDS], "{op:?}"),
        }
    }
}
