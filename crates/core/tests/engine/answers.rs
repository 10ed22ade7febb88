//! Remembered answers: what is counted, what is forgotten at a limit, and what a repeat is answered then.

use duewheel_core::engine::*;
use duewheel_core::id::{Lsn, MessageId};
use duewheel_core::policy::{Policy, QueueSettings};
use duewheel_core::record::Record;
use duewheel_core::store::Capacity;

use crate::harness::*;

const TEN_MINUTES: u64 = 600_000;

fn rig(policy: Policy, quotas: &[Quota]) -> Rig {
    let mut rig = Rig::new(policy);
    set(&mut rig, quotas);
    rig
}

fn set(rig: &mut Rig, quotas: &[Quota]) {
    let quotas = Quotas::new(quotas.to_vec(), &rig.policy).unwrap();
    let mut fx = Effects::new();
    rig.engine.handle(rig.now, Input::Quotas(quotas), &mut fx);
    rig.absorb(fx);
}

/// The tenant of the report: ten messages, ten thousand bytes.
fn small() -> Quota {
    Quota { prefix: "t.".into(), messages: Some(10), bytes: Some(10_000), ..Quota::default() }
}

fn with_id(name: &str, id: &str) -> Enqueue {
    Enqueue {
        key: Some(key("one")),
        if_exists: IfExists::Replace,
        dedupe_id: Some(id.into()),
        when: When::After(3_600_000),
        ..Enqueue::new(queue(name), "")
    }
}

fn put(rig: &mut Rig, e: Enqueue) -> Result<Enqueued, EnqueueRefusal> {
    match rig.call(Op::Enqueue(Box::new(e))) {
        Reply::Enqueue(answer) => answer,
        other => panic!("{other:?}"),
    }
}

fn is_replayed(rig: &mut Rig, name: &str, id: &str) -> bool {
    put(rig, with_id(name, id)).unwrap().answered == Answered::Before
}

fn use_of(rig: &mut Rig) -> [u64; 5] {
    let Reply::Quotas(uses) = rig.call(Op::Quotas) else { panic!() };
    uses[0].used
}

/// Story: a tenant with a quota of ten messages replaced one key with a new `dedupe_id` of 250 bytes each time. 4.8 million
/// were accepted in a minute, the folder grew to 1.4 GB, and the quota showed three messages.
#[test]
fn new_dedupe_ids_stay_within_quota() {
    let mut rig = rig(Policy::default(), &[small()]);
    let id = |n: u64| format!("{n:0>250}");
    let mut accepted = 0;
    for n in 0..1_000 {
        match put(&mut rig, with_id("t.q", &id(n))) {
            Ok(_) => accepted += 1,
            Err(EnqueueRefusal::OverQuota(over)) => assert_eq!(over.resource, Resource::Bytes),
            Err(other) => panic!("{other:?}"),
        }
    }
    let [_, bytes, _, _, answers] = use_of(&mut rig);
    assert!((10..100).contains(&accepted) && answers == accepted && bytes <= 10_000, "{accepted}, {bytes}");

    // All are old enough now: the oldest go, and the limits hold.
    for n in 0..1_000 {
        rig.pass(TEN_MINUTES / 10);
        let _ = put(&mut rig, with_id("t.q", &id(1_000 + n)));
        let [messages, bytes, _, _, answers] = use_of(&mut rig);
        assert!(messages == 1 && bytes <= 10_000 && answers <= 100, "{messages}, {bytes}, {answers}");
    }
    let counts = rig.engine.answer_counts();
    assert!(counts.forgotten[ForgottenFor::Quota as usize] > 900, "{counts:?}");
    assert!(counts.kept <= 100, "{counts:?}");
}

#[test]
fn young_answers_survive_limits() {
    let mut rig = rig(Policy::default(), &[Quota { answers: Some(3), ..small() }]);
    for id in ["a", "b", "c"] {
        put(&mut rig, with_id("t.q", id)).unwrap();
        rig.pass(1_000);
    }
    let over = OverQuota {
        quota: "t.".into(),
        resource: Resource::Answers,
        limit: 3,
        used: 3,
        retry_ms: Some(TEN_MINUTES - 3_000),
    };
    assert_eq!(put(&mut rig, with_id("t.q", "d")), Err(EnqueueRefusal::OverQuota(Box::new(over))));
    assert!(
        put(&mut rig, Enqueue { dedupe_id: None, ..with_id("t.q", "") }).is_ok(),
        "no answer is remembered"
    );
    assert!(is_replayed(&mut rig, "t.q", "a"));

    rig.pass(TEN_MINUTES - 3_000);
    assert!(!is_replayed(&mut rig, "t.q", "d"), "the oldest one makes place");
    assert!(is_replayed(&mut rig, "t.q", "b") && is_replayed(&mut rig, "t.q", "c"));
    rig.pass(1_000);
    assert!(!is_replayed(&mut rig, "t.q", "a"), "a forgotten id is new again");
}

#[test]
fn kept_message_needs_room_for_answer() {
    let mut rig = rig(Policy::default(), &[Quota { answers: Some(1), ..small() }]);
    put(&mut rig, with_id("t.q", "a")).unwrap();
    let keep = |id: &str| Enqueue { if_exists: IfExists::Keep, ..with_id("t.q", id) };
    assert!(matches!(put(&mut rig, keep("b")), Err(EnqueueRefusal::OverQuota(_))));
    rig.pass(TEN_MINUTES);
    assert!(put(&mut rig, keep("b")).is_ok());
    assert_eq!(use_of(&mut rig)[4], 1);
}

#[test]
fn restart_keeps_answer_counts() {
    let quotas = [Quota { answers: Some(64), bytes: None, ..small() }];
    let mut rig = rig(Policy::default(), &quotas);
    for n in 0..200 {
        rig.pass(TEN_MINUTES / 32);
        let _ = put(&mut rig, with_id(["t.q", "t.r"][n % 2], &format!("id-{n}")));
    }
    let (used, counts) = (use_of(&mut rig), rig.engine.answer_counts());
    let view = |rig: &mut Rig| -> Vec<bool> {
        let known = |n: usize| {
            let probe =
                Enqueue { body: "another".into(), ..with_id(["t.q", "t.r"][n % 2], &format!("id-{n}")) };
            matches!(put(rig, probe), Err(EnqueueRefusal::DedupeMismatch(_)))
        };
        (140..200).map(known).collect()
    };
    rig.restart();
    set(&mut rig, &quotas);
    assert_eq!(use_of(&mut rig), used);
    assert_eq!(
        (rig.engine.answer_counts().kept, rig.engine.answer_counts().bytes),
        (counts.kept, counts.bytes)
    );
    assert!(view(&mut rig).iter().rev().take(20).all(|known| *known), "the newest ones are remembered");
}

#[test]
fn expired_answers_leave_quota_count() {
    let mut rig = rig(Policy::default(), &[small()]);
    let settings = QueueSettings { dedupe_window_ms: Some(5_000), ..QueueSettings::default() };
    rig.call(Op::Configure { queue: queue("t.q"), settings });
    put(&mut rig, with_id("t.q", "a")).unwrap();
    assert_eq!(use_of(&mut rig)[4], 1);
    rig.pass(5_000);
    assert_eq!(use_of(&mut rig)[4], 0);
    assert!(!is_replayed(&mut rig, "t.q", "a"));
}

#[test]
fn purge_forgets_only_callers_answers() {
    let mut rig = rig(Policy::default(), &[small()]);
    put(&mut rig, with_id("t.q", "theirs")).unwrap();
    put(&mut rig, with_id("t.q", "\u{1}ours")).unwrap();
    put(&mut rig, with_id("t.r", "theirs")).unwrap();
    rig.call(Op::Purge { at_most: None, queue: queue("t.q") });
    assert_eq!(use_of(&mut rig)[4], 1);
    rig.restart();
    assert!(!is_replayed(&mut rig, "t.q", "theirs"));
    assert!(is_replayed(&mut rig, "t.q", "\u{1}ours"));
    assert!(is_replayed(&mut rig, "t.r", "theirs"));
}

#[test]
fn purge_forgets_answers_of_its_batch() {
    let mut rig = rig(Policy::default(), &[]);
    let mut fx = Effects::new();
    let mut request = |rig: &mut Rig, op| {
        let to = duewheel_core::ReplyTo(1);
        rig.engine.handle(rig.now, Input::Request { to, op }, &mut fx);
    };
    let enqueue = |e: Enqueue| Op::Enqueue(Box::new(e));
    request(&mut rig, enqueue(with_id("q", "a")));
    request(&mut rig, Op::Purge { at_most: None, queue: queue("q") });
    request(&mut rig, enqueue(with_id("q", "a")));
    request(&mut rig, enqueue(with_id("q", "a")));
    let answers = fx.iter().filter_map(|effect| match effect {
        Effect::Respond { reply: Reply::Enqueue(Ok(done)), .. } => Some((done.id, done.answered)),
        _ => None,
    });
    let (now, before) = (Answered::Now, Answered::Before);
    let all: Vec<_> = answers.collect();
    assert_eq!(all, [(MessageId(1), now), (MessageId(2), now), (MessageId(2), before)]);
}

#[test]
fn own_answers_count_for_nobody() {
    let mut rig = rig(Policy::default(), &[Quota { answers: Some(1), ..small() }]);
    for n in 0..10 {
        put(&mut rig, with_id("t.q", &format!("\u{1}job/{n}"))).unwrap();
    }
    assert_eq!(use_of(&mut rig)[4], 0);
    rig.pass(TEN_MINUTES);
    put(&mut rig, with_id("t.q", "a")).unwrap();
    rig.pass(TEN_MINUTES);
    put(&mut rig, with_id("t.q", "b")).unwrap();
    assert!(is_replayed(&mut rig, "t.q", "\u{1}job/0"));
}

#[test]
fn server_answer_limit_forgets_oldest() {
    let policy = Policy { max_answers: 4, ..Policy::default() };
    let mut rig = rig(policy, &[]);
    for n in 0..4 {
        put(&mut rig, with_id(&format!("q{n}"), "a")).unwrap();
        rig.pass(1_000);
    }
    assert_eq!(put(&mut rig, with_id("q9", "a")), Err(EnqueueRefusal::Overloaded(Limit::Answers(4))));
    rig.pass(TEN_MINUTES);
    put(&mut rig, with_id("q9", "a")).unwrap();
    assert!(is_replayed(&mut rig, "q1", "a"), "the second one is there");
    assert_eq!(rig.engine.answer_counts().forgotten[ForgottenFor::Limit as usize], 1);
}

#[test]
fn queues_with_answers_alone_are_limited() {
    let policy = Policy { max_queues: 4, ..Policy::default() };
    let mut rig = rig(policy, &[]);
    let brief = |rig: &mut Rig, n: u64| {
        let done = put(rig, Enqueue { key: None, ..with_id(&format!("q{n}"), "a") })?;
        rig.call(Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target: Target::Id(done.id) });
        Ok::<_, EnqueueRefusal>(())
    };
    for n in 0..4 {
        brief(&mut rig, n).unwrap();
    }
    assert_eq!(brief(&mut rig, 4), Err(EnqueueRefusal::Overloaded(Limit::Queues(4))));
    rig.pass(TEN_MINUTES);
    brief(&mut rig, 4).unwrap();
    rig.restart();
    assert_eq!(rig.engine.answer_counts().kept, 4);
    let Reply::Stats(stats) = rig.call(Op::Stats) else { panic!() };
    assert_eq!(stats.queues, 0, "no queue is made of them");
}

#[test]
fn full_store_forgets_only_old_answers() {
    let mut rig = rig(Policy::default(), &[]);
    put(&mut rig, with_id("q", "old")).unwrap();
    rig.pass(TEN_MINUTES);
    put(&mut rig, with_id("q", "young")).unwrap();
    let mut fx = Effects::new();
    rig.engine.handle(rig.now, Input::Room(Capacity::SettleOnly), &mut fx);
    rig.engine.handle_timeout(rig.now, &mut fx);
    let forgotten: Vec<&Effect> = fx.iter().collect();
    let upto = Lsn(1);
    assert_eq!(forgotten, [&Effect::Append(Record::AnswersForgotten { queue: queue("q"), upto })]);
    assert_eq!(rig.engine.answer_counts().kept, 1);
}

#[test]
fn ids_of_done_messages_are_limited() {
    let mut rig = rig(Policy { max_done: 5, ..Policy::default() }, &[]);
    let settings = QueueSettings { keep_done_ms: Some(3_600_000), ..QueueSettings::default() };
    rig.call(Op::Configure { queue: queue("q"), settings });
    for _ in 0..100 {
        put(&mut rig, Enqueue { dedupe_id: None, ..with_id("q", "") }).unwrap();
        rig.settle();
    }
    assert!(rig.engine.answer_counts().kept <= 11, "{:?}", rig.engine.answer_counts());
}

#[test]
fn an_enqueue_may_shorten_its_window() {
    let mut rig = rig(Policy::default(), &[]);
    let with = |id: &str, ms: u64| Enqueue { dedupe_window_ms: Some(ms), ..with_id("q", id) };
    put(&mut rig, with("a", 1_000)).unwrap();
    put(&mut rig, with_id("q", "b")).unwrap();
    let day = 24 * 3_600_000;
    let refused = EnqueueRefusal::OutOfRange(RefusedPart::DedupeWindow);
    assert_eq!(put(&mut rig, with("c", day + 1)), Err(refused.clone()));
    assert_eq!(put(&mut rig, with("c", 0)), Err(refused));
    put(&mut rig, with("c", day)).unwrap();
    rig.pass(1_000);
    assert!(!is_replayed(&mut rig, "q", "a") && is_replayed(&mut rig, "q", "b"));
}

#[test]
fn short_windows_end_behind_long_ones() {
    let quotas = [Quota { answers: Some(2), ..small() }];
    let mut rig = rig(Policy::default(), &quotas);
    put(&mut rig, with_id("t.q", "long")).unwrap();
    let short = |id: &str| Enqueue { dedupe_window_ms: Some(1_000), ..with_id("t.q", id) };
    for n in 0..100 {
        put(&mut rig, short(&format!("short-{n}"))).unwrap();
        assert_eq!(use_of(&mut rig)[4], 2);
        if n == 50 {
            rig.restart();
            set(&mut rig, &quotas);
        }
        rig.pass(1_000);
        rig.settle();
        assert_eq!(use_of(&mut rig)[4], 1);
    }
    assert!(is_replayed(&mut rig, "t.q", "long"));
}

/// Story: settings of 87,717 empty queues took 126 MB in a minute, with a quota of ten messages.
#[test]
fn configured_queues_count_against_quota() {
    let mut rig = rig(Policy::default(), &[small()]);
    let configure = |rig: &mut Rig, n: u64, settings: QueueSettings| {
        let op = Op::Configure { queue: queue(&format!("t.{n}")), settings };
        matches!(rig.call(op), Reply::Configured(_))
    };
    let own = || QueueSettings { lease_ms: Some(5), ..QueueSettings::default() };
    let accepted = (0..100).filter(|n| configure(&mut rig, *n, own())).count();
    assert_eq!(accepted, 10);
    assert!(matches!(rig.call(Op::Pause { queue: queue("t.77"), for_ms: None }), Reply::Configure(_)));
    rig.restart();
    set(&mut rig, &[small()]);
    assert!(configure(&mut rig, 3, own()), "one that counts already");
    assert!(!configure(&mut rig, 50, own()));
    assert!(configure(&mut rig, 50, QueueSettings::default()), "no settings of its own");
    assert!(configure(&mut rig, 3, QueueSettings::default()));
    assert!(configure(&mut rig, 50, own()), "another one has none any more");
}

/// Story: a retry of a client that wrote `priority: 1024` out was another content. What counts is what applied when the
/// enqueue was decided, also after the queue's settings have changed.
#[test]
fn defaults_count_as_of_the_first_enqueue() {
    let mut rig = rig(Policy::default(), &[]);
    let plain = || Enqueue { priority: None, ..with_id("q", "a") };
    put(&mut rig, plain()).unwrap();
    let settings = QueueSettings { priority: Some(7), lease_ms: Some(5_000), ..QueueSettings::default() };
    rig.call(Op::Configure { queue: queue("q"), settings });
    for restart in [false, true] {
        if restart {
            rig.restart();
        }
        assert_eq!(put(&mut rig, plain()).unwrap().answered, Answered::Before, "left out as before");
        let written = Enqueue { priority: Some(1_024), ..plain() };
        assert_eq!(put(&mut rig, written).unwrap().answered, Answered::Before, "written out");
        let other = put(&mut rig, Enqueue { priority: Some(7), ..plain() });
        assert!(matches!(other, Err(EnqueueRefusal::DedupeMismatch(_))), "{other:?}");
    }
    let later = put(&mut rig, Enqueue { priority: Some(7), ..with_id("q", "b") }).unwrap();
    assert_eq!(later.answered, Answered::Now);
    assert_eq!(put(&mut rig, with_id("q", "b")).unwrap().answered, Answered::Before, "7 applies now");
}

#[test]
fn a_cancel_frees_the_dedupe_id() {
    for restart in [false, true] {
        let mut rig = rig(Policy::default(), &[]);
        let cancel = |target, dedupe_id| Op::Cancel { keep: None, target, dedupe_id };
        let first = put(&mut rig, with_id("q", "a")).unwrap().id;
        let again = |rig: &mut Rig| {
            if restart {
                rig.restart();
            }
            put(rig, with_id("q", "a")).unwrap()
        };
        rig.call(cancel(Target::Id(first), DedupeId::Stays));
        assert_eq!(again(&mut rig).answered, Answered::Before, "it stays unless it is freed");
        let gone = rig.call(cancel(Target::Id(first), DedupeId::Freed));
        assert_eq!(gone, Reply::Change(Err(ChangeRefusal::NotFound)));
        assert_eq!(again(&mut rig).answered, Answered::Before, "a cancel that was refused frees nothing");

        let two = put(&mut rig, with_id("q", "b")).unwrap().id;
        rig.call(cancel(Target::Key(queue("q"), key("one")), DedupeId::Freed));
        if restart {
            rig.restart();
        }
        let new = put(&mut rig, with_id("q", "b")).unwrap();
        assert!(new.answered == Answered::Now && new.id > two);
        // The id has another answer by now: a message that had it before does not free it.
        rig.pass(25 * 3_600_000);
        let newer = put(&mut rig, with_id("q", "b")).unwrap();
        assert_eq!(newer.answered, Answered::Now, "its window is over");
        assert!(newer.id > new.id);
    }
}

/// Story: an answer whose id a cancel had freed counted until the end of its window, and a second one for the record
/// that freed it: a tenant that took back all its ids was at its limit.
#[test]
fn freed_answers_do_not_count() {
    let mut rig = rig(Policy::default(), &[]);
    put(&mut rig, with_id("q", "stays")).unwrap();
    let quotas = [Quota { prefix: "q".into(), answers: Some(100), ..Quota::default() }];
    set(&mut rig, &quotas);
    let (before, used) = (rig.engine.answer_counts(), use_of(&mut rig)[4]);
    for no in 0..90 {
        let id = put(&mut rig, with_id("q", &format!("{no:05}"))).unwrap().id;
        rig.pass(1);
        if no == 45 {
            rig.restart();
            set(&mut rig, &quotas);
        }
        rig.call(Op::Cancel { keep: None, target: Target::Id(id), dedupe_id: DedupeId::Freed });
    }
    for _ in 0..2 {
        let counts = rig.engine.answer_counts();
        assert_eq!((counts.kept, counts.bytes, use_of(&mut rig)[4]), (before.kept, before.bytes, used));
        rig.restart();
        set(&mut rig, &quotas);
    }
    assert!(is_replayed(&mut rig, "q", "stays"));
    assert!(!is_replayed(&mut rig, "q", "00007"));
}
