//! Errors of operations on jobs.

use duewheel::CallError;
use duewheel::core::engine::{ChangeRefusal, EnqueueRefusal};

use super::action::BadBulk;
use crate::shelf::NotWritten;

/// Why something was not done with a job.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BulkError {
    /// The request is not valid.
    #[error(transparent)]
    Bad(#[from] BadBulk),
    /// There is no such job within reach.
    #[error("there is no job with this id; one that has ended is kept for a week")]
    NotFound,
    /// The tenant has too many jobs that have not ended.
    #[error("{0} jobs of this tenant have not ended, and no more are accepted")]
    TooMany(u64),
    /// The record cannot be read.
    #[error("the job cannot be read: {0}")]
    Unreadable(String),
    /// Others work on the job. Nothing was changed; try again.
    #[error("the job is being written; try again shortly")]
    Busy,
    /// The store refused the record of a new job.
    #[error("the record was refused: {0}")]
    Refused(EnqueueRefusal),
    /// The store refused the record.
    #[error("the record was refused: {0}")]
    RecordRefused(ChangeRefusal),
    /// The store gave no answer.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl From<NotWritten> for BulkError {
    fn from(why: NotWritten) -> Self {
        match why {
            NotWritten::Lost => BulkError::Busy,
            NotWritten::Refused(refusal) => BulkError::RecordRefused(refusal),
            NotWritten::NewRefused(refusal) => BulkError::Refused(refusal),
            NotWritten::Unknown(error) => BulkError::Call(error),
        }
    }
}
