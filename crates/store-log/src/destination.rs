//! The destination folder of a copy.
//!
//! The folder is opened once, without following a link, and every file is created relative to the open folder: other
//! users who may change the folders around it cannot redirect the copy.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawMode, Stat};
use rustix::io::Errno;

use crate::disk::{Disk, RealDisk};
use crate::folder::{JOURNAL, RUNS, STATE};

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
