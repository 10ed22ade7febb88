//! The content of a store, read without a server: the folders of its shards, wherever they lie.

use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

use duewheel::core::ShardId;
use duewheel::core::store::{Coordinator, ErrorKind, StoreError};
use duewheel_store_log::disk::{Disk, FileAccess, RealDisk};
use duewheel_store_log::folders_in;
use duewheel_store_medium::{MediumFiles, ReadOnlyFolder};
use duewheel_store_postgres::PostgresCoordinator;
use duewheel_store_redis::RedisCoordinator;

use crate::config::{Settings, StoreChoice};
use crate::serve::ServeError;
use crate::store::{node_error, options_of, postgres_options};

/// The file of a shard that lists the others.
const MANIFEST: &str = "MANIFEST";

/// The shards of a store.
#[derive(Debug)]
pub enum StoredShards {
    /// The folders of shards in a data folder.
    Folders(Vec<PathBuf>),
    /// So many shards on Redis.
    Redis(RedisCoordinator, u32),
    /// So many shards on PostgreSQL.
    Postgres(PostgresCoordinator, u32),
}

/// Finds the store of these settings. Nothing is locked, and nothing is written.
///
/// # Errors
/// [`ServeError`] when the options are invalid, or the store cannot be reached.
pub fn open(settings: &Settings) -> Result<StoredShards, ServeError> {
    let failed = |error| ServeError::Open { what: "the store".to_owned(), why: node_error(error) };
    match &settings.store {
        StoreChoice::Log { .. } => Ok(StoredShards::Folders(folders_in(&settings.data).map_err(failed)?)),
        StoreChoice::Redis(redis) => {
            let redis = RedisCoordinator::new(options_of(redis)?);
            let shards = count(&redis).map_err(failed)?;
            Ok(StoredShards::Redis(redis, shards))
        }
        StoreChoice::Postgres(postgres) => {
            let database = PostgresCoordinator::new(postgres_options(postgres)?).map_err(failed)?;
            let shards = count(&database).map_err(failed)?;
            Ok(StoredShards::Postgres(database, shards))
        }
    }
}

/// All shards of a store that nodes share, to be copied: as of one moment, or while no shard has an owner.
pub struct ShardsToCopy {
    /// The folder of each shard, to read.
    pub disks: Vec<Arc<dyn Disk>>,
    /// A store that cannot show one moment, and the manifests of its shards: each owner writes another one at once.
    changing: Option<(StoredShards, Vec<Vec<u8>>)>,
}

/// The shards of a store to copy; `None` for a data folder.
///
/// # Errors
/// [`ServeError`] when the options are invalid, the store cannot be reached, a shard has no files, or has an owner.
pub fn to_copy(settings: &Settings) -> Result<Option<ShardsToCopy>, ServeError> {
    let failed = |error| ServeError::Open { what: "the store".to_owned(), why: node_error(error) };
    if let StoreChoice::Postgres(postgres) = &settings.store {
        let database = PostgresCoordinator::new(postgres_options(postgres)?).map_err(failed)?;
        let shards = database.read_at_one_moment().map_err(failed)?;
        let disks: Vec<_> = shards.into_iter().map(of_medium).collect();
        manifests(&disks).map_err(failed)?;
        return Ok(Some(ShardsToCopy { disks, changing: None }));
    }
    match open(settings)? {
        StoredShards::Folders(_) => Ok(None),
        shards @ (StoredShards::Redis(..) | StoredShards::Postgres(..)) => {
            let all = (0..shards.count()).map(|shard| shards.disk(ShardId(shard)));
            let disks = all.collect::<Result<Vec<_>, _>>().map_err(failed)?;
            let before = manifests(&disks).map_err(failed)?;
            shards.unowned().map_err(failed)?;
            Ok(Some(ShardsToCopy { disks, changing: Some((shards, before)) }))
        }
    }
}

impl fmt::Debug for ShardsToCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardsToCopy").field("shards", &self.disks.len()).finish_non_exhaustive()
    }
}

impl ShardsToCopy {
    /// Checks that what was copied is of one moment.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] when a shard has an owner, or has had one since; and the store cannot be reached.
    pub fn still_unchanged(&self) -> Result<(), StoreError> {
        let Some((shards, before)) = &self.changing else { return Ok(()) };
        shards.unowned()?;
        if manifests(&self.disks)? != *before {
            let what = "a node has had a shard meanwhile: the copy is of several moments, and is not kept";
            return Err(StoreError::new(ErrorKind::Fenced, what));
        }
        Ok(())
    }
}

/// The manifest of each shard.
fn manifests(disks: &[Arc<dyn Disk>]) -> Result<Vec<Vec<u8>>, StoreError> {
    let failed = |shard: u32, error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            let what = "has no files: no node has opened it yet, or it has lost them";
            StoreError::new(ErrorKind::Corrupt, format_args!("shard {shard} {what}"))
        }
        _ => StoreError::new(ErrorKind::Unavailable, format_args!("shard {shard}: {error}")),
    };
    let read = |disk: &dyn Disk| {
        let file = disk.open(MANIFEST, FileAccess::Read)?;
        let mut bytes = vec![0; usize::try_from(file.size()?).unwrap_or(0)];
        file.read_at(&mut bytes, 0).map(|()| bytes)
    };
    (0..).zip(disks).map(|(shard, disk)| read(&**disk).map_err(|error| failed(shard, error))).collect()
}

fn of_medium(files: Arc<dyn MediumFiles>) -> Arc<dyn Disk> {
    Arc::new(ReadOnlyFolder::new(files))
}

fn count(nodes: &dyn Coordinator) -> Result<u32, StoreError> {
    match u32::try_from(nodes.owners()?.len()) {
        Ok(0) | Err(_) => {
            // A store of an unknown format is refused as such.
            nodes.secrets()?;
            Err(StoreError::new(ErrorKind::Corrupt, "there is no cluster: no node has taken part yet"))
        }
        Ok(shards) => Ok(shards),
    }
}

impl StoredShards {
    /// The number of shards.
    pub fn count(&self) -> u32 {
        match self {
            StoredShards::Folders(folders) => u32::try_from(folders.len()).unwrap_or(u32::MAX),
            StoredShards::Redis(_, shards) | StoredShards::Postgres(_, shards) => *shards,
        }
    }

    /// The folder of a shard, to read.
    ///
    /// # Errors
    /// The store cannot be reached.
    pub fn disk(&self, shard: ShardId) -> Result<Arc<dyn Disk>, StoreError> {
        match self {
            StoredShards::Folders(folders) => match folders.get(shard.0 as usize) {
                Some(folder) => Ok(Arc::new(RealDisk::new(folder))),
                None => Err(StoreError::new(ErrorKind::Corrupt, format_args!("there is no shard {shard}"))),
            },
            StoredShards::Redis(redis, _) => redis.read(shard).map(of_medium),
            StoredShards::Postgres(database, _) => database.read(shard).map(of_medium),
        }
    }

    /// Whether a shard without a file has lost what it had. A shard that never had an owner has no file, either.
    ///
    /// # Errors
    /// The store cannot be reached.
    pub fn has_lost_all(&self, shard: ShardId) -> Result<bool, StoreError> {
        match self {
            StoredShards::Folders(_) => Ok(true),
            StoredShards::Redis(redis, _) => redis.has_been_written(shard),
            StoredShards::Postgres(database, _) => database.has_been_written(shard),
        }
    }

    /// Checks that no shard has an owner.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] when one has, and the store cannot be reached.
    pub fn unowned(&self) -> Result<(), StoreError> {
        match self.owned()?.first() {
            None => Ok(()),
            Some((shard, node)) => {
                let what =
                    format_args!("node {node:?} has shard {shard}: its files change; stop all nodes first");
                Err(StoreError::new(ErrorKind::Fenced, what))
            }
        }
    }

    /// The shards that have an owner at present: their files change while they are read.
    ///
    /// # Errors
    /// The store cannot be reached.
    pub fn owned(&self) -> Result<Vec<(ShardId, String)>, StoreError> {
        let owners = match self {
            StoredShards::Folders(_) => Vec::new(),
            StoredShards::Redis(redis, _) => redis.owners()?,
            StoredShards::Postgres(database, _) => database.owners()?,
        };
        let owned = |(shard, owner): (u32, &duewheel::core::store::Ownership)| {
            owner.owner().map(|owner| (ShardId(shard), owner.node.name.to_string()))
        };
        Ok((0..).zip(&owners).filter_map(owned).collect())
    }
}
