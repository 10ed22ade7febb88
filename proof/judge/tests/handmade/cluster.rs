//! What a failover of a cluster's store excuses, and what it does not; how long what was never answered lingers.

use duewheel_judge::checker::{Check, Fact, check};
use duewheel_judge::history::{
    Answer, Blow, Call, Fault, Grant, Held, MsgId, Refusal, State, Target, Totals, Unanswered, What,
};

use crate::script::{Q, Script, case, enqueue, grant, proof, reserve, row};

/// A failover that may forget what was answered within 100 ms before it.
fn fail_over(s: &mut Script) {
    s.history.rules.failover_ms = 100;
    s.fault(Fault::Struck(Blow::MasterKilled));
    s.fault(Fault::FailedOver);
    s.wait(10);
    s.fault(Fault::Healed);
}

#[test]
fn failover_forgets_only_last_messages() {
    case(Check::Lost, |s| {
        s.enqueue(1, None, 9_000);
        s.wait(if s.bad { 101 } else { 99 });
        fail_over(s);
        s.dump(vec![]);
    });
    // Nothing else forgets: not a node that is killed, and not a failover that was before.
    case(Check::Lost, |s| {
        if s.bad {
            fail_over(s);
            s.enqueue(1, None, 9_000);
            s.fault(Fault::Struck(Blow::NodeKilled));
            s.fault(Fault::Healed);
        } else {
            s.enqueue(1, None, 9_000);
            fail_over(s);
        }
        s.dump(vec![]);
    });
    // What is forgotten is counted, cannot be found, and leaves its key; what is not, is there.
    case(Check::Untruthful, |s| {
        s.enqueue(1, Some("k"), 9_000);
        s.wait(if s.bad { 101 } else { 0 });
        fail_over(s);
        s.refused(Call::Cancel(Target::Id(MsgId(1))), Refusal::NotFound);
    });
    case(Check::DoubleKey, |s| {
        s.enqueue(1, Some("k"), 9_000);
        s.wait(if s.bad { 101 } else { 0 });
        fail_over(s);
        s.enqueue(2, Some("k"), 9_000);
        s.cancel(2);
    });
    case(Check::NotOffered, |s| {
        s.enqueue(1, None, 0);
        s.wait(if s.bad { 101 } else { 0 });
        fail_over(s);
        s.wait(6_000);
        s.empty();
    });
    let mut s = Script::new(false);
    s.enqueue(1, None, 9_000);
    fail_over(&mut s);
    s.dump(vec![]);
    let report = check(&s.history);
    assert_eq!((report.balance.accepted, report.balance.forgotten, report.balance.lost), (1, 1, 0));
    assert_eq!(report.evidence.count(Fact::Struck(Blow::MasterKilled)), 1);
    assert_eq!(report.evidence.count(Fact::FailedOver), 1);
    assert_eq!(report.evidence.count(Fact::Forgotten), 1);
}

#[test]
fn forgotten_id_may_be_reused() {
    case(Check::Ghost, |s| {
        s.enqueue(1, None, 0);
        s.wait(if s.bad { 101 } else { 0 });
        fail_over(s);
        let answer = Answer::Enqueued {
            id: MsgId(1),
            created: true,
            replaced: None,
            superseded: None,
            due_at_ms: None,
        };
        s.done(enqueue(2, None, 0), answer);
        s.done(reserve(), Answer::Grants(vec![Grant { id: MsgId(1), ..grant(2, None, 1, 1) }]));
        s.ack(1, 1);
        s.dump(vec![]);
    });
    // Also to an enqueue that was asked for earlier, and had to wait.
    case(Check::Ghost, |s| {
        let waits = s.invoke(enqueue(2, None, 9_000));
        s.wait(5);
        s.enqueue(1, None, 9_000);
        let answer = Answer::Enqueued {
            id: MsgId(1),
            created: true,
            replaced: None,
            superseded: None,
            due_at_ms: None,
        };
        if s.bad {
            s.ok(waits, answer.clone());
        }
        fail_over(s);
        if !s.bad {
            s.ok(waits, answer);
        }
        let held = Held { id: MsgId(1), ..row(2, State::Scheduled, 0) };
        s.dump(vec![held]);
    });
    // What was done to the old one is not taken for something done to the new one; and the new one must not be lost.
    case(Check::Lost, |s| {
        s.enqueue(1, None, 9_000);
        s.cancel(1);
        fail_over(s);
        let answer = Answer::Enqueued {
            id: MsgId(1),
            created: true,
            replaced: None,
            superseded: None,
            due_at_ms: None,
        };
        s.done(enqueue(2, None, 9_000), answer);
        let held = Held { id: MsgId(1), ..row(2, State::Scheduled, 0) };
        s.dump(if s.bad { vec![] } else { vec![held] });
    });
}

#[test]
fn forgotten_message_may_be_retried() {
    case(Check::Ghost, |s| {
        let Call::Enqueue(mut e) = enqueue(1, None, 0) else { unreachable!() };
        e.dedupe_id = Some("d".to_owned());
        s.history.rules.unanswered = Unanswered::ForMs(0);
        s.unknown(Call::Enqueue(e.clone()));
        s.done(reserve(), Answer::Grants(vec![Grant { id: MsgId(9), ..grant(1, None, 1, 1) }]));
        s.wait(if s.bad { 101 } else { 0 });
        fail_over(s);
        s.done(
            Call::Enqueue(e),
            Answer::Enqueued {
                id: MsgId(1),
                created: true,
                replaced: None,
                superseded: None,
                due_at_ms: None,
            },
        );
        s.grant(1, None, 1, 2);
    });
}

#[test]
fn failover_undoes_only_last_ends() {
    case(Check::GrantAfterAck, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.ack(1, 1);
        s.wait(if s.bad { 101 } else { 50 });
        fail_over(s);
        s.wait(100);
        s.grant(1, None, 2, 2);
        s.ack(1, 2);
        s.dump(vec![]);
    });
    case(Check::GrantAfterCancel, |s| {
        s.enqueue(1, None, 0);
        s.wait(200);
        if !s.bad {
            s.cancel(1);
        }
        fail_over(s);
        if s.bad {
            s.cancel(1);
        }
        s.late_ms = 200;
        s.grant(1, None, 1, 1);
    });
    case(Check::Resurrected, |s| {
        s.enqueue(1, None, 9_000);
        s.cancel(1);
        s.wait(if s.bad { 101 } else { 0 });
        fail_over(s);
        s.dump(vec![row(1, State::Scheduled, 0)]);
    });
    case(Check::EndedTwice, |s| {
        s.enqueue(1, None, 9_000);
        s.wait(200);
        s.cancel(1);
        fail_over(s);
        s.cancel(1);
        if s.bad {
            s.cancel(1);
        }
    });
}

#[test]
fn failover_forgets_leases_not_tokens() {
    case(Check::LeaseBroken, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.history.rules.lease_ms = 500;
        s.wait(if s.bad { 101 } else { 50 });
        fail_over(s);
        s.late_ms = if s.bad { 113 } else { 62 };
        s.grant(1, None, if s.bad { 2 } else { 1 }, 2);
    });
    case(Check::Attempts, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.wait(if s.bad { 101 } else { 50 });
        fail_over(s);
        s.late_ms = if s.bad { 113 } else { 62 };
        s.grant(1, None, 1, 2);
    });
    case(Check::TokenOrder, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 7);
        fail_over(s);
        s.late_ms = 12;
        s.grant(1, None, 1, if s.bad { 7 } else { 8 });
    });
    // When the newer grant was forgotten, the token before it is the latest again.
    case(Check::StaleSettle, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.wait(200);
        s.grant(1, None, 2, 2);
        s.wait(if s.bad { 101 } else { 0 });
        fail_over(s);
        s.ack(1, 1);
    });
    case(Check::WronglyRefused, |s| {
        s.history.rules.lease_ms = 1_000;
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.wait(if s.bad { 101 } else { 0 });
        fail_over(s);
        s.refused(Call::Ack(proof(1, 1)), Refusal::LeaseLost);
    });
    // An extend that was forgotten has not held anybody off.
    case(Check::LeaseBroken, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.done(Call::Extend { proof: proof(1, 1), lease_ms: 1_000 }, Answer::Settled);
        s.wait(if s.bad { 101 } else { 90 });
        fail_over(s);
        s.grant(1, None, 2, 2);
    });
}

#[test]
fn failover_undoes_last_due_times() {
    case(Check::Early, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.done(Call::Nack { proof: proof(1, 1), delay_ms: Some(5_000) }, Answer::Settled);
        s.wait(if s.bad { 101 } else { 90 });
        fail_over(s);
        s.grant(1, None, 2, 2);
    });
    // And what a nack had given back is leased as before.
    case(Check::Untruthful, |s| {
        s.history.rules.lease_ms = 1_000;
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.done(Call::Nack { proof: proof(1, 1), delay_ms: Some(5_000) }, Answer::Settled);
        s.wait(if s.bad { 101 } else { 0 });
        fail_over(s);
        s.refused(Call::Cancel(Target::Id(MsgId(1))), Refusal::Leased);
    });
}

#[test]
fn blow_excuses_waiting_until_healed() {
    case(Check::NotOffered, |s| {
        s.enqueue(1, None, 0);
        s.fault(Fault::Struck(Blow::NodeKilled));
        s.wait(6_000);
        s.empty();
        s.fault(Fault::Healed);
        s.wait(if s.bad { 6_000 } else { 4_000 });
        s.empty();
    });
    // Totals fall back with the messages that they counted.
    case(Check::Totals, |s| {
        s.enqueue(1, None, 9_000);
        s.wait(200);
        s.enqueue(2, None, 9_000);
        if !s.bad {
            fail_over(s);
        }
        s.dump(vec![row(1, State::Scheduled, 0)]);
        let totals = Totals { enqueued: 1, ..Totals::default() };
        s.push(What::Totals { queue: Q.to_owned(), totals });
    });
}

#[test]
fn struck_reserve_may_leave_lost_grant() {
    case(Check::Attempts, |s| {
        s.history.rules.unanswered = Unanswered::ForMs(50);
        s.enqueue(1, None, 0);
        s.fault(Fault::Struck(Blow::StorePaused));
        if !s.bad {
            s.empty();
        }
        s.fault(Fault::Healed);
        if s.bad {
            s.empty();
        }
        s.wait(200);
        s.late_ms = 202;
        s.grant(1, None, 2, 2);
    });
    // Nor does it stay for ever.
    case(Check::Untruthful, |s| {
        s.history.rules.unanswered = Unanswered::ForMs(50);
        s.enqueue(1, None, 0);
        s.fault(Fault::Struck(Blow::StorePaused));
        s.empty();
        s.fault(Fault::Healed);
        s.wait(60);
        s.enqueue(2, None, 9_000);
        s.wait(if s.bad { 800 } else { 20 });
        s.refused(Call::Cancel(Target::Id(MsgId(1))), Refusal::Leased);
    });
}

/// Story: the disk of a machine stood still for a second, and a shard's grants came when its reserve had been answered.
#[test]
fn slow_reserve_may_leave_lost_grant() {
    case(Check::Attempts, |s| {
        s.history.rules.unanswered = Unanswered::ForMs(50);
        s.history.rules.partial_ms = 1_000;
        s.history.rules.offer_ms = 5_000;
        s.enqueue(1, None, 0);
        let slow = s.invoke(reserve());
        s.wait(if s.bad { 900 } else { 1_000 });
        s.ok(slow, Answer::Grants(Vec::new()));
        s.late_ms = 1_020;
        s.grant(1, None, 2, 1);
    });
}

#[test]
fn unanswered_calls_linger_briefly() {
    // A replacement that was given up long ago has not ended a message that is younger.
    case(Check::Lost, |s| {
        s.history.rules.unanswered = Unanswered::ForMs(50);
        s.unknown(enqueue(2, Some("k"), 9_000));
        s.wait(if s.bad { 51 } else { 49 });
        s.enqueue(1, Some("k"), 9_000);
        s.dump(vec![]);
    });
    // A kill elsewhere does not end it, as it would in a system of one process.
    case(Check::Lost, |s| {
        s.unknown(enqueue(2, Some("k"), 9_000));
        if s.bad {
            s.kill();
        } else {
            s.history.rules.unanswered = Unanswered::ForMs(50);
            s.fault(Fault::Struck(Blow::NodeKilled));
            s.fault(Fault::Healed);
        }
        s.enqueue(1, Some("k"), 9_000);
        s.dump(vec![]);
    });
}

#[test]
fn blows_that_bite_are_counted() {
    let mut s = Script::new(false);
    s.enqueue(1, None, 100);
    s.enqueue(2, None, 0);
    s.grant(2, None, 1, 1);
    s.fault(Fault::Struck(Blow::NodeKilled));
    s.ack(2, 1);
    s.refused(Call::Cancel(Target::Id(MsgId(9))), Refusal::Other("storage_unavailable".to_owned()));
    s.wait(1_200);
    s.fault(Fault::Healed);
    s.late_ms = 1_103;
    s.grant(1, None, 1, 2);
    let report = check(&s.history);
    assert!(report.violations.is_empty(), "{report}");
    let facts = [
        (Fact::Struck(Blow::NodeKilled), 1),
        (Fact::LeasesAckedAcrossABlow, 1),
        (Fact::StorageUnavailable, 1),
        (Fact::DelayedByABlow, 1),
    ];
    for (fact, n) in facts {
        assert_eq!(report.evidence.count(fact), n, "{fact:?}");
    }
}

/// Each fault may move a shard, whose time stands still for a moment; that is allowed for each of them, and no more.
#[test]
fn each_fault_excuses_some_lateness() {
    case(Check::Lateness, |s| {
        s.history.rules.move_ms = 400;
        s.enqueue(1, None, 1_000);
        for _ in 0..2 {
            s.fault(Fault::Struck(Blow::NodeKilled));
            s.fault(Fault::Healed);
        }
        s.wait(3_000);
        // 2,000 ms late, of which 800 and what is usual may be missing.
        let lateness_ms = if s.bad { 1_100 } else { 1_210 };
        s.done(reserve(), Answer::Grants(vec![Grant { lateness_ms, ..grant(1, None, 1, 1) }]));
        s.ack(1, 1);
        s.dump(vec![]);
    });
}

/// What happens to the cluster after a message was granted excuses nothing of it.
#[test]
fn later_faults_are_no_excuse() {
    case(Check::Lateness, |s| {
        s.history.rules.move_ms = 400;
        s.enqueue(1, None, 1_000);
        let blow = |s: &mut Script| {
            s.fault(Fault::Struck(Blow::NodeKilled));
            s.fault(Fault::Healed);
        };
        if !s.bad {
            blow(s);
        }
        s.wait(3_000);
        s.done(reserve(), Answer::Grants(vec![Grant { lateness_ms: 1_700, ..grant(1, None, 1, 1) }]));
        if s.bad {
            blow(s);
        }
        s.ack(1, 1);
        s.dump(vec![]);
    });
}
