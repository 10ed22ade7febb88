//! Reads the certificates by which this node authenticates itself to others, and the authority that it trusts.

use std::fmt::Display;
use std::path::Path;

use duewheel::{CertificatePart, PeerCertificates};

use crate::config::{ConfigError, PeerFiles};
use crate::{private, tls};

/// The largest number of bytes of a private key that are read; keys are much shorter.
const MAX_KEY: u64 = 64 * 1024;
/// Reads these files.
///
/// # Errors
/// A file cannot be read, or its content is not valid; the error names the option and the file.
pub(crate) fn certificates(files: &PeerFiles) -> Result<PeerCertificates, ConfigError> {
    let PeerFiles { own: tls::Files { cert, key }, ca } = files;
    let named = |option: &str, file: &Path, why: &dyn Display| {
        ConfigError::Value(format!("--{option} {}: {why}", file.display()))
    };
    let read = |option, file: &Path| std::fs::read(file).map_err(|why| named(option, file, &why));
    let secret = private::read(key, MAX_KEY).map_err(|why| named("peer-key", key, &why))?;
    let secret = secret.map_err(|what| named("peer-key", key, &what))?;
    let pem = (read("peer-cert", cert)?, secret, read("peer-ca", ca)?);
    PeerCertificates::from_pem(&pem.0, &pem.1, &pem.2).map_err(|why| match why.part {
        CertificatePart::Certificate => named("peer-cert", cert, &why),
        CertificatePart::Key => named("peer-key", key, &why),
        CertificatePart::Authority => named("peer-ca", ca, &why),
    })
}
