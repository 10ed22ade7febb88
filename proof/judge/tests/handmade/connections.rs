//! Leases that belong to a connection, as beanstalkd's do.

use duewheel_judge::checker::Check;
use duewheel_judge::history::{Answer, Call, Fault, Leases, Moment, Refusal, What};

use crate::script::{case, proof};

#[test]
fn lease_ends_with_its_connection() {
    // By its closing.
    case(Check::LeaseBroken, |s| {
        s.history.rules.leases = if s.bad { Leases::OfTokens } else { Leases::OfConnections };
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.push(What::Closing);
        s.grant(1, None, 2, 2);
    });
    // Not by that of another one.
    case(Check::LeaseBroken, |s| {
        s.history.rules.leases = Leases::OfConnections;
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.push(What::Closing);
        if s.bad
            && let Some(event) = s.history.events.last_mut()
        {
            event.client = 2;
        }
        s.grant(1, None, 2, 2);
    });
    // Not by one that was closed before.
    case(Check::LeaseBroken, |s| {
        s.history.rules.leases = Leases::OfConnections;
        s.enqueue(1, None, 0);
        s.push(What::Closing);
        s.grant(1, None, 1, 1);
        s.wait(if s.bad { 90 } else { 100 });
        s.grant(1, None, 2, 2);
    });
    // By a kill, or an orderly end.
    for end in [Fault::Killed(Moment::Serving), Fault::Stopped] {
        case(Check::LeaseBroken, |s| {
            s.history.rules.leases = if s.bad { Leases::OfTokens } else { Leases::OfConnections };
            s.enqueue(1, None, 0);
            s.grant(1, None, 1, 1);
            s.fault(end.clone());
            s.wait(5);
            s.fault(Fault::Started);
            s.grant(1, None, 2, 2);
        });
    }
    // Then the holder is rightly refused.
    case(Check::WronglyRefused, |s| {
        s.history.rules.leases = Leases::OfConnections;
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        if !s.bad {
            s.kill();
        }
        s.refused(Call::Ack(proof(1, 1)), Refusal::LeaseLost);
    });
}

#[test]
fn connection_ack_counts_as_delete() {
    // Accepted if nobody has the message, whoever had it last.
    case(Check::StaleSettle, |s| {
        s.history.rules.leases = Leases::OfConnections;
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.wait(100);
        s.grant(1, None, 2, 2);
        s.wait(if s.bad { 50 } else { 100 });
        s.ack(1, 1);
    });
    // It is final all the same.
    case(Check::GrantAfterAck, |s| {
        s.history.rules.leases = Leases::OfConnections;
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.wait(100);
        s.grant(1, None, 2, 2);
        s.wait(100);
        s.ack(1, 1);
        if s.bad {
            s.grant(1, None, 3, 3);
        }
    });
    // Of one that overlaps with a grant only one is true.
    case(Check::GrantAfterAck, |s| {
        s.history.rules.leases = Leases::OfConnections;
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.wait(100);
        let op = s.invoke(Call::Ack(proof(1, 1)));
        s.grant(1, None, 2, 2);
        if s.bad {
            s.ok(op, Answer::Settled);
        } else {
            s.fail(op, Refusal::LeaseLost);
        }
    });
    // One of unknown outcome may have removed it although it was stale.
    case(Check::Lost, |s| {
        s.history.rules.leases = if s.bad { Leases::OfTokens } else { Leases::OfConnections };
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.wait(100);
        s.grant(1, None, 2, 2);
        s.wait(100);
        s.unknown(Call::Ack(proof(1, 1)));
        s.kill();
        s.dump(vec![]);
    });
    // A nack needs a lease that runs, a delete does not.
    case(Check::WronglyRefused, |s| {
        s.history.rules.leases = Leases::OfConnections;
        s.enqueue(1, None, 0);
        s.grant(1, None, 1, 1);
        s.wait(100);
        let proof = proof(1, 1);
        let call = if s.bad { Call::Ack(proof) } else { Call::Nack { proof, delay_ms: Some(0) } };
        s.refused(call, Refusal::LeaseLost);
    });
}
