//! A message whose key another one takes while it is leased ends with that lease.

use duewheel_judge::checker::{Check, Fact, check};
use duewheel_judge::history::{Answer, Call, Held, MsgId, Refusal, State, Target, Totals, What};

use crate::script::{Q, Script, case, proof, row, superseding};

/// Message 1 is leased for 100 ms, and message 2 takes its key.
fn begin(s: &mut Script) {
    s.enqueue(1, Some("k"), 0);
    s.grant(1, Some("k"), 1, 1);
    s.supersede(2, 1, "k");
}

fn keyed(n: u64, state: State, attempt: u64) -> Held {
    Held { key: Some("k".to_owned()), ..row(n, state, attempt) }
}

fn totals(s: &mut Script, totals: Totals) {
    s.push(What::Totals { queue: Q.to_owned(), totals });
}

fn nack() -> Call {
    Call::Nack { proof: proof(1, 1), delay_ms: Some(0) }
}

#[test]
fn superseded_message_does_not_come_again() {
    case(Check::GrantAfterCancel, |s| {
        begin(s);
        s.wait(200);
        if s.bad { s.grant(1, Some("k"), 2, 2) } else { s.empty() }
    });
    case(Check::GrantAfterCancel, |s| {
        begin(s);
        s.done(nack(), Answer::Settled);
        if s.bad { s.grant(1, Some("k"), 2, 2) } else { s.empty() }
    });
    // It is not seen in another state either.
    case(Check::Resurrected, |s| {
        begin(s);
        let state = if s.bad { State::Ready } else { State::Leased };
        s.done(Call::Get(Target::Id(MsgId(1))), Answer::Found(row(1, state, 1)));
    });
    case(Check::Resurrected, |s| {
        begin(s);
        let shown = if s.bad { keyed(1, State::Leased, 1) } else { row(1, State::Leased, 1) };
        s.dump(vec![shown, keyed(2, State::Scheduled, 0)]);
    });
    case(Check::WrongBody, |s| {
        s.enqueue(1, Some("k"), 0);
        s.grant(1, Some("k"), 1, 1);
        if !s.bad {
            s.unknown(superseding(2, "k"));
        }
        s.done(Call::Get(Target::Id(MsgId(1))), Answer::Found(row(1, State::Leased, 1)));
    });
    case(Check::Resurrected, |s| {
        begin(s);
        s.wait(200);
        let old = row(1, State::Dead, 1);
        let new = keyed(2, State::Scheduled, 0);
        s.dump(if s.bad { vec![old, new] } else { vec![new] });
    });
}

#[test]
fn superseded_message_is_kept_while_leased() {
    case(Check::Lost, |s| {
        begin(s);
        s.wait(if s.bad { 50 } else { 101 });
        s.dump(vec![keyed(2, State::Scheduled, 0)]);
    });
    case(Check::WronglyRefused, |s| {
        begin(s);
        s.wait(if s.bad { 50 } else { 101 });
        s.refused(Call::Ack(proof(1, 1)), Refusal::LeaseLost);
    });
    // One that may have been superseded may be gone.
    case(Check::Lost, |s| {
        s.enqueue(1, Some("k"), 0);
        s.grant(1, Some("k"), 1, 1);
        s.unknown(superseding(2, if s.bad { "other" } else { "k" }));
        s.kill();
        s.wait(200);
        s.dump(vec![]);
    });
}

#[test]
fn superseded_message_has_been_leased() {
    case(Check::Untruthful, |s| {
        s.enqueue(1, Some("k"), 0);
        if !s.bad {
            s.grant(1, Some("k"), 1, 1);
        }
        s.supersede(2, 1, "k");
    });
    // A late ack is answered `already`.
    case(Check::Untruthful, |s| {
        s.enqueue(1, Some("k"), 0);
        s.grant(1, Some("k"), 1, 1);
        if !s.bad {
            s.supersede(2, 1, "k");
        }
        s.wait(200);
        s.refused(Call::Ack(proof(1, 1)), Refusal::AlreadyAcked);
    });
}

#[test]
fn superseded_message_has_no_key() {
    // The new message has the key, also while the old one is leased.
    case(Check::DoubleKey, |s| {
        s.enqueue(1, Some("k"), 0);
        s.grant(1, Some("k"), 1, 1);
        if s.bad {
            s.enqueue(2, Some("k"), 9_000)
        } else {
            s.supersede(2, 1, "k")
        }
        s.cancel(2);
        s.refused(Call::Get(Target::Key { queue: Q.to_owned(), key: "k".to_owned() }), Refusal::NotFound);
        s.ack(1, 1);
    });
}

#[test]
fn superseded_messages_are_counted() {
    let most = |s: &mut Script, counted: Totals, wrong: Totals| {
        s.dump(vec![keyed(2, State::Scheduled, 0)]);
        let counted = if s.bad { wrong } else { counted };
        totals(s, Totals { enqueued: 2, ..counted });
    };
    let (superseded, replaced, acked) = (
        Totals { superseded: 1, ..Totals::default() },
        Totals { replaced: 1, ..Totals::default() },
        Totals { acked: 1, ..Totals::default() },
    );
    case(Check::Totals, |s| {
        begin(s);
        s.wait(200);
        most(s, superseded, replaced);
    });
    case(Check::Totals, |s| {
        begin(s);
        s.done(nack(), Answer::Settled);
        most(s, superseded, acked);
    });
    case(Check::Totals, |s| {
        begin(s);
        s.ack(1, 1);
        most(s, acked, Totals { acked: 1, superseded: 1, ..Totals::default() });
    });
    // An ack of unknown outcome may have been in time.
    for counted in [superseded, acked] {
        case(Check::Totals, |s| {
            begin(s);
            s.unknown(Call::Ack(proof(1, 1)));
            s.wait(200);
            most(s, counted, Totals::default());
        });
    }
    let mut s = Script::new(false);
    begin(&mut s);
    s.wait(200);
    s.dump(vec![keyed(2, State::Scheduled, 0)]);
    let report = check(&s.history);
    assert_eq!((report.balance.superseded, report.evidence.count(Fact::Superseded)), (1, 1));
}
