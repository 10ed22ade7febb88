//! Requests to the collector.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry::Context;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use ureq::http::{HeaderName, HeaderValue};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use crate::config::{ConfigError, OtlpSettings};
use crate::traces::SpanCounts;

/// The largest answer that is read, in bytes.
const MAX_ANSWER: u64 = 1024 * 1024;

/// Posts to the collector. `ureq` blocks the thread that calls it, which is the one that the SDK exports on, and no other.
/// Variables that name proxies are not read, and redirects are not followed.
pub(super) struct CollectorClient {
    agent: ureq::Agent,
    headers: Vec<(HeaderName, HeaderValue)>,
    counts: Arc<ExportCounts>,
}

impl fmt::Debug for CollectorClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollectorClient").finish_non_exhaustive()
    }
}

impl CollectorClient {
    pub(super) fn new(settings: &OtlpSettings, counts: Arc<ExportCounts>) -> Result<Self, ConfigError> {
        let roots = settings.ca.as_deref().map_or(Ok(RootCerts::WebPki), |file| {
            Ok(RootCerts::new_with_certs(&certificates("OTEL_EXPORTER_OTLP_CERTIFICATE", file)?))
        })?;
        let client = settings.client.as_ref().map(|files| {
            let chain = certificates("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &files.cert)?;
            let name = "OTEL_EXPORTER_OTLP_CLIENT_KEY";
            let key = PrivateKey::from_pem(&read(name, &files.key)?);
            Ok(ClientCert::new_with_certs(
                &chain,
                key.map_err(|_| bad(name, &files.key, &"is no key in PEM"))?,
            ))
        });
        let tls = TlsConfig::builder().root_certs(roots).client_cert(client.transpose()?).build();
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_global(Some(settings.timeout))
            .tls_config(tls)
            .user_agent(concat!("duewheel/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        let header = |(name, value): &(String, String)| {
            let mut value = HeaderValue::from_str(value).ok()?;
            value.set_sensitive(true);
            Some((HeaderName::try_from(name.as_str()).ok()?, value))
        };
        // They were checked with the settings.
        Ok(CollectorClient { agent, headers: settings.headers.iter().filter_map(header).collect(), counts })
    }

    fn post(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (mut head, body) = request.into_parts();
        for (name, value) in &self.headers {
            head.headers.insert(name, value.clone());
        }
        let answer = self.agent.run(Request::from_parts(head, &body[..]))?;
        let (head, mut body) = answer.into_parts();
        let body = body.with_config().limit(MAX_ANSWER).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        self.post(request).map_err(|error| {
            self.counts.last.note(error.to_string());
            error.into()
        })
    }
}

fn bad(name: &str, file: &Path, what: &dyn fmt::Display) -> ConfigError {
    ConfigError::Value(format!("{name}={}: {what}", file.display()))
}

fn read(name: &str, file: &Path) -> Result<Vec<u8>, ConfigError> {
    std::fs::read(file).map_err(|error| bad(name, file, &error))
}

fn certificates(name: &str, file: &Path) -> Result<Vec<Certificate<'static>>, ConfigError> {
    let text = read(name, file)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text)
        .map(|cert| cert.map(|der| Certificate::from_der(&der).to_owned()))
        .collect();
    match all {
        Ok(all) if all.is_empty() => Err(bad(name, file, &"there is no certificate in it (PEM)")),
        Ok(all) => Ok(all),
        Err(error) => Err(bad(name, file, &error)),
    }
}

/// Counts of spans. Each one that has ended is in one of the first three.
#[derive(Debug, Default)]
pub(super) struct ExportCounts {
    exported: AtomicU64,
    dropped: AtomicU64,
    waiting: AtomicU64,
    failures: AtomicU64,
    /// Whether the last export failed.
    failing: AtomicBool,
    /// Whether no thread exports any more.
    closed: AtomicBool,
    pub(super) last: LastFailure,
}

impl ExportCounts {
    pub(super) fn seen(&self) -> SpanCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SpanCounts {
            exported: of(&self.exported),
            dropped: of(&self.dropped),
            waiting: of(&self.waiting),
            failures: of(&self.failures),
        }
    }

    /// Counts the spans that still wait as dropped, and says how many these are.
    pub(super) fn give_up(&self) -> u64 {
        self.closed.store(true, Ordering::SeqCst);
        let left = self.waiting.swap(0, Ordering::SeqCst);
        self.dropped.fetch_add(left, Ordering::SeqCst);
        left
    }

    /// Takes spans out of those that wait; spans that were given up are counted already.
    fn leave(&self, spans: u64) -> u64 {
        let mut left = 0;
        let _ = self.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |waiting| {
            left = spans.min(waiting);
            Some(waiting - left)
        });
        left
    }
}

/// Why the last request to the collector failed, for the log.
#[derive(Debug, Default)]
pub(super) struct LastFailure(Mutex<Option<String>>);

impl LastFailure {
    fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn text(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn note(&self, error: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

/// Lets a bounded number of spans wait in the SDK's queue, which drops more than that without telling anybody.
#[derive(Debug)]
pub(super) struct BoundedProcessor {
    inner: BatchSpanProcessor,
    counts: Arc<ExportCounts>,
    room: u64,
}

impl BoundedProcessor {
    pub(super) fn new(inner: BatchSpanProcessor, counts: Arc<ExportCounts>, room: usize) -> Self {
        BoundedProcessor { inner, counts, room: u64::try_from(room).unwrap_or(u64::MAX) }
    }
}

impl SpanProcessor for BoundedProcessor {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.inner.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        let more = |waiting: u64| (waiting < self.room).then_some(waiting + 1);
        let has_room = !self.counts.closed.load(Ordering::SeqCst)
            && self.counts.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok();
        if has_room {
            self.inner.on_end(span);
        } else {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// Counts what an exporter does, and logs when it begins to fail, and when it works again.
#[derive(Debug)]
pub(super) struct CountedExporter<E> {
    inner: E,
    counts: Arc<ExportCounts>,
}

impl<E> CountedExporter<E> {
    pub(super) fn new(inner: E, counts: Arc<ExportCounts>) -> Self {
        CountedExporter { inner, counts }
    }
}

impl<E: SpanExporter> SpanExporter for CountedExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let counts = &self.counts;
        counts.last.forget();
        let result = self.inner.export(batch).await;
        let spans = counts.leave(spans);
        match &result {
            Ok(()) => {
                counts.exported.fetch_add(spans, Ordering::Relaxed);
                if counts.failing.swap(false, Ordering::Relaxed) {
                    tracing::info!("the collector takes spans again");
                }
            }
            Err(error) => {
                counts.dropped.fetch_add(spans, Ordering::Relaxed);
                counts.failures.fetch_add(1, Ordering::Relaxed);
                if !counts.failing.swap(true, Ordering::Relaxed) {
                    let error = counts.last.text().unwrap_or_else(|| error.to_string());
                    tracing::warn!(%error, "the collector does not take spans; they are dropped and counted");
                }
            }
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}
