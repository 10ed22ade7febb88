//! Which failed calls are sent again, and when.

use std::time::{Duration, Instant};

use crate::error::Error;
use crate::random::fraction;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The jitter behind the time that the server has named.
const AFTER: Duration = Duration::from_millis(100);

/// How often a call may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Until the client's limit: a second time changes nothing.
    Limited,
    /// Until it is answered.
    Endless,
    /// As `Limited`, and never if an earlier attempt may have been applied.
    Careful,
}

/// The attempts of one call.
#[derive(Debug)]
pub(crate) struct Attempts {
    effort: Effort,
    ends: Instant,
    failed: u32,
    may_be_applied: bool,
}

impl Attempts {
    pub(crate) fn new(effort: Effort, retry_for: Duration) -> Attempts {
        Attempts { effort, ends: Instant::now() + retry_for, failed: 0, may_be_applied: false }
    }

    /// Whether another attempt makes sense.
    pub(crate) fn helps(&self, error: &Error) -> bool {
        match self.effort {
            Effort::Endless => error.is_passing() || error.status.is_some_and(|status| status >= 500),
            Effort::Limited => error.is_passing(),
            Effort::Careful => error.is_passing() && !error.may_be_applied,
        }
    }

    /// The pause before the next attempt, or the error of the whole call.
    pub(crate) fn after(&mut self, error: Error) -> Result<Duration, Error> {
        if !self.helps(&error) {
            return Err(self.ended(error));
        }
        let pause = match error.retry_after {
            Some(after) => after + AFTER.mul_f64(fraction()),
            None => backoff(self.failed),
        };
        if self.effort != Effort::Endless && Instant::now() + pause > self.ends {
            return Err(self.ended(error));
        }
        self.failed += 1;
        self.note(&error);
        Ok(pause)
    }

    /// Remembers that an attempt may have been applied.
    pub(crate) fn note(&mut self, error: &Error) {
        self.may_be_applied |= error.may_be_applied;
    }

    /// The error of the whole call: an attempt before it may have been applied.
    pub(crate) fn ended(&self, error: Error) -> Error {
        Error { may_be_applied: error.may_be_applied || self.may_be_applied, ..error }
    }
}

/// The pause after so many failures: doubled each time, and a random half shorter.
pub(crate) fn backoff(failed: u32) -> Duration {
    let longest = FIRST_PAUSE.saturating_mul(1 << failed.min(10)).min(LONGEST_PAUSE);
    longest.mul_f64(0.5 + fraction() / 2.0)
}
