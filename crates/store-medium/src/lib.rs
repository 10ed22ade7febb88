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

#[cfg(feature = "conformance")]
pub mod conformance;
mod disk;
mod fence;
mod medium;
mod pieces;
mod reading;
mod store;

pub use disk::BlockCache;
pub use fence::EndedOwners;
pub use fence::{LeaseFence, boot_ms, locked, millis, random};
pub use medium::SecretRotation;
pub use medium::{FileId, FileKind, Medium, MediumFiles, NamedFile, Piece};
pub use pieces::{MAX_PIECE, lay_over};
pub use reading::ReadOnlyFolder;
pub use reading::RestoreTarget;
pub use store::refused_format;
pub use store::{Acquired, FillFolder, MediumShared, MediumStore, quorum_lost};
pub use store::{JournalEnds, LostChanges};
