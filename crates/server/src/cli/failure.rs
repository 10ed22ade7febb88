//! Failures of commands, and their exit codes.

use std::{fmt, io};

use crate::config::ConfigError;

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) enum CommandFailure {
    /// It was refused, or failed: exit code 1.
    Failed(String),
    /// Wrong usage: exit code 2.
    Usage(String),
    /// It is done in part, and something is left: exit code 3.
    Left(String),
    /// It failed and has printed everything: exit code 1.
    Said,
}

impl CommandFailure {
    pub(crate) fn failed(what: impl fmt::Display) -> Self {
        CommandFailure::Failed(what.to_string())
    }
}

impl From<ConfigError> for CommandFailure {
    fn from(error: ConfigError) -> Self {
        CommandFailure::Usage(error.to_string())
    }
}

impl From<io::Error> for CommandFailure {
    fn from(error: io::Error) -> Self {
        // A closed pipe, as in `duewheel list q | head`, is not reported.
        if error.kind() == io::ErrorKind::BrokenPipe {
            CommandFailure::Said
        } else {
            CommandFailure::failed(error)
        }
    }
}
