//! The totals of a queue without settings stay for a day after its last message.

use duewheel_core::engine::*;
use duewheel_core::policy::{Policy, QueueSettings, REST_MS};

use crate::harness::*;

/// Enqueues a message, and acks it: the queue is empty afterwards.
fn use_once(rig: &mut Rig, name: &str) {
    rig.put(name, 0, None);
    let grant = rig.reserve(name, 1).pop().unwrap();
    rig.call(Op::Ack { id: grant.message.id, proof: grant.token.into(), result: None });
}

/// Enqueued and acked ones, if the queue or its totals are known.
fn totals(rig: &mut Rig, name: &str) -> Option<(u64, u64)> {
    let Reply::Queues(views) = rig.call(Op::Queue { queue: queue(name) }) else { panic!() };
    views.first().map(|view| (view.totals.enqueued, view.totals.acked))
}

/// Story: "acked 0" after an ack, because the queue had ended with its last message.
#[test]
fn totals_stay_for_a_day() {
    let mut rig = Rig::new(Policy::default());
    for n in 1..=3 {
        use_once(&mut rig, "q");
        assert_eq!(totals(&mut rig, "q"), Some((n, n)));
        rig.pass(REST_MS - 1);
    }
    let Reply::Queues(views) = rig.call(Op::Queues { after: None, limit: 10 }) else { panic!() };
    assert!(views.is_empty(), "only its totals are left");
    rig.pass(1);
    assert_eq!(totals(&mut rig, "q"), None);
    use_once(&mut rig, "q");
    assert_eq!(totals(&mut rig, "q"), Some((1, 1)));
}

#[test]
fn resting_totals_make_way_for_queues() {
    let mut rig = Rig::new(Policy { max_queues: 2, ..Policy::default() });
    use_once(&mut rig, "a");
    use_once(&mut rig, "b");
    use_once(&mut rig, "a");
    rig.put("c", 0, None);
    assert_eq!(["a", "b"].map(|name| totals(&mut rig, name)), [Some((2, 2)), None], "the oldest goes first");
    rig.put("d", 0, None);
    assert_eq!(totals(&mut rig, "a"), None);
    let Reply::Enqueue(refused) = rig.call(Op::Enqueue(Box::new(message("e", 0)))) else { panic!() };
    assert!(matches!(refused, Err(EnqueueRefusal::Overloaded(Limit::Queues(2)))), "{refused:?}");
}

#[test]
fn resting_totals_count_for_their_owner() {
    let mut rig = Rig::new(Policy::default());
    let set = |rig: &mut Rig, prefix: &str| {
        let quota = Quota { prefix: prefix.into(), messages: Some(2), ..Quota::default() };
        let quotas = Quotas::new(vec![quota], &rig.policy).unwrap();
        let mut fx = Effects::new();
        rig.engine.handle(rig.now, Input::Quotas(quotas), &mut fx);
        rig.absorb(fx);
    };
    set(&mut rig, "acme.");
    for name in ["other", "acme.a", "acme.b", "acme.c"] {
        use_once(&mut rig, name);
    }
    let kept =
        |rig: &mut Rig| ["other", "acme.a", "acme.b", "acme.c"].map(|name| totals(rig, name).is_some());
    assert_eq!(kept(&mut rig), [true, false, true, true]);
    let settings = QueueSettings { lease_ms: Some(9), ..QueueSettings::default() };
    rig.call(Op::Configure { queue: queue("acme.d"), settings });
    assert_eq!(kept(&mut rig), [true, false, false, true], "queues with settings go before them");
    set(&mut rig, "o");
    use_once(&mut rig, "acme.a");
    assert_eq!(kept(&mut rig), [true, true, false, true], "they have another owner now");
}

/// An empty queue that gets the settings of a new one begins anew.
#[test]
fn reset_forgets_resting_totals() {
    let mut rig = Rig::new(Policy::default());
    use_once(&mut rig, "q");
    rig.call(Op::Configure { queue: queue("q"), settings: QueueSettings::default() });
    assert_eq!(totals(&mut rig, "q"), None);
}
