//! Look-ups of names, one at a time for each name. Requests that begin meanwhile wait for its answer.
//!
//! The operating system cannot end a look-up on request. So there are a few places for look-ups: some for the names of
//! targets, others for those in URLs of messages. A look-up keeps its place until it has ended. Requests wait for it,
//! or for a place, for as long as their time-out allows.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

use crate::connect::{Resolver, SystemResolver};
use crate::limits::{TARGET_LOOKUPS, URL_LOOKUPS};
use crate::target::OriginKind;

/// The answer to a look-up. An [`io::Error`] is not cloned.
type LookedUp = Result<Vec<IpAddr>, (io::ErrorKind, String)>;
type LookedUpLater = watch::Receiver<Option<LookedUp>>;
type NamesUnderWay = Arc<Mutex<HashMap<String, LookedUpLater>>>;

/// A resolver with its places. Cheap to clone; clones share them.
#[derive(Clone)]
pub(crate) struct NameLookups {
    resolver: Arc<dyn Resolver>,
    of_targets: Arc<Semaphore>,
    of_urls: Arc<Semaphore>,
}

impl NameLookups {
    pub(crate) fn new(resolver: Arc<dyn Resolver>) -> Self {
        let places = |most| Arc::new(Semaphore::new(most));
        NameLookups { resolver, of_targets: places(TARGET_LOOKUPS), of_urls: places(URL_LOOKUPS) }
    }

    /// The operating system's, with the same places for all of the process.
    pub(crate) fn system() -> Self {
        static SYSTEM: LazyLock<NameLookups> = LazyLock::new(|| NameLookups::new(Arc::new(SystemResolver)));
        SYSTEM.clone()
    }

    /// Look-ups for requests that wait at most this long, to the target itself or to other origins.
    pub(crate) fn shared(&self, kind: OriginKind, limit: Duration) -> SharedLookups {
        let places = match kind {
            OriginKind::Own => &self.of_targets,
            OriginKind::Foreign => &self.of_urls,
        };
        let (resolver, places) = (self.resolver.clone(), places.clone());
        SharedLookups { resolver, places, limit, under_way: NamesUnderWay::default() }
    }
}

/// A resolver whose look-ups of the same name are one.
pub(crate) struct SharedLookups {
    resolver: Arc<dyn Resolver>,
    places: Arc<Semaphore>,
    /// The time after which no request waits for an answer any more.
    limit: Duration,
    under_way: NamesUnderWay,
}

impl SharedLookups {
    /// The look-up of this name that is under way, or a new one.
    fn join(&self, name: &str) -> LookedUpLater {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = under_way.get(name) {
            return found.clone();
        }
        let (answer, found) = watch::channel(None);
        under_way.insert(name.to_owned(), found.clone());
        let place = tokio::time::timeout(self.limit, self.places.clone().acquire_owned());
        let (resolver, name) = (self.resolver.clone(), name.to_owned());
        let entry = EntryUnderWay(self.under_way.clone(), name.clone());
        tokio::spawn(async move {
            let found = match place.await {
                Ok(_place) => resolver.resolve(&name).await,
                Err(_) => Err(too_long()),
            };
            let found = found.map_err(|error| (error.kind(), error.to_string()));
            // The next request looks anew.
            drop(entry);
            answer.send_replace(Some(found));
        });
        found
    }
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the look-up takes too long")
}

/// An entry of the map, removed when the look-up has ended, also by a panic.
struct EntryUnderWay(NamesUnderWay, String);

impl Drop for EntryUnderWay {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

impl Resolver for SharedLookups {
    fn resolve(&self, name: &str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>> {
        let (mut found, limit) = (self.join(name), self.limit);
        Box::pin(async move {
            let found = tokio::time::timeout(limit, found.wait_for(Option::is_some));
            match found.await.map_err(|_| too_long())?.as_deref() {
                Ok(Some(Ok(addresses))) => Ok(addresses.clone()),
                Ok(Some(Err((kind, text)))) => Err(io::Error::new(*kind, text.clone())),
                Ok(None) | Err(_) => Err(io::Error::other("the look-up gave no answer")),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    /// A resolver that answers for names that begin with `slow` when it is told to, and counts.
    struct Gate {
        open: Arc<Semaphore>,
        asked: Mutex<Vec<String>>,
    }

    impl Resolver for Gate {
        fn resolve(&self, name: &str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>> {
            self.asked.lock().unwrap().push(name.to_owned());
            let (open, slow) = (self.open.clone(), name.starts_with("slow"));
            Box::pin(async move {
                if slow {
                    open.acquire().await.unwrap().forget();
                }
                Ok(vec![[192, 0, 2, 1].into()])
            })
        }
    }

    #[tokio::test]
    async fn slow_lookup_is_shared_and_nonblocking() {
        let gate = Arc::new(Gate { open: Arc::new(Semaphore::new(0)), asked: Mutex::default() });
        let lookups = NameLookups::new(gate.clone()).shared(OriginKind::Own, Duration::from_secs(600));
        let slow: Vec<_> = (0..50).map(|_| tokio::spawn(lookups.resolve("slow.example"))).collect();
        for _ in 0..2 {
            assert_eq!(lookups.resolve("fast.example").await.unwrap().len(), 1);
        }
        assert_eq!(*gate.asked.lock().unwrap(), ["slow.example", "fast.example", "fast.example"]);
        gate.open.add_permits(1);
        for waiting in slow {
            assert_eq!(waiting.await.unwrap().unwrap().len(), 1);
        }
        gate.open.add_permits(1);
        lookups.resolve("slow.example").await.unwrap();
        assert_eq!(gate.asked.lock().unwrap().len(), 4, "what was found is not kept");
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_lookups_are_bounded() {
        let gate = Arc::new(Gate { open: Arc::new(Semaphore::new(0)), asked: Mutex::default() });
        let (lookups, limit) = (NameLookups::new(gate.clone()), Duration::from_secs(30));
        let of_urls = lookups.shared(OriginKind::Foreign, limit);
        // Given up, and asked for again.
        for n in (0..URL_LOOKUPS + 50).chain([0]) {
            let error = of_urls.resolve(&format!("slow-{n}.example")).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
        assert_eq!(gate.asked.lock().unwrap().len(), URL_LOOKUPS, "one for each place");
        let error = lookups.shared(OriginKind::Foreign, limit).resolve("fast.example").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "of another client");
        lookups.shared(OriginKind::Own, limit).resolve("fast.example").await.unwrap();
        gate.open.add_permits(1);
        of_urls.resolve("fast.example").await.unwrap();
    }
}
