//! The records of acts: each in the group of its act, in a bounded number.

use std::sync::Arc;

use duewheel_core::act::{Act, RecordedAct};
use duewheel_core::engine::{Ask, Effect, Effects, Input, Op, Reply};
use duewheel_core::message::State;
use duewheel_core::name::QueueName;
use duewheel_core::policy::Policy;
use duewheel_core::record::Record;
use duewheel_core::store::Capacity;
use duewheel_core::time::WallMs;

use crate::harness::{Rig, WALL, queue};

fn act(nonce: u64, token: Option<&str>) -> Arc<Act> {
    let token = token.map(Box::from);
    let (name, object, request_id) = ("purge".into(), "q".into(), "r".into());
    Arc::new(Act { nonce, at: WallMs(WALL + nonce), name, object, token, request_id, ..Act::default() })
}

/// The recorded acts.
fn acts(rig: &mut Rig) -> Vec<RecordedAct> {
    let (queue, state) = (QueueName::of_acts(), Some(State::Dead));
    match rig.call(Op::List { queue, state, after: None, limit: 10_000, from: None }) {
        Reply::Page(page) => page.views.iter().map(|view| RecordedAct::of(&view.message)).collect(),
        other => panic!("{other:?}"),
    }
}

fn note(rig: &mut Rig, nonce: u64, token: Option<&str>) {
    rig.call(Op::note_act((*act(nonce, token)).clone()).into_op());
}

fn nonces(rig: &mut Rig) -> Vec<u64> {
    let mut nonces: Vec<u64> = acts(rig).iter().map(|recorded| recorded.act.nonce).collect();
    nonces.sort_unstable();
    nonces
}

#[test]
fn act_is_recorded_with_its_effect() {
    let mut rig = Rig::new(Policy::default());
    for _ in 0..3 {
        rig.put("q", 60_000, None);
    }
    let purge = || Op::Purge { queue: queue("q") };
    let (_, effects) = rig.raw(purge().of_act(&act(1, Some("t"))));
    match &effects[..] {
        [
            Effect::Append(Record::Purged { purged: 3, .. }),
            Effect::Append(Record::Put { message, was: None, .. }),
            Effect::Respond { reply, .. },
        ] => {
            let act = (*act(1, Some("t"))).clone();
            assert_eq!(RecordedAct::of(message), RecordedAct { act, count: Some(3) });
            assert_eq!(*reply, Reply::Count(3.into()));
        }
        other => panic!("{other:?}"),
    }
    let (_, effects) = rig.raw(purge().of_act(&act(2, None)));
    assert!(matches!(effects[..], [Effect::Respond { .. }]), "nothing has changed: {effects:?}");
    assert_eq!(nonces(&mut rig), [1]);
    note(&mut rig, 3, None);
    assert_eq!(nonces(&mut rig), [1, 3]);
    let Reply::Stats(stats) = rig.call(Op::Stats) else { panic!() };
    assert_eq!((stats.counts.dead, stats.queues, stats.totals.enqueued), (0, 1, 3), "figures are of callers");
}

#[test]
fn steps_of_an_act_are_one_record() {
    let mut rig = Rig::new(Policy { max_step: 10, ..Policy::default() });
    for _ in 0..25 {
        rig.put("q", 60_000, None);
    }
    for (count, sum) in [(10, 10), (10, 20), (5, 25)] {
        let fired = rig.call(Op::FireMany { queue: queue("q"), max: 100 }.of_act(&act(7, Some("t"))));
        assert_eq!(fired, Reply::Count(count.into()));
        let recorded = acts(&mut rig);
        assert_eq!(recorded.len(), 1);
        assert_eq!(recorded[0].count, Some(sum));
    }
    rig.restart();
    assert_eq!(acts(&mut rig)[0].count, Some(25));
}

#[test]
fn acts_are_bounded_over_restarts() {
    let policy = Policy { max_acts: 8, max_acts_of_token: 3, ..Policy::default() };
    let mut rig = Rig::new(policy);
    note(&mut rig, 1, Some("quiet"));
    for nonce in 2..20 {
        note(&mut rig, nonce, Some("loud"));
    }
    assert_eq!(nonces(&mut rig), [1, 17, 18, 19], "a token pushes out its own acts alone");
    rig.restart();
    note(&mut rig, 20, Some("loud"));
    assert_eq!(nonces(&mut rig), [1, 18, 19, 20]);
    for nonce in 21..40 {
        note(&mut rig, nonce, None);
    }
    assert_eq!(nonces(&mut rig), (32..40).collect::<Vec<_>>());
}

#[test]
fn full_disk_purges_without_act() {
    for room in [Capacity::SettleOnly, Capacity::RemoveOnly] {
        let mut rig = Rig::new(Policy::default());
        rig.put("q", 60_000, None);
        rig.engine.handle(rig.now, Input::Room(room), &mut Effects::new());
        assert_eq!(rig.call(Op::Purge { queue: queue("q") }.of_act(&act(1, None))), Reply::Count(1.into()));
        assert!(nonces(&mut rig).is_empty(), "{room:?}");
    }
}
