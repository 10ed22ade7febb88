//! How a command did not succeed, and which exit code says so.

use std::{fmt, io};

use crate::config::ConfigError;

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was refused, or failed: exit code 1.
    Failed(String),
    /// Wrong usage: exit code 2.
    Usage(String),
    /// It is done in part, and something is left: exit code 3.
    Left(String),
    /// It failed and has printed everything: exit code 1.
    Said,
}

impl Failure {
    pub(crate) fn failed(what: impl fmt::Display) -> Self {
        Failure::Failed(what.to_string())
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Failure::Usage(error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        // `duewheel list q | head` is no failure that needs words.
        if error.kind() == io::ErrorKind::BrokenPipe { Failure::Said } else { Failure::failed(error) }
    }
}
