//! Messages that expire, spreads, and limits of a queue's grants.

use duewheel_judge::checker::{Check, Fact, check};
use duewheel_judge::history::{
    Answer, Call, Death, Enqueue, Expiry, Fault, Grant, HeldBack, IfExists, MsgId, OnExpiry, QueueLimits,
    Refusal, State, Target, When,
};

use crate::script::{Q, Script, WALL, case, enqueue, grant, proof, reserve, row};

fn limit(s: &mut Script, limits: QueueLimits) {
    s.done(Call::Limit { queue: Q.to_owned(), limits }, Answer::Limited);
}

fn on_expiry(s: &mut Script, on_expiry: OnExpiry) {
    limit(s, QueueLimits { on_expiry, ..QueueLimits::default() });
}

/// A message that expires 100 ms after it is due.
fn expiring(s: &mut Script, n: u64, key: Option<&str>, delay: u64) {
    let Call::Enqueue(e) = enqueue(n, key, delay) else { unreachable!("it is one") };
    let call = Call::Enqueue(Enqueue { expiry: Some(Expiry::InMs(100)), ..e });
    s.done(
        call,
        Answer::Enqueued { id: MsgId(n), created: true, replaced: None, superseded: None, due_at_ms: None },
    );
}

fn late(s: &mut Script, n: u64, attempt: u64, token: u64, late: bool) {
    let lateness_ms = s.late_ms;
    s.done(reserve(), Answer::Grants(vec![Grant { late, lateness_ms, ..grant(n, None, attempt, token) }]));
}

fn get(n: u64) -> Call {
    Call::Get(Target::Id(MsgId(n)))
}

#[test]
fn an_expired_grant_says_so() {
    case(Check::Expiry, |s| {
        expiring(s, 1, None, 0);
        s.wait(400);
        s.late_ms = 400;
        late(s, 1, 1, 1, !s.bad);
    });
    // Nor is one called late before.
    case(Check::Expiry, |s| {
        expiring(s, 1, None, 400);
        s.wait(450);
        s.late_ms = 50;
        late(s, 1, 1, 1, s.bad);
    });
    // A retry does not move it.
    case(Check::Expiry, |s| {
        expiring(s, 1, None, 0);
        late(s, 1, 1, 1, false);
        s.done(Call::Nack { proof: proof(1, 1), delay_ms: Some(300) }, Answer::Settled);
        s.wait(301);
        late(s, 1, 2, 2, !s.bad);
    });
    // By an instant of its own, and by its queue's setting.
    case(Check::Expiry, |s| {
        let Call::Enqueue(e) = enqueue(1, None, 0) else { unreachable!("it is one") };
        let call = Call::Enqueue(Enqueue { expiry: Some(Expiry::AtMs(crate::script::WALL + 100)), ..e });
        s.done(
            call,
            Answer::Enqueued {
                id: MsgId(1),
                created: true,
                replaced: None,
                superseded: None,
                due_at_ms: None,
            },
        );
        s.wait(400);
        s.late_ms = 400;
        late(s, 1, 1, 1, !s.bad);
    });
    case(Check::Expiry, |s| {
        limit(s, QueueLimits { expires_in_ms: Some(100), ..QueueLimits::default() });
        s.enqueue(1, None, 0);
        s.wait(400);
        s.late_ms = 400;
        late(s, 1, 1, 1, !s.bad);
    });
}

#[test]
fn an_expired_message_is_dropped() {
    // It is not granted.
    case(Check::Expiry, |s| {
        on_expiry(s, OnExpiry::Drop);
        expiring(s, 1, None, 0);
        s.wait(400);
        s.late_ms = 400;
        if s.bad {
            late(s, 1, 1, 1, true)
        } else {
            s.empty()
        }
        s.dump(vec![]);
    });
    // Seen to be gone, it does not come again.
    case(Check::Expiry, |s| {
        on_expiry(s, OnExpiry::Drop);
        expiring(s, 1, None, 0);
        s.wait(400);
        s.empty();
        s.refused(get(1), Refusal::NotFound);
        on_expiry(s, OnExpiry::DeliverLate);
        s.late_ms = 400;
        if s.bad { late(s, 1, 1, 1, true) } else { s.empty() }
    });
    // It is not dropped before: then it is lost.
    case(Check::Lost, |s| {
        on_expiry(s, OnExpiry::Drop);
        expiring(s, 1, None, 400);
        s.wait(if s.bad { 450 } else { 502 });
        s.empty();
        s.dump(vec![]);
    });
    // Nor without a reserve, or where the queue does not want it.
    for unwanted in [OnExpiry::DeliverLate, OnExpiry::Dead] {
        case(Check::Lost, |s| {
            on_expiry(s, if s.bad { unwanted } else { OnExpiry::Drop });
            expiring(s, 1, None, 0);
            s.wait(200);
            s.empty();
            s.dump(vec![]);
        });
    }
    case(Check::Lost, |s| {
        on_expiry(s, OnExpiry::Drop);
        expiring(s, 1, None, 0);
        s.wait(200);
        if !s.bad {
            s.empty();
        }
        s.dump(vec![]);
    });
    // A lease is not cut short.
    case(Check::WronglyRefused, |s| {
        on_expiry(s, OnExpiry::Drop);
        expiring(s, 1, None, 0);
        s.wait(50);
        s.late_ms = 50;
        s.grant(1, None, 1, 1);
        s.wait(70);
        s.empty();
        if s.bad {
            s.refused(Call::Ack(proof(1, 1)), Refusal::LeaseLost);
        } else {
            s.ack(1, 1);
        }
    });
    // Its key is free.
    case(Check::Untruthful, |s| {
        on_expiry(s, OnExpiry::Drop);
        expiring(s, 1, Some("k"), 0);
        s.wait(200);
        s.empty();
        s.refused(get(1), Refusal::NotFound);
        let Call::Enqueue(e) = enqueue(2, Some("k"), 5_000) else { unreachable!("it is one") };
        let call = Call::Enqueue(Enqueue { if_exists: IfExists::Reject, ..e });
        if s.bad {
            s.refused(call, Refusal::KeyExists);
        } else {
            s.done(
                call,
                Answer::Enqueued {
                    id: MsgId(2),
                    created: true,
                    replaced: None,
                    superseded: None,
                    due_at_ms: None,
                },
            );
        }
    });
    // And the system counts it.
    case(Check::Totals, |s| {
        on_expiry(s, OnExpiry::Drop);
        expiring(s, 1, None, 0);
        s.wait(200);
        s.empty();
        s.dump(vec![]);
        let expired = u64::from(!s.bad);
        let totals = duewheel_judge::history::Totals { enqueued: 1, expired, ..Default::default() };
        s.push(duewheel_judge::history::What::Totals { queue: Q.to_owned(), totals });
    });
}

#[test]
fn an_expired_message_is_dead() {
    let dead =
        |attempt, death| duewheel_judge::history::Held { death: Some(death), ..row(1, State::Dead, attempt) };
    // Not before it expires.
    case(Check::Expiry, |s| {
        on_expiry(s, OnExpiry::Dead);
        expiring(s, 1, None, 400);
        s.wait(if s.bad { 450 } else { 502 });
        s.empty();
        s.dump(vec![dead(0, Death::Expired)]);
    });
    // Story: a clock that was ahead was stepped back. At the moment of the step the message was taken for one that cannot
    // have expired; the search for the moment from which it can have met just that one, and went on behind it.
    for others in 0..24 {
        case(Check::Expiry, |s| {
            on_expiry(s, OnExpiry::Dead);
            let Call::Enqueue(e) = enqueue(1, None, 0) else { unreachable!("it is one") };
            let when = When::AtMs(WALL + 5_000);
            let call = Call::Enqueue(Enqueue { when, expiry: Some(Expiry::InMs(100)), ..e });
            s.done(
                call,
                Answer::Enqueued {
                    id: MsgId(1),
                    created: true,
                    replaced: None,
                    superseded: None,
                    due_at_ms: None,
                },
            );
            s.step(if s.bad { 4_000 } else { 60_000 });
            s.empty();
            s.done(get(1), Answer::Found(dead(0, Death::Expired)));
            (0..others).for_each(|_| s.empty());
            s.step(0);
            (0..24 - others).for_each(|_| s.empty());
            s.dump(vec![dead(0, Death::Expired)]);
        });
    }
    // Only where the queue wants it.
    case(Check::Expiry, |s| {
        on_expiry(s, if s.bad { OnExpiry::Drop } else { OnExpiry::Dead });
        expiring(s, 1, None, 0);
        s.wait(200);
        s.empty();
        s.dump(vec![dead(0, Death::Expired)]);
    });
    // It has used up no attempt.
    case(Check::Attempts, |s| {
        on_expiry(s, OnExpiry::Dead);
        expiring(s, 1, None, 0);
        s.wait(200);
        s.empty();
        s.dump(vec![dead(u64::from(s.bad), Death::Expired)]);
    });
    // It comes no more.
    case(Check::Expiry, |s| {
        on_expiry(s, OnExpiry::Dead);
        expiring(s, 1, None, 0);
        s.wait(200);
        s.empty();
        s.done(get(1), Answer::Found(dead(0, Death::Expired)));
        on_expiry(s, OnExpiry::DeliverLate);
        s.late_ms = 200;
        if s.bad { late(s, 1, 1, 1, true) } else { s.empty() }
    });
}

#[test]
fn a_spread_ends() {
    let send = |when, spread_ms, due: u64| {
        move |s: &mut Script| {
            let Call::Enqueue(e) = enqueue(1, None, 0) else { unreachable!("it is one") };
            let call = Call::Enqueue(Enqueue { when, spread_ms, ..e });
            let due_at_ms = Some(crate::script::WALL + due);
            s.done(
                call,
                Answer::Enqueued { id: MsgId(1), created: true, replaced: None, superseded: None, due_at_ms },
            );
        }
    };
    let at = When::AtMs(crate::script::WALL + 500);
    case(Check::Spread, |s| send(at, 300, if s.bad { 801 } else { 800 })(s));
    case(Check::Spread, |s| send(at, 300, if s.bad { 499 } else { 500 })(s));
    case(Check::Spread, |s| send(When::DelayMs(500), 300, if s.bad { 900 } else { 800 })(s));
    case(Check::Spread, |s| send(When::DelayMs(500), 300, if s.bad { 400 } else { 500 })(s));
}

#[test]
fn leases_at_a_time() {
    let two = QueueLimits { concurrency: Some(2), ..QueueLimits::default() };
    let prepare = move |s: &mut Script| {
        limit(s, two);
        for n in 1..=3 {
            s.enqueue(n, None, 0);
        }
        s.grant(1, None, 1, 1);
        s.grant(2, None, 1, 2);
    };
    // A third one comes when a lease has ended: by an ack, a nack, or its time.
    case(Check::Concurrency, |s| {
        prepare(s);
        if !s.bad {
            s.ack(1, 1);
        }
        s.grant(3, None, 1, 3);
    });
    case(Check::Concurrency, |s| {
        prepare(s);
        s.wait(if s.bad { 10 } else { 101 });
        s.late_ms = if s.bad { 14 } else { 105 };
        s.grant(3, None, 1, 3);
    });
    // Leases outlive the process.
    case(Check::Concurrency, |s| {
        prepare(s);
        s.kill();
        if !s.bad {
            s.ack(2, 2);
        }
        s.late_ms = 8;
        s.grant(3, None, 1, 3);
    });
    // Two in one answer.
    case(Check::Concurrency, |s| {
        limit(s, QueueLimits { concurrency: Some(1 + u64::from(!s.bad)), ..two });
        s.enqueue(1, None, 0);
        s.enqueue(2, None, 0);
        s.done(reserve(), Answer::Grants(vec![grant(1, None, 1, 1), grant(2, None, 1, 2)]));
    });
    // A limit that was lowered ends no lease; one that may not have come yet excuses.
    case(Check::Concurrency, |s| {
        prepare(s);
        let call = Call::Limit { queue: Q.to_owned(), limits: QueueLimits::default() };
        if s.bad {
            s.refused(call, Refusal::Other("no".to_owned()))
        } else {
            s.unknown(call)
        }
        s.grant(3, None, 1, 3);
    });
}

#[test]
fn grants_over_time() {
    let slow = QueueLimits { rate: Some(10), burst: Some(2), ..QueueLimits::default() };
    // Two at once, then one each 100 ms.
    case(Check::Rate, |s| {
        limit(s, slow);
        for n in 1..=3 {
            s.enqueue(n, None, 1_000);
        }
        s.wait(1_000);
        s.grant(1, None, 1, 1);
        s.grant(2, None, 1, 2);
        s.wait(if s.bad { 40 } else { 99 });
        s.late_ms = if s.bad { 42 } else { 101 };
        s.grant(3, None, 1, 3);
    });
    // Neither a change of limits nor a start gives the burst again.
    for is_start in [false, true] {
        case(Check::Rate, |s| {
            limit(s, slow);
            for n in 1..=3 {
                s.enqueue(n, None, 1_000);
            }
            s.wait(1_000);
            s.grant(1, None, 1, 1);
            s.grant(2, None, 1, 2);
            if is_start {
                s.kill()
            } else {
                limit(s, slow)
            }
            s.wait(if s.bad { 0 } else { 99 });
            s.late_ms = if s.bad { 6 } else { 105 };
            s.grant(3, None, 1, 3);
        });
    }
    // Messages that have been due for ten seconds come at the catch-up rate, others do not wait for it.
    case(Check::Rate, |s| {
        limit(s, QueueLimits { catchup_rate: Some(10), ..QueueLimits::default() });
        let wait = if s.bad { 10_100 } else { 9_900 };
        for n in 1..=3 {
            s.enqueue(n, None, 0);
        }
        s.wait(wait);
        s.late_ms = wait;
        for n in 1..=3 {
            s.grant(n, None, 1, n);
        }
    });
    // Without a rate, none holds back.
    case(Check::Untruthful, |s| {
        limit(s, QueueLimits { rate: (!s.bad).then_some(10), ..QueueLimits::default() });
        s.done(reserve(), Answer::HeldBack(HeldBack::Rate));
    });
}

#[test]
fn expiry_ends_are_proven_and_balanced() {
    let mut s = Script::new(false);
    on_expiry(&mut s, OnExpiry::Drop);
    for n in 1..=3 {
        expiring(&mut s, n, Some(if n == 3 { "other" } else { "k" }), 0);
        s.wait(200);
        s.empty();
        if n < 3 {
            s.refused(get(n), Refusal::NotFound);
        }
    }
    s.fault(Fault::Other("the end".to_owned()));
    s.dump(vec![]);
    let report = check(&s.history);
    assert_eq!(report.violations, vec![]);
    assert_eq!((report.balance.accepted, report.balance.expired), (3, 3));
    assert_eq!(report.evidence.count(Fact::ExpiredDropped), 3);
    assert_eq!(report.evidence.count(Fact::ExpiredKeysReused), 1);
}
