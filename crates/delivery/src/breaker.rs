//! The circuit breaker of a target, or of the origin of messages' own URLs: when it is left alone, and which failures
//! cost its messages an attempt.
//!
//! ```text
//!          ten unreachable in a row, or only failures for five minutes, of several messages
//!   closed ───────────────────────────────────────────────────────────────► open
//!     ▲ ▲                         any success                                │ │
//!     │ └──────────────────────────────────────────────────────────────────┘ │ one probe
//!     │                                                                      │ per pause
//!     │ resume                   only failures for five days, 410 or disable ▼
//!     └──────────────────────────────────────────────────────────────────── paused
//! ```
//!
//! That of an origin never pauses: after these five days the attempts of its messages count, also of those that wait.
//!
//! The breaker is pure: instants and random numbers are arguments.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duewheel::core::MessageId;
use duewheel::core::time::{EngineMs, ceil_ms};

use crate::answer::PushVerdict;
use crate::client::{PushClass, PushOutcome};
use crate::limits::{
    FIRST_PROBE, LONGEST_PROBE, MAX_SLOWED, OPEN_AFTER, OPEN_LEAST, OPEN_WINDOW, PAUSE_AFTER, PAUSE_LEAST,
};
use crate::plan::jittered;

/// The state of one target, or one origin.
#[derive(Clone, Debug)]
pub struct Breaker {
    stage: BreakerStage,
    /// The time-out of a request: a probe may be on its way for so long.
    timeout: Duration,
    /// Whether it is that of an origin, which nobody could resume: it never pauses, and its messages are dead in the end.
    is_of_origin: bool,
    /// Unreachable in a row.
    row: u32,
    /// The latest failures, oldest first, [`OPEN_LEAST`] at most.
    recent: VecDeque<EngineMs>,
    /// The message that failed last, and the latest failure of another one.
    failed: Option<FailedMessages>,
    last_success: Option<EngineMs>,
    /// Since when everything has failed, and how often.
    failing: Option<Failing>,
    /// The time for which the target wants to be left alone; then one request at a time, until one succeeds.
    slowed: Option<SlowedTime>,
    /// The number of the latest probe, over all openings.
    latest: u64,
    /// How the latest failure ended, since the latest success.
    last_failure: Option<PushClass>,
    /// Whether it has answered anything, an error too.
    has_answered: bool,
}

/// The messages of the latest failures.
#[derive(Clone, Copy, Debug)]
struct FailedMessages {
    last: (MessageId, EngineMs),
    /// The latest failure of a message that is not `last`.
    other: Option<EngineMs>,
}

/// A time in which a target has asked for fewer requests (`Retry-After`).
#[derive(Clone, Copy, Debug)]
struct SlowedTime {
    /// The first such answer since a success.
    since: EngineMs,
    /// No request is sent before.
    until: EngineMs,
}

/// Identifies a request from [`Breaker::begin`] to [`Breaker::end`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestMark {
    /// The message that is sent.
    message: MessageId,
    /// The number of the probe, if it is one.
    probe: Option<u64>,
}

/// The state of a breaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BreakerStage {
    /// Messages are delivered.
    Closed,
    /// Messages wait; a probe is sent now and then.
    Open {
        /// When it opened.
        since: EngineMs,
        /// Probes sent so far.
        probes: u32,
        /// When the next may be sent.
        next: EngineMs,
    },
    /// Messages wait until the target is resumed.
    Paused {
        /// Why.
        reason: String,
    },
}

/// A time of nothing but failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failing {
    /// When it began, as far as this breaker has seen it.
    pub since: EngineMs,
    /// How long it had lasted before, in ms: an earlier process has seen that.
    pub earlier_ms: u64,
    /// The failures since it began.
    pub failures: u32,
}

impl Failing {
    /// How long it has lasted, in ms.
    pub fn lasts_ms(&self, now: EngineMs) -> u64 {
        since_then(self.since, now).saturating_add(self.earlier_ms)
    }
}

/// Whether requests may be sent now, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// As many requests as the target's own limits allow.
    Many,
    /// A single request, announced with [`Breaker::begin`].
    One,
    /// No request before this instant.
    Until(EngineMs),
    /// No request before one that is under way has ended.
    AfterOthers,
    /// No request before the target is resumed.
    Paused,
}

/// Whether an attempt is one of those after which a message is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// The attempt counts.
    Counted,
    /// The attempt does not count: the target is away, busy, or has refused everything.
    Forgiven,
}

impl Breaker {
    /// The breaker of a target that nothing is known of. `timeout` is that of its requests.
    pub fn new(timeout: Duration) -> Self {
        Breaker {
            stage: BreakerStage::Closed,
            timeout,
            is_of_origin: false,
            row: 0,
            recent: VecDeque::new(),
            failed: None,
            last_success: None,
            failing: None,
            slowed: None,
            latest: 0,
            last_failure: None,
            has_answered: false,
        }
    }

    /// The breaker of an origin that nothing is known of. Each failure counts.
    pub(crate) fn of_origin(timeout: Duration) -> Self {
        Breaker { is_of_origin: true, ..Breaker::new(timeout) }
    }

    /// Whether the attempts of messages that must wait count: the origin has failed for days.
    pub(crate) fn waiting(&self, now: EngineMs) -> Charge {
        if self.is_of_origin && self.has_failed_for_days(now) { Charge::Counted } else { Charge::Forgiven }
    }

    fn has_failed_for_days(&self, now: EngineMs) -> bool {
        self.failing.is_some_and(|failing| {
            failing.failures >= PAUSE_LEAST && failing.lasts_ms(now) >= ceil_ms(PAUSE_AFTER)
        })
    }

    /// How the latest failure ended, since the latest success.
    pub fn last_failure(&self) -> Option<PushClass> {
        self.last_failure
    }

    /// Since when the target has answered requests with a `Retry-After`, if it does.
    pub fn slowed_since(&self) -> Option<EngineMs> {
        self.slowed.map(|slowed| slowed.since)
    }

    /// The current run of failures, if any.
    pub fn failing(&self) -> Option<Failing> {
        self.failing
    }

    /// The target has failed before, as an earlier process of this node or another one has seen: the time goes on.
    pub fn has_failed(&mut self, before: Failing) {
        let failures = self.failing.map_or(0, |failing| failing.failures);
        self.failing = Some(Failing { failures: failures.saturating_add(before.failures), ..before });
    }

    /// Returns the state of the breaker.
    pub fn stage(&self) -> &BreakerStage {
        &self.stage
    }

    /// Returns whether requests may be sent now, while `under_way` others have not ended.
    pub fn permit(&self, now: EngineMs, under_way: usize) -> Permit {
        match (&self.stage, self.slowed) {
            (BreakerStage::Paused { .. }, _) => Permit::Paused,
            (BreakerStage::Open { next, .. }, _) if now < *next => Permit::Until(*next),
            (BreakerStage::Open { .. }, _) => Permit::One,
            (BreakerStage::Closed, None) => Permit::Many,
            (BreakerStage::Closed, Some(SlowedTime { until, .. })) if now < until => Permit::Until(until),
            (BreakerStage::Closed, Some(_)) if under_way > 0 => Permit::AfterOthers,
            (BreakerStage::Closed, Some(_)) => Permit::One,
        }
    }

    /// A request that sends `message` begins. While the breaker is open it is a probe, and no other follows until it
    /// has ended, or could have. `random` is any number.
    pub fn begin(&mut self, now: EngineMs, message: MessageId, random: u64) -> RequestMark {
        let BreakerStage::Open { probes, next, .. } = &mut self.stage else {
            return RequestMark { message, probe: None };
        };
        *probes = probes.saturating_add(1);
        *next = after(now, self.timeout + probe_pause(*probes, random));
        self.latest += 1;
        RequestMark { message, probe: Some(self.latest) }
    }

    /// A request has ended, the one that `mark` was given for. `random` is any number; the same number gives the same pause.
    pub fn end(&mut self, now: EngineMs, mark: RequestMark, outcome: &PushOutcome, random: u64) -> Charge {
        let is_away = self.hear(outcome);
        let charge = match outcome.verdict {
            // A message that will never be taken was answered all the same: the target is well.
            PushVerdict::Delivered | PushVerdict::Snoozed(_) | PushVerdict::Dead => {
                self.succeed(now);
                if matches!(outcome.verdict, PushVerdict::Snoozed(_)) {
                    Charge::Forgiven
                } else {
                    Charge::Counted
                }
            }
            PushVerdict::Slowed(after_this) => {
                let until = after(now, after_this.min(MAX_SLOWED));
                let earlier = self.slowed.unwrap_or(SlowedTime { since: now, until });
                self.slowed = Some(SlowedTime { until: until.max(earlier.until), ..earlier });
                self.close();
                self.fail_to_succeed(now, outcome.class);
                self.waiting(now)
            }
            PushVerdict::Refused => Charge::Forgiven,
            PushVerdict::Failed => {
                let charge = self.fail(now, mark, outcome, random);
                if is_away { Charge::Forgiven } else { charge }
            }
        };
        if outcome.disable {
            self.pause(format!("the target takes no more messages: {}", outcome.class));
        }
        charge
    }

    /// Nothing is sent until [`Breaker::resume`].
    pub fn pause(&mut self, reason: impl Into<String>) {
        self.stage = BreakerStage::Paused { reason: reason.into() };
    }

    /// Forgets all failures; messages are delivered again.
    pub fn resume(&mut self) {
        let Breaker { last_success, latest, timeout, .. } = *self;
        *self = Breaker { last_success, latest, ..Breaker::new(timeout) };
    }

    /// Notes whether the target has answered, and counts how often in a row it has not. Returns whether no message is to
    /// blame for a missing answer. The first one since an answer may be the fault of its message.
    fn hear(&mut self, outcome: &PushOutcome) -> bool {
        if !outcome.class.is_unreachable() {
            (self.row, self.has_answered) = (0, true);
            return false;
        }
        self.row = self.row.saturating_add(1);
        (self.row > 1 || !self.has_answered) && !self.is_of_origin
    }

    fn succeed(&mut self, now: EngineMs) {
        self.recent.clear();
        self.failed = None;
        self.failing = None;
        self.last_failure = None;
        // Requests that were under way when the target asked for time do not take it away.
        self.slowed = self.slowed.filter(|slowed| now < slowed.until);
        self.last_success = Some(now);
        self.close();
    }

    fn close(&mut self) {
        if matches!(self.stage, BreakerStage::Open { .. }) {
            self.stage = BreakerStage::Closed;
        }
    }

    fn fail(&mut self, now: EngineMs, mark: RequestMark, outcome: &PushOutcome, random: u64) -> Charge {
        self.recent.push_back(now);
        if self.recent.len() > OPEN_LEAST {
            self.recent.pop_front();
        }
        let other = match self.failed {
            None => None,
            Some(FailedMessages { last, other }) if last.0 == mark.message => other,
            Some(FailedMessages { last, .. }) => Some(last.1),
        };
        self.failed = Some(FailedMessages { last: (mark.message, now), other });
        let charge = match &mut self.stage {
            BreakerStage::Closed => {
                if self.row >= OPEN_AFTER || self.nothing_succeeds(now) {
                    let next = after(now, probe_pause(0, random));
                    self.stage = BreakerStage::Open { since: now, probes: 0, next };
                }
                Charge::Counted
            }
            BreakerStage::Open { probes, next, .. } => {
                // Neither requests that were under way when it opened nor earlier probes move the next one.
                if *probes > 0 && mark.probe == Some(self.latest) {
                    *next = after(now, probe_pause(*probes, random));
                }
                // A target is paused after days of failures; messages of an origin must be dead in the end.
                if self.is_of_origin { Charge::Counted } else { Charge::Forgiven }
            }
            BreakerStage::Paused { .. } => Charge::Forgiven,
        };
        self.fail_to_succeed(now, outcome.class);
        charge
    }

    /// Counts a request without a success, and pauses after days of nothing else.
    fn fail_to_succeed(&mut self, now: EngineMs, class: PushClass) {
        self.last_failure = Some(class);
        let mut failing = self.failing.unwrap_or(Failing { since: now, earlier_ms: 0, failures: 0 });
        failing.failures = failing.failures.saturating_add(1);
        self.failing = Some(failing);
        if !self.is_of_origin && self.has_failed_for_days(now) {
            let days = PAUSE_AFTER.as_secs() / 86_400;
            self.pause(format!("all requests failed for {days} days, the last: {class}"));
        }
    }

    /// Whether all of the last five minutes have failed: several requests, of more than one message. One message alone
    /// may be what the target cannot take; it is dead in the end.
    fn nothing_succeeds(&self, now: EngineMs) -> bool {
        let within = |then: &EngineMs| since_then(*then, now) < ceil_ms(OPEN_WINDOW);
        self.failed.and_then(|failed| failed.other).as_ref().is_some_and(within)
            && self.recent.len() == OPEN_LEAST
            && self.recent.iter().all(within)
            && !self.last_success.as_ref().is_some_and(within)
    }
}

/// A breaker that its requests share.
#[derive(Clone, Debug)]
pub(crate) struct SharedBreaker(Arc<Mutex<Breaker>>);

impl SharedBreaker {
    pub(crate) fn new(breaker: Breaker) -> Self {
        SharedBreaker(Arc::new(Mutex::new(breaker)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Breaker> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many other clones there are.
    pub(crate) fn sharers(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

fn probe_pause(probes: u32, random: u64) -> Duration {
    let doublings = 1u32.checked_shl(probes).unwrap_or(u32::MAX);
    jittered(FIRST_PROBE.saturating_mul(doublings).min(LONGEST_PROBE), random)
}

fn after(now: EngineMs, delay: Duration) -> EngineMs {
    EngineMs(now.0.saturating_add(ceil_ms(delay)))
}

fn since_then(then: EngineMs, now: EngineMs) -> u64 {
    now.0.saturating_sub(then.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::PushClass;

    const SECOND: u64 = 1_000;
    const MINUTE: u64 = 60 * SECOND;
    const DAY: u64 = 1_440 * MINUTE;
    /// In the middle of the jitter.
    const MIDDLE: u64 = u64::MAX / 2;

    fn outcome(verdict: PushVerdict, class: PushClass) -> PushOutcome {
        PushOutcome { verdict, disable: false, class, took: Duration::ZERO, answer: String::new() }
    }

    /// A breaker, and the mark of the request that began last. Each request is of another message.
    struct Bench(Breaker, RequestMark);

    /// A request from before it opened.
    const EARLIER: RequestMark = RequestMark { message: MessageId(0), probe: None };

    impl Bench {
        fn new() -> Self {
            Bench(Breaker::new(Duration::from_secs(30)), EARLIER)
        }

        fn end(&mut self, ms: u64, verdict: PushVerdict, class: PushClass) -> Charge {
            let mark = RequestMark { message: MessageId(ms), ..self.1 };
            self.0.end(EngineMs(ms), mark, &outcome(verdict, class), MIDDLE)
        }

        fn begin(&mut self, ms: u64) {
            self.1 = self.0.begin(EngineMs(ms), MessageId(ms), MIDDLE);
        }

        fn unreachable(&mut self, ms: u64) -> Charge {
            self.end(ms, PushVerdict::Failed, PushClass::ConnectionRefused)
        }

        fn fails(&mut self, ms: u64) -> Charge {
            self.end(ms, PushVerdict::Failed, PushClass::Status(500))
        }

        fn succeeds(&mut self, ms: u64) -> Charge {
            self.end(ms, PushVerdict::Delivered, PushClass::Status(200))
        }

        fn permit(&self, ms: u64) -> Permit {
            self.0.permit(EngineMs(ms), 0)
        }
    }

    #[test]
    fn ten_unreachable_attempts_open_breaker() {
        let mut it = Bench::new();
        it.succeeds(0);
        for n in 1..10 {
            let charge = if n == 1 { Charge::Counted } else { Charge::Forgiven };
            assert_eq!(it.unreachable(n), charge, "{n}");
        }
        // An answer, even a bad one, ends the row.
        assert_eq!(it.fails(10), Charge::Counted);
        for n in 11..20 {
            it.unreachable(n);
            assert_eq!(it.permit(n), Permit::Many, "{n}");
        }
        assert_eq!(it.unreachable(20), Charge::Forgiven, "the tenth opens it, and ends no message");
        assert_eq!(it.permit(20), Permit::Until(EngineMs(20 + 5 * SECOND)));
        assert_eq!(it.unreachable(21), Charge::Forgiven);
    }

    #[test]
    fn five_minutes_of_failures_open_it() {
        let mut it = Bench::new();
        it.succeeds(0);
        for ms in [MINUTE, 2 * MINUTE, 4 * MINUTE, 5 * MINUTE - 1] {
            it.fails(ms);
            assert_eq!(it.permit(ms), Permit::Many);
        }
        it.fails(5 * MINUTE);
        assert!(matches!(it.permit(5 * MINUTE), Permit::Until(_)));
    }

    /// Story: one message that its target cannot take opened the breaker by itself, and was forgiven for good.
    #[test]
    fn single_message_does_not_open_breaker() {
        let mut it = Breaker::new(Duration::from_secs(30));
        let failed = outcome(PushVerdict::Failed, PushClass::Status(500));
        let mut fails = |message, ms| {
            let mark = it.begin(EngineMs(ms), MessageId(message), MIDDLE);
            let charge = it.end(EngineMs(ms), mark, &failed, MIDDLE);
            (charge, it.permit(EngineMs(ms), 0) == Permit::Many)
        };
        for ms in 0..100 {
            assert_eq!(fails(1, ms), (Charge::Counted, true), "{ms}");
        }
        // Another one long after it, and again the first one: the two are of the same five minutes.
        assert_eq!(fails(2, 10 * MINUTE), (Charge::Counted, true));
        assert_eq!(fails(2, 14 * MINUTE), (Charge::Counted, true), "the first one failed long ago");
        assert_eq!(fails(1, 14 * MINUTE + 1), (Charge::Counted, false));
    }

    /// Story: one message alone, whose target was away for longer than its attempts lasted, was dead: the tenth failure
    /// opened the breaker and was its last one, and each restart began the count of ten anew.
    #[test]
    fn unanswered_attempts_are_forgiven_during_outage() {
        let refused = outcome(PushVerdict::Failed, PushClass::ConnectionRefused);
        let alone = RequestMark { message: MessageId(1), probe: None };
        for _restart in 0..3 {
            let mut it = Breaker::new(Duration::from_secs(30));
            for n in 0..30 {
                assert_eq!(it.end(EngineMs(n * DAY / 100), alone, &refused, MIDDLE), Charge::Forgiven, "{n}");
                assert_eq!(matches!(it.stage(), BreakerStage::Open { .. }), n >= 9, "{n}");
            }
        }
        // A message at which its target always hangs, and no other, is dead in the end.
        let mut it = Bench::new();
        for n in 0..20 {
            it.succeeds(2 * n);
            assert_eq!(it.end(2 * n + 1, PushVerdict::Failed, PushClass::Timeout), Charge::Counted, "{n}");
        }
        // So is one whose own URL leads nowhere: nobody could resume its origin.
        let mut it = Breaker::of_origin(Duration::from_secs(30));
        for n in 0..10 {
            assert_eq!(it.end(EngineMs(n * DAY), alone, &refused, MIDDLE), Charge::Counted, "{n}");
        }
    }

    /// Story: each restart of a server began the five days anew.
    #[test]
    fn failure_period_survives_restart() {
        let mut earlier = Bench::new();
        for n in 0..10 {
            earlier.fails(n * MINUTE);
        }
        let failing = earlier.0.failing().expect("it fails");
        assert_eq!(failing, Failing { since: EngineMs(0), earlier_ms: 0, failures: 10 });
        let mut it = Bench::new();
        it.0.has_failed(failing);
        it.fails(5 * DAY - 1);
        assert!(!matches!(it.0.stage(), BreakerStage::Paused { .. }));
        it.fails(5 * DAY);
        assert!(matches!(it.0.stage(), BreakerStage::Paused { .. }));
        // The clock of a young store shows less than that.
        let mut it = Bench::new();
        it.0.has_failed(Failing { since: EngineMs(7), earlier_ms: 5 * DAY - 1, failures: 9 });
        it.fails(7);
        assert!(!matches!(it.0.stage(), BreakerStage::Paused { .. }));
        it.fails(8);
        assert!(matches!(it.0.stage(), BreakerStage::Paused { .. }));
        // A success ends it.
        let mut it = Bench::new();
        it.0.has_failed(failing);
        it.succeeds(5 * DAY);
        assert_eq!(it.0.failing(), None);
        it.fails(6 * DAY);
        assert!(!matches!(it.0.stage(), BreakerStage::Paused { .. }));
    }

    #[test]
    fn few_sparse_failures_keep_breaker_closed() {
        let mut it = Bench::new();
        for ms in [0, MINUTE, 6 * MINUTE, 7 * MINUTE, 12 * MINUTE] {
            it.fails(ms);
            assert_eq!(it.permit(ms), Permit::Many, "{ms}");
        }
    }

    #[test]
    fn one_probe_per_pause_which_doubles() {
        let mut it = Bench::new();
        for ms in [0, 1, 2] {
            it.fails(ms);
        }
        let mut now = 2;
        for pause in [5, 10, 20, 40, 80, 160, 300, 300] {
            let next = now + pause * SECOND;
            assert_eq!(it.permit(next - 1), Permit::Until(EngineMs(next)));
            assert_eq!(it.permit(next), Permit::One);
            it.begin(next);
            assert!(
                matches!(it.permit(next), Permit::Until(later) if later.0 > next + 30 * SECOND),
                "it may take 30 s"
            );
            now = next + SECOND;
            assert_eq!(it.unreachable(now), Charge::Forgiven, "a probe");
        }
        it.begin(now + 300 * SECOND);
        it.succeeds(now + 301 * SECOND);
        assert_eq!(it.permit(now + 301 * SECOND), Permit::Many);
    }

    #[test]
    fn lost_probe_is_replaced() {
        let mut it = Bench::new();
        for ms in [0, 1, 2] {
            it.fails(ms);
        }
        it.begin(10 * SECOND);
        assert_eq!(it.permit(50 * SECOND), Permit::One, "30 s of time-out and 10 s of pause later");
    }

    #[test]
    fn only_latest_probe_schedules_next() {
        let mut it = Bench::new();
        for ms in [0, 1, 2] {
            it.fails(ms);
        }
        it.begin(10 * SECOND);
        let (under_way, first) = (it.permit(10 * SECOND), it.1);
        assert_eq!(under_way, Permit::Until(EngineMs(50 * SECOND)));
        it.1 = EARLIER;
        assert_eq!(it.unreachable(11 * SECOND), Charge::Forgiven, "a request from before");
        assert_eq!(it.permit(11 * SECOND), under_way);

        it.begin(50 * SECOND);
        let (under_way, second) = (it.permit(50 * SECOND), it.1);
        it.1 = first;
        it.unreachable(51 * SECOND);
        assert_eq!(it.permit(51 * SECOND), under_way, "a probe that took longer than it may");
        it.1 = second;
        it.unreachable(52 * SECOND);
        assert_eq!(it.permit(52 * SECOND), Permit::Until(EngineMs(72 * SECOND)));
    }

    #[test]
    fn earlier_success_closes_breaker() {
        let mut it = Bench::new();
        for ms in [0, 1, 2] {
            it.fails(ms);
        }
        it.succeeds(3);
        assert_eq!(it.permit(3), Permit::Many);
    }

    /// Probes of two openings are told apart, also after a resume.
    #[test]
    fn earlier_probe_stays_apart_after_resume() {
        let mut it = Bench::new();
        for ms in [0, 1, 2] {
            it.fails(ms);
        }
        assert_eq!(it.0.last_failure(), Some(PushClass::Status(500)));
        it.begin(10 * SECOND);
        let probe = it.1;
        it.0.resume();
        assert_eq!((it.permit(11 * SECOND), it.0.last_failure()), (Permit::Many, None));
        for ms in [0, 1, 2] {
            it.fails(20 * SECOND + ms);
        }
        it.begin(30 * SECOND);
        assert_ne!(it.1, probe);
    }

    #[test]
    fn retry_after_slows_target() {
        let mut it = Bench::new();
        let busy = |seconds| PushVerdict::Slowed(Duration::from_secs(seconds));
        assert_eq!(it.end(0, busy(60), PushClass::Status(429)), Charge::Forgiven);
        // One of those that were under way.
        it.succeeds(SECOND);
        assert_eq!(it.0.slowed_since(), Some(EngineMs(0)));
        assert_eq!(it.permit(59 * SECOND), Permit::Until(EngineMs(MINUTE)));
        assert_eq!(it.permit(MINUTE), Permit::One);
        assert_eq!(it.0.permit(EngineMs(MINUTE), 1), Permit::AfterOthers);
        // A day for this message; other messages are tried again after five minutes.
        it.end(MINUTE, busy(86_400), PushClass::Status(503));
        assert_eq!(it.0.slowed_since(), Some(EngineMs(0)), "since the first such answer");
        assert_eq!(it.0.last_failure(), Some(PushClass::Status(503)));
        assert_eq!(it.permit(2 * MINUTE), Permit::Until(EngineMs(6 * MINUTE)));
        it.succeeds(7 * MINUTE);
        assert_eq!(it.permit(7 * MINUTE), Permit::Many);
        assert_eq!((it.0.slowed_since(), it.0.failing()), (None, None));
    }

    /// Story: a target answered 429 for weeks. It was shown as active, and nobody looked.
    #[test]
    fn five_days_of_retry_after_pause_it() {
        let mut it = Bench::new();
        it.succeeds(0);
        let busy = PushVerdict::Slowed(Duration::from_secs(3_600));
        for n in 0..=120 {
            assert_ne!(it.permit(n * 60 * MINUTE + DAY), Permit::Paused);
            it.end(n * 60 * MINUTE + DAY, busy, PushClass::Status(429));
        }
        assert_eq!(it.0.slowed_since(), Some(EngineMs(DAY)));
        let reason = "all requests failed for 5 days, the last: status_429".to_owned();
        assert_eq!(*it.0.stage(), BreakerStage::Paused { reason });
    }

    #[test]
    fn five_days_of_failures_pause_target() {
        let mut it = Bench::new();
        it.succeeds(0);
        // Rarely used: nine failures over five days are not enough.
        for n in 0..9 {
            it.fails(n * DAY);
        }
        assert_ne!(it.permit(8 * DAY), Permit::Paused);
        it.fails(9 * DAY);
        assert_eq!(it.permit(9 * DAY), Permit::Paused);
        let BreakerStage::Paused { reason } = it.0.stage() else { panic!("{:?}", it.0) };
        assert_eq!(reason, "all requests failed for 5 days, the last: status_500");
        assert_eq!(it.fails(9 * DAY), Charge::Forgiven);
        it.0.resume();
        assert_eq!(it.permit(9 * DAY), Permit::Many);
        assert_eq!(it.fails(9 * DAY), Charge::Counted);
    }

    /// Story: messages of an origin that answered 429 for good never died, and nobody can resume an origin.
    #[test]
    fn origin_attempts_count_after_five_days() {
        let mut it = Bench(Breaker::of_origin(Duration::from_secs(30)), EARLIER);
        let busy = PushVerdict::Slowed(Duration::from_secs(3_600));
        for n in 0..120 {
            assert_eq!(it.end(n * 60 * MINUTE, busy, PushClass::Status(429)), Charge::Forgiven, "{n}");
            assert_eq!(it.0.waiting(EngineMs(n * 60 * MINUTE)), Charge::Forgiven, "{n}");
        }
        assert_eq!(it.end(5 * DAY, busy, PushClass::Status(429)), Charge::Counted);
        assert_eq!((it.0.waiting(EngineMs(5 * DAY)), it.permit(6 * DAY)), (Charge::Counted, Permit::One));
        it.succeeds(6 * DAY);
        assert_eq!(it.0.waiting(EngineMs(6 * DAY)), Charge::Forgiven);
        assert_eq!(it.end(6 * DAY, busy, PushClass::Status(429)), Charge::Forgiven);
    }

    #[test]
    fn success_restarts_five_day_period() {
        let mut it = Bench::new();
        for n in 0..4 {
            it.fails(n * DAY);
        }
        it.succeeds(4 * DAY);
        for n in 5..10 {
            it.fails(n * DAY);
            assert_ne!(it.permit(n * DAY), Permit::Paused, "day {n}");
        }
    }

    #[test]
    fn what_a_target_says_of_itself() {
        let mut it = Bench::new();
        let gone = PushOutcome { disable: true, ..outcome(PushVerdict::Refused, PushClass::Status(410)) };
        assert_eq!(it.0.end(EngineMs(0), EARLIER, &gone, MIDDLE), Charge::Forgiven);
        assert_eq!(it.permit(0), Permit::Paused);
        // A success of a request from before does not resume it.
        it.succeeds(1);
        assert_eq!(it.permit(1), Permit::Paused);

        let mut it = Bench::new();
        let last = PushOutcome { disable: true, ..outcome(PushVerdict::Delivered, PushClass::Status(200)) };
        assert_eq!(it.0.end(EngineMs(0), EARLIER, &last, MIDDLE), Charge::Counted);
        assert_eq!(it.permit(0), Permit::Paused);

        let mut it = Bench::new();
        let snoozed = PushVerdict::Snoozed(Duration::from_secs(1));
        assert_eq!(it.end(0, snoozed, PushClass::Status(200)), Charge::Forgiven);
        assert_eq!(it.end(0, PushVerdict::Dead, PushClass::Status(422)), Charge::Counted);
        assert_eq!(it.permit(0), Permit::Many);
    }
}
