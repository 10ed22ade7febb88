//! The log store over a medium: a server that keeps pieces of files for the owner of a shard.
//!
//! * [`Medium`] says what a medium does, and lists its obligations.
//! * [`ReadOnlyFolder`] is a shard's folder to read, for checks and inspections.
//! * [`MediumStore`] is the store of one shard over it.
//! * [`RestoreTarget`] is a store to which a backup is restored.
//! * [`LeaseFence`] says whether the owner certainly still has the shard.
//!
//! `docs/media.md` shows how to write a medium; `docs/adr/0037-one-store-over-any-medium.md` has the decisions.

// Each public function that can fail lists its errors.
#![warn(clippy::missing_errors_doc)]

mod cache;
#[cfg(feature = "conformance")]
pub mod conformance;
mod disk;
mod ended;
mod ends;
mod fence;
mod format;
mod medium;
mod pieces;
mod reading;
mod restoring;
mod rotation;
mod store;

pub use cache::BlockCache;
pub use ended::EndedOwners;
pub use ends::{JournalEnds, LostChanges};
pub use fence::{LeaseFence, boot_ms, locked, millis, random};
pub use format::refused_format;
pub use medium::{FileId, FileKind, Medium, MediumFiles, NamedFile, Piece};
pub use pieces::{MAX_PIECE, lay_over};
pub use reading::ReadOnlyFolder;
pub use restoring::RestoreTarget;
pub use rotation::SecretRotation;
pub use store::{Acquired, FillFolder, MediumShared, MediumStore, quorum_lost};
