//! Several nodes in one process, on a coordinator in memory: real leases, real connections.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a panic is a failed test; numbers are small
#![allow(clippy::disallowed_methods)] // leases are real, and so is the time that they take

mod basics;
mod events;
mod faults;
mod flaps;
mod load;
mod talk;
mod waits;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use duewheel_core::engine::{Enqueue, Enqueued, Grant, Op, Proof, Reply, Reserve, Reserved, WaiterId};
use duewheel_core::id::{SessionId, ShardId};
use duewheel_core::name::{Key, QueueName};
use duewheel_core::policy::Policy;
use duewheel_core::store::{Coordinator, Ownership};
use duewheel_shard::clock::SystemClock;
use duewheel_shard::error::CallError;
use duewheel_shard::inbox::{Admission, WhenBusy};
use duewheel_shard::shared::{DriverEnd, ThreadCommand};

use crate::ownership::core::FleetError;
use crate::ownership::core::ShardStage;
use crate::ownership::member::{Fleet, FleetOptions, Started};
use crate::routing::Shards;
use crate::testing::MemoryCoordinator;
use crate::transport::wire::{NEXT, SupportedVersions};

/// Long enough for a busy machine, short enough for a test to wait it out.
const LEASE: Duration = Duration::from_millis(1_000);

fn options(name: &str) -> FleetOptions {
    FleetOptions {
        name: name.to_owned(),
        advertise: Some("127.0.0.1:0".to_owned()),
        bind: None,
        certificates: None,
        speaks: SupportedVersions::default(),
        shards_if_new: 8,
        settle_delay: Duration::ZERO,
        seed: Some(1),
        quotas: Default::default(),
    }
}

async fn start_with(coordinator: &MemoryCoordinator, options: FleetOptions) -> Result<Started, FleetError> {
    start_by(coordinator, options, Policy::default()).await
}

async fn start_by(
    coordinator: &MemoryCoordinator,
    options: FleetOptions,
    policy: Policy,
) -> Result<Started, FleetError> {
    let policy = Policy { max_sleep_ms: 50, ..policy };
    Fleet::start(Arc::new(coordinator.for_a_node()), options, policy, Arc::new(SystemClock)).await
}

async fn start(coordinator: &MemoryCoordinator, name: &str) -> Started {
    start_with(coordinator, options(name)).await.unwrap()
}

/// Two nodes, `a` and `b`, that have shared the shards between them.
async fn pair() -> (MemoryCoordinator, Started, Started) {
    let coordinator = MemoryCoordinator::new(LEASE);
    let a = start(&coordinator, "a").await;
    let b = start(&coordinator, "b").await;
    settled(&[&a, &b]).await;
    (coordinator, a, b)
}

/// Ends it as a wheel that is shut down does.
async fn stop(node: &Started) -> DriverEnd {
    node.inbox.close_door(Admission::Draining);
    node.shared.wish(ThreadCommand::EndWaits, &node.inbox);
    node.inbox.close_door(Admission::Closed(CallError::Draining));
    node.shared.wish(ThreadCommand::Stop, &node.inbox);
    node.shared.ended().await
}

/// Ends it as `kill -9` does.
fn kill(coordinator: &MemoryCoordinator, node: &Started) {
    coordinator.cut_off(node.fleet.core().me.number);
    node.fleet.kill();
}

/// Polls until `done`, with a deadline.
async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until the nodes own all shards among them, as many each as they should, and each knows the way to every one.
async fn settled(nodes: &[&Started]) {
    let count = nodes[0].fleet.count() as usize;
    until("every shard has its owner, and every node knows", || {
        let owned: Vec<usize> = nodes.iter().map(|node| node.fleet.here().len()).collect();
        let balanced = owned.iter().all(|n| n.abs_diff(count / nodes.len()) <= 1);
        balanced
            && owned.iter().sum::<usize>() == count
            && nodes.iter().all(|node| node.fleet.core().routes.lost() == 0)
    })
    .await;
}

/// A node that does not own the shard.
fn stranger_to<'a>(nodes: &[&'a Started], shard: ShardId) -> &'a Started {
    nodes.iter().find(|node| !node.fleet.here().contains(&shard)).unwrap()
}

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

async fn call(node: &Started, shard: ShardId, op: Op) -> Result<Reply, CallError> {
    node.fleet.submit(shard, vec![op], WhenBusy::Refuse).await.pop().unwrap()
}

fn enqueue_op(body: &str) -> Op {
    let key = Some(Key::new(body).unwrap());
    Op::Enqueue(Box::new(Enqueue { key, ..Enqueue::new(queue(), Bytes::copy_from_slice(body.as_bytes())) }))
}

async fn enqueue(node: &Started, shard: ShardId, body: &str) -> Result<Enqueued, CallError> {
    match call(node, shard, enqueue_op(body)).await? {
        Reply::Enqueue(Ok(enqueued)) => Ok(enqueued),
        other => panic!("{other:?}"),
    }
}

fn reserve_op(waiter: u64, wait_ms: u64) -> Op {
    Op::Reserve(Reserve {
        waiter: WaiterId(waiter),
        queues: vec![queue()],
        max: 10,
        max_bytes: usize::MAX,
        wait_ms,
        lease_ms: Some(60_000),
        session: SessionId::NONE,
        max_of: Vec::new(),
        max_attempts: None,
        deadline_margin_ms: None,
    })
}

async fn reserve(node: &Started, shard: ShardId, waiter: u64, wait_ms: u64) -> Result<Vec<Grant>, CallError> {
    match call(node, shard, reserve_op(waiter, wait_ms)).await? {
        Reply::Reserve(Reserved::Grants(grants)) => Ok(grants),
        other => panic!("{other:?}"),
    }
}

async fn ack(node: &Started, shard: ShardId, grant: &Grant) -> Result<Reply, CallError> {
    call(node, shard, Op::Ack { id: grant.message.id, proof: Proof::Token(grant.token), result: None }).await
}

fn body(grant: &Grant) -> String {
    String::from_utf8(grant.message.body.to_vec()).unwrap()
}
