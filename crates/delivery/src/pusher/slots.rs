//! The leaves of a pusher: ways and places of messages, ends of deliveries and their counts, the rotation of queues, and the limit
//! of requests a second.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use duewheel::core::engine::Settled;
use duewheel::core::message::MaxAttempts;
use duewheel::core::name::QueueName;
use duewheel::core::time::EngineMs;
use hyper::Uri;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use crate::answer::PushVerdict;
use crate::breaker::{RequestMark, SharedBreaker};
use crate::client::{PushClient, PushOutcome};
use crate::target::PushRate;

/// Counters of a target's unfinished requests and unsettled messages.
#[derive(Debug, Default)]
pub(super) struct PlaceCounts {
    /// Notified when a request has ended or a message gives its place back.
    pub(super) freed: Notify,
    /// Messages for the target that were granted and are not settled.
    pub(super) under_way: AtomicUsize,
    /// The number of requests under way for messages of other origins, which take no place of the target's.
    pub(super) elsewhere: AtomicUsize,
    /// Requests of those for the target that have not ended.
    pub(super) requests: AtomicUsize,
}

/// The place of a granted message until it is settled. It is given back also when the code in between panics.
pub(super) struct MessagePlace {
    counts: Arc<PlaceCounts>,
    stage: PlaceStage,
}

/// The kind of place that a message takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceStage {
    /// A place among the target's concurrent requests, until the answer is judged.
    Request,
    /// A place among the target's messages that are not settled: that takes a sync of the store, which does not concern
    /// the target.
    Settling,
    /// No place of the target's: the message goes to another origin.
    Elsewhere,
}

impl PlaceCounts {
    fn of(&self, stage: PlaceStage) -> impl Iterator<Item = &AtomicUsize> {
        let counts = match stage {
            PlaceStage::Request => [Some(&self.under_way), Some(&self.requests)],
            PlaceStage::Settling => [Some(&self.under_way), None],
            PlaceStage::Elsewhere => [Some(&self.elsewhere), None],
        };
        counts.into_iter().flatten()
    }

    fn enter(&self, stage: PlaceStage) {
        for count in self.of(stage) {
            count.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn leave(&self, stage: PlaceStage) {
        for count in self.of(stage) {
            count.fetch_sub(1, Ordering::SeqCst);
        }
        self.freed.notify_one();
    }
}

impl MessagePlace {
    /// The place of a message that was granted now.
    pub(super) fn new(counts: Arc<PlaceCounts>) -> Self {
        counts.enter(PlaceStage::Request);
        MessagePlace { counts, stage: PlaceStage::Request }
    }

    /// The request of the message goes to another origin.
    pub(super) fn go_elsewhere(&mut self) {
        self.go_on(PlaceStage::Elsewhere);
    }

    /// The answer to its request is judged.
    pub(super) fn is_answered(&mut self) {
        if self.stage == PlaceStage::Request {
            self.go_on(PlaceStage::Settling);
        }
    }

    fn go_on(&mut self, stage: PlaceStage) {
        self.counts.enter(stage);
        self.counts.leave(std::mem::replace(&mut self.stage, stage));
    }
}

impl Drop for MessagePlace {
    fn drop(&mut self) {
        self.counts.leave(self.stage);
    }
}

/// How a delivered message is settled.
#[derive(Clone, Copy, Debug)]
pub(super) enum PushEnd {
    Done,
    /// The message comes again, after its own backoff if there is no delay; no attempt is used up.
    NotYet(Option<Duration>),
    /// The message comes again, after its own backoff if there is no delay, unless this was the last attempt that it
    /// has, or that the target allows.
    Again(Option<Duration>, MaxAttempts),
    Dead,
}

/// How attempts of a pusher have ended since it was started. Each is counted once its message is settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PushCounts {
    /// Messages that were delivered.
    pub delivered: u64,
    /// Attempts that have failed.
    pub failed: u64,
    /// Attempts that do not count against `max_attempts`.
    pub forgiven: u64,
    /// Messages that have died.
    pub dead: u64,
}

impl PushCounts {
    /// Counts an end: what the engine has made of it decides.
    pub(super) fn count(&mut self, end: PushEnd, settled: &Settled) {
        *match (settled, end) {
            (Settled::Acked | Settled::Already { .. }, _) => &mut self.delivered,
            (Settled::Dead(_), _) => &mut self.dead,
            (Settled::Again(_) | Settled::Superseded, PushEnd::NotYet(_)) => &mut self.forgiven,
            (Settled::Again(_) | Settled::Superseded, PushEnd::Done | PushEnd::Again(..) | PushEnd::Dead) => {
                &mut self.failed
            }
        } += 1;
    }
}

/// The queues that were granted messages in the current cycle.
#[derive(Debug, Default)]
pub(super) struct QueueRotation(Mutex<HashSet<QueueName>>);

/// The queues of a reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CyclePart {
    /// All queues of the target: a cycle begins.
    All,
    /// The queues without a message in this cycle. The reserve does not wait, because the others may have messages.
    Rest,
}

impl QueueRotation {
    /// The queues to reserve from.
    pub(super) fn next(&self, all: &[QueueName]) -> (Vec<QueueName>, CyclePart) {
        let mut served = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rest: Vec<_> = all.iter().filter(|queue| !served.contains(*queue)).cloned().collect();
        if rest.is_empty() {
            served.clear();
            return (all.to_vec(), CyclePart::All);
        }
        let part = if rest.len() == all.len() { CyclePart::All } else { CyclePart::Rest };
        (rest, part)
    }

    /// Notes the queues of granted messages; without one, the cycle ends.
    pub(super) fn granted<'a>(&self, queues: impl ExactSizeIterator<Item = &'a QueueName>) {
        let mut served = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if queues.len() == 0 {
            served.clear();
        }
        for queue in queues {
            if !served.contains(queue) {
                served.insert(queue.clone());
            }
        }
    }
}

/// The cost of a request in the bucket's unit: a rate of one a second adds this much in a second.
const ONE: i64 = 1_000;

#[derive(Clone, Debug)]
pub(super) struct RateBucket {
    per_second: u64,
    most: i64,
    /// Less than nothing after requests that were sent without asking.
    held: i64,
    at: EngineMs,
}

impl RateBucket {
    /// A full bucket.
    pub(super) fn new(rate: PushRate, now: EngineMs) -> Self {
        let most = i64::from(rate.burst.unwrap_or(rate.per_second)) * ONE;
        RateBucket { per_second: u64::from(rate.per_second), most, held: most, at: now }
    }

    /// How many requests may begin now.
    pub(super) fn available(&mut self, now: EngineMs) -> usize {
        let passed = now.0.saturating_sub(self.at.0).saturating_mul(self.per_second);
        self.held = self.held.saturating_add_unsigned(passed).min(self.most);
        self.at = self.at.max(now);
        usize::try_from(self.held.max(0) / ONE).unwrap_or(usize::MAX)
    }

    /// Counts requests that have begun.
    pub(super) fn take(&mut self, requests: usize) {
        let requests = i64::try_from(requests).unwrap_or(i64::MAX);
        self.held = self.held.saturating_sub(requests.saturating_mul(ONE));
    }

    /// When the next request may begin.
    pub(super) fn next(&self) -> EngineMs {
        EngineMs(self.at.0 + ONE.saturating_sub(self.held).max(0).unsigned_abs().div_ceil(self.per_second))
    }
}

/// The receiver of a message, whose breaker knows of the request.
pub(super) struct PushRoute {
    pub(super) client: PushClient,
    pub(super) uri: Uri,
    pub(super) breaker: SharedBreaker,
    pub(super) mark: RequestMark,
    /// The right to send a request to a URL of a message.
    pub(super) slot: Option<OwnedSemaphorePermit>,
}

impl PushRoute {
    /// The way to the target.
    pub(super) fn to_target(client: &PushClient, breaker: &SharedBreaker, mark: RequestMark) -> Self {
        let (client, uri) = (client.clone(), client.target().uri.clone());
        PushRoute { client, uri, breaker: breaker.clone(), mark, slot: None }
    }

    /// The outcome for the message. A URL that takes no more messages concerns this message alone, which is dead: nobody
    /// could resume the URL.
    pub(super) fn outcome(&self, outcome: PushOutcome) -> PushOutcome {
        match (&self.slot, outcome.verdict) {
            (None, _) => outcome,
            (Some(_), PushVerdict::Refused) => {
                PushOutcome { verdict: PushVerdict::Dead, disable: false, ..outcome }
            }
            (Some(_), _) => PushOutcome { disable: false, ..outcome },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_has_its_turn() {
        let names: Vec<_> = ["a", "b", "c"].map(|name| QueueName::new(name).unwrap()).into();
        let [a, b, c] = [&names[..1], &names[1..2], &names[2..]];
        let rotation = QueueRotation::default();
        assert_eq!(rotation.next(&names), (names.clone(), CyclePart::All));
        rotation.granted(a.iter());
        assert_eq!(rotation.next(&names), (names[1..].to_vec(), CyclePart::Rest));
        rotation.granted(c.iter());
        assert_eq!(rotation.next(&names), (b.to_vec(), CyclePart::Rest));
        rotation.granted(b.iter());
        assert_eq!(rotation.next(&names), (names.clone(), CyclePart::All), "all had one");
        rotation.granted(a.iter());
        rotation.granted([].iter());
        assert_eq!(rotation.next(&names), (names.clone(), CyclePart::All), "the others have none");
        // An edit leaves a queue out.
        rotation.granted(a.iter());
        assert_eq!(rotation.next(b), (b.to_vec(), CyclePart::All));
        assert_eq!(rotation.next(a), (a.to_vec(), CyclePart::All));
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let mut bucket = RateBucket::new(PushRate { per_second: 3, burst: Some(5) }, EngineMs(0));
        assert_eq!(bucket.available(EngineMs(0)), 5);
        bucket.take(5);
        assert_eq!(bucket.available(EngineMs(0)), 0);
        assert_eq!(bucket.next(), EngineMs(334));
        let mut begun = 0;
        for ms in 1..=60_000 {
            let now = bucket.available(EngineMs(ms));
            bucket.take(now);
            begun += now;
        }
        assert_eq!(begun, 180, "three a second for a minute");
        assert_eq!(bucket.available(EngineMs(3_600_000)), 5, "no more than the burst");
        assert_eq!(bucket.available(EngineMs(0)), 5, "a clock that goes back takes nothing");
        // Two of them were sent without asking.
        bucket.take(7);
        assert_eq!((bucket.available(EngineMs(3_600_000)), bucket.next()), (0, EngineMs(3_601_000)));
        assert_eq!(bucket.available(EngineMs(3_601_000)), 1);
    }
}
