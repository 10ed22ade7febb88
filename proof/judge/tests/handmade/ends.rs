//! How a message ends: it is not lost, ends once, and nothing follows.

use duewheel_judge::checker::Check;
use duewheel_judge::history::{Answer, Call, MsgId, Refusal, State, Target};

use crate::script::{case, enqueue, grant, proof, reserve, row};

#[test]
fn lost() {
    case(Check::Lost, |s| {
        s.enqueue(1, None, 5_000);
        s.dump(if s.bad { vec![] } else { vec![row(1, State::Scheduled, 0)] });
    });
    // Granted but not settled is lost just as well.
    case(Check::Lost, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        if !s.bad {
            s.ack(1, 1);
        }
        s.dump(vec![]);
    });
    // So is a dead one.
    case(Check::Lost, |s| {
        s.enqueue(1, None, 0);
        for n in 1..=3 {
            s.grant(1, None, n, n);
            s.done(Call::Nack { proof: proof(1, n), delay_ms: Some(0) }, Answer::Settled);
        }
        s.dump(if s.bad { vec![] } else { vec![row(1, State::Dead, 3)] });
    });
    // An ack of which nobody knows whether it came may have ended it; a stale one has not.
    case(Check::Lost, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.wait(200);
        s.grant(1, None, 2, 2);
        s.unknown(Call::Ack(proof(1, if s.bad { 1 } else { 2 })));
        s.kill();
        s.dump(vec![]);
    });
    // So may a cancel by key, and a replacement that was never answered.
    case(Check::Lost, |s| {
        s.enqueue(1, Some("k"), 9_000);
        s.unknown(enqueue(2, Some(if s.bad { "other" } else { "k" }), 0));
        s.kill();
        s.dump(vec![]);
    });
}

#[test]
fn after_an_ack() {
    // Asked for after the answer.
    case(Check::GrantAfterAck, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.ack(1, 1);
        s.wait(200);
        if s.bad { s.grant(1, None, 2, 2) } else { s.empty() }
    });
    // At the same time: an older token is no proof, a newer one is.
    case(Check::GrantAfterAck, |s| {
        s.enqueue(1, None, 0);
        let first = s.invoke(reserve());
        s.wait(1);
        s.grant(1, None, 1, if s.bad { 1 } else { 2 });
        s.ok(first, Answer::Grants(if s.bad { vec![grant(1, None, 2, 2)] } else { vec![] }));
        s.done(Call::Ack(proof(1, if s.bad { 1 } else { 2 })), Answer::Settled);
    });
}

#[test]
fn after_a_cancel() {
    case(Check::GrantAfterCancel, |s| {
        s.enqueue(1, None, 0);
        s.cancel(1);
        if s.bad { s.grant(1, None, 1, 1) } else { s.empty() }
    });
    // They overlap, and the lease cannot have run out before the cancel was answered: no order of the two is right.
    // Where it can, the grant may have been first.
    case(Check::GrantAfterCancel, |s| {
        s.enqueue(1, None, 0);
        let grant_op = s.invoke(reserve());
        let cancel_op = s.invoke(Call::Cancel(Target::Id(MsgId(1))));
        s.wait(if s.bad { 50 } else { 101 });
        s.ok(cancel_op, Answer::Cancelled(Some(MsgId(1))));
        s.ok(grant_op, Answer::Grants(vec![grant(1, None, 1, 1)]));
    });
    // A replacement ends the old message like a cancel.
    case(Check::GrantAfterCancel, |s| {
        s.enqueue(1, Some("k"), 0);
        let answer = Answer::Enqueued {
            id: MsgId(2),
            created: true,
            replaced: Some(MsgId(1)),
            superseded: None,
            due_at_ms: None,
        };
        s.done(enqueue(2, Some("k"), 0), answer);
        s.grant(if s.bad { 1 } else { 2 }, Some("k"), 1, 1);
    });
}

#[test]
fn ends_once() {
    case(Check::EndedTwice, |s| {
        s.enqueue(1, None, 0);
        s.cancel(1);
        let again = Call::Cancel(Target::Id(MsgId(1)));
        if s.bad {
            s.done(again, Answer::Cancelled(Some(MsgId(1))))
        } else {
            s.refused(again, Refusal::NotFound)
        }
    });
    // An acked message is neither cancelled nor given back.
    case(Check::EndedTwice, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.ack(1, 1);
        let cancel = Call::Cancel(Target::Id(MsgId(1)));
        if s.bad {
            s.done(cancel, Answer::Cancelled(Some(MsgId(1))))
        } else {
            s.refused(cancel, Refusal::NotFound)
        }
    });
    case(Check::StaleSettle, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.ack(1, 1);
        let nack = Call::Nack { proof: proof(1, 1), delay_ms: Some(0) };
        if s.bad { s.done(nack, Answer::Settled) } else { s.refused(nack, Refusal::LeaseLost) }
    });
}

#[test]
fn resurrected() {
    case(Check::Resurrected, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.ack(1, 1);
        s.kill();
        s.dump(if s.bad { vec![row(1, State::Ready, 1)] } else { vec![] });
    });
    case(Check::Resurrected, |s| {
        s.enqueue(1, None, 9_000);
        s.cancel(1);
        let get = Call::Get(Target::Id(MsgId(1)));
        let found = Answer::Found(row(1, State::Scheduled, 0));
        if s.bad { s.done(get, found) } else { s.refused(get, Refusal::NotFound) }
    });
}
