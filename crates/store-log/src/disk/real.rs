//! The file system of the machine.

use std::fs::{DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;

use super::{Access, Disk, DiskFile, Held, Hold};

const OWNER_ONLY: u32 = 0o700;
const OWNER_ONLY_FILE: u32 = 0o600;

/// A folder of the machine's file system.
#[derive(Debug)]
pub struct RealDisk {
    root: PathBuf,
    entropy: RandomState,
    given: AtomicU64,
}

#[derive(Debug)]
struct RealFile(File);

/// The lock is the open file description's; it goes when the file is closed.
#[derive(Debug)]
struct RealLock {
    _file: File,
}

impl Held for RealLock {}

impl RealDisk {
    /// The disk whose names are relative to `root`.
    pub fn new(root: &Path) -> Self {
        RealDisk { root: root.to_owned(), entropy: RandomState::new(), given: AtomicU64::new(0) }
    }

    fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.root.clone() } else { self.root.join(name) }
    }
}

impl Disk for RealDisk {
    fn make_dir(&self, dir: &str) -> io::Result<()> {
        // The name of the data folder itself has been made durable before those of the folders in it.
        let reach = if dir.is_empty() { usize::MAX } else { 1 };
        make_durably(&self.path(dir), reach, &mut Machine)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.path(dir))? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn lock(&self, name: &str, hold: Hold) -> io::Result<Box<dyn Held>> {
        let path = self.path(name);
        let (file, operation) = match hold {
            Hold::Exclusive => {
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .mode(OWNER_ONLY_FILE)
                    .open(path)?;
                (file, FlockOperation::NonBlockingLockExclusive)
            }
            Hold::Shared => (File::open(path)?, FlockOperation::NonBlockingLockShared),
        };
        rustix::fs::flock(&file, operation)?;
        if hold == Hold::Exclusive {
            // For people who ask who has the folder; only the refusal of a second owner reads it, and a full disk must
            // not keep the first one out.
            let _ = file.write_all_at(format!("{:<10}\n", std::process::id()).as_bytes(), 0);
        }
        Ok(Box::new(RealLock { _file: file }))
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(access == Access::Write).open(self.path(name))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(OWNER_ONLY_FILE)
            .open(self.path(name))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path(name))
    }

    fn link(&self, name: &str, to: &Path) -> io::Result<()> {
        std::fs::hard_link(self.path(name), to)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        sync_dir(&self.path(dir))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let figures = rustix::fs::statvfs(&self.root)?;
        Ok(figures.f_bavail.saturating_mul(figures.f_frsize))
    }

    fn unique(&self) -> u64 {
        // The standard library keys its hashes from the system's entropy; a hash of a counter under such a key is what
        // is needed here, without a dependency.
        let mut hasher = self.entropy.build_hasher();
        hasher.write_u64(self.given.fetch_add(1, Ordering::Relaxed));
        hasher.finish()
    }
}

impl DiskFile for RealFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, at)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), 0, bytes) {
            // The zeros written next take the room instead.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            other => Ok(other?),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.0)?)
    }
}

/// What [`make_durably`] does to a file system.
trait Folders {
    fn is_dir(&self, path: &Path) -> bool;
    fn make(&mut self, path: &Path) -> io::Result<()>;
    fn sync(&mut self, path: &Path) -> io::Result<()>;
}

struct Machine;

impl Folders for Machine {
    fn is_dir(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn make(&mut self, path: &Path) -> io::Result<()> {
        match DirBuilder::new().mode(OWNER_ONLY).create(path) {
            // Somebody else was quicker.
            Err(_) if path.is_dir() => Ok(()),
            made => made,
        }
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        sync_dir(path)
    }
}

/// Makes a folder and those around it that are missing, and syncs the name of each in the folder around it. A folder that is there
/// already may have been made by a predecessor that was killed before it could sync the name, and the folders around it likewise: so
/// the names of so many are synced, up to the first folder that may not be read or synced by us. That one is not ours, and was there before.
fn make_durably(path: &Path, reach: usize, folders: &mut impl Folders) -> io::Result<()> {
    let path = if path.is_absolute() { path.to_owned() } else { Path::new(".").join(path) };
    let ancestors = || path.ancestors().take_while(|folder| !folder.as_os_str().is_empty());
    let missing = ancestors().take_while(|folder| !folders.is_dir(folder)).count();
    let mut made: Vec<&Path> = ancestors().take(missing).collect();
    made.reverse();
    for folder in made {
        folders.make(folder)?;
    }
    for (no, around) in ancestors().skip(1).take(reach.max(missing)).enumerate() {
        match folders.sync(around) {
            Err(error) if no >= missing && is_foreign(&error) => return Ok(()),
            synced => synced?,
        }
    }
    Ok(())
}

/// Whether the folder is one that others have set up: closed to us, or not on a disk.
fn is_foreign(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::Unsupported
    )
}

fn sync_dir(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::fsync(File::open(path)?)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A file system that records what is made and synced, and of which some folders are not ours.
    #[derive(Default)]
    struct Recorded {
        there: BTreeSet<PathBuf>,
        foreign: BTreeSet<PathBuf>,
        calls: Vec<String>,
    }

    impl Recorded {
        fn with(there: &[&str]) -> Self {
            Recorded { there: there.iter().map(PathBuf::from).collect(), ..Recorded::default() }
        }
    }

    impl Folders for Recorded {
        fn is_dir(&self, path: &Path) -> bool {
            self.there.contains(path)
        }

        fn make(&mut self, path: &Path) -> io::Result<()> {
            assert!(path.parent().is_some_and(|around| self.is_dir(around)), "{path:?} is made in nothing");
            self.there.insert(path.to_owned());
            self.calls.push(format!("make {}", path.display()));
            Ok(())
        }

        fn sync(&mut self, path: &Path) -> io::Result<()> {
            if self.foreign.contains(path) {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            self.calls.push(format!("sync {}", path.display()));
            Ok(())
        }
    }

    /// Story: of a data folder in new folders only the last name was synced. After a power loss the folders around it could be gone, and
    /// every message that was said to be durable with them.
    #[test]
    fn every_new_folder_is_synced_in_the_one_around_it() {
        let mut disk = Recorded::with(&["/", "/srv"]);
        make_durably(Path::new("/srv/a/b/data"), usize::MAX, &mut disk).unwrap();
        let made = ["make /srv/a", "make /srv/a/b", "make /srv/a/b/data"];
        assert_eq!(disk.calls[..3], made);
        assert_eq!(disk.calls[3..], ["sync /srv/a/b", "sync /srv/a", "sync /srv", "sync /"]);
    }

    /// Story: a folder that was there was not synced at all, although the process that made it may have been killed before it did so.
    #[test]
    fn what_a_killed_predecessor_has_made_is_synced_too() {
        let mut disk = Recorded::with(&["/", "/srv", "/srv/a", "/srv/a/b", "/srv/a/b/data"]);
        disk.foreign.insert("/".into());
        make_durably(Path::new("/srv/a/b/data"), usize::MAX, &mut disk).unwrap();
        assert_eq!(disk.calls, ["sync /srv/a/b", "sync /srv/a", "sync /srv"], "and / is not ours");
        let mut disk = Recorded::with(&[".", "./data"]);
        make_durably(Path::new("data/journal"), 1, &mut disk).unwrap();
        assert_eq!(disk.calls, ["make ./data/journal", "sync ./data"]);
        make_durably(Path::new("data"), usize::MAX, &mut disk).unwrap();
        assert_eq!(disk.calls[2..], ["sync ."]);
    }

    #[test]
    fn a_new_folder_whose_name_cannot_be_synced_is_an_error() {
        let mut disk = Recorded::with(&["/", "/srv"]);
        disk.foreign.insert("/srv".into());
        assert!(make_durably(Path::new("/srv/a/data"), usize::MAX, &mut disk).is_err());
    }

    #[test]
    fn real_folders_are_made_for_their_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new(&dir.path().join("a/b"));
        for _ in 0..2 {
            disk.make_dir("").unwrap();
            disk.make_dir("journal").unwrap();
        }
        for name in ["a", "a/b", "a/b/journal"] {
            let mode = std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{name}");
        }
    }
}
