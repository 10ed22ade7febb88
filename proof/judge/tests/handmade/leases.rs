//! Tokens, leases and attempts.

use duewheel_judge::checker::Check;
use duewheel_judge::history::{Answer, Call, Fault, MsgId, Refusal, State, Target, When};

use crate::script::{case, proof, reserve, row};

#[test]
fn tokens() {
    for second in [1, 2] {
        case(Check::TokenOrder, |s| {
            s.enqueue(1, None, 0);
            s.grant(1, None, 1, 2);
            s.wait(200);
            s.kill();
            s.grant(1, None, 2, if s.bad { second } else { 3 });
        });
    }
    // Tokens of one shard grow whatever the message.
    case(Check::TokenOrder, |s| {
        s.enqueue(1, None, 0);
        s.enqueue(2, None, 0);
        s.grant(1, None, 1, 5);
        s.grant(2, None, 1, if s.bad { 4 } else { 6 });
    });
}

#[test]
fn stale_settles() {
    case(Check::StaleSettle, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.wait(200);
        s.grant(1, None, 2, 2);
        let call = Call::Nack { proof: proof(1, 1), delay_ms: Some(0) };
        if s.bad { s.done(call, Answer::Settled) } else { s.refused(call, Refusal::LeaseLost) }
    });
    case(Check::LateExtend, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.wait(if s.bad { 200 } else { 50 });
        s.done(Call::Extend { proof: proof(1, 1), lease_ms: 100 }, Answer::Settled);
    });
}

#[test]
fn repeated_ack_requires_earlier_ack() {
    case(Check::Untruthful, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        if s.bad {
            s.done(Call::Nack { proof: proof(1, 1), delay_ms: Some(0) }, Answer::Settled);
        } else {
            s.done(Call::Ack(proof(1, 1)), Answer::Settled);
        }
        s.refused(Call::Ack(proof(1, 1)), Refusal::AlreadyAcked);
    });
}

#[test]
fn wrong_refusals() {
    // The lease still runs.
    case(Check::WronglyRefused, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        let call = Call::Nack { proof: proof(1, 1), delay_ms: Some(0) };
        if s.bad { s.refused(call, Refusal::LeaseLost) } else { s.done(call, Answer::Settled) }
    });
    // It ran out, but nobody can have got the message since; or somebody may have.
    case(Check::WronglyRefused, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.wait(200);
        if !s.bad {
            s.unknown(reserve());
        }
        s.refused(Call::Ack(proof(1, 1)), Refusal::LeaseLost);
    });
    // The last attempt: the message is dead, and no other consumer has got it since.
    case(Check::WronglyRefused, |s| {
        s.enqueue(1, None, 0);
        for n in 1..=3 {
            s.grant(1, None, n, n);
            s.wait(200);
        }
        let ack = Call::Ack(proof(1, 3));
        if s.bad { s.refused(ack, Refusal::LeaseLost) } else { s.done(ack, Answer::Settled) }
    });
}

#[test]
fn leases() {
    // Over a kill, downtime counted.
    case(Check::LeaseBroken, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.kill();
        s.wait(if s.bad { 90 } else { 95 });
        s.grant(1, None, 2, 2);
    });
    // An extended one.
    case(Check::LeaseBroken, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.done(Call::Extend { proof: proof(1, 1), lease_ms: 300 }, Answer::Settled);
        s.wait(if s.bad { 150 } else { 300 });
        s.grant(1, None, 2, 2);
    });
    case(Check::ChangedWhileLeased, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        let call = Call::Postpone { target: Target::Id(MsgId(1)), when: When::DelayMs(0), body: None };
        if s.bad { s.done(call, Answer::Changed(Some(MsgId(1)))) } else { s.refused(call, Refusal::Leased) }
    });
}

#[test]
fn attempts() {
    case(Check::Attempts, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.wait(200);
        s.grant(1, None, if s.bad { 1 } else { 2 }, 2);
    });
    // A gap needs a lost grant.
    case(Check::Attempts, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.wait(200);
        if s.bad {
            s.empty()
        } else {
            s.unknown(reserve())
        }
        s.kill();
        s.wait(200);
        s.grant(1, None, 3, 3);
    });
    case(Check::DeadInexact, |s| {
        s.enqueue(1, None, 0);
        for n in 1..=3 {
            s.grant(1, None, n, n);
            s.done(Call::Nack { proof: proof(1, n), delay_ms: Some(0) }, Answer::Settled);
            if s.bad && n == 2 {
                s.dump(vec![row(1, State::Dead, 2)]);
                return;
            }
        }
        s.dump(vec![row(1, State::Dead, 3)]);
    });
    case(Check::DeadInexact, |s| {
        s.enqueue(1, None, 0);
        for n in 1..=3 {
            s.grant(1, None, n, n);
            s.done(Call::Nack { proof: proof(1, n), delay_ms: Some(0) }, Answer::Settled);
        }
        if s.bad {
            s.grant(1, None, 4, 4);
        }
    });
}

#[test]
fn power_loss_forgets_only_undurable_grants() {
    case(Check::LeaseBroken, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        if s.bad {
            s.enqueue(2, None, 9_000);
        }
        s.fault(Fault::PowerLoss);
        s.wait(5);
        s.fault(Fault::Started);
        s.grant(1, None, if s.bad { 2 } else { 1 }, 2);
    });
}

#[test]
fn power_loss_restores_previous_token() {
    case(Check::StaleSettle, |s| {
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.wait(200);
        s.late_ms = 201;
        s.grant(1, None, 2, 2);
        if s.bad {
            s.enqueue(2, None, 9_000); // durable, and with it everything before
        }
        s.fault(Fault::PowerLoss);
        s.wait(5);
        s.fault(Fault::Started);
        s.done(Call::Nack { proof: proof(1, 1), delay_ms: Some(0) }, Answer::Settled);
    });
}
