//! Failures of TLS in the words of people who set up servers.

use rustls::{CertificateError, Error as TlsFailure, InvalidMessage};

/// Advice on a failed handshake with `base`; `None` for other failures.
pub(super) fn advice(base: &str, error: &ureq::Error) -> Option<String> {
    match error {
        ureq::Error::Rustls(failure) => words(base, failure),
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref::<TlsFailure>().and_then(|e| words(base, e)),
        _ => None,
    }
}

fn words(base: &str, failure: &TlsFailure) -> Option<String> {
    let why = match failure {
        TlsFailure::InvalidMessage(
            InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
        ) => {
            let rest = base.strip_prefix("https://").unwrap_or(base);
            format!("this is an HTTP port, without TLS: say --server http://{rest}")
        }
        TlsFailure::InvalidCertificate(error) => return Some(format!("{base}: {}", of_certificate(error)?)),
        TlsFailure::AlertReceived(alert) => format!("the server ended the TLS handshake: {alert:?}"),
        _ => return None,
    };
    Some(format!("{base}: {why}"))
}

fn of_certificate(error: &CertificateError) -> Option<String> {
    Some(match error {
        CertificateError::UnknownIssuer => {
            "the certificate is of an authority that is not known here; name the file of \
             the authority's certificate with --ca-cert"
                .to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the certificate has expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the certificate is not valid yet; is the clock of this machine right?".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the certificate is for other host names; use one of them, or make one for this name \
             (subjectAltName)"
                .to_owned()
        }
        other if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            format!("the certificate is a CA's, not a server's. {}", crate::tls::MAKE_ONE)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_tell_what_to_do() {
        let told = |failure: TlsFailure| words("https://h:1", &failure).unwrap_or_default();
        let plain = TlsFailure::InvalidMessage(InvalidMessage::InvalidContentType);
        assert_eq!(told(plain), "https://h:1: this is an HTTP port, without TLS: say --server http://h:1");
        assert!(told(CertificateError::UnknownIssuer.into()).contains("--ca-cert"));
        assert!(told(CertificateError::NotValidForName.into()).contains("other host names"));
        assert_eq!(told(TlsFailure::HandshakeNotComplete), "");
    }
}
