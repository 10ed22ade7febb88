//! One look-up for a batch must give the same answers as one for each operation.

use duewheel_core::engine::*;
use duewheel_core::hash_key::HashKey;
use duewheel_core::id::{MessageId, ReplyTo};
use duewheel_core::message::State;
use duewheel_core::policy::Policy;
use duewheel_core::store::{Found, Lookups};

use crate::harness::*;

/// Next to nothing stays in memory.
fn tiny() -> Policy {
    Policy {
        near_messages: 1,
        ready_messages: 1,
        least_window: 1,
        load_rows: 3,
        wheel_slots: 8,
        ..Policy::default()
    }
}

fn operation(rng: &mut Rng, issued: u64) -> Op {
    let q = ["a", "b"][rng.below(2) as usize];
    let k = ["x", "y"][rng.below(2) as usize];
    let target = if rng.chance(60) {
        Target::Key(queue(q), key(k))
    } else {
        Target::Id(MessageId(1 + rng.below(issued + 3)))
    };
    match rng.below(10) {
        0..=3 => {
            let if_exists = [IfExists::Reject, IfExists::Keep, IfExists::Replace][rng.below(3) as usize];
            let dedupe_id = rng.chance(30).then(|| format!("once-{}", rng.below(4)).into());
            let delay = 1_000 + rng.below(2) * 100_000;
            Op::Enqueue(Box::new(Enqueue {
                key: rng.chance(80).then(|| key(k)),
                if_exists,
                dedupe_id,
                ..message(q, delay)
            }))
        }
        4 | 5 => Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target },
        6 => {
            let body = rng.chance(50).then(|| "another".into());
            let edit = Box::new(Edit { body, ..Edit::due(When::After(rng.below(200_000))) });
            Op::Postpone { target, edit, if_generation: None }
        }
        7 => Op::Fire { target },
        8 => Op::Get { target },
        _ if rng.chance(20) => Op::Purge { at_most: None, queue: queue(q) },
        _ => Op::Redrive { id: MessageId(1 + rng.below(issued + 1)), delay_ms: None, died: None },
    }
}

/// All operations with one look-up and one append.
fn batch(rig: &mut Rig, ops: &[Op]) -> Vec<Reply> {
    for _ in 0..2 {
        let mut lookups = Lookups::default();
        for op in ops {
            rig.engine.look_up(Some(op), &mut lookups);
        }
        let mut found = Found::default();
        rig.table.find_many(&lookups, &mut found);
        rig.engine.adopt(&lookups, found);
    }
    let mut fx = Effects::new();
    for (to, op) in (1_000_000..).zip(ops) {
        rig.engine.handle(rig.now, Input::Request { to: ReplyTo(to), op: op.clone() }, &mut fx);
    }
    rig.absorb_batch(fx);
    (1_000_000..).take(ops.len()).map(|to| rig.reply(ReplyTo(to)).expect("answered")).collect()
}

/// The key of the hash tables is random on a server, and a simulation is repeated without it.
#[test]
fn the_hash_key_changes_no_decision() {
    for seed in 1..200u64 {
        let mut rng = Rng::seeded(seed);
        let mut rigs = [1, 2].map(|n| Rig::hashing(tiny(), Ids::default(), HashKey::seeded(n)));
        for round in 0..20 {
            let ops: Vec<Op> = (0..1 + rng.below(6)).map(|_| operation(&mut rng, 20)).collect();
            let [one, other] = rigs.each_mut().map(|rig| batch(rig, &ops));
            assert_eq!(one, other, "seed {seed}, round {round}: {ops:?}");
        }
        let [one, other] = rigs.map(|rig| rig.table.rows());
        assert_eq!(one, other, "seed {seed}");
    }
}

#[test]
fn batch_answers_like_single_operations() {
    let mut changed = 0;
    for seed in 1..2_000u64 {
        let mut rng = Rng::seeded(seed);
        let (mut one, mut many) = (Rig::new(tiny()), Rig::new(tiny()));
        for round in 0..6 {
            let issued = one.table.next_id();
            let ops: Vec<Op> = (0..1 + rng.below(12)).map(|_| operation(&mut rng, issued)).collect();
            let each: Vec<Reply> = ops
                .iter()
                .map(|op| {
                    let (to, _) = one.raw(op.clone());
                    one.reply(to).expect("answered")
                })
                .collect();
            let all = batch(&mut many, &ops);
            assert_eq!(all, each, "seed {seed}, round {round}: {ops:?}");
            assert_eq!(many.table.rows(), one.table.rows(), "seed {seed}, round {round}");
            assert_eq!(many.table.queue_rows(), one.table.queue_rows(), "seed {seed}, round {round}");
            let ms = rng.below(3_000);
            for rig in [&mut one, &mut many] {
                rig.pass(ms);
                rig.timeout();
            }
        }
        changed += one.table.applied().0;
    }
    assert!(changed > 20_000, "the operations did something: {changed}");
}

/// Story: a redrive looked for its key's holder by id alone, and did not see one that went straight to the store in the
/// same batch: two unsettled messages had one key (review).
#[test]
fn redrive_sees_key_of_same_batch() {
    let mut rig = Rig::new(tiny());
    rig.put("filler", 50_000, None); // the wheel is full: what is due later goes straight to the store
    let dead = rig.put("a", 0, Some("x"));
    let grant = rig.reserve("a", 1).remove(0);
    rig.call(Op::Bury { id: dead, proof: grant.token.into(), priority: None, note: "".into() });
    let enqueue = Op::Enqueue(Box::new(Enqueue { key: Some(key("x")), ..message("a", 90_000) }));
    let replies = batch(&mut rig, &[enqueue, Op::Redrive { id: dead, delay_ms: None, died: None }]);
    let [Reply::Enqueue(Ok(taken)), Reply::Change(redriven)] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!(*redriven, Err(ChangeRefusal::KeyExists(KeyHolder { id: taken.id, state: State::Scheduled })));
}
