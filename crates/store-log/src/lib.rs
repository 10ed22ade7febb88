// Each public function that can fail lists its errors.
#![warn(clippy::missing_errors_doc)]

//! The embedded log store: a journal with group commit, and sorted runs of waiting messages.
//!
//! ```text
//! data/
//!   LOCK               flock; one owner
//!   MANIFEST           which files count; replaced atomically
//!   RESERVE            a few blocks for the next manifest on a full disk
//!   journal/<no>.log   segments: every change in commit order
//!   runs/<no>.run      sorted files with the messages that the journal does not hold any more
//!   state/<no>.state   the books of all queues as of the last cut, and what is gone of the runs: all of it, and deltas
//! ```
//!
//! A folder with several shards holds one such folder for each; see `shards.rs`. `docs/format.md` describes the bytes,
//! `docs/adr/0002-journal.md` and `docs/adr/0005-runs.md` the decisions. [`duewheel_core::store::Store`] defines the
//! guarantees; this store runs its conformance suite.

mod background;
mod backup;
mod budget;
pub mod disk;
mod fault;
mod figures;
mod find;
mod flush;
mod format;
mod journal;
mod load;
mod manifest;
mod mem;
mod merge;
mod merging;
mod options;
mod pool;
mod readers;
mod run;
mod salvage;
mod shards;
mod shared;
mod state;
mod store;
mod verify;
mod view;

pub use background::Hands;
pub use backup::{Backup, BackupReport, Destination, EmptyFolder, FolderProblem};
pub use budget::MemoryBudget;
pub use fault::Damage;
pub use format::OF_AN_EARLIER_BUILD;
pub use options::{AtSegmentEnd, Options, SyncMode, WorkMode};
pub use pool::WorkerPool;
pub use salvage::{Loss, SalvageReport, salvage, salvage_from, salvage_shards};
pub use shards::{ShardFolders, folders_in, shards_in};
pub use shared::Worked;
pub use store::LogStore;
pub use verify::{
    CheckedBackup, Inspected, VerifyReport, copy_shards, inspect_on, restore, restore_then, verify, verify_on,
};
