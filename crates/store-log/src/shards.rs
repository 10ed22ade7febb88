//! A data folder with several shards. Each shard is a data folder of its own in it:
//!
//! ```text
//! data/
//!   LOCK      flock; one owner of all shards
//!   SHARDS    how many there are; written when all of them exist
//!   0-of-4/   the folder of a shard: the names say how many there are, too
//!   1-of-4/
//!   ...
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use duewheel_core::id::ShardId;
use duewheel_core::store::{ErrorKind, MAX_SHARDS, StoreError};

use crate::disk::{Disk, FileAccess, HeldLock, LockKind, RealDisk};
use crate::fault::failed;
use crate::folder::MANIFEST;
use crate::owner::take_lock;

pub(crate) const SHARDS: &str = "SHARDS";
const SHARDS_TEMP: &str = "SHARDS.tmp";
/// The version of what `SHARDS` says.
const FORMAT: u32 = 1;
/// A `SHARDS` file is shorter than this.
const MAX_BYTES: u64 = 256;

/// The folders of the shards in one data folder, of which this process is the only owner.
#[derive(Debug)]
pub struct ShardFolders {
    root: PathBuf,
    shards: u32,
    is_complete: bool,
    _lock: Box<dyn HeldLock>,
}

/// What a folder says about its shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardCount {
    pub(crate) shards: u32,
    /// Whether all of them have existed.
    pub(crate) is_complete: bool,
}

/// The number of shards of a data folder, which never changes. `None`: there is no data folder yet.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if it has shards and it cannot be read how many, [`ErrorKind::Unavailable`] if the folder
/// cannot be read.
pub fn shards_in(dir: impl AsRef<Path>) -> Result<Option<u32>, StoreError> {
    let dir = dir.as_ref();
    let disk = RealDisk::new(dir);
    let shards = match count(&disk) {
        Ok(Some(count)) => Ok(Some(count.shards)),
        Ok(None) => exists(&disk, MANIFEST).map(|exists| exists.then_some(1)),
        Err(error) => Err(error),
    };
    shards.map_err(|error| named(dir, error))
}

/// The data folders that a data folder consists of: those of its shards, or itself.
///
/// # Errors
/// See [`shards_in`].
pub fn folders_in(dir: impl AsRef<Path>) -> Result<Vec<PathBuf>, StoreError> {
    let dir = dir.as_ref();
    let shards = count(&RealDisk::new(dir)).map_err(|error| named(dir, error))?;
    Ok(match shards {
        None => vec![dir.to_owned()],
        Some(ShardCount { shards, .. }) => (0..shards).map(|shard| dir.join(name(shard, shards))).collect(),
    })
}

/// Undoes the last step of making a data folder: it is not opened any more.
///
/// # Errors
/// [`ErrorKind::Unavailable`] if the disk returns an error.
pub fn spoil(dir: impl AsRef<Path>) -> Result<(), StoreError> {
    let disk = RealDisk::new(dir.as_ref());
    let name = if disk.open(SHARDS, FileAccess::Read).is_ok() { SHARDS } else { MANIFEST };
    disk.remove(name).map_err(failed("remove", name))
}

impl ShardFolders {
    /// Takes a data folder with this number of shards; it is created if it does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] if another process has it open, [`ErrorKind::Corrupt`] if a shard is missing or the folder
    /// has another number of shards, [`ErrorKind::Full`] or [`ErrorKind::Unavailable`] if the disk returns an error.
    pub fn open(dir: impl AsRef<Path>, shards: u32) -> Result<Self, StoreError> {
        let dir = dir.as_ref();
        Self::take(dir, shards).map_err(|error| named(dir, error))
    }

    fn take(dir: &Path, shards: u32) -> Result<Self, StoreError> {
        let disk = RealDisk::new(dir);
        disk.make_dir("").map_err(failed("make", ""))?;
        let lock = take_lock(&disk, LockKind::Exclusive)?;
        let is_complete = match count(&disk)? {
            Some(count) if count.shards != shards => {
                let what = format!("it has {} shards, not {shards}", count.shards);
                return Err(StoreError::new(ErrorKind::Corrupt, what));
            }
            Some(count) => count.is_complete,
            None if exists(&disk, MANIFEST)? => {
                let what = format!("it has one shard, not {shards}");
                return Err(StoreError::new(ErrorKind::Corrupt, what));
            }
            None => false,
        };
        if is_complete {
            whole(&disk, shards)?;
        }
        Ok(ShardFolders { root: dir.to_owned(), shards, is_complete, _lock: lock })
    }

    /// The data folder of a shard.
    pub fn folder(&self, shard: ShardId) -> PathBuf {
        self.root.join(name(shard.0, self.shards))
    }

    /// Notes that the stores of all shards exist: a missing one is damage from now on. Nothing may be accepted before.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] or [`ErrorKind::Unavailable`] if the disk returns an error.
    pub fn complete(&mut self) -> Result<(), StoreError> {
        if !self.is_complete {
            establish(&RealDisk::new(&self.root), self.shards).map_err(|error| named(&self.root, error))?;
            self.is_complete = true;
        }
        Ok(())
    }
}

/// The folders of the shards in a data folder, and their names in it.
pub(crate) fn disks(root: &Path, shards: u32) -> Vec<(String, Arc<dyn Disk>)> {
    let disk = |name: &str| Arc::new(RealDisk::new(&root.join(name))) as Arc<dyn Disk>;
    let names = (0..shards).map(|shard| name(shard, shards));
    names.map(|name| (name.clone(), disk(&name))).collect()
}

/// The name of a shard's folder.
pub(crate) fn name(shard: u32, shards: u32) -> String {
    format!("{shard}-of-{shards}")
}

/// What a folder says about its shards. `None`: it has none, so it is the folder of one store.
pub(crate) fn count(disk: &dyn Disk) -> Result<Option<ShardCount>, StoreError> {
    match disk.open(SHARDS, FileAccess::Read) {
        Ok(file) => {
            let size = file.size().map_err(failed("measure", SHARDS))?;
            let mut bytes = vec![0; usize::try_from(size.min(MAX_BYTES)).unwrap_or(0)];
            file.read_at(&mut bytes, 0).map_err(failed("read", SHARDS))?;
            let shards = read(&bytes).map_err(|what| StoreError::new(ErrorKind::Corrupt, what))?;
            Ok(Some(ShardCount { shards, is_complete: true }))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => of_names(disk),
        Err(error) => Err(failed("open", SHARDS)(error)),
    }
}

/// The number of shards that the names of folders say: the folder was being made when its process ended.
fn of_names(disk: &dyn Disk) -> Result<Option<ShardCount>, StoreError> {
    let names = match disk.list("") {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("list", "")(error)),
    };
    let mut numbers = names.iter().filter_map(|name| {
        let (shard, shards) = name.split_once("-of-")?;
        let (shard, shards): (u32, u32) = (shard.parse().ok()?, shards.parse().ok()?);
        (shard < shards && shards <= MAX_SHARDS).then_some(shards)
    });
    let Some(shards) = numbers.next() else { return Ok(None) };
    if numbers.any(|other| other != shards) {
        let what = format!("{SHARDS} is missing, and the names of its folders contradict each other");
        return Err(StoreError::new(ErrorKind::Corrupt, what));
    }
    Ok(Some(ShardCount { shards, is_complete: false }))
}

/// Whether the stores of all shards are there.
pub(crate) fn whole(disk: &dyn Disk, shards: u32) -> Result<(), StoreError> {
    for shard in 0..shards {
        let file = format!("{}/{MANIFEST}", name(shard, shards));
        if !exists(disk, &file)? {
            let what = format!("{file} is missing: the messages of this shard are not here");
            return Err(StoreError::new(ErrorKind::Corrupt, what));
        }
    }
    Ok(())
}

fn exists(disk: &dyn Disk, file: &str) -> Result<bool, StoreError> {
    match disk.open(file, FileAccess::Read) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed("open", file)(error)),
    }
}

/// Writes `SHARDS`, the last step of making the folder.
pub(crate) fn establish(disk: &dyn Disk, shards: u32) -> Result<(), StoreError> {
    let file = disk.create(SHARDS_TEMP).map_err(failed("create", SHARDS_TEMP))?;
    file.write_at(text(shards).as_bytes(), 0).map_err(failed("write", SHARDS_TEMP))?;
    file.sync_data().map_err(failed("sync", SHARDS_TEMP))?;
    disk.rename(SHARDS_TEMP, SHARDS).map_err(failed("make", SHARDS))?;
    disk.sync_dir("").map_err(failed("sync the names of", ""))
}

fn text(shards: u32) -> String {
    format!("format {FORMAT}\nshards {shards}\n")
}

/// The error says in words what is wrong.
fn read(bytes: &[u8]) -> Result<u32, String> {
    let damaged = || format!("{SHARDS} is damaged");
    let text = std::str::from_utf8(bytes).map_err(|_| damaged())?;
    let (format, rest) = text.split_once('\n').ok_or_else(damaged)?;
    match format.strip_prefix("format ").and_then(|format| format.parse::<u32>().ok()) {
        Some(FORMAT) => {}
        Some(other) => return Err(format!("{SHARDS} has format {other}; this version reads {FORMAT}")),
        None => return Err(damaged()),
    }
    let shards = rest.strip_prefix("shards ").and_then(|rest| rest.strip_suffix('\n'));
    let shards: Option<u32> = shards.and_then(|shards| shards.parse().ok());
    shards.filter(|shards| (2..=MAX_SHARDS).contains(shards)).ok_or_else(damaged)
}

/// The error with the folder's name.
pub(crate) fn named(dir: &Path, error: StoreError) -> StoreError {
    StoreError::new(error.kind(), format_args!("{}: {error}", dir.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{LogStore, Options};

    fn made(dir: &Path, shards: u32) -> ShardFolders {
        let mut folders = ShardFolders::open(dir, shards).unwrap();
        for shard in 0..shards {
            let options = Options { segment_bytes: 1 << 16, ..Options::default() };
            drop(
                LogStore::open(folders.folder(ShardId(shard)), options, std::sync::Arc::new(|| ())).unwrap(),
            );
        }
        folders.complete().unwrap();
        folders
    }

    fn refused<T: std::fmt::Debug>(result: Result<T, StoreError>, says: &str) -> ErrorKind {
        let error = result.unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        error.kind()
    }

    #[test]
    fn the_number_of_shards_is_fixed_when_the_folder_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        assert_eq!(shards_in(&data).unwrap(), None);
        let folders = made(&data, 3);
        assert_eq!(refused(ShardFolders::open(&data, 3), "another process"), ErrorKind::Fenced);
        drop(folders);
        assert_eq!(shards_in(&data).unwrap(), Some(3));
        refused(ShardFolders::open(&data, 2), "it has 3 shards, not 2");
        refused(LogStore::open(&data, Options::default(), std::sync::Arc::new(|| ())), "3 shards");
        drop(ShardFolders::open(&data, 3).unwrap());
        let single = dir.path().join("single");
        drop(LogStore::open(&single, Options::default(), std::sync::Arc::new(|| ())).unwrap());
        assert_eq!(shards_in(&single).unwrap(), Some(1));
        refused(ShardFolders::open(&single, 2), "it has one shard, not 2");
    }

    #[test]
    fn a_missing_shard_is_damage_and_an_interrupted_making_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        drop(made(dir.path(), 2));
        fs::rename(dir.path().join("1-of-2"), dir.path().join("away")).unwrap();
        let why = refused(ShardFolders::open(dir.path(), 2), "1-of-2/MANIFEST is missing");
        assert_eq!(why, ErrorKind::Corrupt);
        assert!(!dir.path().join("1-of-2").exists(), "nothing was made");
        fs::rename(dir.path().join("away"), dir.path().join("1-of-2")).unwrap();
        drop(ShardFolders::open(dir.path(), 2).unwrap());
        // Killed before it was complete.
        fs::remove_file(dir.path().join(SHARDS)).unwrap();
        fs::remove_dir_all(dir.path().join("1-of-2")).unwrap();
        refused(ShardFolders::open(dir.path(), 4), "it has 2 shards, not 4");
        drop(made(dir.path(), 2));
        assert_eq!(shards_in(dir.path()).unwrap(), Some(2));
        fs::create_dir(dir.path().join("3-of-4")).unwrap();
        fs::remove_file(dir.path().join(SHARDS)).unwrap();
        refused(shards_in(dir.path()), "contradict");
    }

    #[test]
    fn a_file_that_is_damaged_is_never_taken_for_another_number() {
        let whole = text(4);
        assert_eq!(read(whole.as_bytes()), Ok(4));
        for cut in 0..whole.len() {
            assert!(read(&whole.as_bytes()[..cut]).is_err(), "{cut}");
        }
        for bad in ["", "format 1\nshards 1\n", "format 1\nshards 1025\n", "format 1\nshards 4\n\n", "\0\0"] {
            assert!(read(bad.as_bytes()).unwrap_err().contains("damaged"), "{bad:?}");
        }
        assert!(read(b"format 2\nshards 4\n").unwrap_err().contains("format 2"));
    }
}
