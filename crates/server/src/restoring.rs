//! Restores a backup to the store on a server that nodes share.

use std::path::Path;
use std::sync::Arc;

use duewheel::core::ShardId;
use duewheel::core::engine::Ids;
use duewheel::core::store::StoreError;
use duewheel::{Restored, close_restored};
use duewheel_store_log::{CheckedBackup, VerifyReport};
use duewheel_store_medium::RestoreTarget;
use duewheel_store_postgres::PostgresCoordinator;
use duewheel_store_redis::{Create, RedisCoordinator};

use crate::config::{Settings, StoreChoice};
use crate::serve::ServeError;
use crate::store::{node_error, options_of, postgres_options};

/// The store of these settings, to restore a backup to it; `None` if it is a data folder.
///
/// # Errors
/// [`ServeError`] when the options are invalid, the store cannot be reached, or nodes would refuse its settings.
pub fn target_of(settings: &Settings) -> Result<Option<Box<dyn RestoreTarget>>, ServeError> {
    let failed = |error| ServeError::Open { what: "the store".to_owned(), why: node_error(error) };
    match &settings.store {
        StoreChoice::Log { .. } => Ok(None),
        StoreChoice::Redis(redis) => {
            // --redis-create says what a node may make.
            let redis = RedisCoordinator::new(options_of(redis)?.create(Create::Always));
            redis.inspect().map_err(failed)?;
            Ok(Some(Box::new(redis)))
        }
        StoreChoice::Postgres(postgres) => {
            let database = PostgresCoordinator::new(postgres_options(postgres)?).map_err(failed)?;
            Ok(Some(Box::new(database)))
        }
    }
}

/// Restores a backup to a store, which must be empty: all shards, one after the other. Nodes can join when all are
/// complete. Returns the number of shards with the result.
///
/// # Errors
/// [`StoreError`] when the copy is damaged, there is a store already, or it does not answer.
pub fn restore_to(store: &dyn RestoreTarget, src: &Path) -> Result<(Restored, u32), StoreError> {
    let backup = CheckedBackup::open(src)?;
    let shards = backup.shards();
    store.begin_restore(shards)?;
    let mut tokens_ended = 0;
    for shard in (0..shards).map(ShardId) {
        let thread = std::thread::current();
        let waker = Arc::new(move || thread.unpark());
        let mut restored = store.restore_shard(shard, waker, &mut |disk| backup.copy_shard(shard, disk))?;
        tokens_ended += close_restored(&mut restored, Ids::of(shard, shards))?;
    }
    store.end_restore()?;
    let VerifyReport { pending: messages, files, bytes, records, .. } = backup.report();
    Ok((Restored { messages, tokens_ended, files, bytes, records }, shards))
}
