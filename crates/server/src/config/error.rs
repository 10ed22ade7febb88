//! Why the settings of a server are invalid.

use std::path::PathBuf;

/// Why the settings are invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {0}: {1}")]
    Unreadable(PathBuf, std::io::Error),
    /// The content of the file is invalid.
    #[error("{file}, line {line}: {what}")]
    File {
        /// The file.
        file: PathBuf,
        /// The number of the line.
        line: usize,
        /// The fault, with the key.
        what: String,
    },
    /// The value of an option is invalid.
    #[error("{0}")]
    Value(String),
}
