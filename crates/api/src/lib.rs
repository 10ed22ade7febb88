//! What the HTTP interface, the command line and the configuration of duewheel have in common: the texts of instants
//! ([`rfc3339`]), of lengths of time ([`span`]) and of rates ([`hourly`]), the codes of errors ([`error_code`]), tokens
//! ([`token`]), signatures of webhooks (the feature `signing`), and text that is safe on a terminal ([`terminal`]).

#![warn(clippy::missing_errors_doc)]

pub mod error_code;
pub mod hourly;
pub mod rfc3339;
#[cfg(feature = "signing")]
pub mod signing;
pub mod span;
pub mod terminal;
pub mod token;

/// How to make a certificate that strict clients accept.
pub const MAKE_CERTIFICATE: &str = "Make a server certificate so: openssl req -x509 -newkey rsa:2048 -nodes -days 365 \
-keyout key.pem -out cert.pem -subj /CN=HOST -addext subjectAltName=DNS:HOST -addext basicConstraints=critical,CA:FALSE";
