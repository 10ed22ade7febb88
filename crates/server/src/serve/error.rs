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
    #[error("cannot open {what}: {why}")]
    Open {
        /// The data folder, or the name for another store.
        what: String,
        /// The reason.
        why: duewheel::OpenError,
    },
    /// The tokens could not be read.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// Certificate or key could not be read.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An address could not be bound.
    #[error("cannot listen on {address}: {why}")]
    Bind {
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
