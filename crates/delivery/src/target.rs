//! The settings of a target: where its requests go, how they look, and how its answers are judged.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use duewheel::core::message::MaxAttempts;
use duewheel::core::name::QueueName;
use duewheel_api::span::{self, SpanText};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Uri};
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use url::{Host, Url};

use crate::limits::{
    CONCURRENCY, MAX_ATTEMPTS, MAX_CONCURRENCY, MAX_DEAD_ON, MAX_DELAY, MAX_DELAYS, MAX_HEADER_BYTES,
    MAX_HEADERS, MAX_PEM, MAX_PREFIXES, MAX_RATE, MAX_SECRETS, MAX_TIMEOUT, MAX_URL, TIMEOUT,
};
use crate::networks::Networks;
use crate::plan::RetryPlan;
use crate::settings::{BadSettings, bad};
use duewheel_api::signing::SigningSecret;

/// A target as people write it, before it is checked. Fields that are left out have the defaults of [`crate::limits`].
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetSettings {
    /// `http` or `https`, without user information and without a fragment.
    #[serde(deserialize_with = "url_text")]
    pub url: String,
    /// `POST` (the default), `PUT` or `PATCH`.
    pub method: Option<String>,
    /// Headers of each request.
    #[serde(default, deserialize_with = "header_texts")]
    pub headers: BTreeMap<String, String>,
    /// `whsec_…` or `whsk_…`; each of them signs.
    #[serde(default, deserialize_with = "secret_texts")]
    pub secrets: Vec<String>,
    /// How long a request may take, in ms.
    pub timeout_ms: Option<u64>,
    /// `timeout_ms` as text, in place of the number.
    pub timeout: Option<SpanText>,
    /// Requests at a time.
    pub concurrency: Option<u32>,
    /// Requests a second; unlimited by default.
    pub rate: Option<PushRate>,
    /// When failed attempts are repeated.
    pub retry: Option<RetrySettings>,
    /// Attempts after which a message is dead.
    pub max_attempts: Option<u32>,
    /// Status codes that make a message dead at once.
    #[serde(default, deserialize_with = "codes")]
    pub dead_on: Vec<u16>,
    /// The only authorities that sign the target's certificate, in PEM. By default those of the web.
    pub ca_pem: Option<String>,
    /// The client certificate of requests with its private key, in PEM.
    #[serde(default, deserialize_with = "client_pem_text")]
    pub client_pem: Option<String>,
    /// The addresses that requests may go to; public ones by default.
    pub networks: Option<NetworkSettings>,
    /// Name prefixes of the queues that may be delivered to it; all queues by default.
    pub queues: Option<Vec<String>>,
}

/// A limit of requests a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "TargetRate"))]
#[serde(deny_unknown_fields)]
pub struct PushRate {
    /// Requests a second.
    pub per_second: u32,
    /// Requests that may go at once after a pause; `null` for a second's worth.
    pub burst: Option<u32>,
}

/// When failed attempts are repeated: after `delays`, or after `min_ms` and then twice as long each time, up to `max_ms`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "TargetRetry"))]
pub struct RetrySettings {
    /// The delay after the first, second, … failed attempt, such as `5s`; the last one repeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delays: Option<Vec<String>>,
    /// The first of delays that double, in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_ms: Option<u64>,
    /// The longest of them, in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ms: Option<u64>,
}

/// The plan as it is read: lengths of time are numbers of milliseconds or texts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RetryInput {
    delays: Option<Vec<String>>,
    min_ms: Option<u64>,
    min: Option<SpanText>,
    max_ms: Option<u64>,
    max: Option<SpanText>,
}

impl<'de> Deserialize<'de> for RetrySettings {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let RetryInput { delays, min_ms, min, max_ms, max } = RetryInput::deserialize(from)?;
        let wrong = |name, what| D::Error::custom(format_args!("{name} {what}"));
        let end = |ms, text, name| span::either(ms, text, name).map_err(|what| wrong(name, what));
        Ok(RetrySettings { delays, min_ms: end(min_ms, min, "min")?, max_ms: end(max_ms, max, "max")? })
    }
}

/// The addresses that requests may go to: `"public"`, `"any"`, a network, or a list of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "TargetNetworks"))]
#[serde(untagged)]
pub enum NetworkSettings {
    /// A single word or network.
    One(String),
    /// Several; an address that fits one of them is permitted.
    Several(Vec<String>),
}

/// A receiver of messages. All its values have been checked. `Debug` shows neither secrets nor values of headers nor
/// the query of the URL.
#[derive(Clone)]
pub struct PushTarget {
    pub(crate) url: Url,
    pub(crate) uri: Uri,
    pub(crate) method: Method,
    pub(crate) headers: HeaderMap,
    pub(crate) secrets: Arc<[SigningSecret]>,
    pub(crate) timeout: Duration,
    pub(crate) concurrency: NonZeroU32,
    pub(crate) rate: Option<PushRate>,
    pub(crate) retry: RetryPlan,
    pub(crate) max_attempts: MaxAttempts,
    pub(crate) dead_on: Vec<u16>,
    pub(crate) tls: ClientConfig,
    /// TLS without a certificate of ours, and with the authorities of the web.
    pub(crate) plain_tls: ClientConfig,
    pub(crate) networks: Networks,
}

/// How the origin of a message's own URL relates to the target of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OriginKind {
    /// The target's own origin.
    Own,
    /// Another origin, which must not see what is meant for the target.
    Foreign,
}

/// Reads a field that may hold a secret. The error of the field's own type would repeat what it did not expect.
fn unrepeated<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D, wrong: &str) -> Result<T, D::Error> {
    T::deserialize(from).map_err(|_| serde::de::Error::custom(wrong))
}

/// Reads a field that may hold a secret, and may be `null`, which stands for its default.
fn unrepeated_or_null<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
    wrong: &str,
) -> Result<T, D::Error> {
    unrepeated(from, wrong).map(Option::unwrap_or_default)
}

fn url_text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    unrepeated(from, "url: must be a text")
}

fn header_texts<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    unrepeated_or_null(from, "headers: must be texts by their names")
}

fn secret_texts<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    unrepeated_or_null(from, "secrets: must be a list of texts")
}

fn client_pem_text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    unrepeated(from, "client_pem: must be a text")
}

fn codes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u16>, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

impl TargetSettings {
    /// The settings of a target at this URL, with all defaults.
    pub fn new(url: impl Into<String>) -> Self {
        TargetSettings { url: url.into(), ..Self::default() }
    }

    /// The field that tells a secret, if one does: what is not to be kept in the clear by others. A query counts as one.
    pub fn secret_field(&self) -> Option<&'static str> {
        let has = [
            ("secrets", !self.secrets.is_empty()),
            ("headers", !self.headers.is_empty()),
            ("client_pem", self.client_pem.is_some()),
            ("url", self.url.contains('?')),
        ];
        has.into_iter().find_map(|(field, has)| has.then_some(field))
    }

    /// How long a request may take, in ms, by either of its fields.
    ///
    /// # Errors
    /// [`BadSettings`] when both are given.
    pub(crate) fn timeout(&self) -> Result<Option<u64>, BadSettings> {
        span::either(self.timeout_ms, self.timeout, "timeout").map_err(|what| bad("timeout", what))
    }

    /// Whether this queue may be delivered to the target.
    pub fn serves(&self, queue: &str) -> bool {
        self.queues.as_ref().is_none_or(|all| all.iter().any(|prefix| queue.starts_with(prefix.as_str())))
    }

    /// All of it, secrets in the clear, as it is read again.
    pub(crate) fn in_the_clear(&self) -> Value {
        json!({
            "url": self.url,
            "method": self.method,
            "headers": self.headers,
            "secrets": self.secrets,
            "timeout_ms": self.timeout_ms.or(self.timeout.map(|SpanText(ms)| ms)),
            "concurrency": self.concurrency,
            "rate": self.rate,
            "retry": self.retry,
            "max_attempts": self.max_attempts,
            "dead_on": self.dead_on,
            "ca_pem": self.ca_pem,
            "client_pem": self.client_pem,
            "networks": self.networks,
            "queues": self.queues,
        })
    }
}

impl PushTarget {
    /// Checks settings.
    ///
    /// ```
    /// use duewheel_delivery::{PushTarget, TargetSettings};
    /// let target = PushTarget::new(&TargetSettings {
    ///     secrets: vec!["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into()],
    ///     ..TargetSettings::new("https://example.com/hook?token=x")
    /// })?;
    /// assert_eq!(target.shown_url(), "https://example.com/hook?…");
    ///
    /// let error = PushTarget::new(&TargetSettings::new("https://me@example.com/")).unwrap_err();
    /// assert_eq!(error.to_string(), "url: has user information");
    /// # Ok::<_, duewheel_delivery::BadSettings>(())
    /// ```
    ///
    /// # Errors
    /// [`BadSettings`] names the field.
    pub fn new(settings: &TargetSettings) -> Result<Self, BadSettings> {
        let networks = networks(settings.networks.as_ref())?;
        let (url, uri) = address(&settings.url, &networks)?;
        if settings.client_pem.is_some() && url.scheme() != "https" {
            return Err(bad("client_pem", "needs a URL with https"));
        }
        queues(settings.queues.as_deref().unwrap_or_default())?;
        let tls = client_config(settings.ca_pem.as_deref(), settings.client_pem.as_deref());
        let tls = tls.map_err(|(field, what)| bad(field, what))?;
        let plain_tls = if settings.ca_pem.is_none() && settings.client_pem.is_none() {
            tls.clone()
        } else {
            client_config(None, None).map_err(|(field, what)| bad(field, what))?
        };
        let most = u64::try_from(MAX_TIMEOUT.as_millis()).unwrap_or(u64::MAX);
        let timeout = settings.timeout()?.map(Duration::from_millis).unwrap_or(TIMEOUT);
        if timeout.is_zero() || timeout > MAX_TIMEOUT {
            return Err(match settings.timeout {
                Some(_) => bad("timeout", format_args!("must be 1ms to {}s", MAX_TIMEOUT.as_secs())),
                None => bad("timeout_ms", format_args!("must be 1 to {most}")),
            });
        }
        Ok(PushTarget {
            url,
            uri,
            method: method(settings.method.as_deref())?,
            headers: headers(&settings.headers)?,
            secrets: secrets(&settings.secrets)?.into(),
            timeout,
            concurrency: number("concurrency", settings.concurrency.unwrap_or(CONCURRENCY), MAX_CONCURRENCY)?,
            rate: rate(settings.rate)?,
            retry: retry(settings.retry.as_ref())?,
            max_attempts: number("max_attempts", settings.max_attempts.unwrap_or(MAX_ATTEMPTS), u32::MAX)?
                .into(),
            dead_on: dead_on(&settings.dead_on)?,
            tls,
            plain_tls,
            networks,
        })
    }

    /// The target as it is for URLs of messages: another origin gets neither its headers nor its client certificate nor
    /// signatures by its secrets. Method, time-out, plan and judgement of answers are the same.
    pub(crate) fn for_urls(&self, of: OriginKind, networks: Networks) -> PushTarget {
        let (headers, secrets, tls) = match of {
            OriginKind::Own => (self.headers.clone(), self.secrets.clone(), self.tls.clone()),
            OriginKind::Foreign => (HeaderMap::new(), Arc::default(), self.plain_tls.clone()),
        };
        PushTarget { headers, secrets, tls, networks, ..self.clone() }
    }

    /// The URL with its query masked, because queries often hold tokens.
    pub fn shown_url(&self) -> String {
        masked(&self.url)
    }

    /// How long a request may take, from the look-up of the name to the end of the answer.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// When failed attempts are repeated.
    pub fn retry(&self) -> &RetryPlan {
        &self.retry
    }

    /// The last four characters of each secret.
    pub fn secret_hints(&self) -> impl Iterator<Item = &str> {
        self.secrets.iter().map(SigningSecret::hint)
    }
}

impl fmt::Debug for PushTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushTarget")
            .field("url", &self.shown_url())
            .field("method", &self.method)
            .field("headers", &self.headers.keys().collect::<Vec<_>>())
            .field("secrets", &self.secrets.len())
            .field("timeout", &self.timeout)
            .field("concurrency", &self.concurrency)
            .field("rate", &self.rate)
            .field("retry", &self.retry)
            .field("max_attempts", &self.max_attempts)
            .field("dead_on", &self.dead_on)
            .field("networks", &self.networks)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for TargetSettings {
    /// Only what cannot hold a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetSettings")
            .field("headers", &self.headers.keys().collect::<Vec<_>>())
            .field("secrets", &self.secrets.len())
            .finish_non_exhaustive()
    }
}

/// A URL without its query.
pub(crate) fn masked(url: &Url) -> String {
    let mut shown = url.clone();
    shown.set_query(None);
    let mask = if url.query().is_some() { "?…" } else { "" };
    format!("{shown}{mask}")
}

fn networks(settings: Option<&NetworkSettings>) -> Result<Networks, BadSettings> {
    let networks = match settings {
        None => Ok(Networks::default()),
        Some(NetworkSettings::One(word)) => Networks::from_words(&[word]),
        Some(NetworkSettings::Several(words)) => Networks::from_words(words),
    };
    networks.map_err(|e| bad("networks", e))
}

/// The URL, and the same for requests. An address in it is judged here already, as it will be at each connection.
pub(crate) fn address(text: &str, networks: &Networks) -> Result<(Url, Uri), BadSettings> {
    let wrong = |what: &str| bad("url", what);
    if text.len() > MAX_URL {
        return Err(wrong(&format!("is longer than {MAX_URL} bytes")));
    }
    // A browser reads over these; here they only serve to hide where a URL leads.
    if text.chars().any(|c| c.is_control() || c.is_whitespace() || c == '\\') {
        return Err(wrong("has a space, a control character or a backslash"));
    }
    let url = Url::parse(text).map_err(|e| wrong(&e.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("is neither http nor https"));
    }
    let after_scheme = text.split_once("//").map_or("", |(_, rest)| rest);
    if after_scheme.is_empty() {
        return Err(wrong("has no // behind its scheme"));
    }
    let authority = after_scheme.split(['/', '?', '#']).next().unwrap_or_default();
    // `http:///me@host/` and `http:/me@host//` have it elsewhere than they seem to.
    if authority.contains('@') || !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("has user information"));
    }
    if url.fragment().is_some() {
        return Err(wrong("has a fragment"));
    }
    if url.port() == Some(0) {
        return Err(wrong("has port 0"));
    }
    let permitted = match url.host() {
        None => return Err(wrong("has no host")),
        Some(Host::Domain(name)) => {
            if name.len() > 254
                || name.trim_end_matches('.').split('.').any(|label| !(1..=63).contains(&label.len()))
            {
                return Err(wrong("has a host name with a part that is empty or too long"));
            }
            // This machine, whatever a look-up says (RFC 6761, section 6.3).
            let name = name.trim_end_matches('.');
            let is_here = name == "localhost" || name.ends_with(".localhost");
            !is_here
                || networks.permits(Ipv4Addr::LOCALHOST.into())
                || networks.permits(Ipv6Addr::LOCALHOST.into())
        }
        Some(Host::Ipv4(v4)) => networks.permits(v4.into()),
        Some(Host::Ipv6(v6)) => networks.permits(v6.into()),
    };
    if !permitted {
        return Err(wrong("leads to an address that networks does not permit"));
    }
    let uri = url.as_str().parse().map_err(|e: hyper::http::uri::InvalidUri| wrong(&e.to_string()))?;
    Ok((url, uri))
}

fn method(name: Option<&str>) -> Result<Method, BadSettings> {
    match name {
        None | Some("POST") => Ok(Method::POST),
        Some("PUT") => Ok(Method::PUT),
        Some("PATCH") => Ok(Method::PATCH),
        Some(_) => Err(bad("method", "must be POST, PUT or PATCH")),
    }
}

/// Headers that say how the request itself is sent; a target may not set them.
const OF_THE_CONNECTION: [&str; 12] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "traceparent",
];

fn headers(given: &BTreeMap<String, String>) -> Result<HeaderMap, BadSettings> {
    let bytes: usize = given.iter().map(|(name, value)| name.len() + value.len()).sum();
    if given.len() > MAX_HEADERS || bytes > MAX_HEADER_BYTES {
        return Err(bad(
            "headers",
            format_args!("are more than {MAX_HEADERS}, or than {MAX_HEADER_BYTES} bytes"),
        ));
    }
    let mut headers = HeaderMap::new();
    for (text, value) in given {
        let field = || format!("headers.{}", text.escape_default());
        let name: HeaderName = text.parse().map_err(|_| bad(field(), "is no name of a header"))?;
        let ours = ["webhook-", "duewheel-"].iter().any(|prefix| name.as_str().starts_with(prefix));
        if ours || OF_THE_CONNECTION.contains(&name.as_str()) {
            return Err(bad(field(), "is set by duewheel"));
        }
        if value.bytes().any(|b| !matches!(b, b'\t' | b' '..=b'~')) {
            return Err(bad(field(), "has a character that is not visible ASCII"));
        }
        let value = HeaderValue::from_str(value).map_err(|_| bad(field(), "is no value of a header"))?;
        if headers.insert(name, value).is_some() {
            return Err(bad(field(), "is there twice"));
        }
    }
    Ok(headers)
}

fn secrets(texts: &[String]) -> Result<Vec<SigningSecret>, BadSettings> {
    if texts.len() > MAX_SECRETS {
        return Err(bad("secrets", format_args!("are more than {MAX_SECRETS}")));
    }
    let read =
        |(n, text): (usize, &String)| SigningSecret::new(text).map_err(|e| bad(format!("secrets[{n}]"), e));
    texts.iter().enumerate().map(read).collect()
}

fn number(field: &str, n: u32, max: u32) -> Result<NonZeroU32, BadSettings> {
    NonZeroU32::new(n)
        .filter(|n| n.get() <= max)
        .ok_or_else(|| bad(field, format_args!("must be 1 to {max}")))
}

fn rate(rate: Option<PushRate>) -> Result<Option<PushRate>, BadSettings> {
    if let Some(PushRate { per_second, burst }) = rate {
        number("rate.per_second", per_second, MAX_RATE)?;
        number("rate.burst", burst.unwrap_or(per_second), MAX_RATE)?;
    }
    Ok(rate)
}

fn retry(settings: Option<&RetrySettings>) -> Result<RetryPlan, BadSettings> {
    let most = MAX_DELAY.as_secs() / 86_400;
    match settings {
        None => Ok(RetryPlan::default()),
        Some(RetrySettings { delays: Some(delays), min_ms: None, max_ms: None }) => {
            if delays.is_empty() || delays.len() > MAX_DELAYS {
                return Err(bad("retry.delays", format_args!("must be 1 to {MAX_DELAYS}")));
            }
            let read = |(n, text): (usize, &String)| {
                span::duration(text).filter(|delay| *delay <= MAX_DELAY).ok_or_else(|| {
                    bad(
                        format!("retry.delays[{n}]"),
                        format_args!("must be a time such as 30s, at most {most}d"),
                    )
                })
            };
            Ok(RetryPlan::Delays(delays.iter().enumerate().map(read).collect::<Result<_, _>>()?))
        }
        Some(RetrySettings { delays: None, min_ms: Some(min), max_ms: Some(max) }) => {
            let (min, max) = (Duration::from_millis(*min), Duration::from_millis(*max));
            if max > MAX_DELAY {
                return Err(bad("retry.max_ms", format_args!("must be at most {}", MAX_DELAY.as_millis())));
            }
            if min.is_zero() || min > max {
                return Err(bad("retry.min_ms", "must be at least 1, and at most max_ms"));
            }
            Ok(RetryPlan::Doubling { min, max })
        }
        Some(_) => Err(bad("retry", "must have either delays, or min_ms and max_ms")),
    }
}

/// Checks prefixes of names: what no name can begin with is a mistake.
fn queues(prefixes: &[String]) -> Result<(), BadSettings> {
    if prefixes.len() > MAX_PREFIXES {
        return Err(bad("queues", format_args!("are more than {MAX_PREFIXES}")));
    }
    for (n, prefix) in prefixes.iter().enumerate() {
        QueueName::new(prefix).map_err(|e| bad(format!("queues[{n}]"), e))?;
    }
    Ok(())
}

fn dead_on(codes: &[u16]) -> Result<Vec<u16>, BadSettings> {
    if codes.len() > MAX_DEAD_ON {
        return Err(bad("dead_on", format_args!("has more than {MAX_DEAD_ON} codes")));
    }
    match codes.iter().position(|code| !(300..=599).contains(code)) {
        Some(n) => Err(bad(format!("dead_on[{n}]"), "must be 300 to 599")),
        None => Ok(codes.to_vec()),
    }
}

/// The settings of TLS, or the field that is wrong and what is wrong with it.
fn client_config(
    ca_pem: Option<&str>,
    client_pem: Option<&str>,
) -> Result<ClientConfig, (&'static str, String)> {
    let ca = |what: String| ("ca_pem", what);
    let client = |what: String| ("client_pem", what);
    let mut roots = RootCertStore::empty();
    match ca_pem {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(text) => {
            for root in certificates(text).map_err(ca)? {
                roots.add(root).map_err(|e| ca(e.to_string()))?;
            }
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| ca(e.to_string()))?
        .with_root_certificates(roots);
    let Some(text) = client_pem else { return Ok(config.with_no_client_auth()) };
    let chain = certificates(text).map_err(client)?;
    let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|why| {
        client(match why {
            pem::Error::NoItemsFound => "there is no private key in it (PEM, not encrypted)".to_owned(),
            // The text of other errors may hold bytes of the key.
            _ => "its private key cannot be read (PEM, not encrypted)".to_owned(),
        })
    })?;
    config.with_client_auth_cert(chain, key).map_err(|why| {
        client(match why {
            rustls::Error::InconsistentKeys(_) => "its key is not that of its certificate".to_owned(),
            other => other.to_string(),
        })
    })
}

/// Reads certificates, at least one.
fn certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    if text.len() > MAX_PEM {
        return Err(format!("is longer than {MAX_PEM} bytes"));
    }
    let certs: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match certs {
        Ok(certs) if certs.is_empty() => Err("there is no certificate in it (PEM)".to_owned()),
        Ok(certs) => Ok(certs),
        Err(_) => Err("a certificate in it cannot be read (PEM)".to_owned()),
    }
}
