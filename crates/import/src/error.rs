//! Errors of an import.

use std::{fmt, io};

use crate::api::ApiError;

/// Why an import ended early. Nothing is lost: every job is in the source or, durable, in duewheel. Run the import
/// again.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The arguments are not valid.
    #[error("{0}")]
    Usage(String),
    /// The source refused or could not be reached, or either side answers strangely.
    #[error("{0}")]
    Failed(String),
    /// The source could not be reached.
    #[error("{0}")]
    Unreachable(String),
    /// duewheel refused, or could not be reached.
    #[error("{0}")]
    Api(ApiError),
}

impl ImportError {
    pub(crate) fn failed(what: impl fmt::Display) -> Self {
        ImportError::Failed(what.to_string())
    }
}

impl From<ApiError> for ImportError {
    fn from(trouble: ApiError) -> Self {
        ImportError::Api(trouble)
    }
}

impl From<io::Error> for ImportError {
    fn from(error: io::Error) -> Self {
        ImportError::failed(error)
    }
}
