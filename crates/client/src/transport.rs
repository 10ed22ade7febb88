//! Connections to the server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use duewheel_api::error_code::ErrorCode;
use http::header::{AUTHORIZATION, HeaderValue, USER_AGENT};
use http::{Request, Uri};
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{HttpConnector, capture_connection};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::Instant;

use crate::call::{ApiAnswer, ApiCall, ApiStream, in_time};
use crate::error::Error;

const AGENT: &str = concat!("duewheel/", env!("CARGO_PKG_VERSION"));
const CONNECT: Duration = Duration::from_secs(5);
/// Less than the time after which the server closes an idle connection.
const IDLE: Duration = Duration::from_secs(15);

/// Is called before a call is sent again.
#[derive(Clone)]
pub(crate) struct OnRetry(pub(crate) Arc<dyn Fn(&Error) + Send + Sync>);

impl fmt::Debug for OnRetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnRetry(..)")
    }
}

/// Settings of a client.
///
/// ```
/// use std::time::Duration;
/// use duewheel_client::Options;
///
/// let options = Options::default().token("dw_secret")?.retry_for(Duration::from_secs(10));
/// assert!(!format!("{options:?}").contains("secret"));
/// # Ok::<(), duewheel_client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    authorization: Option<HeaderValue>,
    authorities: Option<Vec<CertificateDer<'static>>>,
    pub(crate) retry_for: Duration,
    pub(crate) timeout: Duration,
    pub(crate) on_retry: Option<OnRetry>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            authorization: None,
            authorities: None,
            retry_for: Duration::from_secs(30),
            timeout: Duration::from_secs(30),
            on_retry: None,
        }
    }
}

impl Options {
    /// With the token of the server, `dw_…`. `Debug` does not show it.
    ///
    /// # Errors
    /// The text can be no token. The error does not repeat it.
    pub fn token(mut self, token: &str) -> Result<Options, Error> {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| Error::new(ErrorCode::BadRequest, "token: has characters that no token has"))?;
        value.set_sensitive(true);
        self.authorization = Some(value);
        Ok(self)
    }

    /// Sends a call again for so long after lost connections, 429 and 503; 30 s by default. The last attempt ends with
    /// this time, unless it is the first one.
    #[must_use]
    pub fn retry_for(self, retry_for: Duration) -> Options {
        Options { retry_for, ..self }
    }

    /// With a time limit of one attempt, beyond the time that a reserve waits; 30 s by default.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Options {
        Options { timeout, ..self }
    }

    /// Calls this each time that a call is about to be sent again, with the reason.
    #[must_use]
    pub fn on_retry(self, act: impl Fn(&Error) + Send + Sync + 'static) -> Options {
        Options { on_retry: Some(OnRetry(Arc::new(act))), ..self }
    }

    /// With certificates of authorities (PEM) for https, in place of those that browsers trust.
    ///
    /// # Errors
    /// There is none, or they cannot be read.
    pub fn authorities(mut self, pem: &[u8]) -> Result<Options, Error> {
        let bad = |what: String| Error::new(ErrorCode::BadRequest, what);
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let certificates = read.map_err(|error| bad(error.to_string()))?;
        if certificates.is_empty() {
            return Err(bad("there is no certificate in it (PEM)".to_owned()));
        }
        self.authorities = Some(certificates);
        Ok(self)
    }
}

/// The server, its token, and the connections to it, which are kept open.
#[derive(Debug)]
pub(crate) struct HttpTransport {
    base: String,
    pub(crate) options: Options,
    http: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl HttpTransport {
    pub(crate) fn new(address: &str, options: Options) -> Result<HttpTransport, Error> {
        let base = address.trim_end_matches('/').to_owned();
        let is_address = base.parse::<Uri>().is_ok_and(|uri| {
            // `Uri` drops a fragment, and takes any digits for a port.
            let host = uri.authority().is_some_and(|authority| {
                let is_bare = authority.as_str() == authority.host();
                !authority.as_str().contains('@')
                    && (is_bare || authority.port_u16().is_some_and(|port| port > 0))
            });
            host && matches!(uri.scheme_str(), Some("http" | "https")) && !base.contains(['?', '#'])
        });
        if !is_address {
            // It may have a password, which is not to be shown.
            let detail = "url: is no address of a server such as http://localhost:7788, which has no query and no fragment";
            return Err(Error::new(ErrorCode::BadRequest, detail));
        }
        let roots = match &options.authorities {
            None => RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() },
            Some(certificates) => {
                let mut roots = RootCertStore::empty();
                if let (0, _) = roots.add_parsable_certificates(certificates.iter().cloned()) {
                    let detail = "authorities: none of the certificates can be used";
                    return Err(Error::new(ErrorCode::BadRequest, detail));
                }
                roots
            }
        };
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::new(ErrorCode::BadRequest, error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut tcp = HttpConnector::new();
        tcp.set_connect_timeout(Some(CONNECT));
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let http = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Ok(HttpTransport { base, options, http })
    }

    /// Makes one attempt, and reads the beginning of its answer.
    pub(crate) async fn open(&self, call: &ApiCall) -> Result<ApiStream, Error> {
        self.open_by(call, in_time(self.limit(call))).await
    }

    async fn open_by(&self, call: &ApiCall, by: Instant) -> Result<ApiStream, Error> {
        if !call.path.starts_with('/') || call.path.contains('#') {
            return Err(Error::new(ErrorCode::BadRequest, "path: begins with /, and has # as %23"));
        }
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(format!("{}{}", self.base, call.path))
            .body(Full::new(call.body.clone()))
            .map_err(|error| Error::new(ErrorCode::BadRequest, format!("path: {error}")))?;
        let headers = request.headers_mut();
        headers.extend(call.headers.clone());
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        if let Some(authorization) = &self.options.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let connection = capture_connection(&mut request);
        match tokio::time::timeout_at(by, self.http.request(request)).await {
            Ok(Ok(answer)) => Ok(ApiStream { answer }),
            Ok(Err(error)) => {
                let is_unsent = error.is_connect();
                Err(Error::no_answer(error, is_unsent))
            }
            Err(late) => {
                // The name is not resolved yet, or the other end accepts no connection.
                let is_unsent = connection.connection_metadata().is_none();
                Err(Error::no_answer(late, is_unsent))
            }
        }
    }

    /// Makes one attempt, which ends with its call, and reads its answer.
    pub(crate) async fn send(&self, call: &ApiCall, call_ends: Option<Instant>) -> Result<ApiAnswer, Error> {
        let by = in_time(self.limit(call));
        let by = call_ends.map_or(by, |end| end.min(by));
        Ok(self.open_by(call, by).await?.collect(by).await)
    }

    /// The time limit of an attempt.
    pub(crate) fn limit(&self, call: &ApiCall) -> Duration {
        call.within.unwrap_or(self.options.timeout.saturating_add(call.wait))
    }
}
