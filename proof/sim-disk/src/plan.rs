//! The faults of a disk, planned and observed.

/// The planned faults of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing.
    Fine,
    /// This call and all later ones: the machine stops in the middle of it.
    HaltAt(u64),
    /// This call only. A write that fails has written a part.
    FailAt(u64),
    /// This call only, because the disk is full.
    FullAt(u64),
    /// This call of those that only read.
    BlindAt(u64),
    /// The next write or sync of a file in this folder.
    FailNext(&'static str),
    /// Every write or sync of a file in this folder, until the plan changes. (If only the next one failed, it may be a
    /// background worker's, which is harmless and is tried again.)
    FailAll(&'static str),
    /// Now and then, a call of any kind.
    Sometimes(Rates),
}

/// How often calls fail: one of this number; 0 is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Writes, of which a part is then written.
    pub write: u64,
    /// Writes that write a part at first, and the rest when they are repeated, as `write(2)` may.
    pub short: u64,
    /// Syncs of files: a part is written, and the rest never is.
    pub sync: u64,
    /// Allocations, and creating, renaming, removing and syncing names.
    pub name: u64,
    /// Opening and listing.
    pub open: u64,
    /// Reading.
    pub read: u64,
}

/// False success, as a broken store would cause it on a sound disk, without a change to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// One sync of a file in this number is left out.
    SkipSync(u64),
    /// Files of this folder are not synced.
    SkipSyncIn(&'static str),
    /// Names are never synced.
    NoDirSync,
    /// A sync that has failed is repeated, which "succeeds".
    RetrySync,
    /// The rest of a short write is not written.
    ShortWrite,
}

/// The faults that have really happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Calls that failed.
    pub failed: u64,
    /// Of these, syncs of files.
    pub failed_syncs: u64,
    /// Calls refused because the disk is full.
    pub full: u64,
    /// Writes that were made in two parts.
    pub short: u64,
    /// Bytes that a power loss took.
    pub lost_bytes: u64,
    /// Changes of names that a power loss took.
    pub lost_names: u64,
    /// Panics.
    pub panics: u64,
    /// Calls that met a [`Trouble`] of their folder.
    pub troubled: u64,
}

/// Files of some folders that cannot be written for a while, beside other faults; removing and renaming work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The beginnings of the names.
    pub folders: &'static [&'static str],
    /// The error of creating, allocating, writing or syncing such a file.
    pub denial: Denial,
    /// It affects one call in this number; 1 is all.
    pub one_in: u64,
}

/// The errors of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// EIO; of a write a part is written.
    Failed,
    /// ENOSPC, whatever is free; syncs work.
    Full,
}

impl Trouble {
    /// Whether it affects a call that changes something.
    pub(crate) fn meets(&self, call: &str, name: &str) -> bool {
        let concerns = match self.denial {
            Denial::Failed => matches!(call, "create" | "allocate" | "write" | "sync"),
            Denial::Full => matches!(call, "create" | "allocate" | "write"),
        };
        concerns && self.folders.iter().any(|folder| name.starts_with(folder))
    }
}

/// The unsynced bytes, lengths and names that survive the end of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivors {
    /// None.
    None,
    /// All, as after kill -9: the cache stays, and unsynced data is still unsynced.
    All,
    /// Any part.
    Some,
}

/// The target of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Write,
    Sync,
    Name,
    Open,
    Read,
}

impl Rates {
    pub(crate) fn of(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Write => self.write,
            Kind::Sync => self.sync,
            Kind::Name => self.name,
            Kind::Open => self.open,
            Kind::Read => self.read,
        }
    }
}
