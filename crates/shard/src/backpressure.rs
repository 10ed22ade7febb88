//! Backpressure: new messages wait while the store is behind.
//!
//! A burst that exceeds the speed of the disk fills the memory reserved for it. New messages are then refused until a
//! part of it is written. For callers that cannot handle a refusal, and send nothing else before the answer, waiting is
//! better: it slows them down to the speed of the disk. All other operations are decided as usual.

use std::collections::VecDeque;
use std::time::Duration;

use duewheel_core::policy::Policy;

use crate::inbox::Submission;

/// After this time they are decided in any case, and refused if the store is still behind.
const PATIENCE: Duration = Duration::from_secs(10);
/// The interval at which the store is checked while submissions wait.
const LOOK: Duration = Duration::from_millis(2);

/// Whether new messages are accepted for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Open,
    /// The store is behind.
    Closed,
}

/// Submissions that wait, in order.
#[derive(Debug)]
pub(crate) struct WaitingSubmissions {
    line: VecDeque<(Duration, usize, Submission)>,
    bytes: usize,
    max_bytes: usize,
}

impl WaitingSubmissions {
    pub(crate) fn new(policy: &Policy) -> Self {
        WaitingSubmissions { line: VecDeque::new(), bytes: 0, max_bytes: policy.max_inbox_bytes }
    }

    /// While the gate is closed, removes from `submissions` those that may wait, unless too many are waiting already,
    /// and puts those that have waited long enough in front; when it is open, puts all of them in front. `now` is
    /// [`crate::clock::Clock::running`].
    pub(crate) fn sort(&mut self, submissions: &mut Vec<Submission>, gate: Gate, now: Duration) {
        if gate == Gate::Open {
            return self.give_back(submissions);
        }
        let mut stay = Vec::with_capacity(submissions.len());
        while let Some((since, ..)) = self.line.front()
            && now.saturating_sub(*since) >= PATIENCE
            && let Some((_, bytes, submission)) = self.line.pop_front()
        {
            self.bytes -= bytes;
            // A submission may be sorted again before it is decided.
            stay.push(Submission { has_waited: true, ..submission });
        }
        for submission in submissions.drain(..) {
            match submission.may_wait().filter(|bytes| self.bytes + bytes <= self.max_bytes) {
                Some(bytes) => {
                    self.bytes += bytes;
                    self.line.push_back((now, bytes, submission));
                }
                None => stay.push(submission),
            }
        }
        *submissions = stay;
    }

    /// Puts all waiting submissions back in front.
    pub(crate) fn give_back(&mut self, submissions: &mut Vec<Submission>) {
        if !self.line.is_empty() {
            self.bytes = 0;
            let late: Vec<_> = self.line.drain(..).map(|(.., submission)| submission).collect();
            submissions.splice(0..0, late);
        }
    }

    /// The longest sleep of the driver.
    pub(crate) fn nap(&self) -> Duration {
        if self.line.is_empty() { Duration::MAX } else { LOOK }
    }
}

#[cfg(test)]
mod tests {
    use duewheel_core::engine::{Enqueue, Op};
    use duewheel_core::{MessageId, QueueName, SessionId};
    use tokio::sync::oneshot;

    use super::*;
    use crate::inbox::WhenBusy;

    fn submission(op: Op, patience: WhenBusy) -> Submission {
        Submission { ops: vec![op], answer: oneshot::channel().0, patience, has_waited: false }
    }

    fn put(body: &'static str, patience: WhenBusy) -> Submission {
        submission(Op::Enqueue(Box::new(Enqueue::new(QueueName::new("q").unwrap(), body))), patience)
    }

    /// A submission with a new message, and with an operation that frees room.
    fn mixed(body: &'static str) -> Submission {
        let mut submission = put(body, WhenBusy::Wait);
        submission.ops.push(Op::Delete { id: MessageId(1), session: SessionId(1) });
        submission
    }

    fn bodies(submissions: &[Submission]) -> String {
        let body = |s: &Submission| match &s.ops[0] {
            Op::Enqueue(e) => String::from_utf8_lossy(&e.body).into_owned(),
            _ => "-".to_owned(),
        };
        submissions.iter().map(body).collect()
    }

    /// Story: a submission that had waited for its ten seconds, and did not get into the driver's step, was put behind
    /// all others and waited again.
    #[test]
    fn expired_wait_is_not_repeated() {
        let mut waiting = WaitingSubmissions::new(&Policy::default());
        let mut some = vec![put("a", WhenBusy::Wait)];
        waiting.sort(&mut some, Gate::Closed, Duration::ZERO);
        let mut some = vec![put("b", WhenBusy::Paced)];
        waiting.sort(&mut some, Gate::Closed, Duration::from_secs(1));
        let mut left = Vec::new();
        waiting.sort(&mut left, Gate::Closed, PATIENCE);
        assert_eq!(bodies(&left), "a");
        waiting.sort(&mut left, Gate::Closed, PATIENCE);
        assert_eq!(bodies(&left), "a", "the step has left it, and it is the next one still");
        waiting.sort(&mut left, Gate::Open, PATIENCE);
        let mut order = bodies(&left).into_bytes();
        order.sort_unstable();
        assert_eq!(order, b"ab");
    }

    #[test]
    fn busy_store_delays_only_patient_enqueues() {
        let mut waiting = WaitingSubmissions::new(&Policy::default());
        let mut some = vec![
            put("a", WhenBusy::Wait),
            put("b", WhenBusy::Refuse),
            submission(Op::Stats, WhenBusy::Wait),
            put("c", WhenBusy::Wait),
            mixed("m"),
        ];
        waiting.sort(&mut some, Gate::Closed, Duration::ZERO);
        assert_eq!(bodies(&some), "b-m", "what frees room is not held up by the put beside it");
        assert!(waiting.nap() < Duration::from_secs(1));
        let mut more = vec![put("d", WhenBusy::Wait)];
        waiting.sort(&mut more, Gate::Closed, Duration::ZERO);
        assert!(more.is_empty());
        more.push(put("e", WhenBusy::Wait));
        waiting.sort(&mut more, Gate::Open, Duration::ZERO);
        assert_eq!(bodies(&more), "acde", "in order");
        assert_eq!((waiting.nap(), waiting.bytes), (Duration::MAX, 0));
    }

    #[test]
    fn waiting_submissions_are_bounded() {
        let mut waiting = WaitingSubmissions::new(&Policy { max_inbox_bytes: 3 * 200, ..Policy::default() });
        let mut some: Vec<_> = (0..20).map(|_| put("x", WhenBusy::Wait)).collect();
        waiting.sort(&mut some, Gate::Closed, Duration::ZERO);
        let (stay, wait) = (some.len(), waiting.line.len());
        assert!(wait > 0 && stay > 0 && stay + wait == 20, "{stay} {wait}");
        waiting.sort(&mut some, Gate::Open, Duration::ZERO);
        assert_eq!((some.len(), waiting.bytes), (20, 0));
    }
}
