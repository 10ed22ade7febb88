//! Certificates for one server, made when it is.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};

/// An authority of the test's own, and a certificate by it for 127.0.0.1 and localhost.
#[derive(Clone, Debug)]
pub struct Certificates {
    folder: PathBuf,
    authority: CertificateDer<'static>,
}

impl Certificates {
    /// Makes them and writes them to a folder: `ca.pem`, `cert.pem`, `key.pem`.
    ///
    /// # Errors
    ///
    /// They cannot be made or written.
    pub fn make(folder: &Path) -> io::Result<Self> {
        let mut of_authority = CertificateParams::new(Vec::new()).map_err(io::Error::other)?;
        of_authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // OpenSSL takes a certificate whose issuer has its own name for one that has signed itself.
        of_authority.distinguished_name = DistinguishedName::new();
        of_authority.distinguished_name.push(DnType::CommonName, "authority of a test");
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let authority = CertifiedIssuer::self_signed(of_authority, key).map_err(io::Error::other)?;
        let names = ["127.0.0.1", "localhost"].map(str::to_owned);
        let own = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = CertificateParams::new(names)
            .and_then(|params| params.signed_by(&own, &authority))
            .map_err(io::Error::other)?;
        fs::create_dir_all(folder)?;
        fs::write(folder.join("ca.pem"), authority.pem())?;
        fs::write(folder.join("cert.pem"), certificate.pem())?;
        fs::write(folder.join("key.pem"), own.serialize_pem())?;
        Ok(Certificates { folder: folder.to_owned(), authority: authority.der().clone() })
    }

    /// Copies them to another folder.
    pub(crate) fn copy(&self, folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        for name in ["ca.pem", "cert.pem", "key.pem"] {
            fs::copy(self.folder.join(name), folder.join(name))?;
        }
        Ok(Certificates { folder: folder.to_owned(), authority: self.authority.clone() })
    }

    /// The authority's certificate, as a file of the form PEM.
    pub fn authority(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    pub(crate) fn client(&self) -> io::Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone()).map_err(io::Error::other)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Arc::new(config))
    }
}
