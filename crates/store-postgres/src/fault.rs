//! Errors of PostgreSQL as those of a store.

use std::fmt;

use duewheel_core::store::{ErrorKind, StoreError};
use tokio_postgres::error::SqlState;

/// A call that did not give its answer.
#[derive(Clone, Debug)]
pub(crate) struct CallFailure {
    pub(crate) error: StoreError,
    /// Whether the same call may succeed a little later; it may have been carried out.
    pub(crate) may_pass: bool,
}

impl CallFailure {
    pub(crate) fn passing(what: impl fmt::Display) -> Self {
        CallFailure { error: StoreError::new(ErrorKind::Unavailable, what), may_pass: true }
    }

    pub(crate) fn lasting(kind: ErrorKind, what: impl fmt::Display) -> Self {
        CallFailure { error: StoreError::new(kind, what), may_pass: false }
    }
}

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.error)
    }
}

impl From<CallFailure> for StoreError {
    fn from(failure: CallFailure) -> Self {
        failure.error
    }
}

impl From<tokio_postgres::Error> for CallFailure {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(refusal) = error.as_db_error() else {
            let cause =
                std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            return CallFailure::passing(format_args!("PostgreSQL: {error}{cause}"));
        };
        let code = refusal.code();
        let what = format!("PostgreSQL: {} ({})", refusal.message(), code.code());
        let class = &code.code()[..2];
        let missing = [SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME];
        if missing.contains(code) {
            return CallFailure::lasting(
                ErrorKind::Corrupt,
                format_args!("{what}: tables are not there; `duewheel store init` makes them"),
            );
        }
        if *code == SqlState::DISK_FULL || *code == SqlState::OUT_OF_MEMORY {
            return CallFailure { error: StoreError::new(ErrorKind::Full, what), may_pass: true };
        }
        // Another node makes the tables at the same moment.
        let made = [SqlState::DUPLICATE_SCHEMA, SqlState::DUPLICATE_TABLE, SqlState::DUPLICATE_OBJECT];
        if made.contains(code) {
            return CallFailure::passing(what);
        }
        if *code == SqlState::INSUFFICIENT_PRIVILEGE {
            return CallFailure::lasting(
                ErrorKind::Corrupt,
                format_args!(
                    "{what}: `duewheel store init --print --role USER` prints what another user can run for it"
                ),
            );
        }
        // Wrong passwords, missing rights and databases, damage: an operator must act.
        if matches!(class, "28" | "3D" | "XX" | "42") {
            return CallFailure::lasting(ErrorKind::Corrupt, what);
        }
        CallFailure::passing(what)
    }
}

/// The error of an answer of the server that has an unknown form.
pub(crate) fn odd(what: &str) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, format_args!("PostgreSQL answered {what} in an unknown way"))
}
