//! Which failed calls are sent again, and when.

use std::time::Duration;

use tokio::time::Instant;

use crate::call::{ApiCall, Effort, in_time};
use crate::error::Error;
use crate::random::fraction;
use crate::transport::{HttpTransport, OnRetry};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The jitter behind the time that the server has named.
const AFTER: Duration = Duration::from_millis(100);

/// The attempts of one call.
#[derive(Debug)]
pub(crate) struct Attempts {
    on_retry: Option<OnRetry>,
    effort: Effort,
    /// No attempt begins later.
    last: Instant,
    /// The end of the whole call, unless it is endless.
    ends: Instant,
    longest_pause: Duration,
    failed: u32,
    may_be_applied: bool,
}

impl Attempts {
    pub(crate) fn new(call: &ApiCall, server: &HttpTransport) -> Attempts {
        let options = &server.options;
        // The first attempt has its whole time, and one that waits may begin last.
        let total = options.retry_for.saturating_add(call.wait).max(server.limit(call));
        Attempts {
            on_retry: options.on_retry.clone(),
            effort: call.effort,
            last: in_time(options.retry_for),
            ends: in_time(total),
            longest_pause: call.longest_pause,
            failed: 0,
            may_be_applied: false,
        }
    }

    /// The end of the whole call, if it has one.
    pub(crate) fn ends(&self) -> Option<Instant> {
        (self.effort != Effort::Endless).then_some(self.ends)
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
            return Err(error.after_unsure(self.may_be_applied));
        }
        let pause = match error.retry_after {
            Some(after) => (after + AFTER.mul_f64(fraction())).max(backoff(self.failed)),
            None => backoff(self.failed),
        };
        let pause = pause.min(self.longest_pause);
        if self.effort != Effort::Endless && Instant::now() + pause > self.last {
            return Err(error.after_unsure(self.may_be_applied));
        }
        self.failed += 1;
        self.may_be_applied |= error.may_be_applied;
        if let Some(OnRetry(act)) = &self.on_retry {
            act(&error);
        }
        Ok(pause)
    }
}

/// The pause after so many failures: doubled each time, and a random half shorter.
pub(crate) fn backoff(failed: u32) -> Duration {
    let longest = FIRST_PAUSE.saturating_mul(1 << failed.min(10)).min(LONGEST_PAUSE);
    longest.mul_f64(0.5 + fraction() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::LONGEST_AFTER;
    use crate::transport::Options;

    #[test]
    fn pauses_are_neither_none_nor_endless() {
        let endless = Options::default().retry_for(Duration::MAX);
        let server = HttpTransport::new("http://localhost:7788", endless).expect("an address");
        let mut attempts = Attempts::new(&ApiCall::get("/"), &server);
        for (named, least) in [(0, FIRST_PAUSE / 2), (0, FIRST_PAUSE), (u64::MAX, LONGEST_AFTER)] {
            let problem = serde_json::json!({"code": "overloaded", "status": 429, "retry_after_ms": named});
            let error = Error::of_problem(&problem).expect("a problem");
            let pause = attempts.after(error).expect("another attempt");
            assert!(pause >= least && pause <= LONGEST_AFTER + AFTER, "{named}: {pause:?}");
        }
    }
}
