//! A data folder with several shards. Each shard is a data folder of its own in it:
//!
//! ```text
//! data/
//!   LOCK      flock; one owner of all shards
//!   SHARDS    how many there are, and an id; written when all of them exist
//!   0-of-4/   the folder of a shard: the names say how many there are, too
//!     SHARD   which one it is, and the id of the data folder
//!   1-of-4/
//!   ...
//! ```
//!
//! Ids, keys and tokens encode their shard, so a shard in the place of another, or of another data folder, would lose
//! and double messages: it is refused.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use duewheel_core::Lsn;
use duewheel_core::id::ShardId;
use duewheel_core::store::{ErrorKind, Ledger, MAX_SHARDS, StoreError};

use crate::disk::{Disk, HeldLock, LockKind, RealDisk};
use crate::fault::{ReadFault, failed};
use crate::format::{self, FORMAT, MANIFEST, OF_AN_EARLIER_BUILD, take_lock};
use crate::journal::replay;
use crate::manifest::Manifest;

pub(crate) const SHARDS: &str = "SHARDS";
const SHARD: &str = "SHARD";
/// In a folder to which a copy is being restored or made, from the first step to the last.
const UNFINISHED: &str = "UNFINISHED";
/// The first line of `SHARDS` and `SHARD`, before the version of the data folder's format.
const FIRST_LINE: &str = "duewheel ";
/// The first line in a build before 0.1.0.
const BEFORE_RELEASE: &str = "format ";
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

/// The number of shards of a folder, and its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardCount {
    pub(crate) shards: u32,
    /// Whether all of them have existed.
    pub(crate) is_complete: bool,
    /// The id of the data folder, which its shards know; it has one when it is complete.
    pub(crate) id: Option<u64>,
}

impl ShardCount {
    /// The number of files that say what the folders are.
    pub(crate) fn files(&self) -> u64 {
        1 + if self.id.is_some() { u64::from(self.shards) } else { 0 }
    }
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
        Ok(None) => alone(&disk).and_then(|()| exists(&disk, MANIFEST)).map(|exists| exists.then_some(1)),
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
    folders_of(&RealDisk::new(dir), dir).map_err(|error| named(dir, error))
}

fn folders_of(disk: &dyn Disk, dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let Some(count) = count(disk)? else { return Ok(vec![dir.to_owned()]) };
    agreed(disk, &count)?;
    Ok((0..count.shards).map(|shard| dir.join(name(shard, count.shards))).collect())
}

/// Begins to make a data folder in an empty one: until [`finish`] nothing opens it by its name, reads it or copies it.
pub(crate) fn begin(disk: &dyn Disk) -> Result<(), StoreError> {
    disk.create(UNFINISHED).map_err(failed("create", UNFINISHED))?;
    disk.sync_dir("").map_err(failed("sync the names of", ""))
}

/// Makes a data folder valid, as the last step.
pub(crate) fn finish(disk: &dyn Disk) -> Result<(), StoreError> {
    disk.remove(UNFINISHED).map_err(failed("remove", UNFINISHED))?;
    disk.sync_dir("").map_err(failed("sync the names of", ""))
}

/// Checks that no process has begun to make the folder, and was interrupted.
pub(crate) fn finished(disk: &dyn Disk) -> Result<(), StoreError> {
    match exists(disk, UNFINISHED)? {
        false => Ok(()),
        true => {
            let what = "a restore or a copy to this folder has not ended: remove it and start again";
            Err(StoreError::new(ErrorKind::Corrupt, what))
        }
    }
}

impl ShardFolders {
    /// Takes a data folder with this number of shards; it is created if it does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] if another process has it open, [`ErrorKind::Corrupt`] if a shard is missing, the folder
    /// is a part of a copy, or it has another number of shards, [`ErrorKind::Full`] or [`ErrorKind::Unavailable`] if the
    /// disk returns an error.
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
            Some(count) => {
                if count.is_complete {
                    whole(&disk, shards)?;
                } else {
                    unused(dir, shards)?;
                }
                agreed(&disk, &count)?;
                count.is_complete
            }
            None if exists(&disk, MANIFEST)? => {
                let what = format!("it has one shard, not {shards}");
                return Err(StoreError::new(ErrorKind::Corrupt, what));
            }
            None => false,
        };
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

/// Reads the number of shards of a folder. `None`: it has none, so it is the folder of one store.
pub(crate) fn count(disk: &dyn Disk) -> Result<Option<ShardCount>, StoreError> {
    finished(disk)?;
    let Some(text) = small(disk, SHARDS)? else { return of_names(disk) };
    let (shards, id) = read(text.as_bytes()).map_err(|what| StoreError::new(ErrorKind::Corrupt, what))?;
    Ok(Some(ShardCount { shards, is_complete: true, id: Some(id) }))
}

/// Whether `SHARDS` is whole, and names a format that this program does not know.
pub(crate) fn is_of_other_format(disk: &dyn Disk) -> Result<bool, StoreError> {
    let text = small(disk, SHARDS)?.unwrap_or_default();
    let version = text.lines().next().and_then(|line| line.strip_prefix(FIRST_LINE)?.parse::<u32>().ok());
    Ok(text.starts_with(BEFORE_RELEASE) || version.is_some_and(|version| version != FORMAT))
}

/// The content of a small file; `None` if it is not there.
fn small(disk: &dyn Disk, name: &str) -> Result<Option<String>, StoreError> {
    let Some(file) = format::open_if_any(disk, name)? else { return Ok(None) };
    let size = file.size().map_err(failed("measure", name))?;
    let mut bytes = vec![0; usize::try_from(size.min(MAX_BYTES)).unwrap_or(0)];
    file.read_at(&mut bytes, 0).map_err(failed("read", name))?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Checks that a folder is that of a store, and not that of a shard in a data folder.
pub(crate) fn alone(disk: &dyn Disk) -> Result<(), StoreError> {
    match small(disk, SHARD)? {
        None => Ok(()),
        Some(text) => {
            let which =
                read_shard(&text).map_or(String::new(), |(shard, shards, _)| format!(" {shard} of {shards}"));
            let what = format!("it is the folder of shard{which} of a data folder: open that one");
            Err(StoreError::new(ErrorKind::Corrupt, what))
        }
    }
}

/// A folder that is not what its name says.
pub(crate) struct Stranger {
    /// The file that says so.
    pub(crate) file: String,
    /// The mismatch or the damage.
    pub(crate) what: String,
    /// Whether it is the folder of another shard, and not only damaged.
    pub(crate) is_another: bool,
}

/// Checks that each folder is that of the shard whose name it has, and of this data folder.
pub(crate) fn agreed(disk: &dyn Disk, count: &ShardCount) -> Result<(), StoreError> {
    strangers(disk, count).into_iter().next().map_or(Ok(()), |stranger| Err(stranger.into()))
}

/// The folders that are not what their names say.
pub(crate) fn strangers(disk: &dyn Disk, count: &ShardCount) -> Vec<Stranger> {
    let mut strangers = Vec::new();
    for shard in 0..count.shards {
        let file = format!("{}/{SHARD}", name(shard, count.shards));
        let text = match small(disk, &file) {
            Ok(text) => text,
            Err(error) => {
                strangers.push(Stranger { file, what: error.to_string(), is_another: false });
                continue;
            }
        };
        let (what, is_another) = match (text.as_deref(), text.as_deref().and_then(read_shard), count.id) {
            // The data folder is not complete.
            (None, _, None) => continue,
            (None, _, Some(_)) => {
                ("it is missing: this is the folder of no shard, or of another data folder".into(), false)
            }
            (Some(_), None, _) => ("it is damaged".into(), false),
            (_, Some((own, of, _)), _) if (own, of) != (shard, count.shards) => {
                (format!("this is the folder of shard {own} of {of}"), true)
            }
            (_, Some((_, _, id)), Some(expected)) if id != expected => {
                ("this shard is that of another data folder, or of another copy of this one".into(), true)
            }
            (_, Some(_), _) => continue,
        };
        strangers.push(Stranger { file, what, is_another });
    }
    strangers
}

impl From<Stranger> for StoreError {
    fn from(stranger: Stranger) -> Self {
        StoreError::new(ErrorKind::Corrupt, format_args!("{}: {}", stranger.file, stranger.what))
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
    Ok(Some(ShardCount { shards, is_complete: false, id: None }))
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

/// Checks that a folder without `SHARDS` is one that was being made, and not a part of a copy: no shard has a record or
/// was closed, and once a folder says which shard it is, the stores of all shards are there.
fn unused(root: &Path, shards: u32) -> Result<(), StoreError> {
    for (name, disk) in disks(root, shards) {
        if small(&*disk, SHARD)?.is_some() {
            whole(&RealDisk::new(root), shards)?;
        }
        if is_used(&*disk).map_err(|fault| fault.inside(&name))? {
            let what = format!(
                "{SHARDS} is missing, and {name} has been in use: this is a part of a copy, which must be \
                 made again, or salvaged"
            );
            return Err(StoreError::new(ErrorKind::Corrupt, what));
        }
    }
    Ok(())
}

/// Whether the store of a shard has a record, was closed, or is a copy.
fn is_used(disk: &dyn Disk) -> Result<bool, ReadFault> {
    let Some(manifest) = Manifest::read(disk)? else { return Ok(false) };
    if manifest.is_closed || !manifest.states.is_empty() {
        return Ok(true);
    }
    Ok(replay::replay(disk, &manifest, &Ledger::default(), 1)?.applied > Lsn(0))
}

fn exists(disk: &dyn Disk, file: &str) -> Result<bool, StoreError> {
    format::open_if_any(disk, file).map(|file| file.is_some())
}

/// Writes what each folder is, and `SHARDS`, the last step of making the folder.
pub(crate) fn establish(disk: &dyn Disk, shards: u32) -> Result<(), StoreError> {
    let id = disk.unique();
    for shard in 0..shards {
        let folder = name(shard, shards);
        put(
            disk,
            &folder,
            SHARD,
            &format!("{FIRST_LINE}{FORMAT}\nshard {shard}\nshards {shards}\nid {id:016x}\n"),
        )?;
    }
    put(disk, "", SHARDS, &text(shards, id))
}

/// Writes a small file in one step.
fn put(disk: &dyn Disk, folder: &str, name: &str, text: &str) -> Result<(), StoreError> {
    let path = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
    let temp = format!("{path}.tmp");
    let file = disk.create(&temp).map_err(failed("create", &temp))?;
    file.write_at(text.as_bytes(), 0).map_err(failed("write", &temp))?;
    file.sync_data().map_err(failed("sync", &temp))?;
    disk.rename(&temp, &path).map_err(failed("make", &path))?;
    disk.sync_dir(folder).map_err(failed("sync the names of", folder))
}

fn text(shards: u32, id: u64) -> String {
    format!("{FIRST_LINE}{FORMAT}\nshards {shards}\nid {id:016x}\n")
}

/// The number of shards, and the id of the folder. The error says in words what is wrong.
fn read(bytes: &[u8]) -> Result<(u32, u64), String> {
    let damaged = || format!("{SHARDS} is damaged");
    let text = std::str::from_utf8(bytes).map_err(|_| damaged())?;
    if text.starts_with(BEFORE_RELEASE) {
        return Err(format!("{SHARDS}: {OF_AN_EARLIER_BUILD}"));
    }
    let (first, rest) = text.split_once('\n').ok_or_else(damaged)?;
    match first.strip_prefix(FIRST_LINE).and_then(|version| version.parse::<u32>().ok()) {
        Some(FORMAT) => {}
        Some(version) => return Err(format!("{SHARDS}: {}", format::unknown(version))),
        None => return Err(damaged()),
    }
    let (shards, id) = rest.split_once('\n').ok_or_else(damaged)?;
    let shards: Option<u32> = shards.strip_prefix("shards ").and_then(|shards| shards.parse().ok());
    let shards = shards.filter(|shards| (2..=MAX_SHARDS).contains(shards)).ok_or_else(damaged)?;
    Ok((shards, read_id(id).ok_or_else(damaged)?))
}

/// The shard that a folder is, the number of shards, and the id of their data folder.
fn read_shard(text: &str) -> Option<(u32, u32, u64)> {
    let (version, rest) = text.strip_prefix(FIRST_LINE)?.split_once("\nshard ")?;
    let (shard, rest) = rest.split_once("\nshards ")?;
    let (shards, id) = rest.split_once('\n')?;
    (version.parse() == Ok(FORMAT)).then_some(())?;
    Some((shard.parse().ok()?, shards.parse().ok()?, read_id(id)?))
}

fn read_id(line: &str) -> Option<u64> {
    let digits = line.strip_prefix("id ")?.strip_suffix('\n')?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok())?
}

/// The error with the folder's name.
pub(crate) fn named(dir: &Path, error: StoreError) -> StoreError {
    StoreError::new(error.kind(), format_args!("{}: {error}", dir.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use duewheel_core::QueueName;
    use duewheel_core::policy::QueueSettings;
    use duewheel_core::record::{ClockPair, Group, Pause, Record};
    use duewheel_core::store::Store;

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
    fn shard_count_is_fixed_at_creation() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        assert_eq!(shards_in(&data).unwrap(), None);
        let folders = made(&data, 3);
        assert_eq!(refused(ShardFolders::open(&data, 3), "this process has"), ErrorKind::Fenced);
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
    fn missing_shard_differs_from_interrupted_creation() {
        let dir = tempfile::tempdir().unwrap();
        drop(made(dir.path(), 2));
        fs::rename(dir.path().join("1-of-2"), dir.path().join("away")).unwrap();
        let why = refused(ShardFolders::open(dir.path(), 2), "1-of-2/MANIFEST is missing");
        assert_eq!(why, ErrorKind::Corrupt);
        assert!(!dir.path().join("1-of-2").exists(), "nothing was made");
        fs::rename(dir.path().join("away"), dir.path().join("1-of-2")).unwrap();
        drop(ShardFolders::open(dir.path(), 2).unwrap());
        fs::remove_file(dir.path().join(SHARDS)).unwrap();
        fs::remove_dir_all(dir.path().join("1-of-2")).unwrap();
        refused(ShardFolders::open(dir.path(), 2), "1-of-2/MANIFEST is missing");
        // Killed before it was complete.
        fs::remove_file(dir.path().join("0-of-2").join(SHARD)).unwrap();
        refused(ShardFolders::open(dir.path(), 4), "it has 2 shards, not 4");
        drop(made(dir.path(), 2));
        assert_eq!(shards_in(dir.path()).unwrap(), Some(2));
        fs::create_dir(dir.path().join("3-of-4")).unwrap();
        fs::remove_file(dir.path().join(SHARDS)).unwrap();
        refused(shards_in(dir.path()), "contradict");
    }

    /// Story: of a restore that a full disk ended, and of an interrupted `cp -a`, some shards were there. The server
    /// made the others anew, and served a part of the messages as if it were all.
    #[test]
    fn part_of_copy_gets_no_new_shards() {
        for (appends, closes) in [(true, false), (false, true)] {
            let dir = tempfile::tempdir().unwrap();
            let folders = made(dir.path(), 3);
            let options = Options { segment_bytes: 1 << 16, ..Options::default() };
            let folder = folders.folder(ShardId(1));
            let mut store = LogStore::open(folder, options, std::sync::Arc::new(|| ())).unwrap();
            if appends {
                let name = QueueName::new("q").unwrap();
                let records =
                    vec![Record::Queue { name, settings: QueueSettings::default(), pause: Pause::Paused }];
                let first = store.recovered().next_lsn;
                store.append(&Group { first, clock: ClockPair::default(), records }).unwrap();
            }
            if closes {
                store.close(ClockPair::default()).unwrap();
            }
            drop((store, folders));
            for file in [SHARDS, "0-of-3/SHARD", "1-of-3/SHARD"] {
                fs::remove_file(dir.path().join(file)).unwrap();
            }
            fs::remove_dir_all(dir.path().join("2-of-3")).unwrap();
            let why = refused(ShardFolders::open(dir.path(), 3), "1-of-3 has been in use");
            assert_eq!(why, ErrorKind::Corrupt);
            assert!(!dir.path().join(SHARDS).exists() && !dir.path().join("2-of-3").exists());
        }
    }

    /// Story: folders that had changed places were opened; keys were not found, and ids were given twice.
    #[test]
    fn shard_folders_cannot_change_places() {
        let dir = tempfile::tempdir().unwrap();
        let (data, other) = (dir.path().join("data"), dir.path().join("other"));
        let open = || ShardFolders::open(&data, 3);
        let swap = |one: &Path, another: &Path| {
            let aside = dir.path().join("aside");
            fs::rename(one, &aside).unwrap();
            fs::rename(another, one).unwrap();
            fs::rename(&aside, another).unwrap();
        };
        drop((made(&data, 3), made(&other, 3)));
        drop(open().unwrap());
        let problems = || crate::verify(&data).unwrap().problems.len();
        assert_eq!(problems(), 0);
        swap(&data.join("1-of-3"), &data.join("2-of-3"));
        refused(open(), "1-of-3/SHARD: this is the folder of shard 2 of 3");
        refused(folders_in(&data), "shard 2 of 3");
        assert_eq!(problems(), 2);
        assert!(crate::restore(&data, dir.path().join("to")).is_err());
        assert!(crate::salvage(&data, dir.path().join("to")).is_err());
        swap(&data.join("1-of-3"), &data.join("2-of-3"));
        swap(&data.join("1-of-3"), &other.join("1-of-3"));
        refused(open(), "1-of-3/SHARD: this shard is that of another data folder");
        assert_eq!(problems(), 1);
        swap(&data.join("1-of-3"), &other.join("1-of-3"));
        refused(shards_in(data.join("1-of-3")), "the folder of shard 1 of 3 of a data folder");
        let (alone, to) = (data.join("1-of-3"), dir.path().join("to"));
        assert!(crate::restore(&alone, &to).unwrap_err().to_string().contains("shard 1 of 3"));
        assert!(crate::salvage(&alone, &to).unwrap_err().to_string().contains("shard 1 of 3"));
        // Without the file that says how many there are, too.
        let whole = fs::read(data.join(SHARDS)).unwrap();
        fs::remove_file(data.join(SHARDS)).unwrap();
        swap(&data.join("1-of-3"), &data.join("2-of-3"));
        refused(open(), "shard 2 of 3");
        swap(&data.join("1-of-3"), &data.join("2-of-3"));
        fs::write(data.join(SHARDS), whole).unwrap();
        let shard = fs::read(data.join("0-of-3").join(SHARD)).unwrap();
        fs::remove_file(data.join("0-of-3").join(SHARD)).unwrap();
        refused(open(), "0-of-3/SHARD: it is missing");
        fs::write(data.join("0-of-3").join(SHARD), shard).unwrap();
        drop(open().unwrap());
    }

    #[test]
    fn damaged_shards_file_is_refused() {
        let whole = text(4, 0xab);
        assert_eq!(read(whole.as_bytes()), Ok((4, 0xab)));
        for cut in 0..whole.len() {
            assert!(read(&whole.as_bytes()[..cut]).is_err(), "{cut}");
        }
        for bad in [
            "",
            "duewheel 1\nshards 4\nid 5\n",
            "duewheel 1\nshards 1\nid 00000000000000ab\n",
            "duewheel 1\nshards 1025\nid 00000000000000ab\n",
            "duewheel 1\nshards 4\n\n",
            "\0\0",
        ] {
            assert!(read(bad.as_bytes()).unwrap_err().contains("damaged"), "{bad:?}");
        }
        assert!(read(b"duewheel 2\nshards 4\n").unwrap_err().contains("format version 2 is unknown"));
        for earlier in ["format 1\nshards 4\n", "format 2\nshards 4\nid 00000000000000ab\n"] {
            assert!(read(earlier.as_bytes()).unwrap_err().contains("`duewheel export`"), "{earlier:?}");
        }
    }
}
