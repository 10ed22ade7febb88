//! Certificates for one server, made with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// The files, in PEM.
const FILES: [&str; 5] = ["ca.pem", "cert.pem", "key.pem", "client.pem", "client-key.pem"];

/// An authority of the test's own, a certificate by it for 127.0.0.1 and localhost, and one for clients.
#[derive(Clone, Debug)]
pub struct Certificates {
    folder: PathBuf,
    authority: CertificateDer<'static>,
}

impl Certificates {
    /// Makes them and writes them to a folder: `ca.pem`, `cert.pem`, `key.pem`, `client.pem`, `client-key.pem`.
    ///
    /// # Errors
    ///
    /// They cannot be made or written.
    pub fn make(folder: &Path) -> io::Result<Self> {
        let mut of_authority = CertificateParams::new(Vec::new()).map_err(io::Error::other)?;
        of_authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // OpenSSL takes a certificate whose issuer has its own name for a self-signed one.
        of_authority.distinguished_name = DistinguishedName::new();
        of_authority.distinguished_name.push(DnType::CommonName, "authority of a test");
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let authority = CertifiedIssuer::self_signed(of_authority, key).map_err(io::Error::other)?;
        let names = ["127.0.0.1", "localhost"].map(str::to_owned);
        let own = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = CertificateParams::new(names)
            .and_then(|params| params.signed_by(&own, &authority))
            .map_err(io::Error::other)?;
        let mut of_client = CertificateParams::new(Vec::new()).map_err(io::Error::other)?;
        of_client.distinguished_name = DistinguishedName::new();
        of_client.distinguished_name.push(DnType::CommonName, "client of a test");
        of_client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let client_key = KeyPair::generate().map_err(io::Error::other)?;
        let client = of_client.signed_by(&client_key, &authority).map_err(io::Error::other)?;
        fs::create_dir_all(folder)?;
        fs::write(folder.join("client.pem"), client.pem())?;
        fs::write(folder.join("client-key.pem"), client_key.serialize_pem())?;
        fs::write(folder.join("ca.pem"), authority.pem())?;
        fs::write(folder.join("cert.pem"), certificate.pem())?;
        fs::write(folder.join("key.pem"), own.serialize_pem())?;
        Ok(Certificates { folder: folder.to_owned(), authority: authority.der().clone() })
    }

    /// Copies them to another folder.
    pub(crate) fn copy(&self, folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        for name in FILES {
            fs::copy(self.folder.join(name), folder.join(name))?;
        }
        Ok(Certificates { folder: folder.to_owned(), authority: self.authority.clone() })
    }

    /// The file of the authority's certificate, in PEM.
    pub fn authority(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// The files of the client's certificate and its key.
    pub fn client_files(&self) -> [PathBuf; 2] {
        ["client.pem", "client-key.pem"].map(|name| self.folder.join(name))
    }

    /// A client that presents its certificate on request.
    pub(crate) fn client(&self) -> io::Result<Arc<ClientConfig>> {
        let [certificate, key] = self.client_files();
        let certificate = CertificateDer::from_pem_file(certificate).map_err(io::Error::other)?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(io::Error::other)?;
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone()).map_err(io::Error::other)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate], key)
            .map_err(io::Error::other)?;
        Ok(Arc::new(config))
    }
}
