//! What goes wrong with a disk, and what has.

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing.
    Fine,
    /// This call and all behind it: the machine stops in the middle of it.
    HaltAt(u64),
    /// This call only. A write that fails has written a part.
    FailAt(u64),
    /// The same, for want of room.
    FullAt(u64),
    /// This one of the calls that only look.
    BlindAt(u64),
    /// The next write or sync of a file in this folder.
    FailNext(&'static str),
    /// Every write or sync of a file in this folder, until another plan is made. (The next one alone may be a background
    /// worker's, which harms nothing and is tried again.)
    FailAll(&'static str),
    /// Now and then, a call of any kind.
    Sometimes(Rates),
}

/// How often calls fail: once in so many; 0 is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Writes, of which a part is then written.
    pub write: u64,
    /// Writes that write a part at first, and the rest when they are asked again, as `write(2)` may.
    pub short: u64,
    /// Syncs of files: a part is written, and the rest never is.
    pub sync: u64,
    /// Allocating, and making, renaming, removing and syncing names.
    pub name: u64,
    /// Opening and listing.
    pub open: u64,
    /// Reading.
    pub read: u64,
}

/// What a broken store would make of a sound disk, without a change to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Every so many-th sync of a file is left out.
    SkipSync(u64),
    /// Files of this folder are not synced.
    SkipSyncIn(&'static str),
    /// Names are never synced.
    NoDirSync,
    /// A sync that has failed is asked for again, which "succeeds".
    RetrySync,
    /// The rest of a short write is not written.
    ShortWrite,
}

/// What has really happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Calls that failed.
    pub failed: u64,
    /// Of these, syncs of files.
    pub failed_syncs: u64,
    /// Calls refused for want of room.
    pub full: u64,
    /// Writes that came in two parts.
    pub short: u64,
    /// Bytes that a power loss took, and changes of names.
    pub lost_bytes: u64,
    /// Changes of names that a power loss took.
    pub lost_names: u64,
    /// Panics.
    pub panics: u64,
    /// Calls that met a [`Trouble`] of their folder.
    pub troubled: u64,
}

/// Files of some folders that cannot be written for a while, beside whatever else goes wrong; removing and renaming work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// How the names begin.
    pub folders: &'static [&'static str],
    /// What those who make, allocate, write or sync such a file are told.
    pub denial: Denial,
    /// It meets one call in so many; 1 is all.
    pub one_in: u64,
}

/// How a disk refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// EIO; of a write a part is written.
    Failed,
    /// ENOSPC, whatever is free; syncs work.
    Full,
}

impl Trouble {
    /// Whether a call that changes something meets it.
    pub(crate) fn meets(&self, call: &str, name: &str) -> bool {
        let concerns = match self.denial {
            Denial::Failed => matches!(call, "create" | "allocate" | "write" | "sync"),
            Denial::Full => matches!(call, "create" | "allocate" | "write"),
        };
        concerns && self.folders.iter().any(|folder| name.starts_with(folder))
    }
}

/// Which unsynced bytes, lengths and names survive the end of the machine's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivors {
    /// None.
    None,
    /// All, as after kill -9: the cache stays, and what is not synced still is not.
    All,
    /// Any part.
    Some,
}

/// What a call is about.
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
