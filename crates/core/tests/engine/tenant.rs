//! A tenant at its limit asks for each operation, again and again, with new names each time.

use duewheel_core::engine::*;
use duewheel_core::id::MessageId;
use duewheel_core::policy::{Policy, QueueSettings};

use crate::harness::*;
use crate::operations::each_operation;

const MESSAGES: u64 = 10;
const BYTES: u64 = 10_000;
const DONE: u64 = 20;

fn set_quota(rig: &mut Rig) {
    let quota =
        Quota { prefix: "t.".into(), messages: Some(MESSAGES), bytes: Some(BYTES), ..Quota::default() };
    let quotas = Quotas::new(vec![quota], &rig.policy).unwrap();
    let mut fx = Effects::new();
    rig.engine.handle(rig.now, Input::Quotas(quotas), &mut fx);
    rig.absorb(fx);
}

/// The form of an operation that leaves most behind.
fn grown(op: Op, round: u64) -> Op {
    match op {
        Op::Enqueue(e) => Op::Enqueue(Box::new(Enqueue {
            key: e.key.filter(|_| round.is_multiple_of(3)),
            dedupe_id: Some(format!("{round:0>250}").into()),
            when: When::After(if round.is_multiple_of(2) { 0 } else { 86_400_000 }),
            headers: vec![("name".into(), "value".repeat(20).into())],
            ..*e
        })),
        Op::Reserve(reserve) => Op::Reserve(Reserve { wait_ms: 3_600_000, ..reserve }),
        Op::Nack { id, proof, attempt, .. } => {
            let note = "why ".repeat(60).into();
            Op::Nack { id, proof, attempt, delay_ms: Some(0), priority: None, note }
        }
        Op::Configure { queue, .. } => {
            let settings = QueueSettings {
                lease_ms: Some(1_000 + round),
                keep_done_ms: Some(60_000),
                ..QueueSettings::default()
            };
            Op::Configure { queue, settings }
        }
        op => op,
    }
}

/// The rows of a table and the state of its engine, of which each has a bound.
fn check(rig: &mut Rig) {
    let (settings, answers) = (MESSAGES, MESSAGES * 10);
    let rows = rig.table.rows().len() as u64;
    assert!(rows <= MESSAGES + DONE, "{rows} messages");
    let remembered = rig.table.answers().iter().filter(|row| rig.table.ledger().remembers(row)).count();
    assert!(remembered as u64 <= answers + 2 * DONE, "{remembered} answers");
    let books = rig.table.ledger().len() as u64;
    assert!(books <= MESSAGES + settings + answers + DONE + 2, "{books} queues have books");

    let Reply::Stats(stats) = rig.call(Op::Stats) else { panic!() };
    assert!(
        stats.counts.scheduled + stats.counts.ready + stats.counts.leased + stats.counts.dead <= MESSAGES
            && stats.resident <= MESSAGES,
        "{stats:?}"
    );
    assert!(stats.bytes <= BYTES && stats.resident_bytes <= BYTES, "{stats:?}");
    assert!(stats.queues <= books && stats.waiters <= 1, "{stats:?}");
    assert!(rig.engine.answer_counts().kept <= answers + 2 * DONE, "{:?}", rig.engine.answer_counts());
}

#[test]
fn tenant_stays_bounded_under_all_operations() {
    let mut rig = Rig::new(Policy { max_done: DONE as usize, ..Policy::default() });
    set_quota(&mut rig);
    let mut lease = (MessageId(1), Proof::Session(duewheel_core::id::SessionId(3)));
    let mut accepted = 0;
    for round in 0..2_000_u64 {
        let (name, key) = (queue(&format!("t.{round}")), key(&format!("k{round}")));
        for op in each_operation(&name, &key, lease.0, lease.1) {
            // A purge in each round would leave nothing that can grow.
            if matches!(op, Op::Purge { .. } | Op::Cancel { .. }) && !round.is_multiple_of(50) {
                continue;
            }
            // A restore is bounded as an enqueue is.
            if matches!(op, Op::Restore { .. }) {
                continue;
            }
            let to = rig.step(grown(op, round));
            rig.settle();
            match rig.reply(to) {
                Some(Reply::Reserve(Reserved::Grants(grants))) => {
                    if let Some(grant) = grants.first() {
                        lease = (grant.message.id, Proof::Token(grant.token));
                    }
                }
                Some(Reply::Enqueue(Ok(_))) => accepted += 1,
                _ => {}
            }
            rig.pass(1_000);
        }
        if round.is_multiple_of(100) {
            check(&mut rig);
        }
        if round.is_multiple_of(500) {
            rig.restart();
            set_quota(&mut rig);
        }
    }
    rig.settle();
    check(&mut rig);
    assert!(accepted > 100, "{accepted} were accepted");
    let Reply::Quotas(uses) = rig.call(Op::Quotas) else { panic!() };
    let forgotten = rig.engine.answer_counts().forgotten[ForgottenFor::Quota as usize];
    assert!(uses[0].refused[0] > 100 && forgotten > 0, "it was at its limits: {uses:?}");
}
