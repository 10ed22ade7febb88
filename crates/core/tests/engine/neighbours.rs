//! What one queue may cost the others: memory for ready messages, pages, leases, and work per step. The tests count;
//! none looks at a clock.

use std::sync::Arc;

use duewheel_core::engine::*;
use duewheel_core::policy::Policy;
use duewheel_core::store::Capacity;
use duewheel_core::store::{Load, Which};

use crate::harness::*;

/// Puts a message of so many bytes, due at once, and does nothing else.
fn put_raw(rig: &mut Rig, name: &str, bytes: usize) {
    let e = Enqueue { body: vec![b'x'; bytes].into(), ..message(name, 0) };
    let (to, _) = rig.raw(Op::Enqueue(Box::new(e)));
    assert!(matches!(rig.reply(to), Some(Reply::Enqueue(Ok(_)))));
}

fn ack_all(rig: &mut Rig, grants: &[Grant]) {
    for grant in grants {
        rig.raw(Op::Ack { id: grant.message.id, proof: grant.token.into(), result: None });
    }
}

/// Takes and acks up to `max` at a time until nothing comes; how many came.
fn drain(rig: &mut Rig, name: &str, max: usize) -> usize {
    let mut drained = 0;
    loop {
        let grants = rig.reserve(name, max);
        if grants.is_empty() {
            return drained;
        }
        drained += grants.len();
        ack_all(rig, &grants);
    }
}

fn stats(rig: &mut Rig) -> Stats {
    match rig.call(Op::Stats) {
        Reply::Stats(stats) => *stats,
        other => panic!("{other:?}"),
    }
}

/// Story: beside 25,000 queues with one ready message each, a busy queue had four rows a page, and one consumer drained
/// it sixteen times slower than alone.
#[test]
fn busy_queue_loads_in_large_pages() {
    let mut rig = Rig::new(Policy { ready_messages: 40_000, ..Policy::default() });
    for n in 0..25_000 {
        put_raw(&mut rig, &format!("one-{n}"), 4);
    }
    for _ in 0..60_000 {
        put_raw(&mut rig, "busy", 4);
    }
    rig.timeout();
    let (asked, visited) = (rig.asked, rig.engine.visited());
    assert_eq!(drain(&mut rig, "busy", 1_000), 60_000);
    let (asked, visited) = (rig.asked - asked, rig.engine.visited() - visited);
    assert!(asked < 60, "{asked} pages for 60,000 messages");
    assert!(visited < 200, "{visited} queues were looked at to load one");
}

/// Story: each step took out all queues that wanted more, and put back those that could not have it yet.
#[test]
fn queues_awaiting_memory_cost_nothing() {
    let mut rig = Rig::new(Policy { ready_messages: 100, ..Policy::default() });
    for n in 0..5_000 {
        put_raw(&mut rig, &format!("q-{n}"), 4);
        put_raw(&mut rig, &format!("q-{n}"), 4);
    }
    rig.timeout();
    for n in 0..5_000 {
        let demand = rig.demand(&[&format!("q-{n}")], 2, 3_600_000);
        rig.raw(Op::Reserve(demand));
    }
    rig.pages.clear();
    let visited = rig.engine.visited();
    for _ in 0..100 {
        // The store takes its time: no page comes.
        let mut fx = Effects::new();
        rig.engine.handle_timeout(rig.now, &mut fx);
        rig.absorb_batch(fx);
    }
    let visited = rig.engine.visited() - visited;
    assert!(visited < 400, "{visited} queues were looked at in a hundred steps in which nothing happened");
}

/// Story: each page for the wheel named all queues with a backlog, and cloned each name.
#[test]
fn page_request_names_few_queues() {
    let mut rig =
        Rig::new(Policy { ready_messages: 100, near_messages: 40, load_rows: 10, ..Policy::default() });
    for n in 0..3_000 {
        put_raw(&mut rig, &format!("one-{n}"), 4);
        put_raw(&mut rig, &format!("one-{n}"), 4);
    }
    for n in 0..2_000 {
        rig.put("large", 500 + n, None);
    }
    for n in 0..400 {
        rig.put("later", 500 + 5 * n, None);
    }
    rig.settle();
    let mut lists: Vec<Arc<[_]>> = Vec::new();
    for _ in 0..250 {
        rig.pass(10);
        rig.reserve("later", 10);
        for Load { which, .. } in std::mem::take(&mut rig.loads) {
            if let Which::AllBut(names) = which {
                lists.push(names);
            }
        }
    }
    assert!(lists.len() > 5, "{} pages", lists.len());
    assert!(lists.iter().all(|names| names.len() < 50), "only those that are worth it: {}", lists[0].len());
    assert!(lists.iter().all(|names| names.contains(&queue("large"))), "the large one is");
    let cloned = lists.windows(2).filter(|two| !Arc::ptr_eq(&two[0], &two[1])).count();
    assert!(cloned < 3, "names were cloned for {cloned} of {} pages", lists.len());
}

/// Story: the first ready message of each queue was always in memory; 10,000 queues with 250 kB each took 3.2 GB.
#[test]
fn ready_bytes_are_bounded_over_queues() {
    let budget = 1 << 20;
    let mut rig = Rig::new(Policy { ready_bytes: budget, ..Policy::default() });
    for n in 0..400 {
        put_raw(&mut rig, &format!("q-{n}"), 50_000);
    }
    rig.timeout();
    let most = (budget + 60_000) as u64;
    let resident = stats(&mut rig).resident_bytes;
    assert!(resident <= most, "{resident} bytes in memory");
    rig.restart();
    rig.settle();
    let resident = stats(&mut rig).resident_bytes;
    assert!(resident <= most, "{resident} bytes in memory after a start");
    assert!(resident >= budget as u64 / 4, "but what fits is there: {resident}");
    // Whoever waits is served with one page, whether his message is in memory or not.
    for n in 0..400 {
        let demand = rig.demand(&[&format!("q-{n}")], 1, 60_000);
        let asked = rig.asked;
        let (to, _) = rig.raw(Op::Reserve(demand));
        for _ in 0..3 {
            rig.slow_step(0);
        }
        let Some(Reply::Reserve(Reserved::Grants(grants))) = rig.reply(to) else { panic!("{n} waits") };
        ack_all(&mut rig, &grants);
        assert!(rig.asked - asked <= 4, "{} pages for one message", rig.asked - asked);
        let resident = stats(&mut rig).resident_bytes;
        assert!(resident <= most, "{resident} bytes in memory");
    }
    assert!(rig.table.is_empty());
}

/// A queue that nobody serves has filled memory before the others come.
#[test]
fn idle_queue_memory_goes_to_consumers() {
    let mut rig = Rig::new(Policy { ready_messages: 2_000, ..Policy::default() });
    for _ in 0..6_000 {
        put_raw(&mut rig, "idle", 4);
    }
    for n in 0..20_000 {
        put_raw(&mut rig, &format!("busy-{}", n % 10), 4);
    }
    rig.timeout();
    let asked = rig.asked;
    let mut drained = 0;
    while drained < 20_000 {
        for n in 0..10 {
            let grants = rig.reserve(&format!("busy-{n}"), 50);
            drained += grants.len();
            ack_all(&mut rig, &grants);
        }
        assert!(stats(&mut rig).resident <= 2_000 + 50);
    }
    let asked = rig.asked - asked;
    assert!(asked < 1_000, "{asked} pages for 20,000 messages of ten queues");
    let mut seen = Vec::new();
    loop {
        let grants = rig.reserve("idle", 500);
        if grants.is_empty() {
            break;
        }
        seen.extend(grants.iter().map(|g| g.message.id));
        ack_all(&mut rig, &grants);
    }
    assert_eq!(seen.len(), 6_000, "what gave way comes all the same");
    assert!(seen.is_sorted(), "in due order");
}

/// Queues in demand share what does not fit: none is left with nothing, however many there are and whoever came first.
#[test]
fn queues_in_demand_share_memory() {
    let mut rig = Rig::new(Policy { ready_messages: 2_000, ..Policy::default() });
    for n in 0..40_000 {
        put_raw(&mut rig, &format!("busy-{}", n % 40), 4);
    }
    rig.restart();
    rig.settle();
    let asked = rig.asked;
    let mut left = [1_000; 40];
    for _ in 0..120 {
        for (n, left) in left.iter_mut().enumerate().filter(|(_, left)| **left > 0) {
            let grants = rig.reserve(&format!("busy-{n}"), 20);
            assert!(!grants.is_empty(), "busy-{n} has {left}");
            *left -= grants.len();
            ack_all(&mut rig, &grants);
        }
    }
    assert_eq!(left, [0; 40], "in little more than fifty rounds");
    let asked = rig.asked - asked;
    assert!(asked < 4_000, "{asked} pages for 40,000 messages of forty queues");
}

/// Among what does not fit, the urgent has precedence: a queue's own last message gives way to it.
#[test]
fn urgent_message_evicts_last_of_queue() {
    let mut rig = Rig::new(Policy { ready_messages: 10, ..Policy::default() });
    for _ in 0..50 {
        put_raw(&mut rig, "q", 4);
    }
    for _ in 0..30 {
        let e = Enqueue { priority: Some(1), ..message("q", 0) };
        rig.raw(Op::Enqueue(Box::new(e)));
        rig.timeout();
        assert!(stats(&mut rig).resident <= 11);
    }
    let grants = rig.reserve("q", 1_000);
    assert!(grants[..10].iter().all(|g| g.priority == 1));
    ack_all(&mut rig, &grants);
    assert_eq!(grants.len() + drain(&mut rig, "q", 100), 80);
}

/// Story: the limit of leases was global; a consumer that took leases and never settled stopped grants in all queues.
#[test]
fn unsettled_leases_block_no_queue() {
    let mut rig = Rig::new(Policy { max_leased: 64, ..Policy::default() });
    for _ in 0..200 {
        put_raw(&mut rig, "hog", 4);
    }
    for n in 0..20 {
        put_raw(&mut rig, &format!("q-{n}"), 4);
    }
    assert_eq!(rig.reserve("hog", 200).len(), 32, "half of them is for whoever comes first");
    for n in 0..20 {
        assert_eq!(rig.reserve(&format!("q-{n}"), 1).len(), 1, "q-{n}");
    }
    for n in 0..200 {
        put_raw(&mut rig, &format!("hog-{}", n % 4), 4);
    }
    for n in 0..4 {
        let demand = rig.demand(&[&format!("hog-{n}")], 200, 0);
        rig.call(Op::Reserve(demand));
    }
    put_raw(&mut rig, "late", 4);
    assert_eq!(rig.reserve("late", 1).len(), 1, "something is left for whoever comes late");
}

/// The same by weight.
#[test]
fn unsettled_heavy_leases_block_no_queue() {
    let mut rig = Rig::new(Policy { max_leased_bytes: 1_000_000, ..Policy::default() });
    for _ in 0..20 {
        put_raw(&mut rig, "hog", 100_000);
    }
    put_raw(&mut rig, "other", 100_000);
    let taken = rig.reserve("hog", 20).len();
    assert!((5..=6).contains(&taken), "{taken}");
    assert_eq!(rig.reserve("other", 1).len(), 1);
}

/// Whoever is kept waiting because of leases is told so, is counted, and is served when leases end: his queue's own, or
/// another's.
#[test]
fn reserve_reports_hold_back_by_leases() {
    for settle_own in [true, false] {
        let mut rig = Rig::new(Policy { max_leased: 4, ..Policy::default() });
        for name in ["a", "a", "a", "b", "b", "c"] {
            put_raw(&mut rig, name, 4);
        }
        let of_a = rig.reserve("a", 3);
        let of_b = rig.reserve("b", 3);
        assert_eq!((of_a.len(), of_b.len()), (2, 1));
        let demand = rig.demand(&["a"], 1, 0);
        let held = Reply::Reserve(Reserved::HeldBack(HeldBack::Leases));
        assert_eq!(rig.call(Op::Reserve(demand)), held);
        assert_eq!(stats(&mut rig).held_back, 1);
        let demand = rig.demand(&["empty"], 1, 0);
        assert_eq!(
            rig.call(Op::Reserve(demand)),
            Reply::Reserve(Reserved::Grants(vec![])),
            "nothing is there"
        );
        let demand = rig.demand(&["a"], 1, 100);
        let (to, _) = rig.raw(Op::Reserve(demand));
        rig.pass(100);
        rig.timeout();
        assert_eq!(rig.reply(to), Some(held.clone()), "when its wait is over");
        let demand = rig.demand(&["a"], 1, 1_000);
        let (to, _) = rig.raw(Op::Reserve(demand));
        rig.timeout();
        assert_eq!(rig.reply(to), None);
        ack_all(&mut rig, if settle_own { &of_a } else { &of_b });
        if !settle_own {
            ack_all(&mut rig, &of_a[..1]);
        }
        rig.timeout();
        let Some(Reply::Reserve(Reserved::Grants(grants))) = rig.reply(to) else { panic!("served") };
        assert_eq!(grants.len(), 1);
        assert_eq!(stats(&mut rig).held_back, 2);
    }
}

/// However many wait because of leases, one that ends serves one of them, and the others are left alone.
#[test]
fn ended_lease_wakes_one_queue() {
    let mut rig = Rig::new(Policy { max_leased: 2, ..Policy::default() });
    let mut held = Vec::new();
    for n in 0..2_000 {
        put_raw(&mut rig, &format!("q-{n}"), 4);
        if held.len() < 2 {
            held.extend(rig.reserve(&format!("q-{n}"), 1));
        }
    }
    let mut waiting = std::collections::BTreeSet::new();
    for n in 2..2_000 {
        let demand = rig.demand(&[&format!("q-{n}")], 1, 3_600_000);
        waiting.insert(rig.raw(Op::Reserve(demand)).0);
    }
    rig.timeout();
    let visited = rig.engine.visited();
    let mut served = 0;
    while let Some(grant) = held.pop() {
        ack_all(&mut rig, &[grant]);
        rig.timeout();
        let replies: Vec<_> = std::mem::take(&mut rig.replies);
        for (to, reply) in replies {
            if let Reply::Reserve(Reserved::Grants(grants)) = reply {
                assert!(waiting.remove(&to));
                served += grants.len();
                held.extend(grants);
            }
        }
    }
    assert_eq!((served, waiting.len()), (1_998, 0));
    let visited = rig.engine.visited() - visited;
    assert!(visited < 3 * 2_000, "{visited} queues were looked at to serve 1,998 of them");
}

/// Story: a lease of a tenant at its quota that ended woke all queues of the tenant for which somebody waited, and one
/// of them was served.
#[test]
fn ended_lease_wakes_one_tenant_queue() {
    let mut rig = Rig::new(Policy::default());
    let quota = Quota { prefix: "t.".into(), leases: Some(2), ..Quota::default() };
    let quotas = Quotas::new(vec![quota], &rig.policy).unwrap();
    let mut fx = Effects::new();
    rig.engine.handle(rig.now, Input::Quotas(quotas), &mut fx);
    rig.absorb(fx);
    let mut held = Vec::new();
    for n in 0..2_000 {
        put_raw(&mut rig, &format!("t.{n}"), 4);
        if held.len() < 2 {
            held.extend(rig.reserve(&format!("t.{n}"), 1));
        }
    }
    let mut waiting = std::collections::BTreeMap::new();
    for n in 2..2_000 {
        let demand = rig.demand(&[&format!("t.{n}")], 1, 3_600_000);
        waiting.insert(rig.raw(Op::Reserve(demand)).0, n);
    }
    rig.timeout();
    let visited = rig.engine.visited();
    let mut served = Vec::new();
    while let Some(grant) = held.pop() {
        ack_all(&mut rig, &[grant]);
        rig.timeout();
        let replies: Vec<_> = std::mem::take(&mut rig.replies);
        for (to, reply) in replies {
            if let Reply::Reserve(Reserved::Grants(grants)) = reply {
                served.extend(waiting.remove(&to));
                held.extend(grants);
            }
        }
    }
    assert!(waiting.is_empty(), "{} wait on", waiting.len());
    assert!(served.is_sorted(), "the queue that has waited longest is the next");
    let visited = rig.engine.visited() - visited;
    assert!(visited < 3 * 2_000, "{visited} queues were looked at to serve 1,998 of them");
}

/// A queue of a tenant at its quota that waits again comes after those that have waited longer.
#[test]
fn tenant_queues_at_quota_take_turns() {
    let mut rig = Rig::new(Policy::default());
    let quota = Quota { prefix: "t.".into(), leases: Some(1), ..Quota::default() };
    let quotas = Quotas::new(vec![quota], &rig.policy).unwrap();
    let mut fx = Effects::new();
    rig.engine.handle(rig.now, Input::Quotas(quotas), &mut fx);
    rig.absorb(fx);
    let names = ["t.a", "t.b", "t.c"];
    for name in names.into_iter().cycle().take(30) {
        put_raw(&mut rig, name, 4);
    }
    let mut waiting = std::collections::BTreeMap::new();
    for name in names {
        let demand = rig.demand(&[name], 1, 3_600_000);
        waiting.insert(rig.raw(Op::Reserve(demand)).0, name);
    }
    let mut counts = std::collections::BTreeMap::new();
    for _ in 0..12 {
        rig.timeout();
        let replies: Vec<_> = std::mem::take(&mut rig.replies);
        let mut given = replies.into_iter().filter_map(|(to, reply)| match reply {
            Reply::Reserve(Reserved::Grants(grants)) => Some((waiting.remove(&to)?, grants)),
            _ => None,
        });
        let (name, grants) = given.next().expect("one is served");
        assert!(given.next().is_none(), "one lease");
        *counts.entry(name).or_insert(0) += 1;
        // Whoever was served asks again before the lease ends.
        let demand = rig.demand(&[name], 1, 3_600_000);
        waiting.insert(rig.raw(Op::Reserve(demand)).0, name);
        ack_all(&mut rig, &grants);
    }
    assert_eq!(counts.into_values().collect::<Vec<_>>(), [4, 4, 4]);
}

/// A queue of which nothing is in memory is loaded when what kept it from being served ends, although memory is full:
/// what comes in is granted at once. (Story: it stood in line for what others leave over, and its consumer waited until
/// somebody else's messages were taken.)
#[test]
fn unblocked_queue_loads_despite_full_memory() {
    let policy =
        Policy { ready_messages: 4, least_window: 1, near_messages: 4, load_rows: 4, ..Policy::default() };
    for barrier in [Capacity::RemoveOnly, Capacity::Enough] {
        let policy = match barrier {
            Capacity::RemoveOnly => policy.clone(),
            _ => Policy { max_leased: 2, ..policy.clone() },
        };
        let mut rig = Rig::new(policy);
        let held = (barrier == Capacity::Enough).then(|| {
            for _ in 0..2 {
                rig.put("q", 0, None);
            }
            rig.reserve("q", 1)
        });
        // Four queues in demand share the memory equally: none of them gives way.
        for name in ["a", "b", "c", "d"] {
            rig.put(name, 0, None);
            let demand = Reserve { max: 0, ..rig.demand(&[name], 0, 0) };
            rig.call(Op::Reserve(demand));
        }
        if held.is_none() {
            rig.put("q", 0, None);
        }
        let mut fx = Effects::new();
        rig.engine.handle(rig.now, Input::Room(barrier), &mut fx);
        let demand = rig.demand(&["q"], 1, 3_600_000);
        rig.settle();
        let to = rig.step(Op::Reserve(demand));
        rig.settle();
        assert_eq!(rig.reply(to), None, "{barrier:?}: it waits");
        match held {
            None => rig.engine.handle(rig.now, Input::Room(Capacity::Enough), &mut fx),
            Some(grants) => {
                for grant in grants {
                    let ack = Op::Ack { id: grant.message.id, proof: grant.token.into(), result: None };
                    assert!(matches!(rig.call(ack), Reply::Settle(Ok(_))));
                }
            }
        }
        rig.settle();
        let reply = rig.reply(to);
        let is_served = matches!(&reply, Some(Reply::Reserve(Reserved::Grants(grants))) if grants.len() == 1);
        assert!(is_served, "{barrier:?}: {reply:?}");
    }
}
