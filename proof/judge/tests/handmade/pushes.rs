//! Messages that are sent to a receiver.

use duewheel_judge::checker::{Check, Fact, check};
use duewheel_judge::history::{
    Answer, Call, Fault, Held, Moment, MsgId, PushAnswer, PushId, PushSeen, PushedQueue, Refusal, State,
    Target, What,
};

use crate::script::{Q, Script, case, enqueue, payload, row};

const OK: PushAnswer = PushAnswer::Accepted;
const BAD: PushAnswer = PushAnswer::Failed;

impl Script {
    /// Three attempts, each of 90 ms.
    fn pushed(&mut self) {
        self.push(What::Pushed(PushedQueue { queue: Q.to_owned(), max_attempts: 3, timeout_ms: 90 }));
    }

    /// The receiver reads a request with message `n`.
    fn seen_as(&mut self, webhook_id: &str, n: u64, attempt: u64) -> PushId {
        let push = PushId(self.history.events.len() as u64);
        self.push(What::PushSeen(PushSeen {
            push,
            webhook_id: webhook_id.to_owned(),
            queue: Q.to_owned(),
            key: None,
            attempt,
            body: payload(n).seen(),
        }));
        push
    }

    fn seen(&mut self, n: u64, attempt: u64) -> PushId {
        self.seen_as(&format!("dw_s_{n}_1"), n, attempt)
    }

    fn answered(&mut self, push: PushId, answer: PushAnswer) {
        self.push(What::PushAnswered { push, answer });
    }

    fn attempt(&mut self, n: u64, attempt: u64, answer: PushAnswer) {
        let push = self.seen(n, attempt);
        self.wait(1);
        self.answered(push, answer);
        self.wait(1);
    }
}

fn dead(attempt: u64, forgiven: u64) -> Held {
    Held { forgiven: Some(forgiven), ..row(1, State::Dead, attempt) }
}

#[test]
fn lost_pushes() {
    // Gone without a success, or with one.
    case(Check::Lost, |s| {
        s.pushed();
        s.enqueue(1, None, 0);
        s.attempt(1, 1, if s.bad { BAD } else { OK });
        s.dump(Vec::new());
    });
    // Gone without a request.
    case(Check::Lost, |s| {
        s.pushed();
        s.enqueue(1, None, 0);
        if !s.bad {
            s.attempt(1, 1, OK);
        }
        s.dump(Vec::new());
    });
    // Said to be gone while its first request is not answered.
    case(Check::Untruthful, |s| {
        s.pushed();
        s.enqueue(1, None, 0);
        let push = s.seen(1, 1);
        if !s.bad {
            s.answered(push, OK);
        }
        s.refused(Call::Get(Target::Id(MsgId(1))), Refusal::NotFound);
        s.dump(Vec::new());
        if s.bad {
            s.answered(push, OK);
        }
    });
}

#[test]
fn early_pushes() {
    case(Check::Early, |s| {
        s.pushed();
        s.enqueue(1, None, 100);
        s.wait(if s.bad { 50 } else { 100 });
        s.attempt(1, 1, OK);
    });
    // Over a kill, too.
    case(Check::Early, |s| {
        s.pushed();
        s.enqueue(1, None, 100);
        s.kill();
        s.wait(if s.bad { 50 } else { 95 });
        s.attempt(1, 1, OK);
    });
    // Before the time that an answer has asked for.
    case(Check::Early, |s| {
        s.pushed();
        s.enqueue(1, None, 0);
        s.attempt(1, 1, PushAnswer::NotBefore { ms: 100 });
        s.wait(if s.bad { 90 } else { 100 });
        s.attempt(1, 2, OK);
    });
    // A kill may have made it forget the answer.
    let mut s = Script::new(false);
    s.pushed();
    s.enqueue(1, None, 0);
    s.attempt(1, 1, PushAnswer::NotBefore { ms: 100 });
    s.kill();
    s.attempt(1, 2, OK);
    assert!(check(&s.history).violations.is_empty());
}

#[test]
fn webhook_ids() {
    case(Check::WebhookId, |s| {
        s.pushed();
        s.enqueue(1, None, 0);
        s.attempt(1, 1, BAD);
        let push = s.seen_as(if s.bad { "dw_s_1_2" } else { "dw_s_1_1" }, 1, 2);
        s.answered(push, OK);
    });
    case(Check::WebhookId, |s| {
        s.pushed();
        s.enqueue(1, None, 0);
        s.enqueue(2, None, 0);
        s.attempt(1, 1, OK);
        let push = s.seen_as(if s.bad { "dw_t_2_1" } else { "dw_s_2_1" }, 2, 1);
        s.answered(push, OK);
    });
    case(Check::WebhookId, |s| {
        s.pushed();
        s.enqueue(1, None, 0);
        let push = s.seen_as(if s.bad { "1" } else { "dw_s_1_1" }, 1, 1);
        s.answered(push, OK);
    });
    // The id of another message.
    case(Check::WrongBody, |s| {
        s.pushed();
        s.enqueue(1, None, 0);
        s.enqueue(2, None, 0);
        let push = s.seen_as(if s.bad { "dw_s_2_1" } else { "dw_s_1_1" }, 1, 1);
        s.answered(push, OK);
    });
}

#[test]
fn attempts_of_pushes() {
    // One number for two attempts.
    case(Check::PushAttempts, |s| {
        s.pushed();
        s.enqueue(1, None, 0);
        s.attempt(1, 1, BAD);
        s.attempt(1, if s.bad { 1 } else { 2 }, OK);
    });
    // Also over a kill, which forgets no attempt.
    case(Check::PushAttempts, |s| {
        s.pushed();
        s.enqueue(1, None, 0);
        s.seen(1, 1);
        s.kill();
        s.attempt(1, if s.bad { 1 } else { 2 }, OK);
    });
    // Each kill can have cut one off, and nothing else can.
    case(Check::PushAttempts, |s| {
        s.pushed();
        s.enqueue(1, None, 0);
        s.attempt(1, 1, BAD);
        s.kill();
        s.attempt(1, if s.bad { 4 } else { 3 }, OK);
    });
    // What the system shows.
    for shown in [1, 3] {
        case(Check::Attempts, |s| {
            s.pushed();
            s.enqueue(1, None, 0);
            s.attempt(1, 1, BAD);
            s.attempt(1, 2, BAD);
            let shown = if s.bad { shown } else { 2 };
            let row = Held { forgiven: Some(0), ..row(1, State::Scheduled, shown) };
            s.done(Call::Get(Target::Id(MsgId(1))), Answer::Found(row));
        });
    }
    // What gets no answer may cost nothing.
    case(Check::Attempts, |s| {
        s.pushed();
        s.enqueue(1, None, 0);
        s.attempt(1, 1, if s.bad { BAD } else { PushAnswer::Nothing });
        let row = Held { forgiven: Some(1), ..row(1, State::Scheduled, 1) };
        s.done(Call::Get(Target::Id(MsgId(1))), Answer::Found(row));
    });
    for forgiven in [0, 2] {
        case(Check::Attempts, |s| {
            s.pushed();
            s.enqueue(1, None, 0);
            s.attempt(1, 1, PushAnswer::NotBefore { ms: 10 });
            s.wait(10);
            s.attempt(1, 2, BAD);
            let forgiven = if s.bad { forgiven } else { 1 };
            let row = Held { forgiven: Some(forgiven), ..row(1, State::Scheduled, 2) };
            s.done(Call::Get(Target::Id(MsgId(1))), Answer::Found(row));
        });
    }
}

#[test]
fn deaths_of_pushes() {
    // Too early and too late.
    for (used, shown) in [(2, 2), (4, 4)] {
        case(Check::DeadInexact, |s| {
            s.pushed();
            s.enqueue(1, None, 0);
            let (used, shown) = if s.bad { (used, shown) } else { (3, 3) };
            for n in 1..=used {
                s.attempt(1, n, BAD);
            }
            s.dump(vec![dead(shown, 0)]);
        });
    }
    // What does not count makes nobody dead.
    case(Check::DeadInexact, |s| {
        s.pushed();
        s.enqueue(1, None, 0);
        s.attempt(1, 1, PushAnswer::NotBefore { ms: 10 });
        s.wait(10);
        for n in 2..=if s.bad { 3 } else { 4 } {
            s.attempt(1, n, BAD);
        }
        s.dump(vec![dead(if s.bad { 3 } else { 4 }, 1)]);
    });
    // The message's own limit wins.
    case(Check::DeadInexact, |s| {
        s.pushed();
        let Call::Enqueue(enqueue) = enqueue(1, None, 0) else { unreachable!("it is one") };
        let call = Call::Enqueue(duewheel_judge::history::Enqueue { max_attempts: Some(2), ..enqueue });
        let answer = Answer::Enqueued {
            id: MsgId(1),
            created: true,
            replaced: None,
            superseded: None,
            due_at_ms: None,
        };
        s.done(call, answer);
        let used = if s.bad { 3 } else { 2 };
        for n in 1..=used {
            s.attempt(1, n, BAD);
        }
        s.dump(vec![dead(used, 0)]);
    });
}

#[test]
fn pushes_after_the_end() {
    // The same process has heard the success.
    case(Check::PushAfterEnd, |s| {
        s.pushed();
        s.enqueue(1, None, 0);
        s.attempt(1, 1, OK);
        if !s.bad {
            s.kill();
        }
        s.attempt(1, 2, OK);
        s.dump(Vec::new());
    });
    // The next process pushes before it is known to have started; the end of the first one is recorded before that.
    case(Check::PushAfterEnd, |s| {
        s.pushed();
        s.enqueue(1, None, 0);
        s.attempt(1, 1, OK);
        if !s.bad {
            s.fault(Fault::Killed(Moment::Serving));
        }
        s.attempt(1, 2, OK);
        s.fault(Fault::Started);
        s.dump(Vec::new());
    });
    // A start without an end is none.
    case(Check::PushAfterEnd, |s| {
        s.pushed();
        s.enqueue(1, None, 0);
        s.attempt(1, 1, OK);
        if !s.bad {
            s.fault(Fault::Killed(Moment::Serving));
        }
        s.fault(Fault::Started);
        s.attempt(1, 2, OK);
        s.dump(Vec::new());
    });
    // It was too late for the time-out.
    case(Check::PushAfterEnd, |s| {
        s.pushed();
        s.enqueue(1, None, 0);
        let push = s.seen(1, 1);
        s.wait(if s.bad { 10 } else { 90 });
        s.answered(push, OK);
        s.attempt(1, 2, OK);
    });
    // It was seen to be gone; a kill is no excuse.
    case(Check::PushAfterEnd, |s| {
        s.pushed();
        s.enqueue(1, None, 0);
        s.attempt(1, 1, OK);
        if s.bad {
            s.refused(Call::Get(Target::Id(MsgId(1))), Refusal::NotFound);
        }
        s.kill();
        s.attempt(1, 2, OK);
    });
}

#[test]
fn what_pushes_prove() {
    let mut s = Script::new(false);
    s.pushed();
    for n in 1..=3 {
        s.enqueue(n, None, 0);
    }
    s.attempt(1, 1, OK);
    s.attempt(2, 1, BAD);
    s.attempt(2, 2, BAD);
    s.seen(3, 1);
    s.kill();
    s.attempt(1, 2, OK);
    s.attempt(2, 3, BAD);
    s.attempt(3, 2, PushAnswer::NotBefore { ms: 1 });
    s.attempt(3, 3, OK);
    s.dump(vec![Held { forgiven: Some(0), ..row(2, State::Dead, 3) }]);
    let report = check(&s.history);
    assert!(report.violations.is_empty(), "{}", report.violations[0]);
    assert_eq!((report.balance.accepted, report.balance.delivered, report.balance.dead), (3, 2, 1));
    for (fact, n) in [
        (Fact::DeliveredByPush, 2),
        (Fact::DeadByPush, 1),
        (Fact::SuccessesLostInAKill, 1),
        (Fact::PushesCutByAKill, 1),
        (Fact::PushedAgainAfterAFailure, 1),
        (Fact::PushedAgainWhenAsked, 1),
    ] {
        assert_eq!(report.evidence.count(fact), n, "{fact:?}");
    }
}
