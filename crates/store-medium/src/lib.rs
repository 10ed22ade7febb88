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
mod settings;
mod store;

pub use disk::{BlockCache, MAX_PIECE, lay_over};
pub use fence::{EndedOwners, LeaseFence, boot_ms, hex, locked, millis, random, read_clocks};
pub use medium::{FileId, FileKind, Medium, MediumFiles, NamedFile, Piece, SecretRotation};
pub use settings::{BadOption, ROTATION_LEASES, fitted, name_in_use, option_differs};
pub use store::{
    Acquired, FillFolder, JournalEnds, LostChanges, MediumShared, MediumStore, ReadOnlyFolder, RestoreTarget,
    quorum_lost, refused_format,
};
