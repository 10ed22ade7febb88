//! How the secrets of targets are kept: by the store, and by the file of keys.

use std::fmt::Display;

use duewheel_delivery::{SealKeys, Sealing};

use crate::config::{ConfigError, Settings, StoreChoice};
use crate::private;

/// The largest number of bytes of keys that are read.
const MAX_KEYS: u64 = 16 * 1024;

/// Reads the keys, if there is a file of them.
///
/// # Errors
/// The file cannot be read, others may read it, or it has no keys; the error names it, and no key.
pub(crate) fn of(settings: &Settings) -> Result<Sealing, ConfigError> {
    let Some(file) = &settings.secrets_key else {
        return Ok(match settings.store {
            StoreChoice::Log { .. } => Sealing::Open,
            StoreChoice::Redis(_) | StoreChoice::Postgres(_) => Sealing::Refused,
        });
    };
    let named = |why: &dyn Display| ConfigError::Value(format!("--secrets-key {}: {why}", file.display()));
    let bytes = private::read(file, MAX_KEYS).map_err(|why| named(&why))?.map_err(|what| named(&what))?;
    let text = str::from_utf8(&bytes).map_err(|_| named(&"is no text"))?;
    SealKeys::parse(text).map(Sealing::Keys).map_err(|why| named(&why))
}
