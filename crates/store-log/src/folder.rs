//! The names in a data folder.

use std::fmt;

pub(crate) const LOCK: &str = "LOCK";
pub(crate) const MANIFEST: &str = "MANIFEST";
pub(crate) const MANIFEST_TEMP: &str = "MANIFEST.tmp";
/// A few reserved blocks, so that the manifest can be replaced when the disk is full.
pub(crate) const RESERVE: &str = "RESERVE";
pub(crate) const RESERVE_BYTES: u64 = 64 * 1024;
pub(crate) const JOURNAL: &str = "journal";
pub(crate) const RUNS: &str = "runs";
pub(crate) const STATE: &str = "state";

/// The number in the name of a segment, run or state; each is given once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileNo(pub(crate) u64);

/// The incarnation distinguishes the bytes of *this* segment or run from those that were at its place on the disk
/// before. It is a new random number each time: a message's body cannot imitate a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Incarnation(pub(crate) u64);

impl FileNo {
    pub(crate) fn next(self) -> FileNo {
        FileNo(self.0 + 1)
    }

    pub(crate) fn segment(self) -> String {
        format!("{JOURNAL}/{self}.log")
    }

    pub(crate) fn segment_temp(self) -> String {
        format!("{JOURNAL}/{self}.tmp")
    }

    pub(crate) fn run(self) -> String {
        format!("{RUNS}/{self}.run")
    }

    pub(crate) fn state(self) -> String {
        format!("{STATE}/{self}.state")
    }

    pub(crate) fn state_temp(self) -> String {
        format!("{STATE}/{self}.tmp")
    }

    pub(crate) fn run_temp(self) -> String {
        format!("{RUNS}/{self}.tmp")
    }

    /// The file in which the writer of a run stores sorted pieces.
    pub(crate) fn run_spill(self) -> String {
        format!("{RUNS}/{self}.spill.tmp")
    }
}

impl fmt::Display for FileNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:010}", self.0)
    }
}
