//! Why a server did not start, or failed.

use crate::auth::TokensError;
use crate::config::ConfigError;
use crate::tls::TlsError;

/// Why a server did not start, or failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Every listener is off.
    #[error("every listener is off; there is nothing to serve")]
    NoListener,
    /// The store did not open.
    #[error("cannot open {}", not_opened(what, why))]
    Open {
        /// The data folder, or the name for another store.
        what: String,
        /// The reason.
        why: duewheel::OpenError,
    },
    /// A bridge is not valid.
    #[error(transparent)]
    Bridge(#[from] duewheel_bridge::BadBridge),
    /// The tokens could not be read.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// Certificate or key could not be read.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An address could not be bound.
    #[error("--{option} {address}: {}", told(why, option))]
    Bind {
        /// The option that names the address.
        option: &'static str,
        /// The address.
        address: String,
        /// The reason.
        why: std::io::Error,
    },
    /// Signals or standard output do not work.
    #[error(transparent)]
    System(#[from] std::io::Error),
    /// The driver ended by itself.
    #[error("stopped: {0}")]
    Ended(String),
    /// The end was not clean.
    #[error(transparent)]
    Shutdown(#[from] duewheel::ShutdownError),
}

/// The store, once, and why it did not open.
fn not_opened(what: &str, why: &duewheel::OpenError) -> String {
    let why = why.to_string();
    if why.starts_with(&format!("{what}:")) { why } else { format!("{what}: {why}") }
}

/// Why a listener has no address, and what to do.
fn told(why: &std::io::Error, option: &str) -> String {
    match why.kind() {
        std::io::ErrorKind::AddrInUse => {
            format!("address in use; choose another with --{option}, or stop the server that has it")
        }
        std::io::ErrorKind::AddrNotAvailable => "this machine does not have this address".to_owned(),
        _ => format!("cannot listen there: {why}"),
    }
}
