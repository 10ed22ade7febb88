//! The file system of the machine.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, CWD, Dir, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::{Disk, DiskFile, FileAccess, HeldLock, LockKind};

const OWNER_ONLY: Mode = Mode::RWXU;
const OWNER_ONLY_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
/// The number of attempts to remove a foreign file that appears under the name of a new file.
const CREATE_TRIES: usize = 8;

/// A folder of the machine's file system. A name in it that is a symbolic link is not followed.
#[derive(Debug)]
pub struct RealDisk {
    root: Root,
    entropy: RandomState,
    given: AtomicU64,
}

/// How the folder is identified.
#[derive(Debug)]
enum Root {
    /// By its name, at each call.
    Named(PathBuf),
    /// By an open descriptor, whatever its name refers to.
    Open(OwnedFd),
}

#[derive(Debug)]
struct RealFile(File);

/// The lock of an open file description; it ends when the file is closed.
#[derive(Debug)]
struct RealLock {
    file: File,
    /// The entry in [`LOCKED`].
    locked: Option<InodeId>,
}

/// The lock of a folder: of the file for it, which other programs may remove, and of the folder itself, if its file
/// system can lock a folder.
#[derive(Debug)]
struct FolderLock {
    _file: RealLock,
    _folder: Option<RealLock>,
}

/// Device and inode of a file.
type InodeId = (u64, u64);

/// The files and folders that this process has locked exclusively. Their process id is not enough: each container has
/// its own ids.
static LOCKED: Mutex<BTreeSet<InodeId>> = Mutex::new(BTreeSet::new());

impl HeldLock for FolderLock {}

impl RealLock {
    fn take(file: File, hold: LockKind) -> io::Result<RealLock> {
        let operation = match hold {
            LockKind::Exclusive => FlockOperation::NonBlockingLockExclusive,
            LockKind::Shared => FlockOperation::NonBlockingLockShared,
        };
        let metadata = file.metadata()?;
        let id = (metadata.dev(), metadata.ino());
        if let Err(error) = rustix::fs::flock(&file, operation) {
            let is_ours = error == Errno::WOULDBLOCK && locked().contains(&id);
            return Err(if is_ours { io::ErrorKind::ResourceBusy.into() } else { error.into() });
        }
        let locked = (hold == LockKind::Exclusive && locked().insert(id)).then_some(id);
        Ok(RealLock { file, locked })
    }
}

impl Drop for RealLock {
    fn drop(&mut self) {
        if let Some(id) = self.locked {
            locked().remove(&id);
        }
    }
}

fn locked() -> MutexGuard<'static, BTreeSet<InodeId>> {
    LOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RealDisk {
    /// The disk whose names are relative to `root`.
    pub fn new(root: &Path) -> Self {
        RealDisk::of(Root::Named(root.to_owned()))
    }

    /// The disk whose names are relative to an open folder.
    pub(crate) fn open_at(folder: OwnedFd) -> Self {
        RealDisk::of(Root::Open(folder))
    }

    fn of(root: Root) -> Self {
        RealDisk { root, entropy: RandomState::new(), given: AtomicU64::new(0) }
    }

    /// The folder and the name to use in a call.
    fn at<'a>(&'a self, name: &'a str) -> (BorrowedFd<'a>, Cow<'a, Path>) {
        match &self.root {
            Root::Named(root) if name.is_empty() => (CWD, Cow::Borrowed(root)),
            Root::Named(root) => (CWD, Cow::Owned(root.join(name))),
            Root::Open(folder) if name.is_empty() => (folder.as_fd(), Cow::Borrowed(Path::new("."))),
            Root::Open(folder) => (folder.as_fd(), Cow::Borrowed(Path::new(name))),
        }
    }

    fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let (folder, path) = self.at(name);
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(folder, &*path, flags, OWNER_ONLY_FILE) {
            Ok(file) => Ok(file.into()),
            Err(Errno::LOOP) => Err(io::Error::other("it is a symbolic link, which is not followed")),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a folder, to list it or to sync the names in it. The data folder's own name may be a link, which is the
    /// operator's responsibility.
    fn open_dir(&self, dir: &str) -> io::Result<OwnedFd> {
        let (folder, path) = self.at(dir);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(folder, &*path, flags, Mode::empty())?)
    }
}

impl Disk for RealDisk {
    fn make_dir(&self, dir: &str) -> io::Result<()> {
        let folder = match &self.root {
            // The name of the data folder itself has been made durable before those of the folders in it.
            Root::Named(_) => {
                let reach = if dir.is_empty() { usize::MAX } else { 1 };
                return make_durably(&self.at(dir).1, reach, &mut Machine);
            }
            Root::Open(_) if dir.is_empty() => return Ok(()),
            Root::Open(folder) => folder,
        };
        match rustix::fs::mkdirat(folder, dir, OWNER_ONLY) {
            Ok(()) | Err(Errno::EXIST) => Ok(rustix::fs::fsync(folder)?),
            Err(error) => Err(error.into()),
        }
    }

    fn make_dirs(&self, dirs: &[&str]) -> io::Result<()> {
        for dir in dirs {
            let (folder, name) = self.at(dir);
            match rustix::fs::mkdirat(folder, &*name, OWNER_ONLY) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.sync_dir("")
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(self.open_dir(dir)?)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).to_string_lossy().into_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn lock(&self, name: &str, hold: LockKind) -> io::Result<Box<dyn HeldLock>> {
        let flags = match hold {
            LockKind::Exclusive => OFlags::RDWR | OFlags::CREATE,
            LockKind::Shared => OFlags::RDONLY,
        };
        let folder = match RealLock::take(self.open_dir("")?.into(), hold) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy) => {
                return Err(error);
            }
            // NFS locks no folder exclusively: there the file alone counts.
            taken => taken.ok(),
        };
        let file = RealLock::take(self.open_file(name, flags)?, hold)?;
        if hold == LockKind::Exclusive {
            // For people who look for the owner of the folder; only the refusal of a second owner reads it, and a full
            // disk must not refuse the first one.
            let _ = file.file.write_all_at(format!("{:<10}\n", std::process::id()).as_bytes(), 0);
        }
        Ok(Box::new(FolderLock { _file: file, _folder: folder }))
    }

    fn open(&self, name: &str, access: FileAccess) -> io::Result<Arc<dyn DiskFile>> {
        let flags = match access {
            FileAccess::Read => OFlags::RDONLY,
            FileAccess::Write => OFlags::RDWR,
        };
        Ok(Arc::new(RealFile(self.open_file(name, flags)?)))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        // The existing file may have another name elsewhere, or be a link: it is unlinked, and never written to.
        for _ in 0..CREATE_TRIES {
            match self.open_file(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match self.remove(name) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    removed => removed?,
                },
                made => return Ok(Arc::new(RealFile(made?))),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let ((folder, from), (same, to)) = (self.at(from), self.at(to));
        Ok(rustix::fs::renameat(folder, &*from, same, &*to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let (folder, path) = self.at(name);
        Ok(rustix::fs::unlinkat(folder, &*path, AtFlags::empty())?)
    }

    fn link(&self, name: &str, to: &RealDisk) -> io::Result<()> {
        let ((from, old), (other, new)) = (self.at(name), to.at(name));
        Ok(rustix::fs::linkat(from, &*old, other, &*new, AtFlags::empty())?)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        Ok(rustix::fs::fsync(self.open_dir(dir)?)?)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let figures = match &self.root {
            Root::Named(root) => rustix::fs::statvfs(root)?,
            Root::Open(folder) => rustix::fs::fstatvfs(folder)?,
        };
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

    #[cfg(target_os = "linux")]
    fn read_at_hand(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        use rustix::io::{ReadWriteFlags, preadv2};
        // preadv2(2), RWF_NOWAIT: what the page cache does not have is not read.
        match preadv2(&self.0, &mut [io::IoSliceMut::new(buffer)], at, ReadWriteFlags::NOWAIT) {
            Ok(read) if read == buffer.len() => Ok(()),
            // The rest is not in the page cache, or the file ends.
            Ok(read) if read > 0 => Err(io::ErrorKind::WouldBlock.into()),
            Err(Errno::AGAIN) => Err(io::ErrorKind::WouldBlock.into()),
            // The file system lacks this call, or there is an error, which a plain read also returns.
            Ok(_) | Err(_) => self.read_at(buffer, at),
        }
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, at)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Err(io::ErrorKind::Unsupported.into()),
            other => Ok(other?),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data() // fdatasync, or what the system has to flush the disk's own cache
    }
}

/// The operations of [`make_durably`] on a file system.
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
        match rustix::fs::mkdir(path, OWNER_ONLY) {
            // Another thread has made the folder.
            Err(_) if path.is_dir() => Ok(()),
            made => Ok(made?),
        }
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        sync_dir(path)
    }
}

/// Creates a folder and the missing folders around it, and syncs the name of each in the folder around it. An existing
/// folder may have been created by a predecessor that was killed before it could sync the name, and so may the folders
/// around it: so the names of `reach` folders are synced, up to the first folder that this process may not read or
/// sync. That one belongs to others, and existed before.
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

/// Whether the folder was set up by others: this process has no access, or it is not on a disk.
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

    /// A file system that records which names are created and synced, and of which some folders are not ours.
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

    /// Story: of a data folder in new folders only the last name was synced. After a power loss the folders around it
    /// could be missing, and with them every message that was reported durable.
    #[test]
    fn new_folders_are_synced_in_parents() {
        let mut disk = Recorded::with(&["/", "/srv"]);
        make_durably(Path::new("/srv/a/b/data"), usize::MAX, &mut disk).unwrap();
        let made = ["make /srv/a", "make /srv/a/b", "make /srv/a/b/data"];
        assert_eq!(disk.calls[..3], made);
        assert_eq!(disk.calls[3..], ["sync /srv/a/b", "sync /srv/a", "sync /srv", "sync /"]);
    }

    /// Story: an existing folder was not synced at all, although the process that created it may have been killed
    /// before it did so.
    #[test]
    fn folders_of_killed_process_are_synced() {
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
    fn unsyncable_new_folder_is_error() {
        let mut disk = Recorded::with(&["/", "/srv"]);
        disk.foreign.insert("/srv".into());
        assert!(make_durably(Path::new("/srv/a/data"), usize::MAX, &mut disk).is_err());
    }

    /// Story: a file was created by opening its name with truncation. Another user who could put a link where the next
    /// file would be created had a different file of the store's user emptied.
    #[test]
    fn new_file_never_overwrites_links() {
        let dir = tempfile::tempdir().unwrap();
        let (data, victim) = (dir.path().join("data"), dir.path().join("victim"));
        std::fs::write(&victim, "precious").unwrap();
        let named = RealDisk::new(&data);
        named.make_dir("").unwrap();
        let open = RealDisk::open_at(File::open(&data).unwrap().into());
        for disk in [named, open] {
            let links: [fn(&Path, &Path) -> io::Result<()>; 2] =
                [|to, link| std::os::unix::fs::symlink(to, link), |to, link| std::fs::hard_link(to, link)];
            for link in links {
                link(&victim, &data.join("file")).unwrap();
                disk.create("file").unwrap().write_at(b"new", 0).unwrap();
                assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
                assert_eq!(std::fs::read(data.join("file")).unwrap(), b"new");
                disk.create("file").unwrap();
                assert_eq!(std::fs::read(data.join("file")).unwrap(), b"", "what was there is gone");
                disk.remove("file").unwrap();
            }
            std::os::unix::fs::symlink(&victim, data.join("LOCK")).unwrap();
            for refused in [
                disk.lock("LOCK", LockKind::Exclusive).map(drop),
                disk.open("LOCK", FileAccess::Write).map(drop),
                disk.open("LOCK", FileAccess::Read).map(drop),
            ] {
                assert!(refused.unwrap_err().to_string().contains("symbolic link"));
            }
            assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
            disk.remove("LOCK").unwrap();
        }
    }

    #[test]
    fn open_folder_ignores_renames() {
        let dir = tempfile::tempdir().unwrap();
        let (data, other) = (dir.path().join("data"), dir.path().join("other"));
        std::fs::create_dir(&data).unwrap();
        let disk = RealDisk::open_at(File::open(&data).unwrap().into());
        std::fs::rename(&data, dir.path().join("moved")).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::os::unix::fs::symlink(&other, &data).unwrap();
        disk.make_dir("runs").unwrap();
        disk.make_dir("runs").unwrap();
        disk.create("runs/a.tmp").unwrap().write_at(b"x", 0).unwrap();
        disk.rename("runs/a.tmp", "runs/a").unwrap();
        disk.sync_dir("runs").unwrap();
        disk.sync_dir("").unwrap();
        assert_eq!(
            (disk.list("").unwrap(), disk.list("runs").unwrap()),
            (vec!["runs".into()], vec!["a".into()])
        );
        assert!(disk.free_bytes().unwrap() > 0);
        assert_eq!(std::fs::read_dir(&other).unwrap().count(), 0);
        let copy = RealDisk::new(&other);
        copy.make_dir("runs").unwrap();
        disk.link("runs/a", &copy).unwrap();
        assert_eq!(std::fs::read(other.join("runs/a")).unwrap(), b"x");
    }

    #[test]
    fn real_folders_are_private() {
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
