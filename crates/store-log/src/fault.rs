//! Damage in the files of a data folder, with file and offset; locks that a panic does not poison.

use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use duewheel_core::store::{ErrorKind, StoreError};

use crate::disk::FencedOut;

/// A damaged place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file, relative to the data folder.
    pub file: String,
    /// The offset of its first byte.
    pub offset: u64,
    /// Description of the damage.
    pub what: String,
}

impl Damage {
    pub(crate) fn new(file: impl Into<String>, offset: u64, what: impl Into<String>) -> Self {
        Damage { file: file.into(), offset, what: what.into() }
    }

    /// This damage, seen from the folder around this one.
    pub(crate) fn inside(self, folder: &str) -> Self {
        Damage { file: format!("{folder}/{}", self.file), ..self }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}: {}", self.file, self.offset, self.what)
    }
}

/// Why a read failed: damage, or an error of the disk.
#[derive(Clone, Debug)]
pub(crate) enum ReadFault {
    Damaged(Damage),
    Failed(StoreError),
    /// A look-up would bring more messages into memory than its bound. The caller that set the bound repeats it with
    /// fewer messages.
    TooMuch,
    /// A look-up that does not wait for the medium has met a block that is not in memory.
    NotAtHand,
}

impl ReadFault {
    /// This fault, seen from the folder around this one.
    pub(crate) fn inside(self, folder: &str) -> Self {
        match self {
            ReadFault::Damaged(problem) => ReadFault::Damaged(problem.inside(folder)),
            ReadFault::Failed(error) => {
                ReadFault::Failed(StoreError::new(error.kind(), format_args!("{folder}: {error}")))
            }
            ReadFault::TooMuch => ReadFault::TooMuch,
            ReadFault::NotAtHand => ReadFault::NotAtHand,
        }
    }
}

/// Keeps damage, and goes on; any other fault is the result.
pub(crate) fn note<T>(
    result: Result<T, ReadFault>,
    damage: &mut Vec<Damage>,
) -> Result<Option<T>, StoreError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(ReadFault::Damaged(problem)) => {
            damage.push(problem);
            Ok(None)
        }
        Err(error @ (ReadFault::Failed(_) | ReadFault::TooMuch | ReadFault::NotAtHand)) => Err(error.into()),
    }
}

impl From<Damage> for ReadFault {
    fn from(problem: Damage) -> Self {
        ReadFault::Damaged(problem)
    }
}

impl From<StoreError> for ReadFault {
    fn from(error: StoreError) -> Self {
        ReadFault::Failed(error)
    }
}

impl From<ReadFault> for StoreError {
    fn from(trouble: ReadFault) -> Self {
        match trouble {
            ReadFault::Damaged(problem) => StoreError::new(ErrorKind::Corrupt, problem),
            ReadFault::Failed(error) => error,
            ReadFault::TooMuch => {
                let what = "a bug: a look-up without a limit of bytes has reached one";
                StoreError::new(ErrorKind::Closed, what)
            }
            ReadFault::NotAtHand => StoreError::new(
                ErrorKind::Closed,
                "a bug: a read that may wait for the medium has not waited",
            ),
        }
    }
}

/// Makes the error of a failed operation on a file.
pub(crate) fn failed<'a>(doing: &'a str, name: &'a str) -> impl FnOnce(io::Error) -> StoreError + 'a {
    move |error| {
        let kind = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Full,
            _ if error.get_ref().is_some_and(|cause| cause.is::<FencedOut>()) => ErrorKind::Fenced,
            _ => ErrorKind::Unavailable,
        };
        if error.kind() == io::ErrorKind::NotADirectory {
            return StoreError::new(kind, "this is a file, or lies in one; name a folder");
        }
        let name = if name.is_empty() { "the data folder" } else { name };
        StoreError::new(kind, format_args!("cannot {doing} {name}: {error}"))
    }
}

// Locks that a panic does not poison.

/// Takes a lock. A panic of a worker poisons the store, not its locks: the data that they guard is consistent between
/// any two lines.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
