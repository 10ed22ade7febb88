//! A shard's folder to read, without owning the shard.

use std::io;
use std::sync::Arc;

use duewheel_core::ShardId;
use duewheel_core::store::{StoreError, Waker};
use duewheel_store_log::disk::{Disk, DiskFile, FileAccess};

use crate::medium::{FileId, MediumFiles};
use crate::store::{FillFolder, MediumStore};

/// The files of a shard as a disk that refuses every change: for [`verify_on`](duewheel_store_log::verify_on),
/// [`inspect_on`](duewheel_store_log::inspect_on) and [`salvage_from`](duewheel_store_log::salvage_from).
///
/// While the shard has an owner its files change, and a file may be gone when it is read.
#[derive(Clone, Debug)]
pub struct ReadOnlyFolder(Arc<dyn MediumFiles>);

#[derive(Debug)]
struct ShardFile {
    files: Arc<dyn MediumFiles>,
    id: FileId,
    bytes: u64,
}

impl ReadOnlyFolder {
    /// The folder with these files.
    pub fn new(files: Arc<dyn MediumFiles>) -> Self {
        ReadOnlyFolder(files)
    }
}

fn failed(error: StoreError) -> io::Error {
    io::Error::other(error.to_string())
}

impl Disk for ReadOnlyFolder {
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let folder = if dir.is_empty() { String::new() } else { format!("{dir}/") };
        let names = self.0.list(&folder).map_err(failed)?;
        Ok(names.iter().filter_map(|name| name.strip_prefix(&*folder).map(str::to_owned)).collect())
    }

    fn open(&self, name: &str, _: FileAccess) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.0.find(name).map_err(failed)?.ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(ShardFile { files: Arc::clone(&self.0), id: file.id, bytes: file.bytes }))
    }
}

impl DiskFile for ShardFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        if at.saturating_add(buffer.len() as u64) > self.bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !buffer.is_empty() {
            buffer.copy_from_slice(&self.files.read(self.id, at, buffer.len()).map_err(failed)?);
        }
        Ok(())
    }
}

/// A store that nodes share, to which a backup is restored.
///
/// From [`RestoreTarget::begin_restore`] to [`RestoreTarget::end_restore`] its cluster has a format of its own, which
/// no node knows: a store of which a restore has ended in the middle is served by none. It is restored again from the
/// beginning.
pub trait RestoreTarget {
    /// Makes a cluster with this number of shards, which no node can join yet. What a restore that has not ended has
    /// left is removed.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](duewheel_core::store::ErrorKind::Corrupt) if there is a store already, or a part of one,
    /// [`ErrorKind::Fenced`](duewheel_core::store::ErrorKind::Fenced) while another process restores it,
    /// [`ErrorKind::Unavailable`](duewheel_core::store::ErrorKind::Unavailable) when the server does not answer.
    fn begin_restore(&self, shards: u32) -> Result<(), StoreError>;

    /// Acquires a shard, has its folder filled, and opens its store.
    ///
    /// # Errors
    /// As of [`Coordinator::open`](duewheel_core::store::Coordinator::open) and of `fill`.
    fn restore_shard(
        &self,
        shard: ShardId,
        waker: Waker,
        fill: FillFolder<'_>,
    ) -> Result<MediumStore, StoreError>;

    /// Lets nodes join. The stores of all shards have been filled and closed.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](duewheel_core::store::ErrorKind::Fenced) if another process has begun to restore it since,
    /// [`ErrorKind::Unavailable`](duewheel_core::store::ErrorKind::Unavailable) when the server does not answer: run
    /// the restore again if nodes cannot join.
    fn end_restore(&self) -> Result<(), StoreError>;
}
