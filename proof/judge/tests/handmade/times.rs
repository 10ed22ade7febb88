//! When a message may come, and when it must.

use duewheel_judge::checker::{Check, check};
use duewheel_judge::history::{
    Answer, Call, Downtime, Enqueue, Fault, Grant, IfExists, Moment, MsgId, Refusal, Target, When,
};

use crate::script::{Script, WALL, case, enqueue, grant, proof, reserve};

#[test]
fn early() {
    case(Check::Early, |s| {
        s.enqueue(1, None, 100);
        // From the invocation 100 ms must pass; one of them has.
        s.wait(if s.bad { 97 } else { 98 });
        s.grant(1, None, 1, 1);
        s.ack(1, 1);
    });
    // By the wall clock; a millisecond more or less counts.
    case(Check::Early, |s| {
        let Call::Enqueue(mut e) = enqueue(1, None, 0) else { unreachable!() };
        e.when = When::AtMs(WALL + if s.bad { 51 } else { 50 });
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
        s.wait(48);
        s.grant(1, None, 1, 1);
    });
    // A postpone counts when it was answered before the reserve began, else both times are possible.
    case(Check::Early, |s| {
        s.enqueue(1, None, 10);
        s.wait(10);
        let reserve_op = (!s.bad).then(|| s.invoke(reserve()));
        let call = Call::Postpone { target: Target::Id(MsgId(1)), when: When::DelayMs(500), body: None };
        s.done(call, Answer::Changed(Some(MsgId(1))));
        let reserve_op = reserve_op.unwrap_or_else(|| s.invoke(reserve()));
        s.wait(1);
        s.ok(reserve_op, Answer::Grants(vec![grant(1, None, 1, 1)]));
    });
    // A nack's delay, and the backoff when it names none.
    for delay_ms in [Some(50), None] {
        case(Check::Early, |s| {
            s.enqueue(1, None, 0);
            s.grant(1, None, 1, 1);
            s.done(Call::Nack { proof: proof(1, 1), delay_ms }, Answer::Settled);
            s.wait(if s.bad { 30 } else { 49 });
            s.grant(1, None, 2, 2);
        });
    }
    // A fire takes the delay away.
    case(Check::Early, |s| {
        s.enqueue(1, None, 500);
        let call = Call::Fire(Target::Id(MsgId(1)));
        if s.bad {
            s.refused(call, Refusal::Leased)
        } else {
            s.done(call, Answer::Changed(Some(MsgId(1))))
        }
        s.grant(1, None, 1, 1);
    });
}

#[test]
fn not_offered() {
    case(Check::NotOffered, |s| {
        s.enqueue(1, None, 100);
        s.wait(if s.bad { 5_300 } else { 4_000 });
        s.empty();
        s.late_ms = s.ms - 101;
        s.grant(1, None, 1, 1);
    });
    // The time counts from the last start.
    case(Check::NotOffered, |s| {
        s.enqueue(1, None, 100);
        s.fault(Fault::Killed(Moment::Serving));
        s.wait(20_000);
        s.fault(Fault::Started);
        s.wait(if s.bad { 6_000 } else { 1_000 });
        s.empty();
    });
    // And from the end of the last pause.
    case(Check::NotOffered, |s| {
        s.enqueue(1, None, 100);
        s.fault(Fault::Paused);
        s.wait(20_000);
        s.fault(Fault::Resumed);
        s.wait(if s.bad { 6_000 } else { 1_000 });
        s.empty();
    });
    // And from the end of the last time in which it could do nothing.
    case(Check::NotOffered, |s| {
        s.enqueue(1, None, 100);
        s.wait(20_000);
        s.fault(Fault::Stalled);
        s.wait(if s.bad { 6_000 } else { 1_000 });
        s.empty();
    });
}

/// Story: a driver that sleeps too long is woken by every request, so reserves never came back empty in vain. Only one
/// that waits while nothing else happens can tell.
#[test]
fn waiting_reserve_gets_newly_due_message() {
    // The one that gets it in the end has waited too long for it.
    case(Check::NotOffered, |s| {
        s.enqueue(1, None, 100);
        let op = s.invoke(reserve());
        s.wait(if s.bad { 6_000 } else { 4_000 });
        let lateness_ms = s.ms - 101;
        s.ok(op, Answer::Grants(vec![Grant { lateness_ms, ..grant(1, None, 1, 1) }]));
    });
    // One that comes back empty although it could have had it long ago.
    case(Check::NotOffered, |s| {
        s.enqueue(1, None, if s.bad { 100 } else { 5_900 });
        let op = s.invoke(reserve());
        s.wait(6_000);
        s.ok(op, Answer::Grants(vec![]));
    });
    // A wall clock that is put forward makes it due at once, and one that is put back excuses.
    case(Check::NotOffered, |s| {
        let Call::Enqueue(mut e) = enqueue(1, None, 0) else { unreachable!() };
        e.when = When::AtMs(WALL + 60_000);
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
        let op = s.invoke(reserve());
        s.wait(100);
        let after_ms = if s.bad { WALL + 90_000 } else { WALL };
        s.fault(Fault::ClockStep { before_ms: WALL + s.ms, after_ms });
        s.wait(6_000);
        s.ok(op, Answer::Grants(vec![]));
    });
}

#[test]
fn lateness() {
    // Two seconds down, due after one of them.
    case(Check::Lateness, |s| {
        s.enqueue(1, None, 1_000);
        s.fault(Fault::Killed(Moment::Serving));
        s.wait(2_000);
        s.fault(Fault::Started);
        let mut g = grant(1, None, 1, 1);
        g.lateness_ms = if s.bad { 0 } else { 1_000 };
        s.done(reserve(), Answer::Grants(vec![g]));
    });
}

#[test]
fn late_forward_step_counts_as_downtime() {
    case(Check::Early, |s| {
        s.enqueue(1, None, 1_000);
        s.fault(Fault::ClockStep { before_ms: WALL + s.ms, after_ms: WALL + s.ms + 2_000 });
        if s.bad {
            s.enqueue(2, None, 9_000);
        }
        s.kill();
        s.grant(1, None, 1, 1);
    });
}

#[test]
fn forward_step_while_down_counts_downtime() {
    case(Check::Early, |s| {
        s.enqueue(1, None, 1_000);
        s.fault(Fault::Killed(Moment::Serving));
        let jump = if s.bad { 100 } else { 2_000 };
        s.fault(Fault::ClockStep { before_ms: WALL + s.ms, after_ms: WALL + s.ms + jump });
        s.fault(Fault::Started);
        s.grant(1, None, 1, 1);
    });
    // By the wall clock: it had shown the time before it was put back.
    case(Check::Early, |s| {
        let Call::Enqueue(mut e) = enqueue(1, None, 0) else { unreachable!() };
        e.when = When::AtMs(WALL + 500);
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
        let shown = if s.bad { 400 } else { 500 };
        s.fault(Fault::ClockStep { before_ms: WALL + shown, after_ms: WALL + 10 });
        s.grant(1, None, 1, 1);
    });
}

#[test]
fn unnoted_slew_counts_as_downtime() {
    // 500 ppm for 100 s; what is answered durably afterwards tells of it.
    case(Check::Early, |s| {
        s.enqueue(1, None, 1_000_000);
        s.wait(100_000);
        s.fault(Fault::Slewed { gained_us: 50_000 });
        if s.bad {
            s.enqueue(2, None, 2_000_000);
        }
        s.kill();
        s.wait(899_950);
        s.grant(1, None, 1, 1);
    });
}

#[test]
fn wall_clock_counts_after_power_loss() {
    for jump in
        [Fault::Slewed { gained_us: 900_000 }, Fault::ClockStep { before_ms: WALL, after_ms: WALL + 900 }]
    {
        case(Check::Early, |s| {
            s.history.rules.downtime = Downtime::OfBoot;
            s.enqueue(1, None, 1_000);
            s.fault(if s.bad { Fault::Killed(Moment::Serving) } else { Fault::PowerLoss });
            s.fault(jump.clone());
            s.fault(Fault::Started);
            s.wait(100);
            s.grant(1, None, 1, 1);
        });
    }
}

/// Story: an enqueue that kept the message of its key was taken for a record of the clocks.
#[test]
fn answers_without_record_note_no_step() {
    case(Check::Early, |s| {
        s.history.rules.downtime = Downtime::OfBoot;
        s.enqueue(1, None, 1_000);
        s.enqueue(2, Some("k"), 60_000);
        s.step(900);
        if s.bad {
            s.enqueue(3, None, 60_000);
        } else {
            let Call::Enqueue(again) = enqueue(4, Some("k"), 60_000) else { unreachable!() };
            let kept = Answer::Enqueued {
                id: MsgId(2),
                created: false,
                replaced: None,
                superseded: None,
                due_at_ms: None,
            };
            s.done(Call::Enqueue(Enqueue { if_exists: IfExists::Keep, ..again }), kept);
        }
        s.fault(Fault::PowerLoss);
        s.fault(Fault::Started);
        s.wait(100);
        s.grant(1, None, 1, 1);
    });
}

#[test]
fn an_orderly_end_is_a_downtime() {
    case(Check::Lateness, |s| {
        s.enqueue(1, None, 1_000);
        s.fault(Fault::Stopped);
        s.wait(2_000);
        s.fault(Fault::Started);
        let lateness_ms = if s.bad { 0 } else { 1_000 };
        s.done(reserve(), Answer::Grants(vec![Grant { lateness_ms, ..grant(1, None, 1, 1) }]));
    });
    // What was asked before it has no effect after it.
    case(Check::Ghost, |s| {
        let late = s.invoke(enqueue(1, None, 0));
        s.fault(Fault::Stopped);
        s.fault(Fault::Started);
        if s.bad {
            s.fail(late, Refusal::Other("draining".to_owned()));
        }
        s.grant(1, None, 1, 1);
    });
}

/// Story: a client repeated an enqueue for an instant that had passed by a step of the wall clock, 23 hours before the
/// beginning of the history. The checker took the beginning for the due time, and the lateness for a lie. Found by
/// seed 53 of the simulation.
#[test]
fn instant_before_the_history_may_be_late() {
    let mut s = Script::new(false);
    let Call::Enqueue(e) = enqueue(1, None, 0) else { unreachable!() };
    let answer =
        Answer::Enqueued { id: MsgId(1), created: true, replaced: None, superseded: None, due_at_ms: None };
    s.done(Call::Enqueue(Enqueue { when: When::AtMs(WALL - 5_000), ..e }), answer);
    s.late_ms = 5_001;
    s.grant(1, None, 1, 1);
    assert_eq!(check(&s.history).failed(), []);
}
