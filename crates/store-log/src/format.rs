//! The format of a data folder: which files are its own, and of which version.

use crate::le::u32_at;

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
