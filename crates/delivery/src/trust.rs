//! TLS of a target: the authorities that it is checked against, and the certificate that it is shown.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::limits::MAX_PEM;

/// The settings of TLS, or the field that is wrong and what is wrong with it.
pub(crate) fn client_config(
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
