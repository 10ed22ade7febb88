//! Copies of a data folder in use, and their destination.
//!
//! A copy holds every record up to one position, which was durable when the copy began or later. Runs and states never
//! change, so they are linked where the file system can do that; of the segments only whole, durable frames are copied.
//! During the copy, no file that the manifest listed at its beginning is removed or reused. The copy's own manifest is
//! written last: an interrupted copy is no data folder.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use duewheel_core::Lsn;
use duewheel_core::store::{ErrorKind, StoreError};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawMode, Stat};
use rustix::io::Errno;

use crate::disk::{Disk, DiskFile, FileAccess, RealDisk};
use crate::fault::{ReadFault, failed};
use crate::format::{JOURNAL, RUNS, STATE};
use crate::journal::replay::Walk;
use crate::journal::segment::SegmentReader;
use crate::journal::workers;
use crate::manifest::{Manifest, SegmentEntry};
use crate::shards;
use crate::shared::StoreShared;

/// Makes copies of the folder of an open store, from any thread, while the store works.
///
/// A handle may outlive its store; its calls then fail.
#[derive(Clone, Debug)]
pub struct Backup(pub(crate) Arc<StoreShared>);

/// The content of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct BackupReport {
    /// Number of files, the manifest included.
    pub files: u64,
    /// Bytes in them, without the allocated and unused part of segments.
    pub bytes: u64,
    /// Number of files that are linked: they take no extra space as long as the store also has them.
    pub linked: u64,
    /// The last record in the copy.
    pub last: Lsn,
}

/// Bytes copied at a time.
const PIECE: u64 = 1024 * 1024;

/// Keeps files from being removed as long as it lives.
struct Pin<'a>(&'a StoreShared);

impl<'a> Pin<'a> {
    fn new(shared: &'a StoreShared) -> Self {
        shared.pin();
        Pin(shared)
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.0.unpin();
    }
}

impl Backup {
    /// Copies the folder into `dir`, which is created if it is missing; otherwise it must be empty, owned by the user
    /// of this process, and closed to others. Everything that was answered before the call is in the copy.
    ///
    /// The copy is opened with [`restore`](crate::verify()), which ensures that no lease token of the original is
    /// issued again.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the store was closed, before or while the copy was made, [`ErrorKind::Corrupt`] if a
    /// segment is damaged, [`ErrorKind::Full`] or [`ErrorKind::Unavailable`] if a disk returns an error, or if `dir`
    /// cannot be used. An incomplete copy stays, without a manifest.
    pub fn copy_to(&self, dir: impl AsRef<Path>) -> Result<BackupReport, StoreError> {
        let dir = dir.as_ref();
        let folder = EmptyFolder::open(&Destination::Made(dir.to_owned()))
            .map_err(|problem| unusable(format_args!("backup to {}", dir.display()), problem))?;
        self.copy_into(folder).map_err(|error| {
            StoreError::new(error.kind(), format_args!("backup to {}: {error}", dir.display()))
        })
    }

    /// Copies the store into an open folder, as [`copy_to`](Backup::copy_to) does.
    ///
    /// # Errors
    /// See [`copy_to`](Backup::copy_to).
    pub fn copy_into(&self, folder: EmptyFolder) -> Result<BackupReport, StoreError> {
        Ok(self.copy(folder)?)
    }

    /// Copies the folders of several shards, whose stores these are in their order, as of one moment: what one shard
    /// has done because of another's answer is in the copy only together with what was answered.
    ///
    /// # Errors
    /// See [`copy_to`](Backup::copy_to).
    pub fn copy_shards(stores: &[Backup], folder: &EmptyFolder) -> Result<BackupReport, StoreError> {
        let shards = u32::try_from(stores.len()).unwrap_or(u32::MAX);
        let pinned = stores.iter().map(|store| Pinned::new(&store.0)).collect::<Result<Vec<_>, _>>()?;
        // In addition to the files of the shards: the file of the shard count, and one per shard that identifies it.
        let mut whole = BackupReport { files: 1 + u64::from(shards), ..BackupReport::default() };
        for (shard, (store, last)) in (0..).zip(pinned.iter().zip(written_by_all(stores))) {
            let inner = folder.inner(&shards::name(shard, shards));
            let inner = inner.map_err(|problem| unusable(format_args!("shard {shard}"), problem))?;
            let BackupReport { files, bytes, linked, last } = store.copy(inner, last)?;
            whole.files += files;
            whole.bytes += bytes;
            whole.linked += linked;
            whole.last = whole.last.max(last);
        }
        shards::establish(folder.disk(), shards)?;
        Ok(whole)
    }

    fn copy(&self, folder: EmptyFolder) -> Result<BackupReport, ReadFault> {
        let pinned = Pinned::new(&self.0)?;
        pinned.copy(folder, self.0.syncer.written())
    }
}

/// The position up to which each of these stores had written at one moment. An answer that a store gave before it is at
/// or below its position, and with it everything that the caller had done before.
fn written_by_all(stores: &[Backup]) -> Vec<Lsn> {
    let look = || stores.iter().map(|store| store.0.syncer.written()).collect::<Vec<_>>();
    let mut seen = look();
    // None has written between two looks with the same result: that is how they were between both. A look takes less
    // time than a write.
    loop {
        let again = look();
        if again == seen {
            return seen;
        }
        seen = again;
    }
}

/// A store whose files are kept, and its manifest as of then.
struct Pinned<'a> {
    shared: &'a StoreShared,
    manifest: Manifest,
    _pin: Pin<'a>,
}

impl<'a> Pinned<'a> {
    fn new(shared: &'a StoreShared) -> Result<Self, StoreError> {
        still_open(shared)?;
        let pin = Pin::new(shared);
        Ok(Pinned { shared, manifest: shared.manifest(), _pin: pin })
    }

    /// Copies everything up to `last`, which was written after the store was pinned: its state has nothing that is
    /// newer.
    fn copy(&self, folder: EmptyFolder, last: Lsn) -> Result<BackupReport, ReadFault> {
        let (shared, mut manifest) = (self.shared, self.manifest.clone());
        still_open(shared)?;
        let target = folder.into_disk().map_err(failed("make the folders of", ""))?;
        workers::wait_until(last, shared)?;
        let mut copying = Copying::new(&*shared.disk, &target);
        for run in &manifest.runs {
            still_open(shared)?;
            copying.link(&run.no.run(), &target)?;
        }
        for state in &manifest.states {
            copying.link(&state.no.state(), &target)?;
        }
        let used = used(&*shared.disk, &manifest.segments, last)?;
        for (i, (entry, first)) in used.iter().enumerate() {
            still_open(shared)?;
            let end = used.get(i + 1).map_or(last.next(), |(_, next)| *next);
            copying.segment(entry, *first, Lsn(end.0 - 1))?;
        }
        manifest.segments = used.into_iter().map(|(entry, _)| entry).collect();
        manifest.proven = last;
        manifest.is_closed = true;
        // A pin protects files from its own store only. Once the store is closed or has failed, the next owner of the
        // folder may remove and reuse files that are being copied; a copy is valid only if there was no such owner.
        still_open(shared)?;
        copying.finish(&manifest)?;
        Ok(BackupReport { last, ..copying.report })
    }
}

fn still_open(shared: &StoreShared) -> Result<(), StoreError> {
    shared.check()?;
    if shared.is_stopping() {
        return Err(StoreError::new(ErrorKind::Closed, "the store is closed"));
    }
    Ok(())
}

/// Creates a folder that becomes a data folder, with its subfolders.
pub(crate) fn empty_folder(dir: &Path) -> Result<RealDisk, StoreError> {
    empty(dir)?.into_disk().map_err(failed("make the folders of", ""))
}

/// Creates a folder that becomes a data folder.
pub(crate) fn empty(dir: &Path) -> Result<EmptyFolder, StoreError> {
    EmptyFolder::for_data(dir).map_err(|problem| unusable(format_args!("{}", dir.display()), problem))
}

/// The store's error for a folder that cannot be used.
pub(crate) fn unusable(what: fmt::Arguments<'_>, problem: FolderProblem) -> StoreError {
    let kind = match &problem {
        FolderProblem::Unusable(error) if error.kind() == io::ErrorKind::StorageFull => ErrorKind::Full,
        _ => ErrorKind::Unavailable,
    };
    StoreError::new(kind, format_args!("{what}: {problem}"))
}

/// The segments that hold records up to `last`, and the first record of each.
fn used(
    disk: &dyn Disk,
    segments: &[SegmentEntry],
    last: Lsn,
) -> Result<Vec<(SegmentEntry, Lsn)>, ReadFault> {
    let mut used = Vec::new();
    for entry in segments {
        // A segment that is being started right now may look unused: its records are too late for this copy.
        match SegmentReader::open(disk, entry)?.header()? {
            Some(header) if header.first <= last => used.push((*entry, header.first)),
            Some(_) | None => break,
        }
    }
    Ok(used)
}

/// Copies files of one folder to another one.
pub(crate) struct Copying<'a> {
    from: &'a dyn Disk,
    to: &'a dyn Disk,
    report: BackupReport,
}

impl<'a> Copying<'a> {
    pub(crate) fn new(from: &'a dyn Disk, to: &'a dyn Disk) -> Self {
        Copying { from, to, report: BackupReport::default() }
    }

    /// Links a file that never changes to the same name in the folder `to`, which is the destination, or copies it.
    fn link(&mut self, name: &str, to: &RealDisk) -> Result<(), ReadFault> {
        if self.from.link(name, to).is_err() {
            return self.file(name);
        }
        let file = self.to.open(name, FileAccess::Read).map_err(failed("open", name))?;
        self.report.linked += 1;
        self.report.files += 1;
        self.report.bytes += file.size().map_err(failed("measure", name))?;
        Ok(())
    }

    /// Copies a file; zeros at its end take no space.
    pub(crate) fn file(&mut self, name: &str) -> Result<(), ReadFault> {
        let file = self.from.open(name, FileAccess::Read).map_err(failed("open", name))?;
        let size = file.size().map_err(failed("measure", name))?;
        let bytes = without_zeros(&*file, size).map_err(failed("read", name))?;
        self.start_of(name, bytes, size)
    }

    /// Copies the frames of a segment up to a record, which it holds; each is checked on the way.
    fn segment(&mut self, entry: &SegmentEntry, first: Lsn, last: Lsn) -> Result<(), ReadFault> {
        let mut walk = Walk::new(SegmentReader::open(self.from, entry)?, first);
        while walk.next <= last {
            if let Err(what) = walk.frame()? {
                return Err(walk.segment.problem(walk.at, what).into());
            }
        }
        self.start_of(&entry.no.segment(), walk.at, entry.bytes)
    }

    /// Copies the first bytes of a file to a new file of this size. A medium that allocates zeros is given the name of
    /// a segment before its bytes, as when a segment is prepared; any other name comes behind the bytes.
    fn start_of(&mut self, name: &str, bytes: u64, size: u64) -> Result<(), ReadFault> {
        let from = self.from.open(name, FileAccess::Read).map_err(failed("open", name))?;
        let temp = format!("{name}.tmp");
        let to = self.to.create(&temp).map_err(failed("create", name))?;
        let takes_name = || self.to.rename(&temp, name).map_err(failed("name", name));
        let grows_behind_name = self.to.allocates_zeros() && name.starts_with(JOURNAL);
        if grows_behind_name {
            to.allocate(size).map_err(failed("allocate", name))?;
            takes_name()?;
        }
        let mut piece = vec![0; usize::try_from(PIECE.min(bytes)).unwrap_or(0)];
        let mut at = 0;
        while at < bytes {
            let length = piece.len().min(usize::try_from(bytes - at).unwrap_or(usize::MAX));
            from.read_at(&mut piece[..length], at).map_err(failed("read", name))?;
            to.write_at(&piece[..length], at).map_err(failed("write", name))?;
            if grows_behind_name {
                to.sync_data().map_err(failed("sync", name))?;
            }
            at += length as u64;
        }
        if !grows_behind_name {
            if bytes < size {
                to.write_at(&[0], size - 1).map_err(failed("write", name))?;
            }
            to.sync_data().map_err(failed("sync", name))?;
            takes_name()?;
        }
        self.report.files += 1;
        self.report.bytes += bytes;
        Ok(())
    }

    /// Makes all names durable, then the manifest.
    pub(crate) fn finish(&mut self, manifest: &Manifest) -> Result<(), StoreError> {
        for name in [JOURNAL, RUNS, STATE] {
            self.to.sync_dir(name).map_err(failed("sync the names of", name))?;
        }
        manifest.replace(self.to)?;
        self.report.files += 1;
        self.report.bytes += manifest.encode().len() as u64;
        Ok(())
    }
}

/// The length of a file without the zeros at its end.
fn without_zeros(file: &dyn DiskFile, size: u64) -> io::Result<u64> {
    let mut piece = vec![0; usize::try_from(PIECE.min(size)).unwrap_or(0)];
    let mut end = size;
    while end > 0 {
        let length = piece.len().min(usize::try_from(end).unwrap_or(usize::MAX));
        let from = end - length as u64;
        file.read_at(&mut piece[..length], from)?;
        if let Some(last) = piece[..length].iter().rposition(|byte| *byte != 0) {
            return Ok(from + last as u64 + 1);
        }
        end = from;
    }
    Ok(0)
}

// The destination folder of a copy.
//
// The folder is opened once, without following a link, and every file is created relative to the open folder: other
// users who may change the folders around it cannot redirect the copy.

/// Permissions of group and others, which a destination must not have.
const OF_OTHERS: Mode = Mode::RWXG.union(Mode::RWXO);
const OWNER_ONLY: Mode = Mode::RWXU;
/// Opens a folder whose names may be unreadable for this process.
#[cfg(target_os = "linux")]
const SEARCH: OFlags = OFlags::PATH;
#[cfg(not(target_os = "linux"))]
const SEARCH: OFlags = OFlags::RDONLY;

/// The destination of a copy, and the folders that may be created for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// An existing folder: a remote caller names it, and no folder is created for such a caller.
    Prepared(PathBuf),
    /// A folder that is created if it is missing.
    Made(PathBuf),
    /// A folder below another one, which must exist. Missing folders in between are created.
    Below {
        /// The folder that the copy must not leave.
        root: PathBuf,
        /// The path relative to it.
        name: PathBuf,
    },
}

/// Why a folder cannot take a copy.
#[derive(Debug)]
#[non_exhaustive]
pub enum FolderProblem {
    /// The folder does not exist.
    Missing,
    /// The folder is not empty.
    NotEmpty(String),
    /// The folder is the data folder, or inside it.
    Inside,
    /// It, or a folder on the way to it from the root of all backups, is a symbolic link.
    Link,
    /// The folder belongs to another user.
    Foreign {
        /// The owner of the folder.
        owner: u32,
        /// The user of this process.
        us: u32,
    },
    /// Other users than its owner have access.
    Shared {
        /// The mode of the folder.
        mode: RawMode,
    },
    /// The folder is not below the one that contains all backups.
    Outside(PathBuf),
    /// The folder cannot be created or read.
    Unusable(io::Error),
}

impl fmt::Display for FolderProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FolderProblem::Missing => f.write_str(
                "the folder does not exist; create it as the server's user (`mkdir -m 700`), or let the server create it below --backup-root",
            ),
            FolderProblem::NotEmpty(name) => write!(f, "the folder is not empty: there is {name}"),
            FolderProblem::Inside => f.write_str("the folder is inside of the data folder"),
            FolderProblem::Link => f.write_str("it is a symbolic link, which is not followed; name the folder itself"),
            FolderProblem::Foreign { owner, us } => {
                write!(f, "the folder belongs to the user {owner} and must belong to {us}, who makes the copy")
            }
            FolderProblem::Shared { mode } => {
                write!(f, "others may use the folder (mode {mode:03o}); it must be its owner's alone (`chmod 700`)")
            }
            FolderProblem::Outside(root) => write!(f, "must be a folder below {}, without `..`", root.display()),
            FolderProblem::Unusable(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for FolderProblem {}

impl From<io::Error> for FolderProblem {
    fn from(error: io::Error) -> Self {
        FolderProblem::Unusable(error)
    }
}

impl From<Errno> for FolderProblem {
    fn from(error: Errno) -> Self {
        FolderProblem::Unusable(error.into())
    }
}

/// An empty, open folder that belongs to the user of this process and is closed to others: it stays the same folder
/// whatever happens to its name.
#[derive(Debug)]
pub struct EmptyFolder {
    disk: RealDisk,
    handle: OwnedFd,
}

impl EmptyFolder {
    /// Opens a folder for a copy, and creates it where that is allowed. A new folder has mode 0700.
    ///
    /// # Errors
    /// [`FolderProblem`]; folders that were created stay.
    pub fn open(destination: &Destination) -> Result<EmptyFolder, FolderProblem> {
        let handle = match destination {
            Destination::Prepared(path) => open_at(CWD, &plain(path))?,
            Destination::Made(path) => match open_at(CWD, &plain(path)) {
                Err(FolderProblem::Missing) => {
                    RealDisk::new(path).make_dir("")?;
                    open_at(CWD, &plain(path))?
                }
                opened => opened?,
            },
            Destination::Below { root, name } => open_below(root, name)?,
        };
        let found = rustix::fs::fstat(&handle)?;
        let (owner, us) = (found.st_uid, rustix::process::geteuid().as_raw());
        if owner != us {
            return Err(FolderProblem::Foreign { owner, us });
        }
        let mode = Mode::from_raw_mode(found.st_mode);
        if mode.intersects(OF_OTHERS) {
            return Err(FolderProblem::Shared { mode: mode.as_raw_mode() });
        }
        EmptyFolder::of(handle)
    }

    /// Opens a folder that becomes a data folder, and creates it if it is missing. Its permissions and the path to it
    /// are the operator's responsibility, as for every data folder.
    pub(crate) fn for_data(path: &Path) -> Result<EmptyFolder, FolderProblem> {
        RealDisk::new(path).make_dir("")?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        EmptyFolder::of(rustix::fs::open(path, flags, Mode::empty())?)
    }

    fn of(handle: OwnedFd) -> Result<EmptyFolder, FolderProblem> {
        let disk = RealDisk::open_at(handle.try_clone()?);
        match disk.list("")?.into_iter().next() {
            Some(name) => Err(FolderProblem::NotEmpty(name)),
            None => Ok(EmptyFolder { disk, handle }),
        }
    }

    /// Whether it is `folder`, or inside it.
    ///
    /// # Errors
    /// [`io::Error`] if a folder around it cannot be inspected.
    pub fn is_inside(&self, folder: &Path) -> io::Result<bool> {
        let same = |a: &Stat, b: &Stat| (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino);
        let wanted = rustix::fs::stat(folder)?;
        let mut here = self.handle.try_clone()?;
        loop {
            let found = rustix::fs::fstat(&here)?;
            if same(&found, &wanted) {
                return Ok(true);
            }
            let above = rustix::fs::openat(&here, "..", SEARCH | OFlags::CLOEXEC, Mode::empty())?;
            if same(&found, &rustix::fs::fstat(&above)?) {
                return Ok(false);
            }
            here = above;
        }
    }

    /// Creates a folder of this name in it, closed to others.
    pub(crate) fn inner(&self, name: &str) -> Result<EmptyFolder, FolderProblem> {
        rustix::fs::mkdirat(&self.handle, name, OWNER_ONLY)?;
        rustix::fs::fsync(&self.handle)?;
        EmptyFolder::of(open_at(&self.handle, Path::new(name))?)
    }

    /// The folder.
    pub(crate) fn disk(&self) -> &RealDisk {
        &self.disk
    }

    /// Creates the subfolders of a data folder in it.
    pub(crate) fn into_disk(self) -> io::Result<RealDisk> {
        for name in [JOURNAL, RUNS, STATE] {
            self.disk.make_dir(name)?;
        }
        Ok(self.disk)
    }
}

/// The path without `/` or `/.` at its end: with either, a link would be followed.
fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

/// Opens a folder, which must not be a link.
fn open_at(at: impl AsFd, path: &Path) -> Result<OwnedFd, FolderProblem> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(&at, path, flags, Mode::empty()) {
        Ok(folder) => Ok(folder),
        Err(Errno::NOENT) => Err(FolderProblem::Missing),
        Err(error) => match rustix::fs::statat(&at, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Symlink => {
                Err(FolderProblem::Link)
            }
            Ok(_) | Err(_) if error == Errno::NOTDIR => {
                Err(io::Error::from(io::ErrorKind::NotADirectory).into())
            }
            Ok(_) | Err(_) => Err(error.into()),
        },
    }
}

/// Opens a folder below another one, name by name, and creates missing folders.
fn open_below(root: &Path, name: &Path) -> Result<OwnedFd, FolderProblem> {
    let outside = || FolderProblem::Outside(root.to_owned());
    let mut names = Vec::new();
    for component in name.components() {
        match component {
            Component::Normal(name) => names.push(Path::new(name)),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Err(outside()),
        }
    }
    if names.is_empty() {
        return Err(outside());
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here = rustix::fs::open(root, flags, Mode::empty()).map_err(|error| {
        io::Error::new(
            io::Error::from(error).kind(),
            format!("the root of backups {}: {error}", root.display()),
        )
    })?;
    for name in names {
        here = match open_at(&here, name) {
            Err(FolderProblem::Missing) => {
                match rustix::fs::mkdirat(&here, name, OWNER_ONLY) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                rustix::fs::fsync(&here)?;
                open_at(&here, name)?
            }
            opened => opened?,
        };
    }
    Ok(here)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn prepared(path: &Path) -> Result<EmptyFolder, FolderProblem> {
        EmptyFolder::open(&Destination::Prepared(path.to_owned()))
    }

    fn folder(path: &Path, mode: u32) {
        fs::create_dir(path).unwrap();
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    #[test]
    fn destination_must_be_private_and_empty() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        assert!(matches!(prepared(&at("missing")), Err(FolderProblem::Missing)));
        assert!(!at("missing").exists());
        folder(&at("good"), 0o700);
        prepared(&at("good")).unwrap();
        for (mode, refused) in
            [(0o755, "mode 755"), (0o770, "mode 770"), (0o1777, "mode 1777"), (0o701, "mode 701")]
        {
            fs::set_permissions(at("good"), PermissionsExt::from_mode(mode)).unwrap();
            let why = prepared(&at("good")).unwrap_err().to_string();
            assert!(why.contains(refused) && why.contains("chmod 700"), "{why}");
        }
        fs::set_permissions(at("good"), PermissionsExt::from_mode(0o700)).unwrap();
        symlink(at("good"), at("link")).unwrap();
        for link in ["link", "link/", "link/."] {
            for destination in [Destination::Prepared(at(link)), Destination::Made(at(link))] {
                let refused = EmptyFolder::open(&destination);
                assert!(matches!(refused, Err(FolderProblem::Link)), "{link}: {refused:?}");
            }
        }
        symlink(at("nowhere"), at("dangling")).unwrap();
        for destination in [Destination::Prepared(at("dangling")), Destination::Made(at("dangling"))] {
            assert!(matches!(EmptyFolder::open(&destination), Err(FolderProblem::Link)));
        }
        assert!(!at("nowhere").exists());
        symlink(at("nowhere"), at("good/MANIFEST.tmp")).unwrap();
        assert!(
            matches!(prepared(&at("good")), Err(FolderProblem::NotEmpty(name)) if name == "MANIFEST.tmp")
        );
        fs::write(at("file"), "").unwrap();
        let refused = prepared(&at("file"));
        assert!(
            matches!(&refused, Err(FolderProblem::Unusable(e)) if e.kind() == io::ErrorKind::NotADirectory),
            "{refused:?}"
        );
    }

    #[test]
    fn made_folder_is_private_and_findable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let made = EmptyFolder::open(&Destination::Made(path.clone())).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o700);
        assert!(made.is_inside(&path).unwrap() && made.is_inside(&dir.path().join("a")).unwrap());
        fs::create_dir(dir.path().join("c")).unwrap();
        assert!(!made.is_inside(&dir.path().join("c")).unwrap());
        // The check also covers a file that has appeared there since.
        fs::rename(&path, dir.path().join("c/b")).unwrap();
        assert!(made.is_inside(&dir.path().join("c")).unwrap());
        drop(made.into_disk().unwrap());
        assert!(dir.path().join("c/b/journal").is_dir() && !path.exists());
    }

    #[test]
    fn root_destination_cannot_be_escaped() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        folder(&root, 0o755);
        let below = |name: &str| {
            EmptyFolder::open(&Destination::Below { root: root.clone(), name: name.into() }).map(drop)
        };
        below("a/b").unwrap();
        below("./a/b").unwrap();
        assert_eq!(fs::metadata(root.join("a/b")).unwrap().permissions().mode() & 0o7777, 0o700);
        for outside in ["", ".", "..", "../x", "a/../../x", "/tmp"] {
            let refused = below(outside);
            assert!(matches!(refused, Err(FolderProblem::Outside(_))), "{outside}: {refused:?}");
        }
        folder(&dir.path().join("elsewhere"), 0o700);
        symlink(dir.path().join("elsewhere"), root.join("link")).unwrap();
        for link in ["link", "link/x"] {
            let refused = below(link);
            assert!(matches!(refused, Err(FolderProblem::Link)), "{link}: {refused:?}");
        }
        assert_eq!(fs::read_dir(dir.path().join("elsewhere")).unwrap().count(), 0);
        assert!(!dir.path().join("x").exists());
        let none = EmptyFolder::open(&Destination::Below { root: dir.path().join("none"), name: "x".into() });
        assert!(none.unwrap_err().to_string().contains("the root of backups"));
    }
}
