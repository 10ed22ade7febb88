//! Copies of the data folder while it is in use.
//!
//! The log store copies the files. This module determines which store handle is current (the store may be opened again
//! after a failure), where a copy may be written, and that only one copy runs at a time.

use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use duewheel_core::id::ShardId;
use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_shard::shared::EndOnPanic;
use duewheel_shard::testing;
use duewheel_store_log::{Backup, BackupReport, Destination, EmptyFolder, FolderProblem};

/// The reason why no copy was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The messages are in memory only ([`Durability::Memory`](crate::Durability::Memory)), or in a store that has
    /// backups of its own.
    #[error("the messages are not in a data folder; there is none to copy")]
    InMemory,
    /// Another copy is in progress. Try again when it is done.
    #[error("another backup is under way")]
    Busy,
    /// The copy cannot be written to this folder. Choose another one.
    #[error("{}: {what}", folder.display())]
    Folder {
        /// The requested folder.
        folder: PathBuf,
        /// The problem of the folder.
        what: FolderProblem,
    },
    /// The wheel was shut down before or during the copy.
    #[error("the wheel was shut down and makes no backup")]
    Closed,
    /// A disk is full or failing, or the data is damaged: see [`StoreError::kind`].
    #[error("{0}")]
    Store(StoreError),
}

/// The handle of the currently open store of each shard. It is held by the opener, so it ends with the driver's thread.
#[derive(Debug)]
pub(crate) struct Newest {
    handles: Mutex<Vec<Option<Backup>>>,
    /// Whether a copy is in progress.
    busy: AtomicBool,
}

/// Makes copies, if there is a data folder to copy.
#[derive(Debug)]
pub(crate) enum Copier {
    None,
    Of { newest: Weak<Newest>, data: PathBuf },
}

/// The single permit to copy; no other copy can start until it is dropped.
struct CopyPermit(Arc<Newest>);

impl Newest {
    pub(crate) fn of(shards: u32) -> Self {
        Newest { handles: Mutex::new(vec![None; shards as usize]), busy: AtomicBool::new(false) }
    }

    pub(crate) fn set(&self, shard: ShardId, handle: Option<Backup>) {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = handles.get_mut(shard.0 as usize) {
            *place = handle;
        }
    }

    /// `None`: a store is not open.
    fn all(&self) -> Option<Vec<Backup>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl CopyPermit {
    fn take(newest: Arc<Newest>) -> Result<CopyPermit, BackupError> {
        match newest.busy.swap(true, Ordering::AcqRel) {
            true => Err(BackupError::Busy),
            false => Ok(CopyPermit(newest)),
        }
    }
}

impl Drop for CopyPermit {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

impl Copier {
    pub(crate) fn of(newest: &Arc<Newest>, data: &Path) -> Copier {
        Copier::Of { newest: Arc::downgrade(newest), data: data.to_owned() }
    }

    /// Makes the copy; `end` is called if copying panics.
    pub(crate) async fn copy_to(
        &self,
        destination: Destination,
        end: EndOnPanic,
    ) -> Result<BackupReport, BackupError> {
        let Copier::Of { newest, data } = self else { return Err(BackupError::InMemory) };
        let turn = CopyPermit::take(newest.upgrade().ok_or(BackupError::Closed)?)?;
        let data = data.clone();
        // The permit belongs to the copy, not to the caller, who may stop waiting.
        let copying = tokio::task::spawn_blocking(move || {
            let _end = end;
            testing::place("backup");
            copy(&turn.0, &data, &destination)
        });
        copying.await.unwrap_or(Err(BackupError::Closed))
    }
}

fn copy(newest: &Newest, data: &Path, destination: &Destination) -> Result<BackupReport, BackupError> {
    let Some(handles) = newest.all() else {
        let what = "the store has failed and is not open again yet";
        return Err(BackupError::Store(StoreError::new(ErrorKind::Unavailable, what)));
    };
    let dir = path_of(destination);
    let failed = |kind, what: &dyn std::fmt::Display| match kind {
        ErrorKind::Closed => BackupError::Closed,
        ErrorKind::Fenced | ErrorKind::Unavailable | ErrorKind::Full | ErrorKind::Corrupt => {
            BackupError::Store(StoreError::new(kind, format_args!("backup to {}: {what}", dir.display())))
        }
    };
    let folder = open(data, destination).map_err(|what| match what {
        FolderProblem::Unusable(error) if error.kind() == io::ErrorKind::StorageFull => {
            failed(ErrorKind::Full, &error)
        }
        what => BackupError::Folder { folder: dir.clone(), what },
    })?;
    let copied = match handles.as_slice() {
        [one] => one.copy_into(folder),
        several => Backup::copy_shards(several, &folder),
    };
    copied.map_err(|error| failed(error.kind(), &error))
}

/// Opens the folder for the copy. Problems with it are reported before anything is copied, and nothing is created in
/// the data folder.
fn open(data: &Path, destination: &Destination) -> Result<EmptyFolder, FolderProblem> {
    if real(&path_of(destination))?.starts_with(data.canonicalize()?) {
        return Err(FolderProblem::Inside);
    }
    let folder = EmptyFolder::open(destination)?;
    // The name may refer to another folder by then.
    match folder.is_inside(data)? {
        true => Err(FolderProblem::Inside),
        false => Ok(folder),
    }
}

fn path_of(destination: &Destination) -> PathBuf {
    match destination {
        Destination::Prepared(dir) | Destination::Made(dir) => dir.clone(),
        Destination::Below { root, name } => root.join(name),
    }
}

/// The path with links and dots resolved, also for a folder that does not exist yet.
fn real(dir: &Path) -> io::Result<PathBuf> {
    let dir = std::path::absolute(dir)?;
    let mut there = dir.as_path();
    loop {
        match there.canonicalize() {
            Ok(mut path) => {
                for part in dir.strip_prefix(there).unwrap_or(Path::new("")).components() {
                    match part {
                        Component::ParentDir => {
                            path.pop();
                        }
                        part => path.push(part),
                    }
                }
                return Ok(path);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => match there.parent() {
                Some(parent) => there = parent,
                None => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backups_run_one_by_one() {
        let newest = Arc::new(Newest::of(1));
        let turn = CopyPermit::take(newest.clone()).unwrap_or_else(|_| panic!("nobody else copies"));
        assert!(matches!(CopyPermit::take(newest.clone()), Err(BackupError::Busy)));
        drop(turn);
        assert!(CopyPermit::take(newest).is_ok());
    }

    #[test]
    fn backup_inside_data_folder_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        std::os::unix::fs::symlink(&data, dir.path().join("link")).unwrap();
        for inside in ["data", "data/copy", "link/copy/of", "new/../data/copy", "./data/."] {
            let opened = open(&data, &Destination::Made(dir.path().join(inside)));
            assert!(matches!(opened, Err(FolderProblem::Inside)), "{inside}: {opened:?}");
        }
        assert!(!data.join("copy").exists(), "nothing was made");
        for beside in ["data2", "link2/copy", "data/../copy"] {
            open(&data, &Destination::Made(dir.path().join(beside))).unwrap();
        }
        std::fs::write(dir.path().join("file"), "x").unwrap();
        for bad in ["file", "file/copy", "."] {
            assert!(open(&data, &Destination::Made(dir.path().join(bad))).is_err(), "{bad}");
        }
    }
}
