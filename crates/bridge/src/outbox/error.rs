//! Why an outbox does not work.

use duewheel::CallError;
use duewheel::core::engine::ChangeRefusal;
use duewheel::core::store::StoreError;
use duewheel_delivery::NotWritten;

/// The version of the schema that this program knows.
pub(super) const VERSION: i32 = 1;

/// Why an outbox is not drained, installed or shown.
#[derive(Debug, thiserror::Error)]
pub enum OutboxError {
    /// The database cannot be reached, or does not let this user in.
    #[error(transparent)]
    Connect(#[from] StoreError),
    /// A statement was refused, or the connection has ended.
    #[error("PostgreSQL: {}", in_words(.0))]
    Statement(#[from] tokio_postgres::Error),
    /// A statement had no answer in time.
    #[error("PostgreSQL does not answer in time")]
    Late,
    /// A commit may not have reached the standby.
    #[error("the commit returned with a warning: it may not have reached its level")]
    Warned,
    /// The schema is missing.
    #[error("the outbox is not installed; `duewheel pg install` installs it")]
    NotInstalled,
    /// The schema has another version.
    #[error("the outbox has version {0}, and this program knows {known}; {todo}", known = VERSION, todo = remedy(*.0))]
    OtherVersion(i32),
    /// The wheel did not answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The intent was not written.
    #[error(transparent)]
    Intent(#[from] NotWritten),
    /// The record of rows in flight is not readable.
    #[error("the record of rows in flight is not one that this version knows")]
    BadRecord,
    /// The batch took so long that another node may drain.
    #[error("the batch came too late to be applied")]
    Stale,
}

impl OutboxError {
    /// Whether the store refuses for now, and the same rows are met again in a moment.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            OutboxError::Call(error) | OutboxError::Intent(NotWritten::Unknown(error)) => error.may_pass(),
            OutboxError::Intent(NotWritten::Refused(refusal)) => matches!(
                refusal,
                ChangeRefusal::DiskFull
                    | ChangeRefusal::Busy
                    | ChangeRefusal::Overloaded(_)
                    | ChangeRefusal::OverQuota(_)
            ),
            _ => false,
        }
    }
}

fn in_words(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(refusal), _) => {
            let hint = refusal.hint().map(|hint| format!(". {hint}")).unwrap_or_default();
            format!("{} ({}){hint}", refusal.message(), refusal.code().code())
        }
        (None, Some(cause)) => format!("{error}: {cause}"),
        (None, None) => error.to_string(),
    }
}

fn remedy(installed: i32) -> &'static str {
    if installed > VERSION { "run the newer duewheel" } else { "`duewheel pg install` renews it" }
}
