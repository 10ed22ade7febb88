//! Reads the files of a shard, for its owner and for others.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use duewheel_core::ShardId;
use duewheel_core::store::StoreError;
use duewheel_store_medium::{FileId, MediumFiles, NamedFile};
use redis::{Pipeline, Value};

use crate::keys::Keys;
use crate::wire::{self, Servers, Wire};
use crate::{fault, value};

/// Bytes of a block. A string of exactly 1 MiB takes a quarter more than its bytes, because of the allocator's classes
/// (measured on Redis 7.0); with its header this one stays below.
pub(crate) const BLOCK: u64 = 1024 * 1024 - 64;
/// Blocks that a read asks for at once.
const BLOCKS_AT_ONCE: usize = 8;

/// A connection to the master of a shard.
pub(crate) trait ShardAsked: Sync {
    fn keys(&self) -> &Keys;

    /// Sends commands that change nothing.
    fn asked(&self, ask: Pipeline) -> impl Future<Output = Result<Vec<Value>, StoreError>> + Send;
}

pub(crate) async fn find(shard: &impl ShardAsked, name: String) -> Result<Option<NamedFile>, StoreError> {
    let mut ask = Pipeline::new();
    ask.cmd("HGET").arg(&shard.keys().files).arg(&name);
    let reply = shard.asked(ask).await?.into_iter().next();
    let Some(entry) = value::text(value::some(reply, "HGET")?, "HGET")? else { return Ok(None) };
    let numbers = entry.split_once(' ').and_then(|(id, bytes)| Some((id.parse().ok()?, bytes.parse().ok()?)));
    let Some((id, bytes)) = numbers else {
        return Err(fault::damaged(&shard.keys().files, &name, "it is no file"));
    };
    Ok(Some(NamedFile { id: FileId(id), bytes }))
}

pub(crate) async fn list(shard: &impl ShardAsked, prefix: String) -> Result<Vec<String>, StoreError> {
    let mut ask = Pipeline::new();
    ask.cmd("HKEYS").arg(&shard.keys().files);
    let of = "HKEYS";
    let names = value::list(value::some(shard.asked(ask).await?.into_iter().next(), of)?, of)?;
    let names = names.into_iter().map(|name| value::some(value::text(name, of)?, of));
    let names: Vec<String> = names.collect::<Result<_, StoreError>>()?;
    Ok(names.into_iter().filter(|name| name.starts_with(&prefix)).collect())
}

pub(crate) async fn read(
    shard: &impl ShardAsked,
    file: FileId,
    at: u64,
    length: usize,
) -> Result<Vec<u8>, StoreError> {
    let mut bytes = vec![0; length];
    let end = at + length as u64;
    let blocks: Vec<u64> = (at / BLOCK..end.div_ceil(BLOCK)).collect();
    for some in blocks.chunks(BLOCKS_AT_ONCE) {
        let mut ask = Pipeline::with_capacity(some.len());
        for block in some {
            let begin = block * BLOCK;
            let (from, to) = (at.max(begin) - begin, end.min(begin + BLOCK) - begin);
            ask.cmd("GETRANGE").arg(shard.keys().block(file, *block)).arg(from).arg(to - 1);
        }
        let parts = value::bytes_list(Value::Array(shard.asked(ask).await?), "GETRANGE")?;
        for (block, part) in some.iter().zip(parts) {
            let skip = usize::try_from(at.max(block * BLOCK) - at).unwrap_or(usize::MAX);
            // A block that is shorter, or not there, was not written so far.
            let part = part.unwrap_or_default();
            bytes[skip..skip + part.len()].copy_from_slice(&part);
        }
    }
    Ok(bytes)
}

/// The files of a shard that another node may own.
pub(crate) struct RedisReader(Arc<RedisReaderInner>);

struct RedisReaderInner {
    keys: Keys,
    wire: Wire,
}

impl RedisReader {
    /// Connects to the master of a shard.
    pub(crate) async fn connect(servers: &Servers, shard: ShardId) -> Result<Self, StoreError> {
        let keys = Keys::new(&servers.0.prefix, shard);
        let slots = servers.slots().await?;
        let wire = Wire::new(servers.connect(slots.master_of(&keys.files)?).await?);
        Ok(RedisReader(Arc::new(RedisReaderInner { keys, wire })))
    }
}

impl ShardAsked for RedisReaderInner {
    fn keys(&self) -> &Keys {
        &self.keys
    }

    async fn asked(&self, ask: Pipeline) -> Result<Vec<Value>, StoreError> {
        Ok(self.wire.call(ask).await?)
    }
}

impl MediumFiles for RedisReader {
    fn read(&self, file: FileId, at: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        let shard = Arc::clone(&self.0);
        wire::wait_for(async move { read(&*shard, file, at, length).await })
    }

    fn find(&self, name: &str) -> Result<Option<NamedFile>, StoreError> {
        let (shard, name) = (Arc::clone(&self.0), name.to_owned());
        wire::wait_for(async move { find(&*shard, name).await })
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let (shard, prefix) = (Arc::clone(&self.0), prefix.to_owned());
        wire::wait_for(async move { list(&*shard, prefix).await })
    }
}

impl fmt::Debug for RedisReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisReader").field("keys", &self.0.keys.tag()).finish_non_exhaustive()
    }
}
