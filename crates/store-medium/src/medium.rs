//! Services of a medium for the owner of a shard.

use std::fmt;
use std::time::Duration;

use duewheel_core::store::{Level, StoreError};
use duewheel_core::{Epoch, MessageId};

use crate::fence::random;

/// The number of a file: no other file of the shard ever had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// The purpose of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A part of the journal. It has its name and its length first, and is written from its start on.
    Journal,
    /// A blob is written first, then it gets its name, and never changes.
    Blob,
}

/// Bytes at an offset of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The offset of the first byte.
    pub at: u64,
    /// 1 byte to [`MAX_PIECE`](crate::MAX_PIECE).
    pub bytes: Vec<u8>,
}

/// A file that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// The number of the file.
    pub id: FileId,
    /// The length of the file, as it was given with the name.
    pub bytes: u64,
}

/// The files of a shard on a medium, to read. Calls may block.
pub trait MediumFiles: fmt::Debug + Send + Sync + 'static {
    /// Reads bytes; those that were never written are zero.
    ///
    /// # Errors
    /// The medium does not answer.
    fn read(&self, file: FileId, at: u64, length: usize) -> Result<Vec<u8>, StoreError>;

    /// The file with a name.
    ///
    /// # Errors
    /// The medium does not answer.
    fn find(&self, name: &str) -> Result<Option<NamedFile>, StoreError>;

    /// The names that begin with these letters.
    ///
    /// # Errors
    /// The medium does not answer.
    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError>;
}

/// The files of a shard on a medium, for the one owner that has acquired it. Calls may block; they are made by several
/// threads, those that write the journal by one.
///
/// # Obligations
///
/// 1. **One pen.** Once a later owner has acquired the shard, no write to the journal, name or removal of this one takes
///    effect, whatever any clock says; the call fails with [`ErrorKind::Fenced`](duewheel_core::store::ErrorKind::Fenced).
/// 2. **An answer is final.** A call that has returned `Ok` has taken effect. A
///    call that has failed may have; a medium that repeats a call repeats the same bytes, and an older call never undoes
///    a newer one.
/// 3. **No gap.** What the medium loses is a suffix in the order of the calls. A write to the journal, a name and a
///    removal after such a loss fail: the manifest may list again what the owner believes to be replaced.
/// 4. **A name comes last.** No crash and no failover shows a name without the bytes that were written before it was
///    given.
/// 5. **What was never written is zero**, up to the length that came with the name.
/// 6. **A takeover keeps the age of the clocks.** What an owner writes to the journal before [`Medium::note_clocks`]
///    repeats clocks of an earlier owner, and changes nothing of what the next one is given as
///    [`Acquired::noted_ago`](crate::Acquired::noted_ago).
///
/// The suite in `conformance` checks them as far as a program can.
pub trait Medium: MediumFiles {
    /// The epoch of this owner: higher than that of each earlier one, also of those that the medium has lost.
    fn epoch(&self) -> Epoch;

    /// Whether this owner certainly still has the shard.
    ///
    /// # Errors
    /// Why it has not, or cannot be sure; for ever from then on, and no write to the journal is sent any more.
    fn check(&self) -> Result<(), StoreError>;

    /// How long it certainly has it without renewing its lease.
    fn lease_left(&self) -> Duration;

    /// The length of a lease.
    fn lease(&self) -> Duration;

    /// Writes pieces, which do not overlap; all of them are durable on return, at the level that is returned. A piece
    /// that begins where one of an earlier call does is at least as long: the header of a journal is always a piece of
    /// its own, because it is written again.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](duewheel_core::store::ErrorKind::Fenced) for an owner that was replaced. If certainly nothing
    /// was written, [`StoreError::nothing_from`] is set, to any position.
    fn write(&self, file: FileId, kind: FileKind, pieces: Vec<Piece>) -> Result<Level, StoreError>;

    /// Gives a file a name. A file that had it is removed in the same step.
    ///
    /// # Errors
    /// See [`Medium::write`].
    fn give_name(&self, name: &str, file: FileId, kind: FileKind, bytes: u64) -> Result<(), StoreError>;

    /// Removes a name and its file; `false` if there was none.
    ///
    /// # Errors
    /// See [`Medium::write`].
    fn remove(&self, name: &str) -> Result<bool, StoreError>;

    /// Removes a file that got no name.
    ///
    /// # Errors
    /// See [`Medium::write`].
    fn discard(&self, file: FileId) -> Result<(), StoreError>;

    /// Bytes that may still be written, as far as is known without asking. With none, no new message is taken.
    fn free_bytes(&self) -> u64 {
        u64::MAX / 4
    }

    /// The level that a write to the journal has at present, as far as is known without asking.
    fn level(&self) -> Level;

    /// Called with each new message's id before it is written. A medium that may be set back to an earlier state sees
    /// to it that no later owner gives such an id again.
    fn note_id(&self, id: MessageId) {
        let _ = id;
    }

    /// Called before each write to the journal that has clocks of this owner. From the first call on, every write to the
    /// journal sets the time from which [`Acquired::noted_ago`](crate::Acquired::noted_ago) counts; an earlier one sets it
    /// only on a shard whose journal was never written.
    fn note_clocks(&self);

    /// Gives the shard back, so that the next owner need not wait. `next_id` is set after an orderly end: nothing is
    /// written any more, and ids continue there.
    ///
    /// # Errors
    /// The medium does not answer; the lease then runs out.
    fn give_back(&self, next_id: Option<MessageId>) -> Result<(), StoreError>;

    /// Keeps all from opening the shard, for this reason, until an operator has given up what is lost. A medium on which no
    /// change is ever durable at [`Level::Quorum`] need not do anything.
    ///
    /// # Errors
    /// See [`Medium::write`].
    fn refuse(&self, why: &str) -> Result<(), StoreError> {
        let _ = why;
        Ok(())
    }

    /// Called when this owner has ended: nothing that it still does is reported. [`Medium::check`] fails from then on,
    /// for this reason if there was none before.
    fn ended(&self, why: StoreError);

    /// A number that was not given before and that cannot be guessed.
    ///
    /// # Errors
    /// The system gives no random bytes. For the name of a file a number that can be guessed is taken instead; the seed
    /// of a new store is not drawn, and the store is not made.
    fn unique(&self) -> Result<u64, StoreError> {
        random::<8>().map(u64::from_le_bytes)
    }

    /// Figures of the medium for people, as [`Store::figures`](duewheel_core::store::Store::figures).
    fn figures(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// A replacement of the nodes' secret in progress: both the new secret and the former one are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretRotation {
    /// Whether this call has begun it; otherwise an earlier one was interrupted, and its new secret is valid.
    pub is_new: bool,
    /// How long to wait before the end of the rotation: until then a node may know the former secret alone.
    pub wait: Duration,
}
