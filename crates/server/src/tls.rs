//! TLS for listeners: certificate and key in PEM, and the authority of clients where those must present a certificate,
//! too. All of them are read again while the server runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use duewheel_api::MAKE_CERTIFICATE;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::private;

/// Largest size of a file of keys, in bytes.
const MAX_KEY: u64 = 1024 * 1024;

/// The files of certificate and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The certificate, followed by those that lead to its authority.
    pub cert: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
}

/// The clients that may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clients {
    /// All: HTTPS, where tokens identify the caller.
    Any,
    /// Clients with a certificate of the authority in this file: for beanstalkd's protocol, which has no tokens.
    Signed(PathBuf),
}

/// Certificate and key of a running server; they may be replaced while it runs.
#[derive(Debug)]
pub struct Tls {
    files: Files,
    clients: Clients,
    current: RwLock<Arc<ServerConfig>>,
}

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("--{option} {}: {why}", .file.display())]
    Unreadable {
        /// The option that named it.
        option: &'static str,
        /// The file.
        file: PathBuf,
        /// The reason.
        why: io::Error,
    },
    /// The content of a file is invalid.
    #[error("--{option} {}: {what}", .file.display())]
    Wrong {
        /// The option that named it.
        option: &'static str,
        /// The file.
        file: PathBuf,
        /// The fault.
        what: String,
    },
}

impl Tls {
    /// Reads certificate and key, and the authority of clients.
    ///
    /// # Errors
    /// [`TlsError`] when one of them cannot be read, they do not belong together, or other users may read the key.
    pub fn of(files: Files, clients: Clients) -> Result<Tls, TlsError> {
        let current = RwLock::new(Arc::new(read(&files, &clients)?));
        Ok(Tls { files, clients, current })
    }

    /// Reads all files again, for later connections. After an error nothing has changed.
    ///
    /// # Errors
    /// See [`Tls::of`].
    pub fn reload(&self) -> Result<(), TlsError> {
        let fresh = Arc::new(read(&self.files, &self.clients)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// The acceptor for the handshake of one connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)).into()
    }
}

fn wrong(option: &'static str, file: &Path, what: String) -> TlsError {
    TlsError::Wrong { option, file: file.to_owned(), what }
}

fn read(files: &Files, clients: &Clients) -> Result<ServerConfig, TlsError> {
    let certs = certificates("tls-cert", &files.cert)?;
    let key = private_key("tls-key", &files.key)?;
    if certs.first().is_some_and(|leaf| is_of_authority(leaf)) {
        tracing::warn!(
            file = %files.cert.display(),
            "the certificate of --tls-cert is a CA's, which strict clients refuse, those of duewheel among them. {MAKE_CERTIFICATE}"
        );
    }
    // rustls has TLS 1.2 and 1.3 only.
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|why| wrong("tls-cert", &files.cert, why.to_string()))?;
    let config = match clients {
        Clients::Any => config.with_no_client_auth(),
        Clients::Signed(authority) => config.with_client_cert_verifier(verifier(authority)?),
    };
    let mut config = config.with_single_cert(certs, key).map_err(|why| {
        let what = match why {
            rustls::Error::InconsistentKeys(_) => {
                format!("is not the key of the certificate in {}", files.cert.display())
            }
            other => other.to_string(),
        };
        wrong("tls-key", &files.key, what)
    })?;
    if *clients == Clients::Any {
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
    }
    Ok(config)
}

/// Whether a certificate says that it is an authority's: the extension basicConstraints (2.5.29.19) with CA:TRUE.
fn is_of_authority(der: &[u8]) -> bool {
    const BASIC_CONSTRAINTS: [u8; 5] = [0x06, 0x03, 0x55, 0x1d, 0x13];
    const CRITICAL: [u8; 3] = [0x01, 0x01, 0xff];
    let Some(at) = der.windows(BASIC_CONSTRAINTS.len()).position(|bytes| bytes == BASIC_CONSTRAINTS) else {
        return false;
    };
    let rest = &der[at + BASIC_CONSTRAINTS.len()..];
    let rest = rest.strip_prefix(&CRITICAL).unwrap_or(rest);
    // OCTET STRING { SEQUENCE { BOOLEAN TRUE, … } }
    matches!(rest, [0x04, _, 0x30, _, 0x01, 0x01, 0xff, ..])
}

/// Reads certificates, at least one.
fn certificates(option: &'static str, file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = contents(option, file)?;
    let certs: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&text).collect();
    let certs = certs.map_err(|why| wrong(option, file, why.to_string()))?;
    if certs.is_empty() {
        return Err(wrong(option, file, "there is no certificate in it (PEM)".to_owned()));
    }
    Ok(certs)
}

fn private_key(option: &'static str, file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let unreadable = |why| TlsError::Unreadable { option, file: file.to_owned(), why };
    let text = private::read(file, MAX_KEY).map_err(unreadable)?;
    let text = text.map_err(|what| wrong(option, file, format!("this key {what}")))?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|why| {
        let what = match why {
            pem::Error::NoItemsFound => "there is no private key in it (PEM, not encrypted)".to_owned(),
            other => other.to_string(),
        };
        wrong(option, file, what)
    })
}

/// A verifier that accepts certificates of this authority.
fn verifier(authority: &Path) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsError> {
    let option = "beanstalk-client-ca";
    let mut roots = RootCertStore::empty();
    for root in certificates(option, authority)? {
        roots.add(root).map_err(|why| wrong(option, authority, why.to_string()))?;
    }
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()));
    verifier.build().map(|verifier| verifier as _).map_err(|why| wrong(option, authority, why.to_string()))
}

fn contents(option: &'static str, file: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(file).map_err(|why| TlsError::Unreadable { option, file: file.to_owned(), why })
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    use super::*;

    #[test]
    fn authority_certificates_are_distinguished() {
        let made = |is_ca: IsCa| {
            let mut params = CertificateParams::new(vec!["h".to_owned()]).unwrap();
            params.is_ca = is_ca;
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
        };
        assert!(is_of_authority(&made(IsCa::Ca(BasicConstraints::Unconstrained))));
        assert!(is_of_authority(&made(IsCa::Ca(BasicConstraints::Constrained(0)))));
        assert!(!is_of_authority(&made(IsCa::ExplicitNoCa)));
        assert!(!is_of_authority(&made(IsCa::NoCa)));
    }
}
