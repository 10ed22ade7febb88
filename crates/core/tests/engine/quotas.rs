//! Quotas: what is charged, what is refused, and that the books are right whatever happens.

use duewheel_core::engine::*;
use duewheel_core::id::{Epoch, LeaseToken, MessageId, SessionId, ShardId};
use duewheel_core::message::State;
use duewheel_core::policy::Policy;

use crate::harness::*;

fn quota(prefix: &str) -> Quota {
    Quota { prefix: prefix.into(), ..Quota::default() }
}

fn set(rig: &mut Rig, quotas: &[Quota]) {
    let quotas = Quotas::new(quotas.to_vec(), &rig.policy).unwrap();
    let mut fx = Effects::new();
    rig.engine.handle(rig.now, Input::Quotas(quotas), &mut fx);
    rig.absorb(fx);
}

fn rig(quotas: &[Quota]) -> Rig {
    let mut rig = Rig::new(Policy::default());
    set(&mut rig, quotas);
    rig
}

fn put(rig: &mut Rig, e: Enqueue) -> Result<MessageId, EnqueueRefusal> {
    match rig.call(Op::Enqueue(Box::new(e))) {
        Reply::Enqueue(answer) => answer.map(|done| done.id),
        other => panic!("{other:?}"),
    }
}

fn over(prefix: &str, resource: Resource, limit: u64, used: u64, retry_ms: Option<u64>) -> Box<OverQuota> {
    Box::new(OverQuota { quota: prefix.into(), resource, limit, used, retry_ms })
}

fn reserved(rig: &mut Rig, queues: &[&str], max: usize) -> Reserved {
    let demand = rig.demand(queues, max, 0);
    match rig.call(Op::Reserve(demand)) {
        Reply::Reserve(reserved) => reserved,
        other => panic!("{other:?}"),
    }
}

fn use_of(rig: &mut Rig, prefix: &str) -> QuotaUse {
    match rig.call(Op::Quotas) {
        Reply::Quotas(uses) => uses.into_iter().find(|u| &*u.quota.prefix == prefix).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn full_quota_refuses_until_messages_leave() {
    let mut rig = rig(&[Quota { messages: Some(2), ..quota("acme.") }, quota_of_all(3)]);
    put(&mut rig, message("acme.a", 60_000)).unwrap();
    put(&mut rig, message("acme.b", 0)).unwrap();
    let (to, fx) = rig.raw(Op::Enqueue(Box::new(message("acme.new", 0))));
    let refusal = EnqueueRefusal::OverQuota(over("acme.", Resource::Messages, 2, 2, None));
    let after = After { durable: rig.engine.last_lsn(), ..After::default() };
    assert_eq!(fx, [Effect::Respond { to, reply: Reply::Enqueue(Err(refusal)), after }]);
    assert_eq!(
        rig.call(Op::Queue { queue: queue("acme.new") }),
        Reply::Queues(vec![]),
        "and no queue is made"
    );

    put(&mut rig, message("other", 0)).expect("the longest prefix counts, and only that");
    let grants = rig.reserve("acme.b", 1);
    put(&mut rig, message("acme.b", 0)).expect_err("leased messages count");
    rig.call(Op::Bury {
        id: grants[0].message.id,
        proof: grants[0].token.into(),
        priority: None,
        note: "".into(),
    });
    put(&mut rig, message("acme.b", 0)).expect_err("dead ones as well");
    assert_eq!(rig.call(Op::Purge { at_most: None, queue: queue("acme.b") }), Reply::Count(1.into()));
    put(&mut rig, message("acme.b", 0)).unwrap();
    assert_eq!(use_of(&mut rig, "acme.").used, [2, 8, 0, 0, 0]);
    assert_eq!(use_of(&mut rig, "acme.").refused, [3, 0, 0, 0, 0]);
    assert_eq!(use_of(&mut rig, "").used, [1, 4, 0, 0, 0]);
}

fn quota_of_all(messages: u64) -> Quota {
    Quota { messages: Some(messages), ..quota("") }
}

#[test]
fn byte_quota_charges_only_growth() {
    let mut rig = rig(&[Quota { bytes: Some(20), leases: Some(9), ..quota("q") }]);
    let with = |body: &str, k: &str| Enqueue {
        key: Some(key(k)),
        body: body.to_owned().into(),
        when: When::After(60_000),
        if_exists: IfExists::Replace,
        ..Enqueue::new(queue("q"), "")
    };
    put(&mut rig, with("123456789", "a")).unwrap();
    put(&mut rig, with("123456789", "b")).unwrap();
    let refusal = |used| EnqueueRefusal::OverQuota(over("q", Resource::Bytes, 20, used, None));
    assert_eq!(put(&mut rig, with("", "c")), Err(refusal(20)), "a key weighs, too");
    assert_eq!(put(&mut rig, with("1234567890", "a")), Err(refusal(20)));
    put(&mut rig, with("987654321", "a")).expect("as large as the one before");
    let target = Target::Key(queue("q"), key("a"));
    let change = |body: &str| Op::Postpone {
        target: target.clone(),
        edit: Box::new(Edit { body: Some(body.to_owned().into()), ..Edit::due(When::After(70_000)) }),
        if_generation: None,
    };
    let refused = rig.call(change("1234567890"));
    assert_eq!(
        refused,
        Reply::Change(Err(ChangeRefusal::OverQuota(over("q", Resource::Bytes, 20, 20, None))))
    );
    assert!(matches!(rig.call(change("12345678")), Reply::Change(Ok(_))));
    assert_eq!(use_of(&mut rig, "q").used, [2, 19, 0, 0, 0]);

    // Lowered far below what is there: whatever takes away or moves still goes.
    set(&mut rig, &[Quota { messages: Some(1), bytes: Some(1), leases: Some(1), ..quota("q") }]);
    put(&mut rig, with("1", "a")).expect("it makes use smaller");
    let id = use_one(&mut rig);
    assert!(matches!(rig.call(Op::Fire { target: Target::Id(id) }), Reply::Change(Ok(_))));
    let grant = rig.reserve("q", 1).pop().unwrap();
    let proof = Proof::Token(grant.token);
    assert!(matches!(rig.call(Op::Extend { id, proof, lease_ms: None }), Reply::Extend(Ok(_))));
    let nack =
        Op::Nack { id, proof, delay_ms: Some(0), priority: None, note: "".into(), attempt: Attempt::Failed };
    assert!(matches!(rig.call(nack), Reply::Settle(Ok(_))));
    let grant = rig.reserve("q", 1).pop().unwrap();
    let bury = Op::Bury { id, proof: grant.token.into(), priority: None, note: "".into() };
    assert!(matches!(rig.call(bury), Reply::Settle(Ok(_))));
    assert!(matches!(rig.call(Op::Redrive { id, delay_ms: None, died: None }), Reply::Change(Ok(_))));
    assert!(matches!(
        rig.call(Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target: Target::Id(id) }),
        Reply::Change(Ok(_))
    ));
    assert_eq!(rig.call(Op::Purge { at_most: None, queue: queue("q") }), Reply::Count(1.into()));
    assert_eq!(use_of(&mut rig, "q").used, [0, 0, 0, 0, 0]);
}

/// A superseded message counts until its lease ends, so the new one is charged in full.
#[test]
fn quota_refuses_superseding_message() {
    let mut rig = rig(&[Quota { messages: Some(1), ..quota("acme.") }]);
    let keyed = |if_exists| Enqueue { key: Some(key("k")), if_exists, ..message("acme.a", 0) };
    let id = put(&mut rig, keyed(IfExists::Reject)).unwrap();
    let grant = rig.reserve("acme.a", 1).remove(0);
    let refusal = EnqueueRefusal::OverQuota(over("acme.", Resource::Messages, 1, 1, None));
    assert_eq!(put(&mut rig, keyed(IfExists::Supersede)), Err(refusal));
    let holder = Op::Get { target: Target::Key(queue("acme.a"), key("k")) };
    let Reply::View(Some(holder)) = rig.call(holder) else { panic!() };
    assert_eq!((holder.message.id, holder.marks.superseded_by), (id, None));
    rig.call(Op::Ack { id, proof: grant.token.into(), result: None });
    put(&mut rig, keyed(IfExists::Supersede)).unwrap();
}

fn use_one(rig: &mut Rig) -> MessageId {
    match rig.call(Op::List { queue: queue("q"), state: None, after: None, limit: 1, from: None }) {
        Reply::Page(page) => page.views[0].message.id,
        other => panic!("{other:?}"),
    }
}

#[test]
fn lease_quota_holds_back_only_tenant() {
    let mut rig = rig(&[Quota { leases: Some(2), ..quota("t.") }]);
    for _ in 0..3 {
        put(&mut rig, message("t.a", 0)).unwrap();
        put(&mut rig, message("free", 0)).unwrap();
    }
    let Reserved::Grants(grants) = reserved(&mut rig, &["t.a"], 9) else { panic!() };
    assert_eq!(grants.len(), 2);
    assert_eq!(reserved(&mut rig, &["t.a"], 9), Reserved::HeldBack(HeldBack::Leases));
    assert_eq!(reserved(&mut rig, &["t.none"], 9), Reserved::Grants(vec![]), "there is nothing to hold back");
    let id = MessageId(grants[1].message.id.0 + 2);
    let one = Op::ReserveOne { id, session: SessionId(1), lease_ms: None };
    let refusal = ChangeRefusal::OverQuota(over("t.", Resource::Leases, 2, 2, None));
    assert_eq!(rig.call(one), Reply::ReserveOne(Err(refusal)));
    match reserved(&mut rig, &["t.a", "free"], 9) {
        Reserved::Grants(free) => assert_eq!(free.len(), 3, "of the other queue, and all of it"),
        other => panic!("{other:?}"),
    }
    assert_eq!(use_of(&mut rig, "t.").refused, [0, 0, 2, 0, 0]);

    // Two that wait: one is served when a lease ends, the other learns why it was not.
    let waits = [(); 2].map(|()| {
        let demand = rig.demand(&["t.a"], 1, 1_000);
        rig.step(Op::Reserve(demand))
    });
    rig.timeout();
    assert_eq!(rig.reply(waits[0]), None);
    put(&mut rig, message("t.a", 0)).unwrap();
    rig.call(Op::Ack { id: grants[0].message.id, proof: grants[0].token.into(), result: None });
    assert!(matches!(rig.reply(waits[0]), Some(Reply::Reserve(Reserved::Grants(g))) if g.len() == 1));
    rig.pass(1_000);
    rig.timeout();
    assert_eq!(rig.reply(waits[1]), Some(Reply::Reserve(Reserved::HeldBack(HeldBack::Leases))));
}

#[test]
fn expired_lease_frees_tenant_quota() {
    let mut rig = rig(&[Quota { leases: Some(1), ..quota("t.") }]);
    put(&mut rig, message("t.a", 0)).unwrap();
    put(&mut rig, message("t.b", 0)).unwrap();
    let grant = rig.reserve("t.a", 1).pop().unwrap();
    let demand = rig.demand(&["t.b"], 1, 1_000_000);
    let waits = rig.step(Op::Reserve(demand));
    rig.timeout();
    assert_eq!(rig.reply(waits), None);
    rig.pass(grant.lease_ms);
    rig.timeout();
    assert!(matches!(rig.reply(waits), Some(Reply::Reserve(Reserved::Grants(g))) if g.len() == 1));
}

#[test]
fn enqueue_rate_allows_its_burst() {
    let rate = Quota { enqueues_per_second: Some(4), burst: Some(2), ..quota("t") };
    let mut rig = rig(&[Quota { messages: Some(100), ..rate }]);
    let refusal = |ms| Err(EnqueueRefusal::OverQuota(over("t", Resource::Enqueues, 4, 4, Some(ms))));
    let with = |n: u64| Enqueue { dedupe_id: Some(format!("{n}").into()), ..message("t", 0) };
    let first = put(&mut rig, with(1)).unwrap();
    put(&mut rig, with(2)).unwrap();
    assert_eq!(put(&mut rig, with(3)), refusal(250));
    assert_eq!(put(&mut rig, with(1)), Ok(first), "an answer that is repeated costs nothing");
    rig.pass(249);
    assert_eq!(put(&mut rig, with(3)), refusal(1), "a refusal costs nothing, either");
    rig.pass(1);
    put(&mut rig, with(3)).unwrap();
    assert_eq!(put(&mut rig, with(4)), refusal(250));
    rig.pass(100_000);
    put(&mut rig, with(4)).unwrap();
    put(&mut rig, with(5)).unwrap();
    assert_eq!(put(&mut rig, with(6)), refusal(250), "time does not fill it beyond the burst");
    assert_eq!(use_of(&mut rig, "t").used[3], 2);
    let (_, pace) = rig.engine.pace(rig.now, &queue("t")).unwrap();
    assert_eq!((pace.left, pace.next.0), (0, rig.now.engine.0 + 250));

    // The same rate again: what is used up stays used up.
    set(&mut rig, &[Quota { enqueues_per_second: Some(4), burst: Some(2), ..quota("t") }]);
    assert_eq!(put(&mut rig, with(6)), refusal(250));
    set(&mut rig, &[]);
    assert!(rig.engine.pace(rig.now, &queue("t")).is_none());
    put(&mut rig, with(6)).unwrap();
}

#[test]
fn new_quotas_count_existing_messages() {
    let mut rig = rig(&[]);
    for _ in 0..5 {
        put(&mut rig, message("t.a", 0)).unwrap();
    }
    let leased = rig.reserve("t.a", 2);
    set(&mut rig, &[Quota { messages: Some(3), leases: Some(1), ..quota("t.") }]);
    assert_eq!(use_of(&mut rig, "t.").used, [5, 20, 2, 0, 0]);
    put(&mut rig, message("t.a", 0)).expect_err("lowered below what is used");
    let demand = rig.demand(&["t.a"], 1, 60_000);
    let waits = rig.step(Op::Reserve(demand));
    rig.timeout();
    rig.call(Op::Ack { id: leased[0].message.id, proof: leased[0].token.into(), result: None });
    assert_eq!(rig.reply(waits), None, "one lease is as many as there may be");
    set(&mut rig, &[Quota { leases: Some(2), ..quota("t.") }]);
    assert_eq!(rig.engine.next_wakeup(), Some(rig.now.engine));
    rig.timeout();
    assert!(matches!(rig.reply(waits), Some(Reply::Reserve(Reserved::Grants(g))) if g.len() == 1));
    set(&mut rig, &[Quota { messages: Some(4), ..quota("t.a") }, quota("t.")]);
    assert_eq!(use_of(&mut rig, "t.a").used[0], 4, "a longer prefix takes the queue over");
    assert_eq!(use_of(&mut rig, "t.").used[0], 0);
}

#[test]
fn shard_shares_add_up_to_quota() {
    for (limit, shards) in [(10u64, 4u32), (3, 4), (16, 16), (1, 7)] {
        let (mut taken, mut at_once, mut later) = (0, 0, 0);
        for shard in 0..shards {
            let mut rig = Rig::of_shard(Policy::default(), Ids::of(ShardId(shard), shards));
            set(&mut rig, &[Quota { messages: Some(limit), ..quota("m") }]);
            taken += (0..20).filter(|_| put(&mut rig, message("m", 0)).is_ok()).count() as u64;
            set(&mut rig, &[Quota { enqueues_per_second: Some(limit), ..quota("r") }]);
            at_once += (0..20).filter(|_| put(&mut rig, message("r", 0)).is_ok()).count() as u64;
            // So long that each shard's fraction comes to a whole number; a look at each ms, as the bucket holds only a
            // burst.
            for _ in 0..1_000 * u64::from(shards) {
                rig.pass(1);
                later += u64::from(put(&mut rig, message("r", 1_000_000)).is_ok());
            }
        }
        assert_eq!(taken, limit, "{limit} over {shards}");
        assert!(at_once <= limit.max(u64::from(shards)), "{limit} over {shards}: {at_once} at once");
        let (exact, most) = (limit * u64::from(shards), limit.max(u64::from(shards)));
        assert!((exact..=exact + most).contains(&later), "{limit} over {shards}: {later}");
    }
}

/// What the quotas of a random history say, counted message by message.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Recount {
    messages: u64,
    bytes: u64,
    leases: u64,
}

const NAMES: [&str; 4] = ["a.x", "a.y", "b", "c"];
const NO_LEASE: (MessageId, LeaseToken) = (MessageId(1), LeaseToken { epoch: Epoch(0), counter: 0 });
const PREFIXES: [&str; 4] = ["", "a.", "a.x", "b"];

fn recount(rig: &mut Rig, prefix: &str, all: &[&str]) -> Recount {
    let mut sum = Recount::default();
    for name in NAMES {
        let longest = all.iter().filter(|p| name.starts_with(**p)).max_by_key(|p| p.len());
        if longest != Some(&prefix) {
            continue;
        }
        let mut after = None;
        loop {
            let list = Op::List { queue: queue(name), state: None, after, limit: 7, from: None };
            let Reply::Page(page) = rig.call(list) else { panic!() };
            for view in &page.views {
                sum.messages += 1;
                sum.bytes += view.message.weight() as u64;
                sum.leases += u64::from(view.state == State::Leased);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    sum
}

/// A history of everything that moves counts: after each step the books are compared with a count of all messages.
fn history(seed: u64) -> u64 {
    let mut rng = Rng::seeded(seed);
    let memory = [200_000, 3][rng.below(2) as usize];
    let policy = Policy {
        near_messages: memory,
        ready_messages: memory,
        least_window: 1,
        max_step: 3,
        ..Policy::default()
    };
    let mut rig = Rig::new(policy);
    let mut quotas: Vec<Quota> = vec![];
    let mut tokens = vec![];
    let mut refusals = 0;
    for step in 0..60 {
        if step % 20 == 0 || rng.chance(3) {
            quotas = PREFIXES.iter().filter(|_| rng.chance(60)).map(|p| quota(p)).collect();
            for quota in &mut quotas {
                let mut limit = |most| rng.chance(70).then(|| 1 + rng.below(most));
                (quota.messages, quota.bytes, quota.leases) = (limit(8), limit(40), limit(4));
            }
            set(&mut rig, &quotas);
        }
        let name = NAMES[rng.below(4) as usize];
        let op = match rng.below(14) {
            0..=4 => {
                let body = "x".repeat(rng.below(9) as usize);
                let k = rng.chance(40).then(|| key(["k", "kk"][rng.below(2) as usize]));
                let if_exists = [IfExists::Keep, IfExists::Replace][rng.below(2) as usize];
                let max_attempts = duewheel_core::message::MaxAttempts::new(1 + rng.below(2) as u32);
                let options = duewheel_core::message::Options { max_attempts, ..Default::default() };
                let e = Enqueue {
                    key: k,
                    body: body.into(),
                    if_exists,
                    options,
                    ..message(name, rng.below(100))
                };
                Op::Enqueue(Box::new(e))
            }
            5..=6 => {
                Op::Reserve(rig.demand(&[name, NAMES[rng.below(4) as usize]], 1 + rng.below(3) as usize, 0))
            }
            7 => {
                let (id, token) = tokens.pop().unwrap_or(NO_LEASE);
                Op::Ack { id, proof: Proof::Token(token), result: None }
            }
            8 => {
                let (id, token) = tokens.pop().unwrap_or(NO_LEASE);
                Op::Nack {
                    id,
                    proof: Proof::Token(token),
                    delay_ms: Some(5),
                    priority: None,
                    note: "".into(),
                    attempt: Attempt::Failed,
                }
            }
            9 => Op::Redrive { id: MessageId(1 + rng.below(30)), delay_ms: None, died: None },
            10 => Op::Purge { at_most: None, queue: queue(name) },
            11 => Op::Cancel {
                keep: None,
                dedupe_id: DedupeId::Stays,
                target: Target::Id(MessageId(1 + rng.below(30))),
            },
            12 => Op::Postpone {
                target: Target::Key(queue(name), key("k")),
                edit: Box::new(Edit {
                    body: Some("y".repeat(rng.below(12) as usize).into()),
                    ..Edit::due(When::After(rng.below(50)))
                }),
                if_generation: None,
            },
            _ => Op::FireMany { queue: queue(name), max: 2 },
        };
        match rig.call(op) {
            Reply::Reserve(Reserved::Grants(grants)) => {
                tokens.extend(grants.iter().map(|g| (g.message.id, g.token)));
            }
            Reply::Enqueue(Err(EnqueueRefusal::OverQuota(over))) => {
                refusals += 1;
                let quota = quotas.iter().find(|q| q.prefix == over.quota).expect("a quota that is set");
                let limit = match over.resource {
                    Resource::Messages => quota.messages,
                    Resource::Bytes => quota.bytes,
                    Resource::Leases | Resource::Enqueues | Resource::Answers => None,
                };
                assert_eq!(Some(over.limit), limit, "{seed}");
            }
            _ => {}
        }
        match rng.below(20) {
            0 => {
                rig.restart();
                set(&mut rig, &quotas);
            }
            1..=3 => rig.pass(rng.below(40_000)),
            _ => {}
        }
        rig.settle();
        let set_now: Vec<String> = quotas.iter().map(|q| q.prefix.to_string()).collect();
        let all: Vec<&str> = set_now.iter().map(String::as_str).collect();
        for prefix in &all {
            let [messages, bytes, leases, ..] = use_of(&mut rig, prefix).used;
            let counted = recount(&mut rig, prefix, &all);
            assert_eq!(
                Recount { messages, bytes, leases },
                counted,
                "seed {seed}, step {step}, prefix {prefix:?}"
            );
        }
    }
    refusals
}

#[test]
fn quota_books_match_recounts() {
    let refusals: u64 = (1..=400).map(history).sum();
    assert!(refusals > 400, "the histories did something: {refusals}");
}

/// Story: one tenant at the limit of the quota for all queues stopped the schedules of every other.
#[test]
fn system_queues_have_no_quota() {
    let all = Quota { messages: Some(1), bytes: Some(4), leases: Some(1), ..quota("") };
    let mut rig = rig(&[all]);
    put(&mut rig, message("tenant", 0)).unwrap();
    assert_eq!(rig.reserve("tenant", 1).len(), 1);
    let own = duewheel_core::name::QueueName::system("#schedules").unwrap();
    let record = Enqueue { when: When::After(0), ..Enqueue::new(own.clone(), "a record of some length") };
    put(&mut rig, record).expect("no quota applies");
    let demand = Reserve { queues: vec![own], ..rig.demand(&["tenant"], 1, 0) };
    let Reply::Reserve(Reserved::Grants(grants)) = rig.call(Op::Reserve(demand)) else { panic!("no grants") };
    assert_eq!(grants.len(), 1);
    assert_eq!(use_of(&mut rig, "").used, [1, 4, 1, 0, 0]);
}
