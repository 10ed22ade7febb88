//! Leases of connections, as beanstalkd's protocol wants them.

use std::time::Duration;

use duewheel_core::engine::{Op, Proof, Reply, Reserve, Reserved};
use duewheel_core::id::{MessageId, SessionId};
use duewheel_shard::client::Client;
use duewheel_shard::inbox::Pending;

use super::rig::*;

const MARGIN: u64 = 1_000;

fn wanted(session: SessionId, wait_ms: u64) -> Reserve {
    Reserve { session, deadline_margin_ms: Some(MARGIN), lease_ms: Some(10_000), ..demand("q", 1, wait_ms) }
}

fn waiting(client: &Client, session: SessionId) -> Pending {
    let reserve = Reserve {
        waiter: client.new_waiter(),
        queues: vec![queue("q")],
        max: 1,
        max_bytes: usize::MAX,
        wait_ms: u64::MAX,
        lease_ms: None,
        session,
        max_of: Vec::new(),
        max_attempts: None,
        deadline_margin_ms: Some(MARGIN),
    };
    client.submit(vec![Op::Reserve(reserve)]).unwrap()
}

async fn reserved(rig: &Rig, session: SessionId, wait_ms: u64) -> Reserved {
    rig.client.reserve(wanted(session, wait_ms)).await.unwrap()
}

async fn lease(rig: &Rig, session: SessionId) -> MessageId {
    match reserved(rig, session, 0).await {
        Reserved::Grants(grants) if grants.len() == 1 => grants[0].message.id,
        other => panic!("{other:?}"),
    }
}

fn is_empty(reserved: &Reserved) -> bool {
    matches!(reserved, Reserved::Grants(grants) if grants.is_empty())
}

#[tokio::test]
async fn session_is_warned_of_lease_end() {
    let rig = rig(4);
    let session = rig.client.new_session();
    for n in 0..2 {
        rig.put("q", &n.to_string()).await;
    }
    let first = lease(&rig, session).await;
    rig.pass(2_000);
    let second = lease(&rig, session).await;
    let deadline = Op::SessionDeadline { session };
    assert_eq!(rig.call(deadline.clone()).await, Reply::Deadline(Some(8_000)));
    assert!(is_empty(&reserved(&rig, session, 0).await));
    rig.pass(6_999);
    assert!(is_empty(&reserved(&rig, session, 0).await), "9 s of the first are over, less a ms");
    rig.pass(1);
    assert_eq!(reserved(&rig, session, 0).await, Reserved::DeadlineSoon);
    assert_eq!(reserved(&rig, session, 5_000).await, Reserved::DeadlineSoon);
    assert!(is_empty(&reserved(&rig, rig.client.new_session(), 0).await), "another one's leases");
    // A message goes before the warning.
    rig.put("q", "more").await;
    let third = lease(&rig, session).await;

    let proof = Proof::Session(session);
    assert!(matches!(rig.call(Op::Ack { id: first, proof, result: None }).await, Reply::Settle(Ok(_))));
    assert_eq!(rig.call(deadline.clone()).await, Reply::Deadline(Some(3_000)));
    assert!(is_empty(&reserved(&rig, session, 0).await));
    // While it waits.
    let client = rig.client.clone();
    let demand = wanted(session, 60_000);
    let waits = tokio::spawn(async move { client.reserve(demand).await.unwrap() });
    until("it waits", || rig.local.asked("wait") >= 4).await;
    rig.pass(2_000);
    assert_eq!(waits.await.unwrap(), Reserved::DeadlineSoon);
    let touch = Op::Extend { id: second, proof, lease_ms: Some(20_000) };
    assert!(matches!(rig.call(touch).await, Reply::Extend(Ok(_))));
    assert!(is_empty(&reserved(&rig, session, 0).await));
    rig.pass(7_000);
    assert_eq!(reserved(&rig, session, 0).await, Reserved::DeadlineSoon, "the third one");
    assert!(matches!(rig.call(Op::Delete { id: third, session }).await, Reply::Settle(Ok(_))));
    assert!(is_empty(&reserved(&rig, session, 0).await));
}

#[tokio::test]
async fn settled_lease_causes_no_deadline_warning() {
    let rig = rig(4);
    let session = rig.client.new_session();
    rig.put("q", "x").await;
    let id = lease(&rig, session).await;
    rig.pass(9_500);
    // Another node has passed this on.
    let shard = duewheel_core::ShardId::of(id, 4);
    let ack = Op::Ack { id, proof: Proof::Session(session), result: None };
    rig.local.client(shard.0).call(ack).await.unwrap();
    assert!(is_empty(&reserved(&rig, session, 0).await));
    let client = rig.client.clone();
    let demand = wanted(session, 2_000);
    let waits = tokio::spawn(async move { client.reserve(demand).await.unwrap() });
    until("it waits", || rig.local.asked("wait") == 4).await;
    rig.pass(2_000);
    assert!(is_empty(&waits.await.unwrap()));
}

#[tokio::test]
async fn closed_session_returns_leases_and_waits() {
    let rig = rig(4);
    let session = rig.client.new_session();
    for n in 0..8 {
        rig.put("q", &n.to_string()).await;
    }
    for _ in 0..8 {
        lease(&rig, session).await;
    }
    let waits = waiting(&rig.client, session);
    assert_eq!(rig.call(Op::SessionClosed { session }).await, Reply::Done);
    let answer = waits.await.pop().unwrap().unwrap();
    assert_eq!(answer, Reply::Reserve(Reserved::Grants(vec![])));
    let grants = rig.reserve(demand("q", 10, 0)).await;
    assert_eq!(grants.len(), 8);
    assert!(grants.iter().all(|grant| grant.attempt == 2), "they were in its hands");
    assert_eq!(rig.call(Op::SessionDeadline { session }).await, Reply::Deadline(None));
}

#[tokio::test]
async fn session_end_reaches_only_relevant_shards() {
    let rig = rig(8);
    let session = rig.client.new_session();
    rig.call(Op::SessionClosed { session }).await;
    assert_eq!(rig.local.asked("closed"), 0);
    let id = rig.put_at(5, "q", "x").await;
    let one = Op::ReserveOne { id, session, lease_ms: None };
    assert!(matches!(rig.call(one).await, Reply::ReserveOne(Ok(_))));
    rig.call(Op::SessionClosed { session }).await;
    assert_eq!(rig.local.asked_each("closed"), [0, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(rig.reserve(demand("q", 1, 0)).await[0].attempt, 2);
}

/// Story: a client disconnected while a shard took its time. Its reserve went on to the next shard, which made an entry
/// of the session that nothing removed until the node ended.
#[tokio::test]
async fn closed_session_leaves_no_entry() {
    let rig = rig(4);
    let session = rig.client.new_session();
    for shard in 0..4 {
        rig.local.set(shard, Mood::Slow(Duration::from_millis(50)));
    }
    let pending = rig.client.submit(vec![Op::Reserve(wanted(session, 0))]).unwrap();
    until("a shard is asked", || rig.local.asked("reserve") > 0).await;
    rig.call(Op::SessionClosed { session }).await;
    pending.await;
    assert_eq!(rig.local.asked("reserve"), 4);
    let closed = rig.local.asked("closed");
    rig.call(Op::SessionClosed { session }).await;
    assert_eq!(rig.local.asked("closed"), closed, "no shard is known");
}

#[tokio::test]
async fn unavailable_shard_gets_session_end_later() {
    let rig = rig(2);
    let session = rig.client.new_session();
    rig.put_at(1, "q", "x").await;
    lease(&rig, session).await;
    rig.local.set(1, Mood::Away);
    assert_eq!(rig.call(Op::SessionClosed { session }).await, Reply::Done, "nobody waits for it");
    let before = rig.local.asked("closed");
    until("it was tried again", || rig.local.asked("closed") > before).await;
    rig.local.set(1, Mood::Well);
    let grants = tokio::time::timeout(Duration::from_secs(60), rig.reserve(demand("q", 1, 3_600_000))).await;
    assert_eq!(grants.unwrap()[0].attempt, 2);
}
