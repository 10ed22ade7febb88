//! Options and refusals that stores on a medium have in common.

use std::fmt;

use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_store_log::{Options, SyncMode};

/// An invalid option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadOption {
    field: &'static str,
    what: String,
}

impl BadOption {
    /// An option of this name, and what is wrong with its value.
    pub fn new(field: &'static str, what: impl fmt::Display) -> Self {
        BadOption { field, what: what.to_string() }
    }

    /// The name of the option.
    pub fn field(&self) -> &'static str {
        self.field
    }
}

impl fmt::Display for BadOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.what)
    }
}

impl std::error::Error for BadOption {}

/// The number of leases after which every node has read a new secret: each reads it four times a lease, and a node that
/// was cut off for a whole lease reads it before it talks to others again.
pub const ROTATION_LEASES: u32 = 2;

/// A segment has room for the largest group and this much more.
const GROUP_MARGIN: u64 = 1024 * 1024;

/// Options of a log store on a medium that takes segments of `segment_bytes`, and a journal and runs of at most these
/// sizes. A segment is larger if the largest group is.
pub fn fitted(log: Options, segment_bytes: u64, journal_bytes: u64, run_bytes: u64) -> Options {
    let segment_bytes = segment_bytes.max(log.max_group_bytes.saturating_add(GROUP_MARGIN));
    Options {
        sync: SyncMode::Fsync,
        segment_bytes,
        small_segment_bytes: segment_bytes,
        journal_bytes: log.journal_bytes.min(journal_bytes),
        run_bytes: log.run_bytes.min(run_bytes),
        readers: 1,
        ..log
    }
}

/// The refusal of a node whose name another one has, or had until a moment ago: it is free in so many milliseconds.
pub fn name_in_use(name: &str, left_ms: impl fmt::Display) -> StoreError {
    let what = format_args!("a node {name:?} is alive, or was: its name is free in {left_ms} ms");
    StoreError::new(ErrorKind::Fenced, what)
}

/// The refusal of a node with another value of an option, in milliseconds, than the living ones.
pub fn option_differs(option: &str, theirs: impl fmt::Display, own: impl fmt::Display) -> StoreError {
    let what = format_args!(
        "the nodes that take part have {option} {theirs}ms, and this one {own}ms: it must be the same at all"
    );
    StoreError::new(ErrorKind::Corrupt, what)
}
