//! How much a step does, counted in rows, queues and pages; and limits that hold for whatever makes a queue.

use duewheel_core::engine::*;
use duewheel_core::id::SessionId;
use duewheel_core::message::State;
use duewheel_core::policy::{Policy, QueueSettings, ReadyOrder};
use duewheel_core::record::Created;
use duewheel_core::time::{EngineMs, WallMs};

use crate::harness::*;

/// The rows and queues that the engine has looked at for one operation.
fn work(rig: &mut Rig, op: Op) -> (Reply, u64) {
    rig.settle();
    let before = rig.engine.work();
    let reply = rig.call(op);
    (reply, rig.engine.work() - before)
}

fn names(n: usize) -> Vec<String> {
    (0..n).map(|n| format!("queue-{n:04}")).collect()
}

/// Story: each grant looked twice at every queue that its consumer watches. A client that watches 1,024 tubes and
/// pipelines 1,024 reserves kept everybody waiting for two million looks.
#[test]
fn grant_cost_is_independent_of_watches() {
    const QUEUES: usize = 1_024;
    let mut rig = Rig::new(Policy::default());
    let names = names(QUEUES);
    for name in &names {
        rig.put(name, 0, None);
    }
    let watched: Vec<&str> = names.iter().map(String::as_str).collect();
    let demand = rig.demand(&watched, QUEUES, 0);
    let (reply, work) = work(&mut rig, Op::Reserve(demand));
    let Reply::Reserve(Reserved::Grants(grants)) = reply else { panic!("{reply:?}") };
    assert_eq!(grants.len(), QUEUES);
    let in_order = grants.windows(2).all(|two| two[0].message.id < two[1].message.id);
    assert!(in_order, "all are due at once: the id decides");
    assert!(work <= 4 * QUEUES as u64, "{work} looks for {QUEUES} grants");
}

/// Each page of leased messages sorted all leases of the queue.
#[test]
fn leased_page_visits_only_leases() {
    let mut rig = Rig::new(Policy::default());
    for n in 0..1_000u64 {
        rig.put("q", n % 7, None);
    }
    rig.pass(10);
    assert_eq!(rig.reserve("q", 1_000).len(), 1_000);
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        let list = Op::List { queue: queue("q"), state: Some(State::Leased), after, limit: 90, from: None };
        let (reply, work) = work(&mut rig, list);
        let Reply::Page(page) = reply else { panic!("{reply:?}") };
        assert!(work <= 100, "{work} looks for a page of 90");
        assert_eq!(page.views.len(), page.behind.len());
        seen.extend(page.views.iter().map(|view| (view.due_at, view.message.id)));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 1_000);
    assert!(seen.windows(2).all(|two| two[0] < two[1]), "in due order, each once");
}

/// `/metrics` and `stats` walked all queues, and everybody waited.
#[test]
fn stats_visit_no_queues() {
    let mut rig = Rig::new(Policy::default());
    for (n, name) in names(500).iter().enumerate() {
        rig.put(name, if n % 2 == 0 { 0 } else { 60_000 }, None);
    }
    for grant in rig.reserve("queue-0000", 1) {
        rig.call(Op::Bury {
            id: grant.message.id,
            proof: grant.token.into(),
            priority: None,
            note: "".into(),
        });
    }
    rig.reserve("queue-0002", 1);
    let (reply, work) = work(&mut rig, Op::Stats);
    let Reply::Stats(stats) = reply else { panic!("{reply:?}") };
    assert_eq!(stats.counts, Counts { scheduled: 250, ready: 248, leased: 1, dead: 1, estimated: false });
    assert!(work <= 10, "{work} looks");

    rig.call(Op::Purge { at_most: None, queue: queue("queue-0004") });
    rig.restart();
    let Reply::Stats(stats) = rig.call(Op::Stats) else { panic!() };
    assert_eq!(stats.counts, Counts { scheduled: 250, ready: 247, leased: 1, dead: 1, estimated: false });
}

#[test]
fn queue_page_visits_few_messages() {
    let mut rig = Rig::new(Policy { max_step: 200, ..Policy::default() });
    for name in names(40) {
        for priority in 0..30 {
            let e = Enqueue { priority: Some(priority), ..message(&name, 0) };
            rig.call(Op::Enqueue(Box::new(e)));
        }
    }
    let (reply, work) = work(&mut rig, Op::Queues { after: None, limit: 40 });
    let Reply::Queues(views) = reply else { panic!("{reply:?}") };
    assert_eq!(views.len(), 40);
    assert!(views.iter().all(|view| view.oldest_ready.is_some()));
    assert!(work <= 200 + 40, "{work} looks");
}

/// Story: the time of the dead of many queues was over at once, and the engine asked for a page of each of them.
#[test]
fn dead_expiry_reads_few_queues() {
    let mut rig = Rig::new(Policy { max_dead_pages: 3, ..Policy::default() });
    for name in names(30) {
        let settings = QueueSettings { dead_ttl_ms: Some(1_000), ..QueueSettings::default() };
        rig.call(Op::Configure { queue: queue(&name), settings });
        rig.put(&name, 0, None);
        let grant = rig.reserve(&name, 1).remove(0);
        rig.call(Op::Bury {
            id: grant.message.id,
            proof: grant.token.into(),
            priority: None,
            note: "".into(),
        });
    }
    rig.settle();
    rig.pass(2_000);
    let before = rig.asked;
    let mut fx = Effects::new();
    rig.engine.handle_timeout(rig.now, &mut fx);
    rig.absorb_batch(fx);
    assert!((1..=3).contains(&(rig.asked - before)), "{} pages at once", rig.asked - before);
    assert_ne!(rig.engine.next_wakeup(), Some(rig.now.engine), "a page wakes it, not the clock");
    rig.settle();
    let Reply::Stats(stats) = rig.call(Op::Stats) else { panic!() };
    assert_eq!(stats.counts.dead, 0, "all of them are gone in the end");
}

/// Each listing may hold two pages of large bodies.
#[test]
fn pending_listings_request_few_pages() {
    let mut rig = Rig::new(Policy { max_gathers: 2, ..Policy::default() });
    for n in 0..20u64 {
        rig.put("q", 60_000 + n, None);
    }
    rig.settle();
    let before = rig.asked;
    let list = Op::List { queue: queue("q"), state: None, after: None, limit: 5, from: None };
    let asked: Vec<_> = (0..20).map(|_| rig.raw(list.clone()).0).collect();
    assert_eq!(rig.asked - before, 4, "two pages for each of two");
    assert!(rig.engine.has_questions());
    rig.settle();
    for to in asked {
        assert!(matches!(rig.reply(to), Some(Reply::Page(page)) if page.views.len() == 5));
    }
    assert!(!rig.engine.has_questions());
}

#[test]
fn simultaneous_pause_ends_take_steps() {
    let mut rig = Rig::new(Policy { max_step: 10, ..Policy::default() });
    for name in names(35) {
        rig.call(Op::Pause { queue: queue(&name), for_ms: Some(1_000) });
    }
    rig.settle();
    rig.pass(10_000);
    let mut fx = Effects::new();
    rig.engine.handle_timeout(rig.now, &mut fx);
    let records = fx.iter().filter(|effect| matches!(effect, Effect::Append(_))).count();
    rig.absorb_batch(fx);
    assert!((1..=20).contains(&records), "{records} records in one step");
    assert_eq!(rig.engine.next_wakeup(), Some(rig.now.engine));
    rig.settle();
    let Reply::Queues(views) = rig.call(Op::Queues { after: None, limit: 100 }) else { panic!() };
    assert!(views.is_empty(), "all pauses are over");
}

/// Story: a pause, a reserve that waits and a hold made queues beyond the limit that an enqueue is refused for.
#[test]
fn queue_limit_holds_for_all_operations() {
    let mut rig = Rig::new(Policy { max_queues: 3, ..Policy::default() });
    for name in names(3) {
        rig.put(&name, 0, None);
    }
    let full = Reply::Configure(SettingsRefusal::Overloaded);
    assert_eq!(rig.call(Op::Pause { queue: queue("new"), for_ms: None }), full);
    assert_eq!(rig.call(Op::Hold { queue: queue("new"), how: Hold::Watch }), full);
    let demand = rig.demand(&["queue-0001", "new"], 1, 60_000);
    assert_eq!(rig.call(Op::Reserve(demand)), Reply::Reserve(Reserved::TooManyQueues));
    let demand = rig.demand(&["new"], 1, 0);
    assert_eq!(rig.call(Op::Reserve(demand)), Reply::Reserve(Reserved::Grants(vec![])), "it leaves no trace");
    let Reply::Stats(stats) = rig.call(Op::Stats) else { panic!() };
    assert_eq!((stats.queues, stats.waiters), (3, 0));

    assert_eq!(
        rig.call(Op::Pause { queue: queue("queue-0001"), for_ms: None }),
        Reply::Configured(None.into())
    );
    assert_eq!(rig.call(Op::Hold { queue: queue("queue-0001"), how: Hold::Use }), Reply::Done);
    let demand = rig.demand(&["queue-0002"], 1, 60_000);
    assert!(matches!(rig.call(Op::Reserve(demand)), Reply::Reserve(Reserved::Grants(g)) if g.len() == 1));
}

/// Story (simulation, seed 1673): leases that ran out together end over several steps, and a key whose lease had run
/// out was refused as leased for as long as its turn had not come.
#[test]
fn expired_lease_does_not_hold_key() {
    let mut rig = Rig::new(Policy { max_step: 2, ..Policy::default() });
    let keys: Vec<String> = (0..30).map(|n| format!("order-{n}")).collect();
    for key in &keys {
        rig.put("q", 0, Some(key));
    }
    rig.settle();
    let mut grants = Vec::new();
    while grants.len() < keys.len() {
        let some = rig.reserve("q", keys.len() - grants.len());
        assert!(!some.is_empty());
        grants.extend(some);
    }
    rig.pass(Policy::default().defaults.lease_ms + 1);
    let target = |n: usize| Target::Key(queue("q"), key(&keys[n]));

    let mut op = message("q", 60_000);
    op.key = Some(key(&keys[29]));
    op.if_exists = IfExists::Replace;
    let (to, _) = rig.raw(Op::Enqueue(Box::new(op)));
    let replaced = Created::Replacing(grants[29].message.id);
    assert!(matches!(rig.reply(to), Some(Reply::Enqueue(Ok(e))) if e.created == replaced));

    let (to, _) = rig.raw(Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target: target(28) });
    assert!(matches!(rig.reply(to), Some(Reply::Change(Ok(_)))));
    let (to, _) = rig.raw(Op::Fire { target: target(27) });
    assert!(matches!(rig.reply(to), Some(Reply::Change(Ok(_)))));
    let (to, _) = rig.raw(Op::Get { target: target(26) });
    assert!(
        matches!(rig.reply(to), Some(Reply::View(Some(view))) if view.state == State::Ready),
        "{:?}",
        rig.replies
    );
    let id = grants[25].message.id;
    let (to, _) = rig.raw(Op::Delete { id, session: SessionId(9) });
    assert!(matches!(rig.reply(to), Some(Reply::Settle(Ok(_)))));

    // Whoever had the lease settles by its proof, as long as nobody else has the message.
    let grant = &grants[24];
    let (to, _) = rig.raw(Op::Ack { id: grant.message.id, proof: grant.token.into(), result: None });
    assert_eq!(rig.reply(to), Some(Reply::Settle(Ok(Settled::Acked.into()))));
    let (to, _) =
        rig.raw(Op::Extend { id: grants[23].message.id, proof: grants[23].token.into(), lease_ms: None });
    assert_eq!(rig.reply(to), Some(Reply::Extend(Err(SettleRefusal::LeaseLost))));

    rig.settle();
    let Reply::Stats(stats) = rig.call(Op::Stats) else { panic!() };
    assert_eq!(stats.lease_expired, 29, "each but the one that was acked");
}

/// Lets time do its work once, as a driver does between two looks at its inbox; how many rows the engine has looked at
/// for that.
fn one_step(rig: &mut Rig) -> u64 {
    let before = rig.engine.work();
    let mut fx = Effects::new();
    rig.engine.handle_timeout(rig.now, &mut fx);
    rig.absorb_batch(fx);
    rig.engine.work() - before
}

/// Story: before each keyed enqueue was decided, its key was looked up for the case that the holder's lease had run
/// out, and then again.
#[test]
fn enqueue_looks_key_up_once() {
    let mut rig = Rig::new(Policy::default());
    let put = |name| {
        let e = Enqueue { key: Some(key(name)), if_exists: IfExists::Reject, ..message("q", 0) };
        Op::Enqueue(Box::new(e))
    };
    rig.call(put("held"));
    let lease_ms = rig.reserve("q", 1)[0].lease_ms;
    for (name, is_new) in [("new", true), ("held", false)] {
        rig.settle();
        let before = rig.engine.work();
        let (to, _) = rig.raw(put(name));
        assert_eq!(rig.engine.work() - before, 1, "{name}");
        assert!(matches!(rig.reply(to), Some(Reply::Enqueue(answer)) if answer.is_ok() == is_new));
    }
    // The lease runs out, and its turn has not come: the look-up ends it.
    rig.pass(lease_ms);
    let replace = Enqueue { key: Some(key("held")), if_exists: IfExists::Replace, ..message("q", 0) };
    let (to, _) = rig.raw(Op::Enqueue(Box::new(replace)));
    assert!(matches!(rig.reply(to), Some(Reply::Enqueue(Ok(_)))));
}

/// Story: the question for the next due time read a crowded slot of the wheel whole, in one step.
#[test]
fn next_due_visits_few_per_step() {
    const MANY: u64 = 5_000;
    let policy = Policy { max_step: 200, ..Policy::default() };
    let most = policy.max_step as u64;
    let mut rig = Rig::new(policy);
    rig.settle();
    let due = |n: u64| 7_200_000 + n * 7_919 % MANY;
    for n in 0..MANY {
        let mut e = message("q", due(n));
        e.key = Some(key(&n.to_string()));
        rig.raw(Op::Enqueue(Box::new(e)));
    }
    rig.settle();
    for n in (0..MANY).filter(|n| due(*n) < 7_200_000 + MANY / 10) {
        rig.raw(Op::Cancel {
            keep: None,
            dedupe_id: DedupeId::Stays,
            target: Target::Key(queue("q"), key(&n.to_string())),
        });
    }
    rig.settle();
    let (to, _) = rig.raw(Op::NextDue);
    let mut steps = 0;
    let reply = loop {
        let looked = one_step(&mut rig);
        assert!(looked <= 2 * most, "{looked} looks in a step");
        steps += 1;
        if let Some(reply) = rig.reply(to) {
            break reply;
        }
        assert!(rig.engine.next_wakeup().is_some_and(|t| t <= rig.now.engine), "it is gone on with at once");
        assert!(steps < 1_000, "it comes to an end");
    };
    assert_eq!(reply, Reply::NextDue(Some(WallMs(WALL + 7_200_000 + MANY / 10))));
    assert!(steps > 10, "{steps} steps");
}

fn resident(rig: &mut Rig) -> u64 {
    let (to, _) = rig.raw(Op::Stats);
    match rig.reply(to) {
        Some(Reply::Stats(stats)) => stats.resident,
        other => panic!("{other:?}"),
    }
}

/// Story: a slot of the wheel with a million messages was moved down and sorted in one step.
#[test]
fn crowded_slot_advances_over_several_steps() {
    const MANY: u64 = 20_000;
    let policy = Policy::default();
    let most = policy.max_step as u64;
    let mut rig = Rig::new(policy);
    rig.settle();
    for n in 0..MANY {
        // Due times within one second that come in no order, in a slot that lies in a later turn.
        let e = message("q", 7_200_000 + n * 7_919 % 1_000);
        rig.raw(Op::Enqueue(Box::new(e)));
    }
    rig.settle();
    assert_eq!(resident(&mut rig), MANY);
    rig.pass(7_200_999);
    let (mut steps, mut ready) = (0, 0);
    while ready < MANY {
        let looked = one_step(&mut rig);
        assert!(looked <= most, "{looked} rows in one step");
        let (to, _) = rig.raw(Op::Queue { queue: queue("q") });
        let Some(Reply::Queues(views)) = rig.reply(to) else { panic!() };
        assert!(views[0].counts.ready - ready <= most, "{} in one step", views[0].counts.ready - ready);
        ready = views[0].counts.ready;
        steps += 1;
        assert!(steps < 100, "it comes to an end");
        let wakeup = rig.engine.next_wakeup();
        assert!(ready == MANY || wakeup == Some(rig.now.engine), "{ready} are ready, and the engine rests");
    }
    assert!(steps >= MANY / most);
    let grants = rig.reserve("q", 100);
    assert!(grants.windows(2).all(|two| two[0].due_at <= two[1].due_at), "in order of their due times");
}

/// Story: a wheel that held too much was read whole, sorted, and half of it left memory in one step.
#[test]
fn overfull_wheel_shrinks_in_steps() {
    const MANY: usize = 6_000;
    const STEP: usize = 300;
    // All in one list of the wheel; in many; and beside those of the other clock.
    let shapes: [fn(usize) -> When; 3] = [
        |n| When::After(900_000 + n as u64 % 1_000),
        |n| When::After(60_000 + n as u64 * 7_919 % 80_000_000),
        |n| match n % 2 {
            0 => {
                When::At { due_at: WallMs(WALL + 60_000 + n as u64 * 7_919 % 80_000_000), past: Past::Refuse }
            }
            _ => When::After(60_000 + n as u64 * 7_919 % 80_000_000),
        },
    ];
    for when in shapes {
        let policy = Policy { near_messages: MANY, max_step: STEP, load_rows: 200, ..Policy::default() };
        let mut rig = Rig::new(policy);
        rig.settle();
        let mut due = Vec::new();
        for n in 0..=MANY {
            let e = Enqueue { when: when(n), ..Enqueue::new(queue("q"), "body") };
            let (to, _) = rig.raw(Op::Enqueue(Box::new(e)));
            let Some(Reply::Enqueue(Ok(enqueued))) = rig.reply(to) else { panic!("refused") };
            due.push((enqueued.due_at, enqueued.id));
        }
        let (mut held, mut steps) = (resident(&mut rig), 0);
        assert_eq!(held, MANY as u64 + 1);
        while rig.engine.next_wakeup() == Some(rig.now.engine) || steps == 0 {
            let looked = one_step(&mut rig);
            assert!(looked <= 4 * 2_048, "{looked} rows in one step");
            let now = resident(&mut rig);
            assert!(held.saturating_sub(now) <= STEP as u64 + 256, "{held}, then {now} in memory");
            (held, steps) = (now, steps + 1);
            assert!(steps < 200, "it comes to an end");
        }
        assert!(steps > MANY / 2 / (STEP + 256));
        assert!((MANY as u64 / 3..=MANY as u64 * 2 / 3).contains(&held), "about half is kept: {held}");

        // What left memory comes back in time, and in order.
        due.sort_unstable();
        let mut seen = Vec::new();
        for (at, _) in due.chunks(97).map(|some| some[some.len() - 1]) {
            rig.now.engine = EngineMs(at.0 - WALL);
            rig.now.wall = at;
            rig.settle();
            let grants = rig.reserve("q", 200);
            assert!(grants.iter().all(|grant| grant.due_at <= at));
            for grant in grants {
                seen.push((grant.due_at, grant.message.id));
                rig.raw(Op::Ack { id: grant.message.id, proof: grant.token.into(), result: None });
            }
        }
        let first = seen.iter().zip(&due).position(|(seen, due)| seen != due);
        assert_eq!((first, seen.len()), (None, due.len()), "the first one that is missing or not in order");
    }
}

/// A queue with so many messages, all of them under leases that have run out; none has had its turn.
fn overdue(policy: Policy, many: usize) -> Rig {
    let mut rig = Rig::new(policy);
    for _ in 0..many {
        rig.put("q", 0, None);
    }
    let mut grants = 0;
    while grants < many {
        grants += rig.reserve("q", many - grants).len();
    }
    rig.settle();
    rig.pass(Policy::default().defaults.lease_ms + 1);
    rig
}

/// Story: leases end at the next step of time, and what came before that step was told of leases that had run out. A
/// purge left them, and they came back after it.
#[test]
fn queue_operations_ignore_expired_leases() {
    const STEP: usize = 50;
    let policy = || Policy { max_step: STEP, ..Policy::default() };
    let answer = |op: Op| {
        let mut rig = overdue(policy(), STEP - 10);
        let (to, _) = rig.raw(op);
        rig.reply(to).expect("answered at once")
    };
    assert_eq!(
        answer(Op::Purge { at_most: None, queue: queue("q") }),
        Reply::Count((STEP as u64 - 10).into())
    );
    let Reply::View(view) = answer(Op::Peek { queue: queue("q"), state: State::Leased }) else { panic!() };
    assert_eq!(view, None);
    let Reply::View(view) = answer(Op::Peek { queue: queue("q"), state: State::Ready }) else { panic!() };
    assert_eq!(view.map(|view| view.state), Some(State::Ready));
    let list =
        |after| Op::List { queue: queue("q"), state: Some(State::Leased), after, limit: 100, from: None };
    assert!(matches!(answer(list(None)), Reply::Page(page) if page.views.is_empty() && page.next.is_none()));
    let ready = Counts { scheduled: 0, ready: STEP as u64 - 10, leased: 0, dead: 0, estimated: false };
    let Reply::Queues(views) = answer(Op::Queue { queue: queue("q") }) else { panic!() };
    assert_eq!(views[0].counts, ready);
    assert!(matches!(answer(Op::Stats), Reply::Stats(stats) if stats.counts == ready));

    // More than a step ends: no page shows one, and each looks at a bounded number.
    let mut rig = overdue(policy(), 5 * STEP);
    let (mut after, mut pages) = (None, 0);
    loop {
        let before = rig.engine.work();
        let (to, _) = rig.raw(list(after));
        assert!(rig.engine.work() - before <= 4 * STEP as u64);
        let Some(Reply::Page(page)) = rig.reply(to) else { panic!() };
        assert!(page.views.is_empty());
        pages += 1;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert!(pages > 1);
}

/// A connection that is closed late held a lease that had run out: that is what is noted of it.
#[test]
fn late_close_counts_expired_lease() {
    let mut rig = Rig::new(Policy::default());
    let id = rig.put("q", 0, None);
    let demand = Reserve { session: SessionId(5), ..rig.demand(&["q"], 1, 0) };
    rig.call(Op::Reserve(demand));
    rig.pass(Policy::default().defaults.lease_ms + 1);
    rig.raw(Op::SessionClosed { session: SessionId(5) });
    let Reply::View(Some(view)) = rig.call(Op::Get { target: Target::Id(id) }) else { panic!() };
    assert_eq!((view.state, view.marks.timeouts), (State::Ready, 1));
    let Reply::Stats(stats) = rig.call(Op::Stats) else { panic!() };
    assert_eq!(stats.lease_expired, 1);
}

/// Story (random commands beside beanstalkd, seed 217): a connection let a queue go and another took it up in the same
/// step. The queue should have vanished in between, and its totals with it.
#[test]
fn recreated_queue_starts_with_zero_totals() {
    let hold = |name: &str| Op::Hold { queue: queue(name), how: Hold::Use };
    let let_go = |name: &str| Op::LetGo { queue: queue(name), how: Hold::Use };
    let put = |name: &str| {
        let e = Enqueue { order_if_new: Some(ReadyOrder::Arrival), ..message(name, 0) };
        Op::Enqueue(Box::new(e))
    };
    let enqueued = |rig: &mut Rig, name: &str| {
        let Reply::Queues(views) = rig.call(Op::Queue { queue: queue(name) }) else { panic!() };
        views.first().map(|view| view.totals.enqueued)
    };
    for comes_back in [hold("t"), put("t"), Op::Pause { queue: queue("t"), for_ms: None }] {
        let mut rig = Rig::new(Policy::default());
        rig.call(hold("t"));
        let Reply::Enqueue(Ok(first)) = rig.call(put("t")) else { panic!() };
        rig.call(Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target: Target::Id(first.id) });
        assert_eq!(enqueued(&mut rig, "t"), Some(1));
        rig.raw(let_go("t"));
        let is_put = matches!(comes_back, Op::Enqueue(_));
        rig.raw(comes_back);
        assert_eq!(enqueued(&mut rig, "t"), Some(u64::from(is_put)), "a new queue");
        rig.settle();
        rig.restart();
        let is_held = !is_put && rig.table.recovered(duewheel_core::id::Epoch(9)).queues.is_empty();
        assert!(is_held || enqueued(&mut rig, "t") == Some(u64::from(is_put)), "the store counts alike");
    }

    // Rows that a purge took may be in memory still when the queue comes back.
    let mut rig = Rig::new(Policy { max_step: 2, ..Policy::default() });
    for _ in 0..20 {
        rig.put("q", 0, None);
    }
    rig.settle();
    rig.raw(Op::Purge { at_most: None, queue: queue("q") });
    rig.raw(Op::Enqueue(Box::new(message("q", 0))));
    assert_eq!(enqueued(&mut rig, "q"), Some(21), "without settings of a front end the totals stay");
    rig.restart();
    assert_eq!(enqueued(&mut rig, "q"), Some(1), "until a restart");
}
