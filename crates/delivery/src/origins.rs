//! Requests to URLs of messages on a node: the limit of how many run at a time, and a breaker for each origin.
//!
//! A URL that is away must not hold up the target of its queue, whose breaker these requests do not concern.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duewheel::core::MessageId;
use duewheel::core::time::EngineMs;
use lru::LruCache;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use url::Origin;

use crate::breaker::{Breaker, Charge, Permit, RequestMark, SharedBreaker};
use crate::client::PushClient;
use crate::connections::OriginConnections;
use crate::limits::{
    CONNECTED_ORIGINS, FORGIVEN_DELAY, MAX_ORIGINS, ORIGIN_CONNECTIONS, URL_CONCURRENCY, URL_WAIT,
};
use crate::message_url::MessageUrl;
use crate::networks::Networks;
use crate::target::{OriginKind, PushTarget};

/// The breakers of origins, the most recently used ones; those of targets otherwise. A request holds that of its origin
/// until it has ended, so that the number of requests under way is known. It is pure: instants are arguments, and so is
/// what is random.
#[derive(Debug)]
pub(crate) struct OriginBreakers(LruCache<Origin, SharedBreaker>);

/// Why no request to an origin may begin now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OriginWait {
    /// How long none may.
    pub(crate) time: Duration,
    /// Whether the message uses up an attempt.
    pub(crate) charge: Charge,
}

fn wait(breaker: &SharedBreaker, now: EngineMs) -> Option<OriginWait> {
    let (sharers, breaker) = (breaker.sharers(), breaker.lock());
    let time = match breaker.permit(now, sharers) {
        Permit::Many | Permit::One => return None,
        Permit::Until(instant) => Duration::from_millis(instant.0.saturating_sub(now.0)),
        Permit::AfterOthers | Permit::Paused => FORGIVEN_DELAY,
    };
    Some(OriginWait { time, charge: breaker.waiting(now) })
}

impl OriginBreakers {
    pub(crate) fn new(most: NonZeroUsize) -> Self {
        OriginBreakers(LruCache::new(most))
    }

    /// Why no request may begin, if none may.
    pub(crate) fn wait(&mut self, origin: &Origin, now: EngineMs) -> Option<OriginWait> {
        self.0.get(origin).and_then(|breaker| wait(breaker, now))
    }

    /// Begins a request that sends `message`, or returns why it may not begin. `timeout` is the request's, `random`
    /// any number.
    pub(crate) fn begin(
        &mut self,
        origin: &Origin,
        now: EngineMs,
        message: MessageId,
        timeout: Duration,
        random: u64,
    ) -> Result<(SharedBreaker, RequestMark), OriginWait> {
        let breaker = self.0.get_or_insert_ref(origin, || SharedBreaker::new(Breaker::of_origin(timeout)));
        if let Some(wait) = wait(breaker, now) {
            return Err(wait);
        }
        let mark = breaker.lock().begin(now, message, random);
        Ok((breaker.clone(), mark))
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.len()
    }
}

/// The state shared by all requests to URLs of messages on a node.
pub(crate) struct UrlContext {
    /// The addresses that they may go to: public ones, other than in tests.
    pub(crate) networks: Networks,
    slots: Arc<Semaphore>,
    breakers: Mutex<OriginBreakers>,
    /// Connections to other origins than the target's, by the time-out that they were made with.
    connections: Mutex<LruCache<(Origin, Duration), OriginConnections>>,
}

impl Default for UrlContext {
    fn default() -> Self {
        UrlContext::with_networks(Networks::default())
    }
}

impl UrlContext {
    pub(crate) fn with_networks(networks: Networks) -> Self {
        const ORIGINS: NonZeroUsize = NonZeroUsize::new(MAX_ORIGINS).unwrap();
        const CONNECTED: NonZeroUsize = NonZeroUsize::new(CONNECTED_ORIGINS).unwrap();
        UrlContext {
            networks,
            slots: Arc::new(Semaphore::new(URL_CONCURRENCY)),
            breakers: Mutex::new(OriginBreakers::new(ORIGINS)),
            connections: Mutex::new(LruCache::new(CONNECTED)),
        }
    }

    /// The right to send one request; `None`: there was none for [`URL_WAIT`].
    ///
    /// # Cancel safety
    /// Cancel safe; who waits again stands at the end of the line.
    pub(crate) async fn slot(&self) -> Option<OwnedSemaphorePermit> {
        let taken = tokio::time::timeout(URL_WAIT, self.slots.clone().acquire_owned()).await;
        taken.ok()?.ok()
    }

    pub(crate) fn breakers(&self) -> MutexGuard<'_, OriginBreakers> {
        self.breakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connections to an origin, or new ones.
    pub(crate) fn connections(
        &self,
        origin: &Origin,
        timeout: Duration,
        make: impl FnOnce() -> OriginConnections,
    ) -> OriginConnections {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.get_or_insert((origin.clone(), timeout), make).clone()
    }
}

impl fmt::Debug for UrlContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UrlContext").field("networks", &self.networks).finish_non_exhaustive()
    }
}

/// The target of a job as it is for URLs of messages, by the kind of their origin.
#[derive(Clone, Debug)]
pub(crate) struct UrlTargets {
    own: PushClient,
    foreign: Arc<PushTarget>,
}

impl UrlTargets {
    pub(crate) fn new(client: &PushClient, context: &UrlContext) -> Self {
        let as_it_is = |kind| Arc::new(client.target().for_urls(kind, context.networks.clone()));
        let own = as_it_is(OriginKind::Own);
        let connections = client.connections(&own, OriginKind::Own, ORIGIN_CONNECTIONS);
        UrlTargets { own: client.over(own, connections), foreign: as_it_is(OriginKind::Foreign) }
    }

    /// The client for this URL.
    pub(crate) fn client(&self, client: &PushClient, context: &UrlContext, url: &MessageUrl) -> PushClient {
        match url.kind(client.target()) {
            OriginKind::Own => self.own.clone(),
            OriginKind::Foreign => {
                let make = || client.connections(&self.foreign, OriginKind::Foreign, ORIGIN_CONNECTIONS);
                let connections = context.connections(&url.origin(), self.foreign.timeout, make);
                client.over(self.foreign.clone(), connections)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::PushVerdict;
    use crate::client::{PushClass, PushOutcome};

    const TIMEOUT: Duration = Duration::from_secs(30);

    fn origin(n: usize) -> Origin {
        url::Url::parse(&format!("https://c{n}.example/")).unwrap().origin()
    }

    fn breakers(most: usize) -> OriginBreakers {
        OriginBreakers::new(NonZeroUsize::new(most).unwrap())
    }

    fn outcome(verdict: PushVerdict, class: PushClass) -> PushOutcome {
        PushOutcome { verdict, disable: false, class, took: Duration::ZERO, answer: String::new() }
    }

    fn fails(it: &mut OriginBreakers, origin: &Origin, ms: u64) -> Charge {
        let now = EngineMs(ms);
        let (breaker, mark) = it.begin(origin, now, MessageId(ms), TIMEOUT, 0).unwrap();
        breaker.lock().end(now, mark, &outcome(PushVerdict::Failed, PushClass::Timeout), 0)
    }

    #[test]
    fn origin_breakers_are_separate_and_bounded() {
        let mut it = breakers(3);
        for ms in 0..3 {
            assert_eq!(fails(&mut it, &origin(0), ms), Charge::Counted);
        }
        assert!(it.wait(&origin(0), EngineMs(3)).is_some(), "three failures, no success: it is open");
        assert!(it.begin(&origin(0), EngineMs(3), MessageId(3), TIMEOUT, 0).is_err());
        assert_eq!(it.wait(&origin(1), EngineMs(3)), None, "another one is not");
        for n in 1..=2 {
            it.begin(&origin(n), EngineMs(3), MessageId(3), TIMEOUT, 0).unwrap();
        }
        // It was used least recently, but is looked at now: the next one takes the place of the first other.
        assert!(it.wait(&origin(0), EngineMs(3)).is_some());
        it.begin(&origin(3), EngineMs(3), MessageId(3), TIMEOUT, 0).unwrap();
        assert!(it.wait(&origin(0), EngineMs(3)).is_some());
        for n in 10..20_000 {
            it.begin(&origin(n), EngineMs(3), MessageId(3), TIMEOUT, 0).unwrap();
            assert!(it.len() <= 3);
        }
        assert_eq!(it.wait(&origin(0), EngineMs(3)), None, "it is forgotten");
    }

    #[test]
    fn probes_and_slowed_origins_run_singly() {
        let mut it = breakers(10);
        for ms in 0..3 {
            fails(&mut it, &origin(0), ms);
        }
        let probe_at = 3 + u64::try_from(it.wait(&origin(0), EngineMs(3)).unwrap().time.as_millis()).unwrap();
        let probe_at = EngineMs(probe_at);
        let (breaker, probe) = it.begin(&origin(0), probe_at, MessageId(3), TIMEOUT, 0).unwrap();
        assert!(it.begin(&origin(0), probe_at, MessageId(3), TIMEOUT, 0).is_err());
        let failed = outcome(PushVerdict::Failed, PushClass::Timeout);
        assert_eq!(breaker.lock().end(probe_at, probe, &failed, 0), Charge::Counted);

        let (breaker, first) = it.begin(&origin(1), EngineMs(0), MessageId(0), TIMEOUT, 0).unwrap();
        let slowed = outcome(PushVerdict::Slowed(Duration::from_secs(1)), PushClass::Status(429));
        breaker.lock().end(EngineMs(0), first, &slowed, 0);
        drop(breaker);
        let waits = |time| Some(OriginWait { time, charge: Charge::Forgiven });
        assert_eq!(it.wait(&origin(1), EngineMs(0)), waits(Duration::from_secs(1)));
        let second = it.begin(&origin(1), EngineMs(1_000), MessageId(1_000), TIMEOUT, 0).unwrap();
        assert_eq!(it.wait(&origin(1), EngineMs(1_000)), waits(FORGIVEN_DELAY), "one at a time");
        // What is dropped ends as well.
        drop(second);
        assert_eq!(it.wait(&origin(1), EngineMs(1_000)), None);
    }

    /// docs/delivery.md says how many are remembered.
    #[test]
    fn a_node_remembers_ten_thousand_origins() {
        assert_eq!(UrlContext::default().breakers().0.cap().get(), 10_000);
    }

    /// Nobody could resume it.
    #[test]
    fn days_of_failures_pause_no_origin() {
        let mut it = breakers(10);
        let mut now = 0;
        for _ in 0..20 {
            now += 86_400_000;
            assert_eq!(fails(&mut it, &origin(0), now), Charge::Counted);
        }
        let waits = it.wait(&origin(0), EngineMs(now)).map(|waits| waits.charge);
        assert_eq!(waits, Some(Charge::Counted), "its messages must be dead in the end");
        assert!(it.wait(&origin(0), EngineMs(now + 600_000)).is_none(), "a probe may go");
    }

    /// The limit of requests is that of all targets of a node together.
    #[tokio::test(start_paused = true)]
    async fn message_url_requests_are_limited() {
        let context = Arc::new(UrlContext::default());
        let mut slots = Vec::new();
        for _ in 0..URL_CONCURRENCY {
            slots.push(context.slot().await.expect("a free one"));
        }
        let begun = tokio::time::Instant::now();
        assert!(context.slot().await.is_none());
        assert_eq!(begun.elapsed(), URL_WAIT);
        let waiting = tokio::spawn({
            let context = context.clone();
            async move { context.slot().await.is_some() }
        });
        slots.pop();
        assert!(waiting.await.unwrap(), "the next one gets it");
    }
}
