//! A history written as a script, right or with one thing wrong.

use duewheel_judge::checker::{Check, check};
use duewheel_judge::history::{
    Answer, Call, Enqueue, Event, Fault, Grant, Held, History, IfExists, Moment, MsgId, OpId, Payload, Proof,
    Refusal, Rules, Stamp, State, Tag, Target, Token, What, When, body,
};

pub(crate) const Q: &str = "q";
pub(crate) const WALL: u64 = 1_000_000;

/// A history under construction; the clock stands still until it is moved.
pub(crate) struct Script {
    pub(crate) history: History,
    pub(crate) ms: u64,
    pub(crate) ops: u64,
    pub(crate) bad: bool,
    /// What the next grants say.
    pub(crate) late_ms: u64,
    /// How far the wall clock was stepped forward, in ms.
    pub(crate) ahead: u64,
}

impl Script {
    pub(crate) fn new(bad: bool) -> Self {
        let mut script = Script { history: History::default(), ms: 0, ops: 0, bad, late_ms: 0, ahead: 0 };
        script.history.rules = Rules {
            lease_ms: 100,
            max_attempts: 3,
            backoff_min_ms: 50,
            backoff_max_ms: 1_000,
            ..Rules::default()
        };
        script.fault(Fault::Started);
        script
    }

    pub(crate) fn push(&mut self, what: What) {
        let at = Stamp { mono_ns: self.ms * 1_000_000, wall_ms: WALL + self.ms + self.ahead };
        self.history.events.push(Event { at, client: 1, what });
    }

    pub(crate) fn fault(&mut self, fault: Fault) {
        self.push(What::Fault(fault));
    }

    /// Steps the wall clock, so that it is so far ahead of the time since the start.
    pub(crate) fn step(&mut self, ahead: u64) {
        let before_ms = WALL + self.ms + self.ahead;
        self.ahead = ahead;
        self.fault(Fault::ClockStep { before_ms, after_ms: WALL + self.ms + ahead });
    }

    pub(crate) fn wait(&mut self, ms: u64) {
        self.ms += ms;
    }

    pub(crate) fn invoke(&mut self, call: Call) -> OpId {
        let op = OpId(self.ops);
        self.ops += 1;
        self.push(What::Invoke { op, call });
        op
    }

    pub(crate) fn ok(&mut self, op: OpId, answer: Answer) {
        self.push(What::Ok { op, answer });
    }

    pub(crate) fn fail(&mut self, op: OpId, refusal: Refusal) {
        self.push(What::Fail { op, refusal });
    }

    /// An operation that takes one ms.
    pub(crate) fn done(&mut self, call: Call, answer: Answer) {
        let op = self.invoke(call);
        self.wait(1);
        self.ok(op, answer);
    }

    pub(crate) fn refused(&mut self, call: Call, refusal: Refusal) {
        let op = self.invoke(call);
        self.wait(1);
        self.fail(op, refusal);
    }

    pub(crate) fn unknown(&mut self, call: Call) {
        let op = self.invoke(call);
        self.wait(1);
        self.push(What::Info { op, why: "cut".to_owned() });
    }

    pub(crate) fn kill(&mut self) {
        self.fault(Fault::Killed(Moment::Serving));
        self.wait(5);
        self.fault(Fault::Started);
    }

    /// Message `n` has tag `n` and id `n`.
    pub(crate) fn enqueue(&mut self, n: u64, key: Option<&str>, delay: u64) {
        let answer = Answer::Enqueued {
            id: MsgId(n),
            created: true,
            replaced: None,
            superseded: None,
            due_at_ms: None,
        };
        self.done(enqueue(n, key, delay), answer);
    }

    /// Message `n` takes the key of message `old`, which is leased.
    pub(crate) fn supersede(&mut self, n: u64, old: u64, key: &str) {
        let (id, superseded) = (MsgId(n), Some(MsgId(old)));
        let answer = Answer::Enqueued { id, created: true, replaced: None, superseded, due_at_ms: None };
        self.done(superseding(n, key), answer);
    }

    pub(crate) fn grant(&mut self, n: u64, key: Option<&str>, attempt: u64, token: u64) {
        let lateness_ms = self.late_ms;
        self.done(reserve(), Answer::Grants(vec![Grant { lateness_ms, ..grant(n, key, attempt, token) }]));
    }

    pub(crate) fn empty(&mut self) {
        self.done(reserve(), Answer::Grants(Vec::new()));
    }

    pub(crate) fn ack(&mut self, n: u64, token: u64) {
        self.done(Call::Ack(proof(n, token)), Answer::Settled);
    }

    pub(crate) fn cancel(&mut self, n: u64) {
        self.done(Call::Cancel(Target::Id(MsgId(n))), Answer::Cancelled(Some(MsgId(n))));
    }

    pub(crate) fn dump(&mut self, rows: Vec<Held>) {
        self.push(What::Dump { queue: Q.to_owned(), rows });
    }
}

pub(crate) fn enqueue(n: u64, key: Option<&str>, delay: u64) -> Call {
    Call::Enqueue(Enqueue {
        queue: Q.to_owned(),
        key: key.map(str::to_owned),
        body: payload(n),
        when: When::DelayMs(delay),
        if_exists: IfExists::Replace,
        dedupe_id: None,
        max_attempts: None,
        lease_ms: None,
        spread_ms: 0,
        expiry: None,
    })
}

pub(crate) fn superseding(n: u64, key: &str) -> Call {
    let Call::Enqueue(e) = enqueue(n, Some(key), 9_000) else { unreachable!() };
    Call::Enqueue(Enqueue { if_exists: IfExists::Supersede, ..e })
}

pub(crate) fn payload(n: u64) -> Payload {
    Payload::of(Tag(n), body(Tag(n), 50).as_bytes())
}

pub(crate) fn reserve() -> Call {
    Call::Reserve { queue: Q.to_owned(), max: 10, wait_ms: 0, lease_ms: None }
}

pub(crate) fn token(n: u64) -> Token {
    Token(format!("{n:04}"))
}

pub(crate) fn proof(n: u64, t: u64) -> Proof {
    Proof { id: MsgId(n), token: token(t) }
}

pub(crate) fn grant(n: u64, key: Option<&str>, attempt: u64, t: u64) -> Grant {
    let key = key.map(str::to_owned);
    Grant {
        id: MsgId(n),
        token: token(t),
        attempt,
        key,
        body: payload(n).seen(),
        lateness_ms: 0,
        late: false,
    }
}

pub(crate) fn row(n: u64, state: State, attempt: u64) -> Held {
    Held {
        id: MsgId(n),
        key: None,
        state,
        attempt,
        body: Some(payload(n).seen()),
        forgiven: None,
        death: None,
    }
}

/// Runs a script right and wrong; wrong it must fail the check, and right nothing at all.
pub(crate) fn case(wanted: Check, script: impl Fn(&mut Script)) {
    for bad in [false, true] {
        let mut s = Script::new(bad);
        script(&mut s);
        let report = check(&s.history);
        let shown: String = report.violations.iter().map(ToString::to_string).collect();
        assert_eq!(report.to_string().contains("\nJUDGE: broken ["), !report.violations.is_empty());
        if bad {
            assert!(report.failed().contains(&wanted), "{wanted:?} was not found, but:\n{shown}");
        } else {
            assert!(report.violations.is_empty(), "{wanted:?}: a false alarm\n{shown}");
        }
    }
}
