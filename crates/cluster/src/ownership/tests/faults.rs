//! Nodes that die, hang, are cut off; a coordinator that is away.

use std::sync::atomic::{AtomicU64, Ordering};

use duewheel_core::engine::Settled;
use duewheel_core::store::{Candidate, Node};
use duewheel_shard::clock::{Clock, ClockSample};
use duewheel_shard::error::Outcome;
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Longer than a busy machine keeps a thread from its turn; where leases end, the test ends them.
const LONG_LEASE: Duration = Duration::from_secs(10);

/// The machine's clock, on which the time by which hanging threads are found out can be made to pass.
#[derive(Clone, Debug, Default)]
struct HurriedClock(Arc<AtomicU64>);

impl Clock for HurriedClock {
    fn read(&self) -> ClockSample {
        SystemClock.read()
    }

    fn running(&self) -> Duration {
        SystemClock.running() + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }
}

/// Story: a store that hung for one shard of a node made the whole node `store_hangs`, without the name of the shard,
/// and took it out of service with all its other shards. Where several nodes have a shard at one master of Redis, that
/// was all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_store_is_reported_per_shard() {
    let coordinator = MemoryCoordinator::new(LEASE);
    let clock = HurriedClock::default();
    let policy = Policy { max_sleep_ms: 50, ..Policy::default() };
    let start = |name: &'static str| {
        let (route, clock) = (Arc::new(coordinator.for_a_node()), Arc::new(clock.clone()));
        Fleet::start(route, options(name), policy.clone(), clock)
    };
    let (a, b) = (start("a").await.unwrap(), start("b").await.unwrap());
    settled(&[&a, &b]).await;
    let shards = a.fleet.here();
    coordinator.hold_append(shards[1]);
    let (core, hung) = (a.fleet.clone(), shards[1]);
    let stuck =
        tokio::spawn(async move { core.submit(hung, vec![enqueue_op("stuck")], WhenBusy::Refuse).await });
    until("the shard is in its store", || coordinator.hangs()).await;
    clock.0.store(600, Ordering::SeqCst);
    // The others are late until their next round.
    let named = format!("shard {hung}: the store has not returned from a call for ");
    let hanging = |node: &Started| node.shared.health().hanging;
    until("the shard is named, alone", || hanging(&a).is_some_and(|why| why.starts_with(&named))).await;
    assert!(hanging(&a).unwrap().ends_with(&format!("that are served: {}", shards.len() - 1)));
    until("the node comes round", || a.shared.health().tick_age_ms < 5_000).await;
    until("the other node is well", || hanging(&b).is_none() && b.shared.health().tick_age_ms < 5_000).await;
    for (n, shard) in (0..8).map(ShardId).filter(|shard| *shard != hung).enumerate() {
        for (node, name) in [(&a, "a"), (&b, "b")] {
            enqueue(node, shard, &format!("{name} {n}")).await.unwrap();
        }
    }
    assert!(hanging(&b).is_none());
    coordinator.let_append();
    until("all is well", || hanging(&a).is_none()).await;
    let answers = stuck.await.unwrap();
    assert!(matches!(answers.as_slice(), [Ok(Reply::Enqueue(Ok(_)))]), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_of_killed_node_keep_messages() {
    let (coordinator, a, b) = pair().await;
    for shard in (0..8).map(ShardId) {
        enqueue(&b, shard, &format!("to be granted {shard}")).await.unwrap();
    }
    let mut grants = Vec::new();
    for shard in (0..8).map(ShardId) {
        grants.push(reserve(&b, shard, 1, 0).await.unwrap().remove(0));
        enqueue(&b, shard, &format!("waits {shard}")).await.unwrap();
    }
    kill(&coordinator, &a);
    settled(&[&b]).await;
    for (shard, grant) in (0..8).map(ShardId).zip(&grants) {
        let acked = ack(&b, shard, grant).await.unwrap();
        assert_eq!(acked, Reply::Settle(Ok(Settled::Acked.into())), "a lease outlives the node that gave it");
        let left = reserve(&b, shard, 2, 0).await.unwrap();
        assert_eq!(left.iter().map(body).collect::<Vec<_>>(), [format!("waits {shard}")]);
        assert!(left[0].token > grant.token, "tokens only grow");
    }
    // It comes again under its name, as another node, and gets what it had.
    let again = start(&coordinator, "a").await;
    assert!(again.fleet.core().me.number > b.fleet.core().me.number);
    settled(&[&again, &b]).await;
    assert!(b.fleet.figures()[2].1 > 0, "moves are counted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_shard_lease_starts_new_epoch() {
    let coordinator = MemoryCoordinator::new(LEASE);
    let a = start(&coordinator, "a").await;
    for round in 0..3 {
        for shard in (0..8).map(ShardId) {
            enqueue(&a, shard, &format!("{round} {shard}")).await.unwrap();
            coordinator.end_lease(shard);
        }
        // Each is refused by the old owner, and waits for the new one: the same node, in another reign.
        for shard in (0..8).map(ShardId) {
            let name = format!("{round} {shard} after");
            if let Err(error) = enqueue(&a, shard, &name).await {
                // The store had failed under it: that it was not applied is more than the driver can know.
                assert_eq!(error.outcome(), Outcome::Unknown, "{error:?}");
                enqueue(&a, shard, &name).await.unwrap();
            }
        }
    }
    for shard in (0..8).map(ShardId) {
        assert_eq!(reserve(&a, shard, 1, 0).await.unwrap().len(), 6);
    }
    assert!(a.shared.health().trouble.is_none());
    let epochs: Vec<u32> =
        coordinator.owners().unwrap().iter().map(|owner| owner.owner().unwrap().epoch.0).collect();
    assert!(epochs.iter().all(|epoch| *epoch >= 4), "{epochs:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owned_shards_survive_coordinator_outage() {
    let (coordinator, a, b) = pair().await;
    let before = coordinator.owners().unwrap();
    coordinator.go_away();
    until("both say so", || {
        let trouble =
            |node: &Started| node.shared.health().trouble.is_some_and(|t| t.contains("is not available"));
        trouble(&a) && trouble(&b)
    })
    .await;
    for shard in (0..8).map(ShardId) {
        enqueue(&a, shard, "from a").await.unwrap();
        enqueue(&b, shard, "from b").await.unwrap();
    }
    coordinator.come_back();
    until("all is well", || [&a, &b].iter().all(|node| node.shared.health().trouble.is_none())).await;
    settled(&[&a, &b]).await;
    assert_eq!(coordinator.owners().unwrap(), before, "no shard has moved, and no reign has ended");
}

/// Story: when one master of several did not answer, nothing was known of any shard, and those of a dead node stayed
/// without an owner, also where it was known that they had none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_known_unowned_shards_are_taken() {
    // On a machine that is busy for as long as a lease, b would lose what nobody knows of, and could not take it again.
    let coordinator = MemoryCoordinator::new(LONG_LEASE);
    let (a, b) = (start(&coordinator, "a").await, start(&coordinator, "b").await);
    settled(&[&a, &b]).await;
    let (of_a, of_b) = (a.fleet.here(), b.fleet.here());
    let hidden = [of_a[0], of_b[0]];
    coordinator.hide(&hidden);
    kill(&coordinator, &a);
    coordinator.end_time(a.fleet.core().me.number);
    let mut all: Vec<ShardId> =
        of_a.iter().chain(&of_b).copied().filter(|shard| *shard != hidden[0]).collect();
    all.sort_unstable();
    until("b has what is known, and keeps what it has", || b.fleet.here() == all).await;
    enqueue(&b, hidden[1], "it is served by its owner, whether others know or not").await.unwrap();
    until("it is said", || {
        b.shared.health().trouble.is_some_and(|why| {
            why.contains(&format!(
                "who owns shards {}, {}",
                hidden[0].min(hidden[1]),
                hidden[0].max(hidden[1])
            ))
        })
    })
    .await;
    assert_eq!(b.fleet.here(), all);
    let view = b.fleet.view();
    let unknown = view.shards.iter().filter(|shard| shard.unknown.is_some());
    assert!(unknown.eq(view.shards.iter().filter(|shard| hidden.contains(&shard.shard))));
    coordinator.hide(&[]);
    settled(&[&b]).await;
    until("all is well", || b.shared.health().trouble.is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn isolated_node_loses_shards_and_returns() {
    let (coordinator, a, b) = pair().await;
    let lost = a.fleet.here();
    let kept = b.fleet.here();
    for shard in &lost {
        enqueue(&a, *shard, "before").await.unwrap();
    }
    coordinator.cut_off(a.fleet.core().me.number);
    until("b has all of them", || b.fleet.here().len() == 8).await;
    for shard in &lost {
        let grants = reserve(&b, *shard, 1, 0).await.unwrap();
        assert_eq!(grants.len(), 1, "nothing was lost");
    }
    // The node that is cut off grants nothing of what it had, and says that nothing was applied; what others own it can
    // reach.
    let refused = enqueue(&a, lost[0], "while cut off").await.unwrap_err();
    assert_eq!(refused.outcome(), Outcome::NotApplied, "{refused:?}");
    assert!(refused.is_retryable() && matches!(refused, CallError::Store { .. }), "{refused:?}");
    enqueue(&a, kept[0], "while cut off").await.unwrap();
    assert!(enqueue(&b, lost[0], "while cut off").await.is_ok(), "and it was not applied");
    coordinator.let_in(a.fleet.core().me.number);
    settled(&[&a, &b]).await;
    enqueue(&a, lost[0], "after").await.unwrap();
    until("all is well", || a.shared.health().trouble.is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_name_is_unique_among_living() {
    let coordinator = MemoryCoordinator::new(LEASE);
    let a = start(&coordinator, "a").await;
    let taken = start_with(&coordinator, options("a")).await.unwrap_err();
    assert!(matches!(taken, FleetError::NameTaken(_)), "{taken}");
    assert!(taken.to_string().contains("\"a\""), "{taken}");
    kill(&coordinator, &a);
    let again = start(&coordinator, "a").await;
    assert_eq!(again.fleet.here().len(), 8);
    // Somebody else takes the name while it is cut off.
    let number = again.fleet.core().me.number;
    coordinator.cut_off(number);
    let candidate = Candidate {
        name: "a".into(),
        advertise: "127.0.0.1:1".into(),
        shards_if_new: 1,
        settle_delay: Duration::ZERO,
    };
    let mut other = None;
    until("the name is free", || {
        other = coordinator.join(&candidate).ok();
        other.is_some()
    })
    .await;
    coordinator.let_in(number);
    let DriverEnd::Fenced(why) = again.shared.ended().await else { panic!("it went on") };
    assert!(why.contains("another node has taken the name \"a\""), "{why}");
    assert!(enqueue(&again, ShardId(0), "x").await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_without_address_excludes_others() {
    let alone = FleetOptions { advertise: None, ..options("alone") };
    let coordinator = MemoryCoordinator::new(LEASE);
    let a = start_with(&coordinator, alone.clone()).await.unwrap();
    assert_eq!(a.fleet.here().len(), 8);
    enqueue(&a, ShardId(3), "x").await.unwrap();
    let refused = start_with(&coordinator, options("b")).await.unwrap_err();
    assert!(matches!(&refused, FleetError::OtherIsAlone(name) if name == "alone"), "{refused}");
    assert_eq!(stop(&a).await, DriverEnd::Stopped);
    let b = start(&coordinator, "b").await;
    let refused = start_with(&coordinator, alone).await.unwrap_err();
    assert!(matches!(&refused, FleetError::NotAlone(name) if name == "b"), "{refused}");
    settled(&[&b]).await;
    assert_eq!(reserve(&b, ShardId(3), 1, 0).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_member_leaves_lone_node_unchanged() {
    let coordinator = MemoryCoordinator::new(LEASE);
    let a = start_with(&coordinator, FleetOptions { advertise: None, ..options("alone") }).await.unwrap();
    let candidate = Candidate {
        name: "b".into(),
        advertise: "127.0.0.1:1".into(),
        shards_if_new: 1,
        settle_delay: Duration::ZERO,
    };
    let b: Node = coordinator.join(&candidate).unwrap().node;
    until("it says so", || {
        drop(coordinator.beat(&b));
        a.shared.health().trouble.is_some_and(|trouble| trouble.contains("--advertise"))
    })
    .await;
    assert_eq!(a.fleet.here().len(), 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shard_panic_ends_node_others_continue() {
    let (coordinator, a, b) = pair().await;
    for shard in (0..8).map(ShardId) {
        enqueue(&b, shard, "before").await.unwrap();
    }
    let shard = a.fleet.here()[0];
    coordinator.panic_at(shard);
    let unknown = enqueue(&a, shard, "x").await.unwrap_err();
    assert_eq!(unknown.outcome(), Outcome::Unknown, "{unknown:?}");
    let DriverEnd::Failed(why) = a.shared.ended().await else { panic!("it went on") };
    assert!(why.contains("a bug in duewheel"), "{why}");
    coordinator.panic_at(ShardId(u32::MAX));
    settled(&[&b]).await;
    for shard in (0..8).map(ShardId) {
        let grants = reserve(&b, shard, 1, 0).await.unwrap();
        assert!(grants.iter().any(|grant| body(grant) == "before"));
    }
}

/// Passes everything on between nodes, until it is told not to.
struct Wire {
    address: String,
    cut: Arc<std::sync::atomic::AtomicBool>,
}

impl Wire {
    /// A way to a node that will listen at `to`.
    async fn to(to: String) -> Wire {
        use std::sync::atomic::Ordering::SeqCst;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let cut = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let is_cut = cut.clone();
        tokio::spawn(async move {
            loop {
                let Ok((mut a, _)) = listener.accept().await else { continue };
                let (to, is_cut) = (to.clone(), is_cut.clone());
                tokio::spawn(async move {
                    if is_cut.load(SeqCst) {
                        return;
                    }
                    let Ok(mut b) = TcpStream::connect(to).await else { return };
                    let cut = async {
                        while !is_cut.load(SeqCst) {
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                    };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut a, &mut b) => {}
                        () = cut => {}
                    }
                });
            }
        });
        Wire { address, cut }
    }

    fn cut(&self) {
        self.cut.store(true, std::sync::atomic::Ordering::SeqCst);
    }

    fn mend(&self) {
        self.cut.store(false, std::sync::atomic::Ordering::SeqCst);
    }
}

/// A port that is free at the moment.
async fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn network_split_yields_unknown_and_heals() {
    let coordinator = MemoryCoordinator::new(LEASE);
    let behind = free_address().await;
    let wire = Wire::to(behind.clone()).await;
    let options_a =
        FleetOptions { advertise: Some(wire.address.clone()), bind: Some(behind), ..options("a") };
    let a = start_with(&coordinator, options_a).await.unwrap();
    let b = start(&coordinator, "b").await;
    settled(&[&a, &b]).await;
    let far = a.fleet.here()[0];
    enqueue(&b, far, "before").await.unwrap();
    // A reserve that waits, and may have been granted something: nobody knows.
    let waits = tokio::spawn({
        let fleet = b.fleet.clone();
        async move { fleet.submit(far, vec![reserve_op(5, 60_000)], WhenBusy::Refuse).await.pop().unwrap() }
    });
    // It takes what is there; the next one waits.
    assert!(waits.await.unwrap().is_ok());
    let pending = b.fleet.submit(far, vec![reserve_op(6, 60_000)], WhenBusy::Refuse);
    until("it is under way", || a.fleet.core().routes.here(far).is_some_and(|inbox| inbox.is_empty())).await;
    // What was asked after it has been answered, so it has arrived.
    call(&b, far, Op::Stats).await.unwrap();
    wire.cut();
    let lost = pending.await.pop().unwrap().unwrap_err();
    assert_eq!(lost.outcome(), Outcome::Unknown, "{lost:?}");
    assert!(lost.is_retryable(), "{lost:?}");
    let refused = enqueue(&b, far, "while cut").await.unwrap_err();
    assert_eq!(refused.outcome(), Outcome::NotApplied, "{refused:?}");
    // Whoever asks the owner itself is served, and the wait of the one that is gone takes nothing.
    enqueue(&a, far, "for a").await.unwrap();
    assert_eq!(reserve(&a, far, 1, 0).await.unwrap().iter().map(body).collect::<Vec<_>>(), ["for a"]);
    wire.mend();
    until("the way is there again", || {
        let routes = &b.fleet.core().routes;
        matches!(routes.route(far), crate::forwarding::routes::ShardRoute::There(peer) if peer.is_up())
    })
    .await;
    enqueue(&b, far, "after").await.unwrap();
}
