//! Look-ups of names, one at a time for each name. Requests that begin meanwhile wait for its answer.
//!
//! The operating system cannot be told to end a look-up. Without this, each request to a name whose servers hang would
//! occupy a thread, until no other name is looked up either.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::connect::Resolver;

/// The answer to a look-up. An [`io::Error`] is not cloned.
type LookedUp = Result<Vec<IpAddr>, (io::ErrorKind, String)>;
type LookedUpLater = watch::Receiver<Option<LookedUp>>;
type NamesUnderWay = Arc<Mutex<HashMap<String, LookedUpLater>>>;

/// A resolver whose look-ups of the same name are one.
pub(crate) struct SharedLookups {
    resolver: Arc<dyn Resolver>,
    /// The time after which no request waits for an answer any more.
    limit: Duration,
    under_way: NamesUnderWay,
}

impl SharedLookups {
    pub(crate) fn new(resolver: Arc<dyn Resolver>, limit: Duration) -> Self {
        SharedLookups { resolver, limit, under_way: NamesUnderWay::default() }
    }

    /// The look-up of this name that is under way, or a new one.
    fn join(&self, name: &str) -> LookedUpLater {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = under_way.get(name) {
            return found.clone();
        }
        let (answer, found) = watch::channel(None);
        under_way.insert(name.to_owned(), found.clone());
        let looking = tokio::time::timeout(self.limit, self.resolver.resolve(name));
        let entry = EntryUnderWay(self.under_way.clone(), name.to_owned());
        tokio::spawn(async move {
            let found = match looking.await {
                Ok(found) => found.map_err(|error| (error.kind(), error.to_string())),
                Err(_) => Err((io::ErrorKind::TimedOut, "the look-up takes too long".to_owned())),
            };
            // The next request looks anew.
            drop(entry);
            answer.send_replace(Some(found));
        });
        found
    }
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
        let mut found = self.join(name);
        Box::pin(async move {
            match found.wait_for(Option::is_some).await.as_deref() {
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

    /// A resolver that answers for `slow` when it is told to, and counts.
    struct Gate {
        open: Arc<Semaphore>,
        asked: Mutex<Vec<String>>,
    }

    impl Resolver for Gate {
        fn resolve(&self, name: &str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>> {
            self.asked.lock().unwrap().push(name.to_owned());
            let (open, slow) = (self.open.clone(), name == "slow.example");
            Box::pin(async move {
                if slow {
                    open.acquire().await.unwrap().forget();
                }
                Ok(vec![[192, 0, 2, 1].into()])
            })
        }
    }

    #[tokio::test]
    async fn a_slow_name_is_looked_up_once_and_holds_no_other_up() {
        let gate = Arc::new(Gate { open: Arc::new(Semaphore::new(0)), asked: Mutex::default() });
        let lookups = SharedLookups::new(gate.clone(), Duration::from_secs(600));
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
    async fn a_look_up_that_never_ends_is_given_up() {
        let gate = Arc::new(Gate { open: Arc::new(Semaphore::new(0)), asked: Mutex::default() });
        let lookups = SharedLookups::new(gate.clone(), Duration::from_secs(30));
        for asked in 1..=2 {
            let error = lookups.resolve("slow.example").await.unwrap_err();
            assert_eq!((error.kind(), gate.asked.lock().unwrap().len()), (io::ErrorKind::TimedOut, asked));
        }
    }
}
