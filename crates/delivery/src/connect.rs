//! Connections to targets: the name is looked up, every address is judged, and the client connects to one of those. A
//! name that resolves to another address a moment later changes nothing.

use std::collections::HashMap;
use std::error::Error;
use std::future::Future;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use hyper::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use tokio::sync::{Semaphore, oneshot, watch};
use tower_service::Service;

use crate::limits::{TARGET_LOOKUPS, URL_LOOKUPS};
use crate::networks::Networks;
use crate::target::{OriginKind, PushTarget};

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Looks names up.
pub trait Resolver: Send + Sync + 'static {
    /// All addresses of a name. The name is in ASCII, may end with a dot, and is no address itself.
    ///
    /// Until the future has ended it takes one of a few places, also when nobody waits for it any more.
    ///
    /// # Errors
    /// When there is no answer, or the name does not exist.
    fn resolve(&self, name: &str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;
}

/// Asks the operating system, each time on a thread of its own. `getaddrinfo` cannot be cancelled: the future ends when
/// the thread does. A resolver of our own could be, but would not heed `nsswitch.conf` and its modules.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve(&self, name: &str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>> {
        let name = name.to_owned();
        let (answer, found) = oneshot::channel();
        let look = move || {
            let found = (name.as_str(), 0).to_socket_addrs();
            drop(answer.send(found.map(|all| all.map(|address| address.ip()).collect())));
        };
        let started = std::thread::Builder::new().name("look-up".to_owned()).spawn(look);
        Box::pin(async move {
            started?;
            found.await.map_err(io::Error::other)?
        })
    }
}

/// The target is at an address that its networks do not permit.
#[derive(Debug)]
pub(crate) struct AddressRefused;

impl fmt::Display for AddressRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the target's networks do not permit its address")
    }
}

impl Error for AddressRefused {}

/// The name could not be looked up.
#[derive(Debug)]
pub(crate) struct LookupFailed(Option<io::Error>);

impl fmt::Display for LookupFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(error) => error.fmt(f),
            None => f.write_str("the name has no address"),
        }
    }
}

impl Error for LookupFailed {}

/// The resolver of hyper's connector: it gives out either all addresses of a name or none.
#[derive(Clone)]
pub(crate) struct JudgingResolver {
    resolver: Arc<dyn Resolver>,
    networks: Arc<Networks>,
}

impl Service<Name> for JudgingResolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Boxed<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let found = self.resolver.resolve(name.as_str());
        let networks = Arc::clone(&self.networks);
        Box::pin(async move {
            let found = found.await.map_err(|e| LookupFailed(Some(e)))?;
            if found.is_empty() {
                return Err(LookupFailed(None).into());
            }
            if !found.iter().all(|address| networks.permits(*address)) {
                return Err(AddressRefused.into());
            }
            let found: Vec<_> = found.into_iter().map(|address| SocketAddr::new(address, 0)).collect();
            Ok(found.into_iter())
        })
    }
}

/// hyper's connector behind a judgement of addresses that stand in the URL: those it does not look up.
#[derive(Clone)]
pub(crate) struct JudgingConnector {
    http: HttpConnector<JudgingResolver>,
    networks: Arc<Networks>,
}

impl Service<Uri> for JudgingConnector {
    type Response = <HttpConnector<JudgingResolver> as Service<Uri>>::Response;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Boxed<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.http.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let host = uri.host().unwrap_or_default();
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if literal.is_ok_and(|address| !self.networks.permits(address)) {
            return Box::pin(async { Err(AddressRefused.into()) });
        }
        let connecting = self.http.call(uri);
        Box::pin(async move { connecting.await.map_err(Into::into) })
    }
}

/// The connector of one target.
pub(crate) fn connector(
    target: &PushTarget,
    resolver: Arc<dyn Resolver>,
) -> HttpsConnector<JudgingConnector> {
    let networks = Arc::new(target.networks.clone());
    let mut http =
        HttpConnector::new_with_resolver(JudgingResolver { resolver, networks: Arc::clone(&networks) });
    http.enforce_http(false);
    http.set_nodelay(true);
    // Shared by all addresses of a name: the first one that does not answer leaves time for the others.
    http.set_connect_timeout(Some(target.timeout));
    HttpsConnectorBuilder::new()
        .with_tls_config(target.tls.clone())
        .https_or_http()
        .enable_http1()
        .wrap_connector(JudgingConnector { http, networks })
}

/// The answer to a look-up. An [`io::Error`] is not cloned.
type LookedUp = Result<Vec<IpAddr>, (io::ErrorKind, String)>;
type LookedUpLater = watch::Receiver<Option<LookedUp>>;
type NamesUnderWay = Arc<Mutex<HashMap<String, LookedUpLater>>>;

/// A resolver with its places. Cheap to clone; clones share them.
///
/// The operating system cannot end a look-up on request. So there are a few places for look-ups: some for the names of
/// targets, others for those in URLs of messages. A look-up keeps its place until it has ended. Requests wait for it,
/// or for a place, for as long as their time-out allows.
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
    use crate::target::TargetSettings;

    /// Story: names whose servers hang filled the runtime's pool of threads, and what else runs there, such as reading
    /// the tokens again, waited for them.
    #[test]
    fn lookups_use_no_runtime_threads() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
        let (release, hangs) = std::sync::mpsc::channel::<()>();
        let found = runtime.block_on(async {
            drop(tokio::task::spawn_blocking(move || hangs.recv()));
            tokio::time::timeout(std::time::Duration::from_secs(60), SystemResolver.resolve("localhost"))
                .await
        });
        drop(release);
        assert!(found.unwrap().unwrap().iter().all(IpAddr::is_loopback));
    }

    /// A target with an address that is not permitted does not come to be. Should one do so all the same, nothing is
    /// connected to.
    #[tokio::test]
    async fn url_address_is_checked_on_connect() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = PushTarget::new(&TargetSettings::new("http://example.com/")).unwrap();
        let mut connector = connector(&target, Arc::new(SystemResolver));
        for host in ["127.0.0.1", "[::ffff:127.0.0.1]"] {
            let uri = format!("http://{host}:{port}/").parse().unwrap();
            let error = connector.call(uri).await.map(|_| ()).unwrap_err();
            assert!(error.is::<AddressRefused>(), "{host}: {error}");
        }
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err());
    }

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
