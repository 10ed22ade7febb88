//! TLS for the HTTP listener: certificate and key in PEM, read again at SIGHUP.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Where certificate and key are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The certificate, and those that lead to its authority behind it.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Certificate and key of a running server; they may be exchanged while it runs.
#[derive(Debug)]
pub struct Tls {
    files: Files,
    current: RwLock<Arc<ServerConfig>>,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("--{option} {}: {why}", .file.display())]
    Unreadable {
        /// Which option named it.
        option: &'static str,
        /// Which file.
        file: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// A file is not what it should be.
    #[error("--{option} {}: {what}", .file.display())]
    Wrong {
        /// Which option named it.
        option: &'static str,
        /// Which file.
        file: PathBuf,
        /// What is wrong.
        what: String,
    },
}

impl Tls {
    /// Reads certificate and key.
    ///
    /// # Errors
    /// When one of them cannot be read, they do not belong together, or everybody may read the key.
    pub fn of(files: Files) -> Result<Tls, TlsError> {
        let current = RwLock::new(Arc::new(read(&files)?));
        Ok(Tls { files, current })
    }

    /// Reads both again, for the connections that come. After an error everything is as before.
    ///
    /// # Errors
    /// As [`Tls::of`].
    pub fn reload(&self) -> Result<(), TlsError> {
        let fresh = Arc::new(read(&self.files)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// For the handshake of one connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)).into()
    }
}

fn read(files: &Files) -> Result<ServerConfig, TlsError> {
    let wrong = |option, file: &Path, what: String| TlsError::Wrong { option, file: file.to_owned(), what };
    let text = contents("tls-cert", &files.cert)?;
    let certs: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&text).collect();
    let certs = certs.map_err(|why| wrong("tls-cert", &files.cert, why.to_string()))?;
    if certs.is_empty() {
        return Err(wrong("tls-cert", &files.cert, "there is no certificate in it (PEM)".to_owned()));
    }
    let text = contents("tls-key", &files.key)?;
    let mode = std::fs::metadata(&files.key).map(|meta| meta.mode() & 0o777).unwrap_or(0);
    // The group may: it is how some systems give keys to servers.
    if mode & 0o007 != 0 {
        let what = format!("everybody may read or change this key (mode {mode:03o}); chmod 600 it");
        return Err(wrong("tls-key", &files.key, what));
    }
    let key = PrivateKeyDer::from_pem_slice(&text).map_err(|why| {
        let what = match why {
            pem::Error::NoItemsFound => "there is no private key in it (PEM, not encrypted)".to_owned(),
            other => other.to_string(),
        };
        wrong("tls-key", &files.key, what)
    })?;
    // TLS 1.2 and 1.3 are all that rustls has.
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(certs, key));
    let mut config = config.map_err(|why| {
        let what = match why {
            rustls::Error::InconsistentKeys(_) => {
                format!("is not the key of the certificate in {}", files.cert.display())
            }
            other => other.to_string(),
        };
        wrong("tls-key", &files.key, what)
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn contents(option: &'static str, file: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(file).map_err(|why| TlsError::Unreadable { option, file: file.to_owned(), why })
}
