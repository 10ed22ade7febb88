//! The records of acts: each in the group of its act, in a bounded number.

use std::sync::Arc;

use duewheel_core::act::Act;
use duewheel_core::engine::{Ask, Edit, Effect, Effects, Enqueue, Input, Op, Reply, Target};
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
fn acts(rig: &mut Rig) -> Vec<Act> {
    let (queue, state) = (QueueName::of_acts(), Some(State::Dead));
    match rig.call(Op::List { queue, state, after: None, limit: 10_000, from: None }) {
        Reply::Page(page) => page.views.iter().map(|view| Act::of(&view.message.headers)).collect(),
        other => panic!("{other:?}"),
    }
}

fn note(rig: &mut Rig, nonce: u64, token: Option<&str>) {
    rig.call(Op::note_act((*act(nonce, token)).clone()).into_op());
}

fn nonces(rig: &mut Rig) -> Vec<u64> {
    let mut nonces: Vec<u64> = acts(rig).iter().map(|act| act.nonce).collect();
    nonces.sort_unstable();
    nonces
}

#[test]
fn act_is_recorded_with_its_effect() {
    let mut rig = Rig::new(Policy::default());
    for _ in 0..3 {
        rig.put("q", 60_000, None);
    }
    let purge = || Op::Purge { at_most: None, queue: queue("q") };
    let (_, effects) = rig.raw(purge().of_act(&act(1, Some("t"))));
    match &effects[..] {
        [
            Effect::Append(Record::Purged { purged: 3, .. }),
            Effect::Append(Record::Put { message, was: None, .. }),
            Effect::Respond { reply, .. },
        ] => {
            let act = (*act(1, Some("t"))).clone();
            assert_eq!(Act::of(&message.headers), Act { count: Some(3), ..act });
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

/// The record of a job's act gets the outcome in the group of the job's own record, and goes if nothing was changed.
#[test]
fn job_ends_its_act_in_its_group() {
    // Of one that has changed nothing, and was refused nothing, no record is left.
    for (done, refused) in [(5, Some(2)), (0, Some(2)), (0, None)] {
        let mut rig = Rig::new(Policy::default());
        let begun = Arc::new(Act { job: Some("j1".into()), ..(*act(1, Some("t"))).clone() });
        let record = || Box::new(Enqueue::new(QueueName::system("#jobs").unwrap(), "begun"));
        let Reply::Enqueue(Ok(put)) = rig.call(Op::Enqueue(record()).of_act(&begun)) else { panic!() };
        assert_eq!(acts(&mut rig), [(*begun).clone()], "it is running");
        rig.restart();
        let edit = || Box::new(Edit { body: Some("ended".into()), ..Edit::default() });
        let ended = Arc::new(Act { count: Some(done), refused, ..(*begun).clone() });
        let end = |generation| {
            Op::postpone(Target::Own(put.id), edit(), Some(generation)).of_act(Some(&ended)).into_op()
        };
        rig.call(end(put.generation + 1));
        assert_eq!(acts(&mut rig), [(*begun).clone()], "another was first");
        let (_, effects) = rig.raw(end(put.generation));
        let of_act = |effect: &&Effect| match effect {
            Effect::Append(Record::Put { message, .. }) => message.queue.is_of_acts(),
            Effect::Append(Record::Removed { was, .. }) => was.queue.is_of_acts(),
            _ => false,
        };
        assert_eq!(effects.iter().filter(of_act).count(), 1, "{effects:?}");
        for _ in 0..2 {
            let left = if done == 0 && refused.is_none() { vec![] } else { vec![(*ended).clone()] };
            assert_eq!(acts(&mut rig), left);
            rig.restart();
        }
    }
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
        assert_eq!(
            rig.call(Op::Purge { at_most: None, queue: queue("q") }.of_act(&act(1, None))),
            Reply::Count(1.into())
        );
        assert!(nonces(&mut rig).is_empty(), "{room:?}");
    }
}
