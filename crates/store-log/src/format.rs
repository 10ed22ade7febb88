//! The format of a data folder: its version, the names of its files, and numbers in them.

use std::fmt;
use std::io;
use std::sync::Arc;

use crc32c::{crc32c, crc32c_append};
use duewheel_core::store::{ErrorKind, StoreError};

use crate::disk::{Disk, DiskFile, FileAccess, HeldLock, LockKind};
use crate::fault::{Damage, ReadFault, failed};

/// The version of the bytes of every file. Later versions add tagged fields to records without a new one.
pub(crate) const FORMAT: u32 = 1;

/// How each file of a build before 0.1.0 began.
const BEFORE_RELEASE: &[u8] = b"dw-";

/// The end of a refusal of data that a build before 0.1.0 has written: the reason, and how to move the messages.
pub const OF_AN_EARLIER_BUILD: &str = "it was written by a build before 0.1.0, whose formats are not read: \
    write its messages to a file with `duewheel export` of that build, and read the file with `duewheel import`";

/// Whether a file is of a build before 0.1.0.
pub(crate) fn is_before_release(bytes: &[u8]) -> bool {
    bytes.starts_with(BEFORE_RELEASE)
}

/// Checks the start of a file, 12 bytes: what it is, and its version. The error is the offset of what is wrong, and what
/// that is; `kind` names the file.
pub(crate) fn check(bytes: &[u8], magic: [u8; 8], kind: &str) -> Result<(), (u64, String)> {
    let (own, version) = bytes.split_at(8);
    if is_before_release(own) {
        return Err((0, OF_AN_EARLIER_BUILD.into()));
    }
    if own != magic {
        return Err((0, format!("this is not {kind} of duewheel")));
    }
    match u32_at(version, 0) {
        FORMAT => Ok(()),
        version => Err((8, unknown(version))),
    }
}

pub(crate) fn unknown(version: u32) -> String {
    format!(
        "format version {version} is unknown to this program, which knows version {FORMAT}: use the program that wrote it"
    )
}

// Fixed-width little-endian numbers at given offsets.

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut le = [0; 4];
    le.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(le)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut le = [0; 8];
    le.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(le)
}

pub(crate) fn u128_at(bytes: &[u8], at: usize) -> u128 {
    let mut le = [0; 16];
    le.copy_from_slice(&bytes[at..at + 16]);
    u128::from_le_bytes(le)
}

pub(crate) fn set_u32(bytes: &mut [u8], at: usize, n: u32) {
    bytes[at..at + 4].copy_from_slice(&n.to_le_bytes());
}

pub(crate) fn set_u64(bytes: &mut [u8], at: usize, n: u64) {
    bytes[at..at + 8].copy_from_slice(&n.to_le_bytes());
}

/// `n` rounded up to a multiple of eight.
pub(crate) fn align8(n: usize) -> usize {
    n.next_multiple_of(8)
}

// The names in a data folder.

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

/// Takes the folder's lock, or names its owner.
pub(crate) fn take_lock(disk: &dyn Disk, hold: LockKind) -> Result<Box<dyn HeldLock>, StoreError> {
    disk.lock(LOCK, hold).map_err(|error| {
        if error.kind() == io::ErrorKind::ResourceBusy {
            let what = "this process has this data folder open already: share its handle, or close it first";
            return StoreError::new(ErrorKind::Fenced, what);
        }
        if error.kind() != io::ErrorKind::WouldBlock {
            return failed("lock", LOCK)(error);
        }
        let owner = owner(disk).map_or(String::new(), |pid| format!(" (process {pid})"));
        StoreError::new(ErrorKind::Fenced, format_args!("another process{owner} has this data folder open"))
    })
}

/// Keeps owners out of a folder that is only read; a copy has no lock.
pub(crate) fn lock_if_any(disk: &dyn Disk) -> Result<Option<Box<dyn HeldLock>>, StoreError> {
    let names = disk.list("").map_err(failed("list", ""))?;
    match names.iter().any(|name| name == LOCK) {
        true => take_lock(disk, LockKind::Shared).map(Some),
        false => Ok(None),
    }
}

fn owner(disk: &dyn Disk) -> Option<u32> {
    let file = disk.open(LOCK, FileAccess::Read).ok()?;
    let mut text = vec![0; usize::try_from(file.size().ok()?.min(20)).ok()?];
    file.read_at(&mut text, 0).ok()?;
    String::from_utf8(text).ok()?.trim().parse().ok()
}

/// The checksum of a head, or of a file that is one, whose bytes 12 to 15 have it.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    crc32c_append(crc32c(&bytes[..12]), &bytes[16..])
}

/// Completes the head of a block of a run or of a state: everything but its payload, which fills it up to `payload`.
pub(crate) fn seal_block(bytes: &mut [u8], payload: u32, kind: u8, entries: u32, own: (Incarnation, u64)) {
    set_u32(bytes, 4, payload);
    bytes[8..12].copy_from_slice(&[kind, 0, 0, 0]);
    set_u32(bytes, 12, entries);
    set_u64(bytes, 16, own.0.0);
    set_u64(bytes, 24, own.1);
    let crc = crc32c(&bytes[4..]);
    set_u32(bytes, 0, crc);
}

/// Checks a block of a file of this incarnation that starts there. Returns its kind, and how many entries it has.
pub(crate) fn check_block(
    bytes: &[u8],
    incarnation: Incarnation,
    at: u64,
) -> Result<(u8, u32), &'static str> {
    if u32_at(bytes, 0) != crc32c(&bytes[4..]) {
        return Err("the block's checksum does not match");
    }
    if u64_at(bytes, 16) != incarnation.0 || u64_at(bytes, 24) != at || bytes[9..12] != [0; 3] {
        return Err("the block belongs to another place");
    }
    Ok((bytes[8], u32_at(bytes, 12)))
}

/// Opens a file to read it, if it is there.
pub(crate) fn open_if_any(disk: &dyn Disk, name: &str) -> Result<Option<Arc<dyn DiskFile>>, StoreError> {
    match disk.open(name, FileAccess::Read) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("open", name)(error)),
    }
}

/// Opens a file that the manifest lists with this size, which must be one that such a file can have.
pub(crate) fn open_listed(
    disk: &dyn Disk,
    name: &str,
    kind: &str,
    bytes: u64,
    is_possible: impl FnOnce(u64) -> bool,
) -> Result<Arc<dyn DiskFile>, ReadFault> {
    let Some(file) = open_if_any(disk, name)? else {
        let what = format!("the manifest lists this {kind}, which is missing");
        return Err(Damage::new(name, 0, what).into());
    };
    let size = file.size().map_err(failed("measure", name))?;
    if size != bytes || !is_possible(size) {
        let what = format!("the file has {size} bytes, and should have {bytes}");
        return Err(Damage::new(name, size.min(bytes), what).into());
    }
    Ok(file)
}
