//! Connections to targets: the name is looked up, every address is judged, and the client connects to one of those. A
//! name that resolves to another address a moment later changes nothing.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use tokio::sync::oneshot;
use tower_service::Service;

use crate::networks::Networks;
use crate::target::PushTarget;

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

#[cfg(test)]
mod tests {
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
}
