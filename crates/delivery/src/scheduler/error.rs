//! Errors of operations on schedules.

use duewheel::CallError;
use duewheel::core::engine::{ChangeRefusal, EnqueueRefusal};

use crate::recurrence::BadRecurrence;
use crate::shelf::NotWritten;

/// Why something was not done with a schedule.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The settings are not valid.
    #[error(transparent)]
    Bad(#[from] BadRecurrence),
    /// Nothing would occur any more because of this field.
    #[error("{0}: all occurrences have passed; to save the schedule all the same, say past: keep")]
    Past(&'static str),
    /// There is no schedule of this name within reach.
    #[error("there is no schedule of this name")]
    NotFound,
    /// Another tenant has a schedule of this name.
    #[error("the name is that of a schedule which this caller may not see")]
    Taken,
    /// There are too many schedules.
    #[error("there are {0} schedules, and no more are accepted")]
    TooMany(u64),
    /// The record cannot be read: it can only be removed.
    #[error("the schedule cannot be read, and can only be removed: {0}")]
    Unreadable(String),
    /// Others work on the schedule. Nothing was changed; try again.
    #[error("the schedule is being looked at; try again shortly")]
    Busy,
    /// More instants have passed than the worker has judged yet. Nothing was changed; try again.
    #[error("the schedule has not caught up with the time it was not looked at; try again shortly")]
    Behind,
    /// A queue refused a message of a trigger or a backfill.
    #[error("the queue refused the message: {0:?}")]
    Refused(EnqueueRefusal),
    /// A backfill ended before all of its occurrences had entered. Repeat it with this id: none enters twice.
    #[error(
        "{why}; some of the occurrences may have entered: repeat it with the id {id}, and none enters twice"
    )]
    Interrupted {
        /// The id of the backfill, which was drawn if the caller gave none.
        id: String,
        /// The error that ended it.
        why: Box<ScheduleError>,
    },
    /// The store refused the record.
    #[error("the record was refused: {0}")]
    RecordRefused(ChangeRefusal),
    /// The store gave no answer; what was begun is completed once it does.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl From<NotWritten> for ScheduleError {
    fn from(why: NotWritten) -> Self {
        match why {
            NotWritten::Lost => ScheduleError::Busy,
            NotWritten::Refused(refusal) => ScheduleError::RecordRefused(refusal),
            NotWritten::NewRefused(refusal) => ScheduleError::Refused(refusal),
            NotWritten::Unknown(error) => ScheduleError::Call(error),
        }
    }
}
