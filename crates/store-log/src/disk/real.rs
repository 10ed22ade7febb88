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
        let path = self.path(dir);
        if path.is_dir() {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(OWNER_ONLY).create(&path)?;
        match path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => sync_dir(Path::new(".")),
            Some(parent) => sync_dir(parent),
            None => Ok(()),
        }
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

fn sync_dir(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::fsync(File::open(path)?)?)
}
