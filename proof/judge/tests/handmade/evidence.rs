//! What provably happened is counted.

use duewheel_judge::checker::{Fact, check};
use duewheel_judge::history::{Answer, Call, Fault, Grant, Moment, Refusal};

use crate::script::{Script, enqueue, grant, proof, reserve};

/// A pause counts only for what certainly happened in it: a lease of 100 ms and a delay that both end between the two
/// marks.
#[test]
fn what_a_pause_did_is_counted() {
    let facts = |before: u64, paused: u64| {
        let mut s = Script::new(false);
        s.enqueue(1, None, 0);
        s.enqueue(2, None, 200);
        s.grant(1, None, 1, 1);
        s.wait(before);
        s.fault(Fault::Paused);
        s.wait(paused);
        s.fault(Fault::Resumed);
        s.wait(300);
        let late = |ms: u64| ms + before + paused;
        s.done(
            reserve(),
            Answer::Grants(vec![
                Grant { lateness_ms: late(200), ..grant(1, None, 2, 2) },
                Grant { lateness_ms: late(101), ..grant(2, None, 1, 3) },
            ]),
        );
        let report = check(&s.history);
        assert_eq!(report.failed(), [], "{before} {paused}");
        [Fact::Pauses, Fact::LeasesEndedInAPause, Fact::OverdueFromPauses]
            .map(|fact| report.evidence.count(fact))
    };
    assert_eq!(facts(10, 1_000), [1, 1, 1]);
    assert_eq!(facts(10, 50), [1, 0, 0], "both end after it");
    assert_eq!(facts(150, 1_000), [1, 0, 1], "the lease has ended before it");
    assert_eq!(facts(250, 1_000), [1, 0, 0], "both have");
}

#[test]
fn evidence_is_counted_and_required() {
    let mut s = Script::new(false);
    s.enqueue(1, None, 0);
    s.unknown(enqueue(2, None, 10));
    s.grant(1, None, 1, 1);
    s.fault(Fault::Killed(Moment::Serving));
    s.wait(50);
    s.fault(Fault::Killed(Moment::Recovering));
    s.wait(50);
    s.fault(Fault::Started);
    s.done(
        reserve(),
        Answer::Grants(vec![grant(1, None, 2, 2), Grant { lateness_ms: 90, ..grant(2, None, 1, 3) }]),
    );
    s.refused(Call::Ack(proof(1, 1)), Refusal::LeaseLost);
    s.done(Call::Ack(proof(1, 2)), Answer::Settled);
    let report = check(&s.history);
    assert!(report.violations.is_empty(), "{report}");
    let facts = [
        (Fact::KillsServing, 1),
        (Fact::KillsRecovering, 1),
        (Fact::UnknownOutcomes, 1),
        (Fact::UnansweredButAccepted, 1),
        (Fact::ExpiredLeasesGrantedAgain, 1),
        (Fact::StaleSettlesRefused, 1),
        (Fact::Redeliveries, 1),
    ];
    for (fact, n) in facts {
        assert_eq!(report.evidence.count(fact), n, "{fact:?}");
    }
    assert_eq!(report.evidence.require(&facts), Ok(()));
    let missing = report.evidence.require(&[(Fact::Dead, 1), (Fact::KillsServing, 2)]).unwrap_err();
    assert!(missing.contains("Dead: 0") && missing.contains("KillsServing: 1"), "{missing}");
    assert_eq!(
        (report.balance.accepted, report.balance.acked, report.balance.accepted_unanswered),
        (2, 1, 1)
    );
}
