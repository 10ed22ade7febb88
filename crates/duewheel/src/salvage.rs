//! Making a data folder from a damaged one.
//!
//! The log store reads and writes the data. As after a restore, this module ensures that no lease token of the original
//! is accepted.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_store_log::SalvageReport;
use duewheel_store_log::disk::{Disk, RealDisk};

use crate::restore::end_tokens;

/// The result of a salvage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// The content of the new folder, and the losses.
    pub report: SalvageReport,
    /// The number of messages that had a lease token, which is no longer accepted.
    pub tokens_ended: u64,
}

/// Makes a data folder in `dir`, which must not exist, from everything in a damaged one that can be proved.
///
/// `src` is never written to. [`SalvageReport::losses`] lists what is lost, and what may be delivered again because the
/// record of its settlement is lost. The folder is made under the name `dir` with the suffix `.partial`, and renamed
/// when it is complete: after a crash, remove the partial folder.
///
/// # Errors
/// [`Fenced`](ErrorKind::Fenced) if a process has `src` open, [`Corrupt`](ErrorKind::Corrupt) if there is nothing in it
/// to start from, [`Full`](ErrorKind::Full) or [`Unavailable`](ErrorKind::Unavailable) if a disk returns an error, or
/// if `dir` or its partial folder exists. Damage is not an error.
pub fn salvage(src: impl AsRef<Path>, dir: impl AsRef<Path>) -> Result<Salvaged, StoreError> {
    let (src, dir) = (src.as_ref(), dir.as_ref());
    let above = dir.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let (Ok(above), Ok(src)) = (above.canonicalize(), src.canonicalize())
        && above.starts_with(&src)
    {
        let what = format!("{} is inside of {}, which is not written to", dir.display(), src.display());
        return Err(StoreError::new(ErrorKind::Unavailable, what));
    }
    salvage_to(dir, |partial| duewheel_store_log::salvage(src, partial))
}

/// Salvages like [`salvage`], from the folders of all shards of a store, wherever they lie: those of Redis or
/// PostgreSQL, for example. No process may own a shard until this has returned.
///
/// # Errors
/// See [`salvage`].
pub fn salvage_shards(shards: &[Arc<dyn Disk>], dir: impl AsRef<Path>) -> Result<Salvaged, StoreError> {
    salvage_to(dir.as_ref(), |partial| duewheel_store_log::salvage_shards(shards, partial))
}

/// Makes a folder under another name, and gives it its name when it is complete.
fn salvage_to(
    dir: &Path,
    make: impl FnOnce(&Path) -> Result<SalvageReport, StoreError>,
) -> Result<Salvaged, StoreError> {
    let failed = |doing: &str, error: std::io::Error| {
        let what = format!("cannot {doing} {}: {error}", dir.display());
        StoreError::new(ErrorKind::Unavailable, what)
    };
    if dir.symlink_metadata().is_ok() {
        return Err(StoreError::new(ErrorKind::Unavailable, format!("{} exists", dir.display())));
    }
    let partial = partial(dir);
    let report = make(&partial)?;
    let tokens_ended = end_tokens(&partial)?;
    fs::rename(&partial, dir).map_err(|error| failed("make", error))?;
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    RealDisk::new(parent).sync_dir("").map_err(|error| failed("sync the name of", error))?;
    Ok(Salvaged { report, tokens_ended })
}

/// The name of the folder until it is complete.
fn partial(dir: &Path) -> PathBuf {
    let mut name: OsString = dir.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}
