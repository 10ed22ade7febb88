//! Requests to the collector.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use ureq::http::{HeaderName, HeaderValue};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use super::export::ExportCounts;
use crate::config::{ConfigError, OtlpSettings};

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
